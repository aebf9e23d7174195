"""A model hub on the loopback address, for tests: a hub port (listing, resolve) and a second port that stands for the
content network and wants signed links. Answers are as good as a real hub's until a fault is put on them.

    hub.py FOLDER OWNER/NAME COMMIT     serves every file below FOLDER until it is stopped; prints its address as JSON
"""
import base64
import dataclasses
import gzip
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse

MAX_HEAD = 65536
REASONS = {200: "OK", 206: "Partial Content", 301: "Moved Permanently", 302: "Found", 307: "Temporary Redirect",
           308: "Permanent Redirect", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
           408: "Request Timeout", 410: "Gone", 416: "Range Not Satisfiable", 425: "Too Early",
           429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable",
           504: "Gateway Timeout"}
LOGIN_PAGE = b"<!DOCTYPE html><html><head><title>Welcome to our network</title></head><body>Sign in</body></html>\n"


class File:
    """One file of a repository, from memory or from a disk."""

    def __init__(self, data=None, path=None, sha256=None, lfs=True):
        self.data = data
        self.path = path
        self.size = len(data) if path is None else os.path.getsize(path)
        self.lfs = lfs
        self.sha256 = sha256 or self.hash()

    def hash(self):
        if self.path is None:
            return hashlib.sha256(self.data).hexdigest()
        with open(self.path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    def read(self):
        if self.path is None:
            return self.data
        with open(self.path, "rb") as f:
            return f.read()


class Repository:
    def __init__(self, name, commit, files):
        self.name = name
        self.commit = commit
        self.files = dict(files)

    @classmethod
    def from_folder(cls, name, commit, folder):
        files = {}
        for root, _, names in os.walk(folder):
            for n in names:
                path = os.path.join(root, n)
                files[os.path.relpath(path, folder)] = File(path=path, lfs=n.endswith((".safetensors", ".bin")))
        return cls(name, commit, files)

    def replace(self, path, data):
        """Other content under the same name, as after a push over the same revision."""
        self.files[path] = File(data, lfs=self.files[path].lfs)


@dataclasses.dataclass
class Fault:
    """What happens to the answers of one port whose path contains a text. The first `skip` requests that match are
    left alone, then `times` are hit (None: all that follow)."""
    where: str                      # "api", "hub" (resolve) or "cdn"
    path: str = ""                  # part of the repository's path of the file, or of the request's path
    skip: int = 0
    times: int | None = None
    method: str = ""                # "GET", "HEAD" or both
    # effects
    status: int | None = None       # with `body`, instead of the answer
    body: bytes = b""
    headers: dict = dataclasses.field(default_factory=dict)     # set; None: left out
    unranged: bool = False          # the Range header is not understood: 200 and the whole file
    shift: int = 0                  # bytes from elsewhere, honestly named in Content-Range
    total: int = 0                  # added to the size in Content-Range
    lie: int = 0                    # bytes from elsewhere under the right Content-Range
    corrupt: int | None = None      # this byte of the body is changed
    gzip: bool = False
    extra: int = 0                  # body longer than asked for; Content-Length says so
    fewer: int = 0                  # body shorter than asked for; Content-Length says so
    cut: int | None = None          # the connection ends in order after so many body bytes
    reset: int | None = None        # ... with a reset
    stall: int | None = None        # ... nothing more comes, for `seconds`
    seconds: float = 60
    rate: int = 0                   # bytes per second
    delay: float = 0                # before the answer begins
    silent: bool = False            # the connection ends without an answer
    call: object = None             # called with the request, at the moment of the fault
    hits: int = 0

    def matches(self, request):
        return self.where == request.where and self.path in request.name and \
            (not self.method or self.method == request.method)


@dataclasses.dataclass
class Request:
    where: str
    method: str
    path: str                       # without the query
    query: str
    headers: dict                   # names in lower case
    name: str = ""                  # the repository's path of the file asked for, else the request's path
    time: float = 0
    begin: int | None = None        # range asked for, end included
    end: int | None = None
    status: int = 0
    sent: int = 0                   # body bytes
    fault: Fault | None = None


class Answer:
    def __init__(self, status=200, body=b"", headers=None):
        self.status = status
        self.headers = {"Content-Type": "application/octet-stream", **(headers or {})}
        self.body = body            # bytes, or (path, begin, number)

    def size(self):
        return len(self.body) if isinstance(self.body, bytes) else self.body[2]

    def load(self):
        """The body as bytes, to change it."""
        if not isinstance(self.body, bytes):
            path, begin, n = self.body
            with open(path, "rb") as f:
                f.seek(begin)
                self.body = f.read(n)
        return self.body


class Hub:
    """kind "hub", or "plain": files below /OWNER/NAME/, ranges, nothing else."""

    def __init__(self, *repositories, kind="hub", token=None, tls=None, link_life=3600, link_form="amz",
                 page=1000, require_range=True, host="127.0.0.1"):
        self.kind = kind
        self.host = host                # address of both ports
        self.repositories = {r.name: r for r in repositories}
        self.token = token              # wanted by the hub port
        self.tls = tls                  # (certificate, key) files
        self.link_life = link_life
        self.link_form = link_form      # "amz", "epoch" or "opaque": no expiry to be seen
        self.page = page                # entries of one page of a listing
        self.require_range = require_range  # the content network answers 400 to a whole file
        self.cdn_prefix = ""            # address that links point to, if another hub's
        self.key = secrets.token_bytes(16)
        self.signatures = []            # all that were given out
        self.faults = []
        self.log = []
        self.open_ranges = 0            # data requests being answered, and the most at once
        self.most_open = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.connections = set()
        self.ports = {"hub": Port(self, "hub"), "cdn": Port(self, "cdn")}
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{host}:{self.ports['hub'].number}"
        self.cdn_url = f"{scheme}://{host}:{self.ports['cdn'].number}"

    def fault(self, where, path="", **effects):
        f = Fault(where, path, **effects)
        with self.lock:
            self.faults.append(f)
        return f

    def clear(self):
        with self.lock:
            self.faults.clear()
            self.log.clear()

    def requests(self, where=None, name=""):
        with self.lock:
            return [r for r in self.log if (where is None or r.where == where) and name in r.name]

    def sent(self, name=""):
        """Body bytes of weights and the like that left this server."""
        return sum(r.sent for r in self.requests(None, name) if r.where != "api" and r.status in (200, 206))

    def close(self):
        self.ended.set()
        for p in self.ports.values():
            p.close()
        with self.lock:
            left = list(self.connections)
        for s in left:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    # Answers

    def answer(self, request):
        if request.path == "/login":
            return Answer(200, LOGIN_PAGE, {"Content-Type": "text/html"})
        if request.where == "cdn":
            return self.answer_link(request)
        if self.token and request.headers.get("authorization") != "Bearer " + self.token:
            return Answer(401, b'{"error":"Invalid credentials"}', {"Content-Type": "application/json"})
        if request.where == "api":
            return self.answer_api(request)
        return self.answer_resolve(request)

    def find(self, owner, name, commit):
        r = self.repositories.get(owner + "/" + name)
        return r if r and commit in (r.commit, "main") else None

    def answer_api(self, request):
        words = request.path.strip("/").split("/")       # api models OWNER NAME tree|revision COMMIT
        r = self.find(words[2], words[3], words[5] if len(words) > 5 else "main") if len(words) > 3 else None
        if r is None:
            return Answer(404, b'{"error":"Repository or revision not found"}', {"Content-Type": "application/json"})
        if len(words) > 4 and words[4] == "tree":
            return self.answer_tree(request, r)
        info = {"id": r.name, "sha": r.commit, "cardData": {"license": "mit"}, "private": False, "tags": [],
                "downloads": 0, "siblings": [{"rfilename": p} for p in sorted(r.files)]}
        return Answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def answer_tree(self, request, r):
        query = urllib.parse.parse_qs(request.query)
        start = int(query.get("cursor", ["0"])[0])
        page = min(self.page, int(query.get("limit", [self.page])[0]))
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": d}
                   for d in sorted({os.path.dirname(p) for p in r.files} - {""})]
        for path, f in sorted(r.files.items()):
            e = {"type": "file", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": f.size, "path": path}
            if f.lfs:
                e["lfs"] = {"oid": f.sha256, "size": f.size, "pointerSize": 134}
            entries.append(e)
        headers = {"Content-Type": "application/json"}
        if start + page < len(entries):
            next_query = urllib.parse.urlencode({"recursive": "true", "limit": page, "cursor": start + page})
            headers["Link"] = f'<{self.url}{request.path}?{next_query}>; rel="next"'
        return Answer(200, json.dumps(entries[start:start + page]).encode(), headers)

    def answer_resolve(self, request):
        words = urllib.parse.unquote(request.path).strip("/").split("/")
        if self.kind == "plain":
            r = self.repositories.get("/".join(words[:2]))
            path = "/".join(words[2:])
        else:
            r = self.find(words[0], words[1], words[3]) if len(words) > 4 and words[2] == "resolve" else None
            path = "/".join(words[4:])
        f = r.files.get(path) if r else None
        if f is None:
            return Answer(404, b"Entry not found", {"Content-Type": "text/plain"})
        if self.kind == "plain":
            return self.answer_range(request, f, {"ETag": f'"{f.sha256[:24]}"'})
        headers = {"X-Repo-Commit": r.commit, "Accept-Ranges": "bytes"}
        if not f.lfs:
            return self.answer_range(request, f, {**headers, "ETag": f'"{f.sha256[:40]}"'})
        headers |= {"X-Linked-Size": str(f.size), "X-Linked-ETag": f'"{f.sha256}"',
                    "X-Xet-Hash": hashlib.sha256(b"xet" + f.sha256.encode()).hexdigest(),
                    "Location": self.link(r.name, path), "Content-Type": "text/plain"}
        return Answer(302, b"Found. Redirecting\n", headers)

    def sign(self, path, expires):
        return hmac.new(self.key, f"{path} {expires}".encode(), "sha256").hexdigest()

    def link(self, repo, path):
        now = int(time.time())
        expires = now + int(self.link_life)
        where = "/blob/" + urllib.parse.quote(f"{repo}/{path}")
        signature = self.sign(where, expires)
        with self.lock:
            self.signatures.append(signature)
        if self.link_form == "amz":
            date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
            query = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Date": date,
                     "X-Amz-Expires": int(self.link_life), "X-Amz-Signature": signature}
        elif self.link_form == "epoch":
            policy = base64.b64encode(json.dumps({"Statement": [{"Condition": {"DateLessThan": {
                "AWS:EpochTime": expires}}}]}).encode()).decode()
            query = {"Expires": expires, "Policy": policy, "Signature": signature, "Key-Pair-Id": "K2TEST"}
        else:
            query = {"e": format(expires, "x"), "s": signature}
        return (self.cdn_prefix or self.cdn_url) + where + "?" + urllib.parse.urlencode(query)

    def answer_link(self, request):
        if "authorization" in request.headers:
            return Answer(400, b"<Error><Code>InvalidArgument</Code><Message>Only one auth mechanism allowed</Message>"
                          b"</Error>", {"Content-Type": "application/xml"})
        query = dict(urllib.parse.parse_qsl(request.query))
        try:
            if "X-Amz-Date" in query:
                then = time.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
                expires = int(time.mktime(then) - time.timezone) + int(query["X-Amz-Expires"])
            else:
                expires = int(query["Expires"]) if "Expires" in query else int(query["e"], 16)
        except (KeyError, ValueError):
            expires = 0
        given = query.get("X-Amz-Signature") or query.get("Signature") or query.get("s") or ""
        if not hmac.compare_digest(given, self.sign(request.path, expires)) or time.time() >= expires:
            return Answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
                          {"Content-Type": "application/xml"})
        words = urllib.parse.unquote(request.path).split("/")     # "" blob OWNER NAME PATH
        r = self.repositories.get("/".join(words[2:4]))
        f = r.files.get("/".join(words[4:])) if r else None
        if f is None:
            return Answer(404)
        if self.require_range and "range" not in request.headers and request.method == "GET":
            return Answer(400, b"<Error><Code>InvalidRequest</Code></Error>", {"Content-Type": "application/xml"})
        return self.answer_range(request, f, {"ETag": f'"{hashlib.sha256(b"xet" + f.sha256.encode()).hexdigest()}"'})

    def answer_range(self, request, f, headers):
        headers = {"Accept-Ranges": "bytes", **headers}
        fault = request.fault
        asked = parse_range(request.headers.get("range"), f.size)
        if request.headers.get("if-range", headers.get("ETag")) != headers.get("ETag"):
            asked = None
        if fault and fault.unranged:
            asked = None
        if asked == "beyond":
            return Answer(416, b"", {**headers, "Content-Range": f"bytes */{f.size}"})
        if asked is None:
            return Answer(200, f.data if f.path is None else (f.path, 0, f.size), headers)
        begin, end = asked
        request.begin, request.end = begin, end
        from_, n = begin, end - begin + 1
        if fault:
            begin, end = begin + fault.shift, end + fault.shift
            from_ = begin + fault.lie
            n = max(0, min(n, f.size - from_))
        headers["Content-Range"] = f"bytes {begin}-{end}/{f.size + (fault.total if fault else 0)}"
        return Answer(206, f.data[from_:from_ + n] if f.path is None else (f.path, from_, n), headers)


