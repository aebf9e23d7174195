/* Growable byte buffer with a hard maximum. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hx_buf_done(struct hx_buf *b)
{
    free(b->data);
    *b = HX_BUF_INIT(b->max);
}

void hx_buf_clear(struct hx_buf *b)
{
    b->len = 0;
    b->failed = false;
}

int hx_buf_reserve(struct hx_buf *b, size_t extra)
{
    if (extra > b->max || b->len > b->max - extra) {
        b->failed = true;
        return -EMSGSIZE;
    }
    size_t need = b->len + extra;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need)
        cap = cap > b->max / 2 ? b->max : cap * 2;
    if (cap > b->max)
        cap = b->max;
    uint8_t *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return -ENOMEM;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

int hx_buf_append(struct hx_buf *b, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    int r = hx_buf_reserve(b, len);
    if (r < 0)
        return r;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return 0;
}

int hx_buf_puts(struct hx_buf *b, const char *s)
{
    return hx_buf_append(b, s, strlen(s));
}

int hx_buf_putc(struct hx_buf *b, uint8_t c)
{
    return hx_buf_append(b, &c, 1);
}

int hx_buf_printf(struct hx_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    char stack[256];
    int n = vsnprintf(stack, sizeof(stack), fmt, ap);
    va_end(ap);
    int r = 0;
    if (n < 0) {
        b->failed = true;
        r = -EINVAL;
    } else if ((size_t)n < sizeof(stack)) {
        r = hx_buf_append(b, stack, (size_t)n);
    } else {
        char *heap = malloc((size_t)n + 1);
        if (!heap) {
            b->failed = true;
            r = -ENOMEM;
        } else {
            vsnprintf(heap, (size_t)n + 1, fmt, again);
            r = hx_buf_append(b, heap, (size_t)n);
            free(heap);
        }
    }
    va_end(again);
    return r;
}

void hx_buf_consume(struct hx_buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

char *hx_buf_cstr(struct hx_buf *b)
{
    if (b->len == b->cap) {
        uint8_t *data = realloc(b->data, b->len + 1);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap = b->len + 1;
    }
    b->data[b->len] = '\0';
    return (char *)b->data;
}

uint8_t *hx_buf_take(struct hx_buf *b, size_t *len)
{
    uint8_t *data = b->data;
    if (len)
        *len = b->len;
    *b = HX_BUF_INIT(b->max);
    return data;
}
