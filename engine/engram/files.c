/* The files behind the tables: opening, checks, scales in memory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"
#include "engram/stream_impl.h"

#define HEADER_MAX   (1u << 20) /* of the bytes before the data, those compared at a reopen */
#define SCALES_PIECE ((size_t)8 << 20)

/* Where a file system's reads cross a network. */
static const struct {
    uint32_t magic;
    const char *name;
} network[] = {
    {0x6969, "NFS"},      {0xFF534D42, "CIFS"}, {0xFE534D42, "SMB"}, {0x517B, "SMB"},
    {0x00C36400, "Ceph"}, {0x01021997, "9P"},   {0x5346414F, "AFS"}, {0x47504653, "GPFS"},
};

static int check_file_system(const struct hx_engram_file *f, struct hx_error *err)
{
    struct statfs fs;
    if (fstatfs(f->plain_fd, &fs) < 0)
        return hx_fail_errno(err, errno, "%s: cannot tell the file system", f->path);
    for (size_t i = 0; i < sizeof(network) / sizeof(network[0]); i++) {
        if ((uint32_t)fs.f_type == network[i].magic)
            return hx_fail(err, -EINVAL,
                           "%s: lies on %s: Engram tables have to be on a local drive (copy the "
                           "file, or allow any file system)",
                           f->path, network[i].name);
    }
    return 0;
}

static int hash_header(const struct hx_engram_table *t, const char *path, int fd,
                       uint8_t out[HX_SHA256_BYTES], struct hx_error *err)
{
    size_t n = t->data_offset < HEADER_MAX ? (size_t)t->data_offset : HEADER_MAX;
    void *data = malloc(n ? n : 1);
    if (!data)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_pread(fd, path, data, n, 0, err);
    if (r == 0 && hx_sha256_data(data, n, out) < 0)
        r = hx_fail(err, -ENOMEM, "out of memory");
    free(data);
    return r;
}

static int open_plain(const char *path, int *fd, struct stat *st, struct hx_error *err)
{
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    int r = 0;
    if (fstat(f, st) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st->st_mode))
        r = hx_fail(err, -EINVAL, "%s: not a regular file, expected an Engram shard", path);
    if (r < 0) {
        close(f);
        return r;
    }
    posix_fadvise(f, 0, 0, POSIX_FADV_RANDOM);
    *fd = f;
    return 0;
}

static int open_file(struct hx_engram_stream *s, int table, const struct hx_engram_table *t,
                     struct hx_engram_file *f, struct hx_error *err)
{
    f->table = table;
    f->fd = f->plain_fd = -1;
    f->path = strdup(t->path);
    if (!f->path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = open_plain(f->path, &f->plain_fd, &f->st, err);
    if (r == 0 && !s->o.any_file_system)
        r = check_file_system(f, err);
    if (r == 0)
        r = hx_engram_check_table(t, (uint64_t)f->st.st_size, err);
    if (r == 0)
        r = hash_header(t, f->path, f->plain_fd, f->header, err);
    return r;
}

static void close_file(struct hx_engram_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->plain_fd >= 0)
        close(f->plain_fd);
    free(f->path);
}

/* The drive that a file lies on, by device number. */
static struct hx_engram_drive *drive_of(struct hx_engram_stream *s, const struct hx_engram_file *f)
{
    for (int i = 0; i < s->n_drives; i++) {
        if (s->drive[i]->file[0].st.st_dev == f->st.st_dev)
            return s->drive[i];
    }
    struct hx_engram_drive *d = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    d->s = s;
    d->number = s->n_drives;
    pthread_mutex_init(&d->stats_mutex, NULL);
    for (int t = 0; t < HX_ENGRAM_MAX_TABLES; t++)
        d->file_of[t] = -1;
    s->drive[s->n_drives++] = d;
    return d;
}

/* Copies have to be what the first one is, as far as size and header tell. */
static int same_copy(const struct hx_engram_stream *s, int table, const struct hx_engram_file *f,
                     struct hx_error *err)
{
    for (int i = 0; i < s->n_drives; i++) {
        const struct hx_engram_drive *d = s->drive[i];
        const struct hx_engram_file *first =
            d->file_of[table] >= 0 ? &d->file[d->file_of[table]] : NULL;
        if (!first)
            continue;
        if (first->st.st_size != f->st.st_size ||
            memcmp(first->header, f->header, sizeof(f->header)) != 0)
            return hx_fail(err, -EINVAL, "%s: differs from %s in %s: expected a copy of it",
                           f->path, first->path,
                           first->st.st_size != f->st.st_size ? "size" : "its header");
    }
    return 0;
}

int hx_engram_files_open(struct hx_engram_stream *s, struct hx_error *err)
{
    for (int t = 0; t < s->n_tables; t++) {
        for (int c = 0; c < s->o.n_copies[t]; c++) {
            struct hx_engram_table table = s->table[t];
            struct hx_engram_file f;
            table.path = s->o.table[t][c].path;
            int r = open_file(s, t, &table, &f, err);
            if (r == 0)
                r = same_copy(s, t, &f, err);
            struct hx_engram_drive *d = r == 0 ? drive_of(s, &f) : NULL;
            if (r == 0 && !d)
                r = hx_fail(err, -ENOMEM, "out of memory");
            if (r == 0 && d->file_of[t] >= 0)
                r = hx_fail(err, -EINVAL,
                            "%s: on the same drive as %s: a second copy there gains nothing",
                            f.path, d->file[d->file_of[t]].path);
            if (r < 0) {
                close_file(&f);
                return r;
            }
            d->file_of[t] = d->n_files;
            d->file[d->n_files++] = f;
        }
    }
    return 0;
}

