/* Router, routed experts, shared expert (spec model.md 3.7). */
#include "backend/cpu/cpu.h"

int hx_route_choose(const float *score, const float *bias, int n_expert, int k, bool norm,
                    float route_scale, float *biased, int32_t *sel, float *w)
{
    for (int e = 0; e < n_expert; e++)
        biased[e] = score[e] + bias[e];
    int have = hx_top_indices(biased, n_expert, k, sel);
    if (have != k)
        return -EDOM;
    double sum = 0;
    for (int i = 0; i < k; i++) {
        w[i] = score[sel[i]];
        sum += (double)w[i];
    }
    for (int i = 0; i < k; i++) {
        if (norm && k > 1)
            w[i] = w[i] / ((float)sum + 1e-20f);
        w[i] = w[i] * route_scale;
    }
    return 0;
}

int hx_cpu_route(struct hx_device *dev, const struct hx_route_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int n = (int)a->z->ne[0], n_expert = (int)a->gate->n_out, k = (int)a->sel->ne[1];
    float *biased = hx_scratch(dev, (size_t)n_expert * 4, err);
    if (!biased)
        return hx_scratch_fail(dev, mark);
    int r = hx_product(dev, a->gate, false, a->z->data, n, a->score->data, err);
    for (int t = 0; r == 0 && t < n; t++) {
        float *s = hx_f32(a->score) + (int64_t)t * n_expert,
              *w = hx_f32(a->weight) + (int64_t)t * k;
        int32_t *sel = hx_i32(a->sel) + (int64_t)t * k;
        const struct hx_weight *bias = a->dead && a->dead[t] ? a->bias_vl : a->bias;
        const float *bf = bias->part[HX_PART_DATA].data;
        for (int e = 0; e < n_expert; e++)
            s[e] = sqrtf(hx_softplus32(s[e] / a->temp));
        r = hx_route_choose(s, bf, n_expert, k, a->norm, a->route_scale, biased, sel, w);
        if (r < 0)
            hx_fail(err, r, "router scores of row %d: NaN, or fewer than %d finite ones", t, k);
    }
    hx_scratch_reset(dev, mark);
    return r;
}

struct expert_work {
    uint16_t *z, *t; /* gathered inputs, activations */
    float *a, *b, *out;
    float *weight;
    int *row;
};

/* out[i] += w2 (act(w1 z, w3 z)) for the n gathered rows; weight NULL: the shared expert. */
static int expert_rows(struct hx_device *dev, const struct hx_experts_args *x,
                       const struct hx_weight *w1, const struct hx_weight *w2,
                       const struct hx_weight *w3, int n, struct expert_work *k, bool weighted,
                       float *total, struct hx_error *err)
{
    int64_t ff = w1->n_out, d = w2->n_out;
    int r = hx_product(dev, w1, x->quantise, k->z, n, k->a, err);
    if (r == 0)
        r = hx_product(dev, w3, x->quantise, k->z, n, k->b, err);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        for (int64_t c = 0; c < ff; c++) {
            float a = hx_bf16_round(k->a[i * ff + c]), b = hx_bf16_round(k->b[i * ff + c]);
            if (x->limit > 0) {
                a = a > x->limit ? x->limit : a;
                b = b > x->limit ? x->limit : b < -x->limit ? -x->limit : b;
            }
            float t = hx_silu32(a) * b;
            if (weighted)
                t = k->weight[i] * t;
            k->t[i * ff + c] = hx_bf16(t);
        }
    }
    r = hx_product(dev, w2, x->quantise, k->t, n, k->out, err);
    for (int i = 0; r == 0 && i < n; i++) {
        float *to = total + (int64_t)k->row[i] * d;
        for (int64_t c = 0; c < d; c++)
            to[c] = to[c] + (x->y->dtype == HX_DTYPE_F32 ? k->out[i * d + c]
                                                         : hx_bf16_round(k->out[i * d + c]));
    }
    return r;
}

static int gather(const struct hx_experts_args *x, int t0, int m, int expert, struct expert_work *k)
{
    int64_t d = x->z->ne[1], used = x->sel->ne[1];
    int n = 0;
    for (int t = 0; t < m; t++) {
        for (int64_t i = 0; i < used; i++) {
            if (hx_i32(x->sel)[(t0 + t) * used + i] != expert)
                continue;
            memcpy(k->z + n * d, hx_u16(x->z) + (t0 + t) * d, (size_t)d * 2);
            k->weight[n] = hx_f32(x->weight)[(t0 + t) * used + i];
            k->row[n++] = t;
        }
    }
    return n;
}

int hx_cpu_experts(struct hx_device *dev, const struct hx_experts_args *x, struct hx_error *err)
{
    size_t mark = dev->used;
    int n = (int)x->z->ne[0], r = 0;
    int64_t d = x->z->ne[1], ff = x->s1->n_out; /* the widest: ranks have unequal shares */
    for (int e = 0; e < x->n_expert; e++)
        ff = x->w1[e]->n_out > ff ? x->w1[e]->n_out : ff;
    /* Rows in groups: an expert's matrices are decoded once a group. */
    int64_t bytes = 2 * d + 2 * ff + 8 * ff + 8 * d + 8;
    int64_t fit = (int64_t)HX_CPU_SCRATCH / 4 / bytes;
    int tile = fit < 1 ? 1 : fit > 256 ? 256 : (int)fit;
    struct expert_work k = {0};
    size_t rows = (size_t)tile;
    float *total = hx_scratch(dev, rows * (size_t)d * 4, err);
    k.z = total ? hx_scratch(dev, rows * (size_t)d * 2, err) : NULL;
    k.t = k.z ? hx_scratch(dev, rows * (size_t)ff * 2, err) : NULL;
    k.a = k.t ? hx_scratch(dev, rows * (size_t)ff * 4, err) : NULL;
    k.b = k.a ? hx_scratch(dev, rows * (size_t)ff * 4, err) : NULL;
    k.out = k.b ? hx_scratch(dev, rows * (size_t)d * 4, err) : NULL;
    k.weight = k.out ? hx_scratch(dev, rows * 4, err) : NULL;
    k.row = k.weight ? hx_scratch(dev, rows * sizeof(int), err) : NULL;
    if (!k.row)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; r == 0 && t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        memset(total, 0, (size_t)m * (size_t)d * 4);
        for (int e = 0; r == 0 && e < x->n_expert; e++) {
            int have = gather(x, t0, m, e, &k);
            if (have > 0 && x->w1[e]->n_out > 0) /* 0: other ranks have this expert */
                r = expert_rows(dev, x, x->w1[e], x->w2[e], x->w3[e], have, &k, true, total, err);
        }
        for (int t = 0; t < m; t++)
            k.row[t] = t;
        memcpy(k.z, hx_u16(x->z) + (int64_t)t0 * d, (size_t)m * (size_t)d * 2);
        if (r == 0)
            r = expert_rows(dev, x, x->s1, x->s2, x->s3, m, &k, false, total, err);
        for (int64_t i = 0; r == 0 && i < m * d; i++) {
            if (x->y->dtype == HX_DTYPE_F32)
                hx_f32(x->y)[t0 * d + i] = total[i];
            else
                hx_u16(x->y)[t0 * d + i] = hx_bf16(total[i]);
        }
    }
    hx_scratch_reset(dev, mark);
    return r;
}
