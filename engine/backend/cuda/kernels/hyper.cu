/* Hyper-connections: coefficients, collapse, expand, mean, and all of a site in one launch. */
#include "backend/cuda/kernels/site_mix.cuh"

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

/* Blocks of 256 channels of a row. */
static dim3 by_channel(int n_row, int64_t d)
{
    return dim3((unsigned)n_row, (unsigned)((d + 255) / 256));
}

static __global__ void collapse(const uint16_t *streams, const float *pre, int n, int64_t d,
                                uint16_t *x)
{
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const float *p = pre + t * n;
    const uint16_t *s = streams + t * n * d;
    if (i < d) {
        float acc = p[0] * bf16_value(s[i]);
        for (int j = 1; j < n; j++)
            acc = acc + p[j] * bf16_value(s[j * d + i]);
        x[t * d + i] = to_bf16(acc);
    }
}

cudaError_t hx_cu_hc_collapse(cudaStream_t s, const uint16_t *streams, const float *pre, int n_row,
                              int n_stream, int64_t d, uint16_t *x)
{
    collapse<<<by_channel(n_row, d), 256, 0, s>>>(streams, pre, n_stream, d, x);
    return cudaGetLastError();
}

static __global__ void expand(const uint16_t *y, const float *post, const float *comb, int n,
                              int64_t d, uint16_t *streams)
{
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const float *po = post + t * n, *c = comb + t * n * n;
    uint16_t *s = streams + t * n * d;
    if (i < d) {
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
    expand<<<by_channel(n_row, d), 256, 0, s>>>(y, post, comb, n_stream, d, streams);
    return cudaGetLastError();
}

static __global__ void stream_mean(const uint16_t *streams, int n, int64_t d, int slot, int n_slot,
                                   uint16_t *out)
{
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const uint16_t *s = streams + t * n * d;
    if (i < d) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += (double)bf16_value(s[j * d + i]);
        out[(t * n_slot + slot) * d + i] = to_bf16((float)(sum / (double)n));
    }
}

cudaError_t hx_cu_stream_mean(cudaStream_t s, const uint16_t *streams, int n_row, int n_stream,
                              int64_t d, int slot, int n_slot, uint16_t *out)
{
    stream_mean<<<by_channel(n_row, d), 256, 0, s>>>(streams, n_stream, d, slot, n_slot, out);
    return cudaGetLastError();
}

/* ---- a site in one launch (docs/kernels.md, "Hyper-connection site") ----
 *
 * Four streams. A block has 32 channels of all rows: new streams from the sublayer's output, their
 * collapse, its part of the sums. Behind a barrier of the grid each block norms its own channels.
 * Coefficients are made of the sums by a later launch: nobody needs them before the next site. A
 * row's sums run over slices in one order whatever the number of rows and launches. */

#define SITE_WIDTH 32 /* channels of a block */
#define SITE_ROWS  8  /* rows at a time: a warp each */
#define SITE_TILES 6  /* of rows in one launch, at most */

struct site {
    struct hx_cuda_site a;
    int n_slice;
    float *sums;     /* [n_row][SITE_SUMS][n_slice] */
    double *squares; /* [n_row][n_slice] of the collapsed values */
};

static __device__ __forceinline__ float warp_sum32(float v)
{
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, o);
    return v;
}

/* Rows first_row .. of a slice: a warp has a row, a lane a channel. fn: the lane's weights of the
 * warp's three coefficients. Returns the collapsed value. */
