/* Media and values: what a folder may offer, what weights may hold, and what a second reading
 * finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>

#include "fetch/medium.h"
#include "fetch/recheck.h"
#include "fetch/scan.h"
#include "world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    return world_open(&w, 50000, 4096, true);
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static size_t file_named(const char *out)
{
    for (size_t f = 0; f < w.plan->n_files; f++) {
        if (strcmp(w.plan->files[f].lock->out, out) == 0)
            return f;
    }
    fail();
    return 0;
}

static void put(const char *name, const uint8_t *data, size_t n)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", w.models, name);
    for (char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        mkdir(path, 0755);
        *s = '/';
    }
    assert_int_equal(hx_file_replace(path, data, n, NULL), 0);
}

static int find(size_t file, enum hx_medium_form *form, struct hx_error *err)
{
    struct hx_medium m;
    int fd = -1;
    assert_int_equal(hx_medium_open(w.models, &m, err), 0);
    int r = hx_medium_find(&m, &w.plan->files[file], &fd, form, err);
    if (r == 0)
        close(fd);
    hx_medium_close(&m);
    return r;
}

static void test_places(void **state)
{
    (void)state;
    static const char *const names[] = {"official/big.safetensors", "b/big.safetensors",
                                        "a/b/big.safetensors", "big.safetensors"};
    size_t big = file_named("engram/big.safetensors"), cut = file_named("dense/cut.safetensors");
    enum hx_medium_form form;
    struct hx_error err = {0};
    assert_int_equal(find(big, &form, &err), -ENOENT);
    assert_non_null(strstr(err.text, "engram/big.safetensors: not on "));
    for (size_t i = 0; i < 4; i++) {
        char path[256];
        put(names[i], w.source[1], w.source_bytes[1]);
        assert_int_equal(find(big, &form, &err), 0);
        assert_int_equal(form, HX_MEDIUM_SOURCE);
        snprintf(path, sizeof(path), "%s/%s", w.models, names[i]);
        unlink(path);
    }
    size_t n;
    uint8_t *out = world_expected(&w, cut, &n);
    put("dense/cut.safetensors", out, n);
    assert_int_equal(find(cut, &form, &err), 0);
    assert_int_equal(form, HX_MEDIUM_OUTPUT);
    free(out);
}

static void test_refused_media(void **state)
{
    (void)state;
    size_t big = file_named("engram/big.safetensors");
    enum hx_medium_form form;
    struct hx_error err = {0};
    struct hx_medium m;
    char path[256];
    put("big.safetensors", w.source[1], w.source_bytes[1] - 1);
    assert_int_equal(find(big, &form, &err), -ENOENT);
    assert_non_null(strstr(err.text, "bytes, "));
    assert_non_null(strstr(err.text, "are expected"));
    /* A link that leads out of the medium, as a file and as a folder. */
    snprintf(path, sizeof(path), "%s/big.safetensors", w.models);
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(find(big, &form, &err), -ENOENT);
    assert_non_null(strstr(err.text, "symbolic link, which is not followed"));
    unlink(path);
    snprintf(path, sizeof(path), "%s/official", w.models);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(find(big, &form, &err), -ENOENT);
    assert_non_null(strstr(err.text, "symbolic link, which is not followed"));
    put("plain", w.source[0], 10);
    snprintf(path, sizeof(path), "%s/plain", w.models);
    assert_int_equal(hx_medium_open(path, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "neither a folder nor a block device"));
    snprintf(path, sizeof(path), "%s/nothing", w.models);
    assert_int_equal(hx_medium_open(path, &m, &err), -ENOENT);
}

