/* A layer of EXL3 experts for few rows (docs/kernels.md, "EXL3 experts"): rows grouped by expert
 * and rotated, gate and up, SwiGLU and rotation, down, rotation and sum. A row's bits depend on
 * nothing but the row and its experts: scales of the 8-bit pairs are the row's own, products are
 * exact integers. */
#include <cuda_fp16.h>

#include "backend/cuda/kernels/exl3_inner.cuh"
#include "backend/cuda/kernels/expert_groups.cuh"

#define MAX_EXPERT 4096
#define MAX_WIDTH  8192 /* inputs or outputs: the values of a row lie in shared memory */
#define MAX_FF     6144 /* beside the rings */
#define K_STEP     0.00676727294921875f   /* binary16 0x1EEE */
#define K_OFFSET   (-0.0018157958984375f) /* 510 K_STEP - 3.453125 */

/* Of one row of one matrix: its step, and 254 sum(i) + sum(j). */
struct row_scale {
    float q;
    int32_t sum;
};

/* Vectors of a pair's expert. */
struct vectors {
    const uint16_t *svh1, *svh3, *suh2, *svh2;
    int64_t ff;
};

struct layer {
    struct hx_cuda_exl3 a;
    int n_pair;
    bool sums_there; /* `products` adds the experts up, too */
    int32_t *n_job;
    int32_t *begins; /* [jobs + 1], behind n_job: read together */
    uint32_t *barrier;
    struct exl3_job *job;
    struct vectors *vec;        /* [pairs] */
    struct row_scale *scale[2]; /* [2][pairs] of gate and up, [pairs] of down */
    uint8_t *codes[2];          /* [2][pairs][2][d], [pairs][2][ff] */
    unsigned long long *sum[2]; /* [2][pairs][ff], [pairs][d] */
};

/* ---- rotations and 8-bit pairs ---- */

/* Sum transform of 128 values, four neighbours a lane. */
static __device__ __forceinline__ float4 hadamard128(float4 v)
{
    int lane = threadIdx.x % 32;
    float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
    v = make_float4(a + c, b + d, a - c, b - d);
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
        float sign = lane & h ? -1.0f : 1.0f;
        v.x = __fmaf_rn(v.x, sign, __shfl_xor_sync(0xFFFFFFFFu, v.x, h));
        v.y = __fmaf_rn(v.y, sign, __shfl_xor_sync(0xFFFFFFFFu, v.y, h));
        v.z = __fmaf_rn(v.z, sign, __shfl_xor_sync(0xFFFFFFFFu, v.z, h));
        v.w = __fmaf_rn(v.w, sign, __shfl_xor_sync(0xFFFFFFFFu, v.w, h));
    }
    return v;
}

