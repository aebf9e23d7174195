/* Inside of the KV pool: shared by blocks.c and prefix.c. */
#ifndef HX_KV_POOL_H
#define HX_KV_POOL_H

#include "kv/layout.h"

struct hx_kv_seq {
    struct hx_kv_pool *pool;
    bool used;
    int slot;
    int64_t len;
    int64_t top;    /* positions below it were written to the ring since it was empty */
    int32_t *table; /* [n_blocks] block numbers */
    int32_t *sent;  /* the same as the device has them */
    int n_blocks;
    int32_t *tokens; /* [n_blocks x block_tok] */
    uint8_t *dead;
    struct hx_kv_view view;
    struct hx_kv_stream *window;     /* [n_window] */
    struct hx_kv_stream *comp, *key; /* [n_layer] */
    float **open;                    /* [n_layer] */
};

struct hx_kv_snapshot {
    int64_t len; /* 0: free */
    int64_t top; /* of the sequence it came from */
    int32_t *tokens;
    uint8_t *dead;
    int32_t *table;
    int n_blocks;
    uint64_t used_at; /* for LRU */
};

struct hx_kv_pool {
    struct hx_kv_layout layout;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_buffer *block_buf, *slot_buf, *mirror_buf;
    uint8_t *blocks, *slots; /* device addresses */
    int n_blocks, n_seqs, n_snapshots;
    int *refs;  /* [n_blocks] sequences and snapshots */
    int *holds; /* [n_blocks] sequences alone */
    int n_held; /* blocks that a sequence holds */
    int32_t *free_list;
    int n_free;
    struct hx_kv_seq *seq;           /* [n_seqs], slot i */
    struct hx_kv_snapshot *snapshot; /* [n_snapshots], slot n_seqs + i */
    uint64_t clock;
};

/* mirror.c: views in device memory. sync: sends what changed in the block table. */
size_t hx_kv_mirror_bytes(const struct hx_kv_layout *l, int n_blocks); /* of one sequence */
int hx_kv_mirror_init(struct hx_kv_seq *s, struct hx_error *err) HX_MUST;
int hx_kv_mirror_sync(struct hx_kv_seq *s, struct hx_error *err) HX_MUST;

uint8_t *hx_kv_slot(const struct hx_kv_pool *p, int slot);
/* A block with one reference; evicts the oldest snapshot if there is none free. -1: the pool is
 * full. */
int32_t hx_kv_take_block(struct hx_kv_pool *p);
void hx_kv_drop_block(struct hx_kv_pool *p, int32_t block);
/* Fills an empty sequence with the first len tokens of another state: full blocks are shared, the
 * last partial one and the slot are copied. */
int hx_kv_clone(struct hx_kv_seq *to, const int32_t *table, const int32_t *tokens,
                const uint8_t *dead, int64_t len, int64_t top, int from_slot,
                struct hx_error *err) HX_MUST;
/* Frees the least recently used snapshot, with for_blocks of those that hold a block no sequence
 * holds; false: there is none. */
bool hx_kv_evict(struct hx_kv_pool *p, bool for_blocks);
/* Frees every snapshot that shares a block. */
void hx_kv_evict_sharing(struct hx_kv_pool *p, int32_t block);
void hx_kv_snapshot_drop(struct hx_kv_pool *p, struct hx_kv_snapshot *s);

#endif
