/* The released inventory out of the tensor table (spec model.md 2.3), and shares of the ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/file.h"
#include "model/place.h"
#include "model/slice.h"
#include "released.h"

static struct hx_placement place(enum hx_layout layout)
{
    struct hx_hparams h = released();
    struct hx_maps maps;
    struct hx_placement p;
    struct hx_error err;
    if (hx_maps_derive(&h, &maps, &err) < 0 ||
        hx_place_config(&h, &maps, NULL, layout, &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

static void test_released_inventory(void **state)
{
    static const struct {
        int64_t n, bytes;
    } want[HX_COMP_MAX] = {
        [HX_COMP_EMBED] = {1, 1323827200},          [HX_COMP_HEAD] = {1, 1323827200},
        [HX_COMP_ATTENTION] = {520, 5069721600},    [HX_COMP_HC] = {240, 157295040},
        [HX_COMP_ROUTER] = {120, 157409280},        [HX_COMP_SHARED] = {240, 1416960000},
        [HX_COMP_EXPERTS] = {92160, 288777830400},  [HX_COMP_INDEXER] = {32, 45130752},
        [HX_COMP_COMPRESSOR] = {11, 36704256},      [HX_COMP_NORMS] = {81, 829440},
        [HX_COMP_ENGRAM_TABLE] = {4, 202758032400}, [HX_COMP_ENGRAM] = {8, 315043840},
        [HX_COMP_DRAFTER] = {2401, 7932874632},     [HX_COMP_VISION] = {266, 970536960},
    };
    struct hx_placement p = place(HX_LAYOUT_CPU);
    int64_t n = 0, bytes = 0;
    (void)state;
    for (int c = 0; c < HX_COMP_MAX; c++) {
        if (p.n_tensors[c] != want[c].n || p.bytes[c] != want[c].bytes)
            fail_msg("%s: %lld tensors, %lld bytes; expected %lld and %lld",
                     hx_component_name((enum hx_component)c), (long long)p.n_tensors[c],
                     (long long)p.bytes[c], (long long)want[c].n, (long long)want[c].bytes);
        n += p.n_tensors[c];
        bytes += p.bytes[c];
    }
    assert_int_equal(n, 96085);
    assert_int_equal(bytes, 510286023000);
    assert_int_equal(p.file_bytes, 202758032400);
    assert_int_equal(p.host_bytes, (384006168LL + 384016682) * 8);
}

/* The table that reads config.json holds the same values. */
static void test_released_table(void **state)
{
    struct hx_hparams h;
    struct hx_maps maps;
    struct hx_placement p, want = place(HX_LAYOUT_TP4);
    struct hx_error err;
    (void)state;
    hx_hparams_released(&h);
    assert_int_equal(hx_maps_derive(&h, &maps, &err), 0);
    assert_int_equal(hx_place_config(&h, &maps, NULL, HX_LAYOUT_TP4, &p, &err), 0);
    assert_memory_equal(&p, &want, sizeof(p));
    assert_int_equal(h.window, 128);
    assert_int_equal(h.draft_block, 5);
    assert_int_equal(h.max_positions, 1048576);
    assert_true(h.rms_eps > 0 && h.route_scale > 0 && h.norm_topk_prob);
}

/* Whatever the layout: the ranks together hold the inventory once, plus the counted copies. */
static void test_sums(void **state)
{
    (void)state;
    for (int l = 0; l < HX_LAYOUT_MAX; l++) {
        struct hx_placement p = place((enum hx_layout)l);
        int64_t ranks = 0, stored = 0;
        for (int c = 0; c < HX_COMP_MAX; c++) {
            stored += c == HX_COMP_VISION || c == HX_COMP_ENGRAM_TABLE ? 0 : p.bytes[c];
            for (int r = 0; r < p.n_ranks; r++)
                ranks += p.rank_bytes[r][c];
        }
        assert_int_equal(ranks, stored + p.copies);
        assert_true(l != HX_LAYOUT_CPU || p.copies == 0);
    }
}

