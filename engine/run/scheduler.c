/* The step loop: takes requests in, decides what runs, runs it, delivers. Everything here is done
 * by the thread hx-step; it holds the engine's mutex only to move pointers and to count. */
#include <string.h>

#include "run/engine_impl.h"

/* Sequences that fail alone, one after the other, until the engine gives up. */
#define MAX_FAILURES 8
/* Rows of a failed step that cannot have overwritten window rows which a retry needs: the slack of
 * the ring (kv/layout.c). */
#define RETRY_TOK 16
/* Prompt chunks whose Engram rows are read before their step. */
#define CHUNKS_AHEAD 2

/* ---- queue and lists ---- */

static void queue_before(struct hx_engine *e, struct hx_sequence *s, struct hx_sequence *before)
{
    s->state = HX_SEQ_WAITING;
    s->next = before;
    s->prev = before ? before->prev : e->queue_last;
    *(s->prev ? &s->prev->next : &e->queue) = s;
    *(before ? &before->prev : &e->queue_last) = s;
}

static void queue_remove(struct hx_engine *e, struct hx_sequence *s)
{
    *(s->prev ? &s->prev->next : &e->queue) = s->next;
    *(s->next ? &s->next->prev : &e->queue_last) = s->prev;
    s->prev = s->next = NULL;
}

static void run_remove(struct hx_engine *e, struct hx_sequence *s)
{
    int i = 0;
    while (e->running[i] != s)
        i++;
    memmove(&e->running[i], &e->running[i + 1],
            (size_t)(e->n_running - i - 1) * sizeof(e->running[0]));
    e->n_running--;
}

static void run_add(struct hx_engine *e, struct hx_sequence *s)
{
    s->state = HX_SEQ_RUNNING;
    e->running[e->n_running++] = s;
}

static int n_followers(const struct hx_request *r)
{
    int n = 0;
    for (int i = 0; i < r->params.n_choices; i++)
        n += r->seq[i].state == HX_SEQ_FOLLOWS;
    return n;
}

/* Slots of the running sequences and of the choices that will fork from them. */
static int used_slots(const struct hx_engine *e)
{
    int n = e->n_running;
    for (int i = 0; i < e->n_running; i++)
        n += n_followers(e->running[i]->req);
    return n;
}

/* ---- ends ---- */

static void count_end(struct hx_engine *e, const struct hx_sequence *s, enum hx_end_reason reason,
                      double now)
{
    const struct hx_request *r = s->req;
    struct hx_engine_stats *t = &e->stats;
    struct hx_usage u = hx_sequence_usage(s);
    switch (reason) {
    case HX_END_TOKEN: t->finished_stop++; break;
    case HX_END_LENGTH: t->finished_length++; break;
    default: t->finished_abort++; break;
    }
    if (reason == HX_END_CANCELLED)
        t->cancelled[!s->was_admitted      ? HX_CANCEL_QUEUED
                     : u.generated_tok > 0 ? HX_CANCEL_DECODE
                                           : HX_CANCEL_PREFILL]++;
    hx_histogram_add(&t->e2e, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                     now - r->submitted_at);
    if (s->first_at > 0)
        hx_histogram_add(&t->decode_time, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         now - s->first_at);
    hx_histogram_add(&t->prompt_len, hx_histogram_bounds_tokens, hx_histogram_n_tokens,
                     (double)u.prompt_tok);
    hx_histogram_add(&t->generated_len, hx_histogram_bounds_tokens, hx_histogram_n_tokens,
                     (double)u.generated_tok);
}

/* The last choice ended: the step thread lets go. */
static void request_over(struct hx_engine *e, struct hx_request *r)
{
    *(r->prev ? &r->prev->next : &e->live) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    atomic_store(&r->phase, HX_PHASE_DONE);
    hx_request_wake(r);
    hx_request_unref(r);
}

static void free_kv(struct hx_engine *e, struct hx_sequence *s)
{
    hx_rank_forget(e->rank, s->kv);
    hx_kv_seq_free(s->kv);
    s->kv = NULL;
}

/* Ends a sequence in any state; what was computed goes to the prefix cache unless it failed. r may
 * be gone afterwards. */
