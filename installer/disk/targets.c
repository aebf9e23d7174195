#include "disk/targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOUNTS_MAX (4u << 20)

static const char *const reasons[HX_TARGET_VERDICTS] = {
    [HX_TARGET_FINE] = "it can be used",
    [HX_TARGET_BOOT_DISK] = "this system was started from it",
    [HX_TARGET_READ_ONLY] = "it is read-only",
    [HX_TARGET_IN_USE] = "something of it is mounted, swap, or part of an array",
    [HX_TARGET_TOO_SMALL] = "it is too small",
    [HX_TARGET_SECTORS] = "its sectors have neither 512 nor 4096 bytes",
    [HX_TARGET_UNREADABLE] = "it cannot be read",
};

const char *hx_target_reason(enum hx_target_verdict v)
{
    return v < HX_TARGET_VERDICTS ? reasons[v] : "unknown";
}

static bool is_whole_disk(const struct hx_root *root, const char *name)
{
    static const char *const others[] = {"loop", "ram", "zram", "dm-",     "md",
                                         "sr",   "fd",  "nbd",  "mtdblock"};
    char path[HX_ROOT_PATH];
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return false;
    /* eMMC boot areas are disks to the kernel. */
    if (strstr(name, "boot") || strstr(name, "rpmb"))
        return false;
    snprintf(path, sizeof(path), "/sys/block/%.64s/device", name);
    return hx_root_exists(root, path);
}

static void block_text(const struct hx_root *root, const char *name, const char *file, char *out,
                       size_t size)
{
    char path[HX_ROOT_PATH];
    snprintf(path, sizeof(path), "/sys/block/%.64s/%s", name, file);
    hx_root_text(root, path, out, size);
}

static int64_t block_number(const struct hx_root *root, const char *name, const char *file)
{
    char path[HX_ROOT_PATH];
    int64_t v;
    snprintf(path, sizeof(path), "/sys/block/%.64s/%s", name, file);
    return hx_root_number(root, path, &v) < 0 ? -1 : v;
}

/* Page 80 of the vital product data: 4 bytes of header, then the serial number. */
static bool scsi_serial(const struct hx_root *root, const char *name, char *out, size_t size)
{
    char path[HX_ROOT_PATH], *raw;
    size_t len;
    snprintf(path, sizeof(path), "/sys/block/%.64s/device/vpd_pg80", name);
    if (hx_root_read(root, path, 4096, &raw, &len, NULL) < 0)
        return false;
    size_t n = len > 4 ? ((uint8_t)raw[2] << 8 | (uint8_t)raw[3]) : 0;
    n = len > 4 && n > len - 4 ? len - 4 : n;
    size_t at = 4;
    while (n > 0 && raw[at] == ' ') {
        at++;
        n--;
    }
    while (n > 0 && (raw[at + n - 1] == ' ' || raw[at + n - 1] == '\0'))
        n--;
    snprintf(out, size, "%.*s", (int)n, raw + at);
    free(raw);
    return out[0] != '\0';
}

/* USB devices have it some folders above the disk. */
static bool serial_above(const struct hx_root *root, const char *real, char *out, size_t size)
{
    char path[HX_ROOT_PATH], file[HX_ROOT_PATH + 8];
    snprintf(path, sizeof(path), "%s", real);
    for (char *slash = strrchr(path, '/'); slash && slash > path; slash = strrchr(path, '/')) {
        *slash = '\0';
        snprintf(file, sizeof(file), "%s/serial", path);
        if (hx_root_text(root, file, out, size) == 0 && out[0])
            return true;
    }
    return false;
}

static void clean(char *text)
{
    for (char *p = text; *p; p++)
        if (*p < 0x20 || *p > 0x7e)
            *p = '?';
}

static void identify(const struct hx_root *root, struct hx_target *t)
{
    static const struct {
        const char *part, *bus;
    } buses[] = {{"/usb", "USB"},
                 {"/nvme", "NVMe"},
                 {"/ata", "SATA"},
                 {"/virtio", "virtio"},
                 {"/host", "SCSI"}};
    char link[HX_ROOT_PATH], real[HX_ROOT_PATH] = "";
    snprintf(link, sizeof(link), "/sys/block/%s", t->name);
    hx_root_resolve(root, link, real);
    t->bus = "other";
    for (size_t i = 0; i < sizeof(buses) / sizeof(buses[0]); i++) {
        if (strstr(real, buses[i].part)) {
            t->bus = buses[i].bus;
            break;
        }
    }
    block_text(root, t->name, "device/model", t->model, sizeof(t->model));
    block_text(root, t->name, "device/serial", t->serial, sizeof(t->serial));
    if (!t->serial[0])
        block_text(root, t->name, "serial", t->serial, sizeof(t->serial));
    if (!t->serial[0] && !scsi_serial(root, t->name, t->serial, sizeof(t->serial)) &&
        strcmp(t->bus, "USB") == 0)
        serial_above(root, real, t->serial, sizeof(t->serial));
    clean(t->model);
    clean(t->serial);
}

