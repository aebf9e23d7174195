"""Requests, answers, streams and their errors."""
import concurrent.futures
import json
import signal
import socket
import time

import httpx
import openai
import pytest

from conftest import CHAT, chat, error, events, wait_for

JSON = {"content-type": "application/json"}


BAD = [("temperature", 2.1, "invalid_value"), ("temperature", "1", "invalid_type"),
       ("top_p", 0, "invalid_value"), ("top_p", 1.5, "invalid_value"),
       ("top_k", -2, "invalid_value"), ("top_k", 1.5, "invalid_value"),
       ("min_p", -0.1, "invalid_value"), ("presence_penalty", 3, "invalid_value"),
       ("frequency_penalty", -3, "invalid_value"), ("repetition_penalty", 0, "invalid_value"),
       ("seed", 1.5, "invalid_value"), ("seed", "a", "invalid_type"), ("n", 0, "invalid_value"),
       ("n", 9, "invalid_value"), ("max_tokens", 0, "invalid_value"),
       ("max_completion_tokens", -2, "invalid_value"), ("stream", 1, "invalid_type"),
       ("stream_options", {}, "invalid_value"), ("top_logprobs", 2, "invalid_value"),
       ("top_logprobs", 21, "invalid_value"), ("stop", "", "invalid_value"),
       ("stop", ["a"] * 17, "invalid_value"), ("stop", "x" * 257, "invalid_value"),
       ("stop", 5, "invalid_type"), ("stop_token_ids", [999], "invalid_value"),
       ("logit_bias", {"999": 1}, "invalid_value"), ("logit_bias", {"5": 101}, "invalid_value"),
       ("logit_bias", {"x": 1}, "invalid_value"), ("logit_bias", {"5": "1"}, "invalid_type"),
       ("min_tokens", -1, "invalid_value"),
       ("response_format", {"type": "json_object"}, "unsupported_parameter"),
       ("functions", [], "unsupported_parameter"), ("echo", True, "unsupported_parameter"),
       ("best_of", 2, "unsupported_parameter"), ("modalities", ["audio"], "unsupported_parameter"),
       ("chat_template", "x", "unsupported_parameter"), ("model", 5, "invalid_type")]


@pytest.mark.parametrize("field,value,code", BAD)
def test_field_refused(server, field, value, code):
    error(server.post(CHAT, chat("x", **{field: value})), 400, code, field)


@pytest.mark.parametrize("body,code", [
    ("{", "invalid_json"), ("", "invalid_json"), ("\xff", "invalid_json"), ("[]", "invalid_type"),
    ("[" * 200 + "]" * 200, "invalid_json"), ('{"messages":[],"messages":[]}', "invalid_json"),
    ("{}", "missing_required_parameter")])
def test_body_refused(server, body, code):
    r = httpx.post(server.url + CHAT, content=body.encode("latin-1"), headers=JSON)
    error(r, 400, code)


def test_whole_answer(server):
    r = server.post(CHAT, chat("héllo")).json()
    c = r["choices"][0]
    assert c["message"]["content"] == "héllo" and c["message"]["reasoning_content"] == "hmm"
    assert c["finish_reason"] == "stop" and r["usage"]["total_tokens"] == 16
    assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


def test_stream(server):
    with httpx.stream("POST", server.url + CHAT, json=chat(
            "SLOW 😀é", stream=True, stream_options={"include_usage": True})) as r:
        assert r.headers["content-type"] == "text/event-stream; charset=utf-8"
        got = events(r)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in got if e["choices"]) == \
        "SLOW 😀é"
    assert "\ufffd" not in json.dumps(got, ensure_ascii=False)
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"] for e in got].count([]) == 1 and got[-1]["usage"]["prompt_tokens"] == 11
    assert sum(bool(e["choices"] and e["choices"][0]["finish_reason"]) for e in got) == 1


