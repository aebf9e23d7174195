/* Comparing on the host, where no peer path can lie. */
#include "probe/content.h"

#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

int hx_content_sizes(const struct hx_probe_options *o, uint64_t sizes[HX_PROBE_SIZES])
{
    static const uint64_t all[HX_PROBE_SIZES] = {4,      131071,  131072,   131073,        524287,
                                                 524289, 1048577, 33554432, HX_CONTENT_MAX};
    static const uint64_t few[3] = {131072, 1048577, 33554432};
    if (o->full) {
        memcpy(sizes, all, sizeof(all));
        return HX_PROBE_SIZES;
    }
    memcpy(sizes, few, sizeof(few));
    return 3;
}

void hx_content_compare(const uint8_t *host, size_t bytes, uint64_t seed,
                        struct hx_content_verdict *v)
{
    *v = (struct hx_content_verdict){.bytes = bytes};
    size_t i = 0;
    while (i < bytes) {
        uint64_t word = 0;
        if (i % 8 == 0 && bytes - i >= 8) {
            memcpy(&word, host + i, 8);
            if (word == hx_content_word(i / 8, seed)) {
                i += 8;
                continue;
            }
        }
        if (host[i] != hx_content_byte(i, seed)) {
            v->bad++;
            v->untouched += host[i] == HX_POISON_BYTE || host[i] == 0;
        }
        i++;
    }
    for (size_t g = 0; g < HX_CONTENT_GUARD; g++)
        v->beyond += host[bytes + g] != HX_POISON_BYTE;
}

void hx_content_note(struct hx_probe_content *c, const struct hx_content_verdict *v, int from,
                     int to)
{
    if (v->bad == 0 && v->beyond == 0) {
        if (c->outcome == HX_PROBE_NOT_RUN)
            c->outcome = HX_PROBE_OK;
        return;
    }
    const bool nothing = v->beyond == 0 && v->bad == v->bytes && v->untouched == v->bytes;
    c->bad_bytes += v->bad + v->beyond;
    if (!c->note[0]) {
        if (nothing)
            snprintf(c->note, sizeof(c->note),
                     "from %d to %d: the target of %llu bytes stayed as it was although every call "
                     "succeeded",
                     from, to, (unsigned long long)v->bytes);
        else if (v->bad == 0)
            snprintf(c->note, sizeof(c->note),
                     "from %d to %d: %llu bytes behind the target changed", from, to,
                     (unsigned long long)v->beyond);
        else
            snprintf(c->note, sizeof(c->note), "from %d to %d: %llu of %llu bytes wrong", from, to,
                     (unsigned long long)v->bad, (unsigned long long)v->bytes);
    }
    if (c->outcome != HX_PROBE_CORRUPT)
        c->outcome = nothing ? HX_PROBE_ZERO : HX_PROBE_CORRUPT;
}
