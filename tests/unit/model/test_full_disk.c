/* Files that cannot be written to the end: an error that names the file, the old file stays,
 * nothing half-written is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "model/manifest.h"
#include "model/safetensors.h"

static char folder[64];
static const uint8_t data[64 << 10];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/hx-test-full-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void each_file(void (*fn)(const char *path, void *user), void *user)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        fn(path, user);
    }
    closedir(d);
}

static void remove_it(const char *path, void *user)
{
    (void)user;
    unlink(path);
}

static void count_it(const char *path, void *user)
{
    (void)path;
    ++*(int *)user;
}

static int n_files(void)
{
    int n = 0;
    each_file(count_it, &n);
    return n;
}

static int teardown(void **state)
{
    (void)state;
    each_file(remove_it, NULL);
    return rmdir(folder);
}

/* Files of this process may have at most n bytes. */
static void limit_files(rlim_t n)
{
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &l), 0);
    l.rlim_cur = n;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void unlimit_files(void)
{
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &l), 0);
    l.rlim_cur = l.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void path_of(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", folder, name);
}

static void test_replace(void **state)
{
    (void)state;
    char path[128], *text;
    size_t len;
    struct hx_error err;
    path_of(path, "a.json");
    assert_int_equal(hx_file_replace(path, "old", 3, &err), 0);
    limit_files(1000);
    int r = hx_file_replace(path, data, sizeof(data), &err);
    unlimit_files();
    assert_int_equal(r, -EFBIG);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(hx_file_read(path, 100, &text, &len, &err), 0);
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(n_files(), 1);
    assert_int_equal(hx_file_replace("/proc/no/such/folder", "x", 1, &err), -ENOENT);
}

static int write_shard(const char *path, struct hx_error *err)
{
    struct hx_st_writer *w;
    int64_t ne[1] = {sizeof(data)};
    assert_int_equal(hx_st_writer_new(&w, err), 0);
    assert_int_equal(hx_st_writer_add(w, "x", HX_DTYPE_U8, 1, ne, data, err), 0);
    int r = hx_st_writer_write(w, path, err);
    hx_st_writer_free(w);
    return r;
}

/* Every length at which the disk may be full, header included. */
static void test_shard(void **state)
{
    (void)state;
    char path[128];
    struct hx_error err;
    struct hx_st_file *f;
    path_of(path, "x.safetensors");
    static const rlim_t limit[] = {0, 1, 7, 8, 9, 40, 80, 1000, 65536};
    for (size_t i = 0; i < sizeof(limit) / sizeof(limit[0]); i++) {
        limit_files(limit[i]);
        int r = write_shard(path, &err);
        unlimit_files();
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(err.text, path));
        assert_int_equal(n_files(), 0);
    }
    assert_int_equal(write_shard(path, &err), 0);
    limit_files(1000);
    assert_int_equal(write_shard(path, &err), -EFBIG);
    unlimit_files();
    assert_int_equal(hx_st_open(path, &f, &err), 0); /* the old one, whole */
    hx_st_close(f);
    assert_int_equal(n_files(), 1);
}

static void test_manifest(void **state)
{
    (void)state;
    char path[128];
    struct hx_error err;
    struct hx_manifest m;
    const char *paths[] = {"x.safetensors"};
    path_of(path, "x.safetensors");
    assert_int_equal(write_shard(path, &err), 0);
    limit_files(50);
    int r = hx_manifest_write(folder, paths, 1, true, "test", "MIT", &err);
    unlimit_files();
    assert_int_equal(r, -EFBIG);
    assert_non_null(strstr(err.text, "state.json"));
    assert_int_equal(n_files(), 1);
    assert_int_equal(hx_manifest_load(folder, &m, &err), 0);
    assert_false(m.present);
    assert_int_equal(hx_manifest_write(folder, paths, 1, true, "test", "MIT", &err), 0);
    assert_int_equal(hx_manifest_load(folder, &m, &err), 0);
    assert_true(m.present && m.synthetic);
    paths[0] = "gone";
    assert_int_equal(hx_manifest_write(folder, paths, 1, true, "test", "MIT", &err), -ENOENT);
    assert_int_equal(hx_manifest_load(folder, &m, &err), 0); /* the old one */
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_replace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shard, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
