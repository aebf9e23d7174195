#!/usr/bin/env python3
"""Encoding speed of hx170's tokenizer beside the `tokenizers` library, on the same files in the same run.

Builds the texts (the same on every machine for one commit), runs the C program over them, encodes them with the library,
and prints one line of JSON for each row. The ids of both must be the same; exit 1 if they are not.

  prose, code, json, chinese   2 MB of one kind
  mixed                        2 MB of all four, in blocks of some kilobytes
  prompt-1m                    the same, about one million tokens
  a-1m, a-4m and the like      one endless piece at two sizes, in units; linear says how time grew (4 is linear)
  run rows                     the inputs of tests/vectors/tokenizer/runs.jsonl of 10 KB and more; only the slowest is shown
"""
import argparse
import glob
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import time

import tokenizers

SIZE = 2_000_000
RUNS = "tests/vectors/tokenizer/runs.jsonl"
ENDLESS = {"a": "a", "space": " ", "newline": "\n", "bang": "!", "han": "中", "ab": "ab", "control": "\x01"}


def spelled(vocab):
    """Texts of the ordinary tokens that are whole UTF-8, by id."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in visible}
    byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in visible)})
    for token, _ in sorted(vocab.items(), key=lambda item: item[1]):
        try:
            yield bytes(byte_of[c] for c in token).decode()
        except (KeyError, UnicodeDecodeError):
            pass


class Texts:
    """Deterministic text of each kind. Words are drawn by u**2: the first of the vocabulary often, all of them at times."""

    def __init__(self, vocab):
        self.random = random.Random(170)
        tokens = list(spelled(vocab))
        self.words = [t[1:] for t in tokens if re.fullmatch(r" [A-Za-z]{2,}", t)]
        self.parts = [t for t in tokens if re.fullmatch(r"[a-z]{2,6}", t)]
        self.han = [t for t in tokens if re.fullmatch(r"[\u4e00-\u9fa5]+", t)]
        sources = sorted(glob.glob("engine/*/*.[ch]") + glob.glob("engine/*/*/*.[ch]"))
        self.source = "".join(open(p, encoding="utf-8").read() for p in sources)
        self.source_at = 0

    def draw(self, items):
        return items[int(len(items) * self.random.random() ** 2)]

    def word(self):
        if self.random.random() < 0.12:  # a name or a rare word, which is no token
            return self.draw(self.parts) + self.draw(self.parts)
        return self.draw(self.words)

    def sentence(self):
        words = [self.word() for _ in range(self.random.randint(4, 24))]
        if self.random.random() < 0.3:
            words.insert(1, str(self.random.randint(0, 3000)))
        text = " ".join(words).capitalize()
        return text.replace(" ", ", ", 1) if self.random.random() < 0.5 else text

    def prose(self):
        return ". ".join(self.sentence() for _ in range(self.random.randint(2, 8))) + ".\n\n"

    def json(self):
        rows = [{"id": self.random.getrandbits(40), "name": self.word(), "tags": [self.word() for _ in range(3)],
                 "score": round(self.random.random(), 6), "ok": self.random.random() < 0.5, "note": self.sentence()}
                for _ in range(8)]
        return json.dumps(rows, indent=self.random.choice([None, 2])) + "\n"

    def chinese(self):
        return "".join("".join(self.draw(self.han) for _ in range(self.random.randint(3, 12))) + self.random.choice("，。、：")
                       for _ in range(40)) + "\n"

    def code(self):
        end = self.source.index("\n", min(self.source_at + 4000, len(self.source) - 1)) + 1
        block = self.source[self.source_at:end]
        self.source_at = end if end < len(self.source) else 0
        return block

    def mixed(self):
        return self.random.choice([self.prose, self.json, self.chinese, self.code])()


def build(kind, size):
    text, n = [], 0
    while n < size:
        text.append(kind())
        n += len(text[-1].encode())
    return "".join(text)


def build_tokens(kind, tok, n_tokens):
    text, n = [], 0
    while n < n_tokens:
        text.append(kind())
        n += len(tok.encode(text[-1]).ids)
    return "".join(text)


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


def time_library(tok, text, calls):
    best = 1e30
    for _ in range(calls):
        start = time.process_time()
        ids = tok.encode(text, add_special_tokens=False).ids
        best = min(best, time.process_time() - start)
    return best, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--texts", required=True, help="folder for the texts")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = tokenizers.Tokenizer.from_file(args.tokenizer)
    with open(args.tokenizer, encoding="utf-8") as f:
        make = Texts(json.load(f)["model"]["vocab"])

    rows = {name: build(getattr(make, name), SIZE) for name in ("prose", "code", "json", "chinese", "mixed")}
    rows["prompt-1m"] = build_tokens(make.mixed, tok, 1_000_000)
    compared = list(rows)
    for name, unit in ENDLESS.items():
        rows[name + "-1m"] = unit * 1_000_000
        rows[name + "-4m"] = unit * 4_000_000
        compared.append(name + "-1m")
    letters = "".join(make.random.choices("abcdefghijklmnopqrstuvwxyz", k=4_000_000))
    rows["letters-1m"], rows["letters-4m"] = letters[:1_000_000], letters
    compared.append("letters-1m")
    expected = {}
    with open(RUNS, encoding="utf-8") as f:
        for run in map(json.loads, f):
            if run["bytes"] >= 10_000:
                rows["run-" + run["id"]] = run["unit"] * run["count"]
                expected["run-" + run["id"]] = run["sha256"]

    os.makedirs(args.texts, exist_ok=True)
    path_of = {name: os.path.join(args.texts, name + ".txt") for name in rows}
    for name, text in rows.items():
        with open(path_of[name], "w", encoding="utf-8", newline="") as f:
            f.write(text)
    out = subprocess.run([args.program, args.tokenizer, *path_of.values()], check=True, capture_output=True, text=True)
    ours = {name: json.loads(line) for name, line in zip(rows, out.stdout.splitlines(), strict=True)}

    wrong = 0
    for name, row in ours.items():
        shown = {"row": name, **{k: row[k] for k in ("bytes", "tokens", "seconds", "first_s", "mb_s")}}
        if name in compared:
            took, ids = time_library(tok, rows[name], 2 if name == "mixed" else 1)
            expected[name] = digest(ids)
            shown.update(library_s=round(took, 4), library_mb_s=round(row["bytes"] / took * 1e-6, 2),
                         ratio=round(took / row["seconds"], 1))
        if name.endswith("-4m"):
            shown["linear"] = round(row["seconds"] / ours[name[:-2] + "1m"]["seconds"], 2)
        if name in expected and expected[name] != row["sha256"]:
            shown["wrong"] = True
            wrong += 1
        if not name.startswith("run-") or "wrong" in shown:
            print(json.dumps(shown), flush=True)
    runs = sorted((row["mb_s"], name) for name, row in ours.items() if name.startswith("run-"))
    print(json.dumps({"row": "runs", "n": len(runs), "slowest": runs[0][1], "mb_s": runs[0][0],
                      "next": [f"{name} {speed}" for speed, name in runs[1:5]]}))
    print(json.dumps({"row": "ids", "compared": len(expected), "wrong": wrong, "library": tokenizers.__version__,
                      "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
