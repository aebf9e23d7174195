/* Memory where finished rows land: one locked area, handed out in granules, first fit. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engram/stream_impl.h"

#define GRANULE ((size_t)16384)

static size_t area(const struct hx_engram_stream *s)
{
    return s->staging_granules * GRANULE;
}

int hx_engram_staging_open(struct hx_engram_stream *s, struct hx_error *err)
{
    s->staging_granules = (s->o.staging_bytes + GRANULE - 1) / GRANULE;
    s->staging_used = calloc(s->staging_granules, 1);
    if (s->o.staging_alloc) {
        s->staging = s->o.staging_alloc(s->o.user, area(s));
    } else {
        void *p = mmap(NULL, area(s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        s->staging = p == MAP_FAILED ? NULL : p;
        if (s->staging)
            mlock2(s->staging, area(s), MLOCK_ONFAULT); /* as far as the limits allow */
    }
    if (!s->staging || !s->staging_used)
        return hx_fail(err, -ENOMEM, "out of memory for %zu bytes of Engram staging", area(s));
    return 0;
}

void hx_engram_staging_close(struct hx_engram_stream *s)
{
    if (s->staging && s->o.staging_alloc)
        s->o.staging_free(s->o.user, s->staging, area(s));
    else if (s->staging)
        munmap(s->staging, area(s));
    free(s->staging_used);
}

static size_t granules(size_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE;
}

bool hx_engram_staging_take(struct hx_engram_stream *s, size_t bytes, size_t *at)
{
    size_t n = granules(bytes), total = s->staging_granules;
    size_t i = s->staging_next, seen = 0;
    /* From where the last one ended, once around; a piece does not wrap. */
    while (seen < total + n) {
        size_t free_here = 0;
        if (i + n > total) {
            seen += total - i;
            i = 0;
        }
        if (n > total)
            return false;
        while (free_here < n && !s->staging_used[i + free_here])
            free_here++;
        if (free_here == n) {
            memset(s->staging_used + i, 1, n);
            s->staging_next = i + n == total ? 0 : i + n;
            *at = i * GRANULE;
            return true;
        }
        i += free_here + 1;
        seen += free_here + 1;
        if (i >= total)
            i = 0;
    }
    return false;
}

void hx_engram_staging_give(struct hx_engram_stream *s, size_t at, size_t bytes)
{
    memset(s->staging_used + at / GRANULE, 0, granules(bytes));
}
