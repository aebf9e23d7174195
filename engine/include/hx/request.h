/* One generation request: prompt tokens in, token events out. A request is used by one caller
 * thread; hx_request_cancel may be called from any thread. */
#ifndef HX_REQUEST_H
#define HX_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/engine.h>
#include <hx/error.h>

#define HX_MAX_CHOICES      8
#define HX_MAX_TOP_LOGPROBS 20

struct hx_logit_bias {
    int32_t token;
    float bias; /* -100..100; -100 forbids, 100 forces */
};

struct hx_request_params {
    const int32_t *prompt;
    size_t n_prompt;    /* 1 or more */
    int n_choices;      /* sequences; the prompt is computed once */
    int64_t max_tokens; /* 0: the rest of the context; clamped to it */
    int64_t min_tokens; /* end tokens are forbidden before */
    float temperature;  /* below 1e-5: greedy */
    float top_p;
    float min_p;
    int top_k; /* 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed; /* choice i uses a stream derived from (seed, i) */
    const struct hx_logit_bias *bias;
    size_t n_bias;
    int n_logprobs; /* -1: none; 0-20: log-probability of the chosen token and of the n best */
    /* Tokens that end the sequence; shown to the caller in the END event, not as TOKEN events. */
    const int32_t *end_tokens;
    size_t n_end_tokens;
    bool ignore_end_tokens;
    const int32_t *stop_tokens; /* like end tokens, but obeyed with ignore_end_tokens too */
    size_t n_stop_tokens;
    const int32_t *forbidden; /* never sampled */
    size_t n_forbidden;
    /* When `force_after` was generated (-1: at the start) the next tokens are these. */
    const int32_t *forced;
    size_t n_forced;
    int32_t force_after;
    char id[129]; /* for the log */
};

enum hx_event_type { HX_EVENT_TOKEN, HX_EVENT_END };
enum hx_end_reason { HX_END_TOKEN, HX_END_LENGTH, HX_END_CANCELLED, HX_END_ERROR };

struct hx_usage {
    int64_t prompt_tok;
    int64_t cached_tok;    /* of the prompt, from the prefix cache */
    int64_t generated_tok; /* of this choice, the end token included */
};

struct hx_event {
    enum hx_event_type type;
    int choice;
    int32_t token; /* TOKEN: the token; END with HX_END_TOKEN: the end token */
    float logprob; /* of the model's own distribution, before temperature, penalties and bias */
    int n_top;
    struct {
        int32_t token;
        float logprob;
    } top[HX_MAX_TOP_LOGPROBS]; /* best first */
    enum hx_end_reason reason;
    struct hx_usage usage; /* running with TOKEN, final with END */
    struct hx_error error; /* HX_END_ERROR */
};

enum hx_request_phase { HX_PHASE_QUEUED, HX_PHASE_PREFILL, HX_PHASE_DECODE, HX_PHASE_DONE };

struct hx_request;

/* Checks and copies the parameters, queues the request. -EINVAL (param set), -ENOSPC (the prompt
 * alone does not fit; message has both numbers, slug context_length_exceeded), -EAGAIN (queue full,
 * slug queue_full), -ESHUTDOWN (engine failed or closing), -ENOMEM. */
int hx_request_submit(struct hx_engine *e, const struct hx_request_params *p,
                      struct hx_request **out, struct hx_error *err) HX_MUST;
/* Next event without blocking: 1 filled, 0 nothing yet. After the END event of every choice: 0. */
int hx_request_next(struct hx_request *r, struct hx_event *ev);
/* Blocks until an event is there or timeout_ms passed (-1: no limit). */
int hx_request_wait(struct hx_request *r, struct hx_event *ev, int timeout_ms);
/* Ends one choice (-1: all). The END event follows with HX_END_CANCELLED; what was computed goes to
 * the prefix cache. Cheap, idempotent. */
void hx_request_cancel(struct hx_request *r, int choice);
enum hx_request_phase hx_request_phase(struct hx_request *r);
/* Tokens of the prompt processed so far (prefill progress). */
int64_t hx_request_progress(struct hx_request *r);
/* Cancels if still running; never blocks on the model; memory goes when the engine let go. */
void hx_request_free(struct hx_request *r);

#endif
