/* Drafts change how many steps there are, never a token: every kind of request with and without
 * them, against a scripted model whose drafts are sometimes wrong (scripted.h). */
#include "scripted.h"

#define N_PROMPT 40
#define N_TEXT   100

/* The same request with so many drafts; counters of the engine if wanted. */
static void answer(int drafts, struct hx_request_params p, struct reply *out,
                   struct hx_engine_stats *st)
{
    script_reset();
    script.drafts = drafts;
    struct hx_engine *e = open_engine(4, 512, 0, 16, 4);
    struct hx_request *r = submit(e, p);
    collect(r, p.n_choices, out);
    hx_request_free(r);
    if (st)
        hx_engine_stats(e, st);
    hx_engine_close(e);
}

static void same(struct hx_request_params p)
{
    static struct reply plain, drafted;
    answer(0, p, &plain, NULL);
    for (int drafts = 1; drafts <= HX_MAX_DRAFTS; drafts += 2) {
        answer(drafts, p, &drafted, NULL);
        for (int c = 0; c < p.n_choices; c++) {
            assert_int_equal(drafted.n[c], plain.n[c]);
            assert_memory_equal(drafted.t[c], plain.t[c], (size_t)plain.n[c] * 4);
            assert_int_equal(drafted.end[c].reason, plain.end[c].reason);
            assert_int_equal(drafted.end[c].token, plain.end[c].token);
            assert_int_equal(drafted.end[c].usage.generated_tok, plain.end[c].usage.generated_tok);
        }
    }
}

/* Greedy requests get their tokens without logits, and the same ones with them. */
static void test_best_tokens(void **state)
{
    (void)state;
    int32_t prompt[N_PROMPT];
    static struct reply best, whole;
    make_prompt(prompt, N_PROMPT, 5);
    for (int drafts = 0; drafts <= HX_MAX_DRAFTS; drafts++) {
        struct hx_request_params p = params(prompt, N_PROMPT, N_TEXT);
        answer(drafts, p, &best, NULL);
        assert_int_equal(script.n_best, script.n_steps);
        p.n_logprobs = 0;
        answer(drafts, p, &whole, NULL);
        assert_true(script.n_best < script.n_steps);
        assert_int_equal(best.n[0], N_TEXT);
        assert_memory_equal(best.t[0], whole.t[0], N_TEXT * sizeof(int32_t));
    }
}

static void test_same_text(void **state)
{
    (void)state;
    int32_t prompt[N_PROMPT], end[1];
    static struct reply a;
    make_prompt(prompt, N_PROMPT, 3);
    struct hx_request_params p = params(prompt, N_PROMPT, N_TEXT);
    same(p);
    for (int64_t n = 1; n <= 12; n++) { /* the limit falls at every place of a block */
        p.max_tokens = n;
        same(p);
    }
    answer(0, p, &a, NULL);
    p = params(prompt, N_PROMPT, N_TEXT);
    for (int i = 0; i < 12; i++) { /* and so does an end token */
        end[0] = a.t[0][i];
        p.end_tokens = end;
        same(p);
        p.min_tokens = 20;
        same(p);
        p.min_tokens = 0;
    }
    p = params(prompt, N_PROMPT, N_TEXT);
    p.temperature = 1.5;
    p.top_p = 0.9;
    for (uint64_t seed = 1; seed < 6; seed++) {
        p.seed = seed;
        same(p);
    }
    p.n_choices = 4;
    same(p);
    p.presence_penalty = 0.7;
    p.frequency_penalty = 0.4;
    p.repetition_penalty = 1.3;
    same(p);
    static const int32_t forced[3] = {77, 78, 79};
    p.n_choices = 1;
    p.forced = forced;
    p.n_forced = 3;
    same(p);
    p.force_after = a.t[0][4];
    p.temperature = 0;
    same(p);
    p = params(prompt, 500, N_TEXT); /* the context ends inside a block */
    int32_t wide[500];
    make_prompt(wide, 500, 4);
    p.prompt = wide;
    same(p);
}

