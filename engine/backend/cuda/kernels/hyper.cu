/* Hyper-connections: coefficients, collapse, expand, mean. */
#include "backend/cuda/kernels/numeric.cuh"

#define MAX_STREAM 8

static __device__ void normalise(float *c, int n, int step, int stride, float eps)
{
    for (int l = 0; l < n; l++) {
        float sum = c[l * stride];
        for (int i = 1; i < n; i++)
            sum = sum + c[l * stride + i * step];
        for (int i = 0; i < n; i++)
            c[l * stride + i * step] = c[l * stride + i * step] / (sum + eps);
    }
}

static __device__ void sinkhorn(float *c, int n, int iters, float eps)
{
    for (int j = 0; j < n; j++) {
        float *row = c + j * n, max = row[0];
        for (int t = 1; t < n; t++)
            max = row[t] > max ? row[t] : max;
        for (int t = 0; t < n; t++)
            row[t] = exp32(row[t] - max);
        float sum = row[0];
        for (int t = 1; t < n; t++)
            sum = sum + row[t];
        for (int t = 0; t < n; t++)
            row[t] = row[t] / sum + eps;
    }
    normalise(c, n, n, 1, eps);
    for (int i = 1; i < iters; i++) {
        normalise(c, n, 1, n, eps);
        normalise(c, n, n, 1, eps);
    }
}

/* One block a row: projections by warps, coefficients by the first thread. */
static __global__ void mix(struct hx_cuda_hc a)
{
    __shared__ double part[32];
    __shared__ float m[(2 + MAX_STREAM) * MAX_STREAM], comb[MAX_STREAM * MAX_STREAM];
    int64_t t = blockIdx.x, width = a.n_stream * a.d;
    int n = a.n_stream, n_mix = (2 + n) * n, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint16_t *x = a.streams + t * width;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        double v = bf16_value(x[i]);
        sum += v * v;
    }
    float r = rsqrt32((float)(block_sum(sum, part) / (double)width) + a.rms_eps);
    for (int o = warp; o < n_mix; o += blockDim.x / 32) {
        double dot = 0;
        for (int64_t i = lane; i < width; i += 32)
            dot += (double)dense_value(&a.fn, o * width + i) * (double)bf16_value(x[i]);
        dot = warp_sum(dot);
        if (lane == 0)
            m[o] = (float)dot * r;
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int s = 0; s < n; s++) {
        a.pre[t * n + s] = sigmoid32(m[s] * a.scale[0] + a.base[s]) + a.hc_eps;
        a.post[t * n + s] = 2.0f * sigmoid32(m[n + s] * a.scale[1] + a.base[n + s]);
    }
    for (int i = 0; i < n * n; i++)
        comb[i] = m[2 * n + i] * a.scale[2] + a.base[2 * n + i];
    sinkhorn(comb, n, a.iters, a.hc_eps);
    for (int i = 0; i < n * n; i++)
        a.comb[t * n * n + i] = comb[i];
}

cudaError_t hx_cu_hc_mix(cudaStream_t s, const struct hx_cuda_hc *a)
{
    mix<<<a->n_row, 256, 0, s>>>(*a);
    return cudaGetLastError();
}

static __global__ void collapse(const uint16_t *streams, const float *pre, int n, int64_t d,
                                uint16_t *x)
{
    int64_t t = blockIdx.x;
    const float *p = pre + t * n;
    const uint16_t *s = streams + t * n * d;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        float acc = p[0] * bf16_value(s[i]);
        for (int j = 1; j < n; j++)
            acc = acc + p[j] * bf16_value(s[j * d + i]);
        x[t * d + i] = to_bf16(acc);
    }
}

cudaError_t hx_cu_hc_collapse(cudaStream_t s, const uint16_t *streams, const float *pre, int n_row,
                              int n_stream, int64_t d, uint16_t *x)
{
    collapse<<<n_row, 256, 0, s>>>(streams, pre, n_stream, d, x);
    return cudaGetLastError();
}

static __global__ void expand(const uint16_t *y, const float *post, const float *comb, int n,
                              int64_t d, uint16_t *streams)
{
    int64_t t = blockIdx.x;
    const float *po = post + t * n, *c = comb + t * n * n;
    uint16_t *s = streams + t * n * d;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        float old[MAX_STREAM], yi = bf16_value(y[t * d + i]);
        for (int j = 0; j < n; j++)
            old[j] = bf16_value(s[j * d + i]);
        for (int to = 0; to < n; to++) {
            float mix = c[to] * old[0];
            for (int j = 1; j < n; j++)
                mix = mix + c[j * n + to] * old[j];
            s[to * d + i] = to_bf16(po[to] * yi + mix);
        }
    }
}

cudaError_t hx_cu_hc_expand(cudaStream_t s, const uint16_t *y, const float *post, const float *comb,
                            int n_row, int n_stream, int64_t d, uint16_t *streams)
{
    expand<<<n_row, 256, 0, s>>>(y, post, comb, n_stream, d, streams);
    return cudaGetLastError();
}

static __global__ void stream_mean(const uint16_t *streams, int n, int64_t d, int slot, int n_slot,
                                   uint16_t *out)
{
    int64_t t = blockIdx.x;
    const uint16_t *s = streams + t * n * d;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += (double)bf16_value(s[j * d + i]);
        out[(t * n_slot + slot) * d + i] = to_bf16((float)(sum / (double)n));
    }
}

cudaError_t hx_cu_stream_mean(cudaStream_t s, const uint16_t *streams, int n_row, int n_stream,
                              int64_t d, int slot, int n_slot, uint16_t *out)
{
    stream_mean<<<n_row, 256, 0, s>>>(streams, n_stream, d, slot, n_slot, out);
    return cudaGetLastError();
}
