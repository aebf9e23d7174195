/* Text pipeline of one choice: bytes to characters, reply parser, stop strings, log-probabilities.
 */
#include "server/choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json_write.h"
#include "base/utf8.h"

#define MAX_TEXT ((size_t)256 << 20) /* of one choice */

/* ---- pieces ---------------------------------------------------------------------------------- */

static void new_call_id(char out[32])
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t r[24];
    if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
        memset(r, 0, sizeof(r));
    memcpy(out, "call_", 5);
    for (int i = 0; i < 24; i++)
        out[5 + i] = alphabet[r[i] % 62];
    out[29] = '\0';
}

static int add_piece(struct hx_choice *c, enum hx_piece_type type, int call, const char *text,
                     size_t len)
{
    struct hx_piece *p = c->n_pieces ? &c->piece[c->n_pieces - 1] : NULL;
    if (len == 0 && type != HX_PIECE_CALL)
        return 0;
    if (!p || p->type != type || p->call != call || type == HX_PIECE_CALL) {
        if (c->n_pieces == c->cap_pieces) {
            size_t cap = c->cap_pieces ? c->cap_pieces * 2 : 4;
            struct hx_piece *grown = realloc(c->piece, cap * sizeof(*grown));
            if (!grown)
                return -ENOMEM;
            c->piece = grown;
            c->cap_pieces = cap;
        }
        p = &c->piece[c->n_pieces++];
        *p = (struct hx_piece){.type = type, .call = call, .text = HX_BUF_INIT(MAX_TEXT)};
        if (type == HX_PIECE_CALL)
            new_call_id(p->id);
    }
    return hx_buf_append(&p->text, text, len);
}

void hx_choice_clear(struct hx_choice *c)
{
    for (size_t i = 0; i < c->n_pieces; i++)
        hx_buf_done(&c->piece[i].text);
    c->n_pieces = 0;
}

/* ---- stop strings ---------------------------------------------------------------------------- */

/* The match that is complete first, of those that end together the longest: so the answer does not
 * depend on how tokens cut the text. */
static bool find_stop(const struct hx_choice *c, size_t *at, size_t *len)
{
    const struct hx_params *p = c->opt.params;
    for (size_t end = 1; end <= c->hold.len; end++) {
        *len = 0;
        for (int k = 0; k < p->n_stops; k++) {
            const struct hx_stop *s = &p->stop[k];
            if (s->len <= end && s->len > *len &&
                memcmp(c->hold.data + end - s->len, s->text, s->len) == 0) {
                *at = end - s->len;
                *len = s->len;
            }
        }
        if (*len)
            return true;
    }
    return false;
}

/* Bytes at the end of the held text that may become a stop string. */
static size_t open_stop(const struct hx_choice *c)
{
    const struct hx_params *p = c->opt.params;
    for (size_t i = 0; i < c->hold.len; i++) {
        size_t n = c->hold.len - i;
        for (int k = 0; k < p->n_stops; k++) {
            if (p->stop[k].len > n && memcmp(c->hold.data + i, p->stop[k].text, n) == 0)
                return n;
        }
    }
    return 0;
}

static int release_hold(struct hx_choice *c, size_t n)
{
    int r = add_piece(c, HX_PIECE_CONTENT, -1, (const char *)c->hold.data, n);
    if (r == 0)
        hx_buf_consume(&c->hold, n);
    return r;
}

static int add_content(struct hx_choice *c, const char *text, size_t len)
{
    size_t at, n;
    if (c->opt.params->n_stops == 0)
        return add_piece(c, HX_PIECE_CONTENT, -1, text, len);
    int r = hx_buf_append(&c->hold, text, len);
    if (r < 0)
        return r;
    if (find_stop(c, &at, &n)) {
        c->stopped = c->stop_string = true;
        r = release_hold(c, at + (c->opt.params->include_stop ? n : 0));
        hx_buf_clear(&c->hold);
        return r;
    }
    return release_hold(c, c->hold.len - open_stop(c));
}

/* ---- parser ---------------------------------------------------------------------------------- */

static int on_reply(void *user, const struct hx_reply_event *ev)
{
    struct hx_choice *c = user;
    int r = 0;
    if (ev->type == HX_REPLY_HEALED && c->opt.metrics)
        hx_metrics_healed(c->opt.metrics, ev->text, ev->len);
    if (c->stopped)
        return 0;
    switch (ev->type) {
    case HX_REPLY_REASONING: return add_piece(c, HX_PIECE_REASONING, -1, ev->text, ev->len);
    case HX_REPLY_CONTENT: return add_content(c, ev->text, ev->len);
    case HX_REPLY_CALL_START:
        r = release_hold(c, c->hold.len);
        return r < 0 ? r : add_piece(c, HX_PIECE_CALL, ev->call, ev->text, ev->len);
    case HX_REPLY_CALL_ARGS: return add_piece(c, HX_PIECE_ARGS, ev->call, ev->text, ev->len);
    case HX_REPLY_STOP: c->stopped = true; return 0;
    case HX_REPLY_CALL_END:
    case HX_REPLY_HEALED: break;
    }
    return 0;
}

