/* Sink attention over window rows and selected compressed rows (spec model.md 3.4). */
#include "backend/cpu/cpu.h"

#define KEY_BLOCK 64 /* keys between two updates of the running maximum */

int hx_sink_attention(struct hx_device *dev, const float *q, int n_head, int d, const float *kv,
                      int n, const float *sink, float scale, uint16_t *o, struct hx_error *err)
{
    size_t mark = dev->used;
    double *qd = hx_scratch(dev, (size_t)d * 8, err);
    double *kd = qd ? hx_scratch(dev, (size_t)n * (size_t)d * 8, err) : NULL;
    double *pv = kd ? hx_scratch(dev, (size_t)d * 8, err) : NULL;
    float *acc = pv ? hx_scratch(dev, (size_t)d * 4, err) : NULL;
    if (!acc)
        return hx_scratch_fail(dev, mark);
    for (int64_t i = 0; i < (int64_t)n * d; i++)
        kd[i] = (double)kv[i];
    for (int h = 0; h < n_head; h++) {
        float max = -1e30f, den = 0;
        for (int i = 0; i < d; i++) {
            qd[i] = (double)q[h * d + i];
            acc[i] = 0;
        }
        for (int b = 0; b < n; b += KEY_BLOCK) {
            int m = n - b < KEY_BLOCK ? n - b : KEY_BLOCK;
            float s[KEY_BLOCK], new_max = max;
            for (int j = 0; j < m; j++) {
                s[j] = (float)hx_dot(qd, kd + (int64_t)(b + j) * d, d) * scale;
                new_max = s[j] > new_max ? s[j] : new_max;
            }
            float r = hx_exp32(max - new_max);
            double sum = 0;
            memset(pv, 0, (size_t)d * 8);
            for (int j = 0; j < m; j++) {
                float p = hx_exp32(s[j] - new_max);
                double pb = (double)hx_bf16_round(p);
                sum += (double)p;
                for (int i = 0; i < d; i++)
                    pv[i] += pb * kd[(int64_t)(b + j) * d + i];
            }
            den = den * r + (float)sum;
            for (int i = 0; i < d; i++)
                acc[i] = acc[i] * r + (float)pv[i];
            max = new_max;
        }
        den = den + hx_exp32(sink[h] - max);
        for (int i = 0; i < d; i++)
            o[h * d + i] = hx_bf16(acc[i] / den);
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

/* Keys of one query row in listed order: window oldest first, then the selected rows ascending. In
 * a block of drafts the window ends before the block, and the whole block follows it. */
static int gather_keys(const struct hx_attend_args *a, int t, int d, float *kv)
{
    const struct hx_batch *b = a->batch;
    int seq = b->seq[t], n = 0;
    int64_t last = a->block ? b->first_pos[seq] + a->block - 1 : b->pos[t];
    int64_t first = last - a->block - a->window + 1;
    const struct hx_kv_stream *ring = &b->kv[seq]->window[a->layer];
    for (int64_t p = first > 0 ? first : 0; p <= last; p++, n++) {
        if (p < b->first_pos[seq]) {
            hx_dequant_fp8_b32(hx_kv_row_data(ring, p), hx_kv_row_scale(ring, p), d,
                               kv + (int64_t)n * d);
        } else {
            int64_t row = b->first_row[seq] + (p - b->first_pos[seq]);
            hx_dequant_fp8_b32(hx_u8(a->fresh_codes) + row * d,
                               hx_u8(a->fresh_scales) + row * (d / 32), d, kv + (int64_t)n * d);
        }
    }
    if (a->source < 0)
        return n;
    const struct hx_kv_stream *comp = &b->kv[seq]->comp[a->source];
    int64_t topk = a->sel->ne[1];
    const int32_t *sel = hx_i32(a->sel) + t * topk;
    for (int64_t i = 0; i < topk && sel[i] >= 0; i++, n++)
        hx_dequant_fp4_b16(hx_kv_row_data(comp, sel[i]), hx_kv_row_scale(comp, sel[i]), d,
                           kv + (int64_t)n * d);
    return n;
}

int hx_cpu_attend(struct hx_device *dev, const struct hx_attend_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int n_head = (int)a->q->ne[1], d = (int)a->q->ne[2], r = 0;
    int64_t most = a->window + a->block + (a->source < 0 ? 0 : a->sel->ne[1]);
    float *kv = hx_scratch(dev, (size_t)most * (size_t)d * 4, err);
    float *q = kv ? hx_scratch(dev, (size_t)n_head * (size_t)d * 4, err) : NULL;
    float *sink = q ? hx_scratch(dev, (size_t)n_head * 4, err) : NULL;
    if (!sink)
        return hx_scratch_fail(dev, mark);
    hx_weight_floats(a->sink, sink);
    for (int t = 0; r == 0 && t < a->batch->n_row; t++) {
        int64_t at = (int64_t)t * n_head * d;
        int n = gather_keys(a, t, d, kv);
        hx_bf16_to_float(hx_u16(a->q) + at, n_head * d, q);
        r = hx_sink_attention(dev, q, n_head, d, kv, n, sink, a->scale, hx_u16(a->o) + at, err);
    }
    hx_scratch_reset(dev, mark);
    return r;
}
