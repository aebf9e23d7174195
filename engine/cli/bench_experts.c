/* hx-bench kernels, expert layers: 384 experts 5120 -> 2304 -> 5120 of random words, routings drawn
 * uniformly, 16 of them in a recording, as the public kernels were measured (docs/perf-log.md). No
 * shared expert: theirs have none. */
#include "cli/bench_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

#define N_EXPERT 384
#define USED     6
#define WIDTH    5120
#define INNER    2304
#define ROUTINGS 16
#define MAX_TOK  64
#define MAX_SM   512
#define SCALES   (64 << 10) /* binary16 values of each kind */

/* Microseconds of the public kernels on the same kind of card: the better of the fused and the
 * batched. */
static const struct {
    int tokens;
    double us[2]; /* 2 bits, 3 bits */
} public_times[] = {
    {1, {129, 134}}, {2, {239, 250}}, {4, {468, 492}}, {6, {753, 793}}, {8, {935, 971}}};

struct samples {
    uint64_t of[MAX_SM][2]; /* clocks, nanoseconds */
};

struct layer {
    struct hx_weight w[3][N_EXPERT];
    const struct hx_weight *table[3][N_EXPERT];
};

struct room {
    struct hx_buffer *pool, *rest;
    struct layer *layer[2]; /* tables are known by their address: one a bit width */
    uint16_t *scales;       /* device, SCALES of inputs, SCALES of outputs */
    uint16_t *z, *y;
    int32_t *sel; /* [ROUTINGS][MAX_TOK][USED] */
    float *weight;
    struct samples *clock[2];
};

static void make_weight(struct hx_weight *w, const struct room *k, int bits, int64_t n_out,
                        int64_t n_in, uint8_t *data)
{
    *w = (struct hx_weight){.format = HX_FORMAT_EXL3,
                            .codebook = HX_CODEBOOK_MUL1,
                            .bits = bits,
                            .n_out = n_out,
                            .n_in = n_in};
    w->part[HX_PART_DATA] =
        (struct hx_tensor){HX_DTYPE_I16, 3, {n_in / 16, n_out / 16, 16 * bits, 1}, data};
    w->part[HX_PART_SUH] = (struct hx_tensor){HX_DTYPE_F16, 1, {n_in, 1, 1, 1}, k->scales};
    w->part[HX_PART_SVH] =
        (struct hx_tensor){HX_DTYPE_F16, 1, {n_out, 1, 1, 1}, k->scales + SCALES};
}

static void make_layer(struct layer *l, const struct room *k, int bits, uint8_t *pool)
{
    size_t bytes = (size_t)WIDTH * INNER * (size_t)bits / 8;
    for (int e = 0; e < N_EXPERT; e++) {
        for (int i = 0; i < 3; i++) {
            make_weight(&l->w[i][e], k, bits, i == 1 ? WIDTH : INNER, i == 1 ? INNER : WIDTH,
                        pool + bytes * (size_t)(3 * e + i));
            l->table[i][e] = &l->w[i][e];
        }
    }
}

/* Six different experts a token, ascending; returns how many the tokens have together. */
static int draw(struct hx_rng *rng, int n_tok, int32_t *sel)
{
    bool seen[N_EXPERT] = {false};
    int distinct = 0;
    for (int t = 0; t < n_tok; t++) {
        for (int e = 0, at = 0; at < USED; e++) {
            if (hx_rng_next(rng) % (uint64_t)(N_EXPERT - e) >= (uint64_t)(USED - at))
                continue;
            sel[t * USED + at++] = e;
            distinct += !seen[e];
            seen[e] = true;
        }
    }
    return distinct;
}

