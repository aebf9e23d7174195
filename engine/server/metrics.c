/* Prometheus text: one row a metric. Names that begin with vllm: have the meaning that dashboards
 * for that server expect. */
#include "server/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hx/build_facts.h>

#define MODEL "model_name=\"deepseek-v4.1-flash\""

static void count(struct hx_labelled *list, const char *a, const char *b)
{
    for (int i = 0; i < HX_METRIC_CODES; i++) {
        struct hx_labelled *l = &list[i];
        if (l->n == 0) {
            strncpy(l->a, a, sizeof(l->a) - 1);
            strncpy(l->b, b, sizeof(l->b) - 1);
        }
        if (strncmp(l->a, a, sizeof(l->a) - 1) == 0 && strncmp(l->b, b, sizeof(l->b) - 1) == 0) {
            l->n++;
            return;
        }
    }
}

void hx_metrics_response(struct hx_metrics *m, const char *path, int code)
{
    char text[8] = {(char)('0' + code / 100 % 10), (char)('0' + code / 10 % 10),
                    (char)('0' + code % 10), '\0'};
    count(m->responses, path, text);
}

void hx_metrics_healed(struct hx_metrics *m, const char *code, size_t len)
{
    char text[40] = {0};
    memcpy(text, code, len < sizeof(text) - 1 ? len : sizeof(text) - 1);
    count(m->healed, text, "");
}

enum kind { GAUGE_INT, GAUGE_REAL, COUNTER, SECONDS, TOKENS };

#define AT(field) offsetof(struct hx_engine_stats, field)
static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
} rows[] = {
    {"vllm:num_requests_running", GAUGE_INT, AT(running)},
    {"vllm:num_requests_waiting", GAUGE_INT, AT(waiting)},
    {"vllm:kv_cache_usage_perc", GAUGE_REAL, AT(kv_usage)},
    {"vllm:gpu_cache_usage_perc", GAUGE_REAL, AT(kv_usage)},
    {"vllm:prefix_cache_queries_total", COUNTER, AT(prefix_query_tok)},
    {"vllm:prefix_cache_hits_total", COUNTER, AT(prefix_hit_tok)},
    {"vllm:prompt_tokens_total", COUNTER, AT(prompt_tok)},
    {"vllm:generation_tokens_total", COUNTER, AT(generated_tok)},
    {"vllm:num_preemptions_total", COUNTER, AT(preemptions)},
    {"vllm:spec_decode_num_drafts_total", COUNTER, AT(drafts)},
    {"vllm:spec_decode_num_draft_tokens_total", COUNTER, AT(draft_tok)},
    {"vllm:spec_decode_num_accepted_tokens_total", COUNTER, AT(accepted_tok)},
    {"vllm:time_to_first_token_seconds", SECONDS, AT(ttft)},
    {"vllm:inter_token_latency_seconds", SECONDS, AT(itl)},
    {"vllm:time_per_output_token_seconds", SECONDS, AT(itl)},
    {"vllm:e2e_request_latency_seconds", SECONDS, AT(e2e)},
    {"vllm:request_queue_time_seconds", SECONDS, AT(queue_time)},
    {"vllm:request_prefill_time_seconds", SECONDS, AT(prefill_time)},
    {"vllm:request_decode_time_seconds", SECONDS, AT(decode_time)},
    {"vllm:request_prompt_tokens", TOKENS, AT(prompt_len)},
    {"vllm:request_generation_tokens", TOKENS, AT(generated_len)},
};

static void type_line(struct hx_buf *out, const char *name, const char *type)
{
    hx_buf_printf(out, "# TYPE %s %s\n", name, type);
}

static void histogram(struct hx_buf *out, const char *name, const struct hx_histogram *h,
                      const double *bounds, int n)
{
    uint64_t sum = 0;
    type_line(out, name, "histogram");
    for (int i = 0; i < n; i++) {
        sum += h->bucket[i];
        hx_buf_printf(out, "%s_bucket{" MODEL ",le=\"%.12g\"} %llu\n", name, bounds[i],
                      (unsigned long long)sum);
    }
    hx_buf_printf(out, "%s_bucket{" MODEL ",le=\"+Inf\"} %llu\n", name,
                  (unsigned long long)h->count);
    hx_buf_printf(out, "%s_sum{" MODEL "} %.12g\n", name, h->sum);
    hx_buf_printf(out, "%s_count{" MODEL "} %llu\n", name, (unsigned long long)h->count);
}

