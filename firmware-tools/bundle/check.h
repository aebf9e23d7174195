/* Whether a bundle may be installed on this machine (docs/bundles.md): manifest BND-01, content
 * BND-02, targets BND-03, build needs BND-04, licences BND-05, Secure Boot DRV-11. Changes nothing.
 */
#ifndef HX_BUNDLE_CHECK_H
#define HX_BUNDLE_CHECK_H

#include "base/buf.h"
#include "bundle/manifest.h"
#include "bundle/source.h"
#include "hw/driver.h"

#define HX_BUNDLE_STEPS  12
#define HX_BUNDLE_FAULTS 6
#define HX_BUNDLE_IDS    32

/* The machine as far as bundles care. */
struct hx_bundle_host {
    char kernel[128]; /* release that the modules are for */
    char arch[66];
    char userspace_driver[32]; /* version of the libraries, "" = none */
    char device_id[HX_BUNDLE_IDS][5];
    int n_device_ids;
    bool headers;          /* of that kernel, in the build kit */
    char missing_tool[68]; /* first of build.needs that the kit lacks, "" = none */
    enum hx_tristate secure_boot;
    int64_t free_mib;
    struct hx_strings accepted; /* licence ids; owned by the caller */
};

struct hx_bundle_verdict {
    bool accept;
    struct hx_bundle_fault fault[HX_BUNDLE_FAULTS];
    int n_faults;
    const char *plan[HX_BUNDLE_STEPS]; /* steps of an install, in order */
    int n_plan;
    bool sign; /* modules get the appliance's own signature */
};

/* Reads the manifest of a source and parses it. 0; -EINVAL with *fault (BND-01); other errors. */
int hx_bundle_load(struct hx_source *source, struct hx_manifest **out,
                   struct hx_bundle_fault *fault, struct hx_error *err) HX_MUST;
/* Size and hash of every file, nothing unlisted, no links. 0 with *fault empty or set (BND-02);
 * negative when the source cannot be read. copy_to: folder that gets a copy of every file, -1:
 * none (a fault then leaves a part of the copy). */
int hx_bundle_content(struct hx_source *source, const struct hx_manifest *m, int copy_to,
                      struct hx_bundle_fault *fault, struct hx_error *err) HX_MUST;
/* BND-03 to 05 and DRV-11 and, if all hold, the plan. */
void hx_bundle_judge(const struct hx_manifest *m, const struct hx_bundle_host *host,
                     struct hx_bundle_verdict *out);
/* All of the above. The manifest is handed out if it could be parsed (m may be NULL). host is
 * called with the manifest once content is sound; it fills *h. */
typedef int (*hx_bundle_host_fn)(void *ctx, const struct hx_manifest *m, struct hx_bundle_host *h,
                                 struct hx_error *err);
int hx_bundle_verify(struct hx_source *source, hx_bundle_host_fn host, void *ctx,
                     struct hx_manifest **m, struct hx_bundle_verdict *out,
                     struct hx_error *err) HX_MUST;
/* The form of tests/vectors/bundles/NAME/expected.json. */
int hx_bundle_verdict_json(const struct hx_bundle_verdict *v, struct hx_buf *out);

#endif
