/* The Engram token map: tokens whose texts fold to the same key share one compressed id (spec
 * engram.md 2.1). Computed once when a model folder is made; the engine reads the stored map. */
#ifndef HX_ENGRAM_TOKEN_MAP_H
#define HX_ENGRAM_TOKEN_MAP_H

#include "base/buf.h"

/* One entry of the vocabulary, borrowed until the next call. */
struct hx_token_bytes {
    const uint8_t *data;
    size_t len;
    bool added; /* data is the token's text as written in the file, not bytes of its spelling */
};

struct hx_token_source {
    int32_t n_vocab; /* 1 to 2^24 */
    int (*token)(void *user, int32_t id, struct hx_token_bytes *out, struct hx_error *err);
    void *user;
};

/* Appends the key of one token: its folded text, the text itself if that folds to nothing, or its
 * byte-level spelling if it is not a text of its own (not UTF-8, or holds U+FFFD).
 * -ENOMEM, also beyond the buffer's limit. */
int hx_token_map_key(const struct hx_token_bytes *t, struct hx_buf *key,
                     struct hx_error *err) HX_MUST;
/* map[n_vocab]: ids in order of first use, from 0; *n_compressed: how many there are. */
int hx_token_map_build(const struct hx_token_source *source, int32_t *map, int32_t *n_compressed,
                       struct hx_error *err) HX_MUST;

#endif
