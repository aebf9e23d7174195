"""Interrupted at any moment: what is there afterwards, and what is asked for again (docs/fetch.md, resuming)."""
import json
import os
import random
import shutil
import signal
import time

import locks
import pytest
from conftest import copy_of, wait_for

EMBED = "model-00002-of-00018.safetensors"
SHARD = "model-00003-of-00018.safetensors"
# Every chunk is on record at once.
QUICK = {"sync_bytes": 4096, "sync_time": "10ms"}


def verified(fetch):
    """Bytes on record, as the status command finds them on the disk."""
    r = fetch.run("status", "--json")
    return json.loads(r.out)["done"]


def kill_when(fetch, p, ready):
    wait_for(lambda: p.poll() is not None or ready())
    assert p.poll() is None, p.err.read_text()
    p.kill()
    p.wait()


def interrupted(hub, fetch, after=40):
    """A download that was killed with that many chunks sent and the rest stalled; they are on record."""
    fault = hub.fault("cdn", skip=after, stall=0, seconds=60)
    fetch.options["stall"] = "60s"
    p = fetch.start()
    wait_for(lambda: fault.hits > after)
    wait_for(lambda: fetch.status().get("verified", 0) >= 65536)
    time.sleep(0.5)
    p.kill()
    p.wait()
    hub.clear()


@pytest.fixture
def half(hub, make_fetch):
    fetch = make_fetch(hub, **QUICK)
    interrupted(hub, fetch)
    return fetch


def wanted(fetch):
    """Bytes of sources that the lock file names."""
    n = 0
    for e in fetch.lock["files"]:
        n += e["size"] if e["mode"] == "whole" else sum(t["end"] - t["begin"] for t in e["tensors"])
    return n


def test_killed_then_only_the_rest(hub, half):
    half.check_invisible()
    done = verified(half)
    assert done > 1_000_000
    half.run()
    half.check()
    assert hub.sent() <= wanted(half) - done + 70_000, "asked for what was there"


def test_terminated_keeps_all_and_is_quick(hub, make_fetch):
    fetch = make_fetch(hub, rate=1_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 1_500_000)
    start = time.time()
    p.terminate()
    r = fetch.wait(p, 10)
    assert time.time() - start < 5
    assert r.code == 75
    fetch.check_invisible()
    done = verified(fetch)
    assert done > 1_000_000, "a planned stop loses at most the open chunks"
    assert "hx-fetch gc" in r.text, "how to drop it"
    hub.clear()
    fetch.options["rate"] = 0
    fetch.run()
    fetch.check()
    assert hub.sent() <= wanted(fetch) - done + 70_000


def test_interrupt_from_the_keyboard(hub, make_fetch):
    fetch = make_fetch(hub, rate=1_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 500_000)
    p.send_signal(signal.SIGINT)
    fetch.wait(p, 6)
    fetch.run()
    fetch.check()


def test_stopped_for_a_while(hub, make_fetch):
    """As after a suspend: the server has hung up meanwhile."""
    fetch = make_fetch(hub, rate=2_000_000)
    hub.fault("cdn", skip=10, times=4, reset=1000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 1_000_000)
    p.send_signal(signal.SIGSTOP)
    time.sleep(2)
    p.send_signal(signal.SIGCONT)
    assert fetch.wait(p).code == 0
    fetch.check()


def journals(fetch):
    return sorted(fetch.incoming.rglob("*.journal"), key=lambda p: p.stat().st_size)


@pytest.mark.parametrize("left", [1, 32, 63])
def test_torn_record(hub, half, left):
    """The last record was half written when the power went."""
    journal = journals(half)[-1]
    size = journal.stat().st_size
    assert size >= 192 and size % 64 == 0
    os.truncate(journal, size - 64 + left)
    half.run()
    half.check()


def test_record_with_one_bit_flipped(hub, half):
    journal = journals(half)[-1]
    data = bytearray(journal.read_bytes())
    data[-20] ^= 4
    journal.write_bytes(data)
    half.run()
    half.check()


def test_garbage_after_the_last_record(hub, half):
    with open(journals(half)[-1], "ab") as f:
        f.write(random.Random(3).randbytes(1000))
    half.run()
    half.check()


def test_journal_of_another_file(hub, half):
    """A whole journal, but not this file's: its records count for nothing."""
    a, b = journals(half)[-2:]
    a.write_bytes(b.read_bytes())
    half.run()
    half.check()


def test_disk_lied_about_sync(hub, half):
    """A chunk is on record, its bytes are not there: found, said, asked for again."""
    part = max((p for p in half.incoming.rglob("*.part") if p.with_suffix(".journal").exists() or True),
               key=lambda p: p.stat().st_blocks)
    data = part.read_bytes()
    with open(part, "r+b") as f:
        f.write(bytes(len(data)))
    r = half.run()
    half.check()
    assert "sync" in r.text, r.text


def test_journal_lost(hub, half):
    """The part is hashed against the lock file's chunks: nothing is asked for that is right."""
    done = verified(half)
    for j in journals(half):
        j.unlink()
    half.run()
    half.check()
    whole = sum(e["size"] for e in half.lock["files"] if e["mode"] == "whole")
    assert done > 0 and hub.sent() < wanted(half) + 70_000, whole


def test_part_lost(hub, half):
    for p in list(half.incoming.rglob("*.part")):
        p.unlink()
    half.run()
    half.check()


