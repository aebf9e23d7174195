/* A whole model opened while allocations fail: -ENOMEM each time, nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "../alloc.h"
#include "run/rank.h"

static void test_open(void **state)
{
    (void)state;
#if HX_TEST_ALLOC
    struct hx_rank_options opt = {.model_dir = "tests/vectors/model",
                                  .backend = "cpu",
                                  .max_tok = 16,
                                  .max_seq = 1,
                                  .max_context = 64,
                                  .kv = {.block_tok = 16, .n_blocks = 8, .n_seqs = 1}};
    struct hx_error err;
    struct hx_rank *r = NULL;
    /* The first opening warms what libc keeps for itself. */
    assert_int_equal(hx_rank_open(&opt, &r, &err), 0);
    hx_rank_close(r);
    int n_refused = 0;
    for (long n = 0;; n += n < 60 ? 1 : 13) {
        long held = alloc_held;
        r = NULL;
        alloc_fail_at(n);
        int e = hx_rank_open(&opt, &r, &err);
        bool failed = alloc_fail_end();
        if (e == 0)
            hx_rank_close(r);
        if (alloc_held != held)
            fail_msg("allocation %ld: %ld blocks leak", n, alloc_held - held);
        if (!failed) {
            assert_int_equal(e, 0);
            break;
        }
        if (e != -ENOMEM || !strstr(err.text, "memory"))
            fail_msg("allocation %ld: returned %d, '%s'", n, e, e < 0 ? err.text : "");
        n_refused++;
    }
    assert_true(n_refused > 60);
#else
    skip();
#endif
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
