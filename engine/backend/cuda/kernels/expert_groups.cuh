/* Rows of a layer grouped by expert, and the activation between its products: what the kernels of
 * EXL3 and FP4 experts share. */
#ifndef HX_BACKEND_CUDA_EXPERT_GROUPS_CUH
#define HX_BACKEND_CUDA_EXPERT_GROUPS_CUH

#include <cuda_bf16.h>

#include "backend/cuda/kernels/numeric.cuh"

/* To BF16 and back, by the conversion instruction. */
static __device__ __forceinline__ float rounded(float f)
{
    return __bfloat162float(__float2bfloat16_rn(f));
}

static __device__ __forceinline__ float gated(float a, float b, float weight, float limit)
{
    a = rounded(a), b = rounded(b);
    if (limit > 0) {
        a = a > limit ? limit : a;
        b = b > limit ? limit : b < -limit ? -limit : b;
    }
    float v = __fdividef(a, 1.0f + __expf(-a)) * b;
    return rounded(weight * v);
}

/* Sum of what the threads before this one have; all: shared, one entry a warp. */
static __device__ int sum_before(int mine, int *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = mine;
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
        int other = __shfl_up_sync(0xFFFFFFFFu, sum, h);
        sum += lane >= h ? other : 0;
    }
    if (lane == 31)
        all[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += all[i];
    __syncthreads();
    return sum - mine;
}

/* Jobs of at most ROWS rows of one expert, experts ascending, by one block. Which rows share a job,
 * and in which order, may change from run to run; no bit of a row may depend on it. count, begins:
 * shared, an entry an expert. begins_of[j]: widths of the jobs before j in `grain`, n_job + 1
 * entries. begin(job, expert, n) writes a job but for its rows, add(job, i, pair) row i of one. */
template <int ROWS, class BEGIN, class ADD>
static __device__ void group_rows(const struct hx_cuda_exl3 &a, int n_pair, int grain,
                                  int32_t *count, int32_t *begins, int32_t *n_job,
                                  int32_t *begins_of, BEGIN begin, ADD add)
{
    __shared__ int all[32];
    int n = a.n_expert, id = threadIdx.x, threads = blockDim.x;
    for (int e = id; e < n; e += threads)
        count[e] = 0;
    __syncthreads();
    for (int i = id; i < n_pair; i += threads)
        atomicAdd(&count[a.sel[i]], 1);
    __syncthreads();
    auto width = [&](int e) { return (int)(a.unequal ? a.w1[e].n_out : a.ff) / grain; };
    int each = (n + threads - 1) / threads, e0 = min(n, id * each), e1 = min(n, e0 + each);
    int mine = 0, widths = 0;
    for (int e = e0; e < e1; e++) {
        int k = (count[e] + ROWS - 1) / ROWS;
        mine += k;
        widths += k > 0 ? k * width(e) : 0;
    }
    int job = sum_before(mine, all), at = sum_before(widths, all);
    if (id == threads - 1) {
        *n_job = job + mine;
        begins_of[job + mine] = at + widths;
    }
    for (int e = e0; e < e1; e++) {
        begins[e] = job;
        for (int k = count[e]; k > 0; k -= ROWS) {
            begins_of[job] = at;
            at += width(e);
            begin(job++, e, min(ROWS, k));
        }
        count[e] = 0;
    }
    __syncthreads();
    for (int i = id; i < n_pair; i += threads) {
        int e = a.sel[i], place = atomicAdd(&count[e], 1);
        add(begins[e] + place / ROWS, place % ROWS, i);
    }
}

/* The job whose widths hold `at`, by a warp together. */
static __device__ __forceinline__ int job_at(const int32_t *begins_of, int n_job, int at)
{
    int before = -1, lane = threadIdx.x % 32;
    for (int j = 0; j < n_job; j += 32)
        before += __popc(__ballot_sync(0xFFFFFFFFu, j + lane < n_job && begins_of[j + lane] <= at));
    return before;
}

#endif
