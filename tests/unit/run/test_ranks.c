/* A model cut into ranks, all of them in this process, against the same model whole: equal tokens,
 * logits within the bound of the joins' rounding, the same bits on every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "run/rank.h"

/* Another test may be this one on another back end (tests/gpu/test_ranks.c). */
#ifndef BACKEND
#define BACKEND    "cpu"
#define WIDE_JOINS true /* outputs of the experts not rounded */
#endif

#define MAX_RANKS 4
#define N_PROMPT  30
#define N_DECODE  6
#define N_TOK     (N_PROMPT + N_DECODE)
#define N_DRAFTS  2 /* blocks */

struct model {
    const char *dir; /* NULL: synthetic */
    struct hx_synthetic syn;
    int n_vocab, block;
    bool wide;
};

/* One rank's run: a prompt in two chunks, then single tokens, drafts behind some of them. */
struct run {
    const struct model *model;
    struct hx_slice slice;
    struct hx_comm_group *group;
    const int32_t *tokens; /* [N_TOK]; from N_PROMPT on: written if `choose` */
    bool choose;
    int32_t *chosen; /* [N_TOK] */
    float *logits;   /* [N_TOK][n_vocab], rows N_PROMPT - 1 to N_TOK - 1 */
    int32_t *drafts; /* [N_DRAFTS][block] */
    int fail_at;     /* step that gets a bad token; 0: none */
    int r;
    struct hx_error err;
};

static int32_t best(const float *x, int n)
{
    int32_t b = 0;
    for (int i = 1; i < n; i++)
        b = x[i] > x[b] ? i : b;
    return b;
}

static int step(struct run *k, struct hx_rank *rank, struct hx_kv_seq *kv, int at, int n,
                int n_logits)
{
    struct hx_step_seq s = {.kv = kv, .tokens = k->chosen + at, .n_tok = n, .n_logits = n_logits};
    return hx_rank_step(rank, &s, 1, k->logits + (size_t)(at + n - 1) * (size_t)k->model->n_vocab,
                        NULL, NULL, &k->err);
}

static int text(struct run *k, struct hx_rank *rank, struct hx_kv_seq *kv)
{
    int r = step(k, rank, kv, 0, 13, 0);
    if (r == 0)
        r = step(k, rank, kv, 13, N_PROMPT - 13, 1);
    for (int i = N_PROMPT; r == 0 && i < N_TOK; i++) {
        if (k->choose)
            k->chosen[i] =
                best(k->logits + (size_t)(i - 1) * (size_t)k->model->n_vocab, k->model->n_vocab);
        int b = i - N_PROMPT;
        float z[16];
        if (b % 3 == 0)
            r = hx_rank_draft(rank, &kv, &k->chosen[i], 1,
                              k->drafts + (size_t)(b / 3) * (size_t)k->model->block, z, NULL, NULL,
                              &k->err);
        if (k->fail_at == i && k->slice.rank == 1)
            k->chosen[i] = -1;
        if (r == 0)
            r = step(k, rank, kv, i, 1, 1);
    }
    return r;
}

static void *run_rank(void *user)
{
    struct run *k = user;
    struct hx_rank *rank = NULL;
    struct hx_kv_seq *kv = NULL;
    struct hx_comm *comm = NULL;
    k->r = k->group ? hx_comm_thread_open(k->group, k->slice.rank, &comm, &k->err) : 0;
    const struct hx_rank_options o = {.model_dir = k->model->dir,
                                      .synthetic = k->model->dir ? NULL : &k->model->syn,
                                      .backend = BACKEND,
                                      .slice = k->slice,
                                      .comm = comm,
                                      .max_tok = N_PROMPT,
                                      .max_seq = 1,
                                      .drafts = true,
                                      .kv = {.block_tok = 16, .n_blocks = 8, .n_seqs = 1}};
    memcpy(k->chosen, k->tokens, N_TOK * sizeof(*k->chosen));
    if (k->r == 0)
        k->r = hx_rank_open(&o, &rank, &k->err);
    if (k->r == 0)
        k->r = hx_kv_seq_new(hx_rank_kv(rank), &kv, &k->err);
    if (k->r == 0)
        k->r = text(k, rank, kv);
    else if (comm)
        comm->ops->stop(comm, &k->err);
    hx_kv_seq_free(kv);
    hx_rank_close(rank);
    hx_comm_close(comm);
    return NULL;
}

