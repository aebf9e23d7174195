/* One drive and its thread: takes jobs by urgency, reads, checks what came, tries again, gives up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "engram/stream_impl.h"

#define BATCH       64    /* jobs taken or completions held at a time */
#define PIECE       8     /* rows handled before the drive is looked at again */
#define TICK_US     50000 /* ages of reads are looked at this often */
#define RETRY_S     1e-3
#define TOGETHER    8
#define TOGETHER_US 300
#define STORM_S     1.0
#define SOFT_MAX    1000 /* refusals that mean "later", for one row */
#define CAP_MIN     16
#define CAP_GROW_S  1.0
#define DRAIN_S     2.0
#define SHORT       0   /* in place of an errno: less came than the row needs */
#define DECODING_S  0.1 /* a running decode is assumed for this long after its last plan */

double hx_engram_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- queues: with the lock held ---- */

static void list_push(struct hx_engram_job_list *l, struct hx_engram_job *j)
{
    j->next = NULL;
    j->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = j;
    l->last = j;
}

static void list_remove(struct hx_engram_job_list *l, struct hx_engram_job *j)
{
    *(j->prev ? &j->prev->next : &l->first) = j->next;
    *(j->next ? &j->next->prev : &l->last) = j->prev;
}

void hx_engram_job_queue(struct hx_engram_job *j, struct hx_engram_drive *d, int queue)
{
    j->drive = d;
    j->state = HX_JOB_QUEUED;
    j->queue = (uint8_t)queue;
    list_push(&d->queue[queue], j);
    d->n_queued++;
}

void hx_engram_job_unqueue(struct hx_engram_job *j)
{
    list_remove(&j->drive->queue[j->queue], j);
    j->drive->n_queued--;
    j->state = HX_JOB_IDLE;
}

void hx_engram_drives_kick(struct hx_engram_stream *s)
{
    for (int i = 0; i < s->n_drives; i++) {
        struct hx_engram_drive *d = s->drive[i];
        if (d->n_queued > 0 && d->idle) {
            d->idle = false;
            d->ops->wake(d->io);
        }
    }
}

/* A drive for the n-th row of a flight: those with the table take turns. NULL: none is left. */
static struct hx_engram_drive *choose(const struct hx_engram_stream *s,
                                      const struct hx_engram_job *j, int turn)
{
    struct hx_engram_drive *with[HX_ENGRAM_MAX_DRIVES];
    int n = 0;
    for (int i = 0; i < s->n_drives; i++) {
        struct hx_engram_drive *d = s->drive[i];
        if (d->online && d->file_of[j->flight->table] >= 0 && !(j->tried & 1u << d->number))
            with[n++] = d;
    }
    return n > 0 ? with[turn % n] : NULL;
}

static int queue_of(const struct hx_engram_flight *f)
{
    return 2 * f->urgency + (f->table > 0);
}

static void fail_row(struct hx_engram_stream *s, struct hx_engram_job *j, int error, int native,
                     const char *path, const char *what)
{
    struct hx_engram_flight *f = j->flight;
    if (f->error == 0) {
        f->error = error;
        f->native = native;
        f->error_row = j->row;
        f->error_path = path;
        f->error_what = what;
    }
    j->state = HX_JOB_IDLE;
    if (atomic_fetch_sub(&f->left, 1) == 1)
        hx_engram_flight_done(s, f);
}

void hx_engram_flight_queue(struct hx_engram_stream *s, struct hx_engram_flight *f)
{
    int n = f->n_rows, table = f->table;
    for (int i = 0; i < n; i++) {
        /* Rows of neighbouring groups begin with different drives. */
        struct hx_engram_job *j = &f->job[i];
        struct hx_engram_drive *d = choose(s, j, i + (int)(f->job[0].row & 0xFFFF));
        if (d)
            hx_engram_job_queue(j, d, queue_of(f));
        else
            fail_row(s, j, -EHOSTDOWN, 0, s->table[table].path, "no drive with this table is left");
    }
}

/* ---- errors: the drive's thread ---- */

