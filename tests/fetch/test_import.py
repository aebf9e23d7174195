"""hx-fetch import and verify: another medium instead of the line, and bit rot."""
import json
import os
import random
import subprocess
import time
from pathlib import Path

import locks
import pytest
from hub import Hub


def medium_of(repositories, folder):
    """Original names, one folder for each repository."""
    for r in repositories:
        for path, f in r.files.items():
            target = folder / r.name.split("/")[1] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(f.read())
    return folder


def flat(repository, folder):
    folder.mkdir(parents=True)
    for path, f in repository.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(f.read())
    return folder


def test_import_of_a_finished_folder(make_hub, make_fetch, hub, fetch):
    """The folder of another box."""
    fetch.run()
    other = make_fetch(hub, lock=fetch.lock)
    hub.clear()
    other.run("import", str(fetch.model))
    other.run()
    other.check()
    assert not hub.requests("cdn"), "nothing had to be downloaded"


def test_import_of_original_shards(hub, make_fetch, small, tmp_path):
    """Whole official shards are sources of cuts too."""
    fetch = make_fetch(hub)
    medium = medium_of(small, tmp_path / "usb")
    fetch.run("import", str(medium))
    fetch.run()
    fetch.check()
    assert not hub.requests("cdn")


def test_no_server_is_needed_for_an_imported_model(hub, make_fetch, small, tmp_path):
    fetch = make_fetch(hub, endpoints="")
    fetch.refused("endpoints is empty", command="run", code=78)
    fetch.run("import", str(medium_of(small, tmp_path / "usb")))
    fetch.run()
    fetch.check()
    assert not hub.requests()


def test_import_of_a_part(hub, make_fetch, small, tmp_path):
    """The rest comes over the line."""
    fetch = make_fetch(hub)
    medium = flat(small[1], tmp_path / "usb")
    fetch.run("import", str(medium), code=75)
    fetch.run()
    fetch.check()
    assert hub.requests("cdn", "model-00003-of-00018") and not hub.requests("cdn", "model-00001-of-00002")


def test_import_of_damaged_files(hub, make_fetch, small, tmp_path):
    """Wrong bytes on the medium are found and fetched."""
    fetch = make_fetch(hub)
    medium = medium_of(small, tmp_path / "usb")
    bad = medium / small[0].name.split("/")[1] / "model-00002-of-00018.safetensors"
    data = bytearray(bad.read_bytes())
    data[5000] ^= 1
    bad.write_bytes(data)
    r = fetch.run("import", str(medium), code=None)
    assert r.code == 65 and "dense/00002.safetensors" in r.text, r.text
    fetch.run()
    fetch.check()


def test_import_follows_no_links(hub, make_fetch, small, tmp_path):
    fetch = make_fetch(hub)
    medium = medium_of(small, tmp_path / "usb")
    target = medium / small[0].name.split("/")[1] / "model-00002-of-00018.safetensors"
    data = target.read_bytes()
    (tmp_path / "elsewhere").write_bytes(data)
    target.unlink()
    target.symlink_to(tmp_path / "elsewhere")
    fetch.run("import", str(medium), code=None)
    hub.clear()
    fetch.run()
    fetch.check()
    assert hub.requests("cdn", "model-00002-of-00018"), "a link was followed"


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/loop-control"), reason="needs root and loop devices")
def test_import_of_a_device(hub, make_fetch, small, tmp_path):
    """A stick that nobody mounted: mounted read-only for the time of the import."""
    image, point = tmp_path / "stick", tmp_path / "mount"
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    point.mkdir()
    if subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=False, capture_output=True).returncode:
        pytest.skip("cannot mount")
    medium_of(small, point)
    subprocess.run(["umount", str(point)], check=True)
    device = subprocess.run(["losetup", "-f", "--show", str(image)], check=True, capture_output=True,
                            text=True).stdout.strip()
    try:
        fetch = make_fetch(hub)
        fetch.run("import", device)
        assert device not in Path("/proc/mounts").read_text(), "still mounted"
        fetch.run()
        fetch.check()
        assert not hub.requests("cdn")
    finally:
        subprocess.run(["losetup", "-d", device], check=False)