static struct run run_new(const struct model *m, int rank, int n_ranks, const int32_t *tokens)
{
    struct run k = {.model = m, .slice = {rank, n_ranks}, .tokens = tokens};
    k.chosen = calloc(N_TOK, sizeof(*k.chosen));
    k.logits = calloc((size_t)N_TOK * (size_t)m->n_vocab, sizeof(*k.logits));
    k.drafts = calloc((size_t)N_DRAFTS * (size_t)m->block, sizeof(*k.drafts));
    assert_true(k.chosen && k.logits && k.drafts);
    return k;
}

static void run_done(struct run *k)
{
    free(k->chosen);
    free(k->logits);
    free(k->drafts);
}

/* All ranks; fail_at: rank 1 gets a bad token there. */
static void run_all(const struct model *m, int n, const int32_t *tokens, int fail_at,
                    struct run k[MAX_RANKS])
{
    pthread_t thread[MAX_RANKS];
    struct hx_comm_group *g;
    struct hx_error err;
    assert_int_equal(hx_comm_group_open(n, m->wide, 300000, &g, &err), 0);
    for (int r = 0; r < n; r++) {
        k[r] = run_new(m, r, n, tokens);
        k[r].group = g;
        k[r].fail_at = fail_at;
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &k[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    hx_comm_group_close(g);
}

static void prompt(int32_t *tokens, int n_vocab)
{
    for (int i = 0; i < N_PROMPT; i++)
        tokens[i] = (int32_t)((unsigned)(i * i * 31 + 7 * i + 3) % (unsigned)n_vocab);
}

/* What two rows of logits differ by: relative mean square, greatest distance. */
struct difference {
    double square, of, most;
    int n_other, n_close; /* other best token; of these: the two are nearer than the distance */
};

static void add_row(struct difference *d, const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]);
        d->square += x * x;
        d->of += (double)a[i] * (double)a[i];
        most = x > most ? x : most;
    }
    d->most = most > d->most ? most : d->most;
    int32_t t = best(a, n), u = best(b, n);
    d->n_other += t != u;
    d->n_close += t != u && (double)a[t] - (double)a[u] <= 2 * most;
}

/* bound: of the relative mean square. n_close: tokens that may differ if the best two are nearer
 * than the rounding of the joins moves them (decisions.md 7). */
static void compare(const char *name, const struct model *m, int n, double bound, int n_close)
{
    int32_t tokens[N_TOK] = {0};
    struct run whole, rank[MAX_RANKS];
    size_t first = (size_t)(N_PROMPT - 1) * (size_t)m->n_vocab,
           bytes = (size_t)(N_DECODE + 1) * (size_t)m->n_vocab * sizeof(float);
    prompt(tokens, m->n_vocab);
    whole = run_new(m, 0, 0, tokens);
    whole.choose = true;
    struct hx_comm_group *alone = NULL;
    if (m->wide)
        assert_int_equal(hx_comm_group_open(1, true, 1000, &alone, NULL), 0);
    whole.group = alone;
    run_rank(&whole);
    hx_comm_group_close(alone);
    if (whole.r < 0)
        fail_msg("whole: %s", whole.err.text);
    run_all(m, n, whole.chosen, 0, rank);
    struct difference d = {0};
    int drafts = 0;
    for (int r = 0; r < n; r++) {
        if (rank[r].r < 0)
            fail_msg("rank %d: %s", r, rank[r].err.text);
        assert_memory_equal(rank[r].logits + first, rank[0].logits + first, bytes);
        assert_memory_equal(rank[r].drafts, rank[0].drafts, (size_t)(N_DRAFTS * m->block) * 4);
    }
    for (int i = N_PROMPT - 1; i < N_TOK; i++)
        add_row(&d, whole.logits + (size_t)i * (size_t)m->n_vocab,
                rank[0].logits + (size_t)i * (size_t)m->n_vocab, m->n_vocab);
    for (int i = 0; i < N_DRAFTS * m->block; i++)
        drafts += whole.drafts[i] == rank[0].drafts[i];
    double rms = sqrt(d.square / d.of);
    print_message("%s, %d ranks, %s joins: logits differ by %.5f, %d of %d tokens, %d of %d drafts "
                  "equal\n",
                  name, n, m->wide ? "float32" : "bf16", rms, d.n_other, N_DECODE + 1, drafts,
                  N_DRAFTS * m->block);
    assert_true(rms <= bound);
    assert_true(d.n_other <= n_close);
    assert_int_equal(d.n_other, d.n_close);
    assert_true(drafts * 10 >= N_DRAFTS * m->block * 9);
    for (int r = 0; r < n; r++)
        run_done(&rank[r]);
    run_done(&whole);
}

