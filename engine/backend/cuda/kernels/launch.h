/* Launchers of the CUDA kernels: plain pointers in, work queued on the stream, nothing waits.
 * Shapes are those of backend/kernels.h; addresses are the device's. */
#ifndef HX_BACKEND_CUDA_LAUNCH_H
#define HX_BACKEND_CUDA_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "backend/kv_view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong in queued work; the first one stays until the next sync. */
enum hx_cuda_fault {
    HX_CUDA_OK,
    HX_CUDA_NAN_ROUTER,
    HX_CUDA_NAN_INDEX,
    HX_CUDA_NAN_DRAFT,
    HX_CUDA_NAN_LOGITS,
    HX_CUDA_FAULT_MAX
};

/* A bound parameter as kernels see it (struct hx_weight, device addresses). */
struct hx_cuda_weight {
    int32_t format; /* enum hx_format */
    int32_t codebook, bits;
    int32_t is_bf16;       /* dense: BF16, else F32 */
    int32_t bias_is_f32;   /* EXL3 */
    int32_t scale_columns; /* FP8: blocks of 32 in a row of scales */
    int64_t n_out, n_in;
    int32_t k_tiles, n_tiles; /* EXL3 */
    const void *data;
    const uint8_t *scale;
    const uint16_t *suh, *svh;
    const void *bias;
};

/* One of several weights by a row's choice: entry sel[row], or `one` if table is NULL. */
struct hx_cuda_choice {
    struct hx_cuda_weight one;
    const struct hx_cuda_weight *table; /* device, [n] */
    const int32_t *sel;                 /* [rows] */
    bool has_exl3, has_plain;
    int64_t n_out, n_in; /* the largest of all entries: experts may have unequal shares */
    int64_t k_padded, n_padded;
    bool unequal;      /* entries differ in width */
    bool fp4;          /* all entries FP4, widths multiples of 128, codes and scales aligned */
    int32_t mul1_bits; /* all entries EXL3, codebook mul1, without padding and bias: their bits,
                          else 0 */
};

#define HX_CUDA_COUNTERS 1024 /* words that blocks of a launch meet at */
struct hx_cuda_views {
    const struct hx_kv_view *const *of; /* device, of device addresses */
};

struct hx_cuda_batch {
    int n_row;
    const int32_t *seq;
    const int64_t *pos;
    const uint8_t *dead;
    const int64_t *first_pos;
    const int32_t *first_row;
    struct hx_cuda_views kv;
};

/* ---- read.cu ---- */
/* Reads bytes (a multiple of 16) with n_block blocks of 512 threads. */
cudaError_t hx_cu_read(cudaStream_t s, const void *p, size_t bytes, int n_block, uint32_t *sink);

/* Nothing for that time. */
cudaError_t hx_cu_spin(cudaStream_t s, uint64_t nanoseconds);

/* out[i] = {clocks, nanoseconds} of multiprocessor i < n, as far as the blocks get there. */
cudaError_t hx_cu_clock(cudaStream_t s, uint64_t *out, int n, int n_block);

/* ---- rows.cu ---- */
cudaError_t hx_cu_embed(cudaStream_t s, const uint16_t *table, const int32_t *token, int n_row,
                        int n_stream, int64_t d, uint16_t *streams, float *pre);
cudaError_t hx_cu_rms_norm(cudaStream_t s, const struct hx_cuda_weight *w, float eps,
                           const uint16_t *x, int64_t n_row, uint16_t *y);
cudaError_t hx_cu_rope(cudaStream_t s, uint16_t *x, int n_row, int n_head, int d,
                       const int64_t *pos, const float *freq, int n_freq, bool inverse);
cudaError_t hx_cu_keep_rows(cudaStream_t s, uint8_t *x, size_t row_bytes, const int32_t *row, int n,
                            void *scratch, size_t scratch_bytes);
/* grid: enum hx_grid. value may be NULL or x. */
cudaError_t hx_cu_quantise(cudaStream_t s, int grid, const uint16_t *x, int64_t n_row, int d,
                           uint8_t *codes, uint8_t *scales, uint16_t *value);

/* ---- hyper.cu ---- */
struct hx_cuda_hc {
    int n_row, n_stream, iters;
    int64_t d;
    const uint16_t *streams;
    struct hx_cuda_weight fn;
    const float *base, *scale;
    float rms_eps, hc_eps;
    float *pre, *post, *comb;
};
cudaError_t hx_cu_hc_mix(cudaStream_t s, const struct hx_cuda_hc *a);
cudaError_t hx_cu_hc_collapse(cudaStream_t s, const uint16_t *streams, const float *pre, int n_row,
                              int n_stream, int64_t d, uint16_t *x);
