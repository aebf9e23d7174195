/* The store: what arrives is written, hashed, journalled; what is wrong is asked for again; nothing
 * is lost by a cut at any step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "fetch/step.h"
#include "world.h"

#define CRASHED 99

static atomic_int steps_left = -1; /* -1: no crash */
static atomic_int n_steps;

/* In place of the product's: ends the process as a power cut does. */
void hx_fetch_step(const char *what)
{
    (void)what;
    atomic_fetch_add(&n_steps, 1);
    if (atomic_load(&steps_left) >= 0 && atomic_fetch_sub(&steps_left, 1) == 0)
        _exit(CRASHED);
}

static struct hx_store *open_store(const struct world *w, unsigned writers)
{
    struct hx_store_options o = {.models = w->models,
                                 .direct = true,
                                 .n_writers = writers,
                                 .buffer_bytes = 16u << 20,
                                 .retry_ms = 20};
    struct hx_store *s = NULL;
    struct hx_error err = {0};
    int r = hx_store_open(&o, w->plan, NULL, NULL, &s, &err);
    if (r < 0)
        fail_msg("%s", err.text);
    return s;
}

static void assert_all_right(const struct world *w)
{
    for (size_t f = 0; f < w->plan->n_files; f++) {
        char path[256];
        world_path(w, f, "", path, sizeof(path));
        assert_true(world_same(w, f, path));
        world_path(w, f, ".part", path, sizeof(path));
        assert_int_equal(access(path, F_OK), -1);
    }
}

static size_t file_named(const struct world *w, const char *out)
{
    for (size_t f = 0; f < w->plan->n_files; f++) {
        if (strcmp(w->plan->files[f].lock->out, out) == 0)
            return f;
    }
    fail_msg("no file %s", out);
    return 0;
}

static void test_complete(void **state)
{
    (void)state;
    for (int chunks = WORLD_WHOLE; chunks <= WORLD_CHECKED; chunks++) {
        struct world w;
        assert_int_equal(world_open(&w, 50000, 4096, chunks), 0);
        struct hx_store *s = open_store(&w, 2);
        assert_int_equal(world_complete(&w, s), 0);
        assert_int_equal(hx_store_bytes_done(s), w.plan->wanted_bytes);
        hx_store_close(s);
        assert_int_equal(w.fetched, w.plan->fetched_bytes);
        assert_all_right(&w);
        /* Once more: nothing to do. */
        s = open_store(&w, 2);
        assert_int_equal(world_complete(&w, s), 0);
        hx_store_close(s);
        assert_int_equal(w.fetched, w.plan->fetched_bytes);
        world_close(&w);
    }
}

/* A stop in the middle of everything costs the open chunks alone. */
static void test_restart(void **state)
{
    (void)state;
    struct world w;
    assert_int_equal(world_open(&w, 60000, 4096, false), 0);
    size_t big = file_named(&w, "engram/big.safetensors");
    size_t n = w.plan->files[big].n_chunks;
    struct hx_store *s = open_store(&w, 2);
    for (size_t c = 0; c < n; c += 2)
        assert_int_equal(world_feed(&w, s, big, c, NULL, 1000), 0);
    hx_store_close(s);
    uint64_t before = w.fetched;
    s = open_store(&w, 2);
    for (size_t c = 0; c < n; c++)
        assert_int_equal(hx_store_chunk_done(s, big, c), c % 2 == 0);
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_true(before > 0);
    assert_int_equal(w.fetched, w.plan->fetched_bytes);
    assert_int_equal(w.n_notes, 0);
    assert_all_right(&w);
    world_close(&w);
}

