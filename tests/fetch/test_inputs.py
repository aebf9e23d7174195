"""Bad lock files, bad repositories, bad owners' orders: each is refused by name and leaves nothing visible
(docs/bad-input.md)."""
import copy
import json
import os
import struct
import subprocess

import locks
import pytest
from conftest import copy_of
from repository import header_of, safetensors, tensors_of

SHARD = "model-00003-of-00018.safetensors"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n" * 3
POINTER = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 449096\n")


# The lock file

def test_lock_missing(fetch):
    fetch.lock_path.unlink()
    fetch.refused(str(fetch.lock_path), code=66)


def without_consent(fetch, *args):
    fetch.accepted = None
    return fetch.refused("--accept-lock", args=("--accept-licences", *args), code=77)


def test_lock_from_elsewhere_needs_consent(hub, fetch):
    r = without_consent(fetch)
    assert locks.sha256(fetch.lock_path.read_bytes()) in r.text, "what to consent to"
    assert not hub.requests()


def test_lock_consent_to_another_file(hub, fetch):
    fetch.accepted = "0" * 64
    fetch.refused(locks.sha256(fetch.lock_path.read_bytes()), code=77)
    assert not hub.requests()


def test_lock_signed(hub, fetch):
    key, public = fetch.folder / "key", fetch.folder / "key.pub"
    for args in (["genpkey", "-algorithm", "ed25519", "-out", key], ["pkey", "-in", key, "-pubout", "-out", public],
                 ["pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", fetch.lock_path,
                  "-out", str(fetch.lock_path) + ".sig"]):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    fetch.accepted = None
    fetch.options["release_key"] = public
    fetch.run("run", "--accept-licences")
    fetch.check()


def test_lock_changed_after_signing(hub, fetch):
    test_lock_signed(hub, fetch)
    fetch.lock["created"] = "2026-01-02T00:00:00Z"
    locks.write(fetch.lock, fetch.lock_path)
    fetch.refused("signature", args=("--accept-licences",))


def test_licences_are_shown_and_asked_for(hub, fetch):
    command = [a for a in fetch.command("run") if a != "--accept-licences"]
    r = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert r.returncode == 77
    assert "MIT" in r.stdout + r.stderr and "--accept-licences" in r.stdout + r.stderr
    assert not hub.requests("cdn")


def edit(fetch, change):
    lock = copy.deepcopy(fetch.lock)
    change(lock)
    fetch.relock(lock)


def cut_of(lock):
    return next(e for e in lock["files"] if e["mode"] == "cut")


def set_in(pick, key, value):
    def change(lock):
        pick(lock)[key] = value
    return change


def first(lock):
    return lock["files"][0]


def swap_tensors(lock):
    t = cut_of(lock)["tensors"]
    t[0], t[1] = t[1], t[0]


LOCKS = {
    "short-commit": (set_in(lambda k: k["sources"][0], "commit", "abc123"), ["commit"]),
    "commit-main": (set_in(lambda k: k["sources"][0], "commit", "main"), ["commit"]),
    "unknown-top-key": (set_in(lambda k: k, "surprise", 1), ["surprise"]),
    "other-format": (set_in(lambda k: k, "format", "hybrid-lock-9"), ["format"]),
    "out-leaves-the-folder": (set_in(first, "out", "../../etc/passwd"), ["out"]),
    "out-absolute": (set_in(first, "out", "/etc/passwd"), ["out"]),
    "out-is-ours": (set_in(first, "out", "state.json"), ["state.json"]),
    "out-twice": (lambda k: k["files"].append(copy.deepcopy(first(k))), ["twice"]),
    "path-leaves": (set_in(first, "path", "../x"), ["path"]),
    "model-leaves": (set_in(lambda k: k, "model", "../x"), ["model"]),
    "size-negative": (set_in(first, "size", -1), ["size"]),
    "size-fraction": (set_in(first, "size", 1.5), ["size"]),
    "size-huge": (set_in(first, "size", 1 << 63), ["size"]),
    "hash-short": (set_in(first, "sha256", "ab"), ["sha256"]),
    "chunk-odd": (set_in(first, "chunk", 5000), ["chunk"]),
    "chunk-zero": (set_in(first, "chunk", 0), ["chunk"]),
    "chunk-hashes-too-few": (set_in(first, "chunk_sha256", []), ["chunk_sha256"]),
    "source-unknown": (set_in(first, "source", "elsewhere"), ["source"]),
    "tensors-out-of-order": (swap_tensors, ["overlap"]),
    "tensor-beyond-the-file": (lambda k: cut_of(k)["tensors"][-1].update(end=1 << 40), ["end"]),
    "tensor-of-another-length": (lambda k: cut_of(k)["tensors"][0].update(shape=[1, 1]), ["shape"]),
    "no-files": (set_in(lambda k: k, "files", []), ["files"]),
}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_refused(hub, fetch, name):
    change, words = LOCKS[name]
    edit(fetch, change)
    r = fetch.refused(str(fetch.lock_path), *words)
    assert len(r.err.strip().splitlines()) <= 3, r.err
    assert not hub.requests("cdn")


