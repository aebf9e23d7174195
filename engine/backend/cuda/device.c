/* A CUDA device as a back end: memory, copies, the stream, faults of queued work. */
#include "backend/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hx_buffer {
    void *data;
    bool pinned;
};

int hx_cuda_check(cudaError_t e, const char *what, struct hx_error *err)
{
    if (e == cudaSuccess)
        return 0;
    int r = e == cudaErrorMemoryAllocation                               ? -ENOMEM
            : e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver ? -ENODEV
            : e == cudaErrorInvalidValue                                 ? -EINVAL
                                                                         : -ENODEV;
    return hx_fail(err, r, "cuda: %s: %s", what, cudaGetErrorString(e));
}

static int open_memory(struct hx_device *d, struct hx_error *err)
{
    int r = hx_cuda_check(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking),
                          "creating a stream", err);
    if (r == 0)
        r = hx_cuda_check(cudaStreamCreateWithFlags(&d->side, cudaStreamNonBlocking),
                          "creating a stream", err);
    if (r == 0)
        r = hx_cuda_check(cudaEventCreateWithFlags(&d->fork, cudaEventDisableTiming),
                          "creating an event", err);
    if (r == 0)
        r = hx_cuda_check(cudaEventCreateWithFlags(&d->joined, cudaEventDisableTiming),
                          "creating an event", err);
    if (r == 0)
        r = hx_cuda_check(cudaMalloc((void **)&d->memory, HX_CUDA_SCRATCH), "working memory", err);
    d->site_room = d->memory;
    d->scratch = d->memory + HX_CUDA_SITE_ROOM;
    d->scratch_size = HX_CUDA_SCRATCH - HX_CUDA_SITE_ROOM;
    const size_t counters = HX_CUDA_MEETING_WORDS * sizeof(*d->counters);
    if (r == 0)
        r = hx_cuda_check(cudaMalloc((void **)&d->counters, counters), "counters", err);
    if (r == 0)
        r = hx_cuda_check(cudaMemset(d->counters, 0, counters), "counters", err);
    if (r == 0)
        r = hx_cuda_check(cudaHostAlloc((void **)&d->fault, sizeof(*d->fault), cudaHostAllocMapped),
                          "mapped memory", err);
    if (r == 0) {
        *d->fault = HX_CUDA_OK;
        r = hx_cuda_check(cudaHostGetDevicePointer((void **)&d->fault_dev, d->fault, 0),
                          "mapped memory", err);
    }
    return r;
}

static void cuda_close(struct hx_device *d)
{
    if (!d)
        return;
    if (d->stream) {
        cudaStreamSynchronize(d->stream);
        cudaStreamDestroy(d->stream);
    }
    if (d->side)
        cudaStreamDestroy(d->side);
    if (d->fork)
        cudaEventDestroy(d->fork);
    if (d->joined)
        cudaEventDestroy(d->joined);
    for (struct hx_cuda_table *t = d->tables, *next; t; t = next) {
        next = t->next;
        cudaFree((void *)(uintptr_t)t->choice.table);
        free(t);
    }
    cudaFree(d->memory);
    cudaFree(d->counters);
    cudaFreeHost(d->fault);
    free(d);
}

static int open_card(int index, bool exact, struct hx_device **out, struct hx_error *err)
{
    int n = 0;
    struct cudaDeviceProp prop;
    int r = hx_cuda_check(cudaGetDeviceCount(&n), "looking for cards", err);
    if (r < 0)
        return r;
    if (index < 0 || index >= n)
        return hx_fail(err, -ENODEV, "cuda: there is no card %d (cards found: %d)", index, n);
    r = hx_cuda_check(cudaSetDevice(index), "selecting the card", err);
    if (r == 0)
        r = hx_cuda_check(cudaGetDeviceProperties(&prop, index), "reading the card", err);
    if (r < 0)
        return r;
    if (prop.major < 8)
        return hx_fail(err, -ENODEV,
                       "cuda: card %d (%s) has compute capability %d.%d, 8.0 is needed", index,
                       prop.name, prop.major, prop.minor);
    struct hx_device *d = calloc(1, sizeof(*d));
    if (!d)
        return hx_fail(err, -ENOMEM, "out of memory");
    d->index = index;
    d->exact = exact;
    d->n_sm = prop.multiProcessorCount;
    snprintf(d->name, sizeof(d->name), "%s", prop.name);
    r = open_memory(d, err);
    if (r < 0) {
        cuda_close(d);
        return hx_wrap(err, r, "card %d (%s)", index, prop.name);
    }
    *out = d;
    return 0;
}

