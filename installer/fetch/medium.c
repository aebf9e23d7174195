#include "fetch/medium.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_TYPES 64

/* File systems that a stick or drive may have; what the kernel lists comes after them. */
static const char *const usual_types[] = {"ext4", "exfat", "ntfs3", "vfat", "xfs", "btrfs"};

static int try_type(const char *device, const char *to, const char *type)
{
    return mount(device, to, type, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 ? -errno
                                                                                           : 0;
}

static int try_kernel_types(const char *device, const char *to)
{
    char line[128], type[64];
    int r = -ENODEV;
    FILE *f = fopen("/proc/filesystems", "re");
    if (!f)
        return r;
    for (int n = 0; r < 0 && n < MAX_TYPES && fgets(line, sizeof(line), f); n++) {
        if (strncmp(line, "nodev", 5) != 0 && sscanf(line, " %63s", type) == 1)
            r = try_type(device, to, type);
    }
    fclose(f);
    return r;
}

static int mount_device(const char *path, struct hx_medium *m, struct hx_error *err)
{
    char to[] = "/tmp/hx-medium-XXXXXX";
    /* Nobody else sees the mount, and it goes when this process ends. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return hx_fail_errno(err, errno,
                             "%s: a device can be imported by root alone; mount it and "
                             "name the folder instead",
                             path);
    if (!mkdtemp(to))
        return hx_fail_errno(err, errno, "%s: cannot make a mount point", path);
    int r = -ENODEV;
    for (size_t i = 0; r < 0 && i < sizeof(usual_types) / sizeof(usual_types[0]); i++)
        r = try_type(path, to, usual_types[i]);
    if (r < 0)
        r = try_kernel_types(path, to);
    if (r < 0) {
        rmdir(to);
        return hx_fail(err, -EINVAL,
                       "%s: no file system that can be read (ext4, exFAT and NTFS can); name the "
                       "partition, not the whole drive",
                       path);
    }
    snprintf(m->mounted, sizeof(m->mounted), "%s", to);
    return 0;
}

int hx_medium_open(const char *path, struct hx_medium *out, struct hx_error *err)
{
    struct hx_medium m = HX_MEDIUM_INIT;
    struct stat st;
    struct statfs fs;
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    if (!S_ISDIR(st.st_mode) && !S_ISBLK(st.st_mode))
        return hx_fail(err, -EINVAL, "%s: is neither a folder nor a block device", path);
    m.path = strdup(path);
    int r = m.path ? 0 : hx_fail(err, -ENOMEM, "%s: out of memory", path);
    if (r == 0 && S_ISBLK(st.st_mode))
        r = mount_device(path, &m, err);
    if (r == 0) {
        m.fd = open(*m.mounted ? m.mounted : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (m.fd < 0)
            r = hx_fail_errno(err, errno, "%s: cannot open", path);
    }
    if (r < 0) {
        hx_medium_close(&m);
        return r;
    }
    if (fstatfs(m.fd, &fs) == 0)
        m.fat = (unsigned long)fs.f_type == MSDOS_SUPER_MAGIC;
    *out = m;
    return 0;
}

void hx_medium_close(struct hx_medium *m)
{
    if (m->fd >= 0)
        close(m->fd);
    if (*m->mounted) {
        umount2(m->mounted, MNT_DETACH);
        rmdir(m->mounted);
    }
    free(m->path);
    *m = HX_MEDIUM_INIT;
}

/* A regular file of the size, or why not. */
static int try_name(const struct hx_medium *m, const char *name, uint64_t size, int *fd, char *seen,
                    size_t n_seen)
{
    struct stat st;
    int f = hx_file_open_beneath(m->fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (f < 0) {
        if (errno == ELOOP)
            snprintf(seen, n_seen, "%s is reached by a symbolic link, which is not followed", name);
        else if (errno != ENOENT && errno != ENOTDIR)
            snprintf(seen, n_seen, "%s: %s", name, strerror(errno));
        return -ENOENT;
    }
    if (fstat(f, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size) {
        *fd = f;
        return 0;
    }
    if (S_ISREG(st.st_mode))
        snprintf(seen, n_seen, "%s has %lld bytes, %llu are expected", name, (long long)st.st_size,
                 (unsigned long long)size);
    close(f);
    return -ENOENT;
}

int hx_medium_find(const struct hx_medium *m, const struct hx_plan_file *file, int *fd,
                   enum hx_medium_form *form, struct hx_error *err)
{
    const char *path = file->lock->path, *repo = file->source->repo;
    const char *slash = strrchr(repo, '/'), *name = slash ? slash + 1 : repo;
    const char *folder[] = {file->source->id, name, repo};
    char at[1024], seen[512] = "";
    for (size_t i = 0; i < sizeof(folder) / sizeof(folder[0]); i++) {
        snprintf(at, sizeof(at), "%s/%s", folder[i], path);
        if (try_name(m, at, file->lock->size, fd, seen, sizeof(seen)) == 0) {
            *form = HX_MEDIUM_SOURCE;
            return 0;
        }
    }
    if (try_name(m, path, file->lock->size, fd, seen, sizeof(seen)) == 0) {
        *form = HX_MEDIUM_SOURCE;
        return 0;
    }
    if (try_name(m, file->lock->out, file->out_bytes, fd, seen, sizeof(seen)) == 0) {
        *form = HX_MEDIUM_OUTPUT;
        return 0;
    }
    if (*seen)
        return hx_fail(err, -ENOENT, "%s: not on %s: %s", file->lock->out, m->path, seen);
    if (m->fat && file->lock->size > UINT32_MAX)
        return hx_fail(err, -ENOENT,
                       "%s: not on %s, and cannot be: FAT32 holds files below 4 GiB alone; use "
                       "exFAT, NTFS or ext4",
                       file->lock->out, m->path);
    return hx_fail(err, -ENOENT, "%s: not on %s", file->lock->out, m->path);
}
