#include "fetch/finish.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "engram/token_map.h"
#include "fetch/part.h"
#include "fetch/select.h"
#include "hx/tokenizer.h"
#include "model/bind.h"

#define MAX_MAP    ((size_t)1 << 26)
#define BLOCK      ((size_t)1 << 20)
#define MAX_CONFIG ((size_t)1 << 20)

static int token(void *user, int32_t id, struct hx_token_bytes *out, struct hx_error *err)
{
    const struct hx_tokenizer *t = user;
    size_t n;
    const uint8_t *p = hx_tokenizer_bytes(t, id, &n);
    if (!p)
        return hx_fail(err, -EINVAL, "tokenizer.json has no token %d, config.json counts it", id);
    *out = (struct hx_token_bytes){p, n, hx_tokenizer_is_added(t, id)};
    return 0;
}

static int build_map(const char *dir, const struct hx_hparams *hp, const struct hx_tokenizer *t,
                     uint8_t sha256[HX_SHA256_BYTES], uint64_t *n_bytes, struct hx_error *err)
{
    size_t n = (size_t)hp->n_vocab;
    const struct hx_token_source source = {hp->n_vocab, token, (void *)(uintptr_t)t};
    int32_t n_ids = 0, *map = calloc(n + 1, sizeof(*map));
    uint8_t *bytes = malloc(4 * n + 1);
    char *path = hx_path_join(dir, "engram_token_map.i32");
    int r = map && bytes && path ? hx_token_map_build(&source, map, &n_ids, err)
                                 : hx_fail(err, -ENOMEM, "out of memory for the token map");
    if (r == 0 && n_ids != hp->engram_compressed)
        r = hx_fail(
            err, -EINVAL,
            "the token map has %d compressed ids, config.json says %d: tokenizer.json is of "
            "another release",
            n_ids, hp->engram_compressed);
    for (size_t i = 0; r == 0 && i < n; i++) {
        for (int k = 0; k < 4; k++)
            bytes[4 * i + (size_t)k] = (uint8_t)((uint32_t)map[i] >> (8 * k));
    }
    if (r == 0) {
        hx_sha256_data(bytes, 4 * n, sha256);
        *n_bytes = 4 * n;
        r = hx_file_replace(path, bytes, 4 * n, err);
    }
    free(map);
    free(bytes);
    free(path);
    return r;
}

int hx_finish_token_map(const char *dir, uint8_t sha256[HX_SHA256_BYTES], uint64_t *n_bytes,
                        struct hx_error *err)
{
    struct hx_hparams hp;
    struct hx_tokenizer *t = NULL;
    int r = hx_hparams_load(dir, &hp, err);
    if (r < 0)
        return r;
    char *path = hx_path_join(dir, "tokenizer.json");
    r = path ? hx_tokenizer_open(path, &t, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = build_map(dir, &hp, t, sha256, n_bytes, err);
    hx_tokenizer_close(t);
    free(path);
    return r;
}

/* ---- cross checks ---- */

static int64_t count_experts(const struct hx_binding *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n_weights; i++) {
        const struct hx_weight *w = &b->weight[i];
        n += w->layer < b->hp.n_layer &&
             (w->role == HX_T_EXPERT_W1 || w->role == HX_T_EXPERT_W2 || w->role == HX_T_EXPERT_W3);
    }
    return n;
}

/* What of the official repository is in the folder. */
struct official {
    int64_t dense_bytes; /* as hx_select_counts counts them */
    int64_t tensors;     /* of the repository: those here and the experts that are not */
};

static int read_config(const char *dir, struct hx_select **out, struct hx_error *err)
{
    char *text = NULL, *path = hx_path_join(dir, "config.json");
    size_t n;
    int r = path ? hx_file_read(path, MAX_CONFIG, &text, &n, err)
                 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_select_open(text, n, out, err);
    free(text);
    free(path);
    return r;
}

static int count_official(const char *dir, const struct hx_binding *b, struct official *out,
                          struct hx_error *err)
{
    const char *pack = "/experts/";
    struct hx_select *s = NULL;
    int r = read_config(dir, &s, err);
    if (r < 0)
        return r;
    /* Weight and scale of each matrix. */
    *out = (struct official){0, 2 * count_experts(b)};
    for (int i = 0; i < b->n_files; i++) {
        const char *name = hx_st_path(b->file[i]) + strlen(dir);
        if (strncmp(name, pack, strlen(pack)) == 0)
            continue;
        for (size_t k = 0; k < hx_st_count(b->file[i]); k++) {
            const struct hx_st_tensor *t = hx_st_at(b->file[i], k);
            enum hx_select_place place = hx_select_find(s, t->name, NULL);
            out->tensors += place != HX_PLACE_EXPERT;
            if (place == HX_PLACE_DENSE || place == HX_PLACE_VISION)
                out->dense_bytes += (int64_t)t->size;
        }
    }
    hx_select_close(s);
    return 0;
}

