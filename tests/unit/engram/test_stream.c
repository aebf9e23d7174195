/* The streamer on real files: the bytes of memory at every level, alignment and cache size, under
 * any order of planning, cancelling and releasing; back-pressure; what it counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>

#include "engram/rows.h"
#include "shard.h"

/* Files below the build folder's file system, since /tmp may be in memory. */
static char folder[] = "/var/tmp/hx-test-stream-XXXXXX";
static struct tables x;

static int group_setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    tables_make(&x, folder);
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    tables_done(&x);
    return rmdir(folder);
}

/* Text of so many tokens: repeats itself as text does. */
static int32_t *make_text(int n, uint64_t seed)
{
    struct hx_rng g;
    hx_rng_seed(&g, seed);
    int32_t *token = malloc((size_t)n * sizeof(*token));
    assert_non_null(token);
    for (int i = 0; i < n; i++) {
        bool repeat = i > 50 && hx_rng_next(&g) % 3 > 0;
        token[i] = repeat ? token[i - 50] : (int32_t)(hx_rng_next(&g) % (uint64_t)x.c.n_vocab);
    }
    return token;
}

/* ---- geometry ---- */

static void test_windows(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("layout.json"), *c = load_vectors("real_constants.json");
    int n_cases = 0, n_two = 0;
    for (struct hx_jv v = hx_jv_first(at(hx_json_root(doc), "cases")); v.doc; v = hx_jv_next(v)) {
        struct hx_engram_table t = {.row_bytes = CODES, .scale_bytes = SCALES};
        for (struct hx_jv l = hx_jv_first(at(hx_json_root(c), "layers")); l.doc;
             l = hx_jv_next(l)) {
            struct hx_jv first = hx_jv_first(at(l, "tensors"));
            if (as_int(at(l, "layer")) != as_int(at(v, "layer")))
                continue;
            t.data_offset = (uint64_t)as_int(at(first, "file_offset"));
            t.scale_offset = (uint64_t)as_int(at(hx_jv_next(first), "file_offset"));
        }
        int64_t row = as_int(at(v, "row"));
        uint64_t offset = hx_engram_code_offset(&t, row);
        assert_int_equal(offset, as_int(at(v, "weight_offset")));
        assert_int_equal(hx_engram_scale_offset(&t, row), as_int(at(v, "scale_offset")));
        static const struct {
            const char *key;
            uint32_t align;
        } ways[] = {{"read4k", 4096}, {"read512", 512}};
        for (int i = 0; i < 2; i++) {
            int n;
            int64_t *want = as_ints(at(v, ways[i].key), &n);
            struct hx_engram_window w = hx_engram_window(offset, CODES, ways[i].align);
            assert_int_equal(w.offset, want[0]);
            assert_int_equal(w.len, want[1]);
            assert_int_equal(w.offset + w.skip, offset);
            assert_true(w.len <= hx_engram_window_max(CODES, ways[i].align));
            n_two += w.len > ways[i].align;
            free(want);
        }
        n_cases++;
    }
    assert_true(n_cases > 20 && n_two > 10);
    assert_int_equal(hx_engram_window_max(CODES, 4096), 8192);
    assert_int_equal(hx_engram_window_max(CODES, 512), 1024);
    assert_int_equal(hx_engram_window_max(CODES, 1), CODES);
    hx_json_free(doc);
    hx_json_free(c);
}

