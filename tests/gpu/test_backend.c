/* The CUDA back end against the CPU one on the tiny model: every named value of a pass, KV rows,
 * greedy and drafted text, chunks, long contexts, repeated steps. The folder of the model is the
 * test's own folder plus "model" (make gpu-kit puts it there). */
#include "gpu.h"

#include <time.h>

#include <cuda_runtime_api.h>

#include "run/draft.h"
#include "run/rank.h"

#define MODEL  "model"
#define HYBRID "model_exl3"

/* Bounds of logits, relative RMS (docs/numerics.md, "Other back ends"). */
#define MAX_LOGITS 5e-3
#define MAX_WHOLE  0.06 /* fast kernels, whole model: choices that differ move everything behind */

static struct hx_rank *open_rank(const char *dir, const char *backend)
{
    struct hx_rank_options o = {
        .model_dir = dir,
        .backend = backend,
        .mode = HX_MODE_W8A16,
        .max_tok = 1024,
        .max_seq = 8,
        .max_context = 2048,
        .drafts = true,
        .kv = {.block_tok = 16, .ring_tok = 160, .n_blocks = 512, .n_seqs = 9, .n_snapshots = 4},
    };
    struct hx_rank *r = NULL;
    CHECK(hx_rank_open(&o, &r, ERR));
    return r;
}

static void make_prompt(int32_t *t, int n, int seed)
{
    uint32_t x = (uint32_t)seed * 2654435761u + 12345u;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        t[i] = 3 + (int32_t)((x >> 8) % 470);
    }
}

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
    /* Works for host addresses too. Work is queued: wait for it. */
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(v->data, t->data, size, cudaMemcpyDefault) != cudaSuccess)
        fail_msg("reading %s of layer %d: %s", name, layer, cudaGetErrorString(cudaGetLastError()));
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

static int32_t best(const float *x, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

static void step(struct hx_rank *r, struct hx_kv_seq *s, const int32_t *t, int n, int n_logits,
                 float *logits)
{
    struct hx_step_seq q = {.kv = s, .tokens = t, .n_tok = n, .n_logits = n_logits};
    CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
}

static struct hx_kv_seq *new_seq(struct hx_rank *r)
{
    struct hx_kv_seq *s = NULL;
    CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
    return s;
}

/* ---- tests ---- */

struct pass_case {
    const char *dir, *backend;
    int n_tok;
    bool image; /* rows 3 to 11 are those of an image span */
};

/* Rows in place of the embeddings, about as large. */
static void make_span(struct hx_step_seq *q, int width)
{
    uint8_t *dead = calloc((size_t)q->n_tok, 1);
    uint16_t *embeds = calloc((size_t)q->n_tok * (size_t)width, 2);
    struct hx_rng g;
    assert_true(dead && embeds && q->n_tok > 12);
    hx_rng_seed(&g, 4);
    for (int i = 3; i < 12; i++) {
        dead[i] = 1;
        for (int k = 0; k < width; k++)
            embeds[i * width + k] = bf16(normal(&g) * .05f);
    }
    q->dead = dead;
    q->embeds = embeds;
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
    int V = hx_rank_hparams(cpu)->n_vocab, n = c->n_tok;
    struct record want = {0}, got = {0};
    int32_t *t = malloc((size_t)n * 4);
    float *a = malloc((size_t)n * (size_t)V * 4), *b = malloc((size_t)n * (size_t)V * 4);
    struct hx_kv_seq *sc = new_seq(cpu), *sg = new_seq(gpu);
    make_prompt(t, n, n);
    struct hx_step_seq q = {.kv = sc, .tokens = t, .n_tok = n, .n_logits = n};
    if (c->image)
        make_span(&q, hx_rank_hparams(cpu)->n_embd);
    CHECK(hx_rank_step(cpu, &q, 1, a, keep, &want, ERR));
    q.kv = sg;
    CHECK(hx_rank_step(gpu, &q, 1, b, keep, &got, ERR));
    compare_all(&got, &want);
    double rms = distance(HX_DTYPE_F32, b, a, (int64_t)n * V);
    int agree = 0;
    for (int i = 0; i < n; i++)
        agree += best(a + (int64_t)i * V, V) == best(b + (int64_t)i * V, V);
    print_message(
        "%s, %s, %d tokens: %lld of %lld values equal; worst activation %.2g, coefficient %.2g, "
        "logits %.2g, best token equal in %d rows; first drift: %s\n",
        c->dir, c->backend, n, (long long)got.n_equal, (long long)got.n_values,
        got.worst_activation, got.worst_coefficient, rms, agree, got.first[0] ? got.first : "none");
    if (strcmp(c->backend, "cuda-exact") == 0) {
        if (got.broken[0])
            fail_msg("%s", got.broken);
        assert_true(got.worst_activation <= ACTIVATION);
        assert_true(got.worst_coefficient <= COEFFICIENT);
        assert_true(rms <= MAX_LOGITS);
        same_greedy_text(cpu, sc, gpu, sg, a + (int64_t)(n - 1) * V, b + (int64_t)(n - 1) * V);
    } else {
        assert_true(rms <= MAX_WHOLE);
        assert_true(agree >= n * 93 / 100);
    }
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

/* ---- far behind the window and all limits of choices ---- */

#define LONG 348 /* over 20 windows of 16; 12 rows of candidates, 8 chosen */

/* What was chosen for every position: rows, candidate blocks, experts. */
struct sets {
    int n, from; /* from: first position of the pass */
    struct {
        char name[24];
        int layer, width;
        int32_t *of; /* [LONG][width] */
    } set[64];
};

static void note_sets(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct sets *s = user;
    int i = 0;
    if (t->dtype != HX_DTYPE_I32 || layer < 0)
        return;
    while (i < s->n && (s->set[i].layer != layer || strcmp(s->set[i].name, name) != 0))
        i++;
    if (i == s->n) {
        assert_true(++s->n < 64);
        snprintf(s->set[i].name, sizeof(s->set[i].name), "%s", name);
        s->set[i].layer = layer;
        s->set[i].width = (int)t->ne[1];
        s->set[i].of = calloc((size_t)LONG * (size_t)t->ne[1], 4);
        assert_non_null(s->set[i].of);
    }
    assert_int_equal(t->ne[1], s->set[i].width);
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(s->set[i].of + (int64_t)s->from * t->ne[1], t->data,
                   (size_t)(t->ne[0] * t->ne[1]) * 4, cudaMemcpyDefault) != cudaSuccess)
        fail_msg("reading %s of layer %d: %s", name, layer, cudaGetErrorString(cudaGetLastError()));
}

static void sets_free(struct sets *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->set[i].of);
    *s = (struct sets){0};
}

