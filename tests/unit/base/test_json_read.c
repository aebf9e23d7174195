/* JSON reader: what is refused and where, what is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"

static struct hx_json *parse(const char *text, size_t len)
{
    struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
    struct hx_error err;
    struct hx_json *doc = NULL;
    if (hx_json_parse(text, len, &lim, &doc, &err) < 0)
        fail_msg("'%s': %s", text, err.text);
    return doc;
}

/* text -> place and reason. */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned line, column;
    } row[] = {
        {"", 1, 1},
        {"  \n ", 2, 2},
        {"{", 1, 2},
        {"[", 1, 2},
        {"[1,]", 1, 4},
        {"[1 2]", 1, 4},
        {"[1}", 1, 3},
        {"{\"a\"}", 1, 5},
        {"{\"a\":}", 1, 6},
        {"{\"a\":1,}", 1, 8},
        {"{a:1}", 1, 2},
        {"{'a':1}", 1, 2},
        {"{1:2}", 1, 2},
        {"{\"a\":1 \"b\":2}", 1, 8},
        {"nul", 1, 1},
        {"True", 1, 1},
        {"nulll", 1, 5},
        {"1 2", 1, 3},
        {"01", 1, 1},
        {"-", 1, 1},
        {"+1", 1, 1},
        {".5", 1, 1},
        {"1.", 1, 1},
        {"1e", 1, 1},
        {"1e+", 1, 1},
        {"0x10", 1, 2},
        {"NaN", 1, 1},
        {"-Infinity", 1, 1},
        {"\"abc", 1, 1},
        {"\"a\tb\"", 1, 3},
        {"\"a\nb\"", 1, 3},
        {"\"\\x\"", 1, 2},
        {"\"\\u12\"", 1, 4},
        {"\"\\uD83D\\uZZZZ\"", 1, 10},
        {"\"\\", 1, 2},
        {"\"\xFF\"", 1, 2},
        {"\"\xED\xA0\x80\"", 1, 2},
        {"/* c */ 1", 1, 1},
        {"\xEF\xBB\xBF{}", 1, 1},
        {"[1,\n 2,\n  oops]", 3, 3},
        {"[\"\xE4\xBD\xA0\xE5\xA5\xBD\", x]", 1, 8},
    };
    struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_error err = {.text = ""};
        struct hx_json *doc = NULL;
        char want[64];
        snprintf(want, sizeof(want), "line %u column %u:", row[i].line, row[i].column);
        int r = hx_json_parse(row[i].text, strlen(row[i].text), &lim, &doc, &err);
        if (r != -EINVAL || doc || !strstr(err.text, want))
            fail_msg("'%s': %d, '%s', expected %s", row[i].text, r, err.text, want);
        assert_string_equal(err.slug, "invalid_json");
    }
    /* A NUL byte ends nothing. */
    struct hx_json *doc = NULL;
    assert_int_equal(hx_json_parse("1\0002", 3, &lim, &doc, NULL), -EINVAL);
    assert_int_equal(hx_json_parse("\0", 1, &lim, &doc, NULL), -EINVAL);
}

static void test_limits(void **state)
{
    (void)state;
    struct hx_json_limits lim = {.max_bytes = 20, .max_values = 4, .max_depth = 3};
    struct hx_json *doc = NULL;
    struct hx_error err;
    assert_int_equal(hx_json_parse("[[[]]]", 6, &lim, &doc, &err), 0);
    hx_json_free(doc);
    doc = NULL;
    assert_int_equal(hx_json_parse("[[[[]]]]", 8, &lim, &doc, &err), -EINVAL);
    assert_int_equal(hx_json_parse("[1,2,3]", 7, &lim, &doc, &err), 0);
    hx_json_free(doc);
    doc = NULL;
    assert_int_equal(hx_json_parse("[1,2,3,4]", 9, &lim, &doc, &err), -EMSGSIZE);
    assert_int_equal(hx_json_parse("                    1", 21, &lim, &doc, &err), -EMSGSIZE);
    assert_null(doc);
    /* A million open brackets are refused, not a stack overflow. */
    char *deep = malloc(1000000);
    memset(deep, '[', 1000000);
    struct hx_json_limits wide = HX_JSON_LIMITS_DEFAULT;
    wide.max_depth = 100000;
    assert_int_equal(hx_json_parse(deep, 1000000, &wide, &doc, &err), -EINVAL);
    assert_non_null(strstr(err.text, "nested too deeply"));
    free(deep);
}

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
        size_t len;
    } row[] = {
        {"\"\"", "", 0},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0041\\u00e9\\u4F60\"", "A\xC3\xA9\xE4\xBD\xA0", 6},
        {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\\uD83D\\uDE00\"", "\xF0\x9F\x98\x80", 4},
        {"\"\\uD83D\"", "\xEF\xBF\xBD", 3},   /* lone high */
        {"\"\\uDE00x\"", "\xEF\xBF\xBDx", 4}, /* lone low */
        {"\"\\uD83D\\u0041\"",
         "\xEF\xBF\xBD"
         "A",
         4}, /* high, no low */
        {"\"\\uD83D\\uD83D\\uDE00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7},
        {"\"\x7F\xC2\x80\"", "\x7F\xC2\x80", 3},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_json *doc = parse(row[i].text, strlen(row[i].text));
        size_t len = 99;
        const char *s = hx_jv_str(hx_json_root(doc), &len);
        assert_non_null(s);
        if (len != row[i].len || memcmp(s, row[i].want, len) != 0)
            fail_msg("%s: %zu bytes '%.*s'", row[i].text, len, (int)len, s);
        hx_json_free(doc);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_int;
        int64_t i;
        double d;
    } row[] = {
        {"0", true, 0, 0},
        {"-0", true, 0, -0.0},
        {"9223372036854775807", true, INT64_MAX, 9223372036854775807.0},
        {"-9223372036854775808", true, INT64_MIN, -9223372036854775808.0},
        {"9223372036854775808", false, 0, 9223372036854775808.0},
        {"5.0", true, 5, 5},
        {"1e3", true, 1000, 1000},
        {"1.5", false, 0, 1.5},
        {"1e300", false, 0, 1e300},
        {"1e999", false, 0, INFINITY},
        {"0.1", false, 0, 0.1},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_json *doc = parse(row[i].text, strlen(row[i].text));
        struct hx_jv v = hx_json_root(doc);
        int64_t n = 77;
        double d = 0;
        size_t len;
        const char *text = hx_jv_number_text(v, &len);
        assert_int_equal(len, strlen(row[i].text));
        assert_memory_equal(text, row[i].text, len);
        assert_int_equal(hx_jv_int64(v, &n), row[i].is_int);
        assert_int_equal(n, row[i].is_int ? row[i].i : 77); /* untouched when refused */
        assert_true(hx_jv_double(v, &d));
        if (memcmp(&d, &row[i].d, sizeof(d)) != 0)
            fail_msg("%s: %.17g", row[i].text, d);
        hx_json_free(doc);
    }
    /* Thousands of digits stay as written. */
    char big[5001];
    memset(big, '7', 5000);
    big[5000] = '\0';
    struct hx_json *doc = parse(big, 5000);
    size_t len;
    double d;
    int64_t n;
    assert_non_null(hx_jv_number_text(hx_json_root(doc), &len));
    assert_int_equal(len, 5000);
    assert_false(hx_jv_int64(hx_json_root(doc), &n));
    assert_true(hx_jv_double(hx_json_root(doc), &d));
    assert_true(isinf(d));
    hx_json_free(doc);
}

