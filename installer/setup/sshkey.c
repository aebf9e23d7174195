#include "setup/sshkey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/utf8.h"

#define MIN_RSA_BITS 3072
#define MAX_RSA_BITS 16384

/* The blob's fields behind the type name, RFC 4253 6.6, RFC 5656 3.1, RFC 8709 4:
 *   s  string of a fixed length (arg)   c  curve name   p  point on it   m  mpint (e)
 *   n  mpint whose bits count            a  any text (the application of a security key) */
static const struct {
    const char *type, *name, *fields;
    int bits; /* 0: from the blob */
    const char *curve;
} kinds[] = {
    {"ssh-ed25519", "Ed25519", "s", 256, NULL},
    {"ecdsa-sha2-nistp256", "ECDSA", "cp", 256, "nistp256"},
    {"ecdsa-sha2-nistp384", "ECDSA", "cp", 384, "nistp384"},
    {"ecdsa-sha2-nistp521", "ECDSA", "cp", 521, "nistp521"},
    {"ssh-rsa", "RSA", "mn", 0, NULL},
    {"sk-ssh-ed25519@openssh.com", "Ed25519 security key", "sa", 256, NULL},
    {"sk-ecdsa-sha2-nistp256@openssh.com", "ECDSA security key", "cpa", 256, "nistp256"},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Strict: whole groups, padding only at the end, unused bits zero. Returns bytes or -1. */
static long from_base64(const char *s, size_t n, uint8_t *out)
{
    long used = 0;
    if (n == 0 || n % 4 != 0)
        return -1;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = 0;
        int pad = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *at = s[i + k] ? strchr(alphabet, s[i + k]) : NULL;
            if (s[i + k] == '=' && i + 4 == n && k >= 2)
                pad++;
            else if (!at || pad)
                return -1;
            v = v << 6 | (uint32_t)(at ? at - alphabet : 0);
        }
        if ((pad == 1 && (v & 0xFF)) || (pad == 2 && (v & 0xFFFF)))
            return -1;
        for (int k = 0; k < 3 - pad; k++)
            out[used++] = (uint8_t)(v >> (16 - 8 * k));
    }
    return used;
}

static void to_base64(const uint8_t *in, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)in[i] << 16;
        v |= i + 1 < n ? (uint32_t)in[i + 1] << 8 : 0;
        v |= i + 2 < n ? in[i + 2] : 0;
        size_t chars = n - i >= 3 ? 4 : n - i + 1; /* OpenSSH prints no padding */
        for (size_t k = 0; k < chars; k++)
            out[used++] = alphabet[v >> (18 - 6 * k) & 63];
    }
    out[used] = '\0';
}

struct blob {
    const uint8_t *at;
    size_t left;
};

static bool take(struct blob *b, const uint8_t **out, size_t *n)
{
    if (b->left < 4)
        return false;
    size_t len = (size_t)b->at[0] << 24 | (size_t)b->at[1] << 16 | (size_t)b->at[2] << 8 | b->at[3];
    if (len > b->left - 4)
        return false;
    *out = b->at + 4;
    *n = len;
    b->at += 4 + len;
    b->left -= 4 + len;
    return true;
}

/* Bits of a positive number in its shortest form; 0 if it is none. */
static int mpint_bits(const uint8_t *s, size_t n)
{
    if (n > 0 && s[0] == 0) {
        if (n < 2 || !(s[1] & 0x80))
            return 0;
        s++;
        n--;
    } else if (n == 0 || s[0] & 0x80) {
        return 0;
    }
    if (n > MAX_RSA_BITS / 8)
        return MAX_RSA_BITS + 1;
    int bits = (int)n * 8;
    for (int top = 0x80; top && !(s[0] & top); top >>= 1)
        bits--;
    return bits;
}

static bool is_blob(struct blob b, size_t kind, int *bits)
{
    const uint8_t *s;
    size_t n;
    if (!take(&b, &s, &n) || n != strlen(kinds[kind].type) || memcmp(s, kinds[kind].type, n) != 0)
        return false;
    *bits = kinds[kind].bits;
    for (const char *f = kinds[kind].fields; *f; f++) {
        if (!take(&b, &s, &n))
            return false;
        size_t point = 1 + 2 * (((size_t)kinds[kind].bits + 7) / 8);
        bool ok = true;
        switch (*f) {
        case 's': ok = n == 32; break;
        case 'c':
            ok = n == strlen(kinds[kind].curve) && memcmp(s, kinds[kind].curve, n) == 0;
            break;
        case 'p': ok = n == point && s[0] == 4; break;
        case 'm': ok = mpint_bits(s, n) > 1 && (s[n - 1] & 1); break;
        case 'n':
            *bits = mpint_bits(s, n);
            ok = *bits > 0 && (s[n - 1] & 1);
            break;
        case 'a': ok = n > 0 && n < 256; break;
        default: break;
        }
        if (!ok)
            return false;
    }
    return b.left == 0;
}

static bool begins(const char *line, size_t len, const char *word)
{
    size_t n = strlen(word);
    return len >= n && memcmp(line, word, n) == 0;
}

