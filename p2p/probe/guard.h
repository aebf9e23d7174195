/* Temperatures while the memory tests run: the highest are noted, and a card that gets too hot is
 * told to end its test. */
#ifndef HX_PROBE_GUARD_H
#define HX_PROBE_GUARD_H

#include "probe/probe.h"

#define HX_GUARD_CORE_C   80
#define HX_GUARD_MEMORY_C 85

struct hx_probe_guard;

/* library NULL: the standard one. A machine without it, or without a sensor, is no error: nothing
 * is noted then, and the test runs unguarded. */
int hx_probe_guard_start(const char *library, const struct hx_probe_shared *sh,
                         struct hx_probe_guard **out, struct hx_error *err) HX_MUST;
/* Call often. */
void hx_probe_guard_look(const struct hx_probe_guard *g, struct hx_probe_shared *sh);
void hx_probe_guard_stop(struct hx_probe_guard *g, struct hx_probe_shared *sh);

#endif
