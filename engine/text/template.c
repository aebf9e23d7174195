/* Prompt encoder: turns to segments (chat.md section 3). */
#include "text/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "text/prompt.h"
#include "text/tools.h"

static const char effort_line[] =
    "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

static const char format_head[] =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

static const char tools_head[] =
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can "
    "invoke tools by writing a \"<｜DSML｜ calls>\" block like the following:\n\n"
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜ parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜ parameter>\n...\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n...\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";

static const char tools_tail[] =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

struct render {
    const struct hx_messages *m;
    const struct hx_template_options *opt;
    struct hx_prompt *p;
    struct hx_template_end end;
    bool keep;        /* nothing is dropped */
    size_t last_user; /* SIZE_MAX: none */
    bool open;        /* a header was written and its turn is not finished */
    struct hx_error *err;
};

static void put_str(struct render *r, struct hx_jv v)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    if (s)
        hx_prompt_text(r->p, s, len);
}

static void put_json(struct render *r, struct hx_jv v)
{
    struct hx_json_writer w;
    size_t from = r->p->text.len;
    hx_jw_init(&w, &r->p->text, true);
    hx_jw_value(&w, v);
    hx_prompt_plain_since(r->p, from);
}

/* ---- content --------------------------------------------------------------------------------- */

static bool is_image(struct hx_jv part)
{
    struct hx_jv type = hx_jv_get(part, "type");
    return hx_jv_str_is(type, "image_url") || hx_jv_str_is(type, "image");
}

static void put_image(struct render *r)
{
    hx_prompt_token(r->p, HX_T_IMAGE);
    r->end.n_images++;
}

/* Content of a message that is no user turn, or of a tool result: the texts and images of a list
 * are joined by a blank line, other parts vanish. */
static void put_content(struct render *r, struct hx_jv content)
{
    if (hx_jv_type(content) != HX_JSON_ARRAY) {
        put_str(r, content);
        return;
    }
    bool first = true;
    for (struct hx_jv p = hx_jv_first(content); p.doc; p = hx_jv_next(p)) {
        bool image = is_image(p);
        if (!image && !hx_jv_str_is(hx_jv_get(p, "type"), "text"))
            continue;
        if (!first)
            hx_prompt_puts(r->p, "\n\n");
        first = false;
        if (image)
            put_image(r);
        else
            put_str(r, hx_jv_get(p, "text"));
    }
}

static void put_block(struct render *r, const struct hx_block *b)
{
    if (b->result) {
        hx_prompt_puts(r->p, "<tool_result>");
        put_content(r, b->content);
        hx_prompt_puts(r->p, "</tool_result>");
    } else if (hx_jv_type(b->content) != HX_JSON_OBJECT) {
        put_str(r, b->content);
    } else if (is_image(b->content)) {
        put_image(r);
    } else if (hx_jv_str_is(hx_jv_get(b->content, "type"), "text")) {
        put_str(r, hx_jv_get(b->content, "text"));
    } else {
        hx_prompt_puts(r->p, "[Unsupported ");
        put_str(r, hx_jv_get(b->content, "type"));
        hx_prompt_puts(r->p, "]");
    }
}

