/* Merging. A piece that is a token needs no merging (the vocabulary is closed: merging would find
 * it). Short pieces scan an array of pair results; long ones, which have no length limit, use a
 * heap over a linked list, so that a megabyte of one letter takes O(n log n). */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define SHORT 48 /* bytes: below, scanning beats the heap */
#define NONE  INT32_MAX

/* ---- hash tables
 * ------------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const uint8_t *s, size_t len)
{
    uint64_t h = len * 0x9E3779B97F4A7C15u, w;
    while (len >= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
        s += 8;
        len -= 8;
    }
    w = 0;
    for (size_t i = 0; i < len; i++)
        w |= (uint64_t)s[i] << (8 * i);
    h = (h ^ w) * 0x94D049BB133111EBu;
    return h ^ h >> 32;
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 40 | (uint64_t)(uint32_t)right << 20;
}

static uint32_t pair_hash(uint64_t key)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 36);
}

#define RESULT 0xFFFFFu

static int32_t pair_result(const struct hx_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint32_t i = pair_hash(key) & b->pair_mask;; i = (i + 1) & b->pair_mask) {
        uint64_t e = b->pair[i];
        if (e == 0)
            return NONE;
        if ((e & ~(uint64_t)RESULT) == key)
            return (int32_t)(e & RESULT);
    }
}

static uint32_t table_size(uint32_t n)
{
    uint32_t size = 1024;
    while (size < n * 2)
        size *= 2;
    return size;
}

int hx_bpe_init(struct hx_bpe *b, struct hx_error *err)
{
    uint32_t size = table_size((uint32_t)b->n_vocab);
    b->pair = calloc(size, sizeof(*b->pair));
    b->vocab = calloc(size, sizeof(*b->vocab));
    if (!b->pair || !b->vocab)
        return hx_fail(err, -ENOMEM, "out of memory");
    b->pair_mask = b->vocab_mask = size - 1;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        uint32_t len = b->offset[id + 1] - b->offset[id];
        if (len == 0)
            continue;
        uint64_t h = hash_bytes(b->bytes + b->offset[id], len);
        uint32_t i = (uint32_t)h & b->vocab_mask;
        while (b->vocab[i] != 0)
            i = (i + 1) & b->vocab_mask;
        b->vocab[i] = (h & 0xFFFFFFFF00000000u) | (uint32_t)(id + 1);
    }
    for (int c = 0; c < 256; c++) {
        uint8_t byte = (uint8_t)c;
        b->byte_id[c] = hx_bpe_find(b, &byte, 1);
        if (b->byte_id[c] < 0)
            return hx_fail(err, -EINVAL, "model.vocab: no token for byte 0x%02x", c);
    }
    return 0;
}

void hx_bpe_done(struct hx_bpe *b)
{
    free(b->bytes);
    free(b->offset);
    free(b->pair);
    free(b->vocab);
    memset(b, 0, sizeof(*b));
}

int32_t hx_bpe_find(const struct hx_bpe *b, const uint8_t *s, size_t len)
{
    uint64_t h = hash_bytes(s, len);
    for (uint32_t i = (uint32_t)h & b->vocab_mask;; i = (i + 1) & b->vocab_mask) {
        uint64_t e = b->vocab[i];
        if (e == 0)
            return -1;
        int32_t id = (int32_t)(uint32_t)e - 1;
        if ((e ^ h) >> 32 == 0 && b->offset[id + 1] - b->offset[id] == len &&
            memcmp(b->bytes + b->offset[id], s, len) == 0)
            return id;
    }
}

int hx_bpe_add_pair(struct hx_bpe *b, int32_t left, int32_t right, int32_t result,
                    struct hx_error *err)
{
    uint64_t key = pair_key(left, right);
    uint32_t i = pair_hash(key) & b->pair_mask;
    for (; b->pair[i] != 0; i = (i + 1) & b->pair_mask) {
        if ((b->pair[i] & ~(uint64_t)RESULT) == key)
            return hx_fail(err, -EINVAL, "model.merges: the pair of ids %d and %d is there twice",
                           left, right);
    }
    b->pair[i] = key | (uint32_t)result;
    return 0;
}

/* ---- merging
 * ----------------------------------------------------------------------------------------- */

