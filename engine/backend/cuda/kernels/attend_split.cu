/* Attention of few rows on tensor cores, split over keys (docs/kernels.md, "Attention").
 *
 * All heads share one latent, so a block decodes 32 keys once into shared memory and multiplies
 * them with 16 heads of a row: scores, then weighted values, each by m16n8k16 BF16. A second kernel
 * joins the splits in order, adds the sink and divides. A row's splits are those of its own keys,
 * so its bits do not depend on other rows. */
#include "backend/cuda/kernels/numeric.cuh"

#define KEYS    32 /* of a block */
#define HEADS   16
#define THREADS 128

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

struct key {
    const uint8_t *codes, *scales; /* codes NULL: behind the last key */
    bool compressed;
};

/* Keys of row t in listed order: window oldest first, then the selected rows. */
static __device__ struct key find_key(const struct hx_cuda_attend &a, int64_t t, int64_t first,
                                      int n_window, int n_key, int i)
{
    const struct hx_cuda_batch &b = a.batch;
    int seq = b.seq[t];
    if (i >= n_key)
        return {NULL, NULL, false};
    if (i >= n_window) {
        const struct hx_kv_stream *s = &b.kv.of[seq]->comp[a.source];
        int32_t j = a.sel[t * a.topk + (i - n_window)];
        return {row_data(s, j), row_scale(s, j), true};
    }
    int64_t p = first + i;
    if (p < b.first_pos[seq]) {
        const struct hx_kv_stream *s = &b.kv.of[seq]->window[a.layer];
        return {row_data(s, p), row_scale(s, p), false};
    }
    int64_t row = b.first_row[seq] + (p - b.first_pos[seq]);
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

/* Cosine and sine of row t for frequency f. */
static __device__ float2 turn_of(const struct hx_cuda_attend &a, int64_t t, int f)
{
    double s, c;
    sincos((double)((float)a.batch.pos[t] * a.freq[f]), &s, &c);
    return make_float2((float)c, (float)s);
}

/* What a block leaves: for each head maximum, sum of weights, weighted values. */
struct partial {
    float *max, *sum; /* [splits][rows][heads] */
    float *value;     /* [splits][rows][heads][D] */
};

template <int D>
static __global__ void split_keys(struct hx_cuda_attend a, int first_t, int n_t, struct partial out)
{
    constexpr int KP = D + 8, PP = KEYS + 8; /* padded rows: no bank conflicts */
    extern __shared__ __align__(16) uint16_t shared[];
    uint16_t *k_tile = shared, *q_tile = k_tile + KEYS * KP, *p_tile = q_tile + HEADS * KP;
    float *score = (float *)(p_tile + HEADS * PP); /* [HEADS][KEYS] */
    __shared__ struct key keys[KEYS];
    __shared__ float2 turn[D / 2]; /* of the rotated channels */
    __shared__ int n_sel;
    int split = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t t = first_t + blockIdx.y;
    int h0 = blockIdx.z * HEADS, n_head = a.n_head - h0 < HEADS ? a.n_head - h0 : HEADS;
    const struct hx_cuda_batch &b = a.batch;
    int seq = b.seq[t];
    int64_t last = a.block ? b.first_pos[seq] + a.block - 1 : b.pos[t];
    int64_t first = last - a.block - a.window + 1;
    first = first > 0 ? first : 0;
    int n_window = (int)(last - first + 1);
    if (threadIdx.x == 0)
        n_sel = 0;
    __syncthreads();
    if (a.source >= 0) { /* -1 behind the last one */
        int mine = 0;
        for (int i = threadIdx.x; i < a.topk; i += THREADS)
            mine += a.sel[t * a.topk + i] >= 0;
        atomicAdd(&n_sel, mine);
    }
    __syncthreads();
    int n_key = n_window + n_sel, base = split * KEYS;
    size_t slot = ((size_t)split * n_t + blockIdx.y) * a.n_head + h0;
    if (base >= n_key) {
        if (threadIdx.x < n_head) {
            out.max[slot + threadIdx.x] = -INFINITY;
            out.sum[slot + threadIdx.x] = 0;
        }
        return;
    }
    if (threadIdx.x < KEYS)
        keys[threadIdx.x] = find_key(a, t, first, n_window, n_key, base + threadIdx.x);
#pragma unroll
    for (int j = 0; j < HEADS * D / 8 / THREADS; j++) {
        int i = j * THREADS + threadIdx.x, h = i / (D / 8), c = i % (D / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < n_head)
            v = *(const uint4 *)(a.q + (t * a.n_head + h0 + h) * D + c);
        *(uint4 *)(q_tile + h * KP + c) = v;
    }
    if (a.freq && threadIdx.x < a.n_freq)
        turn[threadIdx.x] = turn_of(a, t, threadIdx.x);
    __syncthreads();
    /* Loads of a thread's pieces first, then what is done to them. */
    constexpr int PIECES = KEYS * D / 16 / THREADS;
    struct piece piece[PIECES];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = j * THREADS + threadIdx.x;
        piece[j] = load16(keys[i / (D / 16)], i % (D / 16) * 16);
    }
    for (int i = threadIdx.x; a.freq && i < HEADS * a.n_freq; i += THREADS) {
        uint16_t *pair = q_tile + i / a.n_freq * KP + D - 2 * a.n_freq + 2 * (i % a.n_freq);
        float x = bf16_value(pair[0]), y = bf16_value(pair[1]);
        float2 r = turn[i % a.n_freq];
        pair[0] = to_bf16(x * r.x - y * r.y);
        pair[1] = to_bf16(x * r.y + y * r.x);
    }
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = j * THREADS + threadIdx.x;
        decode16(keys[i / (D / 16)], piece[j], k_tile + i / (D / 16) * KP + i % (D / 16) * 16);
    }
    __syncthreads();
    /* Scores: a warp has 8 keys. */
    {
        float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        const uint16_t *qa = q_tile + (lane % 16) * KP + lane / 16 * 8;
        const uint16_t *kb = k_tile + (warp * 8 + lane % 8) * KP + lane / 8 * 8;
#pragma unroll 4
        for (int k = 0; k < D; k += 32) {
            uint32_t q0[4], q1[4], kk[4];
            load4(q0, qa + k);
            load4(q1, qa + k + 16);
            load4(kk, kb + k);
            mma_bf16(c[0], q0, kk[0], kk[1]);
            mma_bf16(c[1], q1, kk[2], kk[3]);
        }
        for (int i = 0; i < 4; i++) {
            int h = lane / 4 + 8 * (i >> 1), k = warp * 8 + lane % 4 * 2 + (i & 1);
            score[h * KEYS + k] = base + k < n_key ? (c[0][i] + c[1][i]) * a.scale : -INFINITY;
        }
    }
    __syncthreads();
    /* Eight threads a head. */
    {
        int h = threadIdx.x / 8, part = threadIdx.x % 8;
        float max = -INFINITY, sum = 0;
        for (int k = part; k < KEYS; k += 8)
            max = fmaxf(max, score[h * KEYS + k]);
        for (int o = 4; o > 0; o /= 2)
            max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, o));
        for (int k = part; k < KEYS; k += 8) {
            float p = expf(score[h * KEYS + k] - max);
            sum += p;
            p_tile[h * PP + k] = to_bf16(p);
        }
        for (int o = 4; o > 0; o /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
        if (part == 0 && h < n_head) {
            out.max[slot + h] = max;
            out.sum[slot + h] = sum;
        }
    }
    __syncthreads();
    /* Values: a warp has D / 4 channels, 16 at a time. */
    const uint16_t *pa = p_tile + (lane % 16) * PP + lane / 16 * 8;
    for (int c0 = warp * (D / 4); c0 < (warp + 1) * (D / 4); c0 += 16) {
        float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        const uint16_t *vb = k_tile + (lane % 8 + lane / 8 % 2 * 8) * KP + c0 + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            uint32_t p[4], v[4];
            load4(p, pa + k);
            load4_transposed(v, vb + k * KP);
            mma_bf16(c[0], p, v[0], v[1]);
            mma_bf16(c[1], p, v[2], v[3]);
        }
        for (int n = 0; n < 2; n++) {
            for (int i = 0; i < 4; i++) {
                int h = lane / 4 + 8 * (i >> 1), ch = c0 + 8 * n + lane % 4 * 2 + (i & 1);
                if (h < n_head)
                    out.value[(slot + h) * D + ch] = c[n][i];
            }
        }
    }
}

