/* Requests as callers see them: checks, queueing, events, cancelling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run/engine_impl.h"

#define MAX_LIST 1024 /* entries of a token list or of logit_bias */

/* ---- checks ---- */

struct range {
    const char *param;
    double value, min, max;
    bool above_min; /* min itself is not allowed */
};

static int check_ranges(const struct hx_request_params *p, int max_sequences, struct hx_error *err)
{
    int most = max_sequences < HX_MAX_CHOICES ? max_sequences : HX_MAX_CHOICES;
    const struct range rows[] = {
        {"n", p->n_choices, 1, most, false},
        {"max_tokens", (double)p->max_tokens, 0, 0x1p53, false},
        {"min_tokens", (double)p->min_tokens, 0, p->max_tokens ? (double)p->max_tokens : 0x1p53,
         false},
        {"temperature", p->temperature, 0, 2, false},
        {"top_p", p->top_p, 0, 1, true},
        {"min_p", p->min_p, 0, 1, false},
        {"top_k", p->top_k, 0, 0x1p31, false},
        {"presence_penalty", p->presence_penalty, -2, 2, false},
        {"frequency_penalty", p->frequency_penalty, -2, 2, false},
        {"repetition_penalty", p->repetition_penalty, 0, 2, true},
        {"top_logprobs", p->n_logprobs, -1, HX_MAX_TOP_LOGPROBS, false},
        {"logit_bias", (double)p->n_bias, 0, MAX_LIST, false},
        {"end_tokens", (double)p->n_end_tokens, 0, MAX_LIST, false},
        {"stop_token_ids", (double)p->n_stop_tokens, 0, MAX_LIST, false},
        {"forbidden", (double)p->n_forbidden, 0, 0x1p20, false},
        {"forced", (double)p->n_forced, 0, 0x1p20, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct range *r = &rows[i];
        /* Written so that NaN fails. */
        if (!(r->value <= r->max) || !(r->above_min ? r->value > r->min : r->value >= r->min))
            return hx_fail_param(err, -EINVAL, r->param, "invalid_value",
                                 "%s is %g: expected %s %g and at most %g", r->param, r->value,
                                 r->above_min ? "more than" : "at least", r->min, r->max);
    }
    return 0;
}

static int check_tokens(const char *param, const int32_t *t, size_t n, int32_t n_vocab,
                        struct hx_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (t[i] < 0 || t[i] >= n_vocab)
            return hx_fail_param(err, -EINVAL, param, "invalid_value",
                                 "%s: token %d (entry %zu) is outside the vocabulary of %d", param,
                                 t[i], i, n_vocab);
    }
    return 0;
}

static int check(const struct hx_engine *e, const struct hx_request_params *p, struct hx_error *err)
{
    int32_t v = e->info.n_vocab;
    if (p->n_prompt < 1)
        return hx_fail_param(err, -EINVAL, "prompt", "invalid_value", "the prompt is empty");
    int r = check_ranges(p, e->info.max_sequences, err);
    if (r == 0)
        r = check_tokens("end_tokens", p->end_tokens, p->n_end_tokens, v, err);
    if (r == 0)
        r = check_tokens("stop_token_ids", p->stop_tokens, p->n_stop_tokens, v, err);
    if (r == 0)
        r = check_tokens("forbidden", p->forbidden, p->n_forbidden, v, err);
    if (r == 0)
        r = check_tokens("forced", p->forced, p->n_forced, v, err);
    for (size_t i = 0; r == 0 && i < p->n_bias; i++) {
        r = check_tokens("logit_bias", &p->bias[i].token, 1, v, err);
        if (r == 0 && !(p->bias[i].bias >= -100 && p->bias[i].bias <= 100))
            r = hx_fail_param(err, -EINVAL, "logit_bias", "invalid_value",
                              "logit_bias of token %d is %g: expected -100 to 100",
                              p->bias[i].token, (double)p->bias[i].bias);
    }
    /* One token at least has to fit behind the prompt. */
    if (r == 0 && p->n_prompt >= (size_t)e->seq_limit)
        r = hx_fail_param(err, -ENOSPC, "messages", "context_length_exceeded",
                          "the prompt has %zu tokens, but the context is %lld tokens", p->n_prompt,
                          (long long)e->seq_limit);
    return r == 0 ? check_tokens("prompt", p->prompt, p->n_prompt, v, err) : r;
}

