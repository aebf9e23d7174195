/* What a virtual machine wrote on its serial port, as plain text: terminal sequences and other
 * control characters are taken out, so that a marker is found whatever a boot menu, a kernel or
 * systemd paints around it. */
#ifndef HX_TESTS_IMAGE_SERIAL_H
#define HX_TESTS_IMAGE_SERIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Longest text that is kept; a machine that writes more is stuck in a loop. */
#define HX_SERIAL_MAX ((size_t)16 << 20)

struct hx_serial {
    struct hx_buf text; /* lines, each but the last ended by one newline */
    int state;          /* of the reader of sequences, see serial.c */
    unsigned skipped;   /* bytes of the sequence being read */
};

void hx_serial_init(struct hx_serial *s);
void hx_serial_done(struct hx_serial *s);
/* Takes the next bytes, in pieces of any size. -EMSGSIZE beyond HX_SERIAL_MAX, -ENOMEM. */
int hx_serial_feed(struct hx_serial *s, const void *bytes, size_t n, struct hx_error *err) HX_MUST;
/* True if one line, from text position `from` on, contains the marker; *behind is then the position
 * behind it. The last line counts although it may be unfinished: a prompt has no newline. An empty
 * marker is never found. */
bool hx_serial_find(const struct hx_serial *s, const char *marker, size_t from, size_t *behind);
/* The last n_lines lines, NUL-terminated, in b (which is cleared first). -ENOMEM. */
int hx_serial_tail(const struct hx_serial *s, unsigned n_lines, struct hx_buf *b,
                   struct hx_error *err) HX_MUST;

#endif
