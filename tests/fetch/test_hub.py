"""The test hub itself, seen by curl: a fault suite is worth as much as its server."""
import hashlib
import json
import subprocess

import pytest
from conftest import TOKEN, certificate
from hub import parse_range

SHARD = "model-00003-of-00018.safetensors"


def curl(*args):
    r = subprocess.run(["curl", "-sS", "-m", "10", *args], capture_output=True)
    return r.returncode, r.stdout


def address(hub, path=SHARD):
    r = next(iter(hub.repositories.values()))
    return f"{hub.url}/{r.name}/resolve/{r.commit}/{path}"


def content(hub, path=SHARD):
    return next(iter(hub.repositories.values())).files[path].read()


def test_listing_has_pages(make_hub):
    hub = make_hub(page=7)
    r = next(iter(hub.repositories.values()))
    url, found = f"{hub.url}/api/models/{r.name}/tree/{r.commit}?recursive=true", {}
    for _ in range(20):
        _, out = curl("-i", url)
        head, body = out.split(b"\r\n\r\n", 1)
        found |= {e["path"]: e for e in json.loads(body) if e["type"] == "file"}
        link = [line for line in head.decode().split("\r\n") if line.startswith("Link:")]
        if not link:
            break
        url = link[0].split("<")[1].split(">")[0]
    assert set(found) == set(r.files)
    assert found[SHARD]["lfs"]["oid"] == hashlib.sha256(content(hub)).hexdigest()


def test_resolve_gives_a_signed_link(hub):
    code, out = curl("-i", address(hub))
    assert code == 0 and out.startswith(b"HTTP/1.1 302")
    for h in (b"X-Repo-Commit: ", b"X-Linked-Size: 449096", b"X-Linked-ETag: ", b"X-Amz-Signature="):
        assert h in out
    assert curl("-L", "-r", "100-4999", address(hub)) == (0, content(hub)[100:5000])


def test_link_of_another_file_is_refused(hub):
    _, out = curl("-w", "%{redirect_url}", "-o", "/dev/null", address(hub))
    link = out.decode()
    assert curl("-r", "0-9", "-o", "/dev/null", "-w", "%{http_code}", link) == (0, b"206")
    other = link.replace("00003-of", "00004-of")
    assert curl("-r", "0-9", "-o", "/dev/null", "-w", "%{http_code}", other) == (0, b"403")


@pytest.mark.parametrize("form", ["amz", "epoch", "opaque"])
def test_link_expires(make_hub, form):
    hub = make_hub(link_life=-1, link_form=form)
    assert curl("-L", "-r", "0-9", "-o", "/dev/null", "-w", "%{http_code}", address(hub)) == (0, b"403")


def test_token_is_wanted_by_the_hub_and_refused_by_the_network(make_hub):
    hub = make_hub(token=TOKEN)
    code = ("-o", "/dev/null", "-w", "%{http_code}", "-r", "0-9")
    assert curl(*code, address(hub)) == (0, b"401")
    auth = ("-H", "Authorization: Bearer " + TOKEN)
    # curl does not carry the header to another port.
    assert curl(*code, "-L", *auth, address(hub)) == (0, b"206")
    assert curl(*code, "--location-trusted", *auth, address(hub)) == (0, b"400")


def test_tls(make_hub, tmp_path):
    ca, *pair = certificate(tmp_path / "tls")
    hub = make_hub(tls=pair)
    assert curl("--cacert", ca, "-L", "-r", "0-99", address(hub)) == (0, content(hub)[:100])
    assert curl("-L", "-r", "0-99", address(hub))[0] == 60


@pytest.mark.parametrize("effects,code,n", [
    ({"cut": 10}, 18, 10), ({"reset": 10}, 56, 10), ({"stall": 10, "seconds": 1}, 18, 10), ({"fewer": 10}, 0, 90),
    ({"extra": 5}, 0, 105), ({"unranged": True}, 0, 449096), ({"status": 503}, 0, 0),
    ({"headers": {"Content-Length": None}}, 0, 100)])
def test_faults(hub, effects, code, n):
    hub.fault("cdn", SHARD, skip=1, times=1, **effects)
    whole = (0, content(hub)[:100])
    assert curl("-L", "-r", "0-99", address(hub)) == whole
    got = curl("-L", "-r", "0-99", address(hub))
    assert (got[0], len(got[1])) == (code, n)
    assert curl("-L", "-r", "0-99", address(hub)) == whole


def test_ranges():
    assert parse_range("bytes=0-9", 100) == (0, 9)
    assert parse_range("bytes=90-200", 100) == (90, 99)
    assert parse_range("bytes=-10", 100) == (90, 99)
    assert parse_range("bytes=100-", 100) == "beyond"
    assert parse_range(None, 100) is None
