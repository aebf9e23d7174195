#include "fetch/lock_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"

#define MAX_SMALL (64u << 20)

enum { SOURCE_OFFICIAL, SOURCE_PACK };

/* Small files of the official repository that go into the model folder as they are. */
static const struct {
    const char *path;
    bool required;
} small_files[] = {
    {"config.json", true},
    {"tokenizer.json", true},
    {"generation_config.json", false},
    {"tokenizer_config.json", false},
    {"LICENSE", false},
    {"chat_template.jinja", false},
};

struct builder {
    const struct hx_lock_build *opt;
    struct hx_repo *repo[2];
    struct hx_select *select;
    struct hx_lock *lock;
    size_t cap_files, n_official;
    struct hx_error *err;
};

static int no_memory(struct builder *b)
{
    return hx_fail(b->err, -ENOMEM, "out of memory for the lock file");
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct hx_lock_file *add_file(struct builder *b, int source, const struct hx_repo_file *f,
                                     const char *out)
{
    struct hx_lock *lock = b->lock;
    if (lock->n_files == b->cap_files) {
        size_t cap = b->cap_files ? 2 * b->cap_files : 64;
        struct hx_lock_file *more = realloc(lock->files, cap * sizeof(*more));
        if (!more)
            return NULL;
        lock->files = more;
        b->cap_files = cap;
    }
    struct hx_lock_file *to = &lock->files[lock->n_files++];
    *to = (struct hx_lock_file){
        .source = (size_t)source,
        .path = strdup(f->path),
        .out = strdup(out),
        .group = hx_lock_group_of(out),
        .mode = HX_LOCK_WHOLE,
        .size = f->size,
        .has_sha256 = f->has_sha256,
        .chunk = b->opt->chunk ? b->opt->chunk : HX_LOCK_CHUNK,
    };
    memcpy(to->sha256, f->sha256, 32);
    return to->path && to->out ? to : NULL;
}

static struct hx_lock_file *add_shard(struct builder *b, int source, const struct hx_repo_shard *s,
                                      const char *out)
{
    struct hx_lock_file *to = add_file(b, source, &b->repo[source]->files[s->file], out);
    if (!to)
        return NULL;
    memcpy(to->header_sha256, s->header_sha256, 32);
    to->has_header_sha256 = true;
    return to;
}

static int add_tensor(struct hx_lock_file *f, const struct hx_repo_shard *s,
                      const struct hx_st_tensor *t)
{
    struct hx_lock_tensor *to = &f->tensors[f->n_tensors++];
    *to = (struct hx_lock_tensor){
        .name = strdup(t->name),
        .dtype = strdup(hx_dtype_name(t->dtype)),
        .n_dims = (unsigned)t->n_dims,
        .begin = t->offset - s->header_bytes,
        .end = t->offset - s->header_bytes + t->size,
    };
    for (int i = 0; i < t->n_dims; i++)
        to->shape[i] = (uint64_t)t->ne[i];
    return to->name && to->dtype ? 0 : -ENOMEM;
}

/* Turns a file into a cut of the tensors that keep() wants. */
static int cut(struct builder *b, struct hx_lock_file *f, const struct hx_repo_shard *s,
               bool (*keep)(enum hx_select_place place))
{
    f->mode = HX_LOCK_CUT;
    f->header_bytes = s->header_bytes;
    f->tensors = calloc(hx_st_count(s->st), sizeof(*f->tensors));
    int r = f->tensors ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < hx_st_count(s->st); i++) {
        const struct hx_st_tensor *t = hx_st_at(s->st, i);
        if (keep(hx_select_find(b->select, t->name, NULL)))
            r = add_tensor(f, s, t);
    }
    return r < 0 ? no_memory(b) : 0;
}

static bool is_expert(enum hx_select_place place)
{
    return place == HX_PLACE_EXPERT;
}

static bool is_not_expert(enum hx_select_place place)
{
    return place != HX_PLACE_EXPERT;
}

