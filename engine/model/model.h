/* A model folder opened on one device: hyper-parameters, maps and bound weights. */
#ifndef HX_MODEL_MODEL_H
#define HX_MODEL_MODEL_H

#include "model/desc.h"
#include "model/manifest.h"
#include "model/synthetic.h"

struct hx_model;

/* Room of a part in device memory. */
static inline size_t hx_device_room(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

struct hx_model_options {
    const struct hx_backend *backend;
    struct hx_device *dev;
    void (*progress)(void *user, double fraction); /* may be NULL */
    void *user;
    struct hx_slice slice;                /* zero: the whole model */
    const struct hx_synthetic *synthetic; /* no folder, no Engram tables; else NULL */
};

/* Reads config.json, all safetensors headers, binds by tensor name (decisions.md 23: experts/ wins
 * for layers.L.ffn.experts.E.*, everything else there is ignored and counted), checks dtype, format
 * and shape, loads everything but Engram tables. One error line naming the first problem and how
 * many more there are. A state.json that is not complete is refused. */
int hx_model_open(const char *dir, const struct hx_model_options *opt, struct hx_model **out,
                  struct hx_error *err) HX_MUST;
void hx_model_close(struct hx_model *m);

const struct hx_hparams *hx_model_hparams(const struct hx_model *m);
const struct hx_maps *hx_model_maps(const struct hx_model *m);
const struct hx_manifest *hx_model_manifest(const struct hx_model *m);
/* NULL if the layer has no such tensor. layer -1 for global ones, n_layer + i for draft layer i;
 * expert -1 unless routed. O(1). */
const struct hx_weight *hx_model_weight(const struct hx_model *m, enum hx_role role, int layer,
                                        int expert);
/* Where an Engram table lies: file path and byte offsets of weight and scale rows
 * (one file in the release). */
struct hx_row_file {
    const char *path, *scale_path;
    uint64_t data_offset, scale_offset;
    int64_t n_rows;
    int row_bytes, scale_bytes;
};
struct hx_binding;
/* Of a folder that was bound but not loaded. */
void hx_binding_engram_file(const struct hx_binding *b, int slot, struct hx_row_file *out);
int hx_model_engram_file(const struct hx_model *m, int slot, struct hx_row_file *out);
struct hx_slice hx_model_slice(const struct hx_model *m);
/* engram_token_map.i32, checked (entries, distinct count, pad): [n_vocab]. */
const int32_t *hx_model_token_map(const struct hx_model *m);
/* The map of a folder without opening its model; free with free(). */
int hx_token_map_load(const char *dir, const struct hx_hparams *hp, int32_t **out,
                      struct hx_error *err) HX_MUST;
/* Replaces the values of one bound tensor (tests: override.<tensor> of tie.safetensors). */
int hx_model_override(struct hx_model *m, const char *name, const void *data, size_t size,
                      struct hx_error *err) HX_MUST;

#endif
