"""A plan of the released size: 400 GB are planned in two seconds, and with the published numbers."""
import json
import os
import subprocess
import time

import pytest
import released
from hub import Hub

PLAN_SECONDS = 2.0
pytestmark = [pytest.mark.xdist_group("released"),    # the repositories are made once
              pytest.mark.skipif("san-" in os.environ["HX_FETCH"], reason="sanitizers need time and memory of their own")]


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    (official, n_bytes, n_tensors), (pack, pack_bytes, _) = released.pair(str(tmp_path_factory.mktemp("released")))
    # The repository is the published one before anything is concluded from it.
    assert n_tensors == released.TENSORS_OFFICIAL
    assert n_bytes == released.TENSOR_BYTES
    hub = Hub(official, pack)
    yield hub, official, pack, pack_bytes
    hub.close()


def hx_fetch(*args):
    start = time.monotonic()
    p = subprocess.run([os.environ["HX_FETCH"], *args], capture_output=True, text=True, timeout=120, check=False)
    return p, time.monotonic() - start


def lock_of(full, path, *args):
    hub, official, pack, _ = full
    p, seconds = hx_fetch("lock", f"--official={official.name}@{official.commit}", f"--exl3={pack.name}@{pack.commit}",
                          f"--out={path}", "--json", f"--fetch.endpoints=e=hub:{hub.url}", *args)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["sha256"], seconds, p.stderr


def plan_of(path, accepted, *args):
    """The plan, although no disk here has the room: that is said, and counts as its own exit status."""
    p, seconds = hx_fetch("plan", f"--lock={path}", f"--accept-lock={accepted}", "--models=/tmp/no-such-models", "--json",
                          *args)
    assert p.returncode in (0, 73), p.stderr
    return json.loads(p.stdout), seconds


@pytest.mark.parametrize("layout", ["full", "experts"])
def test_plan_of_400_gb(full, tmp_path, layout):
    path = tmp_path / "lock.json"
    accepted, lock_seconds, text = lock_of(full, path, f"--layout={layout}")
    plan, plan_seconds = plan_of(path, accepted)
    print(f"lock {lock_seconds:.2f} s, plan {plan_seconds:.2f} s, lock file {path.stat().st_size} bytes")
    assert "46080 expert matrices, 5760 of 2 bits, 40320 of 3 bits" in text
    files = {f["out"]: f for f in plan["files"]}
    by_group = {g: sum(f["wanted_bytes"] for f in plan["files"] if f["group"] == g)
                for g in ("small", "dense", "experts", "engram")}
    assert files["engram/layer1.safetensors"]["bytes"] == released.ENGRAM_FILES[1]
    assert files["engram/layer14.safetensors"]["bytes"] == released.ENGRAM_FILES[14]
    assert by_group["engram"] == sum(released.ENGRAM_FILES.values())
    # Whole shards bring their headers along; cut ones get a new one that is not downloaded.
    headers = sum(f["source_bytes"] for f in plan["files"] if f["group"] == "dense" and f["mode"] == "whole") \
        + sum(f["wanted_bytes"] for f in plan["files"] if f["group"] == "dense" and f["mode"] == "cut") \
        - released.DENSE_BYTES
    assert 0 < headers < 2_000_000
    cuts = [f for f in plan["files"] if f["group"] == "dense" and f["mode"] == "cut"]
    assert len(cuts) == 40
    plain = files["dense/00003.safetensors"]
    assert plain["wanted_bytes"] == 170_055_128
    assert 195e9 < by_group["experts"] < 197e9
    # Less than 2 % of a file are thrown away, and no expert block is fetched for it.
    assert all((f["fetched_bytes"] - f["wanted_bytes"]) * 50 <= f["wanted_bytes"] for f in plan["files"])
    assert 417e9 < plan["fetched_bytes"] < 418.5e9
    assert plan["disks"][0]["needed"] > plan["wanted_bytes"] * 1.01
    assert plan_seconds < PLAN_SECONDS


def test_lock_and_plan_from_the_servers(full, tmp_path):
    """From nothing: listing, index, 87 headers, plan."""
    path = tmp_path / "lock.json"
    full[0].clear()
    accepted, lock_seconds, _ = lock_of(full, path)
    _, plan_seconds = plan_of(path, accepted)
    print(f"{lock_seconds + plan_seconds:.2f} s from nothing")
    assert lock_seconds + plan_seconds < 30
    # Headers and index only: a first read of 1 MiB for each shard, and the rest of longer headers.
    assert full[0].sent() < 200_000_000


def test_groups(full, tmp_path):
    path = tmp_path / "lock.json"
    accepted, _, _ = lock_of(full, path)
    plan, _ = plan_of(path, accepted, "--groups=small,dense")
    assert {f["group"] for f in plan["files"]} == {"small", "dense"}
    assert 18e9 < plan["fetched_bytes"] < 19e9


ROOT = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/loop-control"),
                          reason="needs root and loop devices")
MEMORY_KIB = 128 * 1024


@pytest.fixture
def large_disk(tmp_path):
    """A file system of 600 GB that takes no room until it is written to."""
    image, point = tmp_path / "disk", tmp_path / "models"
    with open(image, "wb") as f:
        f.truncate(600 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-T", "largefile4", str(image)], check=True)
    point.mkdir()
    r = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True, text=True, check=False)
    if r.returncode:
        pytest.skip("cannot mount: " + r.stderr)
    yield point
    subprocess.run(["umount", "-l", str(point)], check=False)
    image.unlink()


def peak_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))


@ROOT
def test_memory_of_a_large_run(full, tmp_path, large_disk):
    """All files open, their space reserved, every buffer in use: the peak, over the first seconds of a run."""
    path = tmp_path / "lock.json"
    accepted, _, _ = lock_of(full, path)
    full[0].clear()
    status = tmp_path / "fetch.json"
    p = subprocess.Popen([os.environ["HX_FETCH"], "run", f"--lock={path}", f"--accept-lock={accepted}", "--accept-licences",
                          f"--models={large_disk}", f"--fetch.status={status}", "--fetch.rate=150M",
                          "--fetch.connections=32", "--fetch.per_file=8", f"--fetch.endpoints=e=hub:{full[0].url}"],
                         stderr=subprocess.PIPE, text=True)
    try:
        peak, end = 0, time.monotonic() + 60
        while full[0].sent(".safetensors") < 500_000_000 and time.monotonic() < end:
            assert p.poll() is None, p.stderr.read()
            peak = max(peak, peak_kib(p.pid))
            time.sleep(0.1)
        peak = max(peak, peak_kib(p.pid))
        wanted = json.loads(status.read_text())["wanted"]
        start = time.monotonic()
        p.terminate()
        text = p.communicate(timeout=30)[1]
        stopped = time.monotonic() - start
    finally:
        p.kill()
        p.wait()
    print(f"peak {peak // 1024} MiB for {wanted / 1e9:.0f} GB, stopped in {stopped:.1f} s")
    assert p.returncode == 75, text
    assert full[0].sent(".safetensors") >= 500_000_000
    assert wanted > 400e9
    assert peak < MEMORY_KIB, f"{peak} KiB"
    assert stopped < 5
