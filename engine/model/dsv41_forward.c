/* The wiring: the order of operations of one pass (spec model.md section 3). The mathematics is in
 * the kernels, the choice of rows in row_sets.c. Choices that depend on data (experts, selected
 * rows, candidate blocks) stay on the device. */
#include <math.h>

#include "model/dsv41_pass.h"

struct pass {
    struct hx_forward *f;
    const struct hx_forward_in *in;
    struct hx_error *err;
    int il;                        /* present layer, for messages and taps; -1 outside */
    const struct hx_layer *layer;  /* its weights */
    const struct hx_tensor *freq;  /* its rotary table */
    const struct hx_row_set *rows; /* rows that enter the layer */
    const struct hx_row_set *out;  /* rows that leave it */
    enum hx_act pre, pre_next;     /* coefficients of the site before, of this site */
    struct hx_tensor score;        /* index scores, with a tap only */
};

/* Queues one kernel; an error names layer and operation. */
#define RUN(p, op, ...)                                                                            \
    do {                                                                                           \
        int run_r = (p)->f->k->op((p)->f->dev, __VA_ARGS__, (p)->err);                             \
        if (run_r < 0)                                                                             \
            return hx_wrap((p)->err, run_r, "layer %d: %s", (p)->il, #op);                         \
    } while (0)

/* Calls a step of this file. */
#define STEP(call)                                                                                 \
    do {                                                                                           \
        int step_r = (call);                                                                       \
        if (step_r < 0)                                                                            \
            return step_r;                                                                         \
    } while (0)

/* The first n rows of an activation. */
static struct hx_tensor act(const struct pass *p, enum hx_act which, int n)
{
    struct hx_tensor t = p->f->act[which];
    t.ne[0] = n;
    return t;
}

static void tap(const struct pass *p, const char *name, const struct hx_tensor *t)
{
    if (p->in->tap)
        p->in->tap(p->in->tap_user, name, p->il, t);
}

static void tap_act(const struct pass *p, const char *name, enum hx_act which, int n)
{
    struct hx_tensor t = act(p, which, n);
    tap(p, name, &t);
}

static const struct hx_weight *weight(const struct pass *p, enum hx_role role)
{
    return p->layer->w[role];
}

/* y = W x with the activation grid of the mode. */
static int linear(struct pass *p, enum hx_role role, enum hx_act x, enum hx_act y, int n)
{
    struct hx_tensor tx = act(p, x, n), ty = act(p, y, n);
    RUN(p, linear, weight(p, role), p->f->reference, &tx, &ty);
    return 0;
}

static int norm(struct pass *p, const struct hx_weight *w, enum hx_act x, int n)
{
    struct hx_tensor t = act(p, x, n);
    RUN(p, rms_norm, w, (float)p->f->hp->rms_eps, &t, &t);
    return 0;
}

static int keep(struct pass *p, enum hx_act which, int n_from, const struct hx_row_set *to)
{
    struct hx_tensor t = act(p, which, n_from);
    RUN(p, keep_rows, &t, to->keep, to->batch.n_row);
    return 0;
}

/* ---- streams ---- */

/* Host rows of the tokens in a set, sequence after sequence, to the device. bytes: of a row. */
static int upload_rows(struct pass *p, const struct hx_row_set *set, const void *host, size_t bytes,
                       void *dev)
{
    const uint8_t *from = host;
    uint8_t *to = dev;
    for (int i = 0; i < p->in->n_seq; i++) {
        const struct hx_forward_seq *q = &p->in->seq[i];
        int64_t skip = set->first_pos[i] - q->n_past;
        size_t n = (size_t)(q->n_tok - skip) * bytes;
        if (n > 0)
            STEP(p->f->be->upload(p->f->dev, to, from + (size_t)skip * bytes, n, p->err));
        from += (size_t)q->n_tok * bytes;
        to += n;
    }
    return 0;
}

static int start_streams(struct pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->rows->batch.n_row;
    struct hx_tensor streams = act(p, HX_ACT_STREAMS, n), pre = act(p, p->pre, n);
    RUN(p, embed, p->f->embed, p->f->rows.token, &streams, &pre);
    size_t row = (size_t)h->n_embd * 2;
    uint8_t *to = streams.data;
    const uint8_t *dead = p->in->dead;
    for (int i = 0; dead && i < p->in->n_seq; i++) {
        const struct hx_forward_seq *q = &p->in->seq[i];
        const uint16_t *from = q->embeds;
        for (int t = 0; t < q->n_tok; t++, dead++) {
            for (int s = 0; s < h->hc_mult; s++, to += row) {
                if (from && *dead)
                    STEP(
                        p->f->be->upload(p->f->dev, to, from + (size_t)t * (row / 2), row, p->err));
            }
        }
    }
    return 0;
}

static int engram(struct pass *p, int slot)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->rows->batch.n_row;
    struct hx_tensor codes = act(p, HX_ACT_ENGRAM_CODES, n),
                     scales = act(p, HX_ACT_ENGRAM_SCALES, n), v = act(p, HX_ACT_ENGRAM_V, n),
                     z = act(p, HX_ACT_ENGRAM_Z, n), streams = act(p, HX_ACT_STREAMS, n),
                     dot = act(p, HX_ACT_ENGRAM_DOT, n), gate = act(p, HX_ACT_ENGRAM_GATE, n);
    size_t n_values = (size_t)(codes.ne[1] * codes.ne[2]);
    STEP(upload_rows(p, p->rows, p->in->engram[slot].codes, n_values, codes.data));
    STEP(upload_rows(p, p->rows, p->in->engram[slot].scales, n_values / 32, scales.data));
    RUN(p, engram_rows, &codes, &scales, &v);
    STEP(linear(p, HX_T_ENGRAM_WKV, HX_ACT_ENGRAM_V, HX_ACT_ENGRAM_Z, n));
    RUN(p, engram_gate,
        &(struct hx_engram_args){.streams = &streams,
                                 .z = &z,
                                 .q_weight = weight(p, HX_T_ENGRAM_Q),
                                 .k_weight = weight(p, HX_T_ENGRAM_K),
                                 .dead = p->rows->batch.dead,
                                 .eps = (float)h->rms_eps,
                                 .dot = &dot,
                                 .gate = &gate});
    tap(p, "engram.v", &v);
    tap(p, "engram.z", &z);
    tap(p, "engram.dot", &dot);
    tap(p, "engram.gate", &gate);
    tap(p, "engram.streams", &streams);
    return 0;
}

