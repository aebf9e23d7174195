/* Layers alone from recorded streams, ties forced by other weights, and what a step refuses. */
#include "golden.h"

#define VOCAB 512
#define WIDTH (4 * 128) /* streams of a row */

/* ---- layers alone ---- */

struct forced {
    struct hx_st_file *golden;
    const char *name;
    int n_layers;        /* compared */
    double median, most; /* worst over the layers */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Relative L2 error of each row of the streams. */
static void compare_streams(struct forced *f, const uint16_t *got, const uint16_t *want, int n)
{
    double row[128];
    assert_true(n <= 128);
    for (int t = 0; t < n; t++)
        row[t] = compare(got + t * WIDTH, want + t * WIDTH, HX_DTYPE_BF16, WIDTH).rel_rms;
    qsort(row, (size_t)n, sizeof(*row), by_value);
    f->n_layers++;
    f->median = row[n / 2] > f->median ? row[n / 2] : f->median;
    f->most = row[n - 1] > f->most ? row[n - 1] : f->most;
}

/* Streams and coefficients that enter a layer are replaced by the recorded ones, so each comparison
 * shows the layer before alone. */
static void force(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct forced *f = user;
    const struct hx_st_tensor *want_t;
    bool streams = strcmp(name, "streams") == 0 || strcmp(name, "final.streams") == 0;
    if (!streams && strcmp(name, "ffn.pre") != 0)
        return;
    void *want = layer < 0
                     ? golden_get(f->golden, &want_t, "%s.w8a16.%s", f->name, name)
                     : golden_get(f->golden, &want_t, "%s.w8a16.L%d.%s", f->name, layer, name);
    if (!want)
        return;
    if (streams && layer != 0)
        compare_streams(f, t->data, want, (int)t->ne[0]);
    memcpy(t->data, want, want_t->size);
    free(want);
}

static void layers_alone(const char *name, int n_layers)
{
    struct forced f = {.golden = golden_open(GOLDEN_FILE), .name = name};
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    const struct hx_st_tensor *t;
    int32_t *tokens = golden_get(f.golden, &t, "%s.tokens", name);
    int n = (int)t->ne[0];
    float *logits = malloc((size_t)n * VOCAB * sizeof(*logits));
    assert_non_null(logits);
    struct hx_kv_seq *s = seq_new(r);
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = n, .n_logits = n};
    CHECK(hx_rank_step(r, &q, 1, logits, force, &f, ERR));
    print_message("%s: %d layers, worst median row error %.3g, worst row %.3g\n", name, f.n_layers,
                  f.median, f.most);
    assert_true(f.n_layers >= n_layers);
    assert_true(f.median <= 1.5e-3 && f.most <= 4e-3);
    free(tokens);
    free(logits);
    hx_kv_seq_free(s);
    hx_rank_close(r);
    hx_st_close(f.golden);
}

static void test_layers_alone(void **state)
{
    (void)state;
    layers_alone("p17", 10);
    layers_alone("p97", 7);
}

/* ---- ties in the whole model ---- */

struct choices {
    struct hx_st_file *tie;
    int n_compared;
};

static void on_choice(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct choices *c = user;
    const struct hx_st_tensor *want_t;
    int32_t *want = golden_get(c->tie, &want_t, "override.p97.L%d.%s", layer, name);
    if (!want)
        return;
    assert_int_equal(want_t->size, (size_t)(t->ne[0] * t->ne[1]) * 4);
    assert_memory_equal(t->data, want, want_t->size);
    c->n_compared++;
    free(want);
}

