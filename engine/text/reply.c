/* Stream parser of replies: a state machine over text that is not decided yet. Every decision
 * depends on the text alone, never on where it was cut, and no byte is searched twice. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_impl.h"

#define REPLY_MAX ((size_t)1 << 30)

enum state {
    IN_REASONING,
    IN_CONTENT,
    IN_SPAN,     /* an invoke that is no call: text up to its closer */
    IN_PREAMBLE, /* in a block, between invokes */
    IN_ARGS,     /* in an invoke, between parameters */
    IN_VALUE,
    IS_DONE,
};

struct param {
    size_t name, name_len, value, value_len; /* into r->kept */
    enum hx_string_attr attr;
    bool plain;
};

struct hx_reply {
    struct hx_reply_options opt;
    struct hx_out out;
    enum state state, origin; /* origin: what a block that turns out to be text returns to */
    bool final;               /* no more text will come */
    enum hx_reply_end end;

    struct hx_buf pend; /* text not decided yet: from `at` on */
    size_t at;
    size_t scan; /* no undecided marker begins before it */
    size_t
        follow; /* VALUE: white space behind a closer was skipped up to here; 0: no closer seen */
    size_t closer, closer_len;
    struct hx_tag_cursor cursor;

    bool content_seen; /* a visible character of content was sent */
    bool after_stray, after_restored;
    size_t quote_match; /* without tools: how much of a wrapper opener was seen */
    bool quote_counted;

    bool whole, held; /* events are kept: the block (not streamed), the invoke */
    struct hx_buf raw;
    struct hx_out_mark mark; /* of the held invoke */
    unsigned healed;         /* codes of this block that were counted */

    bool wrapper, recovered; /* the block has a wrapper; its spelling was healed */
    int n_calls, block_calls;
    const struct hx_tool *tool;
    bool headless, fused, junk;
    size_t n_params;
    struct hx_name_set names;
    struct hx_buf kept, value, json;
    struct param *param;
    size_t cap_params;

    struct hx_buf name; /* of the open parameter */
    enum hx_string_attr attr;
    bool param_plain, streamed, quote_open;
    enum hx_schema_type type;
};

int hx_reply_new(const struct hx_reply_options *opt, struct hx_reply **out, struct hx_error *err)
{
    struct hx_reply *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory for a reply");
    r->opt = *opt;
    r->state = opt->thinking ? IN_REASONING : IN_CONTENT;
    struct hx_buf *const buf[] = {&r->pend, &r->raw,  &r->kept,        &r->value,
                                  &r->json, &r->name, &r->names.names, &r->out.text};
    for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
        *buf[i] = HX_BUF_INIT(REPLY_MAX);
    *out = r;
    return 0;
}

void hx_reply_free(struct hx_reply *r)
{
    if (!r)
        return;
    struct hx_buf *const buf[] = {&r->pend, &r->raw, &r->kept, &r->value, &r->json, &r->name};
    for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
        hx_buf_done(buf[i]);
    hx_name_set_done(&r->names);
    hx_out_done(&r->out);
    free(r->param);
    free(r);
}

int hx_reply_n_calls(const struct hx_reply *r)
{
    return r->n_calls;
}

bool hx_reply_in_reasoning(const struct hx_reply *r)
{
    return r->state == IN_REASONING ||
           (r->state != IN_CONTENT && r->origin == IN_REASONING && r->n_calls == 0);
}

/* ---- text and holds -------------------------------------------------------------------------- */

/* Never NULL, also when nothing was ever written. */
static const char *bytes(const struct hx_buf *b)
{
    return b->data ? (const char *)b->data : "";
}

static const char *text_at(const struct hx_reply *r, size_t at)
{
    return bytes(&r->pend) + at;
}

static int emit_code(struct hx_reply *r, enum hx_heal code)
{
    const char *name = hx_heal_name(code);
    return hx_out_emit(&r->out, HX_REPLY_HEALED, 0, name, strlen(name));
}

/* Counts each code once a block. */
static int heal(struct hx_reply *r, unsigned bits)
{
    bits &= ~r->healed;
    r->healed |= bits;
    for (unsigned code = 0; code < HX_HEAL_MAX; code++) {
        if (bits & HX_HEAL_BIT(code)) {
            int e = emit_code(r, (enum hx_heal)code);
            if (e < 0)
                return e;
        }
    }
    return 0;
}

