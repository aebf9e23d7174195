/* A scripted model for tests of the engine: this file defines the rank, so the archive's is not
 * linked. The next token's logits are a function of the whole history; drafts are that token, or
 * wrong by another function of it. KV is the real pool. */
#ifndef TESTS_UNIT_RUN_SCRIPTED_H
#define TESTS_UNIT_RUN_SCRIPTED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "run/rank.h"

#include <hx/request.h>

#define N_VOCAB 512
#define END     1

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

#define UNUSED __attribute__((unused))

/* ---- the scripted rank ---- */

struct hx_rank {
    struct hx_hparams hp;
    struct hx_maps maps;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_kv_pool *kv;
};

static struct {
    atomic_int step_us;     /* a step takes that long */
    atomic_int poison;      /* a sequence whose new rows hold this token fails its step */
    atomic_int poison_code; /* with this */
    atomic_int nan_token;   /* a sequence whose last token this is gets NaN logits */
    atomic_int n_steps, n_best, n_rows, max_prefill, max_seqs; /* n_best: without logits */
    atomic_int hold;                                           /* steps wait while it is set */
    atomic_int drafts;                                         /* of the next engine */
    atomic_int draft_fault;                                    /* drafting fails with this */
    atomic_int wanted[HX_ENGRAM_CLASSES], forgotten;           /* tokens, sequences */
    atomic_llong wanted_to;                                    /* furthest position ahead */
} script;

static UNUSED void script_reset(void)
{
    memset(&script, 0, sizeof(script));
    script.poison = script.nan_token = -1;
    script.poison_code = -EIO;
}

int hx_rank_open(const struct hx_rank_options *opt, struct hx_rank **out, struct hx_error *err)
{
    struct hx_rank *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    CHECK(hx_hparams_load(opt->model_dir, &r->hp, ERR));
    CHECK(hx_maps_derive(&r->hp, &r->maps, ERR));
    r->be = hx_backend_select("cpu", err);
    CHECK(r->be->open(0, &r->dev, ERR));
    CHECK(hx_kv_pool_open(&r->hp, &r->maps, r->be, r->dev, &opt->kv, &r->kv, ERR));
    *out = r;
    return 0;
}

void hx_rank_close(struct hx_rank *r)
{
    if (!r)
        return;
    hx_kv_pool_close(r->kv);
    r->be->close(r->dev);
    free(r);
}

struct hx_kv_pool *hx_rank_kv(struct hx_rank *r)
{
    return r->kv;
}

/* The scripted model reads no rows; it remembers what was wanted. */
void hx_rank_want(struct hx_rank *r, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
                  const int32_t *tokens, int64_t first, int n)
{
    (void)r, (void)tokens;
    if (n <= 0)
        return;
    assert_true(urgency != HX_ENGRAM_DECODE || first == hx_kv_seq_len(kv));
    atomic_fetch_add(&script.wanted[urgency], n);
    if (urgency == HX_ENGRAM_AHEAD && first + n > atomic_load(&script.wanted_to))
        atomic_store(&script.wanted_to, first + n);
}

void hx_rank_forget(struct hx_rank *r, const struct hx_kv_seq *kv)
{
    (void)r, (void)kv;
    atomic_fetch_add(&script.forgotten, 1);
}

struct hx_engram_stream *hx_rank_engram(struct hx_rank *r)
{
    (void)r;
    return NULL;
}

/* The model: what follows a history. */
static int32_t next_token(const int32_t *t, int64_t n)
{
    uint64_t h = 7;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)t[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return 3 + (int32_t)(h % (N_VOCAB - 3)); /* never END by itself */
}

/* Rows with logits of a step: those, or the best token of each. */
static int scripted_step(const struct hx_step_seq *seqs, int n_seqs, float *logits, int32_t *best,
                         struct hx_error *err)
{
    int n_prefill = 0;
    while (atomic_load(&script.hold))
        usleep(200);
    if (script.step_us)
        usleep((useconds_t)script.step_us);
    for (int i = 0; i < n_seqs; i++) {
        for (int k = 0; k < seqs[i].n_tok; k++) {
            if (seqs[i].tokens[k] == script.poison)
                return hx_fail(err, script.poison_code, "scripted fault");
        }
    }
    for (int i = 0; best && i < n_seqs; i++) {
        for (int k = seqs[i].n_tok - seqs[i].n_logits; k < seqs[i].n_tok; k++) {
            if (seqs[i].tokens[k] == script.nan_token)
                return hx_fail(err, -EDOM, "scripted NaN");
        }
    }
    script.n_steps++;
    script.n_best += best != NULL;
    for (int i = 0; i < n_seqs; i++) {
        const struct hx_step_seq *s = &seqs[i];
        CHECK(hx_kv_seq_reserve(s->kv, hx_kv_seq_len(s->kv) + s->n_tok, ERR));
        CHECK(hx_kv_seq_commit(s->kv, s->tokens, s->dead, s->n_tok, ERR));
        script.n_rows += s->n_tok;
        if (s->n_logits == 0) {
            n_prefill += s->n_tok;
            continue;
        }
        assert_int_equal(s->n_logits, 1 + s->n_draft);
        const int32_t *t = hx_kv_seq_tokens(s->kv);
        for (int64_t n = hx_kv_seq_len(s->kv) - s->n_draft; n <= hx_kv_seq_len(s->kv); n++) {
            int32_t next = next_token(t, n);
            if (best) {
                *best++ = next;
                continue;
            }
            for (int v = 0; v < N_VOCAB; v++)
                logits[v] = (float)((v * 7 + next) % 13) * 0.1f;
            logits[next] = t[n - 1] == script.nan_token ? (float)NAN : 9;
            logits += N_VOCAB;
        }
    }
    if (n_prefill > script.max_prefill)
        script.max_prefill = n_prefill;
    if (n_seqs > script.max_seqs)
        script.max_seqs = n_seqs;
    return 0;
}

