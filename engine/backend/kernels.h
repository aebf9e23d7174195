/* The mathematics of this model, one entry per operation. A back end fills this table; the CPU one
 * is the definition. No entry allocates or waits; work is queued on the device in call order.
 *
 * Shapes: T rows of a pass, S = hc_mult streams, D = n_embd, H heads. Activations are BF16,
 * row-major, contiguous. A row's result never depends on which other rows are in the call. */
#ifndef HX_BACKEND_KERNELS_H
#define HX_BACKEND_KERNELS_H

#include "backend/backend.h"
#include "backend/kv_view.h"

/* Rows of a pass. The arrays are on the device unless noted. */
struct hx_batch {
    int n_row, n_seq;
    const int32_t *seq;       /* [n_row] sequence of the row */
    const int64_t *pos;       /* [n_row] absolute position */
    const uint8_t *dead;      /* [n_row] 1 inside an image span */
    const int64_t *first_pos; /* [n_seq] position of the sequence's first row in `fresh` rows */
    const int32_t *first_row; /* [n_seq] index of that row */
    const struct hx_kv_view *const *kv;        /* [n_seq]; a view's own arrays are host memory */
    const struct hx_kv_view *const *kv_device; /* [n_seq] their `device`, in device memory */
};

/* Grids of stored rows (docs/numerics.md). */
enum hx_grid {
    HX_GRID_FP8_B32, /* e4m3, UE8M0 per 32: window rows */
    HX_GRID_FP4_B32, /* e2m1, UE8M0 per 32: index keys and queries */
    HX_GRID_FP4_B16, /* e2m1, e4m3 per 16: compressed rows */
};

enum hx_kv_which { HX_KV_WINDOW, HX_KV_COMP, HX_KV_KEY };

struct hx_hc_args {
    const struct hx_tensor *streams; /* BF16 [T, S, D] */
    const struct hx_weight *fn, *base, *scale;
    int iters;
    float rms_eps, hc_eps;
    struct hx_tensor *pre, *post, *comb; /* F32 [T, S], [T, S], [T, S, S] */
};

/* A site whole: hc_expand of the sublayer before (y NULL: done), hc_collapse and rms_norm into x,
 * hc_mix. */
struct hx_site_args {
    struct hx_hc_args mix;       /* its streams are those after expand */
    const struct hx_tensor *y;   /* BF16 [T, D], with post and comb as they come in */
    struct hx_tensor *streams;   /* updated */
    const struct hx_tensor *pre; /* of the site before; not mix.pre */
    const struct hx_weight *norm;
    float norm_eps;
    struct hx_tensor *x; /* BF16 [T, D] */
};

/* kv = w[0] x, q = w[1] x, if w is there; then rms_norm of q; rms_norm, rope and quantise
 * (HX_GRID_FP8_B32) of kv; kv_store of the window rows if row is there. */
struct hx_latents_args {
    const struct hx_batch *batch;
    int layer;
    struct hx_tensor *q, *kv; /* BF16 [T, q], [T, d] */
    const struct hx_weight *q_norm, *kv_norm;
    float eps;
    const struct hx_tensor *freq;
    struct hx_tensor *codes, *scales;
    const int64_t *row;               /* NULL: not stored */
    const struct hx_weight *const *w; /* [2], or NULL: kv and q are there */
    const struct hx_tensor *x;
};

/* Engram rows that the host puts into memory that both see: waits until *ready is not 0, then as
 * engram_rows. */
struct hx_fetch_args {
    const uint32_t *ready;
    const struct hx_tensor *codes, *scales;
    struct hx_tensor *v;
};

struct hx_index_args {
    const struct hx_batch *batch;
    int source; /* layer whose keys are scored */
    int ratio;
    const struct hx_tensor *q;                  /* BF16 [T, H, d] on the FP4_B32 grid */
    const struct hx_tensor *q_codes, *q_scales; /* the same as it is stored */
    const struct hx_tensor *w;                  /* BF16 [T, H] */
    float factor;                               /* d^-0.5 H^-0.5 */
    bool reference;                             /* scores in bf16 steps */
    int64_t n_visible;            /* at least the keys that the row with most of them sees */
    int topk, cand_block, n_cand; /* limits */
    bool write_cand, read_cand;   /* candidate source; source behind it */
    struct hx_tensor *sel;        /* I32 [T, topk] ascending, -1 behind */
    struct hx_tensor *cand;       /* I32 [T, n_cand] ascending, -1 behind */
    struct hx_tensor *score; /* F32 [T, ne[1]], -inf behind the visible rows; NULL: not wanted */
};

