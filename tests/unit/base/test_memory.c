/* Failing allocations: each n-th one gives -ENOMEM, nothing is leaked or half set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../alloc.h"

#if HX_TEST_ALLOC
#include "base/conf.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/sha256.h"
#include "base/utf8.h"

static char path[] = "/tmp/hx-test-alloc-XXXXXX";

struct options {
    int64_t count;
};
static const struct hx_conf_option rows[] = {
    {"one", "count", HX_CONF_INT, offsetof(struct options, count), 0, 9, "3", NULL, "how many"}};

/* Each returns 0 or a negative errno, with everything freed. */
static int do_json(void)
{
    static const char text[] =
        "{\"a\": [1, 2.50, \"\\u4f60\", {}], \"b\": {\"a\": null, \"a\": 1}}";
    struct hx_json_limits lim = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *doc = NULL;
    int r = hx_json_parse(text, sizeof(text) - 1, &lim, &doc, NULL);
    if (r < 0) {
        assert_null(doc);
        return r;
    }
    struct hx_buf b = HX_BUF_INIT(4096);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, true);
    hx_jw_value(&w, hx_json_root(doc));
    r = b.failed ? -ENOMEM : 0;
    if (r == 0)
        assert_string_equal(hx_buf_cstr(&b),
                            "{\"a\": [1, 2.5, \"\xE4\xBD\xA0\", {}], \"b\": {\"a\": 1}}");
    hx_buf_done(&b);
    hx_json_free(doc);
    return r;
}

static int do_buf(void)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    char longer[900];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    int r = hx_buf_puts(&b, "head");
    for (int i = 0; i < 20 && r == 0; i++)
        r = hx_buf_printf(&b, "%s", longer);
    if (r == 0 && hx_utf8_sanitize((const uint8_t *)longer, 899, &b) < 0)
        r = -ENOMEM;
    if (r == 0 && !hx_buf_cstr(&b))
        r = -ENOMEM;
    assert_int_equal(b.failed, r < 0);
    hx_buf_done(&b);
    return r;
}

static int do_file(void)
{
    char *text = NULL;
    size_t len;
    int r = hx_file_replace(path, "[one]\ncount = 4\n", 16, NULL);
    if (r == 0)
        r = hx_file_read(path, 100, &text, &len, NULL);
    if (r == 0)
        assert_memory_equal(text, "[one]\ncount = 4\n", 17);
    else
        assert_null(text);
    free(text);
    return r;
}

static int do_conf(void)
{
    struct options o;
    hx_conf_defaults(rows, 1, &o);
    int r = hx_conf_file(rows, 1, &o, path, NULL);
    assert_int_equal(o.count, r == 0 ? 4 : 3);
    return r;
}

static int do_sha256(void)
{
    char hex[HX_SHA256_HEX] = "none";
    uint64_t size = 7;
    int r = hx_sha256_file(path, hex, &size, NULL);
    assert_int_equal(size, r == 0 ? 16 : 7);
    return r;
}

static void test_each(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int (*run)(void);
    } row[] = {{"json", do_json},
               {"buf", do_buf},
               {"file", do_file},
               {"conf", do_conf},
               {"sha256", do_sha256}};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(row[i].run(), 0); /* one-time memory of the libraries */
        long n = 0;
        for (bool failed = true; failed; n++) {
            if (n > 10000)
                fail_msg("%s never ends", row[i].name);
            long held = alloc_held;
            alloc_fail_at(n);
            int r = row[i].run();
            failed = alloc_fail_end();
            if (failed ? r != -ENOMEM : r != 0)
                fail_msg("%s: allocation %ld fails: %d", row[i].name, n, r);
            if (alloc_held != held)
                fail_msg("%s: allocation %ld fails: %ld blocks leak", row[i].name, n,
                         alloc_held - held);
        }
        if (n < 2)
            fail_msg("%s does not allocate", row[i].name);
    }
    unlink(path);
}
#else
static void test_each(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