int hx_rank_step(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, float *logits,
                 hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    (void)r, (void)tap, (void)tap_user;
    return scripted_step(seqs, n_seqs, logits, NULL, err);
}

int hx_rank_step_best(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, int32_t *best,
                      struct hx_error *err)
{
    (void)r;
    return scripted_step(seqs, n_seqs, NULL, best, err);
}

int hx_rank_accept(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, const int *n_keep,
                   struct hx_error *err)
{
    (void)r, (void)err;
    for (int i = 0; i < n_seqs; i++) {
        int64_t drop = seqs[i].n_tok - n_keep[i];
        assert_true(drop >= 0 && drop <= seqs[i].n_draft);
        CHECK(hx_kv_seq_truncate(seqs[i].kv, hx_kv_seq_len(seqs[i].kv) - drop, ERR));
    }
    return 0;
}

int hx_rank_draft(struct hx_rank *r, struct hx_kv_seq *const *seqs, const int32_t *anchors, int n,
                  int32_t *tokens, float *z, hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    (void)tap, (void)tap_user;
    if (script.draft_fault)
        return hx_fail(err, script.draft_fault, "scripted fault of the drafter");
    int block = r->hp.draft_block;
    for (int i = 0; i < n; i++, tokens += block, z += block) {
        int64_t len = hx_kv_seq_len(seqs[i]);
        int32_t *t = malloc((size_t)(len + 1 + block) * sizeof(*t));
        assert_non_null(t);
        memcpy(t, hx_kv_seq_tokens(seqs[i]), (size_t)len * sizeof(*t));
        t[len] = anchors[i];
        for (int k = 0; k < block; k++) {
            int32_t right = next_token(t, len + 1 + k);
            t[len + 1 + k] = tokens[k] = right % 4 == 1 ? right / 2 + 3 : right;
            z[k] = right % 3 == 0 ? -1.0f : 3.0f; /* says nothing about it */
        }
        free(t);
    }
    return 0;
}

/* ---- helpers ---- */

static UNUSED struct hx_engine *open_engine(int max_sequences, int64_t context, int64_t kv_tokens,
                                            int chunk, int queue)
{
    struct hx_engine_options o = {.model_dir = "tests/vectors/model",
                                  .backend = "cpu",
                                  .max_sequences = max_sequences,
                                  .max_context = context,
                                  .kv_tokens = kv_tokens,
                                  .prefill_chunk = chunk,
                                  .drafts = script.drafts,
                                  .gate = 0.1,
                                  .queue = queue};
    struct hx_engine *e = NULL;
    CHECK(hx_engine_open(&o, &e, ERR));
    return e;
}

static UNUSED void make_prompt(int32_t *t, int n, int seed)
{
    for (int i = 0; i < n; i++)
        t[i] = 3 + (i * 37 + seed * 101 + i * i * seed) % 400;
}

static UNUSED struct hx_request_params params(const int32_t *prompt, int n, int64_t max_tokens)
{
    static const int32_t end = END;
    return (struct hx_request_params){.prompt = prompt,
                                      .n_prompt = (size_t)n,
                                      .n_choices = 1,
                                      .max_tokens = max_tokens,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .n_logprobs = -1,
                                      .end_tokens = &end,
                                      .n_end_tokens = 1,
                                      .force_after = -1};
}

static UNUSED struct hx_request *submit(struct hx_engine *e, struct hx_request_params p)
{
    struct hx_request *r = NULL;
    CHECK(hx_request_submit(e, &p, &r, ERR));
    return r;
}

struct reply {
    int32_t t[HX_MAX_CHOICES][600];
    int n[HX_MAX_CHOICES];
    struct hx_event end[HX_MAX_CHOICES];
};

/* Reads to the end of every choice. */
static UNUSED void collect(struct hx_request *r, int n_choices, struct reply *out)
{
    memset(out, 0, sizeof(*out));
    for (int left = n_choices; left > 0;) {
        struct hx_event ev;
        if (!hx_request_wait(r, &ev, 20000))
            fail_msg("no event in 20 s");
        if (ev.type == HX_EVENT_END) {
            out->end[ev.choice] = ev;
            left--;
            continue;
        }
        assert_true(out->n[ev.choice] < 600);
        out->t[ev.choice][out->n[ev.choice]++] = ev.token;
        assert_int_equal(ev.usage.generated_tok, out->n[ev.choice]);
    }
    struct hx_event ev;
    assert_int_equal(hx_request_next(r, &ev), 0);
    assert_int_equal(hx_request_wait(r, &ev, -1), 0);
    assert_int_equal(hx_request_phase(r), HX_PHASE_DONE);
}

/* What greedy decoding has to give. */
static UNUSED void expect_greedy(const int32_t *prompt, int n, const int32_t *got, int n_got)
{
    int32_t t[2048];
    memcpy(t, prompt, (size_t)n * 4);
    for (int i = 0; i < n_got; i++, n++) {
        t[n] = next_token(t, n);
        assert_int_equal(got[i], t[n]);
    }
}

#endif
