/* Lines: no colour, no cursor movement, nothing that a screen reader or a serial line would not
 * take. One question at a time, the default in brackets. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <unistd.h>

#include "setup/ui.h"

struct plain {
    struct hx_ui ui;
    FILE *in, *out;
    int columns;
    int shown;               /* number of the screen whose heading is out */
    bool hint_given, silent; /* silent: the terminal shows nothing of what is typed, no Enter */
};

static struct plain *self(struct hx_ui *ui)
{
    return (struct plain *)(void *)ui;
}

static void put(struct plain *p, const char *text)
{
    char *lines = hx_ui_wrap(text, p->columns);
    fprintf(p->out, "%s\n", lines ? lines : text);
    free(lines);
}

static void heading(struct plain *p)
{
    if (!p->hint_given) {
        put(p, "Enter takes the answer in [brackets]. ? explains, b goes back, q leaves and lets "
               "you go on later. To enter one of these signs itself, put \\ in front.");
        p->hint_given = true;
    }
    if (p->shown == p->ui.number || !p->ui.title)
        return;
    p->shown = p->ui.number;
    fprintf(p->out, "\nStep %d of %d. %s\n\n", p->ui.number, p->ui.total, p->ui.title);
}

/* The next line without its end. false: end of input. *too_long: it did not fit, the rest is
 * dropped. */
static bool next_line(struct plain *p, char *line, size_t size, bool *too_long)
{
    size_t n = 0;
    int c;
    *too_long = false;
    while ((c = fgetc(p->in)) != EOF && c != '\n') {
        if (n + 1 < size)
            line[n++] = (char)(c == '\t' ? ' ' : c);
        else
            *too_long = true;
    }
    if (c == EOF && n == 0)
        return false;
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\r'))
        n--;
    line[n] = '\0';
    size_t lead = strspn(line, " ");
    memmove(line, line + lead, n - lead + 1);
    if (strlen(line) != n - lead) /* a NUL inside */
        *too_long = true;
    return true;
}

enum taken { TAKEN_ANSWER, TAKEN_AGAIN, TAKEN_BACK, TAKEN_QUIT };

/* Asks once. An empty line is the default. */
static enum taken take(struct plain *p, const struct hx_ui_question *q, bool show_default,
                       char *line, size_t size)
{
    bool too_long;
    bool has_default = q->standard && *q->standard;
    if (has_default && show_default)
        fprintf(p->out, "%s [%s]: ", q->prompt, q->standard);
    else
        fprintf(p->out, "%s: ", q->prompt);
    fflush(p->out);
    bool got = next_line(p, line, size, &too_long);
    if (!got || p->silent)
        fputc('\n', p->out);
    if (!got)
        return TAKEN_QUIT;
    if (too_long) {
        fprintf(p->out, "Not accepted: the line is too long or damaged (at most %zu characters).\n",
                size - 1);
        return TAKEN_AGAIN;
    }
    if (strcmp(line, "?") == 0) {
        put(p, q->help ? q->help : "There is no more to say about this.");
        return TAKEN_AGAIN;
    }
    if (strcmp(line, "b") == 0)
        return TAKEN_BACK;
    if (strcmp(line, "q") == 0)
        return TAKEN_QUIT;
    if (line[0] == '\\')
        memmove(line, line + 1, strlen(line));
    else if (line[0] == '\0' && q->standard)
        snprintf(line, size, "%s", q->standard);
    return TAKEN_ANSWER;
}

static bool accepted(struct plain *p, const struct hx_ui_question *q, const char *answer)
{
    struct hx_error err;
    if (!q->check || q->check(q->ctx, answer, &err) == 0)
        return true;
    char text[sizeof(err.text) + 20];
    snprintf(text, sizeof(text), "Not accepted: %s.", err.text);
    put(p, text);
    return false;
}

static void begin(struct plain *p, const struct hx_ui_question *q)
{
    heading(p);
    if (q->body && *q->body) {
        put(p, q->body);
        fputc('\n', p->out);
    }
}

static enum hx_ui_reply plain_show(struct hx_ui *ui, const char *text)
{
    static const struct hx_ui_question q = {.prompt = "Press Enter to go on",
                                            .help = "Enter goes on, b goes back, q leaves."};
    struct plain *p = self(ui);
    char line[16];
    heading(p);
    put(p, text);
    for (;;) {
        switch (take(p, &q, false, line, sizeof(line))) {
        case TAKEN_ANSWER: return HX_UI_NEXT;
        case TAKEN_BACK: return HX_UI_BACK;
        case TAKEN_QUIT: return HX_UI_QUIT;
        case TAKEN_AGAIN: break;
        }
    }
}

