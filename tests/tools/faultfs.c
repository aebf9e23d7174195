/* A file system that passes a folder through and fails on request: for tests of what happens when a
 * drive does.
 *
 *   faultfs FOLDER CONTROL MOUNTPOINT
 *
 * Runs in the foreground until SIGTERM, SIGINT or `fusermount3 -u MOUNTPOINT`, and unmounts. The
 * mount point is ready when its st_dev differs from its parent's.
 *
 * CONTROL is a small text file, read again at every operation (write it beside and rename it over,
 * so that it is never seen half-written); a missing or empty one means no faults. Whenever its
 * content changes, all counts start again from 0. A line is one fault: an operation, then
 * conditions and effects as key=value; # begins a comment.
 *
 *   operations   open read write fsync meta (create, rename, unlink, mkdir, truncate, ...)
 *                change (write and meta), any
 *   conditions   file=PATTERN  shell pattern for the path below the mount point ("/a/b")
 *                offset=N length=N  reads and writes that touch these bytes
 *                after=N  lets the first N that match through
 *                count=N  strikes N times, then no more
 *                space=N  write: lets N bytes through in all, then strikes (a full disk)
 *   effects      error=NAME  EIO ENODEV ENXIO ENOSPC EROFS EACCES EINVAL EAGAIN ETIMEDOUT ENOENT
 *                            ENODATA
 *                delay=MS  waits first (up to 600000)
 *                short=N  read or write: transfers at most N bytes
 *
 * Examples:
 *   read file=*.safetensors offset=4096 length=4096 error=EIO count=1
 *   any after=100 error=ENODEV
 *   write space=1048576 error=ENOSPC
 *   change error=EROFS
 *   fsync error=EIO
 *
 * Files are opened with direct_io: the kernel keeps no pages, every read and write arrives here.
 * CONTROL with a line that is not understood makes every operation fail with EPROTO, so that a
 * mistyped test fails instead of passing. */
#define FUSE_USE_VERSION  312
#define _FILE_OFFSET_BITS 64
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define MAX_FAULTS  32
#define MAX_CONTROL 8192
#define MAX_PATH    4096
#define MAX_DELAY   600000

enum op {
    OP_OPEN = 1,
    OP_READ = 2,
    OP_WRITE = 4,
    OP_FSYNC = 8,
    OP_META = 16,
};

struct fault {
    int ops;
    char file[256];
    long long offset, length, after, count, space; /* -1: not given */
    long long delay_ms, at_most;
    int error;
    long long n_seen, n_struck, n_bytes;
};

struct verdict {
    int error;
    long long delay_ms, at_most;
};

static struct {
    char root[MAX_PATH], control[MAX_PATH];
    pthread_mutex_t mutex;
    char text[MAX_CONTROL]; /* as last read */
    size_t len;
    struct fault fault[MAX_FAULTS];
    int n_faults;
    bool bad;
} fs = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- control file ---- */

static const struct {
    const char *name;
    int ops;
} op_names[] = {
    {"open", OP_OPEN},   {"read", OP_READ}, {"write", OP_WRITE},
    {"fsync", OP_FSYNC}, {"meta", OP_META}, {"change", OP_WRITE | OP_META},
    {"any", ~0},
};

