/* What drives and files do to the streamer: errors, delays, short reads, drives that vanish and
 * come back, files that change, kernels that refuse. A request that needs the row fails with a
 * clear message, others go on, nobody ever gets other bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "../unit/engram/shard.h"
#include "mount.h"

#define N_TOK 300

static struct {
    char folder[64];
    struct tables x; /* the files below the mount */
    struct mount a;
    int32_t token[N_TOK];
} here;

static void here_path(char *to, size_t size, const struct mount *m, int table)
{
    const char *name = strrchr(here.x.shard[table].path, '/');
    snprintf(to, size, "%s%s", m->point, name);
}

static char mounted[2][N_TABLES][400]; /* paths through the mounts */

static struct hx_engram_stream_options options(void)
{
    struct hx_engram_stream_options o = options_for(&here.x);
    for (int t = 0; t < N_TABLES; t++) {
        here_path(mounted[0][t], sizeof(mounted[0][t]), &here.a, t);
        o.table[t][0].path = mounted[0][t];
    }
    return o;
}

static int setup(void **state)
{
    (void)state;
    char real[80];
    if (mount_refused())
        return 0;
    snprintf(here.folder, sizeof(here.folder), "/var/tmp/hx-test-faults-XXXXXX");
    assert_non_null(mkdtemp(here.folder));
    snprintf(real, sizeof(real), "%s/real", here.folder);
    assert_int_equal(mkdir(real, 0755), 0);
    memset(&here.x, 0, sizeof(here.x));
    tables_make(&here.x, real);
    mount_start(&here.a, here.folder, "real");
    for (int i = 0; i < N_TOK; i++)
        here.token[i] = (int32_t)((i * 37 + i / 7) % here.x.c.n_vocab);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char real[80];
    if (mount_refused())
        return 0;
    mount_stop(&here.a);
    tables_done(&here.x);
    snprintf(real, sizeof(real), "%s/real", here.folder);
    rmdir(real);
    return rmdir(here.folder);
}

