"""A slot on trial is judged: the good machine of the hardware cases with the slot's module running, and what may be
wrong with it."""
import json
import os
import re
import subprocess

import pytest

from conftest import HX_CARDS, Machine, hardware, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")


class Trial:
    """The recorded machine with a slot that this start has loaded."""

    def __init__(self, folder, kernel, prebuilt):
        files = hardware.read_case("good-gen2-x16-mailbox")
        self.files = files
        entries = files["fs.json"]["entries"]
        entries["/proc/sys/kernel/osrelease"] = {"text": kernel + "\n"}
        info = prebuilt_srcversion(prebuilt["nvidia"])
        entries["/sys/module/nvidia/srcversion"] = {"text": info + "\n"}
        entries["/usr/lib/x86_64-linux-gnu/libcuda.so.610.43.03"] = {"text": ""}
        self.boot = 0
        self.box = hardware.Machine(files, folder / "case")
        self.kernel = kernel
        self.cards("bundle", "install", prebuilt_bundle(folder / "b", kernel, prebuilt).write(), *ACCEPT)
        self.restart()
        assert json.loads(self.cards("bundle", "start", "--json").stdout)["action"] == "load"
        self.check()

    def restart(self):
        self.boot += 1
        self.boot_id = f"11111111-0000-0000-0000-{self.boot:012d}"
        self.write("/proc/sys/kernel/random/boot_id", self.boot_id + "\n")

    def write(self, path, text):
        where = self.box.root + path
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "w", encoding="utf-8") as f:
            f.write(text)

    def check(self):
        """What p2p_check writes at this start, with the recorded measurements."""
        self.p2p_check("--output", self.box.path("p2p.json"))

    def p2p_check(self, *words):
        box = self.box
        return subprocess.run([hardware.PROGRAM, "--root", box.root, "--config", self.active, "--nvml",
                               box.path("nvml.so"), "--nvml-load", box.path("nvml-load.so"), "--commands",
                               box.path("commands.json"), "--kernel-log", box.path("dmesg.txt"), "--probe",
                               box.path("probe.json"), *words], capture_output=True, text=True, timeout=60)

    @property
    def active(self):
        """What hx-cards publishes about the slot."""
        return self.box.root + "/var/lib/hx170/driver/active.json"

    def cards(self, *words, rc=0):
        done = subprocess.run([HX_CARDS, *map(str, words), "--root", self.box.root], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == rc, done.stdout + done.stderr
        return done

    def confirm(self, rc):
        box = self.box
        done = self.cards("bundle", "confirm", "--json", "--nvml", box.path("nvml.so"), "--commands", box.path("commands.json"), "--kernel-log",
                          box.path("dmesg.txt"), "--tool-timeout", "0.5", "--checks", box.path("p2p.json"), rc=rc)
        return json.loads(done.stdout) if done.stdout else done.stderr

    def status(self, rc=0):
        return json.loads(self.cards("bundle", "status", "--json", rc=rc).stdout)


def prebuilt_srcversion(module):
    return re.search(rb"srcversion=([0-9A-F]+)\0", module).group(1).decode()


@pytest.fixture
def trial(tmp_path, kernel, prebuilt):
    return Trial(tmp_path, kernel, prebuilt)


def test_good_slot_is_committed(trial):
    assert trial.status()["state"] == "probing"
    said = trial.confirm(0)
    assert said == {"schema": 1, "confirmed": True, "reasons": [], "notes": []}
    status = trial.status()
    assert (status["state"], status["active"], status["previous"], status["candidate"]) == ("committed", "a", None, None)
    # Committed stays so over further starts; asked again there is nothing to confirm.
    for _ in range(3):
        trial.restart()
        trial.cards("bundle", "start")
    assert trial.status()["state"] == "committed"
    assert "no slot on trial" in trial.confirm(3)


def test_previous_slot_is_kept_and_can_be_gone_back_to(trial, kernel, tmp_path, prebuilt):
    trial.confirm(0)
    trial.cards("bundle", "install", prebuilt_bundle(tmp_path / "b2", kernel, prebuilt, "second").write(), *ACCEPT)
    assert trial.status()["next_start"] == "b"
    trial.restart()
    trial.cards("bundle", "start")
    trial.check()
    trial.confirm(0)
    status = trial.status()
    assert (status["active"], status["previous"], status["name"]) == ("b", "a", "second")
    trial.cards("bundle", "rollback")
    status = trial.status()
    assert (status["active"], status["previous"], status["next_start"], status["name"]) == ("a", "b", "a", "standin")
    assert status["power_off_wanted"] is True
    trial.cards("bundle", "remove", "--yes")
    status = trial.status()
    assert status["active"] == "a" and status["previous"] is None and not status["slots"][1]["present"]


def edit(path, change):
    with open(path, encoding="utf-8") as f:
        doc = json.load(f)
    change(doc)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(doc, f)


def stock_memory(trial):
    edit(trial.box.path("nvml.json"), lambda d: d["devices"][2]["memory_mib"].update(total=8192))


def other_name(trial):
    edit(trial.box.path("nvml.json"), lambda d: d["devices"][0].update(name="NVIDIA Graphics Device"))


def other_module(trial):
    trial.write("/sys/module/nvidia/srcversion", "0123456789ABCDEF01234567\n")


def not_checked(trial):
    edit(trial.box.path("p2p.json"), lambda d: d.update(boot_id="older"))


def failed_check(trial):
    def fail(d):
        next(c for c in d["checks"] if c["id"] == "CMP-02")["status"] = "fail"
    edit(trial.box.path("p2p.json"), fail)


def few_sms(trial):
    edit(trial.box.path("p2p.json"), lambda d: d["axes"].update(sm=[68]))


def unsafe_log(trial):
    with open(trial.box.path("dmesg.txt"), "a", encoding="utf-8") as f:
        f.write("[   12.0] NVRM: late PMA extension status 0x0\n")


def no_driver(trial):
    os.unlink(trial.box.root + "/proc/driver/nvidia/version")


def lost_card(trial):
    config = trial.box.root + "/sys/devices/pci0000:60/0000:60:01.1/0000:61:00.0/config"
    with open(config, "wb") as f:
        f.write(b"\xff" * 4096)


@pytest.mark.parametrize("fault,said", [
    (stock_memory, "card 2 shows 8192 MiB, expected 60000 to 66000"),
    (other_name, "card 0 calls itself 'NVIDIA Graphics Device'"),
    (other_module, "the running module is not the slot's"),
    (not_checked, "p2p_check has not run at this start"),
    (failed_check, "check CMP-02 failed"),
    (few_sms, "a card has 68 SMs, expected at least 70"),
    (unsafe_log, "the kernel log has 'late PMA extension status'"),
    (no_driver, "the driver is not loaded"),
    (lost_card, "card 3 does not answer on the bus"),
])
def test_bad_slot_is_rolled_back(trial, fault, said):
    fault(trial)
    result = trial.confirm(2)
    assert result["confirmed"] is False
    assert any(r.startswith(said) for r in result["reasons"]), result
    status = trial.status()
    assert (status["state"], status["next_start"], status["power_off_wanted"]) == ("rolled_back", None, True)
    assert status["why"] == result["reasons"][0]


def test_lower_link_is_a_note(trial):
    for path in ("/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/current_link_speed",):
        trial.write(path, "2.5 GT/s PCIe\n")
    result = trial.confirm(0)
    assert any("Gen1" in n for n in result["notes"])


def test_checks_read_what_the_slots_publish(trial):
    """p2p_check sees the active bundle: by path, intact, not started cold."""
    def statuses():
        return {c["id"]: c["status"] for c in json.loads(trial.p2p_check("--json").stdout)["checks"]}

    found = statuses()
    assert (found["BND-06"], found["BND-08"], found["DRV-04"], found["DRV-07"]) == ("pass", "warn", "skip", "pass")
    assert found["BND-09"] == "warn"
    path = (f"{trial.box.root}/var/lib/hx170/driver/slot-a/lib/modules/{trial.kernel}/updates/owner-bundle/"
            "driver_version")
    with open(path, "w", encoding="utf-8") as f:
        f.write("changed")
    trial.cards("bundle", "start", rc=1)
    assert statuses()["BND-06"] in ("fail", "skip")
