/* The memory plan: sums of what the parts say they will take. */
#include "run/memory_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward.h"

static const char *const row_name[HX_MEMORY_ROWS] = {
    "dense weights", "experts",  "drafter", "work buffers",  "kernels",      "graphs",
    "KV rings",      "KV views", "KV pool", "Engram scales", "Engram cache", "pass arrays",
};

const char *hx_memory_row_name(enum hx_memory_row row)
{
    return row_name[row];
}

static enum hx_memory_row row_of(enum hx_component c)
{
    return c == HX_COMP_EXPERTS   ? HX_MEMORY_EXPERTS
           : c == HX_COMP_DRAFTER ? HX_MEMORY_DRAFTER
                                  : HX_MEMORY_DENSE;
}

static int64_t device_total(const struct hx_memory_plan *p, int rank)
{
    int64_t sum = 0;
    for (int i = 0; i < HX_MEMORY_HOST; i++)
        sum += p->bytes[rank][i];
    return sum;
}

static int fullest(const struct hx_memory_plan *p)
{
    int most = 0;
    for (int r = 1; r < p->n_ranks; r++)
        most = device_total(p, r) > device_total(p, most) ? r : most;
    return most;
}

/* KV rows for a pool of n_blocks, on every rank: latents are needed whole by each. */
static int set_pool(const struct hx_hparams *hp, const struct hx_maps *maps,
                    const struct hx_memory_wish *w, int n_blocks, struct hx_memory_plan *p,
                    struct hx_error *err)
{
    struct hx_kv_options kv = w->kv;
    struct hx_kv_memory m;
    kv.n_blocks = n_blocks;
    int r = hx_kv_memory(hp, maps, &kv, &m, err);
    if (r < 0)
        return r;
    if (m.block == 0)
        return hx_fail(err, -EINVAL, "the model has no KV geometry");
    for (int i = 0; i < p->n_ranks; i++) {
        p->bytes[i][HX_MEMORY_KV_POOL] = (int64_t)m.blocks;
        p->bytes[i][HX_MEMORY_KV_RINGS] = (int64_t)m.slots;
        p->bytes[i][HX_MEMORY_KV_VIEWS] = (int64_t)m.views;
    }
    p->kv_block = (int64_t)m.block;
    p->n_blocks = n_blocks;
    p->kv_tokens = (int64_t)n_blocks * (kv.block_tok ? kv.block_tok : HX_KV_BLOCK_TOK);
    return 0;
}

/* As many blocks as the fullest rank has room for. */
static int fill_pool(const struct hx_hparams *hp, const struct hx_maps *maps,
                     const struct hx_memory_wish *w, struct hx_memory_plan *p, struct hx_error *err)
{
    int64_t tok = w->kv.block_tok ? w->kv.block_tok : HX_KV_BLOCK_TOK,
            most = (w->max_tokens + tok - 1) / tok;
    most = most > INT32_MAX / tok ? INT32_MAX / tok : most;
    int64_t fits = w->kv.n_seqs, beyond = (most > fits ? most : fits) + 1;
    if (w->device_bytes == 0)
        return set_pool(hp, maps, w, (int)(beyond - 1), p, err);
    while (beyond - fits > 1) {
        int64_t middle = fits + (beyond - fits) / 2;
        int r = set_pool(hp, maps, w, (int)middle, p, err);
        if (r < 0)
            return r;
        if (device_total(p, fullest(p)) <= w->device_bytes)
            fits = middle;
        else
            beyond = middle;
    }
    return set_pool(hp, maps, w, (int)fits, p, err);
}

static int64_t mib(int64_t bytes)
{
    return (bytes + (1 << 20) - 1) >> 20;
}

