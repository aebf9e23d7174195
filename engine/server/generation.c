/* Life of a generation on the http thread: events in, bytes out, keep-alive, the end. */
#include "server/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/log.h"
#include "server/sse.h"

#define MAX_ANSWER ((size_t)1 << 30)

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

struct hx_generation *hx_generation_new(struct hx_server *s, const struct hx_format *format,
                                        const char *request_id)
{
    struct hx_generation *g = calloc(1, sizeof(*g));
    uint64_t r[2] = {0};
    if (!g)
        return NULL;
    if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
        r[0] = (uint64_t)now_us();
    g->server = s;
    g->format = format;
    g->force_after = -1;
    g->created = time(NULL);
    g->started = now_us();
    snprintf(g->request_id, sizeof(g->request_id), "%s", request_id);
    snprintf(g->id, sizeof(g->id), "%s-%016llx%016llx", format->id_prefix, (unsigned long long)r[0],
             (unsigned long long)r[1]);
    return g;
}

void hx_generation_free(struct hx_generation *g)
{
    if (!g)
        return;
    for (int i = 0; i < HX_MAX_CHOICES; i++) {
        hx_request_free(g->request[i]);
        hx_ids_done(&g->prompt[i]);
    }
    for (int i = 0; i < g->n_choices; i++)
        hx_choice_done(&g->choice[i]);
    hx_ids_done(&g->forced);
    hx_ids_done(&g->forbidden);
    hx_params_done(&g->params);
    if (g->has_chat)
        hx_chat_done(&g->chat);
    free(g);
}

static int init_choices(struct hx_generation *g, struct hx_error *err)
{
    struct hx_choice_options o = {.tokenizer = g->server->tokenizer,
                                  .params = &g->params,
                                  .metrics = &g->server->metrics,
                                  .raw = !g->has_chat,
                                  .end_tokens = g->server->end_token,
                                  .n_end_tokens = g->server->n_end_tokens};
    if (g->has_chat)
        o.reply = (struct hx_reply_options){
            .thinking = g->chat.thinking,
            .tools = g->chat.tool_choice == HX_TOOL_NONE ? NULL : g->chat.tools,
            .parallel_tool_calls = g->chat.parallel_tool_calls,
            .streaming = g->params.stream};
    int n = g->n_prompts * (int)g->params.n;
    while (g->n_choices < n) {
        int r = hx_choice_init(&g->choice[g->n_choices], &o, err);
        if (r < 0)
            return r;
        g->n_choices++;
    }
    return 0;
}

