/* From tokens to pieces: reasoning, stop strings, calls, log-probabilities, the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server_run.h"

#define ASK    "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define DIRECT ASK ",\"thinking\":{\"type\":\"disabled\"}"
#define TOOLS                                                                                      \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"parameters\":"           \
    "{\"type\":\"object\",\"properties\":{\"host\":{\"type\":\"string\"}}}}}]"
#define INVOKE                                                                                     \
    "<｜DSML｜ invoke name=\"ping\">\n<｜DSML｜ parameter name=\"host\" string=\"true\">a"     \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
#define CALLS(invokes) "\n\n<｜DSML｜ calls>\n" invokes "</｜DSML｜ calls>"

static void test_reasoning_and_content(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" ASK "}");
    struct hx_choice *c = &g->choice[0];
    assert_int_equal(feed(c, "I think.</think>Yes."), 0);
    end_ok(c, HX_END_TOKEN);
    assert_string_equal(pieces(c, HX_PIECE_REASONING), "I think.");
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "Yes.");
    assert_string_equal(c->finish, "stop");
    /* The closing marker counts as reasoning, the answer does not. */
    assert_true(c->n_reasoning_tok >= 3 && c->n_reasoning_tok < c->usage.generated_tok - 1);
    assert_int_equal(c->n_pieces, 2);
    hx_choice_clear(c);
    assert_int_equal(c->n_pieces, 0);
    hx_generation_free(g);
}

static void test_whole_characters_only(void **state)
{
    static const char text[] = "𓂀é漢😀";
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT "}");
    struct hx_choice *c = &g->choice[0];
    struct hx_ids ids = {0};
    struct hx_error err;
    const struct hx_encode_options plain = {0};
    size_t shown = 0;
    assert_int_equal(hx_tokenizer_encode(c->opt.tokenizer, text, strlen(text), &plain, &ids, &err),
                     0);
    assert_true(ids.len > 4); /* some character spans tokens */
    for (size_t i = 0; i < ids.len; i++) {
        assert_int_equal(feed_token(c, ids.id[i], -1), 0);
        const char *got = pieces(c, HX_PIECE_CONTENT);
        assert_true(strncmp(got, text, strlen(got)) == 0 && strlen(got) >= shown);
        /* What is shown ends between characters. */
        shown = strlen(got);
        assert_true(((uint8_t)text[shown] & 0xC0) != 0x80);
    }
    end_ok(c, HX_END_TOKEN);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), text);
    hx_ids_done(&ids);
    hx_generation_free(g);
}

static void test_character_cut_by_the_limit(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT "}");
    struct hx_choice *c = &g->choice[0];
    int32_t half = -1;
    for (int32_t id = 0; id < 256 && half < 0; id++) {
        size_t len;
        const uint8_t *b = hx_tokenizer_bytes(c->opt.tokenizer, id, &len);
        if (b && len == 1 && b[0] == 0xE6)
            half = id;
    }
    assert_true(half >= 0);
    assert_int_equal(feed(c, "a"), 0);
    assert_int_equal(feed_token(c, half, -1), 0);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a");
    end_ok(c, HX_END_LENGTH);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a\uFFFD");
    assert_string_equal(c->finish, "length");
    hx_generation_free(g);
}

struct stop_case {
    const char *stop, *text, *content;
    bool stopped, include;
};

static const struct stop_case stop_cases[] = {
    {"\"END\"", "one END two", "one ", true, false},
    {"\"END\"", "one END two", "one END", true, true},
    {"[\"zzz\",\"two\"]", "one two three two", "one ", true, false},
    /* The first that is complete wins; of those that end together the longest. */
    {"[\"three\",\"one\",\"one t\"]", "a one two three", "a ", true, false},
    {"[\"one\",\"one t\"]", "a one two", "a one", true, true},
    {"[\"abcd\",\"bc\"]", "x abcd y", "x a", true, false},
    {"[\"cd\",\"abcd\",\"bcd\"]", "x abcd y", "x ", true, false},
    {"[\"b c d x\",\"c\"]", "a b c d e", "a b ", true, false},
    /* A beginning that leads nowhere is given back. */
    {"\"one two four\"", "one two three", "one two three", false, false},
    {"\"three!\"", "one two three", "one two three", false, false},
    {"\"aab\"", "x aaab y", "x a", true, false},
    {"\"é漢\"", "1 é漢 2", "1 ", true, false},
    {"\"\\n\"", "line\nnext", "line", true, false},
    {"\"o\"", "one", "", true, false},
};

