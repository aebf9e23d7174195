/* What a step of the wizard can do on a screen. Three versions: newt (dialogs on a terminal), plain
 * (lines, for serial consoles, screen readers and programs) and script (an answers file, nobody is
 * asked). A screen has a number and a title, set by the runner; then at most one question at a
 * time. */
#ifndef HX_SETUP_UI_H
#define HX_SETUP_UI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <hx/error.h>

#define HX_UI_ANSWER_MAX 8192 /* bytes of an answer with its NUL */

enum hx_ui_reply {
    HX_UI_NEXT,
    HX_UI_BACK, /* to the screen before */
    HX_UI_QUIT, /* leave, go on later; also the end of the input */
    HX_UI_ERROR /* no answer can be had; ui->error says why */
};

struct hx_ui_question {
    const char *key;      /* in the answers file; NULL: not there */
    const char *body;     /* what the person should know; NULL: nothing */
    const char *prompt;   /* the question */
    const char *help;     /* behind '?' */
    const char *standard; /* answer of an empty line, "" or NULL: none */
    /* Whether an answer will do; NULL: any. */
    int (*check)(void *ctx, const char *answer, struct hx_error *err);
    void *ctx;
    bool several;    /* text: asked again and again, so that pasted lines are one answer each */
    bool unattended; /* confirm: what the answers file stands for if it has no such key */
};

struct hx_ui_item {
    const char *value; /* in the answers file */
    const char *text;
};

struct hx_ui;

struct hx_ui_ops {
    enum hx_ui_reply (*show)(struct hx_ui *ui, const char *text); /* until the person goes on */
    enum hx_ui_reply (*confirm)(struct hx_ui *ui, const struct hx_ui_question *q, bool *answer);
    enum hx_ui_reply (*choice)(struct hx_ui *ui, const struct hx_ui_question *q,
                               const struct hx_ui_item *items, int n, int *answer);
    enum hx_ui_reply (*text)(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                             size_t size);
    enum hx_ui_reply (*secret)(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                               size_t size);
    void (*progress)(struct hx_ui *ui, const char *label, int percent); /* < 0: not known */
    void (*close)(struct hx_ui *ui);
};

struct hx_ui {
    const struct hx_ui_ops *ops;
    const char *title;
    int number, total;
    FILE *transcript; /* NULL: none; secrets never go there */
    struct hx_error error;
};

struct hx_box;

/* Lines from in to out, at most columns wide. The streams stay the caller's. */
int hx_ui_plain_open(FILE *in, FILE *out, int columns, struct hx_ui **ui,
                     struct hx_error *err) HX_MUST;
/* Dialogs on the terminal of standard input. -ENOTTY. */
int hx_ui_newt_open(struct hx_ui **ui, struct hx_error *err) HX_MUST;
/* Answers from a box, progress lines to out (NULL: none). answers must outlive it. */
int hx_ui_script_open(const struct hx_box *answers, FILE *out, struct hx_ui **ui,
                      struct hx_error *err) HX_MUST;
void hx_ui_close(struct hx_ui *ui);

/* The calls that steps use: the version's own, with a transcript. */
void hx_ui_screen(struct hx_ui *ui, int number, int total, const char *title);
enum hx_ui_reply hx_ui_show(struct hx_ui *ui, const char *text);
enum hx_ui_reply hx_ui_confirm(struct hx_ui *ui, const struct hx_ui_question *q, bool *answer);
enum hx_ui_reply hx_ui_choice(struct hx_ui *ui, const struct hx_ui_question *q,
                              const struct hx_ui_item *items, int n, int *answer);
enum hx_ui_reply hx_ui_text(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                            size_t size);
enum hx_ui_reply hx_ui_secret(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                              size_t size);
void hx_ui_progress(struct hx_ui *ui, const char *label, int percent);

/* Text broken at words into lines of at most columns characters; a new string, NULL when out of
 * memory. Control characters and ill-formed UTF-8 become '?'. Line feeds stay. */
char *hx_ui_wrap(const char *text, int columns);

#endif
