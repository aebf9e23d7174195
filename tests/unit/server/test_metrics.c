/* Prometheus text and the mapping of errors to answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "server/server.h"

#define L "{model_name=\"deepseek-v4.1-flash\""

/* The engine's side of /metrics, set by each test. */
static struct hx_engine_stats stats;

void hx_engine_stats(struct hx_engine *e, struct hx_engine_stats *out)
{
    (void)e;
    *out = stats;
}

void hx_engine_info(const struct hx_engine *e, struct hx_engine_info *out)
{
    (void)e;
    *out = (struct hx_engine_info){.layout = "cpu"};
}

static struct hx_buf text_of(const struct hx_metrics *m, bool engine)
{
    static int some_engine; /* only its address is used */
    struct hx_buf out = HX_BUF_INIT(4 << 20);
    hx_metrics_text(m, engine ? (struct hx_engine *)(void *)&some_engine : NULL, "release", &out);
    assert_false(out.failed);
    assert_non_null(hx_buf_cstr(&out));
    return out;
}

/* Value of the line that begins with the name and labels; the line exists once. */
static double value_of(const struct hx_buf *text, const char *series)
{
    const char *s = (const char *)text->data, *found = NULL;
    size_t n = strlen(series);
    for (const char *line = s; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, n) == 0 && line[n] == ' ') {
            assert_null(found);
            found = line + n;
        }
    }
    if (!found)
        fail_msg("no line %s", series);
    return strtod(found, NULL);
}

/* Every line is a type or a sample of the metric whose type came last; no type comes twice. */
static void check_form(const struct hx_buf *b)
{
    char *copy = strdup((const char *)b->data), *rest = copy;
    char name[128] = "", seen[64][128];
    int n_seen = 0;
    assert_true(b->len > 0 && b->data[b->len - 1] == '\n');
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        if (strncmp(line, "# TYPE ", 7) == 0) {
            char type[16];
            assert_int_equal(sscanf(line, "# TYPE %127s %15s", name, type), 2);
            assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") ||
                        !strcmp(type, "histogram"));
            for (int i = 0; i < n_seen; i++)
                assert_string_not_equal(seen[i], name);
            assert_true(n_seen < 64);
            memcpy(seen[n_seen++], name, sizeof(name));
            continue;
        }
        assert_true(strncmp(line, name, strlen(name)) == 0);
        char *labels = strchr(line, '{'), *close = strstr(line, "} "), *end;
        assert_true(labels && close && labels < close);
        for (const char *p = line; p < labels; p++)
            assert_true(isalnum((unsigned char)*p) || *p == '_' || *p == ':');
        strtod(close + 2, &end);
        assert_true(end > close + 2 && *end == '\0');
    }
    free(copy);
}

static void test_http_side(void **state)
{
    struct hx_metrics m = {.unknown_fields = 3,
                           .success_stop = 4,
                           .success_length = 5,
                           .success_tool_calls = 6,
                           .success_abort = 7,
                           .cancelled = {1, 2, 3},
                           .cancelled_tokenising = 9};
    (void)state;
    hx_metrics_response(&m, "/health", 200);
    hx_metrics_response(&m, "/health", 200);
    hx_metrics_response(&m, "/health", 503);
    hx_metrics_response(&m, "other", 404);
    hx_metrics_healed(&m, "marker_ascii_and_more", 12);
    struct hx_buf t = text_of(&m, false);
    check_form(&t);
    assert_true(value_of(&t, "hx_http_responses_total" L ",path=\"/health\",code=\"200\"}") == 2);
    assert_true(value_of(&t, "hx_http_responses_total" L ",path=\"/health\",code=\"503\"}") == 1);
    assert_true(value_of(&t, "hx_http_responses_total" L ",path=\"other\",code=\"404\"}") == 1);
    assert_true(value_of(&t, "hx_healed_total" L ",code=\"marker_ascii\"}") == 1);
    assert_true(value_of(&t, "hx_unknown_fields_total" L "}") == 3);
    assert_true(value_of(&t, "vllm:request_success_total" L ",finished_reason=\"stop\"}") == 4);
    assert_true(value_of(&t, "vllm:request_success_total" L ",finished_reason=\"length\"}") == 5);
    assert_true(value_of(&t, "vllm:request_success_total" L ",finished_reason=\"tool_calls\"}") ==
                6);
    assert_true(value_of(&t, "vllm:request_success_total" L ",finished_reason=\"abort\"}") == 7);
    assert_true(value_of(&t, "hx_cancelled_total" L ",phase=\"queued\"}") == 1);
    assert_true(value_of(&t, "hx_cancelled_total" L ",phase=\"prefill\"}") == 2);
    assert_true(value_of(&t, "hx_cancelled_total" L ",phase=\"decode\"}") == 3);
    assert_true(value_of(&t, "hx_cancelled_total" L ",phase=\"tokenising\"}") == 9);
    assert_null(strstr((const char *)t.data, "num_requests_running"));
    hx_buf_done(&t);
}

