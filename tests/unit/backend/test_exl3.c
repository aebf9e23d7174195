/* EXL3: every fixture decodes to its stated values; products; real shapes of padding. */
#include "vectors.h"

#include "backend/cpu/exl3.h"

#define DIR "tests/vectors/exl3/"

static const char *const codebook_name[HX_CODEBOOK_MAX] = {"3inst", "mcg", "mul1"};

static void test_codebooks(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(DIR "codebooks.safetensors");
    for (int c = 0; c < HX_CODEBOOK_MAX; c++) {
        uint16_t *want = NULL;
        assert_non_null(vector(f, &want, "%s", codebook_name[c]));
        for (int s = 0; s < 65536; s++) {
            if (hx_exl3_code((enum hx_codebook)c, (uint16_t)s) != want[s])
                fail_msg("%s: state %d", codebook_name[c], s);
        }
        free(want);
    }
    hx_st_close(f);
}

static void check_tiles(const struct hx_st_file *f, const char *name, enum hx_codebook c, int bits)
{
    uint16_t *trellis = NULL, *states = NULL, *inner = NULL;
    assert_non_null(vector(f, &trellis, "%s.trellis", name));
    assert_non_null(vector(f, &inner, "%s.inner", name));
    const struct hx_st_tensor *t = vector(f, &states, "%s.states", name);
    for (int tile = 0; tile < 2; tile++) {
        uint16_t got[256];
        double value[256];
        hx_exl3_tile_states(trellis + tile * 16 * bits, bits, got);
        if (t)
            assert_memory_equal(got, states + tile * 256, sizeof(got));
        hx_exl3_tile(c, bits, trellis + tile * 16 * bits, value, 16);
        for (int i = 0; i < 256; i++)
            assert_true(value[i] == (double)hx_f16_value(inner[i / 16 * 32 + tile * 16 + i % 16]));
    }
    free(trellis);
    free(states);
    free(inner);
}

static void test_tiles(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(DIR "tiles_all_bitrates.safetensors");
    char name[32];
    for (int bits = 1; bits <= 8; bits++) {
        for (int c = 0; c < HX_CODEBOOK_MAX; c++) {
            snprintf(name, sizeof(name), "k%d.%s", bits, codebook_name[c]);
            check_tiles(f, name, (enum hx_codebook)c, bits);
        }
    }
    check_tiles(f, "k3.mul1.zeros", HX_CODEBOOK_MUL1, 3);
    check_tiles(f, "k3.mul1.ones", HX_CODEBOOK_MUL1, 3);
    hx_st_close(f);
}

/* A matrix of a fixture file; part data must be freed with weight_done. */
static struct hx_weight weight_load(const struct hx_st_file *f, const char *name)
{
    static const char *const part[HX_PART_MAX] = {[HX_PART_DATA] = "trellis",
                                                  [HX_PART_SUH] = "suh",
                                                  [HX_PART_SVH] = "svh",
                                                  [HX_PART_BIAS] = "bias"};
    struct hx_weight w = {.format = HX_FORMAT_EXL3, .layer = -1, .expert = -1};
    for (int i = 0; i < HX_PART_MAX; i++) {
        const struct hx_st_tensor *t =
            part[i] ? vector(f, &w.part[i].data, "%s.%s", name, part[i]) : NULL;
        if (!t)
            continue;
        w.part[i].dtype = t->dtype;
        w.part[i].n_dims = t->n_dims;
        for (int d = 0; d < 4; d++)
            w.part[i].ne[d] = d < t->n_dims ? t->ne[d] : 1;
    }
    assert_non_null(w.part[HX_PART_DATA].data);
    void *mark = NULL;
    w.codebook = vector(f, &mark, "%s.mul1", name)  ? HX_CODEBOOK_MUL1
                 : vector(f, &mark, "%s.mcg", name) ? HX_CODEBOOK_MCG
                                                    : HX_CODEBOOK_3INST;
    free(mark);
    w.bits = (int)w.part[HX_PART_DATA].ne[2] / 16;
    w.n_in = w.part[HX_PART_DATA].ne[0] * 16;
    w.n_out = w.part[HX_PART_DATA].ne[1] * 16;
    return w;
}

static void weight_done(struct hx_weight *w)
{
    for (int i = 0; i < HX_PART_MAX; i++)
        free(w->part[i].data);
}

