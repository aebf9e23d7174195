"""The two repositories that a hybrid is made of, small: an official one (one layer per shard, Engram tables in the last
two) and an EXL3 pack with dense decoys. From the test vectors (7 MB, quick; texts mean nothing) or from the demo model
of hx-inspect (95 MB, answers)."""
import hashlib
import json
import os
import random
import struct

from hub import File, Repository

OFFICIAL = "example-ai/Tiny-V4.1"
EXL3 = "example-quants/Tiny-V4.1-EXL3"
LICENCE = b"MIT License\n\nCopyright (c) the authors of nothing at all\n"
VECTORS = "tests/vectors"


def header_of(data):
    """(tensor entries without __metadata__, bytes before the data area) of a safetensors file."""
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return header, 8 + n


def tensors_of(data):
    """name -> (dtype, shape, bytes)"""
    header, start = header_of(data)
    return {k: (v["dtype"], v["shape"], data[start + v["data_offsets"][0]:start + v["data_offsets"][1]])
            for k, v in header.items()}


def safetensors(tensors):
    header, parts, at = {}, [], 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def tokenizer_of(path, n_vocab):
    """The first entries of the released tokenizer."""
    with open(path, encoding="utf-8") as f:
        t = json.load(f)
    vocab = {k: v for k, v in t["model"]["vocab"].items() if v < n_vocab}
    t["model"]["vocab"] = vocab
    t["model"]["merges"] = [m for m in t["model"]["merges"]
                            if all(p in vocab for p in (*m.split(" "), m.replace(" ", "")))]
    t["added_tokens"] = [a for a in t["added_tokens"] if a["id"] < n_vocab]
    return json.dumps(t, ensure_ascii=False).encode()


def small_files(config, tokenizer):
    return {"config.json": File(config, lfs=False), "tokenizer.json": File(tokenizer),
            "tokenizer_config.json": File(b'{"model_max_length": 16384}\n', lfs=False),
            "generation_config.json": File(b'{"bos_token_id": 0, "eos_token_id": 1}\n', lfs=False),
            "LICENSE": File(LICENCE, lfs=False), ".gitattributes": File(b"* -text\n", lfs=False),
            "README.md": File(b"---\nlicense: mit\n---\n# A model\n", lfs=False),
            "inference/model.py": File(b"print('not for us')\n", lfs=False)}


def with_shards(files, shards):
    """Adds shards under the names of the hub, and their index."""
    weight_map, total = {}, 0
    for i, data in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        files[name] = File(data)
        for tensor, entry in header_of(data)[0].items():
            weight_map[tensor] = name
            total += entry["data_offsets"][1] - entry["data_offsets"][0]
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    files["model.safetensors.index.json"] = File(json.dumps(index, indent=1).encode(), lfs=False)
    return files


def commit_of(files):
    """Forty digits that change with the content."""
    names = "".join(f"{p} {f.sha256}\n" for p, f in sorted(files.items()))
    return hashlib.sha1(names.encode()).hexdigest()


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def shards_in(folder):
    return [read(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".safetensors")]


def pair(official, pack):
    pack |= {"README.md": File(b"---\nlicense: mit\n---\n", lfs=False), "LICENSE": File(LICENCE, lfs=False)}
    return Repository(OFFICIAL, commit_of(official), official), Repository(EXL3, commit_of(pack), pack)


def from_vectors(tokenizer):
    """tokenizer: the released tokenizer.json, which is cut to this model's vocabulary."""
    config = json.loads(read(VECTORS, "model/config.json"))
    # As many ids as the texts of the cut vocabulary fold to.
    config["text_config"]["engram_compressed_vocab_size"] = COMPRESSED_512
    small = small_files(json.dumps(config, indent=1).encode(), tokenizer_of(tokenizer, 512))
    return pair(with_shards(small, shards_in(VECTORS + "/model")),
                with_shards({}, shards_in(VECTORS + "/model_exl3")))


COMPRESSED_512 = 418


def from_demo(folder):
    """folder: written by hx-inspect tiny."""
    rng = random.Random(1)
    every = {}
    for part in ("dense", "engram"):
        for n in sorted(os.listdir(f"{folder}/{part}")):
            every |= tensors_of(read(folder, part, n))
    experts = {}
    for n in sorted(os.listdir(f"{folder}/experts")):
        experts |= tensors_of(read(folder, "experts", n))
    n_layers = 1 + max(int(k.split(".")[1]) for k in every if k.startswith("layers."))

    def take(*prefixes):
        return {k: v for k, v in every.items() if k.startswith(prefixes)}

    shards = [safetensors({"vision.patch.weight": ("BF16", [8, 8], rng.randbytes(128))}), safetensors(take("embed."))]
    for layer in range(n_layers):
        t = {k: v for k, v in take(f"layers.{layer}.").items() if ".engram." not in k}
        # The official shard has the experts too, in FP4, between the dense tensors.
        routed = {}
        for e in range(8):
            for w in ("w1", "w2", "w3"):
                name = f"layers.{layer}.ffn.experts.{e}.{w}"
                routed[name + ".weight"] = ("I8", [128, 64], rng.randbytes(128 * 64))
                routed[name + ".scale"] = ("F8_E8M0", [128, 4], bytes([120]) * 128 * 4)
        names = list(t)
        half = {k: t[k] for k in names[:len(names) // 2]}
        shards.append(safetensors(half | routed | {k: t[k] for k in names[len(names) // 2:]}))
    shards.append(safetensors(take("head.", "norm.")))
    shards += [safetensors(take(f"mtp.{i}.")) for i in range(3)]
    shards += [safetensors({k: v for k, v in every.items() if k.startswith(f"layers.{n}.engram.")})
               for n in range(n_layers) if any(k.startswith(f"layers.{n}.engram.") for k in every)]
    small = small_files(read(folder, "config.json"), read(folder, "tokenizer.json"))
    # A pack quantises more than the experts; a hybrid leaves that alone.
    decoy = {f"layers.0.attn.wo_b.{k}": v for k, v in
             (("trellis", ("I16", [8, 8, 48], rng.randbytes(6144))), ("suh", ("F16", [128], bytes(256))),
              ("svh", ("F16", [128], bytes(256))), ("mul1", ("I32", [], bytes(4))))}
    names = list(experts)
    half = len(names) // 2
    pack = [safetensors(decoy | {k: experts[k] for k in names[:half]}),
            safetensors({k: experts[k] for k in names[half:]})]
    return pair(with_shards(small, shards), with_shards({}, pack))
