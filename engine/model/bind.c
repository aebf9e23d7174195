/* Binding by tensor name (decisions.md 23). */
#include "model/bind.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"

#define MAX_FILES 4096

struct entry {
    const char *name;
    const struct hx_st_file *file;
    const struct hx_st_tensor *tensor;
    bool used;
};

struct table {
    struct entry *e;
    size_t n, cap;
};

struct binder {
    struct hx_binding *b;
    struct table main, experts; /* sorted by name */
    int cap_weights, cap_items;
    int n_problems;
    struct hx_error *err; /* first problem */
};

/* Keeps the first problem, counts the rest. */
#define PROBLEM(k, ...) ((k)->n_problems++ == 0 ? hx_fail((k)->err, -EINVAL, __VA_ARGS__) : -EINVAL)

static int grow(void **array, int *cap, int n, size_t size)
{
    if (n < *cap)
        return 0;
    int c = *cap ? *cap * 2 : 256;
    void *p = realloc(*array, (size_t)c * size);
    if (!p)
        return -ENOMEM;
    *array = p;
    *cap = c;
    return 0;
}

/* ---- files and names
 * --------------------------------------------------------------------------------- */

static int add_entry(struct table *t, const struct hx_st_file *f, const struct hx_st_tensor *tensor)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 1024;
        struct entry *e = realloc(t->e, cap * sizeof(*e));
        if (!e)
            return -ENOMEM;
        t->e = e;
        t->cap = cap;
    }
    t->e[t->n++] = (struct entry){tensor->name, f, tensor, false};
    return 0;
}

/* layers.<number>.ffn.experts.<number>.<rest> */
static bool is_routed_expert(const char *name)
{
    int n = 0;
    return sscanf(name, "layers.%*u.ffn.experts.%*u.%n", &n) >= 0 && n > 0 && name[n] != '\0';
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int open_shard(struct binder *k, const char *path, bool experts, struct hx_error *err)
{
    struct hx_binding *b = k->b;
    if (b->n_files == MAX_FILES)
        return hx_fail(err, -EINVAL, "%s: more than %d files", path, MAX_FILES);
    int r = hx_st_open(path, &b->file[b->n_files], err);
    if (r < 0)
        return r;
    const struct hx_st_file *f = b->file[b->n_files++];
    for (size_t i = 0; r == 0 && i < hx_st_count(f); i++) {
        const struct hx_st_tensor *t = hx_st_at(f, i);
        if (!experts)
            r = add_entry(&k->main, f, t);
        else if (is_routed_expert(t->name))
            r = add_entry(&k->experts, f, t);
        else
            b->n_ignored++;
    }
    return r < 0 ? hx_fail(err, r, "out of memory") : 0;
}

/* Opens all *.safetensors of dir/sub in name order. A missing sub-folder is fine. */
static int open_folder(struct binder *k, const char *dir, const char *sub, struct hx_error *err)
{
    char *folder = hx_path_join(dir, sub), **path = NULL;
    int n = 0, cap = 0, r = 0;
    DIR *d = folder ? opendir(folder) : NULL;
    if (!folder)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (!d) {
        if (errno != ENOENT || sub[0] == '\0')
            r = hx_fail_errno(err, errno, "%s: cannot open the model folder", folder);
        free(folder);
        return r;
    }
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len < 12 || strcmp(e->d_name + len - 12, ".safetensors") != 0)
            continue;
        if (grow((void **)&path, &cap, n, sizeof(*path)) < 0 ||
            !(path[n] = hx_path_join(folder, e->d_name)))
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            n++;
    }
    closedir(d);
    if (n > 0)
        qsort(path, (size_t)n, sizeof(*path), by_path);
    for (int i = 0; r == 0 && i < n; i++)
        r = open_shard(k, path[i], strcmp(sub, "experts") == 0, err);
    for (int i = 0; i < n; i++)
        free(path[i]);
    free(path);
    free(folder);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int sort_names(struct table *t, struct hx_error *err)
{
    if (t->n > 1)
        qsort(t->e, t->n, sizeof(*t->e), by_name);
    for (size_t i = 1; i < t->n; i++) {
        if (strcmp(t->e[i - 1].name, t->e[i].name) == 0)
            return hx_fail(err, -EINVAL, "tensor '%s' is in two files: %s and %s", t->e[i].name,
                           hx_st_path(t->e[i - 1].file), hx_st_path(t->e[i].file));
    }
    return 0;
}