/* ---- life ---- */

static const void *copy_list(const void *from, size_t n, size_t size, bool *ok)
{
    if (n == 0)
        return NULL;
    void *to = malloc(n * size);
    if (to)
        memcpy(to, from, n * size);
    else
        *ok = false;
    return to;
}

static bool copy_params(struct hx_request_params *to, const struct hx_request_params *p)
{
    bool ok = true;
    *to = *p;
    to->prompt = copy_list(p->prompt, p->n_prompt, sizeof(*p->prompt), &ok);
    to->bias = copy_list(p->bias, p->n_bias, sizeof(*p->bias), &ok);
    to->end_tokens = copy_list(p->end_tokens, p->n_end_tokens, sizeof(*p->end_tokens), &ok);
    to->stop_tokens = copy_list(p->stop_tokens, p->n_stop_tokens, sizeof(*p->stop_tokens), &ok);
    to->forbidden = copy_list(p->forbidden, p->n_forbidden, sizeof(*p->forbidden), &ok);
    to->forced = copy_list(p->forced, p->n_forced, sizeof(*p->forced), &ok);
    to->id[sizeof(to->id) - 1] = 0;
    return ok;
}

static void free_list(const void *list)
{
    free((void *)(uintptr_t)list);
}

static void destroy(struct hx_request *r)
{
    for (int i = 0; i < r->params.n_choices; i++)
        hx_sequence_done(&r->seq[i]);
    free_list(r->params.prompt);
    free_list(r->params.bias);
    free_list(r->params.end_tokens);
    free_list(r->params.stop_tokens);
    free_list(r->params.forbidden);
    free_list(r->params.forced);
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->cond);
    free(r);
}

void hx_request_unref(struct hx_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        destroy(r);
}

static int create(struct hx_engine *e, const struct hx_request_params *p, struct hx_request **out,
                  struct hx_error *err)
{
    size_t n = (size_t)p->n_choices;
    struct hx_request *r = calloc(1, sizeof(*r) + n * sizeof(r->seq[0]));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory for a request");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&r->mutex, NULL);
    r->engine = e;
    r->n_live = p->n_choices;
    atomic_init(&r->refs, 2);
    atomic_init(&r->phase, HX_PHASE_QUEUED);
    r->max_tokens = e->seq_limit - (int64_t)p->n_prompt;
    if (p->max_tokens > 0 && p->max_tokens < r->max_tokens)
        r->max_tokens = p->max_tokens;
    int f = copy_params(&r->params, p) ? 0 : hx_fail(err, -ENOMEM, "out of memory for a request");
    for (int i = 0; f == 0 && i < p->n_choices; i++)
        f = hx_sequence_init(&r->seq[i], r, i, e->info.n_vocab, err);
    if (f < 0) {
        destroy(r);
        return f;
    }
    *out = r;
    return 0;
}

static int enqueue(struct hx_engine *e, struct hx_request *r, struct hx_error *err)
{
    int f = 0;
    pthread_mutex_lock(&e->mutex);
    if (e->health == HX_HEALTH_FAILED) {
        f = hx_fail_param(err, -ESHUTDOWN, NULL, "engine_failed", "the engine failed: %s",
                          e->health_reason.text);
    } else if (e->stopping) {
        f = hx_fail_param(err, -ESHUTDOWN, NULL, "draining", "the engine is stopping");
    } else if (e->n_queued >= e->opt.queue + e->free_slots) {
        f = hx_fail_param(err, -EAGAIN, NULL, "queue_full",
                          "%d requests wait already, which is the limit: try again later",
                          e->n_queued);
    } else {
        r->submitted_at = hx_engine_clock();
        r->counted = true;
        e->n_queued++;
        r->prev = e->inbox_last;
        *(e->inbox_last ? &e->inbox_last->next : &e->inbox) = r;
        e->inbox_last = r;
        e->kicked = true;
        pthread_cond_signal(&e->cond);
    }
    pthread_mutex_unlock(&e->mutex);
    return f;
}

