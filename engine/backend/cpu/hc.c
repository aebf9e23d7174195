/* Hyper-connections: coefficients, collapse, expand (spec model.md 3.2). float32 throughout, left
 * to right. */
#include "backend/cpu/cpu.h"

static void normalise(float *c, int n, int step, int stride, float eps)
{
    /* Divides the n lines of n entries by (their sum + eps). */
    for (int l = 0; l < n; l++) {
        float sum = c[l * stride];
        for (int i = 1; i < n; i++)
            sum = sum + c[l * stride + i * step];
        for (int i = 0; i < n; i++)
            c[l * stride + i * step] = c[l * stride + i * step] / (sum + eps);
    }
}

void hx_sinkhorn(float *c, int n, int iters, float eps)
{
    for (int j = 0; j < n; j++) { /* row softmax, then + eps */
        float *row = c + j * n, max = row[0];
        for (int t = 1; t < n; t++)
            max = row[t] > max ? row[t] : max;
        for (int t = 0; t < n; t++)
            row[t] = hx_exp32(row[t] - max);
        float sum = row[0];
        for (int t = 1; t < n; t++)
            sum = sum + row[t];
        for (int t = 0; t < n; t++)
            row[t] = row[t] / sum + eps;
    }
    normalise(c, n, n, 1, eps); /* columns */
    for (int i = 1; i < iters; i++) {
        normalise(c, n, 1, n, eps);
        normalise(c, n, n, 1, eps);
    }
}

int hx_cpu_hc_mix(struct hx_device *dev, const struct hx_hc_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int n = (int)a->streams->ne[1], n_mix = (2 + n) * n;
    int64_t width = hx_row_len(a->streams);
    float *xf = hx_scratch(dev, (size_t)width * 4, err);
    double *xd = xf ? hx_scratch(dev, (size_t)width * 8, err) : NULL;
    double *row = xd ? hx_scratch(dev, (size_t)width * 8, err) : NULL;
    if (!row)
        return hx_scratch_fail(dev, mark);
    const float *base = a->base->part[HX_PART_DATA].data,
                *scale = a->scale->part[HX_PART_DATA].data;
    float m[(2 + 8) * 8];
    for (int64_t t = 0; t < a->streams->ne[0]; t++) {
        hx_bf16_to_float(hx_u16(a->streams) + t * width, width, xf);
        for (int64_t i = 0; i < width; i++)
            xd[i] = (double)xf[i];
        float r = hx_rsqrt32(hx_mean_square32(xf, width) + a->rms_eps);
        for (int o = 0; o < n_mix; o++) {
            hx_weight_row(a->fn, o, row);
            m[o] = (float)hx_dot(row, xd, width) * r; /* rms factor after the projection */
        }
        float *pre = hx_f32(a->pre) + t * n, *post = hx_f32(a->post) + t * n,
              *comb = hx_f32(a->comb) + t * n * n;
        for (int s = 0; s < n; s++) {
            pre[s] = hx_sigmoid32(m[s] * scale[0] + base[s]) + a->hc_eps;
            post[s] = 2.0f * hx_sigmoid32(m[n + s] * scale[1] + base[n + s]);
        }
        for (int i = 0; i < n * n; i++)
            comb[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
        hx_sinkhorn(comb, n, a->iters, a->hc_eps);
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

int hx_cpu_hc_collapse(struct hx_device *dev, const struct hx_tensor *streams,
                       const struct hx_tensor *pre, struct hx_tensor *x, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t n = streams->ne[1], d = streams->ne[2];
    for (int64_t t = 0; t < streams->ne[0]; t++) {
        const float *p = hx_f32(pre) + t * n;
        const uint16_t *s = hx_u16(streams) + t * n * d;
        for (int64_t i = 0; i < d; i++) {
            float acc = p[0] * hx_bf16_value(s[i]);
            for (int64_t j = 1; j < n; j++)
                acc = acc + p[j] * hx_bf16_value(s[j * d + i]);
            hx_u16(x)[t * d + i] = hx_bf16(acc);
        }
    }
    return 0;
}

int hx_cpu_hc_expand(struct hx_device *dev, const struct hx_tensor *y, const struct hx_tensor *post,
                     const struct hx_tensor *comb, struct hx_tensor *streams, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t n = streams->ne[1], d = streams->ne[2];
    for (int64_t t = 0; t < streams->ne[0]; t++) {
        const float *po = hx_f32(post) + t * n, *c = hx_f32(comb) + t * n * n;
        uint16_t *s = hx_u16(streams) + t * n * d;
        for (int64_t i = 0; i < d; i++) {
            float old[8], yi = hx_bf16_value(hx_u16(y)[t * d + i]);
            for (int64_t j = 0; j < n; j++)
                old[j] = hx_bf16_value(s[j * d + i]);
            for (int64_t to = 0; to < n; to++) {
                float mix = c[to] * old[0];
                for (int64_t j = 1; j < n; j++)
                    mix = mix + c[j * n + to] * old[j];
                s[to * d + i] = hx_bf16(po[to] * yi + mix);
            }
        }
    }
    return 0;
}

int hx_cpu_stream_mean(struct hx_device *dev, const struct hx_tensor *streams, int slot,
                       struct hx_tensor *out, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t n = streams->ne[1], d = streams->ne[2];
    for (int64_t t = 0; t < streams->ne[0]; t++) {
        const uint16_t *s = hx_u16(streams) + t * n * d;
        for (int64_t i = 0; i < d; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += (double)hx_bf16_value(s[j * d + i]);
            hx_u16(out)[(t * out->ne[1] + slot) * d + i] = hx_bf16((float)(sum / (double)n));
        }
    }
    return 0;
}