static struct entry *find(struct table *t, const char *prefix, const char *suffix)
{
    char name[HX_ST_MAX_NAME];
    snprintf(name, sizeof(name), "%s%s", prefix, suffix);
    struct entry key = {.name = name};
    return t->n ? bsearch(&key, t->e, t->n, sizeof(*t->e), by_name) : NULL;
}

/* The index is not needed; if it is there it must agree with the headers. */
static int check_index(struct binder *k, const char *dir, const char *sub, struct hx_error *err)
{
    const struct hx_json_limits limits = {256u << 20, 4u << 20, 8, 0};
    char name[64], *path, *text = NULL;
    size_t len;
    struct hx_json *doc = NULL;
    snprintf(name, sizeof(name), "%s%smodel.safetensors.index.json", sub, sub[0] ? "/" : "");
    path = hx_path_join(dir, name);
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct hx_error ignored;
    int r = hx_file_read(path, limits.max_bytes, &text, &len, &ignored);
    if (r == -ENOENT) {
        free(path);
        return 0;
    }
    if (r < 0) {
        if (err)
            *err = ignored;
    } else {
        r = hx_json_parse(text, len, &limits, &doc, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    struct hx_jv map = hx_jv_get(hx_json_root(doc), "weight_map");
    struct table *t = strcmp(sub, "experts") == 0 ? &k->experts : &k->main;
    for (struct hx_jv m = hx_jv_first(map); r == 0 && m.doc; m = hx_jv_next(m)) {
        size_t klen, flen;
        const char *tensor = hx_jv_str(hx_jv_key(m), &klen), *shard = hx_jv_str(m, &flen);
        char tname[HX_ST_MAX_NAME];
        snprintf(tname, sizeof(tname), "%.*s", klen > 500 ? 500 : (int)klen, tensor);
        if (t == &k->experts && !is_routed_expert(tname))
            continue;
        const struct entry *e = find(t, tname, "");
        const char *at = e ? strrchr(hx_st_path(e->file), '/') + 1 : NULL;
        if (!shard || !at || strlen(at) != flen || memcmp(at, shard, flen) != 0)
            r = hx_fail(err, -EINVAL, "%s: tensor '%s' is said to be in '%.*s', found in %s", path,
                        tname, shard ? (int)(flen > 80 ? 80 : flen) : 1, shard ? shard : "?",
                        at ? at : "no file of the folder");
    }
    hx_json_free(doc);
    free(text);
    free(path);
    return r;
}

/* ---- one weight
 * -------------------------------------------------------------------------------------- */

static void shape_text(char out[96], int n, const int64_t *ne)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n && at < 80; i++)
        at += (size_t)snprintf(out + at, 96 - at, "%s%lld", i ? ", " : "", (long long)ne[i]);
}

