/* What a restart finds: every file in one of the states that a cut can leave (docs/fetch.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch/state.h"
#include "fetch/step.h"
#include "fetch/store_int.h"

#define REHASH_BYTES ((uint64_t)256 << 20) /* last records of a file after an unclean end */
#define HASH_STEP    ((uint64_t)1 << 30)   /* the running hash is saved this often */

struct progress {
    void (*fn)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
    uint64_t done, total;
};

static char *path_of(const char *dir, const char *out, const char *suffix)
{
    char *p = NULL;
    return asprintf(&p, "%s/%s%s", dir, out, suffix) < 0 ? NULL : p;
}

static bool has_size(const char *path, uint64_t n_bytes)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == n_bytes;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static struct hx_journal_entry chunk_entry(const struct hx_store_file *f, size_t i)
{
    struct hx_journal_entry e = {.type = HX_JOURNAL_CHUNK,
                                 .flags = f->chunks[i].flags,
                                 .index = (uint32_t)i,
                                 .length = f->plan->chunks[i].out_bytes};
    memcpy(e.digest, f->chunks[i].digest, HX_SHA256_BYTES);
    return e;
}

/* A journal that says what f->chunks says. */
static int write_journal(struct hx_store_file *f, const uint8_t layout[HX_SHA256_BYTES],
                         struct hx_error *err)
{
    struct hx_journal_entry *e = calloc(f->plan->n_chunks + 2, sizeof(*e));
    size_t n = 2;
    if (!e)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->journal_path);
    e[0] = (struct hx_journal_entry){.type = HX_JOURNAL_PLAN,
                                     .index = (uint32_t)f->plan->n_chunks,
                                     .length = f->plan->out_bytes};
    memcpy(e[0].digest, f->plan->sha256, HX_SHA256_BYTES);
    e[1] = (struct hx_journal_entry){.type = HX_JOURNAL_CONTENT};
    memcpy(e[1].digest, layout, HX_SHA256_BYTES);
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        if (f->chunks[i].state == HX_CHUNK_DONE)
            e[n++] = chunk_entry(f, i);
    }
    hx_journal_close(&f->journal);
    int r = hx_journal_create(f->journal_path, e, n, &f->journal, err);
    f->dirty = true;
    free(e);
    return r;
}

static void take_chunk(struct hx_store_file *f, size_t i, unsigned flags, const uint8_t *digest)
{
    f->chunks[i].state = HX_CHUNK_DONE;
    f->chunks[i].flags = (uint8_t)flags;
    memcpy(f->chunks[i].digest, digest, HX_SHA256_BYTES);
}

/* Records of this plan, or of another one whose chunk is known to be the same bytes. */
static void take_image(struct hx_store *s, struct hx_store_file *f,
                       const struct hx_journal_image *im, bool same_plan)
{
    size_t n_kept = 0, n_had = 0;
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        const uint8_t *want = f->plan->chunks[i].sha256;
        if (!im->chunks[i].done)
            continue;
        n_had++;
        bool right = want && memcmp(want, im->chunks[i].digest, HX_SHA256_BYTES) == 0;
        /* A hash that the lock file has learnt since then decides as well. */
        if (want ? !right : !same_plan)
            continue;
        take_chunk(f, i, im->chunks[i].flags | (right ? HX_JOURNAL_CHECKED : 0),
                   im->chunks[i].digest);
        n_kept++;
    }
    if (n_kept < n_had)
        hx_store_note(s, f->index, "%s: the plan has changed, %zu of %zu chunks are kept",
                      f->plan->lock->out, n_kept, n_had);
}

/* ---- re-hashing ---- */

