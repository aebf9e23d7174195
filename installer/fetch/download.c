#include "fetch/download.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define NO_HOST    (-1)
#define MOST_ASKED 64u

enum piece_state {
    PIECE_TO_DO,
    PIECE_ASKED,   /* a request has it */
    PIECE_WRITING, /* complete, the store's event follows */
    PIECE_DONE,
};

struct piece {
    uint8_t state; /* enum piece_state */
    uint8_t bad;   /* times that its hash was wrong */
    int16_t host;  /* that gave it last */
};

struct file {
    const struct hx_plan_file *plan;
    struct piece *pieces;
    size_t first_to_do; /* no piece before it is to do */
    unsigned asked;
    uint64_t verified;
    bool ready, stopped;
};

struct request {
    struct hx_download *d;
    size_t file, piece;
    struct hx_sink *sink;
    uint64_t received; /* by the sink, kept bytes included */
    struct request *next, *prev;
};

struct hx_download {
    const struct hx_plan *plan;
    struct hx_store *store;
    struct hx_transfer *t;
    struct hx_progress *progress;
    unsigned n_endpoints;
    int poll_fd, outer_fd; /* epoll: store's events and what the caller waits for */
    struct file *files;
    struct hx_progress_file *shown;
    size_t n_open; /* files neither ready nor stopped */
    size_t n_stopped;
    unsigned n_asked;
    struct request *requests;
    uint64_t wasted;
    bool stopping, target_away;
    bool small_failed; /* without them the rest is worth nothing */
    char held[192], target[192];
    double held_s;
    struct hx_error first;
};

/* ---- requests -------------------------------------------------------------------------------- */

static const struct hx_plan_chunk *chunk_of(const struct request *q)
{
    return &q->d->plan->files[q->file].chunks[q->piece];
}

static bool is_small(const struct file *f)
{
    return f->plan->lock->group == HX_GROUP_SMALL;
}

static void stop_file(struct hx_download *d, size_t file, int r, const char *message)
{
    struct file *f = &d->files[file];
    if (f->stopped || f->ready)
        return;
    f->stopped = true;
    d->n_open--;
    if (d->n_stopped++ == 0)
        hx_fail(&d->first, r, "%.900s", message);
    d->shown[file].state = "stopped";
    d->small_failed |= is_small(f);
    if (d->progress)
        hx_progress_file_event(d->progress, f->plan->lock->out, "stopped", message);
}

/* The store's event about it says more, and is on its way. */
static bool told_by_event(int r)
{
    return r == -EIO || r == -EALREADY;
}

static int64_t on_restart(void *ctx)
{
    struct request *q = ctx;
    struct hx_download *d = q->d;
    struct hx_error err = {0};
    uint64_t skip = 0;
    if (d->stopping || d->files[q->file].stopped)
        return -ECANCELED;
    if (q->sink) {
        hx_sink_end(q->sink, true);
        q->sink = NULL;
    }
    int r = hx_store_begin(d->store, q->file, q->piece, &skip, &q->sink, &err);
    if (r < 0 && r != -EAGAIN && !told_by_event(r))
        stop_file(d, q->file, r, err.text);
    if (r < 0)
        return r == -EAGAIN ? r : -ECANCELED;
    d->wasted += q->received > skip ? q->received - skip : 0;
    q->received = skip;
    return (int64_t)skip;
}

static int on_data(void *ctx, const void *data, size_t n)
{
    struct request *q = ctx;
    if (q->d->stopping)
        return -ECANCELED;
    if (q->d->target_away)
        return -EAGAIN;
    int r = hx_sink_write(q->sink, data, n);
    if (r == 0)
        q->received += n;
    return told_by_event(r) ? -ECANCELED : r;
}

static void on_done(void *ctx, int r, int host, const struct hx_error *err)
{
    struct request *q = ctx;
    struct hx_download *d = q->d;
    struct file *f = &d->files[q->file];
    struct piece *p = &f->pieces[q->piece];
    bool complete = r == 0 && q->received == chunk_of(q)->src_bytes;
    /* After a stop the store has taken its sinks back. */
    if (q->sink && !d->stopping)
        hx_sink_end(q->sink, false);
    p->host = (int16_t)host;
    p->state = complete ? PIECE_WRITING : PIECE_TO_DO;
    if (!complete && q->piece < f->first_to_do)
        f->first_to_do = q->piece;
    f->asked--;
    d->n_asked--;
    if (q->next)
        q->next->prev = q->prev;
    *(q->prev ? &q->prev->next : &d->requests) = q->next;
    if (r < 0 && r != -ECANCELED)
        stop_file(d, q->file, r, err ? err->text : "stopped");
    free(q);
}

