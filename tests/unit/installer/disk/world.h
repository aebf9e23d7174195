/* A machine in a folder: a stick that the system runs from, disks as sparse files, sysfs entries.
 * The stick's root is a megabyte of noise with a real hash tree. */
#ifndef TEST_DISK_WORLD_H
#define TEST_DISK_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "disk/install.h"
#include "disk/targets.h"

#define ROOT_BYTES (1u << 20)
#define TREE_BYTES (4096u * 4) /* superblock, top, two blocks over the data */
#define VERSION    "1.2"
#define KERNEL     "EFI/Linux/hx170_" VERSION ".efi"

struct world {
    char dir[64];
    char root_hash[65];
    struct hx_root *root;
};

__attribute__((unused)) static char *path_in(const struct world *w, const char *path)
{
    static char out[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(out[turn], sizeof(out[turn]), "%s%s", w->dir, path);
    return out[turn];
}

static void make_folders(const char *path)
{
    char part[512];
    for (const char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", (int)(p - path), path);
        mkdir(part, 0755);
    }
}

__attribute__((unused)) static void put(const struct world *w, const char *path, const void *data,
                                        size_t len)
{
    char *full = path_in(w, path);
    make_folders(full);
    int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), len);
    close(fd);
}

__attribute__((unused)) static void put_text(const struct world *w, const char *path,
                                             const char *text)
{
    put(w, path, text, strlen(text));
}

__attribute__((unused)) static void noise(uint8_t *to, size_t len, uint64_t seed)
{
    struct hx_rng g;
    hx_rng_seed(&g, seed);
    for (size_t i = 0; i < len; i++)
        to[i] = (uint8_t)hx_rng_next(&g);
}

static void salted_hash(const uint8_t *block, uint8_t out[32])
{
    uint8_t joined[8 + 4096];
    memcpy(joined, "saltsalt", 8);
    memcpy(joined + 8, block, 4096);
    assert_int_equal(hx_sha256_data(joined, sizeof(joined), out), 0);
}

/* The tree over ROOT_BYTES of data, in the form of veritysetup. */
__attribute__((unused)) static void make_tree(const uint8_t *data, uint8_t tree[TREE_BYTES],
                                              char hash[65])
{
    uint8_t digest[32];
    memset(tree, 0, TREE_BYTES);
    memcpy(tree, "verity\0\0", 8);
    tree[8] = tree[12] = 1;
    memcpy(tree + 32, "sha256", 6);
    tree[65] = tree[69] = 0x10; /* blocks of 4096 */
    tree[73] = 1;               /* 256 blocks */
    tree[80] = 8;
    memcpy(tree + 88, "saltsalt", 8);
    for (int b = 0; b < 256; b++)
        salted_hash(data + b * 4096, tree + 2 * 4096 + b * 32);
    for (int b = 0; b < 2; b++)
        salted_hash(tree + (2 + b) * 4096, tree + 4096 + b * 32);
    salted_hash(tree + 4096, digest);
    hx_sha256_to_hex(digest, hash);
}

__attribute__((unused)) static void make_sparse(const struct world *w, const char *path,
                                                uint64_t bytes)
{
    put(w, path, "", 0);
    assert_int_equal(truncate(path_in(w, path), (off_t)bytes), 0);
}

__attribute__((unused)) static void add_disk(const struct world *w, const char *name,
                                             const char *number, const char *serial, uint64_t bytes,
                                             unsigned sector)
{
    char path[256], text[64];
    const struct {
        const char *file, *text;
    } rows[] = {{"device/model", "Test disk\n"},
                {"device/serial", serial},
                {"ro", "0\n"},
                {"removable", "0\n"},
                {"dev", number}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(path, sizeof(path), "/sys/block/%s/%s", name, rows[i].file);
        put_text(w, path, rows[i].text);
    }
    snprintf(path, sizeof(path), "/sys/block/%s/size", name);
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(bytes / 512));
    put_text(w, path, text);
    snprintf(path, sizeof(path), "/sys/block/%s/queue/logical_block_size", name);
    snprintf(text, sizeof(text), "%u\n", sector);
    put_text(w, path, text);
    snprintf(path, sizeof(path), "/dev/%s", name);
    make_sparse(w, path, bytes);
    snprintf(path, sizeof(path), "/sys/dev/block/%s", number);
    make_folders(path_in(w, path));
    snprintf(text, sizeof(text), "../../block/%s", name);
    assert_int_equal(symlink(text, path_in(w, path)), 0);
}

