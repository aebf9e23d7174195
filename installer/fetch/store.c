/* The store's owner side: sinks, blocks, events, opening and closing. */
#include "fetch/store_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MIN_KEPT   (1u << 20) /* a shorter prefix is not worth a continuation */
#define CLOSE_MS   4000       /* a stop waits so long for the writers */
#define FDS_A_FILE 3
#define HUGE_PAGE  (2u << 20)

uint64_t hx_store_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- events ---- */

void hx_store_signal(struct hx_store *s)
{
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(s->event_fd, &one, sizeof(one));
    while (n < 0 && errno == EINTR);
}

static void remove_notice(struct hx_store *s, struct hx_notice *n)
{
    struct hx_notice *before = NULL;
    for (struct hx_notice *i = s->events; i; before = i, i = i->next) {
        if (i != n)
            continue;
        if (before)
            before->next = n->next;
        else
            s->events = n->next;
        if (s->events_tail == n)
            s->events_tail = before;
        break;
    }
    n->queued = false;
    n->next = NULL;
}

void hx_store_notify(struct hx_store *s, struct hx_notice *n)
{
    if (n->queued) /* an older state of the same thing */
        remove_notice(s, n);
    n->queued = true;
    n->next = NULL;
    if (s->events_tail)
        s->events_tail->next = n;
    else
        s->events = n;
    s->events_tail = n;
    hx_store_signal(s);
}

void hx_store_note(struct hx_store *s, size_t file, const char *fmt, ...)
{
    struct hx_notice *n = NULL;
    for (size_t i = 0; !n && i < sizeof(s->notes) / sizeof(s->notes[0]); i++) {
        if (!s->notes[i].queued)
            n = &s->notes[i];
    }
    if (!n)
        return;
    n->ev = (struct hx_store_event){.type = HX_STORE_NOTE, .file = file};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(n->ev.message, sizeof(n->ev.message), fmt, ap);
    va_end(ap);
    hx_store_notify(s, n);
}

int hx_store_event_fd(const struct hx_store *store)
{
    return store->event_fd;
}

bool hx_store_next(struct hx_store *store, struct hx_store_event *ev)
{
    pthread_mutex_lock(&store->m);
    struct hx_notice *n = store->events;
    if (!n) {
        uint64_t count;
        ssize_t r = read(store->event_fd, &count, sizeof(count));
        (void)r; /* EAGAIN: nobody signalled */
        pthread_mutex_unlock(&store->m);
        return false;
    }
    *ev = n->ev;
    remove_notice(store, n);
    struct hx_sink *k = NULL;
    if (ev->type <= HX_STORE_CHUNK_LOST) {
        k = (struct hx_sink *)((char *)n - offsetof(struct hx_sink, notice));
        store->n_sinks--;
    }
    pthread_mutex_unlock(&store->m);
    hx_sink_free(k);
    return true;
}

/* ---- pauses ---- */

static bool is_pause(int r)
{
    return r == -ENOSPC || r == -EDQUOT || r == -EROFS;
}

int hx_store_wait_room(struct hx_store *s, int r, const char *message)
{
    if (!is_pause(r))
        return r;
    pthread_mutex_lock(&s->m);
    if (atomic_load(&s->blocked) == 0) {
        atomic_store(&s->blocked, -r);
        struct hx_store_event *ev = &s->blocked_notice.ev;
        *ev = (struct hx_store_event){.type = r == -EROFS ? HX_STORE_READ_ONLY : HX_STORE_FULL};
        snprintf(ev->message, sizeof(ev->message), "%s", message);
        hx_store_notify(s, &s->blocked_notice);
        pthread_cond_broadcast(&s->idle);
        pthread_cond_broadcast(&s->sync);
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)s->opt.retry_ms * 1000000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    int w = 0;
    while (!s->stop && atomic_load(&s->blocked) != 0 && w == 0)
        w = pthread_cond_timedwait(&s->room, &s->m, &until);
    r = s->stop ? -ECANCELED : 0;
    pthread_mutex_unlock(&s->m);
    return r;
}

