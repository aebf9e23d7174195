/* Pairs of cards: capability, content, rates, flags, all at once. */
#include "probe/content.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define FLUSH_BYTES   ((size_t)64 << 20)
#define RATE_BYTES    ((size_t)64 << 20)
#define RATE_REPEATS  7
#define PIECE_BYTES   ((size_t)4 << 20) /* of a staged copy */
#define PIECES        4
#define FLAG_TURNS    1000u
#define CROWD_TURNS   100u
#define LATENCY_TURNS 2000u
#define BLOCK_BYTES   ((size_t)4 << 20) /* of an all-to-all */

/* --- capability ----------------------------------------------------------------------------- */

int hx_step_access(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                   const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)plant, (void)device;
    struct hx_probe_p2p *p = &sh->result.p2p;
    struct hx_ranks ranks;
    cudaError_t first = cudaSuccess;
    int r = hx_ranks_open(&ranks, sh, o, false, err);
    if (r != 0)
        return r;
    p->n_ranks = ranks.n;
    p->run = true;
    for (int i = 0; i < ranks.n; i++) {
        for (int j = 0; j < ranks.n; j++) {
            const int a = ranks.rank[i].device, b = ranks.rank[j].device;
            int can = 1;
            if (a != b)
                HX_CU(cudaDeviceCanAccessPeer(&can, a, b));
            p->can_access[i][j] = can;
        }
    }
    const int failed = hx_ranks_enable(&ranks, &first);
    p->offered = failed == 0;
    /* The one name that the judge knows is the driver interface's. */
    snprintf(p->enable, sizeof(p->enable), "%s",
             failed == 0                               ? "ok"
             : first == cudaErrorPeerAccessUnsupported ? "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
                                                       : cudaGetErrorName(first));
out:
    hx_ranks_close(&ranks);
    return r;
}

/* --- content -------------------------------------------------------------------------------- */

struct content_test {
    struct hx_probe_shared *sh;
    const struct hx_probe_plant *plant;
    struct hx_ranks ranks;
    uint8_t *source[HX_PROBE_RANKS], *target[HX_PROBE_RANKS], *flush[HX_PROBE_RANKS];
    uint8_t *host; /* [HX_CONTENT_MAX + HX_CONTENT_GUARD], pinned */
};

static void content_close(struct content_test *t)
{
    for (int i = 0; i < t->ranks.n; i++) {
        cudaFree(t->source[i]);
        cudaFree(t->target[i]);
        cudaFree(t->flush[i]);
    }
    cudaFreeHost(t->host);
    hx_ranks_close(&t->ranks);
}

static int content_open(struct content_test *t, struct hx_probe_shared *sh,
                        const struct hx_probe_options *o, const struct hx_probe_plant *plant,
                        struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->sh = sh;
    t->plant = plant;
    int r = hx_ranks_open(&t->ranks, sh, o, true, err);
    if (r != 0)
        return r;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMalloc((void **)&t->source[i], HX_CONTENT_MAX));
        HX_CU(cudaMalloc((void **)&t->target[i], HX_CONTENT_MAX + HX_CONTENT_GUARD));
        HX_CU(cudaMalloc((void **)&t->flush[i], FLUSH_BYTES));
    }
    HX_CU(
        cudaHostAlloc((void **)&t->host, HX_CONTENT_MAX + HX_CONTENT_GUARD, cudaHostAllocPortable));
out:
    return r;
}

/* Content into the source, poison into the target, both out of the caches. */
static int content_prepare(struct content_test *t, int from, int to, size_t bytes, uint64_t seed,
                           struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from], *b = &t->ranks.rank[to];
    int r = 0;
    HX_CU(cudaSetDevice(a->device));
    HX_CU(hx_k_content_fill(t->source[from], bytes, seed, a->stream));
    HX_CU(cudaMemsetAsync(t->flush[from], (int)(seed & 0x7f), FLUSH_BYTES, a->stream));
    HX_CU(cudaStreamSynchronize(a->stream));
    HX_CU(cudaSetDevice(b->device));
    HX_CU(cudaMemsetAsync(t->target[to], HX_POISON_BYTE, bytes + HX_CONTENT_GUARD, b->stream));
    HX_CU(cudaMemsetAsync(t->flush[to], (int)(seed & 0x7f), FLUSH_BYTES, b->stream));
    HX_CU(cudaStreamSynchronize(b->stream));
