/* Values onto the grids of stored rows (docs/numerics.md). */
#ifndef HX_BACKEND_CUDA_GRID_CUH
#define HX_BACKEND_CUDA_GRID_CUH

#include "backend/cuda/kernels/numeric.cuh"

/* Ties to even; beyond 448: 448. */
static __device__ __forceinline__ uint8_t encode_e4m3(float x)
{
    uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80, m = u & 0x7FFFFFFFu;
    float a = __uint_as_float(m);
    uint32_t code = ((m + 0x7FFFFu + (m >> 20 & 1)) >> 20) - (120u << 3);
    if (a < 0x1p-6f)
        code = (uint32_t)__float2int_rn(a * 0x1p9f);
    return (uint8_t)(sign | (a >= 448.0f ? 0x7Eu : code));
}

static __device__ __forceinline__ uint8_t encode_e2m1(float x)
{
    const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    uint8_t sign = __float_as_uint(x) >> 31 ? 8 : 0, code = 0;
    float a = fabsf(x);
    for (int i = 0; i < 7; i++)
        code += a > middle[i] || (a == middle[i] && (i & 1));
    return sign | code;
}

static __device__ __forceinline__ uint8_t pow2_scale(float t)
{
    uint32_t u = __float_as_uint(t);
    return (uint8_t)((u >> 23 & 0xFF) + ((u & 0x7FFFFF) != 0));
}

static __device__ __forceinline__ float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* The scale of 32 values onto the window rows' grid, by the largest magnitude. */
static __device__ __forceinline__ uint8_t fp8_scale(float amax)
{
    return pow2_scale(fmaxf(amax, 1e-4f) * (float)(1.0 / 448.0));
}

/* Of 32 values onto the index keys' grid. */
static __device__ __forceinline__ uint8_t fp4_scale(float amax)
{
    return pow2_scale(fmaxf(amax, 0x6p-126f) * (float)(1.0 / 6.0));
}

/* What multiplies as e8m0(scale) divides. */
static __device__ __forceinline__ float inverse(uint8_t scale)
{
    return scale == 255 ? 0.0f : e8m0((uint8_t)(254 - scale));
}

/* Largest magnitude of a warp; a NaN counts for nothing, as in a comparison. */
static __device__ __forceinline__ float warp_magnitude(float v)
{
    uint32_t u = __float_as_uint(v) & 0x7FFFFFFFu;
    return __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, u > 0x7F800000u ? 0 : u));
}

#endif
