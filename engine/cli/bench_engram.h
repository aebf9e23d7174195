/* hx-bench engram: options (bench_engram.c) and measurements (bench_engram_run.c,
 * bench_engram_bare.c). */
#ifndef HX_CLI_BENCH_ENGRAM_H
#define HX_CLI_BENCH_ENGRAM_H

#include "engram/stream.h"

#include <hx/tokenizer.h>

#define HX_BENCH_LIST 16

enum hx_bench_kind {
    HX_BENCH_ROWS,
    HX_BENCH_BARE,
    HX_BENCH_BATCH,
    HX_BENCH_DECODE,
    HX_BENCH_PREFILL,
    HX_BENCH_MIXED,
    HX_BENCH_TEXT,
    HX_BENCH_KINDS
};
extern const char *const hx_bench_kind_names[HX_BENCH_KINDS];

struct hx_bench_engram {
    const char *dir, *file, *text;
    bool kind[HX_BENCH_KINDS], json, verify;
    int64_t make, depth[HX_BENCH_LIST], cache[HX_BENCH_LIST], seconds, repeat, users, tokens,
        layer_us, layers, chunk_ms;
    int n_depths, n_caches;
    struct hx_engram_stream_options so; /* tables, level; the rest as a measurement needs */
    char *path[HX_ENGRAM_MAX_TABLES];
    struct hx_engram_hash *hash; /* of a model folder */
    int32_t *map;
    struct hx_ids ids; /* of the text */
};

/* The row that --make wrote. */
void hx_bench_made_row(int64_t row, uint8_t out[256]);

/* Of a queue kept full: microseconds; core-seconds for a million rows, and those of user space. */
struct hx_bench_rate {
    double rows_per_s, p50, p95, p99, p999, cpu, user;
};
/* What the kernel alone takes: the same reads without the streamer. */
int hx_bench_engram_bare(const struct hx_bench_engram *b, int depth, struct hx_bench_rate *out,
                         struct hx_error *err) HX_MUST;
int hx_bench_engram_run(struct hx_bench_engram *b, struct hx_error *err) HX_MUST;

#endif
