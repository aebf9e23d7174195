/* Merging. Three sizes of work:
 *   - a piece that is a token which merging would find needs no merging;
 *   - short pieces scan an array of pair results;
 *   - long pieces, which have no length limit, use a heap over a linked list, window by window.
 *
 * Windows are exact. Let T be tokens whose bytes spell the piece, each of them found by merging its
 * own bytes, and each neighbouring pair found by merging the bytes of the two. Then T is what
 * merging the piece gives: the first merge across a border of T would be the smallest one among
 * the bytes of its two tokens too, and merging those alone never crosses. So tokens of one window
 * may be followed by those of the next if the pair at the seam passes that test. */
#include "text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SHORT  48   /* bytes: below, scanning beats the heap */
#define WINDOW 1024 /* bytes of a long piece that are merged at once; below 4096 */
#define NONE   INT32_MAX

#define NOT_WHOLE 0x80000000u /* in a vocabulary entry: merging the token's bytes gives others */

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
    b->byte_pair = malloc(256 * sizeof(*b->byte_pair));
    if (!b->pair || !b->vocab || !b->byte_pair)
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
    free(b->byte_pair);
    memset(b, 0, sizeof(*b));
}

static int32_t entry_id(uint64_t e)
{
    return (int32_t)((uint32_t)e & ~NOT_WHOLE) - 1;
}

/* Table slot of the token with these bytes; an empty one if there is none. */
static uint32_t find_slot(const struct hx_bpe *b, const uint8_t *s, size_t len)
{
    uint64_t h = hash_bytes(s, len);
    for (uint32_t i = (uint32_t)h & b->vocab_mask;; i = (i + 1) & b->vocab_mask) {
        uint64_t e = b->vocab[i];
        int32_t id = entry_id(e);
        if (e == 0 || ((e ^ h) >> 32 == 0 && b->offset[id + 1] - b->offset[id] == len &&
                       memcmp(b->bytes + b->offset[id], s, len) == 0))
            return i;
    }
}

int32_t hx_bpe_find(const struct hx_bpe *b, const uint8_t *s, size_t len)
{
    uint64_t e = b->vocab[find_slot(b, s, len)];
    return e == 0 ? -1 : entry_id(e);
}

