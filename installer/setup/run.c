/* Order of the screens, what is kept between them, and the moment when answers come into force. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "setup/lock.h"
#include "setup/setup.h"

int hx_setup_open(struct hx_setup *s, const char *root_dir, const char *commands,
                  struct hx_error *err)
{
    *s = (struct hx_setup){.root_dir = root_dir && strcmp(root_dir, "/") != 0 ? root_dir : "",
                           .lock_fd = -1};
    hx_box_init(&s->box);
    int r = hx_root_open(root_dir, &s->root, err);
    if (r == 0 && (commands || *s->root_dir))
        r = hx_commands_table(commands, &s->tools, err);
    else if (r == 0)
        r = hx_commands_real(&s->tools, err);
    if (r < 0)
        hx_setup_close(s);
    return r;
}

void hx_setup_close(struct hx_setup *s)
{
    if (!s)
        return;
    hx_root_close(s->root);
    hx_commands_free(s->tools);
    hx_box_done(&s->box);
    explicit_bzero(s->token, sizeof(s->token));
    s->root = NULL;
    s->tools = NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

int hx_setup_path(const struct hx_setup *s, const char *path, char out[HX_ROOT_PATH],
                  struct hx_error *err)
{
    if (snprintf(out, HX_ROOT_PATH, "%s%s", s->root_dir, path) >= HX_ROOT_PATH)
        return hx_fail(err, -ENAMETOOLONG, "%.100s: the path is too long", path);
    return 0;
}

int hx_setup_folders(char *path, struct hx_error *err)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return hx_fail_errno(err, errno, "%s: cannot make the folder", path);
        *p = '/';
    }
    return 0;
}

int hx_setup_put(const struct hx_setup *s, const char *path, const void *data, size_t n,
                 unsigned mode, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    int r = hx_setup_path(s, path, at, err);
    mode_t old = umask(022);
    if (r == 0)
        r = hx_setup_folders(at, err);
    /* The new file has its mode from the first byte on. */
    umask(0777 & ~mode);
    if (r == 0)
        r = hx_file_replace(at, data, n, err);
    umask(old);
    if (r == 0 && chmod(at, mode) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot set its mode", at);
    return r;
}

static int put_box(struct hx_setup *s, const char *path, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(HX_BOX_FILE_MAX);
    int r = hx_box_write(&s->box, HX_BOX_STATE, &text);
    if (r < 0)
        hx_fail(err, r, "out of memory");
    else
        r = hx_setup_put(s, path, text.data, text.len, 0644, err);
    hx_buf_done(&text);
    return r;
}

static int remove_file(const struct hx_setup *s, const char *path)
{
    char at[HX_ROOT_PATH];
    return hx_setup_path(s, path, at, NULL) == 0 && unlink(at) < 0 ? -errno : 0;
}

static int read_box(struct hx_setup *s, const char *path, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    struct hx_box box;
    int r = hx_setup_path(s, path, at, err);
    if (r == 0)
        r = hx_box_read(at, HX_BOX_STATE, &box, err);
    if (r < 0)
        return r;
    hx_box_done(&s->box);
    s->box = box;
    return 0;
}

int hx_setup_load(struct hx_setup *s, struct hx_error *err)
{
    int r = read_box(s, HX_SETUP_DRAFT, err);
    if (r == -ENOENT)
        r = read_box(s, HX_SETUP_BOX, err);
    if (r == -ENOENT) {
        hx_box_done(&s->box);
        r = 0;
    }
    return r;
}

int hx_setup_save_draft(struct hx_setup *s, struct hx_error *err)
{
    return put_box(s, HX_SETUP_DRAFT, err);
}

/* ---- apply ----------------------------------------------------------------------------------- */

static int keep_previous(struct hx_setup *s, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    struct hx_error why;
    int r = hx_root_read(s->root, HX_SETUP_BOX, HX_BOX_FILE_MAX, &text, &n, &why);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = hx_setup_put(s, HX_SETUP_OLD, text, n, 0644, err);
    else
        hx_fail(err, r, "%s", why.text);
    free(text);
    return r;
}

