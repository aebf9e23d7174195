/* NVML calls in child processes with time limits. */
#include "hw/nvml.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hw/nvml_impl.h"

struct job {
    char library[512];
    bool has_library;
    enum { SNAPSHOT, SAMPLE, REPLAY, LIMIT, PERSIST } kind;
    int interval_ms, n, watts;
    bool on;
    char uuid[64];
};

/* Shared with the child; it writes, the parent reads after the child has ended (or is stuck). */
struct shared {
    union {
        struct hx_nvml_snapshot snapshot;
        struct hx_nvml_load load;
    };
    int result; /* of LIMIT and PERSIST */
    int32_t state, code, min_mw, max_mw;
    uint32_t pci_device;
    char text[160];
};

const char *hx_nvml_state_name(enum hx_nvml_state state)
{
    static const char *const names[] = {
        "ok", "no library", "driver not loaded", "version mismatch", "failed", "no answer"};
    return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void sample_on(struct hx_nvml_library *lib, const struct job *job, struct shared *to)
{
    int64_t start = now_ms();
    for (;;) {
        hx_nvml_library_sample(lib, (int32_t)(now_ms() - start), &to->load);
        sleep_ms(job->interval_ms);
    }
}

static void child(const struct job *job, struct shared *to)
{
    struct hx_nvml_library *lib;
    if (hx_nvml_library_open(job->has_library ? job->library : NULL, &lib, &to->state, &to->code,
                             to->text, sizeof(to->text)) < 0) {
        if (job->kind == SAMPLE || job->kind == REPLAY)
            to->load.state = to->state;
        return;
    }
    switch (job->kind) {
    case SNAPSHOT: hx_nvml_library_read(lib, &to->snapshot); break;
    case SAMPLE: sample_on(lib, job, to); break;
    case REPLAY:
        for (int i = 0; i < job->n; i++)
            hx_nvml_library_sample(lib, i * job->interval_ms, &to->load);
        break;
    case LIMIT:
        to->result = hx_nvml_library_limit(lib, job->uuid, job->watts, &to->pci_device, &to->min_mw,
                                           &to->max_mw);
        break;
    case PERSIST:
        to->result = hx_nvml_library_persist(lib, job->uuid, job->on, &to->pci_device);
        break;
    }
    if ((job->kind == LIMIT || job->kind == PERSIST) && to->result > 0)
        snprintf(to->text, sizeof(to->text), "%s", hx_nvml_library_error(lib, to->result));
    hx_nvml_library_close(lib);
}

static struct shared *shared_new(void)
{
    struct shared *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return s == MAP_FAILED ? NULL : s;
}

static pid_t start(const struct job *job, struct shared *to, int *done_fd, struct hx_error *err)
{
    int pipe_fd[2];
    if (pipe2(pipe_fd, O_CLOEXEC) < 0)
        return hx_fail_errno(err, errno, "starting a reader of the management library");
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        int e = errno;
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        return hx_fail_errno(err, e, "starting a reader of the management library");
    }
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        signal(SIGTERM, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(pipe_fd[0]);
        if (getppid() == parent)
            child(job, to);
        _exit(0); /* closes the pipe: the parent sees the end */
    }
    close(pipe_fd[1]);
    *done_fd = pipe_fd[0];
    return pid;
}

/* true if the child ended within the limit. One that does not is told to and left alone: killing a
 * process inside the driver does nothing. */
static bool finish(pid_t pid, int done_fd, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    bool ended = false;
    for (;;) {
        int64_t left = end - now_ms();
        struct pollfd p = {.fd = done_fd, .events = POLLIN};
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n < 0 && errno == EINTR)
            continue;
        ended = n > 0;
        break;
    }
    close(done_fd);
    int status = 0;
    if (ended) {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    kill(pid, SIGTERM);
    for (int i = 0; i < 20 && waitpid(pid, &status, WNOHANG) == 0; i++)
        sleep_ms(10);
    return false;
}

static int run(struct job *job, const char *library, int timeout_ms, struct shared *to,
               struct hx_error *err)
{
    job->has_library = library != NULL;
    if (library &&
        snprintf(job->library, sizeof(job->library), "%s", library) >= (int)sizeof(job->library))
        return hx_fail(err, -ENAMETOOLONG, "path of the management library is too long");
    int done_fd;
    to->state = HX_NVML_HUNG;
    pid_t pid = start(job, to, &done_fd, err);
    if (pid < 0)
        return (int)pid;
    if (!finish(pid, done_fd, timeout_ms))
        to->state = HX_NVML_HUNG;
    return 0;
}

int hx_nvml_snapshot(const char *library, int timeout_ms, struct hx_nvml_snapshot *out,
                     struct hx_error *err)
{
    struct shared *s = shared_new();
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct job job = {.kind = SNAPSHOT};
    int r = run(&job, library, timeout_ms, s, err);
    if (r == 0) {
        *out = s->snapshot;
        out->state = s->state;
        out->error_code = s->code;
        memcpy(out->error_text, s->text, sizeof(out->error_text));
        if (out->state != HX_NVML_OK)
            out->n_devices = 0;
    }
    munmap(s, sizeof(*s));
    return r;
}

