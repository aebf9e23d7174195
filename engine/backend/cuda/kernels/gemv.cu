/* y = W x for few rows: FP8 and BF16 weights on tensor cores, read once (gemv_inner.cuh;
 * docs/kernels.md, "GEMV"). Several matrices of one format and width may share a launch. */
#include "backend/cuda/kernels/gemv_inner.cuh"
#include "backend/cuda/kernels/latents.cuh"

#define MAX_PART HX_CUDA_GEMV_PARTS
#define WARPS    20 /* of a multiprocessor: what the registers allow */

struct part {
    const uint8_t *w, *scale;
    uint16_t *y; /* BF16, or NULL */
    float *y32;
    int n_out, first; /* first: tile of the launch */
};

struct gemv {
    struct gemv_shape shape;
    int n_tile, row_bytes;
    int scale_columns; /* FP8: of a row of blocks */
    int n_row;
    const uint16_t *x;
    int64_t x_stride;
    int group, n_in; /* tiles of a group, 0: one group; inputs of a group */
    int n_part;
    struct part part[MAX_PART];
};

/* MANY: more than one part. */
template <int NT, bool MANY> struct rows_of {
    struct cursor {
    };
    const gemv &g;
    int first_row;

    __device__ void seek(struct cursor &, int) const
    {
    }
    __device__ int row_bytes(const cursor &) const
    {
        return g.row_bytes;
    }
    __device__ const struct part &part_of(int tile) const
    {
        int p = 0;
        if (MANY) {
#pragma unroll
            for (int i = 1; i < MAX_PART; i++)
                p += i < g.n_part && tile >= g.part[i].first;
        }
        return g.part[p];
    }
    __device__ struct gemv_tile tile(const cursor &, int place, int) const
    {
        const struct part &p = part_of(place);
        int at = place - (MANY ? p.first : 0);
        return {p.w + (int64_t)(16 * at) * g.row_bytes,
                p.scale + (uint32_t)at / 2 * g.scale_columns};
    }
    __device__ const uint16_t *row(const cursor &, int place, int, int r) const
    {
        const uint16_t *x = g.x + min(first_row + r, g.n_row - 1) * g.x_stride;
        return g.group > 0 ? x + (int64_t)(place / g.group) * g.n_in : x;
    }
    __device__ void finish(const cursor &, const struct gemv_shape &s, int place, int n,
                           const float *sums) const
    {
        int all = n * 128 * NT, threads = 32 * blockDim.y;
#pragma unroll 1
        for (int i = threadIdx.y * 32 + threadIdx.x; i < all; i += threads) {
            int o = i % 16, r = i / 16 % (8 * NT), q = i / (128 * NT), at = place + q;
            if (first_row + r >= g.n_row)
                continue;
            float sum = gemv_sum<NT>(sums, s, q, 0, r, o);
            const struct part &p = part_of(at);
            int64_t to = (int64_t)(first_row + r) * p.n_out + (at - (MANY ? p.first : 0)) * 16 + o;
            if (p.y)
                p.y[to] = to_bf16(sum);
            else
                p.y32[to] = sum;
        }
    }
};

template <int FORMAT, int NT, int RING, bool TAIL, bool MANY>
static __global__ void __launch_bounds__((NT == 1 ? WARPS : WARPS / 2) * 32)
    gemv_kernel(const __grid_constant__ gemv g)
{
    rows_of<NT, MANY> rows = {g, (int)blockIdx.y * 8 * NT};
    gemv_stream<FORMAT, NT, RING, TAIL>(rows, g.shape, 1);
}

/* Queries and window rows: the products, then a block a row of either. Blocks are all there
 * together; those of window rows have no part in the products and find meanwhile where they go. */
