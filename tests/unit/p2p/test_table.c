/* The table of checks against the reference data, row by row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "check.h"

static struct hx_json *doc;

static int setup(void **state)
{
    (void)state;
    char *text;
    size_t len;
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    if (hx_file_read("tests/vectors/hardware/checks.json", 1 << 20, &text, &len, NULL) < 0)
        return -1;
    int r = hx_json_parse(text, len, &limits, &doc, NULL);
    free(text);
    return r;
}

static int teardown(void **state)
{
    (void)state;
    hx_json_free(doc);
    return 0;
}

static void expect_text(struct hx_jv row, const char *key, const char *value)
{
    if (!hx_jv_str_is(hx_jv_get(row, key), value))
        fail_msg("%s: not '%s'", key, value);
}

static void test_rows(void **state)
{
    (void)state;
    int i = 0;
    for (struct hx_jv row = hx_jv_first(hx_jv_get(hx_json_root(doc), "checks")); row.doc;
         row = hx_jv_next(row), i++) {
        assert_true(i < hx_n_checks);
        const struct hx_check *c = &hx_checks[i];
        expect_text(row, "id", c->id);
        expect_text(row, "title", c->title);
        expect_text(row, "reads", c->reads);
        expect_text(row, "pass", c->pass);
        expect_text(row, "warn", c->warn);
        expect_text(row, "fail", c->fail);
        expect_text(row, "remedy", c->remedy);
        bool gate = false;
        assert_true(hx_jv_bool(hx_jv_get(row, "gate"), &gate));
        assert_int_equal(gate, c->gate);
        int n = 0;
        for (struct hx_jv e = hx_jv_first(hx_jv_get(row, "explained_by")); e.doc;
             e = hx_jv_next(e), n++) {
            assert_true(n < HX_CHECK_EXPLAINED && c->explained_by[n]);
            assert_true(hx_jv_str_is(e, c->explained_by[n]));
            assert_non_null(hx_check_find(c->explained_by[n]));
        }
        assert_true(n == HX_CHECK_EXPLAINED || !c->explained_by[n]);
        assert_true((c->run != NULL) != (c->elsewhere != NULL));
        assert_ptr_equal(hx_check_find(c->id), c);
    }
    assert_int_equal(i, hx_n_checks);
    assert_true(hx_n_checks <= HX_CHECKS_MAX);
    assert_null(hx_check_find("INV-99"));
}

static void test_remedies(void **state)
{
    (void)state;
    struct hx_jv remedies = hx_jv_get(hx_json_root(doc), "remedies");
    for (struct hx_jv r = hx_jv_first(remedies); r.doc; r = hx_jv_next(r)) {
        char id[32] = "";
        size_t len;
        const char *key = hx_jv_str(hx_jv_key(r), &len);
        assert_true(key && len < sizeof(id));
        memcpy(id, key, len);
        assert_non_null(hx_remedy_text(id));
        assert_true(hx_jv_str_is(r, hx_remedy_text(id)));
    }
    for (int i = 0; i < hx_n_checks; i++)
        assert_non_null(hx_remedy_text(hx_checks[i].remedy));
    assert_null(hx_remedy_text("R-OTHER"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_remedies),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
