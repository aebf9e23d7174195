/* Byte ranges over HTTP: the only file that talks to libcurl is transfer.c. Checks every response
 * as docs/fetch.md lists, follows redirects, renews signed links, backs off, respects Retry-After,
 * adapts the number of connections and keeps each host's health. Says which host gave what; never
 * logs a query string or a token. One thread; callbacks come from inside submit, poll, resume and
 * close only. */
#ifndef HX_FETCH_TRANSFER_H
#define HX_FETCH_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

enum hx_endpoint_kind {
    HX_ENDPOINT_HUB, /* {url}/{repo}/resolve/{commit}/{path}, listing under {url}/api/models/... */
    HX_ENDPOINT_PLAIN, /* {url}/{path} below a folder per repository: {url}/{repo}/{path} */
};

struct hx_endpoint {
    char *name;
    char *url;
    enum hx_endpoint_kind kind;
};

/* Seconds. mono stands still while the machine sleeps, boot does not, wall is the date (Unix time).
 */
struct hx_fetch_clock {
    double mono, boot, wall;
};

struct hx_transfer_options {
    const struct hx_endpoint *endpoints; /* in order of preference */
    size_t n_endpoints;
    const char *token;       /* sent to hub endpoints only; NULL: none */
    const char *ca_file;     /* NULL: the system's */
    unsigned connections;    /* most at once, 1-32, 0 = 8 */
    unsigned per_file;       /* most per file, 0 = 4 */
    uint64_t rate;           /* bytes per second over all, 0 = no cap */
    unsigned stall_s;        /* below 8 kB/s for so long is a stall, 0 = 30 */
    unsigned connect_s;      /* for name, connection and TLS together, 0 = 30 */
    unsigned backoff_ms;     /* first delay, doubles, 0 = 1,000 */
    unsigned backoff_cap_ms; /* 0 = 60,000 */
    unsigned tries;          /* without one new byte, then a request fails, 0 = 20 */
    unsigned host_out_s; /* three protocol errors in a row put a host out for so long, 0 = 600 */
    /* What happens, for the log: one line without secrets; urgent: a person may have to act. */
    void (*note)(void *ctx, bool urgent, const char *text);
    /* Several times a second while a call for metadata waits; a negative value ends that call. */
    int (*idle)(void *ctx);
    void *note_ctx;
    void (*clock)(struct hx_fetch_clock *now); /* NULL: the system's */
};

struct hx_transfer;

/* One range of one file of one repository. Strings must live until done() or close. */
struct hx_range_request {
    const char *repo, *commit, *path;
    const char *const *endpoints; /* names, in order; n_endpoints 0: all */
    size_t n_endpoints;
    uint64_t begin, n_bytes; /* n_bytes > 0 */
    uint64_t size;           /* pinned size of the file; 0: not known yet (metadata) */
    const uint8_t *sha256;   /* pinned hash for the linked-hash check, NULL: not known */
    int avoid_host;          /* host number that gave wrong bytes last time, or -1 */
    /* Before every attempt, the first one too: the number of bytes of the range that are there
     * already, so where the attempt begins; negative ends the request with that error. */
    int64_t (*restart)(void *ctx);
    /* Body bytes in order, only after status and headers passed all checks. -EAGAIN pauses this
     * request until hx_transfer_resume and gives the same bytes again; another negative value ends
     * it with that error. */
    int (*data)(void *ctx, const void *data, size_t n);
    /* The end, exactly once; the request's strings are no longer used. r: 0, or the class of a
     * final failure: -ESTALE upstream changed, -ENOENT gone, -EACCES not allowed, -EPROTO no server
     * that answers properly, -EKEYREJECTED certificate, -ETIMEDOUT given up, -ECANCELED closed, or
     * what a callback returned. host: number of the host that served it, -1: none. */
    void (*done)(void *ctx, int r, int host, const struct hx_error *err);
    void *ctx;
};

struct hx_file_facts { /* from resolving, for `hx-fetch lock` */
    uint64_t size;
    char commit[41]; /* "" if the server does not say */
    uint8_t sha256[32];
    bool has_sha256;
};

struct hx_transfer_stats {
    uint64_t bytes;         /* body bytes accepted */
    unsigned active, limit; /* connections */
    unsigned queued;        /* requests that wait for a connection or for time to pass */
    unsigned delayed;       /* of them: for time to pass */
    uint64_t retries, stalls, protocol_errors, http_4xx, http_5xx, throttled, tls_errors, resolves;
    uint64_t resets;   /* connections that ended early, refused or timed out */
    char host[128];    /* that served last */
    char waiting[192]; /* why nothing moves, "" when it does */
    double waiting_s;  /* seconds left of it */
};

int hx_transfer_open(const struct hx_transfer_options *opt, struct hx_transfer **out,
                     struct hx_error *err);
/* Ends what is open with -ECANCELED. */
void hx_transfer_close(struct hx_transfer *t);
/* -EINVAL for an impossible range or an unknown endpoint. */
int hx_transfer_submit(struct hx_transfer *t, const struct hx_range_request *req,
                       struct hx_error *err);
void hx_transfer_resume(struct hx_transfer *t); /* continues paused requests */
void hx_transfer_set_rate(struct hx_transfer *t, uint64_t rate);
/* Hold: connections are closed and nothing starts until released; requests stay. */
void hx_transfer_hold(struct hx_transfer *t, bool hold);
void hx_transfer_host_wrong(struct hx_transfer *t, int host,
                            const char *what); /* wrong bytes: twice, and it is out */
const char *hx_transfer_host_name(const struct hx_transfer *t, int host); /* "?" for -1 */
/* Runs transfers and waits, at most timeout_ms, until something happened or other_fd is readable
 * (-1: none). */
int hx_transfer_poll(struct hx_transfer *t, int other_fd, int timeout_ms, struct hx_error *err);
void hx_transfer_stats(const struct hx_transfer *t, struct hx_transfer_stats *out);

/* Whole small files, parts of files and listings, blocking; for metadata only. get: bytes from
 * begin to the end of the file, at most max_bytes of them. commit may be a branch name here; facts
 * (may be NULL) say which commit answered. The result is free()d by the caller, one NUL is behind
 * it. */
int hx_transfer_get(struct hx_transfer *t, const char *repo, const char *commit, const char *path,
                    uint64_t begin, uint64_t max_bytes, struct hx_file_facts *facts, uint8_t **out,
                    size_t *n, struct hx_error *err);
/* Every file of the tree, following pages, from the first hub endpoint that answers; -ENOTSUP if
 * there are plain ones only. sha256 is NULL for files outside large-file storage. A negative value
 * of entry() ends the listing with it. */
int hx_transfer_list(struct hx_transfer *t, const char *repo, const char *commit,
                     int (*entry)(void *ctx, const char *path, uint64_t size,
                                  const uint8_t *sha256),
                     void *ctx, struct hx_error *err);

#endif
