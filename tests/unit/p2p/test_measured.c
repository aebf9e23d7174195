/* The probe's result and logs of the bandwidth tool, whole and broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench_log.h"
#include "measured.h"

#define CASES "tests/vectors/hardware/cases/"

static struct hx_measured m;

static void test_good(void **state)
{
    (void)state;
    struct hx_error err = {0};
    assert_int_equal(hx_measured_read(CASES "good-gen2-x16-mailbox/probe.json", &m, &err), 0);
    assert_int_equal(m.n_devices, 4);
    assert_int_equal(m.device[3].context, HX_CONTEXT_OK);
    assert_int_equal(m.device[3].sm_count, 74);
    assert_true(m.device[0].fp32_tflops == 12.4 && m.device[0].hbm_gbps == 1352);
    assert_int_equal(m.device[0].alias.outcome, HX_OUTCOME_OK);
    assert_true(m.device[0].pattern.coverage == 0.984);
    assert_true(m.has_p2p && m.n_peers == 4 && m.has_peer && m.has_bidir && m.has_latency);
    assert_true(isnan(m.peer[2][2]) && m.peer[0][2] == 6.69 && m.can_access[1][0] == 1);
    assert_string_equal(m.enable, "ok");
    assert_int_equal(m.flags.outcome, HX_OUTCOME_OK);
    assert_true(m.flags.us == 4.5);
    assert_int_equal(m.after_exit.outcome, HX_OUTCOME_NOT_RUN);
    assert_true(m.has_collectives && m.p2p.exact && m.p2p.us_six == 21 && m.host.bus_gbps == 3.9);
}

static void test_findings(void **state)
{
    (void)state;
    struct hx_error err = {0};
    assert_int_equal(hx_measured_read(CASES "single-rank-fake64/probe.json", &m, &err), 0);
    assert_int_equal(m.device[1].alias.outcome, HX_OUTCOME_CORRUPT);
    assert_true(m.device[1].alias.is_alias && m.device[1].alias.distance == 34359738368.0);
    assert_int_equal(hx_measured_read(CASES "p2p-zero-bytes/probe.json", &m, &err), 0);
    assert_int_equal(m.copy.outcome, HX_OUTCOME_ZERO);
    assert_int_equal(m.p2p.outcome, HX_OUTCOME_WRONG);
    assert_int_equal(hx_measured_read(CASES "p2p-sync-hang/probe.json", &m, &err), 0);
    assert_int_equal(m.flags.outcome, HX_OUTCOME_HANG);
    assert_true(isnan(m.flags.us));
    assert_int_equal(hx_measured_read(CASES "context-wedge/probe.json", &m, &err), 0);
    assert_int_equal(m.device[1].context, HX_CONTEXT_TIMEOUT);
    assert_false(m.has_p2p || m.has_collectives);
    assert_int_equal(m.device[1].sm_count, -1);
    assert_int_equal(hx_measured_read(CASES "unlocked-gen1-x4/probe.json", &m, &err), 0);
    assert_false(m.has_peer);
    assert_int_equal(m.p2p.outcome, HX_OUTCOME_NOT_OFFERED);
}

static void test_broken(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"schema\": 1}",
        "{\"schema\": 1, \"devices\": [3]}",
        "{\"schema\": 1, \"devices\": [{\"bf16_tflops\": \"fast\"}]}",
        "{\"schema\": 1, \"devices\": [{\"bf16_tflops\": 1e300}]}",
        "{\"schema\": 1, \"devices\": [{\"alias\": 1}]}",
        "{\"schema\": 1, \"devices\": [{\"alias\": {\"coverage\": 1.5}}]}",
        "{\"schema\": 1, \"devices\": [{\"alias\": {\"outcome\": \"great\"}}]}",
        "{\"schema\": 1, \"devices\": [], \"p2p\": []}",
        "{\"schema\": 1, \"devices\": [], \"p2p\": {\"can_access\": [[0, -1], [0, 0]]}}",
        "{\"schema\": 1, \"devices\": [], \"p2p\": {\"can_access\": [[0, 1], [0]]}}",
        "{\"schema\": 1, \"devices\": [], \"p2p\": {\"can_access\": [[0, 1], [1, 0]], "
        "\"peer_gbps\": [[0]]}}",
        "{\"schema\": 1, \"devices\": [], \"collectives\": 5}",
        "{\"schema\": 1, \"devices\": [], \"collectives\": {\"host\": {\"exact\": 1}}}",
        "{\"schema\": 1, \"devices\": [], \"collectives\": {\"host\": {\"us\": {\"61440\": -1}}}}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hx_error err = {0};
        m.n_devices = 99;
        assert_int_equal(hx_measured_parse(texts[i], strlen(texts[i]), "probe", &m, &err), -EINVAL);
        assert_non_null(strstr(err.text, "probe"));
        assert_int_equal(m.n_devices, 99);
    }
}

static void test_too_many(void **state)
{
    (void)state;
    char text[1024];
    struct hx_error err = {0};
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"schema\": 1, \"devices\": [");
    for (int i = 0; i < 17; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s{}", i ? "," : "");
    snprintf(text + n, sizeof(text) - n, "]}");
    assert_int_equal(hx_measured_parse(text, strlen(text), "probe", &m, &err), -E2BIG);
    n = (size_t)snprintf(text, sizeof(text),
                         "{\"schema\": 1, \"devices\": [], \"p2p\": "
                         "{\"can_access\": [");
    for (int i = 0; i < 17; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s[]", i ? "," : "");
    snprintf(text + n, sizeof(text) - n, "]}}");
    assert_int_equal(hx_measured_parse(text, strlen(text), "probe", &m, &err), -E2BIG);
}

#define OFF                                                                                        \
    "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 1.0 2.0\n 1 4.0 1.0\n"
#define ON "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n  D\\D 0 1\n"

static void test_logs(void **state)
{
    (void)state;
    struct hx_bench_log log;
    struct hx_error err = {0};
    static const char good[] = OFF ON " 0 1.0 1.9\n 1 3.0 1.0\n";
    assert_int_equal(hx_bench_log_parse(good, strlen(good), &log, &err), 0);
    assert_int_equal(log.n, 2);
    assert_true(log.min_on == 1.9 && log.ratio_on_off == 0.75 && isnan(log.latency_on_us));
    assert_string_equal(log.verdict, "fast");
    static const char slow[] = OFF ON " 0 1.0 1.9\n 1 2.7 1.0\n";
    assert_int_equal(hx_bench_log_parse(slow, strlen(slow), &log, &err), 0);
    assert_string_equal(log.verdict, "slow");
    static const char *const texts[] = {
        "",
        OFF,
        ON " 0 1 1\n 1 1 1\n",
        OFF ON " 0 1.0 1.9\n",
        OFF ON " 0 1.0 1.9\n 1 3.0\n",
        OFF ON " 1 1.0 1.9\n 0 3.0 1.0\n",
        OFF ON " 0 1.0 fast\n 1 3.0 1.0\n",
        "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n D 0 1\n 0 0 0\n 1 0 0\n" ON
        " 0 1 1\n 1 1 1\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(hx_bench_log_parse(texts[i], strlen(texts[i]), &log, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),   cmocka_unit_test(test_findings),
        cmocka_unit_test(test_broken), cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_logs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