/* Four neighbouring binary16 values. */
static __device__ __forceinline__ float4 halves(const uint16_t *p)
{
    uint2 u = *(const uint2 *)p;
    float2 lo = __half22float2(*(const __half2 *)&u.x), hi = __half22float2(*(const __half2 *)&u.y);
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/* Bits of the largest magnitude; a NaN is larger than all else. */
static __device__ __forceinline__ uint32_t magnitude(uint32_t most, float4 v)
{
    most = max(most, __float_as_uint(v.x) & 0x7FFFFFFFu);
    most = max(most, __float_as_uint(v.y) & 0x7FFFFFFFu);
    most = max(most, __float_as_uint(v.z) & 0x7FFFFFFFu);
    return max(most, __float_as_uint(v.w) & 0x7FFFFFFFu);
}

/* A block's n values v (shared) as pairs: codes [2][stride]. Inside 16 inputs, word r holds inputs
 * 2 r, 2 r + 1, 2 r + 8, 2 r + 9: those of one step of a lane. most: this thread's largest
 * magnitude. */
static __device__ void quantise_row(const float *v, int n, uint32_t most, uint8_t *codes,
                                    int stride, struct row_scale *scale)
{
    __shared__ uint32_t part[32];
    __shared__ int32_t sums[32];
    int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0)
        part[warp] = most;
    __syncthreads();
    most = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x % 32 < n_warp ? part[threadIdx.x % 32] : 0u);
    float q = __uint_as_float(most) / 127.0f, r = q > 0 ? 1.0f / q : 0;
    r = isinf(r) ? 0 : r; /* all values below the smallest normal number over 127 */
    int32_t sum = 0;
    for (int w = threadIdx.x; w < n / 4; w += blockDim.x) {
        const float *at = v + w / 4 * 16 + w % 4 * 2;
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x = at[(k & 1) + (k >> 1) * 8];
            int i = max(-127, min(127, __float2int_rn(x * r)));
            int j = max(-127, min(127, __float2int_rn((x - q * (float)i) * r * 254.0f)));
            high |= (uint32_t)(i & 255) << 8 * k;
            low |= (uint32_t)(j & 255) << 8 * k;
            sum += 254 * i + j;
        }
        ((uint32_t *)codes)[w] = high;
        ((uint32_t *)(codes + stride))[w] = low;
    }
    sum = __reduce_add_sync(0xFFFFFFFFu, sum);
    if (threadIdx.x % 32 == 0)
        sums[warp] = sum;
    __syncthreads();
    if (warp > 0)
        return;
    sum = __reduce_add_sync(0xFFFFFFFFu, (int)threadIdx.x < n_warp ? sums[threadIdx.x] : 0);
    if (threadIdx.x == 0)
        *scale = {q, sum};
}

/* Outputs 128 b + 4 lane .. + 3 of a product: what memory holds of them, and their values. The sums
 * may be of this launch, so they are read past the first-level cache. */
struct raw_outputs {
    longlong2 lo, hi;
    float4 svh;
};

static __device__ __forceinline__ struct raw_outputs fetch(const unsigned long long *sum,
                                                           const uint16_t *svh, int b)
{
    int at = 128 * b + threadIdx.x % 32 * 4;
    const longlong2 *p = (const longlong2 *)(sum + at);
    return {__ldcg(p), __ldcg(p + 1), halves(svh + at)};
}

static __device__ __forceinline__ float4 outputs(const struct raw_outputs &r, struct row_scale s)
{
    float v[4], q = s.q * (1.0f / 254.0f), offset = K_OFFSET * (float)s.sum;
    int64_t part[4] = {r.lo.x, r.lo.y, r.hi.x, r.hi.y}, centre = (int64_t)510 * s.sum;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = q * (K_STEP * (float)(part[i] - centre) + offset);
    float4 y = hadamard128(make_float4(v[0], v[1], v[2], v[3]));
    float f = 1.0f / 128.0f;
    return make_float4(y.x * f * r.svh.x, y.y * f * r.svh.y, y.z * f * r.svh.z, y.w * f * r.svh.w);
}

/* ---- launches ---- */

static __device__ void group(const struct layer &p, int32_t *shared)
{
    auto begin = [&](int job, int e, int n) {
        struct exl3_job *to = &p.job[job];
        to->data[0] = (const uint8_t *)p.a.w1[e].data;
        to->data[1] = (const uint8_t *)p.a.w3[e].data;
        to->data[2] = (const uint8_t *)p.a.w2[e].data;
        to->n = n;
        for (int i = 0; i < EXL3_ROWS; i++)
            to->pair[i] = -1;
    };
    auto add = [&](int job, int i, int pair) { p.job[job].pair[i] = pair; };
    group_rows<EXL3_ROWS>(p.a, p.n_pair, 64, shared, shared + p.a.n_expert, p.n_job, p.begins,
                          begin, add);
}

static __device__ void clear(unsigned long long *p, int n)
{
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x)
        ((ulonglong2 *)p)[i] = make_ulonglong2(0, 0);
}

