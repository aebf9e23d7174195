/* Disks that are full, break or become read-only under the store: a small real file system on a
 * loop device, and the fault file system of tests/tools/faultfs. Needs root and the devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <hx/build_facts.h>

#include "world.h"

static struct world w;
static char mounted[128]; /* where the store's folder is */
static char base[128];    /* our own folder */
static pid_t faultfs;

static int run(const char *const argv[])
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void begin(size_t big, size_t chunk)
{
    assert_int_equal(world_open(&w, big, chunk, true), 0);
    snprintf(base, sizeof(base), "%s", w.models);
    snprintf(mounted, sizeof(mounted), "%s/disk", base);
    assert_int_equal(mkdir(mounted, 0755), 0);
    snprintf(w.models, sizeof(w.models), "%s/disk/models", base);
}

static void finish(void)
{
    umount2(mounted, MNT_DETACH);
    if (faultfs > 0) {
        kill(faultfs, SIGTERM);
        waitpid(faultfs, NULL, 0);
        faultfs = 0;
    }
    snprintf(w.models, sizeof(w.models), "%s", base);
    world_close(&w);
    base[0] = '\0';
}

/* After a failed assertion too, so that nothing stays mounted. */
static int teardown(void **state)
{
    (void)state;
    if (*base)
        finish();
    return 0;
}

/* ext2 has no preallocation, so that the disk can fill up on the way. */
static bool loop_disk(const char *type, const char *size)
{
    char image[192];
    snprintf(image, sizeof(image), "%s/image", base);
    const char *const make[] = {"truncate", "-s", size, image, NULL};
    const char *const format[] = {"mkfs", "-t", type, "-q", "-F", "-m", "0", image, NULL};
    const char *const mount_it[] = {"mount", "-o", "loop", image, mounted, NULL};
    return geteuid() == 0 && run(make) == 0 && run(format) == 0 && run(mount_it) == 0 &&
           mkdir(w.models, 0755) == 0;
}

