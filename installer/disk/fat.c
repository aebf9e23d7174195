#include "disk/fat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "disk/gpt.h"

#define CLUSTER      4096u
#define RESERVED     32u /* sectors in front of the tables */
#define BACKUP_BOOT  6u
#define MIN_CLUSTERS 65525u /* fewer would be FAT16 to every reader */
#define MAX_CLUSTERS 0x0FFFFFF0u
#define END_OF_CHAIN 0x0FFFFFFFu
#define ENTRY        32u
#define LFN_CHARS    13
#define ATTR_FOLDER  0x10
#define ATTR_FILE    0x20
#define ATTR_LABEL   0x08
#define ATTR_LFN     0x0f
#define DATE         ((46 << 9) | (1 << 5) | 1) /* 2026-01-01: the same for every install */
#define FOLDER_MAX   (8 * CLUSTER)

struct node {
    char name[HX_FAT_NAME];
    uint8_t alias[11]; /* short name, padded with spaces */
    int parent;        /* index; -1: the root folder itself */
    bool folder, last;
    const struct hx_fat_file *file; /* NULL: a folder */
    uint32_t first, n_clusters;
};

struct hx_fat {
    uint64_t offset, n_bytes;
    uint8_t label[11];
    unsigned sector;
    uint32_t table_sectors, n_clusters, data_sector;
    uint32_t next_cluster;
    uint32_t serial;
    int n_nodes;
    struct node node[HX_FAT_FILES + 1];
};

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v & 0xffff);
    put16(p + 2, v >> 16);
}

static bool alias_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("!#$%&'()-@^_`{}~", c);
}

/* Whether the name is its own short name; out is filled if so. */
static bool is_short(const char *name, uint8_t out[11])
{
    const char *dot = strchr(name, '.');
    size_t stem = dot ? (size_t)(dot - name) : strlen(name), end = dot ? strlen(dot + 1) : 0;
    if (stem == 0 || stem > 8 || end > 3 || (dot && end == 0))
        return false;
    memset(out, ' ', 11);
    for (size_t i = 0; i < stem; i++) {
        if (!name[i] || !alias_char(name[i]))
            return false;
        out[i] = (uint8_t)name[i];
    }
    for (size_t i = 0; i < end; i++) {
        if (!alias_char(dot[1 + i]))
            return false;
        out[8 + i] = (uint8_t)dot[1 + i];
    }
    return true;
}

/* A short name nobody else has: the number is the node's own. */
static void make_alias(const char *name, int number, uint8_t out[11])
{
    char tail[12];
    size_t n = 0;
    int t = snprintf(tail, sizeof(tail), "~%d", number);
    memset(out, ' ', 11);
    for (const char *p = name; *p && *p != '.' && n < 8 - (size_t)t; p++) {
        char c = *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p;
        if (alias_char(c) && c != '~')
            out[n++] = (uint8_t)c;
    }
    memcpy(out + n, tail, (size_t)t);
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && i < 3 && dot[1 + i]; i++) {
        char c = dot[1 + i] >= 'a' && dot[1 + i] <= 'z' ? (char)(dot[1 + i] - 32) : dot[1 + i];
        out[8 + i] = (uint8_t)(alias_char(c) ? c : '_');
    }
}

static int check_name(const char *path, const char *name, size_t len, struct hx_error *err)
{
    bool ok = len > 0 && len < HX_FAT_NAME && name[0] != '.' && name[len - 1] != '.' &&
              name[len - 1] != ' ';
    for (size_t i = 0; i < len; i++)
        ok = ok && name[i] > 0x1f && name[i] < 0x7f && !strchr("\"*:<>?\\|", name[i]);
    return ok ? 0 : hx_fail(err, -EINVAL, "'%s' cannot be a name on the ESP", path);
}

/* Node of a component below parent, made if it is new. */
static int take_node(struct hx_fat *fat, int parent, const char *path, const char *name, size_t len,
                     bool folder, struct hx_error *err)
{
    int r = check_name(path, name, len, err);
    if (r < 0)
        return r;
    for (int i = 1; i < fat->n_nodes; i++) {
        struct node *n = &fat->node[i];
        if (n->parent != parent || strlen(n->name) != len || strncasecmp(n->name, name, len) != 0)
            continue;
        return folder && n->folder ? i : hx_fail(err, -EINVAL, "'%s' is there twice", path);
    }
    if (fat->n_nodes > HX_FAT_FILES)
        return hx_fail(err, -EINVAL, "more than %d files on the ESP", HX_FAT_FILES);
    struct node *n = &fat->node[fat->n_nodes];
    snprintf(n->name, sizeof(n->name), "%.*s", (int)len, name);
    n->parent = parent;
    n->folder = folder;
    if (!is_short(n->name, n->alias))
        make_alias(n->name, fat->n_nodes, n->alias);
    return fat->n_nodes++;
}

