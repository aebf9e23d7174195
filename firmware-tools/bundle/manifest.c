/* Manifest: one table of rows for each object of the schema, one reader for all of them. */
#include "bundle/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "bundle/manifest_rules.h"

struct reader {
    struct hx_manifest *m;
    struct hx_bundle_fault *fault;
    bool no_memory;
};

static const char *const kind_names[] = {
    [HX_RULE_TEXT] = "a string",
    [HX_RULE_NUMBER] = "a whole number",
    [HX_RULE_BOOL] = "true or false",
    [HX_RULE_TEXTS] = "a list of strings",
    [HX_RULE_PAIRS] = "an object of strings",
    [HX_RULE_RANGES] = "an object of [least, most] pairs",
    [HX_RULE_OBJECT] = "an object",
    [HX_RULE_OBJECTS] = "a list of objects",
};

void hx_bundle_fault_set(struct hx_bundle_fault *fault, const char *check, const char *where,
                         const char *why)
{
    if (!fault)
        return;
    snprintf(fault->check, sizeof(fault->check), "%s", check);
    snprintf(fault->where, sizeof(fault->where), "%s", where);
    snprintf(fault->why, sizeof(fault->why), "%s", why);
    /* Names from the bundle go to terminals and logs. */
    for (char *p = fault->where; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
}

static bool refuse(struct reader *rd, const char *where, const char *why)
{
    hx_bundle_fault_set(rd->fault, "BND-01", where[0] ? where : HX_MANIFEST_NAME, why);
    return false;
}

static void *hold(struct reader *rd, size_t n, size_t size)
{
    struct hx_manifest *m = rd->m;
    if (m->n_held == m->cap_held) {
        size_t cap = m->cap_held ? 2 * m->cap_held : 64;
        void **more = realloc(m->held, cap * sizeof(void *));
        if (!more) {
            rd->no_memory = true;
            return NULL;
        }
        m->held = more;
        m->cap_held = cap;
    }
    void *p = calloc(n ? n : 1, size);
    if (!p)
        rd->no_memory = true;
    else
        m->held[m->n_held++] = p;
    return p;
}

/* A text of the manifest: printable ASCII and no NUL, so that it can go into C strings, command
 * lines and file names; free text may be any UTF-8 without control characters. */
static char *read_text(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                       const char *where)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    if (!s) {
        refuse(rd, where, "must be a string");
        return NULL;
    }
    size_t most = rule->max ? (size_t)rule->max : HX_RULE_TEXT_MAX;
    if (len > most) {
        refuse(rd, where, "is too long");
        return NULL;
    }
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f ||
            ((unsigned char)s[i] >= 0x80 && !rule->free_text)) {
            refuse(rd, where, "holds characters that are not allowed");
            return NULL;
        }
    char *copy = hold(rd, len + 1, 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, len);
    const char *why = rule->why;
    bool ok = true;
    errno = 0;
    if (rule->choices) {
        ok = hx_rule_choice(rule->choices, copy);
        why = rule->why ? rule->why : "is not one of the words of the schema";
    } else if (rule->check) {
        ok = rule->check(copy, &why);
    }
    if (!ok && errno == ENOMEM) {
        rd->no_memory = true;
        return NULL;
    }
    if (!ok) {
        refuse(rd, where, why ? why : "does not have the form of the schema");
        return NULL;
    }
    return copy;
}

static bool read_number(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                        const char *where, int64_t *out)
{
    if (!hx_jv_int64(v, out))
        return refuse(rd, where, "must be a whole number");
    if (*out < rule->min || *out > rule->max) {
        char why[96];
        snprintf(why, sizeof(why), "must be from %lld to %lld", (long long)rule->min,
                 (long long)rule->max);
        return refuse(rd, where, rule->why ? rule->why : why);
    }
    return true;
}

static bool read_texts(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                       const char *where, struct hx_strings *out)
{
    size_t n = hx_jv_count(v);
    if (hx_jv_type(v) != HX_JSON_ARRAY)
        return refuse(rd, where, "must be a list of strings");
    if (n < (size_t)rule->min_items)
        return refuse(rd, where, "must have at least one entry");
    if (n > HX_RULE_ITEMS_MAX)
        return refuse(rd, where, "has too many entries");
    out->item = hold(rd, n, sizeof(char *));
    if (!out->item)
        return false;
    size_t i = 0;
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e), i++) {
        char at[320];
        snprintf(at, sizeof(at), "%s[%zu]", where, i);
        out->item[i] = read_text(rd, e, rule, at);
        if (!out->item[i])
            return false;
        out->n = i; /* those before this one */
        if (rule->unique && hx_strings_has(out, out->item[i]))
            return refuse(rd, at, "is there twice");
    }
    out->n = n;
    return true;
}

