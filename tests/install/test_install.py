"""hx-install: the list, the refusals, and what other programs read on the disk afterwards."""
import json
import os
import subprocess

import pytest
from conftest import GIB, MIB, digest, guid, list_esp, read_esp, tool


def table(image):
    return json.loads(tool("/usr/sbin/sfdisk", "--json", image))["partitiontable"]


def test_list(machine):
    machine.add_disk("nvme1n1", "259:5", "NVME-BBBB2222", 500 * GIB)
    status, out, _ = machine.install("list", "--json")
    disks = {d["name"]: d for d in json.loads(out)}
    assert status == 0
    assert not disks["sda"]["usable"] and "started from it" in disks["sda"]["reason"]
    assert disks["nvme0n1"]["usable"] and disks["nvme0n1"]["serial"] == "NVME-AAAA1111"
    assert disks["nvme1n1"]["bytes"] == 500 * GIB
    status, out, _ = machine.install("list")
    assert status == 0 and "NVME-BBBB2222" in out and "not usable: this system was started from it" in out


def refusals(machine):
    machine.add_disk("vdb", "253:16", "SMALL", 8 * GIB)
    machine.add_disk("vdc", "253:32", "READONLY", 32 * GIB)
    machine.put("sys/block/vdc/ro", "1\n")
    machine.add_disk("vdd", "253:48", "MOUNTED", 32 * GIB)
    machine.put("sys/block/vdd/vdd1/partition", "1\n")
    machine.put("sys/block/vdd/vdd1/dev", "253:49\n")
    machine.put("proc/self/mountinfo", "36 35 253:49 / /mnt rw,noatime - ext4 /dev/vdd1 rw\n")
    machine.add_disk("vde", "253:64", "RAID", 32 * GIB)
    machine.put("sys/block/vde/holders/md0", "")
    machine.add_disk("vdf", "253:80", "SWAP", 32 * GIB)
    machine.put("sys/block/vdf/vdf2/partition", "2\n")
    machine.put("sys/block/vdf/vdf2/dev", "253:82\n")
    machine.put("proc/swaps", "Filename\t\tType\t\tSize\n/dev/vdf2 partition 1000 0 -2\n")
    machine.add_disk("vdg", "253:96", "ODD", 32 * GIB, sector=520)


@pytest.mark.parametrize("serial, confirm, status, words", [
    ("STICK-0001", "0001", 77, "this system was started from it"),
    ("SMALL", "SMALL", 77, "too small"),
    ("READONLY", "ONLY", 77, "read-only"),
    ("MOUNTED", "NTED", 77, "something of it is mounted"),
    ("RAID", "RAID", 77, "part of an array"),
    ("SWAP", "SWAP", 77, "swap"),
    ("ODD", "ODD", 77, "neither 512 nor 4096"),
    ("NVME-AAAA1111", "1112", 77, "repeat its serial number in --confirm"),
    ("NVME-AAAA1111", None, 77, "repeat its serial number in --confirm"),
    ("NVME-AAAA1111", "", 77, "repeat its serial number in --confirm"),
    ("NOBODY", "BODY", 69, "no disk has the serial number 'NOBODY'"),
    ("", "", 69, "no disk has the serial number ''"),
])
def test_wrong_disk(machine, serial, confirm, status, words):
    refusals(machine)
    before = {p.name: digest(p) for p in (machine.root / "dev").iterdir()}
    argv = ["run", "--disk", serial] + ([] if confirm is None else ["--confirm", confirm])
    got, _, err = machine.install(*argv)
    assert got == status and words in err and err.count("\n") == 1
    assert before == {p.name: digest(p) for p in (machine.root / "dev").iterdir()}


def test_two_disks_of_one_serial(machine):
    machine.add_disk("vdb", "253:16", "NVME-AAAA1111", 32 * GIB)
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 69 and "two disks, nvme0n1 and vdb" in err


def test_boot_disk_unknown(machine):
    (machine.root / "run/hx170/boot/8:0").unlink()
    for command in (["list"], ["run", "--disk", "NVME-AAAA1111", "--confirm", "1111"]):
        status, _, err = machine.install(*command)
        assert status == 69 and "is not known" in err or "is gone" in err


