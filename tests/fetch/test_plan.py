"""What `plan` says before a long download: measurements, and that they are asked for."""
import json


def test_probe_measures_disk_and_sources(hub, fetch):
    hub.clear()
    r = fetch.run("plan", "--probe", "--probe-bytes=8M", "--json")
    probe = json.loads(r.out)["probe"]
    assert probe["disk_bytes_per_s"] > 1e6
    assert {s["id"] for s in probe["sources"]} == {s["id"] for s in fetch.lock["sources"]}
    assert all(s["bytes_per_s"] > 1e3 and s["hours"] > 0 for s in probe["sources"])
    data = [q for q in hub.requests() if q.status == 206 and q.name.endswith(".safetensors")]
    assert len(data) == 2 and all(q.begin == 0 for q in data)
    assert not [p for p in fetch.models.iterdir() if p.name != "incoming"], "the probe leaves nothing behind"


def test_plan_alone_asks_no_server(hub, fetch):
    hub.clear()
    r = fetch.run("plan", "--json")
    assert "probe" not in json.loads(r.out)
    assert not hub.requests()


def test_probe_of_a_server_that_is_gone(hub, fetch):
    hub.close()
    r = fetch.run("plan", "--probe", "--probe-bytes=1M", code=None, timeout=120)
    assert r.code == 69
    assert "probe of" in r.text


def test_probe_size_is_bounded(fetch):
    for size in ("0", "1000", "65G", "4T", "-1", "x"):
        assert "1M to 64G" in fetch.refused("--probe-bytes", command="plan", args=(f"--probe-bytes={size}",), code=64).text


def test_lock_needs_a_server_that_lists(make_hub, make_fetch, small):
    fetch = make_fetch(make_hub(kind="plain"))
    official, pack = small
    r = fetch.run("lock", f"--official={official.name}@{official.commit}", f"--exl3={pack.name}@{pack.commit}",
                  f"--out={fetch.folder}/new.json", code=78)
    assert "a hub endpoint is needed" in r.text
    assert not (fetch.folder / "new.json").exists()