/* Sublayer input: streams collapsed with the coefficients of the site before, normed. */
static int collapse(struct pass *p, const struct hx_weight *w, int n)
{
    struct hx_tensor streams = act(p, HX_ACT_STREAMS, n), pre = act(p, p->pre, n),
                     x = act(p, HX_ACT_X, n);
    RUN(p, hc_collapse, &streams, &pre, &x);
    return norm(p, w, HX_ACT_X, n);
}

struct site {
    enum hx_role fn, base, scale;
    const char *pre, *post, *comb; /* tap names */
};
static const struct site attn_site = {HX_T_HC_ATTN_FN, HX_T_HC_ATTN_BASE, HX_T_HC_ATTN_SCALE,
                                      "attn.pre",      "attn.post",       "attn.comb"};
static const struct site ffn_site = {HX_T_HC_FFN_FN, HX_T_HC_FFN_BASE, HX_T_HC_FFN_SCALE,
                                     "ffn.pre",      "ffn.post",       "ffn.comb"};

static int mix(struct pass *p, const struct site *s, int n)
{
    struct hx_tensor streams = act(p, HX_ACT_STREAMS, n), pre = act(p, p->pre_next, n),
                     post = act(p, HX_ACT_POST, n), comb = act(p, HX_ACT_COMB, n);
    RUN(p, hc_mix,
        &(struct hx_hc_args){.streams = &streams,
                             .fn = weight(p, s->fn),
                             .base = weight(p, s->base),
                             .scale = weight(p, s->scale),
                             .iters = p->f->hp->hc_iters,
                             .rms_eps = (float)p->f->hp->rms_eps,
                             .hc_eps = (float)p->f->hp->hc_eps,
                             .pre = &pre,
                             .post = &post,
                             .comb = &comb});
    tap(p, s->pre, &pre);
    tap(p, s->post, &post);
    tap(p, s->comb, &comb);
    return 0;
}