static void test_plausible(void **state)
{
    (void)state;
    struct hx_engram_table t = {.row_bytes = CODES, .scale_bytes = SCALES};
    struct hx_engram_plausible any, bounded;
    uint8_t codes[CODES], scales[SCALES];
    hx_engram_plausible_init(&any, 0);
    hx_engram_plausible_init(&bounded, 64);
    memset(codes, 0x38, sizeof(codes)); /* 1.0 */
    memset(scales, 127, sizeof(scales));
    assert_null(hx_engram_implausible(&any, &t, codes, scales));
    assert_null(hx_engram_implausible(&bounded, &t, codes, scales));
    static const struct {
        int at;
        uint8_t code, scale;
        const char *any, *bounded;
    } row[] = {
        {0, 0x7F, 127, "NaN code", "NaN code"},
        {255, 0xFF, 127, "NaN code", "NaN code"},
        {100, 0x7E, 127, NULL, "value out of range"}, /* 448 */
        {100, 0xFE, 127, NULL, "value out of range"}, /* -448 */
        {255, 0x68, 127, NULL, NULL},                 /* 64 */
        {255, 0x69, 127, NULL, "value out of range"}, /* 72 */
        {31, 0x38, 133, NULL, NULL},                  /* 1 * 64 */
        {32, 0x38, 134, NULL, "value out of range"},  /* 1 * 128 */
        {32, 0, 0, "impossible scale", "impossible scale"},
        {255, 0, 255, "impossible scale", "impossible scale"},
        {0, 0, 254, NULL, "value out of range"}, /* the ones beside it */
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        memset(codes, 0x38, sizeof(codes));
        memset(scales, 127, sizeof(scales));
        codes[row[i].at] = row[i].code;
        scales[row[i].at / 32] = row[i].scale;
        const char *a = hx_engram_implausible(&any, &t, codes, scales),
                   *b = hx_engram_implausible(&bounded, &t, codes, scales);
        if (!row[i].any != !a || (a && strcmp(a, row[i].any) != 0) || !row[i].bounded != !b ||
            (b && strcmp(b, row[i].bounded) != 0))
            fail_msg("row %zu: '%s' and '%s'", i, a ? a : "", b ? b : "");
    }
}

/* ---- bytes ---- */

struct way {
    enum hx_engram_level level;
    bool buffered;
    int align;
    uint64_t cache;
};

/* Chunks of a text, of any size, against memory. */
static void read_text(struct hx_engram_stream *s, uint64_t seed, int n_tok)
{
    struct hx_rng g;
    hx_rng_seed(&g, seed + 100);
    int32_t *token = make_text(n_tok, seed);
    uint8_t *dead = calloc((size_t)n_tok, 1);
    assert_non_null(dead);
    for (int i = 700; i < 730 && i < n_tok; i++)
        dead[i] = 1;
    for (int first = 0, n; first < n_tok; first += n) {
        struct hx_engram_plan *p = NULL;
        struct hx_error err;
        n = 1 + (int)(hx_rng_next(&g) % 300);
        n = n < n_tok - first ? n : n_tok - first;
        if (hx_engram_plan(s, n < 7 ? HX_ENGRAM_DECODE : HX_ENGRAM_CHUNK, token, dead, first, n, &p,
                           &err) < 0)
            fail_msg("%s", err.text);
        check_plan(&x, p, token, dead, first, n);
        hx_engram_release(p);
    }
    free(token);
    free(dead);
}

static void test_levels(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {HX_ENGRAM_URING_REGISTERED, false, 4096, 0},
        {HX_ENGRAM_URING_REGISTERED, false, 4096, 1 << 20},
        {HX_ENGRAM_URING_REGISTERED, false, 512, 0},
        {HX_ENGRAM_URING_REGISTERED, true, 0, 0},
        {HX_ENGRAM_URING, false, 0, 0},
        {HX_ENGRAM_URING, true, 0, 1 << 22},
        {HX_ENGRAM_THREADS_DIRECT, false, 0, 0},
        {HX_ENGRAM_THREADS_DIRECT, false, 512, 1 << 21},
        {HX_ENGRAM_THREADS_BUFFERED, false, 0, 0},
        {HX_ENGRAM_THREADS_BUFFERED, false, 0, 100},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct hx_engram_stream_options o = options_for(&x);
        struct hx_engram_stats st;
        char text[600];
        o.best = ways[i].level;
        o.buffered = ways[i].buffered;
        o.align = ways[i].align;
        o.cache_bytes = ways[i].cache;
        struct hx_engram_stream *s = open_stream(&o);
        hx_engram_stream_stats(s, &st);
        hx_engram_stream_describe(s, text, sizeof(text));
        if (st.level != ways[i].level)
            print_message("fell back: %s\n", text);
        read_text(s, i, 1500);
        hx_engram_stream_stats(s, &st);
        uint64_t reads = 0, hits = 0;
        for (int t = 0; t < N_TABLES; t++) {
            assert_int_equal(st.table[t].reads_submitted, st.table[t].reads_completed);
            assert_int_equal(st.table[t].reads_submitted + 4 * st.table[t].cache_hits,
                             st.table[t].rows_unique);
            reads += st.table[t].reads_completed;
            hits += st.table[t].cache_hits;
        }
        assert_true(reads > 1000);
        assert_int_equal(st.read_us.count, reads);
        assert_true((hits > 0) == (ways[i].cache > 100));
        for (int k = 0; k < HX_ENGRAM_ERR_KINDS; k++)
            assert_int_equal(st.errors[k], 0);
        assert_int_equal(st.plans, 0);
        assert_int_equal(hx_engram_stream_health(s, NULL), HX_ENGRAM_OK);
        hx_engram_stream_close(s);
    }
}