int hx_nvml_replay(const char *library, int n, int step_ms, int timeout_ms,
                   struct hx_nvml_load *out, struct hx_error *err)
{
    struct shared *s = shared_new();
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct job job = {.kind = REPLAY, .n = n, .interval_ms = step_ms};
    hx_nvml_load_init(&s->load);
    int r = run(&job, library, timeout_ms, s, err);
    if (r == 0)
        *out = s->load;
    munmap(s, sizeof(*s));
    return r;
}

/* The common end of the two setters. */
static int set(struct job *job, const char *library, const char *uuid, int timeout_ms,
               const char *what, struct hx_error *err)
{
    if (snprintf(job->uuid, sizeof(job->uuid), "%s", uuid) >= (int)sizeof(job->uuid))
        return hx_fail(err, -EINVAL, "%s: UUID is too long", what);
    struct shared *s = shared_new();
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = run(job, library, timeout_ms, s, err);
    if (r == 0 && s->state != HX_NVML_OK)
        r = hx_fail(err, s->state == HX_NVML_HUNG ? -ETIMEDOUT : -ENODEV, "%s: %s%s%s", what,
                    hx_nvml_state_name((enum hx_nvml_state)s->state), s->text[0] ? ": " : "",
                    s->text);
    else if (r == 0 && s->result == HX_NVML_ERROR_NOT_FOUND)
        r = hx_fail(err, -ENODEV, "%s: no card with this UUID", what);
    else if (r == 0 && s->result == HX_NVML_ERROR_FOREIGN)
        r = hx_fail(err, -EPERM,
                    "%s: device %04x is not a CMP 170HX; its settings stay as they are", what,
                    s->pci_device >> 16);
    else if (r == 0 && s->result == HX_NVML_ERROR_RANGE)
        r = hx_fail(err, -ERANGE, "%s: %d W is outside the card's limits of %d to %d W", what,
                    job->watts, s->min_mw / 1000, s->max_mw / 1000);
    else if (r == 0 && s->result != 0)
        r = hx_fail(err, -EIO, "%s: %s", what, s->text);
    munmap(s, sizeof(*s));
    return r;
}

int hx_nvml_set_power_limit(const char *library, const char *uuid, int watts, int timeout_ms,
                            struct hx_error *err)
{
    if (watts < 1 || watts > 1000)
        return hx_fail(err, -ERANGE, "power limit: %d W, 1 to 1000 are possible", watts);
    struct job job = {.kind = LIMIT, .watts = watts};
    return set(&job, library, uuid, timeout_ms, "power limit", err);
}

int hx_nvml_set_persistence(const char *library, const char *uuid, bool on, int timeout_ms,
                            struct hx_error *err)
{
    struct job job = {.kind = PERSIST, .on = on};
    return set(&job, library, uuid, timeout_ms, "persistence", err);
}

struct hx_nvml_sampler {
    struct shared *shared;
    pid_t pid;
    int done_fd;
};

int hx_nvml_sampler_start(const char *library, int interval_ms, struct hx_nvml_sampler **out,
                          struct hx_error *err)
{
    struct job job = {.kind = SAMPLE, .interval_ms = interval_ms, .has_library = library != NULL};
    if (library &&
        snprintf(job.library, sizeof(job.library), "%s", library) >= (int)sizeof(job.library))
        return hx_fail(err, -ENAMETOOLONG, "path of the management library is too long");
    struct hx_nvml_sampler *s = calloc(1, sizeof(*s));
    if (s)
        s->shared = shared_new();
    if (!s || !s->shared) {
        free(s);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    hx_nvml_load_init(&s->shared->load);
    s->pid = start(&job, s->shared, &s->done_fd, err);
    if (s->pid < 0) {
        int r = (int)s->pid;
        munmap(s->shared, sizeof(*s->shared));
        free(s);
        return r;
    }
    *out = s;
    return 0;
}

void hx_nvml_sampler_look(const struct hx_nvml_sampler *s, struct hx_nvml_load *out)
{
    *out = s->shared->load;
    if (out->n_samples < 0 || out->n_samples > HX_NVML_SAMPLES)
        out->n_samples = 0;
    if (out->n_devices < 0 || out->n_devices > HX_NVML_DEVICES)
        out->n_devices = 0;
}

void hx_nvml_sampler_stop(struct hx_nvml_sampler *s, struct hx_nvml_load *out)
{
    if (!s)
        return;
    kill(s->pid, SIGTERM);
    (void)finish(s->pid, s->done_fd, 200);
    if (out)
        hx_nvml_sampler_look(s, out);
    munmap(s->shared, sizeof(*s->shared));
    free(s);
}
