/* Requests to prompts, and every malformed request to one clear error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include <hx/chat.h>

#include "base/buf.h"

#include "chat_data.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define TOOLS    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}}]"

static int ask(const char *text, enum hx_effort_table table, struct hx_chat *c,
               struct hx_error *err)
{
    struct hx_json *doc = parse_json(text, strlen(text));
    int r = hx_chat_from_request(hx_json_root(doc), table, c, err);
    hx_json_free(doc);
    return r;
}

static void test_golden_requests(void **state)
{
    (void)state;
    struct hx_json *doc = load_json("tests/vectors/chat/requests.json");
    unsigned n = 0;
    struct hx_jv cases = hx_jv_get(hx_json_root(doc), "cases");
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c), n++) {
        struct hx_chat chat;
        struct hx_error err = {0};
        char id[64];
        snprintf(id, sizeof(id), "%s", text_of(c, "id"));
        int r = hx_chat_from_request(hx_jv_get(c, "request"), HX_EFFORT_RELEASE, &chat, &err);
        size_t len;
        const char *want = hx_jv_str(hx_jv_get(c, "prompt"), &len);
        if (!want) {
            if (r != -EINVAL || !err.slug[0] || strcmp(err.param, text_of(c, "param")) != 0)
                fail_msg("%s: %d, param '%s', code '%s'", id, r, err.param, err.slug);
            continue;
        }
        if (r < 0)
            fail_msg("%s: %s", id, err.text);
        if (chat.prompt.text.len != len || memcmp(chat.prompt.text.data, want, len) != 0)
            fail_msg("%s:\n--- want\n%.*s\n--- got\n%.*s", id, (int)len, want,
                     (int)chat.prompt.text.len, (char *)chat.prompt.text.data);
        hx_chat_done(&chat);
    }
    hx_json_free(doc);
    assert_int_equal(n, 51);
}

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *param, *slug;
    } row[] = {
        {"[]", "", "invalid_type"},
        {"{}", "messages", "missing_required_parameter"},
        {"{\"messages\":null}", "messages", "missing_required_parameter"},
        {"{\"messages\":{}}", "messages", "invalid_type"},
        {"{\"messages\":[]}", "messages", "invalid_value"},
        {"{\"messages\":[1]}", "messages", "invalid_type"},
        {"{" MESSAGES "," MESSAGES "}", "messages", "invalid_json"},
        {"{\"messages\":[{}]}", "messages[].role", "missing_required_parameter"},
        {"{\"messages\":[{\"role\":7}]}", "messages[].role", "invalid_type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[].content",
         "invalid_type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "messages[].content",
         "invalid_type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[].content", "invalid_type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
         "{\"url\":\"http://a.example/b.png\"}}]}]}",
         "messages[].content", "image_url_not_allowed"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[].content", "invalid_image"},
        {"{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":[]}]}",
         "messages[].reasoning_content", "invalid_type"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[].tool_calls",
         "invalid_type"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages[].tool_calls",
         "invalid_type"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
         "messages[].tool_calls", "invalid_value"},
        {"{\"messages\":[{\"role\":\"assistant\",\"prefix\":1}]}", "messages[].prefix",
         "invalid_type"},
        {"{" MESSAGES ",\"reasoning_effort\":1e400}", "reasoning_effort", "invalid_value"},
        {"{" MESSAGES ",\"reasoning_effort\":99999999999999999999}", "reasoning_effort",
         "invalid_value"},
        {"{" MESSAGES ",\"reasoning\":7}", "reasoning", "invalid_type"},
        {"{" MESSAGES ",\"reasoning\":{\"effort\":\"tiny\"}}", "reasoning.effort", "invalid_value"},
        {"{" MESSAGES ",\"thinking\":true}", "thinking", "invalid_type"},
        {"{" MESSAGES ",\"chat_template_kwargs\":[]}", "chat_template_kwargs", "invalid_type"},
        {"{" MESSAGES ",\"chat_template_kwargs\":{\"thinking\":\"no\"}}",
         "chat_template_kwargs.thinking", "invalid_type"},
        {"{" MESSAGES ",\"tools\":{}}", "tools", "invalid_type"},
        {"{" MESSAGES ",\"tools\":[7]}", "tools", "invalid_type"},
        {"{" MESSAGES ",\"tools\":[{\"type\":\"web\",\"function\":{\"name\":\"f\"}}]}", "tools",
         "invalid_value"},
        {"{" MESSAGES ",\"tools\":[{\"type\":\"function\"}]}", "tools", "invalid_type"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"a b\"}}]}", "tools", "invalid_value"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"a::b::c\"}}]}", "tools",
         "invalid_value"},
        {"{" MESSAGES ",\"tools\":[{\"namespace\":\"n\",\"function\":{\"name\":\"m::f\"}}]}",
         "tools", "invalid_value"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]}", "tools",
         "invalid_type"},
        {"{" MESSAGES ",\"tool_choice\":\"required\"}", "tool_choice", "invalid_value"},
        {"{" MESSAGES "," TOOLS ",\"tool_choice\":\"any\"}", "tool_choice", "invalid_value"},
        {"{" MESSAGES "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
         "\"f\"}}}",
         "tool_choice", "invalid_value"},
        {"{" MESSAGES ",\"parallel_tool_calls\":\"no\"}", "parallel_tool_calls", "invalid_type"},
        {"{" MESSAGES ",\"response_format\":\"json\"}", "response_format", "invalid_type"},
        {"{" MESSAGES ",\"response_format\":{\"type\":\"xml\"}}", "response_format",
         "invalid_value"},
        {"{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format",
         "invalid_value"},
        {"{" MESSAGES ",\"continue_final_message\":true}", "continue_final_message",
         "invalid_value"},
        {"{" MESSAGES ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
         "continue_final_message", "invalid_value"},
        {"{" MESSAGES ",\"add_generation_prompt\":0}", "add_generation_prompt", "invalid_type"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_chat c;
        struct hx_error err = {0};
        int r = ask(row[i].text, HX_EFFORT_RELEASE, &c, &err);
        if (r != -EINVAL || strcmp(err.param, row[i].param) != 0 ||
            strcmp(err.slug, row[i].slug) != 0)
            fail_msg("%s\n  gives %d, param '%s', code '%s'", row[i].text, r, err.param, err.slug);
    }
}

static void test_reply_starts_where_the_prompt_ends(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool thinking, in_content;
    } row[] = {
        {"{" MESSAGES "}", true, false},
        {"{" MESSAGES ",\"reasoning_effort\":\"none\"}", false, false},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"content\":\"The\",\"prefix\":true}]}",
         false, true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"content\":\"\",\"reasoning\":\"So\",\"prefix\":true}]}",
         true, false},
        {"{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
         "{\"role\":\"latest_reminder\",\"content\":\"now\"}]}",
         true, false},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_chat c;
        struct hx_error err;
        if (ask(row[i].text, HX_EFFORT_RELEASE, &c, &err) < 0)
            fail_msg("%s: %s", row[i].text, err.text);
        assert_int_equal(c.thinking, row[i].thinking);
        assert_int_equal(c.in_content, row[i].in_content);
        hx_chat_done(&c);
    }
}

static void test_effort_tables(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int release, legacy;
    } row[] = {
        {"null", 75, 50},      {"\"low\"", 50, 25}, {"\"high\"", 75, 50}, {"\"xhigh\"", 75, 75},
        {"\"max\"", 100, 100}, {"37", 37, 37},      {"5.0", 5, 5},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        for (int table = 0; table < 2; table++) {
            char text[256], line[64];
            struct hx_chat c;
            struct hx_error err;
            snprintf(text, sizeof(text), "{" MESSAGES ",\"reasoning_effort\":%s}", row[i].name);
            assert_int_equal(ask(text, (enum hx_effort_table)table, &c, &err), 0);
            snprintf(line, sizeof(line), "Reasoning Effort: %d (",
                     table ? row[i].legacy : row[i].release);
            assert_non_null(memmem(c.prompt.text.data, c.prompt.text.len, line, strlen(line)));
            hx_chat_done(&c);
        }
    }
}

static void test_forced_call(void **state)
{
    (void)state;
    struct hx_chat c;
    struct hx_error err;
    struct hx_prompt p;
    static const char named[] =
        "{" MESSAGES "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":"
        "{\"name\":\"get_time\"}}}";
    assert_int_equal(ask(named, HX_EFFORT_RELEASE, &c, &err), 0);
    assert_int_equal(c.tool_choice, HX_TOOL_NAMED);
    assert_int_equal(hx_chat_forced_prefix(&c, &p, &err), 0);
    static const char want[] = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_time";
    assert_int_equal(p.text.len, strlen(want));
    assert_memory_equal(p.text.data, want, p.text.len);
    assert_int_equal(p.n_segments, 5);
    hx_prompt_done(&p);
    hx_chat_done(&c);
    assert_int_equal(ask("{" MESSAGES "," TOOLS "}", HX_EFFORT_RELEASE, &c, &err), 0);
    assert_int_equal(hx_chat_forced_prefix(&c, &p, &err), 0);
    assert_int_equal(p.text.len, 0);
    hx_prompt_done(&p);
    hx_chat_done(&c);
}

/* 1,025 tools, a deep argument, 2,000 equal keys: bounded, and no crash. */
static void test_large_requests(void **state)
{
    (void)state;
    struct hx_chat c;
    struct hx_error err = {0};
    struct hx_buf b = HX_BUF_INIT(16 << 20);
    hx_buf_puts(&b, "{" MESSAGES ",\"tools\":[");
    for (int i = 0; i < 1025; i++)
        hx_buf_printf(&b, "%s{\"function\":{\"name\":\"f%d\"}}", i ? "," : "", i);
    hx_buf_puts(&b, "]}");
    assert_int_equal(ask(hx_buf_cstr(&b), HX_EFFORT_RELEASE, &c, &err), -EINVAL);
    assert_string_equal(err.param, "tools");

    hx_buf_clear(&b);
    hx_buf_puts(&b, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
                    "{\"name\":\"f\",\"arguments\":\"");
    for (int i = 0; i < 5000; i++)
        hx_buf_puts(&b, "[");
    hx_buf_puts(&b, "\"}},{\"function\":{\"name\":\"f\",\"arguments\":{");
    for (int i = 0; i < 2000; i++)
        hx_buf_printf(&b, "%s\"k\":%d", i ? "," : "", i);
    hx_buf_puts(&b, "}}}]}]}");
    assert_int_equal(ask(hx_buf_cstr(&b), HX_EFFORT_RELEASE, &c, &err), 0);
    static const char last[] = "name=\"k\" string=\"false\">1999<";
    assert_non_null(memmem(c.prompt.text.data, c.prompt.text.len, last, strlen(last)));
    hx_chat_done(&c);
    hx_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_requests),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_reply_starts_where_the_prompt_ends),
        cmocka_unit_test(test_effort_tables),
        cmocka_unit_test(test_forced_call),
        cmocka_unit_test(test_large_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
