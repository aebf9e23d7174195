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
    HX_ACT_X, /* sublayer input */
    HX_ACT_Y, /* sublayer output */
    HX_ACT_MAIN,
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
    HX_ACT_LOGITS, /* HX_HEAD_ROWS rows at most */
    HX_ACT_MAX
};

#define HX_HEAD_ROWS 32 /* rows of logits on the device at once */

struct hx_layer {
    const struct hx_weight *w[HX_T_MAX]; /* by role; NULL where the layer has none */
    const struct hx_weight **experts[3]; /* w1, w2, w3: [n_expert] */
};

struct hx_forward {
    const struct hx_hparams *hp;
    const struct hx_maps *maps;
    const struct hx_backend *be;
    const struct hx_kernels *k;
    struct hx_device *dev;
    bool reference;
    const struct hx_weight *embed, *head, *norm;
    struct hx_layer *layer; /* [n_layer] */
    const struct hx_weight **expert_table;
    struct hx_tensor act[HX_ACT_MAX]; /* ne[0]: room */
    struct hx_tensor freq[2];         /* F32 [rope_dim/2]: window-only layers, compressed layers */
    struct hx_buffer *mem;
    struct hx_row_sets rows;
    int64_t layer_rows;
};

#endif
