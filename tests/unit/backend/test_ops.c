/* Operations on given inputs: sink attention, Sinkhorn, choice and its ties, matrix products. */
#include "vectors.h"

#define GOLDEN "tests/vectors/model/golden/golden.safetensors"
#define TIE    "tests/vectors/model/golden/tie.safetensors"

static void test_attention(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    struct hx_st_file *f = vectors_open(GOLDEN);
    uint16_t *q = NULL, *kv = NULL, *want = NULL, o[4 * 128];
    float *sink = NULL, qf[4 * 128], kf[150 * 128];
    assert_non_null(vector(f, &q, "attn_op.q"));
    assert_non_null(vector(f, &kv, "attn_op.kv"));
    assert_non_null(vector(f, &sink, "attn_op.sink"));
    assert_non_null(vector(f, &want, "attn_op.o"));
    hx_bf16_to_float(q, 4 * 128, qf);
    hx_bf16_to_float(kv, 150 * 128, kf);
    assert_int_equal(
        hx_sink_attention(dev, qf, 4, 128, kf, 150, sink, (float)pow(128, -0.5), o, NULL), 0);
    assert_memory_equal(o, want, sizeof(o));
    free(q);
    free(kv);
    free(sink);
    free(want);
    hx_st_close(f);
    device_close(dev);
}

static void test_sinkhorn(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(GOLDEN);
    float *c = NULL, *want = NULL;
    assert_non_null(vector(f, &c, "mhc_op.logits"));
    assert_non_null(vector(f, &want, "mhc_op.comb"));
    for (int i = 0; i < 6; i++)
        hx_sinkhorn(c + i * 16, 4, 20, 1e-6f);
    assert_memory_equal(c, want, 6 * 16 * sizeof(float));
    free(c);
    free(want);
    hx_st_close(f);
    /* Spec model.md 3.2. */
    float v[16] = {1, 0, -1, 2, 0.5f, 0, 0, 0, 3, -2, 1, 0, 0, 1, 2, 3};
    static const float spec[16] = {.16071358f, .29078135f, .06567311f, .4828310f,
                                   .1542086f,  .4600101f,  .28240633f, .1033740f,
                                   .6680922f,  .02214346f, .27300027f, .03676309f,
                                   .01698468f, .2270641f,  .3789193f,  .37703097f};
    hx_sinkhorn(v, 4, 20, 1e-6f);
    for (int i = 0; i < 16; i++)
        assert_true(fabsf(v[i] - spec[i]) < 1e-6f);
}

static void test_ties_rows(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(TIE);
    for (int i = 0; i <= 10; i++) {
        float *score = NULL;
        int32_t *k = NULL, *want = NULL, *blocks = NULL, got[512];
        int64_t n = vector(f, &score, "rows.%d.score", i)->ne[0];
        const struct hx_st_tensor *tb = vector(f, &blocks, "rows.%d.blocks", i);
        int64_t n_want = vector(f, &want, "rows.%d.selected", i)->ne[0];
        assert_non_null(vector(f, &k, "rows.%d.k", i));
        if (tb) {
            for (int64_t j = 0; j < n; j++) {
                bool in = false;
                for (int64_t b = 0; b < tb->ne[0]; b++)
                    in |= blocks[b] == j / 4;
                score[j] = in ? score[j] : -INFINITY;
            }
        }
        assert_int_equal(hx_top_indices(score, n, *k, got), n_want);
        assert_memory_equal(got, want, (size_t)n_want * sizeof(*got));
        free(score);
        free(k);
        free(want);
        free(blocks);
    }
    hx_st_close(f);
}

static void test_ties_blocks(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(TIE);
    for (int i = 0; i <= 6; i++) {
        float *score = NULL;
        int32_t *limit = NULL, *want = NULL, got[2048];
        int64_t n = vector(f, &score, "blocks.%d.score", i)->ne[0];
        int64_t n_want = vector(f, &want, "blocks.%d.blocks", i)->ne[0];
        assert_non_null(vector(f, &limit, "blocks.%d.limits", i));
        float *work = malloc((size_t)(n + 1) * sizeof(*work));
        assert_non_null(work);
        assert_int_equal(hx_candidate_blocks(score, n, limit[1], limit[0], work, got), n_want);
        assert_memory_equal(got, want, (size_t)n_want * sizeof(*got));
        free(work);
        free(score);
        free(limit);
        free(want);
    }
    hx_st_close(f);
}

