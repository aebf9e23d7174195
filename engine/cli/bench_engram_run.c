/* The measurements of hx-bench engram. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/rand.h"
#include "cli/bench_engram.h"

#define PLANS      8 /* on their way while rows are measured */
#define PLAN_ROWS  2048
#define MAX_REPEAT 99
#define HEADS      8
#define SIZES      3
#define CHUNK_TOK  2048
#define UNIQUE     0.727 /* of a chunk's rows (spec engram.md 4.1) */
#define SLOW_MS    30000
#define LOST_MS    60000
#define LAYER_A    1 /* layers with Engram of the released model */
#define LAYER_B    14
#define MAX_STEPS  100000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* User space's part alone in *user. */
static double cpu_time(double *user)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    *user = (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6;
    return *user + (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *v, int n, double part)
{
    if (n == 0)
        return 0;
    qsort(v, (size_t)n, sizeof(*v), by_value);
    int i = (int)(part * n);
    return v[i < n ? i : n - 1];
}

static void sleep_until(double t)
{
    double left = t - now();
    if (left > 0) {
        struct timespec d = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&d, NULL);
    }
}

static int open_with(struct hx_bench_engram *b, int depth, int64_t cache, bool hashed,
                     struct hx_engram_stream **out, struct hx_error *err)
{
    struct hx_engram_stream_options o = b->so;
    o.depth = depth;
    o.slow_ms = SLOW_MS; /* a slow drive is measured, not refused */
    o.lost_ms = LOST_MS;
    o.cache_bytes = (uint64_t)cache;
    o.hash = hashed ? b->hash : NULL;
    o.n_heads = HEADS;
    return hx_engram_stream_open(&o, out, err);
}

/* ---- random rows ---- */

static int want_random(struct hx_bench_engram *b, struct hx_engram_stream *s, struct hx_rng *g,
                       enum hx_engram_class urgency, int table, int n, int64_t *rows,
                       struct hx_engram_plan **out, struct hx_error *err)
{
    uint64_t n_rows = (uint64_t)b->so.table[table][0].n_rows;
    for (int i = 0; i < n; i++)
        rows[i] = (int64_t)(hx_rng_next(g) % n_rows);
    return hx_engram_plan_rows(s, urgency, table, rows, n, out, err);
}

static int check_rows(struct hx_engram_plan *p, const int64_t *rows, int n, struct hx_error *err)
{
    struct hx_engram_block k;
    uint8_t want[256];
    hx_engram_plan_block(p, 0, &k);
    for (int i = 0; i < n; i++) {
        hx_bench_made_row(rows[i], want);
        if (memcmp(want, k.codes + (size_t)i * sizeof(want), sizeof(want)) != 0)
            return hx_fail(err, -EIO, "row %lld is not what was written", (long long)rows[i]);
    }
    return 0;
}

static void hist_minus(struct hx_engram_hist *h, const struct hx_engram_hist *before)
{
    for (int i = 0; i < HX_ENGRAM_HIST; i++)
        h->bucket[i] -= before->bucket[i];
    h->count -= before->count;
}

