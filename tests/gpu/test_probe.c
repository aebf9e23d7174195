/* The probe on a real GPU, of any kind. Sound first; then each fault that it exists for is planted
 * and has to be called by its right name, while what is not at fault stays right.
 *
 * Pair tests run between streams and buffers of one card, through the same code and the same
 * supervisor as between cards. An argument picks tests by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "base/buf.h"
#include "check.h"
#include "kernels/kernels.h"
#include "probe/cuda.h"
#include "probe/supervise.h"

#define GIB           ((uint64_t)1 << 30)
#define WORDS_PER_GIB (GIB / 8)
#define MEMORY_BYTES  (4 * GIB)

struct fixture {
    struct hx_probe_shared *sh;
    struct hx_probe_options options;
    struct hx_probe_plant plant;
    struct hx_probe_run run;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f || hx_probe_shared_new(&f->sh, NULL) != 0)
        return -1;
    f->options = (struct hx_probe_options){.one_device = true,
                                           .n_ranks = 2,
                                           .memory_bytes = MEMORY_BYTES,
                                           .flags_limit_ms = 1000,
                                           .collective_limit_ms = 1000};
    f->run = (struct hx_probe_run){.options = &f->options, .plant = &f->plant, .grace_ms = 2000};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    hx_probe_shared_free(f->sh);
    free(f);
    return 0;
}

static const struct hx_probe_step *find(const char *name)
{
    for (size_t i = 0; i < hx_probe_n_steps; i++) {
        if (strcmp(hx_probe_steps[i].name, name) == 0)
            return &hx_probe_steps[i];
    }
    fail_msg("no step is called %s", name);
    return NULL;
}

/* The named steps on one card, as if those before them had found nothing wrong. */
static void run(struct fixture *f, const char *const *names, size_t n)
{
    struct hx_probe_p2p *p = &f->sh->result.p2p;
    f->sh->result.n_devices = 1;
    f->sh->result.device[0].context = HX_PROBE_CONTEXT_OK;
    p->offered = p->run = true;
    p->n_ranks = f->options.n_ranks;
    if (p->copy.outcome == HX_PROBE_NOT_RUN)
        p->copy.outcome = p->store.outcome = HX_PROBE_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], "content") == 0)
            p->copy.outcome = p->store.outcome = HX_PROBE_NOT_RUN;
        assert_int_equal(hx_probe_run_step(&f->run, f->sh, find(names[i]), NULL), 0);
    }
}

#define RUN(f, ...)                                                                                \
    do {                                                                                           \
        const char *const names[] = {__VA_ARGS__};                                                 \
        run(f, names, sizeof(names) / sizeof(names[0]));                                           \
    } while (0)

static void assert_calm(const struct fixture *f)
{
    if (f->run.n_bad || f->run.n_limits)
        fail_msg("%s", f->run.last_error);
}

/* What the judge says to the document of this run: a check's verdict, and its short value. */
static void assert_judged(const struct fixture *f, const char *id, enum hx_verdict verdict,
                          const char *value)
{
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    struct hx_facts *facts = calloc(1, sizeof(*facts));
    struct hx_finding finding = {.verdict = HX_SKIP};
    struct hx_error err = {0};
    assert_non_null(facts);
    assert_int_equal(hx_probe_result_write(&f->sh->result, &out, &err), 0);
    if (hx_measured_parse((const char *)out.data, out.len, "probe", &facts->probe, &err) != 0)
        fail_msg("%s", err.text);
    facts->measured = true;
    const enum hx_verdict found = hx_check_find(id)->run(facts, &finding);
    if (found != verdict || (value && strcmp(finding.value, value) != 0))
        fail_msg("%s is %s '%s' (%s)", id, hx_verdict_name(found), finding.value, finding.detail);
    hx_buf_done(&out);
    free(facts);
}

/* --- one card, sound ------------------------------------------------------------------------ */

