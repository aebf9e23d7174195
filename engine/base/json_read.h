/* Strict JSON reader that keeps what other readers drop: the text of numbers, key order and
 * duplicate keys. Strings may hold NUL; lone surrogates become U+FFFD. Iterative, so depth is a
 * limit and not a stack overflow. Memory: a copy of the text plus 16 bytes a value. */
#ifndef HX_BASE_JSON_READ_H
#define HX_BASE_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

enum hx_json_type {
    HX_JSON_NONE, /* absent: what a failed lookup returns; every accessor accepts it */
    HX_JSON_NULL,
    HX_JSON_FALSE,
    HX_JSON_TRUE,
    HX_JSON_NUMBER,
    HX_JSON_STRING,
    HX_JSON_ARRAY,
    HX_JSON_OBJECT,
    HX_JSON_TYPE_MAX
};

#define HX_JSON_ALLOW_NONFINITE 1u /* NaN, Infinity, -Infinity as numbers */

struct hx_json_limits {
    size_t max_bytes;  /* text length, at most 4 GiB - 1 */
    size_t max_values; /* values in the document */
    unsigned max_depth;
    unsigned flags;
};

#define HX_JSON_LIMITS_DEFAULT ((struct hx_json_limits){64u << 20, 64u << 20, 128, 0})

struct hx_json; /* a parsed document */

/* A value inside a document; plain and copyable, valid as long as the document. */
struct hx_jv {
    const struct hx_json *doc; /* NULL: HX_JSON_NONE */
    uint32_t at;
};

#define HX_JV_NONE ((struct hx_jv){NULL, 0})

/* Errors: -EINVAL with line, column and reason (slug invalid_json); -EMSGSIZE; -ENOMEM. */
int hx_json_parse(const char *text, size_t len, const struct hx_json_limits *limits,
                  struct hx_json **out, struct hx_error *err) HX_MUST;
void hx_json_free(struct hx_json *doc);
struct hx_jv hx_json_root(const struct hx_json *doc);

enum hx_json_type hx_jv_type(struct hx_jv v);
const char *hx_json_type_name(enum hx_json_type t); /* "a string", "null", ... for messages */
/* Decoded string; NULL if v is not a string. Not NUL-terminated. */
const char *hx_jv_str(struct hx_jv v, size_t *len);
bool hx_jv_str_is(struct hx_jv v, const char *s);
/* Number text as written; NULL if v is not a number. */
const char *hx_jv_number_text(struct hx_jv v, size_t *len);
/* false if v is not a number, or not exactly representable (integers written as 5.0 are). */
bool hx_jv_int64(struct hx_jv v, int64_t *out);
bool hx_jv_double(struct hx_jv v, double *out);
bool hx_jv_bool(struct hx_jv v, bool *out);

size_t hx_jv_count(struct hx_jv v); /* elements of an array, members of an object; else 0; O(n) */
/* Last member of that name (JSON readers take the last), HX_JV_NONE if absent or not an object. */
struct hx_jv hx_jv_get(struct hx_jv object, const char *key);
struct hx_jv hx_jv_get_n(struct hx_jv object, const char *key, size_t len);
/* Iteration in source order, duplicates included:
 *   for (struct hx_jv v = hx_jv_first(a); v.doc; v = hx_jv_next(v))
 * hx_jv_key(v) is the key (a string value) of a member, HX_JV_NONE in an array. */
struct hx_jv hx_jv_first(struct hx_jv container);
struct hx_jv hx_jv_next(struct hx_jv element);
struct hx_jv hx_jv_key(struct hx_jv member);

#endif
