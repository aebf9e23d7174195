/* Does upstream still have what the lock file says? Asked before any weight byte, so that a change
 * is not found after 100 GB. */
#ifndef HX_FETCH_UPSTREAM_H
#define HX_FETCH_UPSTREAM_H

#include "fetch/plan.h"
#include "fetch/transfer.h"

/* Lists every source of the plan at its commit and compares names, sizes and hashes. -ENOENT:
 * commit or files are gone; -ESTALE: another size or hash; both list the files. *checked: false if
 * no endpoint of a source can list (plain servers): hashes decide later. May be NULL. */
int hx_fetch_check_upstream(struct hx_transfer *t, const struct hx_plan *plan, bool *checked,
                            struct hx_error *err) HX_MUST;

#endif
