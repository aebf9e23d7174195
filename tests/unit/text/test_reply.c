/* The reply parser: every malformed form of heal.json, in any chunking, streamed or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "base/json_write.h"
#include "text/tools.h"

#include "chat_data.h"
#include "reply_run.h"

static struct hx_json *heal_doc;
static struct hx_tools *tools;

/* heal.json's short form of tools to the form of a request. */
static struct hx_tools *make_tools(struct hx_jv list)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, false);
    hx_jw_array(&w);
    for (struct hx_jv t = hx_jv_first(list); t.doc; t = hx_jv_next(t)) {
        hx_jw_object(&w);
        hx_jw_key(&w, "function");
        hx_jw_object(&w);
        hx_jw_key(&w, "name");
        hx_jw_value(&w, hx_jv_get(t, "name"));
        hx_jw_key(&w, "parameters");
        hx_jw_object(&w);
        hx_jw_key(&w, "properties");
        hx_jw_object(&w);
        struct hx_jv properties = hx_jv_get(t, "properties");
        for (struct hx_jv p = hx_jv_first(properties); p.doc; p = hx_jv_next(p)) {
            size_t len;
            const char *key = hx_jv_str(hx_jv_key(p), &len);
            hx_jw_key_n(&w, key, len);
            hx_jw_object(&w);
            hx_jw_key(&w, "type");
            hx_jw_value(&w, p);
            hx_jw_end_object(&w);
        }
        hx_jw_end_object(&w);
        hx_jw_key(&w, "required");
        hx_jw_value(&w, hx_jv_get(t, "required"));
        hx_jw_end_object(&w);
        hx_jw_end_object(&w);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    struct hx_json *doc = parse_json((char *)b.data, b.len);
    struct hx_tools *out;
    struct hx_error err;
    if (hx_tools_new(hx_json_root(doc), &out, &err) < 0)
        fail_msg("%s", err.text);
    hx_json_free(doc);
    hx_buf_done(&b);
    return out;
}

static void expect_text(const char *id, const char *what, const struct hx_buf *got, struct hx_jv v)
{
    size_t len = 0;
    const char *want = hx_jv_str(v, &len);
    if (got->len != len || (len && memcmp(got->data, want, len) != 0))
        fail_msg("%s: %s is '%.*s', not '%.*s'", id, what, (int)got->len, (char *)got->data,
                 (int)len, want ? want : "");
}

static bool same_json(const struct hx_buf *got, struct hx_jv want)
{
    struct hx_buf a = HX_BUF_INIT(1 << 20), b = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    struct hx_json *doc = parse_json((char *)got->data, got->len);
    hx_jw_init(&w, &a, false);
    hx_jw_value(&w, hx_json_root(doc));
    hx_jw_init(&w, &b, false);
    hx_jw_value(&w, want);
    bool same = same_buf(&a, &b);
    hx_json_free(doc);
    hx_buf_done(&a);
    hx_buf_done(&b);
    return same;
}

static bool holds(const struct hx_buf *b, const char *s, size_t len)
{
    return b->len >= len && memmem(b->data, b->len, s, len) != NULL;
}

static const char *finish_reason(enum hx_reply_end end, int n_calls)
{
    return end == HX_REPLY_END_LENGTH ? "length" : n_calls ? "tool_calls" : "stop";
}

static void expect_case(const char *id, struct hx_jv c, enum hx_reply_end end,
                        const struct reply_result *o)
{
    struct hx_jv want = hx_jv_get(c, "expect"), calls = hx_jv_get(want, "tool_calls");
    expect_text(id, "content", &o->content, hx_jv_get(want, "content"));
    expect_text(id, "reasoning", &o->reasoning, hx_jv_get(want, "reasoning_content"));
    int i = 0;
    for (struct hx_jv t = hx_jv_first(calls); t.doc; t = hx_jv_next(t), i++) {
        expect_text(id, "name", &o->name[i], hx_jv_get(t, "name"));
        if (!o->complete[i] || !same_json(&o->args[i], hx_jv_get(t, "arguments")))
            fail_msg("%s: arguments %.*s", id, (int)o->args[i].len, (char *)o->args[i].data);
    }
    if (o->n_calls != i)
        fail_msg("%s: %d calls, not %d", id, o->n_calls, i);
    if (strcmp(finish_reason(end, o->n_calls), text_of(want, "finish_reason")) != 0)
        fail_msg("%s: finish_reason", id);
    /* The same codes, in any order. */
    struct hx_jv healed = hx_jv_get(c, "healed");
    size_t n = 0;
    for (struct hx_jv h = hx_jv_first(healed); h.doc; h = hx_jv_next(h)) {
        size_t len;
        const char *s = hx_jv_str(h, &len);
        n += len + 1;
        if (!holds(&o->healed, s, len))
            fail_msg("%s: not counted: %.*s (but %.*s)", id, (int)len, s, (int)o->healed.len,
                     (char *)o->healed.data);
    }
    if (n != o->healed.len)
        fail_msg("%s: counted %.*s", id, (int)o->healed.len, (char *)o->healed.data);
}

