/* From a chat request to the encoder's input (docs/chat.md). */
#include <hx/chat.h>

#include <stdlib.h>
#include <string.h>

#include "text/effort.h"
#include "text/prompt.h"
#include "text/template.h"
#include "text/tools.h"

static int bad(struct hx_error *err, const char *param, const char *slug, const char *what)
{
    return hx_fail_param(err, -EINVAL, param, slug, "%s %s", param, what);
}

static bool given(struct hx_jv v)
{
    return hx_jv_type(v) > HX_JSON_NULL;
}

static int read_bool(struct hx_jv v, const char *param, bool *out, struct hx_error *err)
{
    if (!given(v) || hx_jv_bool(v, out))
        return 0;
    return bad(err, param, "invalid_type", "must be true or false");
}

static int read_object(struct hx_jv request, const char *key, struct hx_jv *out,
                       struct hx_error *err)
{
    *out = hx_jv_get(request, key);
    if (!given(*out) || hx_jv_type(*out) == HX_JSON_OBJECT)
        return 0;
    return bad(err, key, "invalid_type", "must be an object");
}

/* thinking.type, else chat_template_kwargs.thinking or .enable_thinking, else on. */
static int read_switch(struct hx_jv thinking, struct hx_jv kwargs, bool *on, struct hx_error *err)
{
    *on = true;
    struct hx_jv type = hx_jv_get(thinking, "type");
    if (given(type)) {
        *on = !hx_jv_str_is(type, "disabled");
        if (!*on || hx_jv_str_is(type, "enabled") || hx_jv_str_is(type, "adaptive"))
            return 0;
        return bad(err, "thinking", "invalid_value",
                   "must have the type enabled, adaptive or disabled");
    }
    struct hx_jv v = hx_jv_get(kwargs, "thinking");
    if (given(v))
        return read_bool(v, "chat_template_kwargs.thinking", on, err);
    return read_bool(hx_jv_get(kwargs, "enable_thinking"), "chat_template_kwargs.enable_thinking",
                     on, err);
}

static int read_reasoning(struct hx_jv request, enum hx_effort_table table,
                          struct hx_template_options *opt, struct hx_error *err)
{
    struct hx_jv thinking, reasoning, kwargs;
    int r = read_object(request, "thinking", &thinking, err);
    if (r == 0)
        r = read_object(request, "reasoning", &reasoning, err);
    if (r == 0)
        r = read_object(request, "chat_template_kwargs", &kwargs, err);
    if (r < 0)
        return r;
    const struct {
        struct hx_jv v;
        const char *param;
    } source[] = {
        {hx_jv_get(request, "reasoning_effort"), "reasoning_effort"},
        {hx_jv_get(reasoning, "effort"), "reasoning.effort"},
        {hx_jv_get(kwargs, "reasoning_effort"), "chat_template_kwargs.reasoning_effort"},
    };
    size_t i = 0;
    while (i < 2 && !given(source[i].v))
        i++;
    bool off, on;
    r = hx_effort_read(source[i].v, table, 0, source[i].param, &opt->effort, &off, err);
    if (r == 0)
        r = read_switch(thinking, kwargs, &on, err);
    if (r == 0)
        opt->thinking = on && !off;
    return r;
}

static int read_named_choice(struct hx_jv v, struct hx_chat *c, struct hx_error *err)
{
    size_t len;
    const char *name = hx_jv_str(hx_jv_get(hx_jv_get(v, "function"), "name"), &len);
    if (!hx_jv_str_is(hx_jv_get(v, "type"), "function") || !name)
        return bad(err, "tool_choice", "invalid_value",
                   "must be auto, none, required or {\"type\": \"function\", \"function\": "
                   "{\"name\": ...}}");
    if (!hx_tools_find(c->tools, name, len))
        return bad(err, "tool_choice", "invalid_value", "names a function that is not in tools");
    c->forced_name = strndup(name, len);
    if (!c->forced_name)
        return hx_fail(err, -ENOMEM, "out of memory for the request");
    c->tool_choice = HX_TOOL_NAMED;
    return 0;
}

