/* Who vouches for a lock file: the system's folder, a signature, the owner. Also the token file and
 * the endpoints, which decide whom the downloader talks to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "base/ed25519.h"
#include "base/file.h"
#include "base/sha256.h"
#include "fetch/config.h"
#include "fetch/token.h"
#include "fetch/trust.h"
#include "sample_lock.h"

static char dir[64];

static const char *in(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *path, const void *data, size_t n)
{
    struct hx_error err;
    assert_int_equal(hx_file_replace(path, data, n, &err), 0);
}

static void put_key(EVP_PKEY *key, const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(PEM_write_PUBKEY(f, key), 1);
    fclose(f);
}

static void sign(EVP_PKEY *key, const void *data, size_t n, uint8_t sig[64])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    size_t len = 64;
    assert_int_equal(EVP_DigestSignInit(ctx, NULL, NULL, NULL, key), 1);
    assert_int_equal(EVP_DigestSign(ctx, sig, &len, data, n), 1);
    assert_int_equal(len, 64);
    EVP_MD_CTX_free(ctx);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hx-trust-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    const char *const names[] = {"a.json",     "a.json.sig", "key.pub",  "other.pub",
                                 "sys/a.json", "token",      "hub_token"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(in(names[i]));
    rmdir(in("sys"));
    return rmdir(dir);
}

static struct hx_lock *lock_at(const char *path)
{
    struct hx_lock *lock = NULL;
    struct hx_error err = {0};
    put(path, sample_lock, strlen(sample_lock));
    if (hx_lock_read(path, &lock, &err) != 0)
        fail_msg("%s", err.text);
    return lock;
}

static void test_owner(void **state)
{
    (void)state;
    struct hx_lock *lock = lock_at(in("a.json"));
    struct hx_error err = {0};
    enum hx_lock_voucher by = HX_VOUCHER_IMAGE;
    char hex[HX_SHA256_HEX];
    hx_sha256_to_hex(lock->sha256, hex);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", "", NULL, &by, &err), -EPERM);
    assert_non_null(strstr(err.text, hex));
    assert_non_null(strstr(err.text, "--accept-lock"));
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", "", HASH_A, &by, &err), -EPERM);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", "", "", &by, &err), -EPERM);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", "", hex, &by, &err), 0);
    assert_int_equal(by, HX_VOUCHER_OWNER);
    hx_lock_free(lock);
}

static void test_system_folder(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mkdir(in("sys"), 0755), 0);
    struct hx_lock *lock = lock_at(in("sys/a.json"));
    struct hx_error err = {0};
    enum hx_lock_voucher by = HX_VOUCHER_OWNER;
    assert_int_equal(hx_lock_trust(lock, in("sys/a.json"), in("sys"), "", NULL, &by, &err), 0);
    assert_int_equal(by, HX_VOUCHER_IMAGE);
    /* Its folder alone counts, not what lies below or beside it. */
    assert_int_equal(hx_lock_trust(lock, in("sys/a.json"), dir, "", NULL, &by, &err), -EPERM);
    assert_int_equal(hx_lock_trust(lock, in("sys/a.json"), in("none"), "", NULL, &by, &err),
                     -EPERM);
    /* A folder or file that others may write vouches for nothing. */
    assert_int_equal(chmod(in("sys/a.json"), 0666), 0);
    assert_int_equal(hx_lock_trust(lock, in("sys/a.json"), in("sys"), "", NULL, &by, &err), -EPERM);
    assert_int_equal(chmod(in("sys/a.json"), 0644), 0);
    assert_int_equal(chmod(in("sys"), 0777), 0);
    assert_int_equal(hx_lock_trust(lock, in("sys/a.json"), in("sys"), "", NULL, &by, &err), -EPERM);
    hx_lock_free(lock);
}

static void test_signature(void **state)
{
    (void)state;
    struct hx_lock *lock = lock_at(in("a.json"));
    struct hx_error err = {0};
    enum hx_lock_voucher by = HX_VOUCHER_IMAGE;
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    EVP_PKEY *other = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    uint8_t sig[65] = {0};
    char hex[HX_SHA256_HEX];
    hx_sha256_to_hex(lock->sha256, hex);
    put_key(key, in("key.pub"));
    put_key(other, in("other.pub"));
    sign(key, sample_lock, strlen(sample_lock), sig);
    put(in("a.json.sig"), sig, 64);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", in("key.pub"), NULL, &by, &err), 0);
    assert_int_equal(by, HX_VOUCHER_SIGNATURE);
    /* A signature that does not fit is refused even with consent: somebody meant something else. */
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", in("other.pub"), hex, &by, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "not one of the key"));
    sig[3] ^= 1;
    put(in("a.json.sig"), sig, 64);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", in("key.pub"), hex, &by, &err), -EINVAL);
    put(in("a.json.sig"), sig, 65);
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", in("key.pub"), hex, &by, &err), -EINVAL);
    assert_non_null(strstr(err.text, "65 bytes"));
    /* Without a key in the configuration, signatures say nothing. */
    assert_int_equal(hx_lock_trust(lock, in("a.json"), "", "", NULL, &by, &err), -EPERM);
    put(in("key.pub"), "no key", 6);
    assert_int_equal(hx_ed25519_verify(in("key.pub"), "x", 1, sig, &err), -EINVAL);
    assert_non_null(strstr(err.text, "not an Ed25519 key"));
    assert_int_equal(hx_ed25519_verify(in("none"), "x", 1, sig, &err), -ENOENT);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
    hx_lock_free(lock);
}

