#include "disk/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int running_blessed(const struct hx_update_job *job, const struct hx_kernels *list,
                           struct hx_error *err)
{
    const struct hx_kernel *k = hx_kernels_find(list, job->system->version);
    if (!job->system->installed)
        return hx_fail(err, -EPERM, "this system does not run from an installed disk");
    if (!k)
        return hx_fail(err, -EAGAIN,
                       "the ESP has no kernel image of the running version %s; start again first",
                       job->system->version);
    if (k->left >= 0)
        return hx_fail(err, -EAGAIN,
                       "version %s has not proven itself yet (%d tries left); wait until it has, "
                       "or start again",
                       job->system->version, k->left);
    return 0;
}

static int check_versions(const struct hx_update_job *job, struct hx_error *err)
{
    const struct hx_bundle *b = job->bundle;
    const char *now = job->system->version;
    int order = hx_version_compare(b->version, now);
    if (order == 0 || strcmp(b->root_hash, job->system->root_hash) == 0)
        return hx_fail(err, -EPERM, "version %s is the one that runs", now);
    if (order < 0)
        return hx_fail(err, -EPERM,
                       "version %s is older than %s, which runs; hx-update rollback goes back to "
                       "the version before",
                       b->version, now);
    if (hx_version_compare(now, b->minimum) < 0)
        return hx_fail(err, -EPERM, "version %s needs %s or later, %s runs; install that one first",
                       b->version, b->minimum, now);
    return 0;
}

static int check_sizes(const struct hx_update_job *job, const struct hx_kernels *list,
                       struct hx_error *err)
{
    const struct hx_bundle *b = job->bundle;
    const struct hx_table *t = &job->system->table;
    int root = job->system->slot ? HX_PART_ROOT_A : HX_PART_ROOT_B;
    for (int i = 0; i < 2; i++)
        if (b->part[i].n_bytes > hx_part_bytes(t, root + i))
            return hx_fail(err, -EFBIG, "the update has %llu bytes, partition %d has %llu",
                           (unsigned long long)b->part[i].n_bytes, root + i + 1,
                           (unsigned long long)hx_part_bytes(t, root + i));
    return hx_kernels_room(job->esp, list, job->system->version, b->part[HX_BUNDLE_UKI].n_bytes,
                           err);
}

static int check(const struct hx_update_job *job, struct hx_kernels *list, struct hx_error *err)
{
    int r = hx_kernels_list(job->esp, list, err);
    if (r == 0)
        r = running_blessed(job, list, err);
    if (r == 0)
        r = check_versions(job, err);
    if (r == 0)
        r = check_sizes(job, list, err);
    return r < 0 ? r : hx_bundle_check(job->bundle, job->progress, job->ctx, err);
}

int hx_update_check(const struct hx_update_job *job, struct hx_error *err)
{
    struct hx_kernels *list = calloc(1, sizeof(*list));
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory for the update");
    int r = check(job, list, err);
    free(list);
    return r;
}

static int remove_others(const struct hx_update_job *job, const struct hx_kernels *list,
                         struct hx_error *err)
{
    int r = 0;
    for (int i = 0; r == 0 && i < list->n; i++)
        if (hx_version_compare(list->image[i].version, job->system->version) != 0)
            r = hx_kernels_remove(job->esp, list->image[i].file, job->disk->watch, err);
    return r;
}

static int write_part(const struct hx_update_job *job, const struct hx_extent *from, uint64_t to,
                      uint64_t *done, uint64_t total, struct hx_error *err)
{
    uint8_t *buf = malloc(HX_DISK_CHUNK);
    int r = buf ? 0 : hx_fail(err, -ENOMEM, "out of memory for the update");
    for (uint64_t at = 0; r == 0 && at < from->n_bytes;) {
        size_t n =
            from->n_bytes - at < HX_DISK_CHUNK ? (size_t)(from->n_bytes - at) : HX_DISK_CHUNK;
        r = hx_disk_read(from->disk, buf, n, from->offset + at, err);
        if (r == 0)
            r = hx_disk_write(job->disk, buf, n, to + at, err);
        at += n;
        *done += n;
        if (r == 0 && job->progress)
            r = job->progress(job->ctx, "system", *done, total);
    }
    free(buf);
    return r;
}

static int write_slot(const struct hx_update_job *job, const struct hx_table *t, int root,
                      struct hx_error *err)
{
    const struct hx_extent *from = job->bundle->part;
    struct hx_extent to[2];
    uint64_t done = 0, total = from[0].n_bytes + from[1].n_bytes;
    int r = 0;
    for (int i = 0; r == 0 && i < 2; i++) {
        to[i] = (struct hx_extent){job->disk, hx_part_offset(t, root + i), from[i].n_bytes};
        r = write_part(job, &from[i], to[i].offset, &done, total, err);
    }
    if (r == 0)
        r = hx_disk_flush(job->disk, err);
    if (r < 0)
        return r;
    hx_disk_forget(job->disk);
    r = hx_verity_check(&to[0], &to[1], job->bundle->root_hash, job->progress, job->ctx, err);
    return r == -EBADMSG ? hx_wrap(err, r, "what was written reads back differently") : r;
}

