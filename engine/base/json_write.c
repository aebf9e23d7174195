/* JSON writer. Errors are sticky in the buffer (buf.failed), so callers check once at the end. */
#include "base/json_write.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hx_jw_init(struct hx_json_writer *w, struct hx_buf *out, bool spaced)
{
    memset(w, 0, sizeof(*w));
    w->out = out;
    w->spaced = spaced;
}

/* Separator in front of a value or key. */
static void before(struct hx_json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->has_item[w->depth])
        hx_buf_puts(w->out, w->spaced ? ", " : ",");
    w->has_item[w->depth] = true;
}

static void open_container(struct hx_json_writer *w, uint8_t c)
{
    before(w);
    hx_buf_putc(w->out, c);
    assert(w->depth + 1 < HX_JSON_WRITE_DEPTH);
    w->has_item[++w->depth] = false;
}

static void close_container(struct hx_json_writer *w, uint8_t c)
{
    assert(w->depth > 0);
    w->depth--;
    hx_buf_putc(w->out, c);
}

void hx_jw_object(struct hx_json_writer *w)
{
    open_container(w, '{');
}

void hx_jw_end_object(struct hx_json_writer *w)
{
    close_container(w, '}');
}

void hx_jw_array(struct hx_json_writer *w)
{
    open_container(w, '[');
}

void hx_jw_end_array(struct hx_json_writer *w)
{
    close_container(w, ']');
}

int hx_json_escape(struct hx_buf *out, const char *s, size_t len)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    size_t plain = 0;
    int r = 0;
    for (size_t i = 0; i < len && r == 0; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        r = hx_buf_append(out, s + plain, i - plain);
        plain = i + 1;
        const char *hit = c ? memchr(from, c, sizeof(from) - 1) : NULL;
        uint8_t pair[2] = {'\\', hit ? (uint8_t)to[hit - from] : 0};
        if (r == 0)
            r = hit ? hx_buf_append(out, pair, 2) : hx_buf_printf(out, "\\u%04x", c);
    }
    return r < 0 ? r : hx_buf_append(out, s + plain, len - plain);
}

void hx_jw_str_n(struct hx_json_writer *w, const char *s, size_t len)
{
    before(w);
    hx_buf_putc(w->out, '"');
    hx_json_escape(w->out, s, len);
    hx_buf_putc(w->out, '"');
}

void hx_jw_str(struct hx_json_writer *w, const char *s)
{
    hx_jw_str_n(w, s, strlen(s));
}

void hx_jw_key_n(struct hx_json_writer *w, const char *key, size_t len)
{
    hx_jw_str_n(w, key, len);
    hx_buf_puts(w->out, w->spaced ? ": " : ":");
    w->after_key = true;
}

void hx_jw_key(struct hx_json_writer *w, const char *key)
{
    hx_jw_key_n(w, key, strlen(key));
}

void hx_jw_int(struct hx_json_writer *w, int64_t v)
{
    before(w);
    hx_buf_printf(w->out, "%" PRId64, v);
}

void hx_jw_uint(struct hx_json_writer *w, uint64_t v)
{
    before(w);
    hx_buf_printf(w->out, "%" PRIu64, v);
}

/* Fewest significant digits that read back as v: digit string (no point) and decimal exponent such
 * that v = d.ddd x 10^exponent. */
static void shortest_digits(double v, char digits[24], int *exponent)
{
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, v);
        if (strtod(text, NULL) == v)
            break;
    }
    char *e = strchr(text, 'e');
    int power = 0;
    for (const char *s = e + 2; *s; s++) /* behind "e+" or "e-" */
        power = power * 10 + (*s - '0');
    *exponent = e[1] == '-' ? -power : power;
    size_t n = 0;
    for (const char *s = text; s < e; s++) {
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    }
    digits[n] = '\0';
}

static void put_double(struct hx_buf *out, double v)
{
    if (isnan(v)) {
        hx_buf_puts(out, "NaN");
        return;
    }
    if (signbit(v))
        hx_buf_putc(out, '-');
    v = fabs(v);
    if (isinf(v)) {
        hx_buf_puts(out, "Infinity");
        return;
    }
    if (v == 0) {
        hx_buf_puts(out, "0.0");
        return;
    }
    char digits[24];
    int exponent;
    shortest_digits(v, digits, &exponent);
    size_t n = strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        hx_buf_putc(out, (uint8_t)digits[0]);
        if (n > 1) {
            hx_buf_putc(out, '.');
            hx_buf_append(out, digits + 1, n - 1);
        }
        hx_buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        hx_buf_puts(out, "0.");
        for (int i = -1; i > exponent; i--)
            hx_buf_putc(out, '0');
        hx_buf_append(out, digits, n);
    } else {
        size_t whole = (size_t)exponent + 1;
        for (size_t i = 0; i < whole; i++)
            hx_buf_putc(out, i < n ? (uint8_t)digits[i] : '0');
        hx_buf_putc(out, '.');
        if (n > whole)
            hx_buf_append(out, digits + whole, n - whole);
        else
            hx_buf_putc(out, '0');
    }
}

