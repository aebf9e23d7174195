/* The lock file: every byte that a model folder is made of, where it comes from and what it must
 * hash to (JSON; format "hybrid-lock-1", docs/fetch.md). `hx-fetch run` follows it and nothing
 * else. */
#ifndef HX_FETCH_LOCK_H
#define HX_FETCH_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/buf.h"

#define HX_LOCK_FORMAT      "hybrid-lock-1"
#define HX_LOCK_MAX_BYTES   (64u << 20)
#define HX_LOCK_MAX_SOURCES 16
#define HX_LOCK_MAX_FILES   4096
#define HX_LOCK_MAX_TENSORS 200000     /* of one file */
#define HX_LOCK_MAX_CHUNKS  (1u << 20) /* of all files */
#define HX_LOCK_MIN_CHUNK   4096u
#define HX_LOCK_MAX_CHUNK   (1u << 30)
#define HX_LOCK_CHUNK       (64u << 20) /* where the lock file names none */
#define HX_LOCK_DIMS        8

enum hx_lock_mode {
    HX_LOCK_WHOLE, /* the file as it is at the source */
    HX_LOCK_CUT,   /* only the listed tensors, under a new safetensors header */
};

/* Small files and headers first, then what is most likely to show an upstream change. */
enum hx_lock_group {
    HX_GROUP_SMALL,
    HX_GROUP_DENSE,
    HX_GROUP_EXPERTS,
    HX_GROUP_ENGRAM,
    HX_GROUP_MAX,
};

/* A repository at one revision. Where it is served from is configuration (struct hx_endpoint). */
struct hx_lock_source {
    char *id;         /* "official", "exl3" */
    char *repo;       /* "owner/name" */
    char commit[41];  /* 40 hexadecimal digits */
    char *licence;    /* as the repository states it; NULL: not stated */
    char **endpoints; /* names of endpoints of the configuration, in order; none or "default" alone:
                         all of them */
    size_t n_endpoints;
};

struct hx_lock_tensor {
    char *name;
    char *dtype;
    uint64_t shape[HX_LOCK_DIMS];
    unsigned n_dims;
    uint64_t begin, end; /* in the source file's data area, i.e. relative to 8 + header length */
    uint8_t sha256[32];
    bool has_sha256;
};

struct hx_lock_file {
    size_t source; /* index into sources */
    char *path;    /* at the source */
    char *out; /* below the model folder; ours, checked: relative, no "..", no control characters */
    enum hx_lock_group group; /* by the folder of `out` unless the file says otherwise */
    enum hx_lock_mode mode;
    uint64_t size; /* of the source file */
    uint8_t sha256[32];
    bool has_sha256;
    uint8_t header_sha256[32]; /* safetensors header, 8 length bytes included */
    bool has_header_sha256;
    uint64_t header_bytes; /* cut: 8 + header length of the source file, so that ranges need no
                              request */
    uint64_t chunk;        /* bytes of one chunk of the output */
    uint8_t (*chunk_sha256)[32]; /* whole: one per chunk of the output, or NULL: not known yet */
    size_t n_chunk_sha256;
    bool chunks_checked; /* they come from the very bytes that gave sha256: all of them right means
                            that the file is right */
    struct hx_lock_tensor *tensors; /* cut: in source order */
    size_t n_tensors;
};

struct hx_lock {
    char *model;        /* folder name */
    char *created;      /* ISO 8601 */
    char *tool;         /* what wrote it; NULL: not stated */
    bool complete;      /* every hash is known: the result can be called verified */
    bool made_here;     /* written by `hx-fetch lock` from metadata alone (decisions 11, 24) */
    uint8_t sha256[32]; /* of the file's bytes as read */
    struct hx_lock_source *sources;
    size_t n_sources;
    struct hx_lock_file *files;
    size_t n_files;
    char *expect_json; /* the "expect" object as text, checked at publication; NULL: absent */
};

/* Reads and checks a lock file: bounds on every number, names, duplicate outputs, overlapping
 * tensors, unknown top-level keys. -EINVAL names the file, the place and the rule. */
int hx_lock_read(const char *path, struct hx_lock **out, struct hx_error *err) HX_MUST;
int hx_lock_parse(const char *json, size_t n, const char *name, struct hx_lock **out,
                  struct hx_error *err) HX_MUST;

/* Keys sorted, so that the same lock is the same bytes. */
int hx_lock_format(const struct hx_lock *lock, struct hx_buf *out, struct hx_error *err) HX_MUST;
/* Atomically. */
int hx_lock_write(const struct hx_lock *lock, const char *path, struct hx_error *err) HX_MUST;

void hx_lock_free(struct hx_lock *lock);

/* What a file's bytes are: by content where its hash is known, else by repository, commit and path;
 * size, mode and ranges. Hashes of chunks and tensors do not count: they may be added later. */
int hx_lock_file_identity(const struct hx_lock *lock, const struct hx_lock_file *file,
                          uint8_t out[32], struct hx_error *err) HX_MUST;
/* Of all files: "plan_sha256" of the file. */
int hx_lock_identity(const struct hx_lock *lock, uint8_t out[32], struct hx_error *err) HX_MUST;

const char *hx_lock_group_name(enum hx_lock_group g);
enum hx_lock_group hx_lock_group_of(const char *out); /* by its folder */
/* Relative, at most 255 bytes, no "." or "..", control characters or backslashes. */
bool hx_lock_path_ok(const char *path);
/* Sets `complete` from the hashes that are there. */
void hx_lock_refresh(struct hx_lock *lock);

#endif
