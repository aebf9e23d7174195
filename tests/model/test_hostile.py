#!/usr/bin/env python3
"""Broken model folders: each must be refused with one clear line, and nothing must crash.

Every case starts from the small golden model (tests/vectors/model), damages one thing and opens the
folder with open_model (the engine's own loading plus one step) and with the programs that exist in
the bin folder. Checked for each: the exit code, exactly one line on standard error, that it names
the file (or key) and the reason, and that the folder is left as it was.
Closing line: "N passed, N failed, N skipped".
"""
import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

MODEL = "tests/vectors/model"
HYBRID = "tests/vectors/model_exl3"
PROGRAMS = {  # program in the bin folder: arguments in front of the folder, exit codes allowed
    "hx-inspect": (["plan"], {65, 66, 74}),
}
CRASH = re.compile(rb"AddressSanitizer|LeakSanitizer|runtime error|Assertion|core dumped")


class Folder:
    """A model folder of links; what a case damages is replaced by a copy first."""

    def __init__(self, root, model):
        self.root = root
        for name in os.listdir(model):
            os.symlink(os.path.join(model, name), os.path.join(root, name))
        self.shards = json.load(open(self.path("model.safetensors.index.json")))["weight_map"]

    def path(self, name):
        return os.path.join(self.root, name)

    def own(self, name):
        path = self.path(name)
        if os.path.islink(path):
            source = os.path.realpath(path)
            os.unlink(path)
            shutil.copyfile(source, path)
        return path

    def remove(self, name):
        os.unlink(self.path(name))

    def write(self, name, data):
        if os.path.lexists(self.path(name)):
            self.remove(name)
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def cut(self, name, n):
        os.truncate(self.own(name), len(self.read(name)) - n)

    def append(self, name, data):
        with open(self.own(name), "ab") as f:
            f.write(data)

    def config(self, key, value, text=True):
        c = json.loads(self.read("config.json"))
        (c["text_config"] if text else c)[key] = value
        self.write("config.json", json.dumps(c))

    def config_drop(self, key, text=True):
        c = json.loads(self.read("config.json"))
        del (c["text_config"] if text else c)[key]
        self.write("config.json", json.dumps(c))

    def header(self, shard, change):
        """Rewrites a shard's header; offsets are relative, so the data stays valid."""
        data = self.read(shard)
        n = struct.unpack("<Q", data[:8])[0]
        h = json.loads(data[8:8 + n])
        h = change(h) or h
        text = json.dumps(h).encode()
        text += b" " * (-len(text) % 8)
        self.write(shard, struct.pack("<Q", len(text)) + text + data[8 + n:])

    def tensor(self, name, change):
        def edit(h):
            change(h[name])
        self.header(self.shards[name], edit)

    def rename(self, name, to):
        def edit(h):
            h[to] = h.pop(name)
        self.header(self.shards[name], edit)

    def poke(self, name, at, data):
        shard = self.own(self.shards[name])
        with open(shard, "r+b") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            h = json.loads(f.read(n))
            f.seek(8 + n + h[name]["data_offsets"][0] + at)
            f.write(data)

    def fill(self, name, byte):
        """Every byte of a tensor."""
        data = self.read(self.shards[name])
        n = struct.unpack("<Q", data[:8])[0]
        begin, end = json.loads(data[8:8 + n])[name]["data_offsets"]
        self.poke(name, 0, byte * (end - begin))

    def snapshot(self):
        out = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                st = os.lstat(os.path.join(folder, name))
                out.append((folder, name, st.st_size, st.st_mtime_ns, st.st_mode))
        return sorted(out)


NORM = "layers.0.attn_norm.weight"
SHARD1 = "model-00001-of-00018.safetensors"


def first(f, suffix):
    """First tensor name that ends so."""
    return sorted(n for n in f.shards if n.endswith(suffix))[0]


def set_shape(shape):
    return lambda t: t.update(shape=shape)


def set_dtype(dtype):
    return lambda t: t.update(dtype=dtype)


def swap_scale(f):
    name = first(f, "attn.wq_a.scale")
    f.tensor(name, lambda t: t.update(shape=t["shape"][::-1]))


def directory_instead(f, name):
    f.remove(name)
    os.mkdir(f.path(name))


def link_loop(f, name):
    f.remove(name)
    os.symlink(name, f.path(name))


def pipe_instead(f, name):
    f.remove(name)
    os.mkfifo(f.path(name))


