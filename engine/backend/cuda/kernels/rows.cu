/* Row by row: embedding, RMSNorm, rotary embedding, grids, keeping rows. */
#include "backend/cuda/kernels/latents.cuh"

static __global__ void embed(const uint16_t *table, const int32_t *token, int n_stream, int64_t d,
                             uint16_t *streams, float *pre)
{
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const uint16_t *row = table + token[t] * d;
    for (int s = 0; i < d && s < n_stream; s++)
        streams[(t * n_stream + s) * d + i] = row[i];
    if (blockIdx.y == 0 && threadIdx.x < n_stream)
        pre[t * n_stream + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

cudaError_t hx_cu_embed(cudaStream_t s, const uint16_t *table, const int32_t *token, int n_row,
                        int n_stream, int64_t d, uint16_t *streams, float *pre)
{
    embed<<<dim3((unsigned)n_row, (unsigned)((d + 255) / 256)), 256, 0, s>>>(table, token, n_stream,
                                                                             d, streams, pre);
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
        scales[b] = fp8_scale(amax);
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
        scales[b] = fp4_scale(amax);
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

/* ---- several at once ---- */

/* Blocks (row, 0): queries; (row, 1): window rows. */
static __global__ void __launch_bounds__(512) latents(const struct hx_cuda_latents a)
{
    extern __shared__ __align__(8) uint8_t room[];
    struct window_place *place = (struct window_place *)room;
    if (blockIdx.y == 0) {
        query_row(a, blockIdx.x);
        return;
    }
    find_window_place(a, blockIdx.x, place);
    window_row(a, blockIdx.x, place, (uint16_t *)(room + window_place_room(&a)));
}

bool hx_cu_latents_takes(const struct hx_cuda_latents *a)
{
    return a->kv_norm.n_in % 32 == 0 && a->kv_norm.n_in <= 8192 && a->n_freq <= 1024;
}

cudaError_t hx_cu_latents(cudaStream_t s, const struct hx_cuda_latents *a)
{
    latents<<<dim3((unsigned)a->batch.n_row, 2), 512, window_room(a), s>>>(*a);
    return cudaGetLastError();
}

/* A warp a head of a row. */
static __global__ void index_queries(uint16_t *q, int n_head, int d, const int64_t *pos,
                                     const float *freq, int n_freq, uint8_t *codes, uint8_t *scales)
{
    int64_t t = blockIdx.x, h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (h >= n_head)
        return;
    uint16_t *x = q + (t * n_head + h) * d;
    codes += (t * n_head + h) * (d / 2);
    scales += (t * n_head + h) * (d / 32);
    for (int f = lane; f < n_freq; f += 32) {
        uint16_t *pair = x + d - 2 * n_freq + 2 * f;
        float2 r =
            rotated(bf16_value(pair[0]), bf16_value(pair[1]), turn_by((float)pos[t] * freq[f]));
        pair[0] = to_bf16(r.x);
        pair[1] = to_bf16(r.y);
    }
    __syncwarp();
    for (int b = 0; b < d / 32; b++) {
        float f = bf16_value(x[32 * b + lane]);
        uint8_t s = fp4_scale(warp_magnitude(f));
        uint32_t c = encode_e2m1(clamp(f / e8m0(s), 6.0f));
        x[32 * b + lane] = to_bf16(e2m1(c) * e8m0(s));
        uint32_t high = __shfl_down_sync(0xFFFFFFFFu, c, 1);
        if (lane % 2 == 0)
            codes[16 * b + lane / 2] = (uint8_t)(c | high << 4);
        if (lane == 0)
            scales[b] = s;
    }
}

cudaError_t hx_cu_index_queries(cudaStream_t s, uint16_t *q, int n_row, int n_head, int d,
                                const int64_t *pos, const float *freq, int n_freq, uint8_t *codes,
                                uint8_t *scales)
{
    dim3 grid((unsigned)n_row, (unsigned)((n_head + 7) / 8));
    index_queries<<<grid, 256, 0, s>>>(q, n_head, d, pos, freq, n_freq, codes, scales);
    return cudaGetLastError();
}
