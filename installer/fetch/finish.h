/* What makes a model folder of verified files: the token map, the cross checks and the lock file
 * with every hash filled in. */
#ifndef HX_FETCH_FINISH_H
#define HX_FETCH_FINISH_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/sha256.h"
#include "fetch/lock.h"

/* engram_token_map.i32 from the folder's tokenizer.json and config.json, atomically. */
int hx_finish_token_map(const char *dir, uint8_t sha256[HX_SHA256_BYTES], uint64_t *n_bytes,
                        struct hx_error *err) HX_MUST;

/* Every tensor that the configuration needs is there with the right format and shape, and the
 * numbers of "expect" (NULL: none) hold. -EINVAL names the first that does not. token_map: digest
 * of the folder's token map. */
int hx_finish_check(const char *dir, const char *expect_json,
                    const uint8_t token_map[HX_SHA256_BYTES], struct hx_error *err) HX_MUST;

/* Hashes of a cut's tensors that the lock file lacks, from the finished file. */
int hx_finish_tensor_hashes(const char *path, struct hx_lock_file *f, struct hx_error *err) HX_MUST;

/* A copy that can be changed. */
int hx_lock_copy(const struct hx_lock *lock, struct hx_lock **out, struct hx_error *err) HX_MUST;

#endif
