/* Published files that become parts again, and the lock that keeps downloaders apart. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch/step.h"
#include "fetch/store_int.h"

int hx_store_lock(const char *models, int *fd, struct hx_error *err)
{
    char text[32], *path = NULL;
    if (asprintf(&path, "%s/incoming/.hx-fetch.lock", models) < 0)
        return hx_fail(err, -ENOMEM, "out of memory");
    int lock = -1, r = hx_folder_make_for(path, err);
    if (r == 0) {
        lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (lock < 0)
            r = hx_fail_errno(err, errno, "%s: cannot open", path);
    }
    if (r == 0 && flock(lock, LOCK_EX | LOCK_NB) < 0) {
        ssize_t n = errno == EWOULDBLOCK ? pread(lock, text, sizeof(text) - 1, 0) : -1;
        if (n < 0) {
            r = hx_fail_errno(err, errno, "%s: cannot lock", path);
        } else {
            text[n] = '\0';
            text[strspn(text, "0123456789")] = '\0';
            r = hx_fail(err, -EBUSY,
                        "%s: another hx-fetch works in this folder (process %s); wait for it or "
                        "stop it",
                        path, *text ? text : "unknown");
        }
    }
    if (r == 0) {
        /* For the message above alone: nothing depends on it. */
        int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
        if (ftruncate(lock, 0) < 0 || pwrite(lock, text, (size_t)n, 0) != n)
            r = hx_fail_errno(err, errno ? errno : EIO, "%s: cannot write", path);
    }
    free(path);
    if (r < 0) {
        if (lock >= 0)
            close(lock);
        return r;
    }
    *fd = lock;
    return 0;
}

int hx_plan_layout(const struct hx_plan_file *p, uint8_t out[HX_SHA256_BYTES], struct hx_error *err)
{
    struct hx_sha256 *h = NULL;
    int r = hx_sha256_new(&h, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < p->n_chunks; i++) {
        uint8_t b[16];
        for (int k = 0; k < 8; k++) {
            b[k] = (uint8_t)(p->chunks[i].out_begin >> (8 * k));
            b[8 + k] = (uint8_t)(p->chunks[i].out_bytes >> (8 * k));
        }
        hx_sha256_update(h, b, sizeof(b));
    }
    hx_sha256_final(h, out);
    hx_sha256_free(h);
    return 0;
}

static char *incoming_path(const char *models, const struct hx_plan *plan, size_t file,
                           const char *suffix)
{
    char *p = NULL;
    int n = asprintf(&p, "%s/incoming/%s/%s%s", models, plan->lock->model,
                     plan->files[file].lock->out, suffix);
    return n < 0 ? NULL : p;
}

int hx_store_hand_back(const char *models, const struct hx_plan *plan, size_t file,
                       const uint8_t identity[32], const bool *bad, const uint8_t (*digest)[32],
                       struct hx_error *err)
{
    const struct hx_plan_file *p = &plan->files[file];
    struct hx_journal j = HX_JOURNAL_INIT;
    struct hx_journal_entry *e = calloc(p->n_chunks + 3, sizeof(*e));
    char *path = incoming_path(models, plan, file, ".journal");
    char *part = incoming_path(models, plan, file, ".part");
    char *ready = incoming_path(models, plan, file, "");
    size_t n = 2;
    int r = e && path && part && ready ? hx_folder_make_for(path, err)
                                       : hx_fail(err, -ENOMEM, "out of memory");
    /* It was handed back before and its repair has begun. */
    if (r == 0 && (access(part, F_OK) == 0 || access(ready, F_OK) == 0))
        goto out;
    if (r == 0) {
        e[0] = (struct hx_journal_entry){
            .type = HX_JOURNAL_PLAN, .index = (uint32_t)p->n_chunks, .length = p->out_bytes};
        memcpy(e[0].digest, identity, HX_SHA256_BYTES);
        e[1] = (struct hx_journal_entry){.type = HX_JOURNAL_CONTENT};
        r = hx_plan_layout(p, e[1].digest, err);
    }
    for (size_t i = 0; r == 0 && i < p->n_chunks; i++) {
        if (bad[i])
            continue;
        e[n] = (struct hx_journal_entry){.type = HX_JOURNAL_CHUNK,
                                         .flags = HX_JOURNAL_SCANNED,
                                         .index = (uint32_t)i,
                                         .length = p->chunks[i].out_bytes};
        memcpy(e[n++].digest, digest[i], HX_SHA256_BYTES);
    }
    if (r == 0) {
        e[n++] = (struct hx_journal_entry){.type = HX_JOURNAL_BACK};
        r = hx_journal_create(path, e, n, &j, err);
    }
out:
    hx_journal_close(&j);
    free(path);
    free(part);
    free(ready);
    free(e);
    return r;
}

static int copy_data(int from, int to, const char *path, struct hx_error *err)
{
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, (size_t)1 << 30, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hx_fail_errno(err, errno, "%s: cannot copy", path);
        if (n == 0)
            break;
    }
    return fdatasync(to) < 0 ? hx_fail_errno(err, errno, "%s: cannot sync the copy", path) : 0;
}

/* A file that somebody else has a name for must not be written to. */
static int break_link(struct hx_store_file *f, struct hx_error *err)
{
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.copy", f->part_path) < 0)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->part_path);
    int from = open(f->final_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), r = 0;
    int to = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (from < 0 || to < 0)
        r = hx_fail_errno(err, errno, "%s: cannot copy to %s", f->final_path, fresh);
    else
        r = copy_data(from, to, f->final_path, err);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    if (r == 0 && rename(fresh, f->part_path) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot rename to %s", fresh, f->part_path);
    if (r == 0 && unlink(f->final_path) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot remove", f->final_path);
    if (r < 0)
        unlink(fresh);
    free(fresh);
    return r;
}

int hx_file_take_back(struct hx_store_file *f, struct hx_error *err)
{
    struct stat st;
    int r = 0;
    if (lstat(f->part_path, &st) == 0 || lstat(f->final_path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (st.st_nlink > 1)
        r = break_link(f, err);
    else if (rename(f->final_path, f->part_path) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot rename to %s", f->final_path, f->part_path);
    hx_fetch_step("published file taken back");
    /* Chunks beyond the end of a file that was cut short are bad ones. */
    if (r == 0 && truncate(f->part_path, (off_t)f->plan->out_bytes) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot set its length", f->part_path);
    return r;
}
