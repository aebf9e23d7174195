/* The KV pool: geometry, block accounting, exact reuse at every cut, eviction, running out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kv/layout.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

/* ---- geometry ---- */

static void released_shape(struct hx_hparams *hp, struct hx_maps *maps)
{
    static const int sources[] = {2, 8, 14, 20};
    memset(hp, 0, sizeof(*hp));
    memset(maps, 0, sizeof(*maps));
    hp->n_layer = 40;
    hp->head_dim = 512;
    hp->index_head_dim = 128;
    hp->window = 128;
    for (int il = 2; il < 40; il++)
        hp->ratio[il] = il < 20 ? 2 : 1;
    for (int i = 0; i < 4; i++)
        maps->is_kv_source[sources[i]] = true;
}

static void test_row_sizes(void **state)
{
    (void)state;
    struct hx_hparams hp;
    struct hx_maps maps;
    struct hx_kv_options opt = {.block_tok = 64, .n_blocks = 10, .n_seqs = 2, .n_snapshots = 3};
    struct hx_kv_layout l;
    released_shape(&hp, &maps);
    CHECK(hx_kv_layout_derive(&hp, &maps, &opt, &l, ERR));
    assert_int_equal(l.window.data_bytes + l.window.scale_bytes, 528);
    assert_int_equal(l.comp[2].data_bytes + l.comp[2].scale_bytes, 288);
    assert_int_equal(l.key[2].data_bytes + l.key[2].scale_bytes, 68);
    assert_int_equal(l.comp[2].rows, 32);
    assert_int_equal(l.comp[20].rows, 64);
    assert_int_equal(l.comp[3].rows, 0);
    /* 890 bytes a token, and each of the 8 parts is aligned to 256. */
    int row_bytes = 0;
    for (int il = 0; il < 40; il++)
        row_bytes += l.comp[il].rows * (l.comp[il].data_bytes + l.comp[il].scale_bytes) +
                     l.key[il].rows * (l.key[il].data_bytes + l.key[il].scale_bytes);
    assert_int_equal(row_bytes, 64 * 890);
    assert_true(l.block_bytes >= 64 * 890 && l.block_bytes < 64 * 890 + 8 * 256);
    assert_int_equal(l.ring_tok, 144);
    /* The three ratio-2 sources keep 8 rows of (u, g) in float32. */
    assert_int_equal(l.slot_bytes, 40 * l.window_bytes + 3 * 8 * 1024 * 4);
    assert_true(l.window_bytes >= 144 * 528 && l.window_bytes < 144 * 528 + 256);
    struct hx_kv_memory m;
    CHECK(hx_kv_memory(&hp, &maps, &opt, &m, ERR));
    assert_int_equal(m.block, l.block_bytes);
    assert_int_equal(m.blocks, 10 * l.block_bytes);
    assert_int_equal(m.slots, 5 * l.slot_bytes);
    assert_true(m.views >= 2 * (10 * sizeof(int32_t) + 120 * sizeof(struct hx_kv_stream)));
    assert_int_equal(hx_kv_bytes(&hp, &maps, &opt), m.blocks + m.slots + m.views);
    /* Every part has its own bytes. */
    assert_int_equal(l.comp[2].scale_offset, 32 * 256);
    assert_int_equal(l.key[2].data_offset, 32 * 288);
    assert_int_equal(l.key[2].scale_offset, 32 * 288 + 32 * 64);
}

static void test_bad_geometry(void **state)
{
    (void)state;
    struct hx_hparams hp;
    struct hx_maps maps;
    struct hx_kv_layout l;
    struct hx_error err = {0};
    released_shape(&hp, &maps);
    struct hx_kv_options odd = {.block_tok = 63}, ring = {.block_tok = 64, .ring_tok = 128};
    assert_int_equal(hx_kv_layout_derive(&hp, &maps, &odd, &l, &err), -EINVAL);
    assert_non_null(strstr(err.text, "63"));
    assert_int_equal(hx_kv_layout_derive(&hp, &maps, &ring, &l, &err), -EINVAL);
    assert_non_null(strstr(err.text, "128"));
    assert_int_equal(hx_kv_bytes(&hp, &maps, &odd), 0);
}

/* ---- a pool whose rows are written by hand ---- */

#define BLOCK 4
#define RING  10

struct fixture {
    struct hx_hparams hp;
    struct hx_maps maps;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_kv_pool *pool;
};