/* Streams of the next site; its coefficients become the ones handed on. */
static int expand(struct pass *p, int n)
{
    struct hx_tensor y = act(p, HX_ACT_Y, n), post = act(p, HX_ACT_POST, n),
                     comb = act(p, HX_ACT_COMB, n), streams = act(p, HX_ACT_STREAMS, n);
    RUN(p, hc_expand, &y, &post, &comb, &streams);
    enum hx_act t = p->pre;
    p->pre = p->pre_next;
    p->pre_next = t;
    return 0;
}

/* ---- attention ---- */

static int rope(struct pass *p, enum hx_act which, const struct hx_batch *b, bool inverse)
{
    struct hx_tensor t = act(p, which, b->n_row);
    RUN(p, rope, &t, b->pos, p->freq, inverse);
    return 0;
}

static int window_rows(struct pass *p)
{
    int n = p->rows->batch.n_row;
    STEP(linear(p, HX_T_ATTN_WKV, HX_ACT_X, HX_ACT_KV, n));
    STEP(norm(p, weight(p, HX_T_ATTN_KV_NORM), HX_ACT_KV, n));
    STEP(rope(p, HX_ACT_KV, &p->rows->batch, false));
    struct hx_tensor kv = act(p, HX_ACT_KV, n), codes = act(p, HX_ACT_KV_CODES, n),
                     scales = act(p, HX_ACT_KV_SCALES, n);
    RUN(p, quantise, HX_GRID_FP8_B32, &kv, &codes, &scales, NULL);
    return 0;
}

/* Quantised compressed rows or keys of the groups in b. */
static int store_groups(struct pass *p, enum hx_act x, enum hx_grid grid, enum hx_act c,
                        enum hx_act s, enum hx_kv_which which, const struct hx_batch *b,
                        const int64_t *row)
{
    struct hx_tensor t = act(p, x, b->n_row), codes = act(p, c, b->n_row),
                     scales = act(p, s, b->n_row);
    STEP(rope(p, x, b, false));
    RUN(p, quantise, grid, &t, &codes, &scales, NULL);
    RUN(p, kv_store, b->kv, which, p->il, b->seq, row, &codes, &scales);
    return 0;
}

/* Compressed rows and index keys of the groups that end in this pass. */
static int compress(struct pass *p)
{
    const struct hx_batch *all = &p->rows->batch, *b = all;
    const int64_t *row = all->pos;
    int n = all->n_row;
    if (p->f->hp->ratio[p->il] == 1) {
        STEP(linear(p, HX_T_COMP_WKV, HX_ACT_X, HX_ACT_LATENT, n));
    } else {
        struct hx_tensor u = act(p, HX_ACT_COMP_U, n), g = act(p, HX_ACT_COMP_G, n);
        b = &p->f->rows.groups;
        row = p->f->rows.group_row;
        struct hx_tensor latent = act(p, HX_ACT_LATENT, b->n_row);
        STEP(linear(p, HX_T_COMP_WKV, HX_ACT_X, HX_ACT_COMP_U, n));
        STEP(linear(p, HX_T_COMP_WGATE, HX_ACT_X, HX_ACT_COMP_G, n));
        RUN(p, pool_groups, all, p->il, &u, &g, b->seq, row, &latent);
    }
    if (b->n_row == 0)
        return 0;
    STEP(norm(p, weight(p, HX_T_COMP_NORM), HX_ACT_LATENT, b->n_row));
    STEP(linear(p, HX_T_INDEX_WK, HX_ACT_LATENT, HX_ACT_KEY, b->n_row));
    STEP(norm(p, weight(p, HX_T_INDEX_K_NORM), HX_ACT_KEY, b->n_row));
    STEP(store_groups(p, HX_ACT_KEY, HX_GRID_FP4_B32, HX_ACT_KEY_CODES, HX_ACT_KEY_SCALES,
                      HX_KV_KEY, b, row));
    return store_groups(p, HX_ACT_LATENT, HX_GRID_FP4_B16, HX_ACT_COMP_CODES, HX_ACT_COMP_SCALES,
                        HX_KV_COMP, b, row);
}

