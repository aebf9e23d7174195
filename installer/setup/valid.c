#include "setup/valid.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "hw/root.h"

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_one_of(const char *value, const char *chars)
{
    return value[strspn(value, chars)] == '\0';
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS  "0123456789"

static int bad(struct hx_error *err, const char *value, const char *expected)
{
    return hx_fail(err, -EINVAL, "found '%.60s', expected %s", value, expected);
}

static bool is_label(const char *s, size_t n)
{
    if (n < 1 || n > 63 || !is_alnum(s[0]) || !is_alnum(s[n - 1]))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_alnum(s[i]) && s[i] != '-')
            return false;
    }
    return true;
}

int hx_valid_hostname(const char *value, struct hx_error *err)
{
    if (!is_label(value, strlen(value)))
        return bad(err, value, "1 to 63 letters, digits and '-', a letter or digit first and last");
    if (is_one_of(value, DIGITS))
        return bad(err, value, "a name with at least one letter");
    return 0;
}

/* Calls one for each word; false if any is refused, or there are more than max. */
static bool all_words(const char *value, int max, bool (*one)(const char *word, size_t n))
{
    int n = 0;
    for (const char *p = value + strspn(value, " "); *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (++n > max || !one(p, len))
            return false;
        p += len;
    }
    return n > 0;
}

bool hx_prefix_parse(const char *text, bool need_prefix, struct hx_prefix *out)
{
    char addr[INET6_ADDRSTRLEN];
    struct hx_prefix p = {.family = strchr(text, ':') ? AF_INET6 : AF_INET};
    int widest = p.family == AF_INET ? 32 : 128;
    size_t n = strcspn(text, "/");
    uint64_t bits = (uint64_t)widest;
    if (n >= sizeof(addr) || (text[n] == '/') != need_prefix)
        return false;
    memcpy(addr, text, n);
    addr[n] = '\0';
    if (inet_pton(p.family, addr, p.addr) != 1)
        return false;
    if (need_prefix) {
        const char *tail = text + n + 1;
        if (!is_one_of(tail, DIGITS) || !hx_parse_u64(tail, strlen(tail), (uint64_t)widest, &bits))
            return false;
    }
    p.bits = (int)bits;
    *out = p;
    return true;
}

static bool is_zero(const uint8_t *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (b[i])
            return false;
    }
    return true;
}

static bool is_usable(const struct hx_prefix *p)
{
    if (p->family == AF_INET)
        return p->addr[0] != 0 && p->addr[0] != 127 && p->addr[0] < 224;
    return p->addr[0] != 0xFF && !is_zero(p->addr, 15);
}

static bool bit(const uint8_t *b, int i)
{
    return b[i / 8] >> (7 - i % 8) & 1;
}

/* In IPv4 networks wider than two hosts the first and the last address are no host's. */
static bool is_host(const struct hx_prefix *p)
{
    bool any = false, all = true;
    if (p->family != AF_INET || p->bits >= 31)
        return true;
    for (int i = p->bits; i < 32; i++) {
        any |= bit(p->addr, i);
        all &= bit(p->addr, i);
    }
    return any && !all;
}

int hx_valid_address(const char *value, struct hx_error *err)
{
    struct hx_prefix p;
    if (*value == '\0')
        return 0;
    if (!hx_prefix_parse(value, true, &p) || p.bits < 1)
        return bad(err, value, "an address with its prefix, such as 192.168.1.20/24");
    if (!is_usable(&p) || !is_host(&p))
        return bad(err, value, "the address of one machine");
    return 0;
}

int hx_valid_gateway(const char *value, struct hx_error *err)
{
    struct hx_prefix p;
    if (*value == '\0')
        return 0;
    if (!hx_prefix_parse(value, false, &p) || !is_usable(&p))
        return bad(err, value, "the router's address, such as 192.168.1.1");
    return 0;
}

