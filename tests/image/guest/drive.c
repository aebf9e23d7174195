/* First program of a machine that has nothing but the image's kernel, the drivers of its initrd
 * and a drive with Engram tables: the streamer on a drive that fails. What happens to the drive
 * while it runs is asked for on the serial port. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engram/stream.h"
#include "image/drive.h"
#include "init/steps.h"

#define WAIT_US 120000000
#define PART    2048 /* rows of a plan */
#define FEW     48

static char paths[DRIVE_TABLES][32];

static void say(const char *fmt, ...) HX_PRINTF(1, 2);

/* One write for a line, so that the kernel's own messages stay outside of it. */
static void say(const char *fmt, ...)
{
    char line[1024];
    va_list list;
    va_start(list, fmt);
    int n = vsnprintf(line, sizeof(line) - 1, fmt, list);
    va_end(list);
    n = n < (int)sizeof(line) - 1 ? n : (int)sizeof(line) - 2;
    line[n] = '\n';
    (void)!write(STDOUT_FILENO, line, (size_t)n + 1);
}

static void ask(const char *what)
{
    char key;
    say(DRIVE_WANTS "%s", what);
    while (read(STDIN_FILENO, &key, 1) == 1 && key != '\n')
        ;
}

/* Rows of the page that cannot be read. */
static bool is_bad(int table, int64_t row)
{
    uint64_t first = DRIVE_OFFSET + (uint64_t)row * DRIVE_BYTES,
             bad = DRIVE_OFFSET + (uint64_t)DRIVE_BAD_ROW * DRIVE_BYTES;
    return table == 0 && first / 4096 <= (bad + DRIVE_BYTES - 1) / 4096 &&
           (first + DRIVE_BYTES - 1) / 4096 >= bad / 4096;
}

static int open_stream(int slow_ms, struct hx_engram_stream **s, struct hx_error *err)
{
    struct hx_engram_stream_options o = {.n_tables = DRIVE_TABLES,
                                         .n_heads = 8,
                                         .slow_ms = slow_ms,
                                         .lost_ms = 600000,
                                         .check_ms = 600000,
                                         .reopen_ms = 1000,
                                         .staging_bytes = 16 << 20};
    for (int t = 0; t < DRIVE_TABLES; t++) {
        snprintf(paths[t], sizeof(paths[t]), DRIVE_MOUNT "/table%d", t);
        o.table[t][0] = (struct hx_engram_table){.path = paths[t],
                                                 .data_offset = DRIVE_OFFSET,
                                                 .scale_offset = DRIVE_OFFSET +
                                                                 (uint64_t)DRIVE_ROWS * DRIVE_BYTES,
                                                 .n_rows = DRIVE_ROWS,
                                                 .row_bytes = DRIVE_BYTES,
                                                 .scale_bytes = DRIVE_SCALES};
        o.n_copies[t] = 1;
    }
    return hx_engram_stream_open(&o, s, err);
}

static int check_rows(const struct hx_engram_plan *p, int table, const int64_t *rows, int n,
                      struct hx_error *err)
{
    struct hx_engram_block k;
    hx_engram_plan_block(p, table, &k);
    for (int i = 0; i < n * DRIVE_BYTES; i++) {
        int64_t row = rows[i / DRIVE_BYTES];
        if (k.codes[i] != drive_byte(row, i % DRIVE_BYTES))
            return hx_fail(err, -EBADMSG, "row %lld of table %d has a wrong byte %d",
                           (long long)row, table, i % DRIVE_BYTES);
    }
    return 0;
}

static int fetch(struct hx_engram_stream *s, int table, const int64_t *rows, int n,
                 struct hx_error *err)
{
    struct hx_engram_plan *p = NULL;
    int r = hx_engram_plan_rows(s, HX_ENGRAM_DECODE, table, rows, n, &p, err);
    if (r == 0)
        r = hx_engram_wait(p, table, WAIT_US, err);
    if (r == 0)
        r = check_rows(p, table, rows, n, err);
    hx_engram_release(p);
    return r;
}

/* n rows of a table, far apart from each other. */
static void some_rows(int table, int64_t first, int64_t *rows, int n)
{
    for (int i = 0; i < n; i++) {
        rows[i] = (first + (int64_t)i * 811) % DRIVE_ROWS;
        if (is_bad(table, rows[i]))
            rows[i] = 0;
    }
}

static int test_all_rows(struct hx_engram_stream *s, struct hx_error *err)
{
    struct hx_engram_stats st;
    char text[512];
    hx_engram_stream_describe(s, text, sizeof(text));
    hx_engram_stream_stats(s, &st);
    say(DRIVE_SAYS "level %d, alignment %d: %s", (int)st.level, st.align, text);
    if (st.level != HX_ENGRAM_URING_REGISTERED || st.align < 512)
        return hx_fail(err, -EBADMSG, "the drive is read at level %d", (int)st.level);
    for (int t = 0; t < DRIVE_TABLES; t++) {
        static int64_t rows[PART];
        int n = 0;
        for (int64_t row = 0; row < DRIVE_ROWS; row++) {
            if (!is_bad(t, row))
                rows[n++] = row;
            if (n == PART || row == DRIVE_ROWS - 1) {
                int r = fetch(s, t, rows, n, err);
                if (r < 0)
                    return r;
                n = 0;
            }
        }
    }
    return 0;
}

