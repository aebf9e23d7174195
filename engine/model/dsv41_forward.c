/* The wiring of DeepSeek-V4.1: the only file that knows the order of operations (spec model.md
 * section 3).
 *
 * Rows of a pass are kept compact. Layers past the last KV source only need the rows that the
 * wanted logits, the windows of later tokens and the drafter depend on (section 7, "exact prefill
 * short cut"); after a layer's KV rows are written the others are dropped. With a tap all rows
 * stay. */
#include <string.h>

#include "model/forward_state.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_result = (call);                                                                   \
        if (try_result < 0)                                                                        \
            return try_result;                                                                     \
    } while (0)

struct pass {
    struct hx_forward *f;
    const struct hx_forward_in *in;
    struct hx_batch batch;
    struct hx_error *err;
    int n_row;
    int64_t first_out[HX_MAX_LAYERS]; /* of the sequence that is looked at */
};

static const struct hx_weight *weight(const struct pass *p, enum hx_role role, int il)
{
    return hx_model_weight(p->f->m, role, il, -1);
}

static void tap(const struct pass *p, const char *name, int il, const struct hx_tensor *t)
{
    if (p->in->tap)
        p->in->tap(p->in->tap_user, name, il, t);
}

static struct hx_tensor *rows(struct hx_tensor *t, int n)
{
    t->ne[0] = n;
    return t;
}

static int push(const struct pass *p, void *device, const void *host, size_t n)
{
    return n ? p->f->be->upload(p->f->dev, device, host, n, p->err) : 0;
}

/* ---- which rows
 * -------------------------------------------------------------------------------------- */

/* First position of a sequence whose output of each layer is needed. */
static void needed_outputs(struct pass *p, const struct hx_forward_seq *s)
{
    const struct hx_hparams *h = p->f->hp;
    int64_t n = s->n_past + s->n_tok, wanted = s->n_logits > 0 ? s->n_logits : 1;
    int64_t *out = p->first_out;
    out[h->n_layer - 1] = n - wanted;
    for (int il = h->n_layer - 1; il > 0; il--) {
        int64_t first_in = p->f->maps->is_kv_source[il] ? s->n_past : out[il] - (h->window - 1);
        if (p->f->maps->target_slot[il] >= 0 && n - h->window < first_in)
            first_in = n - h->window;
        out[il - 1] = first_in > s->n_past ? first_in : s->n_past;
    }
}

static int publish_rows(struct pass *p)
{
    struct hx_forward_rows *r = &p->f->rows;
    size_t n = (size_t)r->n;
    TRY(push(p, r->d_seq, r->seq, n * sizeof(*r->seq)));
    TRY(push(p, r->d_pos, r->pos, n * sizeof(*r->pos)));
    TRY(push(p, r->d_dead, r->dead, n));
    p->n_row = p->batch.n_row = r->n;
    return 0;
}

/* Where each sequence's rows begin: what `fresh` rows are indexed by. */
static int publish_firsts(struct pass *p)
{
    struct hx_forward *f = p->f;
    for (int i = f->rows.n - 1; i >= 0; i--) {
        f->first_row[f->rows.seq[i]] = i;
        f->first_pos[f->rows.seq[i]] = f->rows.pos[i];
    }
    TRY(push(p, f->d_first_row, f->first_row, (size_t)p->in->n_seq * sizeof(*f->first_row)));
    return push(p, f->d_first_pos, f->first_pos, (size_t)p->in->n_seq * sizeof(*f->first_pos));
}

static int begin_rows(struct pass *p)
{
    struct hx_forward *f = p->f;
    struct hx_forward_rows *r = &f->rows;
    int n = 0;
    for (int s = 0; s < p->in->n_seq; s++) {
        f->views[s] = p->in->seq[s].kv;
        for (int i = 0; i < p->in->seq[s].n_tok; i++, n++) {
            if (n == f->max_tok)
                return hx_fail(p->err, -EINVAL, "a pass of more than %d rows", f->max_tok);
            int32_t token = p->in->token[n];
            if (token < 0 || token >= f->hp->n_vocab)
                return hx_fail(p->err, -EINVAL, "token id %d, expected 0 to %d", token,
                               f->hp->n_vocab - 1);
            r->seq[n] = s;
            r->pos[n] = p->in->seq[s].n_past + i;
            r->dead[n] = p->in->dead ? p->in->dead[n] : 0;
        }
    }
    r->n = n;
    TRY(push(p, f->d_token, p->in->token, (size_t)n * sizeof(*f->d_token)));
    p->batch = (struct hx_batch){n,         p->in->n_seq,   r->d_seq,       r->d_pos,
                                 r->d_dead, f->d_first_pos, f->d_first_row, f->views};
    return publish_rows(p);
}

