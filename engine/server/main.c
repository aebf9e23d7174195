/* hx-engine: options, listening socket, loading, signals. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "base/conf.h"
#include "base/file.h"
#include "base/log.h"
#include "server/prep.h"

#define CONF_FILE   "/etc/hx170/engine.conf"
#define CONF_FOLDER "/run/hx170/engine.conf.d"

static struct hx_server server;

static int fail(int code, const struct hx_error *err)
{
    hx_log(HX_LOG_ERROR, "server", "%s", err->text);
    return code;
}

/* ---- options --------------------------------------------------------------------------------- */

static void help(void)
{
    printf("hx-engine %s: serves a model over HTTP\n\n"
           "  --config=FILE        read this file only (default " CONF_FILE "\n"
           "                       and " CONF_FOLDER "/*.conf)\n"
           "  --section.key=value  set one option\n"
           "  --dump-config        print the effective configuration\n"
           "  --help, --version\n\nOptions and their defaults:\n\n",
           HX_BUILD_VERSION);
    hx_conf_defaults(hx_server_option_rows, hx_server_n_option_rows, &server.opt);
    hx_conf_dump(hx_server_option_rows, hx_server_n_option_rows, &server.opt, true, stdout);
}

static int read_files(const char *config, struct hx_error *err)
{
    const struct hx_conf_option *rows = hx_server_option_rows;
    int n = hx_server_n_option_rows;
    if (config)
        return hx_conf_file(rows, n, &server.opt, config, err);
    int r = hx_conf_file(rows, n, &server.opt, CONF_FILE, err);
    if (r < 0 && r != -ENOENT)
        return r;
    return hx_conf_folder(rows, n, &server.opt, CONF_FOLDER, err);
}

/* 0: go on; 1: done; negative: a usage error. */
static int read_options(int argc, char **argv, struct hx_error *err)
{
    const char *config = NULL;
    bool dump = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help();
            return 1;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("hx-engine %s\n", HX_BUILD_VERSION);
            return 1;
        }
        if (strncmp(argv[i], "--config=", 9) == 0)
            config = argv[i] + 9;
    }
    hx_conf_defaults(hx_server_option_rows, hx_server_n_option_rows, &server.opt);
    int r = read_files(config, err);
    for (int i = 1; i < argc && r >= 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            continue;
        if (strcmp(argv[i], "--dump-config") == 0) {
            dump = true;
            continue;
        }
        r = hx_conf_argument(hx_server_option_rows, hx_server_n_option_rows, &server.opt, argv[i],
                             err);
        if (r == 0)
            r = hx_fail(err, -EINVAL, "unknown argument '%.80s'; see --help", argv[i]);
    }
    if (r >= 0 && dump)
        hx_conf_dump(hx_server_option_rows, hx_server_n_option_rows, &server.opt, false, stdout);
    return r < 0 ? r : dump;
}

static int read_key(struct hx_error *err)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    char path[PATH_MAX];
    struct stat st;
    char *text;
    size_t len;
    snprintf(path, sizeof(path), "%s/api_key", folder ? folder : "");
    bool credential = folder && !server.opt.key_file[0] && access(path, F_OK) == 0;
    if (!credential) {
        if (!server.opt.key_file[0])
            return 0;
        snprintf(path, sizeof(path), "%s", server.opt.key_file);
        if (stat(path, &st) == 0 && (st.st_mode & 077))
            return hx_fail(err, -EPERM, "key file '%s' must have mode 0600", path);
    }
    int r = hx_file_read(path, sizeof(server.key) - 1, &text, &len, err);
    if (r < 0)
        return r;
    len = strcspn(text, "\r\n");
    memcpy(server.key, text, len);
    explicit_bzero(text, len);
    free(text);
    return len ? 0 : hx_fail(err, -EINVAL, "key file '%s' is empty", path);
}

