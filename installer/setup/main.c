/* hx-setup: the wizard, one step of it, an answers file, and what box.conf says for other programs.
 */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <termios.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "setup/installer.h"
#include "setup/lock.h"
#include "setup/media.h"
#include "setup/relay.h"
#include "setup/setup.h"

#define ESP_ANSWERS "/efi/hx170-answers.conf"
#define CREDENTIAL  "hx170.answers"

struct options {
    const char *root, *answers, *commands;
    bool plain, anew;
    const char *word[2];
    int n_words;
};

static int fail(int code, const struct hx_error *err)
{
    fprintf(stderr, "hx-setup: %s\n", err->text);
    return code;
}

static void help(FILE *to)
{
    fprintf(to,
            "usage: hx-setup [OPTIONS] [STEP]\n"
            "       hx-setup install        from the stick: the system onto a disk\n"
            "       hx-setup check FILE     whether an answers file is right; changes nothing\n"
            "       hx-setup list           the steps, and which are answered\n"
            "       hx-setup previous       back to the settings before the last change\n"
            "       hx-setup media          sticks and the disk with models, mounted for reading\n"
            "       hx-setup render         box.conf into the files of other programs\n\n"
            "Without a step: all questions from the first that is not answered. Steps:\n");
    for (int i = 0; i < hx_setup_n_steps; i++)
        fprintf(to, "  %-12s %s\n", hx_setup_steps[i].id, hx_setup_steps[i].about);
    fprintf(to, "\n  --plain          lines instead of dialogs (also when TERM is dumb)\n"
                "  --answers FILE   ask nobody; auto: the credential " CREDENTIAL ", else\n"
                "                   " ESP_ANSWERS ", else ask\n"
                "  --new            forget what was answered so far\n"
                "  --root DIR       read and write below DIR instead of /\n"
                "  --commands FILE  recorded answers instead of tools\n"
                "  --help, --version\n\n"
                "Exit status: 0 done; 64 usage, 65 bad answers, 66 no such file, 69 another setup\n"
                "runs, 70 internal, 73 cannot write, 75 left, to go on later, 78 box.conf cannot\n"
                "be understood.\n");
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option rows[] = {{"root", required_argument, NULL, 'r'},
                                         {"answers", required_argument, NULL, 'a'},
                                         {"commands", required_argument, NULL, 'c'},
                                         {"plain", no_argument, NULL, 'p'},
                                         {"new", no_argument, NULL, 'n'},
                                         {"help", no_argument, NULL, 'h'},
                                         {"version", no_argument, NULL, 'v'},
                                         {0}};
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":", rows, NULL)) != -1;) {
        switch (c) {
        case 'r': o->root = optarg; break;
        case 'a': o->answers = optarg; break;
        case 'c': o->commands = optarg; break;
        case 'p': o->plain = true; break;
        case 'n': o->anew = true; break;
        case 'h': help(stdout); return -1;
        case 'v': printf("hx-setup %s (%s)\n", HX_BUILD_VERSION, HX_BUILD_VARIANT); return -1;
        default:
            fprintf(stderr, "hx-setup: %s '%s'; see hx-setup --help\n",
                    c == ':' ? "a value is missing behind" : "unknown option", argv[optind - 1]);
            return EX_USAGE;
        }
    }
    for (; optind < argc && o->n_words < 2; optind++)
        o->word[o->n_words++] = argv[optind];
    bool is_check = o->n_words > 0 && strcmp(o->word[0], "check") == 0;
    if (optind < argc || o->n_words != (is_check ? 2 : o->n_words ? 1 : 0)) {
        fprintf(stderr, "hx-setup: %s; see hx-setup --help\n",
                is_check ? "check needs one file" : "too many words");
        return EX_USAGE;
    }
    return 0;
}

/* ---- commands without questions -------------------------------------------------------------- */

static int command_check(const char *path)
{
    struct hx_box box;
    struct hx_error err;
    int r = hx_box_read(path, HX_BOX_ANSWERS, &box, &err);
    if (r < 0)
        return fail(r == -EINVAL || r == -EFBIG ? EX_DATAERR : EX_NOINPUT, &err);
    r = hx_box_check(&box, HX_BOX_ANSWERS, &err);
    hx_box_done(&box);
    if (r < 0) {
        hx_wrap(&err, r, "%s", path);
        return fail(EX_DATAERR, &err);
    }
    printf("%s: good\n", path);
    return EX_OK;
}

