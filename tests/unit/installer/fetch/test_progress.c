/* The same numbers in the line of a person, in the status file and in the rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "fetch/progress.h"

static void rates_over_their_span(void **state)
{
    (void)state;
    struct hx_meter m = {0};
    assert_int_equal((int)hx_meter_rate(&m, 10), 0);
    uint64_t bytes = 0;
    for (int s = 0; s < 1000; s++) {
        bytes += s < 900 ? 100 : 1000;
        hx_meter_add(&m, s, bytes);
    }
    assert_int_equal((int)hx_meter_rate(&m, 10), 1000);
    assert_int_equal((int)hx_meter_rate(&m, 300), (200 * 100 + 100 * 1000) / 300);
    /* The machine slept: what is older does not count. */
    hx_meter_add(&m, 5000, bytes + 10);
    assert_int_equal((int)hx_meter_rate(&m, 10), 0);
}

static void lines(void **state)
{
    (void)state;
    char line[320];
    struct hx_progress_view v = {.phase = "download",
                                 .wanted = 417500000000,
                                 .verified = 144037500000,
                                 .waiting = "",
                                 .net.active = 8};
    hx_progress_line(&v, 112e6, 3725, line, sizeof(line));
    assert_string_equal(
        line, "download 34.5 %, 144 GB of 418 GB, 112 MB/s, 1 h 2 min left, 8 connections");
    hx_progress_line(&v, 0, -1, line, sizeof(line));
    assert_non_null(strstr(line, "? left"));
    v.waiting = "https://hub asks to wait";
    v.waiting_s = 95;
    hx_progress_line(&v, 112e6, 3725, line, sizeof(line));
    assert_string_equal(
        line, "download 34.5 %, 144 GB of 418 GB, waiting 2 min: https://hub asks to wait");
    v.waiting_s = 0;
    hx_progress_line(&v, 112e6, 3725, line, sizeof(line));
    assert_string_equal(line,
                        "download 34.5 %, 144 GB of 418 GB, waiting: https://hub asks to wait");
    v = (struct hx_progress_view){.phase = "complete", .waiting = ""};
    hx_progress_line(&v, 0, 0, line, sizeof(line));
    assert_string_equal(line, "complete 100.0 %, 0 B of 0 B");
    /* A short buffer gets the beginning. */
    hx_progress_line(&v, 0, 0, line, 9);
    assert_string_equal(line, "complete");
}

static int64_t number(struct hx_jv o, const char *key)
{
    int64_t n = -1;
    assert_true(hx_jv_int64(hx_jv_get(o, key), &n));
    return n;
}

static void status_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/hx-test-progress-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/fetch.json", dir);
    struct hx_progress *p;
    struct hx_progress_options o = {.model = "m \"q\"", .status_path = path};
    struct hx_progress_file files[] = {{"dense/1", "ready", 100, 100},
                                       {"dense/2", "download", 300, 150}};
    struct hx_progress_view v = {.phase = "download",
                                 .wanted = 400,
                                 .verified = 250,
                                 .fetched = 260,
                                 .wasted = 7,
                                 .waiting = "",
                                 .files = files,
                                 .n_files = 2,
                                 .net = {.active = 3, .limit = 4, .retries = 5, .stalls = 1}};
    assert_int_equal(hx_progress_open(&o, &p, NULL), 0);
    hx_progress_show(p, &v, 1);
    char *text;
    size_t n;
    struct hx_json *doc;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    assert_int_equal(hx_file_read(path, 1 << 20, &text, &n, NULL), 0);
    assert_int_equal(hx_json_parse(text, n, &limits, &doc, NULL), 0);
    struct hx_jv root = hx_json_root(doc);
    double percent;
    assert_true(hx_jv_str_is(hx_jv_get(root, "model"), "m \"q\""));
    assert_int_equal(number(root, "wanted"), 400);
    assert_int_equal(number(root, "verified"), 250);
    assert_int_equal(number(root, "fetched"), 260);
    assert_int_equal(number(root, "wasted"), 7);
    assert_int_equal(number(root, "connections"), 3);
    assert_int_equal(number(hx_jv_get(root, "retries"), "all"), 5);
    assert_int_equal(number(hx_jv_get(root, "retries"), "stalls"), 1);
    assert_true(hx_jv_double(hx_jv_get(root, "percent"), &percent) && percent == 62.5);
    assert_int_equal(hx_jv_count(hx_jv_get(root, "files")), 2);
    hx_json_free(doc);
    free(text);
    /* Within the same second nothing is written, a new phase at once. */
    unlink(path);
    hx_progress_show(p, &v, 1.5);
    assert_int_equal(access(path, F_OK), -1);
    v.phase = "publish";
    hx_progress_show(p, &v, 1.6);
    assert_int_equal(access(path, F_OK), 0);
    hx_progress_close(p);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

static void a_status_file_that_cannot_be_written(void **state)
{
    (void)state;
    struct hx_progress *p;
    struct hx_progress_options o = {.model = "m", .status_path = "/proc/no/such/folder/fetch.json"};
    struct hx_progress_view v = {.phase = "download", .waiting = ""};
    assert_int_equal(hx_progress_open(&o, &p, NULL), 0);
    hx_progress_show(p, &v, 1);
    hx_progress_show(p, &v, 3);
    hx_progress_close(p);
    hx_progress_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_over_their_span),
        cmocka_unit_test(lines),
        cmocka_unit_test(status_file),
        cmocka_unit_test(a_status_file_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
