/* Rows of request fields. */
#include "server/params.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum kind { BOOL, INT, REAL, IGNORED, REFUSED, CUSTOM };

struct row;
typedef int (*read_fn)(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                       struct hx_params *p, struct hx_error *err);

struct row {
    const char *name;
    enum kind kind;
    unsigned where; /* enum hx_endpoint bits */
    size_t offset;
    double min, max;
    bool above_min; /* min itself is not allowed */
    const char *allowed;
    read_fn read;
};

static int bad_type(const struct row *row, const char *want, struct hx_jv v, struct hx_error *err)
{
    return hx_fail_param(err, -EINVAL, row->name, "invalid_type", "'%s' must be %s, not %s.",
                         row->name, want, hx_json_type_name(hx_jv_type(v)));
}

static int bad_value(const struct row *row, struct hx_error *err)
{
    return hx_fail_param(err, -EINVAL, row->name, "invalid_value", "'%s' must be %s.", row->name,
                         row->allowed);
}

static int read_limit(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                      struct hx_params *p, struct hx_error *err)
{
    int64_t n;
    (void)lim;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "an integer", v, err);
    if (!hx_jv_int64(v, &n) || n == 0 || n < -1)
        return bad_value(row, err);
    *(int64_t *)(void *)((char *)p + row->offset) = n == -1 ? 0 : n;
    return 0;
}

static int read_stream_options(const struct row *row, struct hx_jv v,
                               const struct hx_params_limits *lim, struct hx_params *p,
                               struct hx_error *err)
{
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    bool *to[] = {&p->include_usage, &p->continuous_usage};
    (void)lim;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return bad_type(row, "an object", v, err);
    for (int i = 0; i < 2; i++) {
        struct hx_jv f = hx_jv_get(v, names[i]);
        if (!f.doc || hx_jv_type(f) == HX_JSON_NULL)
            continue;
        if (!hx_jv_bool(f, to[i]))
            return hx_fail_param(err, -EINVAL, "stream_options", "invalid_type",
                                 "'stream_options.%s' must be a boolean, not %s.", names[i],
                                 hx_json_type_name(hx_jv_type(f)));
    }
    return 0;
}

static int read_seed(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                     struct hx_params *p, struct hx_error *err)
{
    int64_t n;
    (void)lim;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "an integer", v, err);
    if (!hx_jv_int64(v, &n))
        return bad_value(row, err);
    p->seed = (uint64_t)n;
    p->has_seed = true;
    return 0;
}

/* The map's key is the token's number in decimal, without sign or leading zeros. */
static bool token_of_key(const char *s, size_t len, int32_t n_vocab, int32_t *out)
{
    int64_t n = 0;
    if (len == 0 || len > 9 || (len > 1 && s[0] == '0'))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        n = n * 10 + (s[i] - '0');
    }
    *out = (int32_t)n;
    return n < n_vocab;
}

static int read_bias(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                     struct hx_params *p, struct hx_error *err)
{
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return bad_type(row, "an object", v, err);
    size_t n = hx_jv_count(v);
    if (n > HX_MAX_BIAS)
        return bad_value(row, err);
    if (n == 0)
        return 0;
    p->bias = calloc(n, sizeof(*p->bias));
    if (!p->bias)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        size_t len;
        const char *key = hx_jv_str(hx_jv_key(e), &len);
        double bias;
        int32_t token;
        if (!hx_jv_double(e, &bias))
            return hx_fail_param(err, -EINVAL, "logit_bias", "invalid_type",
                                 "values of 'logit_bias' must be numbers, not %s.",
                                 hx_json_type_name(hx_jv_type(e)));
        if (!token_of_key(key, len, lim->n_vocab, &token))
            return hx_fail_param(err, -EINVAL, "logit_bias", "invalid_value",
                                 "keys of 'logit_bias' must be token ids from 0 to %d.",
                                 lim->n_vocab - 1);
        if (!(bias >= -100 && bias <= 100))
            return bad_value(row, err);
        p->bias[p->n_bias++] = (struct hx_logit_bias){token, (float)bias};
    }
    return 0;
}

static int add_stop(const struct row *row, struct hx_jv v, struct hx_params *p,
                    struct hx_error *err)
{
    size_t len, n_chars = 0;
    const char *s = hx_jv_str(v, &len);
    if (!s)
        return bad_type(row, "a string or a list of strings", v, err);
    for (size_t i = 0; i < len; i++)
        n_chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    if (n_chars == 0 || n_chars > 256 || p->n_stops == HX_MAX_STOPS)
        return bad_value(row, err);
    char *copy = malloc(len);
    if (!copy)
        return hx_fail(err, -ENOMEM, "out of memory");
    memcpy(copy, s, len);
    p->stop[p->n_stops++] = (struct hx_stop){copy, len};
    return 0;
}