/* Lists the rows whose output of layer il is needed; returns how many. */
static int list_kept(struct pass *p, int il)
{
    struct hx_forward_rows *r = &p->f->rows;
    int n = 0, seq = -1;
    for (int i = 0; i < r->n; i++) {
        if (r->seq[i] != seq) {
            seq = r->seq[i];
            needed_outputs(p, &p->in->seq[seq]);
        }
        if (r->pos[i] >= p->first_out[il])
            p->f->keep[n++] = i;
    }
    return n;
}

/* Drops the rows that are not in f->keep[0..n) from the row list and from the given tensors. */
static int drop_rows(struct pass *p, int n, struct hx_tensor *const *tensor, int n_tensors)
{
    struct hx_forward *f = p->f;
    struct hx_forward_rows *r = &f->rows;
    TRY(push(p, f->d_keep, f->keep, (size_t)n * sizeof(*f->keep)));
    for (int i = 0; i < n_tensors; i++)
        TRY(f->k->keep_rows(f->dev, tensor[i], f->d_keep, n, p->err));
    for (int i = 0; i < n; i++) {
        r->seq[i] = r->seq[f->keep[i]];
        r->pos[i] = r->pos[f->keep[i]];
        r->dead[i] = r->dead[f->keep[i]];
    }
    r->n = n;
    return publish_rows(p);
}

/* ---- Engram and drafter input
 * ------------------------------------------------------------------------ */

static int engram(struct pass *p, int il, int slot)
{
    struct hx_forward *f = p->f;
    const struct hx_hparams *h = f->hp;
    struct hx_forward_tensors *t = &f->t;
    int cols = (h->engram_ngram - 1) * h->engram_n_head;
    const struct hx_tensor codes = {HX_DTYPE_U8,
                                    3,
                                    {p->n_row, cols, h->engram_dim, 1},
                                    (void *)(uintptr_t)p->in->engram[slot].codes};
    const struct hx_tensor scales = {HX_DTYPE_U8,
                                     3,
                                     {p->n_row, cols, h->engram_dim / 32, 1},
                                     (void *)(uintptr_t)p->in->engram[slot].scales};
    TRY(f->k->engram_rows(f->dev, &codes, &scales, rows(&t->ev, p->n_row), p->err));
    tap(p, "engram.v", il, &t->ev);
    TRY(f->k->linear(f->dev, weight(p, HX_T_ENGRAM_WKV, il), f->mode == HX_MODE_REFERENCE, &t->ev,
                     rows(&t->ez, p->n_row), p->err));
    tap(p, "engram.z", il, &t->ez);
    const struct hx_engram_args a = {&t->streams,
                                     &t->ez,
                                     weight(p, HX_T_ENGRAM_Q, il),
                                     weight(p, HX_T_ENGRAM_K, il),
                                     p->batch.dead,
                                     (float)h->rms_eps,
                                     rows(&t->edot, p->n_row),
                                     rows(&t->egate, p->n_row)};
    TRY(f->k->engram_gate(f->dev, &a, p->err));
    tap(p, "engram.dot", il, &t->edot);
    tap(p, "engram.gate", il, &t->egate);
    tap(p, "engram.streams", il, &t->streams);
    return 0;
}

/* ---- hyper-connection sites
 * -------------------------------------------------------------------------- */

