/* Judgements that the recorded machine states do not reach. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verdict.h"

static struct hx_facts f;
static struct hx_judgement j;

/* Four sound cards at Gen2 x16, direct copies verified, in memory. */
static void make_sound(void)
{
    struct hx_error err = {0};
    memset(&f, 0, sizeof(f));
    hx_wanted_defaults(&f.wanted);
    f.minutes = 1;
    f.driver.loaded = f.driver.has_params = true;
    f.driver.gpu_firmware = 18;
    f.driver.proc.open_module = true;
    f.has_klog = true;
    f.platform.secure_boot = HX_NO;
    f.platform.ram_kib = 128ll << 20;
    f.platform.shm_bytes = -1;
    f.platform.memlock_bytes = -2;
    f.nvml.state = HX_NVML_OK;
    f.nvml.n_devices = f.n_cards = f.scan.n = 4;
    for (int i = 0; i < 4; i++) {
        struct hx_pci_gpu *g = &f.scan.gpu[i];
        struct hx_nvml_device *d = &f.nvml.device[i];
        g->device = HX_DEVICE_CMP_8GB;
        g->subsystem_device = 0x1585;
        g->alive = g->bar1_known = true;
        g->bar1 = (struct hx_pci_range){(uint64_t)(i + 1) << 40, 64 << 20};
        g->address.bus = (uint8_t)(i + 1);
        g->numa_node = -1;
        g->now = (struct hx_pci_link){2, 16};
        *d = (struct hx_nvml_device){.memory_total_mib = 65536,
                                     .bar1_mib = 64,
                                     .ecc = -1,
                                     .persistence = 1,
                                     .power_limit_mw = 180000,
                                     .core_c = 40,
                                     .memory_c = 45,
                                     .mem_mhz = 1458,
                                     .replays = 0};
        f.card[i] = (struct hx_card){.pci = g,
                                     .variant = hx_variant_of_device(g->device),
                                     .nvml = i,
                                     .measured = i,
                                     .link = g->now,
                                     .replays_new = 0};
    }
    f.measured = true;
    assert_int_equal(
        hx_measured_read("tests/vectors/hardware/cases/good-gen2-x16-mailbox/probe.json", &f.probe,
                         &err),
        0);
}

static enum hx_verdict verdict(const char *id)
{
    hx_judge(&f, &j);
    return j.finding[hx_check_find(id) - hx_checks].verdict;
}

static void test_sound(void **state)
{
    (void)state;
    make_sound();
    hx_judge(&f, &j);
    for (int i = 0; i < hx_n_checks; i++)
        if (j.finding[i].verdict == HX_FAIL || j.finding[i].verdict == HX_WARN)
            fail_msg("%s: %s", hx_checks[i].id, j.finding[i].detail);
    assert_int_equal(j.overall, HX_READY);
    assert_string_equal(j.layout.recommend, "TP4_P2P");
    assert_string_equal(j.axes.module, "stock");
}

static void set_links(int gen, int width)
{
    for (int i = 0; i < 4; i++)
        f.card[i].link = f.scan.gpu[i].now = (struct hx_pci_link){gen, width};
}

