#include "setup/lock.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOCK "/run/hx170/setup.lock"

static void read_holder(int fd, char *holder, size_t size)
{
    ssize_t n = pread(fd, holder, size - 1, 0);
    holder[n > 0 ? n : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    for (char *p = holder; *p; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7E)
            *p = '?';
    }
}

int hx_setup_lock(const struct hx_setup *s, int *fd, char *holder, size_t size,
                  struct hx_error *err)
{
    char at[HX_ROOT_PATH], line[160];
    int r = hx_setup_path(s, LOCK, at, err);
    if (r == 0)
        r = hx_setup_folders(at, err);
    if (r < 0)
        return r;
    int lock = open(at, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (lock < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", at);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        r = errno == EWOULDBLOCK ? -EBUSY : -errno;
        read_holder(lock, holder, size);
        close(lock);
        if (r == -EBUSY)
            return hx_fail(err, r, "another setup runs: %s", holder);
        return hx_fail(err, r, "%s: cannot lock: %s", at, strerror(-r));
    }
    const char *tty = ttyname(STDIN_FILENO);
    int n = snprintf(line, sizeof(line), "process %d on %.60s\n", (int)getpid(),
                     tty ? tty : "no terminal");
    if (ftruncate(lock, 0) < 0 || pwrite(lock, line, (size_t)n, 0) != n) {
        r = hx_fail_errno(err, errno, "%s: cannot write", at);
        close(lock);
        return r;
    }
    *fd = lock;
    return 0;
}

void hx_setup_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}
