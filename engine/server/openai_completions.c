/* /completions: raw text in, raw text out. */
#include "server/generation.h"

static const struct hx_format completion_format;

static int bad_prompt(struct hx_error *err)
{
    return hx_fail_param(err, -EINVAL, "prompt", "invalid_type",
                         "'prompt' must be a string, a list of strings, a list of token ids, or a "
                         "list of such lists.");
}

static int add_text(struct hx_generation *g, struct hx_jv v, const struct hx_encode_options *enc,
                    struct hx_ids *to, struct hx_error *err)
{
    struct hx_encode_options o = enc ? *enc : (struct hx_encode_options){0};
    size_t len;
    const char *text = hx_jv_str(v, &len);
    o.parse_special = g->params.parse_special;
    return hx_tokenizer_encode(g->server->tokenizer, text, len, &o, to, err);
}

static int add_ids(struct hx_generation *g, struct hx_jv list, struct hx_ids *to,
                   struct hx_error *err)
{
    for (struct hx_jv e = hx_jv_first(list); e.doc; e = hx_jv_next(e)) {
        int64_t id;
        if (hx_jv_type(e) != HX_JSON_NUMBER)
            return bad_prompt(err);
        if (!hx_jv_int64(e, &id) || id < 0 || id >= g->server->info.n_vocab)
            return hx_fail_param(err, -EINVAL, "prompt", "invalid_value",
                                 "token ids in 'prompt' must be from 0 to %d.",
                                 g->server->info.n_vocab - 1);
        if (hx_ids_push(to, (int32_t)id) < 0)
            return hx_fail(err, -ENOMEM, "out of memory");
    }
    return 0;
}

static int add_prompt(struct hx_generation *g, struct hx_jv v, const struct hx_encode_options *enc,
                      struct hx_error *err)
{
    if (g->n_prompts * g->params.n >= HX_MAX_CHOICES ||
        (g->n_prompts + 1) * g->params.n > HX_MAX_CHOICES)
        return hx_fail_param(err, -EINVAL, "prompt", "invalid_value",
                             "the number of prompts times 'n' must not be above %d.",
                             HX_MAX_CHOICES);
    struct hx_ids *to = &g->prompt[g->n_prompts];
    int r;
    if (hx_jv_type(v) == HX_JSON_STRING)
        r = add_text(g, v, enc, to, err);
    else if (hx_jv_type(v) == HX_JSON_ARRAY)
        r = add_ids(g, v, to, err);
    else
        return bad_prompt(err);
    if (r < 0)
        return r;
    if (to->len == 0)
        return hx_fail_param(err, -EINVAL, "prompt", "invalid_value",
                             "'prompt' must have at least one token.");
    g->n_prompts++;
    return 0;
}

static int add_prompts(struct hx_generation *g, struct hx_jv v, const struct hx_encode_options *enc,
                       struct hx_error *err)
{
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return hx_fail_param(err, -EINVAL, "prompt", "missing_required_parameter",
                             "'prompt' is required.");
    struct hx_jv first = hx_jv_first(v);
    if (hx_jv_type(v) != HX_JSON_ARRAY || hx_jv_type(first) == HX_JSON_NUMBER || !first.doc)
        return add_prompt(g, v, enc, err);
    for (struct hx_jv e = first; e.doc; e = hx_jv_next(e)) {
        int r = add_prompt(g, e, enc, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int hx_completion_prepare(struct hx_server *s, struct hx_jv body, const char *request_id,
                          const struct hx_encode_options *enc, struct hx_generation **out,
                          struct hx_error *err)
{
    struct hx_generation *g = hx_generation_new(s, &completion_format, request_id);
    struct hx_params_limits limits;
    if (!g)
        return hx_fail(err, -ENOMEM, "out of memory");
    hx_params_limits_of(s, &limits);
    int r = hx_model_check(s, body, err);
    if (r == 0)
        r = hx_params_read(body, HX_ENDPOINT_COMPLETION, &limits, &g->params, err);
    if (r == 0)
        r = add_prompts(g, hx_jv_get(body, "prompt"), enc, err);
    if (r < 0) {
        hx_generation_free(g);
        return r;
    }
    __atomic_add_fetch(&s->metrics.unknown_fields, (uint64_t)g->params.n_unknown, __ATOMIC_RELAXED);
    *out = g;
    return 0;
}

/* ---- answer ---------------------------------------------------------------------------------- */

static void take_logprobs(struct hx_choice *c, struct hx_buf *out)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    struct hx_buf *from[] = {&c->logprobs, &c->token_logprobs, &c->top_logprobs, &c->offsets};
    for (int i = 0; i < 4; i++) {
        hx_buf_printf(out, "%c\"%s\":[", i ? ',' : '{', names[i]);
        hx_buf_append(out, from[i]->data, from[i]->len);
        hx_buf_putc(out, ']');
        hx_buf_clear(from[i]);
    }
    hx_buf_putc(out, '}');
}

static void completion_chunks(struct hx_generation *g, int index, struct hx_buf *out)
{
    struct hx_choice *c = &g->choice[index];
    bool end = c->finish && !c->finish_sent;
    if (c->n_pieces == 0 && !end)
        return;
    struct hx_buf lp = HX_BUF_INIT((size_t)256 << 20);
    struct hx_json_writer w;
    const struct hx_piece *p = c->n_pieces ? &c->piece[0] : NULL;
    bool with = c->logprobs.len > 0;
    if (with)
        take_logprobs(c, &lp);
    hx_chunk_begin(g, index, out, &w);
    hx_jw_key(&w, "text");
    hx_jw_str_n(&w, p ? (const char *)p->text.data : "", p ? p->text.len : 0);
    hx_chunk_end(g, &w, end ? c->finish : NULL, with ? &lp : NULL);
    hx_buf_done(&lp);
    hx_choice_clear(c);
    c->finish_sent = end;
}

static void completion_whole(struct hx_generation *g, int index, struct hx_json_writer *w)
{
    struct hx_choice *c = &g->choice[index];
    const struct hx_piece *p = c->n_pieces ? &c->piece[0] : NULL;
    hx_jw_object(w);
    hx_jw_key(w, "index");
    hx_jw_int(w, index);
    hx_jw_key(w, "text");
    hx_jw_str_n(w, p ? (const char *)p->text.data : "", p ? p->text.len : 0);
    hx_whole_end(g, c, w);
}

static const struct hx_format completion_format = {.object = "text_completion",
                                                   .chunk_object = "text_completion",
                                                   .id_prefix = "cmpl",
                                                   .chunks = completion_chunks,
                                                   .whole = completion_whole,
                                                   .logprobs = take_logprobs};
