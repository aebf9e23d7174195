/* `hx-fetch lock`: a lock file from what two repositories say about themselves (decisions 11). */
#ifndef HX_FETCH_LOCK_BUILD_H
#define HX_FETCH_LOCK_BUILD_H

#include "fetch/lock.h"
#include "fetch/repo.h"
#include "fetch/select.h"

enum hx_lock_layout {
    HX_LAYOUT_FULL,    /* every shard of the EXL3 pack as it is */
    HX_LAYOUT_EXPERTS, /* only the expert tensors of the pack */
};

struct hx_lock_build {
    const char *model;   /* folder name */
    const char *created; /* ISO 8601 */
    const char *tool;    /* program and version */
    enum hx_lock_layout layout;
    bool vision;    /* with the vision tower */
    uint64_t chunk; /* bytes, 0: HX_LOCK_CHUNK */
};

/* The repositories have been opened, their shards not yet read. counts may be NULL. */
int hx_lock_build(const struct hx_lock_build *opt, struct hx_repo *official, struct hx_repo *pack,
                  struct hx_lock **out, struct hx_select_counts *counts,
                  struct hx_error *err) HX_MUST;

#endif
