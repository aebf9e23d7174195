/* Every recorded value of the golden cases: prefill with taps, greedy continuation, KV state. */
#include "golden.h"

#define GREEDY 24

struct recorder {
    struct hx_st_file *golden;
    const char *name; /* of the case */
    const char *mode;
    int n_layer;
    int64_t n_arrays, n_values, n_equal;
    char drift[200]; /* first value that differs */
    char worst[200];
    double worst_rms;
    bool choice_differs; /* integers: rows, experts, blocks, bytes */
    uint8_t *q_codes;    /* of the layer, until its scales come */
    int64_t q_width;
};

static void record(struct recorder *r, const char *what, int layer, const void *got,
                   const void *want, enum hx_dtype dtype, int64_t n)
{
    struct compared c = compare(got, want, dtype, n);
    r->n_arrays++;
    r->n_values += n;
    r->n_equal += n - c.n_different;
    if (c.n_different && !r->drift[0])
        snprintf(r->drift, sizeof(r->drift), "layer %d, %s: %lld of %lld differ, relative RMS %.3g",
                 layer, what, (long long)c.n_different, (long long)n, c.rel_rms);
    if (c.n_different && dtype != HX_DTYPE_F32 && dtype != HX_DTYPE_BF16)
        r->choice_differs = true;
    if (c.rel_rms > r->worst_rms) {
        r->worst_rms = c.rel_rms;
        snprintf(r->worst, sizeof(r->worst), "layer %d, %s", layer, what);
    }
}

/* Lists and scores are padded to another width in the file. */
static void record_padded(struct recorder *r, const char *what, int layer,
                          const struct hx_tensor *got, const struct hx_st_tensor *t,
                          const void *want)
{
    size_t size = hx_dtype_size(t->dtype);
    int64_t wide = got->ne[1], narrow = t->ne[1], both = wide < narrow ? wide : narrow;
    for (int64_t row = 0; row < t->ne[0]; row++) {
        const uint8_t *g = (const uint8_t *)got->data + (size_t)(row * wide) * size;
        const uint8_t *w = (const uint8_t *)want + (size_t)(row * narrow) * size;
        record(r, what, layer, g, w, t->dtype, both);
        for (int64_t i = both; i < wide; i++)
            assert_true(element(g, t->dtype, i) < 0);
        for (int64_t i = both; i < narrow; i++)
            assert_true(element(w, t->dtype, i) < 0);
    }
}

static void join_query_bytes(struct recorder *r, int layer, const struct hx_tensor *scales)
{
    const struct hx_st_tensor *t;
    uint8_t *want = golden_get(r->golden, &t, "%s.%s.L%d.index.q_bytes", r->name, r->mode, layer);
    int64_t n_scales = scales->ne[1] * scales->ne[2];
    for (int64_t row = 0; want && row < scales->ne[0]; row++) {
        const uint8_t *w = want + row * (r->q_width + n_scales);
        record(r, "index.q_bytes", layer, r->q_codes + row * r->q_width, w, HX_DTYPE_U8,
               r->q_width);
        record(r, "index.q_bytes", layer, (const uint8_t *)scales->data + row * n_scales,
               w + r->q_width, HX_DTYPE_U8, n_scales);
    }
    free(want);
}

static void on_tap(void *user, const char *name, int layer, const struct hx_tensor *got)
{
    struct recorder *r = user;
    int64_t n = 1;
    for (int i = 0; i < got->n_dims; i++)
        n *= got->ne[i];
    if (strcmp(name, "index.q_codes") == 0) {
        r->q_width = got->ne[1] * got->ne[2];
        free(r->q_codes);
        r->q_codes = malloc((size_t)n);
        assert_non_null(r->q_codes);
        memcpy(r->q_codes, got->data, (size_t)n);
        return;
    }
    if (strcmp(name, "index.q_scales") == 0) {
        join_query_bytes(r, layer, got);
        return;
    }
    const struct hx_st_tensor *t;
    void *want = layer < 0
                     ? golden_get(r->golden, &t, "%s.%s.%s", r->name, r->mode, name)
                     : golden_get(r->golden, &t, "%s.%s.L%d.%s", r->name, r->mode, layer, name);
    if (!want)
        return;
    assert_int_equal(t->dtype, got->dtype);
    assert_int_equal(t->ne[0], got->ne[0]);
    if (strncmp(name, "index.", 6) == 0 && strcmp(name, "index.w") != 0) {
        record_padded(r, name, layer, got, t, want);
    } else {
        assert_int_equal(t->size, (size_t)n * hx_dtype_size(t->dtype));
        record(r, name, layer, got->data, want, t->dtype, n);
    }
    free(want);
}

