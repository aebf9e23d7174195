/* Folders and files of the slots: made, copied, synced and removed below an open folder, without
 * ever following a link. */
#ifndef HX_BUNDLE_TREE_H
#define HX_BUNDLE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <hx/error.h>

/* Opens path below dir, making its folders (mode 0755). *fd is the folder. */
int hx_tree_folder(int dir, const char *path, int *fd, struct hx_error *err) HX_MUST;
/* A new file below dir, its folders made first. -EEXIST if it is there. */
int hx_tree_create(int dir, const char *path, mode_t mode, int *fd, struct hx_error *err) HX_MUST;
int hx_tree_write(int fd, const char *path, const void *data, size_t len,
                  struct hx_error *err) HX_MUST;
/* Syncs and closes. */
int hx_tree_finish(int fd, const char *path, struct hx_error *err) HX_MUST;
/* A plain file below dir for reading; no link on the way. */
int hx_tree_open(int dir, const char *path, int *fd, struct hx_error *err) HX_MUST;
/* Copies a plain file; hex (may be NULL) gets the hash of what was copied. */
int hx_tree_copy(int from_dir, const char *from, int to_dir, const char *to, mode_t mode, char *hex,
                 uint64_t *size, struct hx_error *err) HX_MUST;
int hx_tree_put(int dir, const char *path, const void *data, size_t len,
                struct hx_error *err) HX_MUST;
/* Removes dir/name and everything below; what is not there is removed. */
int hx_tree_remove(int dir, const char *name, struct hx_error *err) HX_MUST;
/* Makes all folders below dir/name last: their entries are on the disk. */
int hx_tree_sync(int dir, const char *name, struct hx_error *err) HX_MUST;
/* Calls fn with the path (below dir) and a descriptor of each plain file, in byte order. Anything
 * that is neither a plain file nor a folder is -EINVAL. */
typedef int (*hx_tree_fn)(void *ctx, const char *path, int fd, struct hx_error *err);
int hx_tree_walk(int dir, hx_tree_fn fn, void *ctx, struct hx_error *err) HX_MUST;
/* Hash and size of an open file, read from its start. */
int hx_tree_hash(int fd, const char *path, char hex[65], uint64_t *size,
                 struct hx_error *err) HX_MUST;

#endif
