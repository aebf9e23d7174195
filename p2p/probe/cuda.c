/* Errors, timing and the set of ranks. */
#include "probe/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int hx_cu(cudaError_t e, const char *what, struct hx_error *err)
{
    if (e == cudaSuccess)
        return 0;
    const int r =
        hx_fail(err, -EIO, "%.120s: %s (%s)", what, cudaGetErrorName(e), cudaGetErrorString(e));
    if (err) {
        err->domain = HX_DOMAIN_CUDA;
        err->native = (int)e;
    }
    return r;
}

double hx_probe_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hx_probe_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

uint64_t hx_probe_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = (uint64_t)(hx_probe_now() * 1e9);
    return seed;
}

int hx_ranks_device_count(const struct hx_probe_shared *sh, const struct hx_probe_options *o)
{
    const int n = o->one_device ? o->n_ranks : sh->result.n_devices;
    return n > HX_PROBE_RANKS ? HX_PROBE_RANKS : n;
}

int hx_ranks_open(struct hx_ranks *ranks, const struct hx_probe_shared *sh,
                  const struct hx_probe_options *o, bool peers, struct hx_error *err)
{
    int r = 0;
    memset(ranks, 0, sizeof(*ranks));
    ranks->n = hx_ranks_device_count(sh, o);
    /* Kernels that wait for each other have to run at the same time: a queue for each stream even
     * when all ranks share a card, and no code loaded while somebody already waits. The driver
     * reads both when the first context is made. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    for (int i = 0; i < ranks->n; i++) {
        struct hx_rank *k = &ranks->rank[i];
        k->device = o->one_device ? 0 : i;
        HX_CU(cudaSetDevice(k->device));
        HX_CU(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
        HX_CU(cudaStreamCreateWithFlags(&k->back, cudaStreamNonBlocking));
        HX_CU(cudaEventCreate(&k->start));
        HX_CU(cudaEventCreate(&k->end));
        HX_CU(cudaEventCreate(&k->back_start));
        HX_CU(cudaEventCreate(&k->back_end));
    }
    HX_CU(cudaHostAlloc((void **)&ranks->gate, sizeof(*ranks->gate),
                        cudaHostAllocPortable | cudaHostAllocMapped));
    if (peers) {
        cudaError_t first = cudaSuccess;
        hx_ranks_enable(ranks, &first);
        HX_CU(first);
    }
out:
    if (r != 0)
        hx_ranks_close(ranks);
    return r;
}

/* Returns the number of pairs that failed; *first is the first error. */
int hx_ranks_enable(const struct hx_ranks *ranks, cudaError_t *first)
{
    int failed = 0;
    *first = cudaSuccess;
    for (int i = 0; i < ranks->n; i++) {
        for (int j = 0; j < ranks->n; j++) {
            if (ranks->rank[i].device == ranks->rank[j].device)
                continue;
            cudaError_t e = cudaSetDevice(ranks->rank[i].device);
            if (e == cudaSuccess)
                e = cudaDeviceEnablePeerAccess(ranks->rank[j].device, 0);
            if (e == cudaErrorPeerAccessAlreadyEnabled)
                e = cudaSuccess;
            (void)cudaGetLastError();
            if (e != cudaSuccess && failed++ == 0)
                *first = e;
        }
    }
    return failed;
}

void hx_ranks_close(struct hx_ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++) {
        struct hx_rank *k = &ranks->rank[i];
        cudaEvent_t events[] = {k->start, k->end, k->back_start, k->back_end};
        for (size_t e = 0; e < sizeof(events) / sizeof(events[0]); e++) {
            if (events[e])
                cudaEventDestroy(events[e]);
        }
        if (k->stream)
            cudaStreamDestroy(k->stream);
        if (k->back)
            cudaStreamDestroy(k->back);
    }
    cudaFreeHost(ranks->gate);
    memset(ranks, 0, sizeof(*ranks));
}

int hx_ranks_sync(const struct hx_ranks *ranks, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; i < ranks->n; i++) {
        HX_CU(cudaSetDevice(ranks->rank[i].device));
        HX_CU(cudaStreamSynchronize(ranks->rank[i].stream));
        HX_CU(cudaStreamSynchronize(ranks->rank[i].back));
    }
out:
    return r;
}

void hx_ranks_gate_shut(const struct hx_ranks *ranks)
{
    __atomic_store_n(ranks->gate, 0, __ATOMIC_RELEASE);
}

void hx_ranks_gate_open(const struct hx_ranks *ranks)
{
    __atomic_store_n(ranks->gate, 1, __ATOMIC_RELEASE);
}
