#include "setup/redact.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_WORDS  16
#define MAX_VALUES 4096 /* beyond it all get the placeholder without a number */
#define TOKEN_MAX  128

enum kind { IP, MAC, ID, SERIAL, N_KINDS };
static const char *const kind_names[N_KINDS] = {"ip", "mac", "id", "serial"};

struct hx_redact {
    struct {
        char *text, what[16];
    } word[MAX_WORDS];
    int n_words;
    char *value[N_KINDS][MAX_VALUES];
    int n_values[N_KINDS];
};

int hx_redact_new(struct hx_redact **out, struct hx_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

void hx_redact_free(struct hx_redact *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_words; i++) {
        explicit_bzero(r->word[i].text, strlen(r->word[i].text));
        free(r->word[i].text);
    }
    for (int k = 0; k < N_KINDS; k++) {
        for (int i = 0; i < r->n_values[k]; i++)
            free(r->value[k][i]);
    }
    free(r);
}

int hx_redact_word(struct hx_redact *r, const char *word, const char *what, struct hx_error *err)
{
    size_t least = strcmp(what, "secret") == 0 ? 6 : 3;
    if (strlen(word) < least)
        return 0;
    if (r->n_words == MAX_WORDS)
        return hx_fail(err, -ENOSPC, "too many words to take out");
    char *copy = strdup(word);
    if (!copy)
        return hx_fail(err, -ENOMEM, "out of memory");
    r->word[r->n_words].text = copy;
    snprintf(r->word[r->n_words].what, sizeof(r->word[0].what), "%s", what);
    r->n_words++;
    return 0;
}

static void put_placeholder(struct hx_redact *r, enum kind kind, const char *value,
                            struct hx_buf *out)
{
    int i = 0;
    while (i < r->n_values[kind] && strcasecmp(r->value[kind][i], value) != 0)
        i++;
    if (i == r->n_values[kind]) {
        char *copy = i < MAX_VALUES ? strdup(value) : NULL;
        if (!copy) {
            hx_buf_puts(out, kind_names[kind]);
            return;
        }
        r->value[kind][r->n_values[kind]++] = copy;
    }
    hx_buf_printf(out, "%s-%d", kind_names[kind], i + 1);
}

/* ---- what a token is ------------------------------------------------------------------------- */

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* hh:hh:hh:hh:hh:hh, also with -. */
static bool is_mac(const char *s, size_t n)
{
    if (n != 17)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (i % 3 == 2 ? (s[i] != ':' && s[i] != '-') : !is_hex(s[i]))
            return false;
    }
    return true;
}

static bool is_uuid(const char *s, size_t n)
{
    static const size_t dashes[] = {8, 13, 18, 23};
    if (n > 4 && strncasecmp(s, "GPU-", 4) == 0) {
        s += 4;
        n -= 4;
    }
    if (n != 36)
        return false;
    size_t d = 0;
    for (size_t i = 0; i < n; i++) {
        bool dash = d < 4 && i == dashes[d];
        if (dash ? s[i] != '-' : !is_hex(s[i]))
            return false;
        d += dash;
    }
    return true;
}

/* 32 digits: ids of machine and start. Hashes of files have 64 and stay. */
static bool is_id(const char *s, size_t n)
{
    if (is_uuid(s, n))
        return true;
    for (size_t i = 0; i < n; i++) {
        if (!is_hex(s[i]))
            return false;
    }
    return n == 32;
}

/* Bytes of an IPv4 or IPv6 address at the front of the token, a port may follow; 0: none, or one
 * that every machine has. */
static size_t ip_length(const char *s, size_t n)
{
    char text[INET6_ADDRSTRLEN];
    uint8_t bytes[16];
    size_t digits = 0;
    while (digits < n && (is_digit(s[digits]) || s[digits] == '.'))
        digits++;
    if (digits >= 7 && digits < sizeof(text) && (digits == n || s[digits] == ':')) {
        memcpy(text, s, digits);
        text[digits] = '\0';
        if (inet_pton(AF_INET, text, bytes) == 1)
            return bytes[0] == 127 || bytes[0] == 0 || bytes[0] == 255 ? 0 : digits;
    }
    if (n < 4 || n >= sizeof(text))
        return 0;
    memcpy(text, s, n);
    text[n] = '\0';
    if (inet_pton(AF_INET6, text, bytes) != 1)
        return 0;
    static const uint8_t low[15] = {0};
    return memcmp(bytes, low, 15) == 0 ? 0 : n;
}