void hx_engram_files_close(struct hx_engram_stream *s)
{
    for (int i = 0; i < s->n_drives; i++) {
        struct hx_engram_drive *d = s->drive[i];
        for (int f = 0; f < d->n_files; f++)
            close_file(&d->file[f]);
        pthread_mutex_destroy(&d->stats_mutex);
        free(d);
    }
}

int hx_engram_file_check(const struct hx_engram_file *f, struct hx_error *err)
{
    struct stat st;
    if (stat(f->path, &st) < 0)
        return hx_fail(err, -ESTALE, "%s: was removed while in use: %s", f->path, strerror(errno));
    const char *what = st.st_size != f->st.st_size                                    ? "size"
                       : st.st_ino != f->st.st_ino || st.st_dev != f->st.st_dev       ? "place"
                       : memcmp(&st.st_mtim, &f->st.st_mtim, sizeof(st.st_mtim)) != 0 ? "time"
                                                                                      : NULL;
    return what ? hx_fail(err, -ESTALE, "%s: was replaced or changed while in use (its %s differs)",
                          f->path, what)
                : 0;
}

int hx_engram_file_reopen(const struct hx_engram_stream *s, struct hx_engram_file *f,
                          struct hx_error *err)
{
    uint8_t header[HX_SHA256_BYTES];
    struct stat st;
    int fd;
    int r = open_plain(f->path, &fd, &st, err);
    if (r < 0)
        return r;
    if (st.st_size != f->st.st_size || memcmp(&st.st_mtim, &f->st.st_mtim, sizeof(st.st_mtim)) != 0)
        r = hx_fail(err, -ESTALE, "%s: is another file than before: restart to use it", f->path);
    if (r == 0)
        r = hash_header(&s->table[f->table], f->path, fd, header, err);
    if (r == 0 && memcmp(header, f->header, sizeof(header)) != 0)
        r = hx_fail(err, -ESTALE, "%s: has another header than before: restart to use it", f->path);
    if (r < 0) {
        close(fd);
        return r;
    }
    close(f->plain_fd);
    f->plain_fd = fd;
    f->st = st;
    return 0;
}

int hx_engram_file_direct(struct hx_engram_file *f, bool direct, struct hx_error *err)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0));
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open%s", f->path,
                             direct ? " for direct reads" : "");
    if (!direct)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (f->fd >= 0)
        close(f->fd);
    f->fd = fd;
    return 0;
}

int hx_engram_file_align(const struct hx_engram_file *f)
{
    uint32_t a = 0;
#ifdef STATX_DIOALIGN
    struct statx x;
    if (statx(f->plain_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 &&
        (x.stx_mask & STATX_DIOALIGN))
        a = x.stx_dio_offset_align;
#else
    (void)f;
#endif
    return a >= 512 && a <= HX_ENGRAM_PAGE && (a & (a - 1)) == 0 ? (int)a : HX_ENGRAM_PAGE;
}

/* ---- scales ---- */

static size_t scales_bytes(const struct hx_engram_table *t)
{
    return (size_t)t->n_rows * (size_t)t->scale_bytes;
}

static int load_scales(struct hx_engram_stream *s, int t, struct hx_error *err)
{
    const struct hx_engram_table *tb = &s->table[t];
    const struct hx_engram_drive *d = s->drive[0];
    for (int i = 0; d->file_of[t] < 0; i++)
        d = s->drive[i];
    const struct hx_engram_file *f = &d->file[d->file_of[t]];
    size_t n = scales_bytes(tb);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hx_fail(err, -ENOMEM, "%s: out of memory for %zu MiB of Engram scales", f->path,
                       n >> 20);
    madvise(p, n, MADV_HUGEPAGE);
    s->scales[t] = p;
    posix_fadvise(f->plain_fd, (off_t)tb->scale_offset, (off_t)n, POSIX_FADV_SEQUENTIAL);
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += SCALES_PIECE) {
        size_t piece = n - at < SCALES_PIECE ? n - at : SCALES_PIECE;
        r = hx_file_pread(f->plain_fd, f->path, s->scales[t] + at, piece, tb->scale_offset + at,
                          err);
        posix_fadvise(f->plain_fd, (off_t)(tb->scale_offset + at), (off_t)piece,
                      POSIX_FADV_DONTNEED);
    }
    posix_fadvise(f->plain_fd, 0, 0, POSIX_FADV_RANDOM);
    if (r == 0)
        mlock(s->scales[t], n); /* as far as the limits allow */
    return r < 0 ? hx_wrap(err, r, "loading Engram scales") : 0;
}

int hx_engram_scales_load(struct hx_engram_stream *s, struct hx_error *err)
{
    int r = 0;
    for (int t = 0; r == 0 && t < s->n_tables; t++)
        r = load_scales(s, t, err);
    return r;
}

void hx_engram_scales_free(struct hx_engram_stream *s)
{
    for (int t = 0; t < s->n_tables; t++) {
        if (s->scales[t])
            munmap(s->scales[t], scales_bytes(&s->table[t]));
    }
}
