/* Request fields: the range, type and error of every row, and the rules between rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../alloc.h"
#include "server_run.h"

#define CHAT HX_ENDPOINT_CHAT
#define COMP HX_ENDPOINT_COMPLETION

static const struct hx_params_limits limits = {N_VOCAB, 6, 0.6, 0.9};

static int read_body(const char *body, enum hx_endpoint endpoint, struct hx_params *p,
                     struct hx_error *err)
{
    struct hx_json *doc = parse_json(body, strlen(body));
    *err = (struct hx_error){0};
    int r = hx_params_read(hx_json_root(doc), endpoint, &limits, p, err);
    hx_json_free(doc);
    return r;
}

static struct hx_params accepted(const char *body, enum hx_endpoint endpoint)
{
    struct hx_params p;
    struct hx_error err;
    if (read_body(body, endpoint, &p, &err) < 0)
        fail_msg("%s: %s", body, err.text);
    return p;
}

static void accept_only(const char *body, enum hx_endpoint endpoint)
{
    struct hx_params p = accepted(body, endpoint);
    hx_params_done(&p);
}

/* Refused for this field with this code, by a message that names the field; out is untouched. */
static void refused(const char *body, enum hx_endpoint endpoint, const char *param,
                    const char *slug)
{
    struct hx_params p, before;
    struct hx_error err;
    memset(&p, 0x5A, sizeof(p));
    memcpy(&before, &p, sizeof(p));
    if (read_body(body, endpoint, &p, &err) != -EINVAL)
        fail_msg("%s: is not refused", body);
    if (strcmp(err.slug, slug) != 0 || strcmp(err.param, param) != 0)
        fail_msg("%s: %s of '%s', not %s of '%s'", body, err.slug, err.param, slug, param);
    if (!strstr(err.text, param))
        fail_msg("%s: the message does not name '%s': %s", body, param, err.text);
    assert_memory_equal(&p, &before, sizeof(p));
}

static const char *body_of(const char *name, const char *value)
{
    static char text[16384];
    int n = snprintf(text, sizeof(text), "{\"logprobs\":true,\"%s\":%s}", name, value);
    assert_true(n > 0 && (size_t)n < sizeof(text));
    return text;
}

static void test_defaults(void **state)
{
    (void)state;
    struct hx_params p = accepted("{}", CHAT);
    assert_true(!p.stream && !p.include_usage && !p.continuous_usage && !p.logprobs);
    assert_true(!p.include_stop && !p.ignore_eos && p.skip_special && p.parse_special);
    assert_int_equal(p.max_tokens, 0);
    assert_int_equal(p.min_tokens, 0);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.top_k, 0);
    assert_int_equal(p.top_logprobs, 0);
    assert_true(p.temperature == 0.6 && p.top_p == 0.9 && p.min_p == 0);
    assert_true(p.presence_penalty == 0 && p.frequency_penalty == 0 && p.repetition_penalty == 1);
    assert_true(!p.has_seed && p.n_stops == 0 && p.n_stop_ids == 0 && p.n_bias == 0);
    hx_params_done(&p);
    p = accepted("{}", COMP);
    assert_int_equal(p.max_tokens, 16);
    hx_params_done(&p);
}

static void test_random_seeds_differ(void **state)
{
    (void)state;
    struct hx_params a = accepted("{}", CHAT), b = accepted("{\"seed\":null}", CHAT);
    assert_true(a.seed != b.seed);
    hx_params_done(&a);
    hx_params_done(&b);
}

struct number {
    const char *name, *low, *high; /* the outermost values allowed */
    const char *below, *above;     /* the first ones refused */
    size_t offset;
    double low_is, high_is;
};

#define AT(f) offsetof(struct hx_params, f)

