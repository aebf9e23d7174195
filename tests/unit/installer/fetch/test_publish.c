/* From verified files to a model folder and back for a repair, cut at every step: the engine opens
 * all of it or nothing. The model is the demo model, as if every file came whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "fetch/state.h"
#include "fetch/step.h"
#include "model/manifest.h"
#include "model/tiny.h"
#include "world.h"

#define CRASHED 99
#define CHUNK   (256u << 10)

static atomic_int steps_left = -1;

/* In place of the product's: ends the process as a power cut does. */
void hx_fetch_step(const char *what)
{
    (void)what;
    if (atomic_load(&steps_left) >= 0 && atomic_fetch_sub(&steps_left, 1) == 0)
        _exit(CRASHED);
}

static char base[64], source[128], models[128];
static struct hx_lock *lock;
static struct hx_plan *plan;

static struct hx_buf json = {.max = 16u << 20};

static int add_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    const char *out = path + strlen(source) + 1;
    char hex[HX_SHA256_HEX];
    uint64_t size;
    if (type != FTW_F || strcmp(out, "state.json") == 0)
        return 0;
    if (hx_sha256_file(path, hex, &size, NULL) < 0)
        return -1;
    hx_buf_printf(&json,
                  "%s{\"source\":\"official\",\"path\":\"%s\",\"size\":%lld,\"sha256\":\"%s\","
                  "\"mode\":\"whole\",\"out\":\"%s\",\"chunk\":%u}",
                  json.data[json.len - 1] == '}' ? "," : "", out, (long long)st->st_size, hex, out,
                  CHUNK);
    return 0;
}

static struct hx_store *open_store(void)
{
    struct hx_store_options o = {.models = models, .n_writers = 1, .buffer_bytes = 8u << 20};
    struct hx_store *s = NULL;
    struct hx_error err = {0};
    if (hx_store_open(&o, plan, NULL, NULL, &s, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return NULL;
    }
    return s;
}

/* Feeds what is missing; 0 when every file is ready. */
static int complete(struct hx_store *s)
{
    struct hx_store_event ev;
    uint8_t *buf = malloc(CHUNK);
    int r = 0;
    for (size_t f = 0; r == 0 && f < plan->n_files; f++) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", source, plan->files[f].lock->path);
        int fd = open(path, O_RDONLY);
        for (size_t c = 0; r == 0 && c < plan->files[f].n_chunks; c++) {
            const struct hx_plan_chunk *k = &plan->files[f].chunks[c];
            struct hx_sink *sink;
            struct hx_error err;
            uint64_t at;
            if (hx_store_chunk_done(s, f, c))
                continue;
            r = hx_store_begin(s, f, c, &at, &sink, &err);
            if (r < 0 || pread(fd, buf, k->src_bytes, (off_t)k->src_begin) != (ssize_t)k->src_bytes)
                break;
            while ((r = hx_sink_write(sink, buf, k->src_bytes)) == -EAGAIN)
                usleep(1000);
            hx_sink_end(sink, false);
            hx_store_flush(s, NULL);
            while (hx_store_next(s, &ev))
                r = ev.type == HX_STORE_CHUNK_BAD ? -EINVAL : r;
        }
        close(fd);
    }
    for (size_t f = 0; r == 0 && f < plan->n_files; f++) {
        for (int i = 0; i < 1000 && !hx_store_file_ready(s, f); i++)
            usleep(5000);
        r = hx_store_file_ready(s, f) ? 0 : -ETIMEDOUT;
    }
    free(buf);
    return r;
}

