/* Data of an all-reduce test on the host: partials, and their sum by the rule of the engine's joins
 * (bf16 partials added in float32 in rank order, rounded once; int32 wraps). */
#ifndef HX_PROBE_REDUCE_H
#define HX_PROBE_REDUCE_H

#include "probe/probe.h"

struct hx_reduce_data {
    uint8_t *partial[HX_PROBE_RANKS]; /* [HX_PROBE_LARGE_BYTES] */
    uint8_t *sum;
};
int hx_reduce_data_init(struct hx_reduce_data *d, struct hx_error *err) HX_MUST;
void hx_reduce_data_done(struct hx_reduce_data *d);
void hx_reduce_fill(struct hx_reduce_data *d, int n_ranks, size_t bytes, bool bf16, uint64_t seed);
/* GB/s on the busiest link: bytes x 2 (n - 1) / n / seconds. */
double hx_reduce_busbw(size_t bytes, int n_ranks, double seconds);

#endif
