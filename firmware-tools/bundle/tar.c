/* Tar archives: ustar, with GNU long names and the path and size records of pax. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bundle/source.h"
#include "bundle/source_body.h"

#define BLOCK          512
#define PAX_MAX        (64u << 10) /* bytes of one extended header */
#define SIZE_MAX_ENTRY (1ull << 40)

struct tar {
    hx_stream_read read;
    void *stream;
    const char *name; /* of the archive, for messages */
    uint64_t at;      /* bytes read so far */
};

struct tar_body {
    struct hx_entry_body base;
    struct tar *tar;
    uint64_t left;
};

/* Exactly len bytes; *got less only at the end of the stream. */
static int read_full(struct tar *t, void *buf, size_t len, size_t *got, struct hx_error *err)
{
    *got = 0;
    while (*got < len) {
        size_t n = 0;
        int r = t->read(t->stream, (char *)buf + *got, len - *got, &n, err);
        if (r < 0)
            return r;
        if (n == 0)
            break;
        *got += n;
        t->at += n;
    }
    return 0;
}

static int early_end(const struct tar *t, struct hx_error *err)
{
    return hx_fail(err, -EINVAL, "%s: the archive ends early, after %llu bytes (truncated?)",
                   t->name, (unsigned long long)t->at);
}

static int read_body(struct hx_entry_body *body, void *buf, size_t len, size_t *n,
                     struct hx_error *err)
{
    struct tar_body *b = (struct tar_body *)body;
    if (len > b->left)
        len = (size_t)b->left;
    int r = read_full(b->tar, buf, len, n, err);
    if (r == 0 && *n < len)
        r = early_end(b->tar, err);
    b->left -= *n;
    return r;
}

static int skip(struct tar *t, uint64_t n, struct hx_error *err)
{
    char buf[16384];
    while (n) {
        size_t want = n < sizeof(buf) ? (size_t)n : sizeof(buf), got;
        int r = read_full(t, buf, want, &got, err);
        if (r < 0)
            return r;
        if (got < want)
            return early_end(t, err);
        n -= got;
    }
    return 0;
}