static void run_stop_case(const struct stop_case *t, bool token_by_token)
{
    char body[512];
    snprintf(body, sizeof(body), "{" DIRECT ",\"stop\":%s,\"include_stop_str_in_output\":%s}",
             t->stop, t->include ? "true" : "false");
    struct hx_generation *g = prepare(hx_chat_prepare, body);
    struct hx_choice *c = &g->choice[0];
    int r = 0;
    if (token_by_token) {
        /* One byte a token: every place where a stop string can be cut. */
        for (size_t i = 0; t->text[i] && r == 0; i++) {
            int32_t id = 0;
            size_t len;
            const uint8_t *b;
            while (!(b = hx_tokenizer_bytes(c->opt.tokenizer, id, &len)) || len != 1 ||
                   b[0] != (uint8_t)t->text[i])
                id++;
            r = feed_token(c, id, -1);
            /* Nothing is shown that the stop string takes back. */
            const char *got = pieces(c, HX_PIECE_CONTENT);
            if (strncmp(got, t->content, strlen(got)) != 0)
                fail_msg("%s in '%s': shows '%s'", t->stop, t->text, got);
        }
    } else {
        r = feed(c, t->text);
    }
    assert_int_equal(r, t->stopped);
    end_ok(c, t->stopped ? HX_END_CANCELLED : HX_END_TOKEN);
    if (strcmp(pieces(c, HX_PIECE_CONTENT), t->content) != 0)
        fail_msg("%s in '%s': '%s'", t->stop, t->text, pieces(c, HX_PIECE_CONTENT));
    assert_int_equal(c->stop_string, t->stopped);
    assert_string_equal(c->finish, "stop");
    hx_generation_free(g);
}

static void test_stop_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stop_cases) / sizeof(stop_cases[0]); i++)
        run_stop_case(&stop_cases[i], false);
}

static void test_stop_strings_in_any_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stop_cases) / sizeof(stop_cases[0]); i++)
        run_stop_case(&stop_cases[i], true);
}

static void test_stop_acts_on_content_only(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" ASK ",\"stop\":\"END\"}");
    struct hx_choice *c = &g->choice[0];
    assert_int_equal(feed(c, "no END here</think>but END there"), 1);
    end_ok(c, HX_END_CANCELLED);
    assert_string_equal(pieces(c, HX_PIECE_REASONING), "no END here");
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "but ");
    assert_string_equal(c->finish, "stop");
    hx_generation_free(g);
}

static void test_tokens_after_a_stop_are_dropped_but_count(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT ",\"stop\":\"END\"}");
    struct hx_choice *c = &g->choice[0];
    assert_int_equal(feed(c, "a END"), 1);
    int64_t n = c->usage.generated_tok;
    feed(c, "late");
    assert_true(c->usage.generated_tok > n);
    end_ok(c, HX_END_LENGTH);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a ");
    assert_string_equal(c->finish, "stop");
    hx_generation_free(g);
}

static void test_held_text_at_the_length_limit(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT ",\"stop\":\"ENDING\"}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "a END");
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a ");
    end_ok(c, HX_END_LENGTH);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a END");
    assert_string_equal(c->finish, "length");
    hx_generation_free(g);
}

static void test_stop_token(void **state)
{
    struct hx_error err;
    (void)state;
    struct hx_generation *g =
        prepare(hx_chat_prepare, "{" DIRECT TOOLS ",\"stop_token_ids\":[77]}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "text");
    assert_int_equal(end_with(c, HX_END_TOKEN, 77, &err), 0);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "text");
    assert_string_equal(c->finish, "stop");
    hx_generation_free(g);
}