void hx_store_room_again(struct hx_store *s)
{
    if (atomic_load_explicit(&s->blocked, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&s->m);
    if (atomic_exchange(&s->blocked, 0) != 0) {
        s->resumed_notice.ev = (struct hx_store_event){.type = HX_STORE_RESUMED};
        hx_store_notify(s, &s->resumed_notice);
        pthread_cond_broadcast(&s->room);
    }
    pthread_mutex_unlock(&s->m);
}

/* ---- sinks ---- */

void hx_sink_free(struct hx_sink *k)
{
    if (!k)
        return;
    hx_sha256_free(k->hash);
    hx_sha256_free(k->front);
    free(k);
}

void hx_sink_unlink(struct hx_sink *k)
{
    for (struct hx_sink **p = &k->file->sinks; *p; p = &(*p)->next_of_file) {
        if (*p == k) {
            *p = k->next_of_file;
            break;
        }
    }
}

static void give_back(struct hx_store *s, struct hx_block *b)
{
    b->next = s->free_blocks;
    s->free_blocks = b;
    s->n_free++;
}

void hx_sink_drop_blocks(struct hx_store *s, struct hx_sink *k)
{
    while (k->head) {
        struct hx_block *b = k->head;
        k->head = b->next;
        give_back(s, b);
    }
    k->tail = NULL;
    if (s->want_room) {
        s->want_room = false;
        hx_store_signal(s);
    }
}

void hx_store_stop_file(struct hx_store *s, struct hx_store_file *f, int r, const char *message)
{
    if (f->phase == HX_FILE_STOPPED)
        return;
    f->phase = HX_FILE_STOPPED;
    f->notice.ev =
        (struct hx_store_event){.type = HX_STORE_FILE_STOPPED, .error = r, .file = f->index};
    snprintf(f->notice.ev.message, sizeof(f->notice.ev.message), "%s", message);
    hx_store_notify(s, &f->notice);
    for (struct hx_sink *k = f->sinks, *next; k; k = next) {
        next = k->next_of_file;
        atomic_store(&k->failed, true);
        if (k->waiting || (k->kept && !k->busy && !k->queued))
            hx_sink_queue(s, k); /* a writer ends it */
    }
}

static int new_sink(struct hx_store *s, struct hx_store_file *f, size_t chunk, struct hx_sink **out,
                    struct hx_error *err)
{
    struct hx_sink *k = calloc(1, sizeof(*k));
    int r = k ? 0 : -ENOMEM;
    if (r == 0)
        r = hx_sha256_new(&k->hash, err);
    if (r == 0 && f->front_hash)
        r = hx_sha256_new(&k->front, err);
    if (r < 0) {
        hx_sink_free(k);
        return hx_fail(err, -ENOMEM, "%s: out of memory for a chunk", f->plan->lock->out);
    }
    k->store = s;
    k->file = f;
    k->chunk = chunk;
    k->plan = &f->plan->chunks[chunk];
    k->out_pos = k->plan->out_begin;
    /* Where one hash is enough it costs least while the bytes are in the cache anyway. Without
     * instructions for it one thread would be too slow. */
    k->hash_here = !k->front && hx_sha256_copies();
    atomic_init(&k->failed, false);
    *out = k;
    return 0;
}

int hx_store_begin(struct hx_store *store, size_t file, size_t chunk, uint64_t *skip,
                   struct hx_sink **out, struct hx_error *err)
{
    struct hx_store_file *f = &store->files[file];
    const char *name = f->plan->lock->out;
    struct hx_sink *fresh = NULL;
    if (chunk >= f->plan->n_chunks)
        return hx_fail(err, -EINVAL, "%s: has no chunk %zu", name, chunk);
    int r = new_sink(store, f, chunk, &fresh, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&store->m);
    struct hx_sink *kept = f->sinks;
    while (kept && !(kept->kept && kept->chunk == chunk))
        kept = kept->next_of_file;
    if (f->phase == HX_FILE_STOPPED) {
        r = hx_fail(err, -EIO, "%s: was stopped by an earlier error", name);
    } else if (f->phase != HX_FILE_GROWING || f->chunks[chunk].state >= HX_CHUNK_WRITTEN) {
        r = hx_fail(err, -EALREADY, "%s: chunk %zu is there", name, chunk);
    } else if (kept) {
        kept->kept = false;
        store->n_open++;
        *skip = kept->src_pos;
        *out = kept;
    } else if (f->chunks[chunk].state != HX_CHUNK_MISSING || store->n_sinks >= HX_STORE_MAX_SINKS) {
        r = hx_fail(err, -EAGAIN, "%s: chunk %zu has to wait for the writers", name, chunk);
    } else {
        f->chunks[chunk].state = HX_CHUNK_OPEN;
        fresh->next_of_file = f->sinks;
        f->sinks = fresh;
        store->n_sinks++;
        store->n_open++;
        *skip = 0;
        *out = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&store->m);
    hx_sink_free(fresh);
    return r;
}

/* Blocks that the next n source bytes begin. */
static size_t blocks_needed(const struct hx_sink *k, const struct hx_plan_segment *seg, size_t n)
{
    uint64_t src = k->plan->src_begin + k->src_pos, end = src + n, out = k->out_pos;
    size_t room = k->filling ? (size_t)(-out % HX_STORE_BLOCK) : 0, blocks = 0;
    for (uint32_t i = k->segment; i < k->plan->n_segments && seg[i].src_begin < end; i++) {
        uint64_t from = seg[i].src_begin > src ? seg[i].src_begin : src;
        uint64_t to = seg[i].src_begin + seg[i].n_bytes;
        uint64_t len = (to < end ? to : end) - from;
        while (len > room) {
            len -= room;
            out += room;
            room = HX_STORE_BLOCK - (size_t)(out % HX_STORE_BLOCK);
            blocks++;
        }
        room -= (size_t)len;
        out += len;
    }
    return blocks;
}

static void queue_block(struct hx_sink *k)
{
    struct hx_store *s = k->store;
    struct hx_block *b = k->filling;
    k->filling = NULL;
    pthread_mutex_lock(&s->m);
    b->next = NULL;
    if (k->tail)
        k->tail->next = b;
    else
        k->head = b;
    k->tail = b;
    hx_sink_queue(s, k);
    pthread_mutex_unlock(&s->m);
}

/* Copies wanted bytes; the blocks were set aside before. */
static void put(struct hx_sink *k, const uint8_t *data, size_t n, struct hx_block **set_aside)
{
    while (n > 0) {
        if (!k->filling) {
            k->filling = *set_aside;
            *set_aside = k->filling->next;
            k->filling->begin = k->out_pos;
            k->filling->n_bytes = 0;
        }
        size_t at = (size_t)(k->out_pos % HX_STORE_BLOCK), len = HX_STORE_BLOCK - at;
        if (len > n)
            len = n;
        if (k->hash_here)
            hx_sha256_update_copy(k->hash, k->filling->mem + at, data, len);
        else
            memcpy(k->filling->mem + at, data, len);
        k->filling->n_bytes += len;
        k->out_pos += len;
        data += len;
        n -= len;
        if (k->out_pos % HX_STORE_BLOCK == 0)
            queue_block(k);
    }
}

int hx_sink_write(struct hx_sink *sink, const void *data, size_t n)
{
    struct hx_store *s = sink->store;
    const struct hx_plan_segment *seg = sink->file->plan->segments + sink->plan->first_segment;
    struct hx_block *set_aside = NULL;
    if (atomic_load_explicit(&sink->failed, memory_order_relaxed))
        return -EIO;
    if (n > sink->plan->src_bytes - sink->src_pos)
        return -EFBIG;
    size_t need = blocks_needed(sink, seg, n);
    if (need > s->n_blocks / 2)
        return -EMSGSIZE;
    bool blocked = atomic_load_explicit(&s->blocked, memory_order_relaxed) != 0;
    if (need > 0 || blocked) {
        pthread_mutex_lock(&s->m);
        bool refused = atomic_load(&s->blocked) != 0 || need > s->n_free ||
                       s->unsynced_bytes >= 2 * s->opt.sync_bytes;
        if (refused)
            s->want_room = true;
        for (; !refused && need > 0; need--) {
            struct hx_block *b = s->free_blocks;
            s->free_blocks = b->next;
            s->n_free--;
            b->next = set_aside;
            set_aside = b;
        }
        pthread_mutex_unlock(&s->m);
        if (refused)
            return -EAGAIN;
    }
    const uint8_t *p = data;
    uint64_t src = sink->plan->src_begin + sink->src_pos, end = src + n;
    sink->src_pos += n;
    while (sink->segment < sink->plan->n_segments) {
        const struct hx_plan_segment *g = &seg[sink->segment];
        uint64_t from = g->src_begin > src ? g->src_begin : src;
        uint64_t g_end = g->src_begin + g->n_bytes, to = g_end < end ? g_end : end;
        if (from < to)
            put(sink, p + (from - src), (size_t)(to - from), &set_aside);
        if (g_end > end)
            break;
        sink->segment++;
    }
    return 0;
}

void hx_sink_end(struct hx_sink *sink, bool keep_prefix)
{
    struct hx_store *s = sink->store;
    bool complete = sink->src_pos == sink->plan->src_bytes;
    bool keep = !complete && keep_prefix && sink->src_pos >= MIN_KEPT;
    if ((complete || keep) && sink->filling)
        queue_block(sink);
    pthread_mutex_lock(&s->m);
    s->n_open--;
    if (complete) {
        sink->complete = true;
        s->n_finishing++;
        hx_sink_queue(s, sink); /* a writer ends it */
    } else if (keep && !atomic_load(&sink->failed)) {
        sink->kept = true;
    } else {
        /* Its chunk may be begun again at once, so no writer may be at work on it. */
        while (sink->busy && atomic_load(&s->blocked) == 0)
            pthread_cond_wait(&s->idle, &s->m);
        sink->aborted = true;
        if (!sink->busy)
            hx_sink_discard(s, sink);
    }
    pthread_cond_broadcast(&s->sync);
    pthread_mutex_unlock(&s->m);
}

/* ---- questions ---- */

bool hx_store_chunk_done(const struct hx_store *store, size_t file, size_t chunk)
{
    struct hx_store *s = (struct hx_store *)(uintptr_t)store;
    const struct hx_store_file *f = &s->files[file];
    pthread_mutex_lock(&s->m);
    bool done = f->phase == HX_FILE_READY || f->phase == HX_FILE_PUBLISHED ||
                (chunk < f->plan->n_chunks && f->chunks[chunk].state == HX_CHUNK_DONE);
    pthread_mutex_unlock(&s->m);
    return done;
}

bool hx_store_file_ready(const struct hx_store *store, size_t file)
{
    struct hx_store *s = (struct hx_store *)(uintptr_t)store;
    pthread_mutex_lock(&s->m);
    bool ready = s->files[file].phase == HX_FILE_READY || s->files[file].phase == HX_FILE_PUBLISHED;
    pthread_mutex_unlock(&s->m);
    return ready;
}

uint64_t hx_store_bytes_done(const struct hx_store *store)
{
    struct hx_store *s = (struct hx_store *)(uintptr_t)store;
    pthread_mutex_lock(&s->m);
    uint64_t n = s->bytes_done;
    pthread_mutex_unlock(&s->m);
    return n;
}

int hx_store_flush(struct hx_store *store, struct hx_error *err)
{
    int r = 0;
    pthread_mutex_lock(&store->m);
    store->flush = true;
    pthread_cond_broadcast(&store->sync);
    while ((store->n_finishing > 0 || store->written_head || store->syncing) &&
           atomic_load(&store->blocked) == 0)
        pthread_cond_wait(&store->sync, &store->m);
    if (atomic_load(&store->blocked) != 0)
        r = hx_fail_errno(err, atomic_load(&store->blocked), "%s: not everything could be written",
                          store->incoming);
    store->flush = false;
    pthread_mutex_unlock(&store->m);
    return r;
}

/* ---- opening and closing ---- */

static int make_paths(struct hx_store *s, struct hx_error *err)
{
    const char *root = s->opt.models, *model = s->plan->lock->model;
    if (asprintf(&s->incoming, "%s/incoming/%s", root, model) < 0)
        s->incoming = NULL;
    if (asprintf(&s->final, "%s/%s", root, model) < 0)
        s->final = NULL;
    if (!s->incoming || !s->final)
        return hx_fail(err, -ENOMEM, "out of memory");
    return 0;
}

/* Every growing file holds some descriptors. */
static void raise_fd_limit(size_t n_files)
{
    struct rlimit l;
    rlim_t want = (rlim_t)n_files * FDS_A_FILE + 256;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < want) {
        l.rlim_cur = want < l.rlim_max ? want : l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l); /* without it, opening a file says that there are too many */
    }
}

