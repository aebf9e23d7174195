/* Disks that a system could be installed on, as sysfs shows them, each with the reason if it is
 * none. The disk that was booted from is never one. */
#ifndef HX_DISK_TARGETS_H
#define HX_DISK_TARGETS_H

#include "disk/system.h"

#define HX_TARGETS_MAX 64

enum hx_target_verdict {
    HX_TARGET_FINE,
    HX_TARGET_BOOT_DISK, /* this system runs from it */
    HX_TARGET_READ_ONLY,
    HX_TARGET_IN_USE, /* mounted, swap, or part of an array */
    HX_TARGET_TOO_SMALL,
    HX_TARGET_SECTORS, /* neither 512 nor 4096 bytes */
    HX_TARGET_UNREADABLE,
    HX_TARGET_VERDICTS
};

enum hx_target_content { HX_CONTENT_NONE, HX_CONTENT_HX170, HX_CONTENT_OTHER };

struct hx_target {
    char name[HX_DISK_NAME]; /* "nvme0n1" */
    char path[HX_DISK_PATH]; /* device, outside the root */
    char model[64], serial[64];
    const char *bus; /* "NVMe", "USB", "SATA", "virtio", "SCSI", "other" */
    uint64_t n_bytes;
    unsigned sector;
    bool removable;
    enum hx_target_verdict verdict;
    enum hx_target_content content;
    char content_text[96]; /* "hx170 1.2", "Windows", "3 partitions", "empty" */
    bool models_kept;      /* content HX170: reinstalling with its models is possible */
};

struct hx_targets {
    int n;
    struct hx_target disk[HX_TARGETS_MAX]; /* by name */
};

/* Without a boot disk in /run/hx170/boot there is no list (-ENODEV). */
int hx_targets_list(const struct hx_root *root, struct hx_targets *out,
                    struct hx_error *err) HX_MUST;
/* Why a disk is none, as a sentence's end: "this system was started from it". */
const char *hx_target_reason(enum hx_target_verdict v);
/* The disk with this serial number that may be written to. -ENODEV: no such disk or several;
 * -EPERM: it must not be written to. */
int hx_targets_find(const struct hx_targets *list, const char *serial, const struct hx_target **out,
                    struct hx_error *err) HX_MUST;

#endif
