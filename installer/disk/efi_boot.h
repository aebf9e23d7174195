/* An entry of ours in the firmware's boot menu, through efivarfs. A convenience: the ESP also holds
 * the loader under the name that firmware looks for by itself. */
#ifndef HX_DISK_EFI_BOOT_H
#define HX_DISK_EFI_BOOT_H

#include "disk/gpt.h"

/* vars: the folder of efivarfs. Makes or rewrites our entry for the ESP (partition `number` from 1
 * of the table) and puts it first. -ENOENT: this machine was not started through UEFI. */
int hx_efi_boot_entry(const char *vars, const struct hx_table *t, unsigned number,
                      struct hx_error *err) HX_MUST;

#endif
