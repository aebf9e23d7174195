/* Inside of the forward pass: weights by layer, activation buffers, row sets. */
#ifndef HX_MODEL_DSV41_PASS_H
#define HX_MODEL_DSV41_PASS_H

#include "model/row_sets.h"

/* Activations, one row for each row of a pass; shapes in dsv41_open.c. */
enum hx_act {
    HX_ACT_STREAMS,
    HX_ACT_PRE,  /* coefficients of the site before */
    HX_ACT_PRE2, /* of this site */
    HX_ACT_POST,
    HX_ACT_COMB,
    HX_ACT_X,    /* sublayer input */
    HX_ACT_Y,    /* sublayer output */
    HX_ACT_PART, /* its partial sum with wide joins */
    HX_ACT_QR,
    HX_ACT_Q,
    HX_ACT_O,
    HX_ACT_OA, /* grouped output latent */
    HX_ACT_KV,
    HX_ACT_KV_CODES,
    HX_ACT_KV_SCALES,
    HX_ACT_COMP_U,
    HX_ACT_COMP_G,
    HX_ACT_LATENT,
    HX_ACT_COMP_CODES,
    HX_ACT_COMP_SCALES,
    HX_ACT_KEY,
    HX_ACT_KEY_CODES,
    HX_ACT_KEY_SCALES,
    HX_ACT_IQ,
    HX_ACT_IQ_CODES,
    HX_ACT_IQ_SCALES,
    HX_ACT_IW,
    HX_ACT_TOPK,
    HX_ACT_CAND,
    HX_ACT_ROUTE_SCORE,
    HX_ACT_ROUTE_EXPERT,
    HX_ACT_ROUTE_WEIGHT,
    HX_ACT_ENGRAM_CODES,
    HX_ACT_ENGRAM_SCALES,
    HX_ACT_ENGRAM_V,
    HX_ACT_ENGRAM_Z,
    HX_ACT_ENGRAM_DOT,
    HX_ACT_ENGRAM_GATE,
    HX_ACT_LOGITS, /* of this rank's tokens; HX_HEAD_ROWS rows at most */
    HX_ACT_ALL_LOGITS,
    HX_ACT_BEST, /* room for another, best token */
    HX_ACT_MAX
};

#define HX_HEAD_ROWS  32 /* rows of logits on the device at once */
#define HX_BEST_ROWS  1024
#define HX_DRAFT_ROWS 4096 /* of tokens of all drafts of a step, confidences */

struct hx_layer {
    const struct hx_weight *w[HX_T_MAX]; /* by role; NULL where the layer has none */
    const struct hx_weight **experts[3]; /* w1, w2, w3: [n_expert] */
    int n_expert, n_expert_used;
};

struct hx_forward {
    const struct hx_hparams *hp;
    const struct hx_maps *maps;
    const struct hx_backend *be;
    const struct hx_kernels *k;
    struct hx_device *dev;
    struct hx_comm *comm; /* NULL: one rank has the whole model */
    int n_ranks;
    bool reference;
    const struct hx_weight *embed, *head, *norm;
    struct hx_layer *layer; /* [n_layer + n_draft_layer] */
    const struct hx_weight **expert_table;
    struct hx_tensor act[HX_ACT_MAX]; /* ne[0]: room */
    struct hx_tensor freq[2];         /* F32 [rope_dim/2]: window-only layers, compressed layers */
    struct hx_buffer *mem;
    struct hx_row_sets rows;
    struct hx_draft *draft;   /* NULL: not wanted, or the model has no drafter */
    struct hx_graphs *graphs; /* recorded passes; NULL: the back end has none */
    int64_t layer_rows;
};

/* The pass being queued and the layer it has reached. */
struct hx_pass {
    struct hx_forward *f;
    const struct hx_forward_in *in; /* NULL: a block of drafts */
    hx_tap_fn tap;
    void *tap_user;
    struct hx_error *err;
    int il;                        /* present layer, for messages and taps; -1 outside */
    const struct hx_layer *layer;  /* its weights */
    const struct hx_tensor *freq;  /* its rotary table */
    const struct hx_row_set *rows; /* rows that enter the layer */
    const struct hx_row_set *out;  /* rows that leave it */
    enum hx_act pre, pre_next;     /* coefficients of the site before, of this site */
    bool grown;                    /* HX_ACT_Y is not in the streams yet */
    bool stored;                   /* the window rows of this layer are in the ring */
    bool recording;                /* into a graph: nothing of this very pass but device memory */
    struct hx_tensor score;        /* index scores, with a tap only */
};