static int read_stop(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                     struct hx_params *p, struct hx_error *err)
{
    (void)lim;
    if (hx_jv_type(v) != HX_JSON_ARRAY)
        return add_stop(row, v, p, err);
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        int r = add_stop(row, e, p, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_stop_ids(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                         struct hx_params *p, struct hx_error *err)
{
    if (hx_jv_type(v) != HX_JSON_ARRAY)
        return bad_type(row, "a list of token ids", v, err);
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        int64_t id;
        if (hx_jv_type(e) != HX_JSON_NUMBER)
            return bad_type(row, "a list of token ids", e, err);
        if (!hx_jv_int64(e, &id) || id < 0 || id >= lim->n_vocab || p->n_stop_ids == HX_MAX_STOPS)
            return bad_value(row, err);
        p->stop_id[p->n_stop_ids++] = (int32_t)id;
    }
    return 0;
}

/* Chat: a boolean. Completions: how many, which also switches them on. */
static int read_old_logprobs(const struct row *row, struct hx_jv v,
                             const struct hx_params_limits *lim, struct hx_params *p,
                             struct hx_error *err)
{
    int64_t n;
    (void)lim;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "an integer", v, err);
    if (!hx_jv_int64(v, &n) || n < 0 || n > HX_MAX_TOP_LOGPROBS)
        return bad_value(row, err);
    p->logprobs = true;
    p->top_logprobs = n;
    return 0;
}

static int read_best_of(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                        struct hx_params *p, struct hx_error *err)
{
    int64_t n;
    (void)lim;
    (void)p;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "an integer", v, err);
    if (!hx_jv_int64(v, &n) || n != 1)
        return hx_fail_param(err, -EINVAL, row->name, "unsupported_parameter",
                             "'best_of' above 1 is not supported.");
    return 0;
}

static int read_modalities(const struct row *row, struct hx_jv v,
                           const struct hx_params_limits *lim, struct hx_params *p,
                           struct hx_error *err)
{
    (void)lim;
    (void)p;
    if (hx_jv_type(v) != HX_JSON_ARRAY)
        return bad_type(row, "a list", v, err);
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        if (!hx_jv_str_is(e, "text"))
            return hx_fail_param(err, -EINVAL, row->name, "unsupported_parameter",
                                 "'modalities' other than [\"text\"] are not supported.");
    }
    return 0;
}

static int read_format(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                       struct hx_params *p, struct hx_error *err)
{
    (void)lim;
    (void)p;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return bad_type(row, "an object", v, err);
    struct hx_jv type = hx_jv_get(v, "type");
    if (hx_jv_str_is(type, "json_object") || hx_jv_str_is(type, "json_schema"))
        return hx_fail_param(err, -EINVAL, row->name, "unsupported_parameter",
                             "'response_format' supports only the type text.");
    if (!hx_jv_str_is(type, "text"))
        return bad_value(row, err);
    return 0;
}

#define AT(field) offsetof(struct hx_params, field)
#define CHAT      HX_ENDPOINT_CHAT
#define COMP      HX_ENDPOINT_COMPLETION
#define BOTH      (CHAT | COMP)
#define B(name, where, field)                                                                      \
    {                                                                                              \
        name, BOOL, where, AT(field), 0, 1, false, NULL, NULL                                      \
    }
#define N(name, kind, where, field, min, max, above, allowed)                                      \
    {                                                                                              \
        name, kind, where, AT(field), min, max, above, allowed, NULL                               \
    }
#define C(name, where, field, allowed, fn)                                                         \
    {                                                                                              \
        name, CUSTOM, where, AT(field), 0, 0, false, allowed, fn                                   \
    }
#define K(name, kind, where)                                                                       \
    {                                                                                              \
        name, kind, where, 0, 0, 0, false, NULL, NULL                                              \
    }

#define POSITIVE "an integer of 1 or more, or -1 for the rest of the context"