static int push_text(struct hx_choice *c)
{
    const char *text = (const char *)c->text.data;
    int r;
    for (size_t i = 0; i < c->text.len; i++)
        c->n_chars += (c->text.data[i] & 0xC0) != 0x80;
    if (c->opt.raw)
        r = add_content(c, text, c->text.len);
    else
        r = hx_reply_push(c->reply, text, c->text.len, on_reply, c);
    hx_buf_clear(&c->text);
    return r;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

void hx_choice_token_json(const struct hx_choice *c, int32_t token, double logprob, bool open,
                          struct hx_buf *out)
{
    size_t len = 0;
    const uint8_t *bytes = hx_tokenizer_bytes(c->opt.tokenizer, token, &len);
    struct hx_buf clean = HX_BUF_INIT(1 << 16);
    struct hx_json_writer w;
    hx_utf8_sanitize(bytes, bytes ? len : 0, &clean);
    hx_buf_puts(out, "{\"token\":");
    hx_jw_init(&w, out, false);
    hx_jw_str_n(&w, (const char *)clean.data, clean.len);
    hx_buf_puts(out, ",\"logprob\":");
    hx_jw_init(&w, out, false);
    /* Clients expect a number; this is what common servers send for an impossible token. */
    hx_jw_finite(&w, logprob >= -9999 ? logprob : -9999.0);
    hx_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; bytes && i < len; i++)
        hx_buf_printf(out, i ? ",%u" : "%u", bytes[i]);
    hx_buf_puts(out, open ? "]" : "]}");
    hx_buf_done(&clean);
}

static void comma(struct hx_buf *b)
{
    if (b->len)
        hx_buf_putc(b, ',');
}

static void add_chat_logprobs(struct hx_choice *c, const struct hx_event *ev)
{
    comma(&c->logprobs);
    hx_choice_token_json(c, ev->token, ev->logprob, true, &c->logprobs);
    hx_buf_puts(&c->logprobs, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top && i < c->opt.params->top_logprobs; i++) {
        if (i)
            hx_buf_putc(&c->logprobs, ',');
        hx_choice_token_json(c, ev->top[i].token, ev->top[i].logprob, false, &c->logprobs);
    }
    hx_buf_puts(&c->logprobs, "]}");
}

static void put_token_text(const struct hx_choice *c, int32_t token, struct hx_buf *out)
{
    size_t len = 0;
    const uint8_t *bytes = hx_tokenizer_bytes(c->opt.tokenizer, token, &len);
    struct hx_buf clean = HX_BUF_INIT(1 << 16);
    struct hx_json_writer w;
    hx_utf8_sanitize(bytes, bytes ? len : 0, &clean);
    hx_jw_init(&w, out, false);
    hx_jw_str_n(&w, (const char *)clean.data, clean.len);
    hx_buf_done(&clean);
}

static void put_number(struct hx_buf *out, double v)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    hx_jw_finite(&w, v >= -9999 ? v : -9999.0);
}

