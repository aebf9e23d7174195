/* Runs steps in children under a watchdog. */
#ifndef HX_PROBE_SUPERVISE_H
#define HX_PROBE_SUPERVISE_H

#include "probe/probe.h"

/* Called from time to time and after each child: print progress, save partial results. device -1:
 * a step of all cards. done: the step's child has just ended. Returns false to stop everything. */
typedef bool hx_probe_watch_fn(void *ctx, const struct hx_probe_shared *sh,
                               const struct hx_probe_step *step, int device, double seconds,
                               bool done);

struct hx_probe_run {
    const struct hx_probe_options *options;
    const struct hx_probe_plant *plant; /* NULL in the product */
    hx_probe_watch_fn *watch;           /* may be NULL */
    void *ctx;
    unsigned grace_ms; /* after a limit: time to end on request, then again after SIGTERM */
    /* Findings about the run itself: */
    int n_limits, n_bad;          /* children beyond the limit; children that failed or crashed */
    bool stuck[HX_PROBE_DEVICES]; /* a child on this card cannot be ended */
    bool any_stuck, stopped;
    char last_error[256];
};

/* A result in memory that children share; all of it "nothing measured". */
int hx_probe_shared_new(struct hx_probe_shared **out, struct hx_error *err) HX_MUST;
void hx_probe_shared_free(struct hx_probe_shared *sh);

/* One step with its scope's devices. A child beyond its limit is asked to end, then sent SIGTERM,
 * then left alone: a process that is killed hard while it waits in the driver leaves every card
 * unusable until a restart. No further step starts on a card with such a child, and no pair test at
 * all. -errno only if no child could be started. */
int hx_probe_run_step(struct hx_probe_run *run, struct hx_probe_shared *sh,
                      const struct hx_probe_step *step, struct hx_error *err) HX_MUST;

#endif
