/* Bodies of /chat/completions, /completions, /tokenize and /detokenize, up to the moment before the
 * engine: a generation within all bounds, or one refusal that a client can read. */
#include "fuzz.h"

#include <hx/build_facts.h>

#include "server/generation.h"

#define VOCAB         129280
#define MAX_SEQUENCES 8
#define MAX_MESSAGE   400 /* bytes; a message must not carry the request back */

typedef int (*prepare_fn)(struct hx_server *s, struct hx_jv body, const char *request_id,
                          const struct hx_encode_options *enc, struct hx_generation **out,
                          struct hx_error *err);
typedef int (*answer_fn)(struct hx_server *s, struct hx_jv body, struct hx_buf *out,
                         struct hx_error *err);

static struct hx_server *server(void)
{
    static struct hx_server s;
    struct hx_error err;
    if (s.tokenizer)
        return &s;
    if (hx_tokenizer_open(HX_BUILD_DATA "/tokenizer.json", &s.tokenizer, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    s.info = (struct hx_engine_info){.n_vocab = VOCAB,
                                     .max_context = 4096,
                                     .max_sequences = MAX_SEQUENCES,
                                     .default_temperature = 1,
                                     .default_top_p = 0.95};
    return &s;
}

static void expect_json(const struct hx_buf *text)
{
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *doc;
    struct hx_error err;
    EXPECT(!text->failed);
    EXPECT(hx_json_parse((const char *)text->data, text->len, &limits, &doc, &err) == 0);
    EXPECT(hx_jv_type(hx_json_root(doc)) == HX_JSON_OBJECT);
    hx_json_free(doc);
}

/* The fault is the client's and named as such, in a body that is JSON. */
static void expect_client_error(int r, const struct hx_error *err)
{
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    const char *type, *code;
    int status = hx_error_status(err, &type, &code);
    expect_refusal(r, err);
    EXPECT(strlen(err->text) <= MAX_MESSAGE);
    EXPECT(err->slug[0] && strcmp(err->slug, code) == 0);
    EXPECT(status == 400 || status == 404);
    hx_error_body(&body, type, code, err->param, err->text);
    expect_json(&body);
    hx_buf_done(&body);
}

static bool within(double v, double min, double max)
{
    return v >= min && v <= max;
}

static void expect_params(const struct hx_params *p)
{
    EXPECT(within(p->temperature, 0, 2));
    EXPECT(p->top_p > 0 && p->top_p <= 1);
    EXPECT(within(p->min_p, 0, 1));
    EXPECT(p->top_k >= 0 && p->top_k <= VOCAB);
    EXPECT(within(p->presence_penalty, -2, 2));
    EXPECT(within(p->frequency_penalty, -2, 2));
    EXPECT(p->repetition_penalty > 0 && p->repetition_penalty <= 2);
    EXPECT(p->n >= 1 && p->n <= MAX_SEQUENCES);
    EXPECT(p->max_tokens >= 0 && p->min_tokens >= 0);
    EXPECT(p->max_tokens == 0 || p->min_tokens <= p->max_tokens);
    EXPECT(p->top_logprobs >= 0 && p->top_logprobs <= HX_MAX_TOP_LOGPROBS);
    EXPECT(p->top_logprobs == 0 || p->logprobs);
    EXPECT(p->n_stops >= 0 && p->n_stops <= HX_MAX_STOPS);
    for (int i = 0; i < p->n_stops; i++)
        EXPECT(p->stop[i].len >= 1 && p->stop[i].len <= 4 * 256);
    EXPECT(p->n_stop_ids >= 0 && p->n_stop_ids <= HX_MAX_STOPS);
    for (int i = 0; i < p->n_stop_ids; i++)
        EXPECT(p->stop_id[i] >= 0 && p->stop_id[i] < VOCAB);
    EXPECT(p->n_bias <= HX_MAX_BIAS);
    for (size_t i = 0; i < p->n_bias; i++) {
        EXPECT(p->bias[i].token >= 0 && p->bias[i].token < VOCAB);
        EXPECT(within(p->bias[i].bias, -100, 100));
    }
}

static void expect_ids(const struct hx_ids *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        EXPECT(ids->id[i] >= 0 && ids->id[i] < VOCAB);
}

static void prepare(prepare_fn fn, struct hx_jv body)
{
    struct hx_generation *g;
    struct hx_error err = {0};
    int r = fn(server(), body, "fuzz", NULL, &g, &err);
    if (r < 0) {
        expect_client_error(r, &err);
        return;
    }
    expect_params(&g->params);
    EXPECT(g->n_prompts >= 1 && g->n_prompts * g->params.n <= HX_MAX_CHOICES);
    for (int i = 0; i < g->n_prompts; i++) {
        EXPECT(g->prompt[i].len > 0);
        expect_ids(&g->prompt[i]);
    }
    expect_ids(&g->forced);
    expect_ids(&g->forbidden);
    EXPECT(g->force_after >= -1 && g->force_after < VOCAB);
    hx_generation_free(g);
}

static void answer(answer_fn fn, struct hx_jv body)
{
    struct hx_buf out = HX_BUF_INIT(64u << 20);
    struct hx_error err = {0};
    int r = fn(server(), body, &out, &err);
    if (r < 0)
        expect_client_error(r, &err);
    else
        expect_json(&out);
    hx_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct hx_json_limits limits = {1 << 20, 1 << 16, 128, 0};
    struct hx_json *doc;
    struct hx_error err = {0};
    if (hx_json_parse((const char *)data, size, &limits, &doc, &err) < 0)
        return 0;
    struct hx_jv body = hx_json_root(doc);
    /* Any other type is refused before, once for all endpoints. */
    if (hx_jv_type(body) == HX_JSON_OBJECT) {
        prepare(hx_chat_prepare, body);
        prepare(hx_completion_prepare, body);
        answer(hx_tokenize_answer, body);
        answer(hx_detokenize_answer, body);
    }
    hx_json_free(doc);
    return 0;
}