static int by_seq_falling(const void *a, const void *b, void *user)
{
    const struct hx_journal_chunk *c = user;
    uint64_t x = c[*(const uint32_t *)a].seq, y = c[*(const uint32_t *)b].seq;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void tick(struct progress *p, uint64_t n)
{
    p->done += n;
    if (p->fn)
        p->fn(p->ctx, p->done, p->total);
}

/* Digest of one chunk as it lies there. */
static int digest_of(struct hx_store_file *f, size_t i, uint8_t *buf, uint8_t out[HX_SHA256_BYTES],
                     struct hx_error *err)
{
    struct hx_sha256 *h = NULL;
    int r = hx_sha256_new(&h, err);
    if (r == 0)
        r = hx_file_hash_chunk(f, i, h, NULL, buf, err);
    if (r == 0)
        hx_sha256_final(h, out);
    hx_sha256_free(h);
    return r;
}

/* The newest records may be on the disk while their data is not, if the drive lied about a sync. */
static int rehash_last(struct hx_store *s, struct hx_store_file *f,
                       const struct hx_journal_image *im, uint8_t *buf, struct progress *p,
                       struct hx_error *err)
{
    uint32_t *order = calloc(im->n_chunks + 1, sizeof(*order));
    size_t n = 0, n_wrong = 0;
    uint64_t bytes = 0;
    int r = 0;
    if (!order)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->journal_path);
    for (uint32_t i = 0; i < im->n_chunks; i++) {
        if (f->chunks[i].state == HX_CHUNK_DONE)
            order[n++] = i;
    }
    qsort_r(order, n, sizeof(*order), by_seq_falling, im->chunks);
    for (size_t k = 0; r == 0 && k < n && bytes < REHASH_BYTES; k++) {
        uint8_t digest[HX_SHA256_BYTES];
        size_t i = order[k];
        r = digest_of(f, i, buf, digest, err);
        if (r == 0 && memcmp(digest, f->chunks[i].digest, HX_SHA256_BYTES) != 0) {
            struct hx_journal_entry e[2] = {
                {.type = HX_JOURNAL_HASH},
                {.type = HX_JOURNAL_DROP, .index = (uint32_t)i},
            };
            f->n_hashes = 0;
            f->chunks[i].state = HX_CHUNK_MISSING;
            n_wrong++;
            r = hx_file_append(f, e, 2, err);
        }
        bytes += f->plan->chunks[i].out_bytes;
        tick(p, f->plan->chunks[i].out_bytes);
    }
    if (r == 0 && n_wrong > 0) {
        hx_store_note(
            s, f->index,
            "%s: %zu chunks that were reported as written are not on %s: the storage lied "
            "about a sync; they are fetched again",
            f->plan->lock->out, n_wrong, f->part.device);
        r = hx_journal_sync(&f->journal, err);
    }
    free(order);
    return r;
}

/* No journal: the lock file's own list says which chunks are right. */
static int rehash_known(struct hx_store *s, struct hx_store_file *f, uint8_t *buf,
                        struct progress *p, struct hx_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        const struct hx_plan_chunk *c = &f->plan->chunks[i];
        uint8_t digest[HX_SHA256_BYTES];
        if (!c->sha256)
            continue;
        int r = digest_of(f, i, buf, digest, err);
        if (r < 0)
            return r;
        if (memcmp(digest, c->sha256, HX_SHA256_BYTES) == 0) {
            take_chunk(f, i, HX_JOURNAL_CHECKED, digest);
            n++;
        }
        tick(p, c->out_bytes);
    }
    hx_store_note(s, f->index,
                  "%s: its journal was lost; %zu of %zu chunks were found by their hash",
                  f->plan->lock->out, n, f->plan->n_chunks);
    return 0;
}

/* ---- one file ---- */

/* A cut is checked tensor by tensor; where the lock file's hashes of the chunks are known to be
 * those of the whole, they are enough. */
static bool hash_needed(const struct hx_plan_file *p)
{
    return !p->header && !(p->lock->chunks_checked && p->n_chunks > 0);
}

static int name_paths(struct hx_store *s, struct hx_store_file *f, struct hx_error *err)
{
    const char *out = f->plan->lock->out;
    f->part_path = path_of(s->incoming, out, ".part");
    f->ready_path = path_of(s->incoming, out, "");
    f->journal_path = path_of(s->incoming, out, ".journal");
    f->final_path = path_of(s->final, out, "");
    f->chunks = calloc(f->plan->n_chunks + 1, sizeof(*f->chunks));
    if (!f->part_path || !f->ready_path || !f->journal_path || !f->final_path || !f->chunks)
        return hx_fail(err, -ENOMEM, "%s: out of memory", out);
    if (f->plan->n_chunks > HX_JOURNAL_MAX_CHUNKS)
        return hx_fail(err, -EINVAL, "%s: %zu chunks, at most %u are possible", out,
                       f->plan->n_chunks, HX_JOURNAL_MAX_CHUNKS);
    return hash_needed(f->plan) ? hx_sha256_new(&f->front_hash, err) : 0;
}

