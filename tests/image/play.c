#include "image/play.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define LOOK_MS   100
#define QUIET_MS  3000  /* a window is whole when nothing was painted for so long */
#define SETTLE_MS 60000 /* most time for that */
#define NEXT_MS   900000

#define ENTER     "\r"
#define KILL_LINE "\x15"
#define DOWN      "\x1b[B"

static void take(void *ctx, const void *bytes, size_t n)
{
    struct hx_play *p = ctx;
    hx_term_feed(&p->term, bytes, n);
    p->n_read += n;
}

int hx_play_start(struct hx_play *p, struct hx_scene *s, const char *kept, struct hx_error *err)
{
    *p = (struct hx_play){.s = s,
                          .words = HX_BUF_INIT(1 << 16),
                          .picture = HX_BUF_INIT(1 << 16),
                          .seen = HX_BUF_INIT(4 << 20),
                          .kept = kept};
    return hx_play_again(p, err);
}

int hx_play_again(struct hx_play *p, struct hx_error *err)
{
    if (p->s->vm.setup)
        hx_vm_close(&p->s->vm);
    hx_term_init(&p->term);
    int r = hx_vm_start(&p->s->vm, &p->s->setup, err);
    if (r)
        return r;
    p->s->vm.console = take;
    p->s->vm.console_ctx = p;
    return hx_vm_type(&p->s->vm, "", err);
}

void hx_play_done(struct hx_play *p)
{
    hx_buf_done(&p->words);
    hx_buf_done(&p->picture);
    hx_buf_done(&p->seen);
}

/* Takes in what the machine writes for a moment: each byte lies in a buffer of its own on the way,
 * so that the guest's port stands still soon when nobody reads. 1: something, 0: nothing. */
static int pump(struct hx_play *p, struct hx_error *err)
{
    size_t before = p->n_read;
    int64_t end = hx_child_clock() + LOOK_MS;
    for (int64_t left; (left = end - hx_child_clock()) > 0;) {
        struct pollfd f = {p->s->vm.console_fd, POLLIN, 0};
        if (poll(&f, 1, (int)left) > 0 && (f.revents & (POLLHUP | POLLERR)))
            hx_child_sleep(left, end);
        hx_vm_drain(&p->s->vm);
    }
    bool any = p->n_read != before;
    if (!any && !hx_child_alive(&p->s->vm.qemu))
        return hx_fail(err, -EPIPE, "machine %s: QEMU ended", p->s->setup.name);
    int r = hx_term_words(&p->term, &p->words);
    if (!r)
        r = hx_term_picture(&p->term, &p->picture);
    return r ? hx_fail(err, r, "out of memory") : any;
}

static const char *text_of(struct hx_buf *b)
{
    const char *text = hx_buf_cstr(b);
    return text ? text : "";
}

static bool shows(struct hx_play *p, const char *a, const char *b, bool note)
{
    const char *words = text_of(&p->words);
    return hx_term_has_note(&p->term) == note && strstr(words, a) && strstr(words, b);
}

static int wait_for(struct hx_play *p, const char *a, const char *b, bool note,
                    struct hx_error *err)
{
    int64_t end = hx_child_within(p->s->deadline, NEXT_MS);
    for (;;) {
        int r = pump(p, err);
        if (r < 0)
            return r;
        if (shows(p, a, b, note))
            return 0;
        if (hx_child_clock() > end)
            return hx_fail(err, -ETIMEDOUT,
                           "'%s' and '%s'%s did not appear; the screen shows: %.300s", a, b,
                           note ? " in a note" : "", text_of(&p->words));
    }
}

/* A figure behind the word becomes one sign; its line keeps its length. */
static void mask_figure(char *text, const char *word)
{
    for (char *at = text; (at = strstr(at, word));) {
        at += strlen(word);
        size_t n = strspn(at, "0123456789."), rest = strcspn(at, "|\n");
        if (n < 2 || rest < n)
            continue;
        *at = '*';
        memmove(at + 1, at + n, rest - n);
        memset(at + 1 + rest - n, ' ', n - 1);
    }
}

/* What differs from box to box, or with the host's load, becomes signs. */
static void mask(char *text)
{
    mask_figure(text, "reads ");
    mask_figure(text, "takes ");
    for (char *at = text; (at = strstr(at, "SHA256:"));) {
        at += strlen("SHA256:");
        while (*at && *at != ' ' && *at != '\n')
            *at++ = '*';
    }
}

/* The picture as text, masked and without empty lines at its ends; heap. */
static char *masked(struct hx_play *p)
{
    const char *text = text_of(&p->picture);
    while (*text == '\n')
        text++;
    char *copy = strdup(text);
    if (!copy)
        return NULL;
    size_t n = strlen(copy);
    while (n > 0 && copy[n - 1] == '\n')
        n--;
    copy[n] = '\0';
    mask(copy);
    return copy;
}

/* Whether the kept pictures have this one under this head. */
static bool is_kept(const struct hx_play *p, const char *head, const char *picture)
{
    const char *at = strstr(p->kept, head);
    return at && strncmp(at + strlen(head), picture, strlen(picture)) == 0 &&
           strncmp(at + strlen(head) + strlen(picture), "\n\n", 2) == 0;
}

