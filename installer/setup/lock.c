#include "setup/lock.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOCK   "/run/hx170/setup.lock"
#define RECORD 256 /* bytes of the file */

#define LOOK_MS 500

/* What the file says: line 0 about the holder, line 1 the open screen. "": nothing. */
static void read_line(int fd, int line, char *out, size_t size)
{
    char text[RECORD + 1];
    ssize_t n = pread(fd, text, RECORD, 0);
    text[n > 0 ? n : 0] = '\0';
    const char *at = text;
    for (; line > 0 && at; line--) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    snprintf(out, size, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
    for (char *p = out; *p; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7E)
            *p = '?';
    }
}

/* One write of the same length each time: a reader never sees half of it. */
static int write_record(int fd, const char *screen, const char *busy)
{
    char record[RECORD];
    const char *tty = ttyname(STDIN_FILENO);
    int n = snprintf(record, sizeof(record), "process %d on %.60s\n%.120s\n%s\n", (int)getpid(),
                     tty ? tty : "no terminal", screen, busy);
    memset(record + n, '\n', sizeof(record) - (size_t)n);
    return pwrite(fd, record, sizeof(record), 0) == sizeof(record) ? 0 : -errno;
}

/* Opens the file without the lock. */
static int open_lock(const struct hx_setup *s, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    int r = hx_setup_path(s, LOCK, at, err);
    if (r == 0)
        r = hx_setup_folders(at, err);
    if (r < 0)
        return r;
    int fd = open(at, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd >= 0 ? fd : hx_fail_errno(err, errno, "%s: cannot open", at);
}

/* Takes the lock through fd. -EBUSY, without a message. */
static int take(struct hx_setup *s, int fd, struct hx_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : hx_fail_errno(err, errno, "%s: cannot lock", LOCK);
    int r = ftruncate(fd, 0) < 0 ? -errno : write_record(fd, "", "");
    if (r < 0)
        return hx_fail_errno(err, -r, "%s: cannot write", LOCK);
    s->lock_fd = fd;
    return 0;
}

int hx_setup_lock(struct hx_setup *s, char *holder, size_t size, struct hx_error *err)
{
    int fd = open_lock(s, err);
    if (fd < 0)
        return fd;
    int r = take(s, fd, err);
    if (r == -EBUSY) {
        read_line(fd, 0, holder, size);
        hx_fail(err, r, "another setup runs: %s", holder);
    }
    if (r < 0)
        close(fd);
    return r;
}

void hx_setup_unlock(struct hx_setup *s)
{
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->lock_fd = -1;
}

static void say(const struct hx_setup *s, const char *screen, const char *busy)
{
    /* Only a help for those who watch: that it could not be written changes nothing. */
    if (s->lock_fd >= 0 && write_record(s->lock_fd, screen, busy) < 0)
        return;
}

void hx_setup_lock_screen(const struct hx_setup *s, int number, int total, const char *title)
{
    char screen[120];
    snprintf(screen, sizeof(screen), "Step %d of %d. %s", number, total, title);
    say(s, screen, "");
}

void hx_setup_lock_busy(const struct hx_setup *s, const char *what)
{
    say(s, what, "busy");
}

/* ---- the second console ---------------------------------------------------------------------- */

enum typed { NOTHING, LEAVE, TAKE_OVER };

/* Waits a moment for a line. */
static enum typed next_line(int in)
{
    struct pollfd p = {in, POLLIN, 0};
    char line[64];
    if (poll(&p, 1, LOOK_MS) <= 0)
        return NOTHING;
    ssize_t n = read(in, line, sizeof(line));
    if (n <= 0 || (n == 2 && line[0] == 'q'))
        return LEAVE;
    return n == 2 && line[0] == 't' ? TAKE_OVER : NOTHING;
}

/* Asks the holder to end; its answers so far are in the draft. Not while it writes. */
static void take_over(int fd, FILE *out)
{
    char holder[160], busy[16];
    unsigned pid = 0;
    read_line(fd, 0, holder, sizeof(holder));
    read_line(fd, 2, busy, sizeof(busy));
    if (*busy)
        fprintf(out, "Not now: it is at work there and asks nothing.\n");
    else if (sscanf(holder, "process %u on ", &pid) != 1 || pid < 2 || pid > INT_MAX ||
             kill((pid_t)pid, SIGTERM) < 0)
        fprintf(out, "It cannot be ended: %s\n", holder);
}

int hx_setup_watch(struct hx_setup *s, int in, FILE *out, struct hx_error *err)
{
    char holder[160], shown[160] = "", screen[160];
    int fd = open_lock(s, err), r;
    if (fd < 0)
        return fd;
    read_line(fd, 0, holder, sizeof(holder));
    fprintf(out,
            "\nThe setup is open on another screen (%s) and is answered there.\n"
            "This screen only shows how far it is. t and Enter takes it over to here,\n"
            "q and Enter leaves.\n\n",
            holder);
    while ((r = take(s, fd, err)) == -EBUSY) {
        read_line(fd, 1, screen, sizeof(screen));
        if (*screen && strcmp(screen, shown) != 0) {
            fprintf(out, "There: %s\n", screen);
            memcpy(shown, screen, sizeof(shown));
        }
        fflush(out);
        enum typed typed = next_line(in);
        if (typed == TAKE_OVER)
            take_over(fd, out);
        if (typed == LEAVE) {
            r = hx_fail(err, -ECANCELED, "left");
            break;
        }
    }
    if (r < 0)
        close(fd);
    else
        fprintf(out, "\nThe setup on the other screen has ended.\n");
    fflush(out);
    return r;
}
