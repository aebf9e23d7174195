/* Joins between ranks: values, order of sums, ranks that are late, elsewhere or gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/numerics.h"
#include "base/rand.h"
#include "comm/comm.h"

#define N 4

static const struct hx_backend *be;

struct party {
    struct hx_comm_group *g;
    int rank, r;
    int (*body)(struct party *p, struct hx_comm *c, struct hx_device *dev);
    struct hx_error err;
    uint16_t narrow[1000];
    float wide[1000], all[N * 1000];
    int32_t tokens[32];
};

static void *attend(void *user)
{
    struct party *p = user;
    struct hx_comm *c;
    struct hx_device *dev;
    p->r = hx_comm_thread_open(p->g, p->rank, &c, &p->err);
    if (p->r < 0)
        return NULL;
    p->r = be->open(0, &dev, &p->err);
    if (p->r == 0) {
        p->r = p->body(p, c, dev);
        be->close(dev);
    }
    hx_comm_close(c);
    return NULL;
}

/* All ranks do the same. */
static struct party *meet(int (*body)(struct party *, struct hx_comm *, struct hx_device *),
                          bool wide, int timeout_ms)
{
    struct party *p = calloc(N, sizeof(*p));
    struct hx_comm_group *g;
    pthread_t thread[N];
    assert_non_null(p);
    be = hx_backend_select("cpu", NULL);
    assert_int_equal(hx_comm_group_open(N, wide, timeout_ms, &g, NULL), 0);
    for (int r = 0; r < N; r++) {
        p[r].g = g;
        p[r].rank = r;
        p[r].body = body;
        assert_int_equal(pthread_create(&thread[r], NULL, attend, &p[r]), 0);
    }
    for (int r = 0; r < N; r++)
        pthread_join(thread[r], NULL);
    hx_comm_group_close(g);
    return p;
}

/* ---- values ---- */

static float value(int rank, int i)
{
    struct hx_rng g;
    hx_rng_seed(&g, (uint64_t)(rank * 1000 + i + 1));
    return ldexpf((float)(hx_rng_uniform(&g) * 2 - 1), i % 24 - 12);
}

static int many_sums(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {10, 100, 1, 1}, p->narrow}, part = y;
    if (c->wide)
        part = (struct hx_tensor){HX_DTYPE_F32, 2, {10, 100, 1, 1}, p->wide};
    int r = 0;
    /* Often, and shorter in between: buffers alternate and are used again. */
    for (int k = 0; r == 0 && k < 200; k++) {
        y.ne[0] = part.ne[0] = k % 7 + 1;
        r = c->ops->sum(c, be, dev, &part, &y, &p->err);
    }
    y.ne[0] = part.ne[0] = 10;
    for (int i = 0; i < 1000; i++) {
        p->wide[i] = value(p->rank, i);
        p->narrow[i] = hx_bf16(p->wide[i]);
    }
    return r < 0 ? r : c->ops->sum(c, be, dev, &part, &y, &p->err);
}

static void test_sums_in_rank_order(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct party *p = meet(many_sums, wide, 60000);
        for (int i = 0; i < 1000; i++) {
            float sum = 0;
            for (int r = 0; r < N; r++) {
                float x = value(r, i);
                x = wide ? x : hx_bf16_round(x);
                sum = r == 0 ? x : sum + x;
            }
            for (int r = 0; r < N; r++) {
                assert_int_equal(p[r].r, 0);
                assert_int_equal(p[r].narrow[i], hx_bf16(sum));
            }
        }
        free(p);
    }
}

static int gather_rows(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor mine = {HX_DTYPE_F32, 2, {5, 7, 1, 1}, p->wide},
                     all = {HX_DTYPE_F32, 2, {5, 7 * N, 1, 1}, p->all};
    for (int i = 0; i < 35; i++)
        p->wide[i] = (float)(1000 * p->rank + i);
    return c->ops->gather(c, be, dev, &mine, &all, &p->err);
}

