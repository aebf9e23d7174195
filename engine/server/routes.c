/* Routes: who may call, what answers, and the tick that moves generations on. */
#include <stdlib.h>
#include <string.h>

#include <hx/build_facts.h>

#include "base/json_write.h"
#include "server/generation.h"
#include "server/prep.h"
#include "server/security.h"

#define MAX_HEADERS      100
#define MAX_HEADER_BYTES (64u << 10)
#define LAST_BYTES_US    500000

enum { GET = 1, POST = 2 };

struct route;
typedef void (*handler)(struct hx_server *s, struct hx_exchange *x, const char *rest);

struct route {
    const char *path; /* without /v1; a trailing slash: the rest of the path is an argument */
    int methods;
    enum hx_job_kind kind; /* of POST */
    handler get;
};

/* What an exchange is waiting for. */
struct flow {
    struct hx_job *job;
    struct hx_generation *generation;
    const char *label; /* for metrics */
};

/* ---- plain answers --------------------------------------------------------------------------- */

static void reply_json(struct hx_exchange *x, int status, struct hx_buf *out)
{
    hx_exchange_reply(x, status, "application/json", out->data, out->len, false);
    hx_buf_done(out);
}

static void health(struct hx_server *s, struct hx_exchange *x, const char *rest)
{
    static const char *const names[] = {"loading", "ok", "draining", "failed"};
    int state = __atomic_load_n(&s->state, __ATOMIC_ACQUIRE);
    const char *status = names[state];
    struct hx_error reason = {0};
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    struct hx_json_writer w;
    int code = state == HX_SERVER_READY ? 200 : 503;
    (void)rest;
    if (state == HX_SERVER_READY) {
        enum hx_engine_health h = hx_engine_health(s->engine, &reason);
        status = h == HX_HEALTH_OK ? "ok" : h == HX_HEALTH_DEGRADED ? "degraded" : "failed";
        code = h == HX_HEALTH_FAILED ? 503 : 200;
    }
    hx_jw_init(&w, &out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "status");
    hx_jw_str(&w, status);
    if (state == HX_SERVER_LOADING) {
        hx_jw_key(&w, "stage");
        hx_jw_str(&w, "model");
        hx_jw_key(&w, "progress");
        hx_jw_double(&w, __atomic_load_n(&s->progress, __ATOMIC_RELAXED) / 1000.0);
    }
    if (reason.text[0]) {
        hx_jw_key(&w, "reason");
        hx_jw_str(&w, reason.text);
    }
    hx_jw_end_object(&w);
    reply_json(x, code, &out);
}

static const char *effort_table(const struct hx_server *s)
{
    return s->opt.effort_table == HX_EFFORT_RELEASE ? "release" : "legacy";
}

const char *hx_server_demo(const struct hx_server *s)
{
    bool cpu = strcmp(s->opt.backend, "cpu") == 0;
    if (s->info.demo)
        return "DEMO MODE: the weights of this model are made up, its text is noise";
    return cpu ? "DEMO MODE: the processor computes, no card is used" : "";
}

static void version(struct hx_server *s, struct hx_exchange *x, const char *rest)
{
    const char *const rows[][2] = {{"version", HX_BUILD_VERSION},
                                   {"build", HX_BUILD_VARIANT},
                                   {"engine", s->info.fingerprint},
                                   {"lock_id", s->info.lock_id},
                                   {"model_files", s->info.verification},
                                   {"effort_table", effort_table(s)},
                                   {"demo", hx_server_demo(s)}};
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    struct hx_json_writer w;
    (void)rest;
    hx_jw_init(&w, &out, false);
    hx_jw_object(&w);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        hx_jw_key(&w, rows[i][0]);
        hx_jw_str(&w, rows[i][1]);
    }
    hx_jw_end_object(&w);
    reply_json(x, 200, &out);
}