static __device__ __forceinline__ float4 scaled(ushort4 x, float4 s)
{
    return make_float4(bf16_value(x.x) * s.x, bf16_value(x.y) * s.y, bf16_value(x.z) * s.z,
                       bf16_value(x.w) * s.w);
}

/* Blocks (0 and 1, pair): input of gate and up. Block (2, 0): groups; (2, 1 + pair): sums of down.
 */
static __global__ void __launch_bounds__(1024) begin(struct layer p)
{
    extern __shared__ __align__(16) float v[];
    int pair = blockIdx.y, matrix = blockIdx.x, lane = threadIdx.x % 32;
    int d = (int)p.a.d, ff = (int)p.a.ff, n_warp = blockDim.x / 32;
    if (matrix == 2) {
        if (pair == 0) {
            if (threadIdx.x == 0)
                *p.barrier = 0;
            group(p, (int32_t *)v);
        } else {
            clear(p.sum[1] + (int64_t)(pair - 1) * d, d);
        }
        return;
    }
    if (pair == p.n_pair)
        return;
    int e = p.a.sel[pair];
    const uint16_t *x = p.a.z + (int64_t)(pair / p.a.used) * d;
    const uint16_t *suh = (matrix ? p.a.w3 : p.a.w1)[e].suh;
    uint32_t most = 0;
    for (int b = threadIdx.x / 32; b < d / 128; b += 2 * n_warp) {
        /* Two blocks at a time: both loads first. */
        int at = 128 * b + 4 * lane, next = at + 128 * n_warp;
        bool two = b + n_warp < d / 128;
        float4 y = scaled(*(const ushort4 *)(x + at), halves(suh + at)), z = y;
        if (two)
            z = scaled(*(const ushort4 *)(x + next), halves(suh + next));
        y = hadamard128(y);
        *(float4 *)(v + at) = y;
        most = magnitude(most, y);
        if (two) {
            z = hadamard128(z);
            *(float4 *)(v + next) = z;
            most = magnitude(most, z);
        }
    }
    int64_t row = (int64_t)matrix * p.n_pair + pair;
    clear(p.sum[0] + row * ff, ff);
    if (matrix == 0 && threadIdx.x == 0)
        p.vec[pair] = {p.a.w1[e].svh, p.a.w3[e].svh, p.a.w2[e].suh, p.a.w2[e].svh, p.a.w1[e].n_out};
    quantise_row(v, d, most, p.codes[0] + row * 2 * d, d, &p.scale[0][row]);
}

/* A pair by a block: activation, input of down. v: shared, [ff]. */
static __device__ __forceinline__ void middle(const struct layer &p, int pair, float *v)
{
    int lane = threadIdx.x % 32, ff = (int)p.a.ff;
    struct vectors u = p.vec[pair];
    struct row_scale s1 = p.scale[0][pair], s3 = p.scale[0][p.n_pair + pair];
    const unsigned long long *a = p.sum[0] + (int64_t)pair * ff;
    const unsigned long long *b = a + (int64_t)p.n_pair * ff;
    float weight = p.a.weight[pair], limit = p.a.limit;
    uint32_t most = 0;
    auto finish = [&](int i, const struct raw_outputs &left, const struct raw_outputs &right,
                      float4 suh) {
        float4 x = outputs(left, s1), y = outputs(right, s3);
        float4 t = make_float4(
            gated(x.x, y.x, weight, limit) * suh.x, gated(x.y, y.y, weight, limit) * suh.y,
            gated(x.z, y.z, weight, limit) * suh.z, gated(x.w, y.w, weight, limit) * suh.w);
        t = hadamard128(t);
        *(float4 *)(v + 128 * i + 4 * lane) = t;
        most = magnitude(most, t);
    };
    int n = (int)u.ff / 128, step = blockDim.x / 32;
    for (int i = threadIdx.x / 32; i < n; i += 2 * step) {
        /* Two blocks at a time: all loads first. */
        int next = i + step < n ? i + step : i;
        struct raw_outputs x = fetch(a, u.svh1, i), y = fetch(b, u.svh3, i);
        float4 suh = halves(u.suh2 + 128 * i + 4 * lane);
        struct raw_outputs x2 = fetch(a, u.svh1, next), y2 = fetch(b, u.svh3, next);
        float4 suh2 = halves(u.suh2 + 128 * next + 4 * lane);
        finish(i, x, y, suh);
        if (next > i)
            finish(next, x2, y2, suh2);
    }
    quantise_row(v, (int)u.ff, most, p.codes[1] + (int64_t)pair * 2 * ff, ff, &p.scale[1][pair]);
}

