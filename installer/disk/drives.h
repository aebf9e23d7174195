/* Drives that can hold the models: the system disk's own partition, and whole drives beside it. For
 * the wizard's choice. */
#ifndef HX_DISK_DRIVES_H
#define HX_DISK_DRIVES_H

#include "disk/models.h"
#include "disk/targets.h"

struct hx_drive {
    struct hx_target disk;
    bool own;      /* the system disk; the models get its partition */
    bool current;  /* holds them now, or from the next start on */
    bool keepable; /* has models of this or another box that can be taken over */
    bool usable;   /* own, current, or one that may be written to */
    uint64_t room; /* bytes for models: free ones on the current drive, else about what an empty one
                      has */
    double rate;   /* bytes per second of long reads; 0: not measured, or not readable */
};

struct hx_drives {
    int n;
    struct hx_drive drive[HX_TARGETS_MAX];
};

/* here: an installed system (-EPERM otherwise). seconds: of reading from each usable drive; 0:
 * none. */
int hx_drives_list(const struct hx_root *root, const struct hx_system *here, double seconds,
                   struct hx_drives *out, struct hx_error *err) HX_MUST;

#endif
