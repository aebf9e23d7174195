/* hx-update: updates, the way back, resets, and the gate of a counted start. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "base/buf.h"
#include "base/json_write.h"
#include "disk/cli.h"
#include "disk/health.h"
#include "disk/prepare.h"
#include "disk/update.h"
#include "hw/command.h"

#define KEY        "/usr/share/hx170/release.pem"
#define API_PORT   8000
#define WAIT_MAX   3600 /* seconds */
#define LATE       600  /* seconds after which a start that is not good has failed */
#define POLL_S     2
#define RESTART_MS 60000

struct options {
    const char *root, *esp, *key, *wait, *port;
    bool json, yes, cancel, late;
    unsigned wait_s, api_port;
};

static void help(FILE *to)
{
    fprintf(
        to,
        "usage: hx-update install BUNDLE     the system of an update into the free slot\n"
        "       hx-update verify BUNDLE      whether it could be installed now; writes nothing\n"
        "       hx-update rollback           back to the version before, at the next start\n"
        "       hx-update status [--json]\n"
        "       hx-update reset config|state|everything --yes   at the next start\n"
        "       hx-update reset --cancel\n"
        "       hx-update health [--wait SECONDS] [--late]      gate of a start on trial\n\n"
        "  BUNDLE         file or folder, as `make bundle` makes it\n"
        "  --key FILE     public key, PEM (ROOT" KEY ")\n"
        "  --wait S       waits up to S seconds until the system is healthy\n"
        "  --late         keeps what was seen if all is well; a start that is still on trial then\n"
        "                 ends in a restart\n"
        "  --port N       of the engine, %d by default\n"
        "  --esp DIR      where the ESP is mounted (ROOT/efi)\n"
        "  --root DIR     a recorded machine instead of this one\n"
        "  --json         for machines\n"
        "  --help, --version\n\n"
        "Nothing restarts by itself but a start on trial. Exit status: 0, or one of sysexits.h:\n"
        "64 usage, 65 damaged or not an update of this product, 66 no such file, 69 this is no "
        "installed\n"
        "system, 71 system, 73 no room, 74 input or output, 75 not now: this start is on trial, 77 "
        "signature,\n"
        "version or consent.\n",
        API_PORT);
}

/* What a command works with. */
struct session {
    struct hx_system system;
    struct hx_disk disk;
    char esp[HX_ROOT_PATH];
    struct hx_bundle bundle;
    struct hx_cli_progress shown;
};

static void session_done(struct session *s)
{
    if (!s)
        return;
    hx_cli_progress_end(&s->shown);
    hx_disk_close(&s->disk);
    hx_bundle_close(&s->bundle);
    free(s);
}

static int session_open(const struct options *opt, const struct hx_root *root,
                        enum hx_disk_mode mode, struct session **out, struct hx_error *err)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    s->disk.fd = -1;
    s->shown.json = opt->json;
    int r = hx_system_read(root, 0, &s->system, err);
    if (r == 0)
        r = hx_cli_esp(root, opt->esp, s->esp, err);
    if (r == 0)
        r = hx_disk_open(s->system.path, mode, s->system.table.sector, &s->disk, err);
    if (r < 0) {
        session_done(s);
        return r;
    }
    *out = s;
    return 0;
}

static int cmd_bundle(const struct options *opt, const struct hx_root *root, const char *path,
                      bool write, struct hx_error *err)
{
    struct session *s;
    char key[HX_ROOT_PATH];
    int r = session_open(opt, root, write ? HX_DISK_SHARED : HX_DISK_READ, &s, err);
    if (r < 0)
        return r;
    if (opt->key)
        snprintf(key, sizeof(key), "%s", opt->key);
    else if (hx_root_outside(root, KEY, key) < 0)
        r = hx_fail(err, -ENOENT, KEY ": the public key is missing");
    if (r == 0)
        r = hx_bundle_open(path, key, &s->bundle, err);
    struct hx_update_job job = {&s->system, &s->disk,        s->esp,
                                &s->bundle, hx_cli_progress, &s->shown};
    if (r == 0)
        r = write ? hx_update_write(&job, err) : hx_update_check(&job, err);
    hx_cli_progress_end(&s->shown);
    if (r == 0)
        printf(write ? "hx170 %s is installed beside %s; the next start takes it\n"
                     : "hx170 %s can be installed beside %s\n",
               s->bundle.version, s->system.version);
    session_done(s);
    return r;
}

static int cmd_rollback(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct session *s;
    int r = session_open(opt, root, HX_DISK_READ, &s, err);
    if (r < 0)
        return r;
    struct hx_update_job job = {&s->system, &s->disk, s->esp, NULL, hx_cli_progress, &s->shown};
    struct hx_error ignored;
    r = hx_update_rollback(&job, err);
    hx_cli_progress_end(&s->shown);
    /* Only words for `status`. */
    if (r == 0)
        (void)!hx_health_give_up(root, s->system.version, "taken back with rollback", &ignored);
    if (r == 0)
        printf("the next start takes the other version\n");
    session_done(s);
    return r;
}