cudaError_t hx_cu_hc_expand(cudaStream_t s, const uint16_t *y, const float *post, const float *comb,
                            int n_row, int n_stream, int64_t d, uint16_t *streams);
cudaError_t hx_cu_stream_mean(cudaStream_t s, const uint16_t *streams, int n_row, int n_stream,
                              int64_t d, int slot, int n_slot, uint16_t *out);

/* A site but for its coefficients: new streams from the output y of the sublayer before (NULL: they
 * are new), their collapse normed into x. Four streams, d a multiple of 32. room: hx_cu_site_room
 * bytes, read until the coefficients are made; barrier: grid_barrier's. */
struct hx_cuda_site {
    int n_row, iters;
    int64_t d;
    uint16_t *streams;
    const uint16_t *y;
    const float *pre;
    float *pre_next, *post, *comb;
    struct hx_cuda_weight norm, fn;
    const float *base, *scale;
    float norm_eps, rms_eps, hc_eps;
    uint16_t *x;
    void *room;
    uint32_t *barrier;
};
/* Coefficients of a site that are still to be made, pre, post and comb, from its sums. */
struct hx_cuda_mix {
    int n_row; /* 0: none */
    int n_slice, iters;
    int64_t d;
    const float *sums, *base, *scale;
    float rms_eps, hc_eps;
    float *pre, *post, *comb;
};
bool hx_cu_site_takes(int n_stream, int64_t d);
size_t hx_cu_site_room(int n_row, int64_t d);
cudaError_t hx_cu_site(cudaStream_t s, const struct hx_cuda_site *a, int n_sm,
                       struct hx_cuda_mix *mix);
cudaError_t hx_cu_site_mix(cudaStream_t s, const struct hx_cuda_mix *mix);

/* ---- product.cu ---- */
/* y[r][o] = W x[r / x_div], float32. group > 0: output rows in groups of that many, group g reads
 * columns g n_in .. of a row of x. xr, inner: room for rotated inputs [n][k_padded] and products
 * [n][n_padded] of EXL3 entries. */
cudaError_t hx_cu_product(cudaStream_t s, const struct hx_cuda_choice *w, const uint16_t *x,
                          int x_div, int64_t x_stride, int64_t group, int n, float *y, double *xr,
                          double *inner);
cudaError_t hx_cu_to_bf16(cudaStream_t s, const float *x, int64_t n, uint16_t *y);

/* ---- gemv.cu ---- */
#define HX_CUDA_GEMV_PARTS 4
/* Fast product of FP8 or BF16 weights; y BF16 or, if NULL, y32. group as above. takes: whether the
 * shape fits (inputs a multiple of 64, outputs and groups of 32). FP8 block exponents must be 8 to
 * 134. */
bool hx_cu_gemv_takes(const struct hx_cuda_weight *w, int64_t group);
cudaError_t hx_cu_gemv(cudaStream_t s, const struct hx_cuda_weight *w, const uint16_t *x,
                       int64_t x_stride, int64_t group, int n_row, uint16_t *y, float *y32,
                       int n_sm);
/* The same for n_w matrices of one format and width in one launch, each with the bits it has alone.
 * y or y32 is NULL, or one of both is for each matrix. */
cudaError_t hx_cu_gemv_many(cudaStream_t s, const struct hx_cuda_weight *w, int n_w,
                            const uint16_t *x, int64_t x_stride, int n_row, uint16_t *const *y,
                            float *const *y32, int n_sm);

/* t[r][i] = bf16(silu(clamp a) clamp b) of a row's outputs a of w[0] and b of w[1]: up to 8 rows,
 * FP8 of one shape. */
bool hx_cu_gemv_gated_takes(const struct hx_cuda_weight w[2], int n_row);
cudaError_t hx_cu_gemv_gated(cudaStream_t s, const struct hx_cuda_weight w[2], const uint16_t *x,
                             int n_row, float limit, uint16_t *t, int n_sm);
struct hx_cuda_latents;
/* a->kv = w[0] x, a->q = w[1] x of up to 8 rows, then as hx_cu_latents, in one launch. barrier:
 * grid_barrier's. */
bool hx_cu_gemv_latents_takes(const struct hx_cuda_weight w[2], const struct hx_cuda_latents *a);
cudaError_t hx_cu_gemv_latents(cudaStream_t s, const struct hx_cuda_weight w[2], const uint16_t *x,
                               const struct hx_cuda_latents *a, uint32_t *barrier, int n_sm);

/* ---- experts.cu ---- */
/* t[p][i] = bf16(silu(clamp a) clamp b weight[p]); weight NULL: 1. */
cudaError_t hx_cu_swiglu(cudaStream_t s, const float *a, const float *b, const float *weight, int n,
                         int64_t width, float limit, uint16_t *t);