static const struct number reals[] = {
    {"temperature", "0", "2", "-0.0001", "2.0001", AT(temperature), 0, 2},
    {"top_p", "1e-9", "1.0", "0", "1.0001", AT(top_p), 1e-9, 1},
    {"min_p", "0", "1", "-1e-9", "1.1", AT(min_p), 0, 1},
    {"presence_penalty", "-2", "2", "-2.01", "2.01", AT(presence_penalty), -2, 2},
    {"frequency_penalty", "-2.0", "2e0", "-3", "1e400", AT(frequency_penalty), -2, 2},
    {"repetition_penalty", "0.01", "2", "0", "2.5", AT(repetition_penalty), 0.01, 2},
};

static const struct number ints[] = {
    {"top_k", "0", "129280", "-2", "129281", AT(top_k), 0, 129280},
    {"top_logprobs", "0", "20", "-1", "21", AT(top_logprobs), 0, 20},
    {"min_tokens", "0", "5.0", "-1", "9223372036854775808", AT(min_tokens), 0, 5},
    {"n", "1", "6", "0", "9", AT(n), 1, 6},
};

static double value_at(const struct hx_params *p, const struct number *f, bool integer)
{
    const char *at = (const char *)p + f->offset;
    int64_t i;
    double d;
    if (!integer) {
        memcpy(&d, at, sizeof(d));
        return d;
    }
    memcpy(&i, at, sizeof(i));
    return (double)i;
}

static void check_number(const struct number *f, bool integer)
{
    static const char *const other_types[] = {"\"1\"", "true", "[]", "{}"};
    struct hx_params p = accepted(body_of(f->name, f->low), CHAT);
    assert_true(value_at(&p, f, integer) == f->low_is);
    hx_params_done(&p);
    p = accepted(body_of(f->name, f->high), CHAT);
    assert_true(value_at(&p, f, integer) == f->high_is);
    hx_params_done(&p);
    refused(body_of(f->name, f->below), CHAT, f->name, "invalid_value");
    refused(body_of(f->name, f->above), CHAT, f->name, "invalid_value");
    for (int i = 0; i < 4; i++)
        refused(body_of(f->name, other_types[i]), CHAT, f->name, "invalid_type");
    accept_only(body_of(f->name, "null"), CHAT);
}

static void test_real_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
        check_number(&reals[i], false);
}

static void test_integers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++) {
        check_number(&ints[i], true);
        refused(body_of(ints[i].name, "1.5"), CHAT, ints[i].name, "invalid_value");
    }
    struct hx_params p = accepted("{\"top_k\":-1}", CHAT);
    assert_int_equal(p.top_k, 0);
    hx_params_done(&p);
}

static void test_booleans(void **state)
{
    static const struct {
        const char *name;
        size_t offset;
        unsigned where;
    } rows[] = {{"stream", AT(stream), CHAT | COMP},
                {"logprobs", AT(logprobs), CHAT},
                {"include_stop_str_in_output", AT(include_stop), CHAT | COMP},
                {"ignore_eos", AT(ignore_eos), CHAT | COMP},
                {"skip_special_tokens", AT(skip_special), CHAT | COMP},
                {"parse_special", AT(parse_special), COMP}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (unsigned where = CHAT; where <= COMP; where++) {
            char body[128];
            if (!(rows[i].where & where))
                continue;
            for (int value = 0; value < 2; value++) {
                snprintf(body, sizeof(body), "{\"%s\":%s}", rows[i].name, value ? "true" : "false");
                struct hx_params p = accepted(body, (enum hx_endpoint)where);
                assert_int_equal(((const char *)&p)[rows[i].offset], value);
                hx_params_done(&p);
            }
            snprintf(body, sizeof(body), "{\"%s\":1}", rows[i].name);
            refused(body, (enum hx_endpoint)where, rows[i].name, "invalid_type");
        }
    }
}

