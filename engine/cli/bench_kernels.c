/* hx-bench kernels: each operation at the released shapes with random weights made on the card,
 * enough copies of them that no cache holds them. Calls are recorded and replayed, so launches cost
 * what they cost in a step. Reported: median time, bytes that must be read, share of the card's
 * measured read bandwidth. */
#include "cli/bench_kernels.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include "base/rand.h"
#include "cli/bench.h"
#include "cli/bench_card.h"

#define POOL      ((size_t)3 << 30) /* bytes of weights that calls walk through */
#define REPEAT    11
#define MAX_CALLS 64

static const char usage[] =
    "Usage: hx-bench kernels [options]\n"
    "Times single operations at the released shapes on one card, with random weights.\n"
    "  --backend NAME  back end (default cuda)\n"
    "  --rows N,N,...  rows of an operation (default 1,4,6,8)\n"
    "  --only NAME     shapes whose name holds this; experts: layers of experts, to 64 rows\n"
    "  --local         experts of a routing from a pool of 42, as text does; else from all\n"
    "  --json          one JSON object a line instead of a table\n"
    "  --help          this text\n";

struct shape {
    const char *name;
    enum hx_format format;
    int64_t n_out, n_in;
};

/* Matrices of the released model, whole and as rank 0 of 4 (spec performance.md 2.2). */
static const struct shape shapes[] = {
    {"wq_a", HX_FORMAT_FP8, 1280, 5120},
    {"wkv", HX_FORMAT_FP8, 512, 5120},
    {"wq_b", HX_FORMAT_FP8, 32768, 1280},
    {"wo_a 1/4", HX_FORMAT_FP8, 2048, 4096},
    {"wo_b", HX_FORMAT_FP8, 5120, 8192},
    {"wq_a + wkv", HX_FORMAT_FP8, 1792, 5120},
    {"shared w1", HX_FORMAT_FP8, 2304, 5120},
    {"shared w2", HX_FORMAT_FP8, 5120, 2304},
    {"Engram wkv", HX_FORMAT_FP8, 25600, 6144},
    {"wq_b 1/4", HX_FORMAT_FP8, 8192, 1280},
    {"wo_b 1/4", HX_FORMAT_FP8, 5120, 2048},
    {"shared w1 1/4", HX_FORMAT_FP8, 576, 5120},
    {"shared w1w3 1/4", HX_FORMAT_FP8, 1152, 5120},
    {"shared w2 1/4", HX_FORMAT_FP8, 5120, 576},
    {"head 1/4", HX_FORMAT_DENSE, 32320, 5120},
    {"router", HX_FORMAT_DENSE, 384, 5120},
};

struct bench {
    struct hx_bench_card card;
    struct hx_buffer *pool, *act;
    uint8_t *weights;
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
    return x < y ? -1 : x > y;
}

int hx_bench_time(struct hx_bench_card *b, struct hx_graph *g, double *out, struct hx_error *err)
{
    double t[REPEAT];
    int r = 0;
    for (int i = -2; r == 0 && i < REPEAT; i++) {
        double start = now();
        r = b->be->replay(b->dev, g, err);
        if (r == 0)
            r = b->be->sync(b->dev, err);
        if (i >= 0)
            t[i] = now() - start;
    }
    qsort(t, REPEAT, sizeof(t[0]), by_value);
    *out = t[REPEAT / 2];
    return r;
}

/* Random bytes that are sane as FP8 codes, as block exponents and as BF16 values. */
static int fill(struct bench *b, struct hx_error *err)
{
    size_t n = (size_t)64 << 20;
    uint8_t *host = malloc(n);
    if (!host)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct hx_rng rng;
    hx_rng_seed(&rng, 1);
    for (size_t i = 0; i < n; i += 8) {
        /* 0x40 to 0x7E: no NaN as a code, a fine exponent as a scale. */
        uint64_t v = (hx_rng_next(&rng) & 0x3E3E3E3E3E3E3E3Eu) | 0x4040404040404040u;
        memcpy(host + i, &v, 8);
    }
    int r = 0;
    for (size_t at = 0; r == 0 && at < POOL; at += n)
        r = b->card.be->upload(b->card.dev, b->weights + at, host, n, err);
    if (r == 0)
        r = b->card.be->sync(b->card.dev, err);
    free(host);
    return r;
}