static void test_best_token(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    struct hx_error err = {0};
    float v[3 * 5] = {1,         4,         2,  4,         -1,    -INFINITY, -INFINITY, -INFINITY,
                      -INFINITY, -INFINITY, -3, -INFINITY, -0.5f, 3e38f,     3};
    int32_t got[3 * 2] = {-7, -7, -7, -7, -7, -7};
    const struct hx_tensor logits = {HX_DTYPE_F32, 3, {3, 1, 5, 1}, v};
    struct hx_tensor tokens = {HX_DTYPE_I32, 2, {3, 2, 1, 1}, got};
    assert_int_equal(hx_cpu_best(dev, &logits, &tokens, &err), 0);
    static const int32_t want[6] = {-7, 1, -7, 0, -7, 3};
    assert_memory_equal(got, want, sizeof(want));
    static const float bad[] = {INFINITY, NAN};
    for (int i = 0; i < 2; i++) {
        v[7] = bad[i];
        assert_int_equal(hx_cpu_best(dev, &logits, &tokens, &err), -EDOM);
        assert_non_null(strstr(err.text, "row 1 with logits"));
    }
    device_close(dev);
}

static void test_ties_router(void **state)
{
    (void)state;
    struct hx_st_file *f = vectors_open(TIE);
    for (int i = 0; i < 3; i++) {
        float *score = NULL, *bias = NULL, *weight = NULL, w[3], work[12];
        int32_t *want = NULL, got[3];
        int n = (int)vector(f, &score, "router.%d.score", i)->ne[0];
        int k = (int)vector(f, &want, "router.%d.selected", i)->ne[0];
        assert_non_null(vector(f, &bias, "router.%d.bias", i));
        assert_non_null(vector(f, &weight, "router.%d.weight", i));
        assert_int_equal(hx_route_choose(score, bias, n, k, true, 1.5f, work, got, w), 0);
        assert_memory_equal(got, want, (size_t)k * sizeof(*got));
        assert_memory_equal(w, weight, (size_t)k * sizeof(*w));
        score[1] = NAN;
        assert_int_equal(hx_route_choose(score, bias, n, k, true, 1.5f, work, got, w), -EDOM);
        free(score);
        free(bias);
        free(weight);
        free(want);
    }
    hx_st_close(f);
}

