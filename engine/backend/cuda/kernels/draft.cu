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

static __global__ void pick(const float *base, const float *correction, int block, int k,
                            int64_t n_vocab, float *logits, int32_t *tokens, uint32_t *fault)
{
    __shared__ float best_of[32];
    __shared__ int32_t at_of[32];
    int64_t s = blockIdx.x, row = (s * block + k) * n_vocab;
    float best = -INFINITY;
    int32_t at = 0x7FFFFFFF;
    for (int64_t i = threadIdx.x; i < n_vocab; i += blockDim.x) {
        float v = base[row + i] + correction[s * n_vocab + i];
        logits[row + i] = v;
        if (isnan(v))
            report(fault, HX_CUDA_NAN_DRAFT);
        if (v > best || at == 0x7FFFFFFF)
            best = v, at = (int32_t)i;
    }
    for (int o = 16; o > 0; o /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, best, o);
        int32_t from = __shfl_xor_sync(0xFFFFFFFFu, at, o);
        if (other > best || (other == best && from < at))
            best = other, at = from;
    }
    if (threadIdx.x % 32 == 0) {
        best_of[threadIdx.x / 32] = best;
        at_of[threadIdx.x / 32] = at;
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < blockDim.x / 32; i++) {
        if (best_of[i] > best || (best_of[i] == best && at_of[i] < at))
            best = best_of[i], at = at_of[i];
    }
    tokens[s * (block + 1) + k + 1] = at < n_vocab ? at : 0;
}

cudaError_t hx_cu_markov_pick(cudaStream_t s, const float *base, const float *correction, int n_seq,
                              int block, int k, int64_t n_vocab, float *logits, int32_t *tokens,
                              uint32_t *fault)
{
    pick<<<n_seq, 1024, 0, s>>>(base, correction, block, k, n_vocab, logits, tokens, fault);
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
