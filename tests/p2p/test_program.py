"""The program around the checks: absent hardware, options, results on disk, the probe's process."""
import json
import os
import re
import shutil
import stat
import time

import pytest

import machine

CHECKS = machine.load(os.path.join(machine.VECTORS, "checks.json"))
GOOD = machine.read_case("good-gen2-x16-mailbox")
IDENTIFIERS = re.compile(r"GPU-[0-9a-f]{8}-|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|[0-9a-f]{8}-[0-9a-f]{4}-")


def quick(*words, **more):
    start = time.monotonic()
    done = machine.run(*words, **more)
    return done, time.monotonic() - start


def fake_probe(folder, how, result=None, **more):
    """A folder with the stand-in for hx-probe; returns the program's path."""
    folder.mkdir()
    program = folder / "hx-probe"
    shutil.copy(os.path.join("tests", "p2p", "fake_probe.py"), program)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "plan.json").write_text(json.dumps({"how": how, "result": result, **more}))
    return str(program)


# Absent hardware

def test_this_machine_answers_at_once():
    done, took = quick("--output", "")
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert done.stdout
    if done.returncode == 3:
        assert "No CMP 170HX" in done.stdout and "R-" in done.stdout
        assert took < 1


@pytest.mark.parametrize("words", [[], ["--full"], ["--json"], ["--all"], ["--no-probe"], ["--quick", "--redact"]])
def test_without_driver_and_cards(words, tmp_path):
    (tmp_path / "root").mkdir()
    done, took = quick("--root", str(tmp_path / "root"), *words)
    assert done.returncode == 3 and done.stderr == ""
    assert took < 1
    if "--json" in words:
        assert json.loads(done.stdout)["overall"] == "unsupported"
    else:
        assert "No CMP 170HX was found in this machine." in done.stdout
        assert "[R-SEAT]" in done.stdout


def test_cards_without_driver(tmp_path):
    files = machine.read_case("kernel-changed")
    done = machine.Machine(files, tmp_path).check(probe=False)
    assert done.returncode == 2
    assert "the driver sees 0 of 4 cards" in done.stdout


def test_driver_that_hangs_is_left_after_its_limit(tmp_path):
    box = machine.Machine(machine.read_case("gsp-init-failed"), tmp_path)
    start = time.monotonic()
    result, _ = box.result()
    assert time.monotonic() - start < 5
    assert machine.statuses(result)["ERR-04"] == "fail"


# Explanations

def test_explain_covers_every_id():
    for check in CHECKS["checks"]:
        done = machine.run("--explain", check["id"])
        assert done.returncode == 0
        for word in (check["id"], check["title"], check["pass"], check["remedy"]):
            assert word in done.stdout
        assert ("gates serving" in done.stdout) == check["gate"]
    for remedy, text in CHECKS["remedies"].items():
        done = machine.run("--explain", remedy)
        assert done.returncode == 0
        assert text.split()[0] in done.stdout
        assert " ".join(done.stdout.split()).find(text) >= 0


def test_explain_of_an_unknown_id():
    done = machine.run("--explain", "XYZ-99")
    assert done.returncode == 64 and "no check or remedy" in done.stderr


def test_list_has_every_id():
    done = machine.run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [c["id"] for c in CHECKS["checks"]]


# Settings of the box

def test_recorded_source_version_needs_no_tool(tmp_path):
    """hx-cards records it when it installs; an image without modinfo can still tell the modules apart."""
    files = machine.apply_mutation(GOOD, [{"file": "config.json", "pointer": "/bundle/srcversion", "value": "B" * 23}])
    files["commands.json"]["commands"] = []
    result, _ = machine.Machine(files, tmp_path / "same").result()
    assert machine.statuses(result)["DRV-03"] == "pass"
    files["config.json"]["bundle"]["srcversion"] = "E" * 23
    result, _ = machine.Machine(files, tmp_path / "other").result()
    assert machine.statuses(result)["DRV-03"] == "fail"
    assert result["axes"]["module"] == "shadowed"


