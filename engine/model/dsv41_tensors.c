/* The tensor table of DeepSeek-V4.1 (spec model.md section 2): names, shapes, formats, splits.
 * Loader, planner, downloader and the synthetic model all read it. */
#include <stdio.h>
#include <string.h>

#include "model/desc.h"

#define DENSE  (1u << HX_FORMAT_DENSE)
#define FP8    (1u << HX_FORMAT_FP8)
#define EXPERT (1u << HX_FORMAT_FP4 | 1u << HX_FORMAT_FP8 | 1u << HX_FORMAT_EXL3)

/* ---- shapes
 * ------------------------------------------------------------------------------------------ */

#define SHAPE(name, out, in)                                                                       \
    static void name(const struct hx_hparams *h, int layer, int64_t *n_out, int64_t *n_in)         \
    {                                                                                              \
        (void)layer;                                                                               \
        (void)h;                                                                                   \
        *n_out = (out);                                                                            \
        *n_in = (in);                                                                              \
    }

static int64_t n_expert(const struct hx_hparams *h, int layer)
{
    return layer < h->n_layer ? h->n_expert : h->draft_n_expert;
}

SHAPE(vocab_embd, h->n_vocab, h->n_embd)
SHAPE(vec_embd, 1, h->n_embd)
SHAPE(wq_a, h->q_lora, h->n_embd)
SHAPE(wq_b, (int64_t)h->n_head * h->head_dim, h->q_lora)
SHAPE(head_embd, h->head_dim, h->n_embd)
SHAPE(wo_a, (int64_t)h->o_groups * h->o_lora, (int64_t)h->n_head * h->head_dim / h->o_groups)
SHAPE(wo_b, h->n_embd, (int64_t)h->o_groups * h->o_lora)
SHAPE(vec_q_lora, 1, h->q_lora)
SHAPE(vec_head_dim, 1, h->head_dim)
SHAPE(vec_n_head, 1, h->n_head)
SHAPE(hc_fn, (2 + h->hc_mult) * h->hc_mult, (int64_t)h->hc_mult * h->n_embd)
SHAPE(hc_base, 1, (2 + h->hc_mult) * h->hc_mult)
SHAPE(vec_3, 1, 3)
SHAPE(gate, n_expert(h, layer), h->n_embd)
SHAPE(vec_expert, 1, n_expert(h, layer))
SHAPE(ffn_up, h->n_ff, h->n_embd)
SHAPE(ffn_down, h->n_embd, h->n_ff)
SHAPE(index_wq_b, (int64_t)h->index_n_head * h->index_head_dim, h->q_lora)
SHAPE(index_weights, h->index_n_head, h->n_embd)
SHAPE(index_wk, h->index_head_dim, h->head_dim)
SHAPE(vec_index, 1, h->index_head_dim)
SHAPE(engram_wkv, (int64_t)(h->hc_mult + 1) * h->n_embd,
      (int64_t)(h->engram_ngram - 1) * h->engram_n_head * h->engram_dim)
SHAPE(engram_qk, h->hc_mult, h->n_embd)
SHAPE(main_proj, h->n_embd, (int64_t)h->n_target * h->n_embd)
SHAPE(markov, h->n_vocab, h->markov_rank)
SHAPE(confidence, 1, (int64_t)h->n_embd + h->markov_rank)

static void engram_table(const struct hx_hparams *h, int layer, int64_t *n_out, int64_t *n_in)
{
    *n_out = 0;
    *n_in = h->engram_dim;
    for (int i = 0; i < h->n_engram; i++) {
        if (h->engram_layer[i] == layer)
            *n_out = h->engram_rows[i];
    }
}

/* ---- presence
 * ---------------------------------------------------------------------------------------- */

#define PRESENT(name, condition)                                                                   \
    static bool name(const struct hx_hparams *h, const struct hx_maps *m, int il)                  \
    {                                                                                              \
        (void)h;                                                                                   \
        (void)m;                                                                                   \
        return (condition);                                                                        \
    }

PRESENT(index_source, m->is_index_source[il])
PRESENT(kv_source, m->is_kv_source[il])
PRESENT(gated_source, m->is_kv_source[il] && h->ratio[il] > 1)
PRESENT(engram_layer, m->engram_slot[il] >= 0)
PRESENT(first_draft, il == h->n_layer)
PRESENT(last_draft, il == h->n_layer + h->n_draft_layer - 1)

/* ---- the table
 * --------------------------------------------------------------------------------------- */

