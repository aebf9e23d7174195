/* The two ways to read, without the streamer: completions, what is ready, wake-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engram/io.h"

#define SLOTS 64 /* as many as the streamer has at least */
#define BLOCK 512
#define TRIES 10000 /* of a millisecond */

struct rig {
    const struct hx_engram_io_ops *ops;
    struct hx_engram_io *io;
    uint8_t *slots;
    int fd, write_fd; /* write_fd: the pipe's other end, else -1 */
};

static void rig_done(struct rig *r)
{
    r->ops->close(r->io);
    munmap(r->slots, (size_t)SLOTS * BLOCK);
    close(r->fd);
    if (r->write_fd >= 0)
        close(r->write_fd);
}

/* False: the kernel does not let us. */
static bool rig_open(struct rig *r, const struct hx_engram_io_ops *ops, int fd, int write_fd)
{
    struct hx_error err;
    *r = (struct rig){.ops = ops, .fd = fd, .write_fd = write_fd};
    r->slots = mmap(NULL, (size_t)SLOTS * BLOCK, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(r->slots != MAP_FAILED);
    struct hx_engram_io_config c = {.fd = {fd},
                                    .n_files = 1,
                                    .n_slots = SLOTS,
                                    .slots = r->slots,
                                    .slot_bytes = BLOCK,
                                    .n_threads = 4};
    int e = ops->open(&c, &r->io, &err);
    if (e == -EPERM || e == -ENOSYS || e == -EACCES) {
        rig_done(r);
        return false;
    }
    assert_int_equal(e, 0);
    return true;
}

static void pause_ms(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static bool becomes_ready(struct rig *r)
{
    for (int i = 0; i < TRIES; i++) {
        if (r->ops->ready(r->io))
            return true;
        pause_ms();
    }
    return false;
}

static int block_file(void)
{
    char path[] = "/tmp/hx-test-io-XXXXXX";
    uint8_t block[BLOCK];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    for (int i = 0; i < SLOTS; i++) {
        memset(block, i + 1, sizeof(block));
        assert_int_equal(write(fd, block, sizeof(block)), sizeof(block));
    }
    return fd;
}

/* Every slot reads a block of its own; they are taken a few at a time, each once. */
static void check_blocks(const struct hx_engram_io_ops *ops)
{
    struct rig r;
    struct hx_engram_io_done done[4];
    bool seen[SLOTS] = {false};
    if (!rig_open(&r, ops, block_file(), -1))
        skip();
    assert_false(ops->ready(r.io));
    assert_int_equal(ops->wait(r.io, done, 4, 1, 0), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(ops->queue(r.io, i, 0, (uint64_t)(SLOTS - 1 - i) * BLOCK, BLOCK, 0), 0);
    ops->submit(r.io);
    for (int left = SLOTS; left > 0;) {
        assert_true(becomes_ready(&r));
        int n = ops->wait(r.io, done, 4, 1, 0);
        assert_in_range(n, 1, 4);
        for (int k = 0; k < n; k++) {
            uint32_t slot = done[k].slot;
            assert_in_range(slot, 0, SLOTS - 1);
            assert_false(seen[slot]);
            seen[slot] = true;
            assert_int_equal(done[k].res, BLOCK);
            const uint8_t *p = r.slots + slot * BLOCK;
            assert_int_equal(p[0], SLOTS - slot);
            assert_memory_equal(p, p + 1, BLOCK - 1);
        }
        left -= n;
    }
    assert_false(ops->ready(r.io));
    rig_done(&r);
}

static void test_blocks_uring(void **state)
{
    (void)state;
    check_blocks(&hx_engram_uring);
}

static void test_blocks_threads(void **state)
{
    (void)state;
    check_blocks(&hx_engram_threads);
}

/* A read that completes while nobody waits is seen without a call that waits: what a drive's thread
 * relies on between its pieces. A pipe completes when the test says so. */
static void test_ready_later(void **state)
{
    struct rig r;
    struct hx_engram_io_done done[2];
    uint8_t text[BLOCK];
    int ends[2];
    (void)state;
    memset(text, 'x', sizeof(text));
    assert_int_equal(pipe(ends), 0);
    if (!rig_open(&r, &hx_engram_uring, ends[0], ends[1]))
        skip();
    assert_int_equal(r.ops->queue(r.io, 3, 0, 0, BLOCK, 0), 0);
    r.ops->submit(r.io);
    for (int i = 0; i < 5; i++) {
        assert_false(r.ops->ready(r.io));
        pause_ms();
    }
    assert_int_equal(r.ops->wait(r.io, done, 2, 1, 0), 0);
    assert_int_equal(write(ends[1], text, sizeof(text)), sizeof(text));
    assert_true(becomes_ready(&r));
    assert_int_equal(r.ops->wait(r.io, done, 2, 1, 0), 1);
    assert_int_equal(done[0].slot, 3);
    assert_int_equal(done[0].res, BLOCK);
    assert_memory_equal(r.slots + 3 * BLOCK, text, BLOCK);
    rig_done(&r);
}

/* A wake-up before or during a wait ends it, long before its timeout. */
static void check_wake(const struct hx_engram_io_ops *ops)
{
    struct rig r;
    struct hx_engram_io_done done[1];
    struct timespec a, b;
    if (!rig_open(&r, ops, block_file(), -1))
        skip();
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 3; i++) {
        ops->wake(r.io);
        assert_int_equal(ops->wait(r.io, done, 1, 1, 60000000), 0);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true(b.tv_sec - a.tv_sec < 60);
    rig_done(&r);
}

static void test_wake_uring(void **state)
{
    (void)state;
    check_wake(&hx_engram_uring);
}

static void test_wake_threads(void **state)
{
    (void)state;
    check_wake(&hx_engram_threads);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_uring), cmocka_unit_test(test_blocks_threads),
        cmocka_unit_test(test_ready_later),  cmocka_unit_test(test_wake_uring),
        cmocka_unit_test(test_wake_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