static int add_file(struct hx_fat *fat, const struct hx_fat_file *file, struct hx_error *err)
{
    int at = 0;
    const char *p = file->path;
    if (file->n_bytes > UINT32_MAX)
        return hx_fail(err, -EFBIG, "'%s' is larger than FAT can hold", file->path);
    for (;;) {
        size_t len = strcspn(p, "/");
        bool folder = p[len] == '/';
        at = take_node(fat, at, file->path, p, len, folder, err);
        if (at < 0)
            return at;
        if (!folder)
            break;
        p += len + 1;
    }
    fat->node[at].file = file;
    fat->node[at].last = file->last;
    return 0;
}

static unsigned lfn_entries(const struct node *n)
{
    uint8_t alias[11];
    return is_short(n->name, alias) ? 0 : (unsigned)((strlen(n->name) + LFN_CHARS - 1) / LFN_CHARS);
}

static uint32_t folder_bytes(const struct hx_fat *fat, int folder)
{
    uint32_t n = folder == 0 ? 1 : 2; /* label, or "." and ".." */
    for (int i = 1; i < fat->n_nodes; i++)
        if (fat->node[i].parent == folder)
            n += 1 + lfn_entries(&fat->node[i]);
    return n * ENTRY;
}

static int place_nodes(struct hx_fat *fat, struct hx_error *err)
{
    uint64_t next = 2;
    for (int i = 0; i < fat->n_nodes; i++) {
        struct node *n = &fat->node[i];
        uint64_t bytes = n->folder ? folder_bytes(fat, i) : n->file->n_bytes;
        if (n->folder && bytes > FOLDER_MAX)
            return hx_fail(err, -EINVAL, "too many names in folder '%s' of the ESP", n->name);
        n->n_clusters = (uint32_t)((bytes + CLUSTER - 1) / CLUSTER);
        n->first = n->n_clusters ? (uint32_t)next : 0;
        next += n->n_clusters;
        if (next > (uint64_t)fat->n_clusters + 2)
            return hx_fail(err, -ENOSPC, "the ESP of %llu MiB is too small for its files",
                           (unsigned long long)(fat->n_bytes / HX_DISK_MIB));
    }
    fat->next_cluster = (uint32_t)next;
    return 0;
}

static int geometry(struct hx_fat *fat, struct hx_error *err)
{
    uint64_t sectors = fat->n_bytes / fat->sector, per_cluster = CLUSTER / fat->sector;
    /* A table for all sectors is a little longer than needed. */
    uint64_t entries = sectors / per_cluster + 2;
    uint64_t table = (entries * 4 + fat->sector - 1) / fat->sector;
    if (sectors > UINT32_MAX || sectors < RESERVED + 2 * table)
        return hx_fail(err, -EINVAL, "an ESP of %llu bytes is not possible",
                       (unsigned long long)fat->n_bytes);
    uint64_t clusters = (sectors - RESERVED - 2 * table) / per_cluster;
    if (clusters < MIN_CLUSTERS || clusters > MAX_CLUSTERS)
        return hx_fail(err, -EINVAL, "an ESP of %llu bytes is no FAT32",
                       (unsigned long long)fat->n_bytes);
    fat->table_sectors = (uint32_t)table;
    fat->n_clusters = (uint32_t)clusters;
    fat->data_sector = (uint32_t)(RESERVED + 2 * table);
    return 0;
}

int hx_fat_plan(const struct hx_disk *d, uint64_t offset, uint64_t n_bytes, const char *label,
                const struct hx_fat_file *files, int n_files, struct hx_fat **out,
                struct hx_error *err)
{
    struct hx_fat *fat = calloc(1, sizeof(*fat));
    if (!fat)
        return hx_fail(err, -ENOMEM, "out of memory for the ESP");
    fat->offset = offset;
    fat->n_bytes = n_bytes;
    fat->sector = d->sector;
    memset(fat->label, ' ', sizeof(fat->label));
    memcpy(fat->label, label, strnlen(label, sizeof(fat->label)));
    fat->n_nodes = 1;
    fat->node[0].folder = true;
    fat->node[0].parent = -1;
    uint8_t id[HX_GUID_BYTES];
    int r = hx_guid_random(id, err);
    memcpy(&fat->serial, id, sizeof(fat->serial));
    if (r == 0)
        r = geometry(fat, err);
    for (int i = 0; r == 0 && i < n_files; i++)
        r = add_file(fat, &files[i], err);
    if (r == 0)
        r = place_nodes(fat, err);
    if (r < 0) {
        free(fat);
        return r;
    }
    *out = fat;
    return 0;
}