/* Many chunks at once, in random pieces, over several blocks, with aborts and continuations. */
static void test_many(void **state)
{
    (void)state;
    enum { OPEN = 6 };
    struct world w;
    assert_int_equal(world_open(&w, 40u << 20, 3u << 20, true), 0);
    struct hx_store *s = open_store(&w, 3);
    struct hx_rng g;
    hx_rng_seed(&g, 7);
    struct {
        struct hx_sink *k;
        size_t file, chunk;
        uint64_t at;
    } open[OPEN] = {0};
    size_t n_kept = 0;
    for (int idle = 0; idle < 2000;) {
        size_t i = (size_t)(hx_rng_next(&g) % OPEN);
        struct hx_error err;
        world_events(&w, s);
        if (!open[i].k) {
            bool found = false;
            for (size_t f = 0; !found && f < w.plan->n_files; f++) {
                for (size_t c = 0; !found && c < w.plan->files[f].n_chunks; c++) {
                    if (hx_store_begin(s, f, c, &open[i].at, &open[i].k, &err) < 0)
                        continue;
                    open[i].file = f;
                    open[i].chunk = c;
                    found = true;
                }
            }
            if (!found) {
                idle++;
                world_wait(&w, s, 5);
            }
            bool ready = true;
            for (size_t f = 0; f < w.plan->n_files; f++)
                ready &= hx_store_file_ready(s, f);
            if (ready)
                break;
            continue;
        }
        const struct hx_plan_chunk *c = &w.plan->files[open[i].file].chunks[open[i].chunk];
        uint64_t left = c->src_bytes - open[i].at;
        size_t n = (size_t)(hx_rng_next(&g) % (512u << 10)) + 1;
        if (n > left)
            n = (size_t)left;
        const uint8_t *p = w.source[world_file(&w, open[i].file)] + c->src_begin + open[i].at;
        int r = hx_sink_write(open[i].k, p, n);
        if (r == -EAGAIN) {
            world_wait(&w, s, 1000);
            continue;
        }
        assert_int_equal(r, 0);
        open[i].at += n;
        if (open[i].at == c->src_bytes) {
            assert_int_equal(hx_sink_write(open[i].k, p, 1), -EFBIG);
            hx_sink_end(open[i].k, false);
            open[i].k = NULL;
        } else if (hx_rng_next(&g) % 6 == 0) {
            bool keep = hx_rng_next(&g) % 2;
            hx_sink_end(open[i].k, keep);
            open[i].k = NULL;
            uint64_t at;
            if (hx_store_begin(s, open[i].file, open[i].chunk, &at, &open[i].k, &err) == 0) {
                assert_true(at == 0 || (keep && at == open[i].at));
                n_kept += at > 0;
                open[i].at = at;
            }
        }
    }
    assert_true(n_kept > 0);
    assert_int_equal(w.n_bad + w.n_lost + w.n_stopped, 0);
    hx_store_close(s);
    assert_all_right(&w);
    world_close(&w);
}

static void wrong_chunk(int chunks)
{
    struct world w;
    assert_int_equal(world_open(&w, 50000, 4096, chunks), 0);
    size_t big = file_named(&w, "engram/big.safetensors");
    struct hx_store *s = open_store(&w, 2);
    uint8_t *damaged = malloc(w.source_bytes[1]);
    memcpy(damaged, w.source[1], w.source_bytes[1]);
    damaged[3 * 4096 + 5] ^= 1;
    assert_int_equal(world_feed(&w, s, big, 3, damaged, 4096), 0);
    assert_int_equal(hx_store_flush(s, NULL), 0);
    world_events(&w, s);
    assert_int_equal(w.n_bad, 1);
    assert_non_null(strstr(w.message, "engram/big.safetensors: bytes 12288 to 16383 have SHA-256"));
    assert_false(hx_store_chunk_done(s, big, 3));
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right(&w);
    free(damaged);
    world_close(&w);
}

static void test_wrong_chunk(void **state)
{
    (void)state;
    wrong_chunk(WORLD_CHUNKS);
    wrong_chunk(WORLD_CHECKED);
}

