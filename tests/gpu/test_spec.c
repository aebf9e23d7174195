/* Recorded speculative runs of the tiny model on the card, by the plain kernels: rows of the
 * drafter's context, every block of drafts with its confidences, what was submitted and accepted,
 * and the text, with and without the gate. All of it to the bit; blocks of drafts are recorded
 * graphs from the second one on. */
#include "tiny.h"

#define TEXT 24

/* An array of the run "name.w8a16.run". */
static void *of_run(const char *dir, const char *name, const char *run, const char *what,
                    int64_t *n)
{
    char full[64];
    snprintf(full, sizeof(full), "w8a16.%s.%s", run, what);
    void *p = golden_get(dir, n, name, full);
    assert_non_null(p);
    return p;
}

/* Rows of a stream are in the card's memory. */
static void check_context(const char *dir, const char *name, struct hx_rank *r, struct hx_kv_seq *s)
{
    const struct hx_hparams *h = hx_rank_hparams(r);
    for (int m = 0; m < h->n_draft_layer; m++) {
        const struct hx_kv_stream *ring = &hx_kv_seq_view(s)->window[h->n_layer + m];
        size_t codes = (size_t)ring->data_bytes, scales = (size_t)ring->scale_bytes;
        char what[32];
        int64_t n = 0;
        snprintf(what, sizeof(what), "%d.bytes", m);
        uint8_t *want = of_run(dir, name, "draft_ctx", what, &n), *row = malloc(codes + scales);
        assert_non_null(row);
        for (int64_t j = 0; j < n; j++) {
            struct hx_tensor data = {.data = hx_kv_row_data(ring, j)},
                             scale = {.data = hx_kv_row_scale(ring, j)};
            read_value(row, &data, codes);
            read_value(row + codes, &scale, scales);
            assert_memory_equal(row, want + (size_t)j * (codes + scales), codes + scales);
        }
        free(want);
        free(row);
    }
}

/* Drafts, verifies and takes back as in the recorded run. */
static void follow(const char *dir, const char *name, const char *run, double gate,
                   struct hx_rank *r, struct hx_kv_seq *s, int32_t anchor)
{
    int B = hx_rank_hparams(r)->draft_block, V = hx_rank_hparams(r)->n_vocab, n_text = 1;
    int64_t n_step = 0, n = 0;
    int32_t *position = of_run(dir, name, run, "position", &n_step),
            *anchors = of_run(dir, name, run, "anchor", &n),
            *drafts = of_run(dir, name, run, "drafts", &n),
            *submitted = of_run(dir, name, run, "submitted", &n),
            *accepted = of_run(dir, name, run, "accepted", &n),
            *text = of_run(dir, name, run, "tokens", &n), token[17], got[16];
    float *want_z = of_run(dir, name, run, "conf.z", &n), z[16];
    float *logits = malloc((size_t)(B + 1) * (size_t)V * sizeof(*logits));
    assert_true(logits && B <= 16 && n_step > 2);
    assert_int_equal(anchor, text[0]);
    for (int64_t i = 0; i < n_step; i++) {
        assert_int_equal(hx_kv_seq_len(s), position[i]);
        assert_int_equal(anchor, anchors[i]);
        CHECK(hx_rank_draft(r, &s, &anchor, 1, got, z, NULL, NULL, ERR));
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
        CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
        for (int row = 0;; row++) {
            anchor = best(logits + (int64_t)row * V, V);
            if (n_text < TEXT)
                assert_int_equal(anchor, text[n_text]);
            n_text++;
            if (row == n_draft || anchor != got[row])
                break;
            keep++;
        }
        assert_int_equal(keep - 1, accepted[i]);
        if (n_draft > 0)
            CHECK(hx_rank_accept(r, &q, 1, &keep, ERR));
    }
    print_message("%s, %s, %s: %lld blocks, %d tokens\n", dir, name, run, (long long)n_step,
                  n_text);
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

struct spec_case {
    const char *dir, *name;
};

static void test_spec(void **state)
{
    const struct spec_case *c = *state;
    struct hx_rank *r = open_rank(c->dir, "cuda-exact");
    int V = hx_rank_hparams(r)->n_vocab;
    int64_t n = 0;
    int32_t *prompt = golden_get(MODEL, &n, c->name, "tokens");
    float *logits = malloc((size_t)V * 4);
    assert_true(prompt && logits);
    for (int gated = 0; gated < 2; gated++) {
        struct hx_kv_seq *s = new_seq(r);
        step(r, s, prompt, (int)n, 1, logits);
        check_context(c->dir, c->name, r, s);
        follow(c->dir, c->name, gated ? "spec_gated" : "spec", gated ? 0.10 : 0, r, s,
               best(logits, V));
        hx_kv_seq_free(s);
    }
    free(prompt);
    free(logits);
    hx_rank_close(r);
}

int main(int argc, char **argv)
{
    static struct spec_case cases[] = {{MODEL, "p1"},  {MODEL, "p17"},  {MODEL, "p97"},
                                       {HYBRID, "p1"}, {HYBRID, "p17"}, {HYBRID, "p97"}};
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct CMUnitTest tests[N];
    static char names[N][48];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "%s_%s", cases[i].dir, cases[i].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_spec, .initial_state = &cases[i]};
    }
    return run_group("spec", tests, N, NULL, NULL, argc, argv);
}
