/* Attention of few rows on tensor cores, split over keys (docs/kernels.md, "Attention").
 *
 * All heads share one latent, so a block decodes 32 keys once into shared memory and multiplies
 * them with 16 heads of a row: scores, then weighted values, each by m16n8k16 BF16. The splits of a
 * row are joined in order, with the sink and the division: by the same blocks, which meet, if all
 * blocks fit the card together, else by a second launch. A row's splits are those of its own keys,
 * so its bits do not depend on other rows. */
#include "backend/cuda/kernels/site_mix.cuh"

#define KEYS      32 /* of a block */
#define HEADS     16
#define WARPS     16 /* of a block: few are there together, so their latency is what counts */
#define THREADS   (32 * WARPS)
#define JOINED    20  /* splits whose values are on their way together */
#define MAX_SPLIT 240 /* and what is read behind the last one: zero */
static_assert(HEADS == WARPS && KEYS == 32, "a warp a head, a lane a key");

static __device__ __forceinline__ void load4(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load4_transposed(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load2(uint32_t r[2], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at));
}

struct key {
    const uint8_t *codes, *scales; /* codes NULL: behind the last key */
    bool compressed;
};

/* Key i of a row in listed order: window oldest first, then the selected rows, -1 behind the last
 * one. first: position of the oldest. */
static __device__ struct key find_key(const struct hx_cuda_attend &a, int64_t t, int seq,
                                      int64_t first, int n_window, int i)
{
    const struct hx_cuda_batch &b = a.batch;
    const struct hx_kv_view *kv = b.kv.of[seq];
    if (i >= n_window) {
        int at = i - n_window;
        int32_t j = a.source >= 0 && at < a.topk ? a.sel[t * a.topk + at] : -1;
        if (j < 0)
            return {NULL, NULL, false};
        const struct hx_kv_stream *s = &kv->comp[a.source];
        return {row_data(s, j), row_scale(s, j), true};
    }
    int64_t p = first + i, fresh = p - b.first_pos[seq];
    if (fresh < 0) {
        const struct hx_kv_stream *s = &kv->window[a.layer];
        return {row_data(s, p), row_scale(s, p), false};
    }
    int64_t row = b.first_row[seq] + fresh;
    return {a.fresh_codes + row * a.d, a.fresh_scales + row * (a.d / 32), false};
}

/* Codes of 16 channels of a key on their way: 16 bytes of a window row, 8 of a compressed one. */
struct piece {
    uint4 code;
    uint32_t scale;
};

static __device__ __forceinline__ struct piece load16(const struct key &k, int i)
{
    struct piece p = {make_uint4(0, 0, 0, 0), 0};
    if (!k.codes)
        return p;
    if (k.compressed) {
        uint2 v = *(const uint2 *)(k.codes + i / 2);
        p.code.x = v.x, p.code.y = v.y;
        p.scale = k.scales[i / 16];
    } else {
        p.code = *(const uint4 *)(k.codes + i);
        p.scale = k.scales[i / 32];
    }
    return p;
}

/* A product of pairs; adding -0.0 changes nothing. */
static __device__ __forceinline__ uint32_t times(uint32_t pair, uint32_t factor)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(factor), "r"(0x80008000u));
    return r;
}

static __device__ __forceinline__ uint32_t permute(uint32_t lo, uint32_t hi, uint32_t selector)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(selector));
    return r;
}

/* Four e4m3 codes: bits moved to BF16 are the value times 2^-120. Both products are exact. */
static __device__ __forceinline__ void window4(uint32_t code, uint32_t factor, uint32_t *out)
{
    uint32_t lo = permute(code, 0, 0x1404), hi = permute(code, 0, 0x3424);
    lo = (lo & 0x80008000u) | (lo >> 4 & 0x07F007F0u);
    hi = (hi & 0x80008000u) | (hi >> 4 & 0x07F007F0u);
    out[0] = times(times(lo, 0x7B807B80u), factor);
    out[1] = times(times(hi, 0x7B807B80u), factor);
}