static void settle_ready(struct hx_store *s, struct hx_store_file *f, enum hx_file_phase phase,
                         const uint8_t sha256[HX_SHA256_BYTES])
{
    f->phase = phase;
    f->n_done = f->plan->n_chunks;
    memcpy(f->sha256, sha256, HX_SHA256_BYTES);
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        f->chunks[i].state = HX_CHUNK_DONE;
        s->bytes_done += f->plan->chunks[i].out_bytes;
    }
}

/* The journal says that everything was verified: where did the rename leave the file? 1: settled.
 */
static int open_ready(struct hx_store *s, struct hx_store_file *f,
                      const struct hx_journal_image *im, struct hx_error *err)
{
    int r = 0;
    enum hx_file_phase phase = HX_FILE_READY;
    if (has_size(f->part_path, f->plan->out_bytes))
        r = hx_file_make_ready(f, err);
    else if (has_size(f->ready_path, f->plan->out_bytes))
        phase = HX_FILE_READY;
    else if (has_size(f->final_path, f->plan->out_bytes))
        phase = HX_FILE_PUBLISHED;
    else
        return 0;
    if (r < 0)
        return r;
    settle_ready(s, f, phase, im->ready_sha256);
    for (size_t i = 0; i < f->plan->n_chunks; i++)
        memcpy(f->chunks[i].digest, im->chunks[i].digest, HX_SHA256_BYTES);
    return 1;
}

static int open_growing(struct hx_store *s, struct hx_store_file *f, struct hx_journal_image *im,
                        bool have_journal, uint8_t *buf, struct progress *p, struct hx_error *err)
{
    uint8_t layout[HX_SHA256_BYTES];
    int r = hx_plan_layout(f->plan, layout, err);
    if (r < 0)
        return r;
    bool same_plan = have_journal && memcmp(im->plan, f->plan->sha256, HX_SHA256_BYTES) == 0;
    bool same_layout = have_journal && im->n_chunks == f->plan->n_chunks &&
                       im->out_bytes == f->plan->out_bytes &&
                       memcmp(im->content, layout, HX_SHA256_BYTES) == 0;
    if (have_journal && im->back) {
        r = hx_file_take_back(f, err);
        if (r < 0)
            return r;
    }
    if (same_plan && same_layout && im->ready) {
        r = open_ready(s, f, im, err);
        if (r != 0)
            return r < 0 ? r : 0;
    }
    /* Verified under another plan, or the rename came before the cut: its data can be used again.
     */
    if (have_journal && !exists(f->part_path) && exists(f->ready_path) &&
        rename(f->ready_path, f->part_path) < 0)
        return hx_fail_errno(err, errno, "%s: cannot rename to %s", f->ready_path, f->part_path);
    bool have_part = has_size(f->part_path, f->plan->out_bytes);
    if (same_layout && have_part)
        take_image(s, f, im, same_plan);
    else if (have_journal && im->n_records > 2)
        hx_store_note(s, f->index, "%s: %s, it starts anew", f->plan->lock->out,
                      have_part ? "the plan has changed" : "its data is gone");
    bool fresh = !same_plan || !same_layout || !have_part || im->ready;
    /* The journal first: a part without one means that a journal was lost. */
    if (fresh && have_journal)
        r = write_journal(f, layout, err);
    else if (fresh && !have_part)
        r = write_journal(f, layout, err);
    if (r < 0)
        return r;
    r = hx_part_open(f->part_path, f->plan->out_bytes, s->opt.direct, &f->part, err);
    hx_fetch_step("part opened");
    if (r < 0)
        return r;
    if (!f->part.reserved)
        s->n_unreserved++;
    if (!have_journal && have_part) {
        r = rehash_known(s, f, buf, p, err);
        if (r == 0)
            r = write_journal(f, layout, err);
    } else if (!fresh) {
        f->hashes = im->hashes;
        f->n_hashes = im->n_hashes;
        im->hashes = NULL;
        if (!im->clean)
            r = rehash_last(s, f, im, buf, p, err);
        f->dirty |= !im->clean;
    }
    if (r < 0)
        return r;
    uint64_t good = UINT64_MAX;
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        if (f->chunks[i].state == HX_CHUNK_DONE) {
            f->n_done++;
            s->bytes_done += f->plan->chunks[i].out_bytes;
        } else if (good == UINT64_MAX) {
            good = f->plan->chunks[i].out_begin;
        }
    }
    if (f->front_hash) {
        f->front = UINT64_MAX; /* whatever state there is */
        f->front_limit = good == UINT64_MAX ? f->plan->out_bytes : good;
        hx_file_front_settle(f);
    }
    return 0;
}

