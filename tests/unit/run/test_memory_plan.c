/* The memory plan against what is really allocated, byte for byte, and the released shape on the
 * cards it is meant for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "../model/released.h"
#include "comm/comm.h"
#include "model/forward.h"
#include "run/memory_plan.h"

#define GIB ((int64_t)1 << 30)

/* ---- a device that counts ---- */

static size_t counted[HX_MEM_MAX];
static const struct hx_backend *cpu;

static int count(struct hx_device *dev, enum hx_mem mem, size_t size, struct hx_buffer **out,
                 struct hx_error *err)
{
    counted[mem] += size;
    return cpu->alloc(dev, mem, size, out, err);
}

static int64_t take(enum hx_mem mem)
{
    size_t n = counted[mem];
    counted[mem] = 0;
    return (int64_t)n;
}

static const struct hx_memory_wish small = {.max_tok = 40,
                                            .max_seq = 3,
                                            .drafts = true,
                                            .kv = {.n_blocks = 9, .n_seqs = 3, .n_snapshots = 2}};

/* Opens rank r of n as hx_rank_open does. */
static void check_rank(const char *dir, const struct hx_synthetic *syn,
                       const struct hx_placement *place, int r, int n)
{
    struct hx_device *dev;
    struct hx_model *m;
    struct hx_forward *f;
    struct hx_kv_pool *kv;
    struct hx_comm *comm = NULL;
    struct hx_memory_plan plan;
    struct hx_error err = {0};
    const struct hx_comm_link link = {.fixed_us = 0};
    struct hx_backend be = *cpu;
    be.alloc = count;
    assert_int_equal(be.open(0, &dev, &err), 0);
    const struct hx_model_options o = {
        .backend = &be, .dev = dev, .slice = {r, n}, .synthetic = syn};
    if (hx_model_open(dir, &o, &m, &err) < 0)
        fail_msg("%s", err.text);
    const struct hx_hparams *hp = hx_model_hparams(m);
    const struct hx_maps *maps = hx_model_maps(m);
    if (hx_memory_plan(hp, maps, place, &small, &plan, &err) < 0)
        fail_msg("%s", err.text);
    const int64_t *b = plan.bytes[r];
    assert_int_equal(take(HX_MEM_DEVICE),
                     b[HX_MEMORY_DENSE] + b[HX_MEMORY_EXPERTS] + b[HX_MEMORY_DRAFTER]);
    if (n > 1)
        assert_int_equal(hx_comm_delay_open(r, n, &link, &comm, &err), 0);
    assert_int_equal(hx_forward_open(m, &be, dev, comm, HX_MODE_W8A16, small.max_tok, small.max_seq,
                                     small.drafts, &f, &err),
                     0);
    assert_int_equal(take(HX_MEM_DEVICE), b[HX_MEMORY_WORK]);
    assert_int_equal(take(HX_MEM_PINNED) * plan.n_ranks, plan.host[HX_MEMORY_ARRAYS]);
    assert_int_equal(hx_kv_pool_open(hp, maps, &be, dev, &small.kv, &kv, &err), 0);
    assert_int_equal(take(HX_MEM_DEVICE),
                     b[HX_MEMORY_KV_POOL] + b[HX_MEMORY_KV_RINGS] + b[HX_MEMORY_KV_VIEWS]);
    assert_int_equal(plan.total[r], b[HX_MEMORY_DENSE] + b[HX_MEMORY_EXPERTS] +
                                        b[HX_MEMORY_DRAFTER] + b[HX_MEMORY_WORK] +
                                        b[HX_MEMORY_KV_POOL] + b[HX_MEMORY_KV_RINGS] +
                                        b[HX_MEMORY_KV_VIEWS]);
    hx_kv_pool_close(kv);
    hx_forward_close(f);
    hx_comm_close(comm);
    hx_model_close(m);
    be.close(dev);
}