static bool read_pairs(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                       const char *where, struct hx_pairs *out)
{
    size_t n = hx_jv_count(v), i = 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return refuse(rd, where, "must be an object of strings");
    if (n > HX_RULE_ITEMS_MAX)
        return refuse(rd, where, "has too many entries");
    out->item = hold(rd, n, sizeof(*out->item));
    if (!out->item)
        return false;
    struct hx_rule key_rule = {.max = 64, .check = rule->key_check};
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e), i++) {
        char at[320];
        struct hx_pair *p = &out->item[i];
        p->key = read_text(rd, hx_jv_key(e), &key_rule, where);
        if (!p->key)
            return false;
        snprintf(at, sizeof(at), "%s.%s", where, p->key);
        p->value = read_text(rd, e, rule, at);
        if (!p->value)
            return false;
        for (size_t k = 0; k < i; k++)
            if (strcmp(out->item[k].key, p->key) == 0)
                return refuse(rd, at, "is there twice");
        out->n = i + 1;
    }
    return true;
}

static bool read_ranges(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                        const char *where, struct hx_bundle_ranges *out)
{
    size_t n = hx_jv_count(v), i = 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return refuse(rd, where, "must be an object of [least, most] pairs");
    if (n > HX_RULE_ITEMS_MAX)
        return refuse(rd, where, "has too many entries");
    out->item = hold(rd, n, sizeof(*out->item));
    if (!out->item)
        return false;
    struct hx_rule key_rule = {.max = 64, .check = rule->key_check};
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e), i++) {
        char at[320];
        struct hx_bundle_range *r = &out->item[i];
        r->id = read_text(rd, hx_jv_key(e), &key_rule, where);
        if (!r->id)
            return false;
        snprintf(at, sizeof(at), "%s.%s", where, r->id);
        struct hx_jv low = hx_jv_first(e);
        if (hx_jv_type(e) != HX_JSON_ARRAY || hx_jv_count(e) != 2)
            return refuse(rd, at, "must be [least, most]");
        if (!read_number(rd, low, rule, at, &r->min) ||
            !read_number(rd, hx_jv_next(low), rule, at, &r->max))
            return false;
        if (r->min > r->max)
            return refuse(rd, at, "must be [least, most]");
        out->n = i + 1;
    }
    return true;
}

static bool read_object(struct reader *rd, struct hx_jv v, const struct hx_table *table,
                        const char *where, void *to);

static bool read_objects(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                         const char *where, struct hx_rule_items *out)
{
    size_t n = hx_jv_count(v), i = 0;
    if (hx_jv_type(v) != HX_JSON_ARRAY)
        return refuse(rd, where, "must be a list of objects");
    if (n < (size_t)rule->min_items)
        return refuse(rd, where, "must have at least one entry");
    if (n > HX_BUNDLE_FILES_MAX)
        return refuse(rd, where, "has too many entries");
    out->item = hold(rd, n, rule->table->item_size);
    if (!out->item)
        return false;
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e), i++) {
        char at[320];
        snprintf(at, sizeof(at), "%s[%zu]", where, i);
        if (!read_object(rd, e, rule->table, at, (char *)out->item + i * rule->table->item_size))
            return false;
        out->n = i + 1;
    }
    return true;
}

static bool read_value(struct reader *rd, struct hx_jv v, const struct hx_rule *rule,
                       const char *where, char *to)
{
    void *field = to + rule->offset;
    switch (rule->kind) {
    case HX_RULE_TEXT: {
        char *text = read_text(rd, v, rule, where);
        *(char **)field = text;
        return text != NULL;
    }
    case HX_RULE_NUMBER: return read_number(rd, v, rule, where, field);
    case HX_RULE_BOOL: {
        bool value;
        if (!hx_jv_bool(v, &value))
            return refuse(rd, where, "must be true or false");
        if (rule->must_be_false && value)
            return refuse(rd, where, rule->why);
        *(bool *)field = value;
        return true;
    }
    case HX_RULE_TEXTS: return read_texts(rd, v, rule, where, field);
    case HX_RULE_PAIRS: return read_pairs(rd, v, rule, where, field);
    case HX_RULE_RANGES: return read_ranges(rd, v, rule, where, field);
    case HX_RULE_OBJECT:
        if (rule->offset)
            *(bool *)field = true;
        return read_object(rd, v, rule->table, where, to);
    case HX_RULE_OBJECTS: return read_objects(rd, v, rule, where, field);
    }
    return false;
}

