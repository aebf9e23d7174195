/* A model folder on a device: binding, reading and checking the bytes. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/bind.h"
#include "model/manifest.h"
#include "model/values.h"

struct hx_model {
    struct hx_binding b;
    struct hx_manifest manifest;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_buffer *weights;
    struct hx_slice slice;
    int32_t *token_map;
};

static bool on_device(const struct hx_model *m, const struct hx_bind_item *it)
{
    return m->b.weight[it->weight].role != HX_T_ENGRAM_EMBED;
}

/* Of what the rank has. */
static size_t part_bytes(const struct hx_model *m, const struct hx_bind_item *it)
{
    const struct hx_cut whole = {-1, 0, 0};
    return hx_cut_bytes(&m->b.weight[it->weight].part[it->part], &whole);
}

/* ---- reading
 * ----------------------------------------------------------------------------------------- */

/* Legacy sign words: bit i of word j is the sign of channel 16 j + i, 1 = -1. */
static void expand_signs(const uint8_t *words, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        unsigned word = (unsigned)words[i / 16 * 2] | (unsigned)words[i / 16 * 2 + 1] << 8;
        out[i] = word >> (i % 16) & 1 ? 0xBC00 : 0x3C00;
    }
}

static int load_item(struct hx_model *m, struct hx_bind_item *it, uint8_t *to, uint8_t *staging,
                     struct hx_error *err)
{
    struct hx_tensor *part = &m->b.weight[it->weight].part[it->part];
    size_t bytes = part_bytes(m, it);
    if (bytes == 0)
        return 0;
    int r = it->cut.dim < 0 || it->sign_words
                ? hx_st_read(it->file, it->tensor, staging, err)
                : hx_st_read_part(it->file, it->tensor, it->cut.dim, it->cut.from, it->cut.to,
                                  staging, err);
    if (r == 0)
        r = hx_values_check(
            hx_st_path(it->file), it->tensor, &it->cut, m->b.weight[it->weight].format, staging,
            (it->sign_words ? it->tensor->size : bytes) / hx_dtype_size(it->tensor->dtype), err);
    if (r < 0)
        return r;
    part->data = to;
    if (!it->sign_words)
        return m->be->upload(m->dev, to, staging, bytes, err);
    size_t n = it->tensor->size / 2 * 16; /* channels of the whole vector */
    uint16_t *f16 = malloc(n * 2);
    if (!f16)
        return hx_fail(err, -ENOMEM, "out of memory");
    expand_signs(staging, (int64_t)n, f16);
    r = m->be->upload(m->dev, to, f16 + (it->cut.dim < 0 ? 0 : it->cut.from), bytes, err);
    free(f16);
    return r;
}

static int load_all(struct hx_model *m, const struct hx_model_options *opt, struct hx_error *err)
{
    uint64_t total = 0, largest = 0, done = 0;
    for (int i = 0; i < m->b.n_items; i++) {
        if (!on_device(m, &m->b.item[i]))
            continue;
        const struct hx_bind_item *it = &m->b.item[i];
        uint64_t read = it->cut.dim < 0 || it->sign_words ? it->tensor->size : part_bytes(m, it);
        total += hx_device_room(part_bytes(m, it));
        largest = read > largest ? read : largest;
    }
    int r = m->be->alloc(m->dev, HX_MEM_DEVICE, total ? total : 1, &m->weights, err);
    if (r < 0)
        return hx_wrap(err, r, "%llu bytes of weights", (unsigned long long)total);
    uint8_t *to = m->be->address(m->weights), *staging = malloc(largest ? largest : 1);
    if (!staging)
        return hx_fail(err, -ENOMEM, "out of memory for a staging buffer of %llu bytes",
                       (unsigned long long)largest);
    for (int i = 0; r == 0 && i < m->b.n_items; i++) {
        struct hx_bind_item *it = &m->b.item[i];
        if (!on_device(m, it))
            continue;
        r = load_item(m, it, to, staging, err);
        to += hx_device_room(part_bytes(m, it));
        done += hx_device_room(part_bytes(m, it));
        if (opt->progress)
            opt->progress(opt->user, (double)done / (double)total);
    }
    free(staging);
    return r;
}

/* ---- token map
 * --------------------------------------------------------------------------------------- */

/* A wrong map re-addresses every table silently, so it is checked at every start (spec
 * engram.md 2.1). */
static int check_token_map(const struct hx_hparams *hp, const int32_t *map, struct hx_error *err)
{
    uint8_t *seen = calloc((size_t)hp->engram_compressed, 1);
    if (!seen)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = 0, distinct = 0;
    for (int i = 0; r == 0 && i < hp->n_vocab; i++) {
        if (map[i] < 0 || map[i] >= hp->engram_compressed) {
            r = hx_fail(err, -EINVAL, "token %d: found id %d, expected 0 to %d", i, map[i],
                        hp->engram_compressed - 1);
        } else if (!seen[map[i]]) {
            seen[map[i]] = 1;
            distinct++;
        }
    }
    free(seen);
    if (r == 0 && distinct != hp->engram_compressed)
        r = hx_fail(err, -EINVAL, "found %d distinct ids, expected %d", distinct,
                    hp->engram_compressed);
    if (r == 0 && hp->released_size && map[hp->engram_pad] != 2)
        r = hx_fail(err, -EINVAL, "found id %d for the pad token, expected 2", map[hp->engram_pad]);
    return r;
}

