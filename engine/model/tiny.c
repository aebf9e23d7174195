/* Tensors of the demo model. Every value comes from an integer generator, IEEE products, sums and
 * square roots alone, so that the bytes do not depend on a mathematics library. */
#include "model/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/numerics.h"
#include "base/file.h"
#include "base/rand.h"
#include "model/desc.h"
#include "model/manifest.h"
#include "model/safetensors.h"
#include "model/tiny_files.h"

/* Text ids that follow each other in one cycle: frequent tokens, no single bytes. */
#define TEXT_FIRST 300
#define TEXT_END   20300
#define N_TEXT     (TEXT_END - TEXT_FIRST)

#define MUL1_MARKER 0x83DCD12Du
#define MAX_FILES   64
#define MAX_PARTS   1024

/* How the values of a role are drawn. gain: standard deviation times sqrt(inputs). */
enum recipe { NORMAL, NORM, GAIN, EMBED, HEAD, MARKOV_EMBED, MARKOV_HEAD, HC_BASE, CONFIDENCE };

struct draw {
    enum recipe recipe;
    float std, mean; /* GAIN: gain, unused */
};

static const struct draw draws[HX_T_MAX] = {
    [HX_T_EMBED] = {EMBED, 5, 0},
    [HX_T_HEAD] = {HEAD, 0, 0},
    [HX_T_NORM] = {NORM, 0.1f, 1},
    [HX_T_ATTN_WQ_A] = {GAIN, 1, 0},
    [HX_T_ATTN_WQ_B] = {GAIN, 1.5f, 0},
    [HX_T_ATTN_WKV] = {GAIN, 1, 0},
    [HX_T_ATTN_WO_A] = {GAIN, 1, 0},
    [HX_T_ATTN_WO_B] = {GAIN, 0.6f, 0},
    [HX_T_ATTN_Q_NORM] = {NORM, 0.1f, 1},
    [HX_T_ATTN_KV_NORM] = {NORM, 0.1f, 1},
    [HX_T_ATTN_SINK] = {NORMAL, 1, 0},
    [HX_T_ATTN_NORM] = {NORM, 0.1f, 1},
    [HX_T_FFN_NORM] = {NORM, 0.1f, 1},
    [HX_T_HC_ATTN_FN] = {GAIN, 1, 0},
    [HX_T_HC_ATTN_BASE] = {HC_BASE, 1.2f, 0},
    [HX_T_HC_ATTN_SCALE] = {NORMAL, 0.1f, 0.7f},
    [HX_T_HC_FFN_FN] = {GAIN, 1, 0},
    [HX_T_HC_FFN_BASE] = {HC_BASE, 1.2f, 0},
    [HX_T_HC_FFN_SCALE] = {NORMAL, 0.1f, 0.7f},
    [HX_T_GATE] = {GAIN, 2.5f, 0},
    [HX_T_GATE_BIAS] = {NORMAL, 0.1f, 0},
    [HX_T_GATE_BIAS_VL] = {NORMAL, 0.3f, 0},
    [HX_T_EXPERT_W1] = {GAIN, 1.5f, 0},
    [HX_T_EXPERT_W2] = {GAIN, 0.22f, 0},
    [HX_T_EXPERT_W3] = {GAIN, 1.5f, 0},
    [HX_T_SHARED_W1] = {GAIN, 1.2f, 0},
    [HX_T_SHARED_W2] = {GAIN, 0.3f, 0},
    [HX_T_SHARED_W3] = {GAIN, 1.2f, 0},
    [HX_T_INDEX_WQ_B] = {GAIN, 1.5f, 0},
    [HX_T_INDEX_WEIGHTS] = {GAIN, 1, 0},
    [HX_T_INDEX_WK] = {GAIN, 1, 0},
    [HX_T_INDEX_K_NORM] = {NORM, 0.1f, 1},
    [HX_T_COMP_WKV] = {GAIN, 1, 0},
    [HX_T_COMP_WGATE] = {GAIN, 1.5f, 0},
    [HX_T_COMP_NORM] = {NORM, 0.1f, 1},
    [HX_T_ENGRAM_EMBED] = {NORMAL, 0.5f, 0},
    [HX_T_ENGRAM_WKV] = {GAIN, 0.4f, 0},
    [HX_T_ENGRAM_Q] = {NORM, 0.3f, 1},
    [HX_T_ENGRAM_K] = {NORM, 0.3f, 1},
    [HX_T_MAIN_PROJ] = {GAIN, 1, 0},
    [HX_T_MAIN_NORM] = {NORM, 0.1f, 1},
    [HX_T_DRAFT_NORM] = {NORM, 0.1f, 1},
    [HX_T_MARKOV_EMBED] = {MARKOV_EMBED, 1, 0},
    [HX_T_MARKOV_HEAD] = {MARKOV_HEAD, 0, 0},
    [HX_T_CONFIDENCE] = {CONFIDENCE, 0, 0},
};

