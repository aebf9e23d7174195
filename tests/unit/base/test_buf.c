/* Bounded buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static void test_limits(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(10);
    assert_int_equal(hx_buf_append(&b, "12345678", 8), 0);
    assert_int_equal(hx_buf_append(&b, "9ab", 3), -EMSGSIZE);
    assert_true(b.failed);
    assert_int_equal(b.len, 8);
    assert_memory_equal(b.data, "12345678", 8);
    /* Sticky until cleared, although shorter appends still fit. */
    assert_int_equal(hx_buf_append(&b, "90", 2), 0);
    assert_true(b.failed);
    assert_int_equal(hx_buf_putc(&b, 'x'), -EMSGSIZE);
    assert_int_equal(hx_buf_append(&b, NULL, 0), 0);
    assert_int_equal(hx_buf_reserve(&b, SIZE_MAX), -EMSGSIZE);
    hx_buf_clear(&b);
    assert_false(b.failed);
    assert_int_equal(b.len, 0);
    assert_int_equal(hx_buf_puts(&b, "again"), 0);
    hx_buf_done(&b);
    assert_null(b.data);
    assert_int_equal(b.max, 10);
}

static void test_printf(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(4096);
    assert_int_equal(hx_buf_printf(&b, "%s-%d|", "a", 7), 0);
    char longer[1000];
    memset(longer, 'y', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(hx_buf_printf(&b, "%s", longer), 0);
    assert_int_equal(b.len, 4 + 999);
    assert_int_equal(strncmp(hx_buf_cstr(&b), "a-7|yyy", 7), 0);
    assert_int_equal(strlen((char *)b.data), b.len);
    struct hx_buf tight = HX_BUF_INIT(998);
    assert_int_equal(hx_buf_printf(&tight, "%s", longer), -EMSGSIZE);
    assert_int_equal(tight.len, 0);
    hx_buf_done(&tight);
    hx_buf_done(&b);
}

static void test_consume_take(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(64);
    hx_buf_puts(&b, "abcdef");
    hx_buf_consume(&b, 2);
    assert_string_equal(hx_buf_cstr(&b), "cdef");
    size_t len = 0;
    uint8_t *data = hx_buf_take(&b, &len);
    assert_int_equal(len, 4);
    assert_memory_equal(data, "cdef", 4);
    free(data);
    assert_null(b.data);
    hx_buf_puts(&b, "xy");
    hx_buf_consume(&b, 100);
    assert_int_equal(b.len, 0);
    hx_buf_done(&b);
    /* A full buffer can be NUL-terminated too, and an empty one. */
    struct hx_buf full = HX_BUF_INIT(3);
    assert_string_equal(hx_buf_cstr(&full), "");
    hx_buf_puts(&full, "abc");
    assert_string_equal(hx_buf_cstr(&full), "abc");
    hx_buf_done(&full);
}

/* One byte at a time: growth is geometric and never loses a byte. */
static void test_growth(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(100000);
    int moves = 0;
    size_t cap = 0;
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(hx_buf_putc(&b, (uint8_t)(i * 7)), 0);
        moves += b.cap != cap;
        cap = b.cap;
    }
    assert_true(moves < 20);
    assert_true(b.cap <= b.max);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], (uint8_t)(i * 7));
    assert_int_equal(hx_buf_putc(&b, 0), -EMSGSIZE);
    hx_buf_done(&b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_printf),
        cmocka_unit_test(test_consume_take),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
