/* Verification of bundles: every fixture with its recorded verdict, damaged content, the machine.
 */
#include "bundle_data.h"

/* The machine that a fixture's host.json describes. */
static int host_of_fixture(void *ctx, const struct hx_manifest *m, struct hx_bundle_host *h,
                           struct hx_error *e)
{
    (void)e;
    struct hx_jv v = hx_json_root(ctx);
    bool yes;
    int64_t n;
    text_of(hx_jv_get(v, "kernel"), h->kernel, sizeof(h->kernel));
    text_of(hx_jv_get(v, "arch"), h->arch, sizeof(h->arch));
    text_of(hx_jv_get(v, "userspace_driver"), h->userspace_driver, sizeof(h->userspace_driver));
    for (struct hx_jv d = hx_jv_first(hx_jv_get(v, "device_ids")); d.doc; d = hx_jv_next(d))
        text_of(d, h->device_id[h->n_device_ids++], 5);
    assert_true(hx_jv_bool(hx_jv_get(v, "headers_present"), &yes));
    h->headers = yes;
    assert_true(hx_jv_bool(hx_jv_get(v, "secure_boot"), &yes));
    h->secure_boot = yes ? HX_YES : HX_NO;
    assert_true(hx_jv_int64(hx_jv_get(v, "free_mib"), &n));
    h->free_mib = n;
    for (size_t i = 0; i < m->needs.n && !h->missing_tool[0]; i++) {
        bool found = strcmp(m->needs.item[i], "linux-headers") == 0;
        for (struct hx_jv t = hx_jv_first(hx_jv_get(v, "tools")); t.doc; t = hx_jv_next(t))
            found = found || hx_jv_str_is(t, m->needs.item[i]);
        if (!found)
            snprintf(h->missing_tool, sizeof(h->missing_tool), "%s", m->needs.item[i]);
    }
    static char accepted[8][64];
    static char *list[8];
    h->accepted = (struct hx_strings){0, list};
    for (struct hx_jv a = hx_jv_first(hx_jv_get(v, "accepted")); a.doc; a = hx_jv_next(a)) {
        list[h->accepted.n] = accepted[h->accepted.n];
        text_of(a, accepted[h->accepted.n++], 64);
    }
    return 0;
}

static struct hx_bundle_verdict verify(const char *path, struct hx_json *host)
{
    struct hx_source *s;
    struct hx_bundle_verdict v;
    assert_int_equal(hx_source_open(path, &s, &err), 0);
    int r = hx_bundle_verify(s, host_of_fixture, host, NULL, &v, &err);
    if (r < 0)
        fail_msg("%s", err.text);
    hx_source_close(s);
    return v;
}

/* Same members with the same values; both are small. */
static void assert_same_json(const char *name, const char *got, size_t len, struct hx_jv want)
{
    struct hx_json *doc;
    assert_int_equal(hx_json_parse(got, len, &HX_JSON_LIMITS_DEFAULT, &doc, &err), 0);
    struct hx_jv root = hx_json_root(doc);
    if (hx_jv_count(root) != hx_jv_count(want))
        fail_msg("%s: %.*s", name, (int)len, got);
    for (struct hx_jv e = hx_jv_first(want); e.doc; e = hx_jv_next(e)) {
        size_t n;
        const char *key = hx_jv_str(hx_jv_key(e), &n);
        struct hx_jv mine = hx_jv_get_n(root, key, n);
        struct hx_buf a = HX_BUF_INIT(1 << 16), b = HX_BUF_INIT(1 << 16);
        struct hx_json_writer w;
        hx_jw_init(&w, &a, false);
        hx_jw_value(&w, mine);
        hx_jw_init(&w, &b, false);
        hx_jw_value(&w, e);
        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            fail_msg("%s: %.*s: %.*s, expected %.*s", name, (int)n, key, (int)a.len, (char *)a.data,
                     (int)b.len, (char *)b.data);
        hx_buf_done(&a);
        hx_buf_done(&b);
    }
    hx_json_free(doc);
}

