/* A tool that takes minutes and says how far it is: JSON lines {"step": "...", "percent": N} on its
 * standard error. */
#ifndef HX_SETUP_STREAM_H
#define HX_SETUP_STREAM_H

#include "setup/setup.h"

typedef void (*hx_stream_fn)(void *ctx, const char *step, int percent);

/* Waits for its end. *rc: exit status, 128 + signal. If that is not 0, err holds the last line that
 * was no progress. A recorded machine has recorded answers and no progress. */
int hx_stream_run(const struct hx_setup *s, const char *const argv[], int timeout_ms,
                  hx_stream_fn progress, void *ctx, int *rc, struct hx_error *err) HX_MUST;

#endif