static struct hx_hparams shape;
static uint8_t bits[HX_MAX_LAYERS];

static struct model synthetic(int n_ff, bool exl3)
{
    struct hx_error err;
    assert_int_equal(hx_hparams_load("tests/vectors/model", &shape, &err), 0);
    shape.n_ff = n_ff;
    /* No choices among near equals: all rows, all experts (spec model.md 10). */
    shape.index_topk = 256;
    shape.candidate_blocks = 64;
    shape.n_expert = shape.n_expert_used = 4;
    shape.draft_n_expert = shape.draft_n_expert_used = 6;
    for (int i = 0; i < shape.n_layer; i++)
        bits[i] = i % 3 == 1 ? 2 : 3;
    return (struct model){.syn = {.hp = &shape, .bits = exl3 ? bits : NULL, .seed = 3},
                          .n_vocab = shape.n_vocab,
                          .block = shape.draft_block};
}

/* Joins in float32 differ from the whole model by the order of the sums alone: most runs by
 * nothing, some by one flipped rounding that the grids of stored rows make larger. */
#define WIDE 0.01
/* bf16 messages: each of 26 joins rounds once more for every rank (bounds of one join:
 * test_slice_ops), and grids of stored rows make steps of it. Measured 0.009 to 0.053. */
#define NARROW 0.1

static void test_golden_model(void **state)
{
    struct model m = synthetic(128, false);
    (void)state;
    m.dir = "tests/vectors/model";
    compare("golden model", &m, 2, NARROW, 2);
    compare("golden model", &m, 4, NARROW, 2);
    if (!WIDE_JOINS)
        return;
    m.wide = true;
    compare("golden model", &m, 2, WIDE, 0);
    compare("golden model", &m, 4, WIDE, 0);
}

static void test_uneven(void **state)
{
    (void)state;
    struct model m = synthetic(640, true);
    compare("5 blocks, EXL3", &m, 4, NARROW, 0);
    if (!WIDE_JOINS)
        return;
    m.wide = true;
    compare("5 blocks, EXL3", &m, 2, WIDE, 0);
    compare("5 blocks, EXL3", &m, 4, WIDE, 0);
    m = synthetic(768, false);
    compare("6 blocks, FP4", &m, 4, NARROW, 0);
}

/* A rank that fails takes the others with it at once, and they say which it was. */
static void test_failing_rank(void **state)
{
    struct model m = synthetic(128, true);
    int32_t tokens[N_TOK] = {0};
    struct run rank[MAX_RANKS];
    (void)state;
    prompt(tokens, m.n_vocab);
    run_all(&m, 4, tokens, N_PROMPT + 2, rank);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(rank[r].r, r == 1 ? -EINVAL : -ECANCELED);
        if (r != 1 && !strstr(rank[r].err.text, "rank 1 stopped"))
            fail_msg("rank %d: %s", r, rank[r].err.text);
        run_done(&rank[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_model),
        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_failing_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
