#include "setup/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAGIC     "hx170 root 1"
#define GRACE_MS  5000
#define FAILED_TO 127 /* as shells say it: the command cannot be run */

/* Every message after the first is one byte: to the service a signal's number, from it the exit
 * status. */
static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH};
#define N_PASSED_ON ((int)(sizeof(passed_on) / sizeof(passed_on[0])))

struct request {
    char text[HX_RELAY_BYTES]; /* MAGIC, terminal type, folder, words; each with its NUL */
    size_t n;
    int file[3];
    char *term, *folder, *argv[HX_RELAY_WORDS + 1];
};

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(3 * sizeof(int))];
};

/* ---- the asking side ------------------------------------------------------------------------- */

static int add(struct request *q, const char *word, struct hx_error *err)
{
    size_t n = strlen(word) + 1;
    if (n > sizeof(q->text) - q->n)
        return hx_fail(err, -E2BIG, "the command is longer than %d bytes", HX_RELAY_BYTES);
    memcpy(q->text + q->n, word, n);
    q->n += n;
    return 0;
}

static int send_request(int connection, const char *const argv[], struct hx_error *err)
{
    struct request *q = calloc(1, sizeof(*q));
    char folder[4096];
    const char *term = getenv("TERM");
    if (!q)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (!getcwd(folder, sizeof(folder)))
        snprintf(folder, sizeof(folder), "/");
    int r = add(q, MAGIC, err);
    if (r == 0)
        r = add(q, term ? term : "dumb", err);
    if (r == 0)
        r = add(q, folder, err);
    for (int i = 0; r == 0 && argv[i]; i++)
        r = i < HX_RELAY_WORDS ? add(q, argv[i], err)
                               : hx_fail(err, -E2BIG, "more than %d words", HX_RELAY_WORDS);
    union control control = {0};
    const int files[3] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    struct iovec text = {q->text, q->n};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(files));
    memcpy(CMSG_DATA(c), files, sizeof(files));
    if (r == 0 && sendmsg(connection, &m, MSG_NOSIGNAL) < 0)
        r = hx_fail_errno(err, errno, "cannot ask root's service");
    free(q);
    return r;
}

int hx_relay_connect(const char *path, int *connection, struct hx_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (snprintf(a.sun_path, sizeof(a.sun_path), "%s", path) >= (int)sizeof(a.sun_path))
        return hx_fail(err, -ENAMETOOLONG, "%.100s: the path is too long", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        int r = errno == EACCES || errno == EPERM
                    ? hx_fail(err, -EACCES, "this needs root: log in as admin")
                    : hx_fail_errno(err, errno, "this needs root, and %s does not answer", path);
        if (fd >= 0)
            close(fd);
        return r;
    }
    *connection = fd;
    return 0;
}

static int wait_reply(int connection, int signals, int *code, struct hx_error *err)
{
    for (;;) {
        struct pollfd p[] = {{connection, POLLIN, 0}, {signals, POLLIN, 0}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return hx_fail_errno(err, errno, "poll");
        if (p[1].revents & POLLIN) {
            struct signalfd_siginfo info;
            if (read(signals, &info, sizeof(info)) == sizeof(info)) {
                uint8_t number = (uint8_t)info.ssi_signo;
                (void)!send(connection, &number, 1, MSG_NOSIGNAL);
            }
        }
        if (p[0].revents) {
            uint8_t status;
            ssize_t n = recv(connection, &status, 1, 0);
            if (n < 0 && errno == EINTR)
                continue;
            if (n != 1)
                return hx_fail(err, -ECONNRESET, "root's service ended without an answer");
            *code = status;
            return 0;
        }
    }
}

int hx_relay_call(int connection, const char *const argv[], int *code, struct hx_error *err)
{
    sigset_t set, old;
    sigemptyset(&set);
    for (int i = 0; i < N_PASSED_ON; i++)
        sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, &old);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    int r = signals < 0 ? hx_fail_errno(err, errno, "signalfd") : 0;
    if (r == 0)
        r = send_request(connection, argv, err);
    if (r == 0)
        r = wait_reply(connection, signals, code, err);
    if (signals >= 0)
        close(signals);
    close(connection);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return r;
}

/* ---- root's side ----------------------------------------------------------------------------- */

static void take_files(struct msghdr *m, struct request *q)
{
    int got = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < n && got < 3; i++, got++)
            memcpy(&q->file[got], CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof(int));
    }
}

