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
        if (s->staging) {
            madvise(s->staging, area(s), MADV_HUGEPAGE);
            /* In memory from the start, locked if the limits allow: rows do not wait for pages. */
            if (mlock(s->staging, area(s)) < 0)
                madvise(s->staging, area(s), MADV_POPULATE_WRITE);
        }
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

/* The first place from the beginning on: memory that was used last is still in the caches. */
bool hx_engram_staging_take(struct hx_engram_stream *s, size_t bytes, size_t *at)
{
    size_t n = granules(bytes), total = s->staging_granules, n_free = 0;
    for (size_t i = 0; n > 0 && i + n <= total + n_free; i++) {
        n_free = s->staging_used[i] ? 0 : n_free + 1;
        if (n_free == n) {
            *at = (i + 1 - n) * GRANULE;
            memset(s->staging_used + (i + 1 - n), 1, n);
            return true;
        }
    }
    return false;
}

void hx_engram_staging_give(struct hx_engram_stream *s, size_t at, size_t bytes)
{
    memset(s->staging_used + at / GRANULE, 0, granules(bytes));
}
