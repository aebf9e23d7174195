/* Events of a stream and whole answers, byte for byte where clients depend on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/sse.h"

#include "server_run.h"

#define ASK        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define MAX_EVENTS 32

/* The events of a stream, parsed. */
struct stream {
    struct hx_json *doc[MAX_EVENTS];
    int n;
};

static struct stream read_stream(struct hx_buf *b)
{
    struct stream s = {0};
    char *text = hx_buf_cstr(b);
    assert_non_null(text);
    while (*text) {
        char *end = strstr(text, "\n\n");
        assert_non_null(end);
        assert_true(strncmp(text, "data: ", 6) == 0 && s.n < MAX_EVENTS);
        assert_null(memchr(text, '\n', (size_t)(end - text)));
        s.doc[s.n++] = parse_json(text + 6, (size_t)(end - text) - 6);
        text = end + 2;
    }
    hx_buf_done(b);
    return s;
}

static void stream_done(struct stream *s)
{
    for (int i = 0; i < s->n; i++)
        hx_json_free(s->doc[i]);
}

static struct hx_jv choice_of(const struct stream *s, int i)
{
    struct hx_jv list = hx_jv_get(hx_json_root(s->doc[i]), "choices");
    assert_int_equal(hx_jv_count(list), 1);
    return hx_jv_first(list);
}

static struct hx_jv delta_of(const struct stream *s, int i)
{
    return hx_jv_get(choice_of(s, i), "delta");
}

static bool is_null(struct hx_jv v)
{
    return hx_jv_type(v) == HX_JSON_NULL;
}

/* Everything that the first choice has to say now. */
static struct stream chunks(struct hx_generation *g)
{
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    g->format->chunks(g, 0, &out);
    return read_stream(&out);
}

static void test_events(void **state)
{
    struct hx_buf out = HX_BUF_INIT(1 << 10);
    (void)state;
    hx_sse_begin(&out);
    hx_buf_puts(&out, "{}");
    hx_sse_end(&out);
    hx_sse_comment(&out, "keep-alive");
    hx_sse_done(&out);
    assert_string_equal(hx_buf_cstr(&out), "data: {}\n\n: keep-alive\n\ndata: [DONE]\n\n");
    hx_buf_done(&out);
}

static void test_order_of_chunks(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" ASK ",\"stream\":true}");
    struct stream s = chunks(g);
    assert_int_equal(s.n, 0); /* before the first token there is no role */
    feed(&g->choice[0], "why</think>\"é\"\n");
    end_ok(&g->choice[0], HX_END_TOKEN);
    s = chunks(g);
    assert_int_equal(s.n, 4);
    assert_true(hx_jv_str_is(hx_jv_get(delta_of(&s, 0), "role"), "assistant"));
    assert_true(hx_jv_str_is(hx_jv_get(delta_of(&s, 0), "content"), ""));
    assert_true(hx_jv_str_is(hx_jv_get(delta_of(&s, 1), "reasoning_content"), "why"));
    assert_true(hx_jv_str_is(hx_jv_get(delta_of(&s, 2), "content"), "\"é\"\n"));
    assert_int_equal(hx_jv_count(delta_of(&s, 1)), 1);
    assert_int_equal(hx_jv_count(delta_of(&s, 2)), 1);
    assert_int_equal(hx_jv_count(delta_of(&s, 3)), 0);
    for (int i = 0; i < 4; i++) {
        struct hx_jv root = hx_json_root(s.doc[i]);
        int64_t index;
        assert_true(hx_jv_str_is(hx_jv_get(root, "object"), "chat.completion.chunk"));
        assert_true(hx_jv_str_is(hx_jv_get(root, "id"), g->id));
        assert_true(hx_jv_str_is(hx_jv_get(root, "model"), HX_MODEL_NAME));
        assert_true(hx_jv_str_is(hx_jv_get(root, "system_fingerprint"), "print"));
        assert_true(hx_jv_int64(hx_jv_get(choice_of(&s, i), "index"), &index) && index == 0);
        assert_false(hx_jv_get(root, "usage").doc);
        assert_int_equal(is_null(hx_jv_get(choice_of(&s, i), "finish_reason")), i < 3);
    }
    assert_true(hx_jv_str_is(hx_jv_get(choice_of(&s, 3), "finish_reason"), "stop"));
    stream_done(&s);
    s = chunks(g);
    assert_int_equal(s.n, 0); /* the end is said once */
    hx_generation_free(g);
}

