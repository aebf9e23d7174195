#include "setup/installer.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/drive.h"
#include "setup/lock.h"
#include "setup/stream.h"

#define CHECK_MS  900000
#define LIST_MS   60000
#define RUN_MS    3600000
#define MAX_DISKS 32

struct disk {
    char name[64], serial[128], model[64], content[96], reason[96], label[300];
    double bytes;
    bool usable, keepable;
};

struct install {
    struct hx_setup *s;
    const char *answers;
    struct disk disk[MAX_DISKS];
    int n_disks;
    int mode; /* enum hx_box_mode */
    const struct disk *target;
    bool checked, try_out;
};

bool hx_installer_mode(const struct hx_setup *s)
{
    char line[4096], *rest = line;
    if (hx_root_text(s->root, "/proc/cmdline", line, sizeof(line)) < 0)
        return false;
    for (char *word; (word = strsep(&rest, " "));) {
        if (strcmp(word, "hx170.mode=installer") == 0)
            return true;
    }
    return false;
}

static void on_progress(void *ctx, const char *step, int percent)
{
    static const struct {
        const char *step, *words;
    } rows[] = {{"system", "Writing the system"},
                {"check", "Checking"},
                {"esp", "Writing the start files"}};
    struct install *in = ctx;
    const char *words = step;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].step, step) == 0)
            words = rows[i].words;
    }
    hx_ui_progress(in->s->ui, words, percent);
}

/* ---- screens --------------------------------------------------------------------------------- */

static enum hx_ui_reply ask_keyboard(struct install *in)
{
    static const struct hx_ui_item items[] = {
        {"us", "English (US)"},
        {"uk", "English (UK)"},
        {"de", "German"},
        {"fr", "French"},
        {"es", "Spanish"},
        {"it", "Italian"},
        {"pt-latin1", "Portuguese"},
        {"br-abnt2", "Brazilian"},
        {"pl", "Polish"},
        {"cz", "Czech"},
        {"sv-latin1", "Swedish"},
        {"no", "Norwegian"},
        {"dk", "Danish"},
        {"fi", "Finnish"},
        {"jp106", "Japanese"},
        {"ru", "Russian"},
    };
    const int n = sizeof(items) / sizeof(items[0]);
    struct hx_setup *s = in->s;
    char sample[256];
    int at = 0;
    struct hx_ui_question q = {
        .body = "Over a serial line or SSH your own computer decides; take the first.",
        .prompt = "Keyboard",
        .help = "The layout of the keys, so that what you type is what appears.",
        .standard = "us"};
    enum hx_ui_reply reply = hx_ui_choice(s->ui, &q, items, n, &at);
    if (reply != HX_UI_NEXT || s->scripted)
        return reply;
    const char *argv[] = {"loadkeys", items[at].value, NULL};
    struct hx_error err;
    char *out = NULL;
    int rc;
    if (at > 0 && hx_setup_tool(s, argv, LIST_MS, &rc, &out, &err) == 0)
        free(out);
    struct hx_ui_question test = {.prompt = "Type some signs to test it, or nothing",
                                  .help = "Nothing is kept of this.",
                                  .standard = ""};
    return hx_ui_text(s->ui, &test, sample, sizeof(sample));
}

static enum hx_ui_reply ask_check(struct install *in)
{
    static const char *const argv[] = {"hx-install", "check", "--json", NULL};
    struct hx_setup *s = in->s;
    struct hx_error err;
    bool yes = true;
    int rc = 0;
    struct hx_ui_question q = {
        .body = "A damaged stick is the most common reason for odd faults. Reading all of it takes "
                "a minute or two.",
        .prompt = "Check this stick (yes or no)",
        .help = "The whole stick is read and compared with what it should hold.",
        .standard = "yes",
        .unattended = true};
    /* Without anybody to see it: the installation itself reads all of it before it writes. */
    if (s->scripted)
        return HX_UI_NEXT;
    enum hx_ui_reply reply = hx_ui_confirm(s->ui, &q, &yes);
    if (reply != HX_UI_NEXT)
        return reply;
    if (!yes)
        return hx_ui_show(s->ui, "The stick was not checked. If the installation fails, check it "
                                 "first. The copy on the disk is compared in any case.");
    if (hx_stream_run(s, argv, CHECK_MS, on_progress, in, &rc, &err) == 0 && rc == 0)
        return HX_UI_NEXT;
    hx_fail(&s->ui->error, -EINVAL, "this stick is damaged or cannot be read: %s; make a new one",
            err.text);
    return HX_UI_ERROR;
}