static int command_list(struct hx_setup *s)
{
    struct hx_error err;
    if (hx_setup_load(s, &err) < 0)
        return fail(EX_CONFIG, &err);
    for (int i = 0; i < hx_setup_n_steps; i++) {
        const struct hx_setup_step *step = &hx_setup_steps[i];
        printf("%-12s %-9s %s\n", step->id, hx_box_is_done(&s->box, step->id) ? "answered" : "open",
               step->about);
    }
    return EX_OK;
}

static int command_render(struct hx_setup *s)
{
    struct hx_error err;
    char name[64];
    int r = hx_setup_render(s, &err);
    /* Here and not in render.c: the wizard's own unit may not do it. */
    if (r == 0 && !*s->root_dir &&
        hx_root_text(s->root, "/run/hx170/hostname", name, sizeof(name)) == 0 &&
        sethostname(name, strlen(name)) < 0)
        r = hx_fail_errno(&err, errno, "cannot set the host name");
    return r == 0 ? EX_OK : fail(r == -EINVAL ? EX_CONFIG : EX_CANTCREAT, &err);
}

/* Sticks, and the disk that models are imported from, for the services: the wizard's own mounts are
 * seen by itself alone (hx-media.service). */
static int command_media(struct hx_setup *s)
{
    struct hx_error err;
    char at[HX_ROOT_PATH];
    struct hx_box box;
    hx_media_mount(s);
    int r = hx_setup_path(s, HX_SETUP_BOX, at, &err);
    if (r == 0)
        r = hx_box_read(at, HX_BOX_STATE, &box, &err);
    if (r < 0)
        return r == -ENOENT ? EX_OK : fail(EX_CONFIG, &err);
    if (strncmp(box.model_source, "/dev/", 5) == 0)
        r = hx_media_mount_device(s, box.model_source, &err);
    hx_box_done(&box);
    return r == 0 ? EX_OK : fail(EX_NOINPUT, &err);
}

/* The previous settings come into force by the same way as new ones. */
static int command_previous(struct hx_setup *s)
{
    struct hx_error err;
    char at[HX_ROOT_PATH];
    struct hx_box box;
    int r = hx_setup_path(s, HX_SETUP_OLD, at, &err);
    if (r == 0)
        r = hx_box_read(at, HX_BOX_STATE, &box, &err);
    if (r == -ENOENT) {
        fprintf(stderr, "hx-setup: there are no previous settings\n");
        return EX_NOINPUT;
    }
    if (r < 0)
        return fail(EX_CONFIG, &err);
    hx_box_done(&s->box);
    s->box = box;
    r = hx_setup_apply(s, &err);
    if (r == 0)
        r = hx_setup_activate(s, &err);
    return r == 0 ? EX_OK : fail(EX_CANTCREAT, &err);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* The answers file in the order of --answers auto; "" if there is none. */
static void find_answers(const struct hx_setup *s, char out[HX_ROOT_PATH])
{
    const char *dir = getenv("CREDENTIALS_DIRECTORY"); /* how the service manager hands them over */
    out[0] = '\0';
    if (dir && snprintf(out, HX_ROOT_PATH, "%s/%s", dir, CREDENTIAL) < HX_ROOT_PATH &&
        access(out, R_OK) == 0)
        return;
    out[0] = '\0';
    if (hx_root_exists(s->root, ESP_ANSWERS) && hx_root_outside(s->root, ESP_ANSWERS, out) < 0)
        out[0] = '\0';
}

static int columns(void)
{
    struct winsize w;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 40)
        return w.ws_col - 2;
    return 78;
}

static bool wants_lines(const struct options *o)
{
    const char *term = getenv("TERM");
    return o->plain || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || !*term ||
           strcmp(term, "dumb") == 0;
}

