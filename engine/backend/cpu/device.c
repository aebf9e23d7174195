/* The CPU as a device: memory is memory, work is done when it is queued. */
#include <stdlib.h>

#include "backend/cpu/cpu.h"

struct hx_buffer {
    void *data;
};

static int cpu_open(int index, struct hx_device **out, struct hx_error *err)
{
    if (index != 0)
        return hx_fail(err, -ENODEV, "cpu: there is one device, number 0, not %d", index);
    struct hx_device *dev = calloc(1, sizeof(*dev));
    if (!dev || posix_memalign((void **)&dev->scratch, 64, HX_CPU_SCRATCH) != 0) {
        free(dev);
        return hx_fail(err, -ENOMEM, "cpu: out of memory for %u bytes of scratch", HX_CPU_SCRATCH);
    }
    *out = dev;
    return 0;
}

static void cpu_close(struct hx_device *dev)
{
    if (!dev)
        return;
    free(dev->scratch);
    free(dev);
}

static int cpu_alloc(struct hx_device *dev, enum hx_mem mem, size_t size, struct hx_buffer **out,
                     struct hx_error *err)
{
    (void)dev;
    (void)mem;
    struct hx_buffer *b = calloc(1, sizeof(*b));
    if (!b || posix_memalign(&b->data, 64, size ? size : 1) != 0) {
        free(b);
        return hx_fail(err, -ENOMEM, "cpu: out of memory for %zu bytes", size);
    }
    *out = b;
    return 0;
}

static void cpu_free(struct hx_buffer *b)
{
    if (!b)
        return;
    free(b->data);
    free(b);
}

static void *cpu_address(struct hx_buffer *b)
{
    return b->data;
}

static int cpu_copy(struct hx_device *dev, void *dst, const void *src, size_t size,
                    struct hx_error *err)
{
    (void)dev;
    (void)err;
    memmove(dst, src, size);
    return 0;
}

static int cpu_sync(struct hx_device *dev, struct hx_error *err)
{
    (void)dev;
    (void)err;
    return 0;
}

void *hx_scratch(struct hx_device *dev, size_t n, struct hx_error *err)
{
    n = (n + 63) / 64 * 64;
    if (n > HX_CPU_SCRATCH - dev->used) {
        hx_fail(err, -ENOMEM, "cpu: a kernel needs %zu bytes of scratch, %zu of %u are left", n,
                HX_CPU_SCRATCH - dev->used, HX_CPU_SCRATCH);
        return NULL;
    }
    void *p = dev->scratch + dev->used;
    dev->used += n;
    return p;
}

static const struct hx_kernels kernels = {
    .embed = hx_cpu_embed,
    .rms_norm = hx_cpu_rms_norm,
    .linear = hx_cpu_linear,
    .linear_grouped = hx_cpu_linear_grouped,
    .rope = hx_cpu_rope,
    .hc_mix = hx_cpu_hc_mix,
    .hc_collapse = hx_cpu_hc_collapse,
    .hc_expand = hx_cpu_hc_expand,
    .stream_mean = hx_cpu_stream_mean,
    .quantise = hx_cpu_quantise,
    .kv_store = hx_cpu_kv_store,
    .pool_groups = hx_cpu_pool_groups,
    .index_select = hx_cpu_index_select,
    .attend = hx_cpu_attend,
    .route = hx_cpu_route,
    .experts = hx_cpu_experts,
    .engram_rows = hx_cpu_engram_rows,
    .engram_gate = hx_cpu_engram_gate,
    .markov = hx_cpu_markov,
    .best = hx_cpu_best,
    .confidence = hx_cpu_confidence,
    .keep_rows = hx_cpu_keep_rows,
};

const struct hx_backend hx_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .address = cpu_address,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .kernels = &kernels,
};
