/* Host side of the all-reduce test: the sum is the engine's rule, not any sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "probe/reduce.h"

static float widen(uint16_t v)
{
    const uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t half_at(const uint8_t *p, size_t i)
{
    uint16_t v;
    memcpy(&v, p + 2 * i, sizeof(v));
    return v;
}

/* Nearest bf16 by search: independent of the rounding trick of the code. */
static void bf16_sums(void **state)
{
    (void)state;
    const size_t bytes = 61440;
    struct hx_reduce_data d;
    size_t differs = 0;
    assert_int_equal(hx_reduce_data_init(&d, NULL), 0);
    hx_reduce_fill(&d, 4, bytes, true, 42);
    for (size_t i = 0; i < bytes / 2; i++) {
        float total = widen(half_at(d.partial[0], i)), other = widen(half_at(d.partial[3], i));
        for (int k = 1; k < 4; k++) {
            const float v = widen(half_at(d.partial[k], i));
            assert_true(isfinite(v) && fabsf(v) < 8);
            total += v;
            other += widen(half_at(d.partial[3 - k], i));
        }
        const uint16_t got = half_at(d.sum, i);
        const double error = fabs((double)widen(got) - total);
        assert_true(error <= fabs((double)widen((uint16_t)(got + 1)) - total));
        assert_true((got & 0x7fff) == 0 ||
                    error <= fabs((double)widen((uint16_t)(got - 1)) - total));
        /* The tolerance of one bf16 step: what an order would have to change to be seen. */
        differs += fabs((double)total - other) > fabs((double)total) / 256;
    }
    /* The data can tell one order of addition from another. */
    assert_true(differs > 100);
    hx_reduce_data_done(&d);
}

static void int32_sums(void **state)
{
    (void)state;
    struct hx_reduce_data d;
    assert_int_equal(hx_reduce_data_init(&d, NULL), 0);
    hx_reduce_fill(&d, 3, 10240, false, 1);
    for (size_t i = 0; i < 10240 / 4; i++) {
        uint32_t total = 0, v, sum;
        for (int k = 0; k < 3; k++) {
            memcpy(&v, d.partial[k] + 4 * i, 4);
            total += v;
        }
        memcpy(&sum, d.sum + 4 * i, 4);
        assert_int_equal(sum, total);
    }
    hx_reduce_data_done(&d);
}

static void bus_rate(void **state)
{
    (void)state;
    assert_true(fabs(hx_reduce_busbw(20971520, 4, 5.42e-3) - 5.804) < 1e-3);
    assert_true(fabs(hx_reduce_busbw(1000000000, 2, 1.0) - 1.0) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_sums),
        cmocka_unit_test(int32_sums),
        cmocka_unit_test(bus_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
