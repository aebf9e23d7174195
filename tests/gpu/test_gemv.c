/* Products of few rows on the card: the fast kernel against the plain one, every row with the bits
 * it has alone, several matrices in one launch with the bits each has alone, a NaN in one row only.
 */
#include "gpu.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/launch.h"

#define MAX_ROWS 48
#define BOUND    2e-6 /* relative RMS of a row: float32 sums of exact products */

struct shape {
    const char *name;
    int64_t n_out, n_in;
    bool fp8;
    int shift; /* bytes by which the scales miss a word */
};

static const struct shape shapes[] = {
    {"least", 32, 64, true, 0},
    {"least BF16", 32, 64, false, 0},
    {"half a stage", 96, 192, true, 0},
    {"a quarter of shared w2", 5120, 576, true, 0},
    {"scales between words", 512, 512, true, 1},
    {"wq_a", 1280, 5120, true, 0},
    {"a quarter of wq_b", 8192, 1280, true, 0},
    {"shared w2", 5120, 2304, true, 0},
    {"a quarter of wo_b", 5120, 2048, true, 0},
    {"wide", 3200, 6144, true, 0},
    {"wider", 512, 8192, true, 0},
    {"odd stages", 64, 10368, true, 0},
    {"router", 384, 5120, false, 0},
    {"small BF16", 128, 1280, false, 0},
    {"wide BF16", 4128, 5120, false, 0},
};

struct test {
    const struct shape *sh;
    const struct hx_backend *fast, *plain;
    struct hx_device *fast_dev, *plain_dev;
    struct hx_buffer *buf;
    uint8_t *host, *device;
    size_t data_at, scale_at, x_at, y_at, used, size;
};

static size_t take(struct test *t, size_t n)
{
    size_t at = t->used;
    t->used += (n + 255) / 256 * 256;
    assert_true(t->used <= t->size);
    return at;
}

/* Codes of all kinds but NaN, exponents of real weights and a few far ones; inputs about 1, with
 * outliers, zeros and subnormal numbers. */
static void fill(struct test *t)
{
    const struct shape *sh = t->sh;
    struct hx_rng rng;
    hx_rng_seed(&rng, (uint64_t)(sh->n_out * 7 + sh->n_in));
    for (int64_t i = 0; i < sh->n_out * sh->n_in; i++) {
        uint64_t v = hx_rng_next(&rng);
        if (sh->fp8)
            t->host[t->data_at + (size_t)i] = (uint8_t)((v & 0x7F) == 0x7F ? v & 0x87 : v);
        else
            ((uint16_t *)(t->host + t->data_at))[i] = (uint16_t)((v & 0x80FF) | 0x3C00);
    }
    for (int64_t i = 0; i < sh->n_out / 32 * (sh->n_in / 32); i++) {
        uint64_t v = hx_rng_next(&rng);
        t->host[t->scale_at + (size_t)i] = (uint8_t)(v % 61 == 0 ? 100 + v % 32 : 116 + v % 5);
    }
    uint16_t *x = (uint16_t *)(t->host + t->x_at);
    for (int64_t i = 0; i < MAX_ROWS * sh->n_in; i++) {
        double v = hx_rng_uniform(&rng) * 2 - 1;
        x[i] = i % 97 == 0   ? bf16((float)(v * 300))
               : i % 89 == 0 ? 0
               : i % 83 == 0 ? 0x0003
                             : bf16((float)v);
    }
}

static struct hx_weight weight_of(const struct test *t)
{
    const struct shape *sh = t->sh;
    struct hx_weight w = {
        .format = sh->fp8 ? HX_FORMAT_FP8 : HX_FORMAT_DENSE, .n_out = sh->n_out, .n_in = sh->n_in};
    w.part[HX_PART_DATA] = (struct hx_tensor){sh->fp8 ? HX_DTYPE_F8_E4M3 : HX_DTYPE_BF16,
                                              2,
                                              {sh->n_out, sh->n_in, 1, 1},
                                              t->device + t->data_at};
    if (sh->fp8)
        w.part[HX_PART_SCALE] = (struct hx_tensor){
            HX_DTYPE_F8_E8M0, 2, {sh->n_out / 32, sh->n_in / 32, 1, 1}, t->device + t->scale_at};
    return w;
}

