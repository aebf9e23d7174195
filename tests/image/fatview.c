#include "image/fatview.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"

#define NAME       "FAT"
#define ROW        32
#define END        0x0ffffff8u
#define LONG_NAME  0x0f
#define VOLUME     0x08
#define FOLDER     0x10
#define FOLDER_MAX ((size_t)1 << 20)

static uint32_t le(const uint8_t *p, int n)
{
    uint32_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

int hx_fatview_open(struct hx_fatview *v, int fd, uint64_t at, uint64_t n_bytes,
                    struct hx_error *err)
{
    uint8_t b[512];
    int r = hx_file_pread(fd, NAME, b, sizeof(b), at, err);
    if (r)
        return r;
    uint32_t sector = le(b + 11, 2), per_cluster = b[13], reserved = le(b + 14, 2),
             n_tables = b[16], per_table = le(b + 36, 4), n_sectors = le(b + 32, 4);
    uint64_t before = reserved + (uint64_t)n_tables * per_table;
    if (b[510] != 0x55 || b[511] != 0xaa || (sector != 512 && sector != 4096) || !per_cluster ||
        per_cluster > 128 || !reserved || !n_tables || n_tables > 2 || !per_table ||
        before >= n_sectors || (uint64_t)n_sectors * sector > n_bytes)
        return hx_fail(err, -ENODATA, "no FAT32 at byte %llu", (unsigned long long)at);
    *v = (struct hx_fatview){.fd = fd,
                             .table = at + (uint64_t)reserved * sector,
                             .data = at + before * sector,
                             .cluster = per_cluster * sector,
                             .n_clusters = (uint32_t)((n_sectors - before) / per_cluster),
                             .root = le(b + 44, 4)};
    if ((uint64_t)v->n_clusters + 2 > (uint64_t)per_table * sector / 4)
        v->n_clusters = per_table * (sector / 4) - 2;
    return 0;
}

/* Content of a chain; n_bytes 0: a folder, whose size is the chain's. */
static int read_chain(const struct hx_fatview *v, uint32_t first, uint32_t n_bytes,
                      struct hx_buf *out, struct hx_error *err)
{
    uint8_t *block = malloc(v->cluster), raw[4];
    uint32_t cluster = first, n_seen = 0;
    int r = block ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    hx_buf_clear(out);
    while (!r && (n_bytes ? out->len < n_bytes : cluster < END)) {
        if (cluster < 2 || cluster - 2 >= v->n_clusters || n_seen++ > v->n_clusters) {
            r = hx_fail(err, -EBADMSG, "the chain from cluster %u is broken at %u", first, cluster);
            break;
        }
        r = hx_file_pread(v->fd, NAME, block, v->cluster,
                          v->data + (uint64_t)(cluster - 2) * v->cluster, err);
        size_t n = n_bytes && n_bytes - out->len < v->cluster ? n_bytes - out->len : v->cluster;
        if (!r && hx_buf_append(out, block, n))
            r = hx_fail(err, -EMSGSIZE, "the chain from cluster %u is too long", first);
        if (!r)
            r = hx_file_pread(v->fd, NAME, raw, 4, v->table + (uint64_t)cluster * 4, err);
        cluster = le(raw, 4) & 0x0fffffff;
    }
    free(block);
    return r;
}

static uint8_t short_sum(const uint8_t *row)
{
    uint8_t sum = 0;
    for (int i = 0; i < 11; i++)
        sum = (uint8_t)((sum & 1 ? 0x80 : 0) + (sum >> 1) + row[i]);
    return sum;
}

static void short_name(const uint8_t *row, char *out)
{
    int n = 0;
    for (int i = 0; i < 11; i++) {
        if (i == 8 && row[8] != ' ')
            out[n++] = '.';
        if (row[i] != ' ')
            out[n++] = (char)row[i];
    }
    out[n] = '\0';
}

/* Long name whose rows stand in front of row `at`; false: none that belongs to it. */
static bool long_name(const uint8_t *rows, size_t at, char *out)
{
    static const uint8_t places[] = {1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30};
    uint8_t sum = short_sum(rows + at * ROW);
    size_t n = 0;
    for (size_t k = 1; k <= 20 && k <= at; k++) {
        const uint8_t *row = rows + (at - k) * ROW;
        if (row[11] != LONG_NAME || row[0] == 0xe5 || (row[0] & 0x3f) != k || row[13] != sum)
            return false;
        for (size_t c = 0; c < sizeof(places); c++) {
            uint32_t u = le(row + places[c], 2);
            if (u == 0 || u == 0xffff)
                break;
            if (n + 1 < HX_FATVIEW_NAME)
                out[n++] = u < 128 ? (char)u : '?';
        }
        if (row[0] & 0x40) {
            out[n] = '\0';
            return n > 0;
        }
    }
    return false;
}

static int list_chain(const struct hx_fatview *v, uint32_t first,
                      int (*each)(void *ctx, const struct hx_fatview_file *file), void *ctx,
                      struct hx_error *err)
{
    struct hx_buf rows = HX_BUF_INIT(FOLDER_MAX);
    int r = read_chain(v, first, 0, &rows, err);
    for (size_t i = 0; !r && i < rows.len / ROW && rows.data[i * ROW]; i++) {
        const uint8_t *row = rows.data + i * ROW;
        struct hx_fatview_file f;
        if (row[0] == 0xe5 || row[11] == LONG_NAME || (row[11] & VOLUME) || row[0] == '.')
            continue;
        if (!long_name(rows.data, i, f.name))
            short_name(row, f.name);
        f.is_folder = (row[11] & FOLDER) != 0;
        f.first = le(row + 20, 2) << 16 | le(row + 26, 2);
        f.n_bytes = le(row + 28, 4);
        r = each(ctx, &f);
    }
    hx_buf_done(&rows);
    return r;
}

struct search {
    const char *name;
    struct hx_fatview_file *out;
};

static int is_it(void *ctx, const struct hx_fatview_file *file)
{
    struct search *s = ctx;
    if (strcasecmp(file->name, s->name) != 0)
        return 0;
    *s->out = *file;
    return 1;
}

int hx_fatview_find(const struct hx_fatview *v, const char *path, struct hx_fatview_file *out,
                    struct hx_error *err)
{
    struct hx_fatview_file at = {.is_folder = true, .first = v->root};
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/') {
        char name[HX_FATVIEW_NAME];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, "/"), p);
        struct search s = {name, &at};
        int r = at.is_folder ? list_chain(v, at.first, is_it, &s, err) : 0;
        if (r < 0)
            return r;
        if (!r)
            return hx_fail(err, -ENOENT, "%s: not there", path);
    }
    *out = at;
    return 0;
}

int hx_fatview_list(const struct hx_fatview *v, const char *folder,
                    int (*each)(void *ctx, const struct hx_fatview_file *file), void *ctx,
                    struct hx_error *err)
{
    struct hx_fatview_file at;
    int r = hx_fatview_find(v, folder, &at, err);
    if (!r && !at.is_folder)
        r = hx_fail(err, -ENOENT, "%s: no folder", folder);
    return r ? r : list_chain(v, at.first, each, ctx, err);
}

int hx_fatview_read(const struct hx_fatview *v, const struct hx_fatview_file *file,
                    struct hx_buf *out, struct hx_error *err)
{
    hx_buf_clear(out);
    return file->n_bytes ? read_chain(v, file->first, file->n_bytes, out, err) : 0;
}