/* The index_select entry on keys in a view, released head sizes, 300 equal keys. */
static void test_ties_indexer(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    struct hx_st_file *f = vectors_open(TIE);
    uint8_t *q_bytes = NULL, *keys = NULL;
    uint16_t *w = NULL, q[32 * 128];
    float qf[128];
    assert_non_null(vector(f, &q_bytes, "indexer.q_bytes"));
    assert_non_null(vector(f, &keys, "indexer.key_bytes"));
    assert_non_null(vector(f, &w, "indexer.w"));
    for (int h = 0; h < 32; h++) {
        hx_dequant_fp4_b32(q_bytes + h * 64, q_bytes + 32 * 64 + h * 4, 128, qf);
        for (int i = 0; i < 128; i++)
            q[h * 128 + i] = hx_bf16(qf[i]);
    }
    /* 70 blocks of 10 rows each, rows of 64 + 4 bytes, blocks in falling order. */
    static uint8_t pool[70 * 680];
    int32_t table[70], seq[1] = {0};
    for (int b = 0; b < 70; b++)
        table[b] = 69 - b;
    struct hx_kv_stream key = {.base = pool,
                               .table = table,
                               .rows_per_block = 10,
                               .block_stride = 680,
                               .scale_offset = 640,
                               .data_bytes = 64,
                               .scale_bytes = 4};
    for (int j = 0; j < 700; j++) {
        memcpy(hx_kv_row_data(&key, j), keys + j * 68, 64);
        memcpy(hx_kv_row_scale(&key, j), keys + j * 68 + 64, 4);
    }
    struct hx_kv_view view = {.key = &key};
    const struct hx_kv_view *views[1] = {&view};
    int64_t pos[1] = {699};
    struct hx_batch batch = {.n_row = 1, .n_seq = 1, .seq = seq, .pos = pos, .kv = views};
    for (int mode = 0; mode < 2; mode++) {
        const char *name = mode ? "reference" : "w8a16";
        float *want_score = NULL, score[700];
        int32_t *want = NULL, sel[512];
        assert_non_null(vector(f, &want_score, "indexer.%s.score", name));
        assert_non_null(vector(f, &want, "indexer.%s.selected", name));
        struct hx_tensor tq = tensor(HX_DTYPE_BF16, q, 3, 1, 32, 128),
                         tw = tensor(HX_DTYPE_BF16, w, 2, 1, 32, 1),
                         ts = tensor(HX_DTYPE_I32, sel, 2, 1, 512, 1),
                         tscore = tensor(HX_DTYPE_F32, score, 2, 1, 700, 1);
        struct hx_index_args a = {.batch = &batch,
                                  .source = 0,
                                  .ratio = 1,
                                  .q = &tq,
                                  .w = &tw,
                                  .factor = 1.0f / 64,
                                  .reference = mode == 1,
                                  .topk = 512,
                                  .cand_block = 8,
                                  .n_cand = 1,
                                  .sel = &ts,
                                  .score = &tscore};
        assert_int_equal(hx_cpu_index_select(dev, &a, NULL), 0);
        assert_memory_equal(score, want_score, sizeof(score));
        assert_memory_equal(sel, want, sizeof(sel));
        /* A NaN head weight gives NaN scores: an error that says where. */
        uint16_t bad[32];
        struct hx_error err;
        memcpy(bad, w, sizeof(bad));
        bad[3] = 0x7FC0;
        tw.data = bad;
        assert_int_equal(hx_cpu_index_select(dev, &a, &err), -EDOM);
        assert_non_null(strstr(err.text, "position 699"));
        free(want_score);
        free(want);
    }
    free(q_bytes);
    free(keys);
    free(w);
    hx_st_close(f);
    device_close(dev);
}

struct ranked {
    float score;
    int32_t index;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_index(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1
                                                     : *(const int32_t *)a > *(const int32_t *)b;
}

/* Against a full sort: many equal values, both zeros, masked rows, up to 300,000 of them. */
static void test_top_against_sort(void **state)
{
    (void)state;
    static const int sizes[] = {1, 7, 511, 512, 513, 4096, 300000};
    uint32_t seed = 12345;
    float *score = malloc(300000 * sizeof(*score));
    struct ranked *r = malloc(300000 * sizeof(*r));
    assert_true(score && r);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int kind = 0; kind < 4; kind++) {
            int n = sizes[i], n_finite = 0, k = 512;
            int32_t got[512], want[512];
            for (int j = 0; j < n; j++) {
                uint32_t v = next_random(&seed);
                score[j] = kind == 0   ? (float)(v % 3) - 1
                           : kind == 1 ? (v & 1 ? 0.0f : -0.0f)
                           : kind == 2 ? (v % 5 ? -INFINITY : (float)(v % 1000))
                                       : (float)j; /* the heap's worst case */
                if (score[j] > -INFINITY)
                    r[n_finite++] = (struct ranked){score[j], j};
            }
            qsort(r, (size_t)n_finite, sizeof(*r), by_rank);
            int n_want = n_finite < k ? n_finite : k;
            for (int j = 0; j < n_want; j++)
                want[j] = r[j].index;
            qsort(want, (size_t)n_want, sizeof(*want), by_index);
            assert_int_equal(hx_top_indices(score, n, k, got), n_want);
            assert_memory_equal(got, want, (size_t)n_want * sizeof(*got));
        }
        score[sizes[i] - 1] = NAN;
        int32_t got[512];
        assert_int_equal(hx_top_indices(score, sizes[i], 512, got), -EDOM);
    }
    free(score);
    free(r);
}

