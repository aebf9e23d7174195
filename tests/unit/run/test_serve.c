/* The engine with the real model: what runs beside a request changes none of its bits. */
#include "golden.h"

#include <hx/request.h>

#include "model/forward.h"
#include "run/memory_plan.h"

#define N_TOK   24
#define N_OTHER 8

static struct hx_engine *open_engine(int max_sequences, int64_t kv_tokens, int chunk)
{
    struct hx_engine_options o = {.model_dir = MODEL_DIR,
                                  .engram_slow_ms = 60000,
                                  .backend = "cpu",
                                  .max_sequences = max_sequences,
                                  .max_context = 512,
                                  .kv_tokens = kv_tokens,
                                  .prefill_chunk = chunk,
                                  .queue = 64};
    struct hx_engine *e = NULL;
    CHECK(hx_engine_open(&o, &e, ERR));
    return e;
}

static void make_prompt(int32_t *t, int n, int seed)
{
    for (int i = 0; i < n; i++)
        t[i] = 3 + (i * 37 + seed * 101 + i * i * (seed + 1)) % 490;
}

static struct hx_request *submit(struct hx_engine *e, const int32_t *prompt, int n, int n_tok,
                                 float temperature)
{
    struct hx_request_params p = {.prompt = prompt,
                                  .n_prompt = (size_t)n,
                                  .n_choices = 1,
                                  .max_tokens = n_tok,
                                  .temperature = temperature,
                                  .top_p = 0.95f,
                                  .repetition_penalty = 1.1f,
                                  .seed = 11,
                                  .n_logprobs = 2,
                                  .force_after = -1};
    struct hx_request *r = NULL;
    CHECK(hx_request_submit(e, &p, &r, ERR));
    return r;
}

struct reply {
    int32_t token[N_TOK * 8];
    float logprob[N_TOK * 8];
    int n;
    struct hx_event end;
};

static void collect(struct hx_request *r, struct reply *out)
{
    memset(out, 0, sizeof(*out));
    for (;;) {
        struct hx_event ev;
        if (!hx_request_wait(r, &ev, 120000))
            fail_msg("no event in two minutes");
        if (ev.type == HX_EVENT_END) {
            out->end = ev;
            break;
        }
        assert_int_equal(ev.n_top, 2);
        out->token[out->n] = ev.token;
        out->logprob[out->n++] = ev.logprob;
    }
    hx_request_free(r);
}

static void same(const struct reply *a, const struct reply *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, sizeof(a->token));
    assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob)); /* bits */
}

static void prompt_of(int i, int32_t *prompt, int *n, float *temperature)
{
    *n = 1 + i * 13 % 60;
    *temperature = i % 2 ? 0.8f : 0;
    make_prompt(prompt, *n, i);
}

/* Eight at once, chunks of a few rows, against one after the other in whole prompts. */
static void test_batch_equals_alone(void **state)
{
    (void)state;
    static struct reply alone[N_OTHER], got;
    struct hx_request *r[N_OTHER];
    int32_t prompt[64];
    int n;
    float t;
    for (int i = 0; i < N_OTHER; i++) {
        struct hx_engine *e = open_engine(1, 0, 256);
        prompt_of(i, prompt, &n, &t);
        collect(submit(e, prompt, n, N_TOK, t), &alone[i]);
        assert_int_equal(alone[i].n, N_TOK);
        assert_int_equal(alone[i].end.usage.cached_tok, 0);
        hx_engine_close(e);
    }
    struct hx_engine *e = open_engine(8, 0, 7);
    for (int i = 0; i < N_OTHER; i++) {
        prompt_of(i, prompt, &n, &t);
        r[i] = submit(e, prompt, n, N_TOK, t);
    }
    for (int i = 0; i < N_OTHER; i++) {
        collect(r[i], &got);
        same(&got, &alone[i]);
    }
    /* Again, now from the prefix cache: odd and even cuts, the same bits. */
    for (int i = 0; i < N_OTHER; i++) {
        prompt_of(i, prompt, &n, &t);
        collect(submit(e, prompt, n, N_TOK, t), &got);
        assert_int_equal(got.end.usage.cached_tok, n - 1);
        same(&got, &alone[i]);
    }
    hx_engine_close(e);
}

