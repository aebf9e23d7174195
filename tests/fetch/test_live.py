"""What may change or be asked while a download runs."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

from conftest import wait_for


def test_cap_is_changed_while_it_runs(hub, make_fetch):
    """SIGHUP reads the configuration again; without it 6.8 MB at 300 kB/s take 22 s."""
    fetch = make_fetch(hub)
    fetch.config.write_text("[fetch]\nrate = 300000\n")
    start = time.time()
    p = fetch.start()
    wait_for(lambda: fetch.status().get("fetched", 0) > 300_000)
    assert time.time() - start > 0.5
    fetch.config.write_text("[fetch]\nrate = 0\n")
    p.send_signal(signal.SIGHUP)
    r = fetch.wait(p, 15)
    assert r.code == 0, r.text
    assert "read anew" in r.text
    fetch.check()


def test_window_closes_while_it_runs(hub, make_fetch):
    fetch = make_fetch(hub)
    fetch.config.write_text("[fetch]\nrate = 300000\n")
    p = fetch.start()
    wait_for(lambda: fetch.status().get("fetched", 0) > 300_000)
    closed = "-".join(time.strftime("%H:%M", time.localtime(time.time() + 3600 * h)) for h in (1, 2))
    fetch.config.write_text(f"[fetch]\nwindow = {closed}\n")
    p.send_signal(signal.SIGHUP)
    wait_for(lambda: "time window" in fetch.status().get("waiting", ""))
    before = len(hub.requests())
    time.sleep(1)
    assert len(hub.requests()) == before and p.poll() is None
    fetch.config.write_text("")
    p.send_signal(signal.SIGHUP)
    r = fetch.wait(p, 20)
    assert r.code == 0, r.text
    fetch.check()


def test_bad_configuration_changes_nothing(hub, make_fetch):
    fetch = make_fetch(hub)
    fetch.config.write_text("[fetch]\nrate = 2000000\n")
    p = fetch.start()
    wait_for(lambda: fetch.status().get("fetched", 0) > 0)
    fetch.config.write_text("[fetch]\nrate = fast\n")
    p.send_signal(signal.SIGHUP)
    r = fetch.wait(p, 30)
    assert r.code == 0, r.text
    assert "not read anew" in r.text and "rate" in r.text
    fetch.check()


def test_stop_while_nobody_answers(hub, make_fetch):
    """A server that takes the connection and says nothing does not delay the end."""
    fetch = make_fetch(hub, stall="60s")
    hub.fault("cdn", stall=0, seconds=30)
    p = fetch.start()
    wait_for(lambda: hub.requests("cdn"))
    start = time.time()
    p.send_signal(signal.SIGTERM)
    r = fetch.wait(p, 5)
    assert time.time() - start < 5
    assert r.code == 75 and "run again" in r.text
    assert fetch.status()["phase"] == "stopped"
    fetch.check_invisible()


def test_stop_while_upstream_is_asked(hub, make_fetch):
    fetch = make_fetch(hub, stall="60s")
    hub.fault("api", stall=0, seconds=30)
    p = fetch.start()
    wait_for(lambda: hub.requests("api"))
    p.send_signal(signal.SIGINT)
    r = fetch.wait(p, 5)
    assert r.code == 75, r.text


def test_events_of_files_and_notes(hub, make_fetch):
    fetch = make_fetch(hub)
    hub.fault("cdn", "model-00003", status=206, times=1, headers={"Content-Range": "bytes 1-2/3"}, body=b"xx")
    events = fetch.run("run", "--json").events()
    ready = {e["name"] for e in events if e["event"] == "file" and e["state"] == "ready"}
    assert ready == {e["out"] for e in fetch.lock["files"]}
    assert any(e["event"] == "note" and "model-00003" in e["text"] for e in events)
    last = [e for e in events if e["event"] == "progress"][-1]
    assert last["phase"] == "complete" and last["percent"] == 100.0
    assert last["retries"]["protocol_errors"] >= 1
    status = json.loads(fetch.status_path.read_text())
    assert {f["state"] for f in status["files"]} == {"ready"}
    assert sum(f["verified"] for f in status["files"]) == status["verified"]
    assert status["retries"] == last["retries"]


def test_line_of_a_terminal(hub, make_fetch):
    """Drawn over and over, with a bar, percent, rate and time left."""
    fetch = make_fetch(hub, rate=2_000_000)
    master, slave = pty.openpty()
    p = subprocess.Popen(fetch.command("run"), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    fetch.processes.append(p)
    os.close(slave)
    seen = b""
    while True:
        if select.select([master], [], [], 30)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                data = b""
            if not data:
                break
            seen += data
    os.close(master)
    assert p.wait(30) == 0, seen
    text = seen.decode()
    assert re.search(r"\r\x1b\[K\[#+ *\] download \d+\.\d %, .* of .*/s, .* left, \d+ connection", text), text[-2000:]
    assert "[####################] complete 100.0 %" in text
    fetch.check()