static void add_old_logprobs(struct hx_choice *c, const struct hx_event *ev)
{
    comma(&c->logprobs);
    put_token_text(c, ev->token, &c->logprobs);
    comma(&c->token_logprobs);
    put_number(&c->token_logprobs, ev->logprob);
    comma(&c->offsets);
    hx_buf_printf(&c->offsets, "%lld", (long long)c->n_chars);
    comma(&c->top_logprobs);
    hx_buf_putc(&c->top_logprobs, '{');
    for (int i = 0; i < ev->n_top && i < c->opt.params->top_logprobs; i++) {
        if (i)
            hx_buf_putc(&c->top_logprobs, ',');
        put_token_text(c, ev->top[i].token, &c->top_logprobs);
        hx_buf_putc(&c->top_logprobs, ':');
        put_number(&c->top_logprobs, ev->top[i].logprob);
    }
    hx_buf_putc(&c->top_logprobs, '}');
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_marker(const struct hx_choice *c, int32_t token)
{
    static const char *const spellings[] = {"<think>", "</think>", "｜DSML｜"};
    for (int i = 0; i < 3; i++) {
        if (hx_tokenizer_special(c->opt.tokenizer, spellings[i]) == token)
            return true;
    }
    return false;
}

/* Tokens that skip_special_tokens keeps out of the text: in a chat those that would end the turn.
 */
static bool is_hidden(const struct hx_choice *c, int32_t token)
{
    if (!c->opt.params->skip_special)
        return false;
    if (c->opt.raw)
        return hx_tokenizer_is_added(c->opt.tokenizer, token) && !is_marker(c, token);
    for (size_t i = 0; i < c->opt.n_end_tokens; i++) {
        if (c->opt.end_tokens[i] == token)
            return true;
    }
    return false;
}

static int on_token(struct hx_choice *c, const struct hx_event *ev)
{
    size_t len = 0;
    const uint8_t *bytes = hx_tokenizer_bytes(c->opt.tokenizer, ev->token, &len);
    bool reasoning = !c->opt.raw && hx_reply_in_reasoning(c->reply);
    c->any_token = true;
    c->usage = ev->usage;
    if (c->stopped)
        return 0;
    c->n_reasoning_tok += reasoning;
    if (c->opt.params->logprobs) {
        if (c->opt.raw)
            add_old_logprobs(c, ev);
        else if (!reasoning)
            add_chat_logprobs(c, ev);
    }
    if (!bytes || is_hidden(c, ev->token))
        return 0;
    int r = hx_detok_push(&c->detok, bytes, len, &c->text);
    if (r == 0)
        r = push_text(c);
    if (c->logprobs.failed || c->token_logprobs.failed || c->top_logprobs.failed ||
        c->offsets.failed)
        r = -ENOMEM;
    return r < 0 ? r : c->stopped;
}

static bool is_stop_id(const struct hx_choice *c, int32_t token)
{
    for (int i = 0; i < c->opt.params->n_stop_ids; i++) {
        if (c->opt.params->stop_id[i] == token)
            return true;
    }
    return false;
}

static int finish(struct hx_choice *c, const struct hx_event *ev)
{
    bool length = ev->reason == HX_END_LENGTH && !c->stopped;
    bool stop = c->stop_string || (ev->reason == HX_END_TOKEN && is_stop_id(c, ev->token));
    bool was_stopped = c->stopped;
    int r = 0;
    c->usage = ev->usage;
    if (!was_stopped) {
        r = hx_detok_flush(&c->detok, &c->text);
        if (r == 0)
            r = push_text(c);
    }
    if (r == 0 && !c->opt.raw)
        r = hx_reply_finish(c->reply,
                            length ? HX_REPLY_END_LENGTH
                            : stop ? HX_REPLY_END_STOP
                                   : HX_REPLY_END_EOS,
                            on_reply, c);
    /* A stop string may end in text that only now left the parser. */
    if (r == 0 && !c->stopped)
        r = release_hold(c, c->hold.len);
    if (r < 0)
        return r;
    stop = stop || c->stop_string;
    if (length && !c->stop_string)
        c->finish = "length";
    else if (!stop && !c->opt.raw && hx_reply_n_calls(c->reply) > 0)
        c->finish = "tool_calls";
    else
        c->finish = "stop";
    return 0;
}

int hx_choice_event(struct hx_choice *c, const struct hx_event *ev, struct hx_error *err)
{
    int r;
    if (c->finish)
        return 0;
    if (ev->type == HX_EVENT_TOKEN) {
        r = on_token(c, ev);
    } else if (ev->reason == HX_END_ERROR) {
        if (err)
            *err = ev->error;
        return ev->error.code < 0 ? ev->error.code : -EIO;
    } else if (ev->reason == HX_END_CANCELLED && !c->stopped) {
        return hx_fail(err, -ECANCELED, "cancelled");
    } else {
        r = finish(c, ev);
    }
    return r < 0 ? hx_fail(err, r, "reply of choice") : r;
}

int hx_choice_init(struct hx_choice *c, const struct hx_choice_options *opt, struct hx_error *err)
{
    *c = (struct hx_choice){.opt = *opt,
                            .text = HX_BUF_INIT(MAX_TEXT),
                            .hold = HX_BUF_INIT(MAX_TEXT),
                            .logprobs = HX_BUF_INIT(MAX_TEXT),
                            .token_logprobs = HX_BUF_INIT(MAX_TEXT),
                            .top_logprobs = HX_BUF_INIT(MAX_TEXT),
                            .offsets = HX_BUF_INIT(MAX_TEXT)};
    return opt->raw ? 0 : hx_reply_new(&opt->reply, &c->reply, err);
}

void hx_choice_done(struct hx_choice *c)
{
    hx_choice_clear(c);
    free(c->piece);
    c->piece = NULL;
    c->cap_pieces = 0;
    hx_buf_done(&c->text);
    hx_buf_done(&c->hold);
    hx_buf_done(&c->logprobs);
    hx_buf_done(&c->token_logprobs);
    hx_buf_done(&c->top_logprobs);
    hx_buf_done(&c->offsets);
    hx_reply_free(c->reply);
    c->reply = NULL;
}
