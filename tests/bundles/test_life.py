"""Slots over starts of the machine: trial, confirmation, roll-back by hand and by itself, damage, removal."""
import json

import pytest

from conftest import Machine, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")


@pytest.fixture
def one(machine, kernel, tmp_path, prebuilt):
    """Slot a is armed."""
    machine.bundle("install", prebuilt_bundle(tmp_path / "b1", kernel, prebuilt, "one").write(), *ACCEPT)
    return machine



def test_armed_slot_waits_for_the_next_start(one):
    plan = one.bundle("start")
    assert (plan["action"], plan["slot"]) == ("nothing", None)
    assert "next start" in plan["why"]
    assert one.bundle("status")["state"] == "armed"


def test_start_loads_the_slot_on_trial(one, kernel):
    one.start(off=60)
    plan = one.bundle("start")
    assert (plan["action"], plan["slot"]) == ("load", "a")
    folder = f"lib/modules/{kernel}/updates/owner-bundle"
    assert plan["modules"] == [
        {"name": "nvidia", "path": f"{folder}/nvidia.ko",
         "options": "NVreg_RegistryDwords=RmForceEnableGen2=1;RMPcieLinkSpeed=0x1;ForceP2P=0x11"},
        {"name": "nvidia-uvm", "path": f"{folder}/nvidia-uvm.ko", "options": None}]
    assert one.bundle("status")["state"] == "probing"
    # Asked again in the same start: the same answer, and it counts once.
    assert one.bundle("start")["slot"] == "a"
    assert one.bundle("status")["starts"] == 1


def test_two_starts_without_confirmation_roll_back(one):
    for n in (1, 2):
        one.start(off=60)
        assert one.bundle("start")["slot"] == "a"
        assert one.bundle("status")["starts"] == n
    one.start(off=60)
    plan = one.bundle("start", rc=1)
    assert (plan["action"], plan["slot"], plan["rolled_back"]) == ("nothing", None, True)
    assert "not confirmed" in plan["why"]
    status = one.bundle("status")
    assert (status["state"], status["next_start"], status["power_off_wanted"]) == ("rolled_back", None, True)
    one.start(off=60)
    assert one.bundle("start")["action"] == "nothing"


@pytest.mark.parametrize("off,said", [(60, "yes"), (30, "yes"), (29, "warm"), (0, "warm"), (None, "unknown")])
def test_power_off_is_measured(one, off, said):
    one.clock += 5
    one.bundle("stop")
    one.start(off=None if off is None else off - 100)
    assert one.bundle("start")["cold_start"] == said


@pytest.mark.parametrize("answer,said", [("yes", "yes"), ("no", "warm")])
def test_power_off_is_confirmed_by_the_owner(one, answer, said):
    one.start(off=None)
    assert one.bundle("start", "--was-off", answer)["cold_start"] == said


def test_without_a_clean_stop_the_time_is_unknown(one):
    one.start(off=60)
    assert one.bundle("start")["cold_start"] == "unknown"


def test_driver_off_word(one):
    one.put("proc/cmdline", "quiet hx.driver=off\n")
    one.start(off=60)
    plan = one.bundle("start")
    assert (plan["action"], plan["modules"]) == ("off", [])
    assert one.bundle("status")["state"] == "armed"


def test_damaged_slot_is_not_loaded(one, kernel):
    module = one.driver / f"slot-a/lib/modules/{kernel}/updates/owner-bundle/nvidia.ko"
    data = bytearray(module.read_bytes())
    data[100] ^= 1
    module.write_bytes(data)
    assert one.bundle("status", rc=2)["slots"][0]["intact"] is False
    one.start(off=60)
    plan = one.bundle("start", rc=1)
    assert plan["rolled_back"] and "nvidia.ko: differs" in plan["why"] and plan["modules"] == []


def test_file_added_to_a_slot_is_damage(one, kernel):
    (one.driver / f"slot-a/lib/modules/{kernel}/updates/owner-bundle/extra.ko").write_text("x")
    assert "not installed" in one.bundle("status", rc=2)["slots"][0]["damage"]


def test_other_kernel_waits(one):
    """Armed for a kernel that another start will bring: kept, not loaded."""
    one.put("proc/sys/kernel/osrelease", "6.99.0-old\n")
    one.start(off=60)
    plan = one.bundle("start")
    assert plan["action"] == "nothing" and "for kernel" in plan["why"]
    assert one.bundle("status")["state"] == "armed"


def test_rollback_of_an_armed_slot(one):
    status = one.bundle("rollback")
    assert (status["state"], status["next_start"], status["power_off_wanted"]) == ("rolled_back", None, False)


def test_rollback_without_a_way_back(machine):
    done = machine.run("bundle", "rollback")
    assert done.returncode == 2 and "no previous slot" in done.stderr


def test_remove_needs_yes(one):
    done = one.run("bundle", "remove", "--all")
    assert done.returncode == 64 and "--yes" in done.stderr
    assert one.bundle("status")["state"] == "armed"


def test_remove_all(one):
    status = one.bundle("remove", "--all", "--yes")
    assert status["state"] == "absent" and status["next_start"] is None
    assert sorted(p.name for p in one.driver.iterdir()) == ["active.json", "boot.json", "journal.json", "lock"]


def test_damaged_journal(one):
    (one.driver / "journal.json").write_text('{"schema": 1, "state": "arm')
    for command in ("status", "start", "rollback"):
        done = one.run("bundle", command)
        assert done.returncode == 4 and "bundle remove --yes --all" in done.stderr
    assert one.bundle("remove", "--all", "--yes")["state"] == "absent"


def test_kernel_words_follow_the_next_start(one):
    words = json.loads((one.driver / "boot.json").read_text())
    assert (words["slot"], words["add"]) == ("a", ["iommu=off"])
    assert words["remove"] == ["iommu=pt", "intel_iommu=on", "amd_iommu=on"]
    one.bundle("rollback")
    assert json.loads((one.driver / "boot.json").read_text())["add"] == []


def test_facts_for_the_checks(one, kernel):
    bundle = json.loads((one.driver / "active.json").read_text())["bundle"]
    assert bundle["by_path"] is True and bundle["state_ok"] is True and bundle["signed_by_trusted"] is False
    assert bundle["module_dir"] == f"/var/lib/hx170/driver/slot-a/lib/modules/{kernel}/updates/owner-bundle"
    assert bundle["driver_version"] == "610.43.03"


def test_one_at_a_time(one):
    import fcntl
    with open(one.driver / "lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        done = one.run("bundle", "rollback")
        assert done.returncode == 4 and "another hx-cards" in done.stderr
        assert one.bundle("status")["state"] == "armed"


def test_without_bundle(machine):
    status = machine.bundle("status")
    assert status["state"] == "absent"
    assert machine.bundle("start")["action"] == "nothing"