static const struct site {
    enum hx_role fn, base, scale, norm;
    const char *x, *y, *pre, *post, *comb;
} sites[2] = {
    {HX_T_HC_ATTN_FN, HX_T_HC_ATTN_BASE, HX_T_HC_ATTN_SCALE, HX_T_ATTN_NORM, "attn.x", "attn.y",
     "attn.pre", "attn.post", "attn.comb"},
    {HX_T_HC_FFN_FN, HX_T_HC_FFN_BASE, HX_T_HC_FFN_SCALE, HX_T_FFN_NORM, "ffn.x", "ffn.y",
     "ffn.pre", "ffn.post", "ffn.comb"},
};

/* x = RMSNorm(collapse(streams, pre of the site before)). */
static int site_input(struct pass *p, int il, const struct site *s)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    TRY(f->k->hc_collapse(f->dev, &t->streams, &t->pre, rows(&t->x, p->n_row), p->err));
    TRY(f->k->rms_norm(f->dev, weight(p, s->norm, il), (float)f->hp->rms_eps, &t->x, &t->x,
                       p->err));
    tap(p, s->x, il, &t->x);
    return 0;
}

/* Coefficients from the streams as they are before this site's expand. */
static int site_mix(struct pass *p, int il, const struct site *s)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    const struct hx_hc_args a = {&t->streams,
                                 weight(p, s->fn, il),
                                 weight(p, s->base, il),
                                 weight(p, s->scale, il),
                                 f->hp->hc_iters,
                                 (float)f->hp->rms_eps,
                                 (float)f->hp->hc_eps,
                                 rows(&t->pre_next, p->n_row),
                                 rows(&t->post, p->n_row),
                                 rows(&t->comb, p->n_row)};
    TRY(f->k->hc_mix(f->dev, &a, p->err));
    tap(p, s->pre, il, &t->pre_next);
    tap(p, s->post, il, &t->post);
    tap(p, s->comb, il, &t->comb);
    return 0;
}

static int site_output(struct pass *p, int il, const struct site *s)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    tap(p, s->y, il, &t->y);
    TRY(f->k->hc_expand(f->dev, &t->y, &t->post, &t->comb, &t->streams, p->err));
    struct hx_tensor swap = t->pre; /* the next site collapses with what this one computed */
    t->pre = t->pre_next;
    t->pre_next = swap;
    return 0;
}

/* ---- attention
 * --------------------------------------------------------------------------------------- */

static const struct hx_tensor *freqs(const struct pass *p, int il)
{
    return p->f->hp->ratio[il] ? &p->f->t.freq_comp : &p->f->t.freq_main;
}

static int window_rows(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    TRY(f->k->linear(f->dev, weight(p, HX_T_ATTN_WKV, il), f->mode == HX_MODE_REFERENCE, &t->x,
                     rows(&t->kv, p->n_row), p->err));
    TRY(f->k->rms_norm(f->dev, weight(p, HX_T_ATTN_KV_NORM, il), (float)f->hp->rms_eps, &t->kv,
                       &t->kv, p->err));
    TRY(f->k->rope(f->dev, &t->kv, p->batch.pos, freqs(p, il), false, p->err));
    return f->k->quantise(f->dev, HX_GRID_FP8_B32, &t->kv, rows(&t->fresh_codes, p->n_row),
                          rows(&t->fresh_scales, p->n_row), NULL, p->err);
}

/* Into the ring, after the layer's attention: a pass longer than the ring would overwrite its own
 * keys. rows are the pass's rows before any were dropped; only the newest of each sequence that fit
 * the ring are stored. */
static int store_window(struct pass *p, int il, int n_fresh)
{
    struct hx_forward *f = p->f;
    for (int s = 0, i = 0; s < p->in->n_seq; s++) {
        const struct hx_forward_seq *q = &p->in->seq[s];
        int64_t end = q->n_past + q->n_tok, ring = q->kv->window[il].ring;
        for (int64_t pos = f->first_pos[s]; q->n_tok > 0 && pos < end; pos++, i++) {
            f->group_seq[i] = s;
            f->group_row[i] = pos >= end - ring ? pos : -1;
        }
    }
    TRY(push(p, f->d_group_seq, f->group_seq, (size_t)n_fresh * sizeof(*f->group_seq)));
    TRY(push(p, f->d_group_row, f->group_row, (size_t)n_fresh * sizeof(*f->group_row)));
    struct hx_tensor codes = f->t.fresh_codes, scales = f->t.fresh_scales;
    codes.ne[0] = scales.ne[0] = n_fresh;
    return f->k->kv_store(f->dev, f->views, HX_KV_WINDOW, il, f->d_group_seq, f->d_group_row,
                          &codes, &scales, p->err);
}