template <bool TAIL>
static __global__ void __launch_bounds__(WARPS * 32)
    latents_kernel(const __grid_constant__ gemv g, const __grid_constant__ struct hx_cuda_latents a,
                   uint32_t *barrier)
{
    int n = a.batch.n_row, n_product = (int)gridDim.x - n, mine = (int)blockIdx.x - n_product;
    struct window_place *place = (struct window_place *)gemv_memory_of();
    if (mine >= 0) {
        find_window_place(a, mine, place);
    } else {
        rows_of<1, true> rows = {g, 0};
        gemv_stream<GEMV_FP8, 1, 2, TAIL>(rows, g.shape, 1);
    }
    grid_barrier(barrier, gridDim.x, blockIdx.x == 0);
    if (mine >= 0) {
        window_row(a, mine, place, (uint16_t *)(gemv_memory_of() + window_place_room(&a)));
        return;
    }
#pragma unroll 1
    for (int i = blockIdx.x; i < n; i += n_product) {
        query_row(a, i);
        __syncthreads();
    }
}

/* The activation of a shared expert: places are pairs of tiles, gate (part 0) first. */
struct gated_rows {
    struct cursor {
    };
    const gemv &g;
    uint16_t *t;
    float limit;

    __device__ void seek(struct cursor &, int) const
    {
    }
    __device__ int row_bytes(const cursor &) const
    {
        return g.row_bytes;
    }
    __device__ struct gemv_tile tile(const cursor &, int place, int) const
    {
        const struct part &p = g.part[place & 1];
        int at = place / 2;
        return {p.w + (int64_t)(16 * at) * g.row_bytes,
                p.scale + (uint32_t)at / 2 * g.scale_columns};
    }
    __device__ const uint16_t *row(const cursor &, int, int, int r) const
    {
        return g.x + min(r, g.n_row - 1) * g.x_stride;
    }
    __device__ void finish(const cursor &, const struct gemv_shape &s, int place, int,
                           const float *sums) const
    {
#pragma unroll 1
        for (int i = threadIdx.y * 32 + threadIdx.x; i < 128; i += 32 * blockDim.y) {
            int o = i % 16, r = i / 16;
            if (r < g.n_row)
                t[(int64_t)r * g.part[0].n_out + place / 2 * 16 + o] = swiglu_of(
                    gemv_sum<1>(sums, s, 0, 0, r, o), gemv_sum<1>(sums, s, 1, 0, r, o), limit);
        }
    }
};

template <bool TAIL>
static __global__ void __launch_bounds__(WARPS * 32)
    gated_kernel(const __grid_constant__ gemv g, uint16_t *t, float limit)
{
    gated_rows rows = {g, t, limit};
    gemv_stream<GEMV_FP8, 1, 2, TAIL>(rows, g.shape, 2);
}

/* Exponents of FP8 blocks must leave the factor a normal BF16 number: 8 to 134. */
bool hx_cu_gemv_takes(const struct hx_cuda_weight *w, int64_t group)
{
    bool fp8 = w->format == HX_FORMAT_FP8_ID;
    if (!fp8 && !(w->format == HX_FORMAT_DENSE_ID && w->is_bf16))
        return false;
    return w->n_in % 64 == 0 && w->n_out % 32 == 0 && group % 32 == 0;
}

