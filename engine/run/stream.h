/* Tokens of one choice on their way from the step thread to its reader: a ring with one producer
 * and one consumer, no locks. */
#ifndef HX_RUN_STREAM_H
#define HX_RUN_STREAM_H

#include <stdatomic.h>

#include "run/sampler.h"

struct hx_stream_item {
    int32_t token;
    float logprob;
    int64_t generated_tok; /* of this choice, this one included */
    int n_top;
};

struct hx_stream {
    size_t cap; /* items, a power of two */
    int n_top;  /* room for best tokens of an item */
    struct hx_stream_item *item;
    struct hx_token_logprob *top; /* [cap][n_top] */
    atomic_size_t head, tail;     /* pushed and popped so far */
    atomic_bool stalled;          /* the producer found it full and waits for a pop */
};

int hx_stream_init(struct hx_stream *s, size_t cap, int n_top, struct hx_error *err) HX_MUST;
void hx_stream_done(struct hx_stream *s);

/* Producer. No room: notes that the next pop has to wake it. */
bool hx_stream_has_room(struct hx_stream *s);
/* Items that fit now. */
size_t hx_stream_room(const struct hx_stream *s);
/* Only after hx_stream_has_room said so. */
void hx_stream_push(struct hx_stream *s, const struct hx_sampled *token, int64_t generated_tok);

/* Consumer. top: [HX_MAX_TOP_LOGPROBS]. false: empty. *wake: the producer waits. */
bool hx_stream_pop(struct hx_stream *s, struct hx_stream_item *item, struct hx_token_logprob *top,
                   bool *wake);
bool hx_stream_is_empty(const struct hx_stream *s);

#endif