/* Groups that end in this pass; row j of the source covers tokens ratio j .. ratio j + ratio - 1.
 */
static int list_groups(struct pass *p, int ratio)
{
    struct hx_forward *f = p->f;
    int n = 0;
    for (int i = 0; i < p->n_row; i++) {
        if ((f->rows.pos[i] + 1) % ratio != 0)
            continue;
        f->group_seq[n] = f->rows.seq[i];
        f->group_row[n] = f->rows.pos[i] / ratio;
        f->group_pos[n] = f->rows.pos[i] / ratio * ratio;
        n++;
    }
    return n;
}

/* Quantises rows of x onto a grid and stores them as rows of source il. */
static int store_groups(struct pass *p, int il, enum hx_kv_which which, const struct hx_tensor *x,
                        int n)
{
    struct hx_forward *f = p->f;
    struct hx_tensor codes = f->t.codes, scales = f->t.scales;
    bool comp = which == HX_KV_COMP;
    codes.ne[0] = scales.ne[0] = n;
    codes.ne[1] = x->ne[1] / 2;
    scales.ne[1] = x->ne[1] / (comp ? 16 : 32);
    TRY(f->k->quantise(f->dev, comp ? HX_GRID_FP4_B16 : HX_GRID_FP4_B32, x, &codes, &scales, NULL,
                       p->err));
    return f->k->kv_store(f->dev, f->views, which, il, f->d_group_seq, f->d_group_row, &codes,
                          &scales, p->err);
}

static int compress(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    int ratio = f->hp->ratio[il], n = list_groups(p, ratio);
    size_t count = (size_t)n;
    float eps = (float)f->hp->rms_eps;
    TRY(push(p, f->d_group_seq, f->group_seq, count * sizeof(*f->group_seq)));
    TRY(push(p, f->d_group_row, f->group_row, count * sizeof(*f->group_row)));
    TRY(push(p, f->d_group_pos, f->group_pos, count * sizeof(*f->group_pos)));
    rows(&t->lat, n);
    rows(&t->key, n);
    if (ratio == 1) {
        TRY(f->k->linear(f->dev, weight(p, HX_T_COMP_WKV, il), false, &t->x, &t->lat, p->err));
    } else {
        TRY(f->k->linear(f->dev, weight(p, HX_T_COMP_WKV, il), false, &t->x, rows(&t->u, p->n_row),
                         p->err));
        TRY(f->k->linear(f->dev, weight(p, HX_T_COMP_WGATE, il), false, &t->x,
                         rows(&t->g, p->n_row), p->err));
        TRY(f->k->pool_groups(f->dev, &p->batch, il, &t->u, &t->g, f->d_group_seq, f->d_group_row,
                              &t->lat, p->err));
    }
    if (n == 0)
        return 0;
    TRY(f->k->rms_norm(f->dev, weight(p, HX_T_COMP_NORM, il), eps, &t->lat, &t->lat, p->err));
    TRY(f->k->linear(f->dev, weight(p, HX_T_INDEX_WK, il), false, &t->lat, &t->key, p->err));
    TRY(f->k->rms_norm(f->dev, weight(p, HX_T_INDEX_K_NORM, il), eps, &t->key, &t->key, p->err));
    TRY(f->k->rope(f->dev, &t->key, f->d_group_pos, &t->freq_comp, false, p->err));
    TRY(f->k->rope(f->dev, &t->lat, f->d_group_pos, &t->freq_comp, false, p->err));
    TRY(store_groups(p, il, HX_KV_KEY, &t->key, n));
    return store_groups(p, il, HX_KV_COMP, &t->lat, n);
}

