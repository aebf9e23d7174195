/* Histograms of the engine's statistics. */
#include <hx/engine.h>

const double hx_histogram_bounds_seconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                              0.5,   1,     2,     5,    10,   20,   30,  60,
                                              120,   300,   600,   1200, 2400, 3600};
const int hx_histogram_n_seconds =
    sizeof(hx_histogram_bounds_seconds) / sizeof(hx_histogram_bounds_seconds[0]);

const double hx_histogram_bounds_tokens[] = {1,     2,     4,     8,      16,     32,     64,
                                             128,   256,   512,   1024,   2048,   4096,   8192,
                                             16384, 32768, 65536, 131072, 262144, 524288, 1048576};
const int hx_histogram_n_tokens =
    sizeof(hx_histogram_bounds_tokens) / sizeof(hx_histogram_bounds_tokens[0]);

void hx_histogram_add(struct hx_histogram *h, const double *bounds, int n_bounds, double v)
{
    int i = 0;
    while (i < n_bounds && v > bounds[i])
        i++;
    h->bucket[i]++;
    h->count++;
    h->sum += v;
}