static const struct {
    const char *name;
    int code;
} error_names[] = {
    {"EIO", EIO},       {"ENODATA", ENODATA}, {"ENODEV", ENODEV},       {"ENXIO", ENXIO},
    {"ENOSPC", ENOSPC}, {"EROFS", EROFS},     {"EACCES", EACCES},       {"EINVAL", EINVAL},
    {"EAGAIN", EAGAIN}, {"ENOENT", ENOENT},   {"ETIMEDOUT", ETIMEDOUT},
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool read_count(const char *text, long long max, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == 0 && errno == 0 && *out >= 0 && *out <= max;
}

static bool read_word(struct fault *f, char *word)
{
    char *value = strchr(word, '=');
    const struct {
        const char *key;
        long long *to, max;
    } numbers[] = {
        {"offset", &f->offset, INT64_MAX}, {"length", &f->length, INT64_MAX},
        {"after", &f->after, INT64_MAX},   {"count", &f->count, INT64_MAX},
        {"space", &f->space, INT64_MAX},   {"delay", &f->delay_ms, MAX_DELAY},
        {"short", &f->at_most, INT64_MAX},
    };
    if (!value)
        return false;
    *value++ = 0;
    for (size_t i = 0; i < COUNT(numbers); i++) {
        if (strcmp(word, numbers[i].key) == 0)
            return read_count(value, numbers[i].max, numbers[i].to);
    }
    if (strcmp(word, "file") == 0)
        return snprintf(f->file, sizeof(f->file), "%s", value) < (int)sizeof(f->file);
    for (size_t i = 0; strcmp(word, "error") == 0 && i < COUNT(error_names); i++) {
        if (strcmp(value, error_names[i].name) == 0) {
            f->error = error_names[i].code;
            return true;
        }
    }
    return false;
}

static bool read_line(char *line)
{
    char *rest = NULL, *hash = strchr(line, '#');
    if (hash)
        *hash = 0;
    char *word = strtok_r(line, " \t\r", &rest);
    if (!word)
        return true;
    if (fs.n_faults == MAX_FAULTS)
        return false;
    struct fault *f = &fs.fault[fs.n_faults];
    *f = (struct fault){
        .offset = -1, .length = -1, .after = -1, .count = -1, .space = -1, .at_most = -1};
    for (size_t i = 0; i < COUNT(op_names); i++) {
        if (strcmp(word, op_names[i].name) == 0)
            f->ops = op_names[i].ops;
    }
    if (f->ops == 0)
        return false;
    while ((word = strtok_r(NULL, " \t\r", &rest))) {
        if (!read_word(f, word))
            return false;
    }
    fs.n_faults++;
    return true;
}

/* With the mutex held. */
static void read_control(void)
{
    char text[MAX_CONTROL];
    int fd = open(fs.control, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    size_t len = n > 0 ? (size_t)n : 0;
    if (len == fs.len && memcmp(text, fs.text, len) == 0)
        return;
    memcpy(fs.text, text, len);
    fs.len = len;
    fs.n_faults = 0;
    fs.bad = false;
    text[len] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (!read_line(line))
            fs.bad = true;
    }
}

/* ---- faults ---- */

static bool matches(const struct fault *f, enum op op, const char *path, long long offset,
                    long long size)
{
    if (!(f->ops & op) || (f->file[0] && fnmatch(f->file, path, 0) != 0))
        return false;
    if (f->offset < 0)
        return true;
    long long length = f->length < 0 ? INT64_MAX - f->offset : f->length;
    return (op & (OP_READ | OP_WRITE)) && offset < f->offset + length && offset + size > f->offset;
}

/* Whether a fault that matches strikes now; counts. */
static bool strikes(struct fault *f, long long size)
{
    f->n_seen++;
    if (f->space >= 0) {
        if (f->n_bytes + size <= f->space) {
            f->n_bytes += size;
            return false;
        }
    }
    if (f->after >= 0 && f->n_seen <= f->after)
        return false;
    if (f->count >= 0 && f->n_struck >= f->count)
        return false;
    f->n_struck++;
    return true;
}

/* What becomes of an operation; waits for the delay. Returns 0 or -errno. */
static int judge(enum op op, const char *path, long long offset, size_t *size)
{
    struct verdict v = {.at_most = -1};
    long long n = size ? (long long)*size : 0;
    pthread_mutex_lock(&fs.mutex);
    read_control();
    if (fs.bad)
        v.error = EPROTO;
    for (int i = 0; i < fs.n_faults; i++) {
        struct fault *f = &fs.fault[i];
        if (!matches(f, op, path, offset, n) || !strikes(f, n))
            continue;
        if (f->error && !v.error)
            v.error = f->error;
        if (f->delay_ms > v.delay_ms)
            v.delay_ms = f->delay_ms;
        if (f->at_most >= 0 && (v.at_most < 0 || f->at_most < v.at_most))
            v.at_most = f->at_most;
    }
    pthread_mutex_unlock(&fs.mutex);
    if (v.delay_ms > 0) {
        struct timespec t = {v.delay_ms / 1000, v.delay_ms % 1000 * 1000000};
        nanosleep(&t, NULL);
    }
    if (size && v.at_most >= 0 && v.at_most < n)
        *size = (size_t)v.at_most;
    return -v.error;
}

/* ---- operations ---- */

#define REAL(name, path)                                                                           \
    char name[2 * MAX_PATH];                                                                       \
    if (snprintf(name, sizeof(name), "%s%s", fs.root, path) >= (int)sizeof(name))                  \
    return -ENAMETOOLONG

#define JUDGE(op, path)                                                                            \
    do {                                                                                           \
        int verdict_ = judge(op, path, 0, NULL);                                                   \
        if (verdict_ < 0)                                                                          \
            return verdict_;                                                                       \
    } while (0)

static int result(int r)
{
    return r < 0 ? -errno : 0;
}

static void *fs_init(struct fuse_conn_info *conn, struct fuse_config *cfg)
{
    (void)conn;
    /* No caches: what this program says now is what the caller gets now. */
    cfg->kernel_cache = 0;
    cfg->attr_timeout = 0;
    cfg->entry_timeout = 0;
    cfg->negative_timeout = 0;
    cfg->use_ino = 1;
    return NULL;
}

static int fs_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    REAL(real, path);
    return result(fi ? fstat((int)fi->fh, st) : lstat(real, st));
}

