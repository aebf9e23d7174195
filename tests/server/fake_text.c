/* Byte tokenizer and a plain chat format: the prompt is the last message. */
#include <stdlib.h>
#include <string.h>

#include <hx/chat.h>

#include "base/utf8.h"

enum { EOS = 256, THINK, THINK_END, DSML, N_VOCAB };

static const char *const specials[] = {"<eos>", "<think>", "</think>", "｜DSML｜"};

struct hx_tokenizer {
    uint8_t byte[256];
};

void hx_ids_done(struct hx_ids *ids)
{
    free(ids->id);
    *ids = (struct hx_ids){0};
}

int hx_ids_append(struct hx_ids *ids, const int32_t *id, size_t n)
{
    if (ids->len + n > ids->cap) {
        size_t cap = (ids->len + n) * 2;
        int32_t *grown = realloc(ids->id, cap * sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        ids->id = grown;
        ids->cap = cap;
    }
    memcpy(ids->id + ids->len, id, n * sizeof(*id));
    ids->len += n;
    return 0;
}

int hx_ids_push(struct hx_ids *ids, int32_t id)
{
    return hx_ids_append(ids, &id, 1);
}

int hx_tokenizer_open(const char *path, struct hx_tokenizer **out, struct hx_error *err)
{
    struct hx_tokenizer *t = calloc(1, sizeof(*t));
    (void)path;
    if (!t)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; i < 256; i++)
        t->byte[i] = (uint8_t)i;
    *out = t;
    return 0;
}

void hx_tokenizer_close(struct hx_tokenizer *t)
{
    free(t);
}

int32_t hx_tokenizer_special(const struct hx_tokenizer *t, const char *spelling)
{
    (void)t;
    for (int i = 0; i < 4; i++) {
        if (strcmp(spelling, specials[i]) == 0)
            return EOS + i;
    }
    return -1;
}

bool hx_tokenizer_is_added(const struct hx_tokenizer *t, int32_t id)
{
    (void)t;
    return id >= EOS;
}

const uint8_t *hx_tokenizer_bytes(const struct hx_tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= N_VOCAB)
        return NULL;
    *len = id < EOS ? 1 : strlen(specials[id - EOS]);
    return id < EOS ? &t->byte[id] : (const uint8_t *)specials[id - EOS];
}

int hx_tokenizer_encode(const struct hx_tokenizer *t, const char *text, size_t len,
                        const struct hx_encode_options *opt, struct hx_ids *out,
                        struct hx_error *err)
{
    (void)t;
    (void)opt;
    for (size_t i = 0; i < len; i++) {
        if (hx_ids_push(out, (uint8_t)text[i]) < 0)
            return hx_fail(err, -ENOMEM, "out of memory");
    }
    return 0;
}

int hx_detok_push(struct hx_detok *d, const uint8_t *bytes, size_t len, struct hx_buf *out)
{
    for (size_t i = 0; i < len; i++) {
        d->tail[d->n_tail++] = bytes[i];
        int k = hx_utf8_next(d->tail, d->n_tail);
        if (k == 0)
            continue;
        if (hx_utf8_sanitize(d->tail, d->n_tail, out) < 0)
            return -ENOMEM;
        d->n_tail = 0;
    }
    return 0;
}

int hx_detok_flush(struct hx_detok *d, struct hx_buf *out)
{
    int r = hx_utf8_sanitize(d->tail, d->n_tail, out);
    d->n_tail = 0;
    return r < 0 ? r : 0;
}

void hx_prompt_done(struct hx_prompt *p)
{
    hx_buf_done(&p->text);
    free(p->segment);
}

int hx_prompt_encode(const struct hx_prompt *p, const struct hx_tokenizer *t,
                     const struct hx_encode_options *opt, struct hx_ids *out, struct hx_error *err)
{
    return hx_tokenizer_encode(t, (const char *)p->text.data, p->text.len, opt, out, err);
}

int hx_chat_from_request(struct hx_jv request, enum hx_effort_table effort_table,
                         struct hx_chat *out, struct hx_error *err)
{
    struct hx_jv messages = hx_jv_get(request, "messages"), content = HX_JV_NONE;
    size_t len = 0;
    (void)effort_table;
    if (hx_jv_count(messages) == 0)
        return hx_fail_param(err, -EINVAL, "messages", "missing_required_parameter",
                             "'messages' is required.");
    for (struct hx_jv m = hx_jv_first(messages); m.doc; m = hx_jv_next(m))
        content = hx_jv_get(m, "content");
    const char *text = hx_jv_str(content, &len);
    *out = (struct hx_chat){.parallel_tool_calls = true};
    out->prompt.text.max = (size_t)1 << 30;
    out->thinking = !hx_jv_str_is(hx_jv_get(request, "reasoning_effort"), "none");
    return hx_buf_append(&out->prompt.text, text ? text : "", len);
}

void hx_chat_done(struct hx_chat *c)
{
    hx_prompt_done(&c->prompt);
}

int hx_chat_forced_prefix(const struct hx_chat *c, struct hx_prompt *out, struct hx_error *err)
{
    (void)c;
    (void)out;
    (void)err;
    return 0;
}

size_t hx_chat_end_tokens(const struct hx_tokenizer *t, int32_t *ids, size_t cap)
{
    (void)t;
    ids[0] = EOS;
    return cap > 0;
}

/* ---- reply: tokens' spellings come whole, so `</think>` is never cut ------------------------- */

struct hx_reply {
    bool reasoning;
};

int hx_reply_new(const struct hx_reply_options *opt, struct hx_reply **out, struct hx_error *err)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return hx_fail(err, -ENOMEM, "out of memory");
    (*out)->reasoning = opt->thinking;
    return 0;
}

int hx_reply_push(struct hx_reply *r, const char *text, size_t len, hx_reply_fn fn, void *user)
{
    struct hx_reply_event ev = {
        .type = r->reasoning ? HX_REPLY_REASONING : HX_REPLY_CONTENT, .text = text, .len = len};
    if (len == 8 && memcmp(text, "</think>", 8) == 0) {
        r->reasoning = false;
        return 0;
    }
    return len ? fn(user, &ev) : 0;
}

int hx_reply_finish(struct hx_reply *r, enum hx_reply_end end, hx_reply_fn fn, void *user)
{
    (void)r;
    (void)end;
    (void)fn;
    (void)user;
    return 0;
}

int hx_reply_n_calls(const struct hx_reply *r)
{
    (void)r;
    return 0;
}

bool hx_reply_in_reasoning(const struct hx_reply *r)
{
    return r->reasoning;
}

void hx_reply_free(struct hx_reply *r)
{
    free(r);
}
