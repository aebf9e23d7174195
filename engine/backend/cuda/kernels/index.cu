/* Index scores, candidate blocks, top-k with the tie rule: higher score, then lower index
 * (docs/kernels.md, "Index"). */
#include "backend/cuda/kernels/numeric.cuh"

#define THREADS 256
#define KEYS    256 /* of a tile, a thread each */
#define HEADS   32  /* of the fast scores */

/* ---- scores ---- */

/* The definition: products of the two grids are exact, so is their sum in double. */
static __device__ float score_of(const struct hx_cuda_index &a, int64_t t, const uint8_t *code,
                                 const uint8_t *scale)
{
    const uint16_t *q = a.q + t * a.n_head * a.d;
    double sum = 0;
    for (int h = 0; h < a.n_head; h++) {
        double dot = 0;
        for (int i = 0; i < a.d; i++)
            dot += (double)bf16_value(q[h * a.d + i]) * (double)fp4_b32(code, scale, i);
        float r = (float)dot;
        r = r > 0 ? r : isnan(r) ? r : 0.0f;
        sum += (double)(r * bf16_value(a.w[t * a.n_head + h]));
    }
    return (float)sum * a.factor;
}

static __device__ __forceinline__ int64_t n_visible(const struct hx_cuda_index &a, int64_t t)
{
    return (a.batch.pos[t] + 1) / a.ratio;
}

/* One thread a key. */
static __global__ void scores(struct hx_cuda_index a, int first)
{
    int64_t t = first + blockIdx.y, j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= a.most)
        return;
    float score = -INFINITY;
    if (j < n_visible(a, t)) {
        const struct hx_kv_stream *keys = &a.batch.kv.of[a.batch.seq[t]]->key[a.source];
        score = score_of(a, t, row_data(keys, j), row_scale(keys, j));
    }
    a.score[(int64_t)blockIdx.y * a.most + j] = score;
}

/* Four e2m1 codes, times two, as signed bytes. */
static __device__ __forceinline__ uint32_t twice(uint32_t codes)
{
    uint32_t plus, minus;
    /* A selector's top bit takes the sign of a byte, and all these are positive: zero. */
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(plus) : "r"(0x03020100u), "r"(0x0C080604u), "r"(codes));
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(minus)
        : "r"(0x03020100u), "r"(0x0C080604u), "r"(codes ^ 0x8888u));
    return (0x80808080u + plus - minus) ^ 0x80808080u;
}

/* Exponents of a row's blocks of 32 relative to the smallest, as powers of two: all blocks then add
 * up as integers. False: their range is too wide for that, or a scale is no number. Blocks of zeros
 * count for nothing. */
template <int B>
static __device__ bool factors(const uint8_t *scale, uint32_t zero, int32_t factor[B], int *lowest)
{
    int low = 255, high = 0;
#pragma unroll
    for (int b = 0; b < B; b++) {
        int s = scale[b];
        if (zero >> b & 1) {
            high = s == 255 ? 255 : high;
            continue;
        }
        low = min(low, s);
        high = max(high, s);
    }
    *lowest = low == 255 ? 127 : low;
#pragma unroll
    for (int b = 0; b < B; b++)
        factor[b] = zero >> b & 1 ? 0 : 1 << min(max(scale[b] - *lowest, 0), 8);
    return high == 0 || (high - low <= 8 && low >= 72 && high <= 170);
}

/* 32 codes (4 words) to signed bytes (8 words); whether all are zero. */
static __device__ __forceinline__ bool decode32(const uint32_t code[4], uint32_t *to)
{
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        any |= code[i] & 0x77777777u;
        to[2 * i] = twice(code[i]);
        to[2 * i + 1] = twice(code[i] >> 16);
    }
    return any == 0;
}

/* B blocks of 32 values. A tile of keys is decoded once for all rows of one sequence. */
template <int B> struct tile {
    static constexpr int STRIDE = 8 * B + 4; /* words of a row: no bank conflicts */
    uint32_t key[KEYS][STRIDE];
    int32_t key_factor[KEYS][B];
    int32_t key_low[KEYS]; /* exponent; negative: by the definition */
    uint32_t q[HEADS][STRIDE];
    int32_t q_factor[HEADS][B];
    int32_t q_low[HEADS];
    float w[HEADS];
    uint32_t kept[KEYS / 32];
    int slow; /* the row's queries go by the definition */
};

