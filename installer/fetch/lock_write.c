/* Writing lock files, and the identity of what they describe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/sha256.h"
#include "fetch/lock.h"

static void put_hash(struct hx_json_writer *w, const char *key, const uint8_t sha256[32])
{
    char hex[HX_SHA256_HEX];
    hx_sha256_to_hex(sha256, hex);
    if (key)
        hx_jw_key(w, key);
    hx_jw_str(w, hex);
}

static void put_text(struct hx_json_writer *w, const char *key, const char *text)
{
    if (!text)
        return;
    hx_jw_key(w, key);
    hx_jw_str(w, text);
}

static void put_uint(struct hx_json_writer *w, const char *key, uint64_t v)
{
    hx_jw_key(w, key);
    hx_jw_uint(w, v);
}

static void put_tensor(struct hx_json_writer *w, const struct hx_lock_tensor *t)
{
    hx_jw_object(w);
    put_uint(w, "begin", t->begin);
    put_text(w, "dtype", t->dtype);
    put_uint(w, "end", t->end);
    put_text(w, "name", t->name);
    if (t->has_sha256)
        put_hash(w, "sha256", t->sha256);
    hx_jw_key(w, "shape");
    hx_jw_array(w);
    for (unsigned i = 0; i < t->n_dims; i++)
        hx_jw_uint(w, t->shape[i]);
    hx_jw_end_array(w);
    hx_jw_end_object(w);
}

static void put_file(struct hx_json_writer *w, const struct hx_lock *lock,
                     const struct hx_lock_file *f)
{
    hx_jw_object(w);
    put_uint(w, "chunk", f->chunk);
    if (f->chunk_sha256) {
        hx_jw_key(w, "chunk_sha256");
        hx_jw_array(w);
        for (size_t i = 0; i < f->n_chunk_sha256; i++)
            put_hash(w, NULL, f->chunk_sha256[i]);
        hx_jw_end_array(w);
    }
    if (f->chunks_checked) {
        hx_jw_key(w, "chunks_checked");
        hx_jw_bool(w, true);
    }
    put_text(w, "group", hx_lock_group_name(f->group));
    if (f->mode == HX_LOCK_CUT)
        put_uint(w, "header_bytes", f->header_bytes);
    if (f->has_header_sha256)
        put_hash(w, "header_sha256", f->header_sha256);
    put_text(w, "mode", f->mode == HX_LOCK_CUT ? "cut" : "whole");
    put_text(w, "out", f->out);
    put_text(w, "path", f->path);
    if (f->has_sha256)
        put_hash(w, "sha256", f->sha256);
    put_uint(w, "size", f->size);
    put_text(w, "source", lock->sources[f->source].id);
    if (f->mode == HX_LOCK_CUT) {
        hx_jw_key(w, "tensors");
        hx_jw_array(w);
        for (size_t i = 0; i < f->n_tensors; i++)
            put_tensor(w, &f->tensors[i]);
        hx_jw_end_array(w);
    }
    hx_jw_end_object(w);
}

static void put_source(struct hx_json_writer *w, const struct hx_lock_source *s)
{
    hx_jw_object(w);
    put_text(w, "commit", s->commit);
    hx_jw_key(w, "endpoints");
    hx_jw_array(w);
    for (size_t i = 0; i < s->n_endpoints; i++)
        hx_jw_str(w, s->endpoints[i]);
    if (s->n_endpoints == 0)
        hx_jw_str(w, "default");
    hx_jw_end_array(w);
    put_text(w, "id", s->id);
    put_text(w, "licence", s->licence);
    put_text(w, "repo", s->repo);
    hx_jw_end_object(w);
}

int hx_lock_format(const struct hx_lock *lock, struct hx_buf *out, struct hx_error *err)
{
    uint8_t plan[32];
    struct hx_json_writer w;
    int r = hx_lock_identity(lock, plan, err);
    if (r < 0)
        return r;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    put_text(&w, "created", lock->created);
    if (lock->expect_json) {
        hx_jw_key(&w, "expect");
        hx_jw_raw(&w, lock->expect_json, strlen(lock->expect_json));
    }
    hx_jw_key(&w, "files");
    hx_jw_array(&w);
    for (size_t i = 0; i < lock->n_files; i++)
        put_file(&w, lock, &lock->files[i]);
    hx_jw_end_array(&w);
    put_text(&w, "format", HX_LOCK_FORMAT);
    hx_jw_key(&w, "made_here");
    hx_jw_bool(&w, lock->made_here);
    put_text(&w, "model", lock->model);
    put_hash(&w, "plan_sha256", plan);
    hx_jw_key(&w, "sources");
    hx_jw_array(&w);
    for (size_t i = 0; i < lock->n_sources; i++)
        put_source(&w, &lock->sources[i]);
    hx_jw_end_array(&w);
    put_text(&w, "tool", lock->tool);
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
    return out->failed ? hx_fail(err, -ENOMEM, "out of memory for a lock file") : 0;
}

int hx_lock_write(const struct hx_lock *lock, const char *path, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(HX_LOCK_MAX_BYTES);
    int r = hx_lock_format(lock, &out, err);
    if (r == 0)
        r = hx_file_replace(path, out.data, out.len, err);
    hx_buf_done(&out);
    return r < 0 ? hx_wrap(err, r, "lock file %s", path) : 0;
}

/* ---- identity -------------------------------------------------------------------------------- */

