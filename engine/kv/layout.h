/* Geometry of the KV state, derived from the model description. */
#ifndef HX_KV_LAYOUT_H
#define HX_KV_LAYOUT_H

#include "kv/kv.h"

/* One stream inside a block: all data rows, then all scale rows. */
struct hx_kv_part {
    size_t data_offset, scale_offset;
    int data_bytes, scale_bytes; /* a row */
    int rows;                    /* rows of one block */
};

struct hx_kv_layout {
    int n_layer, block_tok, ring_tok, window_tok;
    int n_window; /* layers with a window ring: the drafter's come behind the backbone's */
    struct hx_kv_part comp[HX_MAX_LAYERS], key[HX_MAX_LAYERS]; /* rows 0: no source */
    size_t block_bytes;
    struct hx_kv_part window;          /* rows = ring_tok, of one layer */
    size_t window_bytes;               /* one layer */
    size_t open_offset[HX_MAX_LAYERS]; /* 0: none; bytes from the start of a slot */
    size_t slot_bytes;                 /* rings of all layers and open groups of one sequence */
};

#define HX_KV_OPEN_ROWS 8 /* open-group rows kept, by position mod 8 */

/* -EINVAL: block_tok odd or out of range, ring too small. */
int hx_kv_layout_derive(const struct hx_hparams *hp, const struct hx_maps *maps,
                        const struct hx_kv_options *opt, struct hx_kv_layout *out,
                        struct hx_error *err) HX_MUST;

#endif
