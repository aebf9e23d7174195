#include "fetch/scan.h"

#include <stdlib.h>
#include <string.h>

/* An element is bad if (value & mask) == bad; in little-endian units of the dtype's size. */
struct rule {
    enum hx_dtype dtype;
    unsigned size;
    uint32_t mask, bad;
};

static const struct rule rules[] = {
    {HX_DTYPE_F8_E4M3, 1, 0x7f, 0x7f},         {HX_DTYPE_F8_E8M0, 1, 0xff, 0xff},
    {HX_DTYPE_BF16, 2, 0x7f80, 0x7f80},        {HX_DTYPE_F16, 2, 0x7c00, 0x7c00},
    {HX_DTYPE_F32, 4, 0x7f800000, 0x7f800000},
};

static const struct rule *rule_of(enum hx_dtype dtype)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (rules[i].dtype == dtype)
            return &rules[i];
    }
    return NULL;
}

/* Lanes of 16 bytes; the compiler makes vector instructions of them on every machine. */
typedef uint8_t v8 __attribute__((vector_size(16)));
typedef uint16_t v16 __attribute__((vector_size(16)));
typedef uint32_t v32 __attribute__((vector_size(16)));
typedef uint64_t v64 __attribute__((vector_size(16)));

#define ANY_BAD(vec, elem)                                                                         \
    static bool any_bad_##vec(const uint8_t *p, size_t n, uint32_t mask, uint32_t bad)             \
    {                                                                                              \
        vec m = (vec){0} + (elem)mask, b = (vec){0} + (elem)bad, any = {0}, x;                     \
        for (size_t i = 0; i < n; i += sizeof(x)) {                                                \
            memcpy(&x, p + i, sizeof(x));                                                          \
            any |= (vec)((x & m) == b);                                                            \
        }                                                                                          \
        v64 u = (v64)any;                                                                          \
        return (u[0] | u[1]) != 0;                                                                 \
    }
ANY_BAD(v8, uint8_t)
ANY_BAD(v16, uint16_t)
ANY_BAD(v32, uint32_t)

static uint32_t element(const uint8_t *p, unsigned size)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < size; i++)
        v |= (uint32_t)p[i] << (8 * i);
    return v;
}

/* Offset of the first bad element, n if there is none. n is a multiple of the size. */
static size_t find_bad(const struct rule *r, const uint8_t *p, size_t n)
{
    size_t at = 0;
    while (n - at >= 4096) {
        bool any = r->size == 1   ? any_bad_v8(p + at, 4096, r->mask, r->bad)
                   : r->size == 2 ? any_bad_v16(p + at, 4096, r->mask, r->bad)
                                  : any_bad_v32(p + at, 4096, r->mask, r->bad);
        if (any)
            break;
        at += 4096;
    }
    for (; at < n; at += r->size) {
        if ((element(p + at, r->size) & r->mask) == r->bad)
            break;
    }
    return at;
}

