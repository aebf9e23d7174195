/* Host, media type and key rules (api.md 13). */
#include "server/security.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

bool hx_word_in(const char *word, size_t len, const char *list)
{
    while (*(list += strspn(list, " ,"))) {
        size_t n = strcspn(list, " ,");
        if (n == len && strncasecmp(list, word, n) == 0)
            return true;
        list += n;
    }
    return false;
}

/* Length of the host in host[:port]; 0 if it is none. */
static size_t host_length(const char *host)
{
    size_t n;
    if (host[0] == '[') {
        const char *end = strchr(host, ']');
        if (!end)
            return 0;
        n = (size_t)(end - host) + 1;
    } else {
        n = strcspn(host, ":");
    }
    const char *port = host + n;
    if (*port == '\0')
        return n;
    if (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1) || strlen(port) > 6)
        return 0;
    return n;
}

bool hx_host_allowed(const char *host, const char *allowed)
{
    size_t n = host_length(host);
    return n > 0 &&
           (hx_word_in(host, n, "localhost 127.0.0.1 [::1]") || hx_word_in(host, n, allowed));
}

bool hx_type_is_json(const char *type)
{
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof(json) - 1) != 0)
        return false;
    type += sizeof(json) - 1;
    type += strspn(type, " \t");
    return *type == '\0' || *type == ';';
}

bool hx_bearer_matches(const char *authorization, const char *key)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *given = authorization + 7;
    given += strspn(given, " ");
    size_t n = strlen(given), n_key = strlen(key);
    volatile uint8_t diff = n != n_key;
    for (size_t i = 0; i < n; i++)
        diff = (uint8_t)(diff | ((uint8_t)given[i] ^ (uint8_t)key[n_key ? i % n_key : 0]));
    return diff == 0;
}
