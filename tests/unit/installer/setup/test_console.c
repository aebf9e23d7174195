/* The status on a console: whole on a screen, on a line printer only what changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "setup/console.h"

struct shown {
    struct hx_console console;
    struct hx_status status;
};

/* What is printed at `now`. */
static void show(struct shown *x, bool redraw, long long now, char *out, size_t size)
{
    struct hx_error err;
    memset(out, 0, size);
    FILE *f = fmemopen(out, size - 1, "w");
    assert_non_null(f);
    assert_int_equal(hx_console_show(&x->console, &x->status, redraw, now, f, &err), 0);
    fclose(f);
}

static void start(struct shown *x)
{
    memset(x, 0, sizeof(*x));
    hx_box_init(&x->status.box);
    x->status.configured = true;
    for (int i = 0; i < HX_STATUS_UNITS; i++)
        x->status.unit[i].name = "x";
    x->status.fetch.there = true;
    snprintf(x->status.fetch.phase, sizeof(x->status.fetch.phase), "download");
    x->status.fetch.percent = 12.5;
    x->status.fetch.rate = 3000000;
    x->status.fetch.eta_s = -1;
    snprintf(x->status.address, sizeof(x->status.address), "192.0.2.7");
}

static void test_lines(void **state)
{
    static char out[8192];
    struct shown x;
    (void)state;
    start(&x);
    show(&x, false, 1000, out, sizeof(out));
    assert_non_null(strstr(out, "The model is being downloaded."));
    assert_non_null(strstr(out, "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 tunnel@192.0.2.7"));
    show(&x, false, 1015, out, sizeof(out));
    assert_string_equal(out, "");
    x.status.fetch.percent = 13;
    show(&x, false, 1060, out, sizeof(out));
    assert_string_equal(out, "The model is being downloaded. 13.0 %, 3.0 MB/s\n");
    show(&x, false, 1100, out, sizeof(out));
    assert_string_equal(out, "");
    /* Another address: the command for the tunnel is another one. */
    snprintf(x.status.address, sizeof(x.status.address), "192.0.2.9");
    show(&x, false, 1101, out, sizeof(out));
    assert_non_null(strstr(out, "tunnel@192.0.2.9"));
    snprintf(x.status.unit[4].active, sizeof(x.status.unit[4].active), "active");
    show(&x, false, 1102, out, sizeof(out));
    assert_non_null(strstr(out, "It is working: the model answers."));
    show(&x, false, 4000, out, sizeof(out));
    assert_string_equal(out, "");
    show(&x, false, 1102 + 3600, out, sizeof(out));
    assert_non_null(strstr(out, "It is working"));
    hx_box_done(&x.status.box);
}

static void test_screen(void **state)
{
    static char out[8192], again[8192];
    struct shown x;
    (void)state;
    start(&x);
    show(&x, true, 1, out, sizeof(out));
    assert_memory_equal(out, "\033[H\033[2J", 7);
    show(&x, true, 2, again, sizeof(again));
    assert_string_equal(out, again);
    hx_box_done(&x.status.box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_screen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
