/* Steps of the initrd on the running machine. Everything that can be looked at without one is in
 * the other files. */
#include "init/steps.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "init/dm.h"
#include "init/verity.h"

#ifndef MODULE_INIT_COMPRESSED_FILE
#define MODULE_INIT_COMPRESSED_FILE 4 /* linux/module.h, since 5.17 */
#endif

#define EFIVARS    "/sys/firmware/efi/efivars"
#define LOADER_VAR EFIVARS "/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
#define SYSROOT    "/sysroot"
#define POLL_MS    100
#define EXTRA_MS   10000 /* for the boot disk, once another disk with the same root is there */
#define LIST_MAX   16384

void hx_init_say(int level, const char *fmt, ...)
{
    char text[1200];
    int n = snprintf(text, sizeof(text), "<%d>hx170: ", level);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
    va_end(ap);
    int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "%s\n", text);
    close(fd);
}

int hx_init_mount_api(struct hx_error *err)
{
    static const struct {
        const char *type, *where, *data;
        unsigned long flags;
    } mounts[] = {
        {"proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC},
        {"devtmpfs", "/dev", "mode=0755", MS_NOSUID},
        {"tmpfs", "/run", "mode=0755,size=20%", MS_NOSUID | MS_NODEV},
    };
    for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
        mkdir(mounts[i].where, 0755);
        if (mount(mounts[i].type, mounts[i].where, mounts[i].type, mounts[i].flags,
                  mounts[i].data) < 0 &&
            errno != EBUSY)
            return hx_fail_errno(err, errno, "%s cannot be mounted", mounts[i].where);
    }
    return 0;
}

static int read_small(const char *path, char *out, size_t size, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t have = 0;
    ssize_t n = 1;
    while (have < size - 1 && n > 0) {
        n = read(fd, out + have, size - 1 - have);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            have += (size_t)n;
    }
    close(fd);
    if (n < 0)
        return -EIO;
    out[have] = '\0';
    *len = have;
    return 0;
}

