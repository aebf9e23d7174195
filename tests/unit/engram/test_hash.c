/* Row hash: constants and rows of the released and of the small configuration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <time.h>

#include "base/rand.h"
#include "engram/engram.h"
#include "vectors.h"

#define RELEASED_IDS 99092

/* A configuration of a JSON file; identity token map unless the file has one. */
struct config {
    struct hx_json *doc;
    struct hx_engram_hash_config c;
    int32_t *map;
};

static void config_load(struct config *f, const char *name, const char *rows_key)
{
    f->doc = load_vectors(name);
    struct hx_jv root = hx_json_root(f->doc), c = at(root, "config");
    f->c = (struct hx_engram_hash_config){
        .n_gram = (int)as_int(at(c, "engram_max_ngram_size")),
        .n_head = (int)as_int(at(c, "engram_n_heads")),
        .first_bucket = as_int(at(c, "engram_vocab_size")),
        .n_compressed = (int)as_int(at(c, "engram_compressed_vocab_size")),
        .pad_token = (int)as_int(at(c, "engram_pad_id")),
    };
    for (struct hx_jv l = hx_jv_first(at(root, "layers")); l.doc; l = hx_jv_next(l)) {
        f->c.layer[f->c.n_table] = (int)as_int(at(l, "layer"));
        f->c.declared_rows[f->c.n_table++] = as_int(at(l, rows_key));
    }
    struct hx_jv map = hx_jv_get(root, "token_map");
    int n = f->c.n_compressed;
    int64_t *ids = map.doc ? as_ints(map, &n) : NULL;
    f->map = calloc((size_t)n, sizeof(*f->map));
    assert_non_null(f->map);
    for (int i = 0; i < n; i++)
        f->map[i] = ids ? (int32_t)ids[i] : i;
    free(ids);
    f->c.token_map = f->map;
    f->c.n_vocab = n;
}

static void config_done(struct config *f)
{
    hx_json_free(f->doc);
    free(f->map);
}

static struct hx_engram_hash *new_hash(const struct config *f)
{
    struct hx_engram_hash *h = NULL;
    struct hx_error err;
    if (hx_engram_hash_new(&f->c, &h, &err) < 0)
        fail_msg("%s", err.text);
    return h;
}

/* ---- generator ---- */

static void hex128(unsigned __int128 v, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)(v >> 64), (unsigned long long)v);
}

static void test_generator(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("rng.json");
    int n_cases = 0;
    for (struct hx_jv c = hx_jv_first(at(hx_json_root(doc), "cases")); c.doc; c = hx_jv_next(c)) {
        uint32_t seed = (uint32_t)as_int(at(c, "seed")), words[8];
        char hex[33];
        int n;
        int64_t *want = as_ints(at(c, "seed_sequence_words_u32"), &n);
        assert_int_equal(seed, 10007 * as_int(at(c, "layer")));
        assert_int_equal(n, 8);
        hx_seed_sequence(seed, words, 8);
        for (int i = 0; i < 8; i++)
            assert_int_equal(words[i], want[i]);
        free(want);
        struct hx_pcg64 g;
        hx_pcg64_seed(&g, seed);
        hex128(g.state, hex);
        assert_true(hx_jv_str_is(at(c, "pcg_state_hex"), hex));
        hex128(g.inc, hex);
        assert_true(hx_jv_str_is(at(c, "pcg_inc_hex"), hex));
        for (struct hx_jv v = hx_jv_first(at(c, "raw_u64")); v.doc; v = hx_jv_next(v))
            assert_true(hx_pcg64_next(&g) == as_u64(v));
        n_cases++;
    }
    assert_int_equal(n_cases, 3);
    hx_json_free(doc);
}

/* ---- constants ---- */

static void check_constants(const char *file)
{
    struct config f;
    config_load(&f, file, "rows");
    struct hx_engram_hash *h = new_hash(&f);
    int t = 0;
    for (struct hx_jv l = hx_jv_first(at(hx_json_root(f.doc), "layers")); l.doc;
         l = hx_jv_next(l), t++) {
        int n;
        int64_t *want = as_ints(at(l, "primes"), &n);
        assert_int_equal(n, hx_engram_n_cols(h));
        assert_memory_equal(hx_engram_primes(h, t), want, (size_t)n * 8);
        free(want);
        want = as_ints(at(l, "multipliers"), &n);
        assert_int_equal(n, f.c.n_gram);
        assert_memory_equal(hx_engram_multipliers(h, t), want, (size_t)n * 8);
        free(want);
        want = as_ints(at(l, "offsets"), &n);
        assert_int_equal(n, hx_engram_n_cols(h));
        int64_t sum = 0;
        for (int c = 0; c < n; c++) {
            assert_int_equal(want[c], sum);
            sum += hx_engram_primes(h, t)[c];
        }
        assert_int_equal(sum, f.c.declared_rows[t]);
        free(want);
    }
    assert_int_equal(t, 2);
    hx_engram_hash_free(h);
    config_done(&f);
}

static void test_released_constants(void **state)
{
    (void)state;
    check_constants("real_constants.json");
}

