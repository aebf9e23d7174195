/* The reply parser against both official parsers: the 81 cases of parse.json.
 *
 * Column `reference` (strict parser, whole text):
 *   message  content, reasoning, names and arguments are equal byte for byte; a namespace is joined
 *            to the name as ns::tool.
 *   error    the text is malformed. What the healing rules give stands in healed_row; content and
 *            reasoning are compared with `streaming` byte for byte.
 * Column `streaming` (the production kit's state machine):
 *   It trims line breaks where a message begins, around the end of thinking and before a block.
 *   Where the strict parser gave a message, ours is trimmed the same way before the comparison.
 *   Calls that it completes are equal in name and arguments.
 *   extra_think_close  as many drop_think_close are counted.
 *   bytes_after_block  that many bytes follow the block: the parser asks for the stop just there.
 *   stop               content = its content + the stop string + bytes_after_block more: matching
 *                      is the server's work, the parser must only keep reasoning and calls apart.
 *   json_mode          content = text as long as the padding in front, an optional fence around the
 *                      JSON, text as long as the padding behind: no text is replaced by spaces.
 * A row of healed_row names what differs from a column; a field that agrees with the columns after
 * all fails the test, so the table holds no more than the differences. Texts that were cut off are
 * compared by expect_cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/prompt.h"
#include "text/template.h"
#include "text/tools.h"

#include "chat_data.h"
#include "reply_run.h"

#define N_CASES     81
#define N_REFERENCE 73 /* the strict parser knows neither JSON mode nor stop strings */
#define N_ERRORS    40

#define SAME  "\1" /* as the columns say */
#define WHOLE "\2" /* the text as it was */