static int emit_text(struct hx_reply *r, enum state state, const char *s, size_t len)
{
    for (size_t i = 0; i < len && !(r->content_seen && !r->after_stray && !r->after_restored);
         i++) {
        if (!strchr(" \t\r\n", s[i]) || s[i] == '\0') {
            r->content_seen = r->content_seen || state != IN_REASONING;
            r->after_stray = r->after_restored = false;
        }
    }
    return hx_out_emit(&r->out, state == IN_REASONING ? HX_REPLY_REASONING : HX_REPLY_CONTENT, 0, s,
                       len);
}

/* Takes n bytes off the undecided text; kept for restoring while a hold is on. */
static int consume(struct hx_reply *r, size_t n)
{
    if ((r->whole || r->held) && hx_buf_append(&r->raw, text_at(r, r->at), n) < 0)
        return -ENOMEM;
    r->at += n;
    if (r->scan < r->at)
        r->scan = r->at;
    r->follow = 0;
    return 0;
}

static int pass_text(struct hx_reply *r, size_t upto)
{
    if (upto <= r->at)
        return 0;
    int e =
        emit_text(r, r->state == IN_SPAN ? r->origin : r->state, text_at(r, r->at), upto - r->at);
    return e < 0 ? e : consume(r, upto - r->at);
}

static void hold(struct hx_reply *r)
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

/* The held part counts for nothing: its events vanish. */
static void drop_held(struct hx_reply *r)
{
    hx_out_rollback(&r->out, r->mark.n_events, r->mark.n_text);
    r->n_calls = r->mark.n_calls;
    r->held = false;
}

/* The block is text after all: from the mark of the held invoke, or all of it. */
static int restore(struct hx_reply *r, bool all, bool counted)
{
    if (all)
        r->mark = (struct hx_out_mark){0};
    drop_held(r);
    if (all)
        r->n_calls = 0;
    size_t from = r->mark.raw;
    r->whole = r->whole && from > 0;
    int e = 0;
    if (!r->whole)
        e = hx_out_commit(&r->out);
    r->state = r->origin;
    if (e == 0)
        e = emit_text(r, r->origin, bytes(&r->raw) + from, r->raw.len - from);
    if (e == 0 && counted)
        e = emit_code(r, HX_HEAL_RESTORED_TEXT);
    if (e == 0 && r->whole) {
        r->whole = false;
        e = hx_out_commit(&r->out);
    }
    hx_buf_clear(&r->raw);
    r->after_restored = true;
    return e;
}

static void begin_block(struct hx_reply *r, bool wrapper)
{
    hx_buf_clear(&r->raw);
    r->origin = r->state;
    r->wrapper = wrapper;
    r->recovered = false;
    r->block_calls = 0;
    r->healed = 0;
    r->after_stray = r->after_restored = false;
    r->whole = !r->opt.streaming;
    hold(r);
}

static int finish_block(struct hx_reply *r, bool stop)
{
    r->whole = r->held = false;
    int e = hx_out_commit(&r->out);
    r->state = IS_DONE;
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
    int e = known ? heal(r, HX_HEAL_BIT(HX_HEAL_DUPLICATE_PARAM)) : 0;
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
    e = heal(r, bits);
    return e < 0 ? e : put_args(r, r->json.data, r->json.len);
}

static bool is_word(const struct hx_buf *b, const char *word)
{
    return b->len == strlen(word) && memcmp(bytes(b), word, b->len) == 0;
}

static int keep_param(struct hx_reply *r)
{
    if (r->n_params == r->cap_params) {
        size_t cap = r->cap_params ? r->cap_params * 2 : 8;
        struct param *param = realloc(r->param, cap * sizeof(*param));
        if (!param)
            return -ENOMEM;
        r->param = param;
        r->cap_params = cap;
    }
    struct param *p = &r->param[r->n_params++];
    *p = (struct param){.name = r->kept.len,
                        .name_len = r->name.len,
                        .value = r->kept.len + r->name.len,
                        .value_len = r->value.len,
                        .attr = r->attr,
                        .plain = r->param_plain};
    hx_buf_append(&r->kept, r->name.data, r->name.len);
    hx_buf_append(&r->kept, r->value.data, r->value.len);
    return r->kept.failed ? -ENOMEM : 0;
}

static int begin_param(struct hx_reply *r, const struct hx_tag *tag)
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
    r->state = IN_VALUE;
    return r->name.failed ? -ENOMEM : 0;
}