/* Splits in order, sink last, division. One block a row and head. */
static __global__ void join(struct hx_cuda_attend a, int first_t, int n_t, int n_split,
                            struct partial in)
{
    extern __shared__ float weight[]; /* [n_split] of each split's values, then their sums */
    float *sum = weight + n_split;
    int64_t t = first_t + blockIdx.x, h = blockIdx.y;
    size_t slot0 = (size_t)blockIdx.x * a.n_head + h, step = (size_t)n_t * a.n_head;
    float sink = dense_value(&a.sink, h), max = -1e30f, den = 0;
    for (int s = threadIdx.x; s < n_split; s += blockDim.x) {
        weight[s] = in.max[slot0 + s * step];
        sum[s] = in.sum[slot0 + s * step];
    }
    __syncthreads();
    for (int s = 0; s < n_split; s++)
        max = fmaxf(max, weight[s]);
    __syncthreads();
    for (int s = threadIdx.x; s < n_split; s += blockDim.x)
        weight[s] = weight[s] == -INFINITY ? 0 : expf(weight[s] - max);
    __syncthreads();
    for (int s = 0; s < n_split; s++)
        den = den + sum[s] * weight[s];
    den = den + expf(sink - max);
    for (int i = threadIdx.x; i < a.d; i += blockDim.x) {
        const float *value = in.value + slot0 * a.d + i;
        float acc = 0;
#pragma unroll 10
        for (int s = 0; s < n_split; s++) {
            /* A split without keys has no values. */
            float v = weight[s] != 0 ? value[s * step * a.d] : 0;
            acc = weight[s] != 0 ? acc + v * weight[s] : acc;
        }
        uint16_t o = to_bf16(acc / den);
        if (a.freq) { /* whole warps: d is a multiple of 32 */
            float x = bf16_value(o), y = __shfl_xor_sync(0xFFFFFFFFu, x, 1);
            int f = (i - (a.d - 2 * a.n_freq)) / 2;
            if (i >= a.d - 2 * a.n_freq) {
                float2 r = turn_of(a, t, f);
                float c = r.x, s = -r.y;
                o = to_bf16(i & 1 ? y * s + x * c : x * c - y * s);
            }
        }
        a.o[(t * a.n_head + h) * a.d + i] = o;
    }
}

