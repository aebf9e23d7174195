/* Stream parser of replies: a state machine over text that is not decided yet. Every decision
 * depends on the text alone, never on where it was cut, and no byte is searched twice. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_state.h"

int hx_reply_new(const struct hx_reply_options *opt, struct hx_reply **out, struct hx_error *err)
{
    struct hx_reply *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory for a reply");
    r->opt = *opt;
    r->state = opt->thinking ? HX_IN_REASONING : HX_IN_CONTENT;
    struct hx_buf *const buf[] = {&r->pend, &r->raw,  &r->kept,        &r->value,
                                  &r->json, &r->name, &r->names.names, &r->out.text};
    for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
        *buf[i] = HX_BUF_INIT(HX_REPLY_MAX);
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
    return r->state == HX_IN_REASONING ||
           (r->state != HX_IN_CONTENT && r->origin == HX_IN_REASONING && r->n_calls == 0);
}

/* ---- steps ----------------------------------------------------------------------------------- */
/* Each returns 1 after progress, 0 if it needs more text, negative on failure. */

static int done(int e)
{
    return e < 0 ? e : 1;
}

static void match(struct hx_reply *r, size_t at, struct hx_tag *tag)
{
    hx_tag_match(hx_reply_bytes(&r->pend), r->pend.len, at, r->opt.tools != NULL, &r->cursor, tag);
    if (tag->kind == HX_TAG_MORE && r->final)
        tag->kind = HX_TAG_NONE;
}

static size_t find_bracket(const struct hx_reply *r)
{
    const char *s = hx_reply_text_at(r, r->scan);
    const char *hit = r->scan < r->pend.len ? memchr(s, '<', r->pend.len - r->scan) : NULL;
    return hit ? r->scan + (size_t)(hit - s) : r->pend.len;
}

/* Start of the line breaks (at most n) that end at p. */
static size_t breaks_before(const struct hx_reply *r, size_t p, unsigned n)
{
    while (n-- > 0 && p > r->at && *hx_reply_text_at(r, p - 1) == '\n') {
        p--;
        if (p > r->at && *hx_reply_text_at(r, p - 1) == '\r')
            p--;
    }
    return p;
}

static size_t skip_space(const struct hx_reply *r, size_t p)
{
    while (p < r->pend.len && hx_reply_is_space(*hx_reply_text_at(r, p)))
        p++;
    return p;
}

/* Where the text that may be sent ends when nothing but text follows so far. */
static size_t sendable(const struct hx_reply *r, size_t p, unsigned n_breaks)
{
    if (r->final)
        return p;
    if (p == r->pend.len && p > r->at && *hx_reply_text_at(r, p - 1) == '\r')
        p--;
    return breaks_before(r, p, n_breaks);
}

/* Without tools: counts a call block that is shown as text. */
static int count_quoted(struct hx_reply *r, size_t upto)
{
    static const char opener[] = "<｜DSML｜ calls>";
    for (size_t i = r->at; i < upto && !r->quote_counted; i++) {
        char c = *hx_reply_text_at(r, i);
        r->quote_match = c == opener[r->quote_match] ? r->quote_match + 1 : c == '<';
        if (r->quote_match == sizeof(opener) - 1) {
            r->quote_counted = true;
            return hx_reply_emit_code(r, HX_HEAL_RESTORED_TEXT);
        }
    }
    return 0;
}

static int think_tag(struct hx_reply *r, const struct hx_tag *tag)
{
    enum hx_reply_state next = r->state;
    int code = -1;
    if (r->state == HX_IN_REASONING && tag->kind == HX_TAG_THINK_END)
        next = HX_IN_CONTENT;
    else if (tag->kind == HX_TAG_THINK_END)
        code = HX_HEAL_DROP_THINK_CLOSE;
    else if (r->state == HX_IN_CONTENT && !r->content_seen) {
        next = HX_IN_REASONING;
        code = HX_HEAL_REOPENED_REASONING;
    } else
        code = HX_HEAL_DROP_THINK_OPEN;
    r->state = next;
    int e = code >= 0 ? hx_reply_emit_code(r, (enum hx_heal)code) : 0;
    return e < 0 ? e : hx_reply_consume(r, tag->len);
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
    int e = hx_reply_pass_text(r, breaks);
    bool right = p - breaks == 2 && *hx_reply_text_at(r, breaks) == '\n';
    hx_reply_begin_block(r, tag->kind == HX_TAG_WRAPPER);
    if (e == 0)
        e = hx_reply_consume(r, p - breaks);
    if (e == 0 && !right)
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_WHITESPACE));
    if (e < 0)
        return e;
    if (tag->kind == HX_TAG_INVOKE)
        return hx_reply_start_invoke(r, tag);
    if (tag->kind == HX_TAG_PARAM)
        return hx_reply_start_bare_param(r, tag);
    r->recovered = tag->healed != 0;
    r->state = HX_IN_PREAMBLE;
    e = hx_reply_heal(r, tag->healed);
    return e < 0 ? e : hx_reply_consume(r, tag->len);
}

