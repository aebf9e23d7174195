/* Server-sent events. JSON has no raw line breaks, so an event is always one data line. */
#include "server/sse.h"

void hx_sse_begin(struct hx_buf *out)
{
    hx_buf_puts(out, "data: ");
}

void hx_sse_end(struct hx_buf *out)
{
    hx_buf_puts(out, "\n\n");
}

void hx_sse_comment(struct hx_buf *out, const char *text)
{
    hx_buf_puts(out, ": ");
    hx_buf_puts(out, text);
    hx_buf_puts(out, "\n\n");
}

void hx_sse_done(struct hx_buf *out)
{
    hx_buf_puts(out, "data: [DONE]\n\n");
}
