/* Reasoning effort of a request (docs/chat.md, effort table). */
#ifndef HX_TEXT_EFFORT_H
#define HX_TEXT_EFFORT_H

#include <hx/chat.h>

#define HX_EFFORT_REFERENCE 1u /* only what the reference encoder knows: low, high, max, 1-100 */

/* Reads an effort value: *level 1-100 and *off (none). Nothing given: the table's default.
 * Errors: -EINVAL with this param. */
int hx_effort_read(struct hx_jv v, enum hx_effort_table table, unsigned flags, const char *param,
                   int *level, bool *off, struct hx_error *err) HX_MUST;

#endif