static int stray_closer(struct hx_reply *r, size_t p, const struct hx_tag *tag)
{
    size_t breaks = breaks_before(r, p, 2);
    int e = hx_reply_pass_text(r, breaks);
    if (e == 0 && !r->after_stray)
        e = hx_reply_emit_code(r, HX_HEAL_STRAY_CLOSER);
    r->after_stray = true;
    return e < 0 ? e : hx_reply_consume(r, p - breaks + tag->len);
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
        return e < 0 ? e : hx_reply_pass_text(r, upto);
    }
    if (tag.kind == HX_TAG_THINK || tag.kind == HX_TAG_THINK_END) {
        int e = tools ? 0 : count_quoted(r, p);
        if (e == 0)
            e = hx_reply_pass_text(r, p);
        return done(e < 0 ? e : think_tag(r, &tag));
    }
    if (tag.kind != HX_TAG_NONE && opens_block(r, &tag))
        return done(open_block(r, p, &tag));
    bool of_restored =
        r->after_restored && tag.kind == HX_TAG_WRAPPER_END && skip_space(r, r->at) == p;
    if (is_closer(tag.kind) && !tag.plain && !of_restored)
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
    int e = hx_reply_pass_text(r, p);
    if (e < 0 || tag.kind == HX_TAG_MORE)
        return e;
    if (tag.kind == HX_TAG_INVOKE_END) {
        e = hx_reply_pass_text(r, p + tag.len);
        r->state = r->origin;
        r->after_restored = true;
    } else {
        r->scan = p + 1;
    }
    return done(e);
}

/* White space between tags is right as one LF; an empty invoke has two. */
static bool right_space(const struct hx_reply *r, size_t p)
{
    size_t n = p - r->at;
    return n > 0 && n <= (r->state == HX_IN_ARGS && r->n_params == 0 ? 2 : 1) &&
           memchr(hx_reply_text_at(r, r->at), '\r', n) == NULL &&
           memchr(hx_reply_text_at(r, r->at), ' ', n) == NULL &&
           memchr(hx_reply_text_at(r, r->at), '\t', n) == NULL;
}

/* The marker behind the white space at r->at; *p is where it begins. NONE: other text. */
static void next_tag(struct hx_reply *r, size_t *p, struct hx_tag *tag)
{
    *p = r->scan = skip_space(r, r->scan);
    *tag = (struct hx_tag){.kind = HX_TAG_MORE, .name = ""};
    if (*p == r->pend.len)
        return;
    tag->kind = HX_TAG_NONE;
    if (*hx_reply_text_at(r, *p) == '<') /* a begun marker stays undecided at the end, too */
        hx_tag_match(hx_reply_bytes(&r->pend), r->pend.len, *p, true, &r->cursor, tag);
}

static int take_space(struct hx_reply *r, size_t p)
{
    /* Behind dropped text the white space was partly dropped with it. */
    int e = r->junk || right_space(r, p) ? 0 : hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_WHITESPACE));
    return e < 0 ? e : hx_reply_consume(r, p - r->at);
}

