/* CUDA plumbing of the probe's steps: errors, ranks, timing. Only children include it. */
#ifndef HX_PROBE_CUDA_H
#define HX_PROBE_CUDA_H

#include <cuda_runtime_api.h>

#include "probe/probe.h"

/* 0, or -EIO with "what: name (text)". */
int hx_cu(cudaError_t e, const char *what, struct hx_error *err) HX_MUST;
/* Leaves the function through "out" with r set when a call fails. */
#define HX_CU(call)                                                                                \
    do {                                                                                           \
        if ((r = hx_cu((call), #call, err)) != 0)                                                  \
            goto out;                                                                              \
    } while (0)

double hx_probe_now(void); /* seconds, monotonic */
double hx_probe_median(double *v, int n);
uint64_t hx_probe_seed(void); /* fresh random bits */
static inline bool hx_probe_stopped(struct hx_probe_shared *sh, int device)
{
    return atomic_load(&sh->stop[hx_probe_slot(device)]) != 0;
}
static inline void hx_probe_progress(struct hx_probe_shared *sh, int device, double part)
{
    atomic_store(&sh->permille[hx_probe_slot(device)], (unsigned)(1000 * part));
}

/* The cards of a pair test, or several streams of one card (options.one_device). */
struct hx_rank {
    int device;
    cudaStream_t stream, back; /* back: for the other direction */
    cudaEvent_t start, end, back_start, back_end;
};
struct hx_ranks {
    int n;
    struct hx_rank rank[HX_PROBE_RANKS];
    uint32_t *gate; /* mapped host word: kernels of hx_k_gate wait until it is set */
};
/* peers: also enables peer access on every pair, which has to succeed. */
int hx_ranks_open(struct hx_ranks *ranks, const struct hx_probe_shared *sh,
                  const struct hx_probe_options *o, bool peers, struct hx_error *err) HX_MUST;
void hx_ranks_close(struct hx_ranks *ranks);
int hx_ranks_enable(const struct hx_ranks *ranks, cudaError_t *first);
int hx_ranks_sync(const struct hx_ranks *ranks, struct hx_error *err) HX_MUST;
int hx_ranks_device_count(const struct hx_probe_shared *sh, const struct hx_probe_options *o);
/* Longest time that a gate holds; the host opens it long before. */
#define HX_GATE_NS 5000000000ull
void hx_ranks_gate_shut(const struct hx_ranks *ranks);
void hx_ranks_gate_open(const struct hx_ranks *ranks);

hx_probe_fn hx_step_enumerate, hx_step_context, hx_step_rates, hx_step_link, hx_step_alias,
    hx_step_pattern, hx_step_access, hx_step_staged, hx_step_content, hx_step_ipc, hx_step_flags,
    hx_step_peer_rates, hx_step_allpairs, hx_step_abnormal, hx_step_reduce_peer,
    hx_step_reduce_host, hx_step_reduce_nccl;

#endif
