/* The wiring: the order of operations of one pass (spec model.md section 3). The mathematics is in
 * the kernels, the choice of rows in row_sets.c. Choices that depend on data (experts, selected
 * rows, candidate blocks) stay on the device. */
#include <math.h>

#include "model/dsv41_pass.h"

/* ---- streams ---- */

/* Host rows of the tokens in a set, sequence after sequence, to the device. bytes: of a row. */
static int upload_rows(struct hx_pass *p, const struct hx_row_set *set, const void *host,
                       size_t bytes, void *dev)
{
    const uint8_t *from = host;
    uint8_t *to = dev;
    for (int i = 0; i < p->in->n_seq; i++) {
        const struct hx_forward_seq *q = &p->in->seq[i];
        int64_t skip = set->first_pos[i] - q->n_past;
        size_t n = (size_t)(q->n_tok - skip) * bytes;
        if (n > 0)
            HX_STEP(p->f->be->upload(p->f->dev, to, from + (size_t)skip * bytes, n, p->err));
        from += (size_t)q->n_tok * bytes;
        to += n;
    }
    return 0;
}

static int start_streams(struct hx_pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->rows->batch.n_row;
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), pre = hx_pass_act(p, p->pre, n);
    HX_RUN(p, embed, p->f->embed, p->f->rows.token, &streams, &pre);
    size_t row = (size_t)h->n_embd * 2;
    uint8_t *to = streams.data;
    const uint8_t *dead = p->in->dead;
    for (int i = 0; dead && i < p->in->n_seq; i++) {
        const struct hx_forward_seq *q = &p->in->seq[i];
        const uint16_t *from = q->embeds;
        for (int t = 0; t < q->n_tok; t++, dead++) {
            for (int s = 0; s < h->hc_mult; s++, to += row) {
                if (from && *dead)
                    HX_STEP(
                        p->f->be->upload(p->f->dev, to, from + (size_t)t * (row / 2), row, p->err));
            }
        }
    }
    return 0;
}

static int engram(struct hx_pass *p, int slot)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->rows->batch.n_row;
    struct hx_tensor codes = hx_pass_act(p, HX_ACT_ENGRAM_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_ENGRAM_SCALES, n),
                     v = hx_pass_act(p, HX_ACT_ENGRAM_V, n), z = hx_pass_act(p, HX_ACT_ENGRAM_Z, n),
                     streams = hx_pass_act(p, HX_ACT_STREAMS, n),
                     dot = hx_pass_act(p, HX_ACT_ENGRAM_DOT, n),
                     gate = hx_pass_act(p, HX_ACT_ENGRAM_GATE, n);
    size_t n_values = (size_t)(codes.ne[1] * codes.ne[2]);
    HX_STEP(hx_pass_grow(p, n));
    if (p->recording) {
        const uint32_t *ready = hx_graphs_engram(p->f, slot, &codes, &scales);
        HX_RUN(p, engram_fetch, &(struct hx_fetch_args){ready, &codes, &scales, &v});
    } else {
        if (p->in->engram_wait)
            HX_STEP(p->in->engram_wait(p->in->engram_user, slot, p->err));
        HX_STEP(upload_rows(p, p->rows, p->in->engram[slot].codes, n_values, codes.data));
        HX_STEP(upload_rows(p, p->rows, p->in->engram[slot].scales, n_values / 32, scales.data));
        HX_RUN(p, engram_rows, &codes, &scales, &v);
    }
    HX_STEP(hx_pass_linear(p, HX_T_ENGRAM_WKV, HX_ACT_ENGRAM_V, HX_ACT_ENGRAM_Z, n));
    HX_RUN(p, engram_gate,
           &(struct hx_engram_args){.streams = &streams,
                                    .z = &z,
                                    .q_weight = hx_pass_weight(p, HX_T_ENGRAM_Q),
                                    .k_weight = hx_pass_weight(p, HX_T_ENGRAM_K),
                                    .dead = p->rows->batch.dead,
                                    .eps = (float)h->rms_eps,
                                    .dot = &dot,
                                    .gate = &gate});
    HX_STEP(hx_pass_tap(p, "engram.v", &v));
    HX_STEP(hx_pass_tap(p, "engram.z", &z));
    HX_STEP(hx_pass_tap(p, "engram.dot", &dot));
    HX_STEP(hx_pass_tap(p, "engram.gate", &gate));
    HX_STEP(hx_pass_tap(p, "engram.streams", &streams));
    return 0;
}