#define G   HX_SCOPE_GLOBAL
#define L   HX_SCOPE_BACKBONE
#define K   HX_SCOPE_BLOCK
#define D   HX_SCOPE_DRAFT
#define DEV HX_HOME_DEVICE
#define BARE(role, scope, name, present, shape, dtype, split)                                      \
    {                                                                                              \
        role, scope, HX_NAME_BARE, name, present, shape, false, DENSE, dtype, split, DEV           \
    }
#define LINEAR(role, scope, name, present, shape, split)                                           \
    {                                                                                              \
        role, scope, HX_NAME_LINEAR, name, present, shape, false, FP8, HX_DTYPE_MAX, split, DEV    \
    }
#define ROUTED(role, name, shape)                                                                  \
    {                                                                                              \
        role, K, HX_NAME_LINEAR, name, NULL, shape, true, EXPERT, HX_DTYPE_MAX, HX_SPLIT_EXPERT,   \
            DEV                                                                                    \
    }

const struct hx_tensor_spec hx_tensor_table[] = {
    BARE(HX_T_EMBED, G, "embed.weight", NULL, vocab_embd, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_HEAD, G, "head.weight", NULL, vocab_embd, HX_DTYPE_BF16, HX_SPLIT_ROW),
    BARE(HX_T_NORM, G, "norm.weight", NULL, vec_embd, HX_DTYPE_BF16, HX_SPLIT_NONE),

    LINEAR(HX_T_ATTN_WQ_A, K, "attn.wq_a", NULL, wq_a, HX_SPLIT_NONE),
    LINEAR(HX_T_ATTN_WQ_B, K, "attn.wq_b", NULL, wq_b, HX_SPLIT_ROW),
    LINEAR(HX_T_ATTN_WKV, K, "attn.wkv", NULL, head_embd, HX_SPLIT_NONE),
    LINEAR(HX_T_ATTN_WO_A, K, "attn.wo_a", NULL, wo_a, HX_SPLIT_ROW),
    LINEAR(HX_T_ATTN_WO_B, K, "attn.wo_b", NULL, wo_b, HX_SPLIT_COLUMN),
    BARE(HX_T_ATTN_Q_NORM, K, "attn.q_norm.weight", NULL, vec_q_lora, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_ATTN_KV_NORM, K, "attn.kv_norm.weight", NULL, vec_head_dim, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_ATTN_SINK, K, "attn.attn_sink", NULL, vec_n_head, HX_DTYPE_F32, HX_SPLIT_ROW),
    BARE(HX_T_ATTN_NORM, K, "attn_norm.weight", NULL, vec_embd, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_FFN_NORM, K, "ffn_norm.weight", NULL, vec_embd, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_HC_ATTN_FN, K, "hc_attn_fn", NULL, hc_fn, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_HC_ATTN_BASE, K, "hc_attn_base", NULL, hc_base, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_HC_ATTN_SCALE, K, "hc_attn_scale", NULL, vec_3, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_HC_FFN_FN, K, "hc_ffn_fn", NULL, hc_fn, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_HC_FFN_BASE, K, "hc_ffn_base", NULL, hc_base, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_HC_FFN_SCALE, K, "hc_ffn_scale", NULL, vec_3, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_GATE, K, "ffn.gate.weight", NULL, gate, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_GATE_BIAS, K, "ffn.gate.bias", NULL, vec_expert, HX_DTYPE_F32, HX_SPLIT_NONE),
    BARE(HX_T_GATE_BIAS_VL, K, "ffn.gate.bias_vl", NULL, vec_expert, HX_DTYPE_F32, HX_SPLIT_NONE),
    ROUTED(HX_T_EXPERT_W1, "ffn.experts.%d.w1", ffn_up),
    ROUTED(HX_T_EXPERT_W2, "ffn.experts.%d.w2", ffn_down),
    ROUTED(HX_T_EXPERT_W3, "ffn.experts.%d.w3", ffn_up),
    LINEAR(HX_T_SHARED_W1, K, "ffn.shared_experts.w1", NULL, ffn_up, HX_SPLIT_ROW),
    LINEAR(HX_T_SHARED_W2, K, "ffn.shared_experts.w2", NULL, ffn_down, HX_SPLIT_COLUMN),
    LINEAR(HX_T_SHARED_W3, K, "ffn.shared_experts.w3", NULL, ffn_up, HX_SPLIT_ROW),

    LINEAR(HX_T_INDEX_WQ_B, L, "attn.indexer.wq_b", index_source, index_wq_b, HX_SPLIT_NONE),
    BARE(HX_T_INDEX_WEIGHTS, L, "attn.indexer.weights_proj.weight", index_source, index_weights,
         HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_INDEX_WK, L, "attn.indexer.wk.weight", kv_source, index_wk, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_INDEX_K_NORM, L, "attn.indexer.k_norm.weight", kv_source, vec_index, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_COMP_WKV, L, "attn.compressor.wkv.weight", kv_source, head_embd, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_COMP_WGATE, L, "attn.compressor.wgate.weight", gated_source, head_embd, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_COMP_NORM, L, "attn.compressor.norm.weight", kv_source, vec_head_dim, HX_DTYPE_BF16,
         HX_SPLIT_NONE),

    {HX_T_ENGRAM_EMBED, L, HX_NAME_LINEAR, "engram.embed", engram_layer, engram_table, false, FP8,
     HX_DTYPE_MAX, HX_SPLIT_NONE, HX_HOME_NVME},
    LINEAR(HX_T_ENGRAM_WKV, L, "engram.wkv", engram_layer, engram_wkv, HX_SPLIT_NONE),
    BARE(HX_T_ENGRAM_Q, L, "engram.q_weight", engram_layer, engram_qk, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_ENGRAM_K, L, "engram.k_weight", engram_layer, engram_qk, HX_DTYPE_BF16,
         HX_SPLIT_NONE),

    LINEAR(HX_T_MAIN_PROJ, D, "main_proj", first_draft, main_proj, HX_SPLIT_NONE),
    BARE(HX_T_MAIN_NORM, D, "main_norm.weight", first_draft, vec_embd, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_DRAFT_NORM, D, "norm.weight", last_draft, vec_embd, HX_DTYPE_BF16, HX_SPLIT_NONE),
    BARE(HX_T_MARKOV_EMBED, D, "markov_head.embed.weight", last_draft, markov, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
    BARE(HX_T_MARKOV_HEAD, D, "markov_head.head.weight", last_draft, markov, HX_DTYPE_BF16,
         HX_SPLIT_ROW),
    BARE(HX_T_CONFIDENCE, D, "confidence_head.proj.weight", last_draft, confidence, HX_DTYPE_BF16,
         HX_SPLIT_NONE),
};

const int hx_tensor_table_len = sizeof(hx_tensor_table) / sizeof(hx_tensor_table[0]);

bool hx_tensor_is_vision(const char *name)
{
    static const char *const prefix[] = {"vision.", "aligner.", "image_start", "image_end",
                                         "image_newline"};
    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++) {
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return true;
    }
    return false;
}