static FILE *open_transcript(struct hx_setup *s)
{
    char at[HX_ROOT_PATH];
    struct hx_error err;
    if (hx_setup_path(s, HX_SETUP_LOG, at, &err) < 0 || hx_setup_folders(at, &err) < 0)
        return NULL;
    int fd = open(at, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "a") : NULL;
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

static int exit_code(enum hx_ui_reply reply, const struct hx_setup *s, const struct hx_error *err)
{
    switch (reply) {
    case HX_UI_NEXT: return EX_OK;
    case HX_UI_BACK:
    case HX_UI_QUIT: printf("\nYour answers are kept. Go on with: hx-setup\n"); return EX_TEMPFAIL;
    case HX_UI_ERROR: break;
    }
    return fail(err->code == -EIO || err->code == -ETIMEDOUT ? EX_IOERR
                : s->scripted || err->code == -EINVAL        ? EX_DATAERR
                                                             : EX_CANTCREAT,
                err);
}

static int open_ui(struct hx_setup *s, const struct options *o, const struct hx_box *answers,
                   struct hx_error *err)
{
    int r;
    if (answers)
        r = hx_ui_script_open(answers, stdout, &s->ui, err);
    else if (wants_lines(o))
        r = hx_ui_plain_open(stdin, stdout, columns(), &s->ui, err);
    else
        r = hx_ui_newt_open(&s->ui, err);
    if (r < 0)
        return r;
    s->scripted = answers != NULL;
    s->ui->transcript = open_transcript(s);
    return 0;
}

static void close_ui(struct hx_setup *s)
{
    if (s->ui->transcript)
        fclose(s->ui->transcript);
    hx_ui_close(s->ui);
    s->ui = NULL;
}

/* From the stick: the installer's screens, and the first start's if it is only tried out. */
static int ask_all(struct hx_setup *s, const struct options *o, bool install,
                   const struct hx_box *answers, const char *file)
{
    struct hx_error err = {0};
    bool go_on = !install;
    enum hx_ui_reply reply = HX_UI_NEXT;
    if (open_ui(s, o, answers, &err) < 0)
        return fail(EX_SOFTWARE, &err);
    if (install)
        reply = hx_installer_run(s, answers ? file : NULL, &go_on, &err);
    if (reply == HX_UI_NEXT && go_on)
        reply = hx_setup_run(s, install || !o->n_words ? NULL : o->word[0], &err);
    close_ui(s);
    return exit_code(reply, s, &err);
}

static int read_answers(const char *file, struct hx_box *out, struct hx_error *err)
{
    int r = hx_box_read(file, HX_BOX_ANSWERS, out, err);
    if (r < 0)
        return r;
    r = hx_box_check(out, HX_BOX_ANSWERS, err);
    if (r < 0) {
        hx_wrap(err, r, "%s", file);
        hx_box_done(out);
    }
    return r;
}

/* Under the lock. file "": somebody is asked. */
static int ask_locked(struct hx_setup *s, const struct options *o, bool install, const char *file)
{
    struct hx_error err;
    struct hx_box answers;
    int r;
    if (*file) {
        r = read_answers(file, &answers, &err);
        if (r < 0)
            return fail(r == -ENOENT ? EX_NOINPUT : EX_DATAERR, &err);
        int code = ask_all(s, o, install, &answers, file);
        hx_box_done(&answers);
        return code;
    }
    r = o->anew ? 0 : hx_setup_load(s, &err);
    if (r < 0)
        return fail(r == -EINVAL ? EX_CONFIG : EX_CANTCREAT, &err);
    return ask_all(s, o, install, NULL, NULL);
}

/* Whichever answers were used: those on the boot partition would bring an old owner's key back
 * after a reset. */
static void drop_esp_answers(const struct hx_setup *s)
{
    char esp[HX_ROOT_PATH];
    if (hx_root_exists(s->root, ESP_ANSWERS) && hx_root_outside(s->root, ESP_ANSWERS, esp) == 0 &&
        unlink(esp) < 0)
        fprintf(stderr, "hx-setup: %s: cannot be removed: %s\n", esp, strerror(errno));
}

/* Answers that the system itself found; not usable: said, and somebody is asked. */
static int ask_automatic(struct hx_setup *s, const struct options *o, bool install)
{
    char file[HX_ROOT_PATH];
    find_answers(s, file);
    if (!*file && !isatty(STDIN_FILENO))
        return EX_OK;
    int code = ask_locked(s, o, install, file);
    if (code != EX_OK && *file && isatty(STDIN_FILENO)) {
        printf("\nThe answers file could not be used (see above). Nothing of it is in force.\n\n");
        hx_box_done(&s->box);
        s->scripted = false;
        code = ask_locked(s, o, install, "");
    }
    if (code == EX_OK && !install)
        drop_esp_answers(s);
    return code;
}

enum { KERNEL_QUIET = 6, KERNEL_LOUD = 7 }; /* syslog(2) */

/* What the kernel says would be painted over the windows; it is in the journal all the same. */
static void kernel_on_console(const struct hx_setup *s, int how)
{
    if (!*s->root_dir && geteuid() == 0 && klogctl(how, NULL, 0) < 0)
        return; /* not allowed here: then it is as it was */
}

static struct termios as_found;

/* Another console took over (lock.h); the answers so far are in the draft. */
static void on_term(int number)
{
    static const char words[] = "\r\n\r\nThe setup goes on at another screen.\r\n";
    (void)number;
    tcsetattr(STDIN_FILENO, TCSANOW, &as_found);
    if (write(STDOUT_FILENO, words, sizeof(words) - 1) < 0)
        _exit(EX_IOERR);
    _exit(EX_TEMPFAIL);
}

static bool is_set_up(const struct hx_setup *s)
{
    return hx_root_exists(s->root, HX_SETUP_BOX);
}

/* Takes the lock; a console that has all questions waits for it behind a view of the other one.
 * *done: meanwhile the other one has set the box up. Exit status. */
static int take_lock(struct hx_setup *s, const struct options *o, bool install, bool *done)
{
    struct hx_error err;
    char holder[160];
    bool before = is_set_up(s);
    int r = hx_setup_lock(s, holder, sizeof(holder), &err);
    if (r == -EBUSY && o->n_words == 0 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        r = hx_setup_watch(s, STDIN_FILENO, stdout, &err);
        if (r == -ECANCELED)
            return EX_TEMPFAIL;
        *done = r == 0 && !install && !before && is_set_up(s);
    }
    return r == 0 ? EX_OK : fail(r == -EBUSY ? EX_UNAVAILABLE : EX_CANTCREAT, &err);
}

/* The drive that was chosen for the models holds them from the next start on. */
static void restart_machine(const struct hx_setup *s)
{
    static const char *const argv[] = {"systemctl", "--no-block", "reboot", NULL};
    struct hx_error err;
    char *out = NULL;
    int rc = 0;
    printf("The models have another drive now: the machine starts again.\n");
    fflush(stdout);
    if (hx_setup_tool(s, argv, 60000, &rc, &out, &err) < 0 || rc != 0)
        fprintf(stderr, "hx-setup: %s: start it again by hand\n", err.text);
    free(out);
}

static int command_ask(struct hx_setup *s, const struct options *o)
{
    bool install = o->n_words ? strcmp(o->word[0], "install") == 0 : hx_installer_mode(s);
    bool done = false;
    int code = take_lock(s, o, install, &done);
    if (code != EX_OK || done) {
        hx_setup_unlock(s);
        return code;
    }
    if (tcgetattr(STDIN_FILENO, &as_found) == 0)
        signal(SIGTERM, on_term);
    if (isatty(STDIN_FILENO))
        kernel_on_console(s, KERNEL_QUIET);
    hx_media_mount(s);
    /* On the stick's screens the answers were used before, by the service that has no terminal. */
    bool used = install && o->n_words == 0, automatic = o->answers && !strcmp(o->answers, "auto");
    code = automatic && !used
               ? ask_automatic(s, o, install)
               : ask_locked(s, o, install, o->answers && !automatic ? o->answers : "");
    if (isatty(STDIN_FILENO))
        kernel_on_console(s, KERNEL_LOUD);
    hx_setup_unlock(s);
    if (code == EX_OK && s->restart && !s->cold_start)
        restart_machine(s);
    return code;
}

/* Who logged in as admin may; the same program, started by root's service. */
static int as_root(char **argv)
{
    struct hx_error err;
    int connection, code;
    int r = hx_relay_connect(HX_RELAY_SOCKET, &connection, &err);
    if (r == 0)
        r = hx_relay_call(connection, (const char *const *)(uintptr_t)argv, &code, &err);
    return r == 0 ? code : fail(r == -EACCES ? EX_NOPERM : EX_UNAVAILABLE, &err);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct hx_setup *s);
    } commands[] = {{"list", command_list},
                    {"media", command_media},
                    {"render", command_render},
                    {"previous", command_previous}};
    struct options o = {0};
    struct hx_setup s;
    struct hx_error err;
    signal(SIGPIPE, SIG_IGN);
    umask(022); /* modes are given with each file */
    int code = parse(argc, argv, &o);
    if (code != 0)
        return code < 0 ? EX_OK : code;
    if (o.n_words == 2)
        return command_check(o.word[1]);
    if (geteuid() != 0 && !o.root && !o.commands)
        return as_root(argv);
    if (hx_setup_open(&s, o.root, o.commands, &err) < 0)
        return fail(EX_NOINPUT, &err);
    size_t i = 0, n = sizeof(commands) / sizeof(commands[0]);
    while (o.n_words && i < n && strcmp(commands[i].name, o.word[0]) != 0)
        i++;
    if (o.n_words && i < n) {
        code = commands[i].run(&s);
    } else if (o.n_words && hx_setup_find(o.word[0]) < 0 && strcmp(o.word[0], "install") != 0) {
        fprintf(stderr, "hx-setup: there is no step '%.40s'; see hx-setup --help\n", o.word[0]);
        code = EX_USAGE;
    } else {
        code = command_ask(&s, &o);
    }
    hx_setup_close(&s);
    return code;
}
