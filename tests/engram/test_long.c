/* The streamer on a file of the released size, real offsets beyond 98 GB, and over very many waves.
 * A sample of it by default; all with HX_LONG=1 (make test-engram-long).
 *
 * The file is sparse. Rows are a function of their number; a slice of random extents is written,
 * random rows of them are read back and compared, and all is punched out again, so that the disk
 * holds one slice at a time. Scales are written for all rows of the part of the table that is
 * looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <sys/statvfs.h>

#include "../unit/engram/shard.h"

/* ---- rows of a full-size file ---- */

struct geometry {
    int64_t n_rows;
    uint64_t data_offset, scale_offset, file_bytes;
};

static void load_geometry(struct geometry out[2])
{
    struct hx_json *c = load_vectors("real_constants.json");
    int i = 0;
    for (struct hx_jv l = hx_jv_first(at(hx_json_root(c), "layers")); l.doc; l = hx_jv_next(l)) {
        struct hx_jv t = hx_jv_first(at(l, "tensors"));
        out[i++] = (struct geometry){as_int(at(l, "rows")), (uint64_t)as_int(at(t, "file_offset")),
                                     (uint64_t)as_int(at(hx_jv_next(t), "file_offset")),
                                     (uint64_t)as_int(at(l, "file_bytes"))};
    }
    assert_int_equal(i, 2);
    hx_json_free(c);
}

static void make_codes(int table, int64_t row, uint8_t *out)
{
    for (int i = 0; i < CODES / 8; i++) {
        uint64_t x = hx_mix64((uint64_t)row * 64 + (uint64_t)(table * 32 + i)) &
                     0xFEFEFEFEFEFEFEFEu; /* no NaN */
        memcpy(out + 8 * i, &x, 8);
    }
}

/* One word for eight scales, none of them 0 or 255. */
static uint64_t make_scales(int table, int64_t row)
{
    return (hx_mix64((uint64_t)row * 2 + (uint64_t)table) & 0x7E7E7E7E7E7E7E7Eu) |
           0x0101010101010101u;
}

static void write_scales(int fd, int table, const struct geometry *g, int64_t first, int64_t n)
{
    enum { PIECE = 1 << 17 };
    static uint64_t word[PIECE];
    for (int64_t row = first; row < first + n; row += PIECE) {
        int64_t m = first + n - row < PIECE ? first + n - row : PIECE;
        for (int64_t i = 0; i < m; i++)
            word[i] = make_scales(table, row + i);
        put(fd, word, (size_t)m * SCALES, g->scale_offset + (uint64_t)row * SCALES);
    }
}

/* Random rows in random extents of a table: the disk gets a few large writes for them. */
#define EXTENT_ROWS    4096
#define ROWS_OF_EXTENT 1000 /* that are read */

struct slice {
    int64_t *rows, *extent;
    int64_t n, n_extents;
};

/* Extents between first and end, its borders among them; in random order, every place in a page. */
static void slice_make(struct slice *s, struct hx_rng *g, int64_t n, int64_t first, int64_t end)
{
    s->n = n;
    s->n_extents = (n + ROWS_OF_EXTENT - 1) / ROWS_OF_EXTENT;
    for (int64_t i = 0; i < s->n_extents; i++)
        s->extent[i] =
            i == 0   ? first
            : i == 1 ? end - EXTENT_ROWS
                     : first + (int64_t)(hx_rng_next(g) % (uint64_t)(end - first - EXTENT_ROWS));
    for (int64_t i = 0; i < n; i++) {
        int64_t e = s->extent[i / ROWS_OF_EXTENT], k = i % ROWS_OF_EXTENT;
        s->rows[i] = k < 16   ? e + k
                     : k < 32 ? e + EXTENT_ROWS - 1 - (k - 16)
                              : e + (int64_t)(hx_rng_next(g) % EXTENT_ROWS);
    }
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)(hx_rng_next(g) % (uint64_t)(i + 1)), t = s->rows[i];
        s->rows[i] = s->rows[k];
        s->rows[k] = t;
    }
}

static void slice_write(int fd, int table, const struct geometry *g, const struct slice *s)
{
    static uint8_t codes[EXTENT_ROWS * CODES];
    for (int64_t i = 0; i < s->n_extents; i++) {
        for (int k = 0; k < EXTENT_ROWS; k++)
            make_codes(table, s->extent[i] + k, codes + k * CODES);
        put(fd, codes, sizeof(codes), g->data_offset + (uint64_t)s->extent[i] * CODES);
    }
    assert_int_equal(fdatasync(fd), 0);
}

