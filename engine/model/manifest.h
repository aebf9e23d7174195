/* state.json of a model folder: which files belong to it, and whether it is complete. */
#ifndef HX_MODEL_MANIFEST_H
#define HX_MODEL_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

/* What the downloader says about the hashes that the files were checked against. */
enum hx_verification {
    HX_VERIFICATION_UNKNOWN,         /* not made by the downloader */
    HX_VERIFICATION_NOT_INDEPENDENT, /* some of them came from this download itself */
    HX_VERIFICATION_INDEPENDENT,
};

struct hx_manifest {
    bool present;   /* false: the folder has no state.json, which is accepted */
    bool synthetic; /* made by hx-inspect tiny: random weights */
    char lock_id[80];
    enum hx_verification verification;
};

/* Refused (-EINVAL): not complete, a listed file missing or of another size, a path that leaves the
 * folder. Hashes are the downloader's business and not computed here. */
int hx_manifest_load(const char *dir, struct hx_manifest *out, struct hx_error *err) HX_MUST;

/* Hashes the listed files (paths relative to dir) and writes a complete state.json, atomically. */
int hx_manifest_write(const char *dir, const char *const *paths, int n_paths, bool synthetic,
                      const char *source, const char *licence, struct hx_error *err) HX_MUST;

#endif
