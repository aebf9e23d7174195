/* The sampler: exact penalties, cuts at their edges, distributions, log-probabilities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "run/sampler.h"

#define V 10

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

static const float base[V] = {0, 1, 2, 3, -1, 2.5f, 3, 0.5f, -4, 1.5f};

static struct hx_request_params params(float temperature)
{
    return (struct hx_request_params){.n_choices = 1,
                                      .temperature = temperature,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .n_logprobs = -1,
                                      .force_after = -1};
}

static struct hx_sampling sampling(const struct hx_request_params *p)
{
    return (struct hx_sampling){.params = p, .forced = -1};
}

static struct hx_sampled pick(const float *logits, int n, const struct hx_sampling *in)
{
    struct hx_sampler *s = NULL;
    struct hx_sampled out = {0};
    CHECK(hx_sampler_new(n, &s, ERR));
    CHECK(hx_sampler_pick(s, logits, in, &out, ERR));
    hx_sampler_free(s);
    return out;
}

static void test_greedy(void **state)
{
    (void)state;
    struct hx_request_params p = params(0);
    struct hx_sampling in = sampling(&p);
    assert_int_equal(pick(base, V, &in).token, 3); /* 3 and 6 are equal: the lower id */
    p.temperature = 0.9e-5f;
    assert_int_equal(pick(base, V, &in).token, 3);
    float zeros[V] = {-1, -0.0f, 0.0f, -0.0f};
    for (int i = 4; i < V; i++)
        zeros[i] = -1;
    assert_int_equal(pick(zeros, V, &in).token, 1); /* -0 equals 0 */
    in.forced = 8;
    assert_int_equal(pick(base, V, &in).token, 8);
}

/* Penalties move a logit by known amounts: greedy shows which side of another one it is on. */
static void test_penalties(void **state)
{
    (void)state;
    struct hx_request_params p = params(0);
    struct hx_sampling in = sampling(&p);
    int32_t counts[V] = {0};
    uint8_t seen[V] = {0};
    in.counts = counts;
    in.seen = seen;
    float two[2] = {3, 2.5f};
    counts[0] = 2;
    seen[0] = 1;
    p.frequency_penalty = 0.25f; /* 3 - 2 x 0.25 = 2.5: a tie goes to the lower id */
    assert_int_equal(pick(two, 2, &in).token, 0);
    p.frequency_penalty = 0.2501f;
    assert_int_equal(pick(two, 2, &in).token, 1);
    p.frequency_penalty = 0;
    p.presence_penalty = 0.5f; /* once, however often */
    assert_int_equal(pick(two, 2, &in).token, 0);
    p.presence_penalty = 0.5001f;
    assert_int_equal(pick(two, 2, &in).token, 1);
    p.presence_penalty = 0;
    p.repetition_penalty = 1.2f; /* 3 / 1.2 = 2.5, in float just below */
    assert_int_equal(pick(two, 2, &in).token, 1);
    p.repetition_penalty = 1.19f;
    assert_int_equal(pick(two, 2, &in).token, 0);
    float negative[2] = {-1, -1.5f}; /* negative ones are multiplied */
    p.repetition_penalty = 1.5f;
    assert_int_equal(pick(negative, 2, &in).token, 0);
    p.repetition_penalty = 1.51f;
    assert_int_equal(pick(negative, 2, &in).token, 1);
    /* Only in the prompt: repetition counts it, frequency and presence do not. */
    counts[0] = 0;
    assert_int_equal(pick(negative, 2, &in).token, 1);
    p.repetition_penalty = 1;
    p.frequency_penalty = p.presence_penalty = 2;
    assert_int_equal(pick(two, 2, &in).token, 0);
    p.frequency_penalty = -2; /* negative penalties favour */
    p.presence_penalty = 0;
    counts[1] = 1;
    assert_int_equal(pick(two, 2, &in).token, 1);
}