static int check_number(struct hx_jv expect, const char *key, int64_t found, struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(expect, key);
    int64_t want;
    if (!v.doc)
        return 0;
    if (!hx_jv_int64(v, &want))
        return hx_fail(err, -EINVAL, "lock file: expect.%s is not a whole number", key);
    if (want != found)
        return hx_fail(err, -EINVAL, "%s: the lock file expects %lld, the files have %lld", key,
                       (long long)want, (long long)found);
    return 0;
}

static int check_rows(struct hx_jv expect, const struct hx_hparams *hp, struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(expect, "engram_rows");
    int64_t want;
    size_t i = 0;
    if (!v.doc)
        return 0;
    if (hx_jv_type(v) != HX_JSON_ARRAY || hx_jv_count(v) != (size_t)hp->n_engram)
        return hx_fail(err, -EINVAL, "engram_rows: the lock file expects %zu tables, there are %d",
                       hx_jv_count(v), hp->n_engram);
    for (v = hx_jv_first(v); v.doc; v = hx_jv_next(v), i++) {
        if (!hx_jv_int64(v, &want) || want != hp->engram_rows[i])
            return hx_fail(err, -EINVAL,
                           "engram_rows: table %zu has %lld rows, the lock file "
                           "expects another number",
                           i, (long long)hp->engram_rows[i]);
    }
    return 0;
}

static int check_map(struct hx_jv expect, const uint8_t found[HX_SHA256_BYTES],
                     struct hx_error *err)
{
    char hex[HX_SHA256_HEX];
    struct hx_jv v = hx_jv_get(expect, "token_map_sha256");
    hx_sha256_to_hex(found, hex);
    if (v.doc && !hx_jv_str_is(v, hex))
        return hx_fail(err, -EINVAL,
                       "token_map_sha256: the token map has %s, the lock file expects another one",
                       hex);
    return 0;
}

int hx_finish_check(const char *dir, const char *expect_json,
                    const uint8_t token_map[HX_SHA256_BYTES], struct hx_error *err)
{
    const struct hx_json_limits limits = {1u << 20, 1u << 16, 16, 0};
    struct hx_binding b;
    struct hx_json *doc = NULL;
    int r = hx_bind_folder(dir, &b, err);
    if (r < 0)
        return r;
    if (expect_json)
        r = hx_json_parse(expect_json, strlen(expect_json), &limits, &doc, err);
    if (r == 0 && expect_json) {
        struct hx_jv expect = hx_json_root(doc);
        r = check_number(expect, "expert_matrices", count_experts(&b), err);
        if (r == 0)
            r = check_rows(expect, &b.hp, err);
        if (r == 0)
            r = check_map(expect, token_map, err);
        struct official found = {0};
        if (r == 0 &&
            (hx_jv_get(expect, "dense_bytes").doc || hx_jv_get(expect, "tensors_official").doc))
            r = count_official(dir, &b, &found, err);
        if (r == 0)
            r = check_number(expect, "dense_bytes", found.dense_bytes, err);
        if (r == 0)
            r = check_number(expect, "tensors_official", found.tensors, err);
    }
    hx_json_free(doc);
    hx_binding_done(&b);
    return r;
}

/* ---- hashes that the lock file learns ---- */

static int hash_range(struct hx_part *p, uint64_t at, uint64_t end, uint8_t *buf,
                      uint8_t out[HX_SHA256_BYTES], struct hx_error *err)
{
    struct hx_sha256 *h = NULL;
    int r = hx_sha256_new(&h, err);
    while (r == 0 && at < end) {
        size_t n = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
        r = hx_part_read(p, buf, n, at, err);
        if (r == 0)
            hx_sha256_update(h, buf, n);
        at += n;
    }
    if (r == 0)
        hx_sha256_final(h, out);
    hx_sha256_free(h);
    return r;
}

int hx_finish_tensor_hashes(const char *path, struct hx_lock_file *f, struct hx_error *err)
{
    struct hx_part p = HX_PART_INIT;
    struct hx_st_file *header = NULL;
    uint8_t *buf = malloc(BLOCK);
    int r = buf ? hx_st_open(path, &header, err) : hx_fail(err, -ENOMEM, "%s: out of memory", path);
    if (r == 0)
        r = hx_part_open_read(path, false, &p, err);
    for (size_t i = 0; r == 0 && i < f->n_tensors; i++) {
        struct hx_lock_tensor *t = &f->tensors[i];
        const struct hx_st_tensor *found = hx_st_find(header, t->name);
        if (t->has_sha256)
            continue;
        if (!found || found->size != t->end - t->begin)
            r = hx_fail(err, -EINVAL, "%s: tensor '%s' is not there", path, t->name);
        else
            r = hash_range(&p, found->offset, found->offset + found->size, buf, t->sha256, err);
        t->has_sha256 = r == 0;
    }
    hx_part_close(&p);
    hx_st_close(header);
    free(buf);
    return r;
}

int hx_lock_copy(const struct hx_lock *lock, struct hx_lock **out, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(HX_LOCK_MAX_BYTES);
    int r = hx_lock_format(lock, &text, err);
    if (r == 0)
        r = hx_lock_parse((const char *)text.data, text.len, "lock file", out, err);
    hx_buf_done(&text);
    return r;
}
