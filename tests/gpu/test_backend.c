/* The CUDA back end against the CPU one on the tiny model: every named value of a pass, KV rows,
 * greedy and drafted text, chunks, long contexts, repeated steps. The folder of the model is the
 * test's own folder plus "model" (make gpu-kit puts it there). */
#include "tiny.h"

#include <time.h>

/* ---- recorded values ---- */

struct value {
    char name[40];
    int layer;
    enum hx_dtype dtype;
    int64_t n;
    void *data;
};

struct record {
    struct value *v;
    int n, room;
    /* comparing: */
    const struct record *want;
    int at, n_different;
    int64_t n_values, n_equal;
    double worst_activation, worst_coefficient;
    char first[160], broken[160];
};

static void keep(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct record *r = user;
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        r->v = realloc(r->v, (size_t)r->room * sizeof(*r->v));
        assert_non_null(r->v);
    }
    struct value *v = &r->v[r->n++];
    snprintf(v->name, sizeof(v->name), "%s", name);
    v->layer = layer;
    v->dtype = t->dtype;
    v->n = 1;
    for (int i = 0; i < t->n_dims; i++)
        v->n *= t->ne[i];
    size_t size = (size_t)v->n * hx_dtype_size(t->dtype);
    v->data = malloc(size ? size : 1);
    assert_non_null(v->data);
    read_value(v->data, t, size);
}

static void record_free(struct record *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->v[i].data);
    free(r->v);
}

/* One array against the CPU's. */
static void compare(struct record *r, const struct value *got, const struct value *want)
{
    size_t size = hx_dtype_size(want->dtype);
    int64_t unequal = 0, first = -1;
    assert_string_equal(got->name, want->name);
    assert_int_equal(got->layer, want->layer);
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->dtype, want->dtype);
    bool floats = want->dtype == HX_DTYPE_BF16 || want->dtype == HX_DTYPE_F32;
    for (int64_t i = 0; i < want->n; i++) {
        if (memcmp((char *)got->data + (size_t)i * size, (char *)want->data + (size_t)i * size,
                   size) != 0) {
            unequal++;
            first = first < 0 ? i : first;
        }
    }
    r->n_values += want->n;
    r->n_equal += want->n - unequal;
    if (!unequal)
        return;
    double rms = floats ? distance(want->dtype, got->data, want->data, want->n) : 0;
    if (!r->first[0])
        snprintf(r->first, sizeof(r->first),
                 "layer %d, %s: %lld of %lld differ from %lld on, relative "
                 "RMS %.2g",
                 want->layer, want->name, (long long)unequal, (long long)want->n, (long long)first,
                 rms);
    if (!floats) { /* choices: rows, experts, blocks; codes may differ where a value did */
        if (strstr(want->name, "codes") == NULL && strstr(want->name, "scales") == NULL)
            snprintf(r->broken, sizeof(r->broken), "layer %d, %s: %lld of %lld differ", want->layer,
                     want->name, (long long)unequal, (long long)want->n);
        return;
    }
    double *worst = want->dtype == HX_DTYPE_F32 ? &r->worst_coefficient : &r->worst_activation;
    *worst = rms > *worst ? rms : *worst;
}

static void compare_all(struct record *got, const struct record *want)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++)
        compare(got, &got->v[i], &want->v[i]);
}

/* ---- tests ---- */

struct pass_case {
    const char *dir, *backend;
    int n_tok;
    const char *golden; /* recorded case instead of n_tok tokens, or NULL */
};

/* Tokens of a case, rows of an image in place of the embeddings if it has one. Prompts are those of
 * the model itself. */
