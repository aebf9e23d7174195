/* Runs hx-probe in a process of its own and reads what it measured. */
#ifndef HX_P2P_LAUNCH_H
#define HX_P2P_LAUNCH_H

#include "facts.h"

#define HX_PROBE_PROGRAM "/usr/libexec/hx170/hx-probe"

struct hx_launch {
    const char *program;
    bool full;
    bool progress;    /* pass its progress on to standard error */
    int limit_s;      /* for all of it; 0: by full */
    const char *nvml; /* library for readings under load, NULL: the standard one */
};

/* Measures the cards of f: f->probe, f->load and the cards' links are filled, f->measured is set. A
 * probe that is not installed, hangs or fails is no error: f->unmeasured and note say so, and what
 * it measured before counts. */
int hx_launch_probe(const struct hx_launch *o, const struct hx_root *root, struct hx_facts *f,
                    char note[160], struct hx_error *err) HX_MUST;

#endif
