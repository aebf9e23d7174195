/* The KV pool: blocks with reference counts, sequences, their views. */
#include <stdlib.h>
#include <string.h>

#include "kv/pool.h"

/* ---- pool
 * -------------------------------------------------------------------------------------------- */

static int alloc_seq(struct hx_kv_pool *p, int i)
{
    struct hx_kv_seq *s = &p->seq[i];
    size_t n_layer = (size_t)p->layout.n_layer,
           n_tok = (size_t)p->n_blocks * (size_t)p->layout.block_tok;
    s->pool = p;
    s->slot = i;
    s->table = malloc((size_t)p->n_blocks * sizeof(*s->table));
    s->sent = malloc((size_t)p->n_blocks * sizeof(*s->sent));
    s->tokens = malloc(n_tok * sizeof(*s->tokens)); /* touched as far as it is used */
    s->dead = malloc(n_tok);
    s->window = calloc((size_t)p->layout.n_window, sizeof(*s->window));
    s->comp = calloc(n_layer, sizeof(*s->comp));
    s->key = calloc(n_layer, sizeof(*s->key));
    s->open = calloc(n_layer, sizeof(*s->open));
    return s->table && s->sent && s->tokens && s->dead && s->window && s->comp && s->key && s->open
               ? 0
               : -ENOMEM;
}

static struct hx_kv_stream block_stream(const struct hx_kv_pool *p, const struct hx_kv_part *part,
                                        int32_t *table)
{
    return (struct hx_kv_stream){p->blocks,
                                 table,
                                 part->rows,
                                 0,
                                 p->layout.block_bytes,
                                 part->data_offset,
                                 part->scale_offset,
                                 part->data_bytes,
                                 part->scale_bytes};
}

static void init_views(struct hx_kv_pool *p, struct hx_kv_seq *s)
{
    static const int32_t only_block[1] = {0};
    const struct hx_kv_layout *l = &p->layout;
    uint8_t *slot = hx_kv_slot(p, s->slot);
    for (int il = 0; il < l->n_window; il++) {
        s->window[il] = (struct hx_kv_stream){slot + l->window_bytes * (size_t)il,
                                              only_block,
                                              l->ring_tok,
                                              l->ring_tok,
                                              0,
                                              l->window.data_offset,
                                              l->window.scale_offset,
                                              l->window.data_bytes,
                                              l->window.scale_bytes};
    }
    for (int il = 0; il < l->n_layer; il++) {
        if (l->comp[il].rows > 0) {
            s->comp[il] = block_stream(p, &l->comp[il], s->table);
            s->key[il] = block_stream(p, &l->key[il], s->table);
        }
        s->open[il] = l->open_offset[il] ? (float *)(void *)(slot + l->open_offset[il]) : NULL;
    }
    s->view = (struct hx_kv_view){s->window, s->comp, s->key, s->open, NULL};
}

