#include "disk/prepare.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "disk/io.h"
#include "disk/system.h"
#include "hw/command.h"

#define FOLDER     "hx170"
#define REQUEST    FOLDER "/reset"
#define MKFS_MS    600000
#define EXT4_MAGIC 1080 /* offset of 0xEF53 */
#define CONFIG     "/var/lib/hx170/config"

static const struct {
    const char *name, *text;
} levels[HX_RESET_LEVELS] = {
    [HX_RESET_CONFIG] = {"config", "the answers of the wizard are forgotten; keys of the machine, "
                                   "driver and models stay"},
    [HX_RESET_STATE] = {"state", "settings, keys, driver and logs are erased; the models stay"},
    [HX_RESET_EVERYTHING] = {"everything",
                             "settings, keys, driver, logs and all models are erased"},
};

int hx_reset_parse(const char *name, enum hx_reset_level *out)
{
    for (int i = 0; i < HX_RESET_LEVELS; i++) {
        if (strcmp(levels[i].name, name) == 0) {
            *out = (enum hx_reset_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *hx_reset_name(enum hx_reset_level level)
{
    return levels[level].name;
}

const char *hx_reset_text(enum hx_reset_level level)
{
    return levels[level].text;
}

static int esp_path(const struct hx_root *root, const char *esp, const char *name,
                    char out[HX_ROOT_PATH], struct hx_error *err)
{
    char folder[HX_ROOT_PATH];
    int r = 0;
    if (!esp)
        r = hx_root_outside(root, "/efi", folder);
    else if (strlen(esp) < sizeof(folder))
        snprintf(folder, sizeof(folder), "%s", esp);
    else
        r = -ENAMETOOLONG;
    if (r == 0 && snprintf(out, HX_ROOT_PATH, "%s/%s", folder, name) >= HX_ROOT_PATH)
        r = -ENAMETOOLONG;
    return r < 0 ? hx_fail(err, r, "the ESP is not mounted") : 0;
}

static int sync_folder(const char *path, struct hx_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    if (fd < 0 || fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync", path);
    if (fd >= 0)
        close(fd);
    return r;
}

static int put_file(const struct hx_root *root, const char *esp, const char *name, const char *text,
                    struct hx_error *err)
{
    char folder[HX_ROOT_PATH], path[HX_ROOT_PATH];
    int r = esp_path(root, esp, FOLDER, folder, err);
    if (r == 0)
        r = esp_path(root, esp, name, path, err);
    if (r == 0 && mkdir(folder, 0755) < 0 && errno != EEXIST)
        r = hx_fail_errno(err, errno, "%s: cannot make it", folder);
    if (r == 0)
        r = hx_file_replace(path, text, strlen(text), err);
    /* On FAT the new name stands for an empty file until the file itself is synced. */
    int fd = r == 0 ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (r == 0 && (fd < 0 || fsync(fd) < 0))
        r = hx_fail_errno(err, errno, "%s: cannot sync", path);
    if (fd >= 0)
        close(fd);
    return r;
}

static int drop_file(const struct hx_root *root, const char *esp, const char *name,
                     struct hx_error *err)
{
    char folder[HX_ROOT_PATH], path[HX_ROOT_PATH];
    int r = esp_path(root, esp, FOLDER, folder, err);
    if (r == 0)
        r = esp_path(root, esp, name, path, err);
    if (r < 0)
        return r;
    if (unlink(path) < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : hx_fail_errno(err, errno, "%s: cannot remove it", path);
    return sync_folder(folder, err);
}

int hx_reset_request(const struct hx_root *root, const char *esp, enum hx_reset_level level,
                     struct hx_error *err)
{
    char line[32];
    snprintf(line, sizeof(line), "%s\n", levels[level].name);
    return put_file(root, esp, REQUEST, line, err);
}

int hx_reset_cancel(const struct hx_root *root, const char *esp, struct hx_error *err)
{
    return drop_file(root, esp, REQUEST, err);
}

int hx_reset_pending(const struct hx_root *root, const char *esp, enum hx_reset_level *out,
                     struct hx_error *err)
{
    char path[HX_ROOT_PATH], *text;
    size_t len;
    int r = esp_path(root, esp, REQUEST, path, err);
    if (r == 0)
        r = hx_file_read(path, 64, &text, &len, err);
    if (r < 0)
        return r;
    text[strcspn(text, "\r\n")] = '\0';
    r = hx_reset_parse(text, out);
    /* The power went while it was written: nobody was told that it is asked for. */
    if (len == 0)
        r = hx_fail(err, -ENOENT, "%s: empty", path);
    else if (r < 0)
        hx_fail(err, r, "%s: '%.20s' is no level of reset", path, text);
    free(text);
    return r;
}

static int part_path(const struct hx_root *root, const char *name, char out[HX_ROOT_PATH],
                     struct hx_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/dev/hx170/%s", name);
    int r = hx_root_resolve(root, path, out);
    if (r == 0)
        r = hx_root_outside(root, path, out);
    return r < 0 ? hx_fail(err, r, "%s: no such partition on the disk of this system", path) : 0;
}

static int erase(const struct hx_root *root, const char *name, bool discard, struct hx_error *err)
{
    char path[HX_ROOT_PATH];
    struct hx_disk d;
    int r = part_path(root, name, path, err);
    if (r == 0)
        r = hx_disk_open(path, HX_DISK_ALONE, 0, &d, err);
    if (r < 0)
        return r;
    uint64_t range[2] = {0, d.n_bytes};
    /* Only drives that can; the zeros below are what counts. */
    if (discard && d.is_device)
        ioctl(d.fd, BLKDISCARD, range);
    r = hx_disk_zero(&d, 0, d.n_bytes < HX_DISK_MIB ? d.n_bytes : HX_DISK_MIB, err);
    if (r == 0)
        r = hx_disk_flush(&d, err);
    hx_disk_close(&d);
    return r;
}

enum content { BLANK, EXT4, UNKNOWN };

static int look(const char *path, enum content *out, struct hx_error *err)
{
    struct hx_disk d;
    uint8_t *buf = malloc(HX_DISK_MIB);
    int r = buf ? hx_disk_open(path, HX_DISK_READ, 0, &d, err)
                : hx_fail(err, -ENOMEM, "out of memory for a look at %s", path);
    if (r < 0) {
        free(buf);
        return r;
    }
    size_t n = d.n_bytes < HX_DISK_MIB ? (size_t)d.n_bytes : HX_DISK_MIB;
    r = n > EXT4_MAGIC + 2 ? hx_disk_read(&d, buf, n, 0, err)
                           : hx_fail(err, -EINVAL, "%s: too small", path);
    if (r == 0) {
        size_t zeros = 0;
        while (zeros < n && buf[zeros] == 0)
            zeros++;
        *out = zeros == n                                               ? BLANK
               : buf[EXT4_MAGIC] == 0x53 && buf[EXT4_MAGIC + 1] == 0xef ? EXT4
                                                                        : UNKNOWN;
    }
    hx_disk_close(&d);
    free(buf);
    return r;
}

static int run_mkfs(const char *name, const char *path, struct hx_error *err)
{
    struct hx_commands *commands;
    struct hx_command_result result;
    int r = hx_commands_real(&commands, err);
    if (r < 0)
        return r;
    const char *const argv[] = {
        "mkfs.ext4", "-q", "-F",
        "-m",        "0",  "-L",
        name,        "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1",
        path,        NULL};
    r = hx_command_run(commands, argv, MKFS_MS, &result, err);
    if (r == 0) {
        if (result.timed_out || result.rc != 0)
            r = hx_fail(err, -EIO, "mkfs.ext4 %s: %s", path,
                        result.timed_out ? "took more than ten minutes" : result.err_text);
        hx_command_result_done(&result);
    }
    hx_commands_free(commands);
    return r;
}

static int sync_device(const char *path, struct hx_error *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), r = 0;
    if (fd < 0 || fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync", path);
    if (fd >= 0)
        close(fd);
    return r;
}

/* A note on the ESP tells a file system that was being made from one that lost its head. */
static int make_file_system(const struct hx_root *root, const char *name, struct hx_error *err)
{
    char path[HX_ROOT_PATH], note[64], where[HX_ROOT_PATH];
    enum content content = UNKNOWN;
    snprintf(note, sizeof(note), FOLDER "/making-%s", name);
    int r = part_path(root, name, path, err);
    if (r == 0)
        r = esp_path(root, NULL, note, where, err);
    if (r < 0)
        return r;
    bool again = access(where, F_OK) == 0;
    if (!again)
        r = look(path, &content, err);
    if (r == 0 && !again && content == UNKNOWN)
        r = hx_fail(err, -EBADMSG,
                    "%s: neither empty nor ext4; its data may be recoverable, so nothing was "
                    "written. `hx reset` starts it anew",
                    path);
    if (r < 0 || (!again && content == EXT4))
        return r;
    if (!again)
        r = put_file(root, NULL, note, "\n", err);
    if (r == 0)
        r = run_mkfs(name, path, err);
    if (r == 0)
        r = sync_device(path, err);
    return r < 0 ? r : drop_file(root, NULL, note, err);
}

/* The machine id is made from the GUID of `state`: a box that was reset is another one. */
static int new_identity(const struct hx_root *root, struct hx_error *err)
{
    struct hx_system *s = malloc(sizeof(*s));
    struct hx_disk d = {.fd = -1};
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory for a partition table");
    int r = hx_system_read(root, 0, s, err);
    if (r == 0 && !s->installed)
        r = hx_fail(err, -ENODEV, "%s: no installed system", s->path);
    if (r == 0)
        r = hx_disk_open(s->path, HX_DISK_SHARED, s->table.sector, &d, err);
    if (r == 0)
        r = hx_guid_random(s->table.part[HX_PART_STATE].guid, err);
    if (r == 0)
        r = hx_table_write(&s->table, &d, false, err);
    hx_disk_close(&d);
    free(s);
    return r;
}

int hx_prepare_run(const struct hx_root *root, struct hx_error *err)
{
    enum hx_reset_level level;
    bool done_here = false;
    int r = hx_reset_pending(root, NULL, &level, err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && level != HX_RESET_CONFIG) {
        done_here = true;
        r = erase(root, "state", false, err);
        if (r == 0 && level == HX_RESET_EVERYTHING)
            r = erase(root, "models", true, err);
        if (r < 0)
            return r;
        struct hx_error identity;
        if (new_identity(root, &identity) < 0)
            fprintf(stderr, "hx-install: warning: the machine id stays: %s\n", identity.text);
    }
    r = make_file_system(root, "state", err);
    if (r < 0)
        return r;
    /* Broken models are no reason to have no system. */
    struct hx_error models;
    if (make_file_system(root, "models", &models) < 0)
        fprintf(stderr, "hx-install: warning: %s\n", models.text);
    return done_here ? hx_reset_cancel(root, NULL, err) : 0;
}

static int empty_folder(const char *path, struct hx_error *err)
{
    DIR *d = opendir(path);
    int r = 0;
    if (!d)
        return errno == ENOENT ? 0 : hx_fail_errno(err, errno, "%s", path);
    for (struct dirent *e = readdir(d); r == 0 && e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) < 0 && errno != ENOENT)
            r = hx_fail_errno(err, errno, "%s/%s: cannot remove it", path, e->d_name);
    }
    if (r == 0 && fsync(dirfd(d)) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync", path);
    closedir(d);
    return r;
}

int hx_prepare_config(const struct hx_root *root, struct hx_error *err)
{
    enum hx_reset_level level;
    char path[HX_ROOT_PATH];
    int r = hx_reset_pending(root, NULL, &level, err);
    if (r == -ENOENT || (r == 0 && level != HX_RESET_CONFIG))
        return 0;
    if (r == 0)
        r = hx_root_outside(root, CONFIG, path) < 0
                ? hx_fail(err, -ENOENT, CONFIG ": /var is not mounted")
                : empty_folder(path, err);
    return r < 0 ? r : hx_reset_cancel(root, NULL, err);
}
