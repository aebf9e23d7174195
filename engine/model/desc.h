/* The model description: hyper-parameters from config.json, tensor roles and the tensor table.
 * Plain data, no device code: the downloader reads it too. */
#ifndef HX_MODEL_DESC_H
#define HX_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#include "backend/backend.h"

#define HX_MAX_LAYERS      128 /* backbone + draft */
#define HX_MAX_ENGRAM      4
#define HX_MAX_ENGRAM_COLS 64
#define HX_MAX_TARGETS     8
#define HX_MAX_HC          8

struct hx_vision_hparams {
    int n_layer, n_embd, n_head, n_ff, patch, downsample, max_image_tokens;
    int64_t min_pixels;
    double rope_theta;
};

/* Names follow spec model.md section 1; released values in dsv41_hparams.c. */
struct hx_hparams {
    int n_vocab, n_embd, n_layer, n_head, head_dim, rope_dim, q_lora, o_lora, o_groups;
    double rms_eps;
    int64_t max_positions;
    double rope_theta, compress_rope_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int64_t yarn_original;
    int window;
    int ratio[HX_MAX_LAYERS]; /* n_layer + n_draft_layer entries; 0: window only */
    int n_kv_source, kv_source_id[HX_MAX_LAYERS];
    int n_index_source, index_source_id[HX_MAX_LAYERS];
    int index_n_head, index_head_dim, index_topk;
    int candidate_source, candidate_blocks, candidate_block; /* source -1: none */
    int n_expert, n_expert_used, n_ff; /* n_ff: inner width of experts and of the shared expert */
    double route_scale, gate_temp, swiglu_limit;
    bool norm_topk_prob;
    int hc_mult, hc_iters;
    double hc_eps;
    int n_engram, engram_layer[HX_MAX_ENGRAM];
    int64_t engram_rows[HX_MAX_ENGRAM];
    int engram_ngram, engram_n_head, engram_dim;
    int64_t engram_vocab;
    int engram_compressed, engram_pad;
    int n_draft_layer, draft_block, draft_noise_token, n_target, target_layer[HX_MAX_TARGETS];
    int markov_rank, draft_n_expert, draft_n_expert_used;
    int bos, eos, pad, image_token;
    struct hx_vision_hparams vision;
    bool released_size; /* claims the released shape and was checked value by value */
};

/* config.json (released schema, nested text_config). Every inconsistency is one error line: key,
 * found, expected. */
int hx_hparams_parse(const char *json, size_t len, struct hx_hparams *out,
                     struct hx_error *err) HX_MUST;
/* The released model's, without its config.json. */
void hx_hparams_released(struct hx_hparams *out);
int hx_hparams_load(const char *model_dir, struct hx_hparams *out, struct hx_error *err) HX_MUST;

/* Derived layer maps (spec model.md section 1, "layer roles"). */
struct hx_maps {
    int kv_source[HX_MAX_LAYERS]; /* layer whose compressed rows and keys it reads; -1: window only
                                   */
    int topk_source[HX_MAX_LAYERS]; /* layer whose top-k set it reads; -1 */
    bool is_kv_source[HX_MAX_LAYERS], is_index_source[HX_MAX_LAYERS];
    int engram_slot[HX_MAX_LAYERS]; /* index into engram_*; -1 */
    int target_slot[HX_MAX_LAYERS]; /* index into target_layer; -1 */
};
int hx_maps_derive(const struct hx_hparams *hp, struct hx_maps *out, struct hx_error *err) HX_MUST;