int hx_kv_pool_open(const struct hx_hparams *hp, const struct hx_maps *maps,
                    const struct hx_backend *be, struct hx_device *dev,
                    const struct hx_kv_options *opt, struct hx_kv_pool **out, struct hx_error *err)
{
    if (opt->n_blocks < 1 || opt->n_seqs < 1 || opt->n_snapshots < 0)
        return hx_fail(err, -EINVAL, "kv: %d blocks, %d sequences, %d snapshots: out of range",
                       opt->n_blocks, opt->n_seqs, opt->n_snapshots);
    struct hx_kv_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return hx_fail(err, -ENOMEM, "out of memory");
    p->be = be;
    p->dev = dev;
    p->n_blocks = opt->n_blocks;
    p->n_seqs = opt->n_seqs;
    p->n_snapshots = opt->n_snapshots;
    int r = hx_kv_layout_derive(hp, maps, opt, &p->layout, err);
    size_t block_total = p->layout.block_bytes * (size_t)p->n_blocks;
    size_t slot_total = p->layout.slot_bytes * (size_t)(p->n_seqs + p->n_snapshots);
    if (r == 0)
        r = be->alloc(dev, HX_MEM_DEVICE, block_total, &p->block_buf, err);
    if (r == 0)
        r = be->alloc(dev, HX_MEM_DEVICE, slot_total, &p->slot_buf, err);
    if (r == 0)
        r = be->alloc(dev, HX_MEM_DEVICE,
                      hx_kv_mirror_bytes(&p->layout, p->n_blocks) * (size_t)p->n_seqs,
                      &p->mirror_buf, err);
    if (r < 0) {
        hx_wrap(err, r, "kv pool");
        goto fail;
    }
    p->blocks = be->address(p->block_buf);
    p->slots = be->address(p->slot_buf);
    p->refs = calloc((size_t)p->n_blocks, sizeof(*p->refs));
    p->holds = calloc((size_t)p->n_blocks, sizeof(*p->holds));
    p->free_list = malloc((size_t)p->n_blocks * sizeof(*p->free_list));
    p->seq = calloc((size_t)p->n_seqs, sizeof(*p->seq));
    p->snapshot = calloc((size_t)p->n_snapshots + 1, sizeof(*p->snapshot));
    if (!p->refs || !p->holds || !p->free_list || !p->seq || !p->snapshot)
        r = hx_fail(err, -ENOMEM, "kv pool: out of memory");
    for (int i = 0; r == 0 && i < p->n_seqs; i++) {
        r = alloc_seq(p, i);
        if (r < 0) {
            hx_fail(err, r, "kv pool: out of memory");
            break;
        }
        init_views(p, &p->seq[i]);
        r = hx_kv_mirror_init(&p->seq[i], err);
    }
    if (r < 0)
        goto fail;
    for (int i = 0; i < p->n_blocks; i++)
        p->free_list[p->n_free++] = p->n_blocks - 1 - i;
    *out = p;
    return 0;
fail:
    hx_kv_pool_close(p);
    return r;
}

void hx_kv_pool_close(struct hx_kv_pool *p)
{
    if (!p)
        return;
    for (int i = 0; p->seq && i < p->n_seqs; i++) {
        struct hx_kv_seq *s = &p->seq[i];
        free(s->table);
        free(s->sent);
        free(s->tokens);
        free(s->dead);
        free(s->window);
        free(s->comp);
        free(s->key);
        free(s->open);
    }
    for (int i = 0; p->snapshot && i < p->n_snapshots; i++)
        hx_kv_snapshot_drop(p, &p->snapshot[i]);
    if (p->block_buf)
        p->be->free(p->block_buf);
    if (p->slot_buf)
        p->be->free(p->slot_buf);
    if (p->mirror_buf)
        p->be->free(p->mirror_buf);
    free(p->refs);
    free(p->holds);
    free(p->free_list);
    free(p->seq);
    free(p->snapshot);
    free(p);
}

/* A reference of a sequence. */
static void hold_block(struct hx_kv_pool *p, int32_t block)
{
    p->refs[block]++;
    if (p->holds[block]++ == 0)
        p->n_held++;
}

static void release_block(struct hx_kv_pool *p, int32_t block)
{
    if (--p->holds[block] == 0)
        p->n_held--;
    hx_kv_drop_block(p, block);
}

uint8_t *hx_kv_slot(const struct hx_kv_pool *p, int slot)
{
    return p->slots + p->layout.slot_bytes * (size_t)slot;
}

int32_t hx_kv_take_block(struct hx_kv_pool *p)
{
    while (p->n_free == 0) {
        if (!hx_kv_evict(p, true))
            return -1;
    }
    int32_t b = p->free_list[--p->n_free];
    p->refs[b] = 0;
    hold_block(p, b);
    return b;
}

void hx_kv_drop_block(struct hx_kv_pool *p, int32_t block)
{
    if (--p->refs[block] == 0)
        p->free_list[p->n_free++] = block;
}

int hx_kv_blocks_total(const struct hx_kv_pool *p)
{
    return p->n_blocks;
}

/* Blocks that no sequence holds; those of snapshots can be had. */
int hx_kv_blocks_free(const struct hx_kv_pool *p)
{
    return p->n_blocks - p->n_held;
}

