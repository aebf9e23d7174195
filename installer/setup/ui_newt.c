/* Dialogs on a terminal: one window for each question, with OK, Back and Leave; F1 explains. */
#include <newt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "setup/ui.h"

#define WIDTH    70
#define LIST_MAX 8
#define AHEAD    (16 << 10) /* bytes of a paste behind its first line */
#define PASTE_MS 60         /* the next byte of a paste comes sooner */

struct dialogs {
    struct hx_ui ui;
    bool progress_open;
    newtComponent form, label, scale;
    /* Lines of a paste that are answers to the same question. newt throws away what comes before
     * the next window is open. */
    char ahead[AHEAD];
    size_t n_ahead;
};

static struct dialogs *self(struct hx_ui *ui)
{
    return (struct dialogs *)(void *)ui;
}

static int lines_of(const char *text)
{
    int n = 1;
    for (const char *p = text; *p; p++)
        n += *p == '\n' && p[1] != '\0';
    return n;
}

static void close_progress(struct dialogs *d)
{
    if (!d->progress_open)
        return;
    newtFormDestroy(d->form);
    newtPopWindow();
    d->progress_open = false;
}

/* A window under construction: the text, the prompt, what the question needs, the buttons. */
struct window {
    struct hx_ui *ui;
    newtComponent form, reading, ok, back, leave; /* reading: a text to be scrolled, or NULL */
    int top;                                      /* next free line */
    bool compact;
    char title[120];
    char *text, *prompt;
};

/* Lines of a window besides the text: frame, empty lines, shadow, the help line; buttons in frames
 * or plain ones. */
#define AROUND         9
#define BUTTON_FRAMED  4
#define BUTTON_COMPACT 1

/* Adds a text of so many lines; more than that are scrolled, by somebody who has to see them before
 * the answer gets the keys. */
static void add_text(struct window *w, const char *text, int top, int width, int shown)
{
    bool scroll = lines_of(text) > shown;
    /* newt puts the scroll bar beside the given width. */
    newtComponent box =
        newtTextbox(1, top, width - (scroll ? 4 : 2), shown, scroll ? NEWT_FLAG_SCROLL : 0);
    newtTextboxSetText(box, text);
    newtFormAddComponent(w->form, box);
    if (scroll)
        w->reading = box;
}

/* text and prompt may be NULL. A long text is scrolled, the prompt always stays in sight. room:
 * lines that the question needs below it. */
static bool open_window(struct window *w, struct hx_ui *ui, const char *text, const char *prompt,
                        int room)
{
    int cols, rows;
    *w = (struct window){.ui = ui};
    close_progress(self(ui));
    newtGetScreenSize(&cols, &rows);
    int width = cols < WIDTH + 6 ? cols - 6 : WIDTH;
    w->text = hx_ui_wrap(text ? text : "", width - 5);
    w->prompt = hx_ui_wrap(prompt ? prompt : "", width - 3);
    if (!w->text || !w->prompt) {
        hx_fail(&ui->error, -ENOMEM, "out of memory");
        free(w->text);
        free(w->prompt);
        return false;
    }
    int asked = prompt ? lines_of(w->prompt) : 0, lines = text ? lines_of(w->text) : 0;
    int gap = asked && lines, most = rows - room - asked - gap - AROUND;
    w->compact = lines > most - BUTTON_FRAMED;
    most -= w->compact ? BUTTON_COMPACT : BUTTON_FRAMED;
    int shown = lines > most ? (most < 3 ? 3 : most) : lines, all = shown + gap + asked;
    snprintf(w->title, sizeof(w->title), "Step %d of %d. %.60s", ui->number, ui->total,
             ui->title ? ui->title : "");
    newtCls();
    newtPushHelpLine(lines > shown
                         ? " Up, Down: read on   Tab: to the answer   F1: explain   Esc: back"
                         : " Tab: next   Enter: choose   F1: explain   Esc: back");
    newtCenteredWindow(
        width, (unsigned)(all + room + 2 + (w->compact ? BUTTON_COMPACT + 1 : BUTTON_FRAMED)),
        w->title);
    w->form = newtForm(NULL, NULL, 0);
    if (lines)
        add_text(w, w->text, 1, width, shown);
    if (asked)
        add_text(w, w->prompt, 1 + shown + gap, width, asked);
    newtFormAddHotKey(w->form, NEWT_KEY_F1);
    newtFormAddHotKey(w->form, NEWT_KEY_ESCAPE);
    w->top = all + 2;
    return true;
}

static void add_buttons(struct window *w, int room)
{
    newtComponent (*make)(int left, int top, const char *text) =
        w->compact ? newtCompactButton : newtButton;
    int top = w->top + room;
    w->ok = make(8, top, "OK");
    w->back = make(26, top, "Back");
    w->leave = make(46, top, "Leave");
    newtFormAddComponents(w->form, w->ok, w->back, w->leave, NULL);
}