/* A piece of the open parameter's text. */
static int take_value(struct hx_reply *r, size_t upto)
{
    if (upto <= r->at)
        return 0;
    int e = 0;
    const char *s = text_at(r, r->at);
    size_t len = upto - r->at;
    if (!r->streamed) {
        e = hx_buf_append(&r->value, s, len);
    } else {
        if (!r->quote_open)
            e = put_key(r, bytes(&r->name), r->name.len);
        hx_buf_clear(&r->json);
        if (!r->quote_open)
            hx_buf_putc(&r->json, '"');
        r->quote_open = true;
        hx_json_escape(&r->json, s, len);
        if (e == 0)
            e = r->json.failed ? -ENOMEM : put_args(r, r->json.data, r->json.len);
    }
    return e < 0 ? e : consume(r, len);
}

static bool blank(const struct hx_buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        if (!memchr(" \t\r\n", b->data[i], 4))
            return false;
    }
    return true;
}

/* The open parameter is complete. last: the invoke's closer follows. */
static int end_param(struct hx_reply *r, bool last)
{
    r->state = IN_ARGS;
    if (r->streamed) {
        int e = r->quote_open ? 0 : put_key(r, bytes(&r->name), r->name.len);
        return e < 0 ? e : put_args(r, r->quote_open ? "\"" : "\"\"", r->quote_open ? 1 : 2);
    }
    if (r->fused) {
        r->fused = false;
        if (blank(&r->value))
            return 0;
        if (!r->tool->first_string)
            return restore(r, false, true);
        int e = heal(r, HX_HEAL_BIT(HX_HEAL_FUSED_NAME));
        return e < 0 ? e
                     : put_param(r, r->tool->first_string, r->tool->first_string_len,
                                 HX_STRING_TRUE, true, bytes(&r->value), r->value.len);
    }
    if (r->headless)
        return keep_param(r);
    const char *value = bytes(&r->value);
    if (last && r->n_params == 0 && r->tool &&
        !hx_tool_property(r->tool, bytes(&r->name), r->name.len) &&
        (is_word(&r->name, "arguments") || is_word(&r->name, "input")) &&
        hx_value_is_arguments(r->tool, value, r->value.len)) {
        int e = heal(r, HX_HEAL_BIT(HX_HEAL_UNWRAPPED_ARGUMENTS));
        size_t from = 0, end = r->value.len;
        while (value[from] != '{')
            from++;
        while (value[end - 1] != '}')
            end--;
        /* The closing brace is written with the call's end. */
        r->n_params = 1;
        return e < 0 ? e : put_args(r, value + from, end - 1 - from);
    }
    return put_param(r, bytes(&r->name), r->name.len, r->attr, r->param_plain, value, r->value.len);
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
            covers = hx_tool_property(tool, bytes(&r->kept) + r->param[i].name,
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
    int e = heal(r, HX_HEAL_BIT(HX_HEAL_TOOL_INFERRED));
    if (e == 0)
        e = start_call(r, r->tool->name, r->tool->name_len);
    for (size_t i = 0; e == 0 && i < n; i++) {
        const struct param *p = &r->param[i];
        const char *kept = bytes(&r->kept);
        e = put_param(r, kept + p->name, p->name_len, p->attr, p->plain, kept + p->value,
                      p->value_len);
    }
    return e;
}

static int end_call(struct hx_reply *r)
{
    int e = 0;
    if (r->headless) {
        r->tool = infer_tool(r);
        if (!r->tool)
            return restore(r, false, true);
        e = replay(r);
    }
    if (e == 0 && r->origin == IN_REASONING && r->block_calls == 0)
        e = heal(r, HX_HEAL_BIT(HX_HEAL_CALL_IN_REASONING));
    if (e == 0)
        e = r->n_params ? put_args(r, "}", 1) : put_args(r, "{}", 2);
    if (e == 0)
        e = hx_out_emit(&r->out, HX_REPLY_CALL_END, r->n_calls, "", 0);
    if (e < 0)
        return e;
    r->n_calls++;
    r->block_calls++;
    r->state = IN_PREAMBLE;
    e = r->held ? release(r) : 0;
    return e < 0 || r->opt.parallel_tool_calls ? e : finish_block(r, true);
}

/* A parameter opener where a call should begin: the tool's name is in it, or in none. */
static int start_bare_param(struct hx_reply *r, const struct hx_tag *tag)
{
    reset_call(r);
    if (!r->held)
        hold(r);
    r->recovered = true;
    r->tool = hx_tools_find(r->opt.tools, tag->name, tag->name_len);
    r->fused = r->tool != NULL;
    r->headless = !r->fused;
    int e = heal(r, tag->healed | HX_HEAL_BIT(HX_HEAL_XML_IDIOM));
    if (e == 0 && r->fused)
        e = start_call(r, r->tool->name, r->tool->name_len);
    if (e == 0)
        e = begin_param(r, tag);
    return e < 0 ? e : consume(r, tag->len);
}

/* An invoke opener at r->at, in a block that was begun. */
static int start_invoke(struct hx_reply *r, const struct hx_tag *tag)
{
    reset_call(r);
    bool right = r->wrapper && !r->recovered && tag->healed == 0 && tag->name_len > 0;
    const struct hx_tool *tool = hx_tools_find(r->opt.tools, tag->name, tag->name_len);
    if (!r->held && (!right || r->whole))
        hold(r);
    if (!right && !tool && tag->name_len > 0) {
        /* Not a declared tool: text up to its closer, not searched again. */
        int e = restore(r, false, r->wrapper);
        if (e < 0)
            return e;
        r->origin = r->state;
        r->state = IN_SPAN;
        return consume(r, 0);
    }
    int e = heal(r, tag->healed);
    if (e == 0 && !r->wrapper && !tag->plain)
        e = heal(r, HX_HEAL_BIT(HX_HEAL_NO_WRAPPER));
    r->tool = tool;
    r->headless = tag->name_len == 0;
    if (e == 0 && right && r->origin == IN_CONTENT && !r->whole)
        e = release(r);
    if (e == 0 && !r->headless)
        e = start_call(r, tag->name, tag->name_len);
    r->state = IN_ARGS;
    return e < 0 ? e : consume(r, tag->len);
}

/* ---- steps ----------------------------------------------------------------------------------- */
/* Each returns 1 after progress, 0 if it needs more text, negative on failure. */

static int done(int e)
{
    return e < 0 ? e : 1;
}

static void match(struct hx_reply *r, size_t at, struct hx_tag *tag)
{
    hx_tag_match(bytes(&r->pend), r->pend.len, at, r->opt.tools != NULL, &r->cursor, tag);
    if (tag->kind == HX_TAG_MORE && r->final)
        tag->kind = HX_TAG_NONE;
}

static size_t find_bracket(const struct hx_reply *r)
{
    const char *s = text_at(r, r->scan);
    const char *hit = r->scan < r->pend.len ? memchr(s, '<', r->pend.len - r->scan) : NULL;
    return hit ? r->scan + (size_t)(hit - s) : r->pend.len;
}

/* Start of the line breaks (at most n) that end at p. */
static size_t breaks_before(const struct hx_reply *r, size_t p, unsigned n)
{
    while (n-- > 0 && p > r->at && *text_at(r, p - 1) == '\n') {
        p--;
        if (p > r->at && *text_at(r, p - 1) == '\r')
            p--;
    }
    return p;
}

/* Where the text that may be sent ends when nothing but text follows so far. */
static size_t sendable(const struct hx_reply *r, size_t p, unsigned n_breaks)
{
    if (r->final)
        return p;
    if (p == r->pend.len && p > r->at && *text_at(r, p - 1) == '\r')
        p--;
    return breaks_before(r, p, n_breaks);
}

/* Without tools: counts a call block that is shown as text. */
static int count_quoted(struct hx_reply *r, size_t upto)
{
    static const char opener[] = "<｜DSML｜ calls>";
    for (size_t i = r->at; i < upto && !r->quote_counted; i++) {
        char c = *text_at(r, i);
        r->quote_match = c == opener[r->quote_match] ? r->quote_match + 1 : c == '<';
        if (r->quote_match == sizeof(opener) - 1) {
            r->quote_counted = true;
            return emit_code(r, HX_HEAL_RESTORED_TEXT);
        }
    }
    return 0;
}

static int think_tag(struct hx_reply *r, const struct hx_tag *tag)
{
    enum state next = r->state;
    int code = -1;
    if (r->state == IN_REASONING && tag->kind == HX_TAG_THINK_END)
        next = IN_CONTENT;
    else if (tag->kind == HX_TAG_THINK_END)
        code = HX_HEAL_DROP_THINK_CLOSE;
    else if (r->state == IN_CONTENT && !r->content_seen) {
        next = IN_REASONING;
        code = HX_HEAL_REOPENED_REASONING;
    } else
        code = HX_HEAL_DROP_THINK_OPEN;
    r->state = next;
    int e = code >= 0 ? emit_code(r, (enum hx_heal)code) : 0;
    return e < 0 ? e : consume(r, tag->len);
}

static bool is_closer(enum hx_tag_kind k)
{
    return k == HX_TAG_WRAPPER_END || k == HX_TAG_INVOKE_END || k == HX_TAG_PARAM_END;
}

/* A marker at p in reasoning or content that is not a think tag; false: it is text. */
static bool opens_block(const struct hx_reply *r, const struct hx_tag *tag)
{
    const struct hx_tools *tools = r->opt.tools;
    switch (tag->kind) {
    case HX_TAG_WRAPPER: return true;
    case HX_TAG_INVOKE: return tag->name_len > 0 ? true : !tag->plain;
    case HX_TAG_PARAM:
        return hx_tools_find(tools, tag->name, tag->name_len) ||
               hx_tools_have_property(tools, tag->name, tag->name_len);
    default: return false;
    }
}

static int open_block(struct hx_reply *r, size_t p, const struct hx_tag *tag)
{
    size_t breaks = breaks_before(r, p, 2);
    int e = pass_text(r, breaks);
    bool right = p - breaks == 2 && *text_at(r, breaks) == '\n';
    begin_block(r, tag->kind == HX_TAG_WRAPPER);
    if (e == 0)
        e = consume(r, p - breaks);
    if (e == 0 && !right)
        e = heal(r, HX_HEAL_BIT(HX_HEAL_WHITESPACE));
    if (e < 0)
        return e;
    if (tag->kind == HX_TAG_INVOKE)
        return start_invoke(r, tag);
    if (tag->kind == HX_TAG_PARAM)
        return start_bare_param(r, tag);
    r->recovered = tag->healed != 0;
    r->state = IN_PREAMBLE;
    e = heal(r, tag->healed);
    return e < 0 ? e : consume(r, tag->len);
}

static int stray_closer(struct hx_reply *r, size_t p, const struct hx_tag *tag)
{
    size_t breaks = breaks_before(r, p, 2);
    int e = pass_text(r, breaks);
    if (e == 0 && !r->after_stray)
        e = emit_code(r, HX_HEAL_STRAY_CLOSER);
    r->after_stray = true;
    return e < 0 ? e : consume(r, p - breaks + tag->len);
}

static int text_step(struct hx_reply *r)
{
    bool tools = r->opt.tools != NULL;
    size_t p = find_bracket(r);
    struct hx_tag tag = {.kind = HX_TAG_MORE};
    if (p < r->pend.len)
        match(r, p, &tag);
    r->scan = p;
    if (tag.kind == HX_TAG_MORE) {
        size_t upto = sendable(r, p, tools ? 2 : 0);
        int e = tools ? 0 : count_quoted(r, upto);
        return e < 0 ? e : pass_text(r, upto);
    }
    if (tag.kind == HX_TAG_THINK || tag.kind == HX_TAG_THINK_END) {
        int e = tools ? 0 : count_quoted(r, p);
        if (e == 0)
            e = pass_text(r, p);
        return done(e < 0 ? e : think_tag(r, &tag));
    }
    if (tag.kind != HX_TAG_NONE && opens_block(r, &tag))
        return done(open_block(r, p, &tag));
    if (is_closer(tag.kind) && !tag.plain &&
        !(r->after_restored && tag.kind == HX_TAG_WRAPPER_END && breaks_before(r, p, 2) == r->at))
        return done(stray_closer(r, p, &tag));
    r->scan = p + 1;
    return 1;
}

static int span_step(struct hx_reply *r)
{
    size_t p = find_bracket(r);
    struct hx_tag tag = {.kind = HX_TAG_MORE};
    if (p < r->pend.len)
        match(r, p, &tag);
    r->scan = p;
    int e = pass_text(r, p);
    if (e < 0 || tag.kind == HX_TAG_MORE)
        return e;
    if (tag.kind == HX_TAG_INVOKE_END) {
        e = pass_text(r, p + tag.len);
        r->state = r->origin;
        r->after_restored = true;
    } else {
        r->scan = p + 1;
    }
    return done(e);
}

static size_t skip_space(const struct hx_reply *r, size_t p)
{
    while (p < r->pend.len && memchr(" \t\r\n", *text_at(r, p), 4))
        p++;
    return p;
}

/* White space between tags is right as one LF; an empty invoke has two. */
static bool right_space(const struct hx_reply *r, size_t p)
{
    size_t n = p - r->at;
    return n > 0 && n <= (r->state == IN_ARGS && r->n_params == 0 ? 2 : 1) &&
           memchr(text_at(r, r->at), '\r', n) == NULL &&
           memchr(text_at(r, r->at), ' ', n) == NULL && memchr(text_at(r, r->at), '\t', n) == NULL;
}

/* The marker behind the white space at r->at; *p is where it begins. NONE: other text. */
static void next_tag(struct hx_reply *r, size_t *p, struct hx_tag *tag)
{
    *p = r->scan = skip_space(r, r->scan);
    *tag = (struct hx_tag){.kind = HX_TAG_MORE, .name = ""};
    if (*p == r->pend.len)
        return;
    tag->kind = HX_TAG_NONE;
    if (*text_at(r, *p) == '<') /* a begun marker stays undecided at the end, too */
        hx_tag_match(bytes(&r->pend), r->pend.len, *p, true, &r->cursor, tag);
}

static int take_space(struct hx_reply *r, size_t p)
{
    /* Behind dropped text the white space was partly dropped with it. */
    int e = r->junk || right_space(r, p) ? 0 : heal(r, HX_HEAL_BIT(HX_HEAL_WHITESPACE));
    return e < 0 ? e : consume(r, p - r->at);
}

static int empty_block(struct hx_reply *r)
{
    drop_held(r);
    r->whole = false;
    hx_buf_clear(&r->raw);
    int e = hx_out_commit(&r->out);
    r->state = r->origin;
    return e < 0 ? e : emit_code(r, HX_HEAL_EMPTY_BLOCK);
}

static int preamble_step(struct hx_reply *r)
{
    size_t p;
    struct hx_tag tag;
    next_tag(r, &p, &tag);
    if (tag.kind == HX_TAG_MORE)
        return 0;
    bool named = tag.kind == HX_TAG_PARAM && opens_block(r, &tag);
    if (tag.kind == HX_TAG_INVOKE || named) {
        int e = 0;
        if (!r->held)
            hold(r);
        e = take_space(r, p);
        if (e == 0)
            e = named ? start_bare_param(r, &tag) : start_invoke(r, &tag);
        return done(e);
    }
    if (tag.kind == HX_TAG_WRAPPER_END) {
        int e = r->block_calls ? take_space(r, p) : consume(r, p - r->at);
        if (e == 0)
            e = consume(r, tag.len);
        if (e == 0)
            e = r->block_calls ? finish_block(r, true) : empty_block(r);
        return done(e);
    }
    if (is_closer(tag.kind) && !tag.plain) {
        int e = heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_CLOSER));
        return done(e < 0 ? e : consume(r, p - r->at + tag.len));
    }
    if (r->block_calls == 0) {
        r->scan = r->at;
        return done(restore(r, true, true));
    }
    int e = r->wrapper ? heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_WRAPPER_CLOSE)) : 0;
    return done(e < 0 ? e : finish_block(r, true));
}