static void test_usage_in_chunks(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(
        hx_chat_prepare, "{" ASK ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    feed(&g->choice[0], "a");
    struct stream s = chunks(g);
    assert_int_equal(s.n, 2);
    for (int i = 0; i < s.n; i++)
        assert_true(is_null(hx_jv_get(hx_json_root(s.doc[i]), "usage")));
    stream_done(&s);
    hx_generation_free(g);
    g = prepare(hx_chat_prepare,
                "{" ASK ",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}");
    feed(&g->choice[0], "a");
    s = chunks(g);
    struct hx_jv u = hx_jv_get(hx_json_root(s.doc[1]), "usage");
    int64_t prompt, generated, total, reasoning;
    assert_true(hx_jv_int64(hx_jv_get(u, "prompt_tokens"), &prompt));
    assert_true(hx_jv_int64(hx_jv_get(u, "completion_tokens"), &generated));
    assert_true(hx_jv_int64(hx_jv_get(u, "total_tokens"), &total));
    assert_true(hx_jv_int64(
        hx_jv_get(hx_jv_get(u, "completion_tokens_details"), "reasoning_tokens"), &reasoning));
    assert_int_equal(prompt, g->prompt[0].len);
    assert_int_equal(generated, 1);
    assert_int_equal(reasoning, 1);
    assert_int_equal(total, prompt + generated);
    stream_done(&s);
    hx_generation_free(g);
}

static void test_reasoning_field(void **state)
{
    static const struct {
        int option;
        bool content, plain;
    } rows[] = {{HX_REASONING_CONTENT, true, false},
                {HX_REASONING_PLAIN, false, true},
                {HX_REASONING_BOTH, true, true}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        test_server()->opt.reasoning_field = rows[i].option;
        struct hx_generation *g = prepare(hx_chat_prepare, "{" ASK ",\"stream\":true}");
        feed(&g->choice[0], "why");
        struct stream s = chunks(g);
        struct hx_jv d = delta_of(&s, 1);
        assert_int_equal(hx_jv_str_is(hx_jv_get(d, "reasoning_content"), "why"), rows[i].content);
        assert_int_equal(hx_jv_str_is(hx_jv_get(d, "reasoning"), "why"), rows[i].plain);
        assert_int_equal(hx_jv_count(d), rows[i].content + rows[i].plain);
        stream_done(&s);
        hx_generation_free(g);
    }
    test_server()->opt.reasoning_field = HX_REASONING_CONTENT;
}

static void test_call_chunks(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(
        hx_chat_prepare, "{" ASK ",\"stream\":true,\"thinking\":{\"type\":\"disabled\"},\"tools\":["
                         "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}");
    feed(&g->choice[0], "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
                        "name=\"a\" string=\"true\">b</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
                        "</｜DSML｜ calls>");
    end_ok(&g->choice[0], HX_END_TOKEN);
    struct stream s = chunks(g);
    assert_true(s.n >= 4);
    struct hx_jv call = hx_jv_first(hx_jv_get(delta_of(&s, 1), "tool_calls"));
    struct hx_jv f = hx_jv_get(call, "function");
    int64_t index;
    assert_true(hx_jv_int64(hx_jv_get(call, "index"), &index) && index == 0);
    assert_true(hx_jv_str_is(hx_jv_get(call, "type"), "function"));
    assert_true(hx_jv_str_is(hx_jv_get(f, "name"), "f"));
    assert_true(hx_jv_str_is(hx_jv_get(f, "arguments"), ""));
    assert_int_equal(hx_jv_type(hx_jv_get(call, "id")), HX_JSON_STRING);
    char arguments[64];
    size_t n = 0;
    for (int i = 2; i < s.n - 1; i++) {
        size_t len;
        call = hx_jv_first(hx_jv_get(delta_of(&s, i), "tool_calls"));
        assert_false(hx_jv_get(call, "id").doc || hx_jv_get(call, "type").doc);
        assert_true(hx_jv_int64(hx_jv_get(call, "index"), &index) && index == 0);
        f = hx_jv_get(call, "function");
        assert_false(hx_jv_get(f, "name").doc);
        const char *part = hx_jv_str(hx_jv_get(f, "arguments"), &len);
        assert_true(part && len && n + len < sizeof(arguments));
        memcpy(arguments + n, part, len);
        n += len;
    }
    arguments[n] = '\0';
    assert_string_equal(arguments, "{\"a\": \"b\"}");
    assert_true(hx_jv_str_is(hx_jv_get(choice_of(&s, s.n - 1), "finish_reason"), "tool_calls"));
    stream_done(&s);
    hx_generation_free(g);
}

static void test_whole_chat_answer(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" ASK ",\"logprobs\":true}");
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    feed(&g->choice[0], "why</think>because");
    end_ok(&g->choice[0], HX_END_LENGTH);
    hx_jw_init(&w, &out, false);
    g->format->whole(g, 0, &w);
    struct hx_json *doc = parse_json((const char *)out.data, out.len);
    struct hx_jv c = hx_json_root(doc), m = hx_jv_get(c, "message");
    assert_true(hx_jv_str_is(hx_jv_get(m, "role"), "assistant"));
    assert_true(hx_jv_str_is(hx_jv_get(m, "content"), "because"));
    assert_true(hx_jv_str_is(hx_jv_get(m, "reasoning_content"), "why"));
    assert_true(is_null(hx_jv_get(m, "refusal")) && !hx_jv_get(m, "tool_calls").doc);
    assert_true(hx_jv_count(hx_jv_get(hx_jv_get(c, "logprobs"), "content")) >= 1);
    assert_true(hx_jv_str_is(hx_jv_get(c, "finish_reason"), "length"));
    hx_json_free(doc);
    hx_buf_done(&out);
    hx_generation_free(g);
}

