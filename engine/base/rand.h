/* Random numbers: the generator of the Engram multipliers (bit-exact with the usual numerical
 * library's default) and a small one for sampling. Neither is for secrets. */
#ifndef HX_BASE_RAND_H
#define HX_BASE_RAND_H

#include <stdint.h>

/* PCG64 (XSL-RR 128/64) seeded through SeedSequence's entropy mixing. */
struct hx_pcg64 {
    unsigned __int128 state, inc;
};
void hx_pcg64_seed(struct hx_pcg64 *g, uint32_t seed);
uint64_t hx_pcg64_next(struct hx_pcg64 *g);
/* Uniform in [0, bound), 64-bit multiply-shift with rejection. */
uint64_t hx_pcg64_below(struct hx_pcg64 *g, uint64_t bound);
/* Seed words of SeedSequence (tests). */
void hx_seed_sequence(uint32_t seed, uint32_t *out, int n_words);

/* xoshiro256++ seeded by splitmix64. */
struct hx_rng {
    uint64_t s[4];
};
void hx_rng_seed(struct hx_rng *r, uint64_t seed);
uint64_t hx_rng_next(struct hx_rng *r);
double hx_rng_uniform(struct hx_rng *r); /* [0, 1), 53 bits */
/* One mixing step: a well-mixed 64-bit word of x. */
uint64_t hx_mix64(uint64_t x);

#endif
