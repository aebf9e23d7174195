/* Whole small files and listings: transfers that somebody waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_read.h"
#include "fetch/transfer_impl.h"

#define MAX_PAGE    (64u << 20) /* bytes of one page of a listing */
#define MAX_PAGES   2000u
#define MAX_ENTRIES 1000000u

struct wait {
    struct hx_buf body;
    bool over;
    int r;
    struct hx_error err;
    char next[2048]; /* of a listing */
    struct hx_job *job;
};

static int64_t on_restart(void *ctx)
{
    struct wait *w = ctx;
    hx_buf_clear(&w->body);
    return 0;
}

static int on_data(void *ctx, const void *data, size_t n)
{
    struct wait *w = ctx;
    /* The job is still there while its bytes come. */
    if (w->job->api && w->body.len == 0)
        snprintf(w->next, sizeof(w->next), "%s", w->job->resp.next);
    return hx_buf_append(&w->body, data, n);
}

static void on_done(void *ctx, int r, int host, const struct hx_error *err)
{
    struct wait *w = ctx;
    (void)host;
    w->over = true;
    w->r = r;
    if (err)
        w->err = *err;
}

static int wait_for(struct hx_transfer *t, struct wait *w, struct hx_error *err)
{
    int r = 0;
    while (!w->over && r == 0) {
        r = hx_transfer_poll(t, -1, 250, err);
        if (r == 0 && !w->over && t->idle_call && (r = t->idle_call(t->note_ctx)) < 0)
            hx_fail(err, r, "interrupted");
    }
    /* A poll that fails leaves the job behind, with pointers to this frame. */
    if (!w->over) {
        hx_transfer_drop(t, w->job, r);
        return r;
    }
    if (w->r < 0 && err)
        *err = w->err;
    return w->r;
}

int hx_transfer_get(struct hx_transfer *t, const char *repo, const char *commit, const char *path,
                    uint64_t begin, uint64_t max_bytes, struct hx_file_facts *facts, uint8_t **out,
                    size_t *n, struct hx_error *err)
{
    struct wait w = {.body = HX_BUF_INIT(max_bytes)};
    struct hx_file_facts found = {0};
    struct hx_range_request req = {.repo = repo,
                                   .commit = commit,
                                   .path = path,
                                   .begin = begin,
                                   .n_bytes = max_bytes,
                                   .avoid_host = -1,
                                   .restart = on_restart,
                                   .data = on_data,
                                   .done = on_done,
                                   .ctx = &w};
    struct hx_error e = {0};
    w.job = hx_transfer_add(t, &req, &e);
    if (!w.job) {
        if (err)
            *err = e;
        return e.code;
    }
    w.job->facts = &found;
    int r = wait_for(t, &w, err);
    if (r == 0 && !hx_buf_cstr(&w.body))
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0) {
        *out = hx_buf_take(&w.body, n);
        if (facts)
            *facts = found;
    }
    hx_buf_done(&w.body);
    return r;
}

/* ---- listings -------------------------------------------------------------------------------- */

static bool sha256_of(struct hx_jv v, uint8_t out[32])
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    if (!s || n != 64)
        return false;
    for (size_t i = 0; i < 64; i++) {
        const char *digits = "0123456789abcdef";
        const char *at = s[i] ? strchr(digits, s[i] | (s[i] >= 'A' ? 0x20 : 0)) : NULL;
        if (!at)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (at - digits));
    }
    return true;
}

static int read_page(const struct hx_buf *body, size_t *n_entries,
                     int (*entry)(void *ctx, const char *path, uint64_t size,
                                  const uint8_t *sha256),
                     void *ctx, struct hx_error *err)
{
    struct hx_json_limits limits = {.max_bytes = MAX_PAGE, .max_values = 8u << 20, .max_depth = 16};
    struct hx_json *doc;
    int r = hx_json_parse((const char *)body->data, body->len, &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "listing");
    if (hx_jv_type(hx_json_root(doc)) != HX_JSON_ARRAY)
        r = hx_fail(err, -EPROTO, "listing: not a list of files");
    for (struct hx_jv v = hx_jv_first(hx_json_root(doc)); r == 0 && v.doc; v = hx_jv_next(v)) {
        if (hx_jv_str_is(hx_jv_get(v, "type"), "directory"))
            continue;
        char path[4096];
        size_t n;
        int64_t size;
        uint8_t sha[32];
        struct hx_jv lfs = hx_jv_get(v, "lfs");
        const char *s = hx_jv_str(hx_jv_get(v, "path"), &n);
        bool has_size =
            hx_jv_int64(hx_jv_get(lfs, "size"), &size) || hx_jv_int64(hx_jv_get(v, "size"), &size);
        if (!s || n == 0 || n >= sizeof(path) || memchr(s, '\0', n) || !has_size || size < 0) {
            r = hx_fail(err, -EPROTO, "listing: entry %zu has no usable path and size", *n_entries);
            break;
        }
        if (++*n_entries > MAX_ENTRIES) {
            r = hx_fail(err, -E2BIG, "listing: more than %u files", MAX_ENTRIES);
            break;
        }
        memcpy(path, s, n);
        path[n] = '\0';
        bool known =
            sha256_of(hx_jv_get(lfs, "oid"), sha) || sha256_of(hx_jv_get(lfs, "sha256"), sha);
        r = entry(ctx, path, (uint64_t)size, known ? sha : NULL);
        if (r < 0)
            hx_fail(err, r, "listing: stopped at '%.200s'", path);
    }
    hx_json_free(doc);
    return r;
}

