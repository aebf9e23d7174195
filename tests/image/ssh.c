#include "image/ssh.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"

#define PENALTY_MS 120000
#define MAX_ARGS   40
/* Connections that wait for the first line, and how far apart they begin. */
#define N_PROBES 5
#define PROBE_MS 2000
#define SHARE_MS 60000

struct command {
    const char *argv[MAX_ARGS];
    unsigned n;
    char text[6][300];
};

static void add(struct command *c, const char *arg)
{
    if (c->n + 1 < MAX_ARGS)
        c->argv[c->n++] = arg;
}

static void add_option(struct command *c, const char *option)
{
    add(c, "-o");
    add(c, option);
}

/* Everything up to the options of one use. */
static void begin(struct command *c, const struct hx_ssh *ssh, const char *level)
{
    *c = (struct command){.n = 0};
    snprintf(c->text[0], sizeof(c->text[0]), "UserKnownHostsFile=%s/known", ssh->folder);
    snprintf(c->text[1], sizeof(c->text[1]), "%u", ssh->port);
    snprintf(c->text[2], sizeof(c->text[2]), "%s/key", ssh->folder);
    static const char *const fixed[] = {"ssh", "-F", "none", "-a", "-x", "-T"};
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        add(c, fixed[i]);
    /* The first connection learns the host key, a change of it later is an error. */
    static const char *const options[] = {"StrictHostKeyChecking=accept-new",
                                          "GlobalKnownHostsFile=/dev/null",
                                          "IdentityAgent=none",
                                          "IdentitiesOnly=yes",
                                          "ConnectTimeout=120",
                                          "BatchMode=yes"};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        add_option(c, options[i]);
    add_option(c, level);
    add_option(c, c->text[0]);
    add(c, "-p");
    add(c, c->text[1]);
}

