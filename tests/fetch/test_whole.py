"""From a hub to an engine that answers: lock, run, serve."""
import json
import os
import socket
import subprocess
import urllib.request

import locks
import openai
import pytest
from conftest import TOKEN, certificate, copy_of, wait_for


class Engine:
    def __init__(self, folder, model):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = folder / "engine.conf"
        config.write_text("")
        self.log = open(folder / "engine.log", "wb")
        self.process = subprocess.Popen(
            [os.environ["HX_ENGINE"], f"--config={config}", f"--server.listen=127.0.0.1:{self.port}",
             f"--engine.model={model}", "--engine.max_context=4096", "--engine.kv_tokens=8192"], stderr=self.log)

    def ready(self):
        assert self.process.poll() is None, open(self.log.name).read()
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False

    def answer(self, text):
        wait_for(self.ready, 30)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", timeout=60, max_retries=5)
        r = client.chat.completions.create(model="deepseek-v4.1-flash", max_tokens=8, temperature=0,
                                           messages=[{"role": "user", "content": text}])
        return r.choices[0].message.content, r.usage.completion_tokens

    def version(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version", timeout=10) as r:
            return json.load(r)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def engine(tmp_path):
    made = []

    def start(model):
        folder = tmp_path / f"engine{len(made)}"
        folder.mkdir()
        made.append(Engine(folder, model))
        return made[-1]
    yield start
    for e in made:
        e.stop()


def make_lock(fetch, *args):
    """The lock file that hx-fetch itself makes from the hub's metadata."""
    official, pack = fetch.hubs[0].repositories.values()
    fetch.lock_path.unlink()
    accepted, fetch.accepted = fetch.accepted, None
    r = fetch.run("lock", f"--official={official.name}@{official.commit}", f"--exl3={pack.name}@{pack.commit}",
                  f"--model={locks.MODEL}", f"--out={fetch.lock_path}", *args)
    assert accepted
    fetch.lock = json.loads(fetch.lock_path.read_text())
    fetch.accepted = locks.sha256(fetch.lock_path.read_bytes())
    return r


@pytest.mark.parametrize("layout", ["experts", "full"])
def test_lock_run_serve(demo, make_hub, make_fetch, engine, layout):
    """The whole way; the model answers as the one it was made from."""
    hub = make_hub(*copy_of(demo))
    fetch = make_fetch(hub, lock=locks.lock_of(*demo))
    make_lock(fetch, f"--layout={layout}")
    fetch.run(timeout=120)
    fetch.check()
    original, ours = engine(os.environ["HX_MODEL"]), engine(fetch.models / "current")
    want, got = original.answer("What is a lock file?"), ours.answer("What is a lock file?")
    assert got == want and got[1] > 0
    # The repositories vouched for themselves, and nobody else did.
    assert ours.version()["model_files"] == "not independently verified"
    assert original.version()["model_files"] == "unknown"


def test_over_tls_with_a_token(small, make_hub, make_fetch, tmp_path):
    ca, *pair = certificate(tmp_path / "tls")
    hub = make_hub(tls=pair, token=TOKEN)
    fetch = make_fetch(hub, ca_file=ca)
    token = fetch.folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    fetch.options["token_file"] = token
    make_lock(fetch)
    fetch.run()
    fetch.check()


def test_lock_is_the_same_every_time(hub, make_fetch, small):
    fetch = make_fetch(hub, lock=locks.lock_of(*small))
    make_lock(fetch)
    first = {k: v for k, v in fetch.lock.items() if k not in ("created",)}
    make_lock(fetch)
    assert {k: v for k, v in fetch.lock.items() if k not in ("created",)} == first


def test_lock_agrees_with_the_tests_own(hub, make_fetch, small):
    """Two programs, one reading of the repositories: same files, same tensors, same ranges."""
    fetch = make_fetch(hub, lock=locks.lock_of(*small, experts="cut"))
    own = {e["path"] + e["source"]: e for e in fetch.lock["files"]}
    make_lock(fetch, "--layout=experts")
    theirs = {e["path"] + e["source"]: e for e in fetch.lock["files"]}
    for key, e in own.items():
        # A shard that is wanted whole needs no cut.
        if e["path"] != "model-00002-of-00002.safetensors":
            assert theirs[key]["mode"] == e["mode"], key
        for k in ("size", "header_bytes", "header_sha256"):
            if k in e and k in theirs[key]:
                assert theirs[key][k] == e[k], (key, k)
        if theirs[key]["mode"] == "cut":
            assert [(t["name"], t["begin"], t["end"], t["dtype"], t["shape"]) for t in theirs[key]["tensors"]] == \
                [(t["name"], t["begin"], t["end"], t["dtype"], t["shape"]) for t in e["tensors"]], key
        elif e["path"].endswith((".safetensors", "tokenizer.json")):
            assert theirs[key]["sha256"] == e["sha256"], key


def test_listing_in_many_pages(make_hub, make_fetch, small):
    fetch = make_fetch(make_hub(page=3), lock=locks.lock_of(*small))
    make_lock(fetch)
    fetch.run()
    fetch.check()


def test_lock_reads_no_weights(make_hub, make_fetch, demo):
    """At most the first MiB of each shard."""
    hub = make_hub(*copy_of(demo))
    fetch = make_fetch(hub, lock=locks.lock_of(*demo))
    make_lock(fetch)
    shards = {r.name for r in hub.requests("cdn", ".safetensors")}
    assert len(shards) == 20
    for name in shards:
        assert hub.sent(name) <= 1 << 20, name


def test_groups(hub, make_fetch):
    """Only the parts that were asked for are downloaded; nothing is published without the rest."""
    fetch = make_fetch(hub, groups="small,engram")
    fetch.run(code=None)
    names = {r.name for r in hub.requests("cdn", ".safetensors")}
    assert names == {"model-00017-of-00018.safetensors", "model-00018-of-00018.safetensors"}
    fetch.check_invisible()
    fetch.options["groups"] = ""
    fetch.run()
    fetch.check()


def test_plan_counts(hub, fetch):
    r = fetch.run("plan", "--json")
    plan = json.loads(r.out)
    wanted = sum(e["size"] if e["mode"] == "whole" else sum(t["end"] - t["begin"] for t in e["tensors"])
                 for e in fetch.lock["files"])
    assert plan["wanted_bytes"] == wanted
    assert wanted <= plan["fetched_bytes"] <= wanted * 1.02
    assert not hub.requests("cdn")
    text = fetch.run("plan").out
    assert "dense/00003.safetensors" in text or "dense" in text


# Progress

def test_same_numbers_everywhere(hub, make_fetch):
    """Events, status file, plain lines: one count."""
    fetch = make_fetch(hub, rate=3_000_000)
    r = fetch.run("run", "--json")
    events = r.events()
    assert events, r.text
    last = [e for e in events if "verified" in e][-1]
    status = fetch.status()
    assert last["verified"] == status["verified"] == status["wanted"]
    seen = [e["verified"] for e in events if "verified" in e]
    assert seen == sorted(seen), "never backwards"
    fetch.check()


def test_plain_lines_without_a_terminal(hub, make_fetch):
    fetch = make_fetch(hub, rate=3_000_000)
    r = fetch.run()
    assert "\r" not in r.text and "\x1b" not in r.text
    assert "%" in r.text


def test_count_survives_a_restart(hub, make_fetch):
    fetch = make_fetch(hub, rate=1_500_000, sync_bytes=65536, sync_time="50ms")
    p = fetch.start()
    wait_for(lambda: fetch.status().get("verified", 0) > 1_000_000)
    p.kill()
    p.wait()
    before = fetch.status()["verified"]
    p = fetch.start()
    wait_for(lambda: p.poll() is not None or fetch.status().get("phase") == "download" and
             fetch.status()["verified"] > 0)
    assert fetch.status()["verified"] >= before - 200_000
    assert fetch.wait(p).code == 0


def test_status_command(hub, make_fetch):
    fetch = make_fetch(hub)
    r = fetch.run("status")
    assert "0" in r.text
    fetch.run()
    r = fetch.run("status")
    assert "100" in r.text or "complete" in r.text


def test_service_manager_is_told(hub, make_fetch, tmp_path):
    """READY or STATUS lines arrive at the notification socket."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(path))
        s.settimeout(10)
        fetch = make_fetch(hub, rate=3_000_000)
        p = fetch.start(env={"NOTIFY_SOCKET": str(path)})
        got = []
        wait_for(lambda: (got.append(s.recv(4096).decode()) or any("STATUS=" in g for g in got)))
        fetch.wait(p)
    assert any("STATUS=" in g for g in got)