/* Keeps the queue full for so long. */
static int flood(struct hx_bench_engram *b, struct hx_engram_stream *s, double seconds,
                 struct hx_bench_rate *out, struct hx_error *err)
{
    static int64_t rows[PLANS][PLAN_ROWS];
    struct hx_engram_plan *p[PLANS] = {NULL};
    struct hx_engram_stats *before = malloc(sizeof(*before)), *after = malloc(sizeof(*after));
    struct hx_rng g;
    hx_rng_seed(&g, (uint64_t)(now() * 1e6));
    int r = before && after ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    double warm = now() + seconds / 10, start = 0, cpu = 0, user = 0, user_end,
           end = warm + seconds;
    uint64_t n_before = 0;
    for (int i = 0; r == 0; i = (i + 1) % PLANS) {
        int table = i % b->so.n_tables;
        if (p[i]) {
            r = hx_engram_wait(p[i], table, -1, err);
            if (r == 0 && b->verify)
                r = check_rows(p[i], rows[i], PLAN_ROWS, err);
            hx_engram_release(p[i]);
            p[i] = NULL;
        }
        if (r == 0 && start == 0 && now() >= warm) {
            hx_engram_stream_stats(s, before);
            start = now();
            cpu = cpu_time(&user);
        }
        if (r == 0 && now() >= end)
            break;
        if (r == 0)
            r = want_random(b, s, &g, HX_ENGRAM_CHUNK, table, PLAN_ROWS, rows[i], &p[i], err);
    }
    if (r == 0) {
        double took = now() - start;
        cpu = cpu_time(&user_end) - cpu;
        hx_engram_stream_stats(s, after);
        uint64_t n = 0;
        for (int t = 0; t < b->so.n_tables; t++) {
            n += after->table[t].reads_completed;
            n_before += before->table[t].reads_completed;
        }
        n -= n_before;
        hist_minus(&after->read_us, &before->read_us);
        const struct hx_engram_hist *h = &after->read_us;
        *out = (struct hx_bench_rate){.rows_per_s = (double)n / took,
                                      .p50 = hx_engram_hist_quantile(h, 0.5),
                                      .p95 = hx_engram_hist_quantile(h, 0.95),
                                      .p99 = hx_engram_hist_quantile(h, 0.99),
                                      .p999 = hx_engram_hist_quantile(h, 0.999),
                                      .cpu = n ? cpu / ((double)n * 1e-6) : 0,
                                      .user = n ? (user_end - user) / ((double)n * 1e-6) : 0};
    }
    for (int i = 0; i < PLANS; i++)
        hx_engram_release(p[i]);
    free(before);
    free(after);
    return r;
}

static int one_rate(struct hx_bench_engram *b, enum hx_bench_kind kind, int depth,
                    struct hx_bench_rate *out, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    if (kind == HX_BENCH_BARE)
        return hx_bench_engram_bare(b, depth, out, err);
    int r = open_with(b, depth, 0, false, &s, err);
    if (r == 0)
        r = flood(b, s, (double)b->seconds, out, err);
    hx_engram_stream_close(s);
    return r;
}

static int rates(struct hx_bench_engram *b, enum hx_bench_kind kind, struct hx_error *err)
{
    const char *name = hx_bench_kind_names[kind];
    if (!b->json)
        printf("%-8s %8s %12s %10s %10s %10s %10s %12s %12s\n", "kind", "depth", "rows/s", "p50 us",
               "p95 us", "p99 us", "p99.9 us", "core-s/Mrow", "user part");
    for (int d = 0; d < b->n_depths; d++) {
        double v[7][MAX_REPEAT];
        for (int k = 0; k < b->repeat; k++) {
            struct hx_bench_rate m;
            int r = one_rate(b, kind, (int)b->depth[d], &m, err);
            if (r < 0)
                return r;
            v[0][k] = m.rows_per_s, v[1][k] = m.p50, v[2][k] = m.p95, v[3][k] = m.p99;
            v[4][k] = m.p999, v[5][k] = m.cpu, v[6][k] = m.user;
        }
        for (int i = 0; i < 7; i++)
            quantile(v[i], (int)b->repeat, 0);
        int mid = (int)b->repeat / 2, last = (int)b->repeat - 1;
        if (b->json)
            printf("{\"kind\":\"%s\",\"depth\":%lld,\"rows_per_s\":%.0f,\"min\":%.0f,"
                   "\"max\":%.0f,\"p50_us\":%.1f,\"p95_us\":%.1f,\"p99_us\":%.1f,"
                   "\"p999_us\":%.1f,\"core_s_per_mrow\":%.3f,\"user_core_s_per_mrow\":%.3f,"
                   "\"seconds\":%lld,\"repeat\":%lld}\n",
                   name, (long long)b->depth[d], v[0][mid], v[0][0], v[0][last], v[1][mid],
                   v[2][mid], v[3][mid], v[4][mid], v[5][mid], v[6][mid], (long long)b->seconds,
                   (long long)b->repeat);
        else
            printf("%-8s %8lld %12.0f %10.0f %10.0f %10.0f %10.0f %12.3f %12.3f\n", name,
                   (long long)b->depth[d], v[0][mid], v[1][mid], v[2][mid], v[3][mid], v[4][mid],
                   v[5][mid], v[6][mid]);
        fflush(stdout);
    }
    return 0;
}