/* Reads the slice; row 0 of the open table is row `first`. -> reads of more than one block. */
static uint64_t slice_check(const struct hx_engram_stream_options *o, int table,
                            const struct slice *s, int64_t first)
{
    enum { PIECE = 65536 };
    struct hx_engram_reader *r = NULL;
    struct hx_engram_stats *st = malloc(sizeof(*st));
    struct hx_error err;
    struct hx_engram_stream *stream = open_stream(o);
    assert_int_equal(hx_engram_stream_reader(stream, &r, &err), 0);
    int64_t *rows = malloc(PIECE * sizeof(*rows));
    uint8_t *codes = malloc((size_t)PIECE * CODES), *scales = malloc((size_t)PIECE * SCALES),
            want[CODES];
    assert_true(rows && codes && scales && st);
    for (int64_t at = 0; at < s->n; at += PIECE) {
        int64_t n = s->n - at < PIECE ? s->n - at : PIECE;
        for (int64_t i = 0; i < n; i++)
            rows[i] = s->rows[at + i] - first;
        if (r->ops->read(r, 0, rows, n, codes, scales, &err) < 0)
            fail_msg("%s", err.text);
        for (int64_t i = 0; i < n; i++) {
            uint64_t w = make_scales(table, s->rows[at + i]);
            make_codes(table, s->rows[at + i], want);
            assert_memory_equal(codes + i * CODES, want, CODES);
            assert_memory_equal(scales + i * SCALES, &w, SCALES);
        }
    }
    hx_engram_stream_stats(stream, st);
    assert_int_equal(st->table[0].reads_completed, s->n);
    uint64_t across = st->table[0].straddling_reads;
    free(st);
    free(rows);
    free(codes);
    free(scales);
    r->ops->close(r);
    return across;
}

/* n rows of a table in slices. The last part of a table only, unless whole: so that a sample does
 * not have to write and hold all scales. */
static void full_size(int table, const struct geometry *g, int64_t n, int64_t slice, bool whole)
{
    static const struct {
        int align;
        bool buffered;
    } ways[] = {{4096, false}, {512, false}, {0, true}};
    char path[64] = "/var/tmp/hx-test-long-XXXXXX";
    struct slice s;
    struct hx_rng rng;
    hx_rng_seed(&rng, (uint64_t)table + 11);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    if (ftruncate(fd, (off_t)g->file_bytes) < 0) {
        print_message("no sparse files of 101 GB here: %s\n", strerror(errno));
        close(fd);
        unlink(path);
        skip();
    }
    /* Gone when the test is, however it ends. */
    unlink(path);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    s.rows = malloc((size_t)slice * sizeof(*s.rows));
    s.extent = malloc((size_t)slice * sizeof(*s.extent));
    assert_true(s.rows && s.extent);
    struct hx_engram_stream_options o = {.n_tables = 1,
                                         .n_copies = {1},
                                         .n_heads = 8,
                                         .slow_ms = 60000,
                                         .lost_ms = 120000,
                                         .check_ms = 86400000,
                                         .table = {{{.path = path,
                                                     .data_offset = g->data_offset,
                                                     .scale_offset = g->scale_offset,
                                                     .n_rows = g->n_rows,
                                                     .row_bytes = CODES,
                                                     .scale_bytes = SCALES}}}};
    int64_t first = 0;
    if (!whole) {
        /* The same offsets, as rows 0.. of a table that begins there. */
        first = g->n_rows - 4000000;
        o.table[0][0].data_offset += (uint64_t)first * CODES;
        o.table[0][0].scale_offset += (uint64_t)first * SCALES;
        o.table[0][0].n_rows = g->n_rows - first;
    }
    write_scales(fd, table, g, first, g->n_rows - first);
    uint64_t across = 0;
    int64_t done = 0;
    for (int i = 0; done < n; i++) {
        slice_make(&s, &rng, n - done < slice ? n - done : slice, first, g->n_rows);
        slice_write(fd, table, g, &s);
        o.align = ways[i % 3].align;
        o.buffered = ways[i % 3].buffered;
        across += slice_check(&o, table, &s, first);
        done += s.n;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096,
                      (off_t)(g->scale_offset / 4096 * 4096 - 4096)) < 0)
            print_message("cannot punch holes here: %s\n", strerror(errno));
        if (whole)
            print_message("table %d: %lld of %lld rows\n", table, (long long)done, (long long)n);
    }
    assert_true(across > (uint64_t)n / 24); /* 1 in 16 at 4096, 1 in 2 at 512 */
    close(fd);
    free(s.rows);
    free(s.extent);
}

