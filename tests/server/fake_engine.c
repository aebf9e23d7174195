/* Scripted engine: the answer is the prompt, after "hmm</think>" in a chat. A prompt may begin with
 * a word: SLOW (20 ms a token), STUCK (stays in prefill), FAIL (error after three tokens). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <hx/request.h>

#define STEP_US 2000

const double hx_histogram_bounds_seconds[] = {0.001, 1, 3600};
const int hx_histogram_n_seconds = 3;
const double hx_histogram_bounds_tokens[] = {1, 1000, 1000000};
const int hx_histogram_n_tokens = 3;
const double hx_histogram_bounds_fine[] = {0.001, 1};
const int hx_histogram_n_fine = 2;

struct hx_engine {
    struct hx_engine_options opt;
    pthread_t thread;
    bool stop;
    int n_requests; /* atomic */
};

struct hx_request {
    struct hx_engine *engine;
    int32_t *script;
    size_t n_script, at[HX_MAX_CHOICES];
    int64_t max_tokens;
    int n_choices, turn;
    int cancelled[HX_MAX_CHOICES]; /* atomic */
    bool ended[HX_MAX_CHOICES], stuck, failing;
    int64_t step_us, next_us, n_prompt;
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *steps(void *arg)
{
    struct hx_engine *e = arg;
    while (!__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE)) {
        usleep(STEP_US);
        e->opt.wake(e->opt.user);
    }
    return NULL;
}

int hx_engine_open(const struct hx_engine_options *opt, struct hx_engine **out,
                   struct hx_error *err)
{
    struct hx_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return hx_fail(err, -ENOMEM, "out of memory");
    e->opt = *opt;
    opt->progress(opt->user, "script", 0.5);
    if (pthread_create(&e->thread, NULL, steps, e) != 0) {
        free(e);
        return hx_fail(err, -EAGAIN, "no thread");
    }
    *out = e;
    return 0;
}

void hx_engine_close(struct hx_engine *e)
{
    if (!e)
        return;
    __atomic_store_n(&e->stop, true, __ATOMIC_RELEASE);
    pthread_join(e->thread, NULL);
    free(e);
}

void hx_engine_info(const struct hx_engine *e, struct hx_engine_info *out)
{
    *out = (struct hx_engine_info){.n_vocab = 260,
                                   .max_context = 4096,
                                   .trained_context = 4096,
                                   .max_sequences = e->opt.max_sequences,
                                   .default_temperature = 1,
                                   .default_top_p = 0.95,
                                   .fingerprint = "fake",
                                   .layout = "cpu"};
}

void hx_engine_stats(struct hx_engine *e, struct hx_engine_stats *out)
{
    memset(out, 0, sizeof(*out));
    out->running = __atomic_load_n(&e->n_requests, __ATOMIC_RELAXED);
    out->retry_after = 3;
}

enum hx_engine_health hx_engine_health(struct hx_engine *e, struct hx_error *reason)
{
    (void)e;
    (void)reason;
    return HX_HEALTH_OK;
}

static bool begins(const struct hx_request_params *p, const char *word)
{
    for (size_t i = 0; word[i]; i++) {
        if (i >= p->n_prompt || p->prompt[i] != word[i])
            return false;
    }
    return true;
}

int hx_request_submit(struct hx_engine *e, const struct hx_request_params *p,
                      struct hx_request **out, struct hx_error *err)
{
    if (p->n_prompt >= 4096)
        return hx_fail_param(err, -ENOSPC, "messages", "context_length_exceeded",
                             "the prompt has %zu tokens, the context 4096.", p->n_prompt);
    if (__atomic_load_n(&e->n_requests, __ATOMIC_RELAXED) >= e->opt.queue + e->opt.max_sequences)
        return hx_fail_param(err, -EAGAIN, NULL, "queue_full", "too many requests wait.");
    struct hx_request *r = calloc(1, sizeof(*r));
    if (r)
        r->script = calloc(p->n_prompt + 4, sizeof(*r->script));
    if (!r || !r->script) {
        free(r);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    static const int32_t thought[4] = {'h', 'm', 'm', 258};
    memcpy(r->script, thought, sizeof(thought));
    memcpy(r->script + 4, p->prompt, p->n_prompt * sizeof(*p->prompt));
    r->n_script = p->n_prompt + 4;
    r->engine = e;
    r->n_choices = p->n_choices;
    r->max_tokens = p->max_tokens ? p->max_tokens : 4096;
    r->n_prompt = (int64_t)p->n_prompt;
    r->stuck = begins(p, "STUCK");
    r->failing = begins(p, "FAIL");
    r->step_us = begins(p, "SLOW") ? 20000 : 0;
    __atomic_add_fetch(&e->n_requests, 1, __ATOMIC_RELAXED);
    *out = r;
    return 0;
}

static void end_event(const struct hx_request *r, int c, struct hx_event *ev)
{
    ev->type = HX_EVENT_END;
    if (__atomic_load_n(&r->cancelled[c], __ATOMIC_ACQUIRE)) {
        ev->reason = HX_END_CANCELLED;
    } else if (r->failing) {
        ev->reason = HX_END_ERROR;
        hx_fail(&ev->error, -EIO, "scripted failure");
    } else if (r->at[c] == r->n_script) {
        ev->reason = HX_END_TOKEN;
        ev->token = 256;
    } else {
        ev->reason = HX_END_LENGTH;
    }
}

int hx_request_next(struct hx_request *r, struct hx_event *ev)
{
    for (int k = 0; k < r->n_choices; k++) {
        int c = r->turn++ % r->n_choices;
        bool cancelled = __atomic_load_n(&r->cancelled[c], __ATOMIC_ACQUIRE);
        if (r->ended[c] || (!cancelled && (r->stuck || now_us() < r->next_us)))
            continue;
        *ev = (struct hx_event){.choice = c};
        if (cancelled || r->at[c] == r->n_script || (int64_t)r->at[c] >= r->max_tokens ||
            (r->failing && r->at[c] == 3)) {
            end_event(r, c, ev);
            r->ended[c] = true;
        } else {
            ev->token = r->script[r->at[c]++];
            ev->logprob = -0.5f;
            ev->n_top = 1;
            ev->top[0].token = ev->token;
            ev->top[0].logprob = -0.5f;
            r->next_us = now_us() + r->step_us;
        }
        ev->usage = (struct hx_usage){r->n_prompt, 0, (int64_t)r->at[c]};
        return 1;
    }
    return 0;
}

void hx_request_cancel(struct hx_request *r, int choice)
{
    for (int c = 0; c < r->n_choices; c++) {
        if (choice < 0 || c == choice)
            __atomic_store_n(&r->cancelled[c], 1, __ATOMIC_RELEASE);
    }
}

enum hx_request_phase hx_request_phase(struct hx_request *r)
{
    for (int c = 0; c < r->n_choices; c++) {
        if (!r->ended[c])
            return r->stuck ? HX_PHASE_PREFILL : HX_PHASE_DECODE;
    }
    return HX_PHASE_DONE;
}

void hx_request_free(struct hx_request *r)
{
    if (!r)
        return;
    __atomic_sub_fetch(&r->engine->n_requests, 1, __ATOMIC_RELAXED);
    free(r->script);
    free(r);
}