/* The sequence of `t` in chunks, all rows and choices. */
static struct hx_kv_seq *run_chunks(struct hx_rank *r, const int32_t *t, int chunk, struct sets *s,
                                    float *logits)
{
    struct hx_kv_seq *kv = new_seq(r);
    int64_t n_vocab = hx_rank_hparams(r)->n_vocab;
    for (int at = 0; at < LONG; at += chunk) {
        int n = LONG - at < chunk ? LONG - at : chunk;
        struct hx_step_seq q = {.kv = kv, .tokens = t + at, .n_tok = n, .n_logits = n};
        s->from = at;
        CHECK(hx_rank_step(r, &q, 1, logits + at * n_vocab, note_sets, s, ERR));
    }
    return kv;
}

/* Positions at which all sets are those of `want`; the first one that differs is named. */
static int same_sets(const struct sets *got, const struct sets *want, char first[120])
{
    int n = 0;
    assert_int_equal(got->n, want->n);
    assert_true(want->n > 10);
    for (int t = 0; t < LONG; t++) {
        bool equal = true;
        for (int i = 0; i < want->n; i++) {
            int w = want->set[i].width;
            assert_string_equal(got->set[i].name, want->set[i].name);
            if (memcmp(got->set[i].of + t * w, want->set[i].of + t * w, (size_t)w * 4) == 0)
                continue;
            if (!first[0])
                snprintf(first, 120, "position %d, layer %d, %s", t, want->set[i].layer,
                         want->set[i].name);
            equal = false;
        }
        n += equal;
    }
    return n;
}

/* The short cut of a prefill, then rows taken back and computed again one by one: the bits of the
 * whole pass. */
static void same_after_cuts(struct hx_rank *r, const int32_t *t, int chunk, const float *want)
{
    int64_t n_vocab = hx_rank_hparams(r)->n_vocab;
    float *row = malloc((size_t)n_vocab * 4);
    assert_non_null(row);
    for (int back = 1; back <= 8; back += back < 4 ? 1 : 4) {
        struct hx_kv_seq *kv = new_seq(r);
        for (int at = 0; at < LONG; at += chunk) {
            int n = LONG - at < chunk ? LONG - at : chunk;
            step(r, kv, t + at, n, 1, row);
            if (memcmp(row, want + (at + n - 1) * n_vocab, (size_t)n_vocab * 4) != 0)
                fail_msg("chunks of %d, position %d: other bits", chunk, at + n - 1);
        }
        CHECK(hx_kv_seq_truncate(kv, LONG - back, ERR));
        for (int at = LONG - back; at < LONG; at++) {
            step(r, kv, t + at, 1, 1, row);
            if (memcmp(row, want + at * n_vocab, (size_t)n_vocab * 4) != 0)
                fail_msg("chunks of %d, cut by %d, position %d: other bits", chunk, back, at);
        }
        hx_kv_seq_free(kv);
    }
    free(row);
}

