/* What is known about servers and about files on them: health of hosts, signed links and their age,
 * which endpoint a request should use next. Pure bookkeeping for transfer.c; times are monotonic
 * seconds. */
#ifndef HX_FETCH_REMOTE_H
#define HX_FETCH_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/transfer.h"
#include "fetch/url.h"

#define HX_MAX_HOSTS 128

/* Servers count requests for listings apart from requests for files. */
enum hx_bucket_kind { HX_BUCKET_FILES, HX_BUCKET_API, HX_BUCKET_MAX };

struct hx_host {
    char origin[HX_URL_ORIGIN_MAX];
    bool takes_token; /* a hub endpoint of the configuration, over TLS or on this machine */
    bool is_endpoint;
    bool near_ok; /* may stand in the local network: an endpoint, or a host that one there names */
    double wait_until[HX_BUCKET_MAX]; /* 429 */
    double out_until;
    int out; /* negative: out for this run, with this class */
    char why[256];
    unsigned protocol_errors; /* in a row */
    unsigned failures;        /* of any kind, in a row */
    double last_failure;
    unsigned ignored_ranges, wrong_bytes;
};

/* What an endpoint does for us, whatever host its links lead to. */
struct hx_load {
    unsigned active; /* connections that fetch weights */
    double speed;    /* bytes per second over all of them, smoothed; 0: not known */
    bool slow_noted;
};

enum hx_link_state {
    HX_LINK_UNKNOWN,
    HX_LINK_RESOLVING, /* one request is on its way to find out */
    HX_LINK_DIRECT,    /* the endpoint serves the bytes itself */
    HX_LINK_SIGNED,    /* at url, until refresh_at */
};

/* One file at one endpoint. */
struct hx_link {
    enum hx_link_state state;
    char *url;
    int host;            /* that serves the bytes, -1: not known */
    unsigned generation; /* counts changes of url: answers to an old one do not count */
    double refresh_at;
    double asked_at; /* when the resolving began */
    char etag[128];  /* of the host that serves the bytes */
    int etag_host;
    unsigned forbidden, bad_request; /* since bytes came */
    int refused;                     /* negative: of no use for this run */
    char why[256];
};

struct hx_remote_file {
    char *repo, *commit, *path;
    unsigned active;       /* connections */
    struct hx_link *links; /* one per endpoint */
};

struct hx_remotes {
    const struct hx_endpoint *endpoints; /* borrowed */
    size_t n_endpoints;
    int *endpoint_hosts;   /* host number of each endpoint */
    struct hx_load *loads; /* of each endpoint */
    struct hx_host hosts[HX_MAX_HOSTS];
    int n_hosts;
    struct hx_remote_file **files;
    size_t n_files;
    double host_out_s;
};

int hx_remotes_init(struct hx_remotes *r, const struct hx_endpoint *endpoints, size_t n_endpoints,
                    double host_out_s, struct hx_error *err);
void hx_remotes_done(struct hx_remotes *r);

/* Host number of an address, added when new: -EINVAL, -ENOSPC after HX_MAX_HOSTS. */
int hx_remotes_host(struct hx_remotes *r, const char *url);

/* The file's entry, added when new: NULL when out of memory. */
struct hx_remote_file *hx_remotes_file(struct hx_remotes *r, const char *repo, const char *commit,
                                       const char *path);

/* Address of a file at an endpoint. -ENOMEM, -EMSGSIZE. */
int hx_remotes_url(const struct hx_endpoint *e, const struct hx_remote_file *f,
                   char out[HX_URL_MAX]);

/* A connection of an endpoint begins; ended with what it brought. */
void hx_remotes_began(struct hx_remotes *r, int endpoint);
void hx_remotes_ended(struct hx_remotes *r, int endpoint, uint64_t bytes, double seconds);

/* Bytes per second that a further connection can hope for from the best other endpoint for this
 * file; 0: there is none, or nothing is known of it. */
double hx_remotes_elsewhere(const struct hx_remotes *r, const struct hx_remote_file *f,
                            uint32_t allowed, int endpoint, double now);

/* The endpoint to use now (its number): of those that work, the one that has most to give to one
 * more connection, at first in their order; -EAGAIN: nothing until *when, *host is waited for (-1:
 * another request finds the link); other negative values: no endpoint is left, err says why for the
 * first. allowed: bit per endpoint. */
int hx_remotes_choose(struct hx_remotes *r, struct hx_remote_file *f, uint32_t allowed,
                      int avoid_host, double now, double *when, int *host, struct hx_error *err);

/* The endpoints that a request names, bit by bit; none named, or "default" among them: all. */
int hx_remotes_mask(const struct hx_remotes *r, const struct hx_range_request *req, uint32_t *mask,
                    struct hx_error *err);

/* A new signed address. life: seconds, 0 not known (then 45 minutes count); it is used for 80 % of
 * that. */
int hx_link_signed(struct hx_link *l, const char *url, int host, double life, double now);
void hx_link_direct(struct hx_link *l, int host);
void hx_link_forget(struct hx_link *l); /* ask the endpoint again */
void hx_link_refuse(struct hx_link *l, int r, const char *why);
/* False: the file changed under this host (another ETag than before). */
bool hx_link_same_etag(struct hx_link *l, int host, const char *etag);

/* What happened at a host. The ones that return bool: true if that put it out just now. */
void hx_host_good(struct hx_host *h);
void hx_host_failed(struct hx_host *h, double now);
bool hx_host_protocol_error(struct hx_host *h, double now, double out_s, const char *why);
bool hx_host_ignored_range(struct hx_host *h);
bool hx_host_wrong_bytes(struct hx_host *h, const char *what);
void hx_host_out(struct hx_host *h, int r, const char *why);
void hx_host_wait(struct hx_host *h, enum hx_bucket_kind kind, double until);
double hx_host_free_at(const struct hx_host *h, enum hx_bucket_kind kind);

/* What to say about a certificate that was not accepted: a clock before the build's date is the
 * likely cause then. Unix times; tls: the library's own words. */
void hx_fetch_certificate_text(double now, double built, const char *tls, char *out, size_t n);

#endif