static void end_sequence(struct hx_engine *e, struct hx_sequence *s, enum hx_end_reason reason,
                         const struct hx_error *error)
{
    struct hx_request *r = s->req;
    struct hx_sequence *place = s->state == HX_SEQ_WAITING ? s->next : e->queue;
    bool led = s->state == HX_SEQ_WAITING || s->state == HX_SEQ_RUNNING;
    if (s->state == HX_SEQ_WAITING)
        queue_remove(e, s);
    if (s->state == HX_SEQ_RUNNING) {
        run_remove(e, s);
        if (reason != HX_END_ERROR)
            hx_kv_prefix_publish(s->kv);
        free_kv(e, s);
    }
    s->state = HX_SEQ_DONE;
    for (int i = 0; led && i < r->params.n_choices; i++) {
        if (r->seq[i].state == HX_SEQ_FOLLOWS) { /* somebody else has to compute the prompt */
            queue_before(e, &r->seq[i], place);
            break;
        }
    }
    bool over = --r->n_live == 0;
    pthread_mutex_lock(&e->mutex);
    count_end(e, s, reason, hx_engine_clock());
    if (over && r->counted) {
        r->counted = false;
        e->n_queued--;
    }
    pthread_mutex_unlock(&e->mutex);
    s->end.type = HX_EVENT_END;
    s->end.choice = s->choice;
    s->end.reason = reason;
    s->end.usage = hx_sequence_usage(s);
    if (error)
        s->end.error = *error;
    e->delivered = true;
    atomic_store(&s->ended, true);
    if (over)
        request_over(e, r);
    else
        hx_request_wake(r);
}

static void end_all(struct hx_engine *e, enum hx_end_reason reason, const struct hx_error *error)
{
    while (e->live) {
        struct hx_request *r = e->live;
        int n = r->params.n_choices;
        /* From the last: followers go before the one they follow. The request goes with the last.
         */
        for (int i = n - 1, left = r->n_live; left > 0; i--) {
            if (r->seq[i].state != HX_SEQ_DONE) {
                left--;
                end_sequence(e, &r->seq[i], reason, error);
            }
        }
    }
}

/* ---- taking in ---- */

/* false: stop. */
static bool take_in(struct hx_engine *e)
{
    pthread_mutex_lock(&e->mutex);
    struct hx_request *r = e->inbox;
    bool go_on = !e->stopping;
    e->inbox = e->inbox_last = NULL;
    e->kicked = false;
    pthread_mutex_unlock(&e->mutex);
    while (r) {
        struct hx_request *next = r->next;
        r->prev = NULL;
        r->next = e->live;
        if (e->live)
            e->live->prev = r;
        e->live = r;
        for (int i = 0; i < r->params.n_choices; i++)
            r->seq[i].order = e->n_order++;
        queue_before(e, &r->seq[0], NULL);
        r = next;
    }
    return go_on;
}

static void obey_cancels(struct hx_engine *e)
{
    for (struct hx_request *r = e->live, *next; r; r = next) {
        next = r->next;
        unsigned bits = atomic_load(&r->cancelled);
        if (!bits)
            continue;
        int left = r->n_live;
        for (int i = r->params.n_choices - 1; i >= 0 && left > 0; i--) {
            if ((bits >> i & 1) && r->seq[i].state != HX_SEQ_DONE) {
                left--;
                end_sequence(e, &r->seq[i], HX_END_CANCELLED, NULL);
            }
        }
    }
}

/* ---- starting and stopping sequences ---- */

static void first_admission(struct hx_engine *e, struct hx_sequence *s, int64_t cached_tok)
{
    struct hx_request *r = s->req;
    s->was_admitted = true;
    s->admitted_at = hx_engine_clock();
    s->cached_tok = cached_tok;
    if (atomic_load(&r->phase) == HX_PHASE_QUEUED)
        atomic_store(&r->phase, HX_PHASE_PREFILL);
    pthread_mutex_lock(&e->mutex);
    if (r->counted) {
        r->counted = false;
        e->n_queued--;
        e->stats.prompt_tok += r->params.n_prompt;
        e->stats.prefix_query_tok += r->params.n_prompt;
        e->stats.prefix_hit_tok += (uint64_t)cached_tok;
        hx_histogram_add(&e->stats.queue_time, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         s->admitted_at - r->submitted_at);
    }
    pthread_mutex_unlock(&e->mutex);
}

