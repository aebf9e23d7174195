/* Engram rows by pread: the plain reader. Equal ids of one call are read once. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engram/rows.h"

#define MAX_TABLES 4

struct order { /* a wanted row and where it goes */
    int64_t row, at;
};

struct pread_reader {
    struct hx_engram_reader base;
    struct hx_engram_table table[MAX_TABLES];
    char *path[MAX_TABLES];
    int fd[MAX_TABLES];
    int n;
    struct order *order; /* grows to the largest call */
    int64_t cap;
};

static int by_row(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Codes and scales that no table has: NaN codes (0x7f, 0xff), scales of NaN (255) and of 0 (what a
 * hole in a file reads as). */
static int check_row(const struct pread_reader *r, int t, int64_t row, const uint8_t *codes,
                     const uint8_t *scales, struct hx_error *err)
{
    const struct hx_engram_table *tb = &r->table[t];
    int code = 0, scale = 0;
    for (int i = 0; i < tb->row_bytes; i++)
        code |= (codes[i] & 0x7F) == 0x7F;
    for (int i = 0; i < tb->scale_bytes; i++)
        scale |= scales[i] == 0xFF || scales[i] == 0;
    if (!code && !scale)
        return 0;
    return hx_fail(err, -EILSEQ,
                   "%s: Engram row %lld: %s at offset %llu (damaged file; verify or "
                   "download it again)",
                   r->path[t], (long long)row,
                   code ? "NaN in its values" : "impossible value in its scales",
                   (unsigned long long)(code ? hx_engram_code_offset(tb, row)
                                             : hx_engram_scale_offset(tb, row)));
}

/* A failed read is tried once more after 1 ms (spec 6.11). */
static int read_part(struct pread_reader *r, int t, void *to, int len, uint64_t offset,
                     struct hx_error *err)
{
    int ret = hx_file_pread(r->fd[t], r->path[t], to, (size_t)len, offset, err);
    if (ret != -EIO)
        return ret;
    usleep(1000);
    return hx_file_pread(r->fd[t], r->path[t], to, (size_t)len, offset, err);
}

static int read_row(struct pread_reader *r, int t, int64_t row, uint8_t *codes, uint8_t *scales,
                    struct hx_error *err)
{
    const struct hx_engram_table *tb = &r->table[t];
    if (row < 0 || row >= tb->n_rows)
        return hx_fail(err, -EINVAL, "%s: Engram row %lld, the table has %lld", r->path[t],
                       (long long)row, (long long)tb->n_rows);
    int ret = read_part(r, t, codes, tb->row_bytes, hx_engram_code_offset(tb, row), err);
    if (ret == 0)
        ret = read_part(r, t, scales, tb->scale_bytes, hx_engram_scale_offset(tb, row), err);
    if (ret < 0)
        return hx_wrap(err, ret, "Engram read error: row %lld", (long long)row);
    return check_row(r, t, row, codes, scales, err);
}

static int pread_read(struct hx_engram_reader *base, int t, const int64_t *rows, int64_t n,
                      uint8_t *codes, uint8_t *scales, struct hx_error *err)
{
    struct pread_reader *r = (struct pread_reader *)base;
    if (t < 0 || t >= r->n || n < 0)
        return hx_fail(err, -EINVAL, "engram: %lld rows of table %d, there are %d tables",
                       (long long)n, t, r->n);
    size_t nc = (size_t)r->table[t].row_bytes, ns = (size_t)r->table[t].scale_bytes;
    if (n > r->cap) {
        struct order *o = realloc(r->order, (size_t)n * sizeof(*o));
        if (!o)
            return hx_fail(err, -ENOMEM, "out of memory for %lld Engram rows", (long long)n);
        r->order = o;
        r->cap = n;
    }
    for (int64_t i = 0; i < n; i++)
        r->order[i] = (struct order){rows[i], i};
    qsort(r->order, (size_t)n, sizeof(*r->order), by_row);
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)r->order[i].at;
        if (i > 0 && r->order[i].row == r->order[i - 1].row) {
            size_t before = (size_t)r->order[i - 1].at;
            memcpy(codes + at * nc, codes + before * nc, nc);
            memcpy(scales + at * ns, scales + before * ns, ns);
            continue;
        }
        int ret = read_row(r, t, r->order[i].row, codes + at * nc, scales + at * ns, err);
        if (ret < 0)
            return ret;
    }
    return 0;
}

static void pread_close(struct hx_engram_reader *base)
{
    struct pread_reader *r = (struct pread_reader *)base;
    if (!r)
        return;
    for (int t = 0; t < r->n; t++) {
        if (r->fd[t] >= 0)
            close(r->fd[t]);
        free(r->path[t]);
    }
    free(r->order);
    free(r);
}

static const struct hx_engram_reader_ops ops = {"pread", pread_read, pread_close};

static int open_table(struct pread_reader *r, const struct hx_engram_table *tb,
                      struct hx_error *err)
{
    int t = r->n;
    r->fd[t] = -1;
    r->table[t] = *tb;
    r->path[t] = strdup(tb->path);
    r->n++;
    if (!r->path[t])
        return hx_fail(err, -ENOMEM, "out of memory");
    r->table[t].path = r->path[t];
    r->fd[t] = open(tb->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd[t] < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", tb->path);
    struct stat st;
    if (fstat(r->fd[t], &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", tb->path);
    if (!S_ISREG(st.st_mode))
        return hx_fail(err, -EINVAL, "%s: not a regular file, expected an Engram shard", tb->path);
    int e = hx_engram_check_table(&r->table[t], (uint64_t)st.st_size, err);
    if (e < 0)
        return e;
    posix_fadvise(r->fd[t], 0, 0, POSIX_FADV_RANDOM);
    return 0;
}

int hx_engram_pread_open(const struct hx_engram_table *tables, int n_tables,
                         struct hx_engram_reader **out, struct hx_error *err)
{
    if (n_tables < 1 || n_tables > MAX_TABLES)
        return hx_fail(err, -EINVAL, "engram: %d tables, expected 1 to %d", n_tables, MAX_TABLES);
    struct pread_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory");
    r->base.ops = &ops;
    int ret = 0;
    for (int t = 0; ret == 0 && t < n_tables; t++)
        ret = open_table(r, &tables[t], err);
    if (ret < 0) {
        pread_close(&r->base);
        return ret;
    }
    *out = &r->base;
    return 0;
}
