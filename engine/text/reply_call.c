/* What the state machine does: text out, held events, arguments, calls. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_state.h"

/* ---- text and holds -------------------------------------------------------------------------- */

int hx_reply_emit_code(struct hx_reply *r, enum hx_heal code)
{
    const char *name = hx_heal_name(code);
    return hx_out_emit(&r->out, HX_REPLY_HEALED, 0, name, strlen(name));
}

int hx_reply_heal(struct hx_reply *r, unsigned bits)
{
    bits &= ~r->healed;
    r->healed |= bits;
    for (unsigned code = 0; code < HX_HEAL_MAX; code++) {
        if (bits & HX_HEAL_BIT(code)) {
            int e = hx_reply_emit_code(r, (enum hx_heal)code);
            if (e < 0)
                return e;
        }
    }
    return 0;
}

static int emit_text(struct hx_reply *r, enum hx_reply_state state, const char *s, size_t len)
{
    for (size_t i = 0; i < len && !(r->content_seen && !r->after_stray && !r->after_restored);
         i++) {
        if (!strchr(" \t\r\n", s[i]) || s[i] == '\0') {
            r->content_seen = r->content_seen || state != HX_IN_REASONING;
            r->after_stray = r->after_restored = false;
        }
    }
    return hx_out_emit(&r->out, state == HX_IN_REASONING ? HX_REPLY_REASONING : HX_REPLY_CONTENT, 0,
                       s, len);
}

int hx_reply_consume(struct hx_reply *r, size_t n)
{
    if ((r->whole || r->held) && hx_buf_append(&r->raw, hx_reply_text_at(r, r->at), n) < 0)
        return -ENOMEM;
    r->at += n;
    if (r->scan < r->at)
        r->scan = r->at;
    r->follow = 0;
    return 0;
}

int hx_reply_pass_text(struct hx_reply *r, size_t upto)
{
    if (upto <= r->at)
        return 0;
    int e = emit_text(r, r->state == HX_IN_SPAN ? r->origin : r->state, hx_reply_text_at(r, r->at),
                      upto - r->at);
    return e < 0 ? e : hx_reply_consume(r, upto - r->at);
}

void hx_reply_hold(struct hx_reply *r)
{
    r->held = true;
    r->out.holding = true;
    r->mark = (struct hx_out_mark){.n_events = r->out.n_events,
                                   .n_text = r->out.text.len,
                                   .raw = r->raw.len,
                                   .n_calls = r->n_calls};
}

/* The held part is what it seemed to be. */
static int release(struct hx_reply *r)
{
    r->held = false;
    if (r->whole)
        return 0;
    hx_buf_clear(&r->raw);
    return hx_out_commit(&r->out);
}

void hx_reply_drop_held(struct hx_reply *r)
{
    hx_out_rollback(&r->out, r->mark.n_events, r->mark.n_text);
    r->n_calls = r->mark.n_calls;
    r->held = false;
}

int hx_reply_restore(struct hx_reply *r, bool all, bool counted)
{
    /* All of the block goes, but calls that were delivered or belong to an earlier block stay. */
    if (all)
        r->mark = (struct hx_out_mark){.n_calls = r->whole ? r->n_calls - r->block_calls
                                                           : r->mark.n_calls};
    hx_reply_drop_held(r);
    size_t from = r->mark.raw;
    r->whole = r->whole && from > 0;
    int e = 0;
    if (!r->whole)
        e = hx_out_commit(&r->out);
    r->state = r->origin;
    if (e == 0)
        e = emit_text(r, r->origin, hx_reply_bytes(&r->raw) + from, r->raw.len - from);
    if (e == 0 && counted)
        e = hx_reply_emit_code(r, HX_HEAL_RESTORED_TEXT);
    if (e == 0 && r->whole) {
        r->whole = false;
        e = hx_out_commit(&r->out);
    }
    hx_buf_clear(&r->raw);
    r->after_restored = true;
    return e;
}

