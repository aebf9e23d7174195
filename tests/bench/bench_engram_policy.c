/* Hit rates of cache policies over n-gram groups of real text: LRU, CLOCK and the product's
 * S3-FIFO, by size; and what a restart costs, with and without the keys of before. One table;
 * groups of a 2048-token chunk are counted once, as the streamer asks for them.
 *
 *   bench_engram_policy TOKENIZER MAP TEXT... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/rand.h"
#include "engram/cache.h"
#include "engram/engram.h"

#include <hx/tokenizer.h>

#define CHUNK    2048
#define SIZES    3
#define MAX_TEXT ((size_t)1 << 30)
#define AFTER    (50 * CHUNK) /* tokens looked at after a restart */

static void die(const char *what)
{
    fprintf(stderr, "bench_engram_policy: %s\n", what);
    exit(1);
}

static void *need(void *p)
{
    if (!p)
        die("out of memory");
    return p;
}

/* ---- accesses ---- */

struct stream {
    uint64_t *key; /* distinct in their chunk */
    uint8_t *size;
    size_t n, n_all, *chunk; /* chunk: where each begins, one more than there are */
    size_t n_chunks;
};

static void load(struct stream *s, const struct hx_engram_hash *h, const struct hx_tokenizer *t,
                 const char *path)
{
    struct hx_error err;
    struct hx_ids ids = {0};
    char *text;
    size_t len;
    if (hx_file_read(path, MAX_TEXT, &text, &len, &err) < 0 ||
        hx_tokenizer_encode(t, text, len, &(struct hx_encode_options){0}, &ids, &err) < 0)
        die(err.text);
    free(text);
    size_t n = ids.len, mask = 16383;
    uint64_t *keys = need(malloc(n * SIZES * sizeof(*keys)));
    uint32_t *seen = need(malloc((mask + 1) * sizeof(*seen)));
    if (hx_engram_hash_keys(h, 0, ids.id, NULL, 0, (int64_t)n, keys, &err) < 0)
        die(err.text);
    s->key = need(malloc(n * SIZES * sizeof(*s->key)));
    s->size = need(malloc(n * SIZES));
    s->chunk = need(malloc((n / CHUNK + 2) * sizeof(*s->chunk)));
    s->n = s->n_chunks = 0;
    s->n_all = n * SIZES;
    for (size_t i = 0; i < n * SIZES; i++) {
        if (i % (CHUNK * SIZES) == 0) {
            s->chunk[s->n_chunks++] = s->n;
            memset(seen, 0, (mask + 1) * sizeof(*seen));
        }
        size_t at = hx_mix64(keys[i] + i % SIZES) & mask;
        while (seen[at] && (s->key[seen[at] - 1] != keys[i] || s->size[seen[at] - 1] != i % SIZES))
            at = (at + 1) & mask;
        if (seen[at])
            continue;
        s->key[s->n] = keys[i];
        s->size[s->n++] = (uint8_t)(i % SIZES);
        seen[at] = (uint32_t)s->n;
    }
    s->chunk[s->n_chunks] = s->n;
    free(keys);
    free(seen);
    hx_ids_done(&ids);
}

/* ---- policies ---- */

/* LRU and CLOCK over one table: entries in a ring or a list, found by a chained hash. */
struct simple {
    uint32_t n, used, hand, first, last, mask, *bucket;
    struct {
        uint64_t key;
        uint32_t chain, next, prev;
        uint8_t size, touched;
    } * e; /* [n + 1], 0 unused */
};

static uint32_t *bucket(struct simple *c, uint64_t key, int size)
{
    return &c->bucket[hx_mix64(key + (uint64_t)size) & c->mask];
}

static struct simple *simple_new(uint32_t n)
{
    struct simple *c = need(calloc(1, sizeof(*c)));
    c->n = n;
    c->mask = 1;
    while (c->mask < 2 * n)
        c->mask *= 2;
    c->mask--;
    c->bucket = need(calloc(c->mask + 1, sizeof(*c->bucket)));
    c->e = need(calloc((size_t)n + 1, sizeof(*c->e)));
    return c;
}

