/* Responses: every row of the table of docs/fetch.md, and headers that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "fetch/response.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const uint8_t pinned[32] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa,
                                   0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55,
                                   0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
/* Bytes 100-199 of 1,000. */
static const struct hx_expect part = {
    .first = 100, .last = 199, .size = 1000, .sha256 = pinned, .commit = COMMIT};
static const struct hx_expect whole = {
    .first = 0, .last = 999, .size = 1000, .sha256 = pinned, .commit = COMMIT, .whole_ok = true};
static const struct hx_expect unknown = {
    .first = 0, .last = 4095, .commit = "main", .whole_ok = true};

static void feed(struct hx_response *r, const char *text)
{
    hx_response_clear(r);
    while (*text) {
        size_t n = strcspn(text, "\n");
        hx_response_line(r, text, n + (text[n] == '\n'));
        text += n + (text[n] == '\n');
    }
}

static void every_response_has_its_verdict(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const struct hx_expect *want;
        enum hx_verdict verdict;
        const char *text;
    } rows[] = {
        {"right", &part, HX_BODY_TAKE,
         "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 100-199/1000\r\nContent-Length: "
         "100\r\n"},
        {"no length", &part, HX_BODY_TAKE, "HTTP/1.1 206 x\ncontent-range:bytes 100-199/1000\n"},
        {"other bytes", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes 101-200/1000\n"},
        {"fewer bytes", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes 100-198/1000\n"},
        {"other total", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1001\n"},
        {"total not told", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes 100-199/*\n"},
        {"no Content-Range", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Length: 100\n"},
        {"two ranges", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Range: bytes 0-99/1000\n"},
        {"other unit", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: lines 100-199/1000\n"},
        {"negative", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes -100-199/1000\n"},
        {"overflow", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/18446744073709551616\n"},
        {"backwards", &part, HX_PROTOCOL, "HTTP/1.1 206 x\nContent-Range: bytes 199-100/1000\n"},
        {"beyond the total", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/150\n"},
        {"length differs", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Length: 99\n"},
        {"two lengths", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Length: 100\nContent-Length: "
         "99\n"},
        {"gzip", &part, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Encoding: gzip\n"},
        {"identity", &part, HX_BODY_TAKE,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Encoding: identity\n"},
        {"page as 206", &part, HX_PORTAL,
         "HTTP/1.1 206 x\nContent-Range: bytes 100-199/1000\nContent-Type: text/html; charset=x\n"},
        {"range ignored", &part, HX_RANGE_IGNORED, "HTTP/1.1 200 OK\nContent-Length: 1000\n"},
        {"range ignored, whole file from a hub", &whole, HX_BODY_TAKE,
         "HTTP/1.1 200 OK\nContent-Length: 1000\n"},
        {"whole file without a length", &whole, HX_RANGE_IGNORED, "HTTP/1.1 200 OK\n"},
        {"whole file of another length", &whole, HX_RANGE_IGNORED,
         "HTTP/1.1 200 OK\nContent-Length: 1001\n"},
        {"page as 200", &whole, HX_PORTAL,
         "HTTP/1.1 200 OK\nContent-Length: 1000\nContent-Type: TEXT/HTML\n"},
        {"small file, size not known", &unknown, HX_BODY_TAKE,
         "HTTP/1.1 206 x\nContent-Range: bytes 0-99/100\nContent-Length: 100\n"},
        {"cut short, size not known", &unknown, HX_PROTOCOL,
         "HTTP/1.1 206 x\nContent-Range: bytes 0-98/100\n"},
        {"empty file", &unknown, HX_BODY_EMPTY, "HTTP/1.1 200 OK\nContent-Length: 0\n"},
        {"empty file, 416", &unknown, HX_BODY_EMPTY, "HTTP/1.1 416 x\nContent-Range: bytes */0\n"},
        {"other success", &part, HX_PROTOCOL, "HTTP/1.1 204 No Content\n"},
        {"redirect", &part, HX_FOLLOW, "HTTP/1.1 302 Found\nLocation: https://c/x?s=1\n"},
        {"redirect with the right facts", &part, HX_FOLLOW,
         "HTTP/2 302\nLocation: /x\nX-Repo-Commit: " COMMIT
         "\nX-Linked-Size: 1000\nX-Linked-ETag: \"" SHA "\"\n"},
        {"another hash family is no checksum", &part, HX_FOLLOW,
         "HTTP/1.1 302 x\nLocation: /x\nX-Linked-ETag: \"0123\"\n"},
        {"redirect 308", &part, HX_FOLLOW, "HTTP/1.1 308 x\nLocation: /x\n"},
        {"redirect to nowhere", &part, HX_PROTOCOL, "HTTP/1.1 302 Found\n"},
        {"two redirects at once", &part, HX_PROTOCOL,
         "HTTP/1.1 302 x\nLocation: /x\nLocation: /y\n"},
        {"another commit", &part, HX_CHANGED,
         "HTTP/1.1 302 x\nLocation: /x\nX-Repo-Commit: ffffffffffffffffffffffffffffffffffffffff\n"},
        {"another linked size", &part, HX_CHANGED,
         "HTTP/1.1 302 x\nLocation: /x\nX-Linked-Size: 999\n"},
        {"another linked hash", &part, HX_CHANGED,
         "HTTP/1.1 302 x\nLocation: /x\nX-Linked-ETag: "
         "W/\"ff112233445566778899aabbccddeeff0011223344556677"
         "8899aabbccddeeff\"\n"},
        {"400", &part, HX_BAD_REQUEST, "HTTP/1.1 400 x\n"},
        {"401", &part, HX_UNAUTHORISED, "HTTP/1.1 401 x\n"},
        {"403", &part, HX_FORBIDDEN, "HTTP/1.1 403 x\n"},
        {"404", &part, HX_GONE, "HTTP/1.1 404 x\n"},
        {"410", &part, HX_GONE, "HTTP/1.1 410 x\n"},
        {"408", &part, HX_RETRY, "HTTP/1.1 408 x\n"},
        {"425", &part, HX_RETRY, "HTTP/1.1 425 x\n"},
        {"500", &part, HX_RETRY, "HTTP/1.1 500 x\n"},
        {"502 with a page", &part, HX_RETRY, "HTTP/1.1 502 x\nContent-Type: text/html\n"},
        {"503", &part, HX_RETRY, "HTTP/1.1 503 x\n"},
        {"504", &part, HX_RETRY, "HTTP/1.1 504 x\n"},
        {"429", &part, HX_SLOW_DOWN, "HTTP/1.1 429 x\n"},
        {"511", &part, HX_PORTAL, "HTTP/1.1 511 x\n"},
        {"416, size as pinned", &part, HX_PAST_END,
         "HTTP/1.1 416 x\nContent-Range: bytes */1000\n"},
        {"416, another size", &part, HX_CHANGED, "HTTP/1.1 416 x\nContent-Range: bytes */999\n"},
        {"416, size not told", &part, HX_PROTOCOL, "HTTP/1.1 416 x\n"},
        {"no HTTP", &part, HX_RETRY, "SSH-2.0-x\n"},
        {"status of four digits", &part, HX_RETRY, "HTTP/1.1 2060 x\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_response r;
        char why[256];
        feed(&r, rows[i].text);
        enum hx_verdict v = hx_response_judge(&r, rows[i].want, why, sizeof(why));
        if (v != rows[i].verdict)
            fail_msg("%s: verdict %d, expected %d (%s)", rows[i].name, (int)v, (int)rows[i].verdict,
                     why);
        if (v != HX_BODY_TAKE && v != HX_BODY_EMPTY && v != HX_FOLLOW)
            assert_true(why[0] != '\0');
    }
}

static void a_new_status_line_begins_anew(void **state)
{
    (void)state;
    struct hx_response r;
    feed(&r,
         "HTTP/1.1 103 Early Hints\nContent-Encoding: gzip\nHTTP/1.1 206 x\nContent-Range: bytes "
         "100-199/1000\n");
    char why[64];
    assert_int_equal(hx_response_judge(&r, &part, why, sizeof(why)), HX_BODY_TAKE);
}

static void waiting_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double now, want;
    } rows[] = {
        {"HTTP/1.1 429 x\nRetry-After: 7\n", 0, 7},
        {"HTTP/1.1 429 x\nRetry-After: 999999999\n", 0, 86400},
        {"HTTP/1.1 429 x\nRetry-After: -3\n", 0, 0},
        {"HTTP/1.1 429 x\nRetry-After: Mon, 30 Nov 2026 09:30:20 GMT\n", 1796031000, 20},
        /* The server's clock counts, not ours. */
        {"HTTP/1.1 429 x\nDate: Mon, 30 Nov 2026 09:30:15 GMT\nRetry-After: Mon, 30 Nov 2026 "
         "09:30:20 GMT\n",
         0, 5},
        {"HTTP/1.1 429 x\nRetry-After: Mon, 30 Nov 2026 09:30:20 GMT\n", 1896031000, 0},
        {"HTTP/1.1 429 x\nRateLimit: \"resolvers\";r=0;t=55\n", 0, 55},
        {"HTTP/1.1 429 x\nRateLimit: \"a\";r=5;t=99, \"b\";r=0;t=12, \"c\"; r=0; t=30\n", 0, 30},
        {"HTTP/1.1 429 x\nRateLimit: limit=5, remaining=0\n", 0, 0},
        {"HTTP/1.1 429 x\nRetry-After: 3\nRateLimit: \"a\";r=0;t=55\n", 0, 3},
        {"HTTP/1.1 429 x\n", 0, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_response r;
        feed(&r, rows[i].text);
        assert_int_equal((int64_t)hx_response_wait(&r, rows[i].now), (int64_t)rows[i].want);
    }
}

static void dates_in_three_forms(void **state)
{
    (void)state;
    static const char *const same[] = {"Sun, 06 Nov 1994 08:49:37 GMT",
                                       "Sunday, 06-Nov-94 08:49:37 GMT",
                                       "Sun Nov  6 08:49:37 1994"};
    static const char *const bad[] = {"",
                                      "tomorrow",
                                      "Sun, 06 Nov 1994",
                                      "Sun, 99 Nov 1994 08:49:37 GMT",
                                      "Sun, 06 Foo 1994 08:49:37 GMT",
                                      "Sun, 06 Nov 1994 28:49:37 GMT",
                                      "Sun, 06 Nov 1994 0x:49:37 GMT",
                                      "Sun, 06 Nov 19944 08:49:37 GMT"};
    int64_t t;
    for (size_t i = 0; i < 3; i++) {
        assert_true(hx_http_date(same[i], strlen(same[i]), &t));
        assert_int_equal(t, 784111777);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(hx_http_date(bad[i], strlen(bad[i]), &t));
}

static void life_of_a_link_by_the_servers_clock(void **state)
{
    (void)state;
    const char *url = "https://c/x?X-Amz-Date=20261130T093000Z&X-Amz-Expires=3600";
    struct hx_response r;
    feed(&r, "HTTP/1.1 302 x\nDate: Mon, 30 Nov 2026 09:30:00 GMT\n");
    assert_int_equal((int)hx_response_link_life(&r, url, 5), 3600);
    feed(&r, "HTTP/1.1 302 x\n");
    assert_int_equal((int)hx_response_link_life(&r, url, 1796031000 + 600), 3000);
    assert_int_equal((int)hx_response_link_life(&r, url, 1796031000 + 4000), 0);
    assert_int_equal((int)hx_response_link_life(&r, "https://c/x", 0), 0);
}

static void next_page(void **state)
{
    (void)state;
    struct hx_response r;
    feed(&r,
         "HTTP/1.1 200 x\nLink: </first>; rel=\"first\", <https://h/n?cursor=2>; rel=\"next\"\n");
    assert_string_equal(r.next, "https://h/n?cursor=2");
    feed(&r, "HTTP/1.1 200 x\nLink: <https://h/n?cursor=2>; rel=\"prev\"\n");
    assert_string_equal(r.next, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_response_has_its_verdict),
        cmocka_unit_test(a_new_status_line_begins_anew),
        cmocka_unit_test(waiting_times),
        cmocka_unit_test(dates_in_three_forms),
        cmocka_unit_test(life_of_a_link_by_the_servers_clock),
        cmocka_unit_test(next_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