def test_compressed_module(tmp_path):
    files = machine.apply_mutation(GOOD, [])
    folder = files["config.json"]["bundle"]["module_dir"]
    files["fs.json"]["entries"][folder + "/nvidia.ko.xz"] = files["fs.json"]["entries"].pop(folder + "/nvidia.ko")
    for command in files["commands.json"]["commands"]:
        command["argv"] = [w + ".xz" if w == folder + "/nvidia.ko" else w for w in command["argv"]]
    result, _ = machine.Machine(files, tmp_path).result()
    assert machine.statuses(result)["DRV-03"] == machine.statuses(result)["DRV-10"] == "pass"


def test_memory_that_is_warm_while_idle(tmp_path):
    files = machine.apply_mutation(GOOD, [{"file": "nvml.json", "pointer": "/devices/1/temp_c/memory", "value": 63}])
    result, _ = machine.Machine(files, tmp_path).result()
    assert machine.statuses(result)["THM-02"] == "warn"


# Usage and bad files

@pytest.mark.parametrize("words, message", [
    (["--nonsense"], "unknown option"),
    (["extra"], "unexpected argument"),
    (["--probe"], "needs a value"),
    (["--tool-timeout", "soon"], "0.05 to 600"),
    (["--probe-limit", "0"], "1 to 86400"),
    (["--full", "--probe", "x"], "choose one"),
])
def test_usage(words, message):
    done = machine.run(*words)
    assert done.returncode == 64 and message in done.stderr and done.stderr.count("\n") == 1


def test_help_and_version():
    assert "--explain" in machine.run("--help").stdout
    assert machine.run("--version").stdout.startswith("p2p_check ")


