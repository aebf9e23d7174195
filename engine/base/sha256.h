/* SHA-256 through libcrypto. */
#ifndef HX_BASE_SHA256_H
#define HX_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_SHA256_BYTES 32
#define HX_SHA256_HEX   65

struct hx_sha256; /* running hash */
int hx_sha256_new(struct hx_sha256 **out, struct hx_error *err) HX_MUST;
int hx_sha256_update(struct hx_sha256 *h, const void *data, size_t len);
int hx_sha256_final(struct hx_sha256 *h, uint8_t out[HX_SHA256_BYTES]);
void hx_sha256_free(struct hx_sha256 *h);
void hx_sha256_reset(struct hx_sha256 *h); /* as new */
void hx_sha256_copy(struct hx_sha256 *to, const struct hx_sha256 *from);
/* The same bytes into two running hashes; cheaper than two updates. */
int hx_sha256_update_pair(struct hx_sha256 *a, struct hx_sha256 *b, const void *data, size_t len);
/* Copies and hashes in one go. Where copies() says so and `to` has its place in a block of 64 bytes
 * as the hash has, that costs no more than the hash, and `to` is not left in the caches. */
int hx_sha256_update_copy(struct hx_sha256 *h, void *to, const void *from, size_t len);
bool hx_sha256_copies(void);

/* A running hash at rest, to go on later in another process. */
struct hx_sha256_state {
    uint64_t n_bytes; /* hashed so far, a multiple of 64 */
    uint8_t h[HX_SHA256_BYTES];
};
int hx_sha256_save(const struct hx_sha256 *h, struct hx_sha256_state *out);  /* -EINVAL inside a
                                                                                block of 64 bytes */
int hx_sha256_load(struct hx_sha256 *h, const struct hx_sha256_state *from); /* -EINVAL as above */

int hx_sha256_data(const void *data, size_t len, uint8_t out[HX_SHA256_BYTES]);
void hx_sha256_to_hex(const uint8_t digest[HX_SHA256_BYTES], char out[HX_SHA256_HEX]);
/* Hash and size of a file. */
int hx_sha256_file(const char *path, char hex[HX_SHA256_HEX], uint64_t *size,
                   struct hx_error *err) HX_MUST;

#endif
