/* Scenarios on the finished files and on the installed box. */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/scene.h"

/* Runs a program of the tree and wants status 0; its last lines are the reason otherwise. */
static int run_script(struct hx_scene *s, const char *const *argv, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(4 << 20);
    int code = -1;
    int r = hx_child_run(argv, NULL, &out, &code, s->deadline, err);
    if (!r && code) {
        const char *said = hx_buf_cstr(&out);
        size_t len = out.len;
        r = hx_fail(err, -EBADMSG, "%s ends with %d: %s", argv[0], code,
                    !said ? "" : said + (len > 600 ? len - 600 : 0));
    }
    hx_buf_done(&out);
    return r;
}

static int measure_file(const struct hx_scene *s, const char *name, double limit,
                        struct hx_error *err)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof(path), "%s/image/work/out/%s", s->build, name);
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "%s", path);
    hx_scene_target(name, (double)st.st_size / 1e6, limit, "MB");
    return 0;
}

/* What is handed out is packed by xz, which takes minutes; zstd comes near from above. */
static int measure_packed(struct hx_scene *s, struct hx_error *err)
{
    char command[400];
    const char *const argv[] = {"sh", "-c", command, NULL};
    struct hx_buf out = HX_BUF_INIT(4096);
    int code = -1;
    snprintf(command, sizeof(command), "zstd -q -9 -c '%s' | wc -c", s->stick);
    int r = hx_child_run(argv, NULL, &out, &code, s->deadline, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    double bytes = said ? strtod(said, NULL) : 0;
    if (!r && (code || bytes < 1e6))
        r = hx_fail(err, -EIO, "zstd: %.200s", said ? said : "");
    if (!r)
        hx_scene_target("image, compressed", bytes / 1e6, 120, "MB");
    hx_buf_done(&out);
    return r;
}

/* B2, B3. */
int hx_scene_audit(struct hx_scene *s, struct hx_error *err)
{
    const char *const argv[] = {"image/audit.py", s->build, NULL};
    int r = run_script(s, argv, err);
    if (!r)
        r = measure_file(s, "initrd", 2, err);
    if (!r)
        r = measure_file(s, "root.erofs", 256, err);
    return r ? r : measure_packed(s, err);
}

/* B1. */
int hx_scene_repro(struct hx_scene *s, struct hx_error *err)
{
    char build[300];
    snprintf(build, sizeof(build), "BUILD=%s", s->build);
    const char *const argv[] = {"make", "--no-print-directory", build, "repro", NULL};
    return run_script(s, argv, err);
}

/* I1, I2, second half: the drive boots without the stick, and the answers are in force. */
int hx_scene_first_boot(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_scene_boot_installed(s, "firstboot", err);
    if (r)
        return r;
    static const struct hx_check rows[] = {
        {"end of the start", "systemctl is-system-running --wait", "running\n"},
        {"failed units", "systemctl --failed --no-legend --plain", ""},
        {"host name", "hostname", "hx-test\n"},
        {"root file system", "findmnt -no FSTYPE,OPTIONS / | cut -d, -f1", "erofs ro\n"},
        {"state", "findmnt -no FSTYPE /var", "ext4\n"},
        {"models", "findmnt -no FSTYPE /srv/models", "ext4\n"},
        {"sockets",
         "ss -Hltun | awk '$5 !~ /^(127\\.|\\[::1\\])/ {print $1, $5}' | grep -v ':68$' | sort",
         "tcp 0.0.0.0:22\ntcp [::]:22\n"},
        {"writing to the root by root",
         "hx root sh -c '! mount -o remount,rw / 2>/dev/null && ! touch /usr/x 2>/dev/null'", NULL},
        {"writing to the root", "! touch /usr/x 2>/dev/null", NULL},
        {"status", "hx status >/dev/null; test $? -lt 64", NULL},
        /* A wizard that comes back is "activating" most of the time. */
        {"end of the wizard",
         "timeout 60 sh -c 'while systemctl is-active hx-setup@tty1 hx-setup@ttyS0 | grep -qx "
         "activating; "
         "do sleep 1; done'; systemctl is-active hx-setup@tty1 hx-setup@ttyS0; true",
         "inactive\ninactive\n"},
        {"status on the consoles",
         "timeout 60 sh -c 'until systemctl -q is-active hx-console@tty1 hx-console@ttyS0; "
         "do sleep 1; done'; systemctl is-active hx-console@tty1 hx-console@ttyS0",
         "active\nactive\n"},
        {"demo model",
         "timeout 120 sh -c 'until test -e /srv/models/current; do sleep 1; done'; "
         "readlink /srv/models/current",
         "hx-demo\n"},
        {"its answer",
         "for i in $(seq 60); do exec 3<>/dev/tcp/127.0.0.1/8000 && "
         "printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3 | grep ' 200 ' && exit 0; "
         "sleep 2; done; exit 1",
         NULL},
        {"root's work for admin", "hx root id -u", "0\n"},
        {"root's work under its other name", "sudo -n sh -c 'id -un'", "root\n"},
        {"its exit status", "hx root sh -c 'exit 9'; echo $?", "9\n"},
        {"settings seen by admin", "hx-setup list | grep -c answered", NULL},
    };
    r = hx_scene_checks(s, rows, sizeof(rows) / sizeof(rows[0]), err);
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    /* Without the engine: its memory is the model's. */
    if (!r)
        r = hx_scene_admin(s, "hx root systemctl stop hx-engine.path hx-engine.socket hx-engine",
                           &out, err);
    if (!r)
        r = hx_scene_admin(
            s, "awk '/MemTotal/ {t=$2} /MemAvailable/ {print (t-$2)*1.024e-3}' /proc/meminfo", &out,
            err);
    if (!r)
        hx_scene_target("memory in use when idle", strtod((const char *)out.data, NULL), 200, "MB");
    hx_buf_done(&out);
    /* The box in use, for the scenarios of updates and of the data partitions. */
    if (!r)
        r = hx_scene_power_off(s, err);
    char settled[512];
    snprintf(settled, sizeof(settled), "%s/settled.disk", s->work);
    if (!r && rename(s->disk, settled) < 0)
        r = hx_fail_errno(err, errno, "%s", settled);
    return r;
}

/* Connects to a port of the host that leads to `port` of the guest, and asks like a web client. *n:
 * bytes that came. */
static int probe(unsigned host_port, size_t *n, struct hx_error *err)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)host_port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *n = 0;
    if (fd < 0)
        return hx_fail_errno(err, errno, "socket");
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        close(fd);
        return hx_fail_errno(err, errno, "forwarded port %u", host_port);
    }
    static const char ask[] = "GET / HTTP/1.0\r\n\r\n";
    (void)!send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char block[256];
    if (poll(&p, 1, 5000) > 0) {
        ssize_t got = read(fd, block, sizeof(block));
        *n = got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return 0;
}

