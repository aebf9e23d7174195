#include "disk/io.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static int measure(struct hx_disk *d, unsigned sector, struct hx_error *err)
{
    struct stat st;
    if (fstat(d->fd, &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", d->path);
    if (S_ISREG(st.st_mode)) {
        d->n_bytes = (uint64_t)st.st_size;
        d->sector = sector ? sector : 512;
    } else if (S_ISBLK(st.st_mode)) {
        int bytes;
        d->is_device = true;
        if (ioctl(d->fd, BLKGETSIZE64, &d->n_bytes) < 0 || ioctl(d->fd, BLKSSZGET, &bytes) < 0)
            return hx_fail_errno(err, errno, "%s: cannot ask for size and sectors", d->path);
        d->sector = bytes > 0 ? (unsigned)bytes : 0;
    } else {
        return hx_fail(err, -EINVAL, "%s: neither a disk nor an image file", d->path);
    }
    if (d->sector != 512 && d->sector != 4096)
        return hx_fail(err, -EINVAL, "%s: sectors of %u bytes; 512 and 4096 are known", d->path,
                       d->sector);
    return 0;
}

int hx_disk_open(const char *path, enum hx_disk_mode mode, unsigned sector, struct hx_disk *out,
                 struct hx_error *err)
{
    struct hx_disk d = {0};
    struct stat st;
    if (strlen(path) >= sizeof(d.path))
        return hx_fail(err, -ENAMETOOLONG, "%.80s...: path is too long", path);
    snprintf(d.path, sizeof(d.path), "%s", path);
    int flags = O_CLOEXEC | O_NONBLOCK | (mode == HX_DISK_READ ? O_RDONLY : O_RDWR);
    /* On a block device this asks the kernel for it alone. */
    if (mode == HX_DISK_ALONE && stat(path, &st) == 0 && S_ISBLK(st.st_mode))
        flags |= O_EXCL;
    d.fd = open(path, flags);
    if (d.fd < 0 && errno == EBUSY)
        return hx_fail(err, -EBUSY, "%s: is in use: something of it is mounted or part of an array",
                       path);
    if (d.fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    int r = measure(&d, sector, err);
    if (r < 0) {
        close(d.fd);
        return r;
    }
    *out = d;
    return 0;
}

void hx_disk_close(struct hx_disk *d)
{
    if (!d || d->fd < 0)
        return;
    close(d->fd);
    d->fd = -1;
}

int hx_disk_read(const struct hx_disk *d, void *to, size_t len, uint64_t offset,
                 struct hx_error *err)
{
    return hx_file_pread(d->fd, d->path, to, len, offset, err);
}

int hx_disk_announce(const struct hx_disk_watch *watch, const struct hx_disk_event *event,
                     struct hx_error *err)
{
    return watch && watch->before ? watch->before(watch->ctx, event, err) : 0;
}

int hx_disk_write(struct hx_disk *d, const void *data, size_t len, uint64_t offset,
                  struct hx_error *err)
{
    if (offset > d->n_bytes || len > d->n_bytes - offset)
        return hx_fail(err, -ENOSPC, "%s: %zu bytes at offset %llu lie beyond its end", d->path,
                       len, (unsigned long long)offset);
    struct hx_disk_event e = {HX_DISK_WRITE, d->path, offset, data, len};
    int r = hx_disk_announce(d->watch, &e, err);
    return r < 0 ? r : hx_file_pwrite(d->fd, d->path, data, len, offset, err);
}

int hx_disk_zero(struct hx_disk *d, uint64_t offset, uint64_t len, struct hx_error *err)
{
    static const uint8_t zero[HX_DISK_CHUNK];
    while (len > 0) {
        size_t n = len < sizeof(zero) ? (size_t)len : sizeof(zero);
        int r = hx_disk_write(d, zero, n, offset, err);
        if (r < 0)
            return r;
        offset += n;
        len -= n;
    }
    return 0;
}

int hx_disk_flush(struct hx_disk *d, struct hx_error *err)
{
    struct hx_disk_event e = {HX_DISK_FLUSH, d->path, 0, NULL, 0};
    int r = hx_disk_announce(d->watch, &e, err);
    if (r == 0 && fsync(d->fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot flush", d->path);
    return r;
}

void hx_disk_forget(const struct hx_disk *d)
{
    posix_fadvise(d->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (d->is_device)
        ioctl(d->fd, BLKFLSBUF, 0);
}

void hx_disk_reread(const struct hx_disk *d)
{
    if (d->is_device)
        ioctl(d->fd, BLKRRPART, 0);
}