static const struct healed_row {
    const char *id, *codes; /* each code with a comma behind it */
    const char *content, *reasoning;
    const char *name, *args; /* of the only call; name SAME: as the columns say */
} healed_row[] = {
    /* Around reasoning (8.1). */
    {"bad-no-think-close", "", SAME, SAME, SAME, NULL},
    {"bad-no-think-close-eos", "", SAME, SAME, SAME, NULL},
    {"bad-no-eos", "", SAME, SAME, SAME, NULL},
    {"bad-think-open-in-output", "drop_think_open,", SAME, "Again.", SAME, NULL},
    {"bad-extra-close", "drop_think_close,", SAME, SAME, SAME, NULL},
    {"bad-close-in-chat", "drop_think_close,", SAME, SAME, SAME, NULL},
    {"bad-tool-in-think", "call_in_reasoning,", SAME, SAME, SAME, NULL},
    {"bad-tool-in-think-then-close", "call_in_reasoning,", SAME, SAME, SAME, NULL},
    /* Wrapper (8.2). */
    {"bad-v4-tags", "v4_spelling,", SAME, SAME, SAME, NULL},
    {"bad-nospace-wrapper", "wrapper_spelling,", SAME, SAME, SAME, NULL},
    {"bad-underscore-wrapper", "wrapper_spelling,", SAME, SAME, SAME, NULL},
    {"bad-function-calls-wrapper", "wrapper_spelling,", SAME, SAME, SAME, NULL},
    {"bad-bare-invoke", "no_wrapper,", SAME, SAME, SAME, NULL},
    {"bad-orphan-tail", "stray_closer,", "Done.", SAME, SAME, NULL},
    {"bad-orphan-param-close", "stray_closer,", "Done.", SAME, SAME, NULL},
    {"bad-empty-block", "empty_block,", SAME, SAME, SAME, NULL},
    {"bad-empty-block-then-text", "empty_block,", "Hi\nmore text", SAME, SAME, NULL},
    {"bad-text-after-block", "", SAME, SAME, SAME, NULL},
    {"bad-two-blocks", "", SAME, SAME, SAME, NULL},
    {"bad-no-wrapper-close", "implicit_wrapper_close,", SAME, SAME, SAME, NULL},
    {"bad-double-bar", "bar_spelling,", "", SAME, "f", "{\"a\": \"x\"}"},
    {"bad-ascii-bar", "bar_spelling,", "", SAME, "read_file",
     "{\"path\": \"/etc/hosts\", \"limit\": 5}"},
    {"bad-short-bar", "bar_spelling,", "", SAME, "read_file",
     "{\"path\": \"/etc/hosts\", \"limit\": 5}"},
    {"bad-no-newlines", "whitespace,", SAME, SAME, SAME, NULL},
    {"bad-one-newline-before", "whitespace,", SAME, SAME, SAME, NULL},
    {"bad-crlf", "whitespace,", "", SAME, SAME, NULL},
    {"bad-indented", "whitespace,", SAME, SAME, SAME, NULL},
    {"bad-dsml-in-prose", "restored_text,", WHOLE, SAME, SAME, NULL},
    {"bad-dsml-in-codefence", "restored_text,", WHOLE, SAME, SAME, NULL},
    /* Parameters (8.3). */
    {"bad-dup-param", "duplicate_param,", SAME, SAME, SAME, NULL},
    {"bad-no-string-attr", "type_from_schema,", SAME, SAME, "f", "{\"a\": \"x\"}"},
    {"bad-attr-order", "attr_spelling,", SAME, SAME, "f", "{\"a\": \"x\"}"},
    {"bad-single-quotes", "attr_spelling,", SAME, SAME, "f", "{\"a\": \"x\"}"},
    {"bad-name-quoted-space", "attr_spelling,", SAME, SAME, "f", "{\"a\": \"x\"}"},
    {"bad-value-not-json", "not_json,", SAME, SAME, "f", "{\"a\": \"[broken\"}"},
    {"bad-value-python-literal", "python_literal,not_json,", SAME, SAME, "f",
     "{\"a\": true, \"b\": \"{'k': 1}\"}"},
    {"bad-value-close-tag-inside", "close_tag_in_value,", SAME, SAME, "write",
     "{\"text\": \"before</｜DSML｜ parameter>after\"}"},
    {"bad-value-escaped-close", "", SAME, SAME, SAME, NULL},
    {"bad-param-close-missing", "param_close_missing,", SAME, SAME, "f",
     "{\"a\": \"x\", \"b\": \"y\"}"},
    {"bad-args-wrapper", "unwrapped_arguments,", SAME, SAME, "read_file", "{\"path\": \"a\"}"},
    /* Other idioms (8.4). */
    {"bad-plain-xml", "xml_idiom,", "Now fixing:", SAME, "bash", "{\"command\": \"ls\"}"},
    {"bad-hybrid-fused", "xml_idiom,fused_name,", "Starting:", SAME, "bash",
     "{\"command\": \"systemctl restart app\", \"i\": \"Restarting\", \"timeout\": 200}"},
    {"bad-headless", "xml_idiom,tool_inferred,", "Now:", SAME, "bash",
     "{\"command\": \"cd /srv && ls\", \"i\": \"Listing\"}"},
    /* Run-on (8.6): the engine stops at these tokens, the parser sees nothing of them. */
    {"bad-bos-in-content", "", "Hi", SAME, SAME, NULL},
    {"bad-user-token", "", "Hi", SAME, SAME, NULL},
    {"bad-assistant-token-eos", "", SAME, SAME, SAME, NULL},
};

static struct hx_json *doc;
static struct hx_tools *tools;

struct text {
    const char *s;
    size_t len;
};

static struct text member(struct hx_jv object, const char *key)
{
    struct text t = {"", 0};
    const char *s = hx_jv_str(hx_jv_get(object, key), &t.len);
    if (s)
        t.s = s;
    return t;
}

static struct text of_buf(const struct hx_buf *b)
{
    return (struct text){b->data ? (const char *)b->data : "", b->len};
}

static bool same_text(struct text a, struct text b)
{
    return a.len == b.len && memcmp(a.s, b.s, a.len) == 0;
}

static void expect_text(const char *id, const char *what, struct text got, struct text want)
{
    if (!same_text(got, want))
        fail_msg("%s: %s is '%.*s', not '%.*s'", id, what, (int)got.len, got.s, (int)want.len,
                 want.s);
}