/* Queues one kernel; an error names layer and operation. */
#define HX_RUN(p, op, ...)                                                                         \
    do {                                                                                           \
        int run_r = (p)->f->k->op((p)->f->dev, __VA_ARGS__, (p)->err);                             \
        if (run_r < 0)                                                                             \
            return hx_wrap((p)->err, run_r, "layer %d: %s", (p)->il, #op);                         \
    } while (0)

/* Joins with the other ranks, if there are any. Their partial sums are in HX_PARTIAL. */
#define HX_PARTIAL(p) ((p)->f->comm && (p)->f->comm->wide ? HX_ACT_PART : HX_ACT_Y)
#define HX_JOIN(p, op, ...)                                                                        \
    do {                                                                                           \
        const struct hx_forward *join_f = (p)->f;                                                  \
        int join_r = join_f->comm ? join_f->comm->ops->op(join_f->comm, join_f->be, join_f->dev,   \
                                                          __VA_ARGS__, (p)->err)                   \
                                  : 0;                                                             \
        if (join_r < 0)                                                                            \
            return hx_wrap((p)->err, join_r, "layer %d: join (%s)", (p)->il, #op);                 \
    } while (0)

/* Calls a step that returns 0 or a negative class. */
#define HX_STEP(call)                                                                              \
    do {                                                                                           \
        int step_r = (call);                                                                       \
        if (step_r < 0)                                                                            \
            return step_r;                                                                         \
    } while (0)

/* A hyper-connection site of a layer: its weights, the names of its coefficients. */
struct hx_site {
    enum hx_role fn, base, scale;
    const char *pre, *post, *comb; /* tap names */
};
extern const struct hx_site hx_site_attn, hx_site_ffn;

/* The first n rows of an activation. */
struct hx_tensor hx_pass_act(const struct hx_pass *p, enum hx_act which, int n);
/* Calls the tap, if there is one, when all that is queued is done. */
int hx_pass_tap(const struct hx_pass *p, const char *name, const struct hx_tensor *t);
int hx_pass_tap_act(const struct hx_pass *p, const char *name, enum hx_act which, int n);
const struct hx_weight *hx_pass_weight(const struct hx_pass *p, enum hx_role role);
/* y = W x with the activation grid of the mode. */
int hx_pass_linear(struct hx_pass *p, enum hx_role role, enum hx_act x, enum hx_act y, int n);
int hx_pass_norm(struct hx_pass *p, const struct hx_weight *w, enum hx_act x, int n);
int hx_pass_keep(struct hx_pass *p, enum hx_act which, int n_from, const struct hx_row_set *to);
/* The beginning of a sublayer: its input, the streams collapsed with the coefficients of the site
 * before and normed by w; where the back end has a site whole, its coefficients too. */
int hx_pass_site(struct hx_pass *p, const struct hx_site *s, enum hx_role norm, int n);
bool hx_pass_whole_sites(const struct hx_pass *p);
/* Coefficients of the site, if they are not there, for n rows. */
int hx_pass_mix(struct hx_pass *p, const struct hx_site *s, int n);
/* Streams of the next site; its coefficients become the ones handed on. May leave the streams to
 * the next hx_pass_site or hx_pass_grow. */
int hx_pass_expand(struct hx_pass *p, int n);
int hx_pass_grow(struct hx_pass *p, int n);
int hx_pass_rope(struct hx_pass *p, enum hx_act which, const struct hx_batch *b, bool inverse);
/* Window rows of p->rows from act X, quantised. */
int hx_pass_window_rows(struct hx_pass *p);
/* Window rows and the normed latent of the queries at once, if the back end can and all rows of the
 * layer are wanted; then p->stored may be set, and *done is. */
int hx_pass_latents(struct hx_pass *p, bool *done);
/* Queries of p->out, from their latent if it is there; rotated unless hx_pass_turns. */
int hx_pass_queries(struct hx_pass *p, bool have_latent);
/* Rotary table for an attention that rotates, else NULL. */
const struct hx_tensor *hx_pass_turns(const struct hx_pass *p);
/* Quantised window rows into the ring. After the attention: it reads what these rows overwrite. */
int hx_pass_store_window(struct hx_pass *p);
int hx_pass_attn_out(struct hx_pass *p);
int hx_pass_ffn(struct hx_pass *p);

/* ---- passes as graphs (dsv41_graph.c) ---- */

/* At least the keys that a row of the pass sees at such a ratio; the same for many passes where the
 * back end records. */
int64_t hx_pass_visible(const struct hx_pass *p, int ratio);
/* Staging memory for recorded passes, bytes, pinned. */
size_t hx_graphs_bytes(const struct hx_hparams *h);
int hx_graphs_open(struct hx_forward *f, struct hx_error *err);
void hx_graphs_close(struct hx_forward *f);
/* The kind of a pass whose row sets are built; 0: it cannot be recorded. */
uint64_t hx_graphs_pass_kind(const struct hx_pass *p);
/* A kind of other work, from a name and the numbers that tell it apart; 0 as above. */
uint64_t hx_graphs_kind(const struct hx_pass *p, const char *name, const int64_t *number, int n);
/* Runs what `queue` puts onto the device to its end: from a recording of its kind, or recording it
 * if the kind was seen before. */
int hx_graphs_run(struct hx_pass *p, uint64_t kind, int (*queue)(struct hx_pass *p));
/* Where the recorded pass finds Engram rows and leaves logits. */
const uint32_t *hx_graphs_engram(const struct hx_forward *f, int slot, struct hx_tensor *codes,
                                 struct hx_tensor *scales);
float *hx_graphs_logits(const struct hx_forward *f);
/* [HX_BEST_ROWS][2] as HX_ACT_BEST, of any pass; results of drafts. */
int32_t *hx_graphs_best(const struct hx_forward *f);
int32_t *hx_graphs_drafts(const struct hx_forward *f, float **z);

/* ---- drafter (dsv41_draft.c) ---- */

/* Memory of hx_draft_open, bytes. */
void hx_draft_memory(const struct hx_hparams *h, int n_ranks, int max_rows, int max_seq,
                     size_t *device, size_t *pinned);
/* max_rows: of one pass. */
int hx_draft_open(struct hx_forward *f, const struct hx_model *m, int max_rows, int max_seq,
                  struct hx_error *err) HX_MUST;
void hx_draft_close(struct hx_forward *f);
/* Called where the streams enter a target layer: keeps their means for hx_forward_keep_context. */
int hx_draft_see_target(struct hx_pass *p, int slot);
/* A pass begins, its row sets are built: hx_forward_keep_context will be of its rows. */
void hx_draft_note_pass(struct hx_forward *f, const struct hx_forward_in *in);
/* The rows of the pass became fewer behind a target layer. */
int hx_draft_keep_rows(struct hx_pass *p, int n_from);

#endif
