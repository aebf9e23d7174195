"""The screen of last resort, with stand-ins for the programs that it starts."""
import os
import subprocess

import pytest

SCRIPT = "image/overlay/usr/libexec/hx170/hx-recovery"


@pytest.mark.parametrize("typed, started", [
    ("1\n", ["systemctl --force reboot"]),
    ("", ["systemctl --force reboot"]),
    ("9\n\n1\n", ["systemctl --force reboot"]),
    ("2\n", ["hx-update rollback", "systemctl --force reboot"]),
    ("3\nyes\n1\n", ["systemctl --force reboot"]),
    ("3\nerase\n", ["hx-update reset state --yes", "systemctl --force reboot"]),
    ("4\nerase\n", ["hx-update reset everything --yes", "systemctl --force reboot"]),
])
def test_choices(tmp_path, typed, started):
    log = tmp_path / "log"
    for name in ("systemctl", "hx-update", "journalctl", "mountpoint", "mount", "sleep"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n')
        stub.chmod(0o755)
    done = subprocess.run(["sh", SCRIPT], input=typed, capture_output=True, text=True, timeout=30,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 0 and done.stderr == ""
    assert "this system could not start completely" in done.stdout
    assert [line for line in log.read_text().splitlines() if line.startswith("hx-update") or "reboot" in line] == started
    assert ("A number from 1 to 5" in done.stdout) == typed.startswith("9")


def test_rollback_that_is_refused_comes_back_to_the_list(tmp_path):
    for name in ("systemctl", "hx-update", "journalctl", "mountpoint", "mount", "sleep"):
        stub = tmp_path / name
        stub.write_text("#!/bin/sh\n" + ("echo 'hx-update: no other version' >&2\nexit 65\n" if name == "hx-update" else ""))
        stub.chmod(0o755)
    done = subprocess.run(["sh", SCRIPT], input="2\n3\nerase\n1\n", capture_output=True, text=True, timeout=30,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.count("could not start completely") == 3 and done.stderr.count("no other version") == 2


def test_says_what_failed_and_why(tmp_path):
    bodies = {
        "systemctl": 'case $* in *--failed*) echo "hx-repart.service loaded failed failed File systems of this box";; esac\n',
        "journalctl": 'case $* in *_SYSTEMD_UNIT=hx-repart.service) echo "hx-install: /dev/hx170/state: neither empty nor ext4";; '
                      "*) exit 1;; esac\n",
    }
    for name in ("systemctl", "hx-update", "journalctl", "mountpoint", "mount", "sleep"):
        stub = tmp_path / name
        stub.write_text("#!/bin/sh\n" + bodies.get(name, ""))
        stub.chmod(0o755)
    done = subprocess.run(["sh", SCRIPT], input="1\n", capture_output=True, text=True, timeout=30,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "  File systems of this box (hx-repart.service)\n" in done.stdout
    assert "    hx-install: /dev/hx170/state: neither empty nor ext4\n" in done.stdout