void hx_scan_begin(struct hx_scan *s, const struct hx_scan_table *table, uint64_t offset)
{
    *s = (struct hx_scan){.table = table, .offset = offset};
    size_t lo = 0, hi = table ? table->n : 0;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (table->range[mid].end <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    s->at = lo;
}

static int refuse(const struct hx_scan_range *g, const struct rule *r, const uint8_t *p,
                  uint64_t offset, struct hx_error *err)
{
    return hx_fail(err, -EINVAL,
                   "tensor '%s' (%s): element %llu is 0x%0*x, which is no number that weights have",
                   g->name, hx_dtype_name(g->dtype),
                   (unsigned long long)((offset - g->begin) / r->size), (int)r->size * 2,
                   (unsigned)element(p, r->size));
}

/* Bytes of one range: what is left of a split element, whole elements, beginning of the next. */
static int scan_range(struct hx_scan *s, const struct hx_scan_range *g, const uint8_t *data,
                      size_t n, struct hx_error *err)
{
    const struct rule *r = rule_of(g->dtype);
    if (!r)
        return 0;
    size_t at = 0, into = (size_t)((s->offset - g->begin) % r->size);
    if (into > 0) {
        size_t rest = r->size - into < n ? r->size - into : n;
        /* Without a carry the element began before this run: whoever joins two runs looks at it. */
        if (s->n_carry == into) {
            memcpy(s->carry + into, data, rest);
            s->n_carry += (unsigned)rest;
            if (s->n_carry == r->size && find_bad(r, s->carry, r->size) == 0)
                return refuse(g, r, s->carry, s->offset - into, err);
        }
        at = rest;
        if (into + rest < r->size)
            return 0;
    }
    size_t whole = (n - at) / r->size * r->size, bad = find_bad(r, data + at, whole);
    if (bad < whole)
        return refuse(g, r, data + at + bad, s->offset + at + bad, err);
    s->n_carry = (unsigned)(n - at - whole);
    memcpy(s->carry, data + at + whole, s->n_carry);
    return 0;
}

int hx_scan_data(struct hx_scan *s, const uint8_t *data, size_t n, struct hx_error *err)
{
    while (n > 0) {
        const struct hx_scan_range *g = NULL;
        size_t len = n;
        if (s->table && s->at < s->table->n) {
            g = &s->table->range[s->at];
            if (s->offset < g->begin) {
                if (g->begin - s->offset < n)
                    len = (size_t)(g->begin - s->offset);
                g = NULL;
            } else if (g->end - s->offset < n) {
                len = (size_t)(g->end - s->offset);
            }
        }
        int r = g ? scan_range(s, g, data, len, err) : 0;
        if (r < 0)
            return r;
        s->offset += len;
        data += len;
        n -= len;
        if (g && s->offset == g->end) {
            s->at++;
            s->n_carry = 0;
        }
    }
    return 0;
}

static int add_range(struct hx_scan_table *t, const char *name, enum hx_dtype dtype, uint64_t begin,
                     uint64_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    struct hx_scan_range *g = &t->range[t->n];
    g->name = strdup(name);
    if (!g->name)
        return -ENOMEM;
    g->begin = begin;
    g->end = begin + n_bytes;
    g->dtype = dtype;
    t->n++;
    return 0;
}

static int table_new(size_t n, struct hx_scan_table **out, struct hx_error *err)
{
    struct hx_scan_table *t = calloc(1, sizeof(*t));
    if (t)
        t->range = calloc(n + 1, sizeof(*t->range));
    if (!t || !t->range) {
        hx_scan_table_free(t);
        return hx_fail(err, -ENOMEM, "out of memory for %zu tensors", n);
    }
    *out = t;
    return 0;
}

int hx_scan_table_new(const struct hx_st_file *f, struct hx_scan_table **out, struct hx_error *err)
{
    struct hx_scan_table *t = NULL;
    int r = table_new(hx_st_count(f), &t, err);
    for (size_t i = 0; r == 0 && i < hx_st_count(f); i++) {
        const struct hx_st_tensor *x = hx_st_at(f, i);
        r = add_range(t, x->name, x->dtype, x->offset, x->size);
        if (r < 0)
            hx_fail(err, r, "%s: out of memory", hx_st_path(f));
    }
    if (r < 0) {
        hx_scan_table_free(t);
        return r;
    }
    *out = t;
    return 0;
}

int hx_scan_table_cut(const struct hx_lock_file *f, uint64_t header_bytes,
                      struct hx_scan_table **out, struct hx_error *err)
{
    struct hx_scan_table *t = NULL;
    int r = table_new(f->n_tensors, &t, err);
    uint64_t at = header_bytes;
    for (size_t i = 0; r == 0 && i < f->n_tensors; i++) {
        const struct hx_lock_tensor *x = &f->tensors[i];
        r = add_range(t, x->name, hx_dtype_parse(x->dtype, strlen(x->dtype)), at,
                      x->end - x->begin);
        if (r < 0)
            hx_fail(err, r, "%s: out of memory", f->out);
        at += x->end - x->begin;
    }
    if (r < 0) {
        hx_scan_table_free(t);
        return r;
    }
    *out = t;
    return 0;
}

void hx_scan_table_free(struct hx_scan_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        free(t->range[i].name);
    free(t->range);
    free(t);
}