/* The plain interface: as many rows as one likes, in order, duplicates included. */
static void test_plain_reader(void **state)
{
    (void)state;
    enum { N = 60000 };
    struct hx_engram_stream_options o = options_for(&x);
    struct hx_engram_reader *r = NULL;
    struct hx_error err;
    struct hx_rng g;
    o.hash = NULL;
    o.n_heads = 8;
    struct hx_engram_stream *s = open_stream(&o);
    assert_int_equal(hx_engram_stream_reader(s, &r, &err), 0);
    int64_t *rows = malloc(N * sizeof(*rows));
    uint8_t *codes = malloc((size_t)N * CODES), *scales = malloc((size_t)N * SCALES);
    assert_true(rows && codes && scales);
    hx_rng_seed(&g, 5);
    for (int t = 0; t < N_TABLES; t++) {
        const struct shard *sh = &x.shard[t];
        for (int i = 0; i < N; i++)
            rows[i] = (int64_t)(hx_rng_next(&g) % (uint64_t)sh->table.n_rows);
        static const int64_t counts[] = {0, 1, 7, 8, 9, 8191, 8192, 8193, N};
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            int64_t n = counts[c];
            if (r->ops->read(r, t, rows, n, codes, scales, &err) < 0)
                fail_msg("%s", err.text);
            for (int64_t i = 0; i < n; i++) {
                assert_memory_equal(codes + i * CODES, sh->codes + rows[i] * CODES, CODES);
                assert_memory_equal(scales + i * SCALES, sh->scales + rows[i] * SCALES, SCALES);
            }
        }
        static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r->ops->read(r, t, &bad[i], 1, codes, scales, &err), -EINVAL);
            assert_non_null(strstr(err.text, "the table has"));
        }
        int64_t end = sh->table.n_rows;
        assert_int_equal(r->ops->read(r, t, &end, 1, codes, scales, &err), -EINVAL);
    }
    assert_int_equal(r->ops->read(r, 2, rows, 1, codes, scales, &err), -EINVAL);
    assert_int_equal(r->ops->read(r, 0, rows, -1, codes, scales, &err), -EINVAL);
    r->ops->close(r);
    free(rows);
    free(codes);
    free(scales);
}

/* ---- any order of planning, raising, cancelling and releasing ---- */

#define LIVE 24

static void shuffle(struct hx_engram_stream *s, uint64_t seed, int n_steps)
{
    enum { N = 4000 };
    struct hx_engram_plan *p[LIVE] = {NULL};
    int first[LIVE], n[LIVE];
    struct hx_rng g;
    struct hx_error err;
    hx_rng_seed(&g, seed);
    int32_t *token = make_text(N, seed / 4);
    for (int step = 0; step < n_steps; step++) {
        int i = (int)(hx_rng_next(&g) % LIVE);
        if (!p[i]) {
            enum hx_engram_class c = (enum hx_engram_class)(hx_rng_next(&g) % HX_ENGRAM_CLASSES);
            n[i] = 1 + (int)(hx_rng_next(&g) % (hx_rng_next(&g) % 4 ? 6 : 200));
            first[i] = (int)(hx_rng_next(&g) % (uint64_t)(N - n[i]));
            int r = hx_engram_plan(s, c, token, NULL, first[i], n[i], &p[i], &err);
            if (r < 0 && r != -EAGAIN)
                fail_msg("%s", err.text);
            continue;
        }
        switch (hx_rng_next(&g) % 4) {
        case 0: hx_engram_plan_raise(p[i], (enum hx_engram_class)(hx_rng_next(&g) % 4)); break;
        case 1:
            hx_engram_release(p[i]);
            p[i] = NULL;
            break;
        default:
            check_plan(&x, p[i], token, NULL, first[i], n[i]);
            hx_engram_release(p[i]);
            p[i] = NULL;
        }
    }
    for (int i = 0; i < LIVE; i++)
        hx_engram_release(p[i]);
    free(token);
}

