"""What servers and lines do (docs/fetch.md, responses): every row of the table, named after the real thing."""
import email.utils
import signal
import socket
import threading
import time

import locks
import pytest
from conftest import TOKEN, certificate, copy_of, wait_for

SHARD = "model-00003-of-00018.safetensors"      # a layer, cut
EMBED = "model-00002-of-00018.safetensors"      # whole; 33 MB in the demo model
HTML = {"Content-Type": "text/html; charset=utf-8"}
LOGIN = b"<!DOCTYPE html><html><body>Please sign in</body></html>"


# One fault, then the server is well again: the download ends whole.
PASSING = {
    "request-timeout-408": {"status": 408},
    "too-early-425": {"status": 425},
    "server-error-500": {"status": 500},
    "bad-gateway-502": {"status": 502, "body": LOGIN, "headers": HTML},
    "unavailable-503-twice": {"status": 503, "times": 2},
    "gateway-timeout-504": {"status": 504},
    "content-range-of-other-bytes": {"shift": 4096},
    "content-range-of-another-size": {"total": 7},
    "content-range-missing": {"headers": {"Content-Range": None}},
    "content-range-garbage": {"headers": {"Content-Range": "bytes 5-"}},
    "content-range-overflow": {"headers": {"Content-Range": "bytes 0-18446744073709551616/18446744073709551617"}},
    "right-headers-wrong-bytes": {"lie": 512},
    "one-bit-flipped": {"corrupt": 1000},
    "length-too-small": {"fewer": 100},
    "length-too-large": {"extra": 100},
    "gzip-in-spite-of-identity": {"gzip": True},
    "range-ignored-200": {"unranged": True},
    "reset-in-the-body": {"reset": 2000},
    "closed-in-the-body": {"cut": 2000},
    "closed-before-a-byte": {"cut": 0},
    "closed-without-an-answer": {"silent": True},
    "stalled-in-the-body": {"stall": 2000},
    "stalled-before-a-byte": {"stall": 0},
    "below-8-kB-a-second": {"rate": 2000},
    "no-length-then-closed": {"headers": {"Content-Length": None}, "cut": 2000},
    "bad-request-400-once": {"status": 400},
    "link-expired-403": {"status": 403},
    "range-beyond-the-end-416": {"status": 416, "headers": {"Content-Range": "bytes */449096"}},
}


@pytest.mark.parametrize("name", PASSING)
def test_passing_fault(hub, fetch, name):
    fault = hub.fault("cdn", SHARD, **{"times": 1, **PASSING[name]})
    fetch.run()
    fetch.check()
    assert fault.hits > PASSING[name].get("times", 1), "no second try"


RESOLVE = {"unavailable-503-twice": {"status": 503, "times": 2}, "closed-without-an-answer": {"silent": True},
           "answer-takes-too-long": {"delay": 3}, "not-a-place-to-go-to": {"headers": {"Location": "nonsense://x"}}}


@pytest.mark.parametrize("name", RESOLVE)
def test_passing_fault_of_resolve(hub, fetch, name):
    fault = hub.fault("hub", SHARD, **{"times": 1, **RESOLVE[name]})
    fetch.run()
    fetch.check()
    assert fault.hits >= 2


def test_clean_run_asks_for_every_byte_once(hub, fetch):
    fetch.run()
    fetch.check()
    asked = set()
    for r in hub.requests("cdn"):
        assert "range" in r.headers, "a request without Range"
        assert r.headers.get("accept-encoding", "identity") == "identity"
        assert "authorization" not in r.headers
        assert (r.name, r.begin) not in asked, "asked twice"
        asked.add((r.name, r.begin))
    small = [r for r in hub.requests("hub", "config.json") if r.status in (200, 206)]
    assert small and all("range" in r.headers for r in small), "whole files too are asked for by range"


def test_ignored_range_does_not_drink_the_body(make_hub, make_fetch, demo):
    """33 MB come where 64 kB were asked for: closed, not read."""
    hub = make_hub(*copy_of(demo))
    hub.fault("cdn", EMBED, unranged=True, times=1)
    fetch = make_fetch(hub)
    fetch.run()
    fetch.check()
    refused = [r for r in hub.requests("cdn", EMBED) if r.status == 200]
    assert len(refused) == 1 and refused[0].sent < 16 << 20


