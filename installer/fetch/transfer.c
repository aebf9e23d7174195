/* Requests over curl's multi interface. A job is one range; it waits, gets an easy handle, resolves
 * where its file lies, fetches, and starts over as long as that can help. */
#include "fetch/transfer.h"

#include <curl/curl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hx/build_facts.h>

#include "base/rand.h"
#include "fetch/near.h"
#include "fetch/pace.h"
#include "fetch/remote.h"
#include "fetch/response.h"
#include "fetch/transfer_impl.h"

#define MAX_HOPS       5u
#define SNIPPET        2048u       /* of an error page, for the log */
#define MAX_DISCARD    (64u << 10) /* of a body nobody wants, to keep the connection */
#define STALL_RATE     8000.0      /* bytes per second */
#define SLEPT_S        5.0         /* shorter sleeps do not hurt connections */
#define JUMP_S         300.0
#define FORGET_AFTER   (64u << 20) /* bytes of progress after which the delays begin anew */
#define METADATA_TRIES 4u          /* somebody waits for them */
#define SLOW_FACTOR    8.0
#define MOST_MOVES     3u
#define BUFFER_BYTES   (512 << 10)

static void real_clock(struct hx_fetch_clock *c)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    c->mono = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    clock_gettime(CLOCK_BOOTTIME, &t);
    c->boot = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    clock_gettime(CLOCK_REALTIME, &t);
    c->wall = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void tick(struct hx_transfer *t)
{
    t->clock(&t->now);
}

void hx_transfer_note(struct hx_transfer *t, bool urgent, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!t->note)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    t->note(t->note_ctx, urgent, text);
}

/* ---- end of a job ---------------------------------------------------------------------------- */

static void drop_job(struct hx_transfer *t, struct hx_job *j)
{
    for (size_t i = 0; i < t->n_jobs; i++) {
        if (t->jobs[i] == j) {
            memmove(t->jobs + i, t->jobs + i + 1, (t->n_jobs - i - 1) * sizeof(struct hx_job *));
            t->n_jobs--;
            break;
        }
    }
    free(j);
}

/* Frees the job before the callback, so that the callback may submit the next one. */
void hx_job_end(struct hx_transfer *t, struct hx_job *j, int r, const struct hx_error *err)
{
    struct hx_range_request req = j->req;
    int host = j->host;
    hx_job_detach(t, j);
    drop_job(t, j);
    t->ended++;
    req.done(req.ctx, r, host, err);
}

void hx_job_fail(struct hx_transfer *t, struct hx_job *j, int r, const char *fmt, ...)
{
    struct hx_error e = {0};
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    hx_fail(&e, r, "'%.200s': %s", j->file->path, text);
    hx_job_end(t, j, r, &e);
}

/* ---- attempts -------------------------------------------------------------------------------- */

/* Somebody waits for it. */
static bool is_metadata(const struct hx_job *j)
{
    return j->facts || j->api;
}

void hx_job_detach(struct hx_transfer *t, struct hx_job *j)
{
    if (!j->easy)
        return;
    curl_multi_remove_handle(t->multi, j->easy);
    t->idle[t->n_idle++] = j->easy;
    j->easy = NULL;
    j->paused = false;
    curl_slist_free_all(j->headers);
    j->headers = NULL;
    j->file->active--;
    t->active--;
    if (!is_metadata(j))
        hx_remotes_ended(&t->remotes, j->endpoint, j->got, t->now.mono - j->begun);
    struct hx_link *l = hx_job_link(j);
    if (j->resolving && l->state == HX_LINK_RESOLVING)
        hx_link_forget(l);
    j->resolving = false;
}

static double backoff(const struct hx_transfer *t, const struct hx_job *j)
{
    return hx_backoff_range(j->delays, t->backoff_s,
                            is_metadata(j) ? t->backoff_s * 2 : t->backoff_cap_s);
}