/* Scores of all visible rows are only kept for a tap. */
static int tapped_scores(struct pass *p, int ratio, struct hx_buffer **buf, struct hx_tensor *score)
{
    int64_t most = 1;
    for (int i = 0; i < p->n_row; i++) {
        int64_t v = (p->f->rows.pos[i] + 1) / ratio;
        most = v > most ? v : most;
    }
    TRY(p->f->be->alloc(p->f->dev, HX_MEM_DEVICE, (size_t)p->n_row * (size_t)most * sizeof(float),
                        buf, p->err));
    *score = (struct hx_tensor){HX_DTYPE_F32, 2, {p->n_row, most, 1, 1}, p->f->be->address(*buf)};
    return 0;
}

static int select_rows(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    const struct hx_hparams *h = f->hp;
    struct hx_forward_tensors *t = &f->t;
    TRY(f->k->linear(f->dev, weight(p, HX_T_INDEX_WQ_B, il), f->mode == HX_MODE_REFERENCE, &t->qr,
                     rows(&t->iq, p->n_row), p->err));
    TRY(f->k->rope(f->dev, &t->iq, p->batch.pos, &t->freq_comp, false, p->err));
    TRY(f->k->quantise(f->dev, HX_GRID_FP4_B32, &t->iq, rows(&t->iq_codes, p->n_row),
                       rows(&t->iq_scales, p->n_row), &t->iq, p->err));
    TRY(f->k->linear(f->dev, weight(p, HX_T_INDEX_WEIGHTS, il), false, &t->x,
                     rows(&t->iw, p->n_row), p->err));
    double factor =
        1.0 / __builtin_sqrt((double)h->index_head_dim) / __builtin_sqrt((double)h->index_n_head);
    struct hx_buffer *score_buf = NULL;
    struct hx_tensor score;
    if (p->in->tap)
        TRY(tapped_scores(p, h->ratio[il], &score_buf, &score));
    const struct hx_index_args a = {
        .batch = &p->batch,
        .source = f->maps->kv_source[il],
        .ratio = h->ratio[il],
        .q = &t->iq,
        .w = &t->iw,
        .factor = (float)factor,
        .reference = f->mode == HX_MODE_REFERENCE,
        .topk = h->index_topk,
        .cand_block = h->candidate_block,
        .n_cand = h->candidate_blocks,
        .write_cand = il == h->candidate_source,
        .read_cand = h->candidate_source >= 0 && il > h->candidate_source,
        .sel = rows(&t->sel, p->n_row),
        .cand = rows(&t->cand, p->n_row),
        .score = score_buf ? &score : NULL,
    };
    int r = f->k->index_select(f->dev, &a, p->err);
    if (r == 0) {
        tap(p, "index.q_codes", il, &t->iq_codes);
        tap(p, "index.q_scales", il, &t->iq_scales);
        tap(p, "index.w", il, &t->iw);
        if (score_buf)
            tap(p, "index.score", il, &score);
        tap(p, "index.topk", il, &t->sel);
        if (a.write_cand)
            tap(p, "index.cand", il, &t->cand);
    }
    if (score_buf)
        f->be->free(score_buf);
    return r;
}

static int attend(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    const struct hx_hparams *h = f->hp;
    struct hx_forward_tensors *t = &f->t;
    const struct hx_attend_args a = {
        .batch = &p->batch,
        .layer = il,
        .source = f->maps->kv_source[il],
        .window = h->window,
        .q = &t->q,
        .fresh_codes = &t->fresh_codes,
        .fresh_scales = &t->fresh_scales,
        .sel = &t->sel,
        .sink = weight(p, HX_T_ATTN_SINK, il),
        .scale = (float)(1.0 / __builtin_sqrt((double)h->head_dim)),
        .o = rows(&t->o, p->n_row),
    };
    TRY(f->k->attend(f->dev, &a, p->err));
    tap(p, "attn.o", il, &t->o);
    TRY(f->k->rope(f->dev, &t->o, p->batch.pos, freqs(p, il), true, p->err));
    const struct hx_tensor grouped = {
        HX_DTYPE_BF16,
        3,
        {p->n_row, h->o_groups, (int64_t)h->n_head * h->head_dim / h->o_groups, 1},
        t->o.data};
    TRY(f->k->linear_grouped(f->dev, weight(p, HX_T_ATTN_WO_A, il), h->o_groups, &grouped,
                             rows(&t->a, p->n_row), p->err));
    return f->k->linear(f->dev, weight(p, HX_T_ATTN_WO_B, il), f->mode == HX_MODE_REFERENCE, &t->a,
                        rows(&t->y, p->n_row), p->err);
}

