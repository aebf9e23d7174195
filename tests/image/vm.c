#include "image/vm.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"

#define LOOK_MS    50
#define MONITOR_MS 20000

/* "folder/name.suffix" */
static void path_of(const struct hx_vm_setup *s, const char *suffix, char *path, size_t size)
{
    snprintf(path, size, "%s/%s.%s", s->folder, s->name, suffix);
}

bool hx_vm_available(struct hx_error *err)
{
    const char *const argv[] = {"qemu-system-x86_64", "--version", NULL};
    struct hx_buf out = HX_BUF_INIT(4096);
    int code = -1;
    int r = hx_child_run(argv, NULL, &out, &code, hx_child_clock() + 30000, err);
    hx_buf_done(&out);
    if (!r && code)
        hx_fail(err, -EIO, "qemu-system-x86_64 --version ends with %d", code);
    return !r && !code;
}

/* Variables of the firmware belong to the machine, not to one start of it. */
static int copy_vars(const struct hx_vm_setup *s, struct hx_error *err)
{
    char path[512];
    path_of(s, "vars", path, sizeof(path));
    if (!s->firmware || access(path, F_OK) == 0)
        return 0;
    char *data;
    size_t len;
    int r = hx_file_read(s->firmware_vars, 8 << 20, &data, &len, err);
    if (r)
        return r;
    r = hx_file_replace(path, data, len, err);
    free(data);
    return r;
}

/* What QEMU itself said, at most the last 300 bytes. */
static void qemu_said(const struct hx_vm_setup *s, char *text, size_t size)
{
    char path[512];
    path_of(s, "log", path, sizeof(path));
    char *data;
    size_t len;
    text[0] = '\0';
    if (hx_file_read(path, 1 << 20, &data, &len, NULL))
        return;
    snprintf(text, size, "%s", data + (len > 300 ? len - 300 : 0));
    free(data);
}

void hx_vm_drain(struct hx_vm *vm)
{
    char block[4096];
    ssize_t n;
    while (vm->console_fd >= 0 &&
           (n = recv(vm->console_fd, block, sizeof(block), MSG_DONTWAIT)) > 0) {
        if (vm->console)
            vm->console(vm->console_ctx, block, (size_t)n);
    }
}

static int take_serial(struct hx_vm *vm, struct hx_error *err)
{
    char block[16384];
    hx_vm_drain(vm);
    for (;;) {
        ssize_t n = read(vm->log_fd, block, sizeof(block));
        if (n < 0)
            return hx_fail_errno(err, errno, "machine %s: serial log", vm->setup->name);
        if (n == 0)
            return 0;
        int r = hx_serial_feed(&vm->serial, block, (size_t)n, err);
        if (r)
            return hx_wrap(err, r, "machine %s", vm->setup->name);
    }
}

int hx_vm_start(struct hx_vm *vm, const struct hx_vm_setup *setup, struct hx_error *err)
{
    *vm = (struct hx_vm){.setup = setup, .log_fd = -1, .console_fd = -1};
    hx_serial_init(&vm->serial);
    struct hx_vm_args args = {0};
    int r = hx_vm_args_make(setup, &args, err);
    if (!r)
        r = copy_vars(setup, err);
    char path[512], log[512];
    if (!r) {
        /* The log grows over all starts of one machine; this start reads its own part. */
        path_of(setup, "serial", path, sizeof(path));
        vm->log_fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
        if (vm->log_fd < 0 || lseek(vm->log_fd, 0, SEEK_END) < 0)
            r = hx_fail_errno(err, errno, "%s", path);
    }
    if (!r) {
        path_of(setup, "log", log, sizeof(log));
        path_of(setup, "pid", path, sizeof(path));
        vm->started = hx_child_clock();
        r = hx_child_start(&vm->qemu, (const char *const *)args.v, log, path, err);
    }
    hx_vm_args_free(&args);
    /* QEMU has no option for it; the firmware is far from looking at the card. */
    if (!r && setup->network && setup->cable_out)
        r = hx_vm_monitor(vm, "set_link card0 off", NULL, err);
    if (r)
        hx_vm_close(vm);
    return r ? hx_wrap(err, r, "machine %s", setup->name) : 0;
}

