/* The tiny model with and without drafts: 20 prompts, 2,000 tokens, the same text; one half greedy,
 * the other sampled. All at once with drafts, one by one without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <hx/request.h>

#define MODEL    "tests/vectors/model"
#define N_PROMPT 20
#ifdef __SANITIZE_ADDRESS__
#define N_TEXT 10 /* the full length is for the fast build */
#else
#define N_TEXT 100
#endif

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

static struct hx_engine *open_engine(int drafts)
{
    struct hx_engine_options o = {.model_dir = MODEL,
                                  .engram_slow_ms = 60000,
                                  .backend = "cpu",
                                  .mode = HX_MODE_W8A16,
                                  .max_sequences = 8,
                                  .max_context = 512,
                                  .prefill_chunk = 32,
                                  .drafts = drafts,
                                  .gate = 0,
                                  .queue = N_PROMPT};
    struct hx_engine *e = NULL;
    CHECK(hx_engine_open(&o, &e, ERR));
    return e;
}

static struct hx_request *ask(struct hx_engine *e, int i)
{
    int32_t prompt[64];
    int n = 3 + 3 * i;
    for (int k = 0; k < n; k++)
        prompt[k] = 3 + (k * 31 + i * 97 + k * k * (i + 1)) % 470;
    struct hx_request_params p = {.prompt = prompt,
                                  .n_prompt = (size_t)n,
                                  .n_choices = 1,
                                  .max_tokens = N_TEXT,
                                  .temperature = i % 2 ? 0.7 : 0,
                                  .seed = (uint64_t)i,
                                  .top_p = 0.95,
                                  .repetition_penalty = 1,
                                  .n_logprobs = -1,
                                  .force_after = -1};
    struct hx_request *r = NULL;
    CHECK(hx_request_submit(e, &p, &r, ERR));
    return r;
}

static void collect(struct hx_request *r, int32_t text[N_TEXT])
{
    int n = 0;
    for (;;) {
        struct hx_event ev;
        if (!hx_request_wait(r, &ev, 60000))
            fail_msg("no event in 60 s");
        if (ev.type == HX_EVENT_END) {
            assert_int_equal(ev.reason, HX_END_LENGTH);
            break;
        }
        assert_true(n < N_TEXT);
        text[n++] = ev.token;
    }
    assert_int_equal(n, N_TEXT);
    hx_request_free(r);
}

static void test_same_text(void **state)
{
    (void)state;
    static int32_t plain[N_PROMPT][N_TEXT], drafted[N_PROMPT][N_TEXT];
    struct hx_engine *e = open_engine(0);
    for (int i = 0; i < N_PROMPT; i++)
        collect(ask(e, i), plain[i]);
    hx_engine_close(e);
    struct hx_request *r[N_PROMPT];
    struct hx_engine_stats st;
    e = open_engine(5);
    for (int i = 0; i < N_PROMPT; i++)
        r[i] = ask(e, i);
    for (int i = 0; i < N_PROMPT; i++)
        collect(r[i], drafted[i]);
    hx_engine_stats(e, &st);
    hx_engine_close(e);
    print_message("%llu blocks, %llu drafts verified, %llu stayed\n", (unsigned long long)st.drafts,
                  (unsigned long long)st.draft_tok, (unsigned long long)st.accepted_tok);
    assert_true(st.accepted_tok > 0);
    for (int i = 0; i < N_PROMPT; i++) {
        for (int k = 0; k < N_TEXT; k++) {
            if (drafted[i][k] != plain[i][k])
                fail_msg("prompt %d, token %d: %d with drafts, %d without", i, k, drafted[i][k],
                         plain[i][k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
