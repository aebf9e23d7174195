/* hx-fetch run: preparation, signals, the loop, publication. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "fetch/commands.h"
#include "fetch/disk.h"
#include "fetch/download.h"
#include "fetch/pace.h"
#include "fetch/token.h"
#include "fetch/upstream.h"

#define STEP_MS 250
#define ROOM_S  5 /* between two tries to publish on a full disk */

struct run {
    struct hx_fetch_cli *cli;
    struct hx_lock *lock;
    struct hx_plan *plan;
    struct hx_fetch_endpoints endpoints;
    struct hx_day_window window;
    struct hx_progress *progress;
    struct hx_store *store;
    struct hx_transfer *transfer;
    struct hx_download *download;
    int signals; /* signalfd */
    bool interrupted;
};

static double mono_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_note(void *ctx, bool urgent, const char *text)
{
    struct run *run = ctx;
    if (run->progress)
        hx_progress_note(run->progress, urgent, text);
}

static void say(void *ctx, const char *text)
{
    on_note(ctx, false, text);
}

/* Progress while the parts of an earlier run are looked through. */
static void on_rehash(void *ctx, uint64_t done, uint64_t total)
{
    struct run *run = ctx;
    char text[96];
    unsigned part = total ? (unsigned)(done * 100 / total) : 100;
    snprintf(text, sizeof(text), "looking through what is there, %u %%", part);
    struct hx_progress_view v = {
        .phase = "check", .wanted = run->plan->wanted_bytes, .waiting = text};
    hx_progress_show(run->progress, &v, mono_now());
}

/* waiting: why nothing moves, NULL: what the download says of it. */
static void show_why(struct run *run, const char *phase, const char *waiting)
{
    struct hx_progress_view v = {.phase = phase};
    if (run->download) {
        hx_download_view(run->download, &v);
    } else {
        v.wanted = run->plan->wanted_bytes;
        v.verified = hx_store_bytes_done(run->store);
    }
    if (strcmp(phase, "download") != 0 && strcmp(phase, "check") != 0)
        v.waiting = "";
    if (waiting)
        v.waiting = waiting;
    hx_progress_show(run->progress, &v, mono_now());
}

static void show(struct run *run, const char *phase)
{
    show_why(run, phase, NULL);
}

/* What may change while it runs: cap and time of day. */
static void reread(struct run *run)
{
    struct hx_fetch_conf conf;
    struct hx_error err = {0};
    struct hx_day_window window;
    char text[160];
    int r = run->cli->reread(run->cli, &conf, &err);
    if (r == 0)
        r = hx_day_window_parse(conf.window, &window, &err);
    if (r < 0) {
        hx_wrap(&err, r, "configuration is not read anew");
        on_note(run, true, err.text);
        return;
    }
    run->window = window;
    memcpy(run->cli->conf.window, conf.window, sizeof(conf.window));
    if (run->transfer) /* a model that came on a disk has no server */
        hx_transfer_set_rate(run->transfer, (uint64_t)conf.rate);
    snprintf(text, sizeof(text), "configuration read anew: cap %lld bytes/s, time window '%.40s'",
             (long long)conf.rate, conf.window);
    on_note(run, false, text);
}

static void read_signals(struct run *run)
{
    struct signalfd_siginfo s;
    while (read(run->signals, &s, sizeof(s)) == (ssize_t)sizeof(s)) {
        if (s.ssi_signo == SIGHUP)
            reread(run);
        else
            run->interrupted = true;
    }
}

/* While upstream is being asked. */
static int on_idle(void *ctx)
{
    struct run *run = ctx;
    read_signals(run);
    if (run->download)
        show(run, "check");
    return run->interrupted ? -EINTR : 0;
}

/* ---- preparation ----------------------------------------------------------------------------- */

/* Before any thread exists, so that all of them inherit it. */
static int block_signals(struct run *run, struct hx_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return run->signals < 0 ? hx_fail_errno(err, errno, "signals") : 0;
}

static int open_transfer(struct run *run, struct hx_error *err)
{
    const struct hx_fetch_conf *conf = &run->cli->conf;
    struct hx_transfer_options o;
    char *token = NULL;
    int r = hx_fetch_token_read(conf->token_file, &token, err);
    if (r < 0)
        return r;
    hx_fetch_transfer_options(conf, &run->endpoints, &o);
    o.token = token;
    o.note = on_note;
    o.idle = on_idle;
    o.note_ctx = run;
    r = hx_transfer_open(&o, &run->transfer, err);
    hx_fetch_token_free(token);
    return r;
}

static int open_store(struct run *run, struct hx_error *err)
{
    const struct hx_fetch_conf *conf = &run->cli->conf;
    struct hx_store_options o = {.models = conf->models,
                                 .direct = conf->direct,
                                 .n_writers = (unsigned)conf->writers,
                                 .buffer_bytes = (size_t)conf->buffer,
                                 .sync_bytes = (uint64_t)conf->sync_bytes,
                                 /* A mixture, then each server alone. */
                                 .most_wrong =
                                     run->endpoints.n ? (unsigned)run->endpoints.n + 1 : 0,
                                 .sync_ms = (unsigned)(conf->sync_time / 1000)};
    return hx_store_open(&o, run->plan, on_rehash, run, &run->store, err);
}

