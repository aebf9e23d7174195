/* A whole file of the same file system, taken over without copying. */
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch/step.h"
#include "fetch/store_int.h"

/* Digests of all chunks and of the file, read from fd. 1: what the lock file says, 0: not. */
static int hash_source(struct hx_store_file *f, int fd, uint8_t (*digest)[HX_SHA256_BYTES],
                       struct hx_sha256 *all, struct hx_error *err)
{
    struct hx_part source = {.path = f->part_path, .fd = fd, .fd_direct = -1};
    struct hx_sha256 *one = NULL, *end = NULL;
    uint8_t *buf = malloc(HX_STORE_BLOCK), whole[HX_SHA256_BYTES];
    bool right = true;
    int r = buf ? 0 : hx_fail(err, -ENOMEM, "%s: out of memory", f->plan->lock->out);
    if (r == 0)
        r = hx_sha256_new(&one, err);
    if (r == 0)
        r = hx_sha256_new(&end, err);
    atomic_init(&source.direct, false);
    for (size_t i = 0; r == 0 && right && i < f->plan->n_chunks; i++) {
        const struct hx_plan_chunk *c = &f->plan->chunks[i];
        hx_sha256_reset(one);
        for (uint64_t at = 0; r == 0 && at < c->out_bytes;) {
            size_t n =
                c->out_bytes - at < HX_STORE_BLOCK ? (size_t)(c->out_bytes - at) : HX_STORE_BLOCK;
            r = hx_part_read(&source, buf, n, c->out_begin + at, err);
            if (r == 0)
                hx_sha256_update_pair(one, all, buf, n);
            at += n;
        }
        hx_sha256_final(one, digest[i]);
        right = !c->sha256 || memcmp(digest[i], c->sha256, HX_SHA256_BYTES) == 0;
    }
    if (r == 0 && right) {
        hx_sha256_copy(end, all);
        hx_sha256_final(end, whole);
        right = memcmp(whole, f->plan->lock->sha256, HX_SHA256_BYTES) == 0;
    }
    hx_sha256_free(one);
    hx_sha256_free(end);
    free(buf);
    return r < 0 ? r : right;
}

/* The part gets the source's blocks (reflink), or is the source (hard link). 0: neither works. */
static int take_over(struct hx_store *s, struct hx_store_file *f, int fd, struct hx_error *err)
{
    char name[64], *link = NULL;
    if (ioctl(f->part.fd, FICLONE, fd) == 0)
        return 1;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (asprintf(&link, "%s.link", f->part_path) < 0)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->part_path);
    unlink(link);
    int r = 0;
    if (linkat(AT_FDCWD, name, AT_FDCWD, link, AT_SYMLINK_FOLLOW) == 0) {
        struct hx_part part;
        r = rename(link, f->part_path) < 0
                ? hx_fail_errno(err, errno, "%s: cannot rename to %s", link, f->part_path)
                : hx_part_open_read(f->part_path, s->opt.direct, &part, err);
        if (r == 0) {
            hx_part_close(&f->part);
            f->part.path = part.path;
            f->part.fd = part.fd;
            f->part.fd_direct = part.fd_direct;
            f->part.reserved = true;
            atomic_store(&f->part.direct, part.fd_direct >= 0);
            memcpy(f->part.device, part.device, sizeof(part.device));
            r = 1;
        }
    }
    free(link);
    return r;
}

static int record(struct hx_store *s, struct hx_store_file *f, uint8_t (*digest)[HX_SHA256_BYTES],
                  struct hx_error *err)
{
    struct hx_journal_entry *e = calloc(f->plan->n_chunks + 1, sizeof(*e));
    if (!e)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->plan->lock->out);
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        e[i] =
            (struct hx_journal_entry){.type = HX_JOURNAL_CHUNK,
                                      .flags = f->plan->chunks[i].sha256 ? HX_JOURNAL_CHECKED : 0,
                                      .index = (uint32_t)i,
                                      .length = f->plan->chunks[i].out_bytes};
        memcpy(e[i].digest, digest[i], HX_SHA256_BYTES);
    }
    int r = hx_part_sync(&f->part, err);
    if (r == 0)
        r = hx_file_record(s, f, e, f->plan->n_chunks, err);
    free(e);
    return r;
}

int hx_store_adopt(struct hx_store *store, size_t file, int fd, struct hx_error *err)
{
    struct hx_store_file *f = &store->files[file];
    uint8_t(*digest)[HX_SHA256_BYTES] = NULL;
    struct hx_sha256 *all = NULL;
    struct stat a, b;
    pthread_mutex_lock(&store->m);
    bool fresh = f->phase == HX_FILE_GROWING && !f->plan->header && !f->sinks && !f->checking &&
                 f->n_done == 0 && f->n_written == 0;
    pthread_mutex_unlock(&store->m);
    /* Without a hash of the whole file a copy could not be told from the real thing. */
    if (!fresh || !f->plan->lock->has_sha256 || f->plan->n_chunks == 0 || fstat(fd, &a) < 0 ||
        fstat(f->part.fd, &b) < 0 || a.st_dev != b.st_dev ||
        (uint64_t)a.st_size != f->plan->out_bytes)
        return 0;
    digest = calloc(f->plan->n_chunks, sizeof(*digest));
    int r = digest ? hx_sha256_new(&all, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hash_source(f, fd, digest, all, err);
    if (r == 1)
        r = take_over(store, f, fd, err);
    hx_fetch_step("file taken over");
    if (r == 1) {
        int e = record(store, f, digest, err);
        r = e < 0 ? e : 1;
    }
    if (r == 1) {
        pthread_mutex_lock(&store->m);
        for (size_t i = 0; i < f->plan->n_chunks; i++) {
            f->chunks[i].state = HX_CHUNK_DONE;
            f->chunks[i].flags = f->plan->chunks[i].sha256 ? HX_JOURNAL_CHECKED : 0;
            memcpy(f->chunks[i].digest, digest[i], HX_SHA256_BYTES);
            store->bytes_done += f->plan->chunks[i].out_bytes;
        }
        f->n_done = f->plan->n_chunks;
        if (f->front_hash) {
            hx_sha256_copy(f->front_hash, all);
            f->front = f->plan->out_bytes;
        }
        pthread_cond_signal(&store->check);
        pthread_mutex_unlock(&store->m);
    }
    hx_sha256_free(all);
    free(digest);
    return r;
}
