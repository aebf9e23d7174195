#include "disk/twins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "disk/kernels.h"

#define ROW        32u
#define DELETED    0xe5
#define ATTR_LFN   0x0f
#define ATTR_LABEL 0x08
#define ATTR_DIR   0x10
#define FOLDER_MAX (1u << 20)
#define LFN_ROWS   8 /* of a name that fits */
#define ENTRIES    512
#define HALF_COPY  "hx170.new"

struct volume {
    struct hx_disk *d;
    uint64_t table, data; /* bytes on the disk */
    uint32_t cluster, n_clusters, root;
    unsigned sector;
};

/* A folder in memory, with the place of each of its clusters. */
struct folder {
    uint8_t *rows;
    uint64_t *place;
    uint32_t n_clusters;
};

struct entry {
    char name[HX_TWINS_NAME];
    uint32_t first, n_bytes;
    uint32_t row, n_long; /* index of the short entry; rows of the long name in front of it */
    bool is_folder;
};

static uint32_t le(const uint8_t *p, int n)
{
    uint32_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static int open_volume(struct hx_disk *d, uint64_t offset, struct volume *out, struct hx_error *err)
{
    uint8_t b[512];
    int r = hx_disk_read(d, b, sizeof(b), offset, err);
    if (r < 0)
        return r;
    uint32_t sector = le(b + 11, 2), per_cluster = b[13], reserved = le(b + 14, 2), tables = b[16],
             per_table = le(b + 36, 4), n_sectors = le(b + 32, 4);
    uint64_t before = reserved + (uint64_t)tables * per_table;
    if (b[510] != 0x55 || b[511] != 0xaa || (sector != 512 && sector != 4096) || !per_cluster ||
        per_cluster * sector > 65536 || !reserved || !tables || le(b + 22, 2) || !per_table ||
        before >= n_sectors || offset > d->n_bytes ||
        (uint64_t)n_sectors * sector > d->n_bytes - offset)
        return hx_fail(err, -ENODATA, "%s: no FAT32 file system", d->path);
    uint64_t n = (n_sectors - before) / per_cluster, fits = (uint64_t)per_table * sector / 4;
    *out = (struct volume){.d = d,
                           .table = offset + (uint64_t)reserved * sector,
                           .data = offset + before * sector,
                           .cluster = per_cluster * sector,
                           .n_clusters = (uint32_t)(n + 2 > fits ? fits - 2 : n),
                           .root = le(b + 44, 4),
                           .sector = sector};
    return 0;
}

static void close_folder(struct folder *f)
{
    free(f->rows);
    free(f->place);
    *f = (struct folder){0};
}

static int read_folder(const struct volume *v, uint32_t first, struct folder *out,
                       struct hx_error *err)
{
    const uint32_t most = FOLDER_MAX / v->cluster;
    struct folder f = {.rows = calloc(most, v->cluster), .place = calloc(most, sizeof(*f.place))};
    int r = f.rows && f.place ? 0 : hx_fail(err, -ENOMEM, "out of memory for a folder");
    for (uint32_t at = first; r == 0 && at < 0x0ffffff8u;) {
        uint8_t next[4];
        if (at < 2 || at - 2 >= v->n_clusters || f.n_clusters == most) {
            r = hx_fail(err, -EBADMSG,
                        "%s: a folder's clusters are damaged; check it with fsck.vfat", v->d->path);
            break;
        }
        uint64_t place = v->data + (uint64_t)(at - 2) * v->cluster;
        f.place[f.n_clusters] = place;
        r = hx_disk_read(v->d, f.rows + (size_t)f.n_clusters++ * v->cluster, v->cluster, place,
                         err);
        if (r == 0)
            r = hx_disk_read(v->d, next, sizeof(next), v->table + (uint64_t)at * 4, err);
        if (r == 0)
            at = le(next, 4) & 0x0fffffff;
    }
    if (r < 0)
        close_folder(&f);
    else
        *out = f;
    return r;
}

/* ---- names ----------------------------------------------------------------------------------- */

static uint8_t sum_of(const uint8_t *row)
{
    uint8_t sum = 0;
    for (int i = 0; i < 11; i++)
        sum = (uint8_t)((sum & 1 ? 0x80 : 0) + (sum >> 1) + row[i]);
    return sum;
}

/* Byte 12: stem and ending in small letters. */
static void short_name(const uint8_t *row, char *out)
{
    for (int i = 0; i < 11; i++) {
        bool is_small = row[12] & (i < 8 ? 0x08 : 0x10);
        if (i == 8 && row[8] != ' ')
            *out++ = '.';
        if (row[i] != ' ')
            *out++ = (char)(is_small && row[i] >= 'A' && row[i] <= 'Z' ? row[i] + 32 : row[i]);
    }
    *out = '\0';
}

/* Characters of a long name's row behind n others; false: not plain, or too long. */
static bool add_part(const uint8_t *row, char *out, size_t *n)
{
    static const uint8_t places[] = {1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30};
    for (size_t i = 0; i < sizeof(places); i++) {
        uint32_t c = le(row + places[i], 2);
        if (c == 0 || c == 0xffff)
            break;
        if (c > 126 || *n + 1 >= HX_TWINS_NAME)
            return false;
        out[(*n)++] = (char)c;
    }
    return true;
}

/* Rows of the long name in front of row `at`, 0: none that belongs to it. */
static uint32_t long_name(const uint8_t *rows, uint32_t at, char *out)
{
    size_t n = 0;
    for (uint32_t k = 1; k <= LFN_ROWS && k <= at; k++) {
        const uint8_t *row = rows + (size_t)(at - k) * ROW;
        if (row[11] != ATTR_LFN || row[0] == DELETED || (row[0] & 0x3fu) != k ||
            row[13] != sum_of(rows + (size_t)at * ROW) || !add_part(row, out, &n))
            return 0;
        if (row[0] & 0x40) {
            out[n] = '\0';
            return n ? k : 0;
        }
    }
    return 0;
}

static int list(const struct volume *v, const struct folder *f, struct entry *out)
{
    uint32_t n_rows = f->n_clusters * (v->cluster / ROW);
    int n = 0;
    for (uint32_t i = 0; i < n_rows && n < ENTRIES && f->rows[(size_t)i * ROW]; i++) {
        const uint8_t *row = f->rows + (size_t)i * ROW;
        if (row[0] == DELETED || row[0] == '.' || (row[11] & ATTR_LABEL))
            continue;
        struct entry *e = &out[n++];
        *e = (struct entry){.first = le(row + 20, 2) << 16 | le(row + 26, 2),
                            .n_bytes = le(row + 28, 4),
                            .row = i,
                            .is_folder = row[11] & ATTR_DIR};
        e->n_long = long_name(f->rows, i, e->name);
        if (!e->n_long)
            short_name(row, e->name);
    }
    return n;
}

static int enter(const struct volume *v, const char *name, struct folder *f, struct entry *all,
                 struct hx_error *err)
{
    int n = list(v, f, all);
    for (int i = 0; i < n; i++) {
        if (!all[i].is_folder || strcasecmp(all[i].name, name) != 0)
            continue;
        close_folder(f);
        return read_folder(v, all[i].first, f, err);
    }
    return hx_fail(err, -ENOENT, "%s: no folder %s", v->d->path, name);
}

/* ---- twins ----------------------------------------------------------------------------------- */

/* How much a name is wanted; -1: no name that a change of ours could leave. */
static int rank(const char *name)
{
    struct hx_kernel k;
    if (hx_kernel_parse(name, &k))
        return k.left < 0 ? 100000 : 20000 - k.left;
    return strncasecmp(name, HALF_COPY, strlen(HALF_COPY)) == 0 ? 0 : -1;
}

/* Index of an entry that has to go, for the sake of *stays; -1: none. */
static int find_twin(const struct entry *all, int n, int *stays)
{
    for (int a = 0; a < n; a++) {
        for (int b = a + 1; b < n; b++) {
            int want_a = rank(all[a].name), want_b = rank(all[b].name);
            if (all[a].is_folder || all[b].is_folder || !all[a].first ||
                all[a].first != all[b].first || all[a].n_bytes != all[b].n_bytes || want_a < 0 ||
                want_b < 0 || want_a == want_b)
                continue;
            *stays = want_a > want_b ? a : b;
            return want_a > want_b ? b : a;
        }
    }
    return -1;
}

/* The short entry's sector first: without it the rest is nobody's name. */
static int drop(const struct volume *v, struct folder *f, const struct entry *e,
                struct hx_error *err)
{
    const uint32_t per_sector = v->sector / ROW;
    uint32_t done = UINT32_MAX;
    int r = 0;
    for (uint32_t k = 0; k <= e->n_long; k++)
        f->rows[(size_t)(e->row - k) * ROW] = DELETED;
    for (uint32_t k = 0; r == 0 && k <= e->n_long; k++) {
        uint32_t sector = (e->row - k) / per_sector;
        uint64_t at = (uint64_t)sector * v->sector;
        if (sector == done)
            continue;
        r = hx_disk_write(v->d, f->rows + at, v->sector,
                          f->place[at / v->cluster] + at % v->cluster, err);
        if (r == 0)
            r = hx_disk_flush(v->d, err);
        done = sector;
    }
    return r;
}

int hx_twins_remove(struct hx_disk *d, uint64_t offset, struct hx_twins *out, struct hx_error *err)
{
    struct volume v = {0};
    struct folder f = {0};
    struct entry *all = calloc(ENTRIES, sizeof(*all));
    *out = (struct hx_twins){0};
    int r = all ? open_volume(d, offset, &v, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = read_folder(&v, v.root, &f, err);
    if (r == 0)
        r = enter(&v, "EFI", &f, all, err);
    if (r == 0)
        r = enter(&v, "Linux", &f, all, err);
    while (r == 0) {
        int stays, goes = find_twin(all, list(&v, &f, all), &stays);
        if (goes < 0)
            break;
        r = drop(&v, &f, &all[goes], err);
        if (r < 0)
            break;
        out->n++;
        snprintf(out->last[0], HX_TWINS_NAME, "%s", all[goes].name);
        snprintf(out->last[1], HX_TWINS_NAME, "%s", all[stays].name);
    }
    close_folder(&f);
    free(all);
    return r;
}
