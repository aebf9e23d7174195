#include "disk/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bytes 0: the rest of the disk. */
static const struct {
    const char *label;
    const uint8_t *type;
    uint64_t bytes;
    bool read_only;
} rows[HX_LAYOUT_PARTS] = {
    [HX_PART_ESP] = {"ESP", hx_guid_esp, HX_DISK_GIB, false},
    [HX_PART_ROOT_A] = {HX_LAYOUT_EMPTY, hx_guid_root, 2 * HX_DISK_GIB, true},
    [HX_PART_VERITY_A] = {HX_LAYOUT_EMPTY, hx_guid_verity, 64 * HX_DISK_MIB, true},
    [HX_PART_ROOT_B] = {HX_LAYOUT_EMPTY, hx_guid_root, 2 * HX_DISK_GIB, true},
    [HX_PART_VERITY_B] = {HX_LAYOUT_EMPTY, hx_guid_verity, 64 * HX_DISK_MIB, true},
    [HX_PART_STATE] = {"state", hx_guid_linux, 16 * HX_DISK_GIB, false},
    [HX_PART_MODELS] = {"models", hx_guid_linux, 0, false},
};

uint64_t hx_layout_min_bytes(void)
{
    uint64_t sum = 2 * HX_DISK_MIB + HX_LAYOUT_MODELS_MIN;
    for (int i = 0; i < HX_LAYOUT_PARTS; i++)
        sum += rows[i].bytes;
    return sum;
}

uint64_t hx_part_offset(const struct hx_table *t, int index)
{
    return t->part[index].first * t->sector;
}

uint64_t hx_part_bytes(const struct hx_table *t, int index)
{
    return t->part[index].n_sectors * t->sector;
}

bool hx_layout_is_installed(const struct hx_table *t)
{
    for (int i = 0; i < HX_LAYOUT_PARTS; i++) {
        const struct hx_part *p = &t->part[i];
        bool slot = i >= HX_PART_ROOT_A && i <= HX_PART_VERITY_B;
        if (memcmp(p->type, rows[i].type, HX_GUID_BYTES) != 0 ||
            (!slot && strcmp(p->label, rows[i].label) != 0))
            return false;
    }
    return true;
}

int hx_layout_make(const struct hx_disk *d, const struct hx_table *keep, struct hx_table *out,
                   struct hx_error *err)
{
    struct hx_table t;
    uint64_t least = hx_layout_min_bytes();
    if (d->n_bytes < least)
        return hx_fail(err, -ENOSPC, "%s: %llu MiB are too small, at least %llu MiB are needed",
                       d->path, (unsigned long long)(d->n_bytes / HX_DISK_MIB),
                       (unsigned long long)(least / HX_DISK_MIB));
    int r = hx_table_init(&t, d, err);
    uint64_t align = HX_DISK_MIB / d->sector, next = t.first_usable;
    for (int i = 0; r == 0 && i < HX_LAYOUT_PARTS; i++) {
        struct hx_part *p = &t.part[i];
        memcpy(p->type, rows[i].type, HX_GUID_BYTES);
        snprintf(p->label, sizeof(p->label), "%s", rows[i].label);
        p->attributes = rows[i].read_only ? HX_GPT_READ_ONLY : 0;
        p->first = next;
        p->n_sectors =
            rows[i].bytes ? rows[i].bytes / d->sector : (t.last_usable + 1) / align * align - next;
        next += p->n_sectors;
        r = hx_guid_random(p->guid, err);
    }
    if (r < 0)
        return r;
    if (keep) {
        const struct hx_part *old = &keep->part[HX_PART_MODELS];
        if (!hx_layout_is_installed(keep) || old->first < t.part[HX_PART_MODELS].first ||
            old->n_sectors > t.last_usable - old->first + 1)
            return hx_fail(err, -EEXIST,
                           "%s: its models cannot be kept: they lie where the system goes",
                           d->path);
        t.part[HX_PART_MODELS] = *old;
        memcpy(t.guid, keep->guid, HX_GUID_BYTES);
        t.entries_at = keep->entries_at;
    }
    *out = t;
    return 0;
}

static int rename_part(struct hx_part *p, const char *prefix, const char *version,
                       const char *half_hash, struct hx_error *err)
{
    if (hx_guid_from_hex(half_hash, p->guid) < 0)
        return hx_fail(err, -EINVAL, "root hash '%.64s' is not 64 hexadecimal digits", half_hash);
    memset(p->label, 0, sizeof(p->label));
    snprintf(p->label, sizeof(p->label), "%s%s", prefix, version);
    return 0;
}

int hx_layout_name_slot(struct hx_table *t, int slot, const char *version, const char *root_hash,
                        struct hx_error *err)
{
    if (!hx_version_valid(version) || !hx_root_hash_valid(root_hash))
        return hx_fail(err, -EINVAL, "a slot cannot be named: version '%.40s', root hash '%.80s'",
                       version, root_hash);
    struct hx_part *root = &t->part[HX_PART_ROOT_A + 2 * slot];
    int r = rename_part(root, "root_", version, root_hash, err);
    return r < 0 ? r : rename_part(root + 1, "rootv_", version, root_hash + 32, err);
}

int hx_layout_empty_slot(struct hx_table *t, int slot, struct hx_error *err)
{
    struct hx_part *p = &t->part[HX_PART_ROOT_A + 2 * slot];
    int r = 0;
    for (int i = 0; r == 0 && i < 2; i++) {
        memset(p[i].label, 0, sizeof(p[i].label));
        snprintf(p[i].label, sizeof(p[i].label), "%s", HX_LAYOUT_EMPTY);
        r = hx_guid_random(p[i].guid, err);
    }
    return r;
}

const char *hx_layout_slot_version(const struct hx_table *t, int slot)
{
    const char *label = t->part[HX_PART_ROOT_A + 2 * slot].label;
    return strncmp(label, "root_", 5) == 0 && hx_version_valid(label + 5) ? label + 5 : NULL;
}

/* Next number of a version; false at its end or if it is none. */
static bool next_number(const char **at, unsigned *out)
{
    unsigned v = 0;
    int digits = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++, digits++)
        v = digits < 7 ? v * 10 + (unsigned)(**at - '0') : v;
    *out = v;
    return digits > 0 && digits <= 6;
}

bool hx_version_valid(const char *text)
{
    unsigned v;
    if (strlen(text) >= HX_VERSION_MAX)
        return false;
    for (int n = 1; n <= 4; n++) {
        if (!next_number(&text, &v))
            return false;
        if (*text == '\0')
            return true;
        if (*text++ != '.')
            return false;
    }
    return false;
}

int hx_version_compare(const char *a, const char *b)
{
    while (*a || *b) {
        unsigned x = 0, y = 0;
        if (*a)
            next_number(&a, &x);
        if (*b)
            next_number(&b, &y);
        if (x != y)
            return x < y ? -1 : 1;
        a += *a == '.';
        b += *b == '.';
    }
    return 0;
}

bool hx_root_hash_valid(const char *hex)
{
    return strlen(hex) == HX_ROOT_HASH_HEX && strspn(hex, "0123456789abcdef") == HX_ROOT_HASH_HEX;
}