/* Without chunk hashes a wrong byte shows at the end: the file is fetched again, then given up. */
static void test_wrong_file(void **state)
{
    (void)state;
    for (int times = 1; times <= 2; times++) {
        struct world w;
        assert_int_equal(world_open(&w, 50000, 4096, false), 0);
        size_t big = file_named(&w, "engram/big.safetensors");
        struct hx_store *s = open_store(&w, 1);
        uint8_t *damaged = malloc(w.source_bytes[1]);
        memcpy(damaged, w.source[1], w.source_bytes[1]);
        damaged[w.source_bytes[1] - 2] ^= 1;
        for (int i = 0; i < times; i++) {
            for (size_t c = 0; c < w.plan->files[big].n_chunks; c++)
                assert_int_equal(world_feed(&w, s, big, c, damaged, 4096), 0);
            for (int k = 0; k < 500 && w.n_file_bad + w.n_stopped < (size_t)i + 1; k++)
                world_wait(&w, s, 10);
            assert_non_null(strstr(w.message, "engram/big.safetensors: SHA-256 is "));
            assert_false(hx_store_chunk_done(s, big, 0));
        }
        assert_int_equal(w.n_file_bad, 1);
        assert_int_equal(w.n_stopped, times == 2);
        if (times == 1) {
            /* A restart knows that the chunks were dropped, and what came after. */
            w.n_file_bad = 0;
            assert_int_equal(world_feed(&w, s, big, 2, NULL, 4096), 0);
            hx_store_close(s);
            s = open_store(&w, 1);
            for (size_t c = 0; c < w.plan->files[big].n_chunks; c++)
                assert_int_equal(hx_store_chunk_done(s, big, c), c == 2);
            assert_int_equal(world_complete(&w, s), 0);
        } else {
            uint64_t skip;
            struct hx_sink *k;
            assert_int_equal(hx_store_begin(s, big, 0, &skip, &k, NULL), -EIO);
        }
        hx_store_close(s);
        char path[256];
        world_path(&w, big, "", path, sizeof(path));
        assert_int_equal(world_same(&w, big, path), times == 1);
        free(damaged);
        world_close(&w);
    }
}

static void test_wrong_tensor(void **state)
{
    (void)state;
    struct world w;
    assert_int_equal(world_open(&w, 50000, 4096, false), 0);
    size_t cut = file_named(&w, "dense/cut.safetensors");
    struct hx_store *s = open_store(&w, 1);
    uint8_t *damaged = malloc(w.source_bytes[2]);
    memcpy(damaged, w.source[2], w.source_bytes[2]);
    damaged[w.source_bytes[2] - 2] ^= 1; /* in the second tensor of the cut */
    for (size_t c = 0; c < w.plan->files[cut].n_chunks; c++)
        assert_int_equal(world_feed(&w, s, cut, c, damaged, 4096), 0);
    for (int k = 0; k < 500 && w.n_file_bad == 0; k++)
        world_wait(&w, s, 10);
    assert_int_equal(w.n_file_bad, 1);
    assert_non_null(strstr(w.message, "dense/cut.safetensors: tensor 't2' has SHA-256"));
    assert_true(hx_store_chunk_done(s, cut, 0)); /* the first tensor stays */
    assert_false(hx_store_chunk_done(s, cut, w.plan->files[cut].n_chunks - 1));
    w.n_file_bad = 0;
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right(&w);
    free(damaged);
    world_close(&w);
}

/* The lock file's hash of the file and its hashes of the chunks cannot both be right. */
static void test_contradiction(void **state)
{
    (void)state;
    struct world w;
    struct hx_error err = {0};
    assert_int_equal(world_open(&w, 50000, 4096, true), 0);
    hx_plan_free(w.plan);
    hx_lock_free(w.lock);
    assert_int_equal(world_plan(&w, 4096, true, true, &err), 0);
    struct hx_store *s = open_store(&w, 1);
    assert_int_equal(world_complete(&w, s), -EIO);
    assert_int_equal(w.n_stopped, 1);
    assert_non_null(strstr(w.message, "the lock file contradicts itself"));
    hx_store_close(s);
    world_close(&w);
}

static void test_bad_value(void **state)
{
    (void)state;
    struct world w;
    struct hx_error err = {0};
    assert_int_equal(world_open(&w, 50000, 4096, true), 0);
    hx_plan_free(w.plan);
    hx_lock_free(w.lock);
    /* The source itself has a BF16 infinity, across a chunk border. */
    uint64_t head = 8 + w.source[1][0] + (w.source[1][1] << 8);
    size_t at = 5 * 4096 - 1;
    if ((at - head) % 2)
        at++;
    w.source[1][at] = 0x80;
    w.source[1][at + 1] = 0x7f;
    assert_int_equal(world_plan(&w, 4096, true, false, &err), 0);
    struct hx_store *s = open_store(&w, 1);
    assert_int_equal(world_complete(&w, s), -EIO);
    assert_int_equal(w.n_stopped, 1);
    assert_non_null(strstr(w.message, "is 0x7f80, which is no number"));
    hx_store_close(s);
    world_close(&w);
}