/* Rules for machines where no all-reduce could be measured (hardware.md 3.7). */
static void test_layout_without_sums(void **state)
{
    (void)state;
    static const struct {
        int width;
        bool verified;
        const char *recommend, *advice;
    } rows[] = {
        {16, true, "TP4_P2P", NULL},
        {16, false, "TP4_HOST", NULL},
        {8, true, "TP4_HOST", NULL},
        {8, false, "TP4_HOST", NULL},
        {4, true, "TP4_P2P", "PP4_FOR_LONG_PROMPTS"},
        {4, false, "PP4", NULL},
        {1, true, "PP4", NULL},
        {1, false, "PP4", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_sound();
        f.probe.has_collectives = false;
        set_links(2, rows[i].width);
        if (!rows[i].verified)
            f.probe.ipc.outcome = HX_OUTCOME_NOT_RUN;
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                if (a != b)
                    f.probe.peer[a][b] = hx_expected_peer_gbps(2, rows[i].width);
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                f.probe.staged[a][b] = f.probe.peer[a][b];
        hx_judge(&f, &j);
        assert_string_equal(j.layout.recommend, rows[i].recommend);
        assert_false(j.layout.predicted);
        if (rows[i].advice)
            assert_string_equal(j.layout.advice, rows[i].advice);
        else
            assert_null(j.layout.advice);
    }
}

static void test_arms(void **state)
{
    (void)state;
    bool is_p2p;
    make_sound();
    assert_ptr_equal(hx_best_arm(&f, &is_p2p), &f.probe.p2p);
    f.probe.p2p.us_six = 0.95 * f.probe.host.us_six; /* just five per cent faster */
    assert_ptr_equal(hx_best_arm(&f, &is_p2p), &f.probe.p2p);
    f.probe.p2p.us_six = 0.96 * f.probe.host.us_six;
    assert_ptr_equal(hx_best_arm(&f, &is_p2p), &f.probe.host);
    make_sound();
    f.probe.p2p.exact = false;
    assert_ptr_equal(hx_best_arm(&f, &is_p2p), &f.probe.host);
    f.probe.host.exact = false;
    assert_null(hx_best_arm(&f, &is_p2p));
    assert_int_equal(verdict("COL-01"), HX_FAIL);
    make_sound();
    snprintf(f.p2p_lock, sizeof(f.p2p_lock), "corrupt");
    assert_ptr_equal(hx_best_arm(&f, &is_p2p), &f.probe.host);
    hx_judge(&f, &j);
    assert_string_equal(j.axes.p2p, "corrupt");
    assert_string_equal(j.layout.recommend, "TP4_HOST");
}

static void test_bounds_of_steps(void **state)
{
    (void)state;
    static const struct {
        double us;
        enum hx_verdict verdict;
        const char *recommend;
    } rows[] = {{80, HX_PASS, "TP4_HOST"},
                {80.5, HX_WARN, "TP4_HOST"},
                {130, HX_WARN, "TP4_HOST"},
                {130.5, HX_FAIL, "PP4"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_sound();
        f.probe.p2p.outcome = HX_OUTCOME_NOT_OFFERED;
        f.probe.host.us_six = rows[i].us;
        assert_int_equal(verdict("COL-02"), rows[i].verdict);
        assert_string_equal(j.layout.recommend, rows[i].recommend);
    }
}

static void test_iommu(void **state)
{
    (void)state;
    static const struct {
        enum hx_iommu_mode mode;
        enum hx_p2p_kind kind;
        enum hx_verdict verdict;
    } rows[] = {
        {HX_IOMMU_NONE, HX_P2P_MAILBOX, HX_PASS},
        {HX_IOMMU_IDENTITY, HX_P2P_BAR1, HX_PASS},
        {HX_IOMMU_IDENTITY, HX_P2P_NONE, HX_PASS},
        {HX_IOMMU_IDENTITY, HX_P2P_MAILBOX, HX_WARN},
        {HX_IOMMU_TRANSLATED, HX_P2P_NONE, HX_WARN},
        {HX_IOMMU_TRANSLATED, HX_P2P_BAR1, HX_FAIL},
        {HX_IOMMU_TRANSLATED, HX_P2P_KIND_UNKNOWN, HX_FAIL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_sound();
        f.platform.iommu = rows[i].mode;
        f.wanted.p2p_kind = rows[i].kind;
        assert_int_equal(verdict("PLT-01"), rows[i].verdict);
    }
}

static void test_bundle_states(void **state)
{
    (void)state;
    make_sound();
    f.wanted.bundle.present = f.wanted.bundle.state_ok = true;
    f.bundle_has_module = f.wanted.bundle.by_path = true;
    snprintf(f.wanted.bundle.module_dir, sizeof(f.wanted.bundle.module_dir), "/var/lib/x");
    f.resolve_known = true;
    snprintf(f.resolved, sizeof(f.resolved), "/lib/modules/other/nvidia.ko");
    assert_int_equal(verdict("DRV-04"), HX_SKIP); /* loaded by path: DRV-03 decides */
    assert_int_equal(verdict("BND-07"), HX_SKIP);
    assert_int_equal(verdict("BND-08"), HX_SKIP);
    assert_int_equal(verdict("BND-09"), HX_SKIP);
    assert_string_equal(j.axes.module, "bundle");
    static const enum hx_verdict cold[] = {HX_SKIP, HX_PASS, HX_WARN, HX_FAIL};
    for (int i = 0; i < 4; i++) {
        f.wanted.bundle.cold_start = (enum hx_cold_start)i;
        assert_int_equal(verdict("BND-08"), cold[i]);
        f.wanted.bundle.way_back = (enum hx_way_back)i;
        assert_int_equal(verdict("BND-09"), cold[i]);
    }
    f.wanted.bundle.by_path = false;
    assert_int_equal(verdict("DRV-04"), HX_FAIL);
    assert_string_equal(j.axes.module, "shadowed");
    assert_int_equal(verdict("BND-07"), HX_WARN); /* nothing known of the boot image */
}

static void test_secure_boot(void **state)
{
    (void)state;
    make_sound();
    f.platform.secure_boot = HX_NOT_KNOWN;
    assert_int_equal(verdict("DRV-11"), HX_WARN);
    f.platform.secure_boot = HX_YES;
    assert_int_equal(verdict("DRV-11"), HX_PASS); /* the module is loaded, so it was accepted */
    f.driver.loaded = false;
    f.wanted.bundle.present = true;
    assert_int_equal(verdict("DRV-11"), HX_FAIL);
    f.wanted.bundle.signed_by_trusted = true;
    assert_int_equal(verdict("DRV-11"), HX_PASS);
    f.klog.sign[HX_KLOG_UNSIGNED].count = 1;
    assert_int_equal(verdict("DRV-11"), HX_FAIL);
}

static void test_sizes_and_counters(void **state)
{
    (void)state;
    make_sound();
    f.platform.shm_bytes = 1 << 30;
    assert_int_equal(verdict("PLT-06"), HX_WARN);
    make_sound();
    f.platform.memlock_bytes = 65536;
    assert_int_equal(verdict("PLT-06"), HX_WARN);
    make_sound();
    assert_int_equal(verdict("LNK-05"), HX_SKIP); /* the kernel counts nothing */
    for (int i = 0; i < 4; i++)
        f.card[i].aer.known = true;
    assert_int_equal(verdict("LNK-05"), HX_PASS);
    f.card[1].aer_new = 21;
    f.minutes = 2;
    assert_int_equal(verdict("LNK-05"), HX_WARN);
    f.minutes = 3;
    assert_int_equal(verdict("LNK-05"), HX_PASS);
    f.card[1].replays_new = 40;
    assert_int_equal(verdict("LNK-05"), HX_WARN);
    f.card[2].aer.fatal = 1;
    assert_int_equal(verdict("LNK-05"), HX_FAIL);
    make_sound();
    f.wanted.p2p_kind = HX_P2P_KIND_UNKNOWN;
    assert_int_equal(verdict("BAR-01"), HX_WARN);
    f.scan.gpu[3].bar1.start = 0xc0000000;
    assert_int_equal(verdict("BAR-03"), HX_NOTE);
}

static void test_memory_tests(void **state)
{
    (void)state;
    make_sound();
    f.probe.device[2].alias.outcome = HX_OUTCOME_NOT_RUN;
    assert_int_equal(verdict("MEM-03"), HX_SKIP); /* one card is untested: no pass */
    f.probe.device[1].alias.outcome = HX_OUTCOME_CORRUPT;
    assert_int_equal(verdict("MEM-03"), HX_FAIL);
    make_sound();
    f.probe.device[0].pattern.coverage = 0.94;
    assert_int_equal(verdict("MEM-04"), HX_FAIL);
    make_sound();
    f.probe.device[0].context = HX_CONTEXT_UNKNOWN;
    assert_int_equal(verdict("CMP-05"), HX_SKIP);
}

static void test_stuck_samples(void **state)
{
    (void)state;
    make_sound();
    f.has_load = true;
    f.load.state = HX_NVML_OK;
    f.load.n_devices = 4;
    f.load.n_samples = 25;
    for (int s = 0; s < 25; s++) {
        f.load.sample_ms[s] = s * 1000;
        for (int i = 0; i < 4; i++) {
            f.load.util_pct[s][i] = i < 2 ? 100 : 3;
            f.load.power_mw[s][i] = 58000;
        }
    }
    assert_int_equal(verdict("PWR-04"), HX_FAIL);
    f.load.power_mw[12][0] = 90000; /* work in between */
    assert_int_equal(verdict("PWR-04"), HX_PASS);
    f.load.power_mw[12][0] = 58000;
    for (int s = 0; s < 25; s++)
        f.load.util_pct[s][1] = 3; /* one card alone is no deadlock */
    assert_int_equal(verdict("PWR-04"), HX_PASS);
}

static void test_lookalike_and_spare(void **state)
{
    (void)state;
    make_sound();
    f.scan.gpu[4] = (struct hx_pci_gpu){.device = 0x20b0};
    f.scan.n = 5;
    f.n_foreign = 1;
    assert_int_equal(verdict("INV-02"), HX_FAIL);
    make_sound();
    f.wanted.cards = 3;
    assert_int_equal(verdict("INV-01"), HX_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_layout_without_sums),
        cmocka_unit_test(test_arms),
        cmocka_unit_test(test_bounds_of_steps),
        cmocka_unit_test(test_iommu),
        cmocka_unit_test(test_bundle_states),
        cmocka_unit_test(test_secure_boot),
        cmocka_unit_test(test_sizes_and_counters),
        cmocka_unit_test(test_memory_tests),
        cmocka_unit_test(test_stuck_samples),
        cmocka_unit_test(test_lookalike_and_spare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
