/* Operations on the ranks' shares against the same operation on whole weights: rows that are cut
 * have the same bits, sums that are cut differ by their rounding alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/numerics.h"
#include "backend/kernels.h"
#include "base/rand.h"
#include "model/model.h"

#define N_RANKS 4
#define T       6

static const struct hx_backend *be;
static struct hx_device *dev;
static struct hx_model *whole, *rank[N_RANKS];
static struct hx_hparams shape;
static uint8_t bits[HX_MAX_LAYERS];

/* 5 blocks on 4 ranks; layers of 2 and 3 bits. */
static struct hx_model *open_model(int r, int n)
{
    const struct hx_synthetic syn = {.hp = &shape, .bits = bits, .seed = 8};
    const struct hx_model_options opt = {
        .backend = be, .dev = dev, .slice = {r, n}, .synthetic = &syn};
    struct hx_model *m;
    struct hx_error err;
    if (hx_model_open(NULL, &opt, &m, &err) < 0)
        fail_msg("%s", err.text);
    return m;
}

static int open_all(void **state)
{
    (void)state;
    struct hx_error err;
    be = hx_backend_select("cpu", NULL);
    if (be->open(0, &dev, &err) < 0 || hx_hparams_load("tests/vectors/model", &shape, &err) < 0)
        return -1;
    shape.n_ff = 640;
    memset(bits, 3, sizeof(bits));
    bits[3] = 2;
    whole = open_model(0, 0);
    for (int r = 0; r < N_RANKS; r++)
        rank[r] = open_model(r, N_RANKS);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    hx_model_close(whole);
    for (int r = 0; r < N_RANKS; r++)
        hx_model_close(rank[r]);
    be->close(dev);
    return 0;
}

