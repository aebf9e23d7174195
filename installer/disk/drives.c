#include "disk/drives.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "disk/speed.h"

/* What tables of the file system take, as `prepare` makes it; rounded up. */
#define OVERHEAD 50

static uint64_t usable_part(uint64_t n_bytes)
{
    return n_bytes - n_bytes / OVERHEAD;
}

static uint64_t free_now(const struct hx_root *root)
{
    char path[HX_ROOT_PATH];
    struct statvfs st;
    if (hx_root_outside(root, "/srv/models", path) < 0 || statvfs(path, &st) < 0)
        return 0;
    return (uint64_t)st.f_bavail * st.f_frsize;
}

/* A drive that is in use is looked at as well: it may be the one that holds the models. */
static void look(struct hx_drive *d, const char *label, bool elsewhere)
{
    struct hx_models_found found = {0};
    struct hx_disk disk;
    if (d->disk.verdict != HX_TARGET_FINE && d->disk.verdict != HX_TARGET_IN_USE)
        return;
    if (hx_disk_open(d->disk.path, HX_DISK_READ, d->disk.sector, &disk, NULL) < 0)
        return;
    hx_models_look(&disk, label, &found);
    hx_disk_close(&disk);
    d->current = elsewhere && found.paired;
    d->keepable = found.keepable;
}

int hx_drives_list(const struct hx_root *root, const struct hx_system *here, double seconds,
                   struct hx_drives *out, struct hx_error *err)
{
    if (!here->installed)
        return hx_fail(err, -EPERM, "this system runs from a stick: install it first");
    struct hx_targets *list = calloc(1, sizeof(*list));
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_targets_list(root, list, err);
    const struct hx_part *part = &here->table.part[HX_PART_MODELS];
    bool elsewhere = part->attributes & HX_GPT_NO_AUTO;
    char label[HX_GPT_LABEL];
    hx_models_label(part, label);
    out->n = 0;
    for (int i = 0; r == 0 && i < list->n; i++) {
        struct hx_drive *d = &out->drive[out->n++];
        struct hx_speed speed;
        *d = (struct hx_drive){.disk = list->disk[i]};
        d->own = strcmp(d->disk.name, here->disk) == 0;
        if (d->own)
            d->current = !elsewhere;
        else
            look(d, label, elsewhere);
        d->usable = d->own || d->current || d->disk.verdict == HX_TARGET_FINE;
        d->room = d->current ? free_now(root)
                  : d->own   ? usable_part(hx_part_bytes(&here->table, HX_PART_MODELS))
                             : usable_part(d->disk.n_bytes);
        if (d->usable && seconds > 0 && hx_speed_measure(d->disk.path, seconds, &speed, NULL) == 0)
            d->rate = (double)speed.n_bytes / speed.seconds;
    }
    free(list);
    return r;
}