static int put_system(struct render *r, const struct hx_message *m)
{
    put_content(r, m->content);
    if (hx_jv_type(m->tools) == HX_JSON_ARRAY) {
        hx_prompt_puts(r->p, "\n\n");
        hx_prompt_template(r->p, tools_head);
        for (struct hx_jv t = hx_jv_first(m->tools); t.doc; t = hx_jv_next(t)) {
            if (t.at != hx_jv_first(m->tools).at)
                hx_prompt_puts(r->p, "\n");
            size_t from = r->p->text.len;
            int e = hx_tool_put_line(t, &r->p->text, r->err);
            if (e < 0)
                return e;
            hx_prompt_plain_since(r->p, from);
        }
        hx_prompt_puts(r->p, tools_tail);
    }
    if (m->json_object || hx_jv_type(m->format) > HX_JSON_NULL) {
        hx_prompt_puts(r->p, "\n\n");
        hx_prompt_puts(r->p, format_head);
        if (m->json_object)
            hx_prompt_puts(r->p, "{\"type\": \"json_object\"}");
        else
            put_json(r, m->format);
    }
    return 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct member {
    const char *key;
    size_t len, place;
    struct hx_jv value;
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = memcmp(x->key, y->key, x->len < y->len ? x->len : y->len);
    if (c == 0)
        c = (x->len > y->len) - (x->len < y->len);
    return c ? c : (x->place > y->place) - (x->place < y->place);
}

static int by_place(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

static void put_parameter(struct render *r, const char *key, size_t len, struct hx_jv value)
{
    bool string = hx_jv_type(value) == HX_JSON_STRING;
    hx_prompt_template(r->p, "<｜DSML｜ parameter name=\"");
    hx_prompt_text(r->p, key, len);
    hx_prompt_puts(r->p, string ? "\" string=\"true\">" : "\" string=\"false\">");
    if (string)
        put_str(r, value);
    else
        put_json(r, value);
    hx_prompt_template(r->p, "</｜DSML｜ parameter>\n");
}

/* The members of an argument object; duplicate keys: position of the first, value of the last. */
static int put_members(struct render *r, struct hx_jv object)
{
    size_t n = hx_jv_count(object), kept = 0, i = 0;
    if (n == 0) {
        hx_prompt_puts(r->p, "\n");
        return 0;
    }
    struct member *m = calloc(n, sizeof(*m));
    if (!m)
        return hx_fail(r->err, -ENOMEM, "out of memory for the arguments of a call");
    for (struct hx_jv v = hx_jv_first(object); v.doc; v = hx_jv_next(v), i++) {
        m[i].key = hx_jv_str(hx_jv_key(v), &m[i].len);
        m[i].place = i;
        m[i].value = v;
    }
    qsort(m, n, sizeof(*m), by_key);
    for (i = 0; i < n; i++) {
        struct member *last = kept ? &m[kept - 1] : NULL;
        if (last && last->len == m[i].len && memcmp(last->key, m[i].key, last->len) == 0)
            last->value = m[i].value;
        else
            m[kept++] = m[i];
    }
    qsort(m, kept, sizeof(*m), by_place);
    for (i = 0; i < kept; i++)
        put_parameter(r, m[i].key, m[i].len, m[i].value);
    free(m);
    return 0;
}

/* Parses a string of JSON; *doc stays NULL if it is none. */
static int parse_string(struct hx_jv v, struct hx_json **doc, struct hx_error *err)
{
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    limits.max_bytes = HX_PROMPT_MAX;
    limits.flags = HX_JSON_ALLOW_NONFINITE;
    size_t len;
    const char *s = hx_jv_str(v, &len);
    int e = s ? hx_json_parse(s, len, &limits, doc, err) : 0;
    return e == -ENOMEM ? e : 0;
}

static int put_arguments(struct render *r, struct hx_jv value)
{
    if (hx_jv_type(value) <= HX_JSON_NULL || hx_jv_type(value) == HX_JSON_OBJECT)
        return put_members(r, value);
    struct hx_json *once = NULL, *twice = NULL;
    int e = parse_string(value, &once, r->err);
    struct hx_jv v = once ? hx_json_root(once) : HX_JV_NONE;
    if (e == 0 && hx_jv_type(v) == HX_JSON_STRING) {
        e = parse_string(v, &twice, r->err);
        v = twice ? hx_json_root(twice) : HX_JV_NONE;
    }
    if (e == 0 && hx_jv_type(v) == HX_JSON_OBJECT)
        e = put_members(r, v);
    else if (e == 0)
        put_parameter(r, "arguments", strlen("arguments"), value);
    hx_json_free(once);
    hx_json_free(twice);
    return e;
}

static int put_calls(struct render *r, struct hx_jv calls)
{
    hx_prompt_template(r->p, "\n\n<｜DSML｜ calls>\n");
    for (struct hx_jv c = hx_jv_first(calls); c.doc; c = hx_jv_next(c)) {
        char name[HX_TOOL_FULL_NAME_MAX];
        struct hx_jv function = hx_jv_get(c, "function");
        int e = hx_tool_full_name(c, function, "messages[].tool_calls", name, r->err);
        if (e < 0)
            return e;
        hx_prompt_template(r->p, "<｜DSML｜ invoke name=\"");
        hx_prompt_puts(r->p, name);
        hx_prompt_puts(r->p, "\">\n");
        e = put_arguments(r, hx_jv_get(function, "arguments"));
        if (e < 0)
            return e;
        hx_prompt_template(r->p, "</｜DSML｜ invoke>\n");
    }
    hx_prompt_template(r->p, "</｜DSML｜ calls>");
    return 0;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static bool in_last_turn(const struct render *r, size_t i)
{
    return r->keep || r->last_user == SIZE_MAX || i >= r->last_user;
}

static int put_assistant(struct render *r, const struct hx_message *m, size_t i)
{
    bool after_task = i > 0 && r->m->item[i - 1].task;
    bool think = r->opt->thinking && !after_task && in_last_turn(r, i);
    bool open = think && m->no_eos && m->open_reasoning;
    if (think) {
        put_str(r, m->reasoning);
        if (!open)
            hx_prompt_token(r->p, HX_T_THINK_END);
    }
    put_content(r, m->content);
    if (hx_jv_first(m->calls).doc) {
        int e = put_calls(r, m->calls);
        if (e < 0)
            return e;
    }
    if (!m->no_eos)
        hx_prompt_token(r->p, HX_T_EOS);
    r->open = m->no_eos;
    r->end.in_reasoning = open;
    r->end.in_content = m->no_eos && !open;
    return 0;
}

static void put_header(struct render *r, bool think)
{
    hx_prompt_token(r->p, HX_T_ASSISTANT);
    hx_prompt_token(r->p, think ? HX_T_THINK : HX_T_THINK_END);
    r->open = true;
    r->end.in_reasoning = think;
    r->end.in_content = false;
}

static int put_message(struct render *r, size_t i)
{
    const struct hx_message *m = &r->m->item[i];
    switch (m->role) {
    case HX_ROLE_SYSTEM:
        if (i > 0)
            hx_prompt_token(r->p, HX_T_SYSTEM);
        r->open = false;
        return put_system(r, m);
    case HX_ROLE_USER:
        hx_prompt_token(r->p, HX_T_USER);
        r->open = false;
        for (size_t b = 0; b < m->n_blocks; b++) {
            if (b > 0)
                hx_prompt_puts(r->p, "\n\n");
            put_block(r, &r->m->block[m->block + b]);
        }
        return 0;
    case HX_ROLE_REMINDER:
        hx_prompt_token(r->p, HX_T_REMINDER);
        put_content(r, m->content);
        return 0;
    case HX_ROLE_ASSISTANT: return put_assistant(r, m, i);
    default:
        return hx_fail_param(r->err, -EINVAL, "messages[].role", "invalid_value",
                             "messages[%zu]: unknown role", i);
    }
}

static void put_transition(struct render *r, size_t i)
{
    const struct hx_message *m = &r->m->item[i];
    if (i + 1 < r->m->n) {
        enum hx_role next = r->m->item[i + 1].role;
        if (next != HX_ROLE_ASSISTANT && next != HX_ROLE_REMINDER)
            return;
    }
    if (m->task && m->task_is_action)
        put_header(r, r->opt->thinking);
    if (m->task) {
        hx_prompt_token(r->p, m->task);
        r->open = true;
    } else if (m->role == HX_ROLE_USER || (m->role == HX_ROLE_SYSTEM && i > 0)) {
        put_header(r, r->opt->thinking && in_last_turn(r, i));
    }
}

static size_t find_last_user(const struct hx_messages *m)
{
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < m->n; i++) {
        if (m->item[i].role == HX_ROLE_USER || (m->item[i].role == HX_ROLE_SYSTEM && i > 0))
            last = i;
    }
    return last;
}

/* Messages of unknown roles in front of the last user vanish with the old reasoning. */
static void drop_unknown(struct hx_messages *m, size_t last_user)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (m->item[i].role != HX_ROLE_OTHER || last_user == SIZE_MAX || i >= last_user)
            m->item[kept++] = m->item[i];
    }
    m->n = kept;
}