static void test_bias_and_bans(void **state)
{
    (void)state;
    struct hx_request_params p = params(0);
    struct hx_sampling in = sampling(&p);
    struct hx_logit_bias add[] = {{3, -0.25f}, {5, 0.75f}};
    p.bias = add;
    p.n_bias = 2;
    assert_int_equal(pick(base, V, &in).token, 5); /* 3.25 beats 3 */
    struct hx_logit_bias ban[] = {{3, -100}, {6, -100}};
    p.bias = ban;
    assert_int_equal(pick(base, V, &in).token, 5);
    struct hx_logit_bias force[] = {{8, 100}, {4, 100}, {3, 50}};
    p.bias = force;
    p.n_bias = 3;
    assert_int_equal(pick(base, V, &in).token, 4); /* the better one of the two forced */
    static const int32_t bans[] = {4, 8};
    p.forbidden = bans;
    p.n_forbidden = 1;
    assert_int_equal(pick(base, V, &in).token, 8);
    p.n_forbidden = 2;
    struct hx_sampler *s = NULL;
    struct hx_sampled out;
    struct hx_error err = {0};
    CHECK(hx_sampler_new(V, &s, ERR));
    assert_int_equal(hx_sampler_pick(s, base, &in, &out, &err), -EINVAL);
    p.n_bias = p.n_forbidden = 0;
    static const int32_t ends[] = {3}, stops[] = {6};
    p.end_tokens = ends;
    p.stop_tokens = stops;
    p.n_end_tokens = p.n_stop_tokens = 1;
    p.min_tokens = 2;
    in.position = 1;
    assert_int_equal(pick(base, V, &in).token, 5);
    in.position = 2;
    assert_int_equal(pick(base, V, &in).token, 3);
    float bad[V];
    memcpy(bad, base, sizeof(bad));
    bad[7] = NAN;
    assert_int_equal(hx_sampler_pick(s, bad, &in, &out, &err), -EDOM);
    assert_non_null(strstr(err.text, "token 7"));
    bad[7] = INFINITY;
    assert_int_equal(hx_sampler_pick(s, bad, &in, &out, &err), -EDOM);
    bad[7] = -INFINITY; /* a token the model excludes is fine */
    CHECK(hx_sampler_pick(s, bad, &in, &out, ERR));
    hx_sampler_free(s);
}