static void test_token_limits(void **state)
{
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    static const struct {
        const char *value;
        int64_t tokens; /* -1: refused */
    } rows[] = {{"1", 1},  {"-1", 0},  {"7.0", 7},  {"9000000000000", 9000000000000},
                {"0", -1}, {"-2", -1}, {"1.5", -1}, {"1e30", -1}};
    (void)state;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            const char *body = body_of(names[k], rows[i].value);
            if (rows[i].tokens < 0) {
                refused(body, CHAT, names[k], "invalid_value");
                continue;
            }
            struct hx_params p = accepted(body, CHAT);
            assert_int_equal(p.max_tokens, rows[i].tokens);
            hx_params_done(&p);
        }
        refused(body_of(names[k], "\"5\""), CHAT, names[k], "invalid_type");
    }
    struct hx_params p = accepted("{\"max_tokens\":5,\"max_completion_tokens\":9}", CHAT);
    assert_int_equal(p.max_tokens, 9);
    hx_params_done(&p);
    /* -1 asks for the default of the endpoint's rest of the context, not for 16. */
    p = accepted("{\"max_tokens\":-1}", COMP);
    assert_int_equal(p.max_tokens, 0);
    hx_params_done(&p);
}

static void test_seed(void **state)
{
    (void)state;
    struct hx_params p = accepted("{\"seed\":-9223372036854775808}", CHAT);
    assert_true(p.has_seed && p.seed == (uint64_t)1 << 63);
    hx_params_done(&p);
    p = accepted("{\"seed\":9223372036854775807}", COMP);
    assert_true(p.has_seed && p.seed == ((uint64_t)1 << 63) - 1);
    hx_params_done(&p);
    refused("{\"seed\":9223372036854775808}", CHAT, "seed", "invalid_value");
    refused("{\"seed\":0.5}", CHAT, "seed", "invalid_value");
    refused("{\"seed\":\"1\"}", CHAT, "seed", "invalid_type");
}

static void test_logit_bias(void **state)
{
    static const char *const keys[] = {"129280", "-1",         "01",           "", "x", " 1",
                                       "1.0",    "4294967296", "9999999999999"};
    (void)state;
    struct hx_params p = accepted("{\"logit_bias\":{\"0\":-100,\"129279\":100,\"7\":0.5}}", CHAT);
    assert_int_equal(p.n_bias, 3);
    assert_true(p.bias[0].token == 0 && p.bias[0].bias == -100);
    assert_true(p.bias[1].token == 129279 && p.bias[1].bias == 100);
    assert_true(p.bias[2].token == 7 && p.bias[2].bias == 0.5f);
    hx_params_done(&p);
    accept_only("{\"logit_bias\":{}}", CHAT);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char body[64];
        snprintf(body, sizeof(body), "{\"logit_bias\":{\"%s\":1}}", keys[i]);
        refused(body, CHAT, "logit_bias", "invalid_value");
    }
    refused("{\"logit_bias\":{\"1\":100.1}}", CHAT, "logit_bias", "invalid_value");
    refused("{\"logit_bias\":{\"1\":-101}}", COMP, "logit_bias", "invalid_value");
    refused("{\"logit_bias\":{\"1\":\"1\"}}", CHAT, "logit_bias", "invalid_type");
    refused("{\"logit_bias\":[]}", CHAT, "logit_bias", "invalid_type");
}

/* {"1":0,"2":0,...} */
static void many_biases(char *to, size_t cap, int n)
{
    size_t len = (size_t)snprintf(to, cap, "{\"logit_bias\":{");
    for (int i = 0; i < n; i++)
        len += (size_t)snprintf(to + len, cap - len, i ? ",\"%d\":0" : "\"%d\":0", i);
    len += (size_t)snprintf(to + len, cap - len, "}}");
    assert_true(len < cap);
}

static void test_logit_bias_count(void **state)
{
    static char body[32768];
    (void)state;
    many_biases(body, sizeof(body), HX_MAX_BIAS);
    struct hx_params p = accepted(body, CHAT);
    assert_int_equal(p.n_bias, HX_MAX_BIAS);
    hx_params_done(&p);
    many_biases(body, sizeof(body), HX_MAX_BIAS + 1);
    refused(body, CHAT, "logit_bias", "invalid_value");
}