static int ask(struct hx_download *d, size_t file, size_t piece, struct hx_error *err)
{
    struct file *f = &d->files[file];
    const struct hx_lock_file *lock = f->plan->lock;
    const struct hx_plan_chunk *c = &f->plan->chunks[piece];
    struct request *q = calloc(1, sizeof(*q));
    if (!q)
        return hx_fail(err, -ENOMEM, "out of memory");
    q->d = d;
    q->file = file;
    q->piece = piece;
    struct hx_range_request req = {
        .repo = f->plan->source->repo,
        .commit = f->plan->source->commit,
        .path = lock->path,
        .endpoints = (const char *const *)f->plan->source->endpoints,
        .n_endpoints = f->plan->source->n_endpoints,
        .begin = c->src_begin,
        .n_bytes = c->src_bytes,
        .size = lock->size,
        .sha256 = lock->has_sha256 ? lock->sha256 : NULL,
        .avoid_host = f->pieces[piece].bad ? f->pieces[piece].host : NO_HOST,
        .restart = on_restart,
        .data = on_data,
        .done = on_done,
        .ctx = q,
    };
    int r = hx_transfer_submit(d->t, &req, err);
    if (r < 0) {
        free(q);
        return r;
    }
    q->next = d->requests;
    if (q->next)
        q->next->prev = q;
    d->requests = q;
    f->pieces[piece].state = PIECE_ASKED;
    f->asked++;
    d->n_asked++;
    d->shown[file].state = "download";
    return 0;
}

/* ---- choice ---------------------------------------------------------------------------------- */

static bool has_work(struct file *f, size_t *piece)
{
    while (f->first_to_do < f->plan->n_chunks && f->pieces[f->first_to_do].state != PIECE_TO_DO)
        f->first_to_do++;
    *piece = f->first_to_do;
    return f->first_to_do < f->plan->n_chunks;
}

/* In the plan's order; among the files that are begun the one with the fewest connections, so that
 * most files come in order and one slow server does not hold up the rest. Nothing big starts before
 * the small files are there: cheap failures first. */
static bool choose(struct hx_download *d, unsigned most_files, size_t *file, size_t *piece)
{
    unsigned begun = 0;
    bool found = false, small_open = false;
    for (size_t i = 0; i < d->plan->n_files && begun < most_files; i++) {
        struct file *f = &d->files[i];
        size_t at;
        if (f->ready || f->stopped)
            continue;
        if (is_small(f))
            small_open = true;
        else if (small_open || d->small_failed)
            break;
        if (!has_work(f, &at))
            continue;
        begun++;
        if (!found || f->asked < d->files[*file].asked) {
            *file = i;
            *piece = at;
            found = true;
        }
    }
    return found;
}