static void test_tool_calls(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT TOOLS ",\"stream\":true}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "Look:" CALLS(INVOKE INVOKE));
    end_ok(c, HX_END_TOKEN);
    int at[2] = {-1, -1}, n = 0;
    for (size_t i = 0; i < c->n_pieces; i++) {
        const struct hx_piece *p = &c->piece[i];
        if (p->type == HX_PIECE_CALL) {
            assert_true(n < 2);
            assert_int_equal(p->call, n);
            assert_memory_equal(p->text.data, "ping", 4);
            assert_true(strncmp(p->id, "call_", 5) == 0 && strlen(p->id) == 29);
            at[n++] = (int)i;
        }
        /* Arguments follow their own call. */
        if (p->type == HX_PIECE_ARGS)
            assert_true(n > 0 && p->call == n - 1);
    }
    assert_int_equal(n, 2);
    assert_string_not_equal(c->piece[at[0]].id, c->piece[at[1]].id);
    assert_string_equal(pieces(c, HX_PIECE_ARGS), "{\"host\": \"a\"}{\"host\": \"a\"}");
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "Look:");
    assert_string_equal(c->finish, "tool_calls");
    hx_generation_free(g);
}

static void test_one_call_only(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_chat_prepare, "{" DIRECT TOOLS ",\"parallel_tool_calls\":false}");
    struct hx_choice *c = &g->choice[0];
    assert_int_equal(feed(c, CALLS(INVOKE INVOKE)), 1);
    end_ok(c, HX_END_CANCELLED);
    assert_string_equal(pieces(c, HX_PIECE_ARGS), "{\"host\": \"a\"}");
    assert_string_equal(pieces(c, HX_PIECE_CALL), "ping");
    assert_string_equal(c->finish, "tool_calls");
    hx_generation_free(g);
}

static void test_text_held_for_a_stop_comes_before_a_call(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT TOOLS ",\"stop\":\"Look: no\"}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "Look:" CALLS(INVOKE));
    end_ok(c, HX_END_TOKEN);
    assert_int_equal(c->piece[0].type, HX_PIECE_CONTENT);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "Look:");
    assert_string_equal(pieces(c, HX_PIECE_CALL), "ping");
    assert_string_equal(c->finish, "tool_calls");
    hx_generation_free(g);
}

static void test_log_probabilities(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_chat_prepare, "{" ASK ",\"logprobs\":true,\"top_logprobs\":1}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "why</think>");
    assert_int_equal(c->logprobs.len, 0);
    int32_t marker = hx_tokenizer_special(c->opt.tokenizer, "｜DSML｜");
    assert_true(marker >= 0);
    feed(c, "a");
    feed_token(c, marker, -1.0f / 0.0f);
    struct hx_buf list = HX_BUF_INIT(1 << 16);
    hx_buf_printf(&list, "[%.*s]", (int)c->logprobs.len, (const char *)c->logprobs.data);
    struct hx_json *doc = parse_json((const char *)list.data, list.len);
    struct hx_jv first = hx_jv_first(hx_json_root(doc)), second = hx_jv_next(first), top;
    double value;
    int64_t byte;
    assert_int_equal(hx_jv_count(hx_json_root(doc)), 2);
    assert_true(hx_jv_str_is(hx_jv_get(first, "token"), "a"));
    assert_true(hx_jv_double(hx_jv_get(first, "logprob"), &value) && value == -0.5);
    assert_true(hx_jv_int64(hx_jv_first(hx_jv_get(first, "bytes")), &byte) && byte == 'a');
    assert_int_equal(hx_jv_count(hx_jv_get(first, "top_logprobs")), 1);
    top = hx_jv_first(hx_jv_get(first, "top_logprobs"));
    assert_true(hx_jv_str_is(hx_jv_get(top, "token"), "a") && !hx_jv_get(top, "top_logprobs").doc);
    /* An impossible token still has a number. */
    assert_true(hx_jv_double(hx_jv_get(second, "logprob"), &value) && value == -9999);
    assert_true(hx_jv_str_is(hx_jv_get(second, "token"), "｜DSML｜"));
    hx_json_free(doc);
    hx_buf_done(&list);
    hx_generation_free(g);
}

