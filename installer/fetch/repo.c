#include "fetch/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/sha256.h"
#include "fetch/lock.h"
#include "fetch/sthdr.h"

#define MAX_FILES   20000
#define MAX_INDEX   (64u << 20)
#define MAX_CARD    (4u << 20)
#define FIRST_READ  (1u << 20) /* holds most headers whole */
#define SHOWN_NAMES 5

/* ---- listing --------------------------------------------------------------------------------- */

struct listing {
    struct hx_repo *repo;
    size_t cap;
};

static int add_file(void *ctx, const char *path, uint64_t size, const uint8_t *sha256)
{
    struct listing *l = ctx;
    struct hx_repo *repo = l->repo;
    if (!hx_lock_path_ok(path)) {
        repo->n_skipped++;
        return 0;
    }
    if (repo->n_files == MAX_FILES)
        return -E2BIG;
    if (repo->n_files == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct hx_repo_file *files = realloc(repo->files, cap * sizeof(*files));
        if (!files)
            return -ENOMEM;
        repo->files = files;
        l->cap = cap;
    }
    struct hx_repo_file *f = &repo->files[repo->n_files];
    *f = (struct hx_repo_file){.path = strdup(path), .size = size, .has_sha256 = sha256 != NULL};
    if (!f->path)
        return -ENOMEM;
    if (sha256)
        memcpy(f->sha256, sha256, 32);
    repo->n_files++;
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hx_repo_file *)a)->path, ((const struct hx_repo_file *)b)->path);
}

static int list_files(struct hx_repo *repo, struct hx_error *err)
{
    struct listing l = {repo, 0};
    int r = hx_transfer_list(repo->t, repo->name, repo->commit, add_file, &l, err);
    if (r == -E2BIG)
        return hx_fail(err, -EINVAL, "%s lists more than %d files", repo->name, MAX_FILES);
    if (r == -ENOMEM)
        return hx_fail(err, r, "out of memory for the files of %s", repo->name);
    if (r < 0)
        return hx_wrap(err, r, "files of %s", repo->name);
    if (repo->n_files > 1)
        qsort(repo->files, repo->n_files, sizeof(*repo->files), by_path);
    for (size_t i = 1; i < repo->n_files; i++) {
        if (strcmp(repo->files[i - 1].path, repo->files[i].path) == 0)
            return hx_fail(err, -EINVAL, "%s lists '%s' twice", repo->name, repo->files[i].path);
    }
    return 0;
}