struct hx_attend_args {
    const struct hx_batch *batch;
    int layer, source, window; /* source -1: window only */
    int block; /* 0: causal. A block of drafts: so many fresh rows of a sequence, which all its
                * queries see, behind the `window` rows before them */
    const struct hx_tensor *q;                          /* BF16 [T, H, d] */
    const struct hx_tensor *fresh_codes, *fresh_scales; /* U8 rows of this pass, see first_row */
    const struct hx_tensor *sel;                        /* I32 [T, topk] */
    const struct hx_weight *sink;
    float scale;
    const struct hx_tensor *freq; /* rotate q before, o back behind; NULL: done apart. Only where
                                     `rotates` is set */
    struct hx_tensor *o;          /* BF16 [T, H, d] */
};

struct hx_route_args {
    const struct hx_tensor *z; /* BF16 [T, D] */
    const struct hx_weight *gate, *bias, *bias_vl;
    const uint8_t *dead;
    float temp, route_scale;
    bool norm;
    struct hx_tensor *sel;    /* I32 [T, k] ascending */
    struct hx_tensor *weight; /* F32 [T, k] */
    struct hx_tensor *score;  /* F32 [T, E] unbiased */
};

struct hx_experts_args {
    const struct hx_tensor *z;                                 /* BF16 [T, D] */
    const struct hx_weight *const *w1, *const *w2, *const *w3; /* [n_expert] */
    int n_expert;
    const struct hx_tensor *sel, *weight; /* I32, F32 [T, k] */
    const struct hx_weight *s1, *s2, *s3; /* shared expert; NULL: none (EXL3 on cuda only) */
    float limit;                          /* SwiGLU clamp; 0: none */
    bool quantise;                        /* e4m3 inputs of FP8 and FP4 matrices (reference mode) */
    struct hx_tensor *y; /* BF16 [T, D]; cpu: or F32, outputs of the experts not rounded either */
};

struct hx_engram_args {
    struct hx_tensor *streams; /* BF16 [T, S, D], updated */
    const struct hx_tensor *z; /* BF16 [T, (S + 1) D]: S keys, value */
    const struct hx_weight *q_weight, *k_weight;
    const uint8_t *dead;
    float eps;
    struct hx_tensor *dot, *gate; /* F32 [T, S] */
};

/* One draft of every sequence, from the token before it (spec dspark.md section 2, step 6). */
struct hx_markov_args {
    const struct hx_weight *embed, *head; /* [n_vocab, rank] */
    const struct hx_tensor *base;         /* F32 [N, block, n_vocab] */
    int k;                                /* which draft, 0 to block - 1 */
    struct hx_tensor *tokens; /* I32 [N, block + 1]: anchor, drafts; reads column k, writes k + 1 */
    struct hx_tensor *latent; /* out: BF16 [N block, rank], embedding of column k */
    struct hx_tensor *logits; /* out: F32 [N, block, n_vocab], base and correction */
};

#define DEV struct hx_device *dev
#define ERR struct hx_error *err

