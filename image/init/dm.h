/* One read-only device-mapper device, made by ioctl. */
#ifndef HX_INIT_DM_H
#define HX_INIT_DM_H

#include <stdint.h>

#include <hx/error.h>

/* Makes the device `name` of n_bytes with one target and writes its number to *minor_out.
 * control: open /dev/mapper/control. */
int hx_dm_create(int control, const char *name, const char *target, const char *params,
                 uint64_t n_bytes, unsigned *major_out, unsigned *minor_out,
                 struct hx_error *err) HX_MUST;

#endif
