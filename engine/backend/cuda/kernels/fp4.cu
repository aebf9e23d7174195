/* A layer of FP4 experts for few rows (docs/kernels.md, "FP4 experts"): rows grouped by expert;
 * gate and up with the activation; down; sum. The products are the stream of gemv_inner.cuh, whose
 * tiles lie in the experts that were chosen. */
#include "backend/cuda/kernels/expert_groups.cuh"
#include "backend/cuda/kernels/gemv_inner.cuh"

#define ROWS       8 /* of a job */
#define MAX_EXPERT 4096
#define WARPS      20 /* of a multiprocessor: what the registers allow */

/* Up to ROWS rows of one expert. */
struct alignas(16) fp4_job {
    const uint8_t *w[3], *scale[3]; /* gate, up, down */
    int32_t n, ff;
    int32_t pair[ROWS];
};

struct layer {
    struct hx_cuda_exl3 a;
    int n_pair;
    int32_t *n_job, *begins; /* begins: tiles of 16 of the widths before each job */
    struct fp4_job *job;
    uint16_t *t; /* [pairs][ff]: inputs of down */
    float *out;  /* [pairs][d] */
};

static __global__ void __launch_bounds__(1024) group(struct layer p)
{
    extern __shared__ int32_t count[];
    auto begin = [&](int job, int e, int n) {
        const struct hx_cuda_weight *w[3] = {&p.a.w1[e], &p.a.w3[e], &p.a.w2[e]};
        struct fp4_job *to = &p.job[job];
        for (int i = 0; i < 3; i++) {
            to->w[i] = (const uint8_t *)w[i]->data;
            to->scale[i] = w[i]->scale;
        }
        to->n = n;
        to->ff = (int)w[0]->n_out;
    };
    auto add = [&](int job, int i, int pair) { p.job[job].pair[i] = pair; };
    group_rows<ROWS>(p.a, p.n_pair, 16, count, count + p.a.n_expert, p.n_job, p.begins, begin, add);
}

/* Gate and up: places are pairs of tiles, gate first. */
struct up_rows {
    struct cursor {
        int job = 0, first = 0, end = 0; /* tiles of the job */
    };
    const struct layer &p;
    int n_job;

    __device__ void seek(struct cursor &c, int place) const
    {
        if (place / 2 < c.end)
            return;
        c.job = job_at(p.begins, n_job, place / 2);
        c.first = p.begins[c.job];
        c.end = p.begins[c.job + 1];
    }
    __device__ int row_bytes(const cursor &) const
    {
        return (int)p.a.d / 2;
    }
    __device__ struct gemv_tile tile(const cursor &c, int place, int) const
    {
        const struct fp4_job *job = &p.job[c.job];
        int64_t o = (int64_t)(place / 2 - c.first) * 16;
        return {job->w[place & 1] + o * (p.a.d / 2), job->scale[place & 1] + o * (p.a.d / 32)};
    }
    __device__ const uint16_t *row(const cursor &c, int, int, int r) const
    {
        const struct fp4_job *job = &p.job[c.job];
        return p.a.z + (int64_t)(job->pair[r < job->n ? r : 0] / p.a.used) * p.a.d;
    }
    __device__ void finish(const cursor &c, const struct gemv_shape &s, int place, int,
                           const float *sums) const
    {
        const struct fp4_job *job = &p.job[c.job];
        for (int i = threadIdx.y * 32 + threadIdx.x; i < 128; i += 32 * blockDim.y) {
            int o = i % 16, r = i / 16;
            if (r >= job->n)
                continue;
            float a = gemv_sum<1>(sums, s, 0, 0, r, o), b = gemv_sum<1>(sums, s, 1, 0, r, o);
            int pair = job->pair[r];
            p.t[pair * p.a.ff + (place / 2 - c.first) * 16 + o] =
                to_bf16(gated(a, b, p.a.weight[pair], p.a.limit));
        }
    }
};

struct down_rows {
    struct cursor {
        int job = 0;
    };
    const struct layer &p;
    int tiles; /* of an expert */

    __device__ void seek(struct cursor &c, int place) const
    {
        c.job = place / tiles;
    }
    __device__ int row_bytes(const cursor &c) const
    {
        return p.job[c.job].ff / 2;
    }
    __device__ struct gemv_tile tile(const cursor &c, int place, int) const
    {
        const struct fp4_job *job = &p.job[c.job];
        int64_t o = (int64_t)(place - c.job * tiles) * 16;
        return {job->w[2] + o * (job->ff / 2), job->scale[2] + o * (job->ff / 32)};
    }
    __device__ const uint16_t *row(const cursor &c, int, int, int r) const
    {
        const struct fp4_job *job = &p.job[c.job];
        if (job->ff == 0) /* nothing was written; what is read is not used */
            return p.a.z;
        return p.t + job->pair[r < job->n ? r : 0] * p.a.ff;
    }
    __device__ void finish(const cursor &, const struct gemv_shape &s, int place, int n,
                           const float *sums) const
    {
        for (int i = threadIdx.y * 32 + threadIdx.x; i < n * 128; i += 32 * blockDim.y) {
            int o = i % 16, r = i / 16 % ROWS, q = i / 128, at = place + q;
            const struct fp4_job *job = &p.job[at / tiles];
            if (r < job->n)
                p.out[job->pair[r] * p.a.d + at % tiles * 16 + o] =
                    gemv_sum<1>(sums, s, q, 0, r, o);
        }
    }
};