static int make_blocks(struct hx_store *s, struct hx_error *err)
{
    s->n_blocks = s->opt.buffer_bytes / HX_STORE_BLOCK;
    if (s->n_blocks < HX_STORE_MIN_BLOCKS)
        s->n_blocks = HX_STORE_MIN_BLOCKS;
    if (s->n_blocks > HX_STORE_MAX_BLOCKS)
        s->n_blocks = HX_STORE_MAX_BLOCKS;
    s->blocks = calloc(s->n_blocks, sizeof(*s->blocks));
    void *mem = NULL;
    if (!s->blocks || posix_memalign(&mem, HUGE_PAGE, s->n_blocks * HX_STORE_BLOCK) != 0)
        return hx_fail(err, -ENOMEM, "out of memory for %zu MiB of buffers", s->n_blocks);
    s->arena = mem;
    /* With small pages half of a copy's time can be address translation, in a virtual machine above
     * all. Refused: it works without. */
    madvise(mem, s->n_blocks * HX_STORE_BLOCK, MADV_HUGEPAGE);
    for (size_t i = 0; i < s->n_blocks; i++) {
        s->blocks[i].mem = s->arena + i * HX_STORE_BLOCK;
        give_back(s, &s->blocks[i]);
    }
    return 0;
}

static int start_threads(struct hx_store *s, struct hx_error *err)
{
    s->writers = calloc(s->opt.n_writers, sizeof(*s->writers));
    if (!s->writers)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = 0;
    for (unsigned i = 0; r == 0 && i < s->opt.n_writers; i++) {
        r = pthread_create(&s->writers[i], NULL, hx_store_writer, s);
        s->n_writers += r == 0;
    }
    if (r == 0) {
        r = pthread_create(&s->sync_thread, NULL, hx_store_syncer, s);
        s->sync_running = r == 0;
    }
    if (r == 0) {
        r = pthread_create(&s->check_thread, NULL, hx_store_checker, s);
        s->check_running = r == 0;
    }
    return r ? hx_fail_errno(err, r, "cannot start a thread") : 0;
}

