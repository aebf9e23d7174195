/* Declared tools: checks, names with namespaces, property types. */
#include "text/tools.h"

#include <stdlib.h>
#include <string.h>

static bool name_is_legal(const char *s, size_t len)
{
    if (len == 0 || len > HX_TOOL_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == '\0' || !strchr("_-./:", c)))
            return false;
    }
    return true;
}

static const char *find_colons(const char *s, size_t len)
{
    return memmem(s, len, "::", 2);
}

/* `namespace` of an object: a string or an object with a name; empty if absent. */
static int read_namespace(struct hx_jv object, const char *param, const char **s, size_t *len,
                          struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(object, "namespace");
    *s = "";
    *len = 0;
    if (hx_jv_type(v) <= HX_JSON_NULL)
        return 0;
    if (hx_jv_type(v) == HX_JSON_OBJECT)
        v = hx_jv_get(v, "name");
    *s = hx_jv_str(v, len);
    if (!*s || !name_is_legal(*s, *len))
        return hx_fail_param(err, -EINVAL, param, "invalid_value",
                             "%s: namespace must be a name of 1-%d letters, digits or _ - . / :, "
                             "or an object with such a name",
                             param, HX_TOOL_NAME_MAX);
    return 0;
}

int hx_tool_full_name(struct hx_jv holder, struct hx_jv function, const char *param,
                      char out[HX_TOOL_FULL_NAME_MAX], struct hx_error *err)
{
    size_t len, ns_len, inner_len;
    const char *ns, *inner, *name = hx_jv_str(hx_jv_get(function, "name"), &len);
    if (!name || !name_is_legal(name, len))
        return hx_fail_param(err, -EINVAL, param, "invalid_value",
                             "%s: function.name must be 1-%d letters, digits or _ - . / :", param,
                             HX_TOOL_NAME_MAX);
    int r = read_namespace(holder, param, &ns, &ns_len, err);
    if (r == 0)
        r = read_namespace(function, param, &inner, &inner_len, err);
    if (r < 0)
        return r;
    bool conflict = ns_len && inner_len && (ns_len != inner_len || memcmp(ns, inner, ns_len) != 0);
    if (!ns_len) {
        ns = inner;
        ns_len = inner_len;
    }
    const char *colons = find_colons(name, len);
    if (colons) {
        size_t own = (size_t)(colons - name);
        if (find_colons(colons + 2, len - own - 2))
            return hx_fail_param(err, -EINVAL, param, "invalid_value",
                                 "%s: a function name may hold '::' once", param);
        conflict = conflict || (ns_len && (ns_len != own || memcmp(ns, name, own) != 0));
        ns_len = 0;
    }
    if (conflict)
        return hx_fail_param(err, -EINVAL, param, "invalid_value",
                             "%s: the function name and namespace contradict each other", param);
    if (ns_len && find_colons(ns, ns_len))
        return hx_fail_param(err, -EINVAL, param, "invalid_value",
                             "%s: a namespace may not hold '::'", param);
    char *to = out;
    if (ns_len) {
        memcpy(to, ns, ns_len);
        memcpy(to + ns_len, "::", 2);
        to += ns_len + 2;
    }
    memcpy(to, name, len);
    to[len] = '\0';
    return 0;
}

static void put_description(struct hx_json_writer *w, struct hx_buf *scratch, struct hx_jv own,
                            const char *ns, size_t ns_len)
{
    size_t len;
    const char *s = hx_jv_str(own, &len);
    hx_buf_append(scratch, ns, ns_len);
    if (s) {
        hx_buf_putc(scratch, '\n');
        hx_buf_append(scratch, s, len);
    }
    hx_jw_str_n(w, (const char *)scratch->data, scratch->len);
}