static int64_t most_visible(const struct pass *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->in->n_seq; i++) {
        int64_t v = (p->in->seq[i].n_past + p->in->seq[i].n_tok) / p->f->hp->ratio[p->il];
        most = v > most ? v : most;
    }
    return most;
}

static int select_rows(struct pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->out->batch.n_row;
    STEP(linear(p, HX_T_INDEX_WQ_B, HX_ACT_QR, HX_ACT_IQ, n));
    STEP(rope(p, HX_ACT_IQ, &p->out->batch, false));
    STEP(linear(p, HX_T_INDEX_WEIGHTS, HX_ACT_X, HX_ACT_IW, n));
    struct hx_tensor iq = act(p, HX_ACT_IQ, n), codes = act(p, HX_ACT_IQ_CODES, n),
                     scales = act(p, HX_ACT_IQ_SCALES, n), w = act(p, HX_ACT_IW, n),
                     topk = act(p, HX_ACT_TOPK, n), cand = act(p, HX_ACT_CAND, n);
    RUN(p, quantise, HX_GRID_FP4_B32, &iq, &codes, &scales, &iq);
    if (p->in->tap) {
        p->score.ne[0] = n;
        p->score.ne[1] = most_visible(p);
    }
    RUN(p, index_select,
        &(struct hx_index_args){
            .batch = &p->out->batch,
            .source = p->f->maps->kv_source[p->il],
            .ratio = h->ratio[p->il],
            .q = &iq,
            .w = &w,
            .factor = (float)(pow(h->index_head_dim, -0.5) * pow(h->index_n_head, -0.5)),
            .reference = p->f->reference,
            .topk = h->index_topk,
            .cand_block = h->candidate_block,
            .n_cand = h->candidate_blocks,
            .write_cand = p->il == h->candidate_source,
            .read_cand = h->candidate_source >= 0 && p->il > h->candidate_source,
            .sel = &topk,
            .cand = &cand,
            .score = p->in->tap ? &p->score : NULL,
        });
    tap(p, "index.q_codes", &codes);
    tap(p, "index.q_scales", &scales);
    tap(p, "index.w", &w);
    tap(p, "index.score", &p->score);
    tap(p, "index.topk", &topk);
    if (p->il == h->candidate_source)
        tap(p, "index.cand", &cand);
    return 0;
}

static int attend(struct pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n_in = p->rows->batch.n_row, n = p->out->batch.n_row;
    struct hx_tensor q = act(p, HX_ACT_Q, n), o = act(p, HX_ACT_O, n),
                     topk = act(p, HX_ACT_TOPK, n), codes = act(p, HX_ACT_KV_CODES, n_in),
                     scales = act(p, HX_ACT_KV_SCALES, n_in);
    struct hx_batch b = p->out->batch; /* queries; keys of the pass are those of p->rows */
    b.first_pos = p->rows->batch.first_pos;
    b.first_row = p->rows->batch.first_row;
    RUN(p, attend,
        &(struct hx_attend_args){.batch = &b,
                                 .layer = p->il,
                                 .source = p->f->maps->kv_source[p->il],
                                 .window = h->window,
                                 .q = &q,
                                 .fresh_codes = &codes,
                                 .fresh_scales = &scales,
                                 .sel = &topk,
                                 .sink = weight(p, HX_T_ATTN_SINK),
                                 .scale = (float)pow(h->head_dim, -0.5),
                                 .o = &o});
    tap(p, "attn.o", &o);
    return 0;
}