out:
    return r;
}

/* The target as its own card sees it, compared on the host. */
static int content_look(struct content_test *t, const char *name, int from, int to, size_t bytes,
                        uint64_t seed, struct hx_content_verdict *v, struct hx_error *err)
{
    const struct hx_rank *b = &t->ranks.rank[to];
    int r = 0;
    HX_CU(cudaSetDevice(b->device));
    if (t->plant && t->plant->content)
        t->plant->content(t->plant->ctx, name, from, to, t->target[to], bytes);
    HX_CU(cudaMemcpyAsync(t->host, t->target[to], bytes + HX_CONTENT_GUARD, cudaMemcpyDeviceToHost,
                          b->stream));
    HX_CU(cudaStreamSynchronize(b->stream));
    hx_content_compare(t->host, bytes, seed, v);
out:
    return r;
}

enum way { WAY_COPY, WAY_STORE, WAY_LOAD };
static const char *const way_names[] = {"copy", "store", "load"};

static int content_move(struct content_test *t, enum way way, int from, int to, size_t bytes,
                        struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from], *b = &t->ranks.rank[to];
    const struct hx_rank *k = way == WAY_LOAD ? b : a;
    int r = 0;
    HX_CU(cudaSetDevice(k->device));
    if (way == WAY_COPY)
        HX_CU(cudaMemcpyPeerAsync(t->target[to], b->device, t->source[from], a->device, bytes,
                                  k->stream));
    else
        HX_CU(hx_k_copy(t->target[to], t->source[from], bytes, k->stream));
    HX_CU(cudaStreamSynchronize(k->stream));
out:
    return r;
}

static int content_way(struct content_test *t, enum way way, struct hx_probe_content *result,
                       const uint64_t *sizes, int n_sizes, struct hx_error *err)
{
    const int n = t->ranks.n;
    int r = 0;
    result->n_sizes = n_sizes; /* the test has begun */
    memcpy(result->sizes, sizes, (size_t)n_sizes * sizeof(*sizes));
    struct hx_probe_content found = *result, *c = &found;
    for (int from = 0; from < n; from++) {
        for (int to = 0; to < n; to++) {
            if (from == to)
                continue;
            for (int i = 0; i < n_sizes; i++) {
                const uint64_t seed = hx_probe_seed();
                struct hx_content_verdict v;
                if (hx_probe_stopped(t->sh, -1))
                    return hx_fail(err, -ECANCELED, "content test was ended");
                if ((r = content_prepare(t, from, to, (size_t)sizes[i], seed, err)) != 0 ||
                    (r = content_move(t, way, from, to, (size_t)sizes[i], err)) != 0 ||
                    (r = content_look(t, way_names[way], from, to, (size_t)sizes[i], seed, &v,
                                      err)) != 0)
                    return r;
                hx_content_note(c, &v, from, to);
                if (c->outcome != HX_PROBE_OK)
                    *result = *c;
            }
            c->pairs++;
        }
    }
    *result = *c; /* right only if all pairs were */
    return 0;
}

int hx_step_content(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                    const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct hx_probe_p2p *p = &sh->result.p2p;
    struct hx_probe_content *const tests[] = {&p->copy, &p->store, &p->load};
    struct content_test t;
    uint64_t sizes[HX_PROBE_SIZES];
    const int n_sizes = hx_content_sizes(o, sizes);
    int r = content_open(&t, sh, o, plant, err);
    for (int way = WAY_COPY; r == 0 && way <= WAY_LOAD; way++) {
        r = content_way(&t, (enum way)way, tests[way], sizes, n_sizes, err);
        hx_probe_progress(sh, -1, (way + 1) / 3.0);
    }
    content_close(&t);
    return r;
}

/* --- rates ---------------------------------------------------------------------------------- */

