/* What happens to slots at and after a start of the machine: choosing the slot to load, counting
 * tries, confirming or rolling back (hardware.md 2.7). */
#ifndef HX_BUNDLE_START_H
#define HX_BUNDLE_START_H

#include "bundle/store.h"

#define HX_MAX_STARTS 2 /* tries of a slot that is not confirmed */

enum hx_start_action {
    HX_START_NOTHING, /* no bundle */
    HX_START_LOAD,
    HX_START_REFUSE, /* the slot does not fit this kernel or is damaged */
};
struct hx_start_plan {
    enum hx_start_action action;
    enum hx_slot slot;
    bool rolled_back; /* this call gave the candidate up */
    char why[320];    /* for people; also for LOAD: what was decided */
};

/* Decides which slot this start loads and records it. Calling it again in the same start decides
 * the same. kernel: the running release. confirmed_off: -1 not told, 0 no, 1 yes. */
int hx_start_decide(struct hx_store *s, const char *kernel, int confirmed_off,
                    struct hx_start_plan *out, struct hx_error *err) HX_MUST;
/* At a clean stop: when it was, so that the next start knows how long power was off. */
int hx_start_stopped(struct hx_store *s, struct hx_error *err) HX_MUST;

/* After the probe of a candidate: it becomes the active slot, the old one stays as the way back. */
int hx_start_commit(struct hx_store *s, struct hx_error *err) HX_MUST;
/* ... or is given up, with the reason. */
int hx_start_fail(struct hx_store *s, const char *why, struct hx_error *err) HX_MUST;

/* The owner goes back: a pending candidate is dropped; else active and previous change places.
 * -ENOENT: there is no way back. */
int hx_bundle_rollback(struct hx_store *s, struct hx_error *err) HX_MUST;
/* all: every slot, else only what is not active. */
int hx_bundle_remove(struct hx_store *s, bool all, struct hx_error *err) HX_MUST;

#endif