/* Octal digits with blanks and NULs around, or the GNU base-256 form. */
static bool read_number(const unsigned char *f, size_t len, uint64_t *out)
{
    uint64_t v = 0;
    if (f[0] == 0x80) {
        for (size_t i = 1; i < len; i++) {
            if (v > SIZE_MAX_ENTRY)
                return false;
            v = v << 8 | f[i];
        }
        *out = v;
        return v <= SIZE_MAX_ENTRY;
    }
    size_t i = 0;
    while (i < len && f[i] == ' ')
        i++;
    for (; i < len && f[i] >= '0' && f[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(f[i] - '0'); /* at most 12 digits: 36 bits */
    for (; i < len; i++)
        if (f[i] != ' ' && f[i] != '\0')
            return false;
    *out = v;
    return v <= SIZE_MAX_ENTRY;
}

static bool sum_fits(const unsigned char *h)
{
    uint64_t want, sum = 0;
    if (!read_number(h + 148, 8, &want))
        return false;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : h[i];
    return sum == want;
}

struct next_entry { /* what extended headers say about the entry that follows */
    char path[HX_SOURCE_NAME_MAX];
    bool has_path, has_size, sparse;
    uint64_t size;
};

/* Records "LEN key=value\n". */
static bool read_pax(const char *s, size_t len, struct next_entry *next)
{
    while (len) {
        size_t n = 0, digits = 0;
        while (digits < len && digits < 6 && s[digits] >= '0' && s[digits] <= '9')
            n = n * 10 + (size_t)(s[digits++] - '0');
        if (digits == 0 || digits >= len || s[digits] != ' ' || n > len || n < digits + 3 ||
            s[n - 1] != '\n')
            return false;
        const char *key = s + digits + 1, *end = s + n - 1;
        const char *eq = memchr(key, '=', (size_t)(end - key));
        if (!eq)
            return false;
        size_t value = (size_t)(end - eq - 1), key_len = (size_t)(eq - key);
        if (key_len == 4 && memcmp(key, "path", 4) == 0) {
            if (value >= sizeof(next->path) || memchr(eq + 1, '\0', value))
                return false;
            memcpy(next->path, eq + 1, value);
            next->path[value] = '\0';
            next->has_path = true;
        } else if (key_len == 4 && memcmp(key, "size", 4) == 0) {
            next->size = 0;
            for (const char *p = eq + 1; p < end; p++) {
                if (*p < '0' || *p > '9' || next->size > SIZE_MAX_ENTRY / 10)
                    return false;
                next->size = next->size * 10 + (uint64_t)(*p - '0');
            }
            next->has_size = true;
        } else if (key_len >= 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
            next->sparse = true;
        }
        s += n;
        len -= n;
    }
    return true;
}

static int read_extended(struct tar *t, char type, uint64_t size, struct next_entry *next,
                         struct hx_error *err)
{
    size_t got;
    if (size > PAX_MAX)
        return hx_fail(err, -EINVAL, "%s: an extended header of %llu bytes, at most %u", t->name,
                       (unsigned long long)size, PAX_MAX);
    char *text = malloc((size_t)size + 1);
    if (!text)
        return hx_fail(err, -ENOMEM, "%s: out of memory", t->name);
    int r = read_full(t, text, (size_t)size, &got, err);
    if (r == 0 && got < size)
        r = early_end(t, err);
    if (r == 0 && type == 'L') {
        size_t len = strnlen(text, (size_t)size);
        if (len >= sizeof(next->path)) {
            r = hx_fail(err, -EINVAL, "%s: a name is longer than %zu bytes", t->name,
                        sizeof(next->path) - 1);
        } else {
            memcpy(next->path, text, len);
            next->path[len] = '\0';
            next->has_path = true;
        }
    } else if (r == 0 && type == 'x' && !read_pax(text, (size_t)size, next)) {
        r = hx_fail(err, -EINVAL, "%s: damaged extended header at byte %llu", t->name,
                    (unsigned long long)t->at);
    }
    free(text);
    if (r == 0)
        r = skip(t, (BLOCK - size % BLOCK) % BLOCK, err);
    return r;
}

static enum hx_entry_kind kind_of(char type, bool sparse)
{
    if (sparse)
        return HX_ENTRY_OTHER;
    switch (type) {
    case '\0':
    case '0':
    case '7': return HX_ENTRY_FILE;
    case '1':
    case '2': return HX_ENTRY_LINK;
    case '5': return HX_ENTRY_FOLDER;
    default: return HX_ENTRY_OTHER;
    }
}

static void name_of(const unsigned char *h, char out[HX_SOURCE_NAME_MAX])
{
    size_t len = strnlen((const char *)h, 100), at = 0;
    if (memcmp(h + 257, "ustar", 5) == 0 && h[262] == '\0' && h[345]) {
        at = strnlen((const char *)h + 345, 155);
        memcpy(out, h + 345, at);
        out[at++] = '/';
    }
    memcpy(out + at, h, len);
    out[at + len] = '\0';
}

static int visit(struct tar *t, const unsigned char *h, const struct next_entry *next,
                 hx_entry_fn fn, void *ctx, struct hx_error *err)
{
    char own[HX_SOURCE_NAME_MAX];
    const char *path = next->path;
    uint64_t size;
    if (!next->has_path) {
        name_of(h, own);
        path = own;
    }
    if (!read_number(h + 124, 12, &size))
        return hx_fail(err, -EINVAL, "%s: damaged size of an entry at byte %llu", t->name,
                       (unsigned long long)t->at);
    if (next->has_size)
        size = next->size;
    enum hx_entry_kind kind = kind_of((char)h[156], next->sparse);
    while (path[0] == '.' && path[1] == '/')
        for (path += 2; *path == '/';)
            path++;
    size_t len = strlen(path);
    char clean[HX_SOURCE_NAME_MAX];
    memcpy(clean, path, len + 1);
    if (len > 1 && clean[len - 1] == '/') { /* older archives mark folders so */
        clean[len - 1] = '\0';
        if (kind == HX_ENTRY_FILE)
            kind = HX_ENTRY_FOLDER;
    }
    if (kind == HX_ENTRY_LINK || kind == HX_ENTRY_FOLDER)
        size = 0; /* no content follows, whatever the field says */
    struct tar_body body = {{read_body}, t, size};
    struct hx_entry entry = {clean, kind, kind == HX_ENTRY_FILE ? size : 0, &body.base};
    int r = 0;
    if (strcmp(clean, ".") != 0 && clean[0])
        r = fn(ctx, &entry, err);
    if (r == 0)
        r = skip(t, body.left, err);
    if (r == 0)
        r = skip(t, (BLOCK - size % BLOCK) % BLOCK, err);
    return r;
}

int hx_tar_walk(hx_stream_read read, void *stream, const char *name, hx_entry_fn fn, void *ctx,
                struct hx_error *err)
{
    struct tar t = {read, stream, name, 0};
    struct next_entry next = {.has_path = false};
    size_t n_entries = 0, n_headers = 0;
    for (;;) {
        unsigned char h[BLOCK];
        static const unsigned char zero[BLOCK];
        size_t got;
        int r = read_full(&t, h, BLOCK, &got, err);
        if (r < 0)
            return r;
        if (got == 0 && n_headers == 0)
            return hx_fail(err, -EINVAL, "%s: is empty", name);
        if (got < BLOCK)
            return early_end(&t, err);
        if (memcmp(h, zero, BLOCK) == 0)
            return 0;
        if (!sum_fits(h))
            return hx_fail(err, -EINVAL,
                           n_headers ? "%s: damaged header at byte %llu"
                                     : "%s: is not a tar archive (at byte %llu)",
                           name, (unsigned long long)(t.at - BLOCK));
        if (++n_headers > 3 * HX_SOURCE_ENTRIES_MAX)
            return hx_fail(err, -EINVAL, "%s: too many headers", name);
        char type = (char)h[156];
        if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
            uint64_t size;
            if (!read_number(h + 124, 12, &size))
                return hx_fail(err, -EINVAL, "%s: damaged size of a header at byte %llu", name,
                               (unsigned long long)t.at);
            r = read_extended(&t, type, size, &next, err);
        } else {
            if (++n_entries > HX_SOURCE_ENTRIES_MAX)
                return hx_fail(err, -EINVAL, "%s: more than %d entries", name,
                               HX_SOURCE_ENTRIES_MAX);
            r = visit(&t, h, &next, fn, ctx, err);
            next = (struct next_entry){.has_path = false};
        }
        if (r < 0)
            return r;
    }
}