static void test_nonfinite(void **state)
{
    (void)state;
    struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
    lim.flags = HX_JSON_ALLOW_NONFINITE;
    const char *text = "[NaN, Infinity, -Infinity]";
    struct hx_json *doc = NULL;
    assert_int_equal(hx_json_parse(text, strlen(text), &lim, &doc, NULL), 0);
    struct hx_jv v = hx_jv_first(hx_json_root(doc));
    double d;
    int64_t n;
    assert_true(hx_jv_double(v, &d) && isnan(d));
    assert_false(hx_jv_int64(v, &n));
    v = hx_jv_next(v);
    assert_true(hx_jv_double(v, &d) && isinf(d) && d > 0);
    assert_false(hx_jv_int64(v, &n));
    v = hx_jv_next(v);
    assert_true(hx_jv_double(v, &d) && isinf(d) && d < 0);
    assert_null(hx_jv_next(v).doc);
    hx_json_free(doc);
}

static void test_navigation(void **state)
{
    (void)state;
    const char *text =
        " {\"a\": [1, [2, {}], \"x\"], \"b\": {\"c\": true, \"d\": null}, \"a\": false, "
        "\"\": {}, \"e\": []} ";
    struct hx_json *doc = parse(text, strlen(text));
    struct hx_jv root = hx_json_root(doc);
    assert_int_equal(hx_jv_type(root), HX_JSON_OBJECT);
    assert_int_equal(hx_jv_count(root), 5);
    /* Order and duplicates are kept; a lookup takes the last. */
    static const char *const keys[] = {"a", "b", "a", "", "e"};
    int i = 0;
    for (struct hx_jv v = hx_jv_first(root); v.doc; v = hx_jv_next(v))
        assert_true(hx_jv_str_is(hx_jv_key(v), keys[i++]));
    assert_int_equal(i, 5);
    bool b = true;
    assert_true(hx_jv_bool(hx_jv_get(root, "a"), &b));
    assert_false(b);
    assert_int_equal(hx_jv_type(hx_jv_get(hx_jv_get(root, "b"), "d")), HX_JSON_NULL);
    struct hx_jv a = hx_jv_first(root);
    assert_int_equal(hx_jv_type(a), HX_JSON_ARRAY);
    assert_int_equal(hx_jv_count(a), 3);
    struct hx_jv e = hx_jv_next(hx_jv_first(a));
    assert_int_equal(hx_jv_count(e), 2);
    assert_true(hx_jv_str_is(hx_jv_next(e), "x"));
    assert_null(hx_jv_key(e).doc);
    /* Whatever is asked of the wrong thing is absent, not a crash. */
    struct hx_jv none = hx_jv_get(hx_jv_get(a, "x"), "y");
    size_t len;
    int64_t n;
    double d;
    assert_int_equal(hx_jv_type(none), HX_JSON_NONE);
    assert_null(hx_jv_str(none, &len));
    assert_null(hx_jv_number_text(none, &len));
    assert_false(hx_jv_int64(none, &n) || hx_jv_double(none, &d) || hx_jv_bool(none, &b));
    assert_int_equal(hx_jv_count(none), 0);
    assert_null(hx_jv_first(none).doc);
    assert_null(hx_jv_next(none).doc);
    assert_null(hx_jv_next(root).doc);
    assert_null(hx_jv_first(hx_jv_get(root, "e")).doc);
    assert_false(hx_jv_str_is(root, "a"));
    assert_int_equal(hx_jv_type(hx_jv_get_n(root, "b\0", 2)), HX_JSON_NONE);
    for (int t = HX_JSON_NONE; t < HX_JSON_TYPE_MAX; t++)
        assert_true(strlen(hx_json_type_name((enum hx_json_type)t)) > 0);
    hx_json_free(doc);
    hx_json_free(NULL);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_limits),
        cmocka_unit_test(test_strings),   cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_nonfinite), cmocka_unit_test(test_navigation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
