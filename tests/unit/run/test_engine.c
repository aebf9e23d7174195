/* The engine against a scripted model (scripted.h). */
#include "scripted.h"

/* ---- tests ---- */

static void test_one_request(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(2, 512, 0, 16, 4);
    struct hx_engine_info info;
    hx_engine_info(e, &info);
    assert_int_equal(info.n_vocab, N_VOCAB);
    assert_int_equal(info.max_context, 512);
    assert_int_equal(info.trained_context, 16384);
    assert_true(info.default_temperature == 1.0 && info.default_top_p == 0.95);
    static struct reply a;
    int32_t prompt[50];
    make_prompt(prompt, 50, 1);
    for (int n = 1; n <= 50; n++) {
        struct hx_request *r = submit(e, params(prompt, n, 20));
        collect(r, 1, &a);
        assert_int_equal(a.n[0], 20);
        assert_int_equal(a.end[0].reason, HX_END_LENGTH);
        assert_int_equal(a.end[0].usage.prompt_tok, n);
        /* The prompt one shorter is cached up to its last token. */
        assert_int_equal(a.end[0].usage.cached_tok, n > 2 ? n - 2 : 0);
        assert_int_equal(a.end[0].usage.generated_tok, 20);
        expect_greedy(prompt, n, a.t[0], 20);
        assert_int_equal(hx_request_progress(r), n);
        hx_request_free(r);
    }
    /* Chunks never exceed the limit; the same prompt again is cached but for its last token. */
    assert_int_equal(script.max_prefill <= 16, 1);
    struct hx_request *r = submit(e, params(prompt, 50, 20));
    collect(r, 1, &a);
    assert_int_equal(a.end[0].usage.cached_tok, 49);
    hx_request_free(r);
    struct hx_engine_stats st;
    hx_engine_stats(e, &st);
    assert_int_equal(st.generated_tok, 51 * 20);
    assert_int_equal(st.finished_length, 51);
    assert_int_equal(st.prompt_tok, 51 * 50 / 2 + 50);
    assert_int_equal(st.prefix_hit_tok, 48 * 49 / 2 + 49);
    assert_int_equal(st.ttft.count, 51);
    assert_int_equal(st.itl.count, 51 * 19);
    assert_int_equal(hx_engine_health(e, NULL), HX_HEALTH_OK);
    hx_engine_close(e);
}

static void test_ends(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(2, 64, 0, 16, 4);
    static struct reply a;
    int32_t prompt[60];
    make_prompt(prompt, 60, 2);
    struct hx_request *r = submit(e, params(prompt, 60, 0)); /* what is left of the context */
    collect(r, 1, &a);
    assert_int_equal(a.n[0], 4);
    assert_int_equal(a.end[0].reason, HX_END_LENGTH);
    hx_request_free(r);
    /* The third token as an end token: it is in the END event only. */
    int32_t third = a.t[0][2];
    struct hx_request_params p = params(prompt, 60, 4);
    p.end_tokens = &third;
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.n[0], 2);
    assert_int_equal(a.end[0].reason, HX_END_TOKEN);
    assert_int_equal(a.end[0].token, third);
    assert_int_equal(a.end[0].usage.generated_tok, 3);
    hx_request_free(r);
    p.ignore_end_tokens = true;
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.n[0], 4);
    hx_request_free(r);
    p.stop_tokens = &third; /* obeyed all the same */
    p.n_stop_tokens = 1;
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.n[0], 2);
    assert_int_equal(a.end[0].reason, HX_END_TOKEN);
    hx_request_free(r);
    /* Not before min_tokens: another token comes in its place. */
    p = params(prompt, 60, 4);
    p.end_tokens = &third;
    p.min_tokens = 4;
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.n[0], 4);
    assert_int_not_equal(a.t[0][2], third);
    hx_request_free(r);
    /* Forced tokens: from the start, and after the second token. */
    static const int32_t forced[2] = {77, 78};
    p = params(prompt, 60, 4);
    p.forced = forced;
    p.n_forced = 2;
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.t[0][0], 77);
    assert_int_equal(a.t[0][1], 78);
    assert_int_not_equal(a.t[0][2], 77);
    hx_request_free(r);
    p.force_after = next_token(prompt, 60);
    r = submit(e, p);
    collect(r, 1, &a);
    assert_int_equal(a.t[0][0], p.force_after);
    assert_int_equal(a.t[0][1], 77);
    assert_int_equal(a.t[0][2], 78);
    hx_request_free(r);
    hx_engine_close(e);
}