#define NEEDS_MOUNT()                                                                              \
    do {                                                                                           \
        if (mount_refused()) {                                                                     \
            print_message("%s\n", mount_refused());                                                \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

/* ---- using ---- */

static struct hx_engram_plan *plan(struct hx_engram_stream *s, int first, int n)
{
    struct hx_engram_plan *p = NULL;
    struct hx_error err;
    if (hx_engram_plan(s, HX_ENGRAM_CHUNK, here.token, NULL, first, n, &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

static void expect_rows(struct hx_engram_stream *s, int first, int n)
{
    struct hx_engram_plan *p = plan(s, first, n);
    check_plan(&here.x, p, here.token, NULL, first, n);
    hx_engram_release(p);
}

/* For streamers that give up early: on a busy machine good reads may be too slow for them. */
static void expect_rows_at_last(struct hx_engram_stream *s, int first, int n)
{
    for (int tries = 0; tries < 100; tries++) {
        struct hx_engram_plan *p = NULL;
        struct hx_error err;
        int r = hx_engram_plan(s, HX_ENGRAM_CHUNK, here.token, NULL, first, n, &p, &err);
        for (int t = 0; r == 0 && t < N_TABLES; t++)
            r = hx_engram_wait(p, t, 20000000, &err);
        if (r == 0)
            check_plan(&here.x, p, here.token, NULL, first, n);
        hx_engram_release(p);
        if (r == 0)
            return;
        usleep(200000);
    }
    fail_msg("no rows in 100 tries");
}

static void says(const struct hx_error *err, const char *what)
{
    if (!strstr(err->text, what))
        fail_msg("'%s' does not say '%s'", err->text, what);
}

/* Some table of the plan fails, so, naming the file. */
static void expect_failure(struct hx_engram_plan *p, int code, const char *what)
{
    struct hx_error err = {0};
    int r = 0;
    for (int t = 0; r == 0 && t < N_TABLES; t++)
        r = hx_engram_wait(p, t, 20000000, &err);
    if (r != code)
        fail_msg("%d instead of %d: '%s'", r, code, err.text);
    says(&err, what);
    says(&err, "Engram read error");
    says(&err, "shard-");
    hx_engram_release(p);
}

static struct hx_engram_stats stats(struct hx_engram_stream *s)
{
    struct hx_engram_stats st;
    hx_engram_stream_stats(s, &st);
    return st;
}

static void expect_health(struct hx_engram_stream *s, enum hx_engram_health want, const char *what)
{
    struct hx_error reason = {0};
    enum hx_engram_health h = HX_ENGRAM_OK;
    for (int i = 0; i < 3000; i++) { /* it may take the drive's thread a moment */
        h = hx_engram_stream_health(s, &reason);
        if (h == want)
            break;
        usleep(10000);
    }
    if (h != want)
        fail_msg("health %d instead of %d: '%s'", h, want, reason.text);
    if (what)
        says(&reason, what);
}

static void expect_offline(struct hx_engram_stream *s, const char *what)
{
    struct hx_engram_plan *p = NULL;
    struct hx_error err = {0};
    expect_health(s, HX_ENGRAM_OFFLINE, what);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_DECODE, here.token, NULL, 0, 5, &p, &err),
                     -EHOSTDOWN);
    says(&err, "offline");
    says(&err, what);
    assert_null(p);
}

/* A row that the plan of these tokens needs: which, and where it begins in its file. */
static int64_t needed_row(int table, int first, uint64_t *offset)
{
    int64_t rows[HX_ENGRAM_MAX_COLS];
    struct hx_error err;
    assert_int_equal(
        hx_engram_hash_rows(here.x.hash, table, here.token, NULL, first, 1, rows, &err), 0);
    *offset = here.x.shard[table].table.data_offset + (uint64_t)rows[2] * CODES;
    return rows[2];
}

static void fault_at(const struct mount *m, int table, uint64_t offset, const char *rest)
{
    char line[256];
    snprintf(line, sizeof(line), "read file=/shard-%d-* offset=%llu length=256 %s\n", table + 7,
             (unsigned long long)offset, rest);
    mount_faults(m, line);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- errors of single reads ---- */

static void test_error_once(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    struct hx_engram_stream *s = open_stream(&o);
    uint64_t offset;
    needed_row(0, 20, &offset);
    fault_at(&here.a, 0, offset, "error=EIO count=1");
    expect_rows(s, 0, 60);
    struct hx_engram_stats st = stats(s);
    assert_true(st.table[0].retries >= 1);
    assert_true(st.errors[HX_ENGRAM_ERR_IO] >= 1);
    expect_health(s, HX_ENGRAM_DEGRADED, mounted[0][0]); /* the drive is named */
    hx_engram_stream_close(s);
}

static void test_error_that_stays(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.cache_bytes = 1 << 20;
    o.align = 512; /* few rows share a block with the bad one */
    struct hx_engram_stream *s = open_stream(&o);
    uint64_t offset;
    needed_row(1, 20, &offset);
    fault_at(&here.a, 1, offset, "error=EIO");
    struct hx_engram_plan *bad = plan(s, 20, 1), *good = plan(s, 200, 5);
    expect_failure(bad, -EIO, "Input/output error");
    check_plan(&here.x, good, here.token, NULL, 200, 5); /* others go on */
    hx_engram_release(good);
    expect_failure(plan(s, 20, 1), -EIO, "Input/output error"); /* not remembered as rows */
    expect_health(s, HX_ENGRAM_DEGRADED, mounted[0][1]);
    mount_faults(&here.a, NULL);
    expect_rows(s, 20, 1);
    assert_int_equal(stats(s).plans, 0);
    hx_engram_stream_close(s);
}

/* Block devices say so of a bad sector. */
static void test_bad_sector(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.align = 512;
    struct hx_engram_stream *s = open_stream(&o);
    uint64_t offset;
    needed_row(1, 20, &offset);
    fault_at(&here.a, 1, offset, "error=ENODATA");
    struct hx_engram_plan *bad = plan(s, 20, 1), *good = plan(s, 200, 5);
    expect_failure(bad, -EIO, "the drive cannot read this sector");
    check_plan(&here.x, good, here.token, NULL, 200, 5);
    hx_engram_release(good);
    struct hx_engram_stats st = stats(s);
    assert_true(st.errors[HX_ENGRAM_ERR_IO] >= 2 && st.table[1].retries >= 1);
    assert_int_equal(st.errors[HX_ENGRAM_ERR_SHORT], 0);
    expect_health(s, HX_ENGRAM_DEGRADED, mounted[0][1]); /* not lost */
    hx_engram_stream_close(s);
}

static void test_short_reads(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    static const enum hx_engram_level levels[] = {HX_ENGRAM_URING_REGISTERED, HX_ENGRAM_URING,
                                                  HX_ENGRAM_THREADS_DIRECT,
                                                  HX_ENGRAM_THREADS_BUFFERED};
    for (int i = 0; i < 4; i++) {
        struct hx_engram_stream_options o = options();
        o.best = levels[i];
        struct hx_engram_stream *s = open_stream(&o);
        assert_int_equal(stats(s).level, levels[i]);
        mount_faults(&here.a, "read short=100 count=40\n"); /* the rest is asked for again */
        expect_rows(s, 0, 60);
        /* Of a row over two blocks the first; the second is asked for again. */
        mount_faults(&here.a, levels[i] == HX_ENGRAM_THREADS_BUFFERED ? "read short=200\n"
                                                                      : "read short=4096\n");
        expect_rows(s, 60, 60);
        assert_true(stats(s).errors[HX_ENGRAM_ERR_SHORT] >= 10);
        uint64_t offset;
        needed_row(0, 130, &offset);
        fault_at(&here.a, 0, offset, "short=0");
        expect_failure(plan(s, 130, 1), -EIO, "the file ends before the row");
        mount_faults(&here.a, NULL);
        hx_engram_stream_close(s);
    }
}

static void write_real(int table, uint64_t offset, uint8_t byte)
{
    int fd = open(here.x.shard[table].path, O_WRONLY);
    assert_true(fd >= 0);
    put(fd, &byte, 1, offset);
    close(fd);
}

static void test_damaged_row(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    uint64_t offset;
    int64_t row = needed_row(0, 77, &offset);
    const struct shard *sh = &here.x.shard[0];
    struct hx_engram_stream_options o = options();
    o.check_ms = 600000; /* the test changes the file */
    struct hx_engram_stream *s = open_stream(&o);
    write_real(0, offset + 255, 0xFF);
    expect_failure(plan(s, 77, 1), -EILSEQ, "NaN code");
    expect_failure(plan(s, 77, 1), -EILSEQ, "damaged file");
    assert_int_equal(stats(s).table[0].implausible_rows, 4); /* each twice */
    expect_rows(s, 200, 20);
    expect_health(s, HX_ENGRAM_DEGRADED, "NaN code");
    write_real(0, offset + 255, sh->codes[row * CODES + 255]);
    expect_rows(s, 77, 1);
    hx_engram_stream_close(s);
    /* A hole where scales should be. */
    write_real(0, sh->table.scale_offset + (uint64_t)row * SCALES, 0);
    s = open_stream(&o);
    expect_failure(plan(s, 77, 1), -EILSEQ, "impossible scale");
    hx_engram_stream_close(s);
}

/* ---- delays ---- */

static void test_slow_drive(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    struct hx_engram_plan *p = NULL;
    struct hx_error err;
    struct hx_engram_stream *s = open_stream(&o);
    mount_faults(&here.a, "read delay=120\n");
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_DECODE, here.token, NULL, 3, 1, &p, &err), 0);
    assert_int_equal(hx_engram_wait(p, 0, 1000, &err), -ETIMEDOUT); /* a deadline of 1 ms */
    assert_int_equal(atomic_load(hx_engram_plan_flag(p, 0)), 0);
    check_plan(&here.x, p, here.token, NULL, 3, 1);
    hx_engram_release(p);
    assert_true(stats(s).late_decode_waits >= 1);
    expect_health(s, HX_ENGRAM_OK, NULL);
    hx_engram_stream_close(s);
}

static void test_read_too_slow(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.slow_ms = 500;
    o.lost_ms = 60000;
    struct hx_engram_stream *s = open_stream(&o);
    uint64_t offset;
    needed_row(0, 20, &offset);
    fault_at(&here.a, 0, offset, "delay=5000");
    double start = now();
    struct hx_engram_plan *bad = plan(s, 20, 1);
    expect_failure(bad, -EIO, "took too long");
    assert_true(now() - start < 4.5); /* before the read came back */
    expect_rows_at_last(s, 200, 20);
    assert_true(stats(s).errors[HX_ENGRAM_ERR_SLOW] >= 1);
    expect_health(s, HX_ENGRAM_DEGRADED, mounted[0][0]);
    mount_faults(&here.a, NULL);
    expect_rows_at_last(s, 20, 1);
    /* The slot of the late read is free again. */
    for (int i = 0; i < 2000 && stats(s).in_flight > 0; i++)
        usleep(10000);
    assert_int_equal(stats(s).in_flight, 0);
    hx_engram_stream_close(s);
}

static void test_reads_that_never_return(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.slow_ms = 150;
    o.lost_ms = 500;
    o.reopen_ms = 200;
    struct hx_engram_stream *s = open_stream(&o);
    mount_faults(&here.a, "read delay=2500\n");
    expect_failure(plan(s, 20, 1), -EIO, "took too long");
    expect_offline(s, "reads do not come back");
    mount_faults(&here.a, NULL);
    expect_health(s, HX_ENGRAM_DEGRADED, NULL); /* back, and what was is not forgotten yet */
    expect_rows_at_last(s, 0, 100);
    hx_engram_stream_close(s);
}

static void test_close_with_reads_on_their_way(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    struct hx_engram_stream *s = open_stream(&o);
    mount_faults(&here.a, "read delay=300\n");
    struct hx_engram_plan *p = plan(s, 0, 100);
    usleep(20000);
    hx_engram_release(p);
    double start = now();
    hx_engram_stream_close(s);
    assert_true(now() - start < 3);
    mount_faults(&here.a, NULL);
}

/* ---- drives that vanish ---- */

static void test_drive_gone(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    static const char *const errors[] = {"ENODEV", "ENXIO"};
    for (int i = 0; i < 2; i++) {
        struct hx_engram_stream_options o = options();
        char line[64];
        o.reopen_ms = 200;
        struct hx_engram_stream *s = open_stream(&o);
        snprintf(line, sizeof(line), "any after=20 error=%s\n", errors[i]);
        mount_faults(&here.a, line);
        expect_failure(plan(s, 0, 200), -EHOSTDOWN, "drive lost");
        expect_offline(s, "No such device");
        assert_true(stats(s).errors[HX_ENGRAM_ERR_GONE] >= 1);
        assert_int_equal(stats(s).n_drives_online, 0);
        assert_false(stats(s).table_online[0]);
        usleep(500000); /* trying again does not help yet */
        expect_health(s, HX_ENGRAM_OFFLINE, NULL);
        mount_faults(&here.a, NULL);
        expect_health(s, HX_ENGRAM_DEGRADED, NULL);
        expect_rows(s, 0, 200);
        hx_engram_stream_close(s);
    }
}

static void test_error_storm(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    struct hx_engram_stream *s = open_stream(&o);
    mount_faults(&here.a, "read error=EIO\n");
    struct hx_engram_plan *p = plan(s, 0, 200);
    struct hx_error err;
    assert_true(hx_engram_wait(p, 0, 20000000, &err) < 0);
    hx_engram_release(p);
    expect_offline(s, "too many read errors");
    hx_engram_stream_close(s);
}

/* The same files on two drives: the other one has the rows. */
static void test_two_drives(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct mount b;
    char copy[100], name[200];
    snprintf(copy, sizeof(copy), "%s/copy", here.folder);
    assert_int_equal(mkdir(copy, 0755), 0);
    mount_start(&b, here.folder, "copy");
    struct hx_engram_stream_options o = options();
    o.reopen_ms = 200;
    for (int t = 0; t < N_TABLES; t++) {
        const struct shard *sh = &here.x.shard[t];
        snprintf(name, sizeof(name), "%s%s", copy, strrchr(sh->path, '/'));
        int from = open(sh->path, O_RDONLY), to = open(name, O_WRONLY | O_CREAT, 0644);
        struct stat st;
        assert_true(from >= 0 && to >= 0 && fstat(from, &st) == 0);
        assert_int_equal(copy_file_range(from, NULL, to, NULL, (size_t)st.st_size, 0), st.st_size);
        close(from);
        close(to);
        snprintf(mounted[1][t], sizeof(mounted[1][t]), "%s%s", b.point, strrchr(sh->path, '/'));
        o.table[t][1] = o.table[t][0];
        o.table[t][1].path = mounted[1][t];
        o.n_copies[t] = 2;
    }
    struct hx_engram_stream *s = open_stream(&o);
    assert_int_equal(stats(s).n_drives, 2);
    expect_rows(s, 0, 150);
    /* Rows that one drive cannot read come from the other. */
    uint64_t offset;
    needed_row(0, 20, &offset);
    fault_at(&here.a, 0, offset, "error=EIO");
    for (int i = 0; i < 4; i++)
        expect_rows(s, 18 + i, 5);
    expect_health(s, HX_ENGRAM_DEGRADED, mounted[0][0]);
    /* One drive gone. */
    mount_faults(&here.a, "any error=ENODEV\n");
    for (int i = 0; i < 10; i++)
        expect_rows(s, i * 20, 40);
    assert_int_equal(stats(s).n_drives_online, 1);
    assert_true(stats(s).table_online[0] && stats(s).table_online[1]);
    expect_health(s, HX_ENGRAM_DEGRADED, "No such device");
    mount_faults(&here.a, NULL);
    for (int i = 0; i < 500 && stats(s).n_drives_online < 2; i++)
        usleep(10000);
    assert_int_equal(stats(s).n_drives_online, 2);
    expect_rows(s, 0, 150);
    /* Both gone. */
    mount_faults(&here.a, "any error=ENODEV\n");
    mount_faults(&b, "any error=ENODEV\n");
    struct hx_engram_plan *p = plan(s, 0, 60);
    struct hx_error err;
    assert_int_equal(
        hx_engram_wait(p, 0, 20000000, &err) == 0 && hx_engram_wait(p, 1, 20000000, &err) == 0, 0);
    hx_engram_release(p);
    hx_engram_stream_close(s);
    /* A copy that is none. */
    mount_faults(&here.a, NULL);
    mount_faults(&b, NULL);
    snprintf(name, sizeof(name), "%s%s", copy, strrchr(here.x.shard[0].path, '/'));
    int fd = open(name, O_WRONLY);
    put(fd, "x", 1, 100);
    close(fd);
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EINVAL);
    says(&err, "in its header: expected a copy");
    assert_int_equal(truncate(name, 1000000000), 0);
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EINVAL);
    says(&err, "in size: expected a copy");
    mount_stop(&b);
    for (int t = 0; t < N_TABLES; t++) {
        snprintf(name, sizeof(name), "%s%s", copy, strrchr(here.x.shard[t].path, '/'));
        unlink(name);
    }
    rmdir(copy);
}

