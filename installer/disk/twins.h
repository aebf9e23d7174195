/* Two names of one file in EFI/Linux: on FAT a change of names writes the new entry, then takes the
 * old one away, and a power cut between leaves both. Freeing one would take the other's clusters,
 * so the kernel cannot be asked to remove it. Here the entry alone goes. Layout: Microsoft FAT
 * specification 1.03. */
#ifndef HX_DISK_TWINS_H
#define HX_DISK_TWINS_H

#include "disk/io.h"

#define HX_TWINS_NAME 96

struct hx_twins {
    int n;                       /* names that went */
    char last[2][HX_TWINS_NAME]; /* the last one, and the name that stays */
};

/* The file system at `offset` of d, which must not be mounted. Of a kernel image's two names the
 * one stays that the change wanted: the boot loader's before a half copied one's, a blessed one
 * before a counted one, the lower counter before the higher. Other files with common clusters are
 * left alone. -ENODATA: no FAT32 there. */
int hx_twins_remove(struct hx_disk *d, uint64_t offset, struct hx_twins *out,
                    struct hx_error *err) HX_MUST;

#endif
