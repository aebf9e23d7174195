/* Parameter texts to JSON values, typed by the declared schema (chat.md 8.3). */
#include <stdlib.h>
#include <string.h>

#include "text/reply_impl.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void trim(const char **s, size_t *len)
{
    while (*len && is_space(**s)) {
        (*s)++;
        (*len)--;
    }
    while (*len && is_space((*s)[*len - 1]))
        (*len)--;
}

static struct hx_json *parse(const char *s, size_t len, int *r)
{
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *doc = NULL;
    *r = hx_json_parse(s, len, &limits, &doc, NULL);
    if (*r != -ENOMEM)
        *r = 0;
    return doc;
}

static bool fits(struct hx_jv v, enum hx_schema_type type)
{
    int64_t i;
    switch (type) {
    case HX_SCHEMA_STRING: return hx_jv_type(v) == HX_JSON_STRING;
    case HX_SCHEMA_INTEGER: return hx_jv_int64(v, &i);
    case HX_SCHEMA_NUMBER: return hx_jv_type(v) == HX_JSON_NUMBER;
    case HX_SCHEMA_BOOLEAN: return hx_jv_type(v) == HX_JSON_TRUE || hx_jv_type(v) == HX_JSON_FALSE;
    case HX_SCHEMA_ARRAY: return hx_jv_type(v) == HX_JSON_ARRAY;
    case HX_SCHEMA_OBJECT: return hx_jv_type(v) == HX_JSON_OBJECT;
    default: return false;
    }
}

static void put_string(struct hx_buf *out, const char *s, size_t len)
{
    hx_buf_putc(out, '"');
    hx_json_escape(out, s, len);
    hx_buf_putc(out, '"');
}

static const char *python_literal(const char *s, size_t len)
{
    static const char *const row[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < 3; i++) {
        if (len == strlen(row[i][0]) && memcmp(s, row[i][0], len) == 0)
            return row[i][1];
    }
    return NULL;
}

int hx_value_to_json(enum hx_schema_type type, enum hx_string_attr attr, const char *s, size_t len,
                     struct hx_buf *out, unsigned *healed)
{
    bool text_type = type == HX_SCHEMA_STRING || type == HX_SCHEMA_UNKNOWN;
    if (attr != HX_STRING_FALSE && text_type) {
        if (attr == HX_STRING_MISSING)
            *healed |= HX_HEAL_BIT(HX_HEAL_TYPE_FROM_SCHEMA);
        put_string(out, s, len);
        return out->failed ? -ENOMEM : 0;
    }
    const char *t = s;
    size_t t_len = len;
    trim(&t, &t_len);
    int r;
    struct hx_json *doc = parse(t, t_len, &r);
    if (r < 0)
        return r;
    struct hx_jv v = doc ? hx_json_root(doc) : HX_JV_NONE;
    bool json = doc != NULL, fit = json && fits(v, type), null = hx_jv_type(v) == HX_JSON_NULL;
    hx_json_free(doc);
    const char *literal = python_literal(t, t_len);
    if (attr == HX_STRING_FALSE && type == HX_SCHEMA_STRING) {
        /* A JSON string and null are what the schema says; else the text itself is the string. */
        if (fit || null) {
            hx_buf_append(out, t, t_len);
        } else {
            *healed |= HX_HEAL_BIT(HX_HEAL_TYPE_FROM_SCHEMA);
            put_string(out, s, len);
        }
    } else if (attr == HX_STRING_FALSE ? json : fit) {
        if (attr != HX_STRING_FALSE)
            *healed |= HX_HEAL_BIT(HX_HEAL_TYPE_FROM_SCHEMA);
        hx_buf_append(out, t, t_len);
    } else if (attr != HX_STRING_TRUE && literal) {
        *healed |= HX_HEAL_BIT(HX_HEAL_PYTHON_LITERAL);
        hx_buf_puts(out, literal);
    } else {
        if (attr == HX_STRING_FALSE)
            *healed |= HX_HEAL_BIT(HX_HEAL_NOT_JSON);
        put_string(out, s, len);
    }
    return out->failed ? -ENOMEM : 0;
}

bool hx_value_is_arguments(const struct hx_tool *tool, const char *s, size_t len)
{
    int r;
    struct hx_json *doc = parse(s, len, &r);
    struct hx_jv v = doc ? hx_json_root(doc) : HX_JV_NONE;
    bool all = hx_jv_type(v) == HX_JSON_OBJECT;
    for (struct hx_jv m = hx_jv_first(v); all && m.doc; m = hx_jv_next(m)) {
        size_t key_len;
        const char *key = hx_jv_str(hx_jv_key(m), &key_len);
        all = hx_tool_property(tool, key, key_len) != NULL;
    }
    hx_json_free(doc);
    return all;
}

/* ---- names ----------------------------------------------------------------------------------- */

static size_t hash(const char *s, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

static struct hx_name_slot *find(struct hx_name_set *set, const char *name, size_t len)
{
    for (size_t i = hash(name, len);; i++) {
        struct hx_name_slot *s = &set->slot[i & (set->cap - 1)];
        if (!s->used || (s->len == len && memcmp(set->names.data + s->offset, name, len) == 0))
            return s;
    }
}

static int grow(struct hx_name_set *set)
{
    struct hx_name_slot *old = set->slot;
    size_t n_old = set->cap, cap = n_old ? n_old * 2 : 16;
    struct hx_name_slot *slot = calloc(cap, sizeof(*slot));
    if (!slot)
        return -ENOMEM;
    set->slot = slot;
    set->cap = cap;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].used)
            *find(set, (const char *)set->names.data + old[i].offset, old[i].len) = old[i];
    }
    free(old);
    return 0;
}

int hx_name_set_add(struct hx_name_set *set, const char *name, size_t len)
{
    if (set->n * 2 >= set->cap && grow(set) < 0)
        return -ENOMEM;
    struct hx_name_slot *s = find(set, name, len);
    if (s->used)
        return 1;
    *s = (struct hx_name_slot){.offset = set->names.len, .len = len, .used = true};
    set->n++;
    /* A byte that no name is, so that an empty name has a place. */
    hx_buf_append(&set->names, name, len);
    return hx_buf_putc(&set->names, 0) < 0 ? -ENOMEM : 0;
}

void hx_name_set_clear(struct hx_name_set *set)
{
    /* A large table is not wiped again for every small call that follows. */
    if (set->cap > 64) {
        free(set->slot);
        set->slot = NULL;
        set->cap = 0;
    } else if (set->n) {
        memset(set->slot, 0, set->cap * sizeof(*set->slot));
    }
    set->n = 0;
    hx_buf_clear(&set->names);
}

void hx_name_set_done(struct hx_name_set *set)
{
    free(set->slot);
    set->slot = NULL;
    set->cap = set->n = 0;
    hx_buf_done(&set->names);
}
