// Rate kernels of the probe: float32 FMA, bf16 tensor product, tensor latency, memory read.
#include "kernels/kernels.h"

#include <cuda_bf16.h>

namespace
{

// --- FMA: 8 chains a thread hide the latency of one --------------------------------------------

constexpr int FMA_THREADS = 256, FMA_CHAINS = 8, FMA_UNROLL = 32;

__global__ void __launch_bounds__(FMA_THREADS) fma_chains(unsigned iterations, float *sink)
{
    float v[FMA_CHAINS];
    const float a = 0.999f, b = 1.0f + 1e-6f * threadIdx.x;
#pragma unroll
    for (int i = 0; i < FMA_CHAINS; i++)
        v[i] = (float)i;
    for (unsigned n = 0; n < iterations; n++) {
#pragma unroll
        for (int u = 0; u < FMA_UNROLL; u++) {
#pragma unroll
            for (int i = 0; i < FMA_CHAINS; i++)
                v[i] = fmaf(v[i], a, b);
        }
    }
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < FMA_CHAINS; i++)
        total += v[i];
    if (total == -1.0f) // never: keeps the chains alive
        *sink = total;
}

// --- bf16 matrix product -----------------------------------------------------------------------
// Tiles of 128 x 128 x 32, eight warps of 64 x 32, three stages of asynchronous copies. Rows in
// shared memory are padded to 80 bytes: eight rows of 16 bytes then fall into different banks.

constexpr int TILE = 128, TILE_K = 32, STRIDE = 40, STAGES = 3, GEMM_THREADS = 256;
constexpr int STAGE_HALVES = 2 * TILE * STRIDE;

