/* Writer threads: take the blocks of one sink at a time, hash and write them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetch/store_int.h"

#define BLOCKS_A_TURN 8

void hx_sink_queue(struct hx_store *s, struct hx_sink *k)
{
    const struct hx_sink *before = k->file->front_sink;
    bool failed = atomic_load(&k->failed);
    if (!k->started && !failed && k->front && before && before != k && before->complete &&
        before->chunk + 1 == k->chunk) {
        /* Its last blocks are on their way; then this chunk can go on with the whole file's hash
         * and need not be read again. */
        k->waiting = true;
        return;
    }
    k->waiting = false;
    if (k->queued || k->busy)
        return;
    k->queued = true;
    k->next_ready = NULL;
    if (s->ready_tail)
        s->ready_tail->next_ready = k;
    else
        s->ready_head = k;
    s->ready_tail = k;
    pthread_cond_signal(&s->work);
}

static struct hx_sink *pop_ready(struct hx_store *s)
{
    struct hx_sink *k = s->ready_head;
    s->ready_head = k->next_ready;
    if (!s->ready_head)
        s->ready_tail = NULL;
    k->next_ready = NULL;
    k->queued = false;
    k->busy = true;
    return k;
}

static struct hx_block *take_blocks(struct hx_sink *k)
{
    struct hx_block *list = k->head, *last = list;
    for (int n = 1; last && last->next && n < BLOCKS_A_TURN; n++)
        last = last->next;
    if (last) {
        k->head = last->next;
        last->next = NULL;
    }
    if (!k->head)
        k->tail = NULL;
    return list;
}

static void give_back(struct hx_store *s, struct hx_block *list)
{
    bool any = list != NULL;
    while (list) {
        struct hx_block *next = list->next;
        list->next = s->free_blocks;
        s->free_blocks = list;
        s->n_free++;
        list = next;
    }
    if (any && s->want_room) {
        s->want_room = false;
        hx_store_signal(s);
    }
}

/* The first block: does it go on with the hash of the whole file? Mutex held. */
static void start(struct hx_sink *k)
{
    struct hx_store_file *f = k->file;
    k->started = true;
    if (k->front) {
        if (f->front == k->plan->out_begin && !f->front_sink && !f->checking) {
            hx_sha256_copy(k->front, f->front_hash);
            f->front_sink = k;
        } else {
            hx_sha256_free(k->front);
            k->front = NULL;
        }
    }
    k->scanned = !hx_file_is_safetensors(f) || f->table;
    hx_scan_begin(&k->scan, f->table, k->plan->out_begin);
}

static int write_block(struct hx_store *s, struct hx_sink *k, const struct hx_block *b,
                       struct hx_error *err)
{
    const uint8_t *p = b->mem + b->begin % HX_STORE_BLOCK;
    if (k->front)
        hx_sha256_update_pair(k->hash, k->front, p, b->n_bytes);
    else if (!k->hash_here)
        hx_sha256_update(k->hash, p, b->n_bytes);
    if (k->scanned && !k->insane && hx_scan_data(&k->scan, p, b->n_bytes, err) < 0) {
        k->insane = true;
        snprintf(k->notice.ev.message, sizeof(k->notice.ev.message), "%s: %s",
                 k->file->plan->lock->out, err->text);
    }
    for (;;) {
        int r = hx_part_write(&k->file->part, p, b->n_bytes, b->begin, err);
        if (r == 0) {
            hx_store_room_again(s);
            return 0;
        }
        r = hx_store_wait_room(s, r, err->text);
        if (r < 0)
            return r;
    }
}

/* Lets go of the file's running hash, so that the next one can go on. Mutex held. */
static void release_front(struct hx_store *s, struct hx_sink *k)
{
    struct hx_store_file *f = k->file;
    if (f->front_sink != k)
        return;
    f->front_sink = NULL;
    hx_file_front_settle(f);
    for (struct hx_sink *w = f->sinks; w; w = w->next_of_file) {
        if (w->waiting)
            hx_sink_queue(s, w);
    }
    pthread_cond_signal(&s->check);
}

/* Takes the sink out of the file; its chunk is missing again. Mutex held. */
static void undo(struct hx_store *s, struct hx_sink *k)
{
    hx_sink_drop_blocks(s, k);
    if (k->filling) { /* the owner has let go of it */
        k->filling->next = NULL;
        give_back(s, k->filling);
        k->filling = NULL;
    }
    hx_sink_unlink(k);
    k->file->chunks[k->chunk].state = HX_CHUNK_MISSING;
    release_front(s, k);
}

static void tell(struct hx_store *s, struct hx_sink *k, enum hx_store_event_type type)
{
    k->notice.ev.type = type;
    k->notice.ev.file = k->file->index;
    k->notice.ev.chunk = k->chunk;
    k->notice.ev.n_bytes = k->plan->out_bytes;
    hx_store_notify(s, &k->notice);
}