static int merge_short(const struct hx_bpe *b, const uint8_t *s, size_t len, struct hx_ids *out)
{
    int32_t id[SHORT], result[SHORT];
    int n = (int)len;
    for (int i = 0; i < n; i++)
        id[i] = b->byte_id[s[i]];
    for (int i = 0; i + 1 < n; i++)
        result[i] = pair_result(b, id[i], id[i + 1]);
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++) {
            if (result[i] < result[best])
                best = i;
        }
        if (result[best] == NONE)
            break;
        id[best] = result[best];
        memmove(id + best + 1, id + best + 2, (size_t)(n - best - 2) * sizeof(*id));
        if (n - best - 2 > 0)
            memmove(result + best + 1, result + best + 2, (size_t)(n - best - 3) * sizeof(*result));
        n--;
        if (best > 0)
            result[best - 1] = pair_result(b, id[best - 1], id[best]);
        if (best + 1 < n)
            result[best] = pair_result(b, id[best], id[best + 1]);
    }
    return hx_ids_append(out, id, (size_t)n);
}

/* Heap of (result, position), smallest first: lowest rank, leftmost on a tie. */
struct heap {
    uint64_t *e;
    size_t n;
};

static void push(struct heap *h, int32_t result, int32_t at)
{
    uint64_t v = (uint64_t)(uint32_t)result << 32 | (uint32_t)at;
    size_t i = h->n++;
    while (i > 0 && h->e[(i - 1) / 2] > v) {
        h->e[i] = h->e[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->e[i] = v;
}

static uint64_t pop(struct heap *h)
{
    uint64_t top = h->e[0], v = h->e[--h->n];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->e[c + 1] < h->e[c])
            c++;
        if (h->e[c] >= v)
            break;
        h->e[i] = h->e[c];
        i = c;
    }
    h->e[i] = v;
    return top;
}

struct node {
    int32_t id, prev, next; /* id -1: merged away */
};

static void consider(const struct hx_bpe *b, const struct node *node, struct heap *h, int32_t at)
{
    if (at < 0 || node[at].next < 0)
        return;
    int32_t r = pair_result(b, node[at].id, node[node[at].next].id);
    if (r != NONE)
        push(h, r, at);
}

static int merge_long(const struct hx_bpe *b, const uint8_t *s, size_t len, struct hx_ids *out)
{
    /* At most one entry a position and one more for each merge are alive at once. */
    struct node *node = malloc(len * sizeof(*node));
    struct heap h = {malloc(2 * len * sizeof(*h.e)), 0};
    int r = 0;
    if (!node || !h.e || len > INT32_MAX) {
        r = -ENOMEM;
        goto out;
    }
    for (size_t i = 0; i < len; i++)
        node[i] =
            (struct node){b->byte_id[s[i]], (int32_t)i - 1, i + 1 < len ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < len; i++)
        consider(b, node, &h, (int32_t)i);
    while (h.n > 0) {
        uint64_t top = pop(&h);
        int32_t at = (int32_t)(uint32_t)top, result = (int32_t)(top >> 32), right;
        if (node[at].id < 0 || (right = node[at].next) < 0 ||
            pair_result(b, node[at].id, node[right].id) != result)
            continue; /* an older pair of this position */
        node[at].id = result;
        node[at].next = node[right].next;
        if (node[right].next >= 0)
            node[node[right].next].prev = at;
        node[right].id = -1;
        consider(b, node, &h, node[at].prev);
        consider(b, node, &h, at);
    }
    for (int32_t i = 0; r == 0 && i >= 0; i = node[i].next)
        r = hx_ids_push(out, node[i].id);
out:
    free(node);
    free(h.e);
    return r;
}

int hx_bpe_merge(const struct hx_bpe *b, const uint8_t *s, size_t len, struct hx_ids *out)
{
    int32_t whole = hx_bpe_find(b, s, len);
    if (whole >= 0)
        return hx_ids_push(out, whole);
    return len <= SHORT ? merge_short(b, s, len, out) : merge_long(b, s, len, out);
}