static int setup(void **state)
{
    (void)state;
    struct hx_error err = {0};
    /* A process that ends leaves the same tree on any file system; in memory syncs cost nothing. */
    snprintf(base, sizeof(base), "%s/hx-test-publish-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(base))
        return -1;
    snprintf(source, sizeof(source), "%s/source", base);
    const struct hx_tiny_options o = {.dir = source, .seed = 5};
    int r = hx_tiny_write(&o, &err);
    hx_buf_puts(&json, "{\"format\":\"hybrid-lock-1\",\"model\":\"m\",\"created\":"
                       "\"2026-11-30T00:00:00Z\",\"made_here\":false,\"sources\":[{\"id\":"
                       "\"official\",\"repo\":\"a/b\",\"commit\":"
                       "\"0123456789012345678901234567890123456789\",\"licence\":\"MIT\"}],"
                       "\"expect\":{\"dense_bytes\":87113448,\"expert_matrices\":240,"
                       "\"tensors_official\":1062},\"files\":[");
    if (r == 0)
        r = nftw(source, add_file, 16, FTW_PHYS);
    hx_buf_puts(&json, "]}");
    if (r == 0)
        r = hx_lock_parse((const char *)json.data, json.len, "test lock", &lock, &err);
    if (r == 0)
        r = hx_plan_make(lock, NULL, &plan, &err);
    if (r < 0)
        fprintf(stderr, "%s\n", err.text);
    return r;
}

static int teardown(void **state)
{
    (void)state;
    hx_plan_free(plan);
    hx_lock_free(lock);
    hx_buf_done(&json);
    world_remove(base);
    return 0;
}

/* ---- trees ---- */

static const char *copy_from, *copy_to;
static bool copy_data;

static int copy_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    char to[512], target[256];
    snprintf(to, sizeof(to), "%s%s", copy_to, path + strlen(copy_from));
    if (type == FTW_D)
        return mkdir(to, 0755);
    if (type == FTW_SL) {
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        target[n < 0 ? 0 : n] = '\0';
        return symlink(target, to);
    }
    const char *dot = strrchr(path, '.');
    bool small = st->st_size < 300000 && copy_data;
    if (!small && !(dot && strcmp(dot, ".journal") == 0))
        return link(path, to);
    char *data;
    size_t n;
    if (hx_file_read(path, 1u << 20, &data, &n, NULL) < 0)
        return -1;
    int r = hx_file_replace(to, data, n, NULL);
    free(data);
    return r;
}

/* Hard links, real copies of journals; with data also of every small file. */
static void copy_tree(const char *from, const char *to, bool data)
{
    copy_from = from;
    copy_to = to;
    copy_data = data;
    assert_int_equal(nftw(from, copy_one, 16, FTW_PHYS), 0);
}

