/* From token ids to table rows (spec engram.md section 2). */
#include <stdlib.h>

#include "base/rand.h"
#include "engram/engram.h"

#define MAX_TABLES       4
#define MAX_PRIME_SEARCH (1 << 20) /* candidates looked at for one bucket */

struct table {
    int64_t multiplier[HX_ENGRAM_MAX_NGRAM];
    int64_t prime[HX_ENGRAM_MAX_COLS];
    uint64_t reciprocal[HX_ENGRAM_MAX_COLS]; /* floor((2^64 - 1) / prime) */
    int64_t offset[HX_ENGRAM_MAX_COLS];
};

struct hx_engram_hash {
    int n_table, n_gram, n_head, n_cols;
    const int32_t *map;
    int32_t n_vocab;
    int64_t pad;
    struct table table[MAX_TABLES];
};

/* ---- constants ---- */

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
        h->table[t].reciprocal[c] = UINT64_MAX / (uint64_t)p;
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

static int check_config(const struct hx_engram_hash_config *c, struct hx_error *err)
{
    const struct {
        const char *what;
        int64_t found, min, max;
    } row[] = {
        {"tables", c->n_table, 1, MAX_TABLES},
        {"largest n-gram", c->n_gram, 2, HX_ENGRAM_MAX_NGRAM},
        {"heads", c->n_head, 1, HX_ENGRAM_MAX_COLS},
        {"compressed ids", c->n_compressed, 1, INT32_MAX},
        {"smallest bucket", c->first_bucket, 1, (int64_t)1 << 40},
        {"vocabulary", c->n_vocab, 1, INT32_MAX},
        {"pad token", c->pad_token, 0, (int64_t)c->n_vocab - 1},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        if (row[i].found < row[i].min || row[i].found > row[i].max)
            return hx_fail(err, -EINVAL, "engram: %s: found %lld, expected %lld to %lld",
                           row[i].what, (long long)row[i].found, (long long)row[i].min,
                           (long long)row[i].max);
    }
    if ((c->n_gram - 1) * c->n_head > HX_ENGRAM_MAX_COLS)
        return hx_fail(err, -EINVAL, "engram: %d sizes of %d heads, at most %d columns",
                       c->n_gram - 1, c->n_head, HX_ENGRAM_MAX_COLS);
    for (int t = 0; t < c->n_table; t++) {
        if (c->layer[t] < 0 || c->layer[t] > 100000)
            return hx_fail(err, -EINVAL, "engram: layer: found %d, expected 0 to 100000",
                           c->layer[t]);
    }
    /* id * multiplier stays below 2^63 only for ids in range. */
    for (int32_t i = 0; i < c->n_vocab; i++) {
        if (c->token_map[i] < 0 || c->token_map[i] >= c->n_compressed)
            return hx_fail(err, -EINVAL, "engram: token %d: found id %d, expected 0 to %d", i,
                           c->token_map[i], c->n_compressed - 1);
    }
    return 0;
}

int hx_engram_hash_new(const struct hx_engram_hash_config *c, struct hx_engram_hash **out,
                       struct hx_error *err)
{
    int r = check_config(c, err);
    if (r < 0)
        return r;
    int n_cols = (c->n_gram - 1) * c->n_head;
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
    for (int t = 0; r == 0 && t < c->n_table; t++) {
        r = find_primes(h, t, c->first_bucket, err);
        if (r < 0)
            break;
        draw_multipliers(h, t, c->layer[t], c->n_compressed);
        int64_t rows = h->table[t].offset[n_cols - 1] + h->table[t].prime[n_cols - 1];
        if (rows != c->declared_rows[t])
            r = hx_fail(err, -EINVAL,
                        "text_config.engram_num_embeddings: found %lld for layer %d, expected %lld "
                        "(the sum of its buckets)",
                        (long long)c->declared_rows[t], c->layer[t], (long long)rows);
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

int hx_engram_n_tables(const struct hx_engram_hash *h)
{
    return h->n_table;
}

int hx_engram_n_sizes(const struct hx_engram_hash *h)
{
    return h->n_gram - 1;
}

int hx_engram_n_heads(const struct hx_engram_hash *h)
{
    return h->n_head;
}

const int64_t *hx_engram_primes(const struct hx_engram_hash *h, int table)
{
    return h->table[table].prime;
}

const int64_t *hx_engram_multipliers(const struct hx_engram_hash *h, int table)
{
    return h->table[table].multiplier;
}

/* ---- rows ---- */

/* x mod p without a division: the estimated quotient is exact or one too small. */
static inline int64_t mod_prime(uint64_t x, uint64_t p, uint64_t reciprocal)
{
    uint64_t q = (uint64_t)((unsigned __int128)x * reciprocal >> 64), r = x - q * p;
    return (int64_t)(r >= p ? r - p : r);
}

/* The rolling values of one position, sizes 2 and up -> key [n_gram - 1]. */
static void position_keys(const struct hx_engram_hash *h, const struct table *t,
                          const int32_t *tokens, const uint8_t *dead, int64_t p, uint64_t *key)
{
    uint64_t x = 0;
    bool blocked = false;
    for (int k = 0; k < h->n_gram; k++) {
        int64_t q = p - k;
        blocked = blocked || q < 0 || (dead && dead[q]);
        x ^= (uint64_t)((blocked ? h->pad : h->map[tokens[q]]) * t->multiplier[k]);
        if (k > 0)
            key[k - 1] = x;
    }
}

void hx_engram_key_rows(const struct hx_engram_hash *h, int table, int size, uint64_t key,
                        int64_t *rows)
{
    const struct table *t = &h->table[table];
    for (int c = size * h->n_head, i = 0; i < h->n_head; i++, c++)
        rows[i] = mod_prime(key, (uint64_t)t->prime[c], t->reciprocal[c]) + t->offset[c];
}

static int check_tokens(const struct hx_engram_hash *h, const int32_t *tokens, int64_t first,
                        int64_t n, struct hx_error *err)
{
    if (first < 0 || n < 0)
        return hx_fail(err, -EINVAL, "engram: %lld positions from %lld", (long long)n,
                       (long long)first);
    int64_t from = first - (h->n_gram - 1) > 0 ? first - (h->n_gram - 1) : 0;
    for (int64_t p = from; p < first + n; p++) {
        if (tokens[p] < 0 || tokens[p] >= h->n_vocab)
            return hx_fail(err, -EINVAL, "token id %d at position %lld, expected 0 to %d",
                           tokens[p], (long long)p, h->n_vocab - 1);
    }
    return 0;
}

int hx_engram_hash_keys(const struct hx_engram_hash *h, int table, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t n, uint64_t *keys,
                        struct hx_error *err)
{
    int r = check_tokens(h, tokens, first, n, err);
    for (int64_t i = 0; r == 0 && i < n; i++)
        position_keys(h, &h->table[table], tokens, dead, first + i, keys + i * (h->n_gram - 1));
    return r;
}

int hx_engram_hash_rows(const struct hx_engram_hash *h, int table, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t n, int64_t *rows,
                        struct hx_error *err)
{
    int r = check_tokens(h, tokens, first, n, err);
    for (int64_t i = 0; r == 0 && i < n; i++) {
        uint64_t key[HX_ENGRAM_MAX_NGRAM];
        position_keys(h, &h->table[table], tokens, dead, first + i, key);
        for (int k = 0; k < h->n_gram - 1; k++, rows += h->n_head)
            hx_engram_key_rows(h, table, k, key[k], rows);
    }
    return r;
}
