/* The drafter's wiring (spec dspark.md sections 1 and 2): context rows of committed positions, and
 * a block of drafts. Its layers are the backbone's without compressed rows and Engram; their
 * weights, window rings and taps are those of layers n_layer, n_layer + 1, ... */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/dsv41_pass.h"

#define ALIGN 256

struct hx_draft {
    const struct hx_weight *main_proj, *main_norm, *norm, *markov_embed, *markov_head, *confidence;
    int first_target, last_target; /* layers */
    int max_seq;
    struct hx_tensor main;              /* BF16 [rows, n_target, D]: stream means */
    struct hx_tensor base, logits;      /* F32 [n_seq, block, tokens of this rank] */
    struct hx_tensor latent;            /* BF16 [n_seq block, rank] */
    struct hx_tensor tokens;            /* I32 [n_seq, block + 1]: anchor, drafts, in arrays */
    const int32_t *id;                  /* [n_seq block] tokens of the block, in arrays */
    struct hx_tensor z;                 /* F32 [n_seq block] */
    const struct hx_row_set *main_rows; /* rows of `main` in the last pass */
    int64_t *end;                       /* host [max_seq]: behind the last pass's rows */
    const struct hx_kv_view **view;     /* [max_seq] of the block */
    struct hx_buffer *mem;
    struct hx_arrays arrays;
};

/* ---- opening ---- */