int hx_bpe_add_pair(struct hx_bpe *b, int32_t left, int32_t right, int32_t result,
                    struct hx_error *err)
{
    uint64_t key = pair_key(left, right);
    uint32_t i = pair_hash(key) & b->pair_mask;
    if (result <= left || result <= right)
        return hx_fail(err, -EINVAL,
                       "model.merges: the pair of ids %d and %d gives %d, expected a higher id",
                       left, right, result);
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

/* The tokens of the bytes, n >= 1 of them; result[i] of the pair i, i + 1; the last has none. */
static void split_bytes(const struct hx_bpe *b, const uint8_t *s, int n, int32_t *id,
                        int32_t *result)
{
    for (int i = 0; i + 1 < n; i++) {
        id[i] = b->byte_id[s[i]];
        result[i] = b->byte_pair[s[i]][s[i + 1]];
    }
    id[n - 1] = b->byte_id[s[n - 1]];
    result[n - 1] = NONE;
}

/* id[len] gets the ids; returns how many. */
static size_t merge_short(const struct hx_bpe *b, const uint8_t *s, size_t len, int32_t *id)
{
    int32_t result[SHORT];
    int n = (int)len;
    split_bytes(b, s, n, id, result);
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
    return (size_t)n;
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

/* Merges all pairs of the lowest rank at once, as long as that takes away one symbol in
 * ROUND_SHARE: runs of few different characters need a handful of rounds. No merge of a round makes
 * a pair of its rank or below, as results rise. Returns how many symbols are left. */
#define ROUND_SHARE 12
static int merge_rounds(const struct hx_bpe *b, int n, int32_t *id, int32_t *result)
{
    for (;;) {
        int32_t least = NONE;
        int n_least = 0, to = 0;
        for (int i = 0; i + 1 < n; i++)
            least = result[i] < least ? result[i] : least;
        for (int i = 0; i + 1 < n; i++)
            n_least += result[i] == least;
        if (least == NONE || n_least < n / ROUND_SHARE + 1)
            return n;
        for (int i = 0; i < n; i++, to++) {
            bool merge = result[i] == least; /* never true of the last one */
            bool changed = merge || (to > 0 && id[to - 1] == least);
            id[to] = merge ? least : id[i];
            if (to > 0 && changed)
                result[to - 1] = pair_result(b, id[to - 1], id[to]);
            i += merge;
            result[to] = result[i];
        }
        n = to;
    }
}

/* The same within a window, without the allocator: 20 bits of result and 12 of position make one
 * 32-bit key. */
struct window {
    int32_t id[WINDOW], result[WINDOW]; /* result: of the pair with the next, NONE if merged away */
    uint16_t prev[WINDOW], next[WINDOW];
    uint32_t key[3 * WINDOW];
    size_t n_keys;
};

static void push_key(struct window *w, uint32_t v)
{
    size_t i = w->n_keys++;
    while (i > 0 && w->key[(i - 1) / 4] > v) {
        w->key[i] = w->key[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    w->key[i] = v;
}

static void sink_key(struct window *w, size_t i, uint32_t v)
{
    for (;;) {
        size_t c = 4 * i + 1, end = c + 4 < w->n_keys ? c + 4 : w->n_keys;
        if (c >= end)
            break;
        size_t least = c;
        for (c++; c < end; c++) {
            if (w->key[c] < w->key[least])
                least = c;
        }
        if (w->key[least] >= v)
            break;
        w->key[i] = w->key[least];
        i = least;
    }
    w->key[i] = v;
}

static void drop_least(struct window *w)
{
    w->n_keys--;
    if (w->n_keys > 0)
        sink_key(w, 0, w->key[w->n_keys]);
}

/* len from 2 to WINDOW; id[len] gets the ids; returns how many. */
static size_t merge_window(const struct hx_bpe *b, const uint8_t *s, size_t len, int32_t *id)
{
    struct window w;
    split_bytes(b, s, (int)len, w.id, w.result);
    unsigned n = (unsigned)merge_rounds(b, (int)len, w.id, w.result);
    w.n_keys = 0;
    for (unsigned i = 0; i < n; i++) {
        w.prev[i] = (uint16_t)(i - 1); /* of the first: never read */
        w.next[i] = (uint16_t)(i + 1);
        if (w.result[i] != NONE)
            w.key[w.n_keys++] = (uint32_t)w.result[i] << 12 | i;
    }
    for (size_t i = w.n_keys / 4 + 1; i-- > 0;) {
        if (i < w.n_keys)
            sink_key(&w, i, w.key[i]);
    }
    while (w.n_keys > 0) {
        uint32_t top = w.key[0];
        unsigned at = top & 0xFFF, right = w.next[at], after;
        if (w.result[at] != (int32_t)(top >> 12)) { /* an older pair of this position */
            drop_least(&w);
            continue;
        }
        after = w.next[right];
        w.id[at] = (int32_t)(top >> 12);
        w.result[right] = NONE;
        w.next[at] = (uint16_t)after;
        if (after < n)
            w.prev[after] = (uint16_t)at;
        w.result[at] = after < n ? pair_result(b, w.id[at], w.id[after]) : NONE;
        if (w.result[at] != NONE)
            sink_key(&w, 0, (uint32_t)w.result[at] << 12 | at); /* in the place of the old one */
        else
            drop_least(&w);
        if (at > 0) {
            unsigned before = w.prev[at];
            w.result[before] = pair_result(b, w.id[before], w.id[at]);
            if (w.result[before] != NONE)
                push_key(&w, (uint32_t)w.result[before] << 12 | before);
        }
    }
    size_t count = 0;
    for (unsigned i = 0; i < n; i = w.next[i])
        id[count++] = w.id[i];
    return count;
}

/* ---- pieces
 * ------------------------------------------------------------------------------------------ */

static size_t token_len(const struct hx_bpe *b, int32_t id)
{
    return b->offset[id + 1] - b->offset[id];
}

static int merge_at_once(const struct hx_bpe *b, const uint8_t *s, size_t len, struct hx_ids *out)
{
    int32_t id[WINDOW];
    if (len > WINDOW)
        return merge_long(b, s, len, out);
    size_t n = len <= SHORT ? merge_short(b, s, len, id) : merge_window(b, s, len, id);
    return hx_ids_append(out, id, n);
}

/* Does merging the bytes of two neighbouring tokens, from s on, give these two? 1, 0 or -ENOMEM. */
static int joins(const struct hx_bpe *b, const uint8_t *s, int32_t left, int32_t right)
{
    struct hx_ids two = {0};
    int r = merge_at_once(b, s, token_len(b, left) + token_len(b, right), &two);
    if (r == 0)
        r = two.len == 2 && two.id[0] == left && two.id[1] == right;
    hx_ids_done(&two);
    return r;
}

#define TAIL  64 /* bytes at the end of a window that the next one does again */
#define TRIES 8  /* seams that do not hold before the window grows */

static int merge_by_windows(const struct hx_bpe *b, const uint8_t *s, size_t len,
                            const struct hx_bpe_progress *p, struct hx_ids *out)
{
    const size_t begin = out->len;
    size_t window = WINDOW, at = 0, reported = 0;
    unsigned tries = 0;
    for (;;) {
        size_t n = len - at < window ? len - at : window, first = out->len;
        int r = merge_at_once(b, s + at, n, out);
        if (r < 0)
            return r;
        if (first > begin) {
            size_t before = token_len(b, out->id[first - 1]);
            r = joins(b, s + at - before, out->id[first - 1], out->id[first]);
            if (r < 0)
                return r;
            if (r == 0) { /* from one token earlier; in the end one window holds the whole piece */
                out->len = first - 1;
                at -= before;
                if (++tries % TRIES == 0)
                    window *= 2;
                continue;
            }
        }
        at += n;
        if (at == len)
            return 0;
        if (out->len - first == 1) {
            out->len = first;
            at -= n;
            window *= 2;
            continue;
        }
        /* The window's end may have cut the last tokens short. */
        size_t end = at;
        do
            at -= token_len(b, out->id[--out->len]);
        while (end - at < TAIL && out->len - first > 1);
        if (p && at > reported) {
            r = p->done(p->user, at - reported);
            if (r < 0)
                return r;
            reported = at;
        }
    }
}

int hx_bpe_merge(const struct hx_bpe *b, const uint8_t *s, size_t len,
                 const struct hx_bpe_progress *p, struct hx_ids *out)
{
    uint64_t e = b->vocab[find_slot(b, s, len)];
    if (e != 0 && !(e & NOT_WHOLE))
        return hx_ids_push(out, entry_id(e));
    return len <= WINDOW ? merge_at_once(b, s, len, out) : merge_by_windows(b, s, len, p, out);
}

int hx_bpe_mark_whole(struct hx_bpe *b, struct hx_error *err)
{
    struct hx_ids ids = {0};
    int r = 0;
    for (int i = 0; i < 256 * 256; i++)
        b->byte_pair[i >> 8][i & 255] = pair_result(b, b->byte_id[i >> 8], b->byte_id[i & 255]);
    for (uint32_t i = 0; r == 0 && i <= b->vocab_mask; i++) {
        if (b->vocab[i] == 0)
            continue;
        int32_t id = entry_id(b->vocab[i]);
        ids.len = 0;
        r = merge_at_once(b, b->bytes + b->offset[id], token_len(b, id), &ids);
        if (r == 0 && (ids.len != 1 || ids.id[0] != id))
            b->vocab[i] |= NOT_WHOLE;
    }
    hx_ids_done(&ids);
    return r < 0 ? hx_fail(err, r, "out of memory") : 0;
}
