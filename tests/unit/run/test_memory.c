/* A whole model opened while allocations fail: -ENOMEM each time, nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "../alloc.h"
#include "run/rank.h"

#if HX_TEST_ALLOC
static void refuse_each(const struct hx_rank_options *opt)
{
    struct hx_error err;
    struct hx_rank *r = NULL;
    /* The first opening warms what libc keeps for itself. */
    assert_int_equal(hx_rank_open(opt, &r, &err), 0);
    hx_rank_close(r);
    int n_refused = 0;
    for (long n = 0;; n += n < 60 ? 1 : 13) {
        long held = alloc_held;
        r = NULL;
        alloc_fail_at(n);
        int e = hx_rank_open(opt, &r, &err);
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
    assert_true(n_refused > 40);
}

static const struct hx_rank_options options = {.backend = "cpu",
                                               .max_tok = 16,
                                               .max_seq = 1,
                                               .max_context = 64,
                                               .kv = {.block_tok = 16, .n_blocks = 8, .n_seqs = 1}};
#endif

static void test_open(void **state)
{
    (void)state;
#if HX_TEST_ALLOC
    struct hx_rank_options opt = options;
    opt.model_dir = "tests/vectors/model";
    refuse_each(&opt);
#else
    skip();
#endif
}

/* One of four ranks with drafter, from a folder and of random weights. */
static void test_rank(void **state)
{
    (void)state;
#if HX_TEST_ALLOC
    struct hx_hparams hp;
    const struct hx_synthetic syn = {.hp = &hp};
    const struct hx_comm_link link = {.fixed_us = 0};
    struct hx_rank_options opt = options;
    struct hx_error err;
    assert_int_equal(hx_hparams_load("tests/vectors/model", &hp, &err), 0);
    assert_int_equal(hx_comm_delay_open(2, 4, &link, &opt.comm, &err), 0);
    opt.slice = (struct hx_slice){2, 4};
    opt.drafts = true;
    opt.model_dir = "tests/vectors/model";
    refuse_each(&opt);
    opt.model_dir = NULL;
    opt.synthetic = &syn;
    refuse_each(&opt);
    hx_comm_close(opt.comm);
#else
    skip();
#endif
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_open),
                                              cmocka_unit_test(test_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
