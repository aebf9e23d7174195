/* Reading memory and nothing else: the rate that others are measured against. */
#include "backend/cuda/kernels/launch.h"

static __global__ void read_all(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t x = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = i + k * step < n ? __ldcs(p + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (x == 0x5EEDF00Du) /* so that the reads stay */
        *sink = x;
}

cudaError_t hx_cu_read(cudaStream_t s, const void *p, size_t bytes, int n_block, uint32_t *sink)
{
    read_all<<<n_block, 512, 0, s>>>((const uint4 *)p, bytes / 16, sink);
    return cudaGetLastError();
}

static __global__ void sample(uint64_t *out, int n)
{
    uint32_t sm;
    uint64_t ns;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    if (threadIdx.x == 0 && sm < (uint32_t)n) {
        out[2 * sm] = (uint64_t)clock64();
        out[2 * sm + 1] = ns;
    }
}

cudaError_t hx_cu_clock(cudaStream_t s, uint64_t *out, int n, int n_block)
{
    cudaError_t e = cudaMemsetAsync(out, 0, (size_t)n * 16, s);
    if (e != cudaSuccess)
        return e;
    sample<<<n_block, 32, 0, s>>>(out, n);
    return cudaGetLastError();
}

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __global__ void spin(uint64_t time)
{
    for (uint64_t end = nanoseconds() + time; nanoseconds() < end;)
        ;
}

cudaError_t hx_cu_spin(cudaStream_t s, uint64_t time)
{
    spin<<<1, 1, 0, s>>>(time);
    return cudaGetLastError();
}