static void test_empty_answer(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_chat_prepare, "{" ASK ",\"thinking\":{\"type\":\"disabled\"}}");
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    end_ok(&g->choice[0], HX_END_TOKEN);
    hx_jw_init(&w, &out, false);
    g->format->whole(g, 0, &w);
    struct hx_json *doc = parse_json((const char *)out.data, out.len);
    struct hx_jv m = hx_jv_get(hx_json_root(doc), "message");
    assert_true(hx_jv_str_is(hx_jv_get(m, "content"), ""));
    assert_false(hx_jv_get(m, "reasoning_content").doc);
    assert_true(is_null(hx_jv_get(hx_json_root(doc), "logprobs")));
    hx_json_free(doc);
    hx_buf_done(&out);
    hx_generation_free(g);
}

static void test_completion_chunks(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_completion_prepare, "{\"prompt\":\"x\",\"stream\":true,\"logprobs\":0}");
    feed(&g->choice[0], "one");
    struct stream s = chunks(g);
    assert_int_equal(s.n, 1);
    assert_true(hx_jv_str_is(hx_jv_get(hx_json_root(s.doc[0]), "object"), "text_completion"));
    assert_true(hx_jv_str_is(hx_jv_get(choice_of(&s, 0), "text"), "one"));
    assert_false(hx_jv_get(choice_of(&s, 0), "delta").doc);
    struct hx_jv lp = hx_jv_get(choice_of(&s, 0), "logprobs");
    assert_int_equal(hx_jv_count(lp), 4);
    for (struct hx_jv v = hx_jv_first(lp); v.doc; v = hx_jv_next(v))
        assert_int_equal(hx_jv_count(v), 1);
    stream_done(&s);
    s = chunks(g);
    assert_int_equal(s.n, 0);
    end_ok(&g->choice[0], HX_END_LENGTH);
    s = chunks(g);
    assert_int_equal(s.n, 1);
    assert_true(hx_jv_str_is(hx_jv_get(choice_of(&s, 0), "text"), ""));
    assert_true(hx_jv_str_is(hx_jv_get(choice_of(&s, 0), "finish_reason"), "length"));
    stream_done(&s);
    s = chunks(g);
    assert_int_equal(s.n, 0);
    hx_generation_free(g);
}

static int teardown(void **state)
{
    (void)state;
    test_server_done();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),          cmocka_unit_test(test_order_of_chunks),
        cmocka_unit_test(test_usage_in_chunks), cmocka_unit_test(test_reasoning_field),
        cmocka_unit_test(test_call_chunks),     cmocka_unit_test(test_whole_chat_answer),
        cmocka_unit_test(test_empty_answer),    cmocka_unit_test(test_completion_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