/* Later again. counts: towards giving up and the growing delay. */
void hx_job_requeue(struct hx_transfer *t, struct hx_job *j, bool counts, double not_before,
                    const char *why)
{
    double delay = 0;
    hx_job_detach(t, j);
    snprintf(j->why, sizeof(j->why), "%s", why);
    if (counts) {
        t->stats.retries++;
        if (j->progress >= FORGET_AFTER) {
            j->delays = 0;
            j->progress = 0;
        }
        if (j->reached > j->reached_before)
            j->dry = 0;
        j->reached_before = j->reached;
        if (++j->dry >= (is_metadata(j) ? METADATA_TRIES : t->tries)) {
            hx_job_fail(t, j, -ETIMEDOUT, "given up after %u tries without one new byte: %s",
                        j->dry, why);
            return;
        }
        j->delays++;
        delay =
            hx_backoff_range(j->delays, t->backoff_s, t->backoff_cap_s) * hx_rng_uniform(&t->rng);
    }
    j->not_before = t->now.mono + delay;
    if (not_before > j->not_before)
        j->not_before = not_before;
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx)
{
    struct hx_job *j = ctx;
    (void)size;
    hx_response_line(&j->resp, data, n);
    return n;
}

static void judge(struct hx_job *j)
{
    struct hx_expect want = {
        .first = j->req.begin + j->start,
        .last = j->req.begin + j->req.n_bytes - 1,
        .size = j->req.size,
        .sha256 = j->req.sha256,
        .commit = j->req.commit,
        .whole_ok = j->at_endpoint && j->t->remotes.endpoints[j->endpoint].kind == HX_ENDPOINT_HUB};
    j->judged = true;
    if (j->api && j->resp.status == 200) {
        bool page = j->resp.html, packed = j->resp.encoded;
        j->verdict = page ? HX_PORTAL : packed ? HX_PROTOCOL : HX_BODY_TAKE;
        snprintf(j->why, sizeof(j->why), "%s",
                 page ? "an HTML page came instead of a listing: captive portal or proxy"
                      : "Content-Encoding although none was allowed");
        return;
    }
    if (j->api)
        want.commit = NULL;
    j->verdict = hx_response_judge(&j->resp, &want, j->why, sizeof(j->why));
    if (j->verdict != HX_BODY_TAKE)
        return;
    if (!j->api && !hx_link_same_etag(hx_job_link(j), j->host, j->resp.etag)) {
        j->verdict = HX_CHANGED;
        snprintf(j->why, sizeof(j->why), "the file's ETag changed from one piece to the next");
        return;
    }
    j->want = j->resp.status == 200 || !j->req.size
                  ? (j->resp.status == 200 ? j->resp.length
                                           : j->resp.range_last - j->resp.range_first + 1)
                  : j->req.n_bytes - j->start;
}