static struct text trim_breaks(struct text t, bool front, bool back)
{
    for (; front && t.len && *t.s == '\n'; t.len--)
        t.s++;
    while (back && t.len && t.s[t.len - 1] == '\n')
        t.len--;
    return t;
}

/* The text up to the first token that ends a turn; *ended: there is one. */
static struct text up_to_end_token(struct text t, bool *ended)
{
    static const char *const token[] = {HX_T_EOS,      HX_T_USER, HX_T_SYSTEM, HX_T_ASSISTANT,
                                        HX_T_REMINDER, HX_T_BOS,  HX_T_PAD,    HX_T_EOT};
    *ended = false;
    for (size_t i = 0; i < sizeof(token) / sizeof(token[0]); i++) {
        const char *hit = memmem(t.s, t.len, token[i], strlen(token[i]));
        if (hit) {
            t.len = (size_t)(hit - t.s);
            *ended = true;
        }
    }
    return t;
}

static const struct healed_row *row_of(const char *id)
{
    for (size_t i = 0; i < sizeof(healed_row) / sizeof(healed_row[0]); i++) {
        if (strcmp(healed_row[i].id, id) == 0)
            return &healed_row[i];
    }
    return NULL;
}

static void expect_codes(const char *id, const struct hx_buf *got, const char *want)
{
    const struct hx_buf codes = {.data = (uint8_t *)(uintptr_t)want, .len = strlen(want)};
    if (!same_codes(got, &codes))
        fail_msg("%s: counted '%.*s', not '%s'", id, (int)got->len, (char *)got->data, want);
}

/* A call of the reference (`type`, `function`, `namespace`) or of the stream (`name`). */
static void read_call(struct hx_jv call, struct hx_buf *name, struct text *args)
{
    struct hx_jv function = hx_jv_get(call, "function");
    struct hx_jv holder = function.doc ? function : call;
    struct text space = member(call, "namespace"), tool = member(holder, "name");
    *name = HX_BUF_INIT(1024);
    hx_buf_append(name, space.s, space.len);
    if (space.len)
        hx_buf_puts(name, "::");
    hx_buf_append(name, tool.s, tool.len);
    *args = member(holder, "arguments");
}

static bool same_calls(const struct reply_result *o, struct hx_jv list)
{
    int i = 0;
    for (struct hx_jv c = hx_jv_first(list); c.doc; c = hx_jv_next(c), i++) {
        struct hx_buf name;
        struct text args;
        bool complete = true;
        read_call(c, &name, &args);
        hx_jv_bool(hx_jv_get(c, "complete"), &complete);
        bool same = i < o->n_started && o->complete[i] == complete &&
                    same_buf(&o->name[i], &name) && same_text(of_buf(&o->args[i]), args);
        hx_buf_done(&name);
        if (!same)
            return false;
    }
    return i == o->n_started;
}

static void expect_calls(const char *id, const struct reply_result *o, struct hx_jv list)
{
    if (!same_calls(o, list))
        fail_msg("%s: %d calls, first %.*s %.*s", id, o->n_started, (int)o->name[0].len,
                 (char *)o->name[0].data, (int)o->args[0].len, (char *)o->args[0].data);
}

