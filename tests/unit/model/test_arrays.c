/* Arrays of a pass: one layout on host and device, limits, sending. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "model/arrays.h"

static const struct hx_backend *be;
static struct hx_device *dev;

static int open_device(void **state)
{
    (void)state;
    be = hx_backend_select("cpu", NULL);
    return be->open(0, &dev, NULL);
}

static int close_device(void **state)
{
    (void)state;
    be->close(dev);
    return 0;
}

static void test_layout(void **state)
{
    struct hx_arrays a;
    struct hx_error err;
    const int32_t *dev32;
    const int64_t *dev64;
    const uint8_t *dev8;
    (void)state;
    size_t size = hx_arrays_room(5 * 4) + hx_arrays_room(3 * 8) + hx_arrays_room(65);
    assert_int_equal(size, 64 + 64 + 128);
    assert_int_equal(hx_arrays_init(&a, be, dev, size, &err), 0);
    for (int round = 0; round < 2; round++) {
        int32_t *host32 = hx_arrays_take(&a, 5 * 4, &dev32);
        int64_t *host64 = hx_arrays_take(&a, 3 * 8, &dev64);
        uint8_t *host8 = hx_arrays_take(&a, 65, &dev8);
        assert_true(host32 && host64 && host8);
        assert_int_equal((const uint8_t *)dev64 - (const uint8_t *)dev32, 64);
        assert_int_equal((const uint8_t *)dev8 - (const uint8_t *)dev32, 128);
        assert_int_equal((uintptr_t)dev64 % HX_ARRAYS_ALIGN, 0);
        assert_ptr_equal(hx_arrays_host(&a, dev64), host64);
        assert_ptr_equal(hx_arrays_host(&a, dev8 + 7), host8 + 7);
        for (int i = 0; i < 5; i++)
            host32[i] = 100 * round + i;
        host64[2] = INT64_MAX - round;
        host8[64] = (uint8_t)(9 + round);
        assert_int_equal(hx_arrays_send(&a, &err), 0);
        assert_memory_equal(dev32, host32, 5 * 4);
        assert_true(dev64[2] == INT64_MAX - round);
        assert_int_equal(dev8[64], 9 + round);
        /* It is full to the byte. */
        assert_null(hx_arrays_take(&a, 1, &dev8));
        hx_arrays_reset(&a);
    }
    hx_arrays_done(&a);
}

/* What was not taken since the reset is not sent. */
static void test_sends_what_was_taken(void **state)
{
    struct hx_arrays a;
    struct hx_error err;
    const uint8_t *one, *two;
    (void)state;
    assert_int_equal(hx_arrays_init(&a, be, dev, 128, &err), 0);
    memset(hx_arrays_take(&a, 64, &one), 1, 64);
    memset(hx_arrays_take(&a, 64, &two), 1, 64);
    assert_int_equal(hx_arrays_send(&a, &err), 0);
    memset(a.be->address(a.host), 2, 128);
    hx_arrays_reset(&a);
    assert_non_null(hx_arrays_take(&a, 64, &one));
    assert_int_equal(hx_arrays_send(&a, &err), 0);
    assert_int_equal(one[63], 2);
    assert_int_equal(two[0], 1);
    hx_arrays_done(&a);
}

static int no_device_memory(struct hx_device *d, enum hx_mem mem, size_t size,
                            struct hx_buffer **out, struct hx_error *err)
{
    return mem == HX_MEM_PINNED ? be->alloc(d, mem, size, out, err)
                                : hx_fail(err, -ENOMEM, "no memory");
}

static void test_limits(void **state)
{
    struct hx_arrays a;
    struct hx_error err;
    const uint8_t *at = (const uint8_t *)&a;
    (void)state;
    assert_int_equal(hx_arrays_init(&a, be, dev, 128, &err), 0);
    assert_null(hx_arrays_take(&a, 129, &at));
    assert_null(hx_arrays_take(&a, SIZE_MAX, &at));
    assert_null(hx_arrays_take(&a, SIZE_MAX - 63, &at));
    assert_ptr_equal(at, &a); /* untouched */
    assert_non_null(hx_arrays_take(&a, 65, &at));
    assert_null(hx_arrays_take(&a, 1, &at));
    hx_arrays_done(&a);
    hx_arrays_done(&a); /* twice, and after a failure of init */
    struct hx_backend full = *be;
    full.alloc = no_device_memory;
    assert_int_equal(hx_arrays_init(&a, &full, dev, 128, &err), -ENOMEM);
    hx_arrays_done(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_sends_what_was_taken),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
