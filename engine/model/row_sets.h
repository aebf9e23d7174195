/* Which rows of a pass each layer computes: the exact dependency cone of what is wanted. */
#ifndef HX_MODEL_ROW_SETS_H
#define HX_MODEL_ROW_SETS_H

#include "backend/kernels.h"
#include "model/arrays.h"
#include "model/forward.h"

/* Rows some layers share: a suffix of every sequence of the pass. Arrays are on the device. */
struct hx_row_set {
    struct hx_batch batch; /* first_pos, first_row describe this set */
    const int64_t
        *window_row;          /* [n_row] absolute position to store, -1: overwritten in this pass */
    const int32_t *keep;      /* [n_row] index of each row in the set before; NULL in the first */
    const int64_t *first_pos; /* host [n_seq] */
    const int64_t *first_of_pass; /* host [n_seq] first position of the whole pass */
};

struct hx_row_sets {
    const struct hx_backend *be;
    struct hx_device *dev;
    int n_layer, window, last_source;
    int max_tok, max_seq, max_set;
    struct hx_row_set set[HX_MAX_LAYERS + 2];
    int n_set;
    int in[HX_MAX_LAYERS + 1];      /* set of the rows that enter layer L; [n_layer]: head */
    const struct hx_kv_view **view; /* [max_seq] */
    const struct hx_kv_view *const *view_device; /* device [n_seq] */
    int64_t *first;           /* host [n_layer + 1][max_seq] first position entering L */
    const int32_t *token;     /* device [rows of set 0] */
    struct hx_batch groups;   /* groups of two that end in this pass: seq, pos = first token */
    const int64_t *group_row; /* device [groups.n_row] */
    struct hx_arrays arrays;
};

int hx_row_sets_init(struct hx_row_sets *s, const struct hx_hparams *hp, const struct hx_maps *maps,
                     const struct hx_backend *be, struct hx_device *dev, int max_tok, int max_seq,
                     struct hx_error *err) HX_MUST;
/* Bytes of its arrays, on the host and on the device. */
size_t hx_row_sets_bytes(const struct hx_hparams *hp, const struct hx_maps *maps, int max_tok,
                         int max_seq);
void hx_row_sets_done(struct hx_row_sets *s);
/* Sets of a checked pass, uploaded. */
int hx_row_sets_build(struct hx_row_sets *s, const struct hx_forward_in *in,
                      struct hx_error *err) HX_MUST;

#endif
