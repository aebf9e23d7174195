/* /tokenize and /detokenize. */
#include "base/json_write.h"
#include "base/utf8.h"
#include "server/generation.h"

static int read_flag(struct hx_jv body, const char *name, bool *to, struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(body, name);
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL || hx_jv_bool(v, to))
        return 0;
    return hx_fail_param(err, -EINVAL, name, "invalid_type", "'%s' must be a boolean, not %s.",
                         name, hx_json_type_name(hx_jv_type(v)));
}

static int encode_chat(struct hx_server *s, struct hx_jv body, struct hx_ids *ids,
                       struct hx_error *err)
{
    struct hx_chat chat;
    int r = hx_chat_from_request(body, (enum hx_effort_table)s->opt.effort_table, &chat, err);
    if (r < 0)
        return r;
    if (chat.n_images > 0)
        r = hx_fail_param(err, -EINVAL, "messages", "unsupported_parameter",
                          "images in 'messages' are not supported.");
    if (r == 0)
        r = hx_prompt_encode(&chat.prompt, s->tokenizer, NULL, ids, err);
    hx_chat_done(&chat);
    return r;
}

static int encode_body(struct hx_server *s, struct hx_jv body, struct hx_ids *ids,
                       struct hx_error *err)
{
    struct hx_encode_options o = {.parse_special = true};
    struct hx_jv messages = hx_jv_get(body, "messages");
    int r = read_flag(body, "parse_special", &o.parse_special, err);
    if (r < 0)
        return r;
    if (messages.doc && hx_jv_type(messages) != HX_JSON_NULL)
        return encode_chat(s, body, ids, err);
    struct hx_jv v = hx_jv_get(body, "prompt");
    const char *name = "prompt";
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL) {
        v = hx_jv_get(body, "content");
        name = "content";
    }
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return hx_fail_param(err, -EINVAL, "prompt", "missing_required_parameter",
                             "'prompt', 'content' or 'messages' is required.");
    size_t len;
    const char *text = hx_jv_str(v, &len);
    if (!text)
        return hx_fail_param(err, -EINVAL, name, "invalid_type", "'%s' must be a string, not %s.",
                             name, hx_json_type_name(hx_jv_type(v)));
    return hx_tokenizer_encode(s->tokenizer, text, len, &o, ids, err);
}

static void write_strings(const struct hx_server *s, const struct hx_ids *ids,
                          struct hx_json_writer *w)
{
    struct hx_buf clean = HX_BUF_INIT(1 << 16);
    hx_jw_array(w);
    for (size_t i = 0; i < ids->len; i++) {
        size_t len = 0;
        const uint8_t *bytes = hx_tokenizer_bytes(s->tokenizer, ids->id[i], &len);
        hx_buf_clear(&clean);
        hx_utf8_sanitize(bytes, bytes ? len : 0, &clean);
        hx_jw_str_n(w, clean.data ? (const char *)clean.data : "", clean.len);
    }
    hx_jw_end_array(w);
    hx_buf_done(&clean);
}

int hx_tokenize_answer(struct hx_server *s, struct hx_jv body, struct hx_buf *out,
                       struct hx_error *err)
{
    struct hx_ids ids = {0};
    struct hx_json_writer w;
    bool strings = false;
    int r = hx_model_check(s, body, err);
    if (r == 0)
        r = read_flag(body, "return_token_strs", &strings, err);
    if (r == 0)
        r = encode_body(s, body, &ids, err);
    if (r == 0) {
        hx_jw_init(&w, out, false);
        hx_jw_object(&w);
        hx_jw_key(&w, "count");
        hx_jw_uint(&w, ids.len);
        hx_jw_key(&w, "max_model_len");
        hx_jw_int(&w, s->info.max_context);
        hx_jw_key(&w, "tokens");
        hx_jw_array(&w);
        for (size_t i = 0; i < ids.len; i++)
            hx_jw_int(&w, ids.id[i]);
        hx_jw_end_array(&w);
        hx_jw_key(&w, "token_strs");
        if (strings)
            write_strings(s, &ids, &w);
        else
            hx_jw_null(&w);
        hx_jw_end_object(&w);
    }
    hx_ids_done(&ids);
    return r;
}

static int decode(struct hx_server *s, struct hx_jv list, struct hx_buf *text, struct hx_error *err)
{
    struct hx_detok d = {0};
    int r = 0;
    for (struct hx_jv e = hx_jv_first(list); e.doc && r == 0; e = hx_jv_next(e)) {
        int64_t id;
        size_t len = 0;
        const uint8_t *bytes = NULL;
        if (hx_jv_int64(e, &id) && id >= 0 && id < s->info.n_vocab)
            bytes = hx_tokenizer_bytes(s->tokenizer, (int32_t)id, &len);
        if (!bytes)
            return hx_fail_param(err, -EINVAL, "tokens", "invalid_value",
                                 "'tokens' must be token ids from 0 to %d.", s->info.n_vocab - 1);
        r = hx_detok_push(&d, bytes, len, text);
    }
    if (r == 0)
        r = hx_detok_flush(&d, text);
    return r < 0 ? hx_fail(err, r, "out of memory for the text") : 0;
}

int hx_detokenize_answer(struct hx_server *s, struct hx_jv body, struct hx_buf *out,
                         struct hx_error *err)
{
    static const char *const names[] = {"prompt", "content"};
    struct hx_jv list = hx_jv_get(body, "tokens");
    struct hx_buf text = HX_BUF_INIT((size_t)1 << 30);
    struct hx_json_writer w;
    int r = hx_model_check(s, body, err);
    if (r == 0 && !list.doc)
        r = hx_fail_param(err, -EINVAL, "tokens", "missing_required_parameter",
                          "'tokens' is required.");
    if (r == 0 && hx_jv_type(list) != HX_JSON_ARRAY)
        r = hx_fail_param(err, -EINVAL, "tokens", "invalid_type",
                          "'tokens' must be a list of token ids, not %s.",
                          hx_json_type_name(hx_jv_type(list)));
    if (r == 0)
        r = decode(s, list, &text, err);
    if (r == 0) {
        hx_jw_init(&w, out, false);
        hx_jw_object(&w);
        for (int i = 0; i < 2; i++) {
            hx_jw_key(&w, names[i]);
            hx_jw_str_n(&w, text.data ? (const char *)text.data : "", text.len);
        }
        hx_jw_end_object(&w);
    }
    hx_buf_done(&text);
    return r;
}
