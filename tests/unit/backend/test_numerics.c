/* Number formats and the three activation grids. */
#include "vectors.h"

#define GOLDEN "tests/vectors/model/golden/golden.safetensors"

struct grid {
    const char *name;
    int bytes, n_scale; /* codes and scales of 64 channels */
    void (*quant)(const float *x, int n, uint8_t *codes, uint8_t *scales);
    void (*dequant)(const uint8_t *codes, const uint8_t *scales, int n, float *x);
};

static const struct grid grids[] = {
    {"fp8_block32", 64, 2, hx_quant_fp8_b32, hx_dequant_fp8_b32},
    {"fp4_block32", 32, 2, hx_quant_fp4_b32, hx_dequant_fp4_b32},
    {"fp4_block16", 32, 4, hx_quant_fp4_b16, hx_dequant_fp4_b16},
};

static void test_grids(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(GOLDEN);
    uint16_t *x = NULL;
    int64_t rows = vector(f, &x, "grid.x")->ne[0];
    for (int g = 0; g < 3; g++) {
        uint8_t *codes = NULL, *scales = NULL;
        uint16_t *value = NULL;
        assert_non_null(vector(f, &codes, "grid.%s.codes", grids[g].name));
        assert_non_null(vector(f, &scales, "grid.%s.scales", grids[g].name));
        assert_non_null(vector(f, &value, "grid.%s.value", grids[g].name));
        for (int64_t r = 0; r < rows; r++) {
            float xf[64], back[64];
            uint8_t c[64], s[4];
            hx_bf16_to_float(x + r * 64, 64, xf);
            grids[g].quant(xf, 64, c, s);
            assert_memory_equal(c, codes + r * grids[g].bytes, (size_t)grids[g].bytes);
            assert_memory_equal(s, scales + r * grids[g].n_scale, (size_t)grids[g].n_scale);
            grids[g].dequant(c, s, 64, back);
            for (int i = 0; i < 64; i++) {
                assert_true(hx_bf16_value(value[r * 64 + i]) == back[i]);
                assert_true(hx_bf16_round(back[i]) == back[i]); /* exact in bf16 */
            }
        }
        free(codes);
        free(scales);
        free(value);
    }
    free(x);
    hx_st_close(f);
}

/* Nearest code by search over all codes; ties to the even code. */
static uint8_t nearest_e4m3(float x)
{
    double a = fabs((double)x), best = INFINITY;
    int code = 0;
    for (int c = 0; c < 127; c++) {
        double d = fabs((double)hx_e4m3_table[c] - a);
        if (d < best || (d == best && !(c & 1))) {
            best = d;
            code = c;
        }
    }
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

static void test_e4m3(void **state)
{
    (void)state;
    assert_true(hx_e4m3_table[0x01] == 0x1p-9f && hx_e4m3_table[0x7E] == 448.0f);
    assert_true(hx_e4m3_table[0x08] == 0x1p-6f && hx_e4m3_table[0x38] == 1.0f);
    assert_true(isnan(hx_e4m3_table[0x7F]) && isnan(hx_e4m3_table[0xFF]));
    assert_int_equal(hx_e4m3_encode(0.0f), 0);
    assert_int_equal(hx_e4m3_encode(-0.0f), 0x80);
    assert_int_equal(hx_e4m3_encode(1e9f), 0x7E);
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7F) != 0x7F)
            assert_int_equal(hx_e4m3_encode(hx_e4m3_table[c]), c);
    }
    /* Every bf16 value up to 448, and the midpoints between codes. */
    for (uint32_t h = 0; h <= 0x43E0; h++) {
        float v = hx_bf16_value((uint16_t)h);
        assert_int_equal(hx_e4m3_encode(v), nearest_e4m3(v));
        assert_int_equal(hx_e4m3_encode(-v), nearest_e4m3(-v));
    }
    for (int c = 0; c < 126; c++) {
        float mid = (hx_e4m3_table[c] + hx_e4m3_table[c + 1]) / 2;
        assert_int_equal(hx_e4m3_encode(mid), c & 1 ? c + 1 : c);
        assert_int_equal(hx_e4m3_encode(nextafterf(mid, 1e9f)), c + 1);
        assert_int_equal(hx_e4m3_encode(nextafterf(mid, 0)), c);
    }
}

static void test_e2m1(void **state)
{
    (void)state;
    static const float ties[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    static const uint8_t even[7] = {0, 2, 2, 4, 4, 6, 6};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(hx_e2m1_encode(ties[i]), even[i]);
        assert_int_equal(hx_e2m1_encode(-ties[i]), even[i] | 8);
        assert_int_equal(hx_e2m1_encode(nextafterf(ties[i], 9)), i + 1);
        assert_int_equal(hx_e2m1_encode(nextafterf(ties[i], 0)), i);
    }
    for (int c = 0; c < 16; c++)
        assert_int_equal(hx_e2m1_encode(hx_e2m1_table[c]), c);
}

static void test_bf16_f16(void **state)
{
    (void)state;
    assert_int_equal(hx_bf16(1.0f), 0x3F80);
    assert_int_equal(hx_bf16(hx_from_bits(0x3F808000)), 0x3F80); /* tie to even */
    assert_int_equal(hx_bf16(hx_from_bits(0x3F818000)), 0x3F82);
    assert_int_equal(hx_bf16(hx_from_bits(0x3F808001)), 0x3F81);
    assert_int_equal(hx_bf16(INFINITY), 0x7F80);
    assert_true(isnan(hx_bf16_value(hx_bf16(NAN))));
    assert_true(hx_f16_value(0x3C00) == 1.0f && hx_f16_value(0xC931) == -10.3828125f);
    assert_true(hx_f16_value(0x0001) == 0x1p-24f && hx_f16_value(0x8400) == -0x1p-14f);
    assert_true(isinf(hx_f16_value(0x7C00)));
    assert_true(hx_e8m0(127) == 1.0f && hx_e8m0(0) == 0x1p-127f && hx_e8m0(254) == 0x1p127f);
    assert_int_equal(hx_pow2_scale(1.0f), 127);
    assert_int_equal(hx_pow2_scale(nextafterf(1.0f, 2)), 128);
}

/* The vectors of spec model.md section 4. */
static void test_scales(void **state)
{
    (void)state;
    static const struct {
        float amax;
        int fp8, fp4; /* exponents */
    } want[] = {{1, -8, -2}, {448, 0, 7}, {6, -6, 0}, {0, -22, -126}};
    for (size_t i = 0; i < 4; i++) {
        float x[32] = {want[i].amax};
        uint8_t codes[32], s[1];
        hx_quant_fp8_b32(x, 32, codes, s);
        assert_int_equal(s[0], 127 + want[i].fp8);
        hx_quant_fp4_b32(x, 32, codes, s);
        assert_int_equal(s[0], 127 + want[i].fp4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids),    cmocka_unit_test(test_e4m3),   cmocka_unit_test(test_e2m1),
        cmocka_unit_test(test_bf16_f16), cmocka_unit_test(test_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