static void check_idle(struct hx_engram_stream *s)
{
    struct hx_engram_stats st;
    for (int i = 0; i < 200; i++) {
        hx_engram_stream_stats(s, &st);
        if (st.in_flight == 0 && st.queued_rows == 0)
            break;
        usleep(10000);
    }
    assert_int_equal(st.in_flight, 0);
    assert_int_equal(st.queued_rows, 0);
    assert_int_equal(st.plans, 0);
}

static void test_any_order(void **state)
{
    (void)state;
    static const uint64_t cache[] = {0, 40000, 1 << 20, 1 << 24};
    for (int i = 0; i < 4; i++) {
        struct hx_engram_stream_options o = options_for(&x);
        struct hx_engram_stats st;
        o.cache_bytes = cache[i];
        o.depth =
            i % 2 ? 32 : 5; /* reads wait, so that some are cancelled before they are issued */
        struct hx_engram_stream *s = open_stream(&o);
        shuffle(s, (uint64_t)i + 1, 240);
        check_idle(s);
        hx_engram_stream_stats(s, &st);
        assert_true(st.cancelled_plans > 0);
        hx_engram_stream_close(s);
    }
}

struct user {
    struct hx_engram_stream *s;
    uint64_t seed;
};

static void *run_user(void *arg)
{
    struct user *u = arg;
    shuffle(u->s, u->seed, 400);
    return NULL;
}

static void test_many_users(void **state)
{
    (void)state;
    struct hx_engram_stream_options o = options_for(&x);
    pthread_t thread[4];
    struct user user[4];
    o.cache_bytes = 2 << 20;
    o.depth = 64;
    o.staging_bytes = 4 << 20; /* BUSY now and then */
    struct hx_engram_stream *s = open_stream(&o);
    for (int i = 0; i < 4; i++) {
        user[i] = (struct user){s, (uint64_t)i + 40};
        assert_int_equal(pthread_create(&thread[i], NULL, run_user, &user[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    check_idle(s);
    hx_engram_stream_close(s);
}

/* ---- limits ---- */

static void test_busy(void **state)
{
    (void)state;
    struct hx_engram_stream_options o = options_for(&x);
    struct hx_engram_plan *a = NULL, *b = NULL;
    struct hx_engram_stats st;
    struct hx_error err;
    int32_t *token = make_text(400, 3);
    o.max_rows = 4000;
    struct hx_engram_stream *s = open_stream(&o);
    /* 400 tokens of 12 rows in two tables are more than 4000. */
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 0, 400, &a, &err), -EAGAIN);
    assert_null(a);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 0, 100, &a, &err), 0);
    check_plan(&x, a, token, NULL, 0, 100);
    hx_engram_release(a);
    hx_engram_stream_close(s);

    /* Staging memory is held until release. */
    o = options_for(&x);
    o.staging_bytes = 1 << 20;
    s = open_stream(&o);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 0, 100, &a, &err), 0);
    check_plan(&x, a, token, NULL, 0, 100);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_AHEAD, token, NULL, 100, 150, &b, &err), -EAGAIN);
    hx_engram_release(a);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_AHEAD, token, NULL, 100, 150, &b, &err), 0);
    check_plan(&x, b, token, NULL, 100, 150);
    hx_engram_release(b);
    hx_engram_stream_stats(s, &st);
    assert_int_equal(st.busy_rejections, 1);
    int32_t bad[] = {1, x.c.n_vocab};
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, bad, NULL, 0, 2, &a, &err), -EINVAL);
    assert_non_null(strstr(err.text, "at position 1"));
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, bad, NULL, 0, 0, &a, &err), -EINVAL);
    hx_engram_stream_close(s);
    free(token);
}