void hx_jw_double(struct hx_json_writer *w, double v)
{
    before(w);
    put_double(w->out, v);
}

void hx_jw_finite(struct hx_json_writer *w, double v)
{
    if (isfinite(v))
        hx_jw_double(w, v);
    else
        hx_jw_null(w);
}

void hx_jw_bool(struct hx_json_writer *w, bool v)
{
    before(w);
    hx_buf_puts(w->out, v ? "true" : "false");
}

void hx_jw_null(struct hx_json_writer *w)
{
    before(w);
    hx_buf_puts(w->out, "null");
}

void hx_jw_raw(struct hx_json_writer *w, const char *s, size_t len)
{
    before(w);
    hx_buf_append(w->out, s, len);
}

static void put_number(struct hx_json_writer *w, struct hx_jv v)
{
    size_t len;
    const char *s = hx_jv_number_text(v, &len);
    bool integer = true;
    for (size_t i = 0; i < len; i++)
        integer = integer && ((s[i] >= '0' && s[i] <= '9') || (i == 0 && s[i] == '-'));
    if (integer && len == 2 && s[0] == '-' && s[1] == '0')
        hx_jw_raw(w, "0", 1); /* the reference reads integers as integers: there is no -0 */
    else if (integer)
        hx_jw_raw(w, s, len);
    else {
        double d = 0;
        hx_jv_double(v, &d);
        if (len > 0 && s[len - 1] == 'N')
            d = NAN;
        hx_jw_double(w, d);
    }
}

struct member {
    const char *key;
    size_t len;
    size_t order;
    struct hx_jv value; /* of the last member with this key */
    bool first;
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = memcmp(x->key, y->key, x->len < y->len ? x->len : y->len);
    if (c != 0)
        return c;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static int by_order(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    return x->order < y->order ? -1 : 1;
}

/* Members in source order; of equal keys the first position and the last value. Sorting finds them,
 * since an object may have any number of members. */
static void put_object(struct hx_json_writer *w, struct hx_jv object)
{
    size_t n = hx_jv_count(object), i = 0;
    struct member *m = malloc((n ? n : 1) * sizeof(*m));
    if (!m) {
        w->out->failed = true;
        return;
    }
    for (struct hx_jv v = hx_jv_first(object); v.doc; v = hx_jv_next(v), i++) {
        m[i] = (struct member){.order = i, .value = v};
        m[i].key = hx_jv_str(hx_jv_key(v), &m[i].len);
    }
    qsort(m, n, sizeof(*m), by_key);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1;
             to < n && m[to].len == m[from].len && memcmp(m[to].key, m[from].key, m[to].len) == 0;)
            to++;
        m[from].first = true;
        m[from].value = m[to - 1].value;
    }
    qsort(m, n, sizeof(*m), by_order);
    hx_jw_object(w);
    for (i = 0; i < n; i++) {
        if (!m[i].first)
            continue;
        hx_jw_key_n(w, m[i].key, m[i].len);
        hx_jw_value(w, m[i].value);
    }
    hx_jw_end_object(w);
    free(m);
}

void hx_jw_value(struct hx_json_writer *w, struct hx_jv v)
{
    size_t len;
    const char *s;
    bool b = false;
    switch (hx_jv_type(v)) {
    case HX_JSON_NUMBER: put_number(w, v); return;
    case HX_JSON_STRING:
        s = hx_jv_str(v, &len);
        hx_jw_str_n(w, s, len);
        return;
    case HX_JSON_TRUE:
    case HX_JSON_FALSE:
        hx_jv_bool(v, &b);
        hx_jw_bool(w, b);
        return;
    case HX_JSON_ARRAY:
        hx_jw_array(w);
        for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e))
            hx_jw_value(w, e);
        hx_jw_end_array(w);
        return;
    case HX_JSON_OBJECT: put_object(w, v); return;
    default: hx_jw_null(w); return;
    }
}
