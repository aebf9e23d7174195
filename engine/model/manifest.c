/* state.json of a model folder. */
#include "model/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/sha256.h"

#define FORMAT "hx-state-1"

/* Relative, without "." or ".." components: a listed path never leaves the folder. */
static bool safe_path(const char *p)
{
    if (*p == '\0' || *p == '/')
        return false;
    for (const char *s = p; s;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.'))
            return false;
        s = s[n] ? s + n + 1 : NULL;
    }
    return true;
}

static int check_file(const char *dir, struct hx_jv entry, struct hx_error *err)
{
    size_t len;
    const char *s = hx_jv_str(hx_jv_get(entry, "path"), &len);
    int64_t size;
    if (!s || len >= 256 || memchr(s, 0, len) || !hx_jv_int64(hx_jv_get(entry, "size"), &size))
        return hx_fail(err, -EINVAL, "a file entry needs a path and a size");
    char name[256];
    memcpy(name, s, len);
    name[len] = '\0';
    if (!safe_path(name))
        return hx_fail(err, -EINVAL, "path '%s' is not relative to the model folder", name);
    char *path = hx_path_join(dir, name);
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct stat st;
    int r = 0;
    if (stat(path, &st) < 0)
        r = hx_fail_errno(err, errno, "listed file '%s'", name);
    else if (st.st_size != size)
        r = hx_fail(err, -EINVAL, "file '%s' has %lld bytes, expected %lld", name,
                    (long long)st.st_size, (long long)size);
    free(path);
    return r;
}

static int check(const char *dir, struct hx_jv root, struct hx_manifest *out, struct hx_error *err)
{
    bool complete = false;
    struct hx_jv files = hx_jv_get(root, "files");
    if (!hx_jv_str_is(hx_jv_get(root, "format"), FORMAT))
        return hx_fail(err, -EINVAL, "format: expected '" FORMAT "'");
    if (!hx_jv_bool(hx_jv_get(root, "complete"), &complete) || !complete)
        return hx_fail(err, -EINVAL,
                       "complete: the model folder is not complete; finish the download first");
    if (hx_jv_type(files) != HX_JSON_ARRAY)
        return hx_fail(err, -EINVAL, "files: expected a list");
    for (struct hx_jv e = hx_jv_first(files); e.doc; e = hx_jv_next(e)) {
        int r = check_file(dir, e, err);
        if (r < 0)
            return r;
    }
    size_t len;
    const char *lock = hx_jv_str(hx_jv_get(root, "lock"), &len);
    if (lock)
        snprintf(out->lock_id, sizeof(out->lock_id), "%.*s", len > 79 ? 79 : (int)len, lock);
    hx_jv_bool(hx_jv_get(root, "synthetic"), &out->synthetic);
    bool verified;
    if (hx_jv_bool(hx_jv_get(root, "verified"), &verified))
        out->verification =
            verified ? HX_VERIFICATION_INDEPENDENT : HX_VERIFICATION_NOT_INDEPENDENT;
    return 0;
}

int hx_manifest_load(const char *dir, struct hx_manifest *out, struct hx_error *err)
{
    const struct hx_json_limits limits = {64 << 20, 1 << 20, 16, 0};
    struct hx_manifest m = {.present = true};
    struct hx_json *doc = NULL;
    char *path = hx_path_join(dir, "state.json"), *text = NULL;
    size_t len;
    struct stat st;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = 0;
    if (stat(path, &st) < 0 && errno == ENOENT) {
        m.present = false;
        goto out;
    }
    r = hx_file_read(path, limits.max_bytes, &text, &len, err);
    if (r < 0)
        goto out;
    r = hx_json_parse(text, len, &limits, &doc, err);
    if (r == 0)
        r = check(dir, hx_json_root(doc), &m, err);
    if (r < 0)
        hx_wrap(err, r, "%s", path);
out:
    hx_json_free(doc);
    free(text);
    free(path);
    if (r == 0)
        *out = m;
    return r;
}

static int put_file(const char *dir, const char *name, const char *source, const char *licence,
                    struct hx_json_writer *w, struct hx_error *err)
{
    char hex[HX_SHA256_HEX];
    uint64_t size;
    char *path = hx_path_join(dir, name);
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_sha256_file(path, hex, &size, err);
    free(path);
    if (r < 0)
        return r;
    hx_jw_object(w);
    hx_jw_key(w, "path");
    hx_jw_str(w, name);
    hx_jw_key(w, "size");
    hx_jw_uint(w, size);
    hx_jw_key(w, "sha256");
    hx_jw_str(w, hex);
    hx_jw_key(w, "source");
    hx_jw_str(w, source);
    hx_jw_key(w, "licence");
    hx_jw_str(w, licence);
    hx_jw_end_object(w);
    return 0;
}

int hx_manifest_write(const char *dir, const char *const *paths, int n_paths, bool synthetic,
                      const char *source, const char *licence, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(16 << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "format");
    hx_jw_str(&w, FORMAT);
    hx_jw_key(&w, "complete");
    hx_jw_bool(&w, true);
    hx_jw_key(&w, "synthetic");
    hx_jw_bool(&w, synthetic);
    hx_jw_key(&w, "files");
    hx_jw_array(&w);
    int r = 0;
    for (int i = 0; r == 0 && i < n_paths; i++)
        r = put_file(dir, paths[i], source, licence, &w, err);
    if (r == 0) {
        hx_jw_end_array(&w);
        hx_jw_end_object(&w);
        hx_buf_putc(&out, '\n');
        char *path = hx_path_join(dir, "state.json");
        if (out.failed || !path)
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            r = hx_file_replace(path, out.data, out.len, err);
        free(path);
    }
    hx_buf_done(&out);
    return r;
}
