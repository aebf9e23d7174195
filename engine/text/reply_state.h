/* State of the reply parser, and the steps of reply_call.c that reply.c takes. All return 0 or a
 * negative errno. */
#ifndef HX_TEXT_REPLY_STATE_H
#define HX_TEXT_REPLY_STATE_H

#include "text/reply_impl.h"

#define HX_REPLY_MAX ((size_t)1 << 30)

enum hx_reply_state {
    HX_IN_REASONING,
    HX_IN_CONTENT,
    HX_IN_SPAN,     /* an invoke that is no call: text up to its closer */
    HX_IN_PREAMBLE, /* in a block, between invokes */
    HX_IN_ARGS,     /* in an invoke, between parameters */
    HX_IN_VALUE,
    HX_IS_DONE,
};

struct hx_reply_param {
    size_t name, name_len, value, value_len; /* into r->kept */
    enum hx_string_attr attr;
    bool plain;
};

struct hx_reply {
    struct hx_reply_options opt;
    struct hx_out out;
    enum hx_reply_state state,
        origin; /* origin: what a block that turns out to be text returns to */
    bool final; /* no more text will come */
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
    struct hx_reply_param *param;
    size_t cap_params;

    struct hx_buf name; /* of the open parameter */
    enum hx_string_attr attr;
    bool param_plain, streamed, quote_open;
    enum hx_schema_type type;
};

/* Never NULL, also when nothing was ever written. */
static inline const char *hx_reply_bytes(const struct hx_buf *b)
{
    return b->data ? (const char *)b->data : "";
}

static inline const char *hx_reply_text_at(const struct hx_reply *r, size_t at)
{
    return hx_reply_bytes(&r->pend) + at;
}

/* White space that may stand between tags. */
static inline bool hx_reply_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* ---- text and holds, arguments, calls (reply_call.c) ---- */

int hx_reply_emit_code(struct hx_reply *r, enum hx_heal code);
/* Counts each code once a block. */
int hx_reply_heal(struct hx_reply *r, unsigned bits);
/* Takes n bytes off the undecided text; kept for restoring while a hold is on. */
int hx_reply_consume(struct hx_reply *r, size_t n);
int hx_reply_pass_text(struct hx_reply *r, size_t upto);
void hx_reply_hold(struct hx_reply *r);
/* The held part counts for nothing: its events vanish. */
void hx_reply_drop_held(struct hx_reply *r);
/* The block is text after all: from the mark of the held invoke, or all of it. */
int hx_reply_restore(struct hx_reply *r, bool all, bool counted);
void hx_reply_begin_block(struct hx_reply *r, bool wrapper);
int hx_reply_finish_block(struct hx_reply *r, bool stop);
int hx_reply_begin_param(struct hx_reply *r, const struct hx_tag *tag);
/* A piece of the open parameter's text. */
int hx_reply_take_value(struct hx_reply *r, size_t upto);
/* The open parameter is complete. last: the invoke's closer follows. */
int hx_reply_end_param(struct hx_reply *r, bool last);
int hx_reply_end_call(struct hx_reply *r);
/* A parameter opener where a call should begin: the tool's name is in it, or in none. */
int hx_reply_start_bare_param(struct hx_reply *r, const struct hx_tag *tag);
/* An invoke opener at r->at, in a block that was begun. */
int hx_reply_start_invoke(struct hx_reply *r, const struct hx_tag *tag);
bool hx_reply_is_blank(const struct hx_buf *b);

#endif
