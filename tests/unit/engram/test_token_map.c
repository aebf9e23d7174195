/* Token map: every case of the fixture, and the whole map of the real tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/utf8.h"
#include "engram/token_map.h"
#include "vectors.h"

extern char **environ;

/* ---- fixture ---- */

static void expect_key(const struct hx_token_bytes *t, struct hx_jv want)
{
    struct hx_buf key = HX_BUF_INIT(1 << 20);
    struct hx_error err;
    size_t len;
    const char *s = hx_jv_str(want, &len);
    assert_int_equal(hx_token_map_key(t, &key, &err), 0);
    if (key.len != len || memcmp(key.data, s, len) != 0)
        fail_msg("'%.*s' has key '%.*s', expected '%.*s'", (int)t->len, (const char *)t->data,
                 (int)key.len, (const char *)key.data, (int)len, s);
    hx_buf_done(&key);
}

static void test_normalisation(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("tokenmap_cases.json");
    int n = 0;
    for (struct hx_jv c = hx_jv_first(at(hx_json_root(doc), "normalisation")); c.doc;
         c = hx_jv_next(c), n++) {
        struct hx_token_bytes t = {0};
        t.data = (const uint8_t *)hx_jv_str(at(c, "text"), &t.len);
        expect_key(&t, at(c, "key"));
        t.added = true; /* makes no difference for a text */
        expect_key(&t, at(c, "key"));
    }
    assert_int_equal(n, 39);
    hx_json_free(doc);
}

struct vocab {
    struct hx_token_bytes *token;
    int32_t n;
};

static int vocab_token(void *user, int32_t id, struct hx_token_bytes *out, struct hx_error *err)
{
    const struct vocab *v = user;
    if (!v->token[id].data)
        return hx_fail(err, -EINVAL, "missing");
    *out = v->token[id];
    return 0;
}

static void vocab_done(struct vocab *v)
{
    for (int32_t i = 0; i < v->n; i++)
        free((void *)(uintptr_t)v->token[i].data);
    free(v->token);
}

static void test_mini_vocabulary(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("tokenmap_cases.json");
    struct hx_jv list = at(hx_json_root(doc), "mini_vocabulary");
    struct vocab v = {calloc(20, sizeof(struct hx_token_bytes)), 20};
    int32_t map[20], n_ids = 0, i = 0;
    assert_int_equal(hx_jv_count(list), 20);
    for (struct hx_jv t = hx_jv_first(list); t.doc; t = hx_jv_next(t), i++) {
        v.token[i].data = as_hex(at(t, "bytes_hex"), &v.token[i].len);
        v.token[i].added = hx_jv_type(at(t, "added")) == HX_JSON_TRUE;
        expect_key(&v.token[i], at(t, "key"));
    }
    struct hx_error err;
    struct hx_token_source source = {20, vocab_token, &v};
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), 0);
    i = 0;
    for (struct hx_jv t = hx_jv_first(list); t.doc; t = hx_jv_next(t), i++)
        assert_int_equal(map[i], as_int(at(t, "compressed_id")));
    assert_int_equal(n_ids, as_int(at(hx_json_root(doc), "compressed_size")));
    vocab_done(&v);
    hx_json_free(doc);
}

static void test_spelling_of_every_byte(void **state)
{
    (void)state;
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) {
        /* Alone with a stray byte behind it no byte is a text; the stray one is spelled as itself.
         */
        uint8_t s[2] = {(uint8_t)b, 0xFF}, want[8];
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        unsigned n = hx_utf8_encode(printable ? (uint32_t)b : next++, want);
        n += hx_utf8_encode(0xFF, want + n);
        struct hx_buf key = HX_BUF_INIT(100);
        struct hx_error err;
        assert_int_equal(hx_token_map_key(&(struct hx_token_bytes){s, 2, false}, &key, &err), 0);
        assert_int_equal(key.len, n);
        assert_memory_equal(key.data, want, n);
        hx_buf_done(&key);
    }
    assert_int_equal(next, 0x144);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct vocab v = {calloc(3, sizeof(struct hx_token_bytes)), 3};
    struct hx_error err;
    int32_t map[3], n_ids = -7;
    for (int i = 0; i < 2; i++)
        v.token[i] = (struct hx_token_bytes){(const uint8_t *)strdup("ab"), 2, false};
    struct hx_token_source source = {3, vocab_token, &v};
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), -EINVAL);
    assert_string_equal(err.text, "token 2: missing");
    source.n_vocab = 0;
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), -EINVAL);
    source.n_vocab = (1 << 24) + 1;
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), -EINVAL);
    source.n_vocab = 2;
    v.token[1].len = 0;
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), -EINVAL);
    assert_string_equal(err.text, "token 1: 0 bytes, expected 1 to 1048576");
    assert_int_equal(n_ids, -7);
    struct hx_buf tight = HX_BUF_INIT(1);
    assert_int_equal(hx_token_map_key(&v.token[0], &tight, &err), -ENOMEM);
    hx_buf_done(&tight);
    v.token[1].len = 2;
    assert_int_equal(hx_token_map_build(&source, map, &n_ids, &err), 0);
    assert_int_equal(n_ids, 1);
    vocab_done(&v);
}

