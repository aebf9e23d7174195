/* hx-fetch verify: reads the published model again and hands damaged pieces back to `run`. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_write.h"
#include "fetch/commands.h"
#include "fetch/progress.h"
#include "fetch/recheck.h"
#include "fetch/state.h"
#include "fetch/store.h"

#define MAX_THREADS 8
#define TICK_MS     250

struct verify {
    struct hx_fetch_cli *cli;
    bool check_only;
    double sample;
    const char *stamp;
    char *dir, *model; /* folder, and its name below the models */
    struct hx_state state;
    struct hx_lock *lock; /* lock.json of the folder; NULL: none */
    struct hx_plan *plan;
    struct hx_recheck *checks; /* one for each file of the state */
    char **paths;
    uint64_t total;
    atomic_uint_fast64_t done;
    atomic_size_t next; /* file that the next free thread takes */
    atomic_bool stop;
    atomic_int failed;
    int n_running;
    pthread_mutex_t m;
    pthread_cond_t ended;
    struct hx_error error; /* of a thread; guarded by m */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- which folder ---- */

static int find_folder(struct verify *v, const char *name, struct hx_error *err)
{
    char *path = name && strchr(name, '/')
                     ? strdup(name)
                     : hx_path_join(v->cli->conf.models, name ? name : "current");
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    v->dir = realpath(path, NULL);
    int r = v->dir ? 0 : hx_fail_errno(err, errno, "%s: no model folder to verify", path);
    free(path);
    if (r < 0)
        return r;
    v->model = strrchr(v->dir, '/') + 1;
    r = hx_state_read(v->dir, &v->state, err);
    if (r == -ENOENT)
        return hx_fail(err, r,
                       "%s: has no state.json, so hx-fetch did not make it and knows no hashes",
                       v->dir);
    return r;
}

static int read_lock(struct verify *v, struct hx_error *err)
{
    char *path = hx_path_join(v->dir, "lock.json");
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_lock_read(path, &v->lock, err);
    if (r == 0)
        r = hx_plan_make(v->lock, NULL, &v->plan, err);
    if (r == -ENOENT)
        r = 0; /* only whole files can be told apart then */
    free(path);
    return r;
}

static const struct hx_plan_file *plan_of(const struct verify *v, const char *out)
{
    for (size_t i = 0; v->plan && i < v->plan->n_files; i++) {
        if (strcmp(v->plan->files[i].lock->out, out) == 0)
            return &v->plan->files[i];
    }
    return NULL;
}

static int list_checks(struct verify *v, struct hx_error *err)
{
    size_t n = v->state.n_files;
    v->checks = calloc(n + 1, sizeof(*v->checks));
    v->paths = calloc(n + 1, sizeof(*v->paths));
    if (!v->checks || !v->paths)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const struct hx_state_file *f = &v->state.files[i];
        struct hx_recheck *c = &v->checks[i];
        v->paths[i] = hx_path_join(v->dir, f->path);
        if (!v->paths[i])
            return hx_fail(err, -ENOMEM, "out of memory");
        *c = (struct hx_recheck){.path = v->paths[i],
                                 .plan = plan_of(v, f->path),
                                 .size = f->size,
                                 .direct = v->cli->conf.direct,
                                 .sample = v->sample,
                                 .done = &v->done,
                                 .stop = &v->stop};
        memcpy(c->want, f->sha256, sizeof(c->want));
        if (c->plan && c->plan->out_bytes != f->size)
            return hx_fail(err, -EINVAL, "%s: state.json and lock.json disagree about the size",
                           v->paths[i]);
        v->total += f->size;
    }
    return 0;
}

/* ---- reading ---- */