static int read_tools(struct hx_jv request, struct hx_chat *c, struct hx_error *err)
{
    struct hx_jv tools = hx_jv_get(request, "tools"), choice = hx_jv_get(request, "tool_choice");
    if (given(tools) && (hx_jv_type(tools) != HX_JSON_ARRAY || hx_jv_first(tools).doc)) {
        int r = hx_tools_new(tools, &c->tools, err);
        if (r < 0)
            return r;
    }
    c->parallel_tool_calls = true;
    int r = read_bool(hx_jv_get(request, "parallel_tool_calls"), "parallel_tool_calls",
                      &c->parallel_tool_calls, err);
    if (r < 0 || !given(choice) || hx_jv_str_is(choice, "auto"))
        return r;
    if (hx_jv_str_is(choice, "none")) {
        c->tool_choice = HX_TOOL_NONE;
        return 0;
    }
    if (hx_jv_type(choice) != HX_JSON_OBJECT && !hx_jv_str_is(choice, "required"))
        return bad(err, "tool_choice", "invalid_value",
                   "must be auto, none, required or a function");
    if (!c->tools)
        return bad(err, "tool_choice", "invalid_value", "needs tools");
    if (hx_jv_type(choice) == HX_JSON_OBJECT)
        return read_named_choice(choice, c, err);
    c->tool_choice = HX_TOOL_REQUIRED;
    return 0;
}

static int read_format(struct hx_jv request, struct hx_jv *schema, bool *json_object,
                       struct hx_error *err)
{
    struct hx_jv format;
    *schema = HX_JV_NONE;
    *json_object = false;
    int r = read_object(request, "response_format", &format, err);
    if (r < 0 || !given(format))
        return r;
    struct hx_jv type = hx_jv_get(format, "type");
    if (hx_jv_str_is(type, "text"))
        return 0;
    if (hx_jv_str_is(type, "json_object")) {
        *json_object = true;
        return 0;
    }
    if (!hx_jv_str_is(type, "json_schema"))
        return bad(err, "response_format", "invalid_value",
                   "must have the type text, json_object or json_schema");
    *schema = hx_jv_get(hx_jv_get(format, "json_schema"), "schema");
    if (hx_jv_type(*schema) != HX_JSON_OBJECT)
        return bad(err, "response_format", "invalid_value", "needs json_schema.schema, an object");
    return 0;
}

static bool holds_text(struct hx_jv content)
{
    size_t len = 0;
    return hx_jv_type(content) == HX_JSON_ARRAY ? hx_jv_first(content).doc != NULL
                                                : hx_jv_str(content, &len) && len > 0;
}

/* Prefix mode: the last message is an assistant's and goes on. */
static int read_prefix(struct hx_jv request, struct hx_jv last, struct hx_messages *m,
                       struct hx_template_options *opt, struct hx_error *err)
{
    struct hx_jv header = hx_jv_get(request, "add_generation_prompt");
    bool go_on = false, prefix = false;
    opt->add_header = true;
    int r = read_bool(header, "add_generation_prompt", &opt->add_header, err);
    if (r == 0)
        r = read_bool(hx_jv_get(request, "continue_final_message"), "continue_final_message",
                      &go_on, err);
    if (r == 0)
        r = read_bool(hx_jv_get(last, "prefix"), "messages[].prefix", &prefix, err);
    if (r < 0)
        return r;
    if (go_on && given(header) && opt->add_header)
        return bad(err, "continue_final_message", "invalid_value",
                   "and add_generation_prompt cannot both be true");
    struct hx_message *end = &m->item[m->n - 1];
    if (go_on && end->role != HX_ROLE_ASSISTANT)
        return bad(err, "continue_final_message", "invalid_value",
                   "needs an assistant message at the end");
    if (end->role == HX_ROLE_ASSISTANT && (go_on || prefix)) {
        end->no_eos = true;
        end->open_reasoning =
            holds_text(end->reasoning) && !holds_text(end->content) && !hx_jv_first(end->calls).doc;
    }
    return 0;
}