static void test_raw_text(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_completion_prepare, "{\"prompt\":\"x\",\"logprobs\":1,\"stop\":\"END\"}");
    struct hx_choice *c = &g->choice[0];
    int32_t bos = hx_tokenizer_special(c->opt.tokenizer, "<｜begin▁of▁sentence｜>");
    assert_true(bos >= 0);
    feed(c, "é</think>b");
    feed_token(c, bos, -2); /* not shown, but in the log-probabilities */
    assert_int_equal(feed(c, "c END"), 1);
    end_ok(c, HX_END_CANCELLED);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "é</think>bc ");
    assert_string_equal(c->finish, "stop");
    assert_int_equal(c->n_reasoning_tok, 0);
    /* Offsets count characters of the text. */
    assert_true(strncmp((const char *)c->offsets.data, "0,1,9,10,10,", 12) == 0);
    assert_true(strncmp((const char *)c->top_logprobs.data, "{\"é\":-0.5}", 10) == 0);
    hx_generation_free(g);
}

static void test_special_tokens_shown_on_request(void **state)
{
    (void)state;
    struct hx_generation *g =
        prepare(hx_completion_prepare, "{\"prompt\":\"x\",\"skip_special_tokens\":false}");
    feed(&g->choice[0], "a<｜User｜>b");
    assert_string_equal(pieces(&g->choice[0], HX_PIECE_CONTENT), "a<｜User｜>b");
    hx_generation_free(g);
}

static void test_end_tokens_inside_a_chat(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT ",\"ignore_eos\":true}");
    feed(&g->choice[0], "a<｜end▁of▁sentence｜>b<｜User｜>c");
    assert_string_equal(pieces(&g->choice[0], HX_PIECE_CONTENT), "abc");
    hx_generation_free(g);
    g = prepare(hx_chat_prepare, "{" DIRECT ",\"ignore_eos\":true,\"skip_special_tokens\":false}");
    feed(&g->choice[0], "a<｜end▁of▁sentence｜>b");
    assert_string_equal(pieces(&g->choice[0], HX_PIECE_CONTENT), "a<｜end▁of▁sentence｜>b");
    hx_generation_free(g);
}

static void test_cancelled_and_failed(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT "}");
    struct hx_choice *c = &g->choice[0];
    struct hx_event ev = {.type = HX_EVENT_END, .reason = HX_END_ERROR};
    struct hx_error err = {0};
    assert_int_equal(end_with(c, HX_END_CANCELLED, -1, &err), -ECANCELED);
    assert_null(c->finish);
    (void)!hx_fail(&ev.error, -ENODEV, "the device is gone");
    assert_int_equal(hx_choice_event(c, &ev, &err), -ENODEV);
    assert_string_equal(err.text, "the device is gone");
    assert_null(c->finish);
    hx_generation_free(g);
}

static void test_nothing_after_the_end(void **state)
{
    (void)state;
    struct hx_generation *g = prepare(hx_chat_prepare, "{" DIRECT "}");
    struct hx_choice *c = &g->choice[0];
    feed(c, "a");
    end_ok(c, HX_END_TOKEN);
    assert_int_equal(feed(c, "b"), 0);
    end_ok(c, HX_END_LENGTH);
    assert_string_equal(pieces(c, HX_PIECE_CONTENT), "a");
    assert_string_equal(c->finish, "stop");
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
        cmocka_unit_test(test_reasoning_and_content),
        cmocka_unit_test(test_whole_characters_only),
        cmocka_unit_test(test_character_cut_by_the_limit),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_strings_in_any_cut),
        cmocka_unit_test(test_stop_acts_on_content_only),
        cmocka_unit_test(test_tokens_after_a_stop_are_dropped_but_count),
        cmocka_unit_test(test_held_text_at_the_length_limit),
        cmocka_unit_test(test_stop_token),
        cmocka_unit_test(test_tool_calls),
        cmocka_unit_test(test_one_call_only),
        cmocka_unit_test(test_text_held_for_a_stop_comes_before_a_call),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_raw_text),
        cmocka_unit_test(test_special_tokens_shown_on_request),
        cmocka_unit_test(test_end_tokens_inside_a_chat),
        cmocka_unit_test(test_cancelled_and_failed),
        cmocka_unit_test(test_nothing_after_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
