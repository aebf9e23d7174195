/* KV state: a pool of blocks for compressed rows and index keys, window rings and open groups per
 * sequence, and a prefix cache of snapshots. One thread (step) owns a pool. */
#ifndef HX_KV_KV_H
#define HX_KV_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/kv_view.h"
#include "model/desc.h"

struct hx_kv_pool;
struct hx_kv_seq;

#define HX_KV_BLOCK_TOK      64
#define HX_KV_SNAPSHOTS_EACH 4 /* prefix cache entries for each sequence that may run */

struct hx_kv_options {
    int block_tok;   /* tokens of one block, even; 0: HX_KV_BLOCK_TOK */
    int ring_tok;    /* window ring, at least window + 16; 0: that */
    int n_blocks;    /* blocks in the pool */
    int n_seqs;      /* sequences at once */
    int n_snapshots; /* prefix cache entries; 0: no prefix cache */
};

int hx_kv_pool_open(const struct hx_hparams *hp, const struct hx_maps *maps,
                    const struct hx_backend *be, struct hx_device *dev,
                    const struct hx_kv_options *opt, struct hx_kv_pool **out,
                    struct hx_error *err) HX_MUST;
void hx_kv_pool_close(struct hx_kv_pool *p);
/* Device memory of a pool, bytes. */
struct hx_kv_memory {
    size_t blocks; /* compressed rows and index keys, and one block of them */
    size_t block;
    size_t slots; /* rings and open groups of sequences and snapshots */
    size_t views; /* what kernels know of the sequences */
};
int hx_kv_memory(const struct hx_hparams *hp, const struct hx_maps *maps,
                 const struct hx_kv_options *opt, struct hx_kv_memory *out,
                 struct hx_error *err) HX_MUST;
/* All of it; 0: the model has no KV geometry. */
size_t hx_kv_bytes(const struct hx_hparams *hp, const struct hx_maps *maps,
                   const struct hx_kv_options *opt);
int hx_kv_blocks_free(const struct hx_kv_pool *p); /* evictable snapshot blocks included */
int hx_kv_blocks_total(const struct hx_kv_pool *p);
int hx_kv_blocks_for(const struct hx_kv_pool *p, int64_t n_tok);

int hx_kv_seq_new(struct hx_kv_pool *p, struct hx_kv_seq **out, struct hx_error *err) HX_MUST;
void hx_kv_seq_free(struct hx_kv_seq *s);
int64_t hx_kv_seq_len(const struct hx_kv_seq *s); /* committed tokens */
/* Blocks for positions up to n_tok; evicts snapshots if needed. -EAGAIN: the pool is full. */
int hx_kv_seq_reserve(struct hx_kv_seq *s, int64_t n_tok, struct hx_error *err) HX_MUST;
/* After a forward pass wrote positions len..len+n-1. tokens and dead are kept as history (dead may
 * be NULL). */
int hx_kv_seq_commit(struct hx_kv_seq *s, const int32_t *tokens, const uint8_t *dead, int n,
                     struct hx_error *err) HX_MUST;
/* Drops everything after the first n tokens (0: everything). -EINVAL: the ring no longer has the
 * window of the cut (more than ring - window + 1 rows back), or the cut is odd and 8 or more back.
 */
int hx_kv_seq_truncate(struct hx_kv_seq *s, int64_t n, struct hx_error *err) HX_MUST;
/* A second sequence with the same state (n choices of one prompt): shares full blocks. */
int hx_kv_seq_fork(struct hx_kv_seq *s, struct hx_kv_seq **out, struct hx_error *err) HX_MUST;
/* Views for the forward pass; valid until the next call on this sequence. */
const struct hx_kv_view *hx_kv_seq_view(struct hx_kv_seq *s);
/* Token history by absolute position, [len] entries. */
const int32_t *hx_kv_seq_tokens(const struct hx_kv_seq *s);
const uint8_t *hx_kv_seq_dead(const struct hx_kv_seq *s);

/* ---- prefix cache (exact: spec model.md section 7, "Prefix reuse") ---- */
/* Keeps the state of s at its present length for later prompts. Best effort. */
void hx_kv_prefix_publish(struct hx_kv_seq *s);
/* Fills an empty sequence with the longest cached prefix of tokens[0..n), at most n - 1 tokens;
 * returns its length (0: none). */
int64_t hx_kv_prefix_restore(struct hx_kv_seq *s, const int32_t *tokens, int64_t n);

#endif
