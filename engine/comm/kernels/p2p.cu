// Push all-reduce over peer mappings or pinned host memory; contract in comm/p2p_kernels.h.
//
// A block owns the same chunk of every slice in both phases, so blocks never wait for each other
// inside a rank. Areas alternate between two parities by epoch: a rank can enter epoch e+2 only
// after every peer has sent its flags of epoch e+1, which a peer does after its epoch e is
// complete, so nobody overwrites what is still being read.
#include "comm/p2p_kernels.h"

#include <cuda_bf16.h>

namespace
{

constexpr int THREADS = 512;

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

// True once the flag has reached the epoch, false at the deadline. The clock is read seldom: it
// costs more than the poll.
__device__ bool wait_flag(const uint32_t *flag, uint32_t epoch, uint64_t deadline)
{
    for (uint32_t polls = 1;; polls++) {
        if ((int32_t)(load_acquire(flag) - epoch) >= 0)
            return true;
        if ((polls & 255) == 0 && now_ns() > deadline)
            return false;
    }
}

template <int TYPE> struct sum;

template <> struct sum<HX_P2P_BF16> {
    float v[8];
    __device__ void start(const uint4 &x)
    {
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
    __device__ void add(const uint4 &x)
    {
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
        for (int i = 0; i < 4; i++) {
            v[2 * i] += __uint_as_float(w[i] << 16);
            v[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000u);
        }
    }
    __device__ uint4 result() const
    {
        uint32_t w[4];
        for (int i = 0; i < 4; i++)
            w[i] = (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(v[2 * i])) |
                   (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(v[2 * i + 1])) << 16;
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
};

template <> struct sum<HX_P2P_INT32> {
    uint4 v;
    __device__ void start(const uint4 &x)
    {
        v = x;
    }
    __device__ void add(const uint4 &x)
    {
        v.x += x.x;
        v.y += x.y;
        v.z += x.z;
        v.w += x.w;
    }
    __device__ uint4 result() const
    {
        return v;
    }
};

// Part i of n of the range [0, len).
__device__ __forceinline__ uint32_t cut(uint32_t len, int i, int n)
{
    return (uint32_t)((uint64_t)len * (uint32_t)i / (uint32_t)n);
}

template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    all_reduce(const hx_p2p_rank r, uint4 *x, uint32_t n_vec, uint64_t timeout_ns)
{
    __shared__ uint32_t s_epoch;
    __shared__ int s_failed;
    const int n = r.n_ranks, me = r.rank, b = blockIdx.x, n_blocks = gridDim.x;
    const uint64_t deadline = now_ns() + timeout_ns;

    if (threadIdx.x == 0) {
        s_epoch = *(volatile uint32_t *)&r.state[HX_P2P_EPOCH] + 1;
        s_failed = *(volatile uint32_t *)&r.state[HX_P2P_TIMED_OUT] != 0;
    }
    __syncthreads();
    if (s_failed)
        return;
    // Nobody may set s_failed for this launch before all have read it above.
    __syncthreads();
    const uint32_t epoch = s_epoch;
    const size_t parity = (size_t)(epoch & 1) * 2 * r.area_bytes;
    const uint32_t slice_cap = (n_vec + (uint32_t)n - 1) / (uint32_t)n;

    // Phase 1: my partial of slice p goes to rank p; one receiver at a time, rotated by rank, so
    // that every card has one incoming and one outgoing stream.
    for (int k = 1; k < n; k++) {
        const int p = (me + k) % n;
        const uint32_t first = cut(n_vec, p, n), len = cut(n_vec, p + 1, n) - first;
        uint4 *to = (uint4 *)(r.area[p] + parity) + (size_t)me * slice_cap;
        for (uint32_t i = cut(len, b, n_blocks) + threadIdx.x; i < cut(len, b + 1, n_blocks);
             i += THREADS)
            to[i] = x[first + i];
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x < n && (int)threadIdx.x != me) {
        store_release(r.flags[threadIdx.x] + (size_t)me * HX_P2P_MAX_BLOCKS + b, epoch);
        if (!wait_flag(r.flags[me] + (size_t)threadIdx.x * HX_P2P_MAX_BLOCKS + b, epoch, deadline))
            s_failed = 1;
    }
    __syncthreads();

    // Phase 2: add in rank order, keep the slice, push it to everybody.
    const uint32_t first = cut(n_vec, me, n), len = cut(n_vec, me + 1, n) - first;
    if (!s_failed) {
        const uint4 *from = (const uint4 *)(r.area[me] + parity);
        for (uint32_t i = cut(len, b, n_blocks) + threadIdx.x; i < cut(len, b + 1, n_blocks);
             i += THREADS) {
            sum<TYPE> acc;
            acc.start(me == 0 ? x[first + i] : __ldcv(from + i));
            for (int s = 1; s < n; s++)
                acc.add(s == me ? x[first + i] : __ldcv(from + (size_t)s * slice_cap + i));
            const uint4 v = acc.result();
            x[first + i] = v;
            for (int k = 1; k < n; k++)
                ((uint4 *)(r.area[(me + k) % n] + parity + r.area_bytes))[first + i] = v;
        }
        __threadfence_system();
    }
    const bool pushed = !s_failed;
    __syncthreads();
    if (pushed && threadIdx.x < n && (int)threadIdx.x != me) {
        const size_t phase = (size_t)n * HX_P2P_MAX_BLOCKS;
        store_release(r.flags[threadIdx.x] + phase + (size_t)me * HX_P2P_MAX_BLOCKS + b, epoch);
        if (!wait_flag(r.flags[me] + phase + (size_t)threadIdx.x * HX_P2P_MAX_BLOCKS + b, epoch,
                       deadline))
            s_failed = 1;
    }
    __syncthreads();
    if (!s_failed) {
        const uint4 *from = (const uint4 *)(r.area[me] + parity + r.area_bytes);
        for (int p = 0; p < n; p++) {
            if (p == me)
                continue;
            const uint32_t at = cut(n_vec, p, n), plen = cut(n_vec, p + 1, n) - at;
            for (uint32_t i = cut(plen, b, n_blocks) + threadIdx.x; i < cut(plen, b + 1, n_blocks);
                 i += THREADS)
                x[at + i] = __ldcv(from + at + i);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (s_failed)
            *(volatile uint32_t *)&r.state[HX_P2P_TIMED_OUT] = 1;
        __threadfence();
        if (atomicAdd(&r.state[HX_P2P_FINISHED], 1) == (uint32_t)n_blocks - 1) {
            *(volatile uint32_t *)&r.state[HX_P2P_FINISHED] = 0;
            *(volatile uint32_t *)&r.state[HX_P2P_EPOCH] = epoch;
        }
    }
}

} // namespace

extern "C" size_t hx_p2p_area_bytes(size_t message_bytes)
{
    return (message_bytes + 16 * HX_P2P_MAX_RANKS + 127) & ~(size_t)127;
}

extern "C" cudaError_t hx_p2p_all_reduce(const struct hx_p2p_rank *r, void *x, size_t bytes,
                                         enum hx_p2p_type type, uint64_t timeout_ns,
                                         cudaStream_t stream)
{
    if (r->n_ranks < 2 || r->n_ranks > HX_P2P_MAX_RANKS || r->rank < 0 || r->rank >= r->n_ranks ||
        bytes == 0 || bytes % 16 != 0 || hx_p2p_area_bytes(bytes) > r->area_bytes)
        return cudaErrorInvalidValue;
    const uint32_t n_vec = (uint32_t)(bytes / 16);
    uint32_t n_blocks = (n_vec / (uint32_t)r->n_ranks + THREADS - 1) / THREADS;
    n_blocks = n_blocks < 1 ? 1 : n_blocks > HX_P2P_MAX_BLOCKS ? HX_P2P_MAX_BLOCKS : n_blocks;
    if (type == HX_P2P_BF16)
        all_reduce<HX_P2P_BF16>
            <<<n_blocks, THREADS, 0, stream>>>(*r, (uint4 *)x, n_vec, timeout_ns);
    else
        all_reduce<HX_P2P_INT32>
            <<<n_blocks, THREADS, 0, stream>>>(*r, (uint4 *)x, n_vec, timeout_ns);
    return cudaGetLastError();
}