/* Who logs in, by the test's key; what follows is the command. */
static void end(struct command *c, const char *user)
{
    const char *const words[] = {"-i", c->text[2], "-l", user, "127.0.0.1"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        add(c, words[i]);
}

int hx_ssh_make_key(struct hx_ssh *ssh, const char *folder, struct hx_error *err)
{
    char path[256], public_path[264];
    snprintf(ssh->folder, sizeof(ssh->folder), "%s", folder);
    snprintf(path, sizeof(path), "%s/key", ssh->folder);
    snprintf(public_path, sizeof(public_path), "%s.pub", path);
    if (access(path, F_OK) < 0) {
        const char *const argv[] = {"ssh-keygen", "-q",         "-t", "ed25519", "-N", "",
                                    "-C",         "image-test", "-f", path,      NULL};
        struct hx_buf out = HX_BUF_INIT(4096);
        int code = 0;
        int r = hx_child_run(argv, NULL, &out, &code, hx_child_clock() + 60000, err);
        if (!r && code)
            r = hx_fail(err, -EIO, "ssh-keygen ends with %d: %.200s", code, hx_buf_cstr(&out));
        hx_buf_done(&out);
        if (r)
            return r;
    }
    char *text;
    size_t len;
    int r = hx_file_read(public_path, sizeof(ssh->public_key) - 1, &text, &len, err);
    if (r)
        return r;
    text[strcspn(text, "\n")] = '\0';
    snprintf(ssh->public_key, sizeof(ssh->public_key), "%s", text);
    free(text);
    return 0;
}

/* ---- the shared connection ------------------------------------------------------------------- */

static void socket_path(const struct hx_ssh *ssh, char *path, size_t size)
{
    snprintf(path, size, "%s/ssh.%u", ssh->folder, ssh->port);
}

void hx_ssh_close(struct hx_ssh *ssh)
{
    char path[300];
    if (!ssh->master_user)
        return;
    hx_child_kill(&ssh->master);
    ssh->master_user = NULL;
    socket_path(ssh, path, sizeof(path));
    unlink(path);
}

/* Without it every command logs in for itself, so a failure is none. */
static void share(struct hx_ssh *ssh, int64_t deadline)
{
    struct command c;
    struct hx_error ignored;
    char log[300];
    begin(&c, ssh, "LogLevel=ERROR");
    add_option(&c, "ServerAliveInterval=30");
    snprintf(log, sizeof(log), "%s/ssh.log", ssh->folder);
    socket_path(ssh, c.text[4], sizeof(c.text[4]));
    static const char *const options[] = {"-N", "-M", "-S"};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        add(&c, options[i]);
    add(&c, c.text[4]);
    end(&c, ssh->user);
    if (hx_child_start(&ssh->master, c.argv, log, NULL, &ignored))
        return;
    int64_t until = hx_child_within(deadline, SHARE_MS);
    while (access(c.text[4], F_OK) < 0 && hx_child_alive(&ssh->master))
        if (!hx_child_sleep(100, until))
            break;
    ssh->master_user = ssh->user;
}

int hx_ssh_run(const struct hx_ssh *ssh, const char *command, struct hx_buf *out, int *code,
               int64_t deadline, struct hx_error *err)
{
    struct command c;
    begin(&c, ssh, "LogLevel=ERROR");
    /* The client connects for itself if nobody listens on the socket. */
    if (ssh->master_user && !strcmp(ssh->master_user, ssh->user)) {
        socket_path(ssh, c.text[4], sizeof(c.text[4]));
        add(&c, "-S");
        add(&c, c.text[4]);
    }
    end(&c, ssh->user);
    add(&c, command);
    /* The logins that were tried before the key was known count against this address for a while:
     * the server closes the connection before anything was said, so that trying again does nothing
     * twice. */
    int64_t until = hx_child_within(deadline, PENALTY_MS);
    int r;
    const char *said;
    do {
        r = hx_child_run(c.argv, NULL, out, code, deadline, err);
        said = r || *code != 255 ? NULL : hx_buf_cstr(out);
    } while (said && strstr(said, "kex_exchange_identification: Connection closed") &&
             hx_child_sleep(2000, until));
    return r;
}

/* A connection that is under way, -1: none. */
static int begin_probe(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int hx_ssh_wait_banner(const struct hx_ssh *ssh, int64_t deadline, struct hx_error *err)
{
    struct pollfd p[N_PROBES];
    unsigned next = 0;
    bool heard = false;
    for (unsigned i = 0; i < N_PROBES; i++)
        p[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    while (!heard) {
        if (p[next].fd >= 0)
            close(p[next].fd);
        p[next].fd = begin_probe(ssh->port);
        next = (next + 1) % N_PROBES;
        int64_t until = hx_child_within(deadline, PROBE_MS);
        for (int64_t left; !heard && (left = until - hx_child_clock()) > 0;) {
            if (poll(p, N_PROBES, (int)left) <= 0)
                continue;
            for (unsigned i = 0; i < N_PROBES; i++) {
                char text[4] = "";
                if (p[i].fd < 0 || !p[i].revents)
                    continue;
                heard |= read(p[i].fd, text, 4) == 4 && !memcmp(text, "SSH-", 4);
                close(p[i].fd);
                p[i].fd = -1;
            }
        }
        if (!heard && hx_child_clock() >= deadline)
            break;
    }
    for (unsigned i = 0; i < N_PROBES; i++)
        if (p[i].fd >= 0)
            close(p[i].fd);
    return heard ? 0 : hx_fail(err, -ETIMEDOUT, "port 22 said nothing before the deadline");
}

int hx_ssh_wait(struct hx_ssh *ssh, int64_t deadline, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int code = -1;
    int r;
    hx_ssh_close(ssh);
    for (;;) {
        r = hx_ssh_run(ssh, "true", &out, &code, hx_child_within(deadline, 60000), err);
        if (!r && code != 255)
            break;
        if (!hx_child_sleep(500, deadline)) {
            r = hx_fail(err, -ETIMEDOUT, "no login by SSH as %s; the client said last: %.300s",
                        ssh->user, hx_buf_cstr(&out));
            break;
        }
    }
    hx_buf_done(&out);
    if (!r && ssh->share)
        share(ssh, deadline);
    return r;
}

int hx_ssh_methods(const struct hx_ssh *ssh, const char *user, struct hx_buf *out, int64_t deadline,
                   struct hx_error *err)
{
    struct command c;
    begin(&c, ssh, "LogLevel=ERROR");
    add_option(&c, "PubkeyAuthentication=no");
    add(&c, "-l");
    add(&c, user);
    add(&c, "127.0.0.1");
    add(&c, "true");
    int code = -1;
    int r = hx_child_run(c.argv, NULL, out, &code, deadline, err);
    if (!r && code != 255)
        r = hx_fail(err, -EACCES, "%s got in without a key", user);
    return r;
}

int hx_ssh_tunnel(const struct hx_ssh *ssh, struct hx_child *tunnel, unsigned local, const char *to,
                  const char *log, struct hx_error *err)
{
    struct command c;
    /* Refused destinations are said at this level. */
    begin(&c, ssh, "LogLevel=INFO");
    add_option(&c, "ExitOnForwardFailure=yes");
    snprintf(c.text[3], sizeof(c.text[3]), "127.0.0.1:%u:%s", local, to);
    static const char *const options[] = {"-N", "-L"};
    add(&c, options[0]);
    add(&c, options[1]);
    add(&c, c.text[3]);
    end(&c, ssh->user);
    return hx_child_start(tunnel, c.argv, log, NULL, err);
}