int hx_tool_put_line(struct hx_jv tool, struct hx_buf *out, struct hx_error *err)
{
    char name[HX_TOOL_FULL_NAME_MAX];
    struct hx_jv function = hx_jv_get(tool, "function");
    int r = hx_tool_full_name(tool, function, "tools", name, err);
    if (r < 0)
        return r;
    size_t ns_len;
    struct hx_jv space = hx_jv_get(tool, "namespace");
    if (hx_jv_type(space) <= HX_JSON_NULL)
        space = hx_jv_get(function, "namespace");
    const char *ns = hx_jv_str(hx_jv_get(space, "description"), &ns_len);

    struct hx_buf scratch = HX_BUF_INIT(out->max);
    struct hx_json_writer w;
    hx_jw_init(&w, out, true);
    hx_jw_object(&w);
    bool described = false, named = false;
    for (struct hx_jv m = hx_jv_first(function); m.doc; m = hx_jv_next(m)) {
        struct hx_jv key = hx_jv_key(m);
        size_t len;
        const char *s = hx_jv_str(key, &len);
        /* Duplicate keys: position of the first, value of the last. */
        if (hx_jv_str_is(key, "namespace") || (hx_jv_str_is(key, "name") && named) ||
            (hx_jv_str_is(key, "description") && described))
            continue;
        hx_jw_key_n(&w, s, len);
        if (hx_jv_str_is(key, "name")) {
            hx_jw_str(&w, name);
            named = true;
        } else if (hx_jv_str_is(key, "description")) {
            described = true;
            if (ns)
                put_description(&w, &scratch, hx_jv_get(function, "description"), ns, ns_len);
            else
                hx_jw_value(&w, hx_jv_get(function, "description"));
        } else {
            hx_jw_value(&w, m);
        }
    }
    if (ns && !described) {
        hx_jw_key(&w, "description");
        hx_jw_str_n(&w, ns, ns_len);
    }
    hx_jw_end_object(&w);
    bool failed = scratch.failed;
    hx_buf_done(&scratch);
    out->failed = out->failed || failed;
    return 0;
}

static const char *const type_name[] = {
    [HX_SCHEMA_STRING] = "string",   [HX_SCHEMA_INTEGER] = "integer", [HX_SCHEMA_NUMBER] = "number",
    [HX_SCHEMA_BOOLEAN] = "boolean", [HX_SCHEMA_ARRAY] = "array",     [HX_SCHEMA_OBJECT] = "object",
};

/* Adds the types a schema states to a bit set; "null" only makes it optional. */
static unsigned stated_types(struct hx_jv schema)
{
    struct hx_jv type = hx_jv_get(schema, "type");
    unsigned set = 0;
    for (unsigned i = HX_SCHEMA_STRING; i <= HX_SCHEMA_OBJECT; i++) {
        if (hx_jv_str_is(type, type_name[i]))
            set |= 1u << i;
        if (hx_jv_type(type) == HX_JSON_ARRAY) {
            for (struct hx_jv e = hx_jv_first(type); e.doc; e = hx_jv_next(e))
                set |= hx_jv_str_is(e, type_name[i]) ? 1u << i : 0;
        }
    }
    return set;
}

static enum hx_schema_type schema_type(struct hx_jv schema)
{
    static const char *const choice[] = {"anyOf", "oneOf"};
    unsigned set = stated_types(schema);
    for (size_t c = 0; c < 2; c++) {
        struct hx_jv list = hx_jv_get(schema, choice[c]);
        if (hx_jv_type(list) != HX_JSON_ARRAY)
            continue;
        for (struct hx_jv e = hx_jv_first(list); e.doc; e = hx_jv_next(e)) {
            unsigned one = stated_types(e);
            if (!one && !hx_jv_str_is(hx_jv_get(e, "type"), "null"))
                return HX_SCHEMA_UNKNOWN;
            set |= one;
        }
    }
    for (unsigned i = HX_SCHEMA_STRING; i <= HX_SCHEMA_OBJECT; i++) {
        if (set == 1u << i)
            return (enum hx_schema_type)i;
    }
    return HX_SCHEMA_UNKNOWN;
}

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int by_name(const void *a, const void *b)
{
    const struct hx_tool_property *x = a, *y = b;
    return compare_names(x->name, x->len, y->name, y->len);
}

const struct hx_tool_property *hx_tool_property(const struct hx_tool *tool, const char *name,
                                                size_t len)
{
    struct hx_tool_property key = {.name = name, .len = len};
    return tool->n_properties
               ? bsearch(&key, tool->property, tool->n_properties, sizeof(*tool->property), by_name)
               : NULL;
}

const struct hx_tool *hx_tools_find(const struct hx_tools *tools, const char *name, size_t len)
{
    for (size_t i = 0; tools && i < tools->n_tools; i++) {
        if (tools->tool[i].name_len == len && memcmp(tools->tool[i].name, name, len) == 0)
            return &tools->tool[i];
    }
    return NULL;
}

bool hx_tools_have_property(const struct hx_tools *tools, const char *name, size_t len)
{
    for (size_t i = 0; i < tools->n_tools; i++) {
        if (hx_tool_property(&tools->tool[i], name, len))
            return true;
    }
    return false;
}

static int bad_tool(struct hx_error *err, size_t i, const char *slug, const char *what)
{
    return hx_fail_param(err, -EINVAL, "tools", slug, "tools[%zu]: %s", i, what);
}

