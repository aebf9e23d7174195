#include "fetch/disk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#define GIB          0x1p30
#define INODES_EXTRA 64u /* journals, folders, state */

enum fs_class { FS_LOCAL, FS_NETWORK, FS_SMALL_FILES, FS_MEMORY };

static const struct {
    long magic;
    const char *name;
    enum fs_class class;
} kinds[] = {
    {0xEF53, "ext4", FS_LOCAL},         {0x58465342, "xfs", FS_LOCAL},
    {0x9123683E, "btrfs", FS_LOCAL},    {0xF2F52010, "f2fs", FS_LOCAL},
    {0x2FC12FC1, "zfs", FS_LOCAL},      {0xCA451A4E, "bcachefs", FS_LOCAL},
    {0x794C7630, "overlay", FS_LOCAL},  {0x2011BAB0, "exfat", FS_LOCAL},
    {0x7366746E, "ntfs", FS_LOCAL},     {0x5346544E, "ntfs", FS_LOCAL},
    {0x65735546, "fuse", FS_LOCAL},     {0x4D44, "fat", FS_SMALL_FILES},
    {0x01021994, "tmpfs", FS_MEMORY},   {0x6969, "nfs", FS_NETWORK},
    {0x517B, "smb", FS_NETWORK},        {0xFF534D42, "cifs", FS_NETWORK},
    {0xFE534D42, "smb", FS_NETWORK},    {0x01021997, "9p", FS_NETWORK},
    {0x00C36400, "ceph", FS_NETWORK},   {0x5346414F, "afs", FS_NETWORK},
    {0x0BD00BD0, "lustre", FS_NETWORK}, {0x47504653, "gpfs", FS_NETWORK},
    {0x73757245, "coda", FS_NETWORK},
};

#define FAT_LIMIT 0xFFFFFFFFu /* bytes of one file */

static const char *kind_name(long magic, char out[24], enum fs_class *class)
{
    *class = FS_LOCAL;
    snprintf(out, 24, "0x%lx", (unsigned long)magic);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].magic == magic) {
            *class = kinds[i].class;
            snprintf(out, 24, "%s", kinds[i].name);
        }
    }
    return out;
}

uint64_t hx_disk_need(uint64_t data)
{
    const uint64_t most = 2ull << 30;
    uint64_t extra = data / 16 + (1u << 20);
    return data + data / 100 + (extra < most ? extra : most);
}

uint64_t hx_disk_reserve(uint64_t total, uint64_t reserve)
{
    if (reserve == 0)
        return 0;
    return total / 20 > reserve ? total / 20 : reserve;
}

/* ---- the files ------------------------------------------------------------------------------- */

/* Bytes that a file has on the disk already, reserved ones included. */
static uint64_t present(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Status of the nearest folder above path that exists; path is cut down to it. */
static int nearest(char *path, struct stat *st)
{
    for (;;) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return -ENOENT;
        if (slash == path) {
            path[1] = '\0';
            return stat(path, st) < 0 ? -errno : 0;
        }
        *slash = '\0';
        if (stat(path, st) == 0)
            return 0;
        if (errno != ENOENT)
            return -errno;
    }
}

struct scan {
    const struct hx_disk_options *opt;
    const struct hx_plan *plan;
    struct hx_disk_report *report;
    dev_t dev[HX_DISK_MAX_PLACES];
    uint64_t largest[HX_DISK_MAX_PLACES];
    struct hx_error *err;
};

static int find_place(struct scan *s, const char *path, size_t *out)
{
    char dir[1024];
    struct stat st;
    struct hx_disk_report *report = s->report;
    snprintf(dir, sizeof(dir), "%s", path);
    int r = nearest(dir, &st);
    if (r < 0)
        return hx_fail_errno(s->err, -r, "folder of the models, %s", dir);
    for (*out = 0; *out < report->n_places; (*out)++) {
        if (s->dev[*out] == st.st_dev)
            return 0;
    }
    if (report->n_places == HX_DISK_MAX_PLACES)
        return hx_fail(s->err, -EOPNOTSUPP, "%s: the files lie on more than %d file systems",
                       s->opt->models, HX_DISK_MAX_PLACES);
    struct hx_disk_place *p = &report->place[report->n_places];
    *p = (struct hx_disk_place){0};
    snprintf(p->dir, sizeof(p->dir), "%s", dir);
    s->dev[report->n_places++] = st.st_dev;
    return 0;
}

static int add_file(struct scan *s, const struct hx_plan_file *p)
{
    static const struct {
        const char *folder, *end;
    } forms[] = {{"", ""}, {"incoming/", ""}, {"incoming/", ".part"}};
    uint64_t most = 0;
    size_t at = 0;
    char path[1024];
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        int n = snprintf(path, sizeof(path), "%s/%s%s/%s%s", s->opt->models, forms[i].folder,
                         s->plan->lock->model, p->lock->out, forms[i].end);
        if (n < 0 || (size_t)n >= sizeof(path))
            return hx_fail(s->err, -ENAMETOOLONG, "%s: the path is too long", s->opt->models);
        uint64_t there = present(path);
        most = there > most ? there : most;
    }
    int r = find_place(s, path, &at);
    if (r < 0)
        return r;
    struct hx_disk_place *place = &s->report->place[at];
    place->n_files++;
    place->data += p->out_bytes > most ? p->out_bytes - most : 0;
    place->engram |= p->lock->group == HX_GROUP_ENGRAM;
    s->largest[at] = p->out_bytes > s->largest[at] ? p->out_bytes : s->largest[at];
    return 0;
}

