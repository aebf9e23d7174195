"""Bytes on the wire: malformed HTTP, headers, form of streams."""
import json

import httpx
import pytest

from conftest import CHAT, chat, error, joined, request

HEAD = (b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n")
BODY = json.dumps(chat("Hello", max_tokens=1)).encode()


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def test_chunked_body(demo):
    data = b"".join(b"%x\r\n%s\r\n" % (len(BODY[i:i + 7]), BODY[i:i + 7])
                    for i in range(0, len(BODY), 7))
    got = demo.raw(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + data +
                   b"0\r\n\r\n")
    assert status(got) == 200 and b'"chat.completion"' in got


@pytest.mark.parametrize("chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n",
                                    b"2\r\n{}xx\r\n0\r\n\r\n", b"fffffffffffffffffff\r\n{}"])
def test_malformed_chunks(demo, chunks):
    got = demo.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, wait=2)
    assert status(got) in (None, 400, 413)
    assert demo.get("/health").status_code == 200


def test_both_lengths(demo):
    got = demo.raw(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
                   b"2\r\n{}\r\n0\r\n\r\n", wait=2)
    assert status(got) == 400


@pytest.mark.parametrize("length", [b"-1", b"x", b"99999999999999999999999", b"1 2"])
def test_bad_content_length(demo, length):
    got = demo.raw(HEAD + b"Content-Length: " + length + b"\r\n\r\n" + BODY, wait=2)
    assert status(got) in (400, 413)


def test_garbage(demo):
    for data in (b"\x00\xff\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 100, b"A" * 5000):
        got = demo.raw(data, wait=0.5)
        assert status(got) in (None, 400)
    assert demo.get("/health").status_code == 200


def test_headers_too_many(demo):
    many = b"".join(b"X-%d: 1\r\n" % i for i in range(120))
    assert status(demo.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")) == 431


def test_headers_too_large(demo):
    got = demo.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n")
    assert status(got) in (None, 431)
    assert demo.get("/health").status_code == 200


def test_announced_body_too_large(demo):
    """Refused from the header alone, then closed."""
    got = demo.raw(HEAD + b"Content-Length: 2000000\r\n\r\n", wait=2)
    assert status(got) == 413 and b"request_too_large" in got


def test_chunked_body_too_large(demo):
    got = demo.raw(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" +
                   (b"10000\r\n" + b" " * 65536 + b"\r\n") * 17 + b"0\r\n\r\n")
    assert status(got) in (None, 413)
    assert demo.get("/health").status_code == 200


def test_expect_continue(demo):
    s = demo.connect(HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n"
                     b"\r\n" % len(BODY))
    s.settimeout(5)
    assert s.recv(4096).startswith(b"HTTP/1.1 100")
    s.sendall(BODY)
    assert s.recv(4096).startswith(b"HTTP/1.1 200")
    s.close()


def test_keep_alive(demo):
    with httpx.Client(base_url=demo.url, timeout=20) as c:
        for _ in range(3):
            assert c.post(CHAT, json=chat("x", max_tokens=1)).status_code == 200
            assert c.post(CHAT, json=chat("x", n=0)).status_code == 400


def test_second_request_waits(demo):
    one = request(chat("Hello", max_tokens=2))
    got = demo.raw(one + request(chat("Hello", max_tokens=1), headers=["Connection: close"]))
    assert got.count(b"HTTP/1.1 200") == 2


def test_host_missing(demo):
    assert status(demo.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")) == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]", "[::1]:8000", "LOCALHOST"])
def test_hosts_allowed(demo, host):
    assert demo.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost.evil.example", "127.0.0.1.evil.example", "evil",
                                  "localhost@evil", "[::1", "127.0.0.1:x"])
def test_hosts_refused(demo, host):
    r = demo.get("/health", headers={"host": host})
    assert r.status_code in (400, 403)
    if r.status_code == 403:
        error(r, 403, "host_not_allowed")