struct maker {
    const struct hx_tiny_options *opt;
    const struct hx_hparams *hp;
    struct hx_st_writer *w;
    const char *file; /* of the pass in progress, relative to the folder */
    char name[MAX_FILES][48];
    int n_files;
    void *part[MAX_PARTS]; /* memory that the writer borrows */
    int n_parts;
    int32_t *before; /* [n_vocab] the id that this one follows, -1: none */
    struct hx_error *err;
};

/* ---- random values ----------------------------------------------------------------------------
 */

/* A generator of its own for each tensor and row: values do not depend on the order of drawing. */
static struct hx_rng generator(const struct maker *k, const char *name, int64_t row)
{
    uint64_t h = hx_mix64(k->opt->seed ^ 0x7469796E79ull);
    for (; *name; name++)
        h = hx_mix64(h ^ (uint8_t)*name);
    struct hx_rng g;
    hx_rng_seed(&g, h ^ hx_mix64((uint64_t)row));
    return g;
}

/* Nearly normal, deviation 1, at most 3.465: four 16-bit uniforms of one word. */
#define NORMAL_MAX 3.465f
static float normal(struct hx_rng *g)
{
    uint64_t x = hx_rng_next(g);
    int sum = (int)(x & 65535) + (int)(x >> 16 & 65535) + (int)(x >> 32 & 65535) + (int)(x >> 48);
    return (float)(sum - 131070) * (1.0f / 37837.2f);
}

/* Smallest e with bound <= limit * 2^e. */
static int scale_exponent(float bound, float limit)
{
    int e;
    float m = frexpf(bound / limit, &e);
    return m == 0.5f ? e - 1 : e;
}

/* binary16 of a value in its normal range whose digits fit (a few binary places). */
static uint16_t half(float x)
{
    int e;
    float m = frexpf(fabsf(x), &e);
    unsigned digits = (unsigned)(m * 2048.0f);
    return (uint16_t)((x < 0 ? 0x8000u : 0) | (unsigned)(e + 14) << 10 | (digits & 1023u));
}

static void *part_new(struct maker *k, size_t size)
{
    void *p = k->n_parts < MAX_PARTS ? calloc(1, size) : NULL;
    if (p)
        k->part[k->n_parts++] = p;
    else
        hx_fail(k->err, -ENOMEM, "out of memory");
    return p;
}

static int add(struct maker *k, const char *prefix, const char *suffix, enum hx_dtype dtype,
               int n_dims, const int64_t *ne, const void *data)
{
    char name[200];
    snprintf(name, sizeof(name), "%s%s", prefix, suffix);
    return hx_st_writer_add(k->w, name, dtype, n_dims, ne, data, k->err);
}

/* ---- dense tensors ----------------------------------------------------------------------------
 */

/* Row of the output head: the direction of the id that it follows, plus noise. Ids outside the
 * cycle get little of either, so that greedy text stays inside it. */
static void head_row(const struct maker *k, const char *name, const char *source, int64_t row,
                     float follow, float noise, int64_t n, float *out)
{
    struct hx_rng g = generator(k, name, row), s = generator(k, source, k->before[row]);
    bool text = k->before[row] >= 0;
    float root = 1.0f / sqrtf((float)n);
    for (int64_t i = 0; i < n; i++) {
        float x = normal(&g) * (text ? noise : 0.1f * noise);
        out[i] = (text ? x + follow * normal(&s) : x) * root;
    }
}