static bool is_address(const char *word, size_t n)
{
    char text[64];
    struct hx_prefix p;
    if (n >= sizeof(text))
        return false;
    memcpy(text, word, n);
    text[n] = '\0';
    return hx_prefix_parse(text, false, &p) && (p.family == AF_INET6 || p.addr[0] != 0);
}

int hx_valid_dns(const char *value, struct hx_error *err)
{
    if (*value == '\0' || all_words(value, 4, is_address))
        return 0;
    return bad(err, value, "up to 4 addresses of name servers, separated by spaces");
}

/* A DNS name, or an address. */
static bool is_host_name(const char *word, size_t n)
{
    if (n > 253)
        return false;
    if (is_address(word, n))
        return true;
    for (size_t at = 0; at <= n;) {
        const char *dot = memchr(word + at, '.', n - at);
        size_t end = dot ? (size_t)(dot - word) : n;
        if (!is_label(word + at, end - at))
            return false;
        at = end + 1;
    }
    return true;
}

/* host:port or [v6]:port; the port may be absent. */
static bool is_authority(const char *s, size_t n)
{
    size_t host = n;
    if (n > 0 && s[0] == '[') {
        const char *end = memchr(s, ']', n);
        if (!end || !memchr(s, ':', (size_t)(end - s)) || !is_address(s + 1, (size_t)(end - s) - 1))
            return false;
        host = (size_t)(end - s) + 1;
    } else {
        const char *colon = memchr(s, ':', n);
        host = colon ? (size_t)(colon - s) : n;
        if (!is_host_name(s, host))
            return false;
    }
    uint64_t port = 1;
    if (host < n)
        return s[host] == ':' && hx_parse_u64(s + host + 1, n - host - 1, 65535, &port) && port > 0;
    return true;
}

static const char *after(const char *value, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(value, prefix, n) == 0 ? value + n : NULL;
}

int hx_valid_proxy(const char *value, struct hx_error *err)
{
    if (*value == '\0')
        return 0;
    if (strchr(value, '@'))
        return hx_fail(err, -EINVAL,
                       "a proxy with a name or password in its address is not supported");
    const char *rest = after(value, "http://");
    size_t n = rest ? strcspn(rest, "/") : 0;
    if (!rest || (rest[n] && rest[n + 1]) || !is_authority(rest, n))
        return bad(err, value, "an address such as http://proxy.example:3128");
    return 0;
}

int hx_valid_ntp(const char *value, struct hx_error *err)
{
    if (all_words(value, 4, is_host_name))
        return 0;
    return bad(err, value, "default, later, or up to 4 names of time servers");
}

int hx_valid_serial(const char *value, struct hx_error *err)
{
    for (const char *p = value; *p; p++) {
        if (*p <= ' ' || *p > '~')
            return bad(err, value, "a serial number without spaces");
    }
    return 0;
}

int hx_valid_path(const char *value, struct hx_error *err)
{
    if (*value == '\0')
        return 0;
    size_t n = strlen(value);
    if (value[0] != '/' || strstr(value, "/../") || (n >= 3 && strcmp(value + n - 3, "/..") == 0))
        return bad(err, value, "a whole path that begins with / and has no ..");
    return 0;
}

int hx_valid_driver(const char *value, struct hx_error *err)
{
    if (strcmp(value, "none") == 0)
        return 0;
    if (*value == '\0' || hx_valid_path(value, NULL) < 0)
        return bad(err, value, "none, or the whole path of a folder or archive");
    return 0;
}

int hx_valid_sha256(const char *value, struct hx_error *err)
{
    if (*value && (strlen(value) != 64 || !is_one_of(value, DIGITS "abcdefABCDEF")))
        return bad(err, value, "64 hexadecimal digits");
    return 0;
}

static bool is_name(const char *word, size_t n)
{
    if (n < 1 || n > 64 || !is_alnum(word[0]))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_alnum(word[i]) && !strchr("._+-", word[i]))
            return false;
    }
    return true;
}