static size_t take_body(struct hx_job *j, const char *data, size_t n)
{
    struct hx_transfer *t = j->t;
    if (!j->api && n > j->want - j->got) {
        j->too_long = true;
        return 0;
    }
    if (!hx_bucket_open(&t->bucket, t->now.mono)) {
        j->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    int r = j->req.data(j->req.ctx, data, n);
    if (r == -EAGAIN) {
        j->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (r < 0) {
        j->callback_error = r;
        return 0;
    }
    hx_bucket_take(&t->bucket, (double)n);
    j->got += n;
    j->window_bytes += n;
    j->slow_bytes += n;
    t->stats.bytes += n;
    return n;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct hx_job *j = ctx;
    (void)size;
    if (!j->judged)
        judge(j);
    if (j->verdict == HX_BODY_TAKE)
        return take_body(j, data, n);
    /* A whole file that nobody asked for, or somebody else's page, is not read. */
    if (j->verdict == HX_RANGE_IGNORED || j->verdict == HX_PROTOCOL || j->verdict == HX_CHANGED ||
        j->discarded > MAX_DISCARD)
        return 0;
    size_t keep = SNIPPET - j->n_snippet;
    if (keep > n)
        keep = n;
    memcpy(j->snippet + j->n_snippet, data, keep);
    j->n_snippet += keep;
    j->discarded += n;
    return n;
}

static bool set_headers(struct hx_transfer *t, struct hx_job *j)
{
    const char *fixed[] = {"Accept-Encoding: identity", "Accept: */*"};
    struct curl_slist *list = NULL, *next;
    for (size_t i = 0; i < 2; i++) {
        next = curl_slist_append(list, fixed[i]);
        if (!next)
            goto fail;
        list = next;
    }
    if (t->token_header && hx_job_host(t, j)->takes_token) {
        next = curl_slist_append(list, t->token_header);
        if (!next)
            goto fail;
        list = next;
    }
    j->headers = list;
    return true;
fail:
    curl_slist_free_all(list);
    return false;
}

/* Names are looked up by curl; this is the first that knows what they lead to. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct hx_job *j = ctx;
    (void)purpose;
    if (!j->t->proxied && !hx_job_host(j->t, j)->near_ok && hx_near_address(&a->addr)) {
        j->near_refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

bool hx_job_is_near(const struct hx_transfer *t, const struct hx_job *j)
{
    char *ip = NULL;
    if (hx_near_url(j->url))
        return true;
    return !t->proxied && j->easy &&
           curl_easy_getinfo(j->easy, CURLINFO_PRIMARY_IP, &ip) == CURLE_OK && ip &&
           hx_near_text(ip);
}

/* Puts the job's address on a handle and starts it. */
int hx_job_launch(struct hx_transfer *t, struct hx_job *j)
{
    char range[64];
    CURL *e = t->n_idle ? t->idle[--t->n_idle] : NULL;
    if (!e || !set_headers(t, j)) {
        if (e)
            t->idle[t->n_idle++] = e;
        return -ENOMEM;
    }
    snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)(j->req.begin + j->start),
             (unsigned long long)(j->req.begin + j->req.n_bytes - 1));
    curl_easy_reset(e);
    bool ok = curl_easy_setopt(e, CURLOPT_URL, j->url) == CURLE_OK;
    ok &= j->api || curl_easy_setopt(e, CURLOPT_RANGE, range) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_HTTPHEADER, j->headers) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_USERAGENT, "hx-fetch/" HX_BUILD_VERSION) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    ok &= !t->ca_file || curl_easy_setopt(e, CURLOPT_CAINFO, t->ca_file) == CURLE_OK;
    if (!ok) {
        curl_slist_free_all(j->headers);
        j->headers = NULL;
        t->idle[t->n_idle++] = e;
        return -ENOMEM;
    }
    /* One connection per request: a paused one must not hold up others. */
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    /* A stop does not wait for a name server. */
    curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, t->buffer_bytes);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)t->connect_s);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, j);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, j);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, j->curl_text);
    curl_easy_setopt(e, CURLOPT_PRIVATE, j);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, j);
    hx_response_clear(&j->resp);
    j->judged = j->too_long = j->paused = j->stalled = j->near_refused = false;
    j->got = j->want = j->discarded = 0;
    j->n_snippet = 0;
    j->curl_text[0] = '\0';
    j->window_start = t->now.mono;
    j->window_bytes = 0;
    j->begun = j->slow_start = t->now.mono;
    j->slow_bytes = 0;
    j->easy = e;
    j->file->active++;
    t->active++;
    if (!is_metadata(j))
        hx_remotes_began(&t->remotes, j->endpoint);
    if (curl_multi_add_handle(t->multi, e) != CURLM_OK) {
        hx_job_detach(t, j);
        return -ENOMEM;
    }
    return 0;
}

/* ---- failures below HTTP --------------------------------------------------------------------- */

