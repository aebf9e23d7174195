/* What the tests on a card share: calls that must succeed, BF16, distances of arrays, main. */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kernels.h"
#include "base/rand.h"

/* Bounds of docs/numerics.md, relative RMS of an array. */
#define ACTIVATION  4e-3
#define COEFFICIENT 1e-4
#define EXACT       0.0

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

static inline uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static inline float value16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Sum of uniform values: about normal, deviation 1. */
static inline float normal(struct hx_rng *rng)
{
    double v = 0;
    for (int i = 0; i < 12; i++)
        v += hx_rng_uniform(rng);
    return (float)(v - 6);
}

/* Element of a BF16 or F32 array. */
static inline double number(enum hx_dtype type, const void *p, int64_t i)
{
    return type == HX_DTYPE_BF16 ? (double)value16(((const uint16_t *)p)[i])
                                 : (double)((const float *)p)[i];
}

/* Relative RMS of the distance of n values; equal infinities are no distance, NaN is infinitely
 * far. */
static inline double distance(enum hx_dtype type, const void *got, const void *want, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = number(type, got, i), b = number(type, want, i);
        if (isinf(b) && a == b)
            continue;
        diff += (a - b) * (a - b);
        norm += b * b;
    }
    double rms = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    return isfinite(rms) ? rms : (double)INFINITY;
}

/* usage of a test program: test_x [only]      only: pattern of names, * and ? as in a shell */
static inline int run_group(const char *name, const struct CMUnitTest *tests, size_t n,
                            CMFixtureFunction setup, CMFixtureFunction teardown, int argc,
                            char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests(name, tests, n, setup, teardown);
}

#endif
