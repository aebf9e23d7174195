/* The tiny model far behind its window and all limits of choices (20 windows of 16 tokens; 12
 * candidates, 8 rows chosen): what is chosen at every position and every logit against the CPU back
 * end, in any chunks, with rows taken back. */
#include "tiny.h"

#include "backend/cpu/numerics.h"

#define LONG 348 /* tokens */

struct long_case {
    const char *dir, *backend;
};

/* What was chosen for every position: rows, candidate blocks, experts. */
struct sets {
    int n, from;         /* from: first position of the pass */
    struct again *again; /* NULL: choices are not made again */
    struct {
        char name[24];
        int layer, width;
        int32_t *of; /* [LONG][width] */
    } set[64];
};

/* ---- the CPU's choice from what the card holds: its queries, weights and keys ---- */

struct again {
    struct hx_rank *rank;
    struct hx_kv_seq *kv;
    const struct hx_backend *cpu;
    struct hx_device *dev;
    uint8_t *codes, *scales, *keys; /* of the layer; keys: rows, codes then scales apart */
    uint16_t *q, *w;
    int32_t *sel, *cand; /* cand: of the source, read by the layers behind */
    int64_t *pos;
    int32_t *seq;
    int n_checked, n_wrong;
};

static void *kept(void *old, const struct hx_tensor *t)
{
    size_t n = hx_dtype_size(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        n *= (size_t)t->ne[i];
    free(old);
    void *p = malloc(n);
    assert_non_null(p);
    read_value(p, t, n);
    return p;
}

/* Key rows 0 to n - 1 of a source, from the card. */
static struct hx_kv_stream fetch_keys(struct again *a, int source, int64_t n)
{
    static const int32_t first;
    struct hx_kv_stream s = hx_kv_seq_view(a->kv)->key[source];
    size_t d = (size_t)s.data_bytes, e = (size_t)s.scale_bytes;
    free(a->keys);
    a->keys = malloc((size_t)n * (d + e));
    assert_non_null(a->keys);
    for (int64_t j = 0; j < n; j++) {
        struct hx_tensor data = {.data = hx_kv_row_data(&s, j)},
                         scale = {.data = hx_kv_row_scale(&s, j)};
        read_value(a->keys + (size_t)j * d, &data, d);
        read_value(a->keys + (size_t)n * d + (size_t)j * e, &scale, e);
    }
    s.base = a->keys;
    s.table = &first;
    s.rows_per_block = (int32_t)n;
    s.data_offset = 0;
    s.scale_offset = (size_t)n * d;
    return s;
}

/* At the layer's chosen rows: chosen once more by the CPU back end. */
static void choose_again(struct again *a, int layer, const struct hx_tensor *topk, int from)
{
    const struct hx_hparams *h = hx_rank_hparams(a->rank);
    int source = hx_model_maps(hx_rank_model(a->rank))->kv_source[layer], ratio = h->ratio[layer];
    int64_t n = topk->ne[0], H = h->index_n_head, d = h->index_head_dim;
    int64_t visible = (from + n) / ratio;
    if (visible == 0)
        return;
    struct hx_kv_stream keys[HX_MAX_LAYERS] = {0};
    keys[source] = fetch_keys(a, source, visible);
    struct hx_kv_view view = {.key = keys};
    const struct hx_kv_view *views = &view;
    a->q = realloc(a->q, (size_t)(n * H * d) * 2);
    a->sel = realloc(a->sel, (size_t)(n * h->index_topk) * 4);
    a->pos = realloc(a->pos, (size_t)n * 8);
    a->seq = realloc(a->seq, (size_t)n * 4);
    assert_true(a->q && a->sel && a->pos && a->seq && a->codes && a->scales && a->w);
    for (int64_t i = 0; i < n; i++) {
        a->pos[i] = from + i;
        a->seq[i] = 0;
    }
    for (int64_t i = 0; i < n * H; i++) {
        float x[512];
        assert_true(d <= 512);
        hx_dequant_fp4_b32(a->codes + i * d / 2, a->scales + i * d / 32, (int)d, x);
        for (int64_t k = 0; k < d; k++)
            a->q[i * d + k] = bf16(x[k]);
    }
    bool write = layer == h->candidate_source,
         read = h->candidate_source >= 0 && layer > h->candidate_source;
    if (write) {
        a->cand = realloc(a->cand, (size_t)(n * h->candidate_blocks) * 4);
        assert_non_null(a->cand);
    }
    const struct hx_batch b = {
        .n_row = (int)n, .n_seq = 1, .seq = a->seq, .pos = a->pos, .kv = &views};
    struct hx_tensor q = {HX_DTYPE_BF16, 3, {n, H, d, 1}, a->q},
                     w = {HX_DTYPE_BF16, 2, {n, H, 1, 1}, a->w},
                     sel = {HX_DTYPE_I32, 2, {n, h->index_topk, 1, 1}, a->sel},
                     cand = {HX_DTYPE_I32, 2, {n, h->candidate_blocks, 1, 1}, a->cand};
    CHECK(a->cpu->kernels->index_select(
        a->dev,
        &(struct hx_index_args){.batch = &b,
                                .source = source,
                                .ratio = ratio,
                                .q = &q,
                                .w = &w,
                                .factor = (float)(pow((double)d, -0.5) * pow((double)H, -0.5)),
                                .n_visible = visible,
                                .topk = h->index_topk,
                                .cand_block = h->candidate_block,
                                .n_cand = h->candidate_blocks,
                                .write_cand = write,
                                .read_cand = read,
                                .sel = &sel,
                                .cand = &cand},
        ERR));
    size_t bytes = (size_t)(n * h->index_topk) * 4;
    int32_t *got = malloc(bytes);
    assert_non_null(got);
    read_value(got, topk, bytes);
    a->n_checked += (int)n;
    for (int64_t i = 0; i < n; i++)
        a->n_wrong += memcmp(got + i * h->index_topk, a->sel + i * h->index_topk,
                             (size_t)h->index_topk * 4) != 0;
    free(got);
}

/* Blocks that the card kept against those of choose_again. */
static void same_blocks(struct again *a, const struct hx_tensor *cand)
{
    int32_t *got = kept(NULL, cand);
    a->n_checked += (int)cand->ne[0];
    for (int64_t i = 0; a->cand && i < cand->ne[0]; i++)
        a->n_wrong +=
            memcmp(got + i * cand->ne[1], a->cand + i * cand->ne[1], (size_t)cand->ne[1] * 4) != 0;
    free(got);
}

static void watch(struct again *a, const char *name, int layer, const struct hx_tensor *t, int from)
{
    if (strcmp(name, "index.q_codes") == 0)
        a->codes = kept(a->codes, t);
    else if (strcmp(name, "index.q_scales") == 0)
        a->scales = kept(a->scales, t);
    else if (strcmp(name, "index.w") == 0)
        a->w = kept(a->w, t);
    else if (strcmp(name, "index.topk") == 0)
        choose_again(a, layer, t, from);
    else if (strcmp(name, "index.cand") == 0)
        same_blocks(a, t);
}

static void again_done(struct again *a)
{
    free(a->codes);
    free(a->scales);
    free(a->keys);
    free(a->q);
    free(a->w);
    free(a->sel);
    free(a->cand);
    free(a->pos);
    free(a->seq);
    a->cpu->close(a->dev);
}

static void note_sets(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct sets *s = user;
    int i = 0;
    if (s->again)
        watch(s->again, name, layer, t, s->from);
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
    read_value(s->set[i].of + (int64_t)s->from * t->ne[1], t, (size_t)(t->ne[0] * t->ne[1]) * 4);
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
        if (s->again)
            s->again->kv = kv;
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

/* Sets and logits at every position, whatever the chunks. With the plain kernels the whole model
 * chooses as on the CPU. Fast ones choose what the CPU chooses from the card's own queries and
 * keys; over a whole model their values drift within the bounds, and so do choices among near
 * equals. */
static void test_long(void **state)
{
    static const int chunks[] = {LONG, 97, 32, 7};
    const struct long_case *c = *state;
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
        struct again again = {.rank = gpu, .cpu = hx_backend_select("cpu", NULL)};
        CHECK(again.cpu->open(0, &again.dev, ERR));
        got.again = &again;
        hx_kv_seq_free(run_chunks(gpu, t, chunks[i], &got, b));
        for (int k = 0; k < LONG; k++)
            agree += best(a + k * V, (int)V) == best(b + k * V, (int)V);
        int n = same_sets(&got, &want, first);
        double rms = distance(HX_DTYPE_F32, b, a, all);
        print_message("%s, %s, chunks of %d: all %d sets equal at %d of %d positions, logits %.2g, "
                      "best token equal in %d rows; first: %s\n",
                      c->dir, c->backend, chunks[i], want.n, n, LONG, rms, agree,
                      first[0] ? first : "none");
        print_message("  chosen again from the card's queries and keys: %d of %d choices differ\n",
                      again.n_wrong, again.n_checked);
        assert_true(again.n_checked >= 4 * (LONG - 2));
        assert_int_equal(again.n_wrong, 0);
        again_done(&again);
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

int main(int argc, char **argv)
{
    static struct long_case cases[] = {
        {MODEL, "cuda-exact"}, {HYBRID, "cuda-exact"}, {MODEL, "cuda"}, {HYBRID, "cuda"}};
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct CMUnitTest tests[N];
    static char names[N][48];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "%s_%s", cases[i].dir, cases[i].backend);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_long, .initial_state = &cases[i]};
    }
    return run_group("long", tests, N, NULL, NULL, argc, argv);
}