static int run_rows(struct hx_bench_engram *b, struct hx_error *err)
{
    return rates(b, HX_BENCH_ROWS, err);
}

static int run_bare(struct hx_bench_engram *b, struct hx_error *err)
{
    return rates(b, HX_BENCH_BARE, err);
}

/* ---- batches ---- */

static int run_batch(struct hx_bench_engram *b, struct hx_error *err)
{
    static const struct {
        int n, most;
    } batches[] = {{144, 1000}, {1152, 1000}, {49152, 100}};
    struct hx_engram_stream *s = NULL;
    struct hx_rng g;
    hx_rng_seed(&g, 2);
    int64_t *rows = malloc(49152 * sizeof(*rows));
    double *took = malloc(1000 * sizeof(*took));
    int r = rows && took ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = open_with(b, 0, 0, false, &s, err);
    if (!b->json)
        printf("%-8s %8s %12s %12s %8s\n", "kind", "rows", "p50 ms", "p99 ms", "batches");
    for (size_t i = 0; r == 0 && i < sizeof(batches) / sizeof(batches[0]); i++) {
        double end = now() + (double)b->seconds;
        int n = 0;
        while (r == 0 && n < batches[i].most && (n < 3 || now() < end)) {
            struct hx_engram_plan *p = NULL;
            int table = n % b->so.n_tables;
            double start = now();
            r = want_random(b, s, &g, HX_ENGRAM_DECODE, table, batches[i].n, rows, &p, err);
            if (r == 0)
                r = hx_engram_wait(p, table, -1, err);
            took[n++] = (now() - start) * 1e3;
            hx_engram_release(p);
        }
        if (r < 0)
            break;
        double p50 = quantile(took, n, 0.5), p99 = quantile(took, n, 0.99);
        printf(b->json ? "{\"kind\":\"%s\",\"rows\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f,"
                         "\"batches\":%d}\n"
                       : "%-8s %8d %12.3f %12.3f %8d\n",
               "batch", batches[i].n, p50, p99, n);
        fflush(stdout);
    }
    hx_engram_stream_close(s);
    free(rows);
    free(took);
    return r;
}

/* ---- simulated steps ---- */

/* What the drive does by itself: a read alone; with a full queue rows/s, and how much later than
 * most the slowest of a hundred comes: a step waits for all of its rows. */
struct drive_speed {
    double alone_us, rows_per_s, tail_us;
};

static int measure_drive(struct hx_bench_engram *b, struct drive_speed *d, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    struct hx_bench_rate one = {0}, full = {0};
    int r = open_with(b, 1, 0, false, &s, err);
    if (r == 0)
        r = flood(b, s, 1, &one, err);
    hx_engram_stream_close(s);
    s = NULL;
    if (r == 0)
        r = open_with(b, 0, 0, false, &s, err);
    if (r == 0)
        r = flood(b, s, 2, &full, err);
    hx_engram_stream_close(s);
    *d = (struct drive_speed){one.p50, full.rows_per_s, full.p99 - full.p50};
    return r;
}

static double burst_ms(const struct drive_speed *d, double n)
{
    return (d->alone_us + d->tail_us) * 1e-3 + n / d->rows_per_s * 1e3;
}

/* Waits of decode steps in ms: rows of both tables wanted at the start, layers at their times. */
struct waits {
    double *a, *b; /* [n] stall before each table's layer */
    double *ready; /* [n] first table ready after */
    int n;
};