/* Whatever may make another token of the largest logit, or wants more than it, needs them all. */
static void test_takes_best(void **state)
{
    (void)state;
    static const int32_t counts[V], token = 1;
    static const uint8_t seen[V];
    static const struct hx_logit_bias bias = {1, 1};
    const struct {
        float temperature, repetition, frequency, presence;
        int n_logprobs, n_bias, n_forbidden;
        int64_t min_tokens;
        bool best;
    } rows[] = {
        {0, 1, 0, 0, -1, 0, 0, 5, true},        {0.9e-5f, 1, 0, 0, -1, 0, 0, 0, true},
        {1.1e-5f, 1, 0, 0, -1, 0, 0, 0, false}, {0.6f, 1, 0, 0, -1, 0, 0, 0, false},
        {0, 1.1f, 0, 0, -1, 0, 0, 0, false},    {0, 1, 0.1f, 0, -1, 0, 0, 0, false},
        {0, 1, 0, -0.1f, -1, 0, 0, 0, false},   {0, 1, 0, 0, 0, 0, 0, 0, false},
        {0, 1, 0, 0, 3, 0, 0, 0, false},        {0, 1, 0, 0, -1, 1, 0, 0, false},
        {0, 1, 0, 0, -1, 0, 1, 0, false},       {0, 1, 0, 0, -1, 0, 0, 6, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_request_params p = params(rows[i].temperature);
        p.repetition_penalty = rows[i].repetition;
        p.frequency_penalty = rows[i].frequency;
        p.presence_penalty = rows[i].presence;
        p.n_logprobs = rows[i].n_logprobs;
        p.bias = &bias;
        p.n_bias = (size_t)rows[i].n_bias;
        p.forbidden = &token;
        p.n_forbidden = (size_t)rows[i].n_forbidden;
        p.min_tokens = rows[i].min_tokens;
        struct hx_sampling in = sampling(&p);
        in.position = 5;
        in.counts = counts;
        in.seen = seen;
        if (hx_sampler_takes_best(&in) != rows[i].best)
            fail_msg("row %zu: expected %d", i, rows[i].best);
        if (rows[i].best)
            assert_int_equal(pick(base, V, &in).token, 3);
    }
}

/* ---- distributions ---- */

#define DRAWS 20000

/* Chi-square of draws against the distribution of base restricted to `in_set`; every other token
 * must not appear. */
static void expect_distribution(const struct hx_request_params *p, const bool *in_set)
{
    struct hx_sampler *s = NULL;
    int count[V] = {0}, n_set = 0;
    double weight[V] = {0}, total = 0, chi = 0;
    CHECK(hx_sampler_new(V, &s, ERR));
    for (int i = 0; i < DRAWS; i++) {
        struct hx_sampling in = sampling(p);
        struct hx_sampled out;
        in.position = i;
        CHECK(hx_sampler_pick(s, base, &in, &out, ERR));
        count[out.token]++;
    }
    hx_sampler_free(s);
    for (int i = 0; i < V; i++) {
        weight[i] = in_set[i] ? exp(base[i] / (double)p->temperature) : 0;
        total += weight[i];
        n_set += in_set[i];
    }
    for (int i = 0; i < V; i++) {
        double want = DRAWS * weight[i] / total;
        if (!in_set[i])
            assert_int_equal(count[i], 0);
        else
            chi += (count[i] - want) * (count[i] - want) / want;
    }
    /* Mean n - 1, deviation sqrt(2 (n - 1)): four deviations above. */
    double free = n_set - 1;
    if (chi > free + 4 * sqrt(2 * free) + 1e-9)
        fail_msg("chi-square %g with %d tokens", chi, n_set);
}

static void test_distribution(void **state)
{
    (void)state;
    static const bool all[V] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < 3; i++) {
        static const float t[3] = {0.5f, 1, 2};
        struct hx_request_params p = params(t[i]);
        p.seed = 17 + (uint64_t)i;
        expect_distribution(&p, all);
    }
}

static void test_top_k(void **state)
{
    (void)state;
    struct hx_request_params p = params(1);
    bool set[V] = {0};
    set[3] = true; /* of the equal 3 and 6 the lower id */
    p.top_k = 1;
    expect_distribution(&p, set);
    set[6] = true;
    p.top_k = 2;
    expect_distribution(&p, set);
    set[5] = set[2] = true;
    p.top_k = 4;
    expect_distribution(&p, set);
    static const bool all[V] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    p.top_k = V;
    expect_distribution(&p, all);
    p.top_k = V + 5;
    expect_distribution(&p, all);
}

static void test_top_p_and_min_p(void **state)
{
    (void)state;
    struct hx_request_params p = params(1);
    double total = 0;
    for (int i = 0; i < V; i++)
        total += exp(base[i]);
    bool set[V] = {0};
    set[3] = true;
    p.top_p = 1e-6f; /* the best one always stays */
    expect_distribution(&p, set);
    set[6] = true;
    p.top_p = (float)(2 * exp(3) / total - 1e-4); /* just reached by two */
    expect_distribution(&p, set);
    set[5] = true;
    p.top_p = (float)(2 * exp(3) / total + 1e-4); /* just not */
    expect_distribution(&p, set);
    /* top_k first, then top_p of what is left: 3 and 6 are each half. */
    bool one[V] = {0};
    one[3] = true;
    p.top_k = 2;
    p.top_p = 0.4999f;
    expect_distribution(&p, one);
    one[6] = true;
    p.top_p = 0.5001f;
    expect_distribution(&p, one);
    /* min_p: relative to the best one. 2.5 is exp(-0.5) = 0.6065 of it. */
    p = params(1);
    bool min[V] = {0};
    min[3] = min[6] = true;
    p.min_p = 0.61f;
    expect_distribution(&p, min);
    min[5] = true;
    p.min_p = 0.60f;
    expect_distribution(&p, min);
    /* At temperature 2 it is exp(-0.25) = 0.7788. */
    p.temperature = 2;
    p.min_p = 0.77f;
    expect_distribution(&p, min);
    p.min_p = 1;
    min[5] = false;
    expect_distribution(&p, min);
}

