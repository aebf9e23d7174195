/* A growing file: space reserved at the start, written at any place, directly or with its pages
 * dropped behind, so that a download does not empty the page cache. */
#ifndef HX_FETCH_PART_H
#define HX_FETCH_PART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_PART_ALIGN 4096u /* of offset, length and memory for direct transfers */

struct hx_part {
    char *path;
    int fd;
    int fd_direct;      /* -1: none */
    atomic_bool direct; /* cleared when the file system refuses */
    bool reserved;      /* the file system holds the space for us */
    char device[64];    /* for messages */
};

#define HX_PART_INIT ((struct hx_part){.fd = -1, .fd_direct = -1})

/* Opens or makes the file with n_bytes, its space reserved if the file system can. */
int hx_part_open(const char *path, uint64_t n_bytes, bool direct, struct hx_part *out,
                 struct hx_error *err) HX_MUST;
/* An existing file, for reading alone. */
int hx_part_open_read(const char *path, bool direct, struct hx_part *out,
                      struct hx_error *err) HX_MUST;
void hx_part_close(struct hx_part *part);

/* Errors name file, offset and device. Direct where offset and memory allow it: data should lie at
 * the offset's place in an aligned block. */
int hx_part_write(struct hx_part *part, const uint8_t *data, size_t n, uint64_t offset,
                  struct hx_error *err) HX_MUST;
int hx_part_read(struct hx_part *part, uint8_t *data, size_t n, uint64_t offset,
                 struct hx_error *err) HX_MUST;
/* Everything written so far is on the disk. */
int hx_part_sync(struct hx_part *part, struct hx_error *err) HX_MUST;
/* Pages of a range are not needed any more. */
void hx_part_forget(const struct hx_part *part, uint64_t offset, uint64_t n);

/* "name (8:1)" of the device under a file. */
void hx_part_device(int fd, char *out, size_t n);
/* A folder's entries are on the disk. */
int hx_folder_sync(const char *path, struct hx_error *err) HX_MUST;
/* Makes every missing folder on the way to path's last component. */
int hx_folder_make_for(const char *path, struct hx_error *err) HX_MUST;

#endif