static int child(int at)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct hx_error err = {0};
        atomic_store(&steps_left, at);
        struct hx_store *s = open_store();
        int r = s ? complete(s) : -EINVAL;
        if (r == 0)
            r = hx_store_publish(s, &err);
        if (r < 0)
            fprintf(stderr, "%s\n", err.text);
        hx_store_close(s);
        _exit(r < 0 ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool same_file(const char *out)
{
    char a[400], b[400];
    char *x = NULL, *y = NULL;
    size_t n, k;
    snprintf(a, sizeof(a), "%s/%s", source, out);
    snprintf(b, sizeof(b), "%s/m/%s", models, out);
    bool same = hx_file_read(a, 1u << 30, &x, &n, NULL) == 0 &&
                hx_file_read(b, 1u << 30, &y, &k, NULL) == 0 && n == k && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static void assert_folder(bool whole)
{
    char dir[256];
    struct hx_manifest m;
    snprintf(dir, sizeof(dir), "%s/m", models);
    assert_int_equal(hx_manifest_load(dir, &m, NULL), 0);
    assert_true(m.present);
    for (size_t f = 0; f < plan->n_files; f++) {
        struct stat st;
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", dir, plan->files[f].lock->out);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, plan->files[f].out_bytes);
        if (whole || st.st_size < 300000)
            assert_true(same_file(plan->files[f].lock->out));
    }
}

/* What another program sees after a cut: a complete model, or something that is refused. */
static void assert_all_or_nothing(void)
{
    char dir[256];
    struct hx_manifest m;
    struct hx_error err;
    struct stat st;
    snprintf(dir, sizeof(dir), "%s/m", models);
    if (stat(dir, &st) < 0)
        return;
    int r = hx_manifest_load(dir, &m, &err);
    if (r == 0 && m.present)
        assert_folder(false);
    else if (r == 0) /* the folder alone */
        assert_int_equal(rmdir(dir), 0);
    else
        assert_non_null(strstr(err.text, "is not complete"));
}

static void assert_clean(void)
{
    char path[256], target[64];
    snprintf(path, sizeof(path), "%s/current", models);
    ssize_t n = readlink(path, target, sizeof(target));
    assert_int_equal(n, 1);
    assert_int_equal(target[0], 'm');
    snprintf(path, sizeof(path), "%s/incoming/m", models);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof(path), "%s/m/lock.json", models);
    struct hx_lock *l = NULL;
    assert_int_equal(hx_lock_read(path, &l, NULL), 0);
    for (size_t i = 0; i < l->n_files; i++)
        assert_non_null(l->files[i].chunk_sha256); /* learnt on the way */
    hx_lock_free(l);
}

/* Runs `models` from a copy of `stage` with a cut at every step. Returns the number of steps. */
static int cut_everywhere(const char *stage, bool data)
{
    for (int at = 0;; at++) {
        world_remove(models);
        copy_tree(stage, models, data);
        int r = child(at);
        assert_true(r == CRASHED || r == 0);
        assert_all_or_nothing();
        if (r == CRASHED)
            assert_int_equal(child(-1), 0);
        assert_folder(false);
        assert_clean();
        if (r == 0)
            return at;
    }
}

static void test_publish(void **state)
{
    (void)state;
    char stage[128];
    snprintf(stage, sizeof(stage), "%s/ready", base);
    snprintf(models, sizeof(models), "%s", stage);
    assert_int_equal(mkdir(models, 0755), 0);
    struct hx_store *s = open_store();
    assert_non_null(s);
    struct hx_error err;
    assert_int_equal(hx_store_publish(s, &err), -EAGAIN); /* nothing is there yet */
    assert_non_null(strstr(err.text, "files are not complete yet"));
    assert_int_equal(complete(s), 0);
    hx_store_close(s);
    snprintf(models, sizeof(models), "%s/models", base);
    assert_true(cut_everywhere(stage, false) > 50);
    assert_folder(true);
}

/* A damaged piece of the published model is handed back and fetched again. */
static void test_repair(void **state)
{
    (void)state;
    char stage[128], path[256];
    size_t file = 0;
    while (strcmp(plan->files[file].lock->out, "dense/layer-00.safetensors") != 0)
        file++;
    const struct hx_plan_file *p = &plan->files[file];
    snprintf(stage, sizeof(stage), "%s/damaged", base);
    copy_tree(models, stage, true); /* what test_publish left */
    snprintf(models, sizeof(models), "%s", stage);
    snprintf(path, sizeof(path), "%s/m", models);
    struct hx_state st;
    struct hx_error err;
    assert_int_equal(hx_state_read(path, &st, &err), 0);
    assert_true(st.complete);
    const struct hx_state_file *e = hx_state_find(&st, p->lock->out);
    assert_non_null(e);
    bool *bad = calloc(p->n_chunks, sizeof(*bad));
    uint8_t(*digest)[HX_SHA256_BYTES] = calloc(p->n_chunks, sizeof(*digest));
    bad[p->n_chunks - 1] = true;
    char *data;
    size_t n;
    snprintf(path, sizeof(path), "%s/%s", source, p->lock->out);
    assert_int_equal(hx_file_read(path, 1u << 20, &data, &n, &err), 0);
    for (size_t c = 0; c < p->n_chunks; c++)
        hx_sha256_data(data + p->chunks[c].out_begin, p->chunks[c].out_bytes, digest[c]);
    free(data);
    st.complete = false;
    snprintf(path, sizeof(path), "%s/m", models);
    assert_int_equal(hx_state_write(path, &st, &err), 0);
    assert_int_equal(hx_store_hand_back(models, plan, file, e->identity, bad,
                                        (const uint8_t(*)[HX_SHA256_BYTES])digest, &err),
                     0);
    snprintf(path, sizeof(path), "%s/m/%s", models, p->lock->out);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "damage", 6, (off_t)(p->out_bytes - 10)), 6);
    close(fd);
    hx_state_done(&st);
    free(bad);
    free(digest);
    snprintf(models, sizeof(models), "%s/models", base);
    assert_true(cut_everywhere(stage, true) > 15);
    assert_true(same_file(p->lock->out));
}

/* The parts are right but make no model that the lock file means. */
static void test_refused(void **state)
{
    (void)state;
    const struct {
        const char *expect, *reason;
    } cases[] = {
        {"{\"expert_matrices\":239}",
         "expert_matrices: the lock file expects 239, the files have 240"},
        {"{\"dense_bytes\":1}", "dense_bytes: the lock file expects 1, the files have 87113448"},
        {"{\"tensors_official\":1}",
         "tensors_official: the lock file expects 1, the files have 1062"},
        {"{\"dense_bytes\":-1}", "dense_bytes"},
        {"{\"dense_bytes\":\"1\"}", "expect.dense_bytes is not a whole number"},
        {"{\"tensors_official\":1.5}", "expect.tensors_official is not a whole number"},
    };
    struct hx_error err;
    char stage[128], dir[256];
    snprintf(stage, sizeof(stage), "%s/ready", base);
    world_remove(models);
    copy_tree(stage, models, false);
    char *old = lock->expect_json;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        lock->expect_json = strdup(cases[i].expect);
        struct hx_store *s = open_store();
        assert_int_equal(hx_store_publish(s, &err), -EINVAL);
        if (!strstr(err.text, cases[i].reason))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].reason);
        hx_store_close(s);
        free(lock->expect_json);
    }
    lock->expect_json = old;
    snprintf(dir, sizeof(dir), "%s/m", models);
    struct hx_manifest m;
    assert_int_equal(hx_manifest_load(dir, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "is not complete"));
    assert_int_equal(child(-1), 0); /* with the right lock file */
    assert_folder(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_repair),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