static void test_heal_cases(void **state)
{
    (void)state;
    unsigned n = 0;
    struct hx_jv cases = hx_jv_get(hx_json_root(heal_doc), "cases");
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c), n++) {
        char id[64];
        snprintf(id, sizeof(id), "%s", text_of(c, "id"));
        bool declared = true;
        hx_jv_bool(hx_jv_get(c, "tools_declared"), &declared);
        struct hx_reply_options opt = {.thinking = text_of(c, "thinking_mode")[0] == 't',
                                       .tools = declared ? tools : NULL,
                                       .parallel_tool_calls = true};
        enum hx_reply_end end = strcmp(text_of(c, "engine_stop"), "length") == 0
                                    ? HX_REPLY_END_LENGTH
                                    : HX_REPLY_END_EOS;
        size_t len;
        const char *text = hx_jv_str(hx_jv_get(c, "text"), &len);
        for (int streaming = 0; streaming < 2; streaming++) {
            struct reply_result whole, part;
            opt.streaming = streaming;
            assert_int_equal(reply_run(&opt, text, len, len + 1, 0, end, &whole), 0);
            for (unsigned k = 0; k < 12; k++) {
                assert_int_equal(reply_run(&opt, text, len, k == 0, k, end, &part), 0);
                if (!same_result(&whole, &part))
                    fail_msg("%s: depends on the chunks (%d, %u)", id, streaming, k);
                reply_result_done(&part);
            }
            /* A call that was streamed and is cut off stays unterminated: the one difference. */
            bool cut = strncmp(id, "cut-", 4) == 0;
            if (!streaming || !cut)
                expect_case(id, c, end, &whole);
            if (streaming && cut && whole.n_started > whole.n_calls)
                assert_false(whole.complete[whole.n_started - 1]);
            bool marker = holds(&whole.content, "DSML", 4);
            bool restored = holds(&whole.healed, "restored_text", 13);
            if (marker && !restored && strcmp(id, "wrap-missing-unknown-tool") != 0)
                fail_msg("%s: a marker is shown", id);
            reply_result_done(&whole);
        }
    }
    assert_int_equal(n, 62);
}

#define BLOCK  "\n\n<｜DSML｜ calls>\n"
#define CLOSED "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
#define BASH   "<｜DSML｜ invoke name=\"bash\">\n"
#define PING   "<｜DSML｜ invoke name=\"ping\">\n\n"
#define VALUE  "<｜DSML｜ parameter name=\"command\" string=\"true\">ls</｜DSML｜ parameter>\n"

struct cut_row {
    const char *text;
    bool thinking, serial; /* serial: parallel_tool_calls is false */
    const char *reasoning, *content;
    const char *name, *args; /* of the first call; NULL: no call */
    int n_calls, stops;
    const char *codes;
};

static void expect_row(const struct cut_row *row, const struct reply_result *o)
{
    const char *name = row->name ? row->name : "", *args = row->args ? row->args : "";
    const struct {
        const struct hx_buf *got;
        const char *want;
    } field[] = {{&o->reasoning, row->reasoning},
                 {&o->content, row->content},
                 {&o->name[0], name},
                 {&o->args[0], args}};
    for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++) {
        const struct hx_buf *b = field[i].got;
        size_t len = strlen(field[i].want);
        if (b->len != len || (len && memcmp(b->data, field[i].want, len) != 0))
            fail_msg("'%s': field %zu is '%.*s', not '%s'", row->text, i, (int)b->len,
                     (char *)b->data, field[i].want);
    }
    const struct hx_buf codes = {.data = (uint8_t *)(uintptr_t)row->codes,
                                 .len = strlen(row->codes)};
    if (!same_codes(&o->healed, &codes))
        fail_msg("'%s': counted '%.*s'", row->text, (int)o->healed.len, (char *)o->healed.data);
    if (o->n_calls != row->n_calls || o->n_started != row->n_calls || o->stops != row->stops)
        fail_msg("'%s': %d calls, %d begun, %d stops", row->text, o->n_calls, o->n_started,
                 o->stops);
}