/* A second forward for the scan: restricted networks allow those that the host asks for. */
static int forward(struct hx_scene *s, unsigned guest_port, unsigned *host_port,
                   struct hx_error *err)
{
    char command[96], row[32];
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    snprintf(command, sizeof(command), "hostfwd_add net0 tcp:127.0.0.1:0-:%u", guest_port);
    snprintf(row, sizeof(row), " %u ", guest_port);
    int r = hx_vm_monitor(&s->vm, command, NULL, err);
    if (!r)
        r = hx_vm_monitor(&s->vm, "info usernet", &out, err);
    const char *text = r ? NULL : hx_buf_cstr(&out);
    *host_port = 0;
    for (const char *p = text; p && (p = strstr(p, "HOST_FORWARD]")); p++) {
        unsigned from, to;
        if (sscanf(p, "HOST_FORWARD] %*d %*s %u %*s %u", &from, &to) == 2 && to == guest_port)
            *host_port = from;
    }
    if (!r && !*host_port)
        r = hx_fail(err, -EIO, "port %u could not be forwarded: %.300s", guest_port,
                    text ? text : "");
    hx_buf_done(&out);
    return r;
}

static int scan(struct hx_scene *s, struct hx_error *err)
{
    static const unsigned ports[] = {21,  23,  25,   53,   80,   111,  139,  443,
                                     445, 631, 2049, 5355, 6443, 8000, 8080, 9090};
    size_t n;
    int r = probe(s->ssh.port, &n, err);
    /* The probe has to see what is open, or its silence says nothing. */
    if (!r && !n)
        r = hx_fail(err, -EBADMSG, "port 22 does not answer the probe");
    for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]) && !r; i++) {
        unsigned host_port;
        r = forward(s, ports[i], &host_port, err);
        if (!r)
            r = probe(host_port, &n, err);
        if (!r && n)
            r = hx_fail(err, -EBADMSG, "port %u answers from outside", ports[i]);
    }
    return r;
}

