/* Rows from memory, by pread and through the streamer at every level: the same logits, bit for bit;
 * whatever was wanted before, by whomever. A row that cannot be read ends the step that needs it.
 */
#include "golden.h"

#include "model/bind.h"

#define VOCAB 512
#define N_TOK 96

/* ---- rows in memory ---- */

struct memory_reader {
    struct hx_engram_reader base;
    uint8_t *codes[HX_MAX_ENGRAM], *scales[HX_MAX_ENGRAM];
    struct hx_engram_table table[HX_MAX_ENGRAM];
    int n, fail_after; /* reads until -EIO; negative: never */
};

static int memory_read(struct hx_engram_reader *base, int t, const int64_t *rows, int64_t n,
                       uint8_t *codes, uint8_t *scales, struct hx_error *err)
{
    struct memory_reader *m = (struct memory_reader *)base;
    size_t nc = (size_t)m->table[t].row_bytes, ns = (size_t)m->table[t].scale_bytes;
    if (m->fail_after >= 0 && m->fail_after-- == 0)
        return hx_fail(err, -EIO, "Engram read error: a bad day");
    for (int64_t i = 0; i < n; i++) {
        memcpy(codes + (size_t)i * nc, m->codes[t] + (size_t)rows[i] * nc, nc);
        memcpy(scales + (size_t)i * ns, m->scales[t] + (size_t)rows[i] * ns, ns);
    }
    return 0;
}

static void memory_close(struct hx_engram_reader *base)
{
    struct memory_reader *m = (struct memory_reader *)base;
    for (int t = 0; t < m->n; t++) {
        free(m->codes[t]);
        free(m->scales[t]);
    }
    free(m);
}

static const struct hx_engram_reader_ops memory_ops = {"memory", memory_read, memory_close};

static void *part_of(const char *path, uint64_t offset, size_t n)
{
    FILE *f = fopen(path, "rb");
    void *p = malloc(n);
    assert_true(f && p && fseek(f, (long)offset, SEEK_SET) == 0 && fread(p, 1, n, f) == n);
    fclose(f);
    return p;
}

/* The tables of the model folder: in memory, or behind pread. */
static struct hx_engram_reader *reader_new(bool memory)
{
    struct hx_binding *b = calloc(1, sizeof(*b));
    struct memory_reader *m = calloc(1, sizeof(*m));
    struct hx_engram_reader *r = NULL;
    assert_true(b && m);
    CHECK(hx_bind_folder(MODEL_DIR, b, ERR));
    m->base.ops = &memory_ops;
    m->fail_after = -1;
    for (int t = 0; t < b->hp.n_engram; t++, m->n++) {
        struct hx_row_file f;
        hx_binding_engram_file(b, t, &f);
        CHECK(hx_feed_table(&f, b->hp.engram_layer[t], &m->table[t], ERR));
        const struct hx_engram_table *tb = &m->table[t];
        m->codes[t] =
            part_of(tb->path, tb->data_offset, (size_t)tb->n_rows * (size_t)tb->row_bytes);
        m->scales[t] =
            part_of(tb->path, tb->scale_offset, (size_t)tb->n_rows * (size_t)tb->scale_bytes);
    }
    if (memory) {
        r = &m->base;
    } else {
        CHECK(hx_engram_pread_open(m->table, m->n, &r, ERR));
        memory_close(&m->base);
    }
    hx_binding_done(b);
    free(b);
    return r;
}

/* ---- running ---- */

static struct hx_rank *open_rank(const struct hx_feed_options *f)
{
    struct hx_rank *r = NULL;
    struct hx_rank_options o = {.model_dir = MODEL_DIR,
                                .backend = "cpu",
                                .max_tok = 64,
                                .max_seq = 4,
                                .kv = {.block_tok = 16, .n_blocks = 64, .n_seqs = 4},
                                .engram = *f};
    o.engram.slow_ms = 60000; /* a busy build host may take seconds for a read */
    CHECK(hx_rank_open(&o, &r, ERR));
    return r;
}

static const int32_t *text(void)
{
    static int32_t token[N_TOK];
    for (int i = 0; i < N_TOK; i++)
        token[i] = (i * 131 + i / 5) % VOCAB;
    return token;
}

/* Chunks and single tokens, two sequences in some steps -> logits of every row. how: 0 wants
 * nothing, 1 the next chunks, 2 other tokens than those that come, 3 forgets what it wanted. */
static float *run(struct hx_rank *r, int how)
{
    static const int steps[] = {40, 24, 7, 1, 1, 6, 1, 16};
    float *logits = malloc((size_t)2 * N_TOK * VOCAB * sizeof(*logits)), *to = logits;
    struct hx_kv_seq *a = NULL, *b = NULL;
    const int32_t *token = text();
    int32_t other[N_TOK];
    assert_non_null(logits);
    for (int i = 0; i < N_TOK; i++)
        other[i] = (token[i] + 1 + i % 3) % VOCAB;
    CHECK(hx_kv_seq_new(hx_rank_kv(r), &a, ERR));
    CHECK(hx_kv_seq_new(hx_rank_kv(r), &b, ERR));
    int at = 0;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        int n = steps[i], left = N_TOK - at - n;
        struct hx_step_seq s[2] = {{.kv = a, .tokens = token + at, .n_tok = n, .n_logits = n},
                                   {.kv = b, .tokens = token + at, .n_tok = n, .n_logits = n}};
        int n_seqs = n <= 32 ? 2 : 1;
        if (how == 1) {
            hx_rank_want(r, HX_ENGRAM_DECODE, a, token + at, at, n);
            hx_rank_want(r, HX_ENGRAM_AHEAD, a, token + at + n, at + n, left < 64 ? left : 64);
            hx_rank_want(r, HX_ENGRAM_AHEAD, b, token + at + n, at + n, left < 9 ? left : 9);
        } else if (how >= 2) {
            hx_rank_want(r, HX_ENGRAM_CHUNK, a, other + at, at, n);
            hx_rank_want(r, HX_ENGRAM_AHEAD, a, other + at + n, at + n, left < 20 ? left : 20);
            if (how == 3)
                hx_rank_forget(r, a);
        }
        if (n_seqs == 1) { /* b follows alone */
            CHECK(hx_rank_step(r, &s[1], 1, to, NULL, NULL, ERR));
            to += (size_t)n * VOCAB;
        }
        CHECK(hx_rank_step(r, s, n_seqs, to, NULL, NULL, ERR));
        to += (size_t)n_seqs * (size_t)n * VOCAB;
        at += n;
    }
    assert_int_equal(at, N_TOK);
    hx_rank_forget(r, a);
    hx_rank_forget(r, b);
    hx_kv_seq_free(a);
    hx_kv_seq_free(b);
    return logits;
}