/* ---- socket ---------------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    return a->sa_family == AF_UNIX;
}

static int bind_socket(struct hx_error *err)
{
    char host[128];
    snprintf(host, sizeof(host), "%s", server.opt.listen);
    char *port = strrchr(host, ':'), *name = host;
    if (!port)
        return hx_fail(err, -EINVAL, "[server] listen must be address:port, not '%s'", host);
    *port++ = '\0';
    if (name[0] == '[' && port - name > 2 && port[-2] == ']') {
        port[-2] = '\0';
        name++;
    }
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *a = NULL;
    int r = getaddrinfo(*name ? name : NULL, port, &hints, &a), fd, one = 1;
    if (r != 0)
        return hx_fail(err, -EINVAL, "[server] listen '%s': %s", server.opt.listen,
                       gai_strerror(r));
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        /* Accepted sockets inherit it. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 256) < 0) {
        r = hx_fail_errno(err, errno, "cannot listen on '%s'", server.opt.listen);
        if (fd >= 0)
            close(fd);
    } else {
        r = fd;
    }
    freeaddrinfo(a);
    return r;
}

/* A socket from the service manager, else our own. */
static int open_socket(struct hx_error *err)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    int fd = sd_listen_fds(1) >= 1 ? SD_LISTEN_FDS_START : bind_socket(err);
    if (fd < 0)
        return fd;
    if (getsockname(fd, (struct sockaddr *)(void *)&a, &len) < 0 ||
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
        int e = errno;
        close(fd);
        return hx_fail_errno(err, e, "listening socket");
    }
    if (!is_loopback((struct sockaddr *)(void *)&a) && !server.key[0] &&
        !server.opt.allow_unauthenticated) {
        close(fd);
        return hx_fail(err, -EPERM,
                       "[server] listen is not a loopback address: set [server] key_file, or "
                       "allow_unauthenticated = yes");
    }
    return fd;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *run_http(void *arg)
{
    pthread_setname_np(pthread_self(), "hx-http");
    hx_http_run(arg);
    return NULL;
}

static void on_wake(void *user)
{
    (void)user;
    hx_http_wake(server.http);
}

static void on_progress(void *user, const char *stage, double fraction)
{
    (void)user;
    __atomic_store_n(&server.progress, (int)(fraction * 1000), __ATOMIC_RELAXED);
    sd_notifyf(0, "STATUS=Loading: %s, %d %%\nEXTEND_TIMEOUT_USEC=60000000", stage,
               (int)(fraction * 100));
}

/* "auto" or a size. */
static int engram_cache(const char *text, int64_t *bytes, struct hx_error *err)
{
    const struct hx_conf_option row = {
        .section = "engram", .key = "cache", .type = HX_CONF_SIZE, .max = 1e15, .standard = "0"};
    *bytes = -1;
    return strcmp(text, "auto") == 0
               ? 0
               : hx_conf_set(&row, 1, bytes, "engram", "cache", text, "configuration", err);
}

static int load(struct hx_error *err)
{
    const struct hx_server_options *o = &server.opt;
    int64_t cache = -1;
    int r = engram_cache(o->engram_cache, &cache, err);
    if (r < 0)
        return r;
    struct hx_engine_options e = {.model_dir = o->model,
                                  .backend = o->backend,
                                  .mode = HX_MODE_W8A16,
                                  .max_sequences = (int)o->max_sequences,
                                  .max_context = o->max_context,
                                  .kv_tokens = o->kv_tokens,
                                  .prefill_chunk = (int)o->prefill_chunk,
                                  .drafts = (int)o->drafts,
                                  .gate = o->gate,
                                  .queue = (int)o->queue,
                                  .engram_paths = o->engram_paths,
                                  .engram_buffered = o->engram_mode == HX_ENGRAM_MODE_BUFFERED,
                                  .engram_hot = o->engram_hot,
                                  .engram_slow_ms = (int)(o->engram_slow / 1000),
                                  .engram_cache = cache,
                                  .progress = on_progress,
                                  .wake = on_wake};
    char *path = hx_path_join(o->model, "tokenizer.json");
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    r = hx_tokenizer_open(path, &server.tokenizer, err);
    free(path);
    if (r == 0)
        r = hx_engine_open(&e, &server.engine, err);
    if (r == 0)
        r = hx_prep_open(&server, 2, (int)o->queue + (int)o->max_sequences, &server.prep, err);
    if (r < 0)
        return r;
    hx_engine_info(server.engine, &server.info);
    server.n_end_tokens = hx_chat_end_tokens(
        server.tokenizer, server.end_token, sizeof(server.end_token) / sizeof(server.end_token[0]));
    __atomic_store_n(&server.state, HX_SERVER_READY, __ATOMIC_RELEASE);
    return 0;
}

