/* Disks from sysfs, their tables from the disks themselves: the kernel has not seen udev yet, so
 * there are no links by id to go by. */
#include "init/disks.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNEL_SECTOR 512 /* unit of sysfs sizes, whatever the disk's own sector is */

/* One line of a small file in sysfs, without its line break. */
static int read_line(const char *root, const char *disk, const char *file, char *out, size_t size)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/sys/class/block/%s/%s", root, disk, file);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t len = read(fd, out, size - 1);
    close(fd);
    if (len < 0)
        return -EIO;
    out[len] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return 0;
}

static int read_number(const char *root, const char *disk, const char *file, uint64_t *out)
{
    char text[32], *end;
    int r = read_line(root, disk, file, text, sizeof(text));
    if (r < 0)
        return r;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-')
        return -EINVAL;
    *out = n;
    return 0;
}

static int by_name(const struct dirent *e)
{
    return e->d_name[0] != '.' && strlen(e->d_name) < HX_INIT_NAME;
}

static void free_list(struct dirent **list, int n)
{
    while (n-- > 0)
        free(list[n]);
    free(list);
}

/* Kernel's name of partition `number` of the disk: the one of its folders that says so. */
static int partition_name(const char *root, const char *disk, unsigned number,
                          char out[HX_INIT_NAME])
{
    char path[PATH_MAX], file[HX_INIT_NAME + 16];
    struct dirent **list;
    int n = snprintf(path, sizeof(path), "%s/sys/class/block/%s", root, disk);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    n = scandir(path, &list, by_name, alphasort);
    if (n < 0)
        return -errno;
    int r = -ENODEV;
    for (int i = 0; i < n && r < 0; i++) {
        uint64_t found;
        snprintf(file, sizeof(file), "%s/partition", list[i]->d_name);
        if (read_number(root, disk, file, &found) < 0 || found != number)
            continue;
        snprintf(out, HX_INIT_NAME, "%s", list[i]->d_name);
        r = 0;
    }
    free_list(list, n);
    return r;
}

static int read_table(const char *root, const char *disk, uint64_t n_bytes, unsigned sector,
                      struct hx_gpt *table)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/dev/%s", root, disk);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = hx_gpt_read(fd, n_bytes, sector, table, NULL);
    close(fd);
    return r;
}

/* 0 if the disk has both partitions. */
static int look_at(const char *root, const char *disk, const struct hx_init_wanted *wanted,
                   struct hx_init_found *out)
{
    uint64_t sectors, sector;
    struct hx_gpt table;
    struct hx_init_found f = {0};
    char text[32];
    if (read_number(root, disk, "partition", &sectors) == 0)
        return -ENODEV; /* itself a partition */
    if (read_number(root, disk, "size", &sectors) < 0 || sectors == 0 ||
        sectors > UINT64_MAX / KERNEL_SECTOR ||
        read_number(root, disk, "queue/logical_block_size", &sector) < 0 || sector > 65536 ||
        read_line(root, disk, "dev", text, sizeof(text)) < 0)
        return -ENODEV;
    int r = read_table(root, disk, sectors * KERNEL_SECTOR, (unsigned)sector, &table);
    if (r < 0)
        return r;
    const struct hx_gpt_entry *data = hx_gpt_find(&table, wanted->data);
    const struct hx_gpt_entry *hash = hx_gpt_find(&table, wanted->hash);
    if (!data || !hash)
        return -ENODEV;
    r = partition_name(root, disk, data->number, f.data);
    if (r == 0)
        r = partition_name(root, disk, hash->number, f.hash);
    if (r < 0)
        return r;
    snprintf(f.disk, sizeof(f.disk), "%s", disk);
    snprintf(f.disk_number, sizeof(f.disk_number), "%.23s", text);
    f.data_bytes = (data->last - data->first + 1) * sector;
    f.hash_bytes = (hash->last - hash->first + 1) * sector;
    for (unsigned i = 0; i < table.n_entries && !f.state_guid[0]; i++)
        if (strcmp(table.entries[i].label, "state") == 0)
            hx_gpt_guid_text(table.entries[i].guid, f.state_guid);
    for (unsigned i = 0; i < table.n_entries && !f.models_guid[0]; i++)
        if (strcmp(table.entries[i].label, "models") == 0)
            hx_gpt_guid_text(table.entries[i].guid, f.models_guid);
    f.is_boot_disk = wanted->has_loader && hx_gpt_find(&table, wanted->loader);
    *out = f;
    return 0;
}

int hx_init_find(const char *root, const struct hx_init_wanted *wanted, struct hx_init_found *out,
                 struct hx_error *err)
{
    char path[PATH_MAX];
    struct dirent **list;
    int n = snprintf(path, sizeof(path), "%s/sys/class/block", root);
    if (n < 0 || (size_t)n >= sizeof(path))
        return hx_fail(err, -ENAMETOOLONG, "%s: path is too long", root);
    n = scandir(path, &list, by_name, alphasort);
    if (n < 0)
        return hx_fail_errno(err, errno, "%s", path);
    bool found = false;
    struct hx_init_found best = {0};
    for (int i = 0; i < n && !best.is_boot_disk; i++) {
        struct hx_init_found f;
        if (look_at(root, list[i]->d_name, wanted, &f) < 0 || (found && !f.is_boot_disk))
            continue;
        best = f;
        found = true;
    }
    free_list(list, n);
    if (!found)
        return hx_fail(err, -ENODEV, "none of %d block devices has both partitions of this root",
                       n);
    *out = best;
    return 0;
}