static int fill(struct hx_download *d, struct hx_error *err)
{
    struct hx_transfer_stats s;
    size_t file = 0, piece = 0;
    hx_transfer_stats(d->t, &s);
    if (d->stopping || d->target_away || d->held[0])
        return 0;
    /* As many as there are connections: a second piece of a file that waits for its turn would get
     * it before the next piece of another file, and both files would come out of order. */
    while (d->n_asked < s.limit + s.delayed && d->n_asked < MOST_ASKED &&
           choose(d, s.limit, &file, &piece)) {
        struct hx_error e = {0};
        int r = ask(d, file, piece, &e);
        if (r == -ENOMEM)
            return hx_fail(err, r, "out of memory");
        if (r < 0)
            stop_file(d, file, r, e.text);
    }
    return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void ask_again(struct file *f, size_t piece)
{
    f->pieces[piece].state = PIECE_TO_DO;
    if (piece < f->first_to_do)
        f->first_to_do = piece;
}

static void on_bad_piece(struct hx_download *d, const struct hx_store_event *ev)
{
    struct file *f = &d->files[ev->file];
    struct piece *p = &f->pieces[ev->chunk];
    unsigned most = d->n_endpoints > 2 ? d->n_endpoints : 2;
    d->wasted += f->plan->chunks[ev->chunk].src_bytes;
    hx_transfer_host_wrong(d->t, p->host, ev->message);
    ask_again(f, ev->chunk);
    if (++p->bad >= most)
        stop_file(d, ev->file, -EBADMSG, ev->message);
}

/* The store has marked what has to come again. If it came from several hosts, any of them may have
 * been the one: all of it then avoids the same host, so that with two servers the next verdict is
 * about one alone. */
static void on_bad_file(struct hx_download *d, const struct hx_store_event *ev)
{
    struct file *f = &d->files[ev->file];
    int16_t suspect = NO_HOST;
    bool sure = true;
    f->verified = 0;
    f->first_to_do = 0;
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        bool there = hx_store_chunk_done(d->store, ev->file, i);
        struct piece *p = &f->pieces[i];
        if (there) {
            f->verified += f->plan->chunks[i].out_bytes;
        } else if (p->state >= PIECE_WRITING) {
            if (suspect == NO_HOST)
                suspect = p->host;
            sure &= p->host == suspect;
            p->state = PIECE_TO_DO;
            p->host = suspect;
            p->bad++;
        }
    }
    if (d->progress)
        hx_progress_note(d->progress, true, ev->message);
    if (sure && d->n_endpoints > 1) /* the only server there is stays */
        hx_transfer_host_wrong(d->t, suspect, ev->message);
}

static void on_target(struct hx_download *d, bool away, const char *why)
{
    d->target_away = away;
    snprintf(d->target, sizeof(d->target), "%s", away ? why : "");
    hx_transfer_hold(d->t, away || d->held[0]);
    if (d->progress)
        hx_progress_note(d->progress, away,
                         away ? why : "the target can be written again: going on");
}

