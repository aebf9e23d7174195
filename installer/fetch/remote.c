#include "fetch/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_LIFE_S    (45 * 60.0)
#define LINK_LIFE_MAX  (7 * 86400.0)
#define UNHEALTHY      3u    /* failures in a row: other endpoints come first */
#define UNHEALTHY_S    600.0 /* for so long */
#define MAX_ROW_ERRORS 3u

/* ---- hosts ----------------------------------------------------------------------------------- */

int hx_remotes_host(struct hx_remotes *r, const char *url)
{
    struct hx_url u;
    if (!hx_url_parse(url, &u))
        return -EINVAL;
    for (int i = 0; i < r->n_hosts; i++) {
        if (strcmp(r->hosts[i].origin, u.origin) == 0)
            return i;
    }
    if (r->n_hosts == HX_MAX_HOSTS)
        return -ENOSPC;
    struct hx_host *h = &r->hosts[r->n_hosts];
    *h = (struct hx_host){0};
    memcpy(h->origin, u.origin, sizeof(h->origin));
    return r->n_hosts++;
}

void hx_host_good(struct hx_host *h)
{
    h->protocol_errors = h->failures = 0;
}

void hx_host_failed(struct hx_host *h, double now)
{
    h->failures++;
    h->last_failure = now;
}

bool hx_host_protocol_error(struct hx_host *h, double now, double out_s, const char *why)
{
    hx_host_failed(h, now);
    if (++h->protocol_errors < MAX_ROW_ERRORS)
        return false;
    h->protocol_errors = 0;
    h->out_until = now + out_s;
    snprintf(h->why, sizeof(h->why), "%s", why);
    return true;
}

void hx_host_out(struct hx_host *h, int r, const char *why)
{
    h->out = r;
    snprintf(h->why, sizeof(h->why), "%s", why);
}

bool hx_host_ignored_range(struct hx_host *h)
{
    if (h->out || ++h->ignored_ranges < 2)
        return false;
    hx_host_out(h, -EPROTO, "it answers 200 to requests for a range");
    return true;
}

bool hx_host_wrong_bytes(struct hx_host *h, const char *what)
{
    if (h->out || ++h->wrong_bytes < 2)
        return false;
    hx_host_out(h, -EBADMSG, what);
    return true;
}

void hx_host_wait(struct hx_host *h, enum hx_bucket_kind kind, double until)
{
    if (until > h->wait_until[kind])
        h->wait_until[kind] = until;
}

double hx_host_free_at(const struct hx_host *h, enum hx_bucket_kind kind)
{
    return h->wait_until[kind] > h->out_until ? h->wait_until[kind] : h->out_until;
}

/* ---- links ----------------------------------------------------------------------------------- */

int hx_link_signed(struct hx_link *l, const char *url, int host, double life, double now)
{
    char *copy = strdup(url);
    if (!copy)
        return -ENOMEM;
    if (life <= 0)
        life = LINK_LIFE_S / 0.8;
    else if (life > LINK_LIFE_MAX)
        life = LINK_LIFE_MAX;
    free(l->url);
    l->url = copy;
    l->host = host;
    l->state = HX_LINK_SIGNED;
    l->generation++;
    l->refresh_at = now + 0.8 * life;
    return 0;
}

void hx_link_direct(struct hx_link *l, int host)
{
    l->state = HX_LINK_DIRECT;
    l->host = host;
}

void hx_link_forget(struct hx_link *l)
{
    l->state = HX_LINK_UNKNOWN;
    l->generation++;
}

void hx_link_refuse(struct hx_link *l, int r, const char *why)
{
    l->state = HX_LINK_UNKNOWN;
    l->refused = r;
    snprintf(l->why, sizeof(l->why), "%s", why);
}

