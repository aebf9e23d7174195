/* The management library where it is missing or something else, and what the box is meant to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/nvml.h"
#include "hw/wanted.h"

static struct hx_nvml_snapshot snapshot;
static struct hx_nvml_load load;

static void test_no_library(void **state)
{
    (void)state;
    struct hx_error err = {0};
    assert_int_equal(hx_nvml_snapshot("/nowhere/libnvidia-ml.so", 2000, &snapshot, &err), 0);
    assert_int_equal(snapshot.state, HX_NVML_NO_LIBRARY);
    assert_int_equal(snapshot.n_devices, 0);
    assert_true(snapshot.error_text[0]);
    /* A library that is another one. */
    assert_int_equal(hx_nvml_snapshot("libm.so.6", 2000, &snapshot, &err), 0);
    assert_int_equal(snapshot.state, HX_NVML_NO_LIBRARY);
    assert_string_equal(snapshot.error_text, "nvmlInit_v2");
    assert_int_equal(hx_nvml_replay("libm.so.6", 3, 100, 2000, &load, &err), 0);
    assert_int_equal(load.state, HX_NVML_NO_LIBRARY);
    assert_int_equal(load.n_samples, 0);
    assert_string_equal(hx_nvml_state_name(HX_NVML_HUNG), "no answer");
}

static void test_setters_refuse(void **state)
{
    (void)state;
    struct hx_error err = {0};
    assert_int_equal(hx_nvml_set_power_limit("libm.so.6", "GPU-1", 180, 2000, &err), -ENODEV);
    assert_non_null(strstr(err.text, "power limit"));
    assert_int_equal(hx_nvml_set_power_limit("libm.so.6", "GPU-1", 0, 2000, &err), -ERANGE);
    assert_int_equal(hx_nvml_set_power_limit("libm.so.6", "GPU-1", 1001, 2000, &err), -ERANGE);
    char uuid[100];
    memset(uuid, 'x', sizeof(uuid));
    uuid[99] = '\0';
    assert_int_equal(hx_nvml_set_persistence("libm.so.6", uuid, true, 2000, &err), -EINVAL);
}

static void test_sampler(void **state)
{
    (void)state;
    struct hx_nvml_sampler *s;
    struct hx_error err = {0};
    assert_int_equal(hx_nvml_sampler_start("libm.so.6", 10, &s, &err), 0);
    usleep(50000);
    hx_nvml_sampler_look(s, &load);
    assert_int_equal(load.n_samples, 0);
    hx_nvml_sampler_stop(s, &load);
    assert_int_equal(load.n_devices, 0);
    hx_nvml_sampler_stop(NULL, NULL);
}

static void test_wanted(void **state)
{
    (void)state;
    struct hx_wanted w;
    struct hx_error err = {0};
    hx_wanted_defaults(&w);
    assert_int_equal(w.cards, 4);
    assert_int_equal(w.power_cap_w, 180);
    assert_int_equal(
        hx_wanted_read("tests/vectors/hardware/cases/good-gen2-x16-bar1-switches/config.json", &w,
                       &err),
        0);
    assert_int_equal(w.p2p_kind, HX_P2P_BAR1);
    assert_true(w.bundle.present && w.bundle.safety_marker_required && w.bundle.state_ok);
    assert_string_equal(w.bundle.driver_version, "610.57.04");
    assert_true(w.has_boot_image && w.boot_image_modules && w.boot_image_options);
    /* The active bundle's own file: keys that are absent keep what was there. */
    static const char active[] = "{\"bundle\": {\"name\": \"b\", \"by_path\": true, "
                                 "\"cold_start\": \"warm\", \"way_back\": \"first\"}}";
    assert_int_equal(hx_wanted_parse(active, strlen(active), "active", &w, &err), 0);
    assert_int_equal(w.p2p_kind, HX_P2P_BAR1);
    assert_true(w.bundle.by_path && !w.bundle.state_ok);
    assert_int_equal(w.bundle.cold_start, HX_COLD_WARM);
    assert_int_equal(w.bundle.way_back, HX_BACK_FIRST);
    static const char none[] = "{\"bundle\": null}";
    assert_int_equal(hx_wanted_parse(none, strlen(none), "active", &w, &err), 0);
    assert_false(w.bundle.present);
}

static void test_wanted_broken(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"3", "the document: found a number"},
        {"{\"want_cards\": 0}", "want_cards: found 0"},
        {"{\"want_cards\": \"4\"}", "want_cards: found a string"},
        {"{\"power_cap_w\": 1e9}", "power_cap_w"},
        {"{\"p2p_kind\": \"x\"}", "p2p_kind: found 'x'"},
        {"{\"control_interface\": \"abcdefghijklmnopqrstuvwxyzabcdefghijkl\"}", "at most 31"},
        {"{\"boot_image\": {\"has_modules\": 1}}", "has_modules"},
        {"{\"bundle\": 7}", "bundle: found a number"},
        {"{\"bundle\": {\"module_dir\": \"/a/../b\"}}", "not an absolute path"},
        {"{\"bundle\": {\"cold_start\": \"maybe\"}}", "cold_start: found 'maybe'"},
        {"{\"bundle\": {\"name\": \"a\\u0000b\"}}", "name"},
        {"{", "invalid JSON"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_wanted w;
        struct hx_error err = {0};
        hx_wanted_defaults(&w);
        assert_int_equal(hx_wanted_parse(rows[i].text, strlen(rows[i].text), "f", &w, &err),
                         -EINVAL);
        if (!strstr(err.text, rows[i].message))
            fail_msg("'%s' does not contain '%s'", err.text, rows[i].message);
        assert_int_equal(w.cards, 4); /* nothing was taken over */
        assert_false(w.bundle.present);
    }
}

static void test_wanted_conf(void **state)
{
    (void)state;
    char path[] = "/tmp/hx-test-cards-XXXXXX";
    struct hx_wanted w;
    struct hx_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "[cards]\ncount = 2\npower_cap = 150\np2p_kind = mailbox\n") > 0);
    close(fd);
    hx_wanted_defaults(&w);
    assert_int_equal(hx_wanted_conf(path, "/nowhere", &w, &err), 0);
    assert_int_equal(w.cards, 2);
    assert_int_equal(w.power_cap_w, 150);
    assert_int_equal(w.p2p_kind, HX_P2P_MAILBOX);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hx_wanted_conf(path, NULL, &w, &err), 0);
    assert_int_equal(w.cards, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_library),    cmocka_unit_test(test_setters_refuse),
        cmocka_unit_test(test_sampler),       cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_wanted_broken), cmocka_unit_test(test_wanted_conf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
