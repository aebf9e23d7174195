/* Content of a buffer against what should have arrived. */
#ifndef HX_PROBE_CONTENT_H
#define HX_PROBE_CONTENT_H

#include "probe/cuda.h"

#define HX_CONTENT_GUARD 4096 /* poisoned bytes behind a target */
#define HX_CONTENT_MAX   ((size_t)256 << 20)

/* Sizes of this run: all of them, or three for a quick one. Returns how many. */
int hx_content_sizes(const struct hx_probe_options *o, uint64_t sizes[HX_PROBE_SIZES]);

/* Counts what is wrong with host [bytes + HX_CONTENT_GUARD]: bad bytes in all, and how many of them
 * still hold the poison or are zero. */
struct hx_content_verdict {
    uint64_t bytes, bad, untouched, beyond; /* beyond: guard bytes that were overwritten */
};
void hx_content_compare(const uint8_t *host, size_t bytes, uint64_t seed,
                        struct hx_content_verdict *v);
/* Adds a pair's verdict to a test: corrupt, or zero if nothing at all arrived in any bad copy. */
void hx_content_note(struct hx_probe_content *c, const struct hx_content_verdict *v, int from,
                     int to);

#endif