static int read_tool(struct hx_tool *t, struct hx_jv v, size_t i, char **names,
                     struct hx_error *err)
{
    struct hx_jv function = hx_jv_get(v, "function"), type = hx_jv_get(v, "type");
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return bad_tool(err, i, "invalid_type", "must be an object");
    if (hx_jv_type(type) > HX_JSON_NULL && !hx_jv_str_is(type, "function"))
        return bad_tool(err, i, "invalid_value", "type must be \"function\"");
    if (hx_jv_type(function) != HX_JSON_OBJECT)
        return bad_tool(err, i, "invalid_type", "function must be an object with a name");
    int r = hx_tool_full_name(v, function, "tools", t->name, err);
    if (r < 0)
        return r;
    t->name_len = strlen(t->name);
    struct hx_jv schema = hx_jv_get(function, "parameters");
    if (hx_jv_type(schema) > HX_JSON_NULL && hx_jv_type(schema) != HX_JSON_OBJECT)
        return bad_tool(err, i, "invalid_type", "function.parameters must be an object");
    struct hx_jv properties = hx_jv_get(schema, "properties");
    size_t n = hx_jv_type(properties) == HX_JSON_OBJECT ? hx_jv_count(properties) : 0;
    if (n == 0)
        return 0;
    t->property = calloc(n, sizeof(*t->property));
    if (!t->property)
        return hx_fail(err, -ENOMEM, "out of memory for tools");
    for (struct hx_jv m = hx_jv_first(properties); m.doc; m = hx_jv_next(m)) {
        struct hx_tool_property *p = &t->property[t->n_properties++];
        const char *s = hx_jv_str(hx_jv_key(m), &p->len);
        p->name = memcpy(*names, s, p->len);
        *names += p->len;
        p->type = schema_type(m);
    }
    qsort(t->property, t->n_properties, sizeof(*t->property), by_name);
    struct hx_jv required = hx_jv_get(schema, "required");
    if (hx_jv_type(required) != HX_JSON_ARRAY)
        return 0;
    for (struct hx_jv e = hx_jv_first(required); e.doc && !t->first_string; e = hx_jv_next(e)) {
        size_t len;
        const char *s = hx_jv_str(e, &len);
        const struct hx_tool_property *p = s ? hx_tool_property(t, s, len) : NULL;
        if (p && p->type == HX_SCHEMA_STRING) {
            t->first_string = p->name;
            t->first_string_len = p->len;
        }
    }
    return 0;
}

/* Bytes of all property names. */
static size_t names_size(struct hx_jv list)
{
    size_t size = 1;
    for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v)) {
        struct hx_jv schema = hx_jv_get(hx_jv_get(v, "function"), "parameters");
        struct hx_jv properties = hx_jv_get(schema, "properties");
        if (hx_jv_type(properties) != HX_JSON_OBJECT)
            continue;
        for (struct hx_jv m = hx_jv_first(properties); m.doc; m = hx_jv_next(m)) {
            size_t len;
            hx_jv_str(hx_jv_key(m), &len);
            size += len;
        }
    }
    return size;
}

int hx_tools_new(struct hx_jv list, struct hx_tools **out, struct hx_error *err)
{
    if (hx_jv_type(list) != HX_JSON_ARRAY)
        return hx_fail_param(err, -EINVAL, "tools", "invalid_type",
                             "tools must be a list of functions, not %s",
                             hx_json_type_name(hx_jv_type(list)));
    size_t n = hx_jv_count(list);
    if (n > HX_TOOLS_MAX)
        return hx_fail_param(err, -EINVAL, "tools", "invalid_value",
                             "tools has %zu entries; at most %d are accepted", n, HX_TOOLS_MAX);
    struct hx_tools *t = calloc(1, sizeof(*t));
    char *names = t ? t->names = malloc(names_size(list)) : NULL;
    if (names)
        t->tool = calloc(n + 1, sizeof(*t->tool));
    int r = names && t->tool ? 0 : hx_fail(err, -ENOMEM, "out of memory for tools");
    for (struct hx_jv v = hx_jv_first(list); r == 0 && v.doc; v = hx_jv_next(v)) {
        size_t i = t->n_tools++;
        r = read_tool(&t->tool[i], v, i, &names, err);
    }
    if (r < 0) {
        hx_tools_free(t);
        return r;
    }
    *out = t;
    return 0;
}

void hx_tools_free(struct hx_tools *t)
{
    if (!t)
        return;
    for (size_t i = 0; t->tool && i < t->n_tools; i++)
        free(t->tool[i].property);
    free(t->tool);
    free(t->names);
    free(t);
}
