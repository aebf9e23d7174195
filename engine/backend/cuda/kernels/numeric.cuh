/* Number formats and sums on the device; the definitions are those of docs/numerics.md. */
#ifndef HX_BACKEND_CUDA_NUMERIC_CUH
#define HX_BACKEND_CUDA_NUMERIC_CUH

#include <stdint.h>

#include "backend/cuda/kernels/launch.h"

#define HX_FORMAT_DENSE_ID 0
#define HX_FORMAT_FP8_ID   1
#define HX_FORMAT_FP4_ID   2
#define HX_FORMAT_EXL3_ID  3

static __device__ __forceinline__ float bf16_value(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* Ties to even; NaN stays NaN. */
static __device__ __forceinline__ uint16_t to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + ((u >> 16 & 1) + 0x7FFFu)) >> 16);
}

static __device__ __forceinline__ float bf16_round(float f)
{
    return bf16_value(to_bf16(f));
}

/* c += A B for a tile of 16 x 16 by 16 x 8 BF16, float32 sums; lanes hold what PTX says. */
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ float e8m0(uint8_t b)
{
    return __uint_as_float(b ? (uint32_t)b << 23 : 0x00400000u);
}

static __device__ __forceinline__ float e4m3(uint8_t c)
{
    uint32_t e = c >> 3 & 15, m = c & 7, sign = (uint32_t)(c & 0x80) << 24;
    float f = e ? __uint_as_float(e + 120 << 23 | m << 20) : (float)m * 0x1p-9f;
    if ((c & 0x7F) == 0x7F)
        f = __uint_as_float(0x7FC00000u);
    return __uint_as_float(__float_as_uint(f) | sign);
}

static __device__ __forceinline__ float e2m1(uint32_t c)
{
    uint32_t e = c >> 1 & 3, m = c & 1;
    float f = e ? __uint_as_float(e + 126 << 23 | m << 22) : (float)m * 0.5f;
    return c & 8 ? -f : f;
}

static __device__ __forceinline__ float f16_value(uint16_t h)
{
    uint32_t e = h >> 10 & 31, m = h & 0x3FF;
    float f = e == 0 ? (float)m * 0x1p-24f
                     : __uint_as_float((e == 31 ? 0x7F800000u : e + 112 << 23) | m << 13);
    return h & 0x8000 ? -f : f;
}

static __device__ __forceinline__ float sigmoid32(float x)
{
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}

static __device__ __forceinline__ float exp32(float x)
{
    return (float)exp((double)x);
}

static __device__ __forceinline__ float rsqrt32(float x)
{
    return (float)(1.0 / sqrt((double)x));
}

/* bf16(silu(clamp a) clamp b weight), as the definition has it. */
static __device__ __forceinline__ uint16_t swiglu_of(float a, float b, float limit,
                                                     float weight = 1.0f)
{
    float x = bf16_round(a), y = bf16_round(b);
    if (limit > 0) {
        x = x > limit ? limit : x;
        y = y > limit ? limit : y < -limit ? -limit : y;
    }
    return to_bf16(weight * ((float)((double)x / (1.0 + exp(-(double)x))) * y));
}

static __device__ __forceinline__ double warp_sum(double v)
{
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
    return v;
}

/* One level of warp_sums: n of the N values are real, which is the first one's number. */
template <int N, int O, class T>
static __device__ __forceinline__ void warp_sums_from(T *v, int n, int *which)
{
    if constexpr (O == 0) {
        *which = n > 0 ? *which : INT32_MAX;
    } else if constexpr (N == 1) {
        v[0] += __shfl_xor_sync(0xFFFFFFFFu, v[0], O);
        warp_sums_from<1, O / 2>(v, n, which);
    } else {
        constexpr int half = (N + 1) / 2;
        const bool upper = threadIdx.x & O;
#pragma unroll
        for (int i = 0; i < half; i++) {
            T a = v[i], b = i + half < N ? v[i + half] : (T)0;
            T kept = upper ? b : a, given = upper ? a : b;
            v[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, O);
        }
        *which += upper ? half : 0;
        warp_sums_from<half, O / 2>(v, upper ? n - half : min(n, half), which);
    }
}

/* Sums over a warp of N values of each lane, at most 32, level by level from the far lanes to the
 * near ones: as warp_sum adds them. A lane gets that of value *which in v[0], or none: INT32_MAX;
 * several lanes may have the same. */
template <int N, class T> static __device__ __forceinline__ void warp_sums(T *v, int *which)
{
    *which = 0;
    warp_sums_from<N, 16>(v, N, which);
}

/* Sum over a block of up to 1024 threads, to all of them. part: shared, 32 entries. */
static __device__ __forceinline__ double block_sum(double v, double *part)
{
    int warp = threadIdx.x / 32, n_warp = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[warp] = v;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < n_warp; i++)
        sum += part[i];
    return sum;
}

