/* One HTTP response: its headers as far as they matter, and what to do with it. Pure; every header
 * may be hostile. The rules are the table of docs/fetch.md. */
#ifndef HX_FETCH_RESPONSE_H
#define HX_FETCH_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fetch/url.h"

struct hx_response {
    int status; /* 0: no status line yet */
    bool has_range, range_bad;
    bool range_unsatisfied; /* "bytes * /total" */
    uint64_t range_first, range_last;
    bool has_total;
    uint64_t total;
    bool has_length;
    uint64_t length;
    bool encoded; /* a Content-Encoding other than identity */
    bool html;
    char etag[128]; /* as sent, "" if none */
    char location[HX_URL_MAX];
    bool location_bad; /* two different ones, or too long */
    char commit[41];   /* X-Repo-Commit */
    bool has_linked_size;
    uint64_t linked_size;
    bool has_linked_sha256;
    uint8_t linked_sha256[32];
    bool has_retry_after;
    int64_t retry_after; /* seconds, or with retry_is_date a Unix time */
    bool retry_is_date;
    bool has_reset; /* t= of RateLimit */
    int64_t reset;  /* seconds */
    bool has_date;
    int64_t date;    /* Unix time by the server's clock */
    char next[2048]; /* Link: rel="next" */
};

void hx_response_clear(struct hx_response *r);
/* One header line, status lines too (they begin a new response), with or without the line end. */
void hx_response_line(struct hx_response *r, const char *line, size_t n);

/* What was asked for. */
struct hx_expect {
    uint64_t first, last;  /* of the file */
    uint64_t size;         /* pinned; 0: not known, then a file may end before `last` */
    const uint8_t *sha256; /* pinned hash of the file or NULL */
    const char *commit;    /* pinned, 40 hexadecimal digits; else any is right */
    bool whole_ok;         /* 200 with the complete file is fine: a hub serves small files so */
};

enum hx_verdict {
    HX_BODY_TAKE,     /* these bytes are the ones */
    HX_BODY_EMPTY,    /* the file has no bytes (only without a pinned size) */
    HX_FOLLOW,        /* redirect */
    HX_RETRY,         /* 408, 425, 5xx and statuses without a row: later again */
    HX_SLOW_DOWN,     /* 429: wait, all of this host */
    HX_PROTOCOL,      /* 206 that does not fit */
    HX_RANGE_IGNORED, /* 200: the body is not what was asked for */
    HX_PORTAL,        /* a page instead of data */
    HX_BAD_REQUEST,   /* 400 */
    HX_UNAUTHORISED,  /* 401 */
    HX_FORBIDDEN,     /* 403 */
    HX_GONE,          /* 404, 410 */
    HX_CHANGED,       /* size, hash or commit is not the pinned one */
    HX_PAST_END,      /* 416 although the size is the pinned one */
};

/* why gets one line that says what was found and what was expected. */
enum hx_verdict hx_response_judge(const struct hx_response *r, const struct hx_expect *want,
                                  char *why, size_t n);

/* Seconds to wait as the server asks, 0 if it does not; at most a day. now: Unix time, used for
 * dates if the server did not send its own clock. */
double hx_response_wait(const struct hx_response *r, double now);

/* Life of a signed link in seconds from now (fetched at `now` by the local clock), by its query and
 * the server's clock; 0: not known. */
double hx_response_link_life(const struct hx_response *r, const char *url, double now);

/* An HTTP date in any of its three forms, n bytes. */
bool hx_http_date(const char *s, size_t n, int64_t *epoch);

#endif
