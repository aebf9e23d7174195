/* A drive of its own for the models, in place of the system disk's partition: one partition, whose
 * label names the partition that it stands for. The initrd leaves that name in /run/hx170/boot, and
 * a udev rule turns the pair into /dev/hx170/models (docs/install.md). Counts from the next start.
 */
#ifndef HX_DISK_MODELS_H
#define HX_DISK_MODELS_H

#include "disk/layout.h"

/* Attribute of the system disk's own models partition while another drive stands for it: the "do
 * not mount automatically" of the discoverable partitions specification. */
#define HX_GPT_NO_AUTO (1ull << 63)

/* The label: "models_" and the first 24 digits of the GUID of the partition that it stands for. */
void hx_models_label(const struct hx_part *own, char out[HX_GPT_LABEL]);

struct hx_models_found {
    bool keepable; /* hx_models_move with keep takes it */
    bool paired;   /* its partition stands for the one of this label */
};

/* What of models is on another drive; one that cannot be read has none. */
void hx_models_look(const struct hx_disk *d, const char *label, struct hx_models_found *out);

/* target: the other drive, opened alone; own: the table on `boot`. keep: what is in target's models
 * partition, made by another box or an earlier installation, stays (-ENODATA: there is none); else
 * the drive is erased. Ends with a flush on both; cut off, the box starts with its own partition,
 * or the command is given again. */
int hx_models_move(struct hx_disk *boot, struct hx_table *own, struct hx_disk *target, bool keep,
                   struct hx_error *err) HX_MUST;
/* Back to the system disk's own partition; the other drive is left alone. */
int hx_models_own(struct hx_disk *boot, struct hx_table *own, struct hx_error *err) HX_MUST;

#endif