def test_official_client(server):
    c = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    assert c.chat.completions.create(model="deepseek-v4.1-flash", messages=chat("hi")["messages"]) \
        .choices[0].message.content == "hi"
    text = "".join(e.choices[0].delta.content or "" for e in c.chat.completions.create(
        model="deepseek-v4.1-flash", messages=chat("hi")["messages"], stream=True))
    assert text == "hi"
    assert c.models.list().data[0].id == "deepseek-v4.1-flash"
    with pytest.raises(openai.NotFoundError):
        c.chat.completions.create(model="other", messages=chat("hi")["messages"])


@pytest.mark.parametrize("kw,text", [({"stop": "CD"}, "AB"), ({"stop": ["x", "BC"]}, "A"),
                                     ({"stop": "CD", "include_stop_str_in_output": True}, "ABCD"),
                                     ({"stop": "EFGH"}, "ABCDEF")])
@pytest.mark.parametrize("stream", [False, True])
def test_stop(server, kw, text, stream):
    if stream:
        with httpx.stream("POST", server.url + CHAT, json=chat("ABCDEF", stream=True, **kw)) as r:
            got = "".join(e["choices"][0]["delta"].get("content", "") for e in events(r))
    else:
        got = server.post(CHAT, chat("ABCDEF", **kw)).json()["choices"][0]["message"]["content"]
    assert got == text


def test_choices_length_logprobs(server):
    r = server.post(CHAT, chat("abc", n=3, max_tokens=6, logprobs=True, top_logprobs=1)).json()
    assert [c["index"] for c in r["choices"]] == [0, 1, 2]
    for c in r["choices"]:
        assert c["finish_reason"] == "length" and c["message"]["content"] == "ab"
        assert [t["bytes"] for t in c["logprobs"]["content"]] == [[97], [98]]


def test_completions(server):
    r = server.post("/v1/completions", {"prompt": [[97], [98]], "max_tokens": 99}).json()
    assert [c["text"] for c in r["choices"]] == ["hmm</think>a", "hmm</think>b"]
    assert server.post("/completions", {"prompt": "abcdefghijklmnopq"}).json()["usage"][
        "completion_tokens"] == 16
    error(server.post("/completions", {"prompt": ["a"] * 9}), 400, "invalid_value", "prompt")
    error(server.post("/completions", {"prompt": [999]}), 400, "invalid_value", "prompt")
    error(server.post("/completions", {}), 400, "missing_required_parameter", "prompt")


def test_tokenize(server):
    r = server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()
    assert (r["count"], r["tokens"], r["token_strs"]) == (2, [97, 98], ["a", "b"])
    assert server.post("/detokenize", {"tokens": [97, 98]}).json()["prompt"] == "ab"
    error(server.post("/detokenize", {"tokens": [999]}), 400, "invalid_value", "tokens")


def test_context(server):
    error(server.post(CHAT, chat("x" * 5000, stream=True)), 400, "context_length_exceeded")


def test_failure(server):
    error(server.post(CHAT, chat("FAIL")), 500, "internal_error")
    with httpx.stream("POST", server.url + CHAT, json=chat("FAIL", stream=True)) as r:
        assert r.status_code == 200 and "error" in events(r)[-1]