static int first_page(const struct hx_endpoint *e, const char *repo, const char *commit,
                      char url[HX_URL_MAX], struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(HX_URL_MAX - 1);
    hx_buf_printf(&b, "%s/api/models/", e->url);
    hx_url_escape(&b, repo);
    hx_buf_puts(&b, "/tree/");
    hx_url_escape(&b, commit);
    hx_buf_puts(&b, "?recursive=true");
    int r = b.failed ? hx_fail(err, -EMSGSIZE, "address of the listing is too long") : 0;
    if (r == 0) {
        memcpy(url, b.data, b.len);
        url[b.len] = '\0';
    }
    hx_buf_done(&b);
    return r;
}

/* One page; *next is the address of the following one, "" if there is none. */
static int get_page(struct hx_transfer *t, const char *const *endpoint, const char *repo,
                    const char *commit, char url[HX_URL_MAX], struct hx_buf *body,
                    struct hx_error *err)
{
    char asked[HX_URL_MAX];
    struct wait w = {.body = *body};
    struct hx_range_request req = {.repo = repo,
                                   .commit = commit,
                                   .path = "(listing)",
                                   .endpoints = endpoint,
                                   .n_endpoints = 1,
                                   .n_bytes = MAX_PAGE,
                                   .avoid_host = -1,
                                   .data = on_data,
                                   .restart = on_restart,
                                   .done = on_done,
                                   .ctx = &w};
    struct hx_error e = {0};
    memcpy(asked, url, strlen(url) + 1);
    w.job = hx_transfer_add(t, &req, &e);
    if (!w.job) {
        if (err)
            *err = e;
        return e.code;
    }
    w.job->api = asked;
    int r = wait_for(t, &w, err);
    *body = w.body;
    url[0] = '\0';
    if (r < 0 || !w.next[0])
        return r;
    /* Pages come from the endpoint itself: its token goes there. */
    if (hx_url_join(asked, w.next, url) < 0 ||
        hx_remotes_host(&t->remotes, url) != hx_remotes_host(&t->remotes, asked))
        return hx_fail(err, -EPROTO, "listing: the next page is at another host");
    return 0;
}

int hx_transfer_list(struct hx_transfer *t, const char *repo, const char *commit,
                     int (*entry)(void *ctx, const char *path, uint64_t size,
                                  const uint8_t *sha256),
                     void *ctx, struct hx_error *err)
{
    char url[HX_URL_MAX];
    int r =
        hx_fail(err, -ENOTSUP,
                "listing of '%.200s': plain endpoints have none; a hub endpoint is needed", repo);
    for (size_t i = 0; i < t->remotes.n_endpoints; i++) {
        const struct hx_endpoint *e = &t->remotes.endpoints[i];
        size_t n_entries = 0;
        unsigned pages = 0;
        if (e->kind != HX_ENDPOINT_HUB)
            continue;
        struct hx_buf body = HX_BUF_INIT(MAX_PAGE);
        const char *name = e->name;
        r = first_page(e, repo, commit, url, err);
        while (r == 0 && url[0]) {
            if (++pages > MAX_PAGES) {
                r = hx_fail(err, -E2BIG, "listing: more than %u pages", MAX_PAGES);
                break;
            }
            r = get_page(t, &name, repo, commit, url, &body, err);
            if (r == 0)
                r = read_page(&body, &n_entries, entry, ctx, err);
        }
        hx_buf_done(&body);
        /* Another endpoint helps only if nothing was handed out yet. */
        if (r == 0 || n_entries > 0)
            break;
    }
    return r < 0 ? hx_wrap(err, r, "'%.200s' at %.40s", repo, commit) : 0;
}