static void context_and_rates(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_device *d = &f->sh->result.device[0];
    RUN(f, "enumerate");
    if (f->sh->result.n_devices == 0)
        fail_msg("no GPU: %s", f->run.last_error);
    RUN(f, "context", "rates", "link");
    assert_calm(f);
    assert_int_equal(d->context, HX_PROBE_CONTEXT_OK);
    assert_true(d->sm_count > 0 && d->cc_major >= 8 && d->total_mib > 1000);
    print_message(
        "# %d SMs, FMA %.1f and bf16 %.0f TFLOPS, mma %.1f cycles, read %.0f and copy %.0f GB/s, "
        "up %.1f and down %.1f GB/s\n",
        d->sm_count, d->fp32_fma_tflops, d->bf16_tflops, d->mma_cycles, d->hbm_read_gbps,
        d->hbm_copy_gbps, d->h2d_gbps, d->d2h_gbps);
    /* No SM has more than 128 float32 lanes or runs above 3 GHz; a card that is not throttled
     * reaches a tenth of that. */
    const double most = d->sm_count * 128 * 2 * 3e9 * 1e-12;
    assert_true(d->fp32_fma_tflops < most && d->fp32_fma_tflops > 0.1 * most);
    assert_true(d->bf16_tflops > 2 * d->fp32_fma_tflops);
    assert_true(d->mma_cycles > 8 && d->mma_cycles < 100);
    assert_true(d->hbm_read_gbps > 0.7 * d->hbm_copy_gbps &&
                d->hbm_read_gbps < 2 * d->hbm_copy_gbps);
    assert_true(d->h2d_gbps > 0.1 && d->d2h_gbps > 0.1 && d->h2d_gbps < d->hbm_copy_gbps);
}

static float widen(uint16_t v)
{
    const uint32_t bits = (uint32_t)v << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The product is what it should be, so its rate is a rate of real work. Runs in a process of its
 * own card context: the last test that uses CUDA here without a child. */
static void product_is_right(void **state)
{
    (void)state;
    enum { N = 512 };
    uint16_t *host[3];
    void *card[3];
    for (int i = 0; i < 3; i++) {
        host[i] = malloc(N * N * 2);
        assert_non_null(host[i]);
        assert_int_equal(cudaMalloc(&card[i], N * N * 2), cudaSuccess);
        assert_int_equal(cudaMemset(card[i], 0xff, N * N * 2), cudaSuccess);
    }
    assert_int_equal(hx_k_fill_bf16(card[0], N * N, 5, NULL), cudaSuccess);
    assert_int_equal(hx_k_fill_bf16(card[1], N * N, 6, NULL), cudaSuccess);
    assert_int_equal(hx_k_gemm(card[0], card[1], card[2], N, N, NULL), cudaSuccess);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaMemcpy(host[i], card[i], N * N * 2, cudaMemcpyDeviceToHost),
                         cudaSuccess);
    double error = 0, norm = 0;
    for (int row = 0; row < N; row++) {
        for (int col = 0; col < N; col++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += (double)widen(host[0][row * N + k]) * (double)widen(host[1][col * N + k]);
            const double got = widen(host[2][row * N + col]);
            assert_true(isfinite(got));
            error += (got - sum) * (got - sum);
            norm += sum * sum;
        }
    }
    print_message("# relative error %.2e\n", sqrt(error / norm));
    assert_true(norm > 1000 && sqrt(error / norm) < 4e-3); /* one rounding to bf16 */
    for (int i = 0; i < 3; i++) {
        free(host[i]);
        cudaFree(card[i]);
    }
}

static void memory_is_sound(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_device *d = &f->sh->result.device[0];
    f->options.pattern_s = 4;
    RUN(f, "alias", "pattern");
    assert_calm(f);
    assert_int_equal(d->alias.outcome, HX_PROBE_OK);
    assert_int_equal(d->alias.mismatches, 0);
    assert_int_equal(d->alias.words_checked, MEMORY_BYTES / 8);
    assert_int_equal(d->pattern.outcome, HX_PROBE_OK);
    assert_int_equal(d->pattern.mismatches, 0);
    assert_true(d->pattern.seconds >= 4 && d->pattern.seconds < 20);
    assert_int_equal(f->sh->result.control.detected_words, 512);
    /* 4 GiB without a fault are no proof for the rest of the card, and the judge says so. */
    assert_judged(f, "MEM-04", HX_FAIL, "coverage");
}