/* Only now: keys before the pass are read from the ring that these rows overwrite. */
static int store_window(struct pass *p)
{
    int n = p->rows->batch.n_row;
    struct hx_tensor codes = act(p, HX_ACT_KV_CODES, n), scales = act(p, HX_ACT_KV_SCALES, n);
    RUN(p, kv_store, p->rows->batch.kv, HX_KV_WINDOW, p->il, p->rows->batch.seq,
        p->rows->window_row, &codes, &scales);
    return 0;
}

static int attn_out(struct pass *p)
{
    int n = p->out->batch.n_row, n_group = p->f->hp->o_groups;
    STEP(rope(p, HX_ACT_O, &p->out->batch, true));
    struct hx_tensor o = act(p, HX_ACT_O, n), a = act(p, HX_ACT_OA, n);
    RUN(p, linear_grouped, weight(p, HX_T_ATTN_WO_A), n_group, &o, &a);
    return linear(p, HX_T_ATTN_WO_B, HX_ACT_OA, HX_ACT_Y, n);
}

static int attention(struct pass *p)
{
    const struct hx_maps *maps = p->f->maps;
    int n_in = p->rows->batch.n_row, n = p->out->batch.n_row;
    bool fewer = p->out != p->rows;
    STEP(collapse(p, weight(p, HX_T_ATTN_NORM), n_in));
    tap_act(p, "attn.x", HX_ACT_X, n_in);
    if (fewer)
        STEP(keep(p, HX_ACT_STREAMS, n_in, p->out));
    STEP(mix(p, &attn_site, n));
    STEP(window_rows(p));
    if (maps->is_kv_source[p->il])
        STEP(compress(p));
    if (n == 0) /* the last layer of a pass without logits */
        return store_window(p);
    if (fewer) {
        STEP(keep(p, HX_ACT_X, n_in, p->out));
        if (!maps->is_index_source[p->il])
            STEP(keep(p, HX_ACT_TOPK, n_in, p->out));
        if (p->f->hp->candidate_source >= 0 && p->il > p->f->hp->candidate_source)
            STEP(keep(p, HX_ACT_CAND, n_in, p->out));
    }
    STEP(linear(p, HX_T_ATTN_WQ_A, HX_ACT_X, HX_ACT_QR, n));
    STEP(norm(p, weight(p, HX_T_ATTN_Q_NORM), HX_ACT_QR, n));
    STEP(linear(p, HX_T_ATTN_WQ_B, HX_ACT_QR, HX_ACT_Q, n));
    STEP(rope(p, HX_ACT_Q, &p->out->batch, false));
    tap_act(p, "attn.qr", HX_ACT_QR, n);
    tap_act(p, "attn.q", HX_ACT_Q, n);
    if (maps->is_index_source[p->il])
        STEP(select_rows(p));
    STEP(attend(p));
    STEP(store_window(p));
    STEP(attn_out(p));
    tap_act(p, "attn.y", HX_ACT_Y, n);
    return expand(p, n);
}

/* ---- experts ---- */