/* The launch's places, known on the device alone. */
static __device__ __forceinline__ struct gemv_shape shared_out(struct gemv_shape s, int n)
{
    s.places = (uint32_t)n / gridDim.x;
    s.places_rest = (uint32_t)n % gridDim.x;
    return s;
}

template <bool TAIL>
static __global__ void __launch_bounds__(WARPS * 32)
    up_kernel(const __grid_constant__ struct layer p, const struct gemv_shape shape)
{
    int n_job = *p.n_job;
    up_rows rows = {p, n_job};
    gemv_stream<GEMV_FP4, 1, 2, TAIL>(rows, shared_out(shape, p.begins[n_job]), 2);
}

template <bool TAIL>
static __global__ void __launch_bounds__(WARPS * 32)
    down_kernel(const __grid_constant__ struct layer p, const struct gemv_shape shape)
{
    down_rows rows = {p, (int)p.a.d / 16};
    gemv_stream<GEMV_FP4, 1, 2, TAIL>(rows, shared_out(shape, *p.n_job * rows.tiles), 1);
}

static struct gemv_shape shape_of(int64_t n_in)
{
    struct gemv_shape s = {};
    int n_stage = (int)((n_in + 255) / 256);
    s.n_split = n_stage <= 12 ? (n_stage + 2) / 3 : n_stage <= 20 ? 5 : 10;
    s.stages = n_stage / s.n_split;
    s.stages_rest = n_stage % s.n_split;
    s.together = 2;
    return s;
}

bool hx_cu_fp4_takes(const struct hx_cuda_choice *w1, const struct hx_cuda_choice *w2,
                     const struct hx_cuda_choice *w3, int n_expert, int used)
{
    return w1->fp4 && w2->fp4 && w3->fp4 && n_expert <= MAX_EXPERT && used <= 32 &&
           w1->n_in == w3->n_in && w1->n_out == w3->n_out && w2->n_in == w1->n_out &&
           w2->n_out == w1->n_in;
}

static size_t carve(uint8_t *room, size_t *used, size_t n, uint8_t **out)
{
    *out = room + *used;
    return *used += (n + 255) / 256 * 256;
}

static size_t lay_out(struct layer *p, uint8_t *room)
{
    size_t n = (size_t)p->n_pair, used = 0;
    uint8_t *at[5];
    carve(room, &used, 4, &at[0]);
    carve(room, &used, (n + 1) * 4, &at[1]);
    carve(room, &used, n * sizeof(struct fp4_job), &at[2]);
    carve(room, &used, n * (size_t)p->a.ff * 2, &at[3]);
    carve(room, &used, n * (size_t)p->a.d * 4, &at[4]);
    p->n_job = (int32_t *)at[0];
    p->begins = (int32_t *)at[1];
    p->job = (struct fp4_job *)at[2];
    p->t = (uint16_t *)at[3];
    p->out = (float *)at[4];
    return used;
}

size_t hx_cu_fp4_room(const struct hx_cuda_exl3 *a, int n_tok)
{
    struct layer p = {};
    p.a = *a;
    p.n_pair = n_tok * a->used;
    return lay_out(&p, NULL);
}

cudaError_t hx_cu_fp4(cudaStream_t s, const struct hx_cuda_exl3 *a, int n_sm)
{
    struct layer p = {};
    p.a = *a;
    p.n_pair = a->n_tok * a->used;
    if (p.n_pair > 65534 || a->used > 32)
        return cudaErrorInvalidValue;
    lay_out(&p, (uint8_t *)a->room);
    struct gemv_shape up = shape_of(a->d), down = shape_of(a->ff);
    size_t up_bytes = gemv_shared_bytes<GEMV_FP4, 1, 2>(up.n_split, up.together);
    size_t down_bytes = gemv_shared_bytes<GEMV_FP4, 1, 2>(down.n_split, down.together);
    dim3 up_block(32, (unsigned)up.n_split), down_block(32, (unsigned)down.n_split);
    unsigned n_up = (unsigned)(n_sm * (WARPS / up.n_split));
    unsigned n_down = (unsigned)(n_sm * (WARPS / down.n_split));
    for (const void *f : {(const void *)up_kernel<false>, (const void *)up_kernel<true>})
        cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)up_bytes);
    for (const void *f : {(const void *)down_kernel<false>, (const void *)down_kernel<true>})
        cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)down_bytes);
    group<<<1, 1024, (size_t)a->n_expert * 8, s>>>(p);
    if (a->d % 256 != 0)
        up_kernel<true><<<n_up, up_block, up_bytes, s>>>(p, up);
    else
        up_kernel<false><<<n_up, up_block, up_bytes, s>>>(p, up);
    if (a->unequal || a->ff % 256 != 0)
        down_kernel<true><<<n_down, down_block, down_bytes, s>>>(p, down);
    else
        down_kernel<false><<<n_down, down_block, down_bytes, s>>>(p, down);
    if (a->shared_there)
        cudaStreamWaitEvent(s, a->shared_there, 0);
    return hx_cu_expert_sum(s, p.out, a->shared, a->n_tok, a->used, a->d, a->y);
}
