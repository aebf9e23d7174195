/* Public keys: what ssh-keygen makes is read with its fingerprint, everything else is refused with
 * the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "setup/sshkey.h"

#define DIR "tests/vectors/setup/"

static char *read_file(const char *name)
{
    char path[200], *text;
    size_t n;
    struct hx_error err;
    snprintf(path, sizeof(path), DIR "%s", name);
    assert_int_equal(hx_file_read(path, 1 << 16, &text, &n, &err), 0);
    return text;
}

static void test_fingerprints(void **state)
{
    static const char *const files[] = {"ecdsa256.pub", "ecdsa384.pub", "ecdsa521.pub",
                                        "ed25519.pub",  "rsa2048.pub",  "rsa3072.pub",
                                        "rsa4096.pub",  "second.pub"};
    char *all = read_file("fingerprints.txt"), *rest = all;
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char want[200], *text = read_file(files[i]);
        const char *line = strsep(&rest, "\n");
        struct hx_ssh_key key;
        struct hx_error err;
        int r = hx_ssh_key_parse(text, strlen(text), &key, &err);
        if (strcmp(files[i], "rsa2048.pub") == 0) {
            assert_int_equal(r, -EINVAL);
            assert_non_null(strstr(err.text, "2048 bits is too weak, at least 3072"));
        } else {
            assert_int_equal(r, 0);
            snprintf(want, sizeof(want), "%d %s %s (", key.bits, key.fingerprint, key.comment);
            assert_memory_equal(line, want, strlen(want));
            hx_ssh_key_done(&key);
        }
        free(text);
    }
    free(all);
}

static void refused(const char *line, const char *why)
{
    struct hx_ssh_key key;
    struct hx_error err;
    assert_int_equal(hx_ssh_key_parse(line, strlen(line), &key, &err), -EINVAL);
    if (!strstr(err.text, why))
        fail_msg("'%s' not in '%s'", why, err.text);
}

static void test_refused(void **state)
{
    char line[600], *good = read_file("ed25519.pub");
    (void)state;
    good[strcspn(good, "\n")] = '\0';
    refused("", "no key");
    refused("hello", "no SSH public key");
    refused("-----BEGIN OPENSSH "
            "PRIVATE KEY-----",
            "this is a private key");
    refused("-----BEGIN RSA "
            "PRIVATE KEY-----\nMIIE",
            "this is a private key");
    refused("---- BEGIN SSH2 PUBLIC KEY ----", "another program's form");
    refused("PuTTY-User-Key-File-3: ssh-ed25519", "another program's form");
    refused("ssh-dss AAAAB3NzaC1kc3MAAACBAP owner", "DSA keys are too weak");
    refused("ssh-ed25519-cert-v01@openssh.com AAAA x", "certificate");
    snprintf(line, sizeof(line), "command=\"reboot\" %s", good);
    refused(line, "options in front");
    snprintf(line, sizeof(line), "%s\n%s", good, good);
    refused(line, "more than one line");
    refused("ssh-ed25519", "cut off or damaged");
    refused("ssh-ed25519 ====", "cut off or damaged");
    refused("ssh-ed25519 AAAA!AAA", "cut off or damaged");
    free(good);
}

/* Any cut and any changed letter of the data is found, or gives another fingerprint. */
static void test_damage(void **state)
{
    char *good = read_file("ed25519.pub");
    struct hx_ssh_key key, other;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_ssh_key_parse(good, strlen(good), &key, &err), 0);
    size_t from = strlen("ssh-ed25519 "), to = from + strlen(key.base64);
    for (size_t n = from; n < to; n++)
        assert_int_equal(hx_ssh_key_parse(good, n, &other, &err), -EINVAL);
    for (size_t i = from; i < to; i++) {
        char old = good[i];
        good[i] = old == 'A' ? 'B' : 'A';
        if (hx_ssh_key_parse(good, strlen(good), &other, &err) == 0) {
            assert_string_not_equal(other.fingerprint, key.fingerprint);
            hx_ssh_key_done(&other);
        }
        good[i] = old;
    }
    hx_ssh_key_done(&key);
    free(good);
}

/* Comments are shown on a terminal: no control characters, bounded. */
static void test_comment(void **state)
{
    char line[1000], *good = read_file("ed25519.pub");
    struct hx_ssh_key key;
    struct hx_error err;
    (void)state;
    good[strlen("ssh-ed25519 ") + 68] = '\0';
    snprintf(line, sizeof(line), "%s  a\033[31mb\xff\xc2\x9b j\xc3\xb6rg; \r\n", good);
    assert_int_equal(hx_ssh_key_parse(line, strlen(line), &key, &err), 0);
    assert_string_equal(key.comment, " a?[31mb?? j\xc3\xb6rg?");
    hx_ssh_key_done(&key);
    size_t n = (size_t)snprintf(line, sizeof(line), "%s ", good);
    memset(line + n, 'x', 500);
    line[n + 500] = '\0';
    assert_int_equal(hx_ssh_key_parse(line, strlen(line), &key, &err), 0);
    assert_int_equal(strlen(key.comment), HX_SSH_COMMENT - 1);
    hx_ssh_key_done(&key);
    free(good);
}

static void test_too_long(void **state)
{
    char *line = malloc(20000);
    struct hx_ssh_key key;
    struct hx_error err;
    (void)state;
    assert_non_null(line);
    memset(line, 'A', 19999);
    line[19999] = '\0';
    assert_int_equal(hx_ssh_key_parse(line, 19999, &key, &err), -EINVAL);
    assert_non_null(strstr(err.text, "19999 characters are too many"));
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fingerprints), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_comment),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
