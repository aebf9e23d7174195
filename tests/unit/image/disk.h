/* Disks for tests: a GPT in a file, byte for byte as the UEFI specification writes it. */
#ifndef HX_TESTS_IMAGE_DISK_H
#define HX_TESTS_IMAGE_DISK_H

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "init/gpt.h"

struct disk_part {
    const char *guid;
    uint64_t first, last; /* sectors */
    const char *label;    /* ASCII, NULL: none */
};

static uint32_t disk_crc(const uint8_t *data, size_t len)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static void disk_put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

/* Header at `lba`, entries at `table`; parts go to slots 0, 2, 4, ... so that numbers have gaps. */
static void disk_write_table(int fd, unsigned sector, uint64_t lba, uint64_t table,
                             const struct disk_part *parts, int n_parts)
{
    static const char linux_type[] = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
    uint8_t entries[HX_GPT_ENTRIES * 128] = {0}, head[4096] = {0};
    for (int i = 0; i < n_parts; i++) {
        uint8_t *e = entries + (size_t)i * 2 * 128;
        assert(hx_gpt_guid_parse(linux_type, e) == 0);
        assert(hx_gpt_guid_parse(parts[i].guid, e + 16) == 0);
        disk_put(e + 32, parts[i].first, 8);
        disk_put(e + 40, parts[i].last, 8);
        for (int c = 0; parts[i].label && parts[i].label[c] && c < 36; c++)
            e[56 + 2 * c] = (uint8_t)parts[i].label[c];
    }
    memcpy(head, "EFI PART", 8);
    disk_put(head + 8, 0x10000, 4);
    disk_put(head + 12, 92, 4);
    disk_put(head + 24, lba, 8);
    disk_put(head + 72, table, 8);
    disk_put(head + 80, HX_GPT_ENTRIES, 4);
    disk_put(head + 84, 128, 4);
    disk_put(head + 88, disk_crc(entries, sizeof(entries)), 4);
    disk_put(head + 16, disk_crc(head, 92), 4);
    assert(pwrite(fd, entries, sizeof(entries), (off_t)(table * sector)) == sizeof(entries));
    assert(pwrite(fd, head, sector, (off_t)(lba * sector)) == (ssize_t)sector);
}

/* Both tables of a disk of n_sectors. */
static void disk_make(int fd, unsigned sector, uint64_t n_sectors, const struct disk_part *parts,
                      int n_parts)
{
    uint64_t table_sectors = (HX_GPT_ENTRIES * 128 + sector - 1) / sector;
    assert(ftruncate(fd, (off_t)(n_sectors * sector)) == 0);
    disk_write_table(fd, sector, 1, 2, parts, n_parts);
    disk_write_table(fd, sector, n_sectors - 1, n_sectors - 1 - table_sectors, parts, n_parts);
}

#endif