static int empty_block(struct hx_reply *r)
{
    hx_reply_drop_held(r);
    r->whole = false;
    hx_buf_clear(&r->raw);
    int e = hx_out_commit(&r->out);
    r->state = r->origin;
    return e < 0 ? e : hx_reply_emit_code(r, HX_HEAL_EMPTY_BLOCK);
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
            hx_reply_hold(r);
        e = take_space(r, p);
        if (e == 0)
            e = named ? hx_reply_start_bare_param(r, &tag) : hx_reply_start_invoke(r, &tag);
        return done(e);
    }
    if (tag.kind == HX_TAG_WRAPPER_END) {
        int e = r->block_calls ? take_space(r, p) : hx_reply_consume(r, p - r->at);
        if (e == 0)
            e = hx_reply_consume(r, tag.len);
        if (e == 0)
            e = r->block_calls ? hx_reply_finish_block(r, true) : empty_block(r);
        return done(e);
    }
    if (is_closer(tag.kind) && !tag.plain) {
        int e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_CLOSER));
        return done(e < 0 ? e : hx_reply_consume(r, p - r->at + tag.len));
    }
    if (r->block_calls == 0) {
        r->scan = r->at;
        return done(hx_reply_restore(r, true, true));
    }
    int e = r->wrapper ? hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_WRAPPER_CLOSE)) : 0;
    return done(e < 0 ? e : hx_reply_finish_block(r, true));
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
            e = hx_reply_heal(r, tag.healed);
        if (e == 0)
            e = hx_reply_begin_param(r, &tag);
        return done(e < 0 ? e : hx_reply_consume(r, tag.len));
    case HX_TAG_INVOKE_END:
        e = take_space(r, p);
        if (e == 0)
            e = hx_reply_consume(r, tag.len);
        return done(e < 0 ? e : hx_reply_end_call(r));
    case HX_TAG_WRAPPER_END:
    case HX_TAG_INVOKE:
        if (tag.plain)
            break;
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_INVOKE_CLOSE));
        return done(e < 0 ? e : hx_reply_end_call(r));
    case HX_TAG_PARAM_END:
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_CLOSER));
        return done(e < 0 ? e : hx_reply_consume(r, p - r->at + tag.len));
    case HX_TAG_THINK_END:
        if (r->held && r->origin == HX_IN_REASONING) {
            r->scan = r->at;
            return done(hx_reply_restore(r, true, true));
        }
        break;
    default: break;
    }
    if (r->headless) {
        r->scan = r->at;
        return done(hx_reply_restore(r, false, true));
    }
    r->junk = true;
    r->scan = p + 1;
    e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_STRAY_TEXT));
    size_t upto = find_bracket(r);
    while (upto > p + 1 && hx_reply_is_space(*hx_reply_text_at(r, upto - 1)))
        upto--; /* white space in front of the next tag, wherever the text was cut */
    return done(e < 0 ? e : hx_reply_consume(r, upto - r->at));
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
    if (*hx_reply_text_at(r, r->follow) == '<')
        hx_tag_match(hx_reply_bytes(&r->pend), r->pend.len, r->follow, true, &r->cursor, &tag);
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
            int e = hx_reply_consume(r, end - r->at);
            return done(e < 0 ? e : hx_reply_restore(r, false, true));
        }
        return done(hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_CLOSE_TAG_IN_VALUE)));
    }
    int e = hx_reply_take_value(r, r->closer);
    if (e == 0)
        e = hx_reply_consume(r, r->closer_len);
    return done(e < 0 ? e : hx_reply_end_param(r, last));
}

/* The value ends at the opener of the next parameter: its closer is missing. */
static int cut_value(struct hx_reply *r, size_t p)
{
    size_t end = breaks_before(r, p, 1);
    int e = hx_reply_take_value(r, end);
    if (e == 0 && !(r->fused && hx_reply_is_blank(&r->value)))
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_PARAM_CLOSE_MISSING));
    if (e == 0)
        e = hx_reply_end_param(r, false);
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
        return hx_reply_take_value(r, sendable(r, p, 1));
    if (tag.kind == HX_TAG_PARAM_END && counts) {
        r->closer = p;
        r->closer_len = tag.len;
        r->follow = p + tag.len;
        return 1;
    }
    if (tag.kind == HX_TAG_PARAM && counts)
        return cut_value(r, p);
    bool foreign = (r->headless && tag.kind == HX_TAG_WRAPPER) ||
                   (r->held && r->origin == HX_IN_REASONING && r->block_calls == 0 &&
                    tag.kind == HX_TAG_THINK_END);
    if (foreign) {
        int e = hx_reply_consume(r, p - r->at);
        return done(e < 0 ? e : hx_reply_restore(r, r->origin == HX_IN_REASONING, true));
    }
    r->scan = p + 1;
    return 1;
}