/* ---- attention ---- */

/* Quantised compressed rows or keys of the groups in b. */
static int store_groups(struct hx_pass *p, enum hx_act x, enum hx_grid grid, enum hx_act c,
                        enum hx_act s, enum hx_kv_which which, const struct hx_batch *b,
                        const int64_t *row)
{
    struct hx_tensor t = hx_pass_act(p, x, b->n_row), codes = hx_pass_act(p, c, b->n_row),
                     scales = hx_pass_act(p, s, b->n_row);
    HX_STEP(hx_pass_rope(p, x, b, false));
    HX_RUN(p, quantise, grid, &t, &codes, &scales, NULL);
    HX_RUN(p, kv_store, b, which, p->il, row, &codes, &scales);
    return 0;
}

/* Compressed rows and index keys of the groups that end in this pass. */
static int compress(struct hx_pass *p)
{
    const struct hx_batch *all = &p->rows->batch, *b = all;
    const int64_t *row = all->pos;
    int n = all->n_row;
    if (p->f->hp->ratio[p->il] == 1) {
        HX_STEP(hx_pass_linear(p, HX_T_COMP_WKV, HX_ACT_X, HX_ACT_LATENT, n));
    } else {
        struct hx_tensor u = hx_pass_act(p, HX_ACT_COMP_U, n), g = hx_pass_act(p, HX_ACT_COMP_G, n);
        b = &p->f->rows.groups;
        row = p->f->rows.group_row;
        struct hx_tensor latent = hx_pass_act(p, HX_ACT_LATENT, b->n_row);
        HX_STEP(hx_pass_linear(p, HX_T_COMP_WKV, HX_ACT_X, HX_ACT_COMP_U, n));
        HX_STEP(hx_pass_linear(p, HX_T_COMP_WGATE, HX_ACT_X, HX_ACT_COMP_G, n));
        HX_RUN(p, pool_groups, all, p->il, &u, &g, b->seq, row, &latent);
    }
    if (b->n_row == 0)
        return 0;
    HX_STEP(hx_pass_norm(p, hx_pass_weight(p, HX_T_COMP_NORM), HX_ACT_LATENT, b->n_row));
    HX_STEP(hx_pass_linear(p, HX_T_INDEX_WK, HX_ACT_LATENT, HX_ACT_KEY, b->n_row));
    HX_STEP(hx_pass_norm(p, hx_pass_weight(p, HX_T_INDEX_K_NORM), HX_ACT_KEY, b->n_row));
    HX_STEP(store_groups(p, HX_ACT_KEY, HX_GRID_FP4_B32, HX_ACT_KEY_CODES, HX_ACT_KEY_SCALES,
                         HX_KV_KEY, b, row));
    return store_groups(p, HX_ACT_LATENT, HX_GRID_FP4_B16, HX_ACT_COMP_CODES, HX_ACT_COMP_SCALES,
                        HX_KV_COMP, b, row);
}

static int64_t most_visible(const struct hx_pass *p, int ratio)
{
    int64_t most = 0;
    for (int i = 0; i < p->in->n_seq; i++) {
        int64_t v = (p->in->seq[i].n_past + p->in->seq[i].n_tok) / ratio;
        most = v > most ? v : most;
    }
    return most;
}

/* A recording serves until the context has doubled. */
int64_t hx_pass_visible(const struct hx_pass *p, int ratio)
{
    int64_t n = most_visible(p, ratio), room = 64;
    if (!p->f->be->capture_begin)
        return n;
    while (room < n)
        room *= 2;
    return room;
}

