/* The system that runs: its version, its root hash, and the disk that the firmware booted from. */
#ifndef HX_DISK_SYSTEM_H
#define HX_DISK_SYSTEM_H

#include "disk/layout.h"
#include "hw/root.h"

#define HX_DISK_NAME 64

struct hx_system {
    char version[HX_VERSION_MAX];
    char root_hash[HX_ROOT_HASH_HEX + 1];
    char disk[HX_DISK_NAME]; /* "nvme0n1" */
    char path[HX_DISK_PATH]; /* of its device, outside the root */
    bool installer;          /* hx170.mode=installer: it runs from the stick */
    struct hx_table table;
    int root, verity; /* index in the table */
    bool installed;   /* the seven partitions are there */
    int slot;         /* 0 or 1 if installed */
};

/* Name of the boot disk, from what the initrd left in /run/hx170/boot. -ENODEV: not known. */
int hx_system_boot_disk(const struct hx_root *root, char out[HX_DISK_NAME],
                        struct hx_error *err) HX_MUST;
/* sector: of an image file below a fake root; 0 otherwise. */
int hx_system_read(const struct hx_root *root, unsigned sector, struct hx_system *out,
                   struct hx_error *err) HX_MUST;

#endif
