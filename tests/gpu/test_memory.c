/* The memory plan against what a card's memory really loses, part by part, and what does not fit
 * refused with numbers before anything is loaded. Reads the model in "model" (make gpu-kit puts it
 * there). */
#include "gpu.h"

#include <errno.h>

#include <cuda_runtime_api.h>

#include "comm/comm.h"
#include "model/forward.h"
#include "run/memory_plan.h"
#include "run/rank.h"

#include <hx/engine.h>

#define MIB ((int64_t)1 << 20)

/* The driver gives memory in pieces of 2 MiB. */
#define PIECE (2 * MIB)

static int64_t left(void)
{
    size_t avail = 0, total = 0;
    if (cudaMemGetInfo(&avail, &total) != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(cudaGetLastError()));
    return (int64_t)avail;
}

/* A stage took `planned` bytes in n allocations: that much, and a piece more for each at most. */
static void took(const char *what, int64_t before, int64_t planned, int n)
{
    int64_t real = before - left();
    print_message("  %-14s planned %12lld, taken %12lld\n", what, (long long)planned,
                  (long long)real);
    if (real < planned - n * PIECE || real > planned + n * PIECE)
        fail_msg("%s: planned %lld bytes, taken %lld", what, (long long)planned, (long long)real);
}

/* ---- part by part ---- */

static struct hx_hparams shape;

/* The released widths with fewer layers and experts: some GB. */
static void make_shape(void)
{
    hx_hparams_released(&shape);
    shape.n_expert = 64;
    shape.n_vocab = 8192;
}

static void test_parts(void **state)
{
    (void)state;
    struct hx_maps maps;
    struct hx_placement place;
    struct hx_memory_plan plan;
    struct hx_device *dev;
    struct hx_model *m;
    struct hx_forward *f;
    struct hx_kv_pool *kv;
    struct hx_comm *comm = NULL;
    const struct hx_comm_link link = {.fixed_us = 0};
    uint8_t bits[HX_MAX_LAYERS];
    memset(bits, 3, sizeof(bits));
    make_shape();
    CHECK(hx_maps_derive(&shape, &maps, ERR));
    CHECK(hx_place_config(&shape, &maps, bits, HX_LAYOUT_TP4, &place, ERR));
    const struct hx_memory_wish wish = {.max_tok = 512,
                                        .max_seq = 4,
                                        .drafts = true,
                                        .kv = {.n_blocks = 20000, .n_seqs = 4, .n_snapshots = 8},
                                        .kernel_bytes = (int64_t)HX_CUDA_SCRATCH};
    CHECK(hx_memory_plan(&shape, &maps, &place, &wish, &plan, ERR));
    const int64_t *b = plan.bytes[0];
    const struct hx_backend *be = hx_backend_select("cuda", NULL);
    assert_non_null(be);
    cudaFree(0); /* the driver's own, at the first call */
    int64_t start = left(), before = start;
    CHECK(be->open(0, &dev, ERR));
    took("kernels", before, b[HX_MEMORY_KERNELS], 4);
    const struct hx_synthetic syn = {.hp = &shape, .bits = bits, .seed = 1};
    const struct hx_model_options o = {
        .backend = be, .dev = dev, .slice = {0, 4}, .synthetic = &syn};
    before = left();
    CHECK(hx_model_open(NULL, &o, &m, ERR));
    took("weights", before, b[HX_MEMORY_DENSE] + b[HX_MEMORY_EXPERTS] + b[HX_MEMORY_DRAFTER], 1);
    CHECK(hx_comm_delay_open(0, 4, &link, &comm, ERR));
    before = left();
    CHECK(hx_forward_open(m, be, dev, comm, HX_MODE_W8A16, wish.max_tok, wish.max_seq, true, &f,
                          ERR));
    took("work buffers", before, b[HX_MEMORY_WORK], 8);
    before = left();
    CHECK(hx_kv_pool_open(&shape, &maps, be, dev, &wish.kv, &kv, ERR));
    took("KV state", before, b[HX_MEMORY_KV_POOL] + b[HX_MEMORY_KV_RINGS] + b[HX_MEMORY_KV_VIEWS],
         8);
    print_message("  whole: planned %lld, taken %lld\n", (long long)plan.total[0],
                  (long long)(start - left()));
    hx_kv_pool_close(kv);
    hx_forward_close(f);
    hx_comm_close(comm);
    hx_model_close(m);
    be->close(dev);
    if (start - left() > PIECE)
        fail_msg("%lld bytes were not given back", (long long)(start - left()));
}

