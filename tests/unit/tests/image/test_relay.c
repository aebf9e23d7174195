/* The relay between a guest's connection and a port of the host: all bytes both ways, and its end
 * when the server has ended. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "image/relay.h"

#define N_BYTES ((size_t)3 << 20)

static int listener(unsigned *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(listen(fd, 1), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* The relay in a process of its own, as QEMU starts it; *guest is the guest's end. */
static pid_t start(unsigned port, int *guest)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct hx_error err;
        dup2(pair[1], 0);
        dup2(pair[1], 1);
        _exit(hx_relay(port, &err) ? 1 : 0);
    }
    close(pair[1]);
    *guest = pair[0];
    return pid;
}

static int status_of(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void take(int fd, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)to + at, n - at);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

static void test_both_ways(void **state)
{
    unsigned port;
    int guest, fd = listener(&port);
    pid_t pid = start(port, &guest);
    int server = accept(fd, NULL, NULL);
    char *data = malloc(N_BYTES), *back = malloc(N_BYTES), text[5];
    (void)state;
    assert_true(server >= 0 && data && back);
    for (size_t i = 0; i < N_BYTES; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(write(guest, "hello", 5), 5);
    take(server, text, 5);
    assert_memory_equal(text, "hello", 5);
    /* More than any buffer on the way holds: the writer has to wait for the reader. */
    pid_t writer = fork();
    if (writer == 0) {
        for (size_t at = 0; at < N_BYTES;) {
            ssize_t n = write(server, data + at, N_BYTES - at);
            if (n <= 0)
                _exit(1);
            at += (size_t)n;
        }
        _exit(0);
    }
    close(server);
    take(guest, back, N_BYTES);
    assert_memory_equal(data, back, N_BYTES);
    assert_int_equal(status_of(writer), 0);
    /* The server's end is the guest's. */
    assert_int_equal(read(guest, back, 1), 0);
    assert_int_equal(status_of(pid), 0);
    close(guest);
    close(fd);
    free(data);
    free(back);
}

static void test_nobody_listens(void **state)
{
    unsigned port;
    int guest;
    (void)state;
    close(listener(&port));
    pid_t pid = start(port, &guest);
    assert_int_equal(status_of(pid), 1);
    close(guest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_nobody_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
