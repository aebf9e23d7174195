/* Detached Ed25519 signatures through libcrypto. */
#ifndef HX_BASE_ED25519_H
#define HX_BASE_ED25519_H

#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_ED25519_SIGNATURE 64 /* bytes */

/* key_path: public key, PEM. -EINVAL: the signature does not fit, or the key is none of Ed25519. */
int hx_ed25519_verify(const char *key_path, const void *data, size_t len,
                      const uint8_t signature[HX_ED25519_SIGNATURE], struct hx_error *err) HX_MUST;

#endif