static int add_small_file(struct builder *b, int source, const char *path, const char *out)
{
    struct hx_repo *repo = b->repo[source];
    const struct hx_repo_file *f = hx_repo_find(repo, path);
    /* Outside large-file storage the listing has no SHA-256: it is made from the bytes. */
    if (!f || !f->has_sha256) {
        char *data = NULL;
        size_t n;
        int r = hx_repo_read(repo, path, MAX_SMALL, &data, &n, b->err);
        free(data);
        if (r < 0)
            return r;
    }
    struct hx_lock_file *to = add_file(b, source, hx_repo_find(repo, path), out);
    if (!to)
        return no_memory(b);
    to->group = HX_GROUP_SMALL;
    return 0;
}

static int add_small(struct builder *b)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof(small_files) / sizeof(small_files[0]); i++) {
        if (small_files[i].required || hx_repo_find(b->repo[SOURCE_OFFICIAL], small_files[i].path))
            r = add_small_file(b, SOURCE_OFFICIAL, small_files[i].path, small_files[i].path);
    }
    return r;
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* "model-00003-of-00048.safetensors" is number 3; other names count by their place. */
static unsigned shard_number(const char *path, size_t place)
{
    unsigned number;
    if (sscanf(path, "model-%5u-of-", &number) == 1)
        return number;
    return (unsigned)place + 1;
}

struct contents {
    size_t n, experts, vision, engram;
    int engram_layer;
};

static struct contents look(const struct builder *b, const struct hx_repo_shard *s)
{
    struct contents c = {.n = hx_st_count(s->st), .engram_layer = -1};
    for (size_t i = 0; i < c.n; i++) {
        int layer;
        switch (hx_select_find(b->select, hx_st_at(s->st, i)->name, &layer)) {
        case HX_PLACE_EXPERT: c.experts++; break;
        case HX_PLACE_VISION: c.vision++; break;
        case HX_PLACE_ENGRAM:
            c.engram++;
            c.engram_layer = layer;
            break;
        default: break;
        }
    }
    return c;
}

static int add_official(struct builder *b, size_t i)
{
    struct hx_repo *repo = b->repo[SOURCE_OFFICIAL];
    const struct hx_repo_shard *s = &repo->shards[i];
    const char *path = repo->files[s->file].path;
    struct contents c = look(b, s);
    char out[64];
    for (size_t k = 0; k < c.n; k++) {
        int r = hx_select_official(b->select, path, hx_st_at(s->st, k), b->err);
        if (r < 0)
            return r;
    }
    if (c.experts == c.n || (c.vision == c.n && !b->opt->vision))
        return 0;
    if (c.engram > 0 && c.experts == 0)
        snprintf(out, sizeof(out), "engram/layer%d.safetensors", c.engram_layer);
    else
        snprintf(out, sizeof(out), "dense/%05u.safetensors", shard_number(path, i));
    struct hx_lock_file *f = add_shard(b, SOURCE_OFFICIAL, s, out);
    if (!f)
        return no_memory(b);
    return c.experts > 0 ? cut(b, f, s, is_not_expert) : 0;
}

static int add_pack(struct builder *b, size_t i)
{
    struct hx_repo *repo = b->repo[SOURCE_PACK];
    const struct hx_repo_shard *s = &repo->shards[i];
    const char *path = repo->files[s->file].path;
    struct contents c = look(b, s);
    char out[64];
    for (size_t k = 0; k < c.n; k++) {
        int r = hx_select_pack(b->select, path, hx_st_at(s->st, k), b->err);
        if (r < 0)
            return r;
    }
    bool experts_only = b->opt->layout == HX_LAYOUT_EXPERTS;
    if (experts_only && c.experts == 0)
        return 0;
    snprintf(out, sizeof(out), "experts/%05u.safetensors", shard_number(path, i));
    struct hx_lock_file *f = add_shard(b, SOURCE_PACK, s, out);
    if (!f)
        return no_memory(b);
    return experts_only && c.experts < c.n ? cut(b, f, s, is_expert) : 0;
}

