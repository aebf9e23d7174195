/* hx-bench kernels, expert layers: experts 5120 -> 2304 -> 5120 of random words, 384 EXL3 ones with
 * six a token as the backbone has and 128 FP4 ones with three as the drafter has, 16 routings in a
 * recording, drawn uniformly, as the public kernels were measured (docs/perf-log.md), or from a
 * pool of 42 experts each, as real text does. No shared expert: the public kernels have none. */
#include "cli/bench_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

#define N_EXPERT 384 /* most of a layer, and of a token */
#define USED     6
#define POOL     42 /* experts of a stream of text (spec performance.md 2.3) */
#define WIDTH    5120
#define INNER    2304
#define ROUTINGS 16
#define MAX_TOK  64
#define MAX_SM   512
#define SCALES   (64 << 10) /* binary16 values of each kind */

static const struct kind {
    const char *name;
    int bits; /* EXL3; 4: FP4 */
    int n_expert, used;
} kinds[] = {{"2 bits", 2, 384, 6}, {"3 bits", 3, 384, 6}, {"FP4", 4, 128, 3}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

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
    struct hx_buffer *pool, *rest, *exponents;
    struct layer *layer[KINDS]; /* tables are known by their address: one a kind */
    uint16_t *scales;           /* device, SCALES of inputs, SCALES of outputs */
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

static void make_fp4(struct hx_weight *w, int64_t n_out, int64_t n_in, uint8_t *data,
                     uint8_t *exponents)
{
    *w = (struct hx_weight){.format = HX_FORMAT_FP4, .n_out = n_out, .n_in = n_in};
    w->part[HX_PART_DATA] = (struct hx_tensor){HX_DTYPE_I8, 2, {n_out, n_in / 2, 1, 1}, data};
    w->part[HX_PART_SCALE] =
        (struct hx_tensor){HX_DTYPE_F8_E8M0, 2, {n_out, n_in / 32, 1, 1}, exponents};
}

static void make_layer(struct layer *l, const struct room *k, const struct kind *kind,
                       uint8_t *pool, uint8_t *exponents)
{
    size_t n = (size_t)WIDTH * INNER, bytes = n * (size_t)kind->bits / 8;
    for (int e = 0; e < kind->n_expert; e++) {
        for (int i = 0; i < 3; i++) {
            size_t at = (size_t)(3 * e + i);
            int64_t n_out = i == 1 ? WIDTH : INNER, n_in = i == 1 ? INNER : WIDTH;
            if (kind->bits == 4)
                make_fp4(&l->w[i][e], n_out, n_in, pool + bytes * at, exponents + n / 32 * at);
            else
                make_weight(&l->w[i][e], k, kind->bits, n_out, n_in, pool + bytes * at);
            l->table[i][e] = &l->w[i][e];
        }
    }
}

/* n different numbers below all, ascending. */
static void draw(struct hx_rng *rng, int all, int n, int32_t *out)
{
    for (int e = 0, at = 0; at < n; e++) {
        if (hx_rng_next(rng) % (uint64_t)(all - e) < (uint64_t)(n - at))
            out[at++] = e;
    }
}

/* Different experts of each token, ascending; returns how many the tokens have together. */
static int draw_tokens(struct hx_rng *rng, const struct kind *kind, bool local, int n_tok,
                       int32_t *sel)
{
    bool seen[N_EXPERT] = {false};
    int32_t pool[N_EXPERT];
    int distinct = 0, all = local ? POOL : kind->n_expert;
    draw(rng, kind->n_expert, all, pool);
    for (int t = 0; t < n_tok; t++) {
        draw(rng, all, kind->used, sel + t * kind->used);
        for (int i = 0; i < kind->used; i++) {
            int e = pool[sel[t * kind->used + i]];
            sel[t * kind->used + i] = e;
            distinct += !seen[e];
            seen[e] = true;
        }
    }
    return distinct;
}

/* Random words everywhere, scales near 1/64 and 1 of both signs, inputs about 1. */
static int fill(struct hx_bench_card *b, struct room *k, size_t pool, size_t exponents,
                struct hx_error *err)
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
    for (size_t i = 0; i < n / 8; i++) /* 2^-7 to 1 */
        host[i] = (hx_rng_next(&rng) & 0x0707070707070707u) | 0x7878787878787878u;
    for (size_t at = 0; r == 0 && at < exponents; at += n)
        r = b->be->upload(b->dev, (uint8_t *)b->be->address(k->exponents) + at, host,
                          exponents - at < n ? exponents - at : n, err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    free(host);
    return r;
}

static int route(struct hx_bench_card *b, struct room *k, const struct kind *kind, int n_tok,
                 double *distinct, struct hx_error *err)
{
    static int32_t sel[ROUTINGS * MAX_TOK * USED];
    static float weight[ROUTINGS * MAX_TOK * USED];
    struct hx_rng rng;
    hx_rng_seed(&rng, (uint64_t)n_tok);
    int sum = 0;
    for (int i = 0; i < ROUTINGS; i++)
        sum += draw_tokens(&rng, kind, b->local, n_tok, sel + i * MAX_TOK * USED);
    for (int i = 0; i < ROUTINGS * MAX_TOK * USED; i++)
        weight[i] = 0.25f;
    *distinct = (double)sum / ROUTINGS;
    int r = b->be->upload(b->dev, k->sel, sel, sizeof(sel), err);
    if (r == 0)
        r = b->be->upload(b->dev, k->weight, weight, sizeof(weight), err);
    return r < 0 ? r : b->be->sync(b->dev, err);
}

static int one_call(struct hx_bench_card *b, struct room *k, const struct kind *kind, int routing,
                    int n_tok, struct hx_error *err)
{
    const struct layer *l = k->layer[kind - kinds];
    int64_t at = (int64_t)routing * MAX_TOK * USED;
    struct hx_tensor z = {HX_DTYPE_BF16, 2, {n_tok, WIDTH, 1, 1}, k->z};
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {n_tok, WIDTH, 1, 1}, k->y};
    struct hx_tensor sel = {HX_DTYPE_I32, 2, {n_tok, kind->used, 1, 1}, k->sel + at};
    struct hx_tensor weight = {HX_DTYPE_F32, 2, {n_tok, kind->used, 1, 1}, k->weight + at};
    struct hx_experts_args a = {.z = &z,
                                .w1 = l->table[0],
                                .w2 = l->table[1],
                                .w3 = l->table[2],
                                .n_expert = kind->n_expert,
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

static void report(struct hx_bench_card *b, const struct kind *kind, int n_tok, double t,
                   double distinct, double ghz)
{
    double weights = 3.0 * WIDTH * INNER * distinct, theirs = 0;
    double rate = weights * (kind->bits == 4 ? 4.25 : kind->bits) / 8 / t;
    for (size_t i = 0; i < sizeof(public_times) / sizeof(public_times[0]); i++) {
        if (kind->bits < 4 && !b->local && public_times[i].tokens == n_tok)
            theirs = public_times[i].us[kind->bits - 2];
    }
    const char *routing = b->local ? "local" : "uniform";
    double clk = ghz > 0 ? weights / (t * 1e9 * ghz * b->be->n_sm(b->dev)) : 0;
    if (b->json)
        printf("{\"op\":\"%s\",\"bits\":%d,\"rows\":%d,\"us\":%.2f,\"routing\":\"%s\","
               "\"distinct\":%.1f,\"ghz\":%.3f,\"weights_clk_sm\":%.2f,\"gb_s\":%.0f,"
               "\"of_read\":%.3f,\"of_public\":%.3f}\n",
               kind->bits == 4 ? "experts_fp4" : "experts", kind->bits, n_tok, t * 1e6, routing,
               distinct, ghz, clk, rate / 1e9, rate / b->read_rate,
               theirs > 0 ? t * 1e6 / theirs : 0);
    else
        printf("experts %-6s %4d rows %9.2f us %6.1f experts (%s) %6.3f GHz %6.2f weights/clk/SM "
               "%6.0f GB/s %6.3f of read %6.3f of the public kernel's time\n",
               kind->name, n_tok, t * 1e6, distinct, routing, ghz, clk, rate / 1e9,
               rate / b->read_rate, theirs > 0 ? t * 1e6 / theirs : 0);
}

static int bench_layer(struct hx_bench_card *b, struct room *k, const struct kind *kind, int n_tok,
                       struct hx_error *err)
{
    struct hx_graph *g = NULL;
    double t = 0, distinct = 0, ghz = 0;
    int r = route(b, k, kind, n_tok, &distinct, err);
    if (r == 0) /* makes the tables, which a recording cannot */
        r = one_call(b, k, kind, 0, n_tok, err);
    if (r == 0)
        r = b->be->sync(b->dev, err);
    if (r < 0)
        return r;
    r = b->be->capture_begin(b->dev, err);
    if (r == 0)
        r = b->be->clock(b->dev, k->clock[0], MAX_SM, err);
    for (int i = 0; r == 0 && i < ROUTINGS; i++)
        r = one_call(b, k, kind, i, n_tok, err);
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
        return hx_wrap(err, r, "experts, %s, %d rows", kind->name, n_tok);
    report(b, kind, n_tok, t / ROUTINGS, distinct, ghz);
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
    size_t exponents = (size_t)3 * 128 * WIDTH * INNER / 32;
    struct room k = {0};
    int r = b->be->alloc(b->dev, HX_MEM_DEVICE, pool, &k.pool, err);
    if (r == 0)
        r = b->be->alloc(b->dev, HX_MEM_DEVICE, (size_t)16 << 20, &k.rest, err);
    if (r == 0)
        r = b->be->alloc(b->dev, HX_MEM_DEVICE, exponents, &k.exponents, err);
    for (size_t i = 0; r == 0 && i < KINDS; i++) {
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
        for (size_t i = 0; i < KINDS; i++)
            make_layer(k.layer[i], &k, &kinds[i], b->be->address(k.pool),
                       b->be->address(k.exponents));
        r = fill(b, &k, pool, exponents, err);
    }
    for (size_t i = 0; r == 0 && i < KINDS; i++) {
        for (int j = 0; r == 0 && j < b->n_rows; j++) {
            if (b->rows[j] <= MAX_TOK)
                r = bench_layer(b, &k, &kinds[i], b->rows[j], err);
        }
    }
    if (k.pool)
        b->be->free(k.pool);
    if (k.rest)
        b->be->free(k.rest);
    if (k.exponents)
        b->be->free(k.exponents);
    for (size_t i = 0; i < KINDS; i++)
        free(k.layer[i]);
    return r;
}
