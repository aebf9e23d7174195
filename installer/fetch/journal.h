/* The journal of one growing file: which chunks are on the disk. Append-only, records of 64 bytes
 * with a CRC32C and a running number each; whatever follows the first record that is not valid does
 * not count. docs/fetch.md describes the format. */
#ifndef HX_FETCH_JOURNAL_H
#define HX_FETCH_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/sha256.h"

#define HX_JOURNAL_RECORD     64
#define HX_JOURNAL_MAX_CHUNKS (1u << 22)

enum hx_journal_type {
    HX_JOURNAL_PLAN = 1, /* first record; index: chunks, length: bytes of the file, digest: plan */
    HX_JOURNAL_CONTENT,  /* second record; digest: the bytes that the plan wants, whatever their
                            source */
    HX_JOURNAL_CHUNK,    /* index, length, digest of its output bytes */
    HX_JOURNAL_DROP,     /* index: fetch this chunk again */
    HX_JOURNAL_HASH,     /* running hash of the whole file; length: bytes hashed, digest: state */
    HX_JOURNAL_READY,    /* everything verified; digest: of the whole output */
    HX_JOURNAL_CLEAN,    /* orderly end of a process; counts only as the last record */
    HX_JOURNAL_BACK,     /* the published file is to become the part again (repair) */
    HX_JOURNAL_TYPE_MAX
};

#define HX_JOURNAL_SCANNED 1u /* CHUNK: values looked at (sanity.h) */
#define HX_JOURNAL_CHECKED 2u /* CHUNK: digest compared with the lock file's */

struct hx_journal_entry {
    enum hx_journal_type type;
    unsigned flags; /* HX_JOURNAL_SCANNED ... */
    uint32_t index;
    uint64_t length;
    uint8_t digest[HX_SHA256_BYTES];
};

struct hx_journal_chunk {
    bool done;
    unsigned flags;
    uint64_t seq; /* record number */
    uint8_t digest[HX_SHA256_BYTES];
};

/* What a journal says. */
struct hx_journal_image {
    uint64_t valid_bytes; /* length of the valid part */
    uint64_t n_records;
    uint32_t n_chunks;
    uint64_t out_bytes;
    uint8_t plan[HX_SHA256_BYTES], content[HX_SHA256_BYTES];
    struct hx_journal_chunk *chunks; /* n_chunks */
    struct hx_sha256_state *hashes;  /* ascending */
    size_t n_hashes;
    bool ready, clean, back;
    uint8_t ready_sha256[HX_SHA256_BYTES];
};

/* Reads records from memory. -EINVAL: the first two are not valid, so there is no journal. A record
 * that contradicts the header (index, length) ends the valid part as a torn one does. */
int hx_journal_parse(const uint8_t *data, size_t n, struct hx_journal_image *out,
                     struct hx_error *err) HX_MUST;
void hx_journal_image_done(struct hx_journal_image *image);

struct hx_journal {
    int fd; /* -1: not open */
    char *path;
    uint64_t n_records;
};

#define HX_JOURNAL_INIT ((struct hx_journal){.fd = -1})

/* Opens an existing journal for appending and cuts what is not valid. 0; -ENOENT: there is none;
 * -EINVAL: not a journal (torn header, other file); or an I/O error. */
int hx_journal_open(const char *path, struct hx_journal *j, struct hx_journal_image *image,
                    struct hx_error *err) HX_MUST;
/* Writes a new one in one step (PLAN and CONTENT first in `entries`), in place of an old one. */
int hx_journal_create(const char *path, const struct hx_journal_entry *entries, size_t n,
                      struct hx_journal *j, struct hx_error *err) HX_MUST;
/* Appends without a sync; after a failure nothing counts as appended and it can be called again. */
int hx_journal_append(struct hx_journal *j, const struct hx_journal_entry *entries, size_t n,
                      struct hx_error *err) HX_MUST;
int hx_journal_sync(struct hx_journal *j, struct hx_error *err) HX_MUST;
void hx_journal_close(struct hx_journal *j);

#endif