static void put_number(struct hx_buf *b, uint64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(v >> 8 * i);
    hx_buf_append(b, le, 8);
}

/* With its NUL, so that neighbours cannot run into each other. */
static void put_string(struct hx_buf *b, const char *s)
{
    hx_buf_append(b, s, strlen(s) + 1);
}

static int digest(struct hx_buf *b, uint8_t out[32], struct hx_error *err)
{
    int r = b->failed || hx_sha256_data(b->data, b->len, out) < 0
                ? hx_fail(err, -ENOMEM, "out of memory for a lock file")
                : 0;
    hx_buf_done(b);
    return r;
}

int hx_lock_file_identity(const struct hx_lock *lock, const struct hx_lock_file *f, uint8_t out[32],
                          struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(256u << 20);
    const struct hx_lock_source *s = &lock->sources[f->source];
    put_string(&b, "hx-file-1");
    if (f->has_sha256) {
        put_string(&b, "content");
        hx_buf_append(&b, f->sha256, 32);
    } else {
        put_string(&b, "name");
        put_string(&b, s->repo);
        put_string(&b, s->commit);
        put_string(&b, f->path);
    }
    put_number(&b, f->size);
    put_number(&b, f->chunk);
    put_number(&b, f->mode);
    put_number(&b, f->mode == HX_LOCK_CUT ? f->header_bytes : 0);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct hx_lock_tensor *t = &f->tensors[i];
        put_string(&b, t->name);
        put_string(&b, t->dtype);
        put_number(&b, t->n_dims);
        for (unsigned d = 0; d < t->n_dims; d++)
            put_number(&b, t->shape[d]);
        put_number(&b, t->begin);
        put_number(&b, t->end);
    }
    return digest(&b, out, err);
}

int hx_lock_identity(const struct hx_lock *lock, uint8_t out[32], struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(16u << 20);
    uint8_t one[32];
    int r = 0;
    put_string(&b, "hx-plan-1");
    put_string(&b, lock->model);
    for (size_t i = 0; r == 0 && i < lock->n_sources; i++) {
        put_string(&b, lock->sources[i].repo);
        put_string(&b, lock->sources[i].commit);
    }
    for (size_t i = 0; r == 0 && i < lock->n_files; i++) {
        const struct hx_lock_file *f = &lock->files[i];
        r = hx_lock_file_identity(lock, f, one, err);
        hx_buf_append(&b, one, 32);
        put_number(&b, f->source);
        put_string(&b, f->path);
        put_string(&b, f->out);
    }
    if (r < 0) {
        hx_buf_done(&b);
        return r;
    }
    return digest(&b, out, err);
}