/* Nobody gets in without a key, whatever the account. */
static int refuse_passwords(struct hx_scene *s, struct hx_error *err)
{
    static const char *const users[] = {"root", "admin", "tunnel", "hx-engine", "nobody", "pi"};
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int r = 0;
    for (size_t i = 0; i < sizeof(users) / sizeof(users[0]) && !r; i++) {
        r = hx_ssh_methods(&s->ssh, users[i], &out, s->deadline, err);
        const char *said = r ? "" : hx_buf_cstr(&out);
        if (!r && (!said || !strstr(said, "Permission denied (publickey)")))
            r = hx_fail(err, -EBADMSG, "the server offers %s more than keys: %.300s", users[i],
                        said ? said : "");
    }
    hx_buf_done(&out);
    return r;
}

int hx_scene_free_port(unsigned *port, struct hx_error *err)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int r = 0;
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        r = hx_fail_errno(err, errno, "a free port");
    else
        *port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return r;
}

/* The account for the tunnel: no shell, no other destination. */
static int check_tunnel(struct hx_scene *s, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int code = -1;
    s->ssh.user = "tunnel";
    int r = hx_ssh_run(&s->ssh, "echo got-a-shell", &out, &code, s->deadline, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    if (!r && (code == 0 || code == 255 || !said || strstr(said, "got-a-shell")))
        r = hx_fail(err, -EBADMSG, "tunnel: a command ends with %d: %.200s", code,
                    said ? said : "");
    char log[512];
    snprintf(log, sizeof(log), "%s/tunnel.log", s->work);
    unlink(log);
    struct hx_child tunnel = {0};
    unsigned local = 0;
    if (!r)
        r = hx_scene_free_port(&local, err);
    if (!r)
        r = hx_ssh_tunnel(&s->ssh, &tunnel, local, "127.0.0.1:22", log, err);
    size_t n = 0;
    struct hx_error ignored;
    /* The client prints the refusal: the attempt has reached the server. On a busy host that takes
     * its time. */
    int64_t until = hx_child_within(s->deadline, 300000);
    char *text = NULL;
    size_t len;
    bool refused = false;
    while (!r && !refused) {
        if (probe(local, &n, &ignored) == 0 && n)
            r = hx_fail(err, -EBADMSG, "tunnel: port 22 of the box was forwarded");
        free(text);
        text = NULL;
        if (!r)
            r = hx_file_read(log, 65536, &text, &len, err);
        refused = !r && strstr(text, "administratively prohibited");
        if (!r && !refused && !hx_child_sleep(1000, until))
            r = hx_fail(err, -EBADMSG, "tunnel: no refusal of another destination in: %.300s",
                        text);
    }
    free(text);
    hx_child_kill(&tunnel);
    hx_buf_done(&out);
    s->ssh.user = "admin";
    return r;
}

/* F2. */
int hx_scene_secure(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_scene_boot_installed(s, "secure", err);
    if (!r)
        r = refuse_passwords(s, err);
    if (!r)
        r = check_tunnel(s, err);
    if (!r)
        r = scan(s, err);
    return r;
}

/* The second entry of the boot menu: recovery without the network, and from there back. */
int hx_scene_recovery(struct hx_scene *s, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int code, r = hx_scene_boot_installed(s, "recovery", err);
    if (!r)
        r = hx_scene_admin(s,
                           "hx root sh -c 'bootctl set-oneshot "
                           "\"$(basename /efi/EFI/Linux/hx170_*.efi)@recovery\"'",
                           &out, err);
    /* The connection goes with the machine. */
    if (!r)
        r = hx_ssh_run(&s->ssh, "hx root systemctl reboot", &out, &code, s->deadline, err);
    hx_buf_done(&out);
    if (!r)
        r = hx_vm_wait(&s->vm, "hx170: recovery.", s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "Number:", s->deadline, err);
    if (!r)
        r = hx_vm_type(&s->vm, "7\n", err);
    if (!r)
        r = hx_vm_wait(&s->vm, "A number from 1 to 5", s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "Number:", s->deadline, err);
    if (!r)
        r = hx_vm_type(&s->vm, "1\n", err);
    if (!r)
        r = hx_vm_wait(&s->vm, "The machine starts again", s->deadline, err);
    /* The status on the console is the end of a whole start. Reading on keeps the port from filling
     * up. */
    if (!r)
        r = hx_vm_wait(&s->vm, "hx170 hx-test", s->deadline, err);
    return r;
}
