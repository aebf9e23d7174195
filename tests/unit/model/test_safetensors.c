/* Hostile safetensors headers: each mutation gets one error line with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "model/safetensors.h"

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"
#define A T("a", "F32", "[2,4]", 0, 32)
#define B T("b", "BF16", "[16]", 32, 64)

/* The data area has 64 bytes in every case. */
static const struct {
    const char *header, *reason;
} bad[] = {
    {"", "invalid JSON"},
    {"x", "invalid JSON"},
    {"[]", "not an object"},
    {"null", "not an object"},
    {"\"a\"", "not an object"},
    {"{" A "," B, "invalid JSON"},
    {"{" A "," B "}x", "invalid JSON"},
    {"{" A "," B ",}", "invalid JSON"},
    {"{\"a\":1," B "}", "not described by an object"},
    {"{\"a\":[]," B "}", "not described by an object"},
    {"{\"a\":{}," B "}", "no dtype"},
    {"{\"a\":{\"dtype\":5,\"shape\":[8],\"data_offsets\":[0,32]}," B "}", "no dtype"},
    {"{" T("a", "F33", "[2,4]", 0, 32) "," B "}", "unknown dtype"},
    {"{" T("a", "f32", "[2,4]", 0, 32) "," B "}", "unknown dtype"},
    {"{" T("a", "", "[2,4]", 0, 32) "," B "}", "unknown dtype"},
    {"{" T("a", "F32", "8", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "null", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[-8]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[8.0]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[8e0]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[\"8\"]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[1,1,1,2,4]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[4294967296,4294967296]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[18446744073709551616]", 0, 32) "," B "}", "bad shape"},
    {"{" T("a", "F32", "[9223372036854775807]", 0, 32) "," B "}", "bad shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[8]}," B "}", "bad data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0]}," B "}", "bad data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32,64]}," B "}",
     "bad data_offsets"},
    {"{" T("a", "F32", "[8]", -1, 32) "," B "}", "bad data_offsets"},
    {"{" T("a", "F32", "[8]", 0, 1e9) "," B "}", "bad data_offsets"},
    {"{" T("a", "F32", "[8]", 32, 0) "," B "}", "truncated file"},
    {"{" A "," T("b", "BF16", "[17]", 32, 66) "}", "truncated file"},
    {"{" T("a", "F32", "[8]", 0, 9223372036854775807) "," B "}", "truncated file"},
    {"{" T("a", "F32", "[2,5]", 0, 32) "," B "}", "its shape and dtype need 40"},
    {"{" T("a", "BF16", "[2,4]", 0, 32) "," B "}", "its shape and dtype need 16"},
    {"{" A "," T("b", "BF16", "[24]", 16, 64) "}", "overlaps"},
    {"{" A "," T("b", "F32", "[8]", 0, 32) "}", "overlaps"},
    {"{" A "," T("b", "BF16", "[15]", 34, 64) "}", "leaves a hole"},
    {"{" T("a", "F32", "[7]", 4, 32) "," B "}", "leaves a hole"},
    {"{" A "}", "32 bytes behind the last tensor"},
    {"{}", "64 bytes behind the last tensor"},
    {"{" A "," T("a", "BF16", "[16]", 32, 64) "}", "twice"},
    {"{\"__metadata__\":[]," A "," B "}", "__metadata__"},
    {"{\"__metadata__\":{\"k\":1}," A "," B "}", "__metadata__ holds a number"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}," B "}",
     "the key 'dtype' twice"},
    {" {" A "," B "}", "does not start with '{'"},
};

#define N_BAD (sizeof(bad) / sizeof(bad[0]))

static int parse(const char *header, struct hx_st_file **out, struct hx_error *err)
{
    size_t n = strlen(header);
    /* An exact heap copy, so that the address sanitizer sees a read past the end. */
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, header, n);
    int r = hx_st_parse("case", copy, n, 8 + n + 64, out, err);
    free(copy);
    return r;
}

static void test_hostile_headers(void **state)
{
    (void)state;
    assert_true(N_BAD >= 30);
    for (size_t i = 0; i < N_BAD; i++) {
        struct hx_st_file *f = NULL;
        struct hx_error err = {0};
        int r = parse(bad[i].header, &f, &err);
        if (r != -EINVAL || f)
            fail_msg("case %zu was not refused: %s", i, bad[i].header);
        if (!strstr(err.text, bad[i].reason) || strncmp(err.text, "case: ", 6) != 0)
            fail_msg("case %zu: '%s' does not say '%s'", i, err.text, bad[i].reason);
    }
}

static void test_good_header(void **state)
{
    struct hx_st_file *f;
    struct hx_error err;
    (void)state;
    /* Any order in the text; a scalar and an empty tensor; spaces behind. */
    if (parse("{\"__metadata__\":{\"k\":\"v\"}," T("c", "I32", "[]", 60, 64) "," T(
                  "b", "BF16", "[14]", 32, 60) "," A "," T("e", "U8", "[0,3]", 32, 32) "}   ",
              &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_st_count(f), 4);
    assert_string_equal(hx_st_at(f, 0)->name, "a");
    assert_int_equal(hx_st_find(f, "a")->ne[1], 4);
    assert_int_equal(hx_st_find(f, "c")->n_dims, 0);
    assert_int_equal(hx_st_find(f, "c")->size, 4);
    assert_int_equal(hx_st_find(f, "e")->size, 0);
    assert_null(hx_st_find(f, "d"));
    assert_int_equal(hx_st_fd(f), -1);
    hx_st_close(f);
    hx_st_close(NULL);
}

/* Every proper prefix of a good file is refused. */
static void test_truncated_file(void **state)
{
    static const char header[] = "{" A "," B "}";
    char path[] = "/tmp/hx-test-st-XXXXXX";
    uint8_t file[8 + sizeof(header) - 1 + 64] = {0};
    struct hx_st_file *f = NULL;
    struct hx_error err;
    (void)state;
    file[0] = sizeof(header) - 1;
    memcpy(file + 8, header, sizeof(header) - 1);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t n = 0; n < sizeof(file); n++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(hx_file_pwrite(fd, path, file, n, 0, &err), 0);
        if (hx_st_open(path, &f, &err) != -EINVAL)
            fail_msg("a file cut to %zu bytes was not refused", n);
        assert_non_null(strstr(err.text, path));
    }
    assert_int_equal(hx_file_pwrite(fd, path, file, sizeof(file), 0, &err), 0);
    assert_int_equal(hx_st_open(path, &f, &err), 0);
    /* Cut after it was opened: the read says so. */
    uint8_t data[32];
    assert_int_equal(ftruncate(fd, sizeof(file) - 1), 0);
    assert_int_equal(hx_st_read(f, hx_st_find(f, "b"), data, &err), -EIO);
    hx_st_close(f);
    close(fd);
    unlink(path);
}