static void test_random_numbers(void **state)
{
    (void)state;
    int bucket[20] = {0};
    for (int choice = 0; choice < 4; choice++) {
        for (int64_t i = 0; i < 5000; i++) {
            double u = hx_sampler_uniform(3, choice, i);
            assert_true(u >= 0 && u < 1);
            assert_true(u == hx_sampler_uniform(3, choice, i));
            bucket[(int)(u * 20)]++;
        }
    }
    double chi = 0;
    for (int i = 0; i < 20; i++)
        chi += (bucket[i] - 1000.0) * (bucket[i] - 1000.0) / 1000;
    assert_true(chi < 19 + 4 * sqrt(38));
    assert_true(hx_sampler_uniform(3, 0, 1) != hx_sampler_uniform(3, 1, 0));
    assert_true(hx_sampler_uniform(3, 0, 1) != hx_sampler_uniform(4, 0, 1));
    assert_true(hx_sampler_uniform(3, 0, 1) != hx_sampler_uniform(3, 0, 2));
}

/* Of the model's own distribution, whatever is done to the logits afterwards. */
static void test_logprobs(void **state)
{
    (void)state;
    struct hx_request_params p = params(0.5f);
    struct hx_sampling in = sampling(&p);
    struct hx_logit_bias force[] = {{4, 100}};
    double total = 0;
    for (int i = 0; i < V; i++)
        total += exp(base[i]);
    p.bias = force;
    p.n_bias = 1;
    p.n_logprobs = 4;
    struct hx_sampled out = pick(base, V, &in);
    assert_int_equal(out.token, 4);
    assert_true(fabs(out.logprob - (-1 - log(total))) < 1e-6);
    assert_int_equal(out.n_top, 4);
    static const int32_t best[] = {3, 6, 5, 2};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top[i].token, best[i]);
        assert_true(fabs(out.top[i].logprob - (base[best[i]] - log(total))) < 1e-6);
    }
    p.n_logprobs = 20; /* more than the vocabulary has */
    assert_int_equal(pick(base, V, &in).n_top, V);
    p.n_logprobs = 0;
    out = pick(base, V, &in);
    assert_int_equal(out.n_top, 0);
    assert_true(out.logprob < 0);
}

/* A vocabulary of the released size: the nucleus is found without sorting everything. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 129280 };
    static float logits[N];
    struct hx_sampler *s = NULL;
    struct hx_request_params p = params(1);
    p.top_p = 0.95f;
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 7919L) % N) / N; /* all different, nearly flat */
    logits[100000] = 20;
    logits[7] = 19;
    CHECK(hx_sampler_new(N, &s, ERR));
    int n[2] = {0, 0};
    for (int i = 0; i < 200; i++) {
        struct hx_sampling in = sampling(&p);
        struct hx_sampled out;
        in.position = i;
        CHECK(hx_sampler_pick(s, logits, &in, &out, ERR));
        assert_true(out.token == 100000 || out.token == 7);
        n[out.token == 7]++;
    }
    hx_sampler_free(s);
    assert_true(n[0] > 115 && n[0] < 177); /* 0.731 of 200, five deviations */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),          cmocka_unit_test(test_takes_best),
        cmocka_unit_test(test_penalties),       cmocka_unit_test(test_bias_and_bans),
        cmocka_unit_test(test_distribution),    cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p_and_min_p), cmocka_unit_test(test_random_numbers),
        cmocka_unit_test(test_logprobs),        cmocka_unit_test(test_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