static void close_window(struct window *w)
{
    newtFormDestroy(w->form);
    newtPopWindow();
    newtPopHelpLine();
    free(w->text);
    free(w->prompt);
}

static void tell(struct window *w, const char *text)
{
    char *lines = hx_ui_wrap(text, 56);
    int n = lines ? lines_of(lines) : 1;
    newtCenteredWindow(60, (unsigned)(n + 6), "Note");
    newtComponent form = newtForm(NULL, NULL, 0), box = newtTextbox(1, 1, 58, n, 0);
    newtTextboxSetText(box, lines ? lines : text);
    newtFormAddComponents(form, box, newtButton(24, n + 2, "OK"), NULL);
    newtRunForm(form);
    newtFormDestroy(form);
    newtPopWindow();
    free(lines);
    (void)w;
}

/* Runs until there is an answer to look at, or the person goes another way. */
static enum hx_ui_reply run(struct window *w, const char *help_text)
{
    for (;;) {
        struct newtExitStruct how;
        newtFormRun(w->form, &how);
        if (how.reason == NEWT_EXIT_ERROR)
            return HX_UI_QUIT;
        if (how.reason == NEWT_EXIT_HOTKEY && how.u.key == NEWT_KEY_F1) {
            tell(w, help_text ? help_text : "There is no more to say about this.");
            continue;
        }
        if (how.reason == NEWT_EXIT_HOTKEY)
            return HX_UI_BACK;
        if (how.u.co == w->back)
            return HX_UI_BACK;
        if (how.u.co == w->leave)
            return HX_UI_QUIT;
        return HX_UI_NEXT;
    }
}

static bool accepted(struct window *w, const struct hx_ui_question *q, const char *answer)
{
    struct hx_error err;
    if (!q->check || q->check(q->ctx, answer, &err) == 0)
        return true;
    char text[sizeof(err.text) + 20];
    snprintf(text, sizeof(text), "Not accepted: %s.", err.text);
    tell(w, text);
    return false;
}

/* The window of a question. */
static bool open_question(struct window *w, struct hx_ui *ui, const struct hx_ui_question *q,
                          int room)
{
    char prompt[300];
    snprintf(prompt, sizeof(prompt), "%s:", q->prompt);
    return open_window(w, ui, q->body && *q->body ? q->body : NULL, prompt, room);
}

static enum hx_ui_reply newt_show(struct hx_ui *ui, const char *text)
{
    struct window w;
    if (!open_window(&w, ui, text, NULL, 0))
        return HX_UI_ERROR;
    add_buttons(&w, 0);
    newtFormSetCurrent(w.form, w.reading ? w.reading : w.ok);
    enum hx_ui_reply r = run(&w, "OK goes on, Back goes to the screen before, Leave ends the setup "
                                 "and keeps your answers.");
    close_window(&w);
    return r;
}

/* Line feeds end a line as well; what comes right behind a line is kept for the next one. */
static int on_key(newtComponent entry, void *ctx, int key, int cursor)
{
    struct dialogs *d = ctx;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    (void)cursor;
    if (key != '\n' && key != NEWT_KEY_RETURN)
        return key;
    while (*newtEntryGetValue(entry) && d->n_ahead < AHEAD && poll(&p, 1, PASTE_MS) > 0) {
        ssize_t n = read(STDIN_FILENO, d->ahead + d->n_ahead, AHEAD - d->n_ahead);
        if (n <= 0)
            break;
        d->n_ahead += (size_t)n;
    }
    return NEWT_KEY_RETURN;
}

/* The next line of the paste that is not empty; *whole: its end was pasted too. NULL: none. Keys
 * that are no signs end it all. */
static char *take_ahead(struct dialogs *d, bool *whole)
{
    size_t from = 0, to;
    while (from < d->n_ahead && (d->ahead[from] == '\r' || d->ahead[from] == '\n'))
        from++;
    for (to = from; to < d->n_ahead && (unsigned char)d->ahead[to] >= ' '; to++)
        continue;
    *whole = to < d->n_ahead && (d->ahead[to] == '\r' || d->ahead[to] == '\n');
    char *line = to > from ? strndup(d->ahead + from, to - from) : NULL;
    size_t left = *whole ? d->n_ahead - to : 0;
    memmove(d->ahead, d->ahead + to, left);
    d->n_ahead = left;
    return line;
}

/* Pasted lines answer without a window, up to one that is refused or has no end yet: that one is
 * left in *rest, to be seen and mended. */
static bool answered_ahead(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                           size_t size, char **rest)
{
    bool whole;
    char *line = take_ahead(self(ui), &whole);
    bool done = line && whole && strlen(line) < size && accepted(NULL, q, line);
    if (done)
        snprintf(answer, size, "%s", line);
    *rest = done ? NULL : line;
    if (done)
        free(line);
    return done;
}