static int measure_reads(struct bench *b, struct hx_error *err)
{
    struct hx_graph *g = NULL;
    double t = 0;
    int r = b->card.be->capture_begin(b->card.dev, err);
    if (r == 0)
        r = b->card.be->read(b->card.dev, b->weights, POOL, err);
    int e = b->card.be->capture_end(b->card.dev, &g, r == 0 ? err : NULL);
    r = r < 0 ? r : e;
    if (r == 0)
        r = hx_bench_time(&b->card, g, &t, err);
    b->card.be->graph_free(g);
    b->card.read_rate = t > 0 ? (double)POOL / t : 0;
    return r;
}

static size_t weight_bytes(const struct shape *s)
{
    size_t n = (size_t)(s->n_out * s->n_in);
    return s->format == HX_FORMAT_FP8 ? n + n / 1024 : 2 * n;
}

static int calls_of(size_t room)
{
    return POOL / room < MAX_CALLS ? (int)(POOL / room) : MAX_CALLS;
}

/* Seconds of a launch that only reads the same bytes: what a small matrix can be held against. */
static int bare_read(struct bench *b, const struct shape *s, double *out, struct hx_error *err)
{
    size_t room = (weight_bytes(s) + 255) / 256 * 256;
    struct hx_graph *g = NULL;
    double t = 0;
    int n = calls_of(room), r = b->card.be->capture_begin(b->card.dev, err);
    for (int i = 0; r == 0 && i < n; i++)
        r = b->card.be->read(b->card.dev, b->weights + room * (size_t)i, room, err);
    int e = b->card.be->capture_end(b->card.dev, &g, r == 0 ? err : NULL);
    r = r < 0 ? r : e;
    if (r == 0)
        r = hx_bench_time(&b->card, g, &t, err);
    b->card.be->graph_free(g);
    *out = t / n;
    return r < 0 ? hx_wrap(err, r, "%s, read", s->name) : 0;
}

/* bare: seconds of bare_read. */
static int bench_shape(struct bench *b, const struct shape *s, int n_row, double bare,
                       struct hx_error *err)
{
    size_t bytes = weight_bytes(s), room = (bytes + 255) / 256 * 256;
    int n = calls_of(room);
    uint8_t *act = b->card.be->address(b->act);
    struct hx_tensor x = {HX_DTYPE_BF16, 2, {n_row, s->n_in, 1, 1}, act};
    struct hx_tensor y = {HX_DTYPE_BF16, 2, {n_row, s->n_out, 1, 1}, act + ((size_t)8 << 20)};
    struct hx_graph *g = NULL;
    double t = 0;
    int r = b->card.be->capture_begin(b->card.dev, err);
    for (int i = 0; r == 0 && i < n; i++) {
        uint8_t *at = b->weights + room * (size_t)i;
        struct hx_weight w = {.format = s->format, .n_out = s->n_out, .n_in = s->n_in};
        w.part[HX_PART_DATA] =
            (struct hx_tensor){s->format == HX_FORMAT_FP8 ? HX_DTYPE_F8_E4M3 : HX_DTYPE_BF16,
                               2,
                               {s->n_out, s->n_in, 1, 1},
                               at};
        w.part[HX_PART_SCALE] = (struct hx_tensor){
            HX_DTYPE_F8_E8M0, 2, {s->n_out / 32, s->n_in / 32, 1, 1}, at + s->n_out * s->n_in};
        r = b->card.be->kernels->linear(b->card.dev, &w, false, &x, &y, err);
    }
    int e = b->card.be->capture_end(b->card.dev, &g, r == 0 ? err : NULL);
    r = r < 0 ? r : e;
    if (r == 0)
        r = hx_bench_time(&b->card, g, &t, err);
    b->card.be->graph_free(g);
    if (r < 0)
        return hx_wrap(err, r, "%s, %d rows", s->name, n_row);
    double us = t / n * 1e6, rate = (double)bytes / (t / n);
    double of_bare = bare / (t / n);
    printf(
        b->card.json
            ? "{\"op\":\"linear\",\"name\":\"%s\",\"out\":%lld,\"in\":%lld,\"rows\":%d,\"us\":%.2f,"
              "\"bytes\":%zu,\"gb_s\":%.0f,\"of_read\":%.3f,\"of_bare\":%.3f}\n"
            : "%-15s %6lld x %-6lld %4d rows %9.2f us %11zu bytes %7.0f GB/s %6.3f of read %6.3f "
              "of "
              "a bare read\n",
        s->name, (long long)s->n_out, (long long)s->n_in, n_row, us, bytes, rate / 1e9,
        rate / b->card.read_rate, of_bare);
    return 0;
}

