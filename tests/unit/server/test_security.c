/* Host, media type and key rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/security.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void test_hosts_allowed(void **state)
{
    static const char *const hosts[] = {"localhost",   "localhost:8000", "LocalHost",
                                        "127.0.0.1",   "127.0.0.1:1",    "[::1]",
                                        "[::1]:65535", "localhost:"};
    (void)state;
    for (size_t i = 0; i < COUNT(hosts); i++) {
        if (!hx_host_allowed(hosts[i], ""))
            fail_msg("'%s' is refused", hosts[i]);
    }
}

static void test_hosts_refused(void **state)
{
    static const char *const hosts[] = {"",
                                        ":8000",
                                        "127.0.0.1.evil.example",
                                        "localhost.evil.example",
                                        "evil.example:8000",
                                        "evil.localhost",
                                        "localhos",
                                        "localhost@evil.example",
                                        "127.0.0.1:80@evil.example",
                                        "127.0.0.1:8000x",
                                        "127.0.0.1:123456",
                                        "127.0.0.1:-1",
                                        "127.0.0.1 ",
                                        " localhost",
                                        "::1",
                                        "[::1",
                                        "[::1]evil",
                                        "[::2]",
                                        "[]",
                                        "0.0.0.0",
                                        "127.1",
                                        "2130706433",
                                        "localhost,evil"};
    (void)state;
    for (size_t i = 0; i < COUNT(hosts); i++) {
        if (hx_host_allowed(hosts[i], ""))
            fail_msg("'%s' is allowed", hosts[i]);
    }
}

static void test_configured_hosts(void **state)
{
    static const char allowed[] = " box.lan, [fd00::1]  other.lan";
    (void)state;
    assert_true(hx_host_allowed("box.lan", allowed));
    assert_true(hx_host_allowed("BOX.lan:80", allowed));
    assert_true(hx_host_allowed("[fd00::1]:8000", allowed));
    assert_true(hx_host_allowed("other.lan", allowed));
    assert_true(hx_host_allowed("localhost", allowed));
    assert_false(hx_host_allowed("box.lan.evil", allowed));
    assert_false(hx_host_allowed("box", allowed));
    assert_false(hx_host_allowed("box.lan,", allowed));
    assert_false(hx_host_allowed("box.lan, [fd00::1]", allowed));
}

static void test_word_lists(void **state)
{
    (void)state;
    assert_true(hx_word_in("b", 1, "a b c"));
    assert_true(hx_word_in("c", 1, "a,b,c"));
    assert_true(hx_word_in("A", 1, "a"));
    assert_true(hx_word_in("abX", 2, "ab"));
    assert_false(hx_word_in("a", 1, ""));
    assert_false(hx_word_in("a", 1, " , "));
    assert_false(hx_word_in("", 0, "a b"));
    assert_false(hx_word_in("ab", 2, "a b abc"));
}

static void test_media_types(void **state)
{
    static const char *const good[] = {"application/json", "Application/JSON",
                                       "application/json;charset=utf-8",
                                       "application/json ; charset=utf-8", "application/json\t"};
    static const char *const bad[] = {"",
                                      "application/jsonx",
                                      "application/json+x",
                                      "text/plain",
                                      "text/json",
                                      "application/jso",
                                      "application/json, text/plain",
                                      " application/json",
                                      "multipart/form-data"};
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(hx_type_is_json(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(hx_type_is_json(bad[i]));
    assert_false(hx_type_is_json(NULL));
}

static void test_keys(void **state)
{
    static const char *const bad[] = {"",
                                      "Bearer",
                                      "Bearer ",
                                      "Bearer secre",
                                      "Bearer secrets",
                                      "Bearer secretsecret",
                                      "Bearer Secret",
                                      "Bearer secret ",
                                      "Basic secret",
                                      "secret",
                                      "Bearersecret"};
    (void)state;
    assert_true(hx_bearer_matches("Bearer secret", "secret"));
    assert_true(hx_bearer_matches("bearer secret", "secret"));
    assert_true(hx_bearer_matches("Bearer   secret", "secret"));
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (hx_bearer_matches(bad[i], "secret"))
            fail_msg("'%s' is accepted", bad[i]);
    }
    assert_false(hx_bearer_matches(NULL, "secret"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_allowed),    cmocka_unit_test(test_hosts_refused),
        cmocka_unit_test(test_configured_hosts), cmocka_unit_test(test_word_lists),
        cmocka_unit_test(test_media_types),      cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
