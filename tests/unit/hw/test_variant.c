/* Variants and bounds against the reference data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "hw/variant.h"

static struct hx_json *doc;

static int setup(void **state)
{
    (void)state;
    char *text;
    size_t len;
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    if (hx_file_read("tests/vectors/hardware/thresholds.json", 1 << 20, &text, &len, NULL) < 0)
        return -1;
    int r = hx_json_parse(text, len, &limits, &doc, NULL);
    free(text);
    return r;
}

static int teardown(void **state)
{
    (void)state;
    hx_json_free(doc);
    return 0;
}

/* A number at "a/b" or "a". */
static double at(const char *path)
{
    char first[64];
    const char *slash = strchr(path, '/');
    double d = -1;
    size_t n = slash ? (size_t)(slash - path) : strlen(path);
    assert_true(n < sizeof(first));
    memcpy(first, path, n);
    first[n] = '\0';
    struct hx_jv v = hx_jv_get(hx_json_root(doc), first);
    if (slash)
        v = hx_jv_get(v, slash + 1);
    assert_true(hx_jv_double(v, &d));
    return d;
}

static void test_limits(void **state)
{
    (void)state;
    const struct hx_hw_limits *l = &hx_hw_limits;
    const struct {
        const char *path;
        double value;
    } rows[] = {
        {"mem_mib/uniform_spread_max_mib", l->memory_spread_mib},
        {"sm_count/full", l->sm_full},
        {"sm_count/fail_below", l->sm_min},
        {"fp32_fma_tflops/pass_min", l->fp32_pass},
        {"fp32_fma_tflops/fail_max", l->fp32_fail},
        {"bf16_tensor_tflops/pass_min", l->bf16_pass},
        {"bf16_tensor_tflops/fail_max", l->bf16_fail},
        {"mma_latency_cycles/pass_max", l->mma_pass},
        {"mma_latency_cycles/fail_min", l->mma_fail},
        {"hbm_read_gbps/pass_min", l->hbm_pass},
        {"hbm_read_gbps/fail_max", l->hbm_fail},
        {"hbm_clock_mhz/qualified_overclock", l->hbm_mhz_qualified},
        {"compute_spread_ratio_max", l->spread_ratio},
        {"h2d_ratio/pass_min", l->copy_pass},
        {"h2d_ratio/fail_max", l->copy_fail},
        {"p2p_ratio/pass_min", l->peer_pass},
        {"p2p_ratio/fail_max", l->peer_fail},
        {"p2p_bidir_ratio/pass_min", l->bidir_pass},
        {"p2p_bidir_ratio/warn_min", l->bidir_warn},
        {"p2p_pair_outlier_ratio", l->pair_ratio},
        {"p2p_flag_roundtrip_us/pass_max", l->flag_us_pass},
        {"p2p_flag_roundtrip_us/fail_min", l->flag_us_fail},
        {"t_ar_us_six_rows/ok_max", l->step_us_good},
        {"t_ar_us_six_rows/marginal_max", l->step_us_max},
        {"busbw_gbps_prefill_chunk/good_min", l->bus_good},
        {"busbw_gbps_prefill_chunk/marginal_min", l->bus_min},
        {"allreduces_per_step_tp4", l->allreduces_per_step},
        {"bytes_per_token_per_card_tp4_prefill", l->prefill_bytes_per_token},
        {"tp_prefill_ceiling_tok_s_min", l->prefill_tokens_min},
        {"arm_tie_band", l->arm_tie},
        {"temp_c/core_warn", l->core_warn_c},
        {"temp_c/core_fail", l->core_fail_c},
        {"temp_c/hbm_warn", l->memory_warn_c},
        {"temp_c/hbm_fail", l->memory_fail_c},
        {"temp_c/hbm_idle_warn", l->memory_idle_c},
        {"temp_c/spread_warn", l->spread_warn_c},
        {"power_w/cap_tolerance", l->cap_tolerance_w},
        {"power_w/hang_power_max", l->hang_power_w},
        {"power_w/hang_util_min", l->hang_util_pct},
        {"power_w/hang_seconds", l->hang_seconds},
        {"aer/correctable_warn_per_min", l->aer_correctable_per_min},
        {"aer/replay_warn_per_min", l->replays_per_min},
        {"bar1_mib/full", l->bar1_full_mib},
        {"host/ram_gib_min", l->ram_gib_warn},
        {"host/shm_gib_min", l->shm_gib},
        {"memtest/min_coverage", l->coverage_min},
        {"timeouts_s/nvidia_smi", l->tool_timeout_ms / 1000.0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (at(rows[i].path) != rows[i].value)
            fail_msg("%s is %g, the program has %g", rows[i].path, at(rows[i].path), rows[i].value);
}

/* Members are named "2x16": generation and lanes. */
static void check_table(const char *key, double (*expected)(int, int))
{
    struct hx_jv table = hx_jv_get(hx_json_root(doc), key);
    int n = 0;
    for (struct hx_jv v = hx_jv_first(table); v.doc; v = hx_jv_next(v), n++) {
        size_t len;
        char name[8] = "";
        double d;
        const char *s = hx_jv_str(hx_jv_key(v), &len);
        assert_true(s && len < sizeof(name));
        memcpy(name, s, len);
        assert_true(hx_jv_double(v, &d));
        assert_true(expected(name[0] - '0', (int)strtol(name + 2, NULL, 10)) == d);
    }
    assert_true(n >= 6);
    assert_true(expected(3, 16) == 0);
}

static void test_link_tables(void **state)
{
    (void)state;
    check_table("h2d_expected_gbps", hx_expected_copy_gbps);
    check_table("p2p_expected_gbps", hx_expected_peer_gbps);
}

static void test_memory_classes(void **state)
{
    (void)state;
    static const struct {
        uint16_t device;
        int32_t mib;
        enum hx_memory_class class;
    } rows[] = {
        {0x20c2, 8192, HX_MEMORY_STOCK},     {0x20c2, 7680, HX_MEMORY_STOCK},
        {0x20c2, 8704, HX_MEMORY_STOCK},     {0x20c2, 8705, HX_MEMORY_ODD},
        {0x20c2, 32768, HX_MEMORY_ODD},      {0x20c2, 59999, HX_MEMORY_ODD},
        {0x20c2, 60000, HX_MEMORY_UNLOCKED}, {0x20c2, 65536, HX_MEMORY_UNLOCKED},
        {0x2082, 10240, HX_MEMORY_STOCK},    {0x2082, 40960, HX_MEMORY_UNLOCKED},
        {0x2082, 59999, HX_MEMORY_UNLOCKED}, {0x2082, 60000, HX_MEMORY_OVERSIZE},
        {0x2082, 81920, HX_MEMORY_OVERSIZE}, {0x2082, 20000, HX_MEMORY_ODD},
        {0x20c2, 0, HX_MEMORY_ODD},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(hx_variant_memory_class(hx_variant_of_device(rows[i].device), rows[i].mib),
                         rows[i].class);
    assert_null(hx_variant_of_device(0x2335));
    assert_true(hx_variant_is_lookalike(0x20b0));
    assert_true(hx_variant_is_lookalike(0x20bb));
    assert_false(hx_variant_is_lookalike(0x20c2));
    assert_string_equal(hx_memory_class_name(HX_MEMORY_OVERSIZE), "oversize");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_link_tables),
        cmocka_unit_test(test_memory_classes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
