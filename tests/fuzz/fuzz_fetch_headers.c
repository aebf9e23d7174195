/* Headers of a response and what follows from them: verdict, waiting time, redirect, expiry of the
 * link. The first line is the address that was asked, the rest is the response. */
#include "fuzz.h"

#include "fetch/response.h"

static const uint8_t pinned[32] = {1};
static const struct hx_expect wants[] = {
    {.first = 0,
     .last = 99,
     .size = 1000,
     .sha256 = pinned,
     .commit = "0123456789abcdef0123456789abcdef01234567"},
    {.first = 0, .last = 999, .size = 1000, .whole_ok = true},
    {.first = 5, .last = INT64_MAX - 1, .commit = "main", .whole_ok = true},
};

static char *text_of(const uint8_t *data, size_t n)
{
    char *s = malloc(n + 1);
    EXPECT(s);
    memcpy(s, data, n);
    s[n] = '\0';
    return s;
}

static void plain_ascii(const char *s)
{
    for (; *s; s++)
        EXPECT(*s >= ' ' && *s <= '~');
}

static void check_address(const char *asked, const char *location)
{
    static char joined[HX_URL_MAX];
    char shown[64];
    struct hx_url u;
    int64_t end = 0;
    hx_url_expiry(asked, &end);
    hx_url_display(asked, shown, sizeof(shown));
    plain_ascii(shown);
    EXPECT(!strchr(shown, '?'));
    if (hx_url_join(asked, location, joined) < 0)
        return;
    /* Whatever may be followed is an address of the web again, and its own redirect target. */
    EXPECT(hx_url_parse(joined, &u));
    EXPECT(strncmp(u.origin, "http", 4) == 0);
    hx_url_expiry(joined, &end);
}

static void check_redaction(const uint8_t *data, size_t size, const char *asked)
{
    char *text = text_of(data, size);
    hx_url_redact(text, "hub-token-0123456789", asked);
    plain_ascii(text);
    EXPECT(!strstr(text, "hub-token-0123456789"));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hx_response r;
    const uint8_t *end = memchr(data, '\n', size);
    size_t first = end ? (size_t)(end - data) : size;
    char *asked = text_of(data, first);
    hx_response_clear(&r);
    for (size_t at = first + 1; at < size;) {
        const uint8_t *eol = memchr(data + at, '\n', size - at);
        size_t n = eol ? (size_t)(eol - data) + 1 - at : size - at;
        hx_response_line(&r, (const char *)data + at, n);
        at += n;
    }
    for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++) {
        char why[128];
        enum hx_verdict v = hx_response_judge(&r, &wants[i], why, sizeof(why));
        /* Bytes are taken only if they are the ones that were asked for. */
        if (v == HX_BODY_TAKE && r.status == 206) {
            EXPECT(!r.encoded && r.range_first == wants[i].first && r.range_last <= wants[i].last);
            EXPECT(!wants[i].size || (r.range_last == wants[i].last && r.total == wants[i].size));
        }
        EXPECT(v != HX_BODY_TAKE || r.status == 206 || wants[i].whole_ok);
        plain_ascii(why);
    }
    double wait = hx_response_wait(&r, 1.8e9);
    EXPECT(wait >= 0 && wait <= 86400);
    EXPECT(hx_response_link_life(&r, asked, 1.8e9) >= 0);
    check_address(asked, r.location);
    check_address(asked, r.next);
    check_redaction(data, size, asked);
    free(asked);
    return 0;
}
