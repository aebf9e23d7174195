/* The status on a console of a box that is set up: what hx status says, again whenever it changes.
 * Reads only, asks nothing. */
#ifndef HX_SETUP_CONSOLE_H
#define HX_SETUP_CONSOLE_H

#include <stdio.h>

#include "setup/status.h"

/* What was shown last. */
struct hx_console {
    char head[200];              /* the sentence of the whole block */
    long long block_at, line_at; /* monotonic seconds */
    char address[64];
};

#define HX_CONSOLE_INIT                                                                            \
    {                                                                                              \
        .head = "", .block_at = 0, .line_at = 0, .address = ""                                     \
    }

/* Shows what has to be shown at `now` (seconds, growing). redraw: a screen, whose whole text is
 * replaced; else a line printer: the whole text when the sentence or the address changes and once
 * an hour, and while something is downloaded or loaded one line a minute. 0 or a negative errno. */
int hx_console_show(struct hx_console *c, const struct hx_status *s, bool redraw, long long now,
                    FILE *out, struct hx_error *err) HX_MUST;

#endif