void hx_sink_discard(struct hx_store *s, struct hx_sink *k)
{
    for (struct hx_sink **p = &s->ready_head, *before = NULL; k->queued && *p;
         before = *p, p = &(*p)->next_ready) {
        if (*p != k)
            continue;
        *p = k->next_ready;
        if (s->ready_tail == k)
            s->ready_tail = before;
        k->queued = false;
        break;
    }
    undo(s, k);
    if (k->complete) {
        s->n_finishing--;
        pthread_cond_broadcast(&s->sync);
        tell(s, k, HX_STORE_CHUNK_LOST);
    } else {
        s->n_sinks--;
        hx_store_signal(s); /* the chunk can be begun again */
        hx_sink_free(k);
    }
}

static void describe_bad(struct hx_sink *k, const uint8_t *found)
{
    char a[HX_SHA256_HEX], b[HX_SHA256_HEX];
    hx_sha256_to_hex(found, a);
    hx_sha256_to_hex(k->plan->sha256, b);
    snprintf(k->notice.ev.message, sizeof(k->notice.ev.message),
             "%s: bytes %llu to %llu have SHA-256 %s, the lock file says %s",
             k->file->plan->lock->out, (unsigned long long)k->plan->out_begin,
             (unsigned long long)(k->plan->out_begin + k->plan->out_bytes - 1), a, b);
}

/* All bytes are written: right or wrong? Mutex held. */
static void finish(struct hx_store *s, struct hx_sink *k)
{
    struct hx_store_file *f = k->file;
    struct hx_chunk *c = &f->chunks[k->chunk];
    uint8_t digest[HX_SHA256_BYTES];
    hx_sha256_final(k->hash, digest);
    bool known = k->plan->sha256 != NULL;
    bool wrong = known && memcmp(digest, k->plan->sha256, HX_SHA256_BYTES) != 0;
    if (wrong)
        describe_bad(k, digest);
    if (k->insane && !wrong && (known || c->n_bad > 0)) {
        /* The source itself is like that. */
        hx_store_stop_file(s, f, -EBADMSG, k->notice.ev.message);
        hx_sink_discard(s, k);
        return;
    }
    s->n_finishing--;
    pthread_cond_broadcast(&s->sync);
    if (wrong || k->insane) {
        if (c->n_bad < UINT8_MAX)
            c->n_bad++;
        undo(s, k);
        tell(s, k, HX_STORE_CHUNK_BAD);
        return;
    }
    c->state = HX_CHUNK_WRITTEN;
    c->flags = (uint8_t)((k->scanned ? HX_JOURNAL_SCANNED : 0) | (known ? HX_JOURNAL_CHECKED : 0));
    memcpy(c->digest, digest, HX_SHA256_BYTES);
    f->n_written++;
    hx_sink_unlink(k);
    if (f->front_sink == k && f->front_limit == UINT64_MAX) {
        hx_sha256_copy(f->front_hash, k->front);
        f->front = k->plan->out_begin + k->plan->out_bytes;
    }
    release_front(s, k);
    k->next_ready = NULL;
    if (s->written_tail)
        s->written_tail->next_ready = k;
    else
        s->written_head = k;
    s->written_tail = k;
    if (s->written_bytes == 0)
        s->written_since = hx_store_now_ms();
    s->written_bytes += k->plan->out_bytes;
    s->unsynced_bytes += k->plan->out_bytes;
    pthread_cond_broadcast(&s->sync);
}

/* One turn with one sink. Mutex held at begin and end. */
static void turn(struct hx_store *s, struct hx_sink *k)
{
    struct hx_error err = {0};
    struct hx_block *list = take_blocks(k);
    int r = 0;
    if (!k->started && !k->aborted && !atomic_load(&k->failed))
        start(k);
    bool idle = k->aborted || atomic_load(&k->failed);
    pthread_mutex_unlock(&s->m);
    for (const struct hx_block *b = list; r == 0 && b && !idle; b = b->next)
        r = write_block(s, k, b, &err);
    pthread_mutex_lock(&s->m);
    give_back(s, list);
    k->busy = false;
    pthread_cond_broadcast(&s->idle);
    if (r < 0 && r != -ECANCELED)
        hx_store_stop_file(s, k->file, r, err.text);
    if (r == -ECANCELED)
        return; /* closing: hx_store_close frees it */
    bool failed = atomic_load(&k->failed);
    if (k->aborted || (failed && (k->complete || k->kept)))
        hx_sink_discard(s, k);
    else if (failed)
        hx_sink_drop_blocks(s, k); /* the owner ends it */
    else if (k->head)
        hx_sink_queue(s, k);
    else if (k->complete)
        finish(s, k);
}

void *hx_store_writer(void *store)
{
    struct hx_store *s = store;
    pthread_mutex_lock(&s->m);
    for (;;) {
        while (!s->ready_head && !s->stop)
            pthread_cond_wait(&s->work, &s->m);
        if (s->stop)
            break;
        turn(s, pop_ready(s));
    }
    pthread_mutex_unlock(&s->m);
    return NULL;
}
