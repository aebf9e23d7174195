/* What a repository says about itself at one commit: its files, its index, the headers of its
 * shards. Only metadata is read. */
#ifndef HX_FETCH_REPO_H
#define HX_FETCH_REPO_H

#include "fetch/transfer.h"
#include "model/safetensors.h"

#define HX_REPO_INDEX "model.safetensors.index.json"

struct hx_repo_file {
    char *path;
    uint64_t size;
    uint8_t sha256[32];
    bool has_sha256; /* from large-file storage, or because the file was read here */
};

struct hx_repo_shard {
    size_t file; /* index into files */
    struct hx_st_file *st;
    uint64_t header_bytes; /* 8 + header length */
    uint8_t header_sha256[32];
};

struct hx_repo {
    struct hx_transfer *t;
    char *name;                 /* owner/name */
    char commit[41];            /* what the revision stands for now */
    char *licence;              /* NULL: not stated */
    struct hx_repo_file *files; /* by path */
    size_t n_files;
    struct hx_repo_shard *shards; /* by path */
    size_t n_shards;
    size_t n_skipped; /* listed paths that no file of ours may have */
};

/* spec: OWNER/NAME@REVISION, the revision a commit or a name such as a branch. Resolves the
 * revision, lists the tree, reads the licence from the model card. The transfer must outlive it. */
int hx_repo_open(struct hx_transfer *t, const char *spec, struct hx_repo **out,
                 struct hx_error *err) HX_MUST;
void hx_repo_close(struct hx_repo *repo);

struct hx_repo_file *hx_repo_find(const struct hx_repo *repo, const char *path); /* NULL: none */

/* A whole small file; its hash is checked or recorded. One NUL is behind it. -ENOENT: not listed.
 */
int hx_repo_read(struct hx_repo *repo, const char *path, size_t max, char **data, size_t *n,
                 struct hx_error *err) HX_MUST;

/* Headers of all shards: those that the index names, or every *.safetensors if there is no index
 * and need_index is false. Index and headers must agree name by name. */
int hx_repo_read_shards(struct hx_repo *repo, bool need_index, struct hx_error *err) HX_MUST;

#endif