static void test_tp4(void **state)
{
    struct hx_placement p = place(HX_LAYOUT_TP4);
    (void)state;
    for (int r = 0; r < 4; r++) {
        assert_int_equal(p.rank_bytes[r][HX_COMP_HEAD], 1323827200 / 4);
        assert_int_equal(p.rank_bytes[r][HX_COMP_SHARED], 1416960000 / 4);
        /* 384 experts turn the pattern 96 times: every rank has the same. */
        assert_int_equal(p.rank_bytes[r][HX_COMP_EXPERTS], 288777830400 / 4);
        assert_int_equal(p.rank_bytes[r][HX_COMP_HC], 157295040);
        /* spec model.md 8.1: 1.54 GB */
        assert_in_range(p.rank_bytes[r][HX_COMP_ATTENTION], 1535000000, 1545000000);
    }
}

static void test_pp4(void **state)
{
    struct hx_placement p = place(HX_LAYOUT_PP4);
    (void)state;
    for (int r = 0; r < 4; r++) {
        assert_int_equal(p.first_layer[r], 10 * r);
        assert_int_equal(p.rank_bytes[r][HX_COMP_EXPERTS], 288777830400 / 4);
    }
    assert_int_equal(p.rank_bytes[0][HX_COMP_EMBED], 1323827200);
    assert_int_equal(p.rank_bytes[1][HX_COMP_EMBED], 0);
    assert_int_equal(p.rank_bytes[3][HX_COMP_EMBED], 1323827200);
    assert_int_equal(p.rank_bytes[3][HX_COMP_DRAFTER], 7932874632);
    assert_int_equal(p.copies, 1323827200);
}

/* 18 blocks on 4 ranks: 5/5/4/4, turned by the expert; one block: one rank. */
static void test_expert_blocks(void **state)
{
    static const int want[4][4] = {{5, 5, 4, 4}, {4, 5, 5, 4}, {4, 4, 5, 5}, {5, 4, 4, 5}};
    (void)state;
    for (int e = 0; e < 12; e++) {
        for (int r = 0; r < 4; r++) {
            assert_int_equal(hx_slice_expert_blocks(18, 4, r, e), want[e % 4][r]);
            assert_int_equal(hx_slice_expert_blocks(1, 4, r, e), r == e % 4);
        }
    }
}

static void test_layout_that_does_not_divide(void **state)
{
    struct hx_hparams h = released();
    struct hx_maps maps;
    struct hx_placement p;
    struct hx_error err;
    (void)state;
    h.n_ff = 2304 + 32;
    assert_int_equal(hx_maps_derive(&h, &maps, &err), 0);
    assert_int_equal(hx_place_config(&h, &maps, NULL, HX_LAYOUT_CPU, &p, &err), 0);
    assert_int_equal(hx_place_config(&h, &maps, NULL, HX_LAYOUT_TP4, &p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "layers.0.ffn.experts.0.w1"));
    h = released();
    h.n_layer = 3;
    assert_int_equal(hx_place_config(&h, &maps, NULL, HX_LAYOUT_PP4, &p, &err), -EINVAL);
}

static void test_folder(void **state)
{
    struct hx_hparams h;
    struct hx_maps maps;
    struct hx_placement folder, config;
    struct hx_error err;
    (void)state;
    if (hx_place_folder("tests/vectors/model", HX_LAYOUT_TP4, &folder, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_hparams_load("tests/vectors/model", &h, &err), 0);
    assert_int_equal(hx_maps_derive(&h, &maps, &err), 0);
    assert_int_equal(hx_place_config(&h, &maps, NULL, HX_LAYOUT_TP4, &config, &err), 0);
    assert_memory_equal(&folder, &config, sizeof(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released_inventory),
        cmocka_unit_test(test_released_table),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_tp4),
        cmocka_unit_test(test_pp4),
        cmocka_unit_test(test_expert_blocks),
        cmocka_unit_test(test_layout_that_does_not_divide),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
