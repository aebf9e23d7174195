/* All-reduce between all cards: right sums and times, over peer memory and through the host. */
#include "probe/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/p2p_kernels.h"
#include "kernels/kernels.h"
#include "probe/reduce.h"

#define IN_GRAPH      10 /* all-reduces of one captured graph */
#define REPLAYS       20
#define LARGE_REPEATS 7

struct push_test {
    const struct hx_probe_plant *plant;
    struct hx_ranks ranks;
    struct hx_p2p_rank view[HX_PROBE_RANKS];
    uint8_t *area[HX_PROBE_RANKS];
    uint32_t *flags[HX_PROBE_RANKS];
    uint8_t *x[HX_PROBE_RANKS];
    uint64_t limit_ns;
    bool host; /* areas and flags in pinned host memory */
};

static void push_close(struct push_test *t)
{
    for (int i = 0; i < t->ranks.n; i++) {
        if (t->host) {
            cudaFreeHost(t->area[i]);
            cudaFreeHost(t->flags[i]);
        } else {
            cudaFree(t->area[i]);
            cudaFree(t->flags[i]);
        }
        cudaFree(t->view[i].state);
        cudaFree(t->x[i]);
    }
    hx_ranks_close(&t->ranks);
}

static int push_reset(struct push_test *t, struct hx_error *err)
{
    const int n = t->ranks.n;
    const size_t words = (size_t)2 * n * HX_P2P_MAX_BLOCKS;
    int r = 0;
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemset(t->view[i].state, 0, HX_P2P_STATE_WORDS * sizeof(uint32_t)));
        if (t->host)
            memset(t->flags[i], 0, words * sizeof(uint32_t));
        else
            HX_CU(cudaMemset(t->flags[i], 0, words * sizeof(uint32_t)));
        HX_CU(cudaDeviceSynchronize());
    }
out:
    return r;
}

static int push_open(struct push_test *t, struct hx_probe_shared *sh,
                     const struct hx_probe_options *o, const struct hx_probe_plant *plant,
                     bool host, struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->plant = plant;
    t->host = host;
    t->limit_ns = (uint64_t)o->collective_limit_ms * 1000000;
    int r = hx_ranks_open(&t->ranks, sh, o, !host, err);
    if (r != 0)
        return r;
    const int n = t->ranks.n;
    const size_t phase = hx_p2p_area_bytes(HX_PROBE_LARGE_BYTES);
    const size_t words = (size_t)2 * n * HX_P2P_MAX_BLOCKS;
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        if (host) {
            const unsigned how = cudaHostAllocPortable | cudaHostAllocMapped;
            HX_CU(cudaHostAlloc((void **)&t->area[i], 4 * phase, how));
            HX_CU(cudaHostAlloc((void **)&t->flags[i], words * sizeof(uint32_t), how));
        } else {
            HX_CU(cudaMalloc((void **)&t->area[i], 4 * phase));
            HX_CU(cudaMalloc((void **)&t->flags[i], words * sizeof(uint32_t)));
        }
        HX_CU(cudaMalloc((void **)&t->view[i].state, HX_P2P_STATE_WORDS * sizeof(uint32_t)));
        HX_CU(cudaMalloc((void **)&t->x[i], HX_PROBE_LARGE_BYTES));
    }
    for (int i = 0; i < n; i++) {
        struct hx_p2p_rank *v = &t->view[i];
        memcpy(v->area, t->area, sizeof(v->area));
        memcpy(v->flags, t->flags, sizeof(v->flags));
        v->area_bytes = phase;
        v->n_ranks = n;
        v->rank = i;
    }
    r = push_reset(t, err);
out:
    return r;
}

/* Queues one all-reduce on every rank's stream. */
static int push_launch(struct push_test *t, size_t bytes, enum hx_p2p_type type,
                       struct hx_error *err)
{
    int r = 0;
    for (int i = 0; i < t->ranks.n; i++) {
        if (t->plant && t->plant->mute && t->plant->mute(t->plant->ctx, "all_reduce", i))
            continue;
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(hx_p2p_all_reduce(&t->view[i], t->x[i], bytes, type, t->limit_ns,
                                t->ranks.rank[i].stream));
    }
out:
    return r;
}