static enum hx_ui_reply ask_line(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                 size_t size, int flags)
{
    struct window w;
    char *rest = NULL;
    if (q->several && answered_ahead(ui, q, answer, size, &rest))
        return HX_UI_NEXT;
    self(ui)->n_ahead = q->several ? self(ui)->n_ahead : 0;
    if (!open_question(&w, ui, q, 2)) {
        free(rest);
        return HX_UI_ERROR;
    }
    const char *initial = rest ? rest : flags & NEWT_FLAG_PASSWORD ? "" : q->standard;
    newtComponent entry = newtEntry(1, w.top, initial ? initial : "", WIDTH - 4, NULL,
                                    NEWT_FLAG_SCROLL | NEWT_FLAG_RETURNEXIT | flags);
    free(rest);
    if (q->several)
        newtEntrySetFilter(entry, on_key, self(ui));
    newtFormAddComponent(w.form, entry);
    add_buttons(&w, 2);
    newtFormSetCurrent(w.form, w.reading ? w.reading : entry);
    enum hx_ui_reply r;
    for (;;) {
        r = run(&w, q->help);
        if (r != HX_UI_NEXT)
            break;
        const char *value = newtEntryGetValue(entry);
        if (strlen(value) >= size) {
            tell(&w, "Not accepted: the line is too long.");
        } else if (accepted(&w, q, value)) {
            snprintf(answer, size, "%s", value);
            break;
        }
    }
    close_window(&w);
    return r;
}

static enum hx_ui_reply newt_text(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                  size_t size)
{
    return ask_line(ui, q, answer, size, 0);
}

static enum hx_ui_reply newt_secret(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                    size_t size)
{
    return ask_line(ui, q, answer, size, NEWT_FLAG_PASSWORD);
}

static enum hx_ui_reply newt_choice(struct hx_ui *ui, const struct hx_ui_question *q,
                                    const struct hx_ui_item *items, int n, int *answer)
{
    struct window w;
    int shown = n > LIST_MAX ? LIST_MAX : n;
    if (!open_question(&w, ui, q, shown + 1))
        return HX_UI_ERROR;
    newtComponent list =
        newtListbox(2, w.top, shown, NEWT_FLAG_RETURNEXIT | (n > shown ? NEWT_FLAG_SCROLL : 0));
    for (int i = 0; i < n; i++) {
        char line[WIDTH];
        snprintf(line, sizeof(line), "%.*s", WIDTH - 8, items[i].text);
        newtListboxAppendEntry(list, line, &items[i]);
        if (q->standard && strcmp(items[i].value, q->standard) == 0)
            newtListboxSetCurrent(list, i);
    }
    newtFormAddComponent(w.form, list);
    add_buttons(&w, shown + 1);
    newtFormSetCurrent(w.form, w.reading ? w.reading : list);
    enum hx_ui_reply r;
    for (;;) {
        r = run(&w, q->help);
        const struct hx_ui_item *item = newtListboxGetCurrent(list);
        if (r != HX_UI_NEXT || !item)
            break;
        if (accepted(&w, q, item->value)) {
            *answer = (int)(item - items);
            break;
        }
    }
    close_window(&w);
    return r;
}

static enum hx_ui_reply newt_confirm(struct hx_ui *ui, const struct hx_ui_question *q, bool *answer)
{
    static const struct hx_ui_item items[] = {{"yes", "Yes"}, {"no", "No"}};
    int at = 1;
    enum hx_ui_reply r = newt_choice(ui, q, items, 2, &at);
    if (r == HX_UI_NEXT)
        *answer = at == 0;
    return r;
}

static void newt_progress(struct hx_ui *ui, const char *label, int percent)
{
    struct dialogs *d = self(ui);
    if (!d->progress_open) {
        newtCenteredWindow(60, 4, ui->title ? ui->title : "");
        d->form = newtForm(NULL, NULL, 0);
        d->label = newtLabel(1, 1, "");
        d->scale = newtScale(1, 2, 58, 100);
        newtFormAddComponents(d->form, d->label, d->scale, NULL);
        d->progress_open = true;
    }
    char line[59];
    snprintf(line, sizeof(line), "%-58.58s", label);
    newtLabelSetText(d->label, line);
    if (percent >= 0)
        newtScaleSet(d->scale, (unsigned long long)percent);
    newtDrawForm(d->form);
    newtRefresh();
}

static void newt_close(struct hx_ui *ui)
{
    close_progress(self(ui));
    newtFinished();
    free(self(ui));
}

int hx_ui_newt_open(struct hx_ui **ui, struct hx_error *err)
{
    static const struct hx_ui_ops ops = {newt_show,   newt_confirm,  newt_choice, newt_text,
                                         newt_secret, newt_progress, newt_close};
    if (!isatty(STDIN_FILENO))
        return hx_fail(err, -ENOTTY, "standard input is no terminal");
    struct dialogs *d = calloc(1, sizeof(*d));
    if (!d)
        return hx_fail(err, -ENOMEM, "out of memory");
    d->ui.ops = &ops;
    newtInit();
    *ui = &d->ui;
    return 0;
}
