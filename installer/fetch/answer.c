/* What an answer leads to: the table of docs/fetch.md. */
#include <stdio.h>
#include <string.h>

#include <hx/build_facts.h>

#include "fetch/near.h"
#include "fetch/transfer_impl.h"

#define MAX_HOPS 5u

static void refuse_link(struct hx_transfer *t, struct hx_job *j, int r, const char *why)
{
    hx_link_refuse(hx_job_link(j), r, why);
    hx_transfer_note(t, true, "%s: '%.200s': %s", hx_job_host(t, j)->origin, j->file->path, why);
    hx_job_requeue(t, j, false, 0, why);
}

static void put_out(struct hx_transfer *t, struct hx_job *j, int r, const char *why)
{
    struct hx_host *h = hx_job_host(t, j);
    if (!h->out) {
        hx_host_out(h, r, why);
        hx_transfer_note(t, true, "%s is not used any more in this run: %s", h->origin, why);
    }
    hx_job_requeue(t, j, false, 0, why);
}

static void on_protocol_error(struct hx_transfer *t, struct hx_job *j)
{
    struct hx_host *h = hx_job_host(t, j);
    t->stats.protocol_errors++;
    hx_transfer_note(t, false, "%s: '%.200s': %s", h->origin, j->file->path, j->why);
    if (hx_host_protocol_error(h, t->now.mono, t->remotes.host_out_s, j->why))
        hx_transfer_note(t, true, "%s is out for %.0f s: %s", h->origin, t->remotes.host_out_s,
                         j->why);
    hx_job_requeue(t, j, true, 0, j->why);
}

void hx_job_refuse_near(struct hx_transfer *t, struct hx_job *j)
{
    snprintf(j->why, sizeof(j->why), "a redirect into the local network, to %.150s",
             hx_job_host(t, j)->origin);
    hx_link_forget(hx_job_link(j));
    j->host = t->remotes.endpoint_hosts[j->endpoint];
    on_protocol_error(t, j);
}

static void on_redirect(struct hx_transfer *t, struct hx_job *j)
{
    char url[HX_URL_MAX];
    struct hx_link *l = hx_job_link(j);
    int r = hx_url_join(j->url, j->resp.location, url);
    int host = r < 0 ? r : hx_remotes_host(&t->remotes, url);
    bool down = host >= 0 && strncmp(j->url, "https", 5) == 0 && strncmp(url, "https", 5) != 0;
    if (host < 0 || down || ++j->hops > MAX_HOPS) {
        snprintf(j->why, sizeof(j->why), "%s",
                 down              ? "a redirect from https to http"
                 : host == -ENOSPC ? "redirects to too many different hosts"
                 : host < 0        ? "a redirect to something that is not a web address"
                                   : "more than 5 redirects");
        on_protocol_error(t, j);
        return;
    }
    bool leaves = !t->remotes.hosts[host].is_endpoint;
    /* A mirror in the owner's own network may name its neighbours. */
    if (hx_job_is_near(t, j))
        t->remotes.hosts[host].near_ok = true;
    if (!t->remotes.hosts[host].near_ok && hx_near_url(url)) {
        j->host = host;
        hx_job_refuse_near(t, j);
        return;
    }
    if (t->remotes.hosts[host].out) {
        /* Asked again, the endpoint still sends us to a host that is out. */
        refuse_link(t, j, t->remotes.hosts[host].out, t->remotes.hosts[host].why);
        return;
    }
    bool resolved = j->at_endpoint && leaves && !j->api;
    if (resolved) {
        hx_host_good(hx_job_host(t, j));
        double life = hx_response_link_life(&j->resp, url, t->now.wall);
        if (hx_link_signed(l, url, host, life, t->now.mono) < 0) {
            hx_job_fail(t, j, -ENOMEM, "out of memory");
            return;
        }
        t->stats.resolves++;
        j->generation = l->generation;
        j->resolving = false;
    }
    hx_job_detach(t, j);
    j->at_endpoint = j->at_endpoint && !leaves;
    j->host = host;
    memcpy(j->url, url, strlen(url) + 1);
    double free_at = hx_host_free_at(&t->remotes.hosts[host], HX_BUCKET_FILES);
    /* With a link that is known now, another endpoint may be the better choice, and soon again
     * where a chain of redirects ends at a server that is out. */
    double again = resolved ? 0 : t->now.mono + 1;
    if (free_at > t->now.mono)
        hx_job_requeue(t, j, false, resolved || t->remotes.n_endpoints > 1 ? again : free_at,
                       "the server asks to wait");
    else if (hx_job_launch(t, j) < 0)
        hx_job_requeue(t, j, true, 0, "out of memory");
}

