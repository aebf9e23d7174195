/* Configuration rows: files, drop-ins, arguments, and the messages of everything refused. */
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

#include "base/conf.h"
#include "base/file.h"

struct options {
    char name[17];
    int64_t count, size, time;
    double rate;
    bool on;
    int colour;
};

#define O(f) offsetof(struct options, f)
static const struct hx_conf_option rows[] = {
    {"one", "name", HX_CONF_STRING, O(name), 0, 16, "nobody", NULL, "who"},
    {"one", "count", HX_CONF_INT, O(count), -5, 1000, "3", NULL, "how many"},
    {"one", "on", HX_CONF_BOOL, O(on), 0, 0, "no", NULL, "whether"},
    {"two", "size", HX_CONF_SIZE, O(size), 1024, 1099511627776.0, "64M", NULL, "how large"},
    {"two", "time", HX_CONF_TIME, O(time), 0, 3600e6, "30s", NULL, "how long"},
    {"two", "rate", HX_CONF_REAL, O(rate), 0, 1, "0.1", NULL, "how often"},
    {"two", "colour", HX_CONF_CHOICE, O(colour), 0, 0, "red", "red green blue", "which"},
};
#define N (int)(sizeof(rows) / sizeof(rows[0]))

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hx-test-conf-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(dir);
}

/* Reads text as a file into o; the result, message in err. */
static int read_text(const char *text, struct options *o, struct hx_error *err)
{
    char *path = hx_path_join(dir, "a.conf");
    assert_int_equal(hx_file_replace(path, text, strlen(text), NULL), 0);
    int r = hx_conf_file(rows, N, o, path, err);
    unlink(path);
    free(path);
    return r;
}

static void test_defaults(void **state)
{
    (void)state;
    struct options o;
    hx_conf_defaults(rows, N, &o);
    assert_string_equal(o.name, "nobody");
    assert_int_equal(o.count, 3);
    assert_false(o.on);
    assert_int_equal(o.size, 64 << 20);
    assert_int_equal(o.time, 30000000);
    assert_true(o.rate == 0.1);
    assert_int_equal(o.colour, 0);
}

static void test_file(void **state)
{
    (void)state;
    struct options o;
    struct hx_error err;
    hx_conf_defaults(rows, N, &o);
    assert_int_equal(read_text("# comment\n; comment\n\n[one]\nname = some body ; not this\n"
                               "count=-5\r\n  on = YES\n[two]\nsize = 1.5k\ntime = 250ms\n"
                               "rate = 1\ncolour = blue\n",
                               &o, &err),
                     0);
    assert_string_equal(o.name, "some body");
    assert_int_equal(o.count, -5);
    assert_true(o.on);
    assert_int_equal(o.size, 1536);
    assert_int_equal(o.time, 250000);
    assert_true(o.rate == 1);
    assert_int_equal(o.colour, 2);
    /* A later line wins; an empty value is a value. */
    assert_int_equal(read_text("[one]\ncount = 1\ncount = 2\nname =\n", &o, &err), 0);
    assert_int_equal(o.count, 2);
    assert_string_equal(o.name, "");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } row[] = {
        {"[one]\ncount = x\n",
         "a.conf:2: [one] count: found 'x', expected an integer from -5 to 1000"},
        {"[one]\n\ncount = 1001\n", "a.conf:3: [one] count: found '1001'"},
        {"[one]\ncount = -6\n", "a.conf:2: [one] count: found '-6'"},
        {"[one]\ncount = 1.5\n", "found '1.5', expected an integer"},
        {"[one]\ncount = 1k\n", "found '1k'"},
        {"[one]\ncount =\n", "found ''"},
        {"[one]\ncount = nan\n", "found 'nan'"},
        {"[one]\ncount = 99999999999999999999\n", "found '99999999999999999999'"},
        {"[one]\non = maybe\n", "[one] on: found 'maybe', expected yes or no"},
        {"[one]\nname = seventeen letters\n", "expected at most 16 characters"},
        {"[two]\nsize = 1023\n", "[two] size: found '1023', expected a size from 1024"},
        {"[two]\nsize = 2T\n", "found '2T'"},
        {"[two]\nsize = 64MB\n", "found '64MB'"},
        {"[two]\nsize = -1M\n", "found '-1M'"},
        {"[two]\ntime = 2h\n", "[two] time: found '2h', expected a time from 0s to 3600s"},
        {"[two]\ntime = 5 s\n", "found '5 s'"},
        {"[two]\nrate = 1.01\n", "[two] rate: found '1.01', expected a number from 0 to 1"},
        {"[two]\nrate = inf\n", "found 'inf'"},
        {"[two]\ncolour = re\n", "[two] colour: found 're', expected one of: red green blue"},
        {"[two]\ncolour = red green\n", "found 'red green'"},
        {"[one]\nsize = 4k\n", "a.conf:2: [one] size: no such option"},
        {"[three]\nx = 1\n", "a.conf:2: [three] x: no such section"},
        {"count = 1\n", "a.conf:1: [] count: no such section"},
        {"[one]\njust words\n", "a.conf:2: not a section, a 'key = value' line or a comment"},
        {"[one\ncount = 1\n", "a.conf:1: "},
        {"[one]\ncount = 1\n  more\n", "a.conf:3: not a section"},
        {"[one]\ncount = x\n[one\n", "a.conf:2: [one] count"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct options o;
        struct hx_error err = {.text = ""};
        hx_conf_defaults(rows, N, &o);
        int r = read_text(row[i].text, &o, &err);
        if (r != -EINVAL || !strstr(err.text, row[i].want) || err.domain != HX_DOMAIN_CONF)
            fail_msg("row %zu: %d '%s', expected '%s'", i, r, err.text, row[i].want);
    }
}

