/* The sync thread: data on the disk, then its records, then the records on the disk. It works all
 * the time that something is finished, so batches grow by themselves when the disk is slow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetch/store_int.h"

#define BATCH 64

int hx_file_append(struct hx_store_file *f, const struct hx_journal_entry *e, size_t n,
                   struct hx_error *err)
{
    pthread_mutex_lock(&f->journal_lock);
    int r = hx_journal_append(&f->journal, e, n, err);
    f->dirty = true;
    pthread_mutex_unlock(&f->journal_lock);
    return r;
}

/* One step that may meet a full disk. -ECANCELED: the store closes. */
static int until_room(struct hx_store *s, struct hx_store_file *f,
                      int (*step)(struct hx_store_file *, const struct hx_journal_entry *, size_t,
                                  struct hx_error *),
                      const struct hx_journal_entry *e, size_t n, struct hx_error *err)
{
    for (;;) {
        int r = step(f, e, n, err);
        if (r == 0) {
            hx_store_room_again(s);
            return 0;
        }
        r = hx_store_wait_room(s, r, err->text);
        if (r < 0)
            return r;
    }
}

static int sync_journal(struct hx_store_file *f, const struct hx_journal_entry *e, size_t n,
                        struct hx_error *err)
{
    (void)e;
    (void)n;
    return hx_journal_sync(&f->journal, err);
}

int hx_file_record(struct hx_store *s, struct hx_store_file *f, const struct hx_journal_entry *e,
                   size_t n, struct hx_error *err)
{
    int r = until_room(s, f, hx_file_append, e, n, err);
    return r < 0 ? r : until_room(s, f, sync_journal, NULL, 0, err);
}

/* All sinks of `list` belong to f. */
static int sync_file(struct hx_store *s, struct hx_store_file *f, const struct hx_sink *list,
                     struct hx_error *err)
{
    struct hx_journal_entry e[BATCH];
    int r = hx_part_sync(&f->part, err);
    if (r < 0)
        return r; /* what the kernel could not write it has forgotten: nothing of this counts */
    while (list) {
        size_t n = 0;
        for (; list && n < BATCH; list = list->next_ready, n++) {
            const struct hx_chunk *c = &f->chunks[list->chunk];
            e[n] = (struct hx_journal_entry){.type = HX_JOURNAL_CHUNK,
                                             .flags = c->flags,
                                             .index = (uint32_t)list->chunk,
                                             .length = list->plan->out_bytes};
            memcpy(e[n].digest, c->digest, HX_SHA256_BYTES);
        }
        r = until_room(s, f, hx_file_append, e, n, err);
        if (r < 0)
            return r;
    }
    return until_room(s, f, sync_journal, NULL, 0, err);
}

/* A saved state of the running hash, if one is due and everything below it is journalled. */
static bool hash_due(struct hx_store_file *f, struct hx_journal_entry *e)
{
    uint64_t last = f->n_hashes ? f->hashes[f->n_hashes - 1].n_bytes : 0;
    struct hx_sha256_state state;
    if (!f->front_hash || f->front < last + f->hash_step || f->front == f->plan->out_bytes)
        return false;
    for (size_t i = 0; i < f->plan->n_chunks && f->plan->chunks[i].out_begin < f->front; i++) {
        if (f->chunks[i].state != HX_CHUNK_DONE)
            return false;
    }
    if (hx_sha256_save(f->front_hash, &state) < 0)
        return false;
    struct hx_sha256_state *h = realloc(f->hashes, (f->n_hashes + 1) * sizeof(*h));
    if (!h)
        return false;
    f->hashes = h;
    h[f->n_hashes++] = state;
    *e = (struct hx_journal_entry){.type = HX_JOURNAL_HASH, .length = state.n_bytes};
    memcpy(e->digest, state.h, HX_SHA256_BYTES);
    return true;
}

void hx_file_save_front(struct hx_store *s, struct hx_store_file *f)
{
    struct hx_journal_entry e;
    struct hx_error err = {0};
    if (!hash_due(f, &e))
        return;
    pthread_mutex_unlock(&s->m);
    /* Without it a restart reads more: no reason to stop. It is synced with the next records. */
    if (hx_file_append(f, &e, 1, &err) < 0)
        hx_store_room_again(s);
    pthread_mutex_lock(&s->m);
}

