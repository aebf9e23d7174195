/* Step planning as a table; the token ring; generation_config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "run/engine_impl.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

#define D                                                                                          \
    {                                                                                              \
        0, true, false, 0                                                                          \
    } /* decodes */
#define P(n)                                                                                       \
    {                                                                                              \
        n, true, false, 0                                                                          \
    } /* has n tokens to prefill */
#define STALLED                                                                                    \
    {                                                                                              \
        0, false, false, 0                                                                         \
    }
#define SOLO(n)                                                                                    \
    {                                                                                              \
        n, true, true, 0                                                                           \
    }
#define SOLO_STUCK                                                                                 \
    {                                                                                              \
        0, false, true, 0                                                                          \
    }

static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct hx_plan_item item[5];
        int n, chunk;
        uint64_t turn;
        struct {
            int item, n_tok;
        } want[5];
        int n_want;
    } rows[] = {
        {"nothing", {D}, 0, 8, 0, {{0, 0}}, 0},
        {"decode", {D, D}, 2, 8, 0, {{0, 1}, {1, 1}}, 2},
        {"a reader behind", {D, STALLED, D}, 3, 8, 0, {{0, 1}, {2, 1}}, 2},
        {"all readers behind", {STALLED}, 1, 8, 0, {{0, 0}}, 0},
        {"decode before prefill", {P(100), D}, 2, 8, 0, {{1, 1}, {0, 8}}, 2},
        {"last chunk", {P(5), D}, 2, 8, 0, {{1, 1}, {0, 5}}, 2},
        {"even shares", {P(100), P(100)}, 2, 8, 0, {{0, 4}, {1, 4}}, 2},
        {"what one leaves", {P(2), P(100)}, 2, 8, 0, {{0, 2}, {1, 6}}, 2},
        {"what the last leaves", {P(100), P(2)}, 2, 8, 0, {{0, 6}, {1, 2}}, 2},
        {"remainder", {P(9), P(9), P(9)}, 3, 8, 0, {{0, 4}, {1, 2}, {2, 2}}, 3},
        {"remainder goes round", {P(9), P(9), P(9)}, 3, 8, 1, {{1, 4}, {2, 2}, {0, 2}}, 3},
        {"fewer rows than sequences", {P(9), P(9), P(9)}, 3, 2, 0, {{0, 2}}, 1},
        {"fewer rows, next turn", {P(9), P(9), P(9)}, 3, 2, 1, {{1, 2}}, 1},
        {"one row", {P(1), P(9), D}, 3, 1, 1, {{2, 1}, {1, 1}}, 2},
        {"solo", {P(9), SOLO(0), D}, 3, 8, 0, {{1, 1}}, 1},
        {"solo prefill", {D, SOLO(9)}, 2, 8, 0, {{1, 8}}, 1},
        {"solo behind its reader", {D, SOLO_STUCK}, 2, 8, 0, {{0, 1}}, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_plan_rows got[5];
        int n = hx_plan_step(rows[i].item, rows[i].n, rows[i].chunk, rows[i].turn, got);
        bool same = n == rows[i].n_want;
        for (int k = 0; same && k < n; k++)
            same = got[k].item == rows[i].want[k].item && got[k].n_tok == rows[i].want[k].n_tok &&
                   got[k].logits == (rows[i].item[got[k].item].prefill_tok == 0);
        if (!same)
            fail_msg("%s: %d rows, first %d x %d", rows[i].name, n, got[0].item, got[0].n_tok);
    }
}

/* Whatever the mix: the budget holds, nobody gets more than it has left, everybody gets a turn. */
static void test_budget_and_turns(void **state)
{
    (void)state;
    for (int chunk = 1; chunk <= 20; chunk++) {
        struct hx_plan_item item[6] = {P(50), P(3), D, P(1), P(70), P(9)};
        int n_given[6] = {0};
        for (uint64_t turn = 0; turn < 400; turn++) {
            struct hx_plan_rows rows[6];
            int n = hx_plan_step(item, 6, chunk, turn, rows), prefill = 0;
            for (int k = 0; k < n; k++) {
                int i = rows[k].item;
                n_given[i]++;
                if (item[i].prefill_tok == 0)
                    continue;
                assert_true(rows[k].n_tok >= 1 && rows[k].n_tok <= item[i].prefill_tok);
                prefill += rows[k].n_tok;
                item[i].prefill_tok -= rows[k].n_tok;
            }
            assert_true(prefill <= chunk);
        }
        for (int i = 0; i < 6; i++) {
            assert_true(n_given[i] > 0);
            assert_int_equal(item[i].prefill_tok, 0);
        }
        assert_int_equal(n_given[2], 400); /* decode in every step */
    }
}

static void test_victim_and_admission(void **state)
{
    (void)state;
    struct hx_plan_item item[3] = {{.order = 5}, {.order = 9}, {.order = 2}};
    assert_int_equal(hx_plan_victim(item, 3), 1);
    assert_int_equal(hx_plan_victim(item, 1), 0);
    assert_int_equal(hx_plan_victim(item, 0), -1);
    assert_true(hx_plan_admits(1, 1, 5, 7, 2));
    assert_false(hx_plan_admits(1, 1, 5, 6, 2)); /* one block for each that runs */
    assert_false(hx_plan_admits(2, 1, 5, 99, 2));
    assert_true(hx_plan_admits(1, 1, 5, 0, 0)); /* alone: it is tried */
}

/* ---- ring ---- */