/* --- one card, memory at fault -------------------------------------------------------------- */

/* All of the upper two GiB lie on the lower two, as on a card with half its ranks. */
static void whole_fold(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_alias *a = &f->sh->result.device[0].alias;
    const struct hx_mem_map fold = {2 * WORDS_PER_GIB, 4 * WORDS_PER_GIB, 2 * WORDS_PER_GIB, 0, 0};
    f->plant.fold = &fold;
    RUN(f, "alias");
    assert_calm(f);
    assert_int_equal(a->outcome, HX_PROBE_MISMATCH);
    assert_true(a->is_alias);
    assert_int_equal(a->first_low, 0);
    assert_int_equal(a->first_high - a->first_low, 2 * GIB);
    assert_int_equal(a->mismatches, 2 * WORDS_PER_GIB);
    assert_judged(f, "MEM-03", HX_FAIL, NULL);
}

/* Only granules of 256 bytes fold, one in each 2 MiB and never the first: whoever looks at one word
 * in 2 MiB sees nothing. */
static void dense_fold(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_alias *a = &f->sh->result.device[0].alias;
    const uint64_t granule = 256 / 8, per_block = ((uint64_t)2 << 20) / 256;
    const uint64_t from = 2 * WORDS_PER_GIB + 5 * granule;
    const struct hx_mem_map fold = {from, 4 * WORDS_PER_GIB, 2 * WORDS_PER_GIB, granule,
                                    (uint32_t)per_block};
    f->plant.fold = &fold;
    RUN(f, "alias");
    assert_calm(f);
    assert_int_equal(a->outcome, HX_PROBE_MISMATCH);
    assert_true(a->is_alias);
    assert_int_equal(a->first_low, 5 * 256);
    assert_int_equal(a->first_high - a->first_low, 2 * GIB);
    assert_int_equal(a->mismatches, 1024 * granule); /* 2 GiB are 1024 blocks */
    for (uint64_t block = 0; block < 2048; block++) {
        const uint64_t word = block * per_block * granule;
        const bool folds = word >= from && (word - from) / granule % per_block == 0;
        assert_false(folds);
    }
    assert_judged(f, "MEM-03", HX_FAIL, NULL);
}

struct spoil {
    size_t segment, at, bytes; /* place */
    uint8_t flip;              /* xor of the first byte, or 0: zeros */
};

static void spoil_memory(void *ctx, void *const *segments, size_t n)
{
    const struct spoil *s = ctx;
    if (s->segment >= n)
        return;
    uint8_t *p = (uint8_t *)segments[s->segment] + s->at;
    if (s->flip) {
        uint8_t v = 0;
        (void)cudaMemcpy(&v, p, 1, cudaMemcpyDeviceToHost);
        v ^= s->flip;
        (void)cudaMemcpy(p, &v, 1, cudaMemcpyHostToDevice);
    } else {
        (void)cudaMemset(p, 0, s->bytes);
    }
}

static void bad_bit(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_device *d = &f->sh->result.device[0];
    struct spoil spoil = {37, 0x123458, 1, 0x10};
    f->plant.ctx = &spoil;
    f->plant.memory = spoil_memory;
    RUN(f, "alias", "pattern");
    assert_calm(f);
    assert_int_equal(d->alias.outcome, HX_PROBE_MISMATCH);
    assert_int_equal(d->alias.mismatches, 1);
    assert_false(d->alias.is_alias);
    assert_int_equal(d->alias.first_low, 37 * HX_SEGMENT_BYTES + 0x123458);
    assert_int_equal(d->pattern.outcome, HX_PROBE_MISMATCH);
    assert_int_equal(d->pattern.mismatches, 6); /* once in each pattern */
    assert_int_equal(d->pattern.burst_bytes, 8);
    assert_true(d->pattern.bit_flips);
    assert_int_equal(d->pattern.bad_blocks, 1);
    assert_int_equal(d->pattern.blocks, 2048);
    assert_judged(f, "MEM-03", HX_FAIL, NULL);
    assert_judged(f, "MEM-04", HX_FAIL, NULL);
}