/* binary16 bits of a double, rounded once: by search, independent of the code under test. */
static double nearest_f16(double v)
{
    double best = 0, second = INFINITY;
    uint16_t code = 0;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        double d = fabs(fabs(v) - (double)hx_f16_value((uint16_t)h));
        if (d < second || (d == second && !(h & 1))) {
            second = d;
            code = (uint16_t)h;
        }
    }
    best = (double)hx_f16_value(code);
    return v < 0 ? -best : best;
}

static const char *const layer_files[] = {"mul1_k2", "mul1_k3",    "mul1_k4",
                                          "mcg_k3",  "default_k4", "padded_mul1_k2"};

static void check_matrix(const struct hx_st_file *f, const struct hx_weight *w, const char *name)
{
    uint16_t *inner = NULL;
    void *full = NULL;
    size_t n = (size_t)(w->n_in * w->n_out);
    double *got = malloc(n * sizeof(double));
    assert_non_null(got);
    assert_non_null(vector(f, &inner, "expect.inner"));
    hx_exl3_inner(w, got);
    for (size_t i = 0; i < n; i++) {
        if (got[i] != (double)hx_f16_value(inner[i]))
            fail_msg("%s: inner element %zu", name, i);
    }
    const struct hx_st_tensor *t = vector(f, &full, "expect.W");
    hx_exl3_matrix(w, got);
    size_t step = t->dtype == HX_DTYPE_F32 ? 1 : 61; /* the search for binary16 is slow */
    for (size_t i = 0; i < n; i += step) {
        double want, have;
        if (t->dtype == HX_DTYPE_F32) {
            want = (double)((float *)full)[i];
            have = (double)(float)got[i];
        } else {
            want = (double)hx_f16_value(((uint16_t *)full)[i]);
            have = nearest_f16(got[i]);
        }
        /* Ours is exact; where that lies midway between two values the file, which was rounded
         * from an inexact sum, may have either. */
        if (want != have && 2 * got[i] != want + have)
            fail_msg("%s: W element %zu is %.10g, expected %.10g", name, i, have, want);
    }
    free(inner);
    free(full);
    free(got);
}

static double rel_rms(const float *got, const float *want, int64_t n)
{
    double d = 0, a = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        a += (double)want[i] * (double)want[i];
    }
    return sqrt(d / a);
}

static void test_layers(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    for (size_t i = 0; i < sizeof(layer_files) / sizeof(layer_files[0]); i++) {
        char path[128];
        snprintf(path, sizeof(path), DIR "%s.safetensors", layer_files[i]);
        struct hx_st_file *f = vectors_open(path);
        struct hx_weight w = weight_load(f, "w");
        check_matrix(f, &w, layer_files[i]);
        uint16_t *x16 = NULL;
        float *want = NULL;
        const struct hx_st_tensor *t = vector(f, &x16, "x");
        assert_non_null(vector(f, &want, "expect.y"));
        int n = (int)t->ne[0];
        double *x = malloc((size_t)(n * w.n_in) * sizeof(double));
        float *y = malloc((size_t)(n * w.n_out) * sizeof(float));
        assert_true(x && y);
        for (int64_t j = 0; j < n * w.n_in; j++)
            x[j] = (double)hx_f16_value(x16[j]);
        assert_int_equal(hx_exl3_product(dev, &w, x, n, y, NULL), 0);
        double e = rel_rms(y, want, n * w.n_out);
        print_message("%s: products, relative RMS %.3g\n", layer_files[i], e);
        assert_true(e < 1e-6);
        if (strcmp(layer_files[i], "padded_mul1_k2") == 0) { /* logical widths inside the padding */
            struct hx_weight cut = w;
            cut.n_in = 72;
            cut.n_out = 200;
            double *xc = malloc((size_t)(n * cut.n_in) * sizeof(double));
            float *yc = malloc((size_t)(n * cut.n_out) * sizeof(float));
            assert_true(xc && yc);
            for (int64_t r = 0; r < n; r++)
                memcpy(xc + r * 72, x + r * w.n_in, 72 * sizeof(double));
            assert_int_equal(hx_exl3_product(dev, &cut, xc, n, yc, NULL), 0);
            for (int64_t r = 0; r < n; r++)
                assert_memory_equal(yc + r * 200, y + r * w.n_out, 200 * sizeof(float));
            free(xc);
            free(yc);
        }
        free(x);
        free(y);
        free(x16);
        free(want);
        weight_done(&w);
        hx_st_close(f);
    }
    device_close(dev);
}