/* What one column says, with the row's differences laid over it. */
static void expect_column(const char *id, const struct healed_row *row, struct text whole,
                          struct text content, struct text reasoning, struct hx_jv calls,
                          bool trimmed, const struct reply_result *o)
{
    bool block = o->n_started > 0 || o->stops > 0;
    struct text got = of_buf(&o->content), thought = of_buf(&o->reasoning);
    if (row && strcmp(row->content, SAME) != 0) {
        struct text want = {row->content, strlen(row->content)};
        expect_text(id, "content", got, strcmp(row->content, WHOLE) == 0 ? whole : want);
        if (same_text(got, content))
            fail_msg("%s: the row's content is the column's", id);
    } else {
        expect_text(id, "content", trimmed ? trim_breaks(got, true, block) : got, content);
    }
    if (row && strcmp(row->reasoning, SAME) != 0) {
        expect_text(id, "reasoning", thought,
                    (struct text){row->reasoning, strlen(row->reasoning)});
        if (same_text(thought, reasoning))
            fail_msg("%s: the row's reasoning is the column's", id);
    } else {
        expect_text(id, "reasoning", trimmed ? trim_breaks(thought, true, true) : thought,
                    reasoning);
    }
    if (row && strcmp(row->name, SAME) != 0) {
        if (o->n_calls != 1 || o->n_started != 1)
            fail_msg("%s: %d calls, not 1", id, o->n_calls);
        expect_text(id, "name", of_buf(&o->name[0]), (struct text){row->name, strlen(row->name)});
        expect_text(id, "args", of_buf(&o->args[0]), (struct text){row->args, strlen(row->args)});
        if (same_calls(o, calls))
            fail_msg("%s: the row's call is the column's", id);
    } else {
        expect_calls(id, o, calls);
    }
}

/* content = stream's content, stop string, then `behind` bytes. */
static void expect_stop(const char *id, struct hx_jv c, const struct reply_result *o)
{
    struct hx_jv stream = hx_jv_get(c, "streaming");
    struct text want = member(stream, "content"), got = of_buf(&o->content);
    int64_t behind = 0;
    bool stopped = false;
    hx_jv_int64(hx_jv_get(stream, "bytes_after_block"), &behind);
    hx_jv_bool(hx_jv_get(stream, "stop_string"), &stopped);
    bool found = !stopped && same_text(got, want);
    for (struct hx_jv s = hx_jv_first(hx_jv_get(c, "stop")); s.doc && stopped; s = hx_jv_next(s)) {
        struct text stop;
        stop.s = hx_jv_str(s, &stop.len);
        found = found || (got.len == want.len + stop.len + (size_t)behind &&
                          memcmp(got.s, want.s, want.len) == 0 &&
                          memcmp(got.s + want.len, stop.s, stop.len) == 0);
    }
    if (!found)
        fail_msg("%s: content is '%.*s'", id, (int)got.len, got.s);
    expect_text(id, "reasoning", of_buf(&o->reasoning), member(stream, "reasoning"));
    expect_calls(id, o, hx_jv_get(stream, "tool_calls"));
    expect_codes(id, &o->healed, "");
}

static bool take(struct text *t, const char *prefix)
{
    size_t len = strlen(prefix);
    if (t->len < len || memcmp(t->s, prefix, len) != 0)
        return false;
    t->s += len;
    t->len -= len;
    return true;
}

static void expect_json_mode(const char *id, struct hx_jv c, const struct reply_result *o)
{
    struct hx_jv stream = hx_jv_get(c, "streaming");
    struct text json = member(stream, "content"), got = of_buf(&o->content);
    size_t front = 0, back = 0;
    for (; json.len && *json.s == ' '; json.len--, front++)
        json.s++;
    for (; json.len && json.s[json.len - 1] == ' '; back++)
        json.len--;
    got = trim_breaks(got, true, false);
    assert_true(got.len >= front);
    got.s += front;
    got.len -= front;
    bool fence = take(&got, "```json\n");
    if (got.len < json.len || memcmp(got.s, json.s, json.len) != 0)
        fail_msg("%s: '%.*s' where the JSON should begin", id, (int)got.len, got.s);
    got.s += json.len;
    got.len -= json.len;
    if (fence && !take(&got, "\n```"))
        fail_msg("%s: the fence is not closed: '%.*s'", id, (int)got.len, got.s);
    assert_int_equal(got.len, back);
    expect_text(id, "reasoning", of_buf(&o->reasoning), member(stream, "reasoning"));
    expect_calls(id, o, hx_jv_get(stream, "tool_calls"));
    expect_codes(id, &o->healed, "");
}

/* Where the text behind the block begins: the parser asks for the stop just there, and with all
 * that follows missing it gives the same. */