/* ---- files that change ---- */

static void test_removed_file(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    char aside[600];
    o.check_ms = 100;
    o.reopen_ms = 200;
    struct hx_engram_stream *s = open_stream(&o);
    expect_rows(s, 0, 50);
    snprintf(aside, sizeof(aside), "%s.aside", here.x.shard[0].path);
    assert_int_equal(rename(here.x.shard[0].path, aside), 0);
    expect_offline(s, "was removed while in use");
    assert_int_equal(rename(aside, here.x.shard[0].path), 0);
    expect_health(s, HX_ENGRAM_OK, NULL);
    expect_rows(s, 0, 50);
    hx_engram_stream_close(s);
}

static void test_truncated_file(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.check_ms = 600000; /* the first read behind the end notices */
    o.reopen_ms = 100;
    struct hx_engram_stream *s = open_stream(&o);
    assert_int_equal(truncate(here.x.shard[0].path, 5000), 0);
    expect_failure(plan(s, 0, 5), -EHOSTDOWN, "was replaced or changed while in use (its size");
    expect_health(s, HX_ENGRAM_OFFLINE, NULL);
    usleep(300000);
    expect_offline(s, "another file than before"); /* and it stays away */
    hx_engram_stream_close(s);
    struct hx_error err;
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EINVAL);
    says(&err, "truncated?");
}

