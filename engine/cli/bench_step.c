/* hx-bench step: one step of one rank of a cut model, alone, with weights of any shape made on the
 * spot. The joins with the other ranks are replaced by the time that a link would take (spec
 * performance.md 4.2, S2): none, the model's, twice the model's. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include "base/rand.h"
#include "cli/bench.h"
#include "run/memory_plan.h"
#include "run/rank.h"

#include <hx/build_facts.h>

#define MAX_ROWS   8
#define MAX_REPEAT 99
#define WARM_UP    4
#define HX_MAX_TP  8

static const char usage[] =
    "Usage: hx-bench step --synthetic [options]\n"
    "Times steps of one rank of a model of random weights; joins take the time of a link.\n"
    "  --shape NAME    released, or a folder with a config.json (default released)\n"
    "  --rank R/N      this share of the model (default 0/4; 0/1: all of it)\n"
    "  --experts FORM  fp4, or bits 1 to 8 of EXL3 (default 3)\n"
    "  --ff N          inner width of the experts instead of the shape's\n"
    "  --local N       routes come from N experts of a layer (default 42; 0: from all)\n"
    "  --rows N,N,...  rows of a step (default 1,6)\n"
    "  --past N        tokens before them (default 64)\n"
    "  --phase US      fixed cost of one phase of a join (default 2.9)\n"
    "  --link GB/S     rate of a rank's link (default 6.5)\n"
    "  --join US       every join takes this instead\n"
    "  --layers        one layer of each kind instead of a step\n"
    "  --no-drafts     without the drafter\n"
    "  --repeat N      measurements of each (1-99, default 5)\n"
    "  --backend NAME  back end (default cpu)\n"
    "  --json          one JSON object a line instead of a table\n"
    "  --help          this text\n";

struct bench {
    const char *shape, *backend;
    int rank, n_ranks, bits, n_ff, n_local, past, repeat, rows[MAX_ROWS], n_rows;
    bool synthetic, layers, no_drafts, json;
    double phase_us, gb_s, join_us;
    struct hx_hparams hp;
    struct hx_maps maps;
    struct hx_synthetic syn;
    uint8_t form[HX_MAX_LAYERS];
    struct hx_comm *comm;
    struct hx_rank *r;
    struct hx_kv_seq *kv;
    int32_t *tokens; /* [past + most rows] */
    int32_t *best;
    struct hx_comm_spent joins[2]; /* of a recorded step, draft: replays do not pass the joins */
    int64_t weight_bytes;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- options ---- */

static bool number(const char *name, const char *text, int64_t lo, int64_t hi, int *out)
{
    const char *end;
    int64_t v;
    if (!hx_bench_number(text, lo, hi, &end, &v) || *end) {
        fprintf(stderr, "hx-bench: --%s is '%.40s': expected %lld to %lld\n", name, text,
                (long long)lo, (long long)hi);
        return false;
    }
    *out = (int)v;
    return true;
}

static bool real(const char *name, const char *text, double lo, double hi, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= lo && v <= hi)) {
        fprintf(stderr, "hx-bench: --%s is '%.40s': expected a number from %g to %g\n", name, text,
                lo, hi);
        return false;
    }
    *out = v;
    return true;
}

static bool read_rank(struct bench *b, const char *text)
{
    const char *end;
    int64_t r, n;
    if (!hx_bench_number(text, 0, HX_MAX_TP - 1, &end, &r) || *end != '/' ||
        !hx_bench_number(end + 1, 1, HX_MAX_TP, &end, &n) || *end || r >= n ||
        (n != 1 && n != 2 && n != 4)) {
        fprintf(stderr, "hx-bench: --rank is '%.40s': expected R/N, N 1, 2 or 4, R below it\n",
                text);
        return false;
    }
    b->rank = (int)r;
    b->n_ranks = (int)n;
    return true;
}

static bool read_rows(struct bench *b, const char *text)
{
    b->n_rows = 0;
    for (const char *p = text; b->n_rows < MAX_ROWS; p++) {
        int64_t v;
        if (!hx_bench_number(p, 1, 48, &p, &v) || (*p && *p != ','))
            break;
        b->rows[b->n_rows++] = (int)v;
        if (!*p)
            return true;
    }
    fprintf(stderr, "hx-bench: --rows is '%.40s': expected up to %d numbers from 1 to 48\n", text,
            MAX_ROWS);
    return false;
}

static bool read_form(struct bench *b, const char *text)
{
    if (strcmp(text, "fp4") == 0) {
        b->bits = 0;
        return true;
    }
    return number("experts", text, 1, 8, &b->bits);
}

