#include "disk/kernels.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"

#define FOLDER     "EFI/Linux"
#define FRESH      "hx170.new" /* no .efi: the boot loader passes it over */
#define STALE      8           /* such names at most: hx170.new, hx170.new1 ... */
#define PREFIX     "hx170_"
#define FRESH_SIZE 16
#define SUFFIX     ".efi"
#define SPARE      (64u << 10) /* clusters of folders */

bool hx_kernel_parse(const char *name, struct hx_kernel *out)
{
    size_t n = strlen(name), prefix = strlen(PREFIX), suffix = strlen(SUFFIX);
    if (n >= sizeof(out->file) || n <= prefix + suffix || strncmp(name, PREFIX, prefix) != 0 ||
        strcmp(name + n - suffix, SUFFIX) != 0)
        return false;
    char body[sizeof(out->file)];
    snprintf(body, sizeof(body), "%.*s", (int)(n - prefix - suffix), name + prefix);
    out->left = -1;
    char *plus = strchr(body, '+');
    if (plus) {
        *plus = '\0';
        size_t digits = strspn(plus + 1, "0123456789");
        if (digits == 0 || digits > 4 || (plus[1 + digits] && plus[1 + digits] != '-'))
            return false;
        out->left = 0;
        for (size_t i = 0; i < digits; i++)
            out->left = out->left * 10 + (plus[1 + i] - '0');
    }
    if (!hx_version_valid(body))
        return false;
    snprintf(out->version, sizeof(out->version), "%s", body);
    snprintf(out->file, sizeof(out->file), "%s", name);
    return true;
}

static int open_folder(const char *esp, int *out, struct hx_error *err)
{
    char path[HX_DISK_PATH];
    if (snprintf(path, sizeof(path), "%s/" FOLDER, esp) >= (int)sizeof(path))
        return hx_fail(err, -ENAMETOOLONG, "%.80s...: path is too long", esp);
    *out = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out < 0 ? hx_fail_errno(err, errno, "%s: the ESP", path) : 0;
}

