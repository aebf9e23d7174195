/* How fast a drive reads: long reads past the page cache, at places all over it. */
#ifndef HX_DISK_SPEED_H
#define HX_DISK_SPEED_H

#include <stdint.h>

#include <hx/error.h>

struct hx_speed {
    uint64_t n_bytes; /* read */
    double seconds;
};

/* path: a block device, or a file in its place (read through the cache where direct reads are not
 * possible). Reads for at most `seconds`, at most 8 GiB. -EINVAL: smaller than 64 MiB. */
int hx_speed_measure(const char *path, double seconds, struct hx_speed *out,
                     struct hx_error *err) HX_MUST;

#endif
