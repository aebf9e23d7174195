/* Stored values that are refused: each error names the tensor, the place in the whole tensor, its
 * block and the value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/values.h"

#define WHOLE                                                                                      \
    {                                                                                              \
        -1, 0, 0                                                                                   \
    }

/* `value` at element `at` of a part of good ones; shape: of the whole tensor. */
struct poke {
    enum hx_dtype dtype;
    enum hx_format format;
    int n_dims;
    int64_t ne[3];
    struct hx_cut cut;
    uint64_t at;
    uint32_t value;
    const char *error; /* NULL: taken */
};

static const struct poke pokes[] = {
    /* e4m3: 0x7F and 0xFF are NaN, 0x7E is 448 */
    {HX_DTYPE_F8_E4M3, HX_FORMAT_FP8, 2, {64, 96}, WHOLE, 0, 0x7E, NULL},
    {HX_DTYPE_F8_E4M3, HX_FORMAT_FP8, 2, {64, 96}, WHOLE, 0, 0xFE, NULL},
    {HX_DTYPE_F8_E4M3,
     HX_FORMAT_FP8,
     2,
     {64, 96},
     WHOLE,
     0,
     0x7F,
     "element 0 (row 0, column 0, block 0, 0): code 0x7f is NaN"},
    {HX_DTYPE_F8_E4M3,
     HX_FORMAT_FP8,
     2,
     {64, 96},
     WHOLE,
     33 * 96 + 65,
     0xFF,
     "element 3233 (row 33, column 65, block 1, 2): code 0xff is NaN"},
    {HX_DTYPE_F8_E4M3,
     HX_FORMAT_FP8,
     2,
     {64, 96},
     WHOLE,
     64 * 96 - 1,
     0x7F,
     "element 6143 (row 63, column 95, block 1, 2): code 0x7f is NaN"},
    {HX_DTYPE_F8_E4M3,
     HX_FORMAT_FP8,
     2,
     {128, 96},
     {0, 64, 128},
     0,
     0xFF,
     "element 6144 (row 64, column 0, block 2, 0): code 0xff is NaN"},
    {HX_DTYPE_F8_E4M3,
     HX_FORMAT_FP8,
     2,
     {64, 128},
     {1, 64, 96},
     2 * 32 + 1,
     0xFF,
     "element 321 (row 2, column 65, block 0, 2): code 0xff is NaN"},
    /* UE8M0 of FP8: 255 is NaN, larger than 134 overflows */
    {HX_DTYPE_F8_E8M0, HX_FORMAT_FP8, 2, {2, 3}, WHOLE, 4, 0, NULL},
    {HX_DTYPE_F8_E8M0, HX_FORMAT_FP8, 2, {2, 3}, WHOLE, 4, 134, NULL},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP8,
     2,
     {2, 3},
     WHOLE,
     4,
     135,
     "element 4 (block 1, 1): exponent 135 overflows: expected at most 134"},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP8,
     2,
     {2, 3},
     WHOLE,
     4,
     254,
     "element 4 (block 1, 1): exponent 254 overflows: expected at most 134"},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP8,
     2,
     {2, 3},
     WHOLE,
     5,
     255,
     "element 5 (block 1, 2): exponent 255 is NaN: expected at most 134"},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP8,
     2,
     {4, 3},
     {0, 2, 4},
     1,
     255,
     "element 7 (block 2, 1): exponent 255 is NaN"},
    /* UE8M0 of FP4 */
    {HX_DTYPE_F8_E8M0, HX_FORMAT_FP4, 2, {128, 8}, WHOLE, 1000, 128, NULL},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP4,
     2,
     {128, 8},
     WHOLE,
     1000,
     129,
     "element 1000 (block 125, 0): exponent 129 overflows: expected at most 128"},
    {HX_DTYPE_F8_E8M0,
     HX_FORMAT_FP4,
     2,
     {128, 8},
     {1, 4, 6},
     3,
     255,
     "element 13 (block 1, 5): exponent 255 is NaN: expected at most 128"},
    /* FP4 codes and trellises: any bits are values */
    {HX_DTYPE_I8, HX_FORMAT_FP4, 2, {32, 32}, WHOLE, 7, 0xFF, NULL},
    {HX_DTYPE_I16, HX_FORMAT_EXL3, 3, {8, 8, 48}, WHOLE, 7, 0xFFFF, NULL},
    /* numbers */
    {HX_DTYPE_BF16, HX_FORMAT_DENSE, 1, {5000}, WHOLE, 4999, 0x7F7F, NULL},
    {HX_DTYPE_BF16,
     HX_FORMAT_DENSE,
     1,
     {5000},
     WHOLE,
     4999,
     0x7F80,
     "element 4999 is not a finite number"},
    {HX_DTYPE_BF16,
     HX_FORMAT_DENSE,
     2,
     {64, 100},
     {0, 32, 64},
     4097 - 3200,
     0xFFC0,
     "element 4097 (row 40, column 97) is not a finite number"},
    {HX_DTYPE_F16,
     HX_FORMAT_EXL3,
     1,
     {256},
     {0, 128, 256},
     3,
     0x7C00,
     "element 131 is not a finite number"},
    {HX_DTYPE_F16, HX_FORMAT_EXL3, 1, {256}, WHOLE, 3, 0x7BFF, NULL},
    {HX_DTYPE_F32,
     HX_FORMAT_DENSE,
     1,
     {24},
     WHOLE,
     23,
     0x7F800000u,
     "element 23 is not a finite number"},
    {HX_DTYPE_F32,
     HX_FORMAT_DENSE,
     2,
     {2, 5000},
     WHOLE,
     9000,
     0xFFC00001u,
     "element 9000 (row 1, column 4000) is not a finite number"},
    {HX_DTYPE_F32, HX_FORMAT_DENSE, 1, {24}, WHOLE, 23, 0x7F7FFFFFu, NULL},
};