static void copy(struct hx_jv v, char *out, size_t size)
{
    size_t n;
    const char *text = hx_jv_str(v, &n);
    snprintf(out, size, "%.*s", text ? (int)(n > size ? size : n) : 0, text ? text : "");
}

static void take_disk(struct hx_jv v, struct disk *d)
{
    *d = (struct disk){0};
    copy(hx_jv_get(v, "name"), d->name, sizeof(d->name));
    copy(hx_jv_get(v, "serial"), d->serial, sizeof(d->serial));
    copy(hx_jv_get(v, "model"), d->model, sizeof(d->model));
    copy(hx_jv_get(v, "content"), d->content, sizeof(d->content));
    copy(hx_jv_get(v, "reason"), d->reason, sizeof(d->reason));
    if (!hx_jv_bool(hx_jv_get(v, "usable"), &d->usable) || !*d->serial)
        d->usable = false;
    if (!hx_jv_bool(hx_jv_get(v, "models_can_be_kept"), &d->keepable))
        d->keepable = false;
    if (!hx_jv_double(hx_jv_get(v, "bytes"), &d->bytes) || d->bytes < 0)
        d->bytes = 0;
    struct hx_drive_words words = {d->name, d->model, d->serial, d->content, d->bytes};
    hx_drive_label(&words, d->label, sizeof(d->label));
}

static int take_disks(struct install *in, const char *json, struct hx_error *err)
{
    static const struct hx_json_limits limits = {1u << 20, 20000, 16, 0};
    struct hx_json *doc = NULL;
    int r = hx_json_parse(json, strlen(json), &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "answer of hx-install");
    in->n_disks = 0;
    struct hx_jv v = hx_jv_first(hx_json_root(doc));
    for (; v.doc && in->n_disks < MAX_DISKS; v = hx_jv_next(v)) {
        take_disk(v, &in->disk[in->n_disks++]);
    }
    hx_json_free(doc);
    return 0;
}

static int list_disks(struct install *in, struct hx_error *err)
{
    static const char *const argv[] = {"hx-install", "list", "--json", NULL};
    char *json = NULL;
    int rc, r = hx_setup_tool(in->s, argv, LIST_MS, &rc, &json, err);
    if (r == 0)
        r = rc == 0 ? take_disks(in, json, err) : -EIO;
    free(json);
    return r;
}

static bool can_keep(const struct install *in)
{
    for (int i = 0; i < in->n_disks; i++) {
        if (in->disk[i].usable && in->disk[i].keepable)
            return true;
    }
    return false;
}

static enum hx_ui_reply ask_mode(struct install *in)
{
    struct hx_ui_item items[3] = {{"install", "install on a disk; everything on it is erased"}};
    struct hx_setup *s = in->s;
    int n = 1, at = 0;
    if (list_disks(in, &s->ui->error) < 0)
        return HX_UI_ERROR;
    if (can_keep(in))
        items[n++] = (struct hx_ui_item){"reinstall", "install again and keep the models"};
    items[n++] = (struct hx_ui_item){"try", "try it without installing; nothing is kept"};
    struct hx_ui_question q = {
        .key = "mode",
        .prompt = "What to do",
        .help = "Trying it runs all from memory: no disk is touched. An installed system is "
                "updated from itself, with hx update.",
        .standard = "install"};
    enum hx_ui_reply reply = hx_ui_choice(s->ui, &q, items, n, &at);
    if (reply != HX_UI_NEXT)
        return reply;
    in->try_out = strcmp(items[at].value, "try") == 0;
    in->mode = strcmp(items[at].value, "reinstall") == 0 ? HX_MODE_REINSTALL : HX_MODE_INSTALL;
    return reply;
}

