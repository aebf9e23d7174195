/* Judging a slot on trial (hardware.md 2.7, probe): what its manifest promises, against the machine
 * as it is and what p2p_check found at this start. */
#ifndef HX_CARDS_CONFIRM_H
#define HX_CARDS_CONFIRM_H

#include "bundle/manifest.h"
#include "inventory.h"

#define HX_CONFIRM_REASONS 12

struct hx_confirm_facts {
    const struct hx_inventory *inventory;
    const char *klog;       /* kernel log of this start, NULL: not readable */
    const char *marker;     /* content of the slot's safety marker, "" = none */
    const char *srcversion; /* of the slot's nvidia module */
    bool unsafe_layout;     /* the log shows the unsafe build's lines */
};

struct hx_confirm_result {
    bool pass;
    char reason[HX_CONFIRM_REASONS][160]; /* why not */
    int n_reasons;
    char note[HX_CONFIRM_REASONS][160]; /* does not decide */
    int n_notes;
};

/* Pure. */
void hx_confirm_judge(const struct hx_manifest *m, const struct hx_confirm_facts *f,
                      struct hx_confirm_result *out);

int hx_cards_confirm(const struct hx_cards_options *o);

#endif