/* The words of the message; the last byte has to be a NUL. */
static int take_words(struct request *q, struct hx_error *err)
{
    char *at = q->text, *end = q->text + q->n;
    const char *magic = at;
    int n = 0;
    if (q->n == 0 || end[-1] != '\0' || strcmp(magic, MAGIC) != 0)
        return hx_fail(err, -EPROTO, "this is no request of this version");
    for (int word = 0; at < end; word++, at += strlen(at) + 1) {
        if (word == 1)
            q->term = at;
        else if (word == 2)
            q->folder = at;
        else if (word > 2 && n == HX_RELAY_WORDS)
            return hx_fail(err, -E2BIG, "more than %d words", HX_RELAY_WORDS);
        else if (word > 2)
            q->argv[n++] = at;
    }
    if (n == 0 || !*q->argv[0])
        return hx_fail(err, -EPROTO, "the request has no command");
    return 0;
}

static int take_request(int connection, uid_t allowed, struct request *q, struct hx_error *err)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    union control control = {0};
    struct iovec text = {q->text, sizeof(q->text)};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct pollfd p = {connection, POLLIN, 0};
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return hx_fail_errno(err, errno, "who asks is not known");
    if (peer.uid != 0 && peer.uid != allowed)
        return hx_fail(err, -EPERM, "user %u may not ask", (unsigned)peer.uid);
    if (poll(&p, 1, GRACE_MS) <= 0)
        return hx_fail(err, -ETIMEDOUT, "no request came");
    ssize_t n = recvmsg(connection, &m, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return hx_fail_errno(err, errno, "no request came");
    take_files(&m, q);
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        return hx_fail(err, -EMSGSIZE, "the request is too long");
    q->n = (size_t)n;
    for (int i = 0; i < 3; i++) {
        if (q->file[i] < 0)
            return hx_fail(err, -EPROTO, "the request has no three files");
    }
    return take_words(q, err);
}

static void run_child(const struct request *q)
{
    static const char path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (chdir(q->folder) < 0 && chdir("/") < 0)
        _exit(FAILED_TO);
    for (int i = 0; i < 3; i++) {
        if (dup2(q->file[i], i) < 0)
            _exit(FAILED_TO);
    }
    if (clearenv() != 0 || setenv("PATH", path, 1) < 0 || setenv("TERM", q->term, 1) < 0 ||
        setenv("HOME", "/root", 1) < 0 || setenv("LANG", "C.UTF-8", 1) < 0 ||
        setenv("USER", "root", 1) < 0)
        _exit(FAILED_TO);
    execvp(q->argv[0], q->argv);
    fprintf(stderr, "hx: cannot run %s: %s\n", q->argv[0], strerror(errno));
    _exit(FAILED_TO);
}

static bool may_pass(int number)
{
    for (int i = 0; i < N_PASSED_ON; i++) {
        if (passed_on[i] == number)
            return true;
    }
    return false;
}

/* Hands on signals until the command ends. false: the peer is gone. */
static bool hand_on(int connection, int child_events, pid_t child)
{
    for (;;) {
        struct pollfd p[] = {{connection, POLLIN, 0}, {child_events, POLLIN, 0}};
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            return true;
        if (p[0].revents) {
            uint8_t number;
            ssize_t n = recv(connection, &number, 1, MSG_DONTWAIT);
            if (n == 1 && may_pass(number))
                kill(-child, number);
            else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
                return false;
        }
    }
}

/* The peer's end is the command's: a hang-up, and if that does not help the hard way. */
static void end_child(int child_events, pid_t child)
{
    struct pollfd p = {child_events, POLLIN, 0};
    kill(-child, SIGHUP);
    kill(-child, SIGCONT);
    if (poll(&p, 1, GRACE_MS) <= 0)
        kill(-child, SIGKILL);
}

static int run_request(int connection, const struct request *q, struct hx_error *err)
{
    sigset_t set, old;
    int status;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &old);
    int events = signalfd(-1, &set, SFD_CLOEXEC);
    pid_t child = events < 0 ? -1 : fork();
    if (child == 0)
        run_child(q);
    int r = child < 0 ? hx_fail_errno(err, errno, "cannot start the command") : 0;
    if (r == 0 && !hand_on(connection, events, child))
        end_child(events, child);
    if (r == 0) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        uint8_t code = (uint8_t)(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        (void)!send(connection, &code, 1, MSG_NOSIGNAL);
    }
    if (events >= 0)
        close(events);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return r;
}

int hx_relay_serve(int connection, uid_t allowed, struct hx_error *err)
{
    struct request *q = calloc(1, sizeof(*q));
    if (!q)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; i < 3; i++)
        q->file[i] = -1;
    int r = take_request(connection, allowed, q, err);
    if (r == 0) {
        fprintf(stderr, "runs:");
        for (int i = 0; q->argv[i]; i++)
            fprintf(stderr, " %.200s", q->argv[i]);
        fputc('\n', stderr);
        r = run_request(connection, q, err);
    }
    for (int i = 0; i < 3; i++) {
        if (q->file[i] >= 0)
            close(q->file[i]);
    }
    free(q);
    close(connection);
    return r;
}
