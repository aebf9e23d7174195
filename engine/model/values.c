/* Values of loaded tensors, checked. */
#include "model/values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PIECE 4096 /* elements between two looks at the result */

static bool is_bad(enum hx_dtype type, const uint8_t *p, uint64_t i, unsigned max_exponent)
{
    uint16_t h;
    uint32_t f;
    switch (type) {
    case HX_DTYPE_F8_E4M3: return (p[i] & 0x7F) == 0x7F;
    case HX_DTYPE_F8_E8M0: return p[i] > max_exponent;
    case HX_DTYPE_BF16: memcpy(&h, p + 2 * i, 2); return (h & 0x7F80) == 0x7F80;
    case HX_DTYPE_F16: memcpy(&h, p + 2 * i, 2); return (h & 0x7C00) == 0x7C00;
    case HX_DTYPE_F32: memcpy(&f, p + 4 * i, 4); return (f & 0x7F800000) == 0x7F800000;
    default: return false;
    }
}

/* The first bad one of n; n: none. */
static uint64_t find_bad(enum hx_dtype type, const uint8_t *p, uint64_t n, unsigned max_exponent)
{
    for (uint64_t at = 0; at < n; at += PIECE) {
        uint64_t end = n - at < PIECE ? n : at + PIECE;
        unsigned bad = 0;
        switch (type) { /* loops without a way out, which compilers make wide */
        case HX_DTYPE_F8_E4M3:
            for (uint64_t i = at; i < end; i++)
                bad |= is_bad(HX_DTYPE_F8_E4M3, p, i, 0);
            break;
        case HX_DTYPE_F8_E8M0:
            for (uint64_t i = at; i < end; i++)
                bad |= is_bad(HX_DTYPE_F8_E8M0, p, i, max_exponent);
            break;
        case HX_DTYPE_BF16:
            for (uint64_t i = at; i < end; i++)
                bad |= is_bad(HX_DTYPE_BF16, p, i, 0);
            break;
        case HX_DTYPE_F16:
            for (uint64_t i = at; i < end; i++)
                bad |= is_bad(HX_DTYPE_F16, p, i, 0);
            break;
        case HX_DTYPE_F32:
            for (uint64_t i = at; i < end; i++)
                bad |= is_bad(HX_DTYPE_F32, p, i, 0);
            break;
        default: return n; /* any bits are values */
        }
        for (uint64_t i = at; bad && i < end; i++) {
            if (is_bad(type, p, i, max_exponent))
                return i;
        }
    }
    return n;
}

/* Where element i of the part lies in the whole tensor. */
static uint64_t in_whole(const struct hx_st_tensor *t, const struct hx_cut *cut, uint64_t i)
{
    uint64_t inner = 1, whole;
    if (cut->dim < 0)
        return i;
    for (int k = cut->dim + 1; k < t->n_dims; k++)
        inner *= (uint64_t)t->ne[k];
    whole = inner * (uint64_t)t->ne[cut->dim];
    inner *= (uint64_t)(cut->to - cut->from);
    return i / inner * whole + i % inner +
           (uint64_t)cut->from * (whole / (uint64_t)t->ne[cut->dim]);
}

/* "element 5 (row 0, column 5, block 0, 0)": blocks of FP8 and FP4 weights are what a scale is for.
 */
static void place_text(const struct hx_st_tensor *t, enum hx_format format, uint64_t i,
                       char out[120])
{
    int n = snprintf(out, 120, "element %llu", (unsigned long long)i);
    if (t->n_dims != 2 || t->ne[1] < 1)
        return;
    unsigned long long row = i / (uint64_t)t->ne[1], column = i % (uint64_t)t->ne[1];
    if (t->dtype == HX_DTYPE_F8_E8M0)
        snprintf(out + n, 120 - (size_t)n, " (block %llu, %llu)", row, column);
    else if (format == HX_FORMAT_FP8)
        snprintf(out + n, 120 - (size_t)n, " (row %llu, column %llu, block %llu, %llu)", row,
                 column, row / 32, column / 32);
    else
        snprintf(out + n, 120 - (size_t)n, " (row %llu, column %llu)", row, column);
}

int hx_values_check(const char *path, const struct hx_st_tensor *t, const struct hx_cut *cut,
                    enum hx_format format, const uint8_t *data, uint64_t n, struct hx_error *err)
{
    unsigned most = format == HX_FORMAT_FP4 ? HX_FP4_MAX_EXPONENT : HX_FP8_MAX_EXPONENT;
    uint64_t i = find_bad(t->dtype, data, n, most);
    char place[120];
    if (i == n)
        return 0;
    place_text(t, format, in_whole(t, cut, i), place);
    if (t->dtype == HX_DTYPE_F8_E4M3)
        return hx_fail(err, -EINVAL, "%s: tensor '%s': %s: code 0x%02x is NaN (corrupt file?)",
                       path, t->name, place, data[i]);
    if (t->dtype == HX_DTYPE_F8_E8M0)
        return hx_fail(
            err, -EINVAL, "%s: tensor '%s': %s: exponent %u%s: expected at most %u (corrupt file?)",
            path, t->name, place, data[i], data[i] == 255 ? " is NaN" : " overflows", most);
    return hx_fail(err, -EINVAL, "%s: tensor '%s': %s is not a finite number (corrupt file?)", path,
                   t->name, place);
}