static void settle(struct hx_store *s, struct hx_store_file *f, struct hx_sink *list, bool good)
{
    while (list) {
        struct hx_sink *k = list;
        list = k->next_ready;
        struct hx_chunk *c = &f->chunks[k->chunk];
        s->unsynced_bytes -= k->plan->out_bytes;
        c->state = good ? HX_CHUNK_DONE : HX_CHUNK_MISSING;
        f->n_written--;
        if (good) {
            f->n_done++;
            s->bytes_done += k->plan->out_bytes;
        } else if (f->front_hash) {
            hx_file_front_reset(f, k->plan->out_begin);
        }
        k->notice.ev.type = good ? HX_STORE_CHUNK_DONE : HX_STORE_CHUNK_LOST;
        k->notice.ev.file = f->index;
        k->notice.ev.chunk = k->chunk;
        k->notice.ev.n_bytes = k->plan->out_bytes;
        hx_store_notify(s, &k->notice);
    }
    s->want_room = false; /* the events tell the owner */
}

/* Everything of the file of the first sink, taken out of the list. */
static struct hx_sink *take_file(struct hx_sink **all)
{
    struct hx_store_file *f = (*all)->file;
    struct hx_sink *list = NULL, **end = &list;
    for (struct hx_sink **p = all; *p;) {
        struct hx_sink *k = *p;
        if (k->file != f) {
            p = &k->next_ready;
            continue;
        }
        *p = k->next_ready;
        k->next_ready = NULL;
        *end = k;
        end = &k->next_ready;
    }
    return list;
}

/* Mutex held at begin and end. false: the store closes and the list was not settled. */
static bool sync_list(struct hx_store *s, struct hx_sink *list)
{
    struct hx_store_file *f = list->file;
    struct hx_error err = {0};
    bool stopped = f->phase == HX_FILE_STOPPED;
    pthread_mutex_unlock(&s->m);
    int r = stopped ? -EIO : sync_file(s, f, list, &err);
    if (r == -ENOSPC || r == -EDQUOT || r == -EROFS)
        hx_store_wait_room(s, r, err.text);
    pthread_mutex_lock(&s->m);
    if (r == -ECANCELED)
        return false;
    if (r < 0 && r != -ENOSPC && r != -EDQUOT && r != -EROFS && !stopped)
        hx_store_stop_file(s, f, r, err.text);
    settle(s, f, list, r == 0);
    if (r == 0)
        hx_file_save_front(s, f);
    pthread_cond_signal(&s->check);
    return true;
}

static bool file_complete(const struct hx_store *s)
{
    for (const struct hx_sink *k = s->written_head; k; k = k->next_ready) {
        if (k->file->n_done + k->file->n_written == k->file->plan->n_chunks)
            return true;
    }
    return false;
}

/* Milliseconds until the next batch; 0: now. */
static uint64_t time_left(const struct hx_store *s)
{
    uint64_t age = hx_store_now_ms() - s->written_since;
    if (s->stop || s->flush || s->written_bytes >= s->opt.sync_bytes || age >= s->opt.sync_ms ||
        (s->n_open == 0 && s->n_finishing == 0) || file_complete(s))
        return 0;
    return s->opt.sync_ms - age;
}

static void wait_for(struct hx_store *s, uint64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + ms % 1000 * 1000000;
    t.tv_sec += (time_t)(ms / 1000 + ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&s->sync, &s->m, &t);
}

void *hx_store_syncer(void *store)
{
    struct hx_store *s = store;
    pthread_mutex_lock(&s->m);
    while (!s->stop || s->written_head) {
        if (!s->written_head) {
            pthread_cond_wait(&s->sync, &s->m);
            continue;
        }
        uint64_t ms = time_left(s);
        if (ms > 0) {
            wait_for(s, ms);
            continue;
        }
        struct hx_sink *all = s->written_head;
        s->written_head = s->written_tail = NULL;
        s->written_bytes = 0;
        s->syncing = true;
        bool going = true;
        while (all && going) {
            struct hx_sink *list = take_file(&all);
            going = sync_list(s, list);
            if (!going) {
                /* Closing on a full disk: hx_store_close frees what is left. */
                while (list) {
                    struct hx_sink *k = list;
                    list = k->next_ready;
                    k->next_ready = all;
                    all = k;
                }
            }
        }
        s->syncing = false;
        pthread_cond_broadcast(&s->sync);
        if (!going) {
            s->written_head = all;
            break;
        }
    }
    pthread_mutex_unlock(&s->m);
    return NULL;
}
