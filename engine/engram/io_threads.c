/* Reads through a pool of threads with pread: where io_uring is forbidden. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engram/io.h"

#define MAX_THREADS 256

struct read {
    uint32_t slot;
    int file;
    uint64_t offset;
    uint32_t len, at;
};

/* Two rings of n_slots places: a slot is in one of them or with a thread. */
struct hx_engram_io {
    struct hx_engram_io_config c;
    pthread_t thread[MAX_THREADS];
    int n_threads;
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    struct read *want;
    struct hx_engram_io_done *done;
    unsigned want_first, n_want, done_first, n_done;
    bool woken, stop;
};

static void *reader(void *arg)
{
    struct hx_engram_io *io = arg;
    unsigned n = (unsigned)io->c.n_slots;
    pthread_mutex_lock(&io->mutex);
    for (;;) {
        while (io->n_want == 0 && !io->stop)
            pthread_cond_wait(&io->work, &io->mutex);
        if (io->stop)
            break;
        struct read w = io->want[io->want_first];
        io->want_first = (io->want_first + 1) % n;
        io->n_want--;
        pthread_mutex_unlock(&io->mutex);
        uint8_t *to = io->c.slots + w.slot * io->c.slot_bytes + w.at;
        ssize_t got = pread(io->c.fd[w.file], to, w.len, (off_t)w.offset);
        int32_t res = got < 0 ? -errno : (int32_t)got;
        pthread_mutex_lock(&io->mutex);
        io->done[(io->done_first + io->n_done++) % n] = (struct hx_engram_io_done){w.slot, res};
        if (io->n_done == 1)
            pthread_cond_signal(&io->finished);
    }
    pthread_mutex_unlock(&io->mutex);
    return NULL;
}

static void threads_close(struct hx_engram_io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->mutex);
    io->stop = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->mutex);
    for (int i = 0; i < io->n_threads; i++)
        pthread_join(io->thread[i], NULL);
    pthread_mutex_destroy(&io->mutex);
    pthread_cond_destroy(&io->work);
    pthread_cond_destroy(&io->finished);
    free(io->want);
    free(io->done);
    free(io);
}

static int threads_open(const struct hx_engram_io_config *c, struct hx_engram_io **out,
                        struct hx_error *err)
{
    struct hx_engram_io *io = calloc(1, sizeof(*io));
    if (!io)
        return hx_fail(err, -ENOMEM, "out of memory");
    io->c = *c;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&io->mutex, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    io->want = calloc((size_t)c->n_slots, sizeof(*io->want));
    io->done = calloc((size_t)c->n_slots, sizeof(*io->done));
    int r = io->want && io->done ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    int n = c->n_threads < MAX_THREADS ? c->n_threads : MAX_THREADS;
    while (r == 0 && io->n_threads < n) {
        int e = pthread_create(&io->thread[io->n_threads], NULL, reader, io);
        if (e == 0)
            pthread_setname_np(io->thread[io->n_threads++], "hx-engram-read");
        else if (io->n_threads > 0)
            break; /* fewer will do */
        else
            r = hx_fail_errno(err, e, "cannot start a reading thread");
    }
    if (r < 0) {
        threads_close(io);
        return r;
    }
    *out = io;
    return 0;
}

static int threads_queue(struct hx_engram_io *io, uint32_t slot, int file, uint64_t offset,
                         uint32_t len, uint32_t at)
{
    unsigned n = (unsigned)io->c.n_slots;
    pthread_mutex_lock(&io->mutex);
    io->want[(io->want_first + io->n_want++) % n] = (struct read){slot, file, offset, len, at};
    pthread_cond_signal(&io->work);
    pthread_mutex_unlock(&io->mutex);
    return 0;
}

/* The threads have it already. */
static void threads_submit(struct hx_engram_io *io)
{
    (void)io;
}

static int threads_wait(struct hx_engram_io *io, struct hx_engram_io_done *done, int max, int min,
                        int timeout_us)
{
    (void)min; /* a wake-up costs little beside a thread's read */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)timeout_us * 1000;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&io->mutex);
    while (timeout_us > 0 && io->n_done == 0 && !io->woken) {
        if (pthread_cond_timedwait(&io->finished, &io->mutex, &t) != 0)
            break;
    }
    io->woken = false;
    int n = 0;
    while (n < max && io->n_done > 0) {
        done[n++] = io->done[io->done_first];
        io->done_first = (io->done_first + 1) % (unsigned)io->c.n_slots;
        io->n_done--;
    }
    pthread_mutex_unlock(&io->mutex);
    return n;
}

static bool threads_ready(struct hx_engram_io *io)
{
    pthread_mutex_lock(&io->mutex);
    bool ready = io->n_done > 0;
    pthread_mutex_unlock(&io->mutex);
    return ready;
}

static void threads_wake(struct hx_engram_io *io)
{
    pthread_mutex_lock(&io->mutex);
    io->woken = true;
    pthread_cond_signal(&io->finished);
    pthread_mutex_unlock(&io->mutex);
}

const struct hx_engram_io_ops hx_engram_threads = {"threads",      threads_open, threads_queue,
                                                   threads_submit, threads_wait, threads_ready,
                                                   threads_wake,   threads_close};