/* y of n rows from `first` on, float32. */
static void compute(struct test *t, bool fast, int first, int n, float *y)
{
    const struct shape *sh = t->sh;
    const struct hx_backend *be = fast ? t->fast : t->plain;
    struct hx_device *dev = fast ? t->fast_dev : t->plain_dev;
    struct hx_weight w = weight_of(t);
    size_t bytes = (size_t)(n * sh->n_out) * 4;
    struct hx_tensor x = {
        HX_DTYPE_BF16, 2, {n, sh->n_in, 1, 1}, t->device + t->x_at + first * sh->n_in * 2};
    struct hx_tensor to = {HX_DTYPE_F32, 2, {n, sh->n_out, 1, 1}, t->device + t->y_at};
    memset(y, 0xFF, bytes);
    CHECK(be->upload(dev, to.data, y, bytes, ERR));
    CHECK(be->kernels->linear(dev, &w, false, &x, &to, ERR));
    CHECK(be->download(dev, y, to.data, bytes, ERR));
    CHECK(be->sync(dev, ERR));
}

static void same_rows(struct test *t, const float *all, float *y)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31};
    int64_t n_out = t->sh->n_out;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        int n = counts[k];
        for (int first = 0; first + n <= MAX_ROWS; first += n * 3 + 1) {
            compute(t, true, first, n, y);
            for (int r = 0; r < n; r++) {
                if (memcmp(y + r * n_out, all + (first + r) * n_out, (size_t)n_out * 4) != 0)
                    fail_msg("row %d of %d from %d on has other bits than among %d", r, n, first,
                             MAX_ROWS);
            }
        }
    }
}

static void cuda(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fail_msg("%s: %s", what, cudaGetErrorString(e));
}

/* The upper 32 rows, the whole matrix and the lower part in one launch. */
static void together(struct test *t, const float *all)
{
    const struct shape *sh = t->sh;
    struct hx_cuda_weight one = {.format = (int32_t)(sh->fp8 ? HX_FORMAT_FP8 : HX_FORMAT_DENSE),
                                 .is_bf16 = !sh->fp8,
                                 .scale_columns = (int32_t)(sh->n_in / 32),
                                 .n_out = sh->n_out,
                                 .n_in = sh->n_in,
                                 .data = t->device + t->data_at,
                                 .scale = t->device + t->scale_at};
    struct hx_cuda_weight w[3] = {one, one, one};
    int64_t skip = sh->n_out > 64 ? 64 : 0, row = sh->n_in * (sh->fp8 ? 1 : 2);
    w[0].n_out = 32;
    w[2].n_out = sh->n_out - skip;
    w[2].data = (const uint8_t *)one.data + skip * row;
    w[2].scale = one.scale + skip / 32 * one.scale_columns;
    float *y = (float *)(t->device + t->y_at);
    float *to[3] = {y, y + 8 * 32, y + 8 * 32 + 8 * sh->n_out};
    const int64_t from[3] = {0, 0, skip};
    size_t n = (size_t)(8 * (32 + 2 * sh->n_out));
    float *got = malloc(n * 4);
    assert_non_null(got);
    cuda(cudaMemset(y, 0xFF, n * 4), "memset");
    cuda(hx_cu_gemv_many(0, w, 3, (uint16_t *)(t->device + t->x_at), sh->n_in, 7, NULL, to, 60),
         "three matrices");
    cuda(cudaMemcpy(got, y, n * 4, cudaMemcpyDeviceToHost), "copy");
    for (int i = 0; i < 3; i++) {
        for (int r = 0; r < 7; r++) {
            const float *a = got + (to[i] - y) + r * w[i].n_out;
            if (memcmp(a, all + r * sh->n_out + from[i], (size_t)w[i].n_out * 4) != 0)
                fail_msg("matrix %d, row %d: other bits than alone", i, r);
        }
    }
    free(got);
}