static float *logits_of(const struct hx_feed_options *f, int how)
{
    struct hx_rank *r = open_rank(f);
    float *l = run(r, how);
    if (hx_rank_engram(r)) {
        struct hx_engram_stats st;
        hx_engram_stream_stats(hx_rank_engram(r), &st);
        assert_int_equal(st.plans, 0); /* nothing is held at the end */
    }
    hx_rank_close(r);
    return l;
}

static void test_same_logits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum hx_engram_level best;
        bool buffered;
        int64_t cache;
        int how;
    } ways[] = {
        {"io_uring direct", HX_ENGRAM_URING_REGISTERED, false, 0, 0},
        {"io_uring direct, wanted ahead", HX_ENGRAM_URING_REGISTERED, false, 0, 1},
        {"io_uring direct, cache", HX_ENGRAM_URING_REGISTERED, false, -1, 1},
        {"io_uring direct, small cache", HX_ENGRAM_URING_REGISTERED, false, 100000, 1},
        {"io_uring direct, other tokens wanted", HX_ENGRAM_URING_REGISTERED, false, 100000, 2},
        {"io_uring direct, forgotten", HX_ENGRAM_URING_REGISTERED, false, 0, 3},
        {"io_uring not registered", HX_ENGRAM_URING, false, 0, 1},
        {"io_uring buffered", HX_ENGRAM_URING_REGISTERED, true, 0, 1},
        {"threads direct", HX_ENGRAM_THREADS_DIRECT, false, 0, 1},
        {"threads buffered", HX_ENGRAM_THREADS_BUFFERED, false, 1 << 20, 1},
    };
    struct hx_feed_options memory = {.reader = reader_new(true)},
                           pread = {.reader = reader_new(false)};
    size_t bytes = (size_t)2 * N_TOK * VOCAB * sizeof(float);
    float *want = logits_of(&memory, 0), *got = logits_of(&pread, 0);
    assert_memory_equal(got, want, bytes);
    free(got);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct hx_feed_options o = {
            .best = ways[i].best, .buffered = ways[i].buffered, .cache_bytes = ways[i].cache};
        got = logits_of(&o, ways[i].how);
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s: other logits", ways[i].name);
        free(got);
    }
    free(want);
}

/* Folders of [engram] paths: where the shards are, or are not. */
static void test_paths(void **state)
{
    (void)state;
    struct hx_feed_options o = {.paths = "/nowhere:" MODEL_DIR "::/neither"};
    struct hx_rank *r = open_rank(&o);
    struct hx_engram_stats st;
    hx_engram_stream_stats(hx_rank_engram(r), &st);
    assert_int_equal(st.n_drives, 1);
    hx_rank_close(r);
    struct hx_error err;
    struct hx_rank_options twice = {.model_dir = MODEL_DIR,
                                    .backend = "cpu",
                                    .max_tok = 8,
                                    .max_seq = 1,
                                    .kv = {.block_tok = 16, .n_blocks = 4, .n_seqs = 1},
                                    .engram = {.paths = MODEL_DIR ":./" MODEL_DIR}};
    assert_int_equal(hx_rank_open(&twice, &r, &err), -EINVAL);
    assert_non_null(strstr(err.text, "on the same drive as"));
}

/* A step that fails at its first or second layer with rows changes nothing that counts. */
static void test_failed_reads(void **state)
{
    (void)state;
    for (int fail = 0; fail < 2; fail++) {
        struct memory_reader *m = (struct memory_reader *)reader_new(true);
        struct hx_feed_options o = {.reader = &m->base};
        struct hx_rank *r = open_rank(&o);
        struct hx_kv_seq *s = NULL;
        struct hx_error err = {0};
        float logits[4 * VOCAB], again[4 * VOCAB];
        CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
        struct hx_step_seq q = {.kv = s, .tokens = text(), .n_tok = 4, .n_logits = 4};
        m->fail_after = fail;
        assert_int_equal(hx_rank_step(r, &q, 1, logits, NULL, NULL, &err), -EIO);
        assert_string_equal(err.slug, HX_FEED_SLUG);
        assert_non_null(strstr(err.text, "Engram rows of layer"));
        assert_int_equal(hx_kv_seq_len(s), 0);
        CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
        hx_kv_seq_free(s);
        CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
        q.kv = s;
        CHECK(hx_rank_step(r, &q, 1, again, NULL, NULL, ERR));
        assert_memory_equal(logits, again, sizeof(logits));
        hx_kv_seq_free(s);
        hx_rank_close(r);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_failed_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
