/* The released shape, without its files. */
#ifndef TESTS_MODEL_RELEASED_H
#define TESTS_MODEL_RELEASED_H

#include "model/desc.h"

/* The released values as far as placement needs them. */
static inline struct hx_hparams released(void)
{
    struct hx_hparams h = {
        .n_vocab = 129280,
        .n_embd = 5120,
        .n_layer = 40,
        .n_head = 64,
        .head_dim = 512,
        .rope_dim = 64,
        .q_lora = 1280,
        .o_lora = 1024,
        .o_groups = 8,
        .n_kv_source = 4,
        .kv_source_id = {2, 8, 14, 20},
        .n_index_source = 8,
        .index_source_id = {2, 8, 14, 20, 24, 28, 32, 36},
        .index_n_head = 32,
        .index_head_dim = 128,
        .index_topk = 512,
        .candidate_source = 20,
        .candidate_blocks = 2048,
        .candidate_block = 8,
        .n_expert = 384,
        .n_expert_used = 6,
        .n_ff = 2304,
        .hc_mult = 4,
        .n_engram = 2,
        .engram_layer = {1, 14},
        .engram_rows = {384006168, 384016682},
        .engram_ngram = 4,
        .engram_n_head = 8,
        .engram_dim = 256,
        .n_draft_layer = 3,
        .n_target = 3,
        .target_layer = {37, 38, 39},
        .markov_rank = 256,
        .draft_n_expert = 128,
        .draft_n_expert_used = 3,
        .vision = {.n_layer = 32, .n_embd = 1024, .n_ff = 2816, .patch = 14, .downsample = 3}};
    for (int i = 2; i < 40; i++)
        h.ratio[i] = i < 20 ? 2 : 1;
    return h;
}

#endif