int hx_setup_apply(struct hx_setup *s, struct hx_error *err)
{
    int done = 0, r = hx_box_check(&s->box, HX_BOX_STATE, err);
    for (; r == 0 && done < hx_setup_n_steps; done++) {
        const struct hx_setup_step *step = &hx_setup_steps[done];
        if (!step->apply)
            continue;
        r = step->apply(s, err);
        if (r < 0) {
            hx_wrap(err, r, "%s", step->title);
            break;
        }
    }
    if (r == 0)
        r = keep_previous(s, err);
    if (r == 0)
        r = put_box(s, HX_SETUP_BOX, err);
    if (r == 0) {
        remove_file(s, HX_SETUP_DRAFT);
        explicit_bzero(s->token, sizeof(s->token));
        return 0;
    }
    while (done-- > 0) {
        if (hx_setup_steps[done].undo)
            hx_setup_steps[done].undo(s);
    }
    return r;
}

/* ---- screens --------------------------------------------------------------------------------- */

static enum hx_ui_reply ask(struct hx_setup *s, int i, struct hx_error *err)
{
    const struct hx_setup_step *step = &hx_setup_steps[i];
    hx_ui_screen(s->ui, i + 1, hx_setup_n_steps, step->title);
    hx_setup_lock_screen(s, i + 1, hx_setup_n_steps, step->title);
    enum hx_ui_reply reply = step->ask(s);
    if (reply == HX_UI_ERROR)
        *err = s->ui->error;
    return reply;
}

static bool is_needed(const struct hx_setup *s, int i)
{
    return !hx_setup_steps[i].needed || hx_setup_steps[i].needed(s);
}

static int first_open(const struct hx_setup *s)
{
    for (int i = 0; i < hx_setup_n_steps; i++) {
        if (is_needed(s, i) && !hx_box_is_done(&s->box, hx_setup_steps[i].id))
            return i;
    }
    return hx_setup_n_steps - 1;
}

static int step_back(const struct hx_setup *s, int i)
{
    for (int k = i - 1; k >= 0; k--) {
        if (is_needed(s, k))
            return k;
    }
    return i;
}

/* The review's yes: all comes into force. A refusal is shown, and the person may go back. */
static enum hx_ui_reply put_in_force(struct hx_setup *s, struct hx_error *err)
{
    hx_setup_lock_busy(s, "The answers are put in force.");
    int r = hx_setup_apply(s, err);
    if (r == 0)
        r = hx_setup_activate(s, err);
    if (r == 0)
        return HX_UI_NEXT;
    if (s->scripted)
        return HX_UI_ERROR;
    char text[sizeof(err->text) + 120];
    snprintf(text, sizeof(text),
             "This could not be put in force, and nothing was changed:\n%s\nGo on, then go back "
             "with b to the answer that has to change.",
             err->text);
    hx_setup_lock_screen(s, s->ui->number, s->ui->total, s->ui->title);
    enum hx_ui_reply reply = hx_ui_show(s->ui, text);
    return reply == HX_UI_NEXT ? HX_UI_BACK : reply;
}

static enum hx_ui_reply run_one(struct hx_setup *s, int i, struct hx_error *err)
{
    enum hx_ui_reply reply = ask(s, i, err);
    if (reply != HX_UI_NEXT)
        return reply;
    hx_box_set_done(&s->box, hx_setup_steps[i].id, true);
    hx_setup_lock_busy(s, "The answers are put in force.");
    int r = hx_setup_apply(s, err);
    if (r == 0)
        r = hx_setup_activate(s, err);
    return r == 0 ? HX_UI_NEXT : HX_UI_ERROR;
}

