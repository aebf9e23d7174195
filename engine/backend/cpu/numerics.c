/* Number formats: tables, encoders, grids. */
#include "backend/cpu/numerics.h"

#define EIGHT(S, first, step)                                                                      \
    S((first) + 0) * (step), S((first) + 1) * (step), S((first) + 2) * (step),                     \
        S((first) + 3) * (step), S((first) + 4) * (step), S((first) + 5) * (step),                 \
        S((first) + 6) * (step), S((first) + 7) * (step)
/* Subnormals and 14 binades of 8 values, steps 2^-9 to 2^4; the last binade ends at 448. */
#define E4M3_HALF(S)                                                                               \
    EIGHT(S, 0, 0x1p-9f), EIGHT(S, 8, 0x1p-9f), EIGHT(S, 8, 0x1p-8f), EIGHT(S, 8, 0x1p-7f),        \
        EIGHT(S, 8, 0x1p-6f), EIGHT(S, 8, 0x1p-5f), EIGHT(S, 8, 0x1p-4f), EIGHT(S, 8, 0x1p-3f),    \
        EIGHT(S, 8, 0x1p-2f), EIGHT(S, 8, 0x1p-1f), EIGHT(S, 8, 1.0f), EIGHT(S, 8, 2.0f),          \
        EIGHT(S, 8, 4.0f), EIGHT(S, 8, 8.0f), EIGHT(S, 8, 16.0f), S 256.0f, S 288.0f, S 320.0f,    \
        S 352.0f, S 384.0f, S 416.0f, S 448.0f, NAN

const float hx_e4m3_table[256] = {E4M3_HALF(+1.0f *), E4M3_HALF(-1.0f *)};

const float hx_e2m1_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint8_t hx_e4m3_encode(float x)
{
    uint8_t sign = hx_bits(x) >> 31 ? 0x80 : 0;
    double a = fabs((double)x);
    if (a >= 448.0)
        return sign | 0x7E;
    if (a == 0)
        return sign;
    int e;
    frexp(a, &e); /* a = m 2^e, m in [.5, 1) */
    e = e - 1 < -6 ? -6 : e - 1;
    /* Steps of 2^(e-3) inside the binade, 8 steps a binade above the subnormals. */
    int steps = (int)rint(ldexp(a, 3 - e));
    return sign | (uint8_t)(steps + (e + 6) * 8);
}

uint8_t hx_e2m1_encode(float x)
{
    static const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    uint8_t sign = hx_bits(x) >> 31 ? 8 : 0, code = 0;
    float a = fabsf(x);
    for (int i = 0; i < 7; i++)
        code += a > middle[i] || (a == middle[i] && (i & 1)); /* ties go to the even code */
    return sign | code;
}

float hx_f16_value(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
    if (e == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return hx_from_bits(sign | (e == 31 ? 0x7F800000u : (e + 112) << 23) | m << 13);
}

static float block_amax(const float *x, int n)
{
    float amax = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (a > amax)
            amax = a;
    }
    return amax;
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

void hx_quant_fp8_b32(const float *x, int n, uint8_t *codes, uint8_t *scales)
{
    for (int b = 0; b < n; b += 32) {
        float amax = fmaxf(block_amax(x + b, 32), 1e-4f);
        scales[b / 32] = hx_pow2_scale(amax * (float)(1.0 / 448.0));
        float s = hx_e8m0(scales[b / 32]);
        for (int i = b; i < b + 32; i++)
            codes[i] = hx_e4m3_encode(clamp(x[i] / s, 448.0f));
    }
}

void hx_quant_fp4_b32(const float *x, int n, uint8_t *packed, uint8_t *scales)
{
    for (int b = 0; b < n; b += 32) {
        float amax = fmaxf(block_amax(x + b, 32), 0x6p-126f);
        scales[b / 32] = hx_pow2_scale(amax * (float)(1.0 / 6.0));
        float s = hx_e8m0(scales[b / 32]);
        for (int i = b; i < b + 32; i += 2)
            packed[i / 2] = (uint8_t)(hx_e2m1_encode(clamp(x[i] / s, 6.0f)) |
                                      hx_e2m1_encode(clamp(x[i + 1] / s, 6.0f)) << 4);
    }
}

void hx_quant_fp4_b16(const float *x, int n, uint8_t *packed, uint8_t *scales)
{
    for (int b = 0; b < n; b += 16) {
        float amax = fmaxf(block_amax(x + b, 16), 0x6p-9f);
        scales[b / 16] = hx_e4m3_encode(amax / 6.0f);
        float s = hx_e4m3_table[scales[b / 16]];
        for (int i = b; i < b + 16; i += 2)
            packed[i / 2] = (uint8_t)(hx_e2m1_encode(clamp(x[i] / s, 6.0f)) |
                                      hx_e2m1_encode(clamp(x[i + 1] / s, 6.0f)) << 4);
    }
}

void hx_dequant_fp8_b32(const uint8_t *codes, const uint8_t *scales, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = hx_bf16_round(hx_e4m3_table[codes[i]] * hx_e8m0(scales[i / 32]));
}

void hx_dequant_fp4_b32(const uint8_t *packed, const uint8_t *scales, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = hx_bf16_round(hx_e2m1_table[packed[i / 2] >> (i % 2 * 4) & 15] *
                             hx_e8m0(scales[i / 32]));
}

void hx_dequant_fp4_b16(const uint8_t *packed, const uint8_t *scales, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = hx_bf16_round(hx_e2m1_table[packed[i / 2] >> (i % 2 * 4) & 15] *
                             hx_e4m3_table[scales[i / 16]]);
}

double hx_dot(const double *a, const double *b, int64_t n)
{
    /* Eight independent sums keep the adder busy; as scalars, or the compiler keeps them in memory.
     */
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
        s4 += a[i + 4] * b[i + 4];
        s5 += a[i + 5] * b[i + 5];
        s6 += a[i + 6] * b[i + 6];
        s7 += a[i + 7] * b[i + 7];
    }
    for (; i < n; i++)
        s0 += a[i] * b[i];
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
}

float hx_mean_square32(const float *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return (float)(s / (double)n);
}