static int32_t *load_case(const struct pass_case *c, struct hx_step_seq *q, int width)
{
    int64_t n = c->n_tok, unused = 0;
    int32_t *t = c->golden ? golden_get(MODEL, &n, c->golden, "tokens") : malloc((size_t)n * 4);
    int32_t *types = c->golden ? golden_get(MODEL, &unused, c->golden, "types") : NULL;
    uint16_t *span = c->golden ? golden_get(MODEL, &unused, c->golden, "span") : NULL;
    assert_non_null(t);
    if (!c->golden)
        make_prompt(t, (int)n, (int)n);
    *q = (struct hx_step_seq){.tokens = t, .n_tok = (int)n, .n_logits = (int)n};
    if (types && span) {
        uint8_t *dead = calloc((size_t)n, 1);
        uint16_t *embeds = calloc((size_t)(n * width), 2);
        assert_true(dead && embeds);
        for (int i = 0, at = 0; i < n; i++) {
            dead[i] = types[i] >= 0;
            if (dead[i])
                memcpy(embeds + (int64_t)i * width, span + (int64_t)at++ * width,
                       (size_t)width * 2);
        }
        q->dead = dead;
        q->embeds = embeds;
    }
    free(types);
    free(span);
    return t;
}

/* The recorded logits, and the recorded continuation fed token by token. */
static void check_golden(const struct pass_case *c, struct hx_rank *gpu, struct hx_kv_seq *s,
                         const float *logits, int n, double bound, bool exact)
{
    int64_t rows = 0, greedy = 0, V = hx_rank_hparams(gpu)->n_vocab;
    float *want = golden_get(c->dir, &rows, c->golden, "w8a16.logits");
    int32_t *t = golden_get(c->dir, &greedy, c->golden, "w8a16.greedy.tokens");
    float *row = malloc((size_t)V * 4);
    int agree = 0;
    assert_true(want && row && rows == n);
    double rms = distance(HX_DTYPE_F32, logits, want, n * V);
    memcpy(row, logits + (n - 1) * V, (size_t)V * 4);
    for (int i = 0; t && i < greedy; i++) {
        agree += best(row, (int)V) == t[i];
        step(gpu, s, &t[i], 1, 1, row);
    }
    print_message("%s, %s, golden %s: logits %.2g, %d of %lld greedy tokens\n", c->dir, c->backend,
                  c->golden, rms, agree, (long long)(t ? greedy : 0));
    assert_true(rms <= bound);
    assert_true(agree >= (t ? greedy * (exact ? 100 : 90) / 100 : 0));
    free(want);
    free(t);
    free(row);
}

/* 24 greedy tokens behind the logits of both. */
static void same_greedy_text(struct hx_rank *cpu, struct hx_kv_seq *sc, struct hx_rank *gpu,
                             struct hx_kv_seq *sg, float *a, float *b)
{
    int V = hx_rank_hparams(cpu)->n_vocab;
    int32_t x = best(a, V), y = best(b, V);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(x, y);
        step(cpu, sc, &x, 1, 1, a);
        step(gpu, sg, &y, 1, 1, b);
        x = best(a, V);
        y = best(b, V);
    }
}

