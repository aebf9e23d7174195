/* From verified files to a model folder that the engine opens. Every step can be repeated; until
 * the last one state.json says that the folder is not complete, so that nothing opens half of it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "fetch/finish.h"
#include "fetch/state.h"
#include "fetch/step.h"
#include "fetch/store_int.h"

#define TOKEN_MAP "engram_token_map.i32"

struct publish {
    struct hx_store *s;
    struct hx_state state, old;
    struct hx_lock *filled; /* lock file with the hashes that were found out */
    struct hx_error *err;
};

static int add_file(struct publish *p, const struct hx_store_file *f)
{
    char source[1024];
    const struct hx_lock_source *from = f->plan->source;
    snprintf(source, sizeof(source), "%s@%s:%s", from->repo, from->commit, f->plan->lock->path);
    struct hx_state_file e = {.path = f->plan->lock->out,
                              .size = f->plan->out_bytes,
                              .source = source,
                              .licence = from->licence ? from->licence : (char[]){""}};
    memcpy(e.sha256, f->sha256, HX_SHA256_BYTES);
    memcpy(e.identity, f->plan->sha256, HX_SHA256_BYTES);
    return hx_state_add(&p->state, &e, p->err);
}

/* What the folder will hold. */
static int list_files(struct publish *p)
{
    const struct hx_lock *lock = p->s->plan->lock;
    char hex[HX_SHA256_HEX];
    int r = hx_state_read(p->s->final, &p->old, p->err);
    if (r < 0 && r != -ENOENT)
        return r;
    hx_sha256_to_hex(lock->sha256, hex);
    snprintf(p->state.lock_id, sizeof(p->state.lock_id), "sha256:%s", hex);
    snprintf(p->state.model, sizeof(p->state.model), "%s", lock->model);
    p->state.verified = lock->complete && !lock->made_here;
    r = 0;
    for (size_t i = 0; r == 0 && i < p->s->n_files; i++)
        r = add_file(p, &p->s->files[i]);
    return r;
}

static int move_files(struct publish *p)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < p->s->n_files; i++) {
        struct hx_store_file *f = &p->s->files[i];
        if (f->phase != HX_FILE_READY)
            continue;
        r = hx_folder_make_for(f->final_path, p->err);
        if (r == 0 && rename(f->ready_path, f->final_path) < 0)
            r = hx_fail_errno(p->err, errno, "%s: cannot rename to %s", f->ready_path,
                              f->final_path);
        hx_fetch_step("file moved");
        char *folder = r == 0 ? strdup(f->final_path) : NULL;
        if (r == 0 && !folder)
            r = hx_fail(p->err, -ENOMEM, "%s: out of memory", f->final_path);
        if (r == 0) {
            *strrchr(folder, '/') = '\0';
            r = hx_folder_sync(folder, p->err);
        }
        free(folder);
        if (r == 0)
            f->phase = HX_FILE_PUBLISHED;
    }
    return r;
}

/* Files of an earlier release that this one does not have: the engine would read them. */
static int remove_stale(struct publish *p)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < p->old.n_files; i++) {
        const char *name = p->old.files[i].path;
        if (hx_state_find(&p->state, name) || strcmp(name, TOKEN_MAP) == 0)
            continue;
        char *path = hx_path_join(p->s->final, name);
        if (!path)
            r = hx_fail(p->err, -ENOMEM, "out of memory");
        else if (unlink(path) < 0 && errno != ENOENT)
            r = hx_fail_errno(p->err, errno, "%s: of an earlier release, cannot be removed", path);
        free(path);
    }
    return r;
}

static int make_token_map(struct publish *p, uint8_t sha256[HX_SHA256_BYTES])
{
    struct hx_state_file e = {
        .path = (char[]){TOKEN_MAP}, .source = (char[]){"tokenizer.json"}, .licence = (char[]){""}};
    const struct hx_state_file *given = hx_state_find(&p->state, TOKEN_MAP);
    if (given) {
        memcpy(sha256, given->sha256, HX_SHA256_BYTES);
        return 0;
    }
    int r = hx_finish_token_map(p->s->final, e.sha256, &e.size, p->err);
    if (r == 0)
        r = hx_state_add(&p->state, &e, p->err);
    memcpy(sha256, e.sha256, HX_SHA256_BYTES);
    hx_fetch_step("token map written");
    return r;
}

