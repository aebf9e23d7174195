/* Number formats and rounding points of the CPU back end. Sums are double and rounded once; exp,
 * sigmoid, log1p, sin and cos are evaluated in double and rounded once. See docs/numerics.md. */
#ifndef HX_BACKEND_CPU_NUMERICS_H
#define HX_BACKEND_CPU_NUMERICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t hx_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float hx_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* float32 -> bf16, ties to even; NaN stays NaN. */
static inline uint16_t hx_bf16(float f)
{
    uint32_t u = hx_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + ((u >> 16 & 1) + 0x7FFFu)) >> 16);
}

static inline float hx_bf16_value(uint16_t h)
{
    return hx_from_bits((uint32_t)h << 16);
}

static inline float hx_bf16_round(float f)
{
    return hx_bf16_value(hx_bf16(f));
}

/* UE8M0 byte -> 2^(byte - 127). 255 (NaN) is refused at load. */
static inline float hx_e8m0(uint8_t b)
{
    return b ? hx_from_bits((uint32_t)b << 23) : hx_from_bits(0x00400000u);
}

/* S(t) = 2^ceil(log2 t) as a UE8M0 byte, from the bits of t > 0. */
static inline uint8_t hx_pow2_scale(float t)
{
    uint32_t u = hx_bits(t);
    return (uint8_t)((u >> 23 & 0xFF) + ((u & 0x7FFFFF) != 0));
}

extern const float hx_e4m3_table[256]; /* by code; 0x7f and 0xff are NaN */
extern const float hx_e2m1_table[16];  /* by code */

uint8_t hx_e4m3_encode(float x); /* ties to even, saturating at +-448 */
uint8_t hx_e2m1_encode(float x); /* |x| <= 6, ties to even */
float hx_f16_value(uint16_t h);  /* IEEE binary16 */

/* ---- the three grids: n channels at x, a multiple of the block ---- */
void hx_quant_fp8_b32(const float *x, int n, uint8_t *codes, uint8_t *scales);
void hx_quant_fp4_b32(const float *x, int n, uint8_t *packed, uint8_t *scales);
void hx_quant_fp4_b16(const float *x, int n, uint8_t *packed, uint8_t *scales);
void hx_dequant_fp8_b32(const uint8_t *codes, const uint8_t *scales, int n, float *x);
void hx_dequant_fp4_b32(const uint8_t *packed, const uint8_t *scales, int n, float *x);
void hx_dequant_fp4_b16(const uint8_t *packed, const uint8_t *scales, int n, float *x);

static inline float hx_exp32(float x)
{
    return (float)exp((double)x);
}

static inline float hx_sigmoid32(float x)
{
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}

static inline float hx_silu32(float x)
{
    return (float)((double)x / (1.0 + exp(-(double)x)));
}

/* t for t > 20, else log1p(exp t). */
static inline float hx_softplus32(float x)
{
    return (double)x > 20.0 ? x : (float)log1p(exp((double)x));
}

static inline float hx_rsqrt32(float x)
{
    return (float)(1.0 / sqrt((double)x));
}

/* Sum of a[i] b[i] in double, in an order that depends on n alone. */
double hx_dot(const double *a, const double *b, int64_t n);

/* Mean of squares of n values, rounded once. */
float hx_mean_square32(const float *x, int64_t n);

static inline void hx_bf16_to_float(const uint16_t *h, int64_t n, float *f)
{
    for (int64_t i = 0; i < n; i++)
        f[i] = hx_bf16_value(h[i]);
}

static inline void hx_bf16_to_double(const uint16_t *h, int64_t n, double *d)
{
    for (int64_t i = 0; i < n; i++)
        d[i] = (double)hx_bf16_value(h[i]);
}

#endif
