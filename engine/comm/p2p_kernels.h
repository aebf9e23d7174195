/* Push all-reduce between ranks that see each other's memory: kernels for decode-size messages.
 *
 * Every rank owns one receive area and one set of flag words; peers only ever write there, no rank
 * ever reads a peer's memory (pull kernels never complete on some boards). Two phases: each rank
 * pushes slice p of its partial to rank p, which adds in float32 in rank order and rounds once, so
 * all ranks hold the same bits; then it pushes the finished slice to everybody. Cost 2 t0 + 1.5 S/B
 * for four ranks. The areas may lie in device memory (peer access) or in pinned host memory (the
 * host-staged way): the kernel is the same. */
#ifndef HX_COMM_P2P_KERNELS_H
#define HX_COMM_P2P_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HX_P2P_MAX_RANKS  8
#define HX_P2P_MAX_BLOCKS 32

enum hx_p2p_type { HX_P2P_BF16, HX_P2P_INT32 };

enum { HX_P2P_EPOCH, HX_P2P_FINISHED, HX_P2P_TIMED_OUT, HX_P2P_STATE_WORDS };

/* What one rank needs; pointers as this rank's device sees them, passed to the kernel by value. */
struct hx_p2p_rank {
    uint8_t *area[HX_P2P_MAX_RANKS];   /* [2 parities][2 phases][area_bytes] of each rank */
    uint32_t *flags[HX_P2P_MAX_RANKS]; /* [2 phases][n_ranks][HX_P2P_MAX_BLOCKS], zero at start */
    uint32_t *state;   /* own device memory, HX_P2P_STATE_WORDS words, zero at start */
    size_t area_bytes; /* hx_p2p_area_bytes(largest message) */
    int n_ranks;       /* 2..HX_P2P_MAX_RANKS */
    int rank;
};

/* Bytes of one phase of a receive area for messages of up to that many bytes. */
size_t hx_p2p_area_bytes(size_t message_bytes);

/* x [bytes] on this rank's device becomes the sum over all ranks. bytes: a multiple of 16 that fits
 * the area; every rank must launch the same sequence of messages. The launch can be captured. A
 * rank that waits longer than timeout_ns sets state[HX_P2P_TIMED_OUT] and returns, and so do all
 * later launches on that state; x is then undefined. */
cudaError_t hx_p2p_all_reduce(const struct hx_p2p_rank *r, void *x, size_t bytes,
                              enum hx_p2p_type type, uint64_t timeout_ns, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