template <int B>
static __device__ void stage_keys(const struct hx_cuda_index &a, tile<B> &m, int64_t t, int64_t j)
{
    const struct hx_kv_stream *s = &a.batch.kv.of[a.batch.seq[t]]->key[a.source];
    const uint32_t *code = (const uint32_t *)row_data(s, j);
    uint32_t zero = 0, *to = m.key[threadIdx.x];
#pragma unroll
    for (int b = 0; b < B; b++) {
        uint32_t c[4] = {code[4 * b], code[4 * b + 1], code[4 * b + 2], code[4 * b + 3]};
        zero |= (uint32_t)decode32(c, to + 8 * b) << b;
    }
    int low;
    bool fast = factors<B>(row_scale(s, j), zero, m.key_factor[threadIdx.x], &low);
    m.key_low[threadIdx.x] = fast ? low : -1;
}

template <int B>
static __device__ void stage_queries(const struct hx_cuda_index &a, tile<B> &m, int64_t t)
{
    int h = threadIdx.x;
    if (h >= HEADS)
        return;
    uint32_t zero = 0, *to = m.q[h];
    bool there = h < a.n_head, fast = true;
    const uint32_t *code = (const uint32_t *)(a.q_codes + (t * a.n_head + h) * (a.d / 2));
#pragma unroll
    for (int b = 0; b < B; b++) {
        uint32_t c[4] = {0, 0, 0, 0};
        for (int i = 0; there && i < 4; i++)
            c[i] = code[4 * b + i];
        zero |= (uint32_t)decode32(c, to + 8 * b) << b;
    }
    int low = 127;
    for (int b = 0; b < B; b++)
        m.q_factor[h][b] = 0;
    if (there)
        fast = factors<B>(a.q_scales + (t * a.n_head + h) * B, zero, m.q_factor[h], &low);
    m.q_low[h] = low;
    m.w[h] = there ? bf16_value(a.w[t * a.n_head + h]) : 0;
    uint32_t slow = __ballot_sync(0xFFFFFFFFu, !fast);
    if (h == 0)
        m.slow = slow != 0;
}

