/* Every allocation of the module fails once: -ENOMEM, nothing leaks, nothing is set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "../alloc.h"
#include "engram/stream.h"
#include "engram/token_map.h"

#if HX_TEST_ALLOC
#include <stdio.h>
#include <stdlib.h>

/* Runs use() with the n-th allocation failing, n = 0, 1, ..., until it needs no more. */
static int sweep(int (*use)(void *user, struct hx_error *err), void *user)
{
    for (int n = 0; n < 1000; n++) {
        struct hx_error err;
        long held = alloc_held;
        alloc_fail_at(n);
        int r = use(user, &err);
        bool failed = alloc_fail_end();
        assert_int_equal(alloc_held, held);
        if (!failed) {
            assert_int_equal(r, 0);
            return n;
        }
        assert_int_equal(r, -ENOMEM);
        assert_non_null(strstr(err.text, "memory"));
    }
    fail_msg("needs more than 1000 allocations");
    return -1;
}

static int use_hash(void *user, struct hx_error *err)
{
    static const int32_t map[8];
    struct hx_engram_hash_config c = {.n_table = 1,
                                      .declared_rows = {2 + 3 + 5 + 7},
                                      .n_gram = 3,
                                      .n_head = 2,
                                      .first_bucket = 1,
                                      .n_compressed = 1,
                                      .token_map = map,
                                      .n_vocab = 8};
    struct hx_engram_hash *h = NULL;
    (void)user;
    int r = hx_engram_hash_new(&c, &h, err);
    hx_engram_hash_free(h);
    return r;
}

static void test_hash(void **state)
{
    (void)state;
    assert_int_equal(sweep(use_hash, NULL), 1);
}

static int use_reader(void *user, struct hx_error *err)
{
    struct hx_engram_table t = {.path = user,
                                .data_offset = 0,
                                .scale_offset = 64 * 32,
                                .n_rows = 64,
                                .row_bytes = 32,
                                .scale_bytes = 1};
    struct hx_engram_reader *r = NULL;
    int64_t rows[60]; /* few enough for qsort to sort without memory of its own */
    uint8_t codes[60 * 32], scales[60];
    int e = hx_engram_pread_open(&t, 1, &r, err);
    for (int i = 0; i < 60; i++)
        rows[i] = i % 50;
    if (e == 0)
        e = r->ops->read(r, 0, rows, 60, codes, scales, err);
    if (r)
        r->ops->close(r);
    return e;
}

static int use_stream(void *user, struct hx_error *err)
{
    struct hx_engram_stream_options o = {.n_tables = 1,
                                         .n_copies = {1},
                                         .depth = 4,
                                         .best = HX_ENGRAM_THREADS_DIRECT,
                                         .n_threads = 1,
                                         .max_rows = 64,
                                         .staging_bytes = 1 << 16,
                                         .table = {{{.path = user,
                                                     .scale_offset = 64 * 32,
                                                     .n_rows = 64,
                                                     .row_bytes = 32,
                                                     .scale_bytes = 1}}}};
    struct hx_engram_stream *s = NULL;
    struct hx_engram_plan *p = NULL;
    int64_t rows[2] = {1, 63};
    int r = hx_engram_stream_open(&o, &s, err);
    if (r == 0)
        r = hx_engram_plan_rows(s, HX_ENGRAM_CHUNK, 0, rows, 2, &p, err);
    if (r == 0)
        r = hx_engram_wait(p, 0, -1, err);
    hx_engram_release(p);
    hx_engram_stream_close(s);
    return r;
}

static void test_reader(void **state)
{
    (void)state;
    char path[] = "/tmp/hx-test-memory-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 64 * 32), 0);
    for (int i = 0; i < 64; i++)
        assert_int_equal(pwrite(fd, "\x7F", 1, 64 * 32 + i), 1);
    close(fd);
    assert_true(sweep(use_reader, path) >= 3);
    /* Once before, since the C library keeps the stacks of threads that have ended. */
    struct hx_error err;
    assert_int_equal(use_stream(path, &err), 0);
    assert_true(sweep(use_stream, path) >= 8);
    unlink(path);
}

static int get_token(void *user, int32_t id, struct hx_token_bytes *out, struct hx_error *err)
{
    static const uint8_t text[400] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)user;
    (void)err;
    *out = (struct hx_token_bytes){text + id, 300, false};
    return 0;
}

static int use_map(void *user, struct hx_error *err)
{
    struct hx_token_source source = {8, get_token, user};
    int32_t map[8], n = -1;
    int r = hx_token_map_build(&source, map, &n, err);
    assert_true(r == 0 || n == -1);
    return r;
}

static void test_map(void **state)
{
    (void)state;
    assert_true(sweep(use_map, NULL) >= 4);
}
#else
static void test_hash(void **state)
{
    (void)state;
    skip();
}
#define test_reader test_hash
#define test_map    test_hash
#endif

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
