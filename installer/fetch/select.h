/* Which tensors of a repository the model needs, by the model's own tensor table: where each one
 * goes, and whether all are there in the form that they must have. */
#ifndef HX_FETCH_SELECT_H
#define HX_FETCH_SELECT_H

#include "model/desc.h"
#include "model/safetensors.h"

struct hx_select;

enum hx_select_place {
    HX_PLACE_UNKNOWN, /* the model has no such tensor */
    HX_PLACE_DENSE,   /* from the official repository, the draft layers' experts included */
    HX_PLACE_EXPERT,  /* routed expert of the backbone: from the EXL3 pack */
    HX_PLACE_ENGRAM,  /* table that stays on the drive */
    HX_PLACE_VISION,
};

struct hx_select_counts {
    size_t dense, vision, expert_matrices;
    uint64_t dense_bytes; /* without experts and Engram tables, vision included */
    size_t bits[9];       /* expert matrices of the pack by bits per weight */
    size_t pack_ignored;  /* other tensors of the pack */
    int64_t engram_rows[HX_MAX_ENGRAM];
    size_t n_engram;
};

/* config: text of config.json. */
int hx_select_open(const char *config, size_t n, struct hx_select **out,
                   struct hx_error *err) HX_MUST;
void hx_select_close(struct hx_select *s);

/* layer: of the tensor, -1 none; may be NULL. */
enum hx_select_place hx_select_find(const struct hx_select *s, const char *tensor, int *layer);

/* Notes a tensor of the official repository or of the pack. -EINVAL names file, tensor, found and
 * expected: an unknown tensor, another type or shape. */
int hx_select_official(struct hx_select *s, const char *file, const struct hx_st_tensor *t,
                       struct hx_error *err) HX_MUST;
int hx_select_pack(struct hx_select *s, const char *file, const struct hx_st_tensor *t,
                   struct hx_error *err) HX_MUST;

/* After all tensors: everything that must be there is. The message lists what is missing, and says
 * so if a dense tensor exists in EXL3 form only. */
int hx_select_check(const struct hx_select *s, struct hx_error *err) HX_MUST;
void hx_select_counts(const struct hx_select *s, struct hx_select_counts *out);

#endif
