/* Nobody is asked: an answers file speaks. What it does not name takes the default of the question;
 * a question without a default is an error that names the key. */
#include <stdlib.h>
#include <string.h>

#include "setup/box.h"
#include "setup/ui.h"

struct script {
    struct hx_ui ui;
    const struct hx_box *answers;
    FILE *out;
    int next_key; /* of admin_key */
};

static struct script *self(struct hx_ui *ui)
{
    return (struct script *)(void *)ui;
}

static enum hx_ui_reply refuse(struct hx_ui *ui, const struct hx_ui_question *q, const char *why)
{
    hx_fail(&ui->error, -EINVAL, "%s: %s", q->key ? q->key : q->prompt, why);
    return HX_UI_ERROR;
}

/* The answer's text: of the file, else the default. */
static enum hx_ui_reply answer_of(struct script *s, const struct hx_ui_question *q, char *out,
                                  size_t size)
{
    if (q->key && strcmp(q->key, "admin_key") == 0) {
        const char *key =
            s->next_key < s->answers->n_admin_keys ? s->answers->admin_key[s->next_key++] : "";
        snprintf(out, size, "%s", key);
    } else if (q->key && hx_box_given(s->answers, q->key)) {
        if (hx_box_get(s->answers, q->key, out, size) < 0)
            return refuse(&s->ui, q, "out of memory");
    } else if (q->standard) {
        snprintf(out, size, "%s", q->standard);
    } else {
        return refuse(&s->ui, q, "missing in the answers");
    }
    return HX_UI_NEXT;
}

static enum hx_ui_reply checked(struct hx_ui *ui, const struct hx_ui_question *q, const char *value)
{
    struct hx_error err;
    if (q->check && q->check(q->ctx, value, &err) < 0)
        return refuse(ui, q, err.text);
    return HX_UI_NEXT;
}

static enum hx_ui_reply script_show(struct hx_ui *ui, const char *text)
{
    (void)ui;
    (void)text;
    return HX_UI_NEXT;
}

static enum hx_ui_reply script_confirm(struct hx_ui *ui, const struct hx_ui_question *q,
                                       bool *answer)
{
    char value[16];
    *answer = q->unattended;
    if (!q->key)
        return HX_UI_NEXT;
    enum hx_ui_reply r = answer_of(self(ui), q, value, sizeof(value));
    if (r == HX_UI_NEXT)
        *answer = strcmp(value, "yes") == 0;
    return r;
}

static enum hx_ui_reply script_text(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                    size_t size)
{
    enum hx_ui_reply r = answer_of(self(ui), q, answer, size);
    return r == HX_UI_NEXT ? checked(ui, q, answer) : r;
}

static enum hx_ui_reply script_choice(struct hx_ui *ui, const struct hx_ui_question *q,
                                      const struct hx_ui_item *items, int n, int *answer)
{
    char value[HX_UI_ANSWER_MAX];
    enum hx_ui_reply r = answer_of(self(ui), q, value, sizeof(value));
    if (r != HX_UI_NEXT)
        return r;
    for (int i = 0; i < n; i++) {
        if (strcmp(items[i].value, value) == 0) {
            *answer = i;
            return checked(ui, q, value);
        }
    }
    char why[200];
    snprintf(why, sizeof(why), "'%.80s' is not on offer here", value);
    return refuse(ui, q, why);
}

static void script_progress(struct hx_ui *ui, const char *label, int percent)
{
    struct script *s = self(ui);
    if (s->out && percent < 0)
        fprintf(s->out, "%s ...\n", label);
    else if (s->out)
        fprintf(s->out, "%s: %d %%\n", label, percent);
}

static void script_close(struct hx_ui *ui)
{
    free(self(ui));
}

int hx_ui_script_open(const struct hx_box *answers, FILE *out, struct hx_ui **ui,
                      struct hx_error *err)
{
    static const struct hx_ui_ops ops = {script_show, script_confirm,  script_choice, script_text,
                                         script_text, script_progress, script_close};
    struct script *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    *s = (struct script){.ui.ops = &ops, .answers = answers, .out = out};
    *ui = &s->ui;
    return 0;
}
