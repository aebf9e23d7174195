"""Runs hx-fetch against hubs on the loopback address."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import locks  # noqa: E402
import repository  # noqa: E402
from hub import Hub  # noqa: E402

TOKEN = "hub-token-0123456789-do-not-print"
SIGNATURE = re.compile(r"(?i)(signature|x-amz-|policy|[?&]s)=[^ \"*.…]{4}")


class Result:
    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err
        self.text = out + err

    def events(self):
        """Lines of --json."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


class Fetch:
    """One owner's box: a models folder, a lock file and endpoints."""

    def __init__(self, folder, lock, hubs, models=None, **options):
        self.folder = folder
        self.models = models or folder / "models"
        self.models.mkdir(parents=True, exist_ok=True)
        self.lock = lock
        self.lock_path = folder / "lock.json"
        self.accepted = locks.write(lock, self.lock_path)
        self.hubs = hubs
        self.status_path = folder / "fetch.json"
        self.config = folder / "fetch.conf"
        self.config.write_text("")
        self.n_runs = 0
        self.processes = []
        self.options = {"endpoints": " ".join(f"e{i}={h.kind}:{h.url}" for i, h in enumerate(hubs)),
                        "models": self.models, "lock": self.lock_path, "status": self.status_path, "reserve": 0,
                        "stall": "1s", **options}

    @property
    def model(self):
        return self.models / self.lock["model"]

    @property
    def incoming(self):
        return self.models / "incoming" / self.lock["model"]

    def relock(self, lock):
        self.lock = lock
        self.accepted = locks.write(lock, self.lock_path)

    def command(self, command, *args):
        given = [f"--fetch.{k}={v}" for k, v in self.options.items()]
        consent = ["--accept-licences", f"--accept-lock={self.accepted}"] if self.accepted else []
        return [os.environ["HX_FETCH"], command, f"--config={self.config}", *given, *consent, *args]

    def start(self, command="run", *args, env=None):
        """A process whose output goes to files: p.out, p.err."""
        base = self.folder / f"{self.n_runs}"
        self.n_runs += 1
        out, err = base.with_suffix(".out"), base.with_suffix(".err")
        with open(out, "wb") as o, open(err, "wb") as e:
            p = subprocess.Popen(self.command(command, *args), stdin=subprocess.DEVNULL, stdout=o, stderr=e,
                                 env={**os.environ, **(env or {})})
        p.out, p.err = out, err
        self.processes.append(p)
        return p

    def wait(self, p, timeout=60):
        try:
            code = p.wait(timeout)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGABRT)
            p.wait()
            raise AssertionError(f"still running after {timeout} s: {p.err.read_text()[-3000:]}") from None
        return Result(code, p.out.read_text(), p.err.read_text())

    def run(self, command="run", *args, code=0, timeout=60):
        r = self.wait(self.start(command, *args), timeout)
        if code is not None:
            assert r.code == code, (r.code, r.text[-3000:])
        return r

    def refused(self, *words, command="run", args=(), code=65):
        """The command fails with this exit status (hx-fetch(1)) and a message that holds all these texts."""
        r = self.run(command, *args, code=code)
        for w in words:
            assert w in r.text, (w, r.text)
        return r

    def status(self):
        try:
            return json.loads(self.status_path.read_text())
        except FileNotFoundError:
            return {}

    def sent(self):
        """Body bytes that the hubs sent, links and metadata left out."""
        return sum(h.sent() for h in self.hubs)

    def check_model(self):
        """The model folder is whole and equals its sources."""
        locks.check_folder(self.lock, list(self.hubs[0].repositories.values()), self.model)

    def check(self):
        """The model is whole and in use; nothing is left over."""
        self.check_model()
        assert (self.models / "current").resolve() == self.model.resolve()
        assert not list(self.models.rglob("*.part")) and not list(self.models.rglob("*.journal"))

    def is_complete(self):
        try:
            return json.loads((self.model / "state.json").read_text())["complete"]
        except FileNotFoundError:
            return False

    def check_invisible(self):
        """Nobody sees a model that is not whole: no link, and the folder is empty or says that it is not complete."""
        assert not os.path.lexists(self.models / "current")
        assert not self.is_complete()
        if not (self.model / "state.json").exists():
            assert not [p for p in self.model.rglob("*") if p.is_file() and p.name != "state.json.new"]
        assert not list(self.model.rglob("*.part"))

    def check_sane(self):
        """At any moment: the model is whole or nobody sees it. Every file under its own name is right."""
        if self.is_complete():
            self.check_model()
        else:
            self.check_invisible()
        sources = dict(zip((s["id"] for s in self.lock["sources"]), self.hubs[0].repositories.values(), strict=True))
        for e in self.lock["files"]:
            for folder in (self.incoming, self.model):
                if (folder / e["out"]).exists():
                    locks.check_file(e, sources[e["source"]].files[e["path"]], folder / e["out"])

    def stop(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()

    def check_secrets(self):
        """No token and no signature in anything that was written, the downloaded files apart."""
        secrets = {TOKEN, *(s for h in self.hubs for s in h.signatures)}
        paths = [p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_size < 4 << 20 and
                 p.suffix in (".out", ".err", ".json", ".journal")]
        for p in paths:
            text = p.read_bytes().decode("latin-1")
            assert not any(s in text for s in secrets), f"a secret in {p}"


def wait_for(fn, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        if value := fn():
            return value
        time.sleep(0.01)
    raise AssertionError("did not happen in time")


@pytest.fixture(scope="session")
def small():
    """Repositories of the test vectors: (official, pack). Read-only."""
    return repository.from_vectors(os.environ["HX_TOKENIZER"])


@pytest.fixture(scope="session")
def demo():
    """Repositories of the demo model."""
    return repository.from_demo(os.environ["HX_MODEL"])


def copy_of(repositories):
    return [repository.Repository(r.name, r.commit, r.files) for r in repositories]


@pytest.fixture
def make_hub(small):
    """Makes hubs; without repositories with copies of the small ones."""
    hubs = []

    def make(*repositories, **kw):
        hubs.append(Hub(*(repositories or copy_of(small)), **kw))
        return hubs[-1]
    yield make
    for h in hubs:
        h.close()


@pytest.fixture
def hub(make_hub):
    return make_hub()


@pytest.fixture
def make_fetch(tmp_path):
    """Makes boxes; at the end all that they wrote is searched for secrets."""
    made = []

    def make(*hubs, lock=None, **options):
        folder = tmp_path / f"box{len(made)}"
        folder.mkdir()
        lock = lock or locks.lock_of(*hubs[0].repositories.values())
        made.append(Fetch(folder, lock, hubs, **options))
        return made[-1]
    yield make
    for f in made:
        f.stop()
    for f in made:
        f.check_secrets()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def fetch(make_fetch, hub):
    """One hub, one box."""
    return make_fetch(hub)


def certificate(folder, name="IP:127.0.0.1", days=2, start=None):
    """(authority file, certificate file, key file), fresh. start: days from now at which it becomes valid."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ca, key, cert, request = (str(folder / n) for n in ("ca.pem", "key.pem", "cert.pem", "request.pem"))
    ca_key = str(folder / "ca.key")

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *ec, "-keyout", ca_key, "-out", ca, "-days", "30", "-subj", "/CN=Test authority")
    openssl("req", "-new", *ec, "-keyout", key, "-out", request, "-subj", "/CN=test")
    extensions = folder / "ext"
    extensions.write_text(f"subjectAltName={name}\n")
    if start is None:
        openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert,
                "-days", str(days), "-extfile", str(extensions))
        return ca, cert, key
    # `openssl ca` takes dates.
    (folder / "index").write_text("")
    (folder / "serial").write_text("01\n")
    config = folder / "ca.conf"
    config.write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index\nserial={folder}/serial\n"
                      f"new_certs_dir={folder}\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
    dates = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + d * 86400)) for d in (start, start + days)]
    openssl("ca", "-batch", "-config", str(config), "-in", request, "-cert", ca, "-keyfile", ca_key, "-out", cert,
            "-startdate", dates[0], "-enddate", dates[1], "-extfile", str(extensions), "-notext")
    return ca, cert, key
