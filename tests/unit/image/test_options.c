/* Kernel command line, boot loader's variable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "init/options.h"

#define HASH  "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"
#define OTHER "ff112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"

static void test_line(void **state)
{
    (void)state;
    struct hx_init_options o;
    struct hx_error err;
    assert_int_equal(hx_init_options_parse("ro roothash=" HASH " quiet\n", &o, &err), 0);
    assert_string_equal(o.root_hash, HASH);
    assert_int_equal(o.wait_s, HX_INIT_WAIT_DEFAULT);
    assert_int_equal(hx_init_options_parse("roothash=" HASH " rootwait=7", &o, &err), 0);
    assert_int_equal(o.wait_s, 7);
    /* What an add-on appends does not count. */
    assert_int_equal(hx_init_options_parse("roothash=" HASH " x roothash=" OTHER, &o, &err), 0);
    assert_string_equal(o.root_hash, HASH);
    /* Words that only look like it. */
    assert_int_equal(hx_init_options_parse("xroothash=" OTHER " roothash roothash=" HASH, &o, &err),
                     0);
    assert_string_equal(o.root_hash, HASH);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int code;
    } cases[] = {
        {"", -EINVAL},
        {"ro quiet", -EINVAL},
        {"roothash=", -EINVAL},
        {"roothash=0011", -EINVAL},
        {"roothash=" HASH "0", -EINVAL},
        {"roothash=" HASH " rootwait=", -EINVAL},
        {"roothash=" HASH " rootwait=-1", -EINVAL},
        {"roothash=" HASH " rootwait=5s", -EINVAL},
        {"roothash=" HASH " rootwait=601", -ERANGE},
        {"roothash=" HASH " rootwait=99999999999", -EINVAL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hx_init_options o;
        struct hx_error err;
        assert_int_equal(hx_init_options_parse(cases[i].line, &o, &err), cases[i].code);
    }
}

/* The variable as efivarfs shows it. */
static size_t variable(const char *text, uint8_t *out)
{
    size_t n = 4;
    memcpy(out, "\x06\0\0\0", 4);
    for (; *text; text++) {
        out[n++] = (uint8_t)*text;
        out[n++] = 0;
    }
    out[n++] = 0;
    out[n++] = 0;
    return n;
}

static void test_loader(void **state)
{
    (void)state;
    uint8_t raw[256], guid[HX_GPT_GUID], want[HX_GPT_GUID];
    size_t n = variable("11112222-3333-4444-5555-666677778888", raw);
    assert_int_equal(hx_gpt_guid_parse("11112222-3333-4444-5555-666677778888", want), 0);
    assert_int_equal(hx_init_loader_guid(raw, n, guid), 0);
    assert_memory_equal(guid, want, HX_GPT_GUID);
    assert_int_equal(hx_init_loader_guid(raw, n - 2, guid), 0); /* without the closing NUL */
    for (size_t len = 0; len < n - 2; len++)
        assert_int_equal(hx_init_loader_guid(raw, len, guid), -EINVAL);
    assert_int_equal(hx_init_loader_guid(raw, n + 1, guid), -EINVAL);
    raw[5] = 1;
    assert_int_equal(hx_init_loader_guid(raw, n, guid), -EINVAL);
    n = variable("1111222203333-4444-5555-666677778888", raw);
    assert_int_equal(hx_init_loader_guid(raw, n, guid), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_loader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