static void test_gather(void **state)
{
    struct party *p = meet(gather_rows, false, 60000);
    (void)state;
    for (int r = 0; r < N; r++) {
        assert_int_equal(p[r].r, 0);
        for (int t = 0; t < 5; t++) {
            for (int c = 0; c < 7 * N; c++)
                assert_true(p[r].all[t * 7 * N + c] == (float)(1000 * (c / 7) + t * 7 + c % 7));
        }
    }
    free(p);
}

/* Three sequences of blocks of two; what matters is draft 1. Equal bests: the lower id. */
static int choose(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    static const float best[3][N] = {{1, 4, 2, 3}, {5, 5, 5, 5}, {-9, -8, -7, -7}};
    struct hx_tensor logits = {HX_DTYPE_F32, 3, {3, 2, 10, 1}, p->wide},
                     tokens = {HX_DTYPE_I32, 2, {3, 3, 1, 1}, p->tokens};
    for (int i = 0; i < 60; i++)
        p->wide[i] = -100;
    for (int s = 0; s < 3; s++) {
        p->wide[(s * 2 + 1) * 10 + 3 + s] = best[s][p->rank];
        p->tokens[s * 3] = 70 + s;
        p->tokens[s * 3 + 1] = 80 + s;
        p->tokens[s * 3 + 2] = 3 + s;
    }
    return c->ops->best(c, be, dev, &logits, 1, &tokens, &p->err);
}

static void test_best(void **state)
{
    static const int32_t want[] = {70, 80, 13, 71, 81, 4, 72, 82, 25};
    struct party *p = meet(choose, false, 60000);
    (void)state;
    for (int r = 0; r < N; r++) {
        assert_int_equal(p[r].r, 0);
        assert_memory_equal(p[r].tokens, want, sizeof(want));
    }
    free(p);
}

/* ---- ranks that do not play along ---- */

static int one_stays_away(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {1, 8, 1, 1}, p->narrow};
    int r = c->ops->sum(c, be, dev, &y, &y, &p->err);
    return r < 0 || p->rank == 2 ? r : c->ops->sum(c, be, dev, &y, &y, &p->err);
}

static void test_late_rank(void **state)
{
    struct party *p = meet(one_stays_away, false, 4000);
    (void)state;
    for (int r = 0; r < N; r++) {
        assert_int_equal(p[r].r, r == 2 ? 0 : -ETIMEDOUT);
        if (r != 2 && !strstr(p[r].err.text, "rank 2 did not come to join 2 within 4000 ms"))
            fail_msg("%s", p[r].err.text);
    }
    free(p);
}

static int one_is_elsewhere(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {1, p->rank == 3 ? 16 : 8, 1, 1}, p->narrow};
    return c->ops->sum(c, be, dev, &y, &y, &p->err);
}

static void test_rank_elsewhere(void **state)
{
    struct party *p = meet(one_is_elsewhere, false, 60000);
    (void)state;
    for (int r = 0; r < N; r++) {
        assert_int_equal(p[r].r, -EPROTO);
        assert_non_null(strstr(p[r].err.text, "16"));
    }
    free(p);
}

static int one_stops(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {1, 8, 1, 1}, p->narrow};
    if (p->rank == 0) {
        struct hx_error why;
        int r = hx_fail(&why, -EIO, "drive on fire");
        c->ops->stop(c, &why);
        return r;
    }
    int r = c->ops->sum(c, be, dev, &y, &y, &p->err);
    struct hx_error again;
    return r == c->ops->sum(c, be, dev, &y, &y, &again) ? r : -EINVAL;
}

static void test_stopped_rank(void **state)
{
    struct party *p = meet(one_stops, false, 60000);
    (void)state;
    for (int r = 1; r < N; r++) {
        assert_int_equal(p[r].r, -ECANCELED);
        assert_non_null(strstr(p[r].err.text, "rank 0 stopped: drive on fire"));
    }
    free(p);
}

