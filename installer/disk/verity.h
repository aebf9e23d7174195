/* A dm-verity hash tree, checked against its data and the root hash (format version 1, SHA-256,
 * blocks of 4096 bytes, as veritysetup writes it). */
#ifndef HX_DISK_VERITY_H
#define HX_DISK_VERITY_H

#include "disk/io.h"

/* Where something lies: a whole file or a part of a disk. */
struct hx_extent {
    const struct hx_disk *disk;
    uint64_t offset, n_bytes;
};

/* done of total bytes; a negative value stops. */
typedef int (*hx_progress)(void *ctx, const char *what, uint64_t done, uint64_t total);

/* Reads everything. -EBADMSG: damaged, with the first bad block; -EINVAL: another format. */
int hx_verity_check(const struct hx_extent *data, const struct hx_extent *tree,
                    const char *root_hash, hx_progress progress, void *ctx,
                    struct hx_error *err) HX_MUST;

#endif
