"""hx-cards list and state over every recorded machine, beside p2p_check; absent hardware; arguments."""
import json
import re
import subprocess
import time

import pytest

from conftest import HX_CARDS, hardware

CASES = hardware.case_names()
IDENTIFIERS = re.compile(r"GPU-[0-9a-f]{8}-|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|[0-9a-f]{8}-[0-9a-f]{4}-|root@")


def cards(*words, timeout=60):
    return subprocess.run([HX_CARDS, *words], capture_output=True, text=True, timeout=timeout)


def options(box):
    return ["--root", box.root, "--config", box.path("config.json"), "--nvml", box.path("nvml.so"), "--commands",
            box.path("commands.json"), "--kernel-log", box.path("dmesg.txt"), "--tool-timeout", "0.5"]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A recorded machine, what p2p_check says about it, and the inventory."""
    files = hardware.read_case(request.param)
    box = hardware.Machine(files, tmp_path_factory.mktemp(request.param))
    box.check("--output", box.path("p2p.json"))
    done = cards("list", "--json", *options(box), "--checks", box.path("p2p.json"))
    assert done.stdout, done.stderr
    return request.param, files, box, json.loads(done.stdout), done.returncode


def test_state_of_each_card(case):
    name, files, box, found, _ = case
    with open(box.path("p2p.json"), encoding="utf-8") as f:
        axes = json.load(f)["axes"]
    memory, compute = axes["memory"], axes["compute"]
    seen = {"unlocked": {"full": "unlocked", "unknown": "memory unlocked"}.get(compute, "partly unlocked"),
            "stock": "partly unlocked" if compute == "full" else "stock", "oversize": "more than it has",
            "odd": "odd", "absent": "not seen by the driver"}[memory]
    states = [c["state"] for c in found["cards"]]
    if name == "xid79-three-of-four":
        assert states == [seen] * 3 + ["lost"]
    else:
        assert states == [seen] * len(states)
    if axes["sm"] and len(axes["sm"]) == 1:
        assert {c["sm"] for c in found["cards"] if c["state"] != "lost"} == set(axes["sm"])


def test_values_are_those_of_the_machine(case):
    _, files, _, found, _ = case
    devices = {d["pci"]["busId"][4:].lower(): d for d in files["nvml.json"].get("devices", [])}
    entries = files["fs.json"]["entries"]
    for c in found["cards"]:
        folder = next(p for p in entries if p.endswith(c["address"] + "/device"))[:-len("/device")]
        assert c["device"] == entries[folder + "/device"]["text"].strip()[2:]
        assert c["variant"] == {"20c2": "8gb", "2082": "10gb"}[c["device"]]
        assert c["usable"] is (c["device"] == "20c2")
        d = devices.get(c["address"])
        if d is None or c["state"] in ("lost", "not seen by the driver"):
            continue
        assert c["memory_mib"] == d["memory_mib"]["total"]
        assert c["firmware"] == d["vbios"] and c["product"] == d["name"] and c["uuid"] == d["uuid"]
        assert c["power_w"]["cap"] == d["power_w"]["enforced"] and c["power_w"]["now"] == d["power_w"]["usage"]
        assert c["temp_c"] == {"core": d["temp_c"]["core"], "memory": d["temp_c"]["memory"]}
        assert c["clocks_mhz"]["sm"] == d["clocks_mhz"]["sm"] and c["clocks_mhz"]["memory"] == d["clocks_mhz"]["mem"]
        assert c["ecc"] == "not supported"
        bits = int(d["event_reasons"], 16)
        words = {0x1: "idle", 0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
                 0x40: "hardware thermal", 0x80: "power brake"}
        assert c["throttle"] == (", ".join(w for b, w in words.items() if bits & b) or "none")


def test_module_axis_and_exit_status(case):
    name, files, box, found, code = case
    expected = files["expected.json"]
    if "axes" in expected:
        assert found["driver"]["module"] == expected["axes"]["module"]
    assert found["overall"] == ["ready", "degraded", "not_ready", "unsupported"][code]
    # What needs no measurement is judged as p2p_check judges it.
    done = cards("state", "--json", *options(box))
    mine = {c["id"]: c["status"] for c in json.loads(done.stdout)["checks"]}
    with open(box.path("p2p.json"), encoding="utf-8") as f:
        theirs = {c["id"]: c["status"] for c in json.load(f)["checks"]}
    for check in mine:
        if check[:3] in ("INV", "DRV") or check in ("MEM-01", "MEM-02", "PWR-01"):
            assert mine[check] == theirs[check], check


def test_no_identifiers_when_redacted(case):
    _, files, box, _, _ = case
    for words in (["list"], ["state"]):
        done = cards(*words, "--json", "--redact", *options(box))
        assert not IDENTIFIERS.search(done.stdout), words


def test_text_names_every_card(case):
    _, _, box, found, code = case
    done = cards(*options(box), "--checks", box.path("p2p.json"))
    assert done.returncode == code and done.stderr == ""
    for c in found["cards"]:
        assert c["address"] in done.stdout and c["state"] in done.stdout
    if not found["cards"]:
        assert "No CMP 170HX was found in this machine" in done.stdout


@pytest.mark.parametrize("words,code", [
    ([], 3), (["list"], 3), (["list", "--json"], 3), (["state"], 3), (["bundle", "status"], 0), (["bundle", "start"], 0),
    (["bundle", "rollback"], 2), (["bundle", "confirm"], 3), (["watch", "--once"], 3)])
def test_without_driver_and_cards(words, code, tmp_path):
    (tmp_path / "root").mkdir()
    start = time.monotonic()
    done = cards(*words, "--root", str(tmp_path / "root"))
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout or done.stderr
    assert time.monotonic() - start < 1


def test_this_machine_answers():
    done = cards()
    assert done.returncode in (0, 1, 2, 3) and done.stdout


def test_explain_covers_every_check():
    known = hardware.load(hardware.VECTORS + "/checks.json")
    for check in known["checks"]:
        done = cards("--explain", check["id"])
        assert done.returncode == 0 and check["title"] in done.stdout
    for remedy in known["remedies"]:
        assert cards("--explain", remedy).returncode == 0
    assert cards("--explain", "XYZ-01").returncode == 64


@pytest.mark.parametrize("words,said", [
    (["nonsense"], "unknown command 'nonsense'"),
    (["bundle"], "expected verify, install"),
    (["bundle", "verify"], "expected one folder or archive"),
    (["bundle", "status", "more"], "expected nothing more"),
    (["--nonsense"], "unknown option"),
    (["--root"], "lacks its value"),
    (["--now", "5"], "--now is for recorded machines"),
    (["--was-off", "maybe"], "expected yes or no"),
    (["--state", "relative"], "expected an absolute folder"),
    (["--tool-timeout", "0"], "expected 0.01 to 600 seconds"),
    (["--root", "/nonexistent-folder"], "/nonexistent-folder"),
])
def test_usage(words, said):
    done = cards(*words)
    assert done.returncode == 64 and said in done.stderr


def test_help_and_version():
    assert "bundle install" in cards("--help").stdout
    assert cards("--version").stdout.startswith("hx-cards ")


def test_bad_settings(tmp_path):
    conf = tmp_path / "cards.conf"
    conf.write_text("[cards]\npower_cap = lots\n")
    done = cards("list", "--config", str(conf))
    assert done.returncode == 4 and "power_cap" in done.stderr and "cards.conf" in done.stderr


def test_bad_result_file(tmp_path):
    bad = tmp_path / "p2p.json"
    for text in ("", "[]", "{}", '{"checks": 3}', "{" * 100):
        bad.write_text(text)
        done = cards("list", "--checks", str(bad))
        assert done.returncode == 4 and "p2p.json" in done.stderr


def test_result_is_kept(tmp_path):
    done = cards("state", "--output", str(tmp_path / "cards.json"))
    assert done.returncode in (0, 1, 2, 3)
    assert json.loads((tmp_path / "cards.json").read_text())["overall"]
