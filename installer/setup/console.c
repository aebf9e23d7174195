#include "setup/console.h"

#include <string.h>

#define HOUR   3600
#define MINUTE 60
#define CLEAR  "\033[H\033[2J" /* cursor home, screen empty: every terminal that is not dumb */

static void put_line(const struct hx_status *s, const char *head, FILE *out)
{
    if (s->fetch.there && s->fetch.percent < 100)
        fprintf(out, "%s %.1f %%, %.1f MB/s%s%s\n", head, s->fetch.percent,
                (double)s->fetch.rate / 1e6, *s->fetch.waiting ? ", waits: " : "",
                s->fetch.waiting);
    else
        fprintf(out, "%s\n", head);
}

int hx_console_show(struct hx_console *c, const struct hx_status *s, bool redraw, long long now,
                    FILE *out, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(1 << 16);
    char head[200], what[400];
    enum hx_status_level level = hx_status_verdict(s, head, sizeof(head), what, sizeof(what));
    bool block = redraw || strcmp(head, c->head) != 0 || strcmp(s->address, c->address) != 0 ||
                 now - c->block_at >= HOUR;
    int r = 0;
    if (block) {
        if (hx_status_text(s, &text) < 0)
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            fprintf(out, "%shx170 %s\n\n%.*s\n", redraw ? CLEAR : "\n", s->box.hostname,
                    (int)text.len, (const char *)text.data);
        c->block_at = c->line_at = now;
    } else if (level == HX_STATUS_WORKING && now - c->line_at >= MINUTE) {
        put_line(s, head, out);
        c->line_at = now;
    }
    memcpy(c->head, head, sizeof(head));
    memcpy(c->address, s->address, sizeof(c->address));
    hx_buf_done(&text);
    if (r == 0 && fflush(out) != 0)
        r = hx_fail_errno(err, errno, "the console cannot be written");
    return r;
}