static int attention_site(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    bool reference = f->mode == HX_MODE_REFERENCE;
    TRY(publish_firsts(p));
    TRY(site_input(p, il, &sites[0]));
    TRY(window_rows(p, il));
    if (f->maps->is_kv_source[il])
        TRY(compress(p, il));
    int n_fresh = p->n_row, kept = p->in->tap ? n_fresh : list_kept(p, il);
    if (kept < n_fresh) {
        struct hx_tensor *live[] = {&t->streams, &t->x, &t->sel, &t->cand};
        rows(&t->sel, n_fresh);
        rows(&t->cand, n_fresh);
        TRY(drop_rows(p, kept, live, 4));
    }
    TRY(site_mix(p, il, &sites[0]));
    TRY(f->k->linear(f->dev, weight(p, HX_T_ATTN_WQ_A, il), reference, &t->x,
                     rows(&t->qr, p->n_row), p->err));
    TRY(f->k->rms_norm(f->dev, weight(p, HX_T_ATTN_Q_NORM, il), (float)f->hp->rms_eps, &t->qr,
                       &t->qr, p->err));
    tap(p, "attn.qr", il, &t->qr);
    TRY(f->k->linear(f->dev, weight(p, HX_T_ATTN_WQ_B, il), reference, &t->qr,
                     rows(&t->q, p->n_row), p->err));
    TRY(f->k->rope(f->dev, &t->q, p->batch.pos, freqs(p, il), false, p->err));
    tap(p, "attn.q", il, &t->q);
    if (f->maps->is_index_source[il])
        TRY(select_rows(p, il));
    TRY(attend(p, il));
    TRY(store_window(p, il, n_fresh));
    return site_output(p, il, &sites[0]);
}

/* ---- experts
 * ----------------------------------------------------------------------------------------- */

static int ffn_site(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    const struct hx_hparams *h = f->hp;
    struct hx_forward_tensors *t = &f->t;
    TRY(site_input(p, il, &sites[1]));
    TRY(site_mix(p, il, &sites[1]));
    const struct hx_route_args route = {
        .z = &t->x,
        .gate = weight(p, HX_T_GATE, il),
        .bias = weight(p, HX_T_GATE_BIAS, il),
        .bias_vl = weight(p, HX_T_GATE_BIAS_VL, il),
        .dead = p->batch.dead,
        .temp = (float)h->gate_temp,
        .route_scale = (float)h->route_scale,
        .norm = h->norm_topk_prob,
        .sel = rows(&t->expert, p->n_row),
        .weight = rows(&t->weight, p->n_row),
        .score = rows(&t->score, p->n_row),
    };
    TRY(f->k->route(f->dev, &route, p->err));
    tap(p, "router.score", il, &t->score);
    tap(p, "router.expert", il, &t->expert);
    tap(p, "router.weight", il, &t->weight);
    const struct hx_experts_args experts = {
        .z = &t->x,
        .w1 = f->expert[0] + (size_t)il * (size_t)h->n_expert,
        .w2 = f->expert[1] + (size_t)il * (size_t)h->n_expert,
        .w3 = f->expert[2] + (size_t)il * (size_t)h->n_expert,
        .n_expert = h->n_expert,
        .sel = &t->expert,
        .weight = &t->weight,
        .s1 = weight(p, HX_T_SHARED_W1, il),
        .s2 = weight(p, HX_T_SHARED_W2, il),
        .s3 = weight(p, HX_T_SHARED_W3, il),
        .limit = (float)h->swiglu_limit,
        .quantise = f->mode == HX_MODE_REFERENCE,
        .y = rows(&t->y, p->n_row),
    };
    TRY(f->k->experts(f->dev, &experts, p->err));
    return site_output(p, il, &sites[1]);
}

/* ---- whole pass
 * -------------------------------------------------------------------------------------- */

