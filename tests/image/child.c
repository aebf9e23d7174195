#include "image/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

/* Between two looks at a process or a log. */
#define LOOK_MS 20

int64_t hx_child_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t hx_child_within(int64_t deadline, int64_t ms)
{
    int64_t at = hx_child_clock() + ms;
    return at < deadline ? at : deadline;
}

bool hx_child_sleep(int64_t ms, int64_t deadline)
{
    int64_t left = deadline - hx_child_clock();
    if (left <= 0)
        return false;
    int64_t n = ms < left ? ms : left;
    struct timespec t = {.tv_sec = n / 1000, .tv_nsec = (n % 1000) * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
    return true;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* In the child: never returns. `report` tells the parent why exec failed. */
static _Noreturn void become(const char *const *argv, int in, int out, int report, pid_t parent)
{
    int r = 0;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        r = errno;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    if (!r) {
        /* exec takes the strings as they are and changes none of them. */
        char *const *args = (char *const *)(uintptr_t)argv;
        execvp(argv[0], args);
        r = errno;
    }
    if (write(report, &r, sizeof(r)) != (ssize_t)sizeof(r))
        _exit(126);
    _exit(127);
}

/* Starts argv with the given descriptors, which stay open here. */
static int spawn(struct hx_child *c, const char *const *argv, int in, int out, struct hx_error *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return hx_fail_errno(err, errno, "%s: pipe", argv[0]);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        int r = hx_fail_errno(err, errno, "%s: fork", argv[0]);
        close(report[0]);
        close(report[1]);
        return r;
    }
    if (pid == 0)
        become(argv, in, out, report[1], parent);
    close(report[1]);
    int why = 0;
    ssize_t n = read(report[0], &why, sizeof(why));
    close(report[0]);
    if (n == (ssize_t)sizeof(why)) {
        waitpid(pid, NULL, 0);
        return hx_fail_errno(err, why, "%s cannot be started", argv[0]);
    }
    *c = (struct hx_child){.pid = pid};
    snprintf(c->program, sizeof(c->program), "%s", base_name(argv[0]));
    return 0;
}

int hx_child_start(struct hx_child *c, const char *const *argv, const char *log,
                   const char *pidfile, struct hx_error *err)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int r = 0;
    if (in < 0 || out < 0)
        r = hx_fail_errno(err, errno, "%s: open", in < 0 ? "/dev/null" : log);
    if (!r)
        r = spawn(c, argv, in, out, err);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    if (r || !pidfile)
        return r;
    char number[32];
    int n = snprintf(number, sizeof(number), "%ld\n", (long)c->pid);
    r = hx_file_replace(pidfile, number, (size_t)n, err);
    if (r) {
        hx_child_kill(c);
        return r;
    }
    snprintf(c->pidfile, sizeof(c->pidfile), "%s", pidfile);
    return 0;
}

static void note_end(struct hx_child *c, int status)
{
    c->status = status;
    c->ended = true;
    c->pid = 0;
    if (c->pidfile[0])
        unlink(c->pidfile);
}

bool hx_child_alive(struct hx_child *c)
{
    if (!c->pid)
        return false;
    int status;
    pid_t r = waitpid(c->pid, &status, WNOHANG);
    if (r == c->pid)
        note_end(c, status);
    return c->pid != 0;
}

int hx_child_wait(struct hx_child *c, int64_t deadline, struct hx_error *err)
{
    while (hx_child_alive(c))
        if (!hx_child_sleep(LOOK_MS, deadline))
            return hx_fail(err, -ETIMEDOUT, "%s still runs at the deadline", c->program);
    return 0;
}

void hx_child_kill(struct hx_child *c)
{
    if (!hx_child_alive(c))
        return;
    kill(c->pid, SIGKILL);
    int status;
    while (waitpid(c->pid, &status, 0) < 0)
        if (errno != EINTR)
            return;
    note_end(c, status);
}

void hx_child_describe(const struct hx_child *c, char *text, size_t size)
{
    if (!c->ended)
        snprintf(text, size, "still running");
    else if (WIFSIGNALED(c->status))
        snprintf(text, size, "signal %d", WTERMSIG(c->status));
    else
        snprintf(text, size, "exit status %d", WEXITSTATUS(c->status));
}

/* Moves bytes both ways until the program closes its output. */
static int converse(struct hx_child *c, int to, int from, const char *input, struct hx_buf *out,
                    int64_t deadline, struct hx_error *err)
{
    size_t left = input ? strlen(input) : 0;
    for (;;) {
        if (to >= 0 && !left) {
            close(to);
            to = -1;
        }
        struct pollfd p[2] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLOUT}};
        int64_t wait = deadline - hx_child_clock();
        int n = wait > 0 ? poll(p, 2, wait > 60000 ? 60000 : (int)wait) : 0;
        if (n < 0 && errno != EINTR) {
            int r = hx_fail_errno(err, errno, "%s: poll", c->program);
            if (to >= 0)
                close(to);
            return r;
        }
        if (wait <= 0) {
            if (to >= 0)
                close(to);
            const char *said = hx_buf_cstr(out);
            size_t len = out->len;
            return hx_fail(err, -ETIMEDOUT, "%s did not end in time; it said last: %s", c->program,
                           !said ? "" : said + (len > 300 ? len - 300 : 0));
        }
        if (n <= 0)
            continue;
        if (p[1].revents) {
            ssize_t w = write(to, input, left);
            if (w > 0) {
                input += w;
                left -= (size_t)w;
            } else if (w < 0 && errno != EAGAIN && errno != EINTR) {
                left = 0; /* it does not want the rest */
            }
        }
        if (p[0].revents) {
            char block[4096];
            ssize_t got = read(from, block, sizeof(block));
            if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
                if (to >= 0)
                    close(to);
                return 0;
            }
            if (got > 0 && hx_buf_append(out, block, (size_t)got)) {
                if (to >= 0)
                    close(to);
                return hx_fail(err, -EMSGSIZE, "%s says more than %zu bytes", c->program, out->max);
            }
        }
    }
}

int hx_child_run(const char *const *argv, const char *input, struct hx_buf *out, int *code,
                 int64_t deadline, struct hx_error *err)
{
    int in[2], from[2];
    if (pipe2(in, O_CLOEXEC) < 0)
        return hx_fail_errno(err, errno, "%s: pipe", argv[0]);
    if (pipe2(from, O_CLOEXEC) < 0) {
        int r = hx_fail_errno(err, errno, "%s: pipe", argv[0]);
        close(in[0]);
        close(in[1]);
        return r;
    }
    hx_buf_clear(out);
    struct hx_child c = {0};
    int r = spawn(&c, argv, in[0], from[1], err);
    close(in[0]);
    close(from[1]);
    if (r) {
        close(in[1]);
        close(from[0]);
        return r;
    }
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    signal(SIGPIPE, SIG_IGN);
    r = converse(&c, in[1], from[0], input, out, deadline, err);
    close(from[0]);
    if (!r)
        r = hx_child_wait(&c, deadline, err);
    hx_child_kill(&c);
    if (r)
        return r;
    *code = WIFSIGNALED(c.status) ? 128 + WTERMSIG(c.status) : WEXITSTATUS(c.status);
    return 0;
}
