/* Cutting weights for ranks. One table says how channels of a format lie in its parts. */
#include "model/slice.h"

#include <string.h>

enum { BY_OUTPUT, BY_INPUT };

/* Where the channels of an axis are: dimension of the part, channels in one element of it; dim -1:
 * the part has no such dimension, every rank keeps it. */
struct lie {
    int dim, unit;
};
static const struct lie lies[HX_FORMAT_MAX][HX_PART_MAX][2] = {
    [HX_FORMAT_DENSE] = {[HX_PART_DATA] = {{0, 1}, {1, 1}}},
    [HX_FORMAT_FP8] = {[HX_PART_DATA] = {{0, 1}, {1, 1}}, [HX_PART_SCALE] = {{0, 32}, {1, 32}}},
    [HX_FORMAT_FP4] = {[HX_PART_DATA] = {{0, 1}, {1, 2}}, [HX_PART_SCALE] = {{0, 1}, {1, 32}}},
    [HX_FORMAT_EXL3] = {[HX_PART_DATA] = {{1, 16}, {0, 16}},
                        [HX_PART_SUH] = {{-1, 0}, {0, 1}},
                        [HX_PART_SVH] = {{0, 1}, {-1, 0}},
                        [HX_PART_BIAS] = {{0, 1}, {-1, 0}}},
};

int hx_slice_expert_blocks(int n_blocks, int n_ranks, int rank, int expert)
{
    int turn = ((rank - expert) % n_ranks + n_ranks) % n_ranks;
    return n_blocks / n_ranks + (turn < n_blocks % n_ranks);
}

int hx_slice_check(const struct hx_slice *s, const struct hx_hparams *hp, struct hx_error *err)
{
    const struct {
        const char *name;
        int n;
    } rows[] = {{"heads", hp->n_head}, {"output groups", hp->o_groups}, {"tokens", hp->n_vocab}};
    if (s->n_ranks < 0 || s->rank < 0 || s->rank >= (s->n_ranks > 1 ? s->n_ranks : 1))
        return hx_fail(err, -EINVAL, "rank %d of %d: expected 0 to %d", s->rank, s->n_ranks,
                       s->n_ranks > 1 ? s->n_ranks - 1 : 0);
    for (size_t i = 0; s->n_ranks > 1 && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].n % s->n_ranks != 0)
            return hx_fail(err, -EINVAL, "the model has %d %s, which %d ranks do not divide",
                           rows[i].n, rows[i].name, s->n_ranks);
    }
    return 0;
}

/* Channels of the rank: an even share in whole units. */
static int even_share(const struct hx_slice *s, const struct hx_tensor_need *need, int64_t width,
                      int unit, struct hx_cut *out, struct hx_error *err)
{
    if (width % ((int64_t)s->n_ranks * unit) != 0)
        return hx_fail(err, -EINVAL,
                       "'%s' has %lld channels, which %d ranks do not divide in groups of %d",
                       need->name, (long long)width, s->n_ranks, unit);
    int64_t each = width / s->n_ranks;
    *out = (struct hx_cut){0, each * s->rank, each * (s->rank + 1)};
    return 0;
}

static int expert_share(const struct hx_slice *s, const struct hx_tensor_need *need, int64_t width,
                        struct hx_cut *out, struct hx_error *err)
{
    if (width % HX_EXPERT_BLOCK != 0)
        return hx_fail(err, -EINVAL, "'%s' has an inner width of %lld, which %d does not divide",
                       need->name, (long long)width, HX_EXPERT_BLOCK);
    int n = (int)(width / HX_EXPERT_BLOCK), first = 0;
    for (int r = 0; r < s->rank; r++)
        first += hx_slice_expert_blocks(n, s->n_ranks, r, need->expert);
    int have = hx_slice_expert_blocks(n, s->n_ranks, s->rank, need->expert);
    *out = (struct hx_cut){0, (int64_t)first * HX_EXPERT_BLOCK,
                           (int64_t)(first + have) * HX_EXPERT_BLOCK};
    return 0;
}

static struct hx_cut cut_part(const struct hx_weight *w, enum hx_weight_part part, int axis,
                              const struct hx_cut *share)
{
    struct lie lie = lies[w->format][part][axis];
    bool vector = w->part[part].n_dims == 1 && part == HX_PART_DATA;
    if (share->from == share->to)
        return (struct hx_cut){0, 0, 0};
    if (lie.dim >= 0)
        return (struct hx_cut){vector ? 0 : lie.dim, share->from / lie.unit, share->to / lie.unit};
    /* Partial outputs are added, so one rank alone adds the bias. */
    if (part == HX_PART_BIAS && share->from > 0)
        return (struct hx_cut){0, 0, 0};
    return (struct hx_cut){-1, 0, 0};
}

