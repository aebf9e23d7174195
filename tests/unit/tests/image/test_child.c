/* Programs that tests start: their end, their output, deadlines, nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "image/child.h"

static char folder[64];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/hx-child-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const names[] = {"log", "pid"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static int run(const char *script, const char *input, struct hx_buf *out, int *code, int ms,
               struct hx_error *err)
{
    const char *const argv[] = {"sh", "-c", script, NULL};
    return hx_child_run(argv, input, out, code, hx_child_clock() + ms, err);
}

static void test_run(void **state)
{
    (void)state;
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_error err;
    int code = -1;
    assert_int_equal(run("cat; echo bad >&2; exit 7", "hello\n", &out, &code, 20000, &err), 0);
    assert_int_equal(code, 7);
    assert_string_equal(hx_buf_cstr(&out), "hello\nbad\n");
    assert_int_equal(run("kill -9 $$", NULL, &out, &code, 20000, &err), 0);
    assert_int_equal(code, 128 + SIGKILL);
    hx_buf_done(&out);
}

static void test_input_nobody_reads(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 20;
    char *input = malloc(n + 1);
    assert_non_null(input);
    memset(input, 'x', n);
    input[n] = '\0';
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    int code = -1;
    assert_int_equal(run("exit 3", input, &out, &code, 20000, NULL), 0);
    assert_int_equal(code, 3);
    assert_int_equal(run("wc -c", input, &out, &code, 20000, NULL), 0);
    assert_string_equal(hx_buf_cstr(&out), "1048576\n");
    hx_buf_done(&out);
    free(input);
}

static void test_run_deadline(void **state)
{
    (void)state;
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_error err;
    int code = -1;
    int64_t start = hx_child_clock();
    /* exec: the sleeper is the child itself, nothing of it stays. */
    assert_int_equal(run("echo almost; exec sleep 60", NULL, &out, &code, 500, &err), -ETIMEDOUT);
    assert_true(hx_child_clock() - start >= 500);
    assert_true(hx_child_clock() - start < 20000);
    assert_non_null(strstr(err.text, "almost"));
    assert_int_equal(code, -1);
    hx_buf_done(&out);
}

static void test_output_limit(void **state)
{
    (void)state;
    struct hx_buf out = HX_BUF_INIT(100);
    struct hx_error err;
    int code = -1;
    assert_int_equal(run("yes", NULL, &out, &code, 20000, &err), -EMSGSIZE);
    hx_buf_done(&out);
}

static void test_no_program(void **state)
{
    (void)state;
    const char *const argv[] = {"hx-there-is-no-such-program", NULL};
    struct hx_buf out = HX_BUF_INIT(100);
    struct hx_error err;
    int code = -1;
    assert_int_equal(hx_child_run(argv, NULL, &out, &code, hx_child_clock() + 1000, &err), -ENOENT);
    assert_non_null(strstr(err.text, "hx-there-is-no-such-program"));
    hx_buf_done(&out);
}

static void test_start_and_kill(void **state)
{
    (void)state;
    char log[128], pidfile[128], how[64];
    snprintf(log, sizeof(log), "%s/log", folder);
    snprintf(pidfile, sizeof(pidfile), "%s/pid", folder);
    struct hx_child c;
    const char *const argv[] = {"sh", "-c", "echo up; exec sleep 60", NULL};
    assert_int_equal(hx_child_start(&c, argv, log, pidfile, NULL), 0);
    assert_true(hx_child_alive(&c));
    char *text;
    size_t len;
    assert_int_equal(hx_file_read(pidfile, 64, &text, &len, NULL), 0);
    assert_int_equal(strtol(text, NULL, 10), c.pid);
    free(text);
    assert_int_equal(hx_child_wait(&c, hx_child_clock() + 200, NULL), -ETIMEDOUT);
    hx_child_describe(&c, how, sizeof(how));
    assert_string_equal(how, "still running");
    hx_child_kill(&c);
    assert_false(hx_child_alive(&c));
    hx_child_describe(&c, how, sizeof(how));
    assert_string_equal(how, "signal 9");
    assert_int_equal(access(pidfile, F_OK), -1);
    hx_child_kill(&c); /* again: nothing */
    assert_int_equal(hx_file_read(log, 64, &text, &len, NULL), 0);
    assert_string_equal(text, "up\n");
    free(text);
}

static void test_sleep(void **state)
{
    (void)state;
    int64_t now = hx_child_clock();
    assert_true(hx_child_sleep(30, now + 10000));
    assert_true(hx_child_clock() - now >= 30);
    assert_false(hx_child_sleep(30, now));
    assert_int_equal(hx_child_within(now, 60000), now);
    assert_true(hx_child_within(now + 600000, 10) < now + 600000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_input_nobody_reads),
        cmocka_unit_test(test_run_deadline),
        cmocka_unit_test(test_output_limit),
        cmocka_unit_test(test_no_program),
        cmocka_unit_test_setup_teardown(test_start_and_kill, set_up, tear_down),
        cmocka_unit_test(test_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