/* 0: go on; else the exit code. *stop: leave with it. */
static int read_options(struct bench *b, int argc, char **argv, bool *stop)
{
    static const struct option options[] = {
        {"ff", required_argument, NULL, 'f'},      {"layers", no_argument, NULL, 'a'},
        {"synthetic", no_argument, NULL, 'y'},     {"shape", required_argument, NULL, 's'},
        {"rank", required_argument, NULL, 'r'},    {"experts", required_argument, NULL, 'e'},
        {"local", required_argument, NULL, 'l'},   {"rows", required_argument, NULL, 'n'},
        {"past", required_argument, NULL, 'p'},    {"phase", required_argument, NULL, 't'},
        {"link", required_argument, NULL, 'g'},    {"join", required_argument, NULL, 'u'},
        {"no-drafts", no_argument, NULL, 'd'},     {"repeat", required_argument, NULL, 'm'},
        {"backend", required_argument, NULL, 'b'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {0}};
    bool ok = true;
    *stop = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'y': b->synthetic = true; break;
        case 's': b->shape = optarg; break;
        case 'r': ok = read_rank(b, optarg); break;
        case 'e': ok = read_form(b, optarg); break;
        case 'f': ok = number("ff", optarg, 32, 1 << 20, &b->n_ff); break;
        case 'l': ok = number("local", optarg, 0, 4096, &b->n_local); break;
        case 'n': ok = read_rows(b, optarg); break;
        case 'p': ok = number("past", optarg, 1, 1 << 20, &b->past); break;
        case 't': ok = real("phase", optarg, 0, 1e6, &b->phase_us); break;
        case 'g': ok = real("link", optarg, 1e-3, 1e4, &b->gb_s); break;
        case 'u': ok = real("join", optarg, 0, 1e6, &b->join_us); break;
        case 'a': b->layers = true; break;
        case 'd': b->no_drafts = true; break;
        case 'm': ok = number("repeat", optarg, 1, MAX_REPEAT, &b->repeat); break;
        case 'b': b->backend = optarg; break;
        case 'j': b->json = true; break;
        case 'h': fputs(usage, stdout); return EX_OK;
        default: ok = false;
        }
    }
    if (ok && (optind != argc || !b->synthetic)) {
        fprintf(stderr, "hx-bench: step: expected --synthetic and options only\n");
        ok = false;
    }
    if (!ok) {
        fprintf(stderr, "Try 'hx-bench step --help'.\n");
        return EX_USAGE;
    }
    *stop = false;
    return 0;
}

/* ---- opening ---- */

static int most_rows(const struct bench *b)
{
    int most = 1;
    for (int i = 0; i < b->n_rows; i++)
        most = b->rows[i] > most ? b->rows[i] : most;
    return most;
}

/* Refuses what the memory does not hold before it is taken. */
static int check_memory(struct bench *b, const struct hx_rank_options *o, struct hx_error *err)
{
    struct hx_placement p;
    struct hx_memory_plan plan;
    uint64_t bytes = 0;
    bool card = false;
    int r = hx_memory_free(b->backend, &bytes, &card, err);
    if (r < 0)
        return r;
    const struct hx_memory_wish wish = {.max_tok = o->max_tok,
                                        .max_seq = o->max_seq,
                                        .drafts = o->drafts,
                                        .kv = o->kv,
                                        .device_bytes = (int64_t)bytes,
                                        .kernel_bytes = card ? (int64_t)HX_CUDA_SCRATCH : 0,
                                        .graph_bytes = card ? HX_CARD_RESERVE : 0};
    enum hx_layout layout = b->n_ranks == 4   ? HX_LAYOUT_TP4
                            : b->n_ranks == 2 ? HX_LAYOUT_TP2
                                              : HX_LAYOUT_CPU;
    r = hx_place_config(&b->hp, &b->maps, b->syn.bits, layout, &p, err);
    if (r == 0)
        r = hx_memory_plan(&b->hp, &b->maps, &p, &wish, &plan, err);
    if (r == 0)
        b->weight_bytes = plan.bytes[b->rank][HX_MEMORY_DENSE] +
                          plan.bytes[b->rank][HX_MEMORY_EXPERTS] +
                          plan.bytes[b->rank][HX_MEMORY_DRAFTER];
    return r;
}

