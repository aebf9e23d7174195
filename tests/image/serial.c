#include "image/serial.h"

#include <string.h>

enum {
    IN_TEXT,
    IN_ESCAPE, /* behind ESC */
    IN_CSI,    /* ESC [ parameters final byte */
    IN_STRING, /* ESC ] P X ^ _ ... up to BEL or ESC \ */
    IN_STRING_ESCAPE,
    IN_CHARSET, /* ESC ( and its like take one more byte */
};

/* A sequence that is longer was none: text goes on, so that a stray ESC hides little. */
#define MAX_SEQUENCE 512

void hx_serial_init(struct hx_serial *s)
{
    *s = (struct hx_serial){.text = HX_BUF_INIT(HX_SERIAL_MAX)};
}

void hx_serial_done(struct hx_serial *s)
{
    hx_buf_done(&s->text);
}

static void end_line(struct hx_serial *s)
{
    if (s->text.len && s->text.data[s->text.len - 1] != '\n')
        hx_buf_putc(&s->text, '\n');
}

static void take_text(struct hx_serial *s, unsigned char c)
{
    if (c == 0x1b) {
        s->state = IN_ESCAPE;
        s->skipped = 0;
    } else if (c == '\n') {
        end_line(s);
    } else if (c == '\t') {
        hx_buf_putc(&s->text, ' ');
    } else if (c >= 0x20 && c != 0x7f) {
        hx_buf_putc(&s->text, c);
    }
}

static void take_escape(struct hx_serial *s, unsigned char c)
{
    if (c == '[')
        s->state = IN_CSI;
    else if (strchr("]PX^_", c) && c)
        s->state = IN_STRING;
    else if (c >= 0x20 && c <= 0x2f)
        s->state = IN_CHARSET;
    else if (c != 0x1b)
        s->state = IN_TEXT;
}

static void take_csi(struct hx_serial *s, unsigned char c)
{
    if (c == 0x1b) {
        s->state = IN_ESCAPE;
        return;
    }
    if (c < 0x40 || c > 0x7e)
        return;
    /* A jump to another place of the screen: what follows does not belong to the same line. */
    if (strchr("HfJABEF", c))
        end_line(s);
    s->state = IN_TEXT;
}

int hx_serial_feed(struct hx_serial *s, const void *bytes, size_t n, struct hx_error *err)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = p[i];
        if (s->state != IN_TEXT && ++s->skipped > MAX_SEQUENCE)
            s->state = IN_TEXT;
        switch (s->state) {
        case IN_TEXT: take_text(s, c); break;
        case IN_ESCAPE: take_escape(s, c); break;
        case IN_CSI: take_csi(s, c); break;
        case IN_STRING:
            if (c == 0x07)
                s->state = IN_TEXT;
            else if (c == 0x1b)
                s->state = IN_STRING_ESCAPE;
            break;
        case IN_STRING_ESCAPE: s->state = c == '\\' ? IN_TEXT : IN_STRING; break;
        default: s->state = IN_TEXT; break;
        }
    }
    if (!s->text.failed)
        return 0;
    if (s->text.len + n > HX_SERIAL_MAX)
        return hx_fail(err, -EMSGSIZE,
                       "the machine wrote more than %zu bytes on its serial port: it is caught "
                       "in a loop",
                       HX_SERIAL_MAX);
    return hx_fail(err, -ENOMEM, "out of memory for the serial log");
}

bool hx_serial_find(const struct hx_serial *s, const char *marker, size_t from, size_t *behind)
{
    size_t n = strlen(marker);
    if (!n || from >= s->text.len || strchr(marker, '\n'))
        return false;
    const uint8_t *hit = memmem(s->text.data + from, s->text.len - from, marker, n);
    if (!hit)
        return false;
    *behind = (size_t)(hit - s->text.data) + n;
    return true;
}

int hx_serial_tail(const struct hx_serial *s, unsigned n_lines, struct hx_buf *b,
                   struct hx_error *err)
{
    size_t at = s->text.len;
    /* The newline at the very end closes a line, it does not begin one. */
    while (at > 0 && n_lines > 0) {
        at--;
        if (at > 0 && s->text.data[at - 1] == '\n')
            n_lines--;
    }
    hx_buf_clear(b);
    if (s->text.len > at)
        hx_buf_append(b, s->text.data + at, s->text.len - at);
    if (!hx_buf_cstr(b) || b->failed)
        return hx_fail(err, -ENOMEM, "out of memory for the end of the serial log");
    return 0;
}
