/* Events of the reply parser: delivered at once, or kept until a call is known to be one. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_impl.h"

static bool joins(enum hx_reply_event_type t)
{
    return t == HX_REPLY_CONTENT || t == HX_REPLY_REASONING || t == HX_REPLY_CALL_ARGS;
}

int hx_out_emit(struct hx_out *o, enum hx_reply_event_type type, int call, const char *s,
                size_t len)
{
    if (joins(type) && len == 0)
        return 0;
    if (!o->holding) {
        const struct hx_reply_event ev = {.type = type, .call = call, .text = s, .len = len};
        return o->fn(o->user, &ev) == 0 ? 0 : -ECANCELED;
    }
    size_t offset = o->text.len;
    if (hx_buf_append(&o->text, s, len) < 0)
        return -ENOMEM;
    struct hx_deferred *last = o->n_events ? &o->event[o->n_events - 1] : NULL;
    if (last && joins(type) && last->type == type && last->call == call &&
        last->offset + last->len == offset) {
        last->len += len;
        return 0;
    }
    if (o->n_events == o->cap_events) {
        size_t cap = o->cap_events ? o->cap_events * 2 : 32;
        struct hx_deferred *event = realloc(o->event, cap * sizeof(*event));
        if (!event)
            return -ENOMEM;
        o->event = event;
        o->cap_events = cap;
    }
    o->event[o->n_events++] =
        (struct hx_deferred){.type = type, .call = call, .offset = offset, .len = len};
    return 0;
}

int hx_out_commit(struct hx_out *o)
{
    o->holding = false;
    int r = 0;
    for (size_t i = 0; r == 0 && i < o->n_events; i++) {
        const struct hx_deferred *d = &o->event[i];
        const struct hx_reply_event ev = {.type = d->type,
                                          .call = d->call,
                                          .text =
                                              d->len ? (const char *)o->text.data + d->offset : "",
                                          .len = d->len};
        r = o->fn(o->user, &ev) == 0 ? 0 : -ECANCELED;
    }
    hx_out_rollback(o, 0, 0);
    return r;
}

void hx_out_rollback(struct hx_out *o, size_t n_events, size_t n_text)
{
    o->n_events = n_events;
    o->text.len = n_text;
    /* An event that grew after the mark ends there again. */
    if (n_events && o->event[n_events - 1].offset + o->event[n_events - 1].len > n_text)
        o->event[n_events - 1].len = n_text - o->event[n_events - 1].offset;
}

void hx_out_done(struct hx_out *o)
{
    free(o->event);
    hx_buf_done(&o->text);
}
