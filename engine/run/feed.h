/* The Engram side of a rank: rows wanted ahead of the step that uses them, by sequence and
 * position, and handed to that step. One thread owns a feed. */
#ifndef HX_RUN_FEED_H
#define HX_RUN_FEED_H

#include "engram/stream.h"
#include "kv/kv.h"
#include "model/model.h"

#define HX_FEED_SLUG "engram_read_error" /* of errors of reads: the engine goes on after them */

struct hx_feed_options {
    /* Read through this instead of the streamer, when a step comes; taken over. NULL: streamer. */
    struct hx_engram_reader *reader;
    const char *paths; /* folders with the shards, one for each drive, separated by ':'; NULL or
                          empty: where the model folder has them */
    bool buffered;     /* through the page cache */
    enum hx_engram_level best;
    int64_t cache_bytes;  /* negative: the smaller of 4 GiB and a tenth of the memory */
    const char *hot_file; /* keys of the cached n-grams over a restart; NULL or empty: none */
    int slow_ms;          /* a read slower than this is an error; 0: 2000 */
    int max_tok, max_seq;
};

/* Rows of one sequence in a step. */
struct hx_feed_seq {
    const struct hx_kv_seq *kv; /* its committed tokens are the history */
    const int32_t *tokens;
    const uint8_t *dead; /* NULL: none */
    int n_tok;
    bool urgent; /* decode: before any prefill */
};

/* What the configuration and the files say, as the Engram side takes it. */
int hx_feed_hash(const struct hx_hparams *h, const int32_t *token_map, struct hx_engram_hash **out,
                 struct hx_error *err) HX_MUST;
int hx_feed_table(const struct hx_row_file *f, int layer, struct hx_engram_table *out,
                  struct hx_error *err) HX_MUST;

struct hx_feed;
int hx_feed_open(const struct hx_model *m, const struct hx_feed_options *o, struct hx_feed **out,
                 struct hx_error *err) HX_MUST;
void hx_feed_close(struct hx_feed *f);
int hx_feed_n_cols(const struct hx_feed *f);
/* NULL: rows do not come from the streamer. */
struct hx_engram_stream *hx_feed_stream(struct hx_feed *f);

/* Positions first..first+n-1 of a sequence will be needed. tokens[-k] and before are those of the
 * positions before first as far as they are not committed. What the limits do not allow now is not
 * wanted, without an error: the step asks again. */
void hx_feed_want(struct hx_feed *f, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
                  const int32_t *tokens, int64_t first, int n);
/* The sequence ends: what it wanted is given back. */
void hx_feed_forget(struct hx_feed *f, const struct hx_kv_seq *kv);

/* A step: begin asks for what was not wanted before; rows waits for a table and puts it into codes
 * [n_tok][cols][row_bytes] and scales, sequences one after the other; end gives back what the step
 * used. end follows every begin, also a failed one. */
int hx_feed_begin(struct hx_feed *f, const struct hx_feed_seq *seqs, int n_seqs,
                  struct hx_error *err) HX_MUST;
int hx_feed_rows(struct hx_feed *f, int table, uint8_t *codes, uint8_t *scales,
                 struct hx_error *err) HX_MUST;
void hx_feed_end(struct hx_feed *f, bool failed);
/* Row ids of the step -> [n_tok][cols] (taps). */
int hx_feed_row_ids(struct hx_feed *f, int table, int64_t *rows, struct hx_error *err) HX_MUST;

#endif
