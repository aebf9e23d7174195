/* Rules of the health watch, each with readings that trip it and readings just below. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "watch.h"

static struct hx_watch w;
static struct hx_watch_look look;
static struct hx_nvml_snapshot nvml;
static struct hx_klog_facts klog;

/* Four good cards at work. */
static int setup(void **state)
{
    (void)state;
    memset(&look, 0, sizeof(look));
    memset(&nvml, 0, sizeof(nvml));
    memset(&klog, 0, sizeof(klog));
    hx_watch_init(&w, 180);
    nvml.n_devices = look.n_cards = 4;
    look.nvml = &nvml;
    look.klog = &klog;
    look.now_s = 1000;
    for (int i = 0; i < 4; i++) {
        struct hx_nvml_device *d = &nvml.device[i];
        look.card[i] = (struct hx_watch_card){.address = {.bus = (uint8_t)(0x21 + i)},
                                              .ours = true,
                                              .alive = true,
                                              .slot = "J7",
                                              .aer = {.known = true}};
        snprintf(d->bus_id, sizeof(d->bus_id), "00000000:%02X:00.0", 0x21 + i);
        d->power_limit_mw = 180000;
        d->power_min_mw = 100000;
        d->power_max_mw = 250000;
        d->power_mw = 170000;
        d->core_c = 60;
        d->memory_c = 70;
        d->util_pct = 97;
    }
    return 0;
}

static void judge(int64_t after)
{
    look.now_s += after;
    hx_watch_judge(&w, &look);
}

static void assert_event(const char *id, enum hx_watch_level level, int card)
{
    for (int i = 0; i < w.n_events; i++)
        if (strcmp(w.event[i].id, id) == 0) {
            assert_int_equal(w.event[i].level, level);
            assert_int_equal(w.event[i].card, card);
            return;
        }
    fail_msg("no event %s", id);
}

static void test_good_cards_say_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        judge(5);
        assert_int_equal(w.n_events, 0);
        assert_false(w.stop_engine);
        assert_int_equal(w.set_w[0], 0);
    }
}

static void test_forgotten_cap_is_set_again_and_told_once(void **state)
{
    (void)state;
    nvml.device[1].power_limit_mw = 250000;
    judge(5);
    assert_event("cap", HX_WATCH_INFO, 1);
    assert_int_equal(w.set_w[1], 180);
    assert_int_equal(w.set_w[0], 0);
    judge(5);
    assert_int_equal(w.n_events, 0);
    assert_int_equal(w.set_w[1], 180);
    nvml.device[1].power_limit_mw = 180400;
    judge(5);
    assert_int_equal(w.set_w[1], 0);
    nvml.device[1].power_limit_mw = 250000;
    judge(5);
    assert_event("cap", HX_WATCH_INFO, 1);
}

static void test_cap_stays_inside_what_the_card_takes(void **state)
{
    (void)state;
    nvml.device[0].power_min_mw = 200000;
    judge(5);
    assert_int_equal(w.set_w[0], 200);
}

static void test_no_cap_configured(void **state)
{
    (void)state;
    hx_watch_init(&w, 0);
    nvml.device[1].power_limit_mw = 250000;
    judge(5);
    assert_int_equal(w.n_events, 0);
    assert_int_equal(w.set_w[1], 0);
}

static void test_foreign_cards_are_left_alone(void **state)
{
    (void)state;
    look.card[2].ours = false;
    nvml.device[2].power_limit_mw = 700000;
    nvml.device[2].core_c = 99;
    judge(5);
    assert_int_equal(w.n_events, 0);
    assert_int_equal(w.set_w[2], 0);
}

static void test_heat_lowers_the_cap_step_by_step(void **state)
{
    (void)state;
    nvml.device[3].memory_c = 84;
    judge(5);
    assert_int_equal(w.n_events, 0);
    nvml.device[3].memory_c = 85;
    judge(5);
    assert_event("hot", HX_WATCH_WARN, 3);
    assert_int_equal(w.set_w[3], 170);
    for (int want = 160; want >= 120; want -= 10) {
        nvml.device[3].power_limit_mw = w.set_w[3] * 1000;
        judge(5);
        assert_int_equal(w.set_w[3], want);
        assert_int_equal(w.n_events, 0);
    }
    nvml.device[3].power_limit_mw = 120000;
    judge(5);
    assert_int_equal(w.set_w[3], 0);
    nvml.device[3].memory_c = 80; /* not cool yet */
    judge(5);
    assert_int_equal(w.set_w[3], 0);
    nvml.device[3].memory_c = 79;
    judge(5);
    assert_int_equal(w.set_w[3], 180);
    assert_false(w.stop_engine);
}

static void test_limits_of_heat_stop_the_engine(void **state)
{
    (void)state;
    nvml.device[0].core_c = 90;
    judge(5);
    assert_event("hot", HX_WATCH_STOP, 0);
    assert_true(w.stop_engine);
    setup(state);
    nvml.device[0].memory_c = 95;
    judge(5);
    assert_true(w.stop_engine);
}