static void bad_burst(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_pattern *p = &f->sh->result.device[0].pattern;
    struct spoil spoil = {11, 0x200000 - 128, 128, 0};
    f->plant.ctx = &spoil;
    f->plant.memory = spoil_memory;
    RUN(f, "pattern");
    assert_calm(f);
    assert_int_equal(p->outcome, HX_PROBE_MISMATCH);
    assert_int_equal(p->mismatches, 5 * 16); /* zeros are right in one of the six */
    assert_int_equal(p->burst_bytes, 128);
    assert_false(p->bit_flips);
    assert_int_equal(p->bad_blocks, 1);
}

static void block_memory(void *ctx, void *const *segments, size_t n)
{
    (void)ctx, (void)segments, (void)n;
    for (;;)
        pause();
}

/* A call that never returns, in the middle of a test: named, and the next step runs. */
static void stuck_test_ends(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_device *d = &f->sh->result.device[0];
    struct hx_probe_step step = *find("alias");
    step.limit_s = 8;
    f->plant.memory = block_memory;
    RUN(f, "link");
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, &step, NULL), 0);
    assert_int_equal(f->run.n_limits, 1);
    assert_false(f->run.any_stuck);
    assert_int_equal(d->alias.outcome, HX_PROBE_FAULT);
    f->plant.memory = NULL;
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, find("alias"), NULL), 0);
    assert_true(d->h2d_gbps > 0);
}

/* --- pairs, sound --------------------------------------------------------------------------- */

static void peers_are_sound(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    f->options.n_ranks = 3;
    f->options.full = true;
    RUN(f, "access", "staged", "content", "ipc", "flags", "peer", "allpairs");
    assert_calm(f);
    assert_string_equal(p->enable, "ok");
    assert_int_equal(p->copy.outcome, HX_PROBE_OK);
    assert_int_equal(p->store.outcome, HX_PROBE_OK);
    assert_int_equal(p->load.outcome, HX_PROBE_OK);
    assert_int_equal(p->ipc.outcome, HX_PROBE_OK);
    assert_int_equal(p->copy.pairs, 6);
    assert_int_equal(p->copy.n_sizes, 9);
    assert_int_equal(p->flags.outcome, HX_PROBE_OK);
    assert_int_equal(p->flags.turns, 1000);
    assert_int_equal(p->allpairs.outcome, HX_PROBE_OK);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            if (i == j)
                continue;
            assert_true(p->staged_gbps[i][j] > 0.1);
            assert_true(p->peer_gbps[i][j] > p->staged_gbps[i][j]);
            assert_true(p->bidir_gbps[i][j] > 0 && p->latency_us[i][j] > 0);
        }
    }
    print_message(
        "# staged %.1f, peer %.0f, both %.0f GB/s, store %.2f us, turn %.2f us, ring %.0f GB/s\n",
        p->staged_gbps[0][1], p->peer_gbps[0][1], p->bidir_gbps[0][1], p->latency_us[0][1],
        p->flags.us, p->allpairs.ring_gbps);
    static const char *const passed[] = {"P2P-01", "P2P-03", "P2P-04", "P2P-05", "P2P-06",
                                         "P2P-07", "P2P-08", "P2P-09", "P2P-13"};
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        assert_judged(f, passed[i], HX_PASS, NULL);
}

static void sums_are_exact(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_result *r = &f->sh->result;
    static const int ranks[] = {3, 4, 8};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        f->options.n_ranks = ranks[i];
        RUN(f, "reduce-peer", "reduce-host");
        assert_calm(f);
        assert_int_equal(r->collectives.ranks, ranks[i]);
        assert_int_equal(r->collectives.p2p.outcome, HX_PROBE_OK);
        assert_true(r->collectives.p2p.exact);
        assert_int_equal(r->collectives.own_host.outcome, HX_PROBE_OK);
        assert_true(r->collectives.own_host.exact);
        assert_judged(f, "COL-01", HX_PASS, "exact");
        print_message(
            "# %d ranks: peer %.1f %.1f %.1f us, %.1f GB/s; host %.1f %.1f %.1f us, %.1f GB/s\n",
            ranks[i], r->collectives.p2p.us[0], r->collectives.p2p.us[1], r->collectives.p2p.us[2],
            r->collectives.p2p.busbw_gbps, r->collectives.own_host.us[0],
            r->collectives.own_host.us[1], r->collectives.own_host.us[2],
            r->collectives.own_host.busbw_gbps);
    }
}

