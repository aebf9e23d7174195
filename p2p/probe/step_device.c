/* One card alone: context, arithmetic and memory rates, host link. */
#include "probe/cuda.h"

#include <stdio.h>

#include "kernels/kernels.h"

#define WARM_S      0.5
#define REPEATS     7
#define GEMM_N      8192
#define GEMM_S      1.0
#define READ_BYTES  ((size_t)4 << 30)
#define LINK_BYTES  ((size_t)256 << 20)
#define FMA_SECONDS 3e-3

int hx_step_enumerate(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                      const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)device;
    int n = 0, r = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorNoDevice)
        return hx_fail(err, -ENODEV, "the driver offers no card");
    if (e == cudaErrorInsufficientDriver)
        return hx_fail(err, -ENODEV,
                       "no NVIDIA driver is loaded, or it is older than this program "
                       "needs (CUDA %d.%d)",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    HX_CU(e);
    sh->result.n_devices = n > HX_PROBE_DEVICES ? HX_PROBE_DEVICES : n;
out:
    return r;
}

int hx_step_context(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                    const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant;
    struct hx_probe_device *d = &sh->result.device[device];
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    void *p = NULL;
    int r = 0;
    HX_CU(cudaSetDevice(device));
    HX_CU(cudaMalloc(&p, 1 << 20));
    /* A context alone proves little: a kernel has to run. */
    HX_CU(hx_k_content_fill(p, 1 << 20, 1, NULL));
    HX_CU(cudaDeviceSynchronize());
    HX_CU(cudaMemGetInfo(&free_bytes, &total));
    HX_CU(cudaGetDeviceProperties(&prop, device));
    d->sm_count = prop.multiProcessorCount;
    d->cc_major = prop.major;
    d->cc_minor = prop.minor;
    d->l2_kib = (uint32_t)(prop.l2CacheSize / 1024);
    d->total_mib = (uint32_t)(total >> 20);
    const uint8_t *u = (const uint8_t *)prop.uuid.bytes;
    snprintf(d->uuid, sizeof(d->uuid),
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    d->context = HX_PROBE_CONTEXT_OK;
out:
    cudaFree(p);
    return r;
}

struct timer {
    cudaEvent_t start, end;
};

/* Seconds between the two events. */
static int timer_read(const struct timer *t, double *seconds, struct hx_error *err)
{
    float ms = 0;
    int r = 0;
    HX_CU(cudaEventSynchronize(t->end));
    HX_CU(cudaEventElapsedTime(&ms, t->start, t->end));
    *seconds = ms * 1e-3;
out:
    return r;
}

static int rate_fma(struct hx_probe_device *d, const struct timer *t, void *sink,
                    struct hx_error *err)
{
    double seconds[REPEATS], flop = 0;
    unsigned iterations = 16;
    int r = 0;
    const double until = hx_probe_now() + WARM_S;
    /* Raises the clock out of idle, and finds how many iterations take about 3 ms. */
    do {
        HX_CU(cudaEventRecord(t->start, NULL));
        HX_CU(hx_k_fma(d->sm_count * 8, iterations, sink, &flop, NULL));
        HX_CU(cudaEventRecord(t->end, NULL));
        if ((r = timer_read(t, &seconds[0], err)) != 0)
            goto out;
        if (seconds[0] < FMA_SECONDS && iterations < 1u << 20)
            iterations *= 2;
    } while (hx_probe_now() < until);
    for (int i = 0; i < REPEATS; i++) {
        HX_CU(cudaEventRecord(t->start, NULL));
        HX_CU(hx_k_fma(d->sm_count * 8, iterations, sink, &flop, NULL));
        HX_CU(cudaEventRecord(t->end, NULL));
        if ((r = timer_read(t, &seconds[i], err)) != 0)
            goto out;
    }
    d->fp32_fma_tflops = flop / hx_probe_median(seconds, REPEATS) * 1e-12;
out:
    return r;
}

static int rate_gemm(struct hx_probe_device *d, const struct timer *t, struct hx_error *err)
{
    const size_t n = (size_t)GEMM_N * GEMM_N;
    void *a = NULL, *b = NULL, *c = NULL;
    double seconds[256];
    int r = 0, count = 0;
    HX_CU(cudaMalloc(&a, n * 2));
    HX_CU(cudaMalloc(&b, n * 2));
    HX_CU(cudaMalloc(&c, n * 2));
    HX_CU(hx_k_fill_bf16(a, n, 1, NULL));
    HX_CU(hx_k_fill_bf16(b, n, 2, NULL));
    HX_CU(hx_k_gemm(a, b, c, GEMM_N, GEMM_N, NULL));
    for (const double until = hx_probe_now() + GEMM_S;
         count < 256 && (count < 3 || hx_probe_now() < until); count++) {
        HX_CU(cudaEventRecord(t->start, NULL));
        HX_CU(hx_k_gemm(a, b, c, GEMM_N, GEMM_N, NULL));
        HX_CU(cudaEventRecord(t->end, NULL));
        if ((r = timer_read(t, &seconds[count], err)) != 0)
            goto out;
    }
    d->bf16_tflops = 2.0 * n * GEMM_N / hx_probe_median(seconds, count) * 1e-12;
out:
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    return r;
}

static int rate_memory(struct hx_probe_device *d, const struct timer *t, void *sink,
                       struct hx_error *err)
{
    size_t free_bytes = 0, total = 0, bytes = READ_BYTES;
    double seconds[REPEATS];
    uint8_t *p = NULL;
    int r = 0;
    HX_CU(cudaMemGetInfo(&free_bytes, &total));
    while (bytes > free_bytes / 2 && bytes > (size_t)64 << 20)
        bytes /= 2;
    HX_CU(cudaMalloc((void **)&p, bytes));
    HX_CU(hx_k_content_fill(p, bytes, 7, NULL));
    for (int i = -2; i < REPEATS; i++) {
        HX_CU(cudaEventRecord(t->start, NULL));
        HX_CU(hx_k_read(p, bytes, d->sm_count * 4, sink, NULL));
        HX_CU(cudaEventRecord(t->end, NULL));
        if ((r = timer_read(t, &seconds[i < 0 ? 0 : i], err)) != 0)
            goto out;
    }
    d->hbm_read_gbps = (double)bytes / hx_probe_median(seconds, REPEATS) * 1e-9;
    for (int i = -2; i < REPEATS; i++) {
        HX_CU(cudaEventRecord(t->start, NULL));
        HX_CU(cudaMemcpyAsync(p, p + bytes / 2, bytes / 2, cudaMemcpyDeviceToDevice, NULL));
        HX_CU(cudaEventRecord(t->end, NULL));
        if ((r = timer_read(t, &seconds[i < 0 ? 0 : i], err)) != 0)
            goto out;
    }
    d->hbm_copy_gbps = (double)bytes / hx_probe_median(seconds, REPEATS) * 1e-9;
out:
    cudaFree(p);
    return r;
}

int hx_step_rates(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                  const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant;
    struct hx_probe_device *d = &sh->result.device[device];
    struct timer t = {NULL, NULL};
    float *small = NULL, cycles = 0;
    int r = 0;
    HX_CU(cudaSetDevice(device));
    HX_CU(cudaEventCreate(&t.start));
    HX_CU(cudaEventCreate(&t.end));
    HX_CU(cudaMalloc((void **)&small, 256));
    if ((r = rate_fma(d, &t, small, err)) != 0)
        goto out;
    HX_CU(hx_k_mma_latency(small, small + 1, NULL));
    HX_CU(cudaMemcpy(&cycles, small, sizeof(cycles), cudaMemcpyDeviceToHost));
    d->mma_cycles = cycles;
    hx_probe_progress(sh, device, 0.2);
    if ((r = rate_gemm(d, &t, err)) != 0)
        goto out;
    hx_probe_progress(sh, device, 0.8);
    r = rate_memory(d, &t, small, err);
out:
    cudaFree(small);
    if (t.start)
        cudaEventDestroy(t.start);
    if (t.end)
        cudaEventDestroy(t.end);
    return r;
}

int hx_step_link(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                 const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant;
    struct hx_probe_device *d = &sh->result.device[device];
    struct timer t = {NULL, NULL};
    void *host = NULL, *card = NULL;
    double seconds[REPEATS];
    int r = 0;
    HX_CU(cudaSetDevice(device));
    HX_CU(cudaEventCreate(&t.start));
    HX_CU(cudaEventCreate(&t.end));
    HX_CU(cudaHostAlloc(&host, LINK_BYTES, cudaHostAllocDefault));
    HX_CU(cudaMalloc(&card, LINK_BYTES));
    HX_CU(hx_k_content_fill(card, LINK_BYTES, 3, NULL));
    for (int up = 0; up < 2; up++) {
        for (int i = -1; i < REPEATS; i++) {
            HX_CU(cudaEventRecord(t.start, NULL));
            HX_CU(cudaMemcpyAsync(up ? card : host, up ? host : card, LINK_BYTES, cudaMemcpyDefault,
                                  NULL));
            HX_CU(cudaEventRecord(t.end, NULL));
            if ((r = timer_read(&t, &seconds[i < 0 ? 0 : i], err)) != 0)
                goto out;
            if (hx_probe_stopped(sh, device))
                goto out;
        }
        *(up ? &d->h2d_gbps : &d->d2h_gbps) =
            (double)LINK_BYTES / hx_probe_median(seconds, REPEATS) * 1e-9;
    }
out:
    cudaFree(card);
    cudaFreeHost(host);
    if (t.start)
        cudaEventDestroy(t.start);
    if (t.end)
        cudaEventDestroy(t.end);
    return r;
}
