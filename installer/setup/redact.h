/* Takes out of a text what tells who and where the owner is: addresses, hardware addresses, UUIDs
 * and other ids, serial numbers, the host name, keys and tokens. The same value becomes the same
 * placeholder (ip-1, mac-1, id-1, serial-1), so that the text can still be followed. */
#ifndef HX_SETUP_REDACT_H
#define HX_SETUP_REDACT_H

#include <stddef.h>

#include <hx/error.h>

#include "base/buf.h"

struct hx_redact;

int hx_redact_new(struct hx_redact **out, struct hx_error *err) HX_MUST;
void hx_redact_free(struct hx_redact *r);
/* A word that must not appear anywhere: what = "host", "secret". Shorter than 3 characters (a
 * secret: 6) is not taken, it would hit by chance. */
int hx_redact_word(struct hx_redact *r, const char *word, const char *what,
                   struct hx_error *err) HX_MUST;
int hx_redact_text(struct hx_redact *r, const char *text, size_t len, struct hx_buf *out);

#endif