NO_LOCKS = {"empty": b"", "cut-off": b"{", "a-list": b"[]", "not-utf8": b"\xff\xfe", "deep": b"[" * 100_000, "page": HTML,
            "key-twice": b'{"format":"hybrid-lock-1","format":"x"}'}


@pytest.mark.parametrize("name", NO_LOCKS)
def test_lock_that_is_no_lock(fetch, name):
    text = NO_LOCKS[name]
    fetch.lock_path.write_bytes(text)
    fetch.accepted = locks.sha256(text)
    fetch.refused(str(fetch.lock_path))


def test_unknown_keys_deeper_are_ignored(hub, fetch):
    edit(fetch, set_in(first, "comment", "from a later tool"))
    fetch.run()
    fetch.check()


# What the repositories hold

def test_no_such_repository(make_hub, make_fetch, small):
    fetch = make_fetch(make_hub(copy_of(small)[0]), lock=locks.lock_of(*small))
    fetch.refused("404", code=66)
    fetch.check_invisible()


def test_commit_gone(hub, fetch):
    edit(fetch, set_in(lambda k: k["sources"][0], "commit", "e" * 40))
    fetch.refused("404", "revision", code=66)
    fetch.check_invisible()


def test_files_missing_upstream_are_all_named(hub, fetch):
    official = next(iter(hub.repositories.values()))
    for n in (4, 5):
        del official.files[f"model-{n:05}-of-00018.safetensors"]
    fetch.refused("model-00004-of-00018.safetensors", "model-00005-of-00018.safetensors")
    fetch.check_invisible()


def with_header(data, header):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data[header_of(data)[1]:]


def header_change(change):
    def make(data):
        header = header_of(data)[0]
        change(header)
        return with_header(data, header)
    return make


def first_entry(header):
    return header[next(iter(header))]


def overlap(header):
    entries = sorted(header.values(), key=lambda e: e["data_offsets"])
    n = entries[1]["data_offsets"][1] - entries[1]["data_offsets"][0]
    entries[1]["data_offsets"] = [entries[1]["data_offsets"][0] - 1, entries[1]["data_offsets"][0] - 1 + n]


def twice(data):
    """Two tensors under one name, in order and without a gap."""
    header, start = header_of(data)
    first_name, second = (b'"' + n.encode() + b'"' for n in list(header)[:2])
    return with_header(data, data[8:start].replace(second, first_name))


HEADERS = {
    "length-0": lambda d: struct.pack("<Q", 0) + d[8:],
    "length-beyond-the-limit": lambda d: struct.pack("<Q", 100_000_001) + d[8:],
    "length-beyond-the-file": lambda d: struct.pack("<Q", len(d)) + d[8:],
    "not-json": lambda d: with_header(d, b"{this is not json"),
    "duplicate-key": twice,
    "overlap": header_change(overlap),
    "wrong-product": header_change(lambda h: first_entry(h).update(shape=[3, 5])),
    "unknown-dtype": header_change(lambda h: first_entry(h).update(dtype="F7_E9")),
    "truncated-file": lambda d: d[:-1000],
    "bytes-after-the-end": lambda d: d + bytes(100),
    "all-zero": lambda d: bytes(len(d)),
    "html-page": lambda d: HTML + bytes(len(d) - len(HTML)),
    "lfs-pointer": lambda d: POINTER,
}
NAMED = {"all-zero": ["zero"], "html-page": ["web page"], "lfs-pointer": ["pointer"], "unknown-dtype": ["F7_E9"],
         "duplicate-key": ["twice"]}


@pytest.fixture
def lock_command(hub, make_fetch, small):
    """A box that makes its own lock file from this hub."""
    fetch = make_fetch(hub, lock=locks.lock_of(*small))
    fetch.accepted = None
    return fetch


def lock_args(fetch, repositories, *more):
    official, pack = repositories
    return (f"--official={official.name}@{official.commit}", f"--exl3={pack.name}@{pack.commit}",
            f"--model={locks.MODEL}", f"--out={fetch.lock_path}", *more)


@pytest.mark.parametrize("name", HEADERS)
def test_header_refused(hub, lock_command, name):
    """Found when the lock file is made, before any weights."""
    official, pack = hub.repositories.values()
    official.replace(SHARD, HEADERS[name](official.files[SHARD].read()))
    fetch = lock_command
    fetch.lock_path.unlink()
    r = fetch.refused(SHARD, *NAMED.get(name, []), command="lock", args=lock_args(fetch, (official, pack)))
    assert len(r.err.strip().splitlines()) <= 5, r.err
    assert not fetch.lock_path.exists()


