/* Layer maps: who reads whose compressed rows, selections and tables. */
#include "model/desc.h"

static int newest_at_or_below(const int *id, int n, int layer)
{
    int found = -1;
    for (int i = 0; i < n && id[i] <= layer; i++)
        found = id[i];
    return found;
}

static bool contains(const int *id, int n, int layer)
{
    return newest_at_or_below(id, n, layer) == layer;
}

static int check_layer(const struct hx_hparams *h, const struct hx_maps *m, int il,
                       struct hx_error *err)
{
    if (h->ratio[il] == 0) {
        if (m->is_kv_source[il] || m->is_index_source[il])
            return hx_fail(err, -EINVAL,
                           "text_config.compress_ratios: found 0 for layer %d, expected 1 or 2: it "
                           "is a source",
                           il);
        return 0;
    }
    if (m->kv_source[il] < 0 || m->topk_source[il] < 0)
        return hx_fail(
            err, -EINVAL,
            "text_config.%s: found none at or below layer %d, expected one: its ratio is %d",
            m->kv_source[il] < 0 ? "kv_source_layer_ids" : "index_source_layer_ids", il,
            h->ratio[il]);
    if (h->ratio[m->kv_source[il]] != h->ratio[il])
        return hx_fail(err, -EINVAL,
                       "text_config.compress_ratios: found %d for layer %d, expected %d as its "
                       "source layer %d",
                       h->ratio[il], il, h->ratio[m->kv_source[il]], m->kv_source[il]);
    if (m->topk_source[il] < m->kv_source[il])
        return hx_fail(
            err, -EINVAL,
            "text_config.index_source_layer_ids: found no source from layer %d on for layer %d, "
            "expected one: a selection over layer %d's rows cannot be used on layer %d's",
            m->kv_source[il], il, m->topk_source[il], m->kv_source[il]);
    if (m->is_kv_source[il] && !m->is_index_source[il])
        return hx_fail(
            err, -EINVAL,
            "text_config.index_source_layer_ids: layer %d is missing, expected every KV source",
            il);
    return 0;
}

int hx_maps_derive(const struct hx_hparams *h, struct hx_maps *out, struct hx_error *err)
{
    struct hx_maps m = {0};
    for (int il = 0; il < HX_MAX_LAYERS; il++) {
        m.kv_source[il] = m.topk_source[il] = m.engram_slot[il] = m.target_slot[il] = -1;
    }
    for (int i = 0; i < h->n_engram; i++)
        m.engram_slot[h->engram_layer[i]] = i;
    for (int i = 0; i < h->n_target; i++)
        m.target_slot[h->target_layer[i]] = i;
    for (int il = 0; il < h->n_layer; il++) {
        m.is_kv_source[il] = contains(h->kv_source_id, h->n_kv_source, il);
        m.is_index_source[il] = contains(h->index_source_id, h->n_index_source, il);
        if (h->ratio[il] > 0) {
            m.kv_source[il] = newest_at_or_below(h->kv_source_id, h->n_kv_source, il);
            m.topk_source[il] = newest_at_or_below(h->index_source_id, h->n_index_source, il);
        }
        int r = check_layer(h, &m, il, err);
        if (r < 0)
            return r;
    }
    int cs = h->candidate_source;
    if (cs >= h->n_layer || (cs >= 0 && !m.is_index_source[cs]))
        return hx_fail(
            err, -EINVAL,
            "text_config.candidate_source_layer_id: found %d, expected an index source or -1", cs);
    for (int il = cs + 1; cs >= 0 && il < h->n_layer; il++) {
        if (m.is_index_source[il] && m.kv_source[il] != m.kv_source[cs])
            return hx_fail(err, -EINVAL,
                           "text_config.candidate_source_layer_id: found %d, expected layer %d to "
                           "read the same "
                           "rows (layer %d's, not layer %d's)",
                           cs, il, m.kv_source[cs], m.kv_source[il]);
    }
    *out = m;
    return 0;
}