static size_t reserve(struct hx_tensor *t, enum hx_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                      size_t at)
{
    *t = (struct hx_tensor){
        .dtype = dtype, .n_dims = d2 > 1 ? 3 : 2, .ne = {d0, d1, d2, 1}, .data = NULL};
    size_t bytes = hx_dtype_size(dtype) * (size_t)(d0 * d1 * d2);
    return at + (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Device memory of the drafter's values: shapes in d, without addresses. end: behind each. */
enum { N_VALUES = 5 };
static size_t lay_out(const struct hx_hparams *h, int n_ranks, int max_rows, int max_seq,
                      struct hx_draft *d, size_t end[N_VALUES])
{
    int64_t n = max_seq, block = h->draft_block, n_vocab = h->n_vocab / n_ranks;
    size_t at = 0;
    end[0] = at = reserve(&d->main, HX_DTYPE_BF16, max_rows, h->n_target, h->n_embd, at);
    end[1] = at = reserve(&d->base, HX_DTYPE_F32, n, block, n_vocab, at);
    end[2] = at = reserve(&d->logits, HX_DTYPE_F32, n, block, n_vocab, at);
    end[3] = at = reserve(&d->latent, HX_DTYPE_BF16, n * block, h->markov_rank, 1, at);
    end[4] = at = reserve(&d->z, HX_DTYPE_F32, n * block, 1, 1, at);
    reserve(&d->tokens, HX_DTYPE_I32, n, block + 1, 1, 0);
    return at;
}

/* The greater of what start_block and hx_forward_keep_context take. */
static size_t arrays_bytes(const struct hx_hparams *h, int max_rows, int max_seq)
{
    size_t n_seq = (size_t)max_seq, block = (size_t)h->draft_block, n = n_seq * block;
    size_t of_block = 2 * hx_arrays_room(n * 4) + hx_arrays_room(n * 8) +
                      2 * hx_arrays_room(n_seq * 8) + hx_arrays_room(n_seq * 4) +
                      hx_arrays_room(n_seq * (block + 1) * 4);
    size_t of_context = hx_arrays_room((size_t)max_rows * 8);
    return of_block > of_context ? of_block : of_context;
}

void hx_draft_memory(const struct hx_hparams *h, int n_ranks, int max_rows, int max_seq,
                     size_t *device, size_t *pinned)
{
    struct hx_draft d;
    size_t end[N_VALUES];
    *pinned = arrays_bytes(h, max_rows, max_seq);
    *device = lay_out(h, n_ranks, max_rows, max_seq, &d, end) + *pinned;
}

/* Rows of the main model are moved whole while some of their slots are still to come: what is moved
 * then is zeros, not what the memory held before. */
static int clear_main(struct hx_forward *f, size_t bytes, struct hx_error *err)
{
    void *zeros = calloc(1, bytes);
    if (!zeros)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = f->be->upload(f->dev, f->draft->main.data, zeros, bytes, err);
    if (r == 0)
        r = f->be->sync(f->dev, err);
    free(zeros);
    return r;
}

static int open_memory(struct hx_forward *f, int max_rows, struct hx_error *err)
{
    struct hx_draft *d = f->draft;
    size_t end[N_VALUES], at = lay_out(f->hp, f->n_ranks, max_rows, d->max_seq, d, end);
    int r = f->be->alloc(f->dev, HX_MEM_DEVICE, at, &d->mem, err);
    if (r == 0)
        r = hx_arrays_init(&d->arrays, f->be, f->dev, arrays_bytes(f->hp, max_rows, d->max_seq),
                           err);
    if (r < 0)
        return hx_wrap(err, r, "drafter of %d sequences", d->max_seq);
    struct hx_tensor *t[N_VALUES] = {&d->main, &d->base, &d->logits, &d->latent, &d->z};
    for (int i = 0; i < N_VALUES; i++)
        t[i]->data = (uint8_t *)f->be->address(d->mem) + (i ? end[i - 1] : 0);
    return clear_main(f, end[0], err);
}

int hx_draft_open(struct hx_forward *f, const struct hx_model *m, int max_rows, int max_seq,
                  struct hx_error *err)
{
    const struct hx_hparams *h = f->hp;
    int first = h->n_layer, last = first + h->n_draft_layer - 1;
    struct hx_draft *d = calloc(1, sizeof(*d));
    f->draft = d;
    if (!d)
        return hx_fail(err, -ENOMEM, "out of memory");
    *d = (struct hx_draft){
        .main_proj = hx_model_weight(m, HX_T_MAIN_PROJ, first, -1),
        .main_norm = hx_model_weight(m, HX_T_MAIN_NORM, first, -1),
        .norm = hx_model_weight(m, HX_T_DRAFT_NORM, last, -1),
        .markov_embed = hx_model_weight(m, HX_T_MARKOV_EMBED, last, -1),
        .markov_head = hx_model_weight(m, HX_T_MARKOV_HEAD, last, -1),
        .confidence = hx_model_weight(m, HX_T_CONFIDENCE, last, -1),
        .first_target = h->n_layer,
        .max_seq = max_seq,
    };
    for (int i = 0; i < h->n_target; i++) {
        int il = h->target_layer[i];
        d->first_target = il < d->first_target ? il : d->first_target;
        d->last_target = il > d->last_target ? il : d->last_target;
    }
    d->end = calloc((size_t)max_seq, sizeof(*d->end));
    d->view = calloc((size_t)max_seq, sizeof(*d->view));
    if (!d->end || !d->view)
        return hx_fail(err, -ENOMEM, "out of memory");
    return open_memory(f, max_rows, err); /* the caller calls hx_draft_close in any case */
}

void hx_draft_close(struct hx_forward *f)
{
    struct hx_draft *d = f->draft;
    if (!d)
        return;
    if (d->mem)
        f->be->free(d->mem);
    hx_arrays_done(&d->arrays);
    free(d->end);
    free(d->view);
    free(d);
    f->draft = NULL;
}

/* ---- context ---- */

static struct hx_tensor main_rows(const struct hx_pass *p, int n)
{
    struct hx_tensor t = p->f->draft->main;
    t.ne[0] = n;
    return t;
}

void hx_draft_note_pass(struct hx_forward *f, const struct hx_forward_in *in)
{
    struct hx_draft *d = f->draft;
    d->main_rows = &f->rows.set[f->rows.in[d->last_target]];
    for (int i = 0; i < in->n_seq; i++)
        d->end[i] = in->seq[i].n_past + in->seq[i].n_tok;
}

int hx_draft_see_target(struct hx_pass *p, int slot)
{
    const struct hx_draft *d = p->f->draft;
    int n = p->rows->batch.n_row;
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), means = main_rows(p, n);
    HX_RUN(p, stream_mean, &streams, slot, &means);
    if (p->il != d->last_target)
        return 0;
    means.n_dims = 2;
    means.ne[1] *= means.ne[2];
    means.ne[2] = 1;
    p->il = -1;
    HX_STEP(hx_pass_tap(p, "main_hidden", &means));
    p->il = d->last_target;
    return 0;
}

int hx_draft_keep_rows(struct hx_pass *p, int n_from)
{
    const struct hx_draft *d = p->f->draft;
    if (p->il < d->first_target || p->il >= d->last_target)
        return 0;
    struct hx_tensor means = main_rows(p, n_from);
    HX_RUN(p, keep_rows, &means, p->out->keep, p->out->batch.n_row);
    return 0;
}

/* Enters a draft layer. */
static void enter(struct hx_pass *p, int i)
{
    p->il = p->f->hp->n_layer + i;
    p->layer = &p->f->layer[p->il];
    p->freq = &p->f->freq[0];
}

static int queue_context(struct hx_pass *p)
{
    struct hx_forward *f = p->f;
    int n = p->rows->batch.n_row;
    struct hx_tensor means = main_rows(p, n), x = hx_pass_act(p, HX_ACT_X, n);
    p->il = -1;
    p->stored = false;
    HX_RUN(p, linear, f->draft->main_proj, f->reference, &means, &x);
    HX_STEP(hx_pass_norm(p, f->draft->main_norm, HX_ACT_X, n));
    HX_STEP(hx_pass_tap(p, "main_x", &x));
    for (int i = 0; i < f->hp->n_draft_layer; i++) {
        enter(p, i);
        HX_STEP(hx_pass_window_rows(p));
        HX_STEP(hx_pass_store_window(p));
    }
    return 0;
}

int hx_forward_keep_context(struct hx_forward *f, const int *n_keep, hx_tap_fn tap, void *tap_user,
                            struct hx_error *err)
{
    struct hx_draft *d = f->draft;
    if (!d || !d->main_rows)
        return hx_fail(err, -EINVAL, "drafter context: no drafter, or no pass yet");
    struct hx_row_set set = *d->main_rows;
    struct hx_pass p = {
        .f = f, .tap = tap, .tap_user = tap_user, .err = err, .il = -1, .rows = &set, .out = &set};
    int n = set.batch.n_row;
    hx_arrays_reset(&d->arrays);
    int64_t *row = hx_arrays_take(&d->arrays, (size_t)n * 8, &set.window_row);
    for (int i = 0, t = 0; i < set.batch.n_seq; i++) {
        const struct hx_kv_view *kv = set.batch.kv[i];
        int64_t ring = kv->window[f->hp->n_layer].ring, end = set.first_of_pass[i] + n_keep[i];
        for (int64_t pos = set.first_pos[i]; pos < d->end[i]; pos++)
            row[t++] = pos < end && (!ring || pos >= end - ring) ? pos : -1;
    }
    HX_STEP(hx_arrays_send(&d->arrays, err));
    /* Its rows lie where the last pass had them. */
    const int64_t number[] = {n, set.batch.n_seq, (int64_t)(intptr_t)set.batch.pos};
    return hx_graphs_run(&p, n <= HX_HEAD_ROWS ? hx_graphs_kind(&p, "context", number, 3) : 0,
                         queue_context);
}

/* ---- a block of drafts ---- */

/* Rows of the block: sequence after sequence, positions P to P + block - 1. */
static int start_block(struct hx_pass *p, struct hx_row_set *set, const struct hx_draft_seq *seq,
                       int n_seq)
{
    struct hx_forward *f = p->f;
    struct hx_draft *d = f->draft;
    int block = f->hp->draft_block, n = n_seq * block;
    *set = (struct hx_row_set){.batch = {.n_row = n, .n_seq = n_seq, .kv = d->view}};
    hx_arrays_reset(&d->arrays);
    int32_t *of = hx_arrays_take(&d->arrays, (size_t)n * 4, &set->batch.seq);
    int64_t *pos = hx_arrays_take(&d->arrays, (size_t)n * 8, &set->batch.pos);
    int64_t *first_pos = hx_arrays_take(&d->arrays, (size_t)n_seq * 8, &set->batch.first_pos);
    int32_t *first_row = hx_arrays_take(&d->arrays, (size_t)n_seq * 4, &set->batch.first_row);
    const struct hx_kv_view **view =
        hx_arrays_take(&d->arrays, (size_t)n_seq * 8, &set->batch.kv_device);
    int32_t *token, *ids, *tokens;
    ids = hx_arrays_take(&d->arrays, (size_t)n * 4, &d->id);
    tokens = hx_arrays_take(&d->arrays, (size_t)n_seq * (size_t)(block + 1) * 4, &token);
    d->tokens.data = token;
    for (int i = 0; i < n_seq; i++) {
        d->view[i] = seq[i].kv;
        view[i] = seq[i].kv->device;
        first_pos[i] = seq[i].n_past;
        first_row[i] = i * block;
        tokens[i * (block + 1)] = seq[i].anchor;
        for (int k = 0; k < block; k++) {
            of[i * block + k] = i;
            pos[i * block + k] = seq[i].n_past + k;
            ids[i * block + k] = k == 0 ? seq[i].anchor : f->hp->draft_noise_token;
        }
    }
    return hx_arrays_send(&d->arrays, p->err);
}

/* Keys: the context's last window, then all rows of the block, for every query of it. */
static int attend(struct hx_pass *p)
{
    const struct hx_hparams *h = p->f->hp;
    int n = p->rows->batch.n_row;
    struct hx_tensor q = hx_pass_act(p, HX_ACT_Q, n), o = hx_pass_act(p, HX_ACT_O, n),
                     codes = hx_pass_act(p, HX_ACT_KV_CODES, n),
                     scales = hx_pass_act(p, HX_ACT_KV_SCALES, n);
    HX_RUN(p, attend,
           &(struct hx_attend_args){.batch = &p->rows->batch,
                                    .layer = p->il,
                                    .source = -1,
                                    .window = h->window,
                                    .block = h->draft_block,
                                    .q = &q,
                                    .fresh_codes = &codes,
                                    .fresh_scales = &scales,
                                    .sink = hx_pass_weight(p, HX_T_ATTN_SINK),
                                    .scale = (float)pow(h->head_dim, -0.5),
                                    .freq = hx_pass_turns(p),
                                    .o = &o});
    return 0;
}

static int block_layer(struct hx_pass *p, int i)
{
    enter(p, i);
    int n = p->rows->batch.n_row;
    HX_STEP(hx_pass_tap_act(p, "streams", HX_ACT_STREAMS, n));
    bool have_latent;
    HX_STEP(hx_pass_site(p, &hx_site_attn, HX_T_ATTN_NORM, n));
    HX_STEP(hx_pass_mix(p, &hx_site_attn, n));
    HX_STEP(hx_pass_latents(p, &have_latent));
    if (!have_latent)
        HX_STEP(hx_pass_window_rows(p));
    HX_STEP(hx_pass_tap_act(p, "block_codes", HX_ACT_KV_CODES, n));
    HX_STEP(hx_pass_tap_act(p, "block_scales", HX_ACT_KV_SCALES, n));
    HX_STEP(hx_pass_queries(p, have_latent));
    HX_STEP(attend(p));
    HX_STEP(hx_pass_attn_out(p));
    HX_STEP(hx_pass_tap_act(p, "attn.y", HX_ACT_Y, n));
    HX_STEP(hx_pass_expand(p, n));
    return hx_pass_ffn(p);
}

static int choose_tokens(struct hx_pass *p, int n_seq)
{
    struct hx_forward *f = p->f;
    struct hx_draft *d = f->draft;
    int n = p->rows->batch.n_row, block = f->hp->draft_block;
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), pre = hx_pass_act(p, p->pre, n),
                     h = hx_pass_act(p, HX_ACT_X, n), hn = hx_pass_act(p, HX_ACT_Y, n),
                     flat = d->base, base = d->base, logits = d->logits, latent = d->latent,
                     tokens = d->tokens, z = d->z;
    flat.n_dims = 2;
    flat.ne[0] = n;
    flat.ne[1] = flat.ne[2];
    flat.ne[2] = 1;
    base.ne[0] = logits.ne[0] = tokens.ne[0] = n_seq;
    latent.ne[0] = z.ne[0] = n;
    p->il = -1;
    HX_STEP(hx_pass_grow(p, n));
    HX_RUN(p, hc_collapse, &streams, &pre, &h);
    HX_RUN(p, rms_norm, d->norm, (float)f->hp->rms_eps, &h, &hn);
    HX_RUN(p, linear, f->head, false, &hn, &flat);
    for (int k = 0; k < block; k++) {
        HX_RUN(p, markov,
               &(struct hx_markov_args){.embed = d->markov_embed,
                                        .head = d->markov_head,
                                        .base = &base,
                                        .k = k,
                                        .tokens = &tokens,
                                        .latent = &latent,
                                        .logits = &logits});
        HX_JOIN(p, best, &logits, k, &tokens);
    }
    HX_RUN(p, confidence, d->confidence, &h, &latent, &z);
    HX_STEP(hx_pass_tap(p, "h", &h));
    HX_STEP(hx_pass_tap(p, "base", &base));
    HX_STEP(hx_pass_tap(p, "logits", &logits));
    HX_STEP(hx_pass_tap(p, "conf.z", &z));
    return 0;
}