static void test_overrides(void **state)
{
    (void)state;
    static const char *const names[] = {"layers.4.attn.indexer.wk.weight",
                                        "layers.6.attn.indexer.weights_proj.weight",
                                        "layers.5.ffn.gate.weight", "layers.5.ffn.gate.bias"};
    struct choices c = {.tie = golden_open(TIE_FILE)};
    struct hx_st_file *golden = golden_open(GOLDEN_FILE);
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    const struct hx_st_tensor *t;
    for (int i = 0; i < 4; i++) {
        void *data = golden_get(c.tie, &t, "override.%s", names[i]);
        assert_non_null(data);
        CHECK(hx_model_override(hx_rank_model(r), names[i], data, t->size, ERR));
        free(data);
    }
    int32_t *tokens = golden_get(golden, &t, "p97.tokens");
    float *want = golden_get(c.tie, &t, "override.p97.logits"), logits[16 * VOCAB];
    struct hx_kv_seq *s = seq_new(r);
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = 97, .n_logits = 16};
    CHECK(hx_rank_step(r, &q, 1, logits, on_choice, &c, ERR));
    assert_int_equal(c.n_compared, 5);
    assert_memory_equal(logits, want, sizeof(logits));
    free(tokens);
    free(want);
    hx_kv_seq_free(s);
    hx_rank_close(r);
    hx_st_close(golden);
    hx_st_close(c.tie);
}

/* ---- refusals ---- */

static void refuse(struct hx_rank *r, const struct hx_step_seq *q, int n, int want,
                   const char *text)
{
    float logits[8 * VOCAB];
    struct hx_error err = {0};
    int64_t len = hx_kv_seq_len(q[0].kv);
    assert_int_equal(hx_rank_step(r, q, n, logits, NULL, NULL, &err), want);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
    assert_int_equal(hx_kv_seq_len(q[0].kv), len); /* nothing is committed */
}

static void test_bad_steps(void **state)
{
    (void)state;
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    struct hx_kv_seq *s = seq_new(r), *other = seq_new(r);
    static int32_t tokens[600];
    int32_t bad[3] = {5, 512, 7}, negative[1] = {-1};
    for (int i = 0; i < 600; i++)
        tokens[i] = 3 + i % 400;
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = 4, .n_logits = 1};
    struct hx_step_seq two[2] = {q, {.kv = other, .tokens = tokens, .n_tok = 253, .n_logits = 1}};
    q.n_tok = 0;
    refuse(r, &q, 1, -EINVAL, "0 rows");
    q.n_tok = 257;
    refuse(r, &q, 1, -EINVAL, "257 rows");
    q.n_tok = 4;
    q.n_logits = 5;
    refuse(r, &q, 1, -EINVAL, "5 with logits");
    q.n_logits = 1;
    refuse(r, &q, 0, -EINVAL, "0 sequences");
    refuse(r, two, 2, -EINVAL, "257 rows");
    q.tokens = bad;
    q.n_tok = 3;
    refuse(r, &q, 1, -EINVAL, "token id 512");
    q.tokens = negative;
    q.n_tok = 1;
    refuse(r, &q, 1, -EINVAL, "token id -1");
    float row[VOCAB];
    feed(r, s, tokens, 256, 1, row);
    feed(r, s, tokens, 200, 1, row);
    q.tokens = tokens;
    q.n_tok = 57;
    refuse(r, &q, 1, -EINVAL, "context of 512"); /* 456 + 57 */
    hx_kv_seq_free(s);
    hx_kv_seq_free(other);
    hx_rank_close(r);
}

/* A full pool refuses the step and changes nothing: the sequences continue with the same bits. */
static void test_pool_full(void **state)
{
    (void)state;
    struct hx_rank_options o = {.model_dir = MODEL_DIR,
                                .backend = "cpu",
                                .max_tok = 64,
                                .max_seq = 2,
                                .max_context = 512,
                                .kv = {.block_tok = 16, .n_blocks = 4, .n_seqs = 2}};
    struct hx_rank *r = NULL, *large = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    CHECK(hx_rank_open(&o, &r, ERR));
    struct hx_kv_seq *a = seq_new(r), *b = seq_new(r), *want = seq_new(large);
    int32_t tokens[64];
    float got[VOCAB], row[VOCAB];
    for (int i = 0; i < 64; i++)
        tokens[i] = 10 + i * 7 % 400;
    feed(r, a, tokens, 20, 1, got);
    feed(r, b, tokens, 20, 1, got);
    struct hx_step_seq q[2] = {{.kv = a, .tokens = tokens + 20, .n_tok = 20, .n_logits = 1},
                               {.kv = b, .tokens = tokens + 20, .n_tok = 20, .n_logits = 1}};
    refuse(r, q, 2, -EAGAIN, "no room for 40 tokens");
    hx_kv_seq_free(b);
    feed(r, a, tokens + 20, 20, 1, got);
    feed(large, want, tokens, 40, 1, row);
    assert_memory_equal(got, row, sizeof(row));
    hx_kv_seq_free(a);
    hx_kv_seq_free(want);
    hx_rank_close(r);
    hx_rank_close(large);
}

