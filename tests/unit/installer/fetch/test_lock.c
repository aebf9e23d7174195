/* Lock files: what is read, what is refused and why, and that writing gives the same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../alloc.h"
#include "base/sha256.h"
#include "fetch/lock.h"
#include "sample_lock.h"

static struct hx_lock *parse_good(const char *text)
{
    struct hx_lock *lock = NULL;
    struct hx_error err = {0};
    if (hx_lock_parse(text, strlen(text), "test.json", &lock, &err) != 0)
        fail_msg("%s", err.text);
    return lock;
}

static void test_fields(void **state)
{
    (void)state;
    struct hx_lock *lock = parse_good(sample_lock);
    uint8_t sha256[32];
    assert_string_equal(lock->model, "tiny-1");
    assert_int_equal(lock->n_sources, 2);
    assert_string_equal(lock->sources[0].licence, "MIT");
    assert_null(lock->sources[1].licence);
    assert_int_equal(lock->sources[0].n_endpoints, 0);
    assert_int_equal(lock->sources[1].n_endpoints, 2);
    assert_string_equal(lock->sources[1].endpoints[1], "two");
    assert_int_equal(lock->n_files, 4);
    assert_int_equal(lock->files[0].group, HX_GROUP_SMALL);
    assert_int_equal(lock->files[1].group, HX_GROUP_EXPERTS);
    assert_int_equal(lock->files[1].n_chunk_sha256, 3);
    assert_int_equal(lock->files[1].chunk_sha256[1][0], 0xfe);
    assert_int_equal(lock->files[2].group, HX_GROUP_DENSE);
    assert_int_equal(lock->files[2].mode, HX_LOCK_CUT);
    assert_int_equal(lock->files[2].n_tensors, 3);
    assert_int_equal(lock->files[2].tensors[2].shape[1], 100);
    assert_int_equal(lock->files[3].group, HX_GROUP_ENGRAM);
    assert_int_equal(lock->files[3].chunk, 64u << 20);
    assert_string_equal(lock->expect_json, "{\"expert_matrices\":2}");
    assert_false(lock->complete); /* two tensors have no hash */
    assert_false(lock->made_here);
    assert_int_equal(hx_sha256_data(sample_lock, strlen(sample_lock), sha256), 0);
    assert_memory_equal(lock->sha256, sha256, 32);
    lock->files[2].tensors[1].has_sha256 = lock->files[2].tensors[2].has_sha256 = true;
    hx_lock_refresh(lock);
    assert_true(lock->complete);
    hx_lock_free(lock);
}