/* ---- the real one ---- */

/* Unpacks an .xz file with the xz program. */
static char *unpack(const char *path, size_t *len)
{
    int fds[2], status;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    char program[] = "xz", option[] = "-dc", *copy = strdup(path);
    char *const argv[] = {program, option, copy, NULL};
    assert_int_equal(pipe(fds), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawn_file_actions_addclose(&actions, fds[0]);
    assert_int_equal(posix_spawnp(&pid, "xz", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    struct hx_buf b = HX_BUF_INIT(64 << 20);
    char block[65536];
    ssize_t n;
    while ((n = read(fds[0], block, sizeof(block))) > 0)
        assert_int_equal(hx_buf_append(&b, block, (size_t)n), 0);
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    free(copy);
    return (char *)hx_buf_take(&b, len);
}

/* Bytes of a vocabulary spelling. */
static struct hx_token_bytes from_spelling(struct hx_jv key)
{
    static int16_t byte_of[0x144];
    size_t len, n = 0;
    const uint8_t *s = (const uint8_t *)hx_jv_str(key, &len);
    if (byte_of[0x100] == 0 && byte_of[0x101] == 0) {
        int16_t next = 0x100;
        for (int16_t b = 0; b < 256; b++) {
            bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            byte_of[printable ? b : next++] = b;
        }
    }
    uint8_t *out = malloc(len + 1);
    assert_non_null(out);
    for (size_t i = 0; i < len;) {
        unsigned used;
        uint32_t c = hx_utf8_decode(s + i, len - i, &used);
        assert_true(c < 0x144);
        out[n++] = (uint8_t)byte_of[c];
        i += used;
    }
    return (struct hx_token_bytes){out, n, false};
}

static void load_tokenizer(struct vocab *v, int32_t n_vocab)
{
    size_t len;
    char *text = unpack("etc/demo/tokenizer.json.xz", &len);
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *doc;
    struct hx_error err;
    if (hx_json_parse(text, len, &limits, &doc, &err) < 0)
        fail_msg("%s", err.text);
    free(text);
    *v = (struct vocab){calloc((size_t)n_vocab, sizeof(struct hx_token_bytes)), n_vocab};
    assert_non_null(v->token);
    struct hx_jv root = hx_json_root(doc);
    for (struct hx_jv t = hx_jv_first(at(root, "added_tokens")); t.doc; t = hx_jv_next(t)) {
        int64_t id = as_int(at(t, "id"));
        assert_in_range(id, 0, n_vocab - 1);
        assert_null(v->token[id].data);
        size_t n;
        const char *s = hx_jv_str(at(t, "content"), &n);
        uint8_t *copy = malloc(n + 1);
        assert_non_null(copy);
        memcpy(copy, s, n);
        v->token[id] = (struct hx_token_bytes){copy, n, true};
    }
    for (struct hx_jv t = hx_jv_first(at(at(root, "model"), "vocab")); t.doc; t = hx_jv_next(t)) {
        int64_t id = as_int(t);
        assert_in_range(id, 0, n_vocab - 1);
        if (!v->token[id].data) /* some added tokens are listed here too, unspelled */
            v->token[id] = from_spelling(hx_jv_key(t));
    }
    hx_json_free(doc);
}

static void test_real_map(void **state)
{
    (void)state;
    struct hx_json *doc = load_vectors("tokenmap_cases.json");
    struct hx_jv want = at(hx_json_root(doc), "expected_for_this_model");
    int32_t n = (int32_t)as_int(at(want, "token_map_entries")), n_ids = 0;
    struct vocab v;
    load_tokenizer(&v, n);
    int32_t *map = malloc((size_t)n * sizeof(*map));
    assert_non_null(map);
    struct hx_token_source source = {n, vocab_token, &v};
    struct hx_error err;
    if (hx_token_map_build(&source, map, &n_ids, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n_ids, as_int(at(want, "compressed_size")));
    assert_int_equal(map[as_int(at(want, "pad_token_id"))], as_int(at(want, "pad_compressed_id")));
    size_t len;
    char *golden = unpack("etc/demo/engram_map.i32.xz", &len), hex[HX_SHA256_HEX];
    uint8_t digest[HX_SHA256_BYTES];
    assert_int_equal(len, (size_t)n * 4);
    assert_memory_equal(map, golden, len);
    assert_int_equal(hx_sha256_data(map, len, digest), 0);
    hx_sha256_to_hex(digest, hex);
    assert_string_equal(hex, "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
    free(golden);
    free(map);
    vocab_done(&v);
    hx_json_free(doc);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_mini_vocabulary),
        cmocka_unit_test(test_spelling_of_every_byte),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_real_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