/* No name server, no route: waits for the line as long as it takes, unless somebody waits too. */
static void no_line(struct hx_transfer *t, struct hx_job *j, const char *why)
{
    double part = 0.5 + 0.5 * hx_rng_uniform(&t->rng);
    bool counts = is_metadata(j);
    t->stats.resets++;
    j->delays += !counts;
    hx_host_failed(hx_job_host(t, j), t->now.mono);
    hx_job_requeue(t, j, counts, counts ? 0 : t->now.mono + backoff(t, j) * part, why);
}

static void on_curl_error(struct hx_transfer *t, struct hx_job *j, CURLcode code)
{
    const char *text = j->curl_text[0] ? j->curl_text : curl_easy_strerror(code);
    char why[256];
    long native = 0;
    curl_easy_getinfo(j->easy, CURLINFO_OS_ERRNO, &native);
    snprintf(why, sizeof(why), "%s: %.150s", hx_job_host(t, j)->origin, text);
    for (char *c = why; *c; c++) {
        if ((unsigned char)*c < ' ' || (unsigned char)*c > 0x7e)
            *c = ' ';
    }
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR: hx_job_bad_certificate(t, j); return;
    case CURLE_SSL_CACERT_BADFILE:
        hx_job_detach(t, j);
        hx_job_fail(t, j, -EKEYREJECTED, "certificates to trust: cannot read '%.200s'",
                    t->ca_file ? t->ca_file : "the system's file");
        return;
    case CURLE_OUT_OF_MEMORY:
        hx_job_detach(t, j);
        hx_job_fail(t, j, -ENOMEM, "out of memory");
        return;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY: no_line(t, j, why); return;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CIPHER: t->stats.tls_errors++; break;
    default: t->stats.resets++;
    }
    hx_host_failed(hx_job_host(t, j), t->now.mono);
    if (native == ENETUNREACH || native == EHOSTUNREACH || native == ENETDOWN)
        no_line(t, j, why);
    else
        hx_job_requeue(t, j, true, 0, why);
}

static void finish(struct hx_transfer *t, struct hx_job *j, CURLcode code)
{
    if (j->callback_error) {
        int r = j->callback_error;
        hx_job_detach(t, j);
        hx_job_fail(t, j, r, "stopped");
        return;
    }
    if (!j->judged && code == CURLE_OK)
        judge(j);
    if (code == CURLE_COULDNT_CONNECT && j->near_refused) {
        hx_job_refuse_near(t, j);
        return;
    }
    if (!j->judged || (j->verdict == HX_BODY_TAKE && !j->too_long && code != CURLE_OK)) {
        if (j->stalled)
            t->stats.stalls++;
        on_curl_error(t, j, code);
        return;
    }
    hx_job_answer(t, j);
}

/* Progress of an attempt that is over, kept for the counting of tries. */
static void count_progress(struct hx_job *j)
{
    if (j->verdict != HX_BODY_TAKE || !j->judged)
        return;
    if (j->start + j->got > j->reached)
        j->reached = j->start + j->got;
    j->progress += j->got;
}

static void read_messages(struct hx_transfer *t)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(t->multi, &left));) {
        struct hx_job *j = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&j);
        count_progress(j);
        finish(t, j, code);
    }
}

/* ---- starting -------------------------------------------------------------------------------- */

