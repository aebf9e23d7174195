/* config.json of deepseek_v41: one row per key, then the rules between keys. Every finding is one
 * line with key, found and expected. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "model/desc.h"

enum section { TOP, TEXT, ROPE, VISION, QUANT, SECTION_MAX };
static const char *const section_prefix[SECTION_MAX] = {
    "", "text_config.", "text_config.rope_scaling.", "vision_config.", "quantization_config."};

enum kind { INT, INT64, REAL, BOOL, LIST, WORD };

#define LIST_MAX HX_MAX_LAYERS

struct row {
    enum section section;
    const char *key;
    enum kind kind;
    size_t offset;       /* of the value in struct hx_hparams; WORD: unused */
    size_t count_offset; /* LIST: of the element count; 0: none kept */
    double released;     /* numbers */
    double min, max;     /* numbers and list elements */
    int list_max;        /* LIST */
    const char *text;    /* WORD: the only value; LIST: released values */
    bool optional;
};

#define O(field) offsetof(struct hx_hparams, field)
#define N(sec, key, field, rel, lo, hi)                                                            \
    {                                                                                              \
        sec, key, INT, O(field), 0, rel, lo, hi, 0, NULL, false                                    \
    }
#define N64(sec, key, field, rel, lo, hi)                                                          \
    {                                                                                              \
        sec, key, INT64, O(field), 0, rel, lo, hi, 0, NULL, false                                  \
    }
#define R(sec, key, field, rel, lo, hi)                                                            \
    {                                                                                              \
        sec, key, REAL, O(field), 0, rel, lo, hi, 0, NULL, false                                   \
    }
#define B(sec, key, field, rel)                                                                    \
    {                                                                                              \
        sec, key, BOOL, O(field), 0, rel, 0, 1, 0, NULL, false                                     \
    }
#define W(sec, key, text)                                                                          \
    {                                                                                              \
        sec, key, WORD, 0, 0, 0, 0, 0, 0, text, false                                              \
    }
#define L(sec, key, field, count, lo, hi, most, rel)                                               \
    {                                                                                              \
        sec, key, LIST, O(field), count, 0, lo, hi, most, rel, false                               \
    }

