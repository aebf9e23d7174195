"""Downloads the same files with several clients and prints a table: wall time until the bytes are on the disk, CPU time
of the client for each GB, its largest resident set. The server's files come from its page cache; every client writes into
a fresh folder of the same file system, which is synced inside the measured time. Rounds alternate between the clients and
the fastest of each counts, because other work on the machine only ever slows one down. Two rows are no clients but the
floor under them: the bytes received and thrown away, and one SHA-256 of them without any network.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPO, COMMIT = "bench/model", "0123456789abcdef0123456789abcdef01234567"
CHUNK = 64 << 20


def make_files(folder, n_files, size):
    """Safetensors files of random 16-bit integers, as packed experts are, and a small one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "LICENSE").write_text("test\n")
    for i in range(n_files):
        path = folder / f"model-{i + 1:05}-of-{n_files:05}.safetensors"
        header = {f"layers.0.ffn.experts.{i}.w1.trellis":
                  {"dtype": "I16", "shape": [size // 2], "data_offsets": [0, size]}}
        text = json.dumps(header, separators=(",", ":")).encode()
        if path.exists() and path.stat().st_size == 8 + len(text) + size:
            continue
        rng = random.Random(i)
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for at in range(0, size, 1 << 20):
                f.write(rng.randbytes(min(1 << 20, size - at)))
    return sorted(p for p in folder.iterdir() if p.suffix == ".safetensors")


def lock_of(files, chunks):
    def entry(path, out):
        e = {"source": "bench", "path": path.name, "size": path.stat().st_size, "mode": "whole", "out": out,
             "chunk": CHUNK}
        whole, digests = hashlib.sha256(), []
        with open(path, "rb") as f:
            while data := f.read(CHUNK):
                whole.update(data)
                digests.append(hashlib.sha256(data).hexdigest())
        if path.suffix == ".safetensors":
            with open(path, "rb") as f:
                n = int.from_bytes(f.read(8), "little")
                f.seek(0)
                e["header_sha256"] = hashlib.sha256(f.read(8 + n)).hexdigest()
        if chunks:
            e["chunk_sha256"], e["chunks_checked"] = digests, True
        return {**e, "sha256": whole.hexdigest()}
    return {"format": "hybrid-lock-1", "model": "bench", "created": "2026-01-01T00:00:00Z",
            "sources": [{"id": "bench", "repo": REPO, "commit": COMMIT, "licence": "MIT", "endpoints": ["default"]}],
            "files": [entry(p, "experts/" + p.name) for p in files] +
                     [entry(files[0].parent / "LICENSE", "LICENSE")]}


def measure(command, folder, env=None):
    """(seconds until synced, CPU seconds, MB resident)"""
    start = time.monotonic()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               env={**os.environ, **(env or {})})
    resident = 0
    while True:
        # Not from the resource usage: that counts what this process had when it forked.
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
            resident = int(text.split("VmHWM:")[1].split()[0]) / 1000
        except (OSError, IndexError):
            pass
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    errors = process.stderr.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]}: exit {process.returncode}: {errors.decode(errors='replace')[-2000:]}")
    for path in folder.rglob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, resident


def same(files, folder):
    for f in files:
        found = list(folder.rglob(f.name))
        if len(found) < 1 or found[-1].stat().st_size != f.stat().st_size:
            sys.exit(f"{f.name}: not there or of another size in {folder}")


def clients(args, url, files, folder, locks):
    """name: (command, environment); every one writes below folder."""
    address = [f"{url}/{REPO}/resolve/{COMMIT}/{f.name}" for f in files]
    out = {}
    pairs = [a for u, f in zip(address, files) for a in ("-o", folder / f.name, u)]
    nowhere = [a for u in address for a in ("-o", "/dev/null", u)]
    out["floor: received, thrown away"] = (["curl", "-sSfL", *nowhere], None)
    out["floor: one SHA-256 from the page cache"] = (["openssl", "dgst", "-sha256", *files], None)
    out["curl, one at a time"] = (["curl", "-sSfL", *pairs], None)
    out["curl, 4 in parallel"] = (["curl", "-sSfL", "-Z", "--parallel-max", "4", *pairs], None)
    if shutil.which("aria2c"):
        listing = folder / "list.txt"
        listing.write_text("".join(f"{u}\n  out={f.name}\n" for u, f in zip(address, files)))
        out["aria2c, 4 connections a file"] = (
            ["aria2c", "-q", "-d", folder, "-i", listing, "-j", "4", "-x", "4", "-s", "4", "--file-allocation=falloc",
             "--max-download-result=10", "--auto-file-renaming=false"], None)
    else:
        print("aria2c is not installed: left out", file=sys.stderr)
    client = (f"from huggingface_hub import snapshot_download as d; "
              f"d({REPO!r}, revision={COMMIT!r}, local_dir={str(folder)!r}, max_workers=4, "
              f"allow_patterns=['*.safetensors'])")
    out["the hub's Python client, 4 workers"] = (
        [sys.executable, "-c", client],
        {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(folder / "home"),
         "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    for name, lock in locks.items():
        accepted = hashlib.sha256(lock.read_bytes()).hexdigest()
        out[f"hx-fetch, {name}"] = (
            [args.fetch, "run", "--lock", lock, "--models", folder, "--groups", "experts", "--accept-licences",
             "--accept-lock", accepted, f"--fetch.endpoints=bench=hub:{url}", "--fetch.status=", "--fetch.reserve=0",
             *args.option], None)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", required=True)
    parser.add_argument("--work", type=Path, required=True, help="files of the server")
    parser.add_argument("--to", type=Path, help="folder on the disk to write to; default: below --work")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=512, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="clients whose name holds this text")
    parser.add_argument("--option", action="append", default=[], help="further option of hx-fetch")
    args = parser.parse_args()
    source = args.work / "source"
    files = make_files(source, args.files, args.megabytes << 20)
    total = sum(f.stat().st_size for f in files)
    locks = {}
    for name, chunks in (("hash of each piece known", True), ("hash of whole files known", False)):
        locks[name] = args.work / f"lock-{int(chunks)}.json"
        locks[name].write_text(json.dumps(lock_of(files, chunks), sort_keys=True))
    hub = subprocess.Popen([sys.executable, "-B", "tests/fetch/hub.py", source, REPO, COMMIT], stdout=subprocess.PIPE)
    try:
        url = json.loads(hub.stdout.readline())["url"]
        results = {}
        for _ in range(args.rounds):
            folder = (args.to or args.work) / "copy"
            for name in clients(args, url, files, source, locks):
                if args.only not in name:
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                os.sync()
                command, env = clients(args, url, files, folder, locks)[name]
                results.setdefault(name, []).append(measure(command, folder, env))
                if not name.startswith("floor"):
                    same(files, folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        hub.send_signal(signal.SIGINT)
        hub.wait()
    best = min((min(r)[0] for n, r in results.items() if n.startswith("curl")), default=0)
    print(f"{len(files)} files, {total / 1e9:.2f} GB, best of {args.rounds}; load {os.getloadavg()[0]:.1f} at the end")
    print("| client | s | MB/s | of the faster curl | CPU s for each GB | resident MB |\n|---|---|---|---|---|---|")
    for name, rows in results.items():
        seconds, _, _ = min(rows)
        cpu, resident = min(r[1] for r in rows), max(r[2] for r in rows)
        print(f"| {name} | {seconds:.2f} | {total / 1e6 / seconds:.0f} | {best / seconds:.2f} | "
              f"{cpu / total * 1e9:.2f} | {resident:.0f} |")


if __name__ == "__main__":
    main()
