/* A saved log of NVIDIA's p2pBandwidthLatencyTest, judged by rates alone. */
#ifndef HX_P2P_BENCH_LOG_H
#define HX_P2P_BENCH_LOG_H

#include <stddef.h>

#include <hx/error.h>

#define HX_BENCH_CARDS 16

struct hx_bench_log {
    int n;                                                                          /* cards */
    double off[HX_BENCH_CARDS][HX_BENCH_CARDS], on[HX_BENCH_CARDS][HX_BENCH_CARDS]; /* GB/s */
    double min_on;        /* slowest pair with P2P */
    double ratio_on_off;  /* worst pair: with P2P over without */
    double latency_on_us; /* slowest pair; perfect even where P2P is broken */
    const char *verdict;  /* fast, or slow: below 0.7 of the rate without P2P */
};

/* -EINVAL if one of the two one-way matrices is missing or broken. */
int hx_bench_log_parse(const char *text, size_t len, struct hx_bench_log *out,
                       struct hx_error *err) HX_MUST;

#endif
