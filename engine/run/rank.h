/* One rank: a device with its model, forward pass, KV pool and Engram reader. The step loop,
 * hx-inspect, hx-bench and the model tests all drive the model through this. One thread owns a
 * rank. */
#ifndef HX_RUN_RANK_H
#define HX_RUN_RANK_H

#include "kv/kv.h"
#include "model/forward.h"
#include "run/feed.h"

struct hx_rank_options {
    const char *model_dir;
    const struct hx_synthetic *synthetic; /* instead: Engram rows are random too; else NULL */
    const char *backend;
    enum hx_mode mode;
    struct hx_slice slice; /* rank of a model cut into ranks; zero: the whole model */
    struct hx_comm *comm;  /* joins of that rank; NULL: the whole model */
    int max_tok;           /* rows of one pass, all sequences together */
    int max_seq;           /* sequences in one pass */
    int64_t max_context;
    bool drafts; /* with the drafter, if the model has one */
    struct hx_kv_options kv;
    struct hx_feed_options engram; /* max_tok and max_seq are filled in */
    void (*progress)(void *user, const char *stage, double fraction); /* may be NULL */
    void *user;
};

struct hx_rank;
int hx_rank_open(const struct hx_rank_options *opt, struct hx_rank **out,
                 struct hx_error *err) HX_MUST;
void hx_rank_close(struct hx_rank *r);
const struct hx_hparams *hx_rank_hparams(const struct hx_rank *r);
struct hx_model *hx_rank_model(struct hx_rank *r);
struct hx_kv_pool *hx_rank_kv(struct hx_rank *r);

/* New rows of one sequence in a step. */
struct hx_step_seq {
    struct hx_kv_seq *kv;
    const int32_t *tokens;
    const uint8_t *dead; /* NULL: none */
    int n_tok;
    int n_logits;           /* of the last n_logits rows */
    const uint16_t *embeds; /* BF16 [n_tok][n_embd], replace the embedding of dead rows; or NULL */
    int n_draft;            /* of the last n_draft tokens nobody knows yet whether they stay */
};
/* Reserves KV, hashes and reads Engram rows, runs the pass, commits. logits: [sum
 * n_logits][n_vocab], host. On error nothing is committed (a full pool is -EAGAIN). tap may be
 * NULL; besides the forward pass's values it gets "engram.rows" (I64 [n_tok, cols]). */
int hx_rank_step(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, float *logits,
                 hx_tap_fn tap, void *tap_user, struct hx_error *err) HX_MUST;
/* The same, but of each row with logits the best token alone, the lower id among equals: it crosses
 * instead of n_vocab values, between ranks too. */
int hx_rank_step_best(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, int32_t *best,
                      struct hx_error *err) HX_MUST;
/* After a step with drafts in any sequence, and only then: the first n_keep[i] rows of its sequence
 * i stay, the others are taken back. */
int hx_rank_accept(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, const int *n_keep,
                   struct hx_error *err) HX_MUST;
/* Drafts behind anchor[i], the newest token of sequence i, whose own pass has not run: tokens and
 * raw confidences [n][draft_block]. */
int hx_rank_draft(struct hx_rank *r, struct hx_kv_seq *const *seqs, const int32_t *anchors, int n,
                  int32_t *tokens, float *z, hx_tap_fn tap, void *tap_user,
                  struct hx_error *err) HX_MUST;
/* Engram rows of positions that a later step will compute: hx_feed_want. */
void hx_rank_want(struct hx_rank *r, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
                  const int32_t *tokens, int64_t first, int n);
/* Before a sequence is freed. */
void hx_rank_forget(struct hx_rank *r, const struct hx_kv_seq *kv);
/* NULL: the model has no Engram, or its rows come from a plain reader. */
struct hx_engram_stream *hx_rank_engram(struct hx_rank *r);
/* hx_forward_layer_rows of the last step. */
int64_t hx_rank_layer_rows(const struct hx_rank *r);

#endif