static int fs_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t offset,
                      struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
    (void)offset;
    (void)fi;
    (void)flags;
    REAL(real, path);
    DIR *d = opendir(real);
    if (!d)
        return -errno;
    for (const struct dirent *e; (e = readdir(d));)
        fill(buf, e->d_name, NULL, 0, 0);
    closedir(d);
    return 0;
}

static int open_at(const char *path, int flags, mode_t mode, struct fuse_file_info *fi)
{
    REAL(real, path);
    /* O_DIRECT and O_APPEND were the kernel's business: offsets come resolved. */
    int fd = open(real, (flags & ~(O_DIRECT | O_APPEND)) | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    fi->fh = (uint64_t)fd;
    fi->direct_io = 1;
    return 0;
}

static int fs_open(const char *path, struct fuse_file_info *fi)
{
    JUDGE(OP_OPEN, path);
    if ((fi->flags & O_ACCMODE) != O_RDONLY)
        JUDGE(OP_META, path);
    return open_at(path, fi->flags, 0, fi);
}

static int fs_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    JUDGE(OP_META, path);
    return open_at(path, fi->flags | O_CREAT, mode, fi);
}

static int fs_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    close((int)fi->fh);
    return 0;
}

static int fs_read(const char *path, char *buf, size_t size, off_t offset,
                   struct fuse_file_info *fi)
{
    int r = judge(OP_READ, path, offset, &size);
    if (r < 0)
        return r;
    ssize_t n = pread((int)fi->fh, buf, size, offset);
    return n < 0 ? -errno : (int)n;
}

static int fs_write(const char *path, const char *buf, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    int r = judge(OP_WRITE, path, offset, &size);
    if (r < 0)
        return r;
    ssize_t n = pwrite((int)fi->fh, buf, size, offset);
    return n < 0 ? -errno : (int)n;
}

static int fs_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
    JUDGE(OP_FSYNC, path);
    return result(data_only ? fdatasync((int)fi->fh) : fsync((int)fi->fh));
}

static int fs_fsyncdir(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)data_only;
    (void)fi;
    JUDGE(OP_FSYNC, path);
    return 0;
}

/* Space is counted like a write of the bytes asked for. */
static int fs_fallocate(const char *path, int mode, off_t offset, off_t length,
                        struct fuse_file_info *fi)
{
    size_t size = (size_t)length;
    int r = judge(OP_WRITE, path, offset, &size);
    return r < 0 ? r : result(fallocate((int)fi->fh, mode, offset, length));
}

static int fs_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(fi ? ftruncate((int)fi->fh, size) : truncate(real, size));
}

static int fs_unlink(const char *path)
{
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(unlink(real));
}