/* Places are 128 outputs of a token; a block takes as many as it has warps for their experts. The
 * sums and scales may be of this launch. v: shared, 128 of each warp or expert. Added in listed
 * order, the shared expert last. */
static __device__ __forceinline__ void add_up(const struct layer &p, float *v)
{
    const int used = p.a.used, n_warp = blockDim.x / 32, per = max(n_warp / used, 1);
    const int wide = (int)(p.a.d / 128), n = p.n_pair / used * wide;
    for (int at = blockIdx.x * per; at < n; at += gridDim.x * per) {
        const int here = min(per, n - at);
        for (int w = threadIdx.x / 32; w < here * used; w += n_warp) {
            int place = at + w / used, pair = place / wide * used + w % used;
            uint2 scale = __ldcg((const uint2 *)&p.scale[1][pair]);
            float4 o = outputs(fetch(p.sum[1] + pair * p.a.d, p.vec[pair].svh2, place % wide),
                               {__uint_as_float(scale.x), (int32_t)scale.y});
            *(float4 *)(v + 128 * w + threadIdx.x % 32 * 4) =
                make_float4(rounded(o.x), rounded(o.y), rounded(o.z), rounded(o.w));
        }
        __syncthreads();
        for (int i = threadIdx.x; i < here * 128; i += blockDim.x) {
            const float *of = v + i / 128 * used * 128 + i % 128;
            float sum = 0;
            for (int e = 0; e < used; e++)
                sum = sum + of[128 * e];
            int64_t to = (int64_t)at * 128 + i; /* places of a token lie behind one another */
            p.a.y[to] = to_bf16(sum + (p.a.shared ? rounded(p.a.shared[to]) : 0));
        }
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(1024) finish(struct layer p)
{
    extern __shared__ __align__(16) float v[];
    add_up(p, v);
}

static __device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* Gate and up, activation, down: blocks meet before and behind the activation, while the first
 * weights of down are on their way; then, where places are few, the sum. N_UP, N_DOWN as N_TILES
 * of exl3_product. */
template <int BITS, int DOWN_BITS, int N_UP, int N_DOWN, bool UNEQUAL>
static __global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    products(const __grid_constant__ struct layer p, const __grid_constant__ struct exl3_inner up,
             const __grid_constant__ struct exl3_inner down)
{
    extern __shared__ __align__(16) float v[];
    /* Where each warp begins in down, found while nothing is there to be waited for. */
    __shared__ struct {
        struct exl3_share share;
        struct exl3_job job;
    } next[EXL3_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_job = *p.n_job;
    const exl3_share first = share_of<UNEQUAL>(up, n_job), second = share_of<UNEQUAL>(down, n_job);
    copy_cached(shared_address(&next[warp].job) + lane * 16,
                (const uint8_t *)&p.job[second.at.job] + lane * 16,
                second.n > 0 && lane < (int)sizeof(struct exl3_job) / 16);
    if (lane == 0)
        next[warp].share = second;
    /* A warp's rings of both products lie at the same place. */
    constexpr int most = BITS > DOWN_BITS ? BITS : DOWN_BITS;
    uint32_t ring =
        shared_address(v) + (uint32_t)p.a.ff * 4 + warp * EXL3_RING * exl3_stage<most>::words * 4;
    exl3_product<BITS, N_UP, UNEQUAL, false>(up, first, &p.job[first.at.job], ring, []() {});
    copies_done();
    auto before = [&]() {
        if ((int)blockIdx.x < p.n_pair) { /* vectors of the activation, while others still work */
            struct vectors u = p.vec[blockIdx.x];
            for (int i = threadIdx.x * 64; i < (int)u.ff; i += blockDim.x * 64) {
                prefetch(u.svh1 + i);
                prefetch(u.svh3 + i);
                prefetch(u.suh2 + i);
            }
        }
        grid_barrier(p.barrier, gridDim.x, blockIdx.x == 0);
        for (int pair = blockIdx.x; pair < p.n_pair; pair += gridDim.x) {
            middle(p, pair, v);
            __syncthreads();
        }
        grid_barrier(p.barrier, gridDim.x, blockIdx.x == 0);
    };
    exl3_product<DOWN_BITS, N_DOWN, UNEQUAL, true>(down, next[warp].share, &next[warp].job, ring,
                                                   before);
    if (!p.sums_there)
        return;
    copies_done();
    grid_barrier(p.barrier, gridDim.x, blockIdx.x == 0);
    add_up(p, v);
}

template <int BITS, int DOWN_BITS, int N_UP, int N_DOWN, bool UNEQUAL>
static void start(cudaStream_t s, const struct layer &p, const struct exl3_inner &up,
                  const struct exl3_inner &down, int n_sm)
{
    constexpr int most = BITS > DOWN_BITS ? BITS : DOWN_BITS;
    size_t bytes =
        (size_t)p.a.ff * 4 + (size_t)EXL3_WARPS * EXL3_RING * exl3_stage<most>::words * 4;
    cudaFuncSetAttribute(products<BITS, DOWN_BITS, N_UP, N_DOWN, UNEQUAL>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    products<BITS, DOWN_BITS, N_UP, N_DOWN, UNEQUAL>
        <<<(unsigned)n_sm, EXL3_WARPS * 32, bytes, s>>>(p, up, down);
}

template <int BITS, int DOWN_BITS>
static void start(cudaStream_t s, const struct layer &p, const struct exl3_inner &up,
                  const struct exl3_inner &down, int n_sm)
{
    bool wide = down.n_out == 5120;
    if (p.a.unequal && wide)
        start<BITS, DOWN_BITS, 0, 320, true>(s, p, up, down, n_sm);
    else if (p.a.unequal)
        start<BITS, DOWN_BITS, 0, 0, true>(s, p, up, down, n_sm);
    else if (wide && up.n_out == 2304)
        start<BITS, DOWN_BITS, 144, 320, false>(s, p, up, down, n_sm);
    else
        start<BITS, DOWN_BITS, 0, 0, false>(s, p, up, down, n_sm);
}

bool hx_cu_exl3_takes(const struct hx_cuda_choice *w1, const struct hx_cuda_choice *w2,
                      const struct hx_cuda_choice *w3, int n_expert, int used)
{
    const struct hx_cuda_choice *w[3] = {w1, w2, w3};
    for (int i = 0; i < 3; i++) {
        if (w[i]->mul1_bits != 2 && w[i]->mul1_bits != 3)
            return false;
        if (w[i]->n_in % 128 != 0 || w[i]->n_out % 128 != 0 || w[i]->n_in > MAX_WIDTH ||
            w[i]->n_out > MAX_WIDTH)
            return false;
    }
    return n_expert <= MAX_EXPERT && used <= 32 && w1->n_out <= MAX_FF &&
           w1->mul1_bits == w3->mul1_bits && w1->n_in == w3->n_in && w1->n_out == w3->n_out &&
           w2->n_in == w1->n_out && w2->n_out == w1->n_in;
}

static size_t carve(uint8_t *room, size_t *used, size_t n, uint8_t **out)
{
    *out = room + *used;
    return *used += (n + 255) / 256 * 256;
}

static size_t lay_out(struct layer *p, uint8_t *room)
{
    size_t n = (size_t)p->n_pair, d = (size_t)p->a.d, ff = (size_t)p->a.ff, used = 0;
    uint8_t *at[10];
    carve(room, &used, (n + 2) * 4, &at[0]);
    carve(room, &used, 4, &at[9]);
    carve(room, &used, n * sizeof(struct vectors), &at[1]);
    carve(room, &used, n * sizeof(struct exl3_job), &at[2]);
    carve(room, &used, 2 * n * sizeof(struct row_scale), &at[3]);
    carve(room, &used, n * sizeof(struct row_scale), &at[4]);
    carve(room, &used, 2 * n * 2 * d, &at[5]);
    carve(room, &used, n * 2 * ff, &at[6]);
    carve(room, &used, 2 * n * ff * 8, &at[7]);
    carve(room, &used, n * d * 8, &at[8]);
    p->n_job = (int32_t *)at[0];
    p->begins = p->n_job + 1;
    p->barrier = (uint32_t *)at[9];
    p->vec = (struct vectors *)at[1];
    p->job = (struct exl3_job *)at[2];
    p->scale[0] = (struct row_scale *)at[3];
    p->scale[1] = (struct row_scale *)at[4];
    p->codes[0] = at[5];
    p->codes[1] = at[6];
    p->sum[0] = (unsigned long long *)at[7];
    p->sum[1] = (unsigned long long *)at[8];
    return used;
}

size_t hx_cu_exl3_room(const struct hx_cuda_exl3 *a, int n_tok)
{
    struct layer p = {};
    p.a = *a;
    p.n_pair = n_tok * a->used;
    return lay_out(&p, NULL);
}

/* Warps of a block for n blocks of 128 values: enough for a wide row, groups need some. */
static int n_warp(int64_t n)
{
    return n < 8 ? 8 : n > 32 ? 32 : (int)n;
}

cudaError_t hx_cu_exl3(cudaStream_t s, const struct hx_cuda_exl3 *a, int n_sm)
{
    struct layer p = {};
    p.a = *a;
    p.n_pair = a->n_tok * a->used;
    if (p.n_pair > 65534 || a->used > 32)
        return cudaErrorInvalidValue;
    lay_out(&p, (uint8_t *)a->room);
    struct exl3_inner up = {0,        2,         p.job,      p.codes[0], p.sum[0],
                            p.n_pair, (int)a->d, (int)a->ff, p.begins};
    struct exl3_inner down = {2,        1,          p.job,     p.codes[1], p.sum[1],
                              p.n_pair, (int)a->ff, (int)a->d, p.begins};
    size_t row = (size_t)a->d * 4, groups = (size_t)a->n_expert * 8;
    size_t room = row > groups ? row : groups;
    const unsigned places = (unsigned)(a->n_tok * (a->d / 128));
    /* A launch less where few rounds of the same blocks do it. */
    p.sums_there = a->used <= EXL3_WARPS && places <= 4u * (unsigned)n_sm;
    begin<<<dim3(3, p.n_pair + 1), n_warp(a->d / 256) * 32, room, s>>>(p);
    if (p.sums_there && a->shared_there)
        cudaStreamWaitEvent(s, a->shared_there, 0);
    if (a->bits == 3 && a->down_bits == 3)
        start<3, 3>(s, p, up, down, n_sm);
    else if (a->bits == 3)
        start<3, 2>(s, p, up, down, n_sm);
    else if (a->down_bits == 3)
        start<2, 3>(s, p, up, down, n_sm);
    else
        start<2, 2>(s, p, up, down, n_sm);
    if (!p.sums_there && a->shared_there)
        cudaStreamWaitEvent(s, a->shared_there, 0);
    if (!p.sums_there)
        finish<<<places, a->used * 32, (size_t)a->used * 512, s>>>(p);
    return cudaGetLastError();
}
