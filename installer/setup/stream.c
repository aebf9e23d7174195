#include "setup/stream.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json_read.h"

struct lines {
    hx_stream_fn progress;
    void *ctx;
    char line[1024], last[512]; /* last: the newest that is no progress */
    size_t n;
};

static void take_line(struct lines *l)
{
    static const struct hx_json_limits limits = {1024, 64, 8, 0};
    struct hx_json *doc = NULL;
    struct hx_error err;
    l->line[l->n] = '\0';
    if (l->line[0] == '{' && hx_json_parse(l->line, l->n, &limits, &doc, &err) == 0) {
        char step[64];
        size_t n;
        int64_t percent;
        const char *s = hx_jv_str(hx_jv_get(hx_json_root(doc), "step"), &n);
        if (s && hx_jv_int64(hx_jv_get(hx_json_root(doc), "percent"), &percent) && percent >= 0 &&
            percent <= 100) {
            snprintf(step, sizeof(step), "%.*s", n > 63 ? 63 : (int)n, s);
            l->progress(l->ctx, step, (int)percent);
        }
    } else if (l->n > 0) {
        snprintf(l->last, sizeof(l->last), "%.500s", l->line);
    }
    hx_json_free(doc);
    l->n = 0;
}

static void take_bytes(struct lines *l, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (data[i] == '\n')
            take_line(l);
        else if (l->n + 1 < sizeof(l->line))
            l->line[l->n++] = data[i];
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Until the other end is closed. 0 or -ETIMEDOUT. */
static int drain(int fd, int timeout_ms, struct lines *l)
{
    int64_t end = now_ms() + timeout_ms;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        char data[4096];
        int64_t left = end - now_ms();
        if (left <= 0)
            return -ETIMEDOUT;
        int ready = poll(&p, 1, left > 1000 ? 1000 : (int)left);
        if (ready <= 0)
            continue;
        ssize_t n = read(fd, data, sizeof(data));
        if (n > 0)
            take_bytes(l, data, (size_t)n);
        else if (n == 0 || errno != EINTR)
            return 0;
    }
}

static int start(const char *const argv[], int *fd, pid_t *pid, struct hx_error *err)
{
    static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return hx_fail_errno(err, errno, "cannot make a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    int r = posix_spawnp(pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (r != 0) {
        close(ends[0]);
        return hx_fail_errno(err, r, "cannot run %s", argv[0]);
    }
    *fd = ends[0];
    return 0;
}

int hx_stream_run(const struct hx_setup *s, const char *const argv[], int timeout_ms,
                  hx_stream_fn progress, void *ctx, int *rc, struct hx_error *err)
{
    struct lines l = {.progress = progress, .ctx = ctx};
    pid_t pid = -1;
    int fd = -1, status;
    if (*s->root_dir) {
        char *out = NULL;
        int r = hx_setup_tool(s, argv, timeout_ms, rc, &out, err);
        free(out);
        return r;
    }
    int r = start(argv, &fd, &pid, err);
    if (r < 0)
        return r;
    r = drain(fd, timeout_ms, &l);
    close(fd);
    if (r < 0)
        kill(pid, SIGTERM);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (r < 0)
        return hx_fail(err, r, "%s did not end in %d minutes", argv[0], timeout_ms / 60000);
    *rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (*rc != 0)
        hx_fail(err, -EIO, "%s", *l.last ? l.last : "it ended without a message");
    return 0;
}
