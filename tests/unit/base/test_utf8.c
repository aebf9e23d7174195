/* UTF-8: every scalar value, every ill-formed shape, replacement of maximal subparts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/utf8.h"

static void test_every_scalar(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        uint8_t s[4];
        unsigned n = hx_utf8_encode(cp, s), used = 0;
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        uint32_t want = surrogate ? 0xFFFD : cp;
        unsigned want_n = want < 0x80 ? 1 : want < 0x800 ? 2 : want < 0x10000 ? 3 : 4;
        if (n != want_n || hx_utf8_next(s, n) != (int)n || hx_utf8_decode(s, n, &used) != want ||
            used != n || hx_utf8_valid_prefix(s, n) != n)
            fail_msg("U+%04X: %u bytes", cp, n);
        for (unsigned cut = 1; cut < n; cut++) {
            if (hx_utf8_next(s, cut) != 0 || hx_utf8_valid_prefix(s, cut) != 0)
                fail_msg("U+%04X cut to %u bytes is not a prefix", cp, cut);
        }
    }
    uint8_t s[4];
    assert_int_equal(hx_utf8_encode(0x110000, s), 3);
    assert_memory_equal(s, "\xEF\xBF\xBD", 3);
}

struct row {
    const char *in;
    size_t len;
    const char *want; /* after replacement; R stands for U+FFFD */
    int n;
};

#define R "\xEF\xBF\xBD"
#define ROW(in, want, n)                                                                           \
    {                                                                                              \
        in, sizeof(in) - 1, want, n                                                                \
    }

static void test_replacement(void **state)
{
    (void)state;
    static const struct row row[] = {
        ROW("plain", "plain", 0),
        ROW("", "", 0),
        ROW("\x80", R, 1),
        ROW("\xBF\x80", R R, 2),
        ROW("\xC0\xAF", R R, 2), /* overlong slash */
        ROW("\xC1\xBF"
            "a",
            R R "a", 2),
        ROW("\xC2", R, 1),
        ROW("\xC2"
            "a",
            R "a", 1),
        ROW("\xE0\x80\x80", R R R, 3), /* overlong */
        ROW("\xE0\xA0", R, 1),         /* one maximal subpart */
        ROW("\xE4\xBD"
            "x",
            R "x", 1),
        ROW("\xED\xA0\x80", R R R, 3), /* surrogate */
        ROW("\xED\x9F\xBF", "\xED\x9F\xBF", 0),
        ROW("\xF0\x80\x80\x80", R R R R, 4),
        ROW("\xF0\x90\x80", R, 1),
        ROW("\xF1\x80\x80\xE1\x80\xC2"
            "b\x80",
            R R R "b" R, 4),
        ROW("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF", 0),
        ROW("\xF4\x90\x80\x80", R R R R, 4), /* above U+10FFFF */
        ROW("\xF5\x80", R R, 2),
        ROW("\xFE\xFF", R R, 2),
        ROW("caf\xC3\xA9\xC3", "caf\xC3\xA9" R, 1),
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_buf out = HX_BUF_INIT(256);
        int n = hx_utf8_sanitize((const uint8_t *)row[i].in, row[i].len, &out);
        if (n != row[i].n || strcmp(hx_buf_cstr(&out), row[i].want) != 0)
            fail_msg("row %zu: %d replacements, '%s'", i, n, (char *)out.data);
        assert_int_equal(hx_utf8_valid_prefix(out.data, out.len), out.len);
        hx_buf_done(&out);
    }
}

static void test_valid_prefix(void **state)
{
    (void)state;
    const uint8_t s[] = "ab\xE4\xBD\xA0\xFFz";
    assert_int_equal(hx_utf8_valid_prefix(s, sizeof(s) - 1), 5);
    assert_int_equal(hx_utf8_valid_prefix(s, 4), 2);
    assert_int_equal(hx_utf8_valid_prefix(s, 0), 0);
    /* NUL is an ordinary character. */
    assert_int_equal(hx_utf8_valid_prefix((const uint8_t *)"a\0b", 3), 3);
}

static void test_no_room(void **state)
{
    (void)state;
    struct hx_buf out = HX_BUF_INIT(4);
    assert_true(hx_utf8_sanitize((const uint8_t *)"ab\xFF", 3, &out) < 0);
    assert_true(out.len <= 4);
    hx_buf_done(&out);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scalar),
        cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_valid_prefix),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