static void metrics(struct hx_server *s, struct hx_exchange *x, const char *rest)
{
    struct hx_buf out = HX_BUF_INIT(4 << 20);
    (void)rest;
    hx_metrics_text(&s->metrics,
                    __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == HX_SERVER_LOADING ? NULL
                                                                                      : s->engine,
                    effort_table(s), &out);
    hx_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len, false);
    hx_buf_done(&out);
}

static void models(struct hx_server *s, struct hx_exchange *x, const char *rest)
{
    hx_models_reply(s, x, rest);
}

static const struct route routes[] = {
    {"/health", GET, 0, health},
    {"/metrics", GET, 0, metrics},
    {"/version", GET, 0, version},
    {"/models", GET, 0, models},
    {"/models/", GET, 0, models},
    {"/chat/completions", POST, HX_JOB_CHAT, NULL},
    {"/completions", POST, HX_JOB_COMPLETION, NULL},
    {"/tokenize", POST, HX_JOB_TOKENIZE, NULL},
    {"/detokenize", POST, HX_JOB_DETOKENIZE, NULL},
};

#define N_ROUTES (sizeof(routes) / sizeof(routes[0]))

/* *rest: what follows a prefix route, NULL otherwise. */
static const struct route *find_route(const char *path, const char **rest)
{
    size_t n;
    *rest = NULL;
    if (strncmp(path, "/v1/", 4) == 0)
        path += 3;
    n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (size_t i = 0; i < N_ROUTES; i++) {
        size_t k = strlen(routes[i].path);
        if (k == n && memcmp(path, routes[i].path, n) == 0)
            return &routes[i];
        if (routes[i].path[k - 1] == '/' && n > k && memcmp(path, routes[i].path, k) == 0) {
            *rest = path + k;
            return &routes[i];
        }
    }
    return NULL;
}

/* ---- who may call ---------------------------------------------------------------------------- */

static bool refuse(struct hx_exchange *x, int status, const char *code, const char *message)
{
    hx_reply_refusal(x, status, code, NULL, message);
    return true;
}

static bool refuse_form(struct hx_exchange *x)
{
    if (hx_exchange_n_headers(x) > MAX_HEADERS)
        return refuse(x, 431, "headers_too_large", "A request may have 100 header fields.");
    if (hx_exchange_header_bytes(x) > MAX_HEADER_BYTES)
        return refuse(x, 431, "headers_too_large", "A request may have 64 KiB of header.");
    if (hx_exchange_header(x, "Transfer-Encoding") && hx_exchange_header(x, "Content-Length"))
        return refuse(x, 400, "invalid_value",
                      "A request must not have both Transfer-Encoding and Content-Length.");
    return false;
}

static bool refuse_origin(struct hx_server *s, struct hx_exchange *x)
{
    const char *host = hx_exchange_header(x, "Host"), *origin = hx_exchange_header(x, "Origin"),
               *site = hx_exchange_header(x, "Sec-Fetch-Site");
    if (!s->key[0]) {
        if (!host && hx_exchange_http11(x))
            return refuse(x, 400, "invalid_value", "The Host header is required.");
        if (host && !hx_host_allowed(host, s->opt.allowed_hosts))
            return refuse(x, 403, "host_not_allowed",
                          "The Host header names none of this server's hosts.");
    }
    if (origin && hx_word_in(origin, strlen(origin), s->opt.allowed_origins) &&
        strcmp(origin, "null") != 0) {
        hx_exchange_add_header(x, "Access-Control-Allow-Origin", origin);
        hx_exchange_add_header(x, "Vary", "Origin");
        return false;
    }
    if (origin || (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0))
        return refuse(x, 403, "origin_not_allowed", "Calls from this web origin are not allowed.");
    return false;
}

static bool refuse_key(struct hx_server *s, struct hx_exchange *x, const struct route *r)
{
    if (!s->key[0] || (r && r->get == health) || (r && r->get == metrics && !s->opt.metrics_auth))
        return false;
    if (hx_bearer_matches(hx_exchange_header(x, "Authorization"), s->key))
        return false;
    hx_exchange_add_header(x, "WWW-Authenticate", "Bearer");
    return refuse(x, 401, "invalid_api_key", "The API key is missing or wrong.");
}

