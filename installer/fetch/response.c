#include "fetch/response.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MAX_WAIT 86400

void hx_response_clear(struct hx_response *r)
{
    memset(r, 0, sizeof(*r));
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blanks(const char **s, size_t *n)
{
    while (*n > 0 && (**s == ' ' || **s == '\t')) {
        (*s)++;
        (*n)--;
    }
}

/* Decimal digits at *s, at most 2^63 - 1. */
static bool take_number(const char **s, size_t *n, uint64_t *out)
{
    uint64_t v = 0;
    size_t i = 0;
    for (; i < *n && is_digit((*s)[i]); i++) {
        if (v > (INT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (uint64_t)((*s)[i] - '0');
    }
    if (i == 0)
        return false;
    *s += i;
    *n -= i;
    *out = v;
    return true;
}

static bool whole_number(const char *s, size_t n, uint64_t *out)
{
    return take_number(&s, &n, out) && n == 0;
}

static bool take_char(const char **s, size_t *n, char c)
{
    if (*n == 0 || **s != c)
        return false;
    (*s)++;
    (*n)--;
    return true;
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_bytes(const char *s, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        int a = hex_digit(s[2 * i]), b = hex_digit(s[2 * i + 1]);
        if (a < 0 || b < 0)
            return false;
        out[i] = (uint8_t)(a << 4 | b);
    }
    return true;
}

static void copy_text(char *out, size_t size, const char *s, size_t n)
{
    if (n >= size)
        n = size - 1;
    memcpy(out, s, n);
    out[n] = '\0';
}

static int month_of(const char *s)
{
    static const char names[] = "janfebmaraprmayjunjulaugsepoctnovdec";
    for (int i = 0; i < 12; i++) {
        if (strncasecmp(s, names + 3 * i, 3) == 0)
            return i + 1;
    }
    return 0;
}

/* The three forms differ in order and separators only: a time has colons, a month has letters, the
 * first number is the day, the next the year. */
bool hx_http_date(const char *s, size_t n, int64_t *epoch)
{
    int day = 0, month = 0, year = -1, h = -1, m = 0, sec = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        while (i + len < n && !strchr(" \t,-", s[i + len]))
            len++;
        const char *t = s + i;
        i += len ? len : 1;
        if (len == 8 && t[2] == ':' && t[5] == ':') {
            int v[3];
            for (int k = 0; k < 3; k++) {
                if (!is_digit(t[3 * k]) || !is_digit(t[3 * k + 1]))
                    return false;
                v[k] = (t[3 * k] - '0') * 10 + t[3 * k + 1] - '0';
            }
            h = v[0];
            m = v[1];
            sec = v[2];
        } else if (len > 0 && is_digit(t[0])) {
            uint64_t v;
            if (len > 4 || !whole_number(t, len, &v))
                return false;
            if (day == 0)
                day = (int)v;
            else if (year < 0)
                year = len == 2 ? (int)v + (v < 70 ? 2000 : 1900) : (int)v;
        } else if (len == 3 && month == 0) {
            month = month_of(t);
        }
    }
    if (day < 1 || day > 31 || month == 0 || year < 1970 || year > 9998 || h < 0 || h > 23 ||
        m > 59 || sec > 60)
        return false;
    *epoch = hx_url_epoch(year, month, day, h, m, sec);
    return true;
}

/* ---- headers --------------------------------------------------------------------------------- */

static void on_range(struct hx_response *r, const char *s, size_t n)
{
    struct {
        uint64_t first, last, total;
        bool star, has_total;
    } v = {0};
    bool ok = n > 5 && strncasecmp(s, "bytes", 5) == 0 && (s[5] == ' ' || s[5] == '\t');
    if (ok) {
        s += 5;
        n -= 5;
        skip_blanks(&s, &n);
        v.star = take_char(&s, &n, '*');
        ok = v.star || (take_number(&s, &n, &v.first) && take_char(&s, &n, '-') &&
                        take_number(&s, &n, &v.last));
    }
    if (ok) {
        ok = take_char(&s, &n, '/');
        v.has_total = ok && is_digit(n ? *s : 'x');
        ok = ok && (v.has_total ? whole_number(s, n, &v.total) : n == 1 && *s == '*');
    }
    if (ok && !v.star)
        ok = v.first <= v.last && (!v.has_total || v.last < v.total);
    if (ok && v.star)
        ok = v.has_total;
    /* A second header that says otherwise makes both worthless. */
    if (!ok || r->has_range || r->range_unsatisfied) {
        r->range_bad = true;
        return;
    }
    r->has_range = !v.star;
    r->range_unsatisfied = v.star;
    r->range_first = v.first;
    r->range_last = v.last;
    r->has_total = v.has_total;
    r->total = v.total;
}

static void on_length(struct hx_response *r, const char *s, size_t n)
{
    uint64_t v;
    if (!whole_number(s, n, &v) || (r->has_length && r->length != v)) {
        r->range_bad = true;
        return;
    }
    r->has_length = true;
    r->length = v;
}

static void on_encoding(struct hx_response *r, const char *s, size_t n)
{
    r->encoded |= !(n == 0 || (n == 8 && strncasecmp(s, "identity", 8) == 0));
}

static void on_type(struct hx_response *r, const char *s, size_t n)
{
    r->html = n >= 9 && strncasecmp(s, "text/html", 9) == 0;
}

static void on_etag(struct hx_response *r, const char *s, size_t n)
{
    copy_text(r->etag, sizeof(r->etag), s, n);
}

static void on_location(struct hx_response *r, const char *s, size_t n)
{
    if (n >= sizeof(r->location) || r->location[0]) {
        r->location_bad = true;
        return;
    }
    copy_text(r->location, sizeof(r->location), s, n);
}

static void on_commit(struct hx_response *r, const char *s, size_t n)
{
    uint8_t raw[20];
    if (n == 40 && hex_bytes(s, 20, raw))
        copy_text(r->commit, sizeof(r->commit), s, n);
}

static void on_linked_size(struct hx_response *r, const char *s, size_t n)
{
    r->has_linked_size = whole_number(s, n, &r->linked_size);
}

/* Other hash families than SHA-256 have other lengths and are ignored. */
static void on_linked_etag(struct hx_response *r, const char *s, size_t n)
{
    if (n > 2 && (s[0] == 'W' || s[0] == 'w') && s[1] == '/') {
        s += 2;
        n -= 2;
    }
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"') {
        s++;
        n -= 2;
    }
    r->has_linked_sha256 = n == 64 && hex_bytes(s, 32, r->linked_sha256);
}

static void on_retry_after(struct hx_response *r, const char *s, size_t n)
{
    uint64_t v;
    if (whole_number(s, n, &v)) {
        r->has_retry_after = true;
        r->retry_is_date = false;
        r->retry_after = (int64_t)(v < MAX_WAIT ? v : MAX_WAIT);
    } else if (hx_http_date(s, n, &r->retry_after)) {
        r->has_retry_after = r->retry_is_date = true;
    }
}

/* RateLimit: "name";r=0;t=55, several apart by commas. The longest of those that are used up. */
static void on_rate_limit(struct hx_response *r, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t len = 0;
        while (i + len < n && s[i + len] != ',')
            len++;
        uint64_t left = 0, t = 0;
        bool has_t = false;
        for (size_t k = i; k < i + len; k++) {
            bool edge = k == i || strchr("; \t", s[k - 1]);
            if (!edge || k + 2 >= i + len || s[k + 1] != '=')
                continue;
            const char *at = s + k + 2;
            size_t m = i + len - k - 2;
            if (s[k] == 'r')
                take_number(&at, &m, &left);
            else if (s[k] == 't')
                has_t = take_number(&at, &m, &t);
        }
        if (has_t && left == 0) {
            int64_t v = (int64_t)(t < MAX_WAIT ? t : MAX_WAIT);
            r->reset = r->has_reset && r->reset > v ? r->reset : v;
            r->has_reset = true;
        }
        i += len + 1;
    }
}