/* Members in the order of the table, then those that the table does not have. */
static bool read_object(struct reader *rd, struct hx_jv v, const struct hx_table *table,
                        const char *where, void *to)
{
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return refuse(rd, where, "must be an object");
    const char *dot = where[0] ? "." : "";
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        char at[320], key[65];
        size_t len;
        const char *name = hx_jv_str(hx_jv_key(e), &len);
        snprintf(key, sizeof(key), "%.*s", (int)(len < 64 ? len : 64), name);
        snprintf(at, sizeof(at), "%s%s%s", where, dot, key);
        const struct hx_rule *rule = NULL;
        for (size_t i = 0; i < table->n && !rule; i++)
            if (hx_jv_str_is(hx_jv_key(e), table->rule[i].name))
                rule = &table->rule[i];
        if (!rule)
            return refuse(rd, at, "is not a field of the schema");
        for (struct hx_jv f = hx_jv_next(e); f.doc; f = hx_jv_next(f))
            if (hx_jv_str_is(hx_jv_key(f), rule->name))
                return refuse(rd, at, "is there twice");
    }
    for (size_t i = 0; i < table->n; i++) {
        const struct hx_rule *rule = &table->rule[i];
        struct hx_jv member = hx_jv_get(v, rule->name);
        char at[320];
        snprintf(at, sizeof(at), "%s%s%s", where, dot, rule->name);
        if (!member.doc) {
            char why[96];
            if (!rule->required)
                continue;
            snprintf(why, sizeof(why), "is missing (%s)", kind_names[rule->kind]);
            return refuse(rd, at, why);
        }
        if (!read_value(rd, member, rule, at, to))
            return false;
    }
    return true;
}

int hx_manifest_parse(const char *text, size_t len, struct hx_manifest **out,
                      struct hx_bundle_fault *fault, struct hx_error *err)
{
    struct hx_json_limits limits = {HX_MANIFEST_MAX, 200000, 16, 0};
    struct hx_bundle_fault own = {.check = ""};
    struct hx_json *doc = NULL;
    struct reader rd = {.fault = fault ? fault : &own};
    memset(rd.fault, 0, sizeof(*rd.fault));
    int r = hx_json_parse(text, len, &limits, &doc, err);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        hx_bundle_fault_set(rd.fault, "BND-01", HX_MANIFEST_NAME,
                            err ? err->text : "is not valid JSON");
        return hx_fail(err, -EINVAL, "%s: %s", HX_MANIFEST_NAME, rd.fault->why);
    }
    rd.m = calloc(1, sizeof(*rd.m));
    if (!rd.m) {
        hx_json_free(doc);
        return hx_fail(err, -ENOMEM, "%s: out of memory", HX_MANIFEST_NAME);
    }
    rd.m->timeout_s = HX_BUNDLE_TIMEOUT_S;
    rd.m->install_cold = true;
    bool ok = read_object(&rd, hx_json_root(doc), &hx_manifest_table, "", rd.m);
    hx_json_free(doc);
    if (ok)
        ok = hx_manifest_consistent(rd.m, rd.fault);
    if (ok) {
        *out = rd.m;
        return 0;
    }
    hx_manifest_free(rd.m);
    if (rd.no_memory) {
        rd.fault->check[0] = '\0';
        return hx_fail(err, -ENOMEM, "%s: out of memory", HX_MANIFEST_NAME);
    }
    return hx_fail(err, -EINVAL, "%s: %s: %s", HX_MANIFEST_NAME, rd.fault->where, rd.fault->why);
}

void hx_manifest_free(struct hx_manifest *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_held; i++)
        free(m->held[i]);
    free(m->held);
    free(m);
}

bool hx_strings_has(const struct hx_strings *s, const char *word)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->item[i], word) == 0)
            return true;
    return false;
}

const struct hx_bundle_file *hx_manifest_file(const struct hx_manifest *m, const char *path)
{
    for (size_t i = 0; i < m->files.n; i++)
        if (strcmp(m->files.item[i].path, path) == 0)
            return &m->files.item[i];
    return NULL;
}

bool hx_manifest_has_userspace(const struct hx_manifest *m)
{
    for (size_t i = 0; i < m->files.n; i++)
        if (strcmp(m->files.item[i].role, "userspace") == 0)
            return true;
    return false;
}
