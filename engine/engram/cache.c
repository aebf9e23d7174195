/* Row groups in memory: hash table, S3-FIFO queues, memory of the evicted. */
#include "engram/cache.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/rand.h"

#define SMALL_PART 10 /* the small queue may hold a tenth */
#define MAX_USES   3
#define GHOST_WAYS 4

enum { NO_QUEUE, SMALL, MAIN, N_QUEUES };

struct ghost {
    uint32_t tag, when;
};

struct queue {
    uint32_t first, last, n; /* first: newest */
};

struct hx_engram_cache {
    struct hx_engram_cache_options o;
    uint32_t n, n_used; /* entries, of those ever used */
    struct hx_engram_entry *entry;
    uint32_t free; /* list by chain */
    uint32_t n_loading;
    uint32_t *bucket, bucket_mask;
    struct queue queue[N_QUEUES];
    struct ghost *ghost; /* [ghost_mask + 1][GHOST_WAYS] */
    uint32_t ghost_mask, ghost_now;
    uint8_t *codes, *scales;
    uint64_t bytes;
};

/* ---- memory ---- */

/* Zero pages until they are used. */
static void *big_alloc(struct hx_engram_cache *c, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    c->bytes += bytes;
    return p;
}

static void big_free(void *p, uint64_t bytes)
{
    if (p)
        munmap(p, bytes);
}

static uint32_t power_above(uint64_t n)
{
    uint64_t p = 64;
    while (p < n)
        p *= 2;
    return (uint32_t)p;
}

static uint64_t ghost_bytes(const struct hx_engram_cache *c)
{
    return ((uint64_t)c->ghost_mask + 1) * GHOST_WAYS * sizeof(struct ghost);
}

uint32_t hx_engram_cache_fit(uint64_t budget, uint32_t code_bytes, uint32_t scale_bytes)
{
    /* Entry, up to four bucket heads and up to four remembered keys beside the rows. */
    uint64_t each = code_bytes + scale_bytes + sizeof(struct hx_engram_entry) + 4 * 4 +
                    4 * sizeof(struct ghost),
             n = budget / each;
    return n > 1u << 28 ? 1u << 28 : (uint32_t)n;
}

void hx_engram_cache_free(struct hx_engram_cache *c)
{
    if (!c)
        return;
    big_free(c->codes, (uint64_t)c->n * c->o.code_bytes);
    big_free(c->scales, (uint64_t)c->n * c->o.scale_bytes);
    big_free(c->entry, (uint64_t)c->n * sizeof(*c->entry));
    big_free(c->bucket, ((uint64_t)c->bucket_mask + 1) * sizeof(*c->bucket));
    big_free(c->ghost, ghost_bytes(c));
    free(c);
}

int hx_engram_cache_new(const struct hx_engram_cache_options *o, struct hx_engram_cache **out,
                        struct hx_error *err)
{
    struct hx_engram_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return hx_fail(err, -ENOMEM, "out of memory");
    c->o = *o;
    c->n = o->n_cached + o->n_loading;
    c->bucket_mask = power_above(2 * (uint64_t)c->n) - 1;
    c->ghost_mask = power_above(o->n_cached / 2) - 1;
    c->ghost_now = 1;
    c->entry = big_alloc(c, (uint64_t)c->n * sizeof(*c->entry));
    c->codes = big_alloc(c, (uint64_t)c->n * o->code_bytes);
    c->scales = big_alloc(c, (uint64_t)c->n * o->scale_bytes);
    c->bucket = big_alloc(c, ((uint64_t)c->bucket_mask + 1) * sizeof(*c->bucket));
    c->ghost = big_alloc(c, ghost_bytes(c));
    if (!c->entry || !c->codes || !c->scales || !c->bucket || !c->ghost) {
        uint32_t n = c->n;
        hx_engram_cache_free(c);
        return hx_fail(err, -ENOMEM, "out of memory for an Engram cache of %u groups", n);
    }
    *out = c;
    return 0;
}

uint64_t hx_engram_cache_bytes(const struct hx_engram_cache *c)
{
    return c->bytes;
}

uint32_t hx_engram_cache_count(const struct hx_engram_cache *c)
{
    return c->queue[SMALL].n + c->queue[MAIN].n;
}

static uint32_t place(const struct hx_engram_cache *c, const struct hx_engram_entry *e)
{
    return (uint32_t)(e - c->entry);
}

uint8_t *hx_engram_cache_codes(const struct hx_engram_cache *c, const struct hx_engram_entry *e)
{
    return c->codes + (uint64_t)place(c, e) * c->o.code_bytes;
}

uint8_t *hx_engram_cache_scales(const struct hx_engram_cache *c, const struct hx_engram_entry *e)
{
    return c->scales + (uint64_t)place(c, e) * c->o.scale_bytes;
}

/* ---- finding ---- */

static uint64_t mixed(int table, int size, uint64_t key)
{
    return hx_mix64(key ^ (uint64_t)(table * 8 + size + 1) * 0x9E3779B97F4A7C15u);
}

static uint32_t *bucket_of(struct hx_engram_cache *c, int table, int size, uint64_t key)
{
    return &c->bucket[mixed(table, size, key) & c->bucket_mask];
}

struct hx_engram_entry *hx_engram_cache_find(struct hx_engram_cache *c, int table, int size,
                                             uint64_t key)
{
    for (uint32_t i = *bucket_of(c, table, size, key); i; i = c->entry[i - 1].chain) {
        struct hx_engram_entry *e = &c->entry[i - 1];
        if (e->key == key && e->table == table && e->size == size)
            return e;
    }
    return NULL;
}

