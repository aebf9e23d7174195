/* hx: is it working, and if not, what now. Also the way to updates, resets and support. */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "setup/console.h"
#include "setup/relay.h"
#include "setup/setup.h"
#include "setup/status.h"
#include "setup/support.h"

#define CONSOLE_S 15

struct options {
    const char *root, *commands, *output;
    bool json, yes, once;
    const char *word[3];
    int n_words;
};

static void help(FILE *to)
{
    fputs("usage: hx [status] [--json]        is it working, and if not, what now\n"
          "       hx setup [STEP]             the questions again (hx-setup)\n"
          "       hx update BUNDLE            install an update; it counts from the next start\n"
          "       hx rollback                 back to the version before, at the next start\n"
          "       hx reset LEVEL [--yes]      config: settings; state: all but the models;\n"
          "                                   everything: the models too; at the next start\n"
          "       hx support [--output FILE]  archive for support, without secrets\n"
          "       hx console [--once]         the status on a console, whenever it changes\n"
          "       hx root [COMMAND...]        a command as root, or a shell (for the account "
          "admin)\n\n"
          "  --root DIR, --commands FILE      a recorded machine instead of this one\n"
          "  --help, --version\n\n"
          "Exit status of hx status: 0 working, 1 busy on its own, 2 something is to be done,\n"
          "3 a fault. Otherwise 64 usage, 66 no such file, 69 a tool is missing, 70 internal,\n"
          "73 cannot write, 75 not confirmed, 77 not allowed; hx root: the command's own.\n",
          to);
}

static int fail(int code, const struct hx_error *err)
{
    fprintf(stderr, "hx: %s\n", err->text);
    return code;
}