void hx_reply_begin_block(struct hx_reply *r, bool wrapper)
{
    hx_buf_clear(&r->raw);
    r->origin = r->state;
    r->wrapper = wrapper;
    r->recovered = false;
    r->block_calls = 0;
    r->healed = 0;
    r->after_stray = r->after_restored = false;
    r->whole = !r->opt.streaming;
    hx_reply_hold(r);
}

int hx_reply_finish_block(struct hx_reply *r, bool stop)
{
    r->whole = r->held = false;
    int e = hx_out_commit(&r->out);
    r->state = HX_IS_DONE;
    return e == 0 && stop ? hx_out_emit(&r->out, HX_REPLY_STOP, 0, "", 0) : e;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int put_args(struct hx_reply *r, const void *s, size_t len)
{
    return hx_out_emit(&r->out, HX_REPLY_CALL_ARGS, r->n_calls, s, len);
}

static int put_key(struct hx_reply *r, const char *name, size_t len)
{
    hx_buf_clear(&r->json);
    hx_buf_puts(&r->json, r->n_params ? ", \"" : "{\"");
    hx_json_escape(&r->json, name, len);
    hx_buf_puts(&r->json, "\": ");
    int known = hx_name_set_add(&r->names, name, len);
    if (known < 0 || r->json.failed)
        return -ENOMEM;
    r->n_params++;
    int e = known ? hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_DUPLICATE_PARAM)) : 0;
    return e < 0 ? e : put_args(r, r->json.data, r->json.len);
}

static enum hx_schema_type type_of(const struct hx_reply *r, const char *name, size_t len)
{
    const struct hx_tool_property *p = r->tool ? hx_tool_property(r->tool, name, len) : NULL;
    return p ? p->type : HX_SCHEMA_UNKNOWN;
}

static int put_param(struct hx_reply *r, const char *name, size_t name_len,
                     enum hx_string_attr attr, bool plain, const char *value, size_t len)
{
    int e = put_key(r, name, name_len);
    if (e < 0)
        return e;
    unsigned bits = 0;
    hx_buf_clear(&r->json);
    e = hx_value_to_json(type_of(r, name, name_len), attr, value, len, &r->json, &bits);
    if (e < 0)
        return e;
    if (plain && attr == HX_STRING_MISSING)
        bits &= ~HX_HEAL_BIT(HX_HEAL_TYPE_FROM_SCHEMA); /* XML has no such attribute */
    e = hx_reply_heal(r, bits);
    return e < 0 ? e : put_args(r, r->json.data, r->json.len);
}

static bool is_word(const struct hx_buf *b, const char *word)
{
    return b->len == strlen(word) && memcmp(hx_reply_bytes(b), word, b->len) == 0;
}

static int keep_param(struct hx_reply *r)
{
    if (r->n_params == r->cap_params) {
        size_t cap = r->cap_params ? r->cap_params * 2 : 8;
        struct hx_reply_param *param = realloc(r->param, cap * sizeof(*param));
        if (!param)
            return -ENOMEM;
        r->param = param;
        r->cap_params = cap;
    }
    struct hx_reply_param *p = &r->param[r->n_params++];
    *p = (struct hx_reply_param){.name = r->kept.len,
                                 .name_len = r->name.len,
                                 .value = r->kept.len + r->name.len,
                                 .value_len = r->value.len,
                                 .attr = r->attr,
                                 .plain = r->param_plain};
    hx_buf_append(&r->kept, r->name.data, r->name.len);
    hx_buf_append(&r->kept, r->value.data, r->value.len);
    return r->kept.failed ? -ENOMEM : 0;
}

