/* Token ring. */
#include "run/stream.h"

#include <stdlib.h>
#include <string.h>

int hx_stream_init(struct hx_stream *s, size_t cap, int n_top, struct hx_error *err)
{
    memset(s, 0, sizeof(*s));
    s->cap = cap;
    s->n_top = n_top > 0 ? n_top : 0;
    s->item = calloc(cap, sizeof(*s->item));
    s->top = calloc(cap * (size_t)(s->n_top + 1), sizeof(*s->top));
    if (s->item && s->top)
        return 0;
    hx_stream_done(s);
    return hx_fail(err, -ENOMEM, "out of memory for a stream of %zu tokens", cap);
}

void hx_stream_done(struct hx_stream *s)
{
    free(s->item);
    free(s->top);
    s->item = NULL;
    s->top = NULL;
}

static bool full(const struct hx_stream *s)
{
    return atomic_load(&s->head) - atomic_load(&s->tail) == s->cap;
}

size_t hx_stream_room(const struct hx_stream *s)
{
    return s->cap - (atomic_load(&s->head) - atomic_load(&s->tail));
}

bool hx_stream_has_room(struct hx_stream *s)
{
    if (!full(s))
        return true;
    /* The flag first, then a second look: either this sees a pop in between, or that pop sees the
     * flag. */
    atomic_store(&s->stalled, true);
    return !full(s);
}

void hx_stream_push(struct hx_stream *s, const struct hx_sampled *token, int64_t generated_tok)
{
    size_t head = atomic_load(&s->head), at = head & (s->cap - 1);
    int n_top = token->n_top < s->n_top ? token->n_top : s->n_top;
    s->item[at] = (struct hx_stream_item){token->token, token->logprob, generated_tok, n_top};
    memcpy(s->top + at * (size_t)s->n_top, token->top, (size_t)n_top * sizeof(*s->top));
    atomic_store(&s->head, head + 1);
}

bool hx_stream_pop(struct hx_stream *s, struct hx_stream_item *item, struct hx_token_logprob *top,
                   bool *wake)
{
    if (hx_stream_is_empty(s))
        return false;
    size_t tail = atomic_load(&s->tail), at = tail & (s->cap - 1);
    *item = s->item[at];
    memcpy(top, s->top + at * (size_t)s->n_top, (size_t)item->n_top * sizeof(*top));
    atomic_store(&s->tail, tail + 1);
    *wake = atomic_load(&s->stalled) && atomic_exchange(&s->stalled, false);
    return true;
}

bool hx_stream_is_empty(const struct hx_stream *s)
{
    return atomic_load(&s->head) == atomic_load(&s->tail);
}
