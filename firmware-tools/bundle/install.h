/* Installing a bundle into the free slot and arming it for the next start (hardware.md 2.7). The
 * running driver and the active slot are not touched. */
#ifndef HX_BUNDLE_INSTALL_H
#define HX_BUNDLE_INSTALL_H

#include "bundle/check.h"
#include "bundle/store.h"

struct hx_install {
    struct hx_source *source;
    hx_bundle_host_fn host; /* the machine, as for hx_bundle_verify */
    void *ctx;
    const char *kernel;             /* release that the modules are for */
    const char *kit;                /* build kit, a folder of the machine */
    const char *headers;            /* inside the kit; NULL: none */
    void (*step)(const char *name); /* progress; may be NULL */
};

/* Verifies, then goes through the steps of the plan up to "boot_image". 0 with a verdict: not
 * accepted means that nothing changed. Negative: a step failed; the journal says "failed", the
 * slot is empty again and the active one is as before. */
int hx_bundle_install(struct hx_store *s, const struct hx_install *in,
                      struct hx_bundle_verdict *verdict, struct hx_error *err) HX_MUST;

#endif