static void test_every_fixture_gives_its_verdict(void **state)
{
    (void)state;
    struct dirent **list;
    int n = scandir(BUNDLES, &list, NULL, alphasort), seen = 0;
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        char dir[512];
        snprintf(dir, sizeof(dir), BUNDLES "/%s/expected.json", list[i]->d_name);
        if (list[i]->d_name[0] != '.' && access(dir, R_OK) == 0) {
            char *copy = new_folder();
            snprintf(dir, sizeof(dir), BUNDLES "/%s", list[i]->d_name);
            struct hx_json *host = read_json(dir, "host.json");
            struct hx_json *want = read_json(dir, "expected.json");
            copy_bundle(list[i]->d_name, copy);
            struct hx_bundle_verdict v = verify(copy, host);
            struct hx_buf out = HX_BUF_INIT(1 << 16);
            assert_int_equal(hx_bundle_verdict_json(&v, &out), 0);
            assert_same_json(list[i]->d_name, (char *)out.data, out.len, hx_json_root(want));
            hx_buf_done(&out);
            hx_json_free(host);
            hx_json_free(want);
            drop_folder(copy);
            seen++;
        }
        free(list[i]);
    }
    free(list);
    assert_int_equal(seen, 17);
}

struct good {
    char *dir;
    struct hx_json *host;
};

static int setup(void **state)
{
    static struct good g;
    g.dir = new_folder();
    copy_bundle("good-source", g.dir);
    g.host = read_json(BUNDLES "/good-source", "host.json");
    *state = &g;
    return 0;
}

static int teardown(void **state)
{
    struct good *g = *state;
    drop_folder(g->dir);
    hx_json_free(g->host);
    return 0;
}

static void assert_refused(struct good *g, const char *check, const char *where, const char *why)
{
    struct hx_bundle_verdict v = verify(g->dir, g->host);
    assert_false(v.accept);
    assert_int_equal(v.n_faults, 1);
    assert_string_equal(v.fault[0].check, check);
    assert_string_equal(v.fault[0].where, where);
    assert_string_equal(v.fault[0].why, why);
}

