/* Search for the root's two partitions over all disks that are there now. */
#ifndef HX_INIT_DISKS_H
#define HX_INIT_DISKS_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#include "init/gpt.h"

#define HX_INIT_NAME                                                                               \
    64 /* bytes of a kernel device name with its NUL; longer ones are passed over */

struct hx_init_wanted {
    uint8_t data[HX_GPT_GUID], hash[HX_GPT_GUID];
    bool has_loader; /* loader: GUID of the ESP that the firmware booted from */
    uint8_t loader[HX_GPT_GUID];
};

struct hx_init_found {
    char disk[HX_INIT_NAME], data[HX_INIT_NAME], hash[HX_INIT_NAME]; /* "nvme0n1", "nvme0n1p2" */
    char disk_number[24];                                            /* "259:0" */
    uint64_t data_bytes, hash_bytes;
    char state_guid[37];  /* of the partition with the label "state", "" if there is none */
    char models_guid[37]; /* the same for the label "models" */
    bool is_boot_disk;    /* the ESP of wanted->loader is on this disk */
};

/* root: "" or a folder that holds sys/class/block and dev. Takes the disk that was booted from if
 * it has both partitions, else the first one by name that has them. -ENODEV: none (yet). */
int hx_init_find(const char *root, const struct hx_init_wanted *wanted, struct hx_init_found *out,
                 struct hx_error *err) HX_MUST;

#endif