static void *work(void *arg)
{
    struct verify *v = arg;
    struct hx_error err = {0};
    int r = 0;
    while (r == 0) {
        size_t i = atomic_fetch_add(&v->next, 1);
        if (i >= v->state.n_files)
            break;
        r = hx_recheck_file(&v->checks[i], &err);
    }
    pthread_mutex_lock(&v->m);
    if (r < 0 && r != -ECANCELED && atomic_load(&v->failed) == 0) {
        v->error = err;
        atomic_store(&v->failed, r);
        atomic_store(&v->stop, true);
    }
    v->n_running--;
    pthread_cond_signal(&v->ended);
    pthread_mutex_unlock(&v->m);
    return NULL;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void show(struct verify *v, struct hx_progress *p, const char *phase)
{
    const struct hx_progress_view view = {.phase = phase,
                                          .wanted = v->total,
                                          .verified = atomic_load(&v->done),
                                          .all_known = v->state.verified,
                                          .waiting = ""};
    hx_progress_show(p, &view, now());
}

static void wait_tick(struct verify *v)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += TICK_MS * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&v->ended, &v->m, &t);
}

static int read_everything(struct verify *v, struct hx_progress *p, struct hx_error *err)
{
    pthread_t threads[MAX_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0, want = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
    struct sigaction act = {.sa_handler = on_signal}, old_int, old_term;
    sigaction(SIGINT, &act, &old_int);
    sigaction(SIGTERM, &act, &old_term);
    pthread_mutex_lock(&v->m);
    while (n < want && pthread_create(&threads[n], NULL, work, v) == 0)
        n++;
    v->n_running = n;
    while (v->n_running > 0) {
        wait_tick(v);
        if (interrupted)
            atomic_store(&v->stop, true);
        show(v, p, "verify");
    }
    pthread_mutex_unlock(&v->m);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    if (atomic_load(&v->failed) < 0) {
        *err = v->error;
        return atomic_load(&v->failed);
    }
    if (n == 0)
        return hx_fail(err, -EAGAIN, "cannot start a thread");
    return interrupted ? hx_fail(err, -EINTR, "interrupted: not everything was read") : 0;
}

/* ---- what comes of it ---- */

static int hand_back(struct verify *v, struct hx_error *err)
{
    int fd = -1, r = hx_store_lock(v->cli->conf.models, &fd, err);
    if (r < 0)
        return r;
    /* First of all: from here on the engine refuses the folder. */
    v->state.complete = false;
    r = hx_state_write(v->dir, &v->state, err);
    for (size_t i = 0; r == 0 && i < v->state.n_files; i++) {
        const struct hx_recheck *c = &v->checks[i];
        if (!c->wrong)
            continue;
        if (c->plan)
            r = hx_store_hand_back(v->cli->conf.models, v->plan, (size_t)(c->plan - v->plan->files),
                                   v->state.files[i].identity, c->bad,
                                   (const uint8_t(*)[HX_SHA256_BYTES])c->digest, err);
    }
    close(fd);
    return r;
}

/* Repair goes through the folder of the models, so the model has to lie there under its name. */
static bool can_repair(const struct verify *v)
{
    char *below = hx_path_join(v->cli->conf.models, v->model), *real = NULL;
    if (below)
        real = realpath(below, NULL);
    bool same =
        real && strcmp(real, v->dir) == 0 && v->lock && strcmp(v->lock->model, v->model) == 0;
    free(real);
    free(below);
    return same;
}

static int write_stamp(const struct verify *v, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(4096);
    struct hx_json_writer w;
    if (!v->stamp)
        return 0;
    hx_jw_init(&w, &text, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "lock");
    hx_jw_str(&w, v->state.lock_id);
    hx_jw_key(&w, "model");
    hx_jw_str(&w, v->model);
    hx_jw_key(&w, "bytes");
    hx_jw_uint(&w, v->total);
    hx_jw_key(&w, "sample");
    hx_jw_double(&w, v->sample);
    hx_jw_key(&w, "time");
    hx_jw_int(&w, (int64_t)time(NULL));
    hx_jw_end_object(&w);
    hx_buf_putc(&text, '\n');
    int r = text.failed ? hx_fail(err, -ENOMEM, "out of memory")
                        : hx_file_replace(v->stamp, text.data, text.len, err);
    hx_buf_done(&text);
    return r;
}

static int conclude(struct verify *v, struct hx_progress *p, struct hx_error *err)
{
    size_t n_wrong = 0, n_pieces = 0;
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < v->state.n_files; i++) {
        const struct hx_recheck *c = &v->checks[i];
        if (!c->wrong)
            continue;
        n_wrong++;
        n_pieces += c->n_bad;
        n_bytes += c->bad_bytes;
        hx_progress_file_event(p, v->state.files[i].path, "damaged", c->message);
    }
    if (n_wrong == 0) {
        if (!v->state.complete)
            return hx_fail(err, -EINVAL,
                           "%s: what is there is right, but the model is not complete; finish it "
                           "with 'hx-fetch run'",
                           v->dir);
        show(v, p, "complete");
        return write_stamp(v, err);
    }
    if (v->check_only)
        return hx_fail(err, -EINVAL, "%s: %zu of %zu files are damaged (%zu pieces, %llu bytes)",
                       v->dir, n_wrong, v->state.n_files, n_pieces, (unsigned long long)n_bytes);
    if (!can_repair(v))
        return hx_fail(
            err, -EINVAL,
            "%s: %zu of %zu files are damaged and cannot be repaired here: the folder is "
            "not a model of %s with its lock.json",
            v->dir, n_wrong, v->state.n_files, v->cli->conf.models);
    int r = hand_back(v, err);
    if (r < 0)
        return r;
    return hx_fail(err, -EINVAL,
                   "%s: %zu of %zu files are damaged; 'hx-fetch run' fetches the %zu bad pieces "
                   "(%llu bytes) again, the model is out of use until then",
                   v->dir, n_wrong, v->state.n_files, n_pieces, (unsigned long long)n_bytes);
}