static void abnormal_exit_leaves_peers_right(void **state)
{
    struct fixture *f = *state;
    f->options.full = true;
    RUN(f, "abnormal");
    assert_calm(f);
    assert_int_equal(f->sh->result.p2p.after_abnormal_exit.outcome, HX_PROBE_OK);
    assert_int_equal(f->sh->result.p2p.after_abnormal_exit.pairs, 2);
}

/* --- pairs at fault ------------------------------------------------------------------------- */

struct lie {
    const char *test;
    int from, to;
    size_t least; /* only targets of at least so many bytes */
    enum { LIE_BYTE, LIE_POISON, LIE_ZERO, LIE_BEYOND } kind;
};

static void tell_lie(void *ctx, const char *test, int from, int to, void *target, size_t bytes)
{
    const struct lie *l = ctx;
    if (strcmp(test, l->test) != 0 || from != l->from || to != l->to || bytes < l->least)
        return;
    switch (l->kind) {
    case LIE_BYTE: (void)cudaMemset((uint8_t *)target + bytes / 2 + 3, 0xff, 1); break;
    case LIE_POISON: (void)cudaMemset(target, HX_POISON_BYTE, bytes); break;
    case LIE_ZERO: (void)cudaMemset(target, 0, bytes); break;
    case LIE_BEYOND: (void)cudaMemset((uint8_t *)target + bytes, 0x11, 5); break;
    }
}

static void corrupt_byte(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    /* Small copies right, one large one wrong. */
    struct lie lie = {"copy", 1, 0, 1 << 25, LIE_BYTE};
    f->plant.ctx = &lie;
    f->plant.content = tell_lie;
    RUN(f, "content", "flags");
    assert_int_equal(p->copy.outcome, HX_PROBE_CORRUPT);
    assert_int_equal(p->copy.bad_bytes, 1);
    assert_non_null(strstr(p->copy.note, "from 1 to 0: 1 of 33554432 bytes wrong"));
    assert_int_equal(p->store.outcome, HX_PROBE_OK);
    assert_int_equal(p->load.outcome, HX_PROBE_OK);
    assert_int_equal(p->flags.outcome, HX_PROBE_NOT_RUN); /* no trust, no further test */
    assert_judged(f, "P2P-04", HX_FAIL, "corrupt");
    assert_judged(f, "P2P-05", HX_PASS, NULL);
}

static void nothing_arrives(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    struct lie lie = {"store", 0, 1, 0, LIE_POISON};
    f->plant.ctx = &lie;
    f->plant.content = tell_lie;
    RUN(f, "content");
    assert_int_equal(p->copy.outcome, HX_PROBE_OK);
    assert_int_equal(p->store.outcome, HX_PROBE_ZERO);
    assert_int_equal(p->store.bad_bytes, 131072 + 1048577 + 33554432);
    lie = (struct lie){"load", 0, 1, 0, LIE_ZERO};
    RUN(f, "content");
    assert_int_equal(p->load.outcome, HX_PROBE_ZERO);
    assert_judged(f, "P2P-06", HX_FAIL, "zero");
}

static void copy_beyond_its_end(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    struct lie lie = {"load", 0, 1, 1 << 25, LIE_BEYOND};
    f->plant.ctx = &lie;
    f->plant.content = tell_lie;
    RUN(f, "content");
    assert_int_equal(p->load.outcome, HX_PROBE_CORRUPT);
    assert_int_equal(p->load.bad_bytes, 5);
}

static void second_process_corrupt(void **state)
{
    struct fixture *f = *state;
    struct lie lie = {"ipc", 0, 1, 0, LIE_BYTE};
    f->plant.ctx = &lie;
    f->plant.content = tell_lie;
    RUN(f, "ipc");
    assert_int_equal(f->sh->result.p2p.ipc.outcome, HX_PROBE_CORRUPT);
    assert_int_equal(f->sh->result.p2p.ipc.bad_bytes, 3);
    assert_judged(f, "P2P-07", HX_FAIL, "corrupt");
}

