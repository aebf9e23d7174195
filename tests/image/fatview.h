/* Files of a FAT32 file system inside a drive image, read as a boot loader reads them. Written
 * apart from the product's own FAT code, which it judges. */
#ifndef HX_TESTS_IMAGE_FATVIEW_H
#define HX_TESTS_IMAGE_FATVIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define HX_FATVIEW_NAME 256

struct hx_fatview {
    int fd;
    uint64_t table, data; /* bytes on the drive */
    uint32_t cluster;     /* bytes */
    uint32_t n_clusters;
    uint32_t root;
};

struct hx_fatview_file {
    char name[HX_FATVIEW_NAME];
    bool is_folder;
    uint32_t first; /* cluster */
    uint32_t n_bytes;
};

/* -ENODATA: no FAT32 at that byte. */
int hx_fatview_open(struct hx_fatview *v, int fd, uint64_t at, uint64_t n_bytes,
                    struct hx_error *err) HX_MUST;
/* Calls `each` for every entry of a folder ("" is the root) until it returns other than 0, which is
 * then the result. -ENOENT: no such folder. */
int hx_fatview_list(const struct hx_fatview *v, const char *folder,
                    int (*each)(void *ctx, const struct hx_fatview_file *file), void *ctx,
                    struct hx_error *err) HX_MUST;
/* -ENOENT; -EBADMSG: the chain of its clusters ends early or runs in circles. */
int hx_fatview_find(const struct hx_fatview *v, const char *path, struct hx_fatview_file *out,
                    struct hx_error *err) HX_MUST;
int hx_fatview_read(const struct hx_fatview *v, const struct hx_fatview_file *file,
                    struct hx_buf *out, struct hx_error *err) HX_MUST;

#endif
