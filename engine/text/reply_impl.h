/* Inside the reply parser: markers, values, deferred output, states. */
#ifndef HX_TEXT_REPLY_IMPL_H
#define HX_TEXT_REPLY_IMPL_H

#include <hx/chat.h>

#include "text/tools.h"

/* ---- markers (reply_markers.c) --------------------------------------------------------------- */

#define HX_TAG_MAX 1024 /* bytes of a tag with attributes; longer is text */

enum hx_tag_kind {
    HX_TAG_NONE, /* no marker begins here */
    HX_TAG_MORE, /* undecided: more text is needed */
    HX_TAG_THINK,
    HX_TAG_THINK_END,
    HX_TAG_WRAPPER,
    HX_TAG_WRAPPER_END,
    HX_TAG_INVOKE,
    HX_TAG_INVOKE_END,
    HX_TAG_PARAM,
    HX_TAG_PARAM_END,
};

/* Healing codes; the order is that of hx_heal_name. */
enum hx_heal {
    HX_HEAL_DROP_THINK_OPEN,
    HX_HEAL_DROP_THINK_CLOSE,
    HX_HEAL_REOPENED_REASONING,
    HX_HEAL_CALL_IN_REASONING,
    HX_HEAL_WRAPPER_SPELLING,
    HX_HEAL_V4_SPELLING,
    HX_HEAL_BAR_SPELLING,
    HX_HEAL_ATTR_SPELLING,
    HX_HEAL_NO_WRAPPER,
    HX_HEAL_IMPLICIT_WRAPPER_CLOSE,
    HX_HEAL_IMPLICIT_INVOKE_CLOSE,
    HX_HEAL_STRAY_CLOSER,
    HX_HEAL_STRAY_TEXT,
    HX_HEAL_EMPTY_BLOCK,
    HX_HEAL_TYPE_FROM_SCHEMA,
    HX_HEAL_DUPLICATE_PARAM,
    HX_HEAL_PARAM_CLOSE_MISSING,
    HX_HEAL_CLOSE_TAG_IN_VALUE,
    HX_HEAL_PYTHON_LITERAL,
    HX_HEAL_NOT_JSON,
    HX_HEAL_UNWRAPPED_ARGUMENTS,
    HX_HEAL_WHITESPACE,
    HX_HEAL_XML_IDIOM,
    HX_HEAL_FUSED_NAME,
    HX_HEAL_TOOL_INFERRED,
    HX_HEAL_RESTORED_TEXT,
    HX_HEAL_MAX,
};
const char *hx_heal_name(enum hx_heal code);
#define HX_HEAL_BIT(code) (1u << (code))

enum hx_string_attr { HX_STRING_MISSING, HX_STRING_TRUE, HX_STRING_FALSE };

struct hx_tag {
    enum hx_tag_kind kind;
    size_t len;
    bool plain;      /* <invoke>, <parameter> without the DSML marker */
    unsigned healed; /* bits of the spelling codes */
    const char *name;
    size_t name_len; /* of the name attribute; 0: none */
    enum hx_string_attr string;
};

/* How far a tag was searched for its end, so that no byte is looked at twice. */
struct hx_tag_cursor {
    size_t at; /* where the tag begins */
    size_t scan;
    char quote;
};

/* The marker that begins at s[at] ('<'). tools: also the DSML and XML markers. */
void hx_tag_match(const char *s, size_t len, size_t at, bool tools, struct hx_tag_cursor *c,
                  struct hx_tag *tag);

/* ---- values (reply_args.c) ------------------------------------------------------------------- */

/* Appends the JSON of a parameter's text to out by the rules of chat.md 8.3; sets code bits. */
int hx_value_to_json(enum hx_schema_type type, enum hx_string_attr attr, const char *s, size_t len,
                     struct hx_buf *out, unsigned *healed);
/* True if s is an object whose keys all are properties of the tool. */
bool hx_value_is_arguments(const struct hx_tool *tool, const char *s, size_t len);

/* Set of names in one call, to find the second one of a name. */
struct hx_name_set {
    struct hx_buf names; /* lengths are in slots */
    struct hx_name_slot {
        size_t offset, len;
        bool used;
    } * slot;
    size_t n, cap;
};
/* 1 if the name was there, 0 if it was added, -ENOMEM. */
int hx_name_set_add(struct hx_name_set *set, const char *name, size_t len);
void hx_name_set_clear(struct hx_name_set *set);
void hx_name_set_done(struct hx_name_set *set);

/* ---- deferred output (reply_out.c) ----------------------------------------------------------- */

struct hx_deferred {
    enum hx_reply_event_type type;
    int call;
    size_t offset, len; /* into text */
};

/* What a rollback restores. */
struct hx_out_mark {
    size_t n_events, n_text, raw;
    int n_calls;
};

struct hx_out {
    hx_reply_fn fn; /* of the running push */
    void *user;
    bool holding; /* events are kept until hx_out_commit */
    struct hx_deferred *event;
    size_t n_events, cap_events;
    struct hx_buf text; /* of the kept events */
};
int hx_out_emit(struct hx_out *o, enum hx_reply_event_type type, int call, const char *s,
                size_t len);
int hx_out_commit(struct hx_out *o); /* delivers what is kept and stops keeping */
void hx_out_rollback(struct hx_out *o, size_t n_events, size_t n_text);
void hx_out_done(struct hx_out *o);

#endif