def test_range_always_ignored(make_hub, make_fetch):
    """Only good for the second server."""
    hub, mirror = make_hub(), make_hub()
    hub.fault("cdn", unranged=True)
    fetch = make_fetch(hub, mirror)
    fetch.run(timeout=90)
    fetch.check()
    assert len([r for r in hub.requests("cdn") if r.status == 200]) <= 24, "out after the second"


def test_redirects_on_a_signed_link(hub, fetch):
    def hop(request):
        request.fault.headers["Location"] = request.path + "?" + request.query
    hub.fault("cdn", SHARD, status=307, times=3, call=hop)
    fetch.run()
    fetch.check()


@pytest.mark.parametrize("delay", [0, 0.5])
def test_redirect_circle(make_hub, make_fetch, delay):
    """One file may be in the middle of it when the server is put out for the others'."""
    def circle(request):
        request.fault.headers.update(Location=request.path + "?" + request.query)
    hub, mirror = make_hub(), make_hub()
    hub.fault("cdn", SHARD, status=302, delay=delay, call=circle)
    hub.fault("cdn", status=302, call=circle)
    fetch = make_fetch(hub, mirror, stall="30s")
    fetch.run(timeout=60)
    fetch.check()


def test_relative_redirect_of_a_renamed_repository(make_hub, make_fetch):
    """Inside the endpoint: followed with the token."""
    hub = make_hub(token=TOKEN)
    def hop(request):
        request.fault.headers["Location"] = request.path + "?renamed=1"
    hub.fault("hub", SHARD, status=307, times=1, call=hop)
    fetch = make_fetch(hub)
    token = fetch.folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    fetch.options["token_file"] = token
    fetch.run()
    fetch.check()
    assert any(r.query == "renamed=1" for r in hub.requests("hub", SHARD))


@pytest.mark.parametrize("where", ["hub", "cdn"])
def test_captive_portal_by_redirect(hub, fetch, where):
    # The login page lies at the port that has no fault.
    hub.fault(where, status=302, headers={"Location": (hub.url if where == "cdn" else hub.cdn_url) + "/login"})
    p = fetch.start()
    wait_for(lambda: p.poll() is not None or "captive portal" in p.err.read_text() + p.out.read_text(), 30)
    fetch.check_invisible()
    assert "captive portal" in p.err.read_text() + p.out.read_text()


@pytest.mark.parametrize("where", ["hub", "cdn"])
def test_captive_portal_by_page(hub, fetch, where):
    """A hotel's router answers everything with its login page."""
    hub.fault(where, status=200, body=LOGIN, headers=HTML)
    p = fetch.start()
    wait_for(lambda: p.poll() is not None or "captive portal" in p.err.read_text() + p.out.read_text(), 30)
    fetch.check_invisible()
    assert "captive portal" in p.err.read_text() + p.out.read_text()


def test_bad_request_for_ever(hub, fetch):
    hub.fault("cdn", SHARD, status=400)
    fetch.refused("400", code=77)
    fetch.check_invisible()
    assert len(hub.requests("cdn", SHARD)) <= 20


def test_token_missing_401(make_hub, make_fetch):
    hub = make_hub(token=TOKEN)
    fetch = make_fetch(hub)
    fetch.refused("401", "token", code=77)
    fetch.check_invisible()
    assert len(hub.requests("hub")) <= 20


def test_token_from_a_file_and_never_to_the_network(make_hub, make_fetch):
    hub = make_hub(token=TOKEN)
    fetch = make_fetch(hub)
    token = fetch.folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    fetch.options["token_file"] = token
    p = fetch.start()
    command = open(f"/proc/{p.pid}/cmdline").read() if p.poll() is None else ""
    r = fetch.wait(p)
    assert r.code == 0, r.text
    fetch.check()
    assert TOKEN not in command and TOKEN not in r.text
    assert all("authorization" not in q.headers for q in hub.requests("cdn"))


