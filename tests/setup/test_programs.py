"""hx-setup without questions, and hx."""
import json
import pathlib
import tarfile

import pytest

VECTORS = pathlib.Path(__file__).parent.parent / "vectors" / "setup"
ANSWERS = (VECTORS / "answers.conf").read_text()


def test_check(machine, tmp_path):
    done = machine.run("hx-setup", "check", str(VECTORS / "answers.conf"))
    assert done.returncode == 0 and done.stdout.endswith("answers.conf: good\n")
    bad = tmp_path / "bad.conf"
    bad.write_text(ANSWERS.replace("vlan = 7", "vlan = 7000"))
    done = machine.run("hx-setup", "check", str(bad))
    assert done.returncode == 65
    line = ANSWERS.split("\n").index("vlan = 7") + 1
    assert done.stderr == f"hx-setup: {bad}:{line}: vlan: found '7000', expected an integer from 0 to 4094\n"
    assert machine.run("hx-setup", "check", "/nowhere").returncode == 66


def test_unattended(machine):
    """No prompt appears, box.conf has what the file says, a transcript exists."""
    done = machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for line in ANSWERS.split("\n"):
        if line and not line.startswith("#"):
            assert line + "\n" in machine.box
    assert "Step 9 of 10: Review" in machine.get("var/lib/hx170/setup.log")


@pytest.mark.parametrize("where", ["esp", "credential", "both"])
def test_answers_that_are_found(machine, tmp_path, where):
    env = {}
    if where != "credential":
        machine.put("efi/hx170-answers.conf", ANSWERS if where == "esp" else ANSWERS.replace("box-7", "box-8"))
    if where != "esp":
        (tmp_path / "creds").mkdir()
        (tmp_path / "creds" / "hx170.answers").write_text(ANSWERS)
        env["CREDENTIALS_DIRECTORY"] = str(tmp_path / "creds")
    done = machine.run("hx-setup", "--answers", "auto", env=env)
    assert done.returncode == 0, done.stderr
    assert "hostname = box-7\n" in machine.box
    # Once used it is gone: it would bring the old key back after a reset.
    assert machine.get("efi/hx170-answers.conf") is None


def test_bad_answers_then_somebody_is_asked(machine):
    machine.put("efi/hx170-answers.conf", "schema = 1\nhostnme = x\n")
    t = machine.start("--plain", "--answers", "auto")
    text = t.expect("Name [hx170]: ")
    assert "efi/hx170-answers.conf:2: unknown key 'hostnme'" in " ".join(text.split())
    assert "Nothing of it is in force" in text
    t.send("q")
    assert t.wait() == 75
    assert machine.box is None


def test_unattended_install(machine, tmp_path):
    machine.put("proc/cmdline", "hx170.mode=installer\n")
    answers = tmp_path / "a.conf"
    answers.write_text(ANSWERS + "mode = install\ntarget_serial = S5GX1234\nconfirm_erase_serial = S5GX1234\n")
    done = machine.run("hx-setup", "--answers", str(answers))
    assert done.returncode == 0, done.stderr
    for serial, why in (("USB0001", "is not on offer here"), ("NONE", "is not on offer here")):
        answers.write_text(ANSWERS + f"mode = install\ntarget_serial = {serial}\nconfirm_erase_serial = {serial}\n")
        done = machine.run("hx-setup", "--answers", str(answers))
        assert done.returncode == 65 and why in done.stderr


@pytest.mark.parametrize("lines,why", [
    ("models_disk = S5GX9876", None),
    ("models_disk = S5GX9876\nerase_models_disk = S5GX9876", None),
    ("models_disk = system", None),
    ("models_disk = NONE", "models_disk: no drive has the serial number 'NONE'"),
    ("models_disk = SATA0007", "there are no models on it that could be kept; erase_models_disk"),
    ("models_disk = SATA0007\nerase_models_disk = SATA0007", "writing at offset 0 of /dev/sda: Input/output error"),
    ("models_disk = S5GX9876\nerase_models_disk = SATA0007", "erase_models_disk: has to repeat models_disk"),
    ("erase_models_disk = S5GX9876", "erase_models_disk: has to repeat models_disk"),
    ("models_disk = system\nerase_models_disk = system", "the system's disk is not erased by this"),
], ids=["kept", "erased", "system", "unknown", "nothing-kept", "broken", "differ", "alone", "own"])
def test_unattended_drive(machine, tmp_path, lines, why):
    """An order of the answers file; a bad one puts nothing in force."""
    machine.add_drives()
    answers = tmp_path / "a.conf"
    answers.write_text(ANSWERS + lines + "\n")
    done = machine.run("hx-setup", "--answers", str(answers))
    if why:
        assert done.returncode != 0 and why in done.stderr and machine.box is None
        return
    assert done.returncode == 0, done.stderr
    assert "models_disk = \nerase_models_disk = \n" in machine.box
    assert ("the machine starts again" in done.stdout) == ("system" not in lines)