struct rate_test {
    struct hx_probe_shared *sh;
    const struct hx_probe_plant *plant;
    struct hx_ranks ranks;
    uint8_t *source[HX_PROBE_RANKS], *target[HX_PROBE_RANKS];
    uint8_t *pinned; /* [PIECES][PIECE_BYTES] */
    cudaEvent_t piece_full[PIECES], piece_empty[PIECES];
};

static void rate_close(struct rate_test *t)
{
    for (int i = 0; i < t->ranks.n; i++) {
        cudaFree(t->source[i]);
        cudaFree(t->target[i]);
    }
    cudaFreeHost(t->pinned);
    hx_ranks_close(&t->ranks);
}

static int rate_open(struct rate_test *t, struct hx_probe_shared *sh,
                     const struct hx_probe_options *o, const struct hx_probe_plant *plant,
                     bool peers, struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->sh = sh;
    t->plant = plant;
    int r = hx_ranks_open(&t->ranks, sh, o, peers, err);
    if (r != 0)
        return r;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMalloc((void **)&t->source[i], RATE_BYTES));
        HX_CU(cudaMalloc((void **)&t->target[i], RATE_BYTES));
        HX_CU(hx_k_content_fill(t->source[i], RATE_BYTES, (uint64_t)i, t->ranks.rank[i].stream));
    }
    HX_CU(cudaHostAlloc((void **)&t->pinned, PIECES * PIECE_BYTES, cudaHostAllocPortable));
    r = hx_ranks_sync(&t->ranks, err);
out:
    return r;
}

/* One copy from card to card through pinned memory, in pieces so that both directions of the two
 * links work at once. Events belong to the card whose stream records them. */
static int staged_copy(struct rate_test *t, int from, int to, struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from], *b = &t->ranks.rank[to];
    int r = 0;
    for (size_t i = 0; i < RATE_BYTES / PIECE_BYTES; i++) {
        const size_t slot = i % PIECES, at = i * PIECE_BYTES;
        uint8_t *piece = t->pinned + slot * PIECE_BYTES;
        HX_CU(cudaSetDevice(a->device));
        if (i >= PIECES)
            HX_CU(cudaStreamWaitEvent(a->stream, t->piece_empty[slot], 0));
        HX_CU(cudaMemcpyAsync(piece, t->source[from] + at, PIECE_BYTES, cudaMemcpyDeviceToHost,
                              a->stream));
        HX_CU(cudaEventRecord(t->piece_full[slot], a->stream));
        HX_CU(cudaSetDevice(b->device));
        HX_CU(cudaStreamWaitEvent(b->back, t->piece_full[slot], 0));
        HX_CU(cudaMemcpyAsync(t->target[to] + at, piece, PIECE_BYTES, cudaMemcpyHostToDevice,
                              b->back));
        HX_CU(cudaEventRecord(t->piece_empty[slot], b->back));
    }
    HX_CU(cudaStreamSynchronize(b->back));
out:
    return r;
}

static int staged_pair(struct rate_test *t, int from, int to, double *gbps, struct hx_error *err)
{
    double seconds[RATE_REPEATS];
    int r = 0;
    for (int i = 0; i < PIECES; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[from].device));
        HX_CU(cudaEventCreateWithFlags(&t->piece_full[i], cudaEventDisableTiming));
        HX_CU(cudaSetDevice(t->ranks.rank[to].device));
        HX_CU(cudaEventCreateWithFlags(&t->piece_empty[i], cudaEventDisableTiming));
    }
    for (int i = -1; i < RATE_REPEATS; i++) {
        const double start = hx_probe_now();
        if ((r = staged_copy(t, from, to, err)) != 0)
            goto out;
        seconds[i < 0 ? 0 : i] = hx_probe_now() - start;
    }
    *gbps = (double)RATE_BYTES / hx_probe_median(seconds, RATE_REPEATS) * 1e-9;
out:
    for (int i = 0; i < PIECES; i++) {
        if (t->piece_full[i])
            cudaEventDestroy(t->piece_full[i]);
        if (t->piece_empty[i])
            cudaEventDestroy(t->piece_empty[i]);
        t->piece_full[i] = t->piece_empty[i] = NULL;
    }
    return r;
}

