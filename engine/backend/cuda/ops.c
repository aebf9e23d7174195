/* The kernel table: arguments of backend/kernels.h to launches. Nothing here waits. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>

#define LAUNCH(call, what) hx_cuda_check(call, what, err)

static int64_t row_len(const struct hx_tensor *t)
{
    return t->ne[1] * t->ne[2] * t->ne[3];
}

static struct hx_cuda_batch pack_batch(const struct hx_batch *b)
{
    return (struct hx_cuda_batch){.n_row = b->n_row,
                                  .seq = b->seq,
                                  .pos = b->pos,
                                  .dead = b->dead,
                                  .first_pos = b->first_pos,
                                  .first_row = b->first_row,
                                  .kv = {b->kv_device}};
}

/* ---- rows ---- */

static int embed(struct hx_device *dev, const struct hx_weight *w, const int32_t *tokens,
                 struct hx_tensor *streams, struct hx_tensor *pre, struct hx_error *err)
{
    dev->mix.n_row = 0; /* of a pass that failed */
    return LAUNCH(hx_cu_embed(dev->stream, w->part[HX_PART_DATA].data, tokens, (int)streams->ne[0],
                              (int)streams->ne[1], streams->ne[2], streams->data, pre->data),
                  "embed");
}

static int rms_norm(struct hx_device *dev, const struct hx_weight *w, float eps,
                    const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    struct hx_cuda_weight c = hx_cuda_weight(w);
    int64_t rows = x->ne[0] * row_len(x) / w->n_in;
    if (rows == 0)
        return 0;
    return LAUNCH(hx_cu_rms_norm(dev->stream, &c, eps, x->data, rows, y->data), "rms_norm");
}

static int rope(struct hx_device *dev, struct hx_tensor *x, const int64_t *pos,
                const struct hx_tensor *freq, bool inverse, struct hx_error *err)
{
    int d = (int)x->ne[x->n_dims - 1], n_head = (int)(row_len(x) / d);
    if (x->ne[0] == 0)
        return 0;
    return LAUNCH(hx_cu_rope(dev->stream, x->data, (int)x->ne[0], n_head, d, pos, freq->data,
                             (int)freq->ne[0], inverse),
                  "rope");
}

static int quantise(struct hx_device *dev, enum hx_grid grid, const struct hx_tensor *x,
                    struct hx_tensor *codes, struct hx_tensor *scales, struct hx_tensor *value,
                    struct hx_error *err)
{
    int d = (int)x->ne[x->n_dims - 1];
    int64_t rows = x->ne[0] * row_len(x) / d;
    if (rows == 0)
        return 0;
    return LAUNCH(hx_cu_quantise(dev->stream, (int)grid, x->data, rows, d, codes->data,
                                 scales->data, value ? value->data : NULL),
                  "quantise");
}

static int keep_rows(struct hx_device *dev, struct hx_tensor *x, const int32_t *row, int n,
                     struct hx_error *err)
{
    size_t bytes = (size_t)row_len(x) * hx_dtype_size(x->dtype);
    int r = hx_cuda_settle(dev, err);
    if (r == 0)
        r = LAUNCH(hx_cu_keep_rows(dev->stream, x->data, bytes, row, n, dev->scratch + dev->used,
                                   dev->scratch_size - dev->used),
                   "keep_rows");
    x->ne[0] = n;
    return r;
}

/* ---- hyper-connections ---- */

static int hc_mix(struct hx_device *dev, const struct hx_hc_args *a, struct hx_error *err)
{
    struct hx_cuda_hc c = {.n_row = (int)a->streams->ne[0],
                           .n_stream = (int)a->streams->ne[1],
                           .iters = a->iters,
                           .d = a->streams->ne[2],
                           .streams = a->streams->data,
                           .fn = hx_cuda_weight(a->fn),
                           .base = a->base->part[HX_PART_DATA].data,
                           .scale = a->scale->part[HX_PART_DATA].data,
                           .rms_eps = a->rms_eps,
                           .hc_eps = a->hc_eps,
                           .pre = a->pre->data,
                           .post = a->post->data,
                           .comb = a->comb->data};
    int r = hx_cuda_settle(dev, err);
    return r == 0 && c.n_row ? LAUNCH(hx_cu_hc_mix(dev->stream, &c), "hc_mix") : r;
}

static int hc_collapse(struct hx_device *dev, const struct hx_tensor *streams,
                       const struct hx_tensor *pre, struct hx_tensor *x, struct hx_error *err)
{
    int r = hx_cuda_settle(dev, err);
    if (r < 0 || streams->ne[0] == 0)
        return r;
    return LAUNCH(hx_cu_hc_collapse(dev->stream, streams->data, pre->data, (int)streams->ne[0],
                                    (int)streams->ne[1], streams->ne[2], x->data),
                  "hc_collapse");
}

static int hc_expand(struct hx_device *dev, const struct hx_tensor *y, const struct hx_tensor *post,
                     const struct hx_tensor *comb, struct hx_tensor *streams, struct hx_error *err)
{
    int r = hx_cuda_settle(dev, err);
    if (r < 0 || streams->ne[0] == 0)
        return r;
    return LAUNCH(hx_cu_hc_expand(dev->stream, y->data, post->data, comb->data, (int)streams->ne[0],
                                  (int)streams->ne[1], streams->ne[2], streams->data),
                  "hc_expand");
}

