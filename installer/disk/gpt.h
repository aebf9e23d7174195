/* GUID partition tables that are written: protective MBR, primary and backup (UEFI specification,
 * chapter 5). A change switches with one sector: the entries go to the one of two places behind
 * the primary header that is not in use, then the header is written. Kernels look at the backup
 * only when told to, so a torn primary table would be a lost disk. */
#ifndef HX_DISK_GPT_H
#define HX_DISK_GPT_H

#include "disk/io.h"

#define HX_GUID_BYTES    16
#define HX_GUID_TEXT     37
#define HX_GPT_MAX_PARTS 128
#define HX_GPT_LABEL     37 /* 36 characters and NUL; ASCII */

struct hx_part {
    uint8_t type[HX_GUID_BYTES]; /* byte order of the disk; all zero: not used */
    uint8_t guid[HX_GUID_BYTES];
    uint64_t first, n_sectors;
    uint64_t attributes;
    char label[HX_GPT_LABEL]; /* other characters of a foreign table show as '?' */
};

struct hx_table {
    uint8_t guid[HX_GUID_BYTES];
    unsigned sector;
    uint64_t n_sectors;  /* of the disk */
    uint64_t entries_at; /* sector of the primary entries; 0: none on the disk yet */
    uint64_t first_usable, last_usable;
    struct hx_part part[HX_GPT_MAX_PARTS]; /* part[0] is partition 1 */
};

#define HX_GPT_READ_ONLY (1ull << 60)

extern const uint8_t hx_guid_esp[HX_GUID_BYTES], hx_guid_root[HX_GUID_BYTES],
    hx_guid_verity[HX_GUID_BYTES], hx_guid_linux[HX_GUID_BYTES];

/* An empty table for the disk. The GUIDs of disk and partitions are random. */
int hx_table_init(struct hx_table *t, const struct hx_disk *d, struct hx_error *err) HX_MUST;
/* -ENODATA: no table; -EBADMSG: damaged at both places. *used_backup (may be NULL): the primary
 * one is damaged. */
int hx_table_read(const struct hx_disk *d, struct hx_table *out, bool *used_backup,
                  struct hx_error *err) HX_MUST;
/* Writes with a flush before and after the header that switches; t->entries_at is the new place.
 * mbr: also the protective MBR, for a disk that had another table. */
int hx_table_write(struct hx_table *t, struct hx_disk *d, bool mbr, struct hx_error *err) HX_MUST;

bool hx_part_used(const struct hx_part *p);
/* Index of the first partition with the label, or of the GUID; -1: none. */
int hx_table_find(const struct hx_table *t, const char *label);
int hx_table_find_guid(const struct hx_table *t, const uint8_t guid[HX_GUID_BYTES]);

int hx_guid_random(uint8_t out[HX_GUID_BYTES], struct hx_error *err) HX_MUST;
void hx_guid_text(const uint8_t guid[HX_GUID_BYTES], char out[HX_GUID_TEXT]); /* lower case */
/* From 32 hexadecimal digits in the order of the text form, as the halves of a root hash are used
 * (discoverable partitions). -EINVAL if they are none. */
int hx_guid_from_hex(const char *hex, uint8_t out[HX_GUID_BYTES]) HX_MUST;

uint32_t hx_crc32(const void *data, size_t len);

#endif