static void test_token(void **state)
{
    (void)state;
    char *token = NULL;
    struct hx_error err = {0};
    put(in("token"), "secret-1\n", 9);
    assert_int_equal(chmod(in("token"), 0600), 0);
    assert_int_equal(hx_fetch_token_read(in("token"), &token, &err), 0);
    assert_string_equal(token, "secret-1");
    hx_fetch_token_free(token);
    assert_int_equal(chmod(in("token"), 0640), 0);
    assert_int_equal(hx_fetch_token_read(in("token"), &token, &err), -EPERM);
    assert_null(token);
    assert_null(strstr(err.text, "secret"));
    assert_int_equal(hx_fetch_token_read(in("none"), &token, &err), -ENOENT);
    const char *const wrong[] = {"", "\n", "two words", "a\nb", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        put(in("token"), wrong[i], strlen(wrong[i]));
        assert_int_equal(chmod(in("token"), 0600), 0);
        assert_int_equal(hx_fetch_token_read(in("token"), &token, &err), -EINVAL);
        assert_null(token);
    }
    /* What the service manager passes. */
    put(in("hub_token"), "secret-2", 8);
    unsetenv("CREDENTIALS_DIRECTORY");
    assert_int_equal(hx_fetch_token_read("", &token, &err), 0);
    assert_null(token);
    setenv("CREDENTIALS_DIRECTORY", dir, 1);
    assert_int_equal(hx_fetch_token_read("", &token, &err), 0);
    assert_string_equal(token, "secret-2");
    hx_fetch_token_free(token);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static void test_endpoints(void **state)
{
    (void)state;
    struct hx_fetch_endpoints e = {0};
    struct hx_error err = {0};
    assert_int_equal(
        hx_fetch_endpoints_parse(" a=hub:https://one.example/  b-2=plain:http://127.0.0.1:80/x// ",
                                 &e, &err),
        0);
    assert_int_equal(e.n, 2);
    assert_string_equal(e.e[0].name, "a");
    assert_string_equal(e.e[0].url, "https://one.example");
    assert_int_equal(e.e[0].kind, HX_ENDPOINT_HUB);
    assert_string_equal(e.e[1].url, "http://127.0.0.1:80/x");
    assert_int_equal(e.e[1].kind, HX_ENDPOINT_PLAIN);
    hx_fetch_endpoints_done(&e);
    static const struct {
        const char *value, *reason;
    } wrong[] = {
        {"", "name at least one server"},
        {"https://one.example", "the name must be"},
        {"a=https://one.example", "the kind must be"},
        {"a=mirror:https://one.example", "the kind must be"},
        {"a=hub:ftp://one.example", "must start with https://"},
        {"a=hub:https://", "must start with https://"},
        {"a=hub:https://user:pass@one.example", "may not hold a user name"},
        {"a=hub:https://one.example?x=1", "may not hold"},
        {"A=hub:https://one.example", "the name must be"},
        {"a=hub:https://one.example a=hub:https://two.example", "is there twice"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (hx_fetch_endpoints_parse(wrong[i].value, &e, &err) != -EINVAL)
            fail_msg("'%s' was taken", wrong[i].value);
        if (!strstr(err.text, wrong[i].reason))
            fail_msg("'%s': %s", wrong[i].value, err.text);
    }
    assert_int_equal(hx_fetch_endpoints_parse("a=hub:https://user:pa@ss@one.example", &e, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "a=hub:https://@one.example"));
    assert_null(strstr(err.text, "user:"));
    assert_null(strstr(err.text, "pa@ss"));
    char many[1024] = "";
    for (int i = 0; i < 17; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), "e%d=hub:https://h%d ", i, i);
    assert_int_equal(hx_fetch_endpoints_parse(many, &e, &err), -EINVAL);
    assert_non_null(strstr(err.text, "more than 16"));
}

/* Every default passes its own row, and the shipped file says the same. */
static void test_configuration(void **state)
{
    (void)state;
    struct hx_fetch_conf conf, file;
    struct hx_error err = {0};
    memset(&conf, 0, sizeof(conf));
    memset(&file, 0, sizeof(file));
    hx_conf_defaults(hx_fetch_options, hx_fetch_n_options, &conf);
    hx_conf_defaults(hx_fetch_options, hx_fetch_n_options, &file);
    if (hx_conf_file(hx_fetch_options, hx_fetch_n_options, &file, "etc/fetch.conf", &err) != 0)
        fail_msg("%s", err.text);
    assert_memory_equal(&conf, &file, sizeof(conf));
    assert_int_equal(conf.connections, 8);
    assert_int_equal(conf.reserve, 10ll << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(test_system_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_signature, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token, setup, teardown),
        cmocka_unit_test(test_endpoints),
        cmocka_unit_test(test_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
