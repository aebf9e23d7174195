"""Install in the sandbox: what is made, what a build can reach, what it is stopped for."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time

import pytest

from conftest import BUILD_SH, HX_CARDS, Bundle, Machine, prebuilt_bundle

ACCEPT = ("--kit", "/", "--accept", "GPL-2.0")


def test_source_bundle_is_built_installed_and_armed(machine, kernel, tmp_path):
    bundle = Bundle(tmp_path / "bundle", kernel).write()
    status = machine.bundle("install", bundle, *ACCEPT)
    assert (status["state"], status["candidate"], status["active"], status["next_start"]) == ("armed", "a", None, "a")
    assert status["power_off_wanted"] is True
    slot = machine.driver / "slot-a"
    folder = slot / f"lib/modules/{kernel}/updates/owner-bundle"
    assert sorted(p.name for p in folder.iterdir()) == ["driver_version", "nvidia-uvm.ko", "nvidia.ko",
                                                        "safety_revision"]
    for name in ("nvidia", "nvidia-uvm"):
        info = subprocess.run(["modinfo", folder / f"{name}.ko"], capture_output=True, text=True, check=True)
        assert f"vermagic:       {kernel} " in info.stdout
    # The same answer as depmod over the same tree.
    ours = (slot / f"lib/modules/{kernel}/modules.dep").read_text()
    assert "updates/owner-bundle/nvidia-uvm.ko: updates/owner-bundle/nvidia.ko\n" in ours
    theirs = subprocess.run(["depmod", "-n", "-b", slot, kernel], capture_output=True, text=True)
    lines = [line for line in theirs.stdout.splitlines() if line.startswith("updates/") and ".ko:" in line]
    assert sorted(lines) == sorted(ours.splitlines())
    assert (slot / "userspace/lib/libcuda.so.610.43.03").read_text() == "stand-in"
    assert (slot / "firmware/nvidia/610.43.03/gsp_tu10x.bin").read_text() == "stand-in"
    assert not (machine.driver / "scratch").exists()


def sandbox(tmp_path, machine, kernel, script, rc, **build):
    """Installs a bundle whose build script is `script`; returns what hx-cards said."""
    b = Bundle(tmp_path / "bundle", kernel)
    b.files["build.sh"] = ("script", "0755", "#!/bin/sh\nset -e\n" + script)
    b.manifest["build"].update(build)
    done = machine.run("bundle", "install", b.write(), *ACCEPT)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stderr


def test_build_sees_only_kit_bundle_and_output(machine, kernel, tmp_path):
    (tmp_path / "secret").write_text("x")
    script = f"""
test ! -e {tmp_path}/secret
test ! -e /etc/shadow && test ! -e /root && test ! -e /home && test ! -e /var && test ! -e /sys
test "$(ls /)" = "$(printf 'bin\\nbundle\\ndev\\netc\\nlib\\nlib64\\nout\\nproc\\nsbin\\ntmp\\nusr')" || ls / | grep -v lib32 >&2
! touch /bundle/new 2>/dev/null
! touch /usr/new 2>/dev/null
! touch /new 2>/dev/null
test "$(cat /proc/net/dev | grep -c ':')" = 1
test "$(hostname 2>/dev/null || cat /proc/sys/kernel/hostname)" = build
test "$(ls -d /proc/[0-9]* | wc -l)" -lt 10
test "$HOME" = /tmp && test -z "$LD_PRELOAD" && test -z "$SSH_AUTH_SOCK"
grep -q '^CapEff:.0000000000000000' /proc/self/status
grep -q '^NoNewPrivs:.1' /proc/self/status
echo seen-it-all >&2
exit 9
"""
    said = sandbox(tmp_path, machine, kernel, script, 4)
    assert "status 9" in said and "seen-it-all" in said
    status = machine.bundle("status")
    assert status["state"] == "failed" and status["next_start"] is None
    assert not (machine.driver / "slot-a").exists() and not (machine.driver / "scratch").exists()


def test_build_has_no_network(machine, kernel, tmp_path):
    script = """
python3 - <<'X' || exit 7
import socket
s = socket.socket()
s.settimeout(3)
try:
    s.connect(("127.0.0.1", 1))
except OSError as e:
    raise SystemExit(0 if e.errno == 101 else 1)
