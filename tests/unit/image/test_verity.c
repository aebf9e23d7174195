/* Root hash, verity header, device-mapper table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "init/verity.h"

#define HASH "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"

/* Header as veritysetup writes it: offsets from its documentation. */
static void header(uint8_t raw[HX_VERITY_SUPERBLOCK])
{
    memset(raw, 0, HX_VERITY_SUPERBLOCK);
    memcpy(raw, "verity", 6);
    raw[8] = 1;
    raw[12] = 1;
    memcpy(raw + 32, "sha256", 6);
    raw[65] = 0x10; /* data blocks of 4096 bytes */
    raw[69] = 0x10;
    raw[72] = 100; /* of them */
    raw[80] = 3;
    memcpy(raw + 88, "\xAB\x00\x7F", 3);
}

static void test_guids(void **state)
{
    (void)state;
    uint8_t data[HX_GPT_GUID], hash[HX_GPT_GUID], want[HX_GPT_GUID];
    struct hx_error err;
    assert_int_equal(hx_verity_guids(HASH, data, hash, &err), 0);
    assert_int_equal(hx_gpt_guid_parse("00112233-4455-6677-8899-aabbccddeeff", want), 0);
    assert_memory_equal(data, want, HX_GPT_GUID);
    assert_int_equal(hx_gpt_guid_parse("01234567-89ab-cdef-0123-456789abcdef", want), 0);
    assert_memory_equal(hash, want, HX_GPT_GUID);
    assert_int_equal(hx_verity_guids("0011", data, hash, &err), -EINVAL);
    assert_int_equal(hx_verity_guids(HASH "0", data, hash, &err), -EINVAL);
    char upper[] = HASH;
    upper[20] = 'A';
    assert_int_equal(hx_verity_guids(upper, data, hash, &err), -EINVAL);
}

static void test_table(void **state)
{
    (void)state;
    uint8_t raw[HX_VERITY_SUPERBLOCK];
    struct hx_verity v;
    struct hx_error err;
    char table[HX_VERITY_TABLE_MAX];
    header(raw);
    assert_int_equal(hx_verity_parse(raw, 100 * 4096, 8192, &v, &err), 0);
    assert_int_equal(
        hx_verity_table(&v, HASH, "/dev/sda2", "/dev/sda3", table, sizeof(table), &err), 0);
    assert_string_equal(table, "1 /dev/sda2 /dev/sda3 4096 4096 100 1 sha256 " HASH
                               " ab007f 1 panic_on_corruption");
    assert_int_equal(hx_verity_table(&v, HASH, "/dev/sda2", "/dev/sda3", table, 40, &err),
                     -EMSGSIZE);
    raw[80] = 0;
    assert_int_equal(hx_verity_parse(raw, 100 * 4096, 8192, &v, &err), 0);
    assert_int_equal(
        hx_verity_table(&v, HASH, "/dev/sda2", "/dev/sda3", table, sizeof(table), &err), 0);
    assert_non_null(strstr(table, HASH " - 1 panic"));
}

static void test_refused_headers(void **state)
{
    (void)state;
    static const struct {
        int at;
        uint8_t value;
        const char *says;
    } cases[] = {
        {0, 'V', "verity header"},     {8, 2, "version 2"},     {12, 0, "hash type 0"},
        {34, 'b', "sha256"},           {38, 'x', "sha256"},     {65, 0x11, "blocks of"},
        {65, 0x01, "verified blocks"}, {69, 0x00, "blocks of"}, {72, 101, "verified blocks"},
        {72, 0, "0 verified blocks"},  {79, 0xFF, "verified"},  {81, 2, "salt of"},
        {66, 0x10, "blocks of"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t raw[HX_VERITY_SUPERBLOCK];
        struct hx_verity v;
        struct hx_error err;
        header(raw);
        raw[cases[i].at] = cases[i].value;
        /* 256-byte and odd block sizes are refused as such. */
        if (cases[i].at == 65 && cases[i].value == 0x01)
            raw[65] = 0x20; /* larger blocks: fewer fit */
        assert_int_equal(hx_verity_parse(raw, 100 * 4096, 8192, &v, &err), -EBADMSG);
        if (!strstr(err.text, cases[i].says))
            fail_msg("byte %d: '%s' does not say '%s'", cases[i].at, err.text, cases[i].says);
    }
    uint8_t raw[HX_VERITY_SUPERBLOCK];
    struct hx_verity v;
    struct hx_error err;
    header(raw);
    assert_int_equal(hx_verity_parse(raw, 100 * 4096, 4096, &v, &err), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guids),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_refused_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