static __device__ __forceinline__ void mma_signed(int32_t c[4], const uint32_t a[4], uint32_t b0,
                                                  uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/* Scores of eight keys of the tile: lanes 0 to 3 get those of keys 2 lane and 2 lane + 1. */
template <int B>
static __device__ __forceinline__ float2 eight(const tile<B> &m, int key0, float factor)
{
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    double sum[2] = {0, 0};
    int k0 = key0 + 2 * c;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int h0 = 16 * half + g;
        int32_t total[4] = {0, 0, 0, 0};
#pragma unroll
        for (int b = 0; b < B; b++) {
            const uint32_t *q0 = m.q[h0] + 8 * b, *q1 = m.q[h0 + 8] + 8 * b,
                           *k = m.key[key0 + g] + 8 * b;
            uint32_t q[4] = {q0[c], q1[c], q0[c + 4], q1[c + 4]};
            int32_t part[4];
            mma_signed(part, q, k[c], k[c + 4]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                total[i] +=
                    part[i] * (m.q_factor[h0 + 8 * (i >> 1)][b] * m.key_factor[k0 + (i & 1)][b]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int h = h0 + 8 * (i >> 1);
            /* Both were doubled: two binary places less. */
            int e = m.q_low[h] + m.key_low[k0 + (i & 1)] - 2 * 127 - 2;
            float r =
                total[i] > 0 ? (float)total[i] * __uint_as_float((uint32_t)(e + 127) << 23) : 0.0f;
            sum[i & 1] += (double)(r * m.w[h]);
        }
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
        sum[0] += __shfl_xor_sync(0xFFFFFFFFu, sum[0], o);
        sum[1] += __shfl_xor_sync(0xFFFFFFFFu, sum[1], o);
    }
    return make_float2((float)sum[0] * factor, (float)sum[1] * factor);
}

/* Whether the block of key j is among those kept for its row, which rise, -1 behind the last. */
static __device__ bool is_candidate(const struct hx_cuda_index &a, const int32_t *cand, int64_t j)
{
    int32_t b = (int32_t)(j / a.cand_block);
    int lo = 0, hi = a.n_cand;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (cand[mid] >= 0 && cand[mid] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < a.n_cand && cand[lo] == b;
}

/* Which keys of the tile are in candidate blocks of the row, a bit each. */
template <int B>
static __device__ void mark_kept(const struct hx_cuda_index &a, tile<B> &m, int64_t t, int64_t j)
{
    bool in = !a.read_cand || a.tap || is_candidate(a, a.cand + t * a.n_cand, j);
    uint32_t bits = __ballot_sync(0xFFFFFFFFu, in);
    if (threadIdx.x % 32 == 0)
        m.kept[threadIdx.x / 32] = bits;
}

/* Block (tile, part of the rows). */
template <int B>
static __global__ void __launch_bounds__(THREADS)
    score_tiles(struct hx_cuda_index a, int first, int n_row, int each)
{
    extern __shared__ __align__(16) uint8_t shared[];
    tile<B> &m = *(tile<B> *)shared;
    int64_t base = (int64_t)blockIdx.x * KEYS, j = base + threadIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, staged = -1;
    int r1 = min(n_row, (int)(blockIdx.y + 1) * each);
    for (int r = blockIdx.y * each; r < r1; r++) {
        int64_t t = first + r, visible = n_visible(a, t);
        float *to = a.score + (int64_t)r * a.most;
        if (base >= visible) {
            if (j < a.most)
                to[j] = -INFINITY;
            continue;
        }
        __syncthreads(); /* the row before is done */
        if (staged != a.batch.seq[t]) {
            /* All that rows of the sequence see: positions rise. */
            int64_t seen = visible;
            staged = a.batch.seq[t];
            for (int i = r + 1; i < r1 && a.batch.seq[first + i] == staged; i++)
                seen = max(seen, n_visible(a, first + i));
            if (j < seen)
                stage_keys<B>(a, m, t, j);
            else
                m.key_low[threadIdx.x] = 127;
        }
        mark_kept<B>(a, m, t, j);
        stage_queries<B>(a, m, t);
        __syncthreads();
        if (!m.slow) {
            for (int k = 0; k < 32; k += 8) {
                float2 s = eight<B>(m, 32 * warp + k, a.factor);
                int at = 32 * warp + k + 2 * lane;
                for (int i = 0; lane < 4 && i < 2; i++) {
                    if (base + at + i < a.most)
                        to[base + at + i] = base + at + i < visible ? (i ? s.y : s.x) : -INFINITY;
                }
            }
            __syncwarp();
        }
        if (j >= a.most)
            continue;
        if (j < visible && (m.slow || m.key_low[threadIdx.x] < 0)) {
            const struct hx_kv_stream *s = &a.batch.kv.of[a.batch.seq[t]]->key[a.source];
            to[j] = score_of(a, t, row_data(s, j), row_scale(s, j));
        }
        if (j >= visible || !(m.kept[warp] >> lane & 1))
            to[j] = -INFINITY;
    }
}

/* ---- the k best ---- */

#define WIDE 1024 /* threads */
#define BINS 2048

/* Blocks that choose for one row together; one block alone needs nothing of it. */
struct team {
    int n, me;
    uint32_t *barrier; /* grid_barrier's */
    uint32_t *hist;    /* [2][3][BINS], zero */
    uint32_t *count;   /* [2][n][2]: more, equal */
};

static __device__ __forceinline__ void meet(const struct team &g)
{
    if (g.n > 1)
        grid_barrier(g.barrier, (uint32_t)g.n, g.me == 0);
    else
        __syncthreads();
}

/* Sum over the block of what the threads before have, and of all. part: shared, 33 words. */
static __device__ __forceinline__ uint32_t before(uint32_t v, uint32_t *part, uint32_t *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        uint32_t u = __shfl_up_sync(0xFFFFFFFFu, sum, o);
        sum += lane >= o ? u : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        uint32_t w = part[lane], s = w;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            uint32_t u = __shfl_up_sync(0xFFFFFFFFu, s, o);
            s += lane >= o ? u : 0;
        }
        part[lane] = s - w;
        if (lane == 31)
            part[32] = s;
    }
    __syncthreads();
    *all = part[32];
    return sum - v + part[warp];
}

/* The k best of n, ascending, into idx; -1 behind them up to k. round: of this launch, 0 or 1. */
static __device__ void top(const float *score, int64_t n, int k, int32_t *idx, const struct team &g,
                           int round, uint32_t *fault)
{
    __shared__ uint32_t hist[BINS], part[33], found[2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t each = (n + g.n - 1) / g.n, lo = min(n, g.me * each), hi = min(n, lo + each);
    uint32_t prefix = 0, mask = 0, wanted = (uint32_t)k, all;
    bool every = false; /* no more finite scores than wanted */
    for (int pass = 0; pass < 3 && !every; pass++) {
        int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        uint32_t bins = pass == 2 ? 1024 : BINS;
        hist[threadIdx.x] = hist[threadIdx.x + WIDE] = 0;
        __syncthreads();
        for (int64_t i = lo + threadIdx.x; i < hi; i += WIDE) {
            float s = __ldcg(&score[i]);
            if (pass == 0 && isnan(s))
                report(fault, HX_CUDA_NAN_INDEX);
            uint32_t o = order(s);
            if ((o & mask) == prefix && o > ORDER_NEVER)
                atomicAdd(&hist[o >> shift & (bins - 1)], 1u);
        }
        if (g.n > 1) {
            uint32_t *sum = g.hist + (round * 3 + pass) * BINS;
            __syncthreads();
            for (int b = threadIdx.x; b < BINS; b += WIDE) {
                if (hist[b])
                    atomicAdd(&sum[b], hist[b]);
            }
            meet(g);
            for (int b = threadIdx.x; b < BINS; b += WIDE)
                hist[b] = __ldcg(&sum[b]);
        }
        __syncthreads();
        /* From the top down, two bins a thread: the bin with the last one wanted. */
        uint32_t b1 = BINS - 1 - 2 * threadIdx.x, h1 = hist[b1], h0 = hist[b1 - 1];
        uint32_t above = before(h1 + h0, part, &all);
        if (pass == 0 && all <= wanted) {
            every = true;
        } else if (above < wanted && above + h1 + h0 >= wanted) {
            bool first = above + h1 >= wanted;
            found[0] = first ? b1 : b1 - 1;
            found[1] = wanted - above - (first ? 0 : h1);
        }
        __syncthreads();
        if (!every) {
            prefix |= found[0] << shift;
            mask |= (bins - 1) << shift;
            wanted = found[1];
        }
        __syncthreads();
    }
    uint32_t limit = every ? ORDER_NEVER : prefix, ties = every ? 0 : wanted;
    /* A warp has a piece of the block's share: first counted, then written. */
    int64_t piece = ((hi - lo + WIDE / 32 - 1) / (WIDE / 32) + 31) / 32 * 32;
    int64_t from = min(hi, lo + warp * piece), to = min(hi, from + piece);
    uint32_t more = 0, equal = 0;
    for (int64_t i = from; i < to; i += 32) {
        uint32_t o = i + lane < to ? order(__ldcg(&score[i + lane])) : 0;
        more += __popc(__ballot_sync(0xFFFFFFFFu, o > limit));
        equal += __popc(__ballot_sync(0xFFFFFFFFu, ties > 0 && o == limit));
    }
    uint32_t all_more, all_equal;
    uint32_t more_before = before(lane == 0 ? more : 0, part, &all_more);
    uint32_t equal_before = before(lane == 0 ? equal : 0, part, &all_equal);
    more_before = __shfl_sync(0xFFFFFFFFu, more_before, 0);
    equal_before = __shfl_sync(0xFFFFFFFFu, equal_before, 0);
    if (g.n > 1) {
        uint32_t *count = g.count + round * g.n * 2;
        if (threadIdx.x == 0) {
            count[2 * g.me] = all_more;
            count[2 * g.me + 1] = all_equal;
        }
        meet(g);
        all_more = all_equal = 0;
        for (int i = 0; i < g.n; i++) {
            uint32_t m = __ldcg(&count[2 * i]), e = __ldcg(&count[2 * i + 1]);
            more_before += i < g.me ? m : 0;
            equal_before += i < g.me ? e : 0;
            all_more += m;
            all_equal += e;
        }
    }
    for (int64_t i = from; i < to; i += 32) {
        uint32_t o = i + lane < to ? order(__ldcg(&score[i + lane])) : 0;
        uint32_t m = __ballot_sync(0xFFFFFFFFu, o > limit);
        uint32_t e = __ballot_sync(0xFFFFFFFFu, ties > 0 && o == limit);
        uint32_t lower = (1u << lane) - 1, me = equal_before + __popc(e & lower);
        uint32_t at = more_before + __popc(m & lower) + min(me, ties);
        if (o > limit || (e >> lane & 1 && me < ties))
            idx[at] = (int32_t)(i + lane);
        more_before += __popc(m);
        equal_before += __popc(e);
    }
    for (int64_t i = all_more + min(all_equal, ties) + g.me * WIDE + threadIdx.x; i < k;
         i += g.n * WIDE)
        idx[i] = -1;
    __syncthreads();
}

static __global__ void __launch_bounds__(WIDE)
    select(struct hx_cuda_index a, int first, int n_team, uint32_t *room)
{
    int64_t row = blockIdx.y, t = first + row, n = n_visible(a, t);
    struct team g = {n_team, (int)blockIdx.x, a.barriers + row, NULL, NULL};
    if (n_team > 1) {
        g.hist = room + row * (6 * BINS + 4 * n_team);
        g.count = g.hist + 6 * BINS;
    }
    float *score = a.score + row * a.most;
    int32_t *cand = a.cand ? a.cand + t * a.n_cand : NULL;
    int64_t n_block = (n + a.cand_block - 1) / a.cand_block, step = (int64_t)n_team * WIDE;
    int64_t id = (int64_t)g.me * WIDE + threadIdx.x;
    if (a.tap) {
        for (int64_t j = id; j < a.tap_width; j += step)
            a.tap[t * a.tap_width + j] = j < n ? score[j] : -INFINITY;
    }
    if (a.write_cand) {
        float *best = a.blocks + row * (a.most / a.cand_block + 1);
        for (int64_t b = id; b < n_block; b += step) {
            float m = -INFINITY;
            for (int64_t i = b * a.cand_block; i < (b + 1) * a.cand_block && i < n; i++) {
                if (isnan(score[i]))
                    report(a.fault, HX_CUDA_NAN_INDEX);
                m = score[i] > m ? score[i] : m;
            }
            best[b] = b == n_block - 1 ? INFINITY : m; /* the newest row's block is pinned */
        }
        meet(g);
        top(best, n_block, a.n_cand, cand, g, 0, a.fault);
    } else if (a.read_cand && (a.tap || !a.fast)) {
        /* Rows of a block that is not among the kept ones. */
        for (int64_t j = id; j < n; j += step) {
            if (!is_candidate(a, cand, j))
                score[j] = -INFINITY;
        }
        meet(g);
    }
    top(score, n, a.topk, a.sel + t * a.topk, g, 1, a.fault);
}

/* ---- launches ---- */

template <int B> static void start(cudaStream_t s, const struct hx_cuda_index *a, int at, int m)
{
    /* Rows share a tile of keys where there are tiles enough for the card. */
    unsigned wide = (unsigned)((a->most + KEYS - 1) / KEYS);
    int parts = (int)(2 * (unsigned)a->n_sm / wide), each;
    parts = parts < 1 ? 1 : parts > m ? m : parts;
    each = (m + parts - 1) / parts;
    if (sizeof(tile<B>) > 48 * 1024)
        cudaFuncSetAttribute(score_tiles<B>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(tile<B>));
    score_tiles<B><<<dim3(wide, (unsigned)((m + each - 1) / each)), THREADS, sizeof(tile<B>), s>>>(
        *a, at, m, each);
}

static int team_size(const struct hx_cuda_index *a, int m)
{
    int n = a->n_sm / m;
    return a->most < 32768 || n < 2 ? 1 : n > 16 ? 16 : n;
}

size_t hx_cu_index_room(const struct hx_cuda_index *a)
{
    return (size_t)a->tile * (6 * BINS + 4 * 16) * sizeof(uint32_t);
}

cudaError_t hx_cu_index_select(cudaStream_t s, const struct hx_cuda_index *a)
{
    struct hx_cuda_index c = *a;
    int n = a->batch.n_row, blocks = a->d / 32;
    c.fast = a->fast && a->q_codes && a->n_head <= HEADS && a->d % 32 == 0 &&
             (blocks == 1 || blocks == 2 || blocks == 4);
    /* As many rows at once as the room for scores holds. */
    for (int at = 0; at < n; at += a->tile) {
        int m = n - at < a->tile ? n - at : a->tile, team = team_size(a, m);
        if (c.fast && blocks == 1)
            start<1>(s, &c, at, m);
        else if (c.fast && blocks == 2)
            start<2>(s, &c, at, m);
        else if (c.fast)
            start<4>(s, &c, at, m);
        else
            scores<<<dim3((unsigned)((a->most + THREADS - 1) / THREADS), m), THREADS, 0, s>>>(c,
                                                                                              at);
        if (team > 1)
            cudaMemsetAsync(a->room, 0, (size_t)m * (6 * BINS + 4 * team) * sizeof(uint32_t), s);
        select<<<dim3((unsigned)team, (unsigned)m), WIDE, 0, s>>>(c, at, team, a->room);
    }
    return cudaGetLastError();
}
