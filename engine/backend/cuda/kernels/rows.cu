/* Row by row: embedding, RMSNorm, rotary embedding, grids, keeping rows. */
#include "backend/cuda/kernels/numeric.cuh"

static __global__ void embed(const uint16_t *table, const int32_t *token, int n_stream, int64_t d,
                             uint16_t *streams, float *pre)
{
    int64_t t = blockIdx.x;
    const uint16_t *row = table + token[t] * d;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        for (int s = 0; s < n_stream; s++)
            streams[(t * n_stream + s) * d + i] = row[i];
    }
    if (threadIdx.x < n_stream)
        pre[t * n_stream + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

cudaError_t hx_cu_embed(cudaStream_t s, const uint16_t *table, const int32_t *token, int n_row,
                        int n_stream, int64_t d, uint16_t *streams, float *pre)
{
    embed<<<n_row, 256, 0, s>>>(table, token, n_stream, d, streams, pre);
    return cudaGetLastError();
}

static __global__ void rms_norm(struct hx_cuda_weight w, float eps, const uint16_t *x, uint16_t *y)
{
    __shared__ double part[32];
    int64_t k = w.n_in;
    x += blockIdx.x * k;
    y += blockIdx.x * k;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
        double v = bf16_value(x[i]);
        sum += v * v;
    }
    float scale = rsqrt32((float)(block_sum(sum, part) / (double)k) + eps);
    for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
        y[i] = to_bf16(dense_value(&w, i) * (bf16_value(x[i]) * scale));
}

cudaError_t hx_cu_rms_norm(cudaStream_t s, const struct hx_cuda_weight *w, float eps,
                           const uint16_t *x, int64_t n_row, uint16_t *y)
{
    rms_norm<<<(unsigned)n_row, 256, 0, s>>>(*w, eps, x, y);
    return cudaGetLastError();
}

static __global__ void rope(uint16_t *x, int n_head, int d, const int64_t *pos, const float *freq,
                            int n_freq, bool inverse)
{
    int64_t r = blockIdx.x;
    for (int i = threadIdx.x; i < n_freq * n_head; i += blockDim.x) {
        int h = i / n_freq, f = i % n_freq;
        float angle = (float)pos[r] * freq[f];
        float c = (float)cos((double)angle), sn = (float)sin((double)angle);
        if (inverse)
            sn = -sn;
        uint16_t *pair = x + (r * n_head + h) * d + d - 2 * n_freq + 2 * f;
        float a = bf16_value(pair[0]), b = bf16_value(pair[1]);
        pair[0] = to_bf16(a * c - b * sn);
        pair[1] = to_bf16(a * sn + b * c);
    }
}

cudaError_t hx_cu_rope(cudaStream_t s, uint16_t *x, int n_row, int n_head, int d,
                       const int64_t *pos, const float *freq, int n_freq, bool inverse)
{
    rope<<<n_row, 256, 0, s>>>(x, n_head, d, pos, freq, n_freq, inverse);
    return cudaGetLastError();
}

static __global__ void gather_rows(const uint8_t *x, size_t bytes, const int32_t *row, uint8_t *to)
{
    const uint8_t *from = x + (size_t)row[blockIdx.x] * bytes;
    to += (size_t)blockIdx.x * bytes;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
        to[i] = from[i];
}

/* Rows only move down, so whole pieces can go through the scratch memory one after the other. */
cudaError_t hx_cu_keep_rows(cudaStream_t s, uint8_t *x, size_t row_bytes, const int32_t *row, int n,
                            void *scratch, size_t scratch_bytes)
{
    int most = (int)(scratch_bytes / row_bytes);
    cudaError_t e = cudaSuccess;
    for (int at = 0; at < n && e == cudaSuccess; at += most) {
        int m = n - at < most ? n - at : most;
        gather_rows<<<m, 256, 0, s>>>(x, row_bytes, row + at, (uint8_t *)scratch);
        e = cudaMemcpyAsync(x + (size_t)at * row_bytes, scratch, (size_t)m * row_bytes,
                            cudaMemcpyDeviceToDevice, s);
    }
    return e == cudaSuccess ? cudaGetLastError() : e;
}

/* ---- grids ---- */

static __device__ uint8_t encode_e4m3(float x)
{
    uint8_t sign = __float_as_uint(x) >> 31 ? 0x80 : 0;
    float a = fabsf(x);
    if (a >= 448.0f)
        return sign | 0x7E;
    if (a == 0)
        return sign;
    int e;
    frexpf(a, &e);
    e = e - 1 < -6 ? -6 : e - 1;
    int steps = (int)rintf(ldexpf(a, 3 - e));
    return sign | (uint8_t)(steps + (e + 6) * 8);
}

static __device__ uint8_t encode_e2m1(float x)
{
    const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    uint8_t sign = __float_as_uint(x) >> 31 ? 8 : 0, code = 0;
    float a = fabsf(x);
    for (int i = 0; i < 7; i++)
        code += a > middle[i] || (a == middle[i] && (i & 1));
    return sign | code;
}

static __device__ uint8_t pow2_scale(float t)
{
    uint32_t u = __float_as_uint(t);
    return (uint8_t)((u >> 23 & 0xFF) + ((u & 0x7FFFFF) != 0));
}

static __device__ float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* One thread a block of 32 or 16 channels. */
static __global__ void quantise(int grid, const uint16_t *x, int64_t n_block, int d, uint8_t *codes,
                                uint8_t *scales, uint16_t *value)
{
    int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= n_block)
        return;
    const int n = grid == 2 ? 16 : 32;
    float v[32], amax = 0;
    for (int i = 0; i < n; i++) {
        v[i] = bf16_value(x[b * n + i]);
        float a = fabsf(v[i]);
        if (a > amax)
            amax = a;
    }
    if (grid == 0) {
        scales[b] = pow2_scale(fmaxf(amax, 1e-4f) * (float)(1.0 / 448.0));
        float s = e8m0(scales[b]);
        for (int i = 0; i < n; i++) {
            uint8_t c = encode_e4m3(clamp(v[i] / s, 448.0f));
            codes[b * n + i] = c;
            if (value)
                value[b * n + i] = to_bf16(e4m3(c) * s);
        }
        return;
    }
    float s;
    if (grid == 1) {
        scales[b] = pow2_scale(fmaxf(amax, 0x6p-126f) * (float)(1.0 / 6.0));
        s = e8m0(scales[b]);
    } else {
        scales[b] = encode_e4m3(fmaxf(amax, 0x6p-9f) / 6.0f);
        s = e4m3(scales[b]);
    }
    for (int i = 0; i < n; i += 2) {
        uint8_t lo = encode_e2m1(clamp(v[i] / s, 6.0f)),
                hi = encode_e2m1(clamp(v[i + 1] / s, 6.0f));
        codes[(b * n + i) / 2] = (uint8_t)(lo | hi << 4);
        if (value) {
            value[b * n + i] = to_bf16(e2m1(lo) * s);
            value[b * n + i + 1] = to_bf16(e2m1(hi) * s);
        }
    }
}

cudaError_t hx_cu_quantise(cudaStream_t s, int grid, const uint16_t *x, int64_t n_row, int d,
                           uint8_t *codes, uint8_t *scales, uint16_t *value)
{
    int64_t n_block = n_row * d / (grid == 2 ? 16 : 32);
    quantise<<<(unsigned)((n_block + 127) / 128), 128, 0, s>>>(grid, x, n_block, d, codes, scales,
                                                               value);
    return cudaGetLastError();
}
