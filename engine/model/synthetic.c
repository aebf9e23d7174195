/* Random weights. Element i of a part is drawn from pools of a fixed length at (i + a place that
 * depends on the weight), so that any share of it can be made without the rest. */
#include "model/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/numerics.h"
#include "base/rand.h"
#include "model/bind.h"
#include "model/model.h"

#define POOL ((size_t)(1 << 20) - 3) /* elements; odd, so that rows differ */

struct values {
    const struct hx_synthetic *s;
    float *normal;  /* deviation 1 */
    uint8_t *e4m3;  /* deviation CODE_STD */
    uint8_t *byte;  /* uniform */
    uint16_t *word; /* uniform */
    uint16_t *half; /* binary16, random sign, 0.75 to 1.25 */
};

#define EMBED_STD 5.0f
#define FOLLOW    2.0f   /* of the head: a token is likely behind the one before it */
#define CODE_STD  64.0f  /* of the FP8 codes */
#define FP4_STD   2.926f /* of uniform e2m1 codes */

/* Deviation of the values: gain / sqrt(inputs). 0: 1. */
static const float gains[HX_T_MAX] = {
    [HX_T_ATTN_WQ_B] = 1.5f,  [HX_T_ATTN_WO_B] = 0.6f,  [HX_T_GATE] = 2.5f,
    [HX_T_EXPERT_W1] = 1.5f,  [HX_T_EXPERT_W2] = 0.4f,  [HX_T_EXPERT_W3] = 1.5f,
    [HX_T_SHARED_W1] = 1.2f,  [HX_T_SHARED_W2] = 0.3f,  [HX_T_SHARED_W3] = 1.2f,
    [HX_T_INDEX_WQ_B] = 1.5f, [HX_T_COMP_WGATE] = 1.5f, [HX_T_ENGRAM_WKV] = 0.4f,
};

