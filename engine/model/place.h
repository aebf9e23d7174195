/* Which bytes of a model lie where: the inventory of a configuration or a folder, and its share of
 * every rank under a layout (spec model.md 8, decisions.md 8). */
#ifndef HX_MODEL_PLACE_H
#define HX_MODEL_PLACE_H

#include "model/desc.h"

#define HX_PLACE_MAX_RANKS 8

enum hx_layout { HX_LAYOUT_CPU, HX_LAYOUT_TP2, HX_LAYOUT_TP4, HX_LAYOUT_PP4, HX_LAYOUT_MAX };

/* Components of spec model.md 2.3. */
enum hx_component {
    HX_COMP_EMBED,
    HX_COMP_HEAD,
    HX_COMP_ATTENTION,
    HX_COMP_HC,
    HX_COMP_ROUTER,
    HX_COMP_SHARED,
    HX_COMP_EXPERTS,
    HX_COMP_INDEXER,
    HX_COMP_COMPRESSOR,
    HX_COMP_NORMS,
    HX_COMP_ENGRAM_TABLE, /* on the drive; its scales are also kept in memory */
    HX_COMP_ENGRAM,
    HX_COMP_DRAFTER,
    HX_COMP_VISION, /* counted, not loaded */
    HX_COMP_MAX
};

struct hx_placement {
    enum hx_layout layout;
    int n_ranks;
    int first_layer[HX_PLACE_MAX_RANKS +
                    1]; /* layers of rank r: first[r] to first[r + 1] - 1; draft
                           layers belong to the last rank (PP) or to all */
    int64_t n_tensors[HX_COMP_MAX], bytes[HX_COMP_MAX];   /* stored */
    int64_t rank_bytes[HX_PLACE_MAX_RANKS][HX_COMP_MAX];  /* on the device */
    int64_t rank_memory[HX_PLACE_MAX_RANKS][HX_COMP_MAX]; /* the same as the loader lays them out */
    int64_t copies;     /* device bytes beyond one of each: what more than one rank holds */
    int64_t host_bytes; /* Engram scales in memory */
    int64_t file_bytes; /* Engram tables, read from the drive */
};

const char *hx_layout_name(enum hx_layout l);
enum hx_layout hx_layout_parse(const char *name); /* HX_LAYOUT_MAX: unknown */
const char *hx_component_name(enum hx_component c);

/* The configuration in the storage formats of the release: FP8 matrices, FP4 experts (EXL3 of
 * bits[layer] bits instead, if bits is given), vision tower included. -EINVAL: the layout does not
 * divide a tensor (named). */
int hx_place_config(const struct hx_hparams *hp, const struct hx_maps *maps, const uint8_t *bits,
                    enum hx_layout layout, struct hx_placement *out, struct hx_error *err) HX_MUST;
/* The tensors that a folder really has. */
int hx_place_folder(const char *dir, enum hx_layout layout, struct hx_placement *out,
                    struct hx_error *err) HX_MUST;

#endif