def test_configured_host_and_origin(start):
    s = start("--server.allowed_hosts=box.lan", "--server.allowed_origins=http://ui.lan")
    assert s.get("/health", headers={"host": "box.lan:80"}).status_code == 200
    r = s.get("/health", headers={"origin": "http://ui.lan"})
    assert r.status_code == 200 and r.headers["access-control-allow-origin"] == "http://ui.lan"
    error(s.get("/health", headers={"origin": "http://ui.lan.evil"}), 403, "origin_not_allowed")
    assert "access-control-allow-origin" not in s.get("/health").headers


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_fetch_site_allowed(demo, site):
    assert demo.get("/health", headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize("kind,status_code", [("application/json; charset=utf-8", 200),
                                              ("application/jsonx", 415), ("text/plain", 415),
                                              ("application/x-www-form-urlencoded", 415)])
def test_content_type(demo, kind, status_code):
    r = httpx.post(demo.url + CHAT, content=BODY, headers={"content-type": kind}, timeout=20)
    assert r.status_code == status_code


def test_content_type_missing(demo):
    got = demo.raw(HEAD.replace(b"Content-Type: application/json\r\n", b"") +
                   b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, wait=2)
    assert status(got) == 415


def test_request_ids(demo):
    a, b = (demo.get("/health").headers["x-request-id"] for _ in range(2))
    assert a and b and a != b
    for path in ("/nothing", "/v1/models"):
        r = demo.get(path, headers={"x-request-id": "mine-1"})
        assert r.headers["x-request-id"] == "mine-1"
    r = demo.get("/health", headers={"x-request-id": "x" * 129})
    assert r.headers["x-request-id"] != "x" * 129
    r = demo.post(CHAT, chat("x", max_tokens=1), headers={"x-request-id": "mine-2"})
    assert r.headers["x-request-id"] == "mine-2" and "mine-2" in demo.log()


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/models/", "/v1/models?x=1",
                                  "/health", "/version", "/metrics"])
def test_get_paths(demo, path):
    assert demo.get(path).status_code == 200
    assert httpx.head(demo.url + path).content == b""


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/models", "/v1/embeddings", "/../etc/passwd"])
def test_unknown_paths(demo, path):
    got = demo.raw(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
                   b"Connection: close\r\n\r\n")
    assert status(got) == 404 and b"unknown_url" in got


@pytest.mark.parametrize("method,path,allow", [("GET", CHAT, "POST"), ("PUT", CHAT, "POST"),
                                               ("POST", "/health", "GET, HEAD"),
                                               ("DELETE", "/v1/models", "GET, HEAD")])
def test_methods(demo, method, path, allow):
    r = httpx.request(method, demo.url + path)
    error(r, 405, "method_not_allowed")
    assert r.headers["allow"] == allow


def test_stream_headers_and_lines(demo):
    with httpx.stream("POST", demo.url + CHAT, timeout=20, json=chat(
            "Hello", max_tokens=2, stream=True)) as r:
        assert r.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert r.headers["cache-control"] == "no-cache"
        assert r.headers["x-accel-buffering"] == "no"
        assert r.headers["transfer-encoding"] == "chunked"
        assert "content-encoding" not in r.headers
        text = r.read().decode()
    assert text.endswith("data: [DONE]\n\n")
    lines = text.split("\n\n")[:-1]
    assert all(x.startswith("data: ") or x == ": keep-alive" for x in lines)


def test_chunk_rules(demo):
    got = demo.stream(max_tokens=3, reasoning_effort="none", logit_bias=demo.force(" the"),
                      stream_options={"include_usage": True})
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in got}) == 1
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(got) == " the" * 3
    deltas = [e["choices"][0]["delta"] for e in got[1:-2]]
    assert all(list(d) == ["content"] and d["content"] for d in deltas)
    assert got[-2]["choices"][0]["delta"] == {}
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert got[-1]["choices"] == [] and all(e["usage"] is None for e in got[:-1])


def test_continuous_usage(demo):
    got = demo.stream(max_tokens=3, ignore_eos=True, stream_options={
        "include_usage": True, "continuous_usage_stats": True})
    counts = [e["usage"]["completion_tokens"] for e in got]
    assert counts == sorted(counts) and counts[-1] == 3


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"messages":[]}x', b"{'a':1}",
                                  b"[" * 200 + b"]" * 200, b'{"a":01}', b'{"a":"\x01"}', b"nul",
                                  b'{"messages":[],"messages":[]}'])
def test_not_json(demo, body):
    r = httpx.post(demo.url + CHAT, content=body, headers={"content-type": "application/json"})
    error(r, 400, "invalid_json")


def test_message_never_echoes_much(demo):
    for kw in ({"model": "m" * 5000}, {"reasoning_effort": "e" * 5000}, {"stop": ["s" * 5000]},
               {"tool_choice": "t" * 5000}):
        message = demo.post(CHAT, chat("x", **kw)).json()["error"]["message"]
        assert len(message) < 400 and "mmmm" * 21 not in message
        assert "eeee" * 21 not in message and "tttt" * 21 not in message