static void set_defaults(struct hx_store_options *o)
{
    if (o->n_writers == 0)
        o->n_writers = 2;
    if (o->n_writers > 16)
        o->n_writers = 16;
    if (o->buffer_bytes == 0)
        o->buffer_bytes = 64u << 20;
    if (o->sync_bytes == 0)
        o->sync_bytes = 256u << 20;
    if (o->sync_ms == 0)
        o->sync_ms = 500;
    if (o->retry_ms == 0)
        o->retry_ms = 1000;
    if (o->most_wrong == 0)
        o->most_wrong = 2;
}

int hx_store_open(const struct hx_store_options *opt, const struct hx_plan *plan,
                  void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx,
                  struct hx_store **out, struct hx_error *err)
{
    struct hx_store *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    s->plan = plan;
    s->opt = *opt;
    set_defaults(&s->opt);
    s->lock_fd = -1;
    atomic_init(&s->blocked, 0);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->m, NULL);
    pthread_cond_init(&s->work, &monotonic);
    pthread_cond_init(&s->sync, &monotonic);
    pthread_cond_init(&s->check, &monotonic);
    pthread_cond_init(&s->room, &monotonic);
    pthread_cond_init(&s->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int r = s->event_fd < 0 ? hx_fail_errno(err, errno, "cannot make an event descriptor")
                            : make_paths(s, err);
    if (r == 0)
        r = hx_store_lock(s->opt.models, &s->lock_fd, err);
    if (r == 0)
        r = make_blocks(s, err);
    raise_fd_limit(plan->n_files);
    if (r == 0)
        r = hx_store_open_files(s, progress, ctx, err);
    if (r == 0)
        r = start_threads(s, err);
    if (r < 0) {
        hx_store_close(s);
        return r;
    }
    *out = s;
    return 0;
}