static const struct row rows[] = {
    W(TOP, "model_type", "deepseek_v41"),
    N(TOP, "bos_token_id", bos, 0, 0, 1e9),
    N(TOP, "eos_token_id", eos, 1, 0, 1e9),
    N(TOP, "pad_token_id", pad, 2, 0, 1e9),
    N(TOP, "image_token_id", image_token, 129264, 0, 1e9),
    W(QUANT, "quant_method", "fp8"),
    W(QUANT, "scale_fmt", "ue8m0"),
    W(TEXT, "model_type", "deepseek_v41_text"),
    W(TEXT, "hidden_act", "silu"),
    W(TEXT, "scoring_func", "sqrtsoftplus"),
    W(TEXT, "topk_method", "noaux_tc"),
    W(ROPE, "rope_type", "yarn"),
    N(TEXT, "vocab_size", n_vocab, 129280, 1, 1 << 24),
    N(TEXT, "hidden_size", n_embd, 5120, 32, 1 << 16),
    N(TEXT, "num_hidden_layers", n_layer, 40, 1, HX_MAX_LAYERS - 8),
    N(TEXT, "num_attention_heads", n_head, 64, 1, 1024),
    N(TEXT, "head_dim", head_dim, 512, 32, 4096),
    N(TEXT, "qk_rope_head_dim", rope_dim, 64, 2, 4096),
    N(TEXT, "q_lora_rank", q_lora, 1280, 32, 1 << 16),
    N(TEXT, "o_lora_rank", o_lora, 1024, 32, 1 << 16),
    N(TEXT, "o_groups", o_groups, 8, 1, 1024),
    R(TEXT, "rms_norm_eps", rms_eps, 1e-20, 1e-30, 1e-3),
    N64(TEXT, "max_position_embeddings", max_positions, 1048576, 1, 16777216),
    R(TEXT, "rope_theta", rope_theta, 10000, 1, 1e12),
    R(TEXT, "compress_rope_theta", compress_rope_theta, 160000, 1, 1e12),
    R(ROPE, "factor", yarn_factor, 16, 1, 1e6),
    R(ROPE, "beta_fast", yarn_beta_fast, 32, 1e-6, 1e6),
    R(ROPE, "beta_slow", yarn_beta_slow, 1, 1e-6, 1e6),
    N64(ROPE, "original_max_position_embeddings", yarn_original, 65536, 1, 16777216),
    N(TEXT, "sliding_window", window, 128, 1, 65536),
    L(TEXT, "compress_ratios", ratio, 0, 0, 8, LIST_MAX,
      "0 0 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 0 0 0"),
    L(TEXT, "kv_source_layer_ids", kv_source_id, O(n_kv_source), 0, LIST_MAX, LIST_MAX,
      "2 8 14 20"),
    L(TEXT, "index_source_layer_ids", index_source_id, O(n_index_source), 0, LIST_MAX, LIST_MAX,
      "2 8 14 20 24 28 32 36"),
    N(TEXT, "index_n_heads", index_n_head, 32, 1, 1024),
    N(TEXT, "index_head_dim", index_head_dim, 128, 32, 4096),
    N(TEXT, "index_topk", index_topk, 512, 1, 65536),
    N(TEXT, "candidate_source_layer_id", candidate_source, 20, -1, LIST_MAX),
    N(TEXT, "candidate_topk_blocks", candidate_blocks, 2048, 1, 1 << 20),
    N(TEXT, "candidate_block_size", candidate_block, 8, 1, 4096),
    N(TEXT, "n_routed_experts", n_expert, 384, 1, 4096),
    N(TEXT, "num_experts_per_tok", n_expert_used, 6, 1, 64),
    N(TEXT, "moe_intermediate_size", n_ff, 2304, 32, 1 << 17),
    R(TEXT, "routed_scaling_factor", route_scale, 1.5, 1e-6, 1e6),
    B(TEXT, "norm_topk_prob", norm_topk_prob, 1),
    R(TEXT, "swiglu_limit", swiglu_limit, 10, 0, 1e6),
    {TEXT, "gate_temp", REAL, O(gate_temp), 0, 1, 1e-6, 1e6, 0, NULL, true},
    N(TEXT, "hc_mult", hc_mult, 4, 1, HX_MAX_HC),
    N(TEXT, "hc_sinkhorn_iters", hc_iters, 20, 1, 1000),
    R(TEXT, "hc_eps", hc_eps, 1e-6, 0, 1),
    L(TEXT, "engram_layer_ids", engram_layer, O(n_engram), 0, LIST_MAX, HX_MAX_ENGRAM, "1 14"),
    L(TEXT, "engram_num_embeddings", engram_rows, 0, 1, 1e12, HX_MAX_ENGRAM, "384006168 384016682"),
    N(TEXT, "engram_max_ngram_size", engram_ngram, 4, 2, 8),
    N(TEXT, "engram_n_heads", engram_n_head, 8, 1, 32),
    N(TEXT, "engram_head_dim", engram_dim, 256, 32, 4096),
    N64(TEXT, "engram_vocab_size", engram_vocab, 16000000, 1, 1e11),
    N(TEXT, "engram_compressed_vocab_size", engram_compressed, 99092, 1, 1 << 24),
    N(TEXT, "engram_pad_token_id", engram_pad, 2, 0, 1 << 24),
    N(TEXT, "num_nextn_predict_layers", n_draft_layer, 3, 0, 8),
    N(TEXT, "dspark_block_size", draft_block, 5, 1, 16),
    N(TEXT, "dspark_noise_token_id", draft_noise_token, 128799, 0, 1 << 24),
    L(TEXT, "dspark_target_layer_ids", target_layer, O(n_target), 0, LIST_MAX, HX_MAX_TARGETS,
      "37 38 39"),
    N(TEXT, "dspark_markov_rank", markov_rank, 256, 1, 65536),
    N(TEXT, "dspark_n_routed_experts", draft_n_expert, 128, 1, 4096),
    N(TEXT, "dspark_num_experts_per_tok", draft_n_expert_used, 3, 1, 64),
    N(VISION, "num_hidden_layers", vision.n_layer, 32, 0, 256),
    N(VISION, "hidden_size", vision.n_embd, 1024, 1, 65536),
    N(VISION, "num_attention_heads", vision.n_head, 16, 1, 1024),
    N(VISION, "intermediate_size", vision.n_ff, 2816, 1, 1 << 20),
    N(VISION, "patch_size", vision.patch, 14, 1, 1024),
    R(VISION, "rope_theta", vision.rope_theta, 10000, 1, 1e12),
    N(VISION, "downsample_ratio", vision.downsample, 3, 1, 64),
    N(VISION, "max_image_tokens", vision.max_image_tokens, 1024, 1, 1 << 20),
    N64(VISION, "min_pixels", vision.min_pixels, 295936, 1, 1e9),
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* "key: found X, expected Y" */
static int mismatch(struct hx_error *err, const struct row *row, struct hx_jv v,
                    const char *expected)
{
    char found[64];
    size_t len;
    const char *s = hx_jv_str(v, &len);
    if (s)
        snprintf(found, sizeof(found), "'%.*s'", len > 40 ? 40 : (int)len, s);
    else if ((s = hx_jv_number_text(v, &len)))
        snprintf(found, sizeof(found), "%.*s", len > 40 ? 40 : (int)len, s);
    else
        snprintf(found, sizeof(found), "%s", hx_json_type_name(hx_jv_type(v)));
    return hx_fail(err, -EINVAL, "%s%s: found %s, expected %s", section_prefix[row->section],
                   row->key, found, expected);
}

static int store_number(const struct row *row, struct hx_jv v, double lo, double hi, enum kind kind,
                        uint8_t *to, struct hx_error *err)
{
    char expected[96];
    double d;
    int64_t i = 0;
    bool integer = kind != REAL;
    snprintf(expected, sizeof(expected), "%s from %.12g to %.12g",
             integer ? "an integer" : "a number", lo, hi);
    if (integer ? !hx_jv_int64(v, &i) : !hx_jv_double(v, &d))
        return mismatch(err, row, v, expected);
    if (integer)
        d = (double)i;
    if (!(d >= lo && d <= hi))
        return mismatch(err, row, v, expected);
    if (kind == INT)
        *(int *)(void *)to = (int)i;
    else if (kind == INT64)
        *(int64_t *)(void *)to = i;
    else
        *(double *)(void *)to = d;
    return 0;
}

static int store_list(const struct row *row, struct hx_jv v, struct hx_hparams *hp,
                      struct hx_error *err)
{
    char expected[96];
    size_t n = hx_jv_count(v);
    /* 64-bit elements only where the count does not fit an int. */
    bool wide = row->max > 1e9;
    snprintf(expected, sizeof(expected), "a list of at most %d integers from %.12g to %.12g",
             row->list_max, row->min, row->max);
    if (hx_jv_type(v) != HX_JSON_ARRAY || n > (size_t)row->list_max)
        return mismatch(err, row, v, expected);
    uint8_t *to = (uint8_t *)hp + row->offset;
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e)) {
        int r = store_number(row, e, row->min, row->max, wide ? INT64 : INT, to, err);
        if (r < 0)
            return r;
        to += wide ? sizeof(int64_t) : sizeof(int);
    }
    if (row->count_offset)
        *(int *)(void *)((uint8_t *)hp + row->count_offset) = (int)n;
    return 0;
}