static void test_to_the_byte(void **state)
{
    static const struct {
        enum hx_layout layout;
        int n;
    } rows[] = {{HX_LAYOUT_CPU, 1}, {HX_LAYOUT_TP2, 2}, {HX_LAYOUT_TP4, 4}};
    struct hx_hparams h;
    struct hx_maps maps;
    struct hx_placement p;
    struct hx_error err;
    uint8_t bits[HX_MAX_LAYERS];
    (void)state;
    cpu = hx_backend_select("cpu", NULL);
    assert_int_equal(hx_hparams_load("tests/vectors/model", &h, &err), 0);
    assert_int_equal(hx_maps_derive(&h, &maps, &err), 0);
    memset(bits, 3, sizeof(bits));
    bits[4] = 2;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(hx_place_folder("tests/vectors/model", rows[i].layout, &p, &err), 0);
        for (int r = 0; r < rows[i].n; r++)
            check_rank("tests/vectors/model", NULL, &p, r, rows[i].n);
    }
    /* Unequal shares: 5 blocks. */
    h.n_ff = 640;
    const struct hx_synthetic syn = {.hp = &h, .bits = bits};
    assert_int_equal(hx_place_config(&h, &maps, bits, HX_LAYOUT_TP4, &p, &err), 0);
    for (int r = 0; r < 4; r++)
        check_rank(NULL, &syn, &p, r, 4);
}

/* ---- the released shape ---- */

static struct hx_hparams hp;
static struct hx_maps maps;