int hx_step_staged(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                   const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct rate_test t;
    int r = rate_open(&t, sh, o, plant, false, err);
    const int n = t.ranks.n;
    for (int from = 0; r == 0 && from < n; from++) {
        for (int to = 0; r == 0 && to < n; to++) {
            if (from != to && !hx_probe_stopped(sh, -1))
                r = staged_pair(&t, from, to, &sh->result.p2p.staged_gbps[from][to], err);
        }
        hx_probe_progress(sh, -1, (from + 1.0) / n);
    }
    rate_close(&t);
    return r;
}

/* Queues a gated, timed peer copy on one stream of the source's card. */
static int peer_queue(struct rate_test *t, int from, int to, bool back, struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from], *b = &t->ranks.rank[to];
    cudaStream_t s = back ? a->back : a->stream;
    int r = 0;
    HX_CU(cudaSetDevice(a->device));
    HX_CU(hx_k_gate(t->ranks.gate, HX_GATE_NS, s));
    HX_CU(cudaEventRecord(back ? a->back_start : a->start, s));
    HX_CU(cudaMemcpyPeerAsync(t->target[to], b->device, t->source[from], a->device, RATE_BYTES, s));
    if (t->plant && t->plant->slow)
        t->plant->slow(t->plant->ctx, from, to, s);
    HX_CU(cudaEventRecord(back ? a->back_end : a->end, s));
out:
    return r;
}

static int peer_seconds(const struct rate_test *t, int from, bool back, double *seconds,
                        struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from];
    float ms = 0;
    int r = 0;
    HX_CU(cudaSetDevice(a->device));
    HX_CU(cudaEventSynchronize(back ? a->back_end : a->end));
    HX_CU(cudaEventElapsedTime(&ms, back ? a->back_start : a->start, back ? a->back_end : a->end));
    *seconds = ms * 1e-3;
out:
    return r;
}

/* both: the opposite direction at the same time; the rate is then the sum. */
static int peer_pair(struct rate_test *t, int from, int to, bool both, double *gbps,
                     struct hx_error *err)
{
    double seconds[RATE_REPEATS];
    int r = 0;
    for (int i = -1; i < RATE_REPEATS; i++) {
        double forth = 0, back = 0;
        hx_ranks_gate_shut(&t->ranks);
        r = peer_queue(t, from, to, false, err);
        if (r == 0 && both)
            r = peer_queue(t, to, from, true, err);
        hx_ranks_gate_open(&t->ranks);
        if (r != 0 || (r = peer_seconds(t, from, false, &forth, err)) != 0 ||
            (both && (r = peer_seconds(t, to, true, &back, err)) != 0))
            return r;
        seconds[i < 0 ? 0 : i] = forth > back ? forth : back;
    }
    *gbps = (both ? 2.0 : 1.0) * (double)RATE_BYTES / hx_probe_median(seconds, RATE_REPEATS) * 1e-9;
    return 0;
}

static int latency_pair(struct rate_test *t, int from, int to, double *us, struct hx_error *err)
{
    const struct hx_rank *a = &t->ranks.rank[from];
    double seconds = 0;
    int r = 0;
    HX_CU(cudaSetDevice(a->device));
    for (int i = 0; i < 2; i++) {
        HX_CU(cudaEventRecord(a->start, a->stream));
        HX_CU(hx_k_store_latency((uint32_t *)t->target[to], LATENCY_TURNS, a->stream));
        HX_CU(cudaEventRecord(a->end, a->stream));
        if ((r = peer_seconds(t, from, false, &seconds, err)) != 0)
            goto out;
    }
    *us = seconds * 1e6 / LATENCY_TURNS;
out:
    return r;
}

