/* Inside of the transfers: for transfer.c and metadata.c only. */
#ifndef HX_FETCH_TRANSFER_IMPL_H
#define HX_FETCH_TRANSFER_IMPL_H

#include "base/rand.h"
#include "fetch/pace.h"
#include "fetch/remote.h"
#include "fetch/response.h"
#include "fetch/transfer.h"

#define HX_TRANSFER_MAX 32 /* connections */

struct hx_job {
    struct hx_transfer *t;
    struct hx_range_request req;
    struct hx_remote_file *file;
    uint32_t allowed; /* bit per endpoint */
    const char *api;  /* an address of the endpoint's interface instead of the file; no range */
    struct hx_file_facts *facts;

    /* Between attempts. */
    double not_before;
    unsigned dry;                     /* attempts without one new byte */
    unsigned delays;                  /* for the growing delay */
    uint64_t reached, reached_before; /* farthest byte of the range so far */
    uint64_t progress;                /* bytes since the delays began anew */
    char why[256];
    int avoid_host;   /* as in the request, or one that was too slow */
    unsigned n_moved; /* times that it was taken from a slow endpoint */

    /* The attempt. */
    void *easy; /* NULL: queued */
    void *headers;
    char url[HX_URL_MAX];
    int endpoint, host;
    unsigned generation, hops;
    bool at_endpoint, resolving, paused, judged, too_long, stalled;
    bool near_refused; /* an address of the local network, where the host must not be */
    enum hx_verdict verdict;
    uint64_t start, want, got; /* of the range: skipped, expected behind that, received */
    int callback_error;
    double window_start, begun;
    uint64_t window_bytes, discarded;
    double slow_start; /* as window_start, for the comparison with other endpoints */
    uint64_t slow_bytes;
    struct hx_response resp;
    char curl_text[256]; /* CURL_ERROR_SIZE */
    char snippet[2049];
    size_t n_snippet;
};

struct hx_transfer {
    void *multi;
    void *idle[HX_TRANSFER_MAX];
    unsigned n_idle;
    struct hx_job **jobs; /* in the order of submission */
    size_t n_jobs;
    unsigned active, per_file, tries, connect_s;
    double stall_s, backoff_s, backoff_cap_s;
    long buffer_bytes;
    bool held, portal_noted;
    bool proxied; /* by the environment: connections lead to the proxy, wherever that is */
    uint64_t ended;
    char *token, *token_header, *ca_file;
    struct hx_remotes remotes;
    struct hx_bucket bucket;
    struct hx_adapt adapt;
    struct hx_rng rng;
    struct hx_fetch_clock now;
    void (*clock)(struct hx_fetch_clock *now);
    void (*note)(void *ctx, bool urgent, const char *text);
    int (*idle_call)(void *ctx);
    void *note_ctx;
    struct hx_transfer_stats stats;
};

/* Queues a request; NULL: refused, err says why. The job is valid until its done(). */
struct hx_job *hx_transfer_add(struct hx_transfer *t, const struct hx_range_request *req,
                               struct hx_error *err);

/* Ends a job before its time, with done(r). */
void hx_transfer_drop(struct hx_transfer *t, struct hx_job *job, int r);

static inline struct hx_host *hx_job_host(struct hx_transfer *t, const struct hx_job *j)
{
    return &t->remotes.hosts[j->host];
}

static inline struct hx_link *hx_job_link(const struct hx_job *j)
{
    return &j->file->links[j->endpoint];
}

void hx_transfer_note(struct hx_transfer *t, bool urgent, const char *fmt, ...) HX_PRINTF(3, 4);

/* The end: frees the job before its done(), so that done() may submit the next one. */
void hx_job_end(struct hx_transfer *t, struct hx_job *j, int r, const struct hx_error *err);
void hx_job_fail(struct hx_transfer *t, struct hx_job *j, int r, const char *fmt, ...)
    HX_PRINTF(4, 5);
/* Later again. counts: towards giving up and the growing delay. */
void hx_job_requeue(struct hx_transfer *t, struct hx_job *j, bool counts, double not_before,
                    const char *why);
/* Gives the connection back. */
void hx_job_detach(struct hx_transfer *t, struct hx_job *j);
/* Sends a request to j->url. -ENOMEM. */
int hx_job_launch(struct hx_transfer *t, struct hx_job *j);

/* answer.c: acts on a response that is complete or that was cut because of what it is. */
void hx_job_answer(struct hx_transfer *t, struct hx_job *j);
void hx_job_bad_certificate(struct hx_transfer *t, struct hx_job *j);
/* A redirect that leads from the internet into the local network. */
void hx_job_refuse_near(struct hx_transfer *t, struct hx_job *j);
/* Whether the host that answered stands in the local network. */
bool hx_job_is_near(const struct hx_transfer *t, const struct hx_job *j);

#endif