/* Looks until the window is the kept one, or is whole and differs. */
static int look(struct hx_play *p, const char *name, struct hx_error *err)
{
    char head[160];
    snprintf(head, sizeof(head), "=== %u %s\n", ++p->n_seen, name);
    int64_t end = hx_child_within(p->s->deadline, SETTLE_MS), quiet = hx_child_clock() + QUIET_MS;
    for (;;) {
        int r = pump(p, err);
        if (r < 0)
            return r;
        if (r)
            quiet = hx_child_clock() + QUIET_MS;
        char *picture = masked(p);
        if (!picture)
            return hx_fail(err, -ENOMEM, "out of memory");
        bool same = is_kept(p, head, picture);
        bool last = hx_child_clock() > quiet || hx_child_clock() > end;
        if (same || last) {
            hx_buf_printf(&p->seen, "%s%s\n\n", head, picture);
            p->n_differ += !same;
        }
        free(picture);
        if (same || last)
            return 0;
    }
}

int hx_play_type(struct hx_play *p, const char *keys, struct hx_error *err)
{
    return hx_vm_type(&p->s->vm, keys, err);
}

int hx_play_see(struct hx_play *p, const char *screen, const char *prompt, struct hx_error *err)
{
    int r = wait_for(p, screen, prompt, false, err);
    return r ? r : look(p, prompt, err);
}

int hx_play_find(struct hx_play *p, bool *watched, struct hx_error *err)
{
    static const char watching[] = "The setup is open on another screen";
    *watched = false;
    for (;;) {
        int r = pump(p, err);
        if (r < 0)
            return r;
        const char *words = text_of(&p->words);
        if (strstr(words, "Step ") && strstr(words, "Leave"))
            return 0;
        if (!*watched && strstr(words, watching) && strstr(words, "There: Step ")) {
            *watched = true;
            r = hx_play_type(p, "t" ENTER, err);
            if (r)
                return r;
        }
        if (hx_child_clock() > p->s->deadline)
            return hx_fail(err, -ETIMEDOUT, "no wizard; the screen shows: %.300s",
                           text_of(&p->words));
    }
}

static int type_line(struct hx_play *p, const char *line, struct hx_error *err)
{
    char keys[1024];
    snprintf(keys, sizeof(keys), KILL_LINE "%s" ENTER,
             strcmp(line, "@key") == 0 ? p->s->ssh.public_key : line);
    return hx_play_type(p, keys, err);
}

static int answer(struct hx_play *p, const struct hx_play_question *q, const char *text,
                  struct hx_error *err)
{
    char keys[64] = "";
    /* A long text has the keys first. */
    if (strstr(text_of(&p->words), "read on")) {
        int r = hx_play_type(p, "\t", err);
        if (r)
            return r;
    }
    if (q->kind == HX_PLAY_TEXT)
        return type_line(p, text, err);
    for (int i = q->kind == HX_PLAY_PICK ? *text - '0' : 0; i > 0; i--)
        strncat(keys, DOWN, sizeof(keys) - strlen(keys) - 1);
    strncat(keys, ENTER, sizeof(keys) - strlen(keys) - 1);
    return hx_play_type(p, keys, err);
}

static int question(struct hx_play *p, const struct hx_play_question *q, struct hx_error *err)
{
    char name[120];
    int r = hx_play_see(p, q->screen, q->prompt, err);
    if (!r && q->wrong) {
        snprintf(name, sizeof(name), "%s: refused", q->prompt);
        r = answer(p, q, q->wrong, err);
        if (!r)
            r = wait_for(p, "Note", q->why, true, err);
        if (!r)
            r = look(p, name, err);
        if (!r)
            r = hx_play_type(p, ENTER, err);
        if (!r)
            r = wait_for(p, q->screen, q->prompt, false, err);
    }
    if (r)
        return r;
    return q->answer ? answer(p, q, q->answer, err) : hx_play_type(p, "\x1b", err);
}

int hx_play_questions(struct hx_play *p, const struct hx_play_question *rows, size_t n,
                      struct hx_error *err)
{
    int r = 0;
    for (size_t i = 0; i < n && !r; i++)
        r = question(p, &rows[i], err);
    return r;
}

int hx_play_verdict(struct hx_play *p, const char *file, int result, struct hx_error *err)
{
    char path[512];
    if (!p->s)
        return result;
    snprintf(path, sizeof(path), "%s/%s.screens", p->s->work, p->s->setup.name);
    if (result)
        hx_buf_printf(&p->seen, "=== last\n%s\n", text_of(&p->picture));
    struct hx_error why;
    int r = p->seen.failed ? hx_fail(&why, -ENOMEM, "out of memory")
                           : hx_file_replace(path, p->seen.data, p->seen.len, &why);
    if (result)
        return result;
    if (r)
        return hx_fail(err, r, "%s", why.text);
    if (p->n_differ)
        return hx_fail(err, -EBADMSG,
                       "%u of %u screens are not those of %s; compare it with %s, which takes its "
                       "place if it is right",
                       p->n_differ, p->n_seen, file, path);
    return 0;
}