static void load_module(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = strlen(path);
    bool packed = len > 3 && strcmp(path + len - 3, ".ko") != 0;
    int r = -1;
    if (fd >= 0) {
        r = (int)syscall(SYS_finit_module, fd, "", packed ? MODULE_INIT_COMPRESSED_FILE : 0);
        if (r < 0 && errno == EEXIST)
            r = 0;
    }
    if (r < 0)
        hx_init_say(5, "module %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

int hx_init_load_modules(const char *list, struct hx_error *err)
{
    char text[LIST_MAX], path[PATH_MAX];
    size_t len;
    int r = read_small(list, text, sizeof(text), &len);
    if (r < 0)
        return hx_fail_errno(err, -r, "%s", list);
    const char *slash = strrchr(list, '/');
    int folder = slash ? (int)(slash - list) : 0;
    for (char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        snprintf(path, sizeof(path), "%.*s/%.*s", folder, list, (int)n, line);
        if (n > 0)
            load_module(path);
        line += n + (line[n] == '\n');
    }
    return 0;
}

void hx_init_ask_loader(struct hx_init_wanted *wanted)
{
    char raw[256];
    size_t len;
    if (mount("efivarfs", EFIVARS, "efivarfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 &&
        errno != EBUSY)
        return;
    wanted->has_loader = read_small(LOADER_VAR, raw, sizeof(raw), &len) == 0 &&
                         hx_init_loader_guid((const uint8_t *)raw, len, wanted->loader) == 0;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int hx_init_wait_root(const struct hx_init_wanted *wanted, unsigned wait_s,
                      struct hx_init_found *out, struct hx_error *err)
{
    int64_t end = now_ms() + (int64_t)wait_s * 1000, first = 0;
    for (;;) {
        struct hx_init_found f;
        int r = hx_init_find("", wanted, &f, err);
        int64_t now = now_ms();
        if (r == 0 && first == 0)
            first = now;
        if (r == 0 && (f.is_boot_disk || !wanted->has_loader || now - first >= EXTRA_MS)) {
            *out = f;
            return 0;
        }
        if (r < 0 && now >= end)
            return hx_wrap(err, r, "waited %u s for the system's disk", wait_s);
        usleep(POLL_MS * 1000);
    }
}

int hx_init_mount_root(const struct hx_init_options *options, const struct hx_init_found *found,
                       struct hx_error *err)
{
    char data[HX_INIT_NAME + 8], hash[HX_INIT_NAME + 8], table[HX_VERITY_TABLE_MAX], node[32];
    uint8_t raw[HX_VERITY_SUPERBLOCK];
    struct hx_verity v;
    snprintf(data, sizeof(data), "/dev/%s", found->data);
    snprintf(hash, sizeof(hash), "/dev/%s", found->hash);
    int fd = open(hash, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s", hash);
    ssize_t n = read(fd, raw, sizeof(raw));
    close(fd);
    if (n != (ssize_t)sizeof(raw))
        return hx_fail(err, -EIO, "%s: its first sector cannot be read", hash);
    int r = hx_verity_parse(raw, found->data_bytes, found->hash_bytes, &v, err);
    if (r == 0)
        r = hx_verity_table(&v, options->root_hash, data, hash, table, sizeof(table), err);
    if (r < 0)
        return hx_wrap(err, r, "%s", hash);

    int control = open("/dev/mapper/control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return hx_fail_errno(err, errno, "/dev/mapper/control");
    unsigned major_n, minor_n;
    r = hx_dm_create(control, "root", "verity", table, v.n_data_blocks * v.data_block, &major_n,
                     &minor_n, err);
    close(control);
    if (r < 0)
        return r;
    snprintf(node, sizeof(node), "/dev/dm-%u", minor_n);
    mkdir(SYSROOT, 0755);
    if (mount(node, SYSROOT, "erofs", MS_RDONLY, NULL) < 0)
        return hx_fail_errno(err, errno, "%s: root file system cannot be mounted", node);
    return 0;
}

/* Memory of the initrd goes back once its files are gone. */
static void empty_initrd(void)
{
    char text[LIST_MAX], path[PATH_MAX];
    size_t len;
    if (read_small("/modules/order", text, sizeof(text), &len) == 0)
        for (char *line = text; *line;) {
            size_t n = strcspn(line, "\n");
            snprintf(path, sizeof(path), "/modules/%.*s", (int)n, line);
            unlink(path);
            line += n + (line[n] == '\n');
        }
    unlink("/modules/order");
    unlink("/init");
    /* 22 MB that the processor has taken long before. */
    unlink("/kernel/x86/microcode/GenuineIntel.bin");
    unlink("/kernel/x86/microcode/AuthenticAMD.bin");
}

static int leave_word(const char *path, const char *text, struct hx_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    size_t len = strlen(text);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s", path);
    ssize_t n = write(fd, text, len);
    close(fd);
    return n == (ssize_t)len ? 0 : hx_fail(err, -EIO, "%s: cannot be written", path);
}

/* A drive that stands for the partition has this word as its label (installer/disk/models.h). */
static int leave_models(const char *guid, struct hx_error *err)
{
    char path[64] = "/run/hx170/boot/models_";
    size_t n = strlen(path), end = n + 24;
    for (const char *p = guid; *p && n < end; p++)
        if (*p != '-')
            path[n++] = *p;
    path[n] = '\0';
    return leave_word(path, "", err);
}

int hx_init_switch_root(const struct hx_init_found *found, struct hx_error *err)
{
    static const char *const moved[] = {"/proc", "/sys", "/dev", "/run"};
    char path[PATH_MAX];
    mkdir("/run/hx170", 0755);
    mkdir("/run/hx170/boot", 0755);
    snprintf(path, sizeof(path), "/run/hx170/boot/%s", found->disk_number);
    int r = leave_word(path, "", err);
    if (r == 0 && found->models_guid[0])
        r = leave_models(found->models_guid, err);
    if (r == 0 && found->state_guid[0]) {
        mkdir("/run/credentials", 0755);
        mkdir("/run/credentials/@initrd", 0700);
        r = leave_word("/run/credentials/@initrd/system.machine_id", found->state_guid, err);
    }
    if (r < 0)
        return r;
    empty_initrd();
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        snprintf(path, sizeof(path), SYSROOT "%s", moved[i]);
        if (mount(moved[i], path, NULL, MS_MOVE, NULL) < 0)
            return hx_fail_errno(err, errno, "%s cannot be moved into the root", moved[i]);
    }
    if (chdir(SYSROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
        chdir("/") < 0)
        return hx_fail_errno(err, errno, "the root cannot be switched");
    return 0;
}
