/* Writing the running system to a disk. Order, so that a power cut at any write leaves a disk that
 * is blank, or the old models and nothing that boots, or the whole new system:
 *
 *   1. zeros over the first and last MiB (models kept: over the ESP, then a table with empty slots)
 *   2. root and hash tree into slot A, read back and proven by the root hash
 *   3. the beginnings of `state` and `models` (unless kept), so that the first start makes them new
 *   4. the ESP with everything but the kernel image's name
 *   5. the partition table
 *   6. the kernel image's name */
#ifndef HX_DISK_INSTALL_H
#define HX_DISK_INSTALL_H

#include "disk/system.h"
#include "disk/verity.h"

struct hx_install_job {
    const struct hx_system *from;
    const struct hx_disk *source; /* boot disk, open for reading */
    const char *esp;              /* folder where the stick's ESP is mounted */
    const char *answers;          /* file for the first start's wizard, or NULL */
    bool keep_models;             /* needs an installed system on the target */
    hx_progress progress;         /* NULL: none; `what`: "system", "check", "esp" */
    void *ctx;
};

/* Every check that needs no write. *keep (with keep_models): table of the target. */
int hx_install_check(const struct hx_install_job *job, const struct hx_disk *target,
                     struct hx_error *err) HX_MUST;
/* Checks and writes. The target is open for writing. */
int hx_install_write(const struct hx_install_job *job, struct hx_disk *target,
                     struct hx_error *err) HX_MUST;

/* The stick proven against the root hash it was started with: -EBADMSG names what is damaged. */
int hx_install_check_stick(const struct hx_install_job *job, struct hx_error *err) HX_MUST;

#endif