def test_usage(machine):
    for words in (["nonsense"], ["name", "key"], ["check"], ["--nope"], ["--root"]):
        done = machine.run("hx-setup", *words)
        assert done.returncode == 64 and done.stderr.count("\n") == 1
    assert machine.run("hx-setup", "--help").returncode == 0
    assert machine.run("hx-setup", "--version").stdout.startswith("hx-setup ")
    for words in (["nonsense"], ["reset", "all"], ["status", "x"], ["--nope"]):
        done = machine.run("hx", *words)
        assert done.returncode == 64 and done.stderr.count("\n") == 1
    assert machine.run("hx", "--version").stdout.startswith("hx ")


def test_settings_that_cannot_be_read(machine):
    machine.put("var/lib/hx170/config/box.conf", "schema = 3\n")
    done = machine.run("hx-setup", "name")
    assert done.returncode == 78 and "schema 3 is newer than this system" in done.stderr
    done = machine.run("hx-setup", "render")
    assert done.returncode == 78
    done = machine.run("hx")
    assert done.returncode == 3
    assert done.stdout.startswith("The settings of this box cannot be read.\n")
    assert "hx-setup previous" in done.stdout


def test_previous(machine):
    assert machine.run("hx-setup", "previous").returncode == 66
    machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    assert machine.run("hx-setup", "name", stdin="other\n").returncode == 0
    assert "hostname = other\n" in machine.box
    assert machine.run("hx-setup", "previous").returncode == 0
    assert "hostname = box-7\n" in machine.box


def test_keys_from_an_address(machine):
    machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    before = machine.box.count("admin_key = ")
    done = machine.run("hx-setup", "key", stdin="https://keys.example/nobody\nhttps://keys.example/page\n"
                       "https://keys.example/me.keys\n\n")
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout
    assert "https://keys.example/nobody: no keys from there: curl: (22)" in said
    assert "https://keys.example/page:1: " in said
    assert machine.box.count("admin_key = ") == before + 1


# ---- hx ------------------------------------------------------------------------------------------

def units(machine, tmp_path, texts={}, results={}, **states):
    """Recorded answers with these unit states."""
    order = ["config", "driver", "check", "fetch", "engine", "ssh", "update"]
    text = "\n\n".join(f"ActiveState={states.get(u, 'active' if u == 'ssh' else 'inactive')}\n"
                       f"Result={results.get(u, 'success')}\nStatusText={texts.get(u, '')}" for u in order) + "\n"
    table = json.loads((VECTORS / "commands.json").read_text())
    table["commands"].insert(0, {"argv": ["systemctl", "show", "--property=ActiveState,Result,StatusText"] + ["*"] * 7,
                                 "rc": 0, "stdout": text})
    path = tmp_path / "commands.json"
    path.write_text(json.dumps(table))
    return str(path)


CASES = [
    ("not set up", {}, None, False, 2, "This box is not set up yet."),
    ("ready", {"engine": "active"}, None, True, 0, "It is working: the model answers."),
    ("loading", {"engine": "activating"}, None, True, 1, "The model is being loaded."),
    ("engine failed", {"engine": "failed"}, None, True, 3, "The engine stopped with an error."),
    ("downloading", {"fetch": "active"}, {"phase": "download", "percent": 34.5, "eta_s": 3720, "rate_10s": 112000000,
                                          "waiting": ""}, True, 1, "The model is being downloaded."),
    ("waiting", {"fetch": "active"}, {"phase": "download", "percent": 34.5, "eta_s": None, "rate_10s": 0,
                                      "waiting": "no answer from the server"}, True, 1, "The download waits."),
    ("download failed", {"fetch": "failed"}, {"phase": "failed", "percent": 3, "waiting": ""}, True, 3,
     "The download stopped with an error."),
    ("idle", {}, None, True, 2, "The engine is not running."),
]


@pytest.mark.parametrize("name,states,fetch,configured,code,head", CASES, ids=[c[0] for c in CASES])
def test_status(machine, tmp_path, name, states, fetch, configured, code, head):
    if configured:
        machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    if fetch:
        machine.put("run/hx170/fetch.json", json.dumps({"model": "demo", **fetch}))
    commands = units(machine, tmp_path, **states)
    done = machine.run("hx", "--commands", commands)
    assert done.returncode == code, done.stdout
    assert done.stdout.split("\n")[0] == head
    assert ("What now:" in done.stdout) == (name != "ready")
    assert max(len(line) for line in done.stdout.split("\n")) <= 80
    if configured:
        assert "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 tunnel@192.168.1.77" in done.stdout
    data = json.loads(machine.run("hx", "status", "--json", "--commands", commands).stdout)
    assert data["status"] == head
    assert data["level"] == ["ok", "working", "todo", "fault"][code]
    if fetch:
        assert data["download"]["percent"] == fetch["percent"]


