/* Launchers of the probe's kernels: plain pointers in, cudaError_t out, work queued on the stream.
 * All device pointers are reachable from the current device. */
#ifndef HX_P2P_KERNELS_H
#define HX_P2P_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- rates.cu ------------------------------------------------------------------------------- */

/* Independent chains of dependent float32 FMA; *flop is what one launch computes. sink: 4 bytes. */
cudaError_t hx_k_fma(int n_blocks, unsigned iterations, float *sink, double *flop, cudaStream_t s);
/* c [n, n] = a [n, k] times b [n, k] transposed, all bf16, float32 sums; n a multiple of
 * 256, k of 32.
 * Deterministic: the same inputs give the same bits. */
cudaError_t hx_k_gemm(const void *a, const void *b, void *c, int n, int k, cudaStream_t s);
/* Cycles of one dependent bf16 tensor instruction, from a chain on one warp: cycles [1]. */
cudaError_t hx_k_mma_latency(float *cycles, float *sink, cudaStream_t s);
/* Reads the bytes once, 16 a thread; bytes a multiple of 16. sink: 4 bytes, never written in fact.
 */
cudaError_t hx_k_read(const void *p, size_t bytes, int n_blocks, uint32_t *sink, cudaStream_t s);
/* Reproducible bf16 values in [-1, 1). */
cudaError_t hx_k_fill_bf16(void *p, size_t n, uint64_t seed, cudaStream_t s);

/* --- memory.cu ------------------------------------------------------------------------------ */

#define HX_SEGMENT_BYTES ((size_t)64 << 20)
#define HX_SEGMENT_WORDS (HX_SEGMENT_BYTES / 8)

/* How an index becomes a place. The product uses the identity (fold_from == fold_to); a fold sends
 * the chosen granules of [fold_from, fold_to) fold_delta words lower, as faulty address decoding
 * does. Only the self-test of the kernels and the tests fold. */
struct hx_mem_map {
    uint64_t fold_from, fold_to; /* words */
    uint64_t fold_delta;         /* words */
    uint64_t granule;            /* words, a power of two; 0 counts as 1 */
    uint32_t every;              /* only each every-th granule folds; 0 counts as 1 */
};

enum hx_pattern_kind {
    HX_PATTERN_TAG,      /* invertible mix of index and seed */
    HX_PATTERN_CONSTANT, /* seed itself */
    HX_PATTERN_ADDRESS,  /* complement of the index, xor seed */
    HX_PATTERN_WALK      /* one bit set, moving with the index; seed is the shift */
};

struct hx_pattern {
    enum hx_pattern_kind kind;
    uint64_t seed;
};

/* Counters of a check, in device memory, zero at the start except the first_* (all ones). */
struct hx_mem_count {
    unsigned long long mismatches;
    unsigned long long aliases;     /* tags only: the word found belongs to another index */
    unsigned long long first_index; /* lowest index with a wrong word */
    unsigned long long first_alias; /* lowest index with an alias */
};

/* segments [n]: device pointers, in device memory, of the segments of HX_SEGMENT_BYTES that index
 * space is made of. Words [from, to) are written or checked. blocks: NULL, or one byte for each
 * 2 MiB of index space, set to 1 where a word was wrong. n_words: end of index space (tags that
 * decode below it are aliases). */
cudaError_t hx_k_mem_fill(uint64_t *const *segments, const struct hx_mem_map *map, uint64_t from,
                          uint64_t to, struct hx_pattern pattern, cudaStream_t s);
cudaError_t hx_k_mem_check(uint64_t *const *segments, const struct hx_mem_map *map, uint64_t from,
                           uint64_t to, struct hx_pattern pattern, uint64_t n_words,
                           struct hx_mem_count *count, uint8_t *blocks, cudaStream_t s);
/* The pattern's word at an index, and the index whose tag a word is (any word decodes). */
uint64_t hx_pattern_word(struct hx_pattern pattern, uint64_t index);
uint64_t hx_pattern_tag_index(uint64_t word, uint64_t seed);

/* Adds to *count how many 8-byte words differ; bytes a multiple of 8. */
cudaError_t hx_k_differ(const void *a, const void *b, size_t bytes, unsigned long long *count,
                        cudaStream_t s);

/* --- peer.cu -------------------------------------------------------------------------------- */

/* Bytes of a content test: each is odd and below 128, so neither zero nor the poison occurs. */
#define HX_POISON_BYTE 0xA5
cudaError_t hx_k_content_fill(void *p, size_t bytes, uint64_t seed, cudaStream_t s);
uint8_t hx_content_byte(size_t offset, uint64_t seed);
/* 64 bits of content at word index (bytes 8*index..8*index+7, little endian). */
uint64_t hx_content_word(uint64_t index, uint64_t seed);
/* Plain loads from one address, plain stores to the other, any size and alignment of 1 byte. */
cudaError_t hx_k_copy(void *to, const void *from, size_t bytes, cudaStream_t s);
/* Holds the stream until *gate (mapped host memory) is not zero, at most timeout_ns. */
cudaError_t hx_k_gate(const uint32_t *gate, uint64_t timeout_ns, cudaStream_t s);
/* Keeps one thread busy for that long. */
cudaError_t hx_k_delay(uint64_t ns, cudaStream_t s);
/* One side of a ping-pong of n turns: waits for own >= t, then writes peer = t. The starter writes
 * first. done [1]: turns completed; short of n after a wait of timeout_ns. Flags are zero at start.
 */
cudaError_t hx_k_ping_pong(uint32_t *own, uint32_t *peer, bool starter, uint32_t n, uint32_t *done,
                           uint64_t timeout_ns, cudaStream_t s);
/* n stores of 4 bytes, each followed by a system-wide fence. */
cudaError_t hx_k_store_latency(uint32_t *peer, uint32_t n, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
