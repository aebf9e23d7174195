/* hx-fetch import: files of a folder or a device through the same journal and the same checks as a
 * download. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "fetch/commands.h"
#include "fetch/medium.h"
#include "fetch/progress.h"
#include "fetch/store.h"

#define BLOCK   ((size_t)1 << 20)
#define WAIT_MS 500

struct import {
    struct hx_fetch_cli *cli;
    struct hx_lock *lock;
    struct hx_plan *plan;
    struct hx_store *store;
    struct hx_medium medium;
    struct hx_progress *progress;
    struct hx_progress_file *shown;
    bool *done;  /* nothing more comes of this file: ready, stopped, or wrong on the medium */
    bool *wrong; /* its bytes on the medium are not the right ones */
    uint8_t *block;
    uint64_t read; /* bytes of the medium */
    bool paused;   /* full or read-only target */
    char waiting[256];
    size_t n_stopped;
    struct hx_error first; /* of the stopped files */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void show(struct import *m, const char *phase)
{
    const struct hx_progress_view v = {.phase = phase,
                                       .wanted = m->plan->wanted_bytes,
                                       .verified = hx_store_bytes_done(m->store),
                                       .fetched = m->read,
                                       .all_known = m->lock->complete,
                                       .waiting = m->waiting,
                                       .files = m->shown,
                                       .n_files = m->plan->n_files};
    hx_progress_show(m->progress, &v, now());
}

/* ---- events ---- */

static void take_event(struct import *m, const struct hx_store_event *ev)
{
    const char *name = m->plan->files[ev->file].lock->out;
    switch (ev->type) {
    case HX_STORE_CHUNK_DONE: m->shown[ev->file].verified += ev->n_bytes; break;
    case HX_STORE_CHUNK_BAD:
    case HX_STORE_FILE_BAD:
        m->wrong[ev->file] = m->done[ev->file] = true;
        hx_progress_file_event(m->progress, name, "wrong", ev->message);
        break;
    case HX_STORE_CHUNK_LOST: break;
    case HX_STORE_FILE_READY:
        m->done[ev->file] = true;
        m->shown[ev->file].state = "ready";
        hx_progress_file_event(m->progress, name, "ready", NULL);
        break;
    case HX_STORE_FILE_STOPPED:
        m->done[ev->file] = true;
        m->shown[ev->file].state = "stopped";
        if (m->n_stopped++ == 0)
            hx_fail(&m->first, ev->error, "%s", ev->message);
        hx_progress_file_event(m->progress, name, "stopped", ev->message);
        break;
    case HX_STORE_FULL:
    case HX_STORE_READ_ONLY:
        m->paused = true;
        snprintf(m->waiting, sizeof(m->waiting), "%s",
                 ev->type == HX_STORE_FULL ? "the disk is full" : "the disk is read-only");
        hx_progress_note(m->progress, true, ev->message);
        break;
    case HX_STORE_RESUMED:
        m->paused = false;
        m->waiting[0] = '\0';
        break;
    case HX_STORE_NOTE: hx_progress_note(m->progress, false, ev->message); break;
    }
}

/* Waits for the store, at most ms. */
static void wait_store(struct import *m, int ms)
{
    struct pollfd p = {.fd = hx_store_event_fd(m->store), .events = POLLIN};
    struct hx_store_event ev;
    poll(&p, 1, ms);
    while (hx_store_next(m->store, &ev))
        take_event(m, &ev);
    show(m, "import");
}

/* ---- reading ---- */

/* n source bytes from `at` of a chunk. From a finished folder the gaps come as zeros: nobody keeps
 * them. */