int hx_request_submit(struct hx_engine *e, const struct hx_request_params *p,
                      struct hx_request **out, struct hx_error *err)
{
    struct hx_request *r = NULL;
    int f = check(e, p, err);
    if (f == 0)
        f = create(e, p, &r, err);
    if (f < 0)
        return f;
    f = enqueue(e, r, err);
    if (f < 0) {
        destroy(r);
        return f;
    }
    *out = r;
    return 0;
}

void hx_request_cancel(struct hx_request *r, int choice)
{
    if (choice >= r->params.n_choices)
        return;
    unsigned all = (1u << r->params.n_choices) - 1, bits = choice < 0 ? all : 1u << choice;
    if ((atomic_fetch_or(&r->cancelled, bits) & bits) != bits &&
        atomic_load(&r->phase) != HX_PHASE_DONE)
        hx_engine_kick(r->engine);
}

void hx_request_free(struct hx_request *r)
{
    if (!r)
        return;
    hx_request_cancel(r, -1);
    hx_request_unref(r);
}

/* ---- events ---- */

static void fill_token(struct hx_event *ev, const struct hx_sequence *s,
                       const struct hx_stream_item *item, const struct hx_token_logprob *top)
{
    memset(ev, 0, sizeof(*ev));
    ev->type = HX_EVENT_TOKEN;
    ev->choice = s->choice;
    ev->token = item->token;
    ev->logprob = item->logprob;
    ev->n_top = item->n_top;
    for (int i = 0; i < item->n_top; i++) {
        ev->top[i].token = top[i].token;
        ev->top[i].logprob = top[i].logprob;
    }
    /* cached_tok was set before the first push and does not change after it. */
    ev->usage =
        (struct hx_usage){(int64_t)s->req->params.n_prompt, s->cached_tok, item->generated_tok};
}

int hx_request_next(struct hx_request *r, struct hx_event *ev)
{
    int n = r->params.n_choices;
    for (int k = 0; k < n; k++) {
        struct hx_sequence *s = &r->seq[(r->i_next + k) % n];
        struct hx_stream_item item;
        struct hx_token_logprob top[HX_MAX_TOP_LOGPROBS];
        bool wake = false, got = false, ended = atomic_load(&s->ended);
        if (hx_stream_pop(&s->stream, &item, top, &wake)) {
            fill_token(ev, s, &item, top);
            got = true;
        } else if (ended && !s->end_taken) {
            *ev = s->end;
            s->end_taken = got = true;
        }
        if (wake)
            hx_engine_kick(r->engine);
        if (got) {
            r->i_next = (s->choice + 1) % n;
            return 1;
        }
    }
    return 0;
}

static bool all_taken(const struct hx_request *r)
{
    for (int i = 0; i < r->params.n_choices; i++) {
        if (!r->seq[i].end_taken)
            return false;
    }
    return true;
}

int hx_request_wait(struct hx_request *r, struct hx_event *ev, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int got = hx_request_next(r, ev), waited = 0;
    while (!got && waited == 0 && timeout_ms != 0 && !all_taken(r)) {
        /* Looked at again under the mutex: a wake in between is not lost. */
        pthread_mutex_lock(&r->mutex);
        got = hx_request_next(r, ev);
        if (!got)
            waited = timeout_ms < 0 ? pthread_cond_wait(&r->cond, &r->mutex)
                                    : pthread_cond_timedwait(&r->cond, &r->mutex, &until);
        pthread_mutex_unlock(&r->mutex);
    }
    return got || hx_request_next(r, ev);
}

void hx_request_wake(struct hx_request *r)
{
    pthread_mutex_lock(&r->mutex);
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->mutex);
}

enum hx_request_phase hx_request_phase(struct hx_request *r)
{
    return (enum hx_request_phase)atomic_load(&r->phase);
}

int64_t hx_request_progress(struct hx_request *r)
{
    return atomic_load(&r->progress);
}
