#include "disk/install.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk/fat.h"
#include "disk/sums.h"

#define ESP_DEPTH   6
#define ANSWERS_MAX (1u << 20)

struct esp_list {
    int n;
    struct hx_fat_file file[HX_FAT_FILES];
};

/* What of the stick's ESP stays on the stick: its mode switch, its owner's answers and keys, the
 * seed that must be nobody else's, other kernel images. */
static bool stays_behind(const char *path, const char *kernel)
{
    static const char *const names[] = {"loader/random-seed", "hx170-answers.conf",
                                        "authorized_keys", "hx170"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcasecmp(path, names[i]) == 0)
            return true;
    if (strncasecmp(path, "loader/addons/installer", 23) == 0)
        return true;
    return strncasecmp(path, "EFI/Linux/", 10) == 0 && strcasecmp(path + 10, kernel) != 0;
}

static int add_file(struct esp_list *list, const char *path, int fd, uint64_t n_bytes, bool last,
                    struct hx_error *err)
{
    if (list->n == HX_FAT_FILES) {
        close(fd);
        return hx_fail(err, -EFBIG, "more than %d files on the ESP", HX_FAT_FILES);
    }
    struct hx_fat_file *f = &list->file[list->n++];
    snprintf(f->path, sizeof(f->path), "%s", path);
    f->fd = fd;
    f->n_bytes = n_bytes;
    f->last = last;
    return 0;
}

static int take_entry(struct esp_list *list, int dir, const char *path, const char *kernel,
                      int depth, struct hx_error *err);

static int take_folder(struct esp_list *list, int fd, const char *path, const char *kernel,
                       int depth, struct hx_error *err)
{
    DIR *d = fdopendir(fd);
    char below[HX_DISK_PATH];
    int r = 0;
    if (!d) {
        r = hx_fail_errno(err, errno, "ESP folder '%s'", path);
        close(fd);
        return r;
    }
    for (struct dirent *e = readdir(d); r == 0 && e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int n = snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", e->d_name);
        if (n >= (int)sizeof(below) || depth == 0)
            r = hx_fail(err, -ENAMETOOLONG, "ESP: '%.80s...' lies too deep", path);
        else if (!stays_behind(below, kernel))
            r = take_entry(list, dirfd(d), below, kernel, depth - 1, err);
    }
    closedir(d);
    return r;
}

static int take_entry(struct esp_list *list, int dir, const char *path, const char *kernel,
                      int depth, struct hx_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int r = hx_fail_errno(err, errno, "ESP file '%s'", path);
        if (fd >= 0)
            close(fd);
        return r;
    }
    if (S_ISDIR(st.st_mode))
        return take_folder(list, fd, path, kernel, depth, err);
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return hx_fail(err, -EINVAL, "ESP: '%s' is not a file", path);
    }
    bool is_kernel = strncasecmp(path, "EFI/Linux/", 10) == 0;
    return add_file(list, path, fd, (uint64_t)st.st_size, is_kernel, err);
}

static void close_list(struct esp_list *list)
{
    if (!list)
        return;
    for (int i = 0; i < list->n; i++)
        close(list->file[i].fd);
    free(list);
}

