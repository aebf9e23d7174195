/* HTTP through libmicrohttpd in external-loop mode. While a connection waits for the engine it is
 * suspended; the library does not see a suspended connection close, so its socket is watched here
 * for RDHUP. */
#include "server/http.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

#define HEADER_MEMORY                                                                              \
    (80u << 10) /* the library's pool of one connection: bounds the header size                    \
                 */
#define MAX_EXTRA 8
#define BLOCK     (16u << 10)
#define COMPACT   (64u << 10) /* sent bytes kept in front of the output before it is moved */

struct hx_exchange {
    struct hx_http *http;
    struct MHD_Connection *conn;
    char *method, *path;
    char id[129];
    bool http11, handed, suspended, watched, gone, begun, streaming, ended, close_after, queued,
        too_large;
    struct hx_buf body, out;
    size_t sent; /* bytes of out that the socket took */
    int64_t stuck_since;
    int status;
    char type[64];
    struct {
        char name[48], value[256];
    } extra[MAX_EXTRA];
    int n_extra;
    void *user;
    struct hx_exchange *prev, *next;
};

struct hx_http {
    struct MHD_Daemon *daemon;
    struct hx_http_options opt;
    int epfd, wakefd, library_fd;
    bool stop;
    uint64_t n_ids;
    struct hx_exchange *all;
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- suspend, resume, watch
 * -------------------------------------------------------------------------- */

static int socket_of(const struct hx_exchange *x)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(x->conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    return i ? i->connect_fd : -1;
}

static void suspend(struct hx_exchange *x)
{
    if (x->suspended)
        return;
    x->suspended = true;
    MHD_suspend_connection(x->conn);
    struct epoll_event ev = {.events = EPOLLRDHUP, .data.ptr = x};
    x->watched = epoll_ctl(x->http->epfd, EPOLL_CTL_ADD, socket_of(x), &ev) == 0;
}

static void unwatch(struct hx_exchange *x)
{
    if (x->watched)
        epoll_ctl(x->http->epfd, EPOLL_CTL_DEL, socket_of(x), NULL);
    x->watched = false;
}

static void resume(struct hx_exchange *x)
{
    if (!x->suspended)
        return;
    unwatch(x);
    x->suspended = false;
    MHD_resume_connection(x->conn);
}

/* ---- the library's callbacks
 * ------------------------------------------------------------------------- */

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct hx_exchange *x = cls;
    (void)pos;
    if (x->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->out.len - x->sent;
    if (n == 0) {
        x->stuck_since = 0;
        if (x->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        suspend(x);
        return 0;
    }
    n = n < max ? n : max;
    memcpy(buf, x->out.data + x->sent, n);
    x->sent += n;
    x->stuck_since = x->sent < x->out.len ? now_us() : 0;
    if (x->sent == x->out.len || x->sent > COMPACT) {
        hx_buf_consume(&x->out, x->sent);
        x->sent = 0;
    }
    return (ssize_t)n;
}

static enum MHD_Result queue_response(struct hx_exchange *x)
{
    struct MHD_Response *r =
        x->streaming
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, x, NULL)
            : MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", x->type);
    MHD_add_response_header(r, "x-request-id", x->id);
    for (int i = 0; i < x->n_extra; i++)
        MHD_add_response_header(r, x->extra[i].name, x->extra[i].value);
    if (x->close_after)
        MHD_add_response_header(r, "Connection", "close");
    enum MHD_Result ok = MHD_queue_response(x->conn, (unsigned)x->status, r);
    MHD_destroy_response(r);
    x->queued = ok == MHD_YES;
    /* A stream is silent while the engine works; slow readers are found by stuck_since. */
    MHD_set_connection_option(x->conn, MHD_CONNECTION_OPTION_TIMEOUT,
                              x->streaming ? 0u : (unsigned)(x->http->opt.idle_us / 1000000));
    return ok;
}

static bool usable_id(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < 0x20 || s[i] > 0x7E)
            return false;
    }
    return n >= 1 && n <= 128;
}

