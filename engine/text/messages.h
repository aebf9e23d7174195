/* The encoder's input: messages merged into turns (chat.md 3.1 to 3.3). The values refer to the
 * JSON document they were read from. */
#ifndef HX_TEXT_MESSAGES_H
#define HX_TEXT_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include <hx/error.h>

#include "base/json_read.h"

enum hx_role {
    HX_ROLE_SYSTEM,
    HX_ROLE_USER,
    HX_ROLE_ASSISTANT,
    HX_ROLE_TOOL, /* becomes a user turn when merged */
    HX_ROLE_REMINDER,
    HX_ROLE_OTHER,
};

/* One piece of a user turn. */
struct hx_block {
    bool result;          /* a tool result: content is the tool message's content */
    struct hx_jv content; /* a string, a list of parts, one part, or nothing */
    struct hx_jv call_id; /* of a result */
};

struct hx_message {
    enum hx_role role;
    struct hx_jv content;   /* of all but user turns */
    struct hx_jv reasoning; /* assistant; string or nothing */
    struct hx_jv calls;     /* assistant; list or nothing */
    struct hx_jv tools;     /* non-empty list or nothing */
    struct hx_jv format;    /* the schema of a response format, or nothing */
    bool json_object;       /* the response format is {"type": "json_object"} */
    const char *task;       /* token of a task, NULL if none */
    bool task_is_action;
    bool no_eos;            /* the turn goes on: prefix mode */
    bool open_reasoning;    /* with no_eos: it goes on inside the reasoning */
    size_t block, n_blocks; /* user turn: its blocks */
};

struct hx_messages {
    struct hx_message *item;
    size_t n;
    struct hx_block *block;
    size_t n_blocks;
};

/* The reference encoder's own input form: `tools`, `response_format`, `task` and `wo_eos` on a
 * message; refused as it refuses: unknown roles later on, null content of a user, the image
 * spelling in text. Without it a chat request's messages are read: developer is system, null is
 * empty, unknown roles are errors. */
#define HX_MESSAGES_NATIVE 1u

/* Reads and merges a list of messages. `front`: room for an empty system message is made at index
 * 0 if the list does not begin with one. Errors: -EINVAL with param and slug. */
int hx_messages_read(struct hx_jv list, unsigned flags, bool front, struct hx_messages *out,
                     struct hx_error *err) HX_MUST;
/* Puts the results of each user turn into the order of the calls (chat.md 3.3). */
int hx_messages_sort_results(struct hx_messages *m, struct hx_error *err) HX_MUST;
void hx_messages_done(struct hx_messages *m);

#endif
