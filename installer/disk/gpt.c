#include "disk/gpt.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define HEADER_BYTES  92
#define ENTRY_BYTES   128
#define ENTRIES_BYTES (HX_GPT_MAX_PARTS * ENTRY_BYTES)
#define SECTOR_MAX    4096
#define REVISION      0x00010000u

/* Text form: c12a7328-f81f-11d2-ba4b-00a0c93ec93b and so on; the first three groups are
 * little-endian on the disk. */
const uint8_t hx_guid_esp[HX_GUID_BYTES] = {0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11,
                                            0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b};
const uint8_t hx_guid_root[HX_GUID_BYTES] = {0xe3, 0xbc, 0x68, 0x4f, 0xcd, 0xe8, 0xb1, 0x4d,
                                             0x96, 0xe7, 0xfb, 0xca, 0xf9, 0x84, 0xb7, 0x09};
const uint8_t hx_guid_verity[HX_GUID_BYTES] = {0xed, 0x57, 0x73, 0x2c, 0xd2, 0xeb, 0xd9, 0x46,
                                               0xae, 0xc1, 0x23, 0xd4, 0x37, 0xec, 0x2b, 0xf5};
const uint8_t hx_guid_linux[HX_GUID_BYTES] = {0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47,
                                              0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4};

uint32_t hx_crc32(const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static const uint8_t signature[] = {'E', 'F', 'I', ' ', 'P', 'A', 'R', 'T'};

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v & 0xffff);
    put16(p + 2, v >> 16);
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

int hx_guid_random(uint8_t out[HX_GUID_BYTES], struct hx_error *err)
{
    if (getrandom(out, HX_GUID_BYTES, 0) != HX_GUID_BYTES)
        return hx_fail_errno(err, errno, "random numbers for a partition's name");
    out[7] = (uint8_t)((out[7] & 0x0f) | 0x40);
    out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
    return 0;
}

static const uint8_t text_order[HX_GUID_BYTES] = {3, 2, 1,  0,  5,  4,  7,  6,
                                                  8, 9, 10, 11, 12, 13, 14, 15};

void hx_guid_text(const uint8_t guid[HX_GUID_BYTES], char out[HX_GUID_TEXT])
{
    char *p = out;
    for (int i = 0; i < HX_GUID_BYTES; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        snprintf(p, 3, "%02x", guid[text_order[i]]);
        p += 2;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int hx_guid_from_hex(const char *hex, uint8_t out[HX_GUID_BYTES])
{
    uint8_t guid[HX_GUID_BYTES];
    for (int i = 0; i < HX_GUID_BYTES; i++) {
        int high = hex_digit(hex[2 * i]);
        int low = high < 0 ? -1 : hex_digit(hex[2 * i + 1]);
        if (low < 0)
            return -EINVAL;
        guid[text_order[i]] = (uint8_t)(high << 4 | low);
    }
    memcpy(out, guid, HX_GUID_BYTES);
    return 0;
}

bool hx_part_used(const struct hx_part *p)
{
    static const uint8_t unused[HX_GUID_BYTES];
    return memcmp(p->type, unused, HX_GUID_BYTES) != 0;
}

int hx_table_find(const struct hx_table *t, const char *label)
{
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++)
        if (hx_part_used(&t->part[i]) && strcmp(t->part[i].label, label) == 0)
            return i;
    return -1;
}

int hx_table_find_guid(const struct hx_table *t, const uint8_t guid[HX_GUID_BYTES])
{
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++)
        if (hx_part_used(&t->part[i]) && memcmp(t->part[i].guid, guid, HX_GUID_BYTES) == 0)
            return i;
    return -1;
}

static uint64_t entry_sectors(const struct hx_table *t)
{
    return ENTRIES_BYTES / t->sector;
}

int hx_table_init(struct hx_table *t, const struct hx_disk *d, struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->sector = d->sector;
    t->n_sectors = d->n_bytes / d->sector;
    if (d->n_bytes < 4 * HX_DISK_MIB)
        return hx_fail(err, -ENOSPC, "%s: %llu bytes are too small for a partition table", d->path,
                       (unsigned long long)d->n_bytes);
    t->first_usable = HX_DISK_MIB / d->sector;
    t->last_usable = t->n_sectors - 2 - entry_sectors(t);
    return hx_guid_random(t->guid, err);
}