/* A NaN and an infinity in a row each: those rows are not finite, others keep their bits. */
static void bad_rows(struct test *t, const float *all, float *y)
{
    int64_t n_in = t->sh->n_in, n_out = t->sh->n_out;
    uint16_t *x = (uint16_t *)(t->host + t->x_at);
    x[2 * n_in + 5] = 0x7FC0;
    x[4 * n_in + n_in - 1] = 0x7F80;
    CHECK(t->fast->upload(t->fast_dev, t->device + t->x_at, x, (size_t)(6 * n_in) * 2, ERR));
    compute(t, true, 0, 6, y);
    for (int r = 0; r < 6; r++) {
        bool same = memcmp(y + r * n_out, all + r * n_out, (size_t)n_out * 4) == 0;
        if ((r == 2 || r == 4) && isfinite(y[r * n_out]))
            fail_msg("row %d is finite", r);
        if (r != 2 && r != 4 && !same)
            fail_msg("row %d differs beside a NaN", r);
    }
}

static void test_shape(void **state)
{
    struct test *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    const struct shape *sh = t->sh = *state;
    size_t weights = (size_t)(sh->n_out * sh->n_in) * (sh->fp8 ? 1 : 2);
    t->size = weights + weights / 512 + (size_t)(MAX_ROWS * (sh->n_in * 2 + sh->n_out * 8)) + 65536;
    t->host = calloc(1, t->size);
    assert_non_null(t->host);
    t->data_at = take(t, weights);
    t->scale_at = take(t, weights / 1024 + 8) + (size_t)sh->shift;
    t->x_at = take(t, (size_t)(MAX_ROWS * sh->n_in) * 2);
    t->y_at = take(t, (size_t)(MAX_ROWS * sh->n_out) * 8);
    CHECK((t->fast = hx_backend_select("cuda", ERR)) ? 0 : -1);
    CHECK((t->plain = hx_backend_select("cuda-exact", ERR)) ? 0 : -1);
    CHECK(t->fast->open(0, &t->fast_dev, ERR));
    CHECK(t->plain->open(0, &t->plain_dev, ERR));
    CHECK(t->fast->alloc(t->fast_dev, HX_MEM_DEVICE, t->size, &t->buf, ERR));
    t->device = t->fast->address(t->buf);
    fill(t);
    CHECK(t->fast->upload(t->fast_dev, t->device, t->host, t->used, ERR));
    CHECK(t->fast->sync(t->fast_dev, ERR));
    size_t all_bytes = (size_t)(MAX_ROWS * sh->n_out) * 4;
    float *want = malloc(all_bytes), *all = malloc(all_bytes), *y = malloc(all_bytes);
    assert_true(want && all && y);
    compute(t, false, 0, MAX_ROWS, want);
    compute(t, true, 0, MAX_ROWS, all);
    double worst = 0;
    for (int r = 0; r < MAX_ROWS; r++) {
        double v = distance(HX_DTYPE_F32, all + r * sh->n_out, want + r * sh->n_out, sh->n_out);
        worst = v > worst ? v : worst;
    }
    print_message("%s, %lld x %lld: worst row %.2g\n", sh->name, (long long)sh->n_out,
                  (long long)sh->n_in, worst);
    assert_true(worst <= BOUND);
    same_rows(t, all, y);
    together(t, all);
    bad_rows(t, all, y);
    free(want);
    free(all);
    free(y);
    t->fast->free(t->buf);
    t->fast->close(t->fast_dev);
    t->plain->close(t->plain_dev);
    free(t->host);
    free(t);
}

int main(int argc, char **argv)
{
    enum { N = sizeof(shapes) / sizeof(shapes[0]) };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = shapes[i].name,
                                       .test_func = test_shape,
                                       .initial_state = (void *)(uintptr_t)&shapes[i]};
    return run_group("gemv", tests, N, NULL, NULL, argc, argv);
}
