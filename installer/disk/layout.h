/* The partitions of an installed system (docs/install.md). */
#ifndef HX_DISK_LAYOUT_H
#define HX_DISK_LAYOUT_H

#include "disk/gpt.h"

enum hx_layout_part { /* index in the table; the partition's number is one more */
                      HX_PART_ESP,
                      HX_PART_ROOT_A,
                      HX_PART_VERITY_A,
                      HX_PART_ROOT_B,
                      HX_PART_VERITY_B,
                      HX_PART_STATE,
                      HX_PART_MODELS,
                      HX_LAYOUT_PARTS
};

#define HX_LAYOUT_EMPTY      "_empty" /* label of a slot without a system */
#define HX_VERSION_MAX       24       /* characters with NUL: digits and points; fits the label */
#define HX_LAYOUT_MODELS_MIN HX_DISK_GIB
#define HX_ROOT_HASH_HEX     64

/* Bytes of a disk that has room for all, with the smallest `models`. */
uint64_t hx_layout_min_bytes(void);

/* Empty slots, everything else in place. keep: table of an installed system whose `models` stays
 * where it is, or NULL. -ENOSPC; -EEXIST: what is to be kept lies where something else goes. */
int hx_layout_make(const struct hx_disk *d, const struct hx_table *keep, struct hx_table *out,
                   struct hx_error *err) HX_MUST;

/* Whether the table is one of an installed system: the seven partitions with types and labels. */
bool hx_layout_is_installed(const struct hx_table *t);

/* slot: 0 or 1. Names both partitions of the slot after a version and the halves of its root hash.
 */
int hx_layout_name_slot(struct hx_table *t, int slot, const char *version, const char *root_hash,
                        struct hx_error *err) HX_MUST;
int hx_layout_empty_slot(struct hx_table *t, int slot, struct hx_error *err) HX_MUST;
/* Version in the slot's label, NULL if it is empty. */
const char *hx_layout_slot_version(const struct hx_table *t, int slot);

uint64_t hx_part_offset(const struct hx_table *t, int index); /* bytes */
uint64_t hx_part_bytes(const struct hx_table *t, int index);

/* "1.20.3": 1 to 4 numbers below 10^6. */
bool hx_version_valid(const char *text);
int hx_version_compare(const char *a, const char *b); /* both valid */
bool hx_root_hash_valid(const char *hex);             /* 64 lower-case hexadecimal digits */

#endif
