/* The tokenizer against recorded ids of the library that the model's makers use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <time.h>

#include <hx/build_facts.h>
#include <hx/tokenizer.h>

#include "base/buf.h"
#include "base/sha256.h"
#include "jsonl.h"
#include "text/tokenizer_impl.h"

#define VECTORS "tests/vectors/tokenizer/"

static struct hx_tokenizer *tok;

static int open_real(void **state)
{
    struct hx_error err;
    (void)state;
    if (hx_tokenizer_open(HX_BUILD_DATA "/tokenizer.json", &tok, &err) < 0)
        fail_msg("%s", err.text);
    return 0;
}

static int close_real(void **state)
{
    (void)state;
    hx_tokenizer_close(tok);
    return 0;
}

static void encode(const char *s, size_t len, bool special, struct hx_ids *ids)
{
    const struct hx_encode_options opt = {.parse_special = special};
    struct hx_error err;
    ids->len = 0;
    if (hx_tokenizer_encode(tok, s, len, &opt, ids, &err) < 0)
        fail_msg("%s", err.text);
}

static void expect_ids(const char *id, struct hx_jv want, const struct hx_ids *got)
{
    size_t i = 0;
    for (struct hx_jv v = hx_jv_first(want); v.doc; v = hx_jv_next(v), i++) {
        int64_t w;
        assert_true(hx_jv_int64(v, &w));
        if (i >= got->len || got->id[i] != w)
            fail_msg("%s: id %zu: found %d, expected %lld", id, i, i < got->len ? got->id[i] : -1,
                     (long long)w);
    }
    if (i != got->len)
        fail_msg("%s: %zu ids, expected %zu", id, got->len, i);
}

static void text_case(void *user, struct hx_jv v)
{
    struct hx_ids *ids = user;
    size_t len, n;
    const char *id = hx_jv_str(hx_jv_get(v, "id"), &n),
               *text = hx_jv_str(hx_jv_get(v, "text"), &len);
    char name[80];
    snprintf(name, sizeof(name), "%.*s", (int)n, id);
    encode(text, len, true, ids);
    expect_ids(name, hx_jv_get(v, "ids"), ids);
    struct hx_jv plain = hx_jv_get(v, "ids_plain");
    encode(text, len, false, ids);
    expect_ids(name, plain.doc ? plain : hx_jv_get(v, "ids"), ids);
}

static void test_texts(void **state)
{
    struct hx_ids ids = {0};
    (void)state;
    assert_int_equal(each_line(VECTORS "encode.jsonl", text_case, &ids), 404);
    hx_ids_done(&ids);
}

static void run_case(void *user, struct hx_jv v)
{
    struct hx_ids *ids = user;
    size_t unit_len, hex_len;
    int64_t count, n;
    const char *unit = hx_jv_str(hx_jv_get(v, "unit"), &unit_len),
               *sha = hx_jv_str(hx_jv_get(v, "sha256"), &hex_len);
    uint8_t digest[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    assert_true(hx_jv_int64(hx_jv_get(v, "count"), &count));
    assert_true(hx_jv_int64(hx_jv_get(v, "n"), &n));
    char *text = malloc(unit_len * (size_t)count + 1);
    for (int64_t i = 0; i < count; i++)
        memcpy(text + (size_t)i * unit_len, unit, unit_len);
    encode(text, unit_len * (size_t)count, true, ids);
    free(text);
    assert_int_equal(ids->len, n);
    assert_int_equal(hx_sha256_data(ids->id, ids->len * 4, digest), 0);
    hx_sha256_to_hex(digest, hex);
    assert_memory_equal(hex, sha, 64);
}

static void test_runs(void **state)
{
    struct hx_ids ids = {0};
    (void)state;
    assert_int_equal(each_line(VECTORS "runs.jsonl", run_case, &ids), 55);
    hx_ids_done(&ids);
}

static void decode_case(void *user, struct hx_jv v)
{
    struct hx_detok d = {0};
    struct hx_buf all = HX_BUF_INIT(1 << 20), piece = HX_BUF_INIT(1 << 20);
    struct hx_jv delta = hx_jv_first(hx_jv_get(v, "deltas"));
    size_t len, n;
    (void)user;
    for (struct hx_jv e = hx_jv_first(hx_jv_get(v, "ids"));;
         e = hx_jv_next(e), delta = hx_jv_next(delta)) {
        int64_t id;
        hx_buf_clear(&piece);
        if (e.doc) {
            assert_true(hx_jv_int64(e, &id));
            const uint8_t *b = hx_tokenizer_bytes(tok, (int32_t)id, &len);
            assert_non_null(b);
            assert_int_equal(hx_detok_push(&d, b, len, &piece), 0);
        } else {
            assert_int_equal(hx_detok_flush(&d, &piece), 0);
        }
        const char *want = hx_jv_str(delta, &n);
        assert_non_null(want);
        assert_int_equal(piece.len, n);
        if (n > 0)
            assert_memory_equal(piece.data, want, n);
        hx_buf_append(&all, piece.data, piece.len);
        if (!e.doc)
            break;
    }
    const char *text = hx_jv_str(hx_jv_get(v, "text"), &n);
    assert_int_equal(all.len, n);
    if (n > 0)
        assert_memory_equal(all.data, text, n);
    hx_buf_done(&all);
    hx_buf_done(&piece);
}

static void test_decode(void **state)
{
    (void)state;
    assert_int_equal(each_line(VECTORS "decode.jsonl", decode_case, NULL), 70);
}

static void invalid_case(void *user, struct hx_jv v)
{
    struct hx_ids *ids = user;
    uint8_t bytes[4096];
    size_t n = hex_bytes(hx_jv_get(v, "bytes_hex"), bytes, sizeof(bytes));
    encode((const char *)bytes, n, true, ids);
    expect_ids("invalid", hx_jv_get(v, "ids"), ids);
}

static void test_invalid_utf8(void **state)
{
    struct hx_ids ids = {0};
    (void)state;
    assert_true(each_line(VECTORS "invalid_utf8.jsonl", invalid_case, &ids) > 5);
    hx_ids_done(&ids);
}

static struct hx_json *load(const char *path)
{
    char *text = NULL;
    size_t len;
    struct hx_error err;
    struct hx_json *doc = NULL;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    if (hx_file_read(path, 1 << 20, &text, &len, &err) < 0 ||
        hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("%s", err.text);
    free(text);
    return doc;
}

/* Every ordinary token's bytes, by their published digest; and every token is found by merging its
 * bytes. */