static void count_error(struct hx_engram_drive *d, enum hx_engram_error_kind kind)
{
    pthread_mutex_lock(&d->stats_mutex);
    d->errors[kind]++;
    pthread_mutex_unlock(&d->stats_mutex);
}

static enum hx_engram_error_kind kind_of(int native)
{
    return native == EIO || native == ENODATA    ? HX_ENGRAM_ERR_IO
           : native == ENODEV || native == ENXIO ? HX_ENGRAM_ERR_GONE
           : native == ETIMEDOUT                 ? HX_ENGRAM_ERR_SLOW
           : native == SHORT                     ? HX_ENGRAM_ERR_SHORT
                                                 : HX_ENGRAM_ERR_OTHER;
}

/* With the lock held. To another drive, or the row fails. */
static void elsewhere(struct hx_engram_drive *d, struct hx_engram_job *j, int error, int native,
                      const char *what)
{
    struct hx_engram_drive *other;
    j->tried |= 1u << d->number;
    other = choose(d->s, j, j->at);
    if (other) {
        j->n_reads = j->n_implausible = 0;
        hx_engram_job_queue(j, other, queue_of(j->flight));
        return;
    }
    fail_row(d->s, j, error, native, d->file[d->file_of[j->flight->table]].path, what);
}

static void note_error(struct hx_engram_drive *d, int table, int native, const char *what)
{
    struct hx_engram_stream *s = d->s;
    s->last_error = hx_engram_now();
    hx_fail(&s->last_error_reason, -EIO, "Engram read error: %s: %s",
            d->file[d->file_of[table]].path, what ? what : strerror(native));
}

/* With the lock held: no more reads from this drive until it is opened again. */
static void lose(struct hx_engram_drive *d, const struct hx_error *reason)
{
    if (!d->online)
        return;
    d->online = false;
    d->lost_reason = *reason;
    hx_wrap(&d->lost_reason, -EHOSTDOWN, "Engram drive lost");
    d->reopened = hx_engram_now();
    hx_log(HX_LOG_DEBUG, "engram", "drive lost: %s", reason->text);
    for (int q = 0; q < HX_ENGRAM_QUEUES; q++) {
        struct hx_engram_job *j;
        while ((j = d->queue[q].first)) {
            hx_engram_job_unqueue(j);
            elsewhere(d, j, -EHOSTDOWN, 0, d->lost_reason.text);
        }
    }
    struct hx_engram_job *j;
    while ((j = d->retry.first)) {
        list_remove(&d->retry, j);
        elsewhere(d, j, -EHOSTDOWN, 0, d->lost_reason.text);
    }
    hx_engram_drives_kick(d->s);
}

/* Many errors within a second, or one that says it all. */
static bool is_lost(struct hx_engram_drive *d, int native)
{
    double now = hx_engram_now(), oldest = d->storm[d->i_storm];
    if (native == ETIMEDOUT) /* has its own limit */
        return false;
    d->storm[d->i_storm] = now;
    d->i_storm = (d->i_storm + 1) % HX_ENGRAM_STORM;
    return native == ENODEV || native == ENXIO || (oldest > 0 && now - oldest < STORM_S);
}

