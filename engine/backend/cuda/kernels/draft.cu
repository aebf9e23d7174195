/* The drafter's tail: Markov chain and confidence. */
#include "backend/cuda/kernels/numeric.cuh"

/* Embeddings of column k: into the block's rows, and one beside the other for the product. */
static __global__ void latent_rows(const uint16_t *embed, int rank, const int32_t *tokens,
                                   int block, int k, uint16_t *latent, uint16_t *packed)
{
    int64_t s = blockIdx.x;
    const uint16_t *row = embed + (int64_t)tokens[s * (block + 1) + k] * rank;
    for (int i = threadIdx.x; i < rank; i += blockDim.x)
        latent[(s * block + k) * rank + i] = packed[s * rank + i] = row[i];
}

cudaError_t hx_cu_markov_latent(cudaStream_t s, const uint16_t *embed, int rank,
                                const int32_t *tokens, int n_seq, int block, int k,
                                uint16_t *latent, uint16_t *packed)
{
    latent_rows<<<n_seq, 128, 0, s>>>(embed, rank, tokens, block, k, latent, packed);
    return cudaGetLastError();
}

/* Blocks (slice, row): the best of a slice as order and index in one number, the largest of which
 * stays; the last block of a row takes it. */
static __global__ void best(struct hx_cuda_best a)
{
    __shared__ unsigned long long best_of[32];
    int64_t row = blockIdx.y, each = (a.n + gridDim.x - 1) / gridDim.x;
    int64_t lo = min(a.n, blockIdx.x * each), hi = min(a.n, lo + each);
    const float *x = a.x + row * a.stride, *more = a.more ? a.more + row * a.n : NULL;
    float *sum = a.sum ? a.sum + row * a.stride : NULL;
    unsigned long long mine = 0;
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x) {
        float v = more ? x[i] + more[i] : x[i];
        if (sum)
            sum[i] = v;
        if (!(v < INFINITY))
            report(a.fault, (enum hx_cuda_fault)a.nan);
        unsigned long long k = (unsigned long long)order(v) << 32 | (0xFFFFFFFFu - (uint32_t)i);
        mine = k > mine ? k : mine;
    }
    for (int o = 16; o > 0; o /= 2) {
        unsigned long long k = __shfl_xor_sync(0xFFFFFFFFu, mine, o);
        mine = k > mine ? k : mine;
    }
    if (threadIdx.x % 32 == 0)
        best_of[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < blockDim.x / 32; i++)
        mine = best_of[i] > mine ? best_of[i] : mine;
    atomicMax(&a.best[row], mine);
    __threadfence();
    if (atomicAdd(&a.count[row], 1u) < gridDim.x - 1)
        return;
    __threadfence();
    mine = atomicExch(&a.best[row], 0ull);
    a.count[row] = 0;
    uint32_t at = 0xFFFFFFFFu - (uint32_t)mine;
    a.tokens[row * a.token_stride] = at < a.n ? (int32_t)at : 0;
}

cudaError_t hx_cu_best(cudaStream_t s, const struct hx_cuda_best *a, int n_row)
{
    for (int at = 0; at < n_row; at += HX_CUDA_BEST_ROWS) {
        struct hx_cuda_best p = *a;
        int m = n_row - at < HX_CUDA_BEST_ROWS ? n_row - at : HX_CUDA_BEST_ROWS;
        p.x += at * a->stride;
        p.sum = a->sum ? a->sum + at * a->stride : NULL;
        p.more = a->more ? a->more + at * a->n : NULL;
        p.tokens += at * a->token_stride;
        best<<<dim3(16, (unsigned)m), 512, 0, s>>>(p);
    }
    return cudaGetLastError();
}

static __global__ void confidence(struct hx_cuda_weight w, const uint16_t *h, int64_t d,
                                  const uint16_t *latent, int rank, float *z)
{
    __shared__ double part[32];
    int64_t r = blockIdx.x;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < d + rank; i += blockDim.x) {
        uint16_t x = i < d ? h[r * d + i] : latent[r * rank + i - d];
        sum += (double)dense_value(&w, i) * (double)bf16_value(x);
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0)
        z[r] = (float)sum;
}

cudaError_t hx_cu_confidence(cudaStream_t s, const struct hx_cuda_weight *w, const uint16_t *h,
                             int64_t d, const uint16_t *latent, int rank, int n, float *z)
{
    confidence<<<n, 256, 0, s>>>(*w, h, d, latent, rank, z);
    return cudaGetLastError();
}
