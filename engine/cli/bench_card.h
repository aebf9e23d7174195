/* What the parts of hx-bench kernels share: a card, memory on it, timing of recorded work. */
#ifndef HX_CLI_BENCH_CARD_H
#define HX_CLI_BENCH_CARD_H

#include "backend/kernels.h"

struct hx_bench_card {
    const struct hx_backend *be;
    struct hx_device *dev;
    double read_rate; /* bytes a second */
    int rows[8], n_rows;
    const char *only; /* part of a name, or NULL */
    bool json, local; /* local: experts of a token from a pool of 42 */
};

/* Median seconds of one replay. */
int hx_bench_time(struct hx_bench_card *b, struct hx_graph *g, double *out, struct hx_error *err);

/* Layers of EXL3 and FP4 experts of the released shapes at b->rows tokens. */
int hx_bench_experts(struct hx_bench_card *b, struct hx_error *err);

#endif