/* Vectors and small matrices that are not products' left sides: mean and deviation. */
static bool plain(const struct hx_weight *w, float *mean, float *std)
{
    static const struct {
        enum hx_role role;
        float mean, std;
    } rows[] = {
        {HX_T_EMBED, 0, EMBED_STD},  {HX_T_NORM, 1, .1f},           {HX_T_ATTN_Q_NORM, 1, .1f},
        {HX_T_ATTN_KV_NORM, 1, .1f}, {HX_T_ATTN_SINK, 0, 1},        {HX_T_ATTN_NORM, 1, .1f},
        {HX_T_FFN_NORM, 1, .1f},     {HX_T_HC_ATTN_BASE, 0, 1},     {HX_T_HC_ATTN_SCALE, .7f, .1f},
        {HX_T_HC_FFN_BASE, 0, 1},    {HX_T_HC_FFN_SCALE, .7f, .1f}, {HX_T_GATE_BIAS, 0, .1f},
        {HX_T_GATE_BIAS_VL, 0, .1f}, {HX_T_INDEX_K_NORM, 1, .1f},   {HX_T_COMP_NORM, 1, .1f},
        {HX_T_ENGRAM_Q, 1, .3f},     {HX_T_ENGRAM_K, 1, .3f},       {HX_T_MAIN_NORM, 1, .1f},
        {HX_T_DRAFT_NORM, 1, .1f},   {HX_T_MARKOV_EMBED, 0, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if ((int)rows[i].role == w->role) {
            *mean = rows[i].mean;
            *std = rows[i].std;
            return true;
        }
    }
    return false;
}

/* ---- binding ---- */

struct maker {
    const struct hx_synthetic *s;
    struct hx_binding *b;
    int cap;
    struct hx_error *err;
};

static struct hx_weight weight_of(const struct hx_synthetic *s, const struct hx_tensor_need *need)
{
    bool exl3 = s->bits && need->layer >= 0 && need->layer < s->hp->n_layer;
    return hx_need_weight(need, exl3 ? s->bits[need->layer] : 0);
}

static int add(void *user, const struct hx_tensor_need *need)
{
    struct maker *k = user;
    struct hx_binding *b = k->b;
    if (b->n_weights == k->cap) {
        int cap = k->cap ? k->cap * 2 : 1024;
        struct hx_weight *w = realloc(b->weight, (size_t)cap * sizeof(*w));
        if (!w)
            return hx_fail(k->err, -ENOMEM, "out of memory");
        b->weight = w;
        k->cap = cap;
    }
    b->weight[b->n_weights] = weight_of(k->s, need);
    if (need->expert <= 0)
        b->first[need->spec->role][need->layer + 1] = b->n_weights;
    b->n_weights++;
    return 0;
}

int hx_synthetic_bind(const struct hx_synthetic *s, struct hx_binding *out, struct hx_error *err)
{
    struct hx_binding b = {.hp = *s->hp};
    struct maker k = {s, &b, 0, err};
    int r = hx_maps_derive(s->hp, &b.maps, err);
    if (r == 0 && s->n_local != 0 &&
        (s->n_local < s->hp->n_expert_used || s->n_local > s->hp->n_expert))
        r = hx_fail(err, -EINVAL, "routes from %d experts: expected %d to %d, or 0", s->n_local,
                    s->hp->n_expert_used, s->hp->n_expert);
    for (int role = 0; r == 0 && role < HX_T_MAX; role++) {
        b.first[role] = malloc(sizeof(int) * (HX_MAX_LAYERS + 1));
        if (!b.first[role])
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            memset(b.first[role], 0xFF, sizeof(int) * (HX_MAX_LAYERS + 1));
    }
    if (r == 0)
        r = hx_tensors_each(s->hp, &b.maps, add, &k);
    if (r < 0)
        hx_binding_done(&b);
    else
        *out = b;
    return r;
}

/* ---- values ---- */

/* Nearly normal, deviation 1, at most 3.465: four 16-bit uniforms of one word. */
static float normal(uint64_t x)
{
    int sum = (int)(x & 65535) + (int)(x >> 16 & 65535) + (int)(x >> 32 & 65535) + (int)(x >> 48);
    return (float)(sum - 131070) * (1.0f / 37837.2f);
}

static void values_free(struct values *v)
{
    if (!v)
        return;
    free(v->normal);
    free(v->e4m3);
    free(v->byte);
    free(v->word);
    free(v->half);
    free(v);
}

static int values_new(const struct hx_synthetic *s, struct values **out, struct hx_error *err)
{
    struct values *v = calloc(1, sizeof(*v));
    if (v) {
        v->normal = malloc(POOL * sizeof(*v->normal));
        v->e4m3 = malloc(POOL);
        v->byte = malloc(POOL);
        v->word = malloc(POOL * sizeof(*v->word));
        v->half = malloc(POOL * sizeof(*v->half));
    }
    if (!v || !v->normal || !v->e4m3 || !v->byte || !v->word || !v->half) {
        values_free(v);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    v->s = s;
    struct hx_rng g;
    hx_rng_seed(&g, s->seed);
    for (size_t i = 0; i < POOL; i++) {
        uint64_t x = hx_rng_next(&g), y = hx_rng_next(&g);
        v->normal[i] = normal(x);
        v->e4m3[i] = hx_e4m3_encode(normal(hx_mix64(x)) * CODE_STD);
        v->byte[i] = (uint8_t)y;
        v->word[i] = (uint16_t)(y >> 8);
        /* 0.75 to 1: 3a00 and nine digits of the mantissa; 1 to 1.25: 3c00 and eight. */
        v->half[i] =
            (uint16_t)((y >> 32 & 1 ? 0x3A00 + (y >> 33 & 0x1FF) : 0x3C00 + (y >> 33 & 0xFF)) |
                       (y >> 63) << 15);
    }
    *out = v;
    return 0;
}

static uint64_t place_of(const struct values *v, const struct hx_weight *w, int part)
{
    uint64_t h = hx_mix64(v->s->seed + 0x53594Eu);
    h = hx_mix64(h ^ ((uint64_t)w->role << 40 | (uint64_t)(w->layer + 1) << 24 |
                      (uint64_t)(w->expert + 1) << 8 | (uint64_t)part));
    return h % POOL;
}

/* Gate biases far below the others keep an expert out of every route; n_local neighbours stay. */
static float gate_bias(const struct values *v, const struct hx_weight *w, uint64_t i, float x)
{
    uint64_t n = (uint64_t)v->s->n_local, n_expert = (uint64_t)w->n_in;
    uint64_t first = hx_mix64(v->s->seed ^ (uint64_t)(w->layer + 77)) % n_expert;
    if (n == 0 || w->layer >= v->s->hp->n_layer)
        return x;
    return (i + n_expert - first) % n_expert < n ? x : x - 1000;
}

static float value(const struct values *v, const struct hx_weight *w, uint64_t place, uint64_t i)
{
    float mean = 0, std = 1, gain = gains[w->role];
    if (!plain(w, &mean, &std))
        std = (gain > 0 ? gain : 1) / sqrtf((float)w->n_in);
    float x = v->normal[(place + i) % POOL] * std + mean;
    if (w->role == HX_T_HEAD) {
        const struct hx_weight embed = {.role = HX_T_EMBED, .layer = -1, .expert = -1};
        uint64_t all = (uint64_t)w->n_out * (uint64_t)w->n_in,
                 before = (i + all - (uint64_t)w->n_in) % all;
        x += v->normal[(place_of(v, &embed, HX_PART_DATA) + before) % POOL] * std * FOLLOW;
    }
    return w->role == HX_T_GATE_BIAS ? gate_bias(v, w, i, x) : x;
}

/* Power of two nearest to the deviation that the values of the part's codes have to get. */
static int exponent(const struct hx_weight *w, float code_std)
{
    float gain = gains[w->role] > 0 ? gains[w->role] : 1;
    return (int)lrintf(log2f(gain / sqrtf((float)w->n_in) / code_std));
}

/* Elements i to i + n - 1 of the whole part. */
static void run(const struct values *v, const struct hx_weight *w, int part, uint64_t i, size_t n,
                uint8_t *out)
{
    uint64_t place = place_of(v, w, part), at = (place + i) % POOL;
    enum hx_dtype dtype = w->part[part].dtype;
    int e;
    switch (dtype) {
    case HX_DTYPE_F8_E8M0:
        /* Half of the groups have twice the scale: 1.58 in the mean square. */
        e = 127 + exponent(w, 1.58f * (w->format == HX_FORMAT_FP4 ? FP4_STD : CODE_STD));
        for (size_t k = 0; k < n; k++, at = at + 1 == POOL ? 0 : at + 1)
            out[k] = (uint8_t)(e + (v->byte[at] & 1));
        return;
    case HX_DTYPE_BF16:
        for (size_t k = 0; k < n; k++) {
            uint16_t b = hx_bf16(value(v, w, place, i + k));
            memcpy(out + 2 * k, &b, 2);
        }
        return;
    case HX_DTYPE_F32:
        for (size_t k = 0; k < n; k++) {
            float f = value(v, w, place, i + k);
            memcpy(out + 4 * k, &f, 4);
        }
        return;
    case HX_DTYPE_F16:
        e = part == HX_PART_SVH ? exponent(w, 1) : 0;
        for (size_t k = 0; k < n; k++, at = at + 1 == POOL ? 0 : at + 1) {
            uint16_t h = (uint16_t)(v->half[at] + e * 1024);
            memcpy(out + 2 * k, &h, 2);
        }
        return;
    default: break;
    }
    const uint8_t *pool = dtype == HX_DTYPE_F8_E4M3 ? v->e4m3
                          : dtype == HX_DTYPE_I8    ? v->byte
                                                    : (const uint8_t *)v->word;
    size_t size = hx_dtype_size(dtype);
    while (n > 0) {
        size_t m = POOL - at < n ? POOL - at : n;
        memcpy(out, pool + at * size, m * size);
        out += m * size;
        n -= m;
        at = 0;
    }
}

/* Bytes from at to at + n - 1 (whole elements) of what the cut leaves of a part. */
static void fill(const struct values *v, const struct hx_weight *whole, int part,
                 const struct hx_cut *cut, size_t at, size_t n, uint8_t *to)
{
    const struct hx_tensor *t = &whole->part[part];
    size_t size = hx_dtype_size(t->dtype), inner = 1;
    for (int i = cut->dim + 1; i < t->n_dims; i++)
        inner *= (size_t)t->ne[i];
    size_t row = cut->dim < 0 ? inner : (size_t)t->ne[cut->dim] * inner;
    size_t skip = cut->dim < 0 ? 0 : (size_t)cut->from * inner;
    size_t have = cut->dim < 0 ? inner : (size_t)(cut->to - cut->from) * inner;
    for (at /= size, n /= size; n > 0;) {
        size_t outer = at / have, within = at % have, m = have - within < n ? have - within : n;
        run(v, whole, part, outer * row + skip + within, m, to);
        to += m * size;
        at += m;
        n -= m;
    }
}

/* ---- loading ---- */

/* Parts lie behind one another on the device, most of them small (a rank of the released shape has
 * 150,000), so they are made in one piece of memory and sent together. */
#define PIECE ((size_t)16 << 20) /* bytes; whole rooms fit */

struct loader {
    const struct hx_synthetic *s;
    const struct hx_slice *slice;
    const struct values *v;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_binding *b;
    uint8_t *to;    /* where the piece goes */
    uint8_t *piece; /* NULL: sizes alone */
    size_t n_made;  /* bytes of the piece */
    size_t total;
    int next; /* weights are in the order of the walk */
    struct hx_error *err;
};

static int send_piece(struct loader *k)
{
    int r = k->be->upload(k->dev, k->to, k->piece, k->n_made, k->err);
    k->to += k->n_made;
    k->n_made = 0;
    return r ? r : k->be->sync(k->dev, k->err);
}

static int make(struct loader *k, const struct hx_weight *whole, int part, const struct hx_cut *cut,
                size_t n)
{
    int r = 0;
    for (size_t at = 0, m; r == 0 && at < n; at += m) {
        m = n - at < PIECE - k->n_made ? n - at : PIECE - k->n_made;
        fill(k->v, whole, part, cut, at, m, k->piece + k->n_made);
        size_t room = hx_device_room(m);
        memset(k->piece + k->n_made + m, 0, room - m);
        k->n_made += room;
        if (k->n_made == PIECE)
            r = send_piece(k);
    }
    return r;
}

static int load(void *user, const struct hx_tensor_need *need)
{
    struct loader *k = user;
    const struct hx_weight whole = weight_of(k->s, need);
    struct hx_weight *w = &k->b->weight[k->next++];
    struct hx_cut cut[HX_PART_MAX];
    int r = hx_slice_weight(k->slice, need, &whole, w, cut, k->err);
    for (int p = 0; r == 0 && p < HX_PART_MAX && need->spec->home != HX_HOME_NVME; p++) {
        size_t n = whole.part[p].n_dims ? hx_cut_bytes(&whole.part[p], &cut[p]) : 0;
        k->total += hx_device_room(n);
        if (!k->piece || n == 0)
            continue;
        w->part[p].data = k->to + k->n_made;
        r = make(k, &whole, p, &cut[p], n);
    }
    return r;
}

int hx_synthetic_load(const struct hx_synthetic *s, const struct hx_slice *slice,
                      const struct hx_backend *be, struct hx_device *dev, struct hx_binding *b,
                      struct hx_buffer **mem, struct hx_error *err)
{
    struct values *v = NULL;
    struct loader k = {.s = s, .slice = slice, .be = be, .dev = dev, .b = b, .err = err};
    int r = hx_slice_check(slice, s->hp, err);
    if (r == 0)
        r = hx_tensors_each(s->hp, &b->maps, load, &k);
    if (r == 0)
        r = be->alloc(dev, HX_MEM_DEVICE, k.total, mem, err);
    if (r == 0)
        r = values_new(s, &v, err);
    if (r == 0 && !(k.piece = malloc(PIECE)))
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0) {
        k.v = v;
        k.to = be->address(*mem);
        k.next = 0;
        r = hx_tensors_each(s->hp, &b->maps, load, &k);
    }
    if (r == 0 && k.n_made > 0)
        r = send_piece(&k);
    free(k.piece);
    values_free(v);
    return r;
}
