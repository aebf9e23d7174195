"""hx-cards watch over recorded machines: one look at good and bad ones, and the loop with its file and actions."""
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import HX_CARDS, hardware


def options(box):
    return ["--root", box.root, "--config", box.path("config.json"), "--nvml", box.path("nvml.so"), "--commands",
            box.path("commands.json"), "--kernel-log", box.path("dmesg.txt"), "--tool-timeout", "0.5"]


@pytest.mark.parametrize("name,code,ids", [
    ("good-gen2-x16-mailbox", 0, []),
    ("power-cap-lost", 0, ["cap"]),
    ("xid79-three-of-four", 2, ["lost", "xid"]),
    ("xid31-region-violation", 2, ["recovery", "xid"]),
    ("gsp-init-failed", 1, ["stuck"]),
    ("no-cards-no-driver", 3, []),
    ("other-gpu-h200x2", 3, []),
])
def test_one_look(name, code, ids, tmp_path):
    box = hardware.Machine(hardware.read_case(name), tmp_path)
    done = subprocess.run([HX_CARDS, "watch", "--once", "--json", *options(box)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    if code == 3:
        assert "nothing to watch" in done.stdout
        return
    found = json.loads(done.stdout)
    assert sorted({e["id"] for e in found["events"]}) == ids
    if name == "power-cap-lost":
        assert {c["set_limit_w"] for c in found["cards"]} == {180}


def test_loop(tmp_path):
    """A good machine gets hot: the engine is asked to stop, the file says why; SIGTERM ends the watch."""
    files = hardware.read_case("good-gen2-x16-mailbox")
    box = hardware.Machine(files, tmp_path)
    status = box.root + "/run/hx170/watch.json"
    os.makedirs(os.path.dirname(status), exist_ok=True)
    with subprocess.Popen([HX_CARDS, "watch", *options(box)], stderr=subprocess.PIPE, text=True) as watch:
        def wait_for(test):
            end = time.monotonic() + 30
            while time.monotonic() < end:
                if os.path.exists(status):
                    with open(status, encoding="utf-8") as f:
                        found = json.load(f)
                    if test(found):
                        return found
                time.sleep(0.1)
            raise AssertionError("the watch did not see it")

        found = wait_for(lambda s: True)
        assert found["events"] == [] and len(found["cards"]) == 4 and found["driver"] == "ok"
        path = box.path("nvml.json")
        with open(path, encoding="utf-8") as f:
            doc = json.load(f)
        doc["devices"][1]["temp_c"]["memory"] = 96
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(doc, f)
        os.replace(path + ".new", path)
        found = wait_for(lambda s: s["stop_engine"])
        assert [(e["id"], e["level"], e["card"]) for e in found["events"]] == [("hot", "stop", 1)]
        watch.send_signal(signal.SIGTERM)
        said = watch.stderr.read()
        assert watch.wait(10) == 0
    assert "hot: card 1" in said
    # Nothing is started on a recorded machine, and that is told.
    assert "the engine cannot be asked to stop" in said