static int args_step(struct hx_reply *r)
{
    size_t p;
    struct hx_tag tag;
    next_tag(r, &p, &tag);
    if (tag.kind == HX_TAG_MORE)
        return 0;
    int e = 0;
    switch (tag.kind) {
    case HX_TAG_PARAM:
        e = take_space(r, p);
        if (e == 0)
            e = heal(r, tag.healed);
        if (e == 0)
            e = begin_param(r, &tag);
        return done(e < 0 ? e : consume(r, tag.len));
    case HX_TAG_INVOKE_END:
        e = take_space(r, p);
        if (e == 0)
            e = consume(r, tag.len);
        return done(e < 0 ? e : end_call(r));
    case HX_TAG_WRAPPER_END:
    case HX_TAG_INVOKE:
        if (tag.plain)
            break;
        e = heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_INVOKE_CLOSE));
        return done(e < 0 ? e : end_call(r));
    case HX_TAG_PARAM_END:
        e = heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_CLOSER));
        return done(e < 0 ? e : consume(r, p - r->at + tag.len));
    case HX_TAG_THINK_END:
        if (r->held && r->origin == IN_REASONING) {
            r->scan = r->at;
            return done(restore(r, true, true));
        }
        break;
    default: break;
    }
    if (r->headless) {
        r->scan = r->at;
        return done(restore(r, false, true));
    }
    r->junk = true;
    r->scan = p + 1;
    e = heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_TEXT));
    size_t upto = find_bracket(r);
    while (upto > p + 1 && memchr(" \t\r\n", *text_at(r, upto - 1), 4))
        upto--; /* white space in front of the next tag, wherever the text was cut */
    return done(e < 0 ? e : consume(r, upto - r->at));
}

