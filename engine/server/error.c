/* Errors in the shape that OpenAI clients read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "server/server.h"

static const struct {
    const char *code;
    int status;
    const char *type;
} codes[] = {
    {"invalid_json", 400, "invalid_request_error"},
    {"missing_required_parameter", 400, "invalid_request_error"},
    {"invalid_type", 400, "invalid_request_error"},
    {"invalid_value", 400, "invalid_request_error"},
    {"unsupported_parameter", 400, "invalid_request_error"},
    {"context_length_exceeded", 400, "invalid_request_error"},
    {"invalid_image", 400, "invalid_request_error"},
    {"image_url_not_allowed", 400, "invalid_request_error"},
    {"invalid_api_key", 401, "authentication_error"},
    {"host_not_allowed", 403, "permission_error"},
    {"origin_not_allowed", 403, "permission_error"},
    {"model_not_found", 404, "not_found_error"},
    {"unknown_url", 404, "not_found_error"},
    {"method_not_allowed", 405, "invalid_request_error"},
    {"request_timeout", 408, "invalid_request_error"},
    {"request_too_large", 413, "invalid_request_error"},
    {"unsupported_media_type", 415, "invalid_request_error"},
    {"headers_too_large", 431, "invalid_request_error"},
    {"queue_full", 429, "rate_limit_error"},
    {"loading", 503, "server_error"},
    {"draining", 503, "server_error"},
    {"engine_failed", 503, "server_error"},
    {"engram_read_error", 503, "server_error"},
    {"internal_error", 500, "server_error"},
};

#define N_CODES (sizeof(codes) / sizeof(codes[0]))

static size_t find(const char *code)
{
    for (size_t i = 0; i < N_CODES; i++) {
        if (strcmp(codes[i].code, code) == 0)
            return i;
    }
    return N_CODES - 1;
}

void hx_error_body(struct hx_buf *out, const char *type, const char *code, const char *param,
                   const char *message)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "error");
    hx_jw_object(&w);
    hx_jw_key(&w, "message");
    hx_jw_str(&w, message);
    hx_jw_key(&w, "type");
    hx_jw_str(&w, type);
    hx_jw_key(&w, "param");
    if (param && *param)
        hx_jw_str(&w, param);
    else
        hx_jw_null(&w);
    hx_jw_key(&w, "code");
    hx_jw_str(&w, code);
    hx_jw_end_object(&w);
    hx_jw_end_object(&w);
}

int hx_error_status(const struct hx_error *err, const char **type, const char **code)
{
    const char *slug = err->slug[0]              ? err->slug
                       : err->code == -EAGAIN    ? "queue_full"
                       : err->code == -ESHUTDOWN ? "engine_failed"
                       : err->code == -EINVAL    ? "invalid_value"
                       : err->code == -ENOSPC    ? "context_length_exceeded"
                       : err->code == -EMSGSIZE  ? "request_too_large"
                                                 : "internal_error";
    size_t i = find(slug);
    *type = codes[i].type;
    *code = codes[i].code;
    return codes[i].status;
}

static void retry_after(struct hx_server *s, struct hx_exchange *x, int status)
{
    char text[16];
    double seconds = 1;
    if (status != 429 && status != 503)
        return;
    if (s && s->engine) {
        struct hx_engine_stats *st = malloc(sizeof(*st));
        if (st) {
            hx_engine_stats(s->engine, st);
            seconds = st->retry_after;
            free(st);
        }
    }
    snprintf(text, sizeof(text), "%d",
             seconds < 1    ? 1
             : seconds > 60 ? 60
                            : (int)(seconds + 0.999));
    hx_exchange_add_header(x, "Retry-After", text);
}

void hx_reply_failure(struct hx_server *s, struct hx_exchange *x, const struct hx_error *err)
{
    const char *type, *code;
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    int status = hx_error_status(err, &type, &code);
    /* What failed inside is for the log, not for the client. */
    hx_error_body(&body, type, code, err->param, status == 500 ? "internal error" : err->text);
    retry_after(s, x, status);
    hx_exchange_reply(x, status, "application/json", body.data, body.len, false);
    hx_buf_done(&body);
}

void hx_reply_refusal(struct hx_exchange *x, int status, const char *code, const char *param,
                      const char *message)
{
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    hx_error_body(&body, codes[find(code)].type, code, param, message);
    retry_after(NULL, x, status);
    hx_exchange_reply(x, status, "application/json", body.data, body.len,
                      status != 404 && status != 429);
    hx_buf_done(&body);
}
