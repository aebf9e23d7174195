/* Logs of writes: order, flushes, discards, and logs that are no good. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "image/child.h"
#include "image/writelog.h"

#define SECTOR 512u

static char log_path[64], drive_path[64];

static void put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static int set_up(void **state)
{
    (void)state;
    snprintf(log_path, sizeof(log_path), "/tmp/hx-writelog-XXXXXX");
    snprintf(drive_path, sizeof(drive_path), "/tmp/hx-writelog-XXXXXX");
    int a = mkstemp(log_path), b = mkstemp(drive_path);
    close(a);
    close(b);
    return a < 0 || b < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(log_path);
    unlink(drive_path);
    return 0;
}

/* Superblock with that many entries, then the entries: sector, sectors, flags, filling byte. */
static void make(uint64_t n_claimed, const uint64_t rows[][4], size_t n)
{
    uint8_t block[SECTOR] = {0};
    FILE *f = fopen(log_path, "w");
    assert_non_null(f);
    put(block, 0x6a736677736872ull, 8);
    put(block + 8, 1, 8);
    put(block + 16, n_claimed, 8);
    put(block + 24, SECTOR, 4);
    fwrite(block, 1, SECTOR, f);
    for (size_t i = 0; i < n; i++) {
        memset(block, 0, sizeof(block));
        for (int k = 0; k < 3; k++)
            put(block + 8 * k, rows[i][k], 8);
        fwrite(block, 1, SECTOR, f);
        memset(block, (int)rows[i][3], sizeof(block));
        for (uint64_t k = 0; k < rows[i][1] && !(rows[i][2] & 4); k++)
            fwrite(block, 1, SECTOR, f);
    }
    fclose(f);
}

static void test_replay(void **state)
{
    (void)state;
    static const uint64_t rows[][4] = {
        {2, 1, 0, 0xaa}, {0, 0, 1, 0}, {2, 2, 0, 0xbb}, {7, 3, 4, 0}, {0, 1, 1, 0xcc}};
    static const uint8_t want[] = {0xcc, 0, 0xbb, 0xbb};
    struct hx_writelog log;
    struct hx_writelog_entry e;
    struct hx_error err;
    int n = 0, n_flushes = 0;
    make(5, rows, 5);
    assert_int_equal(truncate(drive_path, 16 * SECTOR), 0);
    int fd = open(drive_path, O_RDWR);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), 0);
    while (hx_writelog_next(&log, &e, &err) == 1) {
        assert_int_equal(e.offset, rows[n][0] * SECTOR);
        assert_int_equal(e.n_bytes, rows[n][1] * SECTOR);
        assert_int_equal(e.is_discard, n == 3);
        assert_int_equal(hx_writelog_apply(&log, &e, fd, &err), 0);
        n_flushes += e.is_flush;
        n++;
    }
    assert_int_equal(n, 5);
    assert_int_equal(n_flushes, 2);
    for (size_t i = 0; i < sizeof(want); i++) {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, (off_t)(i * SECTOR + 100)), 1);
        assert_int_equal(byte, want[i]);
    }
    close(fd);
    hx_writelog_close(&log);
}

/* A log that QEMU itself wrote: replayed, it gives the drive that QEMU left. */
static void test_log_of_qemu(void **state)
{
    (void)state;
    char options[400], image[80];
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_error err;
    int code = -1, fd;
    snprintf(image, sizeof(image), "%s.image", drive_path);
    snprintf(options, sizeof(options),
             "driver=blklogwrites,file.driver=raw,file.file.driver=file,file.file.filename=%s,"
             "log.driver=file,log.filename=%s,log-sector-size=512",
             image, log_path);
    const char *const argv[] = {"qemu-io",
                                "--image-opts",
                                options,
                                "-c",
                                "write -P 0xaa 1024 1k",
                                "-c",
                                "flush",
                                "-c",
                                "write -z 8k 4k",
                                "-c",
                                "write -P 0xcc 9k 512",
                                "-c",
                                "discard 64k 64k",
                                "-c",
                                "write -P 0xbb 0 512",
                                "-c",
                                "flush",
                                NULL};
    fd = open(image, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_equal(truncate(drive_path, 1 << 20), 0);
    int r = hx_child_run(argv, NULL, &out, &code, hx_child_clock() + 60000, &err);
    if (r == -ENOENT) {
        close(fd);
        unlink(image);
        skip();
    }
    assert_int_equal(r, 0);
    assert_int_equal(code, 0);
    struct hx_writelog log;
    struct hx_writelog_entry e;
    int n_flushes = 0, n_discards = 0, drive = open(drive_path, O_RDWR);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), 0);
    while ((r = hx_writelog_next(&log, &e, &err)) == 1) {
        assert_int_equal(hx_writelog_apply(&log, &e, drive, &err), 0);
        n_flushes += e.is_flush;
        n_discards += e.is_discard;
    }
    assert_int_equal(r, 0);
    assert_true(n_flushes >= 2);
    assert_int_equal(n_discards, 1);
    static uint8_t have[64 << 10], want[64 << 10];
    assert_int_equal(pread(drive, have, sizeof(have), 0), sizeof(have));
    assert_int_equal(pread(fd, want, sizeof(want), 0), sizeof(want));
    assert_memory_equal(have, want, sizeof(want));
    assert_int_equal(want[9 << 10], 0xcc);
    hx_writelog_close(&log);
    close(drive);
    close(fd);
    unlink(image);
    hx_buf_done(&out);
}

static void test_bad_logs(void **state)
{
    (void)state;
    static const uint64_t good[][4] = {{2, 1, 0, 0xaa}, {0, 0, 1, 0}};
    struct hx_writelog log;
    struct hx_writelog_entry e;
    struct hx_error err;
    make(2, good, 2);
    assert_int_equal(truncate(log_path, 20), 0);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), -EBADMSG);
    make(3, good, 2);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), 0);
    assert_int_equal(hx_writelog_next(&log, &e, &err), 1);
    assert_int_equal(hx_writelog_next(&log, &e, &err), 1);
    assert_int_equal(hx_writelog_next(&log, &e, &err), -EBADMSG);
    hx_writelog_close(&log);
    make(2, good, 2);
    assert_int_equal(truncate(log_path, 2 * SECTOR + 100), 0);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), 0);
    assert_int_equal(hx_writelog_next(&log, &e, &err), -EBADMSG);
    hx_writelog_close(&log);
    FILE *f = fopen(log_path, "w");
    fprintf(f, "no log at all, but long enough to be read as one");
    fclose(f);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), -EBADMSG);
    f = fopen(log_path, "w");
    fclose(f);
    assert_int_equal(hx_writelog_open(&log, "/nonexistent/log", &err), -ENOENT);
}

static void test_entry_beyond_all_drives(void **state)
{
    (void)state;
    struct hx_writelog log;
    struct hx_writelog_entry e;
    struct hx_error err;
    static const uint64_t rows[][4] = {{UINT64_MAX / 512, 0, 0, 0}};
    make(1, rows, 1);
    assert_int_equal(hx_writelog_open(&log, log_path, &err), 0);
    assert_int_equal(hx_writelog_next(&log, &e, &err), -EBADMSG);
    hx_writelog_close(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_replay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_log_of_qemu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_logs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_entry_beyond_all_drives, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