static int select_rows(struct hx_pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->out->batch.n_row;
    HX_STEP(hx_pass_linear(p, HX_T_INDEX_WQ_B, HX_ACT_QR, HX_ACT_IQ, n));
    HX_STEP(hx_pass_linear(p, HX_T_INDEX_WEIGHTS, HX_ACT_X, HX_ACT_IW, n));
    struct hx_tensor iq = hx_pass_act(p, HX_ACT_IQ, n), codes = hx_pass_act(p, HX_ACT_IQ_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_IQ_SCALES, n), w = hx_pass_act(p, HX_ACT_IW, n),
                     topk = hx_pass_act(p, HX_ACT_TOPK, n), cand = hx_pass_act(p, HX_ACT_CAND, n);
    if (p->f->k->index_queries) {
        HX_RUN(p, index_queries, &iq, p->out->batch.pos, p->freq, &codes, &scales);
    } else {
        HX_STEP(hx_pass_rope(p, HX_ACT_IQ, &p->out->batch, false));
        HX_RUN(p, quantise, HX_GRID_FP4_B32, &iq, &codes, &scales, &iq);
    }
    if (p->tap) {
        p->score.ne[0] = n;
        p->score.ne[1] = most_visible(p, h->ratio[p->il]);
    }
    HX_RUN(p, index_select,
           &(struct hx_index_args){
               .batch = &p->out->batch,
               .source = p->f->maps->kv_source[p->il],
               .ratio = h->ratio[p->il],
               .n_visible = hx_pass_visible(p, h->ratio[p->il]),
               .q = &iq,
               .q_codes = &codes,
               .q_scales = &scales,
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
               .score = p->tap ? &p->score : NULL,
           });
    HX_STEP(hx_pass_tap(p, "index.q_codes", &codes));
    HX_STEP(hx_pass_tap(p, "index.q_scales", &scales));
    HX_STEP(hx_pass_tap(p, "index.w", &w));
    HX_STEP(hx_pass_tap(p, "index.score", &p->score));
    HX_STEP(hx_pass_tap(p, "index.topk", &topk));
    if (p->il == h->candidate_source)
        HX_STEP(hx_pass_tap(p, "index.cand", &cand));
    return 0;
}

static int attend(struct hx_pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n_in = p->rows->batch.n_row, n = p->out->batch.n_row;
    struct hx_tensor q = hx_pass_act(p, HX_ACT_Q, n), o = hx_pass_act(p, HX_ACT_O, n),
                     topk = hx_pass_act(p, HX_ACT_TOPK, n),
                     codes = hx_pass_act(p, HX_ACT_KV_CODES, n_in),
                     scales = hx_pass_act(p, HX_ACT_KV_SCALES, n_in);
    struct hx_batch b = p->out->batch; /* queries; keys of the pass are those of p->rows */
    b.first_pos = p->rows->batch.first_pos;
    b.first_row = p->rows->batch.first_row;
    HX_RUN(p, attend,
           &(struct hx_attend_args){.batch = &b,
                                    .layer = p->il,
                                    .source = p->f->maps->kv_source[p->il],
                                    .window = h->window,
                                    .q = &q,
                                    .fresh_codes = &codes,
                                    .fresh_scales = &scales,
                                    .sel = &topk,
                                    .sink = hx_pass_weight(p, HX_T_ATTN_SINK),
                                    .scale = (float)pow(h->head_dim, -0.5),
                                    .freq = hx_pass_turns(p),
                                    .o = &o});
    HX_STEP(hx_pass_tap(p, "attn.o", &o));
    return 0;
}

static int attention(struct hx_pass *p)
{
    const struct hx_maps *maps = p->f->maps;
    int n_in = p->rows->batch.n_row, n = p->out->batch.n_row;
    bool fewer = p->out != p->rows;
    HX_STEP(hx_pass_site(p, &hx_site_attn, HX_T_ATTN_NORM, n_in));
    HX_STEP(hx_pass_tap_act(p, "attn.x", HX_ACT_X, n_in));
    if (fewer) {
        HX_STEP(hx_pass_keep(p, HX_ACT_STREAMS, n_in, p->out));
        if (hx_pass_whole_sites(p)) {
            HX_STEP(hx_pass_keep(p, p->pre_next, n_in, p->out));
            HX_STEP(hx_pass_keep(p, HX_ACT_POST, n_in, p->out));
            HX_STEP(hx_pass_keep(p, HX_ACT_COMB, n_in, p->out));
        }
        if (p->f->draft)
            HX_STEP(hx_draft_keep_rows(p, n_in));
    }
    HX_STEP(hx_pass_mix(p, &hx_site_attn, n));
    bool have_latent;
    HX_STEP(hx_pass_latents(p, &have_latent));
    if (!have_latent)
        HX_STEP(hx_pass_window_rows(p));
    if (maps->is_kv_source[p->il])
        HX_STEP(compress(p));
    if (n == 0) /* the last layer of a pass without logits */
        return hx_pass_store_window(p);
    if (fewer) {
        HX_STEP(hx_pass_keep(p, HX_ACT_X, n_in, p->out));
        if (!maps->is_index_source[p->il])
            HX_STEP(hx_pass_keep(p, HX_ACT_TOPK, n_in, p->out));
        if (p->f->hp->candidate_source >= 0 && p->il > p->f->hp->candidate_source)
            HX_STEP(hx_pass_keep(p, HX_ACT_CAND, n_in, p->out));
    }
    HX_STEP(hx_pass_queries(p, have_latent));
    if (maps->is_index_source[p->il])
        HX_STEP(select_rows(p));
    HX_STEP(attend(p));
    HX_STEP(hx_pass_store_window(p));
    HX_STEP(hx_pass_attn_out(p));
    HX_STEP(hx_pass_tap_act(p, "attn.y", HX_ACT_Y, n));
    return hx_pass_expand(p, n);
}

