/* Files below a root folder. Every path that a hardware check reads goes through here, so that a
 * whole fake machine (--root DIR) can be laid out in a folder: links, absolute ones too, are
 * followed inside it and never leave it. */
#ifndef HX_HW_ROOT_H
#define HX_HW_ROOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_ROOT_PATH 1024

struct hx_root;

/* dir NULL or "/": the machine itself. */
int hx_root_open(const char *dir, struct hx_root **out, struct hx_error *err) HX_MUST;
void hx_root_close(struct hx_root *root);
bool hx_root_is_fake(const struct hx_root *root);

/* The path inside the root with all links followed ("/sys/devices/..."). -ENOENT if it is not
 * there, -ELOOP, -ENAMETOOLONG. */
int hx_root_resolve(const struct hx_root *root, const char *path, char out[HX_ROOT_PATH]);
/* The same as a path of the machine, for programs and libraries that open files themselves. The
 * last component need not exist. */
int hx_root_outside(const struct hx_root *root, const char *path, char out[HX_ROOT_PATH]);
bool hx_root_exists(const struct hx_root *root, const char *path);
bool hx_root_is_folder(const struct hx_root *root, const char *path);

/* At most max bytes of a file; pseudo files have no size, so it is read to its end. *out is NUL
 * terminated beyond *len, free with free(). Longer: -EFBIG; not a regular file: -EINVAL. A stuck
 * driver blocks readers in the kernel: its answers are read in a child process (hw/nvml.h). */
int hx_root_read(const struct hx_root *root, const char *path, size_t max, char **out, size_t *len,
                 struct hx_error *err) HX_MUST;
/* A short text without white space at its end; cut at size - 1. Negative errno, out then "". */
int hx_root_text(const struct hx_root *root, const char *path, char *out, size_t size);
/* A decimal or 0x number. -EINVAL if the text is none. */
int hx_root_number(const struct hx_root *root, const char *path, int64_t *out);

/* Names in a folder in byte order, without "." and "..". At most 65,536. */
struct hx_names {
    char **name;
    size_t n;
};
int hx_root_list(const struct hx_root *root, const char *path, struct hx_names *out,
                 struct hx_error *err) HX_MUST;
void hx_names_done(struct hx_names *names);

/* strtod and strtoull with bounds and without locale: the whole text has to be the number. */
bool hx_parse_u64(const char *text, size_t len, uint64_t max, uint64_t *out); /* decimal or 0x */
bool hx_parse_real(const char *text, size_t len, double *out); /* finite, digits and one point */

#endif