/* y[t] = bf16(sum of the k routed outputs in order, then the shared one, each rounded to bf16).
 * shared NULL: without. */
cudaError_t hx_cu_expert_sum(cudaStream_t s, const float *routed, const float *shared, int n_tok,
                             int k, int64_t d, uint16_t *y);
struct hx_cuda_route {
    int n_row, n_expert, k;
    bool norm;
    float temp, route_scale;
    const float *bias, *bias_vl;
    const uint8_t *dead;
    float *score; /* in: logits; out: unbiased scores */
    int32_t *sel;
    float *weight;
    uint32_t *fault;
};
cudaError_t hx_cu_route(cudaStream_t s, const struct hx_cuda_route *a);

/* ---- router.cu ---- */
/* Scores and choice in one launch; a->score is written only. Gate BF16 [n_expert][d], up to 512
 * experts, d a multiple of 128. count: HX_CUDA_COUNTERS words, zero before and after. mix: made on
 * the side, or NULL. */
bool hx_cu_router_takes(const struct hx_cuda_weight *gate, int n_expert, int k);
cudaError_t hx_cu_router(cudaStream_t s, const struct hx_cuda_route *a,
                         const struct hx_cuda_weight *gate, const uint16_t *z, uint32_t *count,
                         const struct hx_cuda_mix *mix);

/* ---- exl3.cu ---- */
/* A layer of EXL3 experts, gate and up of the same bits; y as hx_cu_expert_sum's. */
struct hx_cuda_exl3 {
    int n_tok, used, n_expert, bits, down_bits;
    int64_t d, ff;
    bool unequal; /* experts' widths differ: ff is the largest, all are multiples of 128 */
    const struct hx_cuda_weight *w1, *w2, *w3; /* device, [n_expert] */
    const uint16_t *z;                         /* [n_tok][d] */
    const int32_t *sel;                        /* [n_tok][used] */
    const float *weight;
    float limit;
    const float *shared;      /* [n_tok][d]: the shared expert's output, or NULL */
    cudaEvent_t shared_there; /* what adds it waits for it; NULL: it is there */
    void *room;               /* hx_cu_exl3_room bytes */
    uint16_t *y;
};
bool hx_cu_exl3_takes(const struct hx_cuda_choice *w1, const struct hx_cuda_choice *w2,
                      const struct hx_cuda_choice *w3, int n_expert, int used);
/* used, d and ff of a count. */
size_t hx_cu_exl3_room(const struct hx_cuda_exl3 *a, int n_tok);
cudaError_t hx_cu_exl3(cudaStream_t s, const struct hx_cuda_exl3 *a, int n_sm);

/* ---- fp4.cu ---- */
/* The same for FP4 experts (bits are not read). Block exponents must be 2 to 128. */
bool hx_cu_fp4_takes(const struct hx_cuda_choice *w1, const struct hx_cuda_choice *w2,
                     const struct hx_cuda_choice *w3, int n_expert, int used);
size_t hx_cu_fp4_room(const struct hx_cuda_exl3 *a, int n_tok);
cudaError_t hx_cu_fp4(cudaStream_t s, const struct hx_cuda_exl3 *a, int n_sm);

/* ---- kv.cu ---- */
/* which: enum hx_kv_which. */
cudaError_t hx_cu_kv_store(cudaStream_t s, const struct hx_cuda_views *kv, int which, int layer,
                           const int32_t *seq, const int64_t *row, int n, const uint8_t *codes,
                           int code_bytes, const uint8_t *scales, int scale_bytes);
cudaError_t hx_cu_pool_groups(cudaStream_t s, const struct hx_cuda_batch *b, int source,
                              const float *u, const float *g, int d, const int32_t *seq,
                              const int64_t *row, int n_group, uint16_t *lat);

/* Normed queries in place, and window rows normed, rotated, quantised and, if store, put into the
 * ring. Each as the plain kernels do it, to the bit. */
struct hx_cuda_latents {
    struct hx_cuda_batch batch;
    uint16_t *q, *kv;
    struct hx_cuda_weight q_norm, kv_norm; /* their n_in: widths of the rows */
    float eps;
    const float *freq;
    int n_freq, layer;
    uint8_t *codes, *scales;
    bool store;
    const int64_t *row; /* where to, -1: nowhere */
};
bool hx_cu_latents_takes(const struct hx_cuda_latents *a);
cudaError_t hx_cu_latents(cudaStream_t s, const struct hx_cuda_latents *a);
/* Queries of the index: rotated and put onto the FP4_B32 grid, codes, scales and value. */
cudaError_t hx_cu_index_queries(cudaStream_t s, uint16_t *q, int n_row, int n_head, int d,
                                const int64_t *pos, const float *freq, int n_freq, uint8_t *codes,
                                uint8_t *scales);