static int read_entries(const uint8_t *raw, unsigned n, unsigned each, struct hx_table *t,
                        struct hx_error *err)
{
    for (unsigned i = 0; i < n; i++) {
        const uint8_t *e = raw + (size_t)i * each;
        struct hx_part *p = &t->part[i];
        memcpy(p->type, e, HX_GUID_BYTES);
        if (!hx_part_used(p))
            continue;
        memcpy(p->guid, e + 16, HX_GUID_BYTES);
        uint64_t first = get64(e + 32), last = get64(e + 40);
        if (first > last || last >= t->n_sectors)
            return hx_fail(err, -EBADMSG, "partition %u lies outside the disk", i + 1);
        p->first = first;
        p->n_sectors = last - first + 1;
        p->attributes = get64(e + 48);
        for (int c = 0; c < HX_GPT_LABEL - 1; c++) {
            unsigned u = e[56 + 2 * c] | (unsigned)e[57 + 2 * c] << 8;
            p->label[c] = (char)(u == 0 ? 0 : u >= 0x20 && u < 0x7f ? u : '?');
            if (u == 0)
                break;
        }
    }
    return 0;
}

static int read_at(const struct hx_disk *d, uint64_t lba, struct hx_table *t, struct hx_error *err)
{
    uint8_t head[SECTOR_MAX], raw[ENTRIES_BYTES];
    memset(t, 0, sizeof(*t));
    t->sector = d->sector;
    t->n_sectors = d->n_bytes / d->sector;
    int r = hx_disk_read(d, head, d->sector, lba * d->sector, err);
    if (r < 0)
        return r;
    if (memcmp(head, signature, sizeof(signature)) != 0)
        return hx_fail(err, -ENODATA, "no partition table");
    uint32_t size = get32(head + 12), stored = get32(head + 16);
    if (size < HEADER_BYTES || size > d->sector)
        return hx_fail(err, -EBADMSG, "header of %u bytes", size);
    put32(head + 16, 0);
    if (hx_crc32(head, size) != stored || get64(head + 24) != lba)
        return hx_fail(err, -EBADMSG, "header is damaged");
    t->first_usable = get64(head + 40);
    t->last_usable = get64(head + 48);
    memcpy(t->guid, head + 56, HX_GUID_BYTES);
    t->entries_at = get64(head + 72);
    uint32_t n = get32(head + 80), each = get32(head + 84);
    if (n == 0 || n > HX_GPT_MAX_PARTS || each != ENTRY_BYTES)
        return hx_fail(err, -EBADMSG, "%u entries of %u bytes; at most %d of %d are known", n, each,
                       HX_GPT_MAX_PARTS, ENTRY_BYTES);
    if (t->entries_at < 2 || t->entries_at >= t->n_sectors ||
        entry_sectors(t) > t->n_sectors - t->entries_at)
        return hx_fail(err, -EBADMSG, "entries lie outside the disk");
    r = hx_disk_read(d, raw, (size_t)n * each, t->entries_at * d->sector, err);
    if (r < 0)
        return r;
    if (hx_crc32(raw, (size_t)n * each) != get32(head + 88))
        return hx_fail(err, -EBADMSG, "entries are damaged");
    return read_entries(raw, n, each, t, err);
}

int hx_table_read(const struct hx_disk *d, struct hx_table *out, bool *used_backup,
                  struct hx_error *err)
{
    struct hx_table t;
    struct hx_error first = {0};
    if (d->n_bytes / d->sector < 4)
        return hx_fail(err, -ENODATA, "%s: no room for a partition table", d->path);
    int r = read_at(d, 1, &t, &first);
    bool backup = false;
    if (r < 0 && r != -EIO) {
        backup = read_at(d, d->n_bytes / d->sector - 1, &t, NULL) == 0;
        /* Where the primary entries are is unknown, so both places are free. */
        t.entries_at = 0;
    }
    if (r < 0 && !backup)
        return hx_fail(err, r, "%s: %s", d->path, first.text);
    if (used_backup)
        *used_backup = backup;
    *out = t;
    return 0;
}

static void make_entries(const struct hx_table *t, uint8_t raw[ENTRIES_BYTES])
{
    memset(raw, 0, ENTRIES_BYTES);
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++) {
        const struct hx_part *p = &t->part[i];
        uint8_t *e = raw + (size_t)i * ENTRY_BYTES;
        if (!hx_part_used(p))
            continue;
        memcpy(e, p->type, HX_GUID_BYTES);
        memcpy(e + 16, p->guid, HX_GUID_BYTES);
        put64(e + 32, p->first);
        put64(e + 40, p->first + p->n_sectors - 1);
        put64(e + 48, p->attributes);
        for (int c = 0; p->label[c]; c++)
            e[56 + 2 * c] = (uint8_t)p->label[c];
    }
}

