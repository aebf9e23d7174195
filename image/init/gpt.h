/* GUID partition tables, read only: enough to find partitions by their GUID on disks that may hold
 * anything. Layout and checks: UEFI specification, chapter 5. */
#ifndef HX_INIT_GPT_H
#define HX_INIT_GPT_H

#include <stdint.h>

#include <hx/error.h>

#define HX_GPT_GUID    16  /* bytes, as on the disk */
#define HX_GPT_LABEL   36  /* characters */
#define HX_GPT_ENTRIES 128 /* at most; a table that claims more is refused */

struct hx_gpt_entry {
    uint8_t type[HX_GPT_GUID];
    uint8_t guid[HX_GPT_GUID];
    uint64_t first, last;         /* sectors, both inclusive, inside the disk */
    unsigned number;              /* from 1, as in the name of the kernel's device */
    char label[HX_GPT_LABEL + 1]; /* characters beyond ASCII are '?' */
};

struct hx_gpt {
    unsigned n_entries; /* used ones, ascending number */
    struct hx_gpt_entry entries[HX_GPT_ENTRIES];
};

/* Reads the table of an open disk or file of n_bytes: the one at its start, or the one at its end
 * if that is broken. sector: 512 to 4096, a power of two. -ENODATA: no table at either place. */
int hx_gpt_read(int fd, uint64_t n_bytes, unsigned sector, struct hx_gpt *out,
                struct hx_error *err) HX_MUST;

/* "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", any case, exactly; -EINVAL otherwise. */
int hx_gpt_guid_parse(const char *text, uint8_t out[HX_GPT_GUID]) HX_MUST;

/* As the function above reads it, in lower case. */
void hx_gpt_guid_text(const uint8_t guid[HX_GPT_GUID], char out[37]);

/* NULL if no entry has the GUID. */
const struct hx_gpt_entry *hx_gpt_find(const struct hx_gpt *table, const uint8_t guid[HX_GPT_GUID]);

#endif
