/* Sink attention over window rows and selected compressed rows, keys in listed order. */
#include "backend/cuda/kernels/numeric.cuh"

#define KEY_BLOCK 64 /* keys between two updates of the running maximum */
#define THREADS   128
#define MAX_DIM   512

struct key {
    const uint8_t *codes, *scales;
    bool compressed;
};

static __device__ struct key find_key(const struct hx_cuda_attend *a, int64_t t, int64_t first,
                                      int n_window, int i)
{
    const struct hx_cuda_batch *b = &a->batch;
    int seq = b->seq[t];
    if (i >= n_window) {
        const struct hx_kv_stream *s = &b->kv.of[seq]->comp[a->source];
        int32_t j = a->sel[t * a->topk + (i - n_window)];
        return {row_data(s, j), row_scale(s, j), true};
    }
    int64_t p = first + i;
    if (p < b->first_pos[seq]) {
        const struct hx_kv_stream *s = &b->kv.of[seq]->window[a->layer];
        return {row_data(s, p), row_scale(s, p), false};
    }
    int64_t row = b->first_row[seq] + (p - b->first_pos[seq]);
    return {a->fresh_codes + row * a->d, a->fresh_scales + row * (a->d / 32), false};
}

static __device__ float key_value(const struct key *k, int i)
{
    return k->compressed ? fp4_b16(k->codes, k->scales, i) : fp8_b32(k->codes, k->scales, i);
}

/* One block a row and head. */
static __global__ void attend(struct hx_cuda_attend a)
{
    __shared__ float q[MAX_DIM], s[KEY_BLOCK], p_of[KEY_BLOCK];
    __shared__ struct key keys[KEY_BLOCK];
    __shared__ int n_sel;
    int64_t t = blockIdx.x, h = blockIdx.y;
    const struct hx_cuda_batch *b = &a.batch;
    int seq = b->seq[t], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t last = a.block ? b->first_pos[seq] + a.block - 1 : b->pos[t];
    int64_t first = last - a.block - a.window + 1;
    first = first > 0 ? first : 0;
    int n_window = (int)(last - first + 1);
    for (int i = threadIdx.x; i < a.d; i += THREADS)
        q[i] = bf16_value(a.q[(t * a.n_head + h) * a.d + i]);
    if (threadIdx.x == 0) {
        n_sel = 0;
        while (a.source >= 0 && n_sel < a.topk && a.sel[t * a.topk + n_sel] >= 0)
            n_sel++;
    }
    __syncthreads();
    int n = n_window + n_sel;
    float max = -1e30f, den = 0, acc[MAX_DIM / THREADS] = {0};
    for (int base = 0; base < n; base += KEY_BLOCK) {
        int m = n - base < KEY_BLOCK ? n - base : KEY_BLOCK;
        if (threadIdx.x < m)
            keys[threadIdx.x] = find_key(&a, t, first, n_window, base + threadIdx.x);
        __syncthreads();
        for (int j = warp; j < m; j += THREADS / 32) {
            double dot = 0;
            for (int i = lane; i < a.d; i += 32)
                dot += (double)q[i] * (double)key_value(&keys[j], i);
            dot = warp_sum(dot);
            if (lane == 0)
                s[j] = (float)dot * a.scale;
        }
        __syncthreads();
        float new_max = max;
        for (int j = 0; j < m; j++)
            new_max = s[j] > new_max ? s[j] : new_max;
        float r = exp32(max - new_max);
        if (threadIdx.x < m)
            p_of[threadIdx.x] = exp32(s[threadIdx.x] - new_max);
        __syncthreads();
        double sum = 0;
        for (int j = 0; j < m; j++)
            sum += (double)p_of[j];
        den = den * r + (float)sum;
        for (int k = 0; k < MAX_DIM / THREADS; k++) {
            int i = k * THREADS + threadIdx.x;
            double pv = 0;
            for (int j = 0; i < a.d && j < m; j++)
                pv += (double)bf16_round(p_of[j]) * (double)key_value(&keys[j], i);
            acc[k] = acc[k] * r + (float)pv;
        }
        max = new_max;
        __syncthreads();
    }
    den = den + exp32(dense_value(&a.sink, h) - max);
    for (int k = 0; k < MAX_DIM / THREADS; k++) {
        int i = k * THREADS + threadIdx.x;
        if (i < a.d)
            a.o[(t * a.n_head + h) * a.d + i] = to_bf16(acc[k] / den);
    }
}

cudaError_t hx_cu_attend(cudaStream_t s, const struct hx_cuda_attend *a)
{
    if (a->d > MAX_DIM)
        return cudaErrorInvalidValue;
    attend<<<dim3(a->batch.n_row, a->n_head), THREADS, 0, s>>>(*a);
    return cudaGetLastError();
}
