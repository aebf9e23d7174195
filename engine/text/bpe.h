/* Byte-level BPE: vocabulary and merge tables, merging of one piece. Merge rank = id of the result.
 */
#ifndef HX_TEXT_BPE_H
#define HX_TEXT_BPE_H

#include <hx/tokenizer.h>

#define HX_BPE_MAX_ID (1 << 20)

struct hx_bpe {
    int32_t n_vocab;  /* ordinary ids are below */
    uint8_t *bytes;   /* of all tokens */
    uint32_t *offset; /* [n_vocab + 1] */
    int32_t byte_id[256];
    int32_t (*byte_pair)[256]; /* [256][256] result of the tokens of two bytes, INT32_MAX: none */
    uint64_t *pair;            /* hash table: left, right, result in 20 bits each; 0: empty */
    uint32_t pair_mask;
    uint64_t *vocab; /* hash table: 32 bits of hash, 1 bit, id + 1; 0: empty */
    uint32_t vocab_mask;
};

/* Tables for ids 0..n_vocab-1 whose bytes are in b->bytes/offset already (empty: no ordinary
 * token). */
int hx_bpe_init(struct hx_bpe *b, struct hx_error *err) HX_MUST;
void hx_bpe_done(struct hx_bpe *b);
/* Id of an ordinary token by its bytes, -1: none. */
int32_t hx_bpe_find(const struct hx_bpe *b, const uint8_t *s, size_t len);
/* Adds a merge rule; pairs never repeat. */
int hx_bpe_add_pair(struct hx_bpe *b, int32_t left, int32_t right, int32_t result,
                    struct hx_error *err) HX_MUST;
/* After the last pair: finds out which tokens merging finds from their own bytes. Merging takes
 * those straight from the vocabulary. */
int hx_bpe_mark_whole(struct hx_bpe *b, struct hx_error *err) HX_MUST;

/* Told how many bytes of a long piece are done; a negative value ends the merging with it. */
struct hx_bpe_progress {
    int (*done)(void *user, size_t bytes);
    void *user;
};
/* Ids of one piece (len >= 1), appended. p may be NULL. 0, -ENOMEM or what p says. */
int hx_bpe_merge(const struct hx_bpe *b, const uint8_t *s, size_t len,
                 const struct hx_bpe_progress *p, struct hx_ids *out) HX_MUST;

#endif