/* Four e2m1 codes (the low 16 bits): upper and lower bytes of their BF16 by table, exact times the
 * scale. */
static __device__ __forceinline__ void compressed4(uint32_t code, uint32_t factor, uint32_t *out)
{
    uint32_t which = code & 0x7777u;
    uint32_t hi = permute(0x3F3F3F00u, 0x40404040u, which);
    uint32_t lo = permute(0xC0800000u, 0xC0804000u, which);
    uint32_t sign = permute(0x80808080u, 0x80808080u, code & 0x8888u); /* 0xFF or 0x80 */
    hi |= sign << 1 & 0x80808080u;
    out[0] = times(permute(lo, hi, 0x5140), factor);
    out[1] = times(permute(lo, hi, 0x7362), factor);
}

/* 16 channels of a key to BF16 (exact). */
static __device__ __forceinline__ void decode16(const struct key &k, const struct piece &p,
                                                uint16_t *to)
{
    uint32_t out[8], factor;
    const uint32_t word[4] = {p.code.x, p.code.y, p.code.z, p.code.w};
    if (k.compressed) {
        factor = to_bf16(e4m3((uint8_t)p.scale));
        factor |= factor << 16;
#pragma unroll
        for (int j = 0; j < 4; j++)
            compressed4(word[j / 2] >> j % 2 * 16, factor, out + 2 * j);
    } else {
        factor = p.scale << 7 | p.scale << 23;
#pragma unroll
        for (int j = 0; j < 4; j++)
            window4(word[j], factor, out + 2 * j);
    }
    *(uint4 *)to = make_uint4(out[0], out[1], out[2], out[3]);
    *(uint4 *)(to + 8) = make_uint4(out[4], out[5], out[6], out[7]);
}

/* What a block leaves: for each head maximum, sum of weights, weighted values. */
struct partial {
    float *max, *sum; /* [splits][rows][heads] */
    float *value;     /* [splits][rows][heads][D] */
};

/* Shared memory of a block; rows padded against bank conflicts. */
template <int D> struct tiles {
    static constexpr int KP = D + 8, PP = KEYS + 8;
    uint16_t k[KEYS * KP], q[HEADS * KP], p[HEADS * PP];
    float part[4][HEADS][KEYS];              /* scores of quarters of the channels */
    float weight[WARPS][MAX_SPLIT + JOINED]; /* of splits, while they are joined */
    struct key keys[KEYS];
    float2 turn[D / 2]; /* of the rotated channels */
};

/* A block's keys with its heads. */
template <int D>
static __device__ __forceinline__ void split_scores(const struct hx_cuda_attend &a, tiles<D> &m,
                                                    const struct partial &out, size_t slot,
                                                    int n_head)
{
    constexpr int KP = tiles<D>::KP, PP = tiles<D>::PP,
                  PIECES = (KEYS * D / 16 + THREADS - 1) / THREADS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Loads of a thread's pieces first, then what is done to them. */
    struct piece piece[PIECES];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = j * THREADS + threadIdx.x;
        if (i < KEYS * D / 16)
            piece[j] = load16(m.keys[i / (D / 16)], i % (D / 16) * 16);
    }