static void dense_row(const struct maker *k, const struct hx_tensor_need *need, int64_t row,
                      float *out)
{
    const struct draw *d = &draws[need->spec->role];
    int hc = k->hp->hc_mult;
    int64_t n = need->n_in;
    if (d->recipe == HEAD) {
        head_row(k, need->name, "embed.weight", row, 0.8f, 1, n, out);
        return;
    }
    if (d->recipe == MARKOV_HEAD) {
        head_row(k, need->name, "markov_head.embed", row, 3.5f, 0.5f, n, out);
        return;
    }
    struct hx_rng g =
        generator(k, d->recipe == MARKOV_EMBED ? "markov_head.embed" : need->name, row);
    float std = d->recipe == GAIN ? d->std / sqrtf((float)n) : d->std;
    for (int64_t i = 0; i < n; i++) {
        float x = normal(&g);
        switch (d->recipe) {
        case CONFIDENCE:
            x *= i < k->hp->n_embd ? 0.14f / sqrtf((float)k->hp->n_embd)
                                   : 1.2f / sqrtf((float)k->hp->markov_rank);
            break;
        case HC_BASE: /* pre, post, then the hc x hc mixture, which prefers its diagonal */
            x = x * std - (i < hc ? 0.6f : 0.0f);
            if (i >= 2 * hc && (i - 2 * hc) % (hc + 1) == 0)
                x += 1.5f;
            break;
        default: x = x * std + d->mean;
        }
        out[i] = x;
    }
}

static int make_dense(struct maker *k, const struct hx_tensor_need *need)
{
    bool wide = need->spec->dtype == HX_DTYPE_F32;
    int64_t n = need->n_in;
    /* A vector of the table may be stored as one row (confidence head): the loader takes the shape
     * that the release has. */
    bool vector = need->n_out == 1 && need->spec->role != HX_T_CONFIDENCE;
    uint8_t *data = part_new(k, (size_t)(need->n_out * n) * (wide ? 4 : 2));
    float *row = malloc((size_t)n * sizeof(*row));
    if (!data || !row) {
        free(row);
        return hx_fail(k->err, -ENOMEM, "out of memory");
    }
    for (int64_t o = 0; o < need->n_out; o++) {
        dense_row(k, need, o, row);
        if (wide) {
            memcpy(data + o * n * 4, row, (size_t)n * 4);
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            uint16_t b = hx_bf16(row[i]);
            memcpy(data + (o * n + i) * 2, &b, 2);
        }
    }
    free(row);
    const int64_t ne[2] = {vector ? n : need->n_out, n};
    return add(k, need->name, "", need->spec->dtype, vector ? 1 : 2, ne, data);
}

/* ---- quantised matrices -----------------------------------------------------------------------
 */

/* Deviation of one scale group: a random power of two around std (so that a shifted or transposed
 * scale shows), kept to the same mean square. first: lowest exponent, n: how many. */
static float group_std(struct hx_rng *g, float std, int first, int n)
{
    float square = 0;
    for (int i = 0; i < n; i++)
        square += ldexpf(1, 2 * (first + i));
    int e = first + (int)(hx_rng_next(g) % (uint64_t)n);
    return std * ldexpf(1, e) / sqrtf(square / (float)n);
}

/* FP8: one scale for n_rows x 32 values (32: dense matrices, 1: rows of an Engram table). */
static int make_fp8(struct maker *k, const struct hx_tensor_need *need, int n_rows)
{
    int64_t n = need->n_in, cols = n / 32, rows = need->n_out / n_rows;
    uint8_t *code = part_new(k, (size_t)(need->n_out * n)),
            *scale = part_new(k, (size_t)(rows * cols));
    if (!code || !scale)
        return k->err->code;
    const struct draw *d = &draws[need->spec->role];
    float std = d->recipe == GAIN ? d->std / sqrtf((float)n) : d->std;
    for (int64_t r = 0; r < rows; r++) {
        struct hx_rng g = generator(k, need->name, r);
        for (int64_t c = 0; c < cols; c++) {
            float s = n_rows == 1 ? std * ldexpf(1, (int)(hx_rng_next(&g) % 5) - 2)
                                  : group_std(&g, std, -2, 4);
            int e = scale_exponent(s * NORMAL_MAX, 448);
            scale[r * cols + c] = (uint8_t)(127 + e);
            for (int64_t i = 0; i < n_rows * 32; i++)
                code[(r * n_rows + i / 32) * n + c * 32 + i % 32] =
                    hx_e4m3_encode(ldexpf(normal(&g) * s, -e));
        }
    }
    const int64_t ne[2] = {need->n_out, n}, se[2] = {rows, cols};
    int r = add(k, need->name, ".weight", HX_DTYPE_F8_E4M3, 2, ne, code);
    return r < 0 ? r : add(k, need->name, ".scale", HX_DTYPE_F8_E8M0, 2, se, scale);
}