static int read_row(const struct row *row, struct hx_jv section, struct hx_hparams *hp,
                    struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(section, row->key);
    uint8_t *to = (uint8_t *)hp + row->offset;
    if (!v.doc && row->optional) {
        *(double *)(void *)to = row->released;
        return 0;
    }
    if (!v.doc)
        return hx_fail(err, -EINVAL, "%s%s: missing", section_prefix[row->section], row->key);
    switch (row->kind) {
    case WORD: {
        char expected[64];
        snprintf(expected, sizeof(expected), "'%s'", row->text);
        return hx_jv_str_is(v, row->text) ? 0 : mismatch(err, row, v, expected);
    }
    case BOOL: return hx_jv_bool(v, (bool *)to) ? 0 : mismatch(err, row, v, "true or false");
    case LIST: return store_list(row, v, hp, err);
    default: return store_number(row, v, row->min, row->max, row->kind, to, err);
    }
}

/* ---- the released size, value by value
 * --------------------------------------------------------------- */

static int check_released_list(const struct row *row, struct hx_jv v, struct hx_error *err)
{
    const char *s = row->text;
    char expected[160];
    snprintf(expected, sizeof(expected), "[%s] (released model)", row->text);
    struct hx_jv e = hx_jv_first(v);
    while (*s) {
        char *end;
        long long want = strtoll(s, &end, 10);
        int64_t got;
        if (!hx_jv_int64(e, &got) || got != want)
            return mismatch(err, row, e.doc ? e : v, expected);
        s = end;
        e = hx_jv_next(e);
    }
    return e.doc ? mismatch(err, row, e, expected) : 0;
}

