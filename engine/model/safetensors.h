/* Bounded reader and a writer for safetensors files. */
#ifndef HX_MODEL_SAFETENSORS_H
#define HX_MODEL_SAFETENSORS_H

#include <stdint.h>

#include "backend/backend.h"

#define HX_ST_MAX_DIMS   4
#define HX_ST_MAX_HEADER 100000000u
#define HX_ST_MAX_NAME   256

struct hx_st_tensor {
    const char *name; /* owned by the file object */
    enum hx_dtype dtype;
    int n_dims; /* 0: scalar */
    int64_t ne[HX_ST_MAX_DIMS];
    uint64_t offset; /* absolute file offset */
    uint64_t size;   /* bytes */
};

struct hx_st_file;

/* Opens a file and checks the header completely: length, JSON, dtype, shape x dtype = size, offsets
 * in range, no overlap, no hole beyond alignment rules, no duplicate name. Hostile headers are
 * refused with one line naming file, tensor and reason. */
int hx_st_open(const char *path, struct hx_st_file **out, struct hx_error *err) HX_MUST;
/* The header alone, from memory (file_size: what the data area is checked against). */
int hx_st_parse(const char *label, const uint8_t *header, size_t len, uint64_t file_size,
                struct hx_st_file **out, struct hx_error *err) HX_MUST;
void hx_st_close(struct hx_st_file *f);
const char *hx_st_path(const struct hx_st_file *f);
int hx_st_fd(const struct hx_st_file *f); /* -1 if parsed from memory */
size_t hx_st_count(const struct hx_st_file *f);
const struct hx_st_tensor *hx_st_at(const struct hx_st_file *f, size_t i); /* by ascending offset */
const struct hx_st_tensor *hx_st_find(const struct hx_st_file *f,
                                      const char *name); /* NULL: none */
int hx_st_read(const struct hx_st_file *f, const struct hx_st_tensor *t, void *out,
               struct hx_error *err) HX_MUST;
/* Elements from to to - 1 of dimension dim, packed. */
int hx_st_read_part(const struct hx_st_file *f, const struct hx_st_tensor *t, int dim, int64_t from,
                    int64_t to, void *out, struct hx_error *err) HX_MUST;

/* Writer: add tensors (data is borrowed until the write), then write once, atomically. */
struct hx_st_writer;
int hx_st_writer_new(struct hx_st_writer **out, struct hx_error *err) HX_MUST;
int hx_st_writer_add(struct hx_st_writer *w, const char *name, enum hx_dtype dtype, int n_dims,
                     const int64_t *ne, const void *data, struct hx_error *err) HX_MUST;
int hx_st_writer_meta(struct hx_st_writer *w, const char *key, const char *value,
                      struct hx_error *err) HX_MUST;
int hx_st_writer_write(struct hx_st_writer *w, const char *path, struct hx_error *err) HX_MUST;
void hx_st_writer_free(struct hx_st_writer *w);

#endif