static void simple_free(struct simple *c)
{
    free(c->bucket);
    free(c->e);
    free(c);
}

static uint32_t simple_find(struct simple *c, uint64_t key, int size)
{
    uint32_t i = *bucket(c, key, size);
    while (i && (c->e[i].key != key || c->e[i].size != size))
        i = c->e[i].chain;
    return i;
}

static void simple_put(struct simple *c, uint32_t i, uint64_t key, int size, bool replace)
{
    uint32_t *b;
    if (replace) {
        b = bucket(c, c->e[i].key, c->e[i].size);
        while (*b != i)
            b = &c->e[*b].chain;
        *b = c->e[i].chain;
    }
    b = bucket(c, key, size);
    c->e[i].key = key;
    c->e[i].size = (uint8_t)size;
    c->e[i].chain = *b;
    *b = i;
}

static void list_cut(struct simple *c, uint32_t i)
{
    *(c->e[i].prev ? &c->e[c->e[i].prev].next : &c->first) = c->e[i].next;
    *(c->e[i].next ? &c->e[c->e[i].next].prev : &c->last) = c->e[i].prev;
}

static void list_front(struct simple *c, uint32_t i)
{
    c->e[i].prev = 0;
    c->e[i].next = c->first;
    *(c->first ? &c->e[c->first].prev : &c->last) = i;
    c->first = i;
}

static bool lru(void *cache, uint64_t key, int size)
{
    struct simple *c = cache;
    uint32_t i = simple_find(c, key, size);
    bool hit = i != 0, full = c->used == c->n;
    if (!hit) {
        i = full ? c->last : ++c->used;
        simple_put(c, i, key, size, full);
    }
    if (hit || full)
        list_cut(c, i);
    list_front(c, i);
    return hit;
}

static bool clock_(void *cache, uint64_t key, int size)
{
    struct simple *c = cache;
    uint32_t i = simple_find(c, key, size);
    if (i) {
        c->e[i].touched = 1;
        return true;
    }
    bool full = c->used == c->n;
    if (full) {
        do {
            c->hand = c->hand % c->n + 1;
        } while (c->e[c->hand].touched && (c->e[c->hand].touched = 0, true));
        i = c->hand;
    } else {
        i = ++c->used;
    }
    simple_put(c, i, key, size, full);
    c->e[i].touched = 0;
    return false;
}

static struct hx_engram_cache *s3_new(uint32_t n)
{
    struct hx_engram_cache_options o = {n, 1, 1, 1}; /* rows of no bytes to speak of */
    struct hx_engram_cache *c;
    struct hx_error err;
    if (hx_engram_cache_new(&o, &c, &err) < 0)
        die(err.text);
    return c;
}

static bool s3(void *cache, uint64_t key, int size)
{
    struct hx_engram_cache *c = cache;
    struct hx_engram_entry *e = hx_engram_cache_find(c, 0, size, key);
    if (e) {
        hx_engram_cache_touch(e);
        return true;
    }
    hx_engram_cache_keep(c, hx_engram_cache_add(c, 0, size, key, true));
    return false;
}

/* ---- measuring ---- */

/* Share of hits from access `from` on, after a run over the ones before. */
static double run(const struct stream *s, bool (*access)(void *, uint64_t, int), void *cache,
                  size_t begin, size_t from, size_t end)
{
    size_t hits = 0;
    for (size_t i = begin; i < end; i++) {
        bool hit = access(cache, s->key[i], s->size[i]);
        hits += hit && i >= from;
    }
    return (double)hits / (double)(end - from);
}

struct keys {
    uint64_t *key;
    uint8_t *size;
    size_t n;
};

