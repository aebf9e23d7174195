/* Random numbers. */
#include "base/rand.h"

#include <string.h>

/* ---- SeedSequence: entropy words hashed into a pool of four, then expanded ---- */

#define POOL   4
#define INIT_A 0x43b0d7e5u
#define MULT_A 0x931e8875u
#define INIT_B 0x8b51f9ddu
#define MULT_B 0x58f38dedu
#define MIX_L  0xca01f9ddu
#define MIX_R  0x4973f715u

static uint32_t hashmix(uint32_t value, uint32_t *constant)
{
    value ^= *constant;
    *constant *= MULT_A;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = MIX_L * x - MIX_R * y;
    return r ^ r >> 16;
}

void hx_seed_sequence(uint32_t seed, uint32_t *out, int n_words)
{
    uint32_t pool[POOL], constant = INIT_A;
    for (int i = 0; i < POOL; i++)
        pool[i] = hashmix(i == 0 ? seed : 0, &constant);
    for (int from = 0; from < POOL; from++) {
        for (int to = 0; to < POOL; to++) {
            if (from != to)
                pool[to] = mix(pool[to], hashmix(pool[from], &constant));
        }
    }
    constant = INIT_B;
    for (int i = 0; i < n_words; i++) {
        uint32_t v = pool[i % POOL] ^ constant;
        constant *= MULT_B;
        v *= constant;
        out[i] = v ^ v >> 16;
    }
}

/* ---- PCG64 ---- */

static const unsigned __int128 pcg_multiplier =
    (unsigned __int128)2549297995355413924u << 64 | 4865540595714422341u;

void hx_pcg64_seed(struct hx_pcg64 *g, uint32_t seed)
{
    uint32_t w[8];
    uint64_t v[4];
    hx_seed_sequence(seed, w, 8);
    for (int i = 0; i < 4; i++)
        v[i] = (uint64_t)w[2 * i + 1] << 32 | w[2 * i];
    unsigned __int128 state = (unsigned __int128)v[0] << 64 | v[1];
    g->inc = ((unsigned __int128)v[2] << 64 | v[3]) << 1 | 1;
    g->state = (g->inc + state) * pcg_multiplier + g->inc;
}

uint64_t hx_pcg64_next(struct hx_pcg64 *g)
{
    g->state = g->state * pcg_multiplier + g->inc;
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned rot = (unsigned)(g->state >> 122);
    return x >> rot | x << (-rot & 63);
}

uint64_t hx_pcg64_below(struct hx_pcg64 *g, uint64_t bound)
{
    unsigned __int128 m = (unsigned __int128)hx_pcg64_next(g) * bound;
    if ((uint64_t)m < bound) {
        uint64_t threshold = (0 - bound) % bound;
        while ((uint64_t)m < threshold)
            m = (unsigned __int128)hx_pcg64_next(g) * bound;
    }
    return (uint64_t)(m >> 64);
}

/* ---- sampling ---- */

uint64_t hx_mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

void hx_rng_seed(struct hx_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        r->s[i] = hx_mix64(seed + (uint64_t)i * 0x9E3779B97F4A7C15u);
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t hx_rng_next(struct hx_rng *r)
{
    uint64_t *s = r->s, result = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double hx_rng_uniform(struct hx_rng *r)
{
    return (double)(hx_rng_next(r) >> 11) * 0x1p-53;
}
