/* Forms: UEFI specification, sections 3.1 (variables) and 10.3 (device paths). */
#include "disk/efi_boot.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"

#define GLOBAL     "8be4df61-93ca-11d2-aa0d-00e098032b8c"
#define ATTRIBUTES 7u /* kept, visible to boot and run time */
#define TITLE      "hx170"
#define LOADER     "\\EFI\\systemd\\systemd-bootx64.efi"
#define VALUE_MAX  4096
#define ORDER_MAX  256 /* entries in BootOrder */
#define DRIVE_NODE 42

struct value {
    uint8_t data[VALUE_MAX];
    size_t len;
};

static void put(struct value *v, const void *data, size_t len)
{
    memcpy(v->data + v->len, data, len);
    v->len += len;
}

static void put_le(struct value *v, uint64_t x, int n)
{
    for (int i = 0; i < n; i++)
        v->data[v->len++] = (uint8_t)(x >> (8 * i));
}

static void put_utf16(struct value *v, const char *text)
{
    do
        put_le(v, (uint8_t)*text, 2);
    while (*text++);
}

static void make_entry(const struct hx_table *t, unsigned number, struct value *v)
{
    const struct hx_part *p = &t->part[number - 1];
    size_t file = 4 + 2 * sizeof(LOADER);
    v->len = 0;
    put_le(v, ATTRIBUTES, 4);
    put_le(v, 1, 4); /* active */
    put_le(v, DRIVE_NODE + file + 4, 2);
    put_utf16(v, TITLE);
    put_le(v, 4 | 1 << 8, 2); /* media, hard drive */
    put_le(v, DRIVE_NODE, 2);
    put_le(v, number, 4);
    put_le(v, p->first, 8);
    put_le(v, p->n_sectors, 8);
    put(v, p->guid, HX_GUID_BYTES);
    put_le(v, 2, 1);          /* GPT */
    put_le(v, 2, 1);          /* the signature is a GUID */
    put_le(v, 4 | 4 << 8, 2); /* media, file path */
    put_le(v, file, 2);
    put_utf16(v, LOADER);
    put_le(v, 0x7f | 0xff << 8, 2);
    put_le(v, 4, 2);
}

static int read_value(const char *vars, const char *name, struct value *v)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s-" GLOBAL, vars, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, v->data, sizeof(v->data));
    close(fd);
    if (n < 4)
        return -EIO;
    v->len = (size_t)n;
    return 0;
}

/* efivarfs makes existing variables immutable against accidents. */
static void unlock(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int flags;
    if (fd < 0)
        return;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_IMMUTABLE_FL)) {
        flags &= ~FS_IMMUTABLE_FL;
        ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
    close(fd);
}

static int write_value(const char *vars, const char *name, const struct value *v,
                       struct hx_error *err)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s-" GLOBAL, vars, name);
    unlock(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return hx_fail_errno(err, errno, "firmware variable %s", name);
    /* One write is one variable. */
    ssize_t n = write(fd, v->data, v->len);
    int r = n == (ssize_t)v->len
                ? 0
                : hx_fail_errno(err, n < 0 ? errno : EIO, "firmware variable %s", name);
    close(fd);
    return r;
}

static bool is_ours(const struct value *v)
{
    struct value title = {.len = 0};
    put_utf16(&title, TITLE);
    return v->len >= 10 + title.len && memcmp(v->data + 10, title.data, title.len) == 0;
}

/* Number of the entry to write: ours if there is one, else the first free. */
static int choose_number(const char *vars, unsigned *out, struct hx_error *err)
{
    struct value v;
    char name[16];
    int free_number = -1;
    DIR *d = opendir(vars);
    if (!d)
        return hx_fail(err, -ENOENT, "%s: no firmware variables", vars);
    int ours = -1;
    for (struct dirent *e = readdir(d); e && ours < 0; e = readdir(d)) {
        unsigned n;
        char end;
        if (sscanf(e->d_name, "Boot%4X%c", &n, &end) != 2 || end != '-' ||
            strcmp(e->d_name + 9, GLOBAL) != 0)
            continue;
        snprintf(name, sizeof(name), "Boot%04X", n & 0xffff);
        if (read_value(vars, name, &v) == 0 && is_ours(&v))
            ours = (int)n;
    }
    closedir(d);
    for (int n = 0; ours < 0 && free_number < 0 && n < ORDER_MAX; n++) {
        snprintf(name, sizeof(name), "Boot%04X", (unsigned)n);
        if (read_value(vars, name, &v) == -ENOENT)
            free_number = n;
    }
    if (ours < 0 && free_number < 0)
        return hx_fail(err, -ENOSPC, "the firmware's boot menu is full");
    *out = (unsigned)(ours >= 0 ? ours : free_number);
    return 0;
}

int hx_efi_boot_entry(const char *vars, const struct hx_table *t, unsigned number,
                      struct hx_error *err)
{
    struct value entry, old = {.len = 4}, order = {.len = 0};
    unsigned boot = 0;
    char name[16];
    int r = choose_number(vars, &boot, err);
    if (r < 0)
        return r;
    make_entry(t, number, &entry);
    snprintf(name, sizeof(name), "Boot%04X", boot);
    r = write_value(vars, name, &entry, err);
    if (r < 0)
        return r;
    if (read_value(vars, "BootOrder", &old) < 0 || old.len > 4 + 2 * ORDER_MAX)
        old.len = 4;
    put_le(&order, ATTRIBUTES, 4);
    put_le(&order, boot, 2);
    for (size_t i = 4; i + 1 < old.len; i += 2)
        if ((old.data[i] | (unsigned)old.data[i + 1] << 8) != boot)
            put(&order, old.data + i, 2);
    return write_value(vars, "BootOrder", &order, err);
}
