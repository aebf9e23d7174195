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

/* Codes and scales that no table has: NaN codes, NaN scales. */
static int check_row(const struct pread_reader *r, int t, int64_t row, const uint8_t *codes,
                     const uint8_t *scales, struct hx_error *err)
{
    const struct hx_engram_table *tb = &r->table[t];
    int bad = 0;
    for (int i = 0; i < tb->row_bytes; i++)
        bad |= (codes[i] & 0x7F) == 0x7F;
    for (int i = 0; i < tb->scale_bytes; i++)
        bad |= scales[i] == 0xFF;
    if (!bad)
        return 0;
    return hx_fail(err, -EILSEQ,
                   "%s: Engram row %lld at offset %llu holds a NaN (corrupt drive or file?)",
                   r->path[t], (long long)row,
                   (unsigned long long)(tb->data_offset + (uint64_t)row * (uint64_t)tb->row_bytes));
}

static int read_row(struct pread_reader *r, int t, int64_t row, uint8_t *codes, uint8_t *scales,
                    struct hx_error *err)
{
    const struct hx_engram_table *tb = &r->table[t];
    if (row < 0 || row >= tb->n_rows)
        return hx_fail(err, -EINVAL, "%s: Engram row %lld, the table has %lld", r->path[t],
                       (long long)row, (long long)tb->n_rows);
    int ret = hx_file_pread(r->fd[t], r->path[t], codes, (size_t)tb->row_bytes,
                            tb->data_offset + (uint64_t)row * (uint64_t)tb->row_bytes, err);
    if (ret == 0)
        ret = hx_file_pread(r->fd[t], r->path[t], scales, (size_t)tb->scale_bytes,
                            tb->scale_offset + (uint64_t)row * (uint64_t)tb->scale_bytes, err);
    if (ret < 0)
        return hx_wrap(err, ret, "Engram row %lld", (long long)row);
    return check_row(r, t, row, codes, scales, err);
}

static int pread_read(struct hx_engram_reader *base, int t, const int64_t *rows, int64_t n,
                      uint8_t *codes, uint8_t *scales, struct hx_error *err)
{
    struct pread_reader *r = (struct pread_reader *)base;
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
    r->table[t] = *tb;
    r->path[t] = strdup(tb->path);
    r->fd[t] = open(tb->path, O_RDONLY | O_CLOEXEC);
    r->n++;
    if (!r->path[t])
        return hx_fail(err, -ENOMEM, "out of memory");
    if (r->fd[t] < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", tb->path);
    struct stat st;
    if (fstat(r->fd[t], &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", tb->path);
    uint64_t n = (uint64_t)tb->n_rows, size = (uint64_t)st.st_size;
    if (tb->data_offset + n * (uint64_t)tb->row_bytes > size ||
        tb->scale_offset + n * (uint64_t)tb->scale_bytes > size)
        return hx_fail(err, -EINVAL, "%s: %llu bytes are too few for %lld Engram rows (truncated?)",
                       tb->path, (unsigned long long)size, (long long)tb->n_rows);
    posix_fadvise(r->fd[t], 0, 0, POSIX_FADV_RANDOM);
    return 0;
}

int hx_engram_pread_open(const struct hx_engram_table *tables, int n_tables,
                         struct hx_engram_reader **out, struct hx_error *err)
{
    if (n_tables > MAX_TABLES)
        return hx_fail(err, -EINVAL, "engram: %d tables, at most %d", n_tables, MAX_TABLES);
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