@pytest.mark.parametrize("sector", [512, 4096])
def test_what_others_read(machine, sector):
    target = machine.add_disk("nvme1n1", "259:5", "NVME-BBBB2222", 40 * GIB, sector)
    other = digest(machine.device("nvme0n1"))
    status, out, err = machine.install("run", "--disk", "NVME-BBBB2222", "--confirm", "2222")
    assert status == 0, err
    assert "hx170 1.2 is installed on nvme1n1" in out
    assert digest(machine.device("nvme0n1")) == other
    if sector == 512:
        assert "No errors detected" in tool("/usr/sbin/sfdisk", "--verify", target)
        parts = table(target)["partitions"]
        assert [p["name"] for p in parts] == ["ESP", "root_1.2", "rootv_1.2", "_empty", "_empty", "state", "models"]
        assert parts[1]["uuid"].lower() == guid(machine.hash[:32]) and parts[2]["uuid"].lower() == guid(machine.hash[32:])
        assert [p.get("attrs", "") for p in parts[1:5]] == ["GUID:60"] * 4
        assert [p["size"] * 512 // MIB for p in parts[:6]] == [1024, 2048, 64, 2048, 64, 16384]
    esp = machine.work / "esp.img"
    with open(target, "rb") as f, open(esp, "wb") as to:
        f.seek(MIB)
        to.write(f.read(64 * MIB))
    os.truncate(esp, GIB)
    check = subprocess.run(["/usr/sbin/fsck.vfat", "-n", "-v", str(esp)], capture_output=True, text=True, timeout=120)
    assert check.returncode == 0, check.stdout + check.stderr
    assert list_esp(target) == ["EFI/BOOT/BOOTX64.EFI", "EFI/Linux/hx170_1.2.efi", "EFI/systemd/systemd-bootx64.efi", "loader/loader.conf"]
    assert read_esp(target, "EFI/Linux/hx170_1.2.efi") == machine.kernel
    tool("/usr/sbin/veritysetup", "verify", "--hash-offset=0", *slices(target, machine.work), machine.hash)


def slices(target, work):
    """Slot A of a disk as two files."""
    out = []
    for name, at, size in (("a.root", 1025, 3), ("a.tree", 3073, 1)):
        with open(target, "rb") as f:
            f.seek(at * MIB)
            (work / name).write_bytes(f.read(size * MIB))
        out.append(work / name)
    return out


def test_boot_entry(machine):
    variables = machine.root / "sys/firmware/efi/efivars"
    tail = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    (variables / ("Boot0000" + tail)).write_bytes(b"\x07\0\0\0\1\0\0\0\0\0O\0t\0h\0e\0r\0\0\0")
    (variables / ("BootOrder" + tail)).write_bytes(b"\x07\0\0\0\0\0")
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 0 and "warning" not in err
    entry = (variables / ("Boot0001" + tail)).read_bytes()
    assert "hx170\0".encode("utf-16-le") in entry and "\\EFI\\systemd\\systemd-bootx64.efi\0".encode("utf-16-le") in entry
    assert (variables / ("BootOrder" + tail)).read_bytes() == b"\x07\0\0\0\1\0\0\0"
    # Again: the same entry, no second one.
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 0
    assert sorted(p.name[:8] for p in variables.iterdir()) == ["Boot0000", "Boot0001", "BootOrde"]
    assert (variables / ("BootOrder" + tail)).read_bytes() == b"\x07\0\0\0\1\0\0\0"


def test_no_firmware_variables_is_a_warning(machine):
    (machine.root / "sys/firmware/efi/efivars").rmdir()
    status, out, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 0 and "warning: no entry in the firmware's boot menu" in err and "is installed" in out


def test_answers_and_progress(machine):
    answers = machine.work / "answers"
    answers.write_text("schema = 1\n")
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111", "--answers", answers, "--json")
    assert status == 0
    steps = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert {s["step"] for s in steps} == {"check", "system", "esp"}
    assert read_esp(machine.device("nvme0n1"), "hx170-answers.conf") == b"schema = 1\n"
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111", "--answers", "/nonexistent")
    assert status == 65 and "not a file of answers" in err


@pytest.mark.parametrize("at, words", [(11 * MIB + 5 * 4096, "block 5 of the system is damaged"), (15 * MIB + 4096, "root hash is"),
                                       (15 * MIB, "no hash tree")])
def test_damaged_stick(machine, at, words):
    assert machine.install("check")[0] == 0
    with open(machine.device("sda"), "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
    before = digest(machine.device("nvme0n1"))
    for command in (["check"], ["run", "--disk", "NVME-AAAA1111", "--confirm", "1111"]):
        status, _, err = machine.install(*command)
        assert status == 65 and "this stick is not in order" in err and words in err
    assert digest(machine.device("nvme0n1")) == before


@pytest.mark.parametrize("file", ["EFI/systemd/systemd-bootx64.efi", "EFI/Linux/hx170_1.2.efi", "EFI/BOOT/BOOTX64.EFI"])
def test_damaged_file_of_the_stick(machine, file):
    path = machine.esp / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = digest(machine.device("nvme0n1"))
    for command in (["check"], ["run", "--disk", "NVME-AAAA1111", "--confirm", "1111"]):
        status, _, err = machine.install(*command)
        assert status == 65 and f"ESP file '{file}' is damaged" in err and len(err.splitlines()) < 30
    assert digest(machine.device("nvme0n1")) == before


def test_keeps_models(installed):
    m = installed
    at = table(m.device("nvme0n1"))["partitions"][6]["start"] * 512
    with open(m.device("nvme0n1"), "r+b") as f:
        f.seek(at)
        f.write(b"weights")
    m.run_from("sda", "1.2", m.hash, installer=True)
    assert json.loads(m.install("list", "--json")[1])[0]["content"] == "hx170 1.2"
    status, _, err = m.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111", "--keep-models")
    assert status == 0, err
    with open(m.device("nvme0n1"), "rb") as f:
        f.seek(at)
        assert f.read(7) == b"weights"
    status, _, err = m.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111")
    assert status == 0
    with open(m.device("nvme0n1"), "rb") as f:
        f.seek(at)
        assert f.read(7) == b"\0" * 7


def test_keep_models_of_nothing(machine):
    status, _, err = machine.install("run", "--disk", "NVME-AAAA1111", "--confirm", "1111", "--keep-models")
    assert status == 65 and "no hx170 system on it whose models could be kept" in err


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["run", "--disk"], ["list", "--fast"], ["list", "more"], ["list", "--json=1"]])
def test_usage(machine, argv):
    status, _, err = machine.install(*argv)
    assert status == 64 or argv == ["run", "--disk"] and status in (64, 69)
    assert err.startswith("hx-install: ") and err.count("\n") == 1


