/* A model of any shape without files (decisions.md 14): sane random values, the same whether a rank
 * has all of a weight or its share. For measurements and tests of cut models. */
#ifndef HX_MODEL_SYNTHETIC_H
#define HX_MODEL_SYNTHETIC_H

#include "model/slice.h"

struct hx_binding;

struct hx_synthetic {
    const struct hx_hparams *hp;
    const uint8_t *bits; /* [n_layer] of EXL3 experts; NULL: FP4. Draft experts are FP4. */
    int n_local;         /* routes of a layer come from so many of its experts; 0: from all */
    uint64_t seed;
};

/* Weights by role and layer, without data and files; hx_binding_done. */
int hx_synthetic_bind(const struct hx_synthetic *s, struct hx_binding *out,
                      struct hx_error *err) HX_MUST;

/* Cuts the bound weights for a rank and fills them on a device. mem: to be freed by the caller,
 * in any case. */
int hx_synthetic_load(const struct hx_synthetic *s, const struct hx_slice *slice,
                      const struct hx_backend *be, struct hx_device *dev, struct hx_binding *b,
                      struct hx_buffer **mem, struct hx_error *err) HX_MUST;

#endif