/* Every fifth expert is loud enough to reach both clamps; its output is scaled back. */
static float expert_std(const struct hx_tensor_need *need)
{
    float std = draws[need->spec->role].std;
    if (need->expert % 5 == 3)
        std *= need->spec->role == HX_T_EXPERT_W2 ? 0.125f : 4.0f;
    return std / sqrtf((float)need->n_in);
}

static int make_fp4(struct maker *k, const struct hx_tensor_need *need)
{
    int64_t n = need->n_in, cols = n / 32;
    uint8_t *code = part_new(k, (size_t)(need->n_out * n / 2)),
            *scale = part_new(k, (size_t)(need->n_out * cols));
    if (!code || !scale)
        return k->err->code;
    for (int64_t o = 0; o < need->n_out; o++) {
        struct hx_rng g = generator(k, need->name, o);
        for (int64_t c = 0; c < cols; c++) {
            float s = group_std(&g, expert_std(need), -1, 3);
            int e = scale_exponent(s * NORMAL_MAX, 6);
            scale[o * cols + c] = (uint8_t)(127 + e);
            for (int64_t i = 0; i < 32; i++)
                code[(o * n + c * 32 + i) / 2] |=
                    (uint8_t)(hx_e2m1_encode(ldexpf(normal(&g) * s, -e)) << (i % 2 ? 4 : 0));
        }
    }
    const int64_t ne[2] = {need->n_out, n / 2}, se[2] = {need->n_out, cols};
    int r = add(k, need->name, ".weight", HX_DTYPE_I8, 2, ne, code);
    return r < 0 ? r : add(k, need->name, ".scale", HX_DTYPE_F8_E8M0, 2, se, scale);
}

/* Channel factors: random sign, size 0.75 to 1.25 of a power-of-two unit. */
static void channel_factors(struct hx_rng *g, float unit, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = hx_rng_next(g);
        float f = unit * (0.75f + (float)(x & 127) * (1.0f / 256.0f));
        out[i] = half(x >> 63 ? -f : f);
    }
}

/* EXL3: any words are a valid trellis, and its values have deviation 1, so the channel factors
 * carry the gain. */
static int make_exl3(struct maker *k, const struct hx_tensor_need *need)
{
    int bits = need->layer == 4 || need->layer == 5 ? 2 : 3;
    const int64_t ne[3] = {need->n_in / 16, need->n_out / 16, 16 * bits};
    size_t n_words = (size_t)(ne[0] * ne[1] * ne[2]);
    uint16_t *trellis = part_new(k, n_words * 2), *suh = part_new(k, (size_t)need->n_in * 2),
             *svh = part_new(k, (size_t)need->n_out * 2);
    uint32_t *marker = part_new(k, 4);
    if (!trellis || !suh || !svh || !marker)
        return k->err->code;
    struct hx_rng g = generator(k, need->name, 0);
    for (size_t i = 0; i < n_words; i++)
        trellis[i] = (uint16_t)(hx_rng_next(&g) >> 48);
    channel_factors(&g, 1, need->n_in, suh);
    channel_factors(&g, ldexpf(1, scale_exponent(expert_std(need) * 0.7f, 1)), need->n_out, svh);
    *marker = MUL1_MARKER;
    int r = add(k, need->name, ".trellis", HX_DTYPE_I16, 3, ne, trellis);
    if (r == 0)
        r = add(k, need->name, ".suh", HX_DTYPE_F16, 1, &need->n_in, suh);
    if (r == 0)
        r = add(k, need->name, ".svh", HX_DTYPE_F16, 1, &need->n_out, svh);
    return r < 0 ? r : add(k, need->name, ".mul1", HX_DTYPE_I32, 0, NULL, marker);
}

/* ---- files ------------------------------------------------------------------------------------
 */

static void file_of(const struct hx_hparams *hp, const struct hx_tensor_need *need, char out[48])
{
    enum hx_role role = need->spec->role;
    int il = need->layer;
    if (il < 0)
        snprintf(out, 48, "dense/global.safetensors");
    else if (il >= hp->n_layer)
        snprintf(out, 48, "dense/draft-%d.safetensors", il - hp->n_layer);
    else if (need->spec->per_expert)
        snprintf(out, 48, "experts/layer-%02d.safetensors", il);
    else if (role >= HX_T_ENGRAM_EMBED && role <= HX_T_ENGRAM_K)
        snprintf(out, 48, "engram/layer-%02d.safetensors", il);
    else
        snprintf(out, 48, "dense/layer-%02d.safetensors", il);
}