static void test_bad_requests(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(2, 64, 0, 16, 4);
    int32_t prompt[80];
    make_prompt(prompt, 80, 3);
    static const int32_t outside[1] = {N_VOCAB};
    static const struct hx_logit_bias bad_bias[1] = {{5, 101}}, bad_token[1] = {{-1, 0}};
    struct hx_request_params p[18];
    static const char *const param[18] = {"messages",
                                          "prompt",
                                          "prompt",
                                          "n",
                                          "n",
                                          "max_tokens",
                                          "min_tokens",
                                          "temperature",
                                          "temperature",
                                          "top_p",
                                          "min_p",
                                          "presence_penalty",
                                          "repetition_penalty",
                                          "top_logprobs",
                                          "logit_bias",
                                          "logit_bias",
                                          "forbidden",
                                          "end_tokens"};
    for (int i = 0; i < 18; i++)
        p[i] = params(prompt, 10, 4);
    p[0].n_prompt = 64;
    p[1].n_prompt = 0;
    p[2].prompt = outside, p[2].n_prompt = 1;
    p[3].n_choices = 3; /* more than sequences */
    p[4].n_choices = 0;
    p[5].max_tokens = -1;
    p[6].min_tokens = 5;
    p[7].temperature = 2.5f;
    p[8].temperature = (float)NAN;
    p[9].top_p = 0;
    p[10].min_p = 1.5f;
    p[11].presence_penalty = -3;
    p[12].repetition_penalty = 0;
    p[13].n_logprobs = 21;
    p[14].bias = bad_bias, p[14].n_bias = 1;
    p[15].bias = bad_token, p[15].n_bias = 1;
    p[16].forbidden = outside, p[16].n_forbidden = 1;
    p[17].end_tokens = outside;
    for (int i = 0; i < 18; i++) {
        struct hx_error err = {0};
        struct hx_request *r = NULL;
        assert_int_equal(hx_request_submit(e, &p[i], &r, &err), i == 0 ? -ENOSPC : -EINVAL);
        assert_null(r);
        assert_string_equal(err.param, param[i]);
    }
    struct hx_error err = {0};
    struct hx_request *r = NULL;
    assert_int_equal(hx_request_submit(e, &p[0], &r, &err), -ENOSPC);
    assert_string_equal(err.slug, "context_length_exceeded");
    assert_non_null(strstr(err.text, "has 64 tokens"));
    assert_non_null(strstr(err.text, "context is 64 tokens"));
    hx_engine_close(e);
}

static void test_bad_options(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine_options good = {.model_dir = "tests/vectors/model",
                                     .backend = "cpu",
                                     .max_sequences = 2,
                                     .prefill_chunk = 16};
    struct hx_engine_options o[6] = {good, good, good, good, good, good};
    static const char *const says[6] = {"max_sequences is 65", "max_sequences is 0",
                                        "prefill_chunk is 0",  "queue is -1",
                                        "max_context is -1",   "config.json"};
    o[0].max_sequences = 65;
    o[1].max_sequences = 0;
    o[2].prefill_chunk = 0;
    o[3].queue = -1;
    o[4].max_context = -1;
    o[5].model_dir = "tests/vectors/nowhere";
    for (int i = 0; i < 6; i++) {
        struct hx_error err = {0};
        struct hx_engine *e = NULL;
        assert_true(hx_engine_open(&o[i], &e, &err) < 0);
        assert_null(e);
        if (!strstr(err.text, says[i]))
            fail_msg("'%s' does not say '%s'", err.text, says[i]);
    }
    hx_engine_close(NULL);
    /* More context than the model has is no mistake: it is what the model has. */
    struct hx_engine *e = NULL;
    struct hx_engine_info info;
    struct hx_error err;
    good.max_context = 16385;
    assert_int_equal(hx_engine_open(&good, &e, &err), 0);
    hx_engine_info(e, &info);
    assert_int_equal(info.max_context, 16384);
    hx_engine_close(e);
}