int hx_step_peer_rates(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                       const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct hx_probe_p2p *p = &sh->result.p2p;
    struct rate_test t;
    int r = rate_open(&t, sh, o, plant, true, err);
    const int n = t.ranks.n;
    for (int from = 0; r == 0 && from < n; from++) {
        for (int to = 0; r == 0 && to < n; to++) {
            if (from == to || hx_probe_stopped(sh, -1))
                continue;
            if ((r = peer_pair(&t, from, to, false, &p->peer_gbps[from][to], err)) != 0 ||
                (r = peer_pair(&t, from, to, true, &p->bidir_gbps[from][to], err)) != 0 ||
                (r = latency_pair(&t, from, to, &p->latency_us[from][to], err)) != 0)
                break;
        }
        hx_probe_progress(sh, -1, (from + 1.0) / n);
    }
    rate_close(&t);
    return r;
}

/* --- flags ---------------------------------------------------------------------------------- */

struct flag_test {
    const struct hx_probe_plant *plant;
    struct hx_ranks ranks;
    /* [rank] a word for each other rank, and one for the turns completed with it. */
    uint32_t *words[HX_PROBE_RANKS];
};

static void flag_close(struct flag_test *t)
{
    for (int i = 0; i < t->ranks.n; i++)
        cudaFree(t->words[i]);
    hx_ranks_close(&t->ranks);
}

/* Words of different pairs lie apart, so that they do not share a line. */
static uint32_t *flag_of(const struct flag_test *t, int owner, int other)
{
    return t->words[owner] + (size_t)other * 64;
}

static uint32_t *done_of(const struct flag_test *t, int owner, int other)
{
    return t->words[owner] + (size_t)(HX_PROBE_RANKS + other) * 64;
}

static int flag_open(struct flag_test *t, struct hx_probe_shared *sh,
                     const struct hx_probe_options *o, const struct hx_probe_plant *plant,
                     struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->plant = plant;
    int r = hx_ranks_open(&t->ranks, sh, o, true, err);
    if (r != 0)
        return r;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMalloc((void **)&t->words[i], 2 * HX_PROBE_RANKS * 64 * sizeof(uint32_t)));
    }
out:
    return r;
}

static int flag_clear(struct flag_test *t, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemset(t->words[i], 0, 2 * HX_PROBE_RANKS * 64 * sizeof(uint32_t)));
        HX_CU(cudaDeviceSynchronize());
    }
out:
    return r;
}

/* One side of the ping-pong between a and b; the lower rank starts. */
static int flag_side(struct flag_test *t, const char *name, int me, int other, uint32_t turns,
                     uint64_t limit_ns, cudaStream_t s, struct hx_error *err)
{
    int r = 0;
    if (t->plant && t->plant->mute && t->plant->mute(t->plant->ctx, name, me))
        return 0;
    HX_CU(cudaSetDevice(t->ranks.rank[me].device));
    HX_CU(hx_k_ping_pong(flag_of(t, me, other), flag_of(t, other, me), me < other, turns,
                         done_of(t, me, other), limit_ns, s));
out:
    return r;
}

static int flag_done(struct flag_test *t, int me, int other, uint32_t *done, struct hx_error *err)
{
    int r = 0;
    HX_CU(cudaSetDevice(t->ranks.rank[me].device));
    HX_CU(cudaMemcpy(done, done_of(t, me, other), sizeof(*done), cudaMemcpyDeviceToHost));
out:
    return r;
}

static int flag_pair(struct flag_test *t, int a, int b, uint64_t limit_ns, uint32_t *turns,
                     double *us, struct hx_error *err)
{
    const struct hx_rank *k = &t->ranks.rank[a];
    uint32_t other = 0;
    float ms = 0;
    int r = flag_clear(t, err);
    if (r != 0)
        return r;
    /* The answering side first, so that the start of a kernel is not timed. */
    if ((r = flag_side(t, "flags", b, a, FLAG_TURNS, limit_ns, t->ranks.rank[b].back, err)) != 0)
        return r;
    HX_CU(cudaSetDevice(k->device));
    HX_CU(cudaEventRecord(k->start, k->stream));
    if ((r = flag_side(t, "flags", a, b, FLAG_TURNS, limit_ns, k->stream, err)) != 0)
        goto out;
    HX_CU(cudaEventRecord(k->end, k->stream));
    if ((r = hx_ranks_sync(&t->ranks, err)) != 0)
        goto out;
    HX_CU(cudaEventElapsedTime(&ms, k->start, k->end));
    if ((r = flag_done(t, a, b, turns, err)) != 0 || (r = flag_done(t, b, a, &other, err)) != 0)
        goto out;
    *turns = other < *turns ? other : *turns;
    *us = ms * 1e3 / FLAG_TURNS;
out:
    return r;
}

