"""Disks that fill up, fail, slow down, turn read-only or cannot hold the files. Loop devices and a file system that
fails on request; without root, /dev/loop or /dev/fuse these are skipped."""
import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import locks
import pytest
from conftest import copy_of, wait_for

ROOT = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/loop-control"),
                          reason="needs root and loop devices")
FUSE = pytest.mark.skipif(not os.path.exists("/dev/fuse") or not shutil.which("fusermount3"), reason="needs /dev/fuse")


@pytest.fixture
def mount(tmp_path):
    """Makes mounted file systems on loop devices."""
    made = []

    def make(megabytes, *mkfs, options="loop"):
        image, point = tmp_path / f"disk{len(made)}", tmp_path / f"mount{len(made)}"
        with open(image, "wb") as f:
            f.truncate(megabytes << 20)
        subprocess.run([*mkfs, str(image)], check=True, capture_output=True)
        point.mkdir()
        r = subprocess.run(["mount", "-o", options, str(image), str(point)], capture_output=True, text=True)
        if r.returncode:
            pytest.skip("cannot mount: " + r.stderr)
        made.append(point)
        return point
    yield make
    for point in made:
        subprocess.run(["umount", "-l", str(point)], check=False)


class Faulty:
    """A folder seen through faultfs."""

    def __init__(self, folder):
        self.below, self.point, self.control = folder / "below", folder / "faulty", folder / "control"
        for p in (self.below, self.point):
            p.mkdir()
        self.control.write_text("")
        self.process = subprocess.Popen([os.environ["HX_FAULTFS"], self.below, self.control, self.point],
                                        stderr=subprocess.DEVNULL)
        wait_for(lambda: os.stat(self.point).st_dev != os.stat(folder).st_dev, 10)

    def fault(self, *lines):
        new = self.control.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.control)

    def close(self):
        self.fault("")
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            subprocess.run(["fusermount3", "-uz", str(self.point)], check=False)
            self.process.wait()


@pytest.fixture
def faulty(tmp_path):
    f = Faulty(tmp_path)
    yield f
    f.close()


def said(p, text):
    """Waits until a running process says something; fails if it ends before."""
    def look():
        if text in p.err.read_text() + p.out.read_text():
            return True
        assert p.poll() is None, p.err.read_text()
        return False
    wait_for(look)


@ROOT
def test_not_enough_disk(make_hub, make_fetch, mount):
    """Refused before the first byte, with what is needed, free and missing."""
    hub = make_hub()
    fetch = make_fetch(hub, models=mount(8, "mkfs.ext4", "-q"))
    r = fetch.refused(str(fetch.models), code=73)
    assert "free" in r.text and "need" in r.text
    assert not hub.requests("cdn")


@ROOT
def test_fat32_is_refused(make_hub, make_fetch, mount):
    if not shutil.which("mkfs.vfat"):
        pytest.skip("needs mkfs.vfat")
    hub = make_hub()
    fetch = make_fetch(hub, models=mount(64, "mkfs.vfat", "-F", "32"))
    fetch.refused("FAT", code=73)
    assert not hub.requests("cdn")


@ROOT
def test_no_inodes(make_hub, make_fetch, mount):
    fetch = make_fetch(make_hub(), models=mount(64, "mkfs.ext4", "-q", "-N", "32"))
    fetch.refused("inodes", code=73)


def fill(path):
    """To the last byte of the file system."""
    for size in (1 << 16, 1 << 10, 1):
        try:
            with open(path, "ab", buffering=0) as f:
                while f.write(bytes(size)):
                    pass
        except OSError:
            pass


@ROOT
def test_disk_full_pauses_and_goes_on(make_hub, make_fetch, mount):
    """Another program fills the disk. Everything stays, and when there is room again the download ends."""
    point = mount(64, "mkfs.ext2", "-q", "-m", "0")     # ext2 reserves nothing in advance
    hub = make_hub()
    fetch = make_fetch(hub, models=point / "models", rate=1_500_000, sync_bytes=65536, sync_time="50ms")
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 1_000_000)
    filler = point / "filler"
    fill(filler)
    wait_for(lambda: "space" in fetch.status().get("waiting", ""), 30)
    assert p.poll() is None
    fetch.check_invisible()
    filler.unlink()
    r = fetch.wait(p, 60)
    assert r.code == 0, r.text
    fetch.check()


@ROOT
def test_reserved_space_is_not_lost_to_others(make_hub, make_fetch, mount):
    """On ext4 the parts are reserved at the start: who fills the disk later does not stop the download."""
    point = mount(64, "mkfs.ext4", "-q", "-m", "0")
    hub = make_hub()
    fetch = make_fetch(hub, models=point / "models", rate=3_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 500_000)
    filler = point / "filler"
    fill(filler)
    os.truncate(filler, max(0, filler.stat().st_size - (4 << 20)))
    r = fetch.wait(p, 60)
    assert r.code == 0, r.text
    fetch.check()