static bool refuse_method(struct hx_exchange *x, const struct route *r)
{
    const char *m = hx_exchange_method(x);
    if (!r)
        return refuse(x, 404, "unknown_url", "There is no such path.");
    bool get = strcmp(m, "GET") == 0 || strcmp(m, "HEAD") == 0;
    if ((get && (r->methods & GET)) || (strcmp(m, "POST") == 0 && (r->methods & POST)))
        return false;
    hx_exchange_add_header(x, "Allow", r->methods & GET ? "GET, HEAD" : "POST");
    return refuse(x, 405, "method_not_allowed", "This path does not have that method.");
}

static bool refuse_body(struct hx_server *s, struct hx_exchange *x)
{
    const char *encoding = hx_exchange_header(x, "Content-Encoding"),
               *length = hx_exchange_header(x, "Content-Length");
    if (strcmp(hx_exchange_method(x), "POST") != 0)
        return false;
    if (encoding && strcmp(encoding, "identity") != 0)
        return refuse(x, 415, "unsupported_media_type", "Content-Encoding must be identity.");
    if (!hx_type_is_json(hx_exchange_header(x, "Content-Type")))
        return refuse(x, 415, "unsupported_media_type", "Content-Type must be application/json.");
    if (length && strtoull(length, NULL, 10) > (unsigned long long)s->opt.max_body)
        return refuse(x, 413, "request_too_large", "The request body is above the size limit.");
    return false;
}

/* A browser's question before a call from an allowed origin. */
static bool answer_preflight(struct hx_exchange *x)
{
    if (strcmp(hx_exchange_method(x), "OPTIONS") != 0 || !hx_exchange_header(x, "Origin"))
        return false;
    hx_exchange_add_header(x, "Access-Control-Allow-Methods", "GET, POST");
    hx_exchange_add_header(x, "Access-Control-Allow-Headers", "authorization, content-type");
    hx_exchange_reply(x, 204, "text/plain", "", 0, false);
    return true;
}

static void on_headers(void *user, struct hx_exchange *x)
{
    struct hx_server *s = user;
    const char *rest;
    const struct route *r = find_route(hx_exchange_path(x), &rest);
    struct flow *f = calloc(1, sizeof(*f));
    hx_exchange_set_user(x, f);
    if (!f) {
        refuse(x, 500, "internal_error", "internal error");
        return;
    }
    f->label = r ? r->path : "other";
    if (refuse_form(x) || refuse_origin(s, x) || answer_preflight(x) || refuse_key(s, x, r) ||
        refuse_method(x, r))
        return;
    refuse_body(s, x);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool refuse_state(struct hx_server *s, struct hx_exchange *x)
{
    struct hx_error reason = {0};
    switch (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE)) {
    case HX_SERVER_LOADING: return refuse(x, 503, "loading", "The model is being loaded.");
    case HX_SERVER_DRAINING: return refuse(x, 503, "draining", "The server is stopping.");
    case HX_SERVER_READY:
        if (hx_engine_health(s->engine, &reason) != HX_HEALTH_FAILED)
            return false;
        break;
    default: break;
    }
    return refuse(x, 503, "engine_failed", "The engine has failed.");
}

static void queue_job(struct hx_server *s, struct hx_exchange *x, enum hx_job_kind kind)
{
    struct flow *f = hx_exchange_user(x);
    const struct hx_buf *body = hx_exchange_body(x);
    struct hx_job *job = calloc(1, sizeof(*job));
    struct hx_error err = {0};
    int r = -ENOMEM;
    if (job)
        job->body = malloc(body->len + 1);
    if (job && job->body) {
        if (body->len)
            memcpy(job->body, body->data, body->len);
        job->len = body->len;
        job->kind = kind;
        job->x = x;
        job->answer = HX_BUF_INIT((size_t)1 << 30);
        strncpy(job->id, hx_exchange_id(x), sizeof(job->id) - 1);
        r = hx_prep_submit(s->prep, job);
    }
    if (r == 0) {
        f->job = job;
        return;
    }
    hx_job_free(job);
    hx_fail_param(&err, r, NULL, r == -EAGAIN ? "queue_full" : NULL,
                  "Too many requests are waiting.");
    hx_reply_failure(s, x, &err);
}