static int run(struct hx_reply *r)
{
    static int (*const step[])(struct hx_reply *) = {
        [HX_IN_REASONING] = text_step,    [HX_IN_CONTENT] = text_step, [HX_IN_SPAN] = span_step,
        [HX_IN_PREAMBLE] = preamble_step, [HX_IN_ARGS] = args_step,    [HX_IN_VALUE] = value_step,
    };
    int e = 1;
    while (e > 0 && r->state != HX_IS_DONE)
        e = step[r->state](r);
    if (r->state == HX_IS_DONE)
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
    if (r->state == HX_IS_DONE)
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
    return hx_reply_consume(r, r->pend.len - r->at);
}

/* Everything still undecided is one unfinished call. */
static int cut_call(struct hx_reply *r)
{
    if (r->end == HX_REPLY_END_LENGTH) {
        bool whole = r->whole;
        if (r->held)
            hx_reply_drop_held(r);
        r->whole = false;
        int e = whole || r->held || r->out.holding ? hx_out_commit(&r->out) : 0;
        r->state = HX_IS_DONE;
        return e;
    }
    int e = r->state == HX_IN_VALUE ? hx_reply_take_value(r, r->pend.len) : take_rest(r);
    if (e < 0)
        return e;
    if (r->whole || r->held)
        return hx_reply_restore(r, r->whole, true);
    r->state = HX_IS_DONE;
    return 0;
}

static bool closer_begins(const struct hx_reply *r)
{
    size_t p = skip_space(r, r->at);
    return p == r->pend.len ||
           (r->pend.len - p > 1 && memcmp(hx_reply_text_at(r, p), "</", 2) == 0);
}

/* The end of the text inside the reply's plain part: a marker that was begun is text, unless the
 * limit cut a call block off. */
static int end_text(struct hx_reply *r)
{
    return r->after_stray ? take_rest(r) : hx_reply_pass_text(r, r->pend.len);
}

/* A begun marker at the end that holds the DSML token: where its line breaks begin, or the end. */
static size_t begun_marker(struct hx_reply *r)
{
    size_t p = r->pend.len;
    while (p > r->at && r->pend.len - p < HX_TAG_MAX && *hx_reply_text_at(r, p - 1) != '<')
        p--;
    if (p == r->at || *hx_reply_text_at(r, p - 1) != '<' || !r->opt.tools)
        return r->pend.len;
    struct hx_tag tag;
    hx_tag_match(hx_reply_bytes(&r->pend), r->pend.len, p - 1, true, &r->cursor, &tag);
    bool dsml = memmem(hx_reply_text_at(r, p), r->pend.len - p, "DSML", 4) != NULL;
    return tag.kind == HX_TAG_MORE && dsml ? breaks_before(r, p - 1, 2) : r->pend.len;
}

int hx_reply_finish(struct hx_reply *r, enum hx_reply_end end, hx_reply_fn fn, void *user)
{
    r->out.fn = fn;
    r->out.user = user;
    r->end = end;
    if (r->state == HX_IS_DONE)
        return 0;
    int e = 0;
    if (r->state <= HX_IN_CONTENT) {
        size_t begun = begun_marker(r);
        if (begun < r->pend.len && end == HX_REPLY_END_LENGTH)
            r->pend.len = begun;
        else if (begun < r->pend.len)
            e = hx_reply_emit_code(r, HX_HEAL_RESTORED_TEXT);
    }
    r->final = true;
    if (e == 0)
        e = run(r);
    if (e < 0)
        return e;
    switch (r->state) {
    case HX_IN_REASONING:
    case HX_IN_CONTENT:
    case HX_IN_SPAN: return end_text(r);
    case HX_IN_PREAMBLE:
        if (r->block_calls == 0)
            return cut_call(r);
        if (r->wrapper && end != HX_REPLY_END_LENGTH)
            e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_WRAPPER_CLOSE));
        return e < 0 ? e : hx_reply_finish_block(r, false);
    case HX_IN_ARGS:
        if (end == HX_REPLY_END_LENGTH || r->junk || r->n_params == 0 || !closer_begins(r))
            return cut_call(r);
        e = hx_reply_heal(r, HX_HEAL_BIT(HX_HEAL_IMPLICIT_INVOKE_CLOSE));
        if (e == 0)
            e = hx_reply_end_call(r);
        return e < 0 || r->state != HX_IN_PREAMBLE ? e : hx_reply_finish_block(r, false);
    case HX_IN_VALUE: return cut_call(r);
    default: return 0;
    }
}
