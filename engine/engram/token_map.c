/* Keys of tokens and the map from tokens to keys. */
#include "engram/token_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engram/fold_table.h"

#define MAX_VOCAB     (1 << 24)
#define MAX_TOKEN     (1 << 20)         /* bytes of one token */
#define MAX_KEY_BYTES ((size_t)1 << 30) /* of all keys together */

/* ---- keys ---- */

/* Byte-level spelling: printable bytes stand for themselves as characters, the others for U+0100
 * and up in order. */
static uint32_t byte_spelling(uint8_t b)
{
    if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    return b == 0xAD ? 0x143 : 0x121u + (b - 0x7Fu);
}

static void put_char(struct hx_buf *out, uint32_t c)
{
    uint8_t s[4];
    hx_buf_append(out, s, hx_utf8_encode(c, s));
}

static bool is_text(const struct hx_token_bytes *t)
{
    return hx_utf8_valid_prefix(t->data, t->len) == t->len &&
           !memmem(t->data, t->len, "\xEF\xBF\xBD", 3);
}

static void put_spelling(struct hx_buf *out, const struct hx_token_bytes *t)
{
    if (t->added) {
        hx_buf_append(out, t->data, t->len);
        return;
    }
    for (size_t i = 0; i < t->len; i++)
        put_char(out, byte_spelling(t->data[i]));
}

static void fold_hangul(struct hx_buf *out, uint32_t c)
{
    uint32_t i = c - 0xAC00;
    put_char(out, 0x1100 + i / 588);
    put_char(out, 0x1161 + i % 588 / 28);
    if (i % 28)
        put_char(out, 0x11A7 + i % 28);
}

static int by_char(const void *key, const void *member)
{
    const uint32_t *c = key;
    const struct hx_fold_range *r = member;
    return *c < r->first ? -1 : *c > r->last;
}

static void fold_char(struct hx_buf *out, uint32_t c)
{
    if (c >= 0xAC00 && c <= 0xD7A3) {
        fold_hangul(out, c);
        return;
    }
    const struct hx_fold_range *r =
        bsearch(&c, hx_fold_ranges, (size_t)hx_fold_n_ranges, sizeof(hx_fold_ranges[0]), by_char);
    if (!r) {
        put_char(out, c);
    } else if (r->n == 1) {
        put_char(out, r->value + (c - r->first));
    } else {
        for (uint32_t i = 0; i < r->n; i++)
            put_char(out, hx_fold_pool[r->value + r->n * (c - r->first) + i]);
    }
}

/* The White_Space property. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Runs of space, tab, CR and LF in data[from..] become one space. */
static void squeeze_spaces(struct hx_buf *b, size_t from)
{
    size_t to = from;
    for (size_t i = from; i < b->len; i++) {
        uint8_t c = b->data[i];
        bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
        if (space && to > from && b->data[to - 1] == ' ')
            continue;
        b->data[to++] = space ? ' ' : c;
    }
    b->len = to;
}

/* Strips white space at both ends of data[from..]. */
static void strip_spaces(struct hx_buf *b, size_t from)
{
    size_t start = b->len, end = from;
    for (size_t i = from; i < b->len;) {
        unsigned n;
        if (!is_space(hx_utf8_decode(b->data + i, b->len - i, &n))) {
            start = i < start ? i : start;
            end = i + n;
        }
        i += n;
    }
    if (end <= start)
        end = start;
    memmove(b->data + from, b->data + start, end - start);
    b->len = from + (end - start);
}

static void put_folded(struct hx_buf *out, const struct hx_token_bytes *t)
{
    size_t from = out->len;
    for (size_t i = 0; i < t->len && !out->failed;) {
        unsigned n;
        fold_char(out, hx_utf8_decode(t->data + i, t->len - i, &n));
        i += n;
    }
    if (out->failed)
        return;
    if (out->len > from)
        squeeze_spaces(out, from);
    if (out->len - from > 1 || (out->len > from && out->data[from] != ' '))
        strip_spaces(out, from);
    if (out->len == from)
        hx_buf_append(out, t->data, t->len);
}

int hx_token_map_key(const struct hx_token_bytes *t, struct hx_buf *key, struct hx_error *err)
{
    if (is_text(t))
        put_folded(key, t);
    else
        put_spelling(key, t);
    if (key->failed)
        return hx_fail(err, -ENOMEM, "no memory for the key of a token of %zu bytes (limit %zu)",
                       t->len, key->max);
    return 0;
}

/* ---- map ---- */

struct key {
    size_t at, len;
    int32_t id;
};

struct builder {
    struct hx_buf text; /* all keys, one behind the other */
    struct key *slot;   /* open addressing; id < 0: free */
    size_t n_slots;     /* a power of two, at least twice the vocabulary */
    int32_t n_ids;
};

static uint64_t hash_bytes(const uint8_t *s, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001B3u;
    return h ^ h >> 32;
}

/* The id of the key at text[at..]; a known key's text is taken back. */
static int32_t intern(struct builder *b, size_t at)
{
    size_t len = b->text.len - at, i = hash_bytes(b->text.data + at, len) & (b->n_slots - 1);
    for (; b->slot[i].id >= 0; i = (i + 1) & (b->n_slots - 1)) {
        if (b->slot[i].len == len &&
            memcmp(b->text.data + b->slot[i].at, b->text.data + at, len) == 0) {
            b->text.len = at;
            return b->slot[i].id;
        }
    }
    b->slot[i] = (struct key){at, len, b->n_ids};
    return b->n_ids++;
}

static int add_token(struct builder *b, const struct hx_token_source *source, int32_t id,
                     int32_t *out, struct hx_error *err)
{
    struct hx_token_bytes t;
    size_t at = b->text.len;
    int r = source->token(source->user, id, &t, err);
    if (r == 0 && (t.len < 1 || t.len > MAX_TOKEN))
        r = hx_fail(err, -EINVAL, "%zu bytes, expected 1 to %d", t.len, MAX_TOKEN);
    if (r == 0)
        r = hx_token_map_key(&t, &b->text, err);
    if (r < 0)
        return hx_wrap(err, r, "token %d", id);
    *out = intern(b, at);
    return 0;
}

int hx_token_map_build(const struct hx_token_source *source, int32_t *map, int32_t *n_compressed,
                       struct hx_error *err)
{
    struct builder b = {.text = HX_BUF_INIT(MAX_KEY_BYTES), .n_slots = 2};
    if (source->n_vocab < 1 || source->n_vocab > MAX_VOCAB)
        return hx_fail(err, -EINVAL, "token map: %d tokens, expected 1 to %d", source->n_vocab,
                       MAX_VOCAB);
    while (b.n_slots < 2 * (size_t)source->n_vocab)
        b.n_slots *= 2;
    b.slot = malloc(b.n_slots * sizeof(*b.slot));
    if (!b.slot)
        return hx_fail(err, -ENOMEM, "out of memory for a token map of %d tokens", source->n_vocab);
    for (size_t i = 0; i < b.n_slots; i++)
        b.slot[i].id = -1;
    int r = 0;
    for (int32_t id = 0; r == 0 && id < source->n_vocab; id++)
        r = add_token(&b, source, id, &map[id], err);
    hx_buf_done(&b.text);
    free(b.slot);
    if (r == 0)
        *n_compressed = b.n_ids;
    return r;
}
