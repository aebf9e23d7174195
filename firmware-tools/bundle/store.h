/* The driver folder of the appliance (/var/lib/hx170/driver): two slots, the journal, what the
 * next start needs. One process at a time changes it. */
#ifndef HX_BUNDLE_STORE_H
#define HX_BUNDLE_STORE_H

#include "bundle/journal.h"
#include "bundle/manifest.h"
#include "hw/root.h"
#include "hw/wanted.h"

#define HX_STORE_DIR  "/var/lib/hx170/driver"
#define HX_SLOT_FILES 8192

#define HX_COLD_SECONDS 30 /* power has to be off for so long */

#define HX_STORE_WRITE  1u
#define HX_STORE_FORGET 2u /* a damaged journal is taken as none */

struct hx_store {
    const struct hx_root *root;
    char folder[256];        /* inside the root */
    char path[HX_ROOT_PATH]; /* of the machine */
    int dir;                 /* -1: the folder is not there */
    int lock;
    struct hx_journal j;
    char boot_id[48];  /* of this start */
    int64_t boot_time; /* when it began, seconds since 1970; 0 not told */
    int64_t now;       /* clock, seconds since 1970 */
};

/* Reads the journal. folder: inside the root. HX_STORE_WRITE: makes the folder, takes the lock
 * (-EBUSY: held by another). now 0: the machine's clock. */
int hx_store_open(const struct hx_root *root, const char *folder, unsigned flags, int64_t now,
                  struct hx_store *out, struct hx_error *err) HX_MUST;
void hx_store_close(struct hx_store *s);
/* Replaces the journal on the disk by s->j. */
int hx_store_save(struct hx_store *s, struct hx_error *err) HX_MUST;
/* "slot-a" */
const char *hx_slot_name(enum hx_slot slot);
/* Opens the folder of a slot; -ENOENT. */
int hx_slot_open(const struct hx_store *s, enum hx_slot slot, int *fd,
                 struct hx_error *err) HX_MUST;
int hx_slot_manifest(const struct hx_store *s, enum hx_slot slot, struct hx_manifest **out,
                     struct hx_error *err) HX_MUST;

/* What is recorded of a slot (its index.json) and whether it still holds (BND-06). */
struct hx_slot_facts {
    bool present, intact, is_signed;
    char name[65], version[65], kernel[128], driver_version[32], srcversion[64];
    char module_dir[256]; /* below the slot */
    char damage[256];     /* first file that differs and how */
};
/* Hashes every file that the index lists. 0 also for a slot that is absent or damaged. */
int hx_slot_check(const struct hx_store *s, enum hx_slot slot, struct hx_slot_facts *out,
                  struct hx_error *err) HX_MUST;
/* Writes index.json over all files of the slot as they are now. */
int hx_slot_index(const struct hx_store *s, enum hx_slot slot, const struct hx_manifest *m,
                  const char *kernel, struct hx_error *err) HX_MUST;

/* BND-08: whether power was off between arming and the start that loaded the slot. */
enum hx_cold_start hx_store_cold_start(const struct hx_store *s);
const char *hx_cold_start_name(enum hx_cold_start c); /* "yes", "unknown", "warm" */

/* Brings boot.json (kernel words of the next start, for the boot add-on) and active.json (the
 * bundle part of what checks want, hw/wanted.h) in line with the journal. */
int hx_store_publish(struct hx_store *s, struct hx_error *err) HX_MUST;

#endif
