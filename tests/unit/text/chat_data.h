/* JSON files of tests/vectors/chat. */
#ifndef HX_TEST_CHAT_DATA_H
#define HX_TEST_CHAT_DATA_H

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"

static inline struct hx_json *load_json(const char *path)
{
    char *text = NULL;
    size_t len;
    struct hx_error err;
    struct hx_json *doc = NULL;
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    limits.flags = HX_JSON_ALLOW_NONFINITE;
    if (hx_file_read(path, 64 << 20, &text, &len, &err) < 0)
        fail_msg("%s", err.text);
    if (hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("%s: %s", path, err.text);
    free(text);
    return doc;
}

static inline struct hx_json *parse_json(const char *text, size_t len)
{
    struct hx_error err;
    struct hx_json *doc = NULL;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    if (hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("not JSON: %s: %.*s", err.text, (int)len, text);
    return doc;
}

/* A string member, NUL-terminated in one of eight rotating buffers: for messages and short values.
 */
static inline const char *text_of(struct hx_jv object, const char *key)
{
    static char ring[8][256];
    static unsigned turn;
    char *to = ring[turn++ % 8];
    size_t len = 0;
    const char *s = hx_jv_str(hx_jv_get(object, key), &len);
    if (len > 255)
        len = 255;
    memcpy(to, s ? s : "", len);
    to[len] = '\0';
    return to;
}

#endif