@pytest.mark.parametrize("headers,status,code", [
    ({"host": "127.0.0.1.evil.example"}, 403, "host_not_allowed"),
    ({"host": "evil.example:8000"}, 403, "host_not_allowed"),
    ({"origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ({"origin": "null"}, 403, "origin_not_allowed"),
    ({"sec-fetch-site": "cross-site"}, 403, "origin_not_allowed"),
    ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ({"content-encoding": "gzip"}, 415, "unsupported_media_type")])
def test_headers_refused(server, headers, status, code):
    error(server.post(CHAT, chat("x"), headers=headers), status, code)


def test_paths(server):
    error(httpx.get(server.url + "/nothing"), 404, "unknown_url")
    r = httpx.get(server.url + CHAT)
    error(r, 405, "method_not_allowed")
    assert r.headers["allow"] == "POST"
    assert httpx.head(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/v1/models/?x=1").status_code == 200
    error(httpx.get(server.url + "/models/none"), 404, "model_not_found")
    r = httpx.get(server.url + "/version", headers={"x-request-id": "mine"})
    assert r.headers["x-request-id"] == "mine"


def test_large_body(server):
    error(server.post(CHAT, chat("x" * 70000)), 413, "request_too_large")


def answer(server, data):
    """Status line and body of a raw request after which the server must close."""
    with server.connect(data) as s:
        s.settimeout(5)
        got = b""
        while chunk := s.recv(65536):
            got += chunk
    head, _, body = got.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].split(b" ", 2)[:2], body


def test_malformed_http(server):
    head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" \
        b"Content-Type: application/json\r\n"
    both = head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert answer(server, both)[0] == [b"HTTP/1.1", b"400"]
    bad = head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    assert answer(server, bad)[0] == [b"HTTP/1.1", b"400"]
    big = head + b"X: " + b"a" * 100000 + b"\r\n\r\n"
    assert answer(server, big)[0] == [b"HTTP/1.1", b"431"]
    assert httpx.get(server.url + "/health").status_code == 200


def test_header_limit(server):
    """64 KiB with request line and empty line; one byte more is refused in our own words."""
    rest = len(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: \r\n\r\n")
    for extra, code in ((0, b"200"), (1, b"431")):
        status, body = answer(
            server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " +
            b"a" * (65536 - rest + extra) + b"\r\n\r\n")
        assert status == [b"HTTP/1.1", code]
    assert json.loads(body)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text,phase", [("STUCK", "prefill"), ("SLOW" + "x" * 300, "decode")])
def test_disconnect(server, stream, text, phase):
    name = 'hx_cancelled_total{model_name="deepseek-v4.1-flash",phase="%s"}' % phase
    before = server.metric(name)
    body = json.dumps(chat(text, stream=stream)).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
    time.sleep(0.2)
    s.close()
    assert wait_for(lambda: server.metric(name) == before + 1)
    assert wait_for(lambda: server.metric("vllm:num_requests_running") == 0)


def test_keep_alive_comments(server):
    body = json.dumps(chat("STUCK", stream=True)).encode()
    got = server.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body, wait=0.5)
    assert got.count(b": keep-alive\n\n") >= 2


def test_parallel(start):
    s = start("--engine.max_sequences=40")
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        texts = [f"SLOW stream {i}" for i in range(40)]

        def one(text):
            with httpx.stream("POST", s.url + CHAT, json=chat(text, stream=True), timeout=30) as r:
                return "".join(e["choices"][0]["delta"].get("content", "") for e in events(r))
        assert list(pool.map(one, texts)) == texts


def test_queue_full(start):
    s = start("--engine.max_sequences=1", "--server.queue=0")
    body = json.dumps(chat("STUCK", stream=True))
    with httpx.stream("POST", s.url + CHAT, content=body, headers=JSON):
        r = s.post(CHAT, chat("x"))
        error(r, 429, "queue_full")
        assert r.headers["retry-after"] == "3"


def test_key(start, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    s = start(f"--server.key_file={key}")
    error(s.post(CHAT, chat("x")), 401, "invalid_api_key")
    error(s.post(CHAT, chat("x"), headers={"authorization": "Bearer secre"}), 401,
          "invalid_api_key")
    assert s.post(CHAT, chat("x"), headers={"authorization": "Bearer secret"}).status_code == 200
    assert "secret" not in s.log()


def test_drain(start):
    s = start("--server.stop_grace=500ms", "--server.keepalive=100ms")
    with httpx.stream("POST", s.url + CHAT, json=chat("STUCK", stream=True), timeout=10) as r:
        s.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: httpx.get(s.url + "/health").status_code == 503)
        error(s.post(CHAT, chat("x")), 503, "draining")
        assert events(r)[-1]["error"]["code"] == "draining"
    assert s.process.wait(5) == 0


def test_second_signal(start):
    s = start()
    with httpx.stream("POST", s.url + CHAT, json=chat("STUCK", stream=True)):
        s.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: httpx.get(s.url + "/health").status_code == 503)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(3) == 0


def test_no_content_in_log(server):
    server.post(CHAT, chat("very private words"))
    assert "private" not in server.log()
