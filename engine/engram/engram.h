/* Engram: from tokens to row ids (hash) to row bytes (reader). */
#ifndef HX_ENGRAM_ENGRAM_H
#define HX_ENGRAM_ENGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_ENGRAM_MAX_NGRAM 8
#define HX_ENGRAM_MAX_COLS  64

/* ---- hash (spec engram.md section 2) ---- */
struct hx_engram_hash_config {
    int n_table, layer[4];
    int64_t declared_rows[4]; /* sum of primes must equal it */
    int n_gram, n_head;       /* sizes 2..n_gram, heads of each */
    int64_t first_bucket;     /* engram_vocab_size: primes from here up */
    int n_compressed, pad_token;
    const int32_t *token_map; /* [n_vocab], borrowed */
    int32_t n_vocab;
};
struct hx_engram_hash;
int hx_engram_hash_new(const struct hx_engram_hash_config *c, struct hx_engram_hash **out,
                       struct hx_error *err) HX_MUST;
void hx_engram_hash_free(struct hx_engram_hash *h);
int hx_engram_n_cols(const struct hx_engram_hash *h);
/* Row ids of positions first..first+n-1 of a sequence -> rows [n][cols].
 * tokens, dead: history by absolute position from 0 (dead NULL: none); needs the n_gram - 1 before
 * first. -EINVAL for a token outside the vocabulary. */
int hx_engram_hash_rows(const struct hx_engram_hash *h, int table, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t n, int64_t *rows,
                        struct hx_error *err) HX_MUST;
/* The same without the last step: the rolling value of each n-gram -> keys [n][n_gram - 1]. Equal
 * (table, size, key) means equal rows, so rows are de-duplicated and cached by it. */
int hx_engram_hash_keys(const struct hx_engram_hash *h, int table, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t n, uint64_t *keys,
                        struct hx_error *err) HX_MUST;
/* Rows of one n-gram of size + 2 tokens -> rows [n_head]. */
void hx_engram_key_rows(const struct hx_engram_hash *h, int table, int size, uint64_t key,
                        int64_t *rows);
int hx_engram_n_tables(const struct hx_engram_hash *h);
int hx_engram_n_sizes(const struct hx_engram_hash *h); /* n_gram - 1 */
int hx_engram_n_heads(const struct hx_engram_hash *h);
const int64_t *hx_engram_primes(const struct hx_engram_hash *h, int table);
const int64_t *hx_engram_multipliers(const struct hx_engram_hash *h, int table);

/* ---- rows: one interface, readers behind it (pread here; io_uring later) ---- */
struct hx_engram_table {
    const char *path;
    uint64_t data_offset, scale_offset;
    int64_t n_rows;
    int row_bytes, scale_bytes;
};
struct hx_engram_reader;
struct hx_engram_reader_ops {
    const char *name;
    /* Reads n rows of a table into codes [n][row_bytes] and scales [n][scale_bytes], in order.
     * Equal ids are read once. -EIO names file, row and offset; -EILSEQ a row that cannot be valid
     * (NaN code, NaN scale). */
    int (*read)(struct hx_engram_reader *r, int table, const int64_t *rows, int64_t n,
                uint8_t *codes, uint8_t *scales, struct hx_error *err);
    void (*close)(struct hx_engram_reader *r);
};
struct hx_engram_reader {
    const struct hx_engram_reader_ops *ops;
};
int hx_engram_pread_open(const struct hx_engram_table *tables, int n_tables,
                         struct hx_engram_reader **out, struct hx_error *err) HX_MUST;

#endif
