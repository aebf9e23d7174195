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
// Tiles of 128 x 256 x 32, eight warps of 64 x 64, four stages of asynchronous copies, fragments
// loaded one step ahead. Rows in shared memory are padded to 80 bytes: eight rows of 16 bytes then
// fall into different banks.

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 32, STRIDE = 40, STAGES = 4;
constexpr int GEMM_THREADS = 256, GROUP_M = 8;
constexpr int STAGE_BYTES = (TILE_M + TILE_N) * STRIDE * 2;
constexpr int PIECES = (TILE_M + TILE_N) * TILE_K / 8; // of 16 bytes

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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct fragments {
    uint32_t a[4][4], b[4][4];
};

// at: the lane's address in the warp's first rows of a and b.
__device__ __forceinline__ void load_fragments(fragments &f, uint32_t at_a, uint32_t at_b)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_matrix(f.a[i], at_a + i * 16 * STRIDE * 2);
#pragma unroll
    for (int j = 0; j < 4; j++)
        load_matrix(f.b[j], at_b + j * 16 * STRIDE * 2);
}

__device__ __forceinline__ void multiply(float (&acc)[4][8][4], const fragments &f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma(acc[i][j], f.a[i], f.b[j / 2][j % 2], f.b[j / 2][j % 2 + 2]);
    }
}

__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int n, int k)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int wm = warp / 4 * 64, wn = warp % 4 * 64;
    // Blocks in groups of eight rows, so that blocks that run together share more of a and b.
    const int n_cols = n / TILE_N, group = blockIdx.x / (GROUP_M * n_cols);
    const int n_rows = min(n / TILE_M - group * GROUP_M, GROUP_M);
    const int in_group = blockIdx.x % (GROUP_M * n_cols);
    const size_t row0 = (size_t)(group * GROUP_M + in_group % n_rows) * TILE_M;
    const size_t col0 = (size_t)(in_group / n_rows) * TILE_N;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    float acc[4][8][4] = {};
    fragments f[2];

    // Each thread copies the same part of rows that lie 64 apart: two of a, four of b.
    const int part = tid % 4, row = tid / 4;
    const __nv_bfloat16 *from_a = a + (row0 + (size_t)row) * (size_t)k + part * 8;
    const __nv_bfloat16 *from_b = b + (col0 + (size_t)row) * (size_t)k + part * 8;
    const uint32_t to = base + (uint32_t)(row * STRIDE + part * 8) * 2;
    auto load = [&](int kt) {
        const uint32_t stage = to + (uint32_t)(kt % STAGES * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < PIECES / GEMM_THREADS; i++) {
            const __nv_bfloat16 *from = i < 2 ? from_a + (size_t)i * 64 * (size_t)k
                                              : from_b + (size_t)(i - 2) * 64 * (size_t)k;
            copy16(stage + i * 64 * STRIDE * 2, from + (size_t)kt * TILE_K);
        }
    };
    const uint32_t lane_at = (uint32_t)(lane % 16 * STRIDE + lane / 16 * 8) * 2;
    const uint32_t at_a = base + (uint32_t)(wm * STRIDE * 2) + lane_at;
    const uint32_t at_b = base + (uint32_t)((TILE_M + wn) * STRIDE * 2) + lane_at;

    const int n_kt = k / TILE_K;
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_kt)
            load(s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    load_fragments(f[0], at_a, at_b);
    for (int kt = 0; kt < n_kt; kt++) {
        const uint32_t stage = (uint32_t)(kt % STAGES * STAGE_BYTES);
        const uint32_t next = (uint32_t)((kt + 1) % STAGES * STAGE_BYTES);
        load_fragments(f[1], at_a + stage + 32, at_b + stage + 32);
        // Into the stage that all warps left before the last barrier.
        if (kt + STAGES - 1 < n_kt)
            load(kt + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply(acc, f[0]);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        load_fragments(f[0], at_a + next, at_b + next);
        multiply(acc, f[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const size_t r = row0 + (size_t)(wm + i * 16 + lane / 4);
            const size_t col = col0 + (size_t)(wn + j * 8 + lane % 4 * 2);
            *(__nv_bfloat162 *)&c[r * (size_t)n + col] =
                __floats2bfloat162_rn(acc[i][j][0], acc[i][j][1]);
            *(__nv_bfloat162 *)&c[(r + 8) * (size_t)n + col] =
                __floats2bfloat162_rn(acc[i][j][2], acc[i][j][3]);
        }
    }
}

// --- latency of one tensor instruction ---------------------------------------------------------

constexpr int MMA_CHAIN = 512;

// As mma(), but it stays where it is: between two readings of the clock.
__device__ __forceinline__ void mma_in_place(float (&c)[4], const uint32_t (&a)[4])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(0), "r"(0));
}

__global__ void mma_latency(float *cycles, float *sink)
{
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t a[4] = {threadIdx.x, 0, 0, 0};
    for (int i = 0; i < 16; i++) // warm
        mma_in_place(c, a);
    __syncwarp();
    const long long start = clock64();
#pragma unroll 16
    for (int i = 0; i < MMA_CHAIN; i++)
        mma_in_place(c, a);
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
    if (n <= 0 || k <= 0 || n % TILE_N != 0 || k % TILE_K != 0)
        return cudaErrorInvalidValue;
    const int bytes = STAGES * STAGE_BYTES;
    const cudaError_t e =
        cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    gemm<<<(unsigned)(n / TILE_M * (n / TILE_N)), GEMM_THREADS, bytes, s>>>(
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
