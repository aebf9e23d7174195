/* JSON lines files of tests/vectors. */
#ifndef HX_TEST_JSONL_H
#define HX_TEST_JSONL_H

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"

/* Calls fn for each line; returns how many there were. */
static inline int each_line(const char *path, void (*fn)(void *user, struct hx_jv v), void *user)
{
    char *text = NULL;
    size_t len;
    struct hx_error err;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    int n = 0;
    if (hx_file_read(path, 64 << 20, &text, &len, &err) < 0)
        fail_msg("%s", err.text);
    for (char *line = text; *line;) {
        size_t end = strcspn(line, "\n");
        struct hx_json *doc;
        if (hx_json_parse(line, end, &limits, &doc, &err) < 0)
            fail_msg("%s: line %d: %s", path, n + 1, err.text);
        fn(user, hx_json_root(doc));
        hx_json_free(doc);
        n++;
        line += end + (line[end] == '\n');
    }
    free(text);
    return n;
}

static inline size_t hex_bytes(struct hx_jv v, uint8_t *out, size_t max)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    assert_non_null(s);
    assert_true(len / 2 <= max);
    for (size_t i = 0; i + 1 < len; i += 2) {
        char pair[3] = {s[i], s[i + 1], 0};
        out[i / 2] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return len / 2;
}

#endif