static void on_event(struct hx_download *d, const struct hx_store_event *ev)
{
    struct file *f = ev->file < d->plan->n_files ? &d->files[ev->file] : NULL;
    switch (ev->type) {
    case HX_STORE_CHUNK_DONE:
        f->pieces[ev->chunk].state = PIECE_DONE;
        f->verified += f->plan->chunks[ev->chunk].out_bytes;
        d->wasted += f->plan->chunks[ev->chunk].src_bytes - f->plan->chunks[ev->chunk].out_bytes;
        break;
    case HX_STORE_CHUNK_BAD: on_bad_piece(d, ev); break;
    case HX_STORE_CHUNK_LOST: ask_again(f, ev->chunk); break;
    case HX_STORE_FILE_READY:
        if (!f->ready && !f->stopped)
            d->n_open--;
        f->ready = true;
        f->verified = f->plan->wanted_bytes;
        d->shown[ev->file].state = "ready";
        if (d->progress)
            hx_progress_file_event(d->progress, f->plan->lock->out, "ready", NULL);
        break;
    case HX_STORE_FILE_BAD: on_bad_file(d, ev); break;
    case HX_STORE_FILE_STOPPED: stop_file(d, ev->file, ev->error, ev->message); break;
    case HX_STORE_FULL:
    case HX_STORE_READ_ONLY: on_target(d, true, ev->message); break;
    case HX_STORE_RESUMED: on_target(d, false, ""); break;
    case HX_STORE_NOTE:
        if (d->progress)
            hx_progress_note(d->progress, false, ev->message);
        break;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static int watch(int poll_fd, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
}

int hx_download_open(const struct hx_plan *plan, struct hx_store *store, struct hx_transfer *t,
                     struct hx_progress *progress, unsigned n_endpoints, struct hx_download **out,
                     struct hx_error *err)
{
    struct hx_download *d = calloc(1, sizeof(*d));
    if (!d)
        return hx_fail(err, -ENOMEM, "out of memory");
    *d = (struct hx_download){.plan = plan,
                              .store = store,
                              .t = t,
                              .progress = progress,
                              .n_endpoints = n_endpoints,
                              .outer_fd = -1,
                              .poll_fd = epoll_create1(EPOLL_CLOEXEC)};
    d->files = calloc(plan->n_files, sizeof(*d->files));
    d->shown = calloc(plan->n_files, sizeof(*d->shown));
    bool ok =
        d->files && d->shown && d->poll_fd >= 0 && watch(d->poll_fd, hx_store_event_fd(store)) == 0;
    for (size_t i = 0; ok && i < plan->n_files; i++) {
        struct file *f = &d->files[i];
        f->plan = &plan->files[i];
        f->pieces = calloc(f->plan->n_chunks + 1, sizeof(*f->pieces));
        ok = f->pieces != NULL;
        f->ready = hx_store_file_ready(store, i);
        for (size_t k = 0; ok && k < f->plan->n_chunks; k++) {
            bool there = f->ready || hx_store_chunk_done(store, i, k);
            f->pieces[k] =
                (struct piece){.state = there ? PIECE_DONE : PIECE_TO_DO, .host = NO_HOST};
            f->verified += there ? f->plan->chunks[k].out_bytes : 0;
        }
        d->n_open += !f->ready;
        d->shown[i] = (struct hx_progress_file){.name = f->plan->lock->out,
                                                .state = f->ready ? "ready" : "waiting",
                                                .wanted = f->plan->wanted_bytes};
    }
    if (!ok) {
        hx_download_close(d);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    *out = d;
    return 0;
}

void hx_download_close(struct hx_download *d)
{
    if (!d)
        return;
    for (size_t i = 0; d->files && i < d->plan->n_files; i++)
        free(d->files[i].pieces);
    free(d->files);
    free(d->shown);
    if (d->poll_fd >= 0)
        close(d->poll_fd);
    free(d);
}

void hx_download_stop(struct hx_download *d)
{
    if (d->stopping)
        return;
    hx_transfer_hold(d->t, true);
    for (struct request *q = d->requests; q; q = q->next) {
        if (q->sink)
            hx_sink_end(q->sink, false);
        q->sink = NULL;
    }
    d->stopping = true;
}

void hx_download_hold(struct hx_download *d, const char *why, double seconds)
{
    bool was = d->held[0];
    snprintf(d->held, sizeof(d->held), "%s", why ? why : "");
    d->held_s = seconds;
    if (was != (d->held[0] != '\0'))
        hx_transfer_hold(d->t, d->held[0] || d->target_away);
}

int hx_download_step(struct hx_download *d, int other_fd, int timeout_ms, struct hx_error *err)
{
    struct hx_store_event ev;
    if (other_fd != d->outer_fd) {
        if (d->outer_fd >= 0)
            epoll_ctl(d->poll_fd, EPOLL_CTL_DEL, d->outer_fd, NULL);
        if (other_fd >= 0 && watch(d->poll_fd, other_fd) < 0)
            return hx_fail_errno(err, errno, "waiting for events");
        d->outer_fd = other_fd;
    }
    while (hx_store_next(d->store, &ev))
        on_event(d, &ev);
    int r = fill(d, err);
    if (r < 0)
        return r;
    if (d->n_asked == 0 && (d->n_open == 0 || (d->small_failed && !d->held[0])))
        return 1;
    hx_transfer_resume(d->t);
    return hx_transfer_poll(d->t, d->poll_fd, timeout_ms, err);
}

int hx_download_result(const struct hx_download *d, struct hx_error *err)
{
    if (d->n_stopped == 0)
        return 0;
    if (err)
        *err = d->first;
    if (d->n_stopped == 1)
        return d->first.code;
    return hx_wrap(err, d->first.code, "%zu files were stopped, the first", d->n_stopped);
}

void hx_download_view(const struct hx_download *d, struct hx_progress_view *v)
{
    *v = (struct hx_progress_view){.phase = v->phase,
                                   .wanted = d->plan->wanted_bytes,
                                   .wasted = d->wasted,
                                   .all_known = d->plan->lock->complete,
                                   .files = d->shown,
                                   .n_files = d->plan->n_files};
    hx_transfer_stats(d->t, &v->net);
    v->fetched = v->net.bytes;
    for (size_t i = 0; i < d->plan->n_files; i++) {
        d->shown[i].verified = d->files[i].verified;
        v->verified += d->files[i].verified;
    }
    v->waiting = d->target[0] ? d->target : d->held[0] ? d->held : v->net.waiting;
    v->waiting_s = d->target[0] ? 0 : d->held[0] ? d->held_s : v->net.waiting_s;
}
