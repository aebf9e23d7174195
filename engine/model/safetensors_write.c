/* safetensors writer: header first (padded with spaces to 8 bytes), then the data in order of
 * adding. The file appears under its name only when it is complete and synced. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_write.h"
#include "model/safetensors.h"

struct entry {
    char *name;
    enum hx_dtype dtype;
    int n_dims;
    int64_t ne[HX_ST_MAX_DIMS];
    const void *data;
    uint64_t size;
};

struct hx_st_writer {
    struct entry *entry;
    size_t n, cap;
    struct hx_buf meta; /* JSON members of __metadata__ */
};

int hx_st_writer_new(struct hx_st_writer **out, struct hx_error *err)
{
    struct hx_st_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return hx_fail(err, -ENOMEM, "out of memory");
    w->meta = HX_BUF_INIT(1 << 20);
    *out = w;
    return 0;
}

int hx_st_writer_add(struct hx_st_writer *w, const char *name, enum hx_dtype dtype, int n_dims,
                     const int64_t *ne, const void *data, struct hx_error *err)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        struct entry *e = realloc(w->entry, cap * sizeof(*e));
        if (!e)
            return hx_fail(err, -ENOMEM, "out of memory");
        w->entry = e;
        w->cap = cap;
    }
    struct entry *e = &w->entry[w->n];
    *e = (struct entry){.dtype = dtype, .n_dims = n_dims, .data = data};
    e->size = hx_dtype_size(dtype);
    for (int i = 0; i < n_dims; i++) {
        e->ne[i] = ne[i];
        e->size *= (uint64_t)ne[i];
    }
    e->name = strdup(name);
    if (!e->name)
        return hx_fail(err, -ENOMEM, "out of memory");
    w->n++;
    return 0;
}

int hx_st_writer_meta(struct hx_st_writer *w, const char *key, const char *value,
                      struct hx_error *err)
{
    if (w->meta.len > 0)
        hx_buf_putc(&w->meta, ',');
    hx_buf_putc(&w->meta, '"');
    hx_json_escape(&w->meta, key, strlen(key));
    hx_buf_puts(&w->meta, "\":\"");
    hx_json_escape(&w->meta, value, strlen(value));
    hx_buf_putc(&w->meta, '"');
    return w->meta.failed ? hx_fail(err, -ENOMEM, "out of memory") : 0;
}

static void put_entry(struct hx_json_writer *j, const struct entry *e, uint64_t *at)
{
    hx_jw_key(j, e->name);
    hx_jw_object(j);
    hx_jw_key(j, "dtype");
    hx_jw_str(j, hx_dtype_name(e->dtype));
    hx_jw_key(j, "shape");
    hx_jw_array(j);
    for (int d = 0; d < e->n_dims; d++)
        hx_jw_int(j, e->ne[d]);
    hx_jw_end_array(j);
    hx_jw_key(j, "data_offsets");
    hx_jw_array(j);
    hx_jw_uint(j, *at);
    *at += e->size;
    hx_jw_uint(j, *at);
    hx_jw_end_array(j);
    hx_jw_end_object(j);
}

static int write_all(struct hx_st_writer *w, int fd, const char *path, const struct hx_buf *head,
                     struct hx_error *err)
{
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)(head->len >> (8 * i));
    int r = hx_file_pwrite(fd, path, len, 8, 0, err);
    if (r == 0)
        r = hx_file_pwrite(fd, path, head->data, head->len, 8, err);
    uint64_t at = 8 + head->len;
    for (size_t i = 0; r == 0 && i < w->n; i++) {
        r = hx_file_pwrite(fd, path, w->entry[i].data, w->entry[i].size, at, err);
        at += w->entry[i].size;
    }
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot sync", path);
    return r;
}

int hx_st_writer_write(struct hx_st_writer *w, const char *path, struct hx_error *err)
{
    struct hx_buf head = HX_BUF_INIT(HX_ST_MAX_HEADER);
    struct hx_json_writer j;
    hx_jw_init(&j, &head, false);
    hx_jw_object(&j);
    if (w->meta.len > 0) {
        hx_jw_key(&j, "__metadata__");
        hx_jw_raw(&j, "{", 1);
        hx_buf_append(&head, w->meta.data, w->meta.len);
        hx_buf_putc(&head, '}');
    }
    uint64_t at = 0;
    for (size_t i = 0; i < w->n; i++)
        put_entry(&j, &w->entry[i], &at);
    hx_jw_end_object(&j);
    while (!head.failed && head.len % 8 != 0)
        hx_buf_putc(&head, ' ');
    char *tmp = NULL;
    int r = 0;
    if (head.failed || asprintf(&tmp, "%s.new", path) < 0) {
        hx_buf_done(&head);
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    }
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot create", tmp);
        goto out;
    }
    r = write_all(w, fd, tmp, &head, err);
    if (close(fd) < 0 && r == 0)
        r = hx_fail_errno(err, errno, "%s: cannot close", tmp);
    if (r == 0 && rename(tmp, path) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot rename to %s", tmp, path);
    if (r < 0)
        unlink(tmp);
out:
    free(tmp);
    hx_buf_done(&head);
    return r;
}

void hx_st_writer_free(struct hx_st_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n; i++)
        free(w->entry[i].name);
    free(w->entry);
    hx_buf_done(&w->meta);
    free(w);
}
