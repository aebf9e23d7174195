"""hx-update on an installed system."""
import json
import os
import socket
import threading

import pytest
from conftest import HX_UPDATE, MIB, digest, tool  # noqa: F401


def kernels(machine):
    return sorted(p.name for p in (machine.esp / "EFI/Linux").iterdir())


def test_install_and_back(installed):
    m = installed
    bundle, root_hash = m.make_bundle()
    status, out, err = m.update("verify", bundle)
    assert status == 0 and "hx170 1.10 can be installed beside 1.2" in out, err
    assert kernels(m) == ["hx170_1.2.efi"]
    status, out, err = m.update("install", bundle)
    assert status == 0 and "the next start takes it" in out, err
    assert kernels(m) == ["hx170_1.10+3.efi", "hx170_1.2.efi"]
    parts = json.loads(tool("/usr/sbin/sfdisk", "--json", m.device("nvme0n1")))["partitiontable"]["partitions"]
    assert [p["name"] for p in parts][1:5] == ["root_1.2", "rootv_1.2", "root_1.10", "rootv_1.10"]
    assert "No errors detected" in tool("/usr/sbin/sfdisk", "--verify", m.device("nvme0n1"))
    state = json.loads(m.update("status", "--json")[1])
    assert state == {"version": "1.2", "state": "good", "on_trial": False, "other": "1.10", "other_state": "on trial, 3 starts left", "other_reason": "",
                     "next": "1.10"}
    # The boot loader counts, the start is blessed.
    os.rename(m.esp / "EFI/Linux/hx170_1.10+3.efi", m.esp / "EFI/Linux/hx170_1.10+2-1.efi")
    m.run_from("nvme0n1", "1.10", root_hash)
    assert json.loads(m.update("status", "--json")[1])["on_trial"]
    third, _ = m.make_bundle("1.11", seed=9)
    status, _, err = m.update("install", third)
    assert status == 75 and "has not proven itself yet (2 tries left)" in err
    os.rename(m.esp / "EFI/Linux/hx170_1.10+2-1.efi", m.esp / "EFI/Linux/hx170_1.10.efi")
    status, out, err = m.update("rollback")
    assert status == 0, err
    assert kernels(m) == ["hx170_1.10+0-3.efi", "hx170_1.2.efi"]
    assert json.loads(m.update("status", "--json")[1])["next"] == "1.2"
    # From the old version forward again, over the slot that was given up.
    m.run_from("nvme0n1", "1.2", m.hash)
    status, out, err = m.update("install", third)
    assert status == 0, err
    assert kernels(m) == ["hx170_1.11+3.efi", "hx170_1.2.efi"]


def test_folder(installed):
    folder, _ = installed.make_bundle(tar=False)
    assert installed.update("install", folder)[0] == 0


@pytest.mark.parametrize("make, status, words", [
    (lambda m: m.make_bundle("1.1")[0], 77, "version 1.1 is older than 1.2"),
    (lambda m: m.make_bundle("1.2")[0], 77, "version 1.2 is the one that runs"),
    (lambda m: m.make_bundle("2.0", minimum="1.5")[0], 77, "needs 1.5 or later"),
    (lambda m: m.make_bundle(change=lambda r: r.update(product="toaster"))[0], 65, "an update of 'toaster', not of hx170"),
    (lambda m: m.make_bundle(change=lambda r: r.update({"uki.efi.sha256": "0" * 64}))[0], 65, "uki.efi of the update is damaged"),
    (lambda m: m.make_bundle(change=lambda r: r.update({"root_hash": "1" * 64}))[0], 65, "reads back differently"),
    (lambda m: m.make_bundle() and "/nonexistent", 66, "No such file"),
    (lambda m: m.make_bundle() and m.put("work/text", "no tar at all" * 100), 65, "no update bundle"),
])
def test_refused(installed, make, status, words):
    m = installed
    bundle = make(m)
    before = digest(m.device("nvme0n1"))
    got, _, err = m.update("install", bundle)
    assert got == status and words in err
    assert len([line for line in err.splitlines() if line.startswith("hx-update: ")]) == 1
    assert "hx170_1.2.efi" in kernels(m) and len(kernels(m)) == 1
    if words != "reads back differently":
        assert digest(m.device("nvme0n1")) == before