static void on_request(void *user, struct hx_exchange *x)
{
    struct hx_server *s = user;
    const char *rest;
    const struct route *r = find_route(hx_exchange_path(x), &rest);
    if (hx_exchange_too_large(x)) {
        refuse(x, 413, "request_too_large", "The request body is above the size limit.");
        return;
    }
    if (r->get == models && refuse_state(s, x))
        return;
    if (r->get) {
        r->get(s, x, rest);
        return;
    }
    if (!refuse_state(s, x))
        queue_job(s, x, r->kind);
}

static void unlink_generation(struct hx_server *s, struct hx_generation *g)
{
    if (g->prev)
        g->prev->next = g->next;
    else
        s->running = g->next;
    if (g->next)
        g->next->prev = g->prev;
}

static void on_done(void *user, struct hx_exchange *x, bool client_gone)
{
    struct hx_server *s = user;
    struct flow *f = hx_exchange_user(x);
    if (!f)
        return;
    if (hx_exchange_replied(x))
        hx_metrics_response(&s->metrics, f->label, hx_exchange_status(x));
    if (f->job) {
        f->job->x = NULL;
        __atomic_store_n(&f->job->cancelled, 1, __ATOMIC_RELEASE);
        s->metrics.cancelled_tokenising += client_gone;
    }
    if (f->generation) {
        hx_generation_gone(f->generation);
        unlink_generation(s, f->generation);
        hx_generation_free(f->generation);
    }
    free(f);
}

/* ---- tick ------------------------------------------------------------------------------------ */

static void finish_job(struct hx_server *s, struct hx_job *job, int64_t now)
{
    struct hx_exchange *x = job->x;
    if (x) {
        struct flow *f = hx_exchange_user(x);
        f->job = NULL;
        if (job->status < 0) {
            hx_reply_failure(s, x, &job->err);
        } else if (!job->generation) {
            hx_exchange_reply(x, 200, "application/json", job->answer.data, job->answer.len, false);
        } else {
            struct hx_generation *g = f->generation = job->generation;
            job->generation = NULL;
            g->next = s->running;
            if (g->next)
                g->next->prev = g;
            s->running = g;
            hx_generation_attach(g, x, now);
        }
    }
    hx_job_free(job);
}

static void end_generation(struct hx_server *s, struct hx_generation *g)
{
    struct flow *f = hx_exchange_user(g->x);
    f->generation = NULL;
    unlink_generation(s, g);
    hx_generation_free(g);
}

static void on_tick(void *user, int64_t now)
{
    struct hx_server *s = user;
    int64_t until = __atomic_load_n(&s->drain_until, __ATOMIC_ACQUIRE);
    bool late = until && now >= until;
    struct hx_error stopping = {0};
    for (struct hx_job *job; s->prep && (job = hx_prep_finished(s->prep));)
        finish_job(s, job, now);
    if (late)
        hx_fail_param(&stopping, -ESHUTDOWN, NULL, "draining", "The server is stopping.");
    for (struct hx_generation *g = s->running, *next; g; g = next) {
        next = g->next;
        if (late)
            hx_generation_fail(g, &stopping);
        if (late || !hx_generation_pump(g, now))
            end_generation(s, g);
    }
    /* A little longer, so that the last bytes leave and late callers read why. */
    if (until && (now >= until + LAST_BYTES_US || (!s->running && hx_http_is_quiet(s->http))))
        hx_http_stop(s->http);
}

const struct hx_http_ops hx_server_http_ops = {
    .headers = on_headers, .request = on_request, .done = on_done, .tick = on_tick};
