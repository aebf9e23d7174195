/* state.json of a model folder, the downloader's side: what was published, from where, under which
 * lock file. The engine reads the same file through model/manifest.h. */
#ifndef HX_FETCH_STATE_H
#define HX_FETCH_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/sha256.h"

struct hx_state_file {
    char *path; /* below the folder */
    uint64_t size;
    uint8_t sha256[HX_SHA256_BYTES];
    char *source;                      /* repository at commit, path */
    char *licence;                     /* "" not stated */
    uint8_t identity[HX_SHA256_BYTES]; /* hx_lock_file_identity; zeros: not from a lock file */
};

struct hx_state {
    bool complete;
    bool verified;    /* every hash came from a lock file that somebody vouches for */
    char lock_id[80]; /* "sha256:..." of the lock file's bytes */
    char model[256];
    struct hx_state_file *files;
    size_t n_files;
};

/* -ENOENT: the folder has none. -EINVAL: not what we write. Completeness is not judged here. */
int hx_state_read(const char *dir, struct hx_state *out, struct hx_error *err) HX_MUST;
/* Atomically. */
int hx_state_write(const char *dir, const struct hx_state *state, struct hx_error *err) HX_MUST;
void hx_state_done(struct hx_state *state);
const struct hx_state_file *hx_state_find(const struct hx_state *state, const char *path);
/* Appends an entry; strings are copied. */
int hx_state_add(struct hx_state *state, const struct hx_state_file *entry,
                 struct hx_error *err) HX_MUST;

#endif
