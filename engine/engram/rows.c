/* Row geometry and plausibility. */
#include "engram/rows.h"

#include <math.h>
#include <string.h>

struct hx_engram_window hx_engram_window(uint64_t offset, uint32_t bytes, uint32_t align)
{
    uint64_t first = offset & ~((uint64_t)align - 1),
             end = (offset + bytes + align - 1) & ~((uint64_t)align - 1);
    return (struct hx_engram_window){first, (uint32_t)(end - first), (uint32_t)(offset - first)};
}

uint32_t hx_engram_window_max(uint32_t bytes, uint32_t align)
{
    return hx_engram_window(align - 1, bytes, align).len;
}

uint64_t hx_engram_code_offset(const struct hx_engram_table *t, int64_t row)
{
    return t->data_offset + (uint64_t)row * (uint64_t)t->row_bytes;
}

uint64_t hx_engram_scale_offset(const struct hx_engram_table *t, int64_t row)
{
    return t->scale_offset + (uint64_t)row * (uint64_t)t->scale_bytes;
}

bool hx_engram_fits(uint64_t offset, int64_t n, int width, uint64_t size)
{
    return offset <= size && (uint64_t)n <= (size - offset) / (uint64_t)width;
}

int hx_engram_check_table(const struct hx_engram_table *t, uint64_t file_size, struct hx_error *err)
{
    if (t->n_rows < 1 || t->row_bytes < 1 || t->scale_bytes < 1 || t->row_bytes > 1 << 20 ||
        t->row_bytes % t->scale_bytes != 0)
        return hx_fail(err, -EINVAL, "%s: Engram table of %lld rows of %d + %d bytes", t->path,
                       (long long)t->n_rows, t->row_bytes, t->scale_bytes);
    if (!hx_engram_fits(t->data_offset, t->n_rows, t->row_bytes, file_size) ||
        !hx_engram_fits(t->scale_offset, t->n_rows, t->scale_bytes, file_size))
        return hx_fail(err, -EINVAL, "%s: %llu bytes are too few for %lld Engram rows (truncated?)",
                       t->path, (unsigned long long)file_size, (long long)t->n_rows);
    return 0;
}

/* Magnitude of an E4M3 code without sign. */
static double magnitude(int code)
{
    int e = code >> 3, m = code & 7;
    return e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
}

void hx_engram_plausible_init(struct hx_engram_plausible *p, double max_abs)
{
    for (int s = 0; s < 256; s++) {
        int limit = s == 0 || s == 255 ? -1 : 0x7E;
        while (limit > 0 && max_abs > 0 && ldexp(magnitude(limit), s - 127) > max_abs)
            limit--;
        p->limit[s] = (int16_t)limit;
    }
}

/* Whether any of the codes, sign aside, is above the limit: eight at a time, since every row that
 * is read comes through here. */
static bool any_above(const uint8_t *codes, int n, int limit)
{
    const uint64_t low = 0x7F7F7F7F7F7F7F7Fu, high = ~low;
    uint64_t add = (uint64_t)(0x7F - limit) * 0x0101010101010101u, above = 0, w;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&w, codes + i, 8);
        above |= ((w & low) + add) & high;
    }
    for (; i < n; i++)
        above |= (codes[i] & 0x7F) > limit;
    return above != 0;
}

const char *hx_engram_implausible(const struct hx_engram_plausible *p,
                                  const struct hx_engram_table *t, const uint8_t *codes,
                                  const uint8_t *scales)
{
    int group = t->row_bytes / t->scale_bytes;
    for (int s = 0; s < t->scale_bytes; s++, codes += group) {
        int limit = p->limit[scales[s]];
        if (limit < 0)
            return "impossible scale";
        if (any_above(codes, group, limit))
            return any_above(codes, group, 0x7E) ? "NaN code" : "value out of range";
    }
    return NULL;
}