/* 400 and 403: perhaps the link is too old; a second time with a new one it is not that. */
static void on_refusal(struct hx_transfer *t, struct hx_job *j, unsigned *count)
{
    struct hx_link *l = hx_job_link(j);
    char why[256];
    t->stats.http_4xx++;
    if (j->generation != l->generation) {
        hx_job_requeue(t, j, false, 0, j->why);
        return;
    }
    if ((*count)++ == 0) {
        hx_link_forget(l);
        hx_job_requeue(t, j, false, 0, "a new link is needed");
        return;
    }
    hx_url_redact(j->snippet, t->token, j->url);
    snprintf(why, sizeof(why), "%.100s, again with a new link", j->why);
    if (j->n_snippet)
        hx_transfer_note(t, true, "%s answered: %s", hx_job_host(t, j)->origin, j->snippet);
    put_out(t, j, -EACCES, why);
}

static void on_slow_down(struct hx_transfer *t, struct hx_job *j)
{
    double wait = hx_response_wait(&j->resp, t->now.wall) + 1;
    wait *= 1 + 0.1 * hx_rng_uniform(&t->rng);
    double until = t->now.mono + wait;
    t->stats.throttled++;
    t->stats.http_4xx++;
    hx_adapt_slow_down(&t->adapt, t->now.mono);
    struct hx_host *h = hx_job_host(t, j);
    enum hx_bucket_kind kind = j->api ? HX_BUCKET_API : HX_BUCKET_FILES;
    if (hx_host_free_at(h, kind) <= t->now.mono)
        hx_transfer_note(t, false, "%s asks to wait %.0f s", h->origin, wait);
    hx_host_wait(h, kind, until);
    hx_job_requeue(t, j, false, until, "the server asks to wait (429)");
}

static void on_server_error(struct hx_transfer *t, struct hx_job *j)
{
    double wait = hx_response_wait(&j->resp, t->now.wall);
    int status = j->resp.status;
    if (status >= 500)
        t->stats.http_5xx++;
    else
        t->stats.http_4xx++;
    if (status == 503)
        hx_adapt_slow_down(&t->adapt, t->now.mono);
    hx_host_failed(hx_job_host(t, j), t->now.mono);
    char why[256];
    snprintf(why, sizeof(why), "%.100s from %.140s", j->why, hx_job_host(t, j)->origin);
    hx_job_requeue(t, j, true, wait > 0 ? t->now.mono + wait : 0, why);
}

static void on_range_ignored(struct hx_transfer *t, struct hx_job *j)
{
    struct hx_host *h = hx_job_host(t, j);
    t->stats.protocol_errors++;
    hx_transfer_note(t, false, "%s: '%.200s': %s", h->origin, j->file->path, j->why);
    if (hx_host_ignored_range(h))
        hx_transfer_note(t, true, "%s is not used any more in this run: %s", h->origin, h->why);
    hx_job_requeue(t, j, true, 0, j->why);
}