static struct hx_placement place(enum hx_layout layout, int bits)
{
    struct hx_placement p;
    struct hx_error err;
    uint8_t form[40];
    hp = released();
    hp.window = 128;
    hp.draft_block = 5;
    memset(form, bits, sizeof(form));
    if (hx_maps_derive(&hp, &maps, &err) < 0 ||
        hx_place_config(&hp, &maps, bits ? form : NULL, layout, &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* Eight sequences of 262,144 tokens, chunks of 2,048, five drafts; one card of 64 GiB. */
static struct hx_memory_wish card(void)
{
    return (struct hx_memory_wish){.max_tok = 2048 + 8 * 6,
                                   .max_seq = 8,
                                   .drafts = true,
                                   .kv = {.n_seqs = 8, .n_snapshots = 32},
                                   .max_tokens = (int64_t)1 << 40,
                                   .device_bytes = 64 * GIB,
                                   .kernel_bytes = (int64_t)256 << 20,
                                   .graph_bytes = GIB,
                                   .cache_bytes = 4 * GIB};
}

static void test_released_on_four_cards(void **state)
{
    struct hx_placement p = place(HX_LAYOUT_TP4, 3);
    struct hx_memory_wish w = card();
    struct hx_memory_plan plan;
    struct hx_error err;
    (void)state;
    if (hx_memory_plan(&hp, &maps, &p, &w, &plan, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(plan.n_ranks, 4);
    for (int r = 0; r < 4; r++) {
        const int64_t *b = plan.bytes[r];
        /* spec performance.md 2.2: 51.1 GB. A quarter of the trellises; the vectors of the cut side
         * are cut too, those of the other side every rank has. Shares turn over four experts, so
         * every rank has the same. */
        int64_t trellis = (int64_t)40 * 384 * 3 * 5120 * 2304 * 3 / 8 / 4;
        int64_t vectors = (int64_t)40 * 384 * (2 * (5120 + 2304 / 4) + 2304 / 4 + 5120) * 2;
        assert_int_equal(b[HX_MEMORY_EXPERTS], trellis + vectors);
        assert_in_range(b[HX_MEMORY_EXPERTS], 50900000000, 51700000000);
        /* spec model.md 8.1: attention 1.54, shared .35, head .33, embedding 1.32 (whole), Engram
         * .32, mHC, router, indexer, compressor .40 */
        assert_in_range(b[HX_MEMORY_DENSE], 4250000000, 4290000000);
        assert_in_range(b[HX_MEMORY_DRAFTER], 2000000000, 2300000000); /* 2.2 */
        assert_int_equal(b[HX_MEMORY_GRAPHS], GIB);
        assert_true(plan.total[r] <= w.device_bytes);
        /* One block more would not fit. */
        assert_true(plan.total[r] + plan.kv_block + 64 * 8 > w.device_bytes);
    }
    /* 890 bytes a token, parts of a block aligned. spec performance.md 2.2: 9.4 million tokens,
     * with the vision tower (0.97 GB, 1.1 million tokens), which is not loaded yet, and 3 GB for
     * context, work buffers and graphs. */
    assert_in_range(plan.kv_block, 64 * 890, 64 * 890 + 8 * 255);
    print_message("released, TP4, 3 bits: %lld tokens of KV state, %lld bytes of rank 0\n",
                  (long long)plan.kv_tokens, (long long)plan.total[0]);
    assert_in_range(plan.kv_tokens, 9400000, 9400000 + 1100000);
    assert_int_equal(plan.host[HX_MEMORY_ENGRAM_SCALES], (384006168LL + 384016682) * 8);
    assert_int_equal(plan.host[HX_MEMORY_ENGRAM_CACHE], 4 * GIB);
}

/* Every form and number of cards: what fits is what performance.md says fits. */
static void test_released_that_does_not_fit(void **state)
{
    static const struct {
        enum hx_layout layout;
        int bits;
        bool fits;
    } rows[] = {
        {HX_LAYOUT_TP4, 2, true},  {HX_LAYOUT_TP4, 3, true},  {HX_LAYOUT_TP4, 4, false},
        {HX_LAYOUT_TP4, 0, false}, {HX_LAYOUT_TP2, 3, false},
    };
    struct hx_memory_wish w = card();
    struct hx_memory_plan plan;
    struct hx_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_placement p = place(rows[i].layout, rows[i].bits);
        int r = hx_memory_plan(&hp, &maps, &p, &w, &plan, &err);
        if ((r == 0) != rows[i].fits)
            fail_msg("row %zu: %s", i, r < 0 ? err.text : "fits");
        assert_true(r == 0 || r == -ENOMEM);
        assert_true(r == 0 || strstr(err.text, "its device has 65536: weights "));
        assert_true(r == 0 || (plan.total[0] > w.device_bytes && plan.n_blocks == 8));
    }
}

static void test_pools(void **state)
{
    struct hx_placement p = place(HX_LAYOUT_TP4, 3);
    struct hx_memory_wish w = card();
    struct hx_memory_plan plan, whole;
    struct hx_error err;
    (void)state;
    /* No more than the sequences can use. */
    w.max_tokens = 8 * 262144;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), 0);
    assert_int_equal(plan.kv_tokens, 8 * 262144);
    w.device_bytes = 0;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &whole, &err), 0);
    assert_memory_equal(&whole, &plan, sizeof(plan));
    /* A pool that was asked for and is too big by a little. */
    w = card();
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), 0);
    w.kv.n_blocks = plan.n_blocks;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), 0);
    w.kv.n_blocks++;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "lower kv_tokens"));
    /* The host. */
    w = card();
    w.host_bytes = 8 * GIB;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "the host needs "));
    w.cache_bytes = GIB;
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), 0);
    p = place(HX_LAYOUT_PP4, 3);
    assert_int_equal(hx_memory_plan(&hp, &maps, &p, &w, &plan, &err), -ENOTSUP);
}

static void test_free_memory(void **state)
{
    uint64_t bytes = 0;
    bool card = true;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_memory_free("cpu", &bytes, &card, &err), 0);
    assert_false(card);
    assert_int_equal(bytes > 0, hx_memory_available() > 0);
    assert_int_equal(hx_memory_free("abacus", &bytes, &card, &err), -ENODEV);
    assert_non_null(strstr(err.text, "abacus"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_the_byte),
        cmocka_unit_test(test_released_on_four_cards),
        cmocka_unit_test(test_released_that_does_not_fit),
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_free_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
