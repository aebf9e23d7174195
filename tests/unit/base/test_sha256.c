/* SHA-256: two at once, and saved and continued, against libcrypto's one-shot form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "base/sha256.h"

static uint8_t data[70000];

static int fill(void **state)
{
    (void)state;
    struct hx_rng g;
    hx_rng_seed(&g, 3);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)hx_rng_next(&g);
    return 0;
}

static struct hx_sha256 *fresh(void)
{
    struct hx_sha256 *h = NULL;
    assert_int_equal(hx_sha256_new(&h, NULL), 0);
    return h;
}

static void assert_digest(struct hx_sha256 *h, const uint8_t *p, size_t n)
{
    uint8_t found[HX_SHA256_BYTES], want[HX_SHA256_BYTES];
    assert_int_equal(hx_sha256_final(h, found), 0);
    assert_int_equal(hx_sha256_data(p, n, want), 0);
    assert_memory_equal(found, want, sizeof(want));
}

static void test_known(void **state)
{
    (void)state;
    uint8_t d[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    hx_sha256_data("abc", 3, d);
    hx_sha256_to_hex(d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* a has seen a prefix that b has not; every length around the block size. */
static void test_pair(void **state)
{
    (void)state;
    const size_t prefix[] = {0, 1, 63, 64, 128, 4096, 4097};
    for (size_t k = 0; k < sizeof(prefix) / sizeof(prefix[0]); k++) {
        for (size_t n = 0; n < 300; n += n < 130 ? 1 : 17) {
            struct hx_sha256 *a = fresh(), *b = fresh();
            hx_sha256_update(a, data, prefix[k]);
            assert_int_equal(hx_sha256_update_pair(a, b, data + prefix[k], n), 0);
            assert_int_equal(hx_sha256_update_pair(a, b, data + prefix[k] + n, 1000), 0);
            assert_digest(a, data, prefix[k] + n + 1000);
            assert_digest(b, data + prefix[k], n + 1000);
            hx_sha256_free(a);
            hx_sha256_free(b);
        }
    }
    struct hx_sha256 *a = fresh(), *b = fresh();
    assert_int_equal(hx_sha256_update_pair(a, b, data, sizeof(data)), 0);
    assert_digest(a, data, sizeof(data));
    assert_digest(b, data, sizeof(data));
    hx_sha256_free(a);
    hx_sha256_free(b);
}

/* Any length, any place; nothing outside is touched. */
static void test_copy(void **state)
{
    (void)state;
    static uint8_t to[9000] __attribute__((aligned(64)));
    const size_t prefix[] = {0, 1, 63, 64, 4096, 4097};
    const size_t place[] = {64, 80, 65};
    for (size_t k = 0; k < 18; k++) {
        size_t before = prefix[k / 3], at = place[k % 3];
        for (size_t n = 0; n < 4200; n += n < 200 ? 1 : 97) {
            struct hx_sha256 *a = fresh();
            memset(to, 0xa5, sizeof(to));
            hx_sha256_update(a, data, before);
            assert_int_equal(hx_sha256_update_copy(a, to + at, data + before, n), 0);
            assert_int_equal(hx_sha256_update_copy(a, to + at + n, data + before + n, 700), 0);
            assert_memory_equal(to + at, data + before, n + 700);
            assert_int_equal(to[at - 1], 0xa5);
            assert_int_equal(to[at + n + 700], 0xa5);
            assert_digest(a, data, before + n + 700);
            hx_sha256_free(a);
        }
    }
}

static void test_save(void **state)
{
    (void)state;
    struct hx_sha256 *a = fresh(), *b = fresh();
    struct hx_sha256_state s;
    hx_sha256_update(a, data, 64 * 500);
    assert_int_equal(hx_sha256_save(a, &s), 0);
    assert_int_equal(s.n_bytes, 64 * 500);
    assert_int_equal(hx_sha256_load(b, &s), 0);
    hx_sha256_update(b, data + 64 * 500, 1234);
    assert_int_equal(hx_sha256_save(b, &s), -EINVAL); /* inside a block */
    assert_digest(b, data, 64 * 500 + 1234);
    hx_sha256_update(a, data + 64 * 500, 1);
    hx_sha256_copy(b, a);
    assert_digest(b, data, 64 * 500 + 1);
    assert_digest(a, data, 64 * 500 + 1);
    s.n_bytes = 65;
    assert_int_equal(hx_sha256_load(b, &s), -EINVAL);
    hx_sha256_free(a);
    hx_sha256_free(b);
}

/* The count of bits crosses 32 bits. */
static void test_long(void **state)
{
    (void)state;
    struct hx_sha256 *a = fresh(), *b = fresh(), *c = fresh();
    struct hx_sha256_state s;
    for (uint64_t n = 0; n < (1u << 29) + (1u << 20); n += 1 << 16) {
        hx_sha256_update_pair(a, b, data, 1 << 16);
        hx_sha256_update(c, data, 1 << 16);
    }
    assert_int_equal(hx_sha256_save(a, &s), 0);
    assert_int_equal(s.n_bytes, (1u << 29) + (1u << 20));
    uint8_t x[HX_SHA256_BYTES], y[HX_SHA256_BYTES], z[HX_SHA256_BYTES];
    hx_sha256_final(a, x);
    hx_sha256_final(b, y);
    hx_sha256_final(c, z);
    assert_memory_equal(x, z, sizeof(z));
    assert_memory_equal(y, z, sizeof(z));
    hx_sha256_free(a);
    hx_sha256_free(b);
    hx_sha256_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known), cmocka_unit_test(test_pair), cmocka_unit_test(test_copy),
        cmocka_unit_test(test_save),  cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