@ROOT
def test_no_room_to_publish(make_hub, make_fetch, mount):
    """All parts have their room, the folder of the finished model has none: it waits for that, too."""
    point = mount(64, "mkfs.ext4", "-q", "-m", "0")
    hub = make_hub()
    fetch = make_fetch(hub, models=point / "models", rate=3_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 500_000)
    filler = point / "filler"
    fill(filler)
    wait_for(lambda: "full" in fetch.status().get("waiting", ""), 60)
    assert p.poll() is None and fetch.status()["rate_10s"] < 1e9
    fetch.check_invisible()
    filler.unlink()
    r = fetch.wait(p, 60)
    assert r.code == 0, r.text
    fetch.check()


@ROOT
def test_turned_read_only_and_back(make_hub, make_fetch, mount):
    point = mount(64, "mkfs.ext4", "-q")
    hub = make_hub()
    fetch = make_fetch(hub, models=point / "models", rate=1_000_000, sync_bytes=65536, sync_time="50ms")
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 1_000_000)
    # As the kernel does by itself after an error.
    subprocess.run(["mount", "-o", "remount,abort", str(point)], check=True, capture_output=True)
    wait_for(lambda: "Read-only" in fetch.status().get("waiting", ""), 30)
    assert p.poll() is None
    fetch.check_invisible()
    p.terminate()
    r = fetch.wait(p, 10)
    assert "Read-only file system" in r.text
    subprocess.run(["umount", str(point)], check=True)
    subprocess.run(["fsck.ext4", "-p", str(point.parent / "disk0")], check=False, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(point.parent / "disk0"), str(point)], check=True)
    fetch.options["rate"] = 0
    fetch.run()
    fetch.check()


@FUSE
def test_write_error_names_file_and_offset(make_hub, make_fetch, faulty):
    hub = make_hub()
    fetch = make_fetch(hub, models=faulty.point)
    faulty.fault("write file=*00003.safetensors.part offset=100000 length=4096 after=1 error=EIO")     # not the reservation
    r = fetch.run(code=74)
    assert re.search(r"00003\.safetensors\.part: .*offset \d+ .*Input/output error", r.text), r.text
    fetch.check_invisible()
    assert list(fetch.incoming.rglob("*.journal")) or list(fetch.incoming.rglob("*.safetensors")), "kept"
    faulty.fault("")
    fetch.run()
    fetch.check()


@FUSE
def test_sync_error_is_not_success(make_hub, make_fetch, faulty):
    """fsync fails once: the kernel may have dropped the pages, so what it covered is not on record."""
    fetch = make_fetch(make_hub(), models=faulty.point)
    faulty.fault("fsync file=*.part after=2 count=1 error=EIO")
    r = fetch.run(code=None)
    if r.code == 0:
        fetch.check()
    else:
        fetch.check_invisible()
        assert "Input/output error" in r.text
        faulty.fault("")
        fetch.run()
        fetch.check()


@FUSE
def test_slow_disk(make_hub, make_fetch, faulty):
    """The line waits for the disk; memory stays bounded, nothing is lost."""
    fetch = make_fetch(make_hub(), models=faulty.point, buffer=1 << 20)
    faulty.fault("write file=*.part delay=20", "fsync delay=50")
    fetch.run(timeout=120)
    fetch.check()


@FUSE
def test_disk_that_writes_less_than_asked(make_hub, make_fetch, faulty):
    fetch = make_fetch(make_hub(), models=faulty.point)
    faulty.fault("write file=*.part short=5000")
    fetch.run(timeout=120)
    fetch.check()


@FUSE
def test_disk_full_by_the_journal(make_hub, make_fetch, faulty):
    """No room for a record: nothing counts that is not on record."""
    fetch = make_fetch(make_hub(), models=faulty.point, sync_bytes=65536, sync_time="50ms")
    faulty.fault("write file=*.journal after=20 error=ENOSPC")
    p = fetch.start()
    wait_for(lambda: "space" in fetch.status().get("waiting", "") or p.poll() is not None)
    assert p.poll() is None, p.err.read_text()
    fetch.check_invisible()
    faulty.fault("")
    r = fetch.wait(p, 60)
    assert r.code == 0, r.text
    fetch.check()


@FUSE
def test_target_vanishes(make_hub, make_fetch, faulty):
    """A drive that drops off the bus; after it is back the next run goes on."""
    hub = make_hub()
    fetch = make_fetch(hub, models=faulty.point, rate=2_000_000, sync_bytes=65536, sync_time="50ms")
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 1_000_000)
    faulty.fault("any error=ENODEV")
    wait_for(lambda: p.poll() is not None or fetch.status().get("waiting"), 30)
    faulty.fault("")
    if p.poll() is None:
        try:
            r = fetch.wait(p, 30)
        except AssertionError:
            r = None
        if r and r.code == 0:
            fetch.check()
            return
    fetch.options["rate"] = 0
    fetch.run()
    fetch.check()


