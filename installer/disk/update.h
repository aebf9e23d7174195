/* Updates of an installed system: the running slot is never written to. Each step is on the disk
 * before the next begins, so that a power cut anywhere leaves at least one system that boots:
 *
 *   1. refused unless the running start is blessed, the update verified, and there is room for it
 *   2. kernel images of other versions are deleted
 *   3. the standby slot is labelled empty
 *   4. root and hash tree into it, read back and proven by the root hash
 *   5. the slot gets its names
 *   6. the kernel image, with three tries */
#ifndef HX_DISK_UPDATE_H
#define HX_DISK_UPDATE_H

#include "disk/bundle.h"
#include "disk/kernels.h"
#include "disk/system.h"

struct hx_update_job {
    const struct hx_system *system;
    struct hx_disk *disk; /* of the system, open for writing beside its mounts */
    const char *esp;      /* folder of the mounted ESP */
    const struct hx_bundle *bundle;
    hx_progress progress; /* NULL: none */
    void *ctx;
};

/* Whether the update may be installed now; reads the whole bundle, writes nothing. -EAGAIN: the
 * running start is not blessed yet; -EPERM: version; -EFBIG, -ENOSPC, -EROFS: place. */
int hx_update_check(const struct hx_update_job *job, struct hx_error *err) HX_MUST;
/* Checks and writes. The next start takes the new system. */
int hx_update_write(const struct hx_update_job *job, struct hx_error *err) HX_MUST;

struct hx_update_status {
    int left;                     /* tries of the running version; -1: blessed; -2: no entry */
    char standby[HX_VERSION_MAX]; /* version in the other slot, "" if empty */
    int standby_left;             /* as above; 0: it failed or was given up */
    bool next_is_standby;         /* what the boot loader takes next */
};
int hx_update_status(const struct hx_system *system, const char *esp, struct hx_update_status *out,
                     struct hx_error *err) HX_MUST;

/* What is wrong with the version of the other slot, whose tries are used up: its root is read and
 * proven. 0: nothing is wrong with what lies there; -EBADMSG: damaged, err says where. Job without
 * bundle. */
int hx_update_prove_standby(const struct hx_update_job *job, struct hx_error *err) HX_MUST;

/* The next start takes the system of the other slot, after its root was proven; the running one
 * stays as the last resort. A newer system there that was not started yet is withdrawn instead. Job
 * without bundle. -ENODATA: there is none that could start. */
int hx_update_rollback(const struct hx_update_job *job, struct hx_error *err) HX_MUST;

#endif
