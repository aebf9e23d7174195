/* From a lock file to requests: pure arithmetic, no disk, no network. */
#ifndef HX_FETCH_PLAN_H
#define HX_FETCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/lock.h"

#define HX_PLAN_MAX_GAP (1u << 20) /* wanted runs closer than this share a request */

/* Bytes of the source that belong to one place of the output. What lies between two segments of a
 * chunk is received and thrown away. */
struct hx_plan_segment {
    uint64_t src_begin; /* absolute offset in the source file */
    uint64_t n_bytes;
    uint64_t out_begin; /* absolute offset in the output file */
};

/* One request: the unit of journal and hash. Its output bytes are contiguous and do not cross a
 * multiple of the file's chunk size. */
struct hx_plan_chunk {
    uint64_t src_begin, src_bytes;
    uint64_t out_begin, out_bytes;
    uint32_t first_segment, n_segments; /* in the file's segments */
    const uint8_t *sha256;              /* of the output bytes, 32 bytes; NULL: not known */
};

struct hx_plan_file {
    const struct hx_lock_file *lock;
    const struct hx_lock_source *source;
    uint64_t out_bytes;
    uint8_t *header; /* cut: new header for [0, header_bytes), padded to 4,096; written last. NULL:
                        whole */
    size_t header_bytes;
    struct hx_plan_segment *segments;
    size_t n_segments;
    struct hx_plan_chunk *chunks; /* by out_begin */
    size_t n_chunks;
    uint64_t wanted_bytes, fetched_bytes; /* fetched - wanted is wasted */
    uint8_t sha256[32]; /* hx_lock_file_identity: a journal of another one is void */
};

struct hx_plan {
    const struct hx_lock *lock;
    struct hx_plan_file *files; /* in order of work: small, dense, then experts and engram in
                                   turn */
    size_t n_files;
    uint64_t wanted_bytes, fetched_bytes;
    uint8_t sha256[32]; /* hx_lock_identity: of all groups */
};

/* groups: NULL or a list such as "small,dense,engram"; unknown names are an error. The lock must
 * outlive the plan. */
int hx_plan_make(const struct hx_lock *lock, const char *groups, struct hx_plan **out,
                 struct hx_error *err);
void hx_plan_free(struct hx_plan *plan);

#endif
