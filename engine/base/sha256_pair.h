/* Two SHA-256 states over the same blocks, for base/sha256.c. */
#ifndef HX_BASE_SHA256_PAIR_H
#define HX_BASE_SHA256_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* false: this machine has no instructions for it and nothing was done. Blocks of 64 bytes. */
bool hx_sha256_blocks_pair(uint32_t a[8], uint32_t b[8], const uint8_t *data, size_t n_blocks);

#endif
