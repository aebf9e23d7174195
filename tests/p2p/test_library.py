"""What hw reads from the management library, value by value, and what it refuses to set."""
import errno
import os
import subprocess

import pytest

import machine

PRINT = os.environ["HX_NVML_PRINT"]
GOOD = machine.read_case("good-gen2-x16-mailbox")
UUID = GOOD["nvml.json"]["devices"][2]["uuid"]
UNKNOWN = "-2147483648"


def ask(library, *words):
    return subprocess.run([PRINT, library, *words], capture_output=True, text=True, timeout=60, check=False)


def whole(value, scale=1):
    return UNKNOWN if value is None else str(round(value * scale))


@pytest.mark.parametrize("name", ["good-gen2-x16-mailbox", "mixed-hbm-clocks", "dual-socket-sys", "xid31-region-violation",
                                  "bar1-missing-behind-switch", "other-gpu-h200x2", "hot-hbm"])
def test_every_value_arrives(name, tmp_path):
    files = machine.read_case(name)
    box = machine.Machine(files, tmp_path)
    lines = ask(box.path("nvml.so")).stdout.splitlines()
    assert lines[0] == "state ok" and lines[1] == "driver " + files["nvml.json"]["system"]["driver"]
    for d in files["nvml.json"]["devices"]:
        i, power, heat, pcie, clocks = d["index"], d["power_w"], d["temp_c"], d["pcie"], d["clocks_mhz"]
        recovery = ["None", "Reset", "Reboot"].index(d.get("recovery_action", "None"))
        ecc = {"enabled": 1, "disabled": 0}.get(d["ecc"], -1)
        expected = [
            f"uuid {d['uuid']}", f"name {d['name']}", f"vbios {d['vbios']}", f"bus {d['pci']['busId']}",
            f"memory {d['memory_mib']['total']} {d['memory_mib']['used']} {d['memory_mib']['reserved']}",
            f"bar1 {d['bar1_mib']}", f"ecc {ecc}", f"persistence {d['persistence']}", f"recovery {recovery}",
            "power " + " ".join(whole(power[k], 1000) for k in ("usage", "enforced", "default", "min", "max")),
            "heat " + " ".join(whole(heat[k]) for k in ("core", "memory", "slowdown", "shutdown")),
            f"clocks {clocks['sm']} {clocks['mem']} {clocks['max_sm']}", f"reasons {int(d['event_reasons'], 16)}",
            f"link {pcie['gen']} {pcie['gen_max']} {pcie['width']} {whole(pcie.get('width_max'))}",
            f"replays {pcie['replay']}", f"util {d['util_pct']}",
        ]
        for line in expected:
            assert f"{i} {line}" in lines


def test_under_load(tmp_path):
    box = machine.Machine(machine.read_case("hot-hbm"), tmp_path)
    assert "3 load 91 97 176000" in ask(box.path("nvml-load.so")).stdout.splitlines()


@pytest.mark.parametrize("init, state", [("NVML_ERROR_DRIVER_NOT_LOADED", "driver not loaded"),
                                         ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "version mismatch"),
                                         ("NVML_ERROR_UNKNOWN", "failed")])
def test_states(init, state, tmp_path):
    files = machine.apply_mutation(GOOD, [{"file": "nvml.json", "pointer": "/system/init", "value": init}])
    assert ask(machine.Machine(files, tmp_path).path("nvml.so")).stdout.startswith(f"state {state}\n")


# Settings

def settings(box):
    try:
        with open(box.path("nvml-set.txt"), encoding="utf-8") as f:
            return f.read().splitlines()
    except FileNotFoundError:
        return []


def test_settings_reach_the_named_card_alone(tmp_path):
    box = machine.Machine(GOOD, tmp_path)
    assert ask(box.path("nvml.so"), "limit", UUID, "150").returncode == 0
    assert ask(box.path("nvml.so"), "persistence", UUID, "1").returncode == 0
    assert settings(box) == [f"limit {UUID} 150000", f"persistence {UUID} 1"]
    lines = ask(box.path("nvml.so")).stdout.splitlines()
    assert "2 power 38000 150000 250000 100000 250000" in lines
    assert "1 power 38000 180000 250000 100000 250000" in lines


@pytest.mark.parametrize("case, uuid, watts, code, message", [
    ("good-gen2-x16-mailbox", UUID, "99", errno.ERANGE, "99 W is outside the card's limits of 100 to 250 W"),
    ("good-gen2-x16-mailbox", UUID, "251", errno.ERANGE, "outside"),
    ("good-gen2-x16-mailbox", "GPU-other", "150", errno.ENODEV, "no card with this UUID"),
    ("other-gpu-h200x2", "GPU-00000000-0000-0000-0000-000000000001", "300", errno.EPERM,
     "device 2335 is not a CMP 170HX; its settings stay as they are"),
    ("kernel-changed", UUID, "150", errno.ENODEV, "driver not loaded"),
])
def test_settings_refused(case, uuid, watts, code, message, tmp_path):
    box = machine.Machine(machine.read_case(case), tmp_path)
    done = ask(box.path("nvml.so"), "limit", uuid, watts)
    assert done.returncode == 1 and f"{-code}: power limit: " in done.stderr and message in done.stderr
    assert settings(box) == []


def test_setting_on_a_driver_that_hangs(tmp_path):
    box = machine.Machine(machine.read_case("gsp-init-failed"), tmp_path)
    done = ask(box.path("nvml.so"), "limit", UUID, "150")
    assert f"{-errno.ETIMEDOUT}: power limit: no answer" in done.stderr
