/* Engram: rows to values, gated addition to the streams (spec model.md section 5). */
#include "backend/cpu/cpu.h"

int hx_cpu_engram_rows(struct hx_device *dev, const struct hx_tensor *codes,
                       const struct hx_tensor *scales, struct hx_tensor *v, struct hx_error *err)
{
    size_t mark = dev->used;
    int d = (int)codes->ne[2];
    int64_t n = codes->ne[0] * codes->ne[1];
    float *f = hx_scratch(dev, (size_t)d * 4, err);
    if (!f)
        return hx_scratch_fail(dev, mark);
    for (int64_t r = 0; r < n; r++) {
        hx_dequant_fp8_b32(hx_u8(codes) + r * d, hx_u8(scales) + r * (d / 32), d, f);
        for (int i = 0; i < d; i++)
            hx_u16(v)[r * d + i] = hx_bf16(f[i]);
    }
    hx_scratch_reset(dev, mark);
    (void)scales;
    return 0;
}

int hx_cpu_engram_gate(struct hx_device *dev, const struct hx_engram_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t n = a->streams->ne[1], d = a->streams->ne[2];
    float *wq = hx_scratch(dev, (size_t)(n * d) * 4, err);
    float *wk = wq ? hx_scratch(dev, (size_t)(n * d) * 4, err) : NULL;
    float *x = wk ? hx_scratch(dev, (size_t)d * 4, err) : NULL;
    float *key = x ? hx_scratch(dev, (size_t)d * 4, err) : NULL;
    if (!key)
        return hx_scratch_fail(dev, mark);
    hx_weight_floats(a->q_weight, wq);
    hx_weight_floats(a->k_weight, wk);
    for (int64_t i = 0; i < n * d; i++)
        wq[i] = wq[i] * wk[i];
    float norm = (float)(1.0 / sqrt((double)d));
    for (int64_t t = 0; t < a->streams->ne[0]; t++) {
        const uint16_t *z = hx_u16(a->z) + t * (n + 1) * d, *value = z + n * d;
        for (int64_t s = 0; s < n; s++) {
            uint16_t *stream = hx_u16(a->streams) + (t * n + s) * d;
            hx_bf16_to_float(stream, d, x);
            hx_bf16_to_float(z + s * d, d, key);
            double sum = 0;
            for (int64_t i = 0; i < d; i++)
                sum += (double)(x[i] * wq[s * d + i] * key[i]);
            float rstd = hx_rsqrt32(hx_mean_square32(x, d) + a->eps) *
                         hx_rsqrt32(hx_mean_square32(key, d) + a->eps);
            float dot = (float)sum * rstd * norm;
            float gate = hx_sigmoid32(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
            if (a->dead && a->dead[t])
                gate = 0;
            hx_f32(a->dot)[t * n + s] = dot;
            hx_f32(a->gate)[t * n + s] = gate;
            for (int64_t i = 0; i < d; i++)
                stream[i] = hx_bf16(x[i] + gate * hx_bf16_value(value[i]));
        }
    }
    hx_scratch_reset(dev, mark);
    return 0;
}
