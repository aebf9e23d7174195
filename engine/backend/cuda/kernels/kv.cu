/* Into the KV state: quantised rows, pooled groups and the open ones. */
#include "backend/cuda/kernels/numeric.cuh"

static __global__ void kv_store(struct hx_cuda_views kv, int which, int layer, const int32_t *seq,
                                const int64_t *row, const uint8_t *codes, int code_bytes,
                                const uint8_t *scales, int scale_bytes)
{
    int64_t i = blockIdx.x;
    if (row[i] < 0)
        return;
    const struct hx_kv_view *v = kv.of[seq[i]];
    const struct hx_kv_stream *s = which == 0   ? &v->window[layer]
                                   : which == 1 ? &v->comp[layer]
                                                : &v->key[layer];
    uint8_t *data = (uint8_t *)row_data(s, row[i]), *scale = (uint8_t *)row_scale(s, row[i]);
    for (int b = threadIdx.x; b < code_bytes; b += blockDim.x)
        data[b] = codes[i * code_bytes + b];
    for (int b = threadIdx.x; b < scale_bytes; b += blockDim.x)
        scale[b] = scales[i * scale_bytes + b];
}

cudaError_t hx_cu_kv_store(cudaStream_t s, const struct hx_cuda_views *kv, int which, int layer,
                           const int32_t *seq, const int64_t *row, int n, const uint8_t *codes,
                           int code_bytes, const uint8_t *scales, int scale_bytes)
{
    kv_store<<<n, 128, 0, s>>>(*kv, which, layer, seq, row, codes, code_bytes, scales, scale_bytes);
    return cudaGetLastError();
}

/* u (which 0) or g (1) of position p: from this pass, or from the open-group store. */
static __device__ const float *open_row(const struct hx_cuda_batch *b, int source, int seq,
                                        int64_t p, const float *t, int d, int which)
{
    if (p >= b->first_pos[seq])
        return t + (b->first_row[seq] + (p - b->first_pos[seq])) * d;
    return b->kv.of[seq]->open[source] + (p % 8 * 2 + which) * d;
}

static __global__ void pool(struct hx_cuda_batch b, int source, const float *u, const float *g,
                            int d, const int32_t *seq, const int64_t *row, uint16_t *lat)
{
    int64_t i = blockIdx.x;
    int q = seq[i];
    const float *u0 = open_row(&b, source, q, 2 * row[i], u, d, 0),
                *u1 = open_row(&b, source, q, 2 * row[i] + 1, u, d, 0),
                *g0 = open_row(&b, source, q, 2 * row[i], g, d, 1),
                *g1 = open_row(&b, source, q, 2 * row[i] + 1, g, d, 1);
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
        float max = g0[c] > g1[c] ? g0[c] : g1[c];
        float e0 = exp32(g0[c] - max), e1 = exp32(g1[c] - max);
        float den = e0 + e1;
        float acc = (e0 / den) * u0[c];
        acc = acc + (e1 / den) * u1[c];
        lat[i * d + c] = to_bf16(acc);
    }
}

/* A later launch than pool: the store's row of an open group may share its slot with one of these.
 * Of rows eight or more apart only the last stays. */
static __global__ void keep_open(struct hx_cuda_batch b, int source, const float *u, const float *g,
                                 int d)
{
    int64_t t = blockIdx.x;
    int q = b.seq[t];
    if (t + 8 < b.n_row && b.seq[t + 8] == q)
        return;
    float *to = b.kv.of[q]->open[source] + b.pos[t] % 8 * 2 * d;
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
        to[c] = u[t * d + c];
        to[d + c] = g[t * d + c];
    }
}

cudaError_t hx_cu_pool_groups(cudaStream_t s, const struct hx_cuda_batch *b, int source,
                              const float *u, const float *g, int d, const int32_t *seq,
                              const int64_t *row, int n_group, uint16_t *lat)
{
    if (n_group > 0)
        pool<<<n_group, 128, 0, s>>>(*b, source, u, g, d, seq, row, lat);
    keep_open<<<b->n_row, 128, 0, s>>>(*b, source, u, g, d);
    return cudaGetLastError();
}
