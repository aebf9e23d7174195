/* Opening an engine and submitting while allocations fail: -ENOMEM each time, nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "../alloc.h"

#include <hx/request.h>

static void test_submit(void **state)
{
    (void)state;
#if HX_TEST_ALLOC
    struct hx_engine_options o = {.model_dir = "tests/vectors/model",
                                  .backend = "cpu",
                                  .max_sequences = 2,
                                  .max_context = 64,
                                  .prefill_chunk = 16,
                                  .queue = 4};
    static const int32_t list[] = {7, 8, 9};
    static const struct hx_logit_bias bias[] = {{3, 1}};
    struct hx_request_params p = {.prompt = list,
                                  .n_prompt = 3,
                                  .n_choices = 2,
                                  .max_tokens = 2,
                                  .top_p = 1,
                                  .repetition_penalty = 1.1f,
                                  .n_logprobs = 3,
                                  .bias = bias,
                                  .n_bias = 1,
                                  .end_tokens = list,
                                  .n_end_tokens = 1,
                                  .stop_tokens = list,
                                  .n_stop_tokens = 1,
                                  .forbidden = list + 2,
                                  .n_forbidden = 1,
                                  .force_after = -1};
    struct hx_error err;
    struct hx_engine *e = NULL;
    assert_int_equal(hx_engine_open(&o, &e, &err), 0);
    int n_refused = 0;
    for (long n = 0;; n++) {
        struct hx_request *r = NULL;
        long held = alloc_held;
        alloc_fail_at(n);
        int f = hx_request_submit(e, &p, &r, &err);
        alloc_fail_end(); /* also refused to the step thread's cache, which does without */
        if (f == 0) {
            hx_request_free(r);
            break;
        }
        assert_int_equal(f, -ENOMEM);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_int_equal(alloc_held, held);
        n_refused++;
    }
    assert_true(n_refused >= 12);
    hx_engine_close(e);
    /* Opening: everything up to the step thread. */
    n_refused = 0;
    for (long n = 0;; n += n < 40 ? 1 : 29) {
        long held = alloc_held;
        alloc_fail_at(n);
        int f = hx_engine_open(&o, &e, &err);
        bool failed = alloc_fail_end();
        if (f == 0) {
            hx_engine_close(e);
            if (!failed)
                break;
            continue; /* a reader without a buffer of its own did without */
        }
        assert_true(f == -ENOMEM || f == -EAGAIN);
        assert_int_equal(alloc_held, held);
        n_refused++;
    }
    assert_true(n_refused > 40);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_submit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