static void test_pokes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(pokes) / sizeof(pokes[0]); i++) {
        const struct poke *p = &pokes[i];
        struct hx_st_tensor t = {.name = "some.tensor", .dtype = p->dtype, .n_dims = p->n_dims};
        struct hx_error err = {0};
        uint64_t n = 1;
        size_t size = hx_dtype_size(p->dtype);
        for (int k = 0; k < p->n_dims; k++) {
            t.ne[k] = p->ne[k];
            n *= (uint64_t)(k == p->cut.dim ? p->cut.to - p->cut.from : p->ne[k]);
        }
        uint8_t *data = malloc(n * size);
        assert_non_null(data);
        memset(data, 0x3C, n * size);
        memcpy(data + p->at * size, &p->value, size);
        int r = hx_values_check("file", &t, &p->cut, p->format, data, n, &err);
        free(data);
        if (!p->error) {
            if (r != 0)
                fail_msg("row %zu: %s", i, err.text);
            continue;
        }
        assert_int_equal(r, -EINVAL);
        if (strncmp(err.text, "file: tensor 'some.tensor': ", 28) != 0 ||
            !strstr(err.text, p->error))
            fail_msg("row %zu: %s", i, err.text);
    }
}

/* The first of several is named; an empty part is good. */
static void test_first(void **state)
{
    (void)state;
    struct hx_st_tensor t = {
        .name = "t", .dtype = HX_DTYPE_F8_E8M0, .n_dims = 2, .ne = {100, 100, 1, 1}};
    const struct hx_cut whole = WHOLE, none = {0, 0, 0};
    struct hx_error err = {0};
    uint8_t *data = calloc(1, 10000);
    assert_non_null(data);
    data[4095] = 200;
    data[4096] = 255;
    data[9999] = 255;
    assert_int_equal(hx_values_check("f", &t, &whole, HX_FORMAT_FP8, data, 10000, &err), -EINVAL);
    assert_non_null(strstr(err.text, "element 4095 (block 40, 95): exponent 200 overflows"));
    assert_int_equal(hx_values_check("f", &t, &none, HX_FORMAT_FP8, data, 0, &err), 0);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pokes),
        cmocka_unit_test(test_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
