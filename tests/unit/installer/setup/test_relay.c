/* Root's work for the account admin: files, words, folder and signals reach the command, its status
 * comes back, and a request that is none is refused. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "setup/relay.h"

/* A service in a process of its own; its end of the connection in *fd. */
static pid_t service(int *fd, uid_t allowed)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct hx_error err;
        close(ends[0]);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
        _exit(hx_relay_serve(ends[1], allowed, &err) == 0 ? 0 : -err.code);
    }
    close(ends[1]);
    *fd = ends[0];
    return pid;
}

static int ended(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Calls with standard output in a pipe; what came in `out`. */
static int call(const char *const argv[], char *out, size_t size)
{
    struct hx_error err;
    int fd, ends[2], code = -1, keep = dup(STDOUT_FILENO);
    pid_t pid = service(&fd, getuid());
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    int r = hx_relay_call(fd, argv, &code, &err);
    dup2(keep, STDOUT_FILENO);
    close(keep);
    ssize_t n = read(ends[0], out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    assert_int_equal(r, 0);
    assert_int_equal(ended(pid), 0);
    return code;
}

static void test_command(void **state)
{
    char out[4096], here[2048], line[2200];
    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(
        call((const char *const[]){"sh", "-c", "pwd; echo \"$1\"; exit 7", "x", "a  b", NULL}, out,
             sizeof(out)),
        7);
    snprintf(line, sizeof(line), "%s\na  b\n", here);
    assert_string_equal(out, line);
    assert_int_equal(
        call((const char *const[]){"sh", "-c", "kill -TERM $$", NULL}, out, sizeof(out)),
        128 + SIGTERM);
    assert_int_equal(call((const char *const[]){"/nowhere/x", NULL}, out, sizeof(out)), 127);
}

/* Nothing of the caller's environment decides what root runs. */
static void test_environment(void **state)
{
    char out[4096];
    (void)state;
    setenv("LD_PRELOAD_X", "1", 1);
    assert_int_equal(call((const char *const[]){"env", NULL}, out, sizeof(out)), 0);
    unsetenv("LD_PRELOAD_X");
    assert_null(strstr(out, "LD_PRELOAD_X"));
    assert_non_null(strstr(out, "HOME=/root\n"));
}

static void test_signal(void **state)
{
    struct hx_error err;
    int fd, code = -1;
    (void)state;
    pid_t pid = service(&fd, getuid()), self = getpid(), other = fork();
    if (other == 0) {
        usleep(300000);
        kill(self, SIGTERM);
        _exit(0);
    }
    /* Ends by the signal that this process got, long before its time. */
    assert_int_equal(hx_relay_call(fd, (const char *const[]){"sleep", "60", NULL}, &code, &err), 0);
    assert_int_equal(code, 128 + SIGTERM);
    ended(other);
    assert_int_equal(ended(pid), 0);
}

static ssize_t ask(int fd, const void *text, size_t n, int n_files)
{
    char control[CMSG_SPACE(3 * sizeof(int))] = {0};
    int files[3] = {0, 1, 2};
    struct iovec v = {(void *)(uintptr_t)text, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (n_files) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE((size_t)n_files * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_files * sizeof(int));
        memcpy(CMSG_DATA(c), files, (size_t)n_files * sizeof(int));
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* The peer hangs up: the command ends. */
static void test_hang_up(void **state)
{
    static const char text[] = "hx170 root 1\0dumb\0/\0sleep\0"
                               "60";
    int fd;
    (void)state;
    pid_t pid = service(&fd, getuid());
    assert_int_equal(ask(fd, text, sizeof(text), 3), (ssize_t)sizeof(text));
    usleep(200000);
    close(fd);
    assert_int_equal(ended(pid), 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        int n_files, error;
    } rows[] = {
        {"hx170 root 1\0dumb\0/\0true", 25, 0, EPROTO}, /* no files */
        {"hx170 root 1\0dumb\0/\0true", 25, 2, EPROTO}, /* too few */
        {"hx170 root 2\0dumb\0/\0true", 25, 3, EPROTO}, /* another version */
        {"hx170 root 1\0dumb\0/\0true", 24, 3, EPROTO}, /* the last NUL is missing */
        {"hx170 root 1\0dumb\0/", 20, 3, EPROTO},       /* no command */
        {"hx170 root 1\0dumb\0/\0", 21, 3, EPROTO},     /* an empty one */
        {"hx170 root 1", 13, 3, EPROTO},
        {"x", 1, 3, EPROTO},
    };
    int fd;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pid_t pid = service(&fd, getuid());
        assert_int_equal(ask(fd, rows[i].text, rows[i].n, rows[i].n_files), (ssize_t)rows[i].n);
        assert_int_equal(ended(pid), rows[i].error);
        close(fd);
    }
    char many[1024] = "hx170 root 1\0dumb\0/";
    for (size_t i = 20; i < 20 + 2 * 65; i += 2)
        memcpy(many + i, "a", 2);
    pid_t pid = service(&fd, getuid());
    assert_true(ask(fd, many, 20 + 2 * 65, 3) > 0);
    assert_int_equal(ended(pid), E2BIG);
    close(fd);
    static char big[HX_RELAY_BYTES + 1];
    pid = service(&fd, getuid());
    assert_true(ask(fd, big, sizeof(big), 3) > 0);
    assert_int_equal(ended(pid), EMSGSIZE);
    close(fd);
}

/* Another user's process: nothing is read from it. */
static void test_peer(void **state)
{
    (void)state;
    if (getuid() != 0)
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        struct hx_error err;
        int ends[2];
        if (setuid(65534) < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
            _exit(1);
        _exit(-hx_relay_serve(ends[1], 900, &err));
    }
    assert_int_equal(ended(pid), EPERM);
}

static void test_nobody_there(void **state)
{
    struct hx_error err;
    int fd;
    (void)state;
    assert_int_equal(hx_relay_connect("/nowhere/root.socket", &fd, &err), -ENOENT);
    assert_non_null(strstr(err.text, "this needs root"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command),      cmocka_unit_test(test_environment),
        cmocka_unit_test(test_signal),       cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_peer),
        cmocka_unit_test(test_nobody_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