static const char *repeated(const char *unit, int n, const char *between)
{
    static char text[8192];
    size_t len = 0;
    text[0] = '\0';
    for (int i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? between : "", unit);
    assert_true(len < sizeof(text));
    return text;
}

static void test_stop_strings(void **state)
{
    char value[8192];
    (void)state;
    struct hx_params p = accepted("{\"stop\":\"a\\u0000b\"}", CHAT);
    assert_int_equal(p.n_stops, 1);
    assert_int_equal(p.stop[0].len, 3);
    assert_memory_equal(p.stop[0].text, "a\0b", 3);
    hx_params_done(&p);
    /* Characters count, not bytes. */
    snprintf(value, sizeof(value), "\"%s\"", repeated("é", 256, ""));
    p = accepted(body_of("stop", value), CHAT);
    assert_int_equal(p.stop[0].len, 512);
    hx_params_done(&p);
    snprintf(value, sizeof(value), "\"%s\"", repeated("é", 257, ""));
    refused(body_of("stop", value), CHAT, "stop", "invalid_value");
    snprintf(value, sizeof(value), "[%s]", repeated("\"x\"", 16, ","));
    p = accepted(body_of("stop", value), CHAT);
    assert_int_equal(p.n_stops, 16);
    hx_params_done(&p);
    snprintf(value, sizeof(value), "[%s]", repeated("\"x\"", 17, ","));
    refused(body_of("stop", value), CHAT, "stop", "invalid_value");
    accept_only("{\"stop\":[]}", CHAT);
    refused("{\"stop\":\"\"}", CHAT, "stop", "invalid_value");
    refused("{\"stop\":[\"a\",\"\"]}", COMP, "stop", "invalid_value");
    refused("{\"stop\":5}", CHAT, "stop", "invalid_type");
    refused("{\"stop\":[\"a\",null]}", CHAT, "stop", "invalid_type");
    refused("{\"stop\":{\"a\":1}}", CHAT, "stop", "invalid_type");
}

static void test_stop_ids(void **state)
{
    char value[512];
    (void)state;
    struct hx_params p = accepted("{\"stop_token_ids\":[0,129279,5.0]}", CHAT);
    assert_int_equal(p.n_stop_ids, 3);
    assert_int_equal(p.stop_id[1], 129279);
    assert_int_equal(p.stop_id[2], 5);
    hx_params_done(&p);
    snprintf(value, sizeof(value), "[%s]", repeated("1", 16, ","));
    accept_only(body_of("stop_token_ids", value), CHAT);
    snprintf(value, sizeof(value), "[%s]", repeated("1", 17, ","));
    refused(body_of("stop_token_ids", value), CHAT, "stop_token_ids", "invalid_value");
    refused("{\"stop_token_ids\":[129280]}", CHAT, "stop_token_ids", "invalid_value");
    refused("{\"stop_token_ids\":[-1]}", CHAT, "stop_token_ids", "invalid_value");
    refused("{\"stop_token_ids\":[\"1\"]}", CHAT, "stop_token_ids", "invalid_type");
    refused("{\"stop_token_ids\":1}", CHAT, "stop_token_ids", "invalid_type");
}

static void test_completion_logprobs(void **state)
{
    (void)state;
    struct hx_params p = accepted("{\"logprobs\":0}", COMP);
    assert_true(p.logprobs && p.top_logprobs == 0);
    hx_params_done(&p);
    p = accepted("{\"logprobs\":20}", COMP);
    assert_true(p.logprobs && p.top_logprobs == 20);
    hx_params_done(&p);
    refused("{\"logprobs\":21}", COMP, "logprobs", "invalid_value");
    refused("{\"logprobs\":-1}", COMP, "logprobs", "invalid_value");
    refused("{\"logprobs\":true}", COMP, "logprobs", "invalid_type");
    refused("{\"logprobs\":5}", CHAT, "logprobs", "invalid_type");
}

