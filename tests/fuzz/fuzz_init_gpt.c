/* Partition tables of hostile disks. Input: the disk. With a byte in front that says the sector
 * size, and checksums that are put right, since no fuzzer guesses those. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "init/gpt.h"

#define DISK_BYTES 65536

static uint32_t crc(const uint8_t *data, size_t len)
{
    uint32_t c = ~0u;
    for (size_t i = 0; i < len; i++) {
        c ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? (c >> 1) ^ 0xEDB88320u : c >> 1;
    }
    return ~c;
}

static void put_right(uint8_t *head, unsigned sector)
{
    uint32_t size;
    memcpy(&size, head + 12, 4);
    if (size < 20 || size > sector)
        return;
    memset(head + 16, 0, 4);
    uint32_t c = crc(head, size);
    memcpy(head + 16, &c, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t disk[DISK_BYTES];
    static int fd = -1;
    struct hx_gpt table;
    if (size < 1)
        return 0;
    unsigned sector = 512u << (data[0] & 3);
    size = size - 1 > DISK_BYTES ? DISK_BYTES : size - 1;
    memset(disk, 0, sizeof(disk));
    memcpy(disk, data + 1, size);
    if (data[0] & 4) {
        uint32_t c = crc(disk + 2 * sector, 128 * 128);
        memcpy(disk + sector + 88, &c, 4);
        put_right(disk + sector, sector);
    }
    if (fd < 0)
        fd = memfd_create("disk", 0);
    EXPECT(fd >= 0 && pwrite(fd, disk, sizeof(disk), 0) == (ssize_t)sizeof(disk));
    if (hx_gpt_read(fd, DISK_BYTES, sector, &table, NULL) < 0)
        return 0;
    for (unsigned i = 0; i < table.n_entries; i++)
        EXPECT(table.entries[i].first <= table.entries[i].last &&
               table.entries[i].last < DISK_BYTES / sector);
    return 0;
}