/* True if the job left the queue in any way. */
static bool start_job(struct hx_transfer *t, struct hx_job *j)
{
    struct hx_error err = {0};
    double when = 0;
    int host = -1;
    int e = hx_remotes_choose(&t->remotes, j->file, j->allowed, j->avoid_host, t->now.mono, &when,
                              &host, &err);
    if (e == -EAGAIN) {
        if (host >= 0) {
            j->not_before = when;
            const struct hx_host *h = &t->remotes.hosts[host];
            snprintf(j->why, sizeof(j->why), "%.140s %s", h->origin,
                     when > h->out_until ? "asks to wait" : "is out for a while");
        }
        return false;
    }
    if (e < 0) {
        hx_job_fail(t, j, e, "%s", err.text);
        return true;
    }
    int64_t there = 0;
    if (j->req.restart)
        there = j->req.restart(j->req.ctx);
    if (there == -EAGAIN) {
        j->not_before = t->now.mono + 0.05;
        return false;
    }
    if (there < 0) {
        hx_job_fail(t, j, (int)there, "stopped");
        return true;
    }
    j->start = (uint64_t)there;
    if (j->start >= j->req.n_bytes) {
        hx_job_end(t, j, 0, NULL);
        return true;
    }
    j->endpoint = e;
    j->hops = 0;
    struct hx_link *l = hx_job_link(j);
    j->at_endpoint = j->api || l->state != HX_LINK_SIGNED;
    j->host = j->at_endpoint ? t->remotes.endpoint_hosts[e] : l->host;
    int r = 0;
    if (j->api)
        memcpy(j->url, j->api, strlen(j->api) + 1);
    else if (j->at_endpoint)
        r = hx_remotes_url(&t->remotes.endpoints[e], j->file, j->url);
    else
        memcpy(j->url, l->url, strlen(l->url) + 1);
    if (r < 0) {
        hx_job_fail(t, j, r, "its address is too long");
        return true;
    }
    j->resolving = !j->api && l->state == HX_LINK_UNKNOWN;
    if (j->resolving) {
        l->state = HX_LINK_RESOLVING;
        l->asked_at = t->now.mono;
    }
    j->generation = l->generation;
    if (hx_job_launch(t, j) < 0) {
        hx_job_fail(t, j, -ENOMEM, "out of memory");
        return true;
    }
    return true;
}

static void start_jobs(struct hx_transfer *t)
{
    if (t->held)
        return;
    for (size_t i = 0; i < t->n_jobs && t->active < t->adapt.limit;) {
        struct hx_job *j = t->jobs[i];
        bool ready = !j->easy && j->not_before <= t->now.mono && j->file->active < t->per_file;
        size_t before = t->n_jobs;
        if (ready)
            start_job(t, j);
        /* The job, and others with it, may be gone. */
        if (t->n_jobs >= before)
            i++;
    }
}

/* Closes every connection; requests stay. */
static void drop_connections(struct hx_transfer *t)
{
    for (size_t i = 0; i < t->n_jobs; i++) {
        struct hx_job *j = t->jobs[i];
        if (!j->easy)
            continue;
        count_progress(j);
        hx_job_detach(t, j);
        j->not_before = 0;
    }
}

static int new_multi(struct hx_transfer *t)
{
    CURLM *m = curl_multi_init();
    if (!m)
        return -ENOMEM;
    if (t->multi)
        curl_multi_cleanup(t->multi);
    t->multi = m;
    curl_multi_setopt(m, CURLMOPT_MAXCONNECTS, 48L);
    return 0;
}

static void check_clock(struct hx_transfer *t)
{
    struct hx_fetch_clock before = t->now;
    tick(t);
    double slept = (t->now.boot - before.boot) - (t->now.mono - before.mono);
    double jumped = (t->now.wall - before.wall) - (t->now.boot - before.boot);
    if (slept < SLEPT_S && jumped < JUMP_S && jumped > -JUMP_S)
        return;
    hx_transfer_note(t, false, "%s: all connections and links are renewed",
                     slept >= SLEPT_S ? "the machine slept" : "the clock was set");
    drop_connections(t);
    new_multi(t);
    for (size_t f = 0; f < t->remotes.n_files; f++) {
        for (size_t e = 0; e < t->remotes.n_endpoints; e++)
            hx_link_forget(&t->remotes.files[f]->links[e]);
    }
}

