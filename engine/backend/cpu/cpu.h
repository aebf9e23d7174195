/* Inside of the CPU back end. */
#ifndef HX_BACKEND_CPU_CPU_H
#define HX_BACKEND_CPU_CPU_H

#include "backend/cpu/numerics.h"
#include "backend/kernels.h"

/* Working memory of one kernel call; calls on one device do not overlap. */
#define HX_CPU_SCRATCH (64u << 20)

struct hx_device {
    uint8_t *scratch;
    size_t used;
};

/* n bytes of scratch, 64-byte aligned, until hx_scratch_reset; NULL with err set when it is too
 * much. */
void *hx_scratch(struct hx_device *dev, size_t n, struct hx_error *err);
static inline void hx_scratch_reset(struct hx_device *dev, size_t mark)
{
    dev->used = mark;
}

/* For a kernel whose hx_scratch failed. */
static inline int hx_scratch_fail(struct hx_device *dev, size_t mark)
{
    dev->used = mark;
    return -ENOMEM;
}

static inline float *hx_f32(const struct hx_tensor *t)
{
    return t->data;
}
static inline uint16_t *hx_u16(const struct hx_tensor *t)
{
    return t->data;
}
static inline uint8_t *hx_u8(const struct hx_tensor *t)
{
    return t->data;
}
static inline int32_t *hx_i32(const struct hx_tensor *t)
{
    return t->data;
}
/* Elements of a tensor without its first dimension. */
static inline int64_t hx_row_len(const struct hx_tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->n_dims; i++)
        n *= t->ne[i];
    return n;
}

/* Row o of a dense, FP8 or FP4 matrix, exact values. out [n_in]. */
void hx_weight_row(const struct hx_weight *w, int64_t o, double *out);
/* A vector (or all of a small matrix) as float. out [n_out n_in]. */
void hx_weight_floats(const struct hx_weight *w, float *out);
/* y[t][o] for n rows x (double, [n][n_in]) into float [n][n_out], EXL3 only. */
int hx_exl3_product(struct hx_device *dev, const struct hx_weight *w, const double *x, int n,
                    float *y, struct hx_error *err);
/* y = W x for n rows of BF16, results float32 before the rounding to BF16. y [n][n_out]. */
int hx_product(struct hx_device *dev, const struct hx_weight *w, bool quantise, const uint16_t *x,
               int n, float *y, struct hx_error *err);

/* Indices of the k best scores, ascending: score descending, then lower index, -0.0 = +0.0, -inf
 * never taken. Returns how many, or -EDOM for a NaN. idx: room for n. */
int hx_top_indices(const float *score, int64_t n, int k, int32_t *idx);

/* Kernel families; see kernels.h. */
#define HX_CPU_KERNEL(name, ...)                                                                   \
    int hx_cpu_##name(struct hx_device *dev, __VA_ARGS__, struct hx_error *err)
HX_CPU_KERNEL(embed, const struct hx_weight *w, const int32_t *tokens, struct hx_tensor *streams,
              struct hx_tensor *pre);
HX_CPU_KERNEL(rms_norm, const struct hx_weight *w, float eps, const struct hx_tensor *x,
              struct hx_tensor *y);
HX_CPU_KERNEL(linear, const struct hx_weight *w, bool quantise, const struct hx_tensor *x,
              struct hx_tensor *y);
HX_CPU_KERNEL(linear_grouped, const struct hx_weight *w, int n_group, const struct hx_tensor *x,
              struct hx_tensor *y);
HX_CPU_KERNEL(rope, struct hx_tensor *x, const int64_t *pos, const struct hx_tensor *freq,
              bool inverse);
HX_CPU_KERNEL(hc_mix, const struct hx_hc_args *a);
HX_CPU_KERNEL(hc_collapse, const struct hx_tensor *streams, const struct hx_tensor *pre,
              struct hx_tensor *x);
HX_CPU_KERNEL(hc_expand, const struct hx_tensor *y, const struct hx_tensor *post,
              const struct hx_tensor *comb, struct hx_tensor *streams);
HX_CPU_KERNEL(stream_mean, const struct hx_tensor *streams, int slot, struct hx_tensor *out);
HX_CPU_KERNEL(quantise, enum hx_grid grid, const struct hx_tensor *x, struct hx_tensor *codes,
              struct hx_tensor *scales, struct hx_tensor *value);
HX_CPU_KERNEL(kv_store, const struct hx_batch *batch, enum hx_kv_which which, int layer,
              const int64_t *row, const struct hx_tensor *codes, const struct hx_tensor *scales);
HX_CPU_KERNEL(pool_groups, const struct hx_batch *batch, int source, const struct hx_tensor *u,
              const struct hx_tensor *g, const int32_t *seq, const int64_t *row,
              struct hx_tensor *lat);
HX_CPU_KERNEL(index_select, const struct hx_index_args *a);
HX_CPU_KERNEL(attend, const struct hx_attend_args *a);
HX_CPU_KERNEL(route, const struct hx_route_args *a);
HX_CPU_KERNEL(experts, const struct hx_experts_args *a);
HX_CPU_KERNEL(engram_rows, const struct hx_tensor *codes, const struct hx_tensor *scales,
              struct hx_tensor *v);
HX_CPU_KERNEL(engram_gate, const struct hx_engram_args *a);
HX_CPU_KERNEL(markov, const struct hx_markov_args *a);
HX_CPU_KERNEL(best, const struct hx_tensor *logits, struct hx_tensor *tokens);
HX_CPU_KERNEL(confidence, const struct hx_weight *w, const struct hx_tensor *h,
              const struct hx_tensor *latent, struct hx_tensor *z);
HX_CPU_KERNEL(keep_rows, struct hx_tensor *x, const int32_t *row, int n);

/* Sinkhorn on [n][n] logits, in place (spec model.md 3.2). */
void hx_sinkhorn(float *c, int n, int iters, float eps);
/* One query row against listed keys (K = V): q [H][d], kv [n][d] as values, o [H][d] BF16. */
int hx_sink_attention(struct hx_device *dev, const float *q, int n_head, int d, const float *kv,
                      int n, const float *sink, float scale, uint16_t *o, struct hx_error *err);
/* Score of one key for one query row (spec model.md 3.6). q [H][d], w [H], key [d]. */
float hx_index_score(const double *q, const float *w, const double *key, int n_head, int d,
                     float factor, bool reference);
/* The k experts of one row, ascending, and their weights from the unbiased scores; biased: room for
 * n_expert. -EDOM for a NaN or fewer than k finite scores. */
int hx_route_choose(const float *score, const float *bias, int n_expert, int k, bool norm,
                    float route_scale, float *biased, int32_t *sel, float *w);
/* Kept candidate blocks of one row, ascending; returns how many or -EDOM. */
int hx_candidate_blocks(const float *score, int64_t n, int block, int n_keep, float *work,
                        int32_t *blocks);

#endif