static void engine_rows(const struct hx_engine_stats *st, struct hx_buf *out)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const void *v = (const char *)st + rows[i].offset;
        const char *name = rows[i].name;
        switch (rows[i].kind) {
        case GAUGE_INT:
            type_line(out, name, "gauge");
            hx_buf_printf(out, "%s{" MODEL "} %d\n", name, *(const int *)v);
            break;
        case GAUGE_REAL:
            type_line(out, name, "gauge");
            hx_buf_printf(out, "%s{" MODEL "} %.9g\n", name, *(const double *)v);
            break;
        case COUNTER:
            type_line(out, name, "counter");
            hx_buf_printf(out, "%s{" MODEL "} %llu\n", name,
                          (unsigned long long)*(const uint64_t *)v);
            break;
        case SECONDS:
            histogram(out, name, v, hx_histogram_bounds_seconds, hx_histogram_n_seconds);
            break;
        case TOKENS:
            histogram(out, name, v, hx_histogram_bounds_tokens, hx_histogram_n_tokens);
            break;
        }
    }
    static const char *const per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    type_line(out, per_pos, "counter");
    for (int i = 0; i < HX_MAX_DRAFTS; i++)
        hx_buf_printf(out, "%s{" MODEL ",position=\"%d\"} %llu\n", per_pos, i,
                      (unsigned long long)st->accepted_per_pos[i]);
}

static void labelled(struct hx_buf *out, const char *name, const char *label, const char *value,
                     uint64_t n)
{
    hx_buf_printf(out, "%s{" MODEL ",%s=\"%s\"} %llu\n", name, label, value, (unsigned long long)n);
}

/* ---- Engram ---- */

#define EAT(field)    offsetof(struct hx_engram_counters, field)
#define ETABLE(field) offsetof(struct hx_engram_counters, table[0].field)

static const struct {
    const char *name, *type;
    size_t offset; /* of table 0 */
} engram_table_rows[] = {
    {"hx_engram_rows_requested_total", "counter", ETABLE(rows_requested)},
    {"hx_engram_rows_unique_total", "counter", ETABLE(rows_unique)},
    {"hx_engram_groups_requested_total", "counter", ETABLE(groups_requested)},
    {"hx_engram_groups_unique_total", "counter", ETABLE(groups_unique)},
    {"hx_engram_cache_hits_total", "counter", ETABLE(cache_hits)},
    {"hx_engram_attached_waits_total", "counter", ETABLE(attached_waits)},
    {"hx_engram_reads_submitted_total", "counter", ETABLE(reads_submitted)},
    {"hx_engram_reads_completed_total", "counter", ETABLE(reads_completed)},
    {"hx_engram_bytes_read_total", "counter", ETABLE(bytes_read)},
    {"hx_engram_straddling_reads_total", "counter", ETABLE(straddling_reads)},
    {"hx_engram_retries_total", "counter", ETABLE(retries)},
    {"hx_engram_implausible_rows_total", "counter", ETABLE(implausible_rows)},
    {"hx_engram_table_online", "gauge", ETABLE(online)},
};
static const struct {
    const char *name, *type;
    size_t offset;
} engram_all_rows[] = {
    {"hx_engram_busy_rejections_total", "counter", EAT(busy_rejections)},
    {"hx_engram_cancelled_plans_total", "counter", EAT(cancelled_plans)},
    {"hx_engram_rejected_draft_rows_total", "counter", EAT(rejected_draft_rows)},
    {"hx_engram_late_decode_waits_total", "counter", EAT(late_decode_waits)},
    {"hx_engram_cache_bytes", "gauge", EAT(cache_bytes)},
    {"hx_engram_scale_bytes", "gauge", EAT(scale_bytes)},
    {"hx_engram_cache_rows", "gauge", EAT(cache_rows)},
    {"hx_engram_in_flight", "gauge", EAT(in_flight)},
    {"hx_engram_queued_rows", "gauge", EAT(queued_rows)},
};

static uint64_t engram_value(const struct hx_engram_counters *e, size_t offset, int table)
{
    uint64_t v;
    memcpy(&v, (const char *)e + offset + (size_t)table * sizeof(e->table[0]), sizeof(v));
    return v;
}