/* Greedy through the engine is greedy by hand on a rank. */
static void test_engine_equals_rank(void **state)
{
    (void)state;
    enum { N = 33 };
    int32_t t[N + N_TOK];
    make_prompt(t, N, 3);
    struct hx_engine *e = open_engine(2, 0, 16);
    struct hx_request_params p = {.prompt = t,
                                  .n_prompt = N,
                                  .n_choices = 1,
                                  .max_tokens = N_TOK,
                                  .top_p = 1,
                                  .repetition_penalty = 1,
                                  .n_logprobs = 2,
                                  .force_after = -1};
    struct hx_request *r = NULL;
    static struct reply got;
    CHECK(hx_request_submit(e, &p, &r, ERR));
    collect(r, &got);
    hx_engine_close(e);
    struct hx_rank *rank = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    int n_vocab = hx_rank_hparams(rank)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof(*logits));
    assert_non_null(logits);
    struct hx_kv_seq *s = seq_new(rank);
    feed(rank, s, t, N, 1, logits);
    for (int i = 0; i < N_TOK; i++) {
        int best = argmax(logits, n_vocab);
        double sum = 0;
        for (int v = 0; v < n_vocab; v++)
            sum += exp((double)logits[v] - (double)logits[best]);
        assert_int_equal(got.token[i], best);
        assert_true(fabs(got.logprob[i] + log(sum)) < 1e-5);
        t[N + i] = best;
        feed(rank, s, &t[N + i], 1, 1, logits);
    }
    free(logits);
    hx_kv_seq_free(s);
    hx_rank_close(rank);
}

/* Sequences that are stopped for lack of blocks and resume give the same bits. */
static void test_resume_after_preemption(void **state)
{
    (void)state;
    static struct reply alone[3], got;
    struct hx_request *r[3];
    int32_t prompt[64];
    struct hx_engine *e = open_engine(1, 256, 64);
    for (int i = 0; i < 3; i++) {
        make_prompt(prompt, 60, i);
        collect(submit(e, prompt, 60, N_TOK * 4, i == 1 ? 0.8f : 0), &alone[i]);
    }
    hx_engine_close(e);
    e = open_engine(3, 256, 64); /* 4 blocks; each needs 3 */
    for (int i = 0; i < 3; i++) {
        make_prompt(prompt, 60, i);
        r[i] = submit(e, prompt, 60, N_TOK * 4, i == 1 ? 0.8f : 0);
    }
    for (int i = 0; i < 3; i++) {
        collect(r[i], &got);
        same(&got, &alone[i]);
    }
    struct hx_engine_stats st;
    hx_engine_stats(e, &st);
    assert_true(st.preemptions > 0);
    hx_engine_close(e);
}

/* Cancelled everywhere, again and again: what stays in the cache is right. */
static void test_cancel_storm(void **state)
{
    (void)state;
    static struct reply alone, got;
    int32_t prompt[64];
    make_prompt(prompt, 60, 5);
    struct hx_engine *e = open_engine(1, 0, 256);
    collect(submit(e, prompt, 60, N_TOK, 0), &alone);
    hx_engine_close(e);
    e = open_engine(3, 0, 5);
    for (int i = 0; i < 60; i++) {
        struct hx_request *r = submit(e, prompt, 60 - i % 7, N_TOK, 0);
        usleep((useconds_t)(i * 397 % 5000));
        hx_request_free(r);
    }
    collect(submit(e, prompt, 60, N_TOK, 0), &got);
    same(&got, &alone);
    hx_engine_close(e);
}

/* KV state that leaves no room for a pass of 65,536 rows is refused before anything is read; a pool
 * of the engine's own size gives way. */
static void test_memory_beside_the_pool(void **state)
{
    const int64_t free_now = (int64_t)hx_memory_available(), gib = (int64_t)1 << 30;
    struct hx_engine_options o = {.model_dir = MODEL_DIR,
                                  .engram_slow_ms = 60000,
                                  .backend = "cpu",
                                  .max_sequences = 1,
                                  .prefill_chunk = 65536,
                                  .queue = 4};
    struct hx_hparams hp;
    struct hx_maps maps;
    struct hx_kv_memory block;
    size_t work, pinned;
    struct hx_engine *e = NULL;
    struct hx_error err;
    (void)state;
    CHECK(hx_hparams_load(MODEL_DIR, &hp, ERR));
    CHECK(hx_maps_derive(&hp, &maps, ERR));
    hx_forward_memory(&hp, &maps, 1, o.prefill_chunk + 1, 1, false, &work, &pinned);
    const struct hx_kv_options one = {.n_blocks = 1, .n_seqs = 1};
    CHECK(hx_kv_memory(&hp, &maps, &one, &block, ERR));
    /* The others of the machine may take or leave half of a pass meanwhile. */
    int64_t left = (int64_t)work / 2,
            tokens = (free_now - left) / (int64_t)block.block * HX_KV_BLOCK_TOK;
    if (free_now < 4 * gib || work < (size_t)gib / 2 || tokens > INT32_MAX)
        skip();
    o.kv_tokens = tokens;
    assert_int_equal(hx_engine_open(&o, &e, &err), -ENOMEM);
    if (!strstr(err.text, "rank 0 needs ") || !strstr(err.text, "lower kv_tokens"))
        fail_msg("%s", err.text);
    o.kv_tokens = 0;
    CHECK(hx_engine_open(&o, &e, ERR));
    hx_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_beside_the_pool),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_engine_equals_rank),
        cmocka_unit_test(test_resume_after_preemption),
        cmocka_unit_test(test_cancel_storm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