raise SystemExit(1)
X
exit 8
"""
    assert "status 8" in sandbox(tmp_path, machine, kernel, script, 4)


def test_build_that_never_ends_is_ended(machine, kernel, tmp_path):
    start = time.monotonic()
    said = sandbox(tmp_path, machine, kernel, "(sleep 987 &)\nsleep 987\n", 4, timeout_s=2)
    assert "did not end within 2 s" in said
    assert time.monotonic() - start < 20
    left = subprocess.run(["pgrep", "-fx", "sleep 987"], capture_output=True, text=True)
    assert left.stdout == ""


def test_missing_output(machine, kernel, tmp_path):
    said = sandbox(tmp_path, machine, kernel, "touch $OUT/nvidia.ko\n", 4)
    assert "did not make an output" in said and "nvidia-uvm.ko" in said


def test_output_that_is_a_link(machine, kernel, tmp_path):
    script = "cd $OUT; ln -s /etc/passwd nvidia.ko; touch nvidia-uvm.ko safety_revision driver_version\n"
    said = sandbox(tmp_path, machine, kernel, script, 4)
    assert "nvidia.ko" in said


def test_output_that_is_no_module(machine, kernel, tmp_path):
    said = sandbox(tmp_path, machine, kernel, "cd $OUT; for f in nvidia.ko nvidia-uvm.ko safety_revision "
                   "driver_version; do echo text >$f; done\n", 4)
    assert "nvidia.ko" in said and "too short" in said


def test_module_of_another_kernel(machine, kernel, tmp_path, prebuilt):
    other = "9.9.9-other"
    m = Machine(tmp_path / "m2", kernel=other)
    b = prebuilt_bundle(tmp_path / "bundle", other, prebuilt)
    done = m.run("bundle", "install", b.write(), *ACCEPT)
    assert done.returncode == 4 and "made for kernel" in done.stderr
    assert m.bundle("status")["state"] == "failed"


def test_swapped_modules(machine, kernel, tmp_path, prebuilt):
    swapped = {"nvidia": prebuilt["nvidia-uvm"], "nvidia-uvm": prebuilt["nvidia"]}
    done = machine.run("bundle", "install", prebuilt_bundle(tmp_path / "b", kernel, swapped).write(), *ACCEPT)
    assert done.returncode == 4 and "is the module nvidia_uvm" in done.stderr


@pytest.fixture
def open_folder():
    """A folder that every user can reach (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory(prefix="hx-bundles-") as path:
        os.chmod(path, 0o755)
        yield pathlib.Path(path)


def test_build_by_an_ordinary_user(kernel, open_folder):
    """Without root the same walls stand on a user namespace."""
    if os.geteuid() != 0:
        pytest.skip("starts as root to become another user")
    m = Machine(open_folder / "machine", kernel=kernel)
    bundle = Bundle(open_folder / "bundle", kernel)
    bundle.files["build.sh"] = ("script", "0755", "#!/bin/sh\nset -e\ngrep -q '^CapEff:.0000000000000000' "
                                "/proc/self/status\ntest ! -e /root\n" + BUILD_SH.split("\n", 2)[2])
    bundle.write()
    program = shutil.copy(HX_CARDS, open_folder)
    for path in [open_folder, *open_folder.rglob("*")]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    done = subprocess.run([program, "bundle", "install", bundle.top, *ACCEPT, "--root", m.top, "--json"],
                          capture_output=True, text=True, user=12345, group=12345, extra_groups=[])
    if "build sandbox: namespaces" in done.stderr:
        pytest.skip("this machine gives ordinary users no namespaces")
    assert done.returncode == 0, done.stderr


def signed_with(path, cert, work):
    """Checks the appended signature with openssl over the content without it."""
    data = path.read_bytes()
    end = b"~Module signature appended~\n"
    assert data.endswith(end)
    info = data[-len(end) - 12:-len(end)]
    assert info[:3] == b"\0\0\x02"
    size = int.from_bytes(info[8:], "big")
    body, signature = data[:-len(end) - 12 - size], data[-len(end) - 12 - size:-len(end) - 12]
    work.mkdir()
    (work / "body").write_bytes(body)
    (work / "sig").write_bytes(signature)
    pem = subprocess.run(["openssl", "x509", "-inform", "DER", "-in", cert], capture_output=True, check=True).stdout
    (work / "cert").write_bytes(pem)
    done = subprocess.run(["openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", work / "sig", "-content",
                           work / "body", "-certfile", work / "cert", "-noverify", "-out", "/dev/null"],
                          capture_output=True, text=True)
    return done.returncode == 0, body


def test_secure_boot_signs_modules(kernel, tmp_path, prebuilt):
    m = Machine(tmp_path / "machine", kernel=kernel, secure_boot=True)
    b = prebuilt_bundle(tmp_path / "bundle", kernel, prebuilt).write()
    status = m.bundle("install", b, *ACCEPT)
    assert status["slots"][0]["signed"] is True
    key = m.driver / "signing-key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    folder = m.driver / f"slot-a/lib/modules/{kernel}/updates/owner-bundle"
    good, body = signed_with(folder / "nvidia.ko", m.driver / "signing-cert.der", tmp_path / "check")
    assert good and body == prebuilt["nvidia"]
    info = subprocess.run(["modinfo", folder / "nvidia.ko"], capture_output=True, text=True, check=True).stdout
    assert "sig_id:         PKCS#7" in info and "sig_hashalgo:   sha512" in info
    assert "hx170 module signing" in info
    # The key is kept for the next bundle.
    before = key.read_bytes()
    m.start(off=60)
    m.bundle("start")
    m.bundle("rollback")
    m.bundle("install", b, *ACCEPT)
    assert key.read_bytes() == before


@pytest.mark.parametrize("form", ["w", "w:gz", "w:xz"])
def test_archives(machine, kernel, tmp_path, prebuilt, form):
    folder = prebuilt_bundle(tmp_path / "bundle", kernel, prebuilt).write()
    archive = tmp_path / "bundle.tar"
    with tarfile.open(archive, form) as tar:
        tar.add(folder, ".")
    assert machine.bundle("install", archive, *ACCEPT)["state"] == "armed"


def hostile_archive(tmp_path, kernel, prebuilt, change):
    folder = prebuilt_bundle(tmp_path / "bundle", kernel, prebuilt).write()
    archive = tmp_path / "bundle.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, ".")
        change(tar)
    return archive


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


@pytest.mark.parametrize("info,where,why", [
    (member("../evil"), "../evil", "path leaves the bundle"),
    (member("/evil"), "/evil", "path leaves the bundle"),
    (member("a/../../evil"), "a/../../evil", "path leaves the bundle"),
    (member("lnk", tarfile.SYMTYPE, "/etc/passwd"), "lnk", "a bundle may hold no links"),
    (member("hard", tarfile.LNKTYPE, "build.sh"), "hard", "a bundle may hold no links"),
    (member("dev", tarfile.CHRTYPE), "dev", "is neither a plain file nor a folder"),
    (member("cmp-bundle.json"), "cmp-bundle.json", "is there twice"),
    (member("extra"), "extra", "a file that the manifest does not list"),
    (member("x" * 300), "x" * 255, "path is too long or too deep"),
])
def test_hostile_archive_entries(machine, kernel, tmp_path, prebuilt, info, where, why):
    archive = hostile_archive(tmp_path, kernel, prebuilt, lambda tar: tar.addfile(info))
    said = machine.bundle("verify", archive, *ACCEPT, rc=2)
    assert (said["fail"], said["first_error"], said["why"]) == (["BND-02"], where, why)
    assert not machine.driver.exists()


@pytest.mark.parametrize("form", ["w", "w:gz", "w:xz"])
def test_cut_archives_are_refused(machine, kernel, tmp_path, prebuilt, form):
    folder = prebuilt_bundle(tmp_path / "bundle", kernel, prebuilt).write()
    archive = tmp_path / "bundle.tar"
    with tarfile.open(archive, form) as tar:
        tar.add(folder, ".")
    whole = archive.read_bytes()
    for share in (0.02, 0.5, 0.9):
        archive.write_bytes(whole[:int(len(whole) * share)])
        said = machine.bundle("verify", archive, *ACCEPT, rc=2)
        assert said["fail"] in (["BND-01"], ["BND-02"]), share


def test_not_an_archive(machine, tmp_path):
    (tmp_path / "x").write_text("hello" * 500)
    said = machine.bundle("verify", tmp_path / "x", rc=2)
    assert "is not a tar archive" in said["why"]
    said = machine.run("bundle", "verify", tmp_path / "nothing")
    assert said.returncode == 4 and "nothing" in said.stderr


def test_sum_of_the_archive(machine, kernel, tmp_path, prebuilt):
    archive = hostile_archive(tmp_path, kernel, prebuilt, lambda tar: None)
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    machine.bundle("verify", archive, *ACCEPT, "--sha256", right)
    done = machine.run("bundle", "verify", archive, *ACCEPT, "--sha256", "0" * 64)
    assert done.returncode == 2 and right in done.stderr