/* Disks that will not do are named with the reason, so that nobody searches for them. */
static void refused_disks(const struct install *in, struct hx_buf *out)
{
    for (int i = 0; i < in->n_disks; i++) {
        const struct disk *d = &in->disk[i];
        if (!d->usable)
            hx_buf_printf(out, "Not possible: %s: %s\n", d->label,
                          *d->reason ? d->reason : "it has no serial number");
    }
}

static enum hx_ui_reply no_disk(struct install *in, const char *refused)
{
    struct hx_setup *s = in->s;
    if (s->scripted) {
        hx_fail(&s->ui->error, -EINVAL, "target_serial: there is no disk to install on");
        return HX_UI_ERROR;
    }
    char text[4000];
    snprintf(text, sizeof(text),
             "There is no disk to install on.\n%.3800s\nConnect one, go on, and "
             "it is looked for again.",
             refused);
    enum hx_ui_reply reply = hx_ui_show(s->ui, text);
    return reply == HX_UI_NEXT ? HX_UI_BACK : reply;
}

static enum hx_ui_reply ask_disk(struct install *in)
{
    struct hx_ui_item items[MAX_DISKS];
    const struct disk *row[MAX_DISKS];
    struct hx_setup *s = in->s;
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    int n = 0, at = 0;
    for (int i = 0; i < in->n_disks; i++) {
        const struct disk *d = &in->disk[i];
        if (!d->usable || (in->mode == HX_MODE_REINSTALL && !d->keepable))
            continue;
        row[n] = d;
        items[n++] = (struct hx_ui_item){d->serial, d->label};
    }
    refused_disks(in, &body);
    const char *text = hx_buf_cstr(&body);
    enum hx_ui_reply reply;
    if (n == 0) {
        reply = no_disk(in, text ? text : "");
    } else {
        struct hx_ui_question q = {
            .key = "target_serial",
            .body = text,
            .prompt = "Disk",
            .help = "The system takes about 21 GB, the models take the rest. The large model needs "
                    "about 400 GB. The serial number is also on the disk's label."};
        reply = hx_ui_choice(s->ui, &q, items, n, &at);
        if (reply == HX_UI_NEXT)
            in->target = row[at];
    }
    hx_buf_done(&body);
    return reply;
}

static int check_confirm(void *ctx, const char *answer, struct hx_error *err)
{
    const struct install *in = ctx;
    const char *serial = in->target->serial;
    size_t n = strlen(serial), tail = n > 4 ? n - 4 : 0;
    if (strcmp(answer, serial + tail) == 0 || strcmp(answer, serial) == 0)
        return 0;
    return hx_fail(err, -EINVAL, "found '%.40s', which is not the end of this disk's serial number",
                   answer);
}

static enum hx_ui_reply ask_confirm(struct install *in)
{
    char body[900], answer[200];
    bool keep = in->mode == HX_MODE_REINSTALL;
    snprintf(body, sizeof(body),
             "This disk is about to be written:\n  %s\n%s\nOther disks are not touched.",
             in->target->label,
             keep ? "System and settings on it are ERASED. The models stay."
                  : "EVERYTHING on it is ERASED and cannot be brought back.");
    struct hx_ui_question q = {
        .key = "confirm_erase_serial",
        .body = body,
        .prompt = "Type the last four characters of its serial number",
        .help = "The serial number stands in the line above. This makes sure that it is the disk "
                "you mean. b goes back without writing anything.",
        .check = check_confirm,
        .ctx = in};
    return hx_ui_text(in->s->ui, &q, answer, sizeof(answer));
}