/* Element i of a dense vector or matrix. */
static __device__ __forceinline__ float dense_value(const struct hx_cuda_weight *w, int64_t i)
{
    return w->is_bf16 ? bf16_value(((const uint16_t *)w->data)[i]) : ((const float *)w->data)[i];
}

/* Weight of output o, input i; dense, FP8 and FP4. Exact. */
static __device__ __forceinline__ float weight_value(const struct hx_cuda_weight *w, int64_t o,
                                                     int64_t i)
{
    const uint8_t *code = (const uint8_t *)w->data;
    if (w->format == HX_FORMAT_FP8_ID)
        return e4m3(code[o * w->n_in + i]) * e8m0(w->scale[o / 32 * w->scale_columns + i / 32]);
    if (w->format == HX_FORMAT_FP4_ID) {
        uint32_t c = code[o * (w->n_in / 2) + i / 2] >> (i % 2 * 4) & 15;
        return e2m1(c) * e8m0(w->scale[o * (w->n_in / 32) + i / 32]);
    }
    return dense_value(w, o * w->n_in + i);
}

/* A channel of a stored row. */
static __device__ __forceinline__ float fp8_b32(const uint8_t *codes, const uint8_t *scales, int i)
{
    return bf16_round(e4m3(codes[i]) * e8m0(scales[i / 32]));
}

static __device__ __forceinline__ float fp4_b16(const uint8_t *codes, const uint8_t *scales, int i)
{
    return bf16_round(e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * e4m3(scales[i / 16]));
}

static __device__ __forceinline__ float fp4_b32(const uint8_t *codes, const uint8_t *scales, int i)
{
    return bf16_round(e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * e8m0(scales[i / 32]));
}

/* Where row j of a stream lies (kv_view.h); rows have 32-bit numbers, whose division is short. */
static __device__ __forceinline__ const uint8_t *row_at(const struct hx_kv_stream *s, int64_t j,
                                                        size_t offset, int bytes)
{
    uint32_t at = (uint32_t)j, n = (uint32_t)(s->ring ? s->ring : s->rows_per_block), b = at / n;
    uint32_t block = (uint32_t)s->table[s->ring ? 0 : b];
    return s->base + (size_t)block * s->block_stride + offset +
           (size_t)(at - b * n) * (size_t)bytes;
}

static __device__ __forceinline__ const uint8_t *row_data(const struct hx_kv_stream *s, int64_t j)
{
    return row_at(s, j, s->data_offset, s->data_bytes);
}

static __device__ __forceinline__ const uint8_t *row_scale(const struct hx_kv_stream *s, int64_t j)
{
    return row_at(s, j, s->scale_offset, s->scale_bytes);
}

/* Order of a float as an unsigned number, -0.0 as +0.0; minus infinity is 0x007FFFFF. */
static __device__ __forceinline__ uint32_t order(float f)
{
    uint32_t u = __float_as_uint(f == 0 ? 0.0f : f);
    return u >> 31 ? ~u : u | 0x80000000u;
}

#define ORDER_NEVER 0x007FFFFFu

/* One thread of a block of any shape. */
static __device__ __forceinline__ bool first_thread()
{
    return (threadIdx.x | threadIdx.y | threadIdx.z) == 0;
}

/* All blocks of a grid, which must fit the card together; what they wrote before is seen by all
 * behind it (read it past the first-level cache). barrier: a word, zero at the beginning and again
 * or with its top bit set behind it; launches that share it follow each other, of whatever size.
 * One block adds what the others leave to the top bit, so a meeting flips it. */
static __device__ __forceinline__ void grid_barrier(uint32_t *barrier, uint32_t n_block, bool first)
{
    __syncthreads();
    if (first_thread()) {
        uint32_t add = first ? 0x80000000u - (n_block - 1) : 1u, old, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(old)
                     : "l"(barrier), "r"(add)
                     : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(barrier)
                         : "memory");
        } while (((old ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

/* Counts this block in behind all that it wrote; whether it is the last of n_block. One more word
 * of a launch, zero before and behind it. */
static __device__ __forceinline__ bool last_block(uint32_t *count, uint32_t n_block)
{
    __shared__ bool last;
    __syncthreads();
    if (first_thread()) {
        uint32_t old;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(old)
                     : "l"(count)
                     : "memory");
        last = old == n_block - 1;
        if (last)
            *count = 0;
    }
    __syncthreads();
    return last;
}

/* Cosine and sine of an angle. */
static __device__ __forceinline__ float2 turn_by(float angle)
{
    double s, c;
    sincos((double)angle, &s, &c);
    return make_float2((float)c, (float)s);
}

static __device__ __forceinline__ void report(uint32_t *fault, enum hx_cuda_fault what)
{
    *(volatile uint32_t *)fault = what;
}

#endif
