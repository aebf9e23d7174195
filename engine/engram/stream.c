/* The streamer as a whole: opening, closing, state, the plain reader over it. */
#include "engram/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engram/stream_impl.h"

#define RECENT_S 60.0 /* errors younger than this show in the health */

/* ---- opening ---- */

static int check_options(const struct hx_engram_stream_options *o, struct hx_error *err)
{
    const struct {
        const char *name;
        int64_t value, min, max;
    } rows[] = {
        {"tables", o->n_tables, 1, HX_ENGRAM_MAX_TABLES},
        {"heads", o->n_heads, 0, HX_ENGRAM_MAX_COLS},
        {"depth", o->depth, 0, 4096},
        {"threads", o->n_threads, 0, 256},
        {"rows on their way", o->max_rows, 0, 1 << 24},
        {"alignment", o->align, 0, HX_ENGRAM_PAGE},
        {"level", (int64_t)o->best, 0, HX_ENGRAM_LEVELS - 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].value < rows[i].min || rows[i].value > rows[i].max)
            return hx_fail(err, -EINVAL, "engram: %s: found %lld, expected %lld to %lld",
                           rows[i].name, (long long)rows[i].value, (long long)rows[i].min,
                           (long long)rows[i].max);
    }
    if (o->align != 0 && o->align != 512 && o->align != HX_ENGRAM_PAGE)
        return hx_fail(err, -EINVAL, "engram: alignment: found %d, expected 512 or 4096", o->align);
    for (int t = 0; t < o->n_tables; t++) {
        if (o->n_copies[t] < 1 || o->n_copies[t] > HX_ENGRAM_MAX_COPIES)
            return hx_fail(err, -EINVAL, "engram: table %d has %d files, expected 1 to %d", t,
                           o->n_copies[t], HX_ENGRAM_MAX_COPIES);
    }
    return 0;
}

static int take_or(int value, int standard)
{
    return value > 0 ? value : standard;
}

static void fill_defaults(struct hx_engram_stream *s, const struct hx_engram_stream_options *o)
{
    s->o = *o;
    s->n_tables = o->n_tables;
    s->n_heads = o->hash ? hx_engram_n_heads(o->hash) : take_or(o->n_heads, 8);
    s->n_sizes = o->hash ? hx_engram_n_sizes(o->hash) : 1;
    s->o.depth = take_or(o->depth, 512);
    s->o.n_threads = take_or(o->n_threads, 32);
    s->o.max_rows = take_or(o->max_rows, 262144);
    s->o.staging_bytes = o->staging_bytes ? o->staging_bytes : (uint64_t)96 << 20;
    s->o.slow_ms = take_or(o->slow_ms, 2000);
    s->o.lost_ms = take_or(o->lost_ms, 10000);
    s->o.check_ms = take_or(o->check_ms, 60000);
    s->o.reopen_ms = take_or(o->reopen_ms, 30000);
    for (int t = 0; t < o->n_tables; t++)
        s->table[t] = o->table[t][0];
}

static int open_memory(struct hx_engram_stream *s, struct hx_error *err)
{
    size_t stride =
        sizeof(struct hx_engram_flight) + (size_t)s->n_heads * sizeof(struct hx_engram_job);
    uint32_t codes = 0, scales = 0;
    s->n_flights = s->o.max_rows / s->n_heads > 0 ? s->o.max_rows / s->n_heads : 1;
    s->flight_bytes = (size_t)s->n_flights * stride;
    void *p =
        mmap(NULL, s->flight_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hx_fail(err, -ENOMEM, "out of memory for %d Engram rows", s->o.max_rows);
    s->flights = p;
    for (int i = s->n_flights - 1; i >= 0; i--) {
        struct hx_engram_flight *f = (void *)(s->flights + (size_t)i * stride);
        f->next_free = s->free_flight;
        s->free_flight = f;
    }
    s->n_free_flights = s->n_flights;
    for (int t = 0; t < s->n_tables; t++) {
        uint32_t c = (uint32_t)(s->n_heads * s->table[t].row_bytes),
                 x = (uint32_t)(s->n_heads * s->table[t].scale_bytes);
        codes = c > codes ? c : codes;
        scales = x > scales ? x : scales;
    }
    struct hx_engram_cache_options co = {.n_cached =
                                             hx_engram_cache_fit(s->o.cache_bytes, codes, scales),
                                         .n_loading = (uint32_t)s->n_flights,
                                         .code_bytes = codes,
                                         .scale_bytes = scales};
    int r = hx_engram_cache_new(&co, &s->cache, err);
    return r < 0 ? r : hx_engram_staging_open(s, err);
}

/* Each drive's thread opens its own ring, and says how that went. */
static int start_drives(struct hx_engram_stream *s, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; r == 0 && i < s->n_drives; i++)
        r = hx_engram_drive_start(s->drive[i], err);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; r == 0 && i < s->n_drives; i++) {
        struct hx_engram_drive *d = s->drive[i];
        while (!d->started)
            pthread_cond_wait(&s->done, &s->lock);
        r = d->start_result;
        if (r < 0 && err)
            *err = d->lost_reason;
    }
    pthread_mutex_unlock(&s->lock);
    return r < 0 ? hx_wrap(err, r, "Engram") : 0;
}