/* A closer is real if a parameter opener, an invoke closer or the end follows. Behind it: *p. */
static int closer_is_real(struct hx_reply *r, bool *real, bool *last)
{
    r->follow = skip_space(r, r->follow);
    struct hx_tag tag = {.kind = HX_TAG_NONE};
    *real = *last = false;
    if (r->follow == r->pend.len) {
        *real = *last = r->final;
        return r->final;
    }
    if (*text_at(r, r->follow) == '<')
        hx_tag_match(bytes(&r->pend), r->pend.len, r->follow, true, &r->cursor, &tag);
    if (tag.kind == HX_TAG_MORE && !r->final)
        return 0;
    *last = tag.kind == HX_TAG_INVOKE_END || tag.kind == HX_TAG_MORE;
    *real = *last || tag.kind == HX_TAG_PARAM;
    return 1;
}

static int close_value(struct hx_reply *r)
{
    bool real, last;
    if (!closer_is_real(r, &real, &last))
        return 0;
    size_t end = r->closer + r->closer_len;
    if (!real) {
        r->follow = 0;
        r->scan = end;
        if (r->headless) {
            /* An idiom without a name is given up at once rather than held to the end. */
            int e = consume(r, end - r->at);
            return done(e < 0 ? e : restore(r, false, true));
        }
        return done(heal(r, HX_HEAL_BIT(HX_HEAL_CLOSE_TAG_IN_VALUE)));
    }
    int e = take_value(r, r->closer);
    if (e == 0)
        e = consume(r, r->closer_len);
    return done(e < 0 ? e : end_param(r, last));
}