static enum hx_ui_reply ask_text(struct plain *p, const struct hx_ui_question *q, bool show_default,
                                 char *answer, size_t size)
{
    char line[HX_UI_ANSWER_MAX];
    size_t limit = size < sizeof(line) ? size : sizeof(line);
    for (;;) {
        switch (take(p, q, show_default, line, limit)) {
        case TAKEN_ANSWER:
            if (!accepted(p, q, line))
                break;
            snprintf(answer, size, "%s", line);
            return HX_UI_NEXT;
        case TAKEN_BACK: return HX_UI_BACK;
        case TAKEN_QUIT: return HX_UI_QUIT;
        case TAKEN_AGAIN: break;
        }
    }
}

static enum hx_ui_reply plain_text(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                   size_t size)
{
    begin(self(ui), q);
    return ask_text(self(ui), q, true, answer, size);
}

static enum hx_ui_reply plain_secret(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                                     size_t size)
{
    struct plain *p = self(ui);
    struct termios old, quiet;
    int fd = fileno(p->in);
    begin(p, q);
    bool terminal = fd >= 0 && isatty(fd) && tcgetattr(fd, &old) == 0;
    if (terminal) {
        quiet = old;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        tcsetattr(fd, TCSAFLUSH, &quiet);
    }
    p->silent = terminal;
    enum hx_ui_reply r = ask_text(p, q, false, answer, size);
    p->silent = false;
    if (terminal)
        tcsetattr(fd, TCSAFLUSH, &old);
    return r;
}

static enum hx_ui_reply plain_confirm(struct hx_ui *ui, const struct hx_ui_question *q,
                                      bool *answer)
{
    struct plain *p = self(ui);
    char line[16];
    begin(p, q);
    for (;;) {
        enum taken t = take(p, q, true, line, sizeof(line));
        if (t == TAKEN_BACK || t == TAKEN_QUIT)
            return t == TAKEN_BACK ? HX_UI_BACK : HX_UI_QUIT;
        if (t == TAKEN_AGAIN)
            continue;
        bool yes = strcasecmp(line, "yes") == 0 || strcasecmp(line, "y") == 0;
        if (yes || strcasecmp(line, "no") == 0 || strcasecmp(line, "n") == 0) {
            *answer = yes;
            return HX_UI_NEXT;
        }
        fprintf(p->out, "Please answer yes or no.\n");
    }
}

/* By number or by its word. */
static int item_of(const char *line, const struct hx_ui_item *items, int n)
{
    for (int i = 0; i < n; i++) {
        char number[12];
        snprintf(number, sizeof(number), "%d", i + 1);
        if (strcmp(line, number) == 0 || strcasecmp(line, items[i].value) == 0)
            return i;
    }
    return -1;
}

static enum hx_ui_reply plain_choice(struct hx_ui *ui, const struct hx_ui_question *q,
                                     const struct hx_ui_item *items, int n, int *answer)
{
    struct plain *p = self(ui);
    char line[300], standard[12] = "";
    struct hx_ui_question numbered = *q;
    begin(p, q);
    for (int i = 0; i < n; i++) {
        snprintf(line, sizeof(line), "  %d  %s", i + 1, items[i].text);
        put(p, line);
        if (q->standard && strcmp(q->standard, items[i].value) == 0)
            snprintf(standard, sizeof(standard), "%d", i + 1);
    }
    fputc('\n', p->out);
    numbered.standard = standard;
    for (;;) {
        enum taken t = take(p, &numbered, true, line, sizeof(line));
        if (t == TAKEN_BACK || t == TAKEN_QUIT)
            return t == TAKEN_BACK ? HX_UI_BACK : HX_UI_QUIT;
        if (t == TAKEN_AGAIN)
            continue;
        int i = item_of(line, items, n);
        if (i >= 0 && accepted(p, q, items[i].value)) {
            *answer = i;
            return HX_UI_NEXT;
        }
        if (i < 0)
            fprintf(p->out, "Please answer with a number from 1 to %d.\n", n);
    }
}

static void plain_progress(struct hx_ui *ui, const char *label, int percent)
{
    struct plain *p = self(ui);
    heading(p);
    if (percent < 0)
        fprintf(p->out, "%s ...\n", label);
    else
        fprintf(p->out, "%s: %d %%\n", label, percent);
    fflush(p->out);
}

static void plain_close(struct hx_ui *ui)
{
    free(self(ui));
}

int hx_ui_plain_open(FILE *in, FILE *out, int columns, struct hx_ui **ui, struct hx_error *err)
{
    static const struct hx_ui_ops ops = {plain_show,   plain_confirm,  plain_choice, plain_text,
                                         plain_secret, plain_progress, plain_close};
    struct plain *p = calloc(1, sizeof(*p));
    if (!p)
        return hx_fail(err, -ENOMEM, "out of memory");
    *p = (struct plain){.ui.ops = &ops, .in = in, .out = out};
    p->columns = columns < 20 ? 20 : columns > 100 ? 100 : columns;
    *ui = &p->ui;
    return 0;
}
