/* Working memory of a forward pass: one device allocation and one host allocation at open. */
#include "model/forward_state.h"

#include <stdlib.h>
#include <string.h>

#include "model/dsv41_rope.h"

#define ALIGN 256

struct plan {
    struct hx_tensor *t;
    enum hx_dtype dtype;
    int n_dims;
    int64_t ne[4];
};

static size_t bytes(const struct plan *p)
{
    size_t n = hx_dtype_size(p->dtype);
    for (int i = 0; i < p->n_dims; i++)
        n *= (size_t)p->ne[i];
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t at_least_1(int64_t n)
{
    return n > 0 ? n : 1;
}

/* The tensor list; returns its length. */
static int plan_tensors(struct hx_forward *f, struct plan *p)
{
    const struct hx_hparams *h = f->hp;
    struct hx_forward_tensors *t = &f->t;
    int64_t T = f->max_tok, S = h->hc_mult, D = h->n_embd, H = h->n_head, d = h->head_dim,
            di = h->index_head_dim;
    int64_t cols = (int64_t)(h->engram_ngram - 1) * h->engram_n_head * h->engram_dim;
    int n = 0;
#define T2(field, type, a, b)                                                                      \
    p[n++] = (struct plan)                                                                         \
    {                                                                                              \
        &t->field, HX_DTYPE_##type, 2,                                                             \
        {                                                                                          \
            a, b, 1, 1                                                                             \
        }                                                                                          \
    }
#define T3(field, type, a, b, c)                                                                   \
    p[n++] = (struct plan)                                                                         \
    {                                                                                              \
        &t->field, HX_DTYPE_##type, 3,                                                             \
        {                                                                                          \
            a, b, c, 1                                                                             \
        }                                                                                          \
    }
    T3(streams, BF16, T, S, D);
    T2(pre, F32, T, S);
    T2(pre_next, F32, T, S);
    T2(post, F32, T, S);
    T3(comb, F32, T, S, S);
    T2(x, BF16, T, D);
    T2(y, BF16, T, D);
    T2(qr, BF16, T, h->q_lora);
    T3(q, BF16, T, H, d);
    T3(o, BF16, T, H, d);
    T2(a, BF16, T, (int64_t)h->o_groups * h->o_lora);
    T2(kv, BF16, T, d);
    T2(fresh_codes, U8, T, d);
    T2(fresh_scales, U8, T, d / 32);
    T2(u, F32, T, d);
    T2(g, F32, T, d);
    T2(lat, BF16, T, d);
    T2(key, BF16, T, di);
    T2(codes, U8, T, d > di ? d : di);
    T2(scales, U8, T, d > di ? d : di);
    T3(iq, BF16, T, h->index_n_head, di);
    T2(iw, BF16, T, h->index_n_head);
    T3(iq_codes, U8, T, h->index_n_head, di / 2);
    T3(iq_scales, U8, T, h->index_n_head, di / 32);
    T2(sel, I32, T, h->index_topk);
    T2(cand, I32, T, h->candidate_blocks);
    T2(expert, I32, T, h->n_expert_used);
    T2(weight, F32, T, h->n_expert_used);
    T2(score, F32, T, h->n_expert);
    T2(ev, BF16, T, at_least_1(cols));
    T2(ez, BF16, T, (S + 1) * D);
    T2(edot, F32, T, S);
    T2(egate, F32, T, S);
    T2(mean, BF16, T, D);
    T2(logits, F32, HX_HEAD_ROWS, h->n_vocab);
    p[n++] = (struct plan){&t->freq_main, HX_DTYPE_F32, 1, {h->rope_dim / 2, 1, 1, 1}};
    p[n++] = (struct plan){&t->freq_comp, HX_DTYPE_F32, 1, {h->rope_dim / 2, 1, 1, 1}};
#undef T2
#undef T3
    return n;
}

/* Arrays of the pass that exist on both sides: {host pointer, device pointer, bytes}. */
struct pair {
    void **host, **device;
    size_t size;
};

static int plan_arrays(struct hx_forward *f, struct pair *p)
{
    size_t T = (size_t)f->max_tok, Q = (size_t)f->max_seq;
    int n = 0;
#define ARRAY(h, d, count)                                                                         \
    p[n++] = (struct pair){(void **)&(h), (void **)&(d), (count) * sizeof(*(h))}
    ARRAY(f->rows.seq, f->rows.d_seq, T);
    ARRAY(f->rows.pos, f->rows.d_pos, T);
    ARRAY(f->rows.dead, f->rows.d_dead, T);
    ARRAY(f->keep, f->d_keep, T);
    ARRAY(f->first_pos, f->d_first_pos, Q);
    ARRAY(f->first_row, f->d_first_row, Q);
    ARRAY(f->group_row, f->d_group_row, T);
    ARRAY(f->group_pos, f->d_group_pos, T);
    ARRAY(f->group_seq, f->d_group_seq, T);
#undef ARRAY
    p[n++] = (struct pair){(void **)&f->views, NULL, Q * sizeof(*f->views)};
    size_t n_expert = (size_t)f->hp->n_layer * (size_t)f->hp->n_expert;
    for (int i = 0; i < 3; i++)
        p[n++] = (struct pair){(void **)&f->expert[i], NULL, n_expert * sizeof(*f->expert[i])};
    p[n++] = (struct pair){NULL, (void **)&f->d_token, T * sizeof(*f->d_token)};
    return n;
}

static int upload_freqs(struct hx_forward *f, struct hx_error *err)
{
    float *freq = malloc((size_t)f->hp->rope_dim / 2 * sizeof(float));
    if (!freq)
        return hx_fail(err, -ENOMEM, "out of memory");
    size_t n = (size_t)f->hp->rope_dim / 2 * sizeof(float);
    hx_rope_freqs(f->hp, false, freq);
    int r = f->be->upload(f->dev, f->t.freq_main.data, freq, n, err);
    hx_rope_freqs(f->hp, true, freq);
    if (r == 0)
        r = f->be->upload(f->dev, f->t.freq_comp.data, freq, n, err);
    free(freq);
    return r;
}

static void list_experts(struct hx_forward *f)
{
    static const enum hx_role role[3] = {HX_T_EXPERT_W1, HX_T_EXPERT_W2, HX_T_EXPERT_W3};
    for (int i = 0; i < 3; i++) {
        for (int il = 0; il < f->hp->n_layer; il++) {
            for (int e = 0; e < f->hp->n_expert; e++)
                f->expert[i][(size_t)il * (size_t)f->hp->n_expert + (size_t)e] =
                    hx_model_weight(f->m, role[i], il, e);
        }
    }
}

int hx_forward_open(const struct hx_model *m, const struct hx_backend *be, struct hx_device *dev,
                    enum hx_mode mode, int max_tok, int max_seq, struct hx_forward **out,
                    struct hx_error *err)
{
    struct plan plan[64];
    struct pair pair[16];
    struct hx_forward *f = calloc(1, sizeof(*f));
    if (!f)
        return hx_fail(err, -ENOMEM, "out of memory");
    f->m = m;
    f->hp = hx_model_hparams(m);
    f->maps = hx_model_maps(m);
    f->be = be;
    f->dev = dev;
    f->k = be->kernels;
    f->mode = mode;
    f->max_tok = max_tok;
    f->max_seq = max_seq;
    int n_plan = plan_tensors(f, plan), n_pair = plan_arrays(f, pair);
    size_t device = 0, host = 0;
    for (int i = 0; i < n_plan; i++)
        device += bytes(&plan[i]);
    for (int i = 0; i < n_pair; i++) {
        size_t n = (pair[i].size + ALIGN - 1) / ALIGN * ALIGN;
        host += pair[i].host ? n : 0;
        device += pair[i].device ? n : 0;
    }
    f->host = calloc(1, host);
    int r = f->host ? be->alloc(dev, HX_MEM_DEVICE, device, &f->buf, err)
                    : hx_fail(err, -ENOMEM, "out of memory for %zu bytes", host);
    if (r < 0) {
        hx_wrap(err, r, "working memory for %d rows", max_tok);
        hx_forward_close(f);
        return r;
    }
    uint8_t *d = be->address(f->buf), *h = f->host;
    for (int i = 0; i < n_plan; i++) {
        *plan[i].t = (struct hx_tensor){plan[i].dtype, plan[i].n_dims, {0}, d};
        memcpy(plan[i].t->ne, plan[i].ne, sizeof(plan[i].ne));
        d += bytes(&plan[i]);
    }
    for (int i = 0; i < n_pair; i++) {
        size_t n = (pair[i].size + ALIGN - 1) / ALIGN * ALIGN;
        if (pair[i].host) {
            *pair[i].host = h;
            h += n;
        }
        if (pair[i].device) {
            *pair[i].device = d;
            d += n;
        }
    }
    list_experts(f);
    r = upload_freqs(f, err);
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
    if (f->buf)
        f->be->free(f->buf);
    free(f->host);
    free(f);
}