static int ended(struct hx_vm *vm, const char *wanted, struct hx_error *err)
{
    char how[64], said[320];
    hx_child_describe(&vm->qemu, how, sizeof(how));
    qemu_said(vm->setup, said, sizeof(said));
    struct hx_buf tail = HX_BUF_INIT(1 << 20);
    const char *lines = hx_serial_tail(&vm->serial, 3, &tail, NULL) ? "" : hx_buf_cstr(&tail);
    size_t len = tail.len;
    int r = hx_fail(err, -EPIPE,
                    "machine %s: QEMU ended (%s) before '%s' came; it said: %s; last of the "
                    "serial log: %s",
                    vm->setup->name, how, wanted, said, lines + (len > 300 ? len - 300 : 0));
    hx_buf_done(&tail);
    return r;
}

static int too_late(struct hx_vm *vm, const char *wanted, struct hx_error *err)
{
    struct hx_buf tail = HX_BUF_INIT(HX_SERIAL_MAX);
    const char *lines = hx_serial_tail(&vm->serial, 6, &tail, NULL) ? "" : hx_buf_cstr(&tail);
    size_t len = tail.len;
    int r = hx_fail(err, -ETIMEDOUT, "machine %s: '%s' did not come within %.0f s; last lines: %s",
                    vm->setup->name, wanted, (double)hx_vm_age(vm) / 1000,
                    lines + (len > 600 ? len - 600 : 0));
    hx_buf_done(&tail);
    return r;
}

/* Said every 21 s by a kernel whose second processor never gets a timer interrupt again. QEMU 7.2
 * leaves one in service for ever now and then (docs/image-tests.md); once may be a host in need. */
#define LOST_TIMER "kthread timer wakeup didn't happen"

static bool lost_timer(struct hx_vm *vm)
{
    size_t behind = vm->read_to;
    return hx_serial_find(&vm->serial, LOST_TIMER, behind, &behind) &&
           hx_serial_find(&vm->serial, LOST_TIMER, behind, &behind);
}

int hx_vm_wait_any(struct hx_vm *vm, const char *const *markers, unsigned n, unsigned *which,
                   int64_t deadline, struct hx_error *err)
{
    for (;;) {
        /* Its end is looked at before the log: what it wrote last is then in there. */
        bool alive = hx_child_alive(&vm->qemu);
        int r = take_serial(vm, err);
        if (r)
            return r;
        size_t first = SIZE_MAX;
        for (unsigned i = 0; i < n; i++) {
            size_t behind;
            if (hx_serial_find(&vm->serial, markers[i], vm->read_to, &behind) && behind < first) {
                first = behind;
                *which = i;
            }
        }
        if (first != SIZE_MAX) {
            vm->read_to = first;
            return 0;
        }
        if (!alive)
            return ended(vm, n ? markers[0] : "", err);
        if (lost_timer(vm))
            return hx_fail(err, -EIO,
                           "machine %s: the emulator lost the timer of a processor before '%s' "
                           "came: that is no fault of what is tested; start the scenario again",
                           vm->setup->name, n ? markers[0] : "");
        if (!hx_child_sleep(LOOK_MS, deadline))
            return too_late(vm, n ? markers[0] : "", err);
    }
}

int hx_vm_wait(struct hx_vm *vm, const char *marker, int64_t deadline, struct hx_error *err)
{
    unsigned which;
    return hx_vm_wait_any(vm, &marker, 1, &which, deadline, err);
}

int hx_vm_wait_exit(struct hx_vm *vm, int64_t deadline, struct hx_error *err)
{
    while (hx_child_alive(&vm->qemu)) {
        int r = take_serial(vm, err);
        if (r)
            return r;
        if (!hx_child_sleep(LOOK_MS, deadline))
            return too_late(vm, "end of QEMU", err);
    }
    int r = take_serial(vm, err);
    if (r)
        return r;
    if (vm->qemu.status)
        return ended(vm, "an orderly end", err);
    return 0;
}

static int connect_to(struct hx_vm *vm, const char *suffix, struct hx_error *err)
{
    char path[512];
    path_of(vm->setup, suffix, path, sizeof(path));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%.107s", path);
    int64_t deadline = hx_child_clock() + MONITOR_MS;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return hx_fail_errno(err, errno, "socket");
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
            return fd;
        int why = errno;
        close(fd);
        /* QEMU makes the socket a moment after it was started. */
        if (!hx_child_alive(&vm->qemu))
            return ended(vm, "its sockets", err);
        if ((why != ENOENT && why != ECONNREFUSED && why != EAGAIN) ||
            !hx_child_sleep(LOOK_MS, deadline))
            return hx_fail_errno(err, why, "%s", path);
    }
}