static int visit(const struct hx_hparams *h, const struct hx_tensor_spec *spec, int layer,
                 int (*fn)(void *user, const struct hx_tensor_need *need), void *user)
{
    struct hx_tensor_need need = {.spec = spec, .layer = layer, .expert = -1};
    char prefix[32] = "";
    if (layer >= h->n_layer)
        snprintf(prefix, sizeof(prefix), "mtp.%d.", layer - h->n_layer);
    else if (layer >= 0)
        snprintf(prefix, sizeof(prefix), "layers.%d.", layer);
    spec->shape(h, layer, &need.n_out, &need.n_in);
    int64_t n = spec->per_expert ? n_expert(h, layer) : 1;
    const char *mark = strstr(spec->name, "%d");
    for (int e = 0; e < n; e++) {
        if (spec->per_expert) {
            need.expert = e;
            snprintf(need.name, sizeof(need.name), "%s%.*s%d%s", prefix, (int)(mark - spec->name),
                     spec->name, e, mark + 2);
        } else {
            snprintf(need.name, sizeof(need.name), "%s%s", prefix, spec->name);
        }
        int r = fn(user, &need);
        if (r != 0)
            return r;
    }
    return 0;
}

int hx_tensors_each(const struct hx_hparams *h, const struct hx_maps *maps,
                    int (*fn)(void *user, const struct hx_tensor_need *need), void *user)
{
    for (int i = 0; i < hx_tensor_table_len; i++) {
        const struct hx_tensor_spec *spec = &hx_tensor_table[i];
        int first = spec->scope == HX_SCOPE_DRAFT ? h->n_layer : 0;
        int end = spec->scope == HX_SCOPE_BACKBONE ? h->n_layer : h->n_layer + h->n_draft_layer;
        if (spec->scope == HX_SCOPE_GLOBAL) {
            first = -1;
            end = 0;
        }
        for (int il = first; il < end; il++) {
            if (spec->present && !spec->present(h, maps, il))
                continue;
            int r = visit(h, spec, il, fn, user);
            if (r != 0)
                return r;
        }
    }
    return 0;
}