static void crowd_corrupt(void **state)
{
    struct fixture *f = *state;
    struct lie lie = {"allpairs", 1, 0, 0, LIE_BYTE};
    f->plant.ctx = &lie;
    f->plant.content = tell_lie;
    RUN(f, "allpairs");
    assert_int_equal(f->sh->result.p2p.allpairs.outcome, HX_PROBE_CORRUPT);
    assert_judged(f, "P2P-13", HX_FAIL, "corrupt");
}

/* As much as a link of 0.3 GB/s would take. */
static void drag(void *ctx, int from, int to, void *stream)
{
    (void)ctx;
    if (from == 0 && to == 1)
        (void)hx_k_delay(((uint64_t)64 << 20) * 10 / 3, stream);
}

/* The rule of P2P-09 for a card without a table: below 70 % of the staged rate is slow. */
static void slow_pair(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    f->plant.slow = drag;
    RUN(f, "staged", "content", "peer");
    assert_calm(f);
    assert_int_equal(p->copy.outcome, HX_PROBE_OK); /* slow is not wrong */
    print_message("# slow pair %.2f GB/s, the other way %.0f, staged %.1f\n", p->peer_gbps[0][1],
                  p->peer_gbps[1][0], p->staged_gbps[0][1]);
    assert_true(p->peer_gbps[0][1] < 0.31 && p->peer_gbps[0][1] > 0.27);
    assert_true(p->peer_gbps[0][1] < 0.7 * p->staged_gbps[0][1]);
    assert_true(p->peer_gbps[1][0] > 0.7 * p->staged_gbps[1][0]);
    assert_true(p->bidir_gbps[0][1] < 0.62);
    assert_judged(f, "P2P-04", HX_PASS, NULL);
    assert_judged(f, "P2P-09", HX_FAIL, NULL); /* slow */
}

struct silence {
    const char *test;
    int rank;
};

static bool keep_silent(void *ctx, const char *test, int rank)
{
    const struct silence *s = ctx;
    return strcmp(test, s->test) == 0 && rank == s->rank;
}

static void flag_never_comes(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_p2p *p = &f->sh->result.p2p;
    struct silence silence = {"flags", 1};
    f->plant.ctx = &silence;
    f->plant.mute = keep_silent;
    const double start = hx_probe_now();
    RUN(f, "flags", "peer");
    assert_calm(f); /* the kernel gave up by itself: no process had to be ended */
    assert_int_equal(p->flags.outcome, HX_PROBE_HANG);
    assert_int_equal(p->flags.turns, 0);
    assert_true(isnan(p->flags.us));
    assert_true(p->peer_gbps[0][1] > 0.1); /* copies work all the same */
    assert_true(hx_probe_now() - start < 30);
    assert_judged(f, "P2P-08", HX_FAIL, "hang");
}

static void crowd_hangs(void **state)
{
    struct fixture *f = *state;
    struct silence silence = {"allpairs", 0};
    f->plant.ctx = &silence;
    f->plant.mute = keep_silent;
    f->options.n_ranks = 3;
    RUN(f, "allpairs");
    assert_calm(f);
    assert_int_equal(f->sh->result.p2p.allpairs.outcome, HX_PROBE_HANG);
    assert_judged(f, "P2P-13", HX_FAIL, "hang");
}

static void reduce_hangs(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_result *r = &f->sh->result;
    struct silence silence = {"all_reduce", 2};
    f->plant.ctx = &silence;
    f->plant.mute = keep_silent;
    f->options.n_ranks = 4;
    RUN(f, "reduce-peer", "reduce-host");
    assert_calm(f);
    assert_int_equal(r->collectives.p2p.outcome, HX_PROBE_HANG);
    assert_int_equal(r->collectives.own_host.outcome, HX_PROBE_HANG);
    assert_true(isnan(r->collectives.p2p.us[1]));
    assert_judged(f, "COL-01", HX_FAIL, "hang");
}

static void spoil_sums(void *ctx, int rank, void *x, size_t bytes)
{
    const size_t *least = ctx;
    if (rank == 1 && bytes >= *least)
        (void)cudaMemset((uint8_t *)x + bytes - 2, 0x3f, 1);
}

