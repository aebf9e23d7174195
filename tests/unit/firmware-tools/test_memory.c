/* Memory that runs out at every allocation: an error each time, nothing left behind. */
#include "../alloc.h"
#include "bundle/journal.h"
#include "bundle_data.h"

#if HX_TEST_ALLOC
static int no_host(void *ctx, const struct hx_manifest *m, struct hx_bundle_host *h,
                   struct hx_error *e)
{
    (void)ctx;
    (void)m;
    (void)e;
    snprintf(h->kernel, sizeof(h->kernel), "6.8.0-136-generic");
    return 0;
}

static int verify(const char *path)
{
    struct hx_source *s;
    struct hx_bundle_verdict v;
    int r = hx_source_open(path, &s, &err);
    if (r < 0)
        return r;
    r = hx_bundle_verify(s, no_host, NULL, NULL, &v, &err);
    hx_source_close(s);
    return r;
}

static void test_verify(void **state)
{
    (void)state;
    char *dir = new_folder();
    /* A bundle without a regular expression: the C library loses a block when one runs dry. */
    copy_bundle("good-prebuilt", dir);
    assert_int_equal(verify(dir), 0);
    long n = 0;
    for (bool failed = true; failed; n++) {
        long before = alloc_held;
        alloc_fail_at(n);
        int r = verify(dir);
        failed = alloc_fail_end();
        /* libcrypto keeps what it sets up once. */
        if (failed && r != 0)
            assert_true(r == -ENOMEM || r == -EIO);
        if (n > 20)
            assert_true(alloc_held <= before);
        assert_true(n < 2000);
    }
    assert_true(n > 50);
    drop_folder(dir);
}

static void test_regular_expression(void **state)
{
    (void)state;
    char *text;
    size_t len;
    assert_int_equal(
        hx_file_read(BUNDLES "/good-source/cmp-bundle.json", 1 << 20, &text, &len, &err), 0);
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct hx_manifest *m = NULL;
        struct hx_bundle_fault fault;
        alloc_fail_at(n);
        int r = hx_manifest_parse(text, len, &m, &fault, &err);
        failed = alloc_fail_end();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        hx_manifest_free(m);
    }
    free(text);
}
#else
static void test_regular_expression(void **state)
{
    (void)state;
    skip();
}
static void test_verify(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_verify),
                                       cmocka_unit_test(test_regular_expression)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
