/* All-reduce by NCCL with its peer paths off: the other candidate of the host arm. NCCL is no part
 * of the product; without the library the arm is simply not run. */
#include "probe/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "probe/reduce.h"

#define REPEATS 200
#define WARM    20

/* The part of NCCL's interface that is used, by its documented values. */
enum { NCCL_SUM = 0, NCCL_INT32 = 2, NCCL_BF16 = 9 };
struct nccl {
    void *library;
    int (*comm_init_all)(void **comms, int n, const int *devices);
    int (*comm_destroy)(void *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm,
                      cudaStream_t stream);
    const char *(*error_string)(int code);
};

static int nccl_check(const struct nccl *lib, int code, const char *what, struct hx_error *err)
{
    if (code == 0)
        return 0;
    const int r = hx_fail(err, -EIO, "%s: %s", what, lib->error_string(code));
    if (err) {
        err->domain = HX_DOMAIN_NCCL;
        err->native = code;
    }
    return r;
}

/* -ENOENT: no such library. */
static int nccl_open(struct nccl *lib, const char *name, struct hx_error *err)
{
    const struct {
        const char *name;
        void *to;
    } rows[] = {
        {"ncclCommInitAll", &lib->comm_init_all}, {"ncclCommDestroy", &lib->comm_destroy},
        {"ncclGroupStart", &lib->group_start},    {"ncclGroupEnd", &lib->group_end},
        {"ncclAllReduce", &lib->all_reduce},      {"ncclGetErrorString", &lib->error_string},
    };
    memset(lib, 0, sizeof(*lib));
    lib->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib->library)
        return hx_fail(err, -ENOENT, "%s", dlerror());
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *symbol = dlsym(lib->library, rows[i].name);
        if (!symbol) {
            dlclose(lib->library);
            return hx_fail(err, -ENOENT, "%s has no %s", name, rows[i].name);
        }
        memcpy(rows[i].to, &symbol, sizeof(symbol));
    }
    return 0;
}

struct nccl_test {
    struct nccl lib;
    struct hx_ranks ranks;
    void *comm[HX_PROBE_RANKS];
    uint8_t *x[HX_PROBE_RANKS];
};

static int nccl_launch(struct nccl_test *t, size_t bytes, bool bf16, struct hx_error *err)
{
    int r = nccl_check(&t->lib, t->lib.group_start(), "ncclGroupStart", err);
    for (int i = 0; r == 0 && i < t->ranks.n; i++)
        r = nccl_check(&t->lib,
                       t->lib.all_reduce(t->x[i], t->x[i], bytes / (bf16 ? 2 : 4),
                                         bf16 ? NCCL_BF16 : NCCL_INT32, NCCL_SUM, t->comm[i],
                                         t->ranks.rank[i].stream),
                       "ncclAllReduce", err);
    return r != 0 ? r : nccl_check(&t->lib, t->lib.group_end(), "ncclGroupEnd", err);
}

/* int32 sums have to be exact; NCCL adds bf16 in its own order and rounds in between, so its bf16
 * is only timed. */
static int nccl_exact(struct nccl_test *t, size_t bytes, struct hx_reduce_data *d, bool *wrong,
                      struct hx_error *err)
{
    int r = 0;
    hx_reduce_fill(d, t->ranks.n, bytes, false, hx_probe_seed());
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemcpy(t->x[i], d->partial[i], bytes, cudaMemcpyHostToDevice));
        HX_CU(cudaDeviceSynchronize());
    }
    if ((r = nccl_launch(t, bytes, false, err)) != 0 || (r = hx_ranks_sync(&t->ranks, err)) != 0)
        goto out;
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMemcpy(d->partial[i], t->x[i], bytes, cudaMemcpyDeviceToHost));
        *wrong = *wrong || memcmp(d->partial[i], d->sum, bytes) != 0;
    }
out:
    return r;
}

static int nccl_time(struct nccl_test *t, size_t bytes, int repeats, double *seconds,
                     struct hx_error *err)
{
    const struct hx_rank *first = &t->ranks.rank[0];
    double sample[REPEATS];
    int r = 0;
    for (int k = -WARM; k < repeats; k++) {
        float ms = 0;
        HX_CU(cudaSetDevice(first->device));
        HX_CU(cudaEventRecord(first->start, first->stream));
        if ((r = nccl_launch(t, bytes, true, err)) != 0)
            goto out;
        HX_CU(cudaSetDevice(first->device));
        HX_CU(cudaEventRecord(first->end, first->stream));
        if ((r = hx_ranks_sync(&t->ranks, err)) != 0)
            goto out;
        HX_CU(cudaEventElapsedTime(&ms, first->start, first->end));
        sample[k < 0 ? 0 : k] = ms * 1e-3;
    }
    *seconds = hx_probe_median(sample, repeats);
out:
    return r;
}

int hx_step_reduce_nccl(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                        const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)plant, (void)device;
    struct hx_probe_arm *arm = &sh->result.collectives.nccl_host;
    struct nccl_test t;
    struct hx_reduce_data d;
    int devices[HX_PROBE_RANKS], r = 0;
    bool wrong = false;
    memset(&t, 0, sizeof(t));
    /* NCCL wants distinct cards, so the self-test on one card has nothing to run. */
    if (!o->nccl || o->one_device)
        return 0;
    if ((r = hx_reduce_data_init(&d, err)) != 0)
        return r;
    setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    r = nccl_open(&t.lib, o->nccl, err);
    if (r != 0) {
        snprintf(arm->note, sizeof(arm->note), "%.150s", err ? err->text : "");
        hx_reduce_data_done(&d);
        return r == -ENOENT ? 0 : r;
    }
    if ((r = hx_ranks_open(&t.ranks, sh, o, false, err)) != 0)
        goto out;
    for (int i = 0; i < t.ranks.n; i++) {
        devices[i] = t.ranks.rank[i].device;
        HX_CU(cudaSetDevice(devices[i]));
        HX_CU(cudaMalloc((void **)&t.x[i], HX_PROBE_LARGE_BYTES));
        HX_CU(cudaMemset(t.x[i], 0, HX_PROBE_LARGE_BYTES));
    }
    r = nccl_check(&t.lib, t.lib.comm_init_all(t.comm, t.ranks.n, devices), "ncclCommInitAll", err);
    for (int i = 0; r == 0 && i < HX_PROBE_COUNTS; i++)
        r = nccl_exact(&t, (size_t)hx_probe_small_bytes[i], &d, &wrong, err);
    if (r == 0)
        r = nccl_exact(&t, HX_PROBE_LARGE_BYTES, &d, &wrong, err);
    for (int i = 0; r == 0 && !wrong && i < HX_PROBE_COUNTS; i++) {
        r = nccl_time(&t, (size_t)hx_probe_small_bytes[i], REPEATS, &arm->us[i], err);
        arm->us[i] *= 1e6;
    }
    if (r == 0 && !wrong) {
        double seconds = 0;
        r = nccl_time(&t, HX_PROBE_LARGE_BYTES, 7, &seconds, err);
        arm->busbw_gbps = hx_reduce_busbw(HX_PROBE_LARGE_BYTES, t.ranks.n, seconds);
    }
    if (r == 0) {
        arm->exact = !wrong;
        arm->outcome = wrong ? HX_PROBE_WRONG : HX_PROBE_OK;
    }
out:
    for (int i = 0; i < t.ranks.n; i++) {
        if (t.comm[i])
            t.lib.comm_destroy(t.comm[i]);
        cudaFree(t.x[i]);
    }
    hx_ranks_close(&t.ranks);
    hx_reduce_data_done(&d);
    return r;
}
