/* The sandbox of a build and the watch over it. */
#include "bundle/build.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "bundle/tree.h"

#define BUILD_UID  65534 /* nobody: owns nothing but the output folder */
#define MAX_FILE   (4ull << 30)
#define MAX_PROCS  4096
#define LOG_TAIL   600
#define LOG_MAX    (4u << 20)
#define FULL_BYTES (1u << 20)
#define MAX_ENV    64
#define SETUP_FAIL 120 /* exit status: the sandbox could not be set up; the pipe says why */

/* Writes why the sandbox could not be made and ends the child. Async-signal rules do not bind us:
 * the parent has one thread. */
static void give_up(int pipe_fd, const char *what, int code) __attribute__((noreturn));
static void give_up(int pipe_fd, const char *what, int code)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "%d %s", code, what);
    if (n > 0)
        (void)!write(pipe_fd, text, (size_t)n);
    _exit(SETUP_FAIL);
}

struct box {
    const struct hx_build *b;
    char root[1024];
    int report;
    bool privileged;
    char *env[MAX_ENV + 8];
};

static void bind_path(struct box *x, const char *from, const char *to, bool writable)
{
    char target[2048];
    snprintf(target, sizeof(target), "%s%s", x->root, to);
    if (mount(from, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        give_up(x->report, to, errno);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                          (writable ? 0 : MOUNT_ATTR_RDONLY)};
    if (mount_setattr(AT_FDCWD, target, AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        give_up(x->report, to, errno);
}

static void make_folder(struct box *x, const char *name)
{
    char path[2048];
    snprintf(path, sizeof(path), "%s%s", x->root, name);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        give_up(x->report, name, errno);
}

static void make_file(struct box *x, const char *name)
{
    char path[2048];
    snprintf(path, sizeof(path), "%s%s", x->root, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        give_up(x->report, name, errno);
    close(fd);
}

/* The folders of the kit, links at its top (merged /usr) as links. */
static void bind_kit(struct box *x)
{
    static const char *const tops[] = {
        "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives"};
    make_folder(x, "/etc");
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        char from[2048], target[1024], to[2048];
        struct stat st;
        snprintf(from, sizeof(from), "%s%s", strcmp(x->b->kit, "/") ? x->b->kit : "", tops[i]);
        if (lstat(from, &st) < 0)
            continue;
        if (S_ISLNK(st.st_mode)) {
            ssize_t n = readlink(from, target, sizeof(target) - 1);
            if (n <= 0)
                continue;
            target[n] = '\0';
            snprintf(to, sizeof(to), "%s%s", x->root, tops[i]);
            if (symlink(target, to) < 0)
                give_up(x->report, tops[i], errno);
        } else if (S_ISDIR(st.st_mode)) {
            make_folder(x, tops[i]);
            bind_path(x, from, tops[i], false);
        }
    }
}

static void make_root(struct box *x)
{
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/urandom"};
    char path[2048];
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        give_up(x->report, "private mounts", errno);
    if (mount("tmpfs", x->root, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755") < 0)
        give_up(x->report, "a root folder", errno);
    bind_kit(x);
    static const char *const folders[] = {"/proc", "/dev", "/bundle", "/out", "/tmp"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        make_folder(x, folders[i]);
    bind_path(x, x->b->bundle, "/bundle", false);
    snprintf(path, sizeof(path), "%s/out", x->b->scratch);
    bind_path(x, path, "/out", true);
    snprintf(path, sizeof(path), "%s/tmp", x->b->scratch);
    bind_path(x, path, "/tmp", true);
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        make_file(x, devices[i]);
        snprintf(path, sizeof(path), "%s%s", x->root, devices[i]);
        if (mount(devices[i], path, NULL, MS_BIND, NULL) < 0)
            give_up(x->report, devices[i], errno);
    }
    /* Before the old root goes: without privileges the kernel wants to see another one. */
    snprintf(path, sizeof(path), "%s/proc", x->root);
    if (mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        give_up(x->report, "/proc", errno);
    if (chdir(x->root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        give_up(x->report, "its own root", errno);
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        give_up(x->report, "leaving the old root", errno);
}

static void set_limit(struct box *x, int what, rlim_t value)
{
    struct rlimit l = {value, value};
    if (setrlimit(what, &l) < 0)
        give_up(x->report, "limits", errno);
}

static void drop_rights(struct box *x)
{
    /* Being user 0 inside gives nothing after the next exec. */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED, 0, 0, 0) < 0)
        give_up(x->report, "giving up rights", errno);
    if (x->privileged &&
        (setgroups(0, NULL) < 0 || setresgid(BUILD_UID, BUILD_UID, BUILD_UID) < 0 ||
         setresuid(BUILD_UID, BUILD_UID, BUILD_UID) < 0))
        give_up(x->report, "a user of its own", errno);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        give_up(x->report, "no new privileges", errno);
    umask(022);
    set_limit(x, RLIMIT_CORE, 0);
    set_limit(x, RLIMIT_FSIZE, MAX_FILE);
    set_limit(x, RLIMIT_NPROC, MAX_PROCS);
    set_limit(x, RLIMIT_NOFILE, 4096);
    set_limit(x, RLIMIT_CPU, (rlim_t)x->b->timeout_s * 64);
}

/* Process 1 of the namespace: starts the build, reaps what it leaves, ends with its status. */
static void run_init(struct box *x, char *const *argv) __attribute__((noreturn));
static void run_init(struct box *x, char *const *argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    make_root(x);
    if (sethostname("build", 5) < 0)
        give_up(x->report, "a host name", errno);
    pid_t build = fork();
    if (build < 0)
        give_up(x->report, "a process", errno);
    if (build == 0) {
        setsid();
        drop_rights(x);
        if (chdir("/bundle") < 0)
            give_up(x->report, "/bundle", errno);
        execvpe(argv[0], argv, x->env);
        give_up(x->report, "running build.argv[0]", errno);
    }
    close(x->report);
    int status = 0;
    for (;;) {
        int s;
        pid_t p = wait(&s);
        if (p < 0 && errno == EINTR)
            continue;
        if (p < 0)
            break;
        if (p == build) {
            status = s;
            break;
        }
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static bool put_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

static void enter_namespaces(struct box *x)
{
    int flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];
    if (!x->privileged)
        flags |= CLONE_NEWUSER;
    if (unshare(flags) < 0)
        give_up(x->report, "namespaces", errno);
    if (x->privileged)
        return;
    if (!put_text("/proc/self/setgroups", "deny"))
        give_up(x->report, "a user namespace", errno);
    snprintf(map, sizeof(map), "0 %u 1", uid);
    if (!put_text("/proc/self/uid_map", map))
        give_up(x->report, "a user namespace", errno);
    snprintf(map, sizeof(map), "0 %u 1", gid);
    if (!put_text("/proc/self/gid_map", map))
        give_up(x->report, "a user namespace", errno);
}

/* Closes whatever the program around us holds open. */
static void run_box(struct box *x, char *const *argv, int log) __attribute__((noreturn));
static void run_box(struct box *x, char *const *argv, int log)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
        dup2(x->report, 3) < 0)
        give_up(x->report, "standard streams", errno);
    x->report = 3;
    fcntl(3, F_SETFD, FD_CLOEXEC);
    if (syscall(SYS_close_range, 4, ~0u, 0) < 0)
        give_up(3, "closing files", errno);
    enter_namespaces(x);
    pid_t init = fork();
    if (init < 0)
        give_up(3, "a process", errno);
    if (init == 0)
        run_init(x, argv);
    close(3);
    int status;
    while (waitpid(init, &status, 0) < 0)
        if (errno != EINTR)
            _exit(SETUP_FAIL);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* "NAME=value" with @kernel@, @headers@ and @out@ filled in; NULL when out of memory. */
static char *env_entry(const struct hx_build *b, const struct hx_pair *p)
{
    static const char *const words[] = {"@kernel@", "@headers@", "@out@"};
    const char *values[] = {b->kernel, b->headers, "/out"};
    struct hx_buf text = HX_BUF_INIT(65536);
    hx_buf_printf(&text, "%s=", p->key);
    for (const char *s = p->value; *s;) {
        size_t i = 0;
        while (i < 3 && strncmp(s, words[i], strlen(words[i])) != 0)
            i++;
        if (i < 3) {
            hx_buf_puts(&text, values[i]);
            s += strlen(words[i]);
        } else {
            hx_buf_putc(&text, (uint8_t)*s++);
        }
    }
    char *entry = text.failed ? NULL : hx_buf_cstr(&text);
    entry = entry ? strdup(entry) : NULL;
    hx_buf_done(&text);
    return entry;
}

static int fill_env(struct box *x, struct hx_error *err)
{
    static const char *const fixed[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                                        "HOME=/tmp", "TMPDIR=/tmp", "USER=build"};
    const struct hx_pairs *env = &x->b->m->env;
    size_t n = 0;
    if (env->n > MAX_ENV)
        return hx_fail(err, -EINVAL, "build.env: more than %d names", MAX_ENV);
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        x->env[n++] = strdup(fixed[i]);
    for (size_t i = 0; i < env->n; i++)
        x->env[n++] = env_entry(x->b, &env->item[i]);
    for (size_t i = 0; i < n; i++)
        if (!x->env[i])
            return hx_fail(err, -ENOMEM, "build.env: out of memory");
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What the build prints: its end is kept for messages, its start goes to a file. */
struct output {
    int fd;  /* pipe, -1 after its end */
    int log; /* file, -1: none */
    size_t logged, n;
    char tail[LOG_TAIL];
};

static void take_output(struct output *out)
{
    char buf[4096];
    for (;;) {
        ssize_t n = read(out->fd, buf, sizeof(buf));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n == 0) {
                close(out->fd);
                out->fd = -1;
            }
            return;
        }
        size_t len = (size_t)n;
        if (out->log >= 0 && out->logged < LOG_MAX) {
            if (write(out->log, buf, len) != n) { /* a full disk costs the log only */
                close(out->log);
                out->log = -1;
            }
            out->logged += len;
        }
        size_t take = len < LOG_TAIL ? len : LOG_TAIL;
        size_t keep = out->n + take > LOG_TAIL ? LOG_TAIL - take : out->n;
        memmove(out->tail, out->tail + out->n - keep, keep);
        memcpy(out->tail + keep, buf + len - take, take);
        out->n = keep + take;
    }
}

/* Waits for the child; past the limit its namespace is ended. */
static int watch(pid_t child, int timeout_s, struct output *out, int *status)
{
    int64_t end = now_ms() + (int64_t)timeout_s * 1000;
    bool late = false;
    for (;;) {
        struct pollfd p = {out->fd, POLLIN, 0};
        if (out->fd >= 0)
            take_output(out);
        pid_t got = waitpid(child, status, WNOHANG);
        if (got == child) {
            if (out->fd >= 0)
                take_output(out);
            return late ? -ETIMEDOUT : 0;
        }
        if (got < 0 && errno != EINTR)
            return -errno;
        if (!late && now_ms() >= end) {
            late = true;
            kill(child, SIGKILL); /* its process 1 follows, and with it everything inside */
        }
        poll(&p, out->fd >= 0 ? 1 : 0, 20);
    }
}

/* The end of the output as one line. */
static void log_tail(const struct output *out, char *text, size_t size)
{
    size_t n = out->n;
    while (n && (out->tail[n - 1] == '\n' || out->tail[n - 1] == ' '))
        n--;
    snprintf(text, size, "%.*s", (int)n, out->tail);
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\t')
            *p = ' ';
}

static bool disk_is_full(const char *folder)
{
    struct statvfs st;
    return statvfs(folder, &st) == 0 && (uint64_t)st.f_bavail * st.f_frsize < FULL_BYTES;
}

static int check_outputs(const struct hx_build *b, struct hx_error *err)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/out", b->scratch);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    if (dir < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    for (size_t i = 0; r == 0 && i < b->m->outputs.n; i++) {
        int fd;
        r = hx_tree_open(dir, b->m->outputs.item[i], &fd, err);
        if (r < 0)
            hx_wrap(err, r, "the build did not make an output");
        else
            close(fd);
    }
    close(dir);
    return r;
}

static int judge_end(const struct hx_build *b, int waited, int status, const char *report,
                     const struct output *out, struct hx_error *err)
{
    char tail[LOG_TAIL + 1];
    if (report[0]) {
        const char *what = strchr(report, ' ');
        uint64_t code = 0;
        for (const char *p = report; *p >= '0' && *p <= '9'; p++)
            code = code * 10 + (uint64_t)(*p - '0');
        int e = code > 0 && code < 4096 ? (int)code : EIO;
        if (e == ENOSPC)
            return hx_fail_errno(err, ENOSPC, "build sandbox: %s", what ? what + 1 : report);
        hx_fail_errno(err, e, "build sandbox: %s", what ? what + 1 : report);
        return -EPERM;
    }
    log_tail(out, tail, sizeof(tail));
    if (waited == -ETIMEDOUT)
        return hx_fail(err, -ETIMEDOUT, "the build did not end within %d s: %s", b->timeout_s,
                       tail);
    if (waited < 0)
        return hx_fail_errno(err, -waited, "waiting for the build");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return check_outputs(b, err);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (disk_is_full(b->scratch) || strstr(tail, strerror(ENOSPC)))
        return hx_fail_errno(err, ENOSPC, "the build ended with status %d", code);
    return hx_fail(err, -ECHILD, "the build ended with status %d: %s", code,
                   tail[0] ? tail : "(no output)");
}

static int make_folders(const struct hx_build *b, bool privileged, struct hx_error *err)
{
    static const char *const names[] = {"root", "out", "tmp"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[1200];
        snprintf(path, sizeof(path), "%s/%s", b->scratch, names[i]);
        if (mkdir(path, 0755) < 0)
            return hx_fail_errno(err, errno, "%s: cannot make the folder", path);
        if (i > 0 && privileged && chown(path, BUILD_UID, BUILD_UID) < 0)
            return hx_fail_errno(err, errno, "%s: cannot hand it to the build", path);
    }
    return 0;
}

int hx_build_run(const struct hx_build *b, struct hx_error *err)
{
    struct box x = {.b = b, .privileged = geteuid() == 0};
    struct output out = {.fd = -1, .log = -1};
    char report[256] = "";
    int ends[2] = {-1, -1}, printed[2] = {-1, -1}, status = 0, waited = 0;
    const struct hx_strings *given = &b->m->argv;
    char **argv = calloc(given->n + 1, sizeof(char *));
    int r = argv ? fill_env(&x, err) : hx_fail(err, -ENOMEM, "build: out of memory");
    if (r == 0)
        r = make_folders(b, x.privileged, err);
    if (r < 0)
        goto out;
    memcpy(argv, given->item, given->n * sizeof(char *));
    snprintf(x.root, sizeof(x.root), "%s/root", b->scratch);
    if (pipe2(ends, O_CLOEXEC) < 0 || pipe2(printed, O_CLOEXEC) < 0) {
        r = hx_fail_errno(err, errno, "cannot start the build");
        goto out;
    }
    out.log = open(b->log, O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
    x.report = ends[1];
    pid_t child = fork();
    if (child < 0) {
        r = hx_fail_errno(err, errno, "cannot start the build");
        goto out;
    }
    if (child == 0)
        run_box(&x, argv, printed[1]);
    close(ends[1]);
    close(printed[1]);
    ends[1] = printed[1] = -1;
    out.fd = printed[0];
    printed[0] = -1;
    fcntl(out.fd, F_SETFL, O_NONBLOCK);
    waited = watch(child, b->timeout_s, &out, &status);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ssize_t n = read(ends[0], report, sizeof(report) - 1);
    report[n > 0 ? n : 0] = '\0';
    r = judge_end(b, waited, status, report, &out, err);
out:
    for (size_t i = 0; i < sizeof(x.env) / sizeof(x.env[0]); i++)
        free(x.env[i]);
    free(argv);
    if (out.fd >= 0)
        close(out.fd);
    if (out.log >= 0)
        close(out.log);
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
        if (printed[i] >= 0)
            close(printed[i]);
    }
    return r;
}