static void test_choices(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 512, 0, 16, 4);
    static struct reply a, b;
    int32_t prompt[40];
    make_prompt(prompt, 40, 4);
    struct hx_request_params p = params(prompt, 40, 30);
    p.n_choices = 4;
    p.temperature = 1.5f;
    p.seed = 99;
    struct hx_request *r = submit(e, p);
    collect(r, 4, &a);
    hx_request_free(r);
    /* Prompt once (39 rows), then 30 rows for each choice. */
    assert_int_equal(script.n_rows, 39 + 4 * 30);
    assert_memory_not_equal(a.t[0], a.t[1], 30 * 4);
    assert_memory_not_equal(a.t[2], a.t[1], 30 * 4);
    r = submit(e, p); /* the same again, from the cache */
    collect(r, 4, &b);
    assert_memory_equal(a.t, b.t, sizeof(a.t));
    hx_request_free(r);
    p.n_choices = 1; /* and alone */
    r = submit(e, p);
    collect(r, 1, &b);
    assert_memory_equal(a.t[0], b.t[0], 30 * 4);
    hx_request_free(r);
    hx_engine_close(e);
}

static void test_first_choice_cancelled(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 512, 0, 4, 4);
    static struct reply a;
    int32_t prompt[300];
    make_prompt(prompt, 300, 5);
    script.step_us = 2000;
    struct hx_request_params p = params(prompt, 300, 10);
    p.n_choices = 3;
    struct hx_request *r = submit(e, p);
    while (hx_request_progress(r) < 20)
        usleep(500);
    hx_request_cancel(r, 0); /* it computes the prompt for the others */
    script.step_us = 0;
    collect(r, 3, &a);
    assert_int_equal(a.end[0].reason, HX_END_CANCELLED);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(a.end[i].reason, HX_END_LENGTH);
        expect_greedy(prompt, 300, a.t[i], 10);
    }
    /* What was computed was not computed again. */
    assert_true(script.n_rows < 299 + 2 * 10 + 4);
    hx_request_free(r);
    hx_engine_close(e);
}

static void test_cancel_in_every_phase(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(1, 1024, 0, 8, 4);
    static struct reply a;
    int32_t prompt[300], other[300];
    make_prompt(prompt, 300, 6);
    make_prompt(other, 300, 7);
    script.step_us = 1000;
    struct hx_request *r = submit(e, params(prompt, 300, 400)), *q = submit(e, params(other, 9, 9));
    hx_request_cancel(q, -1); /* queued */
    collect(q, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_CANCELLED);
    hx_request_free(q);
    while (hx_request_progress(r) < 40)
        usleep(500);
    int64_t at = hx_request_progress(r);
    hx_request_cancel(r, 0); /* in prefill: at most one chunk late */
    hx_request_cancel(r, 0);
    collect(r, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_CANCELLED);
    assert_int_equal(a.n[0], 0);
    assert_true(hx_request_progress(r) <= at + 2 * 8);
    int64_t computed = hx_request_progress(r);
    hx_request_free(r);
    r = submit(e, params(prompt, 300, 100));
    struct hx_event ev;
    assert_int_equal(hx_request_wait(r, &ev, 20000), 1);
    assert_int_equal(ev.usage.cached_tok, computed);
    hx_request_cancel(r, -1); /* in decode */
    do
        assert_int_equal(hx_request_wait(r, &ev, 20000), 1);
    while (ev.type != HX_EVENT_END);
    assert_int_equal(ev.reason, HX_END_CANCELLED);
    hx_request_free(r);
    r = submit(e, params(prompt, 300, 100));
    hx_request_free(r); /* freed while it runs */
    struct hx_engine_stats st;
    do {
        usleep(1000);
        hx_engine_stats(e, &st);
    } while (st.finished_abort < 4);
    assert_int_equal(st.cancelled[HX_CANCEL_QUEUED] >= 1, 1);
    assert_int_equal(st.cancelled[HX_CANCEL_PREFILL] >= 1, 1);
    assert_int_equal(st.cancelled[HX_CANCEL_DECODE] >= 1, 1);
    hx_engine_close(e);
}