static int refuse_kind(const char *line, size_t len, struct hx_error *err)
{
    if (begins(line, len, "-----BEGIN") || memmem(line, len, "PRIVATE KEY", 11))
        return hx_fail(err, -EINVAL,
                       "this is a private key, which must never leave your computer; give the "
                       "public one, the file whose name ends in .pub");
    if (begins(line, len, "---- BEGIN SSH2") || begins(line, len, "PuTTY-User-Key-File"))
        return hx_fail(err, -EINVAL,
                       "this key is in another program's form; export it in OpenSSH form, one "
                       "line that begins with its type");
    if (begins(line, len, "ssh-dss"))
        return hx_fail(err, -EINVAL, "DSA keys are too weak; make one with ssh-keygen -t ed25519");
    if (memmem(line, len, "-cert-v0", 8))
        return hx_fail(err, -EINVAL, "this is a certificate; give the public key itself");
    if (memchr(line, '\n', len))
        return hx_fail(err, -EINVAL, "more than one line; give one key at a time");
    for (size_t i = 0; i < N_KINDS; i++) {
        const char *at = memmem(line, len, kinds[i].type, strlen(kinds[i].type));
        if (at && at > line)
            return hx_fail(err, -EINVAL,
                           "options in front of a key are not supported; begin with '%s'",
                           kinds[i].type);
    }
    return hx_fail(err, -EINVAL,
                   "no SSH public key; expected a line such as 'ssh-ed25519 AAAA... name'");
}

/* The comment is shown and kept: valid text without control characters, cut to its field. */
static void take_comment(const char *s, size_t n, char out[HX_SSH_COMMENT])
{
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        int step = hx_utf8_next((const uint8_t *)s + i, n - i);
        size_t len = step > 0 ? (size_t)step : 1;
        if (used + len >= HX_SSH_COMMENT)
            break;
        bool plain = step > 0 && (unsigned char)s[i] >= 0x20 && s[i] != 0x7F && s[i] != ';';
        if (step > 1 && (unsigned char)s[i] == 0xC2 && (unsigned char)s[i + 1] < 0xA0)
            plain = false;
        if (plain)
            memcpy(out + used, s + i, len);
        else
            out[used] = '?';
        used += plain ? len : 1;
        i += len;
    }
    while (used > 0 && out[used - 1] == ' ')
        used--;
    out[used] = '\0';
}

static int judge(const uint8_t *blob, size_t n, size_t kind, struct hx_ssh_key *key,
                 struct hx_error *err)
{
    uint8_t digest[HX_SHA256_BYTES];
    char text[48];
    if (!is_blob((struct blob){blob, n}, kind, &key->bits))
        return hx_fail(err, -EINVAL,
                       "the key is damaged: its data does not fit '%s'; copy it again",
                       kinds[kind].type);
    if (strcmp(key->name, "RSA") == 0 && key->bits < MIN_RSA_BITS)
        return hx_fail(err, -EINVAL,
                       "an RSA key of %d bits is too weak, at least %d; or use ssh-keygen -t "
                       "ed25519",
                       key->bits, MIN_RSA_BITS);
    if (strcmp(key->name, "RSA") == 0 && key->bits > MAX_RSA_BITS)
        return hx_fail(err, -EINVAL, "an RSA key of more than %d bits is not supported",
                       MAX_RSA_BITS);
    int r = hx_sha256_data(blob, n, digest);
    if (r < 0)
        return hx_fail(err, r, "out of memory");
    to_base64(digest, sizeof(digest), text);
    snprintf(key->fingerprint, sizeof(key->fingerprint), "SHA256:%s", text);
    return 0;
}

int hx_ssh_key_parse(const char *line, size_t len, struct hx_ssh_key *out, struct hx_error *err)
{
    struct hx_ssh_key key = {0};
    while (len > 0 && strchr(" \t\r\n", line[len - 1]) && line[len - 1])
        len--;
    while (len > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        len--;
    }
    if (len > HX_SSH_LINE_MAX)
        return hx_fail(err, -EINVAL, "%zu characters are too many for a key, at most %d", len,
                       HX_SSH_LINE_MAX);
    if (len == 0)
        return hx_fail(err, -EINVAL, "no key; expected a line such as 'ssh-ed25519 AAAA... name'");
    if (memchr(line, '\n', len) || memchr(line, '\0', len))
        return refuse_kind(line, len, err);
    const char *space = memchr(line, ' ', len);
    size_t n_type = space ? (size_t)(space - line) : len, kind = 0;
    while (kind < N_KINDS &&
           (strlen(kinds[kind].type) != n_type || memcmp(line, kinds[kind].type, n_type) != 0))
        kind++;
    if (kind == N_KINDS)
        return refuse_kind(line, len, err);
    const char *data = line + n_type, *end = line + len;
    while (data < end && *data == ' ')
        data++;
    const char *stop = data < end ? memchr(data, ' ', (size_t)(end - data)) : NULL;
    size_t n_data = (size_t)((stop ? stop : end) - data);

    uint8_t *blob = malloc(n_data / 4 * 3 + 4);
    key.base64 = strndup(data, n_data);
    key.name = kinds[kind].name;
    snprintf(key.type, sizeof(key.type), "%s", kinds[kind].type);
    int r = blob && key.base64 ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    long n_blob = r < 0 ? -1 : from_base64(data, n_data, blob);
    if (r == 0 && n_blob < 0)
        r = hx_fail(err, -EINVAL, "the key is cut off or damaged; copy the whole line again");
    if (r == 0)
        r = judge(blob, (size_t)n_blob, kind, &key, err);
    if (r == 0 && stop)
        take_comment(stop + 1, (size_t)(end - stop - 1), key.comment);
    free(blob);
    if (r < 0)
        hx_ssh_key_done(&key);
    else
        *out = key;
    return r;
}

void hx_ssh_key_done(struct hx_ssh_key *key)
{
    if (!key)
        return;
    free(key->base64);
    *key = (struct hx_ssh_key){0};
}