int hx_engram_stream_open(const struct hx_engram_stream_options *o, struct hx_engram_stream **out,
                          struct hx_error *err)
{
    int r = check_options(o, err);
    if (r < 0)
        return r;
    struct hx_engram_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    fill_defaults(s, o);
    hx_engram_plausible_init(&s->plausible, o->max_abs);
    r = hx_engram_files_open(s, err);
    if (r == 0)
        r = hx_engram_scales_load(s, err);
    if (r == 0)
        r = open_memory(s, err);
    if (r == 0)
        r = start_drives(s, err);
    if (r < 0) {
        hx_engram_stream_close(s);
        return r;
    }
    *out = s;
    return 0;
}

void hx_engram_stream_close(struct hx_engram_stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_drives; i++)
        hx_engram_drive_stop(s->drive[i]);
    hx_engram_files_close(s);
    hx_engram_scales_free(s);
    hx_engram_staging_close(s);
    hx_engram_cache_free(s->cache);
    if (s->flights)
        munmap(s->flights, s->flight_bytes);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->done);
    free(s);
}

/* ---- state ---- */

const char *const hx_engram_error_names[HX_ENGRAM_ERR_KINDS] = {"io",   "gone",        "short",
                                                                "slow", "implausible", "other"};

/* Buckets: 0 up to 1 us, then 32 for each doubling. */
void hx_engram_hist_add(struct hx_engram_hist *h, double us)
{
    /* Exponent and the five highest bits of the fraction. */
    uint64_t bits, i = 0;
    memcpy(&bits, &us, sizeof(bits));
    if (us > 1)
        i = (bits >> 47) - (1023 << 5) + 1;
    h->bucket[i < HX_ENGRAM_HIST ? i : HX_ENGRAM_HIST - 1]++;
    h->count++;
    h->sum_us += us;
    if (us > h->max_us)
        h->max_us = us;
}

void hx_engram_hist_sum(struct hx_engram_hist *to, const struct hx_engram_hist *from)
{
    for (int i = 0; i < HX_ENGRAM_HIST; i++)
        to->bucket[i] += from->bucket[i];
    to->count += from->count;
    to->sum_us += from->sum_us;
    if (from->max_us > to->max_us)
        to->max_us = from->max_us;
}

double hx_engram_hist_bound(int bucket)
{
    return ldexp(1 + bucket % 32 / 32.0, bucket / 32);
}

double hx_engram_hist_quantile(const struct hx_engram_hist *h, double part)
{
    uint64_t below = 0;
    for (int i = 0; i < HX_ENGRAM_HIST; i++) {
        below += h->bucket[i];
        if (h->count > 0 && (double)below >= part * (double)h->count) {
            double bound = hx_engram_hist_bound(i);
            return bound < h->max_us ? bound : h->max_us;
        }
    }
    return 0;
}

/* d's counters added to those of the streamer. */
static void add_drive(struct hx_engram_stats *to, struct hx_engram_drive *d)
{
    pthread_mutex_lock(&d->stats_mutex);
    for (int t = 0; t < HX_ENGRAM_MAX_TABLES; t++) {
        const struct hx_engram_table_stats *from = &d->stats[t];
        to->table[t].reads_completed += from->reads_completed;
        to->table[t].bytes_read += from->bytes_read;
        to->table[t].straddling_reads += from->straddling_reads;
        to->table[t].retries += from->retries;
        to->table[t].implausible_rows += from->implausible_rows;
    }
    for (int k = 0; k < HX_ENGRAM_ERR_KINDS; k++)
        to->errors[k] += d->errors[k];
    to->in_flight += atomic_load(&d->in_flight);
    hx_engram_hist_sum(&to->read_us, &d->read_us);
    pthread_mutex_unlock(&d->stats_mutex);
}

void hx_engram_stream_stats(struct hx_engram_stream *s, struct hx_engram_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_tables = s->n_tables;
    out->n_drives = s->n_drives;
    out->buffered = s->o.buffered;
    out->plans = s->n_plans;
    out->cache_rows = (int64_t)hx_engram_cache_count(s->cache) * s->n_heads;
    out->cache_bytes = hx_engram_cache_bytes(s->cache);
    out->staging_bytes = s->o.staging_bytes;
    for (int t = 0; t < s->n_tables; t++)
        out->scale_bytes += (uint64_t)s->table[t].n_rows * (uint64_t)s->table[t].scale_bytes;
    for (int i = 0; i < s->n_drives; i++) {
        struct hx_engram_drive *d = s->drive[i];
        out->queued_rows += d->n_queued;
        out->n_drives_online += d->online;
        out->level = d->level > out->level ? d->level : out->level;
        out->align = d->shown_align > out->align ? d->shown_align : out->align;
        out->buffered = out->buffered || d->level == HX_ENGRAM_THREADS_BUFFERED;
        for (int t = 0; t < s->n_tables; t++)
            out->table_online[t] = out->table_online[t] || (d->online && d->file_of[t] >= 0);
        add_drive(out, d);
    }
    pthread_mutex_unlock(&s->lock);
}