static int check_released(struct hx_jv sections[], struct hx_error *err)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *row = &rows[i];
        struct hx_jv v = hx_jv_get(sections[row->section], row->key);
        int r = 0;
        if (row->kind == LIST) {
            r = check_released_list(row, v, err);
        } else if (row->kind != WORD && v.doc) {
            double d = 0;
            bool b = false;
            char expected[64];
            if (row->kind == BOOL && hx_jv_bool(v, &b))
                d = b;
            else
                hx_jv_double(v, &d);
            snprintf(expected, sizeof(expected), "%.15g (released model)", row->released);
            if (d != row->released)
                r = mismatch(err, row, v, expected);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

static void store_released_list(const struct row *row, struct hx_hparams *hp)
{
    uint8_t *to = (uint8_t *)hp + row->offset;
    int n = 0;
    char *end;
    for (const char *s = row->text; *s; s = end, n++) {
        long long v = strtoll(s, &end, 10);
        if (row->max > 1e9)
            ((int64_t *)(void *)to)[n] = v;
        else
            ((int *)(void *)to)[n] = (int)v;
    }
    if (row->count_offset)
        *(int *)(void *)((uint8_t *)hp + row->count_offset) = n;
}

void hx_hparams_released(struct hx_hparams *out)
{
    memset(out, 0, sizeof(*out));
    out->released_size = true;
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *row = &rows[i];
        void *to = (uint8_t *)out + row->offset;
        switch (row->kind) {
        case INT: *(int *)to = (int)row->released; break;
        case INT64: *(int64_t *)to = (int64_t)row->released; break;
        case REAL: *(double *)to = row->released; break;
        case BOOL: *(bool *)to = row->released != 0; break;
        case LIST: store_released_list(row, out); break;
        default: break; /* WORD: nothing is kept */
        }
    }
}

/* ---- rules between keys
 * ------------------------------------------------------------------------------ */

#define RULE(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return hx_fail(err, -EINVAL, __VA_ARGS__);                                             \
    } while (0)

static int check_widths(const struct hx_hparams *h, struct hx_error *err)
{
    const struct {
        const char *key;
        int value, multiple;
    } multiple_of[] = {
        {"text_config.hidden_size", h->n_embd, 32},
        {"text_config.head_dim", h->head_dim, 32},
        {"text_config.index_head_dim", h->index_head_dim, 32},
        {"text_config.q_lora_rank", h->q_lora, 32},
        {"text_config.o_lora_rank", h->o_lora, 32},
        {"text_config.moe_intermediate_size", h->n_ff, 32},
        {"text_config.engram_head_dim", h->engram_dim, 32},
        {"text_config.qk_rope_head_dim", h->rope_dim, 2},
        {"text_config.num_attention_heads", h->n_head, h->o_groups},
    };
    for (size_t i = 0; i < sizeof(multiple_of) / sizeof(multiple_of[0]); i++)
        RULE(multiple_of[i].value % multiple_of[i].multiple == 0,
             "%s: found %d, expected a multiple of %d", multiple_of[i].key, multiple_of[i].value,
             multiple_of[i].multiple);
    RULE(h->rope_dim <= h->head_dim && h->rope_dim <= h->index_head_dim,
         "text_config.qk_rope_head_dim: found %d, expected at most head_dim %d and index_head_dim "
         "%d",
         h->rope_dim, h->head_dim, h->index_head_dim);
    RULE(h->n_expert_used <= h->n_expert,
         "text_config.num_experts_per_tok: found %d, expected at most n_routed_experts %d",
         h->n_expert_used, h->n_expert);
    RULE(h->draft_n_expert_used <= h->draft_n_expert,
         "text_config.dspark_num_experts_per_tok: found %d, expected at most "
         "dspark_n_routed_experts %d",
         h->draft_n_expert_used, h->draft_n_expert);
    return 0;
}

