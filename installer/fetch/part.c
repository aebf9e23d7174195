#include "fetch/part.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fetch/step.h"

void hx_part_device(int fd, char *out, size_t n)
{
    struct stat st;
    char link[64], target[PATH_MAX];
    if (fstat(fd, &st) < 0) {
        snprintf(out, n, "unknown device");
        return;
    }
    snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
    ssize_t len = readlink(link, target, sizeof(target) - 1);
    const char *name = NULL;
    if (len > 0) {
        target[len] = '\0';
        name = strrchr(target, '/');
    }
    snprintf(out, n, "%s%s(%u:%u)", name ? name + 1 : "device", " ", major(st.st_dev),
             minor(st.st_dev));
}

static int reserve(struct hx_part *p, uint64_t n_bytes, struct hx_error *err)
{
    struct stat st;
    if (fstat(p->fd, &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", p->path);
    if (!S_ISREG(st.st_mode))
        return hx_fail(err, -EINVAL, "%s: is not a regular file", p->path);
    if ((uint64_t)st.st_size != n_bytes && ftruncate(p->fd, (off_t)n_bytes) < 0)
        return hx_fail_errno(err, errno, "%s: cannot be made %llu bytes long", p->path,
                             (unsigned long long)n_bytes);
    p->reserved = true;
    if (n_bytes == 0)
        return 0;
    int r;
    do
        r = fallocate(p->fd, 0, 0, (off_t)n_bytes);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return hx_fail_errno(err, errno, "%s: cannot reserve %llu bytes on %s", p->path,
                             (unsigned long long)n_bytes, p->device);
    p->reserved = false;
    return 0;
}

static int open_part(const char *path, int flags, bool direct, struct hx_part *p,
                     struct hx_error *err)
{
    *p = HX_PART_INIT;
    p->path = strdup(path);
    if (!p->path)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    p->fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (p->fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    hx_part_device(p->fd, p->device, sizeof(p->device));
    if (direct)
        p->fd_direct = open(path, (flags & ~O_CREAT) | O_CLOEXEC | O_NOFOLLOW | O_DIRECT);
    atomic_init(&p->direct, p->fd_direct >= 0);
    return 0;
}

int hx_part_open(const char *path, uint64_t n_bytes, bool direct, struct hx_part *out,
                 struct hx_error *err)
{
    struct hx_part p;
    int r = open_part(path, O_RDWR | O_CREAT, direct, &p, err);
    if (r == 0)
        r = reserve(&p, n_bytes, err);
    if (r < 0) {
        hx_part_close(&p);
        return r;
    }
    *out = p;
    return 0;
}

int hx_part_open_read(const char *path, bool direct, struct hx_part *out, struct hx_error *err)
{
    struct hx_part p;
    int r = open_part(path, O_RDONLY, direct, &p, err);
    if (r < 0) {
        hx_part_close(&p);
        return r;
    }
    *out = p;
    return 0;
}

void hx_part_close(struct hx_part *part)
{
    if (part->fd >= 0)
        close(part->fd);
    if (part->fd_direct >= 0)
        close(part->fd_direct);
    free(part->path);
    *part = HX_PART_INIT;
}

static int io_error(struct hx_error *err, const struct hx_part *p, int e, const char *what,
                    uint64_t offset)
{
    return hx_fail_errno(err, e, "%s: %s at offset %llu of %s", p->path, what,
                         (unsigned long long)offset, p->device);
}

/* Length of the first piece at this place, and through which descriptor it goes. */
static size_t piece(struct hx_part *p, const uint8_t *data, size_t n, uint64_t offset, int *fd)
{
    *fd = p->fd;
    if (!atomic_load_explicit(&p->direct, memory_order_relaxed))
        return n;
    size_t head = (size_t)(-offset % HX_PART_ALIGN);
    if (head > 0)
        return head < n ? head : n;
    if (n < HX_PART_ALIGN || (uintptr_t)data % HX_PART_ALIGN != 0)
        return n;
    *fd = p->fd_direct;
    return n - n % HX_PART_ALIGN;
}

int hx_part_write(struct hx_part *part, const uint8_t *data, size_t n, uint64_t offset,
                  struct hx_error *err)
{
    while (n > 0) {
        int fd;
        size_t len = piece(part, data, n, offset, &fd);
        ssize_t done = pwrite(fd, data, len, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && fd == part->fd_direct && errno == EINVAL) {
            atomic_store(&part->direct, false);
            continue;
        }
        if (done < 0)
            return io_error(err, part, errno, "writing", offset);
        if (done == 0)
            return io_error(err, part, EIO, "nothing was written", offset);
        if (fd == part->fd) /* starts the write-out now, so that the sync has little left to do */
            sync_file_range(fd, (off_t)offset, done, SYNC_FILE_RANGE_WRITE);
        data += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    hx_fetch_step("data written");
    return 0;
}

int hx_part_read(struct hx_part *part, uint8_t *data, size_t n, uint64_t offset,
                 struct hx_error *err)
{
    while (n > 0) {
        int fd;
        size_t len = piece(part, data, n, offset, &fd);
        ssize_t done = pread(fd, data, len, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && fd == part->fd_direct && errno == EINVAL) {
            atomic_store(&part->direct, false);
            continue;
        }
        if (done < 0)
            return io_error(err, part, errno, "reading", offset);
        if (done == 0)
            return hx_fail(err, -EIO, "%s: ends at offset %llu, more was expected", part->path,
                           (unsigned long long)offset);
        data += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 0;
}

int hx_part_sync(struct hx_part *part, struct hx_error *err)
{
    if (fdatasync(part->fd) < 0)
        return io_error(err, part, errno, "syncing", 0);
    hx_fetch_step("data synced");
    return 0;
}

void hx_part_forget(const struct hx_part *part, uint64_t offset, uint64_t n)
{
    posix_fadvise(part->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED);
}

int hx_folder_sync(const char *path, struct hx_error *err)
{
    int r = 0, fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync the folder", path);
    if (fd >= 0)
        close(fd);
    return r;
}

int hx_folder_make_for(const char *path, struct hx_error *err)
{
    char *copy = strdup(path);
    if (!copy)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    int r = 0;
    for (char *s = strchr(copy + 1, '/'); r == 0 && s; s = strchr(s + 1, '/')) {
        *s = '\0';
        if (mkdir(copy, 0755) == 0) {
            char *parent = strdup(copy);
            if (!parent)
                r = hx_fail(err, -ENOMEM, "%s: out of memory", path);
            else
                r = hx_folder_sync(dirname(parent), err);
            free(parent);
        } else if (errno != EEXIST) {
            r = hx_fail_errno(err, errno, "%s: cannot make the folder", copy);
        }
        *s = '/';
    }
    free(copy);
    return r;
}