static int read_piece(const struct import *m, const struct hx_plan_file *f,
                      const struct hx_plan_chunk *c, enum hx_medium_form form, int fd, uint64_t at,
                      size_t n, struct hx_error *err)
{
    const char *name = f->lock->out;
    if (form == HX_MEDIUM_SOURCE)
        return hx_file_pread(fd, name, m->block, n, at, err);
    memset(m->block, 0, n);
    for (uint32_t i = 0; i < c->n_segments; i++) {
        const struct hx_plan_segment *s = &f->segments[c->first_segment + i];
        uint64_t begin = s->src_begin > at ? s->src_begin : at;
        uint64_t end = s->src_begin + s->n_bytes < at + n ? s->src_begin + s->n_bytes : at + n;
        if (begin >= end)
            continue;
        int r = hx_file_pread(fd, name, m->block + (begin - at), (size_t)(end - begin),
                              s->out_begin + (begin - s->src_begin), err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int import_chunk(struct import *m, size_t file, size_t chunk, int fd,
                        enum hx_medium_form form, struct hx_error *err)
{
    const struct hx_plan_file *f = &m->plan->files[file];
    const struct hx_plan_chunk *c = &f->chunks[chunk];
    struct hx_sink *k = NULL;
    uint64_t at = 0;
    int r;
    while ((r = hx_store_begin(m->store, file, chunk, &at, &k, err)) == -EAGAIN && !interrupted)
        wait_store(m, WAIT_MS);
    if (r == -EALREADY || r == -EIO || r == -EAGAIN)
        return 0; /* written meanwhile, or its file was stopped: an event says so */
    if (r < 0)
        return r;
    while (r == 0 && at < c->src_bytes && !interrupted) {
        size_t n = c->src_bytes - at < BLOCK ? (size_t)(c->src_bytes - at) : BLOCK;
        r = read_piece(m, f, c, form, fd, c->src_begin + at, n, err);
        if (r < 0) {
            hx_wrap(err, r, "%s: put the medium back in and import again to go on", m->medium.path);
            break;
        }
        while ((r = hx_sink_write(k, m->block, n)) == -EAGAIN && !interrupted)
            wait_store(m, WAIT_MS);
        if (r == -EIO) {
            r = 0; /* its file was stopped */
            break;
        }
        at += n;
        m->read += n;
    }
    hx_sink_end(k, false);
    wait_store(m, 0);
    return r == -EAGAIN ? 0 : r;
}

static int import_file(struct import *m, size_t file, struct hx_error *err)
{
    const struct hx_plan_file *f = &m->plan->files[file];
    enum hx_medium_form form;
    struct hx_error missing;
    int fd = -1, r = hx_medium_find(&m->medium, f, &fd, &form, &missing);
    if (r == -ENOENT) {
        hx_progress_note(m->progress, false, missing.text);
        m->done[file] = true;
        return 0;
    }
    if (r < 0)
        return r;
    m->shown[file].state = "import";
    r = hx_store_adopt(m->store, file, fd, err);
    if (r == 0) {
        for (size_t c = 0; r == 0 && c < f->n_chunks && !m->done[file] && !interrupted; c++) {
            if (!hx_store_chunk_done(m->store, file, c))
                r = import_chunk(m, file, c, fd, form, err);
        }
    }
    close(fd);
    return r < 0 ? r : 0;
}

static int import_all(struct import *m, struct hx_error *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < m->plan->n_files && !interrupted; i++) {
        if (hx_store_file_ready(m->store, i)) {
            m->done[i] = true;
            m->shown[i].state = "ready";
            m->shown[i].verified = m->plan->files[i].wanted_bytes;
            continue;
        }
        r = import_file(m, i, err);
    }
    /* What was fed is still being written and verified. */
    for (bool open = true; r == 0 && open && !interrupted;) {
        open = false;
        for (size_t i = 0; i < m->plan->n_files; i++)
            open |= !m->done[i];
        if (open)
            wait_store(m, WAIT_MS);
    }
    return r;
}

/* ---- command ---- */

static int prepare(struct import *m, const char *path, struct hx_error *err)
{
    struct hx_fetch_cli *cli = m->cli;
    int r = hx_medium_open(path, &m->medium, err);
    if (r == 0 && cli->conf.lock[0] == '\0' && faccessat(m->medium.fd, "lock.json", R_OK, 0) == 0)
        snprintf(cli->conf.lock, sizeof(cli->conf.lock), "%.400s/lock.json",
                 *m->medium.mounted ? m->medium.mounted : path);
    if (r == 0)
        r = hx_fetch_load(cli, &m->lock, &m->plan, err);
    if (r == 0)
        r = hx_fetch_show_licences(cli, m->lock, err);
    if (r == 0)
        r = hx_fetch_check_disks(cli, m->plan, NULL, err);
    if (r < 0)
        return r;
    const struct hx_fetch_conf *conf = &cli->conf;
    const struct hx_progress_options po = {
        .model = m->lock->model, .status_path = conf->status, .json = cli->json};
    const struct hx_store_options so = {.models = conf->models,
                                        .direct = conf->direct,
                                        .n_writers = (unsigned)conf->writers,
                                        .buffer_bytes = (size_t)conf->buffer,
                                        .sync_bytes = (uint64_t)conf->sync_bytes,
                                        .sync_ms = (unsigned)(conf->sync_time / 1000)};
    r = hx_progress_open(&po, &m->progress, err);
    if (r == 0)
        r = hx_store_open(&so, m->plan, NULL, NULL, &m->store, err);
    if (r < 0)
        return r;
    m->block = malloc(BLOCK);
    m->done = calloc(m->plan->n_files + 1, sizeof(*m->done));
    m->wrong = calloc(m->plan->n_files + 1, sizeof(*m->wrong));
    m->shown = calloc(m->plan->n_files + 1, sizeof(*m->shown));
    if (!m->block || !m->done || !m->wrong || !m->shown)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < m->plan->n_files; i++)
        m->shown[i] = (struct hx_progress_file){m->plan->files[i].lock->out, "waiting",
                                                m->plan->files[i].wanted_bytes, 0};
    return 0;
}

static int finish(struct import *m, struct hx_error *err)
{
    size_t n_missing = 0, n_wrong = 0;
    for (size_t i = 0; i < m->plan->n_files; i++) {
        n_missing += !hx_store_file_ready(m->store, i);
        n_wrong += m->wrong[i];
    }
    if (interrupted)
        return hx_fail(err, -EINTR,
                       "interrupted; everything so far is kept, import again to go on");
    if (m->n_stopped > 0) {
        *err = m->first;
        return -EIO;
    }
    if (n_missing > 0)
        return hx_fail(
            err, n_wrong ? -EINVAL : -EAGAIN,
            "%s: %zu of %zu files are not complete (%zu with wrong bytes); 'hx-fetch run' "
            "downloads the rest, or import another medium",
            m->medium.path, n_missing, m->plan->n_files, n_wrong);
    if (m->plan->n_files < m->lock->n_files)
        return 0; /* the other groups are still to come */
    show(m, "publish");
    int r = hx_store_publish(m->store, err);
    if (r == 0)
        show(m, "complete");
    return r;
}

int hx_fetch_cmd_import(struct hx_fetch_cli *cli)
{
    struct import m = {.cli = cli, .medium = HX_MEDIUM_INIT};
    struct hx_error err = {0};
    if (cli->n_args != 1)
        return hx_fetch_usage("import: name one folder or block device");
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    int r = prepare(&m, cli->args[0], &err);
    if (r == 0)
        r = import_all(&m, &err);
    if (r == 0)
        r = finish(&m, &err);
    if (m.shown && r < 0)
        show(&m, interrupted ? "stopped" : "failed");
    hx_store_close(m.store);
    hx_progress_close(m.progress);
    hx_medium_close(&m.medium);
    hx_plan_free(m.plan);
    hx_lock_free(m.lock);
    free(m.block);
    free(m.done);
    free(m.wrong);
    free(m.shown);
    return hx_fetch_status(r, &err);
}
