/* A fresh FAT32 file system with files in it: the ESP of an installed system. Written straight to
 * the disk, without mount, in one pass; files listed as `last` become visible by the very last
 * sector, so that a disk is bootable only when everything else is on it. Layout: Microsoft FAT
 * specification 1.03. */
#ifndef HX_DISK_FAT_H
#define HX_DISK_FAT_H

#include "disk/io.h"

#define HX_FAT_FILES 128 /* files and folders at most */
#define HX_FAT_NAME  96  /* bytes of one name with NUL; ASCII */

struct hx_fat_file {
    char path[HX_DISK_PATH]; /* "EFI/Linux/name.efi" in the file system */
    int fd;                  /* content; -1: text */
    const char *text;        /* content without a file */
    uint64_t n_bytes;
    bool last;
};

struct hx_fat;

/* Plans a file system for n_bytes at offset. The files' descriptors stay the caller's and are read
 * by the two calls below. -ENOSPC: they do not fit; -EINVAL: a name that FAT does not take. */
int hx_fat_plan(const struct hx_disk *d, uint64_t offset, uint64_t n_bytes, const char *label,
                const struct hx_fat_file *files, int n_files, struct hx_fat **out,
                struct hx_error *err) HX_MUST;
/* Everything but the names of the files marked last, then a flush. */
int hx_fat_write(struct hx_fat *fat, struct hx_disk *d, struct hx_error *err) HX_MUST;
/* The folders that hold the files marked last, then a flush. */
int hx_fat_finish(struct hx_fat *fat, struct hx_disk *d, struct hx_error *err) HX_MUST;
void hx_fat_free(struct hx_fat *fat);

#endif
