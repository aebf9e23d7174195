"""A cut at every call that changes the disk: what was active stays whole, and the next try works."""
import json

import pytest

from conftest import Machine, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")
STATES = {"absent", "verified", "staged", "built", "signed", "armed", "probing", "committed", "failed", "rolled_back"}


def slot_files(machine, slot):
    return {k: v for k, v in machine.tree().items() if k.startswith(f"slot-{slot}/")}


def small(top, kernel, prebuilt, name):
    """As few files as a bundle can have, so that every cut can be tried."""
    b = prebuilt_bundle(top, kernel, prebuilt, name)
    b.files = {p: f for p, f in b.files.items() if p.startswith(("modules", "userspace"))}
    b.manifest["licences"] = []
    return b.write()


def check_after_cut(machine, before, n):
    """Whatever the moment: a readable journal, a start that loads a whole slot or none."""
    status = machine.run("bundle", "status", "--json")
    assert status.returncode == 0, (n, status.stderr)
    said = json.loads(status.stdout)
    assert said["state"] in STATES
    assert said["active"] == "a" and slot_files(machine, "a") == before, n
    nxt = said["next_start"]
    assert nxt == "a" or said["state"] == "armed", n
    facts = {s["slot"]: s for s in said["slots"]}
    assert facts[nxt]["intact"], (n, facts[nxt])
    return said["state"]


@pytest.fixture
def active(machine, kernel, tmp_path, prebuilt):
    """Slot a is active."""
    machine.bundle("install", small(tmp_path / "one", kernel, prebuilt, "one"), *ACCEPT)
    machine.start(off=60)
    machine.bundle("start")
    commit(machine)
    return machine


def commit(machine):
    """Straight into the journal: what confirms a slot is not the matter of these tests."""
    path = machine.driver / "journal.json"
    j = json.loads(path.read_text())
    assert j["state"] == "probing"
    j.update(state="committed", previous=j["active"], active=j["candidate"], candidate=None, cold_wanted=False)
    path.write_text(json.dumps(j))


def every_cut(machine, tmp_path, *args):
    """Cuts a command at its first, second, ... change of the disk, each time from the same state, until it ends."""
    import shutil
    saved = tmp_path / "saved"
    shutil.copytree(machine.driver, saved, symlinks=True)
    n = 0
    while True:
        n += 1
        shutil.rmtree(machine.driver)
        shutil.copytree(saved, machine.driver, symlinks=True)
        done = machine.run("bundle", *args, cut=n)
        if done.returncode != 137:
            assert done.returncode == 0, done.stderr
            return
        yield n


def test_install(active, kernel, tmp_path, prebuilt):
    bundle = small(tmp_path / "two", kernel, prebuilt, "two")
    before, states, last = slot_files(active, "a"), set(), 0
    for n in every_cut(active, tmp_path, "install", bundle, *ACCEPT):
        states.add(check_after_cut(active, before, n))
        last = n
        # The start after the cut, then the same install again.
        active.start(off=60)
        plan = active.bundle("start")
        assert plan["action"] == "load" and plan["slot"] in ("a", "b")
        if plan["slot"] == "a":
            assert active.bundle("install", bundle, *ACCEPT)["state"] == "armed"
        assert slot_files(active, "a") == before
    assert last > 60
    assert states >= {"committed", "verified", "staged", "armed"}


def test_rollback(active, kernel, tmp_path, prebuilt):
    active.bundle("install", small(tmp_path / "two", kernel, prebuilt, "two"), *ACCEPT)
    active.start(off=60)
    active.bundle("start")
    commit(active)
    assert active.bundle("status")["active"] == "b"
    seen = set()
    for n in every_cut(active, tmp_path, "rollback"):
        said = active.bundle("status")
        seen.add(said["active"])
        assert {said["active"], said["previous"]} == {"a", "b"}
        assert all(s["intact"] for s in said["slots"]), n
        # The words of the next start are brought in line by the next command that decides.
        active.start(off=60)
        assert active.bundle("start")["slot"] == said["active"]
        assert json.loads((active.driver / "boot.json").read_text())["slot"] == said["active"]
    assert seen == {"a", "b"}


def test_start(active, kernel, tmp_path, prebuilt):
    active.bundle("install", small(tmp_path / "two", kernel, prebuilt, "two"), *ACCEPT)
    active.start(off=60)
    before = slot_files(active, "a")
    for n in every_cut(active, tmp_path, "start"):
        said = active.bundle("status")
        assert said["state"] in ("armed", "probing") and said["next_start"] == "b", n
        assert slot_files(active, "a") == before
        assert active.bundle("start")["slot"] == "b"


def test_remove(active, kernel, tmp_path, prebuilt):
    for n in every_cut(active, tmp_path, "remove", "--all", "--yes"):
        status = active.run("bundle", "status", "--json")
        assert status.returncode == 0, (n, status.stdout, status.stderr)
        said = json.loads(status.stdout)
        assert said["next_start"] is None or said["slots"][0]["intact"], n
        assert active.bundle("remove", "--all", "--yes")["state"] == "absent"
