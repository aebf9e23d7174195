"""Starts servers on free ports and stops them by their pid."""
import json
import os
import signal
import socket
import subprocess
import time

import httpx
import openai
import pytest

CHAT = "/v1/chat/completions"
MODEL = "deepseek-v4.1-flash"


class Server:
    def __init__(self, folder, program, *args):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "engine.conf"
        config.write_text("")
        self.log_path = folder / "log"
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [program, f"--config={config}", f"--server.listen=127.0.0.1:{self.port}", *args],
            stderr=self.log_file)
        if not wait_for(self.ready, 30):
            self.stop()
            raise RuntimeError("the server does not start: " + self.log())

    def ready(self):
        if self.process.poll() is not None:
            raise RuntimeError("the server ended: " + self.log())
        try:
            return httpx.get(self.url + "/health").status_code == 200
        except httpx.TransportError:
            return False

    def log(self):
        return self.log_path.read_text()

    def get(self, path, **kw):
        return httpx.get(self.url + path, timeout=20, **kw)

    def post(self, path, body, **kw):
        return httpx.post(self.url + path, json=body, timeout=60, **kw)

    def ask(self, text="Hello", **kw):
        """The answer to one chat request, which must succeed."""
        r = self.post(CHAT, chat(text, **kw))
        assert r.status_code == 200, r.text
        return r.json()

    def stream(self, text="Hello", **kw):
        """All events of one streamed chat request."""
        return self.stream_body(CHAT, chat(text, stream=True, **kw))

    def stream_body(self, path, body):
        with httpx.stream("POST", self.url + path, json=body, timeout=60) as r:
            if r.status_code != 200:
                r.read()
            assert r.status_code == 200, r.text
            return events(r)

    def metric(self, name):
        for line in httpx.get(self.url + "/metrics").text.splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        return None

    def labelled(self, name, label, value):
        return self.metric(f'{name}{{model_name="{MODEL}",{label}="{value}"}}')

    def connect(self, data):
        s = socket.create_connection(("127.0.0.1", self.port))
        s.sendall(data)
        return s

    def raw(self, data, wait=3):
        """All bytes until the server closes, for at most that many seconds."""
        end = time.time() + wait
        out = b""
        with self.connect(data) as s:
            try:
                while (left := end - time.time()) > 0:
                    s.settimeout(left)
                    chunk = s.recv(65536)
                    if not chunk:
                        break
                    out += chunk
            except (TimeoutError, ConnectionResetError):
                pass
        return out

    def client(self, **kw):
        return openai.OpenAI(base_url=self.url + "/v1", max_retries=0, timeout=60,
                             **{"api_key": "none", **kw})

    def token(self, text):
        """The id of a text that is one token."""
        ids = self.post("/tokenize", {"prompt": text}).json()["tokens"]
        assert len(ids) == 1, (text, ids)
        return ids[0]

    def force(self, *texts):
        """A bias that leaves the model only these tokens."""
        return {str(self.token(t)): 100 for t in texts}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log_file.close()


def wait_for(fn, seconds=5):
    end = time.time() + seconds
    while time.time() < end:
        if fn():
            return True
        time.sleep(0.02)
    return False


def scripted(folder, *args):
    return Server(folder, os.environ["HX_SERVER"], *args)


def real(folder, *args):
    return Server(folder, os.environ["HX_ENGINE"], "--engine.model=" + os.environ["HX_MODEL"], "--engram.slow_read=60s",
                  "--engine.max_context=4096", "--engine.kv_tokens=40960",
                  "--engine.prefill_chunk=64", *args)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The scripted engine."""
    s = scripted(tmp_path_factory.mktemp("server"), "--server.keepalive=100ms",
                 "--server.max_body=64k")
    yield s
    s.stop()


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The real engine with the demo model."""
    s = real(tmp_path_factory.mktemp("demo"), "--server.keepalive=200ms", "--server.max_body=1M")
    yield s
    s.stop()


def factory(tmp_path, open_server):
    made = []

    def make(*args):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(open_server(folder, *args))
        return made[-1]
    yield make
    for s in made:
        s.stop()


@pytest.fixture
def start(tmp_path):
    """Makes servers over the scripted engine, with options."""
    yield from factory(tmp_path, scripted)


@pytest.fixture
def start_demo(tmp_path):
    """Makes servers with the demo model, with options."""
    yield from factory(tmp_path, real)


def chat(text, **kw):
    return {"messages": [{"role": "user", "content": text}], **kw}


def events(response):
    out = []
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            out.append(json.loads(line[6:]))
    return out


def joined(got, key="content", index=0):
    """The text that the chunks of one choice add up to."""
    return "".join(c["delta"].get(key) or "" for e in got for c in e["choices"]
                   if c["index"] == index)


def request(body, path=CHAT, headers=()):
    """A POST request as bytes."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def error(response, status, code, param=None):
    """Checks an error answer's form and content."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    e = response.json()["error"]
    assert set(e) == {"message", "type", "param", "code"}
    assert e["code"] == code, e
    assert e["message"] and "\n" not in e["message"]
    if param:
        assert e["param"] == param, e
    return e