int hx_reply_begin_param(struct hx_reply *r, const struct hx_tag *tag)
{
    hx_buf_clear(&r->name);
    hx_buf_clear(&r->value);
    hx_buf_append(&r->name, tag->name, tag->name_len);
    r->attr = tag->string;
    r->param_plain = tag->plain;
    r->type = type_of(r, tag->name, tag->name_len);
    bool whole_object = r->tool && r->n_params == 0 &&
                        !hx_tool_property(r->tool, tag->name, tag->name_len) &&
                        (is_word(&r->name, "arguments") || is_word(&r->name, "input"));
    r->streamed = !r->headless && !r->fused && !whole_object && tag->string == HX_STRING_TRUE &&
                  (r->type == HX_SCHEMA_STRING || r->type == HX_SCHEMA_UNKNOWN);
    r->quote_open = false;
    r->state = HX_IN_VALUE;
    return r->name.failed ? -ENOMEM : 0;
}

int hx_reply_take_value(struct hx_reply *r, size_t upto)
{
    if (upto <= r->at)
        return 0;
    int e = 0;
    const char *s = hx_reply_text_at(r, r->at);
    size_t len = upto - r->at;
    if (!r->streamed) {
        e = hx_buf_append(&r->value, s, len);
    } else {
        if (!r->quote_open)
            e = put_key(r, hx_reply_bytes(&r->name), r->name.len);
        hx_buf_clear(&r->json);
        if (!r->quote_open)
            hx_buf_putc(&r->json, '"');
        r->quote_open = true;
        hx_json_escape(&r->json, s, len);
        if (e == 0)
            e = r->json.failed ? -ENOMEM : put_args(r, r->json.data, r->json.len);
    }
    return e < 0 ? e : hx_reply_consume(r, len);
}

bool hx_reply_is_blank(const struct hx_buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        if (!hx_reply_is_space((char)b->data[i]))
            return false;
    }
    return true;
}

int hx_reply_end_param(struct hx_reply *r, bool last)
{
    r->state = HX_IN_ARGS;
    if (r->streamed) {
        int e = r->quote_open ? 0 : put_key(r, hx_reply_bytes(&r->name), r->name.len);
        return e < 0 ? e : put_args(r, r->quote_open ? "\"" : "\"\"", r->quote_open ? 1 : 2);
    }
    if (r->fused) {
        r->fused = false;
        if (hx_reply_is_blank(&r->value))
            return 0;
        if (!r->tool->first_string)
            return hx_reply_restore(r, false, true);
        int e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_FUSED_NAME));
        return e < 0 ? e
                     : put_param(r, r->tool->first_string, r->tool->first_string_len,
                                 HX_STRING_TRUE, true, hx_reply_bytes(&r->value), r->value.len);
    }
    if (r->headless)
        return keep_param(r);
    const char *value = hx_reply_bytes(&r->value);
    if (last && r->n_params == 0 && r->tool &&
        !hx_tool_property(r->tool, hx_reply_bytes(&r->name), r->name.len) &&
        (is_word(&r->name, "arguments") || is_word(&r->name, "input")) &&
        hx_value_is_arguments(r->tool, value, r->value.len)) {
        int e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_UNWRAPPED_ARGUMENTS));
        size_t from = 0, end = r->value.len;
        while (value[from] != '{')
            from++;
        while (value[end - 1] != '}')
            end--;
        /* The closing brace is written with the call's end. */
        r->n_params = 1;
        return e < 0 ? e : put_args(r, value + from, end - 1 - from);
    }
    return put_param(r, hx_reply_bytes(&r->name), r->name.len, r->attr, r->param_plain, value,
                     r->value.len);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void reset_call(struct hx_reply *r)
{
    r->tool = NULL;
    r->headless = r->fused = r->junk = false;
    r->n_params = 0;
    hx_buf_clear(&r->kept);
    hx_name_set_clear(&r->names);
}

static int start_call(struct hx_reply *r, const char *name, size_t len)
{
    return hx_out_emit(&r->out, HX_REPLY_CALL_START, r->n_calls, name, len);
}

