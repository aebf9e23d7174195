/* What a verdict depends on, and the verdict of an earlier run. */
#ifndef HX_P2P_KEY_H
#define HX_P2P_KEY_H

#include "facts.h"

#define HX_P2P_RESULT "/var/lib/hx170/check/p2p.json"

/* Hash over driver, module, kernel words, cards, links, IOMMU, ACS and the probe's binary
 * (hardware.md 3.6); a missing probe counts as such. */
int hx_key_of(const struct hx_facts *f, const char *probe_program, char out[72],
              struct hx_error *err) HX_MUST;

/* "corrupt" or "hang" if direct copies were found unusable under the same key, by the saved result
 * or by the mark that `hx-cards watch` leaves beside it (watch.json) when a running engine hung;
 * else "". A missing or foreign file is "". */
void hx_key_lock(const char *result_path, const char *key, char out[16]);
/* A full run found direct copies good: the mark is void. No mark is no error. */
int hx_key_release(const char *result_path, struct hx_error *err) HX_MUST;

#endif
