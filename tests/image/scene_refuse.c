/* Updates that a box must not take, and boot partitions that they do not fit on (U6 to U9). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "image/kit.h"
#include "image/rawdisk.h"

#define OTHER_SERIAL "HXTARGET0002"
/* In the first sector of a FAT32: "was not put away in order". */
#define DIRTY_AT 0x41

enum device { GOOD, SAME, CUT, FORGED, DEVICES };
static const char *const devices[DEVICES] = {"/dev/vda", "/dev/vdb", "/dev/vdc", "/dev/vdd"};

/* A copy of a bundle that ends in its middle, or with a byte of its manifest changed. */
static int spoil(struct hx_scene *s, const char *bundle, enum device which, char *path, size_t size,
                 struct hx_error *err)
{
    hx_kit_path(s, which == CUT ? "cut" : "forged", "bundle", path, size);
    int r = hx_rawdisk_copy(bundle, path, err);
    if (!r && which == CUT && truncate(path, 20 << 20) < 0)
        r = hx_fail_errno(err, errno, "%s", path);
    return r || which == CUT ? r : hx_rawdisk_damage(path, 512 + 100, err);
}

static int mark_dirty(const char *disk, struct hx_error *err)
{
    static const uint8_t mark = 1;
    uint64_t esp, n;
    int r = hx_kit_partition(disk, 1, &esp, &n, err);
    return r ? r : hx_rawdisk_write(disk, esp + DIRTY_AT, &mark, 1, err);
}

/* The box with another installation on a second drive, its own boot partition as a power cut leaves
 * it, and the bundles as bare drives. */
static int describe(struct hx_scene *s, const struct hx_kit_bundle *b, char *other, size_t size,
                    struct hx_error *err)
{
    char settled[512], version[32], same[512], bad[2][512];
    hx_kit_path(s, "settled", "disk", settled, sizeof(settled));
    hx_kit_path(s, "other", "disk", other, size);
    int r = hx_kit_version(s, version, sizeof(version), err);
    snprintf(same, sizeof(same), "%s/image/work/out/hx170-%s.bundle", s->build, version);
    for (int i = 0; i < 2 && !r; i++)
        r = spoil(s, b->path, CUT + i, bad[i], sizeof(bad[i]), err);
    if (!r && access(other, R_OK) < 0)
        r = hx_fail(err, HX_SCENE_SKIP, "%s is missing: scenario two-drives makes it", other);
    if (!r)
        r = hx_kit_machine(s, "no-update", settled, err);
    if (!r)
        r = mark_dirty(s->setup.disks[0].path, err);
    if (r)
        return r;
    hx_scene_add_disk(s, other, HX_VM_NVME)->serial = OTHER_SERIAL;
    s->setup.disks[1].boot = -1;
    const char *const files[DEVICES] = {b->path, same, bad[0], bad[1]};
    for (int i = 0; i < DEVICES; i++) {
        struct hx_vm_disk *d = hx_scene_add_disk(s, files[i], HX_VM_VIRTIO);
        d->read_only = true;
        d->boot = -1;
    }
    return 0;
}

static int as_root(struct hx_scene *s, const char *script, struct hx_error *err)
{
    char command[300];
    if (!script)
        return 0;
    snprintf(command, sizeof(command), "sudo sh -c '%s' 2>&1", script);
    return hx_kit_expect(s, command, 0, NULL, err);
}

/* Each refused with its reason; the boot entries stay as they are. */
static int refusals(struct hx_scene *s, struct hx_error *err)
{
    static const struct {
        const char *before, *after; /* as root */
        enum device bundle;
        int status;
        const char *words;
    } rows[] = {
        {NULL, NULL, SAME, 77, "is the one that runs"},
        {NULL, NULL, CUT, 65, "cut off"},
        {NULL, NULL, FORGED, 77, "not signed by the maker"},
        /* As the boot loader names an entry whose second start this is. */
        {"cd /efi/EFI/Linux && for f in *.efi; do mv $f ${f%.efi}+2-1.efi; done",
         "cd /efi/EFI/Linux && for f in *.efi; do mv $f ${f%+2-1.efi}.efi; done", GOOD, 75,
         "has not proven itself yet"},
        {"! cat /dev/zero >/efi/fill", "rm /efi/fill", GOOD, 73, "the ESP has room for"},
        {"umount /efi && mount -t vfat -o ro /dev/hx170/esp /efi",
         "umount /efi && systemctl start efi.mount", GOOD, 73, "mounted read-only"},
    };
    static const char entries[] = "sudo sh -c 'sha256sum /efi/EFI/Linux/*' | sha256sum";
    char before[128], after[128], command[400];
    int r = hx_kit_ask(s, entries, before, sizeof(before), err);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !r; i++) {
        snprintf(command, sizeof(command), "sudo hx-update install %s 2>&1",
                 devices[rows[i].bundle]);
        r = as_root(s, rows[i].before, err);
        if (!r)
            r = hx_kit_expect(s, command, rows[i].status, rows[i].words, err);
        if (!r)
            r = as_root(s, rows[i].after, err);
        if (!r)
            r = hx_kit_ask(s, entries, after, sizeof(after), err);
        if (!r && strcmp(before, after) != 0)
            r = hx_fail(err, -EBADMSG, "the boot entries were changed");
        if (r)
            r = hx_wrap(err, r, "'%s'", rows[i].words);
    }
    return r;
}

int hx_scene_no_update(struct hx_scene *s, struct hx_error *err)
{
    struct hx_kit_bundle b;
    char other[512], before[65], after[65], path[512];
    int r = hx_kit_bundle(s, HX_KIT_GOOD, &b, err);
    if (!r)
        r = describe(s, &b, other, sizeof(other), err);
    if (!r)
        r = hx_rawdisk_digest(other, before, err);
    if (!r)
        r = hx_kit_boot(s, err);
    /* The mark was taken away by the check at the start, or the kernel would have named it. */
    if (!r)
        r = hx_kit_expect(s, "sudo dmesg | grep -c 'not properly unmounted'; mountpoint /efi", 0,
                          "0\n", err);
    if (!r)
        r = refusals(s, err);
    /* Nothing of all that stands in the way of the good one. */
    if (!r)
        r = hx_kit_expect(s, "sudo hx-update install /dev/vda", 0, "is installed beside", err);
    hx_kit_path(s, "no-update-cut", "disk", path, sizeof(path));
    if (!r)
        r = hx_kit_snapshot(s, path, err);
    hx_kit_cut(s);
    if (!r)
        r = hx_kit_entries(s, path, &b, 2, err);
    if (!r)
        r = hx_rawdisk_digest(other, after, err);
    if (!r && strcmp(before, after) != 0)
        r = hx_fail(err, -EBADMSG, "the drive with the other installation was written to");
    unlink(path);
    return r;
}
