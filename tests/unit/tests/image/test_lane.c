/* The order of scenarios: what one needs comes before it, what must not meet does not, each says
 * how it ended, one that dies included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "image/lane.h"

static char folder[] = "/tmp/hx-lane-XXXXXX";

/* A line of WORK/log: "+ID" at the start, "-ID" at the end. */
static void note(const struct hx_scene *s, char sign, const char *id)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/log", s->work);
    FILE *f = fopen(path, "a");
    fprintf(f, "%c%s\n", sign, id);
    fclose(f);
}

static int busy(struct hx_scene *s, const char *id, struct hx_error *err)
{
    (void)err;
    note(s, '+', id);
    usleep(200000);
    note(s, '-', id);
    return 0;
}

static int a(struct hx_scene *s, struct hx_error *err)
{
    return busy(s, "a", err);
}

/* As a, but not over before c has started. */
static int a_meets_c(struct hx_scene *s, struct hx_error *err)
{
    char path[300], *text;
    size_t len;
    bool met = false;
    snprintf(path, sizeof(path), "%s/log", s->work);
    note(s, '+', "a");
    for (int i = 0; i < 300 && !met; i++) {
        int r = hx_file_read(path, 400, &text, &len, err);
        if (r)
            return r;
        met = strstr(text, "+c\n") != NULL;
        free(text);
        usleep(100000);
    }
    note(s, '-', "a");
    return met ? 0 : hx_fail(err, -ETIMEDOUT, "c did not start beside it");
}

static int b(struct hx_scene *s, struct hx_error *err)
{
    return busy(s, "b", err);
}

static int c(struct hx_scene *s, struct hx_error *err)
{
    return busy(s, "c", err);
}

static int fails(struct hx_scene *s, struct hx_error *err)
{
    note(s, '+', "fails");
    return hx_fail(err, -EIO, "as wanted");
}

static int dies(struct hx_scene *s, struct hx_error *err)
{
    (void)err;
    note(s, '+', "dies");
    abort();
}

static int skips(struct hx_scene *s, struct hx_error *err)
{
    note(s, '+', "skips");
    return hx_fail(err, HX_SCENE_SKIP, "as wanted");
}

static bool go(const struct hx_scenario *scenarios, int n, int jobs, bool goes_on, char log[500])
{
    static const bool all[8] = {true, true, true, true, true, true, true, true};
    char path[300], *text;
    size_t len;
    struct hx_error err;
    if (!hx_vm_available(&err)) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    snprintf(path, sizeof(path), "%s/log", folder);
    unlink(path);
    bool passed =
        hx_lane_run(&(struct hx_lane){scenarios, n, all, folder, folder, 1, jobs, goes_on});
    assert_int_equal(hx_file_read(path, 400, &text, &len, &err), 0);
    snprintf(log, 500, "%s", text);
    free(text);
    return passed;
}

static bool run(const struct hx_scenario *scenarios, int n, int jobs, char log[500])
{
    return go(scenarios, n, jobs, false, log);
}

static bool overlap(const char *log, const char *id, const char *other)
{
    char from[20], to[20], start[20], end[20];
    snprintf(from, sizeof(from), "+%s\n", id);
    snprintf(to, sizeof(to), "-%s\n", id);
    snprintf(start, sizeof(start), "+%s\n", other);
    snprintf(end, sizeof(end), "-%s\n", other);
    return strstr(log, from) < strstr(log, end) && strstr(log, start) < strstr(log, to);
}

static void test_one_at_a_time(void **state)
{
    (void)state;
    const struct hx_scenario rows[] = {{"a", false, 60, "", a, NULL, 0},
                                       {"b", false, 60, "", b, NULL, 0}};
    char log[500];
    assert_true(run(rows, 2, 1, log));
    assert_string_equal(log, "+a\n-a\n+b\n-b\n");
}