static const struct row rows[] = {
    /* Read elsewhere: the model's name by the server, the rest by the chat template. */
    K("model", IGNORED, BOTH),
    K("prompt", IGNORED, COMP),
    K("messages", IGNORED, CHAT),
    K("tools", IGNORED, CHAT),
    K("tool_choice", IGNORED, CHAT),
    K("parallel_tool_calls", IGNORED, CHAT),
    K("reasoning_effort", IGNORED, CHAT),
    K("thinking", IGNORED, CHAT),
    K("reasoning", IGNORED, CHAT),
    K("chat_template_kwargs", IGNORED, CHAT),
    K("add_generation_prompt", IGNORED, CHAT),
    K("continue_final_message", IGNORED, CHAT),
    B("stream", BOTH, stream),
    C("stream_options", BOTH, include_usage, NULL, read_stream_options),
    C("max_completion_tokens", CHAT, max_completion_tokens, POSITIVE, read_limit),
    C("max_tokens", BOTH, max_tokens, POSITIVE, read_limit),
    N("temperature", REAL, BOTH, temperature, 0, 2, false, "a number from 0 to 2"),
    N("top_p", REAL, BOTH, top_p, 0, 1, true, "a number above 0, up to 1"),
    N("top_k", INT, BOTH, top_k, -1, 129280, false, "an integer from -1 to 129280"),
    N("min_p", REAL, BOTH, min_p, 0, 1, false, "a number from 0 to 1"),
    N("presence_penalty", REAL, BOTH, presence_penalty, -2, 2, false, "a number from -2 to 2"),
    N("frequency_penalty", REAL, BOTH, frequency_penalty, -2, 2, false, "a number from -2 to 2"),
    N("repetition_penalty", REAL, BOTH, repetition_penalty, 0, 2, true,
      "a number above 0, up to 2"),
    C("seed", BOTH, seed, "a 64-bit integer", read_seed),
    C("logit_bias", BOTH, bias, "up to 1024 token ids with numbers from -100 to 100", read_bias),
    B("logprobs", CHAT, logprobs),
    C("logprobs", COMP, logprobs, "an integer from 0 to 20", read_old_logprobs),
    N("top_logprobs", INT, CHAT, top_logprobs, 0, HX_MAX_TOP_LOGPROBS, false,
      "an integer from 0 to 20"),
    C("stop", BOTH, stop, "1 to 16 strings of 1 to 256 characters", read_stop),
    C("stop_token_ids", BOTH, stop_id, "up to 16 token ids of the vocabulary", read_stop_ids),
    B("include_stop_str_in_output", BOTH, include_stop),
    B("ignore_eos", BOTH, ignore_eos),
    N("min_tokens", INT, BOTH, min_tokens, 0, 1e15, false, "an integer of 0 or more"),
    N("n", INT, BOTH, n, 1, HX_MAX_CHOICES, false, "an integer from 1 to 8"),
    C("response_format", BOTH, n, "an object with type text", read_format),
    B("skip_special_tokens", BOTH, skip_special),
    B("parse_special", COMP, parse_special),
    K("user", IGNORED, BOTH),
    K("metadata", IGNORED, BOTH),
    K("store", IGNORED, BOTH),
    K("service_tier", IGNORED, BOTH),
    K("safety_identifier", IGNORED, BOTH),
    K("prompt_cache_key", IGNORED, BOTH),
    K("verbosity", IGNORED, BOTH),
    K("prediction", IGNORED, BOTH),
    K("request_id", IGNORED, BOTH),
    K("priority", IGNORED, BOTH),
    K("session_id", IGNORED, BOTH),
    K("functions", REFUSED, BOTH),
    K("function_call", REFUSED, BOTH),
    K("audio", REFUSED, BOTH),
    C("modalities", BOTH, n, NULL, read_modalities),
    K("web_search_options", REFUSED, BOTH),
    C("best_of", BOTH, n, NULL, read_best_of),
    K("use_beam_search", REFUSED, BOTH),
    K("truncate_prompt_tokens", REFUSED, BOTH),
    K("prompt_logprobs", REFUSED, BOTH),
    K("echo", REFUSED, BOTH),
    K("suffix", REFUSED, COMP),
    K("logits_processors", REFUSED, BOTH),
    K("chat_template", REFUSED, BOTH),
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static int read_int(const struct row *row, struct hx_jv v, struct hx_params *p,
                    struct hx_error *err)
{
    int64_t n;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "an integer", v, err);
    if (!hx_jv_int64(v, &n) || (double)n < row->min || (double)n > row->max)
        return bad_value(row, err);
    *(int64_t *)(void *)((char *)p + row->offset) = n;
    return 0;
}

static int read_real(const struct row *row, struct hx_jv v, struct hx_params *p,
                     struct hx_error *err)
{
    double d;
    if (hx_jv_type(v) != HX_JSON_NUMBER)
        return bad_type(row, "a number", v, err);
    if (!hx_jv_double(v, &d) || !(d >= row->min && d <= row->max) ||
        (row->above_min && d == row->min))
        return bad_value(row, err);
    *(double *)(void *)((char *)p + row->offset) = d;
    return 0;
}

