/* Reading lock files. Nothing of one is believed before it passed the rules here. */
#include "fetch/lock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/sha256.h"

#define MAX_KEYS 64 /* of one object; keeps the search for doubles short */

static const struct hx_json_limits lock_limits = {HX_LOCK_MAX_BYTES, 8u << 20, 16, 0};

static const char *const group_names[HX_GROUP_MAX] = {"small", "dense", "experts", "engram"};

const char *hx_lock_group_name(enum hx_lock_group g)
{
    return group_names[g];
}

enum hx_lock_group hx_lock_group_of(const char *out)
{
    for (int g = HX_GROUP_DENSE; g < HX_GROUP_MAX; g++) {
        size_t n = strlen(group_names[g]);
        if (strncmp(out, group_names[g], n) == 0 && out[n] == '/')
            return (enum hx_lock_group)g;
    }
    return HX_GROUP_SMALL;
}

bool hx_lock_path_ok(const char *path)
{
    if (*path == '\0' || strlen(path) > 255)
        return false;
    for (const char *s = path; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7F || *s == '\\')
            return false;
    }
    for (const char *s = path; s;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.'))
            return false;
        s = s[n] ? s + n + 1 : NULL;
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Where the reader stands, for messages: "files[3].tensors[2]". */
struct place {
    char text[96];
    struct hx_error *err;
};

HX_PRINTF(3, 4)
static int bad(const struct place *at, const char *key, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return hx_fail(at->err, -EINVAL, "%s%s%s%s%s", at->text, at->text[0] && key[0] ? "." : "", key,
                   at->text[0] || key[0] ? ": " : "", why);
}

static int no_memory(const struct place *at)
{
    return hx_fail(at->err, -ENOMEM, "out of memory");
}

/* A string of 1 to max bytes without control characters, in fresh memory. *out NULL and 0 if the
 * key is absent or null and may be. */
static int take_text(const struct place *at, struct hx_jv o, const char *key, size_t max,
                     bool optional, char **out)
{
    struct hx_jv v = hx_jv_get(o, key);
    size_t n;
    const char *s = hx_jv_str(v, &n);
    *out = NULL;
    if (!s && optional && (!v.doc || hx_jv_type(v) == HX_JSON_NULL))
        return 0;
    if (!s || n == 0 || n > max)
        return bad(at, key, "expected a text of 1 to %zu bytes", max);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F)
            return bad(at, key, "a control character");
    }
    *out = strndup(s, n);
    return *out ? 0 : no_memory(at);
}