/* Written, read and written again: the same bytes, keys in order. */
static void test_round_trip(void **state)
{
    (void)state;
    struct hx_lock *lock = parse_good(sample_lock), *again;
    struct hx_buf a = HX_BUF_INIT(1 << 20), b = HX_BUF_INIT(1 << 20);
    struct hx_error err = {0};
    assert_int_equal(hx_lock_format(lock, &a, &err), 0);
    again = parse_good(hx_buf_cstr(&a));
    assert_int_equal(hx_lock_format(again, &b, &err), 0);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    const char *text = hx_buf_cstr(&a);
    const char *const keys[] = {"\"created\"", "\"expect\"",      "\"files\"",  "\"format\"",
                                "\"model\"",   "\"plan_sha256\"", "\"sources\""};
    for (size_t i = 1; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_true(strstr(text, keys[i - 1]) < strstr(text, keys[i]));
    hx_buf_done(&a);
    hx_buf_done(&b);
    hx_lock_free(lock);
    hx_lock_free(again);
}

static const struct {
    const char *from, *to;
    int nth;
    const char *reason;
} bad[] = {
    {"hybrid-lock-1", "hybrid-lock-2", 0, "format: expected hybrid-lock-1"},
    {"\"made_here\":false", "\"extra\":1", 0, "the key 'extra' is unknown"},
    {"\"made_here\":false", "\"model\":\"x\"", 0, "the key 'model' is there twice"},
    {"\"made_here\":false", "\"made_here\":1", 0, "made_here: expected true or false"},
    {"\"made_here\":false", "\"plan_sha256\":\"" HASH_A "\"", 0, "changed by hand"},
    {"\"made_here\":false", "\"plan_sha256\":\"12\"", 0, "plan_sha256: expected 64 hexadecimal"},
    {"\"tiny-1\"", "\"..\"", 0, "cannot be the name of a model folder"},
    {"\"tiny-1\"", "\"a/b\"", 0, "cannot be the name of a model folder"},
    {"\"tiny-1\"", "\"incoming\"", 0, "cannot be the name of a model folder"},
    {"\"tiny-1\"", "\"\"", 0, "model: expected a text"},
    {"\"tiny-1\"", "7", 0, "model: expected a text"},
    {"{\"expert_matrices\":2}", "[]", 0, "expect: expected an object"},
    {"{\"expert_matrices\":2}", "{\"a\":1e9999}", 0, "expect: a number out of range"},
    {COMMIT, "0123456789abcdef", 0, "sources[0].commit: expected a full commit id"},
    {COMMIT, "main", 1, "sources[1].commit: expected a full commit id"},
    {COMMIT, "0123456789ABCDEF0123456789abcdef01234567", 0, "sources[0].commit"},
    {"owner/name", "name", 0, "not of the form owner/name"},
    {"owner/name", "a/b/c", 0, "not of the form owner/name"},
    {"owner/name", "../name", 0, "not of the form owner/name"},
    {"\"id\":\"exl3\"", "\"id\":\"official\"", 0, "'official' is there twice"},
    {"[\"one\",\"two\"]", "\"one\"", 0, "endpoints: expected a list"},
    {"[\"one\",\"two\"]", "[1]", 0, "endpoints: expected names"},
    {"\"source\":\"exl3\"", "\"source\":\"mirror\"", 0, "files[1].source"},
    {"\"path\":\"config.json\"", "\"path\":\"../config.json\"", 0, "files[0].path"},
    {"\"out\":\"config.json\"", "\"out\":\"/etc/passwd\"", 0, "files[0].out"},
    {"\"out\":\"config.json\"", "\"out\":\"a/../../b\"", 0, "files[0].out"},
    {"\"out\":\"config.json\"", "\"out\":\"a\\\\b\"", 0, "files[0].out"},
    {"\"out\":\"config.json\"", "\"out\":\"a\\u0007\"", 0, "control character"},
    {"\"out\":\"config.json\"", "\"out\":\"state.json\"", 0, "hx-fetch itself uses"},
    {"\"out\":\"config.json\"", "\"out\":\"x.part\"", 0, "hx-fetch itself uses"},
    {"\"out\":\"config.json\"", "\"out\":\"dense/00003.safetensors\"", 0, "is there twice"},
    {"\"out\":\"config.json\"", "\"out\":\"dense\"", 0, "a file and the folder of another"},
    {"\"mode\":\"whole\"", "\"mode\":\"half\"", 0, "mode: expected whole or cut"},
    {"\"size\":100,", "\"size\":0,", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":-1,", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":1e3,", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":100.5,", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":\"100\",", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":9223372036854775808,", 0, "files[0].size"},
    {"\"size\":100,", "\"size\":9223372036854775807,", 0, "more than 1048576 chunks"},
    {"\"chunk\":4096", "\"chunk\":4097", 0, "multiple of 4096"},
    {"\"chunk\":4096", "\"chunk\":0", 0, "files[0].chunk"},
    {"\"chunk\":4096", "\"chunk\":2147483648", 0, "files[0].chunk"},
    {"\"sha256\":\"" HASH_A "\"", "\"sha256\":\"xyz\"", 0, "files[0].sha256"},
    {"\"" HASH_A "\",\"" HASH_B "\",\"" HASH_A "\"", "\"" HASH_A "\"", 0, "list of 3 hashes"},
    {"\"" HASH_A "\",\"" HASH_B "\",\"" HASH_A "\"", "1,2,3", 0, "number 0 is not 64"},
    {"\"header_bytes\":1000", "\"header_bytes\":102001", 0, "files[2].header_bytes"},
    {"\"header_bytes\":1000", "\"header_bytes\":9", 0, "files[2].header_bytes"},
    {"\"header_bytes\":1000", "\"header_bytes\":100000", 0, "files[2].tensors[2].begin"},
    {"\"chunk\":4096,", "\"chunk\":4096,\"chunks_checked\":1,", 0,
     "files[1].chunks_checked: expected true or false"},
    {"\"sha256\":\"" HASH_B "\",\"header_sha256\":\"" HASH_A "\",",
     "\"chunks_checked\":true,\"header_sha256\":\"" HASH_A "\",", 0,
     "files[1].chunks_checked: nothing to check against"},
    {"\"header_bytes\":1000,", "\"header_bytes\":1000,\"chunk_sha256\":[],", 0,
     "a cut file has hashes at its tensors"},
    {"\"name\":\"b\"", "\"name\":\"a\"", 0, "files[2].tensors: 'a' is there twice"},
    {"\"name\":\"b\"", "\"name\":\"__metadata__\"", 0, "is no tensor"},
    {"\"dtype\":\"F32\"", "\"dtype\":\"F33\"", 0, "files[2].tensors[0].dtype: 'F33' is unknown"},
    {"\"shape\":[10,10]", "\"shape\":[10,11]", 0, "its shape and dtype need 440"},
    {"\"shape\":[10,10]", "\"shape\":[-10,-10]", 0, "files[2].tensors[0].shape"},
    {"\"shape\":[10,10]", "\"shape\":[4294967296,4294967296]", 0, "files[2].tensors[0].shape"},
    {"\"shape\":[10,10]", "\"shape\":[1,1,1,1,1,1,1,10,10]", 0, "files[2].tensors[0].shape"},
    {"\"begin\":400", "\"begin\":399", 0, "its shape and dtype need 800"},
    {"\"begin\":400,\"end\":1200", "\"begin\":399,\"end\":1199", 0, "overlaps the one before it"},
    {"\"end\":94000", "\"end\":1", 0, "files[2].tensors[2].end"},
    {"\"end\":1200}", "\"end\":1200,\"end\":1200}", 0, "the key 'end' is there twice"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *text = sample_with(bad[i].from, bad[i].to, bad[i].nth);
        struct hx_lock *lock = NULL;
        struct hx_error err = {0};
        int r = hx_lock_parse(text, strlen(text), "test.json", &lock, &err);
        if (r != -EINVAL || lock)
            fail_msg("case %zu (%s) was not refused", i, bad[i].to);
        if (!strstr(err.text, bad[i].reason) || !strstr(err.text, "lock file test.json"))
            fail_msg("case %zu: '%s' does not say '%s'", i, err.text, bad[i].reason);
        free(text);
    }
}

static void test_bad_json(void **state)
{
    (void)state;
    const char *const texts[] = {
        "", "{", "[]", "null", "{}", "x", "{\"format\":\"hybrid-lock-1\"}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hx_lock *lock = NULL;
        struct hx_error err = {0};
        assert_int_equal(hx_lock_parse(texts[i], strlen(texts[i]), "x", &lock, &err), -EINVAL);
        assert_null(lock);
        assert_non_null(strstr(err.text, "lock file x"));
    }
    struct hx_lock *lock = NULL;
    struct hx_error err = {0};
    assert_int_equal(hx_lock_read("tests/vectors/no-such-lock.json", &lock, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no-such-lock.json"));
}

/* Hashes of pieces may be filled in later without making it another plan; content decides where it
 * is known. */
static void test_identity(void **state)
{
    (void)state;
    const struct {
        const char *from, *to;
        int nth;
        size_t file;
        bool same;
    } cases[] = {
        {"\"end\":400,\"sha256\":\"" HASH_A "\"", "\"end\":400", 0, 2, true},
        {"\"header_sha256\":\"" HASH_A "\",", "", 0, 1, true},
        {COMMIT, "1123456789abcdef0123456789abcdef01234567", 0, 0, true},
        {"\"path\":\"config.json\"", "\"path\":\"conf.json\"", 0, 0, true},
        {"\"sha256\":\"" HASH_A "\"", "\"sha256\":\"" HASH_B "\"", 0, 0, false},
        {"\"size\":100,\"sha256\":\"" HASH_A "\"", "\"size\":100", 0, 0, false},
        {"\"size\":100,", "\"size\":101,", 0, 0, false},
        {"\"chunk\":4096", "\"chunk\":8192", 0, 0, false},
        {"\"begin\":90000,\"end\":94000", "\"begin\":90001,\"end\":94001", 0, 2, false},
        {"\"name\":\"c\"", "\"name\":\"d\"", 0, 2, false},
    };
    struct hx_lock *lock = parse_good(sample_lock);
    struct hx_error err = {0};
    uint8_t a[32], b[32];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = sample_with(cases[i].from, cases[i].to, cases[i].nth);
        struct hx_lock *other = parse_good(text);
        size_t f = cases[i].file;
        assert_int_equal(hx_lock_file_identity(lock, &lock->files[f], a, &err), 0);
        assert_int_equal(hx_lock_file_identity(other, &other->files[f], b, &err), 0);
        if ((memcmp(a, b, 32) == 0) != cases[i].same)
            fail_msg("case %zu", i);
        hx_lock_free(other);
        free(text);
    }
    hx_lock_free(lock);
}

static void test_paths(void **state)
{
    (void)state;
    const char *const good[] = {"a", "a/b", "a.b", "..a", "a..", "dense/00001.safetensors"};
    const char *const wrong[] = {"",   "/",    "/a",  "a/",   "a//b", ".",
                                 "..", "a/..", "./a", "a\nb", "a\\b"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(hx_lock_path_ok(good[i]));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(hx_lock_path_ok(wrong[i]));
    char longest[258];
    memset(longest, 'a', sizeof(longest));
    longest[255] = '\0';
    assert_true(hx_lock_path_ok(longest));
    longest[255] = 'a';
    longest[256] = '\0';
    assert_false(hx_lock_path_ok(longest));
}

/* Each allocation fails once: an error, nothing leaked. */
static void test_no_memory(void **state)
{
    (void)state;
#if HX_TEST_ALLOC
    for (long n = 0;; n++) {
        struct hx_lock *lock = NULL;
        struct hx_error err = {0};
        long held = alloc_held;
        alloc_fail_at(n);
        int r = hx_lock_parse(sample_lock, strlen(sample_lock), "x", &lock, &err);
        bool hit = alloc_fail_end();
        if (!hit) {
            assert_int_equal(r, 0);
            hx_lock_free(lock);
            assert_true(n > 20);
            return;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(lock);
        assert_int_equal(alloc_held, held);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),    cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad),       cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_identity),  cmocka_unit_test(test_paths),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
