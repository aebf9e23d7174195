/* Golden JSON files of tests/vectors/engram. */
#ifndef HX_TEST_ENGRAM_VECTORS_H
#define HX_TEST_ENGRAM_VECTORS_H

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json_read.h"

static inline struct hx_json *load_vectors(const char *name)
{
    char path[256], *text = NULL;
    size_t len;
    struct hx_error err;
    struct hx_json *doc = NULL;
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    snprintf(path, sizeof(path), "tests/vectors/engram/%s", name);
    if (hx_file_read(path, 64 << 20, &text, &len, &err) < 0 ||
        hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("%s", err.text);
    free(text);
    return doc;
}

static inline struct hx_jv at(struct hx_jv object, const char *key)
{
    struct hx_jv v = hx_jv_get(object, key);
    if (hx_jv_type(v) == HX_JSON_NONE)
        fail_msg("no member '%s'", key);
    return v;
}

static inline int64_t as_int(struct hx_jv v)
{
    int64_t x;
    if (!hx_jv_int64(v, &x))
        fail_msg("not an integer");
    return x;
}

/* Integers of the whole unsigned 64-bit range. */
static inline uint64_t as_u64(struct hx_jv v)
{
    size_t len;
    const char *s = hx_jv_number_text(v, &len);
    uint64_t x = 0;
    assert_non_null(s);
    for (size_t i = 0; i < len; i++) {
        assert_in_range(s[i], '0', '9');
        x = x * 10 + (uint64_t)(s[i] - '0');
    }
    return x;
}

/* An array of integers in fresh memory. */
static inline int64_t *as_ints(struct hx_jv a, int *n)
{
    *n = (int)hx_jv_count(a);
    int64_t *out = calloc((size_t)*n + 1, sizeof(*out));
    int i = 0;
    assert_non_null(out);
    for (struct hx_jv v = hx_jv_first(a); v.doc; v = hx_jv_next(v))
        out[i++] = as_int(v);
    return out;
}

static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Bytes of a string of hexadecimal digits in fresh memory. */
static inline uint8_t *as_hex(struct hx_jv v, size_t *n)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    assert_non_null(s);
    uint8_t *out = calloc(len / 2 + 1, 1);
    assert_non_null(out);
    for (size_t i = 0; i + 1 < len; i += 2)
        out[i / 2] = (uint8_t)(hex_digit(s[i]) << 4 | hex_digit(s[i + 1]));
    *n = len / 2;
    return out;
}

#endif
