/* The tiny model on a back end. Its folders lie beside the test (make gpu-kit puts them there). */
#ifndef TESTS_GPU_TINY_H
#define TESTS_GPU_TINY_H

#include "gpu.h"

#include <cuda_runtime_api.h>

#include "model/safetensors.h"
#include "run/draft.h"
#include "run/rank.h"

#define MODEL  "model"
#define HYBRID "model_exl3"

/* Bounds of logits, relative RMS (docs/numerics.md, "Other back ends"). */
#define MAX_LOGITS 5e-3
#define MAX_WHOLE  0.06 /* fast kernels, whole model: choices that differ move everything behind */

static inline struct hx_rank *open_rank(const char *dir, const char *backend)
{
    struct hx_rank_options o = {
        .model_dir = dir,
        .backend = backend,
        .mode = HX_MODE_W8A16,
        .max_tok = 1024,
        .max_seq = 8,
        .max_context = 2048,
        .drafts = true,
        .kv = {.block_tok = 16, .ring_tok = 160, .n_blocks = 512, .n_seqs = 9, .n_snapshots = 4},
    };
    struct hx_rank *r = NULL;
    CHECK(hx_rank_open(&o, &r, ERR));
    return r;
}

static inline void make_prompt(int32_t *t, int n, int seed)
{
    uint32_t x = (uint32_t)seed * 2654435761u + 12345u;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        t[i] = 3 + (int32_t)((x >> 8) % 470);
    }
}

static inline int32_t best(const float *x, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

static inline void step(struct hx_rank *r, struct hx_kv_seq *s, const int32_t *t, int n,
                        int n_logits, float *logits)
{
    struct hx_step_seq q = {.kv = s, .tokens = t, .n_tok = n, .n_logits = n_logits};
    CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
}

static inline struct hx_kv_seq *new_seq(struct hx_rank *r)
{
    struct hx_kv_seq *s = NULL;
    CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
    return s;
}

/* A recorded array (free it); NULL: there is none. */
static inline void *golden_get(const char *dir, int64_t *n, const char *name, const char *what)
{
    char path[96], array[96];
    struct hx_st_file *f = NULL;
    snprintf(path, sizeof(path), "%s/golden/golden.safetensors", dir);
    snprintf(array, sizeof(array), "%s.%s", name, what);
    CHECK(hx_st_open(path, &f, ERR));
    const struct hx_st_tensor *t = hx_st_find(f, array);
    void *data = t ? malloc(t->size + 1) : NULL;
    if (t) {
        assert_non_null(data);
        CHECK(hx_st_read(f, t, data, ERR));
        *n = t->ne[0];
    }
    hx_st_close(f);
    return data;
}

/* What a value of a pass holds: device or host memory, whose work may still be queued. */
static inline void read_value(void *to, const struct hx_tensor *t, size_t size)
{
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(to, t->data, size, cudaMemcpyDefault) != cudaSuccess)
        fail_msg("reading a value: %s", cudaGetErrorString(cudaGetLastError()));
}

#endif
