/* Placement: every stored tensor goes through one rule of its table row. */
#include "model/place.h"

#include <string.h>

#include "model/bind.h"

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

int hx_place_expert_blocks(int n_blocks, int n_ranks, int rank, int expert)
{
    int turn = ((rank - expert) % n_ranks + n_ranks) % n_ranks;
    return n_blocks / n_ranks + (turn < n_blocks % n_ranks);
}

/* One tensor of a weight. along: the dimension that the rule cuts, -1: none (side vectors of the
 * other side). */
struct part {
    const struct hx_tensor_spec *spec;
    const char *name;
    enum hx_component comp;
    int layer, expert;
    int64_t n_inner; /* experts: the width that is cut */
    int64_t extent;  /* rows or columns (in tiles) along the cut */
    bool cut;
    int64_t bytes;
};

static void put(struct hx_placement *p, int rank, const struct part *t, int64_t bytes,
                int64_t *placed)
{
    p->rank_bytes[rank][t->comp] += bytes;
    *placed += bytes;
}

static int place_slices(struct hx_placement *p, const struct part *t, int64_t *placed,
                        struct hx_error *err)
{
    int n = p->n_ranks;
    bool expert = t->spec->split == HX_SPLIT_EXPERT;
    if (expert && n > 1 && t->n_inner % 128 != 0)
        return hx_fail(err, -EINVAL,
                       "layout %s: '%s' has an inner width of %lld, which 128 does not divide",
                       hx_layout_name(p->layout), t->name, (long long)t->n_inner);
    if (!expert && t->cut && t->extent % n != 0)
        return hx_fail(err, -EINVAL,
                       "layout %s: '%s' has %lld rows, columns or tiles, which %d ranks do not "
                       "divide",
                       hx_layout_name(p->layout), t->name, (long long)t->extent, n);
    int64_t n_blocks = n > 1 ? t->n_inner / 128 : 1;
    for (int r = 0; r < n; r++) {
        if (expert) {
            int b = hx_place_expert_blocks((int)n_blocks, n, r, t->expert);
            put(p, r, t, t->cut ? t->bytes / n_blocks * b : b ? t->bytes : 0, placed);
        } else {
            put(p, r, t, t->cut ? t->bytes / n : t->bytes, placed);
        }
    }
    return 0;
}

/* Stages: a tensor lies with its layer; the last stage has head, final norm, drafter and a second
 * embedding for the drafter. */
static void place_stage(struct hx_placement *p, const struct hx_hparams *hp, const struct part *t,
                        int64_t *placed)
{
    int last = p->n_ranks - 1, r = 0;
    if (t->layer >= hp->n_layer || (t->layer < 0 && t->comp != HX_COMP_EMBED))
        r = last;
    else if (t->layer >= 0)
        while (r < last && t->layer >= p->first_layer[r + 1])
            r++;
    put(p, r, t, t->bytes, placed);
    if (t->comp == HX_COMP_EMBED && last > 0 && hp->n_draft_layer > 0)
        put(p, last, t, t->bytes, placed);
}

static int place_part(struct hx_placement *p, const struct hx_hparams *hp, const struct part *t,
                      bool scale, struct hx_error *err)
{
    int64_t placed = 0;
    p->n_tensors[t->comp]++;
    p->bytes[t->comp] += t->bytes;
    if (t->spec->home == HX_HOME_NVME) {
        p->file_bytes += t->bytes;
        p->host_bytes += scale ? t->bytes : 0;
        return 0;
    }
    int r = 0;
    if (layouts[p->layout].stages)
        place_stage(p, hp, t, &placed);
    else
        r = place_slices(p, t, &placed, err);
    p->copies += placed - t->bytes;
    return r;
}

/* parts: shapes of the stored tensors, dtype and n_dims 0 where there is none. */
static int place_weight(struct hx_placement *p, const struct hx_hparams *hp,
                        const struct hx_tensor_need *need, const struct hx_tensor *parts,
                        struct hx_error *err)
{
    enum hx_split split = need->spec->split;
    /* w1 and w3 are cut along their outputs, w2 along its inputs. */
    bool down = need->spec->role == HX_T_EXPERT_W2;
    bool by_column = split == HX_SPLIT_COLUMN || (split == HX_SPLIT_EXPERT && down);
    for (int i = 0; i < HX_PART_MAX; i++) {
        const struct hx_tensor *t = &parts[i];
        if (t->n_dims == 0)
            continue;
        struct part q = {.spec = need->spec,
                         .name = need->name,
                         .comp = component_of(hp, need->spec->role, need->layer),
                         .layer = need->layer,
                         .expert = need->expert,
                         .n_inner = down ? need->n_in : need->n_out,
                         .cut = split != HX_SPLIT_NONE,
                         .bytes = (int64_t)hx_dtype_size(t->dtype)};
        for (int d = 0; d < t->n_dims; d++)
            q.bytes *= t->ne[d];
        if (i == HX_PART_SUH)
            q.cut = q.cut && by_column;
        else if (i == HX_PART_SVH || i == HX_PART_BIAS)
            q.cut = q.cut && !by_column;
        q.extent = t->n_dims == 1 ? t->ne[0] : t->ne[by_column];
        int r = place_part(p, hp, &q, i == HX_PART_SCALE, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the release's formats --------------------------------------------------------------------
 */

struct config_walk {
    struct hx_placement *p;
    const struct hx_hparams *hp;
    struct hx_error *err;
};

static int place_released(void *user, const struct hx_tensor_need *need)
{
    struct config_walk *k = user;
    struct hx_tensor part[HX_PART_MAX] = {0};
    int64_t o = need->n_out, n = need->n_in;
    if (need->spec->naming == HX_NAME_BARE)
        part[HX_PART_DATA] = (struct hx_tensor){need->spec->dtype, o == 1 ? 1 : 2, {o, n, 1, 1}, 0};
    if (need->spec->naming == HX_NAME_BARE && o == 1)
        part[HX_PART_DATA].ne[0] = n;
    if (need->spec->naming == HX_NAME_LINEAR) {
        bool fp4 = need->spec->per_expert;
        bool by_row = fp4 || need->spec->role == HX_T_ENGRAM_EMBED;
        part[HX_PART_DATA] = (struct hx_tensor){
            fp4 ? HX_DTYPE_I8 : HX_DTYPE_F8_E4M3, 2, {o, fp4 ? n / 2 : n, 1, 1}, NULL};
        part[HX_PART_SCALE] = (struct hx_tensor){
            HX_DTYPE_F8_E8M0, 2, {by_row ? o : (o + 31) / 32, (n + 31) / 32, 1, 1}, NULL};
    }
    return place_weight(k->p, k->hp, need, part, k->err);
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
    for (int r = 0; r <= p->n_ranks; r++)
        p->first_layer[r] = layouts[layout].stages ? hp->n_layer * r / p->n_ranks
                            : r == 0               ? 0
                                                   : hp->n_layer;
    return 0;
}

int hx_place_config(const struct hx_hparams *hp, const struct hx_maps *maps, enum hx_layout layout,
                    struct hx_placement *out, struct hx_error *err)
{
    struct hx_placement p;
    struct config_walk k = {&p, hp, err};
    int r = begin(&p, hp, layout, err);
    if (r == 0)
        r = hx_tensors_each(hp, maps, place_released, &k);
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
    int r = place_weight(k->p, &k->b->hp, need, w->part, k->err);
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