static void sums_are_wrong(void **state)
{
    struct fixture *f = *state;
    size_t least = 1 << 20; /* only the large message */
    f->plant.ctx = &least;
    f->plant.sums = spoil_sums;
    RUN(f, "reduce-peer");
    assert_calm(f);
    assert_int_equal(f->sh->result.collectives.p2p.outcome, HX_PROBE_WRONG);
    assert_false(f->sh->result.collectives.p2p.exact);
    assert_judged(f, "COL-01", HX_SKIP, NULL); /* the host arm decides, and was not run */
    f->plant.sums = NULL;
    RUN(f, "reduce-host");
    assert_judged(f, "COL-01", HX_WARN, "host");
}

/* One rank is enough to see that the library is called as it expects; with two cards the step
 * itself is the test. */
static void nccl_is_called_right(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_arm *arm = &f->sh->result.collectives.nccl_host;
    struct hx_probe_step step = *find("reduce-nccl");
    step.scope = HX_PROBE_ONCE;
    f->options.one_device = false;
    f->options.nccl = "libnccl.so.2";
    f->sh->result.n_devices = 1;
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, &step, NULL), 0);
    assert_calm(f);
    if (arm->outcome == HX_PROBE_NOT_RUN && arm->note[0]) {
        print_message("# %s\n", arm->note);
        skip();
    }
    assert_int_equal(arm->outcome, HX_PROBE_OK);
    assert_true(arm->exact);
    assert_true(arm->us[0] > 0);
}

/* --- for compute-sanitizer: the same steps in this process ------------------------------------ */

static void direct(struct fixture *f, const char *name)
{
    struct hx_error err = {0};
    const struct hx_probe_step *s = find(name);
    const int device = s->scope == HX_PROBE_EACH || s->scope == HX_PROBE_EACH_ALL ? 0 : -1;
    if (s->run(f->sh, &f->options, NULL, device, &err) != 0)
        fail_msg("%s: %s", name, err.text);
}

static void sanitizer_memory(void **state)
{
    struct fixture *f = *state;
    f->options.memory_bytes = GIB / 4;
    f->options.pattern_s = 2;
    direct(f, "enumerate");
    direct(f, "context");
    direct(f, "alias");
    direct(f, "pattern");
    assert_int_equal(f->sh->result.device[0].alias.outcome, HX_PROBE_OK);
    assert_int_equal(f->sh->result.device[0].pattern.outcome, HX_PROBE_OK);
}

static void sanitizer_peers(void **state)
{
    struct fixture *f = *state;
    f->options.flags_limit_ms = f->options.collective_limit_ms = 20000;
    direct(f, "enumerate");
    direct(f, "access");
    direct(f, "content");
    direct(f, "flags");
    direct(f, "reduce-peer");
    direct(f, "reduce-host");
    assert_int_equal(f->sh->result.p2p.copy.outcome, HX_PROBE_OK);
    assert_int_equal(f->sh->result.p2p.flags.outcome, HX_PROBE_OK);
    assert_int_equal(f->sh->result.collectives.p2p.outcome, HX_PROBE_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(context_and_rates, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_is_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(whole_fold, setup, teardown),
        cmocka_unit_test_setup_teardown(dense_fold, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_burst, setup, teardown),
        cmocka_unit_test_setup_teardown(stuck_test_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(peers_are_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(sums_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(abnormal_exit_leaves_peers_right, setup, teardown),
        cmocka_unit_test_setup_teardown(corrupt_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_arrives, setup, teardown),
        cmocka_unit_test_setup_teardown(copy_beyond_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(second_process_corrupt, setup, teardown),
        cmocka_unit_test_setup_teardown(crowd_corrupt, setup, teardown),
        cmocka_unit_test_setup_teardown(slow_pair, setup, teardown),
        cmocka_unit_test_setup_teardown(flag_never_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(crowd_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(reduce_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(sums_are_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(nccl_is_called_right, setup, teardown),
        /* CUDA in this process from here on: a child forked later could not use it. */
        cmocka_unit_test(product_is_right),
        cmocka_unit_test_setup_teardown(sanitizer_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(sanitizer_peers, setup, teardown),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
