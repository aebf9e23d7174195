/* Error objects. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <hx/error.h>

#include "base/utf8.h"

static void test_classes(void **state)
{
    (void)state;
    struct hx_error err;
    assert_int_equal(hx_fail(&err, -EINVAL, "value %d", 7), -EINVAL);
    assert_string_equal(err.text, "value 7");
    assert_int_equal(err.domain, HX_DOMAIN_DATA);
    assert_int_equal(hx_fail_errno(&err, EACCES, "file"), -EACCES);
    assert_string_equal(err.text, "file: Permission denied");
    assert_int_equal(err.domain, HX_DOMAIN_SYS);
    assert_int_equal(err.native, EACCES);
    assert_int_equal(hx_fail_param(&err, -ERANGE, "top_p", "bad_value", "x"), -ERANGE);
    assert_string_equal(err.param, "top_p");
    assert_string_equal(err.slug, "bad_value");
    assert_int_equal(hx_fail_param(&err, -ERANGE, NULL, NULL, "x"), -ERANGE);
    assert_string_equal(err.param, "");
    assert_int_equal(hx_fail(NULL, -EIO, "nobody listens"), -EIO);
    assert_int_equal(hx_wrap(NULL, -EIO, "nobody"), -EIO);
}

static void test_context(void **state)
{
    (void)state;
    struct hx_error err;
    int r = hx_fail(&err, -EINVAL, "no name");
    r = hx_wrap(&err, r, "tensor %d", 3);
    assert_int_equal(hx_wrap(&err, r, "%s", "a.safetensors"), -EINVAL);
    assert_string_equal(err.text, "a.safetensors: tensor 3: no name");
    /* However long the context is, the cause stays readable. */
    char longer[3000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    for (int i = 0; i < 3; i++)
        hx_wrap(&err, r, "%s", longer);
    assert_true(strlen(err.text) < sizeof(err.text));
    hx_fail(&err, -EINVAL, "the cause");
    hx_wrap(&err, r, "%s", longer);
    assert_non_null(strstr(err.text, ": the cause"));
}

/* Quoted values cannot add lines, terminal codes or bytes that are not UTF-8. */
static void test_one_clean_line(void **state)
{
    (void)state;
    static const struct {
        const char *quoted, *want;
    } row[] = {
        {"a\nb\r\n", "a?b??"},
        {"\x1b[31m\t\x7f", "?[31m??"},
        {"caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80"},
        {"\xC2\x85\xC2\x9B\xC2\xA0", "??\xC2\xA0"},
        {"\xFFx\xC0\xAF", "?x??"},
        {"\xE4\xBD", "?"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_error err;
        hx_fail(&err, -EINVAL, "%s", row[i].quoted);
        assert_string_equal(err.text, row[i].want);
        hx_wrap(&err, -EINVAL, "%s", row[i].quoted);
        assert_int_equal(strncmp(err.text, row[i].want, strlen(row[i].want)), 0);
        hx_fail_errno(&err, ENOENT, "%s", row[i].quoted);
        assert_int_equal(strncmp(err.text, row[i].want, strlen(row[i].want)), 0);
    }
    /* Cut in the middle of a character. */
    char longer[2000];
    for (int shift = 0; shift < 3; shift++) {
        memset(longer, 'x', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < sizeof(longer); i += 3)
            memcpy(longer + i, "\xE4\xBD\xA0", 4);
        struct hx_error err;
        hx_fail(&err, -EINVAL, "%s", longer);
        size_t n = strlen(err.text);
        assert_int_equal(hx_utf8_valid_prefix((const uint8_t *)err.text, n), n);
        assert_true(n > 1000);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_one_clean_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
