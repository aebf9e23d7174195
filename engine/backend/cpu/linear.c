/* Matrix products: exact weight values, double sums, one rounding. */
#include "backend/cpu/cpu.h"

static const uint8_t *part_u8(const struct hx_weight *w, enum hx_weight_part p)
{
    return w->part[p].data;
}

/* Codes of n values, without their scales. */
static void decode_e4m3(const uint8_t *code, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (double)hx_e4m3_table[code[i]];
}

static void decode_e2m1(const uint8_t *code, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i += 2) {
        out[i] = (double)hx_e2m1_table[code[i / 2] & 15];
        out[i + 1] = (double)hx_e2m1_table[code[i / 2] >> 4];
    }
}

/* Row o of an FP8 or FP4 matrix: its code values and its scales, one for 32 of them. */
static const uint8_t *code_row(const struct hx_weight *w, int64_t o, double *out)
{
    int64_t n = w->n_in;
    if (w->format == HX_FORMAT_FP8) {
        decode_e4m3(part_u8(w, HX_PART_DATA) + o * n, n, out);
        return part_u8(w, HX_PART_SCALE) + o / 32 * w->part[HX_PART_SCALE].ne[1];
    }
    decode_e2m1(part_u8(w, HX_PART_DATA) + o * (n / 2), n, out);
    return part_u8(w, HX_PART_SCALE) + o * (n / 32);
}

void hx_weight_row(const struct hx_weight *w, int64_t o, double *out)
{
    int64_t n = w->n_in;
    if (w->format == HX_FORMAT_FP8 || w->format == HX_FORMAT_FP4) {
        const uint8_t *scale = code_row(w, o, out);
        for (int64_t b = 0; b < n; b += 32) {
            double s = (double)hx_e8m0(scale[b / 32]);
            for (int64_t i = b; i < b + 32; i++)
                out[i] *= s;
        }
    } else if (w->part[HX_PART_DATA].dtype == HX_DTYPE_BF16) {
        hx_bf16_to_double((const uint16_t *)w->part[HX_PART_DATA].data + o * n, n, out);
    } else {
        const float *f = (const float *)w->part[HX_PART_DATA].data + o * n;
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)f[i];
    }
}

void hx_weight_floats(const struct hx_weight *w, float *out)
{
    int64_t n = w->n_out * w->n_in;
    if (w->part[HX_PART_DATA].dtype == HX_DTYPE_BF16)
        hx_bf16_to_float(w->part[HX_PART_DATA].data, n, out);
    else
        memcpy(out, w->part[HX_PART_DATA].data, (size_t)n * sizeof(float));
}

/* Rows of x that fit the scratch memory at once, at least one. */
static int tile_rows(const struct hx_device *dev, int n, int64_t bytes_a_row)
{
    int64_t fit = (int64_t)(HX_CPU_SCRATCH - dev->used) / 2 / bytes_a_row;
    if (fit > 64)
        fit = 64;
    return fit < 1 ? 1 : fit < n ? (int)fit : n;
}

static int product_plain(struct hx_device *dev, const struct hx_weight *w, const uint16_t *x, int n,
                         float *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t k = w->n_in;
    int tile = tile_rows(dev, n, k * 8);
    double *row = hx_scratch(dev, (size_t)k * 8, err);
    double *xd = row ? hx_scratch(dev, (size_t)tile * (size_t)k * 8, err) : NULL;
    if (!xd)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        hx_bf16_to_double(x + t0 * k, m * k, xd);
        for (int64_t o = 0; o < w->n_out; o++) {
            hx_weight_row(w, o, row);
            for (int t = 0; t < m; t++)
                y[(t0 + t) * w->n_out + o] = (float)hx_dot(row, xd + t * k, k);
        }
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

static int product_exl3(struct hx_device *dev, const struct hx_weight *w, const uint16_t *x, int n,
                        float *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t k = w->n_in;
    int tile = tile_rows(dev, n, (k + w->n_out + 512) * 24), r = 0;
    double *xd = hx_scratch(dev, (size_t)tile * (size_t)k * 8, err);
    if (!xd)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; r == 0 && t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        hx_bf16_to_double(x + t0 * k, m * k, xd);
        r = hx_exl3_product(dev, w, xd, m, y + t0 * w->n_out, err);
    }
    hx_scratch_reset(dev, mark);
    return r;
}

/* Rows of x on the e4m3 grid: code values [n][k] and scales [n][k/32]. */
static void quantise_rows(const uint16_t *x, int n, int64_t k, float *work, uint8_t *code,
                          double *value, float *scale)
{
    uint8_t *byte = code + k;
    for (int t = 0; t < n; t++) {
        hx_bf16_to_float(x + t * k, k, work);
        hx_quant_fp8_b32(work, (int)k, code, byte);
        decode_e4m3(code, k, value + t * k);
        for (int64_t b = 0; b < k / 32; b++)
            scale[t * (k / 32) + b] = hx_e8m0(byte[b]);
    }
}

