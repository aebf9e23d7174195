/* Cap, time of day, number of connections, delays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "fetch/pace.h"
#include <cmocka.h>

static void the_cap_holds_over_time(void **state)
{
    (void)state;
    struct hx_bucket b;
    double total = 0;
    hx_bucket_set(&b, 1000, 0);
    /* Blocks larger than a tenth of a second, offered all the time, for 100 s. */
    for (double now = 0; now < 100; now += 0.01) {
        if (hx_bucket_open(&b, now)) {
            hx_bucket_take(&b, 700);
            total += 700;
        }
    }
    assert_true(total >= 99000 && total <= 101500);
}

static void a_pause_earns_no_burst(void **state)
{
    (void)state;
    struct hx_bucket b;
    hx_bucket_set(&b, 1000, 0);
    assert_true(hx_bucket_open(&b, 3600));
    hx_bucket_take(&b, 2100);
    assert_int_equal((int)(hx_bucket_wait(&b, 3600) * 1000 + 0.5), 2000);
    hx_bucket_set(&b, 0, 3600);
    hx_bucket_take(&b, 1e12);
    assert_true(hx_bucket_open(&b, 3600));
}

static void time_windows(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int now, wait; /* seconds of the day, seconds */
    } rows[] = {
        {"", 0, 0},
        {"22:00-06:00", 23 * 3600, 0},
        {"22:00-06:00", 0, 0},
        {"22:00-06:00", 6 * 3600, 16 * 3600},
        {"22:00-06:00", 22 * 3600 - 1, 1},
        {"22:00-06:00", 22 * 3600, 0},
        {"08:30-09:00", 8 * 3600 + 1800, 0},
        {"08:30-09:00", 9 * 3600, 86400 - 1800},
        {"08:30-09:00", 0, 8 * 3600 + 1800},
        {"10:00-10:00", 5, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_day_window w;
        assert_int_equal(hx_day_window_parse(rows[i].text, &w, NULL), 0);
        assert_int_equal(hx_day_window_wait(&w, rows[i].now), rows[i].wait);
    }
    static const char *const bad[] = {"22-6",         "24:00-06:00", "22:60-06:00",
                                      "22:00-06:00 ", "ab:cd-ef:gh", "22:00"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hx_day_window w;
        struct hx_error err;
        assert_int_equal(hx_day_window_parse(bad[i], &w, &err), -EINVAL);
    }
}

/* A line where each connection brings 10 MB/s up to a total. */
static unsigned settle(unsigned max, double line)
{
    struct hx_adapt a;
    uint64_t bytes = 0;
    hx_adapt_init(&a, max, 0);
    for (int s = 0; s < 120; s++) {
        double rate = a.limit * 10e6 < line ? a.limit * 10e6 : line;
        bytes += (uint64_t)rate;
        hx_adapt_step(&a, s + 1, bytes, true);
        assert_true(a.limit >= 1 && a.limit <= max);
    }
    return a.limit;
}

static void connections_follow_the_line(void **state)
{
    (void)state;
    assert_int_equal(settle(8, 1e9), 8);
    /* One of twenty is 5 %: more of them show no rise that counts. */
    assert_int_equal(settle(32, 1e9), 20);
    unsigned n = settle(32, 60e6);
    assert_true(n >= 6 && n <= 8);
    assert_int_equal(settle(1, 1e9), 1);
    assert_true(settle(8, 10e6) <= 5);
}

static void slow_down_takes_one_away_once(void **state)
{
    (void)state;
    struct hx_adapt a;
    hx_adapt_init(&a, 8, 0);
    unsigned before = a.limit;
    for (int i = 0; i < 8; i++)
        hx_adapt_slow_down(&a, 100 + i * 0.01);
    assert_int_equal(a.limit, before - 1);
    for (int i = 0; i < 20; i++)
        hx_adapt_slow_down(&a, 200 + i * 2);
    assert_int_equal(a.limit, 1);
    /* No growth for a while, then again. */
    hx_adapt_step(&a, 250, 1000000, true);
    assert_int_equal(a.limit, 1);
    hx_adapt_step(&a, 400, 2000000, true);
    assert_int_equal(a.limit, 2);
}

static void idle_lines_say_nothing(void **state)
{
    (void)state;
    struct hx_adapt a;
    hx_adapt_init(&a, 8, 0);
    for (int s = 1; s < 60; s++)
        hx_adapt_step(&a, s, (uint64_t)s * 1000000, false);
    assert_int_equal(a.limit, 4);
}

static void delays_double_up_to_the_cap(void **state)
{
    (void)state;
    static const int want[] = {1, 2, 4, 8, 16, 32, 60, 60};
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal((int)hx_backoff_range(i + 1, 1, 60), want[i]);
    assert_int_equal((int)hx_backoff_range(4000000000u, 1, 60), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cap_holds_over_time),
        cmocka_unit_test(a_pause_earns_no_burst),
        cmocka_unit_test(time_windows),
        cmocka_unit_test(connections_follow_the_line),
        cmocka_unit_test(slow_down_takes_one_away_once),
        cmocka_unit_test(idle_lines_say_nothing),
        cmocka_unit_test(delays_double_up_to_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
