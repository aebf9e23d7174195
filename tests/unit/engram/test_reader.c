/* Row reader on real files: exact bytes, layout of the released shards, and everything a drive or a
 * damaged file can do to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/numerics.h"
#include "base/rand.h"
#include "engram/engram.h"
#include "vectors.h"

/* ---- the reader's pread goes through here ---- */

static struct {
    int calls;
    int interrupts; /* calls that fail with EINTR first */
    int failures;   /* calls that fail with EIO next; -1: all */
    size_t most;    /* bytes a call returns at most; 0: no limit */
    bool end;       /* returns 0 */
} fault;

ssize_t pread(int fd, void *buf, size_t n, off_t offset);

ssize_t pread(int fd, void *buf, size_t n, off_t offset)
{
    fault.calls++;
    if (fault.interrupts > 0) {
        fault.interrupts--;
        errno = EINTR;
        return -1;
    }
    if (fault.failures != 0) {
        fault.failures -= fault.failures > 0;
        errno = EIO;
        return -1;
    }
    if (fault.end)
        return 0;
    if (fault.most && n > fault.most)
        n = fault.most;
    return syscall(SYS_pread64, fd, buf, n, offset);
}

/* ---- a table on disk and the same in memory ---- */

#define ROWS    5003
#define CODES   256
#define SCALES  8
#define DATA_AT 664 /* as the released shard: rows start at 152 modulo 256 */
#define GAP     40  /* between codes and scales */

struct shard {
    char path[64];
    uint8_t *codes, *scales;
    struct hx_engram_table table;
};

static void put(int fd, const void *data, size_t n, uint64_t offset)
{
    assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
}

static void shard_make(struct shard *s)
{
    struct hx_rng g;
    hx_rng_seed(&g, 7);
    snprintf(s->path, sizeof(s->path), "/tmp/hx-test-shard-XXXXXX");
    int fd = mkstemp(s->path);
    assert_true(fd >= 0);
    s->codes = malloc(ROWS * CODES);
    s->scales = malloc(ROWS * SCALES);
    assert_true(s->codes && s->scales);
    for (int i = 0; i < ROWS * CODES; i++) {
        s->codes[i] = (uint8_t)hx_rng_next(&g);
        s->codes[i] ^= (s->codes[i] & 0x7F) == 0x7F; /* no NaN */
    }
    for (int i = 0; i < ROWS * SCALES; i++)
        s->scales[i] = (uint8_t)(1 + hx_rng_next(&g) % 254);
    s->table = (struct hx_engram_table){.path = s->path,
                                        .data_offset = DATA_AT,
                                        .scale_offset = DATA_AT + ROWS * CODES + GAP,
                                        .n_rows = ROWS,
                                        .row_bytes = CODES,
                                        .scale_bytes = SCALES};
    put(fd, s->codes, ROWS * CODES, s->table.data_offset);
    put(fd, s->scales, ROWS * SCALES, s->table.scale_offset);
    close(fd);
    memset(&fault, 0, sizeof(fault));
}

static void shard_done(struct shard *s)
{
    unlink(s->path);
    free(s->codes);
    free(s->scales);
}