static void test_engine_side(void **state)
{
    static const char *const both[] = {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"};
    const struct hx_metrics m = {0};
    (void)state;
    stats = (struct hx_engine_stats){.running = 2,
                                     .waiting = 3,
                                     .kv_usage = 0.25,
                                     .prompt_tok = 1u << 31,
                                     .generated_tok = (uint64_t)1 << 52,
                                     .prefix_query_tok = 10,
                                     .prefix_hit_tok = 4,
                                     .preemptions = 1};
    struct hx_buf t = text_of(&m, true);
    check_form(&t);
    assert_true(value_of(&t, "vllm:num_requests_running" L "}") == 2);
    assert_true(value_of(&t, "vllm:num_requests_waiting" L "}") == 3);
    for (int i = 0; i < 2; i++) {
        char series[128];
        snprintf(series, sizeof(series), "%s" L "}", both[i]);
        assert_true(value_of(&t, series) == 0.25);
    }
    assert_true(value_of(&t, "vllm:prompt_tokens_total" L "}") == 2147483648.0);
    assert_true(value_of(&t, "vllm:generation_tokens_total" L "}") == 4503599627370496.0);
    assert_true(value_of(&t, "vllm:prefix_cache_queries_total" L "}") == 10);
    assert_true(value_of(&t, "vllm:prefix_cache_hits_total" L "}") == 4);
    assert_true(value_of(&t, "vllm:num_preemptions_total" L "}") == 1);
    assert_non_null(strstr((const char *)t.data, "effort_table=\"release\",layout=\"cpu\"} 1\n"));
    hx_buf_done(&t);
}

static void test_histograms(void **state)
{
    static const double samples[] = {0.0005, 0.001, 1.5, 3600, 100000};
    const struct hx_metrics m = {0};
    (void)state;
    stats = (struct hx_engine_stats){0};
    for (int i = 0; i < 5; i++) {
        hx_histogram_add(&stats.itl, hx_histogram_bounds_seconds, hx_histogram_n_seconds,
                         samples[i]);
        hx_histogram_add(&stats.prompt_len, hx_histogram_bounds_tokens, hx_histogram_n_tokens, 300);
    }
    struct hx_buf t = text_of(&m, true);
    static const char *const names[] = {"vllm:inter_token_latency_seconds",
                                        "vllm:time_per_output_token_seconds"};
    for (int k = 0; k < 2; k++) {
        static const struct {
            const char *le;
            double n;
        } rows[] = {{"0.001", 2}, {"1", 2}, {"2", 3}, {"1200", 3}, {"3600", 4}, {"+Inf", 5}};
        char series[160];
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            snprintf(series, sizeof(series), "%s_bucket" L ",le=\"%s\"}", names[k], rows[i].le);
            assert_true(value_of(&t, series) == rows[i].n);
        }
        snprintf(series, sizeof(series), "%s_count" L "}", names[k]);
        assert_true(value_of(&t, series) == 5);
        snprintf(series, sizeof(series), "%s_sum" L "}", names[k]);
        assert_true(value_of(&t, series) > 103601.5 && value_of(&t, series) < 103601.6);
    }
    assert_true(value_of(&t, "vllm:request_prompt_tokens_bucket" L ",le=\"256\"}") == 0);
    assert_true(value_of(&t, "vllm:request_prompt_tokens_bucket" L ",le=\"512\"}") == 5);
    assert_true(value_of(&t, "vllm:request_prompt_tokens_bucket" L ",le=\"1048576\"}") == 5);
    hx_buf_done(&t);
}

