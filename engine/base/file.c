/* Files: whole reads with a limit, positioned reads and writes, atomic replacement. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_part(int at, const char *part, int flags)
{
    int fd = openat(at, part, flags | O_NOFOLLOW | O_CLOEXEC);
    int e = errno;
    struct stat st;
    /* Of a link where a folder has to be the kernel says that it is none. */
    if (fd < 0 && e == ENOTDIR && fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISLNK(st.st_mode))
        e = ELOOP;
    errno = e;
    return fd;
}

int hx_file_open_beneath(int dir, const char *path, int flags)
{
    int at = dir;
    if (*path == '/') {
        errno = EINVAL;
        return -1;
    }
    for (;;) {
        char part[NAME_MAX + 1];
        size_t len = strcspn(path, "/");
        bool last = !path[len];
        int fd = -1, e = EINVAL;
        if (len < sizeof(part) && !(len == 2 && path[0] == '.' && path[1] == '.')) {
            memcpy(part, path, len);
            part[len] = '\0';
            fd = open_part(at, len ? part : ".", last ? flags : O_PATH | O_DIRECTORY);
            e = errno;
        }
        if (at != dir)
            close(at);
        if (fd < 0 || last) {
            errno = e;
            return fd;
        }
        at = fd;
        path += len + 1;
    }
}

int hx_file_pread(int fd, const char *path, void *buf, size_t len, uint64_t offset,
                  struct hx_error *err)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, (uint8_t *)buf + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hx_fail_errno(err, errno, "%s: reading %zu bytes at offset %llu", path, len,
                                 (unsigned long long)offset);
        if (n == 0)
            return hx_fail(
                err, -EIO,
                "%s: file ends after %zu of %zu bytes wanted at offset %llu (truncated?)", path,
                done, len, (unsigned long long)offset);
        done += (size_t)n;
    }
    return 0;
}

int hx_file_pwrite(int fd, const char *path, const void *buf, size_t len, uint64_t offset,
                   struct hx_error *err)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(fd, (const uint8_t *)buf + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hx_fail_errno(err, errno, "%s: writing %zu bytes at offset %llu", path, len,
                                 (unsigned long long)offset);
        done += (size_t)n;
    }
    return 0;
}

int hx_file_read(const char *path, size_t max, char **out, size_t *len, struct hx_error *err)
{
    int r = 0;
    char *data = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot stat", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        r = hx_fail(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, "%s: is not a regular file",
                    path);
        goto out;
    }
    if ((uint64_t)st.st_size > max) {
        r = hx_fail(err, -EFBIG, "%s: %llu bytes, at most %zu are allowed", path,
                    (unsigned long long)st.st_size, max);
        goto out;
    }
    data = malloc((size_t)st.st_size + 1);
    if (!data) {
        r = hx_fail(err, -ENOMEM, "%s: out of memory for %llu bytes", path,
                    (unsigned long long)st.st_size);
        goto out;
    }
    r = hx_file_pread(fd, path, data, (size_t)st.st_size, 0, err);
    if (r < 0)
        goto out;
    data[st.st_size] = '\0';
    *out = data;
    *len = (size_t)st.st_size;
    data = NULL;
out:
    free(data);
    close(fd);
    return r;
}

char *hx_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name) < 0)
        return NULL;
    return path;
}

static int sync_folder_of(const char *path, struct hx_error *err)
{
    char *copy = strdup(path);
    if (!copy)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    int r = 0;
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync its folder", path);
    if (fd >= 0)
        close(fd);
    free(copy);
    return r;
}

int hx_file_replace(const char *path, const void *data, size_t len, struct hx_error *err)
{
    char *tmp = NULL;
    if (asprintf(&tmp, "%s.new", path) < 0)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    int r = 0;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot create", tmp);
        goto out;
    }
    r = hx_file_pwrite(fd, tmp, data, len, 0, err);
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync", tmp);
    if (close(fd) < 0 && r == 0)
        r = hx_fail_errno(err, errno, "%s: cannot close", tmp);
    if (r == 0 && rename(tmp, path) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot rename to %s", tmp, path);
    if (r == 0)
        r = sync_folder_of(path, err);
    else
        unlink(tmp);
out:
    free(tmp);
    return r;
}
