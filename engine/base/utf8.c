/* UTF-8 by table 3-7 of the Unicode standard: well-formed sequences only. */
#include "base/utf8.h"

#include <string.h>

/* Length of the sequence that starts with byte c and the range of its second byte; 0: no start. */
static unsigned lead(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80)
        return 1;
    if (c >= 0xC2 && c <= 0xDF)
        return 2;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0)
            *lo = 0x90;
        if (c == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

int hx_utf8_next(const uint8_t *s, size_t len)
{
    uint8_t lo, hi;
    if (len == 0)
        return 0;
    unsigned n = lead(s[0], &lo, &hi);
    if (n == 0)
        return -1;
    for (unsigned i = 1; i < n; i++) {
        if (i == len)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return -(int)i;
        lo = 0x80;
        hi = 0xBF;
    }
    return (int)n;
}

size_t hx_utf8_valid_prefix(const uint8_t *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        /* Eight ASCII bytes at a time: most text is. */
        uint64_t w;
        while (i + 8 <= len) {
            memcpy(&w, s + i, 8);
            if (w & 0x8080808080808080u)
                break;
            i += 8;
        }
        if (i == len)
            break;
        int n = hx_utf8_next(s + i, len - i);
        if (n <= 0)
            break;
        i += (size_t)n;
    }
    return i;
}

uint32_t hx_utf8_decode(const uint8_t *s, size_t len, unsigned *n)
{
    (void)len;
    if (s[0] < 0x80) {
        *n = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *n = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *n = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *n = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

unsigned hx_utf8_encode(uint32_t cp, uint8_t out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

int hx_utf8_sanitize(const uint8_t *s, size_t len, struct hx_buf *out)
{
    int replaced = 0;
    size_t i = 0;
    while (i < len) {
        size_t n = hx_utf8_valid_prefix(s + i, len - i);
        int r = hx_buf_append(out, s + i, n);
        i += n;
        if (r == 0 && i < len) {
            int bad = hx_utf8_next(s + i, len - i);
            i += bad == 0 ? len - i : (size_t)-bad; /* 0: cut off at the end */
            r = hx_buf_append(out, "\xEF\xBF\xBD", 3);
            replaced++;
        }
        if (r < 0)
            return r;
    }
    return replaced;
}