static void test_round_trip(void **state)
{
    char path[] = "/tmp/hx-test-st-XXXXXX";
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const int32_t marker = -5;
    const int64_t ne[2] = {2, 3};
    float back[6];
    struct hx_st_writer *w;
    struct hx_st_file *f;
    struct hx_error err;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(hx_st_writer_new(&w, &err), 0);
    assert_int_equal(hx_st_writer_meta(w, "quote\"", "line\nbreak", &err), 0);
    assert_int_equal(hx_st_writer_add(w, "m", HX_DTYPE_I32, 0, NULL, &marker, &err), 0);
    assert_int_equal(hx_st_writer_add(w, "a", HX_DTYPE_F32, 2, ne, a, &err), 0);
    assert_int_equal(hx_st_writer_write(w, path, &err), 0);
    hx_st_writer_free(w);
    if (hx_st_open(path, &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_st_at(f, 0)->offset % 8, 0);
    assert_int_equal(hx_st_read(f, hx_st_find(f, "a"), back, &err), 0);
    assert_memory_equal(a, back, sizeof(a));
    hx_st_close(f);
    unlink(path);
}

/* Parts along each dimension, whole, empty and not there; the big one is read in pieces. */
static void test_parts(void **state)
{
    static const int64_t small[3] = {4, 6, 10}, big[3] = {9, 1024, 1024};
    char path[] = "/tmp/hx-test-st-XXXXXX";
    size_t n_big = (size_t)(9 * 1024 * 1024);
    uint16_t words[240];
    uint8_t *bytes = malloc(n_big), *part = malloc(n_big);
    struct hx_st_writer *w;
    struct hx_st_file *f;
    struct hx_error err;
    (void)state;
    assert_true(bytes && part);
    for (int i = 0; i < 240; i++)
        words[i] = (uint16_t)(i * 3);
    for (size_t i = 0; i < n_big; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(hx_st_writer_new(&w, &err), 0);
    assert_int_equal(hx_st_writer_add(w, "small", HX_DTYPE_I16, 3, small, words, &err), 0);
    assert_int_equal(hx_st_writer_add(w, "big", HX_DTYPE_U8, 3, big, bytes, &err), 0);
    assert_int_equal(hx_st_writer_write(w, path, &err), 0);
    hx_st_writer_free(w);
    assert_int_equal(hx_st_open(path, &f, &err), 0);
    const struct hx_st_tensor *t = hx_st_find(f, "small"), *b = hx_st_find(f, "big");
    for (int dim = 0; dim < 3; dim++) {
        for (int64_t from = 0; from <= small[dim]; from++) {
            for (int64_t to = from; to <= small[dim]; to++) {
                uint16_t got[240];
                int64_t n = 0;
                assert_int_equal(hx_st_read_part(f, t, dim, from, to, got, &err), 0);
                for (int64_t i = 0; i < 240; i++) {
                    const int64_t at[3] = {i / 60, i / 10 % 6, i % 10};
                    if (at[dim] >= from && at[dim] < to)
                        assert_int_equal(got[n++], words[i]);
                }
            }
        }
    }
    assert_int_equal(hx_st_read_part(f, b, 1, 300, 812, part, &err), 0);
    for (size_t r = 0; r < 9; r++)
        assert_memory_equal(part + r * 512 * 1024, bytes + (r * 1024 + 300) * 1024, 512 * 1024);
    assert_int_equal(hx_st_read_part(f, b, 2, 1, 1024, part, &err), 0);
    for (size_t r = 0; r < 9 * 1024; r += 511)
        assert_memory_equal(part + r * 1023, bytes + r * 1024 + 1, 1023);
    assert_int_equal(hx_st_read_part(f, t, 3, 0, 1, part, &err), -EINVAL);
    assert_int_equal(hx_st_read_part(f, t, -1, 0, 1, part, &err), -EINVAL);
    assert_int_equal(hx_st_read_part(f, t, 1, 2, 7, part, &err), -EINVAL);
    assert_int_equal(hx_st_read_part(f, t, 1, 3, 2, part, &err), -EINVAL);
    assert_int_equal(hx_st_read_part(f, t, 1, -1, 2, part, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no elements -1 to 2 of dimension 1"));
    assert_int_equal(truncate(path, 5000), 0);
    assert_true(hx_st_read_part(f, b, 1, 300, 812, part, &err) < 0);
    assert_non_null(strstr(err.text, "tensor 'big'"));
    hx_st_close(f);
    unlink(path);
    free(bytes);
    free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_headers), cmocka_unit_test(test_good_header),
        cmocka_unit_test(test_truncated_file),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