def test_index_names_a_file_that_is_not_there(hub, lock_command):
    """As one public repository does."""
    official, pack = hub.repositories.values()
    index = json.loads(official.files["model.safetensors.index.json"].read())
    index["weight_map"]["layers.3.extra.weight"] = "model-00099-of-00018.safetensors"
    official.replace("model.safetensors.index.json", json.dumps(index).encode())
    lock_command.refused("model-00099-of-00018.safetensors", command="lock",
                         args=lock_args(lock_command, (official, pack)))


def test_index_and_header_disagree(hub, lock_command):
    official, pack = hub.repositories.values()
    index = json.loads(official.files["model.safetensors.index.json"].read())
    index["weight_map"]["layers.0.attn_norm.weight"] = "model-00004-of-00018.safetensors"
    official.replace("model.safetensors.index.json", json.dumps(index).encode())
    lock_command.refused("layers.0.attn_norm.weight", command="lock", args=lock_args(lock_command, (official, pack)))


def without(repository, path, keep):
    t = {k: v for k, v in tensors_of(repository.files[path].read()).items() if keep(k)}
    repository.replace(path, safetensors(t))
    index = json.loads(repository.files["model.safetensors.index.json"].read())
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v != path or keep(k)}
    repository.replace("model.safetensors.index.json", json.dumps(index).encode())


def refused_somewhere(hub, fetch, *words):
    """By `lock`, or by `run` before anything is visible."""
    r = fetch.run("lock", *lock_args(fetch, tuple(hub.repositories.values())), code=None)
    if r.code == 0:
        fetch.accepted = locks.sha256(fetch.lock_path.read_bytes())
        r = fetch.run(code=None)
        fetch.check_invisible()
    assert r.code == 65, r.text
    for w in words:
        assert w in r.text, r.text


def test_dense_tensor_only_in_the_pack(hub, lock_command):
    """A hybrid needs the official one."""
    official, _ = hub.repositories.values()
    without(official, SHARD, lambda k: not k.startswith("layers.0.attn.wo_b."))
    refused_somewhere(hub, lock_command, "layers.0.attn.wo_b")


def test_layer_missing(hub, lock_command):
    official, _ = hub.repositories.values()
    without(official, SHARD, lambda k: "attn_norm" not in k)
    refused_somewhere(hub, lock_command, "layers.0.attn_norm.weight")


def test_experts_missing_in_the_pack(hub, lock_command):
    _, pack = hub.repositories.values()
    without(pack, "model-00001-of-00002.safetensors", lambda k: not k.startswith("layers.0.ffn.experts.7."))
    refused_somewhere(hub, lock_command, "layers.0.ffn.experts.7")


def test_tensor_of_another_shape(hub, lock_command):
    official, _ = hub.repositories.values()
    t = tensors_of(official.files[SHARD].read())
    dtype, shape, data = t["layers.0.attn_norm.weight"]
    t["layers.0.attn_norm.weight"] = (dtype, [shape[0] // 2], data[:len(data) // 2])
    official.replace(SHARD, safetensors(t))
    refused_somewhere(hub, lock_command, "layers.0.attn_norm.weight")


def test_not_a_number_in_the_weights(hub, lock_command):
    """F8_E4M3 0x7F is no number: a damaged upload."""
    official, _ = hub.repositories.values()
    t = tensors_of(official.files[SHARD].read())
    dtype, shape, data = t["layers.0.attn.wq_a.weight"]
    t["layers.0.attn.wq_a.weight"] = (dtype, shape, b"\x7f" + data[1:])
    official.replace(SHARD, safetensors(t))
    refused_somewhere(hub, lock_command, "layers.0.attn.wq_a.weight")


# Orders

def test_help_and_version():
    for option in ("--help", "--version"):
        r = subprocess.run([os.environ["HX_FETCH"], option], capture_output=True, text=True)
        assert r.returncode == 0 and r.stdout


@pytest.mark.parametrize("args", [[], ["nonsense"], ["run", "--no-such-option"], ["run", "--fetch.connections=0"],
                                  ["run", "--fetch.connections=33"], ["run", "--fetch.rate=-1"],
                                  ["run", "--fetch.endpoints=x=ftp:y"], ["run", "--fetch.window=25:00-26:00"],
                                  ["run", "--fetch.endpoints=e=hub:https://user:secret@host"]])
def test_wrong_usage(fetch, args):
    command = fetch.command(*args) if args else [os.environ["HX_FETCH"]]
    r = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    assert r.returncode in (64, 65, 78), (r.returncode, r.stderr)
    assert "secret" not in r.stdout + r.stderr
