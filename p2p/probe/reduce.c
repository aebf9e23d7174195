/* Partials and sums of the all-reduce tests. */
#include "probe/reduce.h"

#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

int hx_reduce_data_init(struct hx_reduce_data *d, struct hx_error *err)
{
    memset(d, 0, sizeof(*d));
    bool ok = (d->sum = malloc(HX_PROBE_LARGE_BYTES)) != NULL;
    for (int i = 0; i < HX_PROBE_RANKS; i++)
        ok = (d->partial[i] = malloc(HX_PROBE_LARGE_BYTES)) != NULL && ok;
    if (ok)
        return 0;
    hx_reduce_data_done(d);
    return hx_fail(err, -ENOMEM, "all-reduce: out of host memory");
}

void hx_reduce_data_done(struct hx_reduce_data *d)
{
    for (int i = 0; i < HX_PROBE_RANKS; i++)
        free(d->partial[i]);
    free(d->sum);
    memset(d, 0, sizeof(*d));
}

static float widen(uint16_t v)
{
    const uint32_t bits = (uint32_t)v << 16;
    float f = 0;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* To nearest, ties to even; the values here are finite. */
static uint16_t narrow(float f)
{
    uint32_t bits = 0;
    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Sign, mantissa and an exponent of 2^-30 to 2^1. */
static uint16_t bf16_of(uint64_t random)
{
    return (uint16_t)((random & 0x807f) | (97 + (random >> 16 & 31)) << 7);
}

/* In one element of eight the last rank takes away what the first brought, and the others bring so
 * little that float32 has to round it beside that: what is left shows in which order they were
 * added. */
static void cancel(struct hx_reduce_data *d, int n_ranks, size_t bytes)
{
    for (size_t at = 0; at + 2 <= bytes; at += 16) {
        uint16_t v = 0;
        memcpy(&v, d->partial[0] + at, sizeof(v));
        v = (uint16_t)((v & 0x807f) | 128 << 7);
        memcpy(d->partial[0] + at, &v, sizeof(v));
        v ^= 0x8000;
        memcpy(d->partial[n_ranks - 1] + at, &v, sizeof(v));
        for (int i = 1; i < n_ranks - 1; i++) {
            memcpy(&v, d->partial[i] + at, sizeof(v));
            v = (uint16_t)((v & 0x807f) | (104 + (v >> 7 & 7)) << 7);
            memcpy(d->partial[i] + at, &v, sizeof(v));
        }
    }
}

void hx_reduce_fill(struct hx_reduce_data *d, int n_ranks, size_t bytes, bool bf16, uint64_t seed)
{
    struct hx_rng rng;
    hx_rng_seed(&rng, seed);
    for (int i = 0; i < n_ranks; i++) {
        for (size_t at = 0; at + 8 <= bytes; at += 8) {
            uint64_t word = hx_rng_next(&rng);
            if (bf16) {
                const uint64_t other = hx_rng_next(&rng);
                word = (uint64_t)bf16_of(word) | (uint64_t)bf16_of(word >> 32) << 16 |
                       (uint64_t)bf16_of(other) << 32 | (uint64_t)bf16_of(other >> 32) << 48;
            }
            memcpy(d->partial[i] + at, &word, sizeof(word));
        }
    }
    if (bf16 && n_ranks > 2)
        cancel(d, n_ranks, bytes);
    for (size_t at = 0; bf16 && at + 2 <= bytes; at += 2) {
        float total = 0;
        for (int i = 0; i < n_ranks; i++) {
            uint16_t v = 0;
            memcpy(&v, d->partial[i] + at, sizeof(v));
            total = i == 0 ? widen(v) : total + widen(v);
        }
        const uint16_t v = narrow(total);
        memcpy(d->sum + at, &v, sizeof(v));
    }
    for (size_t at = 0; !bf16 && at + 4 <= bytes; at += 4) {
        uint32_t total = 0;
        for (int i = 0; i < n_ranks; i++) {
            uint32_t v = 0;
            memcpy(&v, d->partial[i] + at, sizeof(v));
            total += v;
        }
        memcpy(d->sum + at, &total, sizeof(total));
    }
}

double hx_reduce_busbw(size_t bytes, int n_ranks, double seconds)
{
    return (double)bytes * 2.0 * (n_ranks - 1) / n_ranks / seconds * 1e-9;
}
