/* Speculative decoding: the confidence gate. */
#include "run/draft.h"

#include <math.h>

int hx_draft_gate(const float *z, int n, double gate)
{
    double all = 1;
    for (int i = 0; i < n; i++) {
        all *= (double)(1.0f / (1.0f + expf(-z[i])));
        if (!(all >= gate))
            return i;
    }
    return n;
}