static void open_pool(struct fixture *f, int n_blocks, int n_seqs, int n_snapshots)
{
    memset(f, 0, sizeof(*f));
    f->hp.n_layer = 3;
    f->hp.head_dim = 64;
    f->hp.index_head_dim = 32;
    f->hp.window = 4;
    f->hp.ratio[1] = 2;
    f->hp.ratio[2] = 1;
    f->maps.is_kv_source[1] = f->maps.is_kv_source[2] = true;
    struct hx_error err;
    f->be = hx_backend_select("cpu", &err);
    assert_non_null(f->be);
    CHECK(f->be->open(0, &f->dev, ERR));
    struct hx_kv_options opt = {.block_tok = BLOCK,
                                .ring_tok = RING,
                                .n_blocks = n_blocks,
                                .n_seqs = n_seqs,
                                .n_snapshots = n_snapshots};
    CHECK(hx_kv_pool_open(&f->hp, &f->maps, f->be, f->dev, &opt, &f->pool, ERR));
}

static void close_pool(struct fixture *f)
{
    hx_kv_pool_close(f->pool);
    f->be->close(f->dev);
}

static struct hx_kv_seq *seq_new(struct fixture *f)
{
    struct hx_kv_seq *s = NULL;
    CHECK(hx_kv_seq_new(f->pool, &s, ERR));
    return s;
}

/* A byte that depends on what, where and after which tokens, as model state does. */
static uint8_t mark(int what, int64_t row, int64_t hash)
{
    return (uint8_t)((row * 31 + what * 7 + hash * 13) & 255);
}

static int64_t hash_of(const int32_t *tokens, int64_t n)
{
    int64_t h = 1;
    for (int64_t i = 0; i < n; i++)
        h = (h * 31 + tokens[i] + 1) % 1000003;
    return h;
}

/* Writes what a pass over the token at the end would: a window row in each layer, an open row, a
 * compressed row and a key when a group is full. */
static void put(struct hx_kv_seq *s, int32_t token)
{
    int64_t p = hx_kv_seq_len(s);
    CHECK(hx_kv_seq_reserve(s, p + 1, ERR));
    CHECK(hx_kv_seq_commit(s, &token, NULL, 1, ERR));
    const struct hx_kv_view *v = hx_kv_seq_view(s);
    int64_t h = hash_of(hx_kv_seq_tokens(s), p + 1);
    for (int il = 0; il < 3; il++) {
        memset(hx_kv_row_data(&v->window[il], p), mark(il, p, h), 64);
        memset(hx_kv_row_scale(&v->window[il], p), mark(il + 3, p, h), 2);
    }
    v->open[1][(p % 8) * 128] = (float)h;
    if (p % 2 == 1) {
        memset(hx_kv_row_data(&v->comp[1], p / 2), mark(6, p, h), 32);
        memset(hx_kv_row_scale(&v->key[1], p / 2), mark(7, p, h), 1);
    }
    memset(hx_kv_row_data(&v->comp[2], p), mark(8, p, h), 32);
    memset(hx_kv_row_scale(&v->comp[2], p), mark(9, p, h), 4);
    memset(hx_kv_row_data(&v->key[2], p), mark(10, p, h), 16);
}

/* Everything that a continuation reads. */
static void verify(struct hx_kv_seq *s, const int32_t *tokens, int64_t n)
{
    const struct hx_kv_view *v = hx_kv_seq_view(s);
    assert_int_equal(hx_kv_seq_len(s), n);
    assert_memory_equal(hx_kv_seq_tokens(s), tokens, (size_t)n * 4);
    for (int64_t p = 0; p < n; p++) {
        int64_t h = hash_of(tokens, p + 1);
        assert_int_equal(hx_kv_seq_dead(s)[p], 0);
        for (int il = 0; il < 3 && p >= n - 3; il++) {
            assert_int_equal(*hx_kv_row_data(&v->window[il], p), mark(il, p, h));
            assert_int_equal(*hx_kv_row_scale(&v->window[il], p), mark(il + 3, p, h));
        }
        if (p == n - 1 && n % 2 == 1)
            assert_true(v->open[1][(p % 8) * 128] == (float)h);
        if (p % 2 == 1) {
            assert_int_equal(*hx_kv_row_data(&v->comp[1], p / 2), mark(6, p, h));
            assert_int_equal(*hx_kv_row_scale(&v->key[1], p / 2), mark(7, p, h));
        }
        assert_int_equal(*hx_kv_row_data(&v->comp[2], p), mark(8, p, h));
        assert_int_equal(*hx_kv_row_scale(&v->comp[2], p), mark(9, p, h));
        assert_int_equal(*hx_kv_row_data(&v->key[2], p), mark(10, p, h));
    }
}

