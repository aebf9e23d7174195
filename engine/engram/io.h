/* How reads reach the drive: one engine for each drive, driven by one thread (but for wake). */
#ifndef HX_ENGRAM_IO_H
#define HX_ENGRAM_IO_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_ENGRAM_IO_MAX_FILES 8

struct hx_engram_io_config {
    int fd[HX_ENGRAM_IO_MAX_FILES], n_files;
    int n_slots;    /* reads in flight, at most */
    uint8_t *slots; /* [n_slots][slot_bytes], page aligned */
    size_t slot_bytes;
    bool registered; /* io_uring: files and buffers known to the kernel in advance */
    bool iopoll;     /* io_uring: completions by polling the drive */
    bool sqpoll;     /* io_uring: a kernel thread takes submissions */
    int n_threads;   /* thread pool: its size */
};

struct hx_engram_io_done {
    uint32_t slot;
    int32_t res; /* bytes, or negative errno */
};

struct hx_engram_io;
struct hx_engram_io_ops {
    const char *name;
    /* The calling thread is the one that drives it. */
    int (*open)(const struct hx_engram_io_config *c, struct hx_engram_io **out,
                struct hx_error *err);
    /* A read of len bytes into slot at `at`; its completion names the slot. 0, or -EAGAIN: first
     * wait for completions. */
    int (*queue)(struct hx_engram_io *io, uint32_t slot, int file, uint64_t offset, uint32_t len,
                 uint32_t at);
    /* Hands queued reads to the kernel. What it refuses, wait hands over again. */
    void (*submit)(struct hx_engram_io *io);
    /* Hands queued reads to the kernel; waits until about min reads have completed, wake() or the
     * timeout. timeout_us 0: does not wait. Returns how many were filled in, or a negative errno
     * (-EAGAIN, -ENOMEM: the kernel takes no more now). */
    int (*wait)(struct hx_engram_io *io, struct hx_engram_io_done *done, int max, int min,
                int timeout_us);
    /* Whether wait without waiting may find completions. */
    bool (*ready)(struct hx_engram_io *io);
    /* Ends a wait; from any thread. */
    void (*wake)(struct hx_engram_io *io);
    /* No read may be in flight. Accepts NULL. */
    void (*close)(struct hx_engram_io *io);
};

extern const struct hx_engram_io_ops hx_engram_uring, hx_engram_threads;

#endif