static void make_stick(struct world *w)
{
    struct hx_disk d;
    struct hx_table t;
    struct hx_error err;
    uint8_t *data = malloc(ROOT_BYTES), tree[TREE_BYTES];
    noise(data, ROOT_BYTES, 7);
    make_tree(data, tree, w->root_hash);
    add_disk(w, "sda", "8:0", "STICK-0001", 64 * HX_DISK_MIB, 512);
    assert_int_equal(hx_disk_open(path_in(w, "/dev/sda"), HX_DISK_ALONE, 512, &d, &err), 0);
    assert_int_equal(hx_table_init(&t, &d, &err), 0);
    static const char *const labels[] = {"ESP", "root_" VERSION, "rootv_" VERSION};
    const uint8_t *const types[] = {hx_guid_esp, hx_guid_root, hx_guid_verity};
    static const uint64_t first[] = {2048, 22528, 24576}, size[] = {20480, 2048, 2048};
    for (int i = 0; i < 3; i++) {
        memcpy(t.part[i].type, types[i], 16);
        snprintf(t.part[i].label, sizeof(t.part[i].label), "%s", labels[i]);
        t.part[i].first = first[i];
        t.part[i].n_sectors = size[i];
        assert_int_equal(hx_guid_random(t.part[i].guid, &err), 0);
    }
    assert_int_equal(hx_guid_from_hex(w->root_hash, t.part[1].guid), 0);
    assert_int_equal(hx_guid_from_hex(w->root_hash + 32, t.part[2].guid), 0);
    assert_int_equal(hx_table_write(&t, &d, true, &err), 0);
    assert_int_equal(hx_disk_write(&d, data, ROOT_BYTES, first[1] * 512, &err), 0);
    assert_int_equal(hx_disk_write(&d, tree, TREE_BYTES, first[2] * 512, &err), 0);
    hx_disk_close(&d);
    free(data);
}

/* The list of sums that every stick has, of what is on the ESP so far. */
static void put_sums(const struct world *w)
{
    static const char *const files[] = {KERNEL, "EFI/BOOT/BOOTX64.EFI",
                                        "EFI/systemd/systemd-bootx64.efi", "loader/loader.conf"};
    char list[1024] = "", path[256], hex[65];
    uint64_t size;
    struct hx_error err;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "/efi/%s", files[i]);
        assert_int_equal(hx_sha256_file(path_in(w, path), hex, &size, &err), 0);
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s  %s\n", hex, files[i]);
    }
    put_text(w, "/efi/hx170/sums", list);
}

