/* Stored values that no checkpoint may hold: NaN and infinities, NaN codes, block exponents that
 * overflow. */
#ifndef HX_MODEL_VALUES_H
#define HX_MODEL_VALUES_H

#include "model/safetensors.h"
#include "model/slice.h"

/* Largest UE8M0 byte of a block: codes times it stay finite in BF16 on every back end, on the way
 * there too (the card multiplies the code's value times 2^-120 or 2^-126 by 2^(exponent - 7) or
 * 2^(exponent - 1), docs/kernels.md). */
#define HX_FP8_MAX_EXPONENT 134 /* largest value 448 x 2^7 */
#define HX_FP4_MAX_EXPONENT 128 /* 6 x 2 */

/* n elements of tensor t of the file `path`, packed as cut leaves them. format: of the weight whose
 * part t is. -EINVAL: the first that is bad, with its element, row, column and block in the whole
 * tensor, and its value. */
int hx_values_check(const char *path, const struct hx_st_tensor *t, const struct hx_cut *cut,
                    enum hx_format format, const uint8_t *data, uint64_t n,
                    struct hx_error *err) HX_MUST;

#endif
