/* The probe's process: limits, progress, its result file. */
#include "launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_QUICK_S 600
#define LIMIT_FULL_S  1800
#define TERM_S        15 /* to end its own children and to write what it has */
#define TICK_MS       250
#define UUIDS_MAX     1200

struct child {
    pid_t pid;
    int fd; /* its standard error */
    bool ended;
    int status;
    char line[256]; /* unfinished */
    size_t used;
    char last[160]; /* last whole line */
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int start(const struct hx_launch *o, const char *devices, const char *output,
                 struct child *c, struct hx_error *err)
{
    const char *argv[16];
    int n = 0;
    argv[n++] = o->program;
    argv[n++] = o->full ? "--full" : "--quick";
    if (devices[0]) {
        argv[n++] = "--devices";
        argv[n++] = devices;
    }
    argv[n++] = "--output";
    argv[n++] = output;
    if (!o->progress)
        argv[n++] = "--quiet";
    argv[n] = NULL;
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0)
        return hx_fail_errno(err, errno, "starting %s", o->program);
    c->pid = fork();
    if (c->pid < 0) {
        int e = errno;
        close(fd[0]);
        close(fd[1]);
        return hx_fail_errno(err, e, "starting %s", o->program);
    }
    if (c->pid == 0) {
        int null = open("/dev/null", O_RDWR);
        if (null >= 0) {
            dup2(null, 0);
            dup2(null, 1);
        }
        dup2(fd[1], 2);
        union {
            const char **in;
            char *const *out;
        } words = {.in = argv};
        execv(o->program, words.out);
        _exit(127);
    }
    close(fd[1]);
    (void)fcntl(fd[0], F_SETFL, O_NONBLOCK);
    c->fd = fd[0];
    return 0;
}

/* Lines of the child's standard error: the last one is kept, all are passed on if wanted. */
static void drain(struct child *c, bool progress)
{
    char part[1024];
    ssize_t n;
    while (c->fd >= 0 && (n = read(c->fd, part, sizeof(part))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* nothing now */
        for (ssize_t i = 0; i < n; i++) {
            char ch = part[i];
            if (ch != '\n') {
                if (c->used < sizeof(c->line) - 1)
                    c->line[c->used++] = (unsigned char)ch < 0x20 || ch == 0x7f ? '?' : ch;
                continue;
            }
            c->line[c->used] = '\0';
            if (progress)
                fprintf(stderr, "%s\n", c->line);
            snprintf(c->last, sizeof(c->last), "%s", c->line);
            c->used = 0;
        }
    }
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
}

static void look(struct child *c, int wait_ms, bool progress)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    (void)poll(&p, 1, wait_ms);
    drain(c, progress);
    if (!c->ended && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
        c->ended = true;
}

/* The best link seen, since a card may idle at a slower one. */
static void watch_links(const struct hx_root *root, struct hx_facts *f)
{
    for (int i = 0; i < f->n_cards; i++) {
        struct hx_pci_link l;
        hx_pci_read_link(root, f->card[i].pci, &l);
        if (l.gen > f->card[i].link.gen)
            f->card[i].link.gen = l.gen;
        if (l.width > f->card[i].link.width)
            f->card[i].link.width = l.width;
    }
}

static void wait_for(const struct hx_launch *o, const struct hx_root *root, struct hx_facts *f,
                     struct child *c)
{
    int limit = o->limit_s ? o->limit_s : o->full ? LIMIT_FULL_S : LIMIT_QUICK_S;
    int64_t end = now_ms() + 1000ll * limit;
    while (!c->ended && now_ms() < end) {
        look(c, TICK_MS, o->progress);
        watch_links(root, f);
    }
    if (c->ended)
        return;
    /* It ends its children in order; a process inside the driver cannot be killed anyway. */
    kill(c->pid, SIGTERM);
    end = now_ms() + 1000 * TERM_S;
    while (!c->ended && now_ms() < end)
        look(c, TICK_MS, o->progress);
    snprintf(c->last, sizeof(c->last), "the probe did not end within %d s", limit);
}

/* UUIDs of the cards, so that no other GPU is touched. */
static void list_devices(const struct hx_facts *f, char out[UUIDS_MAX])
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].nvml < 0)
            continue;
        int n = snprintf(out + used, UUIDS_MAX - used, "%s%s", used ? "," : "",
                         f->nvml.device[f->card[i].nvml].uuid);
        used += n > 0 && used + (size_t)n < UUIDS_MAX ? (size_t)n : 0;
    }
}

static int measure(const struct hx_launch *o, const struct hx_root *root, struct hx_facts *f,
                   const char *output, char note[160], struct hx_error *err)
{
    struct child c = {.fd = -1};
    struct hx_nvml_sampler *sampler = NULL;
    char devices[UUIDS_MAX];
    list_devices(f, devices);
    int r = hx_nvml_sampler_start(o->nvml, 500, &sampler, err);
    if (r < 0)
        return r;
    int64_t from = now_ms();
    r = start(o, devices, output, &c, err);
    if (r == 0)
        wait_for(o, root, f, &c);
    f->minutes = (double)(now_ms() - from) / 60000;
    f->minutes = f->minutes < 1 ? 1 : f->minutes;
    hx_nvml_sampler_stop(sampler, &f->load);
    if (r < 0)
        return r;
    f->has_load = f->load.state == HX_NVML_OK && f->load.n_samples > 0;
    drain(&c, o->progress);
    if (c.fd >= 0)
        close(c.fd);
    bool clean = c.ended && WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0;
    snprintf(note, 160, "%s", clean ? "" : c.last);
    if (c.ended && WIFEXITED(c.status) && WEXITSTATUS(c.status) == 127)
        snprintf(note, 160, "hx-probe could not be started");
    struct hx_error why = {0};
    if (hx_measured_read(output, &f->probe, &why) == 0 && f->probe.n_devices > 0) {
        f->measured = true;
        return 0;
    }
    snprintf(f->unmeasured, sizeof(f->unmeasured), "nothing was measured: %s",
             note[0] ? note : "the probe found no card");
    return 0;
}

int hx_launch_probe(const struct hx_launch *o, const struct hx_root *root, struct hx_facts *f,
                    char note[160], struct hx_error *err)
{
    char dir[] = "/tmp/hx-p2p-XXXXXX", output[64], partial[72];
    note[0] = '\0';
    if (access(o->program, X_OK) < 0) {
        snprintf(f->unmeasured, sizeof(f->unmeasured), "hx-probe is not installed");
        return 0;
    }
    if (!mkdtemp(dir))
        return hx_fail_errno(err, errno, "a temporary folder for the probe's result");
    snprintf(output, sizeof(output), "%s/probe.json", dir);
    snprintf(partial, sizeof(partial), "%s.new", output);
    int r = measure(o, root, f, output, note, err);
    unlink(output);
    unlink(partial);
    rmdir(dir);
    if (r == 0)
        hx_facts_pair(f);
    return r;
}