/* Equal n-grams are read once: in a plan, and while another plan's read is on its way. */
static void test_dedupe(void **state)
{
    (void)state;
    struct hx_engram_stream_options o = options_for(&x);
    struct hx_engram_plan *p[3] = {NULL};
    struct hx_engram_stats st;
    struct hx_error err;
    int32_t token[64];
    for (int i = 0; i < 64; i++)
        token[i] = 9 + i % 2;
    struct hx_engram_stream *s = open_stream(&o);
    /* Positions 3..63 of a text of period two: two n-grams of each of three sizes. */
    for (int i = 0; i < 3; i++)
        assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 3, 61, &p[i], &err), 0);
    for (int i = 0; i < 3; i++) {
        check_plan(&x, p[i], token, NULL, 3, 61);
        struct hx_engram_block b;
        hx_engram_plan_block(p[i], 0, &b);
        assert_int_equal(b.n_rows, 2 * 3 * 4);
        assert_int_equal(b.n_tok, 61);
        hx_engram_release(p[i]);
    }
    hx_engram_stream_stats(s, &st);
    assert_int_equal(st.table[0].groups_requested, 3 * 61 * 3);
    assert_int_equal(st.table[0].groups_unique, 3 * 6);
    assert_int_equal(st.table[0].rows_requested, 3 * 61 * 12);
    uint64_t apart = st.table[0].reads_submitted / 4 + st.table[0].attached_waits;
    assert_int_equal(apart, 3 * 6);
    hx_engram_stream_close(s);
}

/* A decode step behind a long prefill does not wait for it; what was only wanted ahead does. */
static void test_urgency(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct hx_engram_stream_options o = options_for(&x);
    struct hx_engram_plan *ahead = NULL, *chunk = NULL, *decode = NULL;
    struct hx_error err;
    int32_t *token = make_text(N, 77);
    o.depth = 8;
    struct hx_engram_stream *s = open_stream(&o);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_AHEAD, token, NULL, 0, N / 2, &ahead, &err), 0);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, N / 2, 300, &chunk, &err), 0);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_DECODE, token, NULL, N - 6, 6, &decode, &err), 0);
    check_plan(&x, decode, token, NULL, N - 6, 6);
    assert_int_equal(atomic_load(hx_engram_plan_flag(chunk, 1)), 0);
    assert_int_equal(atomic_load(hx_engram_plan_flag(ahead, 0)), 0);
    check_plan(&x, chunk, token, NULL, N / 2, 300);
    assert_int_equal(atomic_load(hx_engram_plan_flag(ahead, 1)), 0);
    hx_engram_plan_raise(ahead, HX_ENGRAM_CHUNK);
    check_plan(&x, ahead, token, NULL, 0, N / 2);
    hx_engram_release(ahead);
    hx_engram_release(chunk);
    hx_engram_release(decode);
    hx_engram_stream_close(s);
    free(token);
}

/* Keys over a restart: every group of before is a hit. */
static void test_hot_groups(void **state)
{
    (void)state;
    enum { N = 600 };
    struct hx_engram_stream_options o = options_for(&x);
    struct hx_engram_stats st;
    struct hx_engram_plan *p = NULL;
    struct hx_error err;
    char path[128], *text = NULL;
    size_t len;
    uint64_t n = 0;
    atomic_bool stop = false;
    int32_t *token = make_text(N, 5);
    snprintf(path, sizeof(path), "%s/hot", folder);
    o.cache_bytes = 16 << 20;
    struct hx_engram_stream *s = open_stream(&o);
    assert_int_equal(hx_engram_hot_load(s, path, NULL, &n, &err), -ENOENT);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 0, N, &p, &err), 0);
    check_plan(&x, p, token, NULL, 0, N);
    hx_engram_release(p);
    assert_int_equal(hx_engram_hot_save(s, path, &err), 0);
    hx_engram_stream_close(s);
    s = open_stream(&o);
    assert_int_equal(hx_engram_hot_load(s, path, &stop, &n, &err), 0);
    check_idle(s);
    assert_int_equal(hx_engram_plan(s, HX_ENGRAM_CHUNK, token, NULL, 0, N, &p, &err), 0);
    check_plan(&x, p, token, NULL, 0, N);
    hx_engram_release(p);
    hx_engram_stream_stats(s, &st);
    assert_int_equal(n, st.table[0].groups_unique + st.table[1].groups_unique);
    for (int t = 0; t < N_TABLES; t++)
        assert_int_equal(st.table[t].cache_hits, st.table[t].groups_unique);
    stop = true;
    assert_int_equal(hx_engram_hot_load(s, path, &stop, &n, &err), 0);
    assert_int_equal(n, 0);
    /* Any damaged byte is noticed; so are keys of other tables. */
    assert_int_equal(hx_file_read(path, 1 << 20, &text, &len, &err), 0);
    static const size_t places[] = {0, 17, 25, 33, 41};
    for (size_t i = 0; i <= sizeof(places) / sizeof(places[0]); i++) {
        size_t where = i < sizeof(places) / sizeof(places[0]) ? places[i] : len - 1;
        text[where] ^= 1;
        assert_int_equal(hx_file_replace(path, text, len, &err), 0);
        assert_int_equal(hx_engram_hot_load(s, path, NULL, &n, &err), -EINVAL);
        assert_non_null(strstr(err.text, path));
        text[where] ^= 1;
    }
    assert_int_equal(hx_file_replace(path, text, 40, &err), 0);
    assert_int_equal(hx_engram_hot_load(s, path, NULL, &n, &err), -EINVAL);
    hx_engram_stream_close(s);
    struct hx_engram_hash *other = NULL;
    struct hx_engram_hash_config c = x.c;
    c.layer[1]++;
    assert_int_equal(hx_engram_hash_new(&c, &other, &err), 0);
    o.hash = other;
    s = open_stream(&o);
    assert_int_equal(hx_file_replace(path, text, len, &err), 0);
    assert_int_equal(hx_engram_hot_load(s, path, NULL, &n, &err), -EINVAL);
    assert_non_null(strstr(err.text, "other tables"));
    hx_engram_stream_close(s);
    hx_engram_hash_free(other);
    unlink(path);
    free(text);
    free(token);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct hx_engram_stream *s = NULL;
    struct hx_error err;