template <int FORMAT, int NT, int RING, bool TAIL, bool MANY>
static void start(cudaStream_t s, const gemv &g, int blocks)
{
    size_t shared = gemv_shared_bytes<FORMAT, NT, RING>(g.shape.n_split, g.shape.together);
    if (shared > 48 * 1024)
        cudaFuncSetAttribute(gemv_kernel<FORMAT, NT, RING, TAIL, MANY>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    gemv_kernel<FORMAT, NT, RING, TAIL, MANY>
        <<<dim3((unsigned)blocks, (unsigned)((g.n_row + 8 * NT - 1) / (8 * NT))),
           dim3(32, (unsigned)g.shape.n_split), shared, s>>>(g);
}

/* Warps that share the stages of a row, by their number: two to five stages each, so that first
 * loads and sums take little; few warps where rows are long, so that more tiles are under way. As
 * measured (docs/perf-log.md). */
static int split_of(int n_stage)
{
    static const struct {
        int most, n_split;
    } by_stages[] = {{16, 4}, {20, 5}, {32, 8}, {40, 10}, {48, 4}, {64, 8}};
    if (n_stage <= 10)
        return (n_stage + 1) / 2;
    for (const auto &s : by_stages) {
        if (n_stage <= s.most)
            return s.n_split;
    }
    return 10;
}

/* Parts in one line, shape by the inputs; returns whether rows or scales end inside a stage. */
static bool shape_up(gemv *g, bool fp8)
{
    int n_stage = (g->row_bytes + GEMV_LINE - 1) / GEMV_LINE;
    bool tail = g->row_bytes % GEMV_LINE != 0;
    for (int i = 0; i < g->n_part; i++) {
        g->part[i].first = g->n_tile;
        g->n_tile += g->part[i].n_out / 16;
        tail = tail || (fp8 && (uintptr_t)g->part[i].scale % 4 != 0);
    }
    g->shape.n_split = split_of(n_stage);
    g->shape.stages = n_stage / g->shape.n_split;
    g->shape.stages_rest = n_stage % g->shape.n_split;
    g->shape.together = g->shape.stages >= 8 || g->n_row > 8 ? 1 : 2;
    return tail;
}

/* Blocks for n places, which they share equally; so many that `others` more are there together with
 * them. */
static int share_out(gemv *g, int n, int n_sm, int others)
{
    int per_sm = (g->n_row > 8 ? WARPS / 2 : WARPS) / g->shape.n_split;
    int most = n_sm * per_sm > others ? n_sm * per_sm - others : 1, blocks = most < n ? most : n;
    g->shape.places = n / blocks;
    g->shape.places_rest = n % blocks;
    return blocks;
}

template <int FORMAT> static void launch(cudaStream_t s, gemv g, int n_sm)
{
    bool tail = shape_up(&g, FORMAT == GEMV_FP8), wide = g.shape.stages >= 8;
    int blocks = share_out(&g, g.n_tile, n_sm, 0);
    if (g.n_row > 8 && tail)
        start<FORMAT, 4, 2, true, true>(s, g, blocks);
    else if (g.n_row > 8)
        start<FORMAT, 4, 2, false, true>(s, g, blocks);
    else if (tail)
        start<FORMAT, 1, 2, true, true>(s, g, blocks);
    else if (wide)
        start<FORMAT, 1, 3, false, true>(s, g, blocks);
    else if (g.n_part > 1)
        start<FORMAT, 1, 2, false, true>(s, g, blocks);
    else
        start<FORMAT, 1, 2, false, false>(s, g, blocks);
}

static gemv call_of(const struct hx_cuda_weight *w, const uint16_t *x, int64_t x_stride, int n_row)
{
    gemv g = {};
    g.row_bytes = (int)(w->format == HX_FORMAT_FP8_ID ? w->n_in : 2 * w->n_in);
    g.scale_columns = w->scale_columns;
    g.n_row = n_row;
    g.x = x;
    g.x_stride = x_stride;
    g.n_in = (int)w->n_in;
    return g;
}

static void add_part(gemv *g, const struct hx_cuda_weight *w, uint16_t *y, float *y32)
{
    g->part[g->n_part++] = {(const uint8_t *)w->data, w->scale, y, y32, (int)w->n_out, 0};
}

static cudaError_t run(cudaStream_t s, const gemv &g, bool fp8, int n_sm)
{
    if (fp8)
        launch<GEMV_FP8>(s, g, n_sm);
    else
        launch<GEMV_BF16>(s, g, n_sm);
    return cudaGetLastError();
}

cudaError_t hx_cu_gemv(cudaStream_t s, const struct hx_cuda_weight *w, const uint16_t *x,
                       int64_t x_stride, int64_t group, int n_row, uint16_t *y, float *y32,
                       int n_sm)
{
    gemv g = call_of(w, x, x_stride, n_row);
    g.group = (int)(group / 16);
    add_part(&g, w, y, y32);
    return run(s, g, w->format == HX_FORMAT_FP8_ID, n_sm);
}

cudaError_t hx_cu_gemv_many(cudaStream_t s, const struct hx_cuda_weight *w, int n_w,
                            const uint16_t *x, int64_t x_stride, int n_row, uint16_t *const *y,
                            float *const *y32, int n_sm)
{
    if (n_w < 1 || n_w > HX_CUDA_GEMV_PARTS)
        return cudaErrorInvalidValue;
    gemv g = call_of(&w[0], x, x_stride, n_row);
    for (int i = 0; i < n_w; i++) {
        if (w[i].format != w[0].format || w[i].n_in != w[0].n_in)
            return cudaErrorInvalidValue;
        add_part(&g, &w[i], y ? y[i] : NULL, y32 ? y32[i] : NULL);
    }
    return run(s, g, w[0].format == HX_FORMAT_FP8_ID, n_sm);
}

static bool pair_takes(const struct hx_cuda_weight w[2], int n_row)
{
    return n_row <= 8 && w[0].format == HX_FORMAT_FP8_ID && w[1].format == HX_FORMAT_FP8_ID &&
           w[0].n_in == w[1].n_in && hx_cu_gemv_takes(&w[0], 0) && hx_cu_gemv_takes(&w[1], 0);
}

bool hx_cu_gemv_gated_takes(const struct hx_cuda_weight w[2], int n_row)
{
    return pair_takes(w, n_row) && w[0].n_out == w[1].n_out &&
           split_of((int)(w[0].n_in + GEMV_LINE - 1) / GEMV_LINE) * 8 >
               (w[0].n_in + GEMV_LINE - 1) / GEMV_LINE;
}

cudaError_t hx_cu_gemv_gated(cudaStream_t s, const struct hx_cuda_weight w[2], const uint16_t *x,
                             int n_row, float limit, uint16_t *t, int n_sm)
{
    gemv g = call_of(&w[0], x, w[0].n_in, n_row);
    add_part(&g, &w[0], NULL, NULL);
    add_part(&g, &w[1], NULL, NULL);
    bool tail = shape_up(&g, true);
    int blocks = share_out(&g, g.n_tile / 2, n_sm, 0);
    size_t shared = gemv_shared_bytes<GEMV_FP8, 1, 2>(g.shape.n_split, g.shape.together);
    void (*kernel)(gemv, uint16_t *, float) = tail ? gated_kernel<true> : gated_kernel<false>;
    if (shared > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    kernel<<<(unsigned)blocks, dim3(32, (unsigned)g.shape.n_split), shared, s>>>(g, t, limit);
    return cudaGetLastError();
}

bool hx_cu_gemv_latents_takes(const struct hx_cuda_weight w[2], const struct hx_cuda_latents *a)
{
    return pair_takes(w, a->batch.n_row) && hx_cu_latents_takes(a) &&
           window_room(a) <= gemv_shared_bytes<GEMV_FP8, 1, 2>(1, 1);
}

cudaError_t hx_cu_gemv_latents(cudaStream_t s, const struct hx_cuda_weight w[2], const uint16_t *x,
                               const struct hx_cuda_latents *a, uint32_t *barrier, int n_sm)
{
    gemv g = call_of(&w[0], x, w[0].n_in, a->batch.n_row);
    add_part(&g, &w[0], a->kv, NULL);
    add_part(&g, &w[1], a->q, NULL);
    bool tail = shape_up(&g, true);
    int blocks = share_out(&g, g.n_tile, n_sm, g.n_row);
    size_t shared = gemv_shared_bytes<GEMV_FP8, 1, 2>(g.shape.n_split, g.shape.together);
    void (*kernel)(gemv, struct hx_cuda_latents, uint32_t *) =
        tail ? latents_kernel<true> : latents_kernel<false>;
    if (shared > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    kernel<<<(unsigned)(blocks + g.n_row), dim3(32, (unsigned)g.shape.n_split), shared, s>>>(
        g, *a, barrier);
    return cudaGetLastError();
}
