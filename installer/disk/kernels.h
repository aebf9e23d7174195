/* Kernel images in EFI/Linux of the ESP: hx170_VERSION[+LEFT[-DONE]].efi. The counter is the boot
 * loader's: it lowers LEFT at every start until the start is blessed, which takes the counter off;
 * with LEFT 0 the entry is tried last (boot loader specification, boot counting). */
#ifndef HX_DISK_KERNELS_H
#define HX_DISK_KERNELS_H

#include "disk/io.h"
#include "disk/layout.h"

#define HX_KERNELS_MAX   32
#define HX_KERNELS_TRIES 3

struct hx_kernel {
    char file[96]; /* in EFI/Linux */
    char version[HX_VERSION_MAX];
    int left; /* tries; -1: blessed, no counter; 0 also for an empty file */
    uint64_t n_bytes;
};

struct hx_kernels {
    int n;
    struct hx_kernel image[HX_KERNELS_MAX];
};

/* What a file's name says, without its size; false: no kernel image's. */
bool hx_kernel_parse(const char *name, struct hx_kernel *out);
/* Other files are passed over. esp: folder of the mounted ESP. */
int hx_kernels_list(const char *esp, struct hx_kernels *out, struct hx_error *err) HX_MUST;
/* Best one of a version: blessed before counted; NULL. */
const struct hx_kernel *hx_kernels_find(const struct hx_kernels *list, const char *version);

/* The changes, each synced: file and folder. */
int hx_kernels_remove(const char *esp, const char *file, const struct hx_disk_watch *watch,
                      struct hx_error *err) HX_MUST;
int hx_kernels_rename(const char *esp, const char *from, const char *to,
                      const struct hx_disk_watch *watch, struct hx_error *err) HX_MUST;
/* from: n_bytes at offset of an open file, with the SHA-256 sha256. Under a name that the boot
 * loader does not look at until all is on the disk. -EBADMSG: other bytes. */
int hx_kernels_put(const char *esp, const char *file, const struct hx_disk *from, uint64_t offset,
                   uint64_t n_bytes, const char *sha256, const struct hx_disk_watch *watch,
                   struct hx_error *err) HX_MUST;
/* -EROFS, -ENOSPC: no place for n_bytes, once the images that are not `keep`'s are gone. */
int hx_kernels_room(const char *esp, const struct hx_kernels *list, const char *keep,
                    uint64_t n_bytes, struct hx_error *err) HX_MUST;

#endif