enum hx_engram_health hx_engram_stream_health(struct hx_engram_stream *s, struct hx_error *reason)
{
    enum hx_engram_health h = HX_ENGRAM_OK;
    pthread_mutex_lock(&s->lock);
    if (s->last_error > 0 && hx_engram_now() - s->last_error < RECENT_S) {
        h = HX_ENGRAM_DEGRADED;
        if (reason)
            *reason = s->last_error_reason;
    }
    bool online[HX_ENGRAM_MAX_TABLES] = {false};
    const struct hx_engram_drive *lost = NULL;
    for (int i = 0; i < s->n_drives; i++) {
        const struct hx_engram_drive *d = s->drive[i];
        for (int t = 0; t < s->n_tables; t++)
            online[t] = online[t] || (d->online && d->file_of[t] >= 0);
        if (!d->online)
            lost = d;
    }
    if (lost) {
        h = HX_ENGRAM_DEGRADED;
        if (reason)
            *reason = lost->lost_reason;
    }
    for (int t = 0; t < s->n_tables; t++)
        h = online[t] ? h : HX_ENGRAM_OFFLINE;
    pthread_mutex_unlock(&s->lock);
    return h;
}

void hx_engram_stream_describe(struct hx_engram_stream *s, char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_drives && n < size; i++) {
        const struct hx_engram_drive *d = s->drive[i];
        int w = snprintf(text + n, size - n, "%s%s: %s%s%s%s%s", i ? "; " : "", d->file[0].path,
                         hx_engram_level_name(d->level), s->o.buffered ? ", page cache" : "",
                         d->why[0] ? " (" : "", d->why, d->why[0] ? ")" : "");
        n += w > 0 ? (size_t)w : 0;
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- the plain interface ---- */

#define READER_ROWS  8192 /* of one plan */
#define READER_PLANS 4    /* on their way */

struct stream_reader {
    struct hx_engram_reader base;
    struct hx_engram_stream *s;
};

static int copy_rows(struct hx_engram_plan *p, int t, uint8_t *codes, uint8_t *scales,
                     struct hx_error *err)
{
    int r = hx_engram_wait(p, t, -1, err);
    if (r < 0)
        return r;
    struct hx_engram_block b;
    hx_engram_plan_block(p, t, &b);
    memcpy(codes, b.codes, (size_t)b.n_rows * (size_t)p->s->table[t].row_bytes);
    memcpy(scales, b.scales, (size_t)b.n_rows * (size_t)p->s->table[t].scale_bytes);
    return 0;
}

static int stream_read(struct hx_engram_reader *base, int t, const int64_t *rows, int64_t n,
                       uint8_t *codes, uint8_t *scales, struct hx_error *err)
{
    struct hx_engram_stream *s = ((struct stream_reader *)base)->s;
    struct hx_engram_plan *p[READER_PLANS] = {NULL};
    if (t < 0 || t >= s->n_tables || n < 0)
        return hx_fail(err, -EINVAL, "engram: %lld rows of table %d, there are %d tables",
                       (long long)n, t, s->n_tables);
    size_t nc = (size_t)s->table[t].row_bytes, ns = (size_t)s->table[t].scale_bytes;
    int64_t n_pieces = (n + READER_ROWS - 1) / READER_ROWS, planned = 0, taken = 0;
    int r = 0;
    while (r == 0 && taken < n_pieces) {
        int64_t at = planned * READER_ROWS;
        if (planned < n_pieces && planned < taken + READER_PLANS) {
            int64_t piece = n - at < READER_ROWS ? n - at : READER_ROWS;
            r = hx_engram_plan_rows(s, HX_ENGRAM_CHUNK, t, rows + at, piece,
                                    &p[planned % READER_PLANS], err);
            if (r == 0)
                planned++;
            if (r != -EAGAIN || planned == taken)
                continue;
        }
        size_t from = (size_t)(taken * READER_ROWS);
        r = copy_rows(p[taken % READER_PLANS], t, codes + from * nc, scales + from * ns, err);
        hx_engram_release(p[taken % READER_PLANS]);
        p[taken++ % READER_PLANS] = NULL;
    }
    for (int i = 0; i < READER_PLANS; i++)
        hx_engram_release(p[i]);
    return r;
}

static void stream_close(struct hx_engram_reader *base)
{
    struct stream_reader *r = (struct stream_reader *)base;
    if (!r)
        return;
    hx_engram_stream_close(r->s);
    free(r);
}

static const struct hx_engram_reader_ops reader_ops = {"stream", stream_read, stream_close};

int hx_engram_stream_reader(struct hx_engram_stream *s, struct hx_engram_reader **out,
                            struct hx_error *err)
{
    struct stream_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory");
    r->base.ops = &reader_ops;
    r->s = s;
    *out = &r->base;
    return 0;
}