static struct hx_exchange *begin(struct hx_http *h, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version)
{
    struct hx_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->http = h;
    x->conn = conn;
    x->method = strdup(method);
    x->path = strdup(url);
    if (!x->method || !x->path) {
        free(x->method);
        free(x->path);
        free(x);
        return NULL;
    }
    x->http11 = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
    x->body = HX_BUF_INIT((size_t)h->opt.max_body);
    x->out = HX_BUF_INIT((size_t)1 << 31);
    const char *id = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "x-request-id");
    if (usable_id(id))
        snprintf(x->id, sizeof(x->id), "%s", id);
    else
        snprintf(x->id, sizeof(x->id), "req-%llx-%llx", (unsigned long long)now_us(),
                 (unsigned long long)++h->n_ids);
    x->next = h->all;
    if (h->all)
        h->all->prev = x;
    h->all = x;
    return x;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_size, void **con_cls)
{
    struct hx_http *h = cls;
    struct hx_exchange *x = *con_cls;
    if (!x) {
        *con_cls = x = begin(h, conn, url, method, version);
        if (!x)
            return MHD_NO;
        h->opt.ops->headers(h->opt.user, x);
        return x->begun ? queue_response(x) : MHD_YES;
    }
    if (*upload_size > 0) {
        /* A chunked body may outgrow the limit; the library takes a reply only at its end. */
        if (hx_buf_append(&x->body, upload, *upload_size) < 0)
            x->too_large = true;
        *upload_size = 0;
        return MHD_YES;
    }
    if (!x->handed) {
        x->handed = true;
        h->opt.ops->request(h->opt.user, x);
        if (!x->begun) {
            suspend(x);
            return MHD_YES;
        }
    }
    if (x->gone)
        return MHD_NO;
    return x->begun && !x->queued ? queue_response(x) : MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode toe)
{
    struct hx_http *h = cls;
    struct hx_exchange *x = *con_cls;
    (void)conn;
    if (!x)
        return;
    *con_cls = NULL;
    unwatch(x);
    h->opt.ops->done(h->opt.user, x, x->gone || toe != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (x->prev)
        x->prev->next = x->next;
    else
        h->all = x->next;
    if (x->next)
        x->next->prev = x->prev;
    hx_buf_done(&x->body);
    hx_buf_done(&x->out);
    free(x->method);
    free(x->path);
    free(x);
}

static void library_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof(line), fmt, ap);
    hx_log(HX_LOG_DEBUG, "server", "http: %s", line);
}

/* ---- life cycle
 * -------------------------------------------------------------------------------------- */

int hx_http_open(const struct hx_http_options *opt, struct hx_http **out, struct hx_error *err)
{
    struct hx_http *h = calloc(1, sizeof(*h));
    if (!h)
        return hx_fail(err, -ENOMEM, "out of memory");
    h->opt = *opt;
    h->epfd = epoll_create1(EPOLL_CLOEXEC);
    h->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_access, h,
        MHD_OPTION_EXTERNAL_LOGGER, library_log, NULL, MHD_OPTION_LISTEN_SOCKET, opt->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)opt->max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(opt->idle_us / 1000000), MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (h->epfd < 0 || h->wakefd < 0 || !h->daemon) {
        int e = errno;
        hx_http_close(h);
        return hx_fail(err, -EIO, "cannot start the HTTP server: %s", strerror(e));
    }
    h->library_fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct epoll_event lib = {.events = EPOLLIN, .data.ptr = &h->library_fd};
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &h->wakefd};
    epoll_ctl(h->epfd, EPOLL_CTL_ADD, h->library_fd, &lib);
    epoll_ctl(h->epfd, EPOLL_CTL_ADD, h->wakefd, &wake);
    *out = h;
    return 0;
}

static void drain_wake(struct hx_http *h)
{
    uint64_t n;
    ssize_t ignored = read(h->wakefd, &n, sizeof(n));
    (void)ignored;
}

/* Whether the stream still grows or has ended does not matter: its client holds a connection. */
static void abort_slow(struct hx_http *h, int64_t now)
{
    for (struct hx_exchange *x = h->all; x; x = x->next) {
        if (x->stuck_since && now - x->stuck_since > h->opt.slow_us)
            hx_exchange_abort(x);
    }
}

void hx_http_run(struct hx_http *h)
{
    while (!__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE)) {
        struct epoll_event ev[64];
        MHD_UNSIGNED_LONG_LONG timeout = 1000;
        if (MHD_get_timeout(h->daemon, &timeout) != MHD_YES || timeout > 1000)
            timeout = 1000;
        int n = epoll_wait(h->epfd, ev, 64, (int)timeout);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &h->wakefd) {
                drain_wake(h);
            } else if (ev[i].data.ptr != &h->library_fd) {
                struct hx_exchange *x = ev[i].data.ptr;
                if (x->suspended)
                    hx_exchange_abort(x);
            }
        }
        int64_t now = now_us();
        abort_slow(h, now);
        h->opt.ops->tick(h->opt.user, now);
        MHD_run(h->daemon);
    }
}