/* The entry as a part of the newest weight, with dtype and shape checked. */
static int take(struct binder *k, struct entry *e, enum hx_weight_part part, enum hx_dtype dtype,
                int n_dims, const int64_t *ne)
{
    const struct hx_st_tensor *t = e->tensor;
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++)
        same = t->ne[i] == ne[i];
    e->used = true;
    if (t->dtype != dtype)
        return PROBLEM(k, "%s: tensor '%s': found dtype %s, expected %s", hx_st_path(e->file),
                       t->name, hx_dtype_name(t->dtype), hx_dtype_name(dtype));
    if (!same) {
        char found[96], want[96];
        shape_text(found, t->n_dims, t->ne);
        shape_text(want, n_dims, ne);
        return PROBLEM(k, "%s: tensor '%s': found shape [%s], expected [%s]", hx_st_path(e->file),
                       t->name, found, want);
    }
    struct hx_binding *b = k->b;
    if (grow((void **)&b->item, &k->cap_items, b->n_items, sizeof(*b->item)) < 0)
        return hx_fail(k->err, -ENOMEM, "out of memory");
    b->item[b->n_items++] =
        (struct hx_bind_item){e->file, t, b->n_weights, part, {-1, 0, 0}, false};
    struct hx_tensor *to = &b->weight[b->n_weights].part[part];
    *to = (struct hx_tensor){dtype, n_dims > 4 ? 4 : n_dims, {1, 1, 1, 1}, NULL};
    for (int i = 0; i < n_dims && i < 4; i++)
        to->ne[i] = ne[i];
    return 0;
}

static int take_named(struct binder *k, struct table *t, const char *prefix, const char *suffix,
                      enum hx_weight_part part, enum hx_dtype dtype, int n_dims, const int64_t *ne)
{
    struct entry *e = find(t, prefix, suffix);
    if (!e)
        return PROBLEM(k, "tensor '%s%s' is missing", prefix, suffix);
    return take(k, e, part, dtype, n_dims, ne);
}

static int bind_dense(struct binder *k, const struct hx_tensor_need *need)
{
    struct entry *e = find(&k->main, need->name, "");
    if (!e)
        return PROBLEM(k, "tensor '%s' is missing", need->name);
    bool matrix = need->n_out > 1 || e->tensor->n_dims == 2;
    const int64_t ne[2] = {need->n_out, need->n_in};
    return take(k, e, HX_PART_DATA, need->spec->dtype, matrix ? 2 : 1, matrix ? ne : ne + 1);
}

static int bind_fp8(struct binder *k, const struct hx_tensor_need *need, struct table *t)
{
    const int64_t ne[2] = {need->n_out, need->n_in};
    /* The tables of the Engram have a scale for each row; matrices for each 32 rows. */
    bool rows = need->spec->home == HX_HOME_NVME;
    const int64_t scale[2] = {rows ? need->n_out : (need->n_out + 31) / 32, (need->n_in + 31) / 32};
    int r = take_named(k, t, need->name, ".weight", HX_PART_DATA, HX_DTYPE_F8_E4M3, 2, ne);
    return r < 0
               ? r
               : take_named(k, t, need->name, ".scale", HX_PART_SCALE, HX_DTYPE_F8_E8M0, 2, scale);
}

static int bind_fp4(struct binder *k, const struct hx_tensor_need *need, struct table *t)
{
    const int64_t ne[2] = {need->n_out, need->n_in / 2}, scale[2] = {need->n_out, need->n_in / 32};
    int r = take_named(k, t, need->name, ".weight", HX_PART_DATA, HX_DTYPE_I8, 2, ne);
    return r < 0
               ? r
               : take_named(k, t, need->name, ".scale", HX_PART_SCALE, HX_DTYPE_F8_E8M0, 2, scale);
}

/* A marker tensor's value is the multiplier of its codebook; another number would be another
 * codebook. */
static int check_marker(struct binder *k, struct entry *e, uint32_t expected)
{
    uint32_t value = 0;
    e->used = true;
    if (e->tensor->dtype != HX_DTYPE_I32 || e->tensor->size != 4)
        return PROBLEM(k, "%s: tensor '%s': a codebook marker must be one I32", hx_st_path(e->file),
                       e->tensor->name);
    struct hx_error local;
    int r = hx_st_read(e->file, e->tensor, &value, &local);
    if (r < 0)
        return PROBLEM(k, "%s", local.text);
    if (value != expected)
        return PROBLEM(k, "%s: tensor '%s': found codebook multiplier 0x%08x, expected 0x%08x",
                       hx_st_path(e->file), e->tensor->name, value, expected);
    return 0;
}

