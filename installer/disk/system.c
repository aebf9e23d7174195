#include "disk/system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 65536

/* Value of the first "key=value" that starts a word; words are separated by any of `between`. */
static bool find_value(const char *text, const char *key, const char *between, char *out,
                       size_t size)
{
    size_t n = strlen(key);
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, between);
        if (len > n && strncmp(p, key, n) == 0 && p[n] == '=' && len - n - 1 < size) {
            snprintf(out, size, "%.*s", (int)(len - n - 1), p + n + 1);
            return true;
        }
        p += len;
        p += strspn(p, between);
    }
    return false;
}

int hx_system_boot_disk(const struct hx_root *root, char out[HX_DISK_NAME], struct hx_error *err)
{
    struct hx_names names;
    int r = hx_root_list(root, "/run/hx170/boot", &names, err);
    if (r < 0)
        return hx_fail(err, -ENODEV,
                       "the disk that this system was booted from is not known: "
                       "/run/hx170/boot is missing");
    char link[HX_ROOT_PATH], target[HX_ROOT_PATH] = "";
    r = -ENODEV;
    /* Its number; a drive of its own for the models has left a word there, too. */
    for (size_t i = 0; i < names.n && r < 0; i++) {
        if (!strchr(names.name[i], ':'))
            continue;
        snprintf(link, sizeof(link), "/sys/dev/block/%.64s", names.name[i]);
        r = hx_root_resolve(root, link, target);
    }
    hx_names_done(&names);
    const char *slash = r == 0 ? strrchr(target, '/') : NULL;
    if (!slash || strlen(slash + 1) >= HX_DISK_NAME || !slash[1])
        return hx_fail(err, -ENODEV, "the disk that this system was booted from is gone");
    snprintf(out, HX_DISK_NAME, "%s", slash + 1);
    return 0;
}

static int read_versions(const struct hx_root *root, struct hx_system *s, struct hx_error *err)
{
    char *text;
    size_t len;
    char mode[32] = "";
    int r = hx_root_read(root, "/proc/cmdline", TEXT_MAX, &text, &len, err);
    if (r < 0)
        return r;
    bool found = find_value(text, "roothash", " \n", s->root_hash, sizeof(s->root_hash));
    s->installer =
        find_value(text, "hx170.mode", " \n", mode, sizeof(mode)) && strcmp(mode, "installer") == 0;
    free(text);
    if (!found || !hx_root_hash_valid(s->root_hash))
        return hx_fail(err, -EINVAL, "/proc/cmdline has no roothash=: this is no hx170 system");
    r = hx_root_read(root, "/usr/lib/os-release", TEXT_MAX, &text, &len, err);
    if (r < 0)
        return r;
    found = find_value(text, "IMAGE_VERSION", "\n", s->version, sizeof(s->version));
    free(text);
    if (!found || !hx_version_valid(s->version))
        return hx_fail(err, -EINVAL, "/usr/lib/os-release: IMAGE_VERSION is missing or no version");
    return 0;
}

int hx_system_read(const struct hx_root *root, unsigned sector, struct hx_system *out,
                   struct hx_error *err)
{
    struct hx_system s = {0};
    struct hx_disk d;
    char device[HX_DISK_NAME + 8];
    int r = read_versions(root, &s, err);
    if (r == 0)
        r = hx_system_boot_disk(root, s.disk, err);
    if (r < 0)
        return r;
    snprintf(device, sizeof(device), "/dev/%s", s.disk);
    if (hx_root_outside(root, device, s.path) < 0)
        return hx_fail(err, -ENODEV, "%s: the boot disk has no device", device);
    r = hx_disk_open(s.path, HX_DISK_READ, sector, &d, err);
    if (r == 0) {
        r = hx_table_read(&d, &s.table, NULL, err);
        hx_disk_close(&d);
    }
    if (r < 0)
        return hx_wrap(err, r, "boot disk");
    uint8_t data[HX_GUID_BYTES], tree[HX_GUID_BYTES];
    if (hx_guid_from_hex(s.root_hash, data) < 0 || hx_guid_from_hex(s.root_hash + 32, tree) < 0)
        return hx_fail(err, -EINVAL, "root hash '%s'", s.root_hash);
    s.root = hx_table_find_guid(&s.table, data);
    s.verity = hx_table_find_guid(&s.table, tree);
    if (s.root < 0 || s.verity < 0)
        return hx_fail(err, -ENODEV, "%s: the partitions of the running system are not on it",
                       s.path);
    s.installed = hx_layout_is_installed(&s.table) &&
                  (s.root == HX_PART_ROOT_A || s.root == HX_PART_ROOT_B) && s.verity == s.root + 1;
    s.slot = s.installed && s.root == HX_PART_ROOT_B;
    *out = s;
    return 0;
}