def token_map(f, change):
    m = list(struct.unpack("<%di" % (len(f.read("engram_token_map.i32")) // 4),
                           f.read("engram_token_map.i32")))
    change(m)
    f.write("engram_token_map.i32", struct.pack("<%di" % len(m), *m))


def state(f, **changes):
    files = [{"path": n, "size": os.path.getsize(f.path(n))} for n in sorted(os.listdir(f.root))]
    s = {"format": "hx-state-1", "complete": True, "files": files}
    s.update(changes)
    f.write("state.json", json.dumps(s))


def header_length(f, n):
    f.own(SHARD1)
    with open(f.path(SHARD1), "r+b") as h:
        h.write(struct.pack("<Q", n))


def overlap(f):
    def edit(h):
        a, b = [t for n, t in sorted(h.items()) if n != "__metadata__"][:2]
        b["data_offsets"] = [a["data_offsets"][0],
                             a["data_offsets"][0] + b["data_offsets"][1] - b["data_offsets"][0]]
    f.header(SHARD1, edit)


def unreadable(f, name):
    os.chmod(f.own(name), 0)


# name, damage, words that the line must hold. Words are regular expressions, any case.
CASES = [
    ("config-missing", lambda f: f.remove("config.json"), ["config.json", "No such file"]),
    ("config-empty", lambda f: f.write("config.json", ""), ["config.json"]),
    ("config-broken", lambda f: f.write("config.json", '{"text_config": {'),
     ["config.json", "line 1"]),
    ("config-not-utf8", lambda f: f.write("config.json", b'{"a":"\xff"}'), ["config.json"]),
    ("config-directory", lambda f: directory_instead(f, "config.json"), ["config.json"]),
    ("config-link-loop", lambda f: link_loop(f, "config.json"), ["config.json", "symbolic links"]),
    ("config-pipe", lambda f: pipe_instead(f, "config.json"), ["config.json", "regular file"]),
    ("config-huge", lambda f: f.write("config.json", b" " * (17 << 20)), ["config.json"]),
    ("config-deep", lambda f: f.write("config.json", "[" * 100000), ["config.json"]),
    ("config-other-model", lambda f: f.config("model_type", "llama", text=False),
     ["config.json", "model_type", "llama"]),
    ("config-no-text", lambda f: f.config_drop("text_config", text=False),
     ["config.json", "text_config"]),
    ("config-missing-key", lambda f: f.config_drop("num_attention_heads"),
     ["config.json", "num_attention_heads", "missing"]),
    ("config-text-number", lambda f: f.config("hidden_size", "128"),
     ["config.json", "hidden_size", "expected"]),
    ("config-negative", lambda f: f.config("hidden_size", -128), ["config.json", "hidden_size"]),
    ("config-zero", lambda f: f.config("num_hidden_layers", 0),
     ["config.json", "num_hidden_layers"]),
    ("config-huge-number", lambda f: f.config("num_hidden_layers", 10 ** 30),
     ["config.json", "num_hidden_layers"]),
    ("config-odd-width", lambda f: f.config("hidden_size", 130), ["config.json", "hidden_size"]),
    ("config-wrong-width", lambda f: f.config("hidden_size", 256), [r"tensor|hidden_size"]),
    ("config-wrong-layers", lambda f: f.config("compress_ratios", [0, 0]),
     ["config.json", "compress_ratios"]),
    ("config-sources-descend", lambda f: f.config("kv_source_layer_ids", [5, 3]),
     ["config.json", "kv_source_layer_ids"]),
    ("config-source-far", lambda f: f.config("kv_source_layer_ids", [1000]),
     ["config.json", "kv_source_layer_ids"]),
    ("config-experts-used", lambda f: f.config("num_experts_per_tok", 100000),
     ["config.json", "num_experts_per_tok"]),
    ("config-rows-disagree", lambda f: f.config("engram_vocab_size", 2000),
     ["engram_num_embeddings", "expected"]),
    ("config-vocabulary", lambda f: f.config("vocab_size", 600), [r"vocab_size|embed|token_map"]),
    ("config-control-characters", lambda f: f.config("model_type", "a\nb\x1b[31m"),
     ["config.json", "model_type", r"a\?b\?\[31m"]),

    ("shard-missing", lambda f: f.remove(f.shards[NORM]), [r"tensor|missing|\.safetensors"]),
    ("shard-missing-no-index", lambda f: [f.remove("model.safetensors.index.json"),
                                          f.remove(f.shards[NORM])],
     ["layers.0", "missing|not found"]),
    ("shard-truncated", lambda f: f.cut(f.shards[NORM], 1), [r"00\d\d\d-of-00018.safetensors"]),
    ("shard-header-cut", lambda f: f.write(SHARD1, f.read(SHARD1)[:100]), [SHARD1]),
    ("shard-7-bytes", lambda f: f.write(SHARD1, b"1234567"), [SHARD1, "too few"]),
    ("shard-empty", lambda f: f.write(SHARD1, b""), [SHARD1, "too few"]),
    ("shard-longer", lambda f: f.append(SHARD1, b"x" * 64), [SHARD1, "64 bytes"]),
    ("shard-header-huge", lambda f: header_length(f, 2 ** 63), [SHARD1]),
    ("shard-header-minus", lambda f: header_length(f, 2 ** 64 - 1), [SHARD1]),
    ("shard-not-json", lambda f: f.write(SHARD1, struct.pack("<Q", 8) + b"notjson!"),
     [SHARD1, "header"]),
    ("shard-header-list", lambda f: f.write(SHARD1, struct.pack("<Q", 8) + b"[]      "),
     [SHARD1, "object"]),
    ("shard-html", lambda f: f.write(SHARD1, b"<!DOCTYPE html><html>not found</html>"), [SHARD1]),
    ("shard-overlap", overlap, [SHARD1, "tensor"]),
    ("shard-directory", lambda f: directory_instead(f, SHARD1), [SHARD1, "regular file"]),
    ("shard-link-loop", lambda f: link_loop(f, SHARD1), [SHARD1, "symbolic links"]),
    ("shard-pipe", lambda f: pipe_instead(f, SHARD1), [SHARD1, "regular file"]),
    ("shard-none", lambda f: [f.remove(n) for n in os.listdir(f.root) if n[-12:] == ".safetensors"],
     ["no .safetensors file"]),
    ("shard-twice", lambda f: f.write("dense/again.safetensors", f.read(SHARD1)),
     ["two files", SHARD1, "again.safetensors"]),
    ("index-wrong-file",
     lambda f: f.write("model.safetensors.index.json", json.dumps(
         {"weight_map": {**f.shards, NORM: "elsewhere.safetensors"}})),
     ["index.json", NORM, "elsewhere"]),
    ("index-broken", lambda f: f.write("model.safetensors.index.json", "{"), ["index.json"]),

    ("tensor-dtype", lambda f: f.tensor(NORM, set_dtype("F16")), [NORM]),
    ("tensor-unknown-dtype", lambda f: f.tensor(NORM, set_dtype("F7")), [NORM, "F7"]),
    ("tensor-shape", lambda f: f.tensor(NORM, set_shape([2, 64])), [NORM]),
    ("tensor-shape-negative", lambda f: f.tensor(NORM, set_shape([-128])), [NORM]),
    ("tensor-shape-overflow", lambda f: f.tensor(NORM, set_shape([2 ** 40, 2 ** 40])), [NORM]),
    ("tensor-scale-swapped", swap_scale, ["scale"]),
    ("tensor-renamed", lambda f: f.rename(NORM, "layers.0.attn_nrom.weight"), [r"attn_n"]),
    ("tensor-nan", lambda f: f.poke(NORM, 6, b"\xc0\x7f"), [NORM, "element 3", "finite"]),
    ("tensor-infinite", lambda f: f.poke(NORM, 0, b"\x80\x7f"), [NORM, "element 0", "finite"]),
    ("tensor-nan-code", lambda f: f.poke(first(f, "attn.wq_a.weight"), 5, b"\xff"),
     ["wq_a.weight", "element 5", "column 5", "block 0, 0", "code 0xff is NaN"]),
    ("tensor-nan-scale", lambda f: f.poke(first(f, "attn.wq_a.scale"), 0, b"\xff"),
     ["wq_a.scale", "element 0", "block 0, 0", "exponent 255 is NaN"]),
    ("tensor-overflow-fp8", lambda f: f.poke(first(f, "attn.wq_a.scale"), 5, b"\x87"),
     ["wq_a.scale", "element 5", "block 1, 1", "exponent 135 overflows", "at most 134"]),
    ("tensor-overflow-fp4", lambda f: f.poke(first(f, "ffn.experts.0.w1.scale"), 7, b"\x81"),
     ["experts.0.w1.scale", "element 7", "block 1, 3", "exponent 129 overflows", "at most 128"]),

    ("map-missing", lambda f: f.remove("engram_token_map.i32"),
     ["engram_token_map.i32", "No such file"]),
    ("map-short", lambda f: f.cut("engram_token_map.i32", 4),
     ["engram_token_map.i32", "expected 2048"]),
    ("map-long", lambda f: f.append("engram_token_map.i32", bytes(4)),
     ["engram_token_map.i32", "expected 2048"]),
    ("map-out-of-range", lambda f: token_map(f, lambda m: m.__setitem__(7, 1 << 30)),
     ["engram_token_map.i32", "token 7", "1073741824"]),
    ("map-negative", lambda f: token_map(f, lambda m: m.__setitem__(7, -1)),
     ["engram_token_map.i32", "token 7", "-1"]),
    ("map-fewer-ids", lambda f: token_map(f, lambda m: m.__setitem__(slice(None), [0] * len(m))),
     ["engram_token_map.i32", "found 1 distinct"]),
    ("map-directory", lambda f: directory_instead(f, "engram_token_map.i32"),
     ["engram_token_map.i32"]),

    ("state-incomplete", lambda f: state(f, complete=False), ["state.json", "not complete"]),
    ("state-broken", lambda f: f.write("state.json", "{"), ["state.json", "line 1"]),
    ("state-empty", lambda f: f.write("state.json", ""), ["state.json"]),
    ("state-wrong-size",
     lambda f: state(f, files=[{"path": SHARD1, "size": 5}]), ["state.json", SHARD1, "expected 5"]),
    ("state-missing-file",
     lambda f: state(f, files=[{"path": "gone.bin", "size": 5}]), ["state.json", "gone.bin"]),
    ("state-escapes",
     lambda f: state(f, files=[{"path": "../../etc/passwd", "size": 5}]),
     ["state.json", "not relative"]),
    ("state-absolute",
     lambda f: state(f, files=[{"path": "/etc/passwd", "size": 5}]), ["state.json", "not relative"]),

    ("rows-nan-code",
     lambda f: f.fill(first(f, "engram.embed.weight"), b"\xff"),
     ["Engram", "row", r"\.safetensors", "offset"]),
    ("rows-nan-scale",
     lambda f: f.fill(first(f, "engram.embed.scale"), b"\xff"),
     ["Engram", "row", r"\.safetensors", "offset"]),
]
AS_USER = [  # root reads everything, so these run as another user
    ("config-unreadable", lambda f: unreadable(f, "config.json"),
     ["config.json", "Permission denied"]),
    ("shard-unreadable", lambda f: unreadable(f, SHARD1), [SHARD1, "Permission denied"]),
    ("map-unreadable", lambda f: unreadable(f, "engram_token_map.i32"),
     ["engram_token_map.i32", "Permission denied"]),
]
GOOD = [
    ("good", lambda f: None),
    ("good-state", lambda f: state(f)),
    ("good-no-index", lambda f: f.remove("model.safetensors.index.json")),
    ("good-hybrid", lambda f: [f.write("experts/" + n, open(os.path.join(HYBRID, n), "rb").read())
                               for n in os.listdir(HYBRID) if n.endswith(".safetensors")]),
]
NOBODY = 65534
FILES = ["config.json", "engram_token_map.i32", "model.safetensors.index.json", "state.json"]


def random_damage(f, rng):
    """One to three random faults in one or two files; returns their description."""
    files = FILES[:3]
    if rng.random() < 0.2:  # it refuses every change of size, so it is rare here
        state(f)
        files = FILES
    done = []
    for _ in range(rng.randint(1, 3)):
        shards = sorted(n for n in os.listdir(f.root) if n.endswith(".safetensors"))
        name = rng.choice(files + shards)
        data = bytearray(f.read(name))
        if not data:
            continue
        # Headers and JSON files matter more than values.
        n_head = struct.unpack("<Q", data[:8])[0] if name in shards and len(data) > 8 else len(data)
        at = rng.randrange(min(len(data), 8 + n_head) if rng.random() < 0.8 else len(data))
        kind = rng.choice(["flip", "cut", "zeros", "noise", "digit", "repeat"])
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[at:]
        elif kind == "zeros":
            data[at:at + 16] = bytes(len(data[at:at + 16]))
        elif kind == "noise":
            data[at:at + 16] = rng.randbytes(len(data[at:at + 16]))
        elif kind == "digit":
            digits = [i for i in range(at, min(at + 400, len(data))) if 48 <= data[i] < 58]
            if digits:
                data[rng.choice(digits)] = rng.choice(b"0123456789-.e")
        else:
            data[at:at] = data[max(0, at - 40):at]
        f.write(name, bytes(data))
        done.append(f"{kind} {name} at {at}")
    return ", ".join(done)


def demote():
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def run(command, folder, as_user):
    before = folder.snapshot()
    try:
        p = subprocess.run(command + [folder.root], capture_output=True, timeout=120,
                           stdin=subprocess.DEVNULL, preexec_fn=demote if as_user else None)
    except subprocess.TimeoutExpired:
        return None, ["still running after 120 s"]
    problems = []
    if p.returncode < 0 or CRASH.search(p.stderr):
        problems.append(f"crashed ({p.returncode}): {p.stderr[-2000:].decode(errors='replace')}")
    if folder.snapshot() != before:
        problems.append("the folder was changed")
    return p, problems


def check_refusal(p, codes, words):
    problems = []
    text = p.stderr.decode("utf-8", "replace")
    if p.returncode not in codes:
        problems.append(f"exit {p.returncode}, expected {sorted(codes)}")
    if text.count("\n") != 1 or not text.endswith("\n"):
        problems.append(f"{text.count(chr(10))} lines, expected one")
    if re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text):
        problems.append("control characters in the message")
    for word in words:
        if not re.search(word, text, re.IGNORECASE):
            problems.append(f"does not say '{word}'")
    if problems:
        problems.append("message: " + text[:600].rstrip())
    return problems


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--opener", required=True, help="the open_model program")
    ap.add_argument("--bin", help="folder of hx-inspect")
    ap.add_argument("--only", help="run the cases whose name holds this")
    ap.add_argument("--random", type=int, default=150, help="folders with random damage")
    ap.add_argument("--seed", type=int, default=1, help="of the random damage")
    ap.add_argument("-v", action="store_true", help="print every message")
    args = ap.parse_args()
    # Copies: a checkout in a private home is out of reach for the user that some cases run as.
    reachable = tempfile.TemporaryDirectory(prefix="hx-hostile-bin-")
    os.chmod(reachable.name, 0o755)

    def copied(path):
        return shutil.copy(path, reachable.name)

    model = os.path.join(reachable.name, "model")
    os.mkdir(model)
    for name in os.listdir(MODEL):
        if os.path.isfile(os.path.join(MODEL, name)):
            shutil.copyfile(os.path.join(MODEL, name), os.path.join(model, name))

    programs = [("open_model", [copied(args.opener)], {65})]
    passed = failed = skipped = 0
    for name, (arguments, codes) in PROGRAMS.items():
        path = os.path.join(args.bin or "", name)
        if args.bin and os.path.exists(path):
            programs.append((name, [copied(path)] + arguments, codes))
        else:
            print(f"  skipped: {name} is not built")
            skipped += 1
    cases = [(n, d, w, False) for n, d, w in CASES] + [(n, d, None, False) for n, d in GOOD]
    if os.getuid() == 0:
        cases += [(n, d, w, True) for n, d, w in AS_USER]
    else:
        cases += [(n, d, w, False) for n, d, w in AS_USER]
    for name, damage, words, as_user in cases:
        if args.only and args.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="hx-hostile-") as root:
            os.chmod(root, 0o755)
            folder = Folder(root, model)
            damage(folder)
            for program, command, codes in programs:
                # Weight and row values are looked at by what loads them.
                if program != "open_model" and re.match("tensor-(nan|inf|overflow)|rows-", name):
                    continue
                p, problems = run(command, folder, as_user)
                if p and words is None and p.returncode != 0:
                    problems.append("refused: " + p.stderr.decode(errors="replace")[:600])
                if p and words is not None:
                    problems += check_refusal(p, codes, words)
                passed += not problems
                failed += bool(problems)
                for text in problems:
                    print(f"  FAILED {name} ({program}): {text}")
                if args.v and p:
                    print(f"  {name} ({program}): {p.stderr.decode(errors='replace').rstrip()}")
    for i in range(0 if args.only else args.random):
        rng = random.Random(args.seed * 1000003 + i)
        with tempfile.TemporaryDirectory(prefix="hx-hostile-") as root:
            folder = Folder(root, model)
            what = random_damage(folder, rng)
            p, problems = run(programs[0][1], folder, False)
            if p and p.returncode != 0:
                problems += check_refusal(p, {65}, [])
            for text in problems:
                print(f"  FAILED random {i} of seed {args.seed} ({what}): {text}")
            passed += not problems
            failed += bool(problems)
            if args.v and p:
                print(f"  random {i} ({what}): {p.stderr.decode(errors='replace').rstrip()}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