static void test_small_constants(void **state)
{
    (void)state;
    check_constants("small.json");
}

/* ---- rows ---- */

struct sequence {
    int32_t *token;
    uint8_t *dead;
    int n;
};

static struct sequence load_sequence(struct hx_jv c, const char *ids_key)
{
    struct sequence s;
    int n_dead = 0;
    int64_t *ids = as_ints(at(c, ids_key), &s.n), *dead = as_ints(at(c, "dead"), &n_dead);
    assert_int_equal(n_dead, s.n);
    s.token = calloc((size_t)s.n + 1, sizeof(*s.token));
    s.dead = calloc((size_t)s.n + 1, 1);
    assert_true(s.token && s.dead);
    for (int i = 0; i < s.n; i++) {
        s.token[i] = (int32_t)ids[i];
        s.dead[i] = (uint8_t)dead[i];
    }
    free(ids);
    free(dead);
    return s;
}

/* Every case, hashed whole, then cut into chunks of every size up to 5 (look-back over the cut). */
static int check_rows(const struct config *f, struct hx_jv cases, const char *ids_key)
{
    struct hx_engram_hash *h = new_hash(f);
    struct hx_error err;
    int cols = hx_engram_n_cols(h), n_rows = 0;
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c)) {
        struct sequence s = load_sequence(c, ids_key);
        int64_t *got = calloc((size_t)(s.n * cols) + 1, sizeof(*got));
        assert_non_null(got);
        for (int t = 0; t < f->c.n_table; t++) {
            char key[16];
            snprintf(key, sizeof(key), "%d", f->c.layer[t]);
            struct hx_jv want = at(at(c, "rows"), key);
            assert_int_equal(hx_jv_count(want), s.n);
            for (int chunk = 0; chunk <= 5; chunk++) {
                memset(got, 0xFF, (size_t)(s.n * cols) * sizeof(*got));
                int step = chunk ? chunk : s.n;
                for (int p = 0; p < s.n; p += step) {
                    int n = s.n - p < step ? s.n - p : step;
                    assert_int_equal(hx_engram_hash_rows(h, t, s.token, s.dead, p, n,
                                                         got + (size_t)p * (size_t)cols, &err),
                                     0);
                }
                int p = 0;
                for (struct hx_jv r = hx_jv_first(want); r.doc; r = hx_jv_next(r), p++) {
                    int n;
                    int64_t *row = as_ints(r, &n);
                    assert_int_equal(n, cols);
                    assert_memory_equal(got + (size_t)p * (size_t)cols, row, (size_t)n * 8);
                    free(row);
                    n_rows += n;
                }
            }
        }
        free(got);
        free(s.token);
        free(s.dead);
    }
    hx_engram_hash_free(h);
    return n_rows / 6;
}

static void test_released_rows(void **state)
{
    (void)state;
    struct config f;
    config_load(&f, "real_constants.json", "rows");
    struct hx_json *doc = load_vectors("real_rows.json");
    struct hx_jv cases = at(hx_json_root(doc), "cases");
    assert_int_equal(hx_jv_count(cases), 14);
    assert_true(check_rows(&f, cases, "compressed_ids") > 14 * 48);
    hx_json_free(doc);
    config_done(&f);
}

static void test_small_rows(void **state)
{
    (void)state;
    struct config f;
    config_load(&f, "small.json", "rows");
    struct hx_jv cases = at(hx_json_root(f.doc), "cases");
    assert_int_equal(hx_jv_count(cases), 11);
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c)) {
        int n, m;
        int64_t *raw = as_ints(at(c, "token_ids"), &n),
                *want = as_ints(at(c, "compressed_ids"), &m);
        assert_int_equal(n, m);
        for (int i = 0; i < n; i++)
            assert_int_equal(f.map[raw[i]], want[i]);
        free(raw);
        free(want);
    }
    assert_true(check_rows(&f, cases, "token_ids") > 11 * 24);
    config_done(&f);
}

/* The reciprocal form against plain remainders, with the largest ids. */
static void test_remainders(void **state)
{
    (void)state;
    struct config f;
    config_load(&f, "real_constants.json", "rows");
    struct hx_engram_hash *h = new_hash(&f);
    struct hx_rng g;
    struct hx_error err;
    hx_rng_seed(&g, 1);
    enum { N = 2000, COLS = 24 };
    static int32_t token[N];
    static int64_t row[N * COLS];
    for (int i = 0; i < N; i++)
        token[i] = i % 3 ? (int32_t)(hx_rng_next(&g) % RELEASED_IDS) : RELEASED_IDS - 1 - i % 2;
    for (int t = 0; t < 2; t++) {
        assert_int_equal(hx_engram_hash_rows(h, t, token, NULL, 0, N, row, &err), 0);
        const int64_t *m = hx_engram_multipliers(h, t), *prime = hx_engram_primes(h, t);
        for (int p = 0; p < N; p++) {
            int64_t x = token[p] * m[0], offset = 0;
            for (int k = 1, c = 0; k < 4; k++) {
                x ^= (p >= k ? token[p - k] : 2) * m[k];
                for (int head = 0; head < 8; head++, c++) {
                    assert_int_equal(row[p * COLS + c], x % prime[c] + offset);
                    offset += prime[c];
                }
            }
        }
    }
    hx_engram_hash_free(h);
    config_done(&f);
}