static void test_queue_limit(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(1, 512, 0, 8, 2);
    int32_t prompt[20];
    make_prompt(prompt, 20, 8);
    atomic_store(&script.hold, 1);
    struct hx_request *r[3];
    for (int i = 0; i < 3; i++)
        r[i] = submit(e, params(prompt + i, 10, 10)); /* one runs, two wait */
    struct hx_request_params p = params(prompt, 10, 10);
    struct hx_request *q = NULL;
    struct hx_error err = {0};
    assert_int_equal(hx_request_submit(e, &p, &q, &err), -EAGAIN);
    assert_string_equal(err.slug, "queue_full");
    struct hx_engine_stats st;
    hx_engine_stats(e, &st);
    assert_true(st.retry_after >= 1 && st.retry_after <= 60);
    struct hx_event ev;
    assert_int_equal(hx_request_wait(r[0], &ev, 20), 0); /* a wait that ends by time */
    atomic_store(&script.hold, 0);
    static struct reply a;
    for (int i = 0; i < 3; i++) {
        collect(r[i], 1, &a);
        expect_greedy(prompt + i, 10, a.t[0], 10);
        hx_request_free(r[i]);
    }
    q = submit(e, p);
    collect(q, 1, &a);
    hx_request_free(q);
    hx_engine_close(e);
}

/* Nobody reads: that sequence stops, the others and the loop go on. */
static void test_slow_reader(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(2, 1024, 0, 8, 2);
    static struct reply a;
    int32_t prompt[20];
    make_prompt(prompt, 20, 9);
    struct hx_request *slow = submit(e, params(prompt, 10, 500));
    struct hx_request *quick = submit(e, params(prompt + 1, 10, 500));
    collect(quick, 1, &a);
    expect_greedy(prompt + 1, 10, a.t[0], 500);
    hx_request_free(quick);
    int before, after;
    do {
        before = script.n_steps;
        usleep(20000);
        after = script.n_steps;
    } while (before != after); /* it sleeps, it does not spin */
    assert_int_equal(hx_request_phase(slow), HX_PHASE_DECODE);
    collect(slow, 1, &a);
    assert_int_equal(a.n[0], 500);
    expect_greedy(prompt, 10, a.t[0], 500);
    hx_request_free(slow);
    hx_engine_close(e);
}

/* A long prefill beside a running stream: the stream gets a token at least every chunk. */
static void test_prefill_does_not_freeze(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(3, 4096, 0, 16, 2);
    static struct reply a;
    static int32_t prompt[2000];
    make_prompt(prompt, 2000, 10);
    script.step_us = 1000;
    struct hx_request *stream = submit(e, params(prompt, 5, 500));
    struct hx_event ev;
    assert_int_equal(hx_request_wait(stream, &ev, 20000), 1);
    struct hx_request *big = submit(e, params(prompt, 1600, 4));
    while (hx_request_progress(big) < 64)
        usleep(500);
    /* A short prompt behind it is not held up to its end. */
    struct hx_request *small = submit(e, params(prompt + 100, 30, 4));
    collect(small, 1, &a);
    assert_true(hx_request_progress(big) < 1600);
    expect_greedy(prompt + 100, 30, a.t[0], 4);
    int64_t from = hx_request_progress(big);
    int n_before = 0, n_tok = 0;
    while (hx_request_next(stream, &ev))
        n_before++;
    usleep(30000);
    while (hx_request_next(stream, &ev))
        n_tok++;
    int64_t chunks = (hx_request_progress(big) - from) / 16;
    assert_true(n_before > 0 && chunks > 3);
    assert_true(n_tok >= chunks - 3);
    assert_true(script.max_prefill <= 16);
    script.step_us = 0;
    hx_request_free(small);
    hx_request_free(stream);
    collect(big, 1, &a);
    expect_greedy(prompt, 1600, a.t[0], 4);
    hx_request_free(big);
    hx_engine_close(e);
}

