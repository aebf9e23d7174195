#include "fetch/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_NAMES 4

enum {
    PART_BARE = 1,
    PART_WEIGHT = 2,
    PART_SCALE = 4,
    PART_TRELLIS = 8,
    PART_SUH = 16,
    PART_SVH = 32,
    PART_MUL1 = 64,
};

static const struct {
    const char *suffix;
    unsigned part;
} parts[] = {
    {".weight", PART_WEIGHT}, {".scale", PART_SCALE}, {".trellis", PART_TRELLIS},
    {".suh", PART_SUH},       {".svh", PART_SVH},     {".mul1", PART_MUL1},
};

struct need {
    char *name; /* bare name or prefix */
    const struct hx_tensor_spec *spec;
    int layer;
    int64_t n_out, n_in;
    bool routed;             /* routed expert of the backbone */
    unsigned official, pack; /* parts found */
    int bits;                /* of the trellis */
};

struct hx_select {
    struct hx_hparams hp;
    struct need *need; /* by name */
    size_t n, cap;
    struct hx_select_counts counts;
};

/* ---- the table ------------------------------------------------------------------------------- */

static int add_need(void *user, const struct hx_tensor_need *need)
{
    struct hx_select *s = user;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        struct need *more = realloc(s->need, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        s->need = more;
        s->cap = cap;
    }
    s->need[s->n] = (struct need){
        .name = strdup(need->name),
        .spec = need->spec,
        .layer = need->layer,
        .n_out = need->n_out,
        .n_in = need->n_in,
        .routed = need->spec->per_expert && need->layer < s->hp.n_layer,
    };
    return s->need[s->n++].name ? 0 : -ENOMEM;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct need *)a)->name, ((const struct need *)b)->name);
}

int hx_select_open(const char *config, size_t n, struct hx_select **out, struct hx_error *err)
{
    struct hx_select *s = calloc(1, sizeof(*s));
    struct hx_maps *maps = calloc(1, sizeof(*maps));
    int r = s && maps ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_hparams_parse(config, n, &s->hp, err);
    if (r == 0)
        r = hx_maps_derive(&s->hp, maps, err);
    if (r == 0 && hx_tensors_each(&s->hp, maps, add_need, s) < 0)
        r = hx_fail(err, -ENOMEM, "out of memory for the names of the tensors");
    free(maps);
    if (r < 0) {
        hx_select_close(s);
        return r;
    }
    qsort(s->need, s->n, sizeof(*s->need), by_name);
    *out = s;
    return 0;
}

void hx_select_close(struct hx_select *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        free(s->need[i].name);
    free(s->need);
    free(s);
}

static struct need *find_exact(const struct hx_select *s, const char *name)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->need[mid].name);
        if (c == 0)
            return &s->need[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* The need that a stored tensor belongs to, and which part of it. */
static struct need *find(const struct hx_select *s, const char *tensor, unsigned *part)
{
    char prefix[HX_ST_MAX_NAME];
    struct need *need = find_exact(s, tensor);
    if (need && need->spec->naming == HX_NAME_BARE) {
        *part = PART_BARE;
        return need;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t n = strlen(tensor), m = strlen(parts[i].suffix);
        if (n <= m || n - m >= sizeof(prefix) || strcmp(tensor + n - m, parts[i].suffix) != 0)
            continue;
        memcpy(prefix, tensor, n - m);
        prefix[n - m] = '\0';
        need = find_exact(s, prefix);
        if (need && need->spec->naming == HX_NAME_LINEAR) {
            *part = parts[i].part;
            return need;
        }
    }
    return NULL;
}

enum hx_select_place hx_select_find(const struct hx_select *s, const char *tensor, int *layer)
{
    unsigned part;
    const struct need *need = find(s, tensor, &part);
    if (layer)
        *layer = need ? need->layer : -1;
    if (!need)
        return hx_tensor_is_vision(tensor) ? HX_PLACE_VISION : HX_PLACE_UNKNOWN;
    if (need->routed)
        return HX_PLACE_EXPERT;
    return need->spec->home == HX_HOME_NVME ? HX_PLACE_ENGRAM : HX_PLACE_DENSE;
}

/* ---- what was found -------------------------------------------------------------------------- */

static int wrong_shape(const char *file, const struct hx_st_tensor *t, const char *expected,
                       struct hx_error *err)
{
    char shape[96] = "";
    size_t at = 0;
    for (int i = 0; i < t->n_dims && at < 80; i++)
        at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%lld", i ? ", " : "",
                               (long long)t->ne[i]);
    return hx_fail(err, -EINVAL, "%s: tensor '%s': found %s [%s], expected %s", file, t->name,
                   hx_dtype_name(t->dtype), shape, expected);
}