/* Whether a device number stands in a mount table, or its name in the list of swap areas. */
static bool number_used(const char *number, const char *name, const char *mounts, const char *swaps)
{
    char wanted[96];
    snprintf(wanted, sizeof(wanted), " %.40s ", number);
    if (number[0] && strstr(mounts, wanted))
        return true;
    snprintf(wanted, sizeof(wanted), "/dev/%.64s ", name);
    return strstr(swaps, wanted) != NULL;
}

static bool part_in_use(const struct hx_root *root, const char *folder, const char *name,
                        const char *mounts, const char *swaps)
{
    char path[HX_ROOT_PATH], number[40] = "";
    struct hx_names holders;
    snprintf(path, sizeof(path), "%.400s/holders", folder);
    if (hx_root_list(root, path, &holders, NULL) == 0) {
        bool held = holders.n > 0;
        hx_names_done(&holders);
        if (held)
            return true;
    }
    snprintf(path, sizeof(path), "%.400s/dev", folder);
    hx_root_text(root, path, number, sizeof(number));
    return number_used(number, name, mounts, swaps);
}

static bool in_use(const struct hx_root *root, const char *name, const char *mounts,
                   const char *swaps)
{
    char folder[HX_ROOT_PATH], path[HX_ROOT_PATH];
    struct hx_names entries;
    snprintf(folder, sizeof(folder), "/sys/block/%.64s", name);
    if (part_in_use(root, folder, name, mounts, swaps))
        return true;
    if (hx_root_list(root, folder, &entries, NULL) < 0)
        return false;
    bool used = false;
    for (size_t i = 0; i < entries.n && !used; i++) {
        snprintf(path, sizeof(path), "%.200s/%.64s/partition", folder, entries.name[i]);
        if (!hx_root_exists(root, path))
            continue;
        snprintf(path, sizeof(path), "%.200s/%.64s", folder, entries.name[i]);
        used = part_in_use(root, path, entries.name[i], mounts, swaps);
    }
    hx_names_done(&entries);
    return used;
}

static void describe_table(struct hx_target *t, const struct hx_table *table,
                           const struct hx_disk *d)
{
    /* Text form: e3c9e316-0b5c-4db8-817d-f92df00215ae, which every Windows disk has. */
    static const uint8_t windows[HX_GUID_BYTES] = {0x16, 0xe3, 0xc9, 0xe3, 0x5c, 0x0b, 0xb8, 0x4d,
                                                   0x81, 0x7d, 0xf9, 0x2d, 0xf0, 0x02, 0x15, 0xae};
    struct hx_table plan;
    int n = 0;
    bool has_windows = false;
    for (int i = 0; i < HX_GPT_MAX_PARTS; i++) {
        n += hx_part_used(&table->part[i]);
        has_windows = has_windows || memcmp(table->part[i].type, windows, HX_GUID_BYTES) == 0;
    }
    if (hx_layout_is_installed(table)) {
        const char *a = hx_layout_slot_version(table, 0), *b = hx_layout_slot_version(table, 1);
        t->content = HX_CONTENT_HX170;
        t->models_kept = hx_layout_make(d, table, &plan, NULL) == 0;
        snprintf(t->content_text, sizeof(t->content_text), "hx170 %s%s%s",
                 a   ? a
                 : b ? b
                     : "?",
                 a && b ? " and " : "", a && b ? b : "");
    } else {
        t->content = n > 0 ? HX_CONTENT_OTHER : HX_CONTENT_NONE;
        snprintf(t->content_text, sizeof(t->content_text), "%s%d partition%s",
                 has_windows ? "Windows, " : "", n, n == 1 ? "" : "s");
    }
}

