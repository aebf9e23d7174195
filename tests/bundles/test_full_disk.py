"""A disk that fills up at any point of an install: one clear error, the active slot untouched."""
import json
import os
import subprocess

import pytest

from conftest import Bundle, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")


@pytest.fixture
def small_disk(machine):
    """The driver folder on a file system of its own, of `mib`."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = []

    def mount(kib):
        machine.driver.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", machine.driver],
                              capture_output=True, text=True)
        if done.returncode:
            pytest.skip("cannot mount here: " + done.stderr.strip())
        mounted.append(machine.driver)
        return machine

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


def test_refused_before_anything_is_written(small_disk, kernel, tmp_path, prebuilt):
    m = small_disk(8 << 10)
    said = m.bundle("install", prebuilt_bundle(tmp_path / "b", kernel, prebuilt).write(), *ACCEPT, rc=2)
    assert (said["fail"], said["first_error"]) == (["BND-04"], "free space")
    assert list(m.driver.iterdir()) == []


def test_build_fills_the_disk(small_disk, kernel, tmp_path):
    m = small_disk(40 << 10)
    b = Bundle(tmp_path / "b", kernel)
    b.files["build.sh"] = ("script", "0755", "#!/bin/sh\ndd if=/dev/zero of=$OUT/big bs=1M count=100\n")
    done = m.run("bundle", "install", b.write(), *ACCEPT)
    assert done.returncode == 4 and "No space left on device" in done.stderr
    status = m.bundle("status")
    assert (status["state"], status["next_start"]) == ("failed", None)
    assert sorted(p.name for p in m.driver.iterdir()) == ["active.json", "boot.json", "build.log", "journal.json",
                                                        "lock"]


def test_disk_full_at_every_new_file(small_disk, kernel, tmp_path, prebuilt):
    """The disk has no room for one more file, then for one, two, three, ... until the install works."""
    m = small_disk(64 << 10)
    m.bundle("install", prebuilt_bundle(tmp_path / "one", kernel, prebuilt, "one").write(), *ACCEPT)
    m.start(off=60)
    m.bundle("start")
    path = m.driver / "journal.json"
    j = json.loads(path.read_text())
    j.update(state="committed", active="a", candidate=None)
    path.write_text(json.dumps(j))
    before = {k: v for k, v in m.tree().items() if k.startswith("slot-a/")}
    two = prebuilt_bundle(tmp_path / "two", kernel, prebuilt, "two").write()
    failed = 0
    for room in range(60):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={used_inodes(m) + room}", m.driver], check=True)
        done = m.run("bundle", "install", two, *ACCEPT)
        assert {k: v for k, v in m.tree().items() if k.startswith("slot-a/")} == before, room
        subprocess.run(["mount", "-o", "remount,nr_inodes=1000", m.driver], check=True)
        status = m.bundle("status")
        assert status["active"] == "a"
        if done.returncode == 0:
            assert status["state"] == "armed"
            break
        assert done.returncode == 4 and "No space left on device" in done.stderr, (room, done.stderr)
        assert status["next_start"] == "a"
        failed += 1
    assert 4 < failed < 59


def used_inodes(machine):
    st = os.statvfs(machine.driver)
    return st.f_files - st.f_ffree