def test_token_as_a_credential(make_hub, make_fetch):
    """As the service manager passes it."""
    hub = make_hub(token=TOKEN)
    fetch = make_fetch(hub)
    folder = fetch.folder / "credentials"
    folder.mkdir()
    (folder / "hub_token").write_text(TOKEN)
    (folder / "hub_token").chmod(0o400)
    r = fetch.wait(fetch.start(env={"CREDENTIALS_DIRECTORY": str(folder)}))
    assert r.code == 0, r.text
    fetch.check()


def test_token_file_that_others_can_read(make_hub, make_fetch):
    fetch = make_fetch(make_hub(token=TOKEN))
    token = fetch.folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    fetch.options["token_file"] = token
    fetch.refused(str(token), "600", code=77)


def test_fresh_link_refused_too_403(make_hub, make_fetch):
    """Not expiry: the mirror gives it, and nothing is asked in a circle."""
    hub, mirror = make_hub(), make_hub()
    hub.fault("cdn", status=403, body=b"<Error>blocked in your country</Error>")
    fetch = make_fetch(hub, mirror)
    r = fetch.run(timeout=90)
    fetch.check()
    assert len([q for q in hub.requests("cdn") if q.status == 403]) <= 32
    assert "403" in r.text and "blocked in your country" in r.text


@pytest.mark.parametrize("status", [404, 410])
def test_file_gone(hub, fetch, status):
    hub.fault("hub", SHARD, status=status)
    fetch.refused(SHARD, str(status), code=66)
    fetch.check_invisible()
    assert len(hub.requests("hub", SHARD)) <= 6


def test_file_gone_at_one_hub(make_hub, make_fetch):
    hub, mirror = make_hub(), make_hub()
    hub.fault("hub", SHARD, status=404)
    fetch = make_fetch(hub, mirror)
    fetch.run()
    fetch.check()


def test_range_beyond_a_smaller_file_416(hub, fetch):
    """The size at the end of Content-Range tells: another file."""
    hub.fault("cdn", SHARD, status=416, headers={"Content-Range": "bytes */1000"})
    fetch.refused("upstream changed", SHARD)
    fetch.check_invisible()


def gap_after(hub, where, status):
    """Seconds from the first answer of a status to the next request at that port."""
    log = hub.requests(where)
    first = next(r for r in log if r.status == status)
    later = [r.time for r in log if r.time > first.time + 0.3]
    return min(later) - first.time if later else None


THROTTLED = {
    "retry-after-seconds": lambda: {"Retry-After": "1"},
    "retry-after-date": lambda: {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)},
    "ratelimit-header": lambda: {"RateLimit": '"resolvers";r=0;t=1'},
}


@pytest.mark.parametrize("name", THROTTLED)
def test_throttled_429(hub, fetch, name):
    """The whole bucket waits: as long as told, one second more, and some."""
    fetch.options["connections"] = 1
    hub.fault("cdn", status=429, times=1, skip=3, headers=THROTTLED[name]())
    fetch.run()
    fetch.check()
    gap = gap_after(hub, "cdn", 429)
    assert 1.7 <= gap <= 5, gap


def test_throttled_resolver_waits_for_all_files(hub, fetch):
    hub.fault("hub", status=429, times=1, skip=4, headers={"Retry-After": "2"})
    fetch.run()
    fetch.check()
    log = hub.requests("hub")
    first = next(r for r in log if r.status == 429)
    early = [r.name for r in log if first.time + 0.2 < r.time < first.time + 2.8]
    assert not early, early


def test_throttled_without_a_time(hub, fetch):
    hub.fault("cdn", SHARD, status=429, times=2)
    fetch.run()
    fetch.check()