/* The value ends at the opener of the next parameter: its closer is missing. */
static int cut_value(struct hx_reply *r, size_t p)
{
    size_t end = breaks_before(r, p, 1);
    int e = take_value(r, end);
    if (e == 0 && !(r->fused && blank(&r->value)))
        e = heal(r, HX_HEAL_BIT(HX_HEAL_PARAM_CLOSE_MISSING));
    if (e == 0)
        e = end_param(r, false);
    return done(e);
}

static int value_step(struct hx_reply *r)
{
    if (r->follow)
        return close_value(r);
    size_t p = find_bracket(r);
    struct hx_tag tag = {.kind = HX_TAG_MORE};
    if (p < r->pend.len)
        match(r, p, &tag);
    r->scan = p;
    bool counts = r->param_plain || !tag.plain;
    if (tag.kind == HX_TAG_MORE)
        return take_value(r, sendable(r, p, 1));
    if (tag.kind == HX_TAG_PARAM_END && counts) {
        r->closer = p;
        r->closer_len = tag.len;
        r->follow = p + tag.len;
        return 1;
    }
    if (tag.kind == HX_TAG_PARAM && counts)
        return cut_value(r, p);
    bool foreign = (r->headless && tag.kind == HX_TAG_WRAPPER) ||
                   (r->held && r->origin == IN_REASONING && r->block_calls == 0 &&
                    tag.kind == HX_TAG_THINK_END);
    if (foreign) {
        int e = consume(r, p - r->at);
        return done(e < 0 ? e : restore(r, r->origin == IN_REASONING, true));
    }
    r->scan = p + 1;
    return 1;
}

