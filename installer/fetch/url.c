#include "fetch/url.h"

#include <stdio.h>
#include <string.h>

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool starts(const char *s, const char *with)
{
    while (*with && lower(*s) == *with) {
        s++;
        with++;
    }
    return *with == '\0';
}

/* ---- taking apart ---------------------------------------------------------------------------- */

static bool plain_text(const char *s)
{
    size_t n = 0;
    for (; s[n]; n++) {
        if ((unsigned char)s[n] <= ' ' || s[n] == 0x7f || s[n] == '\\')
            return false;
    }
    return n > 0 && n < HX_URL_MAX;
}

/* Host at s, n bytes: a name, an IPv4 address or an IPv6 address in brackets. */
static bool good_host(const char *s, size_t n)
{
    if (n == 0 || n > 255)
        return false;
    if (s[0] == '[') {
        for (size_t i = 1; i + 1 < n; i++) {
            if (!strchr("0123456789abcdefABCDEF:.", s[i]))
                return false;
        }
        return n > 3 && s[n - 1] == ']';
    }
    for (size_t i = 0; i < n; i++) {
        char c = lower(s[i]);
        if (!(c >= 'a' && c <= 'z') && !is_digit(c) && c != '-' && c != '.' && c != '_')
            return false;
    }
    return true;
}

static bool read_port(const char *s, size_t n, unsigned *port)
{
    unsigned v = 0;
    if (n == 0 || n > 5)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(s[i]))
            return false;
        v = v * 10 + (unsigned)(s[i] - '0');
    }
    *port = v;
    return v > 0 && v < 65536;
}

static bool is_loopback(const char *host, size_t n)
{
    if ((n == 9 && starts(host, "localhost")) || (n == 5 && memcmp(host, "[::1]", 5) == 0))
        return true;
    if (n < 9 || memcmp(host, "127.", 4) != 0)
        return false;
    unsigned dots = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(host[i]) && host[i] != '.')
            return false;
        dots += host[i] == '.';
    }
    return dots == 3;
}

bool hx_url_parse(const char *text, struct hx_url *out)
{
    struct hx_url u = {0};
    if (!plain_text(text))
        return false;
    u.https = starts(text, "https://");
    if (!u.https && !starts(text, "http://"))
        return false;
    const char *host = text + (u.https ? 8 : 7);
    size_t n = strcspn(host, "/?#");
    u.path = (size_t)(host - text) + n;
    size_t name = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
    unsigned port = u.https ? 443 : 80;
    if (name > n || !good_host(host, name))
        return false;
    if (name < n && (host[name] != ':' || !read_port(host + name + 1, n - name - 1, &port)))
        return false;
    u.loopback = is_loopback(host, name);
    snprintf(u.origin, sizeof(u.origin), "%s://%.*s:%u", u.https ? "https" : "http", (int)name,
             host, port);
    for (char *c = u.origin; *c; c++)
        *c = lower(*c);
    *out = u;
    return true;
}