/* Every named value of a prefill, the logits of every row, 24 greedy tokens. */
static void test_pass(void **state)
{
    const struct pass_case *c = *state;
    struct hx_rank *cpu = open_rank(c->dir, "cpu"), *gpu = open_rank(c->dir, c->backend);
    int V = hx_rank_hparams(cpu)->n_vocab;
    struct record want = {0}, got = {0};
    struct hx_step_seq q;
    int32_t *t = load_case(c, &q, hx_rank_hparams(cpu)->n_embd);
    int n = q.n_tok;
    float *a = malloc((size_t)n * (size_t)V * 4), *b = malloc((size_t)n * (size_t)V * 4);
    struct hx_kv_seq *sc = new_seq(cpu), *sg = new_seq(gpu);
    assert_true(a && b);
    q.kv = sc;
    CHECK(hx_rank_step(cpu, &q, 1, a, keep, &want, ERR));
    q.kv = sg;
    CHECK(hx_rank_step(gpu, &q, 1, b, keep, &got, ERR));
    compare_all(&got, &want);
    double rms = distance(HX_DTYPE_F32, b, a, (int64_t)n * V);
    bool exact = strcmp(c->backend, "cuda-exact") == 0;
    int agree = 0;
    for (int i = 0; i < n; i++)
        agree += best(a + (int64_t)i * V, V) == best(b + (int64_t)i * V, V);
    print_message(
        "%s, %s, %d tokens: %lld of %lld values equal; worst activation %.2g, coefficient %.2g, "
        "logits %.2g, best token equal in %d rows; first drift: %s\n",
        c->dir, c->backend, n, (long long)got.n_equal, (long long)got.n_values,
        got.worst_activation, got.worst_coefficient, rms, agree, got.first[0] ? got.first : "none");
    if (exact) {
        if (got.broken[0])
            fail_msg("%s", got.broken);
        assert_true(got.worst_activation <= ACTIVATION);
        assert_true(got.worst_coefficient <= COEFFICIENT);
    }
    assert_true(rms <= (exact ? MAX_LOGITS : MAX_WHOLE));
    assert_true(agree >= n * 93 / 100);
    if (c->golden)
        check_golden(c, gpu, sg, b, n, exact ? MAX_LOGITS : MAX_WHOLE, exact);
    else if (exact)
        same_greedy_text(cpu, sc, gpu, sg, a + (int64_t)(n - 1) * V, b + (int64_t)(n - 1) * V);
    record_free(&want);
    record_free(&got);
    free((void *)(uintptr_t)q.dead);
    free((void *)(uintptr_t)q.embeds);
    free(t);
    free(a);
    free(b);
    hx_kv_seq_free(sc);
    hx_kv_seq_free(sg);
    hx_rank_close(cpu);
    hx_rank_close(gpu);
}

/* Whole, in chunks, token by token, beside others: the same bits on the card. */
static void test_chunks(void **state)
{
    const char *dir = *state;
    struct hx_rank *gpu = open_rank(dir, "cuda");
    int V = hx_rank_hparams(gpu)->n_vocab, n = 97;
    int32_t t[97];
    float *want = malloc((size_t)V * 4), *got = malloc(8 * (size_t)V * 4);
    make_prompt(t, n, 5);
    struct hx_kv_seq *s = new_seq(gpu);
    step(gpu, s, t, n, 1, want);
    hx_kv_seq_free(s);
    static const int sizes[] = {1, 2, 7, 32, 96};
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        s = new_seq(gpu);
        for (int at = 0; at < n; at += sizes[k])
            step(gpu, s, t + at, n - at < sizes[k] ? n - at : sizes[k], 1, got);
        if (memcmp(got, want, (size_t)V * 4) != 0)
            fail_msg("chunks of %d: relative RMS %.3g", sizes[k],
                     distance(HX_DTYPE_F32, got, want, V));
        hx_kv_seq_free(s);
    }
    struct hx_kv_seq *all[8];
    struct hx_step_seq q[8];
    for (int i = 0; i < 8; i++) {
        all[i] = new_seq(gpu);
        step(gpu, all[i], t, n - 1 - 3 * i, 0, NULL);
        if (i > 0)
            step(gpu, all[i], t + n - 1 - 3 * i, 3 * i, 0, NULL);
        q[i] = (struct hx_step_seq){.kv = all[i], .tokens = t + n - 1, .n_tok = 1, .n_logits = 1};
    }
    CHECK(hx_rank_step(gpu, q, 8, got, NULL, NULL, ERR));
    for (int i = 0; i < 8; i++) {
        if (memcmp(got + (int64_t)i * V, want, (size_t)V * 4) != 0)
            fail_msg("row %d of 8: relative RMS %.3g", i,
                     distance(HX_DTYPE_F32, got + (int64_t)i * V, want, V));
        hx_kv_seq_free(all[i]);
    }
    free(want);
    free(got);
    hx_rank_close(gpu);
}