#define REFUSED(field, value, says)                                                                \
    do {                                                                                           \
        struct hx_engram_stream_options o = options_for(&x);                                       \
        o.field = value;                                                                           \
        assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EINVAL);                            \
        if (!strstr(err.text, says))                                                               \
            fail_msg("'%s' does not say '%s'", err.text, says);                                    \
    } while (0)
    REFUSED(n_tables, 0, "tables: found 0");
    REFUSED(n_tables, 5, "tables: found 5");
    REFUSED(depth, 100000, "depth");
    REFUSED(n_threads, 1000, "threads");
    REFUSED(max_rows, -1, "rows on their way");
    REFUSED(align, 100, "alignment");
    REFUSED(n_copies[0], 0, "table 0 has 0 files");
    REFUSED(n_copies[1], 9, "table 1 has 9 files");
    REFUSED(table[0][0].n_rows, x.c.declared_rows[0] + 1, "too few");
    REFUSED(table[0][0].row_bytes, 0, "of 0 + 8 bytes");
    REFUSED(table[1][0].scale_bytes, 7, "256 + 7 bytes");
    REFUSED(table[1][0].path, folder, "not a regular file");
    struct hx_engram_stream_options o = options_for(&x);
    o.table[0][0].path = "/var/tmp/hx-no-such-shard";
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -ENOENT);
    /* A second copy on the same drive. */
    o = options_for(&x);
    o.table[0][1] = o.table[0][0];
    o.n_copies[0] = 2;
    assert_int_equal(hx_engram_stream_open(&o, &s, &err), -EINVAL);
    assert_non_null(strstr(err.text, "same drive"));
    hx_engram_stream_close(NULL);
    hx_engram_release(NULL);
}

static void test_histogram(void **state)
{
    (void)state;
    struct hx_engram_hist h = {0}, sum = {0};
    for (int i = 1; i <= 1000; i++)
        hx_engram_hist_add(&h, i);
    hx_engram_hist_sum(&sum, &h);
    hx_engram_hist_sum(&sum, &h);
    assert_int_equal(sum.count, 2000);
    assert_true(fabs(hx_engram_hist_quantile(&sum, 0.5) / 500 - 1) < 0.1);
    assert_true(fabs(hx_engram_hist_quantile(&sum, 0.99) / 990 - 1) < 0.1);
    assert_true(hx_engram_hist_quantile(&sum, 1) == 1000);
    hx_engram_hist_add(&h, 1e12);
    assert_true(h.max_us == 1e12);
    struct hx_engram_hist none = {0};
    assert_true(hx_engram_hist_quantile(&none, 0.5) == 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),     cmocka_unit_test(test_plausible),
        cmocka_unit_test(test_levels),      cmocka_unit_test(test_plain_reader),
        cmocka_unit_test(test_any_order),   cmocka_unit_test(test_many_users),
        cmocka_unit_test(test_busy),        cmocka_unit_test(test_dedupe),
        cmocka_unit_test(test_urgency),     cmocka_unit_test(test_hot_groups),
        cmocka_unit_test(test_bad_options), cmocka_unit_test(test_histogram),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
