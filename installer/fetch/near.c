#include "fetch/near.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetch/url.h"

static bool near_v4(uint32_t a)
{
    static const struct {
        uint32_t net;
        unsigned bits;
    } rows[] = {
        {0x00000000, 8},  /* this network */
        {0x0a000000, 8},  /* private */
        {0x64400000, 10}, /* shared */
        {0x7f000000, 8},  /* loopback */
        {0xa9fe0000, 16}, /* link-local */
        {0xac100000, 12}, /* private */
        {0xc0a80000, 16}, /* private */
        {0xe0000000, 3},  /* multicast, reserved, broadcast */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if ((a ^ rows[i].net) >> (32 - rows[i].bits) == 0)
            return true;
    return false;
}

static bool near_v6(const struct in6_addr *a)
{
    const uint8_t *b = a->s6_addr;
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b};
    uint32_t last = (uint32_t)b[12] << 24 | (uint32_t)b[13] << 16 | (uint32_t)b[14] << 8 | b[15];
    if (IN6_IS_ADDR_UNSPECIFIED(a) || IN6_IS_ADDR_LOOPBACK(a))
        return true;
    if (IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_V4COMPAT(a) || memcmp(b, nat64, sizeof(nat64)) == 0)
        return near_v4(last);
    /* fc00::/7 private, fe80::/10 link-local, fec0::/10 site-local of old, ff00::/8 multicast */
    return (b[0] & 0xfe) == 0xfc || (b[0] == 0xfe && (b[1] & 0x80)) || b[0] == 0xff;
}

bool hx_near_address(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof(v4));
        return near_v4(ntohl(v4.sin_addr.s_addr));
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, a, sizeof(v6));
        return near_v6(&v6.sin6_addr);
    }
    return true;
}

bool hx_near_text(const char *ip)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET6, ip, &v6) == 1)
        return near_v6(&v6);
    return inet_aton(ip, &v4) && near_v4(ntohl(v4.s_addr));
}

bool hx_near_url(const char *url)
{
    struct hx_url u;
    char host[HX_URL_ORIGIN_MAX];
    if (!hx_url_parse(url, &u))
        return false;
    const char *at = strstr(u.origin, "://") + 3;
    size_t n = (size_t)(strrchr(u.origin, ':') - at);
    if (n > 2 && *at == '[') {
        at++;
        n -= 2;
    }
    while (n > 0 && at[n - 1] == '.') /* "localhost." is the same */
        n--;
    snprintf(host, sizeof(host), "%.*s", (int)n, at);
    bool local =
        strcmp(host, "localhost") == 0 || (n > 10 && strcmp(host + n - 10, ".localhost") == 0);
    return local || hx_near_text(host);
}

bool hx_near_has_proxy(void)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                        "ALL_PROXY"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return true;
    }
    return false;
}
