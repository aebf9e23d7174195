/* Rules for single answers, good and bad values in tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "setup/valid.h"

static const struct {
    hx_valid_fn fn;
    const char *good[12], *bad[24];
} rules[] = {
    {hx_valid_hostname,
     {"hx170", "a", "A-1", "1a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
     {"", "-a", "a-", "a b", "a.b", "a_b", "123", "h\xc3\xb6", "a\n",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
    {hx_valid_address,
     {"", "192.168.1.5/24", "10.0.0.1/8", "192.168.1.0/31", "10.1.2.3/32", "fd00::5/64",
      "2001:db8::1/128"},
     {"192.168.1.5",    "192.168.1.5/",
      "192.168.1.5/33", "192.168.1.5/0",
      "192.168.1.5/-1", "192.168.1.5/2 4",
      "192.168.1.0/24", "192.168.1.255/24",
      "0.0.0.1/8",      "127.0.0.1/8",
      "224.0.0.1/4",    "255.255.255.255/32",
      "1.2.3/24",       "1.2.3.4.5/24",
      "256.1.1.1/24",   "01.2.3.4/24x",
      "fd00::5/129",    "ff02::1/64",
      "::/64",          "fd00::g/64",
      "::1/24/4",       "/24"}},
    {hx_valid_gateway,
     {"", "192.168.1.1", "fe80::1"},
     {"192.168.1.1/24", "router", "0.0.0.0", "127.0.0.1", "192.168.1.1 ", "1.2.3.4 5.6.7.8"}},
    {hx_valid_dns,
     {"", "9.9.9.9", "192.168.1.1 2620:fe::fe", "1.1.1.1 1.0.0.1 9.9.9.9 8.8.8.8"},
     {"dns.example", "1.1.1.1,1.0.0.1", "1 1 1 1", "1.1.1.1 1.0.0.1 9.9.9.9 8.8.8.8 8.8.4.4", " "}},
    {hx_valid_proxy,
     {"", "http://proxy.example:3128", "http://10.0.0.1:80/", "http://proxy",
      "http://[fd00::1]:80"},
     {"proxy:3128", "https://proxy:1", "http://", "http://user:pass@proxy:1", "http://proxy:0",
      "http://proxy:65536", "http://proxy:1/path", "http://pro xy:1", "http://[fd00::1:80",
      "socks5://p:1", "http://proxy:1\"", "http://-proxy:1"}},
    {hx_valid_ntp,
     {"default", "later", "ntp.example", "10.0.0.1 ntp1.example"},
     {"", "a b c d e", "ntp..example", "ntp,example", "-x", ".ntp"}},
    {hx_valid_serial, {"", "S5G-1_x.Y"}, {"a b", "a\t", "\x80"}},
    {hx_valid_driver,
     {"none", "/mnt/bundle.tar.xz", "/a b/c"},
     {"", "bundle", "./x", "/a/../b", "/a/..", "None"}},
    {hx_valid_sha256,
     {"", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF"},
     {"0", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeg"}},
    {hx_valid_licences, {"", "MIT", "NVIDIA-driver MIT"}, {"a,b", "-a", "a/b", "\"a\""}},
    {hx_valid_model,
     {"none", "demo", "deepseek-v4.1-flash_hybrid"},
     {"", "../x", "a/b", ".x", "a b"}},
    {hx_valid_source,
     {"default", "https://mirror.example/models", "http://10.0.0.1:8080/x", "/run/media/disk 1"},
     {"", "ftp://x", "https://", "https://u:p@h/", "http://h/a b", "http://h/\"", "mirror",
      "/a/../b", "https://h:99999/"}},
    {hx_valid_path, {"", "/a", "/a/b..c"}, {"a", "/..", "/a/../b"}},
    {hx_valid_schedule,
     {"", "22:00-06:00", "00:00-23:59"},
     {"22-6", "24:00-06:00", "22:00-22:00", "22:60-06:00", "22:00-06:00 ", "2:00-06:00",
      "22:00_06:00", "29:00-06:00"}},
    {hx_valid_cmdline,
     {"", "iommu=pt", "pci=disable_acs_redir=0000:01:00.0;0000:02:00.0 nmi_watchdog=0"},
     {"root=/dev/sda", "roothash=00", "init=/bin/sh", "rd.shell=1", "systemd.unit=x",
      "hx170.mode=x", "ro", "rw", "single", "a\"b", "a'b", "iommu=pt rdinit=/x", "$x"}},
};

static void test_rules(void **state)
{
    struct hx_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        for (size_t k = 0; k < 12 && rules[i].good[k]; k++) {
            if (rules[i].fn(rules[i].good[k], &err) != 0)
                fail_msg("rule %zu refuses '%s': %s", i, rules[i].good[k], err.text);
        }
        for (size_t k = 0; k < 24 && rules[i].bad[k]; k++) {
            if (rules[i].fn(rules[i].bad[k], &err) != -EINVAL)
                fail_msg("rule %zu takes '%s'", i, rules[i].bad[k]);
            assert_null(strchr(err.text, '\n'));
            assert_true(strlen(err.text) > 10);
        }
    }
}

/* A password in an address is not repeated. */
static void test_password_not_shown(void **state)
{
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_valid_proxy("http://me:hunter2@proxy:1", &err), -EINVAL);
    assert_null(strstr(err.text, "hunter2"));
    assert_int_equal(hx_valid_source("https://me:hunter2@host/x", &err), -EINVAL);
    assert_null(strstr(err.text, "hunter2"));
}

static void test_route(void **state)
{
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_valid_route("192.168.1.5/24", "192.168.1.1", &err), 0);
    assert_int_equal(hx_valid_route("192.168.1.5/24", "", &err), 0);
    assert_int_equal(hx_valid_route("192.168.1.5/23", "192.168.0.1", &err), 0);
    assert_int_equal(hx_valid_route("fd00::5/64", "fe80::1", &err), 0);
    assert_int_equal(hx_valid_route("192.168.1.5/24", "192.168.2.1", &err), -EINVAL);
    assert_non_null(strstr(err.text, "not in the network"));
    assert_int_equal(hx_valid_route("192.168.1.5/24", "192.168.1.5", &err), -EINVAL);
    assert_non_null(strstr(err.text, "address of this machine"));
    assert_int_equal(hx_valid_route("192.168.1.5/24", "fe80::1", &err), -EINVAL);
    assert_non_null(strstr(err.text, "of two kinds"));
    assert_int_equal(hx_valid_route("fd00::5/64", "fd01::1", &err), -EINVAL);
    assert_int_equal(hx_valid_route("nonsense", "1.1.1.1", &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_password_not_shown),
        cmocka_unit_test(test_route),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
