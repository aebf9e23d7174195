/* The demo model: same seed, same bytes; complete or refused; foreign folders untouched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"
#include "model/bind.h"
#include "model/manifest.h"
#include "model/model.h"
#include "model/tiny.h"

static char root[64];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/hx-test-tiny-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

static void path_of(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", root, name);
}

static void hash(const char *path, char hex[HX_SHA256_HEX])
{
    struct hx_error err;
    uint64_t size;
    if (hx_sha256_file(path, hex, &size, &err) < 0)
        fail_msg("%s", err.text);
}

/* state.json holds the hash of every other file. */
static void test_same_bytes(void **state)
{
    char a[128], b[128], c[128], file[160], hash_a[HX_SHA256_HEX], hash_b[HX_SHA256_HEX],
        hash_c[HX_SHA256_HEX];
    struct hx_error err;
    (void)state;
    path_of(a, "a");
    path_of(b, "b");
    path_of(c, "c");
    const struct hx_tiny_options first = {.dir = a, .seed = 7}, second = {.dir = b, .seed = 7},
                                 other = {.dir = c, .seed = 8};
    if (hx_tiny_write(&first, &err) < 0 || hx_tiny_write(&second, &err) < 0 ||
        hx_tiny_write(&other, &err) < 0)
        fail_msg("%s", err.text);
    snprintf(file, sizeof(file), "%s/state.json", a);
    hash(file, hash_a);
    snprintf(file, sizeof(file), "%s/state.json", b);
    hash(file, hash_b);
    snprintf(file, sizeof(file), "%s/state.json", c);
    hash(file, hash_c);
    assert_string_equal(hash_a, hash_b);
    assert_string_not_equal(hash_a, hash_c);
    /* Again into the same folder. */
    if (hx_tiny_write(&first, &err) < 0)
        fail_msg("%s", err.text);
    snprintf(file, sizeof(file), "%s/state.json", a);
    hash(file, hash_b);
    assert_string_equal(hash_a, hash_b);
}

static void test_opens(void **state)
{
    char a[128];
    struct hx_error err;
    struct hx_device *dev = NULL;
    struct hx_model *m = NULL;
    (void)state;
    path_of(a, "a");
    const struct hx_backend *be = hx_backend_select("cpu", &err);
    assert_non_null(be);
    assert_int_equal(be->open(0, &dev, &err), 0);
    const struct hx_model_options opt = {.backend = be, .dev = dev};
    if (hx_model_open(a, &opt, &m, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(hx_model_manifest(m)->present);
    assert_true(hx_model_manifest(m)->synthetic);
    assert_int_equal(hx_model_hparams(m)->n_vocab, 129280);
    assert_int_equal(hx_model_weight(m, HX_T_EXPERT_W1, 0, 0)->format, HX_FORMAT_EXL3);
    assert_int_equal(hx_model_weight(m, HX_T_EXPERT_W1, 0, 0)->bits, 3);
    assert_int_equal(hx_model_weight(m, HX_T_EXPERT_W2, 5, 7)->bits, 2);
    assert_int_equal(hx_model_weight(m, HX_T_EXPERT_W1, 10, 0)->format, HX_FORMAT_FP4);
    assert_int_equal(hx_model_weight(m, HX_T_ATTN_WO_B, 9, -1)->format, HX_FORMAT_FP8);
    hx_model_close(m);
    be->close(dev);
}

/* A full disk in the middle: an error, and a folder that is refused. */
static void test_interrupted(void **state)
{
    char d[128];
    struct hx_error err;
    struct hx_manifest m;
    struct rlimit old, small;
    (void)state;
    path_of(d, "d");
    const struct hx_tiny_options opt = {.dir = d, .seed = 1};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int r = hx_tiny_write(&opt, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(r, -EFBIG);
    assert_non_null(strstr(err.text, "global.safetensors"));
    assert_int_equal(hx_manifest_load(d, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "not complete"));
    /* The next attempt may use the folder. */
    assert_int_equal(hx_tiny_write(&opt, &err), 0);
    assert_int_equal(hx_manifest_load(d, &m, &err), 0);
}

static void test_foreign_folder(void **state)
{
    char e[128], file[160], text[8] = "mine";
    struct hx_error err;
    char *back;
    size_t len;
    (void)state;
    path_of(e, "e");
    assert_int_equal(mkdir(e, 0755), 0);
    snprintf(file, sizeof(file), "%s/config.json", e);
    assert_int_equal(hx_file_replace(file, text, 4, &err), 0);
    const struct hx_tiny_options opt = {.dir = e, .seed = 1};
    assert_int_equal(hx_tiny_write(&opt, &err), -EEXIST);
    assert_int_equal(hx_file_read(file, 100, &back, &len, &err), 0);
    assert_int_equal(len, 4);
    assert_memory_equal(back, text, 4);
    free(back);
    const struct hx_tiny_options nowhere = {.dir = "/tmp/hx-no-such-folder/x", .seed = 1};
    assert_int_equal(hx_tiny_write(&nowhere, &err), -ENOENT);
}

static void test_missing_tokenizer(void **state)
{
    char f[128];
    struct hx_error err;
    struct hx_manifest m;
    (void)state;
    path_of(f, "f");
    const struct hx_tiny_options opt = {.dir = f, .tokenizer = "/tmp/hx-no-such-file", .seed = 1};
    assert_int_equal(hx_tiny_write(&opt, &err), -ENOENT);
    assert_int_equal(hx_manifest_load(f, &m, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),        cmocka_unit_test(test_opens),
        cmocka_unit_test(test_interrupted),       cmocka_unit_test(test_foreign_folder),
        cmocka_unit_test(test_missing_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