__attribute__((unused)) static void world_open(struct world *w)
{
    char text[256];
    struct hx_error err;
    uint8_t kernel[10000];
    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/hx-disk-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    make_stick(w);
    snprintf(text, sizeof(text), "quiet roothash=%s hx170.mode=installer\n", w->root_hash);
    put_text(w, "/proc/cmdline", text);
    put_text(w, "/usr/lib/os-release", "NAME=\"hx170\"\nIMAGE_VERSION=" VERSION "\n");
    put_text(w, "/run/hx170/boot/8:0", "");
    put_text(w, "/run/hx170/boot/models_0123456789abcdef012345", "");
    put_text(w, "/proc/self/mountinfo", "");
    noise(kernel, sizeof(kernel), 8);
    put(w, "/efi/" KERNEL, kernel, sizeof(kernel));
    put_text(w, "/efi/EFI/BOOT/BOOTX64.EFI", "boot loader");
    put_text(w, "/efi/EFI/systemd/systemd-bootx64.efi", "boot loader");
    put_text(w, "/efi/loader/loader.conf", "timeout 0\n");
    put_text(w, "/efi/loader/addons/installer.addon.efi", "mode");
    put_text(w, "/efi/loader/addons/board.addon.efi", "board");
    put_sums(w);
    put_text(w, "/efi/loader/random-seed", "seed");
    put_text(w, "/efi/hx170-answers.conf", "secret");
    assert_int_equal(hx_root_open(w->dir, &w->root, &err), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

__attribute__((unused)) static void world_close(struct world *w)
{
    hx_root_close(w->root);
    nftw(w->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Reading a FAT32 file system: size of a file, or -1. Content of at most `size` bytes into out. */
struct fat_view {
    const struct hx_disk *d;
    uint64_t offset, data;
    uint32_t cluster_bytes;
    uint64_t table;
};

static uint32_t le(const uint8_t *p, int n)
{
    uint32_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static bool fat_open(const struct hx_disk *d, uint64_t offset, struct fat_view *out)
{
    uint8_t b[512];
    struct hx_error err;
    if (hx_disk_read(d, b, sizeof(b), offset, &err) < 0 || b[510] != 0x55 || b[511] != 0xaa)
        return false;
    uint32_t sector = le(b + 11, 2);
    out->d = d;
    out->offset = offset;
    out->cluster_bytes = b[13] * sector;
    out->table = offset + (uint64_t)le(b + 14, 2) * sector;
    out->data = out->table + 2ull * le(b + 36, 4) * sector;
    return out->cluster_bytes == 4096;
}

static void entry_name(const uint8_t *raw, int at, char *out)
{
    static const uint8_t places[] = {1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30};
    int n = 0;
    if (at > 0 && raw[(at - 1) * 32 + 11] == 0x0f) {
        for (int k = at - 1; k >= 0 && raw[k * 32 + 11] == 0x0f; k--) {
            for (int c = 0; c < 13 && le(raw + k * 32 + places[c], 2) - 1 < 0xfffe; c++)
                out[n++] = (char)raw[k * 32 + places[c]];
            if (raw[k * 32] & 0x40)
                break;
        }
    } else {
        for (int c = 0; c < 11; c++) {
            if (c == 8 && raw[at * 32 + 8] != ' ')
                out[n++] = '.';
            if (raw[at * 32 + c] != ' ')
                out[n++] = (char)raw[at * 32 + c];
        }
    }
    out[n] = '\0';
}

__attribute__((unused)) static int64_t fat_find(const struct hx_disk *d, uint64_t offset,
                                                const char *path, uint8_t *out, size_t size)
{
    struct fat_view f;
    struct hx_error err;
    uint8_t raw[4096];
    uint32_t cluster = 2, length = 0;
    if (!fat_open(d, offset, &f))
        return -1;
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/') {
        char wanted[100], name[300];
        bool found = false;
        snprintf(wanted, sizeof(wanted), "%.*s", (int)strcspn(p, "/"), p);
        assert_int_equal(hx_disk_read(d, raw, sizeof(raw), f.data + (cluster - 2ull) * 4096, &err),
                         0);
        for (int i = 0; i < 128 && raw[i * 32] && !found; i++) {
            if (raw[i * 32 + 11] == 0x0f || raw[i * 32 + 11] == 0x08)
                continue;
            entry_name(raw, i, name);
            found = strcmp(name, wanted) == 0;
            if (found) {
                cluster = le(raw + i * 32 + 20, 2) << 16 | le(raw + i * 32 + 26, 2);
                length = le(raw + i * 32 + 28, 4);
            }
        }
        if (!found || (cluster < 2 && length > 0))
            return -1;
    }
    for (uint32_t at = 0; at < length && at < size; at += 4096) {
        uint8_t next[4];
        size_t n = length - at < 4096 ? length - at : 4096;
        n = size - at < n ? size - at : n;
        assert_int_equal(hx_disk_read(d, out + at, n, f.data + (cluster - 2ull) * 4096, &err), 0);
        assert_int_equal(hx_disk_read(d, next, 4, f.table + cluster * 4ull, &err), 0);
        cluster = le(next, 4) & 0x0fffffff;
    }
    return length;
}

#endif
