/* The router in one launch: logits as double sums of exact products, scores, the k best.
 *
 * A block has a few experts and eight rows, its warps share the inputs. The last block of eight
 * rows to finish chooses, a warp a row. */
#include "backend/cuda/kernels/site_mix.cuh"

#define EXPERTS 3   /* of a block */
#define ROWS    8   /* of a block */
#define WARPS   8   /* of a block */
#define CHUNK   128 /* inputs of a warp at a time, four a lane */
#define AHEAD   5   /* chunks requested together */
#define MOST    512 /* experts */

struct router {
    struct hx_cuda_route a;
    struct hx_cuda_mix mix;
    int d, n_block;
    const uint16_t *gate, *z;
    uint32_t *count; /* [groups of rows] */
};

static __device__ __forceinline__ void widen(uint2 u, double to[4])
{
    to[0] = __uint_as_float(u.x << 16), to[1] = __uint_as_float(u.x & 0xFFFF0000u);
    to[2] = __uint_as_float(u.y << 16), to[3] = __uint_as_float(u.y & 0xFFFF0000u);
}

/* What a thread reads, on its way together; each thread's own. */
template <int N> struct inputs {
    uint2 gate[AHEAD][EXPERTS][32 * WARPS], z[AHEAD][N][32 * WARPS];
};

/* 8 bytes on their way, or zero. */
static __device__ __forceinline__ void request(uint2 *to, const uint16_t *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 8 : 0)
                 : "memory");
}

/* Sums of this warp's chunks for all its experts and N rows; those behind row n are its. The loops
 * over chunks stay loops: this code runs once, and fetching it would be what takes the time. */
template <int N>
static __device__ __forceinline__ void dots(const struct router &p, struct inputs<N> &in, int e0,
                                            int r0, int n, double sum[EXPERTS * N])
{
    const int id = threadIdx.x, step = WARPS * CHUNK, first = id / 32 * CHUNK + 4 * (id % 32);
    const uint16_t *z = p.z + (int64_t)r0 * p.d;
    for (int c0 = first; c0 < p.d; c0 += AHEAD * step) {
#pragma unroll 1
        for (int k = 0, c = c0; k < AHEAD; k++, c += step) {
            const bool there = c < p.d;
            const int at = there ? c : c0;
#pragma unroll
            for (int e = 0; e < EXPERTS; e++)
                request(&in.gate[k][e][id],
                        p.gate + (int64_t)min(e0 + e, p.a.n_expert - 1) * p.d + at, there);
#pragma unroll
            for (int r = 0; r < N; r++)
                request(&in.z[k][r][id], z + (int64_t)min(r, n - 1) * p.d + at, there);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
#pragma unroll 1
        for (int k = 0; k < AHEAD; k++) {
            /* One more group, empty, for each that is waited for. */
            asm volatile("cp.async.commit_group;\n cp.async.wait_group %0;" ::"n"(AHEAD)
                         : "memory");
            double a[EXPERTS][4];
#pragma unroll
            for (int e = 0; e < EXPERTS; e++)
                widen(in.gate[k][e][id], a[e]);
#pragma unroll
            for (int r = 0; r < N; r++) {
                double x[4];
                widen(in.z[k][r][id], x);
#pragma unroll
                for (int e = 0; e < EXPERTS; e++) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[e * N + r] = __fma_rn(a[e][i], x[i], sum[e * N + r]);
                }
            }
        }
    }
}

/* The k best of row t by a warp: higher biased score, then lower index. KEYS: experts of a lane. */
template <int KEYS> static __device__ __forceinline__ void choose(const struct router &p, int64_t t)
{
    __shared__ float ascending[WARPS][32];
    const struct hx_cuda_route &a = p.a;
    int lane = threadIdx.x % 32;
    const float *score = a.score + t * a.n_expert, *bias = a.dead && a.dead[t] ? a.bias_vl : a.bias;
    uint32_t key[KEYS];
    bool nan = false;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        int e = lane + 32 * i;
        float b = e < a.n_expert ? __ldcg(&score[e]) + bias[e] : -INFINITY;
        nan = nan || isnan(b);
        key[i] = order(b);
    }
    int mine = INT32_MAX; /* lane i keeps the choice of round i */
    bool few = false;