void hx_fat_free(struct hx_fat *fat)
{
    free(fat);
}

static void boot_sector(const struct hx_fat *fat, uint8_t *b)
{
    static const uint8_t jump[] = {0xeb, 0x58, 0x90};
    static const uint8_t maker[] = {'H', 'X', '1', '7', '0', ' ', ' ', ' '};
    static const uint8_t type[] = {'F', 'A', 'T', '3', '2', ' ', ' ', ' '};
    memcpy(b, jump, sizeof(jump));
    memcpy(b + 3, maker, sizeof(maker));
    put16(b + 11, fat->sector);
    b[13] = (uint8_t)(CLUSTER / fat->sector);
    put16(b + 14, RESERVED);
    b[16] = 2;    /* tables */
    b[21] = 0xf8; /* fixed disk */
    put16(b + 24, 63);
    put16(b + 26, 255);
    put32(b + 28, (uint32_t)(fat->offset / fat->sector));
    put32(b + 32, (uint32_t)(fat->n_bytes / fat->sector));
    put32(b + 36, fat->table_sectors);
    put32(b + 44, 2); /* root folder's cluster */
    put16(b + 48, 1); /* information sector */
    put16(b + 50, BACKUP_BOOT);
    b[64] = 0x80;
    b[66] = 0x29;
    put32(b + 67, fat->serial);
    memcpy(b + 71, fat->label, 11);
    memcpy(b + 82, type, sizeof(type));
    put16(b + 510, 0xaa55);
}

static void information_sector(const struct hx_fat *fat, uint8_t *b)
{
    put32(b, 0x41615252);
    put32(b + 484, 0x61417272);
    put32(b + 488, fat->n_clusters - (fat->next_cluster - 2));
    put32(b + 492, fat->next_cluster);
    put32(b + 508, 0xaa550000);
}

static uint64_t sector_offset(const struct hx_fat *fat, uint64_t sector)
{
    return fat->offset + sector * fat->sector;
}

static uint64_t cluster_offset(const struct hx_fat *fat, uint32_t cluster)
{
    return sector_offset(fat, fat->data_sector) + (uint64_t)(cluster - 2) * CLUSTER;
}

static int write_boot(const struct hx_fat *fat, struct hx_disk *d, struct hx_error *err)
{
    size_t len = (size_t)RESERVED * fat->sector;
    uint8_t *b = calloc(1, len);
    if (!b)
        return hx_fail(err, -ENOMEM, "out of memory for the ESP");
    for (unsigned copy = 0; copy <= BACKUP_BOOT; copy += BACKUP_BOOT) {
        boot_sector(fat, b + (size_t)copy * fat->sector);
        information_sector(fat, b + (size_t)(copy + 1) * fat->sector);
        put16(b + (size_t)(copy + 2) * fat->sector + 510, 0xaa55);
    }
    int r = hx_disk_write(d, b, len, fat->offset, err);
    free(b);
    return r;
}

static int write_tables(const struct hx_fat *fat, struct hx_disk *d, struct hx_error *err)
{
    size_t len = (size_t)fat->table_sectors * fat->sector;
    uint8_t *t = calloc(1, len);
    if (!t)
        return hx_fail(err, -ENOMEM, "out of memory for the ESP");
    put32(t, 0x0FFFFFF8);
    put32(t + 4, END_OF_CHAIN);
    for (int i = 0; i < fat->n_nodes; i++) {
        const struct node *n = &fat->node[i];
        for (uint32_t c = 0; c < n->n_clusters; c++)
            put32(t + 4 * (size_t)(n->first + c),
                  c + 1 == n->n_clusters ? END_OF_CHAIN : n->first + c + 1);
    }
    int r = 0;
    for (unsigned copy = 0; r == 0 && copy < 2; copy++)
        r = hx_disk_write(d, t, len,
                          sector_offset(fat, RESERVED + (uint64_t)copy * fat->table_sectors), err);
    free(t);
    return r;
}

static void short_entry(const uint8_t alias[11], unsigned attr, uint32_t first, uint32_t size,
                        uint8_t *e)
{
    memcpy(e, alias, 11);
    e[11] = (uint8_t)attr;
    put16(e + 16, DATE);
    put16(e + 18, DATE);
    put16(e + 20, first >> 16);
    put16(e + 24, DATE);
    put16(e + 26, first & 0xffff);
    put32(e + 28, size);
}

