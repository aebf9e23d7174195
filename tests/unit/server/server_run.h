/* Requests and replies without sockets and without an engine. */
#ifndef HX_TEST_SERVER_RUN_H
#define HX_TEST_SERVER_RUN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hx/build_facts.h>

#include "server/generation.h"

#define N_VOCAB 129280

static inline struct hx_json *parse_json(const char *text, size_t len)
{
    struct hx_error err;
    struct hx_json *doc = NULL;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    if (hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("not JSON: %s: %.*s", err.text, (int)len, text);
    return doc;
}

/* A server that has its model's facts and the real tokenizer, but no engine. */
static inline struct hx_server *test_server(void)
{
    static struct hx_server s;
    struct hx_error err;
    if (s.tokenizer)
        return &s;
    if (hx_tokenizer_open(HX_BUILD_DATA "/tokenizer.json", &s.tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    s.n_end_tokens = hx_chat_end_tokens(s.tokenizer, s.end_token, 16);
    s.info = (struct hx_engine_info){.n_vocab = N_VOCAB,
                                     .max_context = 4096,
                                     .max_sequences = 8,
                                     .default_temperature = 0.6,
                                     .default_top_p = 0.9,
                                     .fingerprint = "print"};
    return &s;
}

static inline void test_server_done(void)
{
    hx_tokenizer_close(test_server()->tokenizer);
    test_server()->tokenizer = NULL;
}

/* The prepared request of a body, with its choices set up as for an engine. */
static inline struct hx_generation *
prepare(int (*fn)(struct hx_server *, struct hx_jv, const char *, const struct hx_encode_options *,
                  struct hx_generation **, struct hx_error *),
        const char *body)
{
    struct hx_json *doc = parse_json(body, strlen(body));
    struct hx_generation *g = NULL;
    struct hx_error err;
    if (fn(test_server(), hx_json_root(doc), "id", NULL, &g, &err) < 0)
        fail_msg("%s", err.text);
    hx_json_free(doc);
    struct hx_choice_options o = {.tokenizer = g->server->tokenizer,
                                  .params = &g->params,
                                  .raw = !g->has_chat,
                                  .end_tokens = g->server->end_token,
                                  .n_end_tokens = g->server->n_end_tokens};
    if (g->has_chat)
        o.reply = (struct hx_reply_options){.thinking = g->chat.thinking,
                                            .tools = g->chat.tools,
                                            .parallel_tool_calls = g->chat.parallel_tool_calls,
                                            .streaming = g->params.stream};
    while (g->n_choices < g->n_prompts * (int)g->params.n) {
        assert_int_equal(hx_choice_init(&g->choice[g->n_choices], &o, &err), 0);
        g->n_choices++;
    }
    return g;
}

/* One token of the model; what hx_choice_event says. */
static inline int feed_token(struct hx_choice *c, int32_t token, float logprob)
{
    struct hx_event ev = {.type = HX_EVENT_TOKEN, .token = token, .logprob = logprob, .n_top = 1};
    struct hx_error err;
    ev.top[0].token = token;
    ev.top[0].logprob = logprob;
    ev.usage = c->usage;
    ev.usage.generated_tok++;
    int r = hx_choice_event(c, &ev, &err);
    if (r < 0)
        fail_msg("%s", err.text);
    return r;
}

/* The tokens of a text, spellings of added tokens included, until the choice wants no more. */
static inline int feed(struct hx_choice *c, const char *text)
{
    const struct hx_encode_options special = {.parse_special = true};
    struct hx_ids ids = {0};
    struct hx_error err;
    int r = 0;
    assert_int_equal(
        hx_tokenizer_encode(c->opt.tokenizer, text, strlen(text), &special, &ids, &err), 0);
    for (size_t i = 0; i < ids.len && r == 0; i++)
        r = feed_token(c, ids.id[i], -0.5f);
    hx_ids_done(&ids);
    return r;
}

static inline int end_with(struct hx_choice *c, enum hx_end_reason reason, int32_t token,
                           struct hx_error *err)
{
    struct hx_event ev = {.type = HX_EVENT_END, .reason = reason, .token = token};
    ev.usage = c->usage;
    ev.usage.generated_tok += reason == HX_END_TOKEN;
    return hx_choice_event(c, &ev, err);
}

static inline void end_ok(struct hx_choice *c, enum hx_end_reason reason)
{
    struct hx_error err;
    int32_t eos = hx_tokenizer_special(c->opt.tokenizer, "<｜end▁of▁sentence｜>");
    assert_true(eos >= 0);
    if (end_with(c, reason, eos, &err) < 0)
        fail_msg("%s", err.text);
}

/* Text of all pieces of a type, in one of four rotating buffers. */
static inline const char *pieces(const struct hx_choice *c, enum hx_piece_type type)
{
    static char ring[4][4096];
    static unsigned turn;
    char *to = ring[turn++ % 4];
    size_t len = 0;
    for (size_t i = 0; i < c->n_pieces; i++) {
        const struct hx_piece *p = &c->piece[i];
        if (p->type != type)
            continue;
        assert_true(len + p->text.len < sizeof(ring[0]));
        if (p->text.len)
            memcpy(to + len, p->text.data, p->text.len);
        len += p->text.len;
    }
    to[len] = '\0';
    return to;
}

#endif
