/* Requests against a small server on the loopback address. What servers do wrong is tested in
 * tests/fetch; here: callbacks, ends, pauses, and a clock that jumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fetch/transfer.h"

#define SIZE 3000000u /* of every file; byte i is i % 251 */

static struct {
    int listener;
    unsigned port;
    atomic_uint requests, connections;
    atomic_bool mute; /* takes requests and says nothing */
    pthread_t thread;
} server;

static struct hx_fetch_clock fake; /* added to the real clock */

static void test_clock(struct hx_fetch_clock *c)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    *c = (struct hx_fetch_clock){now + fake.mono, now + fake.boot, now + fake.wall};
}

/* ---- server ---------------------------------------------------------------------------------- */

static bool answer(int fd, const char *head)
{
    static const char no[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    char text[256];
    unsigned long first, last;
    const char *range = strstr(head, "Range: bytes=");
    atomic_fetch_add(&server.requests, 1);
    while (atomic_load(&server.mute))
        usleep(10000);
    if (strstr(head, "/gone"))
        return send(fd, no, sizeof(no) - 1, MSG_NOSIGNAL) > 0;
    if (!range || sscanf(range, "Range: bytes=%lu-%lu", &first, &last) != 2)
        return false;
    if (last >= SIZE)
        last = SIZE - 1;
    unsigned char *body = malloc(last - first + 1);
    for (unsigned long i = first; body && i <= last; i++)
        body[i - first] = (unsigned char)(i % 251);
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes "
                     "%lu-%lu/%u\r\nContent-Length: %lu\r\n\r\n",
                     first, last, SIZE, last - first + 1);
    bool ok = body && send(fd, text, (size_t)n, MSG_NOSIGNAL) == n;
    for (size_t at = 0; ok && at < last - first + 1;) {
        ssize_t sent = send(fd, body + at, last - first + 1 - at, MSG_NOSIGNAL);
        ok = sent > 0;
        at += ok ? (size_t)sent : 0;
    }
    free(body);
    return ok;
}

static void *serve_connection(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char head[4096];
    size_t n = 0;
    for (;;) {
        ssize_t got = recv(fd, head + n, sizeof(head) - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n")) {
            if (!answer(fd, head))
                break;
            n = 0;
        }
    }
    close(fd);
    return NULL;
}

static void *serve(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_t t;
        int fd = accept(server.listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        atomic_fetch_add(&server.connections, 1);
        if (pthread_create(&t, NULL, serve_connection, (void *)(intptr_t)fd) == 0)
            pthread_detach(t);
        else
            close(fd);
    }
}

static int start_server(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    (void)state;
    server.listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server.listener, (struct sockaddr *)&a, len) < 0 || listen(server.listener, 16) < 0 ||
        getsockname(server.listener, (struct sockaddr *)&a, &len) < 0)
        return -1;
    server.port = ntohs(a.sin_port);
    return pthread_create(&server.thread, NULL, serve, NULL);
}

static int stop_server(void **state)
{
    (void)state;
    atomic_store(&server.mute, false);
    shutdown(server.listener, SHUT_RDWR);
    pthread_join(server.thread, NULL);
    close(server.listener);
    return 0;
}

/* ---- client ---------------------------------------------------------------------------------- */

struct piece {
    uint64_t begin, got;
    int64_t there; /* what restart() says */
    unsigned restarts, ended;
    int refuse; /* what data() returns after `limit` bytes */
    uint64_t limit;
    int result, host;
    char text[256];
    bool wrong;
};

static int64_t on_restart(void *ctx)
{
    struct piece *p = ctx;
    p->got = p->there > 0 ? (uint64_t)p->there : 0;
    /* "Not now" holds once. */
    if (p->restarts++ == 0 && p->there == -EAGAIN) {
        p->there = 0;
        return -EAGAIN;
    }
    return p->there;
}

static int on_data(void *ctx, const void *data, size_t n)
{
    struct piece *p = ctx;
    const unsigned char *b = data;
    if (p->refuse && p->got + n > p->limit)
        return p->refuse;
    for (size_t i = 0; i < n; i++)
        p->wrong |= b[i] != (p->begin + p->got + i) % 251;
    p->got += n;
    return 0;
}

static void on_done(void *ctx, int r, int host, const struct hx_error *err)
{
    struct piece *p = ctx;
    p->ended++;
    p->result = r;
    p->host = host;
    snprintf(p->text, sizeof(p->text), "%s", err ? err->text : "");
}

static char endpoint_name[] = "here", endpoint_url[64];
static struct hx_endpoint endpoint = {endpoint_name, endpoint_url, HX_ENDPOINT_PLAIN};