static uint16_t *random_rows(int64_t n)
{
    struct hx_rng g;
    uint16_t *x = malloc((size_t)n * 2);
    assert_non_null(x);
    hx_rng_seed(&g, (uint64_t)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = hx_bf16((float)(hx_rng_uniform(&g) * 2 - 1));
    return x;
}

/* y [T, n_out] F32 of W x; columns from `from` of rows that are `width` wide. */
static float *product(const struct hx_weight *w, const uint16_t *x, int64_t width, int64_t from)
{
    struct hx_error err;
    uint16_t *some = malloc((size_t)(T * w->n_in) * 2);
    float *y = malloc((size_t)(T * w->n_out) * 4);
    assert_true(some && y);
    for (int t = 0; t < T; t++)
        memcpy(some + t * w->n_in, x + t * width + from, (size_t)w->n_in * 2);
    struct hx_tensor tx = {HX_DTYPE_BF16, 2, {T, w->n_in, 1, 1}, some},
                     ty = {HX_DTYPE_F32, 2, {T, w->n_out, 1, 1}, y};
    if (be->kernels->linear(dev, w, false, &tx, &ty, &err) < 0)
        fail_msg("%s", err.text);
    free(some);
    return y;
}

/* Cut outputs: each rank's columns have the bits of the whole product. */
static int check_rows(const struct hx_tensor_need *need)
{
    const struct hx_weight *w = hx_model_weight(whole, need->spec->role, need->layer, need->expert);
    uint16_t *x = random_rows(T * w->n_in);
    float *y = product(w, x, w->n_in, 0);
    int64_t at = 0;
    for (int r = 0; r < N_RANKS; r++) {
        const struct hx_weight *part =
            hx_model_weight(rank[r], need->spec->role, need->layer, need->expert);
        if (part->n_out == 0)
            continue;
        float *yr = product(part, x, w->n_in, 0);
        for (int t = 0; t < T; t++)
            assert_memory_equal(yr + t * part->n_out, y + t * w->n_out + at,
                                (size_t)part->n_out * 4);
        at += part->n_out;
        free(yr);
    }
    assert_int_equal(at, w->n_out);
    free(y);
    free(x);
    return 1;
}

/* Cut inputs: the sum of the partial products, in float32 and as bf16 messages. */
static int check_columns(const struct hx_tensor_need *need)
{
    const struct hx_weight *w = hx_model_weight(whole, need->spec->role, need->layer, need->expert);
    uint16_t *x = random_rows(T * w->n_in);
    float *y = product(w, x, w->n_in, 0), *part[N_RANKS] = {0};
    int64_t at = 0;
    for (int r = 0; r < N_RANKS; r++) {
        const struct hx_weight *p =
            hx_model_weight(rank[r], need->spec->role, need->layer, need->expert);
        if (p->n_in > 0)
            part[r] = product(p, x, w->n_in, at);
        at += p->n_in;
    }
    assert_int_equal(at, w->n_in);
    for (int64_t i = 0; i < T * w->n_out; i++) {
        float sum = 0, narrow = 0, size = 0;
        for (int r = 0; r < N_RANKS; r++) {
            float v = part[r] ? part[r][i] : 0;
            sum += v;
            narrow += hx_bf16_round(v);
            size += fabsf(v);
        }
        /* Four additions in float32; half a unit in the last of eight bits for each message. */
        if (fabsf(sum - y[i]) > size * 0x1p-22f || fabsf(narrow - y[i]) > size * 0x1.01p-8f)
            fail_msg("%s: output %lld: %g, sums %g and %g", need->name, (long long)i, (double)y[i],
                     (double)sum, (double)narrow);
    }
    for (int r = 0; r < N_RANKS; r++)
        free(part[r]);
    free(y);
    free(x);
    return 1;
}

struct seen {
    int rows, columns;
};

static int check_weight(void *user, const struct hx_tensor_need *need)
{
    struct seen *n = user;
    enum hx_split split = need->spec->split;
    bool vector = need->n_out == 1;
    if (split == HX_SPLIT_NONE || vector || (need->expert > 1 && need->expert < 6) ||
        (need->layer > 5 && need->layer < shape.n_layer))
        return 0;
    if (split == HX_SPLIT_COLUMN || need->spec->role == HX_T_EXPERT_W2)
        n->columns += check_columns(need);
    else if (need->spec->role != HX_T_ATTN_WO_A)
        n->rows += check_rows(need);
    return 0;
}

static void test_products(void **state)
{
    struct seen n = {0};
    (void)state;
    assert_int_equal(hx_tensors_each(&shape, hx_model_maps(whole), check_weight, &n), 0);
    assert_true(n.rows > 80 && n.columns > 40);
}

/* Output groups: a rank's groups see its own heads. */
static void test_groups(void **state)
{
    (void)state;
    const struct hx_weight *w = hx_model_weight(whole, HX_T_ATTN_WO_A, 2, -1);
    int64_t n_in = shape.o_groups * w->n_in, each = n_in / N_RANKS;
    uint16_t *x = random_rows(T * n_in), *y = malloc((size_t)(T * w->n_out) * 2),
             *some = malloc((size_t)(T * each) * 2), *yr = malloc((size_t)(T * w->n_out) * 2);
    struct hx_error err;
    assert_true(y && some && yr);
    struct hx_tensor tx = {HX_DTYPE_BF16, 3, {T, shape.o_groups, w->n_in, 1}, x},
                     ty = {HX_DTYPE_BF16, 2, {T, w->n_out, 1, 1}, y};
    assert_int_equal(be->kernels->linear_grouped(dev, w, shape.o_groups, &tx, &ty, &err), 0);
    for (int r = 0; r < N_RANKS; r++) {
        const struct hx_weight *p = hx_model_weight(rank[r], HX_T_ATTN_WO_A, 2, -1);
        int groups = shape.o_groups / N_RANKS;
        for (int t = 0; t < T; t++)
            memcpy(some + t * each, x + t * n_in + r * each, (size_t)each * 2);
        struct hx_tensor sx = {HX_DTYPE_BF16, 3, {T, groups, p->n_in, 1}, some},
                         sy = {HX_DTYPE_BF16, 2, {T, p->n_out, 1, 1}, yr};
        assert_int_equal(be->kernels->linear_grouped(dev, p, groups, &sx, &sy, &err), 0);
        for (int t = 0; t < T; t++)
            assert_memory_equal(yr + t * p->n_out, y + t * w->n_out + r * p->n_out,
                                (size_t)p->n_out * 2);
    }
    free(x);
    free(y);
    free(some);
    free(yr);
}

/* A layer's routed and shared experts on one model. y: F32 or BF16 [T, D]. */
static void experts(struct hx_model *m, int layer, const uint16_t *z, const int32_t *sel,
                    const float *weight, enum hx_dtype dtype, void *y)
{
    const struct hx_weight *w[3][64];
    static const enum hx_role role[3] = {HX_T_EXPERT_W1, HX_T_EXPERT_W2, HX_T_EXPERT_W3};
    struct hx_error err;
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < shape.n_expert; e++)
            w[i][e] = hx_model_weight(m, role[i], layer, e);
    }
    struct hx_tensor tz = {HX_DTYPE_BF16, 2, {T, shape.n_embd, 1, 1}, (void *)(uintptr_t)z},
                     ts = {HX_DTYPE_I32, 2, {T, 3, 1, 1}, (void *)(uintptr_t)sel},
                     tw = {HX_DTYPE_F32, 2, {T, 3, 1, 1}, (void *)(uintptr_t)weight},
                     ty = {dtype, 2, {T, shape.n_embd, 1, 1}, y};
    const struct hx_experts_args a = {.z = &tz,
                                      .w1 = w[0],
                                      .w2 = w[1],
                                      .w3 = w[2],
                                      .n_expert = shape.n_expert,
                                      .sel = &ts,
                                      .weight = &tw,
                                      .s1 = hx_model_weight(m, HX_T_SHARED_W1, layer, -1),
                                      .s2 = hx_model_weight(m, HX_T_SHARED_W2, layer, -1),
                                      .s3 = hx_model_weight(m, HX_T_SHARED_W3, layer, -1),
                                      .limit = 10,
                                      .y = &ty};
    if (be->kernels->experts(dev, &a, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_expert_layers(void **state)
{
    int64_t n = T * (int64_t)shape.n_embd;
    int32_t sel[T * 3];
    float weight[T * 3];
    (void)state;
    for (int i = 0; i < T * 3; i++) {
        sel[i] = (i / 3 + 2 * (i % 3)) % shape.n_expert;
        weight[i] = 0.2f + 0.1f * (float)(i % 5);
    }
    for (int layer = 2; layer < 4; layer++) {
        uint16_t *z = random_rows(n), *half = malloc((size_t)n * 2);
        float *y = malloc((size_t)n * 4), *part = malloc((size_t)n * 4),
              *sum = calloc((size_t)n, 4), *narrow = calloc((size_t)n, 4),
              *size = calloc((size_t)n, 4);
        assert_true(half && y && part && sum && narrow && size);
        experts(whole, layer, z, sel, weight, HX_DTYPE_F32, y);
        for (int r = 0; r < N_RANKS; r++) {
            experts(rank[r], layer, z, sel, weight, HX_DTYPE_F32, part);
            experts(rank[r], layer, z, sel, weight, HX_DTYPE_BF16, half);
            for (int64_t i = 0; i < n; i++) {
                sum[i] += part[i];
                narrow[i] += hx_bf16_value(half[i]);
                size[i] += fabsf(part[i]);
            }
        }
        float most = 0;
        for (int64_t i = 0; i < n; i++)
            most = fabsf(y[i]) > most ? fabsf(y[i]) : most;
        for (int64_t i = 0; i < n; i++) {
            /* The golden data's maker: 2^-7 of the largest output. */
            if (fabsf(sum[i] - y[i]) > most * 0x1p-20f || fabsf(narrow[i] - y[i]) > most * 0x1p-7f)
                fail_msg("layer %d, output %lld: %g, sums %g and %g", layer, (long long)i,
                         (double)y[i], (double)sum[i], (double)narrow[i]);
        }
        free(z);
        free(half);
        free(y);
        free(part);
        free(sum);
        free(narrow);
        free(size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_expert_layers),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
