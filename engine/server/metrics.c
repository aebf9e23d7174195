/* Prometheus text: one row a metric. Names that begin with vllm: have the meaning that dashboards
 * for that server expect. */
#include "server/metrics.h"

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
            free(st);
        }
    }
    server_rows(m, out);
    type_line(out, "hx_build_info", "gauge");
    hx_buf_printf(out,
                  "hx_build_info{" MODEL ",version=\"%s\",effort_table=\"%s\",layout=\"%s\"} 1\n",
                  HX_BUILD_VERSION, effort_table, layout);
}
