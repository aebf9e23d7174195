/* EXL3: trellis codes to values, rotations (docs/exl3.md). The rotated matrix holds exact float16
 * values; the Hadamard transforms are sums of them in double, and both factors 1/sqrt(128) together
 * are exactly 1/128. */
#include "backend/cpu/exl3.h"

#include <pthread.h>

#include "backend/cpu/cpu.h"

/* The 16-bit windows of a tile: window p ends with the b fresh bits of position p, on a ring of 256
 * b bits. Bit 0 of the ring is the most significant bit of the first little-endian 32-bit word. */
void hx_exl3_tile_states(const uint16_t *stored, int bits, uint16_t states[256])
{
    int n_words = 8 * bits;
    uint32_t word[64];
    for (int i = 0; i < n_words; i++)
        word[i] = (uint32_t)stored[2 * i + 1] << 16 | stored[2 * i];
    for (int p = 0; p < 256; p++) {
        int end = (p + 1) * bits + 256 * bits;
        int last = (end - 1) / 32, first = (end - 16) / 32;
        int shift = 32 * (last + 1) - end;
        uint64_t pair = (uint64_t)word[first % n_words] << 32 | word[last % n_words];
        if (first == last)
            pair = word[last % n_words];
        states[p] = (uint16_t)(pair >> shift);
    }
}

/* fp16 addition of two finite values, rounded once: exact in float, then to nearest even. */
static uint16_t f16_round(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (a == 0)
        return sign;
    int e;
    frexp(a, &e); /* a = m 2^e, m in [.5, 1) */
    e = e - 1 < -14 ? -14 : e - 1;
    int steps = (int)rint(ldexp(a, 10 - e)); /* 1024..2048, below for subnormals */
    return (uint16_t)(sign | (steps + (e + 14) * 1024));
}

static uint16_t sum_of_halves(uint32_t x)
{
    uint32_t y = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return f16_round((double)hx_f16_value((uint16_t)y) + (double)hx_f16_value((uint16_t)(y >> 16)));
}

uint16_t hx_exl3_code(enum hx_codebook codebook, uint16_t state)
{
    if (codebook == HX_CODEBOOK_MCG)
        return sum_of_halves(state * 0xCBAC1FEDu);
    if (codebook == HX_CODEBOOK_3INST)
        return sum_of_halves(state * 89226354u + 64248484u);
    uint32_t p = state * 0x83DCD12Du;
    uint32_t s = (p & 255) + (p >> 8 & 255) + (p >> 16 & 255) + (p >> 24);
    return f16_round((1024.0 + s) * 0.00676727294921875 - 10.3828125);
}

/* The same for all states, as doubles; filled at the first use by whichever rank's thread it is. */
static double code_values[HX_CODEBOOK_MAX][65536];
static pthread_once_t code_once = PTHREAD_ONCE_INIT;

static void fill_codes(void)
{
    for (int c = 0; c < HX_CODEBOOK_MAX; c++) {
        for (int s = 0; s < 65536; s++)
            code_values[c][s] =
                (double)hx_f16_value(hx_exl3_code((enum hx_codebook)c, (uint16_t)s));
    }
}

static const double *code_table(enum hx_codebook codebook)
{
    pthread_once(&code_once, fill_codes);
    return code_values[codebook];
}

/* Position p of a tile -> row (k) and column (n). */
static void position(int p, int *row, int *col)
{
    int lane = p >> 3, j = p & 7;
    *row = 2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1);
    *col = (lane >> 2) + 8 * (j >> 2);
}

void hx_exl3_tile(enum hx_codebook codebook, int bits, const uint16_t *stored, double *out,
                  int64_t stride)
{
    const double *table = code_table(codebook);
    uint16_t states[256];
    hx_exl3_tile_states(stored, bits, states);
    for (int p = 0; p < 256; p++) {
        int row, col;
        position(p, &row, &col);
        out[row * stride + col] = table[states[p]];
    }
}

/* Sum transform of 128 values, in place: H without its factor. */
static void hadamard128(double *v)
{
    for (int h = 1; h < 128; h *= 2) {
        for (int i = 0; i < 128; i += 2 * h) {
            for (int j = i; j < i + h; j++) {
                double a = v[j], b = v[j + h];
                v[j] = a + b;
                v[j + h] = a - b;
            }
        }
    }
}