__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__global__ void __launch_bounds__(GEMM_THREADS)
    gemm(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int n, int k)
{
    extern __shared__ __align__(128) __nv_bfloat16 shared[];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int wm = warp / 4 * 64, wn = warp % 4 * 32;
    const size_t row0 = (size_t)blockIdx.y * TILE, col0 = (size_t)blockIdx.x * TILE;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    float acc[4][4][4] = {};

    auto load = [&](int kt) {
        const uint32_t stage = base + (uint32_t)(kt % STAGES) * STAGE_HALVES * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int piece = tid + i * GEMM_THREADS; // 0..511 of a, 512..1023 of b
            const int row = piece / 4 % TILE, part = piece % 4;
            const bool of_a = piece < 512;
            const __nv_bfloat16 *from = (of_a ? a + (row0 + (size_t)row) * (size_t)k
                                              : b + (col0 + (size_t)row) * (size_t)k) +
                                        (size_t)kt * TILE_K + part * 8;
            copy16(stage + (uint32_t)(((of_a ? 0 : TILE) + row) * STRIDE + part * 8) * 2, from);
        }
    };
    const int n_kt = k / TILE_K;
    for (int s = 0; s < STAGES - 1; s++) {
        load(s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int kt = 0; kt < n_kt; kt++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (kt + STAGES - 1 < n_kt)
            load(kt + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t stage = base + (uint32_t)(kt % STAGES) * STAGE_HALVES * 2;
#pragma unroll
        for (int kk = 0; kk < TILE_K; kk += 16) {
            uint32_t fa[4][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                load_matrix(fa[i], stage + (uint32_t)((wm + i * 16 + lane % 16) * STRIDE + kk +
                                                      lane / 16 * 8) *
                                               2);
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_matrix(fb[j], stage + (uint32_t)((TILE + wn + j * 16 + lane % 16) * STRIDE +
                                                      kk + lane / 16 * 8) *
                                               2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma(acc[i][j], fa[i], fb[j / 2][j % 2], fb[j / 2][j % 2 + 2]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const size_t row = row0 + (size_t)(wm + i * 16 + lane / 4);
            const size_t col = col0 + (size_t)(wn + j * 8 + lane % 4 * 2);
            *(__nv_bfloat162 *)&c[row * (size_t)n + col] =
                __floats2bfloat162_rn(acc[i][j][0], acc[i][j][1]);
            *(__nv_bfloat162 *)&c[(row + 8) * (size_t)n + col] =
                __floats2bfloat162_rn(acc[i][j][2], acc[i][j][3]);
        }
    }
}

// --- latency of one tensor instruction ---------------------------------------------------------

constexpr int MMA_CHAIN = 512;

__global__ void mma_latency(float *cycles, float *sink)
{
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t a[4] = {threadIdx.x, 0, 0, 0};
    for (int i = 0; i < 16; i++) // warm
        mma(c, a, 0, 0);
    __syncwarp();
    const long long start = clock64();
#pragma unroll 16
    for (int i = 0; i < MMA_CHAIN; i++)
        mma(c, a, 0, 0);
    // Each waits for the one before; that the last may still run is one part in 512.
    const long long end = clock64();
    if (c[0] == -1.0f) // never: keeps the chain alive
        *sink = c[0];
    if (threadIdx.x == 0)
        *cycles = (float)(end - start) / MMA_CHAIN;
}

// --- streaming read ----------------------------------------------------------------------------

constexpr int READ_THREADS = 512, READ_AHEAD = 8;

__global__ void __launch_bounds__(READ_THREADS) read_all(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t x = 0;
    const size_t step = (size_t)gridDim.x * READ_THREADS;
    size_t i = (size_t)blockIdx.x * READ_THREADS + threadIdx.x;
    for (; i + (READ_AHEAD - 1) * step < n; i += READ_AHEAD * step) {
        uint4 v[READ_AHEAD];
#pragma unroll
        for (int u = 0; u < READ_AHEAD; u++)
            v[u] = __ldcs(p + i + u * step);
#pragma unroll
        for (int u = 0; u < READ_AHEAD; u++)
            x |= v[u].x & v[u].y & v[u].z & v[u].w;
    }
    for (; i < n; i += step) {
        const uint4 v = __ldcs(p + i);
        x |= v.x & v.y & v.z & v.w;
    }
    if (x == 0x9e3779b9u) // practically never: keeps the loads alive
        *sink = x;
}

__global__ void fill_bf16(__nv_bfloat16 *p, size_t n, uint64_t seed)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t z = (i + seed) * 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
        p[i] = __float2bfloat16_rn((float)(z >> 40) * (1.0f / 8388608.0f) - 1.0f);
    }
}

} // namespace

extern "C" cudaError_t hx_k_fma(int n_blocks, unsigned iterations, float *sink, double *flop,
                                cudaStream_t s)
{
    fma_chains<<<n_blocks, FMA_THREADS, 0, s>>>(iterations, sink);
    *flop = 2.0 * FMA_CHAINS * FMA_UNROLL * FMA_THREADS * (double)n_blocks * iterations;
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_gemm(const void *a, const void *b, void *c, int n, int k,
                                 cudaStream_t s)
{
    if (n <= 0 || k <= 0 || n % TILE != 0 || k % TILE != 0)
        return cudaErrorInvalidValue;
    const int bytes = STAGES * STAGE_HALVES * 2;
    const cudaError_t e =
        cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    gemm<<<dim3((unsigned)(n / TILE), (unsigned)(n / TILE)), GEMM_THREADS, bytes, s>>>(
        (const __nv_bfloat16 *)a, (const __nv_bfloat16 *)b, (__nv_bfloat16 *)c, n, k);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_mma_latency(float *cycles, float *sink, cudaStream_t s)
{
    mma_latency<<<1, 32, 0, s>>>(cycles, sink);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_read(const void *p, size_t bytes, int n_blocks, uint32_t *sink,
                                 cudaStream_t s)
{
    read_all<<<n_blocks, READ_THREADS, 0, s>>>((const uint4 *)p, bytes / 16, sink);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_fill_bf16(void *p, size_t n, uint64_t seed, cudaStream_t s)
{
    fill_bf16<<<1024, 256, 0, s>>>((__nv_bfloat16 *)p, n, seed);
    return cudaGetLastError();
}