static int bad_choice(struct party *p, struct hx_comm *c, struct hx_device *dev)
{
    struct hx_tensor logits = {HX_DTYPE_F32, 3, {1, 1, 10, 1}, p->wide},
                     tokens = {HX_DTYPE_I32, 2, {1, 2, 1, 1}, p->tokens};
    p->tokens[1] = 10;
    return c->ops->best(c, be, dev, &logits, 0, &tokens, &p->err);
}

static void test_limits(void **state)
{
    struct hx_comm_group *g;
    struct hx_comm *c;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_comm_group_open(0, false, 10, &g, &err), -EINVAL);
    assert_int_equal(hx_comm_group_open(65, false, 10, &g, &err), -EINVAL);
    assert_int_equal(hx_comm_group_open(2, false, 0, &g, &err), -EINVAL);
    assert_int_equal(hx_comm_group_open(2, false, 10, &g, &err), 0);
    assert_int_equal(hx_comm_thread_open(g, 2, &c, &err), -EINVAL);
    assert_int_equal(hx_comm_thread_open(g, -1, &c, &err), -EINVAL);
    hx_comm_group_close(g);
    struct party *p = meet(bad_choice, false, 1000);
    for (int r = 0; r < N; r++)
        assert_int_equal(p[r].r, -ERANGE);
    free(p);
}

/* ---- one rank alone ---- */

static void test_link_model(void **state)
{
    /* spec performance.md 2.4: 61,440 bytes on Gen2 x16: 20.0 us; twice that; a fixed time. */
    const struct hx_comm_link link = {-1, 2.9, 6.5, 1}, twice = {-1, 2.9, 6.5, 2},
                              none = {-1, 2.9, 6.5, 0}, fixed = {100, 2.9, 6.5, 2},
                              bad = {-1, 2.9, 0, 1};
    struct hx_comm *c;
    struct hx_error err;
    (void)state;
    assert_true(fabs(hx_comm_link_seconds(&link, 4, 61440) - 19.98e-6) < 0.01e-6);
    assert_true(fabs(hx_comm_link_seconds(&twice, 4, 61440) - 39.96e-6) < 0.01e-6);
    assert_true(fabs(hx_comm_link_seconds(&fixed, 4, 61440) - 200e-6) < 1e-9);
    assert_true(hx_comm_link_seconds(&none, 4, 61440) == 0);
    assert_true(hx_comm_link_seconds(&link, 1, 61440) == 0);
    assert_int_equal(hx_comm_delay_open(0, 4, &bad, &c, &err), -EINVAL);
    assert_int_equal(hx_comm_delay_open(4, 4, &link, &c, &err), -EINVAL);
    assert_int_equal(hx_comm_delay_open(3, 4, &link, &c, &err), 0);
    be = hx_backend_select("cpu", NULL);
    struct hx_device *dev;
    assert_int_equal(be->open(0, &dev, &err), 0);
    uint16_t y[512] = {1, 2, 3}, before[512];
    memcpy(before, y, sizeof(y));
    struct hx_tensor t = {HX_DTYPE_BF16, 2, {2, 256, 1, 1}, y};
    for (int i = 0; i < 3; i++)
        assert_int_equal(c->ops->sum(c, be, dev, &t, &t, &err), 0);
    assert_memory_equal(y, before, sizeof(y));
    struct hx_comm_spent s = hx_comm_delay_spent(c);
    assert_int_equal(s.n_joins, 3);
    assert_int_equal(s.bytes, 3 * 1024);
    assert_true(fabs(s.seconds - 3 * hx_comm_link_seconds(&link, 4, 1024)) < 1e-12);
    assert_int_equal(hx_comm_delay_spent(c).n_joins, 0);
    hx_comm_close(c);
    be->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_in_rank_order),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_rank_elsewhere),
        cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_link_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