static void on_date(struct hx_response *r, const char *s, size_t n)
{
    r->has_date = hx_http_date(s, n, &r->date);
}

static void on_link(struct hx_response *r, const char *s, size_t n)
{
    while (n > 0) {
        const char *open = memchr(s, '<', n);
        if (!open)
            return;
        n -= (size_t)(open + 1 - s);
        s = open + 1;
        const char *end = memchr(s, '>', n);
        if (!end)
            return;
        size_t length = (size_t)(end - s);
        const char *rest = end + 1;
        size_t m = n - length - 1;
        const char *comma = memchr(rest, '<', m);
        size_t part = comma ? (size_t)(comma - rest) : m;
        if ((memmem(rest, part, "rel=\"next\"", 10) || memmem(rest, part, "rel=next", 8)) &&
            length < sizeof(r->next))
            copy_text(r->next, sizeof(r->next), s, length);
        s = rest;
        n = m;
    }
}

static const struct {
    const char *name;
    void (*read)(struct hx_response *r, const char *value, size_t n);
} headers[] = {
    {"content-range", on_range},
    {"content-length", on_length},
    {"content-encoding", on_encoding},
    {"content-type", on_type},
    {"etag", on_etag},
    {"location", on_location},
    {"x-repo-commit", on_commit},
    {"x-linked-size", on_linked_size},
    {"x-linked-etag", on_linked_etag},
    {"retry-after", on_retry_after},
    {"ratelimit", on_rate_limit},
    {"date", on_date},
    {"link", on_link},
};