static void fill(struct hx_kv_seq *s, const int32_t *tokens, int64_t n)
{
    for (int64_t p = hx_kv_seq_len(s); p < n; p++)
        put(s, tokens[p]);
}

static void make_tokens(int32_t *t, int n, int seed)
{
    for (int i = 0; i < n; i++)
        t[i] = (i * 37 + seed * 101) % 500;
}

/* ---- sequences ---- */

static void test_reserve_commit(void **state)
{
    (void)state;
    struct fixture f;
    struct hx_error err = {0};
    int32_t t[64];
    make_tokens(t, 64, 0);
    open_pool(&f, 5, 2, 0);
    struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f), *c = NULL;
    assert_int_equal(hx_kv_seq_new(f.pool, &c, &err), -EAGAIN);
    assert_int_equal(hx_kv_blocks_for(f.pool, 0), 0);
    assert_int_equal(hx_kv_blocks_for(f.pool, 5), 2);
    CHECK(hx_kv_seq_reserve(a, 9, ERR));
    assert_int_equal(hx_kv_blocks_free(f.pool), 2);
    CHECK(hx_kv_seq_reserve(a, 9, ERR));
    assert_int_equal(hx_kv_blocks_free(f.pool), 2);
    assert_int_equal(hx_kv_seq_reserve(b, 9, &err), -EAGAIN); /* 3 blocks wanted, 2 there */
    assert_non_null(strstr(err.text, "9 tokens"));
    assert_int_equal(hx_kv_blocks_free(f.pool), 2); /* nothing kept */
    assert_int_equal(hx_kv_seq_reserve(b, INT64_MAX - 8, &err), -EAGAIN);
    assert_int_equal(hx_kv_seq_commit(a, t, NULL, 13, &err), -EINVAL); /* beyond 3 blocks */
    assert_int_equal(hx_kv_seq_len(a), 0);
    fill(a, t, 9);
    verify(a, t, 9);
    hx_kv_seq_free(a);
    assert_int_equal(hx_kv_blocks_free(f.pool), 5);
    assert_int_equal(hx_kv_blocks_total(f.pool), 5);
    hx_kv_seq_free(NULL);
    close_pool(&f);
}

static void test_truncate(void **state)
{
    (void)state;
    struct fixture f;
    struct hx_error err = {0};
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    open_pool(&f, 16, 1, 0);
    for (int n = 1; n <= 40; n++) {
        for (int back = 0; back <= n; back++) {
            struct hx_kv_seq *s = seq_new(&f);
            fill(s, t, n);
            int cut = n - back;
            bool ring_ok = n <= RING || cut == 0 || back <= RING - 4 + 1;
            bool open_ok = cut % 2 == 0 || back < 8;
            int r = hx_kv_seq_truncate(s, cut, &err);
            assert_int_equal(r, ring_ok && open_ok ? 0 : -EINVAL);
            if (r == 0) {
                verify(s, t, cut);
                memcpy(u, t, sizeof(u));
                for (int i = cut; i < 48; i++)
                    u[i] = 400 - i; /* another continuation */
                fill(s, u, cut + 5);
                verify(s, u, cut + 5);
            }
            hx_kv_seq_free(s);
        }
    }
    struct hx_kv_seq *s = seq_new(&f);
    fill(s, t, 3);
    assert_int_equal(hx_kv_seq_truncate(s, 4, &err), -EINVAL);
    assert_int_equal(hx_kv_seq_truncate(s, -1, &err), -EINVAL);
    close_pool(&f);
}

static void test_fork_is_independent(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    for (int n = 1; n <= 20; n++) {
        open_pool(&f, 32, 3, 0);
        memcpy(u, t, sizeof(u));
        for (int i = n; i < 64; i++)
            u[i] = 300 + i;
        struct hx_kv_seq *a = seq_new(&f), *b = NULL;
        fill(a, t, n);
        CHECK(hx_kv_seq_fork(a, &b, ERR));
        verify(b, t, n);
        fill(a, t, n + 9);
        fill(b, u, n + 9);
        verify(a, t, n + 9);
        verify(b, u, n + 9);
        /* Full blocks are shared: cost of the second is what differs. */
        assert_int_equal(32 - hx_kv_blocks_free(f.pool),
                         2 * hx_kv_blocks_for(f.pool, n + 9) - n / BLOCK);
        close_pool(&f);
    }
}

