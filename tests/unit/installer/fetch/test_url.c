/* Addresses: what counts as one host, redirects, expiry of signed links, messages without secrets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "fetch/url.h"

static void origin_is_scheme_host_and_port(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"https://Hub.Example/a/b", "https://hub.example:443"},
        {"http://hub.example:8080", "http://hub.example:8080"},
        {"HTTP://hub.example/x?y#z", "http://hub.example:80"},
        {"http://[::1]:99/x", "http://[::1]:99"},
        {"https://hub.example?x=1", "https://hub.example:443"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_url u;
        assert_true(hx_url_parse(rows[i][0], &u));
        assert_string_equal(u.origin, rows[i][1]);
    }
}

static void loopback_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        bool loopback;
    } rows[] = {
        {"http://127.0.0.1:1/", true},        {"http://127.9.9.9/", true},
        {"http://localhost/", true},          {"http://[::1]/", true},
        {"http://128.0.0.1/", false},         {"http://127.0.0.1.example/", false},
        {"http://localhost.example/", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_url u;
        assert_true(hx_url_parse(rows[i].url, &u));
        assert_int_equal(u.loopback, rows[i].loopback);
    }
}

static void other_addresses_are_refused(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "ftp://host/x",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://user:secret@host/x",
        "http://host:0/",
        "http://host:65536/",
        "http://host:12x/",
        "http://host name/",
        "http://host/a b",
        "http://host/a\nb",
        "http://[::1/x",
        "http://[zz]/x",
        "http://host\\x/",
        "https:/host",
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_url u;
        if (hx_url_parse(rows[i], &u))
            fail_msg("'%s' was taken", rows[i]);
    }
}

static void redirects_are_joined(void **state)
{
    (void)state;
    static const struct {
        const char *base, *location, *want; /* NULL: refused */
    } rows[] = {
        {"https://a.example/r/f?t=1", "https://b.example/x?sig=2", "https://b.example/x?sig=2"},
        {"https://a.example/r/f?t=1", "//b.example/x", "https://b.example/x"},
        {"https://a.example:444/r/f", "/y?z=1", "https://a.example:444/y?z=1"},
        {"https://a.example/r/f?t=/1", "g", "https://a.example/r/g"},
        {"https://a.example/r/f", "s/g#frag", "https://a.example/r/s/g"},
        {"https://a.example/r/f", "javascript:alert(1)", NULL},
        {"https://a.example/r/f", "file:///etc/passwd", NULL},
        {"https://a.example/r/f", "", NULL},
        {"https://a.example/r/f", "http://u:p@b/", NULL},
        {"https://a.example/r/f", "/a\r\nSet-Cookie: x", NULL},
        {"https://a.example", "g", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[HX_URL_MAX] = "";
        int r = hx_url_join(rows[i].base, rows[i].location, out);
        assert_int_equal(r, rows[i].want ? 0 : -EINVAL);
        if (rows[i].want)
            assert_string_equal(out, rows[i].want);
    }
}

static void too_long_a_redirect(void **state)
{
    (void)state;
    char location[HX_URL_MAX], out[HX_URL_MAX];
    memset(location, 'a', sizeof(location));
    location[0] = '/';
    location[HX_URL_MAX - 1] = '\0';
    assert_int_equal(hx_url_join("https://a.example/", location, out), -EMSGSIZE);
}

static void expiry_in_all_forms(void **state)
{
    (void)state;
    /* Policy: {"Statement":[{"Condition":{"DateLessThan":{"AWS:EpochTime":1796000000}}}]} */
    static const struct {
        const char *url;
        int64_t want; /* 0: it does not say */
    } rows[] = {
        {"https://c/x?X-Amz-Date=20261130T093000Z&X-Amz-Expires=3600&X-Amz-Signature=ab",
         1796034600},
        {"https://c/x?x-goog-expires=60&x-goog-date=20261130T093000Z", 1796031060},
        {"https://c/x?Expires=1796000123&Signature=ab", 1796000123},
        {"https://c/"
         "x?Policy="
         "eyJTdGF0ZW1lbnQiOlt7IkNvbmRpdGlvbiI6eyJEYXRlTGVzc1RoYW4iOnsiQVdTOkVwb2NoVGltZSI6MTc5NjAw"
         "MDAwMH19fV19&Key-Pair-Id=K",
         1796000000},
        {"https://c/x?sv=1&se=2026-11-30T09%3A30%3A00Z&sig=ab", 1796031000},
        {"https://c/x?se=2026-11-30T09:30:00Z", 1796031000},
        {"https://c/x?X-Amz-Date=20261330T093000Z&X-Amz-Expires=3600", 0},
        {"https://c/x?X-Amz-Date=20261130T093000Z&X-Amz-Expires=-5", 0},
        {"https://c/x?Expires=99999999999999999999", 0},
        {"https://c/x?Expires=soon", 0},
        {"https://c/x?Policy=%%%%", 0},
        {"https://c/x?other=1", 0},
        {"https://c/x", 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t end = 0;
        assert_int_equal(hx_url_expiry(rows[i].url, &end), rows[i].want != 0);
        if (rows[i].want)
            assert_int_equal(end, rows[i].want);
    }
}

static void messages_have_no_query(void **state)
{
    (void)state;
    char out[64];
    hx_url_display("https://c.example/a/b?X-Amz-Signature=0123456789#f", out, sizeof(out));
    assert_string_equal(out, "https://c.example/a/b");
    hx_url_display("no address", out, sizeof(out));
    assert_string_equal(out, "(not an address)");
}

static void secrets_are_redacted(void **state)
{
    (void)state;
    char text[] =
        "<Sig>aabbccddeeff</Sig> token-1234 see http://h/p?q=1&r=2 or aabbccddeeff\x01\xff end";
    hx_url_redact(text, "token-1234", "https://c/x?a=1&Signature=aabbccddeeff&b=");
    assert_null(strstr(text, "aabbccddeeff"));
    assert_null(strstr(text, "token-1234"));
    assert_null(strstr(text, "q=1"));
    assert_non_null(strstr(text, "http://h/p?"));
    assert_non_null(strstr(text, " end"));
    for (const char *c = text; *c; c++)
        assert_true(*c >= ' ' && *c <= '~');
}

static void paths_are_escaped(void **state)
{
    (void)state;
    struct hx_buf b = HX_BUF_INIT(100);
    assert_int_equal(hx_url_escape(&b, "a b/c?d#\xc3\xa4%.txt"), 0);
    assert_string_equal(hx_buf_cstr(&b), "a%20b/c%3Fd%23%C3%A4%25.txt");
    hx_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origin_is_scheme_host_and_port),
        cmocka_unit_test(loopback_by_name),
        cmocka_unit_test(other_addresses_are_refused),
        cmocka_unit_test(redirects_are_joined),
        cmocka_unit_test(too_long_a_redirect),
        cmocka_unit_test(expiry_in_all_forms),
        cmocka_unit_test(messages_have_no_query),
        cmocka_unit_test(secrets_are_redacted),
        cmocka_unit_test(paths_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