static void unlist(struct hx_engram_cache *c, struct hx_engram_entry *e)
{
    if (!e->listed)
        return;
    uint32_t *at = bucket_of(c, e->table, e->size, e->key), me = place(c, e) + 1;
    while (*at != me)
        at = &c->entry[*at - 1].chain;
    *at = e->chain;
    e->listed = false;
}

struct hx_engram_entry *hx_engram_cache_add(struct hx_engram_cache *c, int table, int size,
                                            uint64_t key, bool listed)
{
    struct hx_engram_entry *e;
    if (c->n_loading == c->o.n_loading)
        return NULL;
    if (c->free) {
        e = &c->entry[c->free - 1];
        c->free = e->chain;
    } else {
        e = &c->entry[c->n_used++];
    }
    *e = (struct hx_engram_entry){
        .key = key, .table = (uint8_t)table, .size = (uint8_t)size, .listed = listed};
    if (listed) {
        uint32_t *at = bucket_of(c, table, size, key);
        e->chain = *at;
        *at = place(c, e) + 1;
    }
    c->n_loading++;
    return e;
}

/* ---- queues ---- */

static void push(struct hx_engram_cache *c, int queue, struct hx_engram_entry *e)
{
    struct queue *q = &c->queue[queue];
    uint32_t me = place(c, e) + 1;
    e->queue = (uint8_t)queue;
    e->prev = 0;
    e->next = q->first;
    *(q->first ? &c->entry[q->first - 1].prev : &q->last) = me;
    q->first = me;
    q->n++;
}

static struct hx_engram_entry *pop(struct hx_engram_cache *c, int queue)
{
    struct queue *q = &c->queue[queue];
    struct hx_engram_entry *e = &c->entry[q->last - 1];
    q->last = e->prev;
    *(e->prev ? &c->entry[e->prev - 1].next : &q->first) = 0;
    q->n--;
    e->queue = NO_QUEUE;
    return e;
}

static void release(struct hx_engram_cache *c, struct hx_engram_entry *e)
{
    unlist(c, e);
    e->chain = c->free;
    c->free = place(c, e) + 1;
}

/* ---- the evicted ---- */

static struct ghost *ghost_set(struct hx_engram_cache *c, const struct hx_engram_entry *e,
                               uint32_t *tag)
{
    uint64_t m = mixed(e->table, e->size, e->key);
    *tag = (uint32_t)(m >> 32);
    return &c->ghost[(m & c->ghost_mask) * GHOST_WAYS];
}

static bool ghost_age(const struct hx_engram_cache *c, const struct ghost *g, uint32_t *age)
{
    *age = c->ghost_now - g->when;
    return g->when != 0 && *age < 2 * c->o.n_cached;
}

static bool ghost_take(struct hx_engram_cache *c, const struct hx_engram_entry *e)
{
    uint32_t tag, age;
    struct ghost *g = ghost_set(c, e, &tag);
    for (int i = 0; i < GHOST_WAYS; i++) {
        if (g[i].tag == tag && ghost_age(c, &g[i], &age)) {
            g[i].when = 0;
            return true;
        }
    }
    return false;
}

static void ghost_put(struct hx_engram_cache *c, const struct hx_engram_entry *e)
{
    uint32_t tag, age, oldest = 0;
    struct ghost *g = ghost_set(c, e, &tag), *to = g;
    for (int i = 0; i < GHOST_WAYS; i++) {
        if (!ghost_age(c, &g[i], &age)) {
            to = &g[i];
            break;
        }
        if (age >= oldest) {
            oldest = age;
            to = &g[i];
        }
    }
    *to = (struct ghost){tag, c->ghost_now};
    if (++c->ghost_now == 0)
        c->ghost_now = 1;
}

/* ---- replacement ---- */

static void evict(struct hx_engram_cache *c)
{
    for (;;) {
        struct queue *small = &c->queue[SMALL];
        bool from_small = small->n > c->o.n_cached / SMALL_PART || c->queue[MAIN].n == 0;
        struct hx_engram_entry *e = pop(c, from_small ? SMALL : MAIN);
        if (e->uses == 0) {
            if (from_small)
                ghost_put(c, e);
            release(c, e);
            return;
        }
        e->uses = from_small ? 0 : e->uses - 1;
        push(c, MAIN, e);
    }
}

void hx_engram_cache_touch(struct hx_engram_entry *e)
{
    if (e->uses < MAX_USES)
        e->uses++;
}

void hx_engram_cache_keep(struct hx_engram_cache *c, struct hx_engram_entry *e)
{
    c->n_loading--;
    e->flight = NULL;
    if (!e->listed || c->o.n_cached == 0) {
        release(c, e);
        return;
    }
    if (hx_engram_cache_count(c) == c->o.n_cached)
        evict(c);
    push(c, ghost_take(c, e) ? MAIN : SMALL, e);
}

void hx_engram_cache_drop(struct hx_engram_cache *c, struct hx_engram_entry *e)
{
    c->n_loading--;
    e->flight = NULL;
    release(c, e);
}

void hx_engram_cache_walk(const struct hx_engram_cache *c,
                          bool (*take)(void *user, const struct hx_engram_entry *e), void *user)
{
    for (int q = MAIN; q >= SMALL; q--) {
        for (uint32_t i = c->queue[q].first; i; i = c->entry[i - 1].next) {
            if (!take(user, &c->entry[i - 1]))
                return;
        }
    }
}
