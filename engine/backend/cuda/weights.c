/* Bound parameters in the form that kernels take. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>

struct hx_cuda_weight hx_cuda_weight(const struct hx_weight *w)
{
    const struct hx_tensor *data = &w->part[HX_PART_DATA];
    struct hx_cuda_weight c = {
        .format = (int32_t)w->format,
        .codebook = (int32_t)w->codebook,
        .bits = w->bits,
        .is_bf16 = data->dtype == HX_DTYPE_BF16,
        .bias_is_f32 = w->part[HX_PART_BIAS].dtype == HX_DTYPE_F32,
        .n_out = w->n_out,
        .n_in = w->n_in,
        .data = data->data,
        .scale = w->part[HX_PART_SCALE].data,
        .suh = w->part[HX_PART_SUH].data,
        .svh = w->part[HX_PART_SVH].data,
        .bias = w->part[HX_PART_BIAS].data,
    };
    if (w->format == HX_FORMAT_FP8)
        c.scale_columns = (int32_t)w->part[HX_PART_SCALE].ne[1];
    if (w->format == HX_FORMAT_EXL3) {
        c.k_tiles = (int32_t)data->ne[0];
        c.n_tiles = (int32_t)data->ne[1];
    }
    return c;
}

static int32_t mul1_bits(const struct hx_cuda_weight *w)
{
    bool plain = w->format == (int32_t)HX_FORMAT_EXL3 && w->codebook == (int32_t)HX_CODEBOOK_MUL1 &&
                 !w->bias && (int64_t)w->k_tiles * 16 == w->n_in &&
                 (int64_t)w->n_tiles * 16 == w->n_out && w->n_in % 128 == 0 && w->n_out % 128 == 0;
    return plain ? w->bits : 0;
}

static bool fast_fp4(const struct hx_cuda_weight *w)
{
    return w->format == (int32_t)HX_FORMAT_FP4 && w->n_in % 128 == 0 && w->n_out % 128 == 0 &&
           (uintptr_t)w->data % 16 == 0 && (uintptr_t)w->scale % 4 == 0;
}

static void widen(struct hx_cuda_choice *c, const struct hx_cuda_weight *w)
{
    bool exl3 = w->format == (int32_t)HX_FORMAT_EXL3, first = !c->has_exl3 && !c->has_plain;
    int64_t k = (int64_t)w->k_tiles * 16, n = (int64_t)w->n_tiles * 16;
    c->mul1_bits = first || c->mul1_bits == mul1_bits(w) ? mul1_bits(w) : 0;
    c->fp4 = (first || c->fp4) && fast_fp4(w);
    c->unequal = !first && (c->unequal || w->n_out != c->n_out || w->n_in != c->n_in);
    c->has_exl3 = c->has_exl3 || exl3;
    c->has_plain = c->has_plain || !exl3;
    c->n_out = w->n_out > c->n_out ? w->n_out : c->n_out;
    c->n_in = w->n_in > c->n_in ? w->n_in : c->n_in;
    c->k_padded = exl3 && k > c->k_padded ? k : c->k_padded;
    c->n_padded = exl3 && n > c->n_padded ? n : c->n_padded;
}

struct hx_cuda_choice hx_cuda_choice_one(const struct hx_weight *w)
{
    struct hx_cuda_choice c = {.one = hx_cuda_weight(w)};
    widen(&c, &c.one);
    return c;
}

int hx_cuda_choice_of(struct hx_device *dev, const struct hx_weight *const *w, int n,
                      struct hx_cuda_choice *out, struct hx_error *err)
{
    for (struct hx_cuda_table *t = dev->tables; t; t = t->next) {
        if (t->key == w) {
            *out = t->choice;
            return 0;
        }
    }
    size_t bytes = (size_t)n * sizeof(struct hx_cuda_weight);
    struct hx_cuda_table *t = calloc(1, sizeof(*t));
    struct hx_cuda_weight *host = malloc(bytes);
    void *table = NULL;
    int r = t && host ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; r == 0 && i < n; i++) {
        host[i] = hx_cuda_weight(w[i]);
        widen(&t->choice, &host[i]);
    }
    if (r == 0)
        r = hx_cuda_check(cudaMalloc(&table, bytes), "table of experts", err);
    if (r == 0)
        r = hx_cuda_check(cudaMemcpy(table, host, bytes, cudaMemcpyHostToDevice),
                          "table of experts", err);
    free(host);
    if (r < 0) {
        cudaFree(table);
        free(t);
        return r;
    }
    t->key = w;
    t->choice.table = table;
    t->next = dev->tables;
    dev->tables = t;
    *out = t->choice;
    return 0;
}
