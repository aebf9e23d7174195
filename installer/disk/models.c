#include "disk/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX     "models_"
#define GUID_CHARS 24

void hx_models_label(const struct hx_part *own, char out[HX_GPT_LABEL])
{
    char text[HX_GUID_TEXT];
    int n = snprintf(out, HX_GPT_LABEL, PREFIX), digits = 0;
    hx_guid_text(own->guid, text);
    for (const char *p = text; *p && digits < GUID_CHARS; p++) {
        if (*p != '-') {
            out[n++] = *p;
            digits++;
        }
    }
    out[n] = '\0';
}

/* The first of the drive's partitions that holds models of a box; NULL: none. */
static struct hx_part *models_of(struct hx_table *t)
{
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++) {
        struct hx_part *p = &t->part[i];
        if (hx_part_used(p) &&
            (strncmp(p->label, PREFIX, strlen(PREFIX)) == 0 || strcmp(p->label, "models") == 0))
            return p;
    }
    return NULL;
}

void hx_models_look(const struct hx_disk *d, const char *label, struct hx_models_found *out)
{
    struct hx_table *t = calloc(1, sizeof(*t));
    *out = (struct hx_models_found){0};
    if (t && hx_table_read(d, t, NULL, NULL) == 0) {
        const struct hx_part *p = models_of(t);
        out->keepable = p && !hx_layout_is_installed(t);
        out->paired = p && strcmp(p->label, label) == 0;
    }
    free(t);
}

static int keep_drive(struct hx_disk *d, struct hx_table *t, const char *label,
                      struct hx_error *err)
{
    int r = hx_table_read(d, t, NULL, err);
    if (r < 0 && r != -ENODATA)
        return r;
    struct hx_part *p = r == 0 ? models_of(t) : NULL;
    if (!p)
        return hx_fail(err, -ENODATA, "%s: no partition with models on it; nothing was written",
                       d->path);
    if (hx_layout_is_installed(t))
        return hx_fail(err, -EEXIST,
                       "%s: has a whole system on it; its models are reached by starting from it",
                       d->path);
    snprintf(p->label, sizeof(p->label), "%s", label);
    return hx_table_write(t, d, false, err);
}

/* The zeros first: what the partition held before is no file system then, and the first start makes
 * one. */
static int erase_drive(struct hx_disk *d, struct hx_table *t, const char *label,
                       struct hx_error *err)
{
    int r = hx_disk_zero(d, 0, HX_DISK_MIB, err);
    if (r == 0)
        r = hx_disk_zero(d, d->n_bytes - HX_DISK_MIB, HX_DISK_MIB, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    if (r == 0)
        r = hx_table_init(t, d, err);
    if (r < 0)
        return r;
    uint64_t align = HX_DISK_MIB / d->sector;
    struct hx_part *p = &t->part[0];
    memcpy(p->type, hx_guid_linux, HX_GUID_BYTES);
    snprintf(p->label, sizeof(p->label), "%s", label);
    p->first = (t->first_usable + align - 1) / align * align;
    p->n_sectors = (t->last_usable + 1) / align * align - p->first;
    r = hx_guid_random(p->guid, err);
    if (r == 0)
        r = hx_disk_zero(d, p->first * d->sector, HX_DISK_MIB, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    return r < 0 ? r : hx_table_write(t, d, true, err);
}

static int set_auto(struct hx_disk *boot, struct hx_table *own, bool automatic,
                    struct hx_error *err)
{
    struct hx_part *p = &own->part[HX_PART_MODELS];
    p->attributes = automatic ? p->attributes & ~HX_GPT_NO_AUTO : p->attributes | HX_GPT_NO_AUTO;
    return hx_table_write(own, boot, false, err);
}

int hx_models_move(struct hx_disk *boot, struct hx_table *own, struct hx_disk *target, bool keep,
                   struct hx_error *err)
{
    char label[HX_GPT_LABEL];
    if (!hx_layout_is_installed(own))
        return hx_fail(err, -ENODEV, "%s: no installed system", boot->path);
    struct hx_table *t = calloc(1, sizeof(*t));
    if (!t)
        return hx_fail(err, -ENOMEM, "out of memory for a partition table");
    hx_models_label(&own->part[HX_PART_MODELS], label);
    int r = keep ? keep_drive(target, t, label, err) : erase_drive(target, t, label, err);
    free(t);
    return r < 0 ? r : set_auto(boot, own, false, err);
}

int hx_models_own(struct hx_disk *boot, struct hx_table *own, struct hx_error *err)
{
    if (!hx_layout_is_installed(own))
        return hx_fail(err, -ENODEV, "%s: no installed system", boot->path);
    return set_auto(boot, own, true, err);
}