static int cuda_memory(int index, uint64_t *avail, uint64_t *total, struct hx_error *err)
{
    size_t left = 0, all = 0;
    int r = hx_cuda_check(cudaSetDevice(index), "selecting the card", err);
    if (r == 0)
        r = hx_cuda_check(cudaMemGetInfo(&left, &all), "reading the card's memory", err);
    if (r < 0)
        return r;
    *avail = left;
    *total = all;
    return 0;
}

static int cuda_open(int index, struct hx_device **out, struct hx_error *err)
{
    return open_card(index, false, out, err);
}

static int cuda_open_exact(int index, struct hx_device **out, struct hx_error *err)
{
    return open_card(index, true, out, err);
}

static int cuda_alloc(struct hx_device *d, enum hx_mem mem, size_t size, struct hx_buffer **out,
                      struct hx_error *err)
{
    struct hx_buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return hx_fail(err, -ENOMEM, "out of memory");
    b->pinned = mem == HX_MEM_PINNED;
    size = size ? size : 1;
    cudaError_t e =
        b->pinned ? cudaHostAlloc(&b->data, size, cudaHostAllocMapped) : cudaMalloc(&b->data, size);
    if (e == cudaSuccess) {
        *out = b;
        return 0;
    }
    free(b);
    size_t avail = 0, total = 0;
    cudaMemGetInfo(&avail, &total);
    return hx_fail(err, -ENOMEM,
                   "card %d: %zu MiB of %s memory wanted, %zu of %zu MiB are free: %s", d->index,
                   size >> 20, mem == HX_MEM_PINNED ? "pinned" : "device", avail >> 20, total >> 20,
                   cudaGetErrorString(e));
}

static void cuda_free(struct hx_buffer *b)
{
    if (!b)
        return;
    if (b->pinned)
        cudaFreeHost(b->data);
    else
        cudaFree(b->data);
    free(b);
}

static void *cuda_address(struct hx_buffer *b)
{
    return b->data;
}

static int transfer(struct hx_device *d, void *dst, const void *src, size_t size,
                    enum cudaMemcpyKind kind, const char *what, struct hx_error *err)
{
    return hx_cuda_check(cudaMemcpyAsync(dst, src, size, kind, d->stream), what, err);
}

static int cuda_upload(struct hx_device *d, void *dst, const void *src, size_t size,
                       struct hx_error *err)
{
    return transfer(d, dst, src, size, cudaMemcpyHostToDevice, "upload", err);
}

static int cuda_download(struct hx_device *d, void *dst, const void *src, size_t size,
                         struct hx_error *err)
{
    int r = hx_cuda_settle(d, err);
    return r < 0 ? r : transfer(d, dst, src, size, cudaMemcpyDeviceToHost, "download", err);
}

static int cuda_copy(struct hx_device *d, void *dst, const void *src, size_t size,
                     struct hx_error *err)
{
    int r = hx_cuda_settle(d, err);
    return r < 0 ? r : transfer(d, dst, src, size, cudaMemcpyDeviceToDevice, "copy", err);
}

static int cuda_sync(struct hx_device *d, struct hx_error *err)
{
    static const char *const faults[HX_CUDA_FAULT_MAX] = {
        [HX_CUDA_NAN_ROUTER] = "router scores: NaN, or fewer finite ones than experts wanted",
        [HX_CUDA_NAN_INDEX] = "index scores: NaN",
        [HX_CUDA_NAN_DRAFT] = "draft logits: NaN or infinite",
        [HX_CUDA_NAN_LOGITS] = "logits: NaN or infinite",
    };
    int r = hx_cuda_settle(d, err);
    if (r == 0)
        r = hx_cuda_check(cudaStreamSynchronize(d->stream), "queued work", err);
    uint32_t fault = *(volatile uint32_t *)d->fault;
    *d->fault = HX_CUDA_OK;
    if (r == 0 && fault != HX_CUDA_OK)
        r = hx_fail(err, -EDOM, "%s", fault < HX_CUDA_FAULT_MAX ? faults[fault] : "unknown fault");
    return r;
}

