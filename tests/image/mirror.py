"""A mirror on the loopback address with the two repositories that the demo hybrid is made of, for the scenarios that
download. First it stands as a model hub, so that `hx-fetch lock` makes the lock file; then as a plain folder server.

    mirror.py MODEL LOCK HX_FETCH [FOLDER]    MODEL: folder of `hx-inspect tiny`; LOCK: file to write;
                                              FOLDER: gets the repositories' files and the lock file, for a disk

Prints "mirror PORT CONTROL SHA256 NAME BYTES" once it serves. The control port takes
    GET /stats           "REQUESTS BYTES": requests for data and body bytes sent since the start or /clear
    POST /clear          forget faults and figures
    POST /fault          JSON with the fields of hub.Fault, such as {"status": 500, "times": 3}
"""
import http.server
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fetch"))
import repository  # noqa: E402
from hub import Hub  # noqa: E402

CHUNK = "1M"    # small, so that a cut or a bad piece costs little of 95 MB


def make_lock(repositories, lock, hx_fetch):
    """Returns what `hx-fetch plan` says about it."""
    official, pack = repositories
    hub = Hub(*repositories)
    try:
        where = f"--fetch.endpoints=hub=hub:{hub.url}"
        if os.path.exists(lock):
            os.unlink(lock)
        subprocess.run([hx_fetch, "lock", f"--official={official.name}@{official.commit}", where,
                        f"--exl3={pack.name}@{pack.commit}", f"--out={lock}", "--model=demo-hybrid",
                        f"--chunk={CHUNK}"], check=True, stdin=subprocess.DEVNULL)
    finally:
        hub.close()
    asked = [hx_fetch, "plan", "--json", "--force", f"--lock={lock}", f"--accept-lock={sha256(lock)}",
             f"--fetch.models={os.path.dirname(os.path.abspath(lock))}"]
    plan = subprocess.run(asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout
    return json.loads(plan)


def sha256(path):
    with open(path, "rb") as f:
        return repository.hashlib.file_digest(f, "sha256").hexdigest()


def dump(repositories, lock, folder):
    for r in repositories:
        for path, f in r.files.items():
            to = os.path.join(folder, r.name, path)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(to, "wb") as out:
                out.write(f.read())
    with open(lock, "rb") as f, open(os.path.join(folder, "model.lock.json"), "wb") as out:
        out.write(f.read())


class Control(http.server.BaseHTTPRequestHandler):
    mirror = None

    def reply(self, code, text):
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        done = [r for r in self.mirror.requests() if r.status in (200, 206)]
        self.reply(200, f"{len(done)} {self.mirror.sent()}\n")

    def do_POST(self):
        if self.path == "/clear":
            self.mirror.clear()
            return self.reply(200, "")
        try:
            fault = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.mirror.fault("hub", **fault)
        except (TypeError, ValueError) as e:
            return self.reply(400, f"{e}\n")
        return self.reply(200, "")

    def log_message(self, *_):
        pass


def main():
    model, lock, hx_fetch = sys.argv[1:4]
    repositories = repository.from_demo(model)
    plan = make_lock(repositories, lock, hx_fetch)
    if len(sys.argv) > 4:
        dump(repositories, lock, sys.argv[4])
    mirror = Hub(*repositories, kind="plain")
    Control.mirror = mirror
    control = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Control)
    print("mirror", mirror.ports["hub"].number, control.server_address[1], plan["lock_sha256"], plan["model"],
          plan["fetched_bytes"], flush=True)
    control.serve_forever()


if __name__ == "__main__":
    main()