static int check_request(struct hx_jv request, struct hx_jv *list, struct hx_jv *last,
                         struct hx_error *err)
{
    if (hx_jv_type(request) != HX_JSON_OBJECT)
        return hx_fail_param(err, -EINVAL, NULL, "invalid_type",
                             "the request must be a JSON object");
    unsigned n = 0;
    for (struct hx_jv m = hx_jv_first(request); m.doc; m = hx_jv_next(m))
        n += hx_jv_str_is(hx_jv_key(m), "messages");
    if (n > 1)
        return bad(err, "messages", "invalid_json", "is given twice");
    *list = hx_jv_get(request, "messages");
    if (!given(*list))
        return bad(err, "messages", "missing_required_parameter", "is required");
    if (hx_jv_type(*list) != HX_JSON_ARRAY)
        return bad(err, "messages", "invalid_type", "must be a list");
    *last = HX_JV_NONE;
    for (struct hx_jv m = hx_jv_first(*list); m.doc; m = hx_jv_next(m))
        *last = m;
    if (!last->doc)
        return bad(err, "messages", "invalid_value", "must hold at least one message");
    return 0;
}

static int from_request(struct hx_jv request, enum hx_effort_table table, struct hx_chat *c,
                        struct hx_messages *m, struct hx_error *err)
{
    struct hx_jv list, last, schema = HX_JV_NONE;
    bool json_object = false;
    struct hx_template_options opt = {0};
    int r = check_request(request, &list, &last, err);
    if (r == 0)
        r = read_reasoning(request, table, &opt, err);
    if (r == 0)
        r = read_tools(request, c, err);
    if (r == 0)
        r = read_format(request, &schema, &json_object, err);
    if (r < 0)
        return r;
    bool front = c->tools || json_object || given(schema);
    r = hx_messages_read(list, 0, front, m, err);
    if (r < 0)
        return r;
    if (c->tools)
        m->item[0].tools = hx_jv_get(request, "tools");
    m->item[0].format = schema;
    m->item[0].json_object = json_object;
    r = read_prefix(request, last, m, &opt, err);
    if (r < 0)
        return r;
    struct hx_template_end end;
    r = hx_template_render(m, &opt, &c->prompt, &end, err);
    if (r < 0)
        return r;
    c->thinking = end.in_reasoning;
    c->in_content = end.in_content;
    c->n_images = end.n_images;
    return 0;
}

int hx_chat_from_request(struct hx_jv request, enum hx_effort_table effort_table,
                         struct hx_chat *out, struct hx_error *err)
{
    struct hx_chat c = {0};
    struct hx_messages m = {0};
    int r = from_request(request, effort_table, &c, &m, err);
    hx_messages_done(&m);
    if (r < 0) {
        hx_chat_done(&c);
        return r;
    }
    *out = c;
    return 0;
}

void hx_chat_done(struct hx_chat *c)
{
    hx_prompt_done(&c->prompt);
    hx_tools_free(c->tools);
    free(c->forced_name);
    *c = (struct hx_chat){0};
}

int hx_chat_forced_prefix(const struct hx_chat *c, struct hx_prompt *out, struct hx_error *err)
{
    struct hx_prompt p;
    hx_prompt_init(&p);
    if (c->tool_choice == HX_TOOL_REQUIRED || c->tool_choice == HX_TOOL_NAMED) {
        hx_prompt_template(&p, "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"");
        if (c->tool_choice == HX_TOOL_NAMED)
            hx_prompt_puts(&p, c->forced_name);
    }
    int r = hx_prompt_check(&p, err);
    if (r < 0) {
        hx_prompt_done(&p);
        return r;
    }
    *out = p;
    return 0;
}
