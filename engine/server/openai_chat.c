/* /chat/completions: request to generation, pieces to chunks and messages. */
#include <string.h>

#include "server/generation.h"

/* ---- request --------------------------------------------------------------------------------- */

void hx_params_limits_of(const struct hx_server *s, struct hx_params_limits *out)
{
    *out = (struct hx_params_limits){s->info.n_vocab, s->info.max_sequences,
                                     s->info.default_temperature, s->info.default_top_p};
}

int hx_model_check(struct hx_server *s, struct hx_jv body, struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(body, "model");
    size_t len;
    const char *name = hx_jv_str(v, &len);
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (!name)
        return hx_fail_param(err, -EINVAL, "model", "invalid_type",
                             "'model' must be a string, not %s.", hx_json_type_name(hx_jv_type(v)));
    if (!hx_model_known(s, name, len))
        return hx_fail_param(err, -EINVAL, "model", "model_not_found",
                             "This server has only the model '%s'.", HX_MODEL_NAME);
    return 0;
}

static int set_tool_rules(struct hx_generation *g, struct hx_error *err)
{
    const struct hx_tokenizer *t = g->server->tokenizer;
    struct hx_prompt forced = {0};
    int r;
    if (g->chat.tool_choice == HX_TOOL_NONE) {
        int32_t dsml = hx_tokenizer_special(t, "｜DSML｜");
        if (dsml >= 0 && hx_ids_push(&g->forbidden, dsml) < 0)
            return hx_fail(err, -ENOMEM, "out of memory");
        return 0;
    }
    if (g->chat.tool_choice == HX_TOOL_AUTO)
        return 0;
    r = hx_chat_forced_prefix(&g->chat, &forced, err);
    if (r == 0)
        r = hx_prompt_encode(&forced, t, NULL, &g->forced, err);
    hx_prompt_done(&forced);
    g->force_after = g->chat.thinking ? hx_tokenizer_special(t, "</think>") : -1;
    return r;
}

static const struct hx_format chat_format;

static int fill(struct hx_generation *g, struct hx_jv body, const struct hx_encode_options *enc,
                struct hx_error *err)
{
    struct hx_params_limits limits;
    hx_params_limits_of(g->server, &limits);
    int r = hx_model_check(g->server, body, err);
    if (r == 0)
        r = hx_params_read(body, HX_ENDPOINT_CHAT, &limits, &g->params, err);
    if (r == 0)
        r = hx_chat_from_request(body, (enum hx_effort_table)g->server->opt.effort_table, &g->chat,
                                 err);
    if (r < 0)
        return r;
    g->has_chat = true;
    if (g->chat.n_images > 0)
        return hx_fail_param(err, -EINVAL, "messages", "unsupported_parameter",
                             "images in 'messages' are not supported.");
    g->n_prompts = 1;
    r = hx_prompt_encode(&g->chat.prompt, g->server->tokenizer, enc, &g->prompt[0], err);
    return r < 0 ? r : set_tool_rules(g, err);
}

int hx_chat_prepare(struct hx_server *s, struct hx_jv body, const char *request_id,
                    const struct hx_encode_options *enc, struct hx_generation **out,
                    struct hx_error *err)
{
    struct hx_generation *g = hx_generation_new(s, &chat_format, request_id);
    if (!g)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = fill(g, body, enc, err);
    if (r < 0) {
        hx_generation_free(g);
        return r;
    }
    __atomic_add_fetch(&s->metrics.unknown_fields, (uint64_t)g->params.n_unknown, __ATOMIC_RELAXED);
    *out = g;
    return 0;
}

/* ---- answer ---------------------------------------------------------------------------------- */

static void write_reasoning(const struct hx_generation *g, struct hx_json_writer *w,
                            const struct hx_buf *text)
{
    int f = g->server->opt.reasoning_field;
    if (f != HX_REASONING_PLAIN) {
        hx_jw_key(w, "reasoning_content");
        hx_jw_str_n(w, (const char *)text->data, text->len);
    }
    if (f != HX_REASONING_CONTENT) {
        hx_jw_key(w, "reasoning");
        hx_jw_str_n(w, (const char *)text->data, text->len);
    }
}

static void write_call(struct hx_json_writer *w, int index, const char *id,
                       const struct hx_buf *name, const struct hx_buf *arguments)
{
    hx_jw_object(w);
    if (index >= 0) {
        hx_jw_key(w, "index");
        hx_jw_int(w, index);
    }
    if (id) {
        hx_jw_key(w, "id");
        hx_jw_str(w, id);
        hx_jw_key(w, "type");
        hx_jw_str(w, "function");
    }
    hx_jw_key(w, "function");
    hx_jw_object(w);
    if (name) {
        hx_jw_key(w, "name");
        hx_jw_str_n(w, (const char *)name->data, name->len);
    }
    hx_jw_key(w, "arguments");
    hx_jw_str_n(w, arguments ? (const char *)arguments->data : "", arguments ? arguments->len : 0);
    hx_jw_end_object(w);
    hx_jw_end_object(w);
}