static const char *trial_text(int left, char *buf, size_t size)
{
    if (left == -2)
        return "cannot start: no kernel image";
    if (left == -1)
        return "good";
    snprintf(buf, size, left == 0 ? "failed" : "on trial, %d starts left", left);
    return buf;
}

/* Why the other version is not taken, in *out; "" if it is not given up. */
static void why_failed(const struct hx_root *root, struct session *s,
                       const struct hx_update_status *st, char *out, size_t size)
{
    struct hx_update_job job = {&s->system, &s->disk, s->esp, NULL, hx_cli_progress, &s->shown};
    struct hx_error err;
    out[0] = '\0';
    if (!st->standby[0] || st->standby_left != 0 ||
        hx_health_given_up(root, st->standby, out, size))
        return;
    int r = hx_update_prove_standby(&job, &err);
    hx_cli_progress_end(&s->shown);
    if (r < 0)
        snprintf(out, size, "what lies on the drive cannot be started: %.150s", err.text);
    else
        snprintf(out, size,
                 "its starts never got as far as the health check; the drive is in order");
}

static int cmd_status(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct session *s;
    struct hx_update_status st;
    char a[48], b[48], why[256] = "";
    int r = session_open(opt, root, HX_DISK_READ, &s, err);
    if (r < 0)
        return r;
    r = hx_update_status(&s->system, s->esp, &st, err);
    if (r == 0)
        why_failed(root, s, &st, why, sizeof(why));
    if (r == 0 && opt->json) {
        struct hx_buf out = HX_BUF_INIT(4096);
        struct hx_json_writer w;
        hx_jw_init(&w, &out, false);
        hx_jw_object(&w);
        hx_jw_key(&w, "version");
        hx_jw_str(&w, s->system.version);
        hx_jw_key(&w, "state");
        hx_jw_str(&w, trial_text(st.left, a, sizeof(a)));
        hx_jw_key(&w, "on_trial");
        hx_jw_bool(&w, st.left >= 0);
        hx_jw_key(&w, "other");
        hx_jw_str(&w, st.standby);
        hx_jw_key(&w, "other_state");
        hx_jw_str(&w, st.standby[0] ? trial_text(st.standby_left, b, sizeof(b)) : "empty");
        hx_jw_key(&w, "other_reason");
        hx_jw_str(&w, why);
        hx_jw_key(&w, "next");
        hx_jw_str(&w, st.next_is_standby ? st.standby : s->system.version);
        hx_jw_end_object(&w);
        printf("%.*s\n", (int)out.len, (const char *)out.data);
        hx_buf_done(&out);
    } else if (r == 0) {
        printf("running  %-12s %s\n", s->system.version, trial_text(st.left, a, sizeof(a)));
        printf("other    %-12s %s\n", st.standby[0] ? st.standby : "-",
               st.standby[0] ? trial_text(st.standby_left, b, sizeof(b)) : "empty");
        if (why[0])
            printf("         %s failed: %s\n", st.standby, why);
        printf("next     %s\n", st.next_is_standby ? st.standby : s->system.version);
    }
    session_done(s);
    return r;
}

/* *version: of the system that runs. */
static int on_trial(const struct options *opt, const struct hx_root *root, bool *out,
                    char version[HX_VERSION_MAX], struct hx_error *err)
{
    struct session *s;
    struct hx_update_status st;
    int r = session_open(opt, root, HX_DISK_READ, &s, err);
    if (r < 0)
        return r;
    r = hx_update_status(&s->system, s->esp, &st, err);
    *out = r == 0 && st.left >= 0;
    snprintf(version, HX_VERSION_MAX, "%s", s->system.version);
    session_done(s);
    return r;
}

static int restart(const struct hx_root *root, struct hx_error *err)
{
    struct hx_commands *commands;
    struct hx_command_result result;
    const char *const argv[] = {"systemctl", "reboot", NULL};
    if (hx_root_is_fake(root)) {
        printf("restart\n");
        return 0;
    }
    int r = hx_commands_real(&commands, err);
    if (r < 0)
        return r;
    r = hx_command_run(commands, argv, RESTART_MS, &result, err);
    if (r == 0)
        hx_command_result_done(&result);
    hx_commands_free(commands);
    return r;
}