/* Three sequences that together outgrow the pool. */
static void test_preemption(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 512, 512, 16, 8); /* 8 blocks of 64 */
    static struct reply a;
    int32_t prompt[60];
    struct hx_request *r[3];
    /* None takes a step before all three are there. */
    atomic_store(&script.hold, 1);
    for (int i = 0; i < 3; i++) {
        make_prompt(prompt, 60, 20 + i);
        struct hx_request_params p = params(prompt, 60, 250); /* 5 blocks each */
        p.temperature = i == 2 ? 1.0f : 0;
        p.seed = 5;
        r[i] = submit(e, p);
    }
    atomic_store(&script.hold, 0);
    static struct reply got[3];
    for (int i = 0; i < 3; i++)
        collect(r[i], 1, &got[i]);
    struct hx_engine_stats st;
    hx_engine_stats(e, &st);
    assert_true(st.preemptions > 0);
    for (int i = 0; i < 3; i++) {
        make_prompt(prompt, 60, 20 + i);
        assert_int_equal(got[i].n[0], 250);
        assert_int_equal(got[i].end[0].reason, HX_END_LENGTH);
        if (i < 2)
            expect_greedy(prompt, 60, got[i].t[0], 250);
        hx_request_free(r[i]);
    }
    /* The sampled one alone gives the same. */
    struct hx_request_params p = params(prompt, 60, 250);
    p.temperature = 1;
    p.seed = 5;
    struct hx_request *q = submit(e, p);
    collect(q, 1, &a);
    assert_memory_equal(a.t[0], got[2].t[0], 250 * 4);
    hx_request_free(q);
    /* A prompt that can never fit. */
    static int32_t big[600];
    make_prompt(big, 600, 1);
    p = params(big, 512, 1);
    struct hx_error err = {0};
    assert_int_equal(hx_request_submit(e, &p, &q, &err), -ENOSPC);
    hx_engine_close(e);
}

/* Choices without blocks for their forks start by themselves. */
static void test_fork_without_blocks(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 256, 256, 16, 8); /* 4 blocks */
    static struct reply a;
    int32_t prompt[150];
    make_prompt(prompt, 150, 30);
    struct hx_request_params p = params(prompt, 150, 60);
    p.n_choices = 4;
    struct hx_request *r = submit(e, p);
    collect(r, 4, &a);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a.end[i].reason, HX_END_LENGTH);
        assert_int_equal(a.n[i], 60);
        expect_greedy(prompt, 150, a.t[i], 60);
    }
    hx_request_free(r);
    hx_engine_close(e);
}

