/* A bundle's folder or archive as a list of entries. Links are reported and never followed. */
#include "bundle/source.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bundle/source_body.h"

#define MAX_DEPTH 24

struct hx_source {
    char *path;
    bool archive;
};

struct walk {
    const struct hx_source *source;
    hx_entry_fn fn;
    void *ctx;
    size_t n_entries;
};

int hx_entry_read(struct hx_entry_body *body, void *buf, size_t len, size_t *n,
                  struct hx_error *err)
{
    return body->read(body, buf, len, n, err);
}

struct file_body {
    struct hx_entry_body base;
    int fd;
    const char *name;
};

static int read_file(struct hx_entry_body *body, void *buf, size_t len, size_t *n,
                     struct hx_error *err)
{
    struct file_body *f = (struct file_body *)body;
    for (;;) {
        ssize_t got = read(f->fd, buf, len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return hx_fail_errno(err, errno, "%s: cannot read", f->name);
        *n = (size_t)got;
        return 0;
    }
}

static int visit_file(struct walk *w, int dir, const char *name, const char *path,
                      const struct stat *st, struct hx_error *err)
{
    /* Not blocking, so that a pipe that took the name's place cannot hold us. */
    struct file_body body = {{read_file}, -1, path};
    body.fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (body.fd < 0)
        return hx_fail_errno(err, errno, "%s/%s: cannot open", w->source->path, path);
    struct stat now;
    int r = 0;
    if (fstat(body.fd, &now) < 0)
        r = hx_fail_errno(err, errno, "%s/%s: cannot stat", w->source->path, path);
    else if (!S_ISREG(now.st_mode) || now.st_ino != st->st_ino || now.st_dev != st->st_dev)
        r = hx_fail(err, -EINVAL, "%s/%s: changed while it was read", w->source->path, path);
    if (r == 0) {
        struct hx_entry entry = {path, HX_ENTRY_FILE, (uint64_t)now.st_size, &body.base};
        r = w->fn(w->ctx, &entry, err);
    }
    close(body.fd);
    return r;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int walk_folder(struct walk *w, int dir, const char *prefix, int depth,
                       struct hx_error *err);

static int visit(struct walk *w, int dir, const char *name, const char *prefix, int depth,
                 struct hx_error *err)
{
    char path[HX_SOURCE_NAME_MAX];
    struct stat st;
    int len = snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] ? "/" : "", name);
    if (len < 0 || (size_t)len >= sizeof(path))
        return hx_fail(err, -EINVAL, "%s: a path is longer than %d bytes", w->source->path,
                       HX_SOURCE_NAME_MAX - 1);
    if (++w->n_entries > HX_SOURCE_ENTRIES_MAX)
        return hx_fail(err, -EINVAL, "%s: more than %d entries", w->source->path,
                       HX_SOURCE_ENTRIES_MAX);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return hx_fail_errno(err, errno, "%s/%s: cannot stat", w->source->path, path);
    if (S_ISREG(st.st_mode))
        return visit_file(w, dir, name, path, &st, err);
    struct hx_entry entry = {path,
                             S_ISDIR(st.st_mode)   ? HX_ENTRY_FOLDER
                             : S_ISLNK(st.st_mode) ? HX_ENTRY_LINK
                                                   : HX_ENTRY_OTHER,
                             0, NULL};
    int r = w->fn(w->ctx, &entry, err);
    if (r < 0 || !S_ISDIR(st.st_mode))
        return r;
    if (depth >= MAX_DEPTH)
        return hx_fail(err, -EINVAL, "%s/%s: folders are more than %d deep", w->source->path, path,
                       MAX_DEPTH);
    int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0)
        return hx_fail_errno(err, errno, "%s/%s: cannot open", w->source->path, path);
    return walk_folder(w, sub, path, depth + 1, err);
}

/* Closes dir. */
static int walk_folder(struct walk *w, int dir, const char *prefix, int depth, struct hx_error *err)
{
    struct dirent **list = NULL;
    int n = scandirat(dir, ".", &list, not_dots, by_name), r = 0;
    if (n < 0)
        r = hx_fail_errno(err, errno, "%s/%s: cannot list", w->source->path, prefix);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = visit(w, dir, list[i]->d_name, prefix, depth, err);
        free(list[i]);
    }
    free(list);
    close(dir);
    return r;
}

int hx_source_open(const char *path, struct hx_source **out, struct hx_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot open the bundle", path);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return hx_fail(err, -EINVAL, "%s: is neither a folder nor an archive", path);
    struct hx_source *s = calloc(1, sizeof(*s));
    if (s)
        s->path = strdup(path);
    if (!s || !s->path) {
        free(s);
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    }
    s->archive = S_ISREG(st.st_mode);
    *out = s;
    return 0;
}

void hx_source_close(struct hx_source *s)
{
    if (!s)
        return;
    free(s->path);
    free(s);
}

int hx_source_walk(struct hx_source *s, hx_entry_fn fn, void *ctx, struct hx_error *err)
{
    if (s->archive) {
        struct hx_unpack *u = NULL;
        int r = hx_unpack_open(s->path, &u, err);
        if (r == 0)
            r = hx_tar_walk(hx_unpack_read, u, s->path, fn, ctx, err);
        hx_unpack_close(u);
        return r;
    }
    struct walk w = {s, fn, ctx, 0};
    int dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", s->path);
    return walk_folder(&w, dir, "", 0, err);
}

const char *hx_source_path(const struct hx_source *s)
{
    return s->path;
}

bool hx_source_is_archive(const struct hx_source *s)
{
    return s->archive;
}