static void check_stalls(struct hx_transfer *t)
{
    for (size_t i = 0; i < t->n_jobs;) {
        struct hx_job *j = t->jobs[i];
        size_t before = t->n_jobs;
        if (j->easy && j->paused) {
            j->window_start = t->now.mono;
            j->window_bytes = 0;
        } else if (j->easy && t->now.mono - j->window_start >= t->stall_s) {
            if ((double)j->window_bytes < STALL_RATE * t->stall_s) {
                j->stalled = true;
                snprintf(j->curl_text, sizeof(j->curl_text), "below 8 kB/s for %.0f s", t->stall_s);
                count_progress(j);
                j->judged = false;
                finish(t, j, CURLE_OPERATION_TIMEDOUT);
            } else {
                j->window_start = t->now.mono;
                j->window_bytes = 0;
            }
        }
        if (t->n_jobs >= before)
            i++;
    }
}

/* A mirror that is far behind the others does not get to hold up the end: what it has not sent yet
 * is asked for elsewhere. */
static void check_slow(struct hx_transfer *t)
{
    for (size_t i = 0; i < t->n_jobs && t->remotes.n_endpoints > 1; i++) {
        struct hx_job *j = t->jobs[i];
        double age = t->now.mono - j->slow_start;
        if (!j->easy || is_metadata(j))
            continue;
        if (!j->paused && age < t->stall_s / 3)
            continue;
        double rate = (double)j->slow_bytes / age;
        double other =
            hx_remotes_elsewhere(&t->remotes, j->file, j->allowed, j->endpoint, t->now.mono);
        j->slow_start = t->now.mono;
        j->slow_bytes = 0;
        if (j->paused || j->n_moved >= MOST_MOVES || rate * SLOW_FACTOR >= other)
            continue;
        struct hx_load *l = &t->remotes.loads[j->endpoint];
        if (!l->slow_noted)
            hx_transfer_note(t, false, "%s gives %.0f kB/s, others more than %.0f times as much",
                             hx_job_host(t, j)->origin, rate / 1e3, SLOW_FACTOR);
        l->slow_noted = true;
        if (j->got == 0)
            hx_host_failed(hx_job_host(t, j), t->now.mono);
        count_progress(j);
        j->avoid_host = j->host;
        j->n_moved++;
        hx_job_requeue(t, j, false, 0, "another server is faster");
    }
}

static void resume_paused(struct hx_transfer *t)
{
    for (size_t i = 0; i < t->n_jobs; i++) {
        struct hx_job *j = t->jobs[i];
        if (!j->easy || !j->paused || !hx_bucket_open(&t->bucket, t->now.mono))
            continue;
        j->paused = false;
        j->window_start = t->now.mono;
        j->window_bytes = 0;
        j->slow_start = t->now.mono;
        j->slow_bytes = 0;
        curl_easy_pause(j->easy, CURLPAUSE_CONT);
    }
}

/* ---- interface ------------------------------------------------------------------------------- */

static unsigned or_default(unsigned v, unsigned standard)
{
    return v ? v : standard;
}

