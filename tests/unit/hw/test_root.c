/* Files below a root: links stay inside, odd files are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hw/root.h"

static char dir[64];
static struct hx_root *root;

static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof(full), "%s%s", dir, path);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static void make_folder(const char *path)
{
    char full[256];
    snprintf(full, sizeof(full), "%s%s", dir, path);
    assert_int_equal(mkdir(full, 0755), 0);
}

static void make_link(const char *target, const char *path)
{
    char full[256];
    snprintf(full, sizeof(full), "%s%s", dir, path);
    assert_int_equal(symlink(target, full), 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hx-test-root-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    make_folder("/sys");
    make_folder("/sys/a");
    put("/sys/a/value", "0x2082\n");
    put("/sys/a/negative", "-1\n");
    put("/sys/a/words", "  two words \n\n");
    make_link("../sys/a", "/sys/relative");
    make_link("/sys/a", "/sys/absolute");
    make_link("../../../../etc", "/sys/outside");
    make_link("loop", "/sys/loop");
    make_link("nowhere", "/sys/dangling");
    return hx_root_open(dir, &root, NULL);
}

static int teardown(void **state)
{
    (void)state;
    static const char *const paths[] = {"/sys/a/value", "/sys/a/negative", "/sys/a/words",
                                        "/sys/a",       "/sys/relative",   "/sys/absolute",
                                        "/sys/outside", "/sys/loop",       "/sys/dangling",
                                        "/sys",         "/pipe",           ""};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char full[256];
        snprintf(full, sizeof(full), "%s%s", dir, paths[i]);
        (void)remove(full);
    }
    hx_root_close(root);
    hx_root_close(NULL);
    return 0;
}

static void test_links_stay_inside(void **state)
{
    (void)state;
    char path[HX_ROOT_PATH];
    int64_t v;
    assert_int_equal(hx_root_resolve(root, "/sys/relative/value", path), 0);
    assert_string_equal(path, "/sys/a/value");
    assert_int_equal(hx_root_resolve(root, "/sys/absolute/../a/./value", path), 0);
    assert_string_equal(path, "/sys/a/value");
    assert_int_equal(hx_root_number(root, "/sys/absolute/value", &v), 0);
    assert_int_equal(v, 0x2082);
    /* Up beyond the root is the root, so a link to the machine's /etc finds nothing. */
    assert_int_equal(hx_root_resolve(root, "/sys/outside/passwd", path), -ENOENT);
    assert_int_equal(hx_root_resolve(root, "/../../../sys/a", path), 0);
    assert_string_equal(path, "/sys/a");
    assert_int_equal(hx_root_resolve(root, "/sys/loop", path), -ELOOP);
    assert_int_equal(hx_root_resolve(root, "/sys/dangling", path), -ENOENT);
    assert_false(hx_root_exists(root, "/sys/none"));
    assert_true(hx_root_is_folder(root, "/sys/absolute"));
    assert_false(hx_root_is_folder(root, "/sys/a/value"));
    assert_true(hx_root_is_fake(root));
}

static void test_long_paths(void **state)
{
    (void)state;
    char path[3000], out[HX_ROOT_PATH];
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(hx_root_resolve(root, path, out), -ENAMETOOLONG);
}

static void test_texts_and_numbers(void **state)
{
    (void)state;
    char text[32];
    int64_t v = 7;
    assert_int_equal(hx_root_text(root, "/sys/a/words", text, sizeof(text)), 0);
    assert_string_equal(text, "  two words");
    assert_int_equal(hx_root_text(root, "/sys/a/words", text, 5), 0);
    assert_string_equal(text, "  tw");
    assert_int_equal(hx_root_number(root, "/sys/a/negative", &v), 0);
    assert_int_equal(v, -1);
    assert_int_equal(hx_root_number(root, "/sys/a/words", &v), -EINVAL);
    assert_int_equal(hx_root_number(root, "/sys/none", &v), -ENOENT);
    assert_int_equal(v, -1);
}

static void test_odd_files(void **state)
{
    (void)state;
    char full[256], *out = NULL;
    size_t len;
    struct hx_error err;
    snprintf(full, sizeof(full), "%s/pipe", dir);
    assert_int_equal(mkfifo(full, 0600), 0);
    assert_int_equal(hx_root_read(root, "/pipe", 100, &out, &len, &err), -EINVAL);
    assert_int_equal(hx_root_read(root, "/sys", 100, &out, &len, &err), -EINVAL);
    assert_int_equal(hx_root_read(root, "/sys/a/value", 3, &out, &len, &err), -EFBIG);
    assert_string_equal(err.text, "/sys/a/value: more than 3 bytes");
    assert_null(out);
    assert_int_equal(hx_root_read(root, "/sys/a/value", 7, &out, &len, &err), 0);
    assert_int_equal(len, 7);
    free(out);
}

static void test_lists(void **state)
{
    (void)state;
    struct hx_names names;
    struct hx_error err;
    assert_int_equal(hx_root_list(root, "/sys/absolute", &names, &err), 0);
    assert_int_equal(names.n, 3);
    assert_string_equal(names.name[0], "negative");
    assert_string_equal(names.name[2], "words");
    hx_names_done(&names);
    assert_int_equal(hx_root_list(root, "/sys/none", &names, &err), -ENOENT);
    assert_int_equal(hx_root_list(root, "/sys/a/value", &names, &err), -ENOTDIR);
}

static void test_open(void **state)
{
    (void)state;
    struct hx_root *other = NULL;
    struct hx_error err;
    char path[HX_ROOT_PATH];
    assert_int_equal(hx_root_open("/nowhere/at/all", &other, &err), -ENOENT);
    assert_int_equal(hx_root_open("/dev/null", &other, &err), -ENOTDIR);
    assert_null(other);
    assert_int_equal(hx_root_open(NULL, &other, &err), 0);
    assert_false(hx_root_is_fake(other));
    assert_int_equal(hx_root_outside(other, "/tmp/none", path), 0);
    hx_root_close(other);
}

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t max;
        bool good;
        uint64_t value;
    } whole[] = {
        {"0", 10, true, 0},
        {"10", 10, true, 10},
        {"11", 10, false, 0},
        {"0x1F", 100, true, 31},
        {"", 10, false, 0},
        {"0x", 100, false, 0},
        {"1 ", 10, false, 0},
        {"-1", 10, false, 0},
        {"9", 5, false, 0},
        {"18446744073709551615", UINT64_MAX, true, UINT64_MAX},
        {"18446744073709551616", UINT64_MAX, false, 0},
        {"0xffffffffffffffff", UINT64_MAX, true, UINT64_MAX},
    };
    static const struct {
        const char *text;
        bool good;
        double value;
    } reals[] = {{"1.5", true, 1.5}, {"0.29", true, 0.29}, {"12", true, 12}, {".5", true, 0.5},
                 {".", false, 0},    {"1.2.3", false, 0},  {"", false, 0},   {"1e5", false, 0},
                 {"nan", false, 0},  {"-1", false, 0},     {"5 ", false, 0}};
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        uint64_t v = 0;
        assert_int_equal(hx_parse_u64(whole[i].text, strlen(whole[i].text), whole[i].max, &v),
                         whole[i].good);
        assert_true(v == whole[i].value);
    }
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        double v = 0;
        assert_int_equal(hx_parse_real(reals[i].text, strlen(reals[i].text), &v), reals[i].good);
        assert_true(v == reals[i].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_stay_inside),
        cmocka_unit_test(test_long_paths),
        cmocka_unit_test(test_texts_and_numbers),
        cmocka_unit_test(test_odd_files),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