/* ---- index.cu ---- */
struct hx_cuda_index {
    struct hx_cuda_batch batch; /* rows first_row .. first_row + n_row - 1 of the call */
    int source, ratio, n_head, d;
    const uint16_t *q, *w;
    const uint8_t *q_codes, *q_scales; /* q as it is stored, or NULL */
    float factor;
    int topk, cand_block, n_cand;
    bool write_cand, read_cand;
    int32_t *sel, *cand;
    float *tap; /* [n_row][tap_width] or NULL */
    int64_t tap_width;
    int64_t most;  /* rows of `score`: at least the visible ones */
    int tile;      /* rows that the room is for */
    float *score;  /* room [tile][most] */
    float *blocks; /* room [tile][most / cand_block + 1] */
    uint32_t *room;
    uint32_t *barriers; /* grid_barrier's, one a row of a tile */
    int n_sm;
    bool fast; /* scores as integers on tensor cores where they are exact */
    uint32_t *fault;
};
#define HX_CUDA_INDEX_TILE 64 /* rows at most */
size_t hx_cu_index_room(const struct hx_cuda_index *a);
cudaError_t hx_cu_index_select(cudaStream_t s, const struct hx_cuda_index *a);

/* ---- attend.cu ---- */
struct hx_cuda_attend {
    struct hx_cuda_batch batch;
    int layer, source, window, block, n_head, d, topk;
    const uint16_t *q;
    const uint8_t *fresh_codes, *fresh_scales;
    const int32_t *sel;
    struct hx_cuda_weight sink;
    float scale;
    const float *freq; /* attend_split alone: [n_freq], rotate q before and o back; or NULL */
    int n_freq;
    uint16_t *o;
    uint32_t *meeting; /* attend_split alone: HX_CUDA_COUNTERS words for grid_barrier, or NULL */
    int n_sm;
};
cudaError_t hx_cu_attend(cudaStream_t s, const struct hx_cuda_attend *a);

/* ---- attend_split.cu ---- */
/* The same on tensor cores for rows first .. first + n - 1; room: hx_cu_attend_split_room bytes.
 * mix: made on the side, or NULL. */
bool hx_cu_attend_split_takes(const struct hx_cuda_attend *a);
size_t hx_cu_attend_split_room(const struct hx_cuda_attend *a, int n_row);
cudaError_t hx_cu_attend_split(cudaStream_t s, const struct hx_cuda_attend *a, int first, int n,
                               float *room, const struct hx_cuda_mix *mix);

/* ---- engram.cu ---- */
cudaError_t hx_cu_engram_rows(cudaStream_t s, const uint8_t *codes, const uint8_t *scales,
                              int64_t n_value, uint16_t *v);
/* The same once *ready is not 0; all three in memory that host and card see. */
cudaError_t hx_cu_engram_fetch(cudaStream_t s, const uint32_t *ready, const uint8_t *codes,
                               const uint8_t *scales, int64_t n_value, uint16_t *v);
struct hx_cuda_gate {
    int n_row, n_stream;
    int64_t d;
    uint16_t *streams;
    const uint16_t *z;
    struct hx_cuda_weight q_weight, k_weight;
    const uint8_t *dead;
    float eps;
    float *dot, *gate;
};
cudaError_t hx_cu_engram_gate(cudaStream_t s, const struct hx_cuda_gate *a);

/* ---- draft.cu ---- */
cudaError_t hx_cu_markov_latent(cudaStream_t s, const uint16_t *embed, int rank,
                                const int32_t *tokens, int n_seq, int block, int k,
                                uint16_t *latent, uint16_t *packed);
/* The best of n values of each row, the lower index among equals. With more, of the sums of both,
 * which are left in sum. */
#define HX_CUDA_BEST_ROWS 64
struct hx_cuda_best {
    const float *x;    /* [rows] of n, stride apart; so is sum */
    const float *more; /* [rows][n], or NULL */
    float *sum;        /* or NULL */
    int64_t n, stride, token_stride;
    int32_t *tokens;
    unsigned long long *best; /* [HX_CUDA_BEST_ROWS], zero before and after; so is count */
    uint32_t *count;
    int nan; /* enum hx_cuda_fault, if a value is NaN */
    uint32_t *fault;
};
cudaError_t hx_cu_best(cudaStream_t s, const struct hx_cuda_best *a, int n_row);
cudaError_t hx_cu_confidence(cudaStream_t s, const struct hx_cuda_weight *w, const uint16_t *h,
                             int64_t d, const uint16_t *latent, int rank, int n, float *z);

#ifdef __cplusplus
}
#endif
#endif
