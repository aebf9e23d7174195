/* One pass of rows through the layers of this rank. The wiring exists once, here; the mathematics
 * is in the device's kernels. Every row is computed as if alone: chunking and batching change no
 * bit on the CPU back end. */
#ifndef HX_MODEL_FORWARD_H
#define HX_MODEL_FORWARD_H

#include <hx/engine.h>

#include "backend/kv_view.h"
#include "comm/comm.h"
#include "model/model.h"

/* Named value of a pass, for tests and hx-inspect --taps. name as in golden data ("attn.y"), layer
 * -1 for global ones. The tensor is on the device and valid during the call only. */
typedef void (*hx_tap_fn)(void *user, const char *name, int layer, const struct hx_tensor *t);

struct hx_forward_seq {
    const struct hx_kv_view *kv; /* room for positions n_past..n_past+n_tok-1 was reserved */
    int64_t n_past;              /* positions 0..n_past-1 are valid */
    int n_tok;                   /* rows of this sequence in the pass */
    int n_logits;                /* logits of the last n_logits of them */
    const uint16_t *embeds; /* BF16 [n_tok][n_embd], replace the embedding of dead rows; or NULL */
};

struct hx_forward_in {
    int n_seq;
    const struct hx_forward_seq *seq;
    const int32_t *token; /* [n_tok], sequences one after the other */
    const uint8_t *dead;  /* [n_tok], 1 inside image spans; NULL: none */
    struct {
        const uint8_t *codes;  /* [n_tok][cols][dim] e4m3 */
        const uint8_t *scales; /* [n_tok][cols][dim/32] UE8M0 */
    } engram[HX_MAX_ENGRAM];
    /* Fills engram[slot] in; called when the pass comes to its layer. NULL: it is filled in. */
    int (*engram_wait)(void *user, int slot, struct hx_error *err);
    void *engram_user;
    float *logits; /* out, host: [sum of n_logits][n_vocab]; NULL if best is wanted instead */
    int32_t *best; /* out, host: [sum of n_logits], the token with the largest logit, the lower id
                    * among equals. -EDOM: a logit is NaN */
    /* NULL: none. With a tap every layer computes every row; without one, layers behind the last KV
     * source compute only rows that the wanted logits or later passes depend on (decisions.md 9:
     * same bits). "final.*" values are those of the rows with logits. */
    hx_tap_fn tap;
    void *tap_user;
};

struct hx_forward;
/* Allocates all scratch memory for passes of up to max_tok rows in up to max_seq sequences. drafts:
 * with the drafter. comm: the other ranks of a model that was opened as one of several, which must
 * run the same passes; else NULL. Every rank gets the same logits and drafts. Taps between joins
 * show the rank's own heads, groups and vocabulary. */
int hx_forward_open(const struct hx_model *m, const struct hx_backend *be, struct hx_device *dev,
                    struct hx_comm *comm, enum hx_mode mode, int max_tok, int max_seq, bool drafts,
                    struct hx_forward **out, struct hx_error *err) HX_MUST;
/* Memory that it takes, bytes; joins of float32 not counted. */
void hx_forward_memory(const struct hx_hparams *hp, const struct hx_maps *maps, int n_ranks,
                       int max_tok, int max_seq, bool drafts, size_t *device, size_t *pinned);
void hx_forward_close(struct hx_forward *f);
/* Writes KV rows of the new positions through the views. -EDOM: NaN where a choice is made (layer
 * named). */
int hx_forward_run(struct hx_forward *f, const struct hx_forward_in *in,
                   struct hx_error *err) HX_MUST;

/* ---- drafter (spec dspark.md); needs hx_forward_open with drafts ---- */

/* Context rows of the last pass: the first n_keep[i] rows of its sequence i are committed. Rows
 * that were rejected must never get here. The tap gets "main_x". */
int hx_forward_keep_context(struct hx_forward *f, const int *n_keep, hx_tap_fn tap, void *tap_user,
                            struct hx_error *err) HX_MUST;

struct hx_draft_seq {
    const struct hx_kv_view *kv;
    int64_t n_past; /* committed positions */
    int32_t anchor; /* newest token, at position n_past: its pass has not run */
};
/* A block of drafts behind the anchor of each sequence: tokens and raw confidences z, host, [n_seq]
 * [draft_block] each. Writes no KV rows. The taps are those of layers n_layer, n_layer + 1, ... and
 * "h", "base", "logits", "conf.z" of layer -1. */
int hx_forward_draft(struct hx_forward *f, const struct hx_draft_seq *seq, int n_seq,
                     int32_t *tokens, float *z, hx_tap_fn tap, void *tap_user,
                     struct hx_error *err) HX_MUST;

/* Layer outputs that the last pass computed, summed over its layers (rows x layers without the
 * short cut). */
int64_t hx_forward_layer_rows(const struct hx_forward *f);

#endif