static int fs_mkdir(const char *path, mode_t mode)
{
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(mkdir(real, mode));
}

static int fs_rmdir(const char *path)
{
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(rmdir(real));
}

static int fs_rename(const char *from, const char *to, unsigned flags)
{
    JUDGE(OP_META, from);
    REAL(a, from);
    REAL(b, to);
    return result(renameat2(AT_FDCWD, a, AT_FDCWD, b, flags));
}

static int fs_symlink(const char *target, const char *path)
{
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(symlink(target, real));
}

static int fs_readlink(const char *path, char *buf, size_t size)
{
    REAL(real, path);
    ssize_t n = readlink(real, buf, size - 1);
    if (n < 0)
        return -errno;
    buf[n] = 0;
    return 0;
}

static int fs_link(const char *from, const char *to)
{
    JUDGE(OP_META, to);
    REAL(a, from);
    REAL(b, to);
    return result(link(a, b));
}

static int fs_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    (void)fi;
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(chmod(real, mode));
}

static int fs_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
    (void)fi;
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(lchown(real, uid, gid));
}

static int fs_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
    (void)fi;
    JUDGE(OP_META, path);
    REAL(real, path);
    return result(utimensat(AT_FDCWD, real, times, AT_SYMLINK_NOFOLLOW));
}

/* A fault with space= also shows in statfs, as a full disk would. */
static int fs_statfs(const char *path, struct statvfs *st)
{
    REAL(real, path);
    if (statvfs(real, st) < 0)
        return -errno;
    pthread_mutex_lock(&fs.mutex);
    read_control();
    for (int i = 0; i < fs.n_faults; i++) {
        const struct fault *f = &fs.fault[i];
        if (f->space < 0)
            continue;
        fsblkcnt_t left = (fsblkcnt_t)(f->space - f->n_bytes) / st->f_frsize;
        if (left < st->f_bavail)
            st->f_bavail = st->f_bfree = left;
    }
    pthread_mutex_unlock(&fs.mutex);
    return 0;
}

static const struct fuse_operations operations = {
    .init = fs_init,
    .getattr = fs_getattr,
    .readdir = fs_readdir,
    .open = fs_open,
    .create = fs_create,
    .release = fs_release,
    .read = fs_read,
    .write = fs_write,
    .fsync = fs_fsync,
    .fsyncdir = fs_fsyncdir,
    .fallocate = fs_fallocate,
    .truncate = fs_truncate,
    .unlink = fs_unlink,
    .mkdir = fs_mkdir,
    .rmdir = fs_rmdir,
    .rename = fs_rename,
    .symlink = fs_symlink,
    .readlink = fs_readlink,
    .link = fs_link,
    .chmod = fs_chmod,
    .chown = fs_chown,
    .utimens = fs_utimens,
    .statfs = fs_statfs,
};

/* Absolute, since the working folder changes. */
static bool absolute(const char *path, char out[MAX_PATH])
{
    char here[MAX_PATH];
    if (path[0] == '/')
        return snprintf(out, MAX_PATH, "%s", path) < MAX_PATH;
    return getcwd(here, sizeof(here)) && snprintf(out, MAX_PATH, "%s/%s", here, path) < MAX_PATH;
}

int main(int argc, char **argv)
{
    if (argc != 4 || argv[1][0] == '-') {
        fprintf(stderr, "usage: faultfs FOLDER CONTROL MOUNTPOINT (see the head of its source)\n");
        return EX_USAGE;
    }
    if (!absolute(argv[1], fs.root) || !absolute(argv[2], fs.control)) {
        fprintf(stderr, "faultfs: path too long\n");
        return EX_USAGE;
    }
    struct stat st;
    if (stat(fs.root, &st) < 0 || !S_ISDIR(st.st_mode)) {
        fprintf(stderr, "faultfs: %s: not a folder\n", fs.root);
        return EX_NOINPUT;
    }
    umask(0);
    char *args[] = {argv[0], "-f", "-o", "default_permissions,fsname=faultfs,max_threads=64",
                    argv[3]};
    return fuse_main((int)COUNT(args), args, &operations, NULL) == 0 ? EX_OK : EX_OSERR;
}
