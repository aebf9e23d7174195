/* Engram rows by pread: the plain reader. Equal ids of one call are read once. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engram/engram.h"

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

static uint64_t code_offset(const struct hx_engram_table *tb, int64_t row)
{
    return tb->data_offset + (uint64_t)row * (uint64_t)tb->row_bytes;
}

static uint64_t scale_offset(const struct hx_engram_table *tb, int64_t row)
{
    return tb->scale_offset + (uint64_t)row * (uint64_t)tb->scale_bytes;
}

/* Codes and scales that no table has: NaN codes (0x7f, 0xff), NaN scales (255). */
static int check_row(const struct pread_reader *r, int t, int64_t row, const uint8_t *codes,
                     const uint8_t *scales, struct hx_error *err)
{
    const struct hx_engram_table *tb = &r->table[t];
    int code = 0, scale = 0;
    for (int i = 0; i < tb->row_bytes; i++)
        code |= (codes[i] & 0x7F) == 0x7F;
    for (int i = 0; i < tb->scale_bytes; i++)
        scale |= scales[i] == 0xFF;
    if (!code && !scale)
        return 0;
    return hx_fail(err, -EILSEQ,
                   "%s: Engram row %lld: NaN in its %s at offset %llu (damaged file; verify or "
                   "download it again)",
                   r->path[t], (long long)row, code ? "values" : "scales",
                   (unsigned long long)(code ? code_offset(tb, row) : scale_offset(tb, row)));
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
    int ret = read_part(r, t, codes, tb->row_bytes, code_offset(tb, row), err);
    if (ret == 0)
        ret = read_part(r, t, scales, tb->scale_bytes, scale_offset(tb, row), err);
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

/* offset + n * width within size, without overflow. */
static bool fits(uint64_t offset, int64_t n, int width, uint64_t size)
{
    return offset <= size && (uint64_t)n <= (size - offset) / (uint64_t)width;
}

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
    if (tb->n_rows < 1 || tb->row_bytes < 1 || tb->scale_bytes < 1)
        return hx_fail(err, -EINVAL, "%s: Engram table of %lld rows of %d + %d bytes", tb->path,
                       (long long)tb->n_rows, tb->row_bytes, tb->scale_bytes);
    r->fd[t] = open(tb->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd[t] < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", tb->path);
    struct stat st;
    if (fstat(r->fd[t], &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", tb->path);
    if (!S_ISREG(st.st_mode))
        return hx_fail(err, -EINVAL, "%s: not a regular file, expected an Engram shard", tb->path);
    uint64_t size = (uint64_t)st.st_size;
    if (!fits(tb->data_offset, tb->n_rows, tb->row_bytes, size) ||
        !fits(tb->scale_offset, tb->n_rows, tb->scale_bytes, size))
        return hx_fail(err, -EINVAL, "%s: %llu bytes are too few for %lld Engram rows (truncated?)",
                       tb->path, (unsigned long long)size, (long long)tb->n_rows);
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