static int add_shards(struct builder *b)
{
    struct hx_repo *official = b->repo[SOURCE_OFFICIAL], *pack = b->repo[SOURCE_PACK];
    int r = hx_repo_read_shards(official, true, b->err);
    if (r == 0)
        r = hx_repo_read_shards(pack, false, b->err);
    for (size_t i = 0; r == 0 && i < official->n_shards; i++) {
        r = add_official(b, i);
        b->n_official += hx_st_count(official->shards[i].st);
    }
    for (size_t i = 0; r == 0 && i < pack->n_shards; i++)
        r = add_pack(b, i);
    if (r == 0 && hx_repo_find(pack, "LICENSE"))
        r = add_small_file(b, SOURCE_PACK, "LICENSE", "experts/LICENSE");
    return r < 0 ? r : hx_select_check(b->select, b->err);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int add_source(struct builder *b, int i, const char *id)
{
    struct hx_lock_source *s = &b->lock->sources[i];
    const struct hx_repo *repo = b->repo[i];
    s->id = strdup(id);
    s->repo = strdup(repo->name);
    memcpy(s->commit, repo->commit, sizeof(s->commit));
    s->licence = repo->licence ? strdup(repo->licence) : NULL;
    b->lock->n_sources++;
    return s->id && s->repo && (s->licence || !repo->licence) ? 0 : no_memory(b);
}

/* Numbers that the finished folder is checked against. */
static int add_expect(struct builder *b)
{
    struct hx_select_counts c;
    struct hx_buf text = HX_BUF_INIT(1u << 20);
    struct hx_json_writer w;
    hx_select_counts(b->select, &c);
    hx_jw_init(&w, &text, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "dense_bytes");
    hx_jw_uint(&w, c.dense_bytes);
    hx_jw_key(&w, "engram_rows");
    hx_jw_array(&w);
    for (size_t i = 0; i < c.n_engram; i++)
        hx_jw_int(&w, c.engram_rows[i]);
    hx_jw_end_array(&w);
    hx_jw_key(&w, "expert_matrices");
    hx_jw_uint(&w, c.expert_matrices);
    hx_jw_key(&w, "tensors_official");
    hx_jw_uint(&w, b->n_official);
    hx_jw_end_object(&w);
    const char *s = text.failed ? NULL : hx_buf_cstr(&text);
    b->lock->expect_json = s ? strdup(s) : NULL;
    hx_buf_done(&text);
    return b->lock->expect_json ? 0 : no_memory(b);
}

static int start(struct builder *b)
{
    char *config = NULL;
    size_t n;
    b->lock = calloc(1, sizeof(*b->lock));
    if (!b->lock || !(b->lock->sources = calloc(2, sizeof(*b->lock->sources))))
        return no_memory(b);
    b->lock->model = strdup(b->opt->model);
    b->lock->created = strdup(b->opt->created);
    b->lock->tool = strdup(b->opt->tool);
    b->lock->made_here = true;
    if (!b->lock->model || !b->lock->created || !b->lock->tool)
        return no_memory(b);
    int r = add_source(b, SOURCE_OFFICIAL, "official");
    if (r == 0)
        r = add_source(b, SOURCE_PACK, "exl3");
    if (r == 0)
        r = hx_repo_read(b->repo[SOURCE_OFFICIAL], "config.json", 1u << 20, &config, &n, b->err);
    if (r == 0) {
        r = hx_select_open(config, n, &b->select, b->err);
        if (r < 0)
            hx_wrap(b->err, r, "%s/config.json", b->repo[SOURCE_OFFICIAL]->name);
    }
    free(config);
    return r;
}

int hx_lock_build(const struct hx_lock_build *opt, struct hx_repo *official, struct hx_repo *pack,
                  struct hx_lock **out, struct hx_select_counts *counts, struct hx_error *err)
{
    struct builder b = {.opt = opt, .repo = {official, pack}, .err = err};
    struct hx_buf text = HX_BUF_INIT(HX_LOCK_MAX_BYTES);
    int r = start(&b);
    if (r == 0)
        r = add_small(&b);
    if (r == 0)
        r = add_shards(&b);
    if (r == 0)
        r = add_expect(&b);
    /* Read back: what is written passes every rule of reading. */
    if (r == 0)
        r = hx_lock_format(b.lock, &text, err);
    if (r == 0)
        r = hx_lock_parse((const char *)text.data, text.len, opt->model, out, err);
    if (r == 0 && counts)
        hx_select_counts(b.select, counts);
    hx_buf_done(&text);
    hx_select_close(b.select);
    hx_lock_free(b.lock);
    return r;
}
