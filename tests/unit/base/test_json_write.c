/* JSON writer: spellings of chat.md 3.10 and of the wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/rand.h"

static void test_doubles(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *want;
    } row[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {100000, "100000.0"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {1e20, "1e+20"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {1e-7, "1e-07"},
        {1.5e-7, "1.5e-07"},
        {1e300, "1e+300"},
        {1e-300, "1e-300"},
        {5e-324, "5e-324"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {-2.5, "-2.5"},
        {9007199254740993.0, "9007199254740992.0"},
        {1.0 / 3, "0.3333333333333333"},
        {NAN, "NaN"},
        {INFINITY, "Infinity"},
        {-INFINITY, "-Infinity"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_buf b = HX_BUF_INIT(64);
        struct hx_json_writer w;
        hx_jw_init(&w, &b, true);
        hx_jw_double(&w, row[i].v);
        assert_string_equal(hx_buf_cstr(&b), row[i].want);
        hx_buf_clear(&b);
        hx_jw_init(&w, &b, false);
        hx_jw_finite(&w, row[i].v);
        assert_string_equal(hx_buf_cstr(&b), isfinite(row[i].v) ? row[i].want : "null");
        hx_buf_done(&b);
    }
}

/* Any bit pattern reads back as itself, and no shorter count of digits does. */
static void test_doubles_round_trip(void **state)
{
    (void)state;
    struct hx_rng g;
    hx_rng_seed(&g, 20);
    for (int i = 0; i < 200000; i++) {
        uint64_t bits = hx_rng_next(&g);
        double v, back;
        memcpy(&v, &bits, sizeof(v));
        if (!isfinite(v))
            continue;
        struct hx_buf b = HX_BUF_INIT(64);
        struct hx_json_writer w;
        hx_jw_init(&w, &b, true);
        hx_jw_double(&w, v);
        back = strtod(hx_buf_cstr(&b), NULL);
        if (memcmp(&back, &v, sizeof(v)) != 0)
            fail_msg("%.17g is written as %s", v, (char *)b.data);
        int digits = 0;
        for (const char *s = (char *)b.data; *s && *s != 'e'; s++)
            digits += *s >= '0' && *s <= '9';
        char shorter[64];
        if (digits > 15) {
            snprintf(shorter, sizeof(shorter), "%.*g", digits - 1, v);
            if (strtod(shorter, NULL) == v && strchr((char *)b.data, 'e'))
                fail_msg("%s is longer than %s", (char *)b.data, shorter);
        }
        hx_buf_done(&b);
    }
}

static void test_escapes(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(256);
    static const char in[] = "\"\\/\n\r\t\b\f\x01\x1f\x7f \0\xC3\xA9\xE2\x80\xA8";
    assert_int_equal(hx_json_escape(&b, in, sizeof(in) - 1), 0);
    assert_string_equal(hx_buf_cstr(&b),
                        "\\\"\\\\/\\n\\r\\t\\b\\f\\u0001\\u001f\x7f \\u0000\xC3\xA9\xE2\x80\xA8");
    hx_buf_done(&b);
    struct hx_buf tight = HX_BUF_INIT(5);
    assert_int_equal(hx_json_escape(&tight, "\x01", 1), -EMSGSIZE);
    hx_buf_done(&tight);
}

static void test_structure(void **state)
{
    (void)state;
    static const char *const want[] = {
        "{\"a\":[1,-2,{}],\"b\":{\"c\":true,\"d\":null},\"e\":[],\"f\":18446744073709551615,\"g\":"
        "x}",
        "{\"a\": [1, -2, {}], \"b\": {\"c\": true, \"d\": null}, \"e\": [], \"f\": "
        "18446744073709551615, \"g\": x}"};
    for (int spaced = 0; spaced < 2; spaced++) {
        struct hx_buf b = HX_BUF_INIT(512);
        struct hx_json_writer w;
        hx_jw_init(&w, &b, spaced == 1);
        hx_jw_object(&w);
        hx_jw_key(&w, "a");
        hx_jw_array(&w);
        hx_jw_int(&w, 1);
        hx_jw_int(&w, -2);
        hx_jw_object(&w);
        hx_jw_end_object(&w);
        hx_jw_end_array(&w);
        hx_jw_key(&w, "b");
        hx_jw_object(&w);
        hx_jw_key(&w, "c");
        hx_jw_bool(&w, true);
        hx_jw_key(&w, "d");
        hx_jw_null(&w);
        hx_jw_end_object(&w);
        hx_jw_key(&w, "e");
        hx_jw_array(&w);
        hx_jw_end_array(&w);
        hx_jw_key(&w, "f");
        hx_jw_uint(&w, UINT64_MAX);
        hx_jw_key(&w, "g");
        hx_jw_raw(&w, "x", 1);
        hx_jw_end_object(&w);
        assert_string_equal(hx_buf_cstr(&b), want[spaced]);
        hx_buf_done(&b);
    }
}

/* text -> the same value in spaced spelling. */
static void test_values(void **state)
{
    (void)state;
    static const char *const row[][2] = {
        {"{\"b\":1,\"a\":[true,false,null]}", "{\"b\": 1, \"a\": [true, false, null]}"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
        {"{\"x\":{\"a\":1,\"a\":{\"a\":2,\"a\":[]}}}", "{\"x\": {\"a\": {\"a\": []}}}"},
        {"[1E3,100,1.0,1e20,-0,-0.0,0.10]", "[1000.0, 100, 1.0, 1e+20, 0, -0.0, 0.1]"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"\"\\u4f60\\/\\u007f\\uD83D\"", "\"\xE4\xBD\xA0/\x7F\xEF\xBF\xBD\""},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[ [ ], { } ]", "[[], {}]"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
        struct hx_json *doc = NULL;
        assert_int_equal(hx_json_parse(row[i][0], strlen(row[i][0]), &lim, &doc, NULL), 0);
        struct hx_buf b = HX_BUF_INIT(512);
        struct hx_json_writer w;
        hx_jw_init(&w, &b, true);
        hx_jw_value(&w, hx_json_root(doc));
        assert_false(b.failed);
        assert_string_equal(hx_buf_cstr(&b), row[i][1]);
        hx_buf_done(&b);
        hx_json_free(doc);
    }
}

/* A full buffer is a sticky failure, not a truncated document. */
static void test_no_room(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(12);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "key");
    hx_jw_str(&w, "longer than that");
    hx_jw_end_object(&w);
    assert_true(b.failed);
    assert_true(b.len <= 12);
    hx_buf_done(&b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubles), cmocka_unit_test(test_doubles_round_trip),
        cmocka_unit_test(test_escapes), cmocka_unit_test(test_structure),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
