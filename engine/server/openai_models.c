/* /models. */
#include <string.h>

#include "base/json_write.h"
#include "server/server.h"

/* Walks a list of words; NULL at the end. */
static const char *next_word(const char *s, size_t *len)
{
    s += strspn(s, " ,");
    *len = strcspn(s, " ,");
    return *len ? s : NULL;
}

bool hx_model_known(const struct hx_server *s, const char *name, size_t len)
{
    size_t n;
    if (len == strlen(HX_MODEL_NAME) && memcmp(name, HX_MODEL_NAME, len) == 0)
        return true;
    for (const char *w = s->opt.model_aliases; (w = next_word(w, &n)); w += n) {
        if ((n == 1 && *w == '*') || (n == len && memcmp(w, name, n) == 0))
            return true;
    }
    return false;
}

static void write_model(const struct hx_server *s, struct hx_json_writer *w, const char *id,
                        size_t len)
{
    static const char *const windows[] = {"max_model_len", "context_length", "max_output_tokens"};
    hx_jw_object(w);
    hx_jw_key(w, "id");
    hx_jw_str_n(w, id, len);
    hx_jw_key(w, "object");
    hx_jw_str(w, "model");
    hx_jw_key(w, "created");
    hx_jw_int(w, s->created);
    hx_jw_key(w, "owned_by");
    hx_jw_str(w, "local");
    hx_jw_key(w, "root");
    hx_jw_str(w, HX_MODEL_NAME);
    hx_jw_key(w, "parent");
    hx_jw_null(w);
    for (int i = 0; i < 3; i++) {
        hx_jw_key(w, windows[i]);
        hx_jw_int(w, s->info.max_context);
    }
    hx_jw_key(w, "meta");
    hx_jw_object(w);
    hx_jw_key(w, "n_ctx");
    hx_jw_int(w, s->info.max_context);
    hx_jw_key(w, "n_ctx_train");
    hx_jw_int(w, s->info.trained_context);
    hx_jw_key(w, "n_vocab");
    hx_jw_int(w, s->info.n_vocab);
    hx_jw_end_object(w);
    hx_jw_key(w, "input_modalities");
    hx_jw_array(w);
    hx_jw_str(w, "text");
    hx_jw_end_array(w);
    hx_jw_end_object(w);
}

void hx_models_reply(struct hx_server *s, struct hx_exchange *x, const char *id)
{
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    size_t n;
    if (id && !hx_model_known(s, id, strlen(id))) {
        hx_reply_refusal(x, 404, "model_not_found", "model",
                         "This server has only the model '" HX_MODEL_NAME "'.");
        return;
    }
    hx_jw_init(&w, &out, false);
    if (id) {
        write_model(s, &w, id, strlen(id));
    } else {
        hx_jw_object(&w);
        hx_jw_key(&w, "object");
        hx_jw_str(&w, "list");
        hx_jw_key(&w, "data");
        hx_jw_array(&w);
        write_model(s, &w, HX_MODEL_NAME, strlen(HX_MODEL_NAME));
        for (const char *a = s->opt.model_aliases; (a = next_word(a, &n)); a += n) {
            if (!(n == 1 && *a == '*'))
                write_model(s, &w, a, n);
        }
        hx_jw_end_array(&w);
        hx_jw_end_object(&w);
    }
    hx_exchange_reply(x, 200, "application/json", out.data, out.len, false);
    hx_buf_done(&out);
}