/* NaN where a choice is made is an error that names layer and operation. */
static void test_nan(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        int n;
        bool f32;
        const char *layer, *op;
    } cases[] = {
        {"layers.5.ffn.gate.bias", 8, true, "layer 5", "route"},
        {"layers.4.attn.indexer.weights_proj.weight", 4 * 128, false, "layer 4", "index_select"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
        uint32_t nan[512];
        for (int j = 0; j < 512; j++)
            nan[j] = cases[i].f32 ? 0x7FC00000 : 0x7FC07FC0;
        CHECK(hx_model_override(hx_rank_model(r), cases[i].tensor, nan,
                                (size_t)cases[i].n * (cases[i].f32 ? 4 : 2), ERR));
        struct hx_kv_seq *s = seq_new(r);
        int32_t tokens[4] = {5, 6, 7, 8};
        struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = 4, .n_logits = 1};
        refuse(r, &q, 1, -EDOM, cases[i].layer);
        refuse(r, &q, 1, -EDOM, cases[i].op);
        hx_kv_seq_free(s);
        hx_rank_close(r);
    }
}

static void test_open_errors(void **state)
{
    (void)state;
    struct hx_rank_options o = {.model_dir = "tests/vectors/nowhere",
                                .backend = "cpu",
                                .max_tok = 8,
                                .max_seq = 1,
                                .max_context = 64,
                                .kv = {.n_blocks = 4, .n_seqs = 1}};
    struct hx_rank *r = NULL;
    struct hx_error err = {0};
    assert_true(hx_rank_open(&o, &r, &err) < 0);
    assert_non_null(strstr(err.text, "nowhere"));
    o.model_dir = MODEL_DIR;
    o.backend = "cuda9";
    assert_int_equal(hx_rank_open(&o, &r, &err), -ENODEV);
    assert_non_null(strstr(err.text, "cuda9"));
    o.backend = "cpu";
    o.max_tok = 0;
    assert_int_equal(hx_rank_open(&o, &r, &err), -EINVAL);
    assert_null(r);
    hx_rank_close(NULL);
}

/* Best tokens instead of logits: those of the logits, also with more rows than are on the device
 * at once. */
static void test_best_tokens(void **state)
{
    enum { N = 70 };
    (void)state;
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    float *logits = malloc((size_t)N * VOCAB * sizeof(*logits));
    int32_t tokens[N], best[N];
    assert_non_null(logits);
    for (int i = 0; i < N; i++)
        tokens[i] = 5 + (i * 37) % 400;
    for (int way = 0; way < 2; way++) {
        struct hx_kv_seq *s = seq_new(r);
        struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = N, .n_logits = N};
        if (way == 0)
            CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
        else
            CHECK(hx_rank_step_best(r, &q, 1, best, ERR));
        hx_kv_seq_free(s);
    }
    for (int i = 0; i < N; i++) {
        const float *row = logits + (size_t)i * VOCAB;
        for (int v = 0; v < VOCAB; v++)
            assert_true(v < best[i] ? row[v] < row[best[i]] : row[v] <= row[best[i]]);
    }
    free(logits);
    hx_rank_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_alone), cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_bad_steps),    cmocka_unit_test(test_pool_full),
        cmocka_unit_test(test_nan),          cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_best_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