static void test_stream_options(void **state)
{
    (void)state;
    struct hx_params p = accepted("{\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                                  "\"continuous_usage_stats\":true,\"other\":1}}",
                                  CHAT);
    assert_true(p.include_usage && p.continuous_usage);
    hx_params_done(&p);
    p = accepted("{\"stream\":true,\"stream_options\":{\"include_usage\":null}}", COMP);
    assert_true(!p.include_usage);
    hx_params_done(&p);
    accept_only("{\"stream_options\":null}", CHAT);
    refused("{\"stream_options\":{}}", CHAT, "stream_options", "invalid_value");
    refused("{\"stream\":false,\"stream_options\":{\"include_usage\":true}}", CHAT,
            "stream_options", "invalid_value");
    refused("{\"stream\":true,\"stream_options\":[]}", CHAT, "stream_options", "invalid_type");
    refused("{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", CHAT, "stream_options",
            "invalid_type");
}

static void test_rules_between_fields(void **state)
{
    (void)state;
    refused("{\"top_logprobs\":1}", CHAT, "top_logprobs", "invalid_value");
    refused("{\"top_logprobs\":1,\"logprobs\":false}", CHAT, "top_logprobs", "invalid_value");
    accept_only("{\"top_logprobs\":0}", CHAT);
    refused("{\"min_tokens\":6,\"max_tokens\":5}", CHAT, "min_tokens", "invalid_value");
    refused("{\"min_tokens\":6,\"max_tokens\":9,\"max_completion_tokens\":5}", CHAT, "min_tokens",
            "invalid_value");
    accept_only("{\"min_tokens\":5,\"max_tokens\":5}", CHAT);
    accept_only("{\"min_tokens\":500}", CHAT);
    refused("{\"min_tokens\":17}", COMP, "min_tokens", "invalid_value");
    /* In range, but above the sequences of this server. */
    refused("{\"n\":7}", CHAT, "n", "invalid_value");
}

static void test_unsupported_fields(void **state)
{
    static const char *const both[] = {
        "functions",         "function_call",          "audio",           "web_search_options",
        "use_beam_search",   "truncate_prompt_tokens", "prompt_logprobs", "echo",
        "logits_processors", "chat_template"};
    (void)state;
    for (size_t i = 0; i < sizeof(both) / sizeof(both[0]); i++) {
        refused(body_of(both[i], "1"), CHAT, both[i], "unsupported_parameter");
        accept_only(body_of(both[i], "null"), CHAT);
        accept_only(body_of(both[i], "false"), CHAT);
    }
    refused("{\"echo\":true}", COMP, "echo", "unsupported_parameter");
    refused("{\"suffix\":\"x\"}", COMP, "suffix", "unsupported_parameter");
    refused("{\"best_of\":2}", CHAT, "best_of", "unsupported_parameter");
    refused("{\"best_of\":\"2\"}", CHAT, "best_of", "invalid_type");
    accept_only("{\"best_of\":1}", COMP);
}

static void test_formats_and_modalities(void **state)
{
    (void)state;
    accept_only("{\"response_format\":{\"type\":\"text\"}}", CHAT);
    refused("{\"response_format\":{\"type\":\"json_object\"}}", CHAT, "response_format",
            "unsupported_parameter");
    refused("{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", CHAT,
            "response_format", "unsupported_parameter");
    refused("{\"response_format\":{\"type\":\"yaml\"}}", CHAT, "response_format", "invalid_value");
    refused("{\"response_format\":{}}", CHAT, "response_format", "invalid_value");
    refused("{\"response_format\":\"text\"}", CHAT, "response_format", "invalid_type");
    accept_only("{\"modalities\":[\"text\"]}", CHAT);
    refused("{\"modalities\":[\"text\",\"audio\"]}", CHAT, "modalities", "unsupported_parameter");
    refused("{\"modalities\":\"text\"}", CHAT, "modalities", "invalid_type");
}