#pragma unroll 1
    for (int f = lane; a.freq && f < a.n_freq; f += 32) { /* a warp a head */
        uint16_t *pair = m.q + warp * KP + D - 2 * a.n_freq + 2 * f;
        float x = bf16_value(pair[0]), y = bf16_value(pair[1]);
        float2 r = m.turn[f];
        pair[0] = to_bf16(x * r.x - y * r.y);
        pair[1] = to_bf16(x * r.y + y * r.x);
    }
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = j * THREADS + threadIdx.x;
        if (i < KEYS * D / 16)
            decode16(m.keys[i / (D / 16)], piece[j], m.k + i / (D / 16) * KP + i % (D / 16) * 16);
    }
    __syncthreads();
    /* Scores: a warp has 8 keys and every fourth step of 16 channels. */
    {
        int quarter = warp / 4, k0 = warp % 4 * 8;
        float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        const uint16_t *qa = m.q + (lane % 16) * KP + lane / 16 * 8 + quarter * 16;
        const uint16_t *kb = m.k + (k0 + lane % 8) * KP + lane / 8 % 2 * 8 + quarter * 16;
#pragma unroll
        for (int k = 0; k < D; k += 64) {
            uint32_t q[4], kk[2];
            load4(q, qa + k);
            load2(kk, kb + k);
            mma_bf16(c[k / 64 % 2], q, kk[0], kk[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            m.part[quarter][lane / 4 + 8 * (i >> 1)][k0 + lane % 4 * 2 + (i & 1)] =
                c[0][i] + c[1][i];
    }
    __syncthreads();
    /* A warp a head, a lane a key. */
    {
        float s = m.part[0][warp][lane] + m.part[1][warp][lane] +
                  (m.part[2][warp][lane] + m.part[3][warp][lane]);
        s = m.keys[lane].codes ? s * a.scale : -INFINITY;
        float max = s;
#pragma unroll
        for (int o = 16; o > 0; o /= 2)
            max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, o));
        float p = expf(s - max), sum = p;
#pragma unroll
        for (int o = 16; o > 0; o /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
        m.p[warp * PP + lane] = to_bf16(p);
        if (lane == 0 && warp < n_head) {
            out.max[slot + warp] = max;
            out.sum[slot + warp] = sum;
        }
    }
    __syncthreads();
    /* Values: a warp 16 channels at a time. */
    const uint16_t *pa = m.p + (lane % 16) * PP + lane / 16 * 8;
#pragma unroll 1
    for (int c0 = warp * 16; c0 < D; c0 += 16 * WARPS) {
        float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        const uint16_t *vb = m.k + (lane % 8 + lane / 8 % 2 * 8) * KP + c0 + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            uint32_t p[4], v[4];
            load4(p, pa + k);
            load4_transposed(v, vb + k * KP);
            mma_bf16(c[0], p, v[0], v[1]);
            mma_bf16(c[1], p, v[2], v[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                int h = lane / 4 + 4 * i, ch = c0 + 8 * n + lane % 4 * 2;
                if (h < n_head)
                    *(float2 *)(out.value + (slot + h) * D + ch) =
                        make_float2(c[n][i], c[n][i + 1]);
            }
        }
    }
}

/* 32 channels of a row and head by a warp: splits in order, sink last, division. there: shared, the
 * warp's own. Short code on purpose: it runs once. */
template <int D>
static __device__ __forceinline__ void
join_head(const struct hx_cuda_attend &a, int64_t t, int row, int h, int c0, int n_t, int n_split,
          const struct partial &in, float *there, const float2 *turn)
{
    int lane = threadIdx.x % 32, i = c0 + lane;
    size_t slot0 = (size_t)row * a.n_head + h, step = (size_t)n_t * a.n_head;
    const float *value = in.value + slot0 * D + i;
    const size_t next = step * D;
    float sink = dense_value(&a.sink, h), max = -1e30f, den = 0, acc = 0;
#pragma unroll 1
    for (int s = lane; s < n_split; s += 32) {
        there[s] = __ldcg(&in.max[slot0 + s * step]);
        max = fmaxf(max, there[s]);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, o));
#pragma unroll 1
    for (int s = lane; s < n_split + JOINED; s += 32) {
        float sum = 0, w = 0;
        if (s < n_split) {
            sum = __ldcg(&in.sum[slot0 + s * step]);
            w = expf(there[s] - max);
        }
        /* Of a split without keys all is zero; NaN scores leave no maximum but a NaN sum. */
        there[s] = isnan(sum) ? sum : w;
        den += sum * w;
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        den += __shfl_xor_sync(0xFFFFFFFFu, den, o);
    den = den + expf(sink - max);
    __syncwarp();
#pragma unroll 1
    for (int s0 = 0; s0 < n_split; s0 += JOINED) {
        float v[JOINED];
#pragma unroll
        for (int j = 0; j < JOINED; j++) {
            v[j] = s0 + j < n_split ? __ldcg(value) : 0;
            value += next;
        }
#pragma unroll
        for (int j = 0; j < JOINED; j++)
            acc = acc + v[j] * there[s0 + j];
    }
    __syncwarp();
    uint16_t o = to_bf16(acc / den);
    float x = bf16_value(o), y = __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    int f = i - (D - 2 * a.n_freq);
    if (a.freq && f >= 0) { /* back by the turn of the row */
        float2 r = turn[f / 2];
        float s = -r.y;
        o = to_bf16(f & 1 ? y * s + x * r.x : x * r.x - y * s);
    }
    a.o[(t * a.n_head + h) * D + i] = o;
}

/* Block (split, row, sixteen heads). MEET: the splits' blocks join as well. */
template <int D, bool MEET>
static __global__ void __launch_bounds__(THREADS, 2)
    split_keys(const __grid_constant__ struct hx_cuda_attend a, int first_t, int n_t,
               const struct partial out, const struct hx_cuda_mix mix)
{
    if ((int)blockIdx.y >= n_t) { /* behind the rows: one for each of mix */
        int row = (blockIdx.y - n_t) * gridDim.x + blockIdx.x;
        if (blockIdx.z == 0 && row < mix.n_row)
            mix_row(mix, row);
        return;
    }
    constexpr int KP = tiles<D>::KP, WORDS = (HEADS * D / 8 + THREADS - 1) / THREADS;
    extern __shared__ __align__(16) uint8_t shared[];
    tiles<D> &m = *(tiles<D> *)shared;
    int split = blockIdx.x, warp = threadIdx.x / 32;
    int64_t t = first_t + blockIdx.y;
    int h0 = blockIdx.z * HEADS, n_head = a.n_head - h0 < HEADS ? a.n_head - h0 : HEADS;
    const struct hx_cuda_batch &b = a.batch;
    /* What needs nothing but the row is on its way while the keys are found. */
    uint4 q[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        int i = j * THREADS + threadIdx.x, h = i / (D / 8), c = i % (D / 8) * 8;
        q[j] = make_uint4(0, 0, 0, 0);
        if (h < n_head)
            q[j] = *(const uint4 *)(a.q + (t * a.n_head + h0 + h) * D + c);
    }
    if (warp == 0) {
        int seq = b.seq[t], base = split * KEYS;
        int64_t last = a.block ? b.first_pos[seq] + a.block - 1 : b.pos[t];
        int64_t first = last - a.block - a.window + 1;
        first = first > 0 ? first : 0;
        m.keys[threadIdx.x] =
            find_key(a, t, seq, first, (int)(last - first + 1), base + threadIdx.x);
    } else {
#pragma unroll 1
        for (int f = THREADS - 1 - threadIdx.x; a.freq && f < a.n_freq; f += THREADS - 32)
            m.turn[f] = turn_by((float)b.pos[t] * a.freq[f]);
    }
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        int i = j * THREADS + threadIdx.x, h = i / (D / 8), c = i % (D / 8) * 8;
        if (h < HEADS)
            *(uint4 *)(m.q + h * KP + c) = q[j];
    }
    __syncthreads();
    size_t slot = ((size_t)split * n_t + blockIdx.y) * a.n_head + h0;
    if (m.keys[0].codes) {
        split_scores<D>(a, m, out, slot, n_head);
    } else { /* behind the last key */
        if ((int)threadIdx.x < n_head) {
            out.max[slot + threadIdx.x] = -INFINITY;
            out.sum[slot + threadIdx.x] = 0;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < n_head * D / 4; i += THREADS)
            *((float4 *)(out.value + slot * D) + i) = make_float4(0, 0, 0, 0);
    }
    if (!MEET)
        return;
    int n_split = gridDim.x, per_head = D / 32;
    grid_barrier(a.meeting + blockIdx.y * gridDim.z + blockIdx.z, n_split, split == 0);
#pragma unroll 1
    for (int i = warp * n_split + split; i < n_head * per_head; i += WARPS * n_split)
        join_head<D>(a, t, blockIdx.y, h0 + i / per_head, i % per_head * 32, n_t, n_split, out,
                     m.weight[warp], m.turn);
}