int hx_generation_submit(struct hx_generation *g, struct hx_error *err)
{
    const struct hx_params *p = &g->params;
    int r = init_choices(g, err);
    struct hx_request_params q = {.n_choices = (int)p->n,
                                  .max_tokens = p->max_tokens,
                                  .min_tokens = p->min_tokens,
                                  .temperature = (float)p->temperature,
                                  .top_p = (float)p->top_p,
                                  .min_p = (float)p->min_p,
                                  .top_k = (int)p->top_k,
                                  .presence_penalty = (float)p->presence_penalty,
                                  .frequency_penalty = (float)p->frequency_penalty,
                                  .repetition_penalty = (float)p->repetition_penalty,
                                  .seed = p->seed,
                                  .bias = p->bias,
                                  .n_bias = p->n_bias,
                                  .n_logprobs = p->logprobs ? (int)p->top_logprobs : -1,
                                  .end_tokens = g->server->end_token,
                                  .n_end_tokens = g->server->n_end_tokens,
                                  .ignore_end_tokens = p->ignore_eos,
                                  .stop_tokens = p->stop_id,
                                  .n_stop_tokens = (size_t)p->n_stop_ids,
                                  .forbidden = g->forbidden.id,
                                  .n_forbidden = g->forbidden.len,
                                  .forced = g->forced.id,
                                  .n_forced = g->forced.len,
                                  .force_after = g->force_after};
    snprintf(q.id, sizeof(q.id), "%s", g->request_id);
    for (int i = 0; i < g->n_prompts && r == 0; i++) {
        q.prompt = g->prompt[i].id;
        q.n_prompt = g->prompt[i].len;
        /* Prompts of one request must not repeat each other's random numbers. */
        q.seed = p->seed + (uint64_t)i * 1000003u;
        r = hx_request_submit(g->server->engine, &q, &g->request[i], err);
    }
    return r;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

struct usage {
    int64_t prompt, cached, generated, reasoning;
};

static struct usage sum_usage(const struct hx_generation *g)
{
    struct usage u = {0};
    for (int i = 0; i < g->n_choices; i++) {
        const struct hx_choice *c = &g->choice[i];
        if (i % g->params.n == 0) {
            u.prompt += (int64_t)g->prompt[i / g->params.n].len;
            u.cached += c->usage.cached_tok;
        }
        u.generated += c->usage.generated_tok;
        u.reasoning += c->n_reasoning_tok;
    }
    return u;
}

static void write_usage(const struct hx_generation *g, struct hx_json_writer *w)
{
    struct usage u = sum_usage(g);
    hx_jw_object(w);
    hx_jw_key(w, "prompt_tokens");
    hx_jw_int(w, u.prompt);
    hx_jw_key(w, "completion_tokens");
    hx_jw_int(w, u.generated);
    hx_jw_key(w, "total_tokens");
    hx_jw_int(w, u.prompt + u.generated);
    hx_jw_key(w, "prompt_tokens_details");
    hx_jw_object(w);
    hx_jw_key(w, "cached_tokens");
    hx_jw_int(w, u.cached);
    hx_jw_end_object(w);
    hx_jw_key(w, "completion_tokens_details");
    hx_jw_object(w);
    hx_jw_key(w, "reasoning_tokens");
    hx_jw_int(w, u.reasoning);
    hx_jw_end_object(w);
    hx_jw_key(w, "prompt_cache_hit_tokens");
    hx_jw_int(w, u.cached);
    hx_jw_key(w, "prompt_cache_miss_tokens");
    hx_jw_int(w, u.prompt - u.cached);
    hx_jw_end_object(w);
}

static void write_head(const struct hx_generation *g, const char *object, struct hx_json_writer *w)
{
    hx_jw_object(w);
    hx_jw_key(w, "id");
    hx_jw_str(w, g->id);
    hx_jw_key(w, "object");
    hx_jw_str(w, object);
    hx_jw_key(w, "created");
    hx_jw_int(w, g->created);
    hx_jw_key(w, "model");
    hx_jw_str(w, HX_MODEL_NAME);
    hx_jw_key(w, "system_fingerprint");
    hx_jw_str(w, g->server->info.fingerprint);
    hx_jw_key(w, "choices");
    hx_jw_array(w);
}

void hx_chunk_begin(struct hx_generation *g, int index, struct hx_buf *out,
                    struct hx_json_writer *w)
{
    hx_sse_begin(out);
    hx_jw_init(w, out, false);
    write_head(g, g->format->chunk_object, w);
    hx_jw_object(w);
    hx_jw_key(w, "index");
    hx_jw_int(w, index);
}

void hx_chunk_end(struct hx_generation *g, struct hx_json_writer *w, const char *finish,
                  const struct hx_buf *logprobs)
{
    if (logprobs) {
        hx_jw_key(w, "logprobs");
        hx_jw_raw(w, (const char *)logprobs->data, logprobs->len);
    }
    hx_jw_key(w, "finish_reason");
    if (finish)
        hx_jw_str(w, finish);
    else
        hx_jw_null(w);
    hx_jw_end_object(w);
    hx_jw_end_array(w);
    if (g->params.continuous_usage) {
        hx_jw_key(w, "usage");
        write_usage(g, w);
    } else if (g->params.include_usage) {
        hx_jw_key(w, "usage");
        hx_jw_null(w);
    }
    hx_jw_end_object(w);
    hx_sse_end(w->out);
}

static void usage_chunk(struct hx_generation *g, struct hx_buf *out)
{
    struct hx_json_writer w;
    hx_sse_begin(out);
    hx_jw_init(&w, out, false);
    write_head(g, g->format->chunk_object, &w);
    hx_jw_end_array(&w);
    hx_jw_key(&w, "usage");
    write_usage(g, &w);
    hx_jw_end_object(&w);
    hx_sse_end(out);
}

static void whole_answer(struct hx_generation *g, struct hx_buf *out)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    write_head(g, g->format->object, &w);
    for (int i = 0; i < g->n_choices; i++)
        g->format->whole(g, i, &w);
    hx_jw_end_array(&w);
    hx_jw_key(&w, "usage");
    write_usage(g, &w);
    hx_jw_end_object(&w);
}