/* The worst pair stands for all. */
int hx_step_flags(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                  const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct hx_probe_p2p *p = &sh->result.p2p;
    struct flag_test t;
    const uint64_t limit_ns = (uint64_t)o->flags_limit_ms * 1000000;
    uint32_t least = FLAG_TURNS;
    double worst = 0;
    int r = flag_open(&t, sh, o, plant, err);
    for (int a = 0; r == 0 && a < t.ranks.n; a++) {
        for (int b = a + 1; r == 0 && b < t.ranks.n; b++) {
            uint32_t turns = 0;
            double us = 0;
            r = flag_pair(&t, a, b, limit_ns, &turns, &us, err);
            least = turns < least ? turns : least;
            worst = us > worst ? us : worst;
            if (r == 0 && least < FLAG_TURNS) {
                /* One pair that hangs decides; the others would only wait as long. */
                p->flags.outcome = HX_PROBE_HANG;
                p->flags.turns = least;
                goto out;
            }
        }
    }
    if (r == 0) {
        p->flags.outcome = HX_PROBE_OK;
        p->flags.turns = FLAG_TURNS;
        p->flags.us = worst;
    }
out:
    flag_close(&t);
    return r;
}

/* --- all at once ---------------------------------------------------------------------------- */

/* All cards copy to their neighbour at the same time. */
static int ring(struct rate_test *t, uint64_t seed, double *gbps, struct hx_error *err)
{
    const int n = t->ranks.n;
    double slowest = 0;
    int r = 0;
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(hx_k_content_fill(t->source[i], RATE_BYTES, seed + (uint64_t)i, NULL));
        HX_CU(cudaMemset(t->target[i], HX_POISON_BYTE, RATE_BYTES));
        HX_CU(cudaDeviceSynchronize());
    }
    hx_ranks_gate_shut(&t->ranks);
    for (int i = 0; i < n && r == 0; i++)
        r = peer_queue(t, i, (i + 1) % n, false, err);
    hx_ranks_gate_open(&t->ranks);
    for (int i = 0; i < n && r == 0; i++) {
        double seconds = 0;
        r = peer_seconds(t, i, false, &seconds, err);
        slowest = seconds > slowest ? seconds : slowest;
    }
    *gbps = (double)RATE_BYTES / slowest * 1e-9;
out:
    return r;
}

/* All cards store a block to every other card at the same time, with their own instructions. */
static int all_to_all(struct rate_test *t, uint64_t seed, struct hx_error *err)
{
    const int n = t->ranks.n;
    int r = 0;
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(hx_k_content_fill(t->source[i], BLOCK_BYTES, seed + (uint64_t)i, NULL));
        HX_CU(cudaMemset(t->target[i], HX_POISON_BYTE, BLOCK_BYTES * HX_PROBE_RANKS));
        HX_CU(cudaDeviceSynchronize());
    }
    for (int i = 0; i < n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        for (int k = 1; k < n; k++)
            HX_CU(hx_k_copy(t->target[(i + k) % n] + (size_t)i * BLOCK_BYTES, t->source[i],
                            BLOCK_BYTES, k % 2 ? t->ranks.rank[i].stream : t->ranks.rank[i].back));
    }
    r = hx_ranks_sync(&t->ranks, err);
out:
    return r;
}

/* Compares bytes of the target of one rank; adds the wrong ones. */
static int crowd_look(struct rate_test *t, uint8_t *host, int from, int to, size_t at, size_t bytes,
                      uint64_t seed, uint64_t *bad, struct hx_error *err)
{
    struct hx_content_verdict v;
    int r = 0;
    HX_CU(cudaSetDevice(t->ranks.rank[to].device));
    if (t->plant && t->plant->content)
        t->plant->content(t->plant->ctx, "allpairs", from, to, t->target[to] + at, bytes);
    memset(host + bytes, HX_POISON_BYTE, HX_CONTENT_GUARD);
    HX_CU(cudaMemcpy(host, t->target[to] + at, bytes, cudaMemcpyDeviceToHost));
    hx_content_compare(host, bytes, seed, &v);
    *bad += v.bad;
out:
    return r;
}

