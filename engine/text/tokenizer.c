/* Encoding of whole texts, token bytes, and the streaming detokenizer. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/pretok.h"
#include "text/tokenizer_impl.h"

#define CHECK_BYTES (1u << 20) /* between two looks at the cancel callback */
#define MAX_TEXT    ((size_t)1 << 31)

/* ---- id lists
 * ---------------------------------------------------------------------------------------- */

void hx_ids_done(struct hx_ids *ids)
{
    free(ids->id);
    *ids = (struct hx_ids){0};
}

static int reserve(struct hx_ids *ids, size_t extra)
{
    if (ids->cap - ids->len >= extra)
        return 0;
    size_t cap = ids->cap + ids->cap / 2 + 64;
    if (cap - ids->len < extra)
        cap = ids->len + extra;
    int32_t *id = realloc(ids->id, cap * sizeof(*id));
    if (!id)
        return -ENOMEM;
    ids->id = id;
    ids->cap = cap;
    return 0;
}

int hx_ids_push(struct hx_ids *ids, int32_t id)
{
    if (ids->len == ids->cap && reserve(ids, 1) < 0)
        return -ENOMEM;
    ids->id[ids->len++] = id;
    return 0;
}

int hx_ids_append(struct hx_ids *ids, const int32_t *id, size_t n)
{
    if (reserve(ids, n) < 0)
        return -ENOMEM;
    memcpy(ids->id + ids->len, id, n * sizeof(*id));
    ids->len += n;
    return 0;
}

/* ---- life cycle
 * -------------------------------------------------------------------------------------- */

int hx_tokenizer_open(const char *path, struct hx_tokenizer **out, struct hx_error *err)
{
    char *json = NULL;
    size_t len;
    int r = hx_file_read(path, 256u << 20, &json, &len, err);
    if (r == 0)
        r = hx_tokenizer_parse(path, json, len, out, err);
    free(json);
    return r;
}

void hx_tokenizer_close(struct hx_tokenizer *t)
{
    if (!t)
        return;
    hx_bpe_done(&t->bpe);
    for (int i = 0; i < t->n_added; i++)
        free(t->added[i].text);
    free(t->added);
    free(t->added_of);
    free(t->classes);
    free(t);
}

/* ---- access
 * ------------------------------------------------------------------------------------------ */

int32_t hx_tokenizer_n_vocab(const struct hx_tokenizer *t)
{
    return t->n_ids;
}

bool hx_tokenizer_is_added(const struct hx_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->added_of[id] >= 0;
}

const uint8_t *hx_tokenizer_bytes(const struct hx_tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->n_ids)
        return NULL;
    if (t->added_of[id] >= 0) {
        const struct hx_added_token *a = &t->added[t->added_of[id]];
        *len = a->len;
        return (const uint8_t *)a->text;
    }
    if (id >= t->bpe.n_vocab || t->bpe.offset[id] == t->bpe.offset[id + 1])
        return NULL;
    *len = t->bpe.offset[id + 1] - t->bpe.offset[id];
    return t->bpe.bytes + t->bpe.offset[id];
}

/* The added token that `s` begins with, NULL: none. As none is a prefix of another, it is the
 * greatest spelling that is not above `s`. */
static const struct hx_added_token *added_at(const struct hx_tokenizer *t, const uint8_t *s,
                                             size_t len)
{
    int lo = 0, hi = t->n_added;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const struct hx_added_token *a = &t->added[mid];
        size_t n = a->len < len ? a->len : len;
        int c = memcmp(a->text, s, n);
        if (c < 0 || (c == 0 && a->len <= len))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return NULL;
    const struct hx_added_token *a = &t->added[lo - 1];
    return a->len <= len && memcmp(a->text, s, a->len) == 0 ? a : NULL;
}

int32_t hx_tokenizer_special(const struct hx_tokenizer *t, const char *spelling)
{
    size_t len = strlen(spelling);
    const struct hx_added_token *a = added_at(t, (const uint8_t *)spelling, len);
    return a && a->len == len ? a->id : -1;
}

/* ---- encoding
 * ---------------------------------------------------------------------------------------- */

struct progress {
    const struct hx_encode_options *opt;
    size_t since;
};

static int advance(void *user, size_t bytes)
{
    struct progress *p = user;
    p->since += bytes;
    if (p->since < CHECK_BYTES)
        return 0;
    p->since = 0;
    return p->opt->cancelled && p->opt->cancelled(p->opt->user) ? -ECANCELED : 0;
}

