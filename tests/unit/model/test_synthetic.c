/* Random models: a rank's share is a share of the whole, values have the size that products need,
 * routes stay among the experts that they are meant for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/exl3.h"
#include "model/model.h"

static const struct hx_backend *be;
static struct hx_device *dev;
static struct hx_hparams hp;
static uint8_t bits[HX_MAX_LAYERS];

static int open_device(void **state)
{
    (void)state;
    be = hx_backend_select("cpu", NULL);
    if (hx_hparams_load("tests/vectors/model", &hp, NULL) < 0)
        return -1;
    hp.n_ff = 640;
    memset(bits, 3, sizeof(bits));
    bits[2] = 2;
    bits[7] = 5;
    return be->open(0, &dev, NULL);
}

static int close_device(void **state)
{
    (void)state;
    be->close(dev);
    return 0;
}

static struct hx_model *make(const struct hx_synthetic *syn, int rank, int n_ranks)
{
    const struct hx_model_options o = {
        .backend = be, .dev = dev, .slice = {rank, n_ranks}, .synthetic = syn};
    struct hx_model *m;
    struct hx_error err;
    if (hx_model_open(NULL, &o, &m, &err) < 0)
        fail_msg("%s", err.text);
    return m;
}

/* ---- shares ---- */

struct compare {
    struct hx_model *whole, *rank;
    struct hx_slice slice;
    int n_cut;
};

static int compare(void *user, const struct hx_tensor_need *need)
{
    struct compare *k = user;
    const struct hx_weight *w =
        hx_model_weight(k->whole, need->spec->role, need->layer, need->expert);
    const struct hx_weight *part =
        hx_model_weight(k->rank, need->spec->role, need->layer, need->expert);
    struct hx_cut cut[HX_PART_MAX];
    struct hx_weight shape;
    if (need->spec->home == HX_HOME_NVME)
        return 0;
    assert_int_equal(hx_slice_weight(&k->slice, need, w, &shape, cut, NULL), 0);
    for (int p = 0; p < HX_PART_MAX; p++) {
        size_t n = w->part[p].n_dims ? hx_cut_bytes(&w->part[p], &cut[p]) : 0;
        if (n == 0)
            continue;
        uint8_t *want = malloc(n);
        assert_non_null(want);
        hx_cut_copy(&w->part[p], &cut[p], w->part[p].data, want);
        if (memcmp(want, part->part[p].data, n) != 0)
            fail_msg("%s: part %d of rank %d", need->name, p, k->slice.rank);
        free(want);
        k->n_cut += cut[p].dim >= 0;
    }
    return 0;
}

static void test_shares(void **state)
{
    (void)state;
    for (int exl3 = 0; exl3 < 2; exl3++) {
        const struct hx_synthetic syn = {.hp = &hp, .bits = exl3 ? bits : NULL, .seed = 5};
        struct hx_model *whole = make(&syn, 0, 0);
        for (int r = 0; r < 4; r++) {
            struct compare k = {whole, make(&syn, r, 4), {r, 4}, 0};
            assert_int_equal(hx_tensors_each(&hp, hx_model_maps(whole), compare, &k), 0);
            assert_true(k.n_cut > 500);
            hx_model_close(k.rank);
        }
        hx_model_close(whole);
    }
}

/* ---- values ---- */

/* Root mean square of a matrix' values times sqrt(inputs): what it makes of inputs of size 1. */
static double gain(const struct hx_weight *w)
{
    size_t n = (size_t)(w->n_out * w->n_in);
    double sum = 0, *m = malloc(n * sizeof(*m));
    assert_non_null(m);
    if (w->format == HX_FORMAT_EXL3) {
        hx_exl3_matrix(w, m);
    } else {
        for (int64_t o = 0; o < w->n_out; o++)
            hx_weight_row(w, o, m + o * w->n_in);
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(m[i]));
        sum += m[i] * m[i];
    }
    free(m);
    return sqrt(sum / (double)w->n_out);
}