/* The prompt but its last token is computed: the other choices start from the same state. */
static void fork_followers(struct hx_engine *e, struct hx_sequence *s)
{
    struct hx_request *r = s->req;
    for (int i = r->params.n_choices - 1; i >= 0; i--) {
        struct hx_sequence *f = &r->seq[i];
        if (f->state != HX_SEQ_FOLLOWS)
            continue;
        struct hx_error ignored;
        if (hx_kv_seq_fork(s->kv, &f->kv, &ignored) < 0) {
            queue_before(e, f, e->queue); /* no block left: it starts by itself, later */
            continue;
        }
        run_add(e, f);
        first_admission(e, f, s->cached_tok);
    }
}

static void prefill_done(struct hx_engine *e, struct hx_sequence *s)
{
    hx_kv_prefix_publish(s->kv);
    fork_followers(e, s);
}

static int start_sequence(struct hx_engine *e, struct hx_sequence *s, struct hx_error *err)
{
    struct hx_kv_seq *kv = NULL;
    int r = hx_kv_seq_new(hx_rank_kv(e->rank), &kv, err);
    if (r < 0)
        return r;
    int64_t cached = hx_kv_prefix_restore(kv, s->tokens, s->n_tok);
    r = hx_kv_seq_reserve(kv, s->n_tok, err);
    if (r < 0) {
        hx_kv_seq_free(kv);
        return r;
    }
    queue_remove(e, s);
    s->kv = kv;
    run_add(e, s);
    int64_t n_prompt = (int64_t)s->req->params.n_prompt;
    if (!s->was_admitted)
        first_admission(e, s, cached);
    atomic_store(&s->req->progress, cached < n_prompt ? cached : n_prompt);
    if (hx_sequence_prefill_left(s) == 0)
        fork_followers(e, s);
    return 0;
}

static void admit(struct hx_engine *e)
{
    struct hx_kv_pool *pool = hx_rank_kv(e->rank);
    while (e->queue) {
        struct hx_sequence *s = e->queue;
        struct hx_error error = {0};
        if (!hx_plan_admits(1 + n_followers(s->req), e->info.max_sequences - used_slots(e),
                            hx_kv_blocks_for(pool, s->n_tok), hx_kv_blocks_free(pool),
                            e->n_running))
            return;
        int r = start_sequence(e, s, &error);
        if (r == 0)
            continue;
        if (r == -EAGAIN && e->n_running > 0)
            return;
        end_sequence(e, s, HX_END_ERROR, &error);
    }
}

/* Out of blocks: gives its own back and goes to the front of the queue. Its tokens stay, so it goes
 * on where it was. */
static void preempt(struct hx_engine *e, struct hx_sequence *s)
{
    hx_kv_prefix_publish(s->kv);
    free_kv(e, s);
    run_remove(e, s);
    queue_before(e, s, e->queue);
    pthread_mutex_lock(&e->mutex);
    e->stats.preemptions++;
    pthread_mutex_unlock(&e->mutex);
}

/* ---- one step ---- */

static int plan(struct hx_engine *e)
{
    for (int i = 0; i < e->n_running; i++) {
        struct hx_sequence *s = e->running[i];
        int64_t left = hx_sequence_prefill_left(s);
        e->item[i] = (struct hx_plan_item){.prefill_tok = left,
                                           .ready = left > 0 || hx_stream_has_room(&s->stream),
                                           .solo = hx_kv_seq_len(s->kv) < s->solo_until,
                                           .order = s->order};
    }
    return hx_plan_step(e->item, e->n_running, e->opt.prefill_chunk, e->turn++, e->rows);
}

/* Blocks for the planned rows; the youngest sequences stop until there are enough. Fills batch with
 * the planned sequences that still run, returns how many. */
