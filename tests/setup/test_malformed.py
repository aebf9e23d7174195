"""Answers that are no good (F6 of the test plan): one message with file and line, nothing of the file in force."""
import os
import subprocess

import pytest

from conftest import VECTORS

GOOD = (VECTORS / "answers.conf").read_text()
KEY = next(line for line in GOOD.split("\n") if line.startswith("admin_key"))


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def line_of(text, part):
    return text[:text.index(part)].count(b"\n") + 1


# name, the file, a part of the line at fault (None: no line, the values do not fit together), the reason.
CASES = [
    ("unknown-key", GOOD + "hostnme = x\n", "hostnme", "unknown key 'hostnme'"),
    ("bad-key", changed(KEY, "admin_key = ssh-ed25519 AAAA oops"), "oops", "admin_key: "),
    ("private-key", changed(KEY, "admin_key = -----BEGIN OPENSSH " + "PRIVATE KEY-----"), "BEGIN", "this is a private key"),
    ("weak-key", changed(KEY, "admin_key = " + (VECTORS / "rsa2048.pub").read_text().strip()), "ssh-rsa", "too weak"),
    ("no-key", "".join(l + "\n" for l in GOOD.split("\n") if not l.startswith("admin_key")), None, "admin_key: missing"),
    ("bad-address", changed("address = 192.168.1.5/24", "address = 192.168.1.500/24"), "192.168.1.500",
     "address: found '192.168.1.500/24'"),
    ("router-elsewhere", changed("gateway = 192.168.1.1", "gateway = 10.0.0.1"), None, "gateway: "),
    ("duplicate", GOOD + "hostname = other\n", "hostname = other", "'hostname' is there twice, first in line"),
    ("long-line", GOOD + "proxy = " + "x" * (1 << 20) + "\n", "xxxx", "the line has 1048584 bytes, at most 12288 are allowed"),
    ("long-key", changed(KEY, KEY + " " + "c" * 9000), "cccc", "admin_key: "),
    ("nul", GOOD + "ntp = a\0b\n", "a\0b", "a NUL byte in the line"),
    ("control", GOOD + "ntp = a\x1b[2Jb\n", "a\x1b", "a control character in the line"),
    ("no-utf8", GOOD.encode() + b"ntp = \xff\n", b"\xff", "not valid UTF-8"),
    ("newer", changed("schema = 1", "schema = 2"), "schema = 2", "schema 2 is newer than this system"),
    ("no-schema", changed("schema = 1\n", ""), "hostname", "the first line has to be: schema = 1"),
    ("no-value", GOOD + "just words\n", "just words", "expected 'key = value', found 'just words'"),
    ("empty", "", None, ":1: the first line has to be: schema = 1"),
]


def everything_below(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("before", ["blank", "set-up"])
@pytest.mark.parametrize("name,text,part,why", CASES, ids=[c[0] for c in CASES])
def test_malformed(machine, name, text, part, why, before):
    data = text if isinstance(text, bytes) else text.encode()
    if before == "set-up":
        assert machine.run("hx-setup", "--answers", str(VECTORS / "answers.conf")).returncode == 0
    at = machine.root / "efi" / "hx170-answers.conf"
    at.parent.mkdir()
    at.write_bytes(data)
    expected = str(at)
    if part is not None:
        expected += f":{line_of(data, part if isinstance(part, bytes) else part.encode())}: "
    earlier = everything_below(machine.root)
    for words in (["check", str(at)], ["--answers", str(at)], ["--answers", "auto"]):
        done = machine.run("hx-setup", *words)
        assert done.returncode == 65, (words, done)
        assert done.stderr.count("\n") == 1 and len(done.stderr) < 700
        assert done.stderr.startswith(f"hx-setup: {expected}") and why in done.stderr, done.stderr
        assert "\x1b" not in done.stderr and "\0" not in done.stderr
        later = everything_below(machine.root)
        for extra in ("var/lib/hx170/setup.log", "run/hx170/setup.lock"):
            later.pop(extra, None)
            earlier.pop(extra, None)
        assert later == earlier


@pytest.mark.parametrize("wrong,why", [(b"x" * (1 << 20), b"the line is too long or damaged"),
                                       (b"box\0name", b"the line is too long or damaged"),
                                       (b"\xff\xfe", b"1 to 63 letters")], ids=["1-mb", "nul", "no-utf8"])
def test_malformed_lines(machine, wrong, why):
    """The same typed or pasted: said, and asked again."""
    done = subprocess.run(machine.argv("hx-setup", "--plain"), input=wrong + b"\nbox5\nq\n", capture_output=True, timeout=30,
                          check=False, env={**os.environ, "TERM": "dumb"})
    assert done.returncode == 75
    assert why in done.stdout.replace(b"\n", b" ") and len(done.stdout) < 5000
    assert b"\0" not in done.stdout and b"\xff" not in done.stdout
    assert "hostname = box5\n" in machine.get("var/lib/hx170/config/draft.conf")
    assert machine.box is None