/* "12.5": percent of the chunks. */
static int parse_sample(const char *text, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno || end == text || *end || !(v > 0) || v > 100)
        return -EINVAL;
    *out = v / 100;
    return 0;
}

int hx_fetch_cmd_verify(struct hx_fetch_cli *cli)
{
    struct verify v = {.cli = cli, .sample = 1};
    struct hx_error err = {0};
    struct hx_progress *p = NULL;
    const char *sample = NULL;
    v.check_only = hx_fetch_take_flag(cli, "--check");
    if (hx_fetch_take_value(cli, "--sample", &sample) < 0 ||
        hx_fetch_take_value(cli, "--stamp", &v.stamp) < 0)
        return EX_USAGE;
    if (sample && parse_sample(sample, &v.sample) < 0)
        return hx_fetch_usage("--sample: '%.40s' is no percentage above 0 up to 100", sample);
    if (cli->n_args > 1)
        return hx_fetch_usage("verify: unknown argument '%.60s'", cli->args[1]);
    pthread_mutex_init(&v.m, NULL);
    pthread_cond_init(&v.ended, NULL);
    int r = find_folder(&v, cli->n_args ? cli->args[0] : NULL, &err);
    if (r == 0)
        r = read_lock(&v, &err);
    if (r == 0)
        r = list_checks(&v, &err);
    const struct hx_progress_options o = {.model = v.model, .json = cli->json};
    if (r == 0)
        r = hx_progress_open(&o, &p, &err);
    if (r == 0)
        r = read_everything(&v, p, &err);
    if (r == 0)
        r = conclude(&v, p, &err);
    hx_progress_close(p);
    for (size_t i = 0; v.checks && i < v.state.n_files; i++) {
        hx_recheck_done(&v.checks[i]);
        free(v.paths[i]);
    }
    free(v.checks);
    free(v.paths);
    hx_plan_free(v.plan);
    hx_lock_free(v.lock);
    hx_state_done(&v.state);
    free(v.dir);
    pthread_mutex_destroy(&v.m);
    pthread_cond_destroy(&v.ended);
    return hx_fetch_status(r, &err);
}
