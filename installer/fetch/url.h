/* Addresses of the web: taking apart, joining redirects, expiry of signed links, and the form
 * without secrets for messages. Input may be hostile. */
#ifndef HX_FETCH_URL_H
#define HX_FETCH_URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define HX_URL_MAX        8192
#define HX_URL_ORIGIN_MAX 300

/* "scheme://host:port", lower case, the port always there: what counts as one host. */
struct hx_url {
    char origin[HX_URL_ORIGIN_MAX];
    bool https;
    bool loopback; /* by its name: localhost, 127.x.x.x, [::1] */
    size_t path;   /* offset of the path in the text; the text's length if there is none */
};

/* http and https only; no user name, no control characters or blanks. False: not such an address.
 */
bool hx_url_parse(const char *text, struct hx_url *out);

/* What a Location header means seen from `base`: absolute, "//host/...", "/path" or relative to the
 * folder. -EINVAL: not an address that may be followed. -EMSGSIZE: too long. */
int hx_url_join(const char *base, const char *location, char out[HX_URL_MAX]);

/* Appends a path, every byte escaped that is not plain; '/' stays. */
int hx_url_escape(struct hx_buf *out, const char *path);

/* Scheme, host and path without query and fragment, for messages; always valid ASCII. */
void hx_url_display(const char *text, char *out, size_t n);

/* Unix time at which a signed link ends, from its query: X-Amz-Date and X-Amz-Expires (X-Goog-
 * likewise), Expires, a Policy with an epoch, or se. False if it does not say. */
bool hx_url_expiry(const char *text, int64_t *epoch);

/* Replaces what must not be shown in a server's text: the token, every query value of `url` of at
 * least 8 characters, and whatever follows '?' in an address. Other bytes than printable ASCII
 * become blanks. token and url may be NULL. */
void hx_url_redact(char *text, const char *token, const char *url);

/* Days since 1970-01-01 and the time of day as Unix time; month 1-12. */
int64_t hx_url_epoch(int year, int month, int day, int hour, int minute, int second);

#endif
