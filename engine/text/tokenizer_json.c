/* Importer of tokenizer.json. What it does not implement it refuses by name: a silent difference
 * would corrupt every prompt. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/utf8.h"
#include "text/pretok.h"
#include "text/tokenizer_impl.h"

#define MAX_TOKEN_BYTES 4096

/* ---- fields that must have one value
 * ----------------------------------------------------------------- */

/* The three patterns, in order (docs/tokenizer.md). CR and LF in the third are the characters
 * themselves. */
static const char *const patterns[3] = {
    "\\p{N}{1,3}",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

static int refuse(struct hx_error *err, const char *field, const char *expected)
{
    return hx_fail(err, -EINVAL, "%s: expected %s (this tokenizer is not implemented)", field,
                   expected);
}

static bool absent(struct hx_jv v)
{
    return hx_jv_type(v) <= HX_JSON_NULL;
}

static bool absent_or_empty(struct hx_jv v)
{
    return absent(v) || hx_jv_str_is(v, "");
}

static bool is_false(struct hx_jv v)
{
    return hx_jv_type(v) == HX_JSON_FALSE;
}

static int check_model(struct hx_jv m, struct hx_error *err)
{
    if (!hx_jv_str_is(hx_jv_get(m, "type"), "BPE"))
        return refuse(err, "model.type", "BPE");
    static const char *const nulls[] = {"dropout", "unk_token"};
    static const char *const empties[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const falses[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < 2; i++) {
        if (!absent(hx_jv_get(m, nulls[i])))
            return hx_fail(err, -EINVAL, "model.%s: expected null", nulls[i]);
        if (!absent_or_empty(hx_jv_get(m, empties[i])))
            return hx_fail(err, -EINVAL, "model.%s: expected null", empties[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        struct hx_jv v = hx_jv_get(m, falses[i]);
        if (!absent(v) && !is_false(v))
            return hx_fail(err, -EINVAL, "model.%s: expected false", falses[i]);
    }
    return 0;
}

static int check_pre_tokenizer(struct hx_jv p, struct hx_error *err)
{
    if (!hx_jv_str_is(hx_jv_get(p, "type"), "Sequence"))
        return refuse(err, "pre_tokenizer.type", "Sequence");
    struct hx_jv list = hx_jv_get(p, "pretokenizers"), e = hx_jv_first(list);
    if (hx_jv_count(list) != 4)
        return refuse(err, "pre_tokenizer.pretokenizers", "three Split and one ByteLevel");
    for (int i = 0; i < 3; i++, e = hx_jv_next(e)) {
        if (!hx_jv_str_is(hx_jv_get(e, "type"), "Split") ||
            !hx_jv_str_is(hx_jv_get(e, "behavior"), "Isolated") ||
            !is_false(hx_jv_get(e, "invert")))
            return refuse(err, "pre_tokenizer.pretokenizers", "Split, Isolated, not inverted");
        if (!hx_jv_str_is(hx_jv_get(hx_jv_get(e, "pattern"), "Regex"), patterns[i]))
            return hx_fail(err, -EINVAL,
                           "pre_tokenizer.pretokenizers[%d].pattern: not the known pattern", i);
    }
    if (!hx_jv_str_is(hx_jv_get(e, "type"), "ByteLevel") ||
        !is_false(hx_jv_get(e, "add_prefix_space")) || !is_false(hx_jv_get(e, "use_regex")))
        return refuse(err, "pre_tokenizer.pretokenizers[3]",
                      "ByteLevel without prefix space and regex");
    return 0;
}

static int check_rest(struct hx_jv root, struct hx_error *err)
{
    struct hx_jv n = hx_jv_get(root, "normalizer"), post = hx_jv_get(root, "post_processor");
    if (!absent(n) && !(hx_jv_str_is(hx_jv_get(n, "type"), "Sequence") &&
                        hx_jv_type(hx_jv_get(n, "normalizers")) == HX_JSON_ARRAY &&
                        hx_jv_count(hx_jv_get(n, "normalizers")) == 0))
        return refuse(err, "normalizer", "none");
    if (!hx_jv_str_is(hx_jv_get(hx_jv_get(root, "decoder"), "type"), "ByteLevel"))
        return refuse(err, "decoder.type", "ByteLevel");
    if (!absent(post) && !hx_jv_str_is(hx_jv_get(post, "type"), "ByteLevel"))
        return refuse(err, "post_processor.type", "ByteLevel");
    if (!absent(hx_jv_get(root, "truncation")))
        return refuse(err, "truncation", "null");
    if (!absent(hx_jv_get(root, "padding")))
        return refuse(err, "padding", "null");
    return 0;
}

/* ---- vocabulary
 * -------------------------------------------------------------------------------------- */

/* GPT-2 alphabet: printable bytes stand for themselves, the other 68 in order are U+0100.. . */
static void alphabet(int16_t byte_of[512])
{
    int next = 256;
    memset(byte_of, 0xFF, 512 * sizeof(*byte_of));
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[printable ? b : next++] = (int16_t)b;
    }
}

/* Spelling -> bytes; returns the length or -1. */
static int spelled(const int16_t byte_of[512], const char *s, size_t len,
                   uint8_t out[MAX_TOKEN_BYTES])
{
    int n = 0;
    for (size_t i = 0; i < len;) {
        unsigned used;
        uint32_t cp = hx_utf8_decode((const uint8_t *)s + i, len - i, &used);
        if (cp >= 512 || byte_of[cp] < 0 || n == MAX_TOKEN_BYTES)
            return -1;
        out[n++] = (uint8_t)byte_of[cp];
        i += used;
    }
    return n;
}

struct import {
    struct hx_tokenizer *t;
    int16_t byte_of[512];
    struct hx_error *err;
};

/* Highest id of vocabulary and added tokens. */
static int count_ids(struct import *m, struct hx_jv vocab, struct hx_jv added)
{
    int64_t id, most = -1;
    for (struct hx_jv v = hx_jv_first(vocab); v.doc; v = hx_jv_next(v)) {
        if (!hx_jv_int64(v, &id) || id < 0 || id >= HX_BPE_MAX_ID)
            return hx_fail(m->err, -EINVAL, "model.vocab: an id is not an integer from 0 to %d",
                           HX_BPE_MAX_ID - 1);
        most = id > most ? id : most;
    }
    if (most < 0)
        return hx_fail(m->err, -EINVAL, "model.vocab: expected an object with tokens");
    m->t->bpe.n_vocab = (int32_t)most + 1;
    for (struct hx_jv v = hx_jv_first(added); v.doc; v = hx_jv_next(v)) {
        if (!hx_jv_int64(hx_jv_get(v, "id"), &id) || id < 0 || id >= HX_BPE_MAX_ID)
            return hx_fail(m->err, -EINVAL, "added_tokens: an id is not an integer from 0 to %d",
                           HX_BPE_MAX_ID - 1);
        most = id > most ? id : most;
    }
    m->t->n_ids = (int32_t)most + 1;
    m->t->added_of = malloc((size_t)m->t->n_ids * sizeof(*m->t->added_of));
    if (!m->t->added_of)
        return hx_fail(m->err, -ENOMEM, "out of memory");
    memset(m->t->added_of, 0xFF, (size_t)m->t->n_ids * sizeof(*m->t->added_of));
    return 0;
}

static int by_text(const void *a, const void *b)
{
    const struct hx_added_token *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    return c != 0 ? c : x->len < y->len ? -1 : x->len > y->len;
}

static int read_added(struct import *m, struct hx_jv list)
{
    struct hx_tokenizer *t = m->t;
    size_t n = hx_jv_count(list), len;
    t->added = calloc(n ? n : 1, sizeof(*t->added));
    if (!t->added)
        return hx_fail(m->err, -ENOMEM, "out of memory");
    for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v)) {
        const char *s = hx_jv_str(hx_jv_get(v, "content"), &len);
        int64_t id = -1;
        static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
        hx_jv_int64(hx_jv_get(v, "id"), &id);
        if (!s || len == 0 || len > MAX_TOKEN_BYTES)
            return hx_fail(m->err, -EINVAL, "added_tokens: id %lld has no content", (long long)id);
        for (int i = 0; i < 3; i++) {
            if (!absent(hx_jv_get(v, flags[i])) && !is_false(hx_jv_get(v, flags[i])))
                return hx_fail(m->err, -EINVAL, "added_tokens: id %lld: %s: expected false",
                               (long long)id, flags[i]);
        }
        struct hx_added_token *a = &t->added[t->n_added];
        a->text = malloc(len + 1);
        if (!a->text)
            return hx_fail(m->err, -ENOMEM, "out of memory");
        memcpy(a->text, s, len);
        a->text[len] = '\0';
        a->len = (uint32_t)len;
        a->id = (int32_t)id;
        t->n_added++;
        t->first_byte[(uint8_t)a->text[0]] = true;
    }
    qsort(t->added, (size_t)t->n_added, sizeof(*t->added), by_text);
    for (int i = 0; i < t->n_added; i++) {
        const struct hx_added_token *a = &t->added[i];
        if (i > 0 && t->added[i - 1].len <= a->len &&
            memcmp(t->added[i - 1].text, a->text, t->added[i - 1].len) == 0)
            return hx_fail(m->err, -EINVAL,
                           "added_tokens: '%.60s' begins with '%.60s' (not implemented)", a->text,
                           t->added[i - 1].text);
        if (t->added_of[a->id] >= 0)
            return hx_fail(m->err, -EINVAL, "added_tokens: id %d is there twice", a->id);
        t->added_of[a->id] = i;
    }
    return 0;
}

static int read_vocab(struct import *m, struct hx_jv vocab)
{
    struct hx_bpe *b = &m->t->bpe;
    size_t n = (size_t)b->n_vocab, len, total = 0;
    struct hx_jv *by_id = calloc(n, sizeof(*by_id));
    uint8_t bytes[MAX_TOKEN_BYTES];
    int64_t id;
    int r = 0;
    b->offset = calloc(n + 1, sizeof(*b->offset));
    if (!by_id || !b->offset) {
        r = hx_fail(m->err, -ENOMEM, "out of memory");
        goto out;
    }
    for (struct hx_jv v = hx_jv_first(vocab); v.doc; v = hx_jv_next(v)) {
        hx_jv_int64(v, &id);
        if (by_id[id].doc) {
            r = hx_fail(m->err, -EINVAL, "model.vocab: id %lld is there twice", (long long)id);
            goto out;
        }
        by_id[id] = hx_jv_key(v);
        hx_jv_str(by_id[id], &len);
        total += len;
    }
    b->bytes = malloc(total + 1);
    if (!b->bytes) {
        r = hx_fail(m->err, -ENOMEM, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const char *s = hx_jv_str(by_id[i], &len);
        int k = 0;
        if (!s && m->t->added_of[i] < 0)
            r = hx_fail(m->err, -EINVAL, "model.vocab: id %zu is missing", i);
        else if (m->t->added_of[i] < 0 && (k = spelled(m->byte_of, s, len, bytes)) <= 0)
            r = hx_fail(m->err, -EINVAL, "model.vocab: id %zu is not spelled in the byte alphabet",
                        i);
        if (r < 0)
            goto out;
        memcpy(b->bytes + b->offset[i], bytes, (size_t)k);
        b->offset[i + 1] = b->offset[i] + (uint32_t)k;
    }
out:
    free(by_id);
    return r;
}

/* "left right", or a list of two. */
static bool merge_parts(struct hx_jv v, const char **left, size_t *n_left, const char **right,
                        size_t *n_right)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    if (!s) {
        struct hx_jv first = hx_jv_first(v);
        *left = hx_jv_str(first, n_left);
        *right = hx_jv_str(hx_jv_next(first), n_right);
        return hx_jv_type(v) == HX_JSON_ARRAY && hx_jv_count(v) == 2 && *left && *right;
    }
    const char *space = memchr(s, ' ', len);
    if (!space)
        return false;
    *left = s;
    *n_left = (size_t)(space - s);
    *right = space + 1;
    *n_right = len - *n_left - 1;
    return *n_left > 0 && *n_right > 0;
}

/* The rank of a merge is the id of its result: ids must rise line by line. */
static int read_merges(struct import *m, struct hx_jv merges)
{
    struct hx_bpe *b = &m->t->bpe;
    uint8_t bytes[2 * MAX_TOKEN_BYTES];
    int32_t before = -1;
    size_t line = 0;
    if (hx_jv_type(merges) != HX_JSON_ARRAY)
        return hx_fail(m->err, -EINVAL, "model.merges: expected a list");
    for (struct hx_jv v = hx_jv_first(merges); v.doc; v = hx_jv_next(v), line++) {
        const char *left, *right;
        size_t n_left, n_right;
        if (!merge_parts(v, &left, &n_left, &right, &n_right))
            return hx_fail(m->err, -EINVAL, "model.merges[%zu]: expected two tokens", line);
        int a = spelled(m->byte_of, left, n_left, bytes);
        int c = a > 0 ? spelled(m->byte_of, right, n_right, bytes + a) : -1;
        int32_t l = a > 0 ? hx_bpe_find(b, bytes, (size_t)a) : -1;
        int32_t r = c > 0 ? hx_bpe_find(b, bytes + a, (size_t)c) : -1;
        int32_t result = l >= 0 && r >= 0 ? hx_bpe_find(b, bytes, (size_t)(a + c)) : -1;
        if (result < 0)
            return hx_fail(m->err, -EINVAL,
                           "model.merges[%zu]: a part or the result is not in model.vocab", line);
        if (result <= before)
            return hx_fail(m->err, -EINVAL,
                           "model.merges[%zu]: result id %d after %d, expected rising ids", line,
                           result, before);
        before = result;
        int ret = hx_bpe_add_pair(b, l, r, result, m->err);
        if (ret < 0)
            return ret;
    }
    return 0;
}

static int import(struct import *m, struct hx_jv root)
{
    struct hx_jv model = hx_jv_get(root, "model"), added = hx_jv_get(root, "added_tokens");
    int r = check_model(model, m->err);
    if (r == 0)
        r = check_pre_tokenizer(hx_jv_get(root, "pre_tokenizer"), m->err);
    if (r == 0)
        r = check_rest(root, m->err);
    if (r == 0)
        r = count_ids(m, hx_jv_get(model, "vocab"), added);
    if (r == 0)
        r = read_added(m, added);
    if (r == 0)
        r = read_vocab(m, hx_jv_get(model, "vocab"));
    if (r == 0)
        r = hx_bpe_init(&m->t->bpe, m->err);
    if (r == 0)
        r = read_merges(m, hx_jv_get(model, "merges"));
    return r < 0 ? r : hx_bpe_mark_whole(&m->t->bpe, m->err);
}

int hx_tokenizer_parse(const char *label, const char *json, size_t len, struct hx_tokenizer **out,
                       struct hx_error *err)
{
    const struct hx_json_limits limits = {256u << 20, 4u << 20, 16, 0};
    struct hx_json *doc = NULL;
    struct hx_tokenizer *t = calloc(1, sizeof(*t));
    if (!t || !(t->classes = malloc(HX_CLASS_TABLE))) {
        free(t);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    hx_pretok_classes(t->classes);
    int r = hx_json_parse(json, len, &limits, &doc, err);
    if (r == 0) {
        struct import m = {.t = t, .err = err};
        alphabet(m.byte_of);
        r = import(&m, hx_json_root(doc));
    }
    hx_json_free(doc);
    if (r < 0) {
        hx_tokenizer_close(t);
        return hx_wrap(err, r, "%s", label);
    }
    *out = t;
    return 0;
}