static struct hx_engram_reader *open_reader(const struct hx_engram_table *tables, int n)
{
    struct hx_engram_reader *r = NULL;
    struct hx_error err;
    if (hx_engram_pread_open(tables, n, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static void check_read(const struct shard *s, struct hx_engram_reader *r, int t,
                       const int64_t *rows, int64_t n)
{
    uint8_t *codes = malloc((size_t)n * CODES), *scales = malloc((size_t)n * SCALES);
    struct hx_error err;
    assert_true(codes && scales);
    if (r->ops->read(r, t, rows, n, codes, scales, &err) < 0)
        fail_msg("%s", err.text);
    for (int64_t i = 0; i < n; i++) {
        assert_memory_equal(codes + i * CODES, s->codes + rows[i] * CODES, CODES);
        assert_memory_equal(scales + i * SCALES, s->scales + rows[i] * SCALES, SCALES);
    }
    free(codes);
    free(scales);
}

/* ---- exact bytes ---- */

static void test_random_rows(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct shard s;
    struct hx_rng g;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    int64_t *rows = malloc(N * sizeof(*rows));
    assert_non_null(rows);
    hx_rng_seed(&g, 3);
    for (int i = 0; i < N; i++)
        rows[i] = (int64_t)(hx_rng_next(&g) % ROWS);
    for (int i = 0, n; i < N; i += n) {
        n = (int)(hx_rng_next(&g) % 9000) + 1;
        n = n < N - i ? n : N - i;
        check_read(&s, r, 0, rows + i, n);
    }
    free(rows);
    r->ops->close(r);
    shard_done(&s);
}

/* Equal ids cost one read of codes and one of scales. */
static void test_duplicates(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    int64_t rows[4096];
    for (int i = 0; i < 4096; i++)
        rows[i] = i % 5 == 0 ? ROWS - 1 : i % 3;
    fault.calls = 0;
    check_read(&s, r, 0, rows, 4096);
    assert_int_equal(fault.calls, 4 * 2);
    fault.calls = 0;
    check_read(&s, r, 0, rows, 0);
    assert_int_equal(fault.calls, 0);
    r->ops->close(r);
    shard_done(&s);
}

static void test_two_tables(void **state)
{
    (void)state;
    struct shard a, b;
    shard_make(&a);
    shard_make(&b);
    b.codes[17 * CODES] ^= 1;
    int fd = open(b.path, O_WRONLY);
    put(fd, b.codes + 17 * CODES, 1, DATA_AT + 17 * CODES);
    close(fd);
    struct hx_engram_table tables[2] = {a.table, b.table};
    struct hx_engram_reader *r = open_reader(tables, 2);
    int64_t rows[] = {17, 0, ROWS - 1, 16};
    check_read(&a, r, 0, rows, 4);
    check_read(&b, r, 1, rows, 4);
    struct hx_error err;
    uint8_t codes[CODES], scales[SCALES];
    assert_int_equal(r->ops->read(r, 2, rows, 1, codes, scales, &err), -EINVAL);
    assert_int_equal(r->ops->read(r, -1, rows, 1, codes, scales, &err), -EINVAL);
    r->ops->close(r);
    shard_done(&a);
    shard_done(&b);
}

/* Rows of the released shards: sparse files of the real size with marked bytes at the offsets of
 * layout.json. */
static void test_released_layout(void **state)
{
    (void)state;
    struct hx_json *c = load_vectors("real_constants.json"), *l = load_vectors("layout.json");
    for (struct hx_jv layer = hx_jv_first(at(hx_json_root(c), "layers")); layer.doc;
         layer = hx_jv_next(layer)) {
        struct hx_jv t = hx_jv_first(at(layer, "tensors"));
        char path[64] = "/tmp/hx-test-sparse-XXXXXX";
        int fd = mkstemp(path), n = 0;
        assert_true(fd >= 0);
        unlink(path);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        if (ftruncate(fd, (off_t)as_int(at(layer, "file_bytes"))) < 0) {
            close(fd);
            print_message("no sparse files of 101 GB here: %s\n", strerror(errno));
            skip();
        }
        struct hx_engram_table table = {.path = path,
                                        .data_offset = (uint64_t)as_int(at(t, "file_offset")),
                                        .n_rows = as_int(at(layer, "rows")),
                                        .row_bytes = CODES,
                                        .scale_bytes = SCALES};
        table.scale_offset = (uint64_t)as_int(at(hx_jv_next(t), "file_offset"));
        struct hx_engram_reader *r = open_reader(&table, 1);
        for (struct hx_jv v = hx_jv_first(at(hx_json_root(l), "cases")); v.doc; v = hx_jv_next(v)) {
            if (as_int(at(v, "layer")) != as_int(at(layer, "layer")))
                continue;
            uint8_t want[CODES + SCALES], codes[CODES], scales[SCALES];
            struct hx_error err;
            int64_t row = as_int(at(v, "row"));
            for (int i = 0; i < CODES + SCALES; i++)
                want[i] = (uint8_t)(1 + (i * 7 + n * 13) % 126);
            put(fd, want, CODES, (uint64_t)as_int(at(v, "weight_offset")));
            put(fd, want + CODES, SCALES, (uint64_t)as_int(at(v, "scale_offset")));
            if (r->ops->read(r, 0, &row, 1, codes, scales, &err) < 0)
                fail_msg("%s", err.text);
            assert_memory_equal(codes, want, CODES);
            assert_memory_equal(scales, want + CODES, SCALES);
            n++;
        }
        assert_true(n >= 10);
        r->ops->close(r);
        close(fd);
    }
    hx_json_free(c);
    hx_json_free(l);
}

/* Values of rows, through the decoder of the CPU back end. */
static void test_decode(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("decode.json");
    int code = 0, n_rows = 0;
    for (struct hx_jv v = hx_jv_first(at(hx_json_root(doc), "e4m3")); v.doc;
         v = hx_jv_next(v), code++) {
        double want;
        if (hx_jv_double(v, &want)) {
            assert_true((double)hx_e4m3_table[code] == want);
            assert_int_equal(signbit(hx_e4m3_table[code]) != 0, code >= 128);
        } else {
            assert_true(isnan(hx_e4m3_table[code]));
            assert_int_equal(code & 0x7F, 0x7F);
        }
    }
    assert_int_equal(code, 256);
    for (struct hx_jv v = hx_jv_first(at(hx_json_root(doc), "rows")); v.doc; v = hx_jv_next(v)) {
        size_t n_codes, n_want, n_scales;
        uint8_t *codes = as_hex(at(v, "weight_hex"), &n_codes),
                *want = as_hex(at(v, "bf16_hex"), &n_want),
                *scales = as_hex(at(v, "scale_hex"), &n_scales);
        float x[CODES];
        assert_int_equal(n_codes, CODES);
        assert_int_equal(n_want, 2 * CODES);
        assert_int_equal(n_scales, SCALES);
        hx_dequant_fp8_b32(codes, scales, CODES, x);
        for (int i = 0; i < CODES; i++)
            assert_int_equal(hx_bf16(x[i]), want[2 * i] << 8 | want[2 * i + 1]);
        free(codes);
        free(want);
        free(scales);
        n_rows++;
    }
    assert_int_equal(n_rows, 3);
    hx_json_free(doc);
}

/* ---- what a drive can do ---- */

static void test_interrupted_and_partial(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    int64_t rows[] = {5, 1, ROWS - 1, 5};
    fault.interrupts = 9;
    fault.most = 1;
    fault.calls = 0;
    check_read(&s, r, 0, rows, 4);
    assert_int_equal(fault.calls, 9 + 3 * (CODES + SCALES));
    r->ops->close(r);
    shard_done(&s);
}

static void expect_error(struct hx_engram_reader *r, int64_t row, int code, const char *path,
                         const char *says)
{
    uint8_t codes[CODES], scales[SCALES];
    struct hx_error err;
    assert_int_equal(r->ops->read(r, 0, &row, 1, codes, scales, &err), code);
    if (!strstr(err.text, path) || !strstr(err.text, says))
        fail_msg("'%s' does not say '%s' and '%s'", err.text, path, says);
}

static void test_read_errors(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    int64_t row = 9;
    fault.failures = 1; /* once: the second try succeeds */
    check_read(&s, r, 0, &row, 1);
    fault.failures = -1;
    fault.calls = 0;
    expect_error(r, 9, -EIO, s.path, "row 9");
    assert_int_equal(fault.calls, 2);
    expect_error(r, 9, -EIO, s.path, "offset 2968");
    fault.failures = 0;
    fault.end = true;
    expect_error(r, 9, -EIO, s.path, "file ends after 0 of 256 bytes wanted at offset 2968");
    fault.end = false;
    check_read(&s, r, 0, &row, 1); /* the reader itself is unharmed */
    r->ops->close(r);
    shard_done(&s);
}

static void test_truncated_while_open(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    assert_int_equal(truncate(s.path, DATA_AT + 100 * CODES + 10), 0);
    expect_error(r, 100, -EIO, s.path, "file ends after 10 of 256 bytes");
    expect_error(r, 99, -EIO, s.path, "truncated?"); /* its scales are gone */
    r->ops->close(r);
    shard_done(&s);
}

static void test_row_range(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    static const int64_t bad[] = {-1, ROWS, INT64_MIN, INT64_MAX};
    fault.calls = 0;
    for (int i = 0; i < 4; i++)
        expect_error(r, bad[i], -EINVAL, s.path, "the table has 5003");
    assert_int_equal(fault.calls, 0);
    r->ops->close(r);
    shard_done(&s);
}

/* ---- what a damaged file can hold ---- */

static void test_corrupt_rows(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    struct hx_engram_reader *r = open_reader(&s.table, 1);
    static const uint8_t nan_plus = 0x7F, nan_minus = 0xFF, zero = 0;
    int fd = open(s.path, O_WRONLY);
    put(fd, &nan_plus, 1, DATA_AT + 40 * CODES);
    put(fd, &nan_minus, 1, DATA_AT + 41 * CODES + CODES - 1);
    put(fd, &nan_minus, 1, s.table.scale_offset + 42 * SCALES + SCALES - 1);
    put(fd, &zero, 1, s.table.scale_offset + 43 * SCALES);
    close(fd);
    expect_error(r, 40, -EILSEQ, s.path, "row 40: NaN in its values at offset 10904");
    expect_error(r, 41, -EILSEQ, s.path, "row 41: NaN in its values");
    expect_error(r, 42, -EILSEQ, s.path,
                 "row 42: impossible value in its scales at offset 1281808");
    expect_error(r, 43, -EILSEQ, s.path, "row 43: impossible value in its scales");
    r->ops->close(r);
    shard_done(&s);
}

static void test_open_refusals(void **state)
{
    (void)state;
    struct shard s;
    shard_make(&s);
    uint64_t end = s.table.scale_offset + ROWS * SCALES;
    static const char folder[] = "/tmp";
    struct {
        struct hx_engram_table t;
        int code;
        const char *says;
    } row[] = {
        {s.table, -EINVAL, "too few"}, /* cut below */
        {s.table, -EINVAL, "not a regular file"},
        {s.table, -ENOENT, "cannot open"},
        {s.table, -EINVAL, "too few"},
        {s.table, -EINVAL, "too few"},
        {s.table, -EINVAL, "too few"},
        {s.table, -EINVAL, "table of 0 rows"},
        {s.table, -EINVAL, "table of -1 rows"},
        {s.table, -EINVAL, "0 + 8 bytes"},
        {s.table, -EINVAL, "256 + 0 bytes"},
    };
    row[1].t.path = folder;
    row[2].t.path = "/tmp/hx-test-no-such-file";
    row[3].t.n_rows = INT64_MAX;
    row[4].t.data_offset = UINT64_MAX - 10;
    row[5].t.scale_offset = end - 1;
    row[6].t.n_rows = 0;
    row[7].t.n_rows = -1;
    row[8].t.row_bytes = 0;
    row[9].t.scale_bytes = 0;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_engram_reader *r = NULL;
        struct hx_error err;
        assert_int_equal(truncate(s.path, (off_t)(i == 0 ? end - 1 : end)), 0);
        assert_int_equal(hx_engram_pread_open(&row[i].t, 1, &r, &err), row[i].code);
        assert_null(r);
        if (!strstr(err.text, row[i].says) || !strstr(err.text, row[i].t.path))
            fail_msg("row %zu: '%s' does not say '%s'", i, err.text, row[i].says);
    }
    struct hx_engram_table both[2] = {s.table, row[2].t};
    struct hx_engram_reader *r = NULL;
    struct hx_error err;
    assert_int_equal(hx_engram_pread_open(both, 2, &r, &err), -ENOENT);
    assert_int_equal(hx_engram_pread_open(both, 0, &r, &err), -EINVAL);
    assert_int_equal(hx_engram_pread_open(both, 5, &r, &err), -EINVAL);
    /* A pipe must not hang the open. */
    char fifo[80];
    snprintf(fifo, sizeof(fifo), "%s.fifo", s.path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    both[0].path = fifo;
    assert_int_equal(hx_engram_pread_open(both, 1, &r, &err), -EINVAL);
    unlink(fifo);
    shard_done(&s);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_rows),   cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_two_tables),    cmocka_unit_test(test_released_layout),
        cmocka_unit_test(test_decode),        cmocka_unit_test(test_interrupted_and_partial),
        cmocka_unit_test(test_read_errors),   cmocka_unit_test(test_truncated_while_open),
        cmocka_unit_test(test_row_range),     cmocka_unit_test(test_corrupt_rows),
        cmocka_unit_test(test_open_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