static void test_second_downloader(void **state)
{
    (void)state;
    struct world w;
    char text[64];
    assert_int_equal(world_open(&w, 50000, 4096, true), 0);
    struct hx_store *s = open_store(&w, 1), *other = NULL;
    struct hx_store_options o = {.models = w.models};
    struct hx_error err = {0};
    assert_int_equal(hx_store_open(&o, w.plan, NULL, NULL, &other, &err), -EBUSY);
    snprintf(text, sizeof(text), "(process %ld)", (long)getpid());
    assert_non_null(strstr(err.text, text));
    assert_null(other);
    hx_store_close(s);
    s = open_store(&w, 1);
    hx_store_close(s);
    world_close(&w);
}

static void overwrite(const char *path, uint64_t at, size_t n, uint8_t value)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    uint8_t *b = malloc(n);
    memset(b, value, n);
    assert_int_equal(pwrite(fd, b, n, (off_t)at), n);
    free(b);
    close(fd);
}

/* The storage lost data of a chunk that was reported as synced. */
static void test_lying_storage(void **state)
{
    (void)state;
    struct world w;
    char path[256];
    assert_int_equal(world_open(&w, 50000, 4096, false), 0);
    size_t big = file_named(&w, "engram/big.safetensors");
    struct hx_store *s = open_store(&w, 1);
    for (size_t c = 0; c < 4; c++)
        assert_int_equal(world_feed(&w, s, big, c, NULL, 4096), 0);
    hx_store_close(s);
    world_path(&w, big, ".part", path, sizeof(path));
    overwrite(path, 2 * 4096 + 100, 10, 0);
    s = open_store(&w, 1); /* an orderly end: believed */
    assert_true(hx_store_chunk_done(s, big, 2));
    assert_int_equal(world_feed(&w, s, big, 4, NULL, 4096), 0);
    hx_store_close(s);
    world_path(&w, big, ".journal", path, sizeof(path));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 64), 0); /* without its CLEAN record: a cut */
    s = open_store(&w, 1);
    world_events(&w, s);
    assert_false(hx_store_chunk_done(s, big, 2));
    assert_true(hx_store_chunk_done(s, big, 3));
    assert_int_equal(w.n_notes, 1);
    assert_non_null(strstr(w.message, "the storage lied about a sync"));
    assert_int_equal(world_feed(&w, s, big, 5, NULL, 4096), 0);
    hx_store_close(s);
    s = open_store(&w, 1); /* remembers both */
    assert_false(hx_store_chunk_done(s, big, 2));
    assert_true(hx_store_chunk_done(s, big, 5));
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right(&w);
    world_close(&w);
}

static void test_journal_lost(void **state)
{
    (void)state;
    for (int chunks = WORLD_WHOLE; chunks <= WORLD_CHECKED; chunks++) {
        struct world w;
        char path[256];
        assert_int_equal(world_open(&w, 50000, 4096, chunks), 0);
        size_t big = file_named(&w, "engram/big.safetensors");
        struct hx_store *s = open_store(&w, 1);
        for (size_t c = 0; c < 4; c++)
            assert_int_equal(world_feed(&w, s, big, c, NULL, 4096), 0);
        hx_store_close(s);
        world_path(&w, big, ".journal", path, sizeof(path));
        assert_int_equal(unlink(path), 0);
        s = open_store(&w, 1);
        for (size_t c = 0; c < 5; c++)
            assert_int_equal(hx_store_chunk_done(s, big, c), chunks && c < 4);
        world_events(&w, s);
        assert_non_null(strstr(w.message, "journal was lost"));
        assert_int_equal(world_complete(&w, s), 0);
        hx_store_close(s);
        assert_all_right(&w);
        world_close(&w);
    }
}

/* A new lock file: chunks that are known to be the same stay. */
static void test_plan_changed(void **state)
{
    (void)state;
    struct world w;
    struct hx_error err = {0};
    assert_int_equal(world_open(&w, 50000, 4096, true), 0);
    size_t big = file_named(&w, "engram/big.safetensors");
    struct hx_store *s = open_store(&w, 1);
    for (size_t c = 0; c < 6; c++)
        assert_int_equal(world_feed(&w, s, big, c, NULL, 4096), 0);
    hx_store_close(s);
    w.source[1][3 * 4096 + 100] ^= 2; /* the new release differs in chunk 3 */
    hx_plan_free(w.plan);
    hx_lock_free(w.lock);
    assert_int_equal(world_plan(&w, 4096, true, false, &err), 0);
    s = open_store(&w, 1);
    world_events(&w, s);
    assert_non_null(strstr(w.message, "the plan has changed, 5 of 6 chunks are kept"));
    for (size_t c = 0; c < 6; c++)
        assert_int_equal(hx_store_chunk_done(s, big, c), c != 3);
    assert_int_equal(world_complete(&w, s), 0);
    hx_store_close(s);
    assert_all_right(&w);
    world_close(&w);
}

