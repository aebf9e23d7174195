// Peer traffic kernels of the probe: content, gates, flags.
#include "kernels/kernels.h"

namespace
{

__device__ __forceinline__ uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__host__ __device__ __forceinline__ uint64_t content(uint64_t index, uint64_t seed)
{
    uint64_t x = (index + seed) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    return (x & 0x7f7f7f7f7f7f7f7full) | 0x0101010101010101ull;
}

__global__ void content_fill(uint8_t *p, size_t bytes, uint64_t seed)
{
    const size_t step = (size_t)gridDim.x * blockDim.x, words = bytes / 8;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = first; i < words; i += step)
        ((uint64_t *)p)[i] = content(i, seed);
    if (first < bytes % 8)
        p[words * 8 + first] = (uint8_t)(content(words, seed) >> (8 * first));
}

__global__ void copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t vecs = ((uintptr_t)to | (uintptr_t)from) % 16 == 0 ? bytes / 16 : 0;
    for (size_t i = first; i < vecs; i += step)
        ((uint4 *)to)[i] = __ldcv((const uint4 *)from + i);
    for (size_t i = vecs * 16 + first; i < bytes; i += step)
        to[i] = __ldcv((const unsigned char *)from + i);
}

__global__ void gate(const uint32_t *open, uint64_t timeout_ns)
{
    const uint64_t deadline = now_ns() + timeout_ns;
    while (load_acquire(open) == 0 && now_ns() < deadline)
        __nanosleep(200);
}

__global__ void delay(uint64_t ns)
{
    const uint64_t end = now_ns() + ns;
    while (now_ns() < end)
        __nanosleep(1000);
}

__global__ void ping_pong(uint32_t *own, uint32_t *peer, bool starter, uint32_t n, uint32_t *done,
                          uint64_t timeout_ns)
{
    const uint64_t deadline = now_ns() + timeout_ns;
    uint32_t turn = 1;
    for (; turn <= n; turn++) {
        if (starter)
            store_release(peer, turn);
        for (uint32_t polls = 1; load_acquire(own) < turn; polls++) {
            if ((polls & 255) == 0 && now_ns() > deadline) {
                *done = turn - 1;
                return;
            }
        }
        if (!starter)
            store_release(peer, turn);
    }
    *done = n;
}

__global__ void store_latency(volatile uint32_t *peer, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        *peer = i;
        __threadfence_system();
    }
}

} // namespace

extern "C" uint64_t hx_content_word(uint64_t index, uint64_t seed)
{
    return content(index, seed);
}

extern "C" uint8_t hx_content_byte(size_t offset, uint64_t seed)
{
    return (uint8_t)(content(offset / 8, seed) >> (8 * (offset % 8)));
}

extern "C" cudaError_t hx_k_content_fill(void *p, size_t bytes, uint64_t seed, cudaStream_t s)
{
    content_fill<<<256, 256, 0, s>>>((uint8_t *)p, bytes, seed);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_copy(void *to, const void *from, size_t bytes, cudaStream_t s)
{
    copy<<<64, 512, 0, s>>>((uint8_t *)to, (const uint8_t *)from, bytes);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_gate(const uint32_t *open, uint64_t timeout_ns, cudaStream_t s)
{
    gate<<<1, 1, 0, s>>>(open, timeout_ns);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_delay(uint64_t ns, cudaStream_t s)
{
    delay<<<1, 1, 0, s>>>(ns);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_ping_pong(uint32_t *own, uint32_t *peer, bool starter, uint32_t n,
                                      uint32_t *done, uint64_t timeout_ns, cudaStream_t s)
{
    ping_pong<<<1, 1, 0, s>>>(own, peer, starter, n, done, timeout_ns);
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_store_latency(uint32_t *peer, uint32_t n, cudaStream_t s)
{
    store_latency<<<1, 1, 0, s>>>(peer, n);
    return cudaGetLastError();
}