/* Every bad value is found wherever the pieces are cut, and nothing else is. */
static void test_values(void **state)
{
    (void)state;
    static const struct {
        enum hx_dtype dtype;
        uint8_t bad[4], good[4];
        const char *says;
    } cases[] = {
        {HX_DTYPE_F8_E4M3, {0x7f}, {0x7e}, "0x7f"},
        {HX_DTYPE_F8_E4M3, {0xff}, {0xfe}, "0xff"},
        {HX_DTYPE_F8_E8M0, {0xff}, {0xfe}, "0xff"},
        {HX_DTYPE_BF16, {0x80, 0x7f}, {0x7f, 0x7f}, "0x7f80"},
        {HX_DTYPE_BF16, {0x81, 0xff}, {0x7f, 0xff}, "0xff81"},
        {HX_DTYPE_F16, {0x00, 0x7c}, {0xff, 0x7b}, "0x7c00"},
        {HX_DTYPE_F32, {0, 0, 0x80, 0x7f}, {0xff, 0xff, 0x7f, 0x7f}, "0x7f800000"},
        {HX_DTYPE_I16, {0, 0}, {0xff, 0xff}, NULL},
    };
    enum { N = 12000, BEGIN = 37 };
    static uint8_t data[N + 2 * BEGIN];
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        size_t size = hx_dtype_size(cases[k].dtype);
        struct hx_scan_range range = {BEGIN, BEGIN + N, cases[k].dtype, (char[]){"t"}};
        const struct hx_scan_table table = {&range, 1};
        memset(data, 0xff, sizeof(data)); /* around the tensor anything may lie */
        for (size_t i = 0; i < N; i++)
            data[BEGIN + i] = cases[k].good[i % size];
        for (size_t at = 0; at < N; at += at < 64 ? size : 997 * size) {
            for (size_t step = 1; step < 9000; step = step * 3 + 1) {
                for (int bad = 0; bad < 2; bad++) {
                    struct hx_scan s;
                    struct hx_error err = {0};
                    int r = 0;
                    memcpy(data + BEGIN + at, bad ? cases[k].bad : cases[k].good, size);
                    hx_scan_begin(&s, &table, 0);
                    for (size_t i = 0; r == 0 && i < sizeof(data); i += step)
                        r = hx_scan_data(&s, data + i,
                                         sizeof(data) - i < step ? sizeof(data) - i : step, &err);
                    assert_int_equal(r, bad && cases[k].says ? -EINVAL : 0);
                    if (r < 0)
                        assert_non_null(strstr(err.text, cases[k].says));
                }
            }
            memcpy(data + BEGIN + at, cases[k].good, size);
        }
    }
}

static atomic_uint_fast64_t n_read;
static atomic_bool stop;

/* Reads the output of a file again after `damage` was done to it. */
static struct hx_recheck recheck(size_t file, uint64_t at, size_t n, const char *path)
{
    const struct hx_plan_file *p = &w.plan->files[file];
    struct hx_recheck c = {
        .path = path, .plan = p, .size = p->out_bytes, .sample = 1, .done = &n_read, .stop = &stop};
    size_t len;
    struct hx_error err;
    uint8_t *out = world_expected(&w, file, &len);
    hx_sha256_data(out, len, c.want);
    for (size_t i = 0; i < n; i++)
        out[at + i] ^= 4;
    assert_int_equal(hx_file_replace(path, out, len, &err), 0);
    free(out);
    atomic_store(&n_read, 0);
    assert_int_equal(hx_recheck_file(&c, &err), 0);
    assert_int_equal(atomic_load(&n_read), p->out_bytes);
    return c;
}

static void test_recheck(void **state)
{
    (void)state;
    char path[256];
    size_t big = file_named("engram/big.safetensors"), cut = file_named("dense/cut.safetensors");
    snprintf(path, sizeof(path), "%s/file", w.models);
    struct hx_recheck c = recheck(big, 0, 0, path);
    assert_false(c.wrong);
    hx_recheck_done(&c);
    c = recheck(big, 2 * 4096 - 1, 2, path); /* two chunks */
    assert_int_equal(c.n_bad, 2);
    assert_true(c.bad[1] && c.bad[2] && !c.bad[0]);
    assert_int_equal(c.bad_bytes, 8192);
    assert_non_null(strstr(c.message, "bytes 4096 to 8191 are damaged"));
    hx_recheck_done(&c);
    const struct hx_plan_file *p = &w.plan->files[cut];
    c = recheck(cut, p->header_bytes + 1, 1, path);
    assert_non_null(strstr(c.message, "tensor 't0' is damaged"));
    assert_true(c.bad[0]);
    assert_false(c.bad[p->n_chunks - 1]);
    hx_recheck_done(&c);
    c = recheck(cut, 20, 1, path); /* no piece is bad, the header is made anew */
    assert_true(c.wrong);
    assert_int_equal(c.n_bad, 0);
    assert_non_null(strstr(c.message, "its header is damaged"));
    hx_recheck_done(&c);
    /* Cut short: what is beyond the end is bad. */
    struct hx_error err;
    size_t n = p->out_bytes - 100;
    c = recheck(cut, 0, 0, path);
    hx_recheck_done(&c);
    assert_int_equal(truncate(path, (off_t)n), 0);
    c.wrong = false;
    c.n_bad = 0;
    assert_int_equal(hx_recheck_file(&c, &err), 0);
    assert_true(c.wrong);
    assert_true(c.bad[p->n_chunks - 1]);
    assert_false(c.bad[0]);
    hx_recheck_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_places, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_media, setup, teardown),
        cmocka_unit_test(test_values),
        cmocka_unit_test_setup_teardown(test_recheck, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