static void test_fewer_steps(void **state)
{
    (void)state;
    int32_t prompt[N_PROMPT];
    static struct reply a;
    struct hx_engine_stats st;
    make_prompt(prompt, N_PROMPT, 5);
    struct hx_request_params p = params(prompt, N_PROMPT, N_TEXT);
    answer(0, p, &a, &st);
    int plain = script.n_steps;
    assert_int_equal(st.drafts, 0);
    assert_int_equal(st.draft_tok, 0);
    answer(5, p, &a, &st);
    expect_greedy(prompt, N_PROMPT, a.t[0], N_TEXT);
    assert_true(script.n_steps < plain * 6 / 10);
    assert_true(st.drafts > 0 && st.accepted_tok > 0 && st.accepted_tok < st.draft_tok);
    /* A step gives one token of the target and the drafts that stayed. */
    int decode_steps = script.n_steps - (N_PROMPT - 1 + 15) / 16;
    assert_int_equal(decode_steps + (int)st.accepted_tok, N_TEXT);
    uint64_t sum = 0;
    for (int i = 0; i < HX_MAX_DRAFTS; i++) {
        sum += st.accepted_per_pos[i];
        assert_true(i == 0 || st.accepted_per_pos[i] <= st.accepted_per_pos[i - 1]);
    }
    assert_int_equal(sum, st.accepted_tok);
    assert_int_equal(st.accepted_per_pos[5] + st.accepted_per_pos[6], 0);
    assert_int_equal(st.generated_tok, N_TEXT);
}

/* Several at once with few blocks: sequences stop, come back, and read the same. */
static void test_crowd(void **state)
{
    (void)state;
    static struct reply a[12];
    struct hx_request *r[12];
    int32_t prompt[12][N_PROMPT];
    script_reset();
    script.drafts = 5;
    struct hx_engine *e = open_engine(8, 512, 640, 16, 12);
    for (int i = 0; i < 12; i++) {
        make_prompt(prompt[i], N_PROMPT, i + 1);
        r[i] = submit(e, params(prompt[i], N_PROMPT, N_TEXT));
    }
    for (int i = 0; i < 12; i++) {
        collect(r[i], 1, &a[i]);
        assert_int_equal(a[i].n[0], N_TEXT);
        expect_greedy(prompt[i], N_PROMPT, a[i].t[0], N_TEXT);
        hx_request_free(r[i]);
    }
    hx_engine_close(e);
}

/* A second turn finds the first one's text in the prefix cache: nothing of a rejected draft. */
static void test_prefix_behind_drafts(void **state)
{
    (void)state;
    static struct reply a;
    int32_t t[N_PROMPT + N_TEXT + 100];
    script_reset();
    script.drafts = 5;
    struct hx_engine *e = open_engine(2, 512, 0, 16, 4);
    int n = N_PROMPT;
    make_prompt(t, n, 6);
    for (int turn = 0; turn < 4; turn++) {
        struct hx_request *r = submit(e, params(t, n, 25));
        collect(r, 1, &a);
        expect_greedy(t, n, a.t[0], 25);
        if (turn > 0)
            assert_int_equal(a.end[0].usage.cached_tok, n - 1);
        hx_request_free(r);
        memcpy(t + n, a.t[0], 25 * sizeof(*t));
        n += 25;
    }
    hx_engine_close(e);
}

static void test_faults(void **state)
{
    (void)state;
    static struct reply a;
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, 7);
    script_reset();
    script.drafts = 5;
    struct hx_engine *e = open_engine(2, 512, 0, 16, 4);
    script.draft_fault = -EIO;
    struct hx_request *r = submit(e, params(prompt, N_PROMPT, 30));
    collect(r, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_ERROR);
    assert_non_null(strstr(a.end[0].error.text, "drafts: scripted fault of the drafter"));
    hx_request_free(r);
    script.draft_fault = 0;
    /* NaN behind an accepted draft: what came before it was delivered. */
    script.nan_token = -1;
    r = submit(e, params(prompt, N_PROMPT, 30));
    collect(r, 1, &a);
    expect_greedy(prompt, N_PROMPT, a.t[0], 30);
    hx_request_free(r);
    script.nan_token = a.t[0][10];
    r = submit(e, params(prompt, N_PROMPT, 30));
    collect(r, 1, &a);
    assert_int_equal(a.end[0].reason, HX_END_ERROR);
    expect_greedy(prompt, N_PROMPT, a.t[0], a.n[0]);
    assert_int_equal(a.n[0], 11);
    hx_request_free(r);
    hx_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_tokens),          cmocka_unit_test(test_same_text),
        cmocka_unit_test(test_fewer_steps),          cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_prefix_behind_drafts), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
