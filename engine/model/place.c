/* Placement: every stored tensor goes through one rule of its table row. */
#include "model/place.h"

#include <string.h>

#include "model/bind.h"
#include "model/model.h"
#include "model/slice.h"

static const struct {
    const char *name;
    int n_ranks;
    bool stages; /* layers are cut into stages instead of tensors into slices */
} layouts[HX_LAYOUT_MAX] = {
    [HX_LAYOUT_CPU] = {"cpu", 1, false},
    [HX_LAYOUT_TP2] = {"tp2", 2, false},
    [HX_LAYOUT_TP4] = {"tp4", 4, false},
    [HX_LAYOUT_PP4] = {"pp4", 4, true},
};

static const char *const component_name[HX_COMP_MAX] = {
    "embedding",  "head",           "attention",     "hyper-connections",
    "router",     "shared experts", "experts",       "indexer",
    "compressor", "norms",          "Engram tables", "Engram",
    "drafter",    "vision",
};

static enum hx_component component_of(const struct hx_hparams *hp, enum hx_role role, int layer)
{
    static const struct {
        enum hx_role first, last;
        enum hx_component comp;
    } ranges[] = {
        {HX_T_EMBED, HX_T_EMBED, HX_COMP_EMBED},
        {HX_T_HEAD, HX_T_HEAD, HX_COMP_HEAD},
        {HX_T_NORM, HX_T_NORM, HX_COMP_NORMS},
        {HX_T_ATTN_WQ_A, HX_T_ATTN_SINK, HX_COMP_ATTENTION},
        {HX_T_ATTN_NORM, HX_T_FFN_NORM, HX_COMP_NORMS},
        {HX_T_HC_ATTN_FN, HX_T_HC_FFN_SCALE, HX_COMP_HC},
        {HX_T_GATE, HX_T_GATE_BIAS_VL, HX_COMP_ROUTER},
        {HX_T_EXPERT_W1, HX_T_EXPERT_W3, HX_COMP_EXPERTS},
        {HX_T_SHARED_W1, HX_T_SHARED_W3, HX_COMP_SHARED},
        {HX_T_INDEX_WQ_B, HX_T_INDEX_K_NORM, HX_COMP_INDEXER},
        {HX_T_COMP_WKV, HX_T_COMP_NORM, HX_COMP_COMPRESSOR},
        {HX_T_ENGRAM_EMBED, HX_T_ENGRAM_EMBED, HX_COMP_ENGRAM_TABLE},
        {HX_T_ENGRAM_WKV, HX_T_ENGRAM_K, HX_COMP_ENGRAM},
    };
    if (layer >= hp->n_layer)
        return HX_COMP_DRAFTER;
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (role >= ranges[i].first && role <= ranges[i].last)
            return ranges[i].comp;
    }
    return HX_COMP_DRAFTER;
}

const char *hx_layout_name(enum hx_layout l)
{
    return layouts[l].name;
}

enum hx_layout hx_layout_parse(const char *name)
{
    int l = 0;
    while (l < HX_LAYOUT_MAX && strcmp(layouts[l].name, name) != 0)
        l++;
    return (enum hx_layout)l;
}

const char *hx_component_name(enum hx_component c)
{
    return component_name[c];
}

static void put(struct hx_placement *p, int rank, enum hx_component comp, size_t bytes)
{
    p->rank_bytes[rank][comp] += (int64_t)bytes;
    p->rank_memory[rank][comp] += (int64_t)hx_device_room(bytes);
    p->copies += (int64_t)bytes;
}

/* Stages: a tensor lies with its layer; the last stage has head, final norm, drafter and a second
 * embedding for the drafter. */
static void place_stage(struct hx_placement *p, const struct hx_hparams *hp,
                        const struct hx_weight *w, enum hx_component comp, size_t bytes)
{
    int last = p->n_ranks - 1, r = 0;
    if (w->layer >= hp->n_layer || (w->layer < 0 && comp != HX_COMP_EMBED))
        r = last;
    else if (w->layer >= 0)
        while (r < last && w->layer >= p->first_layer[r + 1])
            r++;
    put(p, r, comp, bytes);
    if (comp == HX_COMP_EMBED && last > 0 && hp->n_draft_layer > 0)
        put(p, last, comp, bytes);
}

/* Parts with n_dims 0 are not there. */
static int place_weight(struct hx_placement *p, const struct hx_hparams *hp,
                        const struct hx_tensor_need *need, const struct hx_weight *w,
                        struct hx_error *err)
{
    const struct hx_cut whole = {-1, 0, 0};
    enum hx_component comp = component_of(hp, need->spec->role, need->layer);
    bool on_drive = need->spec->home == HX_HOME_NVME, stages = layouts[p->layout].stages;
    for (int i = 0; i < HX_PART_MAX; i++) {
        if (w->part[i].n_dims == 0)
            continue;
        size_t bytes = hx_cut_bytes(&w->part[i], &whole);
        p->n_tensors[comp]++;
        p->bytes[comp] += (int64_t)bytes;
        if (on_drive) {
            p->file_bytes += (int64_t)bytes;
            p->host_bytes += i == HX_PART_SCALE ? (int64_t)bytes : 0;
            continue;
        }
        p->copies -= (int64_t)bytes; /* the first one is none */
        if (stages)
            place_stage(p, hp, w, comp, bytes);
    }
    for (int r = 0; !stages && !on_drive && r < p->n_ranks; r++) {
        const struct hx_slice slice = {r, p->n_ranks};
        struct hx_cut cut[HX_PART_MAX];
        struct hx_weight part;
        int e = hx_slice_weight(&slice, need, w, &part, cut, err);
        if (e < 0)
            return hx_wrap(err, e, "layout %s", hx_layout_name(p->layout));
        for (int i = 0; i < HX_PART_MAX; i++) {
            if (w->part[i].n_dims > 0)
                put(p, r, comp, hx_cut_bytes(&w->part[i], &cut[i]));
        }
    }
    return 0;
}

