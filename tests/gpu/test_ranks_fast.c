/* test_ranks by the fast kernels: ranks and the whole model drift alike, the bounds are the same.
 */
#define BACKEND    "cuda"
#define WIDE_JOINS false
#include "../unit/run/test_ranks.c"
