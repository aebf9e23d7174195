/* Two and four ranks of a model as threads on one card, each with its own device: the cut against
 * the whole (spec performance.md 4.2, S3), by the plain kernels. Reads tests/vectors/model
 * (make gpu-kit puts it there). */
#define BACKEND    "cuda-exact"
#define WIDE_JOINS false /* outputs of the experts are BF16 there */
#include "../unit/run/test_ranks.c"