static int at(struct good *g)
{
    int fd = open(g->dir, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    return fd;
}

static void test_symbolic_link_is_refused(void **state)
{
    int fd = at(*state);
    assert_int_equal(unlinkat(fd, "build.sh", 0), 0);
    assert_int_equal(symlinkat("/bin/sh", fd, "build.sh"), 0);
    close(fd);
    assert_refused(*state, "BND-02", "build.sh", "a bundle may hold no links");
}

static void test_linked_folder_is_refused(void **state)
{
    int fd = at(*state);
    assert_int_equal(renameat(fd, "src", fd, "zz"), 0);
    assert_int_equal(symlinkat("zz", fd, "src"), 0);
    close(fd);
    assert_refused(*state, "BND-02", "src", "a bundle may hold no links");
}

static void test_pipe_is_refused(void **state)
{
    int fd = at(*state);
    assert_int_equal(mkfifoat(fd, "a-pipe", 0600), 0);
    close(fd);
    assert_refused(*state, "BND-02", "a-pipe", "is neither a plain file nor a folder");
}

static void test_odd_name_is_refused(void **state)
{
    int fd = at(*state), f = openat(fd, "a b\n", O_CREAT | O_WRONLY, 0644);
    assert_true(f >= 0);
    close(f);
    close(fd);
    assert_refused(*state, "BND-02", "a b?", "path holds characters that are not allowed");
}

static void test_one_flipped_bit_is_refused(void **state)
{
    int fd = at(*state), f = openat(fd, "build.sh", O_RDWR);
    char c;
    assert_int_equal(pread(f, &c, 1, 10), 1);
    c ^= 1;
    assert_int_equal(pwrite(f, &c, 1, 10), 1);
    close(f);
    close(fd);
    assert_refused(*state, "BND-02", "build.sh", "content does not match its hash");
}

static void test_no_manifest(void **state)
{
    int fd = at(*state);
    assert_int_equal(unlinkat(fd, HX_MANIFEST_NAME, 0), 0);
    close(fd);
    assert_refused(*state, "BND-01", HX_MANIFEST_NAME, "is not at the top of the bundle");
}

/* judge alone: what the fixtures do not vary. */
static void judge(struct good *g, struct hx_bundle_host *h, struct hx_bundle_verdict *v)
{
    struct hx_source *s;
    struct hx_manifest *m;
    struct hx_bundle_fault fault;
    assert_int_equal(hx_source_open(g->dir, &s, &err), 0);
    assert_int_equal(hx_bundle_load(s, &m, &fault, &err), 0);
    memset(v, 0, sizeof(*v));
    hx_bundle_judge(m, h, v);
    hx_manifest_free(m);
    hx_source_close(s);
}

static struct hx_bundle_host good_host(struct good *g)
{
    struct hx_source *s;
    struct hx_manifest *m;
    struct hx_bundle_fault fault;
    struct hx_bundle_host h = {.headers = false};
    assert_int_equal(hx_source_open(g->dir, &s, &err), 0);
    assert_int_equal(hx_bundle_load(s, &m, &fault, &err), 0);
    assert_int_equal(host_of_fixture(g->host, m, &h, &err), 0);
    hx_manifest_free(m);
    hx_source_close(s);
    return h;
}

static void test_full_disk_is_refused_before_anything(void **state)
{
    struct hx_bundle_host h = good_host(*state);
    struct hx_bundle_verdict v;
    h.free_mib = 4095;
    judge(*state, &h, &v);
    assert_false(v.accept);
    assert_string_equal(v.fault[0].check, "BND-04");
    assert_string_equal(v.fault[0].where, "free space");
    assert_string_equal(v.fault[0].why, "4096 MiB are needed and 4095 MiB are free");
    h.free_mib = 4096;
    judge(*state, &h, &v);
    assert_true(v.accept);
}

static void test_every_reason_is_listed(void **state)
{
    struct hx_bundle_host h = good_host(*state);
    struct hx_bundle_verdict v;
    snprintf(h.kernel, sizeof(h.kernel), "6.17.0-2-pve");
    snprintf(h.missing_tool, sizeof(h.missing_tool), "patch");
    h.accepted.n = 0;
    judge(*state, &h, &v);
    assert_int_equal(v.n_faults, 3);
    assert_string_equal(v.fault[0].where, "targets.kernels");
    assert_string_equal(v.fault[1].where, "patch");
    assert_string_equal(v.fault[2].where, "GPL-2.0");
}

static void test_unknown_secure_boot_does_not_refuse(void **state)
{
    struct hx_bundle_host h = good_host(*state);
    struct hx_bundle_verdict v;
    h.secure_boot = HX_NOT_KNOWN;
    judge(*state, &h, &v);
    assert_true(v.accept);
    assert_false(v.sign);
}

static void test_no_userspace_driver(void **state)
{
    struct hx_bundle_host h = good_host(*state);
    struct hx_bundle_verdict v;
    h.userspace_driver[0] = '\0';
    judge(*state, &h, &v);
    assert_false(v.accept);
    assert_string_equal(v.fault[0].why, "no user-space driver here and the bundle brings none");
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_fixture_gives_its_verdict),
        WITH(test_symbolic_link_is_refused),
        WITH(test_linked_folder_is_refused),
        WITH(test_pipe_is_refused),
        WITH(test_odd_name_is_refused),
        WITH(test_one_flipped_bit_is_refused),
        WITH(test_no_manifest),
        WITH(test_full_disk_is_refused_before_anything),
        WITH(test_every_reason_is_listed),
        WITH(test_unknown_secure_boot_does_not_refuse),
        WITH(test_no_userspace_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
