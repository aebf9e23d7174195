/* Values that no weight may have: NaN codes in F8_E4M3, 255 in F8_E8M0, infinities and NaN in BF16,
 * F16 and F32 (docs/fetch.md, "sanity"). Looks at the bytes of a file as they pass. */
#ifndef HX_FETCH_SCAN_H
#define HX_FETCH_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "backend/backend.h"
#include "fetch/lock.h"
#include "model/safetensors.h"

struct hx_scan_range {
    uint64_t begin, end; /* in the output file */
    enum hx_dtype dtype;
    char *name;
};

/* The value ranges of one output file, by ascending offset, immutable. */
struct hx_scan_table {
    struct hx_scan_range *range;
    size_t n;
};

/* From a checked safetensors header. */
int hx_scan_table_new(const struct hx_st_file *f, struct hx_scan_table **out,
                      struct hx_error *err) HX_MUST;
/* From the tensors of a cut, whose data begins at header_bytes of the output. */
int hx_scan_table_cut(const struct hx_lock_file *f, uint64_t header_bytes,
                      struct hx_scan_table **out, struct hx_error *err) HX_MUST;
void hx_scan_table_free(struct hx_scan_table *t);

/* A run of bytes in ascending order. */
struct hx_scan {
    const struct hx_scan_table *table;
    size_t at; /* range that the next byte is in, or before */
    uint64_t offset;
    uint8_t carry[4]; /* beginning of an element that is not complete */
    unsigned n_carry;
};

void hx_scan_begin(struct hx_scan *s, const struct hx_scan_table *table, uint64_t offset);
/* -EINVAL names tensor, value and place. */
int hx_scan_data(struct hx_scan *s, const uint8_t *data, size_t n, struct hx_error *err) HX_MUST;

#endif