static int read_row(const struct row *row, struct hx_jv v, const struct hx_params_limits *lim,
                    struct hx_params *p, struct hx_error *err)
{
    if (hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    switch (row->kind) {
    case BOOL:
        return hx_jv_bool(v, (bool *)(void *)((char *)p + row->offset))
                   ? 0
                   : bad_type(row, "a boolean", v, err);
    case INT: return read_int(row, v, p, err);
    case REAL: return read_real(row, v, p, err);
    case CUSTOM: return row->read(row, v, lim, p, err);
    case REFUSED:
        if (hx_jv_type(v) == HX_JSON_FALSE)
            return 0;
        return hx_fail_param(err, -EINVAL, row->name, "unsupported_parameter",
                             "'%s' is not supported.", row->name);
    case IGNORED: break;
    }
    return 0;
}

/* Rules between fields. */
static int check_together(struct hx_params *p, bool stream_options,
                          const struct hx_params_limits *lim, struct hx_error *err)
{
    if (p->max_completion_tokens)
        p->max_tokens = p->max_completion_tokens;
    if (stream_options && !p->stream)
        return hx_fail_param(err, -EINVAL, "stream_options", "invalid_value",
                             "'stream_options' needs 'stream': true.");
    if (p->top_logprobs > 0 && !p->logprobs)
        return hx_fail_param(err, -EINVAL, "top_logprobs", "invalid_value",
                             "'top_logprobs' needs 'logprobs': true.");
    if (p->max_tokens && p->min_tokens > p->max_tokens)
        return hx_fail_param(err, -EINVAL, "min_tokens", "invalid_value",
                             "'min_tokens' must not be above the maximum of %lld tokens.",
                             (long long)p->max_tokens);
    if (p->n > lim->max_sequences)
        return hx_fail_param(err, -EINVAL, "n", "invalid_value",
                             "'n' must not be above the %d sequences of this server.",
                             lim->max_sequences);
    if (p->top_k < 0)
        p->top_k = 0;
    if (!p->has_seed && getrandom(&p->seed, sizeof(p->seed), 0) != (ssize_t)sizeof(p->seed))
        return hx_fail(err, -EIO, "no random seed");
    return 0;
}

static int read_fields(struct hx_jv request, enum hx_endpoint endpoint,
                       const struct hx_params_limits *lim, struct hx_params *p,
                       struct hx_error *err)
{
    /* A repeated field counts once, with its last value. */
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!(rows[i].where & endpoint))
            continue;
        struct hx_jv v = hx_jv_get(request, rows[i].name);
        int r = v.doc ? read_row(&rows[i], v, lim, p, err) : 0;
        if (r < 0)
            return r;
    }
    int n_messages = 0;
    for (struct hx_jv e = hx_jv_first(request); e.doc; e = hx_jv_next(e)) {
        struct hx_jv key = hx_jv_key(e);
        bool known = false;
        n_messages += hx_jv_str_is(key, "messages");
        for (size_t i = 0; i < N_ROWS && !known; i++)
            known = (rows[i].where & endpoint) && hx_jv_str_is(key, rows[i].name);
        p->n_unknown += !known;
    }
    if (n_messages > 1)
        return hx_fail_param(err, -EINVAL, "messages", "invalid_json",
                             "the key 'messages' appears %d times.", n_messages);
    struct hx_jv options = hx_jv_get(request, "stream_options");
    return check_together(p, options.doc && hx_jv_type(options) != HX_JSON_NULL, lim, err);
}

int hx_params_read(struct hx_jv request, enum hx_endpoint endpoint,
                   const struct hx_params_limits *limits, struct hx_params *out,
                   struct hx_error *err)
{
    struct hx_params p = {.temperature = limits->temperature,
                          .top_p = limits->top_p,
                          .repetition_penalty = 1,
                          .n = 1,
                          .skip_special = true,
                          .parse_special = true,
                          .max_tokens = endpoint == HX_ENDPOINT_COMPLETION ? 16 : 0};
    if (hx_jv_type(request) != HX_JSON_OBJECT)
        return hx_fail_param(err, -EINVAL, NULL, "invalid_type",
                             "the body must be a JSON object, not %s.",
                             hx_json_type_name(hx_jv_type(request)));
    int r = read_fields(request, endpoint, limits, &p, err);
    if (r < 0) {
        hx_params_done(&p);
        return r;
    }
    *out = p;
    return 0;
}

void hx_params_done(struct hx_params *p)
{
    for (int i = 0; i < p->n_stops; i++)
        free(p->stop[i].text);
    free(p->bias);
    *p = (struct hx_params){0};
}
