/* safetensors reader: 8 bytes header length, JSON header, data. Nothing of a header is believed
 * before it was compared with the file's size. */
#include "model/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"

#define MAX_TENSORS    (1u << 20)
#define MAX_ENTRY_KEYS 16

struct hx_st_file {
    char *path;
    int fd;
    char *names;                 /* all names, NUL-terminated */
    struct hx_st_tensor *tensor; /* by offset */
    uint32_t *by_name;           /* indices sorted by name */
    size_t n;
};

/* Offsets and shapes are plain decimal integers: no sign, fraction or exponent. */
static bool plain_integer(struct hx_jv v, int64_t *out)
{
    size_t len;
    const char *s = hx_jv_number_text(v, &len);
    for (size_t i = 0; s && i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
    }
    return s && hx_jv_int64(v, out);
}

static int parse_shape(struct hx_jv shape, struct hx_st_tensor *t, uint64_t *n_elements)
{
    if (hx_jv_type(shape) != HX_JSON_ARRAY)
        return -EINVAL;
    *n_elements = 1;
    for (int i = 0; i < HX_ST_MAX_DIMS; i++)
        t->ne[i] = 1;
    for (struct hx_jv v = hx_jv_first(shape); v.doc; v = hx_jv_next(v)) {
        int64_t ne;
        if (t->n_dims == HX_ST_MAX_DIMS || !plain_integer(v, &ne) || ne > INT64_MAX / 8)
            return -EINVAL;
        t->ne[t->n_dims++] = ne;
        if (__builtin_mul_overflow(*n_elements, (uint64_t)ne, n_elements) ||
            *n_elements > INT64_MAX / 8)
            return -EINVAL;
    }
    return 0;
}

static int parse_tensor(const char *label, const char *name, struct hx_jv v, uint64_t data_start,
                        uint64_t data_size, struct hx_st_tensor *t, struct hx_error *err)
{
    size_t len;
    const char *dtype = hx_jv_str(hx_jv_get(v, "dtype"), &len);
    if (!dtype)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' has no dtype", label, name);
    t->dtype = hx_dtype_parse(dtype, len);
    if (t->dtype == HX_DTYPE_MAX)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' has unknown dtype '%.*s'", label, name,
                       len > 20 ? 20 : (int)len, dtype);
    uint64_t n_elements;
    if (parse_shape(hx_jv_get(v, "shape"), t, &n_elements) < 0)
        return hx_fail(err, -EINVAL,
                       "%s: tensor '%s' has a bad shape (at most %d dimensions, none negative)",
                       label, name, HX_ST_MAX_DIMS);
    struct hx_jv offsets = hx_jv_get(v, "data_offsets"), first = hx_jv_first(offsets);
    int64_t begin, end;
    if (hx_jv_type(offsets) != HX_JSON_ARRAY || hx_jv_count(offsets) != 2 ||
        !plain_integer(first, &begin) || !plain_integer(hx_jv_next(first), &end))
        return hx_fail(err, -EINVAL, "%s: tensor '%s' has bad data_offsets", label, name);
    if (end < begin || (uint64_t)end > data_size)
        return hx_fail(
            err, -EINVAL,
            "%s: tensor '%s' lies at bytes %lld to %lld of a data area of %llu (truncated file?)",
            label, name, (long long)begin, (long long)end, (unsigned long long)data_size);
    t->offset = data_start + (uint64_t)begin;
    t->size = (uint64_t)(end - begin);
    if (t->size != n_elements * hx_dtype_size(t->dtype))
        return hx_fail(err, -EINVAL,
                       "%s: tensor '%s' has %llu bytes, its shape and dtype need %llu", label, name,
                       (unsigned long long)t->size,
                       (unsigned long long)(n_elements * hx_dtype_size(t->dtype)));
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct hx_st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

