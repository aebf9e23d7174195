"""A machine in a folder, and hx-setup on a terminal of 80 columns and 24 lines."""
import errno
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pyte
import pytest

HERE = pathlib.Path(__file__).parent
VECTORS = HERE.parent / "vectors" / "setup"
COMMANDS = VECTORS / "commands.json"
BIN = pathlib.Path(os.environ["HX_BIN"])
LIMIT = 30  # seconds until something has to appear
WAITING = ("23", "270")  # select, pselect6: how newt waits for a key


def pytest_addoption(parser):
    parser.addoption("--update", action="store_true", help="write the screens anew")


class Terminal:
    """A program on a pseudo terminal; `seen` is all that it wrote, carriage returns taken out; `screen` what a
    terminal of 80 columns and 24 lines makes of it."""

    def __init__(self, argv, term):
        self.seen = ""
        self.mark = 0
        self.status = None
        self.read_goal = 0  # settle(): nothing is read from elsewhere before the last key
        self.screen = pyte.Screen(80, 24)
        self.painted = pyte.Stream(self.screen)
        self.painted.use_utf8 = False  # line drawing by character sets
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.execve(argv[0], argv, {"TERM": term, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})

    def read(self, wait):
        if not select.select([self.fd], [], [], wait)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            data = b""
        self.seen += data.decode("utf-8", "replace").replace("\r", "")
        self.painted.feed(data.decode("latin-1"))
        return bool(data)

    def expect(self, text):
        """Waits for text behind what was expected before; gives what came up to its end."""
        end = time.monotonic() + LIMIT
        while True:
            at = self.seen.find(text, self.mark)
            if at >= 0:
                part = self.seen[self.mark:at + len(text)]
                self.mark = at + len(text)
                return part
            assert time.monotonic() < end, f"{text!r} did not appear; so far: {self.seen[self.mark:]!r}"
            if not self.read(0.2) and self.ended():
                self.read(0)
                assert text in self.seen[self.mark:], f"ended before {text!r}: {self.seen[self.mark:]!r}"

    def picture(self):
        """What a person sees now, without the space at the ends."""
        return "\n".join(line.rstrip() for line in self.screen.display).strip("\n")

    def proc(self, name):
        return pathlib.Path(f"/proc/{self.pid}/{name}").read_text()

    def settle(self, quiet=0.0):
        """Until the program has read all keys and waits for more, and for so many seconds nothing was painted. What it
        painted last may still be on its way."""
        end = time.monotonic() + LIMIT
        while not self.ended():
            assert time.monotonic() < end, f"does not come to rest; the terminal shows:\n{self.picture()}"
            waits = self.n_read() >= self.read_goal and self.proc("syscall").split()[0] in WAITING
            if not self.read(quiet if waits else 0.01) and waits:
                return

    def shows(self, wanted):
        """Whether wanted(picture) comes true; then the program waits for keys."""
        end = time.monotonic() + LIMIT
        while not wanted(self.picture()) and not self.ended() and time.monotonic() < end:
            self.read(0.1)
        self.settle()
        return wanted(self.picture())

    def n_read(self):
        """Bytes that the program has read so far, from the terminal and elsewhere."""
        return int(self.proc("io").split()[1])

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def send(self, line):
        os.write(self.fd, line.encode() + b"\n")

    def keys(self, data):
        self.read_goal = self.n_read() + len(data)
        os.write(self.fd, data)

    def wait(self):
        """Exit status; what is still written is read on the way."""
        end = time.monotonic() + LIMIT
        while not self.ended():
            assert time.monotonic() < end, "does not end"
            self.read(0.1)
        while self.read(0):
            pass
        return self.status

    def close(self):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Machine:
    def __init__(self, root):
        self.root = root
        self.commands = COMMANDS
        for path in ("usr/share/hx170/locks/demo.json", "usr/share/hx170/locks/huge.json", "media/good", "media/bad",
                     "media/breaks", "media/models/x"):
            self.put(path, "{}")
        self.put("media/own.json", "own lock\n")  # its hash is in the recorded answers
        self.terminals = []

    def put(self, path, text):
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def add_commands(self, rows):
        """Recorded answers that come before those of all machines."""
        table = json.loads(pathlib.Path(self.commands).read_text())
        table["commands"] = rows + table["commands"]
        self.commands = self.root.parent / "commands.json"
        self.commands.write_text(json.dumps(table))

    def add_drives(self):
        self.add_commands(json.loads((VECTORS / "drives.json").read_text())["commands"])

    def get(self, path):
        at = self.root / path
        return at.read_text() if at.exists() else None

    @property
    def box(self):
        return self.get("var/lib/hx170/config/box.conf")

    def argv(self, program, *words):
        return [str(BIN / program), "--root", str(self.root), "--commands", str(self.commands), *words]

    def start(self, *words, term="dumb", program="hx-setup"):
        t = Terminal(self.argv(program, *words), term)
        self.terminals.append(t)
        return t

    def run(self, program, *words, stdin="", env=None):
        return subprocess.run(self.argv(program, *words), input=stdin, capture_output=True, text=True, timeout=LIMIT,
                              env={**os.environ, **(env or {})}, check=False)


@pytest.fixture
def machine(tmp_path):
    m = Machine(tmp_path / "root")
    yield m
    for t in m.terminals:
        t.close()
    shutil.rmtree(m.root)


@pytest.fixture
def key():
    return (VECTORS / "ed25519.pub").read_text().strip()


@pytest.fixture
def screen(request):
    """Compares a screen with its text in screens/."""
    def compare(name, text):
        path = HERE / "screens" / f"{name}.txt"
        text = text.strip("\n") + "\n"
        if request.config.getoption("--update"):
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs; tests/setup/run.sh BUILD --update writes it anew"
        assert all(len(line) <= 80 for line in text.partition("\n---- ")[0].split("\n"))
        assert "\x1b" not in text
    return compare
