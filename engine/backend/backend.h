/* Devices, buffers and tensor views: what every part above may know about a back end.
 * The mathematics is in kernels.h. */
#ifndef HX_BACKEND_BACKEND_H
#define HX_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

enum hx_dtype {
    HX_DTYPE_F32,
    HX_DTYPE_BF16,
    HX_DTYPE_F16,
    HX_DTYPE_F8_E4M3,
    HX_DTYPE_F8_E8M0,
    HX_DTYPE_I8,
    HX_DTYPE_U8,
    HX_DTYPE_I16,
    HX_DTYPE_I32,
    HX_DTYPE_I64,
    HX_DTYPE_MAX
};

size_t hx_dtype_size(enum hx_dtype t);      /* bytes of one element */
const char *hx_dtype_name(enum hx_dtype t); /* safetensors spelling: "BF16", "F8_E4M3", ... */
enum hx_dtype hx_dtype_parse(const char *s, size_t len); /* HX_DTYPE_MAX: unknown */

/* A window onto device memory: contiguous, row-major, at most 4 dimensions. */
struct hx_tensor {
    enum hx_dtype dtype;
    int n_dims;
    int64_t ne[4]; /* outermost first; unused ones are 1 */
    void *data;    /* address the device understands */
};

static inline int64_t hx_tensor_rows(const struct hx_tensor *t)
{
    return t->ne[0];
}

/* ---- weights ---- */

enum hx_format {
    HX_FORMAT_DENSE, /* BF16 or F32 */
    HX_FORMAT_FP8,   /* e4m3 codes [out, in] + UE8M0 [out/32, in/32] */
    HX_FORMAT_FP4,   /* e2m1 nibbles [out, in/2], even index low + UE8M0 [out, in/32] */
    HX_FORMAT_EXL3,  /* trellis [in/16, out/16, 16 bits], suh [in], svh [out] (docs/exl3.md) */
    HX_FORMAT_MAX
};

enum hx_codebook { HX_CODEBOOK_3INST, HX_CODEBOOK_MCG, HX_CODEBOOK_MUL1, HX_CODEBOOK_MAX };

enum hx_weight_part {
    HX_PART_DATA,  /* values, codes or trellis */
    HX_PART_SCALE, /* FP8, FP4 */
    HX_PART_SUH,   /* EXL3 */
    HX_PART_SVH,   /* EXL3 */
    HX_PART_BIAS,  /* EXL3, optional */
    HX_PART_MAX
};

/* One bound parameter. A matrix multiplies as y[o] = sum_i W[o][i] x[i]; n_out, n_in are logical.
 */
struct hx_weight {
    int role;   /* enum hx_role, model/desc.h */
    int layer;  /* -1: none; draft layers follow the backbone */
    int expert; /* -1: none */
    enum hx_format format;
    enum hx_codebook codebook;          /* EXL3 */
    int bits;                           /* EXL3, 1-8 */
    int64_t n_out, n_in;                /* vectors: n_out = 1, n_in = length */
    struct hx_tensor part[HX_PART_MAX]; /* data NULL: part absent */
};

/* ---- device ---- */

#define HX_CUDA_SCRATCH ((size_t)256 << 20) /* working memory of the kernels on a card */

struct hx_device;
struct hx_buffer;
struct hx_kernels;
struct hx_graph;

enum hx_mem { HX_MEM_DEVICE, HX_MEM_PINNED, HX_MEM_MAX };

struct hx_backend {
    const char *name; /* "cpu", "cuda" */
    int (*open)(int index, struct hx_device **out, struct hx_error *err);
    void (*close)(struct hx_device *dev);
    int (*alloc)(struct hx_device *dev, enum hx_mem mem, size_t size, struct hx_buffer **out,
                 struct hx_error *err);
    void (*free)(struct hx_buffer *buf);
    void *(*address)(struct hx_buffer *buf);
    int (*upload)(struct hx_device *dev, void *dst, const void *src, size_t size,
                  struct hx_error *err);
    int (*download)(struct hx_device *dev, void *dst, const void *src, size_t size,
                    struct hx_error *err);
    int (*copy)(struct hx_device *dev, void *dst, const void *src, size_t size,
                struct hx_error *err);
    /* Waits for everything queued; reports errors of queued work (NaN scores among them). */
    int (*sync)(struct hx_device *dev, struct hx_error *err);
    const struct hx_kernels *kernels;

    /* ---- optional, NULL where there is none ---- */

    /* Device memory of card `index` in bytes: what is free and what it has. NULL: the host's. */
    int (*memory)(int index, uint64_t *avail, uint64_t *total, struct hx_error *err);
    /* What is queued between begin and end is recorded instead of run; replay queues it, as often
     * as wanted. Addresses and shapes stay those of the recording. */
    int (*capture_begin)(struct hx_device *dev, struct hx_error *err);
    int (*capture_end)(struct hx_device *dev, struct hx_graph **out, struct hx_error *err);
    int (*replay)(struct hx_device *dev, struct hx_graph *graph, struct hx_error *err);
    void (*graph_free)(struct hx_graph *graph);
    /* Queues a wait of that time. */
    int (*spin)(struct hx_device *dev, double seconds, struct hx_error *err);
    /* Reads size bytes and drops them: the measured read bandwidth of the card. */
    int (*read)(struct hx_device *dev, const void *src, size_t size, struct hx_error *err);
    int (*n_sm)(const struct hx_device *dev); /* multiprocessors */
    /* Writes out[i] = {clocks, nanoseconds}, U64, of each multiprocessor i < n. */
    int (*clock)(struct hx_device *dev, void *out, int n, struct hx_error *err);
};

/* NULL when there is no such back end in this build; err lists those there are. */
const struct hx_backend *hx_backend_select(const char *name, struct hx_error *err);

#endif