static int run(struct hx_reply *r)
{
    static int (*const step[])(struct hx_reply *) = {
        [IN_REASONING] = text_step,    [IN_CONTENT] = text_step, [IN_SPAN] = span_step,
        [IN_PREAMBLE] = preamble_step, [IN_ARGS] = args_step,    [IN_VALUE] = value_step,
    };
    int e = 1;
    while (e > 0 && r->state != IS_DONE)
        e = step[r->state](r);
    if (r->state == IS_DONE)
        r->at = r->pend.len;
    return e < 0 ? e : 0;
}

/* Forgets the decided text once it is the larger part. */
static void compact(struct hx_reply *r)
{
    if (r->at * 2 < r->pend.len || r->at == 0)
        return;
    size_t n = r->at;
    hx_buf_consume(&r->pend, n);
    r->at = 0;
    r->scan -= r->scan > n ? n : r->scan;
    r->closer -= r->follow ? n : 0;
    r->follow -= r->follow ? n : 0;
    if (r->cursor.at >= n) {
        r->cursor.at -= n;
        r->cursor.scan -= n;
    } else {
        r->cursor = (struct hx_tag_cursor){.at = SIZE_MAX};
    }
}

int hx_reply_push(struct hx_reply *r, const char *text, size_t len, hx_reply_fn fn, void *user)
{
    if (r->state == IS_DONE)
        return 0;
    r->out.fn = fn;
    r->out.user = user;
    int e = hx_buf_append(&r->pend, text, len);
    if (e == 0)
        e = run(r);
    compact(r);
    return e;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Takes what is left into the held text, to be restored or dropped with it. */
static int take_rest(struct hx_reply *r)
{
    return consume(r, r->pend.len - r->at);
}

/* Everything still undecided is one unfinished call. */
static int cut_call(struct hx_reply *r)
{
    if (r->end == HX_REPLY_END_LENGTH) {
        bool whole = r->whole;
        if (r->held)
            drop_held(r);
        r->whole = false;
        int e = whole || r->held || r->out.holding ? hx_out_commit(&r->out) : 0;
        r->state = IS_DONE;
        return e;
    }
    int e = r->state == IN_VALUE ? take_value(r, r->pend.len) : take_rest(r);
    if (e < 0)
        return e;
    if (r->whole || r->held)
        return restore(r, r->whole, true);
    r->state = IS_DONE;
    return 0;
}

static bool closer_begins(const struct hx_reply *r)
{
    size_t p = skip_space(r, r->at);
    return p == r->pend.len || (r->pend.len - p > 1 && memcmp(text_at(r, p), "</", 2) == 0);
}

/* The end of the text inside the reply's plain part: a marker that was begun is text, unless the
 * limit cut a call block off. */
static int end_text(struct hx_reply *r)
{
    return r->after_stray ? take_rest(r) : pass_text(r, r->pend.len);
}

/* A begun marker at the end that holds the DSML token: where its line breaks begin, or the end. */
static size_t begun_marker(struct hx_reply *r)
{
    size_t p = r->pend.len;
    while (p > r->at && r->pend.len - p < HX_TAG_MAX && *text_at(r, p - 1) != '<')
        p--;
    if (p == r->at || *text_at(r, p - 1) != '<' || !r->opt.tools)
        return r->pend.len;
    struct hx_tag tag;
    hx_tag_match(bytes(&r->pend), r->pend.len, p - 1, true, &r->cursor, &tag);
    bool dsml = memmem(text_at(r, p), r->pend.len - p, "DSML", 4) != NULL;
    return tag.kind == HX_TAG_MORE && dsml ? breaks_before(r, p - 1, 2) : r->pend.len;
}

int hx_reply_finish(struct hx_reply *r, enum hx_reply_end end, hx_reply_fn fn, void *user)
{
    r->out.fn = fn;
    r->out.user = user;
    r->end = end;
    if (r->state == IS_DONE)
        return 0;
    int e = 0;
    if (r->state <= IN_CONTENT) {
        size_t begun = begun_marker(r);
        if (begun < r->pend.len && end == HX_REPLY_END_LENGTH)
            r->pend.len = begun;
        else if (begun < r->pend.len)
            e = emit_code(r, HX_HEAL_RESTORED_TEXT);
    }
    r->final = true;
    if (e == 0)
        e = run(r);
    if (e < 0)
        return e;
    switch (r->state) {
    case IN_REASONING:
    case IN_CONTENT:
    case IN_SPAN: return end_text(r);
    case IN_PREAMBLE:
        if (r->block_calls == 0)
            return cut_call(r);
        if (r->wrapper && end != HX_REPLY_END_LENGTH)
            e = heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_WRAPPER_CLOSE));
        return e < 0 ? e : finish_block(r, false);
    case IN_ARGS:
        if (end == HX_REPLY_END_LENGTH || r->junk || r->n_params == 0 || !closer_begins(r))
            return cut_call(r);
        e = heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_INVOKE_CLOSE));
        if (e == 0)
            e = end_call(r);
        return e < 0 || r->state != IN_PREAMBLE ? e : finish_block(r, false);
    case IN_VALUE: return cut_call(r);
    default: return 0;
    }
}