def test_other_key(installed):
    bundle, _ = installed.make_bundle()
    other = installed.work / "other.pem"
    tool("openssl", "genpkey", "-quiet", "-algorithm", "ed25519", "-out", other)
    public = installed.work / "other.pub"
    public.write_text(tool("openssl", "pkey", "-in", other, "-pubout"))
    status, _, err = installed.update("install", bundle, "--key", public)
    assert status == 77 and "not signed by the maker of this system" in err


def test_cut_off(installed):
    bundle, _ = installed.make_bundle()
    size = os.stat(bundle).st_size
    before = digest(installed.device("nvme0n1"))
    for keep in (size // 2, 5000, 600, 100, 0):
        os.truncate(bundle, keep)
        status, _, err = installed.update("install", bundle)
        assert status == 65 and ("cut off" in err or "no update bundle" in err)
    assert digest(installed.device("nvme0n1")) == before


def test_larger_than_the_slot(installed):
    folder, _ = installed.make_bundle(tar=False, change=lambda r: r.update({"root.erofs.size": str(3 << 30)}))
    os.truncate(folder / "root.erofs", 3 << 30)
    status, _, err = installed.update("install", folder)
    assert status == 65 and "the update has 3221225472 bytes, partition 4 has 2147483648" in err


def test_from_the_stick(machine):
    bundle, _ = machine.make_bundle()
    status, _, err = machine.update("install", bundle)
    assert status == 77 and "does not run from an installed disk" in err


def test_second_disk_with_an_older_system(installed):
    m = installed
    older = m.add_disk("nvme1n1", "259:5", "NVME-OLD", 24 << 30)
    m.run_from("sda", "1.2", m.hash, installer=True)
    assert m.install("run", "--disk", "NVME-OLD", "--confirm", "NVME-OLD")[0] == 0
    m.run_from("nvme0n1", "1.2", m.hash)
    before = digest(older)
    assert m.update("install", m.make_bundle()[0])[0] == 0
    assert digest(older) == before


def test_full_boot_partition(installed, tmp_path):
    """A small file system as the ESP; needs root for the mount."""
    esp = tmp_path / "small"
    esp.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=600k none {esp} 2>/dev/null") != 0:
        pytest.skip("a file system of limited size needs root and mount")
    try:
        (esp / "EFI/Linux").mkdir(parents=True)
        (esp / "EFI/Linux/hx170_1.2.efi").write_bytes(b"k" * 300_000)
        bundle, _ = installed.make_bundle()
        (esp / "other").write_bytes(b"x" * 200_000)
        before = digest(installed.device("nvme0n1"))
        status, _, err = installed.update("install", bundle, "--esp", esp)
        assert status == 73 and "the ESP has room for" in err
        assert digest(installed.device("nvme0n1")) == before
        assert os.system(f"mount -o remount,ro {esp}") == 0
        status, _, err = installed.update("install", bundle, "--esp", esp)
        assert status == 73 and "mounted read-only" in err
        assert os.listdir(esp / "EFI/Linux") == ["hx170_1.2.efi"]
    finally:
        assert os.system(f"umount {esp}") == 0


def listening(port):
    return f"  0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n"


def healthy(machine):
    machine.put("proc/self/mountinfo", "40 28 259:6 / /var rw,noatime - ext4 /dev/nvme0n1p6 rw\n")
    machine.put("proc/net/tcp", "  sl  local_address rem_address   st\n" + listening(22))
    (machine.root / "var/lib/hx170/check").mkdir(parents=True, exist_ok=True)


def test_health(installed):
    m = installed
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        status, _, err = m.update("health", "--port", port)
        assert status == 75 and "the state partition is not mounted" in err
        healthy(m)
        m.put("proc/net/tcp", listening(2222) + "  1: 0100007F:0016 0100007F:9000 01 00000000\n")
        assert "SSH does not listen" in m.update("health", "--port", port)[2]
        healthy(m)
        m.put("var/lib/hx170/config/box.conf", "schema = 1\n")
        assert "the configuration was not rendered" in m.update("health", "--port", port)[2]
        m.put("run/hx170/hostname", "box\n")
        for card in range(4):
            m.put(f"proc/driver/nvidia/gpus/0000:0{card}:00.0/information", "")
        status, out, _ = m.update("health", "--port", port)
        assert status == 0 and "4 cards, the engine does not answer" in out
        assert not (m.root / "var/lib/hx170/check/last-good").exists()
        assert m.update("health", "--late", "--port", port)[0] == 0
        assert (m.root / "var/lib/hx170/check/last-good").read_text() == "cards = 4\nengine = no\n"
        (m.root / "proc/driver/nvidia/gpus/0000:03:00.0/information").unlink()
        (m.root / "proc/driver/nvidia/gpus/0000:03:00.0").rmdir()
        status, _, err = m.update("health", "--port", port)
        assert status == 75 and "fewer cards than before the update" in err


@pytest.mark.parametrize("answer, status", [(b"HTTP/1.1 200 OK\r\n\r\n", 0), (b"HTTP/1.1 503 Loading\r\n\r\n", 75), (b"", 75), (b"HTTP", 75)])
def test_health_of_the_engine(installed, answer, status):
    m = installed
    healthy(m)
    m.put("var/lib/hx170/check/last-good", "cards = 0\nengine = yes\n")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve():
            peer, _ = server.accept()
            peer.recv(1000)
            peer.sendall(answer)
            peer.close()
        thread = threading.Thread(target=serve)
        thread.start()
        got, out, err = m.update("health", "--port", server.getsockname()[1])
        thread.join()
    assert got == status and ("the engine answers" in out or "the engine does not answer" in err)


def test_start_on_trial_is_given_up(installed):
    m = installed
    healthy(m)
    m.put("proc/net/tcp", "")
    os.rename(m.esp / "EFI/Linux/hx170_1.2.efi", m.esp / "EFI/Linux/hx170_1.2+2-1.efi")
    status, out, err = m.update("health", "--late", "--port", "1")
    assert status == 0 and out == "restart\n" and "given up: SSH does not listen" in err
    # A proven start is never ended for it.
    os.rename(m.esp / "EFI/Linux/hx170_1.2+2-1.efi", m.esp / "EFI/Linux/hx170_1.2.efi")
    status, out, err = m.update("health", "--late", "--port", "1")
    assert status == 75 and out == ""


def why(machine):
    return json.loads(machine.update("status", "--json")[1])["other_reason"]


def test_reason_of_a_failed_update(installed):
    """What the version after it says about a version that was given up."""
    m = installed
    bundle, root_hash = m.make_bundle()
    assert m.update("install", bundle)[0] == 0
    assert why(m) == ""
    trial, failed = m.esp / "EFI/Linux/hx170_1.10+0-3.efi", m.esp / "EFI/Linux/hx170_1.10+2-1.efi"
    os.rename(m.esp / "EFI/Linux/hx170_1.10+3.efi", failed)
    m.run_from("nvme0n1", "1.10", root_hash)
    healthy(m)
    m.put("proc/net/tcp", "")
    assert m.update("health", "--wait", "0", "--late", "--port", "1")[1] == "restart\n"
    os.rename(failed, trial)
    m.run_from("nvme0n1", "1.2", m.hash)
    assert why(m) == "SSH does not listen"
    assert "1.10 failed: SSH does not listen" in m.update("status")[1]
    # Nothing was kept: the drive itself is asked.
    (m.root / "var/lib/hx170/check/given-up").unlink()
    assert why(m) == "its starts never got as far as the health check; the drive is in order"
    with open(m.device("nvme0n1"), "r+b") as f:
        f.seek((1 + 1024 + 2048 + 64) * MIB + 70_000)
        f.write(b"damaged")
    assert "what lies on the drive cannot be started" in why(m) and "block 17 of the system is damaged" in why(m)


def test_healthy_start_that_does_not_end(installed):
    """All is well but the counter is still there when the timer comes: something is stuck."""
    m = installed
    healthy(m)
    os.rename(m.esp / "EFI/Linux/hx170_1.2.efi", m.esp / "EFI/Linux/hx170_1.2+2-1.efi")
    assert m.update("health", "--port", "1")[0] == 0
    status, out, err = m.update("health", "--late", "--port", "1")
    assert status == 0 and out == "restart\n" and "it did not come to its end in time" in err
    assert not (m.root / "var/lib/hx170/check/last-good").exists()


def test_empty_kernel_image(installed):
    """What a power cut in a change of names can leave: no boot entry, neither blessed nor on trial."""
    m = installed
    bundle, _ = m.make_bundle()
    assert m.update("install", bundle)[0] == 0
    (m.esp / "EFI/Linux/hx170_1.10+3.efi").write_bytes(b"")
    state = json.loads(m.update("status", "--json")[1])
    assert (state["state"], state["other_state"], state["next"]) == ("good", "failed", "1.2")
    # An empty name beside the one that counts changes nothing, and the next update clears it away.
    (m.esp / "EFI/Linux/hx170_1.2+2-1.efi").write_bytes(b"")
    assert m.update("install", bundle)[0] == 0
    assert [k for k in kernels(m) if k.startswith("hx170_1.10")] == ["hx170_1.10+3.efi"]
    assert (m.esp / "EFI/Linux/hx170_1.10+3.efi").stat().st_size == 250_000
    # The running version only under an empty name: not proven.
    os.rename(m.esp / "EFI/Linux/hx170_1.2.efi", m.esp / "EFI/Linux/hx170_1.2+2-1.efi")
    (m.esp / "EFI/Linux/hx170_1.2.efi").write_bytes(b"")
    status, _, err = m.update("install", bundle)
    assert status == 75 and "has not proven itself yet (2 tries left)" in err


def test_what_an_earlier_update_left(installed):
    """A half copied kernel image goes. One that is as long as a kernel image may be its other name, and keeps its data."""
    m = installed
    folder = m.esp / "EFI/Linux"
    bundle, _ = m.make_bundle()
    (folder / "hx170.new").write_bytes(b"half of it")
    assert m.update("install", bundle)[0] == 0
    assert kernels(m) == ["hx170_1.10+3.efi", "hx170_1.2.efi"]
    (folder / "hx170.new").write_bytes(m.kernel)
    assert m.update("install", bundle)[0] == 0
    assert kernels(m) == ["hx170.new", "hx170_1.10+3.efi", "hx170_1.2.efi"]
    assert (folder / "hx170.new").read_bytes() == m.kernel and (folder / "hx170_1.10+3.efi").stat().st_size == 250_000
    for i in range(1, 8):
        (folder / f"hx170.new{i}").write_bytes(m.kernel)
    status, _, err = m.update("install", bundle)
    assert status == 73 and "check it with fsck.vfat" in err
    assert "hx170_1.2.efi" in kernels(m)


def test_reason_of_a_rollback(installed):
    m = installed
    bundle, root_hash = m.make_bundle()
    assert m.update("install", bundle)[0] == 0
    os.rename(m.esp / "EFI/Linux/hx170_1.10+3.efi", m.esp / "EFI/Linux/hx170_1.10.efi")
    m.run_from("nvme0n1", "1.10", root_hash)
    healthy(m)
    assert m.update("rollback")[0] == 0
    m.run_from("nvme0n1", "1.2", m.hash)
    assert why(m) == "taken back with rollback"


def test_start_without_state_is_given_up(installed):
    """Nothing of /var is there to keep the reason; the start ends all the same."""
    m = installed
    m.put("proc/self/mountinfo", "")
    os.rename(m.esp / "EFI/Linux/hx170_1.2.efi", m.esp / "EFI/Linux/hx170_1.2+1-2.efi")
    status, out, err = m.update("health", "--late", "--port", "1")
    assert status == 0 and out == "restart\n"
    assert "the state partition is not mounted" in err and "the reason cannot be kept" in err


def test_record_that_is_damaged_condemns_nobody(installed):
    healthy(installed)
    installed.put("var/lib/hx170/check/last-good", "cards = many\n")
    status, out, err = installed.update("health", "--port", "1")
    assert status == 0 and "warning" in err and "healthy" in out


@pytest.mark.parametrize("argv", [[], ["fly"], ["install"], ["install", "a", "b"], ["health", "--wait", "-1"], ["health", "--wait", "9999"], ["status", "x"],
                                  ["health", "--port", "70000"]])
def test_usage(installed, argv):
    status, _, err = installed.update(*argv)
    assert status == 64 and err.startswith("hx-update: ") and err.count("\n") == 1
