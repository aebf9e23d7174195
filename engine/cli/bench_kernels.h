/* hx-bench kernels: single operations at the released shapes on one card. */
#ifndef HX_CLI_BENCH_KERNELS_H
#define HX_CLI_BENCH_KERNELS_H

/* argv[0] is "kernels"; returns an exit status of sysexits.h. */
int hx_bench_kernels(int argc, char **argv);

#endif