/* Sets and logits at every position, whatever the chunks. The plain kernels choose as the CPU does;
 * fast ones choose the same for the same inputs (test_ops), and over a whole model nearly so. */
static void test_long(void **state)
{
    static const int chunks[] = {LONG, 97, 32, 7};
    const struct pass_case *c = *state;
    struct hx_rank *cpu = open_rank(c->dir, "cpu"), *gpu = open_rank(c->dir, c->backend);
    int64_t V = hx_rank_hparams(cpu)->n_vocab, all = LONG * V;
    bool exact = strcmp(c->backend, "cuda-exact") == 0;
    struct sets want = {0}, got = {0};
    int32_t t[LONG];
    float *a = malloc((size_t)all * 4), *b = malloc((size_t)all * 4),
          *whole = malloc((size_t)all * 4);
    assert_true(a && b && whole);
    make_prompt(t, LONG, 77);
    hx_kv_seq_free(run_chunks(cpu, t, LONG, &want, a));
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        char first[120] = "";
        int agree = 0;
        hx_kv_seq_free(run_chunks(gpu, t, chunks[i], &got, b));
        for (int k = 0; k < LONG; k++)
            agree += best(a + k * V, (int)V) == best(b + k * V, (int)V);
        int n = same_sets(&got, &want, first);
        double rms = distance(HX_DTYPE_F32, b, a, all);
        print_message("%s, %s, chunks of %d: all %d sets equal at %d of %d positions, logits %.2g, "
                      "best token equal in %d rows; first: %s\n",
                      c->dir, c->backend, chunks[i], want.n, n, LONG, rms, agree,
                      first[0] ? first : "none");
        if (exact)
            assert_int_equal(n, LONG);
        assert_true(rms <= (exact ? MAX_LOGITS : MAX_WHOLE));
        assert_true(agree >= LONG * 93 / 100);
        if (i == 0)
            memcpy(whole, b, (size_t)all * 4);
        else if (memcmp(whole, b, (size_t)all * 4) != 0)
            fail_msg("chunks of %d: logits have other bits than in one pass", chunks[i]);
        same_after_cuts(gpu, t, chunks[i], whole);
        sets_free(&got);
    }
    sets_free(&want);
    free(a);
    free(b);
    free(whole);
    hx_rank_close(cpu);
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

/* The same step again and again: the same bits. */
static void repeat(const char *dir, int n)
{
    struct hx_rank *gpu = open_rank(dir, "cuda");
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
    repeat(*state, 10000);
}

/* For slow checkers: queued, recorded and replayed. */
static void test_short_repeats(void **state)
{
    repeat(*state, 4);
}

int main(int argc, char **argv)
{
    static char model[] = MODEL, hybrid[] = HYBRID;
    static const struct pass_case cases[] = {
        {MODEL, "cuda-exact", 1, false},    {MODEL, "cuda-exact", 17, false},
        {MODEL, "cuda-exact", 97, false},   {HYBRID, "cuda-exact", 97, false},
        {MODEL, "cuda-exact", 400, false},  {HYBRID, "cuda-exact", 400, false},
        {MODEL, "cuda-exact", 29, true},    {MODEL, "cuda", 17, false},
        {MODEL, "cuda", 97, false},         {HYBRID, "cuda", 97, false},
        {MODEL, "cuda", 400, false},        {HYBRID, "cuda", 400, false},
        {MODEL, "cuda-exact", LONG, false}, {HYBRID, "cuda-exact", LONG, false},
        {MODEL, "cuda", LONG, false},       {HYBRID, "cuda", LONG, false},
    };
    enum { N = sizeof(cases) / sizeof(cases[0]), MORE = 6 };
    struct CMUnitTest tests[N + MORE] = {
        {"chunks", test_chunks, NULL, NULL, model},
        {"chunks_exl3", test_chunks, NULL, NULL, hybrid},
        {"drafts", test_drafts, NULL, NULL, model},
        {"drafts_exl3", test_drafts, NULL, NULL, hybrid},
        {"repeats", test_repeats, NULL, NULL, hybrid},
        {"short_repeats", test_short_repeats, NULL, NULL, model},
    };
    static char names[N][64];
    for (int i = 0; i < N; i++) {
        const struct pass_case *c = &cases[i];
        bool at_length = c->n_tok == LONG;
        snprintf(names[i], sizeof(names[i]), "%s_%s_%s_%d%s", at_length ? "long" : "pass", c->dir,
                 c->backend, c->n_tok, c->image ? "_image" : "");
        tests[MORE + i] = (struct CMUnitTest){.name = names[i],
                                              .test_func = at_length ? test_long : test_pass,
                                              .initial_state = (void *)(uintptr_t)c};
    }
    return run_group("backend", tests, N + MORE, NULL, NULL, argc, argv);
}