def prepared(machine):
    machine.add_disk("nvme1n1", "259:5", "NVME-BBBB2222", 500 * GIB)
    for name in ("state", "models"):
        device = machine.put(f"dev/hx170/{name}", b"")
        os.truncate(device, 300 * MIB)
    return machine.root / "dev/hx170/state", machine.root / "dev/hx170/models"


def test_drives_for_models(installed):
    """The system's disk first holds the models; then a whole drive, on request erased or with what is on it."""
    m = installed
    (m.root / "srv/models").mkdir(parents=True)
    drive = m.add_disk("nvme1n1", "259:5", "NVME-BBBB2222", 40 * GIB)
    m.add_disk("sdb", "8:16", "TINY-1", GIB)

    def drives(*more):
        status, out, err = m.install("drives", "--json", *more)
        assert status == 0, err
        return {d["name"]: d for d in json.loads(out)}
    d = drives()
    assert [n for n in d if d[n]["own"]] == [n for n in d if d[n]["current"]] == ["nvme0n1"]
    assert d["nvme0n1"]["usable"] and d["nvme0n1"]["room"] > 0 and d["nvme0n1"]["bytes_per_second"] == 0
    assert d["nvme1n1"]["usable"] and not d["nvme1n1"]["models_can_be_kept"] and 39 * GIB < d["nvme1n1"]["room"] < 40 * GIB
    assert not d["sdb"]["usable"] and d["sdb"]["reason"] == "it is too small"
    assert drives("--seconds", "1")["nvme1n1"]["bytes_per_second"] > 0
    assert m.install("models", "--disk", "NVME-BBBB2222", "--confirm", "2222", "--keep-models")[0] == 65
    assert m.install("models", "--disk", "NVME-BBBB2222", "--confirm", "2222")[0] == 0
    # Mounted: in use, and still the one that holds them.
    for file, text in (("partition", "1"), ("dev", "259:6")):
        m.put(f"sys/block/nvme1n1/nvme1n1p1/{file}", text + "\n")
    m.put("proc/self/mountinfo", "30 1 259:6 / /srv/models rw - ext4 /dev/nvme1n1p1 rw\n")
    d = drives()
    assert [n for n in d if d[n]["current"]] == ["nvme1n1"] and d["nvme1n1"]["usable"] and d["nvme0n1"]["usable"]
    _, out, _ = m.install("drives")
    assert "holds the models" in out.split("nvme1n1")[1] and "not usable: it is too small" in out
    assert m.install("models", "--own")[0] == 0
    m.put("proc/self/mountinfo", "")
    d = drives()
    assert d["nvme0n1"]["current"] and d["nvme1n1"]["models_can_be_kept"] and not d["nvme1n1"]["current"]
    assert drive.exists()
    m.run_from("sda", "1.2", m.hash, installer=True)
    status, _, err = m.install("drives")
    assert status == 77 and "runs from a stick" in err