/* Rows of a KV stream against the golden bytes (codes, then scales). */
static void check_rows(struct recorder *r, const char *what, int layer,
                       const struct hx_kv_stream *s)
{
    const struct hx_st_tensor *t;
    uint8_t *want =
        golden_get(r->golden, &t, "%s.%s.state.%s.%d.bytes", r->name, r->mode, what, layer);
    if (!want)
        return;
    int64_t width = s->data_bytes + s->scale_bytes;
    assert_int_equal(t->ne[1], width);
    for (int64_t j = 0; j < t->ne[0]; j++) {
        record(r, what, layer, hx_kv_row_data(s, j), want + j * width, HX_DTYPE_U8, s->data_bytes);
        record(r, what, layer, hx_kv_row_scale(s, j), want + j * width + s->data_bytes, HX_DTYPE_U8,
               s->scale_bytes);
    }
    free(want);
}

static void check_state(struct recorder *r, struct hx_rank *rank, struct hx_kv_seq *s)
{
    const struct hx_hparams *h = hx_rank_hparams(rank);
    const struct hx_maps *maps = hx_model_maps(hx_rank_model(rank));
    const struct hx_kv_view *v = hx_kv_seq_view(s);
    for (int il = 0; il < h->n_layer; il++) {
        check_rows(r, "win", il, &v->window[il]);
        if (!maps->is_kv_source[il])
            continue;
        check_rows(r, "comp", il, &v->comp[il]);
        check_rows(r, "key", il, &v->key[il]);
        const struct hx_st_tensor *t;
        float *open = golden_get(r->golden, &t, "%s.%s.state.open.%d", r->name, r->mode, il);
        if (open)
            record(r, "open", il, v->open[il] + (hx_kv_seq_len(s) - 1) % 8 * 2 * h->head_dim, open,
                   HX_DTYPE_F32, 2 * h->head_dim);
        free(open);
    }
}

/* The 24 tokens behind the prompt. */
static void check_greedy(struct recorder *r, struct hx_rank *rank, struct hx_kv_seq *s,
                         const float *last)
{
    int V = hx_rank_hparams(rank)->n_vocab;
    const struct hx_st_tensor *t;
    int32_t *want = golden_get(r->golden, &t, "%s.%s.greedy.tokens", r->name, r->mode);
    if (!want)
        return;
    float *want_logits = golden_get(r->golden, &t, "%s.%s.greedy.logits", r->name, r->mode);
    float *logits = malloc((size_t)V * 4);
    assert_non_null(logits);
    memcpy(logits, last, (size_t)V * 4);
    for (int i = 0; i < GREEDY; i++) {
        if (want_logits)
            record(r, "greedy.logits", -1, logits, want_logits + (int64_t)i * V, HX_DTYPE_F32, V);
        int32_t token = argmax(logits, V);
        assert_int_equal(token, want[i]);
        feed(rank, s, &token, 1, 1, logits);
    }
    free(logits);
    free(want_logits);
    free(want);
}