#pragma unroll 1
    for (int i = 0; i < a.k; i++) {
        uint32_t best = 0, at = 0x7FFFFFFFu;
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            best = max(best, key[j]);
        uint32_t top = __reduce_max_sync(0xFFFFFFFFu, best);
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            at = min(at, key[j] == top ? (uint32_t)(lane + 32 * j) : 0x7FFFFFFFu);
        at = __reduce_min_sync(0xFFFFFFFFu, at);
        few = few || top <= ORDER_NEVER;
        at = top <= ORDER_NEVER ? (uint32_t)i : at;
        mine = lane == i ? (int)at : mine;
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            key[j] = at == (uint32_t)(lane + 32 * j) ? 0 : key[j];
    }
    float s = lane < a.k ? __ldcg(&score[mine]) : 0;
    if (__any_sync(0xFFFFFFFFu, nan || few) && lane == 0)
        report(a.fault, HX_CUDA_NAN_ROUTER);
    /* Ascending: a lane's place is the number of smaller choices. */
    int place = 0;
#pragma unroll 1
    for (int i = 0; i < a.k; i++)
        place += __shfl_sync(0xFFFFFFFFu, mine, i) < mine;
    float *all = ascending[threadIdx.x / 32];
    if (lane < a.k)
        all[place] = s;
    __syncwarp();
    double sum = 0;
#pragma unroll 1
    for (int i = 0; i < a.k; i++)
        sum += (double)all[i];
    if (lane >= a.k)
        return;
    if (a.norm && a.k > 1)
        s = s / ((float)sum + 1e-20f);
    a.sel[t * a.k + place] = mine;
    a.weight[t * a.k + place] = s * a.route_scale;
}

/* Blocks (three experts, eight rows); behind the experts' a block for each row of p.mix. N: rows at
 * most of a block, a row's sums are the same with any. */
template <int N>
static __global__ void __launch_bounds__(WARPS * 32) router_kernel(const struct router p)
{
    if ((int)blockIdx.x >= p.n_block) {
        if (blockIdx.y == 0)
            mix_row(p.mix, blockIdx.x - p.n_block);
        return;
    }
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ double part[WARPS][EXPERTS * N];
    int warp = threadIdx.x / 32, e0 = blockIdx.x * EXPERTS, which;
    int r0 = blockIdx.y * ROWS, n = min(ROWS, p.a.n_row - r0);
    double sum[EXPERTS * N];
#pragma unroll
    for (int i = 0; i < EXPERTS * N; i++)
        sum[i] = 0;
    dots<N>(p, *(struct inputs<N> *)shared, e0, r0, n, sum);
    warp_sums<EXPERTS * N>(sum, &which);
    if (which < EXPERTS * N)
        part[warp][which] = sum[0];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < EXPERTS * N; i += blockDim.x) {
        int e = i / N, r = i % N;
        if (r >= n || e0 + e >= p.a.n_expert)
            continue;
        double s = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            s += part[w][i];
        float z = (float)s / p.a.temp;
        float sp = (double)z > 20.0 ? z : (float)log1p(exp((double)z));
        p.a.score[(int64_t)(r0 + r) * p.a.n_expert + e0 + e] = sqrtf(sp);
    }
    if (!last_block(&p.count[blockIdx.y], (uint32_t)p.n_block) || warp >= n)
        return;
    if (p.a.n_expert <= 384)
        choose<12>(p, r0 + warp);
    else
        choose<MOST / 32>(p, r0 + warp);
}

template <int N> static cudaError_t start(cudaStream_t s, const struct router &p, dim3 grid)
{
    const size_t bytes = sizeof(struct inputs<N>);
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(router_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    router_kernel<N><<<grid, WARPS * 32, bytes, s>>>(p);
    return cudaGetLastError();
}

bool hx_cu_router_takes(const struct hx_cuda_weight *gate, int n_expert, int k)
{
    return gate->format == HX_FORMAT_DENSE_ID && gate->is_bf16 && gate->n_in % CHUNK == 0 &&
           n_expert <= MOST && k <= 32 && k <= n_expert;
}

cudaError_t hx_cu_router(cudaStream_t s, const struct hx_cuda_route *a,
                         const struct hx_cuda_weight *gate, const uint16_t *z, uint32_t *count,
                         const struct hx_cuda_mix *mix)
{
    struct router p = {};
    p.a = *a;
    if (mix)
        p.mix = *mix;
    p.d = (int)gate->n_in;
    p.n_block = (a->n_expert + EXPERTS - 1) / EXPERTS;
    p.gate = (const uint16_t *)gate->data;
    p.z = z;
    p.count = count;
    unsigned groups = (unsigned)((a->n_row + ROWS - 1) / ROWS);
    if (groups > HX_CUDA_COUNTERS)
        return cudaErrorInvalidValue;
    dim3 grid((unsigned)(p.n_block + p.mix.n_row), groups);
    return a->n_row > 6   ? start<8>(s, p, grid)
           : a->n_row > 4 ? start<6>(s, p, grid)
           : a->n_row > 2 ? start<4>(s, p, grid)
           : a->n_row > 1 ? start<2>(s, p, grid)
                          : start<1>(s, p, grid);
}