static bool remember(void *user, const struct hx_engram_entry *e)
{
    struct keys *k = user;
    k->key[k->n] = e->key;
    k->size[k->n++] = e->size;
    return true;
}

/* Half of the text, a restart, then some chunks: gone on, cold, with the keys of before. */
static void restart(const struct stream *s, uint32_t n)
{
    size_t half = s->n_chunks / 2, chunks = AFTER / CHUNK;
    if (half + chunks > s->n_chunks)
        chunks = s->n_chunks - half;
    size_t mid = s->chunk[half], end = s->chunk[half + chunks];
    struct hx_engram_cache *warm = s3_new(n), *cold = s3_new(n), *loaded = s3_new(n);
    struct keys k = {need(malloc(n * sizeof(uint64_t))), need(malloc(n)), 0};
    run(s, s3, warm, 0, 0, mid);
    hx_engram_cache_walk(warm, remember, &k);
    for (size_t i = k.n; i-- > 0;)
        s3(loaded, k.key[i], k.size[i]);
    double a = run(s, s3, warm, mid, mid, end), b = run(s, s3, cold, mid, mid, end),
           c = run(s, s3, loaded, mid, mid, end);
    printf("  restart, %7u groups: next %zu tokens %.3f gone on, %.3f cold, %.3f reloaded\n", n,
           chunks * CHUNK, a, b, c);
    hx_engram_cache_free(warm);
    hx_engram_cache_free(cold);
    hx_engram_cache_free(loaded);
    free(k.key);
    free(k.size);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {8192, 32768, 131072, 524288, 1048576};
    struct hx_error err;
    struct hx_tokenizer *t;
    struct hx_engram_hash *h;
    char *map;
    size_t len;
    if (argc < 4)
        die("usage: bench_engram_policy TOKENIZER MAP TEXT...");
    if (hx_tokenizer_open(argv[1], &t, &err) < 0 ||
        hx_file_read(argv[2], 1 << 24, &map, &len, &err) < 0)
        die(err.text);
    struct hx_engram_hash_config c = {.n_table = 2,
                                      .layer = {1, 14},
                                      .declared_rows = {384006168, 384016682},
                                      .n_gram = 4,
                                      .n_head = 8,
                                      .first_bucket = 16000000,
                                      .n_compressed = 99092,
                                      .pad_token = 2,
                                      .token_map = (int32_t *)(void *)map,
                                      .n_vocab = (int32_t)(len / 4)};
    if (hx_engram_hash_new(&c, &h, &err) < 0)
        die(err.text);
    for (int i = 3; i < argc; i++) {
        struct stream s;
        load(&s, h, t, argv[i]);
        const char *name = strrchr(argv[i], '/');
        printf("%s: %zu tokens, distinct in their chunk %.3f; hits over the second half:\n",
               name ? name + 1 : argv[i], s.n_all / SIZES, (double)s.n / (double)s.n_all);
        struct simple *all = simple_new((uint32_t)(s.n + 1));
        printf("  never evicting %.3f\n", run(&s, lru, all, 0, s.n / 2, s.n));
        simple_free(all);
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct simple *a = simple_new(sizes[k]), *b = simple_new(sizes[k]);
            struct hx_engram_cache *d = s3_new(sizes[k]);
            printf("  %7u groups (%4.0f MB): LRU %.3f  CLOCK %.3f  S3-FIFO %.3f\n", sizes[k],
                   sizes[k] * 2184e-6, run(&s, lru, a, 0, s.n / 2, s.n),
                   run(&s, clock_, b, 0, s.n / 2, s.n), run(&s, s3, d, 0, s.n / 2, s.n));
            simple_free(a);
            simple_free(b);
            hx_engram_cache_free(d);
        }
        restart(&s, 131072);
        restart(&s, 1048576);
        free(s.key);
        free(s.size);
        free(s.chunk);
    }
    hx_engram_hash_free(h);
    hx_tokenizer_close(t);
    free(map);
    return 0;
}
