/* From token ids to table rows (spec engram.md section 2). */
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "engram/engram.h"

#define MAX_TABLES       4
#define MAX_PRIME_SEARCH (1 << 20) /* candidates looked at for one bucket */

struct table {
    int64_t multiplier[HX_ENGRAM_MAX_NGRAM];
    int64_t prime[HX_ENGRAM_MAX_COLS];
    int64_t offset[HX_ENGRAM_MAX_COLS];
};

struct hx_engram_hash {
    int n_table, n_gram, n_head, n_cols;
    const int32_t *map;
    int32_t n_vocab;
    int64_t pad;
    struct table table[MAX_TABLES];
};

/* ---- constants
 * --------------------------------------------------------------------------------------- */

static bool is_prime(int64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (int64_t d = 3; d * d <= n; d += 2) {
        if (n % d == 0)
            return false;
    }
    return true;
}

static bool is_used(const struct hx_engram_hash *h, int n_table, int cols_of_last, int64_t p)
{
    for (int t = 0; t <= n_table; t++) {
        int n = t < n_table ? h->n_cols : cols_of_last;
        for (int c = 0; c < n; c++) {
            if (h->table[t].prime[c] == p)
                return true;
        }
    }
    return false;
}

/* Bucket sizes: for every (table, size) the next unused primes from first_bucket up; the used set
 * spans all. */
static int find_primes(struct hx_engram_hash *h, int t, int64_t first, struct hx_error *err)
{
    for (int c = 0; c < h->n_cols; c++) {
        int64_t p = c % h->n_head == 0 ? first : h->table[t].prime[c - 1] + 1,
                limit = p + MAX_PRIME_SEARCH;
        while (!is_prime(p) || is_used(h, t, c, p)) {
            if (++p > limit)
                return hx_fail(err, -EINVAL, "engram: no unused prime from %lld up",
                               (long long)first);
        }
        h->table[t].prime[c] = p;
        h->table[t].offset[c] = c ? h->table[t].offset[c - 1] + h->table[t].prime[c - 1] : 0;
    }
    return 0;
}

static void draw_multipliers(struct hx_engram_hash *h, int t, int layer, int n_compressed)
{
    struct hx_pcg64 g;
    uint64_t bound = (uint64_t)(INT64_MAX / n_compressed) / 2;
    hx_pcg64_seed(&g, (uint32_t)(10007 * layer));
    for (int k = 0; k < h->n_gram; k++)
        h->table[t].multiplier[k] = (int64_t)(hx_pcg64_below(&g, bound ? bound : 1) * 2 + 1);
}

int hx_engram_hash_new(const struct hx_engram_hash_config *c, struct hx_engram_hash **out,
                       struct hx_error *err)
{
    int n_cols = (c->n_gram - 1) * c->n_head;
    if (c->n_table < 1 || c->n_table > MAX_TABLES || c->n_gram < 2 ||
        c->n_gram > HX_ENGRAM_MAX_NGRAM || c->n_head < 1 || n_cols > HX_ENGRAM_MAX_COLS ||
        c->n_compressed < 1 || c->first_bucket < 1 || c->first_bucket > ((int64_t)1 << 40) ||
        c->pad_token < 0 || c->pad_token >= c->n_vocab)
        return hx_fail(err, -EINVAL, "engram: %d tables, sizes 2 to %d, %d heads: out of range",
                       c->n_table, c->n_gram, c->n_head);
    struct hx_engram_hash *h = calloc(1, sizeof(*h));
    if (!h)
        return hx_fail(err, -ENOMEM, "out of memory");
    h->n_table = c->n_table;
    h->n_gram = c->n_gram;
    h->n_head = c->n_head;
    h->n_cols = n_cols;
    h->map = c->token_map;
    h->n_vocab = c->n_vocab;
    h->pad = c->token_map[c->pad_token];
    int r = 0;
    for (int t = 0; r == 0 && t < c->n_table; t++) {
        r = find_primes(h, t, c->first_bucket, err);
        draw_multipliers(h, t, c->layer[t], c->n_compressed);
        int64_t rows = h->table[t].offset[n_cols - 1] + h->table[t].prime[n_cols - 1];
        if (r == 0 && rows != c->declared_rows[t])
            r = hx_fail(
                err, -EINVAL,
                "engram: the buckets of layer %d have %lld rows, the configuration says %lld",
                c->layer[t], (long long)rows, (long long)c->declared_rows[t]);
    }
    if (r < 0) {
        free(h);
        return r;
    }
    *out = h;
    return 0;
}

void hx_engram_hash_free(struct hx_engram_hash *h)
{
    free(h);
}

int hx_engram_n_cols(const struct hx_engram_hash *h)
{
    return h->n_cols;
}

const int64_t *hx_engram_primes(const struct hx_engram_hash *h, int table)
{
    return h->table[table].prime;
}

const int64_t *hx_engram_multipliers(const struct hx_engram_hash *h, int table)
{
    return h->table[table].multiplier;
}

/* ---- rows
 * -------------------------------------------------------------------------------------------- */

static void hash_position(const struct hx_engram_hash *h, const struct table *t,
                          const int32_t *tokens, const uint8_t *dead, int64_t p, int64_t *rows)
{
    int64_t r = 0;
    bool blocked = false;
    for (int k = 0; k < h->n_gram; k++) {
        int64_t q = p - k;
        blocked = blocked || q < 0 || (dead && dead[q]);
        r ^= (blocked ? h->pad : h->map[tokens[q]]) * t->multiplier[k];
        for (int c = (k - 1) * h->n_head; k > 0 && c < k * h->n_head; c++)
            rows[c] = r % t->prime[c] + t->offset[c];
    }
}

int hx_engram_hash_rows(const struct hx_engram_hash *h, int table, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t n, int64_t *rows,
                        struct hx_error *err)
{
    int64_t from = first - (h->n_gram - 1) > 0 ? first - (h->n_gram - 1) : 0;
    for (int64_t p = from; p < first + n; p++) {
        if (tokens[p] < 0 || tokens[p] >= h->n_vocab)
            return hx_fail(err, -EINVAL, "token id %d at position %lld, expected 0 to %d",
                           tokens[p], (long long)p, h->n_vocab - 1);
    }
    for (int64_t i = 0; i < n; i++)
        hash_position(h, &h->table[table], tokens, dead, first + i, rows + i * h->n_cols);
    return 0;
}
