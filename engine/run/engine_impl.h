/* Inside of the engine: what request.c, sequence.c, scheduler.c and engine.c share. */
#ifndef HX_RUN_ENGINE_IMPL_H
#define HX_RUN_ENGINE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "run/plan.h"
#include "run/rank.h"
#include "run/sampler.h"
#include "run/stream.h"

#include <hx/request.h>

#define HX_MAX_SEQUENCES 64

enum hx_seq_state {
    HX_SEQ_FOLLOWS, /* waits for the prefill of the request's first live choice, then forks */
    HX_SEQ_WAITING, /* in the queue: new, or stopped for lack of blocks */
    HX_SEQ_RUNNING, /* has KV state */
    HX_SEQ_DONE
};

/* One choice of a request. The step thread owns it; stream, ended and end are read by the caller
 * (end only after ended). */
struct hx_sequence {
    struct hx_request *req;
    int choice;
    enum hx_seq_state state;
    uint64_t order;
    struct hx_sequence *prev, *next; /* queue */

    struct hx_kv_seq *kv;
    int32_t *tokens; /* [n_prompt + max_tokens], n_tok of them known */
    int64_t n_tok;
    int64_t solo_until; /* tokens; runs alone below it */
    int32_t *counts;    /* [n_vocab] or NULL */
    uint8_t *seen;      /* [n_vocab] or NULL */
    int64_t i_forced;   /* next forced token; -1: not begun */
    int64_t cached_tok;
    bool was_admitted;
    double admitted_at, first_at, last_at; /* seconds, monotonic; 0: not yet */

    struct hx_stream stream;
    struct hx_event end;
    atomic_bool ended;
    bool end_taken; /* caller's */
};

/* Kept by two: the caller until hx_request_free, the step thread until every choice ended. */
struct hx_request {
    struct hx_engine *engine;
    struct hx_request_params params; /* owns its arrays */
    int64_t max_tokens;              /* clamped */
    double submitted_at;
    struct hx_request *prev, *next; /* live requests, or the inbox */
    int n_live;                     /* choices that have not ended */
    bool counted;                   /* in n_queued */
    int i_next;                     /* caller's: choice to look at first */
    atomic_int refs, phase;
    atomic_uint cancelled; /* bit per choice */
    atomic_llong progress;
    pthread_mutex_t mutex; /* for waiting only */
    pthread_cond_t cond;
    struct hx_sequence seq[];
};

struct hx_engine {
    struct hx_engine_options opt;
    struct hx_engine_info info;
    struct hx_rank *rank;
    int64_t seq_limit; /* tokens of one sequence: the context, or what the pool holds */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t mutex; /* everything down to stats */
    pthread_cond_t cond;
    struct hx_request *inbox, *inbox_last;
    bool kicked, stopping;
    int n_queued;   /* requests not admitted yet */
    int free_slots; /* as of the last step */
    enum hx_engine_health health;
    struct hx_error health_reason;
    struct hx_engine_stats stats;

    /* step thread */
    struct hx_request *live;
    struct hx_sequence *queue, *queue_last;
    struct hx_sequence **running; /* [max_sequences] */
    int n_running;
    uint64_t n_order, turn;
    int n_failures; /* sequences that failed in a row */
    bool delivered; /* something for a caller in this step */
    struct hx_sampler *sampler;
    float *logits;   /* [max_sequences x (1 + drafts)][n_vocab] of the last step, */
    int32_t *best;   /* or the best tokens of its rows, */
    bool by_best;    /* where nobody wanted more */
    int draft_block; /* 0: the model has no drafter */
    int32_t *draft;  /* [max_sequences][draft_block] */
    float *draft_z;  /* their raw confidences */
    struct hx_plan_item *item;
    struct hx_plan_rows *rows;
    struct hx_step_seq *step;
};

double hx_engine_clock(void);
/* Wakes the step thread. */
void hx_engine_kick(struct hx_engine *e);
/* NULL: all zero. */
void hx_engine_engram_counters(struct hx_engram_stream *s, struct hx_engram_counters *out);
/* Starts and stops the step thread (scheduler.c). */
int hx_scheduler_start(struct hx_engine *e, struct hx_error *err) HX_MUST;
void hx_scheduler_stop(struct hx_engine *e);

/* request.c */
void hx_request_unref(struct hx_request *r);
void hx_request_wake(struct hx_request *r);

/* ---- sequence.c: one choice, token by token ---- */
int hx_sequence_init(struct hx_sequence *s, struct hx_request *r, int choice, int n_vocab,
                     struct hx_error *err) HX_MUST;
void hx_sequence_done(struct hx_sequence *s);
/* Tokens to compute before the one whose logits are wanted. */
int64_t hx_sequence_prefill_left(const struct hx_sequence *s);
/* Whether the next tokens are those of the largest logits, whatever those are. */
bool hx_sequence_takes_best(const struct hx_sequence *s);
/* Samples the next token and delivers it; logits NULL: it is `best`. *last: it was the last one,
 * because of *reason. Needs room in the stream. */
int hx_sequence_advance(struct hx_sequence *s, struct hx_sampler *sampler, const float *logits,
                        int32_t best, bool *last, enum hx_end_reason *reason,
                        struct hx_error *err) HX_MUST;
/* How many tokens the next step may add behind the newest one: by length, stream and forced tokens.
 */
int64_t hx_sequence_draft_room(struct hx_sequence *s);
struct hx_usage hx_sequence_usage(const struct hx_sequence *s);

/* ---- draft.c: tokens ahead of the newest one ---- */
/* Drafts for the sequences of a step that are past their prompt: puts them behind the known tokens,
 * adds their rows to n_tok and notes their number in n_draft. */
int hx_engine_draft(struct hx_engine *e, struct hx_sequence *const *batch, int n, int *n_tok,
                    int *n_draft, struct hx_error *err) HX_MUST;

/* generation_config.json of a model folder: temperature and top_p; absent file or key: the values
 * stay. -EINVAL names file, key, found and expected. */
int hx_generation_load(const char *dir, double *temperature, double *top_p,
                       struct hx_error *err) HX_MUST;

#endif