static void test_missing_sensor_counts_under_load_only(void **state)
{
    (void)state;
    nvml.device[0].memory_c = HX_UNKNOWN;
    judge(5);
    judge(29);
    assert_false(w.stop_engine);
    judge(1);
    assert_event("sensor", HX_WATCH_STOP, 0);
    judge(5);
    assert_int_equal(w.n_events, 0);
    setup(state);
    nvml.device[0].memory_c = HX_UNKNOWN;
    nvml.device[0].power_mw = 40000;
    judge(5);
    judge(60);
    assert_int_equal(w.n_events, 0);
}

static void all_wait(void)
{
    for (int i = 0; i < 4; i++)
        nvml.device[i].power_mw = 58000;
}

static void test_stuck_all_reduce(void **state)
{
    (void)state;
    all_wait();
    judge(5);
    judge(19);
    assert_false(w.stop_engine);
    judge(1);
    assert_event("hang", HX_WATCH_STOP, -1);
    assert_true(w.mark_hang);
    judge(5);
    assert_int_equal(w.n_events, 0);
}

static void test_one_working_card_is_no_hang(void **state)
{
    (void)state;
    all_wait();
    judge(5);
    judge(10);
    nvml.device[2].power_mw = 170000;
    judge(5);
    nvml.device[2].power_mw = 58000;
    judge(5);
    judge(15);
    assert_int_equal(w.n_events, 0);
    judge(5);
    assert_event("hang", HX_WATCH_STOP, -1);
}

static void test_lost_card_is_named_once(void **state)
{
    (void)state;
    look.card[1].alive = false;
    judge(5);
    assert_event("lost", HX_WATCH_STOP, 1);
    assert_non_null(strstr(w.event[0].text, "slot J7"));
    judge(5);
    assert_int_equal(w.n_events, 0);
}

static void test_lost_by_the_driver(void **state)
{
    (void)state;
    nvml.device[1].lost = true;
    judge(5);
    assert_event("lost", HX_WATCH_STOP, 1);
}

static void test_xid(void **state)
{
    (void)state;
    klog.xid[0].number = 43;
    klog.n_xids = 1;
    judge(5);
    assert_event("xid", HX_WATCH_WARN, -1);
    klog.xid[1].number = 119;
    klog.n_xids = 2;
    judge(5);
    assert_int_equal(w.n_events, 1);
    assert_event("xid", HX_WATCH_STOP, -1);
    judge(5);
    assert_int_equal(w.n_events, 0);
}

static void test_xids_of_the_past_are_no_news(void **state)
{
    (void)state;
    klog.xid[0].number = 31;
    klog.n_xids = 1;
    hx_watch_forget_log(&w, &klog);
    judge(5);
    assert_int_equal(w.n_events, 0);
}

static void test_recovery_action(void **state)
{
    (void)state;
    nvml.device[2].recovery = HX_NVML_RECOVERY_REBOOT;
    judge(5);
    assert_event("recovery", HX_WATCH_STOP, 2);
    judge(5);
    assert_int_equal(w.n_events, 0);
}

static void test_link_errors_by_the_minute(void **state)
{
    (void)state;
    look.slow = true;
    judge(60);
    look.card[0].aer.correctable = 10;
    judge(60);
    assert_int_equal(w.n_events, 0);
    look.card[0].aer.correctable = 21;
    judge(60);
    assert_event("aer", HX_WATCH_WARN, 0);
    look.card[1].aer.nonfatal = 1;
    judge(60);
    assert_event("aer", HX_WATCH_WARN, 1);
}

static void test_hung_driver_is_reported_once(void **state)
{
    (void)state;
    nvml.state = HX_NVML_HUNG;
    judge(5);
    assert_event("stuck", HX_WATCH_WARN, -1);
    assert_true(w.stuck);
    judge(5);
    assert_int_equal(w.n_events, 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup(test, setup)
    const struct CMUnitTest tests[] = {
        T(test_good_cards_say_nothing),
        T(test_forgotten_cap_is_set_again_and_told_once),
        T(test_cap_stays_inside_what_the_card_takes),
        T(test_no_cap_configured),
        T(test_foreign_cards_are_left_alone),
        T(test_heat_lowers_the_cap_step_by_step),
        T(test_limits_of_heat_stop_the_engine),
        T(test_missing_sensor_counts_under_load_only),
        T(test_stuck_all_reduce),
        T(test_one_working_card_is_no_hang),
        T(test_lost_card_is_named_once),
        T(test_lost_by_the_driver),
        T(test_xid),
        T(test_xids_of_the_past_are_no_news),
        T(test_recovery_action),
        T(test_link_errors_by_the_minute),
        T(test_hung_driver_is_reported_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