static void test_two_at_a_time(void **state)
{
    (void)state;
    const struct hx_scenario rows[] = {{"a", false, 60, "", a_meets_c, NULL, HX_LANE_MIRROR},
                                       {"b", false, 60, "", b, NULL, HX_LANE_MIRROR},
                                       {"c", false, 60, "", c, NULL, 0}};
    char log[500];
    assert_true(run(rows, 3, 2, log));
    assert_false(overlap(log, "a", "b"));
}

static void test_needs(void **state)
{
    (void)state;
    const struct hx_scenario rows[] = {{"a", false, 60, "", a_meets_c, NULL, 0},
                                       {"b", false, 60, "", b, "a", 0},
                                       {"c", false, 60, "", c, "not chosen", 0}};
    char log[500];
    assert_true(run(rows, 3, 3, log));
    assert_false(overlap(log, "a", "b"));
}

static void test_alone(void **state)
{
    (void)state;
    const struct hx_scenario rows[] = {{"a", false, 60, "", a, NULL, 0},
                                       {"b", false, 60, "", b, NULL, HX_LANE_HOST},
                                       {"c", false, 60, "", c, NULL, 0}};
    char log[500];
    assert_true(run(rows, 3, 3, log));
    assert_string_equal(log, "+a\n-a\n+b\n-b\n+c\n-c\n");
}

static void test_endings(void **state)
{
    (void)state;
    char log[500];
    const struct hx_scenario failing[] = {{"fails", false, 60, "", fails, NULL, 0},
                                          {"a", false, 60, "", a, "fails", 0}};
    assert_false(run(failing, 2, 2, log));
    assert_string_equal(log, "+fails\n+a\n-a\n");
    const struct hx_scenario dying[] = {{"dies", false, 60, "", dies, NULL, 0}};
    assert_false(run(dying, 1, 1, log));
    const struct hx_scenario skipping[] = {{"skips", false, 60, "", skips, NULL, 0}};
    assert_true(run(skipping, 1, 1, log));
}

/* What has passed with this image is not run again; with another one it is. */
static void test_going_on(void **state)
{
    (void)state;
    struct hx_error err;
    char log[500], path[300];
    const struct hx_scenario first[] = {{"a", false, 60, "", a, NULL, 0},
                                        {"fails", false, 60, "", fails, NULL, 0}};
    const struct hx_scenario then[] = {{"a", false, 60, "", a, NULL, 0},
                                       {"fails", false, 60, "", b, "a", 0},
                                       {"ab", false, 60, "", c, "a", 0}};
    assert_false(run(first, 2, 1, log));
    assert_true(go(then, 3, 1, true, log));
    assert_string_equal(log, "+b\n-b\n+c\n-c\n");
    snprintf(path, sizeof(path), "%s/image/work/out/root.hash", folder);
    assert_int_equal(hx_file_replace(path, "cd\n", 3, &err), 0);
    assert_true(go(then, 3, 1, true, log));
    assert_string_equal(log, "+a\n-a\n+b\n-b\n+c\n-c\n");
    assert_true(run(then, 1, 1, log));
    assert_string_equal(log, "+a\n-a\n");
}

static int set_up(void **state)
{
    char path[300];
    struct hx_error err;
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    static const char *const parts[] = {"image", "image/work", "image/work/out"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, parts[i]);
        if (mkdir(path, 0700) < 0)
            return -1;
    }
    snprintf(path, sizeof(path), "%s/image/work/out/stick.img", folder);
    if (hx_file_replace(path, "", 0, &err))
        return -1;
    snprintf(path, sizeof(path), "%s/image/work/out/root.hash", folder);
    return hx_file_replace(path, "ab\n", 3, &err);
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const parts[] = {"/log",
                                        "/passed",
                                        "/image/work/out/root.hash",
                                        "/image/work/out/stick.img",
                                        "/image/work/out",
                                        "/image/work",
                                        "/image",
                                        ""};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char path[300];
        snprintf(path, sizeof(path), "%s%s", folder, parts[i]);
        if (remove(path) < 0)
            return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time), cmocka_unit_test(test_two_at_a_time),
        cmocka_unit_test(test_needs),         cmocka_unit_test(test_alone),
        cmocka_unit_test(test_endings),       cmocka_unit_test(test_going_on),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