static int check_tokens(const struct hx_hparams *h, struct hx_error *err)
{
    const struct {
        const char *key;
        int id;
    } ids[] = {
        {"bos_token_id", h->bos},
        {"eos_token_id", h->eos},
        {"pad_token_id", h->pad},
        {"image_token_id", h->image_token},
        {"text_config.engram_pad_token_id", h->engram_pad},
        {"text_config.dspark_noise_token_id", h->draft_noise_token},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        RULE(ids[i].id < h->n_vocab, "%s: found %d, expected less than vocab_size %d", ids[i].key,
             ids[i].id, h->n_vocab);
    RULE(h->engram_compressed <= h->n_vocab,
         "text_config.engram_compressed_vocab_size: found %d, expected at most vocab_size %d",
         h->engram_compressed, h->n_vocab);
    return 0;
}

static int check_ascending(const char *key, const int *id, int n, int n_layer, struct hx_error *err)
{
    for (int i = 0; i < n; i++) {
        RULE(id[i] < n_layer,
             "text_config.%s: found layer %d, expected less than num_hidden_layers %d", key, id[i],
             n_layer);
        RULE(i == 0 || id[i] > id[i - 1],
             "text_config.%s: found %d after %d, expected ascending layers", key, id[i], id[i - 1]);
    }
    return 0;
}

static int check_layers(const struct hx_hparams *h, int n_ratios, int n_rows, struct hx_error *err)
{
    int want = h->n_layer + h->n_draft_layer;
    RULE(n_ratios == want,
         "text_config.compress_ratios: found %d entries, expected %d (layers + draft layers)",
         n_ratios, want);
    for (int i = h->n_layer; i < want; i++)
        RULE(h->ratio[i] == 0,
             "text_config.compress_ratios: found %d for draft layer %d, expected 0", h->ratio[i],
             i);
    for (int i = 0; i < h->n_layer; i++)
        RULE(h->ratio[i] <= 2,
             "text_config.compress_ratios: found %d for layer %d, expected 0, 1 or 2", h->ratio[i],
             i);
    const struct {
        const char *key;
        const int *id;
        int n;
    } lists[] = {
        {"kv_source_layer_ids", h->kv_source_id, h->n_kv_source},
        {"index_source_layer_ids", h->index_source_id, h->n_index_source},
        {"engram_layer_ids", h->engram_layer, h->n_engram},
        {"dspark_target_layer_ids", h->target_layer, h->n_target},
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        int r = check_ascending(lists[i].key, lists[i].id, lists[i].n, h->n_layer, err);
        if (r < 0)
            return r;
    }
    RULE(n_rows == h->n_engram,
         "text_config.engram_num_embeddings: found %d entries, expected %d (one for each Engram "
         "layer)",
         n_rows, h->n_engram);
    RULE((h->engram_ngram - 1) * h->engram_n_head <= HX_MAX_ENGRAM_COLS,
         "text_config.engram_n_heads: found %d, expected at most %d columns in all",
         h->engram_n_head, HX_MAX_ENGRAM_COLS);
    struct hx_maps maps;
    return hx_maps_derive(h, &maps, err);
}

int hx_hparams_parse(const char *json, size_t len, struct hx_hparams *out, struct hx_error *err)
{
    const struct hx_json_limits limits = {1 << 20, 1 << 16, 32, 0};
    struct hx_json *doc = NULL;
    int r = hx_json_parse(json, len, &limits, &doc, err);
    if (r < 0)
        return r;
    struct hx_jv top = hx_json_root(doc), text = hx_jv_get(top, "text_config");
    struct hx_jv sections[SECTION_MAX] = {top, text, hx_jv_get(text, "rope_scaling"),
                                          hx_jv_get(top, "vision_config"),
                                          hx_jv_get(top, "quantization_config")};
    struct hx_hparams h = {0};
    for (size_t i = 0; r == 0 && i < N_ROWS; i++)
        r = read_row(&rows[i], sections[rows[i].section], &h, err);
    if (r == 0)
        r = check_widths(&h, err);
    if (r == 0)
        r = check_tokens(&h, err);
    if (r == 0)
        r = check_layers(&h, (int)hx_jv_count(hx_jv_get(text, "compress_ratios")),
                         (int)hx_jv_count(hx_jv_get(text, "engram_num_embeddings")), err);
    h.released_size = h.n_embd == 5120 && h.n_layer == 40;
    if (r == 0 && h.released_size)
        r = check_released(sections, err);
    hx_json_free(doc);
    if (r == 0)
        *out = h;
    return r;
}

int hx_hparams_load(const char *model_dir, struct hx_hparams *out, struct hx_error *err)
{
    char *path = hx_path_join(model_dir, "config.json"), *json = NULL;
    size_t len;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_read(path, 1 << 20, &json, &len, err);
    if (r == 0) {
        r = hx_hparams_parse(json, len, out, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    free(json);
    free(path);
    return r;
}