/* Access tokens of the hub and keys of APIs, whatever file they slipped into. */
static bool is_secret(const char *s, size_t n)
{
    static const char *const prefixes[] = {"hf_", "sk-", "ghp_", "tok_"};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t p = strlen(prefixes[i]);
        if (n >= p + 12 && strncmp(s, prefixes[i], p) == 0)
            return true;
    }
    return false;
}

static bool has_digit(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (is_digit(s[i]))
            return true;
    }
    return false;
}

/* ---- walk ------------------------------------------------------------------------------------ */

static bool in_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           (c && strchr(":.-_", c));
}

static void put_token(struct hx_redact *r, const char *s, size_t n, bool serial_line,
                      struct hx_buf *out)
{
    char value[TOKEN_MAX];
    size_t ip;
    if (n >= sizeof(value) || n < 4) {
        hx_buf_append(out, s, n);
        return;
    }
    snprintf(value, sizeof(value), "%.*s", (int)n, s);
    if (is_secret(s, n)) {
        hx_buf_puts(out, "(secret)");
    } else if (is_mac(s, n)) {
        put_placeholder(r, MAC, value, out);
    } else if (is_id(s, n)) {
        put_placeholder(r, ID, value, out);
    } else if ((ip = ip_length(s, n)) > 0) {
        value[ip] = '\0';
        put_placeholder(r, IP, value, out);
        hx_buf_append(out, s + ip, n - ip);
    } else if (serial_line && n >= 6 && has_digit(s, n)) {
        put_placeholder(r, SERIAL, value, out);
    } else {
        hx_buf_append(out, s, n);
    }
}

/* Base64 of a public or private key: a long run that no token is. Behind a public key its comment
 * goes too, which names its owner. */
static size_t key_length(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && ((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') ||
                     is_digit(s[i]) || s[i] == '+' || s[i] == '/' || s[i] == '='))
        i++;
    if (i >= 40 && memcmp(s, "AAAA", 4) == 0) {
        while (i < n && s[i] != '"')
            i++;
        return i;
    }
    return i >= 70 ? i : 0;
}

static size_t word_length(const struct hx_redact *r, const char *s, size_t n, bool at_start,
                          struct hx_buf *out)
{
    for (int i = 0; i < r->n_words; i++) {
        size_t len = strlen(r->word[i].text);
        bool secret = strcmp(r->word[i].what, "secret") == 0;
        if (len > n || strncasecmp(s, r->word[i].text, len) != 0)
            continue;
        bool whole = at_start && (len == n || !in_token(s[len]) || s[len] == '.' || s[len] == ':');
        if (!secret && !whole)
            continue;
        hx_buf_printf(out, "(%s)", r->word[i].what);
        return len;
    }
    return 0;
}

static void put_line(struct hx_redact *r, const char *s, size_t n, struct hx_buf *out)
{
    bool serial_line = false;
    for (size_t i = 0; i + 6 <= n; i++)
        serial_line = serial_line || strncasecmp(s + i, "serial", 6) == 0;
    for (size_t i = 0; i < n;) {
        bool start = i == 0 || !in_token(s[i - 1]);
        size_t len = word_length(r, s + i, n - i, start, out);
        if (len > 0) {
            i += len;
            continue;
        }
        if (start && (len = key_length(s + i, n - i)) > 0) {
            hx_buf_puts(out, "(key)");
            i += len;
            continue;
        }
        if (!start || !in_token(s[i])) {
            hx_buf_putc(out, (uint8_t)s[i++]);
            continue;
        }
        len = 0;
        while (i + len < n && in_token(s[i + len]))
            len++;
        while (len > 1 &&
               (s[i + len - 1] == '.' || (s[i + len - 1] == ':' && s[i + len - 2] != ':')))
            len--;
        /* A secret may begin inside. */
        size_t whole = len;
        for (size_t k = 1; k < whole && len == whole; k++) {
            struct hx_buf none = HX_BUF_INIT(64);
            if (word_length(r, s + i + k, n - i - k, false, &none) > 0)
                len = k;
            hx_buf_done(&none);
        }
        put_token(r, s + i, len, serial_line, out);
        i += len;
    }
}

int hx_redact_text(struct hx_redact *r, const char *text, size_t len, struct hx_buf *out)
{
    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        put_line(r, text, n, out);
        if (end)
            hx_buf_putc(out, '\n');
        text += end ? n + 1 : n;
        len -= end ? n + 1 : n;
    }
    return out->failed ? -ENOMEM : 0;
}
