/* Files and log lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hx-test-file-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(dir);
}

static void test_replace_read(void **state)
{
    (void)state;
    char *path = hx_path_join(dir, "f"), *half = hx_path_join(dir, "f.new"), *out = NULL;
    size_t len = 0;
    struct hx_error err;
    assert_int_equal(hx_file_replace(path, "first", 5, &err), 0);
    assert_int_equal(hx_file_replace(path, "a\0b", 3, &err), 0);
    assert_int_equal(access(half, F_OK), -1);
    assert_int_equal(hx_file_read(path, 3, &out, &len, &err), 0);
    assert_int_equal(len, 3);
    assert_memory_equal(out, "a\0b", 4); /* one NUL beyond */
    free(out);
    out = NULL;
    assert_int_equal(hx_file_read(path, 2, &out, &len, &err), -EFBIG);
    assert_non_null(strstr(err.text, "3 bytes, at most 2 are allowed"));
    assert_null(out);
    assert_int_equal(hx_file_replace(path, "", 0, &err), 0);
    assert_int_equal(hx_file_read(path, 0, &out, &len, &err), 0);
    assert_int_equal(len, 0);
    free(out);
    unlink(path);
    free(path);
    free(half);
}

static void test_refusals(void **state)
{
    (void)state;
    char *path = hx_path_join(dir, "pipe"), *below = hx_path_join(dir, "no/such"), *out = NULL;
    size_t len = 0;
    struct hx_error err;
    assert_int_equal(hx_file_read(below, 10, &out, &len, &err), -ENOENT);
    assert_int_equal(hx_file_read(dir, 10, &out, &len, &err), -EISDIR);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(hx_file_read(path, 10, &out, &len, &err), -EINVAL); /* does not wait */
    assert_int_equal(hx_file_replace(below, "x", 1, &err), -ENOENT);
    assert_non_null(strstr(err.text, below));
    assert_int_equal(hx_file_replace(dir, "x", 1, &err), -EISDIR);
    char *half = NULL;
    assert_true(asprintf(&half, "%s.new", dir) > 0);
    assert_int_equal(access(half, F_OK), -1);
    assert_null(out);
    unlink(path);
    free(half);
    free(path);
    free(below);
}

static void test_positions(void **state)
{
    (void)state;
    char *path = hx_path_join(dir, "p"), buf[8] = "";
    struct hx_error err;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(hx_file_pwrite(fd, path, "abcdef", 6, 10, &err), 0);
    assert_int_equal(hx_file_pread(fd, path, buf, 3, 12, &err), 0);
    assert_string_equal(buf, "cde");
    assert_int_equal(hx_file_pread(fd, path, buf, 0, 999, &err), 0);
    assert_int_equal(hx_file_pread(fd, path, buf, 4, 13, &err), -EIO);
    assert_non_null(strstr(err.text, "file ends after 3 of 4 bytes wanted at offset 13"));
    close(fd);
    assert_int_equal(hx_file_pread(fd, path, buf, 1, 0, &err), -EBADF);
    unlink(path);
    free(path);
}

static void test_join(void **state)
{
    (void)state;
    static const char *const row[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *p = hx_path_join(row[i][0], row[i][1]);
        assert_string_equal(p, row[i][2]);
        free(p);
    }
}

/* What reaches stderr while a function runs. */
static void logged(char *out, size_t size, enum hx_log_level level, const char *text)
{
    int pipes[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    hx_log(level, "module", "%s", text);
    dup2(saved, STDERR_FILENO);
    close(pipes[1]);
    close(saved);
    ssize_t n = read(pipes[0], out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    close(pipes[0]);
}

static void test_log(void **state)
{
    (void)state;
    char line[4096], longer[4000];
    enum hx_log_level before = hx_log_get_level();
    assert_int_equal(before, HX_LOG_INFO);
    logged(line, sizeof(line), HX_LOG_WARN, "a value");
    assert_string_equal(line, "<4>module: a value\n");
    logged(line, sizeof(line), HX_LOG_DEBUG, "quiet");
    assert_string_equal(line, "");
    hx_log_set_level(HX_LOG_DEBUG);
    logged(line, sizeof(line), HX_LOG_DEBUG, "loud");
    assert_string_equal(line, "<7>module: loud\n");
    hx_log_set_level(before);
    /* Nothing can forge a second line, however long it is. */
    logged(line, sizeof(line), HX_LOG_INFO, "a\n<3>forged\r\x1b[31m");
    assert_string_equal(line, "<6>module: a <3>forged  [31m\n");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    logged(line, sizeof(line), HX_LOG_INFO, longer);
    assert_true(strlen(line) > 1000 && strlen(line) <= 2048);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

static void test_beneath(void **state)
{
    (void)state;
    char *sub = hx_path_join(dir, "sub"), *file = hx_path_join(sub, "f"),
         *link = hx_path_join(dir, "link"), *down = hx_path_join(dir, "down");
    struct hx_error err;
    assert_int_equal(mkdir(sub, 0700), 0);
    assert_int_equal(hx_file_replace(file, "x", 1, &err), 0);
    assert_int_equal(symlink("sub/f", link), 0);
    assert_int_equal(symlink("sub", down), 0);
    int at = open(dir, O_RDONLY | O_DIRECTORY);
    static const char *const good[] = {"sub/f", "./sub//f"};
    for (size_t i = 0; i < 2; i++) {
        char c = 0;
        int fd = hx_file_open_beneath(at, good[i], O_RDONLY);
        assert_int_equal(read(fd, &c, 1), 1);
        assert_int_equal(c, 'x');
        close(fd);
    }
    static const struct {
        const char *path;
        int number;
    } bad[] = {{"link", ELOOP},  {"down/f", ELOOP},    {"sub/none", ENOENT}, {"no/f", ENOENT},
               {"../x", EINVAL}, {"sub/../f", EINVAL}, {"/etc", EINVAL},     {"sub/f/g", ENOTDIR}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        errno = 0;
        assert_int_equal(hx_file_open_beneath(at, bad[i].path, O_RDONLY), -1);
        assert_int_equal(errno, bad[i].number);
    }
    close(at);
    unlink(down);
    unlink(link);
    unlink(file);
    rmdir(sub);
    free(down);
    free(link);
    free(file);
    free(sub);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace_read), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_positions),    cmocka_unit_test(test_join),
        cmocka_unit_test(test_log),          cmocka_unit_test(test_beneath),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