void hx_http_stop(struct hx_http *h)
{
    __atomic_store_n(&h->stop, true, __ATOMIC_RELEASE);
    hx_http_wake(h);
}

void hx_http_wake(struct hx_http *h)
{
    uint64_t one = 1;
    ssize_t ignored = write(h->wakefd, &one, sizeof(one));
    (void)ignored;
}

bool hx_http_is_quiet(const struct hx_http *h)
{
    return !h->all;
}

void hx_http_disconnect(struct hx_http *h)
{
    if (!h->daemon)
        return;
    /* The library wants every suspended connection resumed before it stops. */
    for (struct hx_exchange *x = h->all; x; x = x->next) {
        x->gone = true;
        resume(x);
    }
    MHD_run(h->daemon);
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
}

void hx_http_close(struct hx_http *h)
{
    if (!h)
        return;
    hx_http_disconnect(h);
    if (h->epfd >= 0)
        close(h->epfd);
    if (h->wakefd >= 0)
        close(h->wakefd);
    free(h);
}

/* ---- exchange
 * ---------------------------------------------------------------------------------------- */

const char *hx_exchange_method(const struct hx_exchange *x)
{
    return x->method;
}

const char *hx_exchange_path(const struct hx_exchange *x)
{
    return x->path;
}

const char *hx_exchange_header(const struct hx_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, name);
}

int hx_exchange_n_headers(const struct hx_exchange *x)
{
    return MHD_get_connection_values(x->conn, MHD_HEADER_KIND, NULL, NULL);
}

size_t hx_exchange_header_bytes(const struct hx_exchange *x)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(x->conn, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return i ? i->header_size : 0;
}

bool hx_exchange_http11(const struct hx_exchange *x)
{
    return x->http11;
}

const char *hx_exchange_id(const struct hx_exchange *x)
{
    return x->id;
}

const struct hx_buf *hx_exchange_body(const struct hx_exchange *x)
{
    return &x->body;
}

bool hx_exchange_too_large(const struct hx_exchange *x)
{
    return x->too_large;
}

void hx_exchange_set_user(struct hx_exchange *x, void *user)
{
    x->user = user;
}

void *hx_exchange_user(const struct hx_exchange *x)
{
    return x->user;
}

void hx_exchange_add_header(struct hx_exchange *x, const char *name, const char *value)
{
    if (x->n_extra == MAX_EXTRA)
        return;
    snprintf(x->extra[x->n_extra].name, sizeof(x->extra[0].name), "%s", name);
    snprintf(x->extra[x->n_extra].value, sizeof(x->extra[0].value), "%s", value);
    x->n_extra++;
}

static void start(struct hx_exchange *x, int status, const char *type, bool streaming)
{
    x->begun = true;
    x->status = status;
    x->streaming = streaming;
    snprintf(x->type, sizeof(x->type), "%s", type);
}

void hx_exchange_reply(struct hx_exchange *x, int status, const char *type, const void *data,
                       size_t len, bool close_after)
{
    if (x->begun)
        return;
    start(x, status, type, false);
    x->close_after = close_after;
    hx_buf_append(&x->out, data, len);
    resume(x);
}

bool hx_exchange_replied(const struct hx_exchange *x)
{
    return x->begun;
}

int hx_exchange_status(const struct hx_exchange *x)
{
    return x->status;
}

void hx_exchange_stream(struct hx_exchange *x, const char *type)
{
    if (x->begun)
        return;
    start(x, 200, type, true);
    resume(x);
}

void hx_exchange_write(struct hx_exchange *x, const void *data, size_t len)
{
    if (x->gone || len == 0)
        return;
    if (hx_buf_append(&x->out, data, len) < 0) {
        hx_exchange_abort(x);
        return;
    }
    if (x->stuck_since == 0)
        x->stuck_since = now_us();
    resume(x);
}

void hx_exchange_end(struct hx_exchange *x)
{
    x->ended = true;
    resume(x);
}

void hx_exchange_abort(struct hx_exchange *x)
{
    if (x->gone)
        return;
    x->gone = true;
    if (x->suspended) {
        resume(x);
        return;
    }
    /* Active but stuck: closing both directions makes the library notice. */
    int fd = socket_of(x);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
}