static int usage(const char *what, const char *found)
{
    fprintf(stderr, "hx: %s '%s'; see hx --help\n", what, found);
    return EX_USAGE;
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option rows[] = {{"root", required_argument, NULL, 'r'},
                                         {"commands", required_argument, NULL, 'c'},
                                         {"output", required_argument, NULL, 'o'},
                                         {"json", no_argument, NULL, 'j'},
                                         {"yes", no_argument, NULL, 'y'},
                                         {"once", no_argument, NULL, '1'},
                                         {"help", no_argument, NULL, 'h'},
                                         {"version", no_argument, NULL, 'v'},
                                         {0}};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":", rows, NULL)) != -1;) {
        switch (c) {
        case 'r': o->root = optarg; break;
        case 'c': o->commands = optarg; break;
        case 'o': o->output = optarg; break;
        case 'j': o->json = true; break;
        case 'y': o->yes = true; break;
        case '1': o->once = true; break;
        case 'h': help(stdout); return -1;
        case 'v': printf("hx %s (%s)\n", HX_BUILD_VERSION, HX_BUILD_VARIANT); return -1;
        default:
            return usage(c == ':' ? "a value is missing behind" : "unknown option",
                         argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++) {
        if (o->n_words == 3)
            return usage("one word too many:", argv[optind]);
        o->word[o->n_words++] = argv[optind];
    }
    return 0;
}

/* ---- commands -------------------------------------------------------------------------------- */

static int command_status(struct hx_setup *s, const struct options *o)
{
    struct hx_status status;
    struct hx_error err;
    struct hx_buf text = HX_BUF_INIT(1 << 20);
    char head[200], what[400];
    if (hx_status_read(s->root, s->tools, &status, &err) < 0)
        return fail(EX_SOFTWARE, &err);
    int code = (int)hx_status_verdict(&status, head, sizeof(head), what, sizeof(what));
    int r = o->json ? hx_status_json(&status, &text) : hx_status_text(&status, &text);
    if (r == 0)
        fwrite(text.data, 1, text.len, stdout);
    bool bad = r < 0 || fflush(stdout) != 0;
    hx_buf_done(&text);
    hx_status_done(&status);
    if (bad)
        fprintf(stderr, "hx: the status cannot be written\n");
    return bad ? EX_CANTCREAT : code;
}

/* For hx-console@.service: for ever, until the console is gone. */
static int command_console(struct hx_setup *s, const struct options *o)
{
    struct hx_console shown = HX_CONSOLE_INIT;
    struct hx_error err;
    const char *term = getenv("TERM");
    bool redraw = term && strcmp(term, "linux") == 0 && isatty(STDOUT_FILENO);
    for (;;) {
        struct hx_status status;
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        int r = hx_status_read(s->root, s->tools, &status, &err);
        if (r < 0)
            return fail(EX_SOFTWARE, &err);
        r = hx_console_show(&shown, &status, redraw, now.tv_sec, stdout, &err);
        hx_status_done(&status);
        if (r < 0)
            return fail(EX_IOERR, &err);
        if (o->once)
            return EX_OK;
        sleep(CONSOLE_S);
    }
}

/* Hands over to another program, as root where that is needed. */
static int hand_over(const struct hx_setup *s, const char *const argv[])
{
    struct hx_error err;
    int connection, code;
    fflush(NULL);
    if (geteuid() == 0 || *s->root_dir) {
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        fprintf(stderr, "hx: cannot run %s: %s\n", argv[0], strerror(errno));
        return EX_UNAVAILABLE;
    }
    int r = hx_relay_connect(HX_RELAY_SOCKET, &connection, &err);
    if (r == 0)
        r = hx_relay_call(connection, argv, &code, &err);
    return r == 0 ? code : fail(r == -EACCES ? EX_NOPERM : EX_UNAVAILABLE, &err);
}

/* The owner's own way to root: any command, or a shell. */
static int command_root(const struct hx_setup *s, char *const words[])
{
    static const char *const shell[] = {"bash", "-l", NULL};
    return hand_over(s, *words ? (const char *const *)(uintptr_t)words : shell);
}

static int command_setup(struct hx_setup *s, const struct options *o)
{
    const char *argv[4] = {"hx-setup", o->n_words > 1 ? o->word[1] : NULL, NULL};
    return hand_over(s, argv);
}

static int command_update(struct hx_setup *s, const struct options *o)
{
    const char *argv[] = {"hx-update", "install", o->word[1], NULL};
    if (o->n_words != 2)
        return usage("update needs the bundle, found", o->n_words > 2 ? o->word[2] : "nothing");
    return hand_over(s, argv);
}

static int command_rollback(struct hx_setup *s, const struct options *o)
{
    const char *argv[] = {"hx-update", "rollback", NULL};
    (void)o;
    return hand_over(s, argv);
}

static const struct {
    const char *level, *what;
} levels[] = {
    {"config", "All settings are erased: name, SSH keys, network, driver choice. The models and "
               "logs stay."},
    {"state", "Everything but the models is erased: settings, SSH keys, host keys, driver, logs."},
    {"everything", "EVERYTHING is erased, the models too. They have to be downloaded again."},
};

static int command_reset(struct hx_setup *s, const struct options *o)
{
    char line[32] = "";
    size_t i = 0, n = sizeof(levels) / sizeof(levels[0]);
    while (o->n_words == 2 && i < n && strcmp(levels[i].level, o->word[1]) != 0)
        i++;
    if (o->n_words != 2 || i == n)
        return usage("reset needs config, state or everything, found",
                     o->n_words > 1 ? o->word[1] : "nothing");
    if (!o->yes) {
        printf("%s\nIt happens at the next start. Type the word %s to go on: ", levels[i].what,
               levels[i].level);
        fflush(stdout);
        if (!fgets(line, sizeof(line), stdin))
            line[0] = '\0';
        line[strcspn(line, "\r\n")] = '\0';
        if (strcmp(line, levels[i].level) != 0) {
            printf("Not confirmed; nothing happens.\n");
            return EX_TEMPFAIL;
        }
    }
    const char *argv[] = {"hx-update", "reset", levels[i].level, "--yes", NULL};
    return hand_over(s, argv);
}

/* The archive under a new name first: what bears the name is whole. */
static int command_support(struct hx_setup *s, const struct options *o)
{
    struct hx_error err;
    char next[1024];
    if (!o->output && isatty(STDOUT_FILENO))
        return usage("an archive is not for the screen: name a file with --output, found",
                     "a terminal");
    if (!o->output) {
        int r = hx_support_write(s->root, s->tools, time(NULL), stdout, &err);
        return r == 0 ? EX_OK : fail(EX_CANTCREAT, &err);
    }
    if (snprintf(next, sizeof(next), "%s.new", o->output) >= (int)sizeof(next))
        return usage("the name is too long:", o->output);
    int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        fprintf(stderr, "hx: %s: cannot write: %s\n", next, strerror(errno));
        if (fd >= 0)
            close(fd);
        return EX_CANTCREAT;
    }
    int r = hx_support_write(s->root, s->tools, time(NULL), f, &err);
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(&err, errno, "%s: cannot write", next);
    if (fclose(f) != 0 && r == 0)
        r = hx_fail_errno(&err, errno, "%s: cannot write", next);
    if (r == 0 && rename(next, o->output) < 0)
        r = hx_fail_errno(&err, errno, "%s: cannot rename", next);
    if (r < 0) {
        unlink(next);
        return fail(EX_CANTCREAT, &err);
    }
    printf("%s: written. Look into it before you send it; content.txt lists what is in it.\n",
           o->output);
    return EX_OK;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct hx_setup *s, const struct options *o);
        int most_words;
    } commands[] = {
        {"status", command_status, 1},   {"setup", command_setup, 2},
        {"update", command_update, 2},   {"rollback", command_rollback, 1},
        {"reset", command_reset, 2},     {"support", command_support, 1},
        {"console", command_console, 1},
    };
    struct options o = {0};
    struct hx_setup s;
    struct hx_error err;
    const char *self = strrchr(argv[0], '/');
    /* Everything behind "root" belongs to the command. People's fingers know it under another name,
     * too. */
    int words = strcmp(self ? self + 1 : argv[0], "sudo") == 0 ? 1
                : argc > 1 && strcmp(argv[1], "root") == 0 ? 2
                                                           : 0;
    if (words == 1 && argc > 1 && strcmp(argv[1], "-n") == 0)
        words = 2;
    if (words) {
        s = (struct hx_setup){.root_dir = ""};
        return command_root(&s, argv + words);
    }
    signal(SIGPIPE, SIG_IGN);
    int code = parse(argc, argv, &o);
    if (code != 0)
        return code < 0 ? EX_OK : code;
    const char *name = o.n_words ? o.word[0] : "status";
    size_t i = 0, n = sizeof(commands) / sizeof(commands[0]);
    while (i < n && strcmp(commands[i].name, name) != 0)
        i++;
    if (i == n)
        return usage("unknown command", name);
    if (o.n_words > commands[i].most_words)
        return usage("one word too many:", o.word[commands[i].most_words]);
    if (hx_setup_open(&s, o.root, o.commands, &err) < 0)
        return fail(EX_NOINPUT, &err);
    code = commands[i].run(&s, &o);
    hx_setup_close(&s);
    return code;
}
