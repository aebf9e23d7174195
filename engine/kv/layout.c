/* Geometry of the KV state (native row formats of spec model.md section 4). */
#include "kv/pool.h"

#include <string.h>

#define ALIGN      256
#define RING_SLACK 16 /* rows beyond the window: drafts of one step may be taken back */

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t place(struct hx_kv_part *p, size_t at, int rows, int data_bytes, int scale_bytes)
{
    *p = (struct hx_kv_part){at, at + (size_t)rows * (size_t)data_bytes, data_bytes, scale_bytes,
                             rows};
    return align_up(p->scale_offset + (size_t)rows * (size_t)scale_bytes);
}

int hx_kv_layout_derive(const struct hx_hparams *hp, const struct hx_maps *maps,
                        const struct hx_kv_options *opt, struct hx_kv_layout *out,
                        struct hx_error *err)
{
    struct hx_kv_layout l = {.n_layer = hp->n_layer, .window_tok = hp->window};
    l.block_tok = opt->block_tok ? opt->block_tok : HX_KV_BLOCK_TOK;
    l.ring_tok = opt->ring_tok ? opt->ring_tok : hp->window + RING_SLACK;
    if (l.block_tok < 2 || l.block_tok > 65536 || l.block_tok % 2 != 0)
        return hx_fail(err, -EINVAL,
                       "kv: block of %d tokens, expected an even number from 2 to 65536",
                       l.block_tok);
    if (l.ring_tok < hp->window + 1)
        return hx_fail(err, -EINVAL, "kv: ring of %d rows, expected more than the window of %d",
                       l.ring_tok, hp->window);
    int d = hp->head_dim, di = hp->index_head_dim;
    for (int il = 0; il < hp->n_layer; il++) {
        if (!maps->is_kv_source[il])
            continue;
        int rows = l.block_tok / hp->ratio[il];
        l.block_bytes = place(&l.comp[il], l.block_bytes, rows, d / 2, d / 16);
        l.block_bytes = place(&l.key[il], l.block_bytes, rows, di / 2, di / 32);
    }
    l.window_bytes = place(&l.window, 0, l.ring_tok, d, d / 32);
    l.n_window = hp->n_layer + hp->n_draft_layer;
    l.slot_bytes = l.window_bytes * (size_t)l.n_window;
    for (int il = 0; il < hp->n_layer; il++) {
        if (!maps->is_kv_source[il] || hp->ratio[il] < 2)
            continue;
        l.open_offset[il] = l.slot_bytes;
        l.slot_bytes += align_up((size_t)HX_KV_OPEN_ROWS * 2 * (size_t)d * sizeof(float));
    }
    *out = l;
    return 0;
}

int hx_kv_memory(const struct hx_hparams *hp, const struct hx_maps *maps,
                 const struct hx_kv_options *opt, struct hx_kv_memory *out, struct hx_error *err)
{
    struct hx_kv_layout l;
    int r = hx_kv_layout_derive(hp, maps, opt, &l, err);
    if (r < 0)
        return r;
    *out = (struct hx_kv_memory){
        .blocks = l.block_bytes * (size_t)opt->n_blocks,
        .block = l.block_bytes,
        .slots = l.slot_bytes * (size_t)(opt->n_seqs + opt->n_snapshots),
        .views = hx_kv_mirror_bytes(&l, opt->n_blocks) * (size_t)opt->n_seqs,
    };
    return 0;
}

size_t hx_kv_bytes(const struct hx_hparams *hp, const struct hx_maps *maps,
                   const struct hx_kv_options *opt)
{
    struct hx_kv_memory m;
    return hx_kv_memory(hp, maps, opt, &m, NULL) < 0 ? 0 : m.blocks + m.slots + m.views;
}
