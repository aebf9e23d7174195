/* The lock file: every byte that a model folder is made of, where it comes from and what it must
 * hash to (JSON; format "hybrid-lock-1", docs/fetch.md). `hx-fetch run` follows it and nothing
 * else. */
#ifndef HX_FETCH_LOCK_H
#define HX_FETCH_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

enum hx_lock_mode {
    HX_LOCK_WHOLE, /* the file as it is at the source */
    HX_LOCK_CUT,   /* only the listed tensors, under a new safetensors header */
};

/* A repository at one revision. Where it is served from is configuration (struct hx_source_set). */
struct hx_lock_source {
    char *id;         /* "official", "exl3" */
    char *repo;       /* "owner/name" */
    char commit[41];  /* 40 hexadecimal digits */
    char *licence;    /* as the repository states it; NULL: not stated */
    char **endpoints; /* names of endpoints of the configuration, in order; "default" is the first
                         one */
    size_t n_endpoints;
};

struct hx_lock_tensor {
    char *name;
    char *dtype;
    uint64_t shape[8];
    unsigned n_dims;
    uint64_t begin, end; /* in the source file's data area, i.e. relative to 8 + header length */
    uint8_t sha256[32];
    bool has_sha256;
};

struct hx_lock_file {
    size_t source; /* index into sources */
    char *path;    /* at the source */
    char *out; /* below the model folder; ours, checked: relative, no "..", no control characters */
    char *group; /* "small", "dense", "experts", "engram": what --groups selects; derived when
                    absent */
    enum hx_lock_mode mode;
    uint64_t size; /* of the source file */
    uint8_t sha256[32];
    bool has_sha256;
    uint8_t header_sha256[32]; /* safetensors header, 8 length bytes included */
    bool has_header_sha256;
    uint64_t header_bytes; /* cut: 8 + header length of the source file, so that ranges need no
                              request */
    uint64_t chunk;        /* bytes of one chunk of the output, 64 MiB */
    uint8_t (*chunk_sha256)[32]; /* one per chunk of the output, or NULL: not known yet */
    size_t n_chunk_sha256;
    struct hx_lock_tensor *tensors; /* cut: in source order */
    size_t n_tensors;
};

struct hx_lock {
    char *model;   /* folder name */
    char *created; /* ISO 8601 */
    bool complete; /* every hash is known: the result can be called verified */
    bool
        made_here; /* written by `hx-fetch lock` on this machine from metadata (decisions 11, 24) */
    uint8_t sha256[32]; /* of the file's bytes as read */
    struct hx_lock_source *sources;
    size_t n_sources;
    struct hx_lock_file *files;
    size_t n_files;
    char *expect_json; /* the "expect" object as text, checked at publication; NULL: absent */
};

/* Reads and checks a lock file: bounds on every number, names, duplicate outputs, overlapping
 * tensors. -EINVAL names the file, the place and the rule. */
int hx_lock_read(const char *path, struct hx_lock **out, struct hx_error *err);
int hx_lock_parse(const char *json, size_t n, const char *name, struct hx_lock **out,
                  struct hx_error *err);

/* Writes atomically, keys sorted, so that the same lock is the same bytes. */
int hx_lock_write(const struct hx_lock *lock, const char *path, struct hx_error *err);

void hx_lock_free(struct hx_lock *lock);

#endif