/* ---- the lock file in the folder ---- */

static bool digests_known(const struct hx_store_file *f)
{
    static const uint8_t none[HX_SHA256_BYTES];
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        if (memcmp(f->chunks[i].digest, none, sizeof(none)) == 0)
            return false;
    }
    return f->plan->n_chunks > 0;
}

/* From an earlier lock.json of the folder, for files that stayed. */
static void inherit(struct hx_lock_file *f, const struct hx_lock *earlier)
{
    for (size_t i = 0; earlier && i < earlier->n_files; i++) {
        const struct hx_lock_file *o = &earlier->files[i];
        if (strcmp(o->out, f->out) != 0 || o->chunk != f->chunk || o->size != f->size ||
            !o->chunk_sha256 || !f->has_sha256 || !o->has_sha256 ||
            memcmp(o->sha256, f->sha256, HX_SHA256_BYTES) != 0)
            continue;
        size_t n = o->n_chunk_sha256 * sizeof(*o->chunk_sha256);
        f->chunk_sha256 = malloc(n);
        if (f->chunk_sha256) {
            memcpy(f->chunk_sha256, o->chunk_sha256, n);
            f->n_chunk_sha256 = o->n_chunk_sha256;
            f->chunks_checked = o->chunks_checked;
        }
        return;
    }
}

static int fill_file(struct publish *p, const struct hx_store_file *f, struct hx_lock_file *lock,
                     const struct hx_lock *earlier)
{
    if (lock->mode == HX_LOCK_CUT)
        return hx_finish_tensor_hashes(f->final_path, lock, p->err);
    if (!lock->has_sha256) {
        memcpy(lock->sha256, f->sha256, HX_SHA256_BYTES);
        lock->has_sha256 = true;
    }
    if (!lock->chunk_sha256 && digests_known(f)) {
        lock->chunk_sha256 = calloc(f->plan->n_chunks, sizeof(*lock->chunk_sha256));
        if (!lock->chunk_sha256)
            return hx_fail(p->err, -ENOMEM, "out of memory for hashes");
        lock->n_chunk_sha256 = f->plan->n_chunks;
        for (size_t i = 0; i < f->plan->n_chunks; i++)
            memcpy(lock->chunk_sha256[i], f->chunks[i].digest, HX_SHA256_BYTES);
        lock->chunks_checked = true;
    } else if (!lock->chunk_sha256) {
        inherit(lock, earlier);
    } else {
        /* Its chunks and the whole were compared on the way in. */
        lock->chunks_checked |= digests_known(f);
    }
    return 0;
}

static int write_lock(struct publish *p)
{
    struct hx_error ignored;
    struct hx_lock *earlier = NULL;
    char *path = hx_path_join(p->s->final, "lock.json");
    if (!path)
        return hx_fail(p->err, -ENOMEM, "out of memory");
    int r = hx_lock_copy(p->s->plan->lock, &p->filled, p->err);
    if (r == 0 && hx_lock_read(path, &earlier, &ignored) < 0)
        earlier = NULL; /* there is none, or it is of no use: everything is computed */
    for (size_t i = 0; r == 0 && i < p->s->n_files; i++) {
        struct hx_store_file *f = &p->s->files[i];
        /* Files of the copy stand in the order of the original. */
        r = fill_file(p, f, &p->filled->files[f->plan->lock - p->s->plan->lock->files], earlier);
    }
    if (r == 0)
        r = hx_lock_write(p->filled, path, p->err);
    hx_fetch_step("lock file written");
    hx_lock_free(earlier);
    free(path);
    return r;
}

/* ---- end ---- */

static int set_current(struct publish *p)
{
    char *link = hx_path_join(p->s->opt.models, "current"), *fresh = NULL;
    const char *model = p->s->plan->lock->model;
    char target[256];
    int r = 0;
    ssize_t n = link ? readlink(link, target, sizeof(target)) : -1;
    if (n == (ssize_t)strlen(model) && memcmp(target, model, (size_t)n) == 0)
        goto out;
    if (!link || asprintf(&fresh, "%s.new", link) < 0) {
        fresh = NULL;
        r = hx_fail(p->err, -ENOMEM, "out of memory");
        goto out;
    }
    unlink(fresh);
    if (symlink(model, fresh) < 0 || rename(fresh, link) < 0)
        r = hx_fail_errno(p->err, errno, "%s: cannot point to %s", link, model);
    if (r == 0)
        r = hx_folder_sync(p->s->opt.models, p->err);
    hx_fetch_step("link set");
out:
    free(fresh);
    free(link);
    return r;
}