/* A read failed for good: once more here, then elsewhere. */
static void read_failed(struct hx_engram_drive *d, struct hx_engram_job *j, int native,
                        const char *what)
{
    struct hx_engram_stream *s = d->s;
    const struct hx_engram_file *f = &d->file[d->file_of[j->flight->table]];
    struct hx_error reason;
    count_error(d, kind_of(native));
    bool lost = is_lost(d, native);
    if (native == SHORT && hx_engram_file_check(f, &reason) < 0)
        lost = true; /* the file is shorter than it was */
    else if (lost)
        hx_fail(&reason, -EHOSTDOWN, "%s: %s", f->path,
                native == ENODEV || native == ENXIO ? strerror(native)
                                                    : "too many read errors in a second");
    pthread_mutex_lock(&s->lock);
    note_error(d, f->table, native, what);
    if (lost)
        lose(d, &reason);
    if (!d->online) {
        elsewhere(d, j, -EHOSTDOWN, 0, d->lost_reason.text);
    } else if (j->n_reads < 2 && native != ETIMEDOUT) {
        pthread_mutex_lock(&d->stats_mutex);
        d->stats[f->table].retries++;
        pthread_mutex_unlock(&d->stats_mutex);
        j->due = hx_engram_now() + RETRY_S;
        list_push(&d->retry, j);
    } else {
        elsewhere(d, j, -EIO, native, what);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- reads ---- */

static void free_slot(struct hx_engram_drive *d, uint32_t i)
{
    d->n_bulk -= d->slot[i].bulk;
    d->slot[i] = (struct hx_engram_slot){0};
    d->free_slot[d->n_free++] = i;
}

static int issue_slot(struct hx_engram_drive *d, uint32_t i, int file)
{
    const struct hx_engram_slot *sl = &d->slot[i];
    return d->ops->queue(d->io, i, file, sl->offset + sl->got, sl->len - sl->got, sl->got);
}

/* A free slot is there. */
static void issue(struct hx_engram_drive *d, struct hx_engram_job *j, double now)
{
    int table = j->flight->table, file = d->file_of[table];
    const struct hx_engram_table *t = &d->s->table[table];
    struct hx_engram_window w = hx_engram_window(hx_engram_code_offset(t, j->row),
                                                 (uint32_t)t->row_bytes, (uint32_t)d->align);
    const struct hx_engram_entry *e = j->flight->entry;
    struct hx_engram_cache *c = d->s->cache;
    uint32_t i = d->free_slot[--d->n_free];
    j->n_reads++;
    d->slot[i] =
        (struct hx_engram_slot){.job = j,
                                .flight = j->flight,
                                .codes_to = hx_engram_cache_codes(c, e) + j->at * t->row_bytes,
                                .scales_to = hx_engram_cache_scales(c, e) + j->at * t->scale_bytes,
                                .issued = now,
                                .offset = w.offset,
                                .len = w.len,
                                .skip = w.skip,
                                .table = (uint8_t)table,
                                .bulk = j->queue >= 2 * HX_ENGRAM_CHUNK};
    d->n_bulk += d->slot[i].bulk;
    if (issue_slot(d, i, file) < 0) { /* the ring is full: when reads have completed */
        free_slot(d, i);
        j->n_reads--;
        j->due = 0;
        list_push(&d->retry, j);
    }
}

static const uint8_t *scales_of(const struct hx_engram_drive *d, const struct hx_engram_job *j)
{
    int table = j->flight->table;
    return d->s->scales[table] + j->row * d->s->table[table].scale_bytes;
}

/* The scales of rows that were issued, into the entries of their groups: while the drive reads,
 * since they lie anywhere in gigabytes. */
static void put_scales(const struct hx_engram_drive *d, struct hx_engram_job *const *jobs, int n)
{
    for (int i = 0; i < n; i++)
        __builtin_prefetch(scales_of(d, jobs[i]));
    for (int i = 0; i < n; i++) {
        const struct hx_engram_job *j = jobs[i];
        size_t each = (size_t)d->s->table[j->flight->table].scale_bytes;
        memcpy(hx_engram_cache_scales(d->s->cache, j->flight->entry) + j->at * each,
               scales_of(d, j), each);
    }
}

/* Refusals of the kernel: fewer at a time for a while. */
static void cut_cap(struct hx_engram_drive *d)
{
    d->cap = d->cap / 2 > CAP_MIN ? d->cap / 2 : CAP_MIN;
    d->cap_cut = hx_engram_now();
}

/* The row's bytes are in the slot, its scales in their place. NULL: taken over; else what is wrong
 * with them. */
static const char *take_row(struct hx_engram_drive *d, const struct hx_engram_slot *sl, uint32_t i)
{
    const struct hx_engram_table *t = &d->s->table[sl->table];
    const uint8_t *codes = d->slots + i * d->slot_bytes + sl->skip;
    const char *what = hx_engram_implausible(&d->s->plausible, t, codes, sl->scales_to);
    if (what)
        return what;
    memcpy(sl->codes_to, codes, (size_t)t->row_bytes);
    return NULL;
}

static void implausible(struct hx_engram_drive *d, struct hx_engram_job *j, const char *what)
{
    struct hx_engram_stream *s = d->s;
    count_error(d, HX_ENGRAM_ERR_IMPLAUSIBLE);
    pthread_mutex_lock(&d->stats_mutex);
    d->stats[j->flight->table].implausible_rows++;
    pthread_mutex_unlock(&d->stats_mutex);
    pthread_mutex_lock(&s->lock);
    note_error(d, j->flight->table, 0, what);
    if (++j->n_implausible < 2 && d->online) {
        j->due = hx_engram_now() + RETRY_S;
        list_push(&d->retry, j);
    } else {
        elsewhere(d, j, -EILSEQ, 0, what);
    }
    pthread_mutex_unlock(&s->lock);
}

/* What a piece of completions brought, before it is added up under the lock of the counters. */
struct tally {
    double us[PIECE]; /* [n] */
    int n;
    struct {
        uint64_t reads, bytes, straddling;
    } table[HX_ENGRAM_MAX_TABLES];
};

static void add_tally(struct hx_engram_drive *d, const struct tally *y)
{
    pthread_mutex_lock(&d->stats_mutex);
    for (int t = 0; t < d->s->n_tables; t++) {
        d->stats[t].reads_completed += y->table[t].reads;
        d->stats[t].bytes_read += y->table[t].bytes;
        d->stats[t].straddling_reads += y->table[t].straddling;
    }
    for (int i = 0; i < y->n; i++)
        hx_engram_hist_add(&d->read_us, y->us[i]);
    pthread_mutex_unlock(&d->stats_mutex);
}

/* A completion, seen at `now`. Returns the flight that it brought a row, or NULL. */
static struct hx_engram_flight *
complete(struct hx_engram_drive *d, const struct hx_engram_io_done *c, double now, struct tally *y)
{
    struct hx_engram_slot *sl = &d->slot[c->slot];
    struct hx_engram_job *j = sl->job;
    int res = c->res;
    if (!j) { /* given up before */
        free_slot(d, c->slot);
        return NULL;
    }
    struct hx_engram_flight *f = sl->flight;
    int table = sl->table;
    uint32_t want = sl->skip + (uint32_t)d->s->table[table].row_bytes;
    if (res == -EINTR || res == -EAGAIN || res == -ENOMEM) {
        if (res != -EINTR)
            cut_cap(d);
        free_slot(d, c->slot);
        if (++j->n_soft > SOFT_MAX) {
            read_failed(d, j, -res, NULL);
        } else {
            j->n_reads--;
            j->due = now + RETRY_S;
            list_push(&d->retry, j);
        }
        return NULL;
    }
    if (res >= 0 && sl->got + (uint32_t)res < want) {
        /* The rest once more, from the last whole block on. */
        uint32_t got = (sl->got + (uint32_t)res) & ~((uint32_t)d->align - 1);
        if (!sl->short_before && res > 0) {
            sl->short_before = true;
            sl->got = got;
            count_error(d, HX_ENGRAM_ERR_SHORT);
            if (issue_slot(d, c->slot, d->file_of[table]) == 0)
                return NULL;
        }
        free_slot(d, c->slot);
        read_failed(d, j, SHORT, res == 0 ? "the file ends before the row" : "short read");
        return NULL;
    }
    if (res < 0) {
        free_slot(d, c->slot);
        /* What block devices say of a bad sector means something else everywhere else. */
        read_failed(d, j, -res, res == -ENODATA ? "the drive cannot read this sector" : NULL);
        return NULL;
    }
    y->table[table].reads++;
    y->table[table].bytes += sl->len;
    y->table[table].straddling += d->align > 1 && sl->len > (uint32_t)d->align;
    y->us[y->n++] = (now - sl->issued) * 1e6;
    const char *what = take_row(d, sl, c->slot);
    free_slot(d, c->slot);
    if (what) {
        implausible(d, j, what);
        return NULL;
    }
    return f;
}

/* ---- the thread ---- */

/* With the lock held. Decoding sequences get what they want; the others share half of the slots
 * while there are any. */
static int take_jobs(struct hx_engram_drive *d, struct hx_engram_job **jobs, int room, double now)
{
    struct hx_engram_stream *s = d->s;
    bool decoding = s->n_decode_plans > 0 || now - s->last_decode < DECODING_S;
    int bulk = decoding ? d->cap / 2 - d->n_bulk : room, n = 0;
    for (int q = 0; q < HX_ENGRAM_QUEUES; q++) {
        bool is_bulk = q >= 2 * HX_ENGRAM_CHUNK;
        struct hx_engram_job *j;
        while (n < room && (!is_bulk || bulk > 0) && (j = d->queue[q].first)) {
            hx_engram_job_unqueue(j);
            j->state = HX_JOB_ISSUED;
            j->flight->n_issued++;
            bulk -= is_bulk;
            jobs[n++] = j;
            /* Another core wrote them; those of a flight lie one behind the other. */
            __builtin_prefetch(j + 3, 1);
            __builtin_prefetch(j + 4, 1);
        }
    }
    return n;
}

static void issue_retries(struct hx_engram_drive *d, int room, double now)
{
    struct hx_engram_job *j = d->retry.first;
    for (; j && room > 0; room--) {
        struct hx_engram_job *next = j->next;
        if (j->due <= now) {
            list_remove(&d->retry, j);
            issue(d, j, now);
        }
        j = next;
    }
}

/* Reads that take too long: their rows fail; the slots stay taken until the reads come back. */
static void check_ages(struct hx_engram_drive *d, double now)
{
    const struct hx_engram_stream_options *o = &d->s->o;
    double oldest = now;
    for (int i = 0; i < d->n_slots; i++) {
        struct hx_engram_slot *sl = &d->slot[i];
        if (sl->issued == 0)
            continue;
        oldest = sl->issued < oldest ? sl->issued : oldest;
        if (sl->job && now - sl->issued > o->slow_ms * 1e-3) {
            struct hx_engram_job *j = sl->job;
            sl->job = NULL;
            read_failed(d, j, ETIMEDOUT, "a read took too long");
        }
    }
    if (now - oldest > o->lost_ms * 1e-3) {
        struct hx_error reason;
        hx_fail(&reason, -EHOSTDOWN, "%s: reads do not come back", d->file[0].path);
        pthread_mutex_lock(&d->s->lock);
        lose(d, &reason);
        pthread_mutex_unlock(&d->s->lock);
    }
}

static void check_files(struct hx_engram_drive *d)
{
    for (int f = 0; f < d->n_files; f++) {
        struct hx_error reason;
        if (hx_engram_file_check(&d->file[f], &reason) < 0) {
            pthread_mutex_lock(&d->s->lock);
            lose(d, &reason);
            pthread_mutex_unlock(&d->s->lock);
            return;
        }
    }
}

/* A lost drive again: the same files, and reads that work. */
static void try_again(struct hx_engram_drive *d)
{
    struct hx_error e = {0};
    int r = 0;
    for (int f = 0; r == 0 && f < d->n_files; f++)
        r = hx_engram_file_reopen(d->s, &d->file[f], &e);
    if (r == 0) {
        hx_engram_level_close(d);
        r = hx_engram_level_open(d, &e);
    }
    pthread_mutex_lock(&d->s->lock);
    d->reopened = hx_engram_now();
    if (r == 0) {
        d->online = true;
        memset(d->storm, 0, sizeof(d->storm));
        hx_log(HX_LOG_DEBUG, "engram", "drive is back: %s", d->file[0].path);
    } else {
        d->lost_reason = e;
    }
    pthread_mutex_unlock(&d->s->lock);
}

static int in_flight(const struct hx_engram_drive *d)
{
    return d->n_slots - d->n_free;
}

/* What is done now and then. */
static void look_around(struct hx_engram_drive *d, double now)
{
    const struct hx_engram_stream_options *o = &d->s->o;
    bool online; /* only this thread changes it */
    pthread_mutex_lock(&d->s->lock);
    online = d->online;
    pthread_mutex_unlock(&d->s->lock);
    if (in_flight(d) > 0)
        check_ages(d, now);
    if (d->cap < o->depth && now - d->cap_cut > CAP_GROW_S) {
        d->cap = d->cap * 2 < o->depth ? d->cap * 2 : o->depth;
        d->cap_cut = now;
    }
    if (online && now - d->checked > o->check_ms * 1e-3) {
        check_files(d);
        d->checked = now;
    }
    if (!online && now - d->reopened > o->reopen_ms * 1e-3 && in_flight(d) == 0)
        try_again(d);
}

/* Completions that were taken from io: those before `first` have been handled, those before
 * `fetched` are in the processor's cache. */
struct batch {
    struct hx_engram_io_done done[BATCH];
    double seen[BATCH];
    int first, fetched, n;
};

/* Rows that came, and where they go, are in no cache yet: a piece is on its way there while the one
 * before it is handled. */
static void fetch_lines(const struct hx_engram_drive *d, struct batch *b)
{
    for (; b->fetched < b->n && b->fetched < b->first + 2 * PIECE; b->fetched++) {
        uint32_t i = b->done[b->fetched].slot;
        const struct hx_engram_slot *sl = &d->slot[i];
        if (!sl->job)
            continue;
        const uint8_t *codes = d->slots + i * d->slot_bytes + sl->skip;
        for (int at = 0; at < d->s->table[sl->table].row_bytes; at += 64) {
            __builtin_prefetch(codes + at);
            __builtin_prefetch(sl->codes_to + at, 1);
        }
    }
}

/* A piece of what is held. */
static void handle(struct hx_engram_drive *d, struct batch *b)
{
    struct hx_engram_flight *came[PIECE], *finished[PIECE];
    struct tally y;
    int n = b->n - b->first < PIECE ? b->n - b->first : PIECE, n_came = 0, n_finished = 0;
    y.n = 0;
    memset(y.table, 0, sizeof(y.table));
    for (int i = b->first; i < b->first + n; i++) {
        struct hx_engram_flight *f = complete(d, &b->done[i], b->seen[i], &y);
        if (f)
            came[n_came++] = f;
    }
    b->first += n;
    if (b->first == b->n)
        b->first = b->fetched = b->n = 0;
    /* After all copies: an atomic operation waits for the stores before it. */
    for (int i = 0; i < n_came; i++) {
        if (atomic_fetch_sub(&came[i]->left, 1) == 1)
            finished[n_finished++] = came[i];
    }
    add_tally(d, &y);
    if (n_finished == 0)
        return;
    pthread_mutex_lock(&d->s->lock);
    for (int i = 0; i < n_finished; i++)
        hx_engram_flight_done(d->s, finished[i]);
    pthread_mutex_unlock(&d->s->lock);
}

/* Hands queued reads to the kernel and takes completions, as ops->wait says. */
static void take_done(struct hx_engram_drive *d, struct batch *b, int few, int timeout_us)
{
    int n = d->ops->wait(d->io, b->done + b->n, BATCH - b->n, few, timeout_us);
    if (n < 0) { /* the kernel takes no more now */
        cut_cap(d);
        n = d->ops->wait(d->io, b->done + b->n, BATCH - b->n, 1, 1000);
    }
    double now = hx_engram_now();
    for (int end = b->n + (n < 0 ? 0 : n); b->n < end; b->n++) {
        struct hx_engram_slot *sl = &d->slot[b->done[b->n].slot];
        b->seen[b->n] = now;
        d->n_bulk -= sl->bulk; /* their share is free for others */
        sl->bulk = false;
    }
}

static void wait_done(struct hx_engram_drive *d, struct batch *b, bool more, bool stopping)
{
    /* With many on their way some at a time save most of the wake-ups; a read that is late holds
     * the others up for no longer than TOGETHER_US. */
    int few = in_flight(d) / TOGETHER;
    few = few < 1 ? 1 : few > BATCH / 4 ? BATCH / 4 : few;
    int timeout_us = more ? 0 : few > 1 ? TOGETHER_US : d->retry.first || stopping ? 1000 : TICK_US;
    take_done(d, b, few, timeout_us);
}

/* Rows are checked and copied while the drive reads the next ones: after each piece of them come
 * those that have arrived meanwhile, and as many reads as have come are sent again. */
static void drive_loop(struct hx_engram_drive *d)
{
    struct hx_engram_stream *s = d->s;
    struct hx_engram_job *jobs[BATCH];
    struct batch held = {.n = 0};
    double looked = hx_engram_now(), stop_at = 0;
    for (;;) {
        double now = hx_engram_now();
        if (now - looked > TICK_US * 1e-6) {
            look_around(d, now);
            looked = now;
        }
        int n_held = held.n - held.first, room = d->cap - (in_flight(d) - n_held), n = 0;
        room = room > BATCH ? BATCH : room < 0 ? 0 : room;
        bool more = false, stopping = stop_at > 0;
        if (n_held == 0 || room >= PIECE) { /* fewer are not worth a call */
            pthread_mutex_lock(&s->lock);
            n = take_jobs(d, jobs, room, now);
            more = n == BATCH;
            stopping = s->stopping;
            d->idle = n_held == 0 && !more && n < room && !stopping;
            pthread_mutex_unlock(&s->lock);
            if (stopping && stop_at == 0)
                stop_at = now + DRAIN_S;
            if (stopping && (in_flight(d) == 0 || now > stop_at))
                return;
            for (int i = 0; i < n; i++)
                issue(d, jobs[i], now);
            issue_retries(d, room - n, now);
            atomic_store(&d->in_flight, in_flight(d));
        }
        /* The drive first: everything else can be done while it reads. */
        if (n > (n_held > 0 ? 0 : PIECE))
            d->ops->submit(d->io);
        fetch_lines(d, &held);
        put_scales(d, jobs, n);
        if (n_held == 0) {
            wait_done(d, &held, more, stopping);
            continue;
        }
        handle(d, &held);
        if (held.n > 0 && held.n < BATCH && d->ops->ready(d->io))
            take_done(d, &held, 1, 0);
    }
}

static void *drive_thread(void *arg)
{
    struct hx_engram_drive *d = arg;
    struct hx_error e = {0};
    int r = hx_engram_level_open(d, &e);
    pthread_mutex_lock(&d->s->lock);
    d->started = true;
    d->start_result = r;
    d->online = r == 0;
    d->lost_reason = e;
    pthread_cond_broadcast(&d->s->done);
    pthread_mutex_unlock(&d->s->lock);
    if (r < 0)
        return NULL;
    drive_loop(d);
    pthread_mutex_lock(&d->s->lock);
    d->idle = false;
    pthread_mutex_unlock(&d->s->lock);
    /* What still is on its way keeps its memory: a drive may write there any time. */
    if (in_flight(d) == 0)
        hx_engram_level_close(d);
    return NULL;
}

int hx_engram_drive_start(struct hx_engram_drive *d, struct hx_error *err)
{
    d->cap = d->s->o.depth;
    d->n_slots = d->cap + BATCH; /* reads on their way, and those that are being handled */
    d->slot = calloc((size_t)d->n_slots, sizeof(*d->slot));
    d->free_slot = calloc((size_t)d->n_slots, sizeof(*d->free_slot));
    if (!d->slot || !d->free_slot)
        return hx_fail(err, -ENOMEM, "out of memory for %d Engram reads", d->n_slots);
    for (int i = 0; i < d->n_slots; i++)
        d->free_slot[d->n_free++] = (uint32_t)i;
    d->checked = hx_engram_now();
    int r = pthread_create(&d->thread, NULL, drive_thread, d);
    if (r != 0)
        return hx_fail_errno(err, r, "cannot start an Engram thread");
    d->has_thread = true;
    char name[16];
    snprintf(name, sizeof(name), "hx-engram%d", d->number);
    pthread_setname_np(d->thread, name);
    return 0;
}

/* s->stopping is set. */
void hx_engram_drive_stop(struct hx_engram_drive *d)
{
    if (d->has_thread) {
        pthread_mutex_lock(&d->s->lock);
        if (d->idle) {
            d->idle = false;
            d->ops->wake(d->io);
        }
        pthread_mutex_unlock(&d->s->lock);
        pthread_join(d->thread, NULL);
    }
    free(d->slot);
    free(d->free_slot);
}
