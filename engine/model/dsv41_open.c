/* Opening a forward pass: weights by layer, activation buffers, rotary frequencies. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/dsv41_pass.h"

#define ALIGN 256

/* Elements of one row of each activation; d1, d2, d3 are its inner dimensions (0: not there). */
struct shape {
    enum hx_dtype dtype;
    int64_t d1, d2, d3;
};

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* n_ranks: the rank has so many of the heads, output groups and tokens. */
static void act_shapes(const struct hx_hparams *h, int n_ranks, bool joins, bool wide,
                       struct shape s[HX_ACT_MAX])
{
    const enum hx_dtype bf = HX_DTYPE_BF16, f32 = HX_DTYPE_F32, u8 = HX_DTYPE_U8,
                        i32 = HX_DTYPE_I32;
    int64_t D = h->n_embd, S = h->hc_mult, H = h->n_head / n_ranks, d = h->head_dim,
            Hi = h->index_n_head, di = h->index_head_dim,
            cols = (int64_t)(h->engram_ngram - 1) * h->engram_n_head, de = h->engram_dim;
    bool engram = h->n_engram > 0;
    const struct shape table[HX_ACT_MAX] = {
        [HX_ACT_STREAMS] = {bf, S, D, 0},
        [HX_ACT_PRE] = {f32, S, 0, 0},
        [HX_ACT_PRE2] = {f32, S, 0, 0},
        [HX_ACT_POST] = {f32, S, 0, 0},
        [HX_ACT_COMB] = {f32, S, S, 0},
        [HX_ACT_X] = {bf, D, 0, 0},
        [HX_ACT_Y] = {bf, D, 0, 0},
        [HX_ACT_PART] = {f32, wide ? D : 1, 0, 0},
        [HX_ACT_QR] = {bf, h->q_lora, 0, 0},
        [HX_ACT_Q] = {bf, H, d, 0},
        [HX_ACT_O] = {bf, H, d, 0},
        [HX_ACT_OA] = {bf, (int64_t)h->o_groups / n_ranks * h->o_lora, 0, 0},
        [HX_ACT_KV] = {bf, d, 0, 0},
        [HX_ACT_KV_CODES] = {u8, d, 0, 0},
        [HX_ACT_KV_SCALES] = {u8, d / 32, 0, 0},
        [HX_ACT_COMP_U] = {f32, d, 0, 0},
        [HX_ACT_COMP_G] = {f32, d, 0, 0},
        [HX_ACT_LATENT] = {bf, d, 0, 0},
        [HX_ACT_COMP_CODES] = {u8, d / 2, 0, 0},
        [HX_ACT_COMP_SCALES] = {u8, d / 16, 0, 0},
        [HX_ACT_KEY] = {bf, di, 0, 0},
        [HX_ACT_KEY_CODES] = {u8, di / 2, 0, 0},
        [HX_ACT_KEY_SCALES] = {u8, di / 32, 0, 0},
        [HX_ACT_IQ] = {bf, Hi, di, 0},
        [HX_ACT_IQ_CODES] = {u8, Hi, di / 2, 0},
        [HX_ACT_IQ_SCALES] = {u8, Hi, di / 32, 0},
        [HX_ACT_IW] = {bf, Hi, 0, 0},
        [HX_ACT_TOPK] = {i32, h->index_topk, 0, 0},
        [HX_ACT_CAND] = {i32, h->candidate_source >= 0 ? h->candidate_blocks : 1, 0, 0},
        [HX_ACT_ROUTE_SCORE] = {f32, most(h->n_expert, h->draft_n_expert), 0, 0},
        [HX_ACT_ROUTE_EXPERT] = {i32, most(h->n_expert_used, h->draft_n_expert_used), 0, 0},
        [HX_ACT_ROUTE_WEIGHT] = {f32, most(h->n_expert_used, h->draft_n_expert_used), 0, 0},
        [HX_ACT_ENGRAM_CODES] = {u8, engram ? cols : 1, engram ? de : 1, 0},
        [HX_ACT_ENGRAM_SCALES] = {u8, engram ? cols : 1, engram ? de / 32 : 1, 0},
        [HX_ACT_ENGRAM_V] = {bf, engram ? cols * de : 1, 0, 0},
        [HX_ACT_ENGRAM_Z] = {bf, engram ? (S + 1) * D : 1, 0, 0},
        [HX_ACT_ENGRAM_DOT] = {f32, S, 0, 0},
        [HX_ACT_ENGRAM_GATE] = {f32, S, 0, 0},
        [HX_ACT_LOGITS] = {f32, h->n_vocab / n_ranks, 0, 0},
        [HX_ACT_ALL_LOGITS] = {f32, joins ? h->n_vocab : 1, 0, 0},
        [HX_ACT_BEST] = {i32, 2, 0, 0},
    };
    memcpy(s, table, sizeof(table));
}

