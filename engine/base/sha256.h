/* SHA-256 through libcrypto. */
#ifndef HX_BASE_SHA256_H
#define HX_BASE_SHA256_H

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

int hx_sha256_data(const void *data, size_t len, uint8_t out[HX_SHA256_BYTES]);
void hx_sha256_to_hex(const uint8_t digest[HX_SHA256_BYTES], char out[HX_SHA256_HEX]);
/* Hash and size of a file. */
int hx_sha256_file(const char *path, char hex[HX_SHA256_HEX], uint64_t *size,
                   struct hx_error *err) HX_MUST;

#endif