/* The text in two pieces cut at byte `cut`; 0: byte after byte. */
static void run_cut(const struct hx_reply_options *opt, const char *text, size_t cut,
                    struct reply_result *o)
{
    size_t len = strlen(text), piece = cut ? cut : 1;
    struct hx_reply *r;
    reply_result_init(o);
    assert_int_equal(hx_reply_new(opt, &r, NULL), 0);
    for (size_t at = 0; at < len; at += piece, piece = cut ? len - cut : 1)
        assert_int_equal(
            hx_reply_push(r, text + at, piece < len - at ? piece : len - at, reply_collect, o), 0);
    assert_int_equal(hx_reply_finish(r, HX_REPLY_END_EOS, reply_collect, o), 0);
    o->n_calls = hx_reply_n_calls(r);
    hx_reply_free(r);
}

static void expect_every_cut(const struct cut_row *row)
{
    for (int streaming = 0; streaming < 2; streaming++) {
        const struct hx_reply_options opt = {.thinking = row->thinking,
                                             .tools = tools,
                                             .parallel_tool_calls = !row->serial,
                                             .streaming = streaming};
        for (size_t cut = 0; cut <= strlen(row->text); cut++) {
            struct reply_result o;
            run_cut(&opt, row->text, cut, &o);
            expect_row(row, &o);
            reply_result_done(&o);
        }
    }
}