static int render(struct render *r, struct hx_messages *m)
{
    int e = hx_messages_sort_results(m, r->err);
    if (e < 0)
        return e;
    r->keep = r->opt->keep_thinking;
    for (size_t i = 0; i < m->n; i++)
        r->keep = r->keep || hx_jv_type(m->item[i].tools) == HX_JSON_ARRAY;
    if (r->opt->thinking && !r->keep)
        drop_unknown(m, find_last_user(m));
    r->last_user = find_last_user(m);

    if (!r->opt->no_bos && r->opt->n_context == 0)
        hx_prompt_token(r->p, HX_T_BOS);
    for (size_t i = r->opt->n_context; i < m->n; i++) {
        if (i == 0 && (r->opt->thinking || m->item[0].role == HX_ROLE_SYSTEM))
            hx_prompt_token(r->p, HX_T_SYSTEM);
        if (i == 0 && r->opt->thinking) {
            char line[128];
            snprintf(line, sizeof(line), effort_line, r->opt->effort);
            hx_prompt_puts(r->p, line);
        }
        e = put_message(r, i);
        if (e < 0)
            return e;
        put_transition(r, i);
    }
    if (r->opt->add_header && !r->open && m->n > 0)
        put_header(r, r->opt->thinking);
    return hx_prompt_check(r->p, r->err);
}

int hx_template_render(struct hx_messages *m, const struct hx_template_options *opt,
                       struct hx_prompt *out, struct hx_template_end *end, struct hx_error *err)
{
    struct hx_prompt p;
    hx_prompt_init(&p);
    struct render r = {.m = m, .opt = opt, .p = &p, .err = err};
    int e = render(&r, m);
    if (e < 0) {
        hx_prompt_done(&p);
        return e;
    }
    *out = p;
    *end = r.end;
    return 0;
}