/* ---- experts ---- */

/* ---- pass ---- */

static int layer(struct hx_pass *p, int il)
{
    const struct hx_row_sets *rows = &p->f->rows;
    p->il = il;
    p->layer = &p->f->layer[il];
    p->stored = false;
    p->freq = &p->f->freq[p->f->hp->ratio[il] ? 1 : 0];
    p->rows = &rows->set[rows->in[il]];
    p->out = &rows->set[rows->in[il + 1]];
    if (p->tap && il + 1 == p->f->hp->n_layer)
        p->out = p->rows; /* taps see all rows; the head takes its own */
    int n = p->rows->batch.n_row;
    p->f->layer_rows += p->out->batch.n_row;
    HX_STEP(hx_pass_tap_act(p, "streams", HX_ACT_STREAMS, n));
    if (p->f->maps->engram_slot[il] >= 0)
        HX_STEP(engram(p, p->f->maps->engram_slot[il]));
    if (p->f->maps->target_slot[il] >= 0 && p->f->draft)
        HX_STEP(hx_pass_grow(p, n));
    if (p->f->maps->target_slot[il] >= 0 && p->f->draft)
        HX_STEP(hx_draft_see_target(p, p->f->maps->target_slot[il]));
    HX_STEP(attention(p));
    if (p->out->batch.n_row == 0)
        return 0;
    HX_STEP(hx_pass_tap_act(p, "streams_mid", HX_ACT_STREAMS, p->out->batch.n_row));
    return hx_pass_ffn(p);
}

/* Tokens instead of logits, from row t of those with logits on. */
static int best_tokens(struct hx_pass *p, struct hx_tensor *logits, int t)
{
    struct hx_tensor tokens = hx_pass_act(p, HX_ACT_BEST, (int)logits->ne[0]);
    logits->n_dims = 3;
    logits->ne[2] = logits->ne[1];
    logits->ne[1] = 1;
    HX_RUN(p, best, logits, &tokens);
    HX_JOIN(p, best, logits, 0, &tokens);
    return p->f->be->download(p->f->dev, hx_graphs_best(p->f) + 2 * t, tokens.data,
                              (size_t)logits->ne[0] * 2 * sizeof(int32_t), p->err);
}

static int head(struct hx_pass *p)
{
    const struct hx_row_sets *rows = &p->f->rows;
    const struct hx_row_set *wanted = &rows->set[rows->in[p->f->hp->n_layer]];
    int n = wanted->batch.n_row;
    p->il = p->f->hp->n_layer;
    HX_STEP(hx_pass_grow(p, p->out->batch.n_row));
    if (wanted != p->out) {
        HX_STEP(hx_pass_keep(p, HX_ACT_STREAMS, p->out->batch.n_row, wanted));
        HX_STEP(hx_pass_keep(p, p->pre, p->out->batch.n_row, wanted));
    }
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), pre = hx_pass_act(p, p->pre, n),
                     x = hx_pass_act(p, HX_ACT_X, n);
    p->il = -1;
    HX_STEP(hx_pass_tap(p, "final.streams", &streams));
    HX_RUN(p, hc_collapse, &streams, &pre, &x);
    HX_STEP(hx_pass_tap(p, "final.h", &x));
    HX_STEP(hx_pass_norm(p, p->f->norm, HX_ACT_X, n));
    HX_STEP(hx_pass_tap(p, "final.hn", &x));
    size_t row = (size_t)p->f->hp->n_vocab * sizeof(float), x_row = (size_t)p->f->hp->n_embd * 2;
    for (int t = 0; t < n; t += HX_HEAD_ROWS) {
        int m = n - t < HX_HEAD_ROWS ? n - t : HX_HEAD_ROWS;
        struct hx_tensor logits = hx_pass_act(p, HX_ACT_LOGITS, m),
                         some = hx_pass_act(p, HX_ACT_X, m);
        some.data = (uint8_t *)x.data + (size_t)t * x_row;
        HX_RUN(p, linear, p->f->head, false, &some, &logits);
        if (!p->in->logits) {
            HX_STEP(best_tokens(p, &logits, t));
            continue;
        }
        if (p->f->comm) {
            struct hx_tensor all = hx_pass_act(p, HX_ACT_ALL_LOGITS, m);
            HX_JOIN(p, gather, &logits, &all);
            logits = all;
        }
        float *to = p->recording ? hx_graphs_logits(p->f) : p->in->logits;
        HX_STEP(p->f->be->download(p->f->dev, (uint8_t *)to + (size_t)t * row, logits.data,
                                   (size_t)m * row, p->err));
    }
    return 0;
}