static int check_block(const struct hx_forward *f, const struct hx_draft_seq *seq, int n_seq,
                       struct hx_error *err)
{
    if (!f->draft)
        return hx_fail(err, -EINVAL, "drafts: this pass was opened without a drafter");
    if (n_seq < 1 || n_seq > f->draft->max_seq)
        return hx_fail(err, -EINVAL, "drafts for %d sequences: expected 1 to %d", n_seq,
                       f->draft->max_seq);
    if (n_seq * (f->hp->draft_block + 1) > HX_DRAFT_ROWS)
        return hx_fail(err, -EINVAL, "drafts for %d sequences of %d each: the limit is %d tokens",
                       n_seq, f->hp->draft_block, HX_DRAFT_ROWS);
    for (int i = 0; i < n_seq; i++) {
        if (seq[i].anchor < 0 || seq[i].anchor >= f->hp->n_vocab)
            return hx_fail(err, -EINVAL, "drafts of sequence %d: token %d, expected 0 to %d", i,
                           seq[i].anchor, f->hp->n_vocab - 1);
    }
    return 0;
}

/* Everything behind the upload of the arrays. */
static int queue_block(struct hx_pass *p)
{
    struct hx_forward *f = p->f;
    const struct hx_draft *d = f->draft;
    int n = p->rows->batch.n_row, n_seq = p->rows->batch.n_seq;
    p->il = -1;
    p->grown = false;
    p->pre = HX_ACT_PRE;
    p->pre_next = HX_ACT_PRE2;
    struct hx_tensor streams = hx_pass_act(p, HX_ACT_STREAMS, n), pre = hx_pass_act(p, p->pre, n);
    HX_RUN(p, embed, f->embed, d->id, &streams, &pre);
    for (int i = 0; i < f->hp->n_draft_layer; i++)
        HX_STEP(block_layer(p, i));
    HX_STEP(choose_tokens(p, n_seq));
    float *z;
    int32_t *tokens = hx_graphs_drafts(f, &z);
    size_t rows = (size_t)n_seq * (size_t)f->hp->draft_block;
    HX_STEP(f->be->download(f->dev, tokens, d->tokens.data,
                            (rows + (size_t)n_seq) * sizeof(*tokens), p->err));
    return f->be->download(f->dev, z, d->z.data, rows * sizeof(*z), p->err);
}

