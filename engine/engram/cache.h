/* Groups of rows (the n_head rows of one n-gram) that are in memory or on their way. One lock of
 * the owner guards all of it. Replacement is S3-FIFO: new groups go through a small queue, those
 * used again into the main one; what leaves the small queue is remembered for a while, and goes
 * straight to the main one if it comes back (docs/decisions/0002-engram-cache-and-reads.md). */
#ifndef HX_ENGRAM_CACHE_H
#define HX_ENGRAM_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_engram_flight;

struct hx_engram_entry {
    uint64_t key;
    struct hx_engram_flight *flight; /* while it is on its way, else NULL */
    uint32_t chain, next, prev;      /* places in the array + 1; 0: none */
    uint8_t table, size, uses, queue;
    bool listed; /* can be found */
};

struct hx_engram_cache_options {
    uint32_t n_cached;                /* groups kept; 0: none */
    uint32_t n_loading;               /* groups on their way, at most */
    uint32_t code_bytes, scale_bytes; /* of a group */
};

struct hx_engram_cache;
int hx_engram_cache_new(const struct hx_engram_cache_options *o, struct hx_engram_cache **out,
                        struct hx_error *err) HX_MUST;
void hx_engram_cache_free(struct hx_engram_cache *c);
/* Groups that a budget holds, and the bytes of so many. */
uint32_t hx_engram_cache_fit(uint64_t budget, uint32_t code_bytes, uint32_t scale_bytes);
uint64_t hx_engram_cache_bytes(const struct hx_engram_cache *c);
uint32_t hx_engram_cache_count(const struct hx_engram_cache *c);

/* NULL: neither here nor on its way. */
struct hx_engram_entry *hx_engram_cache_find(struct hx_engram_cache *c, int table, int size,
                                             uint64_t key);
/* An entry to load into; listed: hx_engram_cache_find gives it from now on. NULL: n_loading are on
 * their way. */
struct hx_engram_entry *hx_engram_cache_add(struct hx_engram_cache *c, int table, int size,
                                            uint64_t key, bool listed);
/* It was used again. */
void hx_engram_cache_touch(struct hx_engram_entry *e);
/* Loaded: kept, at the cost of another one, or dropped if it is not listed or nothing is kept. */
void hx_engram_cache_keep(struct hx_engram_cache *c, struct hx_engram_entry *e);
/* Its load failed or is not wanted any more. */
void hx_engram_cache_drop(struct hx_engram_cache *c, struct hx_engram_entry *e);

uint8_t *hx_engram_cache_codes(const struct hx_engram_cache *c, const struct hx_engram_entry *e);
uint8_t *hx_engram_cache_scales(const struct hx_engram_cache *c, const struct hx_engram_entry *e);

/* Groups worth keeping over a restart: calls take() for those of the main queue, then of the small
 * one, the last used ones first, until it returns false. */
void hx_engram_cache_walk(const struct hx_engram_cache *c,
                          bool (*take)(void *user, const struct hx_engram_entry *e), void *user);

#endif