static int layer(struct pass *p, int il)
{
    struct hx_forward *f = p->f;
    tap(p, "streams", il, &f->t.streams);
    if (f->maps->engram_slot[il] >= 0)
        TRY(engram(p, il, f->maps->engram_slot[il]));
    if (f->maps->target_slot[il] >= 0 && p->in->tap) {
        TRY(f->k->stream_mean(f->dev, &f->t.streams, rows(&f->t.mean, p->n_row), p->err));
        tap(p, "target", il, &f->t.mean);
    }
    TRY(attention_site(p, il));
    tap(p, "streams_mid", il, &f->t.streams);
    return ffn_site(p, il);
}

/* Logits of the last n_logits rows of every sequence. */
static int head(struct pass *p)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    tap(p, "final.streams", -1, &t->streams);
    if (p->in->tap) {
        TRY(f->k->hc_collapse(f->dev, &t->streams, &t->pre, rows(&t->x, p->n_row), p->err));
        tap(p, "final.h", -1, &t->x);
        TRY(f->k->rms_norm(f->dev, weight(p, HX_T_NORM, -1), (float)f->hp->rms_eps, &t->x, &t->x,
                           p->err));
        tap(p, "final.hn", -1, &t->x);
    }
    int n = 0;
    for (int i = 0; i < p->n_row; i++) {
        const struct hx_forward_seq *s = &p->in->seq[f->rows.seq[i]];
        if (f->rows.pos[i] >= s->n_past + s->n_tok - s->n_logits)
            f->keep[n++] = i;
    }
    if (n == 0)
        return 0;
    struct hx_tensor *live[] = {&t->streams, &t->pre};
    TRY(drop_rows(p, n, live, 2));
    TRY(f->k->hc_collapse(f->dev, &t->streams, &t->pre, rows(&t->x, n), p->err));
    TRY(f->k->rms_norm(f->dev, weight(p, HX_T_NORM, -1), (float)f->hp->rms_eps, &t->x, &t->x,
                       p->err));
    size_t row_bytes = (size_t)f->hp->n_vocab * sizeof(float);
    for (int i = 0; i < n; i += HX_HEAD_ROWS) {
        struct hx_tensor x = t->x;
        int m = n - i < HX_HEAD_ROWS ? n - i : HX_HEAD_ROWS;
        x.ne[0] = m;
        x.data = (uint16_t *)t->x.data + (int64_t)i * f->hp->n_embd;
        TRY(f->k->linear(f->dev, weight(p, HX_T_HEAD, -1), false, &x, rows(&t->logits, m), p->err));
        TRY(f->be->download(f->dev, p->in->logits + (size_t)i * (size_t)f->hp->n_vocab,
                            t->logits.data, (size_t)m * row_bytes, p->err));
    }
    return 0;
}

static int run_pass(struct pass *p)
{
    struct hx_forward *f = p->f;
    struct hx_forward_tensors *t = &f->t;
    TRY(begin_rows(p));
    TRY(f->k->embed(f->dev, weight(p, HX_T_EMBED, -1), f->d_token, rows(&t->streams, p->n_row),
                    p->err));
    /* The first site sees stream 0 alone: pre = (1, 0, 0, ...). */
    rows(&t->pre, p->n_row);
    rows(&t->pre_next, p->n_row);
    float one[HX_MAX_HC] = {1};
    for (int i = 0; i < p->n_row; i++)
        TRY(push(p, (float *)t->pre.data + (int64_t)i * f->hp->hc_mult, one,
                 (size_t)f->hp->hc_mult * 4));
    for (int il = 0; il < f->hp->n_layer; il++) {
        int r = layer(p, il);
        if (r < 0)
            return hx_wrap(p->err, r, "layer %d", il);
    }
    TRY(head(p));
    return f->be->sync(f->dev, p->err);
}

int hx_forward_run(struct hx_forward *f, const struct hx_forward_in *in, struct hx_error *err)
{
    if (in->n_seq > f->max_seq)
        return hx_fail(err, -EINVAL, "a pass of %d sequences, at most %d", in->n_seq, f->max_seq);
    struct pass p = {.f = f, .in = in, .err = err};
    return run_pass(&p);
}