/* A fault of one sequence in a batch: it ends with the error, the others do not notice. */
static void test_failing_step(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 512, 0, 64, 8);
    static struct reply a;
    int32_t good[50], bad[50];
    make_prompt(good, 50, 40);
    make_prompt(bad, 50, 41);
    bad[30] = 2; /* neither a prompt nor the model has it */
    script.poison = 2;
    atomic_store(&script.hold, 1);
    struct hx_request *r[3] = {submit(e, params(good, 50, 40)), submit(e, params(bad, 50, 40)),
                               submit(e, params(good + 1, 49, 40))};
    atomic_store(&script.hold, 0);
    for (int i = 0; i < 3; i++) {
        collect(r[i], 1, &a);
        if (i == 1) {
            assert_int_equal(a.end[0].reason, HX_END_ERROR);
            assert_int_equal(a.end[0].error.code, -EIO);
            assert_non_null(strstr(a.end[0].error.text, "scripted fault"));
        } else {
            assert_int_equal(a.n[0], 40);
            expect_greedy(good + i / 2, 50 - i / 2, a.t[0], a.n[0]);
        }
        hx_request_free(r[i]);
    }
    struct hx_error why = {0};
    assert_int_equal(hx_engine_health(e, &why), HX_HEALTH_DEGRADED);
    assert_non_null(strstr(why.text, "scripted fault"));
    /* NaN logits concern one sequence alone. */
    script.poison = -1;
    script.nan_token = good[49];
    struct hx_request *q = submit(e, params(good, 50, 40));
    collect(q, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_ERROR);
    assert_int_equal(a.end[0].error.code, -EDOM);
    hx_request_free(q);
    script.nan_token = -1;
    /* Every token forbidden by bias: an error event, not a hang. */
    static struct hx_logit_bias none[N_VOCAB];
    for (int i = 0; i < N_VOCAB; i++)
        none[i] = (struct hx_logit_bias){i, -100};
    struct hx_request_params p = params(good, 20, 5);
    p.bias = none;
    p.n_bias = N_VOCAB;
    q = submit(e, p);
    collect(q, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_ERROR);
    assert_int_equal(a.end[0].error.code, -EINVAL);
    hx_request_free(q);
    /* The device is gone: everything ends, nothing more is taken. */
    script.poison = good[49]; /* the rest is cached */
    script.poison_code = -ENODEV;
    q = submit(e, params(good, 50, 40));
    collect(q, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_ERROR);
    hx_request_free(q);
    assert_int_equal(hx_engine_health(e, &why), HX_HEALTH_FAILED);
    struct hx_error err = {0};
    p = params(good, 50, 4);
    assert_int_equal(hx_request_submit(e, &p, &q, &err), -ESHUTDOWN);
    assert_string_equal(err.slug, "engine_failed");
    hx_engine_close(e);
}

static void test_close_ends_requests(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(2, 512, 0, 8, 8);
    int32_t prompt[50];
    make_prompt(prompt, 50, 50);
    script.step_us = 500;
    for (int i = 0; i < 6; i++)
        hx_request_free(submit(e, params(prompt + i, 40, 400)));
    hx_engine_close(e); /* joins; leaks and races are the sanitizers' business */
}

/* ---- many callers ---- */

struct caller {
    struct hx_engine *e;
    int seed;
    bool ok;
};

static void *call_often(void *arg)
{
    struct caller *c = arg;
    int32_t prompt[64];
    c->ok = true;
    for (int k = 0; k < 25; k++) {
        int n = 3 + (c->seed * 7 + k * 5) % 50, n_got = 0;
        make_prompt(prompt, n, c->seed % 3 + 60);
        struct hx_request_params p = params(prompt, n, 20);
        struct hx_request *r = NULL;
        struct hx_error err;
        int f = hx_request_submit(c->e, &p, &r, &err);
        if (f == -EAGAIN)
            continue;
        if (f != 0) {
            c->ok = false;
            break;
        }
        int32_t t[200];
        memcpy(t, prompt, (size_t)n * 4);
        struct hx_event ev;
        while (hx_request_wait(r, &ev, 20000)) {
            if (ev.type == HX_EVENT_END)
                break;
            t[n + n_got] = next_token(t, n + n_got);
            c->ok = c->ok && ev.token == t[n + n_got];
            n_got++;
            if ((c->seed + k) % 4 == 0 && n_got == k % 20)
                hx_request_cancel(r, -1);
        }
        hx_request_free(r);
    }
    return NULL;
}

static void test_storm(void **state)
{
    (void)state;
    script_reset();
    struct hx_engine *e = open_engine(4, 256, 320, 16, 4);
    pthread_t thread[8];
    struct caller c[8];
    for (int i = 0; i < 8; i++) {
        c[i] = (struct caller){e, i, false};
        assert_int_equal(pthread_create(&thread[i], NULL, call_often, &c[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], NULL);
        assert_true(c[i].ok);
    }
    struct hx_engine_stats st;
    for (int i = 0; i < 2000; i++) {
        hx_engine_stats(e, &st);
        if (st.running == 0 && st.waiting == 0)
            break;
        usleep(1000);
    }
    assert_int_equal(st.running + st.waiting, 0);
    assert_true(st.kv_usage == 0);
    hx_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_first_choice_cancelled),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_prefill_does_not_freeze),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_fork_without_blocks),
        cmocka_unit_test(test_failing_step),
        cmocka_unit_test(test_close_ends_requests),
        cmocka_unit_test(test_storm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