static int check_disk(struct run *run, struct hx_error *err)
{
    const struct hx_fetch_conf *conf = &run->cli->conf;
    struct hx_disk_report report = {0};
    struct hx_disk_options o = {.models = conf->models,
                                .reserve = (uint64_t)conf->reserve,
                                .network = conf->network_disks || run->cli->force};
    int r = hx_disk_check(&o, run->plan, &report, err);
    for (size_t i = 0; i < report.n_warnings; i++)
        say(run, report.warning[i]);
    return r;
}

static bool all_ready(const struct run *run)
{
    for (size_t i = 0; i < run->plan->n_files; i++) {
        if (!hx_store_file_ready(run->store, i))
            return false;
    }
    return true;
}

static int prepare(struct run *run, struct hx_error *err)
{
    struct hx_fetch_cli *cli = run->cli;
    /* A model that came on a disk is finished without a server. */
    bool servers = cli->conf.endpoints[0] != '\0';
    int r = hx_day_window_parse(cli->conf.window, &run->window, err);
    if (r == 0 && servers)
        r = hx_fetch_endpoints_parse(cli->conf.endpoints, &run->endpoints, err);
    if (r < 0) {
        err->domain = HX_DOMAIN_CONF;
        return r;
    }
    r = hx_fetch_load(cli, &run->lock, &run->plan, err);
    if (r == 0)
        r = hx_fetch_show_licences(cli, run->lock, err);
    if (r == 0)
        r = block_signals(run, err);
    if (r < 0)
        return r;
    struct hx_progress_options o = {
        .model = run->lock->model, .status_path = cli->conf.status, .json = cli->json};
    r = hx_progress_open(&o, &run->progress, err);
    if (r == 0)
        r = check_disk(run, err);
    if (r == 0 && servers)
        r = open_transfer(run, err);
    if (r == 0)
        r = open_store(run, err);
    if (r == 0 && !servers && !all_ready(run)) {
        r = hx_fetch_endpoints_parse(cli->conf.endpoints, &run->endpoints, err);
        err->domain = HX_DOMAIN_CONF;
    }
    if (r == 0 && servers)
        r = hx_download_open(run->plan, run->store, run->transfer, run->progress,
                             (unsigned)run->endpoints.n, &run->download, err);
    return r;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void apply_window(struct run *run)
{
    time_t now = time(NULL);
    struct tm t;
    char why[96];
    if (!localtime_r(&now, &t))
        return;
    int wait = hx_day_window_wait(&run->window, t.tm_hour * 3600 + t.tm_min * 60 + t.tm_sec);
    snprintf(why, sizeof(why), "outside the time window %.40s", run->cli->conf.window);
    hx_download_hold(run->download, wait ? why : NULL, wait);
}

static int download(struct run *run, struct hx_error *err)
{
    int r = 0;
    if (!run->download)
        return 0;
    if (!all_ready(run))
        r = hx_upstream_check(run->transfer, run->plan, say, run, err);
    while (r == 0) {
        apply_window(run);
        r = hx_download_step(run->download, run->signals, STEP_MS, err);
        read_signals(run);
        if (run->interrupted)
            return hx_fail(err, -EINTR,
                           "interrupted; everything so far is kept: run again to go on, or drop it "
                           "with 'hx-fetch gc'");
        show(run, "download");
    }
    return r < 0 ? r : hx_download_result(run->download, err);
}

/* The last files are small, so somebody else fills the disk. False: interrupted. */
static bool wait_for_room(struct run *run, const struct hx_error *why)
{
    hx_progress_note(run->progress, true, why->text);
    for (int i = 0; i < ROOM_S * 1000 / STEP_MS && !run->interrupted; i++) {
        struct pollfd p = {.fd = run->signals, .events = POLLIN};
        show_why(run, "publish", "the disk is full");
        if (poll(&p, 1, STEP_MS) > 0)
            read_signals(run);
    }
    return !run->interrupted;
}

/* Part of the groups only: there is no model to publish yet. */
static int finish(struct run *run, struct hx_error *err)
{
    if (run->plan->n_files < run->lock->n_files) {
        hx_progress_note(run->progress, false,
                         "the chosen groups are complete; the model is published when all are");
        return 0;
    }
    int r;
    do {
        show(run, "publish");
        struct hx_store_event ev;
        r = hx_store_publish(run->store, err);
        while (hx_store_next(run->store, &ev)) {
            if (ev.type == HX_STORE_NOTE)
                hx_progress_note(run->progress, true, ev.message);
        }
    } while ((r == -ENOSPC || r == -EDQUOT) && wait_for_room(run, err));
    if (r < 0 && run->interrupted)
        return hx_fail(err, -EINTR, "interrupted on a full disk; run again to go on");
    if (r == 0)
        show(run, "complete");
    return r;
}

int hx_fetch_cmd_run(struct hx_fetch_cli *cli)
{
    struct run run = {.cli = cli, .signals = -1};
    struct hx_error err = {0};
    if (cli->n_args > 0)
        return hx_fetch_usage("run: unknown argument '%.60s'", cli->args[0]);
    int r = prepare(&run, &err);
    if (r == 0)
        r = download(&run, &err);
    if (r == 0)
        r = finish(&run, &err);
    if (run.download)
        hx_download_stop(run.download);
    hx_store_close(run.store);
    if (run.download && r < 0)
        show(&run, run.interrupted ? "stopped" : "failed");
    hx_transfer_close(run.transfer);
    hx_download_close(run.download);
    hx_progress_close(run.progress);
    hx_fetch_endpoints_done(&run.endpoints);
    hx_plan_free(run.plan);
    hx_lock_free(run.lock);
    if (run.signals >= 0)
        close(run.signals);
    return hx_fetch_status(r, &err);
}
