/* GUID partition tables: header, checksums, entries. */
#include "init/gpt.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MIN   92
#define ENTRY_BYTES  128
#define TABLE_BYTES  (HX_GPT_ENTRIES * ENTRY_BYTES)
#define SECTOR_MAX   4096
#define CRC_REVERSED 0xEDB88320u

static uint32_t crc32(const uint8_t *data, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC_REVERSED : 0);
    }
    return ~crc;
}

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t le64(const uint8_t *p)
{
    return le32(p) | (uint64_t)le32(p + 4) << 32;
}

static bool read_all(int fd, void *buf, size_t len, uint64_t offset)
{
    uint8_t *to = buf;
    while (len > 0) {
        ssize_t n = pread(fd, to, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        to += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static int take_entries(const uint8_t *raw, unsigned n, uint64_t n_sectors, struct hx_gpt *out,
                        struct hx_error *err)
{
    static const uint8_t unused[HX_GPT_GUID];
    out->n_entries = 0;
    for (unsigned i = 0; i < n; i++) {
        const uint8_t *e = raw + (size_t)i * ENTRY_BYTES;
        if (memcmp(e, unused, HX_GPT_GUID) == 0)
            continue;
        struct hx_gpt_entry *to = &out->entries[out->n_entries];
        memcpy(to->type, e, HX_GPT_GUID);
        memcpy(to->guid, e + 16, HX_GPT_GUID);
        to->first = le64(e + 32);
        to->last = le64(e + 40);
        to->number = i + 1;
        for (int c = 0; c < HX_GPT_LABEL; c++) {
            const uint8_t *unit = e + 56 + 2 * c;
            to->label[c] = unit[1] || unit[0] > 0x7E ? '?' : (char)unit[0];
        }
        to->label[HX_GPT_LABEL] = '\0';
        if (to->first > to->last || to->last >= n_sectors)
            return hx_fail(err, -EBADMSG, "partition %u lies outside the disk", i + 1);
        out->n_entries++;
    }
    return 0;
}

static int read_table_at(int fd, uint64_t lba, uint64_t n_sectors, unsigned sector,
                         struct hx_gpt *out, struct hx_error *err)
{
    uint8_t head[SECTOR_MAX];
    if (!read_all(fd, head, sector, lba * sector))
        return hx_fail(err, -EIO, "sector %llu cannot be read", (unsigned long long)lba);
    if (memcmp(head, "EFI PART", 8) != 0)
        return hx_fail(err, -ENODATA, "no partition table in sector %llu", (unsigned long long)lba);
    uint32_t size = le32(head + 12), stored = le32(head + 16);
    if (size < HEADER_MIN || size > sector)
        return hx_fail(err, -EBADMSG, "header of %u bytes", size);
    memset(head + 16, 0, 4);
    if (crc32(head, size) != stored)
        return hx_fail(err, -EBADMSG, "checksum of the header is wrong");
    if (le64(head + 24) != lba)
        return hx_fail(err, -EBADMSG, "header says that it belongs elsewhere");

    uint64_t table = le64(head + 72);
    uint32_t n = le32(head + 80), each = le32(head + 84);
    if (n == 0 || n > HX_GPT_ENTRIES || each != ENTRY_BYTES)
        return hx_fail(err, -EBADMSG, "%u entries of %u bytes; at most %d of %d are read", n, each,
                       HX_GPT_ENTRIES, ENTRY_BYTES);
    uint64_t table_sectors = ((uint64_t)n * ENTRY_BYTES + sector - 1) / sector;
    if (table < 2 || table >= n_sectors || table_sectors > n_sectors - table)
        return hx_fail(err, -EBADMSG, "entries lie outside the disk");
    uint8_t raw[TABLE_BYTES];
    if (!read_all(fd, raw, (size_t)n * ENTRY_BYTES, table * sector))
        return hx_fail(err, -EIO, "entries cannot be read");
    if (crc32(raw, (size_t)n * ENTRY_BYTES) != le32(head + 88))
        return hx_fail(err, -EBADMSG, "checksum of the entries is wrong");
    return take_entries(raw, n, n_sectors, out, err);
}

int hx_gpt_read(int fd, uint64_t n_bytes, unsigned sector, struct hx_gpt *out, struct hx_error *err)
{
    if (sector < 512 || sector > SECTOR_MAX || (sector & (sector - 1)))
        return hx_fail(err, -EINVAL, "sectors of %u bytes are not known", sector);
    uint64_t n_sectors = n_bytes / sector;
    if (n_sectors < 3)
        return hx_fail(err, -ENODATA, "disk of %llu bytes has no room for a partition table",
                       (unsigned long long)n_bytes);
    struct hx_gpt table;
    struct hx_error first;
    int r = read_table_at(fd, 1, n_sectors, sector, &table, &first);
    if (r < 0 && read_table_at(fd, n_sectors - 1, n_sectors, sector, &table, NULL) < 0)
        return hx_fail(err, r, "%s", first.text);
    *out = table;
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The first three groups are numbers of little-endian byte order on the disk. */
static const uint8_t place[HX_GPT_GUID] = {3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15};

void hx_gpt_guid_text(const uint8_t guid[HX_GPT_GUID], char out[37])
{
    char *to = out;
    for (int i = 0; i < HX_GPT_GUID; i++)
        to += snprintf(to, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       guid[place[i]]);
}

int hx_gpt_guid_parse(const char *text, uint8_t out[HX_GPT_GUID])
{
    uint8_t guid[HX_GPT_GUID];
    for (int i = 0; i < HX_GPT_GUID; i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return -EINVAL;
        int high = hex_digit(text[0]);
        int low = high < 0 ? -1 : hex_digit(text[1]);
        if (low < 0)
            return -EINVAL;
        guid[place[i]] = (uint8_t)(high << 4 | low);
        text += 2;
    }
    if (*text)
        return -EINVAL;
    memcpy(out, guid, HX_GPT_GUID);
    return 0;
}

const struct hx_gpt_entry *hx_gpt_find(const struct hx_gpt *table, const uint8_t guid[HX_GPT_GUID])
{
    for (unsigned i = 0; i < table->n_entries; i++)
        if (memcmp(table->entries[i].guid, guid, HX_GPT_GUID) == 0)
            return &table->entries[i];
    return NULL;
}
