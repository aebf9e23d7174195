/* Choosing how a drive is read: the best level that works is the one whose probe reads give the
 * bytes that plain reads give. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/log.h"
#include "engram/stream_impl.h"

#define PROBE_MS 10000

static const char *const level_names[HX_ENGRAM_LEVELS] = {"io_uring, registered", "io_uring",
                                                          "threads, direct", "threads, buffered"};

const char *hx_engram_level_name(enum hx_engram_level level)
{
    return level_names[level];
}

static int alloc_slots(struct hx_engram_drive *d, int row_bytes, struct hx_error *err)
{
    uint32_t most = hx_engram_window_max((uint32_t)row_bytes, (uint32_t)d->align);
    d->slot_bytes = (most + HX_ENGRAM_PAGE - 1) / HX_ENGRAM_PAGE * HX_ENGRAM_PAGE;
    if (d->align < HX_ENGRAM_PAGE) /* small ones share pages */
        d->slot_bytes = (most + 511) / 512 * 512;
    void *p = mmap(NULL, (size_t)d->n_slots * d->slot_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hx_fail(err, -ENOMEM, "out of memory for %d Engram reads", d->n_slots);
    d->slots = p;
    return 0;
}

static void free_slots(struct hx_engram_drive *d)
{
    if (d->slots)
        munmap(d->slots, (size_t)d->n_slots * d->slot_bytes);
    d->slots = NULL;
}

void hx_engram_level_close(struct hx_engram_drive *d)
{
    if (d->io)
        d->ops->close(d->io);
    d->io = NULL;
    free_slots(d);
}

/* One row through the level, compared with a plain read. -EINVAL: the level does not work here. */
static int probe_row(struct hx_engram_drive *d, int file, int64_t row, struct hx_error *err)
{
    const struct hx_engram_file *f = &d->file[file];
    const struct hx_engram_table *t = &d->s->table[f->table];
    uint64_t offset = hx_engram_code_offset(t, row);
    struct hx_engram_window w =
        hx_engram_window(offset, (uint32_t)t->row_bytes, (uint32_t)d->align);
    struct hx_engram_io_done done = {0, 0};
    uint8_t *plain = malloc((size_t)t->row_bytes);
    if (!plain)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_pread(f->plain_fd, f->path, plain, (size_t)t->row_bytes, offset, err);
    if (r == 0)
        r = d->ops->queue(d->io, 0, file, w.offset, w.len, 0);
    int n = 0;
    double end = hx_engram_now() + PROBE_MS * 1e-3;
    while (r == 0 && n == 0 && hx_engram_now() < end) {
        n = d->ops->wait(d->io, &done, 1, 1, 100000);
        r = n < 0 ? hx_fail_errno(err, -n, "%s: first read", f->path) : 0;
    }
    if (r == 0 && n == 0)
        r = hx_fail(err, -EIO, "%s: first read took more than %d s", f->path, PROBE_MS / 1000);
    else if (r == 0 && done.res < 0)
        r = hx_fail_errno(err, -done.res, "%s: first read at offset %llu", f->path,
                          (unsigned long long)w.offset);
    else if (r == 0 && done.res < (int32_t)w.skip + t->row_bytes)
        r = hx_fail(err, -EIO, "%s: first read at offset %llu gave %d of %u bytes", f->path,
                    (unsigned long long)w.offset, done.res, w.len);
    else if (r == 0 && memcmp(d->slots + w.skip, plain, (size_t)t->row_bytes) != 0)
        r = hx_fail(err, -EINVAL, "%s: row %lld differs between plain and other reads", f->path,
                    (long long)row);
    free(plain);
    return r;
}

/* First, last and a straddling row of each file. */
static int probe(struct hx_engram_drive *d, struct hx_error *err)
{
    int r = 0;
    for (int f = 0; r == 0 && f < d->n_files; f++) {
        const struct hx_engram_table *t = &d->s->table[d->file[f].table];
        int64_t across = 0;
        while (across < t->n_rows - 1 && across < HX_ENGRAM_PAGE &&
               hx_engram_window(hx_engram_code_offset(t, across), (uint32_t)t->row_bytes,
                                HX_ENGRAM_PAGE)
                       .len <= HX_ENGRAM_PAGE)
            across++;
        const int64_t rows[] = {0, across, t->n_rows - 1};
        for (int i = 0; r == 0 && i < 3; i++)
            r = probe_row(d, f, rows[i], err);
    }
    return r;
}

