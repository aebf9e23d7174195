/* Router choice, activation and sum of the experts. */
#include "backend/cuda/kernels/numeric.cuh"

static __global__ void swiglu(const float *a, const float *b, const float *weight, int64_t width,
                              int64_t n, float limit, uint16_t *t)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    t[i] = weight ? swiglu_of(a[i], b[i], limit, weight[i / width]) : swiglu_of(a[i], b[i], limit);
}

cudaError_t hx_cu_swiglu(cudaStream_t s, const float *a, const float *b, const float *weight, int n,
                         int64_t width, float limit, uint16_t *t)
{
    int64_t all = n * width;
    swiglu<<<(unsigned)((all + 255) / 256), 256, 0, s>>>(a, b, weight, width, all, limit, t);
    return cudaGetLastError();
}

static __global__ void expert_sum(const float *routed, const float *shared, int k, int64_t d,
                                  int64_t n, uint16_t *y)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int64_t t = i / d, c = i % d;
    float sum = 0;
    for (int e = 0; e < k; e++)
        sum = sum + bf16_round(routed[(t * k + e) * d + c]);
    y[i] = to_bf16(sum + (shared ? bf16_round(shared[i]) : 0));
}

cudaError_t hx_cu_expert_sum(cudaStream_t s, const float *routed, const float *shared, int n_tok,
                             int k, int64_t d, uint16_t *y)
{
    int64_t n = n_tok * d;
    expert_sum<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(routed, shared, k, d, n, y);
    return cudaGetLastError();
}

#define MAX_EXPERT 4096

/* One warp a row: scores, then k times the best of those left (higher score, lower index). */
static __global__ void route(struct hx_cuda_route a)
{
    __shared__ float biased[MAX_EXPERT];
    int64_t t = blockIdx.x;
    int lane = threadIdx.x;
    float *score = a.score + t * a.n_expert, *weight = a.weight + t * a.k;
    int32_t *sel = a.sel + t * a.k;
    const float *bias = a.dead && a.dead[t] ? a.bias_vl : a.bias;
    for (int e = lane; e < a.n_expert; e += 32) {
        float z = score[e] / a.temp;
        float sp = (double)z > 20.0 ? z : (float)log1p(exp((double)z));
        score[e] = sqrtf(sp);
        biased[e] = score[e] + bias[e];
        if (isnan(biased[e]))
            report(a.fault, HX_CUDA_NAN_ROUTER);
    }
    __syncwarp();
    for (int i = 0; i < a.k; i++) {
        float best = -INFINITY;
        int at = -1;
        for (int e = lane; e < a.n_expert; e += 32) {
            if (biased[e] > best)
                best = biased[e], at = e;
        }
        for (int o = 16; o > 0; o /= 2) {
            float other = __shfl_xor_sync(0xFFFFFFFFu, best, o);
            int from = __shfl_xor_sync(0xFFFFFFFFu, at, o);
            if (from >= 0 && (at < 0 || other > best || (other == best && from < at)))
                best = other, at = from;
        }
        if (at < 0) { /* NaN or fewer finite scores than experts wanted */
            report(a.fault, HX_CUDA_NAN_ROUTER);
            at = i;
        }
        if (lane == 0) {
            int place = i;
            for (; place > 0 && sel[place - 1] > at; place--)
                sel[place] = sel[place - 1];
            sel[place] = at;
            biased[at] = -INFINITY;
        }
        __syncwarp();
    }
    if (lane > 0)
        return;
    double sum = 0;
    for (int i = 0; i < a.k; i++) {
        weight[i] = score[sel[i]];
        sum += (double)weight[i];
    }
    for (int i = 0; i < a.k; i++) {
        if (a.norm && a.k > 1)
            weight[i] = weight[i] / ((float)sum + 1e-20f);
        weight[i] = weight[i] * a.route_scale;
    }
}

cudaError_t hx_cu_route(cudaStream_t s, const struct hx_cuda_route *a)
{
    if (a->n_expert > MAX_EXPERT)
        return cudaErrorInvalidValue;
    route<<<a->n_row, 32, 0, s>>>(*a);
    return cudaGetLastError();
}
