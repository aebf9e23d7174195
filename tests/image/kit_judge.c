/* The judge of drives for scenarios; apart from kit.c, whose reader of partition tables is another.
 */
#include <stdio.h>
#include <stdlib.h>

#include "disk/bundle.h"
#include "image/drivelook.h"
#include "image/kit.h"
#include "image/rawdisk.h"

int hx_kit_entries(struct hx_scene *s, const char *disk, const struct hx_kit_bundle *b,
                   unsigned n_wanted, struct hx_error *err)
{
    struct hx_drive_known known[2] = {{.version = "image"}, {.version = "update"}};
    struct hx_drive_memory memory = {0};
    struct hx_drive_look look;
    struct hx_bundle *bundle = calloc(1, sizeof(*bundle));
    char path[512], key[512];
    if (!bundle)
        return hx_fail(err, -ENOMEM, "out of memory");
    snprintf(path, sizeof(path), "%s/image/work/out/uki.efi", s->build);
    snprintf(key, sizeof(key), "%s/image/work/tree/usr/share/hx170/release.pem", s->build);
    int r = hx_rawdisk_hash(path, known[0].sha256, err);
    if (!r)
        r = hx_bundle_open(b->path, key, bundle, err);
    if (!r)
        snprintf(known[1].sha256, sizeof(known[1].sha256), "%s", bundle->sha256[HX_BUNDLE_UKI]);
    if (!r)
        r = hx_drive_look(disk, 512, known, 2, &memory, &look, err);
    if (!r && (look.verdict != HX_DRIVE_BOOTS || look.n_entries != n_wanted))
        r = hx_fail(err, -EBADMSG, "%s: %u boot entries, expected %u:%s; %s", disk, look.n_entries,
                    n_wanted, look.versions, look.why);
    hx_bundle_close(bundle);
    free(bundle);
    return r;
}
