/* Unicode data of the token map (generated: gen_unicode.py). Hangul syllables are not in it. */
#ifndef HX_ENGRAM_FOLD_TABLE_H
#define HX_ENGRAM_FOLD_TABLE_H

#include <stdint.h>

/* Characters first..last, ascending and disjoint; a character in no range stays as it is.
 * n = 0: dropped; n = 1: becomes value + (c - first); n > 1: becomes the n entries of hx_fold_pool
 * from value + n * (c - first). */
struct hx_fold_range {
    uint32_t first, last;
    uint32_t n, value;
};
extern const int hx_fold_n_ranges;
extern const struct hx_fold_range hx_fold_ranges[];
extern const uint32_t hx_fold_pool[];

#endif
