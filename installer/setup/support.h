/* The support archive: one plain tar with logs, results and settings, everything that identifies
 * the owner taken out (redact.h), and a list of its content. */
#ifndef HX_SETUP_SUPPORT_H
#define HX_SETUP_SUPPORT_H

#include <stdio.h>

#include <hx/error.h>

#include "hw/command.h"
#include "hw/root.h"

/* now: time of the entries. What cannot be read is noted in the list and is no error. */
int hx_support_write(const struct hx_root *root, const struct hx_commands *tools, long long now,
                     FILE *out, struct hx_error *err) HX_MUST;

#endif