static void test_truncated_file_is_noticed(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    o.check_ms = 100;
    o.reopen_ms = 100;
    struct hx_engram_stream *s = open_stream(&o);
    struct stat st;
    assert_int_equal(stat(here.x.shard[1].path, &st), 0);
    assert_int_equal(truncate(here.x.shard[1].path, st.st_size - 1), 0);
    expect_health(s, HX_ENGRAM_OFFLINE, NULL);
    /* Its old length does not make it the old file. */
    assert_int_equal(truncate(here.x.shard[1].path, st.st_size), 0);
    usleep(500000);
    expect_offline(s, "another file than before");
    hx_engram_stream_close(s);
}

static void test_replaced_file(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    char fresh[600];
    o.check_ms = 100;
    o.reopen_ms = 100;
    struct hx_engram_stream *s = open_stream(&o);
    expect_rows(s, 0, 50);
    snprintf(fresh, sizeof(fresh), "%s.fresh", here.x.shard[0].path);
    struct stat st;
    assert_int_equal(stat(here.x.shard[0].path, &st), 0);
    int fd = open(fresh, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0 && ftruncate(fd, st.st_size) == 0);
    close(fd);
    assert_int_equal(rename(fresh, here.x.shard[0].path), 0);
    usleep(500000);
    expect_offline(s, "another file than before");
    hx_engram_stream_close(s);
}

