/* Reads through io_uring: registered files and buffers where the kernel grants them. */
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engram/io.h"

#define WAKE    UINT64_MAX /* user data of the read that wake() completes */
#define SQ_SIZE 128
#define IDLE_MS 50 /* SQPOLL: the kernel thread sleeps after this */

struct hx_engram_io {
    struct io_uring ring;
    struct hx_engram_io_config c;
    int event;
    uint64_t event_value;
    bool event_armed;
    int in_flight;
};

/* Newest flags first; an older kernel refuses what it does not know. */
static int open_ring(struct hx_engram_io *io, struct hx_error *err)
{
    const unsigned poll =
        (io->c.iopoll ? IORING_SETUP_IOPOLL : 0) | (io->c.sqpoll ? IORING_SETUP_SQPOLL : 0);
    const unsigned task[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                 IORING_SETUP_TASKRUN_FLAG,
                             IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};
    unsigned entries = 2;
    int r = -EINVAL;
    while (entries < (unsigned)io->c.n_slots + 1)
        entries *= 2;
    for (size_t i = io->c.sqpoll ? 2 : 0; r == -EINVAL && i < 3; i++) {
        struct io_uring_params p = {.flags =
                                        poll | task[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                    .cq_entries = entries,
                                    .sq_thread_idle = IDLE_MS};
        r = io_uring_queue_init_params(SQ_SIZE, &io->ring, &p);
    }
    return r < 0 ? hx_fail_errno(err, -r, "io_uring%s", io->c.iopoll ? " with polling" : "") : 0;
}

static void uring_close(struct hx_engram_io *io)
{
    if (!io)
        return;
    io_uring_queue_exit(&io->ring);
    close(io->event);
    free(io);
}

static int uring_open(const struct hx_engram_io_config *c, struct hx_engram_io **out,
                      struct hx_error *err)
{
    struct hx_engram_io *io = calloc(1, sizeof(*io));
    if (!io)
        return hx_fail(err, -ENOMEM, "out of memory");
    io->c = *c;
    io->event = eventfd(0, EFD_CLOEXEC | (c->iopoll ? EFD_NONBLOCK : 0));
    int r = io->event < 0 ? hx_fail_errno(err, errno, "eventfd") : open_ring(io, err);
    if (r < 0) {
        if (io->event >= 0)
            close(io->event);
        free(io);
        return r;
    }
    if (c->registered) {
        struct iovec all = {c->slots, (size_t)c->n_slots * c->slot_bytes};
        r = io_uring_register_buffers(&io->ring, &all, 1);
        if (r == 0)
            r = io_uring_register_files(&io->ring, c->fd, (unsigned)c->n_files);
        if (r < 0)
            hx_fail_errno(err, -r, "io_uring: registering files and buffers");
    }
    if (r < 0) {
        uring_close(io);
        return r;
    }
    *out = io;
    return 0;
}

static struct io_uring_sqe *get_sqe(struct hx_engram_io *io)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&io->ring);
    if (e)
        return e;
    io_uring_submit(&io->ring);
    return io_uring_get_sqe(&io->ring);
}

static int uring_queue(struct hx_engram_io *io, uint32_t slot, int file, uint64_t offset,
                       uint32_t len, uint32_t at)
{
    struct io_uring_sqe *e = get_sqe(io);
    if (!e)
        return -EAGAIN;
    uint8_t *to = io->c.slots + slot * io->c.slot_bytes + at;
    if (io->c.registered) {
        io_uring_prep_read_fixed(e, file, to, len, offset, 0);
        e->flags |= IOSQE_FIXED_FILE;
    } else {
        io_uring_prep_read(e, io->c.fd[file], to, len, offset);
    }
    e->user_data = slot;
    io->in_flight++;
    return 0;
}

/* An IOPOLL ring takes reads of the drive only, so the wake-up stays outside of it. */
static void arm_event(struct hx_engram_io *io)
{
    struct io_uring_sqe *e = io->event_armed || io->c.iopoll ? NULL : get_sqe(io);
    if (!e)
        return;
    io_uring_prep_read(e, io->event, &io->event_value, sizeof(io->event_value), 0);
    e->user_data = WAKE;
    io->event_armed = true;
}

static int take(struct hx_engram_io *io, struct hx_engram_io_done *done, int max)
{
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    int n = 0;
    io_uring_for_each_cqe(&io->ring, head, cqe)
    {
        if (n == max)
            break;
        seen++;
        if (cqe->user_data == WAKE) {
            io->event_armed = false;
            continue;
        }
        done[n++] = (struct hx_engram_io_done){(uint32_t)cqe->user_data, cqe->res};
        io->in_flight--;
    }
    io_uring_cq_advance(&io->ring, seen);
    return n;
}

static void uring_submit(struct hx_engram_io *io)
{
    io_uring_submit(&io->ring);
}

static int uring_wait(struct hx_engram_io *io, struct hx_engram_io_done *done, int max, int min,
                      int timeout_us)
{
    struct io_uring_cqe *cqe;
    int r;
    if (io->c.iopoll && io->in_flight == 0) {
        struct pollfd p = {io->event, POLLIN, 0};
        if (timeout_us > 0 && poll(&p, 1, (timeout_us + 999) / 1000) > 0)
            (void)!read(io->event, &io->event_value, sizeof(io->event_value));
        return 0;
    }
    arm_event(io);
    if (timeout_us > 0 && !io->c.iopoll) {
        struct __kernel_timespec t = {timeout_us / 1000000, timeout_us % 1000000 * 1000LL};
        r = io_uring_submit_and_wait_timeout(&io->ring, &cqe, (unsigned)min, &t, NULL);
    } else if (io->c.iopoll && timeout_us > 0) {
        r = io_uring_submit_and_wait(&io->ring, 1);
    } else {
        r = io_uring_submit_and_get_events(&io->ring);
    }
    int n = take(io, done, max);
    bool harmless = r >= 0 || r == -ETIME || r == -EINTR || r == -EBUSY;
    return n > 0 || harmless ? n : r;
}

/* Completions are in the ring, or the kernel has some to put there. A polled drive says nothing by
 * itself. */
static bool uring_ready(struct hx_engram_io *io)
{
    return io->c.iopoll || io_uring_cq_ready(&io->ring) > 0 ||
           (__atomic_load_n(io->ring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN);
}

static void uring_wake(struct hx_engram_io *io)
{
    uint64_t one = 1;
    (void)!write(io->event, &one, sizeof(one));
}

const struct hx_engram_io_ops hx_engram_uring = {"io_uring", uring_open,  uring_queue, uring_submit,
                                                 uring_wait, uring_ready, uring_wake,  uring_close};