static int decode_steps(struct hx_bench_engram *b, struct hx_engram_stream *s, double seconds,
                        struct waits *w, struct hx_error *err)
{
    int n_rows = (int)(b->users * b->tokens) * SIZES * HEADS, last = b->so.n_tables - 1, r = 0;
    static int64_t rows[64 * 16 * SIZES * HEADS];
    struct hx_rng g;
    hx_rng_seed(&g, 3);
    double layer = (double)b->layer_us * 1e-6, end = now() + seconds;
    w->n = 0;
    while (r == 0 && now() < end && w->n < MAX_STEPS) {
        struct hx_engram_plan *a = NULL, *c = NULL;
        double start = now();
        r = want_random(b, s, &g, HX_ENGRAM_DECODE, 0, n_rows, rows, &a, err);
        if (r == 0)
            r = want_random(b, s, &g, HX_ENGRAM_DECODE, last, n_rows, rows, &c, err);
        if (r == 0)
            r = hx_engram_wait(a, 0, -1, err);
        double ready_a = now() - start, need_a = LAYER_A * layer;
        double stall_a = ready_a > need_a ? ready_a - need_a : 0;
        if (r == 0)
            r = hx_engram_wait(c, last, -1, err);
        double ready_b = now() - start, need_b = LAYER_B * layer + stall_a;
        double stall_b = ready_b > need_b ? ready_b - need_b : 0;
        hx_engram_release(a);
        hx_engram_release(c);
        w->ready[w->n] = ready_a * 1e3;
        w->a[w->n] = stall_a * 1e3;
        w->b[w->n++] = stall_b * 1e3;
        sleep_until(start + (double)b->layers * layer + stall_a + stall_b);
    }
    return r;
}

