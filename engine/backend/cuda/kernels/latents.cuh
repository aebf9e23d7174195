/* Queries and window rows of one token, by a block of any shape: behind the product that makes them
 * or in a launch of their own. Each as the plain kernels do it, to the bit. */
#ifndef HX_BACKEND_CUDA_LATENTS_CUH
#define HX_BACKEND_CUDA_LATENTS_CUH

#include "backend/cuda/kernels/grid.cuh"

static __device__ __forceinline__ float2 rotated(float a, float b, float2 t)
{
    return make_float2(a * t.x - b * t.y, a * t.y + b * t.x);
}

static __device__ __forceinline__ int latent_thread()
{
    return (int)(threadIdx.y * blockDim.x + threadIdx.x);
}

/* block_sum for a block of (32, n) or (n) threads. */
static __device__ __forceinline__ double latent_sum(double v, double *part)
{
    int id = latent_thread(), n_warp = (int)(blockDim.x * blockDim.y) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (id % 32 == 0)
        part[id / 32] = v;
    __syncthreads();
    return warp_sum(id % 32 < n_warp ? part[id % 32] : 0);
}

#define HELD 4 /* values of a thread that wait in registers */

/* A row normed: v, w hold what it read of x and of the weights; the rest is read again. to(i, h)
 * takes the results. */
template <class TO>
static __device__ __forceinline__ void norm_row(const struct hx_cuda_weight &w, const uint16_t *x,
                                                float eps, TO to)
{
    __shared__ double part[32];
    int k = (int)w.n_in, n_thread = (int)(blockDim.x * blockDim.y), id = latent_thread();
    float v[HELD], f[HELD];
    double sum = 0;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int i = j * n_thread + id;
        v[j] = i < k ? bf16_value(__ldcg(x + i)) : 0;
        f[j] = i < k ? dense_value(&w, i) : 0;
    }
#pragma unroll
    for (int j = 0; j < HELD; j++)
        sum += (double)v[j] * (double)v[j];
#pragma unroll 1
    for (int i = HELD * n_thread + id; i < k; i += n_thread) {
        double u = bf16_value(__ldcg(x + i));
        sum += u * u;
    }
    float scale = rsqrt32((float)(latent_sum(sum, part) / (double)k) + eps);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int i = j * n_thread + id;
        if (i < k)
            to(i, to_bf16(f[j] * (v[j] * scale)));
    }
#pragma unroll 1
    for (int i = HELD * n_thread + id; i < k; i += n_thread)
        to(i, to_bf16(dense_value(&w, i) * (bf16_value(__ldcg(x + i)) * scale)));
}

/* What a window row needs besides its values, and what takes long to come: its turns and where it
 * goes. In shared memory, the block's. */
struct window_place {
    uint8_t *ring, *ring_scale; /* NULL: nowhere */
    float2 turn[];              /* [n_freq] */
};

static __device__ __forceinline__ void find_window_place(const struct hx_cuda_latents &a, int64_t t,
                                                         struct window_place *to)
{
    int id = latent_thread(), n_thread = (int)(blockDim.x * blockDim.y);
    if (id == n_thread - 32) { /* of the last warp, which has the fewest turns */
        bool stores = a.store && a.row[t] >= 0;
        const struct hx_kv_stream *s =
            stores ? &a.batch.kv.of[a.batch.seq[t]]->window[a.layer] : NULL;
        to->ring = s ? (uint8_t *)row_data(s, a.row[t]) : NULL;
        to->ring_scale = s ? (uint8_t *)row_scale(s, a.row[t]) : NULL;
    }
#pragma unroll 1
    for (int f = id; f < a.n_freq; f += n_thread)
        to->turn[f] = turn_by((float)a.batch.pos[t] * a.freq[f]);
}

/* v: shared, [d]. */
static __device__ __forceinline__ void window_row(const struct hx_cuda_latents &a, int64_t t,
                                                  const struct window_place *place, uint16_t *v)
{
    int d = (int)a.kv_norm.n_in, n_thread = (int)(blockDim.x * blockDim.y), id = latent_thread();
    int lane = id % 32, warp = id / 32, n_warp = n_thread / 32;
    uint16_t *x = a.kv + t * d;
    const float2 *turn = place->turn;
    norm_row(a.kv_norm, x, a.eps, [&](int i, uint16_t h) { v[i] = h; });
    __syncthreads();
#pragma unroll 1
    for (int f = id; f < a.n_freq; f += n_thread) {
        uint16_t *pair = v + d - 2 * a.n_freq + 2 * f;
        float2 r = rotated(bf16_value(pair[0]), bf16_value(pair[1]), turn[f]);
        pair[0] = to_bf16(r.x);
        pair[1] = to_bf16(r.y);
    }
    __syncthreads();
#pragma unroll 1
    for (int b = warp; b < d / 32; b += n_warp) {
        int i = 32 * b + lane;
        float f = bf16_value(v[i]);
        uint8_t s = fp8_scale(warp_magnitude(f)), c = encode_e4m3(clamp(f * inverse(s), 448.0f));
        x[i] = v[i];
        a.codes[t * d + i] = c;
        if (place->ring)
            place->ring[i] = c;
        if (lane == 0) {
            a.scales[t * (d / 32) + b] = s;
            if (place->ring)
                place->ring_scale[b] = s;
        }
    }
}

static __device__ __forceinline__ void query_row(const struct hx_cuda_latents &a, int64_t t)
{
    uint16_t *x = a.q + t * a.q_norm.n_in;
    norm_row(a.q_norm, x, a.eps, [&](int i, uint16_t h) { x[i] = h; });
}

/* Bytes of shared memory of a place and of what window_row takes behind it. */
static inline __host__ __device__ size_t window_place_room(const struct hx_cuda_latents *a)
{
    return sizeof(struct window_place) + (size_t)a->n_freq * sizeof(float2);
}

static inline size_t window_room(const struct hx_cuda_latents *a)
{
    return window_place_room(a) + (size_t)a->kv_norm.n_in * 2;
}

#endif