/* Random words everywhere, scales near 1/64 and 1 of both signs, inputs about 1. */
static int fill(struct hx_bench_card *b, struct room *k, size_t pool, struct hx_error *err)
{
    size_t n = (size_t)32 << 20;
    uint64_t *host = malloc(n);
    if (!host)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct hx_rng rng;
    int r = 0;
    hx_rng_seed(&rng, 3);
    for (size_t i = 0; i < n / 8; i++)
        host[i] = hx_rng_next(&rng);
    for (size_t at = 0; r == 0 && at < pool; at += n)
        r = b->be->upload(b->dev, (uint8_t *)b->be->address(k->pool) + at, host,
                          pool - at < n ? pool - at : n, err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    for (size_t i = 0; i < n / 8; i++)
        host[i] = (hx_rng_next(&rng) & 0x83FF83FF83FF83FFu) |
                  (i < SCALES / 4 ? 0x2400240024002400u : 0x3C003C003C003C00u);
    if (r == 0)
        r = b->be->upload(b->dev, k->scales, host, (size_t)SCALES * 4, err);
    /* As BF16 those of the second kind are between 2^-7 and 1. */
    if (r == 0)
        r = b->be->upload(b->dev, k->z, host + SCALES, (size_t)MAX_TOK * WIDTH * 2, err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    free(host);
    return r;
}

static int route(struct hx_bench_card *b, struct room *k, int n_tok, double *distinct,
                 struct hx_error *err)
{
    static int32_t sel[ROUTINGS * MAX_TOK * USED];
    static float weight[ROUTINGS * MAX_TOK * USED];
    struct hx_rng rng;
    hx_rng_seed(&rng, (uint64_t)n_tok);
    int sum = 0;
    for (int i = 0; i < ROUTINGS; i++)
        sum += draw(&rng, n_tok, sel + i * MAX_TOK * USED);
    for (int i = 0; i < ROUTINGS * MAX_TOK * USED; i++)
        weight[i] = 0.25f;
    *distinct = (double)sum / ROUTINGS;
    int r = b->be->upload(b->dev, k->sel, sel, sizeof(sel), err);
    if (r == 0)
        r = b->be->upload(b->dev, k->weight, weight, sizeof(weight), err);
    return r < 0 ? r : b->be->sync(b->dev, err);
}

static int one_call(struct hx_bench_card *b, struct room *k, const struct layer *l, int routing,
                    int n_tok, struct hx_error *err)
{
    int64_t at = (int64_t)routing * MAX_TOK * USED;
    struct hx_tensor z = {HX_DTYPE_BF16, 2, {n_tok, WIDTH, 1, 1}, k->z};
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {n_tok, WIDTH, 1, 1}, k->y};
    struct hx_tensor sel = {HX_DTYPE_I32, 2, {n_tok, USED, 1, 1}, k->sel + at};
    struct hx_tensor weight = {HX_DTYPE_F32, 2, {n_tok, USED, 1, 1}, k->weight + at};
    struct hx_experts_args a = {.z = &z,
                                .w1 = l->table[0],
                                .w2 = l->table[1],
                                .w3 = l->table[2],
                                .n_expert = N_EXPERT,
                                .sel = &sel,
                                .weight = &weight,
                                .limit = 10,
                                .y = &y};
    return b->be->kernels->experts(b->dev, &a, err);
}

/* Mean clock rate of the multiprocessors between two samples. */
static int clock_rate(struct hx_bench_card *b, struct room *k, double *ghz, struct hx_error *err)
{
    static struct samples s[2];
    int r = 0;
    for (int i = 0; r == 0 && i < 2; i++)
        r = b->be->download(b->dev, &s[i], k->clock[i], sizeof(s[i]), err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    double clocks = 0, ns = 0;
    for (int i = 0; r == 0 && i < MAX_SM; i++) {
        if (!s[0].of[i][1] || s[1].of[i][1] <= s[0].of[i][1])
            continue;
        clocks += (double)(s[1].of[i][0] - s[0].of[i][0]);
        ns += (double)(s[1].of[i][1] - s[0].of[i][1]);
    }
    *ghz = ns > 0 ? clocks / ns : 0;
    return r;
}

static void report(struct hx_bench_card *b, int bits, int n_tok, double t, double distinct,
                   double ghz)
{
    double weights = 3.0 * WIDTH * INNER * distinct, rate = weights * bits / 8 / t, theirs = 0;
    for (size_t i = 0; i < sizeof(public_times) / sizeof(public_times[0]); i++)
        theirs = public_times[i].tokens == n_tok ? public_times[i].us[bits - 2] : theirs;
    printf(b->json
               ? "{\"op\":\"experts\",\"bits\":%d,\"rows\":%d,\"us\":%.2f,\"distinct\":%.1f,"
                 "\"ghz\":%.3f,\"weights_clk_sm\":%.2f,\"gb_s\":%.0f,\"of_read\":%.3f,"
                 "\"of_public\":%.3f}\n"
               : "experts %d bits %4d rows %9.2f us %6.1f experts %6.3f GHz %6.2f weights/clk/SM "
                 "%6.0f GB/s %6.3f of read %6.3f of the public kernel's time\n",
           bits, n_tok, t * 1e6, distinct, ghz,
           ghz > 0 ? weights / (t * 1e9 * ghz * b->be->n_sm(b->dev)) : 0, rate / 1e9,
           rate / b->read_rate, theirs > 0 ? t * 1e6 / theirs : 0);
}

static int bench_layer(struct hx_bench_card *b, struct room *k, int bits, int n_tok,
                       struct hx_error *err)
{
    const struct layer *l = k->layer[bits - 2];
    struct hx_graph *g = NULL;
    double t = 0, distinct = 0, ghz = 0;
    int r = route(b, k, n_tok, &distinct, err);
    if (r == 0) /* makes the tables, which a recording cannot */
        r = one_call(b, k, l, 0, n_tok, err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    if (r < 0)
        return r;
    r = b->be->capture_begin(b->dev, err);
    if (r == 0)
        r = b->be->clock(b->dev, k->clock[0], MAX_SM, err);
    for (int i = 0; r == 0 && i < ROUTINGS; i++)
        r = one_call(b, k, l, i, n_tok, err);
    if (r == 0)
        r = b->be->clock(b->dev, k->clock[1], MAX_SM, err);
    int e = b->be->capture_end(b->dev, &g, r == 0 ? err : NULL);
    r = r < 0 ? r : e;
    if (r == 0)
        r = hx_bench_time(b, g, &t, err);
    if (r == 0)
        r = clock_rate(b, k, &ghz, err);
    b->be->graph_free(g);
    if (r < 0)
        return hx_wrap(err, r, "experts, %d bits, %d rows", bits, n_tok);
    report(b, bits, n_tok, t / ROUTINGS, distinct, ghz);
    return 0;
}

static void *take(uint8_t **at, size_t n)
{
    uint8_t *p = *at;
    *at += (n + 255) / 256 * 256;
    return p;
}

int hx_bench_experts(struct hx_bench_card *b, struct hx_error *err)
{
    size_t pool = (size_t)3 * N_EXPERT * WIDTH * INNER * 3 / 8;
    struct room k = {0};
    int r = b->be->alloc(b->dev, HX_MEM_DEVICE, pool, &k.pool, err);
    if (r == 0)
        r = b->be->alloc(b->dev, HX_MEM_DEVICE, (size_t)16 << 20, &k.rest, err);
    for (int i = 0; r == 0 && i < 2; i++) {
        k.layer[i] = malloc(sizeof(*k.layer[i]));
        if (!k.layer[i])
            r = hx_fail(err, -ENOMEM, "out of memory");
    }
    if (r == 0) {
        uint8_t *at = b->be->address(k.rest);
        k.scales = take(&at, (size_t)SCALES * 4);
        k.z = take(&at, (size_t)MAX_TOK * WIDTH * 2);
        k.y = take(&at, (size_t)MAX_TOK * WIDTH * 2);
        k.sel = take(&at, (size_t)ROUTINGS * MAX_TOK * USED * 4);
        k.weight = take(&at, (size_t)ROUTINGS * MAX_TOK * USED * 4);
        k.clock[0] = take(&at, sizeof(struct samples));
        k.clock[1] = take(&at, sizeof(struct samples));
        for (int bits = 2; bits <= 3; bits++)
            make_layer(k.layer[bits - 2], &k, bits, b->be->address(k.pool));
        r = fill(b, &k, pool, err);
    }
    for (int bits = 2; r == 0 && bits <= 3; bits++) {
        for (int i = 0; r == 0 && i < b->n_rows; i++) {
            if (b->rows[i] <= MAX_TOK)
                r = bench_layer(b, &k, bits, b->rows[i], err);
        }
    }
    if (k.pool)
        b->be->free(k.pool);
    if (k.rest)
        b->be->free(k.rest);
    free(k.layer[0]);
    free(k.layer[1]);
    return r;
}