static struct hx_transfer *open_transfer(uint64_t rate)
{
    struct hx_transfer *t;
    snprintf(endpoint_url, sizeof(endpoint_url), "http://127.0.0.1:%u", server.port);
    struct hx_transfer_options o = {.endpoints = &endpoint,
                                    .n_endpoints = 1,
                                    .rate = rate,
                                    .backoff_ms = 10,
                                    .clock = test_clock};
    assert_int_equal(hx_transfer_open(&o, &t, NULL), 0);
    return t;
}

static int submit(struct hx_transfer *t, struct piece *p, const char *path, uint64_t begin,
                  uint64_t n)
{
    p->begin = begin;
    struct hx_range_request req = {.repo = "o/n",
                                   .commit = "c",
                                   .path = path,
                                   .begin = begin,
                                   .n_bytes = n,
                                   .size = SIZE,
                                   .avoid_host = -1,
                                   .restart = on_restart,
                                   .data = on_data,
                                   .done = on_done,
                                   .ctx = p};
    return hx_transfer_submit(t, &req, NULL);
}

/* At most ten seconds. */
static void run_until_end(struct hx_transfer *t, const struct piece *p)
{
    for (int i = 0; i < 1000 && !p->ended; i++)
        assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
    assert_int_equal(p->ended, 1);
}

static void ranges_arrive_in_order_and_whole(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p[8] = {0};
    struct hx_transfer_stats s;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(submit(t, &p[i], i % 2 ? "a" : "b", i * 300000, 300000), 0);
    for (unsigned i = 0; i < 8; i++) {
        run_until_end(t, &p[i]);
        assert_int_equal(p[i].result, 0);
        assert_int_equal(p[i].got, 300000);
        assert_false(p[i].wrong);
        assert_int_equal(p[i].restarts, 1);
    }
    hx_transfer_stats(t, &s);
    assert_int_equal(s.bytes, 2400000);
    assert_string_equal(hx_transfer_host_name(t, p[0].host), s.host);
    assert_string_equal(hx_transfer_host_name(t, -1), "?");
    hx_transfer_close(t);
}

static void an_attempt_begins_where_restart_says(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p = {.there = 1000}, all = {.there = 5000}, later = {.there = -EAGAIN};
    struct piece never = {.there = -EIO};
    assert_int_equal(submit(t, &p, "a", 77, 5000), 0);
    assert_int_equal(submit(t, &all, "a", 77, 5000), 0);
    assert_int_equal(submit(t, &later, "a", 0, 5000), 0);
    assert_int_equal(submit(t, &never, "a", 0, 5000), 0);
    run_until_end(t, &p);
    assert_int_equal(p.got, 5000);
    assert_false(p.wrong);
    run_until_end(t, &all);
    assert_int_equal(all.result, 0);
    run_until_end(t, &later);
    assert_int_equal(later.restarts, 2);
    assert_int_equal(later.got, 5000);
    run_until_end(t, &never);
    assert_int_equal(never.result, -EIO);
    hx_transfer_close(t);
}

static void data_may_pause_and_refuse(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece slow = {.refuse = -EAGAIN, .limit = 500000},
                 bad = {.refuse = -ENOSPC, .limit = 100000};
    assert_int_equal(submit(t, &slow, "a", 0, SIZE), 0);
    assert_int_equal(submit(t, &bad, "b", 0, SIZE), 0);
    run_until_end(t, &bad);
    assert_int_equal(bad.result, -ENOSPC);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
        hx_transfer_resume(t);
    }
    assert_int_equal(slow.ended, 0);
    assert_true(slow.got > 0 && slow.got <= 500000);
    slow.refuse = 0;
    hx_transfer_resume(t);
    run_until_end(t, &slow);
    assert_int_equal(slow.got, SIZE);
    assert_int_equal(slow.restarts, 1);
    assert_false(slow.wrong);
    hx_transfer_close(t);
}

static void impossible_requests(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p = {0};
    assert_int_equal(submit(t, &p, "a", 0, 0), -EINVAL);
    assert_int_equal(submit(t, &p, "a", SIZE, 1), -EINVAL);
    assert_int_equal(submit(t, &p, "a", 1, SIZE), -EINVAL);
    assert_int_equal(submit(t, &p, "a", UINT64_MAX, 5), -EINVAL);
    const char *other = "elsewhere";
    struct hx_range_request req = {.repo = "r",
                                   .commit = "c",
                                   .path = "p",
                                   .endpoints = &other,
                                   .n_endpoints = 1,
                                   .n_bytes = 1};
    struct hx_error err = {0};
    assert_int_equal(hx_transfer_submit(t, &req, &err), -EINVAL);
    assert_non_null(strstr(err.text, "elsewhere"));
    assert_int_equal(p.ended, 0);
    hx_transfer_close(t);
}

