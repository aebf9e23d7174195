"""Starts servers on free ports."""
import json
import os
import signal
import socket
import subprocess
import time

import httpx
import pytest


class Server:
    def __init__(self, folder, *args):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "engine.conf"
        config.write_text("")
        self.log_path = folder / "log"
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [os.environ["HX_SERVER"], f"--config={config}",
             f"--server.listen=127.0.0.1:{self.port}", *args],
            stderr=self.log_file)
        end = time.time() + 20
        while time.time() < end:
            try:
                if httpx.get(self.url + "/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        raise RuntimeError("the server does not start: " + self.log())

    def log(self):
        return self.log_path.read_text()

    def post(self, path, body, **kw):
        return httpx.post(self.url + path, json=body, timeout=20, **kw)

    def metric(self, name):
        for line in httpx.get(self.url + "/metrics").text.splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        return None

    def raw(self, data, wait=3):
        s = socket.create_connection(("127.0.0.1", self.port))
        s.settimeout(wait)
        s.sendall(data)
        out = b""
        try:
            end = time.time() + wait
            while time.time() < end and (chunk := s.recv(65536)):
                out += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        s.close()
        return out

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log_file.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("server"), "--server.keepalive=100ms",
               "--server.max_body=64k")
    yield s
    s.stop()


@pytest.fixture
def start(tmp_path):
    made = []

    def make(*args):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Server(folder, *args))
        return made[-1]
    yield make
    for s in made:
        s.stop()


def chat(text, **kw):
    return {"messages": [{"role": "user", "content": text}], **kw}


def events(response):
    out = []
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            out.append(json.loads(line[6:]))
    return out