static int bind_codebook(struct binder *k, const char *prefix, struct table *t)
{
    struct hx_weight *w = &k->b->weight[k->b->n_weights];
    struct entry *mul1 = find(t, prefix, ".mul1"), *mcg = find(t, prefix, ".mcg");
    if (mul1 && mcg)
        return PROBLEM(k, "'%s' has both codebook markers, mul1 and mcg", prefix);
    w->codebook = mul1 ? HX_CODEBOOK_MUL1 : mcg ? HX_CODEBOOK_MCG : HX_CODEBOOK_3INST;
    if (mul1)
        return check_marker(k, mul1, 0x83DCD12Du);
    return mcg ? check_marker(k, mcg, 0xCBAC1FEDu) : 0;
}

/* suh/svh, or the legacy sign words su/sv. */
static int bind_side(struct binder *k, const char *prefix, const char *suffix, const char *legacy,
                     enum hx_weight_part part, int64_t width, struct table *t)
{
    struct entry *words = find(t, prefix, legacy);
    if (find(t, prefix, suffix) || !words)
        return take_named(k, t, prefix, suffix, part, HX_DTYPE_F16, 1, &width);
    const int64_t n_words = width / 16;
    int r = take(k, words, part, HX_DTYPE_I16, 1, &n_words);
    if (r < 0)
        return r;
    k->b->item[k->b->n_items - 1].sign_words = true;
    k->b->weight[k->b->n_weights].part[part] =
        (struct hx_tensor){HX_DTYPE_F16, 1, {width, 1, 1, 1}, NULL};
    return 0;
}

static int bind_exl3(struct binder *k, const struct hx_tensor_need *need, struct table *t,
                     struct entry *trellis)
{
    struct hx_weight *w = &k->b->weight[k->b->n_weights];
    const struct hx_st_tensor *tt = trellis->tensor;
    int64_t k_in = (need->n_in + 127) / 128 * 128, n_out = (need->n_out + 127) / 128 * 128;
    if (find(t, need->name, ".scale"))
        return PROBLEM(k, "tensor '%s.scale' beside a trellis: this legacy form is not supported",
                       need->name);
    if (tt->n_dims != 3 || tt->ne[2] % 16 != 0 || tt->ne[2] < 16 || tt->ne[2] > 128)
        return PROBLEM(
            k,
            "%s: tensor '%s': found last dimension %lld, expected 16 x bits with 1 to 8 whole bits",
            hx_st_path(trellis->file), tt->name, (long long)(tt->n_dims == 3 ? tt->ne[2] : -1));
    w->bits = (int)(tt->ne[2] / 16);
    const int64_t ne[3] = {k_in / 16, n_out / 16, tt->ne[2]};
    int r = take(k, trellis, HX_PART_DATA, HX_DTYPE_I16, 3, ne);
    if (r == 0)
        r = bind_side(k, need->name, ".suh", ".su", HX_PART_SUH, k_in, t);
    if (r == 0)
        r = bind_side(k, need->name, ".svh", ".sv", HX_PART_SVH, n_out, t);
    struct entry *bias = r == 0 ? find(t, need->name, ".bias") : NULL;
    if (bias)
        r = take(k, bias, HX_PART_BIAS,
                 bias->tensor->dtype == HX_DTYPE_F32 ? HX_DTYPE_F32 : HX_DTYPE_F16, 1, &n_out);
    return r < 0 ? r : bind_codebook(k, need->name, t);
}