static int make_room(struct hx_engine *e, int n_rows, struct hx_sequence **batch, int *n_tok)
{
    int n = 0;
    for (int i = 0; i < n_rows; i++) {
        batch[i] = e->running[e->rows[i].item];
        n_tok[i] = e->rows[i].n_tok;
    }
    for (int i = 0; i < n_rows; i++) {
        struct hx_sequence *s = batch[i];
        struct hx_error ignored;
        while (s->state == HX_SEQ_RUNNING && e->n_running > 1 &&
               hx_kv_seq_reserve(s->kv, hx_kv_seq_len(s->kv) + n_tok[i], &ignored) < 0) {
            for (int k = 0; k < e->n_running; k++)
                e->item[k].order = e->running[k]->order;
            preempt(e, e->running[hx_plan_victim(e->item, e->n_running)]);
        }
    }
    for (int i = 0; i < n_rows; i++) {
        if (batch[i]->state != HX_SEQ_RUNNING)
            continue;
        batch[n] = batch[i];
        n_tok[n++] = n_tok[i];
    }
    return n;
}

/* Engram rows of the tokens that this step will compute as far as they are known, that is before
 * the drafter runs; then of the next prompt chunks, whose reads overlap with the step. */
static void want_rows(struct hx_engine *e, struct hx_sequence *const *batch, const int *n_tok,
                      int n)
{
    for (int i = 0; i < n; i++) {
        struct hx_sequence *s = batch[i];
        int64_t len = hx_kv_seq_len(s->kv);
        bool decode = hx_sequence_prefill_left(s) == 0;
        hx_rank_want(e->rank, decode ? HX_ENGRAM_DECODE : HX_ENGRAM_CHUNK, s->kv, s->tokens + len,
                     len, n_tok[i]);
    }
    for (int ahead = 1; ahead <= CHUNKS_AHEAD; ahead++) {
        for (int i = 0; i < n; i++) {
            struct hx_sequence *s = batch[i];
            int64_t at = hx_kv_seq_len(s->kv) + (int64_t)ahead * n_tok[i], left = s->n_tok - at;
            hx_rank_want(e->rank, HX_ENGRAM_AHEAD, s->kv, s->tokens + at, at,
                         left < n_tok[i] ? (int)left : n_tok[i]);
        }
    }
}

/* Best tokens instead of logits where that is all that is asked for: they are a few bytes, logits
 * half a megabyte a row. */
static int run_rows(struct hx_engine *e, struct hx_sequence *const *batch, int *n_tok, int n,
                    struct hx_error *err)
{
    int n_draft[HX_MAX_SEQUENCES] = {0};
    want_rows(e, batch, n_tok, n);
    if (e->opt.drafts > 0) {
        int r = hx_engine_draft(e, batch, n, n_tok, n_draft, err);
        if (r < 0)
            return hx_wrap(err, r, "drafts");
    }
    bool decode = true;
    e->by_best = true;
    for (int i = 0; i < n; i++) {
        struct hx_sequence *s = batch[i];
        e->step[i] =
            (struct hx_step_seq){.kv = s->kv,
                                 .tokens = s->tokens + hx_kv_seq_len(s->kv),
                                 .n_tok = n_tok[i],
                                 .n_logits = hx_sequence_prefill_left(s) == 0 ? 1 + n_draft[i] : 0,
                                 .n_draft = n_draft[i]};
        decode = decode && e->step[i].n_logits > 0;
        e->by_best = e->by_best && (e->step[i].n_logits == 0 || hx_sequence_takes_best(s));
    }
    int r = e->by_best ? hx_rank_step_best(e->rank, e->step, n, e->best, err) : 0;
    /* Logits without a best one: the sampler finds whose, and tokens before it are delivered. */
    if (r == -EDOM && decode)
        e->by_best = false;
    return e->by_best ? r : hx_rank_step(e->rank, e->step, n, e->logits, NULL, NULL, err);
}