static int run(struct bench *b, struct hx_error *err)
{
    int r = b->card.be->open(0, &b->card.dev, err);
    if (r == 0)
        r = b->card.be->alloc(b->card.dev, HX_MEM_DEVICE, POOL, &b->pool, err);
    if (r == 0)
        r = b->card.be->alloc(b->card.dev, HX_MEM_DEVICE, (size_t)64 << 20, &b->act, err);
    if (r == 0) {
        b->weights = b->card.be->address(b->pool);
        r = fill(b, err);
    }
    if (r == 0)
        r = b->card.be->upload(b->card.dev, b->card.be->address(b->act), b->weights, 0, err);
    if (r == 0)
        r = b->card.be->copy(b->card.dev, b->card.be->address(b->act), b->weights, (size_t)8 << 20,
                             err);
    if (r == 0)
        r = measure_reads(b, err);
    if (r == 0)
        printf(b->card.json ? "{\"op\":\"read\",\"gb_s\":%.0f}\n" : "read bandwidth %.0f GB/s\n",
               b->card.read_rate / 1e9);
    for (size_t i = 0; r == 0 && i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (b->card.only && !strstr(shapes[i].name, b->card.only))
            continue;
        double bare = 0;
        r = bare_read(b, &shapes[i], &bare, err);
        for (int k = 0; r == 0 && k < b->card.n_rows; k++)
            r = bench_shape(b, &shapes[i], b->card.rows[k], bare, err);
    }
    if (r == 0 && (!b->card.only || strstr("experts", b->card.only)))
        r = hx_bench_experts(&b->card, err);
    if (b->pool)
        b->card.be->free(b->pool);
    if (b->act)
        b->card.be->free(b->act);
    b->card.be->close(b->card.dev);
    return r;
}

static bool read_rows(struct bench *b, const char *text)
{
    b->card.n_rows = 0;
    for (const char *p = text; b->card.n_rows < 8;) {
        const char *end;
        int64_t v;
        if (!hx_bench_number(p, 1, 512, &end, &v))
            return false;
        b->card.rows[b->card.n_rows++] = (int)v;
        if (!*end)
            return true;
        if (*end != ',')
            return false;
        p = end + 1;
    }
    return false;
}

int hx_bench_kernels(int argc, char **argv)
{
    static const struct option options[] = {{"backend", required_argument, NULL, 'b'},
                                            {"rows", required_argument, NULL, 'r'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"local", no_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct bench b = {.card = {.rows = {1, 4, 6, 8}, .n_rows = 4}};
    const char *name = "cuda";
    struct hx_error err = {0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return EX_OK;
        }
        if (c == 'r' && !read_rows(&b, optarg)) {
            fprintf(stderr, "hx-bench: --rows is '%.40s': expected up to 8 numbers from 1 to 512\n",
                    optarg);
            return EX_USAGE;
        }
        if (c == '?') {
            fputs("Try 'hx-bench kernels --help'.\n", stderr);
            return EX_USAGE;
        }
        name = c == 'b' ? optarg : name;
        b.card.only = c == 'o' ? optarg : b.card.only;
        b.card.json = b.card.json || c == 'j';
        b.card.local = b.card.local || c == 'l';
    }
    b.card.be = hx_backend_select(name, &err);
    int r = b.card.be ? 0 : -ENODEV;
    if (r == 0 && (!b.card.be->capture_begin || !b.card.be->read))
        r = hx_fail(&err, -ENOTSUP, "back end '%s' cannot record work: a card is needed", name);
    if (r == 0)
        r = run(&b, &err);
    if (r == 0)
        return EX_OK;
    fprintf(stderr, "hx-bench: %s\n", err.text);
    return r == -ENODEV || r == -ENOTSUP ? EX_UNAVAILABLE : EX_SOFTWARE;
}