def label(path):
    return subprocess.run(["/usr/sbin/e2label", str(path)], capture_output=True, text=True, timeout=60).stdout.strip()


def test_file_systems_at_the_first_start(machine):
    state, models = prepared(machine)
    assert machine.install("prepare")[0] == 0
    assert (label(state), label(models)) == ("state", "models")
    before = digest(state), digest(models)
    assert machine.install("prepare")[0] == 0
    assert before == (digest(state), digest(models))
    assert [p.name for p in (machine.esp / "hx170").iterdir()] == ["sums"]


def test_damaged_state_is_left_alone(machine):
    state, models = prepared(machine)
    assert machine.install("prepare")[0] == 0
    for path in (state, models):
        with open(path, "r+b") as f:
            f.write(b"\0" * 4096)
    before = digest(state), digest(models)
    status, _, err = machine.install("prepare")
    assert status == 65 and "neither empty nor ext4" in err and "nothing was written" in err
    assert before == (digest(state), digest(models))
    # What was being made when the power went is made again.
    (machine.esp / "hx170/making-state").write_text("\n")
    status, _, err = machine.install("prepare")
    assert status == 0 and label(state) == "state" and "warning" in err
    assert digest(models) == before[1]


@pytest.mark.parametrize("level, lost", [("state", "s"), ("everything", "sm"), ("config", "")])
def test_reset(machine, level, lost):
    state, models = prepared(machine)
    machine.put("var/lib/hx170/config/box.conf", "schema = 1\n")
    assert machine.install("prepare")[0] == 0
    uuids = tool("/usr/sbin/blkid", "-o", "value", "-s", "UUID", "-p", state), tool("/usr/sbin/blkid", "-o", "value", "-s", "UUID", "-p", models)
    status, _, err = machine.update("reset", level)
    assert status == 77 and "repeat it with --yes" in err
    assert machine.update("reset", level, "--yes")[0] == 0
    request = machine.esp / "hx170/reset"
    assert request.read_text() == level + "\n"
    assert machine.install("prepare")[0] == 0
    now = tool("/usr/sbin/blkid", "-o", "value", "-s", "UUID", "-p", state), tool("/usr/sbin/blkid", "-o", "value", "-s", "UUID", "-p", models)
    assert (now[0] != uuids[0]) == ("s" in lost) and (now[1] != uuids[1]) == ("m" in lost)
    assert request.exists() == (level == "config")
    assert machine.install("prepare", "--config")[0] == 0
    assert not request.exists()
    assert (machine.root / "var/lib/hx170/config/box.conf").exists() == (level != "config")


def test_reset_makes_another_machine(installed):
    m = installed
    prepared(m)
    before = table(m.device("nvme0n1"))["partitions"]
    assert m.update("reset", "state", "--yes")[0] == 0
    status, _, err = m.install("prepare")
    assert status == 0 and "warning" not in err
    after = table(m.device("nvme0n1"))["partitions"]
    assert before[5].pop("uuid") != after[5].pop("uuid")
    for p in before + after:
        p.pop("node")
    assert before == after
    assert "No errors detected" in tool("/usr/sbin/sfdisk", "--verify", m.device("nvme0n1"))


def test_reset_that_was_cut_off(machine):
    state, _ = prepared(machine)
    assert machine.install("prepare")[0] == 0
    assert machine.update("reset", "state", "--yes")[0] == 0
    with open(state, "r+b") as f:
        f.write(b"\0" * MIB)
    assert machine.install("prepare")[0] == 0 and label(state) == "state"
    assert not (machine.esp / "hx170/reset").exists()
    assert machine.update("reset", "state", "--yes")[0] == 0
    assert machine.update("reset", "--cancel")[0] == 0
    assert not (machine.esp / "hx170/reset").exists()


def test_reset_request_that_was_cut_off(machine):
    """An empty name is what a power cut leaves on FAT: no request, and no reason to stop a start."""
    state, _ = prepared(machine)
    machine.put("efi/hx170/reset", "")
    assert machine.install("prepare")[0] == 0
    assert label(state) == "state"
    assert machine.install("prepare", "--config")[0] == 0


def test_reset_request_that_is_damaged(machine):
    state, _ = prepared(machine)
    machine.put("efi/hx170/reset", "all of it\n")
    status, _, err = machine.install("prepare")
    assert status == 65 and "'all of it' is no level of reset" in err
    assert label(state) == ""