/* 128 output columns from nb: acc [n][128] += xr [n][k_in] times the decoded block of columns. */
static void column_block(const struct hx_weight *w, const double *xr, int n, int64_t nb,
                         double *block, double *acc)
{
    const struct hx_tensor *t = &w->part[HX_PART_DATA];
    int64_t k_in = t->ne[0] * 16, tile_words = t->ne[2];
    memset(acc, 0, (size_t)n * 128 * sizeof(double));
    for (int64_t kt = 0; kt < t->ne[0]; kt++) {
        for (int i = 0; i < 8; i++)
            hx_exl3_tile(w->codebook, w->bits,
                         (const uint16_t *)t->data + (kt * t->ne[1] + nb * 8 + i) * tile_words,
                         block + 16 * i, 128);
        for (int r = 0; r < n; r++) {
            const double *x = xr + r * k_in + kt * 16;
            double *a = acc + r * 128;
            for (int k = 0; k < 16; k++) {
                for (int c = 0; c < 128; c++)
                    a[c] += x[k] * block[k * 128 + c];
            }
        }
    }
}

int hx_exl3_product(struct hx_device *dev, const struct hx_weight *w, const double *x, int n,
                    float *y, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t k_in = w->part[HX_PART_DATA].ne[0] * 16, n_blocks = w->part[HX_PART_DATA].ne[1] / 8;
    const uint16_t *suh = w->part[HX_PART_SUH].data, *svh = w->part[HX_PART_SVH].data;
    const struct hx_tensor *bias = &w->part[HX_PART_BIAS];
    double *xr = hx_scratch(dev, (size_t)n * (size_t)k_in * 8, err);
    double *block = xr ? hx_scratch(dev, 16 * 128 * 8, err) : NULL;
    double *acc = block ? hx_scratch(dev, (size_t)n * 128 * 8, err) : NULL;
    if (!acc)
        return hx_scratch_fail(dev, mark);
    for (int r = 0; r < n; r++) {
        for (int64_t k = 0; k < k_in; k++)
            xr[r * k_in + k] = k < w->n_in ? x[r * w->n_in + k] * (double)hx_f16_value(suh[k]) : 0;
        for (int64_t k = 0; k < k_in; k += 128)
            hadamard128(xr + r * k_in + k);
    }
    for (int64_t nb = 0; nb < n_blocks; nb++) {
        column_block(w, xr, n, nb, block, acc);
        for (int r = 0; r < n; r++) {
            double *a = acc + r * 128;
            hadamard128(a);
            for (int64_t c = nb * 128; c < (nb + 1) * 128 && c < w->n_out; c++) {
                double v = a[c - nb * 128] * (1.0 / 128.0) * (double)hx_f16_value(svh[c]);
                if (bias->data)
                    v += bias->dtype == HX_DTYPE_F32
                             ? (double)((const float *)bias->data)[c]
                             : (double)hx_f16_value(((const uint16_t *)bias->data)[c]);
                y[r * w->n_out + c] = (float)v;
            }
        }
    }
    hx_scratch_reset(dev, mark);
    return 0;
}

void hx_exl3_inner(const struct hx_weight *w, double *inner)
{
    const struct hx_tensor *t = &w->part[HX_PART_DATA];
    int64_t n_out = t->ne[1] * 16;
    for (int64_t kt = 0; kt < t->ne[0]; kt++) {
        for (int64_t nt = 0; nt < t->ne[1]; nt++)
            hx_exl3_tile(w->codebook, w->bits,
                         (const uint16_t *)t->data + (kt * t->ne[1] + nt) * t->ne[2],
                         inner + kt * 16 * n_out + nt * 16, n_out);
    }
}

void hx_exl3_matrix(const struct hx_weight *w, double *m)
{
    const struct hx_tensor *t = &w->part[HX_PART_DATA];
    const uint16_t *suh = w->part[HX_PART_SUH].data, *svh = w->part[HX_PART_SVH].data;
    int64_t k_in = t->ne[0] * 16, n_out = t->ne[1] * 16;
    double column[128];
    hx_exl3_inner(w, m);
    for (int64_t k = 0; k < k_in; k++) {
        for (int64_t n = 0; n < n_out; n += 128)
            hadamard128(m + k * n_out + n);
    }
    for (int64_t n = 0; n < n_out; n++) {
        for (int64_t k = 0; k < k_in; k += 128) {
            for (int i = 0; i < 128; i++)
                column[i] = m[(k + i) * n_out + n];
            hadamard128(column);
            for (int i = 0; i < 128; i++)
                m[(k + i) * n_out + n] = (double)hx_f16_value(suh[k + i]) *
                                         (column[i] * (1.0 / 128.0)) * (double)hx_f16_value(svh[n]);
        }
    }
}