int hx_token_map_load(const char *dir, const struct hx_hparams *hp, int32_t **out,
                      struct hx_error *err)
{
    char *path = hx_path_join(dir, "engram_token_map.i32"), *data = NULL;
    size_t len, want = (size_t)hp->n_vocab * 4;
    int32_t *map = NULL;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_read(path, 64 << 20, &data, &len, err);
    if (r == 0 && len != want) {
        r = hx_fail(err, -EINVAL, "%s: found %zu bytes, expected %zu (one int32 a token)", path,
                    len, want);
    } else if (r == 0) {
        map = malloc(want);
        if (!map) {
            r = hx_fail(err, -ENOMEM, "out of memory");
        } else {
            memcpy(map, data, want);
            r = check_token_map(hp, map, err);
            if (r < 0)
                hx_wrap(err, r, "%s", path);
        }
    }
    free(data);
    free(path);
    if (r < 0)
        free(map);
    else
        *out = map;
    return r;
}

/* ---- life cycle and access
 * --------------------------------------------------------------------------- */

static int open_synthetic(struct hx_model *m, const struct hx_model_options *opt,
                          struct hx_error *err)
{
    int r = hx_synthetic_bind(opt->synthetic, &m->b, err);
    return r < 0 ? r
                 : hx_synthetic_load(opt->synthetic, &opt->slice, m->be, m->dev, &m->b, &m->weights,
                                     err);
}

static int open_folder(struct hx_model *m, const char *dir, const struct hx_model_options *opt,
                       struct hx_error *err)
{
    int r = hx_manifest_load(dir, &m->manifest, err);
    if (r == 0)
        r = hx_bind_folder(dir, &m->b, err);
    if (r == 0)
        r = hx_binding_slice(&m->b, &opt->slice, err);
    if (r == 0 && m->b.hp.n_engram > 0)
        r = hx_token_map_load(dir, &m->b.hp, &m->token_map, err);
    return r < 0 ? r : load_all(m, opt, err);
}

int hx_model_open(const char *dir, const struct hx_model_options *opt, struct hx_model **out,
                  struct hx_error *err)
{
    struct hx_model *m = calloc(1, sizeof(*m));
    if (!m)
        return hx_fail(err, -ENOMEM, "out of memory");
    m->be = opt->backend;
    m->dev = opt->dev;
    m->slice = opt->slice;
    int r = opt->synthetic ? open_synthetic(m, opt, err) : open_folder(m, dir, opt, err);
    if (r < 0) {
        hx_model_close(m);
        return r;
    }
    *out = m;
    return 0;
}

void hx_model_close(struct hx_model *m)
{
    if (!m)
        return;
    if (m->weights)
        m->be->free(m->weights);
    hx_binding_done(&m->b);
    free(m->token_map);
    free(m);
}

const struct hx_hparams *hx_model_hparams(const struct hx_model *m)
{
    return &m->b.hp;
}

const struct hx_maps *hx_model_maps(const struct hx_model *m)
{
    return &m->b.maps;
}

const struct hx_manifest *hx_model_manifest(const struct hx_model *m)
{
    return &m->manifest;
}

const struct hx_weight *hx_model_weight(const struct hx_model *m, enum hx_role role, int layer,
                                        int expert)
{
    int i = hx_binding_find(&m->b, role, layer, expert);
    return i < 0 ? NULL : &m->b.weight[i];
}

struct hx_slice hx_model_slice(const struct hx_model *m)
{
    return m->slice;
}

const int32_t *hx_model_token_map(const struct hx_model *m)
{
    return m->token_map;
}

void hx_binding_engram_file(const struct hx_binding *b, int slot, struct hx_row_file *out)
{
    int w = hx_binding_find(b, HX_T_ENGRAM_EMBED, b->hp.engram_layer[slot], -1);
    struct hx_row_file f = {0};
    for (int i = 0; i < b->n_items; i++) {
        const struct hx_bind_item *it = &b->item[i];
        if (it->weight != w)
            continue;
        if (it->part == HX_PART_DATA) {
            f.path = hx_st_path(it->file);
            f.data_offset = it->tensor->offset;
            f.n_rows = it->tensor->ne[0];
            f.row_bytes = (int)it->tensor->ne[1];
        } else {
            f.scale_path = hx_st_path(it->file);
            f.scale_offset = it->tensor->offset;
            f.scale_bytes = (int)it->tensor->ne[1];
        }
    }
    *out = f;
}

int hx_model_engram_file(const struct hx_model *m, int slot, struct hx_row_file *out)
{
    hx_binding_engram_file(&m->b, slot, out);
    return 0;
}

int hx_model_override(struct hx_model *m, const char *name, const void *data, size_t size,
                      struct hx_error *err)
{
    for (int i = 0; i < m->b.n_items; i++) {
        const struct hx_bind_item *it = &m->b.item[i];
        if (strcmp(it->tensor->name, name) != 0 || !on_device(m, it))
            continue;
        if (it->cut.dim >= 0)
            return hx_fail(err, -ENOTSUP, "override of '%s': this rank has a part of it", name);
        if (size != it->tensor->size)
            return hx_fail(err, -EINVAL, "override of '%s': %zu bytes, expected %llu", name, size,
                           (unsigned long long)it->tensor->size);
        return m->be->upload(m->dev, m->b.weight[it->weight].part[it->part].data, data, size, err);
    }
    return hx_fail(err, -ENOENT, "override of '%s': no such tensor", name);
}
