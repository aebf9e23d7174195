/* Files: whole reads with a limit, positioned reads, atomic replacement. */
#ifndef HX_BASE_FILE_H
#define HX_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Reads a whole regular file of at most max bytes into *out (free with free(); one NUL is added
 * beyond *len). -EFBIG names the limit. */
int hx_file_read(const char *path, size_t max, char **out, size_t *len,
                 struct hx_error *err) HX_MUST;
/* Exactly len bytes at offset; a short file is -EIO with file, offset and both lengths. */
int hx_file_pread(int fd, const char *path, void *buf, size_t len, uint64_t offset,
                  struct hx_error *err) HX_MUST;
int hx_file_pwrite(int fd, const char *path, const void *buf, size_t len, uint64_t offset,
                   struct hx_error *err) HX_MUST;
/* Opens a path below a folder, component by component: no symbolic link is followed (ELOOP), and an
 * absolute path or ".." is EINVAL. -1 with errno. Not openat2, which a service that may not set
 * set-user-ID bits does not have. */
int hx_file_open_beneath(int dir, const char *path, int flags) HX_MUST;
/* Writes path.new, syncs, renames over path, syncs the folder; nothing half-written stays. */
int hx_file_replace(const char *path, const void *data, size_t len, struct hx_error *err) HX_MUST;
/* "dir/name" in a fresh string, NULL when out of memory. */
char *hx_path_join(const char *dir, const char *name);

#endif
