/* The drafter against golden data: context rows, the first block value by value, and the
 * speculative loop with and without the gate. */
#include "backend/cpu/numerics.h"
#include "golden.h"
#include "run/draft.h"

#define TEXT 24

struct block {
    struct hx_st_file *golden;
    const char *prefix; /* "p17.w8a16.draft0" */
    int n_layer;
    int n_seen;
    int64_t n_values, n_equal;
    char drift[200];
    uint8_t codes[8 * 256];
};

static void compare_array(struct block *b, const char *what, const void *got, enum hx_dtype dtype,
                          int64_t n, int64_t skip)
{
    const struct hx_st_tensor *t;
    uint8_t *want = golden_get(b->golden, &t, "%s.%s", b->prefix, what);
    if (!want)
        return;
    assert_int_equal(t->dtype, dtype);
    struct compared c = compare(got, want + (size_t)skip * hx_dtype_size(dtype), dtype, n);
    b->n_seen++;
    b->n_values += n;
    b->n_equal += n - c.n_different;
    if (c.n_different && !b->drift[0])
        snprintf(b->drift, sizeof(b->drift), "%s: %lld of %lld differ, relative RMS %.3g", what,
                 (long long)c.n_different, (long long)n, c.rel_rms);
    free(want);
}

/* Rows of the block are recorded as values; the drafter keeps codes and scales. */
static void compare_block_rows(struct block *b, int layer, const struct hx_tensor *scales)
{
    int n = (int)scales->ne[0], d = (int)scales->ne[1] * 32;
    uint16_t *row = malloc((size_t)d * 2);
    float *value = malloc((size_t)d * sizeof(*value));
    assert_true(row && value);
    for (int i = 0; i < n; i++) {
        hx_dequant_fp8_b32(b->codes + i * d, (const uint8_t *)scales->data + i * (d / 32), d,
                           value);
        for (int c = 0; c < d; c++)
            row[c] = hx_bf16(value[c]);
        compare_array(b, "block_rows", row, HX_DTYPE_BF16, d, (int64_t)(layer * n + i) * d);
    }
    free(value);
    free(row);
}

static void on_tap(void *user, const char *name, int layer, const struct hx_tensor *got)
{
    struct block *b = user;
    char what[64];
    int64_t n = 1;
    for (int i = 0; i < got->n_dims; i++)
        n *= got->ne[i];
    if (strcmp(name, "block_codes") == 0) {
        assert_true((size_t)n <= sizeof(b->codes));
        memcpy(b->codes, got->data, (size_t)n);
    } else if (strcmp(name, "block_scales") == 0) {
        compare_block_rows(b, layer - b->n_layer, got);
    } else {
        if (layer < 0)
            snprintf(what, sizeof(what), "%s", name);
        else
            snprintf(what, sizeof(what), "M%d.%s", layer - b->n_layer, name);
        compare_array(b, what, got->data, got->dtype, n, 0);
    }
}

static void check_context(const struct hx_st_file *golden, const char *name, const char *mode,
                          const struct hx_hparams *h, struct hx_kv_seq *s)
{
    const struct hx_kv_view *v = hx_kv_seq_view(s);
    for (int m = 0; m < h->n_draft_layer; m++) {
        const struct hx_kv_stream *ring = &v->window[h->n_layer + m];
        const struct hx_st_tensor *t;
        uint8_t *want = golden_get(golden, &t, "%s.%s.draft_ctx.%d.bytes", name, mode, m);
        assert_non_null(want);
        int64_t width = ring->data_bytes + ring->scale_bytes;
        assert_int_equal(t->ne[1], width);
        for (int64_t j = 0; j < t->ne[0]; j++) {
            assert_memory_equal(hx_kv_row_data(ring, j), want + j * width,
                                (size_t)ring->data_bytes);
            assert_memory_equal(hx_kv_row_scale(ring, j), want + j * width + ring->data_bytes,
                                (size_t)ring->scale_bytes);
        }
        free(want);
    }
}

struct spec {
    const struct hx_st_file *golden;
    const char *run; /* "p17.w8a16.spec" */
};

static int32_t *spec_ints(const struct spec *s, const char *what, int64_t *n)
{
    const struct hx_st_tensor *t;
    int32_t *v = golden_get(s->golden, &t, "%s.%s", s->run, what);
    assert_non_null(v);
    *n = t->ne[0];
    return v;
}

