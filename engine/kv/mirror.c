/* The views of a sequence as the device sees them: the same structs with device addresses, and the
 * block table, in device memory. */
#include <stdlib.h>
#include <string.h>

#include "kv/pool.h"

#define ALIGN 64

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Offsets inside the mirror of one sequence. */
struct parts {
    size_t view, window, comp, key, open, only_block, table, end;
};

static struct parts place(const struct hx_kv_layout *l, int n_blocks)
{
    size_t n_layer = (size_t)l->n_layer;
    struct parts at = {.view = 0};
    at.window = align_up(sizeof(struct hx_kv_view));
    at.comp = at.window + (size_t)l->n_window * sizeof(struct hx_kv_stream);
    at.key = at.comp + n_layer * sizeof(struct hx_kv_stream);
    at.open = at.key + n_layer * sizeof(struct hx_kv_stream);
    at.only_block = at.open + n_layer * sizeof(float *);
    at.table = align_up(at.only_block + sizeof(int32_t));
    at.end = align_up(at.table + (size_t)n_blocks * sizeof(int32_t));
    return at;
}

size_t hx_kv_mirror_bytes(const struct hx_kv_layout *l, int n_blocks)
{
    return place(l, n_blocks).end;
}

static void *put(uint8_t *host, const uint8_t *dev, size_t at, const void *from, size_t size)
{
    memcpy(host + at, from, size);
    return (void *)(uintptr_t)(dev + at);
}

int hx_kv_mirror_init(struct hx_kv_seq *s, struct hx_error *err)
{
    struct hx_kv_pool *p = s->pool;
    struct parts at = place(&p->layout, p->n_blocks);
    size_t n_layer = (size_t)p->layout.n_layer, stream = sizeof(struct hx_kv_stream);
    uint8_t *dev = (uint8_t *)p->be->address(p->mirror_buf) + at.end * (size_t)s->slot;
    uint8_t *host = calloc(1, at.table);
    if (!host)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct hx_kv_view v = {
        .window = put(host, dev, at.window, s->window, (size_t)p->layout.n_window * stream),
        .comp = put(host, dev, at.comp, s->comp, n_layer * stream),
        .key = put(host, dev, at.key, s->key, n_layer * stream),
        .open = put(host, dev, at.open, s->open, n_layer * sizeof(float *)),
    };
    struct hx_kv_stream *window = (void *)(host + at.window), *comp = (void *)(host + at.comp),
                        *key = (void *)(host + at.key);
    for (int il = 0; il < p->layout.n_window; il++)
        window[il].table = (const int32_t *)(const void *)(dev + at.only_block);
    for (size_t il = 0; il < n_layer; il++)
        comp[il].table = key[il].table = (const int32_t *)(const void *)(dev + at.table);
    v.device = (const struct hx_kv_view *)(const void *)dev;
    memcpy(host, &v, sizeof(v));
    int r = p->be->upload(p->dev, dev, host, at.table, err);
    if (r == 0)
        r = p->be->sync(p->dev, err);
    free(host);
    s->view.device = v.device;
    for (int i = 0; i < p->n_blocks; i++)
        s->sent[i] = -1;
    return r;
}

int hx_kv_mirror_sync(struct hx_kv_seq *s, struct hx_error *err)
{
    struct hx_kv_pool *p = s->pool;
    struct parts at = place(&p->layout, p->n_blocks);
    int first = 0, end = s->n_blocks;
    while (first < end && s->sent[first] == s->table[first])
        first++;
    while (end > first && s->sent[end - 1] == s->table[end - 1])
        end--;
    if (first == end)
        return 0;
    size_t n = (size_t)(end - first) * sizeof(*s->table);
    memcpy(s->sent + first, s->table + first, n);
    uint8_t *dev = (uint8_t *)p->be->address(p->mirror_buf) + at.end * (size_t)s->slot;
    return p->be->upload(p->dev, dev + at.table + (size_t)first * sizeof(*s->table),
                         s->sent + first, n, err);
}