static int write_all(int fd, const char *text, const char *what, struct hx_error *err)
{
    size_t left = strlen(text);
    while (left) {
        ssize_t n = send(fd, text, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hx_fail_errno(err, errno, "%s", what);
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

int hx_vm_type(struct hx_vm *vm, const char *text, struct hx_error *err)
{
    if (vm->console_fd < 0) {
        int fd = connect_to(vm, "tty", err);
        if (fd < 0)
            return fd;
        vm->console_fd = fd;
    }
    hx_vm_drain(vm);
    return write_all(vm->console_fd, text, "serial port", err);
}

/* Reads up to and including the monitor's prompt. */
static int read_prompt(struct hx_vm *vm, int fd, struct hx_buf *b, struct hx_error *err)
{
    static const char prompt[] = "(qemu) ";
    int64_t deadline = hx_child_clock() + MONITOR_MS;
    for (;;) {
        if (b->len >= strlen(prompt) &&
            !memcmp(b->data + b->len - strlen(prompt), prompt, strlen(prompt)))
            return 0;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - hx_child_clock();
        if (left <= 0)
            return hx_fail(err, -ETIMEDOUT, "machine %s: the monitor does not answer",
                           vm->setup->name);
        if (poll(&p, 1, (int)left) <= 0)
            continue;
        char block[4096];
        ssize_t n = read(fd, block, sizeof(block));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hx_fail(err, -EPIPE, "machine %s: the monitor hung up", vm->setup->name);
        if (hx_buf_append(b, block, (size_t)n))
            return hx_fail(err, -EMSGSIZE, "machine %s: the monitor's answer is too long",
                           vm->setup->name);
    }
}

int hx_vm_monitor(struct hx_vm *vm, const char *command, struct hx_buf *answer,
                  struct hx_error *err)
{
    int fd = connect_to(vm, "mon", err);
    if (fd < 0)
        return fd;
    struct hx_buf b = HX_BUF_INIT(256 << 10);
    int r = read_prompt(vm, fd, &b, err);
    hx_buf_clear(&b);
    if (!r)
        r = write_all(fd, command, "monitor", err);
    if (!r)
        r = write_all(fd, "\n", "monitor", err);
    if (!r)
        r = read_prompt(vm, fd, &b, err);
    close(fd);
    if (!r && answer) {
        /* The line editor paints the echo with terminal sequences; the answer begins in the next
         * line. */
        struct hx_serial clean;
        hx_serial_init(&clean);
        r = hx_serial_feed(&clean, b.data, b.len, err);
        const uint8_t *line = clean.text.len ? memchr(clean.text.data, '\n', clean.text.len) : NULL;
        hx_buf_clear(answer);
        if (line) {
            size_t n = clean.text.len - (size_t)(line + 1 - clean.text.data);
            size_t prompt = strlen("(qemu) ");
            hx_buf_append(answer, line + 1, n >= prompt ? n - prompt : 0);
        }
        if (answer->failed)
            r = hx_fail(err, -EMSGSIZE, "machine %s: answer too long", vm->setup->name);
        hx_serial_done(&clean);
    }
    hx_buf_done(&b);
    return r;
}

int hx_vm_ssh_port(struct hx_vm *vm, unsigned *port, struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(64 << 10);
    int r = hx_vm_monitor(vm, "info usernet", &b, err);
    if (!r) {
        const char *text = hx_buf_cstr(&b);
        const char *row = text ? strstr(text, "HOST_FORWARD") : NULL;
        unsigned n;
        if (row && sscanf(row, "HOST_FORWARD] %*d %*s %u", &n) == 1 && n > 0 && n < 65536)
            *port = n;
        else
            r = hx_fail(err, -ENOENT, "machine %s: no forwarded port in: %.300s", vm->setup->name,
                        text ? text : "");
    }
    hx_buf_done(&b);
    return r;
}

void hx_vm_kill(struct hx_vm *vm)
{
    hx_child_kill(&vm->qemu);
}

int64_t hx_vm_age(const struct hx_vm *vm)
{
    return hx_child_clock() - vm->started;
}

void hx_vm_close(struct hx_vm *vm)
{
    hx_child_kill(&vm->qemu);
    if (vm->console_fd >= 0)
        close(vm->console_fd);
    if (vm->log_fd >= 0)
        close(vm->log_fd);
    vm->console_fd = vm->log_fd = -1;
    if (vm->setup) {
        static const char *const sockets[] = {"tty", "mon"};
        for (int i = 0; i < 2; i++) {
            char path[512];
            path_of(vm->setup, sockets[i], path, sizeof(path));
            unlink(path);
        }
    }
    hx_serial_done(&vm->serial);
}
