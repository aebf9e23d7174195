/* Coefficients of a hyper-connection site from the sums that its slices left (hyper.cu): by blocks
 * of the site itself or of a later launch before the next site, which hides them. */
#ifndef HX_BACKEND_CUDA_SITE_MIX_CUH
#define HX_BACKEND_CUDA_SITE_MIX_CUH

#include "backend/cuda/kernels/numeric.cuh"

#define SITE_STREAM 4
#define SITE_MIX    24 /* coefficients of a row: (2 + 4) 4 */
#define SITE_SUMS   25 /* and the sum of squares of its streams */

/* 1 / x of a number that is no denormal, by the instruction alone. */
static __device__ __forceinline__ float reciprocal(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* c [4][4] to one whose rows and columns sum to 1; all in registers. */
static __device__ __forceinline__ void site_balance(float c[SITE_STREAM][SITE_STREAM], int iters,
                                                    float eps)
{
#pragma unroll
    for (int j = 0; j < SITE_STREAM; j++) {
        float max = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3]));
#pragma unroll
        for (int t = 0; t < SITE_STREAM; t++)
            c[j][t] = expf(c[j][t] - max);
        float r = 1.0f / (c[j][0] + c[j][1] + (c[j][2] + c[j][3]));
#pragma unroll
        for (int t = 0; t < SITE_STREAM; t++)
            c[j][t] = c[j][t] * r + eps;
    }
#pragma unroll 1
    for (int i = 0; i < iters; i++) {
#pragma unroll
        for (int j = 0; j < SITE_STREAM && i > 0; j++) {
            float r = reciprocal(c[j][0] + c[j][1] + (c[j][2] + (c[j][3] + eps)));
#pragma unroll
            for (int t = 0; t < SITE_STREAM; t++)
                c[j][t] *= r;
        }
#pragma unroll
        for (int t = 0; t < SITE_STREAM; t++) {
            float r = reciprocal(c[0][t] + c[1][t] + (c[2][t] + (c[3][t] + eps)));
#pragma unroll
            for (int j = 0; j < SITE_STREAM; j++)
                c[j][t] *= r;
        }
    }
}

/* Coefficients of row t, by a block of at least 200 threads. */
static __device__ __forceinline__ void mix_row(const struct hx_cuda_mix &p, int64_t t)
{
    __shared__ float m[SITE_SUMS];
    /* Eight threads a sum: all loads are on their way together. */
    int o8 = threadIdx.x / 8, part = threadIdx.x % 8;
    float sum = 0;
    if (o8 < SITE_SUMS) {
        const float *from = p.sums + (t * SITE_SUMS + o8) * p.n_slice;
#pragma unroll 10
        for (int i = part; i < p.n_slice; i += 8)
            sum += __ldcg(&from[i]);
    }
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, h);
    if (o8 < SITE_SUMS && part == 0)
        m[o8] = sum;
    __syncthreads();
    const float *base = p.base, *scale = p.scale;
    float r = rsqrtf(m[SITE_MIX] / (float)(SITE_STREAM * p.d) + p.rms_eps);
    if (threadIdx.x >= 32 && threadIdx.x < 32 + 2 * SITE_STREAM) {
        int o = threadIdx.x - 32, s = o % SITE_STREAM, which = o / SITE_STREAM;
        float v = m[o] * r * scale[which] + base[o];
        v = 1.0f / (1.0f + expf(-v));
        if (which == 0)
            p.pre[t * SITE_STREAM + s] = v + p.hc_eps;
        else
            p.post[t * SITE_STREAM + s] = 2.0f * v;
    }
    if (threadIdx.x == 0) {
        float c[SITE_STREAM][SITE_STREAM];
#pragma unroll
        for (int i = 0; i < SITE_STREAM * SITE_STREAM; i++) {
            int o = 2 * SITE_STREAM + i;
            c[i / SITE_STREAM][i % SITE_STREAM] = m[o] * r * scale[2] + base[o];
        }
        site_balance(c, p.iters, p.hc_eps);
#pragma unroll
        for (int i = 0; i < SITE_STREAM * SITE_STREAM; i++)
            p.comb[t * SITE_STREAM * SITE_STREAM + i] = c[i / SITE_STREAM][i % SITE_STREAM];
    }
}

#endif