static __device__ __forceinline__ uint16_t site_slice(const struct site &p, int slice,
                                                      int first_row, const float fn[3][SITE_STREAM])
{
    __shared__ float value[SITE_ROWS][SITE_STREAM][SITE_WIDTH];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t d = p.a.d, t = first_row + warp, c = slice * SITE_WIDTH + lane;
    int n = min(SITE_ROWS, p.a.n_row - first_row);
    uint16_t x = 0;
    float v[SITE_STREAM] = {0, 0, 0, 0};
    if (warp < n) {
        uint16_t *s = p.a.streams + t * SITE_STREAM * d + c;
        float pre[SITE_STREAM];
#pragma unroll
        for (int j = 0; j < SITE_STREAM; j++) {
            v[j] = bf16_value(s[j * d]);
            pre[j] = p.a.pre[t * SITE_STREAM + j];
        }
        if (p.a.y) {
            /* All loads before the first store. */
            float old[SITE_STREAM], post[SITE_STREAM], comb[SITE_STREAM * SITE_STREAM];
            float y = bf16_value(p.a.y[t * d + c]);
#pragma unroll
            for (int j = 0; j < SITE_STREAM; j++) {
                old[j] = v[j];
                post[j] = p.a.post[t * SITE_STREAM + j];
            }
#pragma unroll
            for (int j = 0; j < SITE_STREAM * SITE_STREAM; j++)
                comb[j] = p.a.comb[t * SITE_STREAM * SITE_STREAM + j];
#pragma unroll
            for (int to = 0; to < SITE_STREAM; to++) {
                float mix = comb[to] * old[0];
#pragma unroll
                for (int j = 1; j < SITE_STREAM; j++)
                    mix = mix + comb[j * SITE_STREAM + to] * old[j];
                uint16_t h = to_bf16(post[to] * y + mix);
                s[to * d] = h;
                v[to] = bf16_value(h);
            }
        }
        float acc = pre[0] * v[0];
#pragma unroll
        for (int j = 1; j < SITE_STREAM; j++)
            acc = acc + pre[j] * v[j];
        x = to_bf16(acc);
    }
    __syncthreads(); /* the rows before are read */
#pragma unroll
    for (int j = 0; j < SITE_STREAM; j++)
        value[warp][j][lane] = v[j];
    __syncthreads();
    /* All rows at once: sums of what is behind the last one are not kept. */
    float dot[3 * SITE_ROWS];
#pragma unroll
    for (int r = 0; r < SITE_ROWS; r++) {
#pragma unroll
        for (int k = 0; k < 3; k++)
            dot[3 * r + k] = 0;
#pragma unroll
        for (int j = 0; j < SITE_STREAM; j++) {
            float u = value[r][j][lane];
#pragma unroll
            for (int k = 0; k < 3; k++)
                dot[3 * r + k] = __fmaf_rn(fn[k][j], u, dot[3 * r + k]);
        }
    }
    int which;
    warp_sums<3 * SITE_ROWS>(dot, &which);
    if (which < 3 * n)
        p.sums[((int64_t)(first_row + which / 3) * SITE_SUMS + 3 * warp + which % 3) * p.n_slice +
               slice] = dot[0];
    if (warp >= n)
        return x;
    float ss = 0;
#pragma unroll
    for (int j = 0; j < SITE_STREAM; j++)
        ss = __fmaf_rn(v[j], v[j], ss);
    ss = warp_sum32(ss);
    double xx = warp_sum((double)bf16_value(x) * (double)bf16_value(x));
    if (lane == 0) {
        p.sums[(t * SITE_SUMS + SITE_MIX) * p.n_slice + slice] = ss;
        p.squares[t * p.n_slice + slice] = xx;
    }
    return x;
}

/* The collapsed value of this thread, normed. */
static __device__ __forceinline__ void site_norm(const struct site &p, int slice, int first_row,
                                                 uint16_t x, float weight)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t d = p.a.d, t = first_row + warp;
    if (t >= p.a.n_row)
        return;
    double xx = 0;
#pragma unroll 5
    for (int i = lane; i < p.n_slice; i += 32)
        xx += __ldcg(&p.squares[t * p.n_slice + i]);
    float scale = rsqrt32((float)(warp_sum(xx) / (double)d) + p.a.norm_eps);
    p.a.x[t * d + slice * SITE_WIDTH + lane] = to_bf16(weight * (bf16_value(x) * scale));
}

/* A lane's weights of the three coefficients of its warp. */
static __device__ __forceinline__ void site_weights(const struct site &p, int slice,
                                                    float fn[3][SITE_STREAM])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 3; k++) {
#pragma unroll
        for (int j = 0; j < SITE_STREAM; j++)
            fn[k][j] = dense_value(&p.a.fn, ((3 * warp + k) * SITE_STREAM + j) * p.a.d +
                                                slice * SITE_WIDTH + lane);
    }
}