int hx_kv_blocks_for(const struct hx_kv_pool *p, int64_t n_tok)
{
    return (int)((n_tok + p->layout.block_tok - 1) / p->layout.block_tok);
}

/* ---- sequences
 * --------------------------------------------------------------------------------------- */

int hx_kv_seq_new(struct hx_kv_pool *p, struct hx_kv_seq **out, struct hx_error *err)
{
    for (int i = 0; i < p->n_seqs; i++) {
        struct hx_kv_seq *s = &p->seq[i];
        if (s->used)
            continue;
        s->used = true;
        s->len = 0;
        s->top = 0;
        s->n_blocks = 0;
        *out = s;
        return 0;
    }
    return hx_fail(err, -EAGAIN, "kv: all %d sequences are in use", p->n_seqs);
}

void hx_kv_seq_free(struct hx_kv_seq *s)
{
    if (!s || !s->used)
        return;
    for (int i = 0; i < s->n_blocks; i++)
        release_block(s->pool, s->table[i]);
    s->n_blocks = 0;
    s->used = false;
}

int64_t hx_kv_seq_len(const struct hx_kv_seq *s)
{
    return s->len;
}

/* The block that the next row goes to becomes this sequence's own: what others see of it must not
 * change, also when rows behind a cut are written again. */
static int own_last_block(struct hx_kv_seq *s, struct hx_error *err)
{
    struct hx_kv_pool *p = s->pool;
    int64_t i = s->len / p->layout.block_tok;
    if (i >= s->n_blocks || p->refs[s->table[i]] == 1)
        return 0;
    int32_t shared = s->table[i], b = hx_kv_take_block(p);
    if (b < 0) { /* The last way out: snapshots that share it go. */
        hx_kv_evict_sharing(p, shared);
        return p->refs[shared] == 1 ? 0 : -EAGAIN;
    }
    int r =
        p->be->copy(p->dev, p->blocks + p->layout.block_bytes * (size_t)b,
                    p->blocks + p->layout.block_bytes * (size_t)shared, p->layout.block_bytes, err);
    if (r < 0) {
        release_block(p, b);
        return r;
    }
    s->table[i] = b;
    release_block(p, shared);
    return 0;
}

static int no_room(const struct hx_kv_pool *p, int64_t n_tok, struct hx_error *err)
{
    return hx_fail(err, -EAGAIN, "kv: no room for %lld tokens (%d blocks of %d tokens in all)",
                   (long long)n_tok, p->n_blocks, p->layout.block_tok);
}

int hx_kv_seq_reserve(struct hx_kv_seq *s, int64_t n_tok, struct hx_error *err)
{
    struct hx_kv_pool *p = s->pool;
    /* Compared in tokens: a count from outside must not overflow a number of blocks. */
    if (n_tok > (int64_t)p->n_blocks * p->layout.block_tok)
        return no_room(p, n_tok, err);
    int need = hx_kv_blocks_for(p, n_tok), had = s->n_blocks;
    int r = n_tok > s->len ? own_last_block(s, err) : 0;
    if (r < 0)
        return r == -EAGAIN ? no_room(p, n_tok, err) : r;
    while (s->n_blocks < need) {
        int32_t b = hx_kv_take_block(p);
        if (b < 0) {
            while (s->n_blocks > had)
                release_block(p, s->table[--s->n_blocks]);
            return no_room(p, n_tok, err);
        }
        s->table[s->n_blocks++] = b;
    }
    return hx_kv_mirror_sync(s, err);
}

int hx_kv_seq_commit(struct hx_kv_seq *s, const int32_t *tokens, const uint8_t *dead, int n,
                     struct hx_error *err)
{
    if (s->len + n > (int64_t)s->n_blocks * s->pool->layout.block_tok)
        return hx_fail(err, -EINVAL, "kv: commit of %d tokens beyond what was reserved", n);
    memcpy(s->tokens + s->len, tokens, (size_t)n * sizeof(*tokens));
    if (dead)
        memcpy(s->dead + s->len, dead, (size_t)n);
    else
        memset(s->dead + s->len, 0, (size_t)n);
    s->len += n;
    if (s->len > s->top)
        s->top = s->len;
    return 0;
}