static void make_header(const struct hx_table *t, uint64_t self, uint64_t other, uint64_t entries,
                        const uint8_t *raw, uint8_t head[SECTOR_MAX])
{
    memset(head, 0, SECTOR_MAX);
    memcpy(head, signature, sizeof(signature));
    put32(head + 8, REVISION);
    put32(head + 12, HEADER_BYTES);
    put64(head + 24, self);
    put64(head + 32, other);
    put64(head + 40, t->first_usable);
    put64(head + 48, t->last_usable);
    memcpy(head + 56, t->guid, HX_GUID_BYTES);
    put64(head + 72, entries);
    put32(head + 80, HX_GPT_MAX_PARTS);
    put32(head + 84, ENTRY_BYTES);
    put32(head + 88, hx_crc32(raw, ENTRIES_BYTES));
    put32(head + 16, hx_crc32(head, HEADER_BYTES));
}

static int write_mbr(const struct hx_table *t, struct hx_disk *d, struct hx_error *err)
{
    uint8_t mbr[SECTOR_MAX] = {0};
    uint8_t *p = mbr + 446;
    put32(p, 0x00020000); /* not active; starts at cylinder 0, head 0, sector 2 */
    p[4] = 0xee;
    p[5] = p[6] = p[7] = 0xff;
    put32(p + 8, 1);
    put32(p + 12, t->n_sectors - 1 > UINT32_MAX ? UINT32_MAX : (uint32_t)(t->n_sectors - 1));
    put16(mbr + 510, 0xaa55);
    return hx_disk_write(d, mbr, d->sector, 0, err);
}

static int check_places(const struct hx_table *t, const struct hx_disk *d, struct hx_error *err)
{
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++) {
        const struct hx_part *p = &t->part[i];
        if (!hx_part_used(p))
            continue;
        if (p->first < t->first_usable || p->n_sectors == 0 || p->first > t->last_usable ||
            p->n_sectors > t->last_usable - p->first + 1)
            return hx_fail(err, -EINVAL, "%s: partition %d has no place on the disk", d->path,
                           i + 1);
        for (int j = 0; j < i; j++) {
            const struct hx_part *q = &t->part[j];
            if (hx_part_used(q) && p->first < q->first + q->n_sectors &&
                q->first < p->first + p->n_sectors)
                return hx_fail(err, -EINVAL, "%s: partitions %d and %d overlap", d->path, j + 1,
                               i + 1);
        }
    }
    return 0;
}

int hx_table_write(struct hx_table *t, struct hx_disk *d, bool mbr, struct hx_error *err)
{
    uint8_t raw[ENTRIES_BYTES], head[SECTOR_MAX];
    uint64_t n = entry_sectors(t), last = t->n_sectors - 1;
    uint64_t place = t->entries_at == 2 ? 2 + n : 2;
    if (t->sector != d->sector || t->n_sectors != d->n_bytes / d->sector)
        return hx_fail(err, -EINVAL, "%s: the table is one of another disk", d->path);
    if (t->first_usable < 2 + 2 * n)
        return hx_fail(err, -EINVAL, "%s: its table was not made by hx-install: no room behind it",
                       d->path);
    if (t->last_usable > last - 1 - n)
        t->last_usable = last - 1 - n; /* table of a smaller backup: a stick grown to this disk */
    int r = check_places(t, d, err);
    if (r < 0)
        return r;
    make_entries(t, raw);
    r = hx_disk_write(d, raw, sizeof(raw), place * d->sector, err);
    if (r == 0 && mbr)
        r = write_mbr(t, d, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    make_header(t, 1, last, place, raw, head);
    if (r == 0)
        r = hx_disk_write(d, head, d->sector, d->sector, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    /* The backup last: while it is written, the primary one is whole. */
    if (r == 0)
        r = hx_disk_write(d, raw, sizeof(raw), (last - n) * d->sector, err);
    make_header(t, last, 1, last - n, raw, head);
    if (r == 0)
        r = hx_disk_write(d, head, d->sector, last * d->sector, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    if (r == 0)
        t->entries_at = place;
    return r;
}