static enum hx_ui_reply run_all(struct hx_setup *s, struct hx_error *err)
{
    const int review = hx_setup_find("review");
    for (int i = first_open(s); i < hx_setup_n_steps;) {
        if (!is_needed(s, i)) {
            i++;
            continue;
        }
        enum hx_ui_reply reply = ask(s, i, err);
        if (reply == HX_UI_NEXT) {
            hx_box_set_done(&s->box, hx_setup_steps[i].id, true);
            if (i == review)
                reply = put_in_force(s, err);
            else if (i < review) {
                int r = hx_setup_save_draft(s, err);
                if (r < 0)
                    return HX_UI_ERROR;
            }
            if (reply != HX_UI_NEXT)
                hx_box_set_done(&s->box, hx_setup_steps[i].id, false);
        }
        if (reply == HX_UI_QUIT || reply == HX_UI_ERROR)
            return reply;
        i = reply == HX_UI_BACK ? step_back(s, i) : i + 1;
    }
    return HX_UI_NEXT;
}

enum hx_ui_reply hx_setup_run(struct hx_setup *s, const char *only, struct hx_error *err)
{
    int i = only ? hx_setup_find(only) : -1;
    return i >= 0 ? run_one(s, i, err) : run_all(s, err);
}

/* ---- for steps ------------------------------------------------------------------------------- */

struct checked {
    const char *key;
    struct hx_box *scratch;
};

/* A lone - empties a field whose default is not empty. */
static const char *emptied(const char *answer)
{
    return strcmp(answer, "-") == 0 ? "" : answer;
}

static int check_key(void *ctx, const char *answer, struct hx_error *err)
{
    const struct checked *c = ctx;
    return hx_box_set(c->scratch, c->key, emptied(answer), err);
}

enum hx_ui_reply hx_setup_ask_text(struct hx_setup *s, const char *key, const char *body,
                                   const char *prompt, const char *help)
{
    struct hx_box scratch;
    char standard[600], answer[HX_UI_ANSWER_MAX];
    hx_box_init(&scratch);
    struct checked c = {key, &scratch};
    struct hx_ui_question q = {.key = key,
                               .body = body,
                               .prompt = prompt,
                               .help = help,
                               .standard = standard,
                               .check = check_key,
                               .ctx = &c};
    if (hx_box_get(&s->box, key, standard, sizeof(standard)) < 0) {
        hx_fail(&s->ui->error, -ENOMEM, "out of memory");
        return HX_UI_ERROR;
    }
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, key, emptied(answer), &s->ui->error) < 0 ? HX_UI_ERROR : HX_UI_NEXT;
}

enum hx_ui_reply hx_setup_ask_choice(struct hx_setup *s, const char *key, const char *body,
                                     const char *prompt, const char *help,
                                     const struct hx_ui_item *items, int n)
{
    char standard[600];
    int at = 0;
    struct hx_ui_question q = {
        .key = key, .body = body, .prompt = prompt, .help = help, .standard = standard};
    if (hx_box_get(&s->box, key, standard, sizeof(standard)) < 0) {
        hx_fail(&s->ui->error, -ENOMEM, "out of memory");
        return HX_UI_ERROR;
    }
    enum hx_ui_reply reply = hx_ui_choice(s->ui, &q, items, n, &at);
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, key, items[at].value, &s->ui->error) < 0 ? HX_UI_ERROR : HX_UI_NEXT;
}

int hx_setup_tool(const struct hx_setup *s, const char *const argv[], int timeout_ms, int *rc,
                  char **out, struct hx_error *err)
{
    struct hx_command_result result = {0};
    int r = hx_command_run(s->tools, argv, timeout_ms, &result, err);
    if (r < 0)
        return r;
    if (result.timed_out)
        r = hx_fail(err, -ETIMEDOUT, "%s did not answer in %d s", argv[0], timeout_ms / 1000);
    else if (result.rc == HX_COMMAND_MISSING)
        r = hx_fail(err, -ENOENT, "%s is not installed", argv[0]);
    else if (!result.out)
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0 && result.rc != 0)
        hx_fail(err, -EIO, "%s", *result.err_text ? result.err_text : result.out);
    if (r == 0) {
        *rc = result.rc;
        *out = result.out;
        result.out = NULL;
    }
    hx_command_result_done(&result);
    return r;
}