/* silu(min(a, 10)) clamp(b, -10, 10) in double, from exact products: the fixture's own definition.
 */
static void moe_case(struct hx_device *dev, const struct hx_st_file *f, int layer)
{
    uint16_t *x16 = NULL;
    int32_t *ids = NULL;
    float *weights = NULL, *want = NULL, *want_h = NULL;
    const struct hx_st_tensor *t = vector(f, &ids, "case.%d.topk_ids", layer);
    assert_non_null(vector(f, &x16, "case.%d.x", layer));
    assert_non_null(vector(f, &weights, "case.%d.topk_weights", layer));
    assert_non_null(vector(f, &want, "case.%d.expect.y", layer));
    assert_non_null(vector(f, &want_h, "case.%d.expect.h", layer));
    int k = (int)t->ne[1];
    struct hx_weight w[4][3];
    for (int e = 0; e < 4; e++) {
        for (int m = 0; m < 3; m++) {
            char name[64];
            snprintf(name, sizeof(name), "layers.%d.ffn.experts.%d.w%d", layer, e, m + 1);
            w[e][m] = weight_load(f, name);
        }
    }
    float y[5 * 256] = {0}, h_all[5 * 4 * 128];
    for (int r = 0; r < 5; r++) {
        double x[256], h[128];
        float a[128], b[128], out[256];
        for (int i = 0; i < 256; i++)
            x[i] = (double)hx_f16_value(x16[r * 256 + i]);
        for (int s = 0; s < k; s++) {
            const struct hx_weight *e = w[ids[r * k + s]];
            assert_int_equal(hx_exl3_product(dev, &e[0], x, 1, a, NULL), 0);
            assert_int_equal(hx_exl3_product(dev, &e[2], x, 1, b, NULL), 0);
            for (int i = 0; i < 128; i++) {
                double ga = fmin((double)a[i], 10), ub = fmax(fmin((double)b[i], 10), -10);
                h[i] = ga / (1 + exp(-ga)) * ub;
                h_all[(r * k + s) * 128 + i] = (float)h[i];
            }
            assert_int_equal(hx_exl3_product(dev, &e[1], h, 1, out, NULL), 0);
            for (int i = 0; i < 256; i++)
                y[r * 256 + i] += weights[r * k + s] * out[i];
        }
    }
    double eh = rel_rms(h_all, want_h, 5 * k * 128), ey = rel_rms(y, want, 5 * 256);
    print_message("moe layer %d: h relative RMS %.3g, y %.3g\n", layer, eh, ey);
    assert_true(eh < 1e-5 && ey < 1e-5);
    for (int e = 0; e < 4; e++) {
        for (int m = 0; m < 3; m++)
            weight_done(&w[e][m]);
    }
    free(x16);
    free(ids);
    free(weights);
    free(want);
    free(want_h);
}

static void test_moe(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    struct hx_st_file *f = vectors_open(DIR "moe_mul1.safetensors");
    moe_case(dev, f, 0);
    moe_case(dev, f, 1);
    hx_st_close(f);
    device_close(dev);
}

/* A row's product does not depend on the rows beside it. */
static void test_rows_alone(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    struct hx_st_file *f = vectors_open(DIR "mul1_k3.safetensors");
    struct hx_weight w = weight_load(f, "w");
    double x[8 * 256];
    float all[8 * 384], one[384];
    uint32_t s = 7;
    for (int i = 0; i < 8 * 256; i++)
        x[i] = (double)(int32_t)next_random(&s) / 1e9;
    assert_int_equal(hx_exl3_product(dev, &w, x, 8, all, NULL), 0);
    for (int r = 0; r < 8; r++) {
        assert_int_equal(hx_exl3_product(dev, &w, x + r * 256, 1, one, NULL), 0);
        assert_memory_equal(one, all + r * 384, sizeof(one));
    }
    weight_done(&w);
    hx_st_close(f);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codebooks),  cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_layers),     cmocka_unit_test(test_moe),
        cmocka_unit_test(test_rows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