int hx_url_join(const char *base, const char *location, char out[HX_URL_MAX])
{
    struct hx_url u;
    char text[HX_URL_MAX];
    size_t keep;
    if (!plain_text(location) || !hx_url_parse(base, &u))
        return -EINVAL;
    if (starts(location, "http://") || starts(location, "https://")) {
        keep = 0;
    } else if (location[0] == '/' && location[1] == '/') {
        keep = u.https ? 6 : 5;
    } else if (location[0] == '/') {
        keep = u.path;
    } else if (location[0] == '?' || location[0] == '#' ||
               location[strcspn(location, ":/")] == ':') {
        return -EINVAL; /* another scheme, or a reference that no file server sends */
    } else {
        keep = u.path + strcspn(base + u.path, "?#");
        while (keep > u.path && base[keep - 1] != '/')
            keep--;
        if (keep == u.path)
            return -EINVAL;
    }
    int n = snprintf(text, sizeof(text), "%.*s%s", (int)keep, base, location);
    if (n < 0 || (size_t)n >= sizeof(text))
        return -EMSGSIZE;
    text[strcspn(text, "#")] = '\0';
    if (!hx_url_parse(text, &u))
        return -EINVAL;
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

int hx_url_escape(struct hx_buf *out, const char *path)
{
    int r = 0;
    for (const char *c = path; *c && r == 0; c++) {
        char l = lower(*c);
        if ((l >= 'a' && l <= 'z') || is_digit(l) || strchr("-._~/", l))
            r = hx_buf_putc(out, (uint8_t)*c);
        else
            r = hx_buf_printf(out, "%%%02X", (unsigned)(unsigned char)*c);
    }
    return r;
}

/* ---- messages -------------------------------------------------------------------------------- */

void hx_url_display(const char *text, char *out, size_t n)
{
    struct hx_url u;
    if (n == 0)
        return;
    if (!hx_url_parse(text, &u)) {
        snprintf(out, n, "(not an address)");
        return;
    }
    snprintf(out, n, "%.*s", (int)strcspn(text, "?#"), text);
    for (char *c = out; *c; c++) {
        if ((unsigned char)*c > 0x7e)
            *c = '.';
    }
}

static void blank_out(char *text, const char *secret, size_t n)
{
    if (n < 8)
        return;
    for (char *at = text; (at = memmem(at, strlen(at), secret, n)); at += n)
        memset(at, '*', n);
}

void hx_url_redact(char *text, const char *token, const char *url)
{
    if (token)
        blank_out(text, token, strlen(token));
    const char *query = url ? strchr(url, '?') : NULL;
    while (query) {
        const char *part = query + 1;
        size_t n = strcspn(part, "&");
        const char *equals = memchr(part, '=', n);
        if (equals)
            blank_out(text, equals + 1, (size_t)(part + n - equals - 1));
        query = part[n] ? part + n : NULL;
    }
    bool hide = false;
    for (char *c = text; *c; c++) {
        bool end = (unsigned char)*c <= ' ' || strchr("\"'<>", *c);
        if (end)
            hide = false;
        if ((unsigned char)*c < ' ' || (unsigned char)*c > 0x7e)
            *c = ' ';
        else if (hide)
            *c = '*';
        else if (*c == '?')
            hide = true;
    }
}

/* ---- expiry ---------------------------------------------------------------------------------- */

int64_t hx_url_epoch(int year, int month, int day, int hour, int minute, int second)
{
    /* Days by shifting the year's start to March, so that leap days end it. */
    int64_t y = month <= 2 ? year - 1 : year, era = (y >= 0 ? y : y - 399) / 400;
    int64_t of_era = y - era * 400, shifted = (month + 9) % 12;
    int64_t of_year = (153 * shifted + 2) / 5 + day - 1;
    int64_t days = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return days * 86400 + hour * 3600 + minute * 60 + second;
}

/* n decimal digits at s. */
static bool digits(const char *s, size_t n, int *out)
{
    int v = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(s[i]))
            return false;
        v = v * 10 + (s[i] - '0');
    }
    *out = v;
    return true;
}

static bool good_date(const int d[6], int64_t *epoch)
{
    if (d[0] < 1970 || d[0] > 9998 || d[1] < 1 || d[1] > 12 || d[2] < 1 || d[2] > 31 || d[3] > 23 ||
        d[4] > 59 || d[5] > 60)
        return false;
    *epoch = hx_url_epoch(d[0], d[1], d[2], d[3], d[4], d[5]);
    return true;
}

/* 20261130T093000Z */
static bool basic_date(const char *s, size_t n, int64_t *epoch)
{
    int d[6];
    return n == 16 && s[8] == 'T' && s[15] == 'Z' && digits(s, 4, &d[0]) &&
           digits(s + 4, 2, &d[1]) && digits(s + 6, 2, &d[2]) && digits(s + 9, 2, &d[3]) &&
           digits(s + 11, 2, &d[4]) && digits(s + 13, 2, &d[5]) && good_date(d, epoch);
}

