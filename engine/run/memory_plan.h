/* What a model takes in memory, to the byte, before anything is loaded, and how many tokens of KV
 * state the rest holds. */
#ifndef HX_RUN_MEMORY_PLAN_H
#define HX_RUN_MEMORY_PLAN_H

#include "kv/kv.h"
#include "model/place.h"

enum hx_memory_row {
    /* on each rank's device */
    HX_MEMORY_DENSE, /* embedding, head, attention, norms, ...: all but the next two */
    HX_MEMORY_EXPERTS,
    HX_MEMORY_DRAFTER, /* its weights */
    HX_MEMORY_WORK,    /* activations and arrays of a pass, drafter's included */
    HX_MEMORY_KERNELS, /* working memory of the back end's kernels */
    HX_MEMORY_GRAPHS,  /* kept free for recorded graphs and the driver */
    HX_MEMORY_KV_RINGS,
    HX_MEMORY_KV_VIEWS,
    HX_MEMORY_KV_POOL,
    /* of the host, all ranks together */
    HX_MEMORY_ENGRAM_SCALES,
    HX_MEMORY_ENGRAM_CACHE,
    HX_MEMORY_ARRAYS, /* pinned twins of the arrays */
    HX_MEMORY_ROWS,
    HX_MEMORY_HOST = HX_MEMORY_ENGRAM_SCALES,
};
const char *hx_memory_row_name(enum hx_memory_row row);

/* Kept free on a card for recorded graphs, tables and the driver's own; tests/gpu/test_memory.c
 * measures what they take. */
#define HX_CARD_RESERVE ((int64_t)1 << 30)

struct hx_memory_wish {
    int max_tok, max_seq; /* rows and sequences of a pass */
    bool drafts;
    struct hx_kv_options kv; /* n_blocks 0: as many as fit, for at most max_tokens */
    int64_t max_tokens;
    int64_t device_bytes, host_bytes; /* there are; 0: no limit known */
    int64_t kernel_bytes, graph_bytes, cache_bytes;
};

struct hx_memory_plan {
    int n_ranks;
    int64_t bytes[HX_PLACE_MAX_RANKS][HX_MEMORY_HOST]; /* device rows of each rank */
    int64_t host[HX_MEMORY_ROWS];                      /* host rows */
    int64_t total[HX_PLACE_MAX_RANKS], host_total;
    int64_t kv_block;  /* bytes of a block */
    int64_t kv_tokens; /* that the pool holds */
    int n_blocks;
};

/* -ENOMEM: it does not fit; err has the numbers of the fullest rank, out is filled as far as it was
 * known, with the smallest pool (a block for each sequence). -ENOTSUP: a layout of stages. */
int hx_memory_plan(const struct hx_hparams *hp, const struct hx_maps *maps,
                   const struct hx_placement *p, const struct hx_memory_wish *wish,
                   struct hx_memory_plan *out, struct hx_error *err) HX_MUST;

/* Memory of the host that can be had without swapping, bytes; 0: unknown. */
uint64_t hx_memory_available(void);
/* What device 0 of a back end has free for weights, buffers and KV state, bytes, 0: unknown; card:
 * whether that is memory of its own, else the host's. */
int hx_memory_free(const char *backend, uint64_t *bytes, bool *card, struct hx_error *err) HX_MUST;

#endif