static void count_token(struct hx_engine *e, struct hx_sequence *s)
{
    struct hx_engine_stats *t = &e->stats;
    double now = hx_engine_clock();
    pthread_mutex_lock(&e->mutex);
    t->generated_tok++;
    if (s->first_at > 0) {
        hx_histogram_add(&t->itl, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         now - s->last_at);
    } else {
        s->first_at = now;
        hx_histogram_add(&t->ttft, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         now - s->req->submitted_at);
        hx_histogram_add(&t->prefill_time, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         now - s->admitted_at);
    }
    s->last_at = now;
    pthread_mutex_unlock(&e->mutex);
}

static void degrade(struct hx_engine *e, enum hx_engine_health health, const struct hx_error *error)
{
    pthread_mutex_lock(&e->mutex);
    if (health > e->health)
        e->health = health;
    e->health_reason = *error;
    pthread_mutex_unlock(&e->mutex);
}

/* What a step made of a sequence. */
struct outcome {
    bool sampled, last;
    enum hx_end_reason reason;
    int r; /* of the sampler */
    struct hx_error error;
};

/* Tokens from the rows of one sequence, from row `first` of those with logits on, as long as they
 * are the drafted ones; returns how many rows of the step stay. */
static int sample_rows(struct hx_engine *e, struct hx_sequence *s, const struct hx_step_seq *step,
                       int first, struct outcome *o)
{
    int keep = step->n_tok - step->n_draft;
    for (int row = 0;; row++) {
        int32_t draft = row < step->n_draft ? s->tokens[s->n_tok] : -1;
        const float *logits =
            e->by_best ? NULL : e->logits + (int64_t)(first + row) * e->info.n_vocab;
        o->r = hx_sequence_advance(s, e->sampler, logits, e->best[first + row], &o->last,
                                   &o->reason, &o->error);
        if (o->r < 0)
            break;
        o->sampled = true;
        count_token(e, s);
        if (o->last || row == step->n_draft || s->tokens[s->n_tok - 1] != draft)
            break;
        keep++;
    }
    return keep;
}

static void count_drafts(struct hx_engine *e, const struct hx_step_seq *step, int n_accepted)
{
    struct hx_engine_stats *t = &e->stats;
    if (step->n_draft == 0)
        return;
    pthread_mutex_lock(&e->mutex);
    t->drafts++;
    t->draft_tok += (uint64_t)step->n_draft;
    t->accepted_tok += (uint64_t)n_accepted;
    for (int i = 0; i < n_accepted; i++)
        t->accepted_per_pos[i]++;
    pthread_mutex_unlock(&e->mutex);
}

/* After a step: logits become tokens, rejected drafts go, prefill moves on. */
static void take_results(struct hx_engine *e, struct hx_sequence **batch, int n)
{
    struct outcome out[HX_MAX_SEQUENCES] = {0};
    int keep[HX_MAX_SEQUENCES];
    int first = 0; /* row with logits */
    bool drafts = false;
    e->n_failures = 0;
    for (int i = 0; i < n; i++) {
        const struct hx_step_seq *step = &e->step[i];
        keep[i] = step->n_tok;
        if (step->n_logits == 0)
            continue;
        keep[i] = sample_rows(e, batch[i], step, first, &out[i]);
        count_drafts(e, step, keep[i] - (step->n_tok - step->n_draft));
        first += step->n_logits;
        drafts = drafts || step->n_draft > 0;
    }
    struct hx_error error = {0};
    int r = drafts ? hx_rank_accept(e->rank, e->step, n, keep, &error) : 0;
    for (int i = 0; i < n; i++) {
        struct hx_sequence *s = batch[i];
        struct hx_request *req = s->req;
        int64_t len = hx_kv_seq_len(s->kv), n_prompt = (int64_t)req->params.n_prompt;
        atomic_store(&req->progress, len < n_prompt ? len : n_prompt);
        if (out[i].sampled) {
            atomic_store(&req->phase, HX_PHASE_DECODE);
            e->delivered = true;
        }
        if (r < 0 || out[i].r < 0)
            end_sequence(e, s, HX_END_ERROR, r < 0 ? &error : &out[i].error);
        else if (out[i].last)
            end_sequence(e, s, out[i].reason, NULL);
        else if (out[i].sampled)
            hx_request_wake(req);
        else if (hx_sequence_prefill_left(s) == 0)
            prefill_done(e, s);
    }
}