static int ffn(struct pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->out->batch.n_row;
    STEP(mix(p, &ffn_site, n));
    STEP(collapse(p, weight(p, HX_T_FFN_NORM), n));
    struct hx_tensor z = act(p, HX_ACT_X, n), y = act(p, HX_ACT_Y, n),
                     score = act(p, HX_ACT_ROUTE_SCORE, n), sel = act(p, HX_ACT_ROUTE_EXPERT, n),
                     w = act(p, HX_ACT_ROUTE_WEIGHT, n);
    RUN(p, route,
        &(struct hx_route_args){.z = &z,
                                .gate = weight(p, HX_T_GATE),
                                .bias = weight(p, HX_T_GATE_BIAS),
                                .bias_vl = weight(p, HX_T_GATE_BIAS_VL),
                                .dead = p->out->batch.dead,
                                .temp = (float)h->gate_temp,
                                .route_scale = (float)h->route_scale,
                                .norm = h->norm_topk_prob,
                                .sel = &sel,
                                .weight = &w,
                                .score = &score});
    const struct hx_weight **const *e = p->layer->experts;
    RUN(p, experts,
        &(struct hx_experts_args){.z = &z,
                                  .w1 = e[0],
                                  .w2 = e[1],
                                  .w3 = e[2],
                                  .n_expert = h->n_expert,
                                  .sel = &sel,
                                  .weight = &w,
                                  .s1 = weight(p, HX_T_SHARED_W1),
                                  .s2 = weight(p, HX_T_SHARED_W2),
                                  .s3 = weight(p, HX_T_SHARED_W3),
                                  .limit = (float)h->swiglu_limit,
                                  .quantise = p->f->reference,
                                  .y = &y});
    tap(p, "ffn.x", &z);
    tap(p, "router.score", &score);
    tap(p, "router.expert", &sel);
    tap(p, "router.weight", &w);
    tap(p, "ffn.y", &y);
    return expand(p, n);
}

/* ---- pass ---- */

static int layer(struct pass *p, int il)
{
    const struct hx_row_sets *rows = &p->f->rows;
    p->il = il;
    p->layer = &p->f->layer[il];
    p->freq = &p->f->freq[p->f->hp->ratio[il] ? 1 : 0];
    p->rows = &rows->set[rows->in[il]];
    p->out = &rows->set[rows->in[il + 1]];
    if (p->in->tap && il + 1 == p->f->hp->n_layer)
        p->out = p->rows; /* taps see all rows; the head takes its own */
    int n = p->rows->batch.n_row;
    p->f->layer_rows += p->out->batch.n_row;
    tap_act(p, "streams", HX_ACT_STREAMS, n);
    if (p->f->maps->engram_slot[il] >= 0)
        STEP(engram(p, p->f->maps->engram_slot[il]));
    if (p->f->maps->target_slot[il] >= 0 && p->in->tap) {
        struct hx_tensor streams = act(p, HX_ACT_STREAMS, n), mean = act(p, HX_ACT_MAIN, n);
        RUN(p, stream_mean, &streams, &mean);
        tap(p, "main", &mean);
    }
    STEP(attention(p));
    if (p->out->batch.n_row == 0)
        return 0;
    tap_act(p, "streams_mid", HX_ACT_STREAMS, p->out->batch.n_row);
    return ffn(p);
}

static int head(struct pass *p)
{
    const struct hx_row_sets *rows = &p->f->rows;
    const struct hx_row_set *wanted = &rows->set[rows->in[p->f->hp->n_layer]];
    int n = wanted->batch.n_row;
    p->il = p->f->hp->n_layer;
    if (wanted != p->out) {
        STEP(keep(p, HX_ACT_STREAMS, p->out->batch.n_row, wanted));
        STEP(keep(p, p->pre, p->out->batch.n_row, wanted));
    }
    struct hx_tensor streams = act(p, HX_ACT_STREAMS, n), pre = act(p, p->pre, n),
                     x = act(p, HX_ACT_X, n);
    p->il = -1;
    tap(p, "final.streams", &streams);
    RUN(p, hc_collapse, &streams, &pre, &x);
    tap(p, "final.h", &x);
    STEP(norm(p, p->f->norm, HX_ACT_X, n));
    tap(p, "final.hn", &x);
    size_t row = (size_t)p->f->hp->n_vocab * sizeof(float), x_row = (size_t)p->f->hp->n_embd * 2;
    for (int t = 0; t < n; t += HX_HEAD_ROWS) {
        int m = n - t < HX_HEAD_ROWS ? n - t : HX_HEAD_ROWS;
        struct hx_tensor logits = act(p, HX_ACT_LOGITS, m), some = act(p, HX_ACT_X, m);
        some.data = (uint8_t *)x.data + (size_t)t * x_row;
        RUN(p, linear, p->f->head, false, &some, &logits);
        STEP(p->f->be->download(p->f->dev, (uint8_t *)p->in->logits + (size_t)t * row, logits.data,
                                (size_t)m * row, p->err));
    }
    return 0;
}