/* Few rows: everything but the coefficients, with a barrier of the grid in the middle. TILES: of
 * eight rows, at most. */
template <int TILES>
static __global__ void __launch_bounds__(256, 3) site_whole(const __grid_constant__ struct site p)
{
    int slice = blockIdx.x, lane = threadIdx.x % 32, n = p.a.n_row;
    float fn[3][SITE_STREAM], weight = dense_value(&p.a.norm, slice * SITE_WIDTH + lane);
    site_weights(p, slice, fn);
    uint16_t x[TILES];
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        if (r * SITE_ROWS < n)
            x[r] = site_slice(p, slice, r * SITE_ROWS, fn);
    }
    grid_barrier(p.a.barrier, gridDim.x, slice == 0);
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        if (r * SITE_ROWS < n)
            site_norm(p, slice, r * SITE_ROWS, x[r], weight);
    }
}

/* Many rows: the same in two launches. */
static __global__ void __launch_bounds__(256) site_first(const struct site p)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t t = blockIdx.y * SITE_ROWS + warp;
    float fn[3][SITE_STREAM];
    site_weights(p, blockIdx.x, fn);
    uint16_t x = site_slice(p, blockIdx.x, blockIdx.y * SITE_ROWS, fn);
    if (t < p.a.n_row)
        p.a.x[t * p.a.d + blockIdx.x * SITE_WIDTH + lane] = x;
}

static __global__ void __launch_bounds__(256) site_second(const struct site p)
{
    int warp = threadIdx.x / 32, c = blockIdx.x * SITE_WIDTH + threadIdx.x % 32;
    int64_t t = blockIdx.y * SITE_ROWS + warp;
    uint16_t x = t < p.a.n_row ? p.a.x[t * p.a.d + c] : 0;
    site_norm(p, blockIdx.x, blockIdx.y * SITE_ROWS, x, dense_value(&p.a.norm, c));
}

static __global__ void __launch_bounds__(256) site_mix(const struct hx_cuda_mix p)
{
    mix_row(p, blockIdx.x);
}

bool hx_cu_site_takes(int n_stream, int64_t d)
{
    return n_stream == SITE_STREAM && d % SITE_WIDTH == 0;
}

size_t hx_cu_site_room(int n_row, int64_t d)
{
    size_t slices = (size_t)n_row * (size_t)(d / SITE_WIDTH);
    return slices * sizeof(double) + slices * SITE_SUMS * sizeof(float);
}

cudaError_t hx_cu_site(cudaStream_t s, const struct hx_cuda_site *a, int n_sm,
                       struct hx_cuda_mix *mix)
{
    struct site p = {};
    p.a = *a;
    p.n_slice = (int)(a->d / SITE_WIDTH);
    p.squares = (double *)a->room;
    p.sums = (float *)(p.squares + (size_t)a->n_row * (size_t)p.n_slice);
    *mix = {a->n_row, p.n_slice,  a->iters,  a->d,        p.sums,  a->base,
            a->scale, a->rms_eps, a->hc_eps, a->pre_next, a->post, a->comb};
    /* Three blocks a multiprocessor are there together: the barrier needs them all. */
    if (a->n_row <= SITE_TILES * SITE_ROWS && p.n_slice <= 3 * n_sm) {
        if (a->n_row <= SITE_ROWS)
            site_whole<1><<<(unsigned)p.n_slice, 256, 0, s>>>(p);
        else
            site_whole<SITE_TILES><<<(unsigned)p.n_slice, 256, 0, s>>>(p);
        return cudaGetLastError();
    }
    dim3 grid((unsigned)p.n_slice, (unsigned)((a->n_row + SITE_ROWS - 1) / SITE_ROWS));
    site_first<<<grid, 256, 0, s>>>(p);
    site_second<<<grid, 256, 0, s>>>(p);
    return cudaGetLastError();
}

cudaError_t hx_cu_site_mix(cudaStream_t s, const struct hx_cuda_mix *mix)
{
    site_mix<<<(unsigned)mix->n_row, 256, 0, s>>>(*mix);
    return cudaGetLastError();
}
