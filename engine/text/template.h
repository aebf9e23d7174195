/* The prompt encoder of DeepSeek-V4.1 (docs/chat.md). */
#ifndef HX_TEXT_TEMPLATE_H
#define HX_TEXT_TEMPLATE_H

#include <hx/chat.h>

#include "text/messages.h"

struct hx_template_options {
    bool thinking;
    int effort;         /* 1-100 */
    bool keep_thinking; /* reasoning of earlier turns stays */
    bool no_bos;
    bool add_header;  /* a prompt that ends without a header gets one, so that a turn begins */
    size_t n_context; /* leading messages that are known already: they count but are not written */
};

/* How the prompt ends, so that the reply can be read. */
struct hx_template_end {
    bool in_reasoning; /* the reply starts inside reasoning */
    bool in_content;   /* the reply goes on with a content that was given (prefix mode) */
    size_t n_images;
};

/* Renders the messages (sorted and cut as chat.md 3.3 to 3.5 say: m is changed) into *out, which
 * the caller owns after success. Errors: -EINVAL with param and slug; -EMSGSIZE; -ENOMEM. */
int hx_template_render(struct hx_messages *m, const struct hx_template_options *opt,
                       struct hx_prompt *out, struct hx_template_end *end,
                       struct hx_error *err) HX_MUST;

#endif
