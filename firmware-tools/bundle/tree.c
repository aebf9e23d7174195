/* Work on folder trees by descriptors. */
#include "bundle/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"

#define PATH_MAX_BYTES 1024
#define MAX_DEPTH      40
#define COPY_BYTES     (128u << 10)

/* The folder that holds the last component; *name is that component. */
static int open_parent(int dir, const char *path, bool make, int *parent, const char **name,
                       struct hx_error *err)
{
    int at = fcntl(dir, F_DUPFD_CLOEXEC, 3);
    if (at < 0)
        return hx_fail_errno(err, errno, "%s: cannot open its folder", path);
    const char *p = path;
    for (const char *slash = strchr(p, '/'); slash; slash = strchr(p, '/')) {
        char part[256];
        size_t len = (size_t)(slash - p);
        if (len == 0 || len >= sizeof(part)) {
            close(at);
            return hx_fail(err, -EINVAL, "%s: not a usable path", path);
        }
        memcpy(part, p, len);
        part[len] = '\0';
        if (make && mkdirat(at, part, 0755) < 0 && errno != EEXIST) {
            int e = errno;
            close(at);
            return hx_fail_errno(err, e, "%s: cannot make folder %s", path, part);
        }
        int sub = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int e = errno;
        close(at);
        if (sub < 0)
            return hx_fail_errno(err, e, "%s: cannot open folder %s", path, part);
        at = sub;
        p = slash + 1;
    }
    *parent = at;
    *name = p;
    return 0;
}

int hx_tree_folder(int dir, const char *path, int *fd, struct hx_error *err)
{
    const char *name;
    int parent, r = open_parent(dir, path, true, &parent, &name, err);
    if (r < 0)
        return r;
    if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
        r = hx_fail_errno(err, errno, "%s: cannot make the folder", path);
    if (r == 0) {
        int got = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (got < 0)
            r = hx_fail_errno(err, errno, "%s: cannot open the folder", path);
        else
            *fd = got;
    }
    close(parent);
    return r;
}

int hx_tree_create(int dir, const char *path, mode_t mode, int *fd, struct hx_error *err)
{
    const char *name;
    int parent, r = open_parent(dir, path, true, &parent, &name, err);
    if (r < 0)
        return r;
    int got = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (got < 0)
        r = hx_fail_errno(err, errno, "%s: cannot create", path);
    else if (fchmod(got, mode) < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot set its mode", path);
        close(got);
    } else
        *fd = got;
    close(parent);
    return r;
}

int hx_tree_write(int fd, const char *path, const void *data, size_t len, struct hx_error *err)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hx_fail_errno(err, errno, "%s: cannot write", path);
        done += (size_t)n;
    }
    return 0;
}