static struct hx_sampled token(int i)
{
    struct hx_sampled t = {.token = i, .logprob = -(float)i, .n_top = 2};
    t.top[0] = (struct hx_token_logprob){i, 1};
    t.top[1] = (struct hx_token_logprob){i + 1, 2};
    return t;
}

static void test_ring(void **state)
{
    (void)state;
    struct hx_stream s;
    struct hx_stream_item item;
    struct hx_token_logprob top[HX_MAX_TOP_LOGPROBS];
    bool wake = false;
    CHECK(hx_stream_init(&s, 4, 2, ERR));
    assert_false(hx_stream_pop(&s, &item, top, &wake));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            assert_true(hx_stream_has_room(&s));
            struct hx_sampled t = token(round * 4 + i);
            hx_stream_push(&s, &t, i + 1);
        }
        assert_false(hx_stream_has_room(&s));
        for (int i = 0; i < 4; i++) {
            assert_true(hx_stream_pop(&s, &item, top, &wake));
            assert_int_equal(item.token, round * 4 + i);
            assert_int_equal(item.generated_tok, i + 1);
            assert_int_equal(top[1].token, item.token + 1);
            assert_int_equal(wake, i == 0); /* the first pop after a stall, once */
        }
        assert_true(hx_stream_is_empty(&s));
    }
    hx_stream_done(&s);
    /* More best tokens than there is room for are cut. */
    CHECK(hx_stream_init(&s, 4, 1, ERR));
    struct hx_sampled t = token(1);
    hx_stream_push(&s, &t, 1);
    assert_true(hx_stream_pop(&s, &item, top, &wake));
    assert_int_equal(item.n_top, 1);
    hx_stream_done(&s);
}

#define MANY 200000

static void *produce(void *arg)
{
    struct hx_stream *s = arg;
    for (int i = 0; i < MANY;) {
        if (!hx_stream_has_room(s))
            continue;
        struct hx_sampled t = token(i);
        hx_stream_push(s, &t, i++);
    }
    return NULL;
}

static void test_ring_between_threads(void **state)
{
    (void)state;
    struct hx_stream s;
    pthread_t thread;
    CHECK(hx_stream_init(&s, 8, 2, ERR));
    assert_int_equal(pthread_create(&thread, NULL, produce, &s), 0);
    for (int i = 0; i < MANY;) {
        struct hx_stream_item item;
        struct hx_token_logprob top[HX_MAX_TOP_LOGPROBS];
        bool wake;
        if (!hx_stream_pop(&s, &item, top, &wake))
            continue;
        assert_int_equal(item.token, i);
        assert_int_equal(top[0].token, i);
        i++;
    }
    pthread_join(thread, NULL);
    hx_stream_done(&s);
}

/* ---- histograms, generation_config.json ---- */

static void test_histogram(void **state)
{
    (void)state;
    struct hx_histogram h = {0};
    assert_true(hx_histogram_n_seconds < HX_HISTOGRAM_MAX);
    assert_true(hx_histogram_n_tokens < HX_HISTOGRAM_MAX);
    assert_true(hx_histogram_bounds_seconds[hx_histogram_n_seconds - 1] == 3600);
    hx_histogram_add(&h, hx_histogram_bounds_seconds, hx_histogram_n_seconds, 0.001);
    hx_histogram_add(&h, hx_histogram_bounds_seconds, hx_histogram_n_seconds, 0.0011);
    hx_histogram_add(&h, hx_histogram_bounds_seconds, hx_histogram_n_seconds, 5000);
    assert_int_equal(h.bucket[0], 1);
    assert_int_equal(h.bucket[1], 1);
    assert_int_equal(h.bucket[hx_histogram_n_seconds], 1);
    assert_int_equal(h.count, 3);
    assert_true(h.sum > 5000);
}

static void test_generation_config(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int r;
        double temperature, top_p;
        const char *says;
    } rows[] = {
        {NULL, 0, 1, 0.95, NULL},
        {"{\"temperature\": 0.6, \"top_p\": 0.9, \"eos_token_id\": 1}", 0, 0.6, 0.9, NULL},
        {"{\"temperature\": 0, \"top_p\": null}", 0, 0, 0.95, NULL},
        {"{}", 0, 1, 0.95, NULL},
        {"{\"temperature\": \"hot\"}", -EINVAL, 1, 0.95, "temperature is a string"},
        {"{\"temperature\": 3}", -EINVAL, 1, 0.95, "temperature is 3: expected at least 0"},
        {"{\"temperature\": 0.5, \"top_p\": 0}", -EINVAL, 1, 0.95, "top_p is 0: expected more"},
        {"[1]", -EINVAL, 1, 0.95, "expected an object"},
        {"{\"temperature\": ", -EINVAL, 1, 0.95, "generation_config.json: "},
    };
    char dir[] = "/tmp/hx-test-gen-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = hx_path_join(dir, "generation_config.json");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double t = 1, p = 0.95;
        struct hx_error err = {0};
        if (rows[i].text)
            CHECK(hx_file_replace(path, rows[i].text, strlen(rows[i].text), ERR));
        assert_int_equal(hx_generation_load(dir, &t, &p, &err), rows[i].r);
        assert_true(t == rows[i].temperature && p == rows[i].top_p);
        if (rows[i].says && !strstr(err.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
    unlink(path);
    rmdir(dir);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_budget_and_turns),
        cmocka_unit_test(test_victim_and_admission),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_ring_between_threads),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