static int by_name(const void *a, const void *b, void *user)
{
    const struct hx_st_tensor *t = user;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Readers that take the first of two equal keys and readers that take the last would not agree. */
static int check_entry_keys(const char *label, const char *name, struct hx_jv v,
                            struct hx_error *err)
{
    if (hx_jv_count(v) > MAX_ENTRY_KEYS)
        return hx_fail(err, -EINVAL, "%s: tensor '%s' has more than %d keys", label, name,
                       MAX_ENTRY_KEYS);
    for (struct hx_jv m = hx_jv_first(v); m.doc; m = hx_jv_next(m)) {
        size_t len;
        const char *key = hx_jv_str(hx_jv_key(m), &len);
        if (hx_jv_get_n(v, key, len).at != m.at)
            return hx_fail(err, -EINVAL, "%s: tensor '%s' has the key '%.*s' twice", label, name,
                           len > 40 ? 40 : (int)len, key);
    }
    return 0;
}

static int check_metadata(const char *label, struct hx_jv v, struct hx_error *err)
{
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return hx_fail(err, -EINVAL, "%s: __metadata__ is not an object", label);
    for (struct hx_jv m = hx_jv_first(v); m.doc; m = hx_jv_next(m)) {
        if (hx_jv_type(m) != HX_JSON_STRING)
            return hx_fail(err, -EINVAL, "%s: __metadata__ holds %s, expected strings only", label,
                           hx_json_type_name(hx_jv_type(m)));
    }
    return 0;
}

/* The data area must be covered without overlap or hole. */
static int check_layout(struct hx_st_file *f, const char *label, uint64_t start, uint64_t file_size,
                        struct hx_error *err)
{
    uint64_t at = start;
    for (size_t i = 0; i < f->n; i++) {
        const struct hx_st_tensor *t = &f->tensor[i];
        if (t->offset != at)
            return hx_fail(err, -EINVAL, "%s: tensor '%s' %s", label, t->name,
                           t->offset < at ? "overlaps the one before it"
                                          : "leaves a hole before it");
        at += t->size;
    }
    if (at != file_size)
        return hx_fail(err, -EINVAL, "%s: %llu bytes behind the last tensor belong to none", label,
                       (unsigned long long)(file_size - at));
    return 0;
}

static int check_names(struct hx_st_file *f, const char *label, struct hx_error *err)
{
    for (uint32_t i = 0; i < f->n; i++)
        f->by_name[i] = i;
    qsort_r(f->by_name, f->n, sizeof(*f->by_name), by_name, f->tensor);
    for (size_t i = 1; i < f->n; i++) {
        const char *name = f->tensor[f->by_name[i]].name;
        if (strcmp(f->tensor[f->by_name[i - 1]].name, name) == 0)
            return hx_fail(err, -EINVAL, "%s: tensor '%s' is there twice", label, name);
    }
    return 0;
}

static int fill(struct hx_st_file *f, const char *label, struct hx_jv root, uint64_t start,
                uint64_t file_size, size_t names_size, struct hx_error *err)
{
    size_t n = hx_jv_count(root);
    f->names = malloc(names_size + 1);
    f->tensor = calloc(n + 1, sizeof(*f->tensor));
    f->by_name = calloc(n + 1, sizeof(*f->by_name));
    if (!f->names || !f->tensor || !f->by_name)
        return hx_fail(err, -ENOMEM, "%s: out of memory for %zu tensors", label, n);
    char *to = f->names;
    for (struct hx_jv m = hx_jv_first(root); m.doc; m = hx_jv_next(m)) {
        size_t len;
        const char *key = hx_jv_str(hx_jv_key(m), &len);
        if (len == 12 && memcmp(key, "__metadata__", 12) == 0) {
            int r = check_metadata(label, m, err);
            if (r < 0)
                return r;
            continue;
        }
        if (len == 0 || len >= HX_ST_MAX_NAME || memchr(key, 0, len))
            return hx_fail(err, -EINVAL,
                           "%s: a tensor name of %zu bytes (1 to %d without NUL allowed)", label,
                           len, HX_ST_MAX_NAME - 1);
        struct hx_st_tensor *t = &f->tensor[f->n];
        memcpy(to, key, len);
        to[len] = '\0';
        t->name = to;
        to += len + 1;
        if (hx_jv_type(m) != HX_JSON_OBJECT)
            return hx_fail(err, -EINVAL, "%s: tensor '%s' is not described by an object", label,
                           t->name);
        int r = check_entry_keys(label, t->name, m, err);
        if (r == 0)
            r = parse_tensor(label, t->name, m, start, file_size - start, t, err);
        if (r < 0)
            return r;
        f->n++;
    }
    qsort(f->tensor, f->n, sizeof(*f->tensor), by_offset);
    int r = check_layout(f, label, start, file_size, err);
    return r < 0 ? r : check_names(f, label, err);
}

int hx_st_parse(const char *label, const uint8_t *header, size_t len, uint64_t file_size,
                struct hx_st_file **out, struct hx_error *err)
{
    const struct hx_json_limits limits = {HX_ST_MAX_HEADER, 16u * MAX_TENSORS, 4, 0};
    struct hx_json *doc = NULL;
    struct hx_st_file *f = NULL;
    int r = hx_json_parse((const char *)header, len, &limits, &doc, err);
    if (r < 0) {
        hx_wrap(err, r, "%s: header", label);
        goto out;
    }
    if (hx_jv_type(hx_json_root(doc)) != HX_JSON_OBJECT) {
        r = hx_fail(err, -EINVAL, "%s: the header is not an object", label);
        goto out;
    }
    if (header[0] != '{') {
        r = hx_fail(err, -EINVAL, "%s: the header does not start with '{'", label);
        goto out;
    }
    f = calloc(1, sizeof(*f));
    if (!f || !(f->path = strdup(label))) {
        r = hx_fail(err, -ENOMEM, "%s: out of memory", label);
        goto out;
    }
    f->fd = -1;
    r = fill(f, label, hx_json_root(doc), 8 + len, file_size, len, err);
    if (r < 0)
        goto out;
    *out = f;
    f = NULL;
out:
    hx_st_close(f);
    hx_json_free(doc);
    return r;
}

/* Length of the JSON header, checked against the file's size. */
static int header_length(int fd, const char *path, uint64_t file_size, uint64_t *len,
                         struct hx_error *err)
{
    if (file_size < 10)
        return hx_fail(err, -EINVAL, "%s: %llu bytes are too few for a safetensors file", path,
                       (unsigned long long)file_size);
    uint8_t b[8];
    int r = hx_file_pread(fd, path, b, 8, 0, err);
    if (r < 0)
        return r;
    *len = 0;
    for (int i = 7; i >= 0; i--)
        *len = *len << 8 | b[i];
    if (*len < 2 || *len > HX_ST_MAX_HEADER || *len > file_size - 8)
        return hx_fail(err, -EINVAL,
                       "%s: header length %llu (2 to %u and within the file's %llu bytes allowed)",
                       path, (unsigned long long)*len, HX_ST_MAX_HEADER,
                       (unsigned long long)file_size);
    return 0;
}

int hx_st_open(const char *path, struct hx_st_file **out, struct hx_error *err)
{
    uint8_t *header = NULL;
    struct stat st;
    uint64_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    int r = 0;
    if (fstat(fd, &st) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        r = hx_fail(err, -EINVAL, "%s: is not a regular file", path);
    else
        r = header_length(fd, path, (uint64_t)st.st_size, &len, err);
    if (r < 0)
        goto out;
    header = malloc(len);
    if (!header) {
        r = hx_fail(err, -ENOMEM, "%s: out of memory for a header of %llu bytes", path,
                    (unsigned long long)len);
        goto out;
    }
    r = hx_file_pread(fd, path, header, len, 8, err);
    if (r == 0)
        r = hx_st_parse(path, header, len, (uint64_t)st.st_size, out, err);
    if (r == 0) {
        (*out)->fd = fd;
        fd = -1;
    }
out:
    free(header);
    if (fd >= 0)
        close(fd);
    return r;
}

void hx_st_close(struct hx_st_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f->names);
    free(f->tensor);
    free(f->by_name);
    free(f);
}

const char *hx_st_path(const struct hx_st_file *f)
{
    return f->path;
}

int hx_st_fd(const struct hx_st_file *f)
{
    return f->fd;
}

size_t hx_st_count(const struct hx_st_file *f)
{
    return f->n;
}

const struct hx_st_tensor *hx_st_at(const struct hx_st_file *f, size_t i)
{
    return &f->tensor[i];
}

const struct hx_st_tensor *hx_st_find(const struct hx_st_file *f, const char *name)
{
    size_t lo = 0, hi = f->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, f->tensor[f->by_name[mid]].name);
        if (c == 0)
            return &f->tensor[f->by_name[mid]];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

int hx_st_read(const struct hx_st_file *f, const struct hx_st_tensor *t, void *out,
               struct hx_error *err)
{
    if (f->fd < 0)
        return hx_fail(err, -EBADF, "%s: only the header is open", f->path);
    int r = hx_file_pread(f->fd, f->path, out, t->size, t->offset, err);
    return r < 0 ? hx_wrap(err, r, "tensor '%s'", t->name) : 0;
}

#define PIECE ((size_t)4 << 20) /* bytes read at once where the part is not contiguous */

int hx_st_read_part(const struct hx_st_file *f, const struct hx_st_tensor *t, int dim, int64_t from,
                    int64_t to, void *out, struct hx_error *err)
{
    if (f->fd < 0)
        return hx_fail(err, -EBADF, "%s: only the header is open", f->path);
    if (dim < 0 || dim >= t->n_dims || from < 0 || from > to || to > t->ne[dim])
        return hx_fail(err, -EINVAL, "%s: tensor '%s': no elements %lld to %lld of dimension %d",
                       f->path, t->name, (long long)from, (long long)to, dim);
    size_t outer = 1, inner = hx_dtype_size(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        *(i < dim ? &outer : &inner) *= i == dim ? 1 : (size_t)t->ne[i];
    size_t row = (size_t)t->ne[dim] * inner, skip = (size_t)from * inner,
           have = (size_t)(to - from) * inner;
    if (have == 0 || outer == 0)
        return 0;
    int r = 0;
    if (outer == 1 || have == row) {
        r = hx_file_pread(f->fd, f->path, out, outer == 1 ? have : t->size, t->offset + skip, err);
        return r < 0 ? hx_wrap(err, r, "tensor '%s'", t->name) : 0;
    }
    size_t rows = row < PIECE ? PIECE / row : 1;
    rows = rows < outer ? rows : outer;
    uint8_t *piece = malloc(rows * row);
    if (!piece)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (size_t at = 0; r == 0 && at < outer; at += rows) {
        size_t n = outer - at < rows ? outer - at : rows;
        r = hx_file_pread(f->fd, f->path, piece, n * row, t->offset + at * row, err);
        for (size_t i = 0; r == 0 && i < n; i++)
            memcpy((uint8_t *)out + (at + i) * have, piece + i * row + skip, have);
    }
    free(piece);
    return r < 0 ? hx_wrap(err, r, "tensor '%s'", t->name) : 0;
}