static int take_uint(const struct place *at, struct hx_jv o, const char *key, uint64_t lo,
                     uint64_t hi, uint64_t *out)
{
    size_t n;
    struct hx_jv v = hx_jv_get(o, key);
    const char *s = hx_jv_number_text(v, &n);
    int64_t x;
    bool plain = s != NULL;
    for (size_t i = 0; plain && i < n; i++)
        plain = s[i] >= '0' && s[i] <= '9';
    if (!plain || !hx_jv_int64(v, &x) || (uint64_t)x < lo || (uint64_t)x > hi)
        return bad(at, key, "expected a whole number from %llu to %llu%s%.*s",
                   (unsigned long long)lo, (unsigned long long)hi, s ? ", found " : "",
                   s ? (int)(n > 40 ? 40 : n) : 0, s ? s : "");
    *out = (uint64_t)x;
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hash_of(struct hx_jv v, uint8_t out[32])
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    if (!s || n != 64)
        return false;
    for (size_t i = 0; i < 32; i++) {
        int hi = hex_digit(s[2 * i]), lo = hex_digit(s[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

static int take_hash(const struct place *at, struct hx_jv o, const char *key, bool *has,
                     uint8_t out[32])
{
    struct hx_jv v = hx_jv_get(o, key);
    *has = false;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (!hash_of(v, out))
        return bad(at, key, "expected 64 hexadecimal digits (small letters)");
    *has = true;
    return 0;
}

/* Every key once: readers that take the first and readers that take the last would not agree. */
static int check_keys(const struct place *at, struct hx_jv object)
{
    if (hx_jv_type(object) != HX_JSON_OBJECT)
        return bad(at, "", "expected an object");
    if (hx_jv_count(object) > MAX_KEYS)
        return bad(at, "", "more than %d keys in one object", MAX_KEYS);
    for (struct hx_jv m = hx_jv_first(object); m.doc; m = hx_jv_next(m)) {
        size_t n;
        const char *key = hx_jv_str(hx_jv_key(m), &n);
        if (hx_jv_get_n(object, key, n).at != m.at)
            return bad(at, "", "the key '%.*s' is there twice", n > 60 ? 60 : (int)n, key);
    }
    return 0;
}

/* ---- sources --------------------------------------------------------------------------------- */

static bool plain_component(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-' && c != '_' && c != '.')
            return false;
    }
    return n > 0 && n <= 128 && s[0] != '.';
}

static bool repo_ok(const char *s)
{
    const char *slash = strchr(s, '/');
    return slash && plain_component(s, (size_t)(slash - s)) &&
           plain_component(slash + 1, strlen(slash + 1));
}

static int read_endpoints(const struct place *at, struct hx_jv o, struct hx_lock_source *s)
{
    struct hx_jv list = hx_jv_get(o, "endpoints");
    size_t n = hx_jv_count(list);
    if (!list.doc)
        return 0;
    if (hx_jv_type(list) != HX_JSON_ARRAY || n > 16)
        return bad(at, "endpoints", "expected a list of at most 16 names");
    s->endpoints = calloc(n + 1, sizeof(*s->endpoints));
    if (!s->endpoints)
        return no_memory(at);
    for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v)) {
        size_t len;
        const char *name = hx_jv_str(v, &len);
        if (!name || !plain_component(name, len) || len > 32)
            return bad(at, "endpoints", "expected names of 1 to 32 letters, digits, '-' or '_'");
        s->endpoints[s->n_endpoints] = strndup(name, len);
        if (!s->endpoints[s->n_endpoints++])
            return no_memory(at);
    }
    if (s->n_endpoints == 1 && strcmp(s->endpoints[0], "default") == 0) {
        free(s->endpoints[0]);
        s->n_endpoints = 0;
    }
    return 0;
}

static int read_source(struct place *at, struct hx_jv o, struct hx_lock *lock)
{
    struct hx_lock_source *s = &lock->sources[lock->n_sources];
    snprintf(at->text, sizeof(at->text), "sources[%zu]", lock->n_sources++);
    int r = check_keys(at, o);
    if (r == 0)
        r = take_text(at, o, "id", 32, false, &s->id);
    if (r == 0)
        r = take_text(at, o, "repo", 255, false, &s->repo);
    if (r == 0 && !repo_ok(s->repo))
        r = bad(at, "repo", "'%.120s' is not of the form owner/name", s->repo);
    if (r == 0)
        r = take_text(at, o, "licence", 200, true, &s->licence);
    if (r == 0)
        r = read_endpoints(at, o, s);
    if (r < 0)
        return r;
    size_t n;
    const char *commit = hx_jv_str(hx_jv_get(o, "commit"), &n);
    bool hex = commit && n == 40;
    for (size_t i = 0; hex && i < n; i++)
        hex = hex_digit(commit[i]) >= 0;
    if (!hex)
        return bad(at, "commit",
                   "expected a full commit id, 40 hexadecimal digits (small letters), found '%.*s'",
                   commit ? (int)(n > 60 ? 60 : n) : 0, commit ? commit : "");
    memcpy(s->commit, commit, 40);
    for (size_t i = 0; i + 1 < lock->n_sources; i++) {
        if (strcmp(lock->sources[i].id, s->id) == 0)
            return bad(at, "id", "'%s' is there twice", s->id);
    }
    return 0;
}

/* ---- tensors of a cut file ------------------------------------------------------------------- */

static int read_shape(const struct place *at, struct hx_jv o, struct hx_lock_tensor *t,
                      uint64_t *n_bytes)
{
    struct hx_jv shape = hx_jv_get(o, "shape");
    enum hx_dtype dtype = hx_dtype_parse(t->dtype, strlen(t->dtype));
    if (dtype == HX_DTYPE_MAX)
        return bad(at, "dtype", "'%.40s' is unknown", t->dtype);
    if (hx_jv_type(shape) != HX_JSON_ARRAY || hx_jv_count(shape) > HX_LOCK_DIMS)
        return bad(at, "shape", "expected a list of at most %d numbers", HX_LOCK_DIMS);
    *n_bytes = hx_dtype_size(dtype);
    for (struct hx_jv v = hx_jv_first(shape); v.doc; v = hx_jv_next(v)) {
        int64_t ne;
        if (!hx_jv_int64(v, &ne) || ne < 0 ||
            __builtin_mul_overflow(*n_bytes, (uint64_t)ne, n_bytes) || *n_bytes > INT64_MAX)
            return bad(at, "shape", "a negative or too large dimension");
        t->shape[t->n_dims++] = (uint64_t)ne;
    }
    return 0;
}

static int read_tensor(const struct place *at, struct hx_jv o, const struct hx_lock_file *f,
                       struct hx_lock_tensor *t)
{
    uint64_t area = f->size - f->header_bytes, n_bytes = 0;
    int r = check_keys(at, o);
    if (r == 0)
        r = take_text(at, o, "name", 255, false, &t->name);
    if (r == 0 && strcmp(t->name, "__metadata__") == 0)
        r = bad(at, "name", "'__metadata__' is no tensor");
    if (r == 0)
        r = take_text(at, o, "dtype", 40, false, &t->dtype);
    if (r == 0)
        r = read_shape(at, o, t, &n_bytes);
    if (r == 0)
        r = take_uint(at, o, "begin", 0, area, &t->begin);
    if (r == 0)
        r = take_uint(at, o, "end", t->begin, area, &t->end);
    if (r == 0 && t->end - t->begin != n_bytes)
        r = bad(at, "", "'%s' has %llu bytes, its shape and dtype need %llu", t->name,
                (unsigned long long)(t->end - t->begin), (unsigned long long)n_bytes);
    return r < 0 ? r : take_hash(at, o, "sha256", &t->has_sha256, t->sha256);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_twice(const struct place *at, const char *key, char **names, size_t n)
{
    if (n > 1)
        qsort(names, n, sizeof(*names), by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            return bad(at, key, "'%.200s' is there twice", names[i]);
    }
    return 0;
}

static int read_tensors(struct place *at, struct hx_jv o, struct hx_lock_file *f)
{
    struct hx_jv list = hx_jv_get(o, "tensors");
    size_t n = hx_jv_count(list), file_len = strlen(at->text);
    if (hx_jv_type(list) != HX_JSON_ARRAY || n == 0 || n > HX_LOCK_MAX_TENSORS)
        return bad(at, "tensors", "expected a list of 1 to %d tensors", HX_LOCK_MAX_TENSORS);
    char **names = calloc(n, sizeof(*names));
    f->tensors = calloc(n, sizeof(*f->tensors));
    int r = f->tensors && names ? 0 : no_memory(at);
    uint64_t end = 0;
    for (struct hx_jv v = hx_jv_first(list); r == 0 && v.doc; v = hx_jv_next(v)) {
        struct hx_lock_tensor *t = &f->tensors[f->n_tensors];
        snprintf(at->text + file_len, sizeof(at->text) - file_len, ".tensors[%zu]", f->n_tensors++);
        r = read_tensor(at, v, f, t);
        if (r == 0 && t->begin < end)
            r = bad(at, "begin", "'%s' overlaps the one before it or is out of order", t->name);
        end = t->end;
        names[f->n_tensors - 1] = t->name;
    }
    if (r == 0) {
        at->text[file_len] = '\0';
        r = check_twice(at, "tensors", names, n);
    }
    if (r == 0 && end == 0)
        r = bad(at, "tensors", "all of them are empty");
    free(names);
    return r;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Names that hx-fetch itself writes. */
static bool reserved(const char *out)
{
    return strcmp(out, "state.json") == 0 || strcmp(out, "lock.json") == 0 ||
           ends_with(out, ".part") || ends_with(out, ".journal") || ends_with(out, ".new") ||
           strstr(out, ".bad-");
}

static int read_chunk_hashes(const struct place *at, struct hx_jv o, struct hx_lock_file *f)
{
    struct hx_jv list = hx_jv_get(o, "chunk_sha256");
    if (!list.doc || hx_jv_type(list) == HX_JSON_NULL)
        return 0;
    if (f->mode == HX_LOCK_CUT)
        return bad(at, "chunk_sha256", "a cut file has hashes at its tensors");
    uint64_t n = (f->size + f->chunk - 1) / f->chunk;
    if (hx_jv_type(list) != HX_JSON_ARRAY || hx_jv_count(list) != n)
        return bad(at, "chunk_sha256", "expected a list of %llu hashes, one for each chunk",
                   (unsigned long long)n);
    f->chunk_sha256 = calloc(n, sizeof(*f->chunk_sha256));
    if (!f->chunk_sha256)
        return no_memory(at);
    for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v)) {
        if (!hash_of(v, f->chunk_sha256[f->n_chunk_sha256]))
            return bad(at, "chunk_sha256", "number %zu is not 64 hexadecimal digits",
                       f->n_chunk_sha256);
        f->n_chunk_sha256++;
    }
    struct hx_jv checked = hx_jv_get(o, "chunks_checked");
    if (!checked.doc)
        return 0;
    if (!hx_jv_bool(checked, &f->chunks_checked))
        return bad(at, "chunks_checked", "expected true or false");
    if (f->chunks_checked && !f->has_sha256)
        return bad(at, "chunks_checked", "nothing to check against: the file has no sha256");
    return 0;
}

static int read_file_place(const struct place *at, struct hx_jv o, const struct hx_lock *lock,
                           struct hx_lock_file *f)
{
    struct hx_jv source = hx_jv_get(o, "source"), group = hx_jv_get(o, "group");
    for (f->source = 0; f->source < lock->n_sources; f->source++) {
        if (hx_jv_str_is(source, lock->sources[f->source].id))
            break;
    }
    if (f->source == lock->n_sources)
        return bad(at, "source", "is not the id of one of the sources");
    int r = take_text(at, o, "path", 255, false, &f->path);
    if (r == 0 && !hx_lock_path_ok(f->path))
        r = bad(at, "path", "'%s' is not a plain relative path", f->path);
    if (r == 0)
        r = take_text(at, o, "out", 255, false, &f->out);
    if (r == 0 && !hx_lock_path_ok(f->out))
        r = bad(at, "out", "'%s' is not a plain path below the model folder", f->out);
    if (r == 0 && reserved(f->out))
        r = bad(at, "out", "'%s' is a name that hx-fetch itself uses", f->out);
    if (r < 0)
        return r;
    f->group = hx_lock_group_of(f->out);
    if (group.doc) {
        int g = 0;
        while (g < HX_GROUP_MAX && !hx_jv_str_is(group, group_names[g]))
            g++;
        if (g == HX_GROUP_MAX)
            return bad(at, "group", "expected small, dense, experts or engram");
        f->group = (enum hx_lock_group)g;
    }
    return 0;
}

static int read_file(struct place *at, struct hx_jv o, struct hx_lock *lock)
{
    struct hx_lock_file *f = &lock->files[lock->n_files];
    snprintf(at->text, sizeof(at->text), "files[%zu]", lock->n_files++);
    int r = check_keys(at, o);
    if (r == 0)
        r = read_file_place(at, o, lock, f);
    if (r < 0)
        return r;
    struct hx_jv mode = hx_jv_get(o, "mode");
    f->mode = hx_jv_str_is(mode, "cut") ? HX_LOCK_CUT : HX_LOCK_WHOLE;
    if (f->mode == HX_LOCK_WHOLE && !hx_jv_str_is(mode, "whole"))
        return bad(at, "mode", "expected whole or cut");
    f->chunk = HX_LOCK_CHUNK;
    r = take_uint(at, o, "size", 1, INT64_MAX, &f->size);
    if (r == 0 && hx_jv_get(o, "chunk").doc)
        r = take_uint(at, o, "chunk", HX_LOCK_MIN_CHUNK, HX_LOCK_MAX_CHUNK, &f->chunk);
    if (r == 0 && f->chunk % HX_LOCK_MIN_CHUNK != 0)
        r = bad(at, "chunk", "expected a multiple of %u", HX_LOCK_MIN_CHUNK);
    if (r == 0)
        r = take_hash(at, o, "sha256", &f->has_sha256, f->sha256);
    if (r == 0)
        r = take_hash(at, o, "header_sha256", &f->has_header_sha256, f->header_sha256);
    if (r == 0)
        r = read_chunk_hashes(at, o, f);
    if (r == 0 && f->mode == HX_LOCK_CUT) {
        r = take_uint(at, o, "header_bytes", 10, f->size, &f->header_bytes);
        if (r == 0)
            r = read_tensors(at, o, f);
    }
    return r;
}

/* One place for each output, and no output that is a folder of another. */
static int check_outputs(struct place *at, const struct hx_lock *lock)
{
    char **names = calloc(lock->n_files, sizeof(*names));
    uint64_t n_chunks = 0;
    if (!names)
        return no_memory(at);
    at->text[0] = '\0';
    for (size_t i = 0; i < lock->n_files; i++) {
        names[i] = lock->files[i].out;
        n_chunks += lock->files[i].size / lock->files[i].chunk + 1;
        if (n_chunks > HX_LOCK_MAX_CHUNKS)
            n_chunks = HX_LOCK_MAX_CHUNKS + 1;
    }
    int r =
        n_chunks > HX_LOCK_MAX_CHUNKS
            ? bad(at, "files", "more than %u chunks in all; use a larger chunk", HX_LOCK_MAX_CHUNKS)
            : check_twice(at, "out", names, lock->n_files);
    for (size_t i = 0; r == 0 && i < lock->n_files; i++) {
        char folder[256], *key = folder;
        snprintf(folder, sizeof(folder), "%s", names[i]);
        for (char *slash; r == 0 && (slash = strrchr(folder, '/'));) {
            *slash = '\0';
            if (bsearch(&key, names, lock->n_files, sizeof(*names), by_name))
                r = bad(at, "out", "'%s' is a file and the folder of another", folder);
        }
    }
    free(names);
    return r;
}

/* ---- the document ---------------------------------------------------------------------------- */

static int check_top(struct place *at, struct hx_jv root)
{
    static const char *const known[] = {"created", "expect",      "files",   "format", "made_here",
                                        "model",   "plan_sha256", "sources", "tool"};
    int r = check_keys(at, root);
    for (struct hx_jv m = hx_jv_first(root); r == 0 && m.doc; m = hx_jv_next(m)) {
        bool found = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            found |= hx_jv_str_is(hx_jv_key(m), known[i]);
        size_t n;
        const char *key = hx_jv_str(hx_jv_key(m), &n);
        if (!found)
            r = bad(at, "", "the key '%.*s' is unknown: written for a newer hx-fetch",
                    n > 60 ? 60 : (int)n, key);
    }
    if (r == 0 && !hx_jv_str_is(hx_jv_get(root, "format"), HX_LOCK_FORMAT))
        r = bad(at, "format", "expected " HX_LOCK_FORMAT);
    return r;
}

static int read_lists(struct place *at, struct hx_jv root, struct hx_lock *lock)
{
    struct hx_jv sources = hx_jv_get(root, "sources"), files = hx_jv_get(root, "files");
    size_t n_sources = hx_jv_count(sources), n_files = hx_jv_count(files);
    if (hx_jv_type(sources) != HX_JSON_ARRAY || n_sources == 0 || n_sources > HX_LOCK_MAX_SOURCES)
        return bad(at, "sources", "expected a list of 1 to %d sources", HX_LOCK_MAX_SOURCES);
    if (hx_jv_type(files) != HX_JSON_ARRAY || n_files == 0 || n_files > HX_LOCK_MAX_FILES)
        return bad(at, "files", "expected a list of 1 to %d files", HX_LOCK_MAX_FILES);
    lock->sources = calloc(n_sources, sizeof(*lock->sources));
    lock->files = calloc(n_files, sizeof(*lock->files));
    if (!lock->sources || !lock->files)
        return no_memory(at);
    int r = 0;
    for (struct hx_jv v = hx_jv_first(sources); r == 0 && v.doc; v = hx_jv_next(v))
        r = read_source(at, v, lock);
    for (struct hx_jv v = hx_jv_first(files); r == 0 && v.doc; v = hx_jv_next(v))
        r = read_file(at, v, lock);
    return r < 0 ? r : check_outputs(at, lock);
}

static int read_expect(struct place *at, struct hx_jv root, struct hx_lock *lock)
{
    struct hx_jv expect = hx_jv_get(root, "expect");
    if (!expect.doc)
        return 0;
    if (hx_jv_type(expect) != HX_JSON_OBJECT)
        return bad(at, "expect", "expected an object");
    struct hx_buf text = HX_BUF_INIT(HX_LOCK_MAX_BYTES);
    struct hx_json_writer w;
    struct hx_json *again = NULL;
    hx_jw_init(&w, &text, false);
    hx_jw_value(&w, expect);
    const char *s = text.failed ? NULL : hx_buf_cstr(&text);
    int r = s ? 0 : no_memory(at);
    /* Numbers beyond a double would be written as a word that no reader takes. */
    if (r == 0) {
        r = hx_json_parse(s, text.len, &lock_limits, &again, NULL);
        r = r == -EINVAL ? bad(at, "expect", "a number out of range") : r < 0 ? no_memory(at) : 0;
    }
    if (r == 0 && !(lock->expect_json = strdup(s)))
        r = no_memory(at);
    hx_json_free(again);
    hx_buf_done(&text);
    return r;
}

static int read_document(struct place *at, struct hx_jv root, struct hx_lock *lock)
{
    int r = check_top(at, root);
    if (r == 0)
        r = take_text(at, root, "model", 128, false, &lock->model);
    if (r == 0 && (!plain_component(lock->model, strlen(lock->model)) ||
                   strcmp(lock->model, "incoming") == 0 || strcmp(lock->model, "prepared") == 0 ||
                   strcmp(lock->model, "current") == 0))
        r = bad(at, "model", "'%s' cannot be the name of a model folder", lock->model);
    if (r == 0)
        r = take_text(at, root, "created", 40, true, &lock->created);
    if (r == 0)
        r = take_text(at, root, "tool", 80, true, &lock->tool);
    struct hx_jv here = hx_jv_get(root, "made_here");
    if (r == 0 && here.doc && !hx_jv_bool(here, &lock->made_here))
        r = bad(at, "made_here", "expected true or false");
    if (r == 0)
        r = read_expect(at, root, lock);
    if (r == 0)
        r = read_lists(at, root, lock);
    bool has = false;
    uint8_t stated[32] = {0}, found[32] = {0};
    if (r == 0)
        r = take_hash(at, root, "plan_sha256", &has, stated);
    if (r == 0 && has)
        r = hx_lock_identity(lock, found, at->err);
    if (r == 0 && has && memcmp(stated, found, 32) != 0)
        r = bad(at, "plan_sha256",
                "is not that of the files listed: the lock file is damaged or "
                "was changed by hand");
    return r;
}

int hx_lock_parse(const char *json, size_t n, const char *name, struct hx_lock **out,
                  struct hx_error *err)
{
    struct place at = {.err = err};
    struct hx_json *doc = NULL;
    struct hx_lock *lock = NULL;
    int r = hx_json_parse(json, n, &lock_limits, &doc, err);
    if (r == 0) {
        lock = calloc(1, sizeof(*lock));
        r = lock ? read_document(&at, hx_json_root(doc), lock) : no_memory(&at);
    }
    hx_json_free(doc);
    if (r == 0 && hx_sha256_data(json, n, lock->sha256) < 0)
        r = no_memory(&at);
    if (r < 0) {
        hx_lock_free(lock);
        return hx_wrap(err, r, "lock file %s", name);
    }
    hx_lock_refresh(lock);
    *out = lock;
    return 0;
}

int hx_lock_read(const char *path, struct hx_lock **out, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    int r = hx_file_read(path, HX_LOCK_MAX_BYTES, &text, &n, err);
    if (r < 0)
        return hx_wrap(err, r, "lock file");
    r = hx_lock_parse(text, n, path, out, err);
    free(text);
    return r;
}

void hx_lock_refresh(struct hx_lock *lock)
{
    lock->complete = true;
    for (size_t i = 0; i < lock->n_files; i++) {
        const struct hx_lock_file *f = &lock->files[i];
        if (f->mode == HX_LOCK_WHOLE)
            lock->complete &= f->has_sha256;
        for (size_t k = 0; k < f->n_tensors; k++)
            lock->complete &= f->tensors[k].has_sha256;
    }
}

void hx_lock_free(struct hx_lock *lock)
{
    if (!lock)
        return;
    for (size_t i = 0; i < lock->n_sources; i++) {
        struct hx_lock_source *s = &lock->sources[i];
        free(s->id);
        free(s->repo);
        free(s->licence);
        for (size_t k = 0; k < s->n_endpoints; k++)
            free(s->endpoints[k]);
        free(s->endpoints);
    }
    for (size_t i = 0; i < lock->n_files; i++) {
        struct hx_lock_file *f = &lock->files[i];
        free(f->path);
        free(f->out);
        free(f->chunk_sha256);
        for (size_t k = 0; k < f->n_tensors; k++) {
            free(f->tensors[k].name);
            free(f->tensors[k].dtype);
        }
        free(f->tensors);
    }
    free(lock->sources);
    free(lock->files);
    free(lock->model);
    free(lock->created);
    free(lock->tool);
    free(lock->expect_json);
    free(lock);
}