int hx_slice_weight(const struct hx_slice *s, const struct hx_tensor_need *need,
                    const struct hx_weight *whole, struct hx_weight *out,
                    struct hx_cut cut[HX_PART_MAX], struct hx_error *err)
{
    enum hx_split split = need->spec->split;
    struct hx_weight w = *whole;
    struct hx_cut share = {-1, 0, 0};
    for (int i = 0; i < HX_PART_MAX; i++)
        cut[i] = (struct hx_cut){-1, 0, 0};
    if (s->n_ranks > 1 && split != HX_SPLIT_NONE) {
        /* w1 and w3 are cut along their outputs, w2 along its inputs. */
        int axis = split == HX_SPLIT_COLUMN ||
                           (split == HX_SPLIT_EXPERT && need->spec->role == HX_T_EXPERT_W2)
                       ? BY_INPUT
                       : BY_OUTPUT;
        bool vector = w.n_out == 1 && w.part[HX_PART_DATA].n_dims == 1;
        int64_t *width = axis == BY_INPUT || vector ? &w.n_in : &w.n_out;
        int unit = w.format == HX_FORMAT_FP8 || w.format == HX_FORMAT_FP4 ? 32
                   : w.format == HX_FORMAT_EXL3                           ? HX_EXPERT_BLOCK
                                                                          : 1;
        int r = split == HX_SPLIT_EXPERT ? expert_share(s, need, *width, &share, err)
                                         : even_share(s, need, *width, unit, &share, err);
        if (r < 0)
            return r;
        *width = share.to - share.from;
        for (int i = 0; i < HX_PART_MAX; i++) {
            if (w.part[i].n_dims == 0)
                continue;
            cut[i] = cut_part(whole, (enum hx_weight_part)i, axis, &share);
            if (cut[i].dim >= 0)
                w.part[i].ne[cut[i].dim] = cut[i].to - cut[i].from;
        }
    }
    for (int i = 0; i < HX_PART_MAX; i++)
        w.part[i].data = NULL;
    *out = w;
    return 0;
}

/* Bytes of what lies outside of, in and inside of one step of the cut's dimension. */
static void strides(const struct hx_tensor *t, int dim, size_t *outer, size_t *n, size_t *inner)
{
    *outer = *n = 1;
    *inner = hx_dtype_size(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        *(i < dim ? outer : i == dim ? n : inner) *= (size_t)t->ne[i];
}

size_t hx_cut_bytes(const struct hx_tensor *t, const struct hx_cut *cut)
{
    size_t outer, n, inner;
    strides(t, cut->dim, &outer, &n, &inner);
    return outer * inner * (cut->dim < 0 ? 1 : (size_t)(cut->to - cut->from));
}

void hx_cut_copy(const struct hx_tensor *t, const struct hx_cut *cut, const void *whole, void *out)
{
    size_t outer, n, inner;
    strides(t, cut->dim, &outer, &n, &inner);
    size_t skip = cut->dim < 0 ? 0 : (size_t)cut->from * inner;
    size_t have = cut->dim < 0 ? inner : (size_t)(cut->to - cut->from) * inner;
    for (size_t i = 0; i < outer; i++)
        memcpy((uint8_t *)out + i * have, (const uint8_t *)whole + i * n * inner + skip, have);
}

struct hx_weight hx_need_weight(const struct hx_tensor_need *need, int bits)
{
    const struct hx_tensor_spec *spec = need->spec;
    int64_t o = need->n_out, n = need->n_in;
    struct hx_weight w = {
        .role = spec->role, .layer = need->layer, .expert = need->expert, .n_out = o, .n_in = n};
    struct hx_tensor *data = &w.part[HX_PART_DATA], *scale = &w.part[HX_PART_SCALE];
    if (spec->naming == HX_NAME_BARE) {
        w.format = HX_FORMAT_DENSE;
        *data = (struct hx_tensor){spec->dtype, o == 1 ? 1 : 2, {o == 1 ? n : o, n, 1, 1}, NULL};
        if (o == 1)
            data->ne[1] = 1;
    } else if (spec->per_expert && bits > 0) {
        w.format = HX_FORMAT_EXL3;
        w.codebook = HX_CODEBOOK_MUL1;
        w.bits = bits;
        int64_t k = (n + 127) / 128 * 128, m = (o + 127) / 128 * 128;
        *data = (struct hx_tensor){HX_DTYPE_I16, 3, {k / 16, m / 16, 16 * bits, 1}, NULL};
        w.part[HX_PART_SUH] = (struct hx_tensor){HX_DTYPE_F16, 1, {k, 1, 1, 1}, NULL};
        w.part[HX_PART_SVH] = (struct hx_tensor){HX_DTYPE_F16, 1, {m, 1, 1, 1}, NULL};
    } else {
        bool fp4 = spec->per_expert, by_row = fp4 || spec->home == HX_HOME_NVME;
        w.format = fp4 ? HX_FORMAT_FP4 : HX_FORMAT_FP8;
        *data = (struct hx_tensor){
            fp4 ? HX_DTYPE_I8 : HX_DTYPE_F8_E4M3, 2, {o, fp4 ? n / 2 : n, 1, 1}, NULL};
        *scale = (struct hx_tensor){
            HX_DTYPE_F8_E8M0, 2, {by_row ? o : (o + 31) / 32, (n + 31) / 32, 1, 1}, NULL};
    }
    return w;
}
