/* Working memory of a forward pass: shared by dsv41_forward.c and forward_state.c. */
#ifndef HX_MODEL_FORWARD_STATE_H
#define HX_MODEL_FORWARD_STATE_H

#include "backend/kernels.h"
#include "model/forward.h"

#define HX_HEAD_ROWS 16 /* logits rows computed and downloaded at once */

/* Tensors of a pass, allocated for the largest number of rows; ne[0] is set for each pass. */
struct hx_forward_tensors {
    struct hx_tensor streams, pre, pre_next, post, comb; /* [T, S, D], [T, S] x 3, [T, S, S] */
    struct hx_tensor x, y;                               /* [T, D] */
    struct hx_tensor qr, q, o, a;                   /* [T, q_lora], [T, H, d] x 2, [T, G o_lora] */
    struct hx_tensor kv, fresh_codes, fresh_scales; /* window rows of the pass */
    struct hx_tensor u, g, lat, key, codes, scales; /* compressor; codes and scales of any grid */
    struct hx_tensor iq, iw, iq_codes, iq_scales;   /* indexer */
    struct hx_tensor sel, cand;                     /* live over layers, one row a query row */
    struct hx_tensor expert, weight, score;         /* router */
    struct hx_tensor ev, ez, edot, egate;           /* Engram */
    struct hx_tensor mean;                          /* [T, D] */
    struct hx_tensor logits;                        /* [HX_HEAD_ROWS, vocab] */
    struct hx_tensor freq_main, freq_comp;          /* [rope_dim / 2] */
};

/* Rows that are alive at some layer, host copy and device copy. */
struct hx_forward_rows {
    int n;
    int32_t *seq;
    int64_t *pos;
    uint8_t *dead;
    int32_t *d_seq;
    int64_t *d_pos;
    uint8_t *d_dead;
};

struct hx_forward {
    const struct hx_model *m;
    const struct hx_hparams *hp;
    const struct hx_maps *maps;
    const struct hx_backend *be;
    struct hx_device *dev;
    const struct hx_kernels *k;
    enum hx_mode mode;
    int max_tok, max_seq;
    struct hx_buffer *buf;
    struct hx_forward_tensors t;
    struct hx_forward_rows rows;
    int32_t *keep, *d_keep, *d_token; /* [max_tok] */
    int64_t *first_pos, *d_first_pos; /* [max_seq] */
    int32_t *first_row, *d_first_row;
    int64_t *group_row, *d_group_row, *group_pos,
        *d_group_pos; /* [max_tok] groups that end in the pass */
    int32_t *group_seq, *d_group_seq;
    const struct hx_kv_view **views;    /* [max_seq] */
    const struct hx_weight **expert[3]; /* w1, w2, w3: [n_layer][n_expert] */
    void *host;                         /* one allocation for the host arrays */
};

#endif