static int load_shape(struct bench *b, struct hx_error *err)
{
    int r = 0;
    if (strcmp(b->shape, "released") == 0)
        hx_hparams_released(&b->hp);
    else
        r = hx_hparams_load(b->shape, &b->hp, err);
    if (r == 0 && b->n_ff > 0 && b->n_ff % 32 != 0)
        r = hx_fail(err, -EINVAL, "--ff %d: expected a multiple of 32", b->n_ff);
    if (r < 0)
        return r;
    if (b->n_ff > 0)
        b->hp.n_ff = b->n_ff;
    if (b->n_local > b->hp.n_expert)
        b->n_local = 0;
    return 0;
}

/* Opens the model of b->hp. */
static int open_rank(struct bench *b, struct hx_error *err)
{
    int n_tok = b->past + 3 * b->n_rows * (WARM_UP + b->repeat) + most_rows(b);
    int r = hx_maps_derive(&b->hp, &b->maps, err);
    if (r < 0)
        return r;
    memset(b->form, b->bits, sizeof(b->form));
    b->syn = (struct hx_synthetic){
        .hp = &b->hp, .bits = b->bits ? b->form : NULL, .n_local = b->n_local, .seed = 170};
    const struct hx_comm_link link = {b->join_us, b->phase_us, b->gb_s, 1};
    int rows = most_rows(b) > 64 ? most_rows(b) : 64;
    if (b->n_ranks > 1)
        r = hx_comm_delay_open(b->rank, b->n_ranks, &link, &b->comm, err);
    struct hx_rank_options o = {
        .synthetic = &b->syn,
        .backend = b->backend,
        .slice = {b->rank, b->n_ranks},
        .comm = b->comm,
        .max_tok = rows,
        .max_seq = 1,
        .drafts = !b->no_drafts,
        .kv = {.block_tok = HX_KV_BLOCK_TOK, .n_blocks = n_tok / HX_KV_BLOCK_TOK + 2, .n_seqs = 1}};
    if (r == 0)
        r = check_memory(b, &o, err);
    if (r == 0)
        r = hx_rank_open(&o, &b->r, err);
    if (r == 0)
        r = hx_kv_seq_new(hx_rank_kv(b->r), &b->kv, err);
    if (r < 0)
        return r;
    b->tokens = malloc((size_t)rows * sizeof(*b->tokens));
    b->best = malloc((size_t)most_rows(b) * sizeof(*b->best));
    return b->tokens && b->best ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

static void close_rank(struct bench *b)
{
    hx_kv_seq_free(b->kv);
    hx_rank_close(b->r);
    hx_comm_close(b->comm);
    free(b->tokens);
    free(b->best);
    b->kv = NULL;
    b->r = NULL;
    b->comm = NULL;
    b->tokens = NULL;
    b->best = NULL;
}

/* ---- measuring ---- */

static void random_tokens(struct bench *b, struct hx_rng *g, int n)
{
    for (int i = 0; i < n; i++)
        b->tokens[i] = (int32_t)(hx_rng_uniform(g) * b->hp.n_vocab);
}

static int fill_context(struct bench *b, struct hx_rng *g, struct hx_error *err)
{
    int r = 0;
    for (int at = 0; r == 0 && at < b->past;) {
        int n = b->past - at < 64 ? b->past - at : 64;
        random_tokens(b, g, n);
        struct hx_step_seq s = {.kv = b->kv, .tokens = b->tokens, .n_tok = n};
        r = hx_rank_step(b->r, &s, 1, NULL, NULL, NULL, err);
        at += n;
    }
    return r;
}

/* A step of n rows of which one stays, as a verification with nothing accepted. */
static int one_step(struct bench *b, struct hx_rng *g, int n, double *seconds, struct hx_error *err)
{
    random_tokens(b, g, n);
    struct hx_step_seq s = {
        .kv = b->kv, .tokens = b->tokens, .n_tok = n, .n_logits = n, .n_draft = n - 1};
    const int keep = 1;
    double start = now();
    int r = hx_rank_step_best(b->r, &s, 1, b->best, err);
    if (r == 0 && n > 1)
        r = hx_rank_accept(b->r, &s, 1, &keep, err);
    *seconds = now() - start;
    return r;
}

static int one_draft(struct bench *b, double *seconds, struct hx_error *err)
{
    int32_t drafts[64];
    float z[64];
    double start = now();
    int r = hx_rank_draft(b->r, &b->kv, b->tokens, 1, drafts, z, NULL, NULL, err);
    *seconds = now() - start;
    return r;
}

static void print(const struct bench *b, const char *kind, int rows, double factor, double *t,
                  const struct hx_comm_spent *spent)
{
    int n = b->repeat;
    qsort(t, (size_t)n, sizeof(*t), by_value);
    int64_t joins = spent->n_joins / n, bytes = spent->bytes / n;
    double join_us = spent->seconds / n * 1e6;
    if (b->json)
        printf("{\"kind\":\"%s\",\"shape\":\"%s\",\"rank\":\"%d/%d\",\"experts\":%d,\"rows\":%d,"
               "\"delay\":%g,\"us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f,\"joins\":%lld,"
               "\"join_bytes\":%lld,\"join_us\":%.1f,\"weight_bytes\":%lld,\"backend\":\"%s\","
               "\"synthetic\":true,\"build\":\"%s %s\"}\n",
               kind, strcmp(b->shape, "released") == 0 ? "released" : "folder", b->rank, b->n_ranks,
               b->bits, rows, factor, t[n / 2] * 1e6, t[0] * 1e6, t[n - 1] * 1e6, (long long)joins,
               (long long)bytes, join_us, (long long)b->weight_bytes, b->backend, HX_BUILD_VERSION,
               HX_BUILD_VARIANT);
    else
        printf("%-6s %5d %6g %12.1f %12.1f %12.1f %6lld %12lld %12.1f\n", kind, rows, factor,
               t[n / 2] * 1e6, t[0] * 1e6, t[n - 1] * 1e6, (long long)joins, (long long)bytes,
               join_us);
    fflush(stdout);
}

/* Joins of one step or draft: of the last that came through them, as replays of it do not. */
static void add_joins(struct bench *b, int which, struct hx_comm_spent *all)
{
    struct hx_comm_spent s = b->comm ? hx_comm_delay_spent(b->comm) : (struct hx_comm_spent){0};
    if (s.n_joins > 0)
        b->joins[which] = s;
    all->n_joins += b->joins[which].n_joins;
    all->bytes += b->joins[which].bytes;
    all->seconds += b->joins[which].seconds;
}

static int measure(struct bench *b, struct hx_rng *g, int rows, double factor, struct hx_error *err)
{
    double step[MAX_REPEAT], draft[MAX_REPEAT], one;
    struct hx_comm_spent of_steps = {0}, of_drafts = {0};
    bool drafts = !b->no_drafts && b->hp.n_draft_layer > 0 && b->hp.draft_block <= 64;
    int r = 0;
    if (b->comm)
        hx_comm_delay_set(b->comm,
                          &(struct hx_comm_link){b->join_us, b->phase_us, b->gb_s, factor});
    for (int i = -WARM_UP; r == 0 && i < b->repeat; i++) {
        if (i == 0)
            of_steps = of_drafts = (struct hx_comm_spent){0};
        r = one_step(b, g, rows, &one, err);
        add_joins(b, 0, &of_steps);
        if (i >= 0)
            step[i] = one;
        if (r == 0 && drafts)
            r = one_draft(b, &one, err);
        add_joins(b, 1, &of_drafts);
        if (i >= 0 && drafts)
            draft[i] = one;
    }
    if (r < 0)
        return r;
    print(b, "step", rows, factor, step, &of_steps);
    if (drafts)
        print(b, "draft", b->hp.draft_block, factor, draft, &of_drafts);
    return 0;
}

static int measure_all(struct bench *b, struct hx_error *err)
{
    struct hx_rng g;
    hx_rng_seed(&g, 170);
    if (!b->json)
        printf("rank %d of %d, %lld bytes of weights, random values\n%-6s %5s %6s %12s %12s %12s "
               "%6s %12s %12s\n",
               b->rank, b->n_ranks, (long long)b->weight_bytes, "kind", "rows", "delay",
               "median us", "min us", "max us", "joins", "bytes", "joins us");
    int r = fill_context(b, &g, err);
    for (int i = 0; r == 0 && i < b->n_rows; i++) {
        for (int factor = 0; r == 0 && factor < (b->n_ranks > 1 ? 3 : 1); factor++)
            r = measure(b, &g, b->rows[i], factor, err);
    }
    return r;
}

/* ---- layers ---- */

/* One layer of each kind (spec performance.md 4.2, S1), as the last one of a small model; what it
 * takes is that model's step less the step of the model without it. */
#define N_KINDS 8
static const struct {
    const char *name; /* NULL: there to be subtracted */
    int n_layer, ratio[3];
    bool kv[3], index[3];
    int candidate, less;
    bool engram;
} kinds[N_KINDS] = {
    {NULL, 1, {2}, {true}, {true}, -1, -1, false},
    {"owner, ratio 1, candidates", 2, {2, 1}, {true, true}, {true, true}, 1, 0, false},
    {"owner, ratio 2", 2, {2, 2}, {true, true}, {true, true}, -1, 0, false},
    {"window", 2, {2, 0}, {true}, {true}, -1, 0, false},
    {"window, Engram", 2, {2, 0}, {true}, {true}, -1, 0, true},
    {"reader, ratio 2", 2, {2, 2}, {true}, {true}, -1, 0, false},
    {"reader, ratio 1", 3, {2, 1, 1}, {true, true}, {true, true}, 1, 1, false},
    {"index in candidates", 3, {2, 1, 1}, {true, true}, {true, true, true}, 1, 1, false},
};

static void small_model(const struct hx_hparams *from, int kind, struct hx_hparams *h)
{
    *h = *from;
    h->released_size = false;
    h->n_layer = kinds[kind].n_layer;
    h->n_draft_layer = h->n_target = h->n_kv_source = h->n_index_source = 0;
    for (int il = 0; il < h->n_layer; il++) {
        h->ratio[il] = kinds[kind].ratio[il];
        if (kinds[kind].kv[il])
            h->kv_source_id[h->n_kv_source++] = il;
        if (kinds[kind].index[il])
            h->index_source_id[h->n_index_source++] = il;
    }
    h->candidate_source = kinds[kind].candidate;
    h->n_engram = kinds[kind].engram;
    h->engram_layer[0] = 1;
}

/* Fastest step of each number of rows, without the time of joins: what disturbs one of two steps
 * would be all of their difference. */
static int time_model(struct bench *b, double least[MAX_ROWS], struct hx_error *err)
{
    struct hx_rng g;
    hx_rng_seed(&g, 170);
    int r = open_rank(b, err);
    if (r == 0 && b->comm)
        hx_comm_delay_set(b->comm, &(struct hx_comm_link){0, 0, 1, 0});
    if (r == 0)
        r = fill_context(b, &g, err);
    for (int k = 0; r == 0 && k < b->n_rows; k++) {
        double one;
        least[k] = INFINITY;
        for (int i = -WARM_UP; r == 0 && i < b->repeat; i++) {
            r = one_step(b, &g, b->rows[k], &one, err);
            if (r == 0 && i >= 0 && one < least[k])
                least[k] = one;
        }
    }
    close_rank(b);
    return r;
}

static int measure_layers(struct bench *b, struct hx_error *err)
{
    struct hx_hparams whole = b->hp;
    double least[N_KINDS][MAX_ROWS];
    b->no_drafts = true;
    if (!b->json)
        printf(
            "rank %d of %d, one layer of each kind, without joins, random values\n%-28s %5s %12s\n",
            b->rank, b->n_ranks, "layer", "rows", "us");
    for (int i = 0; i < N_KINDS; i++) {
        if (kinds[i].engram && whole.n_engram == 0)
            continue;
        small_model(&whole, i, &b->hp);
        int r = time_model(b, least[i], err);
        if (r < 0)
            return hx_wrap(err, r, "layer '%s'", kinds[i].name ? kinds[i].name : "first");
        for (int k = 0; kinds[i].name && k < b->n_rows; k++) {
            double us = (least[i][k] - least[kinds[i].less][k]) * 1e6;
            printf(b->json ? "{\"kind\":\"layer\",\"name\":\"%s\",\"rows\":%d,\"us\":%.1f,"
                             "\"rank\":\"%d/%d\",\"experts\":%d,\"backend\":\"%s\","
                             "\"synthetic\":true}\n"
                           : "%-28s %5d %12.1f\n",
                   kinds[i].name, b->rows[k], us, b->rank, b->n_ranks, b->bits, b->backend);
            fflush(stdout);
        }
    }
    return 0;
}

int hx_bench_step(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    struct hx_error err = {0};
    bool stop;
    if (!b) {
        fprintf(stderr, "hx-bench: out of memory\n");
        return EX_OSERR;
    }
    b->shape = "released";
    b->backend = "cpu";
    b->n_ranks = 4;
    b->bits = 3;
    b->n_local = 42;
    b->past = 64;
    b->repeat = 5;
    b->rows[0] = 1;
    b->rows[1] = 6;
    b->n_rows = 2;
    b->phase_us = 2.9;
    b->gb_s = 6.5;
    b->join_us = -1;
    int code = read_options(b, argc, argv, &stop);
    if (stop) {
        free(b);
        return code;
    }
    int r = load_shape(b, &err);
    if (r == 0 && b->layers)
        r = measure_layers(b, &err);
    else if (r == 0)
        r = open_rank(b, &err);
    if (r == 0 && !b->layers)
        r = measure_all(b, &err);
    if (r < 0)
        fprintf(stderr, "hx-bench: %s\n", err.text);
    close_rank(b);
    free(b);
    return hx_bench_exit(r);
}