int hx_kv_seq_truncate(struct hx_kv_seq *s, int64_t n, struct hx_error *err)
{
    if (n < 0 || n > s->len)
        return hx_fail(err, -EINVAL, "kv: cannot cut %lld tokens to %lld", (long long)s->len,
                       (long long)n);
    /* What the cut needs may be overwritten: window rows n - window + 1.., and at an odd cut the
     * open row n - 1. */
    const struct hx_kv_layout *l = &s->pool->layout;
    int64_t back = s->top - n;
    if (n > 0 && s->top > l->ring_tok && back > l->ring_tok - l->window_tok + 1)
        return hx_fail(
            err, -EINVAL, "kv: cannot cut %lld tokens to %lld: a ring of %d rows keeps %d",
            (long long)s->top, (long long)n, l->ring_tok, l->ring_tok - l->window_tok + 1);
    if (n % 2 != 0 && back >= HX_KV_OPEN_ROWS)
        return hx_fail(err, -EINVAL,
                       "kv: cannot cut %lld tokens to %lld: the open group keeps %d rows",
                       (long long)s->top, (long long)n, HX_KV_OPEN_ROWS);
    s->len = n;
    if (n == 0)
        s->top = 0;
    int keep = hx_kv_blocks_for(s->pool, n);
    while (s->n_blocks > keep)
        release_block(s->pool, s->table[--s->n_blocks]);
    return 0;
}

int hx_kv_clone(struct hx_kv_seq *to, const int32_t *table, const int32_t *tokens,
                const uint8_t *dead, int64_t len, int64_t top, int from_slot, struct hx_error *err)
{
    struct hx_kv_pool *p = to->pool;
    int full = (int)(len / p->layout.block_tok), r = 0;
    /* Before anything is evicted: the source may be a snapshot. */
    memcpy(to->tokens, tokens, (size_t)len * sizeof(*tokens));
    memcpy(to->dead, dead, (size_t)len);
    for (int i = 0; i < full; i++) {
        to->table[i] = table[i];
        hold_block(p, table[i]);
    }
    to->n_blocks = full;
    if (len % p->layout.block_tok != 0) {
        /* Its rows are copied: both states go on writing behind them. The source is pinned
         * meanwhile, as taking a block may evict the snapshot that owns it. */
        hold_block(p, table[full]);
        int32_t source = table[full], b = hx_kv_take_block(p);
        if (b < 0) {
            r = hx_fail(err, -EAGAIN, "kv: no block left to copy a partial one");
        } else {
            r = p->be->copy(p->dev, p->blocks + p->layout.block_bytes * (size_t)b,
                            p->blocks + p->layout.block_bytes * (size_t)source,
                            p->layout.block_bytes, err);
            to->table[to->n_blocks++] = b;
        }
        release_block(p, source);
    }
    if (r == 0)
        r = p->be->copy(p->dev, hx_kv_slot(p, to->slot), hx_kv_slot(p, from_slot),
                        p->layout.slot_bytes, err);
    if (r < 0) {
        while (to->n_blocks > 0)
            release_block(p, to->table[--to->n_blocks]);
        return r;
    }
    to->len = len;
    to->top = top;
    return 0;
}

int hx_kv_seq_fork(struct hx_kv_seq *s, struct hx_kv_seq **out, struct hx_error *err)
{
    struct hx_kv_seq *child = NULL;
    int r = hx_kv_seq_new(s->pool, &child, err);
    if (r == 0)
        r = hx_kv_clone(child, s->table, s->tokens, s->dead, s->len, s->top, s->slot, err);
    if (r < 0) {
        hx_kv_seq_free(child);
        return r;
    }
    *out = child;
    return 0;
}

const struct hx_kv_view *hx_kv_seq_view(struct hx_kv_seq *s)
{
    return &s->view;
}

const int32_t *hx_kv_seq_tokens(const struct hx_kv_seq *s)
{
    return s->tokens;
}

const uint8_t *hx_kv_seq_dead(const struct hx_kv_seq *s)
{
    return s->dead;
}