static int list_esp(const struct hx_install_job *job, struct esp_list **out, struct hx_error *err)
{
    struct esp_list *list = calloc(1, sizeof(*list));
    char kernel[64];
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory for the ESP");
    snprintf(kernel, sizeof(kernel), "hx170_%s.efi", job->from->version);
    int r = 0, fd = open(job->esp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        r = hx_fail_errno(err, errno, "%s: the ESP of the stick", job->esp);
    else
        r = take_folder(list, fd, "", kernel, ESP_DEPTH, err);
    bool has_kernel = false, has_loader = false;
    for (int i = 0; i < list->n; i++) {
        has_kernel = has_kernel || list->file[i].last;
        has_loader = has_loader || strcasecmp(list->file[i].path, "EFI/BOOT/BOOTX64.EFI") == 0;
    }
    if (r == 0 && (!has_kernel || !has_loader))
        r = hx_fail(err, -ENOENT, "%s: %s is missing on the stick; write the image to it again",
                    job->esp, has_kernel ? "EFI/BOOT/BOOTX64.EFI" : kernel);
    struct stat st;
    fd = r == 0 && job->answers ? open(job->answers, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (r == 0 && job->answers) {
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > ANSWERS_MAX) {
            r = hx_fail(err, -EINVAL, "%s: not a file of answers", job->answers);
            if (fd >= 0)
                close(fd);
        } else {
            r = add_file(list, "hx170-answers.conf", fd, (uint64_t)st.st_size, false, err);
        }
    }
    if (r < 0) {
        close_list(list);
        return r;
    }
    *out = list;
    return 0;
}

static struct hx_extent source_part(const struct hx_install_job *job, int index)
{
    const struct hx_table *t = &job->from->table;
    return (struct hx_extent){job->source, hx_part_offset(t, index), hx_part_bytes(t, index)};
}

int hx_install_check_stick(const struct hx_install_job *job, struct hx_error *err)
{
    struct esp_list *list;
    struct hx_extent root = source_part(job, job->from->root);
    struct hx_extent tree = source_part(job, job->from->verity);
    int r = hx_verity_check(&root, &tree, job->from->root_hash, job->progress, job->ctx, err);
    if (r == 0)
        r = hx_sums_check(job->esp, err);
    if (r == 0)
        r = list_esp(job, &list, err);
    if (r < 0)
        return hx_wrap(err, r, "this stick is not in order; write the image to it again");
    close_list(list);
    return 0;
}

static int plan(const struct hx_install_job *job, const struct hx_disk *target,
                struct hx_table *old, struct hx_table *out, struct hx_error *err)
{
    int r = 0;
    if (job->keep_models) {
        r = hx_table_read(target, old, NULL, err);
        if (r == -ENODATA || (r == 0 && !hx_layout_is_installed(old)))
            return hx_fail(err, -ENODATA, "%s: no hx170 system on it whose models could be kept",
                           target->path);
    }
    if (r == 0)
        r = hx_layout_make(target, job->keep_models ? old : NULL, out, err);
    struct hx_extent root = source_part(job, job->from->root);
    struct hx_extent tree = source_part(job, job->from->verity);
    if (r == 0 && (root.n_bytes > hx_part_bytes(out, HX_PART_ROOT_A) ||
                   tree.n_bytes > hx_part_bytes(out, HX_PART_VERITY_A)))
        r = hx_fail(err, -EFBIG, "the system is larger than its partitions");
    return r;
}

int hx_install_check(const struct hx_install_job *job, const struct hx_disk *target,
                     struct hx_error *err)
{
    struct hx_table *t = calloc(2, sizeof(*t));
    struct esp_list *list = NULL;
    if (!t)
        return hx_fail(err, -ENOMEM, "out of memory for a partition table");
    int r = plan(job, target, &t[0], &t[1], err);
    if (r == 0)
        r = list_esp(job, &list, err);
    close_list(list);
    free(t);
    return r;
}

static int make_blank(const struct hx_install_job *job, const struct hx_table *old,
                      struct hx_table *t, struct hx_disk *d, struct hx_error *err)
{
    int r;
    if (!job->keep_models) {
        r = hx_disk_zero(d, 0, HX_DISK_MIB, err);
        if (r == 0)
            r = hx_disk_zero(d, d->n_bytes - HX_DISK_MIB, HX_DISK_MIB, err);
        return r < 0 ? r : hx_disk_flush(d, err);
    }
    /* The table stays, since only it knows where the models are; without an ESP nothing boots. */
    r = hx_disk_zero(d, hx_part_offset(old, HX_PART_ESP), HX_DISK_MIB, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    return r < 0 ? r : hx_table_write(t, d, true, err);
}

static int copy_part(const struct hx_install_job *job, const struct hx_extent *from, uint64_t to,
                     struct hx_disk *d, uint64_t *done, uint64_t total, struct hx_error *err)
{
    uint8_t *buf = malloc(HX_DISK_CHUNK);
    int r = buf ? 0 : hx_fail(err, -ENOMEM, "out of memory for the copy");
    for (uint64_t at = 0; r == 0 && at < from->n_bytes;) {
        size_t n =
            from->n_bytes - at < HX_DISK_CHUNK ? (size_t)(from->n_bytes - at) : HX_DISK_CHUNK;
        r = hx_disk_read(from->disk, buf, n, from->offset + at, err);
        if (r == 0)
            r = hx_disk_write(d, buf, n, to + at, err);
        at += n;
        *done += n;
        if (r == 0 && job->progress)
            r = job->progress(job->ctx, "system", *done, total);
    }
    free(buf);
    return r;
}

static int write_slot(const struct hx_install_job *job, const struct hx_table *t, struct hx_disk *d,
                      struct hx_error *err)
{
    struct hx_extent root = source_part(job, job->from->root);
    struct hx_extent tree = source_part(job, job->from->verity);
    struct hx_extent new_root = {d, hx_part_offset(t, HX_PART_ROOT_A), root.n_bytes};
    struct hx_extent new_tree = {d, hx_part_offset(t, HX_PART_VERITY_A), tree.n_bytes};
    uint64_t done = 0, total = root.n_bytes + tree.n_bytes;
    int r = copy_part(job, &root, new_root.offset, d, &done, total, err);
    if (r == 0)
        r = copy_part(job, &tree, new_tree.offset, d, &done, total, err);
    if (r == 0)
        r = hx_disk_flush(d, err);
    if (r < 0)
        return r;
    hx_disk_forget(d);
    r = hx_verity_check(&new_root, &new_tree, job->from->root_hash, job->progress, job->ctx, err);
    return r == -EBADMSG ? hx_wrap(err, r, "what was written reads back differently") : r;
}

static int write_blank_parts(const struct hx_install_job *job, const struct hx_table *t,
                             struct hx_disk *d, struct hx_error *err)
{
    int r = hx_disk_zero(d, hx_part_offset(t, HX_PART_STATE), HX_DISK_MIB, err);
    if (r == 0 && !job->keep_models)
        r = hx_disk_zero(d, hx_part_offset(t, HX_PART_MODELS), HX_DISK_MIB, err);
    return r < 0 ? r : hx_disk_flush(d, err);
}

static int write_all(const struct hx_install_job *job, const struct hx_table *old,
                     struct hx_table *t, struct hx_fat *fat, struct hx_disk *d,
                     struct hx_error *err)
{
    int r = make_blank(job, old, t, d, err);
    if (r == 0)
        r = write_slot(job, t, d, err);
    if (r == 0)
        r = write_blank_parts(job, t, d, err);
    if (r == 0 && job->progress)
        r = job->progress(job->ctx, "esp", 0, 1);
    if (r == 0)
        r = hx_fat_write(fat, d, err);
    if (r == 0)
        r = hx_layout_name_slot(t, 0, job->from->version, job->from->root_hash, err);
    if (r == 0)
        r = hx_table_write(t, d, true, err);
    if (r == 0)
        r = hx_fat_finish(fat, d, err);
    if (r == 0 && job->progress)
        r = job->progress(job->ctx, "esp", 1, 1);
    return r;
}

int hx_install_write(const struct hx_install_job *job, struct hx_disk *target, struct hx_error *err)
{
    struct hx_table *t = calloc(2, sizeof(*t));
    struct esp_list *list = NULL;
    struct hx_fat *fat = NULL;
    if (!t)
        return hx_fail(err, -ENOMEM, "out of memory for a partition table");
    int r = plan(job, target, &t[0], &t[1], err);
    if (r == 0)
        r = list_esp(job, &list, err);
    if (r == 0)
        r = hx_fat_plan(target, hx_part_offset(&t[1], HX_PART_ESP),
                        hx_part_bytes(&t[1], HX_PART_ESP), "ESP", list->file, list->n, &fat, err);
    if (r == 0) {
        r = write_all(job, &t[0], &t[1], fat, target, err);
        if (r < 0)
            r = hx_wrap(err, r, "installing on %s", target->path);
        else
            hx_disk_reread(target);
    }
    hx_fat_free(fat);
    close_list(list);
    free(t);
    return r;
}
