/* SHA-256 through libcrypto. */
#include "base/sha256.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <openssl/evp.h>

struct hx_sha256 {
    EVP_MD_CTX *ctx;
};

int hx_sha256_new(struct hx_sha256 **out, struct hx_error *err)
{
    struct hx_sha256 *h = calloc(1, sizeof(*h));
    if (h)
        h->ctx = EVP_MD_CTX_new();
    if (!h || !h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        hx_sha256_free(h);
        return hx_fail(err, -ENOMEM, "SHA-256 is not available");
    }
    *out = h;
    return 0;
}

int hx_sha256_update(struct hx_sha256 *h, const void *data, size_t len)
{
    return EVP_DigestUpdate(h->ctx, data, len) == 1 ? 0 : -EIO;
}

int hx_sha256_final(struct hx_sha256 *h, uint8_t out[HX_SHA256_BYTES])
{
    return EVP_DigestFinal_ex(h->ctx, out, NULL) == 1 ? 0 : -EIO;
}

void hx_sha256_free(struct hx_sha256 *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    free(h);
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

int hx_sha256_file(const char *path, char hex[HX_SHA256_HEX], uint64_t *size, struct hx_error *err)
{
    struct hx_sha256 *h = NULL;
    uint8_t *block = NULL, digest[HX_SHA256_BYTES];
    const size_t block_size = 1 << 20;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    *size = 0;
    int r = hx_sha256_new(&h, err);
    block = malloc(block_size);
    if (r == 0 && !block)
        r = hx_fail(err, -ENOMEM, "out of memory");
    while (r == 0) {
        ssize_t n = read(fd, block, block_size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            r = hx_fail_errno(err, errno, "%s: cannot read", path);
        if (n <= 0)
            break;
        hx_sha256_update(h, block, (size_t)n);
        *size += (uint64_t)n;
    }
    if (r == 0) {
        hx_sha256_final(h, digest);
        hx_sha256_to_hex(digest, hex);
    }
    hx_sha256_free(h);
    free(block);
    close(fd);
    return r;
}
