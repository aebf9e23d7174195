/* Tables on disk and the same in memory: a small configuration (golden small.json) with rows of the
 * released width, misaligned as the released shards are. */
#ifndef HX_TEST_ENGRAM_SHARD_H
#define HX_TEST_ENGRAM_SHARD_H

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/rand.h"
#include "engram/stream.h"
#include "vectors.h"

#define CODES    256
#define SCALES   8
#define N_TABLES 2

struct shard {
    char path[512];
    uint8_t *codes, *scales;
    struct hx_engram_table table;
};

struct tables {
    struct hx_json *doc;
    struct hx_engram_hash_config c;
    int32_t *map;
    struct hx_engram_hash *hash;
    struct shard shard[N_TABLES];
};

static inline void put(int fd, const void *data, size_t n, uint64_t offset)
{
    assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
}

/* A file in folder; rows of any plausible bytes from a seed. */
static inline void shard_make(struct shard *s, const char *folder, int64_t n_rows, uint64_t data_at,
                              uint64_t seed)
{
    struct hx_rng g;
    hx_rng_seed(&g, seed);
    snprintf(s->path, sizeof(s->path), "%s/shard-%llu-XXXXXX", folder, (unsigned long long)seed);
    int fd = mkstemp(s->path);
    if (fd < 0)
        fail_msg("%s: %s", s->path, strerror(errno));
    size_t nc = (size_t)n_rows * CODES, ns = (size_t)n_rows * SCALES;
    s->codes = malloc(nc);
    s->scales = malloc(ns);
    assert_true(s->codes && s->scales);
    for (size_t i = 0; i < nc; i++) {
        s->codes[i] = (uint8_t)hx_rng_next(&g);
        s->codes[i] ^= (s->codes[i] & 0x7F) == 0x7F; /* no NaN */
    }
    for (size_t i = 0; i < ns; i++)
        s->scales[i] = (uint8_t)(1 + hx_rng_next(&g) % 254);
    s->table = (struct hx_engram_table){.path = s->path,
                                        .data_offset = data_at,
                                        .scale_offset = data_at + nc,
                                        .n_rows = n_rows,
                                        .row_bytes = CODES,
                                        .scale_bytes = SCALES};
    uint8_t *head = malloc(data_at);
    assert_non_null(head);
    memset(head, 'h', data_at);
    put(fd, head, data_at, 0);
    put(fd, s->codes, nc, s->table.data_offset);
    put(fd, s->scales, ns, s->table.scale_offset);
    free(head);
    close(fd);
}

static inline void shard_done(struct shard *s)
{
    unlink(s->path);
    free(s->codes);
    free(s->scales);
}

static inline void tables_make(struct tables *x, const char *folder)
{
    static const uint64_t data_at[N_TABLES] = {664, 672}; /* of the released shards */
    struct hx_error err;
    x->doc = load_vectors("small.json");
    struct hx_jv root = hx_json_root(x->doc), c = at(root, "config");
    x->c = (struct hx_engram_hash_config){
        .n_gram = (int)as_int(at(c, "engram_max_ngram_size")),
        .n_head = (int)as_int(at(c, "engram_n_heads")),
        .first_bucket = as_int(at(c, "engram_vocab_size")),
        .n_compressed = (int)as_int(at(c, "engram_compressed_vocab_size")),
        .pad_token = (int)as_int(at(c, "engram_pad_id")),
    };
    int n;
    int64_t *ids = as_ints(at(root, "token_map"), &n);
    x->map = calloc((size_t)n, sizeof(*x->map));
    assert_non_null(x->map);
    for (int i = 0; i < n; i++)
        x->map[i] = (int32_t)ids[i];
    free(ids);
    x->c.token_map = x->map;
    x->c.n_vocab = n;
    for (struct hx_jv l = hx_jv_first(at(root, "layers")); l.doc; l = hx_jv_next(l)) {
        int t = x->c.n_table++;
        x->c.layer[t] = (int)as_int(at(l, "layer"));
        x->c.declared_rows[t] = as_int(at(l, "rows"));
        shard_make(&x->shard[t], folder, x->c.declared_rows[t], data_at[t], (uint64_t)t + 7);
    }
    assert_int_equal(x->c.n_table, N_TABLES);
    if (hx_engram_hash_new(&x->c, &x->hash, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void tables_done(struct tables *x)
{
    hx_engram_hash_free(x->hash);
    for (int t = 0; t < N_TABLES; t++)
        shard_done(&x->shard[t]);
    free(x->map);
    hx_json_free(x->doc);
}

/* Options for these tables; further fields as a test likes. */
static inline struct hx_engram_stream_options options_for(const struct tables *x)
{
    /* A busy build host may take seconds for a read. */
    struct hx_engram_stream_options o = {
        .hash = x->hash, .n_tables = N_TABLES, .slow_ms = 60000, .lost_ms = 120000};
    for (int t = 0; t < N_TABLES; t++) {
        o.table[t][0] = x->shard[t].table;
        o.n_copies[t] = 1;
    }
    return o;
}

static inline struct hx_engram_stream *open_stream(const struct hx_engram_stream_options *o)
{
    struct hx_engram_stream *s = NULL;
    struct hx_error err;
    if (hx_engram_stream_open(o, &s, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

/* The rows of a plan that is ready, against those in memory: every token, every column. */
static inline void check_plan(const struct tables *x, struct hx_engram_plan *p,
                              const int32_t *tokens, const uint8_t *dead, int64_t first, int n)
{
    size_t cols = (size_t)hx_engram_n_cols(x->hash);
    int64_t *rows = malloc((size_t)n * cols * sizeof(*rows));
    uint8_t *codes = malloc((size_t)n * cols * CODES), *scales = malloc((size_t)n * cols * SCALES);
    struct hx_error err;
    assert_true(rows && codes && scales);
    for (int t = 0; t < N_TABLES; t++) {
        const struct shard *s = &x->shard[t];
        assert_int_equal(hx_engram_hash_rows(x->hash, t, tokens, dead, first, n, rows, &err), 0);
        if (hx_engram_wait(p, t, 20000000, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(atomic_load(hx_engram_plan_flag(p, t)), 1);
        hx_engram_plan_gather(p, t, 0, n, codes, scales);
        for (size_t i = 0; i < (size_t)n * cols; i++) {
            assert_memory_equal(codes + i * CODES, s->codes + rows[i] * CODES, CODES);
            assert_memory_equal(scales + i * SCALES, s->scales + rows[i] * SCALES, SCALES);
        }
    }
    free(rows);
    free(codes);
    free(scales);
}

#endif