static void test_ignored_fields(void **state)
{
    static const char *const names[] = {"user",         "metadata",          "store",
                                        "service_tier", "safety_identifier", "prompt_cache_key",
                                        "verbosity",    "prediction",        "request_id",
                                        "priority",     "session_id"};
    static const char *const values[] = {"1", "\"x\"", "[{}]", "{\"a\":[1]}", "true", "null"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (int k = 0; k < 6; k++) {
            char body[128];
            snprintf(body, sizeof(body), "{\"%s\":%s}", names[i], values[k]);
            struct hx_params p = accepted(body, CHAT);
            assert_int_equal(p.n_unknown, 0);
            hx_params_done(&p);
        }
    }
}

static void test_unknown_fields_count(void **state)
{
    (void)state;
    struct hx_params p =
        accepted("{\"x\":1,\"Temperature\":9,\"\":{},\"messages\":[],\"x\":2}", CHAT);
    assert_int_equal(p.n_unknown, 4);
    assert_true(p.temperature == 0.6);
    hx_params_done(&p);
    /* Fields of the other endpoint are unknown here. */
    p = accepted("{\"prompt\":\"x\",\"suffix\":\"x\"}", CHAT);
    assert_int_equal(p.n_unknown, 2);
    hx_params_done(&p);
}

static void test_repeated_fields(void **state)
{
    (void)state;
    struct hx_params p = accepted("{\"stop\":\"a\",\"n\":9,\"stop\":[\"b\",\"c\"],\"n\":2}", CHAT);
    assert_int_equal(p.n_stops, 2);
    assert_int_equal(p.n, 2);
    hx_params_done(&p);
    refused("{\"messages\":[],\"messages\":[]}", CHAT, "messages", "invalid_json");
}

static void test_body_is_an_object(void **state)
{
    static const char *const bodies[] = {"[]", "1", "\"x\"", "null", "true"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct hx_params p;
        struct hx_error err;
        assert_int_equal(read_body(bodies[i], CHAT, &p, &err), -EINVAL);
        assert_string_equal(err.slug, "invalid_type");
        assert_string_equal(err.param, "");
    }
}

#if HX_TEST_ALLOC
static void test_out_of_memory(void **state)
{
    static const char body[] = "{\"stop\":[\"a\",\"b\",\"c\"],\"logit_bias\":{\"1\":1,\"2\":2}}";
    struct hx_json *doc = parse_json(body, strlen(body));
    bool failed = true;
    int n = 0;
    (void)state;
    while (failed) {
        struct hx_params p;
        struct hx_error err = {0};
        long held = alloc_held;
        alloc_fail_at(n++);
        int r = hx_params_read(hx_json_root(doc), CHAT, &limits, &p, &err);
        failed = alloc_fail_end();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (r == 0)
            hx_params_done(&p);
        assert_int_equal(alloc_held, held);
    }
    assert_int_equal(n, 5); /* four allocations, then none failed */
    hx_json_free(doc);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_random_seeds_differ),
        cmocka_unit_test(test_real_numbers),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_booleans),
        cmocka_unit_test(test_token_limits),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_logit_bias_count),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_completion_logprobs),
        cmocka_unit_test(test_stream_options),
        cmocka_unit_test(test_rules_between_fields),
        cmocka_unit_test(test_unsupported_fields),
        cmocka_unit_test(test_formats_and_modalities),
        cmocka_unit_test(test_ignored_fields),
        cmocka_unit_test(test_unknown_fields_count),
        cmocka_unit_test(test_repeated_fields),
        cmocka_unit_test(test_body_is_an_object),
#if HX_TEST_ALLOC
        cmocka_unit_test(test_out_of_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