/* Journals and empty folders of a model that is complete. What cannot be removed does no harm: a
 * journal that says "ready" of a published file is believed. */
static void clean_up(struct publish *p)
{
    for (size_t i = 0; i < p->s->n_files; i++) {
        struct hx_store_file *f = &p->s->files[i];
        hx_journal_close(&f->journal);
        if (unlink(f->journal_path) < 0 && errno != ENOENT) {
            int e = errno;
            pthread_mutex_lock(&p->s->m);
            hx_store_note(p->s, i, "%s: cannot be removed (%s); the next run tries again",
                          f->journal_path, strerror(e));
            pthread_mutex_unlock(&p->s->m);
        }
        hx_fetch_step("journal removed");
    }
    for (size_t i = 0; i < p->s->n_files; i++) {
        char *folder = strdup(p->s->files[i].journal_path);
        for (char *slash; folder && (slash = strrchr(folder, '/'));) {
            *slash = '\0';
            if (strlen(folder) < strlen(p->s->incoming) || rmdir(folder) < 0)
                break;
        }
        free(folder);
    }
}

static int publish(struct publish *p)
{
    uint8_t map[HX_SHA256_BYTES];
    const char *final = p->s->final;
    int r = list_files(p);
    if (r == 0 && mkdir(final, 0755) < 0 && errno != EEXIST)
        r = hx_fail_errno(p->err, errno, "%s: cannot make the folder", final);
    if (r == 0)
        r = hx_folder_sync(p->s->opt.models, p->err);
    if (r == 0)
        r = hx_state_write(final, &p->state, p->err);
    hx_fetch_step("incomplete state written");
    if (r == 0)
        r = move_files(p);
    if (r < 0)
        return r;
    r = remove_stale(p);
    if (r == 0)
        r = make_token_map(p, map);
    if (r == 0)
        r = hx_finish_check(final, p->s->plan->lock->expect_json, map, p->err);
    if (r < 0)
        return hx_wrap(p->err, r, "%s: not published, the files do not make a model", final);
    r = write_lock(p);
    p->state.complete = true;
    if (r == 0)
        r = hx_state_write(final, &p->state, p->err);
    hx_fetch_step("complete state written");
    if (r == 0)
        r = set_current(p);
    if (r == 0)
        clean_up(p);
    return r;
}

/* Nothing came in and the folder says so already. */
static bool published_already(const struct publish *p)
{
    char hex[HX_SHA256_HEX];
    hx_sha256_to_hex(p->s->plan->lock->sha256, hex);
    if (!p->old.complete || strncmp(p->old.lock_id, "sha256:", 7) != 0 ||
        strcmp(p->old.lock_id + 7, hex) != 0)
        return false;
    for (size_t i = 0; i < p->s->n_files; i++) {
        if (p->s->files[i].phase != HX_FILE_PUBLISHED)
            return false;
    }
    return true;
}

int hx_store_publish(struct hx_store *store, struct hx_error *err)
{
    struct publish p = {.s = store, .err = err};
    struct hx_error ignored;
    size_t n_missing = 0;
    for (size_t i = 0; i < store->n_files; i++)
        n_missing += !hx_store_file_ready(store, i);
    if (n_missing > 0)
        return hx_fail(err, -EAGAIN, "%zu of %zu files are not complete yet", n_missing,
                       store->n_files);
    int r = hx_state_read(store->final, &p.old, &ignored);
    if (r == 0 && published_already(&p)) {
        r = set_current(&p);
        if (r == 0)
            clean_up(&p);
    } else {
        hx_state_done(&p.old);
        r = publish(&p);
    }
    hx_state_done(&p.old);
    hx_state_done(&p.state);
    hx_lock_free(p.filled);
    return r;
}