static void run_case(const char *dir, const char *file, const char *name, enum hx_mode mode,
                     bool image)
{
    struct recorder r = {.golden = golden_open(file),
                         .name = name,
                         .mode = mode == HX_MODE_W8A16 ? "w8a16" : "reference"};
    struct hx_rank *rank = rank_open(dir, mode, 160);
    const struct hx_hparams *h = hx_rank_hparams(rank);
    const struct hx_st_tensor *t;
    /* The hybrid's file does not repeat the prompts. */
    struct hx_st_file *prompts = golden_open(GOLDEN_FILE);
    int32_t *tokens = golden_get(prompts, &t, "%s.tokens", name);
    assert_non_null(tokens);
    int n = (int)t->ne[0];
    float *logits = malloc((size_t)n * (size_t)h->n_vocab * 4);
    assert_non_null(logits);
    struct hx_kv_seq *s = seq_new(rank);
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = n, .n_logits = n};
    uint8_t dead[64] = {0};
    uint16_t *embeds = NULL;
    if (image) { /* rows of the span in place of the embeddings */
        int32_t *types = golden_get(prompts, &t, "%s.types", name);
        uint16_t *span = golden_get(prompts, &t, "%s.span", name);
        embeds = calloc((size_t)n * (size_t)h->n_embd, 2);
        assert_true(types && span && embeds && n <= 64);
        for (int i = 0, at = 0; i < n; i++) {
            dead[i] = types[i] >= 0;
            if (dead[i])
                memcpy(embeds + i * h->n_embd, span + at++ * h->n_embd, (size_t)h->n_embd * 2);
        }
        q.dead = dead;
        q.embeds = embeds;
        free(types);
        free(span);
    }
    CHECK(hx_rank_step(rank, &q, 1, logits, on_tap, &r, ERR));
    float *want = golden_get(r.golden, &t, "%s.%s.logits", name, r.mode);
    assert_non_null(want);
    record(&r, "logits", -1, logits, want, HX_DTYPE_F32, (int64_t)n * h->n_vocab);
    struct compared c = compare(logits, want, HX_DTYPE_F32, (int64_t)n * h->n_vocab);
    check_greedy(&r, rank, s, logits + (int64_t)(n - 1) * h->n_vocab);
    check_state(&r, rank, s);
    print_message("%s %s: %lld arrays, %lld of %lld values equal; logits relative RMS %.3g; "
                  "worst %.3g (%s); first drift: %s\n",
                  name, r.mode, (long long)r.n_arrays, (long long)r.n_equal, (long long)r.n_values,
                  c.rel_rms, r.worst_rms, r.worst[0] ? r.worst : "none",
                  r.drift[0] ? r.drift : "none");
    assert_true(r.n_arrays > 10);
    /* Choices and bytes must be equal; with correctly rounded double functions floats are too. */
    assert_false(r.choice_differs);
    assert_true(c.rel_rms <= 1e-3 && r.worst_rms <= 1e-3);
    assert_int_equal(r.n_equal, r.n_values);
    hx_kv_seq_free(s);
    hx_rank_close(rank);
    hx_st_close(r.golden);
    hx_st_close(prompts);
    free(tokens);
    free(r.q_codes);
    free(logits);
    free(want);
    free(embeds);
}

struct golden_case {
    const char *name;
    enum hx_mode mode;
    bool image, hybrid;
};

static void test_case(void **state)
{
    const struct golden_case *c = *state;
    char dir[64] = MODEL_DIR;
    if (c->hybrid)
        hybrid_make(dir);
    run_case(dir, c->hybrid ? HYBRID_FILE : GOLDEN_FILE, c->name, c->mode, c->image);
    if (c->hybrid)
        hybrid_remove(dir);
}

int main(void)
{
    static struct golden_case cases[] = {
        {"p1", HX_MODE_W8A16, false, false},      {"p17", HX_MODE_W8A16, false, false},
        {"p97", HX_MODE_W8A16, false, false},     {"pimg", HX_MODE_W8A16, true, false},
        {"p1", HX_MODE_REFERENCE, false, false},  {"p17", HX_MODE_REFERENCE, false, false},
        {"p97", HX_MODE_REFERENCE, false, false}, {"pimg", HX_MODE_REFERENCE, true, false},
        {"p1", HX_MODE_W8A16, false, true},       {"p17", HX_MODE_W8A16, false, true},
        {"p97", HX_MODE_W8A16, false, true},
    };
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct CMUnitTest tests[N];
    char names[N][48];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "%s_%s%s", cases[i].name,
                 cases[i].mode == HX_MODE_W8A16 ? "w8a16" : "reference",
                 cases[i].hybrid ? "_exl3" : "");
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_case, .initial_state = &cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
