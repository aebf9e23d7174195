/* SHA-256 with the processor's own instructions, for base/sha256.c. */
#ifndef HX_BASE_SHA256_PAIR_H
#define HX_BASE_SHA256_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* false: this machine has no instructions for it and nothing was done. Blocks of 64 bytes. */
bool hx_sha256_blocks_pair(uint32_t a[8], uint32_t b[8], const uint8_t *data, size_t n_blocks);
/* Hashes blocks on their way to `to`, which begins on a multiple of 16 bytes. It is written past
 * the caches, so it is not for whoever reads it next. false as above. */
bool hx_sha256_blocks_copy(uint32_t s[8], uint8_t *to, const uint8_t *from, size_t n_blocks);
bool hx_sha256_has_instructions(void);

#endif