/* Texts whose result once depended on where they were cut, or read a buffer that was not there. */
static void test_every_cut(void **state)
{
    (void)state;
    static const struct cut_row row[] = {
        /* White space behind dropped text is that of the next tag. */
        {BLOCK BASH "x\n" VALUE CLOSED, false, false, "", "", "bash", "{\"command\": \"ls\"}", 1, 1,
         "stray_text,"},
        {BLOCK BASH "x \n\n" VALUE CLOSED, false, false, "", "", "bash", "{\"command\": \"ls\"}", 1,
         1, "stray_text,"},
        /* ... and is restored with it. */
        {BLOCK BASH "x \n<｜DSML｜ invoke>\n\n" CLOSED, false, false, "",
         " \n<｜DSML｜ invoke>\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>", "bash", "{}", 1, 0,
         "stray_text,implicit_invoke_close,restored_text,"},
        /* The wrapper's closer behind a restored block, whatever white space is between. */
        {BLOCK BASH "</think> \n</｜DSML｜ calls>", true, false, BLOCK BASH, " \n</｜DSML｜ calls>",
         NULL, NULL, 0, 0, "restored_text,"},
        {BLOCK BASH "</think>\n\n\n</｜DSML｜ calls>\n", true, false, BLOCK BASH,
         "\n\n\n</｜DSML｜ calls>\n", NULL, NULL, 0, 0, "restored_text,"},
        /* Behind other text it belongs to nothing. */
        {BLOCK BASH "</think>x\n</｜DSML｜ calls>", true, false, BLOCK BASH, "x", NULL, NULL, 0, 0,
         "restored_text,stray_closer,"},
        /* Tags without a name, names without a byte, values without a byte. */
        {BLOCK "<｜DSML｜ invoke>\n\n" CLOSED, false, false, "",
         BLOCK "<｜DSML｜ invoke>\n\n" CLOSED, NULL, NULL, 0, 0, "restored_text,"},
        {BLOCK BASH "<｜DSML｜ parameter name=\"\" string=\"false\"></｜DSML｜ parameter>\n" CLOSED,
         false, false, "", "", "bash", "{\"\": \"\"}", 1, 1, "not_json,"},
        {"", false, false, "", "", NULL, NULL, 0, 0, ""},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect_every_cut(&row[i]);
}

/* Without parallel calls the first call is the last: the stop follows it at once, and what the
 * engine had generated further is ignored. */
static void test_serial_calls(void **state)
{
    (void)state;
    static const struct cut_row row[] = {
        {"Look:" BLOCK BASH VALUE "</｜DSML｜ invoke>\n" PING CLOSED, false, false, "",
         "Look:", "bash", "{\"command\": \"ls\"}", 2, 1, ""},
        {"Look:" BLOCK BASH VALUE "</｜DSML｜ invoke>\n" PING CLOSED, false, true, "",
         "Look:", "bash", "{\"command\": \"ls\"}", 1, 1, ""},
        {BLOCK BASH VALUE "</｜DSML｜ invoke>", false, true, "", "", "bash",
         "{\"command\": \"ls\"}", 1, 1, ""},
        {BLOCK BASH VALUE "</｜DSML｜ invoke>\nand text", false, true, "", "", "bash",
         "{\"command\": \"ls\"}", 1, 1, ""},
        /* The block in reasoning, and one that is held because it must be healed. */
        {"Hm." BLOCK PING "</｜DSML｜ invoke>\n" BASH VALUE CLOSED, true, true, "Hm.", "", "ping",
         "{}", 1, 1, "call_in_reasoning,"},
        {"<invoke name=\"ping\">\n</invoke>\n<invoke name=\"ping\">\n</invoke>", false, true, "",
         "", "ping", "{}", 1, 1, "xml_idiom,whitespace,"},
        /* A block without a call is no first call. */
        {"Hi" BLOCK "</｜DSML｜ calls>" BLOCK PING "</｜DSML｜ invoke>\n" PING CLOSED, false, true,
         "", "Hi", "ping", "{}", 1, 1, "empty_block,"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect_every_cut(&row[i]);
}

/* A call, then a restored invoke that ends the block, then a wrapper that is a quotation, then a
 * call: the first call keeps its index and the second gets the next one. Found by fuzz_reply. */
static void test_restored_block_behind_a_call(void **state)
{
    (void)state;
    static const char text[] = "<invoke name=bash><｜DSML｜invoke><｜DSML｜calls>s"
                               "<invoke name=\"bash\"></invoke>";
    for (int streaming = 0; streaming < 2; streaming++) {
        const struct hx_reply_options opt = {
            .tools = tools, .parallel_tool_calls = true, .streaming = streaming};
        for (size_t cut = 0; cut < sizeof(text); cut++) {
            struct reply_result o;
            run_cut(&opt, text, cut, &o);
            assert_int_equal(o.n_calls, 2);
            for (int i = 0; i < 2; i++) {
                assert_true(o.complete[i]);
                assert_int_equal(o.args[i].len, 2);
                assert_memory_equal(o.args[i].data, "{}", 2);
            }
            reply_result_done(&o);
        }
    }
}

/* Of the processor: other programs must not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Twice the text must not take much more than twice the time, whatever the text is. */
static void test_time_is_linear(void **state)
{
    (void)state;
    static const struct {
        const char *head, *body;
    } row[] = {
        {"", "<"},
        {"", "\n"},
        {"", "<｜DSML"},
        {"", "<｜DSML｜ calls>"},
        {"", "<｜DSML｜ calls>\n\n"},
        {"", "<｜DSML｜ invoke name=\"<｜DSML｜ invoke name='"},
        {"", "</｜DSML｜ parameter>"},
        {"", "<parameter name=\"path\">a</parameter> "},
        {"<｜DSML｜ calls>\n", " "},
        {"\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"bash\">\n<｜DSML｜ parameter "
         "name=\"command\" "
         "string=\"true\">",
         "</｜DSML｜ parameter>\n"},
        {"\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"bash\">\n<｜DSML｜ parameter "
         "name=\"command\" "
         "string=\"true\">a</｜DSML｜ parameter>",
         " "},
        {"\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"bash\">\n<｜DSML｜ parameter "
         "name=\"timeout\" "
         "string=\"false\">",
         "["},
        {"<parameter name=\"i\">", "x<"},
        {"\n\n<｜DSML｜ calls>\n", "<｜DSML｜ invoke name=\"ping\">\n\n</｜DSML｜ invoke>\n"},
    };
    const size_t size = 1 << 20;
    char *text = malloc(size + 1024);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        for (int streaming = 0; streaming < 2; streaming++) {
            double took[2];
            for (int k = 0; k < 2; k++) {
                size_t len = strlen(row[i].head), n = strlen(row[i].body);
                memcpy(text, row[i].head, len);
                for (; len + n < (k ? size : size / 4); len += n)
                    memcpy(text + len, row[i].body, n);
                const struct hx_reply_options opt = {
                    .tools = tools, .parallel_tool_calls = true, .streaming = streaming};
                struct reply_result o;
                double start = seconds();
                assert_int_equal(reply_run(&opt, text, len, 3, 0, HX_REPLY_END_EOS, &o), 0);
                took[k] = seconds() - start;
                reply_result_done(&o);
            }
            /* Four times the text; sixteen times the time would be a square. */
            if (took[1] > 9 * took[0] + 0.2)
                fail_msg("row %zu: %.3f s for a quarter, %.3f s for all", i, took[0], took[1]);
        }
    }
    free(text);
}

static int load(void **state)
{
    (void)state;
    heal_doc = load_json("tests/vectors/chat/heal.json");
    tools = make_tools(hx_jv_get(hx_json_root(heal_doc), "tools"));
    return 0;
}

static int unload(void **state)
{
    (void)state;
    hx_tools_free(tools);
    hx_json_free(heal_doc);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heal_cases),     cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_serial_calls),   cmocka_unit_test(test_restored_block_behind_a_call),
        cmocka_unit_test(test_time_is_linear),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
