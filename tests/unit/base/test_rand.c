/* SHA-256 and random numbers against published and recorded values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/rand.h"
#include "base/sha256.h"

static void test_sha256_known(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t repeat;
        const char *hex;
    } row[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_sha256 *h = NULL;
        uint8_t digest[HX_SHA256_BYTES], once[HX_SHA256_BYTES];
        char hex[HX_SHA256_HEX];
        assert_int_equal(hx_sha256_new(&h, NULL), 0);
        for (size_t k = 0; k < row[i].repeat; k++)
            assert_int_equal(hx_sha256_update(h, row[i].text, strlen(row[i].text)), 0);
        assert_int_equal(hx_sha256_final(h, digest), 0);
        hx_sha256_free(h);
        hx_sha256_to_hex(digest, hex);
        assert_string_equal(hex, row[i].hex);
        if (row[i].repeat == 1) {
            assert_int_equal(hx_sha256_data(row[i].text, strlen(row[i].text), once), 0);
            assert_memory_equal(once, digest, sizeof(once));
        }
    }
    hx_sha256_free(NULL);
}

static void test_sha256_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/hx-test-sha-XXXXXX", hex[HX_SHA256_HEX] = "untouched";
    uint64_t size = 7;
    struct hx_error err;
    assert_non_null(mkdtemp(dir));
    char *path = hx_path_join(dir, "file"), *pipe_path = hx_path_join(dir, "pipe");
    char *text = malloc(3000000);
    memset(text, 'q', 3000000);
    assert_int_equal(hx_file_replace(path, text, 3000000, &err), 0);
    assert_int_equal(hx_sha256_file(path, hex, &size, &err), 0);
    assert_int_equal(size, 3000000);
    uint8_t digest[HX_SHA256_BYTES];
    char want[HX_SHA256_HEX];
    hx_sha256_data(text, 3000000, digest);
    hx_sha256_to_hex(digest, want);
    assert_string_equal(hex, want);
    /* Refusals leave the results alone and never wait. */
    size = 7;
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(hx_sha256_file(pipe_path, hex, &size, &err), -EINVAL);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(hx_sha256_file(dir, hex, &size, &err), -EINVAL);
    unlink(path);
    assert_int_equal(hx_sha256_file(path, hex, &size, &err), -ENOENT);
    assert_int_equal(size, 7);
    assert_string_equal(hex, want);
    unlink(pipe_path);
    rmdir(dir);
    free(text);
    free(path);
    free(pipe_path);
}

static uint64_t as_u64(struct hx_jv v)
{
    size_t len;
    char text[32] = "";
    const char *s = hx_jv_number_text(v, &len);
    assert_non_null(s);
    assert_true(len < sizeof(text));
    memcpy(text, s, len);
    return strtoull(text, NULL, 10);
}

static unsigned __int128 as_u128(struct hx_jv v)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    unsigned __int128 n = 0;
    assert_non_null(s);
    for (size_t i = 0; i < len; i++)
        n = n << 4 | (unsigned)(s[i] <= '9' ? s[i] - '0' : s[i] - 'a' + 10);
    return n;
}

static void test_pcg64_recorded(void **state)
{
    (void)state;
    char *text;
    size_t len;
    struct hx_json *doc = NULL;
    struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
    assert_int_equal(hx_file_read("tests/vectors/engram/rng.json", 1 << 20, &text, &len, NULL), 0);
    assert_int_equal(hx_json_parse(text, len, &lim, &doc, NULL), 0);
    free(text);
    int n_cases = 0;
    struct hx_jv cases = hx_jv_get(hx_json_root(doc), "cases");
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c), n_cases++) {
        uint32_t seed = (uint32_t)as_u64(hx_jv_get(c, "seed")), words[8];
        int i = 0;
        hx_seed_sequence(seed, words, 8);
        struct hx_jv w = hx_jv_get(c, "seed_sequence_words_u32");
        for (struct hx_jv v = hx_jv_first(w); v.doc; v = hx_jv_next(v))
            assert_int_equal(words[i++], as_u64(v));
        assert_int_equal(i, 8);
        struct hx_pcg64 g;
        hx_pcg64_seed(&g, seed);
        assert_true(g.state == as_u128(hx_jv_get(c, "pcg_state_hex")));
        assert_true(g.inc == as_u128(hx_jv_get(c, "pcg_inc_hex")));
        i = 0;
        struct hx_jv raw = hx_jv_get(c, "raw_u64");
        for (struct hx_jv v = hx_jv_first(raw); v.doc; v = hx_jv_next(v), i++)
            assert_true(hx_pcg64_next(&g) == as_u64(v));
        assert_int_equal(i, 6);
    }
    assert_int_equal(n_cases, 3);
    hx_json_free(doc);
}

static void test_bounds(void **state)
{
    (void)state;
    static const uint64_t bound[] = {1, 2, 3, 1000, 1u << 31, UINT64_MAX / 2 + 2, UINT64_MAX};
    struct hx_pcg64 g;
    hx_pcg64_seed(&g, 1);
    for (size_t i = 0; i < sizeof(bound) / sizeof(bound[0]); i++) {
        for (int k = 0; k < 10000; k++)
            assert_true(hx_pcg64_below(&g, bound[i]) < bound[i]);
    }
    /* Even over a bound that does not divide 2^64: chi-square with 9 degrees of freedom. */
    int count[10] = {0};
    double chi = 0;
    for (int k = 0; k < 100000; k++)
        count[hx_pcg64_below(&g, 10)]++;
    for (int k = 0; k < 10; k++)
        chi += (count[k] - 10000.0) * (count[k] - 10000.0) / 10000.0;
    assert_true(chi < 35); /* exceeded once in 20,000 seeds */
}

static void test_sampling_generator(void **state)
{
    (void)state;
    /* First words of splitmix64 from seed 0, as its author publishes them. */
    assert_true(hx_mix64(0) == 0xE220A8397B1DCDAFu);
    assert_true(hx_mix64(0x9E3779B97F4A7C15u) == 0x6E789E6AA1B965F4u);
    struct hx_rng a, b, c;
    hx_rng_seed(&a, 42);
    hx_rng_seed(&b, 42);
    hx_rng_seed(&c, 43);
    int same = 0;
    double sum = 0, least = 1, most = 0;
    for (int i = 0; i < 100000; i++) {
        uint64_t x = hx_rng_next(&a);
        assert_true(x == hx_rng_next(&b));
        same += x == hx_rng_next(&c);
        double u = hx_rng_uniform(&a);
        hx_rng_next(&b);
        sum += u;
        least = u < least ? u : least;
        most = u > most ? u : most;
    }
    assert_int_equal(same, 0);
    assert_true(least >= 0 && least < 0.001 && most < 1 && most > 0.999);
    assert_true(sum / 100000 > 0.495 && sum / 100000 < 0.505);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_known),       cmocka_unit_test(test_sha256_file),
        cmocka_unit_test(test_pcg64_recorded),     cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_sampling_generator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