static bool has_shape(const struct hx_st_tensor *t, int n_dims, int64_t a, int64_t b, int64_t c)
{
    const int64_t want[3] = {a, b, c};
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++)
        same = t->ne[i] == want[i];
    return same;
}

/* A type and shape that no engine of ours takes is refused before 400 GB are fetched. */
static int check_official(const char *file, const struct need *need, unsigned part,
                          const struct hx_st_tensor *t, struct hx_error *err)
{
    char expected[96];
    int64_t out = need->n_out, in = need->n_in;
    if (part == PART_BARE) {
        bool shape = has_shape(t, 2, out, in, 0) || (out == 1 && has_shape(t, 1, in, 0, 0));
        snprintf(expected, sizeof(expected), "%s [%lld, %lld]", hx_dtype_name(need->spec->dtype),
                 (long long)out, (long long)in);
        return t->dtype == need->spec->dtype && shape ? 0 : wrong_shape(file, t, expected, err);
    }
    if (part == PART_WEIGHT) {
        bool fp8 = t->dtype == HX_DTYPE_F8_E4M3 && has_shape(t, 2, out, in, 0);
        bool fp4 =
            need->spec->per_expert && t->dtype == HX_DTYPE_I8 && has_shape(t, 2, out, in / 2, 0);
        snprintf(expected, sizeof(expected), "F8_E4M3 [%lld, %lld]%s", (long long)out,
                 (long long)in, need->spec->per_expert ? " or I8 of half the columns" : "");
        return fp8 || fp4 ? 0 : wrong_shape(file, t, expected, err);
    }
    bool rows = need->spec->per_expert || need->spec->home == HX_HOME_NVME;
    int64_t n = (out + 31) / 32, m = (in + 31) / 32;
    bool shape = has_shape(t, 2, n, m, 0) || (rows && has_shape(t, 2, out, m, 0));
    snprintf(expected, sizeof(expected), "F8_E8M0 [%lld, %lld]", (long long)(rows ? out : n),
             (long long)m);
    return t->dtype == HX_DTYPE_F8_E8M0 && shape ? 0 : wrong_shape(file, t, expected, err);
}

int hx_select_official(struct hx_select *s, const char *file, const struct hx_st_tensor *t,
                       struct hx_error *err)
{
    unsigned part = 0;
    struct need *need = find(s, t->name, &part);
    if (!need && hx_tensor_is_vision(t->name)) {
        s->counts.vision++;
        s->counts.dense_bytes += t->size;
        return 0;
    }
    if (!need)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' has no place in this model", file, t->name);
    if (!(part & (PART_BARE | PART_WEIGHT | PART_SCALE)))
        return hx_fail(err, -EINVAL,
                       "%s: tensor '%s' is of an EXL3 pack, expected the official "
                       "form",
                       file, t->name);
    if (need->official & part)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' is in two files", file, t->name);
    need->official |= part;
    if (need->routed)
        return 0;
    if (need->spec->home == HX_HOME_NVME) {
        if (part == PART_WEIGHT && s->counts.n_engram < HX_MAX_ENGRAM)
            s->counts.engram_rows[s->counts.n_engram++] = t->ne[0];
    } else {
        s->counts.dense++;
        s->counts.dense_bytes += t->size;
    }
    return check_official(file, need, part, t, err);
}