static void test_table_of_codes_is_bounded(void **state)
{
    static struct hx_metrics m;
    char path[64];
    (void)state;
    for (int i = 0; i < 3 * HX_METRIC_CODES; i++) {
        snprintf(path, sizeof(path), "/%d", i);
        hx_metrics_response(&m, path, 200);
    }
    hx_metrics_response(&m, "/0", 200);
    /* Longer than an entry: cut, and still found again. */
    memset(path, 'x', sizeof(path));
    hx_metrics_healed(&m, path, sizeof(path));
    hx_metrics_healed(&m, path, sizeof(path));
    assert_int_equal(m.healed[0].n, 2);
    assert_int_equal(strlen(m.healed[0].a), sizeof(m.healed[0].a) - 1);
    assert_int_equal(m.responses[0].n, 2);
    assert_string_equal(m.responses[HX_METRIC_CODES - 1].a, "/47");
    struct hx_buf t = text_of(&m, false);
    check_form(&t);
    hx_buf_done(&t);
}

static void test_status_of_errors(void **state)
{
    static const struct {
        int r;
        const char *slug;
        int status;
        const char *type, *code;
    } rows[] = {
        {-EINVAL, "invalid_json", 400, "invalid_request_error", "invalid_json"},
        {-EINVAL, "", 400, "invalid_request_error", "invalid_value"},
        {-EINVAL, "model_not_found", 404, "not_found_error", "model_not_found"},
        {-ENOSPC, "", 400, "invalid_request_error", "context_length_exceeded"},
        {-EMSGSIZE, "", 413, "invalid_request_error", "request_too_large"},
        {-EAGAIN, "", 429, "rate_limit_error", "queue_full"},
        {-ESHUTDOWN, "", 503, "server_error", "engine_failed"},
        {-ESHUTDOWN, "draining", 503, "server_error", "draining"},
        {-ENOMEM, "", 500, "server_error", "internal_error"},
        {-EIO, "", 500, "server_error", "internal_error"},
        {-EIO, "no_such_code", 500, "server_error", "internal_error"},
        {-EINVAL, "invalid_api_key", 401, "authentication_error", "invalid_api_key"},
        {-EINVAL, "host_not_allowed", 403, "permission_error", "host_not_allowed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *type, *code;
        struct hx_error err = {0};
        (void)!hx_fail_param(&err, rows[i].r, NULL, rows[i].slug[0] ? rows[i].slug : NULL, "x");
        assert_int_equal(hx_error_status(&err, &type, &code), rows[i].status);
        assert_string_equal(type, rows[i].type);
        assert_string_equal(code, rows[i].code);
    }
}

static void test_error_body(void **state)
{
    struct hx_buf out = HX_BUF_INIT(1 << 10);
    (void)state;
    hx_error_body(&out, "t", "c", "p", "say \"é\"");
    assert_string_equal(hx_buf_cstr(&out),
                        "{\"error\":{\"message\":\"say \\\"é\\\"\",\"type\":\"t\","
                        "\"param\":\"p\",\"code\":\"c\"}}");
    hx_buf_clear(&out);
    hx_error_body(&out, "t", "c", NULL, "m");
    assert_non_null(strstr(hx_buf_cstr(&out), "\"param\":null"));
    hx_buf_clear(&out);
    hx_error_body(&out, "t", "c", "", "m");
    assert_non_null(strstr(hx_buf_cstr(&out), "\"param\":null"));
    hx_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_side),        cmocka_unit_test(test_engine_side),
        cmocka_unit_test(test_histograms),       cmocka_unit_test(test_table_of_codes_is_bounded),
        cmocka_unit_test(test_status_of_errors), cmocka_unit_test(test_error_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