int hx_transfer_open(const struct hx_transfer_options *opt, struct hx_transfer **out,
                     struct hx_error *err)
{
    struct hx_transfer *t = calloc(1, sizeof(*t));
    if (!t || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(t);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    t->per_file = or_default(opt->per_file, 4);
    t->stall_s = or_default(opt->stall_s, 30);
    t->connect_s = or_default(opt->connect_s, 30);
    t->backoff_s = or_default(opt->backoff_ms, 1000) / 1000.0;
    t->backoff_cap_s = or_default(opt->backoff_cap_ms, 60000) / 1000.0;
    t->tries = or_default(opt->tries, 20);
    t->note = opt->note;
    t->idle_call = opt->idle;
    t->note_ctx = opt->note_ctx;
    t->clock = opt->clock ? opt->clock : real_clock;
    tick(t);
    hx_rng_seed(&t->rng, (uint64_t)(t->now.wall * 1e6));
    unsigned max = or_default(opt->connections, 8);
    hx_adapt_init(&t->adapt, max > HX_TRANSFER_MAX ? HX_TRANSFER_MAX : max, t->now.mono);
    hx_transfer_set_rate(t, opt->rate);
    int r = hx_remotes_init(&t->remotes, opt->endpoints, opt->n_endpoints,
                            or_default(opt->host_out_s, 600), err);
    if (r < 0)
        goto fail;
    t->proxied = hx_near_has_proxy();
    r = new_multi(t);
    while (r == 0 && t->n_idle < HX_TRANSFER_MAX) {
        t->idle[t->n_idle] = curl_easy_init();
        r = t->idle[t->n_idle] ? 0 : -ENOMEM;
        t->n_idle += r == 0;
    }
    if (r == 0 && opt->ca_file && !(t->ca_file = strdup(opt->ca_file)))
        r = -ENOMEM;
    if (r == 0 && opt->token) {
        t->token = strdup(opt->token);
        if (!t->token || asprintf(&t->token_header, "Authorization: Bearer %s", opt->token) < 0) {
            t->token_header = NULL;
            r = -ENOMEM;
        }
    }
    if (r == 0) {
        *out = t;
        return 0;
    }
    hx_fail(err, r, "out of memory");
fail:
    hx_transfer_close(t);
    return r;
}

void hx_transfer_close(struct hx_transfer *t)
{
    if (!t)
        return;
    t->held = true;
    drop_connections(t);
    while (t->n_jobs > 0)
        hx_job_fail(t, t->jobs[0], -ECANCELED, "stopped");
    while (t->n_idle > 0)
        curl_easy_cleanup(t->idle[--t->n_idle]);
    if (t->multi)
        curl_multi_cleanup(t->multi);
    hx_remotes_done(&t->remotes);
    if (t->token)
        explicit_bzero(t->token, strlen(t->token));
    if (t->token_header)
        explicit_bzero(t->token_header, strlen(t->token_header));
    free(t->token);
    free(t->token_header);
    free(t->ca_file);
    free(t->jobs);
    free(t);
    curl_global_cleanup();
}

struct hx_job *hx_transfer_add(struct hx_transfer *t, const struct hx_range_request *req,
                               struct hx_error *err)
{
    if (req->n_bytes == 0 || req->begin > INT64_MAX || req->n_bytes > INT64_MAX - req->begin ||
        (req->size && req->begin + req->n_bytes > req->size)) {
        hx_fail(err, -EINVAL, "'%.200s': bytes %llu+%llu of %llu cannot be asked for", req->path,
                (unsigned long long)req->begin, (unsigned long long)req->n_bytes,
                (unsigned long long)req->size);
        return NULL;
    }
    uint32_t allowed = 0;
    if (hx_remotes_mask(&t->remotes, req, &allowed, err) < 0)
        return NULL;
    struct hx_job *j = calloc(1, sizeof(*j));
    struct hx_job **jobs = realloc(t->jobs, (t->n_jobs + 1) * sizeof(struct hx_job *));
    if (jobs)
        t->jobs = jobs;
    if (j && jobs)
        j->file = hx_remotes_file(&t->remotes, req->repo, req->commit, req->path);
    if (!j || !jobs || !j->file) {
        free(j);
        hx_fail(err, -ENOMEM, "out of memory");
        return NULL;
    }
    j->t = t;
    j->req = *req;
    j->allowed = allowed;
    j->avoid_host = req->avoid_host;
    j->host = -1;
    t->jobs[t->n_jobs++] = j;
    return j;
}

int hx_transfer_submit(struct hx_transfer *t, const struct hx_range_request *req,
                       struct hx_error *err)
{
    struct hx_error e = {0};
    if (!hx_transfer_add(t, req, &e)) {
        if (err)
            *err = e;
        return e.code;
    }
    return 0;
}

void hx_transfer_drop(struct hx_transfer *t, struct hx_job *job, int r)
{
    hx_job_detach(t, job);
    hx_job_fail(t, job, r, "stopped");
}

void hx_transfer_resume(struct hx_transfer *t)
{
    tick(t);
    resume_paused(t);
}

void hx_transfer_set_rate(struct hx_transfer *t, uint64_t rate)
{
    hx_bucket_set(&t->bucket, (double)rate, t->now.mono);
    /* Blocks of a sixteenth of a second keep a small cap even. */
    long bytes = rate && rate / 16 < BUFFER_BYTES ? (long)(rate / 16) : BUFFER_BYTES;
    t->buffer_bytes = bytes < (16 << 10) ? 16 << 10 : bytes;
}

void hx_transfer_hold(struct hx_transfer *t, bool hold)
{
    if (hold && !t->held)
        drop_connections(t);
    t->held = hold;
}

void hx_transfer_host_wrong(struct hx_transfer *t, int host, const char *what)
{
    if (host < 0 || host >= t->remotes.n_hosts)
        return;
    struct hx_host *h = &t->remotes.hosts[host];
    hx_transfer_note(t, true, "%s gave wrong bytes: %s", h->origin, what);
    if (hx_host_wrong_bytes(h, what))
        hx_transfer_note(t, true, "%s is not used any more in this run", h->origin);
}

const char *hx_transfer_host_name(const struct hx_transfer *t, int host)
{
    return host >= 0 && host < t->remotes.n_hosts ? t->remotes.hosts[host].origin : "?";
}

/* When something can happen without a socket: the next queued job, the cap, a stall. */
static double next_event(struct hx_transfer *t, double until)
{
    for (size_t i = 0; i < t->n_jobs; i++) {
        const struct hx_job *j = t->jobs[i];
        double at = j->easy                       ? j->window_start + t->stall_s
                    : t->held                     ? until
                    : j->not_before > t->now.mono ? j->not_before
                                                  : until;
        if (j->easy && j->paused && t->bucket.rate > 0)
            at = t->now.mono + hx_bucket_wait(&t->bucket, t->now.mono) + 0.001;
        if (at < until)
            until = at;
    }
    return until;
}

int hx_transfer_poll(struct hx_transfer *t, int other_fd, int timeout_ms, struct hx_error *err)
{
    int running;
    uint64_t ended = t->ended, bytes = t->stats.bytes;
    check_clock(t);
    start_jobs(t);
    CURLMcode m = curl_multi_perform(t->multi, &running);
    if (m == CURLM_OK) {
        tick(t);
        read_messages(t);
        check_stalls(t);
        check_slow(t);
        if (t->bucket.rate > 0)
            resume_paused(t);
        start_jobs(t);
        hx_adapt_step(&t->adapt, t->now.mono, t->stats.bytes, t->active >= t->adapt.limit);
        double until = next_event(t, t->now.mono + timeout_ms * 1e-3);
        int wait = (int)((until - t->now.mono) * 1e3 + 0.999);
        if (t->ended != ended || t->stats.bytes != bytes)
            wait = 0;
        struct curl_waitfd extra = {.fd = other_fd, .events = CURL_WAIT_POLLIN};
        m = curl_multi_poll(t->multi, &extra, other_fd >= 0, wait < 0 ? 0 : wait, NULL);
    }
    if (m == CURLM_OK)
        return 0;
    return hx_fail(err, m == CURLM_OUT_OF_MEMORY ? -ENOMEM : -EIO, "transfers: %s",
                   curl_multi_strerror(m));
}

void hx_transfer_stats(const struct hx_transfer *t, struct hx_transfer_stats *out)
{
    const struct hx_job *next = NULL;
    bool moves = false;
    *out = t->stats;
    out->active = t->active;
    out->limit = t->adapt.limit;
    out->queued = (unsigned)t->n_jobs - t->active;
    for (size_t i = 0; i < t->n_jobs; i++) {
        const struct hx_job *j = t->jobs[i];
        moves |= j->easy != NULL;
        if (j->easy || j->not_before <= t->now.mono)
            continue;
        out->delayed++;
        if (!next || j->not_before < next->not_before)
            next = j;
    }
    if (!moves && next) {
        snprintf(out->waiting, sizeof(out->waiting), "%.190s", next->why);
        out->waiting_s = next->not_before - t->now.mono;
    }
}
