/* What counts as the local network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>

#include "fetch/near.h"

static const char *const inside[] = {
    "0.0.0.0",
    "10.0.0.0",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "224.0.0.1",
    "192.168.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fc00::1",
    "fdff::1",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "::ffff:10.1.2.3",
    "::127.0.0.1",
    "::ffff:7f00:1",
    "64:ff9b::192.168.1.1",
};
static const char *const outside[] = {
    "1.0.0.0",     "9.255.255.255",  "11.0.0.0",         "100.63.255.255",  "100.128.0.0",
    "126.0.0.1",   "128.0.0.1",      "169.253.1.1",      "172.15.0.1",      "172.32.0.1",
    "192.167.0.1", "192.169.0.1",    "203.0.113.5",      "223.255.255.255", "2001:db8::1",
    "2606:4700::", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "fbff::1",
};
#define N(a) (sizeof(a) / sizeof((a)[0]))

static bool by_address(const char *ip)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1)
        return hx_near_address((const struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, ip, &v6.sin6_addr), 1);
    return hx_near_address((const struct sockaddr *)&v6);
}

static void addresses(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(inside); i++) {
        if (!by_address(inside[i]) || !hx_near_text(inside[i]))
            fail_msg("%s is inside", inside[i]);
    }
    for (size_t i = 0; i < N(outside); i++) {
        if (by_address(outside[i]) || hx_near_text(outside[i]))
            fail_msg("%s is outside", outside[i]);
    }
    struct sockaddr other = {.sa_family = AF_UNIX};
    assert_true(hx_near_address(&other));
}

static void text_that_is_no_address(void **state)
{
    (void)state;
    static const char *const rows[] = {"", "10.example", "::1]", "hub.example", "1.2.3.4.5"};
    for (size_t i = 0; i < N(rows); i++)
        assert_false(hx_near_text(rows[i]));
}

static void web_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        bool is_near;
    } rows[] = {
        {"http://10.1.2.3/x", true},
        {"https://10.1.2.3:8443/x?y", true},
        {"http://[::1]:99/", true},
        {"http://[fe80::1]/", true},
        {"http://[2001:db8::1]/", false},
        {"http://LOCALHOST/", true},
        {"http://localhost.:80/", true},
        {"http://a.localhost/", true},
        {"http://localhost.example/", false},
        {"http://notlocalhost/", false},
        {"http://127.1/", true},
        {"http://0x7f.1/", true},
        {"http://2130706433/", true},
        {"http://0300.0250.0.1/", true},
        {"http://10.1.2.3./", true},
        {"http://10.example/", false},
        {"http://8.8.8.8/", false},
        {"ftp://10.1.2.3/", false},
    };
    for (size_t i = 0; i < N(rows); i++) {
        if (hx_near_url(rows[i].url) != rows[i].is_near)
            fail_msg("%s", rows[i].url);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(text_that_is_no_address),
        cmocka_unit_test(web_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