/* Drafts, acceptance and what is taken back: the text of plain decoding. */
static void test_drafts(void **state)
{
    const char *dir = *state;
    struct hx_rank *cpu = open_rank(dir, "cpu"), *gpu = open_rank(dir, "cuda");
    const struct hx_hparams *h = hx_rank_hparams(gpu);
    int V = h->n_vocab, B = h->draft_block, accepted = 0, blocks = 0, same = 0;
    float *logits = malloc(8 * (size_t)V * 4), z[16], zc[16];
    int32_t t[40], drafts[16], of_cpu[16], plain[100];
    for (int p = 0; p < 20; p++) {
        make_prompt(t, 40, p + 1);
        struct hx_kv_seq *s = new_seq(gpu), *sc = new_seq(cpu);
        step(gpu, s, t, 40, 1, logits);
        step(cpu, sc, t, 40, 0, NULL);
        int32_t anchor = best(logits, V);
        CHECK(hx_rank_draft(gpu, &s, &anchor, 1, drafts, z, NULL, NULL, ERR));
        CHECK(hx_rank_draft(cpu, &sc, &anchor, 1, of_cpu, zc, NULL, NULL, ERR));
        for (int k = 0; k < B; k++)
            same += drafts[k] == of_cpu[k];
        for (int i = 0; i < 100; i++) {
            plain[i] = anchor;
            step(gpu, s, &anchor, 1, 1, logits);
            anchor = best(logits, V);
        }
        hx_kv_seq_free(s);
        hx_kv_seq_free(sc);
        s = new_seq(gpu);
        step(gpu, s, t, 40, 1, logits);
        int n = 1;
        for (anchor = best(logits, V); n < 100;) {
            int32_t row[17];
            int keep_rows = 1;
            CHECK(hx_rank_draft(gpu, &s, &anchor, 1, drafts, z, NULL, NULL, ERR));
            row[0] = anchor;
            memcpy(row + 1, drafts, (size_t)B * 4);
            struct hx_step_seq q = {
                .kv = s, .tokens = row, .n_tok = 1 + B, .n_logits = 1 + B, .n_draft = B};
            CHECK(hx_rank_step(gpu, &q, 1, logits, NULL, NULL, ERR));
            for (int i = 0;; i++) {
                anchor = best(logits + (int64_t)i * V, V);
                if (n < 100 && anchor != plain[n])
                    fail_msg("prompt %d, token %d: %d with drafts, %d without", p, n, anchor,
                             plain[n]);
                n++;
                if (i == B || anchor != drafts[i])
                    break;
                keep_rows++;
            }
            accepted += keep_rows - 1;
            blocks++;
            CHECK(hx_rank_accept(gpu, &q, 1, &keep_rows, ERR));
        }
        hx_kv_seq_free(s);
    }
    print_message("%s: %d blocks, %d drafts stayed; first blocks: %d of %d drafts as the CPU's\n",
                  dir, blocks, accepted, same, 20 * B);
    assert_true(accepted > 0);
    assert_true(same >= 20 * B * 93 / 100);
    free(logits);
    hx_rank_close(cpu);
    hx_rank_close(gpu);
}