static void look_inside(struct hx_target *t)
{
    struct hx_disk d;
    struct hx_table *table = malloc(sizeof(*table));
    uint8_t head[512];
    if (!table || hx_disk_open(t->path, HX_DISK_READ, t->sector, &d, NULL) < 0) {
        free(table);
        t->verdict = HX_TARGET_UNREADABLE;
        return;
    }
    if (hx_table_read(&d, table, NULL, NULL) == 0) {
        describe_table(t, table, &d);
    } else if (hx_disk_read(&d, head, sizeof(head), 0, NULL) < 0) {
        t->verdict = HX_TARGET_UNREADABLE;
    } else {
        bool mbr = head[510] == 0x55 && head[511] == 0xaa;
        t->content = mbr ? HX_CONTENT_OTHER : HX_CONTENT_NONE;
        snprintf(t->content_text, sizeof(t->content_text), "%s",
                 mbr ? "old partition table or a file system" : "no partition table");
    }
    hx_disk_close(&d);
    free(table);
}

static enum hx_target_verdict judge(const struct hx_root *root, const struct hx_target *t,
                                    const char *boot, const char *mounts, const char *swaps)
{
    if (strcmp(t->name, boot) == 0)
        return HX_TARGET_BOOT_DISK;
    if (t->sector != 512 && t->sector != 4096)
        return HX_TARGET_SECTORS;
    if (block_number(root, t->name, "ro") == 1)
        return HX_TARGET_READ_ONLY;
    if (in_use(root, t->name, mounts, swaps))
        return HX_TARGET_IN_USE;
    return t->n_bytes < hx_layout_min_bytes() ? HX_TARGET_TOO_SMALL : HX_TARGET_FINE;
}

static char *read_or_empty(const struct hx_root *root, const char *path)
{
    char *text;
    size_t len;
    return hx_root_read(root, path, MOUNTS_MAX, &text, &len, NULL) < 0 ? strdup("") : text;
}

int hx_targets_list(const struct hx_root *root, struct hx_targets *out, struct hx_error *err)
{
    struct hx_names names;
    char boot[HX_DISK_NAME], device[HX_DISK_NAME + 8];
    /* Without this a stick could not be told from a target. */
    int r = hx_system_boot_disk(root, boot, err);
    if (r == 0)
        r = hx_root_list(root, "/sys/block", &names, err);
    if (r < 0)
        return r;
    char *mounts = read_or_empty(root, "/proc/self/mountinfo");
    char *swaps = read_or_empty(root, "/proc/swaps");
    if (!mounts || !swaps)
        r = hx_fail(err, -ENOMEM, "out of memory for the list of disks");
    out->n = 0;
    for (size_t i = 0; r == 0 && i < names.n && out->n < HX_TARGETS_MAX; i++) {
        const char *name = names.name[i];
        struct hx_target *t = &out->disk[out->n];
        if (strlen(name) >= HX_DISK_NAME || !is_whole_disk(root, name))
            continue;
        memset(t, 0, sizeof(*t));
        snprintf(t->name, sizeof(t->name), "%s", name);
        snprintf(device, sizeof(device), "/dev/%s", name);
        int64_t sectors = block_number(root, name, "size"); /* of 512 bytes, whatever the disk's */
        int64_t bytes = block_number(root, name, "queue/logical_block_size");
        if (sectors <= 0 || hx_root_outside(root, device, t->path) < 0)
            continue; /* an empty card reader */
        t->n_bytes = (uint64_t)sectors * 512;
        t->sector = bytes > 0 && bytes <= 65536 ? (unsigned)bytes : 0;
        t->removable = block_number(root, name, "removable") == 1;
        identify(root, t);
        t->verdict = judge(root, t, boot, mounts, swaps);
        if (t->verdict == HX_TARGET_FINE)
            look_inside(t);
        out->n++;
    }
    hx_names_done(&names);
    free(mounts);
    free(swaps);
    return r;
}

int hx_targets_find(const struct hx_targets *list, const char *serial, const struct hx_target **out,
                    struct hx_error *err)
{
    const struct hx_target *found = NULL;
    for (int i = 0; i < list->n; i++) {
        if (!serial[0] || strcmp(list->disk[i].serial, serial) != 0)
            continue;
        if (found)
            return hx_fail(err, -ENODEV, "two disks, %s and %s, have the serial number '%s'",
                           found->name, list->disk[i].name, serial);
        found = &list->disk[i];
    }
    if (!found)
        return hx_fail(err, -ENODEV,
                       "no disk has the serial number '%.80s'; hx-install list shows what is there",
                       serial);
    if (found->verdict != HX_TARGET_FINE)
        return hx_fail(err, -EPERM, "%s (%s) is not written to: %s", found->name, found->model,
                       hx_target_reason(found->verdict));
    *out = found;
    return 0;
}