@pytest.mark.parametrize("option, text, message", [
    ("--probe", "{", "invalid JSON"),
    ("--probe", '{"schema": 2, "devices": []}', "schema: expected 1"),
    ("--probe", '{"schema": 1, "devices": 3}', "devices: found a number, expected a list"),
    ("--probe", '{"schema": 1, "devices": [{"sm_count": -5}]}', "sm_count: found -5, expected 0 to 4096"),
    ("--probe", '{"schema": 1, "devices": [], "p2p": {"can_access": [[null, 1]]}}', "row 0 has not 1 values"),
    ("--probe", '{"schema": 1, "devices": [], "p2p": {"can_access": [[null, 1], [1, null]], "copy": {"outcome": "fine"}}}',
     "copy.outcome"),
    ("--config", '{"want_cards": 99}', "want_cards: found 99, expected 1 to 16"),
    ("--config", '{"p2p_kind": "fast"}', "p2p_kind: found 'fast'"),
    ("--config", '{"bundle": {"module_dir": "updates"}}', "is not an absolute path"),
    ("--commands", '{"commands": [{"argv": []}]}', "commands[0].argv"),
    ("--commands", '{"commands": [{"argv": ["x"], "rc": 0, "file": "../../etc/passwd"}]}', "commands[0].file"),
])
def test_bad_files(option, text, message, tmp_path):
    box = machine.Machine(GOOD, tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    done = box.check(option, str(bad))
    assert done.returncode == 4
    assert message in done.stderr and str(bad) in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize("option", ["--root", "--config", "--commands", "--kernel-log", "--probe"])
def test_missing_files(option, tmp_path):
    done = machine.Machine(GOOD, tmp_path).check(option, str(tmp_path / "nowhere"))
    assert done.returncode == 4 and "nowhere" in done.stderr and "No such file" in done.stderr


def test_missing_library_falls_back_to_the_tool(tmp_path):
    """The tool's text stands in for the management library; what it does not tell is skipped."""
    box = machine.Machine(GOOD, tmp_path)
    result, _ = box.result("--nvml", str(tmp_path / "no.so"))
    now = machine.statuses(result)
    assert now["INV-03"] == now["MEM-01"] == now["PWR-01"] == now["PLT-03"] == now["P2P-02"] == "pass"
    assert now["BAR-02"] == "skip"
    assert result["axes"]["memory"] == "unlocked"


def test_library_without_its_functions(tmp_path):
    box = machine.Machine(machine.read_case("kernel-changed"), tmp_path)
    bad = tmp_path / "bad.so"
    bad.write_text("not a library")
    result, _ = box.result("--nvml", str(bad))
    assert machine.statuses(result)["INV-03"] == "fail"


# Results

def test_result_file_and_show(tmp_path):
    box = machine.Machine(GOOD, tmp_path)
    kept = tmp_path / "p2p.json"
    kept.write_text("old")
    done = box.check("--output", str(kept))
    assert done.returncode == 0
    result = json.loads(kept.read_text())
    assert result["schema"] == 1 and result["boot_id"] and len(result["key"]) == 64
    assert [c["uuid"] for c in result["cards"]] == [d["uuid"] for d in GOOD["nvml.json"]["devices"]]
    assert len(result["pairs"]) == 12 and {p["verdict"] for p in result["pairs"]} == {"pass"}
    assert result["arms"]["p2p"]["us"]["61440"] == 21 and result["arms"]["host"]["busbw_gbps"]["20971520"] == 3.9
    assert not list(tmp_path.glob("*.new"))
    shown = machine.run("--show", str(kept))
    assert shown.returncode == 0 and shown.stdout == done.stdout
    assert json.loads(machine.run("--json", "--show", str(kept)).stdout) == result


def test_result_that_cannot_be_written(tmp_path):
    done = machine.Machine(GOOD, tmp_path).check("--output", str(tmp_path / "no" / "p2p.json"))
    assert done.returncode == 4 and "p2p.json" in done.stderr


def test_show_of_something_else(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"schema": 1}')
    done = machine.run("--show", str(other))
    assert done.returncode == 4 and "not a result of p2p_check" in done.stderr


@pytest.mark.parametrize("name", ["good-gen2-x16-mailbox", "p2p-zero-bytes", "xid79-three-of-four", "gsp-init-failed",
                                  "bar1-missing-behind-switch", "xid31-region-violation"])
def test_redacted_results_have_no_identifiers(name, tmp_path):
    box = machine.Machine(machine.read_case(name), tmp_path)
    done = box.check("--json", "--redact", "--all")
    assert not IDENTIFIERS.search(done.stdout)
    text = box.check("--all")
    assert not IDENTIFIERS.search(text.stdout)


def test_text_of_a_failure(tmp_path):
    done = machine.Machine(machine.read_case("single-rank-fake64"), tmp_path).check()
    assert "Not ready" in done.stdout and "MEM-03 (gate)" in done.stdout
    assert "32 GiB apart share the same cells" in done.stdout
    assert "[follows from MEM-03]" in done.stdout
    assert "[R-ALIAS]" in done.stdout


@pytest.mark.parametrize("pair, name", [("wrong", "p2p-zero-bytes"), ("hang", "p2p-sync-hang"),
                                        ("slow", "p2p-mailbox-unset-029"), ("not applicable", "gen2-x16-no-p2p")])
def test_pairs_are_called_by_their_fault(pair, name, tmp_path):
    result, _ = machine.Machine(machine.read_case(name), tmp_path).result()
    assert {p["verdict"] for p in result["pairs"]} == {pair}


# Logs of another tool

CAPTURES = os.path.join(machine.VECTORS, "observed", "captures")


@pytest.mark.parametrize("name", sorted(machine.load(os.path.join(CAPTURES, "expected.json"))))
def test_bandwidth_logs(name):
    expected = machine.load(os.path.join(CAPTURES, "expected.json"))[name]
    done = machine.run("--json", "--read-log", os.path.join(CAPTURES, name))
    found = json.loads(done.stdout)
    assert found["verdict"] == expected["verdict"]
    assert found["min_on_gbps"] == expected["min_on_gbps"]
    assert found["ratio_on_off"] == expected["ratio_on_off"]
    assert done.returncode == (0 if expected["verdict"] == "fast" else 1)
    if "trap" in expected:
        assert found["latency_us"] < 2


def test_log_of_nothing(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D  0  1\n  0 1.0 2.0\n")
    done = machine.run("--read-log", str(log))
    assert done.returncode == 4 and "no matrix" in done.stderr


# The probe's process

def run_probe(tmp_path, program, *more, files=None, timeout=60):
    box = machine.Machine(files or GOOD, tmp_path / "box")
    words = box.options(probe=False) + ["--probe-program", program, "--quiet", *more]
    done = machine.run(*words, "--json", timeout=timeout)
    return json.loads(done.stdout) if done.stdout else None, done


def test_probe_measures(tmp_path):
    program = fake_probe(tmp_path / "probe", "ok", GOOD["probe.json"])
    result, done = run_probe(tmp_path, program)
    assert done.returncode == 0, done.stderr
    now = machine.statuses(result)
    assert result["layout"]["recommend"] == "TP4_P2P"
    # Readings came from the management library while the probe ran.
    assert now["PWR-02"] == now["PWR-03"] == now["THM-04"] == "pass"
    argv = json.loads((tmp_path / "probe" / "argv.json").read_text())
    uuids = [d["uuid"] for d in GOOD["nvml.json"]["devices"]]
    assert argv[:3] == ["--quick", "--devices", ",".join(uuids)] and "--quiet" in argv


def test_probe_full_and_progress(tmp_path):
    program = fake_probe(tmp_path / "probe", "ok", GOOD["probe.json"])
    _, done = run_probe(tmp_path, program, "--full", "--progress")
    assert "hx-probe: alias test: 3 s, 40 %" in done.stderr
    assert json.loads((tmp_path / "probe" / "argv.json").read_text())[0] == "--full"


def test_probe_that_hangs_is_ended(tmp_path):
    program = fake_probe(tmp_path / "probe", "hang", GOOD["probe.json"])
    start = time.monotonic()
    result, done = run_probe(tmp_path, program, "--probe-limit", "1")
    assert time.monotonic() - start < 20
    # What it had written counts, and the end is named.
    assert machine.statuses(result)["CMP-02"] == "pass"
    assert "did not end within 1 s" in result["probe"]
    assert done.returncode == 0


def test_probe_with_a_partial_result(tmp_path):
    files = machine.read_case("p2p-sync-hang")
    program = fake_probe(tmp_path / "probe", "partial", files["probe.json"])
    result, done = run_probe(tmp_path, program, files=files)
    assert result["axes"]["p2p"] == "hang" and result["layout"]["recommend"] == "TP4_HOST"
    assert "no end within 45 s" in result["probe"] and done.returncode == 1


@pytest.mark.parametrize("how, message", [("crash", "nothing was measured"), ("none", "nothing was measured"),
                                          ("garbage", "nothing was measured"), ("unavailable", "CUDA finds no card")])
def test_probe_without_a_result(how, message, tmp_path):
    result, done = run_probe(tmp_path, fake_probe(tmp_path / "probe", how))
    assert message in result["not_measured"]
    now = machine.statuses(result)
    assert now["CMP-01"] == now["P2P-04"] == now["COL-01"] == "skip"
    assert result["unjudged"] == ["MEM-03", "CMP-01", "CMP-02", "CMP-05", "COL-01"]
    assert result["overall"] == "degraded" and done.returncode == 1


def test_one_card_untested(tmp_path):
    """A gate that was not measured on every card has not been passed."""
    files = machine.apply_mutation(GOOD, [{"file": "probe.json", "pointer": "/devices/2/alias/outcome", "value": "not_run"}])
    result, done = machine.Machine(files, tmp_path / "json").result()
    assert result["unjudged"] == ["MEM-03"] and done.returncode == 1
    done = machine.Machine(files, tmp_path / "text").check()
    assert "Gates that could not be judged: MEM-03" in done.stdout and "MEM-03" in done.stdout


def test_kernel_log_that_cannot_be_read(tmp_path):
    """A made-up root without --kernel-log is a machine whose log is closed to this user."""
    box = machine.Machine(GOOD, tmp_path)
    words = box.options()
    at = words.index("--kernel-log")
    done = machine.run(*words[:at], *words[at + 2:], "--json")
    result = json.loads(done.stdout)
    assert result["unjudged"] == ["ERR-01", "ERR-02"] and result["overall"] == "degraded"


def test_long_test_may_come_later(tmp_path):
    ops = [{"file": "probe.json", "pointer": f"/devices/{i}/pattern/outcome", "value": "not_run"} for i in range(4)]
    result, done = machine.Machine(machine.apply_mutation(GOOD, ops), tmp_path).result()
    assert machine.statuses(result)["MEM-04"] == "skip" and result["unjudged"] == [] and done.returncode == 0


def test_probe_that_is_not_installed(tmp_path):
    result, _ = run_probe(tmp_path, str(tmp_path / "nowhere"))
    assert result["not_measured"] == "hx-probe is not installed"
    assert result["layout"]["recommend"] == "TP4_HOST"


def test_nothing_stays_in_the_temporary_folder(tmp_path):
    before = set(os.listdir("/tmp"))
    run_probe(tmp_path, fake_probe(tmp_path / "probe", "ok", GOOD["probe.json"]))
    assert not [n for n in set(os.listdir("/tmp")) - before if n.startswith("hx-p2p-")]


def test_beside_a_busy_engine(tmp_path):
    program = fake_probe(tmp_path / "probe", "ok", GOOD["probe.json"])
    files = machine.apply_mutation(GOOD, [{"file": "nvml.json", "pointer": "/devices/2/memory_mib/used", "value": 60000}])
    result, done = run_probe(tmp_path, program, files=files)
    assert result["busy"] is True and "in use" in result["not_measured"]
    assert not (tmp_path / "probe" / "argv.json").exists()
    assert machine.statuses(result)["MEM-03"] == "skip" and machine.statuses(result)["MEM-01"] == "pass"
    assert done.returncode == 1


# An earlier verdict

def test_unusable_p2p_stays_off_until_a_full_run(tmp_path):
    broken = machine.read_case("p2p-sync-hang")["probe.json"]
    kept = tmp_path / "p2p.json"
    program = fake_probe(tmp_path / "probe", "ok", broken)
    result, _ = run_probe(tmp_path, program, "--output", str(kept))
    assert result["axes"]["p2p"] == "hang"
    plan = tmp_path / "probe" / "plan.json"
    plan.write_text(json.dumps({"how": "ok", "result": GOOD["probe.json"]}))
    shutil.rmtree(tmp_path / "box")
    result, _ = run_probe(tmp_path, program, "--output", str(kept))
    assert result["p2p_locked"] is True
    assert result["axes"]["p2p"] == "hang" and result["layout"]["recommend"] == "TP4_HOST"
    shutil.rmtree(tmp_path / "box")
    result, _ = run_probe(tmp_path, program, "--full", "--output", str(kept))
    assert result["p2p_locked"] is False and result["axes"]["p2p"] == "verified"


def test_a_hang_under_load_locks_p2p_until_a_full_run(tmp_path):
    kept, mark = tmp_path / "p2p.json", tmp_path / "watch.json"
    program = fake_probe(tmp_path / "probe", "ok", GOOD["probe.json"])

    def run(*options):
        shutil.rmtree(tmp_path / "box", ignore_errors=True)
        return run_probe(tmp_path, program, *options, "--output", str(kept))[0]

    result = run()
    assert result["p2p_locked"] is False and result["axes"]["p2p"] == "verified"
    mark.write_text(json.dumps({"schema": 1, "key": "of another machine", "p2p": "hang"}))
    assert run()["p2p_locked"] is False
    mark.write_text(json.dumps({"schema": 1, "key": result["key"], "p2p": "hang"}))
    locked = run()
    assert locked["p2p_locked"] is True and locked["axes"]["p2p"] == "hang" and locked["layout"]["recommend"] == "TP4_HOST"
    assert mark.exists()
    assert run("--full")["axes"]["p2p"] == "verified" and not mark.exists()
    assert run()["p2p_locked"] is False
    mark.write_text("{")
    assert run()["p2p_locked"] is False


def test_a_changed_machine_has_another_key(tmp_path):
    keys = set()
    for i, ops in enumerate([[], [{"file": "fs.json", "path": "/proc/cmdline", "text": "other\n"}],
                             [{"file": "fs.json", "path": "/sys/module/nvidia/srcversion", "text": "C" * 23 + "\n"}]]):
        result, _ = machine.Machine(machine.apply_mutation(GOOD, ops), tmp_path / str(i)).result()
        keys.add(result["key"])
    assert len(keys) == 3