/* The same step again and again: the same bits. Queued, then recorded, then replayed. */
static void repeat(struct hx_rank *gpu, int n)
{
    int V = hx_rank_hparams(gpu)->n_vocab;
    float *want = malloc(6 * (size_t)V * 4), *got = malloc(6 * (size_t)V * 4);
    int32_t t[60];
    make_prompt(t, 60, 9);
    struct hx_kv_seq *s = new_seq(gpu);
    step(gpu, s, t, 54, 0, NULL);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < n; i++) {
        step(gpu, s, t + 54, 6, 6, i ? got : want);
        if (i && memcmp(got, want, 6 * (size_t)V * 4) != 0)
            fail_msg("step %d: relative RMS %.3g", i, distance(HX_DTYPE_F32, got, want, 6 * V));
        CHECK(hx_kv_seq_truncate(s, 54, ERR));
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    print_message("%d steps of 6 rows: the same bits, %.2f ms each\n", n,
                  ((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6) /
                      n);
    free(want);
    free(got);
    hx_kv_seq_free(s);
    hx_rank_close(gpu);
}

static void test_repeats(void **state)
{
    repeat(open_rank(*state, "cuda"), 10000);
}

/* For checkers that let a replay return only at its end: without a reader of Engram rows, which the
 * card would wait for. state: NULL, or EXL3 experts instead of FP4. */
static void test_recorded(void **state)
{
    static struct hx_hparams shape;
    static uint8_t bits[HX_MAX_LAYERS];
    CHECK(hx_hparams_load(MODEL, &shape, ERR));
    memset(bits, 3, sizeof(bits));
    const struct hx_synthetic syn = {.hp = &shape, .bits = *state ? bits : NULL, .seed = 5};
    const struct hx_rank_options o = {.synthetic = &syn,
                                      .backend = "cuda",
                                      .max_tok = 64,
                                      .max_seq = 1,
                                      .drafts = true,
                                      .kv = {.block_tok = 16, .n_blocks = 16, .n_seqs = 1}};
    struct hx_rank *r = NULL;
    int32_t t[8], drafts[16];
    float z[16], *logits = malloc((size_t)shape.n_vocab * 4);
    assert_non_null(logits);
    CHECK(hx_rank_open(&o, &r, ERR));
    make_prompt(t, 8, 1);
    struct hx_kv_seq *s = new_seq(r);
    for (int k = 0; k < 3; k++) {
        step(r, s, t + k, 1, 1, logits);
        CHECK(hx_rank_draft(r, &s, t + k + 1, 1, drafts, z, NULL, NULL, ERR));
    }
    hx_kv_seq_free(s);
    free(logits);
    repeat(r, 3);
}

int main(int argc, char **argv)
{
    static char model[] = MODEL, hybrid[] = HYBRID;
    static const struct pass_case cases[] = {
        {MODEL, "cuda-exact", 0, "p1"},    {MODEL, "cuda-exact", 0, "p17"},
        {MODEL, "cuda-exact", 0, "p97"},   {MODEL, "cuda-exact", 0, "pimg"},
        {HYBRID, "cuda-exact", 0, "p1"},   {HYBRID, "cuda-exact", 0, "p17"},
        {HYBRID, "cuda-exact", 0, "p97"},  {MODEL, "cuda-exact", 97, NULL},
        {HYBRID, "cuda-exact", 97, NULL},  {MODEL, "cuda-exact", 400, NULL},
        {HYBRID, "cuda-exact", 400, NULL}, {MODEL, "cuda", 0, "p1"},
        {MODEL, "cuda", 0, "p17"},         {MODEL, "cuda", 0, "p97"},
        {MODEL, "cuda", 0, "pimg"},        {HYBRID, "cuda", 0, "p1"},
        {HYBRID, "cuda", 0, "p17"},        {HYBRID, "cuda", 0, "p97"},
        {MODEL, "cuda", 97, NULL},         {HYBRID, "cuda", 97, NULL},
        {MODEL, "cuda", 400, NULL},        {HYBRID, "cuda", 400, NULL},
    };
    enum { N = sizeof(cases) / sizeof(cases[0]), MORE = 7 };
    struct CMUnitTest tests[N + MORE] = {
        {"chunks", test_chunks, NULL, NULL, model},
        {"chunks_exl3", test_chunks, NULL, NULL, hybrid},
        {"drafts", test_drafts, NULL, NULL, model},
        {"drafts_exl3", test_drafts, NULL, NULL, hybrid},
        {"repeats", test_repeats, NULL, NULL, hybrid},
        {"recorded", test_recorded, NULL, NULL, NULL},
        {"recorded_exl3", test_recorded, NULL, NULL, hybrid},
    };
    static char names[N][64];
    for (int i = 0; i < N; i++) {
        const struct pass_case *c = &cases[i];
        char n[16];
        snprintf(n, sizeof(n), "%d", c->n_tok);
        snprintf(names[i], sizeof(names[i]), "pass_%s_%s_%s", c->dir, c->backend,
                 c->golden ? c->golden : n);
        tests[MORE + i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_pass, .initial_state = (void *)(uintptr_t)c};
    }
    return run_group("backend", tests, N + MORE, NULL, NULL, argc, argv);
}
