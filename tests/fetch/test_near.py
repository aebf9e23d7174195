"""Redirects from the internet into the local network (D3): refused by their address, whatever name it has; a mirror in
the local network may name its neighbours. The internet is a network namespace with documentation addresses."""
import ctypes
import os
import socket
import subprocess
import threading

import pytest
from conftest import wait_for
from test_http import proxy

OUTSIDE, INSIDE = "203.0.113.5", "10.20.30.40"
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network of its own")


@pytest.fixture
def elsewhere(tmp_path):
    """Runs a function in a thread with a network and names of its own; what it starts has them too."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{OUTSIDE} hub.example cdn.example\n{INSIDE} inside.example\n127.0.0.1 localhost\n")
    libc = ctypes.CDLL(None, use_errno=True)

    def enter():
        if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
            return os.strerror(ctypes.get_errno())
        for command in (f"mount --make-rprivate / && mount --bind '{hosts}' /etc/hosts", "ip link set lo up",
                        f"ip addr add {OUTSIDE}/32 dev lo && ip addr add {INSIDE}/32 dev lo"):
            r = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
            if r.returncode:
                return r.stderr
        return None

    def run(fn):
        result = []

        def body():
            why = enter()
            if why:
                result.append(why)
                return
            try:
                fn()
            except BaseException as e:  # noqa: BLE001  # for the test's own thread
                result.append(e)
        t = threading.Thread(target=body)
        t.start()
        t.join()
        if result and isinstance(result[0], str):
            pytest.skip("no network of its own: " + result[0])
        if result:
            raise result[0]
    return run


def refused(fetch, hub, url, **start):
    """The download says why, goes on waiting, and no byte of a file came from there."""
    p = fetch.start(**start)
    wanted = "a redirect into the local network, to " + url
    wait_for(lambda: p.poll() is not None or wanted in p.err.read_text() + p.out.read_text(), 30)
    assert wanted in p.err.read_text() + p.out.read_text(), p.err.read_text()
    fetch.check_invisible()
    assert not hub.requests("cdn")
    p.terminate()
    p.wait()


@ROOT
@pytest.mark.parametrize("host", [INSIDE, "127.0.0.1", "inside.example", "localhost", "169.254.169.254"])
def test_redirect_into_the_local_network(make_hub, make_fetch, elsewhere, host):
    def body():
        hub = make_hub(host="0.0.0.0")
        hub.url = hub.url.replace("0.0.0.0", OUTSIDE)
        hub.cdn_prefix = hub.cdn_url.replace("0.0.0.0", host)
        refused(make_fetch(hub), hub, hub.cdn_prefix)
    elsewhere(body)


@ROOT
@pytest.mark.parametrize("host", [OUTSIDE, "cdn.example"])
def test_redirect_outside(make_hub, make_fetch, elsewhere, host):
    def body():
        hub = make_hub(host="0.0.0.0")
        hub.url = hub.url.replace("0.0.0.0", "hub.example")
        hub.cdn_prefix = hub.cdn_url.replace("0.0.0.0", host)
        fetch = make_fetch(hub)
        fetch.run()
        fetch.check()
    elsewhere(body)


@ROOT
@pytest.mark.parametrize("mirror", [INSIDE, "inside.example"])
def test_mirror_in_the_local_network(make_hub, make_fetch, elsewhere, mirror):
    """Its files lie on its neighbour, or on its own second address."""
    def body():
        hub = make_hub(host="0.0.0.0")
        hub.url = hub.url.replace("0.0.0.0", mirror)
        hub.cdn_prefix = hub.cdn_url.replace("0.0.0.0", "127.0.0.1")
        fetch = make_fetch(hub)
        fetch.run()
        fetch.check()
    elsewhere(body)


@ROOT
def test_second_redirect_into_the_local_network(make_hub, make_fetch, elsewhere):
    """The content network is the one that sends the download in."""
    def body():
        hub, inner = make_hub(host="0.0.0.0"), make_hub(host=INSIDE)
        hub.url = hub.url.replace("0.0.0.0", OUTSIDE)
        hub.cdn_prefix = hub.cdn_url.replace("0.0.0.0", OUTSIDE)
        hub.fault("cdn", status=302, headers={"Location": inner.cdn_url + "/x"})
        fetch = make_fetch(hub)
        p = fetch.start()
        wait_for(lambda: f"local network, to {inner.cdn_url}" in p.err.read_text() + p.out.read_text(), 30)
        fetch.check_invisible()
        assert not inner.requests()
    elsewhere(body)


def test_behind_a_proxy(make_hub, make_fetch):
    """The proxy stands in the local network and is the one that looks up names; addresses are refused all the same."""
    hub = make_hub()
    with socket.create_server(("127.0.0.1", 0)) as s:
        threading.Thread(target=proxy, args=(s, []), daemon=True).start()
        env = {"http_proxy": f"http://127.0.0.1:{s.getsockname()[1]}", "no_proxy": ""}
        hub.url = hub.url.replace("127.0.0.1", "hub.example")
        hub.cdn_prefix = hub.cdn_url.replace("127.0.0.1", INSIDE)
        refused(make_fetch(hub), hub, hub.cdn_prefix, env=env)
        hub.cdn_prefix = hub.cdn_url.replace("127.0.0.1", "cdn.example")
        fetch = make_fetch(hub)
        r = fetch.wait(fetch.start(env=env))
        assert r.code == 0, r.text
        fetch.check()