static int note_file(void *user, const struct hx_tensor_need *need)
{
    struct maker *k = user;
    char name[48];
    file_of(k->hp, need, name);
    for (int i = 0; i < k->n_files; i++) {
        if (strcmp(k->name[i], name) == 0)
            return 0;
    }
    if (k->n_files == MAX_FILES)
        return hx_fail(k->err, -E2BIG, "more than %d files", MAX_FILES);
    memcpy(k->name[k->n_files++], name, sizeof(name));
    return 0;
}

static int make_tensor(void *user, const struct hx_tensor_need *need)
{
    struct maker *k = user;
    char name[48];
    file_of(k->hp, need, name);
    if (strcmp(name, k->file) != 0)
        return 0;
    if (need->spec->naming == HX_NAME_BARE)
        return make_dense(k, need);
    if (need->spec->per_expert)
        return need->layer < k->hp->n_layer ? make_exl3(k, need) : make_fp4(k, need);
    return make_fp8(k, need, need->spec->role == HX_T_ENGRAM_EMBED ? 1 : 32);
}

static int write_file(struct maker *k, const struct hx_maps *maps, const char *name)
{
    char *path = hx_path_join(k->opt->dir, name);
    if (!path)
        return hx_fail(k->err, -ENOMEM, "out of memory");
    k->file = name;
    int r = hx_st_writer_new(&k->w, k->err);
    if (r == 0)
        r = hx_st_writer_meta(k->w, "format", "pt", k->err);
    if (r == 0)
        r = hx_tensors_each(k->hp, maps, make_tensor, k);
    if (r == 0)
        r = hx_st_writer_write(k->w, path, k->err);
    hx_st_writer_free(k->w);
    k->w = NULL;
    while (k->n_parts > 0)
        free(k->part[--k->n_parts]);
    free(path);
    return r;
}

/* One cycle through the text ids in random order; other ids follow nothing. */
static int make_cycle(struct maker *k)
{
    k->before = malloc((size_t)k->hp->n_vocab * sizeof(*k->before));
    int32_t *order = malloc(N_TEXT * sizeof(*order));
    if (!k->before || !order) {
        free(order);
        return hx_fail(k->err, -ENOMEM, "out of memory");
    }
    memset(k->before, 0xFF, (size_t)k->hp->n_vocab * sizeof(*k->before));
    struct hx_rng g = generator(k, "cycle", 0);
    for (int32_t i = 0; i < N_TEXT; i++) {
        int32_t j = (int32_t)(hx_rng_next(&g) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = TEXT_FIRST + i;
    }
    for (int32_t i = 0; i < N_TEXT; i++)
        k->before[order[i]] = order[i ? i - 1 : N_TEXT - 1];
    free(order);
    return 0;
}

static int finish(const struct maker *k, struct hx_error *err)
{
    const char *path[MAX_FILES + 8] = {"config.json", "generation_config.json", "LICENSE",
                                       "engram_token_map.i32"};
    int n = 4;
    if (k->opt->tokenizer)
        path[n++] = "tokenizer.json";
    for (int i = 0; i < k->n_files; i++)
        path[n++] = k->name[i];
    return hx_manifest_write(k->opt->dir, path, n, true, "hx-inspect tiny", "see LICENSE", err);
}

int hx_tiny_write(const struct hx_tiny_options *opt, struct hx_error *err)
{
    struct hx_error local;
    struct hx_hparams hp;
    struct hx_maps maps;
    err = err ? err : &local;
    int r = hx_tiny_begin(opt, err);
    if (r == 0)
        r = hx_tiny_write_small(opt, err);
    if (r == 0)
        r = hx_hparams_load(opt->dir, &hp, err);
    if (r == 0)
        r = hx_maps_derive(&hp, &maps, err);
    if (r < 0)
        return r;
    struct maker *k = calloc(1, sizeof(*k));
    if (!k)
        return hx_fail(err, -ENOMEM, "out of memory");
    k->opt = opt;
    k->hp = &hp;
    k->err = err;
    r = make_cycle(k);
    if (r == 0)
        r = hx_tensors_each(&hp, &maps, note_file, k);
    for (int i = 0; r == 0 && i < k->n_files; i++) {
        r = write_file(k, &maps, k->name[i]);
        if (r == 0 && opt->progress)
            opt->progress(opt->user, (double)(i + 1) / k->n_files);
    }
    if (r == 0)
        r = finish(k, err);
    free(k->before);
    free(k);
    return r;
}
