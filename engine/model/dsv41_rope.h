/* Rotary frequencies (spec model.md 3.3). */
#ifndef HX_MODEL_DSV41_ROPE_H
#define HX_MODEL_DSV41_ROPE_H

#include "model/desc.h"

/* freq: [rope_dim / 2]. compressed: the YaRN table of layers with a ratio, else the main one. */
void hx_rope_freqs(const struct hx_hparams *hp, bool compressed, float *freq);

#endif
