#include "fetch/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "fetch/lock.h"

#define FORMAT    "hx-state-1"
#define MAX_BYTES (16u << 20)

void hx_state_done(struct hx_state *state)
{
    for (size_t i = 0; i < state->n_files; i++) {
        free(state->files[i].path);
        free(state->files[i].source);
        free(state->files[i].licence);
    }
    free(state->files);
    *state = (struct hx_state){0};
}

int hx_state_add(struct hx_state *state, const struct hx_state_file *entry, struct hx_error *err)
{
    struct hx_state_file *f = realloc(state->files, (state->n_files + 1) * sizeof(*f));
    if (!f)
        return hx_fail(err, -ENOMEM, "out of memory");
    state->files = f;
    f = &f[state->n_files];
    *f = *entry;
    f->path = strdup(entry->path);
    f->source = strdup(entry->source);
    f->licence = strdup(entry->licence);
    state->n_files++;
    return f->path && f->source && f->licence ? 0 : hx_fail(err, -ENOMEM, "out of memory");
}

const struct hx_state_file *hx_state_find(const struct hx_state *state, const char *path)
{
    for (size_t i = 0; i < state->n_files; i++) {
        if (strcmp(state->files[i].path, path) == 0)
            return &state->files[i];
    }
    return NULL;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Absent: zeros. */
static int get_digest(struct hx_jv v, uint8_t out[HX_SHA256_BYTES])
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    memset(out, 0, HX_SHA256_BYTES);
    if (!v.doc)
        return 0;
    if (!s || n != 2 * HX_SHA256_BYTES)
        return -EINVAL;
    for (size_t i = 0; i < HX_SHA256_BYTES; i++) {
        int a = hex_value(s[2 * i]), b = hex_value(s[2 * i + 1]);
        if (a < 0 || b < 0)
            return -EINVAL;
        out[i] = (uint8_t)(a << 4 | b);
    }
    return 0;
}

/* A string that fits, "" if absent. */
static int get_text(struct hx_jv v, char *out, size_t n_out)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    *out = '\0';
    if (!v.doc)
        return 0;
    if (!s || n >= n_out || memchr(s, 0, n))
        return -EINVAL;
    memcpy(out, s, n);
    out[n] = '\0';
    return 0;
}

static int read_entry(struct hx_jv v, struct hx_state *out, struct hx_error *err)
{
    char path[256], source[1024], licence[256];
    int64_t size;
    struct hx_state_file f = {.path = path, .source = source, .licence = licence};
    if (get_text(hx_jv_get(v, "path"), path, sizeof(path)) < 0 || !hx_lock_path_ok(path))
        return hx_fail(err, -EINVAL, "files: a path is missing or leaves the folder");
    if (!hx_jv_int64(hx_jv_get(v, "size"), &size) || size < 0)
        return hx_fail(err, -EINVAL, "files: '%s' has no size", path);
    if (get_digest(hx_jv_get(v, "sha256"), f.sha256) < 0 ||
        get_digest(hx_jv_get(v, "identity"), f.identity) < 0 ||
        get_text(hx_jv_get(v, "source"), source, sizeof(source)) < 0 ||
        get_text(hx_jv_get(v, "licence"), licence, sizeof(licence)) < 0)
        return hx_fail(err, -EINVAL, "files: '%s' has a bad hash, source or licence", path);
    f.size = (uint64_t)size;
    return hx_state_add(out, &f, err);
}

static int read_state(struct hx_jv root, struct hx_state *out, struct hx_error *err)
{
    struct hx_jv files = hx_jv_get(root, "files");
    if (!hx_jv_str_is(hx_jv_get(root, "format"), FORMAT))
        return hx_fail(err, -EINVAL, "format: expected '" FORMAT "'");
    hx_jv_bool(hx_jv_get(root, "complete"), &out->complete);
    hx_jv_bool(hx_jv_get(root, "verified"), &out->verified);
    if (get_text(hx_jv_get(root, "lock"), out->lock_id, sizeof(out->lock_id)) < 0 ||
        get_text(hx_jv_get(root, "model"), out->model, sizeof(out->model)) < 0)
        return hx_fail(err, -EINVAL, "lock or model: expected a short text");
    if (files.doc && hx_jv_type(files) != HX_JSON_ARRAY)
        return hx_fail(err, -EINVAL, "files: expected a list");
    if (hx_jv_count(files) > HX_LOCK_MAX_FILES)
        return hx_fail(err, -EINVAL, "files: more than %d", HX_LOCK_MAX_FILES);
    for (struct hx_jv e = hx_jv_first(files); e.doc; e = hx_jv_next(e)) {
        int r = read_entry(e, out, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int hx_state_read(const char *dir, struct hx_state *out, struct hx_error *err)
{
    const struct hx_json_limits limits = {MAX_BYTES, 1 << 20, 16, 0};
    struct hx_state state = {0};
    struct hx_json *doc = NULL;
    char *path = hx_path_join(dir, "state.json"), *text = NULL;
    size_t n;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_read(path, MAX_BYTES, &text, &n, err);
    if (r == 0) {
        r = hx_json_parse(text, n, &limits, &doc, err);
        if (r == 0)
            r = read_state(hx_json_root(doc), &state, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    hx_json_free(doc);
    free(text);
    free(path);
    if (r < 0) {
        hx_state_done(&state);
        return r;
    }
    *out = state;
    return 0;
}

static void put_digest(struct hx_json_writer *w, const char *key,
                       const uint8_t digest[HX_SHA256_BYTES])
{
    char hex[HX_SHA256_HEX];
    hx_sha256_to_hex(digest, hex);
    hx_jw_key(w, key);
    hx_jw_str(w, hex);
}

static void put_text(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    hx_jw_str(w, value);
}

int hx_state_write(const char *dir, const struct hx_state *state, struct hx_error *err)
{
    static const uint8_t none[HX_SHA256_BYTES];
    struct hx_buf out = HX_BUF_INIT(MAX_BYTES);
    struct hx_json_writer w;
    hx_jw_init(&w, &out, false);
    hx_jw_object(&w);
    put_text(&w, "format", FORMAT);
    hx_jw_key(&w, "complete");
    hx_jw_bool(&w, state->complete);
    hx_jw_key(&w, "verified");
    hx_jw_bool(&w, state->verified);
    put_text(&w, "lock", state->lock_id);
    put_text(&w, "model", state->model);
    hx_jw_key(&w, "files");
    hx_jw_array(&w);
    for (size_t i = 0; i < state->n_files; i++) {
        const struct hx_state_file *f = &state->files[i];
        hx_jw_object(&w);
        put_text(&w, "path", f->path);
        hx_jw_key(&w, "size");
        hx_jw_uint(&w, f->size);
        put_digest(&w, "sha256", f->sha256);
        put_text(&w, "source", f->source);
        put_text(&w, "licence", f->licence);
        if (memcmp(f->identity, none, sizeof(none)) != 0)
            put_digest(&w, "identity", f->identity);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(&out, '\n');
    char *path = hx_path_join(dir, "state.json");
    int r = out.failed || !path ? hx_fail(err, -ENOMEM, "%s: out of memory for state.json", dir)
                                : hx_file_replace(path, out.data, out.len, err);
    free(path);
    hx_buf_done(&out);
    return r;
}