static void test_vocabulary(void **state)
{
    struct hx_json *doc = load(VECTORS "vocab_check.json");
    struct hx_sha256 *h;
    struct hx_error err;
    struct hx_ids ids = {0};
    uint8_t digest[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    size_t n;
    (void)state;
    assert_int_equal(hx_sha256_new(&h, &err), 0);
    for (int32_t id = 3; id < 128000; id++) {
        size_t len;
        const uint8_t *b = hx_tokenizer_bytes(tok, id, &len);
        assert_non_null(b);
        uint8_t head[4] = {(uint8_t)len, (uint8_t)(len >> 8), 0, 0};
        hx_sha256_update(h, head, 4);
        hx_sha256_update(h, b, len);
        ids.len = 0;
        assert_int_equal(hx_bpe_merge(&tok->bpe, b, len, NULL, &ids), 0);
        assert_int_equal(ids.len, 1);
        assert_int_equal(ids.id[0], id);
    }
    hx_sha256_final(h, digest);
    hx_sha256_free(h);
    hx_sha256_to_hex(digest, hex);
    assert_memory_equal(hex, hx_jv_str(hx_jv_get(hx_json_root(doc), "sha256_ids_3_to_127999"), &n),
                        64);
    assert_int_equal(hx_tokenizer_n_vocab(tok), 129280);
    hx_ids_done(&ids);
    hx_json_free(doc);
}

static void test_special_tokens(void **state)
{
    struct hx_json *doc = load(VECTORS "special_tokens.json");
    int n = 0;
    (void)state;
    for (struct hx_jv v = hx_jv_first(hx_jv_get(hx_json_root(doc), "tokens")); v.doc;
         v = hx_jv_next(v)) {
        size_t len;
        int64_t id;
        char spelling[256];
        const char *s = hx_jv_str(hx_jv_key(v), &len);
        if (!hx_jv_int64(v, &id)) { /* spelling as the value, id as the key */
            snprintf(spelling, sizeof(spelling), "%.*s", (int)len, s);
            id = strtol(spelling, NULL, 10);
            s = hx_jv_str(v, &len);
            if (!s)
                continue;
        }
        snprintf(spelling, sizeof(spelling), "%.*s", (int)len, s);
        assert_int_equal(hx_tokenizer_special(tok, spelling), id);
        assert_true(hx_tokenizer_is_added(tok, (int32_t)id));
        n++;
    }
    assert_int_equal(n, 62);
    assert_int_equal(hx_tokenizer_special(tok, "<nothing>"), -1);
    hx_json_free(doc);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One endless piece: eight times the text takes about eight times as long, never sixty-four. */
static void test_linear(void **state)
{
    static const char *const units[] = {"a", " ", "\n", "!", "\xE4\xB8\x80", "ab", "\x01"};
    struct hx_ids ids = {0};
    (void)state;
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        size_t n = strlen(units[u]), count[2] = {125000, 1000000};
        double took[2];
        for (int k = 0; k < 2; k++) {
            char *text = malloc(n * count[k]);
            for (size_t i = 0; i < count[k]; i++)
                memcpy(text + i * n, units[u], n);
            double start = seconds();
            encode(text, n * count[k], true, &ids);
            took[k] = seconds() - start;
            free(text);
        }
        if (took[1] > 24 * took[0] + 0.5)
            fail_msg("unit %zu: %.3f s for 125,000, %.3f s for 1,000,000", u, took[0], took[1]);
    }
    hx_ids_done(&ids);
}

static bool never(void *user)
{
    (void)user;
    return true;
}

static void test_cancel(void **state)
{
    struct hx_ids ids = {0};
    struct hx_error err;
    size_t len = 4 << 20;
    char *text = malloc(len);
    (void)state;
    for (size_t i = 0; i < len; i++)
        text[i] = i % 7 == 0 ? ' ' : 'x';
    const struct hx_encode_options opt = {.cancelled = never};
    assert_int_equal(hx_tokenizer_encode(tok, text, len, &opt, &ids, &err), -ECANCELED);
    assert_int_equal(ids.len, 0);
    free(text);
    hx_ids_done(&ids);
}

/* ---- importer
 * ---------------------------------------------------------------------------------------- */

/* The smallest tokenizer: 256 bytes, one merge, one added token. %s: model fields, pre-tokenizer
 * list, rest. */
static char *small(const char *find, const char *replace)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    hx_buf_puts(&b,
                "{\"normalizer\":null,\"truncation\":null,\"padding\":null,\"post_processor\":null,"
                "\"added_tokens\":[{\"id\":257,\"content\":\"<s>\",\"lstrip\":false}],"
                "\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":");
    char *json = NULL;
    size_t len;
    struct hx_error err;
    assert_int_equal(hx_file_read(HX_BUILD_DATA "/tokenizer.json", 64 << 20, &json, &len, &err), 0);
    const char *from = strstr(json, "\"pre_tokenizer\":") + strlen("\"pre_tokenizer\":"),
               *to = strstr(from, "\"post_processor\"");
    while (*from == ' ' || *from == '\n')
        from++;
    hx_buf_append(&b, from, (size_t)(to - from));
    while (b.data[b.len - 1] != ',')
        b.len--;
    free(json);
    hx_buf_puts(
        &b, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"fuse_unk\":false,"
            "\"byte_fallback\":false,\"merges\":[\"a b\"],\"vocab\":{");
    int next = 256;
    for (int c = 0; c < 256; c++) {
        bool printable = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
        hx_buf_printf(&b, "\"\\u%04x\":%d,", printable ? c : next++, c);
    }
    hx_buf_puts(&b, "\"ab\":256}}}");
    char *text = strdup(hx_buf_cstr(&b));
    hx_buf_done(&b);
    if (find) {
        char *at = strstr(text, find);
        assert_non_null(at);
        char *changed = malloc(strlen(text) + strlen(replace) + 1);
        snprintf(changed, strlen(text) + strlen(replace) + 1, "%.*s%s%s", (int)(at - text), text,
                 replace, at + strlen(find));
        free(text);
        text = changed;
    }
    return text;
}

static void test_small(void **state)
{
    struct hx_tokenizer *t;
    struct hx_error err;
    struct hx_ids ids = {0};
    char *json = small(NULL, NULL);
    const struct hx_encode_options opt = {.parse_special = true};
    (void)state;
    if (hx_tokenizer_parse("small", json, strlen(json), &t, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_tokenizer_encode(t, "abba<s>", 7, &opt, &ids, &err), 0);
    assert_int_equal(ids.len, 4);
    assert_int_equal(ids.id[0], 256);
    assert_int_equal(ids.id[3], 257);
    hx_ids_done(&ids);
    hx_tokenizer_close(t);
    free(json);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *find, *replace, *says;
    } cases[] = {
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model.type"},
        {"\"dropout\":null", "\"dropout\":0.1", "model.dropout"},
        {"\"unk_token\":null", "\"unk_token\":\"a\"", "model.unk_token"},
        {"\"fuse_unk\":false", "\"fuse_unk\":true", "model.fuse_unk"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback"},
        {"\"byte_fallback\":false", "\"ignore_merges\":true", "model.ignore_merges"},
        {"\"byte_fallback\":false", "\"end_of_word_suffix\":\"x\"", "model.end_of_word_suffix"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "normalizer"},
        {"\"truncation\":null", "\"truncation\":{}", "truncation"},
        {"\"padding\":null", "\"padding\":{}", "padding"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"Bert\"}", "post_processor"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"WordPiece\"}",
         "decoder.type"},
        {"{1,3}", "{1,2}", "pattern"},
        {"Isolated", "Removed", "pretokenizers"},
        {"\"lstrip\":false", "\"lstrip\":true", "lstrip"},
        {"\"content\":\"<s>\"", "\"content\":\"\"", "no content"},
        {"\"id\":257", "\"id\":-1", "added_tokens"},
        {"\"a b\"", "\"a\"", "model.merges[0]"},
        {"\"a b\"", "\"b a\"", "model.merges[0]"},
        {"\"a b\"", "\"a b\",\"a b\"", "rising"},
        {"\"ab\":256", "\"ab\":255", "there twice"},
        {"\"ab\":256", "\"ab\":258", "is missing"},
        {"\"ab\":256", "\"\\u4e00\":256", "alphabet"},
        {"\"ab\":256", "\"ab\":1e9", "not an integer"},
        {"\"ab\":256}}}", "\"ab\":256}}", "invalid JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hx_tokenizer *t;
        struct hx_error err;
        char *json = small(cases[i].find, cases[i].replace);
        int r = hx_tokenizer_parse("small", json, strlen(json), &t, &err);
        if (r == 0 || !strstr(err.text, cases[i].says) || strncmp(err.text, "small: ", 7) != 0)
            fail_msg("case %zu (%s): %s", i, cases[i].replace, r == 0 ? "accepted" : err.text);
        free(json);
    }
    struct hx_error err;
    assert_int_equal(hx_bpe_add_pair(&tok->bpe, 300, 600, 500, &err), -EINVAL);
    assert_non_null(strstr(err.text, "expected a higher id"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),      cmocka_unit_test(test_runs),
        cmocka_unit_test(test_decode),     cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_vocabulary), cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_linear),     cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_small),      cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_real, close_real);
}
