/* What a layer of the backbone and a layer of the drafter have in common: the two sites, window
 * rows, output projection, experts (spec model.md 3.2 to 3.7). Each step queues kernels, nothing
 * waits. */
#include "model/dsv41_pass.h"

struct hx_tensor hx_pass_act(const struct hx_pass *p, enum hx_act which, int n)
{
    struct hx_tensor t = p->f->act[which];
    t.ne[0] = n;
    return t;
}

int hx_pass_tap(const struct hx_pass *p, const char *name, const struct hx_tensor *t)
{
    if (!p->tap)
        return 0;
    HX_STEP(p->f->be->sync(p->f->dev, p->err));
    p->tap(p->tap_user, name, p->il, t);
    return 0;
}

int hx_pass_tap_act(const struct hx_pass *p, const char *name, enum hx_act which, int n)
{
    struct hx_tensor t = hx_pass_act(p, which, n);
    return hx_pass_tap(p, name, &t);
}

const struct hx_weight *hx_pass_weight(const struct hx_pass *p, enum hx_role role)
{
    return p->layer->w[role];
}

int hx_pass_linear(struct hx_pass *p, enum hx_role role, enum hx_act x, enum hx_act y, int n)
{
    struct hx_tensor tx = hx_pass_act(p, x, n), ty = hx_pass_act(p, y, n);
    HX_RUN(p, linear, hx_pass_weight(p, role), p->f->reference, &tx, &ty);
    return 0;
}

int hx_pass_norm(struct hx_pass *p, const struct hx_weight *w, enum hx_act x, int n)
{
    struct hx_tensor t = hx_pass_act(p, x, n);
    HX_RUN(p, rms_norm, w, (float)p->f->hp->rms_eps, &t, &t);
    return 0;
}

int hx_pass_keep(struct hx_pass *p, enum hx_act which, int n_from, const struct hx_row_set *to)
{
    struct hx_tensor t = hx_pass_act(p, which, n_from);
    HX_RUN(p, keep_rows, &t, to->keep, to->batch.n_row);
    return 0;
}

/* ---- hyper-connection sites ---- */

bool hx_pass_whole_sites(const struct hx_pass *p)
{
    return p->f->k->hc_site != NULL;
}

const struct hx_site hx_site_attn = {HX_T_HC_ATTN_FN, HX_T_HC_ATTN_BASE, HX_T_HC_ATTN_SCALE,
                                     "attn.pre",      "attn.post",       "attn.comb"};
const struct hx_site hx_site_ffn = {HX_T_HC_FFN_FN, HX_T_HC_FFN_BASE, HX_T_HC_FFN_SCALE,
                                    "ffn.pre",      "ffn.post",       "ffn.comb"};

/* Tensors of a site's coefficients. */
struct mix {
    struct hx_tensor streams, pre, post, comb;
};

static struct hx_hc_args mix_args(const struct hx_pass *p, const struct hx_site *s, int n,
                                  struct mix *m)
{
    *m = (struct mix){hx_pass_act(p, HX_ACT_STREAMS, n), hx_pass_act(p, p->pre_next, n),
                      hx_pass_act(p, HX_ACT_POST, n), hx_pass_act(p, HX_ACT_COMB, n)};
    return (struct hx_hc_args){.streams = &m->streams,
                               .fn = hx_pass_weight(p, s->fn),
                               .base = hx_pass_weight(p, s->base),
                               .scale = hx_pass_weight(p, s->scale),
                               .iters = p->f->hp->hc_iters,
                               .rms_eps = (float)p->f->hp->rms_eps,
                               .hc_eps = (float)p->f->hp->hc_eps,
                               .pre = &m->pre,
                               .post = &m->post,
                               .comb = &m->comb};
}

int hx_pass_site(struct hx_pass *p, const struct hx_site *s, enum hx_role norm, int n)
{
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), pre = hx_pass_act(p, p->pre, n),
                     x = hx_pass_act(p, HX_ACT_X, n), y = hx_pass_act(p, HX_ACT_Y, n);
    const struct hx_weight *w = hx_pass_weight(p, norm);
    struct mix m;
    if (!hx_pass_whole_sites(p)) {
        HX_RUN(p, hc_collapse, &streams, &pre, &x);
        return hx_pass_norm(p, w, HX_ACT_X, n);
    }
    HX_RUN(p, hc_site,
           &(struct hx_site_args){.mix = mix_args(p, s, n, &m),
                                  .y = p->grown ? &y : NULL,
                                  .streams = &streams,
                                  .pre = &pre,
                                  .norm = w,
                                  .norm_eps = (float)p->f->hp->rms_eps,
                                  .x = &x});
    p->grown = false;
    return 0;
}

