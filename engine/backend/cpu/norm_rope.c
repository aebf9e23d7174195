/* RMSNorm, rotary embedding, grids and small row operations. */
#include "backend/cpu/cpu.h"

int hx_cpu_rms_norm(struct hx_device *dev, const struct hx_weight *w, float eps,
                    const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t k = w->n_in, rows = x->ne[0] * hx_row_len(x) / k;
    float *wf = hx_scratch(dev, (size_t)k * 4, err);
    float *xf = wf ? hx_scratch(dev, (size_t)k * 4, err) : NULL;
    if (!xf)
        return hx_scratch_fail(dev, mark);
    hx_weight_floats(w, wf);
    for (int64_t r = 0; r < rows; r++) {
        hx_bf16_to_float(hx_u16(x) + r * k, k, xf);
        float scale = hx_rsqrt32(hx_mean_square32(xf, k) + eps);
        for (int64_t i = 0; i < k; i++)
            hx_u16(y)[r * k + i] = hx_bf16(wf[i] * (xf[i] * scale));
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

int hx_cpu_rope(struct hx_device *dev, struct hx_tensor *x, const int64_t *pos,
                const struct hx_tensor *freq, bool inverse, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t n = freq->ne[0], d = x->ne[x->n_dims - 1], heads = hx_row_len(x) / d;
    for (int64_t r = 0; r < x->ne[0]; r++) {
        for (int64_t i = 0; i < n; i++) {
            float angle = (float)pos[r] * hx_f32(freq)[i];
            float c = (float)cos((double)angle), s = (float)sin((double)angle);
            if (inverse)
                s = -s;
            for (int64_t h = 0; h < heads; h++) {
                uint16_t *pair = hx_u16(x) + (r * heads + h) * d + d - 2 * n + 2 * i;
                float a = hx_bf16_value(pair[0]), b = hx_bf16_value(pair[1]);
                pair[0] = hx_bf16(a * c - b * s);
                pair[1] = hx_bf16(a * s + b * c);
            }
        }
    }
    return 0;
}

int hx_cpu_quantise(struct hx_device *dev, enum hx_grid grid, const struct hx_tensor *x,
                    struct hx_tensor *codes, struct hx_tensor *scales, struct hx_tensor *value,
                    struct hx_error *err)
{
    static const struct {
        int block, codes_a_byte;
        void (*quant)(const float *x, int n, uint8_t *codes, uint8_t *scales);
        void (*dequant)(const uint8_t *codes, const uint8_t *scales, int n, float *x);
    } grids[] = {
        [HX_GRID_FP8_B32] = {32, 1, hx_quant_fp8_b32, hx_dequant_fp8_b32},
        [HX_GRID_FP4_B32] = {32, 2, hx_quant_fp4_b32, hx_dequant_fp4_b32},
        [HX_GRID_FP4_B16] = {16, 2, hx_quant_fp4_b16, hx_dequant_fp4_b16},
    };
    size_t mark = dev->used;
    int d = (int)x->ne[x->n_dims - 1];
    int64_t rows = x->ne[0] * hx_row_len(x) / d;
    float *xf = hx_scratch(dev, (size_t)d * 4, err);
    if (!xf)
        return hx_scratch_fail(dev, mark);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *c = hx_u8(codes) + r * (d / grids[grid].codes_a_byte);
        uint8_t *s = hx_u8(scales) + r * (d / grids[grid].block);
        hx_bf16_to_float(hx_u16(x) + r * d, d, xf);
        grids[grid].quant(xf, d, c, s);
        if (!value)
            continue;
        grids[grid].dequant(c, s, d, xf);
        for (int i = 0; i < d; i++)
            hx_u16(value)[r * d + i] = hx_bf16(xf[i]);
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

int hx_cpu_kv_store(struct hx_device *dev, const struct hx_batch *batch, enum hx_kv_which which,
                    int layer, const int64_t *row, const struct hx_tensor *codes,
                    const struct hx_tensor *scales, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t nc = hx_row_len(codes), ns = hx_row_len(scales);
    for (int64_t i = 0; i < codes->ne[0]; i++) {
        if (row[i] < 0)
            continue;
        const struct hx_kv_view *v = batch->kv[batch->seq[i]];
        const struct hx_kv_stream *s = which == HX_KV_WINDOW ? &v->window[layer]
                                       : which == HX_KV_COMP ? &v->comp[layer]
                                                             : &v->key[layer];
        memcpy(hx_kv_row_data(s, row[i]), hx_u8(codes) + i * nc, (size_t)nc);
        memcpy(hx_kv_row_scale(s, row[i]), hx_u8(scales) + i * ns, (size_t)ns);
    }
    return 0;
}

int hx_cpu_keep_rows(struct hx_device *dev, struct hx_tensor *x, const int32_t *row, int n,
                     struct hx_error *err)
{
    (void)dev;
    (void)err;
    size_t bytes = (size_t)hx_row_len(x) * hx_dtype_size(x->dtype);
    for (int i = 0; i < n; i++) {
        if (row[i] != i)
            memmove(hx_u8(x) + (size_t)i * bytes, hx_u8(x) + (size_t)row[i] * bytes, bytes);
    }
    x->ne[0] = n;
    return 0;
}