/* ---- pump ------------------------------------------------------------------------------------ */

void hx_whole_end(struct hx_generation *g, struct hx_choice *c, struct hx_json_writer *w)
{
    hx_jw_key(w, "logprobs");
    if (g->params.logprobs) {
        struct hx_buf lp = HX_BUF_INIT((size_t)256 << 20);
        g->format->logprobs(c, &lp);
        hx_jw_raw(w, (const char *)lp.data, lp.len);
        w->out->failed |= lp.failed;
        hx_buf_done(&lp);
    } else {
        hx_jw_null(w);
    }
    hx_jw_key(w, "finish_reason");
    hx_jw_str(w, c->finish);
    hx_jw_end_object(w);
}

void hx_generation_attach(struct hx_generation *g, struct hx_exchange *x, int64_t now)
{
    g->x = x;
    g->last_write = now;
    if (!g->params.stream)
        return;
    hx_exchange_add_header(x, "Cache-Control", "no-cache");
    hx_exchange_add_header(x, "X-Accel-Buffering", "no");
    hx_exchange_stream(x, "text/event-stream; charset=utf-8");
}

static void send(struct hx_generation *g, struct hx_buf *out, int64_t now)
{
    if (out->failed) {
        hx_exchange_abort(g->x);
    } else if (out->len) {
        hx_exchange_write(g->x, out->data, out->len);
        g->last_write = now;
    }
    hx_buf_clear(out);
}

void hx_generation_fail(struct hx_generation *g, const struct hx_error *err)
{
    struct hx_server *s = g->server;
    hx_log(HX_LOG_WARN, "server", "%s: failed: %s", g->request_id, err->text);
    s->metrics.success_abort++;
    if (!g->x)
        return;
    if (!hx_exchange_replied(g->x)) {
        hx_reply_failure(s, g->x, err);
        return;
    }
    const char *type, *code;
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int status = hx_error_status(err, &type, &code);
    if (g->params.stream)
        hx_sse_begin(&out);
    hx_error_body(&out, type, code, err->param, status == 500 ? "internal error" : err->text);
    if (g->params.stream) {
        hx_sse_end(&out);
        hx_sse_done(&out);
    }
    hx_exchange_write(g->x, out.data, out.len);
    hx_exchange_end(g->x);
    hx_buf_done(&out);
}

void hx_generation_gone(struct hx_generation *g)
{
    enum hx_request_phase phase = HX_PHASE_DONE;
    for (int i = 0; i < g->n_prompts; i++) {
        enum hx_request_phase p = hx_request_phase(g->request[i]);
        if (p != HX_PHASE_DONE && (phase == HX_PHASE_DONE || p > phase))
            phase = p;
    }
    if (phase < HX_PHASE_DONE)
        g->server->metrics.cancelled[phase]++;
    g->server->metrics.success_abort++;
    hx_log(HX_LOG_INFO, "server", "%s: client gone", g->request_id);
}