/* Drafts, verifies and takes back as in the recorded run. */
static void follow(struct hx_rank *rank, struct hx_kv_seq *s, int32_t anchor,
                   const struct spec *spec, double gate)
{
    const struct hx_hparams *h = hx_rank_hparams(rank);
    const struct hx_st_tensor *t;
    int B = h->draft_block, V = h->n_vocab;
    int64_t n_step, n;
    int32_t *position = spec_ints(spec, "position", &n_step),
            *anchors = spec_ints(spec, "anchor", &n), *drafts = spec_ints(spec, "drafts", &n),
            *submitted = spec_ints(spec, "submitted", &n),
            *accepted = spec_ints(spec, "accepted", &n), *text = spec_ints(spec, "tokens", &n),
            token[17], got[16];
    float *want_z = golden_get(spec->golden, &t, "%s.conf.z", spec->run), z[16];
    float *logits = malloc((size_t)(B + 1) * (size_t)V * sizeof(*logits));
    int n_text = 1;
    assert_true(want_z && logits && B <= 16 && n == TEXT);
    assert_int_equal(anchor, text[0]);
    for (int64_t i = 0; i < n_step; i++) {
        assert_int_equal(hx_kv_seq_len(s), position[i]);
        assert_int_equal(anchor, anchors[i]);
        CHECK(hx_rank_draft(rank, &s, &anchor, 1, got, z, NULL, NULL, ERR));
        assert_memory_equal(got, drafts + i * B, (size_t)B * 4);
        assert_memory_equal(z, want_z + i * B, (size_t)B * 4);
        int n_draft = hx_draft_gate(z, B, gate), keep = 1;
        assert_int_equal(n_draft, submitted[i]);
        token[0] = anchor;
        memcpy(token + 1, got, (size_t)n_draft * 4);
        struct hx_step_seq q = {.kv = s,
                                .tokens = token,
                                .n_tok = 1 + n_draft,
                                .n_logits = 1 + n_draft,
                                .n_draft = n_draft};
        CHECK(hx_rank_step(rank, &q, 1, logits, NULL, NULL, ERR));
        for (int row = 0;; row++) {
            anchor = argmax(logits + (int64_t)row * V, V);
            if (n_text < TEXT)
                assert_int_equal(anchor, text[n_text]);
            n_text++;
            if (row == n_draft || anchor != got[row])
                break;
            keep++;
        }
        assert_int_equal(keep - 1, accepted[i]);
        if (n_draft > 0)
            CHECK(hx_rank_accept(rank, &q, 1, &keep, ERR));
    }
    assert_true(n_text >= TEXT);
    free(position);
    free(anchors);
    free(drafts);
    free(submitted);
    free(accepted);
    free(text);
    free(want_z);
    free(logits);
}

struct golden_case {
    const char *name;
    enum hx_mode mode;
    bool hybrid;
};

static void run_case(const char *dir, const char *file, const struct golden_case *c)
{
    const char *mode = c->mode == HX_MODE_W8A16 ? "w8a16" : "reference";
    struct hx_st_file *golden = golden_open(file), *prompts = golden_open(GOLDEN_FILE);
    struct hx_rank *rank = rank_open(dir, c->mode, 160);
    const struct hx_hparams *h = hx_rank_hparams(rank);
    const struct hx_st_tensor *t;
    int32_t *prompt = golden_get(prompts, &t, "%s.tokens", c->name), anchor;
    int n = (int)t->ne[0];
    float *logits = malloc((size_t)h->n_vocab * sizeof(*logits));
    assert_true(prompt && logits);
    for (int gated = 0; gated < 2; gated++) {
        struct hx_kv_seq *s = seq_new(rank);
        feed(rank, s, prompt, n, 1, logits);
        anchor = argmax(logits, h->n_vocab);
        check_context(golden, c->name, mode, h, s);
        char name[80];
        snprintf(name, sizeof(name), "%s.%s.draft0", c->name, mode);
        if (!gated) {
            struct block b = {.golden = golden, .prefix = name, .n_layer = h->n_layer};
            int32_t *want = golden_get(golden, &t, "%s.tokens", name), got[16];
            float z[16];
            CHECK(hx_rank_draft(rank, &s, &anchor, 1, got, z, on_tap, &b, ERR));
            print_message("%s: %d arrays, %lld of %lld values equal; first drift: %s\n", name,
                          b.n_seen, (long long)b.n_equal, (long long)b.n_values,
                          b.drift[0] ? b.drift : "none");
            assert_true(want && b.n_seen >= 20);
            assert_int_equal(b.n_equal, b.n_values);
            assert_memory_equal(got, want, (size_t)h->draft_block * 4);
            free(want);
        }
        snprintf(name, sizeof(name), "%s.%s.%s", c->name, mode, gated ? "spec_gated" : "spec");
        follow(rank, s, anchor, &(struct spec){golden, name}, gated ? 0.10 : 0.0);
        hx_kv_seq_free(s);
    }
    free(prompt);
    free(logits);
    hx_rank_close(rank);
    hx_st_close(golden);
    hx_st_close(prompts);
}

static void test_case(void **state)
{
    const struct golden_case *c = *state;
    char dir[64] = MODEL_DIR;
    if (c->hybrid)
        hybrid_make(dir);
    run_case(dir, c->hybrid ? HYBRID_FILE : GOLDEN_FILE, c);
    if (c->hybrid)
        hybrid_remove(dir);
}

static void test_gate(void **state)
{
    (void)state;
    const float z[] = {0, 0, 4, -9, 9}; /* sigmoid: 0.5, 0.5, 0.982, 0.0001, 0.9999 */
    assert_int_equal(hx_draft_gate(z, 5, 0), 5);
    assert_int_equal(hx_draft_gate(z, 5, 0.1), 3);
    assert_int_equal(hx_draft_gate(z, 5, 0.25), 2);
    assert_int_equal(hx_draft_gate(z, 5, 0.3), 1);
    assert_int_equal(hx_draft_gate(z, 5, 0.6), 0);
    assert_int_equal(hx_draft_gate(z, 2, 0.1), 2);
}

int main(void)
{
    static struct golden_case cases[] = {
        {"p1", HX_MODE_W8A16, false},      {"p17", HX_MODE_W8A16, false},
        {"p97", HX_MODE_W8A16, false},     {"p1", HX_MODE_REFERENCE, false},
        {"p17", HX_MODE_REFERENCE, false}, {"p97", HX_MODE_REFERENCE, false},
        {"p1", HX_MODE_W8A16, true},       {"p17", HX_MODE_W8A16, true},
        {"p97", HX_MODE_W8A16, true},
    };
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct CMUnitTest tests[N + 1] = {[N] = cmocka_unit_test(test_gate)};
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