struct attempt {
    enum hx_engram_level level;
    bool iopoll, sqpoll;
    int align; /* 0: as the file says */
};

static int try_level(struct hx_engram_drive *d, const struct attempt *a, struct hx_error *err)
{
    const struct hx_engram_stream_options *o = &d->s->o;
    bool direct = !o->buffered && a->level < HX_ENGRAM_THREADS_BUFFERED;
    int r = 0, row_bytes = 0;
    struct hx_engram_io_config c = {.n_slots = d->n_slots,
                                    .registered = a->level == HX_ENGRAM_URING_REGISTERED,
                                    .iopoll = a->iopoll,
                                    .sqpoll = a->sqpoll,
                                    .n_threads = o->n_threads,
                                    .n_files = d->n_files};
    d->align = direct ? (a->align ? a->align : o->align) : 1;
    for (int f = 0; r == 0 && f < d->n_files; f++) {
        const struct hx_engram_table *t = &d->s->table[d->file[f].table];
        int says = hx_engram_file_align(&d->file[f]);
        r = hx_engram_file_direct(&d->file[f], direct, err);
        c.fd[f] = d->file[f].fd;
        row_bytes = t->row_bytes > row_bytes ? t->row_bytes : row_bytes;
        if (direct && says > d->align)
            d->align = says;
    }
    if (r == 0)
        r = alloc_slots(d, row_bytes, err);
    c.slots = d->slots;
    c.slot_bytes = d->slot_bytes;
    d->ops = a->level <= HX_ENGRAM_URING ? &hx_engram_uring : &hx_engram_threads;
    if (r == 0)
        r = d->ops->open(&c, &d->io, err);
    if (r == 0)
        r = probe(d, err);
    if (r < 0)
        hx_engram_level_close(d);
    return r;
}

int hx_engram_level_open(struct hx_engram_drive *d, struct hx_error *err)
{
    const struct hx_engram_stream_options *o = &d->s->o;
    struct attempt list[4 * HX_ENGRAM_LEVELS];
    int n = 0, r = -EINVAL;
    for (int level = (int)o->best; level < HX_ENGRAM_LEVELS; level++) {
        if (o->buffered && level == HX_ENGRAM_THREADS_DIRECT)
            continue;
        bool uring = level <= HX_ENGRAM_URING;
        if (uring && o->iopoll && !o->buffered)
            list[n++] = (struct attempt){(enum hx_engram_level)level, true, o->sqpoll, 0};
        if (uring && o->sqpoll)
            list[n++] = (struct attempt){(enum hx_engram_level)level, false, true, 0};
        list[n++] = (struct attempt){(enum hx_engram_level)level, false, false, 0};
        if (!o->buffered && level < HX_ENGRAM_THREADS_BUFFERED)
            list[n++] = (struct attempt){(enum hx_engram_level)level, false, false, HX_ENGRAM_PAGE};
    }
    char why[sizeof(d->why)] = "";
    for (int i = 0; r < 0 && i < n; i++) {
        struct hx_error e = {0};
        r = try_level(d, &list[i], &e);
        if (r == 0) {
            pthread_mutex_lock(&d->s->lock);
            d->level = list[i].level;
            d->shown_align = d->align;
            snprintf(d->why, sizeof(d->why), "%s", why);
            pthread_mutex_unlock(&d->s->lock);
            break;
        }
        hx_log(HX_LOG_DEBUG, "engram", "%s: %s", level_names[list[i].level], e.text);
        if (!why[0])
            snprintf(why, sizeof(why), "%s%s: %.180s", level_names[list[i].level],
                     list[i].iopoll ? ", polled" : "", e.text);
        if (err)
            *err = e;
        /* The drive, not the way to read it. */
        if (r == -EIO || r == -ENODEV || r == -ENXIO)
            break;
    }
    return r;
}
