/* Where a bundle comes from: a folder, or a tar archive (plain, gzip or xz). Read only. Names and
 * types of the entries are whatever the owner's medium holds; the caller judges them. */
#ifndef HX_BUNDLE_SOURCE_H
#define HX_BUNDLE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_SOURCE_ENTRIES_MAX 16384
#define HX_SOURCE_NAME_MAX    1024

enum hx_entry_kind {
    HX_ENTRY_FILE,
    HX_ENTRY_FOLDER,
    HX_ENTRY_LINK,  /* symbolic or hard */
    HX_ENTRY_OTHER, /* device, pipe, socket, sparse file */
};

struct hx_entry_body; /* content of the entry that is being visited */
struct hx_entry {
    const char *path; /* relative to the top, without a leading "./"; not checked */
    enum hx_entry_kind kind;
    uint64_t size; /* files */
    struct hx_entry_body *body;
};

/* Up to len bytes; *n = 0 at the end. -EIO, or -EINVAL for an archive that ends early. */
int hx_entry_read(struct hx_entry_body *body, void *buf, size_t len, size_t *n,
                  struct hx_error *err) HX_MUST;
/* A negative value ends the walk and becomes its result. */
typedef int (*hx_entry_fn)(void *ctx, const struct hx_entry *entry, struct hx_error *err);

struct hx_source;
/* -ENOENT, -EINVAL (neither a folder nor an archive), -ENOMEM. */
int hx_source_open(const char *path, struct hx_source **out, struct hx_error *err) HX_MUST;
void hx_source_close(struct hx_source *s);
/* All entries: of a folder in byte order, of an archive in its order. May be called again. */
int hx_source_walk(struct hx_source *s, hx_entry_fn fn, void *ctx, struct hx_error *err) HX_MUST;
const char *hx_source_path(const struct hx_source *s);
bool hx_source_is_archive(const struct hx_source *s);

/* Inside: a reader of a tar stream; fn as above. read: up to len bytes, 0 at the end, negative
 * with err set. */
typedef int (*hx_stream_read)(void *stream, void *buf, size_t len, size_t *n, struct hx_error *err);
int hx_tar_walk(hx_stream_read read, void *stream, const char *name, hx_entry_fn fn, void *ctx,
                struct hx_error *err) HX_MUST;

/* Inside: a file as a stream of bytes, unpacked if it is packed. */
struct hx_unpack;
int hx_unpack_open(const char *path, struct hx_unpack **out, struct hx_error *err) HX_MUST;
int hx_unpack_read(void *unpack, void *buf, size_t len, size_t *n, struct hx_error *err);
void hx_unpack_close(struct hx_unpack *u);

#endif
