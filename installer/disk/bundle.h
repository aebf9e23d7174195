/* Update bundles: a plain tar of manifest, manifest.sig, root.erofs, root.verity and uki.efi, or a
 * folder of these files. docs/update.md has the form. */
#ifndef HX_DISK_BUNDLE_H
#define HX_DISK_BUNDLE_H

#include "disk/layout.h"
#include "disk/verity.h"

enum hx_bundle_part { HX_BUNDLE_ROOT, HX_BUNDLE_VERITY, HX_BUNDLE_UKI, HX_BUNDLE_PARTS };

struct hx_bundle {
    char version[HX_VERSION_MAX], minimum[HX_VERSION_MAX];
    char kernel[64];
    char root_hash[HX_ROOT_HASH_HEX + 1];
    char sha256[HX_BUNDLE_PARTS][65];
    struct hx_extent part[HX_BUNDLE_PARTS];
    struct hx_disk file[HX_BUNDLE_PARTS + 2]; /* open files; one of them for a tar */
    int n_files;
};

/* Opens, checks the signature (key: PEM file) and reads the manifest. Nothing of the manifest is
 * looked at before its signature was found good. -EPERM: signature; -EBADMSG: cut off, sizes;
 * -EINVAL: manifest. */
int hx_bundle_open(const char *path, const char *key, struct hx_bundle *out,
                   struct hx_error *err) HX_MUST;
void hx_bundle_close(struct hx_bundle *b);
/* Hashes of all parts. -EBADMSG names the part. */
int hx_bundle_check(const struct hx_bundle *b, hx_progress progress, void *ctx,
                    struct hx_error *err) HX_MUST;

#endif
