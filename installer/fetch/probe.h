/* Measured before a long download: how fast the disk takes data, how fast each source gives it. */
#ifndef HX_FETCH_PROBE_H
#define HX_FETCH_PROBE_H

#include "fetch/config.h"
#include "fetch/plan.h"

#define HX_PROBE_SLOW_DISK 300e6 /* bytes per second, below it a warning */

struct hx_probe_source {
    const struct hx_lock_source *source;
    double rate;  /* bytes per second of one 1 MiB range, link included */
    double hours; /* for its part of the plan over all connections at that rate */
};

struct hx_probe {
    double disk_rate; /* bytes per second */
    struct hx_probe_source source[HX_LOCK_MAX_SOURCES];
    size_t n_sources;
};

/* Writes n_bytes to a file without a name in the folder that the models go to (or the nearest one
 * above it that exists), past the page cache where that is possible, and syncs. */
int hx_probe_disk(const char *models, uint64_t n_bytes, double *rate, struct hx_error *err) HX_MUST;

/* One 1 MiB range of the largest file of every source of the plan. */
int hx_probe_sources(const struct hx_fetch_conf *conf, const struct hx_plan *plan,
                     struct hx_probe *out, struct hx_error *err) HX_MUST;

#endif