/* Recorded graphs, tables of experts and what the driver loads for kernels stay in what is kept
 * free for them. */
static void test_graphs(void **state)
{
    (void)state;
    enum { N = 40 };
    struct hx_rank_options o = {
        .model_dir = "model",
        .backend = "cuda",
        .max_tok = 64,
        .max_seq = 1,
        .drafts = true,
        .kv = {.block_tok = 16, .n_blocks = 64, .n_seqs = 1},
    };
    struct hx_rank *r = NULL;
    struct hx_kv_seq *s = NULL;
    int32_t t[N] = {3}, drafts[16];
    float z[16];
    CHECK(hx_rank_open(&o, &r, ERR));
    int n_vocab = hx_rank_hparams(r)->n_vocab;
    float *logits = malloc(N * (size_t)n_vocab * 4);
    assert_non_null(logits);
    int64_t before = left();
    for (int i = 1; i < N; i++)
        t[i] = 3 + i * 7 % 400;
    /* Every count of rows up to 32, twice: each is recorded. */
    for (int i = 0; i < 64; i++) {
        CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
        struct hx_step_seq q = {.kv = s, .tokens = t, .n_tok = 1 + i / 2, .n_logits = 1 + i / 2};
        CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
        CHECK(hx_rank_draft(r, &s, t, 1, drafts, z, NULL, NULL, ERR));
        hx_kv_seq_free(s);
    }
    print_message("  graphs of 32 counts of rows: %lld MiB of %lld kept free\n",
                  (long long)((before - left()) / MIB), (long long)(HX_CARD_RESERVE / MIB));
    assert_true(before - left() <= HX_CARD_RESERVE);
    free(logits);
    hx_rank_close(r);
}

/* ---- what does not fit ---- */

static int open_engine(int64_t kv_tokens, int chunk, struct hx_error *err)
{
    const struct hx_engine_options o = {.model_dir = "model",
                                        .backend = "cuda",
                                        .max_sequences = 64,
                                        .max_context = 16384,
                                        .kv_tokens = kv_tokens,
                                        .prefill_chunk = chunk,
                                        .queue = 4};
    struct hx_engine *e = NULL;
    int r = hx_engine_open(&o, &e, err);
    hx_engine_close(r == 0 ? e : NULL);
    return r;
}

/* The card filled but for `bytes`, in plain pieces. */
static void *fill_but(int64_t bytes)
{
    void *p = NULL;
    int64_t n = left() - bytes;
    assert_true(n > 0);
    if (cudaMalloc(&p, (size_t)n) != cudaSuccess)
        fail_msg("cannot fill the card: %s", cudaGetErrorString(cudaGetLastError()));
    return p;
}

static void test_refusals(void **state)
{
    (void)state;
    struct hx_error err = {0};
    CHECK(open_engine(0, 64, ERR));
    CHECK(open_engine(64 * 16384, 64, ERR));
    int64_t whole = left();
    /* A pool larger than the card. */
    assert_int_equal(open_engine(INT32_MAX, 64, &err), -ENOMEM);
    print_message("  %s\n", err.text);
    assert_non_null(strstr(err.text, "lower kv_tokens"));
    /* A card on which others sit: work buffers alone are too much, then the pool that is asked for;
     * one of our choice shrinks. */
    void *others = fill_but(HX_CARD_RESERVE + 320 * MIB);
    assert_int_equal(open_engine(0, 65536, &err), -ENOMEM);
    print_message("  %s\n", err.text);
    assert_non_null(strstr(err.text, "its device has 13"));
    assert_non_null(strstr(err.text, "work buffers "));
    assert_int_equal(open_engine(64 * 16384, 64, &err), -ENOMEM);
    print_message("  %s\n", err.text);
    assert_non_null(strstr(err.text, "for 1048576 tokens; lower kv_tokens"));
    CHECK(open_engine(0, 64, ERR));
    cudaFree(others);
    CHECK(open_engine(64 * 16384, 64, ERR));
    assert_true(whole - left() <= PIECE); /* what was refused took nothing */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_refusals),
    };
    return run_group("memory", tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL, argc, argv);
}
