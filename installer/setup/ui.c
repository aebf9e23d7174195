/* What all versions of the screen share: transcript and wrapping. */
#include "setup/ui.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"

void hx_ui_close(struct hx_ui *ui)
{
    if (ui)
        ui->ops->close(ui);
}

static void note(struct hx_ui *ui, const char *prompt, const char *answer, enum hx_ui_reply reply)
{
    static const char *const words[] = {"", " (back)", " (left)", " (no answer)"};
    if (!ui->transcript)
        return;
    fprintf(ui->transcript, "%s: %s%s\n", prompt, reply == HX_UI_NEXT ? answer : "", words[reply]);
    fflush(ui->transcript);
}

void hx_ui_screen(struct hx_ui *ui, int number, int total, const char *title)
{
    ui->number = number;
    ui->total = total;
    ui->title = title;
    if (ui->transcript)
        fprintf(ui->transcript, "\nStep %d of %d: %s\n", number, total, title);
}

enum hx_ui_reply hx_ui_show(struct hx_ui *ui, const char *text)
{
    if (ui->transcript)
        fprintf(ui->transcript, "%s\n", text);
    return ui->ops->show(ui, text);
}

enum hx_ui_reply hx_ui_confirm(struct hx_ui *ui, const struct hx_ui_question *q, bool *answer)
{
    bool yes = false;
    enum hx_ui_reply r = ui->ops->confirm(ui, q, &yes);
    note(ui, q->prompt, yes ? "yes" : "no", r);
    if (r == HX_UI_NEXT)
        *answer = yes;
    return r;
}

enum hx_ui_reply hx_ui_choice(struct hx_ui *ui, const struct hx_ui_question *q,
                              const struct hx_ui_item *items, int n, int *answer)
{
    int at = 0;
    enum hx_ui_reply r = ui->ops->choice(ui, q, items, n, &at);
    note(ui, q->prompt, items[at].text, r);
    if (r == HX_UI_NEXT)
        *answer = at;
    return r;
}

enum hx_ui_reply hx_ui_text(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                            size_t size)
{
    enum hx_ui_reply r = ui->ops->text(ui, q, answer, size);
    note(ui, q->prompt, r == HX_UI_NEXT ? answer : "", r);
    return r;
}

enum hx_ui_reply hx_ui_secret(struct hx_ui *ui, const struct hx_ui_question *q, char *answer,
                              size_t size)
{
    enum hx_ui_reply r = ui->ops->secret(ui, q, answer, size);
    note(ui, q->prompt, "(not recorded)", r);
    return r;
}

void hx_ui_progress(struct hx_ui *ui, const char *label, int percent)
{
    ui->ops->progress(ui, label, percent);
}

/* Appends one character of the text, made printable; returns its bytes. */
static size_t put_char(struct hx_buf *b, const char *s, size_t n)
{
    int step = hx_utf8_next((const uint8_t *)s, n);
    size_t len = step > 0 ? (size_t)step : 1;
    bool control = (unsigned char)*s < 0x20 || *s == 0x7F ||
                   (len == 2 && (unsigned char)s[0] == 0xC2 && (unsigned char)s[1] < 0xA0);
    if (step > 0 && !control)
        hx_buf_append(b, s, len);
    else
        hx_buf_putc(b, '?');
    return len;
}

static int word_width(const char *s, size_t *bytes)
{
    size_t n = strcspn(s, " \n");
    int width = 0;
    for (size_t i = 0; i < n; i++)
        width += (s[i] & 0xC0) != 0x80;
    *bytes = n;
    return width;
}

char *hx_ui_wrap(const char *text, int columns)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    int at = 0;
    for (const char *p = text; *p;) {
        size_t bytes, spaces = strspn(p, " ");
        int width = word_width(p + spaces, &bytes);
        if (at > 0 && at + (int)spaces + width > columns) {
            hx_buf_putc(&b, '\n');
            at = 0;
            spaces = 0;
            p += strspn(p, " ");
        }
        for (size_t i = 0; i < spaces && bytes > 0; i++, at++)
            hx_buf_putc(&b, ' ');
        p += spaces;
        for (const char *end = p + bytes; p < end; at++) {
            if (at == columns) { /* a word that is longer than a line */
                hx_buf_putc(&b, '\n');
                at = 0;
            }
            p += put_char(&b, p, (size_t)(end - p));
        }
        if (*p == '\n') {
            hx_buf_putc(&b, '\n');
            at = 0;
            p++;
        }
    }
    char *out = hx_buf_cstr(&b);
    if (!out || b.failed) {
        hx_buf_done(&b);
        return NULL;
    }
    return out;
}