/* Ends the process when a stop signal comes before there is something to drain, and at the second
 * signal. */
static void *watch_signals(void *arg)
{
    sigset_t *set = arg;
    int sig;
    struct timespec t;
    sigwait(set, &sig);
    sd_notify(0, "STOPPING=1");
    if (__atomic_load_n(&server.state, __ATOMIC_ACQUIRE) != HX_SERVER_READY)
        _exit(0);
    clock_gettime(CLOCK_MONOTONIC, &t);
    __atomic_store_n(&server.drain_until,
                     (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + server.opt.stop_grace,
                     __ATOMIC_RELEASE);
    __atomic_store_n(&server.state, HX_SERVER_DRAINING, __ATOMIC_RELEASE);
    hx_http_wake(server.http);
    sigwait(set, &sig);
    hx_log(HX_LOG_WARN, "server", "second stop signal: ending at once");
    _exit(0);
}

/* The http thread stops itself once draining is over: see hx_server_http_ops.tick. */
static int serve(int fd, sigset_t *set, struct hx_error *err)
{
    struct hx_http_options h = {.listen_fd = fd,
                                .max_connections = (int)server.opt.max_connections,
                                .max_body = server.opt.max_body,
                                .idle_us = server.opt.idle,
                                .slow_us = server.opt.slow_reader,
                                .ops = &hx_server_http_ops,
                                .user = &server};
    pthread_t http, signals;
    int r = hx_http_open(&h, &server.http, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    if (pthread_create(&http, NULL, run_http, server.http) != 0 ||
        pthread_create(&signals, NULL, watch_signals, set) != 0)
        return hx_fail(err, -EAGAIN, "cannot start a thread");
    pthread_detach(signals);
    r = load(err);
    if (r == 0) {
        hx_log(HX_LOG_NOTICE, "server", "ready on %s, effort table %s", server.opt.listen,
               server.opt.effort_table == HX_EFFORT_RELEASE ? "release" : "legacy");
        const char *demo = hx_server_demo(&server);
        if (*demo)
            hx_log(HX_LOG_WARN, "server", "%s", demo);
        sd_notifyf(0, "READY=1\nSTATUS=Serving%s%s", *demo ? ". " : "", demo);
    } else {
        hx_http_stop(server.http);
    }
    pthread_join(http, NULL);
    /* Requests go before the engine; both wake the http side until they are gone. */
    hx_http_disconnect(server.http);
    hx_prep_close(server.prep);
    hx_engine_close(server.engine);
    hx_http_close(server.http);
    hx_tokenizer_close(server.tokenizer);
    return r;
}

int main(int argc, char **argv)
{
    struct hx_error err = {0};
    sigset_t set;
    int r = read_options(argc, argv, &err);
    if (r != 0)
        return r > 0 ? EX_OK : fail(EX_USAGE, &err);
    if (read_key(&err) < 0)
        return fail(EX_CONFIG, &err);
    if (server.opt.log_prompts)
        hx_log(HX_LOG_WARN, "server", "prompts are written to the log");
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    server.created = time(NULL);
    int fd = open_socket(&err);
    if (fd < 0)
        return fail(EX_CONFIG, &err);
    r = serve(fd, &set, &err);
    return r < 0 ? fail(EX_UNAVAILABLE, &err) : EX_OK;
}
