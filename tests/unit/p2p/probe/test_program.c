/* hx-probe as a program, where it finds no card: an unknown UUID hides those that may be there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "probe/probe.h"

#define NO_CARD "--devices", "GPU-00000000-0000-0000-0000-000000000000"

static char program[PATH_MAX], folder[64], out_path[96], err_path[96], file[96];
static char *out, *err;

/* The program was built beside the folder of the tests. */
static int setup(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
    if (n <= 0)
        return -1;
    program[n] = '\0';
    for (int i = 0; i < 4; i++)
        *strrchr(program, '/') = '\0';
    strncat(program, "/bin/hx-probe", 31);
    snprintf(folder, sizeof(folder), "/tmp/hx-probe-test-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(out_path, sizeof(out_path), "%s/out", folder);
    snprintf(err_path, sizeof(err_path), "%s/err", folder);
    snprintf(file, sizeof(file), "%s/probe.json", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(out_path);
    unlink(err_path);
    unlink(file);
    free(out);
    free(err);
    out = err = NULL;
    return rmdir(folder);
}

static char *slurp(const char *path)
{
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(hx_file_read(path, 1 << 20, &text, &len, NULL), 0);
    return text;
}

/* Exit code; out and err hold what it wrote. */
static int run(const char *const *args)
{
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        union {
            const char *in[16];
            char *const out[16];
        } words = {.in = {program}};
        for (int i = 0; args[i]; i++)
            words.in[i + 1] = args[i];
        dup2(open(out_path, O_CREAT | O_TRUNC | O_WRONLY, 0600), 1);
        dup2(open(err_path, O_CREAT | O_TRUNC | O_WRONLY, 0600), 2);
        execv(program, words.out);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    free(out);
    free(err);
    out = slurp(out_path);
    err = slurp(err_path);
    return WEXITSTATUS(status);
}

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static const char empty[] =
    "{\"schema\": 1, \"devices\": [], \"p2p\": null, \"collectives\": null}\n";

static void no_card_is_said_at_once(void **state)
{
    (void)state;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(RUN(NO_CARD), 69);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_string_equal(out, empty);
    assert_non_null(strstr(err, "hx-probe: "));
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1); /* one line */
    if (access("/dev/nvidiactl", F_OK) != 0) /* without a driver in under a second */
        assert_true((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 1.0);
}

static void document_goes_to_the_file(void **state)
{
    (void)state;
    assert_int_equal(RUN(NO_CARD, "--output", file), 69);
    assert_string_equal(out, "");
    char *text = slurp(file);
    assert_string_equal(text, empty);
    free(text);
    assert_int_equal(RUN(NO_CARD, "--output", "/nonexistent/probe.json"), 74);
    assert_non_null(strstr(err, "/nonexistent/probe.json"));
}

static void wrong_arguments(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
    } rows[] = {
        {"--pattern-seconds", "soon", "--pattern-seconds soon: a whole number up to 604800"},
        {"--pattern-seconds", "604801", "604801"},
        {"--pattern-seconds", "-1", "-1"},
        {"--memory", "63", "64 to 1048576 MiB"},
        {"--memory", "99999999999999999999", "64 to 1048576 MiB"},
        {"--memory", "", "64 to 1048576 MiB"},
        {"--bogus", "x", "unknown option --bogus"},
        {"extra", "x", "unexpected argument extra"},
        {"--quiet", "extra", "unexpected argument extra"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(RUN(rows[i].option, rows[i].value), 64);
        if (!strstr(err, rows[i].says))
            fail_msg("%s %s: %s", rows[i].option, rows[i].value, err);
        assert_string_equal(out, "");
    }
    assert_int_equal(RUN("--output"), 64);
    assert_non_null(strstr(err, "--output needs a value"));
    if (hx_probe_n_steps) {
        assert_int_equal(RUN("--steps", "rates,nonsense"), 64);
        assert_non_null(strstr(err, "'nonsense'"));
    }
}

static void help_and_lists(void **state)
{
    (void)state;
    assert_int_equal(RUN("--help"), 0);
    assert_non_null(strstr(out, "--self-test"));
    assert_int_equal(RUN("--version"), 0);
    assert_int_equal(strncmp(out, "hx-probe ", 9), 0);
    assert_int_equal(RUN("--list"), 0);
    for (size_t i = 0; i < hx_probe_n_steps; i++)
        assert_non_null(strstr(out, hx_probe_steps[i].name));
    assert_true(out[0] != '\0');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_card_is_said_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(document_goes_to_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(help_and_lists, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