int hx_pass_mix(struct hx_pass *p, const struct hx_site *s, int n)
{
    struct mix m;
    struct hx_hc_args a = mix_args(p, s, n, &m);
    struct hx_tensor pre = m.pre, post = m.post, comb = m.comb;
    if (!hx_pass_whole_sites(p))
        HX_RUN(p, hc_mix, &a);
    HX_STEP(hx_pass_tap(p, s->pre, &pre));
    HX_STEP(hx_pass_tap(p, s->post, &post));
    HX_STEP(hx_pass_tap(p, s->comb, &comb));
    return 0;
}

int hx_pass_grow(struct hx_pass *p, int n)
{
    struct hx_tensor y = hx_pass_act(p, HX_ACT_Y, n), post = hx_pass_act(p, HX_ACT_POST, n),
                     comb = hx_pass_act(p, HX_ACT_COMB, n),
                     streams = hx_pass_act(p, HX_ACT_STREAMS, n);
    if (p->grown)
        HX_RUN(p, hc_expand, &y, &post, &comb, &streams);
    p->grown = false;
    return 0;
}

int hx_pass_expand(struct hx_pass *p, int n)
{
    enum hx_act t = p->pre;
    p->pre = p->pre_next;
    p->pre_next = t;
    p->grown = true;
    return hx_pass_whole_sites(p) && !p->tap ? 0 : hx_pass_grow(p, n);
}

/* ---- attention ---- */

int hx_pass_rope(struct hx_pass *p, enum hx_act which, const struct hx_batch *b, bool inverse)
{
    struct hx_tensor t = hx_pass_act(p, which, b->n_row);
    HX_RUN(p, rope, &t, b->pos, p->freq, inverse);
    return 0;
}

int hx_pass_window_rows(struct hx_pass *p)
{
    int n = p->rows->batch.n_row;
    HX_STEP(hx_pass_linear(p, HX_T_ATTN_WKV, HX_ACT_X, HX_ACT_KV, n));
    HX_STEP(hx_pass_norm(p, hx_pass_weight(p, HX_T_ATTN_KV_NORM), HX_ACT_KV, n));
    HX_STEP(hx_pass_rope(p, HX_ACT_KV, &p->rows->batch, false));
    struct hx_tensor kv = hx_pass_act(p, HX_ACT_KV, n), codes = hx_pass_act(p, HX_ACT_KV_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_KV_SCALES, n);
    HX_RUN(p, quantise, HX_GRID_FP8_B32, &kv, &codes, &scales, NULL);
    return 0;
}

/* Whether no row of the pass overwrites one that its queries see. */
static bool ring_has_room(const struct hx_pass *p)
{
    const struct hx_batch *b = &p->rows->batch;
    for (int i = 0; i < b->n_seq; i++) {
        int ring = b->kv[i]->window[p->il].ring;
        if (ring && b->n_row + p->f->hp->window > ring)
            return false;
    }
    return true;
}

int hx_pass_latents(struct hx_pass *p, bool *done)
{
    int n = p->rows->batch.n_row;
    *done = p->f->k->latents && p->out == p->rows && n > 0;
    if (!*done)
        return 0;
    struct hx_tensor q = hx_pass_act(p, HX_ACT_QR, n), kv = hx_pass_act(p, HX_ACT_KV, n),
                     codes = hx_pass_act(p, HX_ACT_KV_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_KV_SCALES, n);
    p->stored = p->rows->window_row && ring_has_room(p);
    const struct hx_weight *const w[2] = {hx_pass_weight(p, HX_T_ATTN_WKV),
                                          hx_pass_weight(p, HX_T_ATTN_WQ_A)};
    struct hx_tensor x = hx_pass_act(p, HX_ACT_X, n);
    HX_RUN(p, latents,
           &(struct hx_latents_args){.batch = &p->rows->batch,
                                     .layer = p->il,
                                     .w = w,
                                     .x = &x,
                                     .q = &q,
                                     .kv = &kv,
                                     .q_norm = hx_pass_weight(p, HX_T_ATTN_Q_NORM),
                                     .kv_norm = hx_pass_weight(p, HX_T_ATTN_KV_NORM),
                                     .eps = (float)p->f->hp->rms_eps,
                                     .freq = p->freq,
                                     .codes = &codes,
                                     .scales = &scales,
                                     .row = p->stored ? p->rows->window_row : NULL});
    return 0;
}

int hx_pass_store_window(struct hx_pass *p)
{
    int n = p->rows->batch.n_row;
    if (p->stored)
        return 0;
    struct hx_tensor codes = hx_pass_act(p, HX_ACT_KV_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_KV_SCALES, n);
    HX_RUN(p, kv_store, &p->rows->batch, HX_KV_WINDOW, p->il, p->rows->window_row, &codes, &scales);
    return 0;
}

