"""Life of requests on the real engine: disconnects, queue, slow readers, many streams, draining."""
import concurrent.futures
import json
import signal
import socket
import time

import httpx
import pytest

from conftest import CHAT, chat, error, events, joined, request, wait_for

LONG = {"max_tokens": 3000, "ignore_eos": True}
JSON = {"content-type": "application/json"}


def cancelled(s, phase):
    return s.labelled("hx_cancelled_total", "phase", phase)


def idle(s):
    return s.metric("vllm:num_requests_running") == 0 == s.metric("vllm:num_requests_waiting")


def running(s, n):
    return wait_for(lambda: s.metric("vllm:num_requests_running") == n)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_disconnect_decode(demo, stream, reset):
    before = cancelled(demo, "decode")
    made = demo.metric("vllm:generation_tokens_total")
    s = demo.connect(request(chat("Hello", stream=stream, **LONG)))
    assert wait_for(lambda: demo.metric("vllm:generation_tokens_total") > made + 3)
    if reset:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    assert wait_for(lambda: cancelled(demo, "decode") == before + 1)
    assert wait_for(lambda: idle(demo))


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_prefill(start_demo, stream):
    """Cancelled between chunks; what was computed serves the retry."""
    s = start_demo()
    body = chat("many different words are in here " * 250, stream=stream, max_tokens=1)
    c = s.connect(request(body))
    assert running(s, 1)
    time.sleep(0.3)
    c.close()
    assert wait_for(lambda: cancelled(s, "prefill") == 1)
    assert wait_for(lambda: idle(s))
    body["stream"] = False
    r = s.post(CHAT, body).json()
    assert r["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_queued(start_demo, stream):
    s = start_demo("--engine.max_sequences=1")
    first = s.connect(request(chat("Hello", stream=True, **LONG)))
    assert running(s, 1)
    second = s.connect(request(chat("Hello", stream=stream, **LONG)))
    assert wait_for(lambda: s.metric("vllm:num_requests_waiting") == 1)
    second.close()
    assert wait_for(lambda: cancelled(s, "queued") == 1)
    assert wait_for(lambda: s.metric("vllm:num_requests_waiting") == 0)
    first.close()
    assert wait_for(lambda: idle(s))


def test_disconnect_while_sending(demo):
    data = request(chat("x" * 5000))
    demo.connect(data[:len(data) // 2]).close()
    demo.connect(data[:30]).close()
    assert demo.ask(max_tokens=1)["usage"]["completion_tokens"] == 1
    assert wait_for(lambda: idle(demo))


def test_queue_full(start_demo):
    s = start_demo("--engine.max_sequences=1", "--server.queue=2")
    held = [s.connect(request(chat("Hello", stream=True, **LONG)))]
    assert running(s, 1)
    held += [s.connect(request(chat("Hello", stream=True, **LONG))) for _ in range(2)]
    assert wait_for(lambda: s.metric("vllm:num_requests_waiting") == 2)
    for stream in (False, True):
        r = s.post(CHAT, chat("x", stream=stream))
        assert error(r, 429, "queue_full")["type"] == "rate_limit_error"
        assert 1 <= int(r.headers["retry-after"]) <= 60
    assert s.post("/tokenize", {"prompt": "x"}).status_code == 200
    for c in held:
        c.close()
    assert wait_for(lambda: idle(s))
    assert s.ask(max_tokens=1)["choices"]


def test_keep_alive_in_the_queue(start_demo):
    s = start_demo("--engine.max_sequences=1", "--server.keepalive=100ms")
    first = s.connect(request(chat("Hello", stream=True, **LONG)))
    assert running(s, 1)
    got = s.raw(request(chat("Hello", stream=True, max_tokens=1)), wait=1)
    assert got.startswith(b"HTTP/1.1 200") and got.count(b": keep-alive\n\n") >= 3
    assert b"data:" not in got
    first.close()


def test_line_feeds_before_json(start_demo):
    s = start_demo("--engine.max_sequences=1", "--server.keepalive=100ms")
    first = s.connect(request(chat("Hello", stream=True, max_tokens=60, ignore_eos=True)))
    assert running(s, 1)
    r = s.post(CHAT, chat("Hello", max_tokens=1))
    assert r.content.startswith(b"\n") and r.json()["usage"]["completion_tokens"] == 1
    first.close()


def test_no_line_feeds(start_demo):
    s = start_demo("--engine.max_sequences=1", "--server.keepalive=100ms",
                   "--server.json_keepalive=no")
    first = s.connect(request(chat("Hello", stream=True, max_tokens=60, ignore_eos=True)))
    assert running(s, 1)
    assert s.post(CHAT, chat("Hello", max_tokens=1)).content.startswith(b"{")
    first.close()


def test_slow_reader(start_demo):
    """Takes nothing while much is written: counts as gone."""
    s = start_demo("--server.slow_reader=500ms")
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", s.port))
    c.sendall(request(chat("Hello", stream=True, n=8, logprobs=True, top_logprobs=20,
                           reasoning_effort="none", **LONG)))
    assert running(s, 8)
    assert wait_for(lambda: cancelled(s, "decode") == 1, 150)
    assert wait_for(lambda: idle(s))
    c.close()


def test_slow_reader_of_a_finished_stream(start):
    """The generation is over, but nobody reads what is left of it: the connection does not stay."""
    s = start("--server.slow_reader=500ms")
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", s.port))
    c.sendall(request(chat("x" * 3800, stream=True, n=8, logprobs=True, top_logprobs=20)))
    time.sleep(3)
    assert idle(s)
    c.settimeout(10)
    got = b""
    try:
        while piece := c.recv(1 << 20):
            got += piece
    except ConnectionResetError:
        pass
    c.close()
    assert got.startswith(b"HTTP/1.1 200") and b"[DONE]" not in got[-100:]


def test_forty_streams(demo):
    """More than run at once: the rest waits, all end well and none gets another's text."""
    words = [" the", " of", " and", " to"]
    bias = [demo.force(w) for w in words]

    def one(i):
        got = demo.stream(f"Question {i}", max_tokens=3, logit_bias=bias[i % 4],
                          reasoning_effort="none")
        assert got[-1]["choices"][0]["finish_reason"] == "length"
        return joined(got)
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        assert list(pool.map(one, range(40))) == [words[i % 4] * 3 for i in range(40)]
    assert wait_for(lambda: idle(demo))


def test_too_many_choices(start_demo):
    s = start_demo("--engine.max_sequences=2")
    error(s.post(CHAT, chat("x", n=3)), 400, "invalid_value", "n")
    assert len(s.ask(n=2, max_tokens=1)["choices"]) == 2


def test_drain(start_demo):
    """Running requests end; new ones are refused; the process ends with 0."""
    s = start_demo()
    with httpx.stream("POST", s.url + CHAT, timeout=30, json=chat(
            "Hello", stream=True, max_tokens=60, ignore_eos=True)) as r:
        assert running(s, 1)
        s.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: s.get("/health").status_code == 503)
        assert s.get("/health").json()["status"] == "draining"
        refused = s.post(CHAT, chat("x"))
        error(refused, 503, "draining")
        assert refused.headers["retry-after"]
        assert events(r)[-1]["choices"][0]["finish_reason"] == "length"
    assert s.process.wait(5) == 0


def test_drain_ends_late_requests(start_demo):
    s = start_demo("--server.stop_grace=300ms")
    with httpx.stream("POST", s.url + CHAT, timeout=30, json=chat(
            "Hello", stream=True, **LONG)) as r:
        assert running(s, 1)
        s.process.send_signal(signal.SIGTERM)
        text = r.read().decode()
    assert text.endswith("data: [DONE]\n\n")
    last = json.loads(text.split("\n\n")[-3][6:])
    assert last["error"]["code"] == "draining" and '"finish_reason":"' not in text
    assert s.process.wait(5) == 0


def test_idle_server_stops_at_once(start_demo):
    s = start_demo()
    began = time.time()
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(5) == 0 and time.time() - began < 3


def test_log_has_no_content(demo):
    before = len(demo.log())
    r = demo.post(CHAT, chat("zanzibar secret", max_tokens=2), headers={"x-request-id": "log-1"})
    demo.post(CHAT, chat("zanzibar secret", n=99))
    demo.post("/completions", {"prompt": "zanzibar secret", "max_tokens": 1})
    httpx.post(demo.url + CHAT, content=b'{"zanzibar', headers=JSON)
    assert r.status_code == 200
    text = demo.log()[before:]
    assert "zanzibar" not in text and "log-1" in text and "prompt " in text


def test_log_prompts(start_demo):
    s = start_demo("--server.log_prompts=yes")
    assert "prompts are written to the log" in s.log()
    s.ask("zanzibar", max_tokens=1)
    assert "zanzibar" in s.log()
