/* Partition tables: both sector sizes, the copy at the end, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/mman.h>

#include "disk.h"

#define N_SECTORS 4096

static const struct disk_part parts[] = {
    {"11111111-2222-3333-4444-555555555555", 64, 127, NULL},
    {"aabbccdd-eeff-0011-2233-445566778899", 128, 128, "state"},
};

static int new_disk(unsigned sector)
{
    int fd = memfd_create("disk", MFD_CLOEXEC);
    assert_true(fd >= 0);
    disk_make(fd, sector, N_SECTORS, parts, 2);
    return fd;
}

static void test_both_sector_sizes(void **state)
{
    (void)state;
    const unsigned sectors[] = {512, 4096};
    for (int i = 0; i < 2; i++) {
        struct hx_gpt table;
        struct hx_error err;
        uint8_t guid[HX_GPT_GUID];
        int fd = new_disk(sectors[i]);
        assert_int_equal(
            hx_gpt_read(fd, (uint64_t)N_SECTORS * sectors[i], sectors[i], &table, &err), 0);
        assert_int_equal(table.n_entries, 2);
        assert_int_equal(hx_gpt_guid_parse("AABBCCDD-EEFF-0011-2233-445566778899", guid), 0);
        const struct hx_gpt_entry *e = hx_gpt_find(&table, guid);
        assert_non_null(e);
        assert_int_equal(e->number, 3);
        assert_int_equal(e->first, 128);
        assert_int_equal(e->last, 128);
        assert_string_equal(e->label, "state");
        char text[37];
        hx_gpt_guid_text(e->guid, text);
        assert_string_equal(text, "aabbccdd-eeff-0011-2233-445566778899");
        guid[0] ^= 1;
        assert_null(hx_gpt_find(&table, guid));
        /* The other sector size finds no table. */
        assert_int_equal(
            hx_gpt_read(fd, (uint64_t)N_SECTORS * sectors[i], 4608 - sectors[i], &table, &err),
            -ENODATA);
        close(fd);
    }
}

static void test_guid_bytes(void **state)
{
    (void)state;
    const uint8_t esp[HX_GPT_GUID] = {0x28, 0x73, 0x2A, 0xC1, 0x1F, 0xF8, 0xD2, 0x11,
                                      0xBA, 0x4B, 0x00, 0xA0, 0xC9, 0x3E, 0xC9, 0x3B};
    uint8_t guid[HX_GPT_GUID];
    assert_int_equal(hx_gpt_guid_parse("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", guid), 0);
    assert_memory_equal(guid, esp, HX_GPT_GUID);
    const char *const bad[] = {"",
                               "C12A7328F81F11D2BA4B00A0C93EC93B",
                               "C12A7328-F81F-11D2-BA4B-00A0C93EC93",
                               "C12A7328-F81F-11D2-BA4B-00A0C93EC93B0",
                               "C12A7328-F81F-11D2-BA4B-00A0C93EC93G",
                               "C12A7328-F81F-11D2-BA4B_00A0C93EC93B"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(hx_gpt_guid_parse(bad[i], guid), -EINVAL);
}

static void flip(int fd, off_t at)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void test_copy_at_the_end(void **state)
{
    (void)state;
    /* signature, checksum, size, own place, entry place, entries themselves */
    const off_t broken[] = {512, 512 + 16, 512 + 12, 512 + 24, 512 + 72, 1024 + 40};
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct hx_gpt table;
        struct hx_error err;
        int fd = new_disk(512);
        flip(fd, broken[i]);
        assert_int_equal(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 512, &table, &err), 0);
        assert_int_equal(table.n_entries, 2);
        flip(fd, (N_SECTORS - 1) * 512 + 20);
        flip(fd, (N_SECTORS - 1) * 512 + 16);
        assert_true(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 512, &table, &err) < 0);
        close(fd);
    }
}

/* A stick that is larger than its image has no copy at the end. */
static void test_larger_stick(void **state)
{
    (void)state;
    struct hx_gpt table;
    struct hx_error err;
    int fd = new_disk(512);
    assert_int_equal(ftruncate(fd, (off_t)8 * N_SECTORS * 512), 0);
    assert_int_equal(hx_gpt_read(fd, (uint64_t)8 * N_SECTORS * 512, 512, &table, &err), 0);
    assert_int_equal(table.n_entries, 2);
    close(fd);
}

static void test_refused(void **state)
{
    (void)state;
    struct hx_gpt table;
    struct hx_error err;
    const struct disk_part outside[] = {
        {"11111111-2222-3333-4444-555555555555", 64, N_SECTORS, NULL}};
    const struct disk_part backward[] = {{"11111111-2222-3333-4444-555555555555", 64, 63, NULL}};
    int fd = memfd_create("disk", MFD_CLOEXEC);
    assert_true(fd >= 0);
    disk_make(fd, 512, N_SECTORS, outside, 1);
    assert_int_equal(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 512, &table, &err), -EBADMSG);
    disk_make(fd, 512, N_SECTORS, backward, 1);
    assert_int_equal(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 512, &table, &err), -EBADMSG);
    assert_int_equal(hx_gpt_read(fd, 1024, 512, &table, &err), -ENODATA);
    assert_int_equal(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 768, &table, &err), -EINVAL);
    assert_int_equal(hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 8192, &table, &err), -EINVAL);
    close(fd);
}

/* Whatever the header says, with a right checksum: no crash, no entry outside the disk. */
static void test_hostile_headers(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int fd = new_disk(512), accepted = 0;
    uint8_t good[512];
    assert_int_equal(pread(fd, good, sizeof(good), 512), sizeof(good));
    for (int round = 0; round < 2000; round++) {
        uint8_t head[512];
        struct hx_gpt table;
        memcpy(head, good, sizeof(head));
        for (int i = 0; i < 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            head[12 + (seed >> 33) % 80] = (uint8_t)(seed >> 56);
        }
        uint32_t size = (uint32_t)head[12] | (uint32_t)head[13] << 8 | (uint32_t)head[14] << 16 |
                        (uint32_t)head[15] << 24;
        memset(head + 16, 0, 4);
        if (size >= 20 && size <= sizeof(head))
            disk_put(head + 16, disk_crc(head, size), 4);
        assert_int_equal(pwrite(fd, head, sizeof(head), 512), sizeof(head));
        if (hx_gpt_read(fd, (uint64_t)N_SECTORS * 512, 512, &table, NULL) < 0)
            continue;
        accepted++;
        for (unsigned i = 0; i < table.n_entries; i++)
            assert_true(table.entries[i].first <= table.entries[i].last &&
                        table.entries[i].last < N_SECTORS);
    }
    assert_true(accepted > 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_sector_sizes), cmocka_unit_test(test_guid_bytes),
        cmocka_unit_test(test_copy_at_the_end),   cmocka_unit_test(test_larger_stick),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_hostile_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