@FUSE
def test_publication_fails(make_hub, make_fetch, faulty):
    """The last rename does not work: nothing is visible, the next run ends it."""
    hub = make_hub()
    fetch = make_fetch(hub, models=faulty.point)
    faulty.fault("meta file=/current* error=EIO", "change file=*state.json* error=EIO")
    r = fetch.run(code=74)
    fetch.check_invisible()
    sent = hub.sent()
    faulty.fault("")
    fetch.run()
    fetch.check()
    assert hub.sent() - sent < 200_000, "the weights were there"


@FUSE
def test_journals_cannot_be_removed(make_hub, make_fetch, faulty):
    """EIO at the very last step: the model is complete all the same, it is said, and the next run tidies up."""
    hub = make_hub()
    fetch = make_fetch(hub, models=faulty.point, rate=2_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 100_000)     # every journal is there by now
    faulty.fault("meta file=*.journal error=EIO")
    r = fetch.wait(p, 60)
    assert r.code == 0, r.text
    assert "cannot be removed (Input/output error); the next run tries again" in r.text
    fetch.check_model()
    assert list(fetch.models.rglob("*.journal"))
    faulty.fault("")
    sent = hub.sent(".safetensors")
    r = fetch.run()
    fetch.check()
    assert not list(fetch.models.rglob("*.journal"))
    assert hub.sent(".safetensors") == sent, "nothing was asked for again"


@FUSE
@pytest.mark.long
def test_every_operation_fails_once(make_hub, make_fetch, faulty, small):
    """EIO at the n-th change of the disk, for n = 0, 7, 14, ...: an error or success, never a wrong model."""
    n = 0
    while n < 700:
        fetch = make_fetch(make_hub(*copy_of(small)), models=faulty.point / f"m{n}")
        faulty.fault(f"change after={n} count=1 error=EIO")
        start = time.time()
        r = fetch.run(code=None, timeout=60)
        assert time.time() - start < 60
        if r.code != 0:
            fetch.check_sane()
            faulty.fault("")
            fetch.run()
        fetch.check_model()
        assert (fetch.models / "current").resolve() == fetch.model.resolve()
        faulty.fault("")
        shutil.rmtree(fetch.models)
        n += 7


@FUSE
def test_stick_is_pulled_and_comes_back(hub, make_fetch, small, faulty):
    """Reading the medium fails in the middle; the next import goes on where it was."""
    for path, f in small[0].files.items():
        (faulty.below / path).parent.mkdir(parents=True, exist_ok=True)
        (faulty.below / path).write_bytes(f.read())
    fetch = make_fetch(hub)
    faulty.fault("read after=40 error=ENODEV")
    p = fetch.start("import", str(faulty.point))
    wait_for(lambda: p.poll() is not None or "medium" in p.err.read_text() + p.out.read_text())
    if p.poll() is None:
        p.terminate()
    fetch.wait(p, 10)
    fetch.check_invisible()
    faulty.fault("")
    fetch.run("import", str(faulty.point), code=None)
    fetch.run()
    fetch.check()
    assert not hub.requests("cdn", "-of-00018")


def test_models_folder_missing_and_not_to_be_made(make_hub, make_fetch):
    fetch = make_fetch(make_hub())
    fetch.options["models"] = "/proc/nowhere/models"
    fetch.refused("/proc", code=73)


def test_models_folder_is_a_file(make_hub, make_fetch):
    fetch = make_fetch(make_hub())
    (fetch.folder / "file").write_text("")
    fetch.options["models"] = fetch.folder / "file"
    fetch.refused(str(fetch.folder / "file"), code=66)


@pytest.mark.skipif("san-" in os.environ["HX_FETCH"], reason="sanitizers need memory of their own")
def test_memory_stays_small(make_hub, make_fetch, demo):
    fetch = make_fetch(make_hub(*copy_of(demo)))
    p = fetch.start()
    most = 0
    while p.poll() is None:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{p.pid}/status").read_text())
            most = max(most, int(found[1]) if found else 0)
        time.sleep(0.01)
    assert p.returncode == 0, p.err.read_text()
    fetch.check()
    assert 1 << 10 < most < 128 << 10


def test_lock_of_tests_covers_all_groups(small):
    """This suite's own lock file has all that a hybrid is made of."""
    outs = [e["out"] for e in locks.lock_of(*small)["files"]]
    assert {o.split("/")[0] for o in outs if "/" in o} == {"dense", "engram", "experts"}