def test_prefix_of_a_broken_chunk_is_kept(make_hub, make_fetch, demo):
    """More than 1 MiB came: only the rest is asked for again."""
    hub = make_hub(*copy_of(demo))
    hub.fault("cdn", EMBED, cut=3 << 20, times=1)
    fetch = make_fetch(hub, lock=locks.lock_of(*demo, chunk=8 << 20))
    fetch.run()
    fetch.check()
    broken = next(r for r in hub.requests("cdn", EMBED) if r.fault)
    again = [r for r in hub.requests("cdn", EMBED) if r.end == broken.end and r is not broken]
    assert len(again) == 1
    assert broken.begin + (1 << 20) <= again[0].begin <= broken.begin + (3 << 20)


def test_less_than_a_prefix_starts_over(make_hub, make_fetch, demo):
    hub = make_hub(*copy_of(demo))
    hub.fault("cdn", EMBED, cut=500_000, times=1)
    fetch = make_fetch(hub, lock=locks.lock_of(*demo, chunk=8 << 20))
    fetch.run()
    fetch.check()
    broken = next(r for r in hub.requests("cdn", EMBED) if r.fault)
    assert [r.begin for r in hub.requests("cdn", EMBED) if r.end == broken.end] == [broken.begin] * 2


# TLS

@pytest.fixture
def tls(tmp_path):
    return certificate(tmp_path / "tls")


def test_tls(make_hub, make_fetch, tls):
    ca, *pair = tls
    hub = make_hub(tls=pair)
    fetch = make_fetch(hub, ca_file=ca)
    fetch.run()
    fetch.check()


def test_tls_connection_closed_without_goodbye(make_hub, make_fetch, tls):
    ca, *pair = tls
    hub = make_hub(tls=pair)
    hub.fault("cdn", SHARD, reset=2000, times=1)
    hub.fault("cdn", EMBED, cut=2000, times=1)
    fetch = make_fetch(hub, ca_file=ca)
    fetch.run()
    fetch.check()


def test_unknown_authority(make_hub, make_fetch, tls):
    fetch = make_fetch(make_hub(tls=tls[1:]))
    fetch.refused("certificate", code=69)
    fetch.check_invisible()


def test_certificate_of_another_host(make_hub, make_fetch, tmp_path):
    ca, *pair = certificate(tmp_path / "other", name="DNS:other.example")
    make = make_fetch(make_hub(tls=pair), ca_file=ca)
    make.refused("certificate", code=69)


def test_certificate_expired(make_hub, make_fetch, tmp_path):
    ca, *pair = certificate(tmp_path / "old", start=-3, days=2)
    make_fetch(make_hub(tls=pair), ca_file=ca).refused("certificate", code=69)


def test_certificate_not_yet_valid_is_a_wrong_clock(make_hub, make_fetch, tmp_path):
    ca, *pair = certificate(tmp_path / "new", start=2)
    make_fetch(make_hub(tls=pair), ca_file=ca).refused("certificate", "clock", code=69)


def test_bad_certificate_of_one_of_two(make_hub, make_fetch, tls, tmp_path):
    ca, *pair = tls
    _, *other = certificate(tmp_path / "other")
    hub, mirror = make_hub(tls=other), make_hub(tls=pair)
    fetch = make_fetch(hub, mirror, ca_file=ca)
    fetch.run()
    fetch.check()
    assert not hub.requests()


# Mirrors

def test_host_name_that_does_not_exist(make_hub, make_fetch):
    hub = make_hub()
    fetch = make_fetch(hub)
    fetch.options["endpoints"] = "gone=hub:http://no-such-host.invalid " + fetch.options["endpoints"]
    fetch.run(timeout=90)
    fetch.check()


def test_server_that_nobody_runs(make_hub, make_fetch):
    hub = make_hub()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        fetch = make_fetch(hub)
        fetch.options["endpoints"] = f"down=hub:http://127.0.0.1:{port} " + fetch.options["endpoints"]
        fetch.run(timeout=90)
    fetch.check()


