/* Runs short tools, or answers from a table of recordings. */
#include "hw/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json_read.h"

#define OUT_MAX   (1u << 20)
#define TABLE_MAX (8u << 20)
#define PATH      "/usr/sbin:/usr/bin:/sbin:/bin"

struct hx_commands {
    bool recorded;
    struct hx_json *doc; /* NULL: empty table */
    char *folder;        /* of the table */
};

int hx_commands_real(struct hx_commands **out, struct hx_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

void hx_commands_free(struct hx_commands *commands)
{
    if (!commands)
        return;
    hx_json_free(commands->doc);
    free(commands->folder);
    free(commands);
}

static int check_table(const char *path, struct hx_jv list, struct hx_error *err)
{
    if (hx_jv_type(list) != HX_JSON_ARRAY)
        return hx_fail(err, -EINVAL, "%s: commands: found %s, expected a list", path,
                       hx_json_type_name(hx_jv_type(list)));
    size_t i = 0;
    for (struct hx_jv c = hx_jv_first(list); c.doc; c = hx_jv_next(c), i++) {
        struct hx_jv argv = hx_jv_get(c, "argv");
        int64_t rc;
        double delay;
        if (hx_jv_type(argv) != HX_JSON_ARRAY || hx_jv_count(argv) < 1 || hx_jv_count(argv) > 32)
            return hx_fail(err, -EINVAL, "%s: commands[%zu].argv: expected a list of 1 to 32 words",
                           path, i);
        for (struct hx_jv w = hx_jv_first(argv); w.doc; w = hx_jv_next(w))
            if (hx_jv_type(w) != HX_JSON_STRING)
                return hx_fail(err, -EINVAL, "%s: commands[%zu].argv: found %s, expected words",
                               path, i, hx_json_type_name(hx_jv_type(w)));
        if (!hx_jv_int64(hx_jv_get(c, "rc"), &rc) || rc < 0 || rc > 255)
            return hx_fail(err, -EINVAL, "%s: commands[%zu].rc: expected an integer from 0 to 255",
                           path, i);
        struct hx_jv d = hx_jv_get(c, "delay_s");
        if (d.doc && (!hx_jv_double(d, &delay) || !(delay >= 0) || delay > 86400))
            return hx_fail(err, -EINVAL, "%s: commands[%zu].delay_s: expected 0 to 86400", path, i);
        size_t n;
        const char *file = hx_jv_str(hx_jv_get(c, "file"), &n);
        if (file && (!n || n > 128 || memchr(file, '/', n) || memchr(file, '\0', n)))
            return hx_fail(err, -EINVAL,
                           "%s: commands[%zu].file: expected the name of a file beside the table",
                           path, i);
    }
    return 0;
}

int hx_commands_table(const char *path, struct hx_commands **out, struct hx_error *err)
{
    struct hx_commands *c = calloc(1, sizeof(*c));
    if (!c)
        return hx_fail(err, -ENOMEM, "out of memory");
    c->recorded = true;
    int r = 0;
    if (path) {
        char *text;
        size_t len;
        struct hx_json_limits limits = {TABLE_MAX, 100000, 16, 0};
        r = hx_file_read(path, TABLE_MAX, &text, &len, err);
        if (r == 0) {
            r = hx_json_parse(text, len, &limits, &c->doc, err);
            if (r < 0)
                hx_wrap(err, r, "%s", path);
            free(text);
        }
        if (r == 0)
            r = check_table(path, hx_jv_get(hx_json_root(c->doc), "commands"), err);
        const char *slash = strrchr(path, '/');
        if (r == 0) {
            c->folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("");
            if (!c->folder)
                r = hx_fail(err, -ENOMEM, "out of memory");
        }
    }
    if (r < 0) {
        hx_commands_free(c);
        return r;
    }
    *out = c;
    return 0;
}

/* "*" in a recorded word stands for any text. */
static bool same_word(const char *recorded, size_t len, const char *word)
{
    const char *end = recorded + len, *star = NULL, *resume = NULL;
    while (*word) {
        if (recorded < end && *recorded == '*') {
            star = ++recorded;
            resume = word;
        } else if (recorded < end && *recorded == *word) {
            recorded++;
            word++;
        } else if (star) {
            recorded = star;
            word = ++resume;
        } else {
            return false;
        }
    }
    while (recorded < end && *recorded == '*')
        recorded++;
    return recorded == end;
}

static bool same_words(struct hx_jv argv, const char *const words[])
{
    size_t i = 0;
    for (struct hx_jv w = hx_jv_first(argv); w.doc; w = hx_jv_next(w), i++) {
        size_t len;
        const char *recorded = hx_jv_str(w, &len);
        if (!words[i] || !recorded || !same_word(recorded, len, words[i]))
            return false;
    }
    return !words[i];
}

static int set_out(struct hx_command_result *out, const char *text, size_t len,
                   struct hx_error *err)
{
    if (len > OUT_MAX)
        len = OUT_MAX;
    out->out = malloc(len + 1);
    if (!out->out)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (len)
        memcpy(out->out, text, len);
    out->out[len] = '\0';
    out->out_len = len;
    return 0;
}

static int play(const struct hx_commands *commands, const char *const argv[], int timeout_ms,
                struct hx_command_result *out, struct hx_error *err)
{
    struct hx_jv found = HX_JV_NONE;
    if (commands->doc) {
        struct hx_jv list = hx_jv_get(hx_json_root(commands->doc), "commands");
        for (struct hx_jv c = hx_jv_first(list); c.doc && !found.doc; c = hx_jv_next(c))
            if (same_words(hx_jv_get(c, "argv"), argv))
                found = c;
    }
    out->rc = HX_COMMAND_MISSING;
    if (!found.doc)
        return set_out(out, "", 0, err);
    double delay = 0;
    (void)hx_jv_double(hx_jv_get(found, "delay_s"), &delay);
    if (delay * 1000 > timeout_ms) {
        out->timed_out = true;
        out->rc = -1;
        return set_out(out, "", 0, err);
    }
    int64_t rc = 0;
    (void)hx_jv_int64(hx_jv_get(found, "rc"), &rc);
    out->rc = (int)rc;
    size_t len;
    const char *text = hx_jv_str(hx_jv_get(found, "stderr"), &len);
    if (text)
        snprintf(out->err_text, sizeof(out->err_text), "%.*s", (int)(len < 500 ? len : 500), text);
    text = hx_jv_str(hx_jv_get(found, "stdout"), &len);
    if (text)
        return set_out(out, text, len, err);
    const char *file = hx_jv_str(hx_jv_get(found, "file"), &len);
    if (!file)
        return set_out(out, "", 0, err);
    char path[1024], *data;
    if (snprintf(path, sizeof(path), "%s%.*s", commands->folder, (int)len, file) >=
        (int)sizeof(path))
        return hx_fail(err, -ENAMETOOLONG, "recorded answer: path is too long");
    int r = hx_file_read(path, OUT_MAX, &data, &len, err);
    if (r < 0)
        return r;
    r = set_out(out, data, len, err);
    free(data);
    return r;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The program in one of the system folders; false if there is none. */
static bool look_up(const char *name, char *out, size_t size)
{
    for (const char *s = PATH; *s;) {
        size_t n = strcspn(s, ":");
        if (snprintf(out, size, "%.*s/%s", (int)n, s, name) < (int)size && access(out, X_OK) == 0)
            return true;
        s += n;
        s += *s == ':';
    }
    return false;
}

static void exec_child(const char *program, const char *const argv[], const int out_fd,
                       const int err_fd)
{
    char path[] = "PATH=" PATH, locale[] = "LC_ALL=C";
    char *env[] = {path, locale, NULL};
    sigset_t none;
    sigemptyset(&none);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, 0);
    dup2(out_fd, 1);
    dup2(err_fd, 2);
    /* execve does not write to the words; its type is older than const. */
    union {
        const char *const *in;
        char *const *out;
    } words = {.in = argv};
    execve(program, words.out, env);
    _exit(HX_COMMAND_MISSING);
}

struct collect {
    int fd[2];
    struct hx_buf buf[2];
};

/* Reads both pipes until they close; false on time-out. */
static bool read_both(struct collect *c, int64_t end)
{
    while (c->fd[0] >= 0 || c->fd[1] >= 0) {
        int64_t left = end - now_ms();
        if (left <= 0)
            return false;
        struct pollfd p[2] = {{.fd = c->fd[0], .events = POLLIN},
                              {.fd = c->fd[1], .events = POLLIN}};
        int n = poll(p, 2, (int)(left < 60000 ? left : 60000));
        if (n < 0 && errno != EINTR)
            return false;
        if (n <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            char part[8192];
            if (c->fd[i] < 0 || !p[i].revents)
                continue;
            ssize_t got = read(c->fd[i], part, sizeof(part));
            if (got < 0 && errno == EINTR)
                continue;
            if (got > 0) {
                size_t room = c->buf[i].max - c->buf[i].len;
                (void)hx_buf_append(&c->buf[i], part, (size_t)got < room ? (size_t)got : room);
            } else {
                close(c->fd[i]);
                c->fd[i] = -1;
            }
        }
    }
    return true;
}

static int wait_until(pid_t pid, int64_t end, int *status)
{
    for (;;) {
        pid_t r = waitpid(pid, status, WNOHANG);
        if (r == pid)
            return 0;
        if (r < 0 && errno != EINTR)
            return -errno;
        if (now_ms() >= end)
            return -ETIMEDOUT;
        struct timespec t = {0, 5000000};
        nanosleep(&t, NULL);
    }
}

static int run_real(const char *const argv[], int timeout_ms, struct hx_command_result *out,
                    struct hx_error *err)
{
    char program[256];
    if (strchr(argv[0], '/') || !look_up(argv[0], program, sizeof(program))) {
        out->rc = HX_COMMAND_MISSING;
        return set_out(out, "", 0, err);
    }
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    if (pipe2(pipes[0], O_CLOEXEC) < 0 || pipe2(pipes[1], O_CLOEXEC) < 0) {
        int e = errno;
        if (pipes[0][0] >= 0) {
            close(pipes[0][0]);
            close(pipes[0][1]);
        }
        return hx_fail_errno(err, e, "starting %s", argv[0]);
    }
    int64_t end = now_ms() + timeout_ms;
    pid_t pid = fork();
    int fork_errno = errno;
    if (pid == 0)
        exec_child(program, argv, pipes[0][1], pipes[1][1]);
    close(pipes[0][1]);
    close(pipes[1][1]);
    if (pid < 0) {
        close(pipes[0][0]);
        close(pipes[1][0]);
        return hx_fail_errno(err, fork_errno, "starting %s", argv[0]);
    }
    struct collect c = {{pipes[0][0], pipes[1][0]},
                        {HX_BUF_INIT(OUT_MAX), HX_BUF_INIT(sizeof(out->err_text) - 1)}};
    int status = 0;
    bool ended = read_both(&c, end) && wait_until(pid, end, &status) == 0;
    if (!ended) {
        kill(pid, SIGTERM);
        (void)wait_until(pid, now_ms() + 200, &status);
        out->timed_out = true;
        out->rc = -1;
    } else {
        out->rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    for (int i = 0; i < 2; i++)
        if (c.fd[i] >= 0)
            close(c.fd[i]);
    snprintf(out->err_text, sizeof(out->err_text), "%.*s", (int)c.buf[1].len,
             c.buf[1].len ? (const char *)c.buf[1].data : "");
    int r = set_out(out, (const char *)c.buf[0].data, c.buf[0].len, err);
    hx_buf_done(&c.buf[0]);
    hx_buf_done(&c.buf[1]);
    return r;
}

int hx_command_run(const struct hx_commands *commands, const char *const argv[], int timeout_ms,
                   struct hx_command_result *out, struct hx_error *err)
{
    memset(out, 0, sizeof(*out));
    int r = commands->recorded ? play(commands, argv, timeout_ms, out, err)
                               : run_real(argv, timeout_ms, out, err);
    if (r < 0)
        hx_command_result_done(out);
    return r;
}

void hx_command_result_done(struct hx_command_result *result)
{
    free(result->out);
    result->out = NULL;
    result->out_len = 0;
}