static uint8_t *name_entries(const struct node *n, uint8_t *e)
{
    static const uint8_t places[LFN_CHARS] = {1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30};
    unsigned count = lfn_entries(n);
    size_t len = strlen(n->name);
    uint8_t sum = 0;
    for (int i = 0; i < 11; i++)
        sum = (uint8_t)(((sum & 1) << 7) + (sum >> 1) + n->alias[i]);
    for (unsigned k = count; k > 0; k--, e += ENTRY) {
        e[0] = (uint8_t)(k | (k == count ? 0x40 : 0));
        e[11] = ATTR_LFN;
        e[13] = sum;
        for (unsigned c = 0; c < LFN_CHARS; c++) {
            size_t at = (size_t)(k - 1) * LFN_CHARS + c;
            put16(e + places[c], at < len ? (uint8_t)n->name[at] : at == len ? 0 : 0xffff);
        }
    }
    return e;
}

static int write_folder(const struct hx_fat *fat, int folder, bool with_last, struct hx_disk *d,
                        struct hx_error *err)
{
    uint8_t raw[FOLDER_MAX] = {0}, *e = raw;
    const struct node *own = &fat->node[folder];
    if (folder == 0) {
        short_entry(fat->label, ATTR_LABEL, 0, 0, e);
        e += ENTRY;
    } else {
        /* The root folder is cluster 0 to its children. */
        uint32_t up = own->parent > 0 ? fat->node[own->parent].first : 0;
        short_entry((const uint8_t *)".          ", ATTR_FOLDER, own->first, 0, e);
        short_entry((const uint8_t *)"..         ", ATTR_FOLDER, up, 0, e + ENTRY);
        e += 2 * ENTRY;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 1; i < fat->n_nodes; i++) {
            const struct node *n = &fat->node[i];
            if (n->parent != folder || n->last != (pass == 1) || (n->last && !with_last))
                continue;
            e = name_entries(n, e);
            short_entry(n->alias, n->folder ? ATTR_FOLDER : ATTR_FILE, n->first,
                        n->folder ? 0 : (uint32_t)n->file->n_bytes, e);
            e += ENTRY;
        }
    }
    return hx_disk_write(d, raw, (size_t)own->n_clusters * CLUSTER, cluster_offset(fat, own->first),
                         err);
}

static int write_content(const struct hx_fat *fat, const struct node *n, uint8_t *buf,
                         struct hx_disk *d, struct hx_error *err)
{
    uint64_t left = n->file->n_bytes, at = 0;
    int r = 0;
    while (r == 0 && left > 0) {
        size_t len = left < HX_DISK_CHUNK ? (size_t)left : HX_DISK_CHUNK;
        size_t whole = (len + CLUSTER - 1) / CLUSTER * CLUSTER;
        memset(buf + len, 0, whole - len);
        if (n->file->fd < 0)
            memcpy(buf, n->file->text + at, len);
        else
            r = hx_file_pread(n->file->fd, n->file->path, buf, len, at, err);
        if (r == 0)
            r = hx_disk_write(d, buf, whole, cluster_offset(fat, n->first) + at, err);
        at += len;
        left -= len;
    }
    return r;
}

int hx_fat_write(struct hx_fat *fat, struct hx_disk *d, struct hx_error *err)
{
    uint8_t *buf = malloc(HX_DISK_CHUNK);
    if (!buf)
        return hx_fail(err, -ENOMEM, "out of memory for the ESP");
    int r = 0;
    for (int i = 1; r == 0 && i < fat->n_nodes; i++)
        if (fat->node[i].file)
            r = write_content(fat, &fat->node[i], buf, d, err);
    for (int i = 0; r == 0 && i < fat->n_nodes; i++)
        if (fat->node[i].folder)
            r = write_folder(fat, i, false, d, err);
    if (r == 0)
        r = write_tables(fat, d, err);
    if (r == 0)
        r = write_boot(fat, d, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    free(buf);
    return r;
}

int hx_fat_finish(struct hx_fat *fat, struct hx_disk *d, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; r == 0 && i < fat->n_nodes; i++) {
        bool holds = false;
        for (int j = 1; j < fat->n_nodes; j++)
            holds = holds || (fat->node[j].last && fat->node[j].parent == i);
        if (holds)
            r = write_folder(fat, i, true, d, err);
    }
    return r < 0 ? r : hx_disk_flush(d, err);
}