/* ---- matrix products against the definition, and rows alone ---- */

struct matrix {
    struct hx_weight w;
    uint8_t data[96 * 128 * 4], scale[96 * 4];
};

static void fill_matrix(struct matrix *m, enum hx_format format, enum hx_dtype dtype, uint32_t seed)
{
    for (size_t i = 0; i < sizeof(m->data); i++)
        m->data[i] = (uint8_t)(next_random(&seed) & 0x77); /* no NaN code, no infinite exponent */
    for (size_t i = 0; i < sizeof(m->scale); i++)
        m->scale[i] = (uint8_t)(120 + next_random(&seed) % 12);
    m->w = (struct hx_weight){.format = format, .n_out = 96, .n_in = 128};
    m->w.part[HX_PART_DATA] = tensor(dtype, m->data, 2, 96, format == HX_FORMAT_FP4 ? 64 : 128, 1);
    if (format == HX_FORMAT_FP8)
        m->w.part[HX_PART_SCALE] = tensor(HX_DTYPE_F8_E8M0, m->scale, 2, 3, 4, 1);
    if (format == HX_FORMAT_FP4)
        m->w.part[HX_PART_SCALE] = tensor(HX_DTYPE_F8_E8M0, m->scale, 2, 96, 4, 1);
}

/* Element by the definition of the format (spec model.md 2.1). */
static double matrix_at(const struct matrix *m, int o, int i)
{
    int at = o * 128 + i;
    float f;
    switch (m->w.format) {
    case HX_FORMAT_FP8:
        return ldexp((double)hx_e4m3_table[m->data[at]], m->scale[o / 32 * 4 + i / 32] - 127);
    case HX_FORMAT_FP4:
        return ldexp((double)hx_e2m1_table[i % 2 ? m->data[at / 2] >> 4 : m->data[at / 2] & 15],
                     m->scale[o * 4 + i / 32] - 127);
    default:
        if (m->w.part[HX_PART_DATA].dtype == HX_DTYPE_BF16)
            return (double)hx_bf16_value(((const uint16_t *)(const void *)m->data)[at]);
        memcpy(&f, m->data + at * 4, 4);
        return (double)f;
    }
}

static void test_products(void **state)
{
    (void)state;
    static const struct {
        enum hx_format format;
        enum hx_dtype dtype;
    } kinds[] = {{HX_FORMAT_FP8, HX_DTYPE_F8_E4M3},
                 {HX_FORMAT_FP4, HX_DTYPE_I8},
                 {HX_FORMAT_DENSE, HX_DTYPE_BF16},
                 {HX_FORMAT_DENSE, HX_DTYPE_F32}};
    struct hx_device *dev = device_open();
    static struct matrix m;
    enum { T = 70 };
    static uint16_t x[T * 128];
    static float y[T * 96], one[96], reference[T * 96];
    uint32_t seed = 99;
    for (int i = 0; i < T * 128; i++)
        x[i] = hx_bf16((float)((int)(next_random(&seed) % 2001) - 1000) / 300.0f);
    for (size_t k = 0; k < 4; k++) {
        fill_matrix(&m, kinds[k].format, kinds[k].dtype, 5 + (uint32_t)k);
        assert_int_equal(hx_product(dev, &m.w, false, x, T, y, NULL), 0);
        assert_int_equal(hx_product(dev, &m.w, true, x, T, reference, NULL), 0);
        for (int t = 0; t < T; t++) {
            for (int o = 0; o < 96; o++) {
                long double sum = 0, size = 0;
                for (int i = 0; i < 128; i++) {
                    long double p = (long double)matrix_at(&m, o, i) *
                                    (long double)hx_bf16_value(x[t * 128 + i]);
                    sum += p;
                    size += fabsl(p);
                }
                assert_true(fabsl((long double)y[t * 96 + o] - sum) <=
                            fabsl(sum) * 0x1p-24L + size * 1e-15L);
                /* e4m3 inputs: a relative step of 2^-4 at most. */
                assert_true(fabsl((long double)reference[t * 96 + o] - sum) <= size * 0x1p-4L);
            }
            for (int q = 0; q < 2; q++) { /* a row alone gives the same bits */
                assert_int_equal(hx_product(dev, &m.w, q, x + t * 128, 1, one, NULL), 0);
                assert_memory_equal(one, (q ? reference : y) + t * 96, sizeof(one));
            }
        }
    }
    device_close(dev);
}