void hx_response_line(struct hx_response *r, const char *line, size_t n)
{
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    if (n >= 9 && strncasecmp(line, "HTTP/", 5) == 0) {
        const char *space = memchr(line, ' ', n);
        uint64_t status = 0;
        hx_response_clear(r);
        if (space) {
            size_t m = (size_t)(line + n - space - 1);
            const char *s = space + 1;
            take_number(&s, &m, &status);
        }
        r->status = status >= 100 && status <= 999 ? (int)status : 999;
        return;
    }
    const char *colon = memchr(line, ':', n);
    if (!colon || memchr(line, '\0', n))
        return;
    const char *value = colon + 1;
    size_t length = (size_t)(colon - line), m = n - length - 1;
    skip_blanks(&value, &m);
    while (m > 0 && (value[m - 1] == ' ' || value[m - 1] == '\t'))
        m--;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        if (strlen(headers[i].name) == length && strncasecmp(line, headers[i].name, length) == 0)
            headers[i].read(r, value, m);
    }
}

/* ---- verdict --------------------------------------------------------------------------------- */

static enum hx_verdict say(enum hx_verdict v, char *why, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static enum hx_verdict say(enum hx_verdict v, char *why, size_t n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, n, fmt, ap);
    va_end(ap);
    return v;
}

typedef unsigned long long ull; /* for %llu */

/* Pinned facts that any response may contradict, redirects first of all. */
static bool is_changed(const struct hx_response *r, const struct hx_expect *want, char *why,
                       size_t n)
{
    if (r->commit[0] && want->commit && strlen(want->commit) == 40 &&
        strcasecmp(r->commit, want->commit) != 0) {
        say(HX_CHANGED, why, n, "the server has commit %s, pinned is %s", r->commit, want->commit);
        return true;
    }
    if (r->has_linked_size && want->size && r->linked_size != want->size) {
        say(HX_CHANGED, why, n, "the server has %llu bytes, pinned are %llu", (ull)r->linked_size,
            (ull)want->size);
        return true;
    }
    if (r->has_linked_sha256 && want->sha256 &&
        memcmp(r->linked_sha256, want->sha256, sizeof(r->linked_sha256)) != 0) {
        say(HX_CHANGED, why, n,
            "the server's SHA-256 begins %02x%02x%02x%02x, pinned is %02x%02x%02x%02x",
            r->linked_sha256[0], r->linked_sha256[1], r->linked_sha256[2], r->linked_sha256[3],
            want->sha256[0], want->sha256[1], want->sha256[2], want->sha256[3]);
        return true;
    }
    return false;
}

static enum hx_verdict judge_partial(const struct hx_response *r, const struct hx_expect *want,
                                     char *why, size_t n)
{
    if (r->html)
        return say(HX_PORTAL, why, n, "an HTML page came instead of data: captive portal or proxy");
    if (r->encoded)
        return say(HX_PROTOCOL, why, n, "Content-Encoding although none was allowed");
    if (r->range_bad || !r->has_range || !r->has_total)
        return say(HX_PROTOCOL, why, n, "206 without a usable Content-Range");
    /* Whether upstream changed is for the link and 416 to say; here it may be one bad edge. */
    if (want->size && r->total != want->size)
        return say(HX_PROTOCOL, why, n, "Content-Range of a file of %llu bytes, pinned are %llu",
                   (ull)r->total, (ull)want->size);
    uint64_t last = want->last;
    if (!want->size && last >= r->total)
        last = r->total - 1;
    if (r->range_first != want->first || r->range_last != last)
        return say(HX_PROTOCOL, why, n, "Content-Range %llu-%llu, asked for %llu-%llu",
                   (ull)r->range_first, (ull)r->range_last, (ull)want->first, (ull)last);
    if (r->has_length && r->length != last - want->first + 1)
        return say(HX_PROTOCOL, why, n, "Content-Length %llu, the range has %llu", (ull)r->length,
                   (ull)(last - want->first + 1));
    return HX_BODY_TAKE;
}