static void engram_rows(const struct hx_engram_counters *e, struct hx_buf *out)
{
    static const char *const faults[HX_ENGRAM_FAULT_MAX] = {"io",   "gone",        "short",
                                                            "slow", "implausible", "other"};
    char label[8];
    for (size_t i = 0; i < sizeof(engram_table_rows) / sizeof(engram_table_rows[0]); i++) {
        type_line(out, engram_table_rows[i].name, engram_table_rows[i].type);
        for (int t = 0; t < e->n_tables; t++) {
            snprintf(label, sizeof(label), "%d", t);
            labelled(out, engram_table_rows[i].name, "table", label,
                     engram_value(e, engram_table_rows[i].offset, t));
        }
    }
    for (size_t i = 0; i < sizeof(engram_all_rows) / sizeof(engram_all_rows[0]); i++) {
        type_line(out, engram_all_rows[i].name, engram_all_rows[i].type);
        hx_buf_printf(out, "%s{" MODEL "} %llu\n", engram_all_rows[i].name,
                      (unsigned long long)engram_value(e, engram_all_rows[i].offset, 0));
    }
    type_line(out, "hx_engram_errors_total", "counter");
    for (int k = 0; k < HX_ENGRAM_FAULT_MAX; k++)
        labelled(out, "hx_engram_errors_total", "kind", faults[k], e->errors[k]);
    type_line(out, "hx_engram_io_level", "gauge");
    hx_buf_printf(out, "hx_engram_io_level{" MODEL "} %d\n", e->level);
    type_line(out, "hx_engram_alignment_bytes", "gauge");
    hx_buf_printf(out, "hx_engram_alignment_bytes{" MODEL "} %d\n", e->align);
    histogram(out, "hx_engram_read_seconds", &e->read, hx_histogram_bounds_fine,
              hx_histogram_n_fine);
    histogram(out, "hx_engram_decode_wait_seconds", &e->wait[HX_ENGRAM_WAIT_DECODE],
              hx_histogram_bounds_fine, hx_histogram_n_fine);
    histogram(out, "hx_engram_prefill_wait_seconds", &e->wait[HX_ENGRAM_WAIT_CHUNK],
              hx_histogram_bounds_fine, hx_histogram_n_fine);
}

static void server_rows(const struct hx_metrics *m, struct hx_buf *out)
{
    static const char *const phases[] = {"queued", "prefill", "decode"};
    const char *name = "vllm:request_success_total";
    type_line(out, name, "counter");
    labelled(out, name, "finished_reason", "stop", m->success_stop);
    labelled(out, name, "finished_reason", "length", m->success_length);
    labelled(out, name, "finished_reason", "abort", m->success_abort);
    labelled(out, name, "finished_reason", "tool_calls", m->success_tool_calls);
    name = "hx_cancelled_total";
    type_line(out, name, "counter");
    labelled(out, name, "phase", "tokenising", m->cancelled_tokenising);
    for (int i = 0; i < HX_CANCEL_MAX; i++)
        labelled(out, name, "phase", phases[i], m->cancelled[i]);
    type_line(out, "hx_unknown_fields_total", "counter");
    hx_buf_printf(out, "hx_unknown_fields_total{" MODEL "} %llu\n",
                  (unsigned long long)__atomic_load_n(&m->unknown_fields, __ATOMIC_RELAXED));
    type_line(out, "hx_healed_total", "counter");
    for (int i = 0; i < HX_METRIC_CODES && m->healed[i].n; i++)
        labelled(out, "hx_healed_total", "code", m->healed[i].a, m->healed[i].n);
    type_line(out, "hx_http_responses_total", "counter");
    for (int i = 0; i < HX_METRIC_CODES && m->responses[i].n; i++)
        hx_buf_printf(out, "hx_http_responses_total{" MODEL ",path=\"%s\",code=\"%s\"} %llu\n",
                      m->responses[i].a, m->responses[i].b, (unsigned long long)m->responses[i].n);
}

void hx_metrics_text(const struct hx_metrics *m, struct hx_engine *engine, const char *effort_table,
                     struct hx_buf *out)
{
    const char *layout = "";
    struct hx_engine_info info;
    if (engine) {
        struct hx_engine_stats *st = calloc(1, sizeof(*st));
        hx_engine_info(engine, &info);
        layout = info.layout;
        if (st) {
            hx_engine_stats(engine, st);
            engine_rows(st, out);
            if (st->engram.n_tables > 0)
                engram_rows(&st->engram, out);
            free(st);
        }
    }
    server_rows(m, out);
    type_line(out, "hx_build_info", "gauge");
    hx_buf_printf(out,
                  "hx_build_info{" MODEL ",version=\"%s\",effort_table=\"%s\",layout=\"%s\"} 1\n",
                  HX_BUILD_VERSION, effort_table, layout);
}