def test_line_down_waits_and_goes_on(hub, make_fetch):
    """Nobody answers for a while: waiting is said, nothing is given up."""
    fetch = make_fetch(hub)
    port = int(hub.url.rsplit(":", 1)[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        other = s.getsockname()[1]
        fetch.options["endpoints"] = f"e0=hub:http://127.0.0.1:{other}"
        p = fetch.start()
        wait_for(lambda: fetch.status().get("waiting"), 20)
        s.listen()
        relay = threading.Thread(target=forward, args=(s.dup(), port), daemon=True)
        relay.start()
        r = fetch.wait(p, 90)
    assert r.code == 0, r.text
    fetch.check()


def forward(listener, port):
    def pump(a, b):
        try:
            while data := a.recv(1 << 16):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
    while True:
        try:
            a, _ = listener.accept()
        except OSError:
            return
        b = socket.create_connection(("127.0.0.1", port))
        for pair in ((a, b), (b, a)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def test_plain_server_as_mirror(make_hub, make_fetch):
    """A folder behind any server that knows ranges: the lock file vouches for the bytes."""
    fetch = make_fetch(make_hub(kind="plain"))
    fetch.run()
    fetch.check()


def test_mirrors_share_the_work(make_hub, make_fetch):
    """Two servers that give as much each do about half of it each, pieces of the same files among them."""
    one, other = make_hub(), make_hub()
    for h in (one, other):
        h.fault("cdn", ".safetensors", rate=250_000)
    fetch = make_fetch(one, other)
    fetch.run(timeout=90)
    fetch.check()
    a, b = one.sent(".safetensors"), other.sent(".safetensors")
    assert 0.25 < a / (a + b) < 0.75, (a, b)
    assert {q.name for q in one.requests("cdn", ".safetensors")} & {q.name for q in other.requests("cdn", ".safetensors")}


@pytest.mark.parametrize("slow_first", [True, False])
def test_slow_mirror_holds_nothing_up(make_hub, make_fetch, slow_first):
    """Fast enough not to stall, too slow to wait for: its pieces are asked for elsewhere."""
    slow, fast = make_hub(), make_hub()
    slow.fault("cdn", ".safetensors", rate=12_000)
    fetch = make_fetch(*((slow, fast) if slow_first else (fast, slow)))
    start = time.time()
    r = fetch.run(timeout=90)
    seconds = time.time() - start
    fetch.check()
    a, b = slow.sent(".safetensors"), fast.sent(".safetensors")
    assert seconds < (a + b) / 12_000 / 8, "longer than eight connections to the slow one alone"
    assert 0 < a < 0.2 * (a + b), (a, b)
    assert "others more than 8 times as much" in r.text


def test_mirror_that_never_answers(make_hub, make_fetch):
    """Connections are accepted and nothing comes, the first choice of all."""
    hub = make_hub()
    fetch = make_fetch(hub, stall="3s")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(64)
        fetch.options["endpoints"] += f" mute=plain:http://127.0.0.1:{s.getsockname()[1]}"
        r = fetch.run(timeout=90)
    fetch.check()
    assert hub.sent(".safetensors") > 0, r.text


def test_mirror_without_content_range(make_hub, make_fetch):
    bad, good = make_hub(kind="plain"), make_hub()
    bad.fault("hub", headers={"Content-Range": None})
    fetch = make_fetch(bad, good)
    fetch.run(timeout=90)
    fetch.check()
    assert len(bad.requests("hub")) <= 32


def test_mirror_with_bare_headers(make_hub, make_fetch):
    """No ETag, no X-Repo-Commit, no linked size: enough if the bytes are right."""
    hub = make_hub()
    hub.fault("hub", headers={"ETag": None, "X-Repo-Commit": None, "X-Linked-Size": None, "X-Linked-ETag": None,
                              "X-Xet-Hash": None})
    fetch = make_fetch(hub)
    fetch.run()
    fetch.check()


def test_mirror_sends_back_to_the_hub(make_hub, make_fetch):
    """308 to the first hub, as some mirrors answer."""
    hub, mirror = make_hub(), make_hub()
    mirror.fault("hub", status=308, call=lambda r: r.fault.headers.update(Location=hub.url + r.path))
    fetch = make_fetch(mirror, hub)
    fetch.run(timeout=90)
    fetch.check()


def test_mirror_with_wrong_bytes_twice_is_out(make_hub, make_fetch):
    bad, good = make_hub(), make_hub()
    bad.fault("cdn", ".safetensors", corrupt=100)
    # What is on its way to the hash when the second wrong piece is found: 16 pieces of the buffer, 8 connections.
    fetch = make_fetch(bad, good, buffer=1 << 20)
    r = fetch.run(timeout=90)
    fetch.check()
    wrong = [q for q in bad.requests("cdn") if q.fault]
    assert 2 <= len(wrong) <= 32, len(wrong)
    assert "127.0.0.1" in r.text


def test_wrong_bytes_everywhere_stop_the_file(hub, fetch):
    hub.fault("cdn", SHARD, corrupt=100)
    r = fetch.refused("dense/00003.safetensors", "SHA-256")
    fetch.check_invisible()
    assert len(hub.requests("cdn", SHARD)) <= 40, "no circle"
    assert r.text


# Links

@pytest.mark.parametrize("form", ["amz", "epoch"])
def test_link_is_renewed_before_it_expires(make_hub, make_fetch, form):
    hub = make_hub(link_life=3, link_form=form)
    fetch = make_fetch(hub, rate=1_000_000)
    fetch.run(timeout=90)
    fetch.check()
    assert not [r for r in hub.requests("cdn") if r.status == 403], "used after its end"
    assert len(hub.requests("hub", "model-00001-of-00002")) >= 1


def test_link_expires_unseen(make_hub, make_fetch):
    """No expiry in the link: 403, one new link, on."""
    hub = make_hub(link_life=2, link_form="opaque")
    fetch = make_fetch(hub, rate=1_000_000)
    fetch.run(timeout=90)
    fetch.check()
    assert [r for r in hub.requests("cdn") if r.status == 403]


def test_one_link_serves_many_ranges(hub, fetch):
    fetch.run()
    resolves = len(hub.requests("hub", ".safetensors"))
    ranges = len(hub.requests("cdn", ".safetensors"))
    assert resolves <= 40 and ranges > 2 * resolves, (resolves, ranges)


# Upstream

CHANGED = {
    "other-size": {"X-Linked-Size": "449097"},
    "other-hash": {"X-Linked-ETag": '"' + "0" * 64 + '"'},
}


@pytest.mark.parametrize("name", CHANGED)
def test_upstream_changed(hub, fetch, name):
    hub.fault("hub", SHARD, headers=CHANGED[name])
    fetch.refused("upstream changed", SHARD)
    fetch.check_invisible()
    assert not hub.requests("cdn", SHARD), "weights of a file that is another one"


def test_another_commit_answers(hub, fetch):
    hub.fault("hub", SHARD, headers={"X-Repo-Commit": "f" * 40})
    fetch.refused(SHARD, "commit")
    fetch.check_invisible()


def test_upstream_changes_in_the_middle(make_hub, make_fetch, small):
    """A push over the same revision while the file comes in: what is there stays, the file stops."""
    hub = make_hub()
    official = next(iter(hub.repositories.values()))

    def push(request):
        data = bytearray(official.files[SHARD].read())
        data[-1] ^= 1
        official.replace(SHARD, bytes(data))
    hub.fault("cdn", SHARD, skip=1, times=1, status=403, call=push)
    fetch = make_fetch(hub, connections=1)
    fetch.refused("upstream changed", SHARD)
    fetch.check_invisible()
    assert fetch.incoming.exists(), "what was there is kept"


def test_entity_tag_changes_in_the_middle(make_hub, make_fetch):
    hub, mirror = make_hub(), make_hub()
    hub.fault("cdn", SHARD, skip=1, headers={"ETag": '"something-else"'})
    fetch = make_fetch(hub, mirror, connections=1)
    r = fetch.run(code=None)
    if r.code == 0:
        fetch.check()
    else:
        fetch.check_invisible()
    assert "ETag" in r.text or "changed" in r.text


def test_network_without_entity_tags(hub, fetch):
    hub.fault("cdn", headers={"ETag": None})
    fetch.run()
    fetch.check()


# Pace

def test_never_more_connections_than_allowed(make_hub, make_fetch):
    hub = make_hub()
    hub.fault("cdn", delay=0.02)
    fetch = make_fetch(hub, connections=3, per_file=2)
    fetch.run()
    fetch.check()
    assert 1 < hub.most_open <= 3


def test_several_connections_are_used(make_hub, make_fetch):
    hub = make_hub()
    hub.fault("cdn", rate=200_000)
    fetch = make_fetch(hub, connections=8)
    fetch.run(timeout=90)
    assert hub.most_open >= 3


def test_rate_cap(make_hub, make_fetch):
    hub = make_hub()
    fetch = make_fetch(hub, rate=2_000_000)
    start = time.time()
    fetch.run()
    seconds = time.time() - start
    assert hub.sent() / seconds < 2_600_000, (hub.sent(), seconds)
    assert seconds < 15


def test_rate_cap_is_lifted_while_it_runs(hub, make_fetch):
    fetch = make_fetch(hub)
    fetch.config.write_text("[fetch]\nrate = 200000\n")
    p = fetch.start()
    wait_for(lambda: hub.sent(".safetensors") > 200_000)
    start = time.time()
    fetch.config.write_text("[fetch]\nrate = 0\n")
    p.send_signal(signal.SIGHUP)
    r = fetch.wait(p)
    assert r.code == 0, r.text
    fetch.check()
    assert time.time() - start < 25, "at the old rate the rest takes 30 s"


def test_window_opens_by_a_new_configuration(hub, make_fetch):
    fetch = make_fetch(hub)
    fetch.config.write_text(f"[fetch]\nwindow = {window(60, 120)}\n")
    p = fetch.start()
    wait_for(lambda: fetch.status().get("waiting"))
    assert not hub.requests("cdn")
    fetch.config.write_text("[fetch]\nwindow = \n")
    p.send_signal(signal.SIGHUP)
    r = fetch.wait(p)
    assert r.code == 0, r.text
    fetch.check()


def window(begin, end):
    """Local times of day, minutes from now."""
    return "-".join(time.strftime("%H:%M", time.localtime(time.time() + 60 * m)) for m in (begin, end))


def test_window_closed_downloads_nothing(hub, make_fetch):
    fetch = make_fetch(hub, window=window(60, 120))
    p = fetch.start()
    wait_for(lambda: fetch.status().get("waiting"))
    time.sleep(0.5)
    assert p.poll() is None
    assert not hub.requests("cdn")


def test_window_open(hub, make_fetch):
    fetch = make_fetch(hub, window=window(-60, 60))
    fetch.run()
    fetch.check()


def test_proxy_is_honoured(make_hub, make_fetch):
    hub = make_hub()
    with socket.create_server(("127.0.0.1", 0)) as s:
        seen = []
        threading.Thread(target=proxy, args=(s, seen), daemon=True).start()
        fetch = make_fetch(hub)
        address = f"http://127.0.0.1:{s.getsockname()[1]}"
        r = fetch.wait(fetch.start(env={"http_proxy": address, "no_proxy": ""}))
    assert r.code == 0, r.text
    fetch.check()
    assert len(seen) >= len(hub.requests())


def proxy(listener, seen):
    """Forwards requests for http:// addresses, one for each connection."""
    def serve(a):
        head = b""
        while b"\r\n\r\n" not in head:
            data = a.recv(65536)
            if not data:
                return
            head += data
        method, url, rest = head.split(b" ", 2)
        host, _, path = url[len(b"http://"):].partition(b"/")
        seen.append(url.split(b"?")[0])
        lines = [line for line in rest.split(b"\r\n") if not line.lower().startswith((b"connection", b"proxy-"))]
        with a, socket.create_connection(("127.0.0.1", int(host.split(b":")[1]))) as b:
            b.sendall(method + b" /" + path + b" " + lines[0] + b"\r\nConnection: close\r\n" + b"\r\n".join(lines[1:]))
            b.shutdown(socket.SHUT_WR)
            first = True
            while data := b.recv(1 << 16):
                if first:
                    data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                    first = False
                a.sendall(data)
    while True:
        try:
            a, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(a,), daemon=True).start()