static enum hx_verdict judge_whole(const struct hx_response *r, const struct hx_expect *want,
                                   char *why, size_t n)
{
    if (r->html)
        return say(HX_PORTAL, why, n, "an HTML page came instead of data: captive portal or proxy");
    bool all = want->first == 0 && r->has_length && !r->range_bad && !r->encoded &&
               (want->size ? want->last == want->size - 1 && r->length == want->size
                           : r->length <= want->last + 1);
    if (!want->whole_ok || !all)
        return say(HX_RANGE_IGNORED, why, n, "200 to a request for a range");
    return r->length ? HX_BODY_TAKE : HX_BODY_EMPTY;
}

static enum hx_verdict judge_past_end(const struct hx_response *r, const struct hx_expect *want,
                                      char *why, size_t n)
{
    if (!r->range_unsatisfied)
        return say(HX_PROTOCOL, why, n, "416 without the file's size");
    if (!want->size)
        return r->total == 0 ? HX_BODY_EMPTY
                             : say(HX_PAST_END, why, n, "the file ends at %llu", (ull)r->total);
    if (r->total != want->size)
        return say(HX_CHANGED, why, n, "the file has %llu bytes there, pinned are %llu",
                   (ull)r->total, (ull)want->size);
    return say(HX_PAST_END, why, n, "416 for bytes %llu-%llu of %llu", (ull)want->first,
               (ull)want->last, (ull)want->size);
}

enum hx_verdict hx_response_judge(const struct hx_response *r, const struct hx_expect *want,
                                  char *why, size_t n)
{
    if (n)
        why[0] = '\0';
    switch (r->status) {
    case 200:
    case 206:
        if (is_changed(r, want, why, n))
            return HX_CHANGED;
        return r->status == 200 ? judge_whole(r, want, why, n) : judge_partial(r, want, why, n);
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
        if (is_changed(r, want, why, n))
            return HX_CHANGED;
        if (r->location_bad || !r->location[0])
            return say(HX_PROTOCOL, why, n, "redirect without a usable Location");
        return HX_FOLLOW;
    case 400: return say(HX_BAD_REQUEST, why, n, "400 bad request");
    case 401:
        return say(HX_UNAUTHORISED, why, n,
                   "401: the token is missing or not valid, or the repository is gated");
    case 403: return say(HX_FORBIDDEN, why, n, "403 forbidden");
    case 404:
    case 410: return say(HX_GONE, why, n, "%d: the file or the revision is gone", r->status);
    case 416: return judge_past_end(r, want, why, n);
    case 429: return say(HX_SLOW_DOWN, why, n, "429: the server asks to wait");
    case 511: return say(HX_PORTAL, why, n, "511: captive portal or proxy");
    default:
        if (r->status >= 200 && r->status < 300)
            return say(HX_PROTOCOL, why, n, "status %d to a request for a range", r->status);
        return say(HX_RETRY, why, n, "status %d", r->status);
    }
}

double hx_response_wait(const struct hx_response *r, double now)
{
    double wait = 0;
    if (r->has_retry_after)
        wait = r->retry_is_date ? (double)r->retry_after - (r->has_date ? (double)r->date : now)
                                : (double)r->retry_after;
    else if (r->has_reset)
        wait = (double)r->reset;
    return wait < 0 ? 0 : wait > MAX_WAIT ? MAX_WAIT : wait;
}

double hx_response_link_life(const struct hx_response *r, const char *url, double now)
{
    int64_t end;
    if (!hx_url_expiry(url, &end))
        return 0;
    double life = (double)end - (r->has_date ? (double)r->date : now);
    return life > 0 ? life : 0;
}