static bool all(void)
{
    const char *v = getenv("HX_LONG");
    return v && strcmp(v, "1") == 0;
}

static void test_full_size(void **state)
{
    (void)state;
    struct geometry g[2];
    struct statvfs fs;
    load_geometry(g);
    uint64_t need = all() ? (uint64_t)6 << 30 : (uint64_t)1 << 30;
    if (statvfs("/var/tmp", &fs) < 0 || fs.f_bavail * fs.f_frsize < need) {
        print_message("needs %llu GiB in /var/tmp\n", (unsigned long long)(need >> 30));
        skip();
    }
    for (int t = 0; t < 2; t++)
        full_size(t, &g[t], all() ? 5000000 : 12000, all() ? 500000 : 4000, all());
}

/* ---- very many waves ---- */

static long resident_kb(void)
{
    long pages = 0, ignored;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &ignored, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Waves of a decode step, some raised, some given up before they are complete. */
static void waves(struct hx_engram_stream *s, const struct tables *x, const int32_t *token,
                  int n_tok, long from, long n)
{
    struct hx_engram_plan *ahead = NULL;
    struct hx_error err;
    for (long i = from; i < from + n; i++) {
        struct hx_engram_plan *p = NULL;
        int n_now = 1 + (int)(i % 6), first = (int)((i * 7) % (n_tok - 12));
        if (hx_engram_plan(s, HX_ENGRAM_DECODE, token, NULL, first, n_now, &p, &err) < 0)
            fail_msg("%s", err.text);
        if (i % 5 == 0) {
            hx_engram_release(ahead);
            ahead = NULL;
            if (hx_engram_plan(s, HX_ENGRAM_AHEAD, token, NULL, first + 6, 6, &ahead, &err) < 0)
                fail_msg("%s", err.text);
            hx_engram_plan_raise(ahead, HX_ENGRAM_CHUNK);
        }
        if (i % 1000 == 0)
            check_plan(x, p, token, NULL, first, n_now);
        else if (i % 3 != 0 &&
                 (hx_engram_wait(p, 0, -1, &err) < 0 || hx_engram_wait(p, 1, -1, &err) < 0))
            fail_msg("%s", err.text);
        hx_engram_release(p);
    }
    hx_engram_release(ahead);
}

static void test_waves(void **state)
{
    (void)state;
    enum { N_TOK = 20000 };
    char folder[] = "/var/tmp/hx-test-waves-XXXXXX";
    struct tables x = {0};
    struct hx_rng g;
    static int32_t token[N_TOK];
    assert_non_null(mkdtemp(folder));
    tables_make(&x, folder);
    hx_rng_seed(&g, 1);
    for (int i = 0; i < N_TOK; i++)
        token[i] = (int32_t)(hx_rng_next(&g) % (uint64_t)x.c.n_vocab);
    struct hx_engram_stream_options o = options_for(&x);
    o.cache_bytes = 64 << 20;
    struct hx_engram_stream *s = open_stream(&o);
    long n = all() ? 1000000 : 20000;
    waves(s, &x, token, N_TOK, 0, n / 4); /* until the cache and its neighbours have settled */
    long kb = resident_kb();
    int files = open_files();
    waves(s, &x, token, N_TOK, n / 4, n);
    struct hx_engram_stats *st = malloc(sizeof(*st));
    assert_non_null(st);
    hx_engram_stream_stats(s, st);
    assert_int_equal(st->plans, 0);
    print_message("%ld waves: %ld kB more, %llu reads, %llu hits, %llu given up\n", n,
                  resident_kb() - kb, (unsigned long long)st->table[0].reads_completed,
                  (unsigned long long)st->table[0].cache_hits,
                  (unsigned long long)st->cancelled_plans);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* those keep what was freed   \
                                                                     */
    assert_true(resident_kb() - kb < (all() ? 4096 : 65536));
#endif
    assert_int_equal(open_files(), files);
    free(st);
    hx_engram_stream_close(s);
    tables_done(&x);
    rmdir(folder);
}

/* A name as argument: only that one. */
int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_size),
        cmocka_unit_test(test_waves),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