static void test_bad_tokens(void **state)
{
    (void)state;
    struct config f;
    config_load(&f, "small.json", "rows");
    struct hx_engram_hash *h = new_hash(&f);
    struct hx_error err;
    int64_t rows[5 * 12];
    static const int32_t bad[] = {-1, 512, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        int32_t token[5] = {1, bad[i], 3, 4, 5};
        assert_int_equal(hx_engram_hash_rows(h, 0, token, NULL, 0, 5, rows, &err), -EINVAL);
        assert_non_null(strstr(err.text, "at position 1, expected 0 to 511"));
        /* Also as look-back of a later chunk; out of its reach it does not matter. */
        assert_int_equal(hx_engram_hash_rows(h, 0, token, NULL, 4, 1, rows, &err), -EINVAL);
        assert_int_equal(hx_engram_hash_rows(h, 0, token + 1, NULL, 4, 0, rows, &err), 0);
    }
    int32_t ok[2] = {0, 511};
    assert_int_equal(hx_engram_hash_rows(h, 0, ok, NULL, 0, 2, rows, &err), 0);
    assert_int_equal(hx_engram_hash_rows(h, 0, ok, NULL, -1, 2, rows, &err), -EINVAL);
    assert_int_equal(hx_engram_hash_rows(h, 0, ok, NULL, 0, -1, rows, &err), -EINVAL);
    hx_engram_hash_free(h);
    config_done(&f);
}

static void test_bad_configs(void **state)
{
    (void)state;
    struct config f;
    config_load(&f, "small.json", "rows");
    static const struct {
        size_t at;
        int value;
        const char *says;
    } row[] = {
#define F(field) offsetof(struct hx_engram_hash_config, field)
        {F(n_table), 0, "tables"},
        {F(n_table), 5, "tables"},
        {F(n_gram), 1, "n-gram"},
        {F(n_gram), 9, "n-gram"},
        {F(n_head), 0, "heads"},
        {F(n_head), 64, "columns"},
        {F(n_head), 3, "for layer 1, expected "},
        {F(n_compressed), 0, "compressed ids"},
        {F(n_compressed), 195, "expected 0 to 194"},
        {F(pad_token), -1, "pad token"},
        {F(pad_token), 512, "pad token"},
        {F(layer[1]), -1, "layer: found -1"},
        {F(first_bucket), 0, "smallest bucket"}, /* its low half; the high half is 0 */
        {F(first_bucket), 1001, NULL},           /* the same primes: 1009 comes first */
        {F(first_bucket), 1010, "found 12458"},
        {F(declared_rows[0]), 12459, "found 12459 for layer 1, expected 12458"},
#undef F
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct hx_engram_hash_config c = f.c;
        struct hx_engram_hash *h = NULL;
        struct hx_error err;
        memcpy((char *)&c + row[i].at, &row[i].value, sizeof(int));
        int r = hx_engram_hash_new(&c, &h, &err);
        if (row[i].says) {
            assert_int_equal(r, -EINVAL);
            assert_null(h);
            if (!strstr(err.text, row[i].says))
                fail_msg("row %zu: '%s' does not say '%s'", i, err.text, row[i].says);
        } else {
            assert_int_equal(r, 0);
            hx_engram_hash_free(h);
        }
    }
    f.map[100] = -1;
    struct hx_engram_hash *h = NULL;
    struct hx_error err;
    assert_int_equal(hx_engram_hash_new(&f.c, &h, &err), -EINVAL);
    assert_non_null(strstr(err.text, "token 100: found id -1"));
    config_done(&f);
    hx_engram_hash_free(NULL);
}

/* A 2,048-token chunk, both tables, in 1 ms (spec section 2.4); the best of 20 runs. */
static void test_speed(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    struct config f;
    config_load(&f, "real_constants.json", "rows");
    struct hx_engram_hash *h = new_hash(&f);
    struct hx_error err;
    static int32_t token[2048 + 3];
    static int64_t row[2048 * 24];
    for (int i = 0; i < 2051; i++)
        token[i] = i * 37 % RELEASED_IDS;
    double best = 1;
    for (int run = 0; run < 20; run++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int t = 0; t < 2; t++)
            assert_int_equal(hx_engram_hash_rows(h, t, token, NULL, 3, 2048, row, &err), 0);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        best = s < best ? s : best;
    }
    print_message("2048 tokens, 2 tables: %.3f ms\n", best * 1e3);
    assert_true(best <= 1e-3);
    hx_engram_hash_free(h);
    config_done(&f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator),       cmocka_unit_test(test_released_constants),
        cmocka_unit_test(test_small_constants), cmocka_unit_test(test_released_rows),
        cmocka_unit_test(test_small_rows),      cmocka_unit_test(test_remainders),
        cmocka_unit_test(test_bad_tokens),      cmocka_unit_test(test_bad_configs),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
