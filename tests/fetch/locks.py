"""Lock files made by the tests' own means, and what a model folder must hold if one was followed."""
import hashlib
import json
import re

from repository import header_of, tensors_of

MODEL = "tiny-v4.1"
SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE")
ROUTED = re.compile(r"layers\.\d+\.ffn\.experts\.\d+\.w[123]\.(weight|scale|trellis|suh|svh|mul1)$")
# Written by hx-fetch itself; everything else comes from the lock file.
OWN = {"state.json", "lock.json", "engram_token_map.i32"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def whole(source, path, file, out, chunk, hashes):
    e = {"source": source, "path": path, "size": file.size, "sha256": file.sha256, "mode": "whole", "out": out,
         "chunk": chunk}
    data = file.read()
    if path.endswith(".safetensors"):
        e["header_sha256"] = sha256(data[:header_of(data)[1]])
    if hashes:
        e["chunk_sha256"] = [sha256(data[i:i + chunk]) for i in range(0, len(data), chunk)]
        e["chunks_checked"] = True
    return e


def cut(source, path, file, out, chunk, hashes, wanted):
    data = file.read()
    header, start = header_of(data)
    tensors = []
    for name, t in sorted(header.items(), key=lambda kv: kv[1]["data_offsets"]):
        if not wanted(name):
            continue
        begin, end = t["data_offsets"]
        e = {"name": name, "dtype": t["dtype"], "shape": t["shape"], "begin": begin, "end": end}
        if hashes:
            e["sha256"] = sha256(data[start + begin:start + end])
        tensors.append(e)
    return {"source": source, "path": path, "size": file.size, "sha256": file.sha256, "mode": "cut", "out": out,
            "chunk": chunk, "header_sha256": sha256(data[:start]), "header_bytes": start, "tensors": tensors}


def lock_of(official, pack, chunk=65536, hashes=True, experts="whole"):
    """hashes=False: as made from a hub's metadata. experts: "whole" pack or "cut" to the routed experts."""
    files = [whole("official", p, official.files[p], p, chunk, hashes) for p in SMALL]
    for path in sorted(p for p in official.files if p.endswith(".safetensors")):
        f = official.files[path]
        names = header_of(f.read())[0]
        number = path[6:11]
        if any(".engram." in n for n in names):
            files.append(whole("official", path, f, f"engram/{number}.safetensors", chunk, hashes))
        elif any(ROUTED.match(n) for n in names):
            files.append(cut("official", path, f, f"dense/{number}.safetensors", chunk, hashes,
                             lambda n: not ROUTED.match(n)))
        else:
            files.append(whole("official", path, f, f"dense/{number}.safetensors", chunk, hashes))
    for path in sorted(p for p in pack.files if p.endswith(".safetensors")):
        f = pack.files[path]
        out = "experts/" + path
        files.append(whole("exl3", path, f, out, chunk, hashes) if experts == "whole" else
                     cut("exl3", path, f, out, chunk, hashes, ROUTED.match))
    return {"format": "hybrid-lock-1", "model": MODEL, "created": "2026-01-01T00:00:00Z",
            "sources": [{"id": "official", "repo": official.name, "commit": official.commit, "licence": "MIT",
                         "endpoints": ["default"]},
                        {"id": "exl3", "repo": pack.name, "commit": pack.commit, "licence": "MIT",
                         "endpoints": ["default"]}],
            "files": files}


def write(lock, path):
    """Returns the SHA-256 by which the owner accepts it."""
    data = json.dumps(lock, sort_keys=True, indent=1).encode()
    path.write_bytes(data)
    return sha256(data)


def check_file(entry, source, path):
    """One file of a model folder against its source."""
    data = path.read_bytes()
    if entry["mode"] == "whole":
        assert data == source.read(), entry["out"]
        return
    _, start = header_of(data)
    assert start % 4096 == 0, (entry["out"], start)
    theirs = tensors_of(source.read())
    ours = tensors_of(data)
    assert list(ours) == [t["name"] for t in entry["tensors"]], entry["out"]
    for name, t in ours.items():
        assert t == theirs[name], (entry["out"], name)
    assert len(data) == start + sum(len(t[2]) for t in ours.values()), entry["out"]


def check_folder(lock, repositories, folder):
    """Every file of the lock file is there with the source's bytes, and nothing else is."""
    state = json.loads((folder / "state.json").read_text())
    assert state["complete"] is True
    listed = {f["path"]: f for f in state["files"]}
    sources = {s["id"]: r for s, r in zip(lock["sources"], repositories, strict=True)}
    for e in lock["files"]:
        path = folder / e["out"]
        check_file(e, sources[e["source"]].files[e["path"]], path)
        assert listed[e["out"]]["size"] == path.stat().st_size, e["out"]
        assert listed[e["out"]]["sha256"] == sha256(path.read_bytes()), e["out"]
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}
    assert found - OWN == {e["out"] for e in lock["files"]}
    assert {"state.json", "lock.json"} <= found