static void on_portal(struct hx_transfer *t, struct hx_job *j)
{
    char why[256];
    hx_host_failed(hx_job_host(t, j), t->now.mono);
    t->stats.protocol_errors++;
    snprintf(why, sizeof(why), "%.120s (asked %.100s)", j->why, hx_job_host(t, j)->origin);
    if (!t->portal_noted)
        hx_transfer_note(t, true, "%s; sign in to the network or fix the proxy", why);
    t->portal_noted = true;
    hx_job_requeue(t, j, true, 0, why);
}

void hx_job_bad_certificate(struct hx_transfer *t, struct hx_job *j)
{
    char why[256];
    t->stats.tls_errors++;
    hx_fetch_certificate_text(t->now.wall, HX_BUILD_TIME, j->curl_text, why, sizeof(why));
    put_out(t, j, -EKEYREJECTED, why);
}

static void on_success(struct hx_transfer *t, struct hx_job *j)
{
    struct hx_link *l = hx_job_link(j);
    hx_host_good(hx_job_host(t, j));
    t->portal_noted = false;
    l->forbidden = l->bad_request = 0;
    if (j->at_endpoint && !j->api && l->state != HX_LINK_SIGNED)
        hx_link_direct(l, j->host);
    snprintf(t->stats.host, sizeof(t->stats.host), "%s", hx_job_host(t, j)->origin);
    hx_job_detach(t, j);
    hx_job_end(t, j, 0, NULL);
}

/* Facts for metadata requests; the redirect and the answer each know some. */
static void collect_facts(struct hx_job *j)
{
    const struct hx_response *r = &j->resp;
    struct hx_file_facts *f = j->facts;
    if (!f)
        return;
    if (r->commit[0])
        memcpy(f->commit, r->commit, sizeof(f->commit));
    if (r->has_linked_size && j->verdict == HX_FOLLOW)
        f->size = r->linked_size;
    if (r->has_linked_sha256) {
        memcpy(f->sha256, r->linked_sha256, sizeof(f->sha256));
        f->has_sha256 = true;
    }
    if (j->verdict == HX_BODY_TAKE)
        f->size = r->status == 200 ? r->length : r->total;
}

void hx_job_answer(struct hx_transfer *t, struct hx_job *j)
{
    collect_facts(j);
    j->snippet[j->n_snippet] = '\0';
    struct hx_link *l = hx_job_link(j);
    switch (j->verdict) {
    case HX_BODY_TAKE:
        if (j->too_long || (!j->api && j->got != j->want)) {
            snprintf(j->why, sizeof(j->why), "%s than Content-Range says",
                     j->too_long ? "more bytes" : "fewer bytes");
            on_protocol_error(t, j);
        } else {
            on_success(t, j);
        }
        break;
    case HX_BODY_EMPTY: on_success(t, j); break;
    case HX_FOLLOW: on_redirect(t, j); break;
    case HX_RETRY: on_server_error(t, j); break;
    case HX_SLOW_DOWN: on_slow_down(t, j); break;
    case HX_PAST_END:
        if (!j->req.size) {
            hx_job_detach(t, j);
            hx_job_fail(t, j, -ERANGE, "%s", j->why);
            break;
        }
        on_protocol_error(t, j);
        break;
    case HX_PROTOCOL: on_protocol_error(t, j); break;
    case HX_RANGE_IGNORED: on_range_ignored(t, j); break;
    case HX_PORTAL: on_portal(t, j); break;
    case HX_BAD_REQUEST: on_refusal(t, j, &l->bad_request); break;
    case HX_FORBIDDEN: on_refusal(t, j, &l->forbidden); break;
    case HX_UNAUTHORISED:
        t->stats.http_4xx++;
        refuse_link(t, j, -EACCES, j->why);
        break;
    case HX_GONE:
        t->stats.http_4xx++;
        refuse_link(t, j, -ENOENT, j->why);
        break;
    case HX_CHANGED: {
        char why[256];
        snprintf(why, sizeof(why), "upstream changed since this release: %.200s", j->why);
        refuse_link(t, j, -ESTALE, why);
        break;
    }
    }
}
