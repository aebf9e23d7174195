/* Shared by the kinds of hx-bench. */
#ifndef HX_CLI_BENCH_H
#define HX_CLI_BENCH_H

#include <stdbool.h>
#include <stdint.h>

/* A number from min to max at the front of text; *end: behind it. */
bool hx_bench_number(const char *text, int64_t min, int64_t max, const char **end, int64_t *out);
/* Exit code for 0 or a negative errno. */
int hx_bench_exit(int r);
/* hx-bench engram ... */
int hx_bench_engram(int argc, char **argv);
/* hx-bench step ... */
int hx_bench_step(int argc, char **argv);
/* hx-bench extrapolate ... */
int hx_bench_extrapolate(int argc, char **argv);

#endif
