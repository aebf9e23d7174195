/* The router in one launch: logits as double sums of exact products, scores, the k best.
 *
 * A block has a few experts and eight rows, its warps share the inputs. The last block of eight
 * rows to finish chooses, a warp a row. */
#include "backend/cuda/kernels/numeric.cuh"

#define EXPERTS 3   /* of a block */
#define ROWS    8   /* of a block */
#define WARPS   8   /* of a block */
#define CHUNK   128 /* inputs of a warp at a time, four a lane */
#define AHEAD   5   /* chunks of weights requested together */
#define MOST    512 /* experts */

struct router {
    struct hx_cuda_route a;
    int d;
    const uint16_t *gate, *z;
    uint32_t *count; /* [groups of rows] */
};

/* Sums of this warp's chunks for all its experts and rows. */
static __device__ __forceinline__ void widen(uint2 u, double to[4])
{
    to[0] = __uint_as_float(u.x << 16), to[1] = __uint_as_float(u.x & 0xFFFF0000u);
    to[2] = __uint_as_float(u.y << 16), to[3] = __uint_as_float(u.y & 0xFFFF0000u);
}

static __device__ __forceinline__ void dots(const struct router &p, int e0, int r0, int n,
                                            double sum[EXPERTS][ROWS])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = WARPS * CHUNK;
    const uint16_t *z = p.z + (int64_t)r0 * p.d;
    for (int c0 = warp * CHUNK + 4 * lane; c0 < p.d; c0 += AHEAD * step) {
        /* Weights come from far: several chunks of them on their way. */
        uint2 w[AHEAD][EXPERTS];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
#pragma unroll
            for (int e = 0; e < EXPERTS; e++) {
                int at = min(e0 + e, p.a.n_expert - 1);
                if (c0 + k * step < p.d)
                    w[k][e] = __ldg((const uint2 *)(p.gate + (int64_t)at * p.d + c0 + k * step));
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int c = c0 + k * step;
            if (c >= p.d)
                break;
            uint2 in[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                in[r] = *(const uint2 *)(z + (int64_t)min(r, n - 1) * p.d + c);
            double a[EXPERTS][4];
#pragma unroll
            for (int e = 0; e < EXPERTS; e++)
                widen(w[k][e], a[e]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= n)
                    break;
                double x[4];
                widen(in[r], x);
#pragma unroll
                for (int e = 0; e < EXPERTS; e++) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[e][r] = __fma_rn(a[e][i], x[i], sum[e][r]);
                }
            }
        }
    }
}

/* The k best of row t by a warp: higher biased score, then lower index. */
static __device__ void choose(const struct router &p, int64_t t)
{
    const struct hx_cuda_route &a = p.a;
    int lane = threadIdx.x % 32;
    const float *score = a.score + t * a.n_expert, *bias = a.dead && a.dead[t] ? a.bias_vl : a.bias;
    uint32_t key[MOST / 32];
    bool nan = false;
#pragma unroll
    for (int i = 0; i < MOST / 32; i++) {
        int e = lane + 32 * i;
        float b = e < a.n_expert ? __ldcg(&score[e]) + bias[e] : -INFINITY;
        nan = nan || isnan(b);
        key[i] = order(b);
    }
    int mine = INT32_MAX; /* lane i keeps the choice of round i */
    bool few = false;
    for (int i = 0; i < a.k; i++) {
        uint32_t best = 0;
        int at = INT32_MAX;
#pragma unroll
        for (int j = 0; j < MOST / 32; j++) {
            if (key[j] > best)
                best = key[j], at = lane + 32 * j;
        }
        uint32_t top = __reduce_max_sync(0xFFFFFFFFu, best);
        at = (int)__reduce_min_sync(0xFFFFFFFFu, best == top ? (uint32_t)at : 0x7FFFFFFFu);
        few = few || top <= ORDER_NEVER;
        at = top <= ORDER_NEVER ? i : at;
        mine = lane == i ? at : mine;
#pragma unroll
        for (int j = 0; j < MOST / 32; j++)
            key[j] = at == lane + 32 * j ? 0 : key[j];
    }
    if (__any_sync(0xFFFFFFFFu, nan || few) && lane == 0)
        report(a.fault, HX_CUDA_NAN_ROUTER);
    /* Ascending: a lane's place is the number of smaller choices. */
    int place = 0;
    for (int i = 0; i < a.k; i++)
        place += __shfl_sync(0xFFFFFFFFu, mine, i) < mine;
    float s = lane < a.k ? __ldcg(&score[mine]) : 0;
    double sum = 0;
    for (int i = 0; i < a.k; i++) {
        uint32_t from = __ballot_sync(0xFFFFFFFFu, lane < a.k && place == i);
        sum += (double)__shfl_sync(0xFFFFFFFFu, s, from ? __ffs(from) - 1 : 0);
    }
    if (lane >= a.k)
        return;
    if (a.norm && a.k > 1)
        s = s / ((float)sum + 1e-20f);
    a.sel[t * a.k + place] = mine;
    a.weight[t * a.k + place] = s * a.route_scale;
}

static __global__ void __launch_bounds__(WARPS * 32) router_kernel(struct router p)
{
    __shared__ double part[WARPS][EXPERTS][ROWS];
    __shared__ bool last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e0 = blockIdx.x * EXPERTS;
    int r0 = blockIdx.y * ROWS, n = min(ROWS, p.a.n_row - r0);
    double sum[EXPERTS][ROWS];
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sum[e][r] = 0;
    }
    dots(p, e0, r0, n, sum);
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= n)
                break;
            double s = warp_sum(sum[e][r]);
            if (lane == 0)
                part[warp][e][r] = s;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < EXPERTS * ROWS; i += blockDim.x) {
        int e = i / ROWS, r = i % ROWS;
        if (r >= n || e0 + e >= p.a.n_expert)
            continue;
        double s = 0;
        for (int w = 0; w < WARPS; w++)
            s += part[w][e][r];
        float z = (float)s / p.a.temp;
        float sp = (double)z > 20.0 ? z : (float)log1p(exp((double)z));
        p.a.score[(int64_t)(r0 + r) * p.a.n_expert + e0 + e] = sqrtf(sp);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&p.count[blockIdx.y], 1u) == gridDim.x - 1;
        if (last)
            p.count[blockIdx.y] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last && warp < n)
        choose(p, r0 + warp);
}

bool hx_cu_router_takes(const struct hx_cuda_weight *gate, int n_expert, int k)
{
    return gate->format == HX_FORMAT_DENSE_ID && gate->is_bf16 && gate->n_in % CHUNK == 0 &&
           n_expert <= MOST && k <= 32 && k <= n_expert;
}

cudaError_t hx_cu_router(cudaStream_t s, const struct hx_cuda_route *a,
                         const struct hx_cuda_weight *gate, const uint16_t *z, uint32_t *count)
{
    struct router p = {*a, (int)gate->n_in, (const uint16_t *)gate->data, z, count};
    unsigned groups = (unsigned)((a->n_row + ROWS - 1) / ROWS);
    if (groups > HX_CUDA_COUNTERS)
        return cudaErrorInvalidValue;
    router_kernel<<<dim3((unsigned)((a->n_expert + EXPERTS - 1) / EXPERTS), groups), WARPS * 32, 0,
                    s>>>(p);
    return cudaGetLastError();
}
