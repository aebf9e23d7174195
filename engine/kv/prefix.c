/* Prefix cache: snapshots of sequence states. A snapshot shares the blocks of compressed rows and
 * keys (they are append-only) and has a copy of what is overwritten: window rings and open groups.
 * A match is a comparison of the tokens themselves, so a collision cannot hand out a wrong state.
 */
#include <stdlib.h>
#include <string.h>

#include "kv/pool.h"

void hx_kv_snapshot_drop(struct hx_kv_pool *p, struct hx_kv_snapshot *s)
{
    for (int i = 0; i < s->n_blocks; i++)
        hx_kv_drop_block(p, s->table[i]);
    free(s->tokens);
    free(s->dead);
    free(s->table);
    memset(s, 0, sizeof(*s));
}

static bool frees_a_block(const struct hx_kv_pool *p, const struct hx_kv_snapshot *s)
{
    for (int i = 0; i < s->n_blocks; i++) {
        if (p->holds[s->table[i]] == 0)
            return true;
    }
    return false;
}

bool hx_kv_evict(struct hx_kv_pool *p, bool for_blocks)
{
    struct hx_kv_snapshot *oldest = NULL;
    for (int i = 0; i < p->n_snapshots; i++) {
        struct hx_kv_snapshot *s = &p->snapshot[i];
        if (s->len > 0 && (!oldest || s->used_at < oldest->used_at) &&
            (!for_blocks || frees_a_block(p, s)))
            oldest = s;
    }
    if (!oldest)
        return false;
    hx_kv_snapshot_drop(p, oldest);
    return true;
}

void hx_kv_evict_sharing(struct hx_kv_pool *p, int32_t block)
{
    for (int i = 0; i < p->n_snapshots; i++) {
        struct hx_kv_snapshot *s = &p->snapshot[i];
        bool shares = false;
        for (int j = 0; j < s->n_blocks && !shares; j++)
            shares = s->table[j] == block;
        if (shares)
            hx_kv_snapshot_drop(p, s);
    }
}

static bool same_prefix(const struct hx_kv_snapshot *s, const int32_t *tokens, const uint8_t *dead,
                        int64_t n)
{
    if (s->len == 0 || s->len > n)
        return false;
    /* The end first: prompts that share a long start mostly differ there. */
    if (s->tokens[s->len - 1] != tokens[s->len - 1] ||
        memcmp(s->tokens, tokens, (size_t)s->len * sizeof(*tokens)) != 0)
        return false;
    return dead ? memcmp(s->dead, dead, (size_t)s->len) == 0 : !memchr(s->dead, 1, (size_t)s->len);
}

/* The entry for a new snapshot: a free one, else the least recently used. */
static struct hx_kv_snapshot *entry(struct hx_kv_pool *p)
{
    for (;;) {
        for (int i = 0; i < p->n_snapshots; i++) {
            if (p->snapshot[i].len == 0)
                return &p->snapshot[i];
        }
        if (!hx_kv_evict(p, false))
            return NULL;
    }
}

void hx_kv_prefix_publish(struct hx_kv_seq *q)
{
    struct hx_kv_pool *p = q->pool;
    if (p->n_snapshots == 0 || q->len == 0)
        return;
    for (int i = 0; i < p->n_snapshots; i++) {
        struct hx_kv_snapshot *s = &p->snapshot[i];
        if (s->len == q->len && same_prefix(s, q->tokens, q->dead, q->len)) {
            s->used_at = ++p->clock;
            return;
        }
    }
    struct hx_kv_snapshot *s = entry(p);
    int n_blocks = hx_kv_blocks_for(p, q->len);
    s->tokens = malloc((size_t)q->len * sizeof(*s->tokens));
    s->dead = malloc((size_t)q->len);
    s->table = malloc((size_t)n_blocks * sizeof(*s->table));
    int slot = p->n_seqs + (int)(s - p->snapshot);
    struct hx_error ignored;
    if (!s->tokens || !s->dead || !s->table ||
        p->be->copy(p->dev, hx_kv_slot(p, slot), hx_kv_slot(p, q->slot), p->layout.slot_bytes,
                    &ignored) < 0) {
        hx_kv_snapshot_drop(p, s); /* best effort: the cache misses one entry */
        return;
    }
    memcpy(s->tokens, q->tokens, (size_t)q->len * sizeof(*s->tokens));
    memcpy(s->dead, q->dead, (size_t)q->len);
    for (int i = 0; i < n_blocks; i++) {
        s->table[i] = q->table[i];
        p->refs[q->table[i]]++;
    }
    s->n_blocks = n_blocks;
    s->len = q->len;
    s->top = q->top;
    s->used_at = ++p->clock;
}

int64_t hx_kv_prefix_restore(struct hx_kv_seq *q, const int32_t *tokens, int64_t n)
{
    struct hx_kv_pool *p = q->pool;
    struct hx_kv_snapshot *best = NULL;
    for (int i = 0; i < p->n_snapshots; i++) {
        struct hx_kv_snapshot *s = &p->snapshot[i];
        if ((!best || s->len > best->len) && same_prefix(s, tokens, NULL, n - 1))
            best = s;
    }
    if (!best)
        return 0;
    best->used_at = ++p->clock;
    struct hx_error ignored;
    int slot = p->n_seqs + (int)(best - p->snapshot);
    if (hx_kv_clone(q, best->table, best->tokens, best->dead, best->len, best->top, slot,
                    &ignored) < 0)
        return 0;
    return q->len;
}