static int check(const struct hx_forward *f, const struct hx_forward_in *in, struct hx_error *err)
{
    int64_t n = 0;
    if (in->n_seq < 1 || in->n_seq > f->rows.max_seq)
        return hx_fail(err, -EINVAL, "pass of %d sequences: expected 1 to %d", in->n_seq,
                       f->rows.max_seq);
    for (int i = 0; i < in->n_seq; i++) {
        const struct hx_forward_seq *q = &in->seq[i];
        if (q->n_tok < 1 || q->n_logits < 0 || q->n_logits > q->n_tok || q->n_past < 0)
            return hx_fail(err, -EINVAL,
                           "sequence %d of a pass: %d rows, %d with logits, behind %lld: expected "
                           "at least 1 row and 0 to that many with logits",
                           i, q->n_tok, q->n_logits, (long long)q->n_past);
        if (q->n_logits > 0 && !in->logits)
            return hx_fail(err, -EINVAL, "sequence %d of a pass: no room for its logits", i);
        if (q->n_past > f->hp->max_positions - q->n_tok)
            return hx_fail(err, -EINVAL,
                           "sequence %d of a pass: %d rows behind %lld: the limit is %lld", i,
                           q->n_tok, (long long)q->n_past, (long long)f->hp->max_positions);
        n += q->n_tok;
    }
    if (n > f->rows.max_tok)
        return hx_fail(err, -EINVAL, "pass of %lld rows: the limit is %d", (long long)n,
                       f->rows.max_tok);
    for (int i = 0; i < f->hp->n_engram; i++) {
        if (!in->engram[i].codes || !in->engram[i].scales)
            return hx_fail(err, -EINVAL, "pass without the Engram rows of layer %d",
                           f->hp->engram_layer[i]);
    }
    for (int64_t t = 0; t < n; t++) {
        if (in->token[t] < 0 || in->token[t] >= f->hp->n_vocab)
            return hx_fail(err, -EINVAL, "row %lld of a pass: token %d, expected 0 to %d",
                           (long long)t, in->token[t], f->hp->n_vocab - 1);
    }
    return 0;
}

static int run_layers(struct pass *p)
{
    struct hx_forward *f = p->f;
    STEP(hx_row_sets_build(&f->rows, p->in, p->err));
    p->rows = &f->rows.set[0];
    STEP(start_streams(p));
    for (int il = 0; il < f->hp->n_layer; il++)
        STEP(layer(p, il));
    STEP(head(p));
    return f->be->sync(f->dev, p->err);
}

int hx_forward_run(struct hx_forward *f, const struct hx_forward_in *in, struct hx_error *err)
{
    STEP(check(f, in, err));
    struct pass p = {
        .f = f, .in = in, .err = err, .il = -1, .pre = HX_ACT_PRE, .pre_next = HX_ACT_PRE2};
    struct hx_buffer *score = NULL;
    f->layer_rows = 0;
    if (in->tap) { /* index scores are kept for taps alone */
        int64_t rows = 0, most = 1;
        for (int i = 0; i < in->n_seq; i++) {
            int64_t end = in->seq[i].n_past + in->seq[i].n_tok;
            rows += in->seq[i].n_tok;
            most = end > most ? end : most;
        }
        STEP(f->be->alloc(f->dev, HX_MEM_DEVICE, (size_t)(rows * most) * sizeof(float), &score,
                          err));
        p.score = (struct hx_tensor){.dtype = HX_DTYPE_F32, .n_dims = 2, .ne = {0, 0, 1, 1}};
        p.score.data = f->be->address(score);
    }
    int r = run_layers(&p);
    if (score)
        f->be->free(score);
    return r;
}