struct hx_repo_file *hx_repo_find(const struct hx_repo *repo, const char *path)
{
    size_t lo = 0, hi = repo->n_files;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(path, repo->files[mid].path);
        if (c == 0)
            return &repo->files[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* ---- small files ----------------------------------------------------------------------------- */

int hx_repo_read(struct hx_repo *repo, const char *path, size_t max, char **data, size_t *n,
                 struct hx_error *err)
{
    struct hx_repo_file *f = hx_repo_find(repo, path);
    uint8_t *bytes = NULL, sha256[32];
    if (!f)
        return hx_fail(err, -ENOENT, "%s has no file '%s' at commit %s", repo->name, path,
                       repo->commit);
    if (f->size == 0 || f->size > max)
        return hx_fail(err, -EINVAL, "%s: '%s' has %llu bytes, expected 1 to %zu", repo->name, path,
                       (unsigned long long)f->size, max);
    int r =
        hx_transfer_get(repo->t, repo->name, repo->commit, path, 0, f->size, NULL, &bytes, n, err);
    if (r < 0)
        return r;
    if (*n != f->size)
        r = hx_fail(err, -EINVAL, "%s: '%s' has %zu bytes, the listing says %llu", repo->name, path,
                    *n, (unsigned long long)f->size);
    else if (hx_sha256_data(bytes, *n, sha256) < 0)
        r = hx_fail(err, -ENOMEM, "out of memory");
    else if (f->has_sha256 && memcmp(f->sha256, sha256, 32) != 0)
        r = hx_fail(err, -EINVAL, "%s: '%s' does not have the hash that the listing states",
                    repo->name, path);
    if (r < 0) {
        free(bytes);
        return r;
    }
    memcpy(f->sha256, sha256, 32);
    f->has_sha256 = true;
    *data = (char *)bytes;
    return 0;
}

/* "license: mit" in the front matter of the model card. */
static int read_licence(struct hx_repo *repo, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    if (!hx_repo_find(repo, "README.md"))
        return 0;
    int r = hx_repo_read(repo, "README.md", MAX_CARD, &text, &n, err);
    if (r < 0)
        return r;
    char *rest = strncmp(text, "---", 3) == 0 ? strchr(text, '\n') : NULL;
    for (char *line; rest && (line = rest + 1, rest = strchr(line, '\n'));) {
        if (strncmp(line, "---", 3) == 0)
            break;
        if (strncmp(line, "license:", 8) != 0)
            continue;
        *rest = '\0';
        line += 8 + strspn(line + 8, " \t\"'");
        size_t len = strcspn(line, "\"'\r#");
        while (len > 0 && line[len - 1] == ' ')
            len--;
        for (size_t i = 0; i < len; i++) {
            if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
                len = 0;
        }
        if (len > 0 && len <= 200 && !(repo->licence = strndup(line, len)))
            r = hx_fail(err, -ENOMEM, "out of memory");
        break;
    }
    free(text);
    return r;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_commit(const char *s)
{
    return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

/* A name such as a branch stands for a commit; any small file's answer tells which. */
static int resolve(struct hx_repo *repo, const char *revision, struct hx_error *err)
{
    struct hx_file_facts facts = {0};
    uint8_t *data = NULL;
    size_t n;
    if (is_commit(revision)) {
        memcpy(repo->commit, revision, 41);
        return 0;
    }
    int r =
        hx_transfer_get(repo->t, repo->name, revision, HX_REPO_INDEX, 0, 1, &facts, &data, &n, err);
    if (r == -ENOENT)
        r = hx_transfer_get(repo->t, repo->name, revision, "README.md", 0, 1, &facts, &data, &n,
                            err);
    free(data);
    if (r < 0)
        return hx_wrap(err, r, "%s@%s", repo->name, revision);
    if (!is_commit(facts.commit))
        return hx_fail(err, -EINVAL,
                       "%s@%s: the server does not say which commit this is; name the commit, 40 "
                       "hexadecimal digits",
                       repo->name, revision);
    memcpy(repo->commit, facts.commit, 41);
    return 0;
}

int hx_repo_open(struct hx_transfer *t, const char *spec, struct hx_repo **out,
                 struct hx_error *err)
{
    const char *at = strrchr(spec, '@'), *slash = strchr(spec, '/');
    if (!at || !slash || slash > at || slash == spec || at == slash + 1 || at[1] == '\0' ||
        strspn(spec, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./@") !=
            strlen(spec) ||
        strstr(spec, "..") || strlen(spec) > 250)
        return hx_fail(err, -EINVAL, "'%.120s': expected OWNER/NAME@COMMIT", spec);
    struct hx_repo *repo = calloc(1, sizeof(*repo));
    if (repo)
        repo->name = strndup(spec, (size_t)(at - spec));
    if (!repo || !repo->name) {
        free(repo);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    repo->t = t;
    int r = resolve(repo, at + 1, err);
    if (r == 0)
        r = list_files(repo, err);
    if (r == 0)
        r = read_licence(repo, err);
    if (r < 0)
        hx_repo_close(repo);
    else
        *out = repo;
    return r;
}

void hx_repo_close(struct hx_repo *repo)
{
    if (!repo)
        return;
    for (size_t i = 0; i < repo->n_shards; i++)
        hx_st_close(repo->shards[i].st);
    for (size_t i = 0; i < repo->n_files; i++)
        free(repo->files[i].path);
    free(repo->shards);
    free(repo->files);
    free(repo->licence);
    free(repo->name);
    free(repo);
}

/* ---- headers --------------------------------------------------------------------------------- */

static int read_header(struct hx_repo *repo, struct hx_repo_shard *s, struct hx_error *err)
{
    const struct hx_repo_file *f = &repo->files[s->file];
    uint8_t *data = NULL, *tail = NULL;
    size_t n = 0, n_tail = 0;
    char label[600];
    snprintf(label, sizeof(label), "%s/%s", repo->name, f->path);
    if (f->size == 0)
        return hx_fail(err, -EINVAL, "%s is empty", label);
    int r = hx_transfer_get(repo->t, repo->name, repo->commit, f->path, 0,
                            f->size < FIRST_READ ? f->size : FIRST_READ, NULL, &data, &n, err);
    if (r == 0)
        r = hx_sthdr_length(label, data, n, f->size, &s->header_bytes, err);
    if (r == 0 && s->header_bytes > n) {
        uint8_t *more = realloc(data, s->header_bytes);
        if (more)
            data = more;
        r = more ? hx_transfer_get(repo->t, repo->name, repo->commit, f->path, n,
                                   s->header_bytes - n, NULL, &tail, &n_tail, err)
                 : hx_fail(err, -ENOMEM, "%s: out of memory for the header", label);
        if (r == 0 && n_tail != s->header_bytes - n)
            r = hx_fail(err, -EINVAL, "%s: the header ends early", label);
        if (r == 0)
            memcpy(data + n, tail, n_tail);
    }
    if (r == 0 && hx_sha256_data(data, s->header_bytes, s->header_sha256) < 0)
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_sthdr_parse(label, data, s->header_bytes, f->size, &s->st, err);
    free(data);
    free(tail);
    return r;
}

/* ---- index ----------------------------------------------------------------------------------- */

struct index_entry {
    char *tensor, *file;
};

struct index {
    struct index_entry *e; /* by tensor */
    size_t n;
};

static void index_done(struct index *x)
{
    for (size_t i = 0; i < x->n; i++) {
        free(x->e[i].tensor);
        free(x->e[i].file);
    }
    free(x->e);
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct index_entry *)a)->tensor, ((const struct index_entry *)b)->tensor);
}

static char *copy_text(struct hx_jv v, size_t max)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    return s && n > 0 && n <= max && !memchr(s, 0, n) ? strndup(s, n) : NULL;
}

static int read_index(struct hx_repo *repo, struct index *x, struct hx_error *err)
{
    const struct hx_json_limits limits = {MAX_INDEX, 4u << 20, 8, 0};
    struct hx_json *doc = NULL;
    char *text = NULL;
    size_t n;
    int r = hx_repo_read(repo, HX_REPO_INDEX, MAX_INDEX, &text, &n, err);
    if (r == 0) {
        r = hx_json_parse(text, n, &limits, &doc, err);
        if (r < 0)
            hx_wrap(err, r, "%s/" HX_REPO_INDEX, repo->name);
    }
    free(text);
    struct hx_jv map = hx_jv_get(hx_json_root(doc), "weight_map");
    size_t count = hx_jv_count(map);
    if (r == 0 && (hx_jv_type(map) != HX_JSON_OBJECT || count == 0))
        r = hx_fail(err, -EINVAL, "%s/" HX_REPO_INDEX ": no weight_map", repo->name);
    if (r == 0 && !(x->e = calloc(count + 1, sizeof(*x->e))))
        r = hx_fail(err, -ENOMEM, "out of memory");
    for (struct hx_jv m = hx_jv_first(map); r == 0 && m.doc; m = hx_jv_next(m)) {
        struct index_entry *e = &x->e[x->n++];
        e->tensor = copy_text(hx_jv_key(m), HX_ST_MAX_NAME - 1);
        e->file = copy_text(m, 255);
        if (!e->tensor || !e->file)
            r = hx_fail(err, -EINVAL, "%s/" HX_REPO_INDEX ": entry %zu is not a tensor and a file",
                        repo->name, x->n - 1);
    }
    hx_json_free(doc);
    if (r == 0)
        qsort(x->e, x->n, sizeof(*x->e), by_tensor);
    for (size_t i = 1; r == 0 && i < x->n; i++) {
        if (strcmp(x->e[i - 1].tensor, x->e[i].tensor) == 0)
            r = hx_fail(err, -EINVAL, "%s/" HX_REPO_INDEX ": tensor '%s' is there twice",
                        repo->name, x->e[i].tensor);
    }
    return r;
}

/* One public repository names shards in its index that it does not have. */
static int check_files_exist(struct hx_repo *repo, const struct index *x, struct hx_error *err)
{
    const char *missing[SHOWN_NAMES];
    size_t n = 0, tensors = 0;
    for (size_t i = 0; i < x->n; i++) {
        if (hx_repo_find(repo, x->e[i].file))
            continue;
        size_t k = 0;
        while (k < n && strcmp(missing[k], x->e[i].file) != 0)
            k++;
        if (k == n && n < SHOWN_NAMES)
            missing[n++] = x->e[i].file;
        tensors++;
    }
    if (tensors == 0)
        return 0;
    char names[512] = "";
    for (size_t k = 0, at = 0; k < n && at < sizeof(names); k++)
        at +=
            (size_t)snprintf(names + at, sizeof(names) - at, "%s%.80s", k ? ", " : "", missing[k]);
    return hx_fail(err, -EINVAL,
                   "%s: the index puts %zu tensors into files that the repository does not have: "
                   "%s%s",
                   repo->name, tensors, names, n == SHOWN_NAMES ? ", ..." : "");
}

/* Every name that the index assigns to a shard, and no other. */
static int check_index(struct hx_repo *repo, const struct index *x, struct hx_error *err)
{
    size_t found = 0;
    for (size_t i = 0; i < repo->n_shards; i++) {
        const struct hx_repo_shard *s = &repo->shards[i];
        const char *path = repo->files[s->file].path;
        for (size_t k = 0; k < hx_st_count(s->st); k++) {
            char *name = strdup(hx_st_at(s->st, k)->name);
            if (!name)
                return hx_fail(err, -ENOMEM, "out of memory");
            struct index_entry key = {name, NULL};
            const struct index_entry *e = bsearch(&key, x->e, x->n, sizeof(*x->e), by_tensor);
            free(name);
            if (!e || strcmp(e->file, path) != 0)
                return hx_fail(err, -EINVAL,
                               "%s/%s: tensor '%s' is in this file, the index says %s", repo->name,
                               path, hx_st_at(s->st, k)->name, e ? e->file : "nothing about it");
            found++;
        }
    }
    if (found == x->n)
        return 0;
    for (size_t i = 0; i < x->n; i++) {
        for (size_t k = 0; k < repo->n_shards; k++) {
            const struct hx_repo_shard *s = &repo->shards[k];
            if (strcmp(repo->files[s->file].path, x->e[i].file) == 0 &&
                !hx_st_find(s->st, x->e[i].tensor))
                return hx_fail(err, -EINVAL,
                               "%s/%s: the index puts tensor '%s' here, the file "
                               "does not have it",
                               repo->name, x->e[i].file, x->e[i].tensor);
        }
    }
    return hx_fail(err, -EINVAL, "%s: the index names %zu tensors, the files have %zu", repo->name,
                   x->n, found);
}

static bool is_shard(const struct hx_repo_file *f)
{
    size_t n = strlen(f->path);
    return n > 12 && strcmp(f->path + n - 12, ".safetensors") == 0 && !strchr(f->path, '/');
}

static int by_file(const void *a, const void *b)
{
    return strcmp(((const struct index_entry *)a)->file, ((const struct index_entry *)b)->file);
}

/* The files that hold tensors, marked in used[]. */
static int mark_shards(struct hx_repo *repo, const struct index *x, bool *used,
                       struct hx_error *err)
{
    if (x->n == 0) {
        for (size_t i = 0; i < repo->n_files; i++)
            used[i] = is_shard(&repo->files[i]);
        return 0;
    }
    int r = check_files_exist(repo, x, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < x->n; i++) {
        if (i == 0 || by_file(&x->e[i - 1], &x->e[i]) != 0)
            used[hx_repo_find(repo, x->e[i].file) - repo->files] = true;
    }
    return 0;
}

int hx_repo_read_shards(struct hx_repo *repo, bool need_index, struct hx_error *err)
{
    struct index x = {0};
    bool *used = calloc(repo->n_files + 1, sizeof(*used));
    int r = used ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0 && (need_index || hx_repo_find(repo, HX_REPO_INDEX)))
        r = read_index(repo, &x, err);
    if (r == 0)
        r = mark_shards(repo, &x, used, err);
    if (r == 0 && !(repo->shards = calloc(repo->n_files + 1, sizeof(*repo->shards))))
        r = hx_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < repo->n_files; i++) {
        if (!used[i])
            continue;
        repo->shards[repo->n_shards].file = i;
        r = read_header(repo, &repo->shards[repo->n_shards++], err);
    }
    if (r == 0 && repo->n_shards == 0)
        r = hx_fail(err, -EINVAL, "%s has no *.safetensors files", repo->name);
    if (r == 0 && x.n > 0)
        r = check_index(repo, &x, err);
    index_done(&x);
    free(used);
    return r;
}