static int check_gain(void *user, const struct hx_tensor_need *need)
{
    const struct hx_weight *w = hx_model_weight(user, need->spec->role, need->layer, need->expert);
    bool matrix = need->spec->naming == HX_NAME_LINEAR && need->spec->home == HX_HOME_DEVICE;
    if (!matrix || need->expert > 1)
        return 0;
    /* Gains are 0.3 to 1.5; scales are powers of two, which moves them by a root of two at most. */
    double g = gain(w);
    if (!(g > 0.3 / 1.5 && g < 1.5 * 1.5))
        fail_msg("%s: gain %g", need->name, g);
    return 0;
}

static void test_gains(void **state)
{
    (void)state;
    for (int exl3 = 0; exl3 < 2; exl3++) {
        const struct hx_synthetic syn = {.hp = &hp, .bits = exl3 ? bits : NULL, .seed = 6};
        struct hx_model *m = make(&syn, 0, 0);
        assert_int_equal(hx_tensors_each(&hp, hx_model_maps(m), check_gain, m), 0);
        hx_model_close(m);
    }
}

/* ---- routes ---- */

static void test_routes(void **state)
{
    struct hx_hparams h = hp;
    struct hx_error err;
    (void)state;
    h.n_expert = 64;
    const struct hx_synthetic syn = {.hp = &h, .n_local = 12, .seed = 7};
    struct hx_model *m = make(&syn, 0, 0);
    int first[2] = {-1, -1};
    for (int layer = 3; layer < 5; layer++) {
        enum { T = 40 };
        uint16_t z[T * 128];
        float score[T * 64], weight[T * 3];
        int32_t sel[T * 3];
        bool seen[64] = {0};
        int n = 0;
        for (int i = 0; i < T * 128; i++)
            z[i] = hx_bf16((float)((i * 2654435761u >> 16 & 255)) / 128 - 1);
        struct hx_tensor tz = {HX_DTYPE_BF16, 2, {T, 128, 1, 1}, z},
                         ts = {HX_DTYPE_F32, 2, {T, 64, 1, 1}, score},
                         tw = {HX_DTYPE_F32, 2, {T, 3, 1, 1}, weight},
                         te = {HX_DTYPE_I32, 2, {T, 3, 1, 1}, sel};
        assert_int_equal(h.n_embd, 128);
        const struct hx_route_args a = {.z = &tz,
                                        .gate = hx_model_weight(m, HX_T_GATE, layer, -1),
                                        .bias = hx_model_weight(m, HX_T_GATE_BIAS, layer, -1),
                                        .bias_vl = hx_model_weight(m, HX_T_GATE_BIAS_VL, layer, -1),
                                        .temp = 1,
                                        .route_scale = 1,
                                        .sel = &te,
                                        .weight = &tw,
                                        .score = &ts};
        assert_int_equal(be->kernels->route(dev, &a, &err), 0);
        for (int i = 0; i < T * 3; i++)
            seen[sel[i]] = true;
        for (int e = 0; e < 64; e++)
            n += seen[e];
        /* 120 draws reach nearly all of the twelve, and nothing else. */
        assert_in_range(n, 9, 12);
        for (int e = 0; e < 64; e++) {
            int in = 0;
            for (int k = 0; k < 12; k++)
                in += seen[(e + k) % 64];
            if (in == n && first[layer - 3] < 0)
                first[layer - 3] = e;
        }
        assert_true(first[layer - 3] >= 0);
    }
    assert_int_not_equal(first[0], first[1]); /* a layer has its own */
    hx_model_close(m);
    const struct hx_synthetic few = {.hp = &h, .n_local = 2}, many = {.hp = &h, .n_local = 65};
    const struct hx_model_options o[2] = {{.backend = be, .dev = dev, .synthetic = &few},
                                          {.backend = be, .dev = dev, .synthetic = &many}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hx_model_open(NULL, &o[i], &m, &err), -EINVAL);
        assert_non_null(strstr(err.text, "expected 3 to 64"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_gains),
        cmocka_unit_test(test_routes),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