static int encode_plain(const struct hx_tokenizer *t, const uint8_t *s, size_t len,
                        struct progress *p, struct hx_ids *out)
{
    const struct hx_bpe_progress inside = {advance, p};
    int r = 0;
    for (size_t at = 0, end; r == 0 && at < len; at = end) {
        end = hx_pretok_next(t->classes, s, len, at);
        r = hx_bpe_merge(&t->bpe, s + at, end - at, &inside, out);
        if (r == 0)
            r = advance(p, end - at);
    }
    return r;
}

static int encode_valid(const struct hx_tokenizer *t, const uint8_t *s, size_t len,
                        const struct hx_encode_options *opt, struct hx_ids *out)
{
    struct progress p = {opt, 0};
    size_t plain = 0, i = 0;
    while (opt->parse_special && i < len) {
        const struct hx_added_token *a = t->first_byte[s[i]] ? added_at(t, s + i, len - i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        int r = encode_plain(t, s + plain, i - plain, &p, out);
        if (r == 0)
            r = hx_ids_push(out, a->id);
        if (r < 0)
            return r;
        i += a->len;
        plain = i;
    }
    return encode_plain(t, s + plain, len - plain, &p, out);
}

int hx_tokenizer_encode(const struct hx_tokenizer *t, const char *text, size_t len,
                        const struct hx_encode_options *opt, struct hx_ids *out,
                        struct hx_error *err)
{
    const uint8_t *s = (const uint8_t *)text;
    struct hx_buf clean = HX_BUF_INIT(MAX_TEXT);
    size_t had = out->len;
    int r = 0;
    if (len > MAX_TEXT / 3)
        return hx_fail(err, -EMSGSIZE, "text of %zu bytes, at most %zu can be encoded", len,
                       MAX_TEXT / 3);
    if (hx_utf8_valid_prefix(s, len) < len) {
        r = hx_utf8_sanitize(s, len, &clean);
        s = clean.data;
        len = clean.len;
    }
    if (r >= 0)
        r = encode_valid(t, s, len, opt, out);
    hx_buf_done(&clean);
    if (r < 0) {
        out->len = had;
        return hx_fail(err, r,
                       r == -ECANCELED ? "encoding was cancelled" : "out of memory while encoding");
    }
    return 0;
}

/* ---- streaming detokenizer ---------------------------------------------------------------------
 */

#define REPLACEMENT "\xEF\xBF\xBD"

/* Like hx_utf8_next, but the start of an encoded surrogate (ED A0..BF) at the very end also waits:
 * recorded deltas show it replaced as a whole with its third byte. */
static int next_character(const uint8_t *s, size_t len)
{
    return len == 2 && s[0] == 0xED && s[1] >= 0xA0 && s[1] <= 0xBF ? 0 : hx_utf8_next(s, len);
}

/* Takes decided characters from the waiting bytes. */
static int settle(struct hx_detok *d, struct hx_buf *out)
{
    int r = 0, n;
    while (r == 0 && d->n_tail > 0 && (n = next_character(d->tail, d->n_tail)) != 0) {
        unsigned used = (unsigned)(n > 0 ? n : -n);
        r = n > 0 ? hx_buf_append(out, d->tail, used) : hx_buf_append(out, REPLACEMENT, 3);
        d->n_tail -= used;
        memmove(d->tail, d->tail + used, d->n_tail);
    }
    return r;
}

int hx_detok_push(struct hx_detok *d, const uint8_t *bytes, size_t len, struct hx_buf *out)
{
    size_t i = 0;
    int r = 0;
    while (r == 0 && d->n_tail > 0 && i < len) {
        d->tail[d->n_tail++] = bytes[i++];
        r = settle(d, out);
    }
    while (r == 0 && i < len) {
        size_t valid = hx_utf8_valid_prefix(bytes + i, len - i);
        r = hx_buf_append(out, bytes + i, valid);
        i += valid;
        if (r < 0 || i == len)
            break;
        int n = next_character(bytes + i, len - i);
        if (n == 0) {
            d->n_tail = (unsigned)(len - i);
            memcpy(d->tail, bytes + i, len - i);
            break;
        }
        r = hx_buf_append(out, REPLACEMENT, 3);
        i += (size_t)-n;
    }
    return r;
}

int hx_detok_flush(struct hx_detok *d, struct hx_buf *out)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < d->n_tail;) {
        int n = hx_utf8_next(d->tail + i, d->n_tail - i);
        i += n < 0 ? (unsigned)-n : d->n_tail - i; /* unfinished: all that is left is one part */
        r = hx_buf_append(out, REPLACEMENT, 3);
    }
    d->n_tail = 0;
    return r;
}
