/* How kernels see the KV state of one sequence. Rows are in the native formats of docs/model.md:
 * codes first, scales apart (a page stores all data rows, then all scale rows). */
#ifndef HX_BACKEND_KV_VIEW_H
#define HX_BACKEND_KV_VIEW_H

#include <stddef.h>
#include <stdint.h>

/* One stream of rows. Row j lives in block table[j / rows_per_block]; with ring > 0 (window rows) j
 * is the absolute position and the row is j mod ring of table[0]. */
struct hx_kv_stream {
    uint8_t *base;        /* pool on the device */
    const int32_t *table; /* block numbers of this sequence */
    int32_t rows_per_block;
    int32_t ring;                    /* 0: append-only */
    size_t block_stride;             /* bytes between blocks */
    size_t data_offset;              /* of row 0's codes inside a block */
    size_t scale_offset;             /* of row 0's scales inside a block */
    int32_t data_bytes, scale_bytes; /* a row */
};

static inline uint8_t *hx_kv_row_data(const struct hx_kv_stream *s, int64_t j)
{
    int64_t r = s->ring ? j % s->ring : j % s->rows_per_block;
    int64_t b = s->ring ? 0 : j / s->rows_per_block;
    return s->base + (size_t)s->table[b] * s->block_stride + s->data_offset +
           (size_t)r * (size_t)s->data_bytes;
}

static inline uint8_t *hx_kv_row_scale(const struct hx_kv_stream *s, int64_t j)
{
    int64_t r = s->ring ? j % s->ring : j % s->rows_per_block;
    int64_t b = s->ring ? 0 : j / s->rows_per_block;
    return s->base + (size_t)s->table[b] * s->block_stride + s->scale_offset +
           (size_t)r * (size_t)s->scale_bytes;
}

/* All streams of one sequence, arrays indexed by layer (sources only where the layer is one). */
struct hx_kv_view {
    const struct hx_kv_stream *window; /* [n_layer + draft layers] e4m3 + UE8M0 per 32 */
    const struct hx_kv_stream *comp;   /* [n_layer] e2m1 + e4m3 per 16; valid for KV sources */
    const struct hx_kv_stream *key;    /* [n_layer] e2m1 + UE8M0 per 32; valid for KV sources */
    /* Open groups, ratio > 1 sources: float32 [8][2][head_dim] per source layer, by position mod 8.
     */
    float *const *open;              /* [n_layer]; NULL where there is none */
    const struct hx_kv_view *device; /* this view in device memory, all pointers device addresses */
};

#endif