/* Lets the writers and the sync thread finish what is complete, if the disk takes it. */
static void drain(struct hx_store *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CLOSE_MS / 1000;
    s->flush = true;
    pthread_cond_broadcast(&s->sync);
    int w = 0;
    while (w == 0 && s->sync_running && atomic_load(&s->blocked) == 0 &&
           (s->n_finishing > 0 || s->written_head || s->syncing))
        w = pthread_cond_timedwait(&s->sync, &s->m, &until);
}

static void stop_threads(struct hx_store *s)
{
    pthread_mutex_lock(&s->m);
    s->stop_check = true;
    pthread_cond_broadcast(&s->check);
    drain(s);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->sync);
    pthread_cond_broadcast(&s->room);
    pthread_mutex_unlock(&s->m);
    for (unsigned i = 0; i < s->n_writers; i++)
        pthread_join(s->writers[i], NULL);
    if (s->sync_running)
        pthread_join(s->sync_thread, NULL);
    if (s->check_running)
        pthread_join(s->check_thread, NULL);
}

static void free_sinks(struct hx_store *s)
{
    while (s->written_head) {
        struct hx_sink *k = s->written_head;
        s->written_head = k->next_ready;
        hx_sink_free(k);
    }
    while (s->events) {
        struct hx_notice *n = s->events;
        bool of_sink = n->ev.type <= HX_STORE_CHUNK_LOST;
        remove_notice(s, n);
        if (of_sink)
            hx_sink_free((struct hx_sink *)((char *)n - offsetof(struct hx_sink, notice)));
    }
    for (size_t i = 0; i < s->n_files; i++) {
        while (s->files[i].sinks) {
            struct hx_sink *k = s->files[i].sinks;
            s->files[i].sinks = k->next_of_file;
            hx_sink_free(k);
        }
    }
}

void hx_store_close(struct hx_store *store)
{
    if (!store)
        return;
    stop_threads(store);
    free_sinks(store);
    for (size_t i = 0; i < store->n_files; i++)
        hx_store_file_done(&store->files[i]);
    free(store->files);
    if (store->lock_fd >= 0)
        close(store->lock_fd);
    if (store->event_fd >= 0)
        close(store->event_fd);
    pthread_mutex_destroy(&store->m);
    pthread_cond_destroy(&store->work);
    pthread_cond_destroy(&store->sync);
    pthread_cond_destroy(&store->check);
    pthread_cond_destroy(&store->room);
    pthread_cond_destroy(&store->idle);
    free(store->arena);
    free(store->blocks);
    free(store->writers);
    free(store->incoming);
    free(store->final);
    free(store);
}
