/* JSON reader: one pass over a private copy of the text. Strings are decoded in place (the decoded
 * form is never longer), values are 16-byte nodes in one array in document order, so that a
 * container's members follow it and `next` skips a whole subtree. */
#include "base/json_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

struct node {
    uint8_t type;
    uint8_t is_key;  /* a string that names the member stored in the next node */
    uint8_t is_last; /* last element or member value of its container */
    uint32_t offset; /* strings, numbers: bytes into text */
    uint32_t len;
    uint32_t next; /* node after this subtree, 0 while the container is open */
};

struct hx_json {
    char *text;
    struct node *node;
    uint32_t n_nodes;
};

#define MAX_DEPTH 1024

struct parser {
    const char *src; /* original text, for positions */
    char *text;      /* copy, decoded in place */
    size_t len, at;
    const struct hx_json_limits *lim;
    struct node *node;
    size_t n, cap;
    uint32_t stack[MAX_DEPTH]; /* open containers */
    uint32_t child[MAX_DEPTH]; /* newest element of each */
    unsigned depth;
    struct hx_error *err;
};

static int syntax(struct parser *p, size_t at, const char *what)
{
    unsigned line = 1, column = 1;
    for (size_t i = 0; i < at && i < p->len; i++) {
        if (p->src[i] == '\n') {
            line++;
            column = 1;
        } else if (((uint8_t)p->src[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    return hx_fail_param(p->err, -EINVAL, NULL, "invalid_json",
                         "invalid JSON at line %u column %u: %s", line, column, what);
}

static int add(struct parser *p, enum hx_json_type type, size_t offset, size_t len)
{
    if (p->n >= p->lim->max_values)
        return hx_fail_param(p->err, -EMSGSIZE, NULL, "invalid_json",
                             "invalid JSON: more than %zu values", p->lim->max_values);
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct node *node = realloc(p->node, cap * sizeof(*node));
        if (!node)
            return hx_fail(p->err, -ENOMEM, "out of memory for a JSON document of %zu bytes",
                           p->len);
        p->node = node;
        p->cap = cap;
    }
    p->node[p->n] = (struct node){.type = (uint8_t)type,
                                  .offset = (uint32_t)offset,
                                  .len = (uint32_t)len,
                                  .next = (uint32_t)p->n + 1};
    p->n++;
    return 0;
}

static void skip_space(struct parser *p)
{
    while (p->at < p->len && (p->src[p->at] == ' ' || p->src[p->at] == '\t' ||
                              p->src[p->at] == '\n' || p->src[p->at] == '\r'))
        p->at++;
}

static int hex4(const char *s, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return 0;
}

/* \uXXXX at p->at (behind the u); pairs are joined, a lone surrogate becomes U+FFFD. */
static int unicode_escape(struct parser *p, uint32_t *cp)
{
    if (p->len - p->at < 4 || hex4(p->src + p->at, cp) < 0)
        return syntax(p, p->at, "\\u needs four hexadecimal digits");
    p->at += 4;
    if (*cp >= 0xD800 && *cp <= 0xDBFF && p->len - p->at >= 6 && p->src[p->at] == '\\' &&
        p->src[p->at + 1] == 'u') {
        uint32_t low;
        if (hex4(p->src + p->at + 2, &low) < 0)
            return syntax(p, p->at + 2, "\\u needs four hexadecimal digits");
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
            p->at += 6;
        }
    }
    return 0; /* hx_utf8_encode replaces surrogates */
}

static int escape(struct parser *p, size_t *to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    size_t start = p->at - 1;
    if (p->at == p->len)
        return syntax(p, start, "unfinished string");
    char c = p->src[p->at++];
    if (c == 'u') {
        uint32_t cp;
        int r = unicode_escape(p, &cp);
        if (r < 0)
            return r;
        uint8_t out[4];
        unsigned n = hx_utf8_encode(cp, out);
        memcpy(p->text + *to, out, n);
        *to += n;
        return 0;
    }
    const char *hit = c ? strchr(from, c) : NULL;
    if (!hit)
        return syntax(p, start, "unknown escape");
    p->text[(*to)++] = into[hit - from];
    return 0;
}

static int string(struct parser *p, uint32_t *index)
{
    size_t start = ++p->at, to = start;
    for (;;) {
        if (p->at == p->len)
            return syntax(p, start - 1, "unfinished string");
        uint8_t c = (uint8_t)p->src[p->at];
        if (c == '"')
            break;
        if (c < 0x20)
            return syntax(p, p->at, "control character in a string");
        if (c == '\\') {
            p->at++;
            int r = escape(p, &to);
            if (r < 0)
                return r;
            continue;
        }
        p->text[to++] = (char)c;
        p->at++;
    }
    p->at++;
    *index = (uint32_t)p->n;
    return add(p, HX_JSON_STRING, start, to - start);
}

static size_t digits(struct parser *p)
{
    size_t start = p->at;
    while (p->at < p->len && p->src[p->at] >= '0' && p->src[p->at] <= '9')
        p->at++;
    return p->at - start;
}

static bool word(struct parser *p, const char *w)
{
    size_t n = strlen(w);
    if (p->len - p->at < n || memcmp(p->src + p->at, w, n) != 0)
        return false;
    p->at += n;
    return true;
}

static int number(struct parser *p)
{
    size_t start = p->at;
    if (p->src[p->at] == '-')
        p->at++;
    if ((p->lim->flags & HX_JSON_ALLOW_NONFINITE) && word(p, "Infinity"))
        return add(p, HX_JSON_NUMBER, start, p->at - start);
    size_t first = p->at, n = digits(p);
    if (n == 0)
        return syntax(p, start, "not a value");
    if (n > 1 && p->src[first] == '0')
        return syntax(p, start, "number with a leading zero");
    if (p->at < p->len && p->src[p->at] == '.') {
        p->at++;
        if (digits(p) == 0)
            return syntax(p, start, "number without digits after the point");
    }
    if (p->at < p->len && (p->src[p->at] == 'e' || p->src[p->at] == 'E')) {
        p->at++;
        if (p->at < p->len && (p->src[p->at] == '+' || p->src[p->at] == '-'))
            p->at++;
        if (digits(p) == 0)
            return syntax(p, start, "number without digits in the exponent");
    }
    return add(p, HX_JSON_NUMBER, start, p->at - start);
}

static int scalar(struct parser *p)
{
    uint32_t ignored;
    switch (p->src[p->at]) {
    case '"': return string(p, &ignored);
    case 't':
        if (word(p, "true"))
            return add(p, HX_JSON_TRUE, 0, 0);
        break;
    case 'f':
        if (word(p, "false"))
            return add(p, HX_JSON_FALSE, 0, 0);
        break;
    case 'n':
        if (word(p, "null"))
            return add(p, HX_JSON_NULL, 0, 0);
        break;
    case 'N':
        if ((p->lim->flags & HX_JSON_ALLOW_NONFINITE) && word(p, "NaN"))
            return add(p, HX_JSON_NUMBER, p->at - 3, 3);
        break;
    case 'I':
        if ((p->lim->flags & HX_JSON_ALLOW_NONFINITE) && word(p, "Infinity"))
            return add(p, HX_JSON_NUMBER, p->at - 8, 8);
        break;
    default: return number(p);
    }
    return syntax(p, p->at, "not a value");
}

static int open_container(struct parser *p, enum hx_json_type type)
{
    if (p->depth >= p->lim->max_depth || p->depth >= MAX_DEPTH)
        return syntax(p, p->at, "nested too deeply");
    p->stack[p->depth++] = (uint32_t)p->n;
    p->at++;
    return add(p, type, 0, 0);
}

static void close_container(struct parser *p)
{
    struct node *c = &p->node[p->stack[--p->depth]];
    c->next = (uint32_t)p->n;
    if (c->next > p->stack[p->depth] + 1)
        p->node[p->child[p->depth]].is_last = 1;
    p->at++;
}

/* "key" : in front of a member's value. */
static int member_key(struct parser *p)
{
    skip_space(p);
    if (p->at == p->len || p->src[p->at] != '"')
        return syntax(p, p->at, "a member's name must be a string");
    uint32_t key;
    int r = string(p, &key);
    if (r < 0)
        return r;
    p->node[key].is_key = 1;
    skip_space(p);
    if (p->at == p->len || p->src[p->at] != ':')
        return syntax(p, p->at, "':' expected");
    p->at++;
    return 0;
}

/* Behind a finished value: closes containers until a comma asks for another value.
 * *done: the document is complete. */
static int after_value(struct parser *p, bool *done)
{
    for (;;) {
        if (p->depth == 0) {
            *done = true;
            return 0;
        }
        bool object = p->node[p->stack[p->depth - 1]].type == HX_JSON_OBJECT;
        skip_space(p);
        if (p->at == p->len)
            return syntax(p, p->at, object ? "unfinished object" : "unfinished array");
        char c = p->src[p->at];
        if (c == ',') {
            p->at++;
            return object ? member_key(p) : 0;
        }
        if (c != (object ? '}' : ']'))
            return syntax(p, p->at, object ? "',' or '}' expected" : "',' or ']' expected");
        close_container(p);
    }
}

static int document(struct parser *p)
{
    bool done = false;
    while (!done) {
        skip_space(p);
        if (p->at == p->len)
            return syntax(p, p->at, "a value is missing");
        char c = p->src[p->at];
        int r;
        if (p->depth > 0)
            p->child[p->depth - 1] = (uint32_t)p->n;
        if (c == '[' || c == '{') {
            r = open_container(p, c == '[' ? HX_JSON_ARRAY : HX_JSON_OBJECT);
            if (r < 0)
                return r;
            skip_space(p);
            if (p->at == p->len || p->src[p->at] != (c == '[' ? ']' : '}')) {
                r = c == '{' ? member_key(p) : 0;
                if (r < 0)
                    return r;
                continue;
            }
            close_container(p);
        } else {
            r = scalar(p);
            if (r < 0)
                return r;
        }
        r = after_value(p, &done);
        if (r < 0)
            return r;
    }
    skip_space(p);
    return p->at < p->len ? syntax(p, p->at, "text after the value") : 0;
}

int hx_json_parse(const char *text, size_t len, const struct hx_json_limits *limits,
                  struct hx_json **out, struct hx_error *err)
{
    if (len > limits->max_bytes || len > UINT32_MAX - 1)
        return hx_fail_param(err, -EMSGSIZE, NULL, "invalid_json",
                             "JSON text of %zu bytes, at most %zu are allowed", len,
                             limits->max_bytes);
    struct parser p = {.src = text, .len = len, .lim = limits, .err = err};
    size_t valid = hx_utf8_valid_prefix((const uint8_t *)text, len);
    if (valid < len)
        return syntax(&p, valid, "not valid UTF-8");
    struct hx_json *doc = calloc(1, sizeof(*doc));
    p.text = malloc(len + 1);
    int r = 0;
    if (!doc || !p.text) {
        r = hx_fail(err, -ENOMEM, "out of memory for a JSON document of %zu bytes", len);
        goto out;
    }
    memcpy(p.text, text, len);
    r = document(&p);
    if (r < 0)
        goto out;
    *doc = (struct hx_json){.text = p.text, .node = p.node, .n_nodes = (uint32_t)p.n};
    *out = doc;
    return 0;
out:
    free(doc);
    free(p.text);
    free(p.node);
    return r;
}

void hx_json_free(struct hx_json *doc)
{
    if (!doc)
        return;
    free(doc->text);
    free(doc->node);
    free(doc);
}

struct hx_jv hx_json_root(const struct hx_json *doc)
{
    return (struct hx_jv){doc, 0};
}

static const struct node *node_of(struct hx_jv v)
{
    return v.doc ? &v.doc->node[v.at] : NULL;
}

enum hx_json_type hx_jv_type(struct hx_jv v)
{
    return v.doc ? (enum hx_json_type)node_of(v)->type : HX_JSON_NONE;
}

const char *hx_json_type_name(enum hx_json_type t)
{
    static const char *const name[HX_JSON_TYPE_MAX] = {
        "nothing", "null", "a boolean", "a boolean", "a number", "a string", "a list", "an object"};
    return t < HX_JSON_TYPE_MAX ? name[t] : "nothing";
}

const char *hx_jv_str(struct hx_jv v, size_t *len)
{
    if (hx_jv_type(v) != HX_JSON_STRING)
        return NULL;
    *len = node_of(v)->len;
    return v.doc->text + node_of(v)->offset;
}

bool hx_jv_str_is(struct hx_jv v, const char *s)
{
    size_t len;
    const char *str = hx_jv_str(v, &len);
    return str && len == strlen(s) && memcmp(str, s, len) == 0;
}

const char *hx_jv_number_text(struct hx_jv v, size_t *len)
{
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return NULL;
    *len = node_of(v)->len;
    return v.doc->text + node_of(v)->offset;
}

/* The number text with a NUL, NULL if it is too long to be exact anyway. */
static const char *terminated(struct hx_jv v, char *stack, size_t size, char **heap)
{
    size_t len;
    const char *s = hx_jv_number_text(v, &len);
    *heap = NULL;
    if (!s)
        return NULL;
    char *to = stack;
    if (len >= size) {
        to = *heap = malloc(len + 1);
        if (!to)
            return NULL;
    }
    memcpy(to, s, len);
    to[len] = '\0';
    return to;
}

bool hx_jv_double(struct hx_jv v, double *out)
{
    char stack[64], *heap;
    const char *s = terminated(v, stack, sizeof(stack), &heap);
    if (!s)
        return false;
    *out = strtod(s, NULL); /* the C locale is never changed by our programs */
    free(heap);
    return true;
}

bool hx_jv_int64(struct hx_jv v, int64_t *out)
{
    char stack[64], *heap;
    const char *s = terminated(v, stack, sizeof(stack), &heap);
    if (!s)
        return false;
    bool ok = false;
    char *end;
    errno = 0;
    long long i = strtoll(s, &end, 10);
    if (*end == '\0') {
        ok = errno == 0;
    } else {
        double d = strtod(s, NULL);
        ok = d >= -9007199254740992.0 && d <= 9007199254740992.0 && d == floor(d);
        i = ok ? (long long)d : 0;
    }
    free(heap);
    if (ok)
        *out = i;
    return ok;
}

bool hx_jv_bool(struct hx_jv v, bool *out)
{
    enum hx_json_type t = hx_jv_type(v);
    if (t != HX_JSON_TRUE && t != HX_JSON_FALSE)
        return false;
    *out = t == HX_JSON_TRUE;
    return true;
}

struct hx_jv hx_jv_first(struct hx_jv c)
{
    const struct node *n = node_of(c);
    if (!n || (n->type != HX_JSON_ARRAY && n->type != HX_JSON_OBJECT) || n->next == c.at + 1)
        return HX_JV_NONE;
    /* A member is the value; its key is the node before it. */
    return (struct hx_jv){c.doc, c.at + (n->type == HX_JSON_OBJECT ? 2 : 1)};
}

struct hx_jv hx_jv_next(struct hx_jv e)
{
    if (!e.doc || e.doc->node[e.at].is_last || e.at == 0)
        return HX_JV_NONE;
    const struct node *node = e.doc->node;
    return (struct hx_jv){e.doc, node[e.at].next + (node[e.at - 1].is_key ? 1 : 0)};
}

struct hx_jv hx_jv_key(struct hx_jv m)
{
    if (!m.doc || m.at == 0 || !m.doc->node[m.at - 1].is_key)
        return HX_JV_NONE;
    return (struct hx_jv){m.doc, m.at - 1};
}

size_t hx_jv_count(struct hx_jv c)
{
    size_t n = 0;
    for (struct hx_jv v = hx_jv_first(c); v.doc; v = hx_jv_next(v))
        n++;
    return n;
}

struct hx_jv hx_jv_get_n(struct hx_jv object, const char *key, size_t len)
{
    struct hx_jv found = HX_JV_NONE;
    if (hx_jv_type(object) != HX_JSON_OBJECT)
        return found;
    for (struct hx_jv v = hx_jv_first(object); v.doc; v = hx_jv_next(v)) {
        const struct node *k = &v.doc->node[v.at - 1];
        if (k->len == len && memcmp(v.doc->text + k->offset, key, len) == 0)
            found = v;
    }
    return found;
}

struct hx_jv hx_jv_get(struct hx_jv object, const char *key)
{
    return hx_jv_get_n(object, key, strlen(key));
}