/* The official quantised product: activations on the e4m3 grid, one float32 partial for each
 * 32-wide block of K, times both scales, added in K order. */
static int product_w8a8(struct hx_device *dev, const struct hx_weight *w, const uint16_t *x, int n,
                        float *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t k = w->n_in, nb = k / 32;
    int tile = tile_rows(dev, n, k * 9);
    double *row = hx_scratch(dev, (size_t)k * 8, err);
    double *xq = row ? hx_scratch(dev, (size_t)tile * (size_t)k * 8, err) : NULL;
    float *sx = xq ? hx_scratch(dev, (size_t)tile * (size_t)nb * 4, err) : NULL;
    float *work = sx ? hx_scratch(dev, (size_t)k * 4, err) : NULL;
    uint8_t *code = work ? hx_scratch(dev, (size_t)(k + nb), err) : NULL;
    if (!code)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        quantise_rows(x + t0 * k, m, k, work, code, xq, sx);
        for (int64_t o = 0; o < w->n_out; o++) {
            const uint8_t *sw = code_row(w, o, row);
            for (int t = 0; t < m; t++) {
                float acc = 0;
                for (int64_t b = 0; b < nb; b++) {
                    float part = (float)hx_dot(row + 32 * b, xq + t * k + 32 * b, 32);
                    acc = acc + part * (sx[t * nb + b] * hx_e8m0(sw[b]));
                }
                y[(t0 + t) * w->n_out + o] = acc;
            }
        }
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

int hx_product(struct hx_device *dev, const struct hx_weight *w, bool quantise, const uint16_t *x,
               int n, float *y, struct hx_error *err)
{
    if (w->format == HX_FORMAT_EXL3)
        return product_exl3(dev, w, x, n, y, err);
    if (quantise && w->format != HX_FORMAT_DENSE)
        return product_w8a8(dev, w, x, n, y, err);
    return product_plain(dev, w, x, n, y, err);
}

int hx_cpu_linear(struct hx_device *dev, const struct hx_weight *w, bool quantise,
                  const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    int n = (int)x->ne[0];
    if (y->dtype == HX_DTYPE_F32)
        return hx_product(dev, w, quantise, x->data, n, y->data, err);
    /* BF16 output: through float rows in scratch, some at a time. */
    size_t mark = dev->used;
    int tile = tile_rows(dev, n, w->n_out * 8), r = 0;
    float *f = hx_scratch(dev, (size_t)tile * (size_t)w->n_out * 4, err);
    if (!f)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; r == 0 && t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        r = hx_product(dev, w, quantise, hx_u16(x) + t0 * w->n_in, m, f, err);
        for (int64_t i = 0; r == 0 && i < m * w->n_out; i++)
            hx_u16(y)[t0 * w->n_out + i] = hx_bf16(f[i]);
    }
    hx_scratch_reset(dev, mark);
    return r;
}

int hx_cpu_linear_grouped(struct hx_device *dev, const struct hx_weight *w, int n_group,
                          const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int n = (int)x->ne[0];
    int64_t k = w->n_in, rows = w->n_out / n_group;
    int tile = tile_rows(dev, n, k * 8);
    double *row = hx_scratch(dev, (size_t)k * 8, err);
    double *xd = row ? hx_scratch(dev, (size_t)tile * (size_t)k * 8, err) : NULL;
    if (!xd)
        return hx_scratch_fail(dev, mark);
    for (int t0 = 0; t0 < n; t0 += tile) {
        int m = n - t0 < tile ? n - t0 : tile;
        for (int g = 0; g < n_group; g++) {
            for (int t = 0; t < m; t++)
                hx_bf16_to_double(hx_u16(x) + ((t0 + t) * n_group + g) * k, k, xd + t * k);
            for (int64_t o = g * rows; o < (g + 1) * rows; o++) {
                hx_weight_row(w, o, row);
                for (int t = 0; t < m; t++)
                    hx_u16(y)[(t0 + t) * w->n_out + o] = hx_bf16((float)hx_dot(row, xd + t * k, k));
            }
        }
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

int hx_cpu_embed(struct hx_device *dev, const struct hx_weight *w, const int32_t *tokens,
                 struct hx_tensor *streams, struct hx_tensor *pre, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t d = w->n_in, copies = streams->ne[1];
    for (int64_t t = 0; t < streams->ne[0]; t++) {
        const uint16_t *e = (const uint16_t *)w->part[HX_PART_DATA].data + tokens[t] * d;
        for (int64_t s = 0; s < copies; s++)
            memcpy(hx_u16(streams) + (t * copies + s) * d, e, (size_t)d * 2);
        for (int64_t s = 0; s < copies; s++)
            hx_f32(pre)[t * copies + s] = s == 0 ? 1.0f : 0.0f;
    }
    return 0;
}
