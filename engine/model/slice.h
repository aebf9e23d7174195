/* What a rank has of every weight under tensor parallelism (spec model.md 8.1): heads, output
 * groups, vocabulary rows, and inner columns of the experts in blocks of 128, rotated by expert
 * (decisions.md 8). Loader, memory plan and synthetic model cut by these rules alone. */
#ifndef HX_MODEL_SLICE_H
#define HX_MODEL_SLICE_H

#include "model/desc.h"

#define HX_EXPERT_BLOCK 128 /* inner columns; no smaller piece can be rotated (spec exl3.md 9) */

struct hx_slice {
    int rank, n_ranks; /* n_ranks 0 or 1: the whole model */
};

/* Elements from to to - 1 of dimension dim of a stored part; dim -1: all of it. */
struct hx_cut {
    int dim;
    int64_t from, to;
};

/* -EINVAL: the rank is none of the ranks, or the ranks do not divide heads, output groups or
 * vocabulary. */
int hx_slice_check(const struct hx_slice *s, const struct hx_hparams *hp,
                   struct hx_error *err) HX_MUST;
/* The rank's share of `whole` (format and shapes of parts; data is not looked at): cut says what of
 * each part, out has the shapes that are left, without data. An expert of which the rank has no
 * block has a width of 0. -EINVAL: the ranks do not divide the weight (named). */
int hx_slice_weight(const struct hx_slice *s, const struct hx_tensor_need *need,
                    const struct hx_weight *whole, struct hx_weight *out,
                    struct hx_cut cut[HX_PART_MAX], struct hx_error *err) HX_MUST;
/* Bytes of what a cut leaves of t, and the bytes themselves, packed. */
size_t hx_cut_bytes(const struct hx_tensor *t, const struct hx_cut *cut);
void hx_cut_copy(const struct hx_tensor *t, const struct hx_cut *cut, const void *whole, void *out);

/* Blocks of 128 inner columns of expert e on rank r of n, of n_blocks in all. */
int hx_slice_expert_blocks(int n_blocks, int n_ranks, int rank, int expert);

/* The form that a weight of this description is stored in: the release's own (FP8 matrices, FP4
 * experts), or EXL3 experts of so many bits with bits > 0. No data. */
struct hx_weight hx_need_weight(const struct hx_tensor_need *need, int bits);

#endif
