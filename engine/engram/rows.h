/* Where a row lies in its file, and whether its bytes can be a row at all. */
#ifndef HX_ENGRAM_ROWS_H
#define HX_ENGRAM_ROWS_H

#include "engram/engram.h"

#define HX_ENGRAM_PAGE 4096

/* The aligned window of a file that holds some bytes. */
struct hx_engram_window {
    uint64_t offset;
    uint32_t len, skip; /* bytes to read; of those before the wanted ones */
};
/* align: power of two; 1: the bytes themselves. */
struct hx_engram_window hx_engram_window(uint64_t offset, uint32_t bytes, uint32_t align);
/* Bytes of the largest window. */
uint32_t hx_engram_window_max(uint32_t bytes, uint32_t align);

uint64_t hx_engram_code_offset(const struct hx_engram_table *t, int64_t row);
uint64_t hx_engram_scale_offset(const struct hx_engram_table *t, int64_t row);

/* offset + n * width within size, without overflow. */
bool hx_engram_fits(uint64_t offset, int64_t n, int width, uint64_t size);
/* Positive sizes, and codes and scales within a file of that size. -EINVAL names the file. */
int hx_engram_check_table(const struct hx_engram_table *t, uint64_t file_size,
                          struct hx_error *err) HX_MUST;

/* Largest E4M3 code (sign aside) that each scale byte allows: a value is code * 2^(scale - 127),
 * and no table has a NaN code, a scale of 0 (also what a hole in a file reads as) or 255, or a
 * value beyond max_abs. */
struct hx_engram_plausible {
    int16_t limit[256]; /* -1: no row has this scale */
};
/* max_abs 0: any finite value. */
void hx_engram_plausible_init(struct hx_engram_plausible *p, double max_abs);
/* NULL, or what is wrong: "NaN code", "impossible scale", "value out of range". */
const char *hx_engram_implausible(const struct hx_engram_plausible *p,
                                  const struct hx_engram_table *t, const uint8_t *codes,
                                  const uint8_t *scales);

#endif
