/* From the files of a model folder to bound weights: which bytes of which file every weight part
 * is. */
#ifndef HX_MODEL_BIND_H
#define HX_MODEL_BIND_H

#include "model/desc.h"
#include "model/safetensors.h"
#include "model/slice.h"

/* One stored tensor that becomes (part of) a weight. */
struct hx_bind_item {
    const struct hx_st_file *file;
    const struct hx_st_tensor *tensor;
    int weight; /* index into hx_binding.weight */
    enum hx_weight_part part;
    struct hx_cut cut; /* of the part; what the rank has */
    bool sign_words;   /* legacy EXL3 su/sv: one sign bit a channel, expanded to F16 +-1 */
};

struct hx_binding {
    struct hx_st_file **file;
    int n_files;
    struct hx_weight *weight; /* parts have dtype and shape, no data yet */
    int n_weights;
    struct hx_bind_item *item; /* by file and offset */
    int n_items;
    int *first[HX_T_MAX]; /* [role][layer + 1] -> index of the weight (of expert 0), -1: none */
    int64_t n_ignored;    /* tensors of experts/ that are not routed experts */
    struct hx_hparams hp;
    struct hx_maps maps;
};

/* Reads config.json and every safetensors header (folder itself, dense/, engram/, experts/), binds
 * by name and checks dtype, format and shape, EXL3 codebook markers included. Errors name the first
 * problem and how many more there are. */
int hx_bind_folder(const char *dir, struct hx_binding *out, struct hx_error *err) HX_MUST;
/* Leaves in weights and items what a rank has. Once, after hx_bind_folder. */
int hx_binding_slice(struct hx_binding *b, const struct hx_slice *s, struct hx_error *err) HX_MUST;
void hx_binding_done(struct hx_binding *b);
int hx_binding_find(const struct hx_binding *b, enum hx_role role, int layer,
                    int expert); /* -1: none */

#endif