static int cmd_health(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_health now;
    struct hx_health_record before;
    struct hx_error first;
    /* A record that cannot be read must not condemn a system. */
    if (hx_health_record_read(root, &before, &first) < 0)
        fprintf(stderr, "hx-update: warning: %s\n", first.text);
    const char *missing;
    for (unsigned waited = 0;; waited += POLL_S) {
        hx_health_look(root, opt->api_port, &now);
        missing = hx_health_missing(&now, &before);
        if (!missing || waited >= opt->wait_s)
            break;
        sleep(POLL_S);
    }
    bool trial = false;
    char version[HX_VERSION_MAX] = "";
    int r = 0;
    if (missing || opt->late)
        r = on_trial(opt, root, &trial, version, missing ? err : &first);
    /* By then a start that is all right was blessed, which takes the counter off. */
    const char *fault = missing              ? missing
                        : trial && opt->late ? "it did not come to its end in time"
                                             : NULL;
    if (!fault) {
        printf("healthy: %d cards, the engine %s\n", now.n_cards,
               now.engine ? "answers" : "does not answer");
        return opt->late ? hx_health_record_write(root, &now, err) : 0;
    }
    if (r == 0 && trial && (opt->late || opt->wait_s >= LATE)) {
        fprintf(stderr, "hx-update: this start is given up: %s\n", fault);
        if (hx_health_give_up(root, version, fault, &first) < 0)
            fprintf(stderr, "hx-update: warning: the reason cannot be kept: %s\n", first.text);
        return restart(root, err);
    }
    return r < 0 ? r : hx_fail(err, -EAGAIN, "not healthy: %s", fault);
}

static int cmd_reset(const struct options *opt, const struct hx_root *root, const char *name,
                     struct hx_error *err)
{
    enum hx_reset_level level;
    if (opt->cancel)
        return hx_reset_cancel(root, opt->esp, err);
    if (!name || hx_reset_parse(name, &level) < 0)
        return hx_fail(err, -EINVAL, "reset: config, state or everything is expected");
    if (!opt->yes)
        return hx_fail(err, -EPERM, "reset %s: %s; repeat it with --yes", name,
                       hx_reset_text(level));
    int r = hx_reset_request(root, opt->esp, level, err);
    if (r == 0)
        printf("at the next start: %s\n", hx_reset_text(level));
    return r;
}

static int usage(const char *what, const char *arg)
{
    fprintf(stderr, "hx-update: %s%s%s; see --help\n", what, arg ? ": " : "", arg ? arg : "");
    return EX_USAGE;
}

static int run(const struct options *opt, const struct hx_root *root, const char *const words[],
               struct hx_error *err)
{
    const char *command = words[0];
    if (strcmp(command, "install") == 0 || strcmp(command, "verify") == 0)
        return cmd_bundle(opt, root, words[1], command[0] == 'i', err);
    if (strcmp(command, "rollback") == 0)
        return cmd_rollback(opt, root, err);
    if (strcmp(command, "status") == 0)
        return cmd_status(opt, root, err);
    if (strcmp(command, "health") == 0)
        return cmd_health(opt, root, err);
    return cmd_reset(opt, root, words[1], err);
}

static bool take_number(const char *text, uint64_t max, unsigned *out)
{
    uint64_t v;
    if (!text)
        return true;
    if (!hx_parse_u64(text, strlen(text), max, &v))
        return false;
    *out = (unsigned)v;
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int least, most; /* words behind it */
    } commands[] = {{"install", 1, 1}, {"verify", 1, 1}, {"rollback", 0, 0},
                    {"status", 0, 0},  {"health", 0, 0}, {"reset", 0, 1}};
    struct options opt = {.api_port = API_PORT};
    const struct hx_cli_option rows[] = {
        {"--root", &opt.root, NULL}, {"--esp", &opt.esp, NULL},
        {"--key", &opt.key, NULL},   {"--wait", &opt.wait, NULL},
        {"--port", &opt.port, NULL}, {"--json", NULL, &opt.json},
        {"--yes", NULL, &opt.yes},   {"--cancel", NULL, &opt.cancel},
        {"--late", NULL, &opt.late}, {0},
    };
    const char *words[2] = {0};
    int n_words = 0, found = -1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("hx-update %s\n", HX_BUILD_VERSION);
            return 0;
        }
        int r = hx_cli_take(rows, argc, argv, &i);
        if (r < 0)
            return usage(r == -EINVAL ? "a value is missing for" : "unknown option", argv[i]);
        if (r == 0 && n_words == 2)
            return usage("too many words", argv[i]);
        if (r == 0)
            words[n_words++] = argv[i];
    }
    if (n_words == 0)
        return usage("a command is missing", NULL);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(words[0], commands[i].name) == 0)
            found = (int)i;
    if (found < 0)
        return usage("unknown command", words[0]);
    if (n_words - 1 < commands[found].least || n_words - 1 > commands[found].most)
        return usage("wrong number of words for", words[0]);
    if (!take_number(opt.wait, WAIT_MAX, &opt.wait_s))
        return usage("--wait takes seconds up to an hour", opt.wait);
    if (!take_number(opt.port, 65535, &opt.api_port))
        return usage("--port takes a port number", opt.port);
    if (opt.key && strlen(opt.key) >= HX_ROOT_PATH)
        return usage("the path is too long", "--key");
    struct hx_error err = {0};
    struct hx_root *root;
    int r = hx_root_open(opt.root, &root, &err);
    if (r == 0) {
        r = run(&opt, root, words, &err);
        hx_root_close(root);
    }
    return r < 0 ? hx_cli_report("hx-update", r, &err) : 0;
}