/* Ping-pong of all pairs at the same time. *stuck: pairs that did not finish. */
static int crowd_flags(struct flag_test *t, uint64_t limit_ns, int *stuck, struct hx_error *err)
{
    const int n = t->ranks.n;
    cudaStream_t s[HX_PROBE_RANKS][HX_PROBE_RANKS] = {{NULL}};
    int r = flag_clear(t, err);
    for (int a = 0; r == 0 && a < n; a++) {
        for (int b = 0; r == 0 && b < n; b++) {
            if (a == b)
                continue;
            HX_CU(cudaSetDevice(t->ranks.rank[a].device));
            HX_CU(cudaStreamCreateWithFlags(&s[a][b], cudaStreamNonBlocking));
        }
    }
    for (int a = 0; r == 0 && a < n; a++) {
        for (int b = 0; r == 0 && b < n; b++) {
            if (a != b)
                r = flag_side(t, "allpairs", a, b, CROWD_TURNS, limit_ns, s[a][b], err);
        }
    }
    for (int a = 0; r == 0 && a < n; a++) {
        for (int b = 0; r == 0 && b < n; b++) {
            uint32_t done = 0;
            if (a == b)
                continue;
            HX_CU(cudaStreamSynchronize(s[a][b]));
            if ((r = flag_done(t, a, b, &done, err)) == 0)
                *stuck += done < CROWD_TURNS;
        }
    }
out:
    for (int a = 0; a < n; a++) {
        for (int b = 0; b < n; b++) {
            if (s[a][b])
                cudaStreamDestroy(s[a][b]);
        }
    }
    return r;
}

int hx_step_allpairs(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                     const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct hx_probe_p2p *p = &sh->result.p2p;
    struct rate_test t;
    struct flag_test f;
    const uint64_t seed = hx_probe_seed();
    uint64_t bad = 0;
    double gbps = NAN;
    int stuck = 0;
    uint8_t *host = malloc(RATE_BYTES + HX_CONTENT_GUARD);
    int r = rate_open(&t, sh, o, plant, true, err);
    if (r == 0 && !host)
        r = hx_fail(err, -ENOMEM, "all pairs: out of host memory");
    const int n = t.ranks.n;
    if (r == 0)
        r = ring(&t, seed, &gbps, err);
    for (int i = 0; r == 0 && i < n; i++)
        r = crowd_look(&t, host, i, (i + 1) % n, 0, RATE_BYTES, seed + (uint64_t)i, &bad, err);
    hx_probe_progress(sh, -1, 0.4);
    if (r == 0)
        r = all_to_all(&t, seed + 100, err);
    for (int from = 0; r == 0 && from < n; from++) {
        for (int to = 0; r == 0 && to < n; to++) {
            if (from != to)
                r = crowd_look(&t, host, from, to, (size_t)from * BLOCK_BYTES, BLOCK_BYTES,
                               seed + 100 + (uint64_t)from, &bad, err);
        }
    }
    hx_probe_progress(sh, -1, 0.7);
    rate_close(&t);
    free(host);
    if (r != 0)
        return r;
    r = flag_open(&f, sh, o, plant, err);
    if (r == 0)
        r = crowd_flags(&f, (uint64_t)o->flags_limit_ms * 1000000, &stuck, err);
    flag_close(&f);
    if (r != 0)
        return r;
    if (bad)
        snprintf(p->allpairs.note, sizeof(p->allpairs.note),
                 "%llu bytes wrong while all cards copy", (unsigned long long)bad);
    p->allpairs.outcome = bad ? HX_PROBE_CORRUPT : stuck ? HX_PROBE_HANG : HX_PROBE_OK;
    p->allpairs.ring_gbps = gbps;
    return 0;
}