/* The same behind a launch of its own: block (row, head). */
template <int D>
static __global__ void __launch_bounds__(128)
    join(struct hx_cuda_attend a, int first_t, int n_t, int n_split, struct partial in)
{
    __shared__ float weight[4][MAX_SPLIT + JOINED];
    __shared__ float2 turn[D / 2];
    int64_t t = first_t + blockIdx.x;
    int warp = threadIdx.x / 32;
    for (int f = threadIdx.x; a.freq && f < a.n_freq; f += blockDim.x)
        turn[f] = turn_by((float)a.batch.pos[t] * a.freq[f]);
    __syncthreads();
    for (int c0 = 32 * warp; c0 < D; c0 += 128)
        join_head<D>(a, t, blockIdx.x, blockIdx.y, c0, n_t, n_split, in, weight[warp], turn);
}

template <int D>
static cudaError_t run(cudaStream_t s, const struct hx_cuda_attend *a, int first, int n,
                       int n_split, const struct partial &p, const struct hx_cuda_mix *mix)
{
    const struct hx_cuda_mix none = {}, side = mix ? *mix : none;
    int more = (side.n_row + n_split - 1) / n_split;
    int groups = (a->n_head + HEADS - 1) / HEADS;
    dim3 grid((unsigned)n_split, (unsigned)(n + more), (unsigned)groups);
    /* Two blocks fit a multiprocessor. */
    bool meet = a->meeting && n * groups <= HX_CUDA_COUNTERS &&
                (int64_t)n_split * (n + more) * groups <= 2 * a->n_sm;
    void (*kernel)(struct hx_cuda_attend, int, int, struct partial, struct hx_cuda_mix) =
        meet ? split_keys<D, true> : split_keys<D, false>;
    if (sizeof(tiles<D>) > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(tiles<D>));
    kernel<<<grid, THREADS, sizeof(tiles<D>), s>>>(*a, first, n, p, side);
    if (!meet)
        join<D><<<dim3((unsigned)n, (unsigned)a->n_head), 128, 0, s>>>(*a, first, n, n_split, p);
    return cudaGetLastError();
}