const struct hx_tensor *hx_pass_turns(const struct hx_pass *p)
{
    return p->f->k->rotates && !p->tap ? p->freq : NULL;
}

int hx_pass_queries(struct hx_pass *p, bool have_latent)
{
    int n = p->out->batch.n_row;
    if (!have_latent) {
        HX_STEP(hx_pass_linear(p, HX_T_ATTN_WQ_A, HX_ACT_X, HX_ACT_QR, n));
        HX_STEP(hx_pass_norm(p, hx_pass_weight(p, HX_T_ATTN_Q_NORM), HX_ACT_QR, n));
    }
    HX_STEP(hx_pass_linear(p, HX_T_ATTN_WQ_B, HX_ACT_QR, HX_ACT_Q, n));
    if (!hx_pass_turns(p))
        HX_STEP(hx_pass_rope(p, HX_ACT_Q, &p->out->batch, false));
    HX_STEP(hx_pass_tap_act(p, "attn.qr", HX_ACT_QR, n));
    HX_STEP(hx_pass_tap_act(p, "attn.q", HX_ACT_Q, n));
    return 0;
}

int hx_pass_attn_out(struct hx_pass *p)
{
    int n = p->out->batch.n_row, n_group = p->f->hp->o_groups / p->f->n_ranks;
    if (!hx_pass_turns(p))
        HX_STEP(hx_pass_rope(p, HX_ACT_O, &p->out->batch, true));
    struct hx_tensor o = hx_pass_act(p, HX_ACT_O, n), a = hx_pass_act(p, HX_ACT_OA, n),
                     part = hx_pass_act(p, HX_PARTIAL(p), n), y = hx_pass_act(p, HX_ACT_Y, n);
    HX_RUN(p, linear_grouped, hx_pass_weight(p, HX_T_ATTN_WO_A), n_group, &o, &a);
    HX_STEP(hx_pass_linear(p, HX_T_ATTN_WO_B, HX_ACT_OA, HX_PARTIAL(p), n));
    HX_JOIN(p, sum, &part, &y);
    return 0;
}

/* ---- experts ---- */

int hx_pass_ffn(struct hx_pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->out->batch.n_row;
    HX_STEP(hx_pass_site(p, &hx_site_ffn, HX_T_FFN_NORM, n));
    HX_STEP(hx_pass_mix(p, &hx_site_ffn, n));
    struct hx_tensor z = hx_pass_act(p, HX_ACT_X, n), y = hx_pass_act(p, HX_ACT_Y, n),
                     part = hx_pass_act(p, HX_PARTIAL(p), n),
                     score = hx_pass_act(p, HX_ACT_ROUTE_SCORE, n),
                     sel = hx_pass_act(p, HX_ACT_ROUTE_EXPERT, n),
                     w = hx_pass_act(p, HX_ACT_ROUTE_WEIGHT, n);
    score.ne[1] = p->layer->n_expert;
    sel.ne[1] = w.ne[1] = p->layer->n_expert_used;
    HX_RUN(p, route,
           &(struct hx_route_args){.z = &z,
                                   .gate = hx_pass_weight(p, HX_T_GATE),
                                   .bias = hx_pass_weight(p, HX_T_GATE_BIAS),
                                   .bias_vl = hx_pass_weight(p, HX_T_GATE_BIAS_VL),
                                   .dead = p->out->batch.dead,
                                   .temp = (float)h->gate_temp,
                                   .route_scale = (float)h->route_scale,
                                   .norm = h->norm_topk_prob,
                                   .sel = &sel,
                                   .weight = &w,
                                   .score = &score});
    const struct hx_weight **const *e = p->layer->experts;
    HX_RUN(p, experts,
           &(struct hx_experts_args){.z = &z,
                                     .w1 = e[0],
                                     .w2 = e[1],
                                     .w3 = e[2],
                                     .n_expert = p->layer->n_expert,
                                     .sel = &sel,
                                     .weight = &w,
                                     .s1 = hx_pass_weight(p, HX_T_SHARED_W1),
                                     .s2 = hx_pass_weight(p, HX_T_SHARED_W2),
                                     .s3 = hx_pass_weight(p, HX_T_SHARED_W3),
                                     .limit = (float)h->swiglu_limit,
                                     .quantise = p->f->reference,
                                     .y = &part});
    HX_JOIN(p, sum, &part, &y);
    HX_STEP(hx_pass_tap(p, "ffn.x", &z));
    HX_STEP(hx_pass_tap(p, "router.score", &score));
    HX_STEP(hx_pass_tap(p, "router.expert", &sel));
    HX_STEP(hx_pass_tap(p, "router.weight", &w));
    HX_STEP(hx_pass_tap(p, "ffn.y", &y));
    return hx_pass_expand(p, n);
}