/* ---- recorded work ---- */

struct hx_graph {
    cudaGraphExec_t exec;
};

static int capture_begin(struct hx_device *d, struct hx_error *err)
{
    int r = hx_cuda_settle(d, err);
    return r < 0
               ? r
               : hx_cuda_check(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal),
                               "recording", err);
}

static int capture_end(struct hx_device *d, struct hx_graph **out, struct hx_error *err)
{
    cudaGraph_t graph = NULL;
    struct hx_graph *g = calloc(1, sizeof(*g));
    int settled = hx_cuda_settle(d, err);
    int r = hx_cuda_check(cudaStreamEndCapture(d->stream, &graph), "recording", err);
    r = r == 0 ? settled : r;
    if (r == 0 && !g)
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_cuda_check(cudaGraphInstantiate(&g->exec, graph, 0), "recorded work", err);
    if (graph)
        cudaGraphDestroy(graph);
    if (r < 0) {
        free(g);
        return r;
    }
    *out = g;
    return 0;
}

static int replay(struct hx_device *d, struct hx_graph *g, struct hx_error *err)
{
    return hx_cuda_check(cudaGraphLaunch(g->exec, d->stream), "recorded work", err);
}

static void graph_free(struct hx_graph *g)
{
    if (!g)
        return;
    cudaGraphExecDestroy(g->exec);
    free(g);
}

static int read_memory(struct hx_device *d, const void *src, size_t size, struct hx_error *err)
{
    return hx_cuda_check(hx_cu_read(d->stream, src, size, d->n_sm * 4, (uint32_t *)d->scratch),
                         "reading memory", err);
}

static int spin(struct hx_device *d, double seconds, struct hx_error *err)
{
    return seconds > 0
               ? hx_cuda_check(hx_cu_spin(d->stream, (uint64_t)(seconds * 1e9)), "a wait", err)
               : 0;
}

static int n_sm(const struct hx_device *d)
{
    return d->n_sm;
}

static int sample_clock(struct hx_device *d, void *out, int n, struct hx_error *err)
{
    return hx_cuda_check(hx_cu_clock(d->stream, out, n, d->n_sm * 2), "sampling clocks", err);
}

void *hx_cuda_scratch(struct hx_device *dev, size_t n, struct hx_error *err)
{
    n = (n + 255) / 256 * 256;
    if (n > dev->scratch_size - dev->used) {
        hx_fail(err, -ENOMEM,
                "cuda: a kernel needs %zu bytes of working memory, %zu of %zu are left", n,
                dev->scratch_size - dev->used, dev->scratch_size);
        return NULL;
    }
    void *p = dev->scratch + dev->used;
    dev->used += n;
    return p;
}

void hx_cuda_scratch_reset(struct hx_device *dev, size_t mark)
{
    dev->used = mark;
}

int hx_cuda_settle(struct hx_device *dev, struct hx_error *err)
{
    if (dev->mix.n_row == 0)
        return 0;
    int r = hx_cuda_check(hx_cu_site_mix(dev->stream, &dev->mix), "hc_mix", err);
    dev->mix.n_row = 0;
    return r;
}

/* The two differ in which kernels their devices take. */
#define BACKEND(title, open_device, table)                                                         \
    {                                                                                              \
        .name = title, .open = open_device, .close = cuda_close, .alloc = cuda_alloc,              \
        .free = cuda_free, .address = cuda_address, .upload = cuda_upload,                         \
        .download = cuda_download, .copy = cuda_copy, .sync = cuda_sync, .kernels = &table,        \
        .capture_begin = capture_begin, .capture_end = capture_end, .replay = replay,              \
        .graph_free = graph_free, .read = read_memory, .n_sm = n_sm, .clock = sample_clock,        \
        .spin = spin, .memory = cuda_memory,                                                       \
    }

const struct hx_backend hx_backend_cuda = BACKEND("cuda", cuda_open, hx_cuda_kernels);

/* Every operation by its plain kernel: the CPU back end's bits on the card, to find where a fast
 * kernel drifts. */
const struct hx_backend hx_backend_cuda_exact =
    BACKEND("cuda-exact", cuda_open_exact, hx_cuda_exact_kernels);