/* Waits for all ranks; *hung if one of them gave up waiting for another. */
static int push_sync(struct push_test *t, bool *hung, struct hx_error *err)
{
    int r = hx_ranks_sync(&t->ranks, err);
    for (int i = 0; r == 0 && i < t->ranks.n; i++) {
        uint32_t state[HX_P2P_STATE_WORDS];
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemcpy(state, t->view[i].state, sizeof(state), cudaMemcpyDeviceToHost));
        *hung = *hung || state[HX_P2P_TIMED_OUT] != 0;
    }
out:
    return r;
}

/* Fresh random partials of one size and type, reduced and compared with the host's sum. */
static int push_exact(struct push_test *t, size_t bytes, bool bf16, struct hx_reduce_data *d,
                      bool *hung, bool *wrong, struct hx_error *err)
{
    const int n = t->ranks.n;
    int r = 0;
    hx_reduce_fill(d, n, bytes, bf16, hx_probe_seed());
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemcpyAsync(t->x[i], d->partial[i], bytes, cudaMemcpyHostToDevice,
                              t->ranks.rank[i].stream));
        HX_CU(cudaStreamSynchronize(t->ranks.rank[i].stream));
    }
    if ((r = push_launch(t, bytes, bf16 ? HX_P2P_BF16 : HX_P2P_INT32, err)) != 0 ||
        (r = push_sync(t, hung, err)) != 0 || *hung)
        goto out;
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        if (t->plant && t->plant->sums)
            t->plant->sums(t->plant->ctx, i, t->x[i], bytes);
        HX_CU(cudaMemcpy(d->partial[i], t->x[i], bytes, cudaMemcpyDeviceToHost));
        *wrong = *wrong || memcmp(d->partial[i], d->sum, bytes) != 0;
    }
out:
    return r;
}

/* Median microseconds of one all-reduce of that size inside a captured graph. */
static int push_time_small(struct push_test *t, size_t bytes, double *us, struct hx_error *err)
{
    const int n = t->ranks.n;
    cudaGraphExec_t exec[HX_PROBE_RANKS] = {NULL};
    double sample[REPLAYS];
    int r = 0;
    for (int i = 0; i < n; i++) {
        cudaGraph_t graph = NULL;
        cudaStream_t s = t->ranks.rank[i].stream;
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        for (int k = 0; k < IN_GRAPH; k++)
            HX_CU(hx_p2p_all_reduce(&t->view[i], t->x[i], bytes, HX_P2P_BF16, t->limit_ns, s));
        HX_CU(cudaStreamEndCapture(s, &graph));
        const cudaError_t e = cudaGraphInstantiate(&exec[i], graph, 0);
        cudaGraphDestroy(graph);
        HX_CU(e);
        HX_CU(cudaGraphUpload(exec[i], s));
        HX_CU(cudaStreamSynchronize(s));
    }
    for (int k = -2; k < REPLAYS; k++) {
        hx_ranks_gate_shut(&t->ranks);
        for (int i = 0; i < n; i++) {
            const struct hx_rank *q = &t->ranks.rank[i];
            HX_CU(cudaSetDevice(q->device));
            HX_CU(hx_k_gate(t->ranks.gate, HX_GATE_NS, q->stream));
            HX_CU(cudaEventRecord(q->start, q->stream));
            HX_CU(cudaGraphLaunch(exec[i], q->stream));
            HX_CU(cudaEventRecord(q->end, q->stream));
        }
        hx_ranks_gate_open(&t->ranks);
        float slowest = 0;
        for (int i = 0; i < n; i++) {
            const struct hx_rank *q = &t->ranks.rank[i];
            float ms = 0;
            HX_CU(cudaSetDevice(q->device));
            HX_CU(cudaEventSynchronize(q->end));
            HX_CU(cudaEventElapsedTime(&ms, q->start, q->end));
            slowest = ms > slowest ? ms : slowest;
        }
        sample[k < 0 ? 0 : k] = slowest * 1e3 / IN_GRAPH;
    }
    *us = hx_probe_median(sample, REPLAYS);
out:
    hx_ranks_gate_open(&t->ranks);
    for (int i = 0; i < n; i++) {
        if (exec[i])
            cudaGraphExecDestroy(exec[i]);
    }
    return r;
}