int hx_valid_licences(const char *value, struct hx_error *err)
{
    if (*value == '\0' || all_words(value, 16, is_name))
        return 0;
    return bad(err, value, "names of licences, separated by spaces");
}

int hx_valid_model(const char *value, struct hx_error *err)
{
    if (is_name(value, strlen(value)))
        return 0;
    return bad(err, value, "none, or the name of a model");
}

int hx_valid_source(const char *value, struct hx_error *err)
{
    if (strcmp(value, "default") == 0)
        return 0;
    if (value[0] == '/')
        return hx_valid_path(value, err);
    const char *rest = after(value, "https://");
    if (!rest)
        rest = after(value, "http://");
    if (strchr(value, '@'))
        return hx_fail(err, -EINVAL,
                       "an address with a name or password is not accepted; use token_file");
    if (!rest || strpbrk(value, " \"'\\") || !is_authority(rest, strcspn(rest, "/")))
        return bad(err, value,
                   "default, an address such as https://mirror.example/models, or "
                   "the whole path of a folder");
    return 0;
}

static bool is_time(const char *s)
{
    static const char *const form = "29:59"; /* highest digit at each place */
    for (int i = 0; i < 5; i++) {
        if (form[i] == ':' ? s[i] != ':' : s[i] < '0' || s[i] > form[i])
            return false;
    }
    return s[0] < '2' || s[1] < '4';
}

int hx_valid_schedule(const char *value, struct hx_error *err)
{
    if (*value == '\0')
        return 0;
    if (strlen(value) != 11 || !is_time(value) || value[5] != '-' || !is_time(value + 6) ||
        memcmp(value, value + 6, 5) == 0)
        return bad(err, value, "two different times of day, such as 22:00-06:00");
    return 0;
}

int hx_valid_cmdline(const char *value, struct hx_error *err)
{
    /* What would let someone around the verified root, or belongs to the image. */
    static const char *const refused[] = {"root=",    "roothash=", "init=", "rdinit=", "rd.",
                                          "systemd.", "hx170.",    "ro",    "rw",      "single"};
    if (!is_one_of(value, LETTERS DIGITS "._-+=:,;/@ "))
        return bad(err, value, "words such as iommu=pt, separated by spaces");
    for (const char *p = value + strspn(value, " "); *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
            size_t n = strlen(refused[i]);
            bool prefix = refused[i][n - 1] == '=' || refused[i][n - 1] == '.';
            if (len >= n && strncmp(p, refused[i], n) == 0 && (prefix || len == n))
                return hx_fail(err, -EINVAL, "the word '%.*s' may not be set here",
                               len > 40 ? 40 : (int)len, p);
        }
        p += len;
    }
    return 0;
}

int hx_valid_route(const char *address, const char *gateway, struct hx_error *err)
{
    struct hx_prefix a, g;
    if (!hx_prefix_parse(address, true, &a))
        return bad(err, address, "an address with its prefix, such as 192.168.1.20/24");
    if (*gateway == '\0')
        return 0;
    if (!hx_prefix_parse(gateway, false, &g))
        return bad(err, gateway, "the router's address, such as 192.168.1.1");
    if (a.family != g.family)
        return hx_fail(err, -EINVAL, "the router %.60s and the address %.60s are of two kinds",
                       gateway, address);
    if (memcmp(a.addr, g.addr, 16) == 0)
        return hx_fail(err, -EINVAL, "the router has the address of this machine, %.60s", gateway);
    /* A v6 router is usually named by its link address. */
    if (a.family == AF_INET6 && g.addr[0] == 0xFE && (g.addr[1] & 0xC0) == 0x80)
        return 0;
    for (int i = 0; i < a.bits; i++) {
        if (bit(a.addr, i) != bit(g.addr, i))
            return hx_fail(err, -EINVAL, "the router %.60s is not in the network of %.60s", gateway,
                           address);
    }
    return 0;
}