static int draft(struct hx_forward *f, const struct hx_draft_seq *seq, int n_seq, int32_t *tokens,
                 float *z, hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    HX_STEP(check_block(f, seq, n_seq, err));
    struct hx_row_set set;
    struct hx_pass p = {
        .f = f, .tap = tap, .tap_user = tap_user, .err = err, .il = -1, .rows = &set, .out = &set};
    HX_STEP(start_block(&p, &set, seq, n_seq));
    const int64_t number = n_seq;
    bool few = set.batch.n_row <= HX_HEAD_ROWS;
    HX_STEP(hx_graphs_run(&p, few ? hx_graphs_kind(&p, "block", &number, 1) : 0, queue_block));
    size_t block = (size_t)f->hp->draft_block;
    float *all_z;
    const int32_t *all = hx_graphs_drafts(f, &all_z);
    for (size_t i = 0; i < (size_t)n_seq; i++)
        memcpy(tokens + i * block, all + i * (block + 1) + 1, block * sizeof(*tokens));
    memcpy(z, all_z, (size_t)n_seq * block * sizeof(*z));
    return 0;
}

int hx_forward_draft(struct hx_forward *f, const struct hx_draft_seq *seq, int n_seq,
                     int32_t *tokens, float *z, hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    int r = draft(f, seq, n_seq, tokens, z, tap, tap_user, err);
    if (r < 0 && f->comm)
        f->comm->ops->stop(f->comm, err);
    return r;
}