/* The request with the row fails and says where; one beside it gets its rows. */
static int test_bad_row(struct hx_engram_stream *s, struct hx_error *err)
{
    struct hx_engram_stats st;
    struct hx_engram_plan *p = NULL;
    struct hx_error said = {0};
    int64_t rows[FEW], others[FEW];
    some_rows(0, 7, rows, FEW);
    some_rows(0, 11, others, FEW);
    rows[FEW / 2] = DRIVE_BAD_ROW;
    int r = hx_engram_plan_rows(s, HX_ENGRAM_DECODE, 0, rows, FEW, &p, err);
    if (r == 0)
        r = fetch(s, 0, others, FEW, err);
    if (r == 0) {
        int failed = hx_engram_wait(p, 0, WAIT_US, &said);
        say(DRIVE_SAYS "%d: %s", failed, said.text);
        hx_engram_stream_stats(s, &st);
        if (failed != -EIO)
            r = hx_fail(err, -EBADMSG, "the unreadable row gives %d", failed);
        else if (st.errors[HX_ENGRAM_ERR_IO] != 2 || st.table[0].retries != 1)
            r = hx_fail(err, -EBADMSG, "%llu errors, %llu second tries; expected 2 and 1",
                        (unsigned long long)st.errors[HX_ENGRAM_ERR_IO],
                        (unsigned long long)st.table[0].retries);
    }
    hx_engram_release(p);
    if (r == 0 && hx_engram_stream_health(s, &said) != HX_ENGRAM_DEGRADED)
        r = hx_fail(err, -EBADMSG, "health is not degraded");
    else if (r == 0)
        say(DRIVE_SAYS "degraded: %s", said.text);
    return r < 0 ? r : fetch(s, 1, others, FEW, err);
}

static int test_slow(struct hx_engram_stream *s, struct hx_error *err)
{
    struct hx_error said = {0};
    int64_t rows[FEW];
    some_rows(1, 100, rows, FEW);
    ask("slow drive");
    int r = fetch(s, 1, rows, FEW, &said);
    say(DRIVE_SAYS "%d: %s", r, said.text);
    if (r != -EIO || !strstr(said.text, "a read took too long"))
        return hx_fail(err, -EBADMSG, "slow reads give %d", r);
    ask("fast drive");
    for (int i = 0; i < 60; i++) {
        if ((r = fetch(s, 1, rows, FEW, &said)) == 0)
            return 0;
        sleep(1);
    }
    return hx_wrap(&said, r, "a minute after the drive is fast again"), *err = said, r;
}

static int test_removed(struct hx_engram_stream *s, struct hx_error *err)
{
    struct hx_error said = {0};
    int64_t rows[FEW];
    ask("drive less");
    for (int i = 0; i < 120; i++) {
        some_rows(1, i, rows, FEW);
        int r = fetch(s, 1, rows, FEW, &said);
        if (r == -EBADMSG)
            return *err = said, r;
        if (r == -EHOSTDOWN && hx_engram_stream_health(s, &said) == HX_ENGRAM_OFFLINE) {
            say(DRIVE_SAYS "offline: %s", said.text);
            return 0;
        }
        sleep(1);
    }
    return hx_fail(err, -ETIMEDOUT, "the drive is not noticed as lost: %s", said.text);
}

static int with_stream(int slow_ms, int (*test)(struct hx_engram_stream *s, struct hx_error *err),
                       struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    int r = open_stream(slow_ms, &s, err);
    if (r == 0)
        r = test(s, err);
    hx_engram_stream_close(s);
    return r;
}

static int mount_drive(struct hx_error *err)
{
    struct stat st;
    mkdir(DRIVE_MOUNT, 0755);
    for (int i = 0; i < 600 && stat("/dev/nvme0n1", &st) < 0; i++)
        usleep(100000);
    if (mount("/dev/nvme0n1", DRIVE_MOUNT, "ext4", MS_RDONLY, NULL) < 0)
        return hx_fail_errno(err, errno, "/dev/nvme0n1");
    return 0;
}

int main(void)
{
    struct hx_error err = {0};
    int r = hx_init_mount_api(&err);
    if (r == 0)
        r = hx_init_load_modules("/modules/order", &err);
    if (r == 0)
        r = hx_init_load_modules("/drive/order", &err);
    if (r == 0)
        r = mount_drive(&err);
    if (r == 0)
        r = with_stream(60000, test_all_rows, &err);
    if (r == 0)
        r = with_stream(60000, test_bad_row, &err);
    if (r == 0)
        r = with_stream(1000, test_slow, &err);
    if (r == 0)
        r = with_stream(60000, test_removed, &err);
    if (r == 0)
        say(DRIVE_PASSED);
    else
        say(DRIVE_FAILED "%s", err.text);
    fsync(STDOUT_FILENO);
    sleep(1);
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}