static int waits_new(struct waits *w, struct hx_error *err)
{
    w->n = 0;
    w->a = malloc(MAX_STEPS * sizeof(double));
    w->b = malloc(MAX_STEPS * sizeof(double));
    w->ready = malloc(MAX_STEPS * sizeof(double));
    return w->a && w->b && w->ready ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

static void waits_done(struct waits *w)
{
    free(w->a);
    free(w->b);
    free(w->ready);
}

static void print_waits(struct hx_bench_engram *b, const char *kind, const struct drive_speed *d,
                        struct waits *w)
{
    double n = (double)(b->users * b->tokens * SIZES * HEADS), layer = (double)b->layer_us * 1e-3;
    double ea = burst_ms(d, n) - LAYER_A * layer, eb = burst_ms(d, 2 * n) - LAYER_B * layer;
    eb -= ea > 0 ? ea : 0;
    int n_free = 0;
    double sum = 0;
    for (int i = 0; i < w->n; i++) {
        n_free += w->a[i] + w->b[i] == 0;
        sum += w->a[i] + w->b[i];
    }
    double mean = w->n > 0 ? sum / w->n : 0;
    double ready50 = quantile(w->ready, w->n, 0.5), ready99 = quantile(w->ready, w->n, 0.99),
           a50 = quantile(w->a, w->n, 0.5), a99 = quantile(w->a, w->n, 0.99),
           b50 = quantile(w->b, w->n, 0.5), b99 = quantile(w->b, w->n, 0.99);
    if (b->json) {
        printf("{\"kind\":\"%s\",\"users\":%lld,\"tokens\":%lld,\"layer_us\":%lld,\"layers\":%lld,"
               "\"steps\":%d,"
               "\"alone_us\":%.1f,\"rows_per_s\":%.0f,\"tail_us\":%.1f,\"ready_p50_ms\":%.3f,"
               "\"ready_p99_ms\":%.3f,"
               "\"stall_a_p50_ms\":%.3f,\"stall_a_p99_ms\":%.3f,\"stall_b_p50_ms\":%.3f,"
               "\"stall_b_p99_ms\":%.3f,\"expected_a_ms\":%.3f,\"expected_b_ms\":%.3f,"
               "\"steps_without_stall\":%d,\"stall_mean_ms\":%.3f}\n",
               kind, (long long)b->users, (long long)b->tokens, (long long)b->layer_us,
               (long long)b->layers, w->n, d->alone_us, d->rows_per_s, d->tail_us, ready50, ready99,
               a50, a99, b50, b99, ea > 0 ? ea : 0, eb > 0 ? eb : 0, n_free, mean);
        return;
    }
    printf("%s: %lld sequences x %lld tokens, %d steps of %lld layers of %.2f ms\n", kind,
           (long long)b->users, (long long)b->tokens, w->n, (long long)b->layers, layer);
    printf("  drive: %.0f us alone; full queue: %.0f rows/s, slowest of 100 %.0f us after most\n",
           d->alone_us, d->rows_per_s, d->tail_us);
    printf("  layer %d: %.0f rows take %.3f + %.0f / %.0f + %.3f = %.2f ms, needed after %.2f ms: "
           "stall %.2f ms expected\n",
           LAYER_A, n, d->alone_us * 1e-3, n, d->rows_per_s, d->tail_us * 1e-3, burst_ms(d, n),
           LAYER_A * layer, ea > 0 ? ea : 0);
    printf("  layer %d: %.0f rows take %.2f ms, needed after %.2f ms: stall %.2f ms expected\n",
           LAYER_B, 2 * n, burst_ms(d, 2 * n), LAYER_B * layer, eb > 0 ? eb : 0);
    printf("  measured: rows of layer %d after %.2f ms (p99 %.2f); stall %.3f ms (p99 %.3f) and "
           "%.3f ms (p99 %.3f)\n  %d of %d steps did not wait; mean %.3f ms\n",
           LAYER_A, ready50, ready99, a50, a99, b50, b99, n_free, w->n, mean);
    fflush(stdout);
}

static int run_decode(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    struct drive_speed d;
    struct waits w;
    int r = waits_new(&w, err);
    if (r == 0)
        r = measure_drive(b, &d, err);
    if (r == 0)
        r = open_with(b, 0, 0, false, &s, err);
    if (r == 0)
        r = decode_steps(b, s, (double)b->seconds, &w, err);
    if (r == 0)
        print_waits(b, "decode", &d, &w);
    hx_engram_stream_close(s);
    waits_done(&w);
    return r;
}

/* Chunks of a prompt: the next one's rows are wanted when a chunk begins to compute. stop NULL: for
 * so many seconds. */
struct prefill {
    struct hx_bench_engram *b;
    struct hx_engram_stream *s;
    double seconds;
    double *took, *stall; /* ms; [n] */
    double first;
    int n, r;
    struct hx_error err;
};

static int want_chunk(struct prefill *f, struct hx_rng *g, enum hx_engram_class urgency,
                      struct hx_engram_plan *p[2], int64_t *rows)
{
    int n = (int)(CHUNK_TOK * SIZES * HEADS * UNIQUE), r = 0;
    for (int t = 0; r == 0 && t < 2; t++)
        r = want_random(f->b, f->s, g, urgency, t % f->b->so.n_tables, n, rows, &p[t], &f->err);
    return r;
}

static int wait_chunk(struct prefill *f, struct hx_engram_plan *p[2])
{
    int r = 0;
    for (int t = 0; t < 2; t++) {
        hx_engram_plan_raise(p[t], HX_ENGRAM_CHUNK);
        if (r == 0)
            r = hx_engram_wait(p[t], t % f->b->so.n_tables, -1, &f->err);
    }
    return r;
}

static void *prefill_thread(void *arg)
{
    struct prefill *f = arg;
    struct hx_engram_plan *p[2][2] = {{NULL}};
    int64_t *rows = malloc(CHUNK_TOK * SIZES * HEADS * sizeof(*rows));
    struct hx_rng g;
    hx_rng_seed(&g, 4);
    double compute = (double)f->b->chunk_ms * 1e-3, begin = now();
    f->r = rows ? want_chunk(f, &g, HX_ENGRAM_CHUNK, p[0], rows)
                : hx_fail(&f->err, -ENOMEM, "out of memory");
    if (f->r == 0)
        f->r = wait_chunk(f, p[0]);
    f->first = (now() - begin) * 1e3;
    for (int i = 0; f->r == 0 && now() - begin < f->seconds && f->n < MAX_STEPS; i ^= 1) {
        double start = now();
        f->r = want_chunk(f, &g, HX_ENGRAM_AHEAD, p[i ^ 1], rows);
        /* The chunk computes; looking when its successor's rows are complete. */
        double complete = 0;
        while (f->r == 0 && now() - start < compute) {
            if (complete == 0 && atomic_load(hx_engram_plan_flag(p[i ^ 1][0], 0)) != 0 &&
                atomic_load(hx_engram_plan_flag(p[i ^ 1][1], f->b->so.n_tables - 1)) != 0)
                complete = now() - start;
            sleep_until(now() + 1e-3);
        }
        double waiting = now();
        if (f->r == 0)
            f->r = wait_chunk(f, p[i ^ 1]);
        double end = now();
        f->took[f->n] = (complete > 0 ? complete : end - start) * 1e3;
        f->stall[f->n++] = complete > 0 ? 0 : (end - waiting) * 1e3;
        for (int t = 0; t < 2; t++) {
            hx_engram_release(p[i][t]);
            p[i][t] = NULL;
        }
    }
    for (int i = 0; i < 4; i++)
        hx_engram_release(p[i / 2][i % 2]);
    free(rows);
    return NULL;
}

static int prefill_new(struct prefill *f, struct hx_bench_engram *b, struct hx_engram_stream *s,
                       struct hx_error *err)
{
    *f = (struct prefill){.b = b, .s = s, .seconds = (double)b->seconds};
    f->took = malloc(MAX_STEPS * sizeof(double));
    f->stall = malloc(MAX_STEPS * sizeof(double));
    return f->took && f->stall ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

static void print_prefill(struct hx_bench_engram *b, struct prefill *f)
{
    int n_rows = 2 * (int)(CHUNK_TOK * SIZES * HEADS * UNIQUE), n_late = 0;
    double most = 0;
    for (int i = 0; i < f->n; i++) {
        n_late += f->stall[i] > 0;
        most = f->stall[i] > most ? f->stall[i] : most;
    }
    double t50 = quantile(f->took, f->n, 0.5), t99 = quantile(f->took, f->n, 0.99);
    if (b->json)
        printf("{\"kind\":\"prefill\",\"rows\":%d,\"chunk_ms\":%lld,\"chunks\":%d,"
               "\"first_ms\":%.1f,\"read_p50_ms\":%.1f,\"read_p99_ms\":%.1f,\"late\":%d,"
               "\"worst_stall_ms\":%.1f}\n",
               n_rows, (long long)b->chunk_ms, f->n, f->first, t50, t99, n_late, most);
    else
        printf("prefill: %d rows a chunk of %d tokens; first chunk waited %.0f ms; %d chunks of "
               "%lld ms compute:\n  next chunk's rows complete after %.0f ms (p99 %.0f); %d "
               "chunks waited, at most %.1f ms\n",
               n_rows, CHUNK_TOK, f->first, f->n, (long long)b->chunk_ms, t50, t99, n_late, most);
    fflush(stdout);
}

static int run_prefill(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    struct prefill f = {0};
    int r = open_with(b, 0, 0, false, &s, err);
    if (r == 0)
        r = prefill_new(&f, b, s, err);
    if (r == 0) {
        prefill_thread(&f);
        r = f.r;
        if (r < 0)
            *err = f.err;
        else
            print_prefill(b, &f);
    }
    free(f.took);
    free(f.stall);
    hx_engram_stream_close(s);
    return r;
}

/* Decode beside a prefill that never ends, against decode alone. */
static int run_mixed(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    struct prefill f = {0};
    struct drive_speed d;
    struct waits alone = {0}, beside = {0};
    pthread_t thread;
    int r = waits_new(&alone, err);
    if (r == 0)
        r = waits_new(&beside, err);
    if (r == 0)
        r = measure_drive(b, &d, err);
    if (r == 0)
        r = open_with(b, 0, 0, false, &s, err);
    if (r == 0)
        r = decode_steps(b, s, (double)b->seconds, &alone, err);
    if (r == 0)
        r = prefill_new(&f, b, s, err);
    if (r == 0) {
        f.seconds += 1;
        int e = pthread_create(&thread, NULL, prefill_thread, &f);
        r = e ? hx_fail_errno(err, e, "cannot start a thread") : 0;
        if (r == 0) {
            r = decode_steps(b, s, (double)b->seconds, &beside, err);
            pthread_join(thread, NULL);
            if (r == 0 && f.r < 0)
                *err = f.err;
            r = r < 0 ? r : f.r;
        }
    }
    if (r == 0) {
        double a = quantile(alone.ready, alone.n, 0.99), c = quantile(beside.ready, beside.n, 0.99);
        printf(b->json ? "{\"kind\":\"mixed\",\"alone_p99_ms\":%.3f,\"beside_p99_ms\":%.3f,"
                         "\"ratio\":%.3f}\n"
                       : "mixed: rows of layer 1 after %.2f ms (p99) alone, %.2f ms beside a "
                         "prefill: x %.2f\n",
               a, c, c / a);
    }
    hx_engram_stream_close(s);
    waits_done(&alone);
    waits_done(&beside);
    free(f.took);
    free(f.stall);
    return r;
}

/* ---- text ---- */

static int text_pass(struct hx_bench_engram *b, struct hx_engram_stream *s, int64_t cache, int pass,
                     struct hx_error *err)
{
    struct hx_engram_stats *x = malloc(sizeof(*x)), *y = malloc(sizeof(*y));
    int r = x && y ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    double start = now();
    if (r == 0)
        hx_engram_stream_stats(s, x);
    for (size_t at = 0; r == 0 && at < b->ids.len; at += CHUNK_TOK) {
        struct hx_engram_plan *p = NULL;
        size_t left = b->ids.len - at;
        int n = left < CHUNK_TOK ? (int)left : CHUNK_TOK;
        r = hx_engram_plan(s, HX_ENGRAM_CHUNK, b->ids.id, NULL, (int64_t)at, n, &p, err);
        for (int t = 0; r == 0 && t < b->so.n_tables; t++)
            r = hx_engram_wait(p, t, -1, err);
        hx_engram_release(p);
    }
    if (r == 0) {
        uint64_t asked = 0, unique = 0, hits = 0, reads = 0, bytes = 0;
        hx_engram_stream_stats(s, y);
        for (int t = 0; t < b->so.n_tables; t++) {
            asked += y->table[t].groups_requested - x->table[t].groups_requested;
            unique += y->table[t].groups_unique - x->table[t].groups_unique;
            hits += y->table[t].cache_hits - x->table[t].cache_hits;
            reads += y->table[t].reads_completed - x->table[t].reads_completed;
            bytes += y->table[t].bytes_read - x->table[t].bytes_read;
        }
        double n = (double)b->ids.len;
        printf(b->json ? "{\"kind\":\"text\",\"cache_bytes\":%lld,\"pass\":%d,\"tokens\":%.0f,"
                         "\"distinct\":%.4f,\"hit_rate\":%.4f,\"reads_per_token\":%.2f,"
                         "\"kb_per_token\":%.2f,\"tok_per_s\":%.0f}\n"
                       : "text: cache %lld pass %d: %.0f tokens; distinct in chunk %.3f, of those "
                         "hits %.3f; %.2f reads and %.1f kB a token; %.0f tok/s\n",
               (long long)cache, pass, n, (double)unique / (double)asked,
               (double)hits / (double)unique, (double)reads / n, (double)bytes / n / 1e3,
               n / (now() - start));
        fflush(stdout);
    }
    free(x);
    free(y);
    return r;
}

static int run_text(struct hx_bench_engram *b, struct hx_error *err)
{
    int r = 0;
    for (int c = 0; r == 0 && c < b->n_caches; c++) {
        struct hx_engram_stream *s = NULL;
        r = open_with(b, 0, b->cache[c], true, &s, err);
        for (int pass = 1; r == 0 && pass <= 2; pass++)
            r = text_pass(b, s, b->cache[c], pass, err);
        hx_engram_stream_close(s);
    }
    return r;
}

/* ---- all ---- */

static int describe(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_engram_stream *s = NULL;
    char text[1500];
    int r = open_with(b, 0, 0, false, &s, err);
    if (r < 0)
        return r;
    struct hx_engram_stats *st = malloc(sizeof(*st));
    hx_engram_stream_describe(s, text, sizeof(text));
    if (st) {
        hx_engram_stream_stats(s, st);
        printf(b->json ? "{\"kind\":\"drive\",\"level\":%d,\"align\":%d,\"scale_bytes\":%llu}\n"
                       : "level %d, alignment %d, scales %llu bytes\n",
               (int)st->level, st->align, (unsigned long long)st->scale_bytes);
        if (!b->json)
            printf("%s\n", text);
    }
    free(st);
    hx_engram_stream_close(s);
    return 0;
}

int hx_bench_engram_run(struct hx_bench_engram *b, struct hx_error *err)
{
    static int (*const run[HX_BENCH_KINDS])(struct hx_bench_engram *, struct hx_error *) = {
        run_rows, run_bare, run_batch, run_decode, run_prefill, run_mixed, run_text};
    int r = describe(b, err);
    for (int k = 0; r == 0 && k < HX_BENCH_KINDS; k++) {
        if (b->kind[k])
            r = run[k](b, err);
    }
    return r;
}
