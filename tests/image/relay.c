#include "image/relay.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

/* What comes in on `from` goes out on `to`; false at the end of either. */
static bool move(int from, int to)
{
    char block[65536];
    ssize_t n = read(from, block, sizeof(block));
    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    for (ssize_t at = 0; at < n;) {
        ssize_t w = write(to, block + at, (size_t)(n - at));
        if (w < 0 && (errno == EINTR || errno == EAGAIN)) {
            struct pollfd p = {.fd = to, .events = POLLOUT};
            poll(&p, 1, -1);
            continue;
        }
        if (w <= 0)
            return false;
        at += w;
    }
    return n > 0;
}

int hx_relay(unsigned port, struct hx_error *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = 0;
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        r = hx_fail_errno(err, errno, "port %u", port);
    bool from_guest = true;
    while (!r) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN},
                              {.fd = from_guest ? STDIN_FILENO : -1, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR) {
            r = hx_fail_errno(err, errno, "poll");
            break;
        }
        if (p[1].revents && !move(STDIN_FILENO, fd)) {
            from_guest = false;
            shutdown(fd, SHUT_WR);
        }
        /* The answer is over when the server says so, whatever the guest still has to say. */
        if (p[0].revents && !move(fd, STDOUT_FILENO))
            break;
    }
    if (fd >= 0)
        close(fd);
    return r;
}