static int n_splits(const struct hx_cuda_attend *a)
{
    return (a->window + a->block + a->topk + KEYS - 1) / KEYS;
}

bool hx_cu_attend_split_takes(const struct hx_cuda_attend *a)
{
    bool turns = !a->freq || 2 * a->n_freq <= a->d;
    return turns && n_splits(a) <= MAX_SPLIT &&
           (a->d == 64 || a->d == 128 || a->d == 256 || a->d == 512);
}

size_t hx_cu_attend_split_room(const struct hx_cuda_attend *a, int n_row)
{
    return (size_t)n_splits(a) * (size_t)n_row * (size_t)a->n_head * (size_t)(a->d + 2) *
           sizeof(float);
}

cudaError_t hx_cu_attend_split(cudaStream_t s, const struct hx_cuda_attend *a, int first, int n,
                               float *room, const struct hx_cuda_mix *mix)
{
    int n_split = n_splits(a);
    size_t slots = (size_t)n_split * (size_t)n * (size_t)a->n_head;
    struct partial p = {room + slots * (size_t)a->d, room + slots * (size_t)(a->d + 1), room};
    switch (a->d) {
    case 64: return run<64>(s, a, first, n, n_split, p, mix);
    case 128: return run<128>(s, a, first, n, n_split, p, mix);
    case 256: return run<256>(s, a, first, n, n_split, p, mix);
    case 512: return run<512>(s, a, first, n, n_split, p, mix);
    default: return cudaErrorInvalidValue;
    }
}
