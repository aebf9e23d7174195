/* Pre-tokenizer: the three published patterns as rules over classes. */
#include "text/pretok.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

void hx_pretok_classes(uint8_t *table)
{
    memset(table, HX_CLASS_D, HX_CLASS_TABLE);
    for (int i = 0; i < hx_n_class_ranges; i++)
        memset(table + hx_class_ranges[i].first, hx_class_ranges[i].cls,
               hx_class_ranges[i].last - hx_class_ranges[i].first + 1);
}

struct scan {
    const uint8_t *table, *s;
    size_t len;
};

#define END 0xFF /* class behind the last character */

/* Class of the character at i; *n: its length. */
static inline uint8_t class_at(const struct scan *k, size_t i, unsigned *n)
{
    if (i >= k->len) {
        *n = 0;
        return END;
    }
    if (k->s[i] < 0x80) {
        *n = 1;
        return k->table[k->s[i]];
    }
    return k->table[hx_utf8_decode(k->s + i, k->len - i, n)];
}

/* End of the run of class c from i on. */
static inline size_t run_of(const struct scan *k, size_t i, uint8_t c)
{
    unsigned n;
    while (class_at(k, i, &n) == c)
        i += n;
    return i;
}

static bool ascii_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

static bool ascii_punct(uint8_t c)
{
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
}

static size_t digits(const struct scan *k, size_t i)
{
    unsigned n;
    for (int count = 0; count < 3 && class_at(k, i, &n) == HX_CLASS_N; count++)
        i += n;
    return i;
}

/* White space that no word or sign takes: up to the last line break; else all of it if nothing
 * follows in the segment (a number, a CJK run or the end); else all but the last character. */
static size_t blank(const struct scan *k, size_t at)
{
    size_t i = at, last = at, after_break = 0;
    unsigned n;
    uint8_t c;
    while ((c = class_at(k, i, &n)) == HX_CLASS_W || c == HX_CLASS_R) {
        last = i;
        i += n;
        if (c == HX_CLASS_R)
            after_break = i;
    }
    if (after_break > 0)
        return after_break;
    if (c == END || c == HX_CLASS_N || c == HX_CLASS_K)
        return i;
    return last > at ? last : i;
}

/* Characters that match nothing form one piece, up to one that a letter follows. */
static size_t unmatched(const struct scan *k, size_t i)
{
    unsigned n, m;
    for (;;) {
        if (class_at(k, i, &n) != HX_CLASS_D || class_at(k, i + n, &m) == HX_CLASS_A)
            return i;
        i += n;
    }
}

size_t hx_pretok_next(const uint8_t *table, const uint8_t *s, size_t len, size_t at)
{
    const struct scan k = {table, s, len};
    unsigned n, m;
    uint8_t c = class_at(&k, at, &n), next;
    switch (c) {
    case HX_CLASS_N: return digits(&k, at);
    case HX_CLASS_K: return run_of(&k, at, HX_CLASS_K);
    case HX_CLASS_A: return run_of(&k, at, HX_CLASS_A);
    case HX_CLASS_R: return blank(&k, at);
    case HX_CLASS_C:
        if (ascii_punct(s[at]) && at + 1 < len && ascii_letter(s[at + 1])) {
            for (at++; at < len && ascii_letter(s[at]);)
                at++;
            return at;
        }
        return run_of(&k, run_of(&k, at, HX_CLASS_C), HX_CLASS_R);
    default: break;
    }
    next = class_at(&k, at + n, &m); /* W or D */
    if (next == HX_CLASS_A)
        return run_of(&k, at + n, HX_CLASS_A);
    if (s[at] == ' ' && next == HX_CLASS_C)
        return run_of(&k, run_of(&k, at + n, HX_CLASS_C), HX_CLASS_R);
    return c == HX_CLASS_W ? blank(&k, at) : unmatched(&k, at);
}