/* The one declared tool whose properties cover all parameters. */
static const struct hx_tool *infer_tool(const struct hx_reply *r)
{
    const struct hx_tool *found = NULL;
    for (size_t t = 0; t < r->opt.tools->n_tools; t++) {
        const struct hx_tool *tool = &r->opt.tools->tool[t];
        bool covers = r->n_params > 0;
        for (size_t i = 0; covers && i < r->n_params; i++)
            covers = hx_tool_property(tool, hx_reply_bytes(&r->kept) + r->param[i].name,
                                      r->param[i].name_len) != NULL;
        if (covers && found)
            return NULL;
        if (covers)
            found = tool;
    }
    return found;
}

static int replay(struct hx_reply *r)
{
    size_t n = r->n_params;
    r->n_params = 0;
    int e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_TOOL_INFERRED));
    if (e == 0)
        e = start_call(r, r->tool->name, r->tool->name_len);
    for (size_t i = 0; e == 0 && i < n; i++) {
        const struct hx_reply_param *p = &r->param[i];
        const char *kept = hx_reply_bytes(&r->kept);
        e = put_param(r, kept + p->name, p->name_len, p->attr, p->plain, kept + p->value,
                      p->value_len);
    }
    return e;
}

int hx_reply_end_call(struct hx_reply *r)
{
    int e = 0;
    if (r->headless) {
        r->tool = infer_tool(r);
        if (!r->tool)
            return hx_reply_restore(r, false, true);
        e = replay(r);
    }
    if (e == 0 && r->origin == HX_IN_REASONING && r->block_calls == 0)
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_CALL_IN_REASONING));
    if (e == 0)
        e = r->n_params ? put_args(r, "}", 1) : put_args(r, "{}", 2);
    if (e == 0)
        e = hx_out_emit(&r->out, HX_REPLY_CALL_END, r->n_calls, "", 0);
    if (e < 0)
        return e;
    r->n_calls++;
    r->block_calls++;
    r->state = HX_IN_PREAMBLE;
    e = r->held ? release(r) : 0;
    return e < 0 || r->opt.parallel_tool_calls ? e : hx_reply_finish_block(r, true);
}

int hx_reply_start_bare_param(struct hx_reply *r, const struct hx_tag *tag)
{
    reset_call(r);
    if (!r->held)
        hx_reply_hold(r);
    r->recovered = true;
    r->tool = hx_tools_find(r->opt.tools, tag->name, tag->name_len);
    r->fused = r->tool != NULL;
    r->headless = !r->fused;
    int e = hx_reply_heal(r, tag->healed | HX_HEAL_BIT(HX_HEAL_XML_IDIOM));
    if (e == 0 && r->fused)
        e = start_call(r, r->tool->name, r->tool->name_len);
    if (e == 0)
        e = hx_reply_begin_param(r, tag);
    return e < 0 ? e : hx_reply_consume(r, tag->len);
}

int hx_reply_start_invoke(struct hx_reply *r, const struct hx_tag *tag)
{
    reset_call(r);
    bool right = r->wrapper && !r->recovered && tag->healed == 0 && tag->name_len > 0;
    const struct hx_tool *tool = hx_tools_find(r->opt.tools, tag->name, tag->name_len);
    if (!r->held && (!right || r->whole))
        hx_reply_hold(r);
    if (!right && !tool && tag->name_len > 0) {
        /* Not a declared tool: text up to its closer, not searched again. */
        int e = hx_reply_restore(r, false, r->wrapper);
        if (e < 0)
            return e;
        r->origin = r->state;
        r->state = HX_IN_SPAN;
        return hx_reply_consume(r, 0);
    }
    int e = hx_reply_heal(r, tag->healed);
    if (e == 0 && !r->wrapper && !tag->plain)
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_NO_WRAPPER));
    r->tool = tool;
    r->headless = tag->name_len == 0;
    if (e == 0 && right && r->origin == HX_IN_CONTENT && !r->whole)
        e = release(r);
    if (e == 0 && !r->headless)
        e = start_call(r, tag->name, tag->name_len);
    r->state = HX_IN_ARGS;
    return e < 0 ? e : hx_reply_consume(r, tag->len);
}
