/* SHA-256 through libcrypto. */
#include "base/sha256.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The running state has to be saved and continued, which only the old interface can. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "base/sha256_pair.h"

#define BLOCK SHA256_CBLOCK

struct hx_sha256 {
    SHA256_CTX ctx;
};

int hx_sha256_new(struct hx_sha256 **out, struct hx_error *err)
{
    struct hx_sha256 *h = calloc(1, sizeof(*h));
    if (!h)
        return hx_fail(err, -ENOMEM, "out of memory for SHA-256");
    hx_sha256_reset(h);
    *out = h;
    return 0;
}

int hx_sha256_update(struct hx_sha256 *h, const void *data, size_t len)
{
    return SHA256_Update(&h->ctx, data, len) == 1 ? 0 : -EIO;
}

/* Bytes that went in beside libcrypto. */
static void count(struct hx_sha256 *h, size_t n)
{
    uint64_t bits = ((uint64_t)h->ctx.Nh << 32 | h->ctx.Nl) + (uint64_t)n * 8;
    h->ctx.Nl = (uint32_t)bits;
    h->ctx.Nh = (uint32_t)(bits >> 32);
}

int hx_sha256_update_pair(struct hx_sha256 *a, struct hx_sha256 *b, const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t n = len / BLOCK;
    if (a->ctx.num == 0 && b->ctx.num == 0 && n > 0 &&
        hx_sha256_blocks_pair(a->ctx.h, b->ctx.h, p, n)) {
        count(a, n * BLOCK);
        count(b, n * BLOCK);
        p += n * BLOCK;
        len -= n * BLOCK;
    }
    int r = hx_sha256_update(a, p, len);
    return r < 0 ? r : hx_sha256_update(b, p, len);
}

bool hx_sha256_copies(void)
{
    return hx_sha256_has_instructions();
}

int hx_sha256_update_copy(struct hx_sha256 *h, void *to, const void *from, size_t len)
{
    uint8_t *q = to;
    const uint8_t *p = from;
    size_t head = h->ctx.num ? BLOCK - h->ctx.num : 0, n;
    int r = 0;
    if (head > len)
        head = len;
    n = (len - head) / BLOCK;
    if (head > 0) {
        memcpy(q, p, head);
        r = hx_sha256_update(h, p, head);
    }
    p += head;
    q += head;
    len -= head;
    if (r == 0 && n > 0 && (uintptr_t)q % 16 == 0 && hx_sha256_blocks_copy(h->ctx.h, q, p, n)) {
        count(h, n * BLOCK);
        p += n * BLOCK;
        q += n * BLOCK;
        len -= n * BLOCK;
    }
    if (len > 0) {
        memcpy(q, p, len);
        r = r < 0 ? r : hx_sha256_update(h, p, len);
    }
    return r;
}

int hx_sha256_final(struct hx_sha256 *h, uint8_t out[HX_SHA256_BYTES])
{
    return SHA256_Final(out, &h->ctx) == 1 ? 0 : -EIO;
}

void hx_sha256_free(struct hx_sha256 *h)
{
    free(h);
}

void hx_sha256_reset(struct hx_sha256 *h)
{
    SHA256_Init(&h->ctx);
}

void hx_sha256_copy(struct hx_sha256 *to, const struct hx_sha256 *from)
{
    *to = *from;
}

int hx_sha256_save(const struct hx_sha256 *h, struct hx_sha256_state *out)
{
    if (h->ctx.num != 0)
        return -EINVAL;
    out->n_bytes = ((uint64_t)h->ctx.Nh << 32 | h->ctx.Nl) / 8;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++)
            out->h[4 * i + k] = (uint8_t)(h->ctx.h[i] >> (24 - 8 * k));
    return 0;
}

int hx_sha256_load(struct hx_sha256 *h, const struct hx_sha256_state *from)
{
    if (from->n_bytes % BLOCK != 0 || from->n_bytes > UINT64_MAX / 8)
        return -EINVAL;
    SHA256_Init(&h->ctx);
    h->ctx.Nl = (uint32_t)(from->n_bytes * 8);
    h->ctx.Nh = (uint32_t)(from->n_bytes * 8 >> 32);
    for (int i = 0; i < 8; i++) {
        const uint8_t *p = from->h + 4 * i;
        h->ctx.h[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    return 0;
}

int hx_sha256_data(const void *data, size_t len, uint8_t out[HX_SHA256_BYTES])
{
    return EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

void hx_sha256_to_hex(const uint8_t digest[HX_SHA256_BYTES], char out[HX_SHA256_HEX])
{
    for (int i = 0; i < HX_SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static int hash_all(struct hx_sha256 *h, int fd, const char *path, uint64_t *n_bytes,
                    struct hx_error *err)
{
    const size_t block_size = 1 << 20;
    uint8_t *block = malloc(block_size);
    int r = block ? 0 : hx_fail(err, -ENOMEM, "%s: out of memory", path);
    while (r == 0) {
        ssize_t n = read(fd, block, block_size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            r = hx_fail_errno(err, errno, "%s: cannot read", path);
        else if (n > 0 && hx_sha256_update(h, block, (size_t)n) < 0)
            r = hx_fail(err, -EIO, "%s: cannot hash", path);
        if (n <= 0)
            break;
        *n_bytes += (uint64_t)n;
    }
    free(block);
    return r;
}

int hx_sha256_file(const char *path, char hex[HX_SHA256_HEX], uint64_t *size, struct hx_error *err)
{
    /* Not blocking, so that a pipe in the file's place is refused instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    struct hx_sha256 *h = NULL;
    uint8_t digest[HX_SHA256_BYTES];
    uint64_t n_bytes = 0;
    struct stat st;
    int r = 0;
    if (fstat(fd, &st) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        r = hx_fail(err, -EINVAL, "%s: is not a regular file", path);
    if (r == 0)
        r = hx_sha256_new(&h, err);
    if (r == 0)
        r = hash_all(h, fd, path, &n_bytes, err);
    if (r == 0 && hx_sha256_final(h, digest) < 0)
        r = hx_fail(err, -EIO, "%s: cannot hash", path);
    if (r == 0) {
        hx_sha256_to_hex(digest, hex);
        *size = n_bytes;
    }
    hx_sha256_free(h);
    close(fd);
    return r;
}
