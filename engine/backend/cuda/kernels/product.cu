/* Matrix products of any format, as their definition says: the reference of the fast kernels, and
 * what serves the formats that have none. A row's bits do not depend on the other rows of a launch.
 */
#include <cuda_fp16.h>

#include "backend/cuda/kernels/numeric.cuh"

static __device__ const struct hx_cuda_weight *choose(const struct hx_cuda_choice *c, int r)
{
    return c->table ? &c->table[c->sel[r]] : &c->one;
}

/* One warp an output of a row. */
static __global__ void plain(struct hx_cuda_choice c, const uint16_t *x, int x_div,
                             int64_t x_stride, int64_t group, float *y)
{
    int r = blockIdx.y, lane = threadIdx.x % 32;
    int64_t o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const struct hx_cuda_weight *w = choose(&c, r);
    if (o >= c.n_out || w->format == HX_FORMAT_EXL3_ID)
        return;
    if (o >= w->n_out) { /* a smaller share than others */
        if (lane == 0)
            y[r * c.n_out + o] = 0;
        return;
    }
    const uint16_t *row = x + r / x_div * x_stride + (group > 0 ? o / group * w->n_in : 0);
    double sum = 0;
    for (int64_t i = lane; i < w->n_in; i += 32)
        sum += (double)weight_value(w, o, i) * (double)bf16_value(row[i]);
    sum = warp_sum(sum);
    if (lane == 0)
        y[r * c.n_out + o] = (float)sum;
}

/* ---- EXL3 ---- */

/* Sum transform of the block's 128 values. */
static __device__ double hadamard128(double v, double *shared)
{
    int i = threadIdx.x;
    for (int h = 1; h < 128; h *= 2) {
        shared[i] = v;
        __syncthreads();
        double other = shared[i ^ h];
        v = i & h ? other - v : v + other;
        __syncthreads();
    }
    return v;
}

static __global__ void rotate_in(struct hx_cuda_choice c, const uint16_t *x, int x_div,
                                 int64_t x_stride, double *xr)
{
    __shared__ double shared[128];
    int r = blockIdx.y;
    int64_t k = (int64_t)blockIdx.x * 128 + threadIdx.x;
    const struct hx_cuda_weight *w = choose(&c, r);
    if (w->format != HX_FORMAT_EXL3_ID || w->k_tiles == 0) /* no share of it here */
        return;
    double v = 0;
    if (k < w->n_in)
        v = (double)bf16_value(x[r / x_div * x_stride + k]) * (double)f16_value(w->suh[k]);
    xr[r * c.k_padded + k] = hadamard128(v, shared);
}

/* The value of a 16-bit state (docs/exl3.md). */
static __device__ float code_value(int codebook, uint32_t state)
{
    if (codebook == 2) {
        uint32_t p = state * 0x83DCD12Du;
        uint32_t s = (p & 255) + (p >> 8 & 255) + (p >> 16 & 255) + (p >> 24);
        double v = (1024.0 + (double)s) * 0.00676727294921875 - 10.3828125;
        return __half2float(__double2half(v));
    }
    uint32_t p = codebook == 1 ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
    p = (p & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return __half2float(__float2half_rn(f16_value((uint16_t)p) + f16_value((uint16_t)(p >> 16))));
}

static __device__ uint32_t window(const uint32_t *tile, int bits, int p)
{
    int n_words = 8 * bits, end = (p + 1) * bits + 256 * bits;
    int last = (end - 1) / 32, first = (end - 16) / 32, shift = 32 * (last + 1) - end;
    uint64_t pair = first == last ? tile[last % n_words]
                                  : (uint64_t)tile[first % n_words] << 32 | tile[last % n_words];
    return (uint32_t)(pair >> shift) & 0xFFFF;
}

/* One warp 16 output columns of a row: each lane decodes its 8 positions of every tile. */
static __global__ void inner(struct hx_cuda_choice c, const double *xr, double *out)
{
    int r = blockIdx.y, lane = threadIdx.x % 32;
    int64_t nt = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const struct hx_cuda_weight *w = choose(&c, r);
    if (w->format != HX_FORMAT_EXL3_ID || nt >= w->n_tiles)
        return;
    double sum[2] = {0, 0};
    for (int64_t kt = 0; kt < w->k_tiles; kt++) {
        const uint32_t *tile = (const uint32_t *)w->data + (kt * w->n_tiles + nt) * 8 * w->bits;
        const double *x = xr + r * c.k_padded + kt * 16;
        for (int j = 0; j < 8; j++) {
            int row = 2 * (lane & 3) + (j & 1) + 8 * (j >> 1 & 1);
            sum[j >> 2] +=
                (double)code_value(w->codebook, window(tile, w->bits, lane * 8 + j)) * x[row];
        }
    }
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 2);
        if ((lane & 3) == 0)
            out[r * c.n_padded + nt * 16 + lane / 4 + 8 * i] = sum[i];
    }
}

static __global__ void rotate_out(struct hx_cuda_choice c, const double *in, float *y)
{
    __shared__ double shared[128];
    int r = blockIdx.y;
    int64_t o = (int64_t)blockIdx.x * 128 + threadIdx.x;
    const struct hx_cuda_weight *w = choose(&c, r);
    if (w->format != HX_FORMAT_EXL3_ID)
        return;
    /* A smaller share than others, or none. */
    if (w->k_tiles == 0 || (int64_t)blockIdx.x * 8 >= w->n_tiles) {
        if (o < c.n_out)
            y[r * c.n_out + o] = 0;
        return;
    }
    double v = hadamard128(in[r * c.n_padded + o], shared);
    if (o >= w->n_out)
        return;
    v = v * (1.0 / 128.0) * (double)f16_value(w->svh[o]);
    if (w->bias)
        v += w->bias_is_f32 ? (double)((const float *)w->bias)[o]
                            : (double)f16_value(((const uint16_t *)w->bias)[o]);
    y[r * c.n_out + o] = (float)v;
}

cudaError_t hx_cu_product(cudaStream_t s, const struct hx_cuda_choice *w, const uint16_t *x,
                          int x_div, int64_t x_stride, int64_t group, int n, float *y, double *xr,
                          double *mid)
{
    /* The second grid dimension ends at 65,535. */
    for (int at = 0; at < n; at += 32768) {
        int m = n - at < 32768 ? n - at : 32768;
        struct hx_cuda_choice c = *w;
        const uint16_t *from = x + at / x_div * x_stride;
        float *to = y + (int64_t)at * c.n_out;
        if (c.sel)
            c.sel += at;
        if (c.has_plain)
            plain<<<dim3((unsigned)((c.n_out + 3) / 4), m), 128, 0, s>>>(c, from, x_div, x_stride,
                                                                         group, to);
        if (c.has_exl3) {
            rotate_in<<<dim3((unsigned)(c.k_padded / 128), m), 128, 0, s>>>(c, from, x_div,
                                                                            x_stride, xr);
            inner<<<dim3((unsigned)(c.n_padded / 64), m), 128, 0, s>>>(c, xr, mid);
            rotate_out<<<dim3((unsigned)(c.n_padded / 128), m), 128, 0, s>>>(c, mid, to);
        }
    }
    return cudaGetLastError();
}

static __global__ void round_rows(const float *x, int64_t n, uint16_t *y)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = to_bf16(x[i]);
}

cudaError_t hx_cu_to_bf16(cudaStream_t s, const float *x, int64_t n, uint16_t *y)
{
    round_rows<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(x, n, y);
    return cudaGetLastError();
}
