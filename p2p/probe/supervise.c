/* Children, limits and what is done to those that pass them. */
#include "probe/supervise.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 5000000L

struct child {
    pid_t pid; /* 0: none */
    int device;
    double started, limit, asked; /* seconds; asked: when it was told to end, 0 if not */
    bool told;                    /* SIGTERM was sent */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int hx_probe_shared_new(struct hx_probe_shared **out, struct hx_error *err)
{
    void *p = mmap(NULL, sizeof(struct hx_probe_shared), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hx_fail_errno(err, errno, "shared memory of the probe");
    *out = p;
    hx_probe_result_init(&(*out)->result);
    return 0;
}

void hx_probe_shared_free(struct hx_probe_shared *sh)
{
    if (sh)
        munmap(sh, sizeof(*sh));
}

static void child_main(const struct hx_probe_run *run, struct hx_probe_shared *sh,
                       const struct hx_probe_step *step, int device)
{
    /* The supervisor decides when a child ends: a signal to its group shall not reach it. */
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct hx_error err = {0};
    const int r = step->run(sh, run->options, run->plant, device, &err);
    if (r != 0)
        snprintf(sh->message[hx_probe_slot(device)], sizeof(sh->message[0]), "%s", err.text);
    _exit(r != 0);
}

static int child_start(const struct hx_probe_run *run, struct hx_probe_shared *sh,
                       const struct hx_probe_step *step, int device, struct child *c,
                       struct hx_error *err)
{
    const int slot = hx_probe_slot(device);
    atomic_store(&sh->stop[slot], 0);
    atomic_store(&sh->permille[slot], 0);
    sh->message[slot][0] = '\0';
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0)
        return hx_fail_errno(err, errno, "step %s: no child", step->name);
    if (pid == 0)
        child_main(run, sh, step, device);
    *c = (struct child){.pid = pid, .device = device, .started = now_s()};
    c->limit = step->limit_s + (step->own_limit ? run->options->pattern_s : 0);
    return 0;
}

/* The child has ended with that wait status. */
static void child_ended(struct hx_probe_run *run, struct hx_probe_shared *sh,
                        const struct hx_probe_step *step, const struct child *c, int status)
{
    char text[256];
    enum hx_probe_end end = HX_PROBE_END_OK;
    const int slot = hx_probe_slot(c->device);
    if (run->stopped)
        return; /* ended on request: no finding */
    if (c->asked > 0) {
        end = HX_PROBE_END_LIMIT;
        snprintf(text, sizeof(text), "no end after %.0f s", c->limit);
        run->n_limits++;
    } else if (WIFSIGNALED(status)) {
        end = HX_PROBE_END_CRASH;
        snprintf(text, sizeof(text), "ended by signal %d", WTERMSIG(status));
        run->n_bad++;
    } else if (WEXITSTATUS(status) != 0) {
        end = HX_PROBE_END_ERROR;
        snprintf(text, sizeof(text), "%s", sh->message[slot]);
        run->n_bad++;
    }
    if (end == HX_PROBE_END_OK)
        return;
    if (c->device >= 0)
        snprintf(run->last_error, sizeof(run->last_error), "card %d, %s: %.180s", c->device,
                 step->title, text);
    else
        snprintf(run->last_error, sizeof(run->last_error), "%s: %.200s", step->title, text);
    if (step->mark)
        step->mark(&sh->result, c->device, end, text);
}

/* Beyond the limit: ask, then SIGTERM, then leave it alone. True once it is given up. */
static bool child_overdue(struct hx_probe_run *run, struct hx_probe_shared *sh, struct child *c)
{
    const double t = now_s(), grace = run->grace_ms / 1000.0;
    if (c->asked == 0) {
        atomic_store(&sh->stop[hx_probe_slot(c->device)], 1);
        c->asked = t;
    } else if (!c->told && t - c->asked > grace) {
        kill(c->pid, SIGTERM);
        c->told = true;
    } else if (c->told && t - c->asked > 2 * grace) {
        return true;
    }
    return false;
}

static void children_wait(struct hx_probe_run *run, struct hx_probe_shared *sh,
                          const struct hx_probe_step *step, struct child *c, int n)
{
    for (int left = n; left > 0;) {
        left = 0;
        for (int i = 0; i < n; i++) {
            if (c[i].pid == 0)
                continue;
            int status = 0;
            const pid_t r = waitpid(c[i].pid, &status, WNOHANG);
            const double spent = now_s() - c[i].started;
            if (r == c[i].pid) {
                child_ended(run, sh, step, &c[i], status);
                c[i].pid = 0;
            } else if ((run->stopped || spent > c[i].limit) && child_overdue(run, sh, &c[i])) {
                child_ended(run, sh, step, &c[i], 0);
                run->any_stuck = true;
                if (c[i].device >= 0)
                    run->stuck[c[i].device] = true;
                c[i].pid = 0;
            }
            if (run->watch && !run->watch(run->ctx, sh, step, c[i].device, spent, c[i].pid == 0))
                run->stopped = true;
            left += c[i].pid != 0;
        }
        if (left > 0)
            nanosleep(&(struct timespec){0, POLL_NS}, NULL);
    }
}

static bool device_sound(const struct hx_probe_run *run, const struct hx_probe_shared *sh, int i)
{
    return !run->stuck[i] && (sh->result.device[i].context == HX_PROBE_CONTEXT_OK ||
                              sh->result.device[i].context == HX_PROBE_CONTEXT_UNKNOWN);
}

/* Pair tests need every card: one that hangs would take the others along. */
static bool pairs_apply(const struct hx_probe_run *run, const struct hx_probe_shared *sh,
                        enum hx_probe_scope scope)
{
    const struct hx_probe_result *r = &sh->result;
    if (run->any_stuck || r->n_devices < (run->options->one_device ? 1 : 2))
        return false;
    for (int i = 0; i < r->n_devices; i++) {
        if (!device_sound(run, sh, i))
            return false;
    }
    if (scope >= HX_PROBE_PAIRS_PEER && !r->p2p.offered)
        return false;
    return scope < HX_PROBE_PAIRS_SOUND ||
           (r->p2p.copy.outcome == HX_PROBE_OK && r->p2p.store.outcome == HX_PROBE_OK);
}

int hx_probe_run_step(struct hx_probe_run *run, struct hx_probe_shared *sh,
                      const struct hx_probe_step *step, struct hx_error *err)
{
    struct child c[HX_PROBE_DEVICES] = {{0}};
    const int n = sh->result.n_devices;
    int started = 0, r = 0;
    if (run->stopped || (step->only_full && !run->options->full))
        return 0;
    switch (step->scope) {
    case HX_PROBE_ONCE:
        r = child_start(run, sh, step, -1, &c[0], err);
        started = r == 0;
        break;
    case HX_PROBE_EACH:
        for (int i = 0; i < n && r == 0 && !run->stopped; i++) {
            if (!device_sound(run, sh, i))
                continue;
            r = child_start(run, sh, step, i, &c[0], err);
            if (r == 0)
                children_wait(run, sh, step, c, 1);
        }
        break;
    case HX_PROBE_EACH_ALL:
        for (int i = 0; i < n && r == 0; i++) {
            if (!device_sound(run, sh, i))
                continue;
            r = child_start(run, sh, step, i, &c[started], err);
            started += r == 0;
        }
        break;
    case HX_PROBE_PAIRS:
    case HX_PROBE_PAIRS_PEER:
    case HX_PROBE_PAIRS_SOUND:
        if (pairs_apply(run, sh, step->scope)) {
            r = child_start(run, sh, step, -1, &c[0], err);
            started = r == 0;
        }
        break;
    }
    children_wait(run, sh, step, c, started);
    return r;
}