static int bind_linear(struct binder *k, const struct hx_tensor_need *need)
{
    struct hx_weight *w = &k->b->weight[k->b->n_weights];
    struct table *t = &k->main;
    if (need->spec->per_expert &&
        (find(&k->experts, need->name, ".trellis") || find(&k->experts, need->name, ".weight")))
        t = &k->experts;
    struct entry *trellis = find(t, need->name, ".trellis"),
                 *weight = find(t, need->name, ".weight");
    if (trellis && weight)
        return PROBLEM(k, "'%s' has both .trellis and .weight", need->name);
    if (!trellis && !weight)
        return PROBLEM(k, "tensor '%s.weight' is missing", need->name);
    w->format = trellis                                ? HX_FORMAT_EXL3
                : weight->tensor->dtype == HX_DTYPE_I8 ? HX_FORMAT_FP4
                                                       : HX_FORMAT_FP8;
    if (!(need->spec->formats & 1u << w->format)) {
        const struct entry *e = trellis ? trellis : weight;
        return PROBLEM(k, "%s: tensor '%s': dtype %s is not a format that '%s' may have",
                       hx_st_path(e->file), e->tensor->name, hx_dtype_name(e->tensor->dtype),
                       need->name);
    }
    switch (w->format) {
    case HX_FORMAT_EXL3: return bind_exl3(k, need, t, trellis);
    case HX_FORMAT_FP4: return bind_fp4(k, need, t);
    default: return bind_fp8(k, need, t);
    }
}

static int bind_need(void *user, const struct hx_tensor_need *need)
{
    struct binder *k = user;
    struct hx_binding *b = k->b;
    if (grow((void **)&b->weight, &k->cap_weights, b->n_weights, sizeof(*b->weight)) < 0)
        return hx_fail(k->err, -ENOMEM, "out of memory");
    struct hx_weight *w = &b->weight[b->n_weights];
    memset(w, 0, sizeof(*w));
    w->role = need->spec->role;
    w->layer = need->layer;
    w->expert = need->expert;
    w->n_out = need->n_out;
    w->n_in = need->n_in;
    w->format = HX_FORMAT_DENSE;
    int r = need->spec->naming == HX_NAME_BARE ? bind_dense(k, need) : bind_linear(k, need);
    if (r == -ENOMEM)
        return r;
    if (need->expert <= 0)
        b->first[need->spec->role][need->layer + 1] = b->n_weights;
    b->n_weights++;
    return 0; /* problems are counted; the walk goes on */
}

/* Every tensor must have been asked for. Expert tensors that experts/ replaces are superseded. */
static void find_extra(struct binder *k)
{
    for (size_t i = 0; i < k->main.n; i++) {
        struct entry *e = &k->main.e[i];
        if (e->used || hx_tensor_is_vision(e->name) ||
            (k->experts.n > 0 && is_routed_expert(e->name)))
            continue;
        (void)PROBLEM(k, "%s: tensor '%s' has no place in this model", hx_st_path(e->file),
                      e->name);
    }
    for (size_t i = 0; i < k->experts.n; i++) {
        struct entry *e = &k->experts.e[i];
        if (!e->used)
            (void)PROBLEM(k, "%s: tensor '%s' has no place in this model", hx_st_path(e->file),
                          e->name);
    }
}

static int by_position(const void *a, const void *b)
{
    const struct hx_bind_item *x = a, *y = b;
    int c = strcmp(hx_st_path(x->file), hx_st_path(y->file));
    if (c != 0)
        return c;
    return x->tensor->offset < y->tensor->offset ? -1 : x->tensor->offset > y->tensor->offset;
}

