/* Byte ranges over HTTP: the only file that talks to libcurl is transfer.c. Checks every response
 * as docs/fetch.md lists, follows redirects, renews signed links, backs off, respects Retry-After,
 * adapts the number of connections and keeps each host's health. Says which host gave what; never
 * logs a query string or a token. */
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

struct hx_transfer_options {
    const struct hx_endpoint *endpoints; /* in order of preference */
    size_t n_endpoints;
    const char *token;    /* sent to endpoint hosts only; NULL: none */
    const char *ca_file;  /* NULL: the system's */
    unsigned connections; /* most at once, 1-32, 0 = 8 */
    unsigned per_file;    /* most per file, 0 = 4 */
    uint64_t rate;        /* bytes per second over all, 0 = no cap */
    unsigned stall_s;     /* below 8 kB/s for so long is a stall, 0 = 30 */
};

struct hx_transfer;

/* One range of one file of one repository. */
struct hx_range_request {
    const char *repo, *commit, *path;
    const char *const *endpoints; /* names, in order; n_endpoints 0: all */
    size_t n_endpoints;
    uint64_t begin, n_bytes;
    uint64_t size;         /* pinned size of the file; 0: not known yet (metadata) */
    const uint8_t *sha256; /* pinned hash for the linked-hash check, NULL: not known */
    int avoid_host;        /* host number that gave wrong bytes last time, or -1 */
    /* Body bytes in order, only after status and headers passed all checks. -EAGAIN pauses this
     * request until hx_transfer_resume; another negative value ends it. */
    int (*data)(void *ctx, const void *data, size_t n);
    /* The end, exactly once. r: 0, or the error class of a final failure; host: number of the host
     * that served it. Retries happen inside as long as they can help; before a retry that starts
     * over, restart() is called and gives the number of bytes from which to go on (0: from the
     * begin). */
    uint64_t (*restart)(void *ctx);
    void (*done)(void *ctx, int r, int host, const struct hx_error *err);
    void *ctx;
};

struct hx_file_facts { /* from resolving, for `hx-fetch lock` */
    uint64_t size;
    char commit[41];
    uint8_t sha256[32];
    bool has_sha256;
};

struct hx_transfer_stats {
    uint64_t bytes;         /* body bytes accepted */
    unsigned active, limit; /* connections */
    uint64_t retries, stalls, protocol_errors, http_4xx, http_5xx, throttled, tls_errors, resolves;
    char waiting[128]; /* why nothing moves, "" when it does */
    double waiting_s;  /* seconds left of it */
};

int hx_transfer_open(const struct hx_transfer_options *opt, struct hx_transfer **out,
                     struct hx_error *err);
void hx_transfer_close(struct hx_transfer *t);
int hx_transfer_submit(struct hx_transfer *t, const struct hx_range_request *req,
                       struct hx_error *err);
void hx_transfer_resume(struct hx_transfer *t); /* continues paused requests */
void hx_transfer_set_rate(struct hx_transfer *t, uint64_t rate);
void hx_transfer_host_wrong(struct hx_transfer *t, int host,
                            const char *what); /* wrong bytes: twice, and it is out */
const char *hx_transfer_host_name(const struct hx_transfer *t, int host);
/* Runs transfers and waits, at most timeout_ms, until something happened or other_fd is readable
 * (-1: none). */
int hx_transfer_poll(struct hx_transfer *t, int other_fd, int timeout_ms, struct hx_error *err);
void hx_transfer_stats(const struct hx_transfer *t, struct hx_transfer_stats *out);

/* Whole small files and listings, blocking, bounded by max_bytes; for metadata only. */
int hx_transfer_get(struct hx_transfer *t, const char *repo, const char *commit, const char *path,
                    uint64_t begin, uint64_t max_bytes, struct hx_file_facts *facts, uint8_t **out,
                    size_t *n, struct hx_error *err);
int hx_transfer_list(struct hx_transfer *t, const char *repo, const char *commit,
                     int (*entry)(void *ctx, const char *path, uint64_t size,
                                  const uint8_t *sha256),
                     void *ctx, struct hx_error *err);

#endif
