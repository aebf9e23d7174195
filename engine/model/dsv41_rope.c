/* Rotary frequencies (spec model.md 3.3); float32 steps as in the definition. */
#include "model/dsv41_rope.h"

#include <math.h>

void hx_rope_freqs(const struct hx_hparams *hp, bool compressed, float *freq)
{
    int n = hp->rope_dim / 2, dim = hp->rope_dim;
    double base = compressed ? hp->compress_rope_theta : hp->rope_theta;
    for (int i = 0; i < n; i++)
        freq[i] = 1.0f / (float)pow(base, 2.0 * i / dim);
    if (!compressed)
        return;
    /* YaRN: index of the pair that turns `rotations` times over the original length. */
    double fast =
        dim * log((double)hp->yarn_original / (hp->yarn_beta_fast * 2 * M_PI)) / (2 * log(base));
    double slow =
        dim * log((double)hp->yarn_original / (hp->yarn_beta_slow * 2 * M_PI)) / (2 * log(base));
    int low = floor(fast) > 0 ? (int)floor(fast) : 0;
    int high = ceil(slow) < dim - 1 ? (int)ceil(slow) : dim - 1;
    float width = (float)(high - low > 1e-3 ? high - low : 1e-3);
    for (int i = 0; i < n; i++) {
        float ramp = ((float)i - (float)low) / width;
        float smooth = 1.0f - (ramp < 0 ? 0.0f : ramp > 1 ? 1.0f : ramp);
        freq[i] = freq[i] / (float)hp->yarn_factor * (1.0f - smooth) + freq[i] * smooth;
    }
}