int hx_update_write(const struct hx_update_job *job, struct hx_error *err)
{
    const struct hx_bundle *b = job->bundle;
    struct hx_kernels *list = calloc(1, sizeof(*list));
    struct hx_table *t = malloc(sizeof(*t));
    int slot = !job->system->slot, root = slot ? HX_PART_ROOT_B : HX_PART_ROOT_A;
    char file[64];
    int r = list && t ? 0 : hx_fail(err, -ENOMEM, "out of memory for the update");
    if (r == 0)
        r = check(job, list, err);
    if (r == 0)
        r = remove_others(job, list, err);
    if (r == 0) {
        *t = job->system->table;
        r = hx_layout_empty_slot(t, slot, err);
    }
    if (r == 0)
        r = hx_table_write(t, job->disk, false, err);
    if (r == 0)
        r = write_slot(job, t, root, err);
    if (r == 0)
        r = hx_layout_name_slot(t, slot, b->version, b->root_hash, err);
    if (r == 0)
        r = hx_table_write(t, job->disk, false, err);
    snprintf(file, sizeof(file), "hx170_%s+%d.efi", b->version, HX_KERNELS_TRIES);
    if (r == 0)
        r = hx_kernels_put(job->esp, file, b->part[HX_BUNDLE_UKI].disk,
                           b->part[HX_BUNDLE_UKI].offset, b->part[HX_BUNDLE_UKI].n_bytes,
                           b->sha256[HX_BUNDLE_UKI], job->disk->watch, err);
    free(list);
    free(t);
    return r < 0 ? hx_wrap(err, r, "update to %s", b->version) : 0;
}

static int tries(const struct hx_kernel *k)
{
    return k ? k->left : -2;
}

int hx_update_status(const struct hx_system *system, const char *esp, struct hx_update_status *out,
                     struct hx_error *err)
{
    struct hx_kernels *list = calloc(1, sizeof(*list));
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_kernels_list(esp, list, err);
    memset(out, 0, sizeof(*out));
    out->standby_left = -2;
    if (r == 0) {
        const char *other =
            system->installed ? hx_layout_slot_version(&system->table, !system->slot) : NULL;
        out->left = tries(hx_kernels_find(list, system->version));
        if (other) {
            snprintf(out->standby, sizeof(out->standby), "%s", other);
            out->standby_left = tries(hx_kernels_find(list, other));
        }
        bool standby_usable = out->standby_left == -1 || out->standby_left > 0;
        bool running_usable = out->left == -1 || out->left > 0;
        out->next_is_standby =
            standby_usable && (!running_usable || hx_version_compare(other, system->version) > 0);
    }
    free(list);
    return r;
}

/* The two GUIDs are the root hash. */
static void slot_hash(const struct hx_table *t, int root, char out[HX_ROOT_HASH_HEX + 1])
{
    char text[HX_GUID_TEXT];
    int n = 0;
    for (int i = 0; i < 2; i++) {
        hx_guid_text(t->part[root + i].guid, text);
        for (const char *p = text; *p; p++)
            if (*p != '-')
                out[n++] = *p;
    }
    out[n] = '\0';
}

int hx_update_prove_standby(const struct hx_update_job *job, struct hx_error *err)
{
    const struct hx_table *t = &job->system->table;
    int root = job->system->slot ? HX_PART_ROOT_A : HX_PART_ROOT_B;
    char hash[HX_ROOT_HASH_HEX + 1];
    struct hx_extent data = {job->disk, hx_part_offset(t, root), hx_part_bytes(t, root)};
    struct hx_extent tree = {job->disk, hx_part_offset(t, root + 1), hx_part_bytes(t, root + 1)};
    slot_hash(t, root, hash);
    return hx_verity_check(&data, &tree, hash, job->progress, job->ctx, err);
}

static int give_up_running(const struct hx_update_job *job, const struct hx_kernels *list,
                           struct hx_error *err)
{
    char worn[64];
    snprintf(worn, sizeof(worn), "hx170_%s+0-%d.efi", job->system->version, HX_KERNELS_TRIES);
    int r = 0;
    for (int i = 0; r == 0 && i < list->n; i++)
        if (hx_version_compare(list->image[i].version, job->system->version) == 0 &&
            list->image[i].left != 0)
            r = hx_kernels_rename(job->esp, list->image[i].file, worn, job->disk->watch, err);
    return r;
}

int hx_update_rollback(const struct hx_update_job *job, struct hx_error *err)
{
    struct hx_kernels *list = calloc(1, sizeof(*list));
    const char *other = NULL;
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = job->system->installed
                ? hx_kernels_list(job->esp, list, err)
                : hx_fail(err, -EPERM, "this system does not run from an installed disk");
    if (r == 0)
        other = hx_layout_slot_version(&job->system->table, !job->system->slot);
    const struct hx_kernel *k = other ? hx_kernels_find(list, other) : NULL;
    if (r == 0 && (!k || k->left == 0))
        r = hx_fail(err, -ENODATA, "there is no other version to go back to");
    if (r == 0 && hx_version_compare(other, job->system->version) > 0) {
        /* An update that no start has taken yet is withdrawn; the running version stays. */
        r = hx_kernels_remove(job->esp, k->file, job->disk->watch, err);
    } else if (r == 0) {
        r = hx_update_prove_standby(job, err);
        if (r == 0)
            r = give_up_running(job, list, err);
    }
    free(list);
    return r < 0 ? hx_wrap(err, r, "rollback") : 0;
}