static void expect_behind(const char *id, struct text text, int64_t behind,
                          const struct hx_reply_options *opt, const struct reply_result *o)
{
    struct reply_result cut;
    size_t len = text.len - (size_t)behind;
    assert_int_equal(reply_run(opt, text.s, len, 1, 0, HX_REPLY_END_EOS, &cut), 0);
    if (!same_result(&cut, o) || cut.stops != 1)
        fail_msg("%s: the %d bytes behind the block are not ignored", id, (int)behind);
    reply_result_done(&cut);
    assert_int_equal(reply_run(opt, text.s, len - 1, 1, 0, HX_REPLY_END_LENGTH, &cut), 0);
    if (cut.stops != 0)
        fail_msg("%s: the stop comes too early", id);
    reply_result_done(&cut);
}

static void expect_case(const char *id, struct hx_jv c, struct text text,
                        const struct hx_reply_options *opt, const struct reply_result *o)
{
    struct hx_jv strict = hx_jv_get(c, "reference"), stream = hx_jv_get(c, "streaming");
    const struct healed_row *row = row_of(id);
    bool error = member(strict, "error").len > 0;
    if (error && !row)
        fail_msg("%s: an error of the reference without a row here", id);
    if (!error)
        expect_column(id, row, text, member(strict, "content"), member(strict, "reasoning_content"),
                      hx_jv_get(strict, "tool_calls"), false, o);
    expect_column(id, row, text, member(stream, "content"), member(stream, "reasoning"),
                  hx_jv_get(stream, "tool_calls"), !error, o);
    expect_codes(id, &o->healed, row ? row->codes : "");
    int64_t extra = 0, behind = 0;
    hx_jv_int64(hx_jv_get(stream, "extra_think_close"), &extra);
    assert_int_equal(count_code(&o->healed, "drop_think_close,", 17), extra);
    hx_jv_int64(hx_jv_get(stream, "bytes_after_block"), &behind);
    if (behind && o->n_calls)
        expect_behind(id, text, behind, opt, o);
}

/* A text that was cut off inside a block: by the token limit and by the end token, whole and
 * streamed (8.5). */
static void expect_cut(const char *id, struct hx_jv c, struct text text)
{
    struct hx_jv strict = hx_jv_get(c, "reference"), stream = hx_jv_get(c, "streaming");
    struct hx_jv calls = hx_jv_get(stream, "tool_calls"), call = hx_jv_first(calls);
    struct hx_jv strict_calls = hx_jv_get(strict, "tool_calls");
    struct text args = member(call, "arguments");
    bool complete = false, value_done = hx_jv_first(strict_calls).doc != NULL;
    assert_true(hx_jv_bool(hx_jv_get(call, "complete"), &complete));
    for (int k = 0; k < 4; k++) {
        struct hx_reply_options opt = {
            .tools = tools, .parallel_tool_calls = true, .streaming = k & 1};
        bool eos = k & 2;
        struct reply_result o;
        assert_int_equal(reply_run(&opt, text.s, text.len, 1, 0,
                                   eos ? HX_REPLY_END_EOS : HX_REPLY_END_LENGTH, &o),
                         0);
        assert_int_equal(o.reasoning.len, 0);
        if (complete) {
            expect_calls(id, &o, calls);
        } else if (eos && value_done) {
            expect_calls(id, &o, strict_calls);
        } else {
            /* Streamed, it stays unterminated; an opener that was cut off has sent no key yet. */
            struct text got = of_buf(&o.args[0]);
            assert_int_equal(o.n_calls, 0);
            assert_int_equal(o.n_started, opt.streaming);
            assert_false(o.complete[0]);
            if (opt.streaming)
                expect_text(id, "name", of_buf(&o.name[0]), member(call, "name"));
            if (opt.streaming && got.len)
                expect_text(id, "arguments", got, args);
            if (opt.streaming && !got.len)
                assert_int_equal(args.s[args.len - 2], ':');
        }
        bool restored = eos && !complete && !value_done && !opt.streaming;
        expect_text(id, "content", of_buf(&o.content), restored ? text : (struct text){"", 0});
        if (restored)
            expect_codes(id, &o.healed, "restored_text,");
        reply_result_done(&o);
    }
}

