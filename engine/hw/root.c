/* Files below a root folder, with links followed inside it. */
#include "hw/root.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

#define MAX_LINKS 40
#define MAX_NAMES 65536

struct hx_root {
    char *prefix; /* "" = the machine, else an absolute folder without a slash at its end */
};

int hx_root_open(const char *dir, struct hx_root **out, struct hx_error *err)
{
    char *prefix;
    if (!dir || !strcmp(dir, "/")) {
        prefix = strdup("");
    } else {
        prefix = realpath(dir, NULL);
        if (!prefix && errno != ENOMEM)
            return hx_fail_errno(err, errno, "--root: %s", dir);
        struct stat st;
        if (prefix && (stat(prefix, &st) < 0 || !S_ISDIR(st.st_mode))) {
            free(prefix);
            return hx_fail(err, -ENOTDIR, "--root: %s is not a folder", dir);
        }
    }
    struct hx_root *root = calloc(1, sizeof(*root));
    if (!prefix || !root) {
        free(prefix);
        free(root);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    root->prefix = prefix;
    *out = root;
    return 0;
}

void hx_root_close(struct hx_root *root)
{
    if (!root)
        return;
    free(root->prefix);
    free(root);
}

bool hx_root_is_fake(const struct hx_root *root)
{
    return root->prefix[0] != '\0';
}

static int join(char out[HX_ROOT_PATH], const char *a, const char *b)
{
    int n = snprintf(out, HX_ROOT_PATH, "%s%s", a, b);
    return n < 0 || n >= HX_ROOT_PATH ? -ENAMETOOLONG : 0;
}

/* Takes the next component off *rest; false at the end. */
static bool next_component(const char **rest, const char **name, size_t *len)
{
    while (**rest == '/')
        (*rest)++;
    if (!**rest)
        return false;
    *name = *rest;
    *len = strcspn(*rest, "/");
    *rest += *len;
    return true;
}

/* Walks path component by component. done is the resolved part ("" = the root itself), todo what
 * is left. Links put their target in front of what is left. */
static int walk(const struct hx_root *root, const char *path, bool last_may_miss,
                char out[HX_ROOT_PATH])
{
    char done[HX_ROOT_PATH] = "", todo[HX_ROOT_PATH], full[HX_ROOT_PATH], link[HX_ROOT_PATH];
    int r = join(todo, path, "");
    if (r < 0)
        return r;
    const char *rest = todo, *name;
    size_t len;
    int n_links = 0;
    while (next_component(&rest, &name, &len)) {
        if (len == 1 && name[0] == '.')
            continue;
        if (len == 2 && name[0] == '.' && name[1] == '.') {
            char *slash = strrchr(done, '/');
            if (slash)
                *slash = '\0';
            continue;
        }
        size_t at = strlen(done);
        if (at + 1 + len >= HX_ROOT_PATH)
            return -ENAMETOOLONG;
        done[at] = '/';
        memcpy(done + at + 1, name, len);
        done[at + 1 + len] = '\0';
        r = join(full, root->prefix, done);
        if (r < 0)
            return r;
        ssize_t n = readlink(full, link, sizeof(link) - 1);
        if (n < 0) {
            if (errno == EINVAL)
                continue; /* not a link */
            if (errno == ENOENT && last_may_miss && rest[strspn(rest, "/")] == '\0')
                break;
            return -errno;
        }
        if (++n_links > MAX_LINKS)
            return -ELOOP;
        link[n] = '\0';
        if (link[0] == '/')
            done[0] = '\0';
        else
            done[at] = '\0';
        char tail[HX_ROOT_PATH];
        r = join(tail, rest, "");
        if (r < 0 || snprintf(todo, sizeof(todo), "%s/%s", link, tail) >= (int)sizeof(todo))
            return -ENAMETOOLONG;
        rest = todo;
    }
    return join(out, done[0] ? done : "/", "");
}

int hx_root_resolve(const struct hx_root *root, const char *path, char out[HX_ROOT_PATH])
{
    return walk(root, path, false, out);
}

int hx_root_outside(const struct hx_root *root, const char *path, char out[HX_ROOT_PATH])
{
    char inside[HX_ROOT_PATH];
    int r = walk(root, path, true, inside);
    return r < 0 ? r : join(out, root->prefix, inside);
}

static int open_path(const struct hx_root *root, const char *path, int flags)
{
    char full[HX_ROOT_PATH];
    int r = hx_root_outside(root, path, full);
    if (r < 0)
        return r;
    int fd = open(full, flags | O_CLOEXEC | O_NONBLOCK | (hx_root_is_fake(root) ? O_NOFOLLOW : 0));
    return fd < 0 ? -errno : fd;
}

bool hx_root_exists(const struct hx_root *root, const char *path)
{
    char full[HX_ROOT_PATH];
    struct stat st;
    return hx_root_outside(root, path, full) == 0 && lstat(full, &st) == 0;
}

bool hx_root_is_folder(const struct hx_root *root, const char *path)
{
    char full[HX_ROOT_PATH];
    struct stat st;
    return hx_root_outside(root, path, full) == 0 && lstat(full, &st) == 0 && S_ISDIR(st.st_mode);
}

int hx_root_read(const struct hx_root *root, const char *path, size_t max, char **out, size_t *len,
                 struct hx_error *err)
{
    int fd = open_path(root, path, O_RDONLY);
    if (fd < 0)
        return hx_fail_errno(err, -fd, "%s", path);
    struct stat st;
    struct hx_buf buf = HX_BUF_INIT(max + 1);
    int r = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = hx_fail(err, -EINVAL, "%s is not a regular file", path);
    while (r == 0) {
        char part[4096];
        ssize_t n = read(fd, part, sizeof(part));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            r = hx_fail_errno(err, errno, "%s", path);
        if (n <= 0)
            break;
        if (buf.len + (size_t)n > max)
            r = hx_fail(err, -EFBIG, "%s: more than %zu bytes", path, max);
        else if (hx_buf_append(&buf, part, (size_t)n) < 0)
            r = hx_fail(err, -ENOMEM, "out of memory");
    }
    close(fd);
    if (r == 0 && !hx_buf_cstr(&buf))
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        *out = (char *)hx_buf_take(&buf, len);
    hx_buf_done(&buf);
    return r;
}

int hx_root_text(const struct hx_root *root, const char *path, char *out, size_t size)
{
    out[0] = '\0';
    char *text;
    size_t len;
    int r = hx_root_read(root, path, 1 << 20, &text, &len, NULL);
    if (r < 0)
        return r;
    len = strnlen(text, len);
    while (len && isspace((unsigned char)text[len - 1]))
        len--;
    if (len > size - 1)
        len = size - 1;
    memcpy(out, text, len);
    out[len] = '\0';
    free(text);
    return 0;
}

int hx_root_number(const struct hx_root *root, const char *path, int64_t *out)
{
    char text[64];
    int r = hx_root_text(root, path, text, sizeof(text));
    if (r < 0)
        return r;
    uint64_t v;
    bool minus = text[0] == '-';
    if (!hx_parse_u64(text + minus, strlen(text + minus), INT64_MAX, &v))
        return -EINVAL;
    *out = minus ? -(int64_t)v : (int64_t)v;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int hx_root_list(const struct hx_root *root, const char *path, struct hx_names *out,
                 struct hx_error *err)
{
    int fd = open_path(root, path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return hx_fail_errno(err, -fd, "%s", path);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int r = hx_fail_errno(err, errno, "%s", path);
        close(fd);
        return r;
    }
    struct hx_names names = {0};
    size_t cap = 0;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (names.n == MAX_NAMES) {
            r = hx_fail(err, -E2BIG, "%s: more than %d files", path, MAX_NAMES);
            break;
        }
        if (names.n == cap) {
            cap = cap ? 2 * cap : 32;
            char **more = realloc(names.name, cap * sizeof(*more));
            if (!more) {
                r = hx_fail(err, -ENOMEM, "out of memory");
                break;
            }
            names.name = more;
        }
        names.name[names.n] = strdup(e->d_name);
        if (!names.name[names.n])
            r = hx_fail(err, -ENOMEM, "out of memory");
        else
            names.n++;
    }
    closedir(dir);
    if (r < 0) {
        hx_names_done(&names);
        return r;
    }
    if (names.n)
        qsort(names.name, names.n, sizeof(*names.name), by_name);
    *out = names;
    return 0;
}

void hx_names_done(struct hx_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->name[i]);
    free(names->name);
    *names = (struct hx_names){0};
}

bool hx_parse_u64(const char *text, size_t len, uint64_t max, uint64_t *out)
{
    unsigned base = 10;
    size_t i = 0;
    if (len > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        base = 16;
        i = 2;
    }
    if (i >= len)
        return false;
    uint64_t v = 0;
    for (; i < len; i++) {
        int c = tolower((unsigned char)text[i]);
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                            : 99;
        if (d >= base || v > (max - d) / base || d > max)
            return false;
        v = v * base + d;
    }
    *out = v;
    return true;
}

bool hx_parse_real(const char *text, size_t len, double *out)
{
    double v = 0, scale = 1;
    bool point = false, digit = false;
    if (!len || len > 40)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '.' && !point) {
            point = true;
        } else if (text[i] >= '0' && text[i] <= '9') {
            digit = true;
            v = v * 10 + (text[i] - '0');
            if (point)
                scale *= 10;
        } else {
            return false;
        }
    }
    if (digit)
        *out = v / scale;
    return digit;
}
