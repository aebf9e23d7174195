/* The build of a source bundle, shut in: own mount, network, process, host name and message
 * namespaces (and a user namespace where we are not root), a root of its own that holds only the
 * build kit, the bundle (read-only) and one output folder; no network, no new privileges, limits
 * on time, processes and file size. Only the argv of the manifest is run. */
#ifndef HX_BUNDLE_BUILD_H
#define HX_BUNDLE_BUILD_H

#include <sys/types.h>

#include "bundle/manifest.h"

struct hx_build {
    const struct hx_manifest *m;
    const char *kit;     /* folder of the machine with usr, bin, lib: tools and headers */
    const char *headers; /* folder of the kernel headers inside the kit: "/usr/src/..." */
    const char *kernel;  /* release */
    const char *bundle;  /* staged copy, a path of the machine */
    const char *scratch; /* folder that the caller made and removes; gets root/ out/ tmp/ */
    const char *log;     /* gets the start of what the build prints, as far as there is room */
    int timeout_s;
};

/* 0: it ended with status 0 and every output is a plain file below scratch/out.
 * -EPERM: this machine gives no namespaces, so nothing was run. -ETIMEDOUT, -ENOSPC, -ECHILD (exit
 * status in the message, with the end of its output). */
int hx_build_run(const struct hx_build *b, struct hx_error *err) HX_MUST;

#endif