static void fault(const char *text)
{
    char path[160], fresh[176];
    snprintf(path, sizeof(path), "%s/control", base);
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    FILE *f = fopen(fresh, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(rename(fresh, path), 0);
}

static bool fault_disk(void)
{
    char under[160], control[160];
    struct stat a, b;
    const char *program = HX_BUILD_DATA "/../" HX_BUILD_VARIANT "/tests/faultfs";
    if (access(program, X_OK) < 0 || access("/dev/fuse", R_OK | W_OK) < 0)
        return false;
    snprintf(under, sizeof(under), "%s/under", base);
    snprintf(control, sizeof(control), "%s/control", base);
    assert_int_equal(mkdir(under, 0755), 0);
    fault("");
    assert_int_equal(stat(base, &b), 0);
    faultfs = fork();
    if (faultfs == 0) {
        execl(program, program, under, control, mounted, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 500; i++) {
        if (stat(mounted, &a) == 0 && a.st_dev != b.st_dev)
            return mkdir(w.models, 0755) == 0;
        usleep(10000);
    }
    return false;
}

static struct hx_store *open_store(void)
{
    struct hx_store_options o = {
        .models = w.models, .n_writers = 2, .buffer_bytes = 16u << 20, .retry_ms = 20};
    struct hx_store *s = NULL;
    struct hx_error err = {0};
    if (hx_store_open(&o, w.plan, NULL, NULL, &s, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static size_t big_file(void)
{
    for (size_t f = 0; f < w.plan->n_files; f++) {
        if (strcmp(w.plan->files[f].lock->out, "engram/big.safetensors") == 0)
            return f;
    }
    fail();
    return 0;
}

static void assert_all_right(void)
{
    for (size_t f = 0; f < w.plan->n_files; f++) {
        char path[256];
        world_path(&w, f, "", path, sizeof(path));
        assert_true(world_same(&w, f, path));
    }
}

/* Another writer takes the space; the download pauses, keeps everything and goes on later. */
static void test_full_disk(void **state)
{
    (void)state;
    begin(6u << 20, 512u << 10);
    if (!loop_disk("ext2", "12M")) {
        finish();
        skip();
    }
    char other[160];
    snprintf(other, sizeof(other), "%s/other", mounted);
    const char *const fill[] = {"dd", "if=/dev/zero", NULL, "bs=64k", "count=140", NULL};
    char of[176];
    snprintf(of, sizeof(of), "of=%s", other);
    ((const char **)(uintptr_t)fill)[2] = of;
    struct hx_store *s = open_store();
    world_events(&w, s);
    assert_non_null(strstr(w.message, "cannot reserve space"));
    run(fill);
    size_t big = big_file(), n = w.plan->files[big].n_chunks, c = 0;
    for (; c < n && w.n_full == 0; c++) {
        struct hx_sink *k;
        struct hx_error err;
        uint64_t at;
        const struct hx_plan_chunk *p = &w.plan->files[big].chunks[c];
        assert_int_equal(hx_store_begin(s, big, c, &at, &k, &err), 0);
        int r = -EAGAIN;
        for (int i = 0; i < 50 && r == -EAGAIN && w.n_full == 0; i++) {
            r = hx_sink_write(k, w.source[1] + p->src_begin, p->src_bytes);
            if (r == -EAGAIN)
                world_wait(&w, s, 100);
        }
        hx_sink_end(k, false);
        for (int i = 0; i < 10 && w.n_full == 0; i++)
            world_wait(&w, s, 20);
    }
    assert_int_equal(w.n_full, 1);
    assert_non_null(strstr(w.message, "No space left on device"));
    assert_non_null(strstr(w.message, "engram/big.safetensors"));
    assert_int_equal(w.n_stopped + w.n_lost, 0);
    assert_int_equal(unlink(other), 0);
    for (int i = 0; i < 200 && w.n_resumed == 0; i++)
        world_wait(&w, s, 50);
    assert_int_equal(w.n_resumed, 1);
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

/* With preallocation the lack of room shows before the first byte. */
static void test_full_at_start(void **state)
{
    (void)state;
    begin(20u << 20, 1u << 20);
    if (!loop_disk("ext4", "16M")) {
        finish();
        skip();
    }
    struct hx_store_options o = {.models = w.models, .n_writers = 1, .buffer_bytes = 16u << 20};
    struct hx_store *s = NULL;
    struct hx_error err = {0};
    assert_int_equal(hx_store_open(&o, w.plan, NULL, NULL, &s, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "big.safetensors.part: cannot reserve"));
    finish();
}

/* A stop while the disk is full ends at once and loses nothing that was recorded. */
static void test_stop_when_full(void **state)
{
    (void)state;
    begin(400000, 64u << 10);
    if (!fault_disk()) {
        finish();
        skip();
    }
    struct hx_store *s = open_store();
    size_t big = big_file();
    assert_int_equal(world_feed(&w, s, big, 0, NULL, 8192), 0);
    assert_int_equal(hx_store_flush(s, NULL), 0);
    fault("write error=ENOSPC\n");
    assert_int_equal(world_feed(&w, s, big, 1, NULL, 8192), 0);
    for (int i = 0; i < 200 && w.n_full == 0; i++)
        world_wait(&w, s, 20);
    assert_int_equal(w.n_full, 1);
    hx_store_close(s);
    fault("");
    s = open_store();
    assert_true(hx_store_chunk_done(s, big, 0));
    assert_false(hx_store_chunk_done(s, big, 1));
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

static void test_write_error(void **state)
{
    (void)state;
    begin(400000, 64u << 10);
    if (!fault_disk()) {
        finish();
        skip();
    }
    struct hx_store *s = open_store();
    size_t big = big_file();
    fault("write file=*/big.safetensors.part error=EIO\n");
    assert_int_equal(world_feed(&w, s, big, 2, NULL, 8192), 0);
    for (int i = 0; i < 200 && w.n_stopped + w.n_lost < 2; i++)
        world_wait(&w, s, 20);
    assert_int_equal(w.n_stopped, 1);
    assert_int_equal(w.n_lost, 1);
    assert_non_null(strstr(w.message, "big.safetensors.part: writing at offset 131072 of device"));
    assert_non_null(strstr(w.message, "Input/output error"));
    /* Other files go on. */
    for (size_t f = 0; f < w.plan->n_files; f++) {
        for (size_t c = 0; f != big && c < w.plan->files[f].n_chunks; c++)
            assert_int_equal(world_feed(&w, s, f, c, NULL, 8192), 0);
    }
    for (int i = 0; i < 200; i++) {
        world_wait(&w, s, 20);
        if (hx_store_file_ready(s, big ? 0 : 1))
            break;
    }
    assert_true(hx_store_file_ready(s, big ? 0 : 1));
    hx_store_close(s);
    fault("");
    s = open_store();
    assert_int_equal((w.n_stopped = 0, world_complete(&w, s)), 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

/* After a failed sync the kernel has dropped the pages: nothing of the batch counts. */
static void test_sync_error(void **state)
{
    (void)state;
    begin(400000, 64u << 10);
    if (!fault_disk()) {
        finish();
        skip();
    }
    struct hx_store *s = open_store();
    size_t big = big_file();
    assert_int_equal(world_feed(&w, s, big, 0, NULL, 8192), 0);
    assert_int_equal(hx_store_flush(s, NULL), 0);
    fault("fsync file=*/big.safetensors.part error=EIO\n");
    assert_int_equal(world_feed(&w, s, big, 1, NULL, 8192), 0);
    for (int i = 0; i < 200 && w.n_stopped + w.n_lost < 2; i++)
        world_wait(&w, s, 20);
    assert_int_equal(w.n_stopped, 1);
    assert_int_equal(w.n_lost, 1);
    assert_non_null(strstr(w.message, "syncing"));
    hx_store_close(s);
    fault("");
    s = open_store();
    assert_true(hx_store_chunk_done(s, big, 0));
    assert_false(hx_store_chunk_done(s, big, 1));
    w.n_stopped = 0;
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

static void test_read_only(void **state)
{
    (void)state;
    begin(400000, 64u << 10);
    if (!fault_disk()) {
        finish();
        skip();
    }
    struct hx_store *s = open_store();
    size_t big = big_file();
    fault("change error=EROFS\n");
    assert_int_equal(world_feed(&w, s, big, 0, NULL, 8192), 0);
    for (int i = 0; i < 200 && w.n_read_only == 0; i++)
        world_wait(&w, s, 20);
    assert_int_equal(w.n_read_only, 1);
    assert_non_null(strstr(w.message, "Read-only file system"));
    fault("");
    for (int i = 0; i < 200 && w.n_resumed == 0; i++)
        world_wait(&w, s, 20);
    assert_int_equal(w.n_resumed, 1);
    assert_int_equal(world_complete(&w, s), 0);
    assert_int_equal(w.n_stopped + w.n_lost, 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

/* A slow disk holds the source back instead of filling the memory. */
static void test_slow_disk(void **state)
{
    (void)state;
    begin(40u << 20, 4u << 20);
    if (!fault_disk()) {
        finish();
        skip();
    }
    struct hx_store *s = open_store();
    size_t big = big_file(), n_refused = 0;
    fault("write file=*.part delay=30\n");
    for (size_t c = 0; c < 6; c++) {
        const struct hx_plan_chunk *p = &w.plan->files[big].chunks[c];
        struct hx_sink *k;
        struct hx_error err;
        uint64_t at;
        assert_int_equal(hx_store_begin(s, big, c, &at, &k, &err), 0);
        while (at < p->src_bytes) {
            size_t n = p->src_bytes - at < 300000 ? (size_t)(p->src_bytes - at) : 300000;
            int r = hx_sink_write(k, w.source[1] + p->src_begin + at, n);
            if (r == -EAGAIN) {
                n_refused++;
                world_wait(&w, s, 2000);
                continue;
            }
            assert_int_equal(r, 0);
            at += n;
        }
        hx_sink_end(k, false);
    }
    assert_true(n_refused > 0);
    fault("");
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right();
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_full_disk, teardown),
        cmocka_unit_test_teardown(test_full_at_start, teardown),
        cmocka_unit_test_teardown(test_stop_when_full, teardown),
        cmocka_unit_test_teardown(test_write_error, teardown),
        cmocka_unit_test_teardown(test_sync_error, teardown),
        cmocka_unit_test_teardown(test_read_only, teardown),
        cmocka_unit_test_teardown(test_slow_disk, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