static int check_pack(const char *file, struct need *need, unsigned part,
                      const struct hx_st_tensor *t, struct hx_error *err)
{
    char expected[96];
    int64_t in = (need->n_in + 127) / 128 * 128, out = (need->n_out + 127) / 128 * 128;
    if (part == PART_TRELLIS) {
        bool ok = t->dtype == HX_DTYPE_I16 && t->n_dims == 3 && t->ne[0] == in / 16 &&
                  t->ne[1] == out / 16 && t->ne[2] % 16 == 0 && t->ne[2] >= 16 && t->ne[2] <= 128;
        snprintf(expected, sizeof(expected), "I16 [%lld, %lld, 16 x bits]", (long long)(in / 16),
                 (long long)(out / 16));
        need->bits = ok ? (int)(t->ne[2] / 16) : 0;
        return ok ? 0 : wrong_shape(file, t, expected, err);
    }
    if (part == PART_MUL1)
        return t->dtype == HX_DTYPE_I32 && t->size == 4 ? 0 : wrong_shape(file, t, "one I32", err);
    int64_t n = part == PART_SUH ? in : out;
    snprintf(expected, sizeof(expected), "F16 [%lld]", (long long)n);
    return t->dtype == HX_DTYPE_F16 && has_shape(t, 1, n, 0, 0)
               ? 0
               : wrong_shape(file, t, expected, err);
}

int hx_select_pack(struct hx_select *s, const char *file, const struct hx_st_tensor *t,
                   struct hx_error *err)
{
    unsigned part = 0;
    struct need *need = find(s, t->name, &part);
    if (!need || !need->routed) {
        /* A pack quantises more than the experts; that is not used, but it says what is missing. */
        if (need)
            need->pack |= part;
        s->counts.pack_ignored++;
        return 0;
    }
    if (!(part & (PART_TRELLIS | PART_SUH | PART_SVH | PART_MUL1)))
        return hx_fail(err, -EINVAL, "%s: tensor '%s' is not of EXL3 form", file, t->name);
    if (need->pack & part)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' is in two files", file, t->name);
    need->pack |= part;
    int r = check_pack(file, need, part, t, err);
    if (r == 0 && part == PART_TRELLIS) {
        s->counts.expert_matrices++;
        s->counts.bits[need->bits]++;
    }
    return r;
}

/* ---- what is missing ------------------------------------------------------------------------- */

struct missing {
    char names[400];
    size_t at, n;
};

static void miss(struct missing *m, const char *name, const char *suffix)
{
    if (m->n < SHOWN_NAMES)
        m->at += (size_t)snprintf(m->names + m->at, sizeof(m->names) - m->at, "%s%.80s%s",
                                  m->n ? ", " : "", name, suffix);
    else if (m->n == SHOWN_NAMES)
        snprintf(m->names + m->at, sizeof(m->names) - m->at, ", ...");
    m->n++;
}

int hx_select_check(const struct hx_select *s, struct hx_error *err)
{
    struct missing dense = {0}, packed = {0}, experts = {0};
    for (size_t i = 0; i < s->n; i++) {
        const struct need *need = &s->need[i];
        if (need->routed) {
            const unsigned all = PART_TRELLIS | PART_SUH | PART_SVH;
            if ((need->pack & all) != all)
                miss(&experts, need->name, ".*");
            continue;
        }
        bool bare = need->spec->naming == HX_NAME_BARE;
        unsigned all = bare ? PART_BARE : PART_WEIGHT | PART_SCALE;
        if ((need->official & all) != all)
            miss(need->pack ? &packed : &dense, need->name, bare ? "" : ".*");
    }
    if (packed.n > 0)
        return hx_fail(err, -EINVAL,
                       "%zu dense tensors are there in EXL3 form only, a hybrid needs the official "
                       "ones: %s",
                       packed.n, packed.names);
    if (dense.n > 0)
        return hx_fail(err, -EINVAL, "the official repository lacks %zu tensors: %s", dense.n,
                       dense.names);
    if (experts.n > 0)
        return hx_fail(err, -EINVAL, "the EXL3 pack lacks %zu of %zu expert matrices: %s",
                       experts.n, experts.n + s->counts.expert_matrices, experts.names);
    return 0;
}

void hx_select_counts(const struct hx_select *s, struct hx_select_counts *out)
{
    *out = s->counts;
}