static size_t tensor_bytes(const struct hx_tensor *t)
{
    size_t n = hx_dtype_size(t->dtype);
    for (int i = 0; i < 4; i++)
        n *= (size_t)t->ne[i];
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Shapes of all activations for passes of max_tok rows; returns the bytes they take together. */
static size_t lay_out(const struct hx_hparams *h, int n_ranks, bool joins, bool wide, int max_tok,
                      struct hx_tensor act[HX_ACT_MAX], struct hx_tensor freq[2])
{
    struct shape shape[HX_ACT_MAX];
    act_shapes(h, n_ranks, joins, wide, shape);
    size_t total = 0;
    for (int i = 0; i < HX_ACT_MAX; i++) {
        const struct shape *s = &shape[i];
        bool head = i == HX_ACT_LOGITS || i == HX_ACT_ALL_LOGITS || i == HX_ACT_BEST;
        int64_t rows = head && max_tok > HX_HEAD_ROWS ? HX_HEAD_ROWS : max_tok;
        act[i] = (struct hx_tensor){
            .dtype = s->dtype,
            .n_dims = 1 + (s->d1 > 0) + (s->d2 > 0) + (s->d3 > 0),
            .ne = {rows, s->d1 ? s->d1 : 1, s->d2 ? s->d2 : 1, s->d3 ? s->d3 : 1}};
        total += tensor_bytes(&act[i]);
    }
    for (int i = 0; i < 2; i++) {
        freq[i] = (struct hx_tensor){
            .dtype = HX_DTYPE_F32, .n_dims = 1, .ne = {h->rope_dim / 2, 1, 1, 1}};
        total += tensor_bytes(&freq[i]);
    }
    return total;
}

static int open_acts(struct hx_forward *f, int max_tok, struct hx_error *err)
{
    size_t total =
        lay_out(f->hp, f->n_ranks, f->comm, f->comm && f->comm->wide, max_tok, f->act, f->freq);
    int r = f->be->alloc(f->dev, HX_MEM_DEVICE, total, &f->mem, err);
    if (r < 0)
        return hx_wrap(err, r, "activations of %d rows", max_tok);
    uint8_t *at = f->be->address(f->mem);
    for (int i = 0; i < HX_ACT_MAX; i++) {
        f->act[i].data = at;
        at += tensor_bytes(&f->act[i]);
    }
    for (int i = 0; i < 2; i++) {
        f->freq[i].data = at;
        at += tensor_bytes(&f->freq[i]);
    }
    return 0;
}

/* Rows of one pass, a block of drafts for every sequence among them. */
static int most_rows(const struct hx_hparams *h, int max_tok, int max_seq, bool drafts)
{
    return drafts ? most(max_tok, max_seq * h->draft_block) : max_tok;
}

void hx_forward_memory(const struct hx_hparams *hp, const struct hx_maps *maps, int n_ranks,
                       int max_tok, int max_seq, bool drafts, size_t *device, size_t *pinned)
{
    struct hx_tensor act[HX_ACT_MAX], freq[2];
    size_t sets = hx_row_sets_bytes(hp, maps, max_tok, max_seq), more = 0, more_pinned = 0;
    drafts = drafts && hp->n_draft_layer > 0;
    *device = lay_out(hp, n_ranks, n_ranks > 1, false, most_rows(hp, max_tok, max_seq, drafts), act,
                      freq);
    if (drafts)
        hx_draft_memory(hp, n_ranks, max_tok, max_seq, &more, &more_pinned);
    *device += sets + more;
    *pinned = sets + more_pinned + hx_graphs_bytes(hp);
}

/* Rotary frequencies, spec model.md 3.3: float32 steps, the power in double. */
static double corrected(const struct hx_hparams *h, double base, double rotations)
{
    return h->rope_dim * log((double)h->yarn_original / (rotations * 2 * M_PI)) / (2 * log(base));
}

static void rope_freqs(const struct hx_hparams *h, double base, bool yarn, float *freq)
{
    int n = h->rope_dim / 2;
    for (int i = 0; i < n; i++)
        freq[i] = 1.0f / (float)pow(base, (double)(2 * i) / (double)h->rope_dim);
    if (!yarn)
        return;
    double low = fmax(floor(corrected(h, base, h->yarn_beta_fast)), 0);
    double high = fmin(ceil(corrected(h, base, h->yarn_beta_slow)), h->rope_dim - 1);
    float span = (float)fmax(high - low, 1e-3), factor = (float)h->yarn_factor;
    for (int i = 0; i < n; i++) {
        float ramp = ((float)i - (float)low) / span;
        float smooth = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        float slow = freq[i] / factor * (1.0f - smooth);
        freq[i] = slow + freq[i] * smooth;
    }
}

static int open_rope(struct hx_forward *f, struct hx_error *err)
{
    size_t bytes = (size_t)f->hp->rope_dim / 2 * sizeof(float);
    float *freq = malloc(bytes);
    if (!freq)
        return hx_fail(err, -ENOMEM, "out of memory");
    rope_freqs(f->hp, f->hp->rope_theta, false, freq);
    int r = f->be->upload(f->dev, f->freq[0].data, freq, bytes, err);
    rope_freqs(f->hp, f->hp->compress_rope_theta, true, freq);
    if (r == 0)
        r = f->be->upload(f->dev, f->freq[1].data, freq, bytes, err);
    if (r == 0)
        r = f->be->sync(f->dev, err);
    free(freq);
    return r;
}

static int open_weights(struct hx_forward *f, const struct hx_model *m, struct hx_error *err)
{
    static const enum hx_role expert_role[3] = {HX_T_EXPERT_W1, HX_T_EXPERT_W2, HX_T_EXPERT_W3};
    const struct hx_hparams *h = f->hp;
    size_t n_layer = (size_t)(h->n_layer + h->n_draft_layer);
    size_t n_table = (size_t)h->n_layer * (size_t)h->n_expert +
                     (size_t)h->n_draft_layer * (size_t)h->draft_n_expert;
    f->embed = hx_model_weight(m, HX_T_EMBED, -1, -1);
    f->head = hx_model_weight(m, HX_T_HEAD, -1, -1);
    f->norm = hx_model_weight(m, HX_T_NORM, -1, -1);
    f->layer = calloc(n_layer, sizeof(*f->layer));
    f->expert_table = calloc(n_table * 3, sizeof(struct hx_weight *));
    if (!f->layer || !f->expert_table)
        return hx_fail(err, -ENOMEM, "out of memory");
    const struct hx_weight **at = f->expert_table;
    for (int il = 0; il < h->n_layer + h->n_draft_layer; il++) {
        struct hx_layer *l = &f->layer[il];
        bool draft = il >= h->n_layer;
        l->n_expert = draft ? h->draft_n_expert : h->n_expert;
        l->n_expert_used = draft ? h->draft_n_expert_used : h->n_expert_used;
        for (int role = 0; role < HX_T_MAX; role++)
            l->w[role] = hx_model_weight(m, (enum hx_role)role, il, -1);
        for (int i = 0; i < 3; i++, at += l->n_expert) {
            l->experts[i] = at;
            for (int e = 0; e < l->n_expert; e++)
                at[e] = hx_model_weight(m, expert_role[i], il, e);
        }
    }
    return 0;
}

int hx_forward_open(const struct hx_model *m, const struct hx_backend *be, struct hx_device *dev,
                    struct hx_comm *comm, enum hx_mode mode, int max_tok, int max_seq, bool drafts,
                    struct hx_forward **out, struct hx_error *err)
{
    if (max_tok < 1 || max_seq < 1 || max_tok > 1 << 20 || max_seq > 4096)
        return hx_fail(err, -EINVAL,
                       "forward pass: %d rows, %d sequences: expected 1 to 1048576, 1 to 4096",
                       max_tok, max_seq);
    const struct hx_slice slice = hx_model_slice(m);
    int n_ranks = slice.n_ranks > 1 ? slice.n_ranks : 1;
    if (n_ranks != (comm ? comm->n_ranks : 1) || slice.rank != (comm ? comm->rank : 0))
        return hx_fail(err, -EINVAL,
                       "forward pass: the model is rank %d of %d, the joins are those of rank %d "
                       "of %d",
                       slice.rank, n_ranks, comm ? comm->rank : 0, comm ? comm->n_ranks : 1);
    struct hx_forward *f = calloc(1, sizeof(*f));
    if (!f)
        return hx_fail(err, -ENOMEM, "out of memory");
    f->comm = comm;
    f->n_ranks = n_ranks;
    f->hp = hx_model_hparams(m);
    f->maps = hx_model_maps(m);
    f->be = be;
    f->k = be->kernels;
    f->dev = dev;
    f->reference = mode == HX_MODE_REFERENCE;
    int r = open_weights(f, m, err);
    drafts = drafts && f->hp->n_draft_layer > 0;
    if (r == 0)
        r = open_acts(f, most_rows(f->hp, max_tok, max_seq, drafts), err);
    if (r == 0 && drafts)
        r = hx_draft_open(f, m, max_tok, max_seq, err);
    if (r == 0)
        r = open_rope(f, err);
    if (r == 0)
        r = hx_row_sets_init(&f->rows, f->hp, f->maps, be, dev, max_tok, max_seq, err);
    if (r == 0)
        r = hx_graphs_open(f, err);
    if (r < 0) {
        hx_forward_close(f);
        return r;
    }
    *out = f;
    return 0;
}

void hx_forward_close(struct hx_forward *f)
{
    if (!f)
        return;
    hx_graphs_close(f);
    hx_draft_close(f);
    hx_row_sets_done(&f->rows);
    if (f->mem)
        f->be->free(f->mem);
    free(f->expert_table);
    free(f->layer);
    free(f);
}

int64_t hx_forward_layer_rows(const struct hx_forward *f)
{
    return f->layer_rows;
}