/* Rows behind a cut are written again in a block that another sequence still reads. */
static void test_truncate_into_shared_block(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    open_pool(&f, 16, 3, 2);
    struct hx_kv_seq *a = seq_new(&f), *b = NULL, *c = seq_new(&f);
    fill(a, t, 8);
    CHECK(hx_kv_seq_fork(a, &b, ERR));
    hx_kv_prefix_publish(a);
    CHECK(hx_kv_seq_truncate(a, 6, ERR));
    memcpy(u, t, sizeof(u));
    u[6] = u[7] = 444;
    fill(a, u, 8);
    verify(a, u, 8);
    verify(b, t, 8);
    assert_int_equal(hx_kv_prefix_restore(c, t, 9), 8);
    verify(c, t, 8);
    close_pool(&f);
}

/* ---- prefix cache ---- */

static void test_restore_at_every_cut(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    for (int n = 1; n <= 40; n++) {
        open_pool(&f, 40, 2, 2);
        struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f);
        fill(a, t, n);
        hx_kv_prefix_publish(a);
        memcpy(u, t, sizeof(u));
        for (int i = n; i < 64; i++)
            u[i] = 300 + i;
        fill(a, u, n + 12);                                 /* the owner goes on, its ring wraps */
        assert_int_equal(hx_kv_prefix_restore(b, t, n), 0); /* one token must be left */
        assert_int_equal(hx_kv_prefix_restore(b, t, n + 1), n);
        verify(b, t, n);
        fill(b, t, n + 12);
        verify(b, t, n + 12);
        verify(a, u, n + 12);
        close_pool(&f);
    }
}

static void test_match_by_tokens(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    open_pool(&f, 40, 3, 8);
    struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f);
    fill(a, t, 6);
    hx_kv_prefix_publish(a);
    hx_kv_prefix_publish(a); /* the same state again takes no second entry */
    fill(a, t, 12);
    hx_kv_prefix_publish(a);
    memcpy(u, t, sizeof(u));
    u[9] = 499; /* differs inside the longer one, its last token is equal */
    assert_int_equal(hx_kv_prefix_restore(b, u, 20), 6);
    hx_kv_seq_free(b);
    b = seq_new(&f);
    u[0] = 498;
    assert_int_equal(hx_kv_prefix_restore(b, u, 20), 0);
    assert_int_equal(hx_kv_prefix_restore(b, t, 20), 12);
    close_pool(&f);
}

/* Rows of image spans never match a prompt of plain tokens. */
static void test_dead_rows_do_not_match(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t dead[8] = {0, 0, 1, 1, 0, 0, 0, 0};
    open_pool(&f, 8, 2, 2);
    struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f);
    CHECK(hx_kv_seq_reserve(a, 6, ERR));
    CHECK(hx_kv_seq_commit(a, t, dead, 6, ERR));
    hx_kv_prefix_publish(a);
    assert_int_equal(hx_kv_prefix_restore(b, t, 8), 0);
    close_pool(&f);
}

static void test_eviction_is_lru(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[4][16];
    open_pool(&f, 40, 1, 3);
    for (int i = 0; i < 4; i++) {
        make_tokens(t[i], 16, i + 1);
        struct hx_kv_seq *s = seq_new(&f);
        if (i == 3) { /* 0 was used last: 1 has to go */
            assert_int_equal(hx_kv_prefix_restore(s, t[0], 16), 6);
            hx_kv_seq_free(s);
            s = seq_new(&f);
        }
        fill(s, t[i], 6);
        hx_kv_prefix_publish(s);
        hx_kv_seq_free(s);
    }
    static const int want[4] = {6, 0, 6, 6};
    for (int i = 0; i < 4; i++) {
        struct hx_kv_seq *s = seq_new(&f);
        assert_int_equal(hx_kv_prefix_restore(s, t[i], 16), want[i]);
        if (want[i])
            verify(s, t[i], 6);
        hx_kv_seq_free(s);
    }
    close_pool(&f);
}

static void test_snapshots_give_way(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64];
    struct hx_error err = {0};
    make_tokens(t, 64, 0);
    open_pool(&f, 6, 2, 4);
    struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f);
    fill(a, t, 12);
    hx_kv_prefix_publish(a);
    hx_kv_seq_free(a);
    assert_int_equal(hx_kv_blocks_free(f.pool), 6); /* the snapshot's can be had */
    fill(b, t + 20, 24);
    verify(b, t + 20, 24);
    assert_int_equal(hx_kv_blocks_free(f.pool), 0);
    assert_int_equal(hx_kv_seq_reserve(b, 25, &err), -EAGAIN);
    hx_kv_seq_free(b);
    a = seq_new(&f);
    assert_int_equal(hx_kv_prefix_restore(a, t, 20), 0);
    hx_kv_seq_free(a);
    /* A full pool in which only a snapshot of its own shares the last block: it can go on. */
    a = seq_new(&f);
    fill(a, t, 22);
    hx_kv_prefix_publish(a);
    fill(a, t, 24);
    verify(a, t, 24);
    close_pool(&f);
}