struct hx_kernels {
    /* Streams of each token: S copies of its embedding; pre, F32 [T, S]: 1, 0, ... tokens: I32 [T]
     * on the device. */
    int (*embed)(DEV, const struct hx_weight *w, const int32_t *tokens, struct hx_tensor *streams,
                 struct hx_tensor *pre, ERR);
    /* y[r] = RMSNorm(x[r]; w); x, y BF16 [R, K], may be the same. */
    int (*rms_norm)(DEV, const struct hx_weight *w, float eps, const struct hx_tensor *x,
                    struct hx_tensor *y, ERR);
    /* y = W x. x BF16 [T, K]; y BF16 or F32 [T, N]. */
    int (*linear)(DEV, const struct hx_weight *w, bool quantise, const struct hx_tensor *x,
                  struct hx_tensor *y, ERR);
    /* Group g of the output rows sees group g of the input: x BF16 [T, G, K], W [G R, K], y BF16
     * [T, G R]. */
    int (*linear_grouped)(DEV, const struct hx_weight *w, int n_group, const struct hx_tensor *x,
                          struct hx_tensor *y, ERR);
    /* Rotates the trailing 2 n channels of each head, in place. x BF16 [R, H, d]; pos I64 [R]; freq
     * F32 [n]. */
    int (*rope)(DEV, struct hx_tensor *x, const int64_t *pos, const struct hx_tensor *freq,
                bool inverse, ERR);
    int (*hc_mix)(DEV, const struct hx_hc_args *a, ERR);
    /* x = sum_s pre[s] X[s]. */
    int (*hc_collapse)(DEV, const struct hx_tensor *streams, const struct hx_tensor *pre,
                       struct hx_tensor *x, ERR);
    /* X[t] = post[t] y + sum_j comb[j][t] X[j], in place. */
    int (*hc_expand)(DEV, const struct hx_tensor *y, const struct hx_tensor *post,
                     const struct hx_tensor *comb, struct hx_tensor *streams, ERR);
    /* out[t][slot] = mean of the streams of row t; out BF16 [T, slots, D]. */
    int (*stream_mean)(DEV, const struct hx_tensor *streams, int slot, struct hx_tensor *out, ERR);
    /* Rows of x onto a grid. codes U8 [R, bytes], scales U8 [R, bytes]; value (may be NULL or x
     * itself): the quantised values, BF16. */
    int (*quantise)(DEV, enum hx_grid grid, const struct hx_tensor *x, struct hx_tensor *codes,
                    struct hx_tensor *scales, struct hx_tensor *value, ERR);
    /* Quantised rows into the KV state: row r goes to row[r] of the layer's stream `which` in
     * sequence batch->seq[r]; row[r] = -1: nowhere. No two rows of a call go to the same place. */
    int (*kv_store)(DEV, const struct hx_batch *batch, enum hx_kv_which which, int layer,
                    const int64_t *row, const struct hx_tensor *codes,
                    const struct hx_tensor *scales, ERR);
    /* Ratio-2 groups that end in this pass: keeps (u, g) of all rows in the open-group store, pools
     * the groups. u, g F32 [T, d]; group i is rows 2 row[i], 2 row[i] + 1 of sequence seq[i]; lat
     * BF16 [G, d]. */
    int (*pool_groups)(DEV, const struct hx_batch *batch, int source, const struct hx_tensor *u,
                       const struct hx_tensor *g, const int32_t *seq, const int64_t *row,
                       struct hx_tensor *lat, ERR);
    int (*index_select)(DEV, const struct hx_index_args *a, ERR);
    int (*attend)(DEV, const struct hx_attend_args *a, ERR);
    int (*route)(DEV, const struct hx_route_args *a, ERR);
    int (*experts)(DEV, const struct hx_experts_args *a, ERR);
    /* codes U8 [T, C, d], scales U8 [T, C, d/32] -> v BF16 [T, C d]. */
    int (*engram_rows)(DEV, const struct hx_tensor *codes, const struct hx_tensor *scales,
                       struct hx_tensor *v, ERR);
    int (*engram_gate)(DEV, const struct hx_engram_args *a, ERR);
    /* The best token, the lower id among equals. -EDOM: a logit is NaN or +inf. */
    int (*markov)(DEV, const struct hx_markov_args *a, ERR);
    /* Column 1 of tokens (I32 [R, 2]): the best token of logits (F32 [R, 1, N]), the lower id among
     * equals. -EDOM: a logit is NaN or +inf. */
    int (*best)(DEV, const struct hx_tensor *logits, struct hx_tensor *tokens, ERR);
    /* z[r] = w . (h[r], latent[r]); h BF16 [R, D], latent BF16 [R, rank], z F32 [R, 1]. */
    int (*confidence)(DEV, const struct hx_weight *w, const struct hx_tensor *h,
                      const struct hx_tensor *latent, struct hx_tensor *z, ERR);
    /* Keeps the rows row[0..n) (ascending) of x, in place; x->ne[0] becomes n. */
    int (*keep_rows)(DEV, struct hx_tensor *x, const int32_t *row, int n, ERR);

    /* ---- several of these at once, to the bit; optional, NULL where there is none ---- */

    int (*hc_site)(DEV, const struct hx_site_args *a, ERR);
    /* linear of two matrices with the same input. */
    int (*linear_pair)(DEV, const struct hx_weight *const w[2], const struct hx_tensor *x,
                       struct hx_tensor *const y[2], ERR);
    int (*latents)(DEV, const struct hx_latents_args *a, ERR);
    /* rope and quantise (HX_GRID_FP4_B32) of q, in place. */
    int (*index_queries)(DEV, struct hx_tensor *q, const int64_t *pos, const struct hx_tensor *freq,
                         struct hx_tensor *codes, struct hx_tensor *scales, ERR);
    int (*engram_fetch)(DEV, const struct hx_fetch_args *a, ERR);
    bool rotates; /* attend takes freq */
};

#undef DEV
#undef ERR

#endif