def parse_range(text, size):
    """(first, last), "beyond", or None for a whole file."""
    if not text or not text.startswith("bytes=") or "," in text:
        return None
    first, _, last = text[6:].partition("-")
    if not first:
        n = min(int(last), size)
        return (size - n, size - 1) if n else "beyond"
    begin = int(first)
    end = min(int(last), size - 1) if last else size - 1
    return (begin, end) if begin <= end else "beyond"


class Port:
    def __init__(self, hub, where):
        self.hub = hub
        self.where = where
        self.socket = socket.create_server((hub.host, 0), backlog=128)
        self.number = self.socket.getsockname()[1]
        self.context = None
        if hub.tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*hub.tls)
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        # A blocked accept() ends by shutdown, not by close.
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()

    def accept(self):
        while not self.hub.ended.is_set():
            try:
                s, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        hub = self.hub
        with hub.lock:
            hub.connections.add(s)
        raw = s
        try:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context:
                s = self.context.wrap_socket(s, server_side=True)
            pending = b""
            while not hub.ended.is_set():
                head, pending = read_head(s, pending)
                if head is None or not self.one(s, head):
                    break
        except (OSError, ValueError):
            pass
        finally:
            with hub.lock:
                hub.connections.discard(raw)
            s.close()

    def one(self, s, head):
        """Answers one request; False: the connection ends."""
        hub = self.hub
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        path, _, query = target.partition("?")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        where = "api" if self.where == "hub" and path.startswith("/api/") else self.where
        request = Request(where, method, path, query, headers, self.name_of(path), time.time())
        with hub.lock:
            hub.log.append(request)
            for f in hub.faults:
                if f.matches(request):
                    f.hits += 1
                    if f.hits > f.skip and (f.times is None or f.hits <= f.skip + f.times):
                        request.fault = f
                        break
        fault = request.fault
        if fault:
            if fault.delay:
                hub.ended.wait(fault.delay)
            if fault.call:
                fault.call(request)
            if fault.silent:
                return False
        if fault and fault.status:
            answer = Answer(fault.status, fault.body)
        elif method not in ("GET", "HEAD"):
            answer = Answer(405)
        else:
            answer = hub.answer(request)
        if fault:
            answer.headers |= fault.headers
            self.change(answer, fault)
        return self.send(s, request, answer)

    def name_of(self, path):
        # /blob/OWNER/NAME/... or /OWNER/NAME/resolve/COMMIT/...
        words = urllib.parse.unquote(path).split("/")
        if words[1:2] == ["blob"] or words[3:4] == ["resolve"]:
            return "/".join(words[4:] if words[1] == "blob" else words[5:])
        return "/".join(words[3:]) if self.hub.kind == "plain" else "/".join(words)

    @staticmethod
    def change(answer, fault):
        if fault.corrupt is not None and answer.status in (200, 206) and answer.size():
            data = bytearray(answer.load())
            data[fault.corrupt % len(data)] ^= 1
            answer.body = bytes(data)
        if fault.extra:
            answer.body = answer.load() + b"x" * fault.extra
        if fault.fewer:
            answer.body = answer.load()[:-fault.fewer]
        if fault.gzip:
            answer.body = gzip.compress(answer.load())
            answer.headers["Content-Encoding"] = "gzip"

    def send(self, s, request, answer):
        fault = request.fault
        headers = {"Content-Length": str(answer.size()), **answer.headers}
        chunked = fault is not None and fault.headers.get("Content-Length", "") is None
        if chunked:     # without a length only the end of the connection ends the body
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Unknown')}"]
        lines += [f"{k}: {v}" for k, v in headers.items() if v is not None]
        request.status = answer.status
        s.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        if request.method == "HEAD":
            return not chunked
        data_request = answer.status in (200, 206) and request.where != "api"
        with self.hub.lock:
            self.hub.open_ranges += data_request
            self.hub.most_open = max(self.hub.most_open, self.hub.open_ranges)
        try:
            return self.send_body(s, request, answer) and not chunked
        finally:
            with self.hub.lock:
                self.hub.open_ranges -= data_request

    def send_body(self, s, request, answer):
        fault = request.fault
        n = answer.size()
        stop = n
        if fault:
            for limit in (fault.cut, fault.reset, fault.stall):
                stop = stop if limit is None else min(stop, limit)
        rate = fault.rate if fault else 0
        self.pump(s, request, answer.body, stop, rate)
        if stop == n and (not fault or (fault.cut is None and fault.reset is None)):
            return True
        if fault.stall is not None:
            self.hub.ended.wait(fault.seconds)
        if fault.reset is not None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def pump(self, s, request, body, stop, rate):
        piece = min(1 << 20, max(1, rate // 20)) if rate else 1 << 20
        if isinstance(body, bytes):
            view = memoryview(body)[:stop]
            for i in range(0, stop, piece):
                s.sendall(view[i:i + piece])
                request.sent += min(piece, stop - i)
                if rate:
                    self.hub.ended.wait(piece / rate)
            return
        path, begin, _ = body
        with open(path, "rb") as f:
            while request.sent < stop:
                n = min(piece, stop - request.sent)
                if self.context:
                    f.seek(begin + request.sent)
                    data = f.read(n)
                    s.sendall(data)
                    done = len(data)
                else:
                    done = os.sendfile(s.fileno(), f.fileno(), begin + request.sent, n)
                if not done:
                    raise OSError("the file shrank")
                request.sent += done
                if rate:
                    self.hub.ended.wait(done / rate)


def read_head(s, pending):
    """(head without the empty line, what follows), or (None, b"") at the end of the connection."""
    while (end := pending.find(b"\r\n\r\n")) < 0:
        if len(pending) > MAX_HEAD:
            return None, b""
        data = s.recv(65536)
        if not data:
            return None, b""
        pending += data
    return pending[:end], pending[end + 4:]


def main():
    folder, name, commit = sys.argv[1:4]
    hub = Hub(Repository.from_folder(name, commit, folder), require_range=False)
    print(json.dumps({"url": hub.url, "pid": os.getpid()}), flush=True)
    try:
        hub.ended.wait()
    except KeyboardInterrupt:
        hub.close()


if __name__ == "__main__":
    main()