def test_status_lines_fit(machine, tmp_path):
    """The longest there are: an IPv6 address, reasons of several sentences. The command can still be copied."""
    machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    long = "no answer from " + " ".join(f"https://mirror-{i}.example:8443" for i in range(5))
    machine.put("run/hx170/fetch.json", json.dumps({"model": "demo", "phase": "download", "percent": 3, "waiting": long}))
    table = json.loads((VECTORS / "commands.json").read_text())
    addresses = json.dumps([{"ifname": "eth0", "operstate": "UP", "addr_info": [
        {"family": "inet6", "local": "2001:db8:1234:5678:9abc:def0:1234:5678", "prefixlen": 64, "scope": "global"}]}])
    table["commands"].insert(0, {"argv": ["ip", "-json", "addr"], "rc": 0, "stdout": addresses})
    path = tmp_path / "commands.json"
    path.write_text(json.dumps(table))
    out = machine.run("hx", "--commands", str(path)).stdout
    assert max(len(line) for line in out.split("\n")) <= 80, out
    if "2001:db8" in out:
        assert "8000:127.0.0.1:8000 \\\n             tunnel@2001:db8:1234:5678:9abc:def0:1234:5678\n" in out
    assert " ".join(out.split()).count("https://mirror-4.example:8443") == 1
    machine.put("var/lib/hx170/config/box.conf", "schema = 1\n" + "nonsense" * 12 + "\n")
    out = machine.run("hx").stdout
    assert "Reason:" in out and max(len(line) for line in out.split("\n")) <= 80, out


def test_status_tells_demo_mode(machine, tmp_path):
    machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    commands = units(machine, tmp_path, {"engine": "Serving. DEMO MODE: no card"}, engine="active")
    assert "\nEngine:    Serving. DEMO MODE: no card\n" in machine.run("hx", "--commands", commands).stdout


def test_status_tells_crashes(machine, tmp_path):
    """Between two starts of a service that crashes the service manager says "activating"."""
    machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf"))
    commands = units(machine, tmp_path, results={"engine": "core-dump"}, engine="activating")
    done = machine.run("hx", "--commands", commands)
    assert done.returncode == 3 and done.stdout.startswith("The engine stopped with an error.\n")
    assert "Failed:    hx-engine (core-dump)" in done.stdout


def test_reset_asks(machine):
    done = machine.run("hx", "reset", "state", stdin="no\n")
    assert done.returncode == 75 and "Not confirmed; nothing happens." in done.stdout
    assert "Everything but the models is erased" in done.stdout


def test_support_has_no_secrets(machine, tmp_path):
    machine.put("media/token", "tok_Geheim1234567\n")
    answers = tmp_path / "a.conf"
    answers.write_text(ANSWERS + "token_file = /media/token\n")
    assert machine.run("hx-setup", "--answers", str(answers)).returncode == 0
    machine.put("run/hx170/fetch.json", '{"phase": "download", "note": "tok_Geheim1234567 at 10.1.2.3"}')
    out = tmp_path / "support.tar"
    done = machine.run("hx", "support", "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    data = out.read_bytes()
    for secret in (b"Geheim", b"192.168.1.5", b"192.168.1.77", b"10.1.2.3", b"box-7", b"AAAAC3Nza", b"owner@home"):
        assert secret not in data, secret
    with tarfile.open(out) as tar:
        names = [m.name for m in tar.getmembers()]
        assert names[-1] == "hx170-support/content.txt"
        content = tar.extractfile("hx170-support/content.txt").read().decode()
    assert {"hx170-support/" + line.split()[0] for line in content.split("\n")[2:] if "bytes" in line} == set(names[:-1])


def test_support_after_the_way_back(machine, tmp_path):
    """The new version's root was damaged; the one before makes the archive: why, which starts, and what the last one said."""
    machine.put("var/lib/hx170/check/given-up", "1.3: SSH does not listen\n")
    machine.add_commands([
        {"argv": ["hx-update", "status"], "rc": 0, "stdout": "runs 1.2, blessed\nother slot: 1.3, damaged\n"},
        {"argv": ["journalctl", "--list-boots", "--no-pager"], "rc": 0, "stdout": "-1 first\n 0 second\n"},
        {"argv": ["journalctl", "-b", "-1", "--no-pager", "-o", "short-monotonic", "-n5000"], "rc": 0,
         "stdout": "[    9.1] device-mapper: verity: metadata block 7 is corrupted\n"}])
    out = tmp_path / "support.tar"
    assert machine.run("hx", "support", "--output", str(out)).returncode == 0
    with tarfile.open(out) as tar:
        text = {m.name.rpartition("/")[2]: tar.extractfile(m).read().decode() for m in tar.getmembers()}
    assert text["given-up.txt"] == "1.3: SSH does not listen\n"
    assert "other slot: 1.3, damaged" in text["update.txt"] and text["boots.txt"].count("\n") == 2
    assert "block 7 is corrupted" in text["journal-before.txt"]


def test_support_that_cannot_be_written(machine, tmp_path):
    done = machine.run("hx", "support", "--output", str(tmp_path / "none" / "x.tar"))
    assert done.returncode == 73 and "cannot write" in done.stderr
    with open("/dev/full", "w") as full:
        import subprocess
        done = subprocess.run(machine.argv("hx", "support"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 73 and "cannot be written" in done.stderr
