/* The build kit on a stick: signature, product, version, hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "setup/kit.h"
#include "setup/setup.h"

#define VECTORS "tests/vectors/setup/kit/"
#define KIT     "/run/hx170/media/sda1/hx170-0.8.kit"
#define KEY     "/usr/share/hx170/release.pem"

static char root_dir[64];
static struct hx_root *root;

static void put(const char *from, const char *path, size_t flip)
{
    struct hx_setup s = {.root_dir = root_dir};
    struct hx_error err;
    char *text = NULL;
    size_t n;
    assert_int_equal(hx_file_read(from, 1 << 16, &text, &n, &err), 0);
    if (flip)
        text[flip % n] = (char)(text[flip % n] ^ 1);
    assert_int_equal(hx_setup_put(&s, path, text, n, 0644, &err), 0);
    free(text);
}

static void put_all(void)
{
    put(VECTORS "hx170-0.8.kit", KIT, 0);
    put(VECTORS "hx170-0.8.kit.manifest", KIT ".manifest", 0);
    put(VECTORS "hx170-0.8.kit.manifest.sig", KIT ".manifest.sig", 0);
    put(VECTORS "release.pem", KEY, 0);
}

static void refused(int code, const char *words, const char *version)
{
    struct hx_error err = {0};
    assert_int_equal(hx_kit_check(root, KIT, version, &err), code);
    if (!strstr(err.text, words))
        fail_msg("'%s' lacks '%s'", err.text, words);
    put_all();
}

static void test_kit(void **state)
{
    struct hx_error err;
    char path[200];
    (void)state;
    put_all();
    assert_int_equal(hx_kit_check(root, KIT, "0.8", &err), 0);
    refused(-EBADMSG, "it is for version 0.8, this system is 0.9", "0.9");
    for (size_t flip = 1; flip < 40; flip += 3) {
        put(VECTORS "hx170-0.8.kit", KIT, flip);
        refused(-EBADMSG, "its manifest says", "0.8");
        put(VECTORS "hx170-0.8.kit.manifest", KIT ".manifest", flip);
        refused(-EINVAL, "the signature is not one of the key", "0.8");
        put(VECTORS "hx170-0.8.kit.manifest.sig", KIT ".manifest.sig", flip);
        refused(-EINVAL, "the signature is not one of the key", "0.8");
    }
    put(VECTORS "other-product.manifest", KIT ".manifest", 0);
    put(VECTORS "other-product.manifest.sig", KIT ".manifest.sig", 0);
    refused(-EBADMSG, "is for 'hx170', not for a build kit", "0.8");
    put(VECTORS "hx170-0.8.kit", KIT ".manifest.sig", 0);
    refused(-EBADMSG, "a signature has 64", "0.8");
    put(VECTORS "hx170-0.8.kit", KEY, 0);
    refused(-EINVAL, "not an Ed25519 key", "0.8");
    static const char *const files[] = {KIT, KIT ".manifest", KIT ".manifest.sig", KEY};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", root_dir, files[i]);
        assert_int_equal(unlink(path), 0);
        refused(-ENOENT, "", "0.8");
    }
}

static int setup(void **state)
{
    struct hx_error err;
    (void)state;
    snprintf(root_dir, sizeof(root_dir), "/tmp/hx-kit-XXXXXX");
    return mkdtemp(root_dir) ? hx_root_open(root_dir, &root, &err) : -1;
}

static int teardown(void **state)
{
    static const char *const made[] = {KIT,
                                       KIT ".manifest",
                                       KIT ".manifest.sig",
                                       KEY,
                                       "/run/hx170/media/sda1",
                                       "/run/hx170/media",
                                       "/run/hx170",
                                       "/run",
                                       "/usr/share/hx170",
                                       "/usr/share",
                                       "/usr",
                                       ""};
    char path[200];
    (void)state;
    hx_root_close(root);
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", root_dir, made[i]);
        if (remove(path) < 0)
            return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_kit, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