static void test_all_cases(void **state)
{
    (void)state;
    unsigned n = 0, n_strict = 0, n_errors = 0, n_cut = 0, n_rows = 0;
    struct hx_jv cases = hx_jv_get(hx_json_root(doc), "cases");
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c), n++) {
        char id[64];
        snprintf(id, sizeof(id), "%s", text_of(c, "id"));
        struct hx_jv strict = hx_jv_get(c, "reference");
        n_strict += strict.doc != NULL;
        n_errors += member(strict, "error").len > 0;
        n_rows += row_of(id) != NULL;
        bool ended;
        struct text text = up_to_end_token(member(c, "text"), &ended);
        if (strncmp(id, "bad-cut-", 8) == 0) {
            assert_false(ended);
            expect_cut(id, c, text);
            n_cut++;
            continue;
        }
        struct hx_reply_options opt = {.thinking = strcmp(text_of(c, "thinking_mode"), "chat") != 0,
                                       .tools = tools,
                                       .parallel_tool_calls = true};
        enum hx_reply_end end = ended ? HX_REPLY_END_EOS : HX_REPLY_END_LENGTH;
        for (int streaming = 0; streaming < 2; streaming++) {
            struct reply_result whole, part;
            opt.streaming = streaming;
            assert_int_equal(reply_run(&opt, text.s, text.len, text.len + 1, 0, end, &whole), 0);
            for (unsigned k = 0; k < 12; k++) {
                assert_int_equal(reply_run(&opt, text.s, text.len, k == 0, k, end, &part), 0);
                if (!same_result(&whole, &part))
                    fail_msg("%s: depends on the chunks (%d, %u)", id, streaming, k);
                reply_result_done(&part);
            }
            if (hx_jv_get(c, "stop").doc)
                expect_stop(id, c, &whole);
            else if (hx_jv_get(c, "json_mode").doc)
                expect_json_mode(id, c, &whole);
            else
                expect_case(id, c, text, &opt, &whole);
            for (int i = 0; i < whole.n_started; i++) {
                assert_true(whole.complete[i]);
                hx_json_free(parse_json((char *)whole.args[i].data, whole.args[i].len));
            }
            reply_result_done(&whole);
        }
    }
    assert_int_equal(n, N_CASES);
    assert_int_equal(n_strict, N_REFERENCE);
    assert_int_equal(n_errors, N_ERRORS);
    assert_int_equal(n_cut, 4);
    assert_int_equal(n_rows, sizeof(healed_row) / sizeof(healed_row[0]));
}

static int load(void **state)
{
    static const char list[] =
        "[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"grep\"}},"
        "{\"function\":{\"name\":\"ping\"}},{\"function\":{\"name\":\"fs::read\"}},"
        "{\"function\":{\"name\":\"write\"}},{\"function\":{\"name\":\"submit\"}},"
        "{\"function\":{\"name\":\"read_file\",\"parameters\":{\"properties\":{"
        "\"path\":{\"type\":\"string\"},\"limit\":{\"type\":\"integer\"}}}}},"
        "{\"function\":{\"name\":\"bash\",\"parameters\":{\"properties\":{"
        "\"command\":{\"type\":\"string\"},\"i\":{\"type\":\"string\"},"
        "\"timeout\":{\"type\":\"number\"}},\"required\":[\"command\"]}}}]";
    (void)state;
    doc = load_json("tests/vectors/chat/parse.json");
    struct hx_json *declared = parse_json(list, strlen(list));
    struct hx_error err;
    if (hx_tools_new(hx_json_root(declared), &tools, &err) < 0)
        fail_msg("%s", err.text);
    hx_json_free(declared);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    hx_tools_free(tools);
    hx_json_free(doc);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_cases),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
