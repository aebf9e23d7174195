/* The engine's statistics: histograms, and the Engram streamer's counters as callers see them. */
#include <string.h>

#include "run/engine_impl.h"

const double hx_histogram_bounds_seconds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                              0.5,   1,     2,     5,    10,   20,   30,  60,
                                              120,   300,   600,   1200, 2400, 3600};
const int hx_histogram_n_seconds =
    sizeof(hx_histogram_bounds_seconds) / sizeof(hx_histogram_bounds_seconds[0]);

const double hx_histogram_bounds_tokens[] = {1,     2,     4,     8,      16,     32,     64,
                                             128,   256,   512,   1024,   2048,   4096,   8192,
                                             16384, 32768, 65536, 131072, 262144, 524288, 1048576};
const int hx_histogram_n_tokens =
    sizeof(hx_histogram_bounds_tokens) / sizeof(hx_histogram_bounds_tokens[0]);

const double hx_histogram_bounds_fine[] = {0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001,
                                           0.002,   0.005,   0.01,    0.02,   0.05,   0.1,    0.2,
                                           0.5,     1,       2,       5,      10};
const int hx_histogram_n_fine =
    sizeof(hx_histogram_bounds_fine) / sizeof(hx_histogram_bounds_fine[0]);

void hx_histogram_add(struct hx_histogram *h, const double *bounds, int n_bounds, double v)
{
    int i = 0;
    while (i < n_bounds && v > bounds[i])
        i++;
    h->bucket[i]++;
    h->count++;
    h->sum += v;
}

/* The streamer's fine buckets in the coarser ones: each counts where its upper bound lies. */
static void convert(const struct hx_engram_hist *from, struct hx_histogram *to)
{
    for (int i = 0; i < HX_ENGRAM_HIST; i++) {
        double bound = hx_engram_hist_bound(i) * 1e-6;
        int b = 0;
        while (b < hx_histogram_n_fine && bound > hx_histogram_bounds_fine[b] * (1 + 1e-9))
            b++;
        to->bucket[b] += from->bucket[i];
    }
    to->count += from->count;
    to->sum += from->sum_us * 1e-6;
}

void hx_engine_engram_counters(struct hx_engram_stream *s, struct hx_engram_counters *out)
{
    struct hx_engram_stats st;
    memset(out, 0, sizeof(*out));
    if (!s)
        return;
    hx_engram_stream_stats(s, &st);
    out->n_tables = st.n_tables;
    for (int t = 0; t < st.n_tables; t++) {
        const struct hx_engram_table_stats *f = &st.table[t];
        out->table[t].rows_requested = f->rows_requested;
        out->table[t].rows_unique = f->rows_unique;
        out->table[t].groups_requested = f->groups_requested;
        out->table[t].groups_unique = f->groups_unique;
        out->table[t].cache_hits = f->cache_hits;
        out->table[t].attached_waits = f->attached_waits;
        out->table[t].reads_submitted = f->reads_submitted;
        out->table[t].reads_completed = f->reads_completed;
        out->table[t].bytes_read = f->bytes_read;
        out->table[t].straddling_reads = f->straddling_reads;
        out->table[t].retries = f->retries;
        out->table[t].implausible_rows = f->implausible_rows;
        out->table[t].online = st.table_online[t];
    }
    _Static_assert((int)HX_ENGRAM_FAULT_MAX == (int)HX_ENGRAM_ERR_KINDS, "the same kinds");
    memcpy(out->errors, st.errors, sizeof(out->errors));
    out->busy_rejections = st.busy_rejections;
    out->cancelled_plans = st.cancelled_plans;
    out->rejected_draft_rows = st.rejected_draft_rows;
    out->late_decode_waits = st.late_decode_waits;
    out->cache_bytes = st.cache_bytes;
    out->scale_bytes = st.scale_bytes;
    out->cache_rows = (uint64_t)st.cache_rows;
    out->in_flight = (uint64_t)st.in_flight;
    out->queued_rows = (uint64_t)st.queued_rows;
    out->level = (int)st.level;
    out->align = st.align;
    convert(&st.read_us, &out->read);
    convert(&st.plan_wait_us[HX_ENGRAM_DECODE], &out->wait[HX_ENGRAM_WAIT_DECODE]);
    convert(&st.plan_wait_us[HX_ENGRAM_CHUNK], &out->wait[HX_ENGRAM_WAIT_CHUNK]);
}
