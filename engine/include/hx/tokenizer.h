/* Byte-level BPE tokenizer (docs/tokenizer.md) and streaming detokenizer. A tokenizer is read-only
 * after opening and may be shared by threads. */
#ifndef HX_TOKENIZER_H
#define HX_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_tokenizer;

/* Growable list of token ids. Zero-initialise; free with hx_ids_done. */
struct hx_ids {
    int32_t *id;
    size_t len;
    size_t cap;
};
void hx_ids_done(struct hx_ids *ids);
int hx_ids_push(struct hx_ids *ids, int32_t id); /* 0 or -ENOMEM */
int hx_ids_append(struct hx_ids *ids, const int32_t *id, size_t n);

/* Reads a tokenizer.json, checks every field that encoding depends on and refuses what it does not
 * implement with a message naming the field. */
int hx_tokenizer_open(const char *path, struct hx_tokenizer **out, struct hx_error *err) HX_MUST;
void hx_tokenizer_close(struct hx_tokenizer *t);

int32_t hx_tokenizer_n_vocab(const struct hx_tokenizer *t); /* highest id + 1 */
/* Id of an added token by its spelling, -1 if there is none. */
int32_t hx_tokenizer_special(const struct hx_tokenizer *t, const char *spelling);
bool hx_tokenizer_is_added(const struct hx_tokenizer *t, int32_t id);
/* Bytes of a token (an added token: its spelling); NULL for an id that does not exist. */
const uint8_t *hx_tokenizer_bytes(const struct hx_tokenizer *t, int32_t id, size_t *len);

/* Encodes UTF-8 text and appends the ids; adds no BOS. Ill-formed UTF-8 is encoded as if every
 * maximal ill-formed part were U+FFFD. parse_special: spellings of added tokens become their ids.
 * `cancelled` (may be NULL) is asked about every MiB; true ends with -ECANCELED. */
struct hx_encode_options {
    bool parse_special;
    bool (*cancelled)(void *user);
    void *user;
};
int hx_tokenizer_encode(const struct hx_tokenizer *t, const char *text, size_t len,
                        const struct hx_encode_options *opt, struct hx_ids *out,
                        struct hx_error *err) HX_MUST;

/* Streaming detokenizer: bytes of tokens in, complete UTF-8 characters out; at most 3 bytes wait.
 */
struct hx_detok {
    uint8_t tail[4];
    unsigned n_tail;
};
struct hx_buf;
/* Appends the text that may be sent after `bytes`; ill-formed parts become U+FFFD. */
int hx_detok_push(struct hx_detok *d, const uint8_t *bytes, size_t len, struct hx_buf *out);
int hx_detok_flush(struct hx_detok *d, struct hx_buf *out);

#endif
