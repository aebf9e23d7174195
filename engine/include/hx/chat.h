/* Chat format: from a request's JSON to prompt segments to token ids, and from generated text back
 * to reasoning, content and tool calls (docs/chat.md). */
#ifndef HX_CHAT_H
#define HX_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>
#include <hx/tokenizer.h>

#include "base/buf.h"
#include "base/json_read.h"

/* ---- prompt ---------------------------------------------------------------------------------- */

enum hx_effort_table { HX_EFFORT_RELEASE, HX_EFFORT_LEGACY };

/* A prompt: one text, cut into template tokens (by spelling) and plain stretches. */
struct hx_prompt_segment {
    uint32_t offset; /* bytes into text */
    uint32_t len;
    bool special; /* the stretch is the spelling of one added token */
};
struct hx_prompt {
    struct hx_buf text;
    struct hx_prompt_segment *segment;
    size_t n_segments;
    size_t cap_segments;
};
void hx_prompt_done(struct hx_prompt *p);

/* Token ids of a prompt: template tokens by id, each maximal plain stretch with added tokens off,
 * so that client text cannot forge turns. */
int hx_prompt_encode(const struct hx_prompt *p, const struct hx_tokenizer *t,
                     const struct hx_encode_options *opt, struct hx_ids *out,
                     struct hx_error *err) HX_MUST;

struct hx_tools; /* declared tools: names and parameter schemas; what healing needs */

enum hx_tool_choice { HX_TOOL_AUTO, HX_TOOL_NONE, HX_TOOL_REQUIRED, HX_TOOL_NAMED };

/* What a chat request (messages, tools, reasoning settings) asks of the model. */
struct hx_chat {
    struct hx_prompt prompt;
    bool thinking;          /* the reply starts inside reasoning */
    bool in_content;        /* prefix mode: the reply continues content (thinking already closed) */
    struct hx_tools *tools; /* NULL: none declared */
    enum hx_tool_choice tool_choice;
    char *forced_name; /* HX_TOOL_NAMED */
    bool parallel_tool_calls;
    size_t n_images;
};

/* Reads the fields messages, tools, tool_choice, parallel_tool_calls, response_format,
 * reasoning_effort, reasoning, thinking, chat_template_kwargs, add_generation_prompt,
 * continue_final_message of a request object and renders the prompt (chat.md 3 and 4).
 * Errors: -EINVAL with err->param and err->slug set as api.md section 2 says. */
int hx_chat_from_request(struct hx_jv request, enum hx_effort_table effort_table,
                         struct hx_chat *out, struct hx_error *err) HX_MUST;
void hx_chat_done(struct hx_chat *c);

/* The text that tool_choice `required` or a named function forces after the end of thinking (as a
 * prompt of segments, so that the markers are tokens); empty otherwise. */
int hx_chat_forced_prefix(const struct hx_chat *c, struct hx_prompt *out,
                          struct hx_error *err) HX_MUST;

/* ---- reply ----------------------------------------------------------------------------------- */

enum hx_reply_event_type {
    HX_REPLY_REASONING,  /* text: piece of reasoning */
    HX_REPLY_CONTENT,    /* text: piece of content */
    HX_REPLY_CALL_START, /* text: function name; call: its index */
    HX_REPLY_CALL_ARGS,  /* text: piece of the arguments' JSON */
    HX_REPLY_CALL_END,
    HX_REPLY_HEALED, /* text: counter code (heal.json names) */
    HX_REPLY_STOP,   /* the block is complete or, without parallel calls, the first call: stop the
                        engine */
};

struct hx_reply_event {
    enum hx_reply_event_type type;
    int call; /* index of the call, 0 based */
    const char *text;
    size_t len;
};
typedef int (*hx_reply_fn)(void *user, const struct hx_reply_event *ev); /* nonzero aborts */

struct hx_reply_options {
    bool thinking;                /* starts in reasoning */
    const struct hx_tools *tools; /* NULL or tool_choice none: calls are not parsed */
    bool parallel_tool_calls;
    bool streaming; /* arguments are delivered as they come; otherwise whole, and a call cut off by
                       the end token restores its text (chat.md 8.5) */
};
enum hx_reply_end { HX_REPLY_END_EOS, HX_REPLY_END_LENGTH, HX_REPLY_END_STOP };

struct hx_reply; /* parser of one choice; any chunking of the same text gives the same events joined
                  */
int hx_reply_new(const struct hx_reply_options *opt, struct hx_reply **out,
                 struct hx_error *err) HX_MUST;
/* text: complete characters. */
int hx_reply_push(struct hx_reply *r, const char *text, size_t len, hx_reply_fn fn,
                  void *user) HX_MUST;
int hx_reply_finish(struct hx_reply *r, enum hx_reply_end end, hx_reply_fn fn, void *user) HX_MUST;
/* Complete calls so far; decides finish_reason tool_calls. */
int hx_reply_n_calls(const struct hx_reply *r);
bool hx_reply_in_reasoning(const struct hx_reply *r);
void hx_reply_free(struct hx_reply *r);

/* True for the added tokens that end a turn as EOS does (chat.md 8.6): User, System, Assistant,
 * reminder, BOS, pad, EOT, EOS. Fills ids (at most cap), returns how many. */
size_t hx_chat_end_tokens(const struct hx_tokenizer *t, int32_t *ids, size_t cap);

#endif
