/* The initrd's single steps; main.c puts them in order. */
#ifndef HX_INIT_STEPS_H
#define HX_INIT_STEPS_H

#include <hx/error.h>

#include "init/disks.h"
#include "init/options.h"

/* /proc, /sys, /dev, /run as systemd wants to find them. */
int hx_init_mount_api(struct hx_error *err) HX_MUST;

/* Loads the modules that the list names, in its order, from its folder. One that is refused (no
 * such hardware, built in) is told in the kernel log; only a list that cannot be read fails. */
int hx_init_load_modules(const char *list, struct hx_error *err) HX_MUST;

/* Adds the boot loader's partition to wanted, if there is an EFI variable that says it. */
void hx_init_ask_loader(struct hx_init_wanted *wanted);

/* Waits for the disk: wait_s for any, then some seconds more for the one booted from. */
int hx_init_wait_root(const struct hx_init_wanted *wanted, unsigned wait_s,
                      struct hx_init_found *out, struct hx_error *err) HX_MUST;

/* Verified root on /sysroot, read-only. */
int hx_init_mount_root(const struct hx_init_options *options, const struct hx_init_found *found,
                       struct hx_error *err) HX_MUST;

/* Leaves word of the boot disk in /run, the machine id as a credential for systemd (the state
 * partition's GUID: made at the installation, known before /var is), empties the initrd, makes
 * /sysroot the root. */
int hx_init_switch_root(const struct hx_init_found *found, struct hx_error *err) HX_MUST;

/* One line in the kernel log; level as in <linux/kern_levels.h>, 3 shows on every console. */
void hx_init_say(int level, const char *fmt, ...) HX_PRINTF(2, 3);

#endif