def test_length_of_the_part_means_nothing(hub, half):
    """Cut to nothing, or longer than it may be."""
    parts = sorted(half.incoming.rglob("*.part"))
    for i, p in enumerate(parts):
        os.truncate(p, 0 if i % 2 else p.stat().st_size + 100_000)
    half.run()
    half.check()


def test_time_of_the_part_means_nothing(hub, half):
    done = verified(half)
    for p in half.incoming.rglob("*"):
        os.utime(p, (0, 0))
    half.run()
    half.check()
    assert hub.sent() <= wanted(half) - done + 70_000


def test_new_lock_file_keeps_what_is_the_same(hub, half):
    """One small file is another one in the new release: the weights stay."""
    done = verified(half)
    official = list(hub.repositories.values())
    official[0].replace("generation_config.json", b'{"bos_token_id": 0, "eos_token_id": 1, "new": true}\n')
    half.relock(locks.lock_of(*official))
    r = half.run()
    half.check()
    assert hub.sent() <= wanted(half) - done + 140_000
    assert "lock" in r.text


def test_new_lock_file_drops_what_changed(hub, half):
    """Another commit with another layer: its chunks go, the others stay."""
    official = list(hub.repositories.values())
    data = bytearray(official[0].files[SHARD].read())
    data[-5] ^= 1
    official[0].replace(SHARD, bytes(data))
    half.relock(locks.lock_of(*official))
    half.run()
    half.check()


def test_second_run_does_nothing(hub, fetch):
    fetch.run()
    fetch.check()
    hub.clear()
    fetch.run()
    fetch.check()
    assert not hub.requests("cdn"), "all was there"


def test_killed_during_the_last_file(hub, make_fetch):
    """All but one chunk is there."""
    fetch = make_fetch(hub, **QUICK)
    hub.fault("cdn", "model-00002-of-00002", skip=5, stall=0)
    fetch.options["stall"] = "60s"
    p = fetch.start()
    total = wanted(fetch)
    kill_when(fetch, p, lambda: hub.sent() > total - 900_000)
    hub.clear()
    fetch.run()
    fetch.check()


def test_two_downloaders(hub, make_fetch):
    fetch = make_fetch(hub, rate=1_000_000)
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 100_000)
    start = time.time()
    fetch.refused(str(p.pid), code=75)
    assert time.time() - start < 3
    fetch.options["rate"] = 0
    assert p.poll() is None, "the first one goes on"
    p.terminate()
    fetch.wait(p, 10)


def test_lock_of_a_dead_downloader_does_not_hold(hub, half):
    half.run()
    half.check()


def test_gc_drops_one_file(hub, half):
    before = {p.name for p in half.incoming.rglob("*.part")}
    out = next(e["out"] for e in half.lock["files"] if (half.incoming / (e["out"] + ".part")).exists())
    half.run("gc", out)
    after = {p.name for p in half.incoming.rglob("*.part")}
    assert before - after == {os.path.basename(out) + ".part"}
    half.run()
    half.check()


def test_gc_refuses_other_names(half):
    half.refused("../../etc/passwd", command="gc", args=("../../etc/passwd",), code=66)


def killed_at_random(make_hub, make_fetch, repositories, rng, n):
    """Kills n downloads at random moments and begins anew whenever one is whole. After each kill: what is visible is
    right; what was on record before was not asked for again; what was sent is on record, but for the open chunks,
    the buffer and one batch."""
    hub = make_hub(*copy_of(repositories))
    chunk, batch, buffer = 1 << 18, 1 << 20, 1 << 20
    fetch = make_fetch(hub, lock=locks.lock_of(*repositories, chunk=chunk), rate=40_000_000, sync_bytes=batch,
                       sync_time="50ms", buffer=buffer)
    total = wanted(fetch)
    start = time.monotonic()
    finish(fetch)
    longest = time.monotonic() - start  # of this host, so that most kills meet a download that runs
    start_anew(fetch)
    met, rounds, done = 0, 0, 0
    while met < n:
        rounds += 1
        assert rounds <= 4 * n, "downloads end before they can be killed"
        hub.clear()
        p = fetch.start()
        time.sleep(rng.uniform(0.01, longest))
        running = p.poll() is None
        p.kill()
        p.wait()
        met += running
        assert running or p.returncode == 0, p.err.read_text()[-2000:]
        fetch.check_sane()
        sent, before, done = hub.sent(), done, verified(fetch)
        assert sent <= total - before, "asked for what was on record"
        # Open chunks, the buffer, the batch being synced and the one being filled.
        assert sent - (done - before) <= 8 * chunk + buffer + 3 * batch, "more is lost than the open chunks"
        if fetch.is_complete():
            finish(fetch)
            start_anew(fetch)
            done = 0
    finish(fetch)


def start_anew(fetch):
    shutil.rmtree(fetch.models)
    fetch.models.mkdir()


def finish(fetch):
    fetch.run(timeout=120)
    fetch.check()


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_times(make_hub, make_fetch, small, seed):
    """10 of the 200; all: make test-fetch-long."""
    killed_at_random(make_hub, make_fetch, small, random.Random(seed), 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 108))
def test_killed_at_200_random_times(make_hub, make_fetch, demo, seed):
    killed_at_random(make_hub, make_fetch, demo, random.Random(seed), 25)