/* A long line is refused, never cut. */
static void test_long_lines(void **state)
{
    (void)state;
    char text[4200] = "[one]\ncount = 4\n; ";
    size_t at = strlen(text);
    memset(text + at, 'x', 4000);
    snprintf(text + at + 4000, 20, "\ncount = 5\n");
    struct options o;
    struct hx_error err;
    hx_conf_defaults(rows, N, &o);
    assert_int_equal(read_text(text, &o, &err), -EINVAL);
    assert_non_null(strstr(err.text, "a.conf:3: the line is too long"));
    /* The last line may lack its line feed. */
    assert_int_equal(read_text("[one]\ncount = 6", &o, &err), 0);
    assert_int_equal(o.count, 6);
}

static void test_places(void **state)
{
    (void)state;
    struct options o;
    struct hx_error err;
    hx_conf_defaults(rows, N, &o);
    char *missing = hx_path_join(dir, "missing.conf");
    assert_int_equal(hx_conf_file(rows, N, &o, missing, &err), -ENOENT);
    assert_int_equal(hx_conf_folder(rows, N, &o, missing, &err), 0);
    assert_true(hx_conf_file(rows, N, &o, dir, &err) < 0);
    free(missing);
    /* Drop-ins in name order; other files are left alone. */
    static const char *const file[][2] = {{"20-b.conf", "[one]\ncount = 20\n"},
                                          {"10-a.conf", "[one]\ncount = 10\non = yes\n"},
                                          {"30-c.txt", "nonsense"},
                                          {".40.conf", "nonsense"}};
    for (int i = 0; i < 4; i++) {
        char *path = hx_path_join(dir, file[i][0]);
        assert_int_equal(hx_file_replace(path, file[i][1], strlen(file[i][1]), NULL), 0);
        free(path);
    }
    assert_int_equal(hx_conf_folder(rows, N, &o, dir, &err), 0);
    assert_int_equal(o.count, 20);
    assert_true(o.on);
    for (int i = 0; i < 4; i++) {
        char *path = hx_path_join(dir, file[i][0]);
        unlink(path);
        free(path);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    struct options o;
    struct hx_error err;
    hx_conf_defaults(rows, N, &o);
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.count=7", &err), 1);
    assert_int_equal(o.count, 7);
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.name=a=b", &err), 1);
    assert_string_equal(o.name, "a=b");
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.name=", &err), 1);
    assert_string_equal(o.name, "");
    assert_int_equal(hx_conf_argument(rows, N, &o, "--help", &err), 0);
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.count", &err), 0);
    assert_int_equal(hx_conf_argument(rows, N, &o, "one.count=1", &err), 0);
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.count=many", &err), -EINVAL);
    assert_non_null(strstr(err.text, "argument: [one] count: found 'many'"));
    assert_int_equal(hx_conf_argument(rows, N, &o, "--one.other=1", &err), -EINVAL);
    assert_int_equal(hx_conf_argument(rows, N, &o, "--two.colour=pink", &err), -EINVAL);
    assert_int_equal(o.count, 7);
}

static void test_dump(void **state)
{
    (void)state;
    struct options o, back;
    struct hx_error err;
    hx_conf_defaults(rows, N, &o);
    assert_int_equal(read_text("[one]\nname = x y\ncount = 12\non = on\n[two]\nsize = 4100\n"
                               "time = 1500us\nrate = 0.30000000000000004\ncolour = green\n",
                               &o, &err),
                     0);
    for (int help = 0; help < 2; help++) {
        char *text = NULL;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        hx_conf_dump(rows, N, &o, help == 1, f);
        fclose(f);
        for (int i = 0; help == 1 && i < N; i++)
            assert_non_null(strstr(text, rows[i].help));
        hx_conf_defaults(rows, N, &back);
        assert_int_equal(read_text(text, &back, &err), 0);
        assert_string_equal(back.name, o.name);
        assert_true(back.count == o.count && back.size == o.size && back.time == o.time);
        assert_true(back.rate == o.rate && back.on == o.on && back.colour == o.colour);
        free(text);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_file),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_places),
        cmocka_unit_test(test_arguments), cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_dump),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