/* Group g of the outputs is W's rows of that group times group g of the input. */
static void test_grouped(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    static struct matrix m;
    static uint16_t x[5 * 3 * 128], y[5 * 96];
    static float whole[96];
    uint32_t seed = 3;
    fill_matrix(&m, HX_FORMAT_FP8, HX_DTYPE_F8_E4M3, 17);
    for (int i = 0; i < 5 * 3 * 128; i++)
        x[i] = hx_bf16((float)(next_random(&seed) % 100) / 50.0f - 1.0f);
    struct hx_tensor tx = tensor(HX_DTYPE_BF16, x, 3, 5, 3, 128),
                     ty = tensor(HX_DTYPE_BF16, y, 2, 5, 96, 1);
    assert_int_equal(hx_cpu_linear_grouped(dev, &m.w, 3, &tx, &ty, NULL), 0);
    for (int t = 0; t < 5; t++) {
        for (int g = 0; g < 3; g++) {
            assert_int_equal(hx_product(dev, &m.w, false, x + (t * 3 + g) * 128, 1, whole, NULL),
                             0);
            for (int o = g * 32; o < (g + 1) * 32; o++)
                assert_int_equal(y[t * 96 + o], hx_bf16(whole[o]));
        }
    }
    device_close(dev);
}

/* Spec model.md 3.3: pos 262143 and the second frequency of the released table. */
static void test_rope(void **state)
{
    (void)state;
    struct hx_device *dev = device_open();
    float freq[2] = {1.0f, hx_from_bits(0x3f300a3a)};
    uint16_t x[6] = {hx_bf16(5), hx_bf16(7), hx_bf16(1), 0, hx_bf16(1), 0};
    int64_t pos[1] = {262143};
    struct hx_tensor tx = tensor(HX_DTYPE_BF16, x, 2, 1, 6, 1),
                     tf = tensor(HX_DTYPE_F32, freq, 1, 2, 1, 1);
    assert_int_equal(hx_cpu_rope(dev, &tx, pos, &tf, false, NULL), 0);
    assert_int_equal(x[0], hx_bf16(5)); /* channels in front of the rotated ones stay */
    assert_int_equal(x[1], hx_bf16(7));
    assert_int_equal(x[4], hx_bf16(.9331519f));
    assert_int_equal(x[5], hx_bf16(-.3594822f));
    assert_int_equal(hx_cpu_rope(dev, &tx, pos, &tf, true, NULL), 0);
    assert_true(fabsf(hx_bf16_value(x[4]) - 1) < 0.01f && fabsf(hx_bf16_value(x[5])) < 0.01f);
    device_close(dev);
}

static void test_backend_names(void **state)
{
    (void)state;
    struct hx_error err;
    struct hx_device *dev = NULL;
    assert_null(hx_backend_select("vulkan", &err));
    assert_non_null(strstr(err.text, "vulkan"));
    assert_non_null(strstr(err.text, "cpu"));
    assert_int_equal(hx_backend_select("cpu", &err)->open(3, &dev, &err), -ENODEV);
    assert_null(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),        cmocka_unit_test(test_sinkhorn),
        cmocka_unit_test(test_ties_rows),        cmocka_unit_test(test_ties_blocks),
        cmocka_unit_test(test_ties_router),      cmocka_unit_test(test_ties_indexer),
        cmocka_unit_test(test_top_against_sort), cmocka_unit_test(test_products),
        cmocka_unit_test(test_grouped),          cmocka_unit_test(test_rope),
        cmocka_unit_test(test_best_token),       cmocka_unit_test(test_backend_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
