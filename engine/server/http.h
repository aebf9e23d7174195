/* HTTP/1.1 server: the only file behind this header that knows the HTTP library. One thread owns
 * everything here; other threads may only call hx_http_wake. */
#ifndef HX_SERVER_HTTP_H
#define HX_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/buf.h"

struct hx_http;
struct hx_exchange; /* one request and its response */

struct hx_http_ops {
    /* Headers are complete; the body is not read yet. May refuse by replying. */
    void (*headers)(void *user, struct hx_exchange *x);
    /* The request is complete. Reply now, or keep x and reply or stream later from `tick`. */
    void (*request)(void *user, struct hx_exchange *x);
    /* The client is gone or the response is out; x is freed after this call. */
    void (*done)(void *user, struct hx_exchange *x, bool client_gone);
    /* After every wake-up and at least once a second. now: microseconds, monotonic. */
    void (*tick)(void *user, int64_t now);
};

struct hx_http_options {
    int listen_fd; /* listening socket, taken over */
    int max_connections;
    int64_t max_body;
    int64_t idle_us; /* a connection without traffic is closed after this */
    int64_t slow_us; /* a client that takes nothing of a stream for this long counts as gone */
    const struct hx_http_ops *ops;
    void *user;
};

int hx_http_open(const struct hx_http_options *opt, struct hx_http **out,
                 struct hx_error *err) HX_MUST;
/* Serves until hx_http_stop. */
void hx_http_run(struct hx_http *h);
/* Any thread: makes run return; wake: makes tick run soon. */
void hx_http_stop(struct hx_http *h);
void hx_http_wake(struct hx_http *h);
/* http thread: no request is being read or answered. */
bool hx_http_is_quiet(const struct hx_http *h);
/* After run returned: closes every connection; hx_http_wake stays allowed until hx_http_close. */
void hx_http_disconnect(struct hx_http *h);
void hx_http_close(struct hx_http *h);

/* ---- one exchange, on the http thread ---- */
const char *hx_exchange_method(const struct hx_exchange *x);
const char *hx_exchange_path(const struct hx_exchange *x);
const char *hx_exchange_header(const struct hx_exchange *x, const char *name); /* NULL: absent */
int hx_exchange_n_headers(const struct hx_exchange *x);
size_t hx_exchange_header_bytes(const struct hx_exchange *x); /* request line and fields */
bool hx_exchange_http11(const struct hx_exchange *x);
const char *hx_exchange_id(const struct hx_exchange *x);
const struct hx_buf *hx_exchange_body(const struct hx_exchange *x);
bool hx_exchange_too_large(const struct hx_exchange *x); /* the body outgrew max_body and is cut */
void hx_exchange_set_user(struct hx_exchange *x, void *user);
void *hx_exchange_user(const struct hx_exchange *x);
/* An extra response header; before the reply. At most 8. */
void hx_exchange_add_header(struct hx_exchange *x, const char *name, const char *value);
/* Whole response; data is copied. Once an exchange. close_after: do not read the rest of the
 * request. */
void hx_exchange_reply(struct hx_exchange *x, int status, const char *type, const void *data,
                       size_t len, bool close_after);
bool hx_exchange_replied(const struct hx_exchange *x); /* a reply or a stream was begun */
int hx_exchange_status(const struct hx_exchange *x);
/* Chunked response: begin once, write any number of times, end. */
void hx_exchange_stream(struct hx_exchange *x, const char *type);
void hx_exchange_write(struct hx_exchange *x, const void *data, size_t len);
void hx_exchange_end(struct hx_exchange *x);
/* Gives up on the client. `done` follows. */
void hx_exchange_abort(struct hx_exchange *x);

#endif
