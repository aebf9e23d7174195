/* Runs a reply through the parser in pieces and collects what comes out. */
#ifndef HX_TEST_REPLY_RUN_H
#define HX_TEST_REPLY_RUN_H

#include <hx/chat.h>

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

#define MAX_CALLS 8

struct reply_result {
    struct hx_buf content, reasoning, healed; /* healed: codes, each with a comma behind it */
    struct hx_buf name[MAX_CALLS], args[MAX_CALLS];
    bool complete[MAX_CALLS];
    int n_started, n_calls, stops;
};

static inline int reply_collect(void *user, const struct hx_reply_event *ev)
{
    struct reply_result *o = user;
    struct hx_buf *to = ev->type == HX_REPLY_CONTENT     ? &o->content
                        : ev->type == HX_REPLY_REASONING ? &o->reasoning
                        : ev->type == HX_REPLY_HEALED    ? &o->healed
                                                         : NULL;
    if (ev->type == HX_REPLY_STOP)
        o->stops++;
    if (!to && ev->type != HX_REPLY_STOP) {
        if (ev->call < 0 || ev->call >= MAX_CALLS)
            return 0;
        to = ev->type == HX_REPLY_CALL_START ? &o->name[ev->call] : &o->args[ev->call];
        if (ev->type == HX_REPLY_CALL_START)
            o->n_started++;
        if (ev->type == HX_REPLY_CALL_END)
            o->complete[ev->call] = true;
    }
    if (to)
        hx_buf_append(to, ev->text, ev->len);
    if (ev->type == HX_REPLY_HEALED)
        hx_buf_putc(to, ',');
    return 0;
}

static inline void reply_result_init(struct reply_result *o)
{
    memset(o, 0, sizeof(*o));
    o->content.max = o->reasoning.max = o->healed.max = 64 << 20;
    for (int i = 0; i < MAX_CALLS; i++)
        o->name[i].max = o->args[i].max = 64 << 20;
}

static inline void reply_result_done(struct reply_result *o)
{
    hx_buf_done(&o->content);
    hx_buf_done(&o->reasoning);
    hx_buf_done(&o->healed);
    for (int i = 0; i < MAX_CALLS; i++) {
        hx_buf_done(&o->name[i]);
        hx_buf_done(&o->args[i]);
    }
}

static inline bool same_buf(const struct hx_buf *a, const struct hx_buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static inline size_t count_code(const struct hx_buf *b, const char *code, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i + len <= b->len; i++)
        n += (i == 0 || b->data[i - 1] == ',') && memcmp(b->data + i, code, len) == 0;
    return n;
}

/* The same codes as often. Their order follows what is known when, so it may depend on the chunks:
 * they only raise counters. */
static inline bool same_codes(const struct hx_buf *a, const struct hx_buf *b)
{
    if (a->len != b->len)
        return false;
    for (size_t at = 0, end; at < a->len; at = end) {
        for (end = at; a->data[end] != ',';)
            end++;
        end++;
        const char *code = (const char *)a->data + at;
        if (count_code(a, code, end - at) != count_code(b, code, end - at))
            return false;
    }
    return true;
}

static inline bool same_result(const struct reply_result *a, const struct reply_result *b)
{
    bool same = same_buf(&a->content, &b->content) && same_buf(&a->reasoning, &b->reasoning) &&
                same_codes(&a->healed, &b->healed) && a->n_started == b->n_started &&
                a->n_calls == b->n_calls && a->stops == b->stops;
    for (int i = 0; i < MAX_CALLS; i++)
        same = same && same_buf(&a->name[i], &b->name[i]) && same_buf(&a->args[i], &b->args[i]) &&
               a->complete[i] == b->complete[i];
    return same;
}

/* chunk: bytes a push; 0: pieces of 1 to 17 bytes by a fixed pseudo-random sequence. */
static inline int reply_run(const struct hx_reply_options *opt, const char *text, size_t len,
                            size_t chunk, unsigned seed, enum hx_reply_end end,
                            struct reply_result *o)
{
    struct hx_reply *r;
    reply_result_init(o);
    int e = hx_reply_new(opt, &r, NULL);
    for (size_t at = 0; e == 0 && at < len;) {
        seed = seed * 1103515245u + 12345u;
        size_t n = chunk ? chunk : 1 + (seed >> 16) % 17;
        n = n > len - at ? len - at : n;
        e = hx_reply_push(r, text + at, n, reply_collect, o);
        at += n;
    }
    if (e == 0)
        e = hx_reply_finish(r, end, reply_collect, o);
    if (e == 0)
        o->n_calls = hx_reply_n_calls(r);
    hx_reply_free(r);
    return e;
}

#endif