bool hx_link_same_etag(struct hx_link *l, int host, const char *etag)
{
    if (etag[0] == '\0')
        return true;
    if (l->etag[0] && l->etag_host == host)
        return strcmp(l->etag, etag) == 0;
    snprintf(l->etag, sizeof(l->etag), "%s", etag);
    l->etag_host = host;
    return true;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void free_file(struct hx_remote_file *f, size_t n_endpoints)
{
    if (!f)
        return;
    for (size_t i = 0; f->links && i < n_endpoints; i++)
        free(f->links[i].url);
    free(f->links);
    free(f->repo);
    free(f->commit);
    free(f->path);
    free(f);
}

struct hx_remote_file *hx_remotes_file(struct hx_remotes *r, const char *repo, const char *commit,
                                       const char *path)
{
    for (size_t i = 0; i < r->n_files; i++) {
        struct hx_remote_file *f = r->files[i];
        if (strcmp(f->path, path) == 0 && strcmp(f->repo, repo) == 0 &&
            strcmp(f->commit, commit) == 0)
            return f;
    }
    struct hx_remote_file *f = calloc(1, sizeof(*f));
    struct hx_remote_file **files =
        realloc(r->files, (r->n_files + 1) * sizeof(struct hx_remote_file *));
    if (files)
        r->files = files;
    if (!f || !files) {
        free(f);
        return NULL;
    }
    f->repo = strdup(repo);
    f->commit = strdup(commit);
    f->path = strdup(path);
    f->links = calloc(r->n_endpoints, sizeof(*f->links));
    if (!f->repo || !f->commit || !f->path || !f->links) {
        free_file(f, r->n_endpoints);
        return NULL;
    }
    for (size_t i = 0; i < r->n_endpoints; i++)
        f->links[i].host = f->links[i].etag_host = -1;
    r->files[r->n_files++] = f;
    return f;
}

int hx_remotes_url(const struct hx_endpoint *e, const struct hx_remote_file *f,
                   char out[HX_URL_MAX])
{
    struct hx_buf b = HX_BUF_INIT(HX_URL_MAX - 1);
    hx_buf_printf(&b, "%s/", e->url);
    hx_url_escape(&b, f->repo);
    if (e->kind == HX_ENDPOINT_HUB) {
        hx_buf_puts(&b, "/resolve/");
        hx_url_escape(&b, f->commit);
    }
    hx_buf_putc(&b, '/');
    hx_url_escape(&b, f->path);
    int r = b.failed ? -EMSGSIZE : 0;
    if (r == 0) {
        memcpy(out, b.data, b.len);
        out[b.len] = '\0';
    }
    hx_buf_done(&b);
    return r;
}

int hx_remotes_init(struct hx_remotes *r, const struct hx_endpoint *endpoints, size_t n_endpoints,
                    double host_out_s, struct hx_error *err)
{
    *r = (struct hx_remotes){
        .endpoints = endpoints, .n_endpoints = n_endpoints, .host_out_s = host_out_s};
    if (n_endpoints == 0 || n_endpoints > 32)
        return hx_fail(err, -EINVAL, "%zu endpoints; 1 to 32 are possible", n_endpoints);
    r->endpoint_hosts = calloc(n_endpoints, sizeof(int));
    r->loads = calloc(n_endpoints, sizeof(*r->loads));
    if (!r->endpoint_hosts || !r->loads) {
        hx_remotes_done(r);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < n_endpoints; i++) {
        struct hx_url u;
        int h = hx_remotes_host(r, endpoints[i].url);
        if (h < 0 || !hx_url_parse(endpoints[i].url, &u) || strpbrk(endpoints[i].url, "?#")) {
            hx_remotes_done(r);
            return hx_fail(err, -EINVAL,
                           "endpoint '%.40s': its address must be http:// or https:// with a host, "
                           "without a query",
                           endpoints[i].name);
        }
        r->endpoint_hosts[i] = h;
        r->hosts[h].is_endpoint = r->hosts[h].near_ok = true;
        /* A token in clear text over a network would be everybody's. */
        if (endpoints[i].kind == HX_ENDPOINT_HUB && (u.https || u.loopback))
            r->hosts[h].takes_token = true;
    }
    return 0;
}

void hx_remotes_done(struct hx_remotes *r)
{
    for (size_t i = 0; i < r->n_files; i++)
        free_file(r->files[i], r->n_endpoints);
    free(r->files);
    free(r->endpoint_hosts);
    free(r->loads);
    *r = (struct hx_remotes){0};
}

/* ---- choice ---------------------------------------------------------------------------------- */

struct candidate {
    int endpoint, host;
    double free_at;
    unsigned badness; /* 2: gave wrong bytes for this piece, 1: fails at the moment */
    double share;     /* bytes per second for one more connection */
};

#define MIN_SAMPLE   (64u << 10) /* bytes; fewer say nothing about speed */
#define MIN_SAMPLE_S 5.0         /* or so many seconds with fewer */
#define LINK_WAIT_S  2.0         /* so long a link that is being resolved is waited for */

void hx_remotes_began(struct hx_remotes *r, int endpoint)
{
    r->loads[endpoint].active++;
}

void hx_remotes_ended(struct hx_remotes *r, int endpoint, uint64_t bytes, double seconds)
{
    struct hx_load *l = &r->loads[endpoint];
    if ((bytes >= MIN_SAMPLE || seconds >= MIN_SAMPLE_S) && seconds > 0) {
        double all = (double)bytes / seconds * l->active;
        l->speed = l->speed > 0 ? 0.75 * l->speed + 0.25 * all : all > 1 ? all : 1;
    }
    l->active--;
}

/* One that is not known yet may be as good as the best. */
static double share_of(const struct hx_remotes *r, size_t e)
{
    double speed = r->loads[e].speed, best = 0;
    for (size_t i = 0; speed <= 0 && i < r->n_endpoints; i++)
        best = r->loads[i].speed > best ? r->loads[i].speed : best;
    speed = speed > 0 ? speed : best > 0 ? best : 1;
    return speed / (r->loads[e].active + 1);
}

double hx_remotes_elsewhere(const struct hx_remotes *r, const struct hx_remote_file *f,
                            uint32_t allowed, int endpoint, double now)
{
    double best = 0;
    for (size_t e = 0; e < r->n_endpoints; e++) {
        const struct hx_host *h = &r->hosts[r->endpoint_hosts[e]];
        bool failing = h->failures >= UNHEALTHY && now < h->last_failure + UNHEALTHY_S;
        if ((int)e == endpoint || !(allowed >> e & 1) || f->links[e].refused || h->out || failing ||
            hx_host_free_at(h, HX_BUCKET_FILES) > now || r->loads[e].speed <= 0)
            continue;
        double share = share_of(r, e);
        best = share > best ? share : best;
    }
    return best;
}

static struct candidate rate_endpoint(struct hx_remotes *r, struct hx_remote_file *f, int e,
                                      int avoid_host, double now)
{
    struct hx_link *l = &f->links[e];
    if (l->state == HX_LINK_SIGNED && now >= l->refresh_at)
        hx_link_forget(l);
    /* A new link may lead to another edge; transfer.c refuses the endpoint if it does not. */
    if (l->state == HX_LINK_SIGNED && r->hosts[l->host].out)
        hx_link_forget(l);
    struct candidate c = {.endpoint = e};
    c.host = l->state == HX_LINK_SIGNED ? l->host : r->endpoint_hosts[e];
    const struct hx_host *h = &r->hosts[c.host];
    c.free_at = hx_host_free_at(h, HX_BUCKET_FILES);
    bool failing = h->failures >= UNHEALTHY && now < h->last_failure + UNHEALTHY_S;
    c.badness = (avoid_host >= 0 && (c.host == avoid_host || l->host == avoid_host) ? 2 : 0) +
                (failing ? 1 : 0);
    c.share = share_of(r, (size_t)e);
    return c;
}

static bool is_better(const struct candidate *a, const struct candidate *b, double now)
{
    bool a_now = a->free_at <= now, b_now = b->free_at <= now;
    if (a_now != b_now)
        return a_now;
    if (!a_now)
        return a->free_at < b->free_at;
    if (a->badness != b->badness)
        return a->badness < b->badness;
    return a->share > b->share;
}

int hx_remotes_choose(struct hx_remotes *r, struct hx_remote_file *f, uint32_t allowed,
                      int avoid_host, double now, double *when, int *host, struct hx_error *err)
{
    struct candidate best = {.endpoint = -1};
    int refused = 0;
    bool resolving = false, busy = false; /* busy: resolving for however long */
    for (size_t e = 0; e < r->n_endpoints; e++) {
        if (!(allowed >> e & 1))
            continue;
        const struct hx_link *l = &f->links[e];
        const struct hx_host *own = &r->hosts[r->endpoint_hosts[e]];
        if (l->refused || own->out) {
            if (!refused) {
                refused = l->refused ? l->refused : own->out;
                hx_fail(err, refused, "%s: %s", own->origin, l->refused ? l->why : own->why);
            }
            continue;
        }
        if (l->state == HX_LINK_RESOLVING) {
            busy = true;
            resolving |= now < l->asked_at + LINK_WAIT_S;
            continue;
        }
        struct candidate c = rate_endpoint(r, f, (int)e, avoid_host, now);
        if (best.endpoint < 0 || is_better(&c, &best, now))
            best = c;
    }
    /* Waiting for a link costs less than a second choice. */
    if (resolving && (best.endpoint < 0 || best.badness || best.free_at > now ||
                      f->links[best.endpoint].state == HX_LINK_UNKNOWN)) {
        *when = now + 1;
        *host = -1;
        return -EAGAIN;
    }
    if (best.endpoint < 0 && busy) {
        *when = now + 1;
        *host = -1;
        return -EAGAIN;
    }
    if (best.endpoint < 0)
        return refused ? refused : hx_fail(err, -EINVAL, "no endpoint for '%.200s'", f->path);
    if (best.free_at > now) {
        *when = best.free_at;
        *host = best.host;
        return -EAGAIN;
    }
    return best.endpoint;
}

void hx_fetch_certificate_text(double now, double built, const char *tls, char *out, size_t n)
{
    char plain[160];
    size_t i = 0;
    for (; i < sizeof(plain) - 1 && tls[i]; i++)
        plain[i] = tls[i];
    plain[i] = '\0';
    hx_url_redact(plain, NULL, NULL);
    bool dated = strstr(plain, "not yet valid") || strstr(plain, "expired");
    snprintf(out, n, "its certificate is not accepted (%s)%s", plain,
             now < built
                 ? "; this machine's clock is before the date of this program: set the clock"
             : dated ? "; is this machine's clock right?"
                     : "");
}

int hx_remotes_mask(const struct hx_remotes *r, const struct hx_range_request *req, uint32_t *mask,
                    struct hx_error *err)
{
    uint32_t m = req->n_endpoints ? 0 : UINT32_MAX;
    for (size_t i = 0; i < req->n_endpoints; i++) {
        size_t e = 0;
        /* "default" is the configuration's first one, and those after it stand in for it. */
        if (strcmp(req->endpoints[i], "default") == 0) {
            m = UINT32_MAX;
            continue;
        }
        while (e < r->n_endpoints && strcmp(r->endpoints[e].name, req->endpoints[i]) != 0)
            e++;
        if (e == r->n_endpoints)
            return hx_fail(err, -EINVAL,
                           "endpoint '%.60s' of '%.200s' is not among the configured ones",
                           req->endpoints[i], req->path);
        m |= 1u << e;
    }
    *mask = m;
    return 0;
}