enum hx_role {
    HX_T_EMBED,
    HX_T_HEAD,
    HX_T_NORM,
    HX_T_ATTN_WQ_A,
    HX_T_ATTN_WQ_B,
    HX_T_ATTN_WKV,
    HX_T_ATTN_WO_A,
    HX_T_ATTN_WO_B,
    HX_T_ATTN_Q_NORM,
    HX_T_ATTN_KV_NORM,
    HX_T_ATTN_SINK,
    HX_T_ATTN_NORM,
    HX_T_FFN_NORM,
    HX_T_HC_ATTN_FN,
    HX_T_HC_ATTN_BASE,
    HX_T_HC_ATTN_SCALE,
    HX_T_HC_FFN_FN,
    HX_T_HC_FFN_BASE,
    HX_T_HC_FFN_SCALE,
    HX_T_GATE,
    HX_T_GATE_BIAS,
    HX_T_GATE_BIAS_VL,
    HX_T_EXPERT_W1,
    HX_T_EXPERT_W2,
    HX_T_EXPERT_W3,
    HX_T_SHARED_W1,
    HX_T_SHARED_W2,
    HX_T_SHARED_W3,
    HX_T_INDEX_WQ_B,
    HX_T_INDEX_WEIGHTS,
    HX_T_INDEX_WK,
    HX_T_INDEX_K_NORM,
    HX_T_COMP_WKV,
    HX_T_COMP_WGATE,
    HX_T_COMP_NORM,
    HX_T_ENGRAM_EMBED,
    HX_T_ENGRAM_WKV,
    HX_T_ENGRAM_Q,
    HX_T_ENGRAM_K,
    HX_T_MAIN_PROJ,
    HX_T_MAIN_NORM,
    HX_T_DRAFT_NORM,
    HX_T_MARKOV_EMBED,
    HX_T_MARKOV_HEAD,
    HX_T_CONFIDENCE,
    HX_T_MAX
};

/* How tensor parallelism cuts a tensor (spec model.md 8.1). */
enum hx_split {
    HX_SPLIT_NONE,   /* every rank has it whole */
    HX_SPLIT_ROW,    /* output rows */
    HX_SPLIT_COLUMN, /* input columns; partial sums are joined */
    HX_SPLIT_EXPERT, /* 128-column blocks of the inner width, rotated by expert (decisions.md 8) */
    HX_SPLIT_MAX
};
enum hx_home { HX_HOME_DEVICE, HX_HOME_NVME, HX_HOME_UNUSED };

enum hx_scope {
    HX_SCOPE_GLOBAL,   /* name as it stands */
    HX_SCOPE_BACKBONE, /* layers.L. */
    HX_SCOPE_BLOCK,    /* layers.L. and mtp.M. */
    HX_SCOPE_DRAFT,    /* mtp.M. */
};

enum hx_naming {
    HX_NAME_BARE,   /* the tensor's whole name */
    HX_NAME_LINEAR, /* prefix of .weight, .scale, .trellis, ... */
};

/* One row of the model description: a tensor (or packed matrix) that each layer of its scope has.
 */
struct hx_tensor_spec {
    enum hx_role role;
    enum hx_scope scope;
    enum hx_naming naming;
    const char *name; /* behind the layer prefix; %d: the expert */
    bool (*present)(const struct hx_hparams *hp, const struct hx_maps *maps,
                    int layer); /* NULL: always */
    void (*shape)(const struct hx_hparams *hp, int layer, int64_t *n_out, int64_t *n_in);
    bool per_expert;
    uint32_t formats;    /* bits 1 << enum hx_format that may be found */
    enum hx_dtype dtype; /* HX_FORMAT_DENSE */
    enum hx_split split;
    enum hx_home home;
};

extern const struct hx_tensor_spec hx_tensor_table[];
extern const int hx_tensor_table_len;

/* One tensor that a configuration needs. layer: -1 global, draft layers follow the backbone. */
struct hx_tensor_need {
    const struct hx_tensor_spec *spec;
    int layer, expert;
    int64_t n_out, n_in; /* vectors: n_out = 1 */
    char name[160];      /* bare name or prefix */
};
/* Calls fn for every needed tensor, in table and layer order; stops at the first nonzero result. */
int hx_tensors_each(const struct hx_hparams *hp, const struct hx_maps *maps,
                    int (*fn)(void *user, const struct hx_tensor_need *need), void *user);
/* Known names that nothing binds yet: vision tower, aligner, image vectors. */
bool hx_tensor_is_vision(const char *name);

#endif
