/* Growable byte buffer with a hard maximum. Not NUL-terminated unless asked for. */
#ifndef HX_BASE_BUF_H
#define HX_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_buf {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t max;  /* bytes; an append beyond it fails with -EMSGSIZE */
    bool failed; /* sticky: an append failed; check once at the end of a sequence of appends */
};

#define HX_BUF_INIT(maximum) ((struct hx_buf){.max = (maximum)})

void hx_buf_done(struct hx_buf *b);  /* frees, back to empty with the same max */
void hx_buf_clear(struct hx_buf *b); /* len = 0, failed = false, memory kept */
/* 0, -ENOMEM or -EMSGSIZE; on failure the content is unchanged and failed is set. */
int hx_buf_append(struct hx_buf *b, const void *data, size_t len);
int hx_buf_puts(struct hx_buf *b, const char *s);
int hx_buf_putc(struct hx_buf *b, uint8_t c);
int hx_buf_printf(struct hx_buf *b, const char *fmt, ...) HX_PRINTF(2, 3);
int hx_buf_reserve(struct hx_buf *b, size_t extra);
/* Removes n bytes at the front. */
void hx_buf_consume(struct hx_buf *b, size_t n);
/* NUL-terminates without counting the NUL; NULL when out of memory. */
char *hx_buf_cstr(struct hx_buf *b);
/* Hands the memory over (free with free()), b becomes empty. */
uint8_t *hx_buf_take(struct hx_buf *b, size_t *len);

#endif