/* ---- cuts ---- */

/* One process that goes on until everything is ready, ended at step `at` (-1: not). */
static int run_child(struct world *w, int at)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        atomic_store(&steps_left, at);
        struct hx_store_options o = {
            .models = w->models, .direct = true, .n_writers = 1, .buffer_bytes = 8u << 20};
        struct hx_store *s = NULL;
        struct hx_error err = {0};
        if (hx_store_open(&o, w->plan, NULL, NULL, &s, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            _exit(1);
        }
        /* What the journal has must not be fetched again: world_complete asks the store, and the
         * parent has spoilt everything else. */
        int r = world_complete(w, s);
        hx_store_close(s);
        _exit(r < 0 ? 2 : 0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* After a cut: what has its name is whole; what no record vouches for may be anything, so it is
 * overwritten. tear: the last record may be lost or half-written as well. */
static void spoil(const struct world *w, bool tear, size_t *n_done)
{
    for (size_t f = 0; f < w->plan->n_files; f++) {
        char path[256], part[256];
        struct hx_journal_image im;
        struct hx_error err;
        char *data;
        size_t n;
        world_path(w, f, "", path, sizeof(path));
        if (access(path, F_OK) == 0)
            assert_true(world_same(w, f, path));
        world_path(w, f, ".journal", path, sizeof(path));
        world_path(w, f, ".part", part, sizeof(part));
        if (access(part, F_OK) < 0 || hx_file_read(path, 1u << 20, &data, &n, &err) < 0)
            continue;
        if (tear && n > 3 * HX_JOURNAL_RECORD) {
            n -= 20;
            assert_int_equal(truncate(path, (off_t)n), 0);
        }
        if (hx_journal_parse((uint8_t *)data, n, &im, &err) == 0) {
            for (uint32_t c = 0; c < im.n_chunks; c++) {
                const struct hx_plan_chunk *p = &w->plan->files[f].chunks[c];
                *n_done += im.chunks[c].done;
                if (!im.chunks[c].done)
                    overwrite(part, p->out_begin, p->out_bytes, 0xA5);
            }
            hx_journal_image_done(&im);
        }
        free(data);
    }
}

static void cut_everywhere(int chunks, bool tear)
{
    struct world w;
    int n = 0, most = 0;
    for (int at = 0;; at++) {
        size_t n_done = 0;
        assert_int_equal(world_open(&w, 24000, 4096, chunks), 0);
        int r = run_child(&w, at);
        if (r == 0) {
            assert_all_right(&w);
            world_close(&w);
            break;
        }
        assert_int_equal(r, CRASHED);
        spoil(&w, tear, &n_done);
        /* A second cut soon after the first. */
        r = run_child(&w, at * 5 % 7);
        assert_true(r == CRASHED || r == 0);
        if (r == CRASHED)
            spoil(&w, tear, &n_done);
        assert_int_equal(run_child(&w, -1), 0);
        assert_all_right(&w);
        world_close(&w);
        n++;
        most = n_done > (size_t)most ? (int)n_done : most;
    }
    assert_true(n > 40);
    assert_true(most > 5);
}

static void test_cut_at_every_step(void **state)
{
    (void)state;
    cut_everywhere(true, false);
}

static void test_cut_with_checked_chunks(void **state)
{
    (void)state;
    cut_everywhere(WORLD_CHECKED, true);
}

static void test_cut_with_torn_records(void **state)
{
    (void)state;
    cut_everywhere(false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_wrong_chunk),
        cmocka_unit_test(test_wrong_file),
        cmocka_unit_test(test_wrong_tensor),
        cmocka_unit_test(test_contradiction),
        cmocka_unit_test(test_bad_value),
        cmocka_unit_test(test_second_downloader),
        cmocka_unit_test(test_lying_storage),
        cmocka_unit_test(test_journal_lost),
        cmocka_unit_test(test_plan_changed),
        cmocka_unit_test(test_cut_at_every_step),
        cmocka_unit_test(test_cut_with_checked_chunks),
        cmocka_unit_test(test_cut_with_torn_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
