/* Tools with limits, and recorded answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hw/command.h"

static double seconds_since(const struct timespec *from)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - from->tv_sec) + (double)(now.tv_nsec - from->tv_nsec) / 1e9;
}

static void test_real(void **state)
{
    (void)state;
    struct hx_commands *c;
    struct hx_command_result r;
    struct hx_error err;
    assert_int_equal(hx_commands_real(&c, &err), 0);
    static const char *const ok[] = {"sh", "-c", "echo out; echo err >&2; exit 3", NULL};
    assert_int_equal(hx_command_run(c, ok, 5000, &r, &err), 0);
    assert_int_equal(r.rc, 3);
    assert_string_equal(r.out, "out\n");
    assert_string_equal(r.err_text, "err\n");
    hx_command_result_done(&r);
    static const char *const none[] = {"no-such-tool-of-anyone", NULL};
    assert_int_equal(hx_command_run(c, none, 5000, &r, &err), 0);
    assert_int_equal(r.rc, HX_COMMAND_MISSING);
    hx_command_result_done(&r);
    /* Only the system folders count. */
    static const char *const path[] = {"./sh", NULL};
    assert_int_equal(hx_command_run(c, path, 5000, &r, &err), 0);
    assert_int_equal(r.rc, HX_COMMAND_MISSING);
    hx_command_result_done(&r);
    static const char *const killed[] = {"sh", "-c", "kill -TERM $$", NULL};
    assert_int_equal(hx_command_run(c, killed, 5000, &r, &err), 0);
    assert_int_equal(r.rc, 128 + 15);
    hx_command_result_done(&r);
    static const char *const env[] = {"sh", "-c", "echo $LC_ALL $HOME", NULL};
    assert_int_equal(hx_command_run(c, env, 5000, &r, &err), 0);
    assert_string_equal(r.out, "C\n");
    hx_command_result_done(&r);
    hx_commands_free(c);
    hx_commands_free(NULL);
}

static void test_real_limits(void **state)
{
    (void)state;
    struct hx_commands *c;
    struct hx_command_result r;
    struct hx_error err;
    struct timespec from;
    assert_int_equal(hx_commands_real(&c, &err), 0);
    clock_gettime(CLOCK_MONOTONIC, &from);
    static const char *const slow[] = {"sleep", "30", NULL};
    assert_int_equal(hx_command_run(c, slow, 200, &r, &err), 0);
    assert_true(r.timed_out);
    assert_int_equal(r.rc, -1);
    assert_true(seconds_since(&from) < 10);
    hx_command_result_done(&r);
    static const char *const much[] = {"head", "-c", "3000000", "/dev/zero", NULL};
    assert_int_equal(hx_command_run(c, much, 20000, &r, &err), 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.out_len, 1 << 20);
    hx_command_result_done(&r);
    hx_commands_free(c);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static char path[64];

static void write_table(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/hx-test-command-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static int run_words(const struct hx_commands *c, const char *a, const char *b,
                     struct hx_command_result *r)
{
    const char *const argv[] = {a, b, NULL};
    struct hx_error err;
    return hx_command_run(c, argv, 20000, r, &err);
}

static void test_table(void **state)
{
    (void)state;
    struct hx_commands *c;
    struct hx_command_result r;
    struct hx_error err;
    write_table("{\"commands\": ["
                "{\"argv\": [\"smi\", \"--query=*\"], \"rc\": 0, \"stdout\": \"table\"},"
                "{\"argv\": [\"any\", \"*\"], \"rc\": 7, \"delay_s\": 19, \"stderr\": \"why\"},"
                "{\"argv\": [\"hung\", \"now\"], \"rc\": 0, \"delay_s\": 120}]}");
    assert_int_equal(hx_commands_table(path, &c, &err), 0);
    assert_int_equal(run_words(c, "smi", "--query=a,b", &r), 0);
    assert_int_equal(r.rc, 0);
    assert_string_equal(r.out, "table");
    hx_command_result_done(&r);
    assert_int_equal(run_words(c, "smi", "--other", &r), 0);
    assert_int_equal(r.rc, HX_COMMAND_MISSING);
    hx_command_result_done(&r);
    assert_int_equal(run_words(c, "any", "thing", &r), 0);
    assert_int_equal(r.rc, 7);
    assert_string_equal(r.err_text, "why");
    hx_command_result_done(&r);
    assert_int_equal(run_words(c, "any", NULL, &r), 0);
    assert_int_equal(r.rc, HX_COMMAND_MISSING);
    hx_command_result_done(&r);
    assert_int_equal(run_words(c, "hung", "now", &r), 0);
    assert_true(r.timed_out);
    hx_command_result_done(&r);
    hx_commands_free(c);
    /* No table: nothing exists. */
    assert_int_equal(hx_commands_table(NULL, &c, &err), 0);
    assert_int_equal(run_words(c, "sh", NULL, &r), 0);
    assert_int_equal(r.rc, HX_COMMAND_MISSING);
    hx_command_result_done(&r);
    hx_commands_free(c);
}

static void test_broken_tables(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{\"commands\": 3}",
        "{\"commands\": [3]}",
        "{\"commands\": [{\"argv\": [\"a\", 3], \"rc\": 0}]}",
        "{\"commands\": [{\"argv\": [\"a\"], \"rc\": 256}]}",
        "{\"commands\": [{\"argv\": [\"a\"]}]}",
        "{\"commands\": [{\"argv\": [\"a\"], \"rc\": 0, \"delay_s\": -1}]}",
        "{\"commands\": [{\"argv\": [\"a\"], \"rc\": 0, \"file\": \"/etc/passwd\"}]}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hx_commands *c = NULL;
        struct hx_error err = {0};
        write_table(texts[i]);
        assert_int_equal(hx_commands_table(path, &c, &err), -EINVAL);
        assert_null(c);
        assert_non_null(strstr(err.text, path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real),
        cmocka_unit_test(test_real_limits),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_broken_tables),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