/* Restoring may need the block of the very snapshot that it restores. */
static void test_restore_in_a_full_pool(void **state)
{
    (void)state;
    struct fixture f;
    int32_t t[64], u[64];
    make_tokens(t, 64, 0);
    make_tokens(u, 64, 5);
    open_pool(&f, 4, 2, 4);
    struct hx_kv_seq *a = seq_new(&f), *b = seq_new(&f);
    fill(a, t, 7);
    hx_kv_prefix_publish(a);
    hx_kv_seq_free(a);
    fill(b, u, 8); /* 2 blocks; the snapshot has the other 2 */
    a = seq_new(&f);
    int64_t n = hx_kv_prefix_restore(a, t, 20);
    assert_true(n == 7 || n == 0);
    if (n)
        verify(a, t, 7);
    verify(b, u, 8);
    hx_kv_seq_free(a);
    hx_kv_seq_free(b);
    assert_int_equal(hx_kv_blocks_free(f.pool), 4);
    close_pool(&f);
}

/* ---- failures of the device ---- */

static int fail_after, n_allocs;
static int failing_alloc(struct hx_device *dev, enum hx_mem mem, size_t size,
                         struct hx_buffer **out, struct hx_error *err)
{
    if (n_allocs++ >= fail_after)
        return hx_fail(err, -ENOMEM, "no memory on this device");
    return hx_backend_select("cpu", NULL)->alloc(dev, mem, size, out, err);
}

static int failing_copy(struct hx_device *dev, void *dst, const void *src, size_t size,
                        struct hx_error *err)
{
    (void)dev, (void)dst, (void)src, (void)size;
    return hx_fail(err, -EIO, "copy refused");
}

static void test_device_failures(void **state)
{
    (void)state;
    struct fixture f;
    struct hx_error err = {0};
    open_pool(&f, 4, 2, 2);
    struct hx_backend be = *f.be;
    struct hx_kv_options opt = {.block_tok = BLOCK, .ring_tok = RING, .n_blocks = 4, .n_seqs = 1};
    be.alloc = failing_alloc;
    for (fail_after = 0; fail_after < 2; fail_after++) {
        struct hx_kv_pool *p = NULL;
        n_allocs = 0;
        assert_int_equal(hx_kv_pool_open(&f.hp, &f.maps, &be, f.dev, &opt, &p, &err), -ENOMEM);
        assert_null(p);
        assert_non_null(strstr(err.text, "kv pool: no memory"));
    }
    opt.n_blocks = 0;
    struct hx_kv_pool *p = NULL;
    assert_int_equal(hx_kv_pool_open(&f.hp, &f.maps, &be, f.dev, &opt, &p, &err), -EINVAL);
    close_pool(&f);

    /* A copy that fails: no fork, no snapshot, nothing lost. */
    open_pool(&f, 8, 3, 2);
    hx_kv_pool_close(f.pool);
    be = *f.be;
    be.copy = failing_copy;
    opt = (struct hx_kv_options){
        .block_tok = BLOCK, .ring_tok = RING, .n_blocks = 8, .n_seqs = 3, .n_snapshots = 2};
    CHECK(hx_kv_pool_open(&f.hp, &f.maps, &be, f.dev, &opt, &f.pool, ERR));
    int32_t t[64];
    make_tokens(t, 64, 0);
    struct hx_kv_seq *a = seq_new(&f), *b = NULL;
    fill(a, t, 6);
    assert_int_equal(hx_kv_seq_fork(a, &b, &err), -EIO);
    assert_null(b);
    hx_kv_prefix_publish(a);
    b = seq_new(&f);
    assert_int_equal(hx_kv_prefix_restore(b, t, 12), 0);
    verify(a, t, 6);
    assert_int_equal(hx_kv_blocks_free(f.pool), 6);
    close_pool(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_sizes),
        cmocka_unit_test(test_bad_geometry),
        cmocka_unit_test(test_reserve_commit),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_fork_is_independent),
        cmocka_unit_test(test_truncate_into_shared_block),
        cmocka_unit_test(test_restore_at_every_cut),
        cmocka_unit_test(test_match_by_tokens),
        cmocka_unit_test(test_dead_rows_do_not_match),
        cmocka_unit_test(test_eviction_is_lru),
        cmocka_unit_test(test_snapshots_give_way),
        cmocka_unit_test(test_restore_in_a_full_pool),
        cmocka_unit_test(test_device_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
