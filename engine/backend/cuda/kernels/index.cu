/* Index scores, candidate blocks, top-k with the tie rule: higher score, then lower index. */
#include "backend/cuda/kernels/numeric.cuh"

#define THREADS 256

/* One thread a key. Products of the two grids are exact, so is their sum in double. */
static __global__ void scores(struct hx_cuda_index a, int first)
{
    int64_t t = first + blockIdx.y, j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t visible = (a.batch.pos[t] + 1) / a.ratio;
    if (j >= a.most)
        return;
    float *to = a.score + (int64_t)blockIdx.y * a.most + j;
    if (j >= visible) {
        *to = -INFINITY;
        return;
    }
    const struct hx_kv_stream *keys = &a.batch.kv.of[a.batch.seq[t]]->key[a.source];
    const uint8_t *code = row_data(keys, j), *scale = row_scale(keys, j);
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
    *to = (float)sum * a.factor;
}

/* Order of a score as an unsigned number: -0.0 as +0.0; minus infinity is 0x007FFFFF. */
static __device__ uint32_t order(float f)
{
    uint32_t u = __float_as_uint(f == 0 ? 0.0f : f);
    return u >> 31 ? ~u : u | 0x80000000u;
}

#define NEVER 0x007FFFFFu

/* The k best of n, ascending, into idx; -1 behind them up to `width`. The whole block calls. */
static __device__ void top(const float *score, int64_t n, int k, int32_t *idx, int width,
                           uint32_t *fault)
{
    __shared__ uint32_t hist[256], prefix, wanted;
    __shared__ int n_kept, n_equal;
    uint32_t mask = 0;
    if (threadIdx.x == 0) {
        prefix = 0;
        wanted = (uint32_t)k;
        n_kept = n_equal = 0;
    }
    __syncthreads();
    /* From the top byte down: which byte has the k-th score, and how many are wanted inside it. */
    for (int shift = 24; shift >= 0; shift -= 8) {
        hist[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += THREADS) {
            if (shift == 24 && isnan(score[i]))
                report(fault, HX_CUDA_NAN_INDEX);
            uint32_t o = order(score[i]);
            if ((o & mask) == prefix && o > NEVER)
                atomicAdd(&hist[o >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = 255;
            while (b > 0 && hist[b] < wanted)
                wanted -= hist[b--];
            prefix |= (uint32_t)b << shift;
        }
        mask |= 255u << shift;
        __syncthreads();
    }
    /* Fewer than k finite scores: the last byte walked down to 0 and everything above counts. */
    uint32_t limit = prefix > NEVER ? prefix : NEVER, ties = prefix > NEVER ? wanted : 0;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ int kept_of[THREADS / 32], equal_of[THREADS / 32];
    for (int64_t base = 0; base < n; base += THREADS) {
        int64_t i = base + threadIdx.x;
        uint32_t o = i < n ? order(score[i]) : 0;
        bool equal = i < n && o == limit && ties > 0, more = i < n && o > limit;
        uint32_t eq = __ballot_sync(0xFFFFFFFFu, equal);
        if (lane == 0)
            equal_of[warp] = __popc(eq);
        __syncthreads();
        int rank = n_equal + __popc(eq & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++)
            rank += equal_of[w];
        bool keep = more || (equal && rank < (int)ties);
        uint32_t kp = __ballot_sync(0xFFFFFFFFu, keep);
        if (lane == 0)
            kept_of[warp] = __popc(kp);
        __syncthreads();
        int at = n_kept + __popc(kp & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++)
            at += kept_of[w];
        if (keep && at < width)
            idx[at] = (int32_t)i;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 0; w < THREADS / 32; w++) {
                n_equal += equal_of[w];
                n_kept += kept_of[w];
            }
        }
        __syncthreads();
    }
    for (int i = n_kept + threadIdx.x; i < width; i += THREADS)
        idx[i] = -1;
    __syncthreads();
}

static __global__ void select(struct hx_cuda_index a, int first)
{
    int64_t t = first + blockIdx.x, n = (a.batch.pos[t] + 1) / a.ratio;
    float *score = a.score + (int64_t)blockIdx.x * a.most;
    int32_t *cand = a.cand ? a.cand + t * a.n_cand : NULL;
    int64_t n_block = (n + a.cand_block - 1) / a.cand_block;
    if (a.tap) {
        for (int64_t j = threadIdx.x; j < a.tap_width; j += THREADS)
            a.tap[t * a.tap_width + j] = j < n ? score[j] : -INFINITY;
    }
    if (a.write_cand) {
        float *best = a.blocks + (int64_t)blockIdx.x * (a.most / a.cand_block + 1);
        for (int64_t b = threadIdx.x; b < n_block; b += THREADS) {
            float m = -INFINITY;
            for (int64_t i = b * a.cand_block; i < (b + 1) * a.cand_block && i < n; i++) {
                if (isnan(score[i]))
                    report(a.fault, HX_CUDA_NAN_INDEX);
                m = score[i] > m ? score[i] : m;
            }
            best[b] = b == n_block - 1 ? INFINITY : m; /* the newest row's block is pinned */
        }
        __syncthreads();
        top(best, n_block, a.n_cand, cand, a.n_cand, a.fault);
    } else if (a.read_cand) {
        /* Rows of a block that is not among the kept ones. */
        for (int64_t j = threadIdx.x; j < n; j += THREADS) {
            int32_t b = (int32_t)(j / a.cand_block);
            int lo = 0, hi = a.n_cand;
            while (lo < hi) { /* ascending, -1 behind */
                int mid = (lo + hi) / 2;
                if (cand[mid] >= 0 && cand[mid] < b)
                    lo = mid + 1;
                else
                    hi = mid;
            }
            if (lo == a.n_cand || cand[lo] != b)
                score[j] = -INFINITY;
        }
        __syncthreads();
    }
    top(score, n, a.topk, a.sel + t * a.topk, a.topk, a.fault);
}

cudaError_t hx_cu_index_select(cudaStream_t s, const struct hx_cuda_index *a)
{
    /* As many rows at once as the room for scores holds. */
    int n = a->batch.n_row;
    unsigned wide = (unsigned)((a->most + THREADS - 1) / THREADS);
    for (int at = 0; at < n; at += a->tile) {
        int m = n - at < a->tile ? n - at : a->tile;
        if (a->most > 0)
            scores<<<dim3(wide, m), THREADS, 0, s>>>(*a, at);
        select<<<m, THREADS, 0, s>>>(*a, at);
    }
    return cudaGetLastError();
}
