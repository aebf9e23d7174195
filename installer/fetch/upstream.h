/* Before any weight byte: does upstream still have what the lock file says? */
#ifndef HX_FETCH_UPSTREAM_H
#define HX_FETCH_UPSTREAM_H

#include <hx/error.h>

#include "fetch/plan.h"
#include "fetch/transfer.h"

/* Lists every source of the plan at its pinned commit and compares paths, sizes and hashes.
 * -ESTALE names the files that are missing or different. A listing that cannot be had (a mirror
 * without one, no line) is no failure: every piece is checked anyway; say() gets a line then. */
int hx_upstream_check(struct hx_transfer *t, const struct hx_plan *plan,
                      void (*say)(void *ctx, const char *text), void *ctx,
                      struct hx_error *err) HX_MUST;

#endif