static void write_delta(const struct hx_generation *g, const struct hx_piece *p,
                        struct hx_json_writer *w)
{
    switch (p->type) {
    case HX_PIECE_REASONING: write_reasoning(g, w, &p->text); break;
    case HX_PIECE_CONTENT:
        hx_jw_key(w, "content");
        hx_jw_str_n(w, (const char *)p->text.data, p->text.len);
        break;
    case HX_PIECE_CALL:
    case HX_PIECE_ARGS:
        hx_jw_key(w, "tool_calls");
        hx_jw_array(w);
        if (p->type == HX_PIECE_CALL)
            write_call(w, p->call, p->id, &p->text, NULL);
        else
            write_call(w, p->call, NULL, NULL, &p->text);
        hx_jw_end_array(w);
        break;
    }
}

/* {"content":[...]}; the items move out of the choice. */
static void take_logprobs(struct hx_choice *c, struct hx_buf *out)
{
    hx_buf_puts(out, "{\"content\":[");
    hx_buf_append(out, c->logprobs.data, c->logprobs.len);
    hx_buf_puts(out, "]}");
    hx_buf_clear(&c->logprobs);
}

static void one_chunk(struct hx_generation *g, int index, const struct hx_piece *p,
                      const char *finish, struct hx_buf *out)
{
    struct hx_choice *c = &g->choice[index];
    struct hx_buf lp = HX_BUF_INIT((size_t)256 << 20);
    struct hx_json_writer w;
    bool with = c->logprobs.len && (finish || (p && p->type == HX_PIECE_CONTENT));
    if (with)
        take_logprobs(c, &lp);
    hx_chunk_begin(g, index, out, &w);
    hx_jw_key(&w, "delta");
    hx_jw_object(&w);
    if (p) {
        write_delta(g, p, &w);
    } else if (!finish) {
        hx_jw_key(&w, "role");
        hx_jw_str(&w, "assistant");
        hx_jw_key(&w, "content");
        hx_jw_str(&w, "");
    }
    hx_jw_end_object(&w);
    hx_chunk_end(g, &w, finish, with ? &lp : NULL);
    hx_buf_done(&lp);
}

static void chat_chunks(struct hx_generation *g, int index, struct hx_buf *out)
{
    struct hx_choice *c = &g->choice[index];
    if (!c->role_sent && (c->any_token || c->finish)) {
        one_chunk(g, index, NULL, NULL, out);
        c->role_sent = true;
    }
    for (size_t i = 0; i < c->n_pieces; i++)
        one_chunk(g, index, &c->piece[i], NULL, out);
    hx_choice_clear(c);
    if (c->finish && !c->finish_sent) {
        one_chunk(g, index, NULL, c->finish, out);
        c->finish_sent = true;
    }
}

static void join(const struct hx_choice *c, enum hx_piece_type type, int call, struct hx_buf *out)
{
    for (size_t i = 0; i < c->n_pieces; i++) {
        if (c->piece[i].type == type && (call < 0 || c->piece[i].call == call))
            hx_buf_append(out, c->piece[i].text.data, c->piece[i].text.len);
    }
}

static void write_calls(const struct hx_choice *c, struct hx_json_writer *w)
{
    hx_jw_key(w, "tool_calls");
    hx_jw_array(w);
    for (size_t i = 0; i < c->n_pieces; i++) {
        const struct hx_piece *p = &c->piece[i];
        if (p->type != HX_PIECE_CALL)
            continue;
        struct hx_buf arguments = HX_BUF_INIT((size_t)256 << 20);
        join(c, HX_PIECE_ARGS, p->call, &arguments);
        write_call(w, -1, p->id, &p->text, &arguments);
        w->out->failed |= arguments.failed;
        hx_buf_done(&arguments);
    }
    hx_jw_end_array(w);
}

static void write_message(struct hx_generation *g, const struct hx_choice *c,
                          struct hx_json_writer *w)
{
    struct hx_buf reasoning = HX_BUF_INIT((size_t)256 << 20), content = reasoning;
    bool calls = false;
    for (size_t i = 0; i < c->n_pieces; i++)
        calls = calls || c->piece[i].type == HX_PIECE_CALL;
    join(c, HX_PIECE_REASONING, -1, &reasoning);
    join(c, HX_PIECE_CONTENT, -1, &content);
    hx_jw_object(w);
    hx_jw_key(w, "role");
    hx_jw_str(w, "assistant");
    hx_jw_key(w, "content");
    if (calls && content.len == 0)
        hx_jw_null(w);
    else
        hx_jw_str_n(w, content.data ? (const char *)content.data : "", content.len);
    if (g->chat.thinking)
        write_reasoning(g, w, &reasoning);
    if (calls)
        write_calls(c, w);
    hx_jw_key(w, "refusal");
    hx_jw_null(w);
    hx_jw_end_object(w);
    w->out->failed |= reasoning.failed || content.failed;
    hx_buf_done(&reasoning);
    hx_buf_done(&content);
}

static void chat_whole(struct hx_generation *g, int index, struct hx_json_writer *w)
{
    struct hx_choice *c = &g->choice[index];
    hx_jw_object(w);
    hx_jw_key(w, "index");
    hx_jw_int(w, index);
    hx_jw_key(w, "message");
    write_message(g, c, w);
    hx_whole_end(g, c, w);
}

static const struct hx_format chat_format = {.object = "chat.completion",
                                             .chunk_object = "chat.completion.chunk",
                                             .id_prefix = "chatcmpl",
                                             .chunks = chat_chunks,
                                             .whole = chat_whole,
                                             .logprobs = take_logprobs};