int hx_tree_finish(int fd, const char *path, struct hx_error *err)
{
    int r = 0;
    if (fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot write to the disk", path);
    if (close(fd) < 0 && r == 0)
        r = hx_fail_errno(err, errno, "%s: cannot close", path);
    return r;
}

int hx_tree_open(int dir, const char *path, int *fd, struct hx_error *err)
{
    struct stat st;
    int got = hx_file_open_beneath(dir, path, O_RDONLY | O_NONBLOCK);
    if (got < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    if (fstat(got, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(got);
        return hx_fail(err, -EINVAL, "%s: is not a plain file", path);
    }
    *fd = got;
    return 0;
}

static int read_some(int fd, const char *path, void *buf, size_t len, size_t *n,
                     struct hx_error *err)
{
    for (;;) {
        ssize_t got = read(fd, buf, len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return hx_fail_errno(err, errno, "%s: cannot read", path);
        *n = (size_t)got;
        return 0;
    }
}

/* From the file's position to its end; to = -1: only hashed. */
static int pump(int fd, const char *path, int to, const char *to_path, char hex[65], uint64_t *size,
                struct hx_error *err)
{
    struct hx_sha256 *hash = NULL;
    uint8_t digest[HX_SHA256_BYTES], *buf = malloc(COPY_BYTES);
    uint64_t total = 0;
    int r = buf ? hx_sha256_new(&hash, err) : hx_fail(err, -ENOMEM, "%s: out of memory", path);
    for (size_t n = 1; r == 0 && n;) {
        r = read_some(fd, path, buf, COPY_BYTES, &n, err);
        if (r < 0 || n == 0)
            break;
        total += n;
        hx_sha256_update(hash, buf, n);
        if (to >= 0)
            r = hx_tree_write(to, to_path, buf, n, err);
    }
    if (r == 0 && hx_sha256_final(hash, digest) < 0)
        r = hx_fail(err, -ENOMEM, "%s: cannot hash", path);
    if (r == 0 && hex)
        hx_sha256_to_hex(digest, hex);
    if (r == 0 && size)
        *size = total;
    hx_sha256_free(hash);
    free(buf);
    return r;
}

int hx_tree_hash(int fd, const char *path, char hex[65], uint64_t *size, struct hx_error *err)
{
    if (lseek(fd, 0, SEEK_SET) < 0)
        return hx_fail_errno(err, errno, "%s: cannot read", path);
    return pump(fd, path, -1, NULL, hex, size, err);
}

int hx_tree_copy(int from_dir, const char *from, int to_dir, const char *to, mode_t mode, char *hex,
                 uint64_t *size, struct hx_error *err)
{
    int in = -1, out = -1, r = hx_tree_open(from_dir, from, &in, err);
    if (r < 0)
        return r;
    r = hx_tree_create(to_dir, to, mode, &out, err);
    if (r == 0) {
        r = pump(in, from, out, to, hex, size, err);
        int closed = hx_tree_finish(out, to, r == 0 ? err : NULL);
        r = r < 0 ? r : closed;
    }
    close(in);
    return r;
}

int hx_tree_put(int dir, const char *path, const void *data, size_t len, struct hx_error *err)
{
    int fd, r = hx_tree_create(dir, path, 0644, &fd, err);
    if (r < 0)
        return r;
    r = hx_tree_write(fd, path, data, len, err);
    int closed = hx_tree_finish(fd, path, r == 0 ? err : NULL);
    return r < 0 ? r : closed;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int remove_in(int dir, const char *name, int depth, struct hx_error *err)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : hx_fail_errno(err, errno, "%s: cannot remove", name);
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
            return hx_fail_errno(err, errno, "%s: cannot remove", name);
        return 0;
    }
    if (depth > MAX_DEPTH)
        return hx_fail(err, -ELOOP, "%s: folders are too deep to remove", name);
    int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0)
        return hx_fail_errno(err, errno, "%s: cannot open for removal", name);
    struct dirent **list = NULL;
    int n = scandirat(sub, ".", &list, not_dots, by_name), r = 0;
    if (n < 0)
        r = hx_fail_errno(err, errno, "%s: cannot list", name);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = remove_in(sub, list[i]->d_name, depth + 1, err);
        free(list[i]);
    }
    free(list);
    close(sub);
    if (r == 0 && unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        r = hx_fail_errno(err, errno, "%s: cannot remove", name);
    return r;
}

int hx_tree_remove(int dir, const char *name, struct hx_error *err)
{
    return remove_in(dir, name, 0, err);
}

/* One visitor for walking and syncing: fn NULL only syncs the folders. */
static int walk_in(int dir, const char *prefix, int depth, hx_tree_fn fn, void *ctx,
                   struct hx_error *err)
{
    struct dirent **list = NULL;
    int n = scandirat(dir, ".", &list, not_dots, by_name), r = 0;
    if (n < 0)
        r = hx_fail_errno(err, errno, "%s: cannot list", prefix[0] ? prefix : ".");
    else if (depth > MAX_DEPTH)
        r = hx_fail(err, -ELOOP, "%s: folders are too deep", prefix);
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX_BYTES];
        struct stat st = {.st_mode = 0};
        const char *name = list[i]->d_name;
        int len = snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] ? "/" : "", name), fd;
        if (r == 0 && (len < 0 || (size_t)len >= sizeof(path)))
            r = hx_fail(err, -ENAMETOOLONG, "%s: a path below it is too long", prefix);
        if (r == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            r = hx_fail_errno(err, errno, "%s: cannot stat", path);
        bool folder = S_ISDIR(st.st_mode), file = S_ISREG(st.st_mode);
        if (r == 0 && !folder && !file && fn)
            r = hx_fail(err, -EINVAL, "%s: is neither a plain file nor a folder", path);
        if (r == 0 && (folder || (file && fn))) {
            fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
            if (fd < 0) {
                r = hx_fail_errno(err, errno, "%s: cannot open", path);
            } else {
                r = folder ? walk_in(fd, path, depth + 1, fn, ctx, err) : fn(ctx, path, fd, err);
                close(fd);
            }
        }
        free(list[i]);
    }
    free(list);
    if (r == 0 && !fn && fsync(dir) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot write to the disk", prefix);
    return r;
}

int hx_tree_walk(int dir, hx_tree_fn fn, void *ctx, struct hx_error *err)
{
    return walk_in(dir, "", 0, fn, ctx, err);
}

int hx_tree_sync(int dir, const char *name, struct hx_error *err)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", name);
    int r = walk_in(fd, name, 0, NULL, NULL, err);
    close(fd);
    if (r == 0 && fsync(dir) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot write to the disk", name);
    return r;
}