/* Rows of a site at a time. */
#define SITE_TILE 1024

static int hc_site(struct hx_device *dev, const struct hx_site_args *a, struct hx_error *err)
{
    int n = (int)a->streams->ne[0], n_stream = (int)a->streams->ne[1];
    int64_t d = a->streams->ne[2];
    int r = hx_cuda_settle(dev, err);
    if (r < 0 || !hx_cu_site_takes(n_stream, d)) {
        if (r == 0 && a->y)
            r = hc_expand(dev, a->y, a->mix.post, a->mix.comb, a->streams, err);
        if (r == 0)
            r = hc_collapse(dev, a->streams, a->pre, a->x, err);
        if (r == 0)
            r = rms_norm(dev, a->norm, a->norm_eps, a->x, a->x, err);
        return r < 0 ? r : hc_mix(dev, &a->mix, err);
    }
    size_t mark = dev->used, bytes = hx_cu_site_room(n < SITE_TILE ? n : SITE_TILE, d);
    /* Few rows leave their sums until a later launch takes them along. */
    bool later = n <= SITE_TILE && bytes <= HX_CUDA_SITE_ROOM;
    void *room = later ? dev->site_room : hx_cuda_scratch(dev, bytes, err);
    r = room ? 0 : -ENOMEM;
    for (int64_t t = 0; r == 0 && t < n; t += SITE_TILE) {
        struct hx_cuda_site c = {.n_row = n - t < SITE_TILE ? (int)(n - t) : SITE_TILE,
                                 .iters = a->mix.iters,
                                 .d = d,
                                 .streams = (uint16_t *)a->streams->data + t * n_stream * d,
                                 .y = a->y ? (const uint16_t *)a->y->data + t * d : NULL,
                                 .pre = (const float *)a->pre->data + t * n_stream,
                                 .pre_next = (float *)a->mix.pre->data + t * n_stream,
                                 .post = (float *)a->mix.post->data + t * n_stream,
                                 .comb = (float *)a->mix.comb->data + t * n_stream * n_stream,
                                 .norm = hx_cuda_weight(a->norm),
                                 .fn = hx_cuda_weight(a->mix.fn),
                                 .base = a->mix.base->part[HX_PART_DATA].data,
                                 .scale = a->mix.scale->part[HX_PART_DATA].data,
                                 .norm_eps = a->norm_eps,
                                 .rms_eps = a->mix.rms_eps,
                                 .hc_eps = a->mix.hc_eps,
                                 .x = (uint16_t *)a->x->data + t * d,
                                 .room = room,
                                 .barrier = dev->counters};
        r = LAUNCH(hx_cu_site(dev->stream, &c, dev->n_sm, &dev->mix), "hc_site");
        if (r == 0 && !later)
            r = hx_cuda_settle(dev, err);
    }
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

static int index_queries(struct hx_device *dev, struct hx_tensor *q, const int64_t *pos,
                         const struct hx_tensor *freq, struct hx_tensor *codes,
                         struct hx_tensor *scales, struct hx_error *err)
{
    if (q->ne[0] == 0)
        return 0;
    return LAUNCH(hx_cu_index_queries(dev->stream, q->data, (int)q->ne[0], (int)q->ne[1],
                                      (int)q->ne[2], pos, freq->data, (int)freq->ne[0], codes->data,
                                      scales->data),
                  "index_queries");
}

static int stream_mean(struct hx_device *dev, const struct hx_tensor *streams, int slot,
                       struct hx_tensor *out, struct hx_error *err)
{
    if (streams->ne[0] == 0)
        return 0;
    return LAUNCH(hx_cu_stream_mean(dev->stream, streams->data, (int)streams->ne[0],
                                    (int)streams->ne[1], streams->ne[2], slot, (int)out->ne[1],
                                    out->data),
                  "stream_mean");
}

/* ---- products ---- */

static int refuse_quantised(bool quantise, struct hx_error *err)
{
    return quantise
               ? hx_fail(err, -ENOTSUP, "cuda: the reference mode runs on the cpu back end only")
               : 0;
}

/* y [n][n_out] F32 in device memory. */
static int product(struct hx_device *dev, const struct hx_cuda_choice *c, const uint16_t *x,
                   int x_div, int64_t x_stride, int64_t group, int n, float *y,
                   struct hx_error *err)
{
    size_t mark = dev->used;
    double *xr = NULL, *mid = NULL;
    int tile = n;
    if (c->has_exl3) {
        size_t row = (size_t)(c->k_padded + c->n_padded) * sizeof(double);
        int64_t fit = (int64_t)((dev->scratch_size - dev->used - 1024) / 2 / row);
        tile = fit < n ? (int)fit / x_div * x_div : n;
        if (tile < 1)
            return hx_fail(err, -ENOMEM, "cuda: no working memory for a product");
        xr = hx_cuda_scratch(dev, (size_t)tile * (size_t)c->k_padded * sizeof(double), err);
        mid = xr ? hx_cuda_scratch(dev, (size_t)tile * (size_t)c->n_padded * sizeof(double), err)
                 : NULL;
        if (!mid)
            return -ENOMEM;
    }
    int r = 0;
    for (int at = 0; r == 0 && at < n; at += tile) {
        int m = n - at < tile ? n - at : tile;
        struct hx_cuda_choice part = *c;
        if (part.sel)
            part.sel += at;
        r = LAUNCH(hx_cu_product(dev->stream, &part, x + at / x_div * x_stride, x_div, x_stride,
                                 group, m, y + at * c->n_out, xr, mid),
                   "product");
    }
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

/* The product of n rows of n_in into y (BF16 or F32), some rows at a time. */
static int linear_rows(struct hx_device *dev, const struct hx_weight *w, int64_t x_stride,
                       int64_t group, const struct hx_tensor *x, struct hx_tensor *y,
                       struct hx_error *err)
{
    struct hx_cuda_choice c = hx_cuda_choice_one(w);
    int n = (int)x->ne[0], r = 0;
    if (n == 0)
        return 0;
    if (!dev->exact && hx_cu_gemv_takes(&c.one, group))
        return LAUNCH(hx_cu_gemv(dev->stream, &c.one, x->data, x_stride, group, n,
                                 y->dtype == HX_DTYPE_BF16 ? y->data : NULL, y->data, dev->n_sm),
                      "gemv");
    if (y->dtype == HX_DTYPE_F32)
        return product(dev, &c, x->data, 1, x_stride, group, n, y->data, err);
    size_t mark = dev->used, row = (size_t)c.n_out * sizeof(float);
    int64_t fit = (int64_t)((dev->scratch_size - dev->used) / 4 / row);
    int tile = fit < 1 ? 1 : fit < n ? (int)fit : n;
    float *f = hx_cuda_scratch(dev, (size_t)tile * row, err);
    if (!f)
        return -ENOMEM;
    for (int at = 0; r == 0 && at < n; at += tile) {
        int m = n - at < tile ? n - at : tile;
        r = product(dev, &c, (const uint16_t *)x->data + at * x_stride, 1, x_stride, group, m, f,
                    err);
        if (r == 0)
            r = LAUNCH(
                hx_cu_to_bf16(dev->stream, f, m * c.n_out, (uint16_t *)y->data + at * c.n_out),
                "product");
    }
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

static int linear(struct hx_device *dev, const struct hx_weight *w, bool quantise_x,
                  const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    int r = refuse_quantised(quantise_x, err);
    return r < 0 ? r : linear_rows(dev, w, w->n_in, 0, x, y, err);
}

static int linear_grouped(struct hx_device *dev, const struct hx_weight *w, int n_group,
                          const struct hx_tensor *x, struct hx_tensor *y, struct hx_error *err)
{
    return linear_rows(dev, w, w->n_in * n_group, w->n_out / n_group, x, y, err);
}

static int linear_pair(struct hx_device *dev, const struct hx_weight *const w[2],
                       const struct hx_tensor *x, struct hx_tensor *const y[2],
                       struct hx_error *err)
{
    const struct hx_cuda_weight c[2] = {hx_cuda_weight(w[0]), hx_cuda_weight(w[1])};
    int n = (int)x->ne[0];
    bool together = c[0].format == c[1].format && c[0].n_in == c[1].n_in &&
                    y[0]->dtype == y[1]->dtype && hx_cu_gemv_takes(&c[0], 0) &&
                    hx_cu_gemv_takes(&c[1], 0);
    if (!together || n == 0) {
        int r = linear_rows(dev, w[0], w[0]->n_in, 0, x, y[0], err);
        return r < 0 ? r : linear_rows(dev, w[1], w[1]->n_in, 0, x, y[1], err);
    }
    bool bf16 = y[0]->dtype == HX_DTYPE_BF16;
    uint16_t *const to[2] = {y[0]->data, y[1]->data};
    float *const to32[2] = {y[0]->data, y[1]->data};
    return LAUNCH(hx_cu_gemv_many(dev->stream, c, 2, x->data, c[0].n_in, n, bf16 ? to : NULL,
                                  bf16 ? NULL : to32, dev->n_sm),
                  "gemv");
}

static int latents(struct hx_device *dev, const struct hx_latents_args *a, struct hx_error *err)
{
    struct hx_cuda_latents c = {.batch = pack_batch(a->batch),
                                .q = a->q->data,
                                .kv = a->kv->data,
                                .q_norm = hx_cuda_weight(a->q_norm),
                                .kv_norm = hx_cuda_weight(a->kv_norm),
                                .eps = a->eps,
                                .freq = a->freq->data,
                                .n_freq = (int)a->freq->ne[0],
                                .layer = a->layer,
                                .codes = a->codes->data,
                                .scales = a->scales->data,
                                .store = a->row != NULL,
                                .row = a->row};
    if (c.batch.n_row == 0)
        return 0;
    if (!hx_cu_latents_takes(&c))
        return hx_fail(err, -ENOTSUP, "cuda: window rows of %lld values",
                       (long long)a->kv_norm->n_in);
    if (a->w) {
        const struct hx_cuda_weight w[2] = {hx_cuda_weight(a->w[0]), hx_cuda_weight(a->w[1])};
        struct hx_tensor *const y[2] = {a->kv, a->q};
        if (hx_cu_gemv_latents_takes(w, &c))
            return LAUNCH(
                hx_cu_gemv_latents(dev->stream, w, a->x->data, &c, dev->counters, dev->n_sm),
                "latents");
        int r = linear_pair(dev, a->w, a->x, y, err);
        if (r < 0)
            return r;
    }
    return LAUNCH(hx_cu_latents(dev->stream, &c), "latents");
}

/* ---- experts ---- */

static int route(struct hx_device *dev, const struct hx_route_args *a, struct hx_error *err)
{
    struct hx_cuda_choice gate = hx_cuda_choice_one(a->gate);
    struct hx_cuda_route c = {.n_row = (int)a->z->ne[0],
                              .n_expert = (int)a->gate->n_out,
                              .k = (int)a->sel->ne[1],
                              .norm = a->norm,
                              .temp = a->temp,
                              .route_scale = a->route_scale,
                              .bias = a->bias->part[HX_PART_DATA].data,
                              .bias_vl = a->bias_vl->part[HX_PART_DATA].data,
                              .dead = a->dead,
                              .score = a->score->data,
                              .sel = a->sel->data,
                              .weight = a->weight->data,
                              .fault = dev->fault_dev};
    if (c.n_row == 0)
        return 0;
    if (!dev->exact && c.n_row <= 8 * HX_CUDA_COUNTERS &&
        hx_cu_router_takes(&gate.one, c.n_expert, c.k)) {
        /* The shared expert of the same rows may run from here on. */
        int e = LAUNCH(cudaEventRecord(dev->fork, dev->stream), "route");
        dev->forked = a->z->data;
        if (e == 0)
            e = LAUNCH(
                hx_cu_router(dev->stream, &c, &gate.one, a->z->data, dev->counters + 2, &dev->mix),
                "route");
        dev->mix.n_row = 0;
        return e;
    }
    int r = product(dev, &gate, a->z->data, 1, gate.n_in, 0, c.n_row, c.score, err);
    return r < 0 ? r : LAUNCH(hx_cu_route(dev->stream, &c), "route");
}

struct expert_room {
    float *a, *b, *out, *shared;
    uint16_t *t;
};

/* The shared expert of m rows: out F32 [m][d]; a, b F32 and t BF16 are room for [m][width]. */
static int shared_expert(struct hx_device *dev, const struct hx_experts_args *x, const uint16_t *z,
                         int m, float *a, float *b, uint16_t *t, float *out, struct hx_error *err)
{
    int64_t d = x->z->ne[1], ff = x->s1->n_out;
    struct hx_tensor in = {HX_DTYPE_BF16, 2, {m, d, 1, 1}, (void *)(uintptr_t)z};
    struct hx_tensor mid = {HX_DTYPE_BF16, 2, {m, ff, 1, 1}, t};
    struct hx_tensor left = {HX_DTYPE_F32, 2, {m, ff, 1, 1}, a}, right = left;
    struct hx_tensor y = {HX_DTYPE_F32, 2, {m, d, 1, 1}, out};
    right.data = b;
    const struct hx_weight *const w[2] = {x->s1, x->s3};
    const struct hx_cuda_weight c[2] = {hx_cuda_weight(w[0]), hx_cuda_weight(w[1])};
    struct hx_tensor *const both[2] = {&left, &right};
    if (!dev->exact && hx_cu_gemv_gated_takes(c, m)) {
        int g =
            LAUNCH(hx_cu_gemv_gated(dev->stream, c, z, m, x->limit, t, dev->n_sm), "shared expert");
        return g < 0 ? g : linear_rows(dev, x->s2, ff, 0, &mid, &y, err);
    }
    int r = dev->exact ? linear_rows(dev, x->s1, d, 0, &in, &left, err)
                       : linear_pair(dev, w, &in, both, err);
    if (r == 0 && dev->exact)
        r = linear_rows(dev, x->s3, d, 0, &in, &right, err);
    if (r == 0)
        r = LAUNCH(hx_cu_swiglu(dev->stream, a, b, NULL, m, ff, x->limit, t), "shared expert");
    return r < 0 ? r : linear_rows(dev, x->s2, ff, 0, &mid, &y, err);
}

/* Whether three products of few rows need nothing but their arguments. */
static bool light(const struct hx_experts_args *x)
{
    const struct hx_weight *const w[3] = {x->s1, x->s2, x->s3};
    bool ok = x->s1 && x->z->ne[0] <= 48;
    for (int i = 0; ok && i < 3; i++) {
        struct hx_cuda_weight c = hx_cuda_weight(w[i]);
        ok = hx_cu_gemv_takes(&c, 0);
    }
    return ok;
}

/* The shared expert beside the routed ones, from the last fork on if that has its rows; *there:
 * what the user of its output waits for, NULL if it was queued in line. */
static int shared_beside(struct hx_device *dev, const struct hx_experts_args *x, const uint16_t *z,
                         int m, float *a, float *b, uint16_t *t, float *out, cudaEvent_t *there,
                         struct hx_error *err)
{
    cudaStream_t line = dev->stream;
    bool beside = dev->forked == z && light(x);
    *there = NULL;
    dev->forked = NULL;
    if (!beside)
        return shared_expert(dev, x, z, m, a, b, t, out, err);
    int r = LAUNCH(cudaStreamWaitEvent(dev->side, dev->fork, 0), "shared expert");
    dev->stream = dev->side;
    if (r == 0)
        r = shared_expert(dev, x, z, m, a, b, t, out, err);
    if (r == 0)
        r = LAUNCH(cudaEventRecord(dev->joined, dev->side), "shared expert");
    dev->stream = line;
    *there = dev->joined;
    return r;
}

/* m tokens from t0: routed experts pair by pair, then the shared one, then the sum. */
static int expert_tile(struct hx_device *dev, const struct hx_experts_args *x,
                       const struct hx_cuda_choice w[3], int t0, int m, struct expert_room *k,
                       struct hx_error *err)
{
    int64_t d = x->z->ne[1], ff = w[0].n_out;
    int used = (int)x->sel->ne[1], pairs = m * used;
    const uint16_t *z = (const uint16_t *)x->z->data + t0 * d;
    const float *weight = (const float *)x->weight->data + t0 * used;
    struct hx_cuda_choice e[3] = {w[0], w[1], w[2]};
    for (int i = 0; i < 3; i++)
        e[i].sel = (const int32_t *)x->sel->data + t0 * used;
    int r = product(dev, &e[0], z, used, d, 0, pairs, k->a, err);
    if (r == 0)
        r = product(dev, &e[2], z, used, d, 0, pairs, k->b, err);
    if (r == 0)
        r = LAUNCH(hx_cu_swiglu(dev->stream, k->a, k->b, weight, pairs, ff, x->limit, k->t),
                   "experts");
    if (r == 0)
        r = product(dev, &e[1], k->t, 1, ff, 0, pairs, k->out, err);
    if (r == 0)
        r = shared_expert(dev, x, z, m, k->a, k->b, k->t, k->shared, err);
    if (r == 0)
        r = LAUNCH(hx_cu_expert_sum(dev->stream, k->out, k->shared, m, used, d,
                                    (uint16_t *)x->y->data + t0 * d),
                   "experts");
    return r;
}

/* Experts with kernels of their own, some tokens at a time; fp4: FP4 ones, else EXL3. */
static int grouped_experts(struct hx_device *dev, const struct hx_experts_args *x,
                           const struct hx_cuda_choice w[3], bool fp4, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t d = x->z->ne[1], ff = w[0].n_out, width = x->s1 ? x->s1->n_out : 0;
    int n = (int)x->z->ne[0], used = (int)x->sel->ne[1], r = 0;
    size_t (*room_of)(const struct hx_cuda_exl3 *, int) = fp4 ? hx_cu_fp4_room : hx_cu_exl3_room;
    /* Each expert's own matrices fit each other. */
    for (int i = 0; w[0].unequal && i < x->n_expert; i++) {
        if (x->w3[i]->n_out != x->w1[i]->n_out || x->w2[i]->n_in != x->w1[i]->n_out)
            return hx_fail(
                err, -EINVAL, "cuda: expert %d is %lld, %lld and %lld wide: expected the same", i,
                (long long)x->w1[i]->n_out, (long long)x->w3[i]->n_out, (long long)x->w2[i]->n_in);
    }
    struct hx_cuda_exl3 a = {.used = used,
                             .n_expert = x->n_expert,
                             .bits = w[0].mul1_bits,
                             .down_bits = w[1].mul1_bits,
                             .d = d,
                             .ff = ff,
                             .unequal = w[0].unequal,
                             .w1 = w[0].table,
                             .w2 = w[1].table,
                             .w3 = w[2].table,
                             .limit = x->limit};
    /* The larger half of the room: what linear needs for other formats comes on top. */
    size_t row = room_of(&a, 64) / 64 + (size_t)width * 10 + (size_t)d * 4;
    int64_t fit = (int64_t)((dev->scratch_size - dev->used) / 2 / row);
    int tile = fit < 1 ? 1 : fit < n ? (int)fit : n;
    size_t rows = (size_t)tile;
    float *left = hx_cuda_scratch(dev, rows * (size_t)width * 4, err);
    float *right = left ? hx_cuda_scratch(dev, rows * (size_t)width * 4, err) : NULL;
    uint16_t *mid = right ? hx_cuda_scratch(dev, rows * (size_t)width * 2, err) : NULL;
    float *shared = mid ? hx_cuda_scratch(dev, rows * (size_t)d * 4, err) : NULL;
    a.room = shared ? hx_cuda_scratch(dev, room_of(&a, tile), err) : NULL;
    if (!a.room)
        r = -ENOMEM;
    a.shared = x->s1 ? shared : NULL;
    for (int t0 = 0; r == 0 && t0 < n; t0 += tile) {
        a.n_tok = n - t0 < tile ? n - t0 : tile;
        a.z = (const uint16_t *)x->z->data + t0 * d;
        a.sel = (const int32_t *)x->sel->data + t0 * used;
        a.weight = (const float *)x->weight->data + t0 * used;
        a.y = (uint16_t *)x->y->data + t0 * d;
        if (x->s1)
            r = shared_beside(dev, x, a.z, a.n_tok, left, right, mid, shared, &a.shared_there, err);
        if (r == 0)
            r = LAUNCH(fp4 ? hx_cu_fp4(dev->stream, &a, dev->n_sm)
                           : hx_cu_exl3(dev->stream, &a, dev->n_sm),
                       "experts");
    }
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

static int experts(struct hx_device *dev, const struct hx_experts_args *x, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t d = x->z->ne[1];
    int n = (int)x->z->ne[0], used = (int)x->sel->ne[1], r = refuse_quantised(x->quantise, err);
    if (r == 0 && x->y->dtype != HX_DTYPE_BF16)
        r = hx_fail(err, -ENOTSUP, "cuda: outputs of experts are BF16");
    const struct hx_weight *const *table[3] = {x->w1, x->w2, x->w3};
    struct hx_cuda_choice w[3];
    for (int i = 0; r == 0 && i < 3; i++)
        r = hx_cuda_choice_of(dev, table[i], x->n_expert, &w[i], err);
    if (r < 0 || n == 0)
        return r;
    if (!dev->exact && hx_cu_exl3_takes(&w[0], &w[1], &w[2], x->n_expert, used))
        return grouped_experts(dev, x, w, false, err);
    if (!dev->exact && hx_cu_fp4_takes(&w[0], &w[1], &w[2], x->n_expert, used))
        return grouped_experts(dev, x, w, true, err);
    if (!x->s1)
        return hx_fail(err, -ENOTSUP, "cuda: experts of this format need a shared one");
    /* Wide enough for the shared expert too. */
    int64_t ff = x->s1->n_out > w[0].n_out ? x->s1->n_out : w[0].n_out;
    size_t pair = (size_t)(2 * ff + d) * 4 + (size_t)ff * 2;
    size_t row = pair * (size_t)used + (size_t)d * 4;
    int64_t fit = (int64_t)((dev->scratch_size - dev->used) / 2 / row);
    int tile = fit < 1 ? 1 : fit < n ? (int)fit : n;
    size_t pairs = (size_t)tile * (size_t)used;
    struct expert_room k = {0};
    k.a = hx_cuda_scratch(dev, pairs * (size_t)ff * 4, err);
    k.b = k.a ? hx_cuda_scratch(dev, pairs * (size_t)ff * 4, err) : NULL;
    k.out = k.b ? hx_cuda_scratch(dev, pairs * (size_t)d * 4, err) : NULL;
    k.shared = k.out ? hx_cuda_scratch(dev, (size_t)tile * (size_t)d * 4, err) : NULL;
    k.t = k.shared ? hx_cuda_scratch(dev, pairs * (size_t)ff * 2, err) : NULL;
    if (!k.t)
        r = -ENOMEM;
    for (int t0 = 0; r == 0 && t0 < n; t0 += tile)
        r = expert_tile(dev, x, w, t0, n - t0 < tile ? n - t0 : tile, &k, err);
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

/* ---- attention ---- */

static int kv_store(struct hx_device *dev, const struct hx_batch *batch, enum hx_kv_which which,
                    int layer, const int64_t *row, const struct hx_tensor *codes,
                    const struct hx_tensor *scales, struct hx_error *err)
{
    struct hx_cuda_views kv = {batch->kv_device};
    if (codes->ne[0] == 0)
        return 0;
    return LAUNCH(hx_cu_kv_store(dev->stream, &kv, (int)which, layer, batch->seq, row,
                                 (int)codes->ne[0], codes->data, (int)row_len(codes), scales->data,
                                 (int)row_len(scales)),
                  "kv_store");
}

static int pool_groups(struct hx_device *dev, const struct hx_batch *batch, int source,
                       const struct hx_tensor *u, const struct hx_tensor *g, const int32_t *seq,
                       const int64_t *row, struct hx_tensor *lat, struct hx_error *err)
{
    struct hx_cuda_batch b = pack_batch(batch);
    if (b.n_row == 0)
        return 0;
    return LAUNCH(hx_cu_pool_groups(dev->stream, &b, source, u->data, g->data, (int)u->ne[1], seq,
                                    row, (int)lat->ne[0], lat->data),
                  "pool_groups");
}

static int index_select(struct hx_device *dev, const struct hx_index_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    struct hx_cuda_index c = {.source = a->source,
                              .ratio = a->ratio,
                              .n_head = (int)a->q->ne[1],
                              .d = (int)a->q->ne[2],
                              .q = a->q->data,
                              .w = a->w->data,
                              .q_codes = a->q_codes ? a->q_codes->data : NULL,
                              .q_scales = a->q_scales ? a->q_scales->data : NULL,
                              .barriers = dev->counters + HX_CUDA_INDEX_BARRIERS,
                              .n_sm = dev->n_sm,
                              .fast = !dev->exact,
                              .factor = a->factor,
                              .topk = a->topk,
                              .cand_block = a->cand_block,
                              .n_cand = a->n_cand,
                              .write_cand = a->write_cand,
                              .read_cand = a->read_cand,
                              .sel = a->sel->data,
                              .cand = a->cand ? a->cand->data : NULL,
                              .tap = a->score ? a->score->data : NULL,
                              .tap_width = a->score ? a->score->ne[1] : 0,
                              .most = a->n_visible,
                              .fault = dev->fault_dev};
    int r = refuse_quantised(a->reference, err);
    c.batch = pack_batch(a->batch);
    if (r < 0 || c.batch.n_row == 0)
        return r;
    size_t blocks = (size_t)(c.most / c.cand_block + 1),
           row = ((size_t)c.most + blocks) * 4 + (64 << 10);
    int64_t fit = (int64_t)((dev->scratch_size - dev->used - 1024) / row);
    fit = fit > a->batch->n_row ? a->batch->n_row : fit;
    c.tile = (int)(fit < 1 ? 1 : fit > HX_CUDA_INDEX_TILE ? HX_CUDA_INDEX_TILE : fit);
    c.score = hx_cuda_scratch(dev, (size_t)c.tile * (size_t)c.most * 4, err);
    c.blocks = c.score ? hx_cuda_scratch(dev, (size_t)c.tile * blocks * 4, err) : NULL;
    c.room = c.blocks ? hx_cuda_scratch(dev, hx_cu_index_room(&c), err) : NULL;
    r = c.room ? LAUNCH(hx_cu_index_select(dev->stream, &c), "index_select") : -ENOMEM;
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

static int attend_plain(struct hx_device *dev, const struct hx_attend_args *a,
                        const struct hx_cuda_attend *c, struct hx_error *err)
{
    int r = 0, n = c->batch.n_row;
    if (c->freq)
        r = LAUNCH(hx_cu_rope(dev->stream, a->q->data, n, c->n_head, c->d, c->batch.pos, c->freq,
                              c->n_freq, false),
                   "rope");
    if (r == 0)
        r = LAUNCH(hx_cu_attend(dev->stream, c), "attend");
    if (r == 0 && c->freq)
        r = LAUNCH(hx_cu_rope(dev->stream, c->o, n, c->n_head, c->d, c->batch.pos, c->freq,
                              c->n_freq, true),
                   "rope");
    return r;
}

static int attend(struct hx_device *dev, const struct hx_attend_args *a, struct hx_error *err)
{
    struct hx_cuda_attend c = {.layer = a->layer,
                               .source = a->source,
                               .window = a->window,
                               .block = a->block,
                               .n_head = (int)a->q->ne[1],
                               .d = (int)a->q->ne[2],
                               .topk = a->source >= 0 ? (int)a->sel->ne[1] : 0,
                               .q = a->q->data,
                               .fresh_codes = a->fresh_codes->data,
                               .fresh_scales = a->fresh_scales->data,
                               .sel = a->source >= 0 ? a->sel->data : NULL,
                               .sink = hx_cuda_weight(a->sink),
                               .scale = a->scale,
                               .freq = a->freq ? a->freq->data : NULL,
                               .n_freq = a->freq ? (int)a->freq->ne[0] : 0,
                               .o = a->o->data,
                               .meeting = dev->counters + HX_CUDA_ATTEND_WORDS,
                               .n_sm = dev->n_sm};
    int r = 0;
    c.batch = pack_batch(a->batch);
    if (c.batch.n_row == 0)
        return 0;
    if (dev->exact || !hx_cu_attend_split_takes(&c))
        return attend_plain(dev, a, &c, err);
    size_t mark = dev->used, row = hx_cu_attend_split_room(&c, 1);
    int64_t fit = (int64_t)((dev->scratch_size - dev->used) / 2 / row);
    int n = c.batch.n_row, tile = fit < 1 ? 1 : fit < n ? (int)fit : n;
    float *room = hx_cuda_scratch(dev, (size_t)tile * row, err);
    r = room ? 0 : -ENOMEM;
    for (int at = 0; r == 0 && at < n; at += tile) {
        r = LAUNCH(
            hx_cu_attend_split(dev->stream, &c, at, n - at < tile ? n - at : tile, room, &dev->mix),
            "attend");
        dev->mix.n_row = 0;
    }
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

/* ---- Engram ---- */

static int engram_rows(struct hx_device *dev, const struct hx_tensor *codes,
                       const struct hx_tensor *scales, struct hx_tensor *v, struct hx_error *err)
{
    int64_t n = codes->ne[0] * row_len(codes);
    if (n == 0)
        return 0;
    return LAUNCH(hx_cu_engram_rows(dev->stream, codes->data, scales->data, n, v->data),
                  "engram_rows");
}

static int engram_fetch(struct hx_device *dev, const struct hx_fetch_args *a, struct hx_error *err)
{
    int64_t n = a->codes->ne[0] * row_len(a->codes);
    return LAUNCH(
        hx_cu_engram_fetch(dev->stream, a->ready, a->codes->data, a->scales->data, n, a->v->data),
        "engram_fetch");
}

static int engram_gate(struct hx_device *dev, const struct hx_engram_args *a, struct hx_error *err)
{
    struct hx_cuda_gate c = {.n_row = (int)a->streams->ne[0],
                             .n_stream = (int)a->streams->ne[1],
                             .d = a->streams->ne[2],
                             .streams = a->streams->data,
                             .z = a->z->data,
                             .q_weight = hx_cuda_weight(a->q_weight),
                             .k_weight = hx_cuda_weight(a->k_weight),
                             .dead = a->dead,
                             .eps = a->eps,
                             .dot = a->dot->data,
                             .gate = a->gate->data};
    return c.n_row ? LAUNCH(hx_cu_engram_gate(dev->stream, &c), "engram_gate") : 0;
}

/* ---- drafter ---- */

static struct hx_cuda_best best_args(struct hx_device *dev, enum hx_cuda_fault nan)
{
    return (struct hx_cuda_best){
        .best = (void *)(dev->counters + HX_CUDA_BEST_WORDS),
        .count = dev->counters + 2,
        .nan = (int)nan,
        .fault = dev->fault_dev,
    };
}

static int markov(struct hx_device *dev, const struct hx_markov_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int n = (int)a->base->ne[0], block = (int)a->base->ne[1], rank = (int)a->embed->n_in;
    int64_t n_vocab = a->base->ne[2];
    uint16_t *packed = hx_cuda_scratch(dev, (size_t)n * (size_t)rank * 2, err);
    float *correction =
        packed ? hx_cuda_scratch(dev, (size_t)n * (size_t)n_vocab * sizeof(float), err) : NULL;
    if (!correction) {
        hx_cuda_scratch_reset(dev, mark);
        return -ENOMEM;
    }
    int r = LAUNCH(hx_cu_markov_latent(dev->stream, a->embed->part[HX_PART_DATA].data, rank,
                                       a->tokens->data, n, block, a->k, a->latent->data, packed),
                   "markov");
    struct hx_tensor x = {HX_DTYPE_BF16, 2, {n, rank, 1, 1}, packed};
    struct hx_tensor y = {HX_DTYPE_F32, 2, {n, n_vocab, 1, 1}, correction};
    if (r == 0)
        r = linear_rows(dev, a->head, rank, 0, &x, &y, err);
    struct hx_cuda_best c = best_args(dev, HX_CUDA_NAN_DRAFT);
    c.x = (const float *)a->base->data + a->k * n_vocab;
    c.more = correction;
    c.sum = (float *)a->logits->data + a->k * n_vocab;
    c.n = n_vocab;
    c.stride = block * n_vocab;
    c.tokens = (int32_t *)a->tokens->data + a->k + 1;
    c.token_stride = block + 1;
    if (r == 0)
        r = LAUNCH(hx_cu_best(dev->stream, &c, n), "markov");
    hx_cuda_scratch_reset(dev, mark);
    return r;
}

static int best(struct hx_device *dev, const struct hx_tensor *logits, struct hx_tensor *tokens,
                struct hx_error *err)
{
    struct hx_cuda_best c = best_args(dev, HX_CUDA_NAN_LOGITS);
    c.x = logits->data;
    c.n = c.stride = logits->ne[2];
    c.tokens = (int32_t *)tokens->data + 1;
    c.token_stride = 2;
    return logits->ne[0] ? LAUNCH(hx_cu_best(dev->stream, &c, (int)logits->ne[0]), "best") : 0;
}

static int confidence(struct hx_device *dev, const struct hx_weight *w, const struct hx_tensor *h,
                      const struct hx_tensor *latent, struct hx_tensor *z, struct hx_error *err)
{
    struct hx_cuda_weight c = hx_cuda_weight(w);
    int64_t d = h->ne[1];
    return LAUNCH(hx_cu_confidence(dev->stream, &c, h->data, d, latent->data, (int)(w->n_in - d),
                                   (int)z->ne[0], z->data),
                  "confidence");
}

#define SINGLE_OPERATIONS                                                                          \
    .embed = embed, .rms_norm = rms_norm, .linear = linear, .linear_grouped = linear_grouped,      \
    .rope = rope, .hc_mix = hc_mix, .hc_collapse = hc_collapse, .hc_expand = hc_expand,            \
    .stream_mean = stream_mean, .quantise = quantise, .kv_store = kv_store,                        \
    .pool_groups = pool_groups, .index_select = index_select, .attend = attend, .route = route,    \
    .experts = experts, .engram_rows = engram_rows, .engram_gate = engram_gate, .markov = markov,  \
    .best = best, .confidence = confidence, .keep_rows = keep_rows

const struct hx_kernels hx_cuda_exact_kernels = {SINGLE_OPERATIONS};
const struct hx_kernels hx_cuda_kernels = {SINGLE_OPERATIONS,
                                           .hc_site = hc_site,
                                           .linear_pair = linear_pair,
                                           .latents = latents,
                                           .index_queries = index_queries,
                                           .engram_fetch = engram_fetch,
                                           .rotates = true};