@pytest.mark.parametrize("seed", range(3))
def test_import_is_killed_and_goes_on(hub, make_fetch, demo, tmp_path, seed):
    rng = random.Random(seed)
    fetch = make_fetch(Hub(*demo), lock=locks.lock_of(*demo, chunk=1 << 20), sync_bytes=1 << 20, sync_time="50ms")
    medium = medium_of(demo, tmp_path / "usb")
    for _ in range(4):
        p = fetch.start("import", str(medium))
        time.sleep(rng.uniform(0.05, 0.5))
        p.kill()
        p.wait()
        fetch.check_sane()
    fetch.run("import", str(medium))
    fetch.run()
    fetch.check()
    assert not fetch.hubs[0].requests("cdn")
    fetch.hubs[0].close()


def test_import_from_nowhere(fetch):
    fetch.refused("/nowhere/at/all", command="import", args=("/nowhere/at/all",), code=66)


def test_import_on_the_same_disk_does_not_copy(hub, make_fetch, small):
    fetch = make_fetch(hub)
    medium = medium_of(small, fetch.folder / "usb")
    fetch.run("import", str(medium))
    fetch.run()
    fetch.check()
    out = next(e for e in fetch.lock["files"] if e["out"].startswith("experts/"))
    source = medium / small[1].name.split("/")[1] / out["path"]
    clones = subprocess.run(["cp", "--reflink=always", str(source), str(fetch.folder / "clone")], check=False,
                            capture_output=True).returncode == 0
    assert clones or source.stat().st_ino == (fetch.model / out["out"]).stat().st_ino


# Verification

def test_verify_of_a_whole_model(hub, fetch):
    fetch.run()
    r = fetch.run("verify")
    assert r.text


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        b = f.read(1)
        f.seek(at)
        f.write(bytes([b[0] ^ 8]))


@pytest.mark.parametrize("out,at", [("dense/00002.safetensors", 70_000), ("dense/00003.safetensors", 9000),
                                    ("engram/00017.safetensors", 200_000), ("config.json", 5)])
def test_bit_rot_is_found_and_only_that_fetched_again(hub, fetch, out, at):
    fetch.run()
    flip(fetch.model / out, at)
    r = fetch.run("verify", code=None)
    assert r.code > 0 and out in r.text
    hub.clear()
    fetch.run(timeout=60)
    fetch.check()
    size = next(e for e in fetch.lock["files"] if e["out"] == out)["size"]
    assert hub.sent() <= min(size, 4 * 65536) + 70_000, "more than the bad pieces"


def test_verify_json(hub, fetch):
    fetch.run()
    r = fetch.run("verify", "--json")
    assert r.events()


# Lock files made here

def test_hashes_are_recorded_at_the_first_download(hub, make_fetch, small):
    """A lock file made from metadata has no chunk hashes; the model's own has them afterwards, and says so."""
    fetch = make_fetch(hub, lock=locks.lock_of(*small, hashes=False) | {"made_here": True})
    fetch.run()
    fetch.check()
    kept = json.loads((fetch.model / "lock.json").read_text())
    cuts = [e for e in kept["files"] if e["mode"] == "cut"]
    assert all(t["sha256"] for e in cuts for t in e["tensors"])
    for e in cuts:
        theirs = {t["name"]: t["sha256"] for t in next(
            x for x in locks.lock_of(*small)["files"] if x["out"] == e["out"])["tensors"]}
        assert {t["name"]: t["sha256"] for t in e["tensors"]} == theirs
    state = json.loads((fetch.model / "state.json").read_text())
    assert "not independently verified" in json.dumps(state) or state.get("verified") is False
