/* Server-sent events. */
#ifndef HX_SERVER_SSE_H
#define HX_SERVER_SSE_H

#include "base/buf.h"

/* One event around JSON text that is written between begin and end. */
void hx_sse_begin(struct hx_buf *out);
void hx_sse_end(struct hx_buf *out);
void hx_sse_comment(struct hx_buf *out, const char *text);
/* The last event of a stream of OpenAI's API. */
void hx_sse_done(struct hx_buf *out);

#endif