/* ---- the release's formats --------------------------------------------------------------------
 */

struct config_walk {
    struct hx_placement *p;
    const struct hx_hparams *hp;
    const uint8_t *bits; /* [n_layer] of the experts; NULL: FP4 */
    struct hx_error *err;
};

static int place_shape(void *user, const struct hx_tensor_need *need)
{
    struct config_walk *k = user;
    bool exl3 = k->bits && need->layer >= 0 && need->layer < k->hp->n_layer;
    const struct hx_weight w = hx_need_weight(need, exl3 ? k->bits[need->layer] : 0);
    return place_weight(k->p, k->hp, need, &w, k->err);
}

/* Vision tower, aligner and the three image vectors (spec vision.md section 1), BF16. */
static void count_vision(struct hx_placement *p, const struct hx_hparams *hp)
{
    const struct hx_vision_hparams *v = &hp->vision;
    int64_t d = v->n_embd, f = v->n_ff, e = hp->n_embd, pixel = 3 * (int64_t)v->patch * v->patch,
            cell = d * v->downsample * v->downsample;
    int64_t block = 2 * d + 3 * d * d + 3 * d + d * d + d + 2 * f * d + d * f;
    p->n_tensors[HX_COMP_VISION] = 2 + 8 * (int64_t)v->n_layer + 1 + 4 + 3;
    p->bytes[HX_COMP_VISION] =
        2 * (d * pixel + d + v->n_layer * block + d + e * cell + e + e * e + e + 3 * e);
}

static int begin(struct hx_placement *p, const struct hx_hparams *hp, enum hx_layout layout,
                 struct hx_error *err)
{
    memset(p, 0, sizeof(*p));
    if (layout >= HX_LAYOUT_MAX)
        return hx_fail(err, -EINVAL, "unknown layout %d", (int)layout);
    p->layout = layout;
    p->n_ranks = layouts[layout].n_ranks;
    if (layouts[layout].stages && hp->n_layer < p->n_ranks)
        return hx_fail(err, -EINVAL, "layout %s: %d layers are fewer than %d stages",
                       hx_layout_name(layout), hp->n_layer, p->n_ranks);
    const struct hx_slice slice = {0, layouts[layout].stages ? 1 : p->n_ranks};
    int e = hx_slice_check(&slice, hp, err);
    if (e < 0)
        return hx_wrap(err, e, "layout %s", hx_layout_name(layout));
    for (int r = 0; r <= p->n_ranks; r++)
        p->first_layer[r] = layouts[layout].stages ? hp->n_layer * r / p->n_ranks
                            : r == 0               ? 0
                                                   : hp->n_layer;
    return 0;
}

int hx_place_config(const struct hx_hparams *hp, const struct hx_maps *maps, const uint8_t *bits,
                    enum hx_layout layout, struct hx_placement *out, struct hx_error *err)
{
    struct hx_placement p;
    struct config_walk k = {&p, hp, bits, err};
    int r = begin(&p, hp, layout, err);
    if (r == 0)
        r = hx_tensors_each(hp, maps, place_shape, &k);
    if (r == 0) {
        count_vision(&p, hp);
        *out = p;
    }
    return r;
}

/* ---- a folder ---------------------------------------------------------------------------------
 */

struct folder_walk {
    struct hx_placement *p;
    const struct hx_binding *b;
    int next; /* weights are in the order of the walk */
    struct hx_error *err;
};

static int place_bound(void *user, const struct hx_tensor_need *need)
{
    struct folder_walk *k = user;
    const struct hx_weight *w = &k->b->weight[k->next++];
    int r = place_weight(k->p, &k->b->hp, need, w, k->err);
    if (r == 0 && w->format == HX_FORMAT_EXL3 && w->codebook != HX_CODEBOOK_3INST) {
        /* The codebook marker is stored, but not loaded. */
        enum hx_component c = component_of(&k->b->hp, w->role, w->layer);
        k->p->n_tensors[c]++;
        k->p->bytes[c] += 4;
    }
    return r;
}

int hx_place_folder(const char *dir, enum hx_layout layout, struct hx_placement *out,
                    struct hx_error *err)
{
    struct hx_binding b;
    struct hx_placement p;
    int r = hx_bind_folder(dir, &b, err);
    if (r < 0)
        return r;
    struct folder_walk k = {&p, &b, 0, err};
    r = begin(&p, &b.hp, layout, err);
    if (r == 0)
        r = hx_tensors_each(&b.hp, &b.maps, place_bound, &k);
    for (int i = 0; r == 0 && i < b.n_files; i++) {
        for (size_t t = 0; t < hx_st_count(b.file[i]); t++) {
            const struct hx_st_tensor *st = hx_st_at(b.file[i], t);
            if (!hx_tensor_is_vision(st->name))
                continue;
            p.n_tensors[HX_COMP_VISION]++;
            p.bytes[HX_COMP_VISION] += (int64_t)st->size;
        }
    }
    hx_binding_done(&b);
    if (r == 0)
        *out = p;
    return r;
}
