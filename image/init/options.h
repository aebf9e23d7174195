/* What the kernel command line and the boot loader say. */
#ifndef HX_INIT_OPTIONS_H
#define HX_INIT_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "init/gpt.h"
#include "init/verity.h"

#define HX_INIT_WAIT_DEFAULT 60  /* seconds for the root's disk to appear */
#define HX_INIT_WAIT_MAX     600 /* seconds */

struct hx_init_options {
    char root_hash[HX_VERITY_HASH_HEX + 1];
    unsigned wait_s; /* rootwait=SECONDS */
};

/* text: /proc/cmdline. The first roothash= and rootwait= count, so that an add-on, which is put
 * behind the image's own line, cannot change the root. */
int hx_init_options_parse(const char *text, struct hx_init_options *out,
                          struct hx_error *err) HX_MUST;

/* Content of the variable LoaderDevicePartUUID as efivarfs shows it (4 bytes of attributes, then
 * UTF-16): GUID of the partition that the boot loader was started from. -EINVAL otherwise. */
int hx_init_loader_guid(const uint8_t *raw, size_t len, uint8_t out[HX_GPT_GUID]) HX_MUST;

#endif