static enum hx_ui_reply do_install(struct install *in)
{
    const char *argv[12] = {"hx-install",       "run",       "--json",          "--disk",
                            in->target->serial, "--confirm", in->target->serial};
    struct hx_error err;
    int n = 7, rc = 0;
    if (in->mode == HX_MODE_REINSTALL)
        argv[n++] = "--keep-models";
    if (in->answers) {
        argv[n++] = "--answers";
        argv[n++] = in->answers;
    }
    hx_setup_lock_busy(in->s, "The disk is being written.");
    hx_ui_progress(in->s->ui, "Installing", 0);
    if (hx_stream_run(in->s, argv, RUN_MS, on_progress, in, &rc, &err) == 0 && rc == 0)
        return HX_UI_NEXT;
    if (in->s->scripted) {
        hx_fail(&in->s->ui->error, -EIO, "the installation failed: %s", err.text);
        return HX_UI_ERROR;
    }
    char text[sizeof(err.text) + 200];
    snprintf(text, sizeof(text),
             "The installation failed:\n%s\nThe disk does not start now. Go on to try again.",
             err.text);
    hx_setup_lock_screen(in->s, in->s->ui->number, in->s->ui->total, in->s->ui->title);
    enum hx_ui_reply reply = hx_ui_show(in->s->ui, text);
    return reply == HX_UI_NEXT ? HX_UI_BACK : reply;
}

static enum hx_ui_reply say_done(struct install *in)
{
    static const char *const restart[] = {"systemctl", "--no-block", "reboot", NULL};
    static const char *const off[] = {"systemctl", "--no-block", "poweroff", NULL};
    struct hx_setup *s = in->s;
    struct hx_error err;
    char *out = NULL;
    int rc;
    enum hx_ui_reply reply =
        hx_ui_show(s->ui, "The system is installed. Remove the stick now, then go on: the machine "
                          "starts again from its disk and asks the rest.");
    if (s->scripted) {
        printf("hx170 is installed on %s; the machine switches off\n", in->target->name);
        fflush(stdout); /* no terminal: it would come after the power is off */
    }
    /* Nobody is there to remove the stick: starting again would start it once more. */
    if (reply == HX_UI_NEXT &&
        hx_setup_tool(s, s->scripted ? off : restart, LIST_MS, &rc, &out, &err) == 0)
        free(out);
    return reply;
}

static const struct {
    const char *title;
    enum hx_ui_reply (*ask)(struct install *in);
} screens[] = {
    {"Keyboard", ask_keyboard}, {"Check this stick", ask_check},
    {"What to do", ask_mode},   {"Choose the disk", ask_disk},
    {"Confirm", ask_confirm},   {"Installing", do_install},
    {"Done", say_done},
};
#define N_SCREENS ((int)(sizeof(screens) / sizeof(screens[0])))

enum hx_ui_reply hx_installer_run(struct hx_setup *s, const char *answers, bool *try_out,
                                  struct hx_error *err)
{
    struct install *in = calloc(1, sizeof(*in));
    enum hx_ui_reply reply = HX_UI_NEXT;
    if (!in) {
        hx_fail(err, -ENOMEM, "out of memory");
        return HX_UI_ERROR;
    }
    in->s = s;
    in->answers = answers;
    for (int i = 0; i < N_SCREENS && !in->try_out;) {
        hx_ui_screen(s->ui, i + 1, N_SCREENS, screens[i].title);
        hx_setup_lock_screen(s, i + 1, N_SCREENS, screens[i].title);
        reply = screens[i].ask(in);
        if (reply == HX_UI_NEXT)
            i++;
        else if (reply == HX_UI_BACK)
            i -= i > 0;
        else
            break;
    }
    if (reply == HX_UI_ERROR)
        *err = s->ui->error;
    *try_out = in->try_out;
    free(in);
    return reply;
}