/* A step failed. One sequence: it ends. Several: each goes on alone, so that only the guilty one
 * ends. The failed pass may have overwritten window rows behind a long chunk; such a sequence
 * starts again from the cache. */
static void step_failed(struct hx_engine *e, struct hx_sequence **batch, const int *n_tok, int n,
                        const struct hx_error *error)
{
    if (n == 1 && strcmp(error->slug, HX_FEED_SLUG) == 0) {
        /* A drive's fault, not the device's: whoever needs other rows goes on. */
        end_sequence(e, batch[0], HX_END_ERROR, error);
        return;
    }
    if (n == 1) {
        bool dead = ++e->n_failures >= MAX_FAILURES || error->code == -ENODEV;
        degrade(e, dead ? HX_HEALTH_FAILED : HX_HEALTH_DEGRADED, error);
        end_sequence(e, batch[0], HX_END_ERROR, error);
        if (dead)
            end_all(e, HX_END_ERROR, error);
        return;
    }
    for (int i = 0; i < n; i++) {
        struct hx_sequence *s = batch[i];
        s->solo_until = hx_kv_seq_len(s->kv) + n_tok[i];
        if (n_tok[i] <= RETRY_TOK)
            continue;
        free_kv(e, s);
        run_remove(e, s);
        queue_before(e, s, e->queue);
    }
}

/* false: there was nothing to do. */
static bool step(struct hx_engine *e)
{
    struct hx_sequence *batch[HX_MAX_SEQUENCES];
    int n_tok[HX_MAX_SEQUENCES];
    int n = plan(e);
    if (n == 0)
        return false;
    n = make_room(e, n, batch, n_tok);
    struct hx_error error = {0};
    if (n == 0)
        return true;
    if (run_rows(e, batch, n_tok, n, &error) < 0)
        step_failed(e, batch, n_tok, n, &error);
    else
        take_results(e, batch, n);
    return true;
}

/* ---- the thread ---- */

static void publish_state(struct hx_engine *e)
{
    struct hx_kv_pool *pool = hx_rank_kv(e->rank);
    int total = hx_kv_blocks_total(pool), used = total - hx_kv_blocks_free(pool), waiting = 0;
    for (const struct hx_sequence *s = e->queue; s; s = s->next)
        waiting++;
    pthread_mutex_lock(&e->mutex);
    e->free_slots = e->info.max_sequences - used_slots(e);
    e->stats.running = e->n_running;
    e->stats.waiting = waiting;
    e->stats.kv_usage = (double)used / total;
    pthread_mutex_unlock(&e->mutex);
}

static void wait_for_work(struct hx_engine *e)
{
    pthread_mutex_lock(&e->mutex);
    while (!e->kicked && !e->stopping)
        pthread_cond_wait(&e->cond, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
}

static void *step_thread(void *arg)
{
    struct hx_engine *e = arg;
    while (take_in(e)) {
        e->delivered = false;
        obey_cancels(e);
        if (e->health == HX_HEALTH_FAILED) /* written by this thread only */
            end_all(e, HX_END_ERROR, &e->health_reason);
        admit(e);
        publish_state(e);
        bool worked = step(e);
        publish_state(e);
        if (e->delivered && e->opt.wake)
            e->opt.wake(e->opt.user);
        if (!worked)
            wait_for_work(e);
    }
    end_all(e, HX_END_CANCELLED, NULL);
    publish_state(e);
    if (e->opt.wake)
        e->opt.wake(e->opt.user);
    return NULL;
}

int hx_scheduler_start(struct hx_engine *e, struct hx_error *err)
{
    int r = pthread_create(&e->thread, NULL, step_thread, e);
    if (r != 0)
        return hx_fail_errno(err, r, "cannot start the step thread");
    e->has_thread = true;
    pthread_setname_np(e->thread, "hx-step");
    return 0;
}

void hx_scheduler_stop(struct hx_engine *e)
{
    if (!e->has_thread)
        return;
    pthread_mutex_lock(&e->mutex);
    e->stopping = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mutex);
    pthread_join(e->thread, NULL);
    e->has_thread = false;
}
