/* Folder, configuration, licence, tokenizer and token map of the demo model. */
#include "model/tiny_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/rand.h"

#define MAX_COPY (256u << 20)

/* Ten layers that reach every branch: two plain ones, two ratio-2 sources, reuse with and without
 * Engram, a ratio-1 source that also chooses candidates, and a second choice inside them. The row
 * counts are the sums of the bucket primes from 60 up for 2 heads of 2-, 3- and 4-grams. */
static const char config[] =
    "{\n"
    " \"architectures\": [\"DeepseekV41ForCausalLM\"],\n"
    " \"model_type\": \"deepseek_v41\", \"dtype\": \"bfloat16\",\n"
    " \"bos_token_id\": 0, \"eos_token_id\": 1, \"pad_token_id\": 2, \"image_token_id\": 129264,\n"
    " \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\",\n"
    "  \"weight_block_size\": [32, 32], \"scale_fmt\": \"ue8m0\", \"expert_dtype\": \"fp4\"},\n"
    " \"text_config\": {\n"
    "  \"model_type\": \"deepseek_v41_text\", \"vocab_size\": 129280, \"hidden_size\": 128,\n"
    "  \"moe_intermediate_size\": 128, \"num_hidden_layers\": 10, \"num_attention_heads\": 8,\n"
    "  \"num_key_value_heads\": 1, \"head_dim\": 64, \"qk_rope_head_dim\": 16,\n"
    "  \"q_lora_rank\": 64, \"o_lora_rank\": 32, \"o_groups\": 4, \"hidden_act\": \"silu\",\n"
    "  \"swiglu_limit\": 10.0, \"rms_norm_eps\": 1e-20, \"attention_bias\": false,\n"
    "  \"attention_dropout\": 0.0, \"initializer_range\": 0.02, \"use_cache\": true,\n"
    "  \"tie_word_embeddings\": false, \"max_position_embeddings\": 65536,\n"
    "  \"rope_theta\": 10000,\n"
    "  \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32,\n"
    "   \"beta_slow\": 1, \"original_max_position_embeddings\": 4096},\n"
    "  \"n_routed_experts\": 8, \"n_shared_experts\": 1, \"num_experts_per_tok\": 3,\n"
    "  \"scoring_func\": \"sqrtsoftplus\", \"topk_method\": \"noaux_tc\",\n"
    "  \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.5, \"sliding_window\": 16,\n"
    "  \"compress_ratios\": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],\n"
    "  \"compress_rope_theta\": 160000, \"kv_source_layer_ids\": [2, 4, 6],\n"
    "  \"index_source_layer_ids\": [2, 4, 6, 8], \"index_n_heads\": 4, \"index_head_dim\": 64,\n"
    "  \"index_topk\": 8, \"candidate_source_layer_id\": 6, \"candidate_topk_blocks\": 3,\n"
    "  \"candidate_block_size\": 4, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20,\n"
    "  \"hc_eps\": 1e-06, \"engram_layer_ids\": [1, 3], \"engram_num_embeddings\": [434, 606],\n"
    "  \"engram_max_ngram_size\": 4, \"engram_vocab_size\": 60, \"engram_n_heads\": 2,\n"
    "  \"engram_head_dim\": 64, \"engram_pad_token_id\": 2,\n"
    "  \"engram_compressed_vocab_size\": 99092, \"num_nextn_predict_layers\": 3,\n"
    "  \"dspark_block_size\": 5, \"dspark_noise_token_id\": 128799,\n"
    "  \"dspark_target_layer_ids\": [7, 8, 9], \"dspark_markov_rank\": 32,\n"
    "  \"dspark_n_routed_experts\": 8, \"dspark_num_experts_per_tok\": 2},\n"
    " \"vision_config\": {\"model_type\": \"deepseek_v41_vision\", \"num_hidden_layers\": 2,\n"
    "  \"hidden_size\": 64, \"num_attention_heads\": 4, \"intermediate_size\": 96,\n"
    "  \"patch_size\": 14, \"rope_theta\": 10000, \"downsample_ratio\": 3,\n"
    "  \"max_image_tokens\": 64, \"min_pixels\": 3136, \"max_wh_ratio\": null}\n"
    "}\n";

static const char generation_config[] =
    "{\n \"bos_token_id\": 0, \"eos_token_id\": 1, \"pad_token_id\": 2, \"do_sample\": true,\n"
    " \"temperature\": 1.0, \"top_p\": 1.0\n}\n";

