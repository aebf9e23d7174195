/* At each start, before /var is mounted: a reset that was asked for, and file systems that are not
 * there yet. Requests are files on the ESP, so that they outlive a lost state partition, and go
 * away only when all is done: a start that was cut off does it again. */
#ifndef HX_DISK_PREPARE_H
#define HX_DISK_PREPARE_H

#include "hw/root.h"

enum hx_reset_level {
    HX_RESET_CONFIG,     /* what the wizard asked; keys, driver and models stay */
    HX_RESET_STATE,      /* all of /var */
    HX_RESET_EVERYTHING, /* and the models */
    HX_RESET_LEVELS
};

int hx_reset_parse(const char *name, enum hx_reset_level *out); /* -EINVAL */
const char *hx_reset_name(enum hx_reset_level level);
const char *hx_reset_text(enum hx_reset_level level); /* what is lost, one sentence */

/* esp: folder of the mounted ESP; NULL: /efi of the root. */
int hx_reset_request(const struct hx_root *root, const char *esp, enum hx_reset_level level,
                     struct hx_error *err) HX_MUST;
int hx_reset_cancel(const struct hx_root *root, const char *esp, struct hx_error *err) HX_MUST;
/* -ENOENT: none is asked for. */
int hx_reset_pending(const struct hx_root *root, const char *esp, enum hx_reset_level *out,
                     struct hx_error *err) HX_MUST;

/* Before /var: resets of state and models; mkfs on /dev/hx170/state and /dev/hx170/models if they
 * are blank. -EBADMSG: something is there that is no ext4; nothing is written then. */
int hx_prepare_run(const struct hx_root *root, struct hx_error *err) HX_MUST;
/* With /var: the reset of the configuration. */
int hx_prepare_config(const struct hx_root *root, struct hx_error *err) HX_MUST;

#endif