int hx_bind_folder(const char *dir, struct hx_binding *out, struct hx_error *err)
{
    static const char *const folders[] = {"", "dense", "engram", "experts"};
    struct hx_binding b = {0};
    struct hx_error first = {0}, local;
    struct binder k = {.b = &b, .err = &first};
    err = err ? err : &local;
    int r = hx_hparams_load(dir, &b.hp, err);
    if (r == 0)
        r = hx_maps_derive(&b.hp, &b.maps, err);
    b.file = calloc(MAX_FILES, sizeof(*b.file));
    if (r == 0 && !b.file)
        r = hx_fail(err, -ENOMEM, "out of memory");
    for (int role = 0; r == 0 && role < HX_T_MAX; role++) {
        b.first[role] = malloc(sizeof(int) * (HX_MAX_LAYERS + 1));
        if (!b.first[role])
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            memset(b.first[role], 0xFF, sizeof(int) * (HX_MAX_LAYERS + 1));
    }
    for (int i = 0; r == 0 && i < 4; i++)
        r = open_folder(&k, dir, folders[i], err);
    if (r == 0 && b.n_files == 0)
        r = hx_fail(err, -ENOENT,
                    "%s: no .safetensors file in the folder, dense/, engram/ or experts/", dir);
    if (r == 0)
        r = sort_names(&k.main, err);
    if (r == 0)
        r = sort_names(&k.experts, err);
    for (int i = 0; r == 0 && i < 4; i++)
        r = check_index(&k, dir, folders[i], err);
    if (r == 0 && (r = hx_tensors_each(&b.hp, &b.maps, bind_need, &k)) < 0)
        *err = first;
    if (r == 0) {
        find_extra(&k);
        if (k.n_problems > 0) {
            *err = first;
            r = first.code;
            size_t n = strlen(err->text);
            if (k.n_problems > 1)
                snprintf(err->text + n, sizeof(err->text) - n, " (and %d more problems)",
                         k.n_problems - 1);
            hx_wrap(err, r, "%s", dir);
        }
    }
    free(k.main.e);
    free(k.experts.e);
    if (r < 0) {
        hx_binding_done(&b);
        return r;
    }
    qsort(b.item, (size_t)b.n_items, sizeof(*b.item), by_position);
    *out = b;
    return 0;
}

struct slicer {
    struct hx_binding *b;
    const struct hx_slice *s;
    struct hx_cut (*cut)[HX_PART_MAX]; /* [n_weights] */
    int next;                          /* weights are in the order of the walk */
    struct hx_error *err;
};

static int slice_weight(void *user, const struct hx_tensor_need *need)
{
    struct slicer *k = user;
    struct hx_weight *w = &k->b->weight[k->next], whole = *w;
    return hx_slice_weight(k->s, need, &whole, w, k->cut[k->next++], k->err);
}

int hx_binding_slice(struct hx_binding *b, const struct hx_slice *s, struct hx_error *err)
{
    struct slicer k = {b, s, NULL, 0, err};
    int r = hx_slice_check(s, &b->hp, err);
    if (r < 0)
        return r;
    k.cut = calloc((size_t)b->n_weights, sizeof(*k.cut));
    if (!k.cut)
        return hx_fail(err, -ENOMEM, "out of memory");
    r = hx_tensors_each(&b->hp, &b->maps, slice_weight, &k);
    for (int i = 0; r == 0 && i < b->n_items; i++)
        b->item[i].cut = k.cut[b->item[i].weight][b->item[i].part];
    free(k.cut);
    return r;
}

void hx_binding_done(struct hx_binding *b)
{
    for (int i = 0; i < b->n_files; i++)
        hx_st_close(b->file[i]);
    for (int role = 0; role < HX_T_MAX; role++)
        free(b->first[role]);
    free(b->file);
    free(b->weight);
    free(b->item);
    memset(b, 0, sizeof(*b));
}

int hx_binding_find(const struct hx_binding *b, enum hx_role role, int layer, int expert)
{
    if (layer < -1 || layer >= HX_MAX_LAYERS)
        return -1;
    int first = b->first[role][layer + 1];
    if (first < 0 || expert < 0)
        return first;
    int i = first + expert;
    return i < b->n_weights && b->weight[i].role == (int)role && b->weight[i].layer == layer ? i
                                                                                             : -1;
}