/* 2026-11-30T09:30:00Z, with the colons escaped or not. */
static bool long_date(const char *s, size_t n, int64_t *epoch)
{
    char t[32];
    size_t m = 0;
    int d[6];
    for (size_t i = 0; i < n && m < sizeof(t) - 1; i++) {
        bool colon = s[i] == '%' && i + 2 < n && s[i + 1] == '3' && lower(s[i + 2]) == 'a';
        t[m++] = colon ? ':' : s[i];
        i += colon ? 2 : 0;
    }
    return m == 20 && t[4] == '-' && t[7] == '-' && t[10] == 'T' && t[13] == ':' && t[16] == ':' &&
           digits(t, 4, &d[0]) && digits(t + 5, 2, &d[1]) && digits(t + 8, 2, &d[2]) &&
           digits(t + 11, 2, &d[3]) && digits(t + 14, 2, &d[4]) && digits(t + 17, 2, &d[5]) &&
           good_date(d, epoch);
}

static bool number(const char *s, size_t n, int64_t max, int64_t *out)
{
    int64_t v = 0;
    if (n == 0 || n > 12)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(s[i]))
            return false;
        v = v * 10 + (s[i] - '0');
    }
    *out = v;
    return v <= max;
}

/* The value of a query parameter, names without regard to case. */
static const char *query_value(const char *text, const char *name, size_t *n)
{
    size_t length = strlen(name);
    for (const char *part = strchr(text, '?'); part;) {
        part++;
        size_t len = strcspn(part, "&#");
        if (len > length && part[length] == '=' && starts(part, name)) {
            *n = len - length - 1;
            return part + length + 1;
        }
        part = part[len] == '&' ? part + len : NULL;
    }
    return NULL;
}

/* Signed policies are base64 in a dialect that avoids "+=/": "-_~". */
static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (is_digit(c))
        return c - '0' + 52;
    return c == '-' || c == '+' ? 62 : c == '~' || c == '/' ? 63 : -1;
}

static bool policy_epoch(const char *s, size_t n, int64_t *epoch)
{
    char text[3072];
    size_t m = 0;
    uint32_t bits = 0;
    unsigned have = 0;
    for (size_t i = 0; i < n && m < sizeof(text) - 1; i++) {
        int v = base64_value(s[i]);
        if (v < 0)
            break;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have >= 8) {
            have -= 8;
            text[m++] = (char)(bits >> have & 0xff);
        }
    }
    const char *at = memmem(text, m, "EpochTime\":", 11);
    if (!at)
        return false;
    at += 11;
    size_t left = (size_t)(text + m - at), len = 0;
    while (len < left && is_digit(at[len]))
        len++;
    return number(at, len, 253402300799, epoch);
}

bool hx_url_expiry(const char *text, int64_t *epoch)
{
    static const char *const dated[][2] = {{"x-amz-date", "x-amz-expires"},
                                           {"x-goog-date", "x-goog-expires"}};
    size_t n, m;
    for (size_t i = 0; i < sizeof(dated) / sizeof(dated[0]); i++) {
        const char *date = query_value(text, dated[i][0], &n);
        const char *life = query_value(text, dated[i][1], &m);
        int64_t from, seconds;
        if (date && life && basic_date(date, n, &from) && number(life, m, 31536000, &seconds)) {
            *epoch = from + seconds;
            return true;
        }
    }
    const char *v = query_value(text, "expires", &n);
    if (v && number(v, n, 253402300799, epoch))
        return true;
    v = query_value(text, "policy", &n);
    if (v && policy_epoch(v, n, epoch))
        return true;
    v = query_value(text, "se", &n);
    return v && long_date(v, n, epoch);
}
