/* Engram: rows to values, gated addition to the streams. */
#include "backend/cuda/kernels/numeric.cuh"

static __global__ void engram_rows(const uint8_t *codes, const uint8_t *scales, int64_t n,
                                   uint16_t *v)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        v[i] = to_bf16(e4m3(codes[i]) * e8m0(scales[i / 32]));
}

cudaError_t hx_cu_engram_rows(cudaStream_t s, const uint8_t *codes, const uint8_t *scales,
                              int64_t n, uint16_t *v)
{
    engram_rows<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(codes, scales, n, v);
    return cudaGetLastError();
}

static __global__ void engram_fetch(const volatile uint32_t *ready, const uint8_t *codes,
                                    const uint8_t *scales, int64_t n, uint16_t *v)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    if (threadIdx.x == 0) {
        while (*ready == 0)
            ;
        __threadfence_system();
    }
    __syncthreads();
    if (i >= n)
        return;
    /* Past the caches: the host wrote while the card may have read what was there before. */
    uint4 u = __ldcv((const uint4 *)(codes + i));
    float s = e8m0(__ldcv(scales + i / 32));
    const uint32_t word[4] = {u.x, u.y, u.z, u.w};
    for (int k = 0; k < 16; k++)
        v[i + k] = to_bf16(e4m3((uint8_t)(word[k / 4] >> k % 4 * 8)) * s);
}

cudaError_t hx_cu_engram_fetch(cudaStream_t s, const uint32_t *ready, const uint8_t *codes,
                               const uint8_t *scales, int64_t n, uint16_t *v)
{
    engram_fetch<<<(unsigned)((n + 2047) / 2048), 128, 0, s>>>(ready, codes, scales, n, v);
    return cudaGetLastError();
}

/* One block a row and stream. */
static __global__ void engram_gate(struct hx_cuda_gate a)
{
    __shared__ double part[32];
    int64_t t = blockIdx.x, st = blockIdx.y, n = a.n_stream, d = a.d;
    const uint16_t *z = a.z + t * (n + 1) * d, *value = z + n * d, *key = z + st * d;
    uint16_t *stream = a.streams + (t * n + st) * d;
    double sum = 0, xx = 0, kk = 0;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        float x = bf16_value(stream[i]), k = bf16_value(key[i]);
        float w = dense_value(&a.q_weight, st * d + i) * dense_value(&a.k_weight, st * d + i);
        sum += (double)(x * w * k);
        xx += (double)x * (double)x;
        kk += (double)k * (double)k;
    }
    sum = block_sum(sum, part);
    xx = block_sum(xx, part);
    kk = block_sum(kk, part);
    float rstd =
        rsqrt32((float)(xx / (double)d) + a.eps) * rsqrt32((float)(kk / (double)d) + a.eps);
    float dot = (float)sum * rstd * (float)(1.0 / sqrt((double)d));
    float gate = sigmoid32(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
    if (a.dead && a.dead[t])
        gate = 0;
    if (threadIdx.x == 0) {
        a.dot[t * n + st] = dot;
        a.gate[t * n + st] = gate;
    }
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x)
        stream[i] = to_bf16(bf16_value(stream[i]) + gate * bf16_value(value[i]));
}

cudaError_t hx_cu_engram_gate(cudaStream_t s, const struct hx_cuda_gate *a)
{
    engram_gate<<<dim3(a->n_row, a->n_stream), 1024, 0, s>>>(*a);
    return cudaGetLastError();
}
