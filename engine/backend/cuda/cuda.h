/* Inside of the CUDA back end: one device, its stream, its working memory. */
#ifndef HX_BACKEND_CUDA_CUDA_H
#define HX_BACKEND_CUDA_CUDA_H

#include "backend/cuda/kernels/launch.h"
#include "backend/kernels.h"

/* The entries of a table of experts in device memory, known by the host's table. */
struct hx_cuda_table {
    const struct hx_weight *const *key;
    struct hx_cuda_choice choice;
    struct hx_cuda_table *next;
};

/* Where blocks of a launch meet: a grid's barrier, counters, barriers of index rows, 64-bit words
 * of the best of a row, barriers of rows of attention. */
#define HX_CUDA_INDEX_BARRIERS (2 + HX_CUDA_COUNTERS)
#define HX_CUDA_BEST_WORDS     (HX_CUDA_INDEX_BARRIERS + 2 * HX_CUDA_INDEX_TILE)
#define HX_CUDA_ATTEND_WORDS   (HX_CUDA_BEST_WORDS + 2 * HX_CUDA_BEST_ROWS)
#define HX_CUDA_MEETING_WORDS  (HX_CUDA_ATTEND_WORDS + HX_CUDA_COUNTERS)

#define HX_CUDA_SITE_ROOM ((size_t)2 << 20) /* of HX_CUDA_SCRATCH: sums of a site of few rows */

struct hx_device {
    int index;
    int n_sm;
    bool exact; /* plain kernels only */
    cudaStream_t stream;
    cudaStream_t side;        /* what runs beside it for a while */
    cudaEvent_t fork, joined; /* of the two */
    const void *forked;       /* rows that are there at the last fork, NULL: none */
    uint8_t *memory;          /* device: [HX_CUDA_SCRATCH], the site's room and scratch */
    uint8_t *site_room;       /* sums of mix */
    struct hx_cuda_mix mix;   /* coefficients that are still to be made; n_row 0: none */
    uint8_t *scratch;         /* [scratch_size] */
    size_t scratch_size;
    size_t used;
    uint32_t *counters; /* device: HX_CUDA_MEETING_WORDS, all zero at first */
    uint32_t *fault;    /* host, mapped: enum hx_cuda_fault */
    uint32_t *fault_dev;
    struct hx_cuda_table *tables;
    char name[128];
};

/* exact: without those that do several things at once. */
extern const struct hx_kernels hx_cuda_kernels, hx_cuda_exact_kernels;

/* 0, or -EIO (device lost or a fault of ours: -ENODEV, -ENOMEM) with what was done and CUDA's
 * words. */
int hx_cuda_check(cudaError_t e, const char *what, struct hx_error *err);
/* Working memory until the next hx_cuda_scratch_reset; NULL and -ENOMEM in err when it is used up.
 */
void *hx_cuda_scratch(struct hx_device *dev, size_t n, struct hx_error *err);
void hx_cuda_scratch_reset(struct hx_device *dev, size_t mark);
/* Makes the coefficients that are still to be made, before anybody reads or moves them. */
int hx_cuda_settle(struct hx_device *dev, struct hx_error *err);

struct hx_cuda_weight hx_cuda_weight(const struct hx_weight *w);
/* One weight, or the experts of a layer by a device list of choices. The table is made at the first
 * call for a host table (before anything is captured) and lives as long as the device. */
struct hx_cuda_choice hx_cuda_choice_one(const struct hx_weight *w);
int hx_cuda_choice_of(struct hx_device *dev, const struct hx_weight *const *w, int n,
                      struct hx_cuda_choice *out, struct hx_error *err);

#endif
