"""Repositories of the released size, without the data: real headers in front of sparse files (published names and
shapes; 510 GB officially, 196 GB of experts in the pack). Takes a few MB of disk."""
import json
import os
import struct

from hub import File, Repository

OFFICIAL = "example-ai/Full-V4.1"
PACK = "example-quants/Full-V4.1-EXL3"
LAYERS, EXPERTS, DRAFT_EXPERTS, N_PACK = 40, 384, 128, 39
TENSORS_OFFICIAL = 96085
TENSOR_BYTES = 510_286_023_000
DENSE_BYTES = 18_435_116_360
ENGRAM_FILES = {1: 101_535_150_936, 14: 101_537_926_640}
ENGRAM_HEADERS = {1: 664, 14: 672}
ENGRAM_ROWS = {1: 384_006_168, 14: 384_016_682}
BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I32": 4}


def fp8(name, out, columns):
    return [(name + ".weight", "F8_E4M3", [out, columns]), (name + ".scale", "F8_E8M0", [-(-out // 32), columns // 32])]


def block(prefix, n_experts):
    """A layer without its routed experts: 30 tensors."""
    def at(name, dtype, *shape):
        return (prefix + name, dtype, list(shape))
    t = [at("hc_attn_fn", "F32", 24, 20480), at("hc_attn_base", "F32", 24), at("hc_attn_scale", "F32", 3),
         at("attn_norm.weight", "BF16", 5120)]
    t += fp8(prefix + "attn.wq_a", 1280, 5120) + [at("attn.q_norm.weight", "BF16", 1280)]
    t += fp8(prefix + "attn.wq_b", 32768, 1280) + fp8(prefix + "attn.wkv", 512, 5120)
    t += [at("attn.kv_norm.weight", "BF16", 512), at("attn.attn_sink", "F32", 64)]
    t += fp8(prefix + "attn.wo_a", 8192, 4096) + fp8(prefix + "attn.wo_b", 5120, 8192)
    t += [at("hc_ffn_fn", "F32", 24, 20480), at("hc_ffn_base", "F32", 24), at("hc_ffn_scale", "F32", 3),
          at("ffn_norm.weight", "BF16", 5120), at("ffn.gate.weight", "BF16", n_experts, 5120),
          at("ffn.gate.bias", "F32", n_experts), at("ffn.gate.bias_vl", "F32", n_experts)]
    for w, shape in (("w1", (2304, 5120)), ("w2", (5120, 2304)), ("w3", (2304, 5120))):
        t += fp8(f"{prefix}ffn.shared_experts.{w}", *shape)
    return t


def experts(prefix, n):
    t = []
    for e in range(n):
        for w, (out, columns) in (("w1", (2304, 5120)), ("w2", (5120, 2304)), ("w3", (2304, 5120))):
            t += [(f"{prefix}ffn.experts.{e}.{w}.weight", "I8", [out, columns // 2]),
                  (f"{prefix}ffn.experts.{e}.{w}.scale", "F8_E8M0", [out, columns // 32])]
    return t


def compressor(layer):
    prefix, t = f"layers.{layer}.attn.", []
    if layer in (2, 8, 14, 20):
        t += [(prefix + "compressor.wkv.weight", "BF16", [512, 5120]), (prefix + "compressor.norm.weight", "BF16", [512]),
              (prefix + "indexer.wk.weight", "BF16", [128, 512]), (prefix + "indexer.k_norm.weight", "BF16", [128])]
    if layer in (2, 8, 14):
        t.append((prefix + "compressor.wgate.weight", "BF16", [512, 5120]))
    if layer in (2, 8, 14, 20, 24, 28, 32, 36):
        t.append((prefix + "indexer.weights_proj.weight", "BF16", [32, 5120]))
        t += fp8(prefix + "indexer.wq_b", 4096, 1280)
    return t


def vision():
    t = [("vision.patch_embed.proj.weight", "BF16", [1024, 588]), ("vision.patch_embed.proj.bias", "BF16", [1024]),
         ("vision.norm.weight", "BF16", [1024])]
    for b in range(32):
        p = f"vision.blocks.{b}."
        t += [(p + "norm1.weight", "BF16", [1024]), (p + "norm2.weight", "BF16", [1024]),
              (p + "attn.wqkv.weight", "BF16", [3072, 1024]), (p + "attn.wqkv.bias", "BF16", [3072]),
              (p + "attn.wo.weight", "BF16", [1024, 1024]), (p + "attn.wo.bias", "BF16", [1024]),
              (p + "mlp.w1.weight", "BF16", [5632, 1024]), (p + "mlp.w2.weight", "BF16", [1024, 2816])]
    return t + [("aligner.w1.weight", "BF16", [5120, 9216]), ("aligner.w1.bias", "BF16", [5120]),
                ("aligner.w2.weight", "BF16", [5120, 5120]), ("aligner.w2.bias", "BF16", [5120])]


def draft(m):
    p = f"mtp.{m}."
    t = block(p, DRAFT_EXPERTS) + experts(p, DRAFT_EXPERTS)
    if m == 0:
        t += fp8(p + "main_proj", 5120, 15360) + [(p + "main_norm.weight", "BF16", [5120])]
    if m == 2:
        t += [(p + "norm.weight", "BF16", [5120]), (p + "markov_head.embed.weight", "BF16", [129280, 256]),
              (p + "markov_head.head.weight", "BF16", [129280, 256]), (p + "confidence_head.proj.weight", "BF16", [1, 5376])]
    return t


def engram(layer):
    p, rows = f"layers.{layer}.engram.", ENGRAM_ROWS[layer]
    return [(p + "embed.weight", "F8_E4M3", [rows, 256]), (p + "embed.scale", "F8_E8M0", [rows, 8])] + \
        fp8(p + "wkv", 25600, 6144) + [(p + "q_weight", "BF16", [4, 5120]), (p + "k_weight", "BF16", [4, 5120])]


def official_shards():
    """Tensors of the 48 shards; a layer's experts lie between its dense tensors."""
    images = [(f"image_{n}", "BF16", [5120]) for n in ("start", "newline", "end")]
    shards = [vision(), [("embed.weight", "BF16", [129280, 5120])] + images]
    for layer in range(LAYERS):
        dense = block(f"layers.{layer}.", EXPERTS) + compressor(layer)
        shards.append(dense[:14] + experts(f"layers.{layer}.", EXPERTS) + dense[14:])
    shards.append([("head.weight", "BF16", [129280, 5120]), ("norm.weight", "BF16", [5120])])
    return shards + [draft(m) for m in range(3)] + [engram(1), engram(14)]


def pack_shards():
    t = []
    for layer in range(LAYERS):
        bits = 2 if 18 <= layer <= 22 else 3
        for e in range(EXPERTS):
            for w, (k, n) in (("w1", (5120, 2304)), ("w2", (2304, 5120)), ("w3", (5120, 2304))):
                p = f"layers.{layer}.ffn.experts.{e}.{w}."
                t += [(p + "trellis", "I16", [k // 16, n // 16, 16 * bits]), (p + "suh", "F16", [k]),
                      (p + "svh", "F16", [n]), (p + "mul1", "I32", [])]
    # Dense matrices too, which a hybrid leaves alone.
    t += [("layers.0.attn.wo_b.trellis", "I16", [512, 320, 80]), ("layers.0.attn.wo_b.suh", "F16", [8192]),
          ("layers.0.attn.wo_b.svh", "F16", [5120]), ("layers.0.attn.wo_b.mul1", "I32", [])]
    step = -(-len(t) // N_PACK)
    return [t[i:i + step] for i in range(0, len(t), step)]


def size_of(dtype, shape):
    n = BYTES[dtype]
    for d in shape:
        n *= d
    return n


def write_shard(path, tensors, header_bytes=0):
    """A sparse file; number of its data bytes."""
    header, at = {}, 0
    for name, dtype, shape in tensors:
        n = size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(header_bytes - 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    return at


def config():
    with open("tests/vectors/model/config.json", encoding="utf-8") as f:
        c = json.load(f)
    c["image_token_id"] = 129264
    c["text_config"] |= {
        "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": LAYERS, "num_attention_heads": 64,
        "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8,
        "max_position_embeddings": 1048576, "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3, "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32, "index_head_dim": 128,
        "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
        "n_routed_experts": EXPERTS, "num_experts_per_tok": 6, "moe_intermediate_size": 2304,
        "engram_layer_ids": [1, 14], "engram_num_embeddings": list(ENGRAM_ROWS.values()), "engram_n_heads": 8,
        "engram_head_dim": 256, "engram_vocab_size": 16000000, "engram_compressed_vocab_size": 99092,
        "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
        "dspark_n_routed_experts": DRAFT_EXPERTS, "dspark_num_experts_per_tok": 3}
    c["text_config"]["rope_scaling"]["original_max_position_embeddings"] = 65536
    c["vision_config"] |= {"num_hidden_layers": 32, "hidden_size": 1024, "num_attention_heads": 16,
                           "intermediate_size": 2816, "max_image_tokens": 1024, "min_pixels": 295936}
    return json.dumps(c).encode()


def repository(folder, name, shards, small, header_bytes):
    """(repository, data bytes of all shards)"""
    os.makedirs(folder, exist_ok=True)
    files, weight_map, total = dict(small), {}, 0
    for i, tensors in enumerate(shards, 1):
        shard = f"model-{i:05}-of-{len(shards):05}.safetensors"
        path = os.path.join(folder, shard)
        total += write_shard(path, tensors, header_bytes.get(i, 0))
        files[shard] = File(path=path, sha256=f"{i:064x}")
        weight_map |= {t[0]: shard for t in tensors}
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode()
    files["model.safetensors.index.json"] = File(index, lfs=False)
    return Repository(name, f"{total:040x}", files), total, len(weight_map)


def pair(folder):
    """((official, bytes, tensors), (pack, bytes, tensors))"""
    card = {"README.md": File(b"---\nlicense: mit\n---\n", lfs=False)}
    small = card | {"config.json": File(config(), lfs=False), "tokenizer.json": File(b"{}"),
                    "LICENSE": File(b"MIT License\n", lfs=False)}
    headers = {47: ENGRAM_HEADERS[1], 48: ENGRAM_HEADERS[14]}
    return (repository(os.path.join(folder, "official"), OFFICIAL, official_shards(), small, headers),
            repository(os.path.join(folder, "pack"), PACK, pack_shards(), card, {}))