static void log_finish(struct hx_generation *g, int64_t now)
{
    struct hx_metrics *m = &g->server->metrics;
    struct usage u = sum_usage(g);
    for (int i = 0; i < g->n_choices; i++) {
        const char *f = g->choice[i].finish;
        uint64_t *n = strcmp(f, "length") == 0       ? &m->success_length
                      : strcmp(f, "tool_calls") == 0 ? &m->success_tool_calls
                                                     : &m->success_stop;
        (*n)++;
    }
    double total = (double)(now - g->started) / 1e6;
    double first = g->first_token ? (double)(g->first_token - g->started) / 1e6 : total;
    hx_log(HX_LOG_INFO, "server",
           "%s: prompt %lld (%lld cached), generated %lld, first %.3f s, %.3f s, %.1f tok/s, %s",
           g->request_id, (long long)u.prompt, (long long)u.cached, (long long)u.generated, first,
           total, total > first ? (double)u.generated / (total - first) : 0.0, g->choice[0].finish);
}

/* All waiting events of one prompt's request. */
static int take_events(struct hx_generation *g, int prompt, int64_t now, struct hx_error *err)
{
    struct hx_event ev;
    int n = (int)g->params.n;
    while (hx_request_next(g->request[prompt], &ev) == 1) {
        if (ev.choice < 0 || ev.choice >= n)
            return hx_fail(err, -EIO, "event of choice %d of %d", ev.choice, n);
        int r = hx_choice_event(&g->choice[prompt * n + ev.choice], &ev, err);
        if (r < 0)
            return r;
        if (r > 0)
            hx_request_cancel(g->request[prompt], ev.choice);
        if (!g->first_token)
            g->first_token = now;
    }
    return 0;
}

static void keep_alive(struct hx_generation *g, int64_t now, struct hx_buf *out)
{
    const struct hx_server_options *o = &g->server->opt;
    if (g->params.stream) {
        if (now - g->last_write >= o->keepalive)
            hx_sse_comment(out, "keep-alive");
        return;
    }
    bool begun = hx_exchange_replied(g->x);
    if (!o->json_keepalive || now - g->last_write < (begun ? 1 : 3) * o->keepalive)
        return;
    if (!begun)
        hx_exchange_stream(g->x, "application/json");
    hx_buf_putc(out, '\n');
}

static void answer_whole(struct hx_generation *g, struct hx_buf *out, int64_t now)
{
    whole_answer(g, out);
    if (hx_exchange_replied(g->x)) {
        send(g, out, now);
        hx_exchange_end(g->x);
    } else if (out->failed) {
        struct hx_error err;
        hx_fail(&err, -ENOMEM, "out of memory for the answer");
        hx_reply_failure(g->server, g->x, &err);
    } else {
        hx_exchange_reply(g->x, 200, "application/json", out->data, out->len, false);
    }
}

bool hx_generation_pump(struct hx_generation *g, int64_t now)
{
    struct hx_buf out = HX_BUF_INIT(MAX_ANSWER);
    struct hx_error err = {0};
    bool ended = true;
    for (int i = 0; i < g->n_prompts; i++) {
        if (take_events(g, i, now, &err) < 0) {
            hx_generation_fail(g, &err);
            return false;
        }
    }
    for (int i = 0; i < g->n_choices; i++) {
        ended = ended && g->choice[i].finish;
        if (g->params.stream)
            g->format->chunks(g, i, &out);
    }
    if (!ended) {
        if (out.len == 0)
            keep_alive(g, now, &out);
        send(g, &out, now);
    } else if (g->params.stream) {
        if (g->params.include_usage)
            usage_chunk(g, &out);
        hx_sse_done(&out);
        send(g, &out, now);
        hx_exchange_end(g->x);
    } else {
        answer_whole(g, &out, now);
    }
    hx_buf_done(&out);
    if (ended)
        log_finish(g, now);
    return !ended;
}