template <int D>
static cudaError_t run(cudaStream_t s, const struct hx_cuda_attend *a, int first, int n,
                       int n_split, const struct partial &p)
{
    size_t bytes = (KEYS * (D + 8) + HEADS * (D + 8) + HEADS * (KEYS + 8)) * 2 + HEADS * KEYS * 4;
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(split_keys<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    dim3 grid((unsigned)n_split, (unsigned)n, (unsigned)((a->n_head + HEADS - 1) / HEADS));
    split_keys<D><<<grid, THREADS, bytes, s>>>(*a, first, n, p);
    join<<<dim3((unsigned)n, (unsigned)a->n_head), a->d, (size_t)n_split * 8, s>>>(*a, first, n,
                                                                                   n_split, p);
    return cudaGetLastError();
}

bool hx_cu_attend_split_takes(const struct hx_cuda_attend *a)
{
    bool turns = !a->freq || (a->n_freq <= THREADS && 2 * a->n_freq <= a->d);
    return turns && (a->d == 64 || a->d == 128 || a->d == 256 || a->d == 512);
}

static int n_splits(const struct hx_cuda_attend *a)
{
    return (a->window + a->block + a->topk + KEYS - 1) / KEYS;
}

size_t hx_cu_attend_split_room(const struct hx_cuda_attend *a, int n_row)
{
    return (size_t)n_splits(a) * (size_t)n_row * (size_t)a->n_head * (size_t)(a->d + 2) *
           sizeof(float);
}

cudaError_t hx_cu_attend_split(cudaStream_t s, const struct hx_cuda_attend *a, int first, int n,
                               float *room)
{
    int n_split = n_splits(a);
    size_t slots = (size_t)n_split * (size_t)n * (size_t)a->n_head;
    struct partial p = {room, room + slots, room + 2 * slots};
    switch (a->d) {
    case 64: return run<64>(s, a, first, n, n_split, p);
    case 128: return run<128>(s, a, first, n, n_split, p);
    case 256: return run<256>(s, a, first, n, n_split, p);
    case 512: return run<512>(s, a, first, n, n_split, p);
    default: return cudaErrorInvalidValue;
    }
}
