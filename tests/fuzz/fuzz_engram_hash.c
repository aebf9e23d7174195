/* Engram hash: any configuration is refused or gives row ids inside its tables. */
#include "fuzz.h"

#include "engram/engram.h"

#define N_VOCAB 64

struct reader {
    const uint8_t *data;
    size_t size;
};

static uint32_t take(struct reader *r, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n && r->size > 0; i++, r->data++, r->size--)
        v = v << 8 | *r->data;
    return v;
}

static int64_t sum(const int64_t *x, int n)
{
    int64_t s = 0;
    for (int i = 0; i < n; i++)
        s += x[i];
    return s;
}

/* The declared row counts are what the search finds, so that the check does not end every run. */
static struct hx_engram_hash *make(struct hx_engram_hash_config *c)
{
    struct hx_engram_hash *h = NULL;
    struct hx_error err = {0};
    for (int t = 0; t < 4; t++)
        c->declared_rows[t] = 0;
    for (int t = 0; t <= 4; t++) {
        int r = hx_engram_hash_new(c, &h, &err);
        if (r == 0)
            return h;
        expect_refusal(r, &err);
        long long rows;
        if (sscanf(err.text,
                   "text_config.engram_num_embeddings: found %*d for layer %*d, expected %lld",
                   &rows) != 1)
            return NULL;
        EXPECT(t < c->n_table && c->n_table <= 4);
        c->declared_rows[t] = rows;
    }
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader in = {data, size};
    int32_t map[N_VOCAB];
    struct hx_engram_hash_config c = {.token_map = map, .n_vocab = N_VOCAB};
    c.n_table = (int)take(&in, 1) % 7 - 1;
    c.n_gram = (int)take(&in, 1) % 12 - 1;
    c.n_head = (int)take(&in, 1) % 70 - 1;
    c.n_compressed = (int)take(&in, 1) % 70;
    c.pad_token = (int)take(&in, 1) % 70 - 2;
    c.first_bucket = (int64_t)take(&in, 3) - 1;
    for (int t = 0; t < 4; t++)
        c.layer[t] = (int)take(&in, 1) - 1;
    for (int i = 0; i < N_VOCAB; i++)
        map[i] = c.n_compressed > 0 ? (int32_t)(take(&in, 1) % (unsigned)c.n_compressed) : 0;
    struct hx_engram_hash *h = make(&c);
    if (!h)
        return 0;
    int n = 0, cols = hx_engram_n_cols(h);
    int32_t token[64];
    uint8_t dead[64];
    int64_t rows[64 * HX_ENGRAM_MAX_COLS];
    while (in.size > 0 && n < 64) {
        uint32_t v = take(&in, 1);
        token[n] = (int32_t)(v & 0x7F) - (v == 0x7F ? 200 : 0);
        dead[n++] = v >> 7;
    }
    for (int t = 0; t < c.n_table; t++) {
        struct hx_error err = {0};
        int r = hx_engram_hash_rows(h, t, token, dead, 0, n, rows, &err);
        if (r < 0) {
            expect_refusal(r, &err);
            break;
        }
        const int64_t *prime = hx_engram_primes(h, t);
        EXPECT(sum(prime, cols) == c.declared_rows[t]);
        for (int i = 0; i < n * cols; i++) {
            int64_t offset = sum(prime, i % cols);
            EXPECT(rows[i] >= offset && rows[i] < offset + prime[i % cols]);
        }
    }
    hx_engram_hash_free(h);
    return 0;
}