static const char licence[] =
    "The weights in this folder are random numbers made by hx-inspect tiny, for demonstrations "
    "and\n"
    "tests. They hold nothing of a trained model and may be used freely. tokenizer.json and\n"
    "engram_token_map.i32, if copied from a release, keep the licence of that release.\n";

static int replace(const char *dir, const char *name, const void *data, size_t len,
                   struct hx_error *err)
{
    char *path = hx_path_join(dir, name);
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_replace(path, data, len, err);
    free(path);
    return r;
}

/* A folder may be filled if it is empty or its state.json says that it is synthetic. */
static int check_foreign(const char *dir, struct hx_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return hx_fail_errno(err, errno, "%s: cannot open", dir);
    bool empty = true;
    for (struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(d);
    if (empty)
        return 0;
    const struct hx_json_limits limits = {1 << 20, 1 << 16, 16, 0};
    char *path = hx_path_join(dir, "state.json"), *text = NULL;
    struct hx_json *doc = NULL;
    size_t len;
    bool synthetic = false;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_read(path, limits.max_bytes, &text, &len, NULL);
    if (r == 0)
        r = hx_json_parse(text, len, &limits, &doc, NULL);
    if (r == 0)
        hx_jv_bool(hx_jv_get(hx_json_root(doc), "synthetic"), &synthetic);
    hx_json_free(doc);
    free(text);
    free(path);
    if (r == -ENOMEM)
        return hx_fail(err, r, "out of memory");
    return synthetic
               ? 0
               : hx_fail(err, -EEXIST,
                         "%s: holds files that are not a demo model; name an empty folder", dir);
}

int hx_tiny_begin(const struct hx_tiny_options *opt, struct hx_error *err)
{
    static const char *const folders[] = {"dense", "experts", "engram"};
    static const char incomplete[] =
        "{\"format\":\"hx-state-1\",\"complete\":false,\"synthetic\":true,\"files\":[]}\n";
    if (mkdir(opt->dir, 0755) < 0 && errno != EEXIST)
        return hx_fail_errno(err, errno, "%s: cannot make the folder", opt->dir);
    int r = check_foreign(opt->dir, err);
    if (r == 0)
        r = replace(opt->dir, "state.json", incomplete, sizeof(incomplete) - 1, err);
    for (int i = 0; r == 0 && i < 3; i++) {
        char *path = hx_path_join(opt->dir, folders[i]);
        if (!path)
            return hx_fail(err, -ENOMEM, "out of memory");
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            r = hx_fail_errno(err, errno, "%s: cannot make the folder", path);
        free(path);
    }
    return r;
}

static int copy(const char *from, const char *dir, const char *name, struct hx_error *err)
{
    char *data;
    size_t len;
    int r = hx_file_read(from, MAX_COPY, &data, &len, err);
    if (r < 0)
        return r;
    r = replace(dir, name, data, len, err);
    free(data);
    return r;
}

/* Ids below the compressed size stand for themselves, each id above for one of them. */
static int make_token_map(const char *dir, uint64_t seed, struct hx_error *err)
{
    uint8_t *map = malloc((size_t)HX_TINY_VOCAB * 4);
    if (!map)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < HX_TINY_VOCAB; i++) {
        uint32_t id = i < HX_TINY_COMPRESSED
                          ? i
                          : 3 + (uint32_t)(hx_mix64(seed + i) % (HX_TINY_COMPRESSED - 3));
        for (int k = 0; k < 4; k++)
            map[4 * i + (uint32_t)k] = (uint8_t)(id >> (8 * k));
    }
    int r = replace(dir, "engram_token_map.i32", map, (size_t)HX_TINY_VOCAB * 4, err);
    free(map);
    return r;
}

int hx_tiny_write_small(const struct hx_tiny_options *opt, struct hx_error *err)
{
    int r = replace(opt->dir, "config.json", config, sizeof(config) - 1, err);
    if (r == 0)
        r = replace(opt->dir, "generation_config.json", generation_config,
                    sizeof(generation_config) - 1, err);
    if (r == 0)
        r = replace(opt->dir, "LICENSE", licence, sizeof(licence) - 1, err);
    if (r == 0 && opt->tokenizer)
        r = copy(opt->tokenizer, opt->dir, "tokenizer.json", err);
    if (r < 0)
        return r;
    return opt->token_map ? copy(opt->token_map, opt->dir, "engram_token_map.i32", err)
                          : make_token_map(opt->dir, opt->seed, err);
}