/* ---- the file systems ------------------------------------------------------------------------ */

HX_PRINTF(2, 3)
static void warn(struct hx_disk_report *report, const char *fmt, ...)
{
    va_list ap;
    if (report->n_warnings == sizeof(report->warning) / sizeof(report->warning[0]))
        return;
    va_start(ap, fmt);
    vsnprintf(report->warning[report->n_warnings++], sizeof(report->warning[0]), fmt, ap);
    va_end(ap);
}

/* Not an NVMe drive, as far as the kernel says; file systems without a device of their own do not
 * say. */
static bool is_slow(dev_t dev)
{
    char link[64], path[4096];
    if (major(dev) == 0)
        return false;
    snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
    return realpath(link, path) && !strstr(path, "/nvme") && !strstr(path, "/virtual/");
}

static int check_place(struct scan *s, size_t i)
{
    struct hx_disk_place *p = &s->report->place[i];
    struct statfs fs;
    enum fs_class class;
    if (statfs(p->dir, &fs) < 0)
        return hx_fail_errno(s->err, errno, "%s: cannot ask for free space", p->dir);
    uint64_t unit = fs.f_frsize > 0 ? (uint64_t)fs.f_frsize : (uint64_t)fs.f_bsize;
    kind_name((long)fs.f_type, p->kind, &class);
    p->free = fs.f_bavail * unit;
    p->need = p->data ? hx_disk_need(p->data) : 0;
    p->reserve = hx_disk_reserve(fs.f_blocks * unit, s->opt->reserve);
    p->known_slow = is_slow(s->dev[i]);
    if (class == FS_SMALL_FILES && s->largest[i] > FAT_LIMIT)
        return hx_fail(s->err, -EOPNOTSUPP,
                       "%s: a FAT file system cannot hold files above 4 GiB, the largest one here "
                       "has %.1f GiB; use ext4 or xfs",
                       p->dir, (double)s->largest[i] / GIB);
    if (class == FS_NETWORK && !s->opt->network)
        return hx_fail(
            s->err, -EOPNOTSUPP,
            "%s: is a network file system (%s); the model needs a local drive. To use it "
            "anyway, set [fetch] network_disks = yes",
            p->dir, p->kind);
    if (class == FS_MEMORY)
        warn(s->report, "%s lies in memory (tmpfs): the model is gone after a restart", p->dir);
    if (p->engram && p->known_slow)
        warn(s->report,
             "%s is not on an NVMe drive: Engram rows are read from it while the model runs",
             p->dir);
    if (fs.f_files > 0 && fs.f_ffree < 2 * p->n_files + INODES_EXTRA)
        return hx_fail(s->err, -ENOSPC, "%s: %llu inodes are free, %llu files are to be made",
                       p->dir, (unsigned long long)fs.f_ffree, (unsigned long long)p->n_files);
    return 0;
}

/* "3.2 MiB", "412.05 GiB" */
static const char *amount(uint64_t n, char out[24])
{
    if (n < 1u << 30)
        snprintf(out, 24, "%.1f MiB", (double)n / 0x1p20);
    else
        snprintf(out, 24, "%.2f GiB", (double)n / GIB);
    return out;
}

int hx_disk_check(const struct hx_disk_options *opt, const struct hx_plan *plan,
                  struct hx_disk_report *report, struct hx_error *err)
{
    struct scan s = {.opt = opt, .plan = plan, .report = report, .err = err};
    int r = 0;
    *report = (struct hx_disk_report){0};
    for (size_t i = 0; r == 0 && i < plan->n_files; i++)
        r = add_file(&s, &plan->files[i]);
    for (size_t i = 0; r == 0 && i < report->n_places; i++)
        r = check_place(&s, i);
    if (r < 0)
        return r;
    char text[800] = "";
    size_t at = 0;
    for (size_t i = 0; i < report->n_places; i++) {
        const struct hx_disk_place *p = &report->place[i];
        uint64_t want = p->need + p->reserve;
        if (p->need == 0 || p->free >= want || at >= sizeof(text))
            continue;
        char need[24], reserve[24], room[24], missing[24];
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               "%s%s: needed %s and %s that stay free, free %s, missing %s",
                               at ? "; " : "", p->dir, amount(p->need, need),
                               amount(p->reserve, reserve), amount(p->free, room),
                               amount(want - p->free, missing));
    }
    return at ? hx_fail(err, -ENOSPC, "not enough room on the disk: %s", text) : 0;
}