static int push_time_large(struct push_test *t, double *busbw, struct hx_error *err)
{
    const int n = t->ranks.n;
    double sample[LARGE_REPEATS];
    int r = 0;
    for (int k = -1; k < LARGE_REPEATS; k++) {
        float slowest = 0;
        hx_ranks_gate_shut(&t->ranks);
        for (int i = 0; i < n; i++) {
            const struct hx_rank *q = &t->ranks.rank[i];
            HX_CU(cudaSetDevice(q->device));
            HX_CU(hx_k_gate(t->ranks.gate, HX_GATE_NS, q->stream));
            HX_CU(cudaEventRecord(q->start, q->stream));
            HX_CU(hx_p2p_all_reduce(&t->view[i], t->x[i], HX_PROBE_LARGE_BYTES, HX_P2P_BF16,
                                    t->limit_ns, q->stream));
            HX_CU(cudaEventRecord(q->end, q->stream));
        }
        hx_ranks_gate_open(&t->ranks);
        for (int i = 0; i < n; i++) {
            const struct hx_rank *q = &t->ranks.rank[i];
            float ms = 0;
            HX_CU(cudaSetDevice(q->device));
            HX_CU(cudaEventSynchronize(q->end));
            HX_CU(cudaEventElapsedTime(&ms, q->start, q->end));
            slowest = ms > slowest ? ms : slowest;
        }
        sample[k < 0 ? 0 : k] = slowest * 1e-3;
    }
    *busbw = hx_reduce_busbw(HX_PROBE_LARGE_BYTES, n, hx_probe_median(sample, LARGE_REPEATS));
out:
    hx_ranks_gate_open(&t->ranks);
    return r;
}

/* Values for the timed runs: what they hold does not matter, that they stay finite does. */
static int push_calm(struct push_test *t, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemset(t->x[i], 0, HX_PROBE_LARGE_BYTES));
        HX_CU(cudaDeviceSynchronize());
    }
out:
    return r;
}

static int reduce_push(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                       const struct hx_probe_plant *plant, bool host, struct hx_error *err)
{
    struct hx_probe_arm *arm =
        host ? &sh->result.collectives.own_host : &sh->result.collectives.p2p;
    struct push_test t;
    struct hx_reduce_data d;
    bool hung = false, wrong = false;
    int r = hx_reduce_data_init(&d, err);
    if (r != 0)
        return r;
    r = push_open(&t, sh, o, plant, host, err);
    for (int type = 0; r == 0 && type < 2 && !hung; type++) {
        for (int i = 0; r == 0 && i < HX_PROBE_COUNTS && !hung; i++)
            r = push_exact(&t, (size_t)hx_probe_small_bytes[i], type == 1, &d, &hung, &wrong, err);
        if (r == 0 && !hung)
            r = push_exact(&t, HX_PROBE_LARGE_BYTES, type == 1, &d, &hung, &wrong, err);
    }
    hx_probe_progress(sh, -1, 0.5);
    if (r == 0 && !hung && !wrong && (r = push_calm(&t, err)) == 0) {
        for (int i = 0; r == 0 && i < HX_PROBE_COUNTS; i++)
            r = push_time_small(&t, (size_t)hx_probe_small_bytes[i], &arm->us[i], err);
        if (r == 0)
            r = push_time_large(&t, &arm->busbw_gbps, err);
        if (r == 0)
            r = push_sync(&t, &hung, err);
    }
    push_close(&t);
    hx_reduce_data_done(&d);
    if (r != 0)
        return r;
    arm->exact = !hung && !wrong;
    arm->outcome = hung ? HX_PROBE_HANG : wrong ? HX_PROBE_WRONG : HX_PROBE_OK;
    return 0;
}

int hx_step_reduce_peer(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                        const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    sh->result.collectives.ranks = hx_ranks_device_count(sh, o);
    sh->result.collectives.run = true;
    if (!sh->result.p2p.offered) {
        sh->result.collectives.p2p.outcome = HX_PROBE_NOT_OFFERED;
        return 0;
    }
    return reduce_push(sh, o, plant, false, err);
}

int hx_step_reduce_host(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                        const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    sh->result.collectives.ranks = hx_ranks_device_count(sh, o);
    sh->result.collectives.run = true;
    return reduce_push(sh, o, plant, true, err);
}