static int open_file(struct hx_store *s, struct hx_store_file *f, const struct hx_state *published,
                     uint8_t *buf, struct progress *p, struct hx_error *err)
{
    struct hx_journal_image im = {0};
    int r = name_paths(s, f, err);
    if (r == 0)
        r = hx_folder_make_for(f->part_path, err);
    if (r < 0)
        return r;
    struct hx_error ignored;
    int j = hx_journal_open(f->journal_path, &f->journal, &im, &ignored);
    if (j < 0 && j != -ENOENT && j != -EINVAL)
        return hx_fail(err, j, "%s", ignored.text);
    const struct hx_state_file *done = hx_state_find(published, f->plan->lock->out);
    if (j < 0 && !exists(f->part_path) && done && done->size == f->plan->out_bytes &&
        memcmp(done->identity, f->plan->sha256, HX_SHA256_BYTES) == 0 &&
        has_size(f->final_path, f->plan->out_bytes))
        settle_ready(s, f, HX_FILE_PUBLISHED, done->sha256);
    else
        r = open_growing(s, f, &im, j == 0, buf, p, err);
    if (j == -EINVAL && r == 0)
        hx_store_note(s, f->index, "%s", ignored.text);
    hx_journal_image_done(&im);
    return r;
}

/* Upper bound of what may have to be read again, for the progress display. */
static uint64_t rehash_total(const struct hx_store *s)
{
    uint64_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        uint64_t b = s->files[i].plan->wanted_bytes;
        n += b < REHASH_BYTES ? b : REHASH_BYTES;
    }
    return n;
}

int hx_store_open_files(struct hx_store *s, void (*progress)(void *, uint64_t, uint64_t), void *ctx,
                        struct hx_error *err)
{
    struct progress p = {progress, ctx, 0, 0};
    struct hx_state published = {0};
    void *buf = NULL;
    s->files = calloc(s->plan->n_files + 1, sizeof(*s->files));
    if (!s->files || posix_memalign(&buf, HX_PART_ALIGN, HX_STORE_BLOCK) != 0)
        return hx_fail(err, -ENOMEM, "out of memory for %zu files", s->plan->n_files);
    for (size_t i = 0; i < s->plan->n_files; i++) {
        struct hx_store_file *f = &s->files[s->n_files++];
        f->plan = &s->plan->files[i];
        f->index = i;
        f->part = HX_PART_INIT;
        f->journal = HX_JOURNAL_INIT;
        f->hash_step = HASH_STEP;
        f->front_limit = UINT64_MAX;
        pthread_mutex_init(&f->journal_lock, NULL);
    }
    p.total = rehash_total(s);
    int r = hx_state_read(s->final, &published, err);
    if (r == -ENOENT)
        r = 0;
    for (size_t i = 0; r == 0 && i < s->n_files; i++)
        r = open_file(s, &s->files[i], &published, buf, &p, err);
    hx_state_done(&published);
    free(buf);
    if (r == 0)
        r = hx_folder_sync(s->incoming, err);
    if (r == 0 && s->n_unreserved > 0)
        hx_store_note(s, 0,
                      "%s: the file system cannot reserve space, so it may fill up on the way",
                      s->incoming);
    return r;
}

void hx_store_file_done(struct hx_store_file *f)
{
    struct hx_error err = {0};
    if (f->phase == HX_FILE_GROWING && f->journal.fd >= 0 && f->dirty && f->part.fd >= 0) {
        const struct hx_journal_entry e = {.type = HX_JOURNAL_CLEAN};
        /* Without it the next start reads a little more. */
        if (hx_journal_append(&f->journal, &e, 1, &err) == 0 &&
            hx_journal_sync(&f->journal, &err) == 0)
            f->dirty = false;
    }
    hx_part_close(&f->part);
    hx_journal_close(&f->journal);
    pthread_mutex_destroy(&f->journal_lock);
    hx_sha256_free(f->front_hash);
    hx_scan_table_free(f->table);
    free(f->hashes);
    free(f->chunks);
    free(f->part_path);
    free(f->ready_path);
    free(f->final_path);
    free(f->journal_path);
}