static void a_file_that_is_gone(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p = {0};
    assert_int_equal(submit(t, &p, "gone", 0, 5), 0);
    run_until_end(t, &p);
    assert_int_equal(p.result, -ENOENT);
    assert_non_null(strstr(p.text, "gone"));
    assert_non_null(strstr(p.text, "404"));
    hx_transfer_close(t);
}

static void hold_keeps_requests(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p = {0};
    struct hx_transfer_stats s;
    unsigned before = atomic_load(&server.requests);
    hx_transfer_hold(t, true);
    assert_int_equal(submit(t, &p, "a", 0, 1000), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(hx_transfer_poll(t, -1, 5, NULL), 0);
    hx_transfer_stats(t, &s);
    assert_int_equal(s.active, 0);
    assert_int_equal(s.queued, 1);
    assert_int_equal(atomic_load(&server.requests), before);
    hx_transfer_hold(t, false);
    run_until_end(t, &p);
    assert_int_equal(p.got, 1000);
    hx_transfer_close(t);
}

static void close_ends_everything_once(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p[3] = {0};
    atomic_store(&server.mute, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(submit(t, &p[i], "a", 0, 1000), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
    hx_transfer_close(t);
    atomic_store(&server.mute, false);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p[i].ended, 1);
        assert_int_equal(p[i].result, -ECANCELED);
    }
    hx_transfer_close(NULL);
}

/* A request hangs on a connection that died with the sleep; the clock says so long before a
 * time-out does. */
static void after_a_sleep_all_connections_are_new(void **state)
{
    (void)state;
    static const struct hx_fetch_clock jumps[] = {
        {.boot = 3600, .wall = 3600}, /* slept an hour */
        {.wall = 86400},              /* the date was set */
        {.wall = -86400},
    };
    for (size_t i = 0; i < 3; i++) {
        fake = (struct hx_fetch_clock){0};
        struct hx_transfer *t = open_transfer(0);
        struct piece p = {0};
        atomic_store(&server.mute, true);
        assert_int_equal(submit(t, &p, "a", 0, 1000), 0);
        unsigned before = atomic_load(&server.requests),
                 connections = atomic_load(&server.connections);
        for (int k = 0; k < 500 && atomic_load(&server.requests) == before; k++)
            assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
        fake = jumps[i];
        assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
        atomic_store(&server.mute, false);
        run_until_end(t, &p);
        assert_int_equal(p.result, 0);
        assert_int_equal(p.restarts, 2);
        assert_int_equal(atomic_load(&server.connections), connections + 2);
        hx_transfer_close(t);
    }
    fake = (struct hx_fetch_clock){0};
}

static void small_changes_of_the_clock_are_nothing(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct piece p = {.refuse = -EAGAIN, .limit = 0};
    assert_int_equal(submit(t, &p, "a", 0, 1000), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
    fake = (struct hx_fetch_clock){.wall = 200};
    p.refuse = 0;
    assert_int_equal(hx_transfer_poll(t, -1, 10, NULL), 0);
    hx_transfer_resume(t);
    run_until_end(t, &p);
    assert_int_equal(p.restarts, 1);
    hx_transfer_close(t);
    fake = (struct hx_fetch_clock){0};
}

static void parts_of_files_for_metadata(void **state)
{
    (void)state;
    struct hx_transfer *t = open_transfer(0);
    struct hx_file_facts facts;
    struct hx_error err = {0};
    uint8_t *data;
    size_t n;
    assert_int_equal(hx_transfer_get(t, "o/n", "c", "a", SIZE - 100, 4096, &facts, &data, &n, NULL),
                     0);
    assert_int_equal(n, 100);
    assert_int_equal(facts.size, SIZE);
    assert_int_equal(data[0], (SIZE - 100) % 251);
    assert_int_equal(data[n], 0);
    free(data);
    assert_int_equal(hx_transfer_get(t, "o/n", "c", "gone", 0, 10, NULL, &data, &n, &err), -ENOENT);
    assert_int_equal(hx_transfer_list(t, "o/n", "c", NULL, NULL, &err), -ENOTSUP);
    hx_transfer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_arrive_in_order_and_whole),
        cmocka_unit_test(an_attempt_begins_where_restart_says),
        cmocka_unit_test(data_may_pause_and_refuse),
        cmocka_unit_test(impossible_requests),
        cmocka_unit_test(a_file_that_is_gone),
        cmocka_unit_test(hold_keeps_requests),
        cmocka_unit_test(close_ends_everything_once),
        cmocka_unit_test(after_a_sleep_all_connections_are_new),
        cmocka_unit_test(small_changes_of_the_clock_are_nothing),
        cmocka_unit_test(parts_of_files_for_metadata),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