static void test_error_at_start(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    struct hx_engram_stream_options o = options();
    struct hx_engram_stream *s = NULL;
    struct hx_error err;
    mount_faults(&here.a, "read file=/shard-8-* error=EIO\n");
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EIO);
    says(&err, mounted[0][1]);
    mount_faults(&here.a, "read offset=3000000 error=EIO\n"); /* scales */
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EIO);
    says(&err, "loading Engram scales");
    mount_faults(&here.a, "open error=EACCES\n");
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EACCES);
    says(&err, "cannot open");
    assert_null(s);
    mount_faults(&here.a, NULL);
}

/* ---- kernels that refuse ---- */

/* In a child: prepare() takes something away; the level must then be this one, the bytes right. */
static void in_child(bool (*prepare)(void), enum hx_engram_level want, const char *why)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct hx_engram_stream_options o = options_for(&here.x);
        struct hx_engram_stream *s = NULL;
        struct hx_error err;
        struct hx_engram_plan *p = NULL;
        char text[700];
        if (!prepare())
            _exit(77);
        o.align = 4096; /* 4 MiB of slots */
        if (hx_engram_stream_open(&o, &s, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            _exit(1);
        }
        hx_engram_stream_describe(s, text, sizeof(text));
        if (stats(s).level != want || (why && !strstr(text, why))) {
            fprintf(stderr, "level %d: %s\n", stats(s).level, text);
            _exit(2);
        }
        if (hx_engram_plan(s, HX_ENGRAM_CHUNK, here.token, NULL, 0, N_TOK, &p, &err) < 0)
            _exit(3);
        check_plan(&here.x, p, here.token, NULL, 0, N_TOK);
        hx_engram_release(p);
        hx_engram_stream_close(s);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("cannot take it away here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool no_uring(int error)
{
    struct sock_filter rule[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, rule};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool uring_forbidden(void)
{
    return no_uring(EPERM);
}

static bool uring_unknown(void)
{
    return no_uring(ENOSYS);
}

static void test_seccomp(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    in_child(uring_forbidden, HX_ENGRAM_THREADS_DIRECT, "Operation not permitted");
    in_child(uring_unknown, HX_ENGRAM_THREADS_DIRECT, "Function not implemented");
}

/* Little may be locked: no registered buffers; nothing: no ring. */
static bool lock_at_most(rlim_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && chmod(here.x.shard[0].path, 0644) == 0 &&
           chmod(here.x.shard[1].path, 0644) == 0 && chmod(here.folder, 0755) == 0 &&
           setuid(65534) == 0;
}

static bool lock_a_megabyte(void)
{
    return lock_at_most(1 << 20);
}

static bool lock_nothing(void)
{
    return lock_at_most(0);
}

static void test_no_locked_memory(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    if (geteuid() != 0) {
        print_message("needs root to become somebody else\n");
        skip();
    }
    in_child(lock_a_megabyte, HX_ENGRAM_URING, "registering files and buffers");
    in_child(lock_nothing, HX_ENGRAM_THREADS_DIRECT, "Cannot allocate memory");
}

static void test_polling(void **state)
{
    (void)state;
    NEEDS_MOUNT();
    for (int i = 1; i < 4; i++) {
        struct hx_engram_stream_options o = options_for(&here.x);
        o.iopoll = i & 1;
        o.sqpoll = i & 2;
        struct hx_engram_stream *s = open_stream(&o);
        char text[700];
        hx_engram_stream_describe(s, text, sizeof(text));
        print_message("%s\n", text);
        assert_true(stats(s).level <= HX_ENGRAM_URING);
        expect_rows(s, 0, N_TOK);
        usleep(120000); /* idle, and awake again */
        expect_rows(s, 0, 6);
        hx_engram_stream_close(s);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_error_once),
        T(test_error_that_stays),
        T(test_bad_sector),
        T(test_short_reads),
        T(test_damaged_row),
        T(test_slow_drive),
        T(test_read_too_slow),
        T(test_reads_that_never_return),
        T(test_close_with_reads_on_their_way),
        T(test_drive_gone),
        T(test_error_storm),
        T(test_two_drives),
        T(test_removed_file),
        T(test_truncated_file),
        T(test_truncated_file_is_noticed),
        T(test_replaced_file),
        T(test_error_at_start),
        T(test_seccomp),
        T(test_no_locked_memory),
        T(test_polling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
