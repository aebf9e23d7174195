/* Headers as servers send them: what is no safetensors file is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fetch/sthdr.h"

#define GOOD "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"

static size_t with_length(uint8_t *out, uint64_t length, const char *json)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(length >> 8 * i);
    memcpy(out + 8, json, strlen(json));
    return 8 + strlen(json);
}

static void refused(const void *data, size_t n, uint64_t file_size, const char *reason)
{
    struct hx_error err = {0};
    uint64_t header = 0;
    uint8_t *copy = malloc(n ? n : 1); /* exact, for the address sanitizer */
    assert_non_null(copy);
    memcpy(copy, data, n);
    int r = hx_sthdr_length("owner/name/x", copy, n, file_size, &header, &err);
    free(copy);
    if (r != -EINVAL || header != 0)
        fail_msg("was taken, expected: %s", reason);
    if (!strstr(err.text, reason) || strncmp(err.text, "owner/name/x: ", 14) != 0)
        fail_msg("'%s' does not say '%s'", err.text, reason);
}

static void test_what_it_is(void **state)
{
    (void)state;
    uint8_t zeros[200] = {0}, block[300];
    const char *pages[] = {"<!DOCTYPE html><html><body>Sign in</body></html>       ",
                           "  \r\n<HTML><head></head></html>                         ",
                           "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"};
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    refused(zeros, sizeof(zeros), 1000000, "all zeros");
    refused(zeros, 20, 20, "all zeros");
    for (size_t i = 0; i < 3; i++)
        refused(pages[i], strlen(pages[i]), 1000000, "a web page instead of data");
    refused(pointer, strlen(pointer), strlen(pointer), "the pointer of a large file");
    refused("", 0, 0, "too few");
    refused("123456789", 9, 9, "too few");
    size_t n = with_length(block, 1, GOOD);
    refused(block, n, 1000, "header length 1 ");
    n = with_length(block, 100000000000ull, GOOD);
    refused(block, n, UINT64_MAX, "header length 100000000000");
    n = with_length(block, UINT64_MAX, GOOD);
    refused(block, n, UINT64_MAX, "header length 18446744073709551615");
    n = with_length(block, 993, GOOD);
    refused(block, n, 1000, "header length 993");
    n = with_length(block, strlen(GOOD), "[" GOOD);
    refused(block, n, 1000, "does not start with '{' but with byte 0x5b");
}

static void test_parse(void **state)
{
    (void)state;
    uint8_t block[300];
    struct hx_error err = {0};
    struct hx_st_file *st = NULL;
    uint64_t header = 0;
    size_t n = with_length(block, strlen(GOOD), GOOD);
    assert_int_equal(hx_sthdr_length("x", block, n, n + 16, &header, &err), 0);
    assert_int_equal(header, n);
    assert_int_equal(hx_sthdr_parse("x", block, n, n + 16, &st, &err), 0);
    assert_int_equal(hx_st_at(st, 0)->offset, n);
    hx_st_close(st);
    st = NULL;
    /* The file's size decides whether it is whole. */
    assert_int_equal(hx_sthdr_parse("x", block, n, n + 15, &st, &err), -EINVAL);
    assert_non_null(strstr(err.text, "truncated"));
    assert_int_equal(hx_sthdr_parse("x", block, n, n + 17, &st, &err), -EINVAL);
    assert_int_equal(hx_sthdr_parse("x", block, n - 1, n + 16, &st, &err), -EINVAL);
    assert_null(st);
    /* Trailing spaces belong to the header. */
    n = with_length(block, strlen(GOOD "   "), GOOD "   ");
    assert_int_equal(hx_sthdr_parse("x", block, n, n + 16, &st, &err), 0);
    hx_st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_it_is),
                                       cmocka_unit_test(test_parse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