int hx_kernels_list(const char *esp, struct hx_kernels *out, struct hx_error *err)
{
    int fd;
    struct stat st;
    int r = open_folder(esp, &fd, err);
    if (r < 0)
        return r;
    DIR *d = fdopendir(fd);
    if (!d) {
        r = hx_fail_errno(err, errno, "%s: the ESP", esp);
        close(fd);
        return r;
    }
    out->n = 0;
    for (struct dirent *e = readdir(d); r == 0 && e; e = readdir(d)) {
        struct hx_kernel k;
        if (!hx_kernel_parse(e->d_name, &k) ||
            fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        k.n_bytes = (uint64_t)st.st_size;
        /* What a power cut in the middle of a rename can leave on FAT; the boot loader passes it
         * over. */
        if (!k.n_bytes)
            k.left = 0;
        if (out->n == HX_KERNELS_MAX)
            r = hx_fail(err, -EFBIG, "%s: more than %d kernel images", esp, HX_KERNELS_MAX);
        else
            out->image[out->n++] = k;
    }
    closedir(d);
    return r;
}

const struct hx_kernel *hx_kernels_find(const struct hx_kernels *list, const char *version)
{
    const struct hx_kernel *best = NULL;
    for (int i = 0; i < list->n; i++) {
        const struct hx_kernel *k = &list->image[i];
        if (hx_version_compare(k->version, version) == 0 &&
            (!best || (best->left >= 0 && (k->left < 0 || k->left > best->left))))
            best = k;
    }
    return best;
}

static int announce(const struct hx_disk_watch *watch, const char *file, struct hx_error *err)
{
    struct hx_disk_event e = {HX_DISK_FILE, file, 0, NULL, 0};
    return hx_disk_announce(watch, &e, err);
}

static int sync_folder(int fd, const struct hx_disk_watch *watch, struct hx_error *err)
{
    int r = announce(watch, FOLDER, err);
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(err, errno, FOLDER ": cannot sync");
    return r;
}

/* A new name on FAT has neither size nor clusters until the file itself is synced: the folder's own
 * sync leaves an empty file behind. */
static int sync_entry(int folder, const char *file, struct hx_error *err)
{
    int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int r = 0;
    if (fd < 0 || fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "ESP: %s: cannot sync", file);
    if (fd >= 0)
        close(fd);
    return r;
}

int hx_kernels_remove(const char *esp, const char *file, const struct hx_disk_watch *watch,
                      struct hx_error *err)
{
    int fd;
    int r = open_folder(esp, &fd, err);
    if (r < 0)
        return r;
    r = announce(watch, file, err);
    if (r == 0 && unlinkat(fd, file, 0) < 0 && errno != ENOENT)
        r = hx_fail_errno(err, errno, "%s: cannot remove it from the ESP", file);
    if (r == 0)
        r = sync_folder(fd, watch, err);
    close(fd);
    return r;
}

int hx_kernels_rename(const char *esp, const char *from, const char *to,
                      const struct hx_disk_watch *watch, struct hx_error *err)
{
    int fd;
    int r = open_folder(esp, &fd, err);
    if (r < 0)
        return r;
    r = announce(watch, to, err);
    if (r == 0 && renameat(fd, from, fd, to) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot be renamed to %s", from, to);
    if (r == 0)
        r = sync_entry(fd, to, err);
    if (r == 0)
        r = sync_folder(fd, watch, err);
    close(fd);
    return r;
}

static int copy(int to, const struct hx_disk *from, uint64_t offset, uint64_t n_bytes,
                const char *sha256, const struct hx_disk_watch *watch, struct hx_error *err)
{
    uint8_t *buf = malloc(HX_DISK_CHUNK), digest[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    struct hx_sha256 *h = NULL;
    int r = buf ? hx_sha256_new(&h, err) : hx_fail(err, -ENOMEM, "out of memory for the ESP");
    for (uint64_t at = 0; r == 0 && at < n_bytes;) {
        size_t n = n_bytes - at < HX_DISK_CHUNK ? (size_t)(n_bytes - at) : HX_DISK_CHUNK;
        r = hx_disk_read(from, buf, n, offset + at, err);
        if (r == 0)
            r = announce(watch, FRESH, err);
        if (r == 0)
            r = hx_file_pwrite(to, "ESP: " FRESH, buf, n, at, err);
        if (r == 0)
            r = hx_sha256_update(h, buf, n);
        at += n;
    }
    if (r == 0)
        r = hx_sha256_final(h, digest);
    if (r == 0) {
        hx_sha256_to_hex(digest, hex);
        if (strcmp(hex, sha256) != 0)
            r = hx_fail(err, -EBADMSG, "the kernel image changed while it was copied");
    }
    hx_sha256_free(h);
    free(buf);
    return r;
}

/* Whether a file of that size may share its clusters with a kernel image: on FAT a change of names
 * that was cut off leaves both names, and removing one would take the data from the other. */
static bool is_shared(const struct hx_kernels *list, uint64_t n_bytes)
{
    for (int i = 0; i < list->n; i++)
        if (n_bytes && list->image[i].n_bytes == n_bytes)
            return true;
    return false;
}

/* A new file under the first name that is free. What an earlier update left half copied goes. */
static int open_fresh(int folder, const struct hx_kernels *list, char name[FRESH_SIZE],
                      struct hx_error *err)
{
    struct stat st;
    for (int i = 0; i < STALE; i++) {
        snprintf(name, FRESH_SIZE, i ? FRESH "%d" : FRESH, i);
        if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            (is_shared(list, (uint64_t)st.st_size) || unlinkat(folder, name, 0) < 0))
            continue;
        int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        return fd < 0 ? hx_fail_errno(err, errno, "ESP: cannot make %s", name) : fd;
    }
    return hx_fail(err, -ENOSPC,
                   "ESP: no free name of " FOLDER "/" FRESH "; check it with fsck.vfat");
}

int hx_kernels_put(const char *esp, const char *file, const struct hx_disk *from, uint64_t offset,
                   uint64_t n_bytes, const char *sha256, const struct hx_disk_watch *watch,
                   struct hx_error *err)
{
    int folder, fd = -1;
    char fresh[FRESH_SIZE] = FRESH;
    struct hx_kernels *list = calloc(1, sizeof(*list));
    int r = list ? hx_kernels_list(esp, list, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = open_folder(esp, &folder, err);
    if (r < 0) {
        free(list);
        return r;
    }
    r = announce(watch, FRESH, err);
    if (r == 0)
        fd = open_fresh(folder, list, fresh, err);
    if (r == 0 && fd < 0)
        r = fd;
    if (r == 0)
        r = copy(fd, from, offset, n_bytes, sha256, watch, err);
    if (r == 0)
        r = announce(watch, FRESH, err);
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "ESP: " FRESH ": cannot sync");
    if (fd >= 0)
        close(fd);
    if (r == 0)
        r = sync_folder(folder, watch, err);
    close(folder);
    free(list);
    return r < 0 ? r : hx_kernels_rename(esp, fresh, file, watch, err);
}

int hx_kernels_room(const char *esp, const struct hx_kernels *list, const char *keep,
                    uint64_t n_bytes, struct hx_error *err)
{
    struct statvfs vfs;
    if (statvfs(esp, &vfs) < 0)
        return hx_fail_errno(err, errno, "%s: the ESP", esp);
    if (vfs.f_flag & ST_RDONLY)
        return hx_fail(err, -EROFS,
                       "%s: the ESP is mounted read-only (a damaged file system?); check it with "
                       "fsck.vfat",
                       esp);
    uint64_t room = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    for (int i = 0; i < list->n; i++)
        if (hx_version_compare(list->image[i].version, keep) != 0)
            room += list->image[i].n_bytes;
    if (room < n_bytes + SPARE)
        return hx_fail(err, -ENOSPC,
                       "%s: the ESP has room for %llu bytes, the new kernel image has %llu; remove "
                       "files from it",
                       esp, (unsigned long long)room, (unsigned long long)n_bytes);
    return 0;
}