static int check(const struct hx_forward *f, const struct hx_forward_in *in, struct hx_error *err)
{
    int64_t n = 0, n_logits = 0;
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
        if (q->n_logits > 0 && !in->logits && !in->best)
            return hx_fail(err, -EINVAL, "sequence %d of a pass: no room for its logits", i);
        if (q->n_past > f->hp->max_positions - q->n_tok)
            return hx_fail(err, -EINVAL,
                           "sequence %d of a pass: %d rows behind %lld: the limit is %lld", i,
                           q->n_tok, (long long)q->n_past, (long long)f->hp->max_positions);
        n += q->n_tok;
        n_logits += q->n_logits;
    }
    if (!in->logits && n_logits > HX_BEST_ROWS)
        return hx_fail(err, -EINVAL, "pass with the best tokens of %lld rows: the limit is %d",
                       (long long)n_logits, HX_BEST_ROWS);
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

/* Everything behind the upload of the row sets. */
static int queue_layers(struct hx_pass *p)
{
    struct hx_forward *f = p->f;
    f->layer_rows = 0;
    p->grown = false;
    p->pre = HX_ACT_PRE;
    p->pre_next = HX_ACT_PRE2;
    p->rows = &f->rows.set[0];
    HX_STEP(start_streams(p));
    for (int il = 0; il < f->hp->n_layer; il++)
        HX_STEP(layer(p, il));
    return head(p);
}

static int run_layers(struct hx_pass *p)
{
    struct hx_forward *f = p->f;
    HX_STEP(hx_row_sets_build(&f->rows, p->in, p->err));
    if (f->draft)
        hx_draft_note_pass(f, p->in);
    HX_STEP(hx_graphs_run(p, hx_graphs_pass_kind(p), queue_layers));
    size_t n = (size_t)f->rows.set[f->rows.in[f->hp->n_layer]].batch.n_row;
    for (size_t i = 0; !p->in->logits && i < n; i++)
        p->in->best[i] = hx_graphs_best(f)[2 * i + 1];
    return 0;
}

int hx_forward_run(struct hx_forward *f, const struct hx_forward_in *in, struct hx_error *err)
{
    HX_STEP(check(f, in, err));
    struct hx_pass p = {
        .f = f, .in = in, .tap = in->tap, .tap_user = in->tap_user, .err = err, .il = -1};
    struct hx_buffer *score = NULL;
    if (in->tap) { /* index scores are kept for taps alone */
        int64_t rows = 0, most = 1;
        for (int i = 0; i < in->n_seq; i++) {
            int64_t end = in->seq[i].n_past + in->seq[i].n_tok;
            rows += in->seq[i].n_tok;
            most = end > most ? end : most;
        }
        HX_STEP(f->be->alloc(f->dev, HX_MEM_DEVICE, (size_t)(rows * most) * sizeof(float), &score,
                             err));
        p.score = (struct hx_tensor){.dtype = HX_DTYPE_F32, .n_dims = 2, .ne = {0, 0, 1, 1}};
        p.score.data = f->be->address(score);
    }
    int r = run_layers(&p);
    if (r < 0 && f->comm)
        f->comm->ops->stop(f->comm, err);
    if (score)
        f->be->free(score);
    return r;
}