static int check_fit(const struct hx_memory_wish *w, const struct hx_memory_plan *p,
                     struct hx_error *err)
{
    int r = fullest(p);
    const int64_t *b = p->bytes[r];
    if (w->device_bytes > 0 && p->total[r] > w->device_bytes)
        return hx_fail(
            err, -ENOMEM,
            "rank %d needs %lld MiB, its device has %lld: weights %lld, work buffers %lld, graphs "
            "%lld, KV state %lld for %lld tokens; lower kv_tokens, max_sequences or "
            "prefill_chunk, or use more cards or smaller experts",
            r, (long long)mib(p->total[r]), (long long)(w->device_bytes >> 20),
            (long long)mib(b[HX_MEMORY_DENSE] + b[HX_MEMORY_EXPERTS] + b[HX_MEMORY_DRAFTER]),
            (long long)mib(b[HX_MEMORY_WORK] + b[HX_MEMORY_KERNELS]),
            (long long)mib(b[HX_MEMORY_GRAPHS]),
            (long long)mib(b[HX_MEMORY_KV_RINGS] + b[HX_MEMORY_KV_VIEWS] + b[HX_MEMORY_KV_POOL]),
            (long long)p->kv_tokens);
    if (w->host_bytes > 0 && p->host_total > w->host_bytes)
        return hx_fail(err, -ENOMEM,
                       "the host needs %lld MiB and has %lld: Engram scales %lld, Engram cache "
                       "%lld, pass arrays %lld; lower the cache",
                       (long long)mib(p->host_total), (long long)(w->host_bytes >> 20),
                       (long long)mib(p->host[HX_MEMORY_ENGRAM_SCALES]),
                       (long long)mib(p->host[HX_MEMORY_ENGRAM_CACHE]),
                       (long long)mib(p->host[HX_MEMORY_ARRAYS]));
    return 0;
}

int hx_memory_plan(const struct hx_hparams *hp, const struct hx_maps *maps,
                   const struct hx_placement *place, const struct hx_memory_wish *w,
                   struct hx_memory_plan *out, struct hx_error *err)
{
    struct hx_memory_plan p = {.n_ranks = place->n_ranks};
    size_t work, pinned;
    if (place->layout == HX_LAYOUT_PP4)
        return hx_fail(err, -ENOTSUP, "layout %s: there is no memory plan for stages yet",
                       hx_layout_name(place->layout));
    hx_forward_memory(hp, maps, p.n_ranks, w->max_tok, w->max_seq, w->drafts, &work, &pinned);
    for (int r = 0; r < p.n_ranks; r++) {
        for (int c = 0; c < HX_COMP_MAX; c++)
            p.bytes[r][row_of((enum hx_component)c)] += place->rank_memory[r][c];
        p.bytes[r][HX_MEMORY_WORK] = (int64_t)work;
        p.bytes[r][HX_MEMORY_KERNELS] = w->kernel_bytes;
        p.bytes[r][HX_MEMORY_GRAPHS] = w->graph_bytes;
    }
    p.host[HX_MEMORY_ENGRAM_SCALES] = place->host_bytes;
    p.host[HX_MEMORY_ENGRAM_CACHE] = place->file_bytes > 0 ? w->cache_bytes : 0;
    p.host[HX_MEMORY_ARRAYS] = (int64_t)pinned * p.n_ranks;
    int r = w->kv.n_blocks > 0 ? set_pool(hp, maps, w, w->kv.n_blocks, &p, err)
                               : fill_pool(hp, maps, w, &p, err);
    if (r < 0)
        return r;
    for (int i = 0; i < p.n_ranks; i++)
        p.total[i] = device_total(&p, i);
    for (int i = HX_MEMORY_HOST; i < HX_MEMORY_ROWS; i++)
        p.host_total += p.host[i];
    *out = p;
    return check_fit(w, &p, err);
}

uint64_t hx_memory_available(void)
{
    char *text = NULL;
    size_t len = 0;
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && getline(&text, &len, f) > 0) {
        if (sscanf(text, "MemAvailable: %llu kB", &kib) == 1)
            break;
    }
    free(text);
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

int hx_memory_free(const char *backend, uint64_t *bytes, bool *card, struct hx_error *err)
{
    const struct hx_backend *be = hx_backend_select(backend, err);
    uint64_t total;
    if (!be)
        return -ENODEV;
    *card = be->memory != NULL;
    if (*card)
        return be->memory(0, bytes, &total, err);
    *bytes = hx_memory_available();
    return 0;
}
